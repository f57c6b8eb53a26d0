import { type EntityManager, LockMode } from '@mikro-orm/postgresql';
import { type DestinationConfig, Subscription, type SubscriptionRow } from '../../db/entities/index.ts';
import { afterCommit, type Database, type WriteAudit } from '../../db/index.ts';
import type { Step } from '../../db/notices.ts';
import { addEvent } from '../../db/outbox.ts';
import {
  DELIVERY_MACHINE_VERSION,
  type DeliveryEvent,
  type DeliveryResult,
  type DeliveryState,
  restoreDelivery,
  stepDelivery,
} from '../../machines/delivery.ts';
import type { AuditAction, Doer } from '../domain/audit.ts';
import { EVENTS, type EventType } from '../domain/events.ts';
import { AppError } from '../errors.ts';
import type { Clock } from '../lib/clock.ts';
import type { SecretBox } from '../lib/crypto.ts';
import { type Egress, EgressError } from '../lib/egress.ts';
import type { Fault } from '../lib/faults.ts';
import { newId } from '../lib/ids.ts';
import { attempt, type Outcome } from './attempt.ts';
import type { DestinationType } from './destinations/destination.ts';
import { DESTINATIONS } from './destinations/index.ts';

export interface SubscriptionInput {
  url: string;
  secret?: string | undefined;
  destination_type: DestinationType;
  event_types: EventType[];
  active: boolean;
  destination_config: DestinationConfig;
}

export type SubscriptionPatch = {
  [field in keyof Omit<SubscriptionInput, 'destination_type'>]?: SubscriptionInput[field] | undefined;
} & {
  /** How long the secret before still signs beside a new one. */
  secret_overlap_seconds?: number | undefined;
};

export interface SubscriptionView {
  id: string;
  /** Of a chat only its beginning: the rest is its secret. */
  url: string;
  destination_type: DestinationType;
  event_types: string[];
  active: boolean;
  destination_config: DestinationConfig;
  created_at: string;
  updated_at: string;
  /** Until then deliveries are signed with the secret before as well. */
  previous_secret_until?: string;
  /** When and why the server stopped sending there by itself. */
  disabled_at?: string;
  disabled_reason?: string;
  /** Since when nothing was accepted there. */
  failing_since?: string;
}

export interface DeliveryView {
  id: string;
  subscription_id: string;
  event_id: string;
  event_type: string;
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
  /** What an accepted delivery does not mean. */
  note?: string;
}

export interface AttemptView {
  at: string;
  result: DeliveryResult;
  http_status: number | null;
  /** In plain words; null when it was accepted. */
  reason: string | null;
  duration_ms: number;
}

const MAX_SUBSCRIPTIONS = 200;
const DEFAULT_OVERLAP_SECONDS = 24 * 3600;

/** Where the parts of a subscription are sealed to. */
const sealPlace = (tenantId: string, id: string, column: 'url' | 'secret' | 'previous_secret') =>
  `${tenantId}/subscription/${id}/${column}`;

/** What opens the sealed parts of a subscription at a given time. */
export function openDestination(
  box: SecretBox,
  row: Pick<
    SubscriptionRow,
    'tenantId' | 'id' | 'urlSealed' | 'secretSealed' | 'previousSecretSealed' | 'previousSecretUntil'
  >,
  now: number,
): { url: string; secrets: string[] } {
  const open = (sealed: Uint8Array | null | undefined, column: 'url' | 'secret' | 'previous_secret') =>
    sealed ? [box.open(sealed, sealPlace(row.tenantId, row.id, column)).toString()] : [];
  const overlaps = row.previousSecretUntil && row.previousSecretUntil.getTime() > now;
  return {
    url: open(row.urlSealed, 'url')[0]!,
    secrets: [
      ...open(row.secretSealed, 'secret'),
      ...(overlaps ? open(row.previousSecretSealed, 'previous_secret') : []),
    ],
  };
}

/**
 * Who is told what, where. Every change commits with its audit record. What is secret (a signing secret, the URL of a
 * chat) rests sealed and is never shown again.
 */
