import { lookingFor, type Part } from '../../db/citus.ts';
import { each } from '../lib/each.ts';
import type { Log } from '../lib/log.ts';
import { pause } from '../lib/pause.ts';

export interface Job {
  name: string;
  everySeconds: number;
  /** It asks for nothing by tenant: where others run apart for the tenants of a node, it runs for all. */
  undivided?: boolean;
  /** May run in several processes at once, and again after it was killed in the middle. */
  run(signal: AbortSignal): Promise<void>;
}

/** Every ten minutes has each of `parts`, one after the other, forget what ended long ago. */
export function forgetJob(name: string, parts: readonly { forget(signal: AbortSignal): Promise<void> }[]): Job {
  return { name, everySeconds: 600, run: (signal) => each(parts, signal, (part) => part.forget(signal)) };
}

const PARTS: readonly Part[] = ['here', 'elsewhere'];

/**
 * Runs each job over and over, never twice at once in this process. A job that fails is logged, told to `failed`, and runs
 * again. `beside` a node of Citus, each runs for the tenants of that and, apart from it, for all others: so nothing that these
 * wait for holds up those.
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
