import type { EntityManager } from '@mikro-orm/postgresql';
import { Delivery } from '../../db/entities/index.ts';
import { type Database, type Reads, type WriteAudit, wakeOutbox } from '../../db/index.ts';
import type { Notices } from '../../db/notices.ts';
import type { DeliveryContext, DeliveryEvent, DeliveryResult, DeliveryState } from '../../machines/delivery.ts';
import type { Doer } from '../domain/audit.ts';
import type { DestinationType } from '../domain/destinations.ts';
import type { EventType } from '../domain/events.ts';
import { AppError } from '../errors.ts';
import type { Clock } from '../lib/clock.ts';
import type { SecretBox } from '../lib/crypto.ts';
import { firstId } from '../lib/ids.ts';
import { Where } from '../lib/where.ts';
import { cursorOf, openCursor } from '../rpc/cursor.ts';
import type { Answer } from './attempt.ts';
import { type AttemptsQuery, type AttemptsView, countAttempts } from './attempts.ts';
import { deliveryId, eventOf } from './delivery-id.ts';
import { adapterOf } from './destinations/index.ts';
import { MOST_PAUSED } from './fan-out.ts';
import { type Exchange, remade, signedAt } from './sent.ts';
import { LOCKED, lockDelivery, takeStep } from './steps.ts';
import { findSubscription, lockSubscription, secretsSince, typeOf } from './subscription-row.ts';

export interface DeliveryView {
  id: string;
  subscription_id: string;
  event_id: string;
  event_type: string;
  /** An example that an admin requested. */
  test: boolean;
  status: DeliveryState;
  attempts: number;
  http_status: number | null;
  result: DeliveryResult | null;
  failure_reason: string | null;
  next_attempt_at: string | null;
  created_at: string;
  last_attempt_at: string | null;
  delivered_at: string | null;
  duration_ms: number | null;
  /** A limitation of what "delivered" means for this destination. */
  note?: string;
}

export interface AttemptView extends Exchange {
  at: string;
  result: DeliveryResult;
  http_status: number | null;
  /** A sentence; null if the delivery was accepted. */
  reason: string | null;
  duration_ms: number;
}

/** A row of the table `delivery`. */
export interface DeliveryRow {
  tenant_id: string;
  lane_id: string;
  event_id: string;
  event_type: string;
  is_test: boolean;
  status: DeliveryState;
  machine_version: number;
  machine_context: unknown;
  attempts: number;
  /** From the last attempt, as are `result`, `failure_reason` and `duration_ms`. */
  http_status: number | null;
  result: DeliveryResult | null;
  failure_reason: string | null;
  next_attempt_at: Date | null;
  created_at: Date;
  last_attempt_at: Date | null;
  duration_ms: number | null;
  /** From the last attempt: see `markOf`; null if nothing was sent. */
  sent: Uint8Array | null;
  answer: Answer | null;
  /** Attempts before the last one, oldest first; null if there was none. */
  history: EarlierAttempt[] | null;
}

interface EarlierAttempt extends Omit<AttemptView, keyof Exchange | 'at'> {
  /** In milliseconds. */
  at: number;
  /** As PostgreSQL writes bytes. */
  sent: string | null;
  answer: Answer | null;
}

export interface DeliveryDetails extends DeliveryView {
  /** The kept attempts, newest first. */
  history: AttemptView[];
  /** The event. */
  payload: Record<string, unknown>;
  /**
   * The body of the last attempt or, before any attempt, of the first one. Null if it cannot be reproduced because the chat's
   * settings or this server's version have changed since.
   */
  body: string | null;
}

/** How well deliveries to a subscription work. */
export interface SummaryView {
  id: string;
  day: { tried: number; delivered: number };
  week: { tried: number; delivered: number };
  /** Whether these numbers cover all deliveries of that time. */
  complete: boolean;
  /** How long the last attempt of each took; null where there was none. */
  p50_ms: number | null;
  p95_ms: number | null;
  /** Deliveries waiting for an attempt, MOST_PAUSED at most. */
  waiting: number;
  /** The newest event that was tried and not delivered, or not yet. */
  last_failure: { delivery_id: string; at: string; reason: string | null } | null;
}

