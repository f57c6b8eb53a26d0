import type { KeyObject } from 'node:crypto';
import { across, type Tenants, writable } from '../../db/citus.ts';
import { inTransaction } from '../../db/client.ts';
import type { Database } from '../../db/index.ts';
import { type Departure, hasLeftWith } from '../../db/moves.ts';
import { addEventBy, type OutboxEvent } from '../../db/outbox.ts';
import { AppError } from '../errors.ts';
import type { Job } from '../jobs/jobs.ts';
import type { Clock } from '../lib/clock.ts';
import type { Log } from '../lib/log.ts';
import { pause } from '../lib/pause.ts';
import { appendNotes, checkpointFile, highestInFile } from './checkpoint-file.ts';
import { AcknowledgedHeads, type KnownHead } from './heads.ts';
import { chainOrigin, isSuperseded } from './loss.ts';
import { signHead } from './note.ts';
import type { ChainName } from './record.ts';
import { Comparison, type KeysOf, type Knowledge, type Standing } from './standing.ts';

/** A signed statement of a chain's head. */
export interface Checkpoint {
  readonly tenantId: string;
  readonly chain: ChainName;
  readonly seq: number;
  /** BLAKE3 of record `seq`, in hex. */
  readonly hash: string;
  readonly kid: string;
  /** The signed note, see note.ts. */
  readonly note: string;
  readonly createdAt: string;
}

export interface Signer {
  readonly kid: string;
  readonly privateKey: KeyObject;
  readonly publicKey: KeyObject;
}

export interface CheckpointOptions {
  db: Pick<Database, 'owner' | 'asideOf' | 'nearOf'> & Tenants;
  clock: Clock;
  log: Log;
  /** The name before the tenant in the note's origin: the host of the server's public address. */
  host: string;
  /** Called for each signature, so that a rotated key takes effect immediately. */
  signer: () => Signer;
  keys: KeysOf;
  /** Returns a tenant's departure to another installation, if there is one. By default there is none. */
  departure?: ((tenantId: string) => Promise<Departure | undefined>) | undefined;
  /** Where the checkpoint files are written. If absent, no files are written. */
  directory?: string | undefined;
  /** The heads that were acknowledged. By default, only those that this process acknowledges through `acknowledged`. */
  acknowledged?: AcknowledgedHeads | undefined;
  /** Called with each checkpoint after its commit; late, or never, if the process dies in between. */
  onCheckpoint?: ((checkpoint: Checkpoint) => void) | undefined;
  everyRecords?: number;
  everyMs?: number;
}

/** A chain contradicts what is known about it, so it is not signed again. */
export class InconsistentChain extends Error {
  override readonly name = 'InconsistentChain';
}

/** The chain takes no more records until an operator has accepted the loss. */
export class ChainClosed extends AppError {
  constructor(chain: ChainName) {
    const name = chain === 'forensics' ? 'decision' : 'audit';
    super('UNAVAILABLE', `the ${name} chain is closed: records that were acknowledged are not there`, {
      headers: { 'retry-after': '30' },
    });
    this.name = 'ChainClosed';
  }
}

interface ChainId {
  readonly tenantId: string;
  readonly chain: ChainName;
}

/** The tenant's records are complete in another installation, or on their way there. */
class Departed extends AppError {
  constructor() {
    super('UNAVAILABLE', 'the tenant is moving to another installation', { headers: { 'retry-after': '2' } });
    this.name = 'Departed';
  }
}

const SWEEP_MS = 10_000;
/** Chains looked up per query. */
const PAGE = 500;
/**
 * This many chains are compared back to back. After each further one, this process rests for REST times as long as it took. The
 * rest then costs about one percent of a core, and takes correspondingly long: days for a million chains.
 */
