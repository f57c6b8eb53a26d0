import { once } from 'node:events';
import { Worker } from 'node:worker_threads';

export interface Killed {
  tenantId: string;
  /** The process that is killed, and its fence. */
  pid: number;
  fence: number;
  /** A surviving process, a key for it, and an event that is sent to it at the same moment. */
  url: string;
  key: string;
  event: object;
}

/** What was observed after a kill, in milliseconds since then. */
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
 * Kills owners and observes how another process takes over. Runs in its own thread: hundreds of requests in flight keep a test's
 * thread busy for longer than the interval to be measured.
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
