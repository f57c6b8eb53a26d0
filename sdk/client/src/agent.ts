import type { Client } from 'openapi-fetch';
import { type Problem, ProblemError, SvcError, UnavailableError } from './errors.ts';
import { type ClientOptions, createClient, pause, secondsOf } from './http.ts';
import { exactJson } from './json.ts';
import type { components, paths } from './schema.ts';

export type EvaluateRequest = components['schemas']['EvaluateRequest'];
export type Evaluation = components['schemas']['Evaluation'];
export type Hold = components['schemas']['EscrowHold'];
export type HoldStatus = Hold['status'];
/** A result of a batch: a decision, or the error that `evaluate` would have thrown. */
export type Result = Evaluation | SvcError;

/** Whether an evaluation permits its action. */
export function permitted({ decision }: Pick<Evaluation, 'decision'>): boolean {
  return decision === 'allow' || decision === 'allow_with_masking';
}

interface Cancel {
  /** Ends waiting and retrying; the call rejects with the signal's reason. */
  signal?: AbortSignal | undefined;
}

/** Seconds per long poll; the server accepts at most 60. */
const POLL_SECONDS = 30;
/** The pause before a call that is not waiting for people is asked for again. */
const AGAIN_MS = 500;
/** Stop waiting for a hold that could not be read for this long. */
const MOST_SILENCE_MS = 120_000;
const DECISIONS: ReadonlySet<string> = new Set<Evaluation['decision']>([
  'allow',
  'allow_with_masking',
  'deny',
  'escrow',
  'rate_limited',
]);

/**
 * What an agent asks of the control plane, with an agent key. Each method resolves to the server's response or throws a SvcError,
 * in which case nothing was permitted.
 *
 * Every request can safely be retried, and is if there was no response: a call is identified by its `call_id`, which is generated
 * if the caller provides none. Provide the id of your own call (a tool_call_id) if another process may resume it.
 */
export class AgentClient {
  /** The typed client of all routes. It retries only what a `createClient` retries, since it does not name calls. */
  readonly api: Client<paths>;
  readonly #api: Client<paths>;

  constructor(options: ClientOptions) {
    this.api = createClient(options);
    this.#api = createClient({ ...options, again: () => true });
  }

