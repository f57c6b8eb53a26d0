import type pg from 'pg';
import { across, writable } from '../../db/citus.ts';
import { inTransaction } from '../../db/client.ts';
import type { Database } from '../../db/index.ts';
import type { Step } from '../../db/notices.ts';
import {
  createDelivery,
  DELIVERY_MACHINE_VERSION,
  type DeliverySnapshot,
  stepDelivery,
} from '../../machines/delivery.ts';
import { type DestinationKind, type DestinationType, kindOf } from '../domain/destinations.ts';
import { definitionOf } from '../domain/events.ts';
import { BackOff } from '../lib/back-off.ts';
import { type SecretBox, sha256 } from '../lib/crypto.ts';
import { deliveryId } from './delivery-id.ts';

/** Events fanned out per transaction. */
const BATCH = 200;
/** A transaction takes no more events once it has this many deliveries, so that the first are sent soon, whatever follows. */
const MOST = 2000;
/** Tenants handled per round. */
const TENANTS = 50;
/**
 * How many deliveries may wait for a paused subscription. Deliveries of later events are listed as failed, so that the queue sent
 * on resume has no gap, and the rest can be sent again.
 */
export const MOST_PAUSED = 10_000;
/** The limit of the API; more targets can only come from a manipulated row. */
const MAX_TARGETS = 20;

/** The context under which the URL of a notify target is sealed. */
export const targetPlace = (tenantId: string, laneId: string) => `${tenantId}/delivery_lane/${laneId}/target`;

interface Planned {
  laneId: string;
  eventId: string;
  eventType: string;
  isTest: boolean;
}

/** A delivery and its first steps. */
interface CreatedDelivery {
  id: string;
  steps: Step[];
}

/**
 * Creates deliveries for waiting events: one for each subscription that wants the type and queued events at the time of the event
 * and still does; one for each notify target of a hold; for an example, one for its destination. All deliveries of an event are
 * committed together. Any number of processes may run this concurrently; a lock ensures that only one handles a tenant.
 *
 * A tenant that fails is reported to `failed` and left alone for a while, so that it delays no other.
 */
export class FanOut {
  readonly #db: Database;
  readonly #box: SecretBox;
  readonly #now: () => number;
  readonly #failed: (tenantId: string, error: unknown) => void;
  readonly #backOff = new BackOff();

  constructor(db: Database, box: SecretBox, now: () => number, failed: (tenantId: string, error: unknown) => void) {
    this.#db = db;
    this.#box = box;
    this.#now = now;
    this.#failed = failed;
  }

