import type { Inputs } from '../../lib/trpc.ts';

export const STATES = [
  'pending',
  'accepted',
  'revoked',
  'expired',
] as const satisfies readonly Inputs['invites']['list']['status'][];

/** The search parameters of the URL: the tab, the search text and the page. */
export interface TeamSearch {
  tab?: 'invitations' | 'groups';
  q?: string;
  status?: (typeof STATES)[number];
  page?: number;
}

export function readTeamSearch({ tab, q, status, page }: Record<string, unknown>): TeamSearch {
  const text = typeof q === 'number' ? String(q) : q;
  const number = Number(page);
  return {
    ...((tab === 'invitations' || tab === 'groups') && { tab }),
    ...(typeof text === 'string' && text !== '' && { q: text }),
    ...(STATES.includes(status as (typeof STATES)[number]) && { status: status as (typeof STATES)[number] }),
    ...(Number.isInteger(number) && number > 1 && { page: number }),
  };
}
