/** Callers that wait for something of a tenant to change: long polls. */
export class Waiters {
  readonly #waiting = new Map<string, Set<() => void>>();
  #stopping = false;

  /** Has everyone look again who waits for this tenant; `*` for all. */
  wake(tenantId: string): void {
    for (const [tenant, wakers] of this.#waiting) {
      if (tenantId === '*' || tenantId === tenant) for (const wake of wakers) wake();
    }
  }

  /** How many wait. */
  get waiting(): number {
    return [...this.#waiting.values()].reduce((sum, wakers) => sum + wakers.size, 0);
  }

  /** Ends all waiting, now and in the future, because the process is stopping. */
  stop(): void {
    this.#stopping = true;
    this.wake('*');
  }

  /**
   * Resolves to what `look` finds as soon as that is `enough`, and to what it finds last after `seconds`, when `signal`
   * aborts or when the process stops. No change is missed between a look and the wait after it.
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
