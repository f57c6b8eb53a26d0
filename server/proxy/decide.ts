import { type Decision, type Permit, permits } from '../domain/decision.ts';
import { MOST_KEPT_BYTES } from '../domain/kept-input.ts';
import type { ActionRequest } from '../domain/policy.ts';
import { type CallOutcome, FACT_LIMITS, type LedgerEntry } from '../domain/session-facts.ts';
import { stopReason } from '../domain/stops.ts';
import { canonicalJson } from '../lib/canonical-json.ts';
import type { Clock } from '../lib/clock.ts';
import { newId } from '../lib/ids.ts';
import type { Log } from '../lib/log.ts';
import { nextTurn } from '../lib/pause.ts';
import type { Span } from '../lib/telemetry/names.ts';
import { siblingOf, type Trace } from '../lib/trace.ts';
import { doubtfulMatch, type Match } from '../policy/evaluation/evaluate.ts';
import type { LimitHit } from '../policy/evaluation/limits.ts';
import { type Mask, parseMask } from '../policy/evaluation/masks.ts';
import {
  decide,
  InexactAction,
  type PointFields,
  type Taking,
  type UseRefusal,
} from '../policy/evaluation/protocol.ts';
import type { Registry } from '../policy/evaluation/registry.ts';
import { decisionSpan } from '../policy/evaluation/span.ts';
import type { Agent } from './agents.ts';
import type { ProxyConfig, ValueRule } from './config.ts';
import { type ControlPlane, ControlPlaneError, type Hold } from './control-plane.ts';
import { Counters } from './counters.ts';
import type { Governance, Standstill } from './governance.ts';
import type { Holds, UsedApproval } from './holds.ts';
import { type LimitsAway, SharedLimits } from './limits.ts';
import { Refusal } from './problem.ts';
import { type Ended, Sessions } from './sessions.ts';
import { type Spool, SpoolError } from './spool.ts';
import type { StopWatch } from './stops.ts';
import { actionValue } from './value.ts';

/** What an agent is about to do. */
export interface Attempt
  extends Pick<
    ActionRequest,
    | 'action_type'
    | 'tool_name'
    | 'tool_server'
    | 'tool_pin'
    | 'method'
    | 'resource'
    | 'arguments'
    | 'context'
    | 'session_id'
    | 'source_ip'
  > {
  agent: Agent;
  /** The span of this decision. */
  trace: Trace;
  /** Where the arguments hold the value of the action. */
  value?: ValueRule | undefined;
  /** What approvers read first. */
  summary: string;
  /** The hold that the agent waited for. */
  escrowId?: string | undefined;
  /** A released hold of this exact action is used even if it is not named, for clients that can only repeat their call. */
  resume?: boolean;
  /** If set, why it is denied whatever the policies say. */
  refused?: string;
  /** Limits that an earlier round of the same call was counted against: it is not counted twice. */
  counted?: ReadonlySet<string>;
  /** If set, why the action cannot be held: what a policy would hold is then denied. */
  unholdable?: string;
  /** The protocol method of the request, for spans. */
  asks?: { mcp?: string; http?: string };
  /** The event of the permit under which it is in progress; a stop cuts it. */
  cuts?: string;
  /**
   * Called if it is permitted without masks, while its record is written to disk, for work that takes time. Nothing that the tool
   * could act on may leave the proxy before `rule` resolves.
   */
  meanwhile?: () => void;
}

/**
 * `ended`: the tool's result; `pending` while there is none yet, absent if there was none. `task`: an earlier call of the same
 * agent whose end the answer reported.
 */
export type Done = (
  outcome: string,
  ended?: Ended | 'pending',
  task?: { call: ActionRequest; ended: Ended } | undefined,
) => void;

/** Why a call in progress was cut. */
export interface Cut {
  /** For the agent. */
  reason: string;
  /** The record of the cut. */
  eventId: string;
}

/**
 * Calls back, at most once and perhaps at once, when a stop requires the call in progress to be given up. To be called before
 * anything is forwarded; call the returned function when the call is over.
 */
export type OnCut = (cut: (why: Cut) => void) => () => void;

