/** Callers that wait for a change in a tenant: long polls. */
export class Waiters {
  readonly #waiting = new Map<string, Set<() => void>>();
  #stopping = false;

  /** Makes everyone who waits for this tenant look again; `*` for all. */
  wake(tenantId: string): void {
    for (const [tenant, wakers] of this.#waiting) {
      if (tenantId === '*' || tenantId === tenant) for (const wake of wakers) wake();
    }
  }

  /** How many are waiting. */
  get waiting(): number {
    return [...this.#waiting.values()].reduce((sum, wakers) => sum + wakers.size, 0);
  }

  /** Ends all waits, now and in the future, because the process is stopping. */
  stop(): void {
    this.#stopping = true;
    this.wake('*');
  }

  /**
   * Resolves to the result of `look` as soon as it is `enough`, and to its last result after `seconds`, when `signal` aborts or
   * when the process stops. No change is missed between a look and the wait after it.
   */
  async until<T>(
    tenantId: string,
    seconds: number,
    signal: AbortSignal,
    look: () => Promise<T>,
    enough: (found: T) => boolean,
  ): Promise<T> {
    const end = performance.now() + seconds * 1000;
    for (;;) {
      const wakers = this.#waiting.get(tenantId) ?? new Set<() => void>();
      this.#waiting.set(tenantId, wakers);
      let wake = () => {};
      const woken = new Promise<void>((resolve) => {
        wake = resolve;
        wakers.add(resolve);
      });
      const timer = setTimeout(wake, Math.max(0, end - performance.now()));
      signal.addEventListener('abort', wake, { once: true });
      try {
        const found = await look();
        if (enough(found) || signal.aborted || this.#stopping || performance.now() >= end) return found;
        await woken;
      } finally {
        clearTimeout(timer);
        signal.removeEventListener('abort', wake);
        wakers.delete(wake);
        if (wakers.size === 0) this.#waiting.delete(tenantId);
      }
    }
  }
}
