import type { FilterField } from '../../server/domain/decision.ts';

/** The fields whose values are counted. */
export type Facet = Exclude<FilterField, 'session_id' | 'trace_id'>;
interface Counts {
  records: number;
  counted: number;
  matching: number;
  facets: Readonly<Record<Facet, readonly { value: string; count: number }[]>>;
}

/** A value that is more frequent, or rarer, in a selection of decisions than outside it. Both shares are from 0 to 1. */
export interface Difference {
  field: Facet;
  value: string;
  here: number;
  there: number;
}

/** Smaller samples prove nothing. */
export const LEAST = 10;
/** Differences below this share are not worth a line. */
const LEAST_SHARE = 0.1;
/** In standard errors: chance produces a difference this large in about one of a thousand comparisons. */
const ERRORS = 3.3;
const MOST = 8;
/** So that a field with many values leaves room for others. */
const MOST_OF_FIELD = 2;

/**
 * The values that set a selection apart from other decisions, clearest first; undefined if either side has too few to compare.
 * `within`: the other counts include the selection, which is subtracted from them. A value missing from a field's counts is
 * assumed to have the count that makes the difference smallest.
 */
export function setApart(
  selection: Counts,
  others: Counts,
  { within, fields }: { within: boolean; fields: readonly Facet[] },
): Difference[] | undefined {
  const there = within ? Math.max(0, others.matching - selection.matching) : others.matching;
  const looked = [inSample(selection, selection.matching), inSample(others, there)];
  if (Math.min(...looked) < LEAST) return undefined;
  const found = fields.flatMap((field) => {
    const of = (counts: Counts, value: string) => countOf(counts, field, value);
    const values = new Set([...selection.facets[field], ...others.facets[field]].map(({ value }) => value));
    const differences = [...values].flatMap((value): Difference[] => {
      const [mine, all] = [of(selection, value), of(others, value)];
      const share = (count: number) => Math.min(1, count / selection.matching);
      const rest = (count: number) => Math.min(1, Math.max(0, count) / there);
      // the least and the most that each share can be
      const here = [share(mine.least), share(mine.most)] as const;
      const beside = within
        ? ([rest(all.least - mine.most), rest(all.most - mine.least)] as const)
        : ([rest(all.least), rest(all.most)] as const);
      const pair =
        here[0] > beside[1]
          ? ([here[0], beside[1]] as const)
          : here[1] < beside[0]
            ? ([here[1], beside[0]] as const)
            : null;
      if (!pair || !isClear(pair, looked)) return [];
      return [{ field, value, here: pair[0], there: pair[1] }];
    });
    return differences.sort(byClearness).slice(0, MOST_OF_FIELD);
  });
  return found.sort(byClearness).slice(0, MOST);
}

const byClearness = (a: Difference, b: Difference) => Math.abs(b.here - b.there) - Math.abs(a.here - a.there);

/** How many of these decisions are in the sample. */
const inSample = ({ records, counted }: Counts, count: number) =>
  records === 0 ? 0 : count * Math.min(1, counted / records);

/**
 * How many decisions have a value. If it is not listed: at most the count of the rarest listed value, and at most the remainder.
 */
function countOf({ matching, facets }: Counts, field: Facet, value: string): { least: number; most: number } {
  const named = facets[field];
  const count = named.find((one) => one.value === value)?.count;
  if (count !== undefined) return { least: count, most: count };
  const left = matching - named.reduce((sum, one) => sum + one.count, 0);
  return { least: 0, most: Math.max(0, Math.min(left, ...named.map((one) => one.count))) };
}

function isClear([here, there]: readonly [number, number], [n, m]: readonly number[]): boolean {
  const difference = Math.abs(here - there);
  const together = (here * n! + there * m!) / (n! + m!);
  const error = Math.sqrt(together * (1 - together) * (1 / n! + 1 / m!));
  return difference >= LEAST_SHARE && difference > ERRORS * error;
}
