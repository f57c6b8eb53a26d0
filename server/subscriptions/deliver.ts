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
import { type AttemptOutcome, attempt } from './attempt.ts';
import type { DeliveryRow } from './deliveries.ts';
import { typeOfTarget } from './destinations/index.ts';
import { fanOut, targetPlace } from './fan-out.ts';
import { OutcomeWriter, UNFLUSHED } from './outcomes.ts';
import { openDestination } from './subscription-row.ts';
import type { Subscriptions, SubscriptionView } from './subscriptions.ts';

/** Longer than an attempt and its commit can take. Who dies with a lease leaves the destination to others after this. */
const LEASE_MS = 30_000;
/** With less than this left, a lease is renewed before the next attempt. */
const LEAST_LEASE_MS = 15_000;
/** Deliveries that are read at once for a destination. */
const BATCH = 16;
/** Destinations that one process serves at a time: most of what they do is wait. */
const LANES = 256;
/** Of these, at most so many for destinations whose last attempt failed: those that hang leave room for the others. */
const FAILING_LANES = 128;
const POLL_MS = 1000;
/** Notices that come together are one reason to look. */
const LEAST_PAUSE_MS = 25;
/** A destination that accepted nothing for so long is disabled. */
const DISABLE_AFTER_MS = 5 * 24 * 3600_000;
/**
 * A destination that answered nothing but 404 and 410 for 24 hours is disabled. A little less: the last attempt of a
 * delivery comes 24 hours after it was queued, and its first one, from which this counts, came a moment after that.
 */
const DISABLE_GONE_AFTER_MS = WINDOW_MS - 10 * 60_000;
/** How long deliveries that have ended, and their events, are kept. */
const KEEP_DAYS = 30;

interface Lane {
  tenant_id: string;
  id: string;
  target_sealed: Buffer | null;
  fence: number;
  failing_since: Date | null;
  /** Since when every answer was that there is nothing there. */
  gone_since: Date | null;
  /** By the process's own clock. */
  until: number;
}

/** Where a lane leads, as it is now. */
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
  /** Where the links of cards lead when a subscription does not say. */
  appUrl: string;
  /** The time everywhere here, in SQL too; default: the system's. Processes may differ by some seconds. */
  clock?: Clock | undefined;
  attempts?: Counter<'result'> | undefined;
}

/**
 * Sends what is queued. A destination is served by one lane at a time, whatever process it runs in, so that its events
 * arrive in order and it never gets more than one request at once; destinations do not wait for each other.
 *
 * A lane is claimed by a lease in its row. During a request no transaction is open and no lock held. The outcome of an
 * attempt is stored only while the lane's fence is the one that was claimed: a process that was taken for dead, or whose
 * destination was paused, changed or deleted meanwhile, stores nothing. A process that is killed anywhere loses nothing:
 * what it had not stored is sent again when its lease is over, under the same event id.
 */
export class Deliverer {
  readonly #parts: DeliverParts;
  readonly #serving = new Map<string, { failing: boolean; done: Promise<void> }>();
  readonly #outcomes: OutcomeWriter;
  #wake: () => void = () => undefined;
  #woken = false;

  constructor(parts: DeliverParts) {
    this.#parts = parts;
    this.#outcomes = new OutcomeWriter(parts.db);
  }

