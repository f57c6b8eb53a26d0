import { Worker } from 'node:worker_threads';
import type { BundleList } from '../../domain/lists.ts';
import type { ActionRequest, Diagnostic } from '../../domain/policy.ts';
import type { BundleRegistry } from '../../domain/tools.ts';
import { patient } from '../../lib/patience.ts';
import { processorMs } from '../../lib/processor-time.ts';
import type { Verdict } from '../evaluation/evaluate.ts';
import type { TextDiff } from '../language/compare.ts';
import { type Compilation, ENGINE_FAILED, failed } from '../language/compile.ts';
import { LIMITS } from '../language/scan.ts';
import type { Explained, ExplainJob, unfitting } from './explain.ts';
import type { PastDecision, TestFromDecision } from './from-decision.ts';
import { MUTATION_LIMITS, type MutationRun, notMutated } from './mutants.ts';
import { notRun, type OthersRun, type SuiteRun } from './run-suite.ts';
import { SUITE_LIMITS } from './suite.ts';

/** The context in which a text is evaluated. */
export interface Surroundings {
  schema: string;
  /** The other live policies. */
  liveTexts: readonly { policyId: string; version: number; text: string }[];
  actionEntities: Record<string, string[]>;
  registry: BundleRegistry;
  /** The reference lists that these texts name. */
  lists: readonly BundleList[];
}
/** A policy with its tests, and the context to run them in. */
export interface SuiteJob extends Surroundings {
  policyId: string;
  text: string;
  tests: string;
}
/** Test suites of other live policies, to check a change to a policy. `liveTexts` are the live policies without it. */
export interface OthersJob extends Surroundings {
  policyId: string;
  /** The live text before the change; null if the policy was not live. */
  before: string | null;
  text: string;
  suites: readonly { policyId: string; tests: string }[];
}
export type AuthorJob =
  | {
      kind: 'compile';
      policyId: string;
      text: string;
      schema: string;
      /** The names of the tenant's reference lists; if absent, names are not checked. */
      lists?: readonly string[] | undefined;
    }
  | { kind: 'format'; text: string }
  | ({ kind: 'try'; policyId: string; text: string; request: ActionRequest; trace?: boolean } & Surroundings)
  | ({ kind: 'test' } & SuiteJob)
  | ({ kind: 'mutate' } & SuiteJob)
  | ({ kind: 'from-decision'; past: PastDecision } & SuiteJob)
  | ({ kind: 'explain' } & ExplainJob)
  | ({ kind: 'others' } & OthersJob)
  | { kind: 'read-suite'; tests: string }
  | { kind: 'diff'; policyId: string; from: { name: string; text: string }; to: { name: string; text: string } };
export interface Formatted {
  /** Present if there are no errors. */
  formatted?: string;
  errors: Diagnostic[];
}
/** The decision that a text would lead to. */
export interface Trial {
  errors: Diagnostic[];
  /** Absent if the text has errors. */
  verdict?: Verdict;
  /** Every rule that was hit, sorted by id; `line` for those of the tried text. */
  hits: { rule_id: string; policy_id: string; effect: 'permit' | 'forbid'; guardrail: boolean; line?: number }[];
  /** Why the request could not be evaluated. */
  detail?: string;
  /** If requested: what the request found, and the statements of the text that do not apply to it. */
  trace?: Trace;
}
export interface Trace extends Omit<Explained, 'rules'> {
  rules: (Explained['rules'][number] & {
    policy_id: string;
    effect: 'permit' | 'forbid' | 'guardrail';
    matched: boolean;
    decided: boolean;
    cedar: string;
    line?: number;
  })[];
  unfit: ReturnType<typeof unfitting>;
  /** What people configured for the agent, the tool and its server. */
  set: { agent_labels: readonly string[]; tool_labels: readonly string[]; server_trust: number | null };
}
export type AuthorResult =
  | Compilation
  | Formatted
  | Trial
  | TextDiff
  | SuiteRun
  | MutationRun
  | TestFromDecision
  | Explained
  | OthersRun
  | Pick<SuiteRun, 'errors'>;

/** The text was not checked because the queue is full or the thread got too little CPU time. Retry later. */
export class AuthorBusy extends Error {
  override readonly name = 'AuthorBusy';
}

interface Waiting {
  tenantId: string;
  job: AuthorJob;
  resolve(result: AuthorResult): void;
  reject(error: Error): void;
}

