import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import type { Readable, Writable } from 'node:stream';
import { setTimeout as delay } from 'node:timers/promises';
import spawn from 'cross-spawn';
import { readJson } from '../requests.ts';
import { isTooDeep, TOO_DEEP, unread } from './place.ts';
import { asMessage, failure, type Id, INVALID_REQUEST, type Link, type Message } from './wire.ts';

/** How long a server may take to end after its input was closed, and again after SIGTERM. */
const END_MS = 2000;

/**
 * One end of newline-delimited JSON-RPC. A message that exceeds the limit fails alone: it is skipped without being kept, and the
 * request that it is or answers gets an error, so that the others are not disturbed.
 */
export class Pipe implements Link {
  readonly #input: Readable;
  readonly #output: Writable;
  readonly #most: number;
  readonly #read: (line: Buffer) => unknown;
  #parts: Buffer[] = [];
  #bytes = 0;
  #outline: Outline | undefined;
  #closed = false;
  onmessage?: (message: Message) => void;
  onerror?: (error: Error) => void;
  onclose?: () => void;

  /** `strict` if the other side may be hostile: messages that can be read in more than one way are then refused. */
  constructor(input: Readable, output: Writable, options: { maxBytes: number; strict: boolean }) {
    this.#input = input;
    this.#output = output;
    this.#most = options.maxBytes;
    this.#read = options.strict ? (line) => readJson(line) : readLenient;
  }

