import { type Decision, FILTER_FIELDS, type FilterField } from '../../../server/domain/decision.ts';

/** The search parameters of the URL: the filters, and the open decision. */
export type Search = { decision?: Decision; event?: string } & { [K in Exclude<FilterField, 'decision'>]?: string };

export function readSearch(search: Record<string, unknown>): Search {
  const found: Record<string, string> = {};
  for (const name of [...FILTER_FIELDS, 'event']) {
    const value = search[name];
    if (typeof value === 'string' && value !== '') found[name] = value;
    // the router parses values that look like numbers
    if (typeof value === 'number') found[name] = String(value);
  }
  return found as Search;
}
