import type { KeyObject } from 'node:crypto';
import pg from 'pg';
import type { Database } from '../../db/index.ts';
import { isOriginOf, newestInFile, RECORD_TABLE } from './checkpoint.ts';
import { COPY_EPOCH_MS, copyRows } from './copy.ts';
import { openHead } from './note.ts';
import { type ChainName, ZERO_HASH } from './record.ts';
import { type ChainPlace, ChainVerifier, type DecisionColumns, type RecordMembers } from './verify.ts';

export interface VerifyOptions {
  /** The public keys that may have signed checkpoints, retired ones included. */
  keys: readonly KeyObject[];
  /** Where the checkpoint files are; the newest checkpoint there is compared with the chain too. */
  directory?: string | undefined;
  /** Ends the work between two chunks; the promise then rejects with the signal's reason. */
  signal?: AbortSignal | undefined;
  onProgress?: ((progress: { checked: number; total: number }) => void) | undefined;
  /** Records read by one statement. */
  chunk?: number;
}

export interface VerifyResult {
  verified: boolean;
  linear: boolean;
  records_checked: number;
  head: ChainPlace;
  last_checkpoint: { seq: number; hash: string; created_at: string } | null;
  /** The id of the record at which tampering starts, where that record is still there. */
  first_mismatch_id?: string;
  first_mismatch_seq?: number;
  reason?: string;
}

/**
 * Recomputes a tenant's whole chain as it was when the call began, and compares it with the stored head, with every
 * signed checkpoint and with the columns beside the texts. It reads in chunks, each its own statement, so that it holds
 * neither memory nor a long snapshot, however long the chain. About 2 µs a record and core.
 *
 * Resolves with what it found, a broken chain included; rejects when the database fails or the signal aborts.
 */
export async function verifyChain(
  db: Pick<Database, 'connectOwner'>,
  tenantId: string,
  chain: ChainName,
  options: VerifyOptions,
): Promise<VerifyResult> {
  const { keys, directory, signal, onProgress, chunk = 100_000 } = options;
  signal?.throwIfAborted();
  const faults: Fault[] = [];
  // INVARIANT: the file before the head, so that it cannot name a record that is newer than the end
  let filed: ChainPlace | undefined;
  try {
    filed = directory === undefined ? undefined : await newestInFile(directory, tenantId, chain, keys);
  } catch (error) {
    faults.push({ seq: Number.MAX_SAFE_INTEGER, reason: `the checkpoint file: ${(error as Error).message}` });
  }
  const client = await db.connectOwner();
  try {
    // a connection that breaks while nothing runs is reported by the next statement
    client.on('error', () => undefined);
    await client.query(SESSION);
    const start = await readStart(client, tenantId, chain);
    const head: ChainPlace = { seq: start.seq ?? 0, hash: start.hash?.toString('hex') ?? ZERO_HASH };
    const end = Math.max(head.seq, start.last ?? 0);
    const verifier = new ChainVerifier<Columns>({
      tenantId,
      chain,
      ...(chain === 'audit' && { compare: compareAudit }),
    });
    if (filed) {
      verifier.expect(filed);
      if (filed.seq > (start.signed ?? 0)) {
        const reason = `checkpoint ${filed.seq} is in the checkpoint file and missing in the database`;
        faults.push({ seq: filed.seq, reason });
      }
    }
    if ((start.signed ?? 0) > end)
      await expectSigned(client, verifier, faults, { tenantId, chain, keys }, end, start.signed!);
    const reader = new RowReader(chain);
    for (let from = 0; from === 0 || from < end; from += chunk) {
      signal?.throwIfAborted();
      const to = Math.min(from + chunk, end);
      await expectSigned(client, verifier, faults, { tenantId, chain, keys }, from, to);
      await copyRows(client, selectRows(tenantId, chain, from, to), (data, at) => verifier.add(reader.read(data, at)));
      onProgress?.({ checked: to, total: end });
    }
    signal?.throwIfAborted();
    const verdict = verifier.finish({ head });
    const fault = faults.sort((a, b) => a.seq - b.seq)[0];
    const faultFirst = fault && fault.seq < (verdict.first_mismatch_seq ?? Number.POSITIVE_INFINITY);
    return {
      verified: verdict.verified && !fault,
      linear: verdict.linear,
      records_checked: verdict.records_checked,
      head: verdict.head,
      last_checkpoint: start.checkpoint,
      ...(faultFirst
        ? { reason: fault.reason }
        : {
            ...(verdict.first_mismatch_id !== undefined && { first_mismatch_id: verdict.first_mismatch_id }),
            ...(verdict.first_mismatch_seq !== undefined && { first_mismatch_seq: verdict.first_mismatch_seq }),
            ...(verdict.reason !== undefined && { reason: verdict.reason }),
          }),
    };
  } finally {
    await client.end();
  }
}