const HURRIED = 200;
const REST = 100;
const RETRY_MS = 2000;
/** After this many consecutive failures to compare a chain, the database may be down, so it is left alone for a moment. */
const MOST_IN_A_ROW = 20;
/** Chains remembered for a retry because they could not be compared. If there are more, all chains are compared again. */
const MOST_LEFT = 10_000;
/** A closed chain is compared again after this time, so that writers resume soon after the operator has acted. */
const CLOSED_MS = 1000;

/**
 * Signs the heads of the chains, and compares every chain with what is known about it (standing.ts). The comparison reveals a
 * truncated tail, a rewritten history, or a database that came back without its newest commits.
 *
 * INVARIANT: two contradictory checkpoints of one chain are never signed. Each checkpoint is stored in a transaction that holds
 * the chain's head (under its row lock, or in the compare-and-swap that moves it), and the holder of the head has compared the
 * chain with everything that is known.
 *
 * A chain that contradicts what is known is closed: nothing is added to it and nothing is signed until an operator accepts the
 * loss (accept-loss.ts).
 */
export class Checkpoints {
  readonly #options: CheckpointOptions;
  /** A checkpoint is due after this many records. */
  readonly everyRecords: number;
  readonly #everyMs: number;
  readonly acknowledged: AcknowledgedHeads;
  readonly comparison: Comparison;
  /** Chains that this process knows to be closed, and when it last checked each. */
  readonly #closed = new Map<string, { at: number }>();
  #inspecting: Promise<void> | undefined;
  #inspectAgain = false;
  #raising: Promise<unknown> = Promise.resolve();
  #recheck: NodeJS.Timeout | undefined;
  readonly #stopping = new AbortController();
  readonly #unwritten = new Map<string, string>();
  #writing: Promise<void> | undefined;

  constructor(options: CheckpointOptions) {
    this.#options = options;
    this.acknowledged = options.acknowledged ?? new AcknowledgedHeads(options.log);
    const { keys, directory } = options;
    this.comparison = new Comparison({ acknowledged: this.acknowledged, keys, directory });
    this.everyRecords = options.everyRecords ?? 1000;
    this.#everyMs = options.everyMs ?? 60_000;
  }

  /** Signs chains with new records, every few seconds. */
  job(): Job {
    return {
      name: 'checkpoints',
      everySeconds: SWEEP_MS / 1000,
      run: async (signal) => void (await this.sweep(signal)),
    };
  }

