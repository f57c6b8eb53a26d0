import {
  AgentClient,
  type EvaluateRequest,
  type Evaluation,
  ProblemError,
  UnavailableError,
} from '../../client/src/index.ts';
import { argumentsOf, asGiven, type Call, callIdOf, isRecord } from './call.ts';
import { masked } from './results.ts';
import { FAILED, plain } from './words.ts';

export interface GovernOptions {
  /** The address of the control plane. */
  url: string;
  /** The agent's key. It alone determines who the agent is. */
  key: string;
  /**
   * What happens to a call when the control plane cannot be reached: it is denied, or calls of the tools in `reads` are made,
   * without masks, and recorded once it answers again.
   */
  onUnavailable?: 'deny' | 'allow-read';
  /** The tools that only read. */
  reads?: readonly string[];
  /** The conversation, if the framework does not provide it. */
  session?: string;
  /** The server under which policies know the tools. */
  toolServer?: string;
  /** More about a call for policies and people, always the same for the same call: its value, what it is about. */
  describe?: (call: Call) => Description;
  /** Also report the tools' responses, for policies that read the facts of a session. */
  outcomes?: boolean;
  /** The time limit of a decision, in milliseconds. */
  timeoutMs?: number;
  fetch?: typeof fetch;
}

/** What policies and people may be told about a call besides its name and arguments. */
export interface Description {
  tool_pin?: string;
  method?: string;
  resource?: string;
  action_summary?: string;
  estimated_value?: number;
  value_currency?: string;
  risk_score?: number;
  context?: Record<string, unknown>;
}

/** A call that waits until people, conditions or time release it. */
export interface Hold {
  id: string;
  /** Where people decide it. */
  url: string;
  reason?: string;
  /** Seconds until it makes sense to ask again. */
  retryAfter: number;
  expiresAt?: string;
}

export type Verdict =
  /** `hold`: the hold that was used for it. */
  | { decision: 'allow'; args: Record<string, unknown>; masks: readonly string[]; event?: string; hold?: string }
  | { decision: 'deny'; reason: string }
  | ({ decision: 'hold' } & Hold)
  | { decision: 'limited'; retryAfter: number };

export type Refused = Exclude<Verdict, { decision: 'allow' }>;

/** The permit for one run of a call. */
export interface Permit {
  decision: 'allow';
  /** What the tool runs with: if masks apply, the masked arguments. */
  args: unknown;
  /** Whether masks apply. */
  masked: boolean;
  /** The hold that was used for it. */
  hold?: string;
  /** The part of a response that may be shown. */
  shown(answer: unknown): unknown;
  /** Reports that the tool has responded. Resolves with what may be shown of the response. */
  succeeded(answer?: unknown): Promise<unknown>;
  /** Reports that the tool has failed. Resolves with the error that may be thrown. */
  failed(error: unknown): Promise<unknown>;
  /**
   * Returns the permit: the tool is waiting for something of its own, has done nothing that counts, and continues in another run.
   */
  giveBack(): void;
}

/** The outcome of a call: what may be shown of the response, or why it was not made. */
export type Ran = { decision: 'allow'; result: unknown } | Refused;

export type Settled = { approved: true } | { approved: false; reason: string };

const UNAVAILABLE = 'the control plane cannot be reached';
/** This many calls with the same id and arguments get names that another process can reconstruct. */
const MOST_TURNS = 4;
/** How often a run asks again after other runs of the same call got ahead of it. */
const MOST_RACES = 100;
/** A permit that is not used within this time is asked for again: what it was based on may have changed. */
const STALE_MS = 60_000;
/** The most calls that wait to be recorded. */
const MOST_LATE = 1_000;
/** The most calls remembered between their question and their run. */
const MOST_TRIES = 10_000;
const TRIES = 3;
const TOO_OFTEN: Refused = { decision: 'deny', reason: 'the call was made too often' };

/**
 * Asks the control plane about each tool call, and makes the calls that it permits.
 *
 * INVARIANT: a tool runs only after the control plane has permitted this call, with these arguments, for this very run: nothing
 * that a framework, a model or a stored state says can replace that. A permit is for one run. Anyone who runs a call again, such
 * as a replayed graph, asks a new question.
 */
