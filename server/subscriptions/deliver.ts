import type { EntityManager } from '@mikro-orm/postgresql';
import type { Counter } from 'prom-client';
import { type DestinationConfig, Member } from '../../db/entities/index.ts';
import type { Database, WriteAudit } from '../../db/index.ts';
import {
  type DeliveryEvent,
  type DeliverySnapshot,
  restoreDelivery,
  stepDelivery,
  WINDOW_MS,
} from '../../machines/delivery.ts';
import { type DestinationType, kindOf } from '../domain/destinations.ts';
import type { Job } from '../jobs/jobs.ts';
import type { Clock } from '../lib/clock.ts';
import type { SecretBox } from '../lib/crypto.ts';
import type { Egress } from '../lib/egress.ts';
import type { Log } from '../lib/log.ts';
import type { QueueMail } from '../lib/mail.ts';
import { html, page } from '../lib/page.ts';
import { pause, Wake } from '../lib/pause.ts';
import { type AttemptOutcome, attempt } from './attempt.ts';
import type { DeliveryRow } from './deliveries.ts';
import { typeOfTarget } from './destinations/index.ts';
import { fanOut, targetPlace } from './fan-out.ts';
import { OutcomeWriter, UNFLUSHED } from './outcomes.ts';
import { openDestination } from './subscription-row.ts';
import type { Subscriptions, SubscriptionView } from './subscriptions.ts';

/** Longer than an attempt and its commit can take. After a crash, other processes take over when the lease expires. */
const LEASE_MS = 30_000;
/** A lease with less than this left is renewed before the next attempt. */
const LEAST_LEASE_MS = 15_000;
/** Deliveries loaded per query for a destination. */
const BATCH = 16;
/** Destinations that one process serves concurrently; they spend most of their time waiting. */
const LANES = 256;
/** Of these, the maximum for destinations whose last attempt failed, so that hanging ones leave room for the others. */
const FAILING_LANES = 128;
const POLL_MS = 1000;
/** Coalesces notices that arrive together. */
const LEAST_PAUSE_MS = 25;
/** A destination that has accepted nothing for this long is disabled. */
const DISABLE_AFTER_MS = 5 * 24 * 3600_000;
/**
 * A destination that answered only 404 and 410 for 24 hours is disabled. The value is slightly less, because the time
 * counts from the first attempt, which comes shortly after queuing, and the last attempt is 24 hours after queuing.
 */
const DISABLE_GONE_AFTER_MS = WINDOW_MS - 10 * 60_000;
/** How long finished deliveries and their events are kept. */
const KEEP_DAYS = 30;

interface Lane {
  tenant_id: string;
  id: string;
  target_sealed: Buffer | null;
  fence: number;
  failing_since: Date | null;
  /** When the current run of 404 and 410 answers began. */
  gone_since: Date | null;
  /** The end of the lease, by this process's clock. */
  until: number;
}

/** The current destination of a lane. */
interface Target {
  type: DestinationType;
  url: string;
  secrets: string[];
  appUrl: string;
}

interface Queued extends DeliveryRow {
  payload: Record<string, unknown>;
}

export interface DeliverParts {
  db: Database;
  box: SecretBox;
  egress: Egress;
  log: Log;
  audit: WriteAudit;
  subscriptions: Subscriptions;
  queueMail: QueueMail;
  /** The base of links in chat cards, unless the subscription sets its own. */
  appUrl: string;
  /** Used for all times, also in SQL; the system clock by default. Processes may differ by some seconds. */
  clock?: Clock | undefined;
  attempts?: Counter<'result'> | undefined;
}

/**
 * Sends queued deliveries. Each destination has one lane, which only one process serves at a time, so that events arrive
 * in order and a destination never gets concurrent requests. Destinations do not wait for each other.
 *
 * A lane is claimed by a lease in its row. No transaction is open and no lock is held during a request. The outcome of an
 * attempt is stored only if the lane's fence is still the claimed one: a process that lost its lease, or whose
 * destination was paused, changed or deleted in the meantime, stores nothing. A crash loses nothing: an attempt whose
 * outcome was not stored is repeated after the lease expires, with the same event id.
 */
export class Deliverer {
  readonly #parts: DeliverParts;
  readonly #serving = new Map<string, { failing: boolean; done: Promise<void> }>();
  readonly #outcomes: OutcomeWriter;
  readonly #work = new Wake();

  constructor(parts: DeliverParts) {
    this.#parts = parts;
    this.#outcomes = new OutcomeWriter(parts.db);
  }

