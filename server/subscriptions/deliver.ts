import type { EntityManager } from '@mikro-orm/postgresql';
import type { Counter } from 'prom-client';
import { across, apart, groupsApart, type Only, writable } from '../../db/citus.ts';
import { type DestinationConfig, Member } from '../../db/entities/index.ts';
import { deleteInBatches } from '../../db/forget.ts';
import type { Database, WriteAudit } from '../../db/index.ts';
import {
  type DeliveryEvent,
  type DeliverySnapshot,
  restoreDelivery,
  stepDelivery,
  WINDOW_MS,
} from '../../machines/delivery.ts';
import { type DestinationType, kindOf } from '../domain/destinations.ts';
import { pageAddress } from '../domain/page-address.ts';
import type { Job } from '../jobs/jobs.ts';
import type { Clock } from '../lib/clock.ts';
import type { SecretBox } from '../lib/crypto.ts';
import { each } from '../lib/each.ts';
import type { Egress } from '../lib/egress.ts';
import { Groups } from '../lib/groups.ts';
import { firstId } from '../lib/ids.ts';
import type { Log } from '../lib/log.ts';
import type { QueueMail } from '../lib/mail.ts';
import { html, page } from '../lib/page.ts';
import { pause, Wake } from '../lib/pause.ts';
import { type AttemptOutcome, attempt, UNREADABLE } from './attempt.ts';
import type { DeliveryRow } from './deliveries.ts';
import { deliveryId } from './delivery-id.ts';
import { typeOfTarget } from './destinations/index.ts';
import { FanOut, targetPlace } from './fan-out.ts';
import { type ClaimedLane, LANES, LaneClaims, type LaneRelease, releaseLanes } from './lanes.ts';
import { type Locked, type StoredOutcome, storedOf, storeOutcomes } from './outcomes.ts';
import { signedAt } from './sent.ts';
import { openDestination } from './subscription-row.ts';
import { keptSince, type Subscriptions, type SubscriptionView } from './subscriptions.ts';

/** Longer than an attempt and its commit can take. After a crash, other processes take over when the lease expires. */
const LEASE_MS = 30_000;
/** A lease with less than this left is renewed before the next attempt. */
const LEAST_LEASE_MS = 15_000;
/** Deliveries loaded at once for a destination: at first, */
const BATCH = 32;
/** and as it goes on accepting them, at most. */
const MOST = 128;
/** After this long, what is due is looked up from the first event again, with the settings of the subscription. */
const FRESH_MS = 5000;
/** Destinations whose rows are read by one statement, and outcomes that are written by one. */
const GROUP = 256;
/** Accepted deliveries of a destination whose outcomes may still be on their way to the database when the next is sent. */
const AHEAD = 16;
/** Of these, the maximum for destinations whose last attempt failed, so that hanging ones leave room for the others. */
const FAILING_LANES = 128;
const FAN_OUT = 'fan-out';
const DELIVERIES = 'deliveries';
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

interface Lane extends ClaimedLane {
  /** The end of the lease, by this process's clock. */
  until: number;
  /** Nothing more may be sent: the lane is no longer ours, or may not be. */
  over: boolean;
  /** Outcomes that are being stored. */
  storing: Set<Promise<unknown>>;
  /** Why storing one failed. */
  fault?: unknown;
  /** One was passed over: those that follow it are stored behind it. */
  behind?: boolean;
}

/** The current destination of a lane. */
interface Target {
  type: DestinationType;
  /** Null if what is stored of it cannot be opened. */
  url: string | null;
  secrets: string[];
  appUrl: string;
}

type Payload = Record<string, unknown>;

interface Queued
  extends Pick<DeliveryRow, 'event_id' | 'event_type' | 'status' | 'machine_version' | 'machine_context'> {
  /** The same object for all destinations of a group. */
  payload: Payload;
}

