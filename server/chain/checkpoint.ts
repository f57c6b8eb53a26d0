import type { KeyObject } from 'node:crypto';
import { mkdir, open } from 'node:fs/promises';
import path from 'node:path';
import type pg from 'pg';
import type { Database } from '../../db/index.ts';
import { addEventBy, type OutboxEvent } from '../../db/outbox.ts';
import type { Clock } from '../lib/clock.ts';
import type { Log } from '../lib/log.ts';
import { type ChainHead, openHead, signHead } from './note.ts';
import type { ChainName } from './record.ts';

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
  /** Told of every checkpoint after its commit. May be told late or not at all when the process dies in between. */
  onCheckpoint?: ((checkpoint: Checkpoint) => void) | undefined;
  everyRecords?: number;
  everyMs?: number;
}

/** A chain does not agree with what was signed about it; it is not signed again. */
export class InconsistentChain extends Error {
  override readonly name = 'InconsistentChain';
}

const SWEEP_MS = 10_000;

/**
 * Signs the heads of the chains: what shows later that a tail was cut or a history rewritten.
 *
 * INVARIANT: of one chain, two checkpoints that contradict each other are never signed. Each is stored in a transaction
 * that holds the chain's head (under its row lock, or in the compare-and-swap that moves it), and the one before was
 * compared with the chain by whoever holds the head.
 *
 * They also go to a file for each chain, which is outside the database: whoever rewrites the one has not yet rewritten
 * the other.
 */
export class Checkpoints {
  readonly #options: CheckpointOptions;
  /** A checkpoint is due after this many records. */
  readonly everyRecords: number;
  readonly #everyMs: number;
  #timer: NodeJS.Timeout | undefined;
  #sweeping: Promise<unknown> = Promise.resolve();
  readonly #unwritten = new Map<string, string>();
  #writing: Promise<void> | undefined;

