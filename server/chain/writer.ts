import type pg from 'pg';
import { within } from '../../db/client.ts';
import { isLeaving } from '../../db/moves.ts';
import { Fenced } from '../actors/host.ts';
import type { DecisionEvent } from '../domain/decision.ts';
import { AppError } from '../errors.ts';
import { Deadlines } from '../lib/deadlines.ts';
import { pause } from '../lib/pause.ts';
import type { AppendEvent, AppenderOptions, AppendResult } from './appender.ts';
import { ChainClosed } from './checkpoint.ts';
import { ConnectionLost, CopyRows, Pipeline, type Rows, type ServerError, ValueRows } from './copy.ts';
import { type Batch, type Chain, GENESIS_RECORDS, type Group, groupOf, record, sign, undo } from './group.ts';
import { RecentIds } from './recent-ids.ts';
import { decisionLine, HASH_BYTES, ZERO_HASH } from './record.ts';
import { BadEvent, type HeadMove, remedyFor, session, spreadTransaction, transaction } from './transaction.ts';

const GROUP_EVENTS = 1000;
/** Of events and their inputs. A call that is larger is a group by itself. */
const GROUP_BYTES = 4 * 1024 * 1024;
const MAILBOX_BYTES = 64 * 1024 * 1024;
/** What one tenant has waiting is at most this part of what is left for the others: half of an empty mailbox, and a quarter. */
const SHARE = { events: 1, bytes: 1 / 3 };
/** Transactions under way at once. */
const DEPTH = 2;
/** A second transaction is begun beside the first for as many events as that has, or this many; fewer gather meanwhile. */
const SECOND_GROUP_EVENTS = 500;
/** A transaction that takes longer is given up: its connection is cut. */
const TRANSACTION_MS = 5000;
/** A caller whose events are not acknowledged by then gets an error: they may or may not be stored. */
const ACKNOWLEDGE_MS = 5000;
const CONNECT_MS = 5000;
/** A writer is busy for this long after its last events. */
const BUSY_MS = 250;
const ATTEMPTS = 5;
/** About how much an event takes of which nobody knows it. */
const EVENT_BYTES = 1024;
/** An event whose acknowledgement was lost is sent again within this time. */
const MOMENT_MS = 30_000;

