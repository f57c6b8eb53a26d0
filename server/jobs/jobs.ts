import { each } from '../lib/each.ts';
import type { Log } from '../lib/log.ts';
import { pause } from '../lib/pause.ts';

export interface Job {
  name: string;
  everySeconds: number;
  /** May run in several processes at once, and again after it was killed in the middle. */
  run(signal: AbortSignal): Promise<void>;
}

/** Every ten minutes has each of `parts`, one after the other, forget what ended long ago. */
export function forgetJob(name: string, parts: readonly { forget(signal: AbortSignal): Promise<void> }[]): Job {
  return { name, everySeconds: 600, run: (signal) => each(parts, signal, (part) => part.forget(signal)) };
}

/**
 * Runs each job over and over, never twice at once in this process. A job that fails is logged, told to `failed`, and runs
 * again.
 */
export function startJobs(
  jobs: readonly Job[],
  log: Log,
  failed: (name: string) => void = () => undefined,
): { stop(): Promise<void> } {
  const stopped = new AbortController();
  const loops = jobs.map(async (job) => {
    while (!stopped.signal.aborted) {
      try {
        await job.run(stopped.signal);
      } catch (err) {
        if (!stopped.signal.aborted) {
          log.error({ err, job: job.name }, 'a job failed');
          failed(job.name);
        }
      }
      await pause(job.everySeconds * 1000, stopped.signal);
    }
  });
  return {
    async stop() {
      stopped.abort();
      await Promise.all(loops);
    },
  };
}
