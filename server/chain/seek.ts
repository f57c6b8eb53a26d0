import type pg from 'pg';
import { arrayOf } from '../../db/citus.ts';
import type { Database } from '../../db/index.ts';
import { RECORDS } from './loss.ts';
import type { ChainName } from './record.ts';

/** Finds positions in a chain using the role of requests, whose row level security prevents the use of many indexes. */

/**
 * To be run first in a transaction in which every query has an index that returns its rows in order. Before the first ANALYZE,
 * the planner would sort a whole chain. What is off here adds 10^10 to the estimated cost of a plan that cannot do without it,
 * which is above the cost from which PostgreSQL compiles a statement to machine code: that takes seconds for each of them.
 */
export const PLAN = `select set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
  set_config('enable_sort', 'off', true), set_config('jit', 'off', true)`;

/**
 * The heads of the decision chains of these tenants, by tenant. A tenant without a record is left out. On Citus, where they are
 * on several servers, each statement is for the tenants of one shard.
 */
export async function headsOf(
  db: Pick<Database, 'nearOf' | 'places'>,
  tenantIds: readonly string[],
): Promise<Map<string, number>> {
  const heads = new Map<string, number>();
  for (const ofShard of Map.groupBy(tenantIds, (tenantId) => db.places?.shardOf(tenantId)).values()) {
    const { rows } = await db
      .nearOf(ofShard[0])
      .query<{ tenant_id: string; seq: number }>(
        `select tenant_id, seq from chain_head where tenant_id = any(${arrayOf(ofShard)}) and chain = 'forensics'`,
      );
    for (const { tenant_id, seq } of rows) heads.set(tenant_id, seq);
  }
  return heads;
}

/** The seq of the chain's last record; 0 if it has none. */
export async function lastSeq(client: pg.PoolClient, tenantId: string, chain: ChainName): Promise<number> {
  const { rows } = await client.query<{ seq: number }>(
    `select seq from ${RECORDS[chain].table} where tenant_id = $1 order by seq desc limit 1`,
    [tenantId],
  );
  return rows[0]?.seq ?? 0;
}

/**
 * A subquery with one row, `seq`: the first one, up to `last` + 1, of a record of tenant $1 that was received at `since` or
 * later. Both are SQL expressions. Time never goes backwards within a chain, so this is a binary search over the primary key and
 * needs no index.
 */
export const seqSince = (chain: ChainName, last: string, since: string): string =>
  // The record is looked up by a column. If the sum were used directly, row level security would compare it with every record of
  // the tenant instead of using the index, because the sum could fail (PostgreSQL 15). The offset keeps the record from being
  // read once per use.
  `(with recursive search (low, high, middle) as (
      select 1::bigint, ${last}::bigint + 1, (${last}::bigint + 2) / 2
    union all
      select low, high, (low + high) / 2 from (
        select case when earlier then middle + 1 else low end as low, case when earlier then high else middle end as high
        from (
          select low, high, middle,
            coalesce((select r.received_at < ${since}::timestamptz from ${RECORDS[chain].table} r
                      where r.tenant_id = $1 and r.seq = search.middle), false) as earlier
          from search where low < high offset 0) step) next)
    select low as seq from search where low = high)`;

/** The first seq, up to `last` + 1, that was received at `since` or later, see `seqSince`. */
export async function firstSince(
  client: pg.PoolClient,
  tenantId: string,
  chain: ChainName,
  last: number,
  since: string,
): Promise<number> {
  const [first] = await firstSinceEach(client, tenantId, chain, last, [new Date(since)]);
  return first!;
}

/** The same for each of these times, in one statement. */
export async function firstSinceEach(
  client: pg.PoolClient,
  tenantId: string,
  chain: ChainName,
  last: number,
  times: readonly Date[],
): Promise<number[]> {
  const { rows } = await client.query<{ n: number; seq: number }>(
    `select n, ${seqSince(chain, '$2', 'times.since')} as seq from unnest($3::timestamptz[]) with ordinality as times (since, n)`,
    [tenantId, last, times],
  );
  return rows.sort((a, b) => a.n - b.n).map(({ seq }) => seq);
}
