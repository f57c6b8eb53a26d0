import { stat } from 'node:fs/promises';
import { setTimeout as delay } from 'node:timers/promises';
import { parentPort, resourceLimits, Worker, workerData } from 'node:worker_threads';
import type pg from 'pg';
import { setTenant } from '../../db/citus.ts';
import { COLUMN_TYPES } from '../../db/client.ts';
import { connectSession } from '../../db/session.ts';
import { BLOCK_FIELDS } from '../domain/decision.ts';
import { lowerPriority, type Rests, restsOf } from '../lib/pace.ts';
import { BLOCK_RECORDS, Block, blockOf, firstIn, lastIn, type Summary } from './blocks.ts';
import { checkpointFile, type FiledNote, notesIn } from './checkpoint-file.ts';
import { copyRows, receivingStream } from './copy.ts';
import { type HashModule, LANES } from './hash-lanes.ts';
import type { KnownHead } from './heads.ts';
import { type AcceptedLoss, isOriginOf, isSuperseded, RECORDS, readLosses } from './loss.ts';
import { type NoteKey, openHead } from './note.ts';
import { type Columns, compareAudit, Hashes, RowReader, selectRows } from './received-rows.ts';
import { type ChainName, HASH_BYTES, ZERO_HASH } from './record.ts';
import type { VerifyResult } from './verification.ts';
import { type ChainPosition, type ChainVerdict, ChainVerifier } from './verify.ts';

/** The job of a verification thread. See verification.ts. */
export interface VerificationJob {
  sessionUrl: string;
  tenantId: string;
  chain: ChainName;
  keys: readonly NoteKey[];
  directory: string | undefined;
  known: readonly KnownHead[];
  chunk: number;
  /** How many threads share a chain with this many records or more. */
  sharing: { threads: number; records: number };
  hashes: HashModule | undefined;
  /**
   * Milliseconds that it waits for a locked table. A change to the table waits for the end of this transaction, and another thread
   * of the same verification waits for that change. PostgreSQL sees no deadlock there, and records would queue up behind the change.
   */
  lockMs: number;
  /** See shareBusy. */
  busy: Int32Array;
  /** Set for a thread that verifies a part of the chain for another thread. */
  part?: { start: Start; of: Part };
}

export type VerificationMessage = { checked: number; total: number } | { result: VerifyResult };
/** Sent by a thread that verifies a part. */
type PartMessage = { checked: number } | { verdict: PartVerdict };

/** What is known before the first record is read. */
interface Start extends Awaited<ReturnType<typeof readStart>> {
  /** The last record to read. */
  end: number;
  losses: AcceptedLoss[];
  /** The length of the checkpoint file, in bytes. */
  filed: number;
  /** The newest block that has a summary. */
  newestBlock: number;
}

/** The records after `from` up to `to`. */
interface Part {
  from: number;
  to: number;
  /** The stored hash of record `from`, which the previous part compares. */
  hash: string;
  /** The hash of record `to` as the next part has it; undefined for the last part. */
  next: string | undefined;
}

interface PartVerdict extends Pick<ChainVerdict, 'linear' | 'records_checked' | 'head'> {
  /** The first mismatch in the records, and the first with what is stated about them. */
  mismatch: Fault | undefined;
  fault: Fault | undefined;
  /** seq of the highest checkpoint in the file that belongs to this part. */
  filed: number;
}

const port = parentPort;
if (!port) throw new Error('this file is the entry of a worker thread');
lowerPriority();

async function main(job: VerificationJob): Promise<void> {
  // with the same role as requests: it can read only the tenant's data, and change nothing
  const client = await connectSession(job.sessionUrl, {
    types: COLUMN_TYPES,
    application_name: 'svc verification',
    stream: receivingStream,
  });
  try {
    await client.query(reading(job));
    if (!job.part) {
      port!.postMessage({ result: await verification(client, job) } satisfies VerificationMessage);
      return;
    }
    const onProgress = (checked: number) => port!.postMessage({ checked } satisfies PartMessage);
    const { start, of } = job.part;
    port!.postMessage({ verdict: await verifiedPart(client, job, start, of, onProgress) } satisfies PartMessage);
  } finally {
    await client.end();
  }
}