/** What was decided. Its record is on disk. */
export type Ruling = { eventId: string } & (
  | {
      decision: Permit;
      masks: readonly Mask[];
      /** A hold was consumed for it. */
      spent: boolean;
      /** The trace context that is passed on with it. */
      trace: Trace;
      /** Whether the exact same rules would permit it now. */
      stands: () => boolean;
      /** The limits that it, or an earlier round of the same call, was counted against. */
      limits: ReadonlySet<string>;
      /** To be called once, when it is over and before the agent can know, so that the next decision takes it into account. */
      done: Done;
      onCut: OnCut;
      /** The request as it was decided on. */
      asked: ActionRequest;
    }
  | { decision: 'deny'; reason: string; standstill?: keyof typeof STANDSTILLS }
  | { decision: 'escrow'; hold: Hold; reason: string | undefined; used: UsedApproval | undefined }
  | { decision: 'rate_limited'; retryAfter: number }
);

const STANDSTILLS: Record<Standstill | 'stops_stale' | 'control_plane_away', string> = {
  no_bundle: 'the proxy has no policies yet',
  bundle_expired: 'the policies of the proxy are past their end',
  key_refused: 'the control plane does not accept the proxy',
  stops_stale: 'the proxy has not heard for too long which stops are in force',
  control_plane_away: 'the action could not be held at the control plane',
};

/**
 * The enforcement point: the decision protocol, as `POST /v1/evaluate` follows it, with holds at the control plane, limits that
 * the control plane counts for all proxies, and the record on this proxy's disk.
 */
export class Enforcer {
  readonly #governance: Governance;
  readonly #stops: StopWatch;
  readonly #spool: Spool;
  readonly #holds: Holds;
  readonly #control: ControlPlane;
  readonly #sessions: Sessions;
  readonly #proxyId: string;
  readonly #keep: { input: number; projection: number };
  readonly #clock: Clock;
  readonly #log: Log;
  readonly #counters = new Counters();
  readonly #limits: SharedLimits;
  /** Permitted actions that may be in progress, with what cuts them. */
  readonly #underWay = new Map<object, () => void>();
  /** How many actions are being decided. */
  #ruling = 0;
  /** Called for every decision that was recorded, with the seconds that it took. */
  onRuling: (decision: Decision, seconds: number) => void = () => {};
  /** If spans are wanted, called for every decision: when it was made, or when what it permitted is over. */
  onSpan: ((span: Span) => void) | undefined;

  /** Called with the number of statements on which Cedar and the compiled conditions disagreed. */
  onDispute: (statements: number) => void = () => {};

