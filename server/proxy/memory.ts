import { getHeapSpaceStatistics, setFlagsFromString } from 'node:v8';

/** The space for young objects, of which V8 counts two halves. */
const YOUNG_BYTES = 16 * 1024 * 1024;

/**
 * Keeps V8 from taking memory for speed that a proxy does not gain. By itself it gives young objects 128 MB under load,
 * and lets garbage grow to several times what is in use, since the machine has room.
 *
 * - `least`: a desktop client has a process of `svc-proxy mcp` for each of its servers. Young objects keep the 1 MB that
 *   they begin with.
 * - `busy`: a proxy in front of many agents. Young objects get 16 MB once it has work, so that few of a request's outlive it
 *   there, and old ones twice what is in use: with half of that, collecting takes a tenth more of a request's time.
 *
 * In both a function of the policy engine is compiled a second time, for speed, only when it has run for long: with V8's
 * own budget of 13 million its parsers would be, for 25 MB and 0.15 s. To be called before that engine is loaded.
 */
export function boundMemory(kind: 'least' | 'busy'): void {
  setFlagsFromString('--wasm-tiering-budget=200000000');
  setFlagsFromString('--semi-space-growth-factor=1');
  if (kind === 'least') return;
  setFlagsFromString('--heap-growing-percent=100');
  // an idle process gives the space back, and gets it again when it has work
  let { user: before } = process.cpuUsage();
  let fills = 0;
  let since = performance.now();
  setInterval(() => {
    const size = youngBytes();
    const busy = process.cpuUsage().user - before > BUSY * LOOK_MS * 1000;
    if (performance.now() - since > PERIOD_MS) {
      fills = 0;
      since = performance.now();
    }
    if (busy && size < YOUNG_BYTES && fills < MOST_FILLS) {
      fills++;
      doubleYoung();
    }
    // what filling it took is no work
    before = process.cpuUsage().user;
  }, LOOK_MS).unref();
}

/** In the worst case a burst of requests has to do with little for four times as long. */
const LOOK_MS = 250;
/** The share of a core. */
const BUSY = 0.2;
/** Four make 16 MB of 1 MB. Where the machine or the container has little memory, V8 allows less, and filling it is in vain. */
const MOST_FILLS = 12;
const PERIOD_MS = 60_000;

function youngBytes(): number {
  return getHeapSpaceStatistics().find(({ space_name }) => space_name === 'new_space')?.space_size ?? 0;
}

/**
 * The size can be set on the command line alone: here the space is filled until V8 has doubled it, some milliseconds long.
 * Only what the space takes in one collection is kept, or most of it would move to the old objects.
 */
function doubleYoung(): void {
  const size = youngBytes();
  setFlagsFromString('--semi-space-growth-factor=2');
  const kept: unknown[] = new Array(Math.ceil(size / 8 / FILL_BYTES));
  for (let round = 0; youngBytes() === size && round < 2_000; round++) {
    kept[round % kept.length] = Array.from({ length: 1_000 }, (_, n) => [n]);
  }
  setFlagsFromString('--semi-space-growth-factor=1');
}
/** Of one entry of what the space is filled with. */
const FILL_BYTES = 40_000;
