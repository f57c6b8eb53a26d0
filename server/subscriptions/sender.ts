import type { Counter } from 'prom-client';
import { type DeliveryEvent, type DeliverySnapshot, restoreDelivery, stepDelivery } from '../../machines/delivery.ts';
import { kindOf } from '../domain/destinations.ts';
import type { Egress } from '../lib/egress.ts';
import { type AttemptOutcome, attempt, UNREADABLE } from './attempt.ts';
import { deliveryId } from './delivery-id.ts';
import type { DueWork, Queued, Target } from './due-work.ts';
import { type GiveUpParts, gaveUp } from './give-up.ts';
import type { Lane, LaneWrites } from './lane-writes.ts';
import { type LaneClaims, LEASE_MS } from './lanes.ts';
import { type StoredOutcome, storedOf } from './outcomes.ts';
import { signedAt } from './sent.ts';

/** A lease with less than this left is renewed before the next attempt. */
const LEAST_LEASE_MS = 15_000;
/** Deliveries loaded at once for a destination at first. */
const BATCH = 32;
/** The most loaded at once as it keeps accepting them. */
const MOST = 128;
/** After this long, due deliveries are looked up from the first event again, with the subscription's current settings. */
const FRESH_MS = 5000;
/** Accepted deliveries per destination whose outcomes may still be on their way to the database when the next one is sent. */
const AHEAD = 16;

export interface SenderParts extends GiveUpParts {
  egress: Egress;
  claims: LaneClaims;
  writes: LaneWrites;
  due: DueWork;
  attempts: Counter<'result'> | undefined;
}

/**
 * Sends a claimed lane's due deliveries. No transaction is open and no lock is held during a request. The outcome of an attempt
 * is stored only if the lane's fence is still the claimed one: a process that lost its lease, or whose destination was paused,
 * changed or deleted in the meantime, stores nothing. A crash loses nothing: an attempt whose outcome was not stored is repeated
 * after the lease expires, with the same event id.
 *
 * After an accepted delivery, the next one is sent while the outcome is being stored, for at most AHEAD of them and only while
 * notices reach this process: anyone who pauses, changes or deletes a destination waits until every process has heard of it. A
 * process that gets no notices sends the next delivery only when the previous outcome is stored, and checks before each one that
 * it still owns the lane: what it loaded a while ago may be for a destination that has been paused since.
 */
export class Sender {
  readonly #parts: SenderParts;

  constructor(parts: SenderParts) {
    this.#parts = parts;
  }

