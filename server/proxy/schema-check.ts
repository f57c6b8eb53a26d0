import { Worker } from 'node:worker_threads';

/**
 * To compile a schema and to check arguments by it takes milliseconds; one that was made to take longer is given up. Wall
 * time, and the machine may be busy.
 */
const MOST_MS = 2_000;

/** What the worker is asked: does the value fit the schema? */
export interface SchemaQuestion {
  id: number;
  schema: unknown;
  value: unknown;
}
export interface SchemaAnswer {
  id: number;
  fits: boolean;
}

/**
 * Checks values by schemas that strangers wrote, in a thread with a limit of time and memory: a regular expression may take
 * for ever. Nothing is fetched, whatever a schema refers to.
 */
export class SchemaCheck {
  #worker: Worker | undefined;
  #asked = 0;
  readonly #open = new Map<number, (fits: boolean) => void>();

  /** False also where the schema cannot be understood, refers to another document, or takes too long. */
  fits(schema: unknown, value: unknown): Promise<boolean> {
    const worker = this.#worker ?? this.#start();
    const id = ++this.#asked;
    return new Promise((resolve) => {
      const timer = setTimeout(() => this.#end(worker), MOST_MS);
      this.#open.set(id, (fits) => {
        clearTimeout(timer);
        this.#open.delete(id);
        resolve(fits);
      });
      worker.postMessage({ id, schema, value } satisfies SchemaQuestion);
    });
  }

  async close(): Promise<void> {
    await this.#end(this.#worker);
  }

  #start(): Worker {
    // in the package this is built too
    const file = import.meta.url.endsWith('.ts') ? './schema-worker.ts' : './schema-worker.js';
    const worker = new Worker(new URL(file, import.meta.url), {
      execArgv: [],
      // nothing of the process is a schema's business
      env: {},
      stdin: false,
      resourceLimits: { maxOldGenerationSizeMb: 64 },
    });
    worker.unref();
    worker.on('message', ({ id, fits }: SchemaAnswer) => this.#open.get(id)?.(fits));
    worker.on('error', () => void this.#end(worker));
    worker.on('exit', () => void this.#end(worker));
    this.#worker = worker;
    return worker;
  }

  /** All that waits for it gets no: which question took the time cannot be told. */
  async #end(worker: Worker | undefined): Promise<void> {
    if (!worker || this.#worker !== worker) return;
    this.#worker = undefined;
    const waiting = [...this.#open.values()];
    for (const answer of waiting) answer(false);
    await worker.terminate();
  }
}
