import {
  DECISIONS,
  FILTER_FIELDS,
  GROUP_FIELDS,
  type GroupField,
  MOST_LEFT_OUT,
  notOf,
} from '../../../server/domain/decision.ts';
import { CLOCKS, type Filter } from '../../lib/decision-filter.ts';
import { LAST } from '../../lib/moment.ts';

/**
 * The search parameters of the URL: the filters, the open decision, and the fields to group the counts by, which replace the
 * list. They describe everything that the page shows.
 */
export type Search = Filter & { event?: string; by?: GroupField; and?: GroupField };

export function readSearch(search: Record<string, unknown>): Search {
  const found: Record<string, string | string[]> = {};
  let leftOut = 0;
  // the router parses values that look like numbers
  const text = (value: unknown) => (typeof value === 'number' ? String(value) : value);
  const isValue = (name: string, value: unknown): value is string =>
    typeof value === 'string' &&
    value !== '' &&
    (name !== 'decision' || (DECISIONS as readonly string[]).includes(value));
  for (const name of [...FILTER_FIELDS, 'event']) {
    const value = text(search[name]);
    if (isValue(name, value)) found[name] = value;
  }
  for (const name of FILTER_FIELDS) {
    const given = search[notOf(name)];
    const values = (Array.isArray(given) ? given : [given]).map(text).filter((value) => isValue(name, value));
    const most = Math.min(MOST_LEFT_OUT.field, MOST_LEFT_OUT.all - leftOut);
    const kept = [...new Set(values as string[])].slice(0, most).sort();
    if (kept.length > 0) found[notOf(name)] = kept;
    leftOut += kept.length;
  }
  for (const name of ['by', 'and'] as const) {
    const field = GROUP_FIELDS.find((one) => one === search[name]);
    if (field && field !== found.by && (name === 'by' || found.by)) found[name] = field;
  }
  const { last } = search;
  // a range up to now, or one with fixed ends
  if (typeof last === 'string' && Object.hasOwn(LAST, last)) found.last = last;
  else {
    for (const name of ['since', 'until']) {
      const time = typeof search[name] === 'string' ? Date.parse(search[name]) : Number.NaN;
      if (!Number.isNaN(time)) found[name] = new Date(time).toISOString();
    }
    if (found.since && found.until && found.until <= found.since) delete found.until;
  }
  const clock = CLOCKS.find((one) => one === search.clock);
  if (clock && (found.last || found.since || found.until)) found.clock = clock;
  return found as Search;
}

/** Which decisions are shown, not how. */
export function filterOf({ event: _event, by: _by, and: _and, ...filter }: Search): Filter {
  return filter;
}