/** Verifies the chain. A long chain is verified in parallel parts, each starting from the stored hash of the record before it. */
async function verification(client: pg.Client, job: VerificationJob): Promise<VerifyResult> {
  const { tenantId, chain } = job;
  const start = await startOf(client, job);
  const parts = await partsOf(client, job, start.end);
  const checked = parts.map(() => 0);
  const onProgress = (n: number) => (records: number) => {
    checked[n] = records;
    const progress = { checked: checked.reduce((sum, each) => sum + each), total: start.end };
    port!.postMessage(progress satisfies VerificationMessage);
  };
  const verdicts = await Promise.all(
    parts.map((part, n) =>
      n === 0
        ? verifiedPart(client, job, start, part, onProgress(n))
        : verifiedByThread({ ...job, part: { start, of: part } }, onProgress(n)),
    ),
  );
  const { alarm, losses } = start;
  const faults: Fault[] = [];
  if (alarm) faults.push({ seq: alarm.agreed + 1, reason: `the chain is closed: ${alarm.reason}` });
  const filed = Math.max(...verdicts.map((verdict) => verdict.filed));
  if (filed > (start.signed ?? 0)) {
    const reason = `checkpoint ${filed} is in the checkpoint file and missing in the database`;
    faults.push({ seq: filed, reason });
  }
  faults.push(...verdicts.flatMap((verdict) => verdict.fault ?? []));
  const altered = chain === 'forensics' ? await alteredInput(client, tenantId, restsOf(job.busy)) : undefined;
  if (altered) faults.push(altered);
  const fault = earliest(faults);
  // a fault in the head is not earlier than a record found before it
  const mismatch = verdicts.find((verdict) => verdict.mismatch)?.mismatch;
  const { seq, reason } = earliest([fault, mismatch].filter((one) => one !== undefined)) ?? {};
  const id =
    [fault, mismatch].find((one) => one?.id !== undefined && one.seq === seq)?.id ??
    (seq === undefined ? undefined : await lastBefore(client, job, seq));
  return {
    verified: !fault && !mismatch,
    linear: verdicts.every(({ linear }) => linear),
    records_checked: verdicts.reduce((sum, { records_checked }) => sum + records_checked, 0),
    head: verdicts.at(-1)!.head,
    last_checkpoint: start.checkpoint,
    accepted_losses: losses.map((loss) => ({
      seq: loss.seq,
      kept_seq: loss.kept.seq,
      lost_seq: loss.lost.seq,
      accepted_at: loss.acceptedAt,
      reason: loss.reason,
    })),
    ...(id !== undefined && { first_mismatch_id: id }),
    ...(seq !== undefined && seq < Number.MAX_SAFE_INTEGER && { first_mismatch_seq: seq }),
    ...(reason !== undefined && { reason }),
  };
}

/** The id of the last record, as its text has it, if the chain ends before `seq`: where a tail was cut off, that is what is there. */
async function lastBefore(
  client: pg.Client,
  { tenantId, chain }: VerificationJob,
  seq: number,
): Promise<string | undefined> {
  const { rows } = await client.query<{ seq: number; line: string }>(
    `select seq, line from ${RECORDS[chain].table} where tenant_id = $1 order by seq desc limit 1`,
    [tenantId],
  );
  const [last] = rows;
  if (!last || Number(last.seq) >= seq || seq === Number.MAX_SAFE_INTEGER) return undefined;
  return (JSON.parse(last.line) as { id?: string }).id;
}

/** The fault with the lowest seq; the first one if several have it. */
function earliest(faults: readonly Fault[]): Fault | undefined {
  return faults.toSorted((a, b) => a.seq - b.seq)[0];
}

