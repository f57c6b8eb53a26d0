import { type EntityManager, LockMode } from '@mikro-orm/postgresql';
import { across } from '../../db/citus.ts';
import { Delivery, Subscription } from '../../db/entities/index.ts';
import { type Database, type WriteAudit, wakeOutbox } from '../../db/index.ts';
import type { Doer } from '../domain/audit.ts';
import { AppError } from '../errors.ts';
import type { Job } from '../jobs/jobs.ts';
import type { Clock } from '../lib/clock.ts';
import { each } from '../lib/each.ts';
import { firstId } from '../lib/ids.ts';
import { LOCKED, takeStep } from './steps.ts';
import { findSubscription, lockSubscription, noSubscription } from './subscription-row.ts';

/** The most deliveries that one request sends again. */
export const MOST_RESENT = 10_000;
/** Deliveries that one transaction queues. */
const BATCH = 500;
/** How long before its delivery an event may have happened: much longer than it waits even when no server is running properly. */
const LATENESS_MS = 24 * 3600_000;
/** Deliveries queued since then are for events after this id. The index is ordered by event only. */
const eventsSince = (since: Date) => firstId('oev', Math.max(0, since.getTime() - LATENESS_MS));

/** A request to send failed deliveries again, as stored in the subscription's lane. */
interface Stored {
  since: string;
  asked_at: string;
  asked_by: string;
  total: number;
  done: number;
  /** The remaining deliveries are for events after this one. */
  after: string;
  ended_at: string | null;
}

export type ResendView = Omit<Stored, 'after'>;

/**
 * Sends again all failed deliveries of a subscription that were queued since a given time. A job queues them in batches, in the
 * order of their events, each with a new window of 24 hours. Progress is stored with each batch: if a process dies, another takes
 * over, and no delivery is queued twice by the same request.
 */
export class Resends {
  readonly #db: Database;
  readonly #clock: Clock;
  readonly #audit: WriteAudit;

  constructor(parts: { db: Database; clock: Clock; audit: WriteAudit }) {
    this.#db = parts.db;
    this.#clock = parts.clock;
    this.#audit = parts.audit;
  }

  /** How many would be sent again, MOST_RESENT at most, and the last request. */
  async get(tenantId: string, id: string, since: Date): Promise<{ failed: number; resend: ResendView | null }> {
    await findSubscription(this.#db.reader(tenantId), id);
    const [lane] = await this.#db.query<{ resend: Stored | null; failed: number }>(
      tenantId,
      `select l.resend, (select count(*)::int from (
         select from delivery where tenant_id = $1 and lane_id = $2 and status = 'failed' and created_at >= $3 and event_id > $4
         limit ${MOST_RESENT}) d) as failed
       from delivery_lane l where l.tenant_id = $1 and l.id = $2`,
      [tenantId, id, since, eventsSince(since)],
    );
    if (!lane) throw noSubscription();
    return { failed: lane.failed, resend: lane.resend && viewOf(lane.resend) };
  }

