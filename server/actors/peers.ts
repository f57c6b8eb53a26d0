import { randomBytes } from 'node:crypto';
import { ERRORS, type ErrorCode } from '../domain/errors.ts';
import { AppError } from '../errors.ts';
import type { Fault } from '../lib/faults.ts';
import type { Log } from '../lib/log.ts';
import { patient } from '../lib/patience.ts';
import type { RedisLink } from '../lib/redis.ts';
import type { Process } from './buckets.ts';
import { Fenced } from './host.ts';

/** Nothing listens to the process's channel: it has ended, or lost its connection. */
export class PeerGone extends Error {}
/** The called process does not own the tenant, or no longer does. */
export class Moved extends Error {}
/** No answer. The command may or may not have been executed. */
export class NoAnswer extends Error {}
/** As far as is known, Redis did not accept the call: that says nothing about the process it was meant for. */
export class Unsent extends Error {}

/** A message is sent when it reaches this size; one large command is a message by itself. */
const MESSAGE_CHARS = 256 * 1024;
/** The maximum size of unsent calls to one process. Redis disconnects a subscriber that falls 32 MB behind. */
const WAITING_CHARS = 16 * 1024 * 1024;
const WAITING_CALLS = 20_000;
/** How often to ask Redis whether the other processes are still connected: a killed one is found within this time. */
const WATCH_MS = 50;
/** The same, while some call has waited this long for its answer. */
const OVERDUE_MS = 20;
/** How often each process announces that it is alive. */
const BEAT_MS = 250;
/** A process that missed this many of its beats is not relied on: it is paused, or cut off. */
const SILENT_BEATS = 6;
/** A process that missed this many is not waited for. */
const LATE_BEATS = 2;
/** A beat that did not come back is sent again after this many. */
const RESENT_BEATS = 4;
/** After this many without one coming back, a process considers its connection dead. */
const LOST_BEATS = 12;
/** How long another process has to answer a question; a live one does within milliseconds. */
const ANSWER_MS = 1000;
/**
 * A called process stops starting a call this long before its caller is refused: the message itself uses up some of the caller's
 * time, which the receiver cannot measure. A message that takes longer than this counts as not sent.
 */
const ON_THE_WAY_MS = 500;
/** The minimum interval between log entries about forged messages: anyone who can send one can send many. */
const FORGED_LOG_MS = 60_000;
const PROCESS_ID = /^[A-Za-z0-9_-]{16}(\.\d{1,9})?$/;
/** More processes than any installation has; names beyond that were made up. */
const MOST_PROCESSES = 1000;

/** Another process that has shown that it is alive. */
interface Member {
  takes: boolean;
  /** How many of this process's beats arrived since its last message. */
  missed: number;
}

interface Call {
  readonly chars: number;
  readonly sentAt: number;
  readonly resolve: (result: unknown) => void;
  readonly reject: (error: Error) => void;
}

/** The outgoing and unanswered calls of one other process. */
class Peer {
  readonly calls = new Map<number, Call>();
  chars = 0;
  /** Parts of the next messages, as JSON, with the numbers of the calls and questions among them. */
  unsent: { text: string; number: number | undefined }[] = [];
}

/**
 * One part of a message: a sign of life, with whether the sender takes buckets; a call with its number, tenant, command and the
 * milliseconds within which it may be started; a question whether the receiver is alive; a request to let go of a bucket; or an
 * answer.
 */
