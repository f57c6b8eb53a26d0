import { across, apart, groupsApart, type Only, onlyOf } from '../../db/citus.ts';
import type { Database } from '../../db/index.ts';
import { type Locked, unflushed } from './outcomes.ts';

/*
 * The claims of workers on lanes. A lane is one destination's queue: the holder of its newest fence, with a lease that has not
 * ended, sends what is in it. Anything that takes the lane away raises the fence.
 */

/** Destinations that one process serves concurrently; they spend most of their time waiting. */
export const LANES = 256;
/** How many destinations' rows one statement reads, and how many outcomes one statement writes. */
export const GROUP = 256;
/** Longer than an attempt and its commit can take. After a crash, other processes take over when the lease expires. */
export const LEASE_MS = 30_000;

export interface ClaimedLane {
  tenant_id: string;
  id: string;
  target_sealed: Buffer | null;
  fence: number;
  failing_since: Date | null;
  /** When the current run of 404 and 410 answers began. */
  gone_since: Date | null;
}

type LaneKey = Pick<ClaimedLane, 'tenant_id' | 'id' | 'fence'>;

/** A lane to release, and how long to leave its destination alone. */
export interface LaneRelease {
  lane: LaneKey;
  notBefore: number | undefined;
  /** Nothing is sent there until someone requests it. */
  idle: boolean;
}

/** When a lane can be served: something is due, the destination is no longer to be left alone, and no lease is in the way. */
const READY_AT = 'greatest(due_at, not_before, leased_until)';
const isReady = (failing: boolean) =>
  `due_at is not null and failing_since is ${failing ? 'not null' : 'null'} and ${READY_AT} <= $1`;
/**
 * Fails and has something due, phrased to match the predicate of the index for turns: no other index finds one tenant's lanes
 * without those of all others. PostgreSQL would choose another one if its last statistics counted no such lane.
 */
const WAITS = 'num_nulls(due_at, failing_since) = 0';

/** Failing lanes that a claim looks at, those that were ready first. If there are that many, it also looks at as many tenants. */
const LOOKED_AT = 256;

export interface LaneClaim {
  /** The maximum number of lanes. */
  limit: number;
  /** Whether to claim lanes whose last attempt failed, or the others. */
  failing: boolean;
  /** The tenants of the failing lanes that are being served, one entry per lane. */
  served: readonly string[];
  now: number;
  /** The end of the lease. */
  until: number;
  /** Claim lanes of this tenant alone. */
  only: string | undefined;
}

/** A lane that was ready when it was looked up. */
interface Ready {
  tenant_id: string;
  id: string;
  /** In seconds. */
  ready_at: number;
}

/**
 * The claims of a process. What a claim reads does not grow with the number of lanes; where Citus spreads tenants over servers,
 * it grows with the number of lanes that are ready.
 */
export class LaneClaims {
  readonly #db: Database;
  /** The next look at tenants begins after this one. */
  #after = '';

  constructor(db: Database) {
    this.#db = db;
  }

  /**
   * Yields lanes that have something due, each as soon as it is durably claimed. Of concurrent claimers, only one gets a given
   * lane, and none waits for another. Lanes that were ready first come first. Failing lanes take turns by tenant: however many
   * lanes of one tenant hang, another tenant's lane waits for no more than one of that tenant's attempts. If more than 256
   * tenants have failing lanes and at least 256 of these lanes are ready, turns are determined for 256 tenants at a time.
   */
  async *claim(claim: LaneClaim): AsyncGenerator<ClaimedLane> {
    const { failing, only } = claim;
    const ready = `${isReady(failing)}${only === undefined ? '' : onlyOf(only)()}`;
    const served = new Map<string, number>();
    for (const tenantId of claim.served) served.set(tenantId, (served.get(tenantId) ?? 0) + 1);
    const tenants = await apart(
      this.#db,
      `select tenant_id from delivery_lane where ${ready} group by 1 order by min(${READY_AT}) limit $2`,
      [new Date(claim.now), LANES],
    );
    if (failing) tenants.sort((a, b) => (served.get(a.tenantId!) ?? 0) - (served.get(b.tenantId!) ?? 0));
    let left = claim.limit;
    for (const [n, one] of tenants.entries()) {
      const most = failing ? Math.ceil(left / (tenants.length - n)) : left;
      const several = one.tenantId === undefined && only === undefined;
      const lanes = failing && several ? this.#inTurn(claim, most, served) : this.#oldest(claim, most, ready, one);
      for await (const lane of lanes) {
        yield lane;
        left--;
      }
      if (left === 0) break;
    }
  }

