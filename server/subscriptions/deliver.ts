import type { Counter } from 'prom-client';
import type { Database, WriteAudit } from '../../db/index.ts';
import type { Job } from '../jobs/jobs.ts';
import type { Clock } from '../lib/clock.ts';
import type { SecretBox } from '../lib/crypto.ts';
import type { Egress } from '../lib/egress.ts';
import type { Log } from '../lib/log.ts';
import type { QueueMail } from '../lib/mail.ts';
import { pause, Wake } from '../lib/pause.ts';
import { DueWork } from './due-work.ts';
import { FanOut } from './fan-out.ts';
import { type Lane, LaneWrites } from './lane-writes.ts';
import { LANES, LaneClaims, LEASE_MS } from './lanes.ts';
import { forgetDeliveries } from './retention.ts';
import { Sender } from './sender.ts';
import type { Subscriptions } from './subscriptions.ts';

/** The maximum number of lanes for destinations whose last attempt failed, so that hanging ones leave room for the others. */
const FAILING_LANES = 128;
const FAN_OUT = 'fan-out';
const DELIVERIES = 'deliveries';
const POLL_MS = 1000;
/** Coalesces notices that arrive together. */
const LEAST_PAUSE_MS = 25;

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
  /** Called with the name of a job that failed for one tenant and continues for the others. */
  failed?: ((job: string) => void) | undefined;
}

/**
 * Sends queued deliveries. Each destination has one lane, which only one process serves at a time, so that events arrive
 * in order and a destination never gets concurrent requests. Destinations do not wait for each other.
 *
 * A lane is claimed by a lease in its row. After a crash, other processes take over when the lease expires.
 */
export class Deliverer {
  readonly #parts: DeliverParts;
  readonly #now: () => number;
  readonly #claims: LaneClaims;
  readonly #sender: Sender;
  /** A lane whose lease was revoked may be claimed again before its last attempt is over; it is then in here twice. */
  readonly #serving = new Set<{ lane: Lane; failing: boolean; done: Promise<void> }>();
  /** One for each loop that looks for lanes. */
  readonly #wakes = new Set<Wake>();

  constructor(parts: DeliverParts) {
    const { db, clock } = parts;
    this.#parts = parts;
    this.#now = () => (clock ? clock.now() : Date.now());
    this.#claims = new LaneClaims(db);
    const shared = { ...parts, now: this.#now };
    this.#sender = new Sender({
      ...shared,
      attempts: parts.attempts,
      claims: this.#claims,
      writes: new LaneWrites(db, this.#claims),
      due: new DueWork(shared),
    });
  }

  /** Fan-out and sending, as separate jobs so that a large burst of events delays no delivery. `only`: for this tenant alone. */
  jobs(only?: string): Job[] {
    return [
      { name: FAN_OUT, everySeconds: 1, run: (signal) => this.#fanOut(signal, only) },
      { name: DELIVERIES, everySeconds: 1, run: (signal) => this.#run(signal, only) },
    ];
  }

  /** See `forgetDeliveries`. */
  forget(signal?: AbortSignal): Promise<void> {
    return forgetDeliveries(this.#parts, this.#now(), signal);
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
    // a failed claim must not wait for the lanes being served, which may continue for as long as there is something to send
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
      // if all lanes are taken, the first one to become free ends the pause
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

  /** Claims due lanes and starts serving them. Resolves to their number. */
  async #claim(signal: AbortSignal, only: string | undefined): Promise<number> {
    const failing = [...this.#serving].filter((served) => served.failing).length;
    const free = LANES - this.#serving.size;
    const healthy = await this.#take(free, false, signal, only);
    const most = Math.min(FAILING_LANES - failing, free - healthy);
    return healthy + (await this.#take(most, true, signal, only));
  }

  #begin(lane: Lane, signal: AbortSignal): void {
    const done = this.#sender
      .serve(lane, signal)
      .then((notBefore) => {
        if (notBefore !== undefined && notBefore - this.#now() < POLL_MS) {
          // it may have passed since
          setTimeout(() => this.#wake(), Math.max(0, notBefore - this.#now())).unref();
        }
      })
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

  /** Serves each lane as soon as it is claimed: the next statement may fail, which would leave the lane leased but not served. */
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
}

/** Calls `find` as long as it finds something, and again whenever it is woken. */
async function repeat(find: () => Promise<number>, wake: Wake, signal: AbortSignal): Promise<void> {
  while (!signal.aborted) {
    wake.clear();
    const found = await find();
    await pause(LEAST_PAUSE_MS, signal);
    if (found === 0) await wake.pause(POLL_MS - LEAST_PAUSE_MS, signal);
  }
}