type Part =
  | ['beat', boolean]
  | ['call', number, string, unknown, number]
  | ['here?', number]
  | ['here', number, boolean]
  | ['release', number, number]
  | ['released', number, boolean]
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
 * The processes of an installation, over Redis publish/subscribe: which are alive, and calls between them. Each process listens
 * on the channel of its id, and on one shared by all. Everything sent to a process in one turn of the event loop is one message.
 *
 * Delivery is at most once, so a call may get no answer; it then fails with NoAnswer and the caller retries.
 *
 * Liveness needs no stored state and no clock. A process becomes a member once it has answered a question from this one, so
 * members cannot be made up, and no message of a past process brings it back. It stops being a member when Redis reports that
 * nothing listens on its channel (it was killed), or when SILENT_BEATS beats of this process came back since its last message (it
 * is paused, or cut off). Everyone's beats arrive in one order on one connection: while Redis is slow or down, or this process
 * was paused, none come back, and no process is considered dead. Likewise, a message that could not be sent says something about
 * Redis, and nothing about the process it was meant for: until a beat of this process comes back, this process does not rely on
 * Redis.
 *
 * INVARIANT: someone with access to Redis learns only the size of a message, and cannot send valid ones. Each message is
 * encrypted and authenticated for one channel, with a key that only processes with the master key have; it contains its sender
 * and sequence number, and repeated messages are dropped.
 */
export class Peers {
  /** Identifies this run of this process; never reused. */
  readonly id: string;
  readonly #redis: RedisLink;
  readonly #log: Log;
  readonly #serve: (tenantId: string, command: unknown, until: number) => Promise<unknown>;
  readonly #release: (bucket: number, asker: Process) => Promise<boolean>;
  readonly #changed: () => void;
  readonly #silenceMs: number;
  readonly #members = new Map<string, Member>();
  readonly #meeting = new Set<string>();
  readonly #peers = new Map<string, Peer>();
  readonly #dirty = new Set<string>();
  readonly #publishing = new Set<Promise<void>>();
  readonly #timers: NodeJS.Timeout[];
  #takes: boolean;
  #subscribed = false;
  /** A message could not be sent, and no beat of this process has come back since. */
  #muted = false;
  #unheard = 0;
  #often: NodeJS.Timeout | undefined;
  /** Redis was asked which processes listen, but has not answered yet. */
  #looking = false;
  #scheduled = false;
  #last = 0;
  #sent = 0;
  /** The number of the last message from each process. It has one entry per process ever started. */
  readonly #received = new Map<string, number>();
  readonly #questions = new Map<number, { id: string; settle: (answer: boolean | undefined) => void }>();
  #forgedLoggedAt = Number.NEGATIVE_INFINITY;

