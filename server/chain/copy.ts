import type { EventEmitter } from 'node:events';
import { Socket } from 'node:net';
import pg from 'pg';
import type { Rests } from '../lib/pace.ts';

/**
 * What the chain needs of PostgreSQL's wire protocol that `pg` does not offer: rows encoded for COPY (FORMAT binary), pipelined
 * transactions sent as one message each, and COPY OUT read in place. See the PostgreSQL manual, "Frontend/Backend Protocol" and
 * "COPY, Binary Format".
 */

const HEADER = Buffer.from('PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0', 'latin1');
/** PostgreSQL counts microseconds from 2000-01-01. */
const EPOCH_MS = 946_684_800_000;
const TWO_32 = 2 ** 32;
/** A buffer larger than this is not kept for the next rows. */
const KEPT_BYTES = 1024 * 1024;

/**
 * For writing numbers into a buffer. It takes a fraction of the time of the buffer's own methods, which check the number first.
 */
const viewOf = ({ buffer, byteOffset, length }: Buffer) => new DataView(buffer, byteOffset, length);

/** Where rows are written, field by field in column order. */
export type Rows = Pick<CopyRows, 'count' | 'row' | 'int2' | 'int4' | 'int8' | 'timestamp' | 'bytes' | 'text' | 'none'>;

/** Rows as the VALUES of an INSERT. */
export class ValueRows implements Rows {
  readonly #rows: string[][] = [];

  get count(): number {
    return this.#rows.length;
  }

  row(): void {
    this.#rows.push([]);
  }

  int2(value: number): void {
    this.#add(String(value));
  }

  int4(value: number): void {
    this.#add(String(value));
  }

  int8(value: number): void {
    this.#add(String(value));
  }

  timestamp(ms: number): void {
    this.#add(`'${new Date(ms).toISOString()}'`);
  }

  bytes(value: Uint8Array): void {
    this.#add(`'\\x${Buffer.from(value).toString('hex')}'`);
  }

  text(value: string): void {
    // NUL would end a simple query
    if (value.includes('\0')) throw new RangeError('a text with NUL cannot be stored');
    this.#add(pg.escapeLiteral(value));
  }

  none(): void {
    this.#add('null');
  }

  get values(): string {
    return this.#rows.map((fields) => `(${fields.join(',')})`).join(',');
  }

  #add(literal: string): void {
    this.#rows.at(-1)!.push(literal);
  }
}

/**
 * Rows for COPY FROM STDIN (FORMAT binary), built up as the CopyData message that carries them. Fields are added in column order.
 * The buffer grows, and is reused after `reset`.
 */
export class CopyRows {
  #buffer: Buffer;
  #view: DataView;
  #end = 0;
  #count = 0;
  readonly #size: number;

  /** `size`: initial size of the buffer in bytes. */
  constructor(size = 64 * 1024) {
    this.#size = size;
    this.#buffer = Buffer.allocUnsafe(size);
    this.#view = viewOf(this.#buffer);
    this.reset();
  }

  get count(): number {
    return this.#count;
  }