export class Subscriptions {
  readonly #db: Database;
  readonly #clock: Clock;
  readonly #audit: WriteAudit;
  readonly #box: SecretBox;
  readonly #egress: Egress;
  readonly #appUrl: string;

  /** `appUrl`: where the links of cards lead when a subscription does not say. */
  constructor(parts: {
    db: Database;
    clock: Clock;
    audit: WriteAudit;
    box: SecretBox;
    egress: Egress;
    appUrl: string;
  }) {
    this.#db = parts.db;
    this.#clock = parts.clock;
    this.#audit = parts.audit;
    this.#box = parts.box;
    this.#egress = parts.egress;
    this.#appUrl = parts.appUrl;
  }

  async list(tenantId: string, page: { limit: number; offset: number }) {
    const [rows, total] = await this.#db
      .reader(tenantId)
      .findAndCount(Subscription, {}, { orderBy: { createdAt: 'desc', id: 'desc' }, ...page });
    const failing = await this.#failing(tenantId);
    return { subscriptions: rows.map((row) => this.#view(row, failing.get(row.id))), total };
  }

  async get(tenantId: string, id: string): Promise<SubscriptionView> {
    const row = await this.#db.reader(tenantId).findOne(Subscription, { id });
    if (!row) throw notFound();
    return this.#view(row, (await this.#failing(tenantId)).get(id));
  }

  /** From its commit on, events that happen are told there. VALIDATION_FAILED for an address that nobody may dial. */
  async create(tenantId: string, input: SubscriptionInput, by: Doer): Promise<SubscriptionView> {
    const faults = secretFaults(input.destination_type, input.secret, true);
    if (faults.length > 0) throw new AppError('VALIDATION_FAILED', undefined, { faults });
    const now = new Date(this.#clock.now());
    const id = newId('sub', now.getTime());
    await this.#assertMayDial(tenantId, id, input.url, by);
    return this.#db.transaction(tenantId, async (em) => {
      if ((await em.count(Subscription, {})) >= MAX_SUBSCRIPTIONS) {
        throw new AppError('CONFLICT', `a tenant has at most ${MAX_SUBSCRIPTIONS} subscriptions`);
      }
      const row = em.create(Subscription, {
        tenantId,
        id,
        destinationType: input.destination_type,
        urlSealed: this.#seal(tenantId, id, 'url', input.url),
        secretSealed: input.secret === undefined ? null : this.#seal(tenantId, id, 'secret', input.secret),
        previousSecretSealed: null,
        previousSecretUntil: null,
        eventTypes: [...new Set(input.event_types)],
        active: input.active,
        activeSince: now,
        destinationConfig: input.destination_config,
        disabledAt: null,
        disabledReason: null,
        createdBy: by.actor.id,
        createdAt: now,
        updatedAt: now,
      });
      await em.flush();
      await em.execute('insert into delivery_lane (tenant_id, id) values (?, ?)', [tenantId, id]);
      await this.#record(em, tenantId, 'subscription.created', id, by, `${row.destinationType} ${hostOf(input.url)}`);
      return this.#view(row);
    });
  }

  /**
   * Changes what the patch names. Pausing (`active: false`) ends what is queued: none of it is sent after this resolves,
   * but for an attempt that is under way. A new secret signs beside the one before for `secret_overlap_seconds`.
   */
  async update(tenantId: string, id: string, patch: SubscriptionPatch, by: Doer): Promise<SubscriptionView> {
    const before = await this.#db.reader(tenantId).findOne(Subscription, { id });
    if (!before) throw notFound();
    const faults = secretFaults(before.destinationType, patch.secret, false);
    if (patch.secret === undefined && patch.secret_overlap_seconds !== undefined) {
      faults.push({ pointer: '/secret_overlap_seconds', message: 'needs a new secret beside it' });
    }
    const url = this.#newUrl(before, patch.url);
    if (url === null)
      faults.push({ pointer: '/url', message: 'is shortened: give the whole address, or leave it out' });
    if (faults.length > 0) throw new AppError('VALIDATION_FAILED', undefined, { faults });
    if (url) await this.#assertMayDial(tenantId, id, url, by);
    // what was queued before a pause is not sent after it, also where the pause did not come to its end
    if (patch.active === true && !before.active) await this.stopRest(tenantId, id);
    let stopped = 0;
    const view = await this.#db.transaction(tenantId, async (em) => {
      const row = await lock(em, id);
      const now = new Date(this.#clock.now());
      const changed: string[] = [];
      if (url) {
        row.urlSealed = this.#seal(tenantId, id, 'url', url);
        changed.push(`url (${hostOf(url)})`);
      }
      if (patch.event_types !== undefined) {
        row.eventTypes = [...new Set(patch.event_types)];
        changed.push('event_types');
      }
      if (patch.destination_config !== undefined) {
        row.destinationConfig = patch.destination_config;
        changed.push('destination_config');
      }
      const paused = patch.active === false && row.active;
      const resumed = patch.active === true && !row.active;
      if (paused || resumed) {
        row.active = !row.active;
        if (resumed) row.activeSince = now;
        row.disabledAt = null;
        row.disabledReason = null;
        changed.push(paused ? 'paused' : 'resumed');
      }
      if (patch.secret !== undefined) this.#rotate(row, patch.secret, patch.secret_overlap_seconds, now);
      row.updatedAt = now;
      await em.flush();
      // whoever sends there now must not go on with what was: the fence takes their lease away
      await em.execute(
        `update delivery_lane set fence = fence + 1, leased_until = null, due_at = case when due_at is null then null
           else ?::timestamptz end, not_before = null ${resumed ? ', failing_since = null, gone_since = null' : ''}
         where tenant_id = ? and id = ?`,
        [now, tenantId, id],
      );
      if (paused) stopped = await this.#stopQueued(em, now, tenantId, id, WAS_PAUSED);
      if (patch.secret !== undefined) {
        const until = row.previousSecretUntil;
        const detail = until ? `the secret before signs until ${until.toISOString()}` : 'the secret before is void';
        await this.#record(em, tenantId, 'subscription.secret_rotated', id, by, detail);
      }
      if (changed.length > 0) {
        await this.#record(em, tenantId, 'subscription.updated', id, by, changed.join(', '));
      }
      return this.#view(row);
    });
    if (stopped === STOPPED_AT_ONCE) await this.stopRest(tenantId, id);
    return view;
  }

