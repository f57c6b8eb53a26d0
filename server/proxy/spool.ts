import {
  closeSync,
  constants,
  fdatasync,
  fdatasyncSync,
  fsyncSync,
  ftruncateSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  readSync,
  statSync,
  unlinkSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import { rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { setImmediate } from 'node:timers/promises';
import { crc32 } from 'node:zlib';
import type { LedgerEntry } from '../domain/session-facts.ts';
import { type Lock, lockDirectory } from './lock.ts';
import { KINDS, LINE_BYTES, type Line, lineOf, readLines } from './spool-line.ts';

/** The spool has no room, or its disk failed: nothing may be permitted, because it could not be recorded. */
export class SpoolError extends Error {
  override readonly name = 'SpoolError';
}

/** The outcome of an action that was permitted. */
export interface Outcome {
  outcome: string;
  total_latency_ms: number;
  /** What the session's ledger is to contain of it. */
  session_facts?: readonly LedgerEntry[];
}

/** An event as it is sent: JSON texts, which nothing between the decision and the control plane parses again. */
export interface Spooled {
  event: Buffer;
  /** What is kept of its request, for the control plane. */
  input: Buffer | undefined;
  /** It was sent before, and is sent again because what its call revealed about the session came late. */
  again: boolean;
}

/** Events to send next, in order; `through` is the number of the last one that has then been sent at least once. */
export interface Batch {
  items: readonly Spooled[];
  through: number;
  /** Where the next batch begins. */
  readonly end: Position;
}

interface Position {
  segment: number;
  offset: number;
}

interface Segment {
  /** The number of the first event in it, which is its file's name. */
  first: number;
  bytes: number;
}

/** A line to be written; `seq` is 0 if it is not an event. */
interface Queued {
  text: string;
  seq: number;
  alone: boolean;
  done: (error?: Error) => void;
}

/** Fields that only the outcome of an open event has. */
const OF_OUTCOME = ['outcome', 'total_latency_ms', 'session_facts'] as const satisfies (keyof Outcome)[];

/** In place of a deadline: the outcome is being written. */
const NOTED = Number.POSITIVE_INFINITY;
const NOTE_MS = 50;
const AGAIN_MS = 1000;
/** If the last flush took longer than this, other work continues during the next one. */
const QUICK_MS = 1;
/** The flush that makes room takes ten times as long as others: fewer than one in a hundred should be one. */
const ROOM_BYTES = 1024 * 1024;
/** How much of a segment is read at once. */
const READ_BYTES = 128 * 1024;
const NONE = Buffer.from('null');

/** The largest event with all its fields; a permit is not begun with less room than this. */
const MOST_EVENT_BYTES = 64 * 1024;

const sync = (fd: number) =>
  new Promise<void>((resolve, reject) => fdatasync(fd, (error) => (error ? reject(error) : resolve())));

/**
 * The events of one proxy on disk, from the decision to the control plane's acknowledgement.
 *
 * Segment files, each named after its first event's number, hold lines with checksums, see `Line`. `append` resolves when its
 * line is on disk (everything waiting shares one flush); a segment is deleted when all its events are acknowledged. An event's
 * content never changes once it was handed out in a batch, even across a crash: an outcome is a line of its own, and an event
 * that is sent before its outcome is known gets a line that says so. That makes sending it again harmless.
 *
 * INVARIANT: numbers have no gaps: `decided = acknowledged + pending`, at every moment and across every restart.
 */
export class Spool {
  readonly #dir: string;
  readonly #lock: Lock;
  readonly #maxBytes: number;
  readonly #segmentBytes: number;
  readonly #outcomeWaitMs: number;
  readonly #now: () => number;
  #segments: Segment[] = [];
  #fd = -1;
  /** The file that records what was acknowledged. */
  readonly #noted: number;
  #bytes = 0;
  /** The length of the current segment's file, including the room at its end. */
  #allocated = 0;
  /** The last event that is on disk. */
  #durable = 0;
  /** The last event that was given a number. */
  #last = 0;
  #acknowledged = 0;
  #start: Position = { segment: 0, offset: 0 };
  /** The end of what was there to send when it was opened. */
  #inherited: Position = { segment: 0, offset: 0 };
  /** Events whose outcome may still come, with the deadline until which they wait for it. */
  readonly #open = new Map<number, number>();
  /** The JSON texts of the outcomes of events that are not acknowledged yet; null for none. */
  readonly #outcomes = new Map<number, Buffer>();
  #queue: Queued[] = [];
  /** How long the last flush took. */
  #flushMs = QUICK_MS;
  #flushing: Promise<void> | undefined;
  #timer: NodeJS.Timeout | undefined;
  #broken: Error | undefined;
  /** Why the last group could not be stored. */
  #refused: Error | undefined;
  #trying: Promise<void> | undefined;
  #closed = false;
  /** Called when there may be something to send. */
  onChange: () => void = () => {};

  private constructor(dir: string, lock: Lock, options: SpoolOptions) {
    this.#dir = dir;
    this.#lock = lock;
    this.#maxBytes = options.maxBytes;
    this.#segmentBytes = Math.max(1024, Math.min(4 * 1024 * 1024, Math.floor(options.maxBytes / 8)));
    this.#outcomeWaitMs = options.outcomeWaitMs;
    this.#now = options.now ?? Date.now;
    this.#noted = openSync(this.#file('acknowledged'), constants.O_RDWR | constants.O_CREAT, 0o600);
  }

  /**
   * Opens the spool in a directory of its own; undefined if another process has it. What a crash tore off at the end was never
   * acknowledged to anyone: it is moved to a file next to the segment, and `warn` is called. Throws a SpoolError on any other
   * damage, because continuing would lose records silently.
   */
  static open(dir: string, options: SpoolOptions): Spool | undefined {
    mkdirSync(dir, { recursive: true, mode: 0o700 });
    const lock = lockDirectory(dir);
    if (!lock) return undefined;
    const spool = new Spool(dir, lock, options);
    try {
      spool.#recover(options.warn ?? (() => {}));
      return spool;
    } catch (error) {
      lock.close();
      throw error;
    }
  }

  get decided(): number {
    return this.#durable;
  }
  get acknowledged(): number {
    return this.#acknowledged;
  }
  get pending(): number {
    return this.#durable - this.#acknowledged;
  }
  get bytes(): number {
    return this.#bytes;
  }
  /** Something from an earlier process has not been sent yet. */
  get behind(): boolean {
    const { segment, offset } = this.#inherited;
    return this.#start.segment < segment || (this.#start.segment === segment && this.#start.offset < offset);
  }
  get fault(): string | undefined {
    if (this.#broken) return `the spool's disk failed: ${this.#broken.message}`;
    return this.#bytes + MOST_EVENT_BYTES > this.#maxBytes ? 'the spool is full' : undefined;
  }

  /**
   * Why the next event would be refused; undefined if nothing is known of that. After a write that failed, it finds out whether
   * the disk has room again: where nobody sends requests to a proxy that refuses them, no other write would.
   */
  async refusal(): Promise<string | undefined> {
    if (this.#refused && !this.fault) {
      this.#trying ??= this.#try().finally(() => {
        this.#trying = undefined;
      });
      await this.#trying;
    }
    return this.fault ?? (this.#refused && `the spool cannot be written: ${this.#refused.message}`);
  }

  async #try(): Promise<void> {
    const file = this.#file('room');
    try {
      await writeFile(file, Buffer.alloc(MOST_EVENT_BYTES), { mode: 0o600, flush: true });
      this.#refused = undefined;
    } catch (error) {
      this.#refused = error as Error;
    } finally {
      await rm(file, { force: true }).catch(() => {});
    }
  }

  /** Throws a SpoolError if there is no room for an event. To be called before anything is begun for a decision. */
  assertRoom(): void {
    const fault = this.#closed ? 'the proxy is stopping' : this.fault;
    if (fault) throw new SpoolError(fault);
  }

  /**
   * Stores an event under the next number. When it resolves, the event is on disk. With `open`, the event waits for its outcome
   * before it is sent. Rejects with a SpoolError if it could not be stored; it then has no number and leaves no trace.
   *
   * `input` is sent with the event. If there is only room for the event, `input` is left out.
   *
   * `alone`: the process has nothing else to do meanwhile. A quick disk is then waited for synchronously: handing the flush to
   * another thread and back takes a third as long as the flush, and at times ten times as long.
   */
  async append(
    make: (seq: number) => Record<string, unknown>,
    open: boolean,
    { input, alone = false }: { input?: object | undefined; alone?: boolean } = {},
  ): Promise<number> {
    this.assertRoom();
    const seq = this.#last + 1;
    const event = make(seq);
    event.proxy_seq = seq;
    if (open && OF_OUTCOME.some((name) => event[name] !== undefined))
      throw new TypeError('an open event has an outcome');
    const kind = open ? KINDS.open : KINDS.event;
    const bare = JSON.stringify(event);
    if (Buffer.byteLength(bare) > MOST_EVENT_BYTES - LINE_BYTES) throw new SpoolError('the event is too long');
    let text = lineOf(kind, seq, input ? `${bare}\t${JSON.stringify(input)}` : bare);
    const bytes = Buffer.byteLength(text);
    if (bytes > MOST_EVENT_BYTES && this.#bytes + bytes > this.#maxBytes) text = lineOf(kind, seq, bare);
    this.#last = seq;
    if (open) this.#open.set(seq, this.#now() + this.#outcomeWaitMs);
    return new Promise((resolve, reject) => {
      const done = (error?: Error) => {
        if (!error) return resolve(seq);
        this.#open.delete(seq);
        reject(new SpoolError(`the event could not be stored: ${error.message}`, { cause: error }));
      };
      this.#enqueue({ text, seq, alone, done });
    });
  }

  /**
   * Records the outcome of an action, without waiting. A late outcome is dropped, because its event may have been sent; but
   * `event`, which is its event as it was stored, is sent once more with what the session's ledger is to contain: that is not
   * part of the record.
   */
  settle(seq: number, outcome: Outcome, event?: Record<string, unknown>): void {
    if (this.#closed) return;
    const deadline = this.#open.get(seq);
    const late = () => event && outcome.session_facts?.length && this.#again(seq, event, outcome.session_facts);
    if (deadline === undefined || deadline === NOTED) {
      late();
      return;
    }
    // the event must not be sent before the outcome is on disk, or after a crash it would be sent with other content
    this.#open.set(seq, NOTED);
    this.#note(seq, outcome).catch(() => {
      this.#open.set(seq, 0);
      late();
    });
  }

  /** What cannot be stored is tried again: until then only this process knows what the call revealed. */
  #again(seq: number, event: Record<string, unknown>, session_facts: readonly LedgerEntry[]): void {
    const text = lineOf(KINDS.again, seq, JSON.stringify({ ...event, session_facts }));
    const done = (error?: Error) => {
      // after a failed flush nothing more is stored or permitted
      if (!error || this.#broken) return;
      setTimeout(() => this.#closed || this.#again(seq, event, session_facts), AGAIN_MS).unref();
    };
    this.#enqueue({ text, seq: 0, alone: false, done });
  }

  /**
   * The next events in order, at most `most` and about `mostBytes`; undefined if there are none to send yet. Until it is
   * acknowledged, the same events are returned again (followed by others). Rejects if the first one waited too long for its
   * outcome, and the note that it is sent without one cannot be stored.
   */
  async batch(most: number, mostBytes: number): Promise<Batch | undefined> {
    const now = this.#now();
    const items: (Spooled & { seq: number; through: number; after: Position })[] = [];
    const seal: number[] = [];
    let bytes = 0;
    for (const { line, after } of this.#lines(this.#start)) {
      const { kind, seq, texts } = line;
      if (kind === KINDS.outcome) continue;
      const again = kind === KINDS.again;
      // never in one batch with itself
      if (again && items.some((one) => one.seq === seq)) break;
      if (seq > this.#durable) break;
      const deadline = again ? undefined : this.#open.get(seq);
      if (deadline !== undefined && now < deadline) break;
      if (deadline !== undefined) seal.push(seq);
      const [event, input] = texts as [Buffer, Buffer | undefined];
      const through = again ? (items.at(-1)?.through ?? this.#acknowledged) : seq;
      items.push({ seq, event, input, again, through, after });
      bytes += event.length + (this.#outcomes.get(seq) ?? NONE).length + (input?.length ?? 0);
      if (items.length >= most || bytes >= mostBytes) break;
    }
    for (const seq of seal) this.#open.set(seq, NOTED);
    // what could not be noted is tried again with the next batch
    const notes = seal.map((seq) =>
      this.#note(seq, null).then(
        () => undefined,
        (error: Error) => {
          this.#open.set(seq, 0);
          return { seq, error };
        },
      ),
    );
    if (seal.length > 0) await this.#flushNow();
    const unsealed = (await Promise.all(notes)).find((fault) => fault !== undefined);
    // what comes before it is complete, and sending that gives a full disk room
    const ready = unsealed ? items.filter(({ through }) => through < unsealed.seq) : items;
    const last = ready.at(-1);
    if (!last && unsealed) throw unsealed.error;
    return (
      last && {
        items: ready.map(({ seq, event, input, again }) => {
          return { event: again ? event : joined(event, this.#outcomes.get(seq)), input, again };
        }),
        through: last.through,
        end: last.after,
      }
    );
  }

  /** Completes the events of a batch: the control plane has them, or has refused them for good. */
  acknowledge({ through, end }: Batch): void {
    for (let seq = this.#acknowledged + 1; seq <= through; seq++) this.#outcomes.delete(seq);
    this.#acknowledged = through;
    this.#start = end;
    // Not flushed: if a crash loses this, events are sent again, which changes nothing.
    const digits = String(through).padStart(16, '0');
    writeSync(this.#noted, `${digits} ${crc32(digits).toString(16).padStart(8, '0')}\n`, 0);
    const { bytes } = this.#segments.at(-1)!;
    const idle = this.pending === 0 && this.#queue.length === 0 && !this.#flushing;
    if (idle && bytes > this.#segmentBytes / 2) this.#rotate();
    // all that is left of a segment may be outcomes of its events
    if (this.#segments.length > 1) {
      for (const { line, after } of this.#lines(this.#start)) {
        if (line.kind !== KINDS.outcome) break;
        this.#start = after;
      }
    }
    const isSent = ({ first, bytes }: Segment) =>
      this.#start.segment > first || (this.#start.segment === first && this.#start.offset >= bytes);
    while (
      this.#segments.length > 1 &&
      this.#segments[1]!.first <= this.#acknowledged + 1 &&
      isSent(this.#segments[0]!)
    ) {
      const { first, bytes } = this.#segments.shift()!;
      unlinkSync(this.#file(segmentName(first)));
      this.#bytes -= bytes;
    }
    const [oldest] = this.#segments;
    if (this.#start.segment < oldest!.first) this.#start = { segment: oldest!.first, offset: 0 };
  }

  /** Keeps an event that the control plane refused for good in a file next to the spool; it is on disk when this returns. */
  setAside(event: Buffer, why: string): void {
    const fd = openSync(this.#file('refused.jsonl'), 'a', 0o600);
    try {
      writeSync(fd, `{"why":${JSON.stringify(why)},"event":${event}}\n`);
      fdatasyncSync(fd);
    } finally {
      closeSync(fd);
    }
  }

  /** Waits for what is being written, then releases the directory to other processes. */
  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    await this.#flushNow();
    if (!this.#broken) ftruncateSync(this.#fd, this.#segments.at(-1)!.bytes);
    closeSync(this.#fd);
    closeSync(this.#noted);
    this.#lock.close();
  }

  #note(seq: number, outcome: Outcome | null): Promise<void> {
    const text = JSON.stringify(outcome);
    return new Promise((resolve, reject) => {
      const done = (error?: Error) => {
        if (error) return reject(error);
        this.#open.delete(seq);
        this.#outcomes.set(seq, Buffer.from(text));
        resolve();
      };
      this.#enqueue({ text: lineOf(KINDS.outcome, seq, text), seq: 0, alone: false, done });
    });
  }

  /** An event is flushed at once; a note may wait for the next event's flush, or for a moment. */
  #enqueue(line: Queued): void {
    if (this.#broken) {
      line.done(this.#broken);
      return;
    }
    this.#queue.push(line);
    if (line.seq > 0) this.#flushing ??= this.#flush();
    else this.#timer ??= setTimeout(() => this.#flushNow(), NOTE_MS);
  }

  #flushNow(): Promise<void> {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    if (this.#queue.length > 0) this.#flushing ??= this.#flush();
    return this.#flushing ?? Promise.resolve();
  }

  async #flush(): Promise<void> {
    // in a later turn: otherwise, a flush that fails at once would end before it is noted as running, and seem to run forever
    await undefined;
    while (this.#queue.length > 0) {
      const group = this.#queue;
      this.#queue = [];
      try {
        const segment = this.#segments.at(-1)!;
        if (segment.bytes >= this.#segmentBytes) this.#rotate(group.find(({ seq }) => seq > 0)?.seq ?? this.#last + 1);
        const current = this.#segments.at(-1)!;
        const bytes = Buffer.from(group.length === 1 ? group[0]!.text : group.map(({ text }) => text).join(''));
        // at a position, so that what an earlier failure left there is overwritten
        for (let at = 0; at < bytes.length; ) {
          at += writeSync(this.#fd, bytes, at, bytes.length - at, current.bytes + at);
        }
        // Makes room for what follows: a flush that does not change the file's length needs no entry in the file system's
        // journal, and takes a fraction of the time if others write too.
        const end = current.bytes + bytes.length;
        if (end > this.#allocated) {
          this.#allocated = end + Math.min(ROOM_BYTES, this.#segmentBytes);
          writeSync(this.#fd, Buffer.alloc(this.#allocated - end), 0, this.#allocated - end, end);
        }
        const began = performance.now();
        try {
          // an earlier action's note may go with it
          const events = group.filter(({ seq }) => seq > 0);
          const atOnce = events.length > 0 && events.every(({ alone }) => alone) && this.#flushMs < QUICK_MS;
          if (atOnce) fdatasyncSync(this.#fd);
          else await sync(this.#fd);
          this.#flushMs = performance.now() - began;
          // Handles what happened meanwhile before anyone continues, such as the end of a connection that is about to be used.
          // The first turn may end without checking the connections if this one began with them.
          if (atOnce && this.#flushMs >= QUICK_MS) for (let n = 0; n < 2; n++) await setImmediate();
        } catch (error) {
          // after a failed flush it is unknown what is on disk: nothing more may be built on it
          this.#broken = error as Error;
          throw error;
        }
        this.#refused = undefined;
        current.bytes += bytes.length;
        this.#bytes += bytes.length;
        for (const { seq, done } of group) {
          if (seq > 0) this.#durable = seq;
          done();
        }
        this.onChange();
      } catch (error) {
        this.#refused = error as Error;
        // What was written of the group must not be found after a crash: it was answered with a refusal.
        try {
          this.#allocated = this.#segments.at(-1)!.bytes;
          ftruncateSync(this.#fd, this.#allocated);
        } catch (cause) {
          this.#broken ??= cause as Error;
        }
        // numbers assigned to what failed, and to what waits behind it, are taken back so that there are no gaps
        const failed = [...group, ...this.#queue];
        this.#queue = [];
        this.#last = this.#durable;
        for (const { done } of failed) done(error as Error);
      }
    }
    this.#flushing = undefined;
  }

  /**
   * Begins a new segment and flushes the directory, so that the file is found after a crash. If the current segment holds no
   * event yet, only outcomes of earlier ones, it is the one that the next event begins, and stays in use.
   */
  #rotate(first = this.#last + 1): void {
    if (this.#segments.at(-1)?.first === first) return;
    const file = this.#file(segmentName(first));
    const fd = openSync(file, 'wx', 0o600);
    try {
      const directory = openSync(this.#dir, 'r');
      try {
        fsyncSync(directory);
      } finally {
        closeSync(directory);
      }
      if (this.#fd >= 0) ftruncateSync(this.#fd, this.#segments.at(-1)!.bytes);
    } catch (error) {
      closeSync(fd);
      unlinkSync(file);
      throw error;
    }
    if (this.#fd >= 0) closeSync(this.#fd);
    this.#fd = fd;
    this.#allocated = 0;
    this.#segments.push({ first, bytes: 0 });
  }

  #recover(warn: (message: string) => void): void {
    const names = readdirSync(this.#dir).filter((name) => /^\d{16}\.spool$/.test(name));
    this.#segments = names.sort().map((name) => {
      return { first: Number(name.slice(0, 16)), bytes: statSync(this.#file(name)).size };
    });
    const first = this.#segments[0]?.first ?? 1;
    this.#acknowledged = Math.max(this.#readNoted(), first - 1);
    this.#last = first - 1;
    this.#start = { segment: first, offset: 0 };

    const open = new Set<number>();
    for (const [n, segment] of this.#segments.entries()) {
      const text = readFileSync(this.#file(segmentName(segment.first)));
      const lines = readLines(text);
      let good = 0;
      for (const { line, end } of lines) {
        const { kind, seq, texts } = line;
        if (kind !== KINDS.outcome) this.#inherited = { segment: segment.first, offset: end };
        if (kind === KINDS.event || kind === KINDS.open) {
          if (seq !== this.#last + 1) throw this.#damage(segment, good, 'an event is missing');
          this.#last++;
          if (this.#last <= this.#acknowledged) this.#start = { segment: segment.first, offset: end };
          else if (kind === KINDS.open) open.add(this.#last);
        } else if (kind === KINDS.outcome) {
          open.delete(seq);
          // a copy, so that the whole segment does not stay in memory
          if (seq > this.#acknowledged) this.#outcomes.set(seq, Buffer.from(texts[0]!));
        }
        good = end;
      }
      // zeros are room that was made but not used
      const end = lengthWithoutZeros(text, good);
      segment.bytes = good;
      if (good < end) {
        if (n < this.#segments.length - 1) throw this.#damage(segment, good, 'a line does not have its checksum');
        const torn = `torn-${segmentName(segment.first)}-${this.#now()}`;
        writeFileSync(this.#file(torn), text.subarray(good, end), { mode: 0o600 });
        warn(`${end - good} bytes at the end of the spool were not written whole; they are kept in ${torn}`);
      }
      this.#bytes += segment.bytes;
    }
    if (this.#acknowledged > this.#last) {
      throw new SpoolError(
        `${this.#dir}: events up to ${this.#acknowledged} were sent, but the spool ends at ${this.#last}`,
      );
    }
    this.#durable = this.#last;
    if (this.#segments.length === 0) this.#rotate(1);
    else {
      const segment = this.#segments.at(-1)!;
      this.#fd = openSync(this.#file(segmentName(segment.first)), 'r+');
      ftruncateSync(this.#fd, segment.bytes);
      this.#allocated = segment.bytes;
    }
    // The process that permitted these is gone: no one will report their outcomes.
    for (const seq of open) this.#open.set(seq, 0);
  }

  /** The last acknowledged number on record; 0 if the record is missing or damaged, in which case everything is sent again. */
  #readNoted(): number {
    const [, digits = '', sum] = /^(\d{16}) ([0-9a-f]{8})\n$/.exec(readFileSync(this.#noted, 'utf8')) ?? [];
    return sum === crc32(digits).toString(16).padStart(8, '0') ? Number(digits) : 0;
  }

  #damage(segment: Segment, offset: number, what: string): SpoolError {
    return new SpoolError(
      `${this.#file(segmentName(segment.first))} is damaged at byte ${offset} (${what}). Its events cannot be sent as they are: move the file away to go on without them.`,
    );
  }

  *#lines(from: Position): Generator<{ line: Line; after: Position }> {
    for (const { first, bytes } of [...this.#segments]) {
      if (first < from.segment) continue;
      let at = first === from.segment ? from.offset : 0;
      if (at >= bytes) continue;
      const fd = openSync(this.#file(segmentName(first)), 'r');
      try {
        for (let most = READ_BYTES; at < bytes; ) {
          const text = Buffer.allocUnsafe(Math.min(most, bytes - at));
          const read = readSync(fd, text, 0, text.length, at);
          const start = at;
          for (const { line, end } of readLines(text.subarray(0, read))) {
            at = start + end;
            yield { line, after: { segment: first, offset: at } };
          }
          if (at > start) most = READ_BYTES;
          else if (read < text.length || text.length === bytes - at) break;
          // a line longer than what was read
          else most *= 2;
        }
      } finally {
        closeSync(fd);
      }
    }
  }

  #file(name: string): string {
    return path.join(this.#dir, name);
  }
}

export interface SpoolOptions {
  maxBytes: number;
  /** How long an event waits for its action's outcome before it is sent without it. */
  outcomeWaitMs: number;
  now?: () => number;
  warn?: (message: string) => void;
}

function lengthWithoutZeros(bytes: Buffer, from: number): number {
  let length = bytes.length;
  while (length > from && bytes[length - 1] === 0) length--;
  return length;
}

function segmentName(first: number): string {
  return `${String(first).padStart(16, '0')}.spool`;
}

/** The event with the fields of its outcome, which it does not contain itself. */
function joined(event: Buffer, outcome: Buffer | undefined): Buffer {
  if (!outcome || outcome.equals(NONE)) return event;
  return Buffer.concat([event.subarray(0, -1), COMMA, outcome.subarray(1)]);
}
const COMMA = Buffer.from(',');
