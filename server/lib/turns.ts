interface Waiting {
  /** Its place in the order: see Turns. */
  readonly at: number;
  readonly who: string;
  readonly go: (turn: boolean) => void;
}

interface Owner {
  running: number;
  /** Ordered by place. */
  readonly waiting: Waiting[];
  /** The place of the last one whose turn came. */
  now: number;
  /** The next place of each recent participant. */
  readonly next: Map<string, number>;
}

/**
 * Lets each owner do a few things at a time; the rest wait for their turn. So one owner's many requests are not all ahead of
 * another's few.
 *
 * Those who share an owner's turns also take turns (start-time fair queueing): each request has a place one behind the previous
 * one of the same participant, and no place is ahead of the one whose turn came last. When the queue is full, the last in line is
 * dropped for a newcomer whose place is ahead of it: those who ask again and again do not keep out those who ask now and then.
 */
export class Turns {
  readonly #atOnce: number;
  readonly #mostWaiting: number;
  readonly #mostMs: number | undefined;
  readonly #owners = new Map<string, Owner>();

  /** `mostMs`: how long each waits at most; if absent, until its turn comes. */
  constructor(limits: { atOnce: number; mostWaiting: number; mostMs?: number }) {
    this.#atOnce = limits.atOnce;
    this.#mostWaiting = limits.mostWaiting;
    this.#mostMs = limits.mostMs;
  }

  /**
   * Resolves when it is the owner's turn, and that of `who` among those who share it, to a function that ends the turn, which may
   * be called twice. Undefined if too many wait, it waited too long, or `gone` aborted: a caller who has left holds no one up.
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
      // ending a turn hands it over
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
        // what was not done does not count; an old place may have been forgotten
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

/** Beyond this many, places from before the last round are dropped. */
const MOST_KEPT = 100;

function pass(own: Owner, at: number): void {
  own.now = Math.max(own.now, at);
  if (own.next.size <= MOST_KEPT) return;
  for (const [who, next] of own.next) if (next <= own.now) own.next.delete(who);
}
