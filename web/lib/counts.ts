import type { Asked, Filter } from './decision-filter.ts';
import { type Last, sinceOf, type Zone } from './moment.ts';
import { trpc } from './trpc.ts';

export type CountsFilter = Omit<Filter, 'last' | 'clock' | 'since' | 'until'>;

/** How finely decisions are counted over time, and whether also by field. */
export interface CountsAbout {
  buckets?: number | undefined;
  facets?: 'all' | 'none' | undefined;
}

/** How often they are counted again. */
export const AGAIN_MS = 30_000;
/** How often the counted time span moves forward; what arrived in the meantime is then counted too. */
export const MOVES_MS = 600_000;

/** The counts of the decisions of the last hours or days: the same for each part of a page, so there is only one request. */
export const countsOptions = (
  filter: CountsFilter,
  last: Last,
  { now, zone, buckets = 40, facets = 'all' }: CountsAbout & { now: number; zone: Zone },
) =>
  trpc.events.counts.queryOptions(
    {
      ...filter,
      since: sinceOf(last, Math.floor(now / MOVES_MS) * MOVES_MS),
      buckets,
      facets,
      utc_offset: offsetOf(zone),
    },
    { staleTime: AGAIN_MS },
  );

/** With these, the bars of a week span two hours, those of a day a quarter of an hour. */
const BARS = 100;

/** What the decisions page counts: everything its list shows. */
export const listCountsOptions = (filter: Asked, zone: Zone) =>
  trpc.events.counts.queryOptions({ ...filter, buckets: BARS, utc_offset: offsetOf(zone) }, { staleTime: AGAIN_MS });

const offsetOf = (zone: Zone) => (zone === 'utc' ? 0 : -new Date().getTimezoneOffset());
