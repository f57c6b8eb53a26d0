import { getHeapSpaceStatistics, setFlagsFromString } from 'node:v8';

/** The space for young objects, of which V8 counts both halves. */
const YOUNG_BYTES = 16 * 1024 * 1024;

/**
 * Keeps V8 from using memory for speed that a proxy does not gain. On its own, it gives young objects 128 MB under load, and lets
 * garbage grow to several times what is in use, because the machine has room.
 *
 * - `least`: a desktop client has a process of `svc-proxy mcp` for each of its servers. Young objects keep their initial 1 MB.
 * - `busy`: a proxy in front of many agents. Young objects get 16 MB once it has work, so that few of a request's objects outlive
 *   that space, and old ones twice what is in use: with half of that, garbage collection takes a tenth more of a request's time.
 *
 * In both, a function of the policy engine is compiled a second time, for speed, only after it has run for long: with V8's own
 * budget of 13 million its parsers would be, at a cost of 25 MB and 0.15 s. To be called before that engine is loaded.
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
    // the time it took to fill the space does not count as work
    before = process.cpuUsage().user;
  }, LOOK_MS).unref();
}

/** In the worst case, a burst of requests has to make do with little space for four times as long. */
const LOOK_MS = 250;
/** As a share of one core. */
const BUSY = 0.2;
/** Four turn 1 MB into 16 MB. If the machine or the container has little memory, V8 allows less, and filling is in vain. */
const MOST_FILLS = 12;
const PERIOD_MS = 60_000;

function youngBytes(): number {
  return getHeapSpaceStatistics().find(({ space_name }) => space_name === 'new_space')?.space_size ?? 0;
}

/**
 * The size can only be set on the command line, so this fills the space until V8 has doubled it, which takes some milliseconds.
 * Only what the space can hold in one collection is kept; otherwise most of it would move to the old objects.
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
/** The size of one entry used to fill the space. */
const FILL_BYTES = 40_000;
