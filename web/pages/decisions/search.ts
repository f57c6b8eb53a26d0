import { DECISIONS, FILTER_FIELDS } from '../../../server/domain/decision.ts';
import type { Filter } from '../../lib/decision-filter.ts';
import { LAST } from '../../lib/moment.ts';

/** The search parameters of the URL: the filters, and the open decision. All that the page shows is in it. */
export type Search = Filter & { event?: string };

export function readSearch(search: Record<string, unknown>): Search {
  const found: Record<string, string> = {};
  for (const name of [...FILTER_FIELDS, 'event']) {
    const value = search[name];
    if (typeof value === 'string' && value !== '') found[name] = value;
    // the router parses values that look like numbers
    if (typeof value === 'number') found[name] = String(value);
  }
  if (found.decision !== undefined && !(DECISIONS as readonly string[]).includes(found.decision)) delete found.decision;
  const { last } = search;
  // a range up to now, or one with its ends
  if (typeof last === 'string' && Object.hasOwn(LAST, last)) found.last = last;
  else {
    for (const name of ['since', 'until']) {
      const time = typeof search[name] === 'string' ? Date.parse(search[name]) : Number.NaN;
      if (!Number.isNaN(time)) found[name] = new Date(time).toISOString();
    }
    if (found.since && found.until && found.until <= found.since) delete found.until;
  }
  return found as Search;
}