/** The subscription of a lane; nulls where it has none, or it is not active. */
interface Held {
  /** Which of the lanes, from 1. */
  n: number;
  destination_type: DestinationType | null;
  url_sealed: Buffer;
  secret_sealed: Buffer | null;
  previous_secret_sealed: Buffer | null;
  previous_secret_until: Date | null;
  destination_config: DestinationConfig;
}

/** A lane whose next deliveries are to be loaded: at most `count` of later events than `after`. */
interface Load {
  lane: Lane;
  after: string;
  count: number;
}

/** What a lane has to do. */
interface Work {
  /** Opened by the lane itself: one that cannot be opened must not hold up the others of the group. */
  held: Held;
  /** The due deliveries in the order of their events. */
  queued: Queued[];
}

interface Done {
  lane: Lane;
  outcome: StoredOutcome;
}

/** What is written together: true for what is written. */
interface Writes {
  outcomes: Groups<Done, boolean>;
  releases: Groups<LaneRelease, boolean>;
}

interface Together extends Writes {
  loads: Groups<Load, Work | undefined>;
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
  /** Told the name of a job that failed for a tenant and goes on for the others. */
  failed?: ((job: string) => void) | undefined;
}

/**
 * Sends queued deliveries. Each destination has one lane, which only one process serves at a time, so that events arrive
 * in order and a destination never gets concurrent requests. Destinations do not wait for each other.
 *
 * A lane is claimed by a lease in its row. No transaction is open and no lock is held during a request. The outcome of an
 * attempt is stored only if the lane's fence is still the claimed one: a process that lost its lease, or whose
 * destination was paused, changed or deleted in the meantime, stores nothing. A crash loses nothing: an attempt whose
 * outcome was not stored is repeated after the lease expires, with the same event id.
 *
 * After an accepted delivery the next one is sent while the outcome is being stored, for at most AHEAD of them and only
 * while notices reach this process: anyone who pauses, changes or deletes a destination waits until every process has heard
 * of it. A process that hears nothing sends the next delivery when the outcome before it is stored, and asks before each whether
 * the lane is still its own: what was loaded a while ago may be of a destination that is paused by now.
 */
export class Deliverer {
  readonly #parts: DeliverParts;
  /** A lane whose lease was revoked may be claimed once more before its last attempt is over, and is then here twice. */
  readonly #serving = new Set<{ lane: Lane; failing: boolean; done: Promise<void> }>();
  /** What is read and written together, of each node: none waits for another one. */
  readonly #together = new Map<number | undefined, Together>();
  /** What is written of each tenant apart, where somebody else has its lanes locked: no other tenant waits for them. */
  readonly #apart = new Map<string, Writes>();
  /** Of each loop that looks for lanes. */
  readonly #wakes = new Set<Wake>();

  readonly #claims: LaneClaims;

  constructor(parts: DeliverParts) {
    this.#parts = parts;
    this.#claims = new LaneClaims(parts.db);
  }

  #with(tenantId: string): Together {
    const { db } = this.#parts;
    const node = db.places?.nodeOf(tenantId);
    let together = this.#together.get(node);
    if (!together) {
      together = {
        loads: new Groups((loads) => this.#load(loads), GROUP),
        ...this.#writes('pass over'),
      };
      this.#together.set(node, together);
    }
    return together;
  }

