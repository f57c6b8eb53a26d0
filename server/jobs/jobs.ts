import { lookingFor, type Part } from '../../db/citus.ts';
import { each } from '../lib/each.ts';
import type { Log } from '../lib/log.ts';
import { pause } from '../lib/pause.ts';

export interface Job {
  name: string;
  everySeconds: number;
  /** It does not search by tenant: where others run separately for the tenants of a node, it runs once for all. */
  undivided?: boolean;
  /** May run in several processes at once, and again after being killed midway. */
  run(signal: AbortSignal): Promise<void>;
}

/** Every ten minutes, makes each of `parts` in turn forget what ended long ago. */
export function forgetJob(name: string, parts: readonly { forget(signal: AbortSignal): Promise<void> }[]): Job {
  return { name, everySeconds: 600, run: (signal) => each(parts, signal, (part) => part.forget(signal)) };
}

const PARTS: readonly Part[] = ['here', 'elsewhere'];

/**
 * Runs each job repeatedly, never twice at once in this process. A job that fails is logged, reported to `failed`, and runs
 * again. `beside` a Citus node, each runs for the node's tenants and, separately, for all others: so waiting for the others'
 * servers does not hold up the node's tenants.
 */
export function startJobs(
  jobs: readonly Job[],
  log: Log,
  { failed = () => undefined, beside = false }: { failed?: (name: string) => void; beside?: boolean } = {},
): { stop(): Promise<void> } {
  const stopped = new AbortController();
  const loop = async (job: Job, part: Part | undefined) => {
    const run = () => job.run(stopped.signal);
    while (!stopped.signal.aborted) {
      try {
        await (part ? lookingFor(part, run) : run());
      } catch (err) {
        if (!stopped.signal.aborted) {
          log.error({ err, job: job.name, part }, 'a job failed');
          failed(job.name);
        }
      }
      await pause(job.everySeconds * 1000, stopped.signal);
    }
  };
  const loops = jobs.flatMap((job) => (beside && !job.undivided ? PARTS : [undefined]).map((part) => loop(job, part)));
  return {
    async stop() {
      stopped.abort();
      await Promise.all(loops);
    },
  };
}