  /**
   * Ends what is still queued for a subscription that takes nothing: some at a time, because there may be more than one
   * transaction can hold. It changes nothing where the subscription is active.
   */
  async stopRest(tenantId: string, id: string): Promise<void> {
    let stopped: number;
    do {
      stopped = await this.#db.transaction(tenantId, async (em) => {
        const row = await em.findOne(Subscription, { id }, { lockMode: LockMode.PESSIMISTIC_WRITE });
        if (!row || row.active) return 0;
        const reason = row.disabledAt ? WAS_DISABLED : WAS_PAUSED;
        return this.#stopQueued(em, new Date(this.#clock.now()), tenantId, id, reason);
      });
    } while (stopped === STOPPED_AT_ONCE);
  }

  /** Its deliveries are gone with it: none is sent after this resolves, but for an attempt that is under way. */
  async remove(tenantId: string, id: string, by: Doer): Promise<void> {
    await this.#db.transaction(tenantId, async (em) => {
      const row = await lock(em, id);
      em.remove(row);
      await em.flush();
      await em.execute('delete from delivery_lane where tenant_id = ? and id = ?', [tenantId, id]);
      await this.#record(em, tenantId, 'subscription.deleted', id, by);
    });
  }

  /** Sends a test event there now, paused or not, and tells what came of it. It is tried once and not listed. */
  async test(tenantId: string, id: string, by: Doer): Promise<Outcome & { payload?: Record<string, unknown> }> {
    const row = await this.#db.reader(tenantId).findOne(Subscription, { id });
    if (!row) throw notFound();
    const now = this.#clock.now();
    const eventId = newId('oev', now);
    const payload = {
      event: 'svc.test',
      event_id: eventId,
      tenant_id: tenantId,
      subscription_id: id,
      message: 'This is a test. Nothing has happened.',
      created_at: new Date(now).toISOString(),
    };
    const outcome = await attempt(this.#egress, {
      ...openDestination(this.#box, row, now),
      type: row.destinationType,
      message: {
        eventId,
        eventType: 'svc.test',
        deliveryId: newId('dlv', now),
        payload,
        timestamp: Math.floor(now / 1000),
        appUrl: row.destinationConfig.app_url ?? this.#appUrl,
      },
    });
    await this.#db.transaction(tenantId, (em) =>
      this.#record(em, tenantId, 'subscription.tested', id, by, outcome.result),
    );
    return { ...outcome, ...(row.destinationType === 'webhook' && { payload }) };
  }

  /** The deliveries of a subscription, the newest event first. */
  async deliveries(
    tenantId: string,
    id: string,
    filter: {
      status?: DeliveryState | undefined;
      event_type?: EventType | undefined;
      limit: number;
      cursor?: string | undefined;
    },
  ): Promise<{ deliveries: DeliveryView[]; next_cursor: string | null; has_more: boolean }> {
    const row = await this.#db.reader(tenantId).findOne(Subscription, { id });
    if (!row) throw notFound();
    const values: unknown[] = [tenantId, id];
    const where = ['tenant_id = $1', 'lane_id = $2'];
    const also = (sql: (place: string) => string, value: unknown) => {
      if (value === undefined) return;
      values.push(value);
      where.push(sql(`$${values.length}`));
    };
    also((place) => `status = ${place}`, filter.status);
    also((place) => `event_type = ${place}`, filter.event_type);
    also((place) => `event_id < ${place}`, filter.cursor && eventOfCursor(filter.cursor));
    values.push(filter.limit + 1);
    const rows = await this.#db.query<DeliveryRow>(
      tenantId,
      `select * from delivery where ${where.join(' and ')} order by event_id desc limit $${values.length}`,
      values,
    );
    const page = rows.slice(0, filter.limit);
    const has_more = rows.length > filter.limit;
    return {
      deliveries: page.map((delivery) => deliveryView(delivery, row.destinationType)),
      next_cursor: has_more ? Buffer.from(`d1:${page.at(-1)!.event_id}`).toString('base64url') : null,
      has_more,
    };
  }

  /** One delivery with its attempts, the newest first; those that were made before attempts were kept are not there. */
  async delivery(tenantId: string, id: string, deliveryId: string): Promise<DeliveryView & { history: AttemptView[] }> {
    const { row, subscription } = await this.#delivery(tenantId, id, deliveryId);
    const history = row.history.map((attempt) => ({ ...attempt, at: new Date(attempt.at).toISOString() }));
    return { ...deliveryView(row, subscription.destinationType), history: history.reverse() };
  }

  /** How the machine of a delivery stands, and why it would not take an event that a person sends. */
  async standing(
    tenantId: string,
    id: string,
    deliveryId: string,
  ): Promise<{ state: string; version: number; refusals: Record<string, { code: string; detail: string } | null> }> {
    const { row, subscription } = await this.#delivery(tenantId, id, deliveryId);
    return {
      state: row.status,
      version: row.machine_version,
      refusals: { redeliver: subscription.active ? null : { code: 'INVALID_STATUS', detail: PAUSED } },
    };
  }

  async #delivery(tenantId: string, id: string, deliveryId: string) {
    const subscription = await this.#db.reader(tenantId).findOne(Subscription, { id });
    if (!subscription) throw notFound();
    const [row] = await this.#db.query<DeliveryRow>(
      tenantId,
      'select * from delivery where tenant_id = $1 and lane_id = $2 and id = $3',
      [tenantId, id, deliveryId],
    );
    if (!row) throw noDelivery();
    return { row, subscription };
  }

  /**
   * Queues a delivery again, whatever became of it, with 24 hours ahead. The receiver gets the same event id as before.
   * INVALID_STATUS while the subscription is paused.
   */
  async redeliver(tenantId: string, id: string, deliveryId: string, by: Doer): Promise<DeliveryView> {
    return this.#db.transaction(tenantId, async (em) => {
      const subscription = await lock(em, id);
      if (!subscription.active) throw new AppError('INVALID_STATUS', PAUSED);
      const now = new Date(this.#clock.now());
      // the lane first, as the workers do, so that nobody waits for the other
      await em.execute('select 1 from delivery_lane where tenant_id = ? and id = ? for update', [tenantId, id]);
      const [row] = await em.execute<DeliveryRow[]>(
        'select * from delivery where tenant_id = ? and lane_id = ? and id = ? for update',
        [tenantId, id, deliveryId],
      );
      if (!row) throw noDelivery();
      const stored = { state: row.status, context: row.machine_context, version: row.machine_version };
      const event: DeliveryEvent = { type: 'redeliver', at: now.getTime() };
      const [next] = stepDelivery(restoreDelivery(stored), event);
      this.#tellAfter(em, tenantId, deliveryId, { event, state: next.value, context: next.context });
      const [changed] = await em.execute<DeliveryRow[]>(
        `update delivery set status = ?, machine_context = ?, machine_version = ?, next_attempt_at = ?,
           delivered_at = null, failure_reason = null
         where tenant_id = ? and id = ? returning *`,
        [next.value, JSON.stringify(next.context), DELIVERY_MACHINE_VERSION, now, tenantId, deliveryId],
      );
      await em.execute(
        `update delivery_lane set due_at = least(coalesce(due_at, ?::timestamptz), ?::timestamptz)
         where tenant_id = ? and id = ?`,
        [now, now, tenantId, id],
      );
      await em.execute(`select pg_notify('svc_notice', ?)`, [`outbox ${tenantId} `]);
      await this.#record(em, tenantId, 'subscription.redelivered', id, by, `${row.event_type} ${row.event_id}`);
      return deliveryView(changed!, subscription.destinationType);
    });
  }

  /**
   * Stops sending to a destination that is gone or has failed for too long: for the workers. Tells subscribers and, with
   * `tell`, the tenant's admins, in the same transaction. Does nothing when somebody has paused it already.
   */
  async disable(
    tenantId: string,
    id: string,
    reason: string,
    failingSince: Date | null,
    tell: (em: EntityManager, subscription: SubscriptionView) => Promise<void>,
  ): Promise<void> {
    let stopped = 0;
    await this.#db.transaction(tenantId, async (em) => {
      const row = await em.findOne(Subscription, { id, active: true }, { lockMode: LockMode.PESSIMISTIC_WRITE });
      if (!row) return;
      const now = new Date(this.#clock.now());
      row.active = false;
      row.disabledAt = now;
      row.disabledReason = reason;
      row.updatedAt = now;
      await em.flush();
      await em.execute(
        'update delivery_lane set fence = fence + 1, leased_until = null, due_at = null where tenant_id = ? and id = ?',
        [tenantId, id],
      );
      stopped = await this.#stopQueued(em, now, tenantId, id, WAS_DISABLED);
      await addEvent(em, tenantId, {
        type: 'subscription.disabled',
        at: now.getTime(),
        payload: {
          subscription_id: id,
          destination_type: row.destinationType,
          reason,
          ...(failingSince && { failing_since: failingSince.toISOString() }),
          created_at: now.toISOString(),
        },
      });
      await tell(em, this.#view(row));
      await this.#audit(em, tenantId, {
        actor: { type: 'system', id: 'control-plane' },
        action: 'subscription.disabled',
        severity: 'warning',
        target: { type: 'subscription', id },
        reason,
      });
    });
    if (stopped === STOPPED_AT_ONCE) await this.stopRest(tenantId, id);
  }

  /**
   * The address that a change names: undefined for none, which is also what the shortened one means that we showed. Null
   * for any other that is shortened.
   */
  #newUrl(row: SubscriptionRow, url: string | undefined): string | null | undefined {
    if (url === undefined || row.destinationType === 'webhook') return url;
    const { href } = new URL(url);
    if (href === new URL(this.#view(row).url).href) return undefined;
    return href.endsWith(new URL('x:…').pathname) ? null : url;
  }

  #tellAfter(em: EntityManager, tenantId: string, id: string, step: Step): void {
    afterCommit(em, () => this.#db.notices.tellHere('delivery', tenantId, id, [step]));
  }

  /** Sends `stop` to what waits in a lane. Resolves to how many deliveries it stopped: at most STOPPED_AT_ONCE. */
  async #stopQueued(em: EntityManager, now: Date, tenantId: string, laneId: string, reason: string): Promise<number> {
    const rows = await em.execute<Pick<DeliveryRow, 'id' | 'status' | 'machine_context' | 'machine_version'>[]>(
      `select id, status, machine_context, machine_version from delivery
       where tenant_id = ? and lane_id = ? and status = 'retrying' order by event_id limit ${STOPPED_AT_ONCE} for update`,
      [tenantId, laneId],
    );
    if (rows.length === 0) return 0;
    const event: DeliveryEvent = { type: 'stop', at: now.getTime(), reason };
    const stopped = rows.map(({ id, status: state, machine_context: context, machine_version: version }) => {
      const [next] = stepDelivery(restoreDelivery({ state, context, version }), event);
      this.#tellAfter(em, tenantId, id, { event, state: next.value, context: next.context });
      return { id, status: next.value, context: next.context };
    });
    await em.execute(
      `update delivery d set status = x.status, next_attempt_at = null, failure_reason = ?, machine_context = x.context
       from jsonb_to_recordset(?::jsonb) x (id text, status text, context jsonb)
       where d.tenant_id = ? and d.id = x.id`,
      [reason, JSON.stringify(stopped), tenantId],
    );
    return stopped.length;
  }

  #rotate(row: SubscriptionRow, secret: string, overlapSeconds = DEFAULT_OVERLAP_SECONDS, now: Date): void {
    const { tenantId, id } = row;
    const old = this.#box.open(row.secretSealed!, sealPlace(tenantId, id, 'secret')).toString();
    row.previousSecretSealed = overlapSeconds > 0 ? this.#seal(tenantId, id, 'previous_secret', old) : null;
    row.previousSecretUntil = overlapSeconds > 0 ? new Date(now.getTime() + overlapSeconds * 1000) : null;
    row.secretSealed = this.#seal(tenantId, id, 'secret', secret);
  }

  /**
   * A name that does not resolve now is let through: DNS may be away for a moment, and each attempt asks again. What
   * resolves to a forbidden address is refused, and the try goes into the audit chain.
   */
  async #assertMayDial(tenantId: string, id: string, url: string, by: Doer): Promise<void> {
    try {
      await this.#egress.check(url);
    } catch (error) {
      if (!(error instanceof EgressError)) throw error;
      if (error.failure !== 'DESTINATION_BLOCKED') return;
      await this.#db.transaction(tenantId, (em) =>
        this.#record(em, tenantId, 'subscription.refused', id, by, `${hostOf(url)}: ${error.failure}`, 'warning'),
      );
      throw new AppError('VALIDATION_FAILED', error.message, { faults: [{ pointer: '/url', message: error.message }] });
    }
  }

  async #failing(tenantId: string): Promise<Map<string, Date>> {
    const rows = await this.#db.query<{ id: string; failing_since: Date }>(
      tenantId,
      'select id, failing_since from delivery_lane where tenant_id = $1 and failing_since is not null',
      [tenantId],
    );
    return new Map(rows.map((row) => [row.id, row.failing_since]));
  }

  #seal(tenantId: string, id: string, column: 'url' | 'secret' | 'previous_secret', text: string): Buffer {
    return this.#box.seal(text, sealPlace(tenantId, id, column));
  }

  #record(
    em: EntityManager,
    tenantId: string,
    action: AuditAction,
    id: string,
    by: Doer,
    detail?: string,
    severity?: 'warning',
  ): Promise<void> {
    return this.#audit(em, tenantId, { ...by, action, target: { type: 'subscription', id }, detail, severity });
  }

  #view(row: SubscriptionRow, failingSince?: Date): SubscriptionView {
    const now = this.#clock.now();
    const { url } = openDestination(this.#box, { ...row, secretSealed: null, previousSecretSealed: null }, now);
    const until = row.previousSecretUntil;
    return {
      id: row.id,
      url: row.destinationType === 'webhook' ? url : shortened(url),
      destination_type: row.destinationType,
      event_types: row.eventTypes,
      active: row.active,
      destination_config: row.destinationConfig,
      created_at: row.createdAt.toISOString(),
      updated_at: row.updatedAt.toISOString(),
      ...(until && until.getTime() > now && { previous_secret_until: until.toISOString() }),
      ...(row.disabledAt && { disabled_at: row.disabledAt.toISOString() }),
      ...(row.disabledReason != null && { disabled_reason: row.disabledReason }),
      ...(failingSince && { failing_since: failingSince.toISOString() }),
    };
  }
}

