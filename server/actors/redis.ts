import { setTimeout as delay } from 'node:timers/promises';
import type { Deadlines } from '../lib/deadlines.ts';
import type { Log } from '../lib/log.ts';
import { patient } from '../lib/patience.ts';
import type { RedisLink } from '../lib/redis.ts';
import { BUCKETS, bucketOf, bucketsOf, ownerOf, type Process } from './buckets.ts';
import {
  type ActorHost,
  type ActorKind,
  assertInTime,
  Fenced,
  type Opening,
  PATIENCE_MS,
  patience,
  unavailable,
  WaitingRoom,
} from './host.ts';
import { Moved, NoAnswer, PeerGone, Peers, Unsent } from './peers.ts';

export interface RedisHostOptions {
  redis: RedisLink;
  log: Log;
  /** False for a process that only calls the others, such as an operator's command: while others run, it owns nothing. */
  takes?: boolean;
  /** Where the rows of tenants are, if on several servers: db/citus.ts. */
  places?: Places | undefined;
  /** How long an owner has to answer a command before it is handled where it arrived. */
  answerMs?: number;
  /** How long a command may take before its caller gets UNAVAILABLE. */
  patienceMs?: number;
}

/** Which node has a tenant. Processes may disagree for a while, and then forward to each other. */
interface Places {
  /** The node beside this process. */
  readonly here: number | undefined;
  readonly nodes: readonly number[];
  nodeOf(tenantId: string): number | undefined;
  onMove(listener: () => void): void;
  /** Checks whether that is still true. */
  look(): unknown;
}

const ANSWER_MS = 3000;
/** For this long, an owner that did not answer is not asked about that bucket again, unless it speaks up. */
const BYPASS_MS = 30_000;
/**
 * A process that lost a tenant in the database but still receives its commands waits for one to two times this long, at
 * random, before it takes the tenant again.
 */
const TURN_MS = 200;
/** How long a command that could not be sent waits for Redis before it is handled where it arrived. */
const UNSENT_MS = 50;
/** An actor without commands for this long is closed. */
const IDLE_MS = 600_000;
const IDLE_LOOK_MS = 60_000;
const TIDY_MS = 1000;
/** Errors after which a command is retried. */
const RETRIED = [Fenced, PeerGone, Moved, NoAnswer, Unsent];

/**
 * The host for several processes on one database. Every process computes the owner of a tenant from the processes that are alive
 * (buckets.ts, Peers); commands that arrive elsewhere are forwarded to it.
 *
 * Redis provides only liveness and routing, and stores nothing. Who may write is decided by the fence that the kind takes in
 * PostgreSQL when it opens an actor, so an empty, split, faulty or hostile Redis costs time but never forks a chain:
 *
 * - A process that takes a bucket first asks the others to let go of it. The former owner finishes what it has started, and
 *   forwards later commands to the new one, so when processes come and go in an orderly way, nothing fails and no one is fenced
 *   off.
 * - A killed process is noticed within milliseconds, and one that is silent for 1.5 seconds (paused, or cut off) is not waited
 *   for: the next in rank takes the fence. Whatever the former owner writes after that fails with Fenced and is forwarded.
 * - A command that cannot be sent is handled where it arrived, and so are all others until Redis has shown that it delivers
 *   again. The owner takes the tenant back with the first command after that.
 * - Even if processes are misled, a command that the owner does not accept within half of `answerMs` is handled where it arrived,
 *   under a new fence; one that was sent to an owner and got no answer, after all of `answerMs`.
 * - Without Redis an owner keeps working. Another process that has a command for the tenant takes the fence, and the two
 *   alternate: the one that lost a tenant takes it again after 200 to 400 ms, with all commands received meanwhile. Both then
 *   serve slowly, and ownership moves at most a few times a second, however many commands there are.
 */
export class RedisHost<Actor, Command, Result> implements ActorHost<Command, Result> {
  readonly #kind: ActorKind<Actor, Command, Result>;
  readonly #log: Log;
  readonly #answerMs: number;
  readonly #patienceMs: number;
  readonly #inTime: Deadlines;
  readonly #room: WaitingRoom<Actor, Command>;
  readonly #peers: Peers;
  readonly #places: Places | undefined;
  /** Who owns each bucket, as far as this process knows. */
  #owners: ReadonlyMap<number, string | undefined> = new Map();
  /** The buckets in which this process has actors. */
  readonly #buckets = new Map<number, Bucket<Actor>>();
  /** Owners that did not answer. This process takes their place. */
  readonly #bypassed = new Map<number, { owner: string; until: number }>();
  /** Buckets of this process whose former owner died: there is no one to ask for them. */
  readonly #vacant = new Set<number>();
  /** When a lost tenant may be taken again. */
  readonly #turns = new Map<string, number>();
  readonly #tidying: NodeJS.Timeout;
  #lookedAt = performance.now();
  #underWay = 0;
  #idle: (() => void) | undefined;
  #stopped: Promise<void> | undefined;