  reset(): void {
    // the memory that a few unusual rows took is released
    if (this.#buffer.length > Math.max(this.#size, KEPT_BYTES)) {
      this.#buffer = Buffer.allocUnsafe(this.#size);
      this.#view = viewOf(this.#buffer);
    }
    this.#buffer[0] = 0x64;
    HEADER.copy(this.#buffer, 5);
    this.#end = 5 + HEADER.length;
    this.#count = 0;
  }

  row(fields: number): void {
    this.#reserve(2);
    this.#view.setInt16(this.#end, fields);
    this.#end += 2;
    this.#count++;
  }

  int2(value: number): void {
    this.#reserve(6);
    this.#view.setInt32(this.#end, 2);
    this.#view.setInt16(this.#end + 4, value);
    this.#end += 6;
  }

  int4(value: number): void {
    this.#reserve(8);
    this.#view.setInt32(this.#end, 4);
    this.#view.setInt32(this.#end + 4, value);
    this.#end += 8;
  }

  /** An integer within 2^53. */
  int8(value: number): void {
    this.#reserve(12);
    const high = Math.floor(value / TWO_32);
    this.#view.setInt32(this.#end, 8);
    this.#view.setInt32(this.#end + 4, high);
    this.#view.setUint32(this.#end + 8, value - high * TWO_32);
    this.#end += 12;
  }

  /** Milliseconds since 1970. */
  timestamp(ms: number): void {
    this.int8((ms - EPOCH_MS) * 1000);
  }

  bytes(value: Uint8Array): void {
    this.#reserve(4 + value.length);
    this.#view.setInt32(this.#end, value.length);
    this.#buffer.set(value, this.#end + 4);
    this.#end += 4 + value.length;
  }

  text(value: string): void {
    this.#reserve(4 + 3 * value.length);
    const length = this.#buffer.write(value, this.#end + 4, 'utf8');
    this.#view.setInt32(this.#end, length);
    this.#end += 4 + length;
  }

  /** Null. */
  none(): void {
    this.#reserve(4);
    this.#view.setInt32(this.#end, -1);
    this.#end += 4;
  }

  /** The finished CopyData message. It is a view, valid until the next `reset`. */
  message(): Buffer {
    this.#reserve(2);
    this.#view.setInt16(this.#end, -1);
    this.#end += 2;
    this.#view.setInt32(1, this.#end - 1);
    return this.#buffer.subarray(0, this.#end);
  }

  #reserve(bytes: number): void {
    if (this.#end + bytes <= this.#buffer.length) return;
    const larger = Buffer.allocUnsafe(Math.max(2 * this.#buffer.length, this.#end + bytes));
    this.#buffer.copy(larger, 0, 0, this.#end);
    this.#buffer = larger;
    this.#view = viewOf(larger);
  }
}

const COPY_DONE = Buffer.from([0x63, 0, 0, 0, 4]);

/** An error response from the server. The fields are PostgreSQL's. */
export interface ServerError extends Error {
  readonly code?: string;
  readonly severity?: string;
  readonly detail?: string;
  readonly constraint?: string;
}

/** The connection is gone. It is unknown whether a transaction under way took effect. */
export class ConnectionLost extends Error {
  override readonly name = 'ConnectionLost';
  /** The system's error code, so that it counts as a database fault. */
  readonly code = 'ECONNRESET';
}

interface Wire extends EventEmitter {
  readonly stream: Socket;
  query(text: string): void;
}

interface Answer {
  resolve(): void;
  reject(error: Error): void;
  timer: NodeJS.Timeout;
}

/**
 * A connection that takes the next transaction before it has answered the previous one. `pg` refuses to pipeline COPY, so this
 * takes the connection over from its client and handles the few message types that matter here itself.
 *
 * Each run is one simple query of several statements, followed by the data of its COPYs, written without waiting for the server
 * to ask. When a statement fails, the server skips the rest of the query and, as the protocol requires, drops the copy data that
 * follows.
 */
export class Pipeline {
  readonly #client: pg.Client;
  readonly #wire: Wire;
  readonly #timeoutMs: number;
  readonly #waiting: Answer[] = [];
  #failed: ServerError | undefined;
  #lost: ConnectionLost | undefined;

  /** Takes a connected client, which nothing else may use afterwards. `onLost` is called once, when the connection ends. */
  constructor(client: pg.Client, options: { timeoutMs: number; onLost: (error: ConnectionLost) => void }) {
    this.#client = client;
    this.#wire = client.connection as unknown as Wire;
    this.#timeoutMs = options.timeoutMs;
    this.#wire.stream.setKeepAlive(true, 10_000);
    let cause: Error | undefined;
    // without a listener, a connection error would end the process
    client.on('error', (error) => {
      cause ??= error;
    });
    client.on('end', () => {
      this.#lost = new ConnectionLost('the connection to PostgreSQL is gone', { cause: this.#failed ?? cause });
      for (const answer of this.#waiting.splice(0)) {
        clearTimeout(answer.timer);
        answer.reject(this.#lost);
      }
      options.onLost(this.#lost);
    });
    for (const name of [
      'errorMessage',
      'readyForQuery',
      'rowDescription',
      'dataRow',
      'commandComplete',
      'emptyQuery',
    ]) {
      this.#wire.removeAllListeners(name);
    }
    this.#wire.removeAllListeners('copyInResponse');
    this.#wire.on('errorMessage', (error: ServerError) => {
      this.#failed ??= error;
    });
    this.#wire.on('readyForQuery', () => {
      const answer = this.#waiting.shift();
      const failed = this.#failed;
      this.#failed = undefined;
      if (!answer) return;
      clearTimeout(answer.timer);
      if (failed) answer.reject(failed);
      else answer.resolve();
    });
  }

  /**
   * Runs `sql`, whose COPY FROM STDIN statements consume the messages in `copies` in order. Once it resolves, every statement has
   * succeeded: if the last was COMMIT, everything is durable. Rejects with the server's error or with ConnectionLost. The buffers
   * may be reused once the answer has arrived and `written` has been called.
   */
  run(sql: string, copies: readonly Buffer[] = [], written?: () => void): Promise<void> {
    return new Promise((resolve, reject) => {
      if (this.#lost) {
        written?.();
        reject(this.#lost);
        return;
      }
      const timer = setTimeout(() => this.destroy(), this.#timeoutMs);
      this.#waiting.push({ resolve, reject, timer });
      const { stream } = this.#wire;
      stream.cork();
      this.#wire.query(sql);
      for (const copy of copies) {
        stream.write(copy);
        stream.write(COPY_DONE);
      }
      // an empty write's callback runs after all bytes before it are written, with an error if the connection broke
      if (written) stream.write('', written);
      stream.uncork();
    });
  }

  /** Cuts the connection; everything under way rejects with ConnectionLost. */
  destroy(): void {
    this.#wire.stream.destroy();
  }

  /** Closes the connection gracefully. Call it when nothing is under way. */
  async end(): Promise<void> {
    if (!this.#lost) await this.#client.end();
  }
}

/**
 * Runs a COPY TO STDOUT statement on an idle client and hands over the payload of each CopyData message (one per row, as the
 * protocol guarantees). The bytes are valid only during the call. Resolves when the statement has succeeded.
 */
export function copyOut(client: pg.Client, sql: string, onData: (data: Buffer) => void): Promise<void> {
  return receive(client, sql, (data, starts, ends) => {
    for (let n = 0; n < starts.length; n++) onData(data.subarray(starts[n], ends[n]));
  });
}

/**
 * Reads into the same buffer over and over. Otherwise Node allocates a 64 KB buffer for each read, and these pile up until
 * garbage is collected: outside the heap, and so well past a thread's limit.
 */
class ReceivingSocket extends Socket {
  /**
   * Receives the incoming bytes, which are valid only during the call. If unset, `pg` receives them, and keeps what it is given.
   */
  reader: ((chunk: Buffer) => void) | undefined;

  constructor() {
    super({
      onread: {
        buffer: Buffer.allocUnsafeSlow(64 * 1024),
        callback: (length, buffer) => {
          const chunk = (buffer as Buffer).subarray(0, length);
          if (this.reader) this.reader(chunk);
          else this.emit('data', Buffer.from(chunk));
          return true;
        },
      },
    });
  }
}

/** The `stream` of a client that reads COPY TO STDOUT of many rows. TLS reads from its socket in its own way. */
export const receivingStream = ((config: { ssl?: unknown }) =>
  config.ssl ? new Socket() : new ReceivingSocket()) as () => Socket;

export interface CopyOptions {
  rests?: Rests | undefined;
  /** Where rows are received, unless one of them needs more room. */
  into?: Buffer | undefined;
}

/**
 * Like copyOut, for COPY TO STDOUT (FORMAT binary), but hands over all rows that arrived together. They begin in `data` at
 * `starts`, without header and trailer.
 */
export function copyRows(
  client: pg.Client,
  sql: string,
  onRows: (data: Buffer, starts: readonly number[]) => void,
  options?: CopyOptions,
): Promise<void> {
  let first = true;
  const onMessages = (data: Buffer, starts: number[]) => {
    // only the first message begins with the header; the last has -1 in place of a row
    if (first) starts[0]! += HEADER.length;
    first = false;
    if (data.readInt16BE(starts.at(-1)!) < 0) starts.pop();
    if (starts.length > 0) onRows(data, starts);
  };
  return receive(client, sql, onMessages, options);
}

/**
 * Reads the response to `sql` while bypassing `pg`, which creates an object, a buffer and an event for each CopyData message.
 * That takes as long as hashing a record. Payload n is `data` from `starts[n]` to `ends[n]`.
 */
function receive(
  client: pg.Client,
  sql: string,
  onMessages: (data: Buffer, starts: number[], ends: number[]) => void,
  { rests, into = Buffer.allocUnsafe(RECEIVE_BYTES) }: CopyOptions = {},
): Promise<void> {
  const wire = client.connection as unknown as Wire;
  const { stream } = wire;
  return new Promise((resolve, reject) => {
    /**
     * What has arrived but is not yet read lies between `start` and `end`. There is one buffer for all of it, so no garbage piles
     * up.
     */
    let buffer = into;
    let start = 0;
    let end = 0;
    const starts: number[] = [];
    const ends: number[] = [];
    let failed: unknown;
    const finish = () => {
      if (stream instanceof ReceivingSocket) stream.reader = undefined;
      else {
        for (const listener of parsers) stream.on('data', listener);
        stream.off('data', read);
      }
      stream.off('close', lost);
      if (failed === undefined) resolve();
      else reject(failed);
    };
    const lost = () => {
      failed ??= new ConnectionLost('the connection to PostgreSQL is gone');
      finish();
    };
    const take = () => {
      if (failed !== undefined || starts.length === 0) return;
      try {
        onMessages(buffer, starts, ends);
      } catch (error) {
        failed = error;
      }
    };
    const rest = (ms: number) => {
      stream.pause();
      setTimeout(() => stream.resume(), ms);
    };
    const keep = (chunk: Buffer) => {
      if (end + chunk.length > buffer.length) {
        const size = end - start + chunk.length;
        const roomy = size > buffer.length ? Buffer.allocUnsafe(2 * size) : buffer;
        buffer.copy(roomy, 0, start, end);
        buffer = roomy;
        end -= start;
        start = 0;
      }
      buffer.set(chunk, end);
      end += chunk.length;
    };
    const read = (chunk: Buffer) => {
      const began = rests ? performance.now() : 0;
      keep(chunk);
      let ready = false;
      let error: ServerError | undefined;
      starts.length = 0;
      ends.length = 0;
      while (start + 5 <= end && !ready) {
        const to = start + 1 + buffer.readUInt32BE(start + 1);
        if (to > end) break;
        const type = buffer[start];
        if (type === COPY_DATA) {
          starts.push(start + 5);
          ends.push(to);
        } else if (type === ERROR_RESPONSE) error ??= serverError(buffer.subarray(start + 5, to));
        else if (type === READY_FOR_QUERY) ready = true;
        start = to;
      }
      take();
      failed ??= error;
      if (ready) return finish();
      const ms = rests?.after(performance.now() - began);
      if (ms !== undefined) rest(ms);
    };
    const parsers = stream.listeners('data') as ((data: Buffer) => void)[];
    if (stream instanceof ReceivingSocket) stream.reader = read;
    else {
      stream.on('data', read);
      for (const listener of parsers) stream.off('data', listener);
    }
    stream.on('close', lost);
    if (stream.destroyed) lost();
    else wire.query(sql);
  });
}
export const RECEIVE_BYTES = 256 * 1024;
const COPY_DATA = 0x64;
const ERROR_RESPONSE = 0x45;
const READY_FOR_QUERY = 0x5a;

/** Fields of an ErrorResponse: a letter, then text up to a zero byte. */
function serverError(fields: Buffer): ServerError {
  const parts = new Map(
    fields
      .toString()
      .split('\0')
      .filter(Boolean)
      .map((field) => [field[0], field.slice(1)]),
  );
  return Object.assign(new Error(parts.get('M')), { code: parts.get('C') ?? '', severity: parts.get('V') ?? '' });
}

export const COPY_EPOCH_MS = EPOCH_MS;
