interface Waiting {
  /** Its place in the order: see Turns. */
  readonly at: number;
  readonly who: string;
  readonly go: (turn: boolean) => void;
}

interface Owner {
  running: number;
  /** In the order of their places. */
  readonly waiting: Waiting[];
  /** The place of the last one whose turn it was. */
  now: number;
  /** The next place of each who was there a moment ago. */
  readonly next: Map<string, number>;
}

/**
 * Lets each owner have a few things done at a time; more of them wait for their turn. So the many requests of one are
 * not all in front of the few of another.
 *
 * Whoever shares an owner's turns has them by turns too (start-time fair queueing): each request has a place one behind the last
 * one of the same, and nobody's place is in front of the one whose turn it was last. Where no more may wait, the one behind all
 * others is sent away for one whose place is in front of it: those who ask again and again keep nobody out who asks now and then.
 */
export class Turns {
  readonly #atOnce: number;
  readonly #mostWaiting: number;
  readonly #mostMs: number | undefined;
  readonly #owners = new Map<string, Owner>();

  /** `mostMs`: how long each waits at most; without it, until it is its turn. */
  constructor(limits: { atOnce: number; mostWaiting: number; mostMs?: number }) {
    this.#atOnce = limits.atOnce;
    this.#mostWaiting = limits.mostWaiting;
    this.#mostMs = limits.mostMs;
  }

  /**
   * Resolves when it is the owner's turn, and among those who share it that of `who`, to what ends it, which may be called
   * twice. Undefined where too many wait, it waited for too long, or `gone` aborted: who has left keeps nobody waiting.
   */
  async take(owner: string, who = owner, gone?: AbortSignal): Promise<(() => void) | undefined> {
    if (gone?.aborted) return undefined;
    const own = this.#owners.get(owner) ?? { running: 0, waiting: [], now: 0, next: new Map() };
    this.#owners.set(owner, own);
    const at = Math.max(own.next.get(who) ?? 0, own.now);
    if (own.running < this.#atOnce) {
      own.running++;
      own.next.set(who, at + 1);
      pass(own, at);
    } else {
      const place = own.waiting.findLastIndex((other) => other.at <= at) + 1;
      if (own.waiting.length >= this.#mostWaiting) {
        if (place === own.waiting.length) return undefined;
        const last = own.waiting.pop()!;
        own.next.set(last.who, last.at);
        last.go(false);
      }
      own.next.set(who, at + 1);
      // anyone who ends hands the turn over
      if (!(await this.#turn(own, place, { at, who, gone }))) return undefined;
    }
    let ended = false;
    return () => {
      if (ended) return;
      ended = true;
      const next = own.waiting.shift();
      if (next) {
        pass(own, next.at);
        next.go(true);
      } else if (--own.running === 0) this.#owners.delete(owner);
    };
  }

  #turn(
    { waiting, next }: Owner,
    place: number,
    { at, who, gone }: Pick<Waiting, 'at' | 'who'> & { gone: AbortSignal | undefined },
  ): Promise<boolean> {
    return new Promise((resolve) => {
      const leave = () => {
        waiting.splice(waiting.indexOf(one), 1);
        // what was not done does not count; a place of long ago was forgotten
        const following = next.get(who);
        if (following !== undefined) next.set(who, following - 1);
        go(false);
      };
      const timer = this.#mostMs === undefined ? undefined : setTimeout(leave, this.#mostMs);
      gone?.addEventListener('abort', leave);
      const go = (turn: boolean) => {
        clearTimeout(timer);
        gone?.removeEventListener('abort', leave);
        resolve(turn);
      };
      const one: Waiting = { at, who, go };
      waiting.splice(place, 0, one);
    });
  }
}

/** Of those who were there longer ago than the last round nothing is kept. */
const MOST_KEPT = 100;

function pass(own: Owner, at: number): void {
  own.now = Math.max(own.now, at);
  if (own.next.size <= MOST_KEPT) return;
  for (const [who, next] of own.next) if (next <= own.now) own.next.delete(who);
}
