import { inTime } from './deadlines.ts';
import type { Horizon, SharedLookups } from './lookups.ts';
import type { RedisLink } from './redis.ts';

/**
 * Look-ups that the processes of an installation share through Redis, encrypted and authenticated (see RedisLink). Redis is never
 * the authority: every method resolves without a value when it is down, late or tampered with, and a value that it repeats is
 * judged by the database moment it contains (see Lookups).
 *
 * Values are plain data that JSON can carry.
 */
export class RedisLookups<V> implements SharedLookups<V> {
  /** Until when Redis is skipped, after it did not answer. */
  #hangs = 0;
  readonly #redis: RedisLink;
  readonly #name: string;
  readonly #horizon: () => Promise<Horizon>;
  /** A pending query for the moment. A caller that joins still begins its look-up after it. */
  #asked: Promise<Horizon | undefined> | undefined;

  constructor(redis: RedisLink, name: string, horizon: () => Promise<Horizon>) {
    this.#redis = redis;
    this.#name = name;
    this.#horizon = horizon;
  }

  /** Undefined while Redis is unavailable, when nothing can be stored, or if the database does not answer. Never rejects. */
  async horizon(): Promise<Horizon | undefined> {
    if (this.#redis.commands.status !== 'ready') return undefined;
    this.#asked ??= inTime(ANSWER_MS, this.#attempt(this.#horizon), () => undefined).finally(() => {
      this.#asked = undefined;
    });
    return this.#asked;
  }

  async read(key: string): Promise<{ value: V; until: number; horizon: Horizon } | undefined> {
    const name = this.#redis.name(this.#name, key);
    const sealed = await this.#get(name);
    const text = typeof sealed === 'string' ? this.#redis.unseal(name, Buffer.from(sealed, 'base64url')) : undefined;
    return text && (JSON.parse(text.toString()) as { value: V; until: number; horizon: Horizon });
  }

  async write(key: string, entry: { value: V; until: number; horizon: Horizon }): Promise<void> {
    const name = this.#redis.name(this.#name, key);
    const sealed = this.#redis.seal(name, JSON.stringify(entry)).toString('base64url');
    await this.#attempt(() => this.#redis.commands.set(name, sealed, 'PX', KEPT_MS));
  }

  async #get(name: string): Promise<unknown> {
    if (this.#hangs !== 0 && performance.now() < this.#hangs) return undefined;
    return inTime(
      ANSWER_MS,
      this.#attempt(() => this.#redis.tracked.get(name)),
      () => {
        this.#hangs = performance.now() + HANG_MS;
        return undefined;
      },
    );
  }

  /** The link has logged why it is down; here that only means: unknown. */
  async #attempt<T>(work: () => Promise<T>): Promise<T | undefined> {
    try {
      return await work();
    } catch {
      return undefined;
    }
  }
}

/** How long Redis keeps a value at most. The value's own expiry is inside it. */
const KEPT_MS = 60_000;
/** The client has no timeout of its own for a command that was sent. */
const ANSWER_MS = 250;
const HANG_MS = 1000;
