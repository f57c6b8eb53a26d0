import { randomBytes } from 'node:crypto';
import { ERRORS, type ErrorCode } from '../domain/errors.ts';
import { AppError } from '../errors.ts';
import type { Fault } from '../lib/faults.ts';
import type { Log } from '../lib/log.ts';
import type { RedisLink } from '../lib/redis.ts';
import { Fenced } from './host.ts';

/** Nothing listens to the process's channel: it has ended, or lost its connection. */
export class PeerGone extends Error {}
/** The called process does not own the tenant, or no longer does. */
export class Moved extends Error {}
/** No answer, or no way to send the call. The command may or may not have been executed. */
export class NoAnswer extends Error {}

/** A message is sent when it reaches this size; one large command is a message by itself. */
const MESSAGE_CHARS = 256 * 1024;
/** The maximum size of unsent calls to one process. Redis disconnects a subscriber that falls 32 MB behind. */
const WAITING_CHARS = 16 * 1024 * 1024;
const WAITING_CALLS = 20_000;
/** How often to check whether a process with unanswered calls is still alive. */
const WATCH_MS = 50;
/** After a call has waited this long, the owner is looked up again, which detects a paused process. */
const SUSPECT_MS = 500;

/** How long another process has to confirm that it owns a tenant; a live one answers within milliseconds. */
const CONFIRM_MS = 1000;
/** The minimum interval between log entries about forged messages: anyone who can send one can send many. */
const FORGED_LOG_MS = 60_000;
/** A process that did not confirm is not asked again for this long, unless it sends a message itself. */
const SILENT_MS = 30_000;
const MAX_SILENT = 1000;
const PROCESS_ID = /^[A-Za-z0-9_-]{16}$/;

/** After this many undelivered messages to itself, a process considers its connection dead. */
const LOST_BEATS = 3;

interface Call {
  readonly tenantId: string;
  readonly chars: number;
  readonly sentAt: number;
  /** When the owner must be looked up again. */
  suspectAt: number;
  readonly resolve: (result: unknown) => void;
  readonly reject: (error: Error) => void;
}

/** The outgoing and unanswered calls of one other process. */
class Peer {
  readonly calls = new Map<number, Call>();
  chars = 0;
  /** Parts of the next messages, as JSON. */
  unsent: string[] = [];
}

/**
 * One part of a message: a call with its number, tenant and command; a question whether the receiver owns a tenant; or
 * an answer.
 */
type Part =
  | ['call', number, string, unknown]
  | ['owner?', number, string]
  | ['owner', number, boolean]
  | ['result', number, unknown]
  | ['moved', number]
  | ['error', number, WireError];

interface WireError {
  code?: ErrorCode;
  message: string;
  headers?: Record<string, string>;
  faults?: readonly Fault[];
}

/**
 * Calls between the processes of an installation over Redis publish/subscribe: each process listens on the channel of
 * its id. Everything sent to a process in one turn of the event loop is one message.
 *
 * Delivery is at most once, so a call may get no answer; it then fails with NoAnswer and the caller retries.
 *
 * INVARIANT: someone with access to Redis learns only the size of a message, and cannot send valid ones. Each message
 * is encrypted and authenticated for one receiver, with a key that only processes with the master key have; it contains
 * its sender and sequence number, and repeated messages are dropped.
 */
export class Peers {
  /** Identifies this run of this process; never reused. */
  readonly id = randomBytes(12).toString('base64url');
  readonly #redis: RedisLink;
  readonly #log: Log;
  readonly #serve: (tenantId: string, command: unknown) => Promise<unknown>;
  readonly #owns: (tenantId: string) => boolean;
  readonly #suspect: (tenantId: string) => void;
  readonly #silenceMs: number;
  readonly #peers = new Map<string, Peer>();
  readonly #dirty = new Set<string>();
  readonly #publishing = new Set<Promise<void>>();
  readonly #watch: NodeJS.Timeout;
  #subscribed = false;
  #unheard = 0;
  #scheduled = false;
  #last = 0;
  #sent = 0;
  /** The number of the last message from each process. It has one entry per process ever started. */
  readonly #received = new Map<string, number>();
  readonly #questions = new Map<number, (owns: boolean) => void>();
  /** Ids that did not answer, and until when they are not asked again. */
  readonly #silent = new Map<string, number>();
  #forgedLoggedAt = Number.NEGATIVE_INFINITY;