async function startOf(client: pg.Client, { tenantId, chain, keys, directory }: VerificationJob): Promise<Start> {
  // before the head is read, so that neither the file nor a summary covers newer records
  const filed = directory === undefined ? 0 : await sizeOf(checkpointFile(directory, tenantId, chain));
  const newestBlock = chain === 'forensics' ? await newestSummary(client, tenantId) : -1;
  const start = await readStart(client, tenantId, chain);
  const losses = await readLosses(client, tenantId, chain, keys);
  return { ...start, losses, filed, newestBlock, end: Math.max(start.seq ?? 0, start.last ?? 0) };
}

/** The first part is larger, by the share of a million records that is read while another thread starts. */
const EARLIER = 1.04;

/** One part, or as many as there are threads, each made of whole blocks. */
async function partsOf(client: pg.Client, { tenantId, chain, sharing }: VerificationJob, end: number): Promise<Part[]> {
  const { threads, records } = sharing;
  const each = BLOCK_RECORDS * Math.ceil((EARLIER * end) / threads / BLOCK_RECORDS);
  const bounds = end < records ? [] : Array.from({ length: threads - 1 }, (_, n) => (n + 1) * each);
  const { rows } = await client.query<{ seq: number; hash: Buffer | null }>(
    `select seq, hash from ${RECORDS[chain].table} where tenant_id = $1 and seq = any($2) order by seq`,
    [tenantId, bounds.filter((seq) => seq < end)],
  );
  // a record that is missing or has no hash is found by the thread that has its neighbors
  const sound = rows.flatMap(({ seq, hash }, n) =>
    hash?.length === HASH_BYTES && seq !== rows[n - 1]?.seq ? { seq, hash: hash.toString('hex') } : [],
  );
  const places = [{ seq: 0, hash: ZERO_HASH }, ...sound];
  return places.map(({ seq, hash }, n) => {
    const next = places[n + 1];
    return { from: seq, hash, to: next?.seq ?? end, next: next?.hash };
  });
}

/** Like verifiedPart, but in its own thread, which ends with this one. */
async function verifiedByThread(job: VerificationJob, onProgress: (records: number) => void): Promise<PartVerdict> {
  const thread = new Worker(new URL(import.meta.url), { workerData: job, execArgv: [], resourceLimits });
  const done = Promise.withResolvers<PartVerdict>();
  thread.on('message', (message: PartMessage) => {
    if ('verdict' in message) done.resolve(message.verdict);
    else onProgress(message.checked);
  });
  thread.on('error', done.reject);
  thread.on('messageerror', done.reject);
  thread.on('exit', (code) => done.reject(new Error(`the thread of a part ended with ${code}`)));
  return done.promise;
}

/**
 * Reads in chunks, each in its own statement, so that however long the chain is, it holds neither much memory nor a long
 * snapshot. INVARIANT: what is stated about a record is compared in the part that has the record, and in no other. The last part
 * also compares what is stated about records that do not exist.
 */
