import { type EntityManager, LockMode } from '@mikro-orm/postgresql';
import { isKeyOf } from '../../db/credentials.ts';
import { type DestinationConfig, Subscription, type SubscriptionRow } from '../../db/entities/index.ts';
import { deleteInBatches } from '../../db/forget.ts';
import type { Database, Notify, WriteAudit } from '../../db/index.ts';
import { addEvent } from '../../db/outbox.ts';
import type { AuditAction, Doer } from '../domain/audit.ts';
import { type DestinationType, kindOf } from '../domain/destinations.ts';
import { EVENTS, type EventDefinition, type EventType } from '../domain/events.ts';
import { AppError } from '../errors.ts';
import type { Clock } from '../lib/clock.ts';
import type { SecretBox } from '../lib/crypto.ts';
import { type Egress, EgressError } from '../lib/egress.ts';
import type { Fault } from '../lib/faults.ts';
import { newId } from '../lib/ids.ts';
import { assertEntitled } from '../rpc/entitled.ts';
import { type AttemptOutcome, attempt, type Outcome, UNREADABLE } from './attempt.ts';
import { STEP_BATCH, stepWaiting, type Waiting } from './deliveries.ts';
import { deliveryId } from './delivery-id.ts';
import { EXAMPLE_SECRET, type Exchange, exchangeOf, signedAt } from './sent.ts';
import { findSubscription, lockSubscription, openDestination, sealPlace } from './subscription-row.ts';

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
  /** How long the previous secret remains valid alongside the new one. */
  secret_overlap_seconds?: number | undefined;
  /** With `active: false`: keep what is queued, and go on queuing. */
  paused_keep?: boolean | undefined;
};

export interface SubscriptionView {
  id: string;
  /** Truncated for a chat, whose URL contains a secret. */
  url: string;
  destination_type: DestinationType;
  event_types: string[];
  active: boolean;
  /** Whether events are queued for it. */
  queues: boolean;
  destination_config: DestinationConfig;
  created_by: string;
  /** Who last chose where it sends. */
  owner_id: string;
  created_at: string;
  updated_at: string;
  /** Until then deliveries are also signed with the previous secret. */
  previous_secret_until?: string;
  /** When and why the server disabled it automatically. */
  disabled_at?: string;
  disabled_reason?: string;
  /** When the current run of failed attempts began. */
  failing_since?: string;
}

const MAX_SUBSCRIPTIONS = 200;
const DEFAULT_OVERLAP_SECONDS = 24 * 3600;
/** How long events wait for a paused subscription. */
const KEEP_PAUSED_DAYS = 7;
/** How long a request that deletes a subscription spends deleting its deliveries. */
const CLEAR_MS = 1000;
/** A paused subscription no longer keeps what was queued before this. */
export const keptSince = (now: number) => new Date(now - KEEP_PAUSED_DAYS * 24 * 3600_000);

/**
 * Subscriptions of destinations to events. Every change commits together with its audit record. Secrets (signing secrets
 * and chat URLs) are stored encrypted and never returned.
 */
export class Subscriptions {
  readonly #db: Database;
  readonly #clock: Clock;
  readonly #audit: WriteAudit;
  readonly #box: SecretBox;
  readonly #egress: Egress;
  readonly #appUrl: string;

  /** `appUrl`: the base of links in chat cards, unless the subscription sets its own. */
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
    const row = await findSubscription(this.#db.reader(tenantId), id);
    return this.#view(row, (await this.#failing(tenantId)).get(id));
  }

