import { Worker } from 'node:worker_threads';
import type { ActionRequest, Diagnostic } from '../../domain/policy.ts';
import type { Verdict } from '../evaluation/evaluate.ts';
import type { TextDiff } from '../language/compare.ts';
import { type Compilation, ENGINE_FAILED, failed } from '../language/compile.ts';
import { LIMITS } from '../language/scan.ts';

export type AuthorJob =
  | { kind: 'compile'; policyId: string; text: string; schema: string }
  | { kind: 'format'; text: string }
  | {
      kind: 'try';
      policyId: string;
      text: string;
      schema: string;
      /** The live texts that it is tried with. */
      beside: readonly { policyId: string; version: number; text: string }[];
      actionEntities: Record<string, string[]>;
      request: ActionRequest;
    }
  | { kind: 'diff'; policyId: string; from: { name: string; text: string }; to: { name: string; text: string } };
export interface Formatted {
  /** Present when there are no errors. */
  formatted?: string;
  errors: Diagnostic[];
}
/** What a text would decide. */
export interface Trial {
  errors: Diagnostic[];
  /** Absent when the text has errors. */
  verdict?: Verdict;
  /** Every rule that was hit, sorted by id; `line` for those of the tried text. */
  hits: { rule_id: string; policy_id: string; effect: 'permit' | 'forbid'; guardrail: boolean; line?: number }[];
  /** Why the request could not be evaluated. */
  detail?: string;
}
export type AuthorResult = Compilation | Formatted | Trial | TextDiff;

/** Nothing was found out about the text: there was no room or no time for it. It may be asked again. */
export class AuthorBusy extends Error {
  override readonly name = 'AuthorBusy';
}

interface Waiting {
  job: AuthorJob;
  settle(result: AuthorResult): void;
  fail(error: Error): void;
}

/** Loading the engine takes about 0.1 s; a machine that is busy may need much longer. */
const START_MS = 20_000;
/** A busy machine may take so many times the limit before a text is given up that has not used up its time. */
const PATIENCE = 10;
/** Texts that wait, of one tenant and of all. */
const MOST_WAITING = { tenant: 20, all: 200 } as const;

/**
 * The language for texts that somebody typed: on an own engine, in an own thread, with a kill timer, so that no text
 * can slow down or end the decisions. One text at a time: tenants take turns, and those of one tenant go in the order
 * of the calls. The limit is of the thread's own processor time: that the machine is busy is not the fault of a text.
 *
 * A text that hangs or ends the thread is answered with a diagnostic; the next one gets a new thread. The promises
 * reject with AuthorBusy when too many texts wait or the thread does not get to work, and otherwise only when the thread
 * cannot be started at all, after `close`, or when two texts cannot be compared.
 */
export class AuthorLanguage {
  readonly #limitMs: number;
  readonly #entry: URL;
  /** By tenant, whose turn is next first. */
  readonly #queues = new Map<string, Waiting[]>();
  #waiting = 0;
  #worker: Worker | undefined;
  #ready = false;
  #current: Waiting | undefined;
  #timer: NodeJS.Timeout | undefined;
  #closed = false;

  constructor(options: { limitMs?: number; entry?: URL } = {}) {
    this.#limitMs = options.limitMs ?? 2_000;
    this.#entry = options.entry ?? new URL('./author-worker.ts', import.meta.url);
  }

  compile(tenantId: string, policyId: string, text: string, schema: string): Promise<Compilation> {
    return this.#submit(tenantId, { kind: 'compile', policyId, text, schema }) as Promise<Compilation>;
  }

  format(tenantId: string, text: string): Promise<Formatted> {
    return this.#submit(tenantId, { kind: 'format', text }) as Promise<Formatted>;
  }

  /** What the text would decide on a request, together with the statements beside it. Counters count as empty. */
  tryOut(tenantId: string, job: Omit<Extract<AuthorJob, { kind: 'try' }>, 'kind'>): Promise<Trial> {
    return this.#submit(tenantId, { kind: 'try', ...job }) as Promise<Trial>;
  }

  /** What changed between two texts that were compiled before. */
  diff(tenantId: string, job: Omit<Extract<AuthorJob, { kind: 'diff' }>, 'kind'>): Promise<TextDiff> {
    return this.#submit(tenantId, { kind: 'diff', ...job }) as Promise<TextDiff>;
  }

