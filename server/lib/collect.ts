import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

/**
 * Loading a program leaves far more garbage than it keeps, and Node keeps the room: this gives it back. It takes some tens
 * of milliseconds in which nothing else runs, so it is for the end of a start.
 */
export function collectStart(): void {
  collector()();
}

/**
 * Gives back what load took once little is asked of the process. V8 does that by itself only where there are 10 MB more of old
 * objects than the last time it did: the room for young ones, up to 192 MB, would stay with most processes that were busy.
 *
 * It looks every `lookMs`, and collects when the process was quiet at two looks and holds much more than the least that it ever
 * held. That takes 0.1 or 0.2 s in which nothing else runs, once after each time of load; where it did not help, because other
 * threads give the room back and may be late, it is done again, three times at most.
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
      // it is in use
      least = held;
    }
    before = process.cpuUsage();
  }, lookMs).unref();
}

const MOST_TRIES = 3;
/** The share of a core: time alone would say that a process is busy which waits for a core on a busy machine. */
const QUIET = 0.1;
const MUCH_BYTES = 32 * 1024 * 1024;

/** Any other kind keeps the room that it empties. */
function collector(): () => void {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as (options: object) => void;
  return () => collect({ type: 'major', execution: 'sync', flavor: 'last-resort' });
}