/** Loading the engine takes about 0.1 s, and much longer on a busy machine. */
const START_MS = 20_000;
/** How long a further thread is kept without a text. */
const KEPT_MS = 60_000;
/** On a busy machine a text may take this many times the limit in wall-clock time before it is abandoned. */
const WALL_TIME_FACTOR = 10;
/** Maximum number of queued texts of each kind, per tenant and in total. */
const MAX_WAITING = { tenant: 20, all: 200 } as const;
/** What may take seconds of a sound text, because it evaluates many requests: nothing else stands behind it. */
const LONG: ReadonlySet<AuthorJob['kind']> = new Set(['test', 'others', 'mutate', 'from-decision']);
/** The threads for texts of each kind. With a second one, a tenant with a slow text holds up nobody but itself. */
const THREADS = { short: 2, long: 1 } as const;

/**
 * Processes untrusted policy texts in threads of their own, each with its own engine and a time limit, so that no text can slow
 * down or break decisions. Tenants take turns, and each tenant's texts of a kind run in order, one at a time. The limit is on the
 * thread's CPU time, so a busy machine does not count against a text.
 *
 * If a text hangs or kills its thread, its result is a diagnostic, and the next text gets a new thread. The promises
 * reject with AuthorBusy if the queue is full or the thread gets no CPU time, and otherwise only if the thread cannot be
 * started, after `close`, or if two texts cannot be compared.
 */
export class AuthorLanguage {
  readonly #short: Lane;
  readonly #long: Lane;
  #closed = false;

  /** Without `keepsThread`, every thread and its memory are released when no text is waiting. */
  constructor({
    limitMs = 2_000,
    entry,
    keepsThread = true,
  }: {
    limitMs?: number;
    entry?: URL;
    keepsThread?: boolean;
  } = {}) {
    // in a published package the file is JavaScript
    const file = import.meta.url.endsWith('.ts') ? './author-worker.ts' : './author-worker.js';
    const url = entry ?? new URL(file, import.meta.url);
    this.#short = new Lane(url, limitMs, THREADS.short, keepsThread);
    this.#long = new Lane(url, limitMs, THREADS.long, false);
  }

  compile(
    tenantId: string,
    policyId: string,
    text: string,
    schema: string,
    lists?: readonly string[],
  ): Promise<Compilation> {
    return this.#submit(tenantId, { kind: 'compile', policyId, text, schema, lists }) as Promise<Compilation>;
  }

  format(tenantId: string, text: string): Promise<Formatted> {
    return this.#submit(tenantId, { kind: 'format', text }) as Promise<Formatted>;
  }

  /** What the text, together with `liveTexts`, would decide on a request. Rate counters count as empty. */
  tryOut(tenantId: string, job: Omit<Extract<AuthorJob, { kind: 'try' }>, 'kind'>): Promise<Trial> {
    return this.#submit(tenantId, { kind: 'try', ...job }) as Promise<Trial>;
  }

  /** The faults of a test suite. */
  async suiteFaults(tenantId: string, tests: string): Promise<Diagnostic[]> {
    const read = await this.#submit(tenantId, { kind: 'read-suite', tests });
    return (read as Pick<SuiteRun, 'errors'>).errors;
  }

  /** Runs the tests of a policy. A run that is too slow, or kills the thread, ends with an error and no results. */
  test(tenantId: string, job: SuiteJob): Promise<SuiteRun> {
    return this.#submit(tenantId, { kind: 'test', ...job }) as Promise<SuiteRun>;
  }

  /** The tests of other policies that pass now and would fail after a change. */
  testOthers(tenantId: string, job: OthersJob): Promise<OthersRun> {
    return this.#submit(tenantId, { kind: 'others', ...job }) as Promise<OthersRun>;
  }

  /** The changes to a policy that its tests do not notice. Takes up to five seconds of CPU time. */
  mutate(tenantId: string, job: SuiteJob): Promise<MutationRun> {
    return this.#submit(tenantId, { kind: 'mutate', ...job }) as Promise<MutationRun>;
  }

  /** A suite with a test made from a past decision. */
  fromDecision(tenantId: string, job: SuiteJob, past: PastDecision): Promise<TestFromDecision> {
    return this.#submit(tenantId, { kind: 'from-decision', ...job, past }) as Promise<TestFromDecision>;
  }

  /** What a request found in the policies of its decision; empty if that takes too long. */
  explain(tenantId: string, job: ExplainJob): Promise<Explained> {
    return this.#submit(tenantId, { kind: 'explain', ...job }) as Promise<Explained>;
  }

  /** What changed between two texts that have been compiled. */
  diff(tenantId: string, job: Omit<Extract<AuthorJob, { kind: 'diff' }>, 'kind'>): Promise<TextDiff> {
    return this.#submit(tenantId, { kind: 'diff', ...job }) as Promise<TextDiff>;
  }

