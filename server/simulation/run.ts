import { availableParallelism } from 'node:os';
import { Worker } from 'node:worker_threads';
import { shareBusy } from '../lib/pace.ts';
import { pause } from '../lib/pause.ts';
import type { Outcome } from '../policy/simulation/outcome.ts';
import { outcomeOf, type Part } from '../policy/simulation/parts.ts';
import type { SimulationJob, SimulationMessage } from './simulation-worker.ts';

/** The simulation cannot succeed, no matter how often it is retried. The message is for people. */
export class SimulationFailed extends Error {
  override readonly name = 'SimulationFailed';
}

export interface RunLimits {
  /** CPU time of the threads. */
  processorMs: number;
  /** Total elapsed time, even if the threads get little CPU. */
  wallMs: number;
  /** The heaps of all threads combined. */
  heapMb: number;
}
export const RUN_LIMITS: RunLimits = { processorMs: 180_000, wallMs: 1_800_000, heapMb: 224 };

const LOOK_MS = 250;

/** Ranges with fewer records are not worth a second thread. */
const MANY_RECORDS = 50_000;
const MOST_THREADS = 2;

interface Simulated {
  outcome: Outcome;
  decisions: number;
  /** Size of the threads' heaps. */
  peakBytes: number;
}

/**
 * Runs a simulation in its own threads, with their own engines and connections: whatever a draft does to them harms
 * nothing else. A long range is shared between two threads, unless decisions are counted in chronological order.
 *
 * Rejects with SimulationFailed if it takes too long or kills a thread, with the signal's reason if it is aborted, and
 * otherwise with the database's error.
 */
export async function runSimulation(
  job: Omit<SimulationJob, 'busy'>,
  options: {
    signal: AbortSignal;
    /** Receives the number of records examined so far. */
    onProgress: (records: number) => void;
    /** Whether this process is writing decisions now. */
    busy: () => boolean;
    limits?: RunLimits;
  },
): Promise<Simulated> {
  const { signal, onProgress, busy, limits = RUN_LIMITS } = options;
  signal.throwIfAborted();
  const shared = shareBusy(busy);
  const threads: Worker[] = [];
  const parts: { part: Part; peakBytes: number }[] = [];
  const done = Promise.withResolvers<Simulated>();
  let shares = 1;
  let decisions = 0;
  let records = 0;
  /**
   * A thread with less heap collects garbage sooner: only a simulation that counts calls, and keeps them until the end,
   * needs all of it.
   */
  const start = (number: number, heapMb: number) => {
    const worker = new Worker(new URL('./simulation-worker.ts', import.meta.url), {
      workerData: { ...job, busy: shared.flag } satisfies SimulationJob,
      // without the parent's flags, such as a test runner's loader
      execArgv: [],
      resourceLimits: { maxOldGenerationSizeMb: heapMb, maxYoungGenerationSizeMb: 16 },
    });
    threads[number] = worker;
    worker.on('message', (message: SimulationMessage) => {
      if ('counts' in message) {
        if (message.counts && heapMb < limits.heapMb) {
          start(number, limits.heapMb);
          void worker.terminate();
          return;
        }
        if (number === 0) {
          const many = job.to - job.from > MANY_RECORDS && !message.counts;
          shares = many ? Math.min(MOST_THREADS, availableParallelism()) : 1;
          for (let n = 1; n < shares; n++) start(n, heapMb);
        }
        worker.postMessage({ of: shares, number });
      } else if ('part' in message) {
        parts[number] = message;
        if (Object.keys(parts).length < shares) return;
        const [first, ...others] = parts.map(({ part }) => part) as [Part, ...Part[]];
        const peakBytes = parts.reduce((sum, one) => sum + one.peakBytes, 0);
        done.resolve({ outcome: outcomeOf([first, ...others]), decisions, peakBytes });
      } else {
        decisions += message.decisions;
        records += message.records;
        onProgress(records);
      }
    });
    worker.on('error', (error: Error & { code?: string }) => {
      const full = error.code === 'ERR_WORKER_OUT_OF_MEMORY';
      done.reject(full ? new SimulationFailed(`it needs more than ${limits.heapMb} MB of memory`) : error);
    });
    worker.on('exit', (code) => {
      if (threads[number] === worker && !parts[number])
        done.reject(new Error(`a thread of the simulation ended with ${code}`));
    });
  };
  const began = performance.now();
  const abort = () => done.reject(signal.reason);
  signal.addEventListener('abort', abort, { once: true });
  start(0, limits.heapMb / MOST_THREADS);
  let answered = began;
  /** CPU time of each thread, in milliseconds. */
  const used: number[] = [];
  const look = async () => {
    const asked = threads.map(async (worker, n) => {
      const { user, system } = await worker.cpuUsage();
      used[n] = (user + system) / 1000;
    });
    const all = Promise.all(asked).then(
      () => true,
      () => true,
    );
    if (await Promise.race([all, pause(LOOK_MS, signal)])) answered = performance.now();
    const now = performance.now();
    if (used.reduce((sum, ms) => sum + ms, 0) > limits.processorMs || now - answered > limits.processorMs) {
      done.reject(new SimulationFailed(`it took more than ${limits.processorMs / 1000} s of processor time`));
    } else if (now - began > limits.wallMs) {
      done.reject(new SimulationFailed(`it took more than ${limits.wallMs / 60_000} minutes`));
    }
  };
  const timer = setInterval(() => void look(), LOOK_MS);
  try {
    return await done.promise;
  } finally {
    clearInterval(timer);
    shared.stop();
    signal.removeEventListener('abort', abort);
    await Promise.all(threads.map((worker) => worker.terminate()));
  }
}
