import { once } from 'node:events';
import { Worker } from 'node:worker_threads';

export interface Killed {
  tenantId: string;
  /** The process that is killed, and its fence. */
  pid: number;
  fence: number;
  /** A process that lives, a key for it, and an event that is sent to it at the same moment. */
  url: string;
  key: string;
  event: object;
}

/** What was seen after a kill, in milliseconds since. */
export interface TakeOver {
  /** Redis no longer has the killed process. */
  gone: number;
  /** Another process has the fence. */
  taken: number;
  /** Its first records are committed. */
  written: number;
  /** The event was acknowledged. */
  acknowledged: number;
}

/**
 * Kills owners and sees how another process takes over. From a thread of its own: hundreds of requests under way keep the thread
 * of a test busy for longer than what is to be measured takes.
 */
export class TakeOvers {
  readonly #worker: Worker;

  private constructor(worker: Worker) {
    this.#worker = worker;
  }

  static async open(databaseUrl: string, redisUrl: string): Promise<TakeOvers> {
    const worker = new Worker(new URL('./take-over-worker.ts', import.meta.url), {
      workerData: { databaseUrl, redisUrl },
      execArgv: [],
    });
    await once(worker, 'message');
    return new TakeOvers(worker);
  }

  /** Kills the owner of a tenant with SIGKILL. Resolves once another process has written, and acknowledged the event. */
  async kill(killed: Killed): Promise<TakeOver> {
    this.#worker.postMessage(killed);
    const [seen] = (await once(this.#worker, 'message')) as [TakeOver | Error];
    if (seen instanceof Error) throw seen;
    return seen;
  }

  async close(): Promise<void> {
    await this.#worker.terminate();
  }
}
