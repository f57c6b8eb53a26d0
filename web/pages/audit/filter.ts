import type { Inputs } from '../../lib/trpc.ts';

export const FILTERS = ['action', 'severity', 'actor_id', 'target_type', 'target_id', 'since', 'until'] as const;
type Query = NonNullable<Inputs['chain']['audit']>;

/** The filter in the URL. */
export type AuditFilter = Pick<Query, (typeof FILTERS)[number]>;

/** The filter, and the open record. */
export type AuditSearch = AuditFilter & { record?: string };

export function readAuditSearch(search: Record<string, unknown>): AuditSearch {
  const found: Record<string, string> = {};
  for (const name of [...FILTERS, 'record']) {
    const value = search[name];
    if (typeof value === 'string' && value !== '') found[name] = value;
    // the router parses values that look like numbers
    if (typeof value === 'number') found[name] = String(value);
  }
  return found as AuditSearch;
}