  /** Events after its commit are sent to the destination. VALIDATION_FAILED for an address that the egress guard blocks. */
  async create(tenantId: string, input: SubscriptionInput, by: Doer): Promise<SubscriptionView> {
    const faults = secretFaults(input.destination_type, input.secret, true);
    if (faults.length > 0) throw new AppError('VALIDATION_FAILED', undefined, { faults });
    const now = new Date(this.#clock.now());
    const id = newId('sub', now.getTime());
    await this.#assertMayDial(tenantId, id, input.url, by);
    return this.#db.transaction(tenantId, async (em) => {
      await assertEntitled(em, tenantId, by.actor);
      if ((await em.count(Subscription, {})) >= MAX_SUBSCRIPTIONS) {
        throw new AppError(
          'CONFLICT',
          `a tenant can have at most ${MAX_SUBSCRIPTIONS} subscriptions; delete one first`,
        );
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
        queuesSince: input.active ? now : null,
        destinationConfig: input.destination_config,
        disabledAt: null,
        disabledReason: null,
        createdBy: by.actor.id,
        ownerId: by.actor.id,
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
   * Applies the patch. While the subscription is paused (`active: false`) nothing is sent, except for an attempt in progress. What
   * was queued ends, and nothing is queued until it is resumed; with `paused_keep`, the queue is kept and goes on to fill, and is
   * sent in order when the subscription is resumed. After a new secret, the previous one also signs for `secret_overlap_seconds`.
   */
  async update(
    tenantId: string,
    id: string,
    patch: SubscriptionPatch,
    by: Doer,
    reason?: string,
  ): Promise<SubscriptionView> {
    const before = await findSubscription(this.#db.reader(tenantId), id);
    const faults = secretFaults(before.destinationType, patch.secret, false);
    if (patch.secret === undefined && patch.secret_overlap_seconds !== undefined) {
      faults.push({ pointer: '/secret_overlap_seconds', message: 'is only allowed together with a new secret' });
    }
    if (patch.paused_keep !== undefined && patch.active !== false) {
      faults.push({ pointer: '/paused_keep', message: 'is only allowed together with active: false' });
    }
    const url = this.#newUrl(before, patch.url);
    if (url === null) faults.push({ pointer: '/url', message: 'is truncated: enter the full address or leave it out' });
    if (faults.length > 0) throw new AppError('VALIDATION_FAILED', undefined, { faults });
    if (url) await this.#assertMayDial(tenantId, id, url, by);
    let queued = 0;
    if (patch.active === true && !before.active) {
      // what was queued when it was disabled, or paused without its queue, is not sent, even if ending that was interrupted
      if (before.queuesSince === null) await this.#stopRest(tenantId, id);
      else queued = await this.#makeDue(tenantId, id);
    }
    const ends = patch.active === false && patch.paused_keep !== true;
    const view = await this.#db.transaction(tenantId, async (em, notify) => {
      await assertEntitled(em, tenantId, by.actor);
      const row = await lockSubscription(em, id);
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
      // whoever resumes what nobody answers for takes it over
      if (url || (resumed && !(await isAdmins(em, tenantId, row.ownerId)))) row.ownerId = by.actor.id;
      if (paused || resumed) {
        row.active = !row.active;
        if (resumed) row.queuesSince ??= now;
        row.disabledAt = null;
        row.disabledReason = null;
        const keeping = ends ? '' : ', keeping the queue';
        changed.push(paused ? `paused${keeping}` : `resumed${queued > 0 ? ` with ${queued} queued events` : ''}`);
      } else if (ends && row.queuesSince !== null) changed.push('the queue');
      if (ends) row.queuesSince = null;
      const rotated = patch.secret !== undefined && this.#rotate(row, patch.secret, patch.secret_overlap_seconds, now);
      row.updatedAt = now;
      await em.flush();
      // fan-outs from here on see the subscription as it is now; deliveries made before are seen below
      await em.execute('select 1 from delivery_lane where tenant_id = ? and id = ? for update', [tenantId, id]);
      // a process that is sending with the old values must stop: raising the fence revokes its lease
      await em.execute(
        `update delivery_lane set fence = fence + 1, leased_until = null, not_before = null,
           due_at = case when ?::boolean and (due_at is not null or exists (
             select from delivery where tenant_id = ? and lane_id = ? and status = 'retrying')) then ?::timestamptz end
           ${paused || resumed ? ', room = null, failing_since = null, gone_since = null' : ''}
         where tenant_id = ? and id = ?`,
        [row.active, tenantId, id, now, tenantId, id],
      );
      await notify('destinations', id);
      if (ends) await stepWaiting(em, this.#db.notices, { tenantId, laneId: id }, wasPaused(now.getTime()));
      if (rotated) {
        const until = row.previousSecretUntil;
        const detail = until
          ? `the previous secret is valid until ${until.toISOString()}`
          : 'the previous secret is revoked';
        await this.#record(em, tenantId, 'subscription.secret_rotated', id, { ...by, reason }, detail);
      }
      if (changed.length > 0) {
        await this.#record(em, tenantId, 'subscription.updated', id, { ...by, reason }, changed.join(', '));
      }
      return this.#view(row);
    });
    if (ends) await this.#stopRest(tenantId, id);
    return view;
  }

  /** Stops what is left in the queue of a subscription that the server disabled, or that was paused without its queue. */
  async #stopRest(tenantId: string, id: string): Promise<void> {
    const which = { tenantId, laneId: id };
    await this.#step(which, ({ disabledAt }) => disabledAt !== null, { type: 'stop', reason: WAS_DISABLED });
    await this.#step(which, (row) => isPaused(row) && row.queuesSince === null, { type: 'stop', reason: WAS_PAUSED });
  }

  /**
   * Makes everything due that waits for a paused subscription. This happens before the subscription is active again, so that events
   * are sent in order. Resolves to the number of deliveries.
   */
  #makeDue(tenantId: string, id: string): Promise<number> {
    return this.#step({ tenantId, laneId: id }, isPaused, { type: 'resume' });
  }

  /** Stops what an inactive subscription has kept for too long: everything, if it has no queue. */
  async trim(tenantId: string, id: string): Promise<void> {
    await this.#stopRest(tenantId, id);
    const queuedBefore = keptSince(this.#clock.now());
    await this.#step({ tenantId, laneId: id, queuedBefore }, isPaused, { type: 'stop', reason: TOO_OLD });
  }

  /**
   * Takes a step with all of these deliveries, in batches because there may be too many for one transaction, and only while the
   * subscription is in the expected state.
   */
  async #step(
    which: Waiting,
    when: (row: SubscriptionRow) => boolean,
    event: { type: 'resume' } | { type: 'stop'; reason: string },
  ): Promise<number> {
    const { tenantId, laneId } = which;
    let total = 0;
    for (let { after } = which; ; ) {
      const { count, last } = await this.#db.transaction(tenantId, async (em) => {
        const row = await em.findOne(Subscription, { id: laneId }, { lockMode: LockMode.PESSIMISTIC_WRITE });
        if (!row || !when(row)) return { count: 0, last: undefined };
        return stepWaiting(em, this.#db.notices, { ...which, after }, { ...event, at: this.#clock.now() });
      });
      total += count;
      if (count < STEP_BATCH) return total;
      after = last;
    }
  }

