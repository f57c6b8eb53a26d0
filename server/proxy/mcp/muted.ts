import type { Id } from './wire.ts';

/** How long a server may still say something about a request that it was told to give up. */
const MUTED_MS = 5 * 60_000;

/**
 * Masked requests that were given up at their server: a server that follows the protocol does not answer them, but what it still
 * sends may be about them. They count until the server answers anyway, or for some minutes.
 */
export class Muted {
  /** Until when each counts, by the id that the server knows the request by; oldest first. */
  readonly #until = new Map<Id, number>();

  add(id: Id): void {
    this.#until.set(id, Date.now() + MUTED_MS);
  }

  /** The server has answered this request, and will send nothing more about it. */
  answered(id: Id): void {
    this.#until.delete(id);
  }

  get any(): boolean {
    for (const [id, until] of this.#until) {
      if (Date.now() < until) return true;
      this.#until.delete(id);
    }
    return false;
  }
}
