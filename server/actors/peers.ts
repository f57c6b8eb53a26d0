import { randomBytes } from 'node:crypto';
import { AppError, ERRORS, type ErrorCode } from '../errors.ts';
import type { Fault } from '../lib/faults.ts';
import type { Log } from '../lib/log.ts';
import type { RedisLink } from '../lib/redis.ts';
import { Fenced } from './host.ts';

/** Nobody listens to the process's messages: it has ended, or lost its connection. */
export class PeerGone extends Error {}
/** The process that was asked does not own the tenant, or does not any more. */
export class Moved extends Error {}
/** No answer, or no way to ask. What was asked for may have been done or not. */
export class NoAnswer extends Error {}

/** A message is closed when it reaches this size; one large command is a message of its own. */
const MESSAGE_CHARS = 256 * 1024;
/** What may wait for one process. Redis would cut the connection of a receiver that falls behind by 32 MB. */
const WAITING_CHARS = 16 * 1024 * 1024;
const WAITING_CALLS = 20_000;
/** How often to check whether a process that owes answers is still there. */
const WATCH_MS = 50;
/** A call that waits for longer makes the owner be looked up again, so that a paused one is noticed. */
const DOUBT_MS = 500;

/** How long another process has to confirm that it owns a tenant: any answer of it comes within milliseconds. */
const CONFIRM_MS = 1000;
/** Forged messages are logged at most this often: anyone who can send one can send many. */
const FORGED_LOG_MS = 60_000;
/** A process that did not answer is not asked again for this long, unless it sends something itself. */
const SILENT_MS = 30_000;
const MOST_SILENT = 1000;
const PROCESS_ID = /^[A-Za-z0-9_-]{16}$/;

/** This many messages to itself that did not come back mean a dead connection. */
const LOST_BEATS = 3;

interface Call {
  readonly tenantId: string;
  readonly chars: number;
  readonly sentAt: number;
  /** When the owner is to be looked up again. */
  doubtAt: number;
  readonly resolve: (result: unknown) => void;
  readonly reject: (error: Error) => void;
}

/** What is on its way to one other process. */
class Peer {
  readonly calls = new Map<number, Call>();
  chars = 0;
  /** Parts of the next messages, as JSON. */
  unsent: string[] = [];
}

/** One part of a message: a call with its number, tenant and command, the question who owns a tenant, or an answer. */
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
 * Calls between the processes of an installation over Redis's publish and subscribe: each process listens to the
 * channel of its own id. What is sent to one process in one turn of the event loop goes as one message.
 *
 * Delivery is at most once, so that a call may stay without an answer; it then fails with NoAnswer and the caller tries
 * again.
 *
 * INVARIANT: anyone with access to Redis learns nothing from a message but its size, and cannot take part. A message is
 * encrypted and authenticated for the one process that it is meant for, with a key that only processes with the master
 * key have; it carries its sender and its sequence number, and a repeated one is dropped.
 */
export class Peers {
  /** Of this run of this process; never used again. */
  readonly id = randomBytes(12).toString('base64url');
  readonly #redis: RedisLink;
  readonly #log: Log;
  readonly #serve: (tenantId: string, command: unknown) => Promise<unknown>;
  readonly #owns: (tenantId: string) => boolean;
  readonly #doubt: (tenantId: string) => void;
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
  /** The number of the last message of each process. They are as many as processes were started. */
  readonly #received = new Map<string, number>();
  readonly #questions = new Map<number, (owns: boolean) => void>();
  /** Ids that nobody answered for; until when nobody waits for one. */
  readonly #silent = new Map<string, number>();
  #forgedLoggedAt = Number.NEGATIVE_INFINITY;

