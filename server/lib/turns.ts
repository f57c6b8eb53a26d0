/**
 * Lets each owner have a few things done at a time; more of them wait for their turn. So the many requests of one are
 * not all in front of the few of another.
 */
export class Turns {
  readonly #atOnce: number;
  readonly #mostWaiting: number;
  readonly #owners = new Map<string, { running: number; waiting: (() => void)[] }>();

  constructor(limits: { atOnce: number; mostWaiting: number }) {
    this.#atOnce = limits.atOnce;
    this.#mostWaiting = limits.mostWaiting;
  }

  /** Resolves when it is the owner's turn, to what ends it, which may be called twice. Undefined where too many wait. */
  async take(owner: string): Promise<(() => void) | undefined> {
    const own = this.#owners.get(owner) ?? { running: 0, waiting: [] };
    this.#owners.set(owner, own);
    if (own.running < this.#atOnce) own.running++;
    else if (own.waiting.length >= this.#mostWaiting) return undefined;
    // anyone who ends hands the turn over
    else await new Promise<void>((resolve) => own.waiting.push(resolve));
    let ended = false;
    return () => {
      if (ended) return;
      ended = true;
      const next = own.waiting.shift();
      if (next) next();
      else if (--own.running === 0) this.#owners.delete(owner);
    };
  }
}