export class Governor {
  readonly #options: GovernOptions;
  readonly #client: AgentClient;
  readonly #timeoutMs: number;
  /** The attempt of each call that has been asked about and has not begun. */
  readonly #tries = new Map<string, { attempt: string; until: number }>();
  /** Calls that were made while the control plane could not be reached, the oldest first. */
  readonly #late: EvaluateRequest[] = [];
  #recording = false;

  constructor(options: GovernOptions) {
    this.#options = options;
    const { url, key, fetch } = options;
    this.#timeoutMs = options.timeoutMs ?? 10_000;
    this.#client = new AgentClient({ baseUrl: url, key, fetch, timeoutMs: this.#timeoutMs, retries: 0 });
  }

  /** Asks about a call without making it. Resolves with a verdict whatever happens. */
  async guard(call: Call): Promise<Verdict> {
    return (await this.#ask(call, true)).verdict;
  }

  /** Reports the state of a call. It uses nothing up, and permits nothing. */
  async look(call: Call): Promise<Verdict> {
    return (await this.#ask(call, false)).verdict;
  }

  /**
   * Asks for the permit to make a call now. It is for one run: the holder makes the call with `permit.args`, shows what
   * `permit.shown` returns for a response or an error, and nothing else.
   */
  async permit(call: Call): Promise<Permit | Refused> {
    for (let n = 0; n < MOST_RACES; n++) {
      const { verdict, name, attempt } = await this.#ask(call, true);
      if (verdict.decision !== 'allow') return verdict;
      // another run of the same call in this process got ahead of this one
      if (name !== undefined && !this.#begin(name, attempt)) continue;
      return this.#permit(call, verdict, () => {
        if (name !== undefined) this.#remember(name, attempt, Number.POSITIVE_INFINITY);
      });
    }
    return TOO_OFTEN;
  }

  /** Asks about a call, and makes it if it is permitted. Rejects with the tool's error, or with what may be shown of it. */
  async run(call: Call, tool: (args: unknown) => unknown): Promise<Ran> {
    const permit = await this.permit(call);
    if (permit.decision !== 'allow') return permit;
    let result: unknown;
    try {
      result = await tool(permit.args);
    } catch (error) {
      throw await permit.failed(error);
    }
    return { decision: 'allow', result: await permit.succeeded(result) };
  }

  #permit(call: Call, verdict: Extract<Verdict, { decision: 'allow' }>, giveBack: () => void): Permit {
    const { masks, args, event, hold } = verdict;
    const shown = (value: unknown) => masked(value, masks);
    return {
      decision: 'allow',
      args: masks.length > 0 ? asGiven(args, call.args) : call.args,
      masked: masks.length > 0,
      ...(hold !== undefined && { hold }),
      shown,
      succeeded: async (value) => {
        const answer = shown(value);
        await this.#report(event, 'succeeded', answer);
        return answer;
      },
      failed: async (error) => {
        await this.#report(event, 'failed');
        return masks.length > 0 ? new Error(FAILED) : error;
      },
      giveBack,
    };
  }

  /**
   * Resolves once a held call is no longer waiting: released, or ended otherwise. It uses nothing up, and permits nothing: the
   * run that continues asks for itself.
   */
  async settled(call: Call, signal?: AbortSignal): Promise<Settled> {
    for (;;) {
      signal?.throwIfAborted();
      const { verdict, status, passing } = await this.#ask({ ...call, signal }, false);
      if (passing) await pause(5, signal);
      else if (verdict.decision === 'limited') await pause(verdict.retryAfter, signal);
      else if (verdict.decision === 'allow') return { approved: true };
      else if (verdict.decision === 'deny') return { approved: false, reason: verdict.reason };
      else if (status === 'released') return { approved: true };
      else await this.wait(verdict.id, signal);
    }
  }