  /** Ends the threads. Pending calls reject. */
  async close(): Promise<void> {
    this.#closed = true;
    await Promise.all([this.#short, this.#long].map((lane) => lane.close()));
  }

  #submit(tenantId: string, request: AuthorJob): Promise<AuthorResult> {
    if (this.#closed) return Promise.reject(closed());
    // The scan rejects a text over the limit, so there is no need to copy all of it to the thread.
    const job = { ...request };
    if ('text' in job) job.text = job.text.slice(0, LIMITS.bytes + 2);
    if ('tests' in job) job.tests = job.tests.slice(0, SUITE_LIMITS.bytes + 2);
    const lane = LONG.has(job.kind) ? this.#long : this.#short;
    return new Promise((resolve, reject) => lane.submit({ tenantId, job, resolve, reject }));
  }
}

const closed = () => new Error('the policy language was closed');

/** Texts that wait for one of a few threads. */
class Lane {
  readonly #threads: readonly AuthorThread[];
  /** By tenant; the first entry is the tenant whose turn is next. */
  readonly #queues = new Map<string, Waiting[]>();
  /** The tenants of which a text is being worked on. */
  readonly #running = new Set<string>();
  #waiting = 0;

  /** If it `keeps` its threads, the next text need not wait for the engine to load: the first always, others for a while. */
  constructor(entry: URL, limitMs: number, size: number, keeps: boolean) {
    this.#threads = Array.from(
      { length: size },
      (_, n) =>
        new AuthorThread(entry, limitMs, keeps ? (n === 0 ? Number.POSITIVE_INFINITY : KEPT_MS) : 0, {
          ready: () => this.#next(),
          freed: (tenantId) => {
            this.#running.delete(tenantId);
            this.#next();
          },
          failed: (error) => {
            this.#take()?.reject(error);
            this.#next();
          },
        }),
    );
  }

  submit(waiting: Waiting): void {
    const queue = this.#queues.get(waiting.tenantId) ?? [];
    if (queue.length >= MAX_WAITING.tenant || this.#waiting >= MAX_WAITING.all) {
      waiting.reject(new AuthorBusy('too many policy texts are waiting to be checked; try again shortly'));
      return;
    }
    queue.push(waiting);
    this.#queues.set(waiting.tenantId, queue);
    this.#waiting++;
    this.#next();
  }

  async close(): Promise<void> {
    const queued = [...this.#queues.values()].flat();
    this.#queues.clear();
    this.#waiting = 0;
    for (const waiting of queued) waiting.reject(closed());
    await Promise.all(this.#threads.map((thread) => thread.close()));
  }

  /** The tenant whose turn it is. */
  #turn(): string | undefined {
    return this.#queues.keys().find((tenantId) => !this.#running.has(tenantId));
  }

  /** The first text of that tenant, who moves behind the others. */
  #take(): Waiting | undefined {
    const tenantId = this.#turn();
    const queue = tenantId === undefined ? undefined : this.#queues.get(tenantId);
    if (tenantId === undefined || !queue) return undefined;
    const first = queue.shift();
    this.#waiting--;
    this.#queues.delete(tenantId);
    if (queue.length > 0) this.#queues.set(tenantId, queue);
    return first;
  }

  #next(): void {
    for (const thread of this.#threads) {
      if (thread.state !== 'free') continue;
      const waiting = this.#take();
      if (!waiting) break;
      this.#running.add(waiting.tenantId);
      thread.run(waiting);
    }
    if (this.#waiting === 0) for (const thread of this.#threads) thread.rest();
    // a text goes to the first thread that is ready, which need not be the one that starts now
    if (this.#turn() === undefined || this.#threads.some(({ state }) => state === 'starting')) return;
    this.#threads.find(({ state }) => state === 'off')?.start();
  }
}

/** What a thread tells its lane. */
interface OfLane {
  ready(): void;
  /** A text of this tenant is done. */
  freed(tenantId: string): void;
  /** The thread could not be started. */
  failed(error: Error): void;
}

/** A thread that works on one text at a time. */
class AuthorThread {
  readonly #entry: URL;
  readonly #limitMs: number;
  readonly #keepMs: number;
  readonly #lane: OfLane;
  #worker: Worker | undefined;
  #ready = false;
  #current: Waiting | undefined;
  #timer: NodeJS.Timeout | undefined;

  /** `keepMs`: how long the thread, and its memory, is kept without a text. */
  constructor(entry: URL, limitMs: number, keepMs: number, lane: OfLane) {
    this.#entry = entry;
    this.#limitMs = limitMs;
    this.#keepMs = keepMs;
    this.#lane = lane;
  }

  get state(): 'off' | 'starting' | 'free' | 'busy' {
    if (!this.#worker) return 'off';
    if (!this.#ready) return 'starting';
    return this.#current ? 'busy' : 'free';
  }

  run(waiting: Waiting): void {
    this.#current = waiting;
    this.#worker?.ref();
    this.#send();
  }

  async close(): Promise<void> {
    this.#current?.reject(closed());
    this.#current = undefined;
    await this.#drop();
  }

  start(): void {
    // Without the parent's flags, such as a test runner's loader.
    const worker = new Worker(this.#entry, { execArgv: [], resourceLimits: { maxOldGenerationSizeMb: 256 } });
    this.#worker = worker;
    this.#arm(patient(START_MS), () =>
      this.#lost(worker, new Error('the thread of the policy language did not start')),
    );
    worker.on('message', (message: 'ready' | AuthorResult) => {
      if (worker !== this.#worker) return;
      if (message === 'ready') {
        clearTimeout(this.#timer);
        this.#ready = true;
        worker.unref();
        this.#lane.ready();
      } else {
        this.#finish(message);
      }
    });
    worker.on('error', (error) => this.#lost(worker, error));
    worker.on('exit', (code) => this.#lost(worker, new Error(`the thread of the policy language ended with ${code}`)));
  }

  /** No text waits: if it has none either, its time begins. */
  rest(): void {
    if (this.state !== 'free' || this.#keepMs === Number.POSITIVE_INFINITY) return;
    clearTimeout(this.#timer);
    if (this.#keepMs === 0) void this.#drop();
    else this.#timer = setTimeout(() => void this.#drop(), this.#keepMs).unref();
  }

  #send(): void {
    const [worker, current] = [this.#worker, this.#current];
    if (!worker || !current) return;
    const before = processorMs(worker);
    const began = performance.now();
    const limitMs = current.job.kind === 'mutate' ? Math.max(this.#limitMs, MUTATION_LIMITS.ms) : this.#limitMs;
    worker.postMessage(current.job);
    const check = async () => {
      const [from, to] = await Promise.all([before, processorMs(worker)]);
      if (this.#current !== current || this.#worker !== worker) return;
      const left = limitMs - (to - from);
      if (left <= 0) return this.#giveUp(`the policy took longer than ${limitMs / 1_000} s to check`);
      if (performance.now() - began < patient(WALL_TIME_FACTOR * limitMs))
        return this.#arm(Math.max(left || 0, 20), check);
      // too little CPU time, or the usage is unknown: that does not reflect on the text
      this.#abandon(new AuthorBusy('the server was too busy to check the policy text; try again shortly'));
    };
    this.#arm(limitMs, check);
  }

  #finish(result: AuthorResult): void {
    const current = this.#current;
    this.#current = undefined;
    clearTimeout(this.#timer);
    this.#worker?.unref();
    current?.resolve(result);
    if (current) this.#lane.freed(current.tenantId);
  }

  /** Resolves the current text with a diagnostic and discards the thread that failed on it. */
  #giveUp(message: string): void {
    void this.#drop();
    const diagnostic = { line: 1, column: 1, message };
    const kind = this.#current?.job.kind;
    if (kind === 'diff') this.#abandon(new Error(message));
    else if (kind === 'test') this.#finish(notRun([diagnostic]));
    else if (kind === 'from-decision') this.#finish({ errors: [diagnostic], tests_errors: [] });
    else if (kind === 'explain') this.#finish({ rules: [], more: 0 });
    else if (kind === 'mutate') this.#finish(notMutated([diagnostic]));
    else if (kind === 'others') this.#finish({ errors: [diagnostic], broken: [] });
    else if (kind === 'try') this.#finish({ errors: [diagnostic], hits: [] });
    else this.#finish(kind === 'format' ? { errors: [diagnostic] } : failed(diagnostic));
  }

  #lost(worker: Worker, error: Error): void {
    if (worker !== this.#worker) return;
    if (!this.#ready) {
      void this.#drop();
      this.#lane.failed(error);
    } else if (this.#current) this.#giveUp(ENGINE_FAILED);
    else void this.#drop();
  }

  /** Rejects the current job and continues with a new thread. */
  #abandon(error: Error): void {
    void this.#drop();
    const current = this.#current;
    this.#current = undefined;
    current?.reject(error);
    if (current) this.#lane.freed(current.tenantId);
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