/** What is wrong with a checkpoint itself. */
interface Fault {
  seq: number;
  reason: string;
}

/** The planner would otherwise sort a large tenant's rows on disk rather than follow the primary key. */
const SESSION = `set default_transaction_read_only = on; set enable_seqscan = off; set enable_bitmapscan = off;
  set enable_sort = off; set max_parallel_workers_per_gather = 0`;

/** Head, last record and last checkpoint, all of one moment: on an intact chain they agree. */
async function readStart(client: pg.Client, tenantId: string, chain: ChainName) {
  const { rows } = await client.query<{
    seq: number | null;
    hash: Buffer | null;
    last: number | null;
    signed: number | null;
    note: string | null;
    created_at: Date | null;
  }>(
    `select h.seq, h.hash, c.seq as signed, c.note, c.created_at,
       (select max(seq) from ${RECORD_TABLE[chain]} where tenant_id = $1) as last
     from (select) one
     left join chain_head h on h.tenant_id = $1 and h.chain = $2
     left join lateral (select seq, note, created_at from chain_checkpoint
       where tenant_id = $1 and chain = $2 order by seq desc limit 1) c on true`,
    [tenantId, chain],
  );
  const row = rows[0]!;
  const checkpoint = row.signed === null ? null : { seq: row.signed, hash: row.note!.split('\n')[3] ?? '' };
  return {
    ...row,
    checkpoint: checkpoint && { ...checkpoint, created_at: row.created_at!.toISOString() },
  };
}

/** Gives the verifier the checkpoints of the records after `from` up to `to`. */
async function expectSigned(
  client: pg.Client,
  verifier: ChainVerifier<Columns>,
  faults: Fault[],
  of: { tenantId: string; chain: ChainName; keys: readonly KeyObject[] },
  from: number,
  to: number,
): Promise<void> {
  const { rows } = await client.query<{ seq: number; note: string }>(
    'select seq, note from chain_checkpoint where tenant_id = $1 and chain = $2 and seq > $3 and seq <= $4 order by seq',
    [of.tenantId, of.chain, from, to],
  );
  for (const { seq, note } of rows) {
    try {
      const signed = openHead(note, of.keys);
      if (signed.seq !== seq || !isOriginOf(signed.origin, of.tenantId, of.chain)) {
        throw new Error('it was signed for another place');
      }
      verifier.expect(signed);
    } catch (error) {
      faults.push({ seq, reason: `checkpoint ${seq} was altered: ${(error as Error).message}` });
    }
  }
}

function selectRows(tenantId: string, chain: ChainName, from: number, to: number): string {
  const columns =
    chain === 'forensics' ? 'seq, hash, line, event_id, received_at, agent_h, session_h, decision' : AUDIT;
  // no lower bound at first: a record before record 1 must be seen
  const after = from > 0 ? `and seq > ${from}` : '';
  return `copy (select ${columns} from ${RECORD_TABLE[chain]}
    where tenant_id = ${pg.escapeLiteral(tenantId)} and seq <= ${to} ${after} order by seq) to stdout (format binary)`;
}
const AUDIT = 'seq, hash, line, id, received_at';

/** Of an audit record only `id` and the time are stored beside the text. */
type Columns = DecisionColumns & { id: string };

function compareAudit(record: RecordMembers, columns: Columns): string | undefined {
  if (columns.id !== record.id) return 'id';
  if (columns.received_at_ms !== Date.parse(String(record.received_at))) return 'received_at';
  return undefined;
}

/** Rows of COPY (FORMAT binary) read in place. One row object is used for all; the verifier keeps nothing of it. */
class RowReader {
  readonly #decisions: boolean;
  readonly #hash = Buffer.alloc(32);
  readonly #columns: Columns = {
    event_id: '',
    id: '',
    received_at_ms: 0,
    agent_h: 0,
    session_h: 0,
    decision: 0,
  };
  readonly #row: { seq: number; hash: Buffer; line: Buffer; columns: Columns } = {
    seq: 0,
    hash: this.#hash,
    line: this.#hash,
    columns: this.#columns,
  };

  constructor(chain: ChainName) {
    this.#decisions = chain === 'forensics';
  }

  /** The row that begins at `at`, its columns in the order of `selectRows`. */
  read(data: Buffer, at: number) {
    const row = this.#row;
    const columns = this.#columns;
    let p = at + 2;
    row.seq = int8(data, p + 4);
    p += 12;
    const hashLength = data.readInt32BE(p);
    // another length than 32 can only be tampering; it then differs from every hash
    if (hashLength === 32) data.copy(this.#hash, 0, p + 4, p + 36);
    else this.#hash.fill(0);
    p += 4 + hashLength;
    const lineLength = data.readInt32BE(p);
    row.line = data.subarray(p + 4, p + 4 + lineLength);
    p += 4 + lineLength;
    const idLength = data.readInt32BE(p);
    const id = data.toString('utf8', p + 4, p + 4 + idLength);
    p += 4 + idLength;
    columns.received_at_ms = int8(data, p + 4) / 1000 + COPY_EPOCH_MS;
    if (!this.#decisions) {
      columns.id = id;
      return row;
    }
    columns.event_id = id;
    columns.agent_h = data.readInt32BE(p + 16);
    columns.session_h = data.readInt32BE(p + 24);
    columns.decision = data.readInt16BE(p + 32);
    return row;
  }
}

