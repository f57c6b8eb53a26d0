import { AppError } from '../errors.ts';
import { Deadlines } from '../lib/deadlines.ts';
import { patient } from '../lib/patience.ts';

/**
 * Serializes work per tenant: one actor per tenant does what must not run concurrently. The host routes commands to the
 * actor, in whichever process it lives; the kind defines what the actor does. PostgreSQL, not the host, decides who
 * owns a tenant: opening an actor takes a fence there, and a former owner's writes fail with `Fenced`.
 *
 * Commands and results must be plain JSON data, because they may be sent to another process. A command may be handled
 * twice (a retry after `Fenced`), so it carries its own idempotency key.
 */
export interface ActorHost<Command, Result> {
  /** This process among those that share a Redis, as their logs name it. */
  readonly id?: string;
  /**
   * Sends the command to the tenant's actor and resolves with its result; any further guarantee is up to the kind. Commands of
   * one tenant reach the actor in the order in which they were sent, without waiting for each other. Rejects with the kind's
   * error; with UNAVAILABLE if ownership was lost twice in a row, after `stop`, when too much waits for actors to open, and when
   * there is no result within PATIENCE_MS: a command that was not begun by then never is.
   */
  send(tenantId: string, command: Command): Promise<Result>;
  /** Makes other processes take over, if there are any. Commands are still accepted, and reach the new owner. */
  leave(): void;
  /** Refuses new commands, waits for those in progress, and closes all actors. */
  stop(): Promise<void>;
}

export interface ActorKind<Actor, Command, Result> {
  /** Takes ownership of the tenant: once it resolves, every earlier owner is fenced off. */
  open(tenantId: string): Promise<Actor>;
  handle(actor: Actor, command: Command): Promise<Result>;
  close?(actor: Actor): Promise<void> | void;
  /** The approximate memory a command takes, in bytes. Called for commands that wait for an actor to open. */
  size?(command: Command): number;
}

/** A caller gets an answer within this time, no matter what it waits for. */
export const PATIENCE_MS = 5000;

/** How much memory commands waiting for actors to open may take. */
const WAITING_BYTES = 64 * 1024 * 1024;
/** One tenant's waiting commands may take at most this share of the space left for the others. */
const SHARE = 1 / 3;
const COMMAND_BYTES = 1024;

/** An actor that may not be open yet. */
export interface Opening<Actor> {
  readonly opened: Promise<Actor>;
  /** The size of the commands that wait for it. */
  waiting: number;
}

/**
 * The commands that wait for actors to open. They are bounded here, because a kind sees only the commands that it handles. A
 * tenant whose actor does not open may use up to a quarter of an empty room, and less the fuller it is, so there is space for the
 * small commands of others until the actors of dozens of tenants fail to open.
 *
 * INVARIANT: a command whose caller has been refused is never started later, not even in another process, as long as messages
 * arrive in time (ON_THE_WAY_MS). The caller sends it again, perhaps with other content under the same idempotency key.
 */
export class WaitingRoom<Actor, Command> {
  readonly #kind: ActorKind<Actor, Command, unknown>;
  #waiting = 0;

  constructor(kind: ActorKind<Actor, Command, unknown>) {
    this.#kind = kind;
  }

