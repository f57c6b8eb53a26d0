import { unavailable } from '../actors/host.ts';
import { Deadlines } from '../lib/deadlines.ts';
import type { Log } from '../lib/log.ts';
import { patient } from '../lib/patience.ts';
import type { AppendEvent, Appender, AppenderOptions, AppendResult } from './appender.ts';
import { WriterConnection } from './connection.ts';
import type { ConnectionLost } from './copy.ts';
import { type Batch, GENESIS_RECORDS, GROUP_EVENTS, type Group } from './group.ts';
import { type Call, Mailbox } from './mailbox.ts';
import { OwnedChains } from './owned-chains.ts';
import { RecentIds } from './recent-ids.ts';
import { HASH_BYTES, idHash } from './record.ts';
import { Recovery } from './recovery.ts';

/** Transactions under way at once. */
const DEPTH = 2;
/** A second transaction starts alongside the first once as many events as the first has, or this many, have gathered. */
const SECOND_GROUP_EVENTS = 500;
/** A caller whose events are not acknowledged by then gets an error: they may or may not be stored. */
const ACKNOWLEDGE_MS = 5000;

/** If tenants are on several servers, each server has its own writers, so that one that is down stops only its own tenants. */
export function openAppender(options: AppenderOptions): Appender {
  const { places } = options.db;
  const shards = options.shards ?? 1;
  const byNode = new Map<number | undefined, Writer[]>();
  let stopped = false;
  const on = (node: number | undefined) => {
    let writers = byNode.get(node);
    if (!writers) {
      writers = Array.from({ length: shards }, () => new Writer(options));
      byNode.set(node, writers);
      if (stopped) for (const writer of writers) void writer.stop();
    }
    return writers;
  };
  const ofTenant = (writers: readonly Writer[], tenantId: string) => writers[(idHash(tenantId) >>> 0) % shards]!;
  const of = (tenantId: string) => ofTenant(on(places?.nodeOf(tenantId)), tenantId);
  const all = () => [...byNode.values()].flat();
  return {
    append: (tenantId, events) => of(tenantId).append(tenantId, events),
    connect: () => {
      const nodes = places && (places.here === undefined ? places.nodes : [places.here]);
      for (const writer of (nodes ?? [undefined]).flatMap(on)) writer.connect();
    },
    open: (tenantId) => of(tenantId).open(tenantId),
    release: (tenantId) => {
      // it may have moved to another node in the meantime
      for (const writers of byNode.values()) ofTenant(writers, tenantId).release(tenantId);
    },
    get waiting() {
      return all().reduce((sum, writer) => sum + writer.waiting, 0);
    },
    get oldestMs() {
      return Math.max(0, ...all().map((writer) => writer.oldestMs));
    },
    get busy() {
      return all().some((writer) => writer.busy);
    },
    stop: async () => {
      stopped = true;
      await Promise.all(all().map((writer) => writer.stop()));
    },
  };
}

