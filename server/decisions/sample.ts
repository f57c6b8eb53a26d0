import type pg from 'pg';
import { NO_DECISION } from '../chain/record.ts';
import { Where } from '../lib/where.ts';
import { conditions, type EventFilters, hasMore } from './search.ts';

/**
 * Which records of a range are read to count its decisions, in bounded work however long the chain is. Up to a limit they
 * are counted one by one. Beyond that, a sample spread evenly over the range is counted, and the numbers are estimates.
 */
const MOST_COUNTED = 5_000;
const SAMPLE = 5_000;
export const SAMPLED = `Ranges with more than ${MOST_COUNTED.toLocaleString('en')} candidates are estimated from ${SAMPLE.toLocaleString('en')} records that are spread evenly over the range`;

export interface SampleBounds {
  mostCounted?: number;
  sample?: number;
}

export interface Sample {
  /** The records of the range, regardless of the filters, and how many of them are read. */
  records: number;
  looked: number;
  isSample: boolean;
  /** Scales a count from the records read to the whole range. */
  scale(count: number): number;
  /**
   * SQL with the time and text of the records read, the condition for those that match the filters, and the parameters of
   * both.
   */
  read(): { picked: string; matching: string; values: unknown[] };
}

export async function sampleOf(
  client: pg.PoolClient,
  { tenantId, first, last }: { tenantId: string; first: number; last: number },
  filters: EventFilters,
  { mostCounted = MOST_COUNTED, sample = SAMPLE }: SampleBounds,
): Promise<Sample> {
  const records = Math.max(0, last - first + 1);
  const decisions = `tenant_id = $1 and seq between $2 and $3 and decision < ${NO_DECISION}`;
  const { indexed, scanned } = conditions(new Where(decisions, [tenantId, first, last]), filters);
  const isSample = records > mostCounted && (await hasMore(client, indexed, mostCounted));
  const looked = isSample ? Math.min(sample, records) : records;
  return {
    records,
    looked,
    isSample,
    scale: (count) => (isSample ? Math.round((count * records) / looked) : count),
    read() {
      const values = [...(scanned ?? indexed).values];
      const one = `select seq, received_at, line from forensic_record where ${indexed.sql}`;
      const picked = isSample
        ? // looked up by a column, not by an expression: see seqSince
          `select r.received_at, r.line from unnest($${values.push(spread(first, last, sample))}::bigint[]) as s(place),
             lateral (${one} and seq = s.place offset 0) r`
        : `${one} order by seq desc limit ${mostCounted}`;
      return { picked, matching: scanned?.sql ?? 'true', values };
    },
  };
}

/** At most `most` positions, spread evenly. */
function spread(first: number, last: number, most: number): number[] {
  const step = Math.max(1, (last - first + 1) / most);
  return Array.from({ length: Math.min(most, last - first + 1) }, (_, n) => Math.floor(first + (n + 0.5) * step));
}