async function verifiedPart(
  client: pg.Client,
  job: VerificationJob,
  start: Start,
  part: Part,
  onProgress: (records: number) => void,
): Promise<PartVerdict> {
  const { tenantId, chain, keys, directory, known, chunk } = job;
  const { end, losses, alarm } = start;
  const isLast = part.next === undefined;
  const has = (seq: number) => (part.from === 0 || seq > part.from) && (isLast || !(seq > part.to));
  const rests = restsOf(job.busy, part.from === 0 && isLast ? 1 : job.sharing.threads);
  const verifier = new ChainVerifier<Columns>({
    tenantId,
    chain,
    start: { seq: part.from, hash: part.hash },
    ...(chain === 'audit' && { compare: compareAudit }),
  });
  const statements = new Statements(client, verifier, { tenantId, chain, keys, losses });
  const expect = (place: ChainPosition) => has(place.seq) && verifier.expect(place);
  for (const loss of losses) expect(loss.kept);
  for (const place of known) if (!isSuperseded(losses, place)) expect(place);
  if (alarm) {
    const place = { seq: alarm.known_seq, hash: alarm.known_hash, generation: alarm.known_generation };
    if (!isSuperseded(losses, place)) expect(place);
  }
  if (part.next !== undefined) verifier.expect({ seq: part.to, hash: part.next });
  if (isLast && (start.signed ?? 0) > end) await statements.expectStored(end, start.signed!);
  const notes =
    directory === undefined
      ? undefined
      : new Lookahead(notesOf(checkpointFile(directory, tenantId, chain), start.filed, has));
  const summaries = chain === 'forensics' ? new Summaries(client, tenantId, start.newestBlock) : undefined;
  try {
    const reader = new RowReader(chain);
    const hashes = new Hashes(job.hashes, part.hash);
    const { into } = hashes;
    let { from } = part;
    let span = chunk;
    do {
      const to = Math.min(from + span, part.to);
      const stored = await statements.expectStored(from, to);
      await statements.expectFiled(notes, from, to < part.to ? to : Number.POSITIVE_INFINITY, stored);
      await summaries?.load(from, to);
      let records = 0;
      const rows = selectRows(tenantId, chain, from, to);
      const add = (data: Buffer, starts: readonly number[]) => {
        records += starts.length;
        for (let n = 0; n < starts.length; n += LANES) {
          const following = hashes.following(data, starts, n);
          for (let i = n; i < n + LANES && i < starts.length; i++) {
            const row = reader.read(data, starts[i]!);
            verifier.add(row, (following & (1 << (i - n))) !== 0);
            if (summaries && verifier.fields) summaries.add(row.seq, verifier.fields, statements);
          }
        }
      };
      await copyRows(client, rows, add, { rests, into });
      onProgress(to - part.from);
      // a head or record far beyond the others must not be reached chunk by chunk
      const gap = records > 0 || to === part.to ? 0 : (await nextAfter(client, job, to, part.to)) - to;
      span = gap + chunk;
      from = to;
    } while (from < part.to);
  } finally {
    await notes?.close();
  }
  await summaries?.finish(isLast ? end : Number.POSITIVE_INFINITY, statements);
  const verdict = verifier.finish(isLast ? { head: { seq: start.seq ?? 0, hash: start.hash ?? ZERO_HASH } } : {});
  const { first_mismatch_seq: seq, first_mismatch_id: id, reason } = verdict;
  return {
    linear: verdict.linear,
    records_checked: verdict.records_checked,
    head: verdict.head,
    mismatch: verdict.verified ? undefined : { seq: seq!, id, reason: reason! },
    fault: statements.first,
    filed: statements.filed,
  };
}

/** The seq of the next record after `from`, or `to` if there is none up to there. */
async function nextAfter(
  client: pg.Client,
  { tenantId, chain }: VerificationJob,
  from: number,
  to: number,
): Promise<number> {
  const { rows } = await client.query<{ seq: number }>(
    `select seq from ${RECORDS[chain].table} where tenant_id = $1 and seq > $2 and seq <= $3 order by seq limit 1`,
    [tenantId, from, to],
  );
  return rows[0]?.seq ?? to;
}

/** The notes in the first `bytes` of a checkpoint file that are about records of this part. */
async function* notesOf(file: string, bytes: number, has: (seq: number) => boolean): AsyncGenerator<FiledNote> {
  for await (const note of notesIn(file, 0, bytes)) if (has(note.seq)) yield note;
}

/** Something wrong outside the chain itself, at record `seq`. */
interface Fault {
  seq: number;
  id?: string | undefined;
  reason: string;
}

/** The checkpoint file cannot be read at all. */
class FileFault extends Error {}