  job(): Job {
    return { name: 'deliveries', everySeconds: 1, run: (signal) => this.#run(signal) };
  }

  /** Forgets what has ended long ago: deliveries after 30 days, events that nobody subscribed to after an hour. */
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
    const off = db.notices.on('outbox', () => this.#nudge());
    signal.addEventListener('abort', () => this.#nudge(), { once: true });
    try {
      while (!signal.aborted) {
        this.#woken = false;
        const events = await fanOut(db, box, () => this.#now());
        const claimed = await this.#claim(signal);
        // what is full wakes this when it has room
        await this.#pause(events + claimed > 0 ? LEAST_PAUSE_MS : POLL_MS);
      }
    } finally {
      off();
      await Promise.all([...this.#serving.values()].map(({ done }) => done));
    }
  }

  #now(): number {
    return this.#parts.clock ? this.#parts.clock.now() : Date.now();
  }

  #nudge(): void {
    this.#woken = true;
    this.#wake();
  }

  async #pause(ms: number): Promise<void> {
    const began = performance.now();
    if (!this.#woken) {
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, ms);
        this.#wake = () => {
          clearTimeout(timer);
          resolve();
        };
      });
    }
    const early = LEAST_PAUSE_MS - (performance.now() - began);
    if (early > 0) await new Promise((resolve) => setTimeout(resolve, early));
  }

  /** Takes lanes that are due, and starts to serve them. Resolves to how many. */
  async #claim(signal: AbortSignal): Promise<number> {
    const failing = [...this.#serving.values()].filter((lane) => lane.failing).length;
    const free = LANES - this.#serving.size;
    const healthy = await this.#take(free, false);
    const lanes = [...healthy, ...(await this.#take(Math.min(FAILING_LANES - failing, free - healthy.length), true))];
    for (const lane of lanes) {
      const key = `${lane.tenant_id}/${lane.id}`;
      const done = this.#serve(lane, signal)
        .catch((err) => {
          this.#parts.log.error({ err, tenant: lane.tenant_id, destination: lane.id }, 'a destination was not served');
        })
        .finally(() => {
          this.#serving.delete(key);
          this.#nudge();
        });
      this.#serving.set(key, { failing: lane.failing_since !== null, done });
    }
    return lanes.length;
  }

  async #take(limit: number, failing: boolean): Promise<Lane[]> {
    if (limit <= 0) return [];
    const now = this.#now();
    // due_at is moved along with the lease: what is queued meanwhile moves it back, which the release sees
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

  /** Sends what waits in a lane, one after the other, and lets go of it. */
  async #serve(lane: Lane, signal: AbortSignal): Promise<void> {
    let notBefore: number | undefined;
    const { target, queued } = await this.#load(lane);
    for (const delivery of target ? queued : []) {
      if (signal.aborted || !(await this.#keep(lane))) break;
      // what this program cannot read it does not send either: it could not store what comes of it
      const { status: state, machine_context: context, machine_version: version } = delivery;
      const snapshot = restoreDelivery({ state, context, version });
      const outcome = await this.#attempt(lane, target!, delivery, signal);
      if (!outcome) break;
      this.#parts.attempts?.inc({ result: outcome.result });
      if (!(await this.#store(lane, delivery, snapshot, outcome))) return;
      if (await this.#gaveUp(lane, delivery, outcome)) return;
      const { paceMs } = kindOf(target!.type);
      const pause = Math.max(paceMs, outcome.retryAfter ?? 0);
      if (pause > 0) {
        notBefore = this.#now() + pause;
        break;
      }
      // it takes its next turn among those that fail, whose lanes are fewer
      if (!outcome.delivered) break;
    }
    await this.#release(lane, notBefore);
    if (notBefore !== undefined && notBefore - this.#now() < POLL_MS) {
      setTimeout(() => this.#nudge(), notBefore - this.#now()).unref();
    }
  }

  /** What waits in the lane, in the order of the events, and where it goes; no target: the subscription takes nothing. */
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
        // a process that died while it paused the subscription has left these
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

  /** Renews the lease when little of it is left; false when it is lost. */
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

  /** Undefined when the process is stopping: what came of it is then not known, and it is sent again. */
  async #attempt(
    lane: Lane,
    target: Target,
    delivery: Queued,
    signal: AbortSignal,
  ): Promise<AttemptOutcome | undefined> {
    // a target that an agent's proxy named learns nothing of the others
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

  /** Stores the outcome and the machine's next state; false when the lane is not ours any more, and nothing is stored. */
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

  /** After a failure: whether nothing more may be sent there. */
  async #gaveUp(lane: Lane, delivery: Queued, outcome: AttemptOutcome): Promise<boolean> {
    if (outcome.delivered) return false;
    const { audit, db, log, subscriptions } = this.#parts;
    const { tenant_id: tenantId, id } = lane;
    if (lane.target_sealed) {
      if (delivery.status !== 'failed') return false;
      log.warn({ tenant: tenantId, destination: id, result: outcome.result }, 'a notify target of a hold was not told');
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
      ? `There was nothing at this address for 24 hours. Last: ${outcome.reason}`
      : `Nothing was accepted there for five days. Last: ${outcome.reason}`;
    await subscriptions.disable(tenantId, id, reason, since, (em, subscription) =>
      this.#tellAdmins(em, tenantId, subscription, reason),
    );
    log.warn({ tenant: tenantId, subscription: id, result: outcome.result }, 'a subscription was disabled');
    return true;
  }

  async #tellAdmins(
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
      `Nothing is sent to ${where} any more (subscription ${subscription.id}, ${subscription.destination_type}).`,
      `Why: ${reason}`,
      `When the destination works again, resume the subscription: ${link}`,
    ];
    const subject = `A subscription was disabled: ${where}`;
    const body = page(subject, html`${text.map((line) => html`<p>${line}</p>`)}`);
    for (const { email } of admins) {
      const letter = { to: email, subject, text: `${text.join('\n\n')}\n`, html: body };
      await this.#parts.queueMail(em, tenantId, letter, until);
    }
  }

  /** Lets go of the lane, due again when the next of its deliveries is. Does nothing when it is not ours any more. */
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