  /** Decides on one action. */
  async evaluate(request: EvaluateRequest, { signal }: Cancel = {}): Promise<Evaluation> {
    const body = named(request);
    return evaluationOf(await answerOf(signal, this.#api.POST('/v1/evaluate', { body, ...within(signal) })));
  }

  /** Decides on up to 50 actions, each independently, in order. Rejects if the request as a whole was refused. */
  async evaluateAll(requests: readonly EvaluateRequest[], { signal }: Cancel = {}): Promise<Result[]> {
    const body = { requests: requests.map(named) };
    const answer = await answerOf(signal, this.#api.POST('/v1/evaluate/batch', { body, ...within(signal) }));
    const results = answer?.results;
    if (!Array.isArray(results) || results.length !== requests.length) throw unreadable();
    return results.map((one) => {
      try {
        if ('error' in one) {
          const headers = new Headers(one.escrow_id === undefined ? {} : { 'x-svc-escrow-id': one.escrow_id });
          return errorOf(one.error, { status: one.error.status, headers });
        }
        return evaluationOf(one);
      } catch (error) {
        return error as SvcError;
      }
    });
  }

  /**
   * Decides on one action; if it is held, waits until people have decided, then continues with the released action. Ends with a
   * permit, a denial or a limit; with the hold (`escrow`) only after `maxWaitMs`. The same request with the same `call_id`
   * resumes the same call, even in another process and days later.
   */
  async ask(
    request: EvaluateRequest,
    options: Cancel & {
      /** How long to wait for people, in milliseconds; as long as the hold is open, if absent. */
      maxWaitMs?: number | undefined;
      /** Called once for each hold that is waited for; people approve it at its `page_url`. */
      onHold?: (hold: NonNullable<Evaluation['escrow']>) => void;
    } = {},
  ): Promise<Evaluation> {
    const { signal, onHold, maxWaitMs } = options;
    const call_id = request.call_id ?? crypto.randomUUID();
    const end = maxWaitMs === undefined ? Number.POSITIVE_INFINITY : Date.now() + maxWaitMs;
    let told: string | undefined;
    for (;;) {
      const answer = await this.evaluate({ ...request, call_id, resume: true }, { signal }).catch((error) => {
        // the release does not cover every rule that now holds it: the call waits for its new hold
        if (error instanceof ProblemError && error.code === 'POLICY_CHANGED') return undefined;
        throw error;
      });
      if (!answer) {
        await pause(AGAIN_MS, signal);
        continue;
      }
      const { escrow } = answer;
      if (answer.decision !== 'escrow' || !escrow || Date.now() >= end) return answer;
      if (told !== escrow.id) onHold?.(escrow);
      told = escrow.id;
      if (escrow.status !== 'held') await pause(AGAIN_MS, signal);
      else await this.wait(escrow.id, { signal, maxWaitMs: end - Date.now() });
    }
  }

  /** Resolves to the hold as soon as its status differs from this one (`held`), or as it is after `maxWaitMs`. */
  async wait(
    holdId: string,
    options: Cancel & { status?: HoldStatus; maxWaitMs?: number | undefined } = {},
  ): Promise<Hold> {
    const { signal, status = 'held', maxWaitMs = Number.POSITIVE_INFINITY } = options;
    const end = Date.now() + maxWaitMs;
    let silentSince: number | undefined;
    for (;;) {
      const wait = Math.max(0, Math.min(POLL_SECONDS, Math.ceil((end - Date.now()) / 1000)));
      try {
        const params = { path: { id: holdId }, query: { wait, status } };
        const hold = await answerOf(signal, this.#api.GET('/v1/escrow/{id}', { params, ...within(signal) }));
        if (typeof hold.status !== 'string') throw unreadable();
        if (hold.status !== status || Date.now() >= end) return hold;
        silentSince = undefined;
      } catch (error) {
        // people take hours: a server that restarts in the meantime does not end the wait
        const passing = error instanceof UnavailableError || (error instanceof ProblemError && error.status === 429);
        silentSince ??= Date.now();
        if (!passing || Date.now() - silentSince > MOST_SILENCE_MS || Date.now() >= end) throw error;
        await pause(1000 + Math.random() * 4000, signal);
      }
    }
  }

  /** Reports the outcome of a permitted action, once; repeating the same report changes nothing. */
  async report(
    outcome: { event_id: string; outcome: 'succeeded' | 'failed'; answer?: unknown },
    { signal }: Cancel = {},
  ): Promise<void> {
    await answerOf(signal, this.#api.POST('/v1/outcomes', { body: outcome, ...within(signal) }));
  }
}

/** The request with a name for its call, as it will be sent. */
function named(request: EvaluateRequest): EvaluateRequest {
  const call = { ...request, call_id: request.call_id ?? crypto.randomUUID() };
  try {
    return JSON.parse(exactJson(call)) as EvaluateRequest;
  } catch {
    // the error's message may quote an argument
    throw new SvcError('the request is not JSON');
  }
}

const within = (signal: AbortSignal | undefined) => (signal ? { signal } : {});
const unreadable = () => new UnavailableError('the answer of the server is not understood');

/** Accepts only what is definitely a decision: any other 200 response permits nothing. */
function evaluationOf(answer: Evaluation): Evaluation {
  if (typeof answer !== 'object' || !DECISIONS.has(answer?.decision) || typeof answer.event_id !== 'string') {
    throw unreadable();
  }
  return answer;
}

async function answerOf<T>(
  signal: AbortSignal | undefined,
  asked: Promise<{ data?: T; error?: unknown; response: Response }>,
): Promise<T> {
  const answer = await asked.catch((error) => {
    // a caller who aborted knows why
    if (signal?.aborted) throw signal.reason;
    throw new UnavailableError('the server did not answer', { cause: error });
  });
  const { data, error, response } = answer;
  if (data !== undefined && response.ok) return data;
  throw errorOf(error, response);
}

function errorOf(error: unknown, { status, headers }: Pick<Response, 'status' | 'headers'>): SvcError {
  const problem = error as Problem | undefined;
  if (typeof problem?.code !== 'string' || typeof problem.title !== 'string') {
    return new UnavailableError(`the server did not answer as expected (HTTP ${status})`);
  }
  const retryAfter = secondsOf(headers.get('retry-after'));
  if (problem.status >= 500) {
    return new UnavailableError(`${problem.code}: ${problem.detail ?? problem.title}`, { problem, retryAfter });
  }
  return new ProblemError(problem, { retryAfter, escrowId: headers.get('x-svc-escrow-id') ?? undefined });
}