interface SummaryRow extends Omit<SummaryView, 'day' | 'week' | 'complete' | 'last_failure'> {
  /** Whether there are more deliveries than were counted. */
  cut: boolean;
  last_failure: { event_id: string; at: string; reason: string | null } | null;
  day_tried: number;
  day_delivered: number;
  week_tried: number;
  week_delivered: number;
}

/** How many deliveries of a subscription are counted. */
const SEEN = 1000;
/** How many deliveries are searched for them: any number may never have been tried, but no more than MOST_PAUSED wait. */
const READ = SEEN + MOST_PAUSED;

/** The columns of a delivery without what was sent and received, which may be long. */
const COLUMNS = `tenant_id, lane_id, event_id, event_type, is_test, status, machine_version, machine_context, attempts, http_status,
  result, failure_reason, next_attempt_at, created_at, last_attempt_at, duration_ms`;

/** Why it was not delivered: what ended it without an attempt, such as a full queue, or else the reason of its last attempt. */
const REASON = `coalesce(d.machine_context->>'stopped', d.failure_reason)`;

/** Identifies this list in its cursors. */
const LIST = 'd1';

/** Lists, reads and resends the deliveries of a subscription. */
export class Deliveries {
  readonly #db: Database;
  readonly #clock: Clock;
  readonly #audit: WriteAudit;
  readonly #box: SecretBox;
  readonly #appUrl: string;

  /** `appUrl`: the base of links in chat cards, unless the subscription sets its own. */
  constructor(parts: { db: Database; clock: Clock; audit: WriteAudit; box: SecretBox; appUrl: string }) {
    this.#db = parts.db;
    this.#box = parts.box;
    this.#appUrl = parts.appUrl;
    this.#clock = parts.clock;
    this.#audit = parts.audit;
  }

  /** The deliveries of a subscription, newest event first. */
  async list(
    reads: Reads,
    tenantId: string,
    id: string,
    filter: {
      status?: DeliveryState | undefined;
      event_type?: EventType | undefined;
      /** With an attempt in this time. */
      since?: string | undefined;
      until?: string | undefined;
      limit: number;
      cursor?: string | undefined;
    },
  ): Promise<{ deliveries: DeliveryView[]; next_cursor: string | null; has_more: boolean }> {
    const before = filter.cursor && openCursor(LIST, filter.cursor, /^([a-z0-9_]{1,100})$/, '?cursor')[0];
    const where = new Where('tenant_id = $1 and lane_id = $2', [tenantId, id, filter.limit + 1])
      .and(filter.status, (status) => `status = ${status}`)
      .and(filter.event_type, (type) => `event_type = ${type}`)
      .and(before, (eventId) => `event_id < ${eventId}`);
    const { since, until } = filter;
    if (since !== undefined || until !== undefined) attemptedIn(where, since, until);
    const { type, rows } = await reads.readOnly(tenantId, async (client) => {
      const type = await typeOf(client, tenantId, id);
      const found = await client.query<DeliveryRow>(
        `select ${COLUMNS} from delivery where ${where.sql} order by event_id desc limit $3`,
        where.values,
      );
      return { type, rows: found.rows };
    });
    const page = rows.slice(0, filter.limit);
    const has_more = rows.length > filter.limit;
    return {
      deliveries: page.map((delivery) => viewOf(delivery, type)),
      next_cursor: has_more ? cursorOf(LIST, page.at(-1)!.event_id) : null,
      has_more,
    };
  }