  #writes(locked: Locked): Writes {
    return {
      outcomes: new Groups((done) => this.#storeAll(done, locked), GROUP),
      releases: new Groups((releases) => releaseLanes(this.#parts.db, releases, locked), GROUP),
    };
  }

  #apartFrom(tenantId: string): Writes {
    const apart = this.#apart.get(tenantId) ?? this.#writes('wait');
    this.#apart.set(tenantId, apart);
    return apart;
  }

  /**
   * Fanning out, and sending: beside each other, so that a large burst of events holds up no delivery. `only`: for this
   * tenant alone.
   */
  jobs(only?: string): Job[] {
    return [
      { name: FAN_OUT, everySeconds: 1, run: (signal) => this.#fanOut(signal, only) },
      { name: DELIVERIES, everySeconds: 1, run: (signal) => this.#run(signal, only) },
    ];
  }

  /**
   * Deletes finished deliveries after 30 days, and then their events. Events that nobody wanted go after an hour. Ends what
   * waits for too long for a paused subscription, and deletes what is left of one that was deleted.
   */
  async forget(signal?: AbortSignal): Promise<void> {
    const { db, subscriptions } = this.#parts;
    const waiting = async () => {
      const rows = await across<{ tenant_id: string; id: string }>(
        db,
        `select s.tenant_id, s.id from subscription s where not s.active and exists (
           select from delivery d where d.tenant_id = s.tenant_id and d.lane_id = s.id and d.status = 'retrying'
             and (s.disabled_at is not null or (d.machine_context->>'startedAt')::double precision < $1))`,
        [keptSince(this.#now()).getTime()],
      );
      await each(rows, signal, ({ tenant_id, id }) => subscriptions.trim(tenant_id, id));
    };
    const deleted = async () => {
      const rows = await across<{ tenant_id: string; id: string }>(
        db,
        `select l.tenant_id, l.id from delivery_lane l where l.target_sealed is null and not exists (
           select from subscription s where s.tenant_id = l.tenant_id and s.id = l.id)`,
        [],
      );
      await each(writable(db, rows), signal, ({ tenant_id, id }) => subscriptions.clear(tenant_id, id, signal));
    };
    const before = new Date(this.#now() - KEEP_DAYS * 24 * 3600_000);
    const aged = [before, firstId('oev', before.getTime())];
    const old = new Date(this.#now() - 3600_000);
    const unused = 'target_sealed is not null and due_at is null and leased_until is null';
    const events = async () => {
      const due = await apart(db, 'select distinct tenant_id from event_outbox where created_at < $1', [old]);
      await each(due, signal, async (only) => {
        const near = db.nearOf(only.tenantId);
        const inBatches = (few: (limit: string) => string, values: readonly unknown[]) =>
          deleteInBatches(near, few, values, signal);
        await inBatches(
          (limit) => `delete from event_outbox where (tenant_id, id) in (
            select tenant_id, id from event_outbox where not wanted and created_at < $1 ${only()} ${limit} for update skip locked)
              ${only()}`,
          [old],
        );
        // by lane and event, as they are indexed: nothing is sent before it happened
        await inBatches(
          (limit) => `delete from delivery where (tenant_id, lane_id, event_id) in (
            select d.tenant_id, d.lane_id, d.event_id
            from delivery_lane l join delivery d on d.tenant_id = l.tenant_id and d.lane_id = l.id
            where d.event_id < $2 and d.status <> 'retrying' and d.created_at < $1 ${only('d')} ${only('l')}
            ${limit} for update of d skip locked) ${only()}`,
          aged,
        );
        // INVARIANT: the event of a delivery is there. What is queued again after 30 days is delivered or not within days.
        await inBatches(
          (limit) => `delete from event_outbox where (tenant_id, id) in (
            select e.tenant_id, e.id from event_outbox e where wanted and created_at < $1 ${only('e')} and not exists (
              select from delivery_lane l join delivery d on d.tenant_id = l.tenant_id and d.lane_id = l.id ${only('d')}
              where d.event_id < $2 and l.tenant_id = e.tenant_id and d.event_id = e.id ${only('l')})
            ${limit} for update of e skip locked) ${only()}`,
          aged,
        );
      });
    };
    const lanes = async () =>
      each(await apart(db, `select distinct tenant_id from delivery_lane where ${unused}`, []), signal, (only) =>
        deleteInBatches(
          db.nearOf(only.tenantId),
          (limit) => `delete from delivery_lane where (tenant_id, id) in (
            select l.tenant_id, l.id from delivery_lane l where ${unused} ${only('l')} and not exists (
              select from delivery d where d.tenant_id = l.tenant_id and d.lane_id = l.id ${only('d')})
            ${limit} for update of l skip locked) and ${unused} ${only()}`,
          [],
          signal,
        ),
      );
    await each([waiting, deleted, events, lanes], signal, (forget) => forget());
  }

  async #fanOut(signal: AbortSignal, only: string | undefined): Promise<void> {
    const { db, box, log, failed } = this.#parts;
    const fanOut = new FanOut(
      db,
      box,
      () => this.#now(),
      (tenant, err) => {
        log.error({ err, tenant }, 'no deliveries could be made for a tenant');
        failed?.(FAN_OUT);
      },
    );
    const told = new Wake();
    const off = db.notices.on('outbox', () => told.call());
    const find = async () => {
      const events = await fanOut.round(signal, only);
      if (events > 0) this.#wake();
      return events;
    };
    await repeat(find, told, signal).finally(off);
  }

  async #run(signal: AbortSignal, only: string | undefined): Promise<void> {
    const { db, log, failed } = this.#parts;
    const { notices } = db;
    const offs = [
      // also deliveries that a person requested, or that another process made
      notices.on('outbox', () => this.#wake()),
      notices.on('destinations', ({ tenantId, id }) => {
        for (const { lane } of this.#serving) {
          if (tenantId === '*' || (lane.tenant_id === tenantId && lane.id === id)) lane.over = true;
        }
      }),
    ];
    const work = new Wake();
    this.#wakes.add(work);
    // a claim that fails is no reason to wait for what is being served, which may go on for as long as there is something to send
    const claim = async () => {
      try {
        return await this.#claim(signal, only);
      } catch (err) {
        if (signal.aborted) return 0;
        log.error({ err, job: DELIVERIES }, 'no destinations could be claimed');
        failed?.(DELIVERIES);
        await pause(POLL_MS, signal);
        return 0;
      }
    };
    try {
      // with all lanes taken, the first that is free again ends the pause
      await repeat(claim, work, signal);
    } finally {
      this.#wakes.delete(work);
      await Promise.all([...this.#serving].map(({ done }) => done));
      for (const off of offs) off();
    }
  }

  #wake(): void {
    for (const wake of this.#wakes) wake.call();
  }

  #now(): number {
    return this.#parts.clock ? this.#parts.clock.now() : Date.now();
  }

  /** Claims due lanes and starts serving them. Resolves to their number. */
  async #claim(signal: AbortSignal, only: string | undefined): Promise<number> {
    const failing = [...this.#serving].filter((served) => served.failing).length;
    const free = LANES - this.#serving.size;
    const healthy = await this.#take(free, false, signal, only);
    const most = Math.min(FAILING_LANES - failing, free - healthy);
    return healthy + (await this.#take(most, true, signal, only));
  }

  #begin(lane: Lane, signal: AbortSignal): void {
    const done = this.#serve(lane, signal)
      .catch((err) => {
        this.#parts.log.error({ err, tenant: lane.tenant_id, destination: lane.id }, 'serving a destination failed');
      })
      .finally(() => {
        this.#serving.delete(served);
        this.#wake();
      });
    const served = { lane, failing: lane.failing_since !== null, done };
    this.#serving.add(served);
  }

  /** Each lane is served as soon as it is claimed: the next statement may fail, and its lease lasts. */
  async #take(limit: number, failing: boolean, signal: AbortSignal, only: string | undefined): Promise<number> {
    if (limit <= 0) return 0;
    const now = this.#now();
    const until = now + LEASE_MS;
    const served = [...this.#serving].filter((one) => one.failing).map(({ lane }) => lane.tenant_id);
    let taken = 0;
    for await (const lane of this.#claims.claim({ limit, failing, served, now, until, only })) {
      this.#begin({ ...lane, until, over: false, storing: new Set() }, signal);
      taken++;
    }
    return taken;
  }

  /** Sends the due deliveries of a lane one by one until there are no more, then releases the lane. */
  async #serve(lane: Lane, signal: AbortSignal): Promise<void> {
    let notBefore: number | undefined;
    let idle = false;
    let loadedAt = performance.now();
    const load = (after: string, count: number) => ({
      work: this.#with(lane.tenant_id).loads.add({ lane, after, count }),
      count,
    });
    // of a failing destination, one is tried
    let loading = load('', lane.failing_since ? 1 : BATCH);
    for (let more = true; more; ) {
      const { count } = loading;
      const work = await loading.work;
      if (!work) {
        await this.#stored(lane);
        return;
      }
      const { held, queued } = work;
      const target = this.#target(lane, held);
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
        const ours = (await this.#keep(lane)) && (this.#parts.db.notices.healthy || (await this.#ours(lane)));
        const may = ours && !signal.aborted && !lane.over;
        const then = may ? await this.#send(lane, target, delivery, signal) : 'enough';
        if (then !== 'more') {
          if (then !== 'enough') notBefore = then;
          more = false;
          break;
        }
        // Those behind them are loaded while the second half is sent. What is being stored is not among them: it was before.
        if (more && n === count >> 1) {
          next = load(queued.at(-1)!.event_id, Math.min(Math.max(BATCH, count * 2), MOST));
          next.work.catch(() => undefined);
        }
      }
      if (!more) break;
      if (!next) {
        await this.#stored(lane);
        loadedAt = performance.now();
      }
      loading = next ?? load('', BATCH);
    }
    await this.#stored(lane);
    const release = { lane, notBefore, idle };
    const released = await this.#with(lane.tenant_id).releases.add(release);
    if (!released) await this.#apartFrom(lane.tenant_id).releases.add(release);
    if (notBefore !== undefined && notBefore - this.#now() < POLL_MS) {
      setTimeout(() => this.#wake(), notBefore - this.#now()).unref();
    }
  }

  /**
   * Makes one attempt and has its outcome stored. Resolves to what comes next for the lane: more deliveries, enough for
   * now, or a pause until a time.
   */
  async #send(lane: Lane, target: Target, delivery: Queued, signal: AbortSignal): Promise<'more' | 'enough' | number> {
    // restored before sending: if this version cannot read the state, it could not store the outcome
    const { status: state, machine_context: context, machine_version: version } = delivery;
    const snapshot = restoreDelivery({ state, context, version });
    const began = this.#now();
    const outcome = await this.#attempt(lane, target, delivery, began, signal);
    if (!outcome) return 'enough';
    this.#parts.attempts?.inc({ result: outcome.result });
    this.#store(lane, delivery, snapshot, outcome, began);
    const { paceMs } = kindOf(target.type);
    const restMs = Math.max(paceMs, outcome.retryAfter ?? 0);
    if (outcome.delivered && restMs === 0) {
      // they are stored in their order
      const [oldest] = lane.storing;
      if (lane.storing.size >= AHEAD) await oldest;
      if (this.#parts.db.notices.healthy) return 'more';
    }
    await this.#stored(lane);
    if (lane.over || (await this.#gaveUp(lane, delivery, outcome))) return 'enough';
    if (restMs > 0) return this.#now() + restMs;
    // the lane continues among the failing ones, which have a lower limit
    return outcome.delivered ? 'more' : 'enough';
  }

  /** Resolves when the lane's outcomes are stored; rejects if one could not be. */
  async #stored(lane: Lane): Promise<void> {
    await Promise.all(lane.storing);
    if (lane.fault) throw lane.fault;
  }

  /** What each of the lanes has to do; undefined for those that are no longer ours. */
  async #load(loads: readonly Load[]): Promise<(Work | undefined)[]> {
    const work = new Map<Load, Work | undefined>();
    for (const { items, only } of groupsApart(this.#parts.db, loads, ({ lane }) => lane.tenant_id)) {
      const loaded = await this.#loadOf(items, only);
      for (const [index, load] of items.entries()) work.set(load, loaded[index]);
    }
    return loads.map((load) => work.get(load));
  }

  async #loadOf(loads: readonly Load[], only: Only): Promise<(Work | undefined)[]> {
    const near = this.#parts.db.nearOf(only.tenantId);
    const now = this.#now();
    const lanes = loads.map(({ lane }) => lane);
    const keys = [lanes.map(({ tenant_id }) => tenant_id), lanes.map(({ id }) => id)];
    const [held, deliveries] = await Promise.all([
      near.query<Held>(
        `select x.n::int as n, s.destination_type, s.url_sealed, s.secret_sealed, s.previous_secret_sealed,
                 s.previous_secret_until, s.destination_config
               from unnest($1::text[], $2::text[], $3::bigint[]) with ordinality x (tenant_id, id, fence, n)
               join delivery_lane l on l.tenant_id = x.tenant_id and l.id = x.id and l.fence = x.fence ${only('l')}
               left join subscription s on s.tenant_id = x.tenant_id and s.id = x.id and s.active ${only('s')}`,
        [...keys, lanes.map(({ fence }) => fence)],
      ),
      near.query<Omit<Queued, 'payload'> & { n: number }>(
        `select x.n::int as n, d.* from unnest($1::text[], $2::text[], $4::text[], $5::int[])
                 with ordinality x (tenant_id, lane_id, after, count, n)
               cross join lateral (
                 select event_id, event_type, status, machine_version, machine_context from delivery d
                 where d.tenant_id = x.tenant_id and d.lane_id = x.lane_id and d.status = 'retrying'
                   and d.event_id > x.after and d.next_attempt_at <= $3 ${only('d')}
                 order by d.event_id limit x.count) d
               order by x.n, d.event_id`,
        [...keys, new Date(now), loads.map(({ after }) => after), loads.map(({ count }) => count)],
      ),
    ]);
    const payloads = await this.#payloads(
      deliveries.rows.map((row) => [lanes[row.n - 1]!.tenant_id, row.event_id]),
      only,
    );
    const work = new Map<number, Work>();
    for (const row of held.rows) work.set(row.n, { held: row, queued: [] });
    for (const { n, ...delivery } of deliveries.rows) {
      const { tenant_id, target_sealed } = lanes[n - 1]!;
      const found = payloads.get(`${tenant_id}/${delivery.event_id}`);
      // deleted between the two statements, with its event
      if (!found) continue;
      // a notify target must not learn about the others
      work.get(n)?.queued.push({ ...delivery, payload: target_sealed ? found.bare : found.payload });
    }
    return lanes.map((_, index) => work.get(index + 1));
  }

  /** The payload of each event, and without the notify targets; each is read once for all destinations of a group. */
  async #payloads(events: readonly [tenantId: string, eventId: string][], only: Only) {
    const keys = new Map(events.map((event) => [event.join('/'), event]));
    const found = new Map<string, { payload: Payload; bare: Payload }>();
    if (keys.size === 0) return found;
    const { rows } = await this.#parts.db
      .nearOf(only.tenantId)
      .query<{ tenant_id: string; id: string; payload: Payload }>(
        `select e.tenant_id, e.id, e.payload from unnest($1::text[], $2::text[]) x (tenant_id, id)
             join event_outbox e on e.tenant_id = x.tenant_id and e.id = x.id ${only('e')}`,
        [[...keys.values()].map(([tenantId]) => tenantId), [...keys.values()].map(([, id]) => id)],
      );
    for (const { tenant_id, id, payload } of rows) {
      const { notify_targets, ...bare } = payload;
      found.set(`${tenant_id}/${id}`, { payload, bare: notify_targets === undefined ? payload : bare });
    }
    return found;
  }

  /** The lane's destination; undefined while its subscription is not active. */
  #target(lane: Lane, row: Held): Target | undefined {
    const { box, appUrl, log } = this.#parts;
    const { tenant_id: tenantId, id } = lane;
    const unreadable = (error: unknown) => {
      log.warn({ tenant: tenantId, destination: id, reason: (error as Error).message }, 'a destination cannot be read');
      return { url: null, secrets: [] };
    };
    if (lane.target_sealed) {
      try {
        const url = box.open(lane.target_sealed, targetPlace(tenantId, id)).toString();
        return { type: typeOfTarget(url), url, secrets: [], appUrl };
      } catch (error) {
        return { type: 'webhook', ...unreadable(error), appUrl };
      }
    }
    if (row.destination_type === null) return undefined;
    const sealed = {
      tenantId,
      id,
      urlSealed: row.url_sealed,
      secretSealed: row.secret_sealed,
      previousSecretSealed: row.previous_secret_sealed,
      previousSecretUntil: row.previous_secret_until,
    };
    const { destination_type: type, destination_config } = row;
    const settings = { type, appUrl: destination_config.app_url ?? appUrl };
    try {
      return { ...settings, ...openDestination(box, sealed, this.#now()) };
    } catch (error) {
      return { ...settings, ...unreadable(error) };
    }
  }

  /** Renews a lease that is about to expire, when all outcomes so far are stored; false if it was lost. */
  async #keep(lane: Lane): Promise<boolean> {
    const now = this.#now();
    if (lane.until - now >= LEAST_LEASE_MS) return true;
    await this.#stored(lane);
    const { rowCount } = await this.#parts.db.nearOf(lane.tenant_id).query(
      `update delivery_lane set leased_until = $4, due_at = case when due_at = leased_until then $4 else due_at end
       where tenant_id = $1 and id = $2 and fence = $3`,
      [lane.tenant_id, lane.id, lane.fence, new Date(now + LEASE_MS)],
    );
    lane.until = now + LEASE_MS;
    return rowCount === 1;
  }

  /** Whether the lane is still this process's, and nobody has paused, changed or deleted its destination. */
  async #ours({ tenant_id, id, fence }: Lane): Promise<boolean> {
    const { rowCount } = await this.#parts.db
      .nearOf(tenant_id)
      .query('select 1 from delivery_lane where tenant_id = $1 and id = $2 and fence = $3', [tenant_id, id, fence]);
    return rowCount === 1;
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

  /** Begins to store the outcome and the machine's next state. The lane is over where that is no longer possible. */
  #store(lane: Lane, delivery: Queued, snapshot: DeliverySnapshot, outcome: AttemptOutcome, began: number): void {
    const now = this.#now();
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
    const done: Done = {
      lane,
      outcome: {
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
      },
    };
    const storing = this.#with(lane.tenant_id)
      .outcomes.add(done)
      .then((stored) => stored || this.#apartFrom(lane.tenant_id).outcomes.add(done))
      .then(
        (stored) => {
          if (stored) {
            const id = deliveryId(lane.id, delivery.event_id);
            this.#parts.db.notices.tellHere('delivery', lane.tenant_id, id, [{ event, state: status, context }]);
          } else lane.over = true;
        },
        (error) => {
          lane.over = true;
          lane.fault = error;
        },
      )
      .finally(() => {
        lane.storing.delete(storing);
        if (lane.storing.size === 0) lane.behind = false;
      });
    lane.storing.add(storing);
  }

  async #storeAll(all: readonly Done[], locked: Locked): Promise<boolean[]> {
    const now = all.filter(({ lane }) => locked === 'wait' || !lane.behind);
    const outcomes = now.map(({ outcome }) => outcome);
    const results = outcomes.length > 0 ? await storeOutcomes(this.#parts.db, outcomes, locked) : [];
    const stored = new Set(now.filter((_, n) => results[n]));
    for (const done of now) if (!stored.has(done)) done.lane.behind = true;
    return all.map((done) => stored.has(done));
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
      await db.transactionNear(tenantId, (em) =>
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
    const link = pageAddress(this.#parts.appUrl, tenantId, '/subscriptions');
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
}

/** Does `find` as long as it finds something, and again whenever it is woken. */
async function repeat(find: () => Promise<number>, wake: Wake, signal: AbortSignal): Promise<void> {
  while (!signal.aborted) {
    wake.clear();
    const found = await find();
    await pause(LEAST_PAUSE_MS, signal);
    if (found === 0) await wake.pause(POLL_MS - LEAST_PAUSE_MS, signal);
  }
}