/** What the database keeps of a delivery. */
export interface DeliveryRow {
  tenant_id: string;
  id: string;
  lane_id: string;
  event_id: string;
  event_type: string;
  status: DeliveryState;
  machine_version: number;
  machine_context: unknown;
  attempts: number;
  http_status: number | null;
  result: DeliveryResult | null;
  failure_reason: string | null;
  next_attempt_at: Date | null;
  created_at: Date;
  last_attempt_at: Date | null;
  delivered_at: Date | null;
  duration_ms: number | null;
  /** Its attempts, the oldest first. */
  history: AttemptView[];
}

function deliveryView(row: DeliveryRow, type: DestinationType): DeliveryView {
  const time = (at: Date | string | null) => (at === null ? null : new Date(at).toISOString());
  const note =
    row.status === 'delivered' && row.http_status !== null ? DESTINATIONS[type].note?.(row.http_status) : undefined;
  return {
    id: row.id,
    subscription_id: row.lane_id,
    event_id: row.event_id,
    event_type: row.event_type,
    status: row.status,
    attempts: row.attempts,
    http_status: row.http_status,
    result: row.result,
    failure_reason: row.failure_reason,
    next_attempt_at: time(row.next_attempt_at),
    created_at: time(row.created_at)!,
    last_attempt_at: time(row.last_attempt_at),
    delivered_at: time(row.delivered_at),
    duration_ms: row.duration_ms,
    ...(note !== undefined && { note }),
  };
}