  constructor(parts: {
    governance: Governance;
    stops: StopWatch;
    spool: Spool;
    holds: Holds;
    proxyId: string;
    control: ControlPlane;
    /** The control plane does not have everything yet that earlier processes of this proxy recorded. */
    behind: () => boolean;
    /** What to do about limits while the control plane is unreachable. */
    limitsAway: LimitsAway;
    inputs: ProxyConfig['inputs'];
    clock: Clock;
    log: Log;
  }) {
    this.#governance = parts.governance;
    this.#stops = parts.stops;
    this.#spool = parts.spool;
    this.#holds = parts.holds;
    this.#control = parts.control;
    this.#sessions = new Sessions(parts);
    this.#proxyId = parts.proxyId;
    this.#keep = {
      input: parts.inputs === 'full' ? MOST_KEPT_BYTES : 0,
      projection: parts.inputs === 'none' ? 0 : MOST_KEPT_BYTES,
    };
    this.#clock = parts.clock;
    this.#log = parts.log;
    const { control, clock, log, limitsAway: away } = parts;
    this.#limits = new SharedLimits({ control, counters: this.#counters, clock, log, away });
    this.#stops.onChange(() => {
      for (const look of [...this.#underWay.values()]) {
        try {
          look();
        } catch (err) {
          // one that cannot be cut does not keep others from being cut
          this.#log.error({ err }, 'a call could not be cut');
        }
      }
    });
  }

  /** Decides and records. Rejects with a Refusal when nothing was decided; the action must then not be done. */
  async rule(attempt: Attempt): Promise<Ruling> {
    const began = performance.now();
    this.#ruling++;
    try {
      // before anything begins: no hold is opened or consumed for a decision that cannot be recorded
      this.#spool.assertRoom();
      const preparing = attempt.cuts === undefined ? this.#ready(attempt) : undefined;
      if (preparing) await preparing;
      return await this.#rule(attempt, began);
    } catch (error) {
      if (error instanceof SpoolError) {
        this.#log.error({ detail: error.message }, 'the decision cannot be recorded: refused');
        throw new Refusal(503, 'UNAVAILABLE', 'the decision could not be recorded', { retryAfter: 5 });
      }
      throw error;
    } finally {
      this.#ruling--;
    }
  }

  /** Undefined if the policies in force need no preparation for this action: see PolicyEngine.ready. */
  #ready({
    agent,
    action_type,
    tool_name,
    tool_server,
  }: Pick<Attempt, 'agent' | 'action_type' | 'tool_name' | 'tool_server'>) {
    const { standing } = this.#governance;
    if (typeof standing === 'string') return undefined;
    const now = new Date(this.#clock.now()).toISOString();
    const who = { agent_id: agent.id, agent_role: agent.role, owner: agent.owner };
    return standing.engine.ready({ ...who, action_type, tool_name, tool_server, now }, nextTurn);
  }

  /**
   * What is known about a tool before it is called: whether every call by this agent is denied whatever its arguments (false if
   * in doubt; the call itself is decided in any case), and whether answers may be masked.
   */
  async outlook(agent: Agent, action_type: string, tool_name: string, tool_server: string | undefined) {
    const preparing = this.#ready({ agent, action_type, tool_name, tool_server });
    if (preparing) await preparing;
    const standing = this.#governance.standing;
    if (typeof standing === 'string') return { denied: false, masked: true };
    const request = {
      agent_id: agent.id,
      agent_role: agent.role,
      owner: agent.owner,
      action_type,
      tool_name,
      tool_server,
      now: new Date(this.#clock.now()).toISOString(),
    };
    return { denied: standing.engine.deniesAlways(request), masked: standing.engine.mayMask(request) };
  }

  /**
   * Why this agent gets nothing from a tool server now, not even what no policy decides on: a stop denies it everything there.
   * Undefined if none does.
   */
  stopped({ id, role }: Agent, tool_server: string, session_id: string): string | undefined {
    const stop = this.#stops.of({ agent_id: id, agent_role: role, tool_server, session_id });
    return stop?.mode === 'deny' ? stopReason(stop) : undefined;
  }

  /** What the bundle in force says about tools and agents; undefined if there is none. */
  get registry(): Registry | undefined {
    const { standing } = this.#governance;
    return typeof standing === 'string' ? undefined : standing.engine.registry;
  }

  async #rule(attempt: Attempt, began: number): Promise<Ruling> {
    const now = this.#clock.now();
    const { agent, asks, counted, cuts, escrowId, meanwhile, refused, resume, summary, trace, unholdable } = attempt;
    const valued = attempt.value && actionValue(attempt.arguments, attempt.value);
    const doubt = valued?.doubt;
    const request: ActionRequest = {
      action_type: attempt.action_type,
      agent_id: agent.id,
      agent_role: agent.role,
      arguments: attempt.arguments,
      context: attempt.context,
      estimated_value: valued?.estimated_value,
      method: attempt.method,
      now: new Date(now).toISOString(),
      owner: agent.owner,
      resource: attempt.resource,
      session_id: attempt.session_id,
      source_ip: attempt.source_ip,
      tool_name: attempt.tool_name,
      tool_pin: attempt.tool_pin,
      tool_server: attempt.tool_server,
      value_currency: valued?.value_currency,
    };
    const { standing } = this.#governance;
    const governing = typeof standing === 'string' ? undefined : standing;
    let standstill = typeof standing === 'string' ? (standing as keyof typeof STANDSTILLS) : undefined;
    const stop = this.#stops.of(request);
    // what is stopped anyway need not be reported as stale
    if (governing && !stop && this.#stops.stale && !governing.engine.onlyReads(request.action_type)) {
      standstill = 'stops_stale';
    }
    const eventId = newId('evt', now);
    let used: UsedApproval | undefined;
    let matched: { asked: ActionRequest; match: Match } | undefined;
    let event: Record<string, unknown> | undefined;
    const limits = new Set(counted);
    const unheld = (error: unknown) => {
      if (!(error instanceof ControlPlaneError)) throw error;
      this.#log.error({ detail: error.message }, 'a hold could not be opened');
      standstill = 'control_plane_away';
      return { unavailable: STANDSTILLS.control_plane_away };
    };

    const { verdict, hold, changed, fields, stored } = await decide<Hold, number>(
      {
        ...{ request, eventId, escrowId, resume, unholdable, stop, trace },
        bundleHash: governing?.hash,
        standstill: standstill
          ? { code: standstill, reason: STANDSTILLS[standstill] }
          : refused === undefined
            ? undefined
            : { code: 'refused', reason: refused },
        keep: this.#keep,
      },
      {
        session: async (asked) => {
          const { session_id } = asked;
          if (!governing?.readsSession || !session_id) return undefined;
          const counted = this.#counters.session(agent.id, session_id, now);
          return governing.engine.session(asked, counted, await this.#sessions.known(agent.id, session_id));
        },
        match: async (asked) => {
          const match =
            doubt === undefined ? await governing!.engine.matchInSteps(asked, nextTurn) : doubtfulMatch(doubt);
          if (match.detail) this.#log.warn({ detail: match.detail }, 'a request could not be evaluated');
          if (match.disputed) {
            this.#log.error(
              { rules: match.disputed },
              'Cedar and the compiled conditions differ: Cedar alone is asked now',
            );
            this.onDispute(match.disputed.length);
          }
          matched = { asked, match };
          return match;
        },
        // this proxy does not see how the upstream of a route is defined
        definition: async ({ tool_server = '', tool_name }) => {
          try {
            return { pin: await this.#control.seenTool(tool_server, tool_name) };
          } catch (error) {
            return unheld(error);
          }
        },
        take: async (asked) => {
          const left = (hits: readonly LimitHit[]) => hits.filter((hit) => !counted?.has(limitOf(hit)));
          const uncounted = { ...asked, limits: left(asked.limits), checked: left(asked.checked) };
          for (const hit of uncounted.limits) limits.add(limitOf(hit));
          if (uncounted.limits.length + uncounted.checked.length === 0) return NOTHING_TAKEN;
          const taking = await this.#limits.take(uncounted, agent.id);
          if ('unavailable' in taking) standstill = 'control_plane_away';
          return taking;
        },
        find: (id) =>
          this.#holds.get(id).catch((error) => {
            throw asRefusal(error, 'the hold cannot be looked up now');
          }),
        refuse: (named, why, { action_hash }) => this.#refuse(named, why, agent, action_hash),
        open: async ({ action_hash, policy_id, shown, terms }) => {
          const action_summary = summary.slice(0, 500).toWellFormed();
          const held = { agent_id: agent.id, agent_role: agent.role, action_summary, action_hash, policy_id, shown };
          try {
            const opened = await this.#holds.open(held, terms, governing!.hash, trace);
            used = opened.used;
            return opened;
          } catch (error) {
            return unheld(error);
          }
        },
        consume: ({ id }, { action_hash }) =>
          this.#holds.consume(id, { action_hash, agent_id: agent.id, agent_role: agent.role }).catch((error) => {
            throw asRefusal(
              error,
              'whether the hold was consumed is not known: look it up before anything is repeated',
            );
          }),
        withdraw: ({ id }) => this.#withdraw(id),
        consumedWithoutRecord: async ({ id }) =>
          this.#log.error({ hold: id, eventId }, 'a hold was consumed for a decision without a record'),
        elapsed: () => Math.round((performance.now() - began) * 1000),
        record: async (fields, kept, { verdict }) => {
          const own: PointFields = {
            proxy_id: this.#proxyId,
            // the control plane knows which credential delivers the event; a bundle has no hashes of single policies
            key_id: undefined,
            policy_content_hash: undefined,
            // the spool numbers the event, and adds the next two when the action has ended
            proxy_seq: undefined,
            outcome: cuts === undefined ? undefined : `aborted ${cuts}`,
            total_latency_ms: undefined,
            confidence: undefined,
          };
          const denied = fields.decision === 'deny' || fields.decision === 'rate_limited';
          const session_facts = denied ? this.#learned(request, 'denied') : [];
          const made: Record<string, unknown> = { ...fields, ...own };
          made.event_type = `decision.${fields.decision}`;
          if (session_facts.length > 0) made.session_facts = session_facts;
          event = made;
          const open = permits(fields.decision) && cuts === undefined;
          const alone = this.#ruling === 1 && this.#underWay.size === 0;
          const input = kept && { event_id: eventId, ...kept };
          const stored = this.#spool.append(() => made, open, { input, alone });
          // after the flush has started, which happens in the next microtask
          if (open && meanwhile && !verdict.masks?.length) queueMicrotask(() => this.#while(meanwhile));
          const seq = await stored;
          this.#sessions.note(agent.id, request.session_id ?? '', eventId, session_facts);
          return seq;
        },
      },
    ).catch((error) => {
      throw error instanceof InexactAction ? new Refusal(400, 'VALIDATION_FAILED', error.message) : error;
    });
    setImmediate(this.onRuling, verdict.decision, (performance.now() - began) / 1000);
    const decidedAt = Date.now();
    const from = decidedAt - (performance.now() - began);
    const { onSpan } = this;
    const span = (over?: { to: number; outcome: string; failed: boolean }) => {
      if (!onSpan) return;
      const more = { trace, from, decidedAt, hold, asks, proxy: this.#proxyId, server: request.tool_server };
      setImmediate(() => onSpan(decisionSpan(fields, { ...more, ...over })));
    };
    if (!permits(verdict.decision)) span();
    if (changed) {
      throw new Refusal(
        409,
        'POLICY_CHANGED',
        `this action is now held for more than was approved: wait for hold ${hold!.id}`,
        { escrowId: hold!.id, eventId },
      );
    }
    switch (verdict.decision) {
      case 'deny':
        return { eventId, decision: 'deny', reason: verdict.deny_reason ?? '', ...(standstill && { standstill }) };
      case 'rate_limited':
        return { eventId, decision: 'rate_limited', retryAfter: verdict.retry_after ?? 1 };
      case 'escrow':
        return { eventId, decision: 'escrow', hold: hold!, reason: verdict.escrow?.reason, used };
      default:
        return {
          eventId,
          decision: verdict.decision,
          masks: (verdict.masks ?? []).map(parseMask),
          spent: hold !== undefined,
          limits,
          trace,
          stands: () => {
            const { standing: current } = this.#governance;
            if (typeof current === 'string' || !matched || this.#stops.of(request)?.id !== stop?.id) return false;
            if (this.#stops.stale && !current.engine.onlyReads(request.action_type)) return false;
            const asked = { ...matched.asked, now: new Date(this.#clock.now()).toISOString() };
            return rulesOf(current.engine.match(asked)) === rulesOf(matched.match);
          },
          onCut: (cut) => this.#onCut({ attempt, request, eventId, cut }),
          asked: request,
          done: (outcome, ended, task) => {
            const total_latency_ms = Math.round(performance.now() - began);
            const failed = ended === undefined || (ended !== 'pending' && !ended.succeeded);
            span({ to: Date.now(), outcome, failed });
            const how = ended === 'pending' ? undefined : ended?.succeeded ? 'succeeded' : 'failed';
            const session_facts = [
              ...(how ? this.#learned(request, how, ended as Ended | undefined) : []),
              ...(task ? this.#learnedLate(request, task) : []),
            ].slice(0, FACT_LIMITS.ofAnswer);
            this.#sessions.note(agent.id, request.session_id ?? '', eventId, session_facts);
            const learned = session_facts.length > 0 && { session_facts };
            this.#spool.settle(stored, { outcome, total_latency_ms, ...learned }, event);
          },
        };
    }
  }

  /** If the request cannot be prepared, making it fails again, and that failure is answered. */
  #while(meanwhile: () => void): void {
    try {
      meanwhile();
    } catch (err) {
      this.#log.debug({ err }, 'a request to an upstream could not be prepared');
    }
  }

  /** Watches a call in progress. A cut gets its own record, because the permit's may already have been sent. */
  #onCut({
    attempt,
    request,
    eventId,
    cut,
  }: {
    attempt: Attempt;
    request: ActionRequest;
    eventId: string;
    cut: (why: Cut) => void;
  }): () => void {
    const key = {};
    const end = () => void this.#underWay.delete(key);
    const look = () => {
      const stop = this.#stops.aborting(request);
      if (!stop) return;
      end();
      cut({ reason: stopReason(stop), eventId });
      const { escrowId: _hold, ...again } = attempt;
      // decided by the stop, which is looked up before anything is awaited
      this.rule({ ...again, cuts: eventId, trace: siblingOf(again.trace) }).catch((err) =>
        this.#log.error({ err, eventId, stop: stop.id }, 'it could not be recorded that a call was cut'),
      );
      this.#log.warn({ eventId, stop: stop.id }, 'a call was cut');
    };
    this.#underWay.set(key, look);
    look();
    return end;
  }

  /** Whether the answers of this tool are read for facts of the session. */
  readsAnswer(tool_name: string, tool_server: string | undefined): boolean {
    const { standing } = this.#governance;
    return typeof standing !== 'string' && standing.engine.sessions.wantsAnswer(tool_name, tool_server);
  }

  /**
   * What the policies want to know about a call that continued as a task. It counts from when the call was decided: an agent that
   * reads a result late must not make old news new. What began in one session is not a fact of another.
   */
  #learnedLate(request: ActionRequest, { call, ended }: { call: ActionRequest; ended: Ended }): LedgerEntry[] {
    if (call.session_id !== request.session_id) return [];
    return this.#learned(call, ended.succeeded ? 'succeeded' : 'failed', ended, Date.parse(call.now));
  }

  /** What the policies in force want to know about a call that is over. */
  #learned(request: ActionRequest, outcome: CallOutcome, ended?: Ended, at: number = this.#clock.now()): LedgerEntry[] {
    const { standing } = this.#governance;
    if (typeof standing === 'string' || !request.session_id) return [];
    const { engine } = standing;
    return engine.sessions.entries({
      tool: request.tool_name,
      server: request.tool_server,
      arguments: request.arguments,
      outcome,
      answer: ended?.value,
      answered: ended !== undefined,
      trust: engine.registry.attributes(request).trust,
      at,
    });
  }

  /** Asks the control plane to consume the hold, so that it refuses too and records the attempt; then rejects. */
  async #refuse({ id, status }: Hold, why: UseRefusal, agent: Agent, action_hash: string): Promise<never> {
    try {
      await this.#holds.consume(id, { action_hash, agent_id: agent.id, agent_role: agent.role });
    } catch (error) {
      if (!(error instanceof ControlPlaneError)) throw error;
      if (error.passing) this.#log.warn({ hold: id }, 'the refused use of a hold could not be recorded');
    }
    const [httpStatus, detail] = USE_REFUSALS[why];
    throw new Refusal(httpStatus, why, detail ?? `the hold is ${status}`);
  }

  async #withdraw(id: string): Promise<void> {
    try {
      await this.#holds.cancel(id, 'the decision could not be recorded');
    } catch (err) {
      // no agent knows of it, and it ends by itself
      this.#log.error({ err, hold: id }, 'a hold without a record could not be cancelled');
    }
  }
}

