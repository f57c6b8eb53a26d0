import { setTimeout as delay } from 'node:timers/promises';

/** Resolves after `ms` milliseconds, or as soon as `signal` is aborted. Never rejects. */
export async function pause(ms: number, signal: AbortSignal): Promise<void> {
  // the only error is the abort, which ends the pause just as its time does
  await delay(ms, undefined, { signal }).catch(() => undefined);
}

/** Resolves once the event loop has handled everything else: long work proceeds in steps. */
export function nextTurn(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}

/**
 * Wakes a loop that looks for work. The loop calls `clear` before it looks and `pause` after it, so that a wake in between is not
 * lost: the pause then ends immediately.
 */
export class Wake {
  #called = new AbortController();

  call(): void {
    // each abort creates an error with its stack, even one that changes nothing
    if (!this.#called.signal.aborted) this.#called.abort();
  }

  clear(): void {
    if (this.#called.signal.aborted) this.#called = new AbortController();
  }

  /** Resolves after `ms` milliseconds, on a call since the last `clear`, or when `signal` is aborted. Never rejects. */
  async pause(ms: number, signal: AbortSignal): Promise<void> {
    await pause(ms, AbortSignal.any([this.#called.signal, signal]));
  }
}
