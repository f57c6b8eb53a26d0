import type { Filter } from './decision-filter.ts';
import { type Last, sinceOf, type Zone } from './moment.ts';
import { trpc } from './trpc.ts';

export type CountsFilter = Omit<Filter, 'last' | 'since' | 'until'>;

/** So often they are counted again. */
export const AGAIN_MS = 30_000;
/** So often the time that is counted moves on; what came meanwhile is counted too. */
export const MOVES_MS = 600_000;

/** The counts of the decisions of the last hours or days: the same for each part of a page, so that they are asked for once. */
export const countsOptions = (
  filter: CountsFilter,
  last: Last,
  { now, zone, buckets = 40 }: { now: number; zone: Zone; buckets?: number | undefined },
) =>
  trpc.events.counts.queryOptions(
    {
      ...filter,
      since: sinceOf(last, Math.floor(now / MOVES_MS) * MOVES_MS),
      buckets,
      utc_offset: zone === 'utc' ? 0 : -new Date().getTimezoneOffset(),
    },
    { staleTime: AGAIN_MS },
  );
