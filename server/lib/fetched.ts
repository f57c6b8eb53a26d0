interface Entry<T> {
  /** The last good answer, and when it was requested. */
  value?: { it: T; at: number };
  /** The last failure, if it came after the last good answer. */
  failure?: { error: unknown; at: number };
  /** When the value was last renewed early. */
  renewedAt?: number;
  fetching?: Promise<T>;
}

/**
 * Documents that other parties publish and change now and then (discovery documents, key sets), fetched on demand. However many
 * callers ask, the publisher sees one request at a time, and a bounded number of them: failures are cached as well as answers.
 * While a newer answer is fetched, a fresh one serves the callers for whom it is enough, and a failed fetch never discards it.
 */
export class Fetched<T> {
  readonly #now: () => number;
  readonly #limits: { freshMs: number; failedMs: number; renewMs: number; size: number };
  readonly #entries = new Map<string, Entry<T>>();

  /**
   * `freshMs`: how long an answer is used. `failedMs`: how long a failure is. `renewMs`: how often at most a fresh answer is
   * renewed because it lacked something. `size`: how many answers are kept.
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
   * For a caller who needs more than the fresh answer has: a newer one, or undefined if it was renewed too recently. Rejects as
   * `fetch` did, and for `failedMs` after that.
   */
  async renew(key: string, fetch: () => Promise<T>): Promise<T | undefined> {
    const entry = this.#entry(key);
    const now = this.#now();
    if (entry.fetching) return entry.fetching;
    if (entry.failure && now - entry.failure.at < this.#limits.failedMs) throw entry.failure.error;
    // a renewal that failed tells nothing about what the publisher has
    const renewed = entry.failure ? undefined : entry.renewedAt;
    if (renewed !== undefined && now - renewed < this.#limits.renewMs) return undefined;
    entry.renewedAt = now;
    return this.#fetch(entry, fetch);
  }

  /** Fetches now, regardless of the cache: for callers that may force a request, such as an admin who saves an address. */
  async ask(key: string, fetch: () => Promise<T>): Promise<T> {
    return this.#fetch(this.#entry(key), fetch);
  }

  #entry(key: string): Entry<T> {
    const kept = this.#entries.get(key);
    const entry = kept ?? {};
    // the least recently used goes first
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