/** Passes what is stated about a chain to its verifier, and keeps the first fault in the statements themselves. */
class Statements {
  readonly #client: pg.Client;
  readonly #verifier: ChainVerifier<Columns>;
  readonly #of: {
    tenantId: string;
    chain: ChainName;
    keys: readonly NoteKey[];
    losses: readonly AcceptedLoss[];
  };
  first: Fault | undefined;
  /** seq of the highest checkpoint in the file. */
  filed = 0;
  /** The file cannot be read. The records are still compared with everything else. */
  #fileFault = false;

  constructor(
    client: pg.Client,
    verifier: ChainVerifier<Columns>,
    of: { tenantId: string; chain: ChainName; keys: readonly NoteKey[]; losses: readonly AcceptedLoss[] },
  ) {
    this.#client = client;
    this.#verifier = verifier;
    this.#of = of;
  }

  fault(fault: Fault): void {
    if (!this.first || fault.seq < this.first.seq) this.first = fault;
  }

  /** Expects the database's checkpoints for the records after `from` up to `to`, and resolves with them. */
  async expectStored(from: number, to: number): Promise<ReadonlyMap<number, string>> {
    const { tenantId, chain } = this.#of;
    const { rows } = await this.#client.query<{ seq: number; note: string }>(
      'select seq, note from chain_checkpoint where tenant_id = $1 and chain = $2 and seq > $3 and seq <= $4 order by seq',
      [tenantId, chain, from, to],
    );
    for (const { seq, note } of rows) {
      try {
        const head = this.#open(note);
        if (head.seq !== seq) throw new Error('it was signed for another place');
        if (!isSuperseded(this.#of.losses, head)) this.#verifier.expect(head);
      } catch (error) {
        this.fault({ seq, reason: `checkpoint ${seq} was altered: ${(error as Error).message}` });
      }
    }
    return new Map(rows.map(({ seq, note }) => [seq, note]));
  }

  /**
   * Expects the file's checkpoints up to record `to`. They are usually in the order of their records, so reading stops at the
   * first one beyond `to`. A late one, whose record has already gone by, is compared with what is stored.
   */
  async expectFiled(
    notes: Lookahead | undefined,
    from: number,
    to: number,
    stored: ReadonlyMap<number, string>,
  ): Promise<void> {
    if (!notes || this.#fileFault) return;
    try {
      await this.#expectNotes(notes, from, to, stored);
    } catch (error) {
      if (!(error instanceof FileFault)) throw error;
      this.#fileFault = true;
      this.fault({ seq: Number.MAX_SAFE_INTEGER, reason: `the checkpoint file: ${error.message}` });
    }
  }

  async #expectNotes(notes: Lookahead, from: number, to: number, stored: ReadonlyMap<number, string>): Promise<void> {
    const late: ChainPosition[] = [];
    for (let note = await notes.peek(); note && !(note.seq > to); note = await notes.peek()) {
      notes.take();
      // byte for byte the same as in the database, where it was already opened
      if (stored.get(note.seq) === note.note) {
        this.filed = Math.max(this.filed, note.seq);
        continue;
      }
      try {
        const head = this.#open(note.note);
        if (isSuperseded(this.#of.losses, head)) continue;
        this.filed = Math.max(this.filed, head.seq);
        if (head.seq > from) this.#verifier.expect(head);
        else if (late.push(head) === 1000) await this.#compareLate(late.splice(0));
      } catch (error) {
        this.fault({ seq: Number.MAX_SAFE_INTEGER, reason: `the checkpoint file: ${(error as Error).message}` });
      }
    }
    await this.#compareLate(late);
  }

  async #compareLate(late: readonly ChainPosition[]): Promise<void> {
    if (late.length === 0) return;
    const { tenantId, chain } = this.#of;
    const { rows } = await this.#client.query<{ seq: number; hash: Buffer }>(
      `select seq, hash from ${RECORDS[chain].table} where tenant_id = $1 and seq = any($2)`,
      [tenantId, late.map(({ seq }) => seq)],
    );
    const hashes = new Map(rows.map((row) => [row.seq, row.hash.toString('hex')]));
    for (const { seq, hash } of late) {
      if (hashes.get(seq) === hash) continue;
      this.fault({ seq, reason: `record ${seq}: a signed checkpoint in the file states another hash` });
    }
  }

  #open(note: string) {
    const head = openHead(note, this.#of.keys);
    if (!isOriginOf(head.origin, this.#of.tenantId, this.#of.chain)) throw new Error('it was signed for another place');
    return head;
  }
}

/** Notes one at a time, with a look at the next one. */
class Lookahead {
  readonly #notes: AsyncGenerator<FiledNote>;
  #next: FiledNote | undefined;

  constructor(notes: AsyncGenerator<FiledNote>) {
    this.#notes = notes;
  }

  async peek(): Promise<FiledNote | undefined> {
    try {
      this.#next ??= (await this.#notes.next()).value as FiledNote | undefined;
    } catch (error) {
      throw new FileFault((error as Error).message, { cause: error });
    }
    return this.#next;
  }

  take(): void {
    this.#next = undefined;
  }

  async close(): Promise<void> {
    await this.#notes.return(undefined);
  }
}

/** Compares the summaries that searches read with the texts of the records as the records go by. */
class Summaries {
  readonly #client: pg.Client;
  readonly #tenantId: string;
  /** The newest one; -1 if there is none. */
  readonly #newest: number;
  readonly #block = new Block();
  #loaded = new Map<number, Summary>();
  /** The first block, up to the newest, that has no summary. */
  #missing: number | undefined;

  constructor(client: pg.Client, tenantId: string, newest: number) {
    this.#client = client;
    this.#tenantId = tenantId;
    this.#newest = newest;
  }

  /** Loads the summaries of the blocks that end with one of the records after `from` up to `to`. */
  async load(from: number, to: number): Promise<void> {
    const [first, last] = [blockOf(from + 1), Math.min(blockOf(to + 1) - 1, this.#newest)];
    if (first > last) {
      this.#loaded.clear();
      return;
    }
    const { rows } = await this.#client.query<Summary & { block: number }>(
      `select block, seen, ${BLOCK_FIELDS.join(', ')} from forensic_block where tenant_id = $1 and block between $2 and $3`,
      [this.#tenantId, first, last],
    );
    this.#loaded = new Map(rows.map((row) => [row.block, row]));
  }

  /** Adds the next record of a chain in which nothing is wrong so far. */
  add(seq: number, fields: Int32Array, statements: Statements): void {
    this.#block.add(seq, fields);
    const block = blockOf(seq);
    if (seq !== lastIn(block) || block > this.#newest) return;
    const summary = this.#loaded.get(block);
    if (!summary) this.#missing ??= block;
    else if (!this.#block.agrees(summary)) this.#fault(block, 'differs from their texts', statements);
  }

  /** `end`: no summary may cover records beyond it. */
  async finish(end: number, statements: Statements): Promise<void> {
    const isMissing = this.#missing !== undefined;
    const isBeyond = this.#newest >= 0 && lastIn(this.#newest) > end;
    if (!isMissing && !isBeyond) return;
    // they may all have been deleted in the meantime, to be rebuilt
    const { rows } = await this.#client.query<{ block: number }>(
      'select block from forensic_block where tenant_id = $1 and block >= $2 order by block limit 1',
      [this.#tenantId, this.#missing ?? this.#newest],
    );
    if (rows[0] && isMissing && rows[0].block > this.#missing!) this.#fault(this.#missing!, 'is missing', statements);
    if (rows[0] && isBeyond) this.#fault(this.#newest, 'is of more than there are', statements);
  }

  #fault(block: number, what: string, statements: Statements): void {
    const [first, last] = [firstIn(block), lastIn(block)];
    statements.fault({ seq: first, reason: `records ${first} to ${last}: the summary that searches read ${what}` });
  }
}

async function newestSummary(client: pg.Client, tenantId: string): Promise<number> {
  const { rows } = await client.query<{ block: number }>(
    'select block from forensic_block where tenant_id = $1 order by block desc limit 1',
    [tenantId],
  );
  return rows[0]?.block ?? -1;
}

const INPUTS = 2000;

/**
 * Compares the kept inputs with the hashes in their records. An input may be gone (retention erases it), but one that is there
 * must be the one on which the decision was made. Resolves with the first that is not.
 */
async function alteredInput(client: pg.Client, tenantId: string, rests: Rests): Promise<Fault | undefined> {
  let first: Fault | undefined;
  for (let after = ''; ; ) {
    const began = performance.now();
    const { rows } = await client.query<{ last: string | null; altered: { seq: number; id: string } | null }>(
      // the text is searched, not parsed: what was written there need not be JSON
      `with page as materialized (
         select event_id, salt_a, projection, salt_b, input from decision_input
         where tenant_id = $1 and event_id > $2 order by event_id limit $3)
       select max(p.event_id) as last,
         (array_agg(json_build_object('seq', r.seq, 'id', p.event_id) order by r.seq) filter (
           where r.seq is not null and (
             p.input is not null and substring(r.line from '"input_hash":"(sha256:[0-9a-f]{64})"')
               is distinct from 'sha256:' || encode(sha256(p.salt_b || convert_to(p.input, 'UTF8')), 'hex')
             or p.projection is not null and substring(r.line from '"ask_commit":"(sha256:[0-9a-f]{64})"')
               is distinct from 'sha256:' || encode(sha256(p.salt_a || convert_to(p.projection, 'UTF8')), 'hex')
           )))[1] as altered
       from page p left join forensic_record r on r.tenant_id = $1 and r.event_id = p.event_id`,
      [tenantId, after, INPUTS],
    );
    const { last, altered } = rows[0]!;
    if (altered && !(first && first.seq <= altered.seq)) {
      const { seq, id } = altered;
      const reason = `record ${seq} (${id}): the input that is kept with it has another hash than the record says`;
      first = { seq, id, reason };
    }
    if (last === null || last <= after) return first;
    after = last;
    const ms = rests.after(performance.now() - began);
    if (ms !== undefined) await delay(ms);
  }
}

async function sizeOf(file: string): Promise<number> {
  try {
    return (await stat(file)).size;
  } catch (error) {
    // a file that appears later holds only what is newer than this verification's end; an unreadable file fails when it is read
    return (error as NodeJS.ErrnoException).code === 'ENOENT' ? 0 : Number.MAX_SAFE_INTEGER;
  }
}

/**
 * One transaction, in which each statement still has its own snapshot: between statements it holds nothing up. Without these
 * settings the planner would sort a large tenant's rows on disk instead of following the primary key.
 */
const reading = ({
  tenantId,
  lockMs,
}: VerificationJob): string => `begin read only; set local role svc_app; ${setTenant(tenantId)};
  set local enable_seqscan = off; set local enable_bitmapscan = off; set local enable_sort = off; set local jit = off;
  set local max_parallel_workers_per_gather = 0; set local lock_timeout = '${lockMs}ms'`;

/** Head, last record and last checkpoint, all as of one moment: on an intact chain they agree. */
async function readStart(client: pg.Client, tenantId: string, chain: ChainName) {
  const { rows } = await client.query<{
    seq: number | null;
    hash: Buffer | null;
    last: number | null;
    signed: number | null;
    note: string | null;
    created_at: Date | null;
    alarm: { known_seq: number; known_hash: string; known_generation: number; agreed: number; reason: string } | null;
  }>(
    `select h.seq, h.hash, c.seq as signed, c.note, c.created_at, to_jsonb(a) as alarm,
       (select max(seq) from ${RECORDS[chain].table} where tenant_id = $1) as last
     from (select) one
     left join chain_head h on h.tenant_id = $1 and h.chain = $2
     left join lateral (select seq, note, created_at from chain_checkpoint
       where tenant_id = $1 and chain = $2 order by seq desc limit 1) c on true
     left join chain_alarm a on a.tenant_id = $1 and a.chain = $2`,
    [tenantId, chain],
  );
  const row = rows[0]!;
  const hash = row.hash?.toString('hex');
  const checkpoint = row.signed === null ? null : { seq: row.signed, hash: row.note?.split('\n')[3] ?? '' };
  return {
    ...row,
    hash,
    checkpoint: checkpoint && { ...checkpoint, created_at: row.created_at!.toISOString() },
  };
}

// at the end, where everything it uses is defined
await main(workerData as VerificationJob);