  /**
   * Sends the due deliveries of a lane one by one until there are no more, then releases the lane. Resolves to the time until which
   * the destination is to be left alone, if it is. Rejects if an outcome could not be stored: the lane's lease then expires.
   */
  async serve(lane: Lane, signal: AbortSignal): Promise<number | undefined> {
    const { db, claims, writes, due } = this.#parts;
    let notBefore: number | undefined;
    let idle = false;
    let loadedAt = performance.now();
    const load = (after: string, count: number) => ({ work: due.load(lane, after, count), count });
    // a failing destination is tried with one
    let loading = load('', lane.failing_since ? 1 : BATCH);
    for (let more = true; more; ) {
      const { count } = loading;
      const work = await loading.work;
      if (!work) {
        await writes.allStored(lane);
        return undefined;
      }
      const { held, queued } = work;
      const target = due.target(lane, held);
      if (!target) {
        idle = true;
        break;
      }
      more = queued.length === count;
      let next: typeof loading | undefined;
      for (const [n, delivery] of queued.entries()) {
        if (n > 0 && performance.now() - loadedAt > FRESH_MS) {
          more = true;
          next = undefined;
          break;
        }
        const ours = (await this.#keep(lane)) && (db.notices.healthy || (await claims.isOurs(lane)));
        const may = ours && !signal.aborted && !lane.over;
        const then = may ? await this.#send(lane, target, delivery, signal) : 'enough';
        if (then !== 'more') {
          if (then !== 'enough') notBefore = then;
          more = false;
          break;
        }
        // The next ones are loaded while the second half is sent. They exclude deliveries whose outcomes are being stored, which
        // come earlier.
        if (more && n === count >> 1) {
          next = load(queued.at(-1)!.event_id, Math.min(Math.max(BATCH, count * 2), MOST));
          next.work.catch(() => undefined);
        }
      }
      if (!more) break;
      if (!next) {
        await writes.allStored(lane);
        loadedAt = performance.now();
      }
      loading = next ?? load('', BATCH);
    }
    await writes.allStored(lane);
    await writes.release({ lane, notBefore, idle });
    return notBefore;
  }

  /**
   * Makes one attempt and has its outcome stored. Resolves to what comes next for the lane: more deliveries, enough for
   * now, or a pause until a time.
   */
  async #send(lane: Lane, target: Target, delivery: Queued, signal: AbortSignal): Promise<'more' | 'enough' | number> {
    const { db, writes, attempts, now } = this.#parts;
    // restored before sending: if this version cannot read the state, it could not store the outcome
    const { status: state, machine_context: context, machine_version: version } = delivery;
    const snapshot = restoreDelivery({ state, context, version });
    const began = now();
    const outcome = await this.#attempt(lane, target, delivery, began, signal);
    if (!outcome) return 'enough';
    attempts?.inc({ result: outcome.result });
    this.#store(lane, delivery, snapshot, outcome, began);
    const { paceMs } = kindOf(target.type);
    const restMs = Math.max(paceMs, outcome.retryAfter ?? 0);
    if (outcome.delivered && restMs === 0) {
      // they are stored in order
      const [oldest] = lane.storing;
      if (lane.storing.size >= AHEAD) await oldest;
      if (db.notices.healthy) return 'more';
    }
    await writes.allStored(lane);
    if (lane.over || (await gaveUp(this.#parts, lane, delivery, outcome))) return 'enough';
    if (restMs > 0) return now() + restMs;
    // the lane continues among the failing ones, which have a lower limit
    return outcome.delivered ? 'more' : 'enough';
  }

  /** Renews a lease that is about to expire, when all outcomes so far are stored; false if it was lost. */
  async #keep(lane: Lane): Promise<boolean> {
    const { claims, writes } = this.#parts;
    const now = this.#parts.now();
    if (lane.until - now >= LEAST_LEASE_MS) return true;
    await writes.allStored(lane);
    const renewed = await claims.renew(lane, now + LEASE_MS);
    lane.until = now + LEASE_MS;
    return renewed;
  }

  /** Undefined if the process is stopping: the outcome is then unknown, and the delivery is sent again. */
  async #attempt(
    lane: Lane,
    target: Target,
    delivery: Queued,
    began: number,
    signal: AbortSignal,
  ): Promise<AttemptOutcome | undefined> {
    const { type, url, secrets, appUrl } = target;
    if (url === null) return UNREADABLE;
    try {
      return await attempt(this.#parts.egress, {
        ...{ type, url, secrets },
        signal,
        keep: `${lane.tenant_id}/${lane.id}`,
        message: {
          eventId: delivery.event_id,
          eventType: delivery.event_type,
          deliveryId: deliveryId(lane.id, delivery.event_id),
          payload: delivery.payload,
          timestamp: signedAt(began),
          appUrl,
        },
      });
    } catch (error) {
      if (signal.aborted) return undefined;
      throw error;
    }
  }

  /** Starts storing the outcome and the machine's next state. If that is no longer possible, the lane is over. */
  #store(lane: Lane, delivery: Queued, snapshot: DeliverySnapshot, outcome: AttemptOutcome, began: number): void {
    const { db, writes } = this.#parts;
    const now = this.#parts.now();
    const event: DeliveryEvent = {
      type: 'attempted',
      at: now,
      result: outcome.result,
      jitter: Math.random(),
      ...(outcome.retryAfter !== undefined && { retryAfter: outcome.retryAfter }),
    };
    const [{ value: status, context }] = stepDelivery(snapshot, event);
    const at = new Date(now);
    lane.failing_since = outcome.delivered ? null : (lane.failing_since ?? at);
    lane.gone_since = outcome.gone ? (lane.gone_since ?? at) : null;
    delivery.status = status;
    const stored: StoredOutcome = {
      tenant_id: lane.tenant_id,
      lane_id: lane.id,
      fence: lane.fence,
      failing_since: lane.failing_since,
      gone_since: lane.gone_since,
      event_id: delivery.event_id,
      status,
      machine_context: context,
      http_status: outcome.http_status,
      result: outcome.result,
      failure_reason: outcome.delivered ? null : outcome.reason,
      attempted_at: new Date(began),
      duration_ms: outcome.duration_ms,
      ...storedOf(outcome),
    };
    writes.store(lane, stored, () => {
      const id = deliveryId(lane.id, delivery.event_id);
      db.notices.tellHere('delivery', lane.tenant_id, id, [{ event, state: status, context }]);
    });
  }
}
