import { Worker } from 'node:worker_threads';
import { pause } from '../lib/pause.ts';
import type { Outcome } from '../policy/simulation/outcome.ts';
import type { SimulationJob, SimulationMessage } from './simulation-worker.ts';

/** The simulation cannot succeed, however often it is tried. The message is for people. */
export class SimulationFailed extends Error {
  override readonly name = 'SimulationFailed';
}

export interface RunLimits {
  /** Processor time of the thread. */
  processorMs: number;
  /** In all, also where the thread gets little of the processor. */
  wallMs: number;
  /** Of the thread's heap. */
  heapMb: number;
}
export const RUN_LIMITS: RunLimits = { processorMs: 180_000, wallMs: 1_800_000, heapMb: 224 };

const LOOK_MS = 250;

/**
 * Runs a simulation in a thread of its own, with its own engine and its own connection: what a draft does to them harms
 * nothing else. Rejects with SimulationFailed when it takes too long or kills its thread, with the signal's reason when
 * it aborts, and else with the fault of the database.
 */
export async function runSimulation(
  job: Omit<SimulationJob, 'busy'>,
  options: {
    signal: AbortSignal;
    onProgress: (progress: { decisions: number; seq: number }) => void;
    /** Whether this process writes decisions now. */
    busy: () => boolean;
    limits?: RunLimits;
  },
): Promise<{ outcome: Outcome; decisions: number; peakBytes: number }> {
  const { signal, onProgress, busy, limits = RUN_LIMITS } = options;
  signal.throwIfAborted();
  const flag = new Int32Array(new SharedArrayBuffer(4));
  const worker = new Worker(new URL('./simulation-worker.ts', import.meta.url), {
    workerData: { ...job, busy: flag } satisfies SimulationJob,
    // without the parent's flags, such as a test runner's loader
    execArgv: [],
    resourceLimits: { maxOldGenerationSizeMb: limits.heapMb },
  });
  const began = performance.now();
  const done = Promise.withResolvers<{ outcome: Outcome; decisions: number; peakBytes: number }>();
  const abort = () => done.reject(signal.reason);
  signal.addEventListener('abort', abort, { once: true });
  worker.on('message', (message: SimulationMessage) => {
    if ('outcome' in message) done.resolve(message);
    else onProgress(message);
  });
  worker.on('error', (error: Error & { code?: string }) => {
    const full = error.code === 'ERR_WORKER_OUT_OF_MEMORY';
    done.reject(full ? new SimulationFailed(`it needs more than ${limits.heapMb} MB of memory`) : error);
  });
  worker.on('exit', (code) => done.reject(new Error(`the thread of the simulation ended with ${code}`)));
  let answered = began;
  const look = async () => {
    Atomics.store(flag, 0, busy() ? 1 : 0);
    const usage = await Promise.race([worker.cpuUsage().catch(() => undefined), pause(LOOK_MS, signal)]);
    const now = performance.now();
    if (usage) answered = now;
    const used = usage ? (usage.user + usage.system) / 1000 : 0;
    if (used > limits.processorMs || now - answered > limits.processorMs) {
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
    signal.removeEventListener('abort', abort);
    await worker.terminate();
  }
}