  /**
   * A round for some of the tenants that have waiting events. Resolves to the number of events. `only`: for this tenant alone.
   */
  async round(signal: AbortSignal, only?: string): Promise<number> {
    // in random order: tenants that always have a lot to fan out do not keep others from a turn
    const rows = await across<{ tenant_id: string }>(
      this.#db,
      `select tenant_id from event_outbox
       where fanned_out_at is null and not tenant_id = any($2::text[]) ${only === undefined ? '' : 'and tenant_id = $3'}
       group by tenant_id order by random() limit $1`,
      [TENANTS, this.#backOff.left(), ...(only === undefined ? [] : [only])],
    );
    let events = 0;
    for (const { tenant_id } of writable(this.#db, rows)) {
      if (signal.aborted) break;
      try {
        events += await fanOutTenant(this.#db, this.#box, tenant_id, this.#now());
        this.#backOff.worked(tenant_id);
      } catch (error) {
        this.#backOff.failed(tenant_id);
        this.#failed(tenant_id, error);
      }
    }
    return events;
  }
}

async function fanOutTenant(db: Database, box: SecretBox, tenantId: string, now: number): Promise<number> {
  const { events, made } = await inTransaction(db.nearOf(tenantId), async (client) => {
    // locks on the server that holds the tenant, whichever server gets the query
    const { rows: lock } = await client.query<{ mine: boolean }>(
      `select pg_try_advisory_xact_lock(hashtextextended('svc fan-out ' || tenant_id, 0)) as mine
       from tenant where tenant_id = $1`,
      [tenantId],
    );
    const waiting = lock[0]?.mine ? await waitingEvents(client, tenantId) : [];
    if (waiting.length === 0) return { events: 0, made: [] };
    const { rows: subscriptions } = await client.query<Subscriber>(
      `select id, destination_type, event_types, queues_since from subscription
         where tenant_id = $1 and queues_since is not null order by id`,
      [tenantId],
    );
    const planned: Planned[] = [];
    const targets = new Map<string, string>();
    const taken: string[] = [];
    for (const { id: eventId, event_type: eventType, created_at, lane_id, targets: urls } of waiting) {
      if (planned.length >= MOST) break;
      taken.push(eventId);
      if (lane_id !== null) {
        planned.push({ laneId: lane_id, eventId, eventType, isTest: true });
        continue;
      }
      for (const subscription of subscriptions) {
        if (subscription.queues_since > created_at || !wants(subscription, eventType)) continue;
        planned.push({ laneId: subscription.id, eventId, eventType, isTest: false });
      }
      for (const url of new Set(targetsOf(urls))) {
        const laneId = targetLane(tenantId, url);
        targets.set(laneId, url);
        planned.push({ laneId, eventId, eventType, isTest: false });
      }
    }
    const made = await insert(client, box, tenantId, planned, targets, now);
    await client.query(
      `update event_outbox set fanned_out_at = $3, wanted = id = any($4) where tenant_id = $1 and id = any($2)`,
      [tenantId, taken, new Date(now), [...new Set(planned.map(({ eventId }) => eventId))]],
    );
    return { events: taken.length, made };
  });
  for (const { id, steps } of made) db.notices.tellHere('delivery', tenantId, id, steps);
  return events;
}

interface Subscriber {
  id: string;
  destination_type: DestinationType;
  event_types: string[];
  queues_since: Date;
}

/** A subscription that names no types gets every event, except that people get no events for programs. */
function wants({ destination_type, event_types }: Subscriber, eventType: string): boolean {
  if (event_types.length > 0) return event_types.includes(eventType);
  // a type that only a newer version knows is delivered by that version; it must not block the other events
  const kind: DestinationKind | undefined = kindOf(destination_type);
  return kind?.readers !== 'people' || !definitionOf(eventType)?.forPrograms;
}

async function waitingEvents(client: pg.PoolClient, tenantId: string) {
  const { rows } = await client.query<{
    id: string;
    event_type: string;
    created_at: Date;
    lane_id: string | null;
    targets: unknown;
  }>(
    `select id, event_type, created_at, lane_id, payload->'notify_targets' as targets from event_outbox
     where tenant_id = $1 and fanned_out_at is null order by created_at, id limit $2`,
    [tenantId, BATCH],
  );
  return rows;
}

/** Inserts the planned deliveries whose lanes are open. Resolves to those that were inserted. */
async function insert(
  client: pg.PoolClient,
  box: SecretBox,
  tenantId: string,
  planned: readonly Planned[],
  targets: ReadonlyMap<string, string>,
  now: number,
): Promise<CreatedDelivery[]> {
  if (planned.length === 0) return [];
  const [snapshot] = createDelivery(now);
  const at = new Date(now);
  for (const [laneId, url] of [...targets].sort()) {
    // this also locks an existing lane, so that cleanup does not delete it before it has deliveries
    await client.query(
      `insert into delivery_lane (tenant_id, id, target_sealed) values ($1, $2, $3)
       on conflict (tenant_id, id) do update set target_sealed = excluded.target_sealed`,
      [tenantId, laneId, box.seal(url, targetPlace(tenantId, laneId))],
    );
  }
  // A subscription that was deleted or disabled in the meantime gets nothing, even if its lane still exists. Lanes are locked in
  // id order before anything refers to them, so that a pause happens entirely before or entirely after this.
  const { rows: open } = await client.query<{ id: string; room: number | null }>(
    `select l.id, l.room from delivery_lane l
     where l.tenant_id = $1 and l.id = any($2) order by l.id for no key update`,
    [tenantId, [...new Set(planned.map(({ laneId }) => laneId))]],
  );
  const { rows: subscriptions } = await client.query<{ id: string; active: boolean }>(
    'select id, active from subscription where tenant_id = $1 and queues_since is not null',
    [tenantId],
  );
  const active = new Map(subscriptions.map((row) => [row.id, row.active]));
  const lanes = open.map(({ id }) => id).filter((id) => targets.has(id) || active.has(id));
  const room = await roomOf(
    client,
    tenantId,
    open.filter(({ id }) => active.get(id) === false),
  );
  const queued = stepOf({ type: 'xstate.init' }, snapshot);
  const event = { type: 'stop', at: now, reason: QUEUE_FULL } as const;
  const refused = stepOf(event, stepDelivery(snapshot, event)[0]);
  const taken = new Set(lanes);
  const rows = planned
    .filter(({ laneId }) => taken.has(laneId))
    .map((row) => {
      const left = room.get(row.laneId);
      if (left) room.set(row.laneId, left - 1);
      return { ...row, full: left === 0 };
    });
  if (rows.length === 0) return [];
  const { rows: made } = await client.query<{ lane_id: string; event_id: string; status: string }>(
    `insert into delivery (tenant_id, lane_id, event_id, event_type, status, machine_version, machine_context,
       attempts, next_attempt_at, created_at, is_test)
     select $1, x.lane_id, x.event_id, x.event_type,
       case when x.is_full then $8 else $6 end, $10, case when x.is_full then $9::jsonb else $7::jsonb end,
       0, case when x.is_full then null else $11::timestamptz end, $11, x.is_test
     from unnest($2::text[], $3::text[], $4::text[], $5::boolean[], $12::boolean[])
       x (lane_id, event_id, event_type, is_full, is_test)
     on conflict do nothing returning lane_id, event_id, status`,
    [
      tenantId,
      rows.map(({ laneId }) => laneId),
      rows.map(({ eventId }) => eventId),
      rows.map(({ eventType }) => eventType),
      rows.map(({ full }) => full),
      queued.state,
      JSON.stringify(queued.context),
      refused.state,
      JSON.stringify(refused.context),
      DELIVERY_MACHINE_VERSION,
      at,
      rows.map(({ isTest }) => isTest),
    ],
  );
  await client.query(
    'update delivery_lane set due_at = least(coalesce(due_at, $3), $3) where tenant_id = $1 and id = any($2)',
    [tenantId, lanes.filter((id) => active.get(id) !== false), at],
  );
  if (room.size > 0) {
    await client.query(
      `update delivery_lane l set room = x.room from unnest($2::text[], $3::int[]) x (id, room)
       where l.tenant_id = $1 and l.id = x.id and l.room is distinct from x.room`,
      [tenantId, [...room.keys()], [...room.values()]],
    );
  }
  return made.map(({ lane_id, event_id, status }) => ({
    id: deliveryId(lane_id, event_id),
    steps: status === queued.state ? [queued] : [queued, refused],
  }));
}

const QUEUE_FULL = `The subscription was paused, and ${MOST_PAUSED.toLocaleString('en-US')} events waited for it already.`;

const stepOf = (event: { type: string }, { value, context }: DeliverySnapshot): Step => ({
  event,
  state: value,
  context,
});

/**
 * How many more deliveries may wait in each of these lanes. Waiting ones are counted once per pause, and again after some were
 * stopped, so that many full queues do not delay the other subscriptions of all tenants.
 */
async function roomOf(
  client: pg.PoolClient,
  tenantId: string,
  lanes: readonly { id: string; room: number | null }[],
): Promise<Map<string, number>> {
  const known = lanes.flatMap(({ id, room }): [string, number][] => (room === null ? [] : [[id, room]]));
  const uncounted = lanes.filter(({ room }) => room === null).map(({ id }) => id);
  if (uncounted.length === 0) return new Map(known);
  const { rows } = await client.query<{ id: string; waiting: number }>(
    `select x.id, w.waiting from unnest($2::text[]) x (id) cross join lateral (
       select count(*)::int as waiting from (
         select from delivery d where d.tenant_id = $1 and d.lane_id = x.id and d.status = 'retrying' limit ${MOST_PAUSED}
       ) d) w`,
    [tenantId, uncounted],
  );
  return new Map([...known, ...rows.map(({ id, waiting }): [string, number] => [id, MOST_PAUSED - waiting])]);
}

/** The lane of a notify target, shared by all holds of the tenant with the same URL. */
function targetLane(tenantId: string, url: string): string {
  return `ntf_${sha256(`${tenantId}\n${url}`).toString('hex').slice(0, 32)}`;
}

function targetsOf(value: unknown): string[] {
  return Array.isArray(value) ? value.filter((url) => typeof url === 'string').slice(0, MAX_TARGETS) : [];
}
