import type { Worker } from 'node:worker_threads';

/** The CPU time that a thread has used, in milliseconds; NaN if it does not answer within a second. */
export async function processorMs(worker: Worker): Promise<number> {
  const usage = worker.cpuUsage().catch(() => undefined);
  const silence = new Promise<void>((resolve) => setTimeout(resolve, 1_000).unref());
  const used = await Promise.race([usage, silence]);
  return used ? (used.user + used.system) / 1_000 : Number.NaN;
}