  /**
   * Resolves to the actor once it is open. Rejects with UNAVAILABLE if there is no room to wait, or at the time `until` (of
   * performance.now()); the room that the command took is then freed.
   */
  async wait(actor: Opening<Actor>, command: Command, until: number): Promise<Actor> {
    const size = this.#kind.size?.(command) ?? COMMAND_BYTES;
    if (actor.waiting + size > SHARE * (WAITING_BYTES - this.#waiting - size))
      throw unavailable('too much waits for the tenant to be opened');
    this.#waiting += size;
    actor.waiting += size;
    const late = Promise.withResolvers<never>();
    const timer = setTimeout(() => late.reject(noAnswer()), Math.max(0, until - performance.now()));
    try {
      return await Promise.race([actor.opened, late.promise]);
    } finally {
      clearTimeout(timer);
      this.#waiting -= size;
      actor.waiting -= size;
    }
  }
}

/** Throws UNAVAILABLE after the time `until` (of performance.now()): the caller of the command has been refused. */
export function assertInTime(until: number): void {
  if (performance.now() >= until) throw noAnswer();
}

/** Deadlines that end a caller's wait in time. */
export function patience(ms: number): Deadlines {
  return new Deadlines(ms, noAnswer);
}

function noAnswer(): AppError {
  return unavailable('the process that writes for this tenant does not answer');
}

export function unavailable(detail: string, cause?: unknown): AppError {
  return new AppError('UNAVAILABLE', detail, { headers: { 'retry-after': '1' }, cause });
}

/** Another process took ownership of the tenant. The command may be retried with the new owner. */
export class Fenced extends AppError {
  constructor(detail = 'another process took over; try again') {
    super('UNAVAILABLE', detail, { headers: { 'retry-after': '1' } });
    this.name = 'Fenced';
  }
}

/** The host of a single process: every actor lives here, and a command is a function call. */
export class LocalHost<Actor, Command, Result> implements ActorHost<Command, Result> {
  readonly #kind: ActorKind<Actor, Command, Result>;
  readonly #actors = new Map<string, Slot<Actor>>();
  readonly #room: WaitingRoom<Actor, Command>;
  readonly #patienceMs: number;
  readonly #inTime: Deadlines;
  #underWay = 0;
  #idle: (() => void) | undefined;
  #stopped = false;

  constructor(kind: ActorKind<Actor, Command, Result>, options: { patienceMs?: number } = {}) {
    this.#kind = kind;
    this.#room = new WaitingRoom(kind);
    this.#patienceMs = options.patienceMs ?? patient(PATIENCE_MS);
    this.#inTime = patience(this.#patienceMs);
  }

  async send(tenantId: string, command: Command): Promise<Result> {
    if (this.#stopped) throw unavailable('the server is shutting down');
    return this.#inTime.of(this.#deliver(tenantId, command, performance.now() + this.#patienceMs));
  }

  /** There is no other process. */
  leave(): void {}

  async #deliver(tenantId: string, command: Command, until: number): Promise<Result> {
    this.#underWay++;
    try {
      return await this.#handle(tenantId, command, until).catch((error) => {
        if (error instanceof Fenced) return this.#handle(tenantId, command, until);
        throw error;
      });
    } finally {
      if (--this.#underWay === 0) this.#idle?.();
    }
  }

  async #handle(tenantId: string, command: Command, until: number): Promise<Result> {
    const slot = this.#slot(tenantId);
    try {
      const actor = slot.actor ?? (await this.#room.wait(slot, command, until));
      assertInTime(until);
      return await this.#kind.handle(actor, command);
    } catch (error) {
      if (error instanceof Fenced) this.#drop(tenantId, slot);
      throw error;
    }
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    if (this.#underWay > 0) await new Promise<void>((resolve) => (this.#idle = resolve));
    const slots = [...this.#actors.values()];
    this.#actors.clear();
    for (const { opened } of slots) {
      // an actor that failed to open is not closed
      const actor = await opened.catch(() => undefined);
      if (actor !== undefined) await this.#kind.close?.(actor);
    }
  }

  #slot(tenantId: string): Slot<Actor> {
    const known = this.#actors.get(tenantId);
    if (known) return known;
    const slot: Slot<Actor> = { actor: undefined, opened: this.#kind.open(tenantId), waiting: 0 };
    this.#actors.set(tenantId, slot);
    slot.opened.then(
      (actor) => {
        slot.actor = actor;
      },
      () => this.#drop(tenantId, slot),
    );
    return slot;
  }

  /** Many commands may fail on the same actor; only the first failure closes it. */
  #drop(tenantId: string, slot: Slot<Actor>): void {
    if (this.#actors.get(tenantId) === slot) this.#actors.delete(tenantId);
  }
}

/** `actor` is set once it is open, so that later commands need not await a promise. */
interface Slot<Actor> extends Opening<Actor> {
  actor: Actor | undefined;
}
