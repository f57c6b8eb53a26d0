/** `live`: any version is enforced; the others are the status of the newest version. */
export const STATUSES = ['live', 'draft', 'pending_approval', 'revoked'] as const;
export type PolicyStatus = (typeof STATUSES)[number];

/** The search parameters of the policy list. */
export interface PolicyFilter {
  status?: PolicyStatus;
  agent_role?: string;
  scope?: string;
  q?: string;
  order?: 'id' | 'status';
  page?: number;
}

export function readPolicyFilter(search: Record<string, unknown>): PolicyFilter {
  const text = (value: unknown) => (typeof value === 'string' && value !== '' ? value : undefined);
  const page = Number(search.page);
  const status = search.status as PolicyStatus;
  return {
    ...(STATUSES.includes(status) && { status }),
    ...(text(search.agent_role) && { agent_role: text(search.agent_role) }),
    ...(text(search.scope) && { scope: text(search.scope) }),
    ...(text(search.q) && { q: text(search.q)!.slice(0, 100) }),
    ...((search.order === 'id' || search.order === 'status') && { order: search.order }),
    ...(Number.isInteger(page) && page > 1 && { page }),
  };
}

export const TABS = ['text', 'tests', 'diff', 'rules', 'history', 'machine'] as const;
export type PolicyTab = (typeof TABS)[number];

export function readPolicyTab(search: Record<string, unknown>): {
  tab?: PolicyTab;
  from?: number;
  to?: number;
  /** A saved question. */
  ask?: string;
} {
  const version = (value: unknown) =>
    Number.isInteger(Number(value)) && Number(value) > 0 ? Number(value) : undefined;
  return {
    ...(TABS.includes(search.tab as PolicyTab) && { tab: search.tab as PolicyTab }),
    ...(version(search.from) && { from: version(search.from) }),
    ...(version(search.to) && { to: version(search.to) }),
    ...(typeof search.ask === 'string' && /^qst_\w{1,60}$/.test(search.ask) && { ask: search.ask }),
  };
}