  constructor(parts: {
    redis: RedisLink;
    log: Log;
    /** Handles a call from another process. Throws Moved if this process does not own the tenant. */
    serve: (tenantId: string, command: unknown) => Promise<unknown>;
    /** Whether this process owns the tenant, or is about to. */
    owns: (tenantId: string) => boolean;
    /** Called with tenants whose owner has not answered for a while. */
    suspect: (tenantId: string) => void;
    /** How long a call waits for its answer. */
    silenceMs: number;
  }) {
    this.#redis = parts.redis;
    this.#log = parts.log;
    this.#serve = parts.serve;
    this.#owns = parts.owns;
    this.#suspect = parts.suspect;
    this.#silenceMs = parts.silenceMs;
    const { subscriber } = this.#redis;
    subscriber.on('messageBuffer', (channel: Buffer, message: Buffer) => this.#receive(String(channel), message));
    subscriber.on('ready', () => {
      this.#listen().catch((err) => this.#log.warn({ err }, 'this process cannot subscribe to its channel'));
    });
    subscriber.on('close', () => {
      this.#subscribed = false;
      // answers sent while disconnected are lost
      for (const peer of this.#peers.values()) this.#reject(peer, new NoAnswer('the connection to Redis was lost'));
    });
    this.#watch = setInterval(() => this.#look(), WATCH_MS);
  }

  /** Resolves once other processes can reach this one, if Redis is available. */
  async start(): Promise<void> {
    if (this.#redis.subscriber.status === 'ready' && !this.#subscribed) await this.#listen();
  }

  /** Whether this process can send to other processes and receive from them. */
  get ready(): boolean {
    return this.#subscribed && this.#redis.commands.status === 'ready';
  }

  /**
   * Sends itself a message. A connection that stops delivering them is dead, even without an error, and is replaced.
   */
  async beat(): Promise<void> {
    if (this.#unheard >= LOST_BEATS) {
      this.#unheard = 0;
      this.#log.warn('the connection to Redis delivers no messages; replacing it');
      this.#redis.subscriber.disconnect(true);
      return;
    }
    this.#unheard++;
    await this.#redis.commands.publish(this.#channel(this.id), this.#message(this.id, []));
  }

  /**
   * Whether a process with this id is alive and confirms that it owns the tenant. Redis is not trusted about owners: no
   * command is sent or left to a process before it has confirmed.
   */
  async confirms(id: string, tenantId: string, withinMs = CONFIRM_MS): Promise<boolean> {
    if (!PROCESS_ID.test(id) || withinMs <= 0 || (this.#silent.get(id) ?? 0) > performance.now()) return false;
    const number = ++this.#last;
    return new Promise((resolve) => {
      const settle = (owns: boolean) => {
        clearTimeout(timer);
        this.#questions.delete(number);
        resolve(owns);
      };
      const unanswered = () => {
        if (this.#silent.size >= MAX_SILENT) this.#silent.clear();
        this.#silent.set(id, performance.now() + SILENT_MS);
        settle(false);
      };
      const timer = setTimeout(unanswered, Math.min(withinMs, CONFIRM_MS));
      this.#questions.set(number, settle);
      const channel = this.#channel(id);
      const question = this.#message(id, [`["owner?",${number},${JSON.stringify(tenantId)}]`]);
      this.#redis.commands.publish(channel, question).then(
        (receivers) => receivers === 0 && settle(false),
        () => settle(false),
      );
    });
  }

  /**
   * Sends the command to another process. Rejects with PeerGone, Moved or NoAnswer if, as far as is known, it was not
   * executed; with the error that it threw there; or with UNAVAILABLE if too many calls already wait.
   */
  call(id: string, tenantId: string, command: string): Promise<unknown> {
    const peer = this.#peer(id);
    if (peer.calls.size >= WAITING_CALLS || peer.chars + command.length > WAITING_CHARS) {
      throw new AppError('UNAVAILABLE', 'too many calls wait for the process that writes for this tenant', {
        headers: { 'retry-after': '1' },
      });
    }
    const number = ++this.#last;
    return new Promise((resolve, reject) => {
      const now = performance.now();
      const chars = command.length;
      peer.calls.set(number, { tenantId, chars, sentAt: now, suspectAt: now + SUSPECT_MS, resolve, reject });
      peer.chars += chars;
      this.#send(id, `["call",${number},${JSON.stringify(tenantId)},${command}]`);
    });
  }

  /** Withdraws the tenant's calls from every process but `owner`: they fail with Moved. */
  reroute(tenantId: string, owner: string): void {
    for (const [id, peer] of this.#peers) {
      if (id !== owner) this.#reject(peer, new Moved(), (call) => call.tenantId === tenantId);
    }
  }

  /** Sends the remaining answers and unsubscribes. */
  async stop(): Promise<void> {
    clearInterval(this.#watch);
    this.#flush();
    await Promise.all(this.#publishing);
    for (const peer of this.#peers.values()) this.#reject(peer, new NoAnswer('the process is shutting down'));
    for (const settle of this.#questions.values()) settle(false);
    if (this.#subscribed) {
      this.#subscribed = false;
      await this.#redis.subscriber.unsubscribe().catch((err) => this.#log.debug({ err }, 'Redis is unavailable'));
    }
  }

  async #listen(): Promise<void> {
    await this.#redis.subscriber.subscribe(this.#channel(this.id));
    this.#subscribed = true;
    this.#unheard = 0;
  }

  #channel(id: string): string {
    return this.#redis.name('node', id);
  }

  #peer(id: string): Peer {
    let peer = this.#peers.get(id);
    if (!peer) {
      peer = new Peer();
      this.#peers.set(id, peer);
    }
    return peer;
  }

  #send(id: string, part: string): void {
    this.#peer(id).unsent.push(part);
    this.#dirty.add(id);
    if (this.#scheduled) return;
    this.#scheduled = true;
    setImmediate(() => {
      this.#scheduled = false;
      this.#flush();
    });
  }

  #flush(): void {
    for (const id of this.#dirty) {
      const parts = this.#peer(id).unsent;
      this.#peer(id).unsent = [];
      for (let from = 0; from < parts.length; ) {
        let chars = 0;
        let to = from;
        while (to < parts.length && (to === from || chars + parts[to]!.length <= MESSAGE_CHARS)) {
          chars += parts[to++]!.length;
        }
        this.#publish(id, parts.slice(from, to));
        from = to;
      }
    }
    this.#dirty.clear();
  }

  #publish(id: string, parts: readonly string[]): void {
    const channel = this.#channel(id);
    const sent = this.#redis.commands.publish(channel, this.#message(id, parts)).then(
      (receivers) => {
        if (receivers === 0) this.#gone(id);
      },
      (error: Error) => {
        this.#log.debug({ err: error }, 'sending a message to another process failed');
        this.#reject(this.#peer(id), new NoAnswer('Redis is unavailable'));
      },
    );
    this.#publishing.add(sent);
    sent.finally(() => this.#publishing.delete(sent));
  }

  #message(id: string, parts: readonly string[]): Buffer {
    const text = `{"from":${JSON.stringify(this.id)},"number":${++this.#sent},"parts":[${parts.join(',')}]}`;
    return this.#redis.seal(this.#channel(id), text);
  }

  #receive(channel: string, sealed: Buffer): void {
    if (channel !== this.#channel(this.id)) return;
    const text = this.#redis.unseal(channel, sealed);
    const { from, number, parts } = text
      ? (JSON.parse(text.toString()) as { from: string; number: number; parts: Part[] })
      : { from: '', number: 0, parts: [] };
    // each process sends on one connection, so its messages arrive in order
    if (number <= (this.#received.get(from) ?? 0)) {
      if (performance.now() - this.#forgedLoggedAt > FORGED_LOG_MS) {
        this.#forgedLoggedAt = performance.now();
        const why = text ? 'arrived twice' : 'was not sent by a process of this installation';
        this.#log.warn({ channel }, `a message ${why}; ignoring it`);
      }
      return;
    }
    this.#received.set(from, number);
    this.#silent.delete(from);
    if (from === this.id) this.#unheard = 0;
    for (const part of parts) {
      if (part[0] === 'call') this.#answer(from, part[1], part[2], part[3]);
      else if (part[0] === 'owner?') this.#send(from, `["owner",${part[1]},${this.#owns(part[2])}]`);
      else if (part[0] === 'owner') this.#questions.get(part[1])?.(part[2]);
      else this.#settle(from, part);
    }
  }

  #answer(from: string, number: number, tenantId: string, command: unknown): void {
    this.#serve(tenantId, command).then(
      (result) => this.#send(from, `["result",${number},${JSON.stringify(result ?? null)}]`),
      (error: Error) => {
        if (error instanceof Moved || error instanceof Fenced) this.#send(from, `["moved",${number}]`);
        else this.#send(from, `["error",${number},${JSON.stringify(wireError(error))}]`);
      },
    );
  }

  #settle(from: string, part: Extract<Part, ['result' | 'moved' | 'error', ...unknown[]]>): void {
    const peer = this.#peers.get(from);
    const call = peer?.calls.get(part[1]);
    if (!peer || !call) return; // the call was given up
    this.#take(peer, part[1], call);
    if (part[0] === 'result') call.resolve(part[2]);
    else if (part[0] === 'moved') call.reject(new Moved());
    else call.reject(errorOf(part[2]));
  }

  #take(peer: Peer, number: number, call: Call): void {
    peer.calls.delete(number);
    peer.chars -= call.chars;
  }

