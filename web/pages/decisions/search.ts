import type { Decision } from '../../../server/domain/decision.ts';

export const FILTERS = ['decision', 'tool_name', 'agent_id', 'agent_role', 'policy_id', 'session_id'] as const;
export type Filter = (typeof FILTERS)[number];

/** What the address says: the filters, and the decision that is open. */
export type Search = { decision?: Decision; event?: string } & { [K in Exclude<Filter, 'decision'>]?: string };

export function readSearch(search: Record<string, unknown>): Search {
  const found: Record<string, string> = {};
  for (const name of [...FILTERS, 'event']) {
    const value = search[name];
    if (typeof value === 'string' && value !== '') found[name] = value;
    // what looks like a number in an address is read as one
    if (typeof value === 'number') found[name] = String(value);
  }
  return found as Search;
}
