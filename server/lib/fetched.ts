interface Entry<T> {
  /** The last good answer, and when it was asked for. */
  value?: { it: T; at: number };
  /** The last failure, when it came after the last good answer. */
  failure?: { error: unknown; at: number };
  /** When the value was last renewed before its time. */
  renewedAt?: number;
  fetching?: Promise<T>;
}

/**
 * What other parties publish and change now and then (discovery documents, key sets), fetched when it is needed.
 * However many callers ask, the publisher sees one request at a time, and a bounded number of them: a failure is
 * remembered as well as an answer. A fresh answer serves the callers for whom it is enough while a newer one is fetched, and is never
 * lost to a failure to do so.
 */
export class Fetched<T> {
  readonly #now: () => number;
  readonly #limits: { freshMs: number; failedMs: number; renewMs: number; size: number };
  readonly #entries = new Map<string, Entry<T>>();

  /**
   * `freshMs`: how long an answer serves. `failedMs`: how long a failure does. `renewMs`: how often at most a fresh answer
   * is renewed because something was missing in it. `size`: how many answers are kept.
   */
  constructor(now: () => number, limits: { freshMs: number; failedMs: number; renewMs: number; size: number }) {
    this.#now = now;
    this.#limits = limits;
  }

  /** The answer for the key, not older than `freshMs`. Rejects as `fetch` did. */
  async get(key: string, fetch: () => Promise<T>): Promise<T> {
    const entry = this.#entry(key);
    const now = this.#now();
    if (entry.value && now - entry.value.at < this.#limits.freshMs) return entry.value.it;
    if (entry.fetching) return entry.fetching;
    if (entry.failure && now - entry.failure.at < this.#limits.failedMs) throw entry.failure.error;
    return this.#fetch(entry, fetch);
  }

  /**
   * For a caller for whom the fresh answer was not enough: a newer one, or undefined when it was renewed too short a time ago.
   * Rejects as `fetch` did, and for `failedMs` after that.
   */
  async renew(key: string, fetch: () => Promise<T>): Promise<T | undefined> {
    const entry = this.#entry(key);
    const now = this.#now();
    if (entry.fetching) return entry.fetching;
    if (entry.failure && now - entry.failure.at < this.#limits.failedMs) throw entry.failure.error;
    if (entry.renewedAt !== undefined && now - entry.renewedAt < this.#limits.renewMs) return undefined;
    entry.renewedAt = now;
    return this.#fetch(entry, fetch);
  }

  /** Asks now, whatever is known: for callers that may force a request, such as an admin who saves an address. */
  async ask(key: string, fetch: () => Promise<T>): Promise<T> {
    return this.#fetch(this.#entry(key), fetch);
  }

  #entry(key: string): Entry<T> {
    const kept = this.#entries.get(key);
    const entry = kept ?? {};
    // the one that was used least recently goes first
    if (kept) this.#entries.delete(key);
    else if (this.#entries.size >= this.#limits.size) this.#entries.delete(this.#entries.keys().next().value!);
    this.#entries.set(key, entry);
    return entry;
  }

  async #fetch(entry: Entry<T>, fetch: () => Promise<T>): Promise<T> {
    const at = this.#now();
    const fetching = fetch();
    entry.fetching = fetching;
    try {
      const it = await fetching;
      entry.value = { it, at };
      delete entry.failure;
      return it;
    } catch (error) {
      entry.failure = { error, at };
      throw error;
    } finally {
      if (entry.fetching === fetching) delete entry.fetching;
    }
  }
}
