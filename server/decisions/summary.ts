import type pg from 'pg';
import type { Reads } from '../../db/index.ts';
import { firstSinceEach, PLAN } from '../chain/seek.ts';
import { DECISIONS, type Decision } from '../domain/decision.ts';

/** Decisions of each kind except allow are counted individually, up to this many. */
const MAX_COUNTED = 50_000;

export interface DecisionCounts {
  since: string;
  until: string;
  bucket_seconds: number;
  /** Oldest first; `at` is the start of the bucket. */
  buckets: ({ at: string } & Record<Decision, number>)[];
  /** Counts before this time are incomplete because there were more than 50,000 decisions of one kind other than allow. */
  complete_since: string | null;
  /** The end of the chain, regardless of the time range. */
  head: { seq: number; at: string } | null;
}

/**
 * The number of decisions of each kind in the last `hours`, in `buckets` equal steps up to now. Allowed ones are not
 * counted but derived from the chain positions at the bucket boundaries, so that the cost does not grow with them.
 */
export async function countDecisions(
  db: Reads,
  tenantId: string,
  options: { hours: number; buckets: number },
): Promise<DecisionCounts> {
  const { hours, buckets } = options;
  return db.readOnly(tenantId, async (client) => {
    await client.query(PLAN);
    const ends = await client.query<{ seq: number; received_at: Date }>(
      'select seq, received_at from forensic_record where tenant_id = $1 order by seq desc limit 1',
      [tenantId],
    );
    const last = ends.rows[0]?.seq ?? 0;
    // the timestamps in the chain may be ahead of this machine's clock
    const now = Math.max(Date.now(), (ends.rows[0]?.received_at.getTime() ?? 0) + 1);
    const step = (hours * 3_600_000) / buckets;
    const edges = Array.from({ length: buckets }, (_, n) => now - (buckets - n) * step);
    const times = edges.map((edge) => new Date(edge));
    const found = await firstSinceEach(client, tenantId, 'forensics', last, times);
    // the genesis record is not a decision
    const starts = found.map((start) => Math.max(2, start));
    const { kinds, complete } = await countKinds(client, tenantId, starts, last);
    const counted = times.map((time, n) => ({ at: time.toISOString(), ...kinds[n]! }));
    return {
      since: times[0]!.toISOString(),
      until: new Date(now).toISOString(),
      bucket_seconds: step / 1000,
      buckets: counted,
      complete_since: complete > 0 ? (counted[complete]?.at ?? new Date(now).toISOString()) : null,
      head: ends.rows[0] ? { seq: last, at: ends.rows[0].received_at.toISOString() } : null,
    };
  });
}

/**
 * The decisions of each kind from each of `starts` to the next, and from the last to `last`; these are positions in the
 * chain, in order. Counts before step `complete` are incomplete.
 */
export async function countKinds(
  client: pg.PoolClient,
  tenantId: string,
  starts: readonly number[],
  last: number,
): Promise<{ kinds: Record<Decision, number>[]; complete: number }> {
  const kinds = starts.map((start, n) => ({
    ...(Object.fromEntries(DECISIONS.map((decision) => [decision, 0])) as Record<Decision, number>),
    allow: Math.max(0, (starts[n + 1] ?? last + 1) - start),
  }));
  let complete = 0;
  for (const [number, decision] of [...DECISIONS, undefined].entries()) {
    if (decision === 'allow') continue;
    // a literal, so that the planner can match the partial index over decision > 0
    const { rows } = await client.query<{ bucket: number; count: number }>(
      `select width_bucket(seq, $2::bigint[]) as bucket, count(*)::int as count
       from (select seq from forensic_record where tenant_id = $1 and decision = ${number} and seq between $3 and $4
             order by seq desc limit ${MAX_COUNTED}) counted group by 1`,
      [tenantId, starts, starts[0], last],
    );
    for (const { bucket, count } of rows) {
      if (decision) kinds[bucket - 1]![decision] = count;
      kinds[bucket - 1]!.allow -= count;
    }
    const counted = rows.reduce((sum, { count }) => sum + count, 0);
    if (counted === MAX_COUNTED) complete = Math.max(complete, Math.min(...rows.map(({ bucket }) => bucket)));
  }
  return { kinds, complete };
}