/** An appender with one connection. It handles the common path: what is accepted is sent, and answered once it is committed. */
class Writer implements Appender {
  readonly #log: Log;
  readonly #mailbox: Mailbox;
  readonly #chains: OwnedChains;
  readonly #connection: WriterConnection;
  readonly #recovery: Recovery;
  /** Groups that were sent and are not yet answered, oldest first. */
  #groups: Group[] = [];
  #scheduled = false;
  readonly #stopping = new AbortController();
  readonly #inTime = new Deadlines(patient(ACKNOWLEDGE_MS), () =>
    unavailable(`the database did not acknowledge within ${patient(ACKNOWLEDGE_MS) / 1000} s`),
  );

  constructor(options: AppenderOptions) {
    // INVARIANT: ids of records under way are never forgotten; otherwise a repeated id within a group would go unnoticed
    const most = GROUP_EVENTS + GENESIS_RECORDS;
    const recent = new RecentIds(Math.max(options.recentIds ?? 50_000, 2 * (DEPTH + 1) * most), most);
    this.#log = options.log;
    this.#mailbox = new Mailbox(options);
    this.#connection = new WriterConnection(options, recent, (error) => this.#lost(error));
    this.#chains = new OwnedChains(options, recent, this.#connection);
    this.#recovery = new Recovery(options, {
      mailbox: this.#mailbox,
      chains: this.#chains,
      connection: this.#connection,
      stopping: this.#stopping.signal,
      ended: () => this.#pump(),
    });
  }

  get waiting(): number {
    return this.#mailbox.waiting;
  }

  get oldestMs(): number {
    // without a database nothing waits: everything is refused
    const since = this.#recovery.downSince ?? this.#mailbox.oldestSince;
    return since === undefined ? 0 : performance.now() - since;
  }

  get busy(): boolean {
    return this.#mailbox.busy;
  }

  async append(tenantId: string, events: readonly AppendEvent[]): Promise<AppendResult> {
    if (events.length === 0) return { results: [] };
    if (events.length > GROUP_EVENTS) throw new RangeError(`more than ${GROUP_EVENTS} events in one call`);
    if (this.#stopping.signal.aborted) throw unavailable('the server is shutting down');
    if (this.#recovery.downSince !== undefined) throw unavailable('the database does not answer');
    this.#chains.assertReplicated(tenantId);
    return this.#inTime.of(this.#queued(this.#mailbox.accept(tenantId, events), events));
  }

  async #queued(call: Call, events: readonly AppendEvent[]): Promise<AppendResult> {
    const { tenantId, bytes } = call;
    try {
      const known = this.#chains.of(tenantId);
      const chain = known instanceof Promise ? await known : known;
      return await new Promise<AppendResult>((resolve, reject) => {
        const hashes = Buffer.allocUnsafe(HASH_BYTES * events.length);
        this.#mailbox.push({ chain, events, bytes, results: [], hashes, final: undefined, resolve, reject });
        this.#schedule();
      });
    } finally {
      this.#mailbox.leave(call);
    }
  }

  connect(): void {
    if (this.#connection.connected || this.#recovery.running || this.#stopping.signal.aborted) return;
    this.#recovery.begin([]);
  }

  async open(tenantId: string): Promise<void> {
    // in parallel with opening the chain, or the first records would wait for one after the other
    this.connect();
    await this.#chains.of(tenantId);
  }

  release(tenantId: string): void {
    this.#chains.release(tenantId);
  }

  async stop(): Promise<void> {
    this.#stopping.abort();
    await this.#mailbox.empty();
    while (this.#recovery.running) await this.#recovery.running;
    await this.#connection.end();
  }

  /** Waits for the end of this turn of the event loop, so that requests that arrived together commit together. */
  #schedule(): void {
    if (this.#scheduled) return;
    this.#scheduled = true;
    setImmediate(() => {
      this.#scheduled = false;
      this.#pump();
    });
  }

  #pump(): void {
    if (this.#recovery.running || this.#mailbox.queuedEvents === 0) return;
    if (!this.#connection.connected) {
      this.#recovery.begin([]);
      return;
    }
    while (this.#mailbox.queuedEvents > 0) {
      const under = this.#groups.at(-1);
      const enough = under ? Math.min(under.events, SECOND_GROUP_EVENTS) : 1;
      if (this.#groups.length === DEPTH || this.#mailbox.queuedEvents < enough) return;
      const batches = this.#mailbox.take((chain) => this.#chains.refusalFor(chain));
      if (batches.length > 0) this.#begin(batches);
    }
  }

  #begin(batches: readonly Batch[]): void {
    const { group, done } = this.#connection.send(batches);
    this.#groups.push(group);
    done.then(
      () => {
        group.state = 'committed';
        this.#drain();
      },
      (error: Error) => {
        group.state = 'failed';
        group.error = error;
        this.#drain();
      },
    );
  }

  /** Answers committed groups in order. A group behind one that failed has failed too. */
  #drain(): void {
    while (this.#groups[0]?.state === 'committed') {
      const group = this.#groups.shift()!;
      this.#chains.committed(group);
      for (const batch of group.batches) batch.resolve({ results: batch.results });
    }
    if (this.#groups.length > 0 && this.#groups.every((group) => group.state !== 'under way')) {
      const failed = this.#groups;
      this.#groups = [];
      this.#recovery.begin(failed);
    }
    this.#pump();
  }

  #lost(error: ConnectionLost): void {
    if (!this.#stopping.signal.aborted) {
      this.#log.warn({ err: error.cause ?? error }, 'the chain writer lost its connection');
    }
    // even with nothing to write, since requests may fail before they get here: recovery tracks how long the database has been
    // away
    if (this.#groups.length === 0) this.connect();
  }
}
