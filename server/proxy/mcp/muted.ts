import type { Id } from './wire.ts';

/** For how long a server may still say something of a request that it was told to give up. */
const MUTED_MS = 5 * 60_000;

/**
 * Masked requests that were given up at their server: one that follows the protocol does not answer them, and what it says
 * meanwhile may still be of them. They count until it has answered all the same, or for some minutes.
 */
export class Muted {
  /** Until when, by the id that the server knows the request by; the oldest first. */
  readonly #until = new Map<Id, number>();

  add(id: Id): void {
    this.#until.set(id, Date.now() + MUTED_MS);
  }

  /** The server has answered this request, and says nothing of it anymore. */
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