  constructor(options: CheckpointOptions) {
    this.#options = options;
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
    clearInterval(this.#timer);
    await this.#sweeping;
    await this.flushed();
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
   * or the chain is empty. Rejects with InconsistentChain, and says so loudly, when the chain contradicts the last one.
   */
  async take(tenantId: string, chain: ChainName): Promise<Checkpoint | undefined> {
    const client = await this.#options.db.owner.connect();
    let broken: Error | undefined;
    try {
      await client.query('begin');
      const { rows } = await client.query<{ seq: number; hash: Buffer }>(
        'select seq, hash from chain_head where tenant_id = $1 and chain = $2 for update',
        [tenantId, chain],
      );
      const head = rows[0];
      const last = head && (await this.#compared(client, tenantId, chain));
      let checkpoint: Checkpoint | undefined;
      if (head && head.seq > last!) {
        checkpoint = this.#signed(tenantId, chain, head);
        await client.query(
          'insert into chain_checkpoint (tenant_id, chain, seq, kid, note, created_at) values ($1, $2, $3, $4, $5, $6)',
          [tenantId, chain, checkpoint.seq, checkpoint.kid, checkpoint.note, checkpoint.createdAt],
        );
        await addEventBy(client, tenantId, checkpointEvent(checkpoint));
      }
      await client.query('commit');
      if (checkpoint) this.publish([checkpoint]);
      return checkpoint;
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
   * For a writer that has just taken the fence of a chain: the seq from which its records are not signed yet, or
   * undefined when the chain contradicts what was signed and `sign` must not be called for it.
   */
  async resume(tenantId: string, chain: ChainName): Promise<number | undefined> {
    try {
      return await this.#compared(this.#options.db.owner, tenantId, chain);
    } catch (error) {
      if (error instanceof InconsistentChain) return undefined;
      throw error;
    }
  }

  /**
   * A checkpoint for a head that the caller stores in the transaction that moves the head there, and then publishes.
   * Undefined when there is no key to sign with.
   */
  sign(
    tenantId: string,
    chain: ChainName,
    head: { seq: number; hash: Uint8Array },
    now?: number,
  ): Checkpoint | undefined {
    try {
      return this.#signed(tenantId, chain, head, now);
    } catch (error) {
      this.#options.log.error({ err: error, tenant: tenantId, chain }, 'a chain could not be signed');
      return undefined;
    }
  }

  /** Tells of committed checkpoints: to the files (see `flushed`) and to whoever listens. Never throws. */
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

  #signed(tenantId: string, chain: ChainName, head: { seq: number; hash: Uint8Array }, now?: number): Checkpoint {
    const { kid, privateKey, publicKey } = this.#options.signer();
    const hash = Buffer.from(head.hash).toString('hex');
    const origin = chainOrigin(this.#options.host, tenantId, chain);
    const note = signHead({ origin, seq: head.seq, hash }, privateKey, publicKey);
    const createdAt = new Date(now ?? this.#options.clock.now()).toISOString();
    return { tenantId, chain, seq: head.seq, hash, kid, note, createdAt };
  }

  /** The seq of the last checkpoint (0 without one) after comparing it with the chain. The caller holds the head. */
  async #compared(client: pg.Pool | pg.PoolClient, tenantId: string, chain: ChainName): Promise<number> {
    const { rows } = await client.query<{ seq: number; note: string; head: number; hash: Buffer | null }>(
      `select c.seq, c.note, h.seq as head, r.hash
       from chain_checkpoint c
       join chain_head h on h.tenant_id = c.tenant_id and h.chain = c.chain
       left join ${RECORD_TABLE[chain]} r on r.tenant_id = c.tenant_id and r.seq = c.seq
       where c.tenant_id = $1 and c.chain = $2 order by c.seq desc limit 1`,
      [tenantId, chain],
    );
    const last = rows[0];
    if (!last) return 0;
    let fault: string | undefined;
    try {
      const signed = openHead(last.note, this.#options.keys());
      if (!isOriginOf(signed.origin, tenantId, chain) || signed.seq !== last.seq) {
        fault = 'the last checkpoint was put in another place';
      } else if (last.head < last.seq || !last.hash) fault = 'the chain is shorter than its last checkpoint';
      else if (last.hash.toString('hex') !== signed.hash) fault = 'the chain was rewritten since its last checkpoint';
    } catch (error) {
      fault = `the last checkpoint does not open: ${(error as Error).message}`;
    }
    if (fault === undefined) return last.seq;
    this.#options.log.fatal({ tenant: tenantId, chain, seq: last.seq }, `${fault}; it is not signed any more`);
    throw new InconsistentChain(fault);
  }

  /** One write and one flush for all that came together. */
  async #write(): Promise<void> {
    for (;;) {
      const next = this.#unwritten.entries().next().value;
      if (!next) return;
      const [file, text] = next;
      this.#unwritten.delete(file);
      try {
        await mkdir(path.dirname(file), { recursive: true, mode: 0o700 });
        const handle = await open(file, 'a+', 0o600);
        try {
          const { size } = await handle.stat();
          const end = Buffer.alloc(2);
          if (size > 0) await handle.read(end, 0, 2, Math.max(0, size - 2));
          // what a crash cut off must not run into the next note
          await handle.appendFile(size > 0 && end.toString() !== '\n\n' ? `\n\n${text}` : text);
          await handle.sync();
        } finally {
          await handle.close();
        }
      } catch (error) {
        this.#options.log.error({ err: error, file }, 'a checkpoint could not be written to its file');
      }
    }
  }
}

/** What subscribers are told of a checkpoint: with the note they can hold this server to it. */
export function checkpointEvent({ chain, seq, hash, kid, note, createdAt }: Checkpoint): OutboxEvent {
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

export const RECORD_TABLE: Readonly<Record<ChainName, string>> = {
  forensics: 'forensic_record',
  audit: 'audit_record',
};

export function chainOrigin(host: string, tenantId: string, chain: ChainName): string {
  return `${host}/${tenantId}/${chain}`;
}

/** The host of an origin may change with the server's address; the tenant and the chain may not. */
export function isOriginOf(origin: string, tenantId: string, chain: ChainName): boolean {
  return (
    origin.endsWith(`/${tenantId}/${chain}`) &&
    origin.indexOf('/') === origin.length - tenantId.length - chain.length - 2
  );
}

/** The file of a chain's checkpoints: signed notes in the order of their seq, each followed by an empty line. */
export function checkpointFile(directory: string, tenantId: string, chain: ChainName): string {
  return path.join(directory, `${encodeURIComponent(tenantId)}.${chain}.txt`);
}

/**
 * The newest checkpoint in a chain's file; undefined when there is none yet. Throws an Error that says what is wrong
 * when the newest complete note was not signed by one of the keys; one that a crash cut off is passed over.
 */
export async function newestInFile(
  directory: string,
  tenantId: string,
  chain: ChainName,
  keys: readonly KeyObject[],
): Promise<ChainHead | undefined> {
  let text: string;
  try {
    const handle = await open(checkpointFile(directory, tenantId, chain), 'r');
    try {
      const { size } = await handle.stat();
      const length = Math.min(size, 8192);
      const { buffer } = await handle.read(Buffer.alloc(length), 0, length, size - length);
      text = buffer.toString('utf8');
    } finally {
      await handle.close();
    }
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw error;
  }
  const newest = [...text.matchAll(COMPLETE_NOTE)].at(-1)?.[0];
  if (newest === undefined) return undefined;
  const head = openHead(newest.slice(0, -1), keys);
  if (!isOriginOf(head.origin, tenantId, chain))
    throw new Error('the newest checkpoint in the file is of another chain');
  return head;
}

const COMPLETE_NOTE = /^svc-chain-head\/(?:(?!svc-chain-head\/)[\s\S])*?\n\n(?:— \S+ \S+\n)+\n/gm;