const WAS_PAUSED = 'The subscription was paused before this was delivered.';
const WAS_DISABLED = 'The subscription was disabled before this was delivered.';
/** Deliveries that one transaction stops. */
const STOPPED_AT_ONCE = 2000;

const notFound = () => new AppError('NOT_FOUND', 'there is no such subscription');
const noDelivery = () => new AppError('NOT_FOUND', 'there is no such delivery');
const PAUSED = 'the subscription is paused: resume it first';

async function lock(em: EntityManager, id: string): Promise<SubscriptionRow> {
  const row = await em.findOne(Subscription, { id }, { lockMode: LockMode.PESSIMISTIC_WRITE });
  if (!row) throw notFound();
  return row;
}

function secretFaults(type: DestinationType, secret: string | undefined, fresh: boolean): Fault[] {
  if (DESTINATIONS[type].signed) {
    return fresh && secret === undefined ? [{ pointer: '/secret', message: `a ${type} needs a signing secret` }] : [];
  }
  return secret === undefined ? [] : [{ pointer: '/secret', message: `a ${type} destination takes no secret` }];
}

function eventOfCursor(cursor: string): string {
  const [, eventId] = /^d1:([a-z0-9_]{1,100})$/.exec(Buffer.from(cursor, 'base64url').toString('latin1')) ?? [];
  if (eventId) return eventId;
  throw new AppError('VALIDATION_FAILED', undefined, {
    faults: [{ pointer: '?cursor', message: 'is not a cursor of this list' }],
  });
}

const hostOf = (url: string) => URL.parse(url)?.host ?? '';

/** Enough of a secret URL to know it again. */
function shortened(url: string): string {
  const { origin, pathname } = new URL(url);
  return `${origin}${pathname.slice(0, Math.min(12, pathname.length / 3))}…`;
}

/** Every event type with its description, for those who choose. */
export const eventTypes = Object.entries(EVENTS).map(([type, { description }]) => ({ type, description }));