  /** Resolves with the status of a hold once it is no longer held. */
  async wait(hold: string, signal?: AbortSignal): Promise<string> {
    for (;;) {
      try {
        return (await this.#client.wait(hold, { signal })).status;
      } catch (error) {
        signal?.throwIfAborted();
        // people take days, and a server may be unreachable for part of that time
        if (!(error instanceof UnavailableError)) throw error;
        await pause(5, signal);
      }
    }
  }

  async #ask(call: Call, resume: boolean): Promise<Answer> {
    let args: Record<string, unknown>;
    try {
      args = argumentsOf(call.args);
    } catch {
      return { verdict: { decision: 'deny', reason: 'the arguments cannot be represented exactly' }, attempt: '' };
    }
    const session = call.session ?? this.#options.session;
    const server = call.server ?? this.#options.toolServer;
    const known = await callIdOf({ ...call, session, server }, args);
    const attempt = this.#attemptOf(known) ?? crypto.randomUUID();
    if (resume && !this.#attemptOf(known)) this.#remember(known, attempt, performance.now() + STALE_MS);
    const asked: EvaluateRequest = {
      ...this.#options.describe?.(call),
      action_type: 'tool_call',
      tool_name: call.tool,
      ...(server !== undefined && { tool_server: server }),
      ...(session !== undefined && { session_id: session.slice(0, 200) }),
      arguments: args,
      attempt,
      resume,
      apply_masks: true,
    };
    const own = { name: known, attempt };
    for (let turn = 1; turn <= MOST_TURNS + 1; turn++) {
      const suffix = turn === 1 ? '' : `~${turn > MOST_TURNS ? attempt : turn}`;
      const answer = await this.#evaluate({ ...asked, call_id: known + suffix }, call.signal);
      // this call was permitted to an earlier run: this one is a new question
      if (answer === 'spent') continue;
      if (answer === 'unavailable') return { verdict: this.#unavailable(call, args, asked), passing: true, attempt };
      return { ...answer, ...own };
    }
    return { verdict: TOO_OFTEN, ...own };
  }

  /** `spent`: the call was permitted to an earlier run. `unavailable`: there was no response. */
  async #evaluate(
    request: EvaluateRequest,
    signal?: AbortSignal,
  ): Promise<Omit<Answer, 'attempt'> | 'spent' | 'unavailable'> {
    const deadline = AbortSignal.timeout(this.#timeoutMs);
    const end = signal ? AbortSignal.any([signal, deadline]) : deadline;
    for (let n = 1; ; n++) {
      try {
        const answer = await this.#client.evaluate(request, { signal: end });
        const verdict = verdictOf(answer, request.arguments ?? {});
        void this.#recordLate();
        return { verdict, ...(answer.escrow && { status: answer.escrow.status }) };
      } catch (error) {
        signal?.throwIfAborted();
        const last = n === TRIES || deadline.aborted;
        if (error instanceof ProblemError) {
          const { code, status, retryAfter } = error;
          if (code === 'CONFLICT' || code === 'INVALID_STATUS') return 'spent';
          if (status === 429) return { verdict: { decision: 'limited', retryAfter: retryAfter ?? 1 } };
          // the call now waits for a new hold, or another call was quicker to use a release: the next response tells which
          if (last || (code !== 'POLICY_CHANGED' && code !== 'ALREADY_CONSUMED')) return refused(code);
        } else if (last) {
          // the server did respond, and has not permitted the call
          const problem = error instanceof UnavailableError ? error.problem : undefined;
          return problem ? { ...refused(problem.code), passing: true } : 'unavailable';
        }
      }
      await pause(0.2 * n, end).catch(() => signal?.throwIfAborted());
    }
  }

  #unavailable(call: Call, args: Record<string, unknown>, asked: EvaluateRequest): Verdict {
    const { onUnavailable = 'deny', reads = [] } = this.#options;
    if (onUnavailable !== 'allow-read' || !reads.includes(call.tool)) return { decision: 'deny', reason: UNAVAILABLE };
    const { attempt: _attempt, resume: _resume, apply_masks: _masks, ...action } = asked;
    // its name keeps it from being recorded twice
    this.#late.push({ ...action, call_id: crypto.randomUUID(), ran_at: new Date().toISOString() });
    if (this.#late.length > MOST_LATE) this.#late.shift();
    return { decision: 'allow', args, masks: [] };
  }

  /** Has the calls recorded that were made without an answer, as far as there is one now. Never rejects. */
  async #recordLate(): Promise<void> {
    if (this.#recording) return;
    this.#recording = true;
    try {
      for (let next = this.#late[0]; next; next = this.#late[0]) {
        await this.#client.evaluate(next, { signal: AbortSignal.timeout(this.#timeoutMs) }).catch((error: unknown) => {
          // it will be asked again; a refusal will not change
          if (!(error instanceof ProblemError) || error.status === 429) throw error;
        });
        this.#late.shift();
      }
    } catch {
      // there is no answer again
    } finally {
      this.#recording = false;
    }
  }

