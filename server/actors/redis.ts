import { setTimeout as delay } from 'node:timers/promises';
import { AppError } from '../errors.ts';
import type { Log } from '../lib/log.ts';
import type { RedisLink } from '../lib/redis.ts';
import { type ActorHost, type ActorKind, Fenced } from './host.ts';
import { Moved, NoAnswer, PeerGone, Peers } from './peers.ts';

export interface RedisHostOptions {
  redis: RedisLink;
  log: Log;
  /** How long a lease lasts after its last renewal. It is renewed every third of that. */
  leaseMs?: number;
  /** How long a command is retried before its caller gets UNAVAILABLE. */
  patienceMs?: number;
}

const LEASE_MS = 3000;
const PATIENCE_MS = 10_000;
/**
 * A process that lost a tenant in the database but still receives its commands waits this long, up to twice, at random,
 * before it takes the tenant again.
 */
const TURN_MS = 200;
/** An actor without commands for this long is closed, and its lease released. */
const IDLE_MS = 600_000;
const SCRIPT_KEYS = 200;

/**
 * The host for several processes on one database. A lease in Redis (`owner:<tenant>`) names the process that owns a
 * tenant; commands that arrive elsewhere are forwarded to it.
 *
 * Redis provides only liveness and routing. Who may write is decided by the fence that the kind takes in PostgreSQL
 * when it opens an actor, so an empty, split, faulty or hostile Redis costs time but never forks a chain:
 *
 * - An owner that ended has no listener: its tenants are taken over immediately. One that is silent for 1.5 seconds
 *   (paused, or disconnected) is bypassed: the caller takes the fence. Whatever the former owner writes after that
 *   fails with Fenced and is forwarded.
 * - A lease is only a hint: the process that it names must confirm it (see Peers) before anything is sent or left to
 *   it. An attacker who writes no process, a dead one or the wrong one into Redis delays the first command by the time
 *   of that check, and never a command to an owner that is known.
 * - However the processes are misled, a command that other processes have not accepted within half a lease is handled
 *   where it arrived, under a new fence; one that was sent to an owner and got no answer, after a full lease.
 * - Without Redis an owner keeps working. Another process that has a command for the tenant takes the fence, and the
 *   two alternate: the one that lost a tenant takes it again after 200 to 400 ms, with all commands received meanwhile.
 *   Both then serve slowly, and the ownership moves at most a few times a second, however many commands there are.
 */
export class RedisHost<Actor, Command, Result> implements ActorHost<Command, Result> {
  readonly #kind: ActorKind<Actor, Command, Result>;
  readonly #redis: RedisLink;
  readonly #log: Log;
  readonly #leaseMs: number;
  readonly #patienceMs: number;
  readonly #peers: Peers;
  /** The tenants that this process owns. */
  readonly #slots = new Map<string, Slot<Actor>>();
  /** The last known owners of other tenants. */
  readonly #elsewhere = new Map<string, string>();
  readonly #locating = new Map<string, Promise<Slot<Actor> | string>>();
  /** Owners found dead, until their tenants are taken over. */
  readonly #dead = new Map<string, string>();
  /** When a lost tenant may be taken again. */
  readonly #turns = new Map<string, number>();
  readonly #renewal: NodeJS.Timeout;
  #renewing: Promise<void> | undefined;
  #underWay = 0;
  #idle: (() => void) | undefined;
  #stopped: Promise<void> | undefined;