function int8(data: Buffer, at: number): number {
  return data.readInt32BE(at) * 2 ** 32 + data.readUInt32BE(at + 4);
}

/**
 * Verifications, one at a time for each chain and a few at a time for all, because each keeps a connection and a core
 * busy. A caller never gets the result of one that had begun before the call; those who wait share the next.
 */
export class Verifications {
  readonly #db: Pick<Database, 'connectOwner'>;
  readonly #defaults: () => VerifyOptions;
  readonly #slots = new Map<string, { running: boolean; next: Shared | undefined }>();
  readonly #queue: (() => void)[] = [];
  #free: number;

  /** `defaults` gives keys, directory and chunk at each start. */
  constructor(db: Pick<Database, 'connectOwner'>, defaults: () => VerifyOptions, atOnce = 2) {
    this.#db = db;
    this.#defaults = defaults;
    this.#free = atOnce;
  }

  /** As verifyChain. The signal ends this caller's wait; the work ends when nobody waits for it any more. */
  verify(
    tenantId: string,
    chain: ChainName,
    options: Pick<VerifyOptions, 'signal' | 'onProgress'> = {},
  ): Promise<VerifyResult> {
    const { signal, onProgress } = options;
    if (signal?.aborted) return Promise.reject(signal.reason);
    const key = `${chain} ${tenantId}`;
    const slot = this.#slots.get(key) ?? { running: false, next: undefined };
    this.#slots.set(key, slot);
    if (!slot.next || slot.next.signal.aborted) slot.next = new Shared();
    const result = slot.next.join(signal, onProgress);
    if (!slot.running) void this.#run(key, slot, tenantId, chain);
    return result;
  }

  async #run(
    key: string,
    slot: { running: boolean; next: Shared | undefined },
    tenantId: string,
    chain: ChainName,
  ): Promise<void> {
    slot.running = true;
    while (slot.next) {
      if (this.#free === 0) await new Promise<void>((resolve) => this.#queue.push(resolve));
      else this.#free--;
      const shared: Shared = slot.next;
      slot.next = undefined;
      try {
        shared.resolve(
          await verifyChain(this.#db, tenantId, chain, {
            ...this.#defaults(),
            signal: shared.signal,
            onProgress: shared.progress,
          }),
        );
      } catch (error) {
        shared.reject(error);
      }
      const waiting = this.#queue.shift();
      if (waiting) waiting();
      else this.#free++;
    }
    this.#slots.delete(key);
  }
}

/** One verification and those who wait for it. */
class Shared {
  readonly #result = Promise.withResolvers<VerifyResult>();
  readonly #abort = new AbortController();
  readonly #listeners = new Set<(progress: { checked: number; total: number }) => void>();
  #members = 0;

  constructor() {
    // when all have left, nobody listens to its end
    this.#result.promise.catch(() => undefined);
  }

  get signal(): AbortSignal {
    return this.#abort.signal;
  }
  readonly progress = (progress: { checked: number; total: number }): void => {
    for (const listener of this.#listeners) listener(progress);
  };
  readonly resolve = this.#result.resolve;
  readonly reject = this.#result.reject;

  async join(signal?: AbortSignal, onProgress?: VerifyOptions['onProgress']): Promise<VerifyResult> {
    this.#members++;
    if (onProgress) this.#listeners.add(onProgress);
    const left = Promise.withResolvers<never>();
    const leave = () => left.reject(signal?.reason);
    signal?.addEventListener('abort', leave, { once: true });
    try {
      return await (signal ? Promise.race([this.#result.promise, left.promise]) : this.#result.promise);
    } finally {
      signal?.removeEventListener('abort', leave);
      if (onProgress) this.#listeners.delete(onProgress);
      if (--this.#members === 0) this.#abort.abort(new Error('nobody waits for this verification'));
    }
  }
}
