let factor = 1;

/**
 * How many times its usual limits this process waits for its database, Redis and the other processes before it treats them as
 * gone: the setting SVC_PATIENCE. For the whole process, from the next wait on.
 */
export function setPatience(times: number): void {
  factor = times;
}

/**
 * A usual limit (of milliseconds, seconds or beats), as long as this process was set to wait.
 *
 * INVARIANT: never used for what other processes rely on, such as how long a cache may be used without hearing of changes:
 * processes with different settings must agree about that.
 */
export const patient = (ms: number): number => ms * factor;
