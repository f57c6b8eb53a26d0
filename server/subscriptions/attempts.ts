import type { Reads } from '../../db/index.ts';
import type { DeliveryResult } from '../../machines/delivery.ts';
import { invalid } from '../errors.ts';
import type { Clock } from '../lib/clock.ts';
import { firstId } from '../lib/ids.ts';
import { edgesOf } from '../lib/time-steps.ts';
import { typeOf } from './subscription-row.ts';

/** Attempts are counted for at most this many deliveries, those of the newest events. */
const MOST_LOOKED_AT = 20_000;
const DAY_MS = 24 * 3600_000;

export interface AttemptsQuery {
  since?: string | undefined;
  until?: string | undefined;
  buckets: number;
  utc_offset: number;
}

interface Numbers {
  delivered: number;
  delivered_on_retry: number;
  failed: number;
  retries: number;
  p50_ms: number | null;
  p95_ms: number | null;
}

export interface AttemptsView extends Numbers {
  since: string;
  until: string;
  bucket_seconds: number;
  complete_since: string | null;
  buckets: ({ at: string } & Numbers)[];
}

const ACCEPTED: DeliveryResult = 'DELIVERED';
const NONE: Numbers = { delivered: 0, delivered_on_retry: 0, failed: 0, retries: 0, p50_ms: null, p95_ms: null };

/**
 * The attempts to reach a destination over time: the ones kept for each delivery, which are all of them unless it was tried more
 * than 50 times. The work is bounded, however much was sent.
 */
export async function countAttempts(
  { db, clock }: { db: Reads; clock: Clock },
  tenantId: string,
  id: string,
  query: AttemptsQuery,
  mostLookedAt = MOST_LOOKED_AT,
): Promise<AttemptsView> {
  const until = Math.max(1, query.until === undefined ? clock.now() + 1 : Date.parse(query.until));
  const since = Math.max(0, query.since === undefined ? until - DAY_MS : Date.parse(query.since));
  if (until <= since) throw invalid('?until', 'must be after since');
  const { edges, seconds } = edgesOf(since, until, query.buckets, query.utc_offset);
  const { rows } = await db.readOnly(tenantId, async (client) => {
    await typeOf(client, tenantId, id);
    return client.query<Numbers & { bucket: number | null; looked_at: number; oldest: Date | null }>(
      // The last attempt of each delivery is in its columns, earlier ones are in its history. No event is sent before it happens.
      `with d as materialized (
       select attempts, result, http_status, last_attempt_at, duration_ms, history, created_at from delivery
       where tenant_id = $1 and lane_id = $2 and event_id < $3 order by event_id desc limit ${mostLookedAt}),
     a as (
       select last_attempt_at as at, result, http_status, duration_ms, attempts > 1 as again from d
       where last_attempt_at >= $4 and last_attempt_at < $5
       union all
       select t.at, h->>'result', (h->>'http_status')::int, (h->>'duration_ms')::int,
         attempts - jsonb_array_length(history) + n > 2
       from d, jsonb_array_elements(history) with ordinality x (h, n), to_timestamp((h->>'at')::double precision / 1000) t (at)
       where last_attempt_at >= $4 and t.at >= $4 and t.at < $5)
     select width_bucket(at, $6::timestamptz[]) as bucket,
       count(*) filter (where result = '${ACCEPTED}' and not again)::int as delivered,
       count(*) filter (where result = '${ACCEPTED}' and again)::int as delivered_on_retry,
       count(*) filter (where result <> '${ACCEPTED}')::int as failed,
       count(*) filter (where again)::int as retries,
       percentile_disc(0.5) within group (order by duration_ms) filter (where http_status is not null) as p50_ms,
       percentile_disc(0.95) within group (order by duration_ms) filter (where http_status is not null) as p95_ms,
       (select count(*)::int from d) as looked_at, (select min(created_at) from d) as oldest
     from a group by grouping sets ((1), ())`,
      [...[tenantId, id, firstId('oev', until), new Date(since), new Date(until)], edges.map((edge) => new Date(edge))],
    );
  });
  const numbersOf = ({ bucket: _, looked_at: __, oldest: ___, ...numbers }: (typeof rows)[number]): Numbers => numbers;
  const all = rows.find(({ bucket }) => bucket === null)!;
  const of = new Map(rows.map((row) => [row.bucket, numbersOf(row)]));
  return {
    since: new Date(since).toISOString(),
    until: new Date(until).toISOString(),
    bucket_seconds: seconds,
    complete_since: all.looked_at === mostLookedAt && all.oldest!.getTime() > since ? all.oldest!.toISOString() : null,
    ...numbersOf(all),
    buckets: edges.map((edge, n) => ({ at: new Date(edge).toISOString(), ...(of.get(n + 1) ?? NONE) })),
  };
}