  /**
   * How well deliveries work for the subscriptions of a tenant, or for one of them, based on deliveries of the last seven days'
   * events that were tried, the newest SEEN of each subscription.
   */
  async summary(reads: Reads, tenantId: string, id?: string): Promise<SummaryView[]> {
    const now = this.#clock.now();
    const day = 24 * 3600_000;
    const { rows } = await reads.readOnly(tenantId, (client) =>
      client.query<SummaryRow>(
        `select s.id, t.*, f.last_failure, case when t.week_tried >= ${SEEN} then true else exists (
         select from delivery d where d.tenant_id = $1 and d.lane_id = s.id and d.event_id >= $3
         order by d.event_id desc offset ${READ} limit 1) end as cut, coalesce(${MOST_PAUSED} - l.room, (
         select count(*)::int from (
           select from delivery d where d.tenant_id = $1 and d.lane_id = s.id and d.status = 'retrying' limit ${MOST_PAUSED}) d)) as waiting
       from subscription s join delivery_lane l on l.tenant_id = s.tenant_id and l.id = s.id
       cross join lateral (
         select count(*) filter (where created_at > $4)::int as day_tried,
           count(*) filter (where created_at > $4 and status = 'delivered')::int as day_delivered,
           count(*)::int as week_tried, count(*) filter (where status = 'delivered')::int as week_delivered,
           percentile_disc(0.5) within group (order by duration_ms) as p50_ms,
           percentile_disc(0.95) within group (order by duration_ms) as p95_ms
         from (
           select * from (
             select status, created_at, duration_ms, attempts from delivery d
             where d.tenant_id = $1 and d.lane_id = s.id and d.event_id >= $3 order by d.event_id desc limit ${READ}) d
           where d.attempts > 0 limit ${SEEN}) d) t
       left join lateral (
         select json_build_object('event_id', d.event_id, 'at', d.last_attempt_at, 'reason', ${REASON}) as last_failure
         from delivery d
         where d.tenant_id = $1 and d.lane_id = s.id and d.event_id >= $3 and d.status <> 'delivered' and d.attempts > 0
         order by d.event_id desc limit 1) f on true
       where s.tenant_id = $1 and ($2::text is null or s.id = $2)
       order by s.id`,
        [tenantId, id ?? null, firstId('oev', now - 7 * day), new Date(now - day)],
      ),
    );
    return rows.map(({ last_failure, day_tried, day_delivered, week_tried, week_delivered, cut, ...row }) => ({
      ...row,
      day: { tried: day_tried, delivered: day_delivered },
      week: { tried: week_tried, delivered: week_delivered },
      complete: !cut,
      last_failure: last_failure && {
        delivery_id: deliveryId(row.id, last_failure.event_id),
        at: new Date(last_failure.at).toISOString(),
        reason: last_failure.reason,
      },
    }));
  }