  #reject(peer: Peer, error: Error, matches: (call: Call) => boolean = () => true): void {
    for (const [number, call] of peer.calls) {
      if (!matches(call)) continue;
      this.#take(peer, number, call);
      call.reject(error);
    }
  }

  #gone(id: string): void {
    const peer = this.#peers.get(id);
    if (!peer) return;
    this.#peers.delete(id);
    this.#reject(peer, new PeerGone());
  }

  /** Looks for killed processes, which no longer listen, and paused ones, which listen but do not answer. */
  #look(): void {
    const now = performance.now();
    for (const [id, peer] of this.#peers) {
      if (peer.calls.size === 0) {
        if (peer.unsent.length === 0) this.#peers.delete(id);
        continue;
      }
      this.#redis.commands.pubsub('NUMSUB', this.#channel(id)).then(
        ([, receivers]) => {
          if (Number(receivers) === 0) this.#gone(id);
        },
        (err) => this.#log.debug({ err }, 'checking whether another process is alive failed'),
      );
      const suspects = new Set<string>();
      for (const call of peer.calls.values()) {
        if (call.suspectAt > now) continue;
        call.suspectAt = now + SUSPECT_MS;
        suspects.add(call.tenantId);
      }
      this.#reject(peer, new NoAnswer('no answer'), (call) => now - call.sentAt > this.#silenceMs);
      for (const tenantId of suspects) this.#suspect(tenantId);
    }
  }
}

function wireError(error: Error): WireError {
  if (!(error instanceof AppError)) return { message: error.message };
  const { problem: code, message, headers, faults } = error;
  return { code, message, headers, faults };
}

/** The error that the other process threw, as far as callers may see it. */
function errorOf({ code, message, headers, faults }: WireError): Error {
  if (code === undefined || !Object.hasOwn(ERRORS, code)) return new Error(message);
  return new AppError(code, message, { ...(headers && { headers }), ...(faults && { faults }) });
}
