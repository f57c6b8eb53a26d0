import { type Decision, FILTER_FIELDS, type FilterField } from '../../../server/domain/decision.ts';

/** What the address says: the filters, and the decision that is open. */
export type Search = { decision?: Decision; event?: string } & { [K in Exclude<FilterField, 'decision'>]?: string };

export function readSearch(search: Record<string, unknown>): Search {
  const found: Record<string, string> = {};
  for (const name of [...FILTER_FIELDS, 'event']) {
    const value = search[name];
    if (typeof value === 'string' && value !== '') found[name] = value;
    // what looks like a number in an address is read as one
    if (typeof value === 'number') found[name] = String(value);
  }
  return found as Search;
}