  /** The attempts to reach the destination over time. */
  attempts(reads: Reads, tenantId: string, id: string, query: AttemptsQuery): Promise<AttemptsView> {
    return countAttempts({ db: reads, clock: this.#clock }, tenantId, id, query);
  }

  /** One delivery with what was sent, and its kept attempts. */
  async get(tenantId: string, id: string, delivery: string): Promise<DeliveryDetails> {
    const { row, subscription } = await this.#find(tenantId, id, delivery);
    const [event] = await this.#db.query<{ payload: Record<string, unknown> }>(
      tenantId,
      'select payload from event_outbox where tenant_id = $1 and id = $2',
      [tenantId, row.event_id],
    );
    const { payload } = event!;
    const { destinationType, destinationConfig } = subscription;
    const destination = adapterOf(destinationType);
    const message = {
      ...{ eventId: row.event_id, eventType: row.event_type, deliveryId: delivery, payload, timestamp: 0 },
      appUrl: destinationConfig.app_url ?? this.#appUrl,
    };
    const attempts = attemptsOf(row).map(({ sent, answer, ...attempt }) => {
      const at = new Date(attempt.at);
      if (!sent) return { ...attempt, at: at.toISOString(), headers: {}, body_sha256: null, body: null, answer };
      const secrets = secretsSince(this.#box, subscription);
      const made = remade(sent, destination, { ...message, timestamp: signedAt(at.getTime()) }, secrets);
      return { ...attempt, at: at.toISOString(), ...made, answer };
    });
    const [last] = attempts;
    // neither the time nor the secrets are in the body
    const body = last?.body_sha256 ? last.body : destination.request({ ...message, secrets: [] }).body;
    const history = attempts.map(({ body: _, ...attempt }) => attempt);
    return { ...viewOf(row, destinationType), history, payload, body };
  }

  /**
   * The state of a delivery's state machine and, for each event that a person can send, why it would be refused; null if allowed.
   */
  async standing(
    tenantId: string,
    id: string,
    delivery: string,
  ): Promise<{ state: string; version: number; refusals: Record<string, { code: string; detail: string } | null> }> {
    const { row, subscription } = await this.#find(tenantId, id, delivery);
    return {
      state: row.status,
      version: row.machine_version,
      refusals: {
        redeliver: subscription.active ? null : { code: 'INVALID_STATUS', detail: PAUSED },
        resume: subscription.active ? { code: 'INVALID_STATUS', detail: 'the subscription is not paused' } : null,
      },
    };
  }

  async #find(tenantId: string, id: string, delivery: string) {
    const subscription = await findSubscription(this.#db.reader(tenantId), id);
    const [row] = await this.#db.query<DeliveryRow>(
      tenantId,
      'select * from delivery where tenant_id = $1 and lane_id = $2 and event_id = $3',
      [tenantId, id, eventOf(id, delivery)],
    );
    if (!row) throw noDelivery();
    return { row, subscription };
  }

  /**
   * Queues a delivery again in any state, with a new window of 24 hours. The receiver gets the same event id as before.
   * INVALID_STATUS while the subscription is paused.
   */
  async redeliver(tenantId: string, id: string, delivery: string, by: Doer): Promise<DeliveryView> {
    return this.#db.transaction(tenantId, async (em) => {
      const subscription = await lockSubscription(em, id);
      if (!subscription.active) throw new AppError('INVALID_STATUS', PAUSED);
      const now = new Date(this.#clock.now());
      // the lane is locked first, as the workers do, to avoid a deadlock
      await em.execute('select 1 from delivery_lane where tenant_id = ? and id = ? for update', [tenantId, id]);
      const row = await lockDelivery(em, id, eventOf(id, delivery) ?? '');
      if (!row) throw noDelivery();
      await takeStep(em, this.#db.notices, [row], { type: 'redeliver', at: now.getTime() });
      await em.execute(
        `update delivery_lane set due_at = least(coalesce(due_at, ?::timestamptz), ?::timestamptz)
         where tenant_id = ? and id = ?`,
        [now, now, tenantId, id],
      );
      await wakeOutbox(em, tenantId);
      await this.#audit(em, tenantId, {
        ...by,
        action: 'subscription.redelivered',
        target: { type: 'subscription', id },
        detail: `${row.eventType} ${row.eventId}`,
      });
      const [changed] = await em.execute<DeliveryRow[]>(
        'select * from delivery where tenant_id = ? and lane_id = ? and event_id = ?',
        [tenantId, id, row.eventId],
      );
      return viewOf(changed!, subscription.destinationType);
    });
  }
}

/** Narrows to deliveries with an attempt in a time range. */
function attemptedIn(where: Where, since = '1970-01-01', until = '9999-12-31'): void {
  const [from, to] = [since, until].map((time) => Math.max(0, Date.parse(time))) as [number, number];
  let start = '';
  where
    // events that happened later cannot have been sent by then: the index scan ends there
    .and(firstId('oev', to), (id) => `event_id < ${id}`)
    .and(new Date(from), (at) => {
      start = at;
      return `last_attempt_at >= ${at}`;
    })
    .and(
      new Date(to),
      (end) => `last_attempt_at < ${end} or exists (
        select from jsonb_array_elements(history) h, to_timestamp((h->>'at')::double precision / 1000) t (at)
        where t.at >= ${start} and t.at < ${end})`,
    );
}