export class Writer {
  readonly #options: AppenderOptions;
  readonly #mailbox: number;
  /**
   * Tenants are on several servers: a transaction is of one tenant, or of tenants of the node that is asked, so that its commit
   * needs one of them.
   */
  readonly #spread: boolean;
  readonly #recent: RecentIds;
  readonly #chains = new Map<string, Chain | Promise<Chain>>();
  readonly #queue: Batch[] = [];
  #queuedEvents = 0;
  #waitingEvents = 0;
  #waitingBytes = 0;
  readonly #waitingOf = new Map<string, { events: number; bytes: number }>();
  /** The calls that are not yet answered, the oldest first. */
  readonly #waits = new Set<{ since: number }>();
  #askedAt = Number.NEGATIVE_INFINITY;
  #groups: Group[] = [];
  #pipeline: Pipeline | undefined;
  /** How many connections of the pipeline were lost. */
  #losses = 0;
  /** Buffers that no transaction uses. */
  readonly #unused: { rows: CopyRows; inputs: CopyRows }[] = [];
  #scheduled = false;
  /** A failure is being repaired; no new transaction begins. */
  #repairing: Promise<void> | undefined;
  /** The database was away for longer than callers are asked to wait. */
  #down = false;
  #downSince = 0;
  #stopped = false;
  #idle: (() => void) | undefined;
  readonly #stopping = new AbortController();
  readonly #inTime = new Deadlines(ACKNOWLEDGE_MS, () =>
    unavailable(`the database did not acknowledge within ${ACKNOWLEDGE_MS / 1000} s`),
  );

  constructor(options: AppenderOptions) {
    this.#options = options;
    this.#mailbox = options.mailbox ?? 20_000;
    this.#spread = options.db.citus !== undefined;
    // INVARIANT: ids of records under way are never forgotten, or an id twice in one group would not be seen
    const most = GROUP_EVENTS + GENESIS_RECORDS;
    this.#recent = new RecentIds(Math.max(options.recentIds ?? 50_000, 2 * (DEPTH + 1) * most), most);
  }

  get waiting(): number {
    return this.#waitingEvents;
  }

  get oldestMs(): number {
    const [oldest] = this.#waits;
    // without a database nothing waits: everything is refused
    const since = this.#down ? this.#downSince : oldest?.since;
    return since === undefined ? 0 : performance.now() - since;
  }

  get busy(): boolean {
    return this.#waitingEvents > 0 || performance.now() - this.#askedAt < BUSY_MS;
  }

  async append(tenantId: string, events: readonly AppendEvent[]): Promise<AppendResult> {
    if (events.length === 0) return { results: [] };
    if (events.length > GROUP_EVENTS) throw new RangeError(`more than ${GROUP_EVENTS} events in one call`);
    if (this.#stopped) throw unavailable('the server is shutting down');
    if (this.#down) throw unavailable('the database does not answer');
    this.#assertReplicated(tenantId);
    const bytes = bytesOf(events);
    const own = this.#waitingOf.get(tenantId);
    const left = this.#mailbox - this.#waitingEvents - events.length;
    const leftBytes = MAILBOX_BYTES - this.#waitingBytes - bytes;
    if (
      (own?.events ?? 0) + events.length > SHARE.events * left ||
      (own?.bytes ?? 0) + bytes > SHARE.bytes * leftBytes
    ) {
      throw unavailable('too many events are waiting');
    }
    this.#askedAt = performance.now();
    return this.#inTime.of(this.#queued(tenantId, events, bytes));
  }

  /** Why nothing is written of the tenant now: what waits for a standby that is gone keeps its connection until that is back. */
  #unreplicated(tenantId: string): AppError | undefined {
    const missing = this.#options.db.replication?.missingFor(tenantId);
    return missing === undefined ? undefined : unavailable(`no synchronous standby: ${missing}`);
  }

  #assertReplicated(tenantId: string): void {
    const refusal = this.#unreplicated(tenantId);
    if (refusal) throw refusal;
  }

  /** Takes room in the mailbox until the events have their answer, whether or not the caller still waits for it. */
  async #queued(tenantId: string, events: readonly AppendEvent[], bytes: number): Promise<AppendResult> {
    this.#waitingEvents += events.length;
    this.#waitingBytes += bytes;
    const own = this.#waitingOf.get(tenantId) ?? { events: 0, bytes: 0 };
    this.#waitingOf.set(tenantId, own);
    own.events += events.length;
    own.bytes += bytes;
    const wait = { since: performance.now() };
    this.#waits.add(wait);
    try {
      const known = this.#chains.get(tenantId);
      const chain = known instanceof Promise || known === undefined ? await this.#chain(tenantId) : known;
      return await new Promise<AppendResult>((resolve, reject) => {
        const hashes = Buffer.allocUnsafe(HASH_BYTES * events.length);
        this.#queue.push({ chain, events, bytes, results: [], hashes, final: undefined, resolve, reject });
        this.#queuedEvents += events.length;
        this.#schedule();
      });
    } finally {
      this.#waits.delete(wait);
      this.#waitingEvents -= events.length;
      this.#waitingBytes -= bytes;
      own.events -= events.length;
      own.bytes -= bytes;
      if (own.events === 0) this.#waitingOf.delete(tenantId);
      if (this.#waitingEvents === 0) this.#idle?.();
    }
  }

  connect(): void {
    if (!this.#pipeline && !this.#repairing && !this.#stopped) this.#repair([]);
  }

  async open(tenantId: string): Promise<void> {
    // beside it, or the first records would wait for both
    this.connect();
    await this.#chain(tenantId);
  }

  release(tenantId: string): void {
    const chain = this.#chains.get(tenantId);
    if (chain && !(chain instanceof Promise)) this.#chains.delete(tenantId);
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    this.#stopping.abort();
    if (this.#waitingEvents > 0) await new Promise<void>((resolve) => (this.#idle = resolve));
    while (this.#repairing) await this.#repairing;
    await this.#pipeline?.end();
  }

  // --- ownership

  #chain(tenantId: string): Promise<Chain> | Chain {
    const known = this.#chains.get(tenantId);
    if (known) return known;
    const losses = this.#losses;
    const opening = this.#open(tenantId).then(
      (chain): Chain | Promise<Chain> => {
        if (this.#chains.get(tenantId) === opening) this.#chains.set(tenantId, chain);
        if (losses === this.#losses) return chain;
        // the database was away meanwhile: what was read from it may no longer be true
        this.#abandon(chain);
        return this.#chain(tenantId);
      },
      (error) => {
        if (this.#chains.get(tenantId) === opening) this.#chains.delete(tenantId);
        throw error;
      },
    );
    this.#chains.set(tenantId, opening);
    return opening;
  }

  /**
   * INVARIANT: the fence is taken first and everything else is read after it. Raising it waits for a transaction of the
   * former owner that holds the head; one that comes later fails its compare-and-swap. So what is read stays true.
   */
  async #open(tenantId: string): Promise<Chain> {
    const near = this.#options.db.nearOf(tenantId);
    const { checkpoints } = this.#options;
    checkpoints?.assertOpen(tenantId, 'forensics');
    this.#assertReplicated(tenantId);
    try {
      const { rows } = await near.query<{ seq: number; hash: Buffer; fence: number }>(
        `insert into chain_head as h (tenant_id, chain, seq, hash, fence) values ($1, 'forensics', 0, $2, 1)
         on conflict (tenant_id, chain) do update set fence = h.fence + 1
         returning seq, hash, fence`,
        [tenantId, Buffer.from(ZERO_HASH, 'hex')],
      );
      const { seq, hash, fence } = rows[0]!;
      // a server that has vanished is not waited for: the next attempt is on another connection
      const compared = Promise.all([
        lastRecords(near, tenantId, seq, this.#options.clock.now()),
        this.#compared(tenantId),
      ]);
      const [records, { signed, generation }] = await within(CONNECT_MS, compared);
      const at = records.at(-1)?.received_at.getTime() ?? 0;
      if (records.length > 1) this.#remember(tenantId, records, generation);
      const fingerprint = seq === 0 ? this.#options.fingerprint() : '';
      return { tenantId, seq, hash, fence, at, signed, generation, fingerprint, live: true, refusal: undefined };
    } catch (error) {
      if (error instanceof ChainClosed) throw error;
      if ((error as ServerError).code === '23503') {
        // anyone who was let in before it left is not told that its records are refused for good
        if (await isLeaving(near, tenantId)) throw unavailable('the tenant is moving to another installation', error);
        throw new AppError('NOT_FOUND', 'there is no such tenant');
      }
      this.#options.log.error({ err: error, tenant: tenantId }, 'a chain cannot be opened');
      throw unavailable('the database does not answer', error);
    }
  }

  /**
   * The ids that an owner wrote who was here a moment ago: those whose acknowledgement was lost with it are sent again now, and
   * are answered as duplicates without a transaction that fails on them.
   *
   * INVARIANT: the head that these were read below counts as acknowledged, so that a database that comes back without them is found
   * out before one of them is answered.
   */
  #remember(tenantId: string, records: readonly LastRecord[], generation: number): void {
    const known = records.flatMap(({ seq, received_at, hash, event_id: id }, i) => {
      const before = records[i - 1];
      return before?.seq === seq - 1 ? [{ id, seq, at: received_at.getTime(), previous: before.hash, hash }] : [];
    });
    this.#recent.remember(tenantId, known);
    const { seq, hash } = records.at(-1)!;
    const head = { seq, hash: hash.toString('hex'), generation };
    this.#options.checkpoints?.acknowledged.acknowledge(tenantId, 'forensics', head);
  }

  /**
   * Compares the chain, whose fence was just taken, with what is known about it. The remembered ids of records that no
   * longer exist are forgotten, so that an event that is sent again is stored and not answered as a duplicate.
   */
  async #compared(tenantId: string): Promise<{ signed: number | undefined; generation: number }> {
    const { checkpoints } = this.#options;
    if (!checkpoints) return { signed: undefined, generation: 0 };
    try {
      const standing = await checkpoints.resume(tenantId, 'forensics');
      if (standing.givenUp) this.#recent.forget(tenantId);
      return standing;
    } catch (error) {
      if (error instanceof ChainClosed) this.#recent.forget(tenantId);
      throw error;
    }
  }

  /** Why nothing more is written to the chain. */
  #refusalFor(chain: Chain): Error | undefined {
    return chain.live ? this.#unreplicated(chain.tenantId) : (chain.refusal ?? new Fenced());
  }

  #abandon(chain: Chain, refusal?: Error): void {
    chain.refusal ??= refusal;
    chain.live = false;
    if (this.#chains.get(chain.tenantId) === chain) this.#chains.delete(chain.tenantId);
  }

  // --- the common path

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
    if (this.#repairing || this.#queue.length === 0) return;
    if (!this.#pipeline) {
      this.#repair([]);
      return;
    }
    while (this.#queue.length > 0) {
      const under = this.#groups.at(-1);
      const enough = under ? Math.min(under.events, SECOND_GROUP_EVENTS) : 1;
      if (this.#groups.length === DEPTH || this.#queuedEvents < enough) return;
      const batches = this.#take();
      if (batches.length > 0) this.#begin(batches);
    }
  }

  #take(): Batch[] {
    const batches: Batch[] = [];
    let events = 0;
    let bytes = 0;
    let taken = 0;
    const passed: Batch[] = [];
    const { chain: first } = this.#queue[0]!;
    const near = this.#isNear(first);
    for (const batch of this.#queue) {
      if (this.#spread && batch.chain !== first && !(near && this.#isNear(batch.chain))) {
        passed.push(batch);
        continue;
      }
      const fits = events + batch.events.length <= GROUP_EVENTS && bytes + batch.bytes <= GROUP_BYTES;
      if (taken > 0 && !fits) break;
      taken++;
      events += batch.events.length;
      bytes += batch.bytes;
      const refusal = this.#refusalFor(batch.chain);
      if (refusal) batch.reject(refusal);
      else batches.push(batch);
    }
    this.#queue.splice(0, taken + passed.length, ...passed);
    this.#queuedEvents -= events;
    return batches;
  }

  /** Whether the node that is asked has the tenant. */
  #isNear(chain: Chain): boolean {
    return this.#options.db.places?.has(chain.tenantId) ?? false;
  }

  #begin(batches: readonly Batch[]): void {
    const { group, done } = this.#send(batches);
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

  /** Answers committed groups in their order. A group behind one that failed has failed too. */
  #drain(): void {
    while (this.#groups[0]?.state === 'committed') {
      const group = this.#groups.shift()!;
      this.#published(group);
      for (const batch of group.batches) batch.resolve({ results: batch.results });
    }
    if (this.#groups.length > 0) {
      if (this.#groups.every((group) => group.state !== 'under way')) {
        const failed = this.#groups;
        this.#groups = [];
        this.#repair(failed);
      }
    }
    this.#pump();
  }

  #published(group: Group): void {
    this.#options.hooks?.committed?.();
    for (const { chain, seq, hash } of group.heads) {
      const head = { seq, hash: hash.toString('hex'), generation: chain.generation };
      this.#options.checkpoints?.acknowledged.acknowledge(chain.tenantId, 'forensics', head);
    }
    if (group.checkpoints.length > 0) this.#options.checkpoints!.publish(group.checkpoints);
  }

  /**
   * Makes the records of a group and writes its transaction to the connection. Never throws: an event that no record
   * can be made of fails the group as one that the database refuses does.
   */
  #send(batches: readonly Batch[], pick?: number): { group: Group; done: Promise<void> } {
    const group = groupOf(batches);
    const far = this.#spread && !batches.every(({ chain }) => this.#isNear(chain));
    return far ? this.#sendValues(group, pick) : this.#sendCopies(group, pick);
  }

  #sendCopies(group: Group, pick?: number): { group: Group; done: Promise<void> } {
    const buffers = this.#unused.pop() ?? { rows: new CopyRows(1024 * 1024), inputs: new CopyRows(1024) };
    const { rows, inputs } = buffers;
    rows.reset();
    inputs.reset();
    const moves = this.#record(group, pick, rows, inputs);
    if (!Array.isArray(moves)) {
      this.#unused.push(buffers);
      return { group, done: moves };
    }
    const sql = transaction(moves, inputs.count > 0, group.checkpoints, this.#spread);
    const copies = inputs.count > 0 ? [rows.message(), inputs.message()] : [rows.message()];
    // INVARIANT: a buffer is used again only when it was written and its transaction answered
    let pending = 2;
    const free = () => {
      if (--pending === 0) this.#unused.push(buffers);
    };
    const done = this.#pipeline!.run(sql, copies, free);
    done.then(free, free);
    this.#options.hooks?.sent?.(() => this.#pipeline?.destroy());
    return { group, done };
  }

  #sendValues(group: Group, pick?: number): { group: Group; done: Promise<void> } {
    const [rows, inputs] = [new ValueRows(), new ValueRows()];
    const moves = this.#record(group, pick, rows, inputs);
    if (!Array.isArray(moves)) return { group, done: moves };
    const sql = spreadTransaction(moves, { records: rows.values, inputs: inputs.values }, group.checkpoints);
    const done = this.#pipeline!.run(sql);
    this.#options.hooks?.sent?.(() => this.#pipeline?.destroy());
    return { group, done };
  }

  /** Makes the records of a group and signs what is due. A promise in the place of the moves: nothing is to be written. */
  #record(group: Group, pick: number | undefined, rows: Rows, inputs: Rows): HeadMove[] | Promise<void> {
    const now = this.#options.clock.now();
    try {
      for (const batch of group.batches) record(group, batch, pick, now, { recent: this.#recent, rows, inputs });
    } catch (error) {
      return Promise.reject(new BadEvent('no record can be made', { cause: error }));
    }
    // duplicates of records under way: answered in turn, after those are committed
    if (rows.count === 0) return Promise.resolve();
    if (this.#options.checkpoints) sign(group, this.#options.checkpoints, now);
    for (const chain of group.moves.keys()) group.heads.push({ chain, seq: chain.seq, hash: chain.hash });
    return [...group.moves.values()].map(({ chain, seq, hash }) => ({
      tenantId: chain.tenantId,
      fence: chain.fence,
      from: { seq, hash },
      to: { seq: chain.seq, hash: chain.hash },
    }));
  }

  // --- the rare path: one transaction at a time until everything that failed has its answer

  #repair(failed: Group[]): void {
    this.#repairing = this.#repairAll(failed)
      .catch((error: Error) => {
        this.#options.log.error({ err: error }, 'the chain writer failed');
        for (const { batches } of failed)
          for (const batch of batches) this.#giveUp(batch, unavailable('failed', error));
      })
      .finally(() => {
        this.#repairing = undefined;
        this.#pump();
      });
  }

  async #repairAll(failed: Group[]): Promise<void> {
    for (const group of failed.toReversed()) undo(group, this.#recent);
    const error = failed.find((group) => group.error)?.error;
    for (const { batches } of failed) for (const batch of batches) batch.final ??= new Uint8Array(batch.events.length);
    if (!this.#pipeline || error instanceof ConnectionLost) {
      if (!(await this.#reconnect(failed.flatMap((group) => group.batches)))) return;
    } else await this.#rollBack();
    for (const [index, group] of failed.entries()) {
      // of a lost connection's transactions each may be committed; otherwise only the first knows why it failed
      const cause = index === 0 || error instanceof ConnectionLost ? error : undefined;
      await this.#redo(group.batches, undefined, cause);
      for (const batch of group.batches) {
        if (isDone(batch, undefined)) batch.resolve({ results: batch.results });
        else this.#giveUp(batch, unavailable('the database refuses', error));
      }
    }
  }

  /**
   * Gives every event of the batches (or only `pick`) its final result, or rejects the batch. `error` is why the last
   * attempt failed; that attempt is undone and rolled back.
   */
  async #redo(batches: readonly Batch[], pick?: number, error?: Error): Promise<void> {
    let cause = error;
    let open = batches;
    for (let attempt = 0; ; attempt++) {
      if (cause) {
        const remedy = remedyFor(cause);
        this.#options.log.warn({ err: cause, remedy, attempt }, 'a group of records was not committed');
        if (attempt >= ATTEMPTS || remedy === 'none') return this.#isolate(open, pick, cause);
        if (remedy === 'lost') {
          if (attempt > 0 && !(await this.#reconnect(open))) return;
          await this.#lookUp(open, pick);
        } else if (remedy === 'duplicate') {
          if ((await this.#lookUp(open, pick)) === 0) {
            // no id of ours is there: a record exists beyond the head of one of the chains, or an input without its record
            const [chain, ...others] = new Set(open.map((batch) => batch.chain));
            if (chain && others.length === 0) {
              const tenant = chain.tenantId;
              this.#options.log.error(
                { err: cause, tenant },
                'what no record was made of stands in the way of a chain',
              );
              this.#abandon(chain);
            }
            return this.#isolate(open, pick, cause);
          }
        } else if (remedy === 'head') await this.#compareHeads(open);
        else if (remedy === 'data') return this.#divide(open, pick);
      }
      open = open.filter((batch) => {
        const refusal = this.#refusalFor(batch.chain);
        if (refusal) this.#giveUp(batch, refusal);
        return !refusal && !isDone(batch, pick);
      });
      if (open.length === 0) return;
      if (!this.#pipeline && !(await this.#reconnect(open))) return;
      const { group, done } = this.#send(open, pick);
      try {
        await done;
        this.#published(group);
        for (const batch of open) {
          if (pick === undefined) batch.final!.fill(1);
          else batch.final![pick] = 1;
        }
        return;
      } catch (failure) {
        undo(group, this.#recent);
        cause = failure as Error;
        if (!(cause instanceof ConnectionLost)) await this.#rollBack();
      }
    }
  }

  /**
   * The database refuses for a reason that lies in no event. Of several chains only one may be affected, for example when
   * its shard is away or its head is locked, so each is tried by itself. A single chain is given up.
   */
  async #isolate(batches: readonly Batch[], pick: number | undefined, cause: Error): Promise<void> {
    const chains = [...Map.groupBy(batches, (batch) => batch.chain).values()];
    if (chains.length === 1 || pick !== undefined) {
      return this.#rejectAll(batches, unavailable('the database refuses', cause));
    }
    for (const one of chains) await this.#redo(one);
  }

  async #rollBack(): Promise<void> {
    try {
      await this.#pipeline?.run('rollback');
    } catch (error) {
      // the next transaction meets the lost connection itself
      if (!(error instanceof ConnectionLost)) throw error;
    }
  }

  /** The data of one event is at fault: finds it by batch, then by event. */
  async #divide(batches: readonly Batch[], pick: number | undefined): Promise<void> {
    if (pick !== undefined) {
      const batch = batches[0]!;
      batch.results[pick] = { refused: true };
      batch.final![pick] = 1;
      this.#options.log.error(
        { tenant: batch.chain.tenantId, event_id: batch.events[pick]!.event.event_id },
        'the database refused an event that had passed validation',
      );
    } else if (batches.length > 1) {
      for (const batch of batches) await this.#redo([batch]);
    } else {
      const batch = batches[0]!;
      for (let i = 0; i < batch.events.length && batch.chain.live; i++) await this.#redo([batch], i);
    }
  }

  /** Settles the events whose ids are in the chain by now, which counts as acknowledged as far as they are. Returns how many it found. */
  async #lookUp(batches: readonly Batch[], pick: number | undefined): Promise<number> {
    let found = 0;
    const byTenant = Map.groupBy(batches, (batch) => batch.chain);
    for (const [chain, group] of byTenant) {
      const ids = group.flatMap(({ events, final }) =>
        events.filter((_, i) => !final![i] && (pick === undefined || pick === i)).map(({ event }) => event.event_id),
      );
      const rows = await within(CONNECT_MS, this.#stored(chain, ids)).catch((error: Error) => {
        this.#rejectAll(group, unavailable('the database does not answer', error));
        return [];
      });
      const stored = new Map(rows.map((row) => [row.event_id, row]));
      for (const { events, final, results, hashes } of group) {
        for (const [i, { event }] of events.entries()) {
          const row = stored.get(event.event_id);
          if (!row || final![i] || (pick !== undefined && pick !== i)) continue;
          // the attempt before may itself have stored it: then it is where that attempt meant to put it
          const meant = results[i];
          const ours =
            meant &&
            'seq' in meant &&
            !meant.duplicate &&
            row.hash.equals(hashes.subarray(HASH_BYTES * i, HASH_BYTES * (i + 1)));
          if (sameLine(chain.tenantId, event, row.line)) {
            const head = { seq: row.seq, hash: row.hash.toString('hex'), generation: chain.generation };
            this.#options.checkpoints?.acknowledged.acknowledge(chain.tenantId, 'forensics', head);
            results[i] = { seq: row.seq, duplicate: !ours };
          } else results[i] = { conflict: true };
          final![i] = 1;
          found++;
        }
      }
    }
    return found;
  }

  async #stored({ tenantId }: Chain, ids: readonly string[]) {
    const { rows } = await this.#options.db
      .nearOf(tenantId)
      .query<{ event_id: string; seq: number; hash: Buffer; line: string }>(
        'select event_id, seq, hash, line from forensic_record where tenant_id = $1 and event_id = any($2)',
        [tenantId, ids],
      );
    return rows;
  }

  /** The compare-and-swap found another head than ours: another owner's, or one that moved without us. */
  async #compareHeads(batches: readonly Batch[]): Promise<void> {
    for (const chain of new Set(batches.map((batch) => batch.chain))) {
      const { rows } = await within(
        CONNECT_MS,
        this.#options.db
          .nearOf(chain.tenantId)
          .query<{ seq: number; hash: Buffer; fence: number }>(
            `select seq, hash, fence from chain_head where tenant_id = $1 and chain = 'forensics'`,
            [chain.tenantId],
          ),
      );
      const head = rows[0];
      if (head?.fence !== chain.fence) {
        this.#options.log.warn({ tenant: chain.tenantId }, 'another process took the chain over');
        this.#abandon(chain);
      } else if (head.seq !== chain.seq || !head.hash.equals(chain.hash)) {
        // no other process may move it under our fence: this writer cannot repair it
        this.#options.log.error({ tenant: chain.tenantId, seq: head.seq }, 'the head of a chain moved under its owner');
        this.#abandon(chain);
      }
    }
  }

  /**
   * Connects again and takes the fences of the batches' chains again, in a compare-and-swap so that a chain that
   * another process took in the meantime is left to it. False when the database stays away: the batches are rejected
   * then, and all that waits.
   *
   * Every other chain is released and opened again on its next use: the database that answers now may be an older
   * copy of the one that was lost, and each chain has to be compared with what was acknowledged before it is believed.
   *
   * INVARIANT: fences first, look-ups after (see #open): the lost connection's transaction may still be running.
   */
  async #reconnect(batches: readonly Batch[]): Promise<boolean> {
    // what waits for the first connection was opened a moment ago
    const waiting = this.#losses === 0 ? batches : [...batches, ...this.#queue];
    const chains = [...new Set(waiting.map((batch) => batch.chain))].filter((chain) => chain.live);
    const { db, log } = this.#options;
    const began = performance.now();
    if (this.#losses > 0) {
      for (const chain of this.#chains.values()) {
        if (!(chain instanceof Promise) && !chains.includes(chain)) this.#abandon(chain);
      }
    }
    for (let pauseMs = 50; ; pauseMs = Math.min(2 * pauseMs, 2000)) {
      let client: pg.Client | undefined;
      try {
        this.#pipeline?.destroy();
        this.#pipeline = undefined;
        client = await within(CONNECT_MS, db.connectNear());
        client.on('error', () => undefined);
        await within(CONNECT_MS, client.query(session(db.citus !== undefined)));
        for (const chain of chains) if (chain.live) await this.#takeAgain(client, chain, batches);
        let pipeline: Pipeline | undefined;
        pipeline = new Pipeline(client, {
          timeoutMs: TRANSACTION_MS,
          onLost: (error) => {
            if (this.#pipeline !== pipeline) return;
            this.#pipeline = undefined;
            this.#losses++;
            if (!this.#stopped) log.warn({ err: error.cause ?? error }, 'the chain writer lost its connection');
            // also where nothing is to be written, since requests may fail before it: how long the database has been away is told
            if (this.#groups.length === 0) this.connect();
          },
        });
        this.#pipeline = pipeline;
        if (this.#down) log.info('the chain writer is connected again');
        this.#down = false;
        return true;
      } catch (error) {
        client?.connection.stream.destroy();
        const waited = performance.now() - began;
        if (waited > (this.#options.patienceMs ?? 3000) || this.#stopped) {
          if (!this.#down) {
            log.error({ err: error }, 'the chain writer has no database; events are refused');
            this.#downSince = began;
          }
          this.#down = !this.#stopped;
          const refusal = unavailable('the database does not answer', error);
          for (const chain of chains) this.#abandon(chain);
          for (const batch of batches) this.#giveUp(batch, refusal);
          for (const batch of this.#queue.splice(0)) batch.reject(refusal);
          this.#queuedEvents = 0;
          if (this.#stopped) return false;
        }
        await pause(pauseMs, this.#stopping.signal);
      }
    }
  }

  /** Takes the fence of a chain that this writer owned. A fault of this chain alone rejects only its batches. */
  async #takeAgain(client: pg.Client, chain: Chain, batches: readonly Batch[]): Promise<void> {
    const unreplicated = this.#unreplicated(chain.tenantId);
    if (unreplicated) {
      this.#abandon(chain, unreplicated);
      this.#rejectAll(
        batches.filter((batch) => batch.chain === chain),
        unreplicated,
      );
      return;
    }
    try {
      const { rows } = await within(
        CONNECT_MS,
        client.query<{ seq: number; hash: Buffer; fence: number }>(
          `update chain_head set fence = fence + 1 where tenant_id = $1 and chain = 'forensics' and fence = $2
           returning seq, hash, fence`,
          [chain.tenantId, chain.fence],
        ),
      );
      if (!rows[0]) {
        this.#abandon(chain);
        return;
      }
      Object.assign(chain, rows[0]);
      const known = this.#options.checkpoints?.acknowledged.local(chain.tenantId, 'forensics');
      if (known?.seq === chain.seq && known.hash === chain.hash.toString('hex')) return;
      Object.assign(chain, await within(CONNECT_MS, this.#compared(chain.tenantId)));
    } catch (error) {
      if (error instanceof ChainClosed) {
        this.#abandon(chain, error);
        return;
      }
      // the server itself answered on a connection that still works: the fault is not the connection's
      if (!('code' in (error as Error)) || client.connection.stream.destroyed) throw error;
      await within(CONNECT_MS, client.query('select 1'));
      this.#options.log.error({ err: error, tenant: chain.tenantId }, 'a chain cannot be taken again');
      this.#abandon(chain);
      this.#rejectAll(
        batches.filter((batch) => batch.chain === chain),
        unavailable('the database refuses', error),
      );
    }
  }

  #rejectAll(batches: readonly Batch[], error: Error): void {
    for (const batch of batches) this.#giveUp(batch, error);
  }

  /** Rejects the batch; the events of it that are still open are not tried again. */
  #giveUp(batch: Batch, error: Error): void {
    batch.reject(error);
    batch.final?.fill(1);
  }
}

/** About how much they take, with what is kept of their inputs. */
export function bytesOf(events: readonly AppendEvent[]): number {
  let bytes = 0;
  for (const { bytes: own = EVENT_BYTES, input } of events) {
    bytes += own;
    if (input) bytes += (input.projection?.length ?? 0) + (input.input?.length ?? 0);
  }
  return bytes;
}

interface LastRecord {
  readonly seq: number;
  readonly received_at: Date;
  readonly hash: Buffer;
  readonly event_id: string;
}

/** The last record of a chain with this head, and if it was written a moment ago those before it, in their order. */
async function lastRecords(
  near: Pick<pg.Pool, 'query'>,
  tenantId: string,
  seq: number,
  now: number,
): Promise<LastRecord[]> {
  const last = 'tenant_id = $1 and seq = $2';
  const { rows } = await near.query<LastRecord>(
    `select seq, received_at, hash, event_id from forensic_record where ${last}
     union all
     select seq, received_at, hash, event_id from forensic_record
     where tenant_id = $1 and seq < $2 and seq >= $2 - ${GROUP_EVENTS - 1}
       and received_at > $3 and (select received_at > $3 from forensic_record where ${last})
     order by seq`,
    [tenantId, seq, new Date(now - MOMENT_MS)],
  );
  return rows;
}

function sameLine(tenantId: string, event: DecisionEvent, line: string): boolean {
  const { seq, received_at } = JSON.parse(line) as { seq: number; received_at: string };
  return decisionLine(tenantId, seq, received_at, event) === line;
}

function isDone(batch: Batch, pick: number | undefined): boolean {
  return pick === undefined ? batch.final!.every((final) => final === 1) : batch.final![pick] === 1;
}

function unavailable(detail: string, cause?: unknown): AppError {
  return new AppError('UNAVAILABLE', detail, { headers: { 'retry-after': '1' }, cause });
}