  job(): Job {
    return { name: 'deliveries', everySeconds: 1, run: (signal) => this.#run(signal) };
  }

  /** Deletes finished deliveries after 30 days, and events without deliveries after an hour. */
  async forget(): Promise<void> {
    const { db } = this.#parts;
    const before = new Date(this.#now() - KEEP_DAYS * 24 * 3600_000);
    await db.owner.query(`delete from delivery where status <> 'retrying' and created_at < $1`, [before]);
    await db.owner.query(
      `delete from event_outbox e where fanned_out_at is not null and created_at < $1 and not exists (
         select 1 from delivery d where d.tenant_id = e.tenant_id and d.event_id = e.id)`,
      [new Date(this.#now() - 3600_000)],
    );
    await db.owner.query(
      `delete from delivery_lane l where target_sealed is not null and due_at is null and leased_until is null and not exists (
         select 1 from delivery d where d.tenant_id = l.tenant_id and d.lane_id = l.id)`,
    );
  }

  async #run(signal: AbortSignal): Promise<void> {
    const { db, box } = this.#parts;
    const off = db.notices.on('outbox', () => this.#work.call());
    try {
      while (!signal.aborted) {
        this.#work.clear();
        const events = await fanOut(db, box, () => this.#now());
        const claimed = await this.#claim(signal);
        await pause(LEAST_PAUSE_MS, signal);
        // with all lanes taken, the first that is free again ends this
        if (events + claimed === 0) await this.#work.pause(POLL_MS - LEAST_PAUSE_MS, signal);
      }
    } finally {
      off();
      await Promise.all([...this.#serving.values()].map(({ done }) => done));
    }
  }

  #now(): number {
    return this.#parts.clock ? this.#parts.clock.now() : Date.now();
  }

  /** Claims due lanes and starts serving them. Resolves to their number. */
  async #claim(signal: AbortSignal): Promise<number> {
    const failing = [...this.#serving.values()].filter((lane) => lane.failing).length;
    const free = LANES - this.#serving.size;
    const healthy = await this.#take(free, false);
    const lanes = [...healthy, ...(await this.#take(Math.min(FAILING_LANES - failing, free - healthy.length), true))];
    for (const lane of lanes) {
      const key = `${lane.tenant_id}/${lane.id}`;
      const done = this.#serve(lane, signal)
        .catch((err) => {
          this.#parts.log.error({ err, tenant: lane.tenant_id, destination: lane.id }, 'serving a destination failed');
        })
        .finally(() => {
          this.#serving.delete(key);
          this.#work.call();
        });
      this.#serving.set(key, { failing: lane.failing_since !== null, done });
    }
    return lanes.length;
  }

  async #take(limit: number, failing: boolean): Promise<Lane[]> {
    if (limit <= 0) return [];
    const now = this.#now();
    // due_at moves with the lease: a delivery queued in the meantime moves it back, which the release notices
    const { rows } = await this.#parts.db.owner.query<Omit<Lane, 'until'>>(
      `update delivery_lane l set fence = l.fence + 1, leased_until = $2, due_at = $2
       from (select tenant_id, id from delivery_lane
             where due_at <= $1 and (not_before is null or not_before <= $1)
               and (leased_until is null or leased_until <= $1) and (failing_since is not null) = $4
             order by due_at limit $3 for no key update skip locked) due
       where l.tenant_id = due.tenant_id and l.id = due.id
       returning l.tenant_id, l.id, l.target_sealed, l.fence, l.failing_since, l.gone_since`,
      [new Date(now), new Date(now + LEASE_MS), limit, failing],
    );
    return rows.map((row) => ({ ...row, until: now + LEASE_MS }));
  }

  /** Sends the due deliveries of a lane one by one, then releases the lane. */
  async #serve(lane: Lane, signal: AbortSignal): Promise<void> {
    let notBefore: number | undefined;
    const { target, queued } = await this.#load(lane);
    for (const delivery of target ? queued : []) {
      if (signal.aborted || !(await this.#keep(lane))) break;
      // restored before sending: if this version cannot read the state, it could not store the outcome
      const { status: state, machine_context: context, machine_version: version } = delivery;
      const snapshot = restoreDelivery({ state, context, version });
      const outcome = await this.#attempt(lane, target!, delivery, signal);
      if (!outcome) break;
      this.#parts.attempts?.inc({ result: outcome.result });
      if (!(await this.#store(lane, delivery, snapshot, outcome))) return;
      if (await this.#gaveUp(lane, delivery, outcome)) return;
      const { paceMs } = kindOf(target!.type);
      const restMs = Math.max(paceMs, outcome.retryAfter ?? 0);
      if (restMs > 0) {
        notBefore = this.#now() + restMs;
        break;
      }
      // the lane continues among the failing ones, which have a lower limit
      if (!outcome.delivered) break;
    }
    await this.#release(lane, notBefore);
    if (notBefore !== undefined && notBefore - this.#now() < POLL_MS) {
      setTimeout(() => this.#work.call(), notBefore - this.#now()).unref();
    }
  }

  /** The due deliveries of the lane in event order, and its target; without one the subscription is inactive. */
  async #load(lane: Lane): Promise<{ target: Target | undefined; queued: Queued[] }> {
    const { db, box, appUrl } = this.#parts;
    const key = [lane.tenant_id, lane.id];
    const now = this.#now();
    let target: Target | undefined;
    if (lane.target_sealed) {
      const url = box.open(lane.target_sealed, targetPlace(lane.tenant_id, lane.id)).toString();
      target = { type: typeOfTarget(url), url, secrets: [], appUrl };
    } else {
      const { rows } = await db.owner.query<{
        destination_type: DestinationType;
        url_sealed: Buffer;
        secret_sealed: Buffer | null;
        previous_secret_sealed: Buffer | null;
        previous_secret_until: Date | null;
        destination_config: DestinationConfig;
      }>('select * from subscription where tenant_id = $1 and id = $2 and active', key);
      const [row] = rows;
      if (!row) {
        // left over when a process died while pausing the subscription
        await this.#parts.subscriptions.stopRest(lane.tenant_id, lane.id);
        return { target, queued: [] };
      }
      const sealed = {
        tenantId: lane.tenant_id,
        id: lane.id,
        urlSealed: row.url_sealed,
        secretSealed: row.secret_sealed,
        previousSecretSealed: row.previous_secret_sealed,
        previousSecretUntil: row.previous_secret_until,
      };
      const { destination_type: type, destination_config } = row;
      target = { type, ...openDestination(box, sealed, now), appUrl: destination_config.app_url ?? appUrl };
    }
    const { rows: queued } = await db.owner.query<Queued>({
      name: 'load_deliveries',
      text: `select d.*, e.payload from delivery d join event_outbox e on e.tenant_id = d.tenant_id and e.id = d.event_id
       where d.tenant_id = $1 and d.lane_id = $2 and d.status = 'retrying' and d.next_attempt_at <= $3
       order by d.event_id limit $4`,
      values: [...key, new Date(now), BATCH],
    });
    return { target, queued };
  }

  /** Renews a lease that is about to expire; false if it was lost. */
  async #keep(lane: Lane): Promise<boolean> {
    const now = this.#now();
    if (lane.until - now >= LEAST_LEASE_MS) return true;
    const { rowCount } = await this.#parts.db.owner.query(
      `update delivery_lane set leased_until = $4, due_at = case when due_at = leased_until then $4 else due_at end
       where tenant_id = $1 and id = $2 and fence = $3`,
      [lane.tenant_id, lane.id, lane.fence, new Date(now + LEASE_MS)],
    );
    lane.until = now + LEASE_MS;
    return rowCount === 1;
  }

  /** Undefined if the process is stopping: the outcome is then unknown, and the delivery is sent again. */
  async #attempt(
    lane: Lane,
    target: Target,
    delivery: Queued,
    signal: AbortSignal,
  ): Promise<AttemptOutcome | undefined> {
    // a notify target must not learn about the others
    const { notify_targets, ...bare } = delivery.payload;
    try {
      return await attempt(this.#parts.egress, {
        ...target,
        signal,
        message: {
          eventId: delivery.event_id,
          eventType: delivery.event_type,
          deliveryId: delivery.id,
          payload: lane.target_sealed ? bare : delivery.payload,
          timestamp: Math.floor(this.#now() / 1000),
          appUrl: target.appUrl,
        },
      });
    } catch (error) {
      if (signal.aborted) return undefined;
      throw error;
    }
  }

  /** Stores the outcome and the machine's next state; false, and nothing stored, if the lane is no longer ours. */
  async #store(lane: Lane, delivery: Queued, snapshot: DeliverySnapshot, outcome: AttemptOutcome): Promise<boolean> {
    const now = this.#now();
    const event: DeliveryEvent = {
      type: 'attempted',
      at: now,
      result: outcome.result,
      jitter: Math.random(),
      ...(outcome.retryAfter !== undefined && { retryAfter: outcome.retryAfter }),
    };
    const [next] = stepDelivery(snapshot, event);
    const at = new Date(now);
    const failingSince = outcome.delivered ? null : (lane.failing_since ?? at);
    const goneSince = outcome.gone ? (lane.gone_since ?? at) : null;
    const { context } = next;
    const stored = await this.#outcomes.add({
      tenant_id: lane.tenant_id,
      lane_id: lane.id,
      fence: lane.fence,
      failing_since: failingSince,
      gone_since: goneSince,
      id: delivery.id,
      status: next.value,
      machine_context: context,
      attempts: context.attempts,
      http_status: outcome.http_status,
      result: outcome.result,
      failure_reason: outcome.delivered ? null : outcome.reason,
      next_attempt_at: context.nextAt === null ? null : new Date(context.nextAt),
      last_attempt_at: at,
      delivered_at: outcome.delivered ? at : null,
      duration_ms: outcome.duration_ms,
    });
    if (stored) {
      lane.failing_since = failingSince;
      lane.gone_since = goneSince;
      delivery.status = next.value;
      this.#parts.db.notices.tellHere('delivery', lane.tenant_id, delivery.id, [{ event, state: next.value, context }]);
    }
    return stored;
  }

  /** Handles a failed attempt; true if nothing more may be sent there. */
  async #gaveUp(lane: Lane, delivery: Queued, outcome: AttemptOutcome): Promise<boolean> {
    if (outcome.delivered) return false;
    const { audit, db, log, subscriptions } = this.#parts;
    const { tenant_id: tenantId, id } = lane;
    if (lane.target_sealed) {
      if (delivery.status !== 'failed') return false;
      log.warn(
        { tenant: tenantId, destination: id, result: outcome.result },
        'a notify target of a hold could not be notified',
      );
      await db.transaction(tenantId, (em) =>
        audit(em, tenantId, {
          actor: { type: 'system', id: 'control-plane' },
          action: 'escrow.notify_failed',
          severity: 'warning',
          target: { type: 'escrow', id: String(delivery.payload.escrow_id) },
          detail: `${delivery.event_type}: ${outcome.result}`,
          reason: outcome.reason,
        }),
      );
      return false;
    }
    const lasted = (since: Date | null, ms: number) => since !== null && this.#now() - since.getTime() >= ms;
    const gone = lasted(lane.gone_since, DISABLE_GONE_AFTER_MS);
    if (!gone && !lasted(lane.failing_since, DISABLE_AFTER_MS)) return false;
    const since = lane.failing_since;
    const reason = gone
      ? `The address did not exist for 24 hours. Last error: ${outcome.reason}`
      : `The destination accepted nothing for five days. Last error: ${outcome.reason}`;
    await subscriptions.disable(tenantId, id, reason, since, (em, subscription) =>
      this.#mailAdmins(em, tenantId, subscription, reason),
    );
    log.warn({ tenant: tenantId, subscription: id, result: outcome.result }, 'a subscription was disabled');
    return true;
  }

  async #mailAdmins(
    em: EntityManager,
    tenantId: string,
    subscription: SubscriptionView,
    reason: string,
  ): Promise<void> {
    const admins = await em.find(Member, { roles: { $contains: ['admin'] }, removedAt: null });
    const until = new Date(this.#now() + 7 * 24 * 3600_000);
    const where = new URL(subscription.url).host;
    const link = `${this.#parts.appUrl}/subscriptions`;
    const text = [
      `Events are no longer sent to ${where} (subscription ${subscription.id}, ${subscription.destination_type}).`,
      `Reason: ${reason}`,
      `When the destination works again, resume the subscription: ${link}`,
    ];
    const subject = `A subscription was disabled: ${where}`;
    const body = page(subject, html`${text.map((line) => html`<p>${line}</p>`)}`);
    for (const { email } of admins) {
      const letter = { to: email, subject, text: `${text.join('\n\n')}\n`, html: body };
      await this.#parts.queueMail(em, tenantId, letter, until);
    }
  }

  /** Releases the lane until its next delivery is due. Does nothing if the lane is no longer ours. */
  async #release(lane: Lane, notBefore: number | undefined): Promise<void> {
    await this.#parts.db.owner.query({
      name: 'release_lane',
      text: `update delivery_lane l set leased_until = null, not_before = $4, due_at = (
         select case when l.due_at = l.leased_until then next.at else least(l.due_at, next.at) end
         from (select min(d.next_attempt_at) as at from delivery d
               where d.tenant_id = $1 and d.lane_id = $2 and d.status = 'retrying') next)
       where tenant_id = $1 and id = $2 and fence = $3 and ${UNFLUSHED}`,
      values: [lane.tenant_id, lane.id, lane.fence, notBefore === undefined ? null : new Date(notBefore)],
    });
  }
}