  /**
   * Pauses, in the caller's transaction, the subscriptions that send where this person chose, by themselves or with a key of
   * theirs, because they are no longer an admin: what the events contain is not for them any more. Another admin takes one over by
   * resuming it. With `heir`, all go on and are the heir's. Resolves to their ids.
   */
  async leave(
    em: EntityManager,
    notify: Notify,
    tenantId: string,
    { userId, heir }: { userId: string; heir: string | null },
    by: Doer,
  ): Promise<string[]> {
    const now = new Date(this.#clock.now());
    const rows = await em.execute<{ id: string; active: boolean }[]>(
      `select id, active from subscription where tenant_id = ? and ${OWNED} order by id for update`,
      [tenantId, userId, tenantId, userId, userId],
    );
    const ids = rows.map(({ id }) => id);
    if (ids.length === 0) return ids;
    const them = 'id in (select jsonb_array_elements_text(?::jsonb))';
    const which = [tenantId, JSON.stringify(ids)];
    if (heir !== null) {
      await em.execute(`update subscription set owner_id = ?, updated_at = ? where tenant_id = ? and ${them}`, [
        heir,
        now,
        ...which,
      ]);
    } else {
      await em.execute(
        `update subscription set active = false, updated_at = ?, row_version = row_version + 1 where tenant_id = ? and ${them}`,
        [now, ...which],
      );
      // whoever is sending there stops: raising the fence revokes its lease
      await em.execute(
        `update delivery_lane set fence = fence + 1, leased_until = null, not_before = null, due_at = null, room = null,
           failing_since = null, gone_since = null where tenant_id = ? and ${them}`,
        which,
      );
    }
    for (const { id, active } of rows) {
      await notify('destinations', id);
      const how =
        heir !== null ? `taken over from ${userId}` : active ? `paused: ${userId} chose where it sends` : undefined;
      if (how) await this.#record(em, tenantId, 'subscription.updated', id, by, how);
    }
    return ids;
  }

  /**
   * After this resolves, none of its deliveries is sent, except for an attempt in progress. They are deleted afterwards, because
   * there may be too many for one transaction: what cannot be deleted at once is left to the cleanup job.
   */
  async remove(tenantId: string, id: string, by: Doer, reason: string): Promise<void> {
    await this.#db.transaction(tenantId, async (em, notify) => {
      const row = await lockSubscription(em, id);
      em.remove(row);
      await em.flush();
      // the lane stays until its last delivery is gone
      await em.execute(
        `update delivery_lane set fence = fence + 1, leased_until = null, due_at = null, failing_since = null, gone_since = null
         where tenant_id = ? and id = ?`,
        [tenantId, id],
      );
      await notify('destinations', id);
      await this.#record(em, tenantId, 'subscription.deleted', id, { ...by, reason });
    });
    await this.clear(tenantId, id, AbortSignal.timeout(CLEAR_MS)).catch(() => undefined);
  }

  /**
   * Deletes the deliveries of a subscription that no longer exists, and then its lane. Stops between batches when `signal` is
   * aborted.
   */
  async clear(tenantId: string, id: string, signal?: AbortSignal): Promise<void> {
    const near = this.#db.nearOf(tenantId);
    // an array, so that each row is found by its key: with `in`, PostgreSQL may compare all with all if it has no statistics on
    // them
    await deleteInBatches(
      near,
      (limit) => `delete from delivery where tenant_id = $1 and lane_id = $2 and event_id = any(array(
        select event_id from delivery where tenant_id = $1 and lane_id = $2 order by event_id ${limit} for update skip locked))`,
      [tenantId, id],
      signal,
    );
    await near.query(
      `delete from delivery_lane where tenant_id = $1 and id = $2
         and not exists (select from delivery where tenant_id = $1 and lane_id = $2)`,
      [tenantId, id],
    );
  }

  /** Sends a test event once, even if paused, and returns the outcome. The test is not listed as a delivery. */
  async test(
    tenantId: string,
    id: string,
    by: Doer,
  ): Promise<Outcome & Exchange & { payload?: Record<string, unknown> }> {
    const row = await findSubscription(this.#db.reader(tenantId), id);
    const now = this.#clock.now();
    const eventId = newId('oev', now);
    const payload = {
      event: 'svc.test',
      event_id: eventId,
      tenant_id: tenantId,
      subscription_id: id,
      message: 'This is a test event.',
      created_at: new Date(now).toISOString(),
    };
    const message = {
      ...{ eventId, eventType: 'svc.test', deliveryId: deliveryId(id, eventId), payload, timestamp: signedAt(now) },
      appUrl: row.destinationConfig.app_url ?? this.#appUrl,
    };
    const to = readable(() => openDestination(this.#box, row, now));
    const outcome: AttemptOutcome = to
      ? await attempt(this.#egress, { ...to, type: row.destinationType, message })
      : UNREADABLE;
    await this.#db.transaction(tenantId, (em) =>
      this.#record(em, tenantId, 'subscription.tested', id, by, outcome.result),
    );
    return {
      ...outcome,
      ...exchangeOf(outcome),
      ...(kindOf(row.destinationType).readers === 'programs' && { payload }),
    };
  }

  /**
   * Disables a subscription whose destination is gone or has failed for too long; called by the workers. Emits an event
   * and calls `notifyAdmins` in the same transaction. Does nothing if it is already paused.
   */
  async disable(
    tenantId: string,
    id: string,
    reason: string,
    failingSince: Date | null,
    notifyAdmins: (em: EntityManager, subscription: SubscriptionView) => Promise<void>,
  ): Promise<void> {
    await this.#db.transaction(tenantId, async (em, notify) => {
      const row = await em.findOne(Subscription, { id, active: true }, { lockMode: LockMode.PESSIMISTIC_WRITE });
      if (!row) return;
      const now = new Date(this.#clock.now());
      row.active = false;
      row.queuesSince = null;
      row.disabledAt = now;
      row.disabledReason = reason;
      row.updatedAt = now;
      await em.flush();
      await em.execute(
        'update delivery_lane set fence = fence + 1, leased_until = null, due_at = null where tenant_id = ? and id = ?',
        [tenantId, id],
      );
      await notify('destinations', id);
      const stop = { type: 'stop', at: now.getTime(), reason: WAS_DISABLED } as const;
      await stepWaiting(em, this.#db.notices, { tenantId, laneId: id }, stop);
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
      await notifyAdmins(em, this.#view(row));
      await this.#audit(em, tenantId, {
        actor: { type: 'system', id: 'control-plane' },
        action: 'subscription.disabled',
        severity: 'warning',
        target: { type: 'subscription', id },
        reason,
      });
    });
    await this.#stopRest(tenantId, id);
  }

  /**
   * The new address of a patch: undefined if it is unchanged (including the truncated form that the API returns), null if
   * it is any other truncated address.
   */
  #newUrl(row: SubscriptionRow, url: string | undefined): string | null | undefined {
    if (url === undefined || kindOf(row.destinationType).proof !== 'url') return url;
    const { href } = new URL(url);
    if (href === new URL(this.#view(row).url).href) return undefined;
    return href.endsWith(new URL('x:…').pathname) ? null : url;
  }

  /**
   * Whether this changes what signs. The secret that signs already is no new one: a request that was sent twice must not end the
   * secret before it, which receivers may still have. That one then stays as long as it was to, or shorter.
   */
  #rotate(row: SubscriptionRow, secret: string, overlapSeconds = DEFAULT_OVERLAP_SECONDS, now: Date): boolean {
    const { tenantId, id } = row;
    const old = readable(() => this.#box.open(row.secretSealed!, sealPlace(tenantId, id, 'secret')).toString());
    const until = new Date(now.getTime() + overlapSeconds * 1000);
    const again = old === secret;
    if (again && !(row.previousSecretUntil && row.previousSecretUntil > until)) return false;
    const stays = old !== undefined && overlapSeconds > 0;
    row.previousSecretUntil = stays ? until : null;
    if (!stays) row.previousSecretSealed = null;
    else if (!again) row.previousSecretSealed = this.#seal(tenantId, id, 'previous_secret', old);
    row.secretSealed = this.#seal(tenantId, id, 'secret', secret);
    return true;
  }

  /**
   * A name that does not resolve is accepted, because DNS may be temporarily down and each attempt checks again. A name
   * that resolves to a forbidden address is refused, and the attempt is audited.
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
    by: Doer & { reason?: string | undefined },
    detail?: string,
    severity?: 'warning',
  ): Promise<void> {
    return this.#audit(em, tenantId, { ...by, action, target: { type: 'subscription', id }, detail, severity });
  }

  #view(row: SubscriptionRow, failingSince?: Date): SubscriptionView {
    const now = this.#clock.now();
    const bare = { ...row, secretSealed: null, previousSecretSealed: null };
    const { url } = readable(() => openDestination(this.#box, bare, now)) ?? { url: UNREADABLE_URL };
    const until = row.previousSecretUntil;
    return {
      id: row.id,
      url: kindOf(row.destinationType).proof === 'url' ? truncated(url) : url,
      destination_type: row.destinationType,
      event_types: row.eventTypes,
      active: row.active,
      queues: row.queuesSince != null,
      destination_config: row.destinationConfig,
      created_by: row.createdBy,
      owner_id: row.ownerId,
      created_at: row.createdAt.toISOString(),
      updated_at: row.updatedAt.toISOString(),
      ...(until && until.getTime() > now && { previous_secret_until: until.toISOString() }),
      ...(row.disabledAt && { disabled_at: row.disabledAt.toISOString() }),
      ...(row.disabledReason != null && { disabled_reason: row.disabledReason }),
      ...(failingSince && { failing_since: failingSince.toISOString() }),
    };
  }
}

/** Takes the person, the tenant, and the person twice. */
const OWNED = `(owner_id = ? or owner_id in (select k.id from api_key k where k.tenant_id = ? and ${isKeyOf('?')}))`;

/** Whether a person is an admin now, or a key works; an operator always. */
async function isAdmins(em: EntityManager, tenantId: string, id: string): Promise<boolean> {
  const ended = await em.execute<unknown[]>(
    `select 1 from member where tenant_id = ? and id = ? and (removed_at is not null or not 'admin' = any(roles))
     union all select 1 from api_key where tenant_id = ? and id = ? and revoked_at is not null`,
    [tenantId, id, tenantId, id],
  );
  return ended.length === 0;
}

/** What `open` returns; undefined if it fails because the value was changed in the database or sealed with another master key. */
function readable<T>(open: () => T): T | undefined {
  try {
    return open();
  } catch {
    return undefined;
  }
}

/** Shown if the address cannot be decrypted: the subscription can still be viewed and given another one. */
const UNREADABLE_URL = 'https://cannot-be-read.invalid/';

/** Whether it is inactive because a person paused it. */
const isPaused = ({ active, disabledAt }: SubscriptionRow) => !active && disabledAt === null;

const TOO_OLD = `The subscription was paused for ${KEEP_PAUSED_DAYS} days after this was queued.`;
const WAS_PAUSED = 'The subscription was paused before this was delivered.';
const wasPaused = (at: number) => ({ type: 'stop', at, reason: WAS_PAUSED }) as const;
const WAS_DISABLED = 'The subscription was disabled before this was delivered.';

function secretFaults(type: DestinationType, secret: string | undefined, fresh: boolean): Fault[] {
  if (kindOf(type).proof === 'signature') {
    if (secret === EXAMPLE_SECRET)
      return [{ pointer: '/secret', message: 'is that of the examples, which everybody knows' }];
    return fresh && secret === undefined ? [{ pointer: '/secret', message: `a ${type} needs a signing secret` }] : [];
  }
  return secret === undefined ? [] : [{ pointer: '/secret', message: `a ${type} destination takes no secret` }];
}

const hostOf = (url: string) => URL.parse(url)?.host ?? '';

/** Enough of a secret URL to recognize it. */
function truncated(url: string): string {
  const { origin, pathname } = new URL(url);
  return `${origin}${pathname.slice(0, Math.min(12, pathname.length / 3))}…`;
}

export const eventTypes = Object.entries<EventDefinition>(EVENTS).map(([type, { description, forPrograms }]) => ({
  type,
  description,
  for_programs: forPrograms ?? false,
}));