  private constructor(kind: ActorKind<Actor, Command, Result>, options: RedisHostOptions) {
    this.#kind = kind;
    this.#redis = options.redis;
    this.#log = options.log;
    this.#leaseMs = options.leaseMs ?? LEASE_MS;
    this.#patienceMs = options.patienceMs ?? PATIENCE_MS;
    this.#peers = new Peers({
      redis: options.redis,
      log: options.log,
      silenceMs: this.#leaseMs,
      serve: (tenantId, command) => this.#serve(tenantId, command as Command),
      // of two processes looking for an owner, one gets the lease and may be asked by the other before it knows
      owns: (tenantId) => this.#slots.has(tenantId) || this.#locating.has(tenantId),
      suspect: (tenantId) => this.#suspect(tenantId),
    });
    this.#renewal = setInterval(() => {
      this.#renewing ??= this.#renew().finally(() => {
        this.#renewing = undefined;
      });
    }, this.#leaseMs / 3);
    options.redis.commands.on('ready', this.#recovered);
  }

  /** Resolves once other processes can reach this one, if Redis is available. */
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

  /** The id under which this process owns tenants. */
  get id(): string {
    return this.#peers.id;
  }

  /** How many tenants this process owns. */
  get owned(): number {
    return this.#slots.size;
  }

  async send(tenantId: string, command: Command): Promise<Result> {
    if (this.#stopped) throw unavailable('the server is shutting down');
    this.#underWay++;
    try {
      return await this.#deliver(tenantId, command);
    } finally {
      if (--this.#underWay === 0) this.#idle?.();
    }
  }

  /**
   * Refuses new commands, finishes those in progress, then hands over each tenant: its commands are finished, its lease
   * is released, and the next command in any process finds a new owner. Commands forwarded meanwhile go to the new
   * owner.
   */
  stop(): Promise<void> {
    this.#stopped ??= this.#stop();
    return this.#stopped;
  }

  async #stop(): Promise<void> {
    if (this.#underWay > 0) await new Promise<void>((resolve) => (this.#idle = resolve));
    clearInterval(this.#renewal);
    this.#redis.commands.off('ready', this.#recovered);
    await this.#renewing;
    await Promise.all([...this.#slots].map(([tenantId, slot]) => this.#handOver(tenantId, slot)));
    await this.#peers.stop();
  }

  // --- commands

  async #deliver(tenantId: string, command: Command): Promise<Result> {
    const began = performance.now();
    const end = began + this.#patienceMs;
    let text: string | undefined;
    let seize = false;
    for (let attempt = 0; ; attempt++) {
      const target = this.#target(tenantId) ?? (await this.#locate(tenantId, seize));
      try {
        if (typeof target !== 'string') return await this.#handle(tenantId, target, command);
        text ??= JSON.stringify(command);
        return (await this.#peers.call(target, tenantId, text)) as Result;
      } catch (error) {
        if (
          !(error instanceof Fenced || error instanceof PeerGone || error instanceof Moved || error instanceof NoAnswer)
        )
          throw error;
        if (performance.now() >= end)
          throw unavailable('the process that writes for this tenant does not answer', error);
        if (typeof target === 'string') {
          if (this.#elsewhere.get(tenantId) === target) this.#elsewhere.delete(tenantId);
          if (error instanceof PeerGone) this.#dead.set(tenantId, target);
          seize = error instanceof NoAnswer || performance.now() - began > this.#leaseMs / 2;
        }
      }
      // the first retries do not wait; after that, an owner that is handing over gets time to finish
      if (attempt > 0) await delay(Math.min(10 * attempt, 200));
    }
  }

  #target(tenantId: string): Slot<Actor> | string | undefined {
    const slot = this.#slots.get(tenantId);
    return slot && !slot.leaving ? slot : this.#elsewhere.get(tenantId);
  }

  /** Handles a command forwarded by another process. It is not forwarded again: the sender looks up the owner. */
  async #serve(tenantId: string, command: Command): Promise<Result> {
    const slot = this.#slots.get(tenantId);
    if (!slot || slot.leaving) throw new Moved();
    return this.#handle(tenantId, slot, command);
  }

  async #handle(tenantId: string, slot: Slot<Actor>, command: Command): Promise<Result> {
    slot.underWay++;
    slot.usedAt = performance.now();
    try {
      return await this.#kind.handle(slot.actor ?? (await slot.opened), command);
    } catch (error) {
      if (error instanceof Fenced) this.#lost(tenantId, slot);
      throw error;
    } finally {
      if (--slot.underWay === 0) slot.drained?.();
    }
  }

  // --- ownership

  /** This process's actor, or the id of the owner. One lookup per tenant at a time. */
  #locate(tenantId: string, seize = false): Promise<Slot<Actor> | string> {
    const known = this.#locating.get(tenantId);
    if (known) return known;
    const locating = this.#find(tenantId, seize).finally(() => this.#locating.delete(tenantId));
    this.#locating.set(tenantId, locating);
    return locating;
  }

  /** `seize`: the reported owners did not serve the tenant; it is taken regardless of Redis. */
  async #find(tenantId: string, seize: boolean): Promise<Slot<Actor> | string> {
    // a slot that is being handed over is not reused
    await this.#slots.get(tenantId)?.leaving;
    const slot = this.#slots.get(tenantId);
    if (seize) await this.#seize(tenantId);
    const owner = seize || (slot && !this.#peers.ready) ? this.id : await this.#take(tenantId);
    if (owner !== this.id) {
      this.#elsewhere.set(tenantId, owner);
      if (slot) this.#leave(tenantId, slot);
    }
    this.#peers.reroute(tenantId, owner);
    return owner === this.id ? (this.#slots.get(tenantId) ?? this.#open(tenantId)) : owner;
  }

  /**
   * Takes the lease if it is free, or its holder is dead or does not confirm that it has it. Returns the owner; without
   * Redis, this process.
   */
  async #take(tenantId: string): Promise<string> {
    const end = performance.now() + this.#leaseMs / 2;
    let dead = this.#dead.get(tenantId) ?? '';
    // a busy process may miss an answer, so only the second failure is attributed to Redis
    for (let attempt = 0; attempt < 2 && this.#peers.ready; attempt++) {
      let owner: unknown;
      try {
        owner = await this.#redis.commands.eval(TAKE, 1, this.#lease(tenantId), this.id, this.#leaseMs, dead);
      } catch (err) {
        this.#log.debug({ err, tenant: tenantId }, 'reading the lease of a tenant failed');
        continue;
      }
      this.#dead.delete(tenantId);
      if (owner === this.id) return this.id;
      if (await this.#peers.confirms(String(owner), tenantId, end - performance.now())) return String(owner);
      dead = String(owner);
    }
    return this.id;
  }

  async #seize(tenantId: string): Promise<void> {
    this.#log.warn(
      { tenant: tenantId },
      'the process that holds the lease of a tenant does not serve it; taking it over',
    );
    if (!this.#peers.ready) return;
    await this.#redis.commands
      .set(this.#lease(tenantId), this.id, 'PX', this.#leaseMs)
      .catch((err) => this.#log.debug({ err, tenant: tenantId }, 'writing the lease of a tenant failed'));
  }

  #open(tenantId: string): Slot<Actor> {
    this.#elsewhere.delete(tenantId);
    const wait = (this.#turns.get(tenantId) ?? 0) - performance.now();
    const slot: Slot<Actor> = {
      actor: undefined,
      opened: wait > 0 ? delay(wait).then(() => this.#kind.open(tenantId)) : this.#kind.open(tenantId),
      underWay: 0,
      usedAt: performance.now(),
      leaving: undefined,
      drained: undefined,
      contest: undefined,
    };
    this.#slots.set(tenantId, slot);
    slot.opened.then(
      (actor) => {
        slot.actor = actor;
      },
      () => {
        if (this.#drop(tenantId, slot)) this.#release(tenantId);
      },
    );
    return slot;
  }

  /** The database assigned the tenant to another process. */
  #lost(tenantId: string, slot: Slot<Actor>): void {
    if (!this.#drop(tenantId, slot)) return;
    this.#turns.set(tenantId, performance.now() + TURN_MS * (1 + Math.random()));
    this.#release(tenantId);
  }

  /** Many commands may fail on the same actor; only the first failure gives it up. */
  #drop(tenantId: string, slot: Slot<Actor>): boolean {
    return this.#slots.get(tenantId) === slot && this.#slots.delete(tenantId);
  }

  #release(tenantId: string): Promise<void> {
    if (!this.#peers.ready) return Promise.resolve();
    return this.#redis.commands.eval(RELEASE, 1, this.#lease(tenantId), this.id).then(
      () => undefined,
      (err) => this.#log.debug({ err, tenant: tenantId }, 'releasing a lease failed; it will expire'),
    );
  }

  /** Closes the actor once its commands are done. Until then it accepts no new ones. */
  #leave(tenantId: string, slot: Slot<Actor>): Promise<void> {
    slot.leaving ??= (async () => {
      if (slot.underWay > 0) await new Promise<void>((resolve) => (slot.drained = resolve));
      if (!this.#drop(tenantId, slot)) return;
      // an actor that failed to open is not closed; its callers got the error
      const actor = await slot.opened.catch(() => undefined);
      if (actor !== undefined) await this.#kind.close?.(actor);
    })();
    return slot.leaving;
  }

  async #handOver(tenantId: string, slot: Slot<Actor>): Promise<void> {
    await this.#leave(tenantId, slot);
    await this.#release(tenantId);
  }

  /**
   * The lease names another process: if that process confirms that it owns the tenant, it keeps it; otherwise this one
   * takes the lease back.
   */
  async #contest(tenantId: string, slot: Slot<Actor>, other: string): Promise<void> {
    if (!(await this.#peers.confirms(other, tenantId))) {
      this.#dead.set(tenantId, other);
      if (this.#peers.ready) await this.#take(tenantId);
      return;
    }
    if (this.#slots.get(tenantId) !== slot) return;
    this.#log.info({ tenant: tenantId }, 'another process holds the lease of a tenant');
    this.#elsewhere.set(tenantId, other);
    await this.#leave(tenantId, slot);
  }

  #lease(tenantId: string): string {
    return this.#redis.name('owner', tenantId);
  }

  /** The owner does not answer: it may have lost the tenant unnoticed. */
  #suspect(tenantId: string): void {
    this.#locate(tenantId).catch((err) => this.#log.debug({ err, tenant: tenantId }, 'finding an owner failed'));
  }

  // --- renewal

  readonly #recovered = () => {
    this.#renewing ??= this.#renew().finally(() => {
      this.#renewing = undefined;
    });
  };

  /** Extends this process's leases, restores those that Redis lost, and gives up those that other processes hold. */
  async #renew(): Promise<void> {
    const now = performance.now();
    for (const [tenantId, at] of this.#turns) if (at < now) this.#turns.delete(tenantId);
    if (!this.#peers.ready) return;
    try {
      await this.#peers.beat();
      const mine = [...this.#slots].filter(([, slot]) => !slot.leaving);
      for (let from = 0; from < mine.length; from += SCRIPT_KEYS) {
        const some = mine.slice(from, from + SCRIPT_KEYS);
        const keys = some.map(([tenantId]) => this.#lease(tenantId));
        const owners = (await this.#redis.commands.eval(
          PROLONG,
          keys.length,
          ...keys,
          this.id,
          this.#leaseMs,
        )) as string[];
        for (const [index, [tenantId, slot]] of some.entries()) {
          const owner = owners[index];
          if (owner === this.id || this.#slots.get(tenantId) !== slot || slot.contest) continue;
          slot.contest = this.#contest(tenantId, slot, String(owner))
            .catch((err) => this.#log.error({ err }, 'closing an actor failed'))
            .finally(() => {
              slot.contest = undefined;
            });
        }
      }
      for (const [tenantId, slot] of mine) {
        if (slot.underWay === 0 && now - slot.usedAt > IDLE_MS) await this.#handOver(tenantId, slot);
      }
    } catch (err) {
      // INVARIANT: an owner keeps working without Redis; the fence stops it if another process took over
      this.#log.debug({ err }, 'renewing the leases failed');
    }
  }
}

interface Slot<Actor> {
  /** Set once it is open, so that later commands need not await a promise. */
  actor: Actor | undefined;
  readonly opened: Promise<Actor>;
  underWay: number;
  usedAt: number;
  /** Set once the tenant is being handed over. */
  leaving: Promise<void> | undefined;
  drained: (() => void) | undefined;
  /** Set while asking another process, which the lease names, whether it owns the tenant. */
  contest: Promise<void> | undefined;
}

function unavailable(detail: string, cause?: unknown): AppError {
  return new AppError('UNAVAILABLE', detail, { headers: { 'retry-after': '1' }, cause });
}

/** KEYS: the lease. ARGV: this process, milliseconds, an owner known to be dead or ''. Returns the owner. */
const TAKE = `
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[3] and owner ~= ARGV[1] then return owner end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return ARGV[1]`;

/** KEYS: the leases. ARGV: this process, milliseconds. Returns the owner of each. */
const PROLONG = `
local owners = {}
for i, key in ipairs(KEYS) do
  local owner = redis.call('GET', key)
  if not owner or owner == ARGV[1] then
    redis.call('SET', key, ARGV[1], 'PX', ARGV[2])
    owner = ARGV[1]
  end
  owners[i] = owner
end
return owners`;

const RELEASE = `
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0`;