const NOTHING_TAKEN: Taking = { exceeded: new Map(), giveBack: async () => {} };

function limitOf({ rule_id, kind, key }: LimitHit): string {
  return JSON.stringify([rule_id, kind, key]);
}

/** What a decision is based on: the texts of its rules. */
function rulesOf({ outcome, hits }: Match): string {
  return canonicalJson([
    outcome,
    ...hits.map(({ id, cedar, annotations }) => ({ id, cedar, annotations: { ...annotations } })),
  ]);
}

const USE_REFUSALS: Record<UseRefusal, [status: number, detail?: string]> = {
  AGENT_MISMATCH: [403, 'the hold belongs to another agent'],
  HASH_MISMATCH: [422, 'the hold was opened for another request'],
  ALREADY_CONSUMED: [409, 'the hold was consumed already'],
  ESCROW_EXPIRED: [410, 'the hold has expired'],
  INVALID_STATUS: [409],
};

/** The control plane's response about a hold is passed on; without one, it is a 503. */
function asRefusal(error: unknown, unknown: string): unknown {
  if (!(error instanceof ControlPlaneError)) return error;
  if (error.passing) return new Refusal(503, 'UNAVAILABLE', unknown, { retryAfter: error.retryAfterSeconds ?? 5 });
  const known = error.code === 'NOT_FOUND' ? 'there is no such hold' : USE_REFUSALS[error.code as UseRefusal]?.[1];
  return new Refusal(error.status, error.code, known ?? 'the hold cannot be used');
}
