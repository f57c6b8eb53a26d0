import type { KeyObject } from 'node:crypto';
import { readdir } from 'node:fs/promises';
import { setTimeout as delay } from 'node:timers/promises';
import type pg from 'pg';
import type { Database } from '../../db/index.ts';
import { addEventBy, type OutboxEvent } from '../../db/outbox.ts';
import { AppError } from '../errors.ts';
import type { Clock } from '../lib/clock.ts';
import type { Log } from '../lib/log.ts';
import { appendNotes, chainOfFile, checkpointFile, FiledHeads } from './checkpoint-file.ts';
import { AcknowledgedHeads, type KnownHead } from './heads.ts';
import { type AcceptedLoss, chainOrigin, isOriginOf, isSuperseded, RECORDS, readLosses } from './loss.ts';
import { openHead, signHead } from './note.ts';
import { type ChainName, ZERO_HASH } from './record.ts';
import type { ChainPosition } from './verify.ts';

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
  db: Pick<Database, 'owner'>;
  clock: Clock;
  log: Log;
  /** The name before the tenant in the note's origin: the host of the server's public address. */
  host: string;
  /** Asked for each signature, so that a rotated key is used at once. */
  signer: () => Signer;
  /** All keys that ever signed, retired ones included. */
  keys: () => readonly KeyObject[];
  /** Where the checkpoint files go; without it there are none. */
  directory?: string | undefined;
  /** What was acknowledged; by default only what this process acknowledges through `acknowledged`. */
  acknowledged?: AcknowledgedHeads | undefined;
  /** Called with each checkpoint after its commit; late, or not at all, when the process dies in between. */
  onCheckpoint?: ((checkpoint: Checkpoint) => void) | undefined;
  everyRecords?: number;
  everyMs?: number;
}

/** A chain does not agree with what is known about it; it is not signed again. */
export class InconsistentChain extends Error {
  override readonly name = 'InconsistentChain';
}

/** The chain takes no more records until an operator has accepted what is missing in it. */
export class ChainClosed extends AppError {
  constructor(chain: ChainName) {
    const name = chain === 'forensics' ? 'decision' : 'audit';
    super('UNAVAILABLE', `the ${name} chain is closed: records that were acknowledged are not there`, {
      headers: { 'retry-after': '30' },
    });
    this.name = 'ChainClosed';
  }
}

/** A known head that the chain does not have. */
export interface Contradiction {
  readonly reason: string;
  /** The highest head that is known to have been there. */
  readonly known: KnownHead;
  /** Up to this record the chain agrees with everything known. */
  readonly agreed: number;
}

/** How a chain compares with all that is known about it. */
export interface Standing {
  /** As the head row states it. */
  readonly head: ChainPosition;
  /** The last record that is there. */
  readonly last: number;
  /** How many losses were accepted, by the number of the last. */
  readonly generation: number;
  /** The highest generation that anything known names. */
  readonly knownGeneration: number;
  readonly losses: readonly AcceptedLoss[];
  /** seq of the newest checkpoint in the database; 0 without one. */
  readonly signed: number;
  readonly contradiction: Contradiction | undefined;
  /** In words, what there is that claims to be a checkpoint of this chain and was not signed by any of the keys. */
  readonly unreadable: string | undefined;
}

/** What is known of a chain outside its database. Gathered before the chain is read. */
export interface Knowledge {
  readonly heads: readonly (KnownHead & { source: string })[];
  readonly unreadable: string | undefined;
}

const SWEEP_MS = 10_000;
const RETRY_MS = 2000;
/** A closed chain is looked at again after so long, so that writers go on soon after the operator's act. */
const CLOSED_MS = 1000;

/**
 * Signs the heads of the chains, and holds every chain against what is known about it: what shows that a tail was cut, a
 * history rewritten, or that the database came back without its newest commits.
 *
 * Known are the checkpoints in the database and in a file for each chain (which is outside the database: an attacker who rewrites
 * the one has not yet rewritten the other), and the heads that were acknowledged, in this process's memory and in Redis.
 *
 * INVARIANT: of one chain, two checkpoints that contradict each other are never signed. Each is stored in a transaction
 * that holds the chain's head (under its row lock, or in the compare-and-swap that moves it), and the holder of the head
 * has compared the chain with all that is known. A hash stands for the whole history before it, so comparing the highest
 * head of each source compares with all of them.
 *
 * A chain that contradicts what is known is closed: nothing is added to it and nothing signed, until an operator accepts
 * the loss (accept-loss.ts).
 */
