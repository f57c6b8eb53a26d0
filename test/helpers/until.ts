import { setTimeout as delay } from 'node:timers/promises';

/** Far longer than any expected wait on a busy machine: only a hang exceeds it. */
const LIMIT_MS = 60_000;

/** Polls often at first, then less and less: each poll is often a query or a request, and a long wait repeats it. */
const [FIRST_MS, MOST_MS, GROWTH] = [10, 50, 1.3];

/**
 * Polls until the result is neither undefined, null nor false, and resolves to it. After `limitMs` it rejects and names `what`.
 * With `everyMs` it polls at that fixed interval, for conditions that do not last.
 */
export async function until<T>(
  ask: () => T | Promise<T>,
  what: string | (() => string),
  options: { limitMs?: number; everyMs?: number } = {},
): Promise<Exclude<T, undefined | null | false>> {
  const { limitMs = LIMIT_MS, everyMs } = options;
  let restMs = everyMs ?? FIRST_MS;
  const end = performance.now() + limitMs;
  for (;;) {
    const answer = await ask();
    if (answer !== undefined && answer !== null && answer !== false) {
      return answer as Exclude<T, undefined | null | false>;
    }
    if (performance.now() > end) {
      throw new Error(`after ${limitMs} ms still not: ${typeof what === 'string' ? what : what()}`);
    }
    await delay(restMs);
    if (everyMs === undefined) restMs = Math.min(restMs * GROWTH, MOST_MS);
  }
}
