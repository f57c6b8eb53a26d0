import { setTimeout as delay } from 'node:timers/promises';

/** Resolves after `ms` milliseconds, or as soon as `signal` is aborted. Never rejects. */
export async function pause(ms: number, signal: AbortSignal): Promise<void> {
  // the only error is the abort, which ends the pause like its time does
  await delay(ms, undefined, { signal }).catch(() => undefined);
}