export class Checkpoints {
  readonly #options: CheckpointOptions;
  /** A checkpoint is due after this many records. */
  readonly everyRecords: number;
  readonly #everyMs: number;
  #timer: NodeJS.Timeout | undefined;
  #sweeping: Promise<unknown> = Promise.resolve();
  readonly acknowledged: AcknowledgedHeads;
  readonly #filed = new FiledHeads();
  /** Chains that this process knows to be closed, and when it last looked. */
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
    this.everyRecords = options.everyRecords ?? 1000;
    this.#everyMs = options.everyMs ?? 60_000;
  }

  /** Begins to look for chains with new records, every few seconds. */
  start(): void {
    this.#timer = setInterval(() => {
      this.#sweeping = this.sweep().catch((error: Error) => {
        this.#options.log.error({ err: error }, 'chains could not be looked through for checkpoints');
      });
    }, SWEEP_MS);
    this.#timer.unref();
  }

  /** Stops looking, and waits until the files are written. */
  async stop(): Promise<void> {
    this.#stopping.abort();
    clearInterval(this.#timer);
    clearInterval(this.#recheck);
    await this.#sweeping;
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
   * Signs the chains that are due: with everyRecords new records, or with any that will be older than the interval
   * before the next look. Resolves with how many were signed.
   */
  async sweep(): Promise<number> {
    const { db, clock, log } = this.#options;
    const { rows } = await db.owner.query<{ tenant_id: string; chain: ChainName }>(
      `select h.tenant_id, h.chain from chain_head h
       left join lateral (
         select c.seq, c.created_at from chain_checkpoint c
         where c.tenant_id = h.tenant_id and c.chain = h.chain order by c.seq desc limit 1) c on true
       where h.seq > coalesce(c.seq, 0)
         and (c.seq is null or h.seq - c.seq >= $1 or c.created_at <= $2)`,
      [this.everyRecords, new Date(clock.now() - this.#everyMs + SWEEP_MS)],
    );
    let signed = 0;
    for (const row of rows) {
      try {
        if (await this.take(row.tenant_id, row.chain)) signed++;
      } catch (error) {
        if (error instanceof InconsistentChain) continue;
        log.error({ err: error, tenant: row.tenant_id, chain: row.chain }, 'a chain could not be signed');
      }
    }
    return signed;
  }

  /**
   * Signs the chain's head now. When it resolves the checkpoint is committed; undefined when the head is signed already
   * or the chain is empty. Rejects with InconsistentChain, and says so loudly, when the chain contradicts what is known.
   */
  async take(tenantId: string, chain: ChainName): Promise<Checkpoint | undefined> {
    const knowledge = await this.knowledge(tenantId, chain);
    const client = await this.#options.db.owner.connect();
    let broken: Error | undefined;
    let standing: Standing | undefined;
    try {
      await client.query('begin');
      await client.query('select from chain_head where tenant_id = $1 and chain = $2 for update', [tenantId, chain]);
      standing = await this.standing(client, tenantId, chain, knowledge);
      const { head, signed, generation, contradiction, unreadable } = standing;
      let checkpoint: Checkpoint | undefined;
      if (!contradiction && unreadable === undefined && head.seq > signed) {
        checkpoint = this.#signed(tenantId, chain, { ...head, generation });
        await client.query(
          'insert into chain_checkpoint (tenant_id, chain, seq, kid, note, created_at) values ($1, $2, $3, $4, $5, $6)',
          [tenantId, chain, checkpoint.seq, checkpoint.kid, checkpoint.note, checkpoint.createdAt],
        );
        await addEventBy(client, tenantId, checkpointEvent(checkpoint));
      }
      await client.query('commit');
      if (checkpoint) this.publish([checkpoint]);
      await this.#judge(tenantId, chain, standing, knowledge);
      if (unreadable !== undefined) throw new InconsistentChain(unreadable);
      return checkpoint;
    } catch (error) {
      if (error instanceof ChainClosed) throw new InconsistentChain(standing?.contradiction?.reason);
      if (error instanceof InconsistentChain) throw error;
      await client.query('rollback').catch((rollback: Error) => {
        broken = rollback;
      });
      throw error;
    } finally {
      client.release(broken);
    }
  }

  /**
   * For a writer that has just taken the fence of a chain: compares it with all that is known. Resolves with the
   * generation of its records, with the seq from which they are not signed yet (undefined when `sign` must not be called
   * for the chain), and with whether what this process had acknowledged was given up since. Rejects with ChainClosed.
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

  /** Compares a chain with all that is known about it. Rejects with ChainClosed, and raises the alarm, when they differ. */
  async inspect(tenantId: string, chain: ChainName): Promise<Standing> {
    const knowledge = await this.knowledge(tenantId, chain);
    const standing = await this.standing(this.#options.db.owner, tenantId, chain, knowledge);
    await this.#judge(tenantId, chain, standing, knowledge);
    return standing;
  }

  /**
   * As inspect, for one who holds the chain's head: the alarm needs the head too, and is raised once that is let go of.
   */
  async inspectHeld(tenantId: string, chain: ChainName): Promise<Standing> {
    const knowledge = await this.knowledge(tenantId, chain);
    const standing = await this.standing(this.#options.db.owner, tenantId, chain, knowledge);
    if (!standing.contradiction) return standing;
    const raised = this.inspect(tenantId, chain).catch((err) => {
      if (!(err instanceof ChainClosed))
        this.#options.log.warn({ err, tenant: tenantId, chain }, 'an alarm came to nothing');
    });
    this.#raising = Promise.all([this.#raising, raised]);
    throw new ChainClosed(chain);
  }

  /** Rejects with ChainClosed, without a look at the database, when the chain was found closed a moment ago. */
  assertOpen(tenantId: string, chain: ChainName): void {
    const closed = this.#closed.get(`${chain} ${tenantId}`);
    if (closed && performance.now() - closed.at < CLOSED_MS) throw new ChainClosed(chain);
  }

  /**
   * Compares every chain, in the background: after the start and whenever the database was away, because it may have come
   * back as an older copy. Resolves when all were looked at, those of a call while it runs included.
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
          await delay(RETRY_MS, undefined, { signal: this.#stopping.signal }).catch(() => undefined);
        }
      }
      this.#inspecting = undefined;
    })();
    return this.#inspecting;
  }

  async #inspectEach(): Promise<void> {
    const { db, directory } = this.#options;
    let failed: unknown;
    const { rows } = await db.owner.query<{ tenant_id: string; chain: ChainName }>(
      'select tenant_id, chain from chain_head order by tenant_id, chain',
    );
    const chains = new Map(rows.map((row) => [`${row.chain} ${row.tenant_id}`, row]));
    for (const { tenantId, chain } of this.acknowledged.chains()) {
      chains.set(`${chain} ${tenantId}`, { tenant_id: tenantId, chain });
    }
    for (const name of directory === undefined ? [] : await readdir(directory).catch(() => [])) {
      const of = chainOfFile(name);
      if (of) chains.set(`${of.chain} ${of.tenantId}`, { tenant_id: of.tenantId, chain: of.chain });
    }
    for (const { tenant_id, chain } of chains.values()) {
      if (this.#stopping.signal.aborted) return;
      try {
        await this.inspect(tenant_id, chain);
      } catch (err) {
        if (!(err instanceof ChainClosed)) failed = err;
      }
    }
    if (failed) throw failed;
  }

  /** What is known of a chain outside its database. INVARIANT: gather it before the chain is read. */
  async knowledge(tenantId: string, chain: ChainName): Promise<Knowledge> {
    const { directory, keys } = this.#options;
    const heads: (KnownHead & { source: string })[] = (await this.acknowledged.known(tenantId, chain)).map((head) => ({
      ...head,
      source: 'acknowledged',
    }));
    let unreadable: string | undefined;
    if (directory !== undefined) {
      try {
        const filed = await this.#filed.highest(checkpointFile(directory, tenantId, chain), keys());
        for (const { origin, seq, hash, generation = 0 } of filed) {
          if (!isOriginOf(origin, tenantId, chain)) throw new Error('a checkpoint in it is of another chain');
          heads.push({ seq, hash, generation, source: 'signed, as the checkpoint file says' });
        }
      } catch (error) {
        unreadable = `the checkpoint file: ${(error as Error).message}`;
      }
    }
    return { heads, unreadable };
  }

  /** Compares the chain with knowledge that the caller gathered before. The caller may hold the head, but need not. */
  async standing(
    client: Pick<pg.ClientBase, 'query'>,
    tenantId: string,
    chain: ChainName,
    knowledge: Knowledge,
  ): Promise<Standing> {
    const keys = this.#options.keys();
    const { table } = RECORDS[chain];
    // one statement, one moment
    const { rows } = await client.query<StandingRow>(
      `select h.seq, h.hash, c.seq as signed, c.note, to_jsonb(a) as alarm,
         (select max(seq) from ${table} where tenant_id = $1) as last
       from (select) one
       left join chain_head h on h.tenant_id = $1 and h.chain = $2
       left join lateral (select seq, note from chain_checkpoint
         where tenant_id = $1 and chain = $2 order by seq desc limit 1) c on true
       left join chain_alarm a on a.tenant_id = $1 and a.chain = $2`,
      [tenantId, chain],
    );
    const row = rows[0]!;
    const head = { seq: row.seq ?? 0, hash: row.hash?.toString('hex') ?? ZERO_HASH };
    const last = row.last ?? 0;
    const losses = await readLosses(client, tenantId, chain, keys);
    const generation = losses.at(-1)?.generation ?? 0;
    let { unreadable } = knowledge;
    const known = [...knowledge.heads];
    for (const loss of losses) known.push({ ...loss.kept, generation: loss.generation, source: 'kept at a loss' });
    if (row.note !== null) {
      try {
        const signed = openHead(row.note, keys);
        if (!isOriginOf(signed.origin, tenantId, chain) || signed.seq !== row.signed) {
          throw new Error('it was put in another place');
        }
        known.push({ ...signed, generation: signed.generation ?? 0, source: 'signed' });
      } catch (error) {
        unreadable ??= `the last checkpoint does not open: ${(error as Error).message}`;
      }
    }
    if (head.seq > 0) known.push({ ...head, generation, source: 'the head' });
    const binding = known.filter((each) => !isSuperseded(losses, each));
    const { rows: places } = await client.query<{ seq: number; hash: Buffer }>(
      `select seq, hash from ${table} where tenant_id = $1 and seq = any($2)`,
      [tenantId, [...new Set(binding.map(({ seq }) => seq))]],
    );
    const hashes = new Map(places.map(({ seq, hash }) => [seq, hash.toString('hex')]));
    const missed = binding.filter(({ seq, hash }) => hashes.get(seq) !== hash).sort((a, b) => b.seq - a.seq);
    const { alarm } = row;
    let contradiction: Contradiction | undefined;
    if (missed[0]) {
      const { source, ...highest } = missed[0];
      const lowest = missed.at(-1)!.seq;
      const words = hashes.has(highest.seq) ? 'has another hash than the one that was' : 'is not there; it was';
      contradiction = {
        reason: `record ${highest.seq} ${words} ${source}`,
        known: highest,
        agreed: Math.min(lowest - 1, last),
      };
    } else if (last > head.seq) {
      contradiction = {
        reason: `records up to ${last} stand beyond the head, which is ${head.seq}`,
        known: { ...head, generation },
        agreed: head.seq,
      };
    }
    if (alarm) {
      const { known_seq: seq, known_hash: hash, known_generation } = alarm;
      const here = contradiction;
      const higher = !here || seq > here.known.seq;
      contradiction = {
        reason: higher ? alarm.reason : here.reason,
        known: higher ? { seq, hash, generation: known_generation } : here.known,
        agreed: Math.min(alarm.agreed, here?.agreed ?? last, last),
      };
    }
    const knownGeneration = Math.max(0, ...known.map((each) => each.generation), alarm?.known_generation ?? 0);
    const signed = row.signed ?? 0;
    return { head, last, generation, knownGeneration, losses, signed, contradiction, unreadable };
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

  /** Looks at the closed chains, also at those that nobody writes to, until none is left. */
  #lookAgain(): void {
    if (this.#closed.size === 0) {
      clearInterval(this.#recheck);
      this.#recheck = undefined;
      return;
    }
    const looks = [...this.#closed.keys()].map((key) => {
      const at = key.indexOf(' ');
      // still closed, or the database is away: the next look will show
      return this.inspect(key.slice(at + 1), key.slice(0, at) as ChainName).catch(() => undefined);
    });
    this.#raising = Promise.all([this.#raising, ...looks]);
  }

  /** Stores that the chain is closed, for every process, and notifies subscribers. Once, however many processes notice it. */
  async #raiseAlarm(tenantId: string, chain: ChainName, knowledge: Knowledge): Promise<void> {
    const { db, clock } = this.#options;
    const at = clock.now();
    const client = await db.owner.connect();
    let broken: Error | undefined;
    try {
      await client.query('begin');
      // under the lock, because an operator may have accepted the loss a moment ago
      await client.query('select from chain_head where tenant_id = $1 and chain = $2 for update', [tenantId, chain]);
      const standing = await this.standing(client, tenantId, chain, knowledge);
      const found = standing.contradiction;
      if (!found) {
        await client.query('commit');
        return;
      }
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
        // a writer in another process has to look too
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
      await client.query('commit');
    } catch (error) {
      await client.query('rollback').catch((rollback: Error) => {
        broken = rollback;
      });
      throw error;
    } finally {
      client.release(broken);
    }
  }

  /**
   * A checkpoint for a head that the caller stores in the transaction that moves the head there, and then publishes.
   * Undefined when there is no key to sign with.
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
    const { rows } = await this.#options.db.owner.query<CheckpointRow>(
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

  /** One write and one flush for all that came together. */
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

/** The event for subscribers about a checkpoint. With the note in it they can hold this server to its word. */
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

interface StandingRow {
  seq: number | null;
  hash: Buffer | null;
  last: number | null;
  signed: number | null;
  note: string | null;
  alarm: {
    known_seq: number;
    known_hash: string;
    known_generation: number;
    agreed: number;
    reason: string;
  } | null;
}
