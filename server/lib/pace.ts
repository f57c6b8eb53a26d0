import os from 'node:os';

/** How threads with long work yield to those that serve requests. */

/** Decides when a worker rests: for how long, in milliseconds, after this much work. */
export interface Rests {
  after(ms: number): number | undefined;
}

/** For the thread, not the process: on Linux each thread has its own. */
const NICE = 10;
/** How long a thread works before it checks whether others need the processor, in milliseconds. */
const SLICE_MS = 2;
const LOOK_MS = 100;

/** For other threads: a number that is not 0 while `busy()`, until `stop` is called. */
export function shareBusy(busy: () => boolean): { readonly flag: Int32Array; stop(): void } {
  const flag = new Int32Array(new SharedArrayBuffer(4));
  const look = () => Atomics.store(flag, 0, busy() ? 1 : 0);
  look();
  const timer = setInterval(look, LOOK_MS);
  return { flag, stop: () => clearInterval(timer) };
}

/** Lowers the priority of this thread, for good. */
export function lowerPriority(): void {
  try {
    os.setPriority(NICE);
  } catch {
    // if that is not permitted, only the rests make room
  }
}

/**
 * While the flag of `shareBusy` is set, `threads` together work for a quarter of the time, in slices of 2 ms. Nothing is
 * read from a connection meanwhile, so that the database rests too.
 */
export function restsOf(busy: Int32Array, threads = 1): Rests {
  let worked = 0;
  return {
    after(ms) {
      worked += ms;
      if (worked < SLICE_MS) return undefined;
      const rest = Atomics.load(busy, 0) === 0 ? undefined : (4 * threads - 1) * worked;
      worked = 0;
      return rest;
    },
  };
}
