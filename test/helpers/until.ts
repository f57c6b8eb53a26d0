import { setTimeout as delay } from 'node:timers/promises';

/** Far longer than anything that is waited for takes on a busy machine: only what hangs exceeds it. */
const LIMIT_MS = 20_000;

/**
 * Asks again and again until the answer is neither undefined, null nor false, and resolves to it. After `limitMs` it
 * rejects and names `what`.
 */
export async function until<T>(
  ask: () => T | Promise<T>,
  what: string | (() => string),
  options: { limitMs?: number; everyMs?: number } = {},
): Promise<Exclude<T, undefined | null | false>> {
  const { limitMs = LIMIT_MS, everyMs = 10 } = options;
  const end = performance.now() + limitMs;
  for (;;) {
    const answer = await ask();
    if (answer !== undefined && answer !== null && answer !== false) {
      return answer as Exclude<T, undefined | null | false>;
    }
    if (performance.now() > end) {
      throw new Error(`after ${limitMs} ms still not: ${typeof what === 'string' ? what : what()}`);
    }
    await delay(everyMs);
  }
}