  /** Best effort: the decision has been made, and the tool has run. */
  async #report(event: string | undefined, outcome: 'succeeded' | 'failed', answer?: unknown): Promise<void> {
    if (!this.#options.outcomes || event === undefined) return;
    const body = { event_id: event, outcome, ...(answer !== undefined && { answer }) };
    await this.#client.report(body, { signal: AbortSignal.timeout(this.#timeoutMs) }).catch(() => {});
  }

  #attemptOf(name: string): string | undefined {
    const known = this.#tries.get(name);
    return known && known.until > performance.now() ? known.attempt : undefined;
  }

  #begin(name: string, attempt: string): boolean {
    return this.#attemptOf(name) === attempt && this.#tries.delete(name);
  }

  #remember(name: string, attempt: string, until: number): void {
    this.#tries.delete(name);
    this.#tries.set(name, { attempt, until });
    for (const oldest of this.#tries.keys()) {
      if (this.#tries.size <= MOST_TRIES) break;
      this.#tries.delete(oldest);
    }
  }
}

interface Answer {
  verdict: Verdict;
  /** The status of its hold. */
  status?: string;
  /** The verdict says nothing about the call: the control plane could not answer. */
  passing?: boolean;
  /** The call, and the run of it that was asked for. */
  name?: string;
  attempt: string;
}

function refused(code: string): { verdict: Refused } {
  return { verdict: { decision: 'deny', reason: `the control plane refuses the question (${plain(code, 40)})` } };
}

function verdictOf(evaluation: Evaluation, args: Record<string, unknown>): Verdict {
  const { decision, escrow, masks = [], event_id: event, deny_reason, retry_after } = evaluation;
  switch (decision) {
    case 'allow':
    case 'allow_with_masking': {
      const given = masks.length > 0 ? evaluation.arguments : args;
      if (!isRecord(given)) return { decision: 'deny', reason: 'a policy masks all of its arguments' };
      return { decision: 'allow', args: given, masks, event, ...(escrow && { hold: escrow.id }) };
    }
    case 'escrow': {
      if (!escrow) return { decision: 'deny', reason: 'it is held without a hold' };
      const until = escrow.release_at ? Math.ceil((Date.parse(escrow.release_at) - Date.now()) / 1000) : 30;
      return {
        decision: 'hold',
        id: escrow.id,
        url: escrow.page_url,
        ...(escrow.reason !== undefined && { reason: plain(escrow.reason) }),
        retryAfter: Math.min(Math.max(until, 1), 3600),
        expiresAt: escrow.expires_at,
      };
    }
    case 'rate_limited':
      return { decision: 'limited', retryAfter: retry_after ?? 60 };
    default:
      return { decision: 'deny', reason: plain(deny_reason ?? 'no policy permits this action').replace(/\.$/, '') };
  }
}

/** Rejects as soon as `signal` is aborted. */
async function pause(seconds: number, signal?: AbortSignal): Promise<void> {
  signal?.throwIfAborted();
  await new Promise<void>((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener('abort', stop);
      resolve();
    }, seconds * 1000);
    signal?.addEventListener('abort', stop, { once: true });
  });
}