/** The maximum number of deliveries that one transaction changes. */
export const STEP_BATCH = 2000;

/** Selects waiting deliveries of a lane. */
export interface Waiting {
  tenantId: string;
  laneId: string;
  /** Only those of events after this one. */
  after?: string | undefined;
  /** Only those that were queued, or queued again, before this time. */
  queuedBefore?: Date | undefined;
}

/**
 * Takes a step with at most STEP_BATCH waiting deliveries of a lane, in the order of their events. Resolves to their number and
 * the last event.
 */
export async function stepWaiting(
  em: EntityManager,
  notices: Notices,
  { tenantId, laneId, after, queuedBefore }: Waiting,
  event: Extract<DeliveryEvent, { type: 'stop' | 'resume' }>,
): Promise<{ count: number; last: string | undefined }> {
  // this also locks the lane before its deliveries, as the workers do
  if (event.type === 'stop') {
    await em.execute('update delivery_lane set room = null where tenant_id = ? and id = ?', [tenantId, laneId]);
  }
  const before = queuedBefore?.getTime();
  const rows = await em.find(
    Delivery,
    {
      ...{ laneId, status: 'retrying', eventId: { $gt: after ?? '' } },
      ...(before !== undefined && { machineContext: { startedAt: { $lt: before } } }),
    },
    { ...LOCKED, orderBy: { eventId: 'asc' }, limit: STEP_BATCH },
  );
  await takeStep(em, notices, rows, event);
  return { count: rows.length, last: rows.at(-1)?.eventId };
}

/** Newest first. */
function attemptsOf(row: DeliveryRow) {
  const earlier = (row.history ?? []).map(({ sent, ...attempt }) => ({
    ...attempt,
    sent: sent === null ? null : Buffer.from(sent.slice(2), 'hex'),
  }));
  const { last_attempt_at: at, result, http_status, failure_reason: reason, duration_ms, sent, answer } = row;
  const all = [
    ...earlier,
    ...(at === null ? [] : [{ at, result: result!, http_status, reason, duration_ms: duration_ms!, sent, answer }]),
  ];
  return all
    .map((attempt) => ({ ...attempt, answer: attempt.answer ?? (attempt.http_status === null ? null : NOTHING) }))
    .reverse();
}

/** A response of which nothing is kept is not stored. */
const NOTHING: Answer = { headers: {}, body: '', truncated: false };

function viewOf(row: DeliveryRow, type: DestinationType): DeliveryView {
  const time = (at: Date | string | null) => (at === null ? null : new Date(at).toISOString());
  const { stopped, failures } = row.machine_context as Partial<DeliveryContext>;
  // queued again by a person: earlier failures no longer matter
  const reason = stopped ?? (row.status === 'retrying' && failures === 0 ? null : row.failure_reason);
  const note =
    row.status === 'delivered' && row.http_status !== null ? adapterOf(type).note?.(row.http_status) : undefined;
  return {
    id: deliveryId(row.lane_id, row.event_id),
    subscription_id: row.lane_id,
    event_id: row.event_id,
    event_type: row.event_type,
    test: row.is_test,
    status: row.status,
    attempts: row.attempts,
    http_status: row.http_status,
    result: row.result,
    failure_reason: reason,
    next_attempt_at: time(row.next_attempt_at),
    created_at: time(row.created_at)!,
    last_attempt_at: time(row.last_attempt_at),
    delivered_at:
      row.status === 'delivered' && row.last_attempt_at
        ? time(new Date(new Date(row.last_attempt_at).getTime() + (row.duration_ms ?? 0)))
        : null,
    duration_ms: row.duration_ms,
    ...(note !== undefined && { note }),
  };
}

const noDelivery = () => new AppError('NOT_FOUND', 'the delivery does not exist');
const PAUSED = 'the subscription is paused; resume it first';