  /** Stops, and waits until the files are written. */
  async stop(): Promise<void> {
    this.#stopping.abort();
    clearInterval(this.#recheck);
    await this.#inspecting;
    await this.#raising;
    await this.acknowledged.flushed();
    await this.flushed();
  }

  /** How many chains this process knows to be closed. */
  get closed(): number {
    return this.#closed.size;
  }

  /** Resolves when every checkpoint published so far is in its file, flushed to disk (or the failure was logged). */
  async flushed(): Promise<void> {
    while (this.#writing) await this.#writing;
  }

  /**
   * Signs the chains that are due: those with everyRecords new records, those whose unsigned records will be older than the
   * interval before the next sweep, and those whose last checkpoint came from a clock that was far ahead. Resolves with the
   * number of chains signed. The cost depends on the number of chains with unsigned records, not on the number of chains.
   */
  async sweep(signal = this.#stopping.signal): Promise<number> {
    const { db, clock, log } = this.#options;
    const now = clock.now();
    const rows = await across<{ tenant_id: string; chain: ChainName; seq: number; signed: boolean }>(
      db,
      `select h.tenant_id, h.chain, h.seq, h.seq <= coalesce(c.seq, 0) as signed from chain_head h
       left join lateral (
         select c.seq, c.created_at from chain_checkpoint c
         where c.tenant_id = h.tenant_id and c.chain = h.chain order by c.seq desc limit 1) c on true
       where h.unsigned
         and (c.seq is null or h.seq <= c.seq or h.seq - c.seq >= $1 or c.created_at <= $2 or c.created_at > $3)`,
      [this.everyRecords, new Date(now - this.#everyMs + SWEEP_MS), new Date(now + SWEEP_MS)],
    );
    let signed = 0;
    for (const row of writable(db, rows)) {
      if (signal.aborted) break;
      try {
        // already signed by its writer along the way; it comes up again after its next record
        if (row.signed) await this.#settle(row);
        else if (await this.take(row.tenant_id, row.chain)) signed++;
      } catch (error) {
        if (error instanceof InconsistentChain) continue;
        log.error({ err: error, tenant: row.tenant_id, chain: row.chain }, 'a chain could not be signed');
      }
    }
    return signed;
  }

  async #settle({ tenant_id, chain, seq }: { tenant_id: string; chain: ChainName; seq: number }): Promise<void> {
    await this.#options.db
      .nearOf(tenant_id)
      .query('update chain_head set unsigned = false where tenant_id = $1 and chain = $2 and seq = $3', [
        tenant_id,
        chain,
        seq,
      ]);
  }

  /**
   * Signs the chain's head now. Once it resolves, the checkpoint is committed. Resolves with undefined if the head is already
   * signed or the chain is empty. Rejects with InconsistentChain, and logs it as fatal, if the chain contradicts what is known.
   */
  async take(tenantId: string, chain: ChainName): Promise<Checkpoint | undefined> {
    const knowledge = await this.comparison.knowledge(tenantId, chain);
    const { standing, checkpoint } = await inTransaction(this.#options.db.nearOf(tenantId), async (client) => {
      await client.query('select from chain_head where tenant_id = $1 and chain = $2 for update', [tenantId, chain]);
      const standing = await this.comparison.standing(client, tenantId, chain, knowledge);
      const { head, signed, generation, contradiction, unreadable } = standing;
      if (contradiction || unreadable !== undefined || head.seq <= signed) return { standing, checkpoint: undefined };
      const checkpoint = this.#signed(tenantId, chain, { ...head, generation });
      await client.query(
        'insert into chain_checkpoint (tenant_id, chain, seq, kid, note, created_at) values ($1, $2, $3, $4, $5, $6)',
        [tenantId, chain, checkpoint.seq, checkpoint.kid, checkpoint.note, checkpoint.createdAt],
      );
      await addEventBy(client, tenantId, checkpointEvent(checkpoint));
      await client.query('update chain_head set unsigned = false where tenant_id = $1 and chain = $2', [
        tenantId,
        chain,
      ]);
      return { standing, checkpoint };
    });
    if (checkpoint) this.publish([checkpoint]);
    try {
      await this.#judge(tenantId, chain, standing, knowledge);
    } catch (error) {
      throw error instanceof ChainClosed ? new InconsistentChain(standing.contradiction?.reason) : error;
    }
    if (standing.unreadable !== undefined) throw new InconsistentChain(standing.unreadable);
    return checkpoint;
  }

  /**
   * For a writer that has just taken the fence of a chain: compares the chain with everything that is known. Resolves with the
   * generation of its records, the seq of its newest checkpoint (undefined when `sign` must not be called for the chain), and
   * whether something that this process had acknowledged has since been given up. Rejects with ChainClosed.
   */
  async resume(
    tenantId: string,
    chain: ChainName,
  ): Promise<{ signed: number | undefined; generation: number; givenUp: boolean }> {
    const local = this.acknowledged.local(tenantId, chain);
    const standing = await this.inspect(tenantId, chain);
    const { signed, generation, losses, unreadable } = standing;
    const givenUp = local !== undefined && isSuperseded(losses, local);
    return { signed: unreadable === undefined ? signed : undefined, generation, givenUp };
  }

  /** Compares a chain with everything known about it. If they differ, raises the alarm and rejects with ChainClosed. */
  async inspect(tenantId: string, chain: ChainName): Promise<Standing> {
    const knowledge = await this.comparison.knowledge(tenantId, chain);
    const standing = await this.comparison.standing(this.#options.db.nearOf(tenantId), tenantId, chain, knowledge);
    await this.#judge(tenantId, chain, standing, knowledge);
    return standing;
  }

  /**
   * Like inspect, for a caller that holds the chain's head. The alarm needs the head too, so it is raised once the head is
   * released.
   */
  async inspectHeld(tenantId: string, chain: ChainName): Promise<Standing> {
    const knowledge = await this.comparison.knowledge(tenantId, chain);
    const standing = await this.comparison.standing(this.#options.db.asideOf(tenantId), tenantId, chain, knowledge);
    if (!standing.contradiction) return standing;
    const raised = this.inspect(tenantId, chain).catch((err) => {
      if (!(err instanceof ChainClosed))
        this.#options.log.warn({ err, tenant: tenantId, chain }, 'an alarm could not be raised');
    });
    this.#raising = Promise.all([this.#raising, raised]);
    throw new ChainClosed(chain);
  }

  /** Throws ChainClosed, without querying the database, if the chain was found closed a moment ago. */
  assertOpen(tenantId: string, chain: ChainName): void {
    const closed = this.#closed.get(`${chain} ${tenantId}`);
    if (closed && performance.now() - closed.at < CLOSED_MS) throw new ChainClosed(chain);
  }

  /**
   * Compares every chain in the background: at startup and whenever the database was away, because it may have come back as an
   * older copy. Chains with the newest records come first. If there are very many, the rest are spread out over time. That delays
   * only the alarm, because a chain is always compared before anything is added to it. A chain that cannot be compared does not
   * hold up the others, and is retried until it can be. Resolves when all have been compared, including for calls made while it
   * runs.
   */
  inspectAll(): Promise<void> {
    this.#inspectAgain = true;
    this.#inspecting ??= (async () => {
      while (this.#inspectAgain && !this.#stopping.signal.aborted) {
        this.#inspectAgain = false;
        try {
          await this.#inspectEach();
        } catch (err) {
          this.#options.log.warn({ err }, 'chains could not be compared with what is known; tried again soon');
          this.#inspectAgain = true;
          await pause(RETRY_MS, this.#stopping.signal);
        }
      }
      this.#inspecting = undefined;
    })();
    return this.#inspecting;
  }

  async #inspectEach(): Promise<void> {
    const left: ChainId[] = [];
    let forgotten = 0;
    let looked = 0;
    let inARow = 0;
    /** False when the pass is over: this process is stopping, or the pass restarts with the newest chains. */
    const inspectThese = async (chains: readonly ChainId[]): Promise<boolean> => {
      for (const { tenantId, chain } of chains) {
        if (this.#stopping.signal.aborted || this.#inspectAgain) return false;
        const began = performance.now();
        try {
          const { signed, filed, unreadable } = await this.inspect(tenantId, chain);
          inARow = 0;
          // restored to a moment between a record and its checkpoint: only the signature is missing
          if (filed > signed && unreadable === undefined) await this.take(tenantId, chain);
        } catch (err) {
          // what this process remembers of the chain is no longer of use here
          if (err instanceof Departed) this.acknowledged.forget(tenantId, chain);
          else if (!(err instanceof ChainClosed)) {
            if (left.length < MOST_LEFT) left.push({ tenantId, chain });
            else forgotten++;
            if (++inARow % MOST_IN_A_ROW === 0) await pause(RETRY_MS, this.#stopping.signal);
          }
        }
        if (++looked > HURRIED) await pause((performance.now() - began) * REST, this.#stopping.signal);
      }
      return true;
    };
    for await (const chains of this.#pages()) if (!(await inspectThese(chains))) return;
    if (forgotten > 0) throw new Error(`${left.length + forgotten} chains could not be compared`);
    while (left.length > 0) {
      this.#options.log.warn(
        { chains: left.length },
        'chains could not be compared with what is known; tried again soon',
      );
      await pause(RETRY_MS, this.#stopping.signal);
      if (!(await inspectThese(left.splice(0)))) return;
    }
  }

  /**
   * Every chain, in this order: those that this process has written (the first to lack something in an older copy), those with
   * unsigned records, the rest of the database, and those known only from outside the database.
   */
  async *#pages(): AsyncGenerator<ChainId[]> {
    yield [...this.acknowledged.chains()];
    const { owner } = this.#options.db;
    type Row = { tenant_id: string; chain: ChainName };
    const found = (rows: Row[]) => rows.map((row) => ({ tenantId: row.tenant_id, chain: row.chain }));
    for (const where of ['unsigned', 'not unsigned']) {
      for (let last: Row | undefined, full = true; full; ) {
        const { rows } = await owner.query<Row>(
          `select tenant_id, chain from chain_head where ${where} and (tenant_id, chain) > ($1, $2)
           order by tenant_id, chain limit ${PAGE}`,
          [last?.tenant_id ?? '', last?.chain ?? ''],
        );
        yield found(rows);
        last = rows.at(-1);
        full = rows.length === PAGE;
      }
    }
    for await (const known of this.comparison.chains(PAGE)) {
      // with several servers, the only way is to read the chains that exist
      const { rows } = await owner.query<Row>('select tenant_id, chain from chain_head where tenant_id = any($1)', [
        [...new Set(known.map(({ tenantId }) => tenantId))],
      ]);
      const there = new Set(rows.map((row) => `${row.chain} ${row.tenant_id}`));
      yield known.filter(({ tenantId, chain }) => !there.has(`${chain} ${tenantId}`));
    }
  }

  /** Acts on what was found: closes a chain, or notes that it is open. */
  async #judge(tenantId: string, chain: ChainName, standing: Standing, knowledge: Knowledge): Promise<void> {
    const { contradiction, unreadable, head, last } = standing;
    const { log } = this.#options;
    const key = `${chain} ${tenantId}`;
    if (!contradiction) {
      if (this.#closed.delete(key)) log.info({ tenant: tenantId, chain }, 'a chain is open again');
      if (unreadable !== undefined) log.fatal({ tenant: tenantId, chain }, `${unreadable}; it is not signed any more`);
      return;
    }
    if (head.seq === 0 && hasLeftWith(await this.#options.departure?.(tenantId), chain, contradiction.known)) {
      this.#closed.delete(key);
      throw new Departed();
    }
    const first = !this.#closed.has(key);
    this.#closed.set(key, { at: performance.now() });
    this.#recheck ??= setInterval(() => this.#lookAgain(), RETRY_MS).unref();
    if (first) {
      const { reason, known, agreed } = contradiction;
      const fields = { tenant: tenantId, chain, known, head, last, agreed };
      log.fatal(fields, `a chain is closed: ${reason}. An operator must look, then run "svc chain accept-loss"`);
      try {
        await this.#raiseAlarm(tenantId, chain, knowledge);
      } catch (err) {
        this.#closed.delete(key);
        log.error({ err, tenant: tenantId, chain }, 'the alarm of a chain could not be stored');
      }
    }
    throw new ChainClosed(chain);
  }

  /** Compares the closed chains again, including those without a writer, until none are left. */
  #lookAgain(): void {
    if (this.#closed.size === 0) {
      clearInterval(this.#recheck);
      this.#recheck = undefined;
      return;
    }
    const looks = [...this.#closed.keys()].map((key) => {
      const at = key.indexOf(' ');
      // still closed, or the database is down: the next comparison will tell
      return this.inspect(key.slice(at + 1), key.slice(0, at) as ChainName).catch(() => undefined);
    });
    this.#raising = Promise.all([this.#raising, ...looks]);
  }

  /** Stores for every process that the chain is closed, and notifies subscribers: once, however many processes notice it. */
  async #raiseAlarm(tenantId: string, chain: ChainName, knowledge: Knowledge): Promise<void> {
    const { db, clock } = this.#options;
    const at = clock.now();
    await inTransaction(db.nearOf(tenantId), async (client) => {
      // under the lock, because an operator may have accepted the loss in the meantime
      await client.query('select from chain_head where tenant_id = $1 and chain = $2 for update', [tenantId, chain]);
      const standing = await this.comparison.standing(client, tenantId, chain, knowledge);
      const found = standing.contradiction;
      if (!found) return;
      const { rows } = await client.query<{ raised: boolean }>(
        `insert into chain_alarm as a (tenant_id, chain, known_seq, known_hash, known_generation, agreed, last_seq,
           reason, noticed_at)
         select $1, $2, $3, $4, $5, $6, $7, $8, $9 where exists (select from tenant where tenant_id = $1)
         on conflict (tenant_id, chain) do update set
           known_seq = excluded.known_seq, known_hash = excluded.known_hash, reason = excluded.reason,
           known_generation = greatest(a.known_generation, excluded.known_generation),
           agreed = least(a.agreed, excluded.agreed)
         where excluded.known_seq > a.known_seq or excluded.agreed < a.agreed
         returning xmax = 0 as raised`,
        [
          tenantId,
          chain,
          found.known.seq,
          found.known.hash,
          Math.max(found.known.generation, standing.knownGeneration),
          found.agreed,
          standing.last,
          found.reason,
          new Date(at),
        ],
      );
      if (rows[0]?.raised) {
        // a writer in another process must compare as well
        await client.query('update chain_head set fence = fence + 1 where tenant_id = $1 and chain = $2', [
          tenantId,
          chain,
        ]);
        await addEventBy(client, tenantId, {
          type: 'forensics.chain_closed',
          at,
          payload: {
            chain,
            reason: found.reason,
            known_seq: found.known.seq,
            last_seq: standing.last,
            created_at: new Date(at).toISOString(),
          },
        });
      }
    });
  }

  /**
   * A checkpoint for a head that the caller stores in the transaction that moves the head there, and publishes afterwards.
   * Undefined if there is no key to sign with.
   */
  sign(
    tenantId: string,
    chain: ChainName,
    head: { seq: number; hash: Uint8Array; generation: number },
    now?: number,
  ): Checkpoint | undefined {
    try {
      const hash = Buffer.from(head.hash).toString('hex');
      return this.#signed(tenantId, chain, { seq: head.seq, hash, generation: head.generation }, now);
    } catch (error) {
      this.#options.log.error({ err: error, tenant: tenantId, chain }, 'a chain could not be signed');
      return undefined;
    }
  }

  /** Publishes committed checkpoints to the files (see `flushed`) and to `onCheckpoint`. Never throws. */
  publish(checkpoints: readonly Checkpoint[]): void {
    const { directory, log, onCheckpoint } = this.#options;
    for (const checkpoint of checkpoints) {
      if (directory !== undefined) {
        const file = checkpointFile(directory, checkpoint.tenantId, checkpoint.chain);
        this.#unwritten.set(file, `${this.#unwritten.get(file) ?? ''}${checkpoint.note}\n`);
        this.#writing ??= this.#write().finally(() => {
          this.#writing = undefined;
        });
      }
      try {
        onCheckpoint?.(checkpoint);
      } catch (error) {
        log.error({ err: error }, 'the listener for checkpoints failed');
      }
    }
  }

  /**
   * For a tenant that has arrived (`*`: for all that have): records outside the database what it is known to have, just as for a
   * chain signed here. From then on a truncated tail is noticed, even if no one uses the tenant. Never rejects.
   */
  async adopt(tenantId: string): Promise<void> {
    try {
      const { rows } = await this.#options.db.owner.query<{ tenant_id: string }>(
        `select tenant_id from tenant_move
         where direction = 'in' and state = 'arrived' and ($1 = '*' or tenant_id = $1)`,
        [tenantId],
      );
      for (const { tenant_id } of rows) {
        for (const chain of ['audit', 'forensics'] as const) await this.#adoptOne(tenant_id, chain);
      }
    } catch (err) {
      this.#options.log.warn({ err, tenant: tenantId }, 'what a tenant came with could not be written down');
    }
  }

  async #adoptOne(tenantId: string, chain: ChainName): Promise<void> {
    const { directory, keys, log } = this.#options;
    if (this.#stopping.signal.aborted) return;
    const latest = await this.latest(tenantId, chain);
    // it may have moved on
    if (!latest) return;
    try {
      const { generation } = await this.inspect(tenantId, chain);
      this.acknowledged.acknowledge(tenantId, chain, { seq: latest.seq, hash: latest.hash, generation });
      if (directory === undefined) return;
      const filed = await highestInFile(directory, tenantId, chain, keys(tenantId, chain));
      if (filed.every(({ seq }) => seq < latest.seq)) this.publish([latest]);
    } catch (err) {
      log.warn({ err, tenant: tenantId, chain }, 'what a chain came with could not be written down');
    }
  }

  /** The newest checkpoint of the chain. */
  async latest(tenantId: string, chain: ChainName): Promise<Checkpoint | undefined> {
    const [row] = await this.#select(tenantId, chain, 'order by seq desc limit 1', []);
    return row;
  }

  /** The checkpoints of records `from` to `to`, both included, ascending; at most `limit`. */
  list(tenantId: string, chain: ChainName, from: number, to: number, limit = 10_000): Promise<Checkpoint[]> {
    return this.#select(tenantId, chain, 'and seq between $3 and $4 order by seq limit $5', [from, to, limit]);
  }

  async #select(tenantId: string, chain: ChainName, rest: string, values: unknown[]): Promise<Checkpoint[]> {
    const { rows } = await this.#options.db
      .nearOf(tenantId)
      .query<CheckpointRow>(
        `select seq, kid, note, created_at from chain_checkpoint where tenant_id = $1 and chain = $2 ${rest}`,
        [tenantId, chain, ...values],
      );
    return rows.map((row) => ({
      tenantId,
      chain,
      seq: row.seq,
      hash: row.note.split('\n')[3] ?? '',
      kid: row.kid,
      note: row.note,
      createdAt: row.created_at.toISOString(),
    }));
  }

