import { AppError } from '../errors.ts';

/**
 * Serializes work per tenant: one actor per tenant does what must not run concurrently. The host routes commands to the
 * actor, in whichever process it lives; the kind defines what the actor does. PostgreSQL, not the host, decides who
 * owns a tenant: opening an actor takes a fence there, and a former owner's writes fail with `Fenced`.
 *
 * Commands and results must be plain JSON data, because they may be sent to another process. A command may be handled
 * twice (a retry after `Fenced`), so it carries its own idempotency key.
 */
export interface ActorHost<Command, Result> {
  /**
   * Sends the command to the tenant's actor and resolves with its result; any further promise is the kind's. Commands
   * of one tenant reach the actor in the order in which they were sent, without waiting for each other. Rejects with
   * what the kind threw; with UNAVAILABLE if the ownership was lost twice in a row, or after `stop`.
   */
  send(tenantId: string, command: Command): Promise<Result>;
  /** Refuses new commands, waits for those in progress, and closes all actors. */
  stop(): Promise<void>;
}

export interface ActorKind<Actor, Command, Result> {
  /** Takes ownership of the tenant: once it resolves, every earlier owner is fenced off. */
  open(tenantId: string): Promise<Actor>;
  handle(actor: Actor, command: Command): Promise<Result>;
  close?(actor: Actor): Promise<void> | void;
}

/** Another process took ownership of the tenant. The command may be retried at the new owner. */
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
  #underWay = 0;
  #idle: (() => void) | undefined;
  #stopped = false;

  constructor(kind: ActorKind<Actor, Command, Result>) {
    this.#kind = kind;
  }

  async send(tenantId: string, command: Command): Promise<Result> {
    if (this.#stopped)
      throw new AppError('UNAVAILABLE', 'the server is shutting down', { headers: { 'retry-after': '1' } });
    this.#underWay++;
    try {
      const slot = this.#slot(tenantId);
      try {
        return await this.#kind.handle(slot.actor ?? (await slot.opened), command);
      } catch (error) {
        if (!(error instanceof Fenced)) throw error;
        this.#drop(tenantId, slot);
      }
      const next = this.#slot(tenantId);
      try {
        return await this.#kind.handle(next.actor ?? (await next.opened), command);
      } catch (error) {
        if (error instanceof Fenced) this.#drop(tenantId, next);
        throw error;
      }
    } finally {
      if (--this.#underWay === 0) this.#idle?.();
    }
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    if (this.#underWay > 0) await new Promise<void>((resolve) => (this.#idle = resolve));
    const slots = [...this.#actors.values()];
    this.#actors.clear();
    for (const { actor } of slots) if (actor !== undefined) await this.#kind.close?.(actor);
  }

  #slot(tenantId: string): Slot<Actor> {
    const known = this.#actors.get(tenantId);
    if (known) return known;
    const slot: Slot<Actor> = { actor: undefined, opened: this.#kind.open(tenantId) };
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
interface Slot<Actor> {
  actor: Actor | undefined;
  readonly opened: Promise<Actor>;
}
