import { unavailable } from '../actors/host.ts';
import { type AppendEvent, type AppenderOptions, bytesOf } from './appender.ts';
import { type Batch, type Chain, GROUP_EVENTS, isNear } from './group.ts';

/** Limits on the size of events with their inputs. A call that is larger than a group is a group by itself. */
const GROUP_BYTES = 4 * 1024 * 1024;
const MAILBOX_BYTES = 64 * 1024 * 1024;
/**
 * One tenant's waiting events may take at most this share of what is left for the others: in an empty mailbox, half of the events
 * and a quarter of the bytes.
 */
const SHARE = { events: 1, bytes: 1 / 3 };
/** A writer is busy for this long after its last events. */
const BUSY_MS = 250;

/** A call that has room in the mailbox. It does not hold the events: through the set of calls they would end up in old memory. */
export interface Call {
  readonly events: number;
  readonly bytes: number;
  readonly since: number;
  readonly tenantId: string;
  /** What the tenant has waiting, this call included. */
  readonly own: { events: number; bytes: number };
}

/**
 * What a writer has accepted and not yet answered: calls whose chain is being opened, then the queue of calls that wait for a
 * transaction, then those under way.
 */
export class Mailbox {
  readonly #db: AppenderOptions['db'];
  readonly #most: number;
  /**
   * Tenants are on several servers. A transaction covers one tenant, or tenants of the node being queried, so that its commit
   * needs only one node.
   */
  readonly #spread: boolean;
  #events = 0;
  #bytes = 0;
  readonly #tenants = new Map<string, { events: number; bytes: number }>();
  /** The calls that are not yet answered, oldest first. */
  readonly #calls = new Set<Call>();
  readonly #queue: Batch[] = [];
  #queuedEvents = 0;
  #askedAt = Number.NEGATIVE_INFINITY;
  #emptied: (() => void) | undefined;

  constructor({ db, mailbox = 20_000 }: AppenderOptions) {
    this.#db = db;
    this.#most = mailbox;
    this.#spread = db.citus !== undefined;
  }

  /** Events that were accepted and are not yet answered. */
  get waiting(): number {
    return this.#events;
  }

  /** When the oldest call that is not yet answered was accepted. */
  get oldestSince(): number | undefined {
    const [oldest] = this.#calls;
    return oldest?.since;
  }

  get busy(): boolean {
    return this.#events > 0 || performance.now() - this.#askedAt < BUSY_MS;
  }

  /** Batches that no transaction has taken yet, oldest first. */
  get queue(): readonly Batch[] {
    return this.#queue;
  }

  get queuedEvents(): number {
    return this.#queuedEvents;
  }

  /**
   * Reserves room for a call until `leave`, which is due once its events are answered, whether or not the caller still waits.
   * Throws UNAVAILABLE (Retry-After) if the mailbox or the tenant's share of it is full.
   */
  accept(tenantId: string, events: readonly AppendEvent[]): Call {
    const bytes = bytesOf(events);
    let own = this.#tenants.get(tenantId);
    const left = this.#most - this.#events - events.length;
    const leftBytes = MAILBOX_BYTES - this.#bytes - bytes;
    if (
      (own?.events ?? 0) + events.length > SHARE.events * left ||
      (own?.bytes ?? 0) + bytes > SHARE.bytes * leftBytes
    ) {
      throw unavailable('too many events are waiting');
    }
    if (!own) {
      own = { events: 0, bytes: 0 };
      this.#tenants.set(tenantId, own);
    }
    this.#events += events.length;
    this.#bytes += bytes;
    own.events += events.length;
    own.bytes += bytes;
    const since = performance.now();
    this.#askedAt = since;
    const call = { events: events.length, bytes, since, tenantId, own };
    this.#calls.add(call);
    return call;
  }

  /** Gives back a call's room. Call it once. */
  leave(call: Call): void {
    const { own } = call;
    this.#calls.delete(call);
    this.#events -= call.events;
    this.#bytes -= call.bytes;
    own.events -= call.events;
    own.bytes -= call.bytes;
    if (own.events === 0) this.#tenants.delete(call.tenantId);
    if (this.#events === 0) this.#emptied?.();
  }

  /** Resolves when every call has left, provided that no other is accepted in the meantime. */
  async empty(): Promise<void> {
    if (this.#events > 0) await new Promise<void>((resolve) => (this.#emptied = resolve));
  }

  /** Queues the events of an accepted call for the chain that was opened for it. */
  push(batch: Batch): void {
    this.#queue.push(batch);
    this.#queuedEvents += batch.events.length;
  }

  /**
   * Takes the oldest batch in the queue, and the following ones that may share its transaction and fit in it. Batches that have a
   * refusal by now are rejected with it, so nothing may be left. The queue must not be empty.
   */
  take(refusalFor: (chain: Chain) => Error | undefined): Batch[] {
    const batches: Batch[] = [];
    let events = 0;
    let bytes = 0;
    let taken = 0;
    const passed: Batch[] = [];
    const { chain: first } = this.#queue[0]!;
    const near = isNear(this.#db, first);
    for (const batch of this.#queue) {
      if (this.#spread && batch.chain !== first && !(near && isNear(this.#db, batch.chain))) {
        passed.push(batch);
        continue;
      }
      const fits = events + batch.events.length <= GROUP_EVENTS && bytes + batch.bytes <= GROUP_BYTES;
      if (taken > 0 && !fits) break;
      taken++;
      events += batch.events.length;
      bytes += batch.bytes;
      const refusal = refusalFor(batch.chain);
      if (refusal) batch.reject(refusal);
      else batches.push(batch);
    }
    this.#queue.splice(0, taken + passed.length, ...passed);
    this.#queuedEvents -= events;
    return batches;
  }

  /** Rejects everything in the queue. */
  refuse(error: Error): void {
    for (const batch of this.#queue.splice(0)) batch.reject(error);
    this.#queuedEvents = 0;
  }
}