  /** Ends the thread. Calls that have not been answered reject. */
  async close(): Promise<void> {
    this.#closed = true;
    const ended = new Error('the policy language was closed');
    const queued = [...this.#queues.values()].flat();
    this.#queues.clear();
    for (const waiting of [this.#current, ...queued]) waiting?.fail(ended);
    this.#current = undefined;
    await this.#drop();
  }

  #submit(tenantId: string, asked: AuthorJob): Promise<AuthorResult> {
    if (this.#closed) return Promise.reject(new Error('the policy language was closed'));
    const queue = this.#queues.get(tenantId) ?? [];
    if (queue.length >= MOST_WAITING.tenant || this.#waiting >= MOST_WAITING.all) {
      return Promise.reject(new AuthorBusy('too many policy texts wait to be checked'));
    }
    // A text over the limit is refused by the scan anyway; its rest need not be copied to the thread.
    const job = asked.kind === 'diff' ? asked : { ...asked, text: asked.text.slice(0, LIMITS.bytes + 2) };
    return new Promise((settle, fail) => {
      queue.push({ job, settle, fail });
      this.#queues.set(tenantId, queue);
      this.#waiting++;
      this.#next();
    });
  }

  /** The first of the tenant whose turn it is; one that has more waits behind the other tenants. */
  #take(): Waiting | undefined {
    const [next] = this.#queues;
    if (!next) return undefined;
    const [tenantId, queue] = next;
    const first = queue.shift();
    this.#waiting--;
    this.#queues.delete(tenantId);
    if (queue.length > 0) this.#queues.set(tenantId, queue);
    return first;
  }

  #next(): void {
    if (this.#current) return;
    this.#current = this.#take();
    if (!this.#current) return;
    if (!this.#worker) this.#start();
    this.#worker?.ref();
    if (this.#ready) this.#send();
  }

  #start(): void {
    // The parent's own flags (a test runner's loader among them) are not for this thread.
    const worker = new Worker(this.#entry, { execArgv: [], resourceLimits: { maxOldGenerationSizeMb: 256 } });
    this.#worker = worker;
    this.#arm(START_MS, () => this.#lost(worker, new Error('the thread of the policy language did not start')));
    worker.on('message', (message: 'ready' | AuthorResult) => {
      if (worker !== this.#worker) return;
      if (message === 'ready') {
        this.#ready = true;
        this.#send();
      } else {
        this.#finish(message);
      }
    });
    worker.on('error', (error) => this.#lost(worker, error));
    worker.on('exit', (code) => this.#lost(worker, new Error(`the thread of the policy language ended with ${code}`)));
  }

  #send(): void {
    const [worker, current] = [this.#worker, this.#current];
    if (!worker || !current) return;
    const before = processorMs(worker);
    const began = performance.now();
    worker.postMessage(current.job);
    const look = async () => {
      const [from, to] = await Promise.all([before, processorMs(worker)]);
      if (this.#current !== current || this.#worker !== worker) return;
      const left = this.#limitMs - (to - from);
      if (left <= 0) return this.#giveUp(`the policy took longer than ${this.#limitMs / 1_000} s to check`);
      if (performance.now() - began < PATIENCE * this.#limitMs) return this.#arm(Math.max(left || 0, 20), look);
      // the machine did not let it work, or the thread does not tell: nothing is known of the text
      this.#abandon(new AuthorBusy('the policy text could not be checked in time'));
    };
    this.#arm(this.#limitMs, look);
  }

  #finish(result: AuthorResult): void {
    clearTimeout(this.#timer);
    const { settle } = this.#current ?? {};
    this.#current = undefined;
    this.#worker?.unref();
    settle?.(result);
    this.#next();
  }

  /** Answers the current text with a diagnostic; the thread that could not cope with it is not used again. */
  #giveUp(message: string): void {
    void this.#drop();
    const place = { line: 1, column: 1, message };
    const kind = this.#current?.job.kind;
    if (kind === 'diff') this.#abandon(new Error(message));
    else if (kind === 'try') this.#finish({ errors: [place], hits: [] });
    else this.#finish(kind === 'format' ? { errors: [place] } : failed(place));
  }

  #lost(worker: Worker, error: Error): void {
    if (worker !== this.#worker) return;
    if (this.#ready) {
      this.#giveUp(ENGINE_FAILED);
      return;
    }
    this.#abandon(error);
  }

  /** Fails the current text, whatever it says, and goes on with a new thread. */
  #abandon(error: Error): void {
    void this.#drop();
    this.#current?.fail(error);
    this.#current = undefined;
    this.#next();
  }

  #arm(ms: number, late: () => unknown): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(late, ms);
  }

  #drop(): Promise<unknown> {
    clearTimeout(this.#timer);
    const worker = this.#worker;
    this.#worker = undefined;
    this.#ready = false;
    return worker ? worker.terminate() : Promise.resolve();
  }
}

/** The processor time that a thread has used, in milliseconds; NaN of one that does not tell. */
async function processorMs(worker: Worker): Promise<number> {
  const usage = worker.cpuUsage().catch(() => undefined);
  const silence = new Promise<void>((resolve) => setTimeout(resolve, 1_000).unref());
  const told = await Promise.race([usage, silence]);
  return told ? (told.user + told.system) / 1_000 : Number.NaN;
}