  private constructor(kind: ActorKind<Actor, Command, Result>, options: RedisHostOptions) {
    this.#kind = kind;
    this.#log = options.log;
    this.#answerMs = options.answerMs ?? patient(ANSWER_MS);
    this.#patienceMs = options.patienceMs ?? patient(PATIENCE_MS);
    this.#inTime = patience(this.#patienceMs);
    this.#room = new WaitingRoom(kind);
    this.#places = options.places;
    this.#peers = new Peers({
      redis: options.redis,
      log: options.log,
      silenceMs: this.#answerMs,
      takes: options.takes ?? true,
      node: options.places?.here,
      serve: (tenantId, command, until) => this.#serve(tenantId, command as Command, until),
      release: (bucket, asker) => this.#release(bucket, asker),
      changed: () => this.#rebalance(),
    });
    this.#rebalance();
    this.#places?.onMove(() => this.#rebalance());
    this.#tidying = setInterval(() => this.#tidy(), TIDY_MS);
  }

  /** Resolves once this process knows the others, if Redis is available. */
  static async start<Actor, Command, Result>(
    kind: ActorKind<Actor, Command, Result>,
    options: RedisHostOptions,
  ): Promise<RedisHost<Actor, Command, Result>> {
    const host = new RedisHost(kind, options);
    try {
      await host.#peers.start();
    } catch (err) {
      options.log.warn({ err }, 'Redis is unavailable: this process starts without it');
    }
    return host;
  }

  /** The id under which this process owns buckets. */
  get id(): string {
    return this.#peers.id;
  }

  /** How many tenants this process has actors for. */
  get owned(): number {
    let sum = 0;
    for (const { slots } of this.#buckets.values()) sum += slots.size;
    return sum;
  }

  /** How many of BUCKETS buckets this process may own; if tenants are on several nodes, the average per node. */
  get buckets(): number {
    const own = [...this.#owners.values()].filter((owner) => owner === this.id).length;
    return this.#owners.size === 0 ? 0 : Math.round((own * BUCKETS) / this.#owners.size);
  }

  async send(tenantId: string, command: Command): Promise<Result> {
    if (this.#stopped) throw unavailable('the server is shutting down');
    return this.#inTime.of(this.#deliver(tenantId, command, performance.now() + this.#patienceMs));
  }

  leave(): void {
    this.#peers.leave();
  }

  /**
   * Refuses new commands, and leaves: the other processes take over, bucket by bucket, when this one has finished the commands
   * that it has started. Commands forwarded to it meanwhile go on to the new owner.
   */
  stop(): Promise<void> {
    this.#stopped ??= this.#stop();
    return this.#stopped;
  }

  async #stop(): Promise<void> {
    this.#peers.leave();
    if (this.#underWay > 0) await new Promise<void>((resolve) => (this.#idle = resolve));
    clearInterval(this.#tidying);
    await Promise.all([...this.#buckets].map(([number, bucket]) => this.#leave(number, bucket)));
    await this.#peers.stop();
  }

  // --- commands

  async #deliver(tenantId: string, command: Command, until: number): Promise<Result> {
    this.#underWay++;
    try {
      return await this.#tryUntilDone(tenantId, command, until);
    } finally {
      if (--this.#underWay === 0) this.#idle?.();
    }
  }

  async #tryUntilDone(tenantId: string, command: Command, until: number): Promise<Result> {
    const began = performance.now();
    let text: string | undefined;
    for (let attempt = 0; ; attempt++) {
      assertInTime(until);
      const number = this.#bucketOf(tenantId);
      const owner = this.#ownerOf(number);
      try {
        if (owner === this.id) return await this.#handle(number, tenantId, command, until);
        text ??= JSON.stringify(command);
        return (await this.#peers.call(owner, tenantId, text, until)) as Result;
      } catch (error) {
        if (!RETRIED.some((kind) => error instanceof kind)) throw error;
        // another process owns it, or this one's view is stale: the tenant may have moved to another node
        if (error instanceof Moved || error instanceof Fenced) void this.#places?.look();
        const waited = performance.now() - began;
        const refused = error instanceof NoAnswer || (error instanceof Moved && waited > this.#answerMs / 2);
        // unless the owner has changed by now
        if (refused && owner !== this.id && this.#ownerOf(number) === owner) this.#bypass(number, owner);
        // Redis may recover meanwhile, and then shows it
        if (error instanceof Unsent) await delay(UNSENT_MS);
      }
      // the first retries do not wait; after that, an owner that is handing over gets time to finish
      if (attempt > 0) await delay(Math.min(10 * attempt, 200));
    }
  }

  /** Handles a command forwarded by another process. It is not forwarded again: the sender looks up the owner. */
  async #serve(tenantId: string, command: Command, until: number): Promise<Result> {
    const number = this.#bucketOf(tenantId);
    // while stopping, do not open actors that nothing would close
    if (this.#stopped || this.#ownerOf(number) !== this.id) {
      // the sender may know that the owner has ended, or that the tenant's rows have moved
      this.#peers.look();
      void this.#places?.look();
      throw new Moved();
    }
    return this.#handle(number, tenantId, command, until);
  }

  async #handle(number: number, tenantId: string, command: Command, until: number): Promise<Result> {
    const bucket = this.#bucket(number);
    if (bucket.leaving) {
      await bucket.leaving;
      throw new Moved();
    }
    const slot = bucket.slots.get(tenantId) ?? this.#open(number, bucket, tenantId);
    slot.underWay++;
    slot.usedAt = performance.now();
    try {
      const actor = slot.actor ?? (await this.#room.wait(slot, command, until));
      assertInTime(until);
      return await this.#kind.handle(actor, command);
    } catch (error) {
      if (error instanceof Fenced) this.#lost(bucket, tenantId, slot);
      throw error;
    } finally {
      if (--slot.underWay === 0) slot.drained?.();
    }
  }

  // --- ownership

  #bucketOf(tenantId: string): number {
    return bucketOf(tenantId, this.#places?.nodeOf(tenantId));
  }

  /** The owner of a bucket: this process, if there is no Redis or the owner does not answer. */
  #ownerOf(number: number): string {
    const owner = this.#owners.get(number) ?? this.id;
    const bypassed = this.#bypassed.get(number);
    return bypassed?.owner === owner && bypassed.until > performance.now() ? this.id : owner;
  }

  /** Recomputes the owners, and lets go of the buckets that no longer belong to this process. */
  #rebalance(): void {
    const { ready, processes } = this.#peers;
    const before = this.#owners;
    const alive = new Set(processes.map(({ id }) => id));
    const numbers = ready ? bucketsOf(this.#places?.nodes ?? []) : [];
    this.#owners = new Map(numbers.map((number) => [number, ownerOf(number, processes)]));
    for (const number of this.#vacant) if (this.#owners.get(number) !== this.id) this.#vacant.delete(number);
    for (const [number, owner] of this.#owners) {
      const former = before.get(number);
      if (owner === this.id && former !== undefined && !alive.has(former)) this.#vacant.add(number);
    }
    this.#leaveOthers();
  }

  /** Lets go of buckets that others own, and of tenants whose rows have moved to another node. */
  #leaveOthers(): void {
    for (const [number, bucket] of this.#buckets) {
      if (this.#ownerOf(number) !== this.id) this.#leaveLogged(number, bucket);
      else if (this.#places) {
        for (const [tenantId, slot] of bucket.slots) {
          if (!slot.closing && this.#bucketOf(tenantId) !== number) this.#closeLogged(number, bucket, tenantId, slot);
        }
      }
    }
  }

  #bypass(number: number, owner: string): void {
    this.#log.warn(
      { process: owner, bucket: number },
      'the process that owns a bucket does not serve it; taking it over',
    );
    this.#bypassed.set(number, { owner, until: performance.now() + BYPASS_MS });
  }

  /** Another process is taking a bucket. Lets go of it, unless this process ranks before the other. */
  async #release(number: number, asker: Process): Promise<boolean> {
    if (this.#bypassed.get(number)?.owner === asker.id) this.#bypassed.delete(number);
    const bucket = this.#buckets.get(number);
    if (!bucket) return true;
    const self = this.#peers.processes.find(({ id }) => id === this.id)!;
    if (ownerOf(number, [self, asker]) === this.id) return false;
    await this.#leave(number, bucket);
    return true;
  }

  #bucket(number: number): Bucket<Actor> {
    let bucket = this.#buckets.get(number);
    if (!bucket) {
      bucket = { slots: new Map(), taken: undefined, leaving: undefined };
      this.#buckets.set(number, bucket);
    }
    return bucket;
  }

  #open(number: number, bucket: Bucket<Actor>, tenantId: string): Slot<Actor> {
    const slot: Slot<Actor> = {
      actor: undefined,
      opened: this.#opened(number, bucket, tenantId),
      waiting: 0,
      underWay: 0,
      usedAt: performance.now(),
      drained: undefined,
      closing: undefined,
    };
    bucket.slots.set(tenantId, slot);
    slot.opened.then(
      (actor) => {
        slot.actor = actor;
      },
      () => drop(bucket, tenantId, slot),
    );
    return slot;
  }

  async #opened(number: number, bucket: Bucket<Actor>, tenantId: string): Promise<Actor> {
    // a bypassed owner would refuse to let go, and waiting for answers of processes that never had it costs time
    const unasked = this.#bypassed.has(number) || this.#vacant.delete(number);
    bucket.taken ??= unasked ? Promise.resolve(true) : this.#peers.released(number);
    const taken = bucket.taken;
    if (!(await taken)) {
      if (bucket.taken === taken) bucket.taken = undefined;
      throw new Moved();
    }
    const wait = (this.#turns.get(tenantId) ?? 0) - performance.now();
    if (wait > 0) await delay(wait);
    return this.#kind.open(tenantId);
  }

  /** The database assigned the tenant to another process. Many commands may notice; only the first gives it up. */
  #lost(bucket: Bucket<Actor>, tenantId: string, slot: Slot<Actor>): void {
    if (!drop(bucket, tenantId, slot)) return;
    bucket.taken = undefined;
    this.#turns.set(tenantId, performance.now() + TURN_MS * (1 + Math.random()));
  }

  /** Closes the actors of a bucket once their commands are done. Until then it accepts no new ones. */
  #leave(number: number, bucket: Bucket<Actor>): Promise<void> {
    bucket.leaving ??= (async () => {
      try {
        await Promise.all([...bucket.slots].map(([tenantId, slot]) => this.#close(bucket, tenantId, slot)));
      } finally {
        this.#buckets.delete(number);
      }
    })();
    return bucket.leaving;
  }

  #leaveLogged(number: number, bucket: Bucket<Actor>): void {
    this.#leave(number, bucket).catch((err) => this.#log.error({ err, bucket: number }, 'closing an actor failed'));
  }

  #closeLogged(number: number, bucket: Bucket<Actor>, tenantId: string, slot: Slot<Actor>): void {
    this.#close(bucket, tenantId, slot).catch((err) =>
      this.#log.error({ err, bucket: number }, 'closing an actor failed'),
    );
  }

  /** Runs once, even if both the tenant and its bucket go. */
  #close(bucket: Bucket<Actor>, tenantId: string, slot: Slot<Actor>): Promise<void> {
    slot.closing ??= (async () => {
      if (slot.underWay > 0) await new Promise<void>((resolve) => (slot.drained = resolve));
      // an actor that failed to open is not closed; its callers got the error
      const actor = await slot.opened.catch(() => undefined);
      if (drop(bucket, tenantId, slot) && actor !== undefined) await this.#kind.close?.(actor);
    })();
    return slot.closing;
  }

  /** Lets go of what belongs to others again, and of unused actors. */
  #tidy(): void {
    const now = performance.now();
    for (const [number, { until }] of this.#bypassed) if (until <= now) this.#bypassed.delete(number);
    for (const [tenantId, at] of this.#turns) if (at <= now) this.#turns.delete(tenantId);
    this.#leaveOthers();
    if (now - this.#lookedAt < IDLE_LOOK_MS) return;
    this.#lookedAt = now;
    for (const [number, bucket] of this.#buckets) {
      for (const [tenantId, slot] of bucket.slots) {
        const { actor, underWay, usedAt } = slot;
        if (actor === undefined || underWay > 0 || now - usedAt < IDLE_MS) continue;
        drop(bucket, tenantId, slot);
        Promise.resolve(this.#kind.close?.(actor)).catch((err) => this.#log.error({ err }, 'closing an actor failed'));
      }
      if (bucket.slots.size === 0 && !bucket.leaving) this.#buckets.delete(number);
    }
  }
}

function drop<Actor>(bucket: Bucket<Actor>, tenantId: string, slot: Slot<Actor>): boolean {
  return bucket.slots.get(tenantId) === slot && bucket.slots.delete(tenantId);
}

interface Bucket<Actor> {
  readonly slots: Map<string, Slot<Actor>>;
  /** Whether the other processes have let go of it. Requested before the first actor, and after one was lost. */
  taken: Promise<boolean> | undefined;
  /** Set once it is being handed over. */
  leaving: Promise<void> | undefined;
}

interface Slot<Actor> extends Opening<Actor> {
  /** Set once it is open, so that later commands need not await a promise. */
  actor: Actor | undefined;
  underWay: number;
  usedAt: number;
  drained: (() => void) | undefined;
  closing: Promise<void> | undefined;
}