  #signed(tenantId: string, chain: ChainName, head: KnownHead, now?: number): Checkpoint {
    const { kid, privateKey, publicKey } = this.#options.signer();
    const { seq, hash, generation } = head;
    const origin = chainOrigin(this.#options.host, tenantId, chain);
    const note = signHead({ origin, seq, hash, generation }, privateKey, publicKey);
    const createdAt = new Date(now ?? this.#options.clock.now()).toISOString();
    return { tenantId, chain, seq, hash, kid, note, createdAt };
  }

  /** One write and one flush for all waiting notes. */
  async #write(): Promise<void> {
    for (;;) {
      const next = this.#unwritten.entries().next().value;
      if (!next) return;
      const [file, text] = next;
      this.#unwritten.delete(file);
      try {
        await appendNotes(file, text);
      } catch (error) {
        this.#options.log.error({ err: error, file }, 'a checkpoint could not be written to its file');
      }
    }
  }
}

/** The event that tells subscribers about a checkpoint. It carries the note, so that they can hold this server to it. */
export function checkpointEvent({
  chain,
  seq,
  hash,
  kid,
  note,
  createdAt,
}: Checkpoint): OutboxEvent<'forensics.checkpoint'> {
  return {
    type: 'forensics.checkpoint',
    at: Date.parse(createdAt),
    payload: { chain, seq, hash, kid, note, created_at: createdAt },
  };
}

interface CheckpointRow {
  seq: number;
  kid: string;
  note: string;
  created_at: Date;
}
