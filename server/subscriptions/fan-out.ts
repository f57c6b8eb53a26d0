import type pg from 'pg';
import { inTransaction } from '../../db/client.ts';
import type { Database } from '../../db/index.ts';
import type { Step } from '../../db/notices.ts';
import { createDelivery, DELIVERY_MACHINE_VERSION } from '../../machines/delivery.ts';
import { type DestinationKind, type DestinationType, kindOf } from '../domain/destinations.ts';
import { definitionOf } from '../domain/events.ts';
import { type SecretBox, sha256 } from '../lib/crypto.ts';
import { newId } from '../lib/ids.ts';

/** Events fanned out per transaction, */
const BATCH = 200;
/** and no more of them once so many deliveries are made: the first of them are on their way soon, whatever follows. */
const MOST = 2000;
/** Tenants handled per round. */
const TENANTS = 50;
/** The limit of the API; more targets can only come from a manipulated row. */
const MAX_TARGETS = 20;

/** The context under which the URL of a notify target is sealed. */
export const targetPlace = (tenantId: string, laneId: string) => `${tenantId}/delivery_lane/${laneId}/target`;

interface Planned {
  laneId: string;
  eventId: string;
  eventType: string;
}

/** A delivery and its first step. */
interface CreatedDelivery {
  id: string;
  step: Step;
}

/**
 * Creates deliveries for waiting events: one for each subscription that wants the type, was active at the time of the
 * event and still is, and one for each notify target of a hold. All deliveries of an event are committed together. Any
 * number of processes may run this concurrently; a lock ensures that only one handles a tenant. Resolves to the number
 * of events. `only`: of this tenant alone.
 */
export async function fanOut(db: Database, box: SecretBox, now: () => number, only?: string): Promise<number> {
  const { rows } = await db.owner.query<{ tenant_id: string }>(
    `select distinct tenant_id from event_outbox
     where fanned_out_at is null ${only === undefined ? '' : 'and tenant_id = $2'} limit $1`,
    [TENANTS, ...(only === undefined ? [] : [only])],
  );
  let done = 0;
  for (const { tenant_id } of rows) done += await fanOutTenant(db, box, tenant_id, now());
  return done;
}

async function fanOutTenant(db: Database, box: SecretBox, tenantId: string, now: number): Promise<number> {
  const { events, made } = await inTransaction(db.owner, async (client) => {
    const { rows: lock } = await client.query<{ mine: boolean }>(
      `select pg_try_advisory_xact_lock(hashtextextended('svc fan-out ' || $1, 0)) as mine`,
      [tenantId],
    );
    const waiting = lock[0]!.mine ? await waitingEvents(client, tenantId) : [];
    if (waiting.length === 0) return { events: 0, made: [] };
    const { rows: subscriptions } = await client.query<Subscriber>(
      `select id, destination_type, event_types, active_since from subscription
         where tenant_id = $1 and active order by id`,
      [tenantId],
    );
    const planned: Planned[] = [];
    const targets = new Map<string, string>();
    const taken: string[] = [];
    for (const { id: eventId, event_type: eventType, created_at, targets: urls } of waiting) {
      if (planned.length >= MOST) break;
      taken.push(eventId);
      for (const subscription of subscriptions) {
        if (subscription.active_since > created_at || !wants(subscription, eventType)) continue;
        planned.push({ laneId: subscription.id, eventId, eventType });
      }
      for (const url of new Set(targetsOf(urls))) {
        const laneId = targetLane(tenantId, url);
        targets.set(laneId, url);
        planned.push({ laneId, eventId, eventType });
      }
    }
    const made = await insert(client, box, tenantId, planned, targets, now);
    await client.query('update event_outbox set fanned_out_at = $3 where tenant_id = $1 and id = any($2)', [
      tenantId,
      taken,
      new Date(now),
    ]);
    return { events: taken.length, made };
  });
  for (const { id, step } of made) db.notices.tellHere('delivery', tenantId, id, [step]);
  return events;
}

interface Subscriber {
  id: string;
  destination_type: DestinationType;
  event_types: string[];
  active_since: Date;
}

/** A subscription that names no types gets every event, except that people get no events for programs. */
function wants({ destination_type, event_types }: Subscriber, eventType: string): boolean {
  if (event_types.length > 0) return event_types.includes(eventType);
  // a type that only a newer version knows is delivered by that version; it must not block the other events
  const kind: DestinationKind | undefined = kindOf(destination_type);
  return kind?.readers !== 'people' || !definitionOf(eventType)?.forPrograms;
}

async function waitingEvents(client: pg.PoolClient, tenantId: string) {
  const { rows } = await client.query<{ id: string; event_type: string; created_at: Date; targets: unknown }>(
    `select id, event_type, created_at, payload->'notify_targets' as targets from event_outbox
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
  // A subscription deleted in the meantime has no lane, and a paused one gets nothing. Lanes are locked in id order
  // before anything refers to them, so that a pause happens entirely before or entirely after this.
  const { rows: open } = await client.query<{ id: string }>(
    `select l.id from delivery_lane l
     where l.tenant_id = $1 and l.id = any($2) order by l.id for no key update`,
    [tenantId, [...new Set(planned.map(({ laneId }) => laneId))]],
  );
  const { rows: active } = await client.query<{ id: string }>(
    'select id from subscription where tenant_id = $1 and active',
    [tenantId],
  );
  const takes = new Set(active.map(({ id }) => id));
  const lanes = new Set(open.map(({ id }) => id).filter((id) => targets.has(id) || takes.has(id)));
  const rows = planned.filter(({ laneId }) => lanes.has(laneId));
  if (rows.length === 0) return [];
  const { rows: made } = await client.query<{ id: string }>(
    `insert into delivery (tenant_id, id, lane_id, event_id, event_type, status, machine_version, machine_context,
       attempts, next_attempt_at, created_at)
     select $1, x.id, x.lane_id, x.event_id, x.event_type, $6, $7, $8, 0, $9, $9
     from unnest($2::text[], $3::text[], $4::text[], $5::text[]) x (id, lane_id, event_id, event_type)
     on conflict do nothing returning id`,
    [
      tenantId,
      rows.map(() => newId('dlv', now)),
      rows.map(({ laneId }) => laneId),
      rows.map(({ eventId }) => eventId),
      rows.map(({ eventType }) => eventType),
      snapshot.value,
      DELIVERY_MACHINE_VERSION,
      JSON.stringify(snapshot.context),
      at,
    ],
  );
  await client.query(
    'update delivery_lane set due_at = least(coalesce(due_at, $3), $3) where tenant_id = $1 and id = any($2)',
    [tenantId, [...lanes], at],
  );
  const step = { event: { type: 'xstate.init' }, state: snapshot.value, context: snapshot.context };
  return made.map(({ id }) => ({ id, step }));
}

/** The lane of a notify target, shared by all holds of the tenant with the same URL. */
function targetLane(tenantId: string, url: string): string {
  return `ntf_${sha256(`${tenantId}\n${url}`).toString('hex').slice(0, 32)}`;
}

function targetsOf(value: unknown): string[] {
  return Array.isArray(value) ? value.filter((url) => typeof url === 'string').slice(0, MAX_TARGETS) : [];
}