  /**
   * Starts to send failed deliveries again. While a request with the same `since` is in progress, it resolves to that one and
   * starts nothing; CONFLICT while one with another `since` is. INVALID_STATUS unless the subscription is active.
   */
  async begin(tenantId: string, id: string, since: Date, by: Doer): Promise<ResendView> {
    return this.#db.transaction(tenantId, async (em) => {
      const { active } = await lockSubscription(em, id);
      const under = await storedOf(em, tenantId, id);
      if (under && under.ended_at === null) {
        if (Date.parse(under.since) === since.getTime()) return viewOf(under);
        throw new AppError('CONFLICT', 'failed deliveries of this subscription are being sent again already');
      }
      if (!active) throw new AppError('INVALID_STATUS', 'the subscription is paused; resume it first');
      const now = new Date(this.#clock.now()).toISOString();
      const total = await countFailed(em, tenantId, id, since);
      const stored: Stored = {
        ...{ since: since.toISOString(), asked_at: now, asked_by: by.actor.id, total, done: 0 },
        after: eventsSince(since),
        ended_at: total === 0 ? now : null,
      };
      await store(em, tenantId, id, stored);
      await this.#audit(em, tenantId, {
        ...by,
        action: 'subscription.resent',
        target: { type: 'subscription', id },
        detail: `${total} failed since ${stored.since}`,
      });
      return viewOf(stored);
    });
  }

  job(): Job {
    return { name: 'resends', everySeconds: 1, run: (signal) => this.run(signal) };
  }

  /** Works on the pending requests until there is nothing left. */
  async run(signal: AbortSignal): Promise<void> {
    const rows = await across<{ tenant_id: string; id: string }>(
      this.#db,
      `select l.tenant_id, l.id from delivery_lane l join subscription s on s.tenant_id = l.tenant_id and s.id = l.id
       where l.resend is not null and l.resend->>'ended_at' is null
         and (s.active or s.disabled_at is not null)`,
      [],
    );
    await each(rows, signal, async ({ tenant_id: tenantId, id }) => {
      while (!signal.aborted && (await this.step(tenantId, id)));
    });
  }

  /** Queues the next batch; false when there is no more to do now. */
  async step(tenantId: string, id: string): Promise<boolean> {
    return this.#db.transactionNear(tenantId, async (em) => {
      const subscription = await em.findOne(Subscription, { id }, { lockMode: LockMode.PESSIMISTIC_WRITE });
      const stored = await storedOf(em, tenantId, id);
      if (!subscription || !stored || stored.ended_at !== null) return false;
      // queuing while paused would exceed what a paused subscription keeps; what failed when it was disabled needs another
      // request
      if (!subscription.active && subscription.disabledAt === null) return false;
      const now = new Date(this.#clock.now());
      const createdAt = { $gte: new Date(stored.since), $lte: new Date(stored.asked_at) };
      const rows = subscription.active
        ? await em.find(
            Delivery,
            { laneId: id, status: 'failed', createdAt, eventId: { $gt: stored.after } },
            { ...LOCKED, orderBy: { eventId: 'asc' }, limit: Math.min(BATCH, stored.total - stored.done) },
          )
        : [];
      await takeStep(em, this.#db.notices, rows, { type: 'redeliver', at: now.getTime() });
      const done = stored.done + rows.length;
      const ended = rows.length === 0 || done >= stored.total;
      const after = rows.at(-1)?.eventId ?? stored.after;
      await store(em, tenantId, id, { ...stored, done, after, ended_at: ended ? now.toISOString() : null });
      if (rows.length > 0) {
        await em.execute(
          `update delivery_lane set due_at = least(coalesce(due_at, ?::timestamptz), ?::timestamptz)
           where tenant_id = ? and id = ?`,
          [now, now, tenantId, id],
        );
        await wakeOutbox(em, tenantId);
      }
      return !ended;
    });
  }
}

/** Locks the lane before its deliveries, as the workers do. */
async function storedOf(em: EntityManager, tenantId: string, id: string): Promise<Stored | null> {
  const [lane] = await em.execute<{ resend: Stored | null }[]>(
    'select resend from delivery_lane where tenant_id = ? and id = ? for update',
    [tenantId, id],
  );
  return lane?.resend ?? null;
}

async function store(em: EntityManager, tenantId: string, id: string, stored: Stored): Promise<void> {
  await em.execute('update delivery_lane set resend = ?::jsonb where tenant_id = ? and id = ?', [
    JSON.stringify(stored),
    tenantId,
    id,
  ]);
}

async function countFailed(em: EntityManager, tenantId: string, id: string, since: Date): Promise<number> {
  const [row] = await em.execute<{ count: number }[]>(
    `select count(*)::int as count from (
       select from delivery where tenant_id = ? and lane_id = ? and status = 'failed' and created_at >= ?
         and event_id > ? limit ${MOST_RESENT}) d`,
    [tenantId, id, since, eventsSince(since)],
  );
  return row!.count;
}

const viewOf = ({ after: _, ...view }: Stored): ResendView => view;
