import type { Inputs } from '../../lib/trpc.ts';

export const FILTERS = ['action', 'severity', 'actor_id', 'target_type', 'target_id', 'since', 'until'] as const;
type Query = NonNullable<Inputs['chain']['audit']>;

/** What the address says: which records are shown. */
export type AuditFilter = Pick<Query, (typeof FILTERS)[number]>;

/** The filter, and the record that is open. */
export type AuditSearch = AuditFilter & { record?: string };

export function readAuditSearch(search: Record<string, unknown>): AuditSearch {
  const found: Record<string, string> = {};
  for (const name of [...FILTERS, 'record']) {
    const value = search[name];
    if (typeof value === 'string' && value !== '') found[name] = value;
    // what looks like a number in an address is read as one
    if (typeof value === 'number') found[name] = String(value);
  }
  return found as AuditSearch;
}
