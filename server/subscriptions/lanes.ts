import { apart, groupsApart, type Only, onlyOf } from '../../db/citus.ts';
import type { Database } from '../../db/index.ts';
import { type Locked, unflushed } from './outcomes.ts';

/*
 * The claims of workers on lanes. A lane is one destination's queue: whoever has its newest fence, and a lease that has not
 * ended, sends what is in it.
 */

/** Destinations that one process serves concurrently; they spend most of their time waiting. */
export const LANES = 256;

export interface ClaimedLane {
  tenant_id: string;
  id: string;
  target_sealed: Buffer | null;
  fence: number;
  failing_since: Date | null;
  /** When the current run of 404 and 410 answers began. */
  gone_since: Date | null;
}

/** A lane to release, and until when its destination is to be left alone. */
export interface LaneRelease {
  lane: Pick<ClaimedLane, 'tenant_id' | 'id' | 'fence'>;
  notBefore: number | undefined;
  /** Nothing is sent there before somebody says so. */
  idle: boolean;
}

/**
 * Claims at most `limit` lanes with something due until `until`, each durably when it is given out: either those whose last attempt
 * failed, or the others. Failing ones get their places by turns of the tenants: however many of one tenant hang, nobody else's
 * waits for more than one of its attempts. `served`: the tenants of the failing lanes that are served now, each as often as it has one.
 */
export async function* claimLanes(
  db: Database,
  claim: {
    limit: number;
    failing: boolean;
    served: readonly string[];
    now: number;
    until: number;
    only: string | undefined;
  },
): AsyncGenerator<ClaimedLane> {
  const { limit, failing, only } = claim;
  const due = `due_at <= $1 and (not_before is null or not_before <= $1)
    and (leased_until is null or leased_until <= $1) and (failing_since is not null) = $2
    ${only === undefined ? '' : onlyOf(only)()}`;
  const values = [new Date(claim.now), failing];
  const served: Record<string, number> = {};
  for (const tenantId of claim.served) served[tenantId] = (served[tenantId] ?? 0) + 1;
  const turns = (one: Only) => `join (
    select tenant_id, id, coalesce(($5::jsonb->>tenant_id)::integer, 0) + row_number() over (partition by tenant_id order by due_at) as turn
    from delivery_lane where ${due} ${one()}) t using (tenant_id, id)`;
  const waiting = `select tenant_id from delivery_lane where ${due} group by 1 order by min(due_at) limit $3`;
  const tenants = await apart(db, waiting, [...values, LANES]);
  if (failing) tenants.sort((a, b) => (served[a.tenantId!] ?? 0) - (served[b.tenantId!] ?? 0));
  let left = limit;
  for (const [n, one] of tenants.entries()) {
    const most = failing ? Math.ceil(left / (tenants.length - n)) : left;
    // due_at moves with the lease: a delivery queued in the meantime moves it back, which the release notices
    const { rows } = await db.nearOf(one.tenantId).query<ClaimedLane>(
      `update delivery_lane l set fence = l.fence + 1, leased_until = $4, due_at = $4
       from (select tenant_id, id from delivery_lane d ${failing ? turns(one) : ''} where ${due} ${one()}
             order by ${failing ? 'turn, ' : ''}due_at limit $3 for no key update of d skip locked) due
       where l.tenant_id = due.tenant_id and l.id = due.id ${one('l')}
       returning l.tenant_id, l.id, l.target_sealed, l.fence, l.failing_since, l.gone_since`,
      [...values, most, new Date(claim.until), ...(failing ? [JSON.stringify(served)] : [])],
    );
    yield* rows;
    left -= rows.length;
    if (left === 0) break;
  }
}

/**
 * Releases each lane until its next delivery is due. Does nothing for those that are no longer of this claim, nor for locked ones
 * that are to be passed over. Resolves to which are released.
 */
export async function releaseLanes(db: Database, releases: readonly LaneRelease[], locked: Locked): Promise<boolean[]> {
  const released = new Set<LaneRelease>();
  for (const { items, only } of groupsApart(db, releases, ({ lane }) => lane.tenant_id)) {
    for (const n of await releaseOf(db, items, only, locked)) released.add(items[n - 1]!);
  }
  return releases.map((release) => released.has(release));
}

/** Resolves to the numbers of those that are released, from 1. */
async function releaseOf(
  db: Database,
  releases: readonly LaneRelease[],
  only: Only,
  locked: Locked,
): Promise<number[]> {
  // locks several lanes in id order, as all do that lock several
  const { rows } = await db.nearOf(only.tenantId).query<{ n: number }>(
    `with x as (
        select * from unnest($1::text[], $2::text[], $3::bigint[], $4::timestamptz[], $5::boolean[])
          with ordinality x (tenant_id, id, fence, not_before, idle, n)
      ), held as materialized (
        select l.tenant_id, l.id, l.due_at, l.leased_until, x.not_before, x.idle, x.n from delivery_lane l
        join x on x.tenant_id = l.tenant_id and x.id = l.id and x.fence = l.fence ${only('l')}
        order by l.tenant_id, l.id for no key update of l ${locked === 'wait' ? '' : 'skip locked'}
      )
      update delivery_lane l set leased_until = null, not_before = h.not_before,
        due_at = case when h.idle then null when h.due_at = h.leased_until then next.at else least(h.due_at, next.at) end
      from held h cross join lateral (
        select min(d.next_attempt_at) as at from delivery d
        where d.tenant_id = h.tenant_id and d.lane_id = h.id and d.status = 'retrying' ${only('d')}) next
      where l.tenant_id = h.tenant_id and l.id = h.id ${only('l')} ${unflushed(db)}
      returning h.n::int as n`,
    [
      releases.map(({ lane }) => lane.tenant_id),
      releases.map(({ lane }) => lane.id),
      releases.map(({ lane }) => lane.fence),
      releases.map(({ notBefore }) => (notBefore === undefined ? null : new Date(notBefore))),
      releases.map(({ idle }) => idle),
    ],
  );
  return rows.map(({ n }) => n);
}