  /** Renews the lease of a lane that is still this process's; false if it is not. */
  async renew({ tenant_id, id, fence }: LaneKey, until: number): Promise<boolean> {
    const { rowCount } = await this.#db.nearOf(tenant_id).query(
      `update delivery_lane set leased_until = $4, due_at = case when due_at = leased_until then $4 else due_at end
       where tenant_id = $1 and id = $2 and fence = $3`,
      [tenant_id, id, fence, new Date(until)],
    );
    return rowCount === 1;
  }

  /** Whether this process still owns the lane, and no one has paused, changed or deleted its destination. */
  async isOurs({ tenant_id, id, fence }: LaneKey): Promise<boolean> {
    const { rowCount } = await this.#db
      .nearOf(tenant_id)
      .query('select 1 from delivery_lane where tenant_id = $1 and id = $2 and fence = $3', [tenant_id, id, fence]);
    return rowCount === 1;
  }

  /**
   * Releases each lane until its next delivery is due. Skips lanes that this claim no longer owns, and locked ones if they are to
   * be passed over. Resolves to whether each was released.
   */
  async release(releases: readonly LaneRelease[], locked: Locked): Promise<boolean[]> {
    const released = new Set<LaneRelease>();
    for (const { items, only } of groupsApart(this.#db, releases, ({ lane }) => lane.tenant_id)) {
      for (const n of await this.#release(items, only, locked)) released.add(items[n - 1]!);
    }
    return releases.map((release) => released.has(release));
  }

  async *#oldest(claim: LaneClaim, most: number, ready: string, one: Only): AsyncGenerator<ClaimedLane> {
    yield* await this.#lease(
      claim,
      `select tenant_id, id from delivery_lane where ${ready} ${one()} order by ${READY_AT} limit $3
       for no key update skip locked`,
      [most],
      one,
    );
  }

  /** The failing lanes of all tenants, in turns. */
  async *#inTurn(claim: LaneClaim, most: number, served: ReadonlyMap<string, number>): AsyncGenerator<ClaimedLane> {
    const now = new Date(claim.now);
    const oldest = await across<Ready>(
      this.#db,
      `select tenant_id, id, extract(epoch from ${READY_AT})::float8 as ready_at from delivery_lane
       where ${isReady(true)} order by ${READY_AT} limit $2`,
      [now, LOOKED_AT],
    );
    const others = oldest.length === LOOKED_AT ? await this.#ofTenants(now, most) : { lanes: [], all: true };
    const lanes = byTurns([...oldest, ...others.lanes], served);
    // some places are kept for lanes that the next looks find
    let left = others.all ? most : Math.ceil(most / 2);
    // makes up for lanes that others claimed in the meantime
    while (left > 0 && lanes.length > 0) {
      const next = lanes.splice(0, left);
      // Each is looked up by its key, whatever PostgreSQL knows about the table: conditions that would lead to another index are
      // not repeated. A lane that has stopped failing may therefore be claimed as well.
      const claimed = await this.#lease(
        claim,
        `select d.* from unnest($3::text[], $4::text[]) x (tenant_id, id) cross join lateral (
           select tenant_id, id from delivery_lane where tenant_id = x.tenant_id and id = x.id
             and due_at is not null and ${READY_AT} <= $1 limit 1 for no key update skip locked) d`,
        [next.map(({ tenant_id }) => tenant_id), next.map(({ id }) => id)],
      );
      yield* claimed;
      left -= claimed.length;
    }
  }

  /**
   * The next tenants' failing lanes that were ready first, limited per tenant; and whether these are all tenants that have any.
   */
  async #ofTenants(now: Date, most: number): Promise<{ lanes: Ready[]; all: boolean }> {
    const after = this.#after;
    // Walks the index from tenant to tenant, whether or not a tenant has something ready: tenants that do may have few lanes
    // among many lanes of others.
    const next = (before: string) => `(
      select tenant_id, ${READY_AT} as ready_at from delivery_lane where ${WAITS} and tenant_id > ${before}
      order by tenant_id, ${READY_AT} limit 1)`;
    const found = await across<Ready | { tenant_id: string; id: null }>(
      this.#db,
      `with recursive tenant as (
         ${next('$2')} union all select next.* from tenant t cross join lateral ${next('t.tenant_id')} next
       ), looked_at as materialized (select * from tenant limit $3)
       select t.tenant_id, l.id, l.ready_at from looked_at t left join lateral (
         select id, extract(epoch from ${READY_AT})::float8 as ready_at from delivery_lane d
         where d.tenant_id = t.tenant_id and ${WAITS} and ${READY_AT} <= $1 order by ${READY_AT}
         limit (select least($4::bigint, 1 + $3::bigint / greatest(count(*), 1)) from looked_at where ready_at <= $1)
       ) l on t.ready_at <= $1
       order by t.tenant_id`,
      [now, after, LOOKED_AT, most],
    );
    const ended = new Set(found.map(({ tenant_id }) => tenant_id)).size < LOOKED_AT;
    this.#after = ended ? '' : found.at(-1)!.tenant_id;
    return { lanes: found.filter((lane) => lane.id !== null), all: ended && after === '' };
  }

  /** Claims the lanes that `chosen` finds and locks; its parameters begin at $3. */
  async #lease(claim: LaneClaim, chosen: string, values: unknown[], one?: Only): Promise<ClaimedLane[]> {
    // due_at moves with the lease: a delivery queued in the meantime moves it back, which the release notices
    const { rows } = await this.#db.nearOf(one?.tenantId).query<ClaimedLane>(
      `update delivery_lane l set fence = l.fence + 1, leased_until = $2, due_at = $2
       from (${chosen}) due
       where l.tenant_id = due.tenant_id and l.id = due.id ${one?.('l') ?? ''}
       returning l.tenant_id, l.id, l.target_sealed, l.fence, l.failing_since, l.gone_since`,
      [new Date(claim.now), new Date(claim.until), ...values],
    );
    return rows;
  }

  /** Resolves to the numbers of the released lanes, from 1. */
  async #release(releases: readonly LaneRelease[], only: Only, locked: Locked): Promise<number[]> {
    // locks several lanes in id order, like every statement that locks several
    const { rows } = await this.#db.nearOf(only.tenantId).query<{ n: number }>(
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
        where l.tenant_id = h.tenant_id and l.id = h.id ${only('l')} ${unflushed(this.#db)}
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
}

/** In turns by tenant, counting each lane being served as a turn already taken; within a turn, lanes that were ready first. */
function byTurns(lanes: readonly Ready[], served: ReadonlyMap<string, number>): Ready[] {
  const turns = new Map(served);
  const each = new Map(lanes.map((lane) => [`${lane.tenant_id}/${lane.id}`, lane]));
  return [...each.values()]
    .sort((a, b) => a.ready_at - b.ready_at)
    .map((lane) => {
      const turn = (turns.get(lane.tenant_id) ?? 0) + 1;
      turns.set(lane.tenant_id, turn);
      return { lane, turn };
    })
    .sort((a, b) => a.turn - b.turn)
    .map(({ lane }) => lane);
}