  constructor(parts: {
    redis: RedisLink;
    log: Log;
    /** Handles a call of another process. It throws Moved when the tenant is not this process's. */
    serve: (tenantId: string, command: unknown) => Promise<unknown>;
    /** Whether this process owns the tenant, or is about to. */
    owns: (tenantId: string) => boolean;
    /** Called with tenants whose owner has not answered for a while. */
    doubt: (tenantId: string) => void;
    /** How long a call waits for its answer. */
    silenceMs: number;
  }) {
    this.#redis = parts.redis;
    this.#log = parts.log;
    this.#serve = parts.serve;
    this.#owns = parts.owns;
    this.#doubt = parts.doubt;
    this.#silenceMs = parts.silenceMs;
    const { subscriber } = this.#redis;
    subscriber.on('messageBuffer', (channel: Buffer, message: Buffer) => this.#receive(String(channel), message));
    subscriber.on('ready', () => {
      this.#listen().catch((err) => this.#log.warn({ err }, 'this process cannot listen to the others'));
    });
    subscriber.on('close', () => {
      this.#subscribed = false;
      // answers that were sent meanwhile are lost
      for (const peer of this.#peers.values()) this.#reject(peer, new NoAnswer('the connection to Redis was lost'));
    });
    this.#watch = setInterval(() => this.#look(), WATCH_MS);
  }

  /** Resolves when this process can be reached, where Redis is there. */
  async start(): Promise<void> {
    if (this.#redis.subscriber.status === 'ready' && !this.#subscribed) await this.#listen();
  }

  /** Whether this process can reach others and be reached. */
  get ready(): boolean {
    return this.#subscribed && this.#redis.commands.status === 'ready';
  }

  /**
   * Sends itself a message. A connection that no longer delivers them is dead, even without an error, and is replaced.
   */
  async beat(): Promise<void> {
    if (this.#unheard >= LOST_BEATS) {
      this.#unheard = 0;
      this.#log.warn('the connection to Redis delivers no messages and is replaced');
      this.#redis.subscriber.disconnect(true);
      return;
    }
    this.#unheard++;
    await this.#redis.commands.publish(this.#channel(this.id), this.#message(this.id, []));
  }

  /**
   * Whether a process with this id is there and says that it owns the tenant. What Redis says of owners is a rumor:
   * nothing is sent to one, nor left to it, before it has confirmed it.
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
        if (this.#silent.size >= MOST_SILENT) this.#silent.clear();
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
   * Has another process handle the command. Rejects with PeerGone, Moved or NoAnswer when it did not, as far as is
   * known; with what it threw otherwise; and with UNAVAILABLE when too much waits for it already.
   */
  call(id: string, tenantId: string, command: string): Promise<unknown> {
    const peer = this.#peer(id);
    if (peer.calls.size >= WAITING_CALLS || peer.chars + command.length > WAITING_CHARS) {
      throw new AppError('UNAVAILABLE', 'too much waits for the process that writes for this tenant', {
        headers: { 'retry-after': '1' },
      });
    }
    const number = ++this.#last;
    return new Promise((resolve, reject) => {
      const now = performance.now();
      const chars = command.length;
      peer.calls.set(number, { tenantId, chars, sentAt: now, doubtAt: now + DOUBT_MS, resolve, reject });
      peer.chars += chars;
      this.#send(id, `["call",${number},${JSON.stringify(tenantId)},${command}]`);
    });
  }

  /** Takes the tenant's calls back from every process but `owner`: they fail with Moved. */
  reroute(tenantId: string, owner: string): void {
    for (const [id, peer] of this.#peers) {
      if (id !== owner) this.#reject(peer, new Moved(), (call) => call.tenantId === tenantId);
    }
  }

  /** Sends the answers that are due, and stops listening. */
  async stop(): Promise<void> {
    clearInterval(this.#watch);
    this.#flush();
    await Promise.all(this.#publishing);
    for (const peer of this.#peers.values()) this.#reject(peer, new NoAnswer('the process stops'));
    for (const settle of this.#questions.values()) settle(false);
    if (this.#subscribed) {
      this.#subscribed = false;
      await this.#redis.subscriber.unsubscribe().catch((err) => this.#log.debug({ err }, 'Redis is away'));
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
        this.#log.debug({ err: error }, 'a message to another process was not sent');
        this.#reject(this.#peer(id), new NoAnswer('Redis is away'));
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
    // each process sends on one connection, so that its messages come in their order
    if (number <= (this.#received.get(from) ?? 0)) {
      if (performance.now() - this.#forgedLoggedAt > FORGED_LOG_MS) {
        this.#forgedLoggedAt = performance.now();
        const why = text ? 'came a second time' : 'was not sent by a process of this installation';
        this.#log.warn({ channel }, `a message ${why}; it is ignored`);
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
    if (!peer || !call) return; // it was given up
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

  /** A process that was killed no longer listens; one that is paused listens and does not answer. */
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
        (err) => this.#log.debug({ err }, 'it is not known whether another process is there'),
      );
      const doubtful = new Set<string>();
      for (const call of peer.calls.values()) {
        if (call.doubtAt > now) continue;
        call.doubtAt = now + DOUBT_MS;
        doubtful.add(call.tenantId);
      }
      this.#reject(peer, new NoAnswer('no answer'), (call) => now - call.sentAt > this.#silenceMs);
      for (const tenantId of doubtful) this.#doubt(tenantId);
    }
  }
}

function wireError(error: Error): WireError {
  if (!(error instanceof AppError)) return { message: error.message };
  const { problem: code, message, headers, faults } = error;
  return { code, message, headers, faults };
}

/** The error as it was thrown, as far as a caller may see it. */
function errorOf({ code, message, headers, faults }: WireError): Error {
  if (code === undefined || !Object.hasOwn(ERRORS, code)) return new Error(message);
  return new AppError(code, message, { ...(headers && { headers }), ...(faults && { faults }) });
}
