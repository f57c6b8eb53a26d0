import type { Database } from '../../db/index.ts';
import { firstSince, PLAN } from '../chain/seek.ts';
import { DECISIONS, type Decision } from '../domain/decision.ts';

/** Decisions of each kind but allow are counted one by one, up to this many. */
const MOST_COUNTED = 50_000;

export interface DecisionCounts {
  since: string;
  until: string;
  bucket_seconds: number;
  /** The oldest first; `at` is where a bucket begins. */
  buckets: ({ at: string } & Record<Decision, number>)[];
  /** The counts before this time are not complete: there were more than 50,000 decisions of one kind other than allow. */
  complete_since: string | null;
  /** The end of the chain, whatever the time. */
  head: { seq: number; at: string } | null;
}

/**
 * How many decisions of each kind there were in the last `hours`, in `buckets` equal steps up to now. Allowed ones are
 * not counted but inferred from the places in the chain where the steps begin, so that the cost does not grow with them.
 */
export async function countDecisions(
  db: Pick<Database, 'readOnly'>,
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
    // the chain's own time may be ahead of this machine's
    const now = Math.max(Date.now(), (ends.rows[0]?.received_at.getTime() ?? 0) + 1);
    const step = (hours * 3_600_000) / buckets;
    const edges = Array.from({ length: buckets }, (_, n) => now - (buckets - n) * step);
    const starts: number[] = [];
    // the genesis record is no decision
    for (const edge of edges) {
      starts.push(Math.max(2, await firstSince(client, tenantId, 'forensics', last, new Date(edge).toISOString())));
    }
    const found = edges.map((edge, n) => ({
      at: new Date(edge).toISOString(),
      ...(Object.fromEntries(DECISIONS.map((decision) => [decision, 0])) as Record<Decision, number>),
      allow: Math.max(0, (starts[n + 1] ?? last + 1) - starts[n]!),
    }));
    let complete = 0;
    for (const [number, decision] of [...DECISIONS, undefined].entries()) {
      if (decision === 'allow') continue;
      // a literal, so that the planner sees that the partial index over decision > 0 has it
      const { rows } = await client.query<{ bucket: number; count: number }>(
        `select width_bucket(seq, $2::bigint[]) as bucket, count(*)::int as count
         from (select seq from forensic_record where tenant_id = $1 and decision = ${number} and seq >= $3
               order by seq desc limit ${MOST_COUNTED}) counted group by 1`,
        [tenantId, starts, starts[0]],
      );
      for (const { bucket, count } of rows) {
        if (decision) found[bucket - 1]![decision] = count;
        found[bucket - 1]!.allow -= count;
      }
      const counted = rows.reduce((sum, { count }) => sum + count, 0);
      if (counted === MOST_COUNTED) complete = Math.max(complete, Math.min(...rows.map(({ bucket }) => bucket)));
    }
    return {
      since: new Date(edges[0]!).toISOString(),
      until: new Date(now).toISOString(),
      bucket_seconds: step / 1000,
      buckets: found,
      complete_since: complete > 0 ? (found[complete]?.at ?? new Date(now).toISOString()) : null,
      head: ends.rows[0] ? { seq: last, at: ends.rows[0].received_at.toISOString() } : null,
    };
  });
}
