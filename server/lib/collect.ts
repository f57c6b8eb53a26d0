import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

/**
 * Loading a program leaves far more garbage than it keeps, and Node holds on to the memory: this releases it. It blocks
 * everything else for some tens of milliseconds, so it is meant for the end of startup.
 */
export function collectStart(): void {
  collector()();
}

/**
 * Releases the memory that load took once the process is less busy. V8 does that on its own only if there are 10 MB more of old
 * objects than the last time it did: the space for young objects, up to 192 MB, would stay with most processes that were busy.
 *
 * It checks every `lookMs`, and collects if the process was quiet at two checks and holds much more than the least that it ever
 * held. That blocks everything else for 0.1 or 0.2 s, once after each period of load; if it did not help, because other threads
 * release their memory and may be late, it is repeated, three times at most.
 */
export function collectWhenQuiet(lookMs = 3_000): void {
  const collect = collector();
  let quietLooks = 0;
  let tries = 0;
  let least = process.memoryUsage.rss();
  let before = process.cpuUsage();
  setInterval(() => {
    const { user, system } = process.cpuUsage(before);
    quietLooks = user + system < QUIET * lookMs * 1000 ? quietLooks + 1 : 0;
    const held = process.memoryUsage.rss();
    const much = held > least + MUCH_BYTES;
    if (held < least) least = held;
    if (quietLooks === 0 || !much) tries = 0;
    else if (quietLooks >= 2 && tries < MOST_TRIES) {
      tries++;
      collect();
    } else if (tries === MOST_TRIES) {
      // the memory is in use
      least = held;
    }
    before = process.cpuUsage();
  }, lookMs).unref();
}

const MOST_TRIES = 3;
/** A share of one core. CPU time, because by elapsed time a process that waits for a core on a busy machine would seem busy. */
const QUIET = 0.1;
const MUCH_BYTES = 32 * 1024 * 1024;

/** Any other kind of collection keeps the memory that it empties. */
function collector(): () => void {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as (options: object) => void;
  return () => collect({ type: 'major', execution: 'sync', flavor: 'last-resort' });
}