  async start(): Promise<void> {
    this.#input.on('data', this.#take);
    for (const stream of [this.#input, this.#output]) stream.on('error', (error) => this.onerror?.(error));
    this.#output.on('close', () => void this.close());
  }

  async send(message: Message): Promise<void> {
    if (this.#closed || !this.#output.writable) throw new Error('the other side has ended');
    if (this.#output.write(`${JSON.stringify(message)}\n`)) return;
    const over = new AbortController();
    const { signal } = over;
    try {
      await Promise.race([once(this.#output, 'drain', { signal }), once(this.#output, 'close', { signal })]);
    } finally {
      // neither keeps listening
      over.abort();
    }
  }

  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    this.#input.off('data', this.#take).pause();
    this.onclose?.();
  }

  readonly #take = (chunk: Buffer): void => {
    let rest = chunk;
    for (let end = rest.indexOf(10); end >= 0; end = rest.indexOf(10)) {
      this.#keep(rest.subarray(0, end));
      this.#line();
      rest = rest.subarray(end + 1);
    }
    this.#keep(rest);
  };

  #keep(part: Buffer): void {
    if (this.#outline) {
      this.#outline.push(part);
      return;
    }
    this.#parts.push(part);
    this.#bytes += part.length;
    if (this.#bytes <= this.#most) return;
    this.#outline = new Outline();
    for (const kept of this.#parts) this.#outline.push(kept);
    this.#parts = [];
  }

  #line(): void {
    const line = withoutMark(Buffer.concat(this.#parts));
    const outline = this.#outline;
    this.#parts = [];
    this.#bytes = 0;
    this.#outline = undefined;
    if (outline) this.#refuse(outline, `the message is longer than ${this.#most} bytes`);
    else if (line.length > 1 || (line[0] ?? 13) !== 13) this.#deliver(line);
  }

  #deliver(line: Buffer): void {
    let message: Message | undefined;
    let why = 'a line is no message';
    try {
      message = asMessage(this.#read(line));
    } catch (error) {
      why = (error as Error).message;
    }
    if (message) {
      this.onmessage?.(message);
      return;
    }
    const outline = new Outline();
    outline.push(line);
    this.#refuse(outline, why);
  }

  /** Some servers print lines that are not messages: those have no id, and are only reported. */
  #refuse({ id, method }: Outline, why: string): void {
    this.onerror?.(new Error(why));
    if (id === undefined) return;
    if (method) this.send(failure(id, INVALID_REQUEST, why)).catch((cause) => this.onerror?.(cause));
    else this.onmessage?.(unread(id, why));
  }
}

/** Some programs begin what they write with a byte order mark, which a reader of JSON may ignore (RFC 8259 §8.1). */
function withoutMark(line: Buffer): Buffer {
  return line[0] === 0xef && line[1] === 0xbb && line[2] === 0xbf ? line.subarray(3) : line;
}

function readLenient(line: Buffer): unknown {
  if (isTooDeep(line)) throw new Error(TOO_DEEP);
  return JSON.parse(line.toString());
}

/** The server started by a command, with its standard input and output. Ends with it. */
export class Child implements Link {
  readonly #process: ChildProcess;
  readonly #pipe: Pipe;
  #ended = false;
  onmessage?: (message: Message) => void;
  onerror?: (error: Error) => void;
  onclose?: () => void;

  constructor(options: { command: string; args: readonly string[]; env: Record<string, string>; maxBytes: number }) {
    const { command, args, env, maxBytes } = options;
    // on Windows, commands such as npx are scripts, which Node's own spawn does not start
    this.#process = spawn(command, args, { env, stdio: ['pipe', 'pipe', 'inherit'], windowsHide: true });
    const { stdin, stdout } = this.#process;
    this.#pipe = new Pipe(stdout as Readable, stdin as Writable, { maxBytes, strict: false });
    this.#process.on('error', (error) => this.#end(error));
    this.#process.once('close', () => this.#end());
  }

  get ended(): boolean {
    return this.#ended;
  }

  /** Whether there was a process at all. */
  get started(): boolean {
    return this.#process.pid !== undefined;
  }

  async start(): Promise<void> {
    this.#pipe.onmessage = (message) => this.onmessage?.(message);
    this.#pipe.onerror = (error) => this.onerror?.(error);
    await this.#pipe.start();
  }

  send(message: Message): Promise<void> {
    return this.#pipe.send(message);
  }

  /** Closes its input, which ends a server; one that keeps running is ended by a signal. */
  async close(): Promise<void> {
    const child = this.#process;
    const gone = () => this.#ended || child.exitCode !== null || child.signalCode !== null;
    if (gone()) return this.#end();
    const exited = once(child, 'exit').catch(() => {});
    child.stdin?.end();
    await Promise.race([exited, delay(END_MS, undefined, { ref: false })]);
    for (const signal of ['SIGTERM', 'SIGKILL'] as const) {
      if (gone()) break;
      child.kill(signal);
      await Promise.race([exited, delay(END_MS, undefined, { ref: false })]);
    }
    this.#end();
  }

  #end(error?: Error): void {
    if (this.#ended) return;
    this.#ended = true;
    if (error) this.onerror?.(error);
    void this.#pipe.close();
    this.onclose?.();
  }
}

/** The `id` of a message that is too long to be kept, and whether it has a `method`: read as it passes. */
export class Outline {
  #depth = 0;
  #string = false;
  #escaped = false;
  #value = false;
  #key = '';
  #token = '';
  id: Id | undefined;
  method = false;

  push(chunk: Buffer): void {
    for (const byte of chunk) {
      if (this.#string) {
        if (this.#depth === 1) this.#note(byte);
        if (this.#escaped) this.#escaped = false;
        else if (byte === 92) this.#escaped = true;
        else if (byte === 34) this.#string = false;
        continue;
      }
      switch (byte) {
        case 34:
          this.#string = true;
          if (this.#depth === 1) this.#note(byte);
          break;
        case 58:
          if (this.#depth !== 1) break;
          this.#key = this.#token;
          this.#token = '';
          this.#value = true;
          break;
        case 44:
          if (this.#depth === 1) this.#member();
          break;
        case 91:
        case 123:
          this.#depth++;
          break;
        case 93:
        case 125:
          if (this.#depth === 1) this.#member();
          this.#depth--;
          break;
        default:
          if (this.#depth === 1 && byte > 32) this.#note(byte);
      }
    }
  }

  #note(byte: number): void {
    // as much as is kept of an id; a longer one is not answered
    if (this.#token.length < 300) this.#token += String.fromCharCode(byte);
  }

  #member(): void {
    if (this.#value && this.#key === '"method"') this.method = true;
    if (this.#value && this.#key === '"id"' && this.id === undefined) {
      try {
        const id: unknown = JSON.parse(Buffer.from(this.#token, 'latin1').toString());
        if (typeof id === 'string' || Number.isSafeInteger(id)) this.id = id as Id;
      } catch {
        // not an id that could be answered
      }
    }
    this.#value = false;
    this.#token = '';
  }
}