  constructor(parts: {
    redis: RedisLink;
    log: Log;
    /**
     * Handles a call from another process, if it can be started before `until` (of performance.now()): its caller is refused soon
     * after. Throws Moved if this process does not own the tenant.
     */
    serve: (tenantId: string, command: unknown, until: number) => Promise<unknown>;
    /** Lets go of a bucket that another process is about to take. Resolves to false if it stays here. */
    release: (bucket: number, asker: Process) => Promise<boolean>;
    /** Whether this process takes buckets. */
    takes: boolean;
    /** The Citus node beside this process. */
    node: number | undefined;
    /** Called when a process arrived or left, and when this one gains or loses contact with the others. */
    changed: () => void;
    /** How long a call waits for its answer. */
    silenceMs: number;
  }) {
    this.id = randomBytes(12).toString('base64url') + (parts.node === undefined ? '' : `.${parts.node}`);
    this.#redis = parts.redis;
    this.#log = parts.log;
    this.#serve = parts.serve;
    this.#release = parts.release;
    this.#changed = parts.changed;
    this.#takes = parts.takes;
    this.#silenceMs = parts.silenceMs;
    const { subscriber, commands } = this.#redis;
    subscriber.on('messageBuffer', (channel: Buffer, message: Buffer) => this.#receive(String(channel), message));
    subscriber.on('ready', () => {
      this.#listen().catch((err) => this.#log.warn({ err }, 'this process cannot subscribe to its channel'));
    });
    subscriber.on('close', () => {
      this.#subscribed = false;
      // answers sent while disconnected are lost
      for (const peer of this.#peers.values()) this.#reject(peer, new NoAnswer('the connection to Redis was lost'));
      this.#changed();
    });
    for (const event of ['ready', 'close'] as const) commands.on(event, this.#changed);
    this.#timers = [setInterval(() => this.look(), WATCH_MS), setInterval(() => this.#beat(), BEAT_MS)];
  }

  /** Resolves once this process knows the others, if Redis is available. */
  async start(): Promise<void> {
    if (this.#redis.subscriber.status === 'ready' && !this.#subscribed) await this.#listen();
  }

  /** Whether this process can send to other processes and receive from them. */
  get ready(): boolean {
    return this.#connected && !this.#muted;
  }

  get #connected(): boolean {
    return this.#subscribed && this.#redis.commands.status === 'ready';
  }

  /** This process, and every other one believed to be alive. */
  get processes(): Process[] {
    const others = [...this.#members].map(([id, { takes }]) => ({ id, takes }));
    return [{ id: this.id, takes: this.#takes }, ...others];
  }

  /** Tells the others that this process takes no more buckets and lets go of all it has. */
  leave(): void {
    this.#takes = false;
    this.#say();
    this.#changed();
  }

  /**
   * Asks every other process to let go of a bucket. Resolves to true if all did, and to false if one keeps the bucket. A process
   * that does not answer is not waited for: the fence stops it.
   */
  async released(bucket: number): Promise<boolean> {
    if (!this.ready) return true;
    const asked = [...this.#members]
      .filter(([, { missed }]) => missed <= LATE_BEATS)
      .map(([id]) => this.#ask(id, (number) => `["release",${number},${bucket}]`));
    return !(await Promise.all(asked)).includes(false);
  }

  /**
   * Sends the command to another process. Rejects with PeerGone, Moved, NoAnswer or Unsent if, as far as is known, it was not
   * executed; with the error it threw there; or with UNAVAILABLE if too many calls already wait.
   */
  call(id: string, tenantId: string, command: string, until: number): Promise<unknown> {
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
      peer.calls.set(number, { chars, sentAt: now, resolve, reject });
      peer.chars += chars;
      this.#often ??= setTimeout(() => this.#lookOften(), OVERDUE_MS);
      this.#send(
        id,
        `["call",${number},${JSON.stringify(tenantId)},${command},${until - now - ON_THE_WAY_MS}]`,
        number,
      );
    });
  }

  /** Sends the remaining answers and unsubscribes. */
  async stop(): Promise<void> {
    for (const timer of this.#timers) clearInterval(timer);
    clearTimeout(this.#often);
    for (const event of ['ready', 'close'] as const) this.#redis.commands.off(event, this.#changed);
    this.#flush();
    await Promise.all(this.#publishing);
    for (const peer of this.#peers.values()) this.#reject(peer, new NoAnswer('the process is shutting down'));
    for (const { settle } of this.#questions.values()) settle(undefined);
    if (this.#subscribed) {
      this.#subscribed = false;
      await this.#redis.subscriber.unsubscribe().catch((err) => this.#log.debug({ err }, 'Redis is unavailable'));
    }
  }

  async #listen(): Promise<void> {
    const { subscriber } = this.#redis;
    try {
      await subscriber.subscribe(this.#channel(this.id), this.#everyone);
    } catch (err) {
      // if the answer came too late, the connection stays ready, and nothing else would subscribe again
      if (subscriber.status === 'ready') subscriber.disconnect(true);
      throw err;
    }
    this.#subscribed = true;
    this.#unheard = 0;
    for (const member of this.#members.values()) member.missed = 0;
    this.#changed();
    try {
      const prefix = this.#channel('');
      const channels = (await this.#redis.commands.pubsub('CHANNELS', `${prefix}*`)) as string[];
      const ids = channels.map((channel) => channel.slice(prefix.length)).filter((id) => PROCESS_ID.test(id));
      await Promise.all(ids.slice(0, MOST_PROCESSES).map((id) => this.#meet(id)));
    } catch (err) {
      this.#log.debug({ err }, 'the other processes are not known yet; their beats will tell');
    }
  }

  /**
   * Announces to all processes, itself included, that this one is alive: a connection that stops delivering these beats is dead,
   * even without an error, and is replaced.
   */
  #beat(): void {
    if (!this.#connected) return;
    if (this.#unheard >= LOST_BEATS) {
      this.#unheard = 0;
      this.#log.warn('the connection to Redis delivers no messages; replacing it');
      this.#redis.subscriber.disconnect(true);
      return;
    }
    // after a pause of Redis, what was sent meanwhile arrives at once, process by process: never enough beats to count as silent
    if (this.#unheard++ % RESENT_BEATS === 0) this.#say();
  }

  #say(): void {
    if (!this.#connected) return;
    const beat = this.#message(this.#everyone, [`["beat",${this.#takes}]`]);
    const sent = this.#redis.commands.publish(this.#everyone, beat);
    sent.catch((err) => this.#log.debug({ err }, 'a beat was not sent'));
  }

  /** What each returning beat of this process implies about the others. */
  #count(): void {
    this.#unheard = 0;
    if (this.#muted) {
      this.#muted = false;
      this.#changed();
    }
    for (const [id, member] of this.#members) {
      if (++member.missed <= patient(SILENT_BEATS)) continue;
      this.#log.warn({ process: id }, 'another process is silent; its tenants are taken over');
      this.#forget(id, new NoAnswer('the process is silent'));
    }
  }

  /** Makes a process show that it is alive. From then on it is a member. */
  async #meet(id: string): Promise<void> {
    if (id === this.id || this.#members.has(id) || this.#meeting.has(id)) return;
    this.#meeting.add(id);
    const takes = await this.#ask(id, (number) => `["here?",${number}]`);
    this.#meeting.delete(id);
    if (takes === undefined) return;
    this.#members.set(id, { takes, missed: 0 });
    this.#changed();
  }

  /** Sends a question to another process. Resolves to undefined if there is no answer. */
  #ask(id: string, question: (number: number) => string): Promise<boolean | undefined> {
    const number = ++this.#last;
    return new Promise((resolve) => {
      const settle = (answer: boolean | undefined) => {
        clearTimeout(timer);
        this.#questions.delete(number);
        resolve(answer);
      };
      const timer = setTimeout(() => settle(undefined), patient(ANSWER_MS));
      this.#questions.set(number, { id, settle });
      this.#send(id, question(number), number);
    });
  }

  get #everyone(): string {
    return this.#redis.name('nodes');
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

  /** `number`: the number of a call or a question. */
  #send(id: string, text: string, number?: number): void {
    this.#peer(id).unsent.push({ text, number });
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
        while (to < parts.length && (to === from || chars + parts[to]!.text.length <= MESSAGE_CHARS)) {
          chars += parts[to++]!.text.length;
        }
        this.#publish(id, parts.slice(from, to));
        from = to;
      }
    }
    this.#dirty.clear();
  }

  #publish(id: string, parts: Peer['unsent']): void {
    const channel = this.#channel(id);
    const texts = parts.map(({ text }) => text);
    const sent = this.#redis.commands.publish(channel, this.#message(channel, texts)).then(
      (receivers) => {
        if (receivers === 0) this.#forget(id, new PeerGone());
      },
      (error: Error) => {
        this.#log.debug({ err: error }, 'sending a message to another process failed');
        this.#mute();
        const numbers = new Set(parts.map(({ number }) => number));
        for (const number of numbers) if (number !== undefined) this.#questions.get(number)?.settle(undefined);
        const peer = this.#peers.get(id);
        if (peer) this.#reject(peer, new Unsent('Redis is unavailable'), (_call, number) => numbers.has(number));
      },
    );
    this.#publishing.add(sent);
    sent.finally(() => this.#publishing.delete(sent));
  }

  /** Stops relying on Redis until a beat sent now, or later, comes back. */
  #mute(): void {
    if (this.#muted) return;
    this.#muted = true;
    this.#say();
    this.#changed();
  }

  #message(channel: string, parts: readonly string[]): Buffer {
    const text = `{"from":${JSON.stringify(this.id)},"number":${++this.#sent},"parts":[${parts.join(',')}]}`;
    return this.#redis.seal(channel, text);
  }

  #receive(channel: string, sealed: Buffer): void {
    if (channel !== this.#channel(this.id) && channel !== this.#everyone) return;
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
    const member = this.#members.get(from);
    if (member) member.missed = 0;
    else void this.#meet(from);
    for (const part of parts) {
      if (part[0] === 'beat') this.#heard(from, part[1]);
      else if (part[0] === 'call') this.#answer(from, part);
      else if (part[0] === 'here?') this.#send(from, `["here",${part[1]},${this.#takes}]`);
      else if (part[0] === 'release') this.#letGo(from, part[1], part[2]);
      else if (part[0] === 'here' || part[0] === 'released') {
        const question = this.#questions.get(part[1]);
        if (question?.id === from) question.settle(part[2]);
      } else this.#settle(from, part);
    }
  }

  #heard(from: string, takes: boolean): void {
    if (from === this.id) this.#count();
    const member = this.#members.get(from);
    if (!member || member.takes === takes) return;
    member.takes = takes;
    this.#changed();
  }

  #letGo(from: string, number: number, bucket: number): void {
    const asker = { id: from, takes: this.#members.get(from)?.takes ?? true };
    this.#release(bucket, asker).then(
      (released) => this.#send(from, `["released",${number},${released}]`),
      (err) => this.#log.error({ err, bucket }, 'closing an actor failed'),
    );
  }

  #answer(from: string, [, number, tenantId, command, left]: Extract<Part, ['call', ...unknown[]]>): void {
    this.#serve(tenantId, command, performance.now() + left).then(
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
    if (!peer || !call) return; // the call was abandoned
    this.#take(peer, part[1], call);
    if (part[0] === 'result') call.resolve(part[2]);
    else if (part[0] === 'moved') call.reject(new Moved());
    else call.reject(errorOf(part[2]));
  }

  #take(peer: Peer, number: number, call: Call): void {
    peer.calls.delete(number);
    peer.chars -= call.chars;
  }

  #reject(peer: Peer, error: Error, matches: (call: Call, number: number) => boolean = () => true): void {
    for (const [number, call] of peer.calls) {
      if (!matches(call, number)) continue;
      this.#take(peer, number, call);
      call.reject(error);
    }
  }

  /** The process is gone or silent: everything that waits for it fails. */
  #forget(id: string, error: Error): void {
    for (const question of this.#questions.values()) if (question.id === id) question.settle(undefined);
    const known = this.#members.delete(id);
    const peer = this.#peers.get(id);
    this.#peers.delete(id);
    // callers that waited look up the new owner, which is known by then
    if (known) this.#changed();
    if (peer) this.#reject(peer, error);
  }

  /** Checks more often as long as calls wait. */
  #lookOften(): void {
    this.#often = undefined;
    const oldest = [...this.#peers.values()].map(({ calls }) => calls.values().next().value?.sentAt ?? Infinity);
    const waiting = Math.min(...oldest);
    if (waiting === Infinity) return;
    if (performance.now() - waiting >= OVERDUE_MS) this.look();
    this.#often = setTimeout(() => this.#lookOften(), OVERDUE_MS);
  }

  /**
   * Checks for killed processes, which no longer listen, and for calls without an answer. Call it when another process seems to
   * know of an end that this one has not noticed.
   */
  look(): void {
    const now = performance.now();
    for (const [id, peer] of this.#peers) {
      this.#reject(peer, new NoAnswer('no answer'), (call) => now - call.sentAt > this.#silenceMs);
      if (peer.calls.size === 0 && peer.unsent.length === 0) this.#peers.delete(id);
    }
    const ids = [...this.#members.keys()];
    if (ids.length === 0 || !this.ready || this.#looking) return;
    this.#looking = true;
    this.#redis.commands
      .pubsub('NUMSUB', ...ids.map((id) => this.#channel(id)))
      .then(
        (counts) => {
          for (const [index, id] of ids.entries()) {
            if (Number(counts[2 * index + 1]) === 0) this.#forget(id, new PeerGone());
          }
        },
        (err) => this.#log.debug({ err }, 'checking whether other processes are alive failed'),
      )
      .finally(() => {
        this.#looking = false;
      });
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
