import type { KeyObject } from 'node:crypto';
import type { Counter, Histogram } from 'prom-client';
import type { Database } from '../../db/index.ts';
import type { AppendEvent, AppendResult } from '../chain/appender.ts';
import { idHash } from '../chain/record.ts';
import { actorOf } from '../domain/audit.ts';
import { type CompleteEvent, permits, RECORD_FIELDS } from '../domain/decision.ts';
import { type KeptInput, unfitting } from '../domain/kept-input.ts';
import type { ActionRequest, BundleStatement } from '../domain/policy.ts';
import { CONTROL_PLANE } from '../domain/proxy-ids.ts';
import type { CallOutcome, LedgerEntry } from '../domain/session-facts.ts';
import type { StopLookup } from '../domain/stops.ts';
import { AppError } from '../errors.ts';
import type { Holds } from '../escrow/holds.ts';
import type { HoldView } from '../escrow/view.ts';
import type { Clock } from '../lib/clock.ts';
import { newId } from '../lib/ids.ts';
import type { Log } from '../lib/log.ts';
import { patient } from '../lib/patience.ts';
import { nextTurn, pause } from '../lib/pause.ts';
import type { Span } from '../lib/telemetry/names.ts';
import { traceOf, traceparentOf } from '../lib/trace.ts';
import { openBundle } from '../policy/bundle.ts';
import type { Bundles, PublishedBundle } from '../policy/bundles.ts';
import { PolicyEngine } from '../policy/evaluation/evaluate.ts';
import { heldTakeId, type LimitHit, type LimitTerms, limitTerms } from '../policy/evaluation/limits.ts';
import { applyMasks, type Mask, parseMask } from '../policy/evaluation/masks.ts';
import {
  type Asked,
  type Decided,
  decide,
  InexactAction,
  type PointFields,
  readsSession,
  type Taking,
} from '../policy/evaluation/protocol.ts';
import { decisionSpan } from '../policy/evaluation/span.ts';
import { type Evaluation, holdAnswer, maskedArguments } from './answer.ts';
import {
  type AgentPrincipal,
  type Asking,
  askedOf,
  type EvaluateRequest,
  type From,
  type How,
  hashOf,
  holdRequest,
} from './asking.ts';
import type { Call, Calls } from './calls.ts';
import type { Disputes } from './disputes.ts';
import { type Remembered, type SessionLedger, stated } from './ledger.ts';
import type { Limits } from './limits.ts';
import { getEvent } from './search.ts';

/** The chain's appender: resolves when the record is committed. */
export type Append = (tenantId: string, events: AppendEvent[]) => Promise<AppendResult>;

interface Loaded {
  bundle: PublishedBundle;
  engine: PolicyEngine;
  /** The number of statements left to Cedar. */
  left: number;
  /** A live statement reads context.session, so it must be looked up. */
  readsSession: boolean;
}

/** How long after a decision an agent may report what became of it. */
const REPORT_MS = 24 * 3600 * 1000;

/** How many times a call tries to use a release while other calls of the same action compete for one. */
const MOST_TRIES = 3;
/** How long a call waits while another process decides it, and how often it polls. */
const CALL_PATIENCE_MS = 5000;
const CALL_POLL_MS = 50;
const NEVER = new AbortController().signal;

/** Earlier calls of a session are counted up to this many, which bounds the cost of the query. */
const MAX_CALLS = 10_000;

/** The decision point behind POST /v1/evaluate: runs the decision protocol on the database and the tenant's chain. */
export class Decider {
  readonly #db: Database;
  readonly #bundles: Bundles;
  readonly #keyFor: (kid: string) => KeyObject | undefined;
  readonly #append: Append;
  readonly #holds: Holds;
  readonly #limits: Limits;
  readonly #stops: (tenantId: string) => Promise<StopLookup>;
  readonly #definition: (tenantId: string, tool: { server: string; name: string }) => Promise<string | null>;
  readonly #ledger: SessionLedger;
  readonly #disputes: Disputes;
  readonly #calls: Calls;
  readonly #baseUrl: string;
  readonly #clock: Clock;
  readonly #log: Log;
  readonly #decisions: Counter<'decision'>;
  readonly #seconds: Histogram;
  readonly #engines = new Map<string, Loaded>();
  /** What is being loaded, by tenant, bundle and number of disputes. */
  readonly #loading = new Map<string, Promise<Loaded>>();
  /** Called for each decision, if spans are wanted. */
  onSpan: ((span: Span) => void) | undefined;

  constructor(parts: {
    db: Database;
    bundles: Bundles;
    keyFor: (kid: string) => KeyObject | undefined;
    append: Append;
    holds: Holds;
    limits: Limits;
    /** The stops in force. */
    stops: (tenantId: string) => Promise<StopLookup>;
    /** The pin of the tool definition seen last; null if none was seen. */
    definition: (tenantId: string, tool: { server: string; name: string }) => Promise<string | null>;
    ledger: SessionLedger;
    disputes: Disputes;
    calls: Calls;
    /** Where people reach the dashboard. */
    baseUrl: string;
    clock: Clock;
    log: Log;
    decisions: Counter<'decision'>;
    seconds: Histogram;
  }) {
    this.#db = parts.db;
    this.#bundles = parts.bundles;
    this.#keyFor = parts.keyFor;
    this.#append = parts.append;
    this.#holds = parts.holds;
    this.#limits = parts.limits;
    this.#stops = parts.stops;
    this.#definition = parts.definition;
    this.#ledger = parts.ledger;
    this.#disputes = parts.disputes;
    this.#calls = parts.calls;
    this.#baseUrl = parts.baseUrl;
    this.#clock = parts.clock;
    this.#log = parts.log;
    this.#decisions = parts.decisions;
    this.#seconds = parts.seconds;
  }

  /**
   * Decides and records. Rejects with UNAVAILABLE if the decision could not be recorded; then the agent must not act.
   *
   * With `escrowId` or `resume` it continues with a released hold: the one the agent names, or the one for this action. If
   * that does not cover the rules now in force, a new hold is opened and recorded, and the call rejects with
   * POLICY_CHANGED, which names the new hold. If the named hold cannot be used at all, the call rejects with the same
   * errors as a consume, and the attempt is audited.
   *
   * With `callId`, all requests under this id are one call: see Calls. The earlier answer is returned again, with the hold
   * as it is now, and nothing is held, consumed or counted twice. If the action is now under a stop that did not apply when
   * the call was permitted, it is denied all the same.
   */
  async evaluate(agent: AgentPrincipal, input: EvaluateRequest, from: From, how: How = {}): Promise<Evaluation> {
    for (let tries = 1; ; tries++) {
      try {
        const answer = await (how.callId === undefined
          ? this.#ask(await this.#asking(agent, input, from, how))
          : this.#once(agent, input, from, how, how.callId));
        return how.applyMasks && permits(answer.decision)
          ? { ...answer, arguments: maskedArguments(answer, input.arguments) }
          : answer;
      } catch (error) {
        const lost = error instanceof AppError && error.problem === 'ALREADY_CONSUMED';
        // another call of the same action used the release first
        if (!lost || !how.resume || tries === MOST_TRIES) throw error;
      }
    }
  }

  /**
   * Decides several actions of one agent as if it had requested them one after the other: what an earlier one takes from
   * limits or does in its session counts for the later ones. Each settles independently. Records are committed together
   * where none has to wait for another's.
   */
  async evaluateAll(
    agent: AgentPrincipal,
    requests: readonly { input: EvaluateRequest; how: How }[],
    from: From,
  ): Promise<PromiseSettledResult<Evaluation>[]> {
    const results: Promise<Evaluation>[] = [];
    const last = new Map<string, Promise<unknown>>();
    let decided: Promise<unknown> = Promise.resolve();
    for (const { input, how } of requests) {
      // session facts come from the session's records, and a call's result from its answer
      const names = [input.session_id && `session ${input.session_id}`, how.callId && `call ${how.callId}`];
      await Promise.allSettled([decided, ...names.map((name) => name && last.get(name))]);
      const { promise, resolve } = Promise.withResolvers<void>();
      const result = this.evaluate(agent, input, from, { ...how, decided: resolve });
      // whether it resolved or rejected
      result.then(
        () => resolve(),
        () => resolve(),
      );
      decided = promise;
      for (const name of names) if (name) last.set(name, result);
      results.push(result);
    }
    return Promise.allSettled(results);
  }

  /** A call with an id: returns its earlier answer, or takes it one step further. */
  async #once(
    agent: AgentPrincipal,
    input: EvaluateRequest,
    from: From,
    how: How,
    callId: string,
  ): Promise<Evaluation> {
    const { tenantId, agentId } = agent;
    const end = performance.now() + patient(CALL_PATIENCE_MS);
    for (;;) {
      const asking = await this.#asking(agent, input, from, how);
      const { request, stop, eventId } = asking;
      if (stop?.mode === 'deny') return this.#ask(asking);
      const asked = askedOf(request);
      const begun = await this.#calls.begin(tenantId, { agentId, callId, asked, eventId });
      if (begun.busy) {
        if (performance.now() > end) {
          throw new AppError('UNAVAILABLE', 'this call is being decided', { headers: { 'retry-after': '1' } });
        }
        await pause(CALL_POLL_MS, NEVER);
        continue;
      }
      let { call } = begun;
      if (begun.kept) {
        const { answer, stop: before, attempt } = begun.kept;
        if (answer.decision === 'deny') return answer;
        if (permits(answer.decision)) {
          if (how.attempt !== undefined && how.attempt !== attempt) {
            throw new AppError('CONFLICT', 'the call was permitted to another attempt');
          }
          if (!stop || stop.id === before) return answer;
          // not part of the call: its answer applies again when the stop is lifted
          return this.#ask({ ...asking, stop: { ...stop, mode: 'deny' } });
        }
        const hold = call.holdId === null ? undefined : await this.#holds.get(tenantId, call.holdId);
        if (hold && (hold.status === 'held' || (hold.status === 'released' && !how.resume))) {
          return { ...answer, escrow: holdAnswer(tenantId, hold, this.#baseUrl) };
        }
        const again = await this.#calls.again(tenantId, call, eventId);
        if (!again) continue;
        call = again;
      }
      try {
        return await this.#ask(await this.#step(asking, call));
      } catch (error) {
        const answered = error instanceof AppError && error.problem === 'POLICY_CHANGED';
        if (!answered) await this.#calls.release(tenantId, call).catch(() => undefined);
        throw error;
      }
    }
  }

  /** How a call continues, given the current state of its hold. */
  async #step(asking: Asking, call: Call): Promise<Asking> {
    const step = { ...asking, eventId: call.eventId, call };
    if (call.holdId === null) return step;
    const { id, status } = await this.#holds.get(asking.agent.tenantId, call.holdId);
    switch (status) {
      case 'held':
        return { ...step, escrowId: id };
      case 'released':
        return asking.resume ? { ...step, escrowId: id } : step;
      case 'consumed':
        // consumed for this call, whose record was then not stored, or for another call of the same action
        return call.consumed ? { ...step, escrowId: id } : step;
      default:
        return {
          ...step,
          standstill: {
            code: 'hold_ended',
            reason: `the hold was ${status}`.replace('was expired', 'has expired'),
            escrow_id: id,
          },
        };
    }
  }

  async #asking(agent: AgentPrincipal, input: EvaluateRequest, from: From, how: How): Promise<Asking> {
    const now = this.#clock.now();
    const request: ActionRequest = {
      ...input,
      agent_id: agent.agentId,
      agent_role: agent.agentRole,
      owner: agent.ownerId ?? undefined,
      source_ip: from.ip,
      now: new Date(now).toISOString(),
    };
    const stop = (await this.#stops(agent.tenantId))(request);
    const { escrowId, resume = false, attempt, decided = () => {} } = how;
    const eventId = newId('evt', now);
    const trace = traceOf(from.traceparent);
    return { agent, input, from, trace, request, now, stop, eventId, escrowId, resume, attempt, decided };
  }

  /** Decides once and records the decision. */
  async #ask(asking: Asking): Promise<Evaluation> {
    const began = performance.now();
    const { agent, input, from, trace, request, now, stop, eventId, escrowId, resume, standstill, call } = asking;
    const { tenantId } = agent;
    const by = { actor: from.person ?? actorOf(agent, from.ip), requestId: from.requestId };
    const { bundle, engine, readsSession } = await this.#load(tenantId);
    const preparing = engine.ready(request, nextTurn);
    if (preparing) await preparing;
    const answerOf = ({ verdict, hold, fields, action_hash }: Omit<Decided<HoldView, void>, 'stored'>): Evaluation => ({
      decision: verdict.decision,
      event_id: eventId,
      policy_id: verdict.policy_id,
      rule_id: verdict.rule_id,
      policy_version: verdict.policy_version,
      bundle_hash: bundle.hash,
      ...(verdict.deny_reason !== undefined && { deny_reason: verdict.deny_reason }),
      ...(verdict.masks && { masks: verdict.masks }),
      ...(verdict.retry_after !== undefined && { retry_after: verdict.retry_after }),
      action_hash,
      ...(hold && { escrow: holdAnswer(tenantId, hold, this.#baseUrl) }),
      evaluation_us: fields.evaluation_us,
    });
    /** A hold that was consumed for this very call has yet to be used by it. */
    const spent = (id: string) => call?.consumed === true && call.holdId === id;
    /** The call's record may have been stored, whatever the response: if so, the call is permitted when it is requested again. */
    let sent = false;
    let disputed: readonly BundleStatement[] = [];
    const decided = await decide<HoldView, void>(
      {
        ...{ request, eventId, bundleHash: bundle.hash, escrowId, resume, stop, standstill, trace },
        unholdable: request.ran_at === undefined ? undefined : `it was done at ${request.ran_at}, without a decision`,
      },
      {
        session: async (asked) => {
          if (!readsSession || !input.session_id) return undefined;
          const counted = await this.#session(agent, input.session_id, now);
          const known = await this.#ledger.known(tenantId, agent.agentId, input.session_id);
          return engine.session(asked, counted, known);
        },
        match: async (asked) => {
          const match = await engine.matchInSteps(asked, nextTurn);
          if (match.detail) this.#log.warn({ tenantId, detail: match.detail }, 'a request could not be evaluated');
          if (match.disputed) disputed = match.hits;
          return match;
        },
        definition: async ({ tool_server: server = '', tool_name: name }) => ({
          pin: await this.#definition(tenantId, { server, name }),
        }),
        // a practice run takes nothing from the limits that agents share
        take: async (asked) =>
          from.person
            ? { exceeded: new Map(), giveBack: async () => {} }
            : this.#take(tenantId, agent.agentId, asked, call, () => sent),
        find: async (id) => {
          const hold = await this.#holds.get(tenantId, id);
          return spent(id) ? { ...hold, status: 'released' } : hold;
        },
        refuse: async ({ id, status }, why) => {
          const refusal = new AppError(why, why === 'INVALID_STATUS' ? `the hold is ${status}` : undefined);
          await this.#holds.refusedUse(tenantId, id, by, refusal);
          throw refusal;
        },
        open: (action) =>
          this.#holds.open(tenantId, holdRequest(agent, input, action), by, {
            traceparent: traceparentOf(trace),
            beside: async (em, hold) => {
              if (call) await this.#calls.held(em, tenantId, call, hold);
            },
          }),
        consume: async (hold, { action_hash }) => {
          if (spent(hold.id)) return { ...hold, status: 'consumed' };
          const action = { action_hash, agent_role: agent.agentRole, agent_id: agent.agentId };
          return this.#holds.consume(tenantId, hold.id, action, by, {
            detail: `for decision ${eventId}`,
            beside: async (em) => {
              if (call) await this.#calls.consumed(em, tenantId, call);
            },
          });
        },
        withdraw: async ({ id }) => {
          await this.#withdraw(tenantId, id);
          if (call) await this.#calls.unheld(tenantId, call).catch(() => undefined);
        },
        consumedWithoutRecord: ({ id }) => this.#consumedWithoutRecord(tenantId, id, eventId),
        elapsed: () => Math.round((performance.now() - began) * 1000),
        record: async (fields, kept, what) => {
          const policy = bundle.policies.get(fields.policy_id);
          const own: PointFields = {
            proxy_id: CONTROL_PLANE,
            proxy_seq: undefined,
            key_id: agent.id,
            policy_content_hash: policy?.content_hash,
            // the agent acts after this answer, and the record has no report of it
            outcome: undefined,
            total_latency_ms: undefined,
            confidence: undefined,
          };
          if (call) {
            const { input_hash, facts } = fields;
            await this.#calls.answer(tenantId, call, {
              answer: answerOf(what),
              stop: facts?.stop,
              input_hash,
              attempt: asking.attempt,
            });
          }
          asking.decided();
          sent = call !== undefined;
          await this.#record(tenantId, { ...fields, ...own }, kept, () => {
            sent = false;
          });
          if (fields.decision === 'deny' || fields.decision === 'rate_limited') {
            const entries = this.#learned(engine, request, 'denied', now);
            await this.#ledger.remember(tenantId, [{ ...sessionOf(request, eventId), entries }]);
          }
        },
      },
    )
      .finally(() => disputed.length > 0 && this.#disputes.raise(tenantId, disputed, eventId))
      .catch((error) => {
        if (!(error instanceof InexactAction)) throw error;
        throw new AppError('VALIDATION_FAILED', error.message, {
          faults: [{ pointer: error.pointer, message: error.message }],
        });
      });
    const { verdict, hold, changed, fields } = decided;
    this.#decisions.inc({ decision: verdict.decision });
    this.#seconds.observe((performance.now() - began) / 1000);
    const { onSpan } = this;
    if (onSpan) {
      const decidedAt = Date.now();
      const more = { trace, decidedAt, hold, tenant: tenantId, server: input.tool_server };
      const asked = decidedAt - (performance.now() - began);
      setImmediate(() => onSpan(decisionSpan(fields, { ...more, from: asked })));
    }
    if (changed) {
      throw new AppError(
        'POLICY_CHANGED',
        `this action is now held for more than was approved: wait for hold ${hold!.id}`,
        {
          headers: { 'x-svc-escrow-id': hold!.id },
        },
      );
    }
    return answerOf(decided);
  }

  /** What a live rule limits; undefined if there is no such rule, or it has no such limit. */
  async limitOf(tenantId: string, ruleId: string, kind: LimitHit['kind']): Promise<LimitTerms | undefined> {
    const { engine } = await this.#load(tenantId);
    const annotations = engine.annotationsOf(ruleId);
    return annotations && limitTerms(annotations, kind);
  }

  /**
   * Accepts an agent's report of the outcome of an action that it was permitted: once per decision, and only for its own.
   * The tool's answer becomes facts of the session where the policies in force accept a report.
   */
  async report(
    agent: AgentPrincipal,
    { event_id, outcome, answer }: { event_id: string; outcome: 'succeeded' | 'failed'; answer?: unknown },
  ): Promise<{ event_id: string; facts: number }> {
    const { tenantId } = agent;
    const now = this.#clock.now();
    const none = () => new AppError('NOT_FOUND', 'this agent has no such decision');
    const event = await getEvent(this.#db, tenantId, event_id).catch((error) => {
      throw error instanceof AppError && error.problem === 'NOT_FOUND' ? none() : error;
    });
    // a proxy saw the answer itself
    if (event.agent_id !== agent.agentId || event.agent_role !== agent.agentRole || event.proxy_id !== CONTROL_PLANE) {
      throw none();
    }
    if (!permits(event.decision))
      throw new AppError('INVALID_STATUS', `the action was not permitted: ${event.decision}`);
    if (Date.parse(event.timestamp) < now - REPORT_MS) {
      throw new AppError('INVALID_STATUS', 'the decision is older than 24 hours');
    }
    const [kept] = await this.#db.query<{ salt_b: string; input: string }>(
      tenantId,
      `select encode(salt_b, 'hex') as salt_b, input from decision_input
       where tenant_id = $1 and event_id = $2 and input is not null`,
      [tenantId, event_id],
    );
    if (!kept || unfitting(kept, { input_hash: event.input_hash ?? undefined })) {
      throw new AppError('INVALID_STATUS', 'the input of this decision is no longer kept');
    }
    const request = JSON.parse(kept.input) as ActionRequest;
    const { engine } = await this.#load(tenantId);
    const masks = masksOf(event.obligations ?? []);
    const said = masks && applyMasks(structuredClone(answer), masks);
    const entries = this.#learned(engine, request, outcome, now, { answer: said, reported: true });
    const hash = hashOf({ outcome, answer: answer ?? null });
    const stored = await this.#ledger.report(tenantId, { ...sessionOf(request, event_id), entries }, hash);
    if (stored === 'conflict') throw new AppError('CONFLICT', 'another outcome was reported for this decision');
    return { event_id, facts: entries.filter(({ source }) => /^[0-9a-f]{32}$/.test(source)).length };
  }

  /** What the policies in force need to know about a finished call. */
  #learned(
    engine: PolicyEngine,
    request: ActionRequest,
    outcome: CallOutcome,
    at: number,
    ended?: { answer: unknown; reported: boolean },
  ): LedgerEntry[] {
    return engine.sessions.entries({
      tool: request.tool_name,
      server: request.tool_server,
      arguments: request.arguments,
      outcome,
      answer: ended?.answer,
      answered: ended !== undefined,
      trust: engine.registry.attributes(request).trust,
      at,
      ...(ended?.reported && { reported: true }),
    });
  }

  /**
   * Commits the record of a decision, durably once this resolves. Rejects with UNAVAILABLE if that fails, after calling
   * `refused` if it is certain that the record is not stored.
   */
  async #record(
    tenantId: string,
    event: CompleteEvent,
    input: KeptInput | undefined,
    refused: () => void,
  ): Promise<void> {
    try {
      const { results } = await this.#append(tenantId, [{ event, input }]);
      if (results[0] && 'refused' in results[0]) refused();
      if (!results[0] || !('seq' in results[0])) throw new Error('the database refused the record');
    } catch (error) {
      if (error instanceof AppError) throw error;
      throw new AppError('UNAVAILABLE', 'the decision could not be recorded', {
        headers: { 'retry-after': '1' },
        cause: error,
      });
    }
  }

  /** Of what proxies say of sessions, what they may say by the bundle in force. */
  stated(tenantId: string, all: readonly Remembered[]): Promise<readonly Remembered[]> {
    return stated(this.#db, tenantId, all, async () => {
      const { engine } = await this.#load(tenantId);
      return (source) => engine.sessions.declaredFor(source);
    });
  }

  /** The engine for the bundle in force. The bundle is verified before use, as in a proxy. */
  async #load(tenantId: string): Promise<Loaded> {
    const bundle = await this.#bundles.current(tenantId, null);
    const left = await this.#disputes.known(tenantId);
    const loaded = this.#engines.get(tenantId);
    if (loaded?.bundle.hash === bundle.hash && loaded.left === left.size) return loaded;
    const name = `${tenantId} ${bundle.hash} ${left.size}`;
    let loading = this.#loading.get(name);
    if (!loading) {
      loading = this.#loaded(tenantId, bundle, left).finally(() => this.#loading.delete(name));
      this.#loading.set(name, loading);
    }
    return loading;
  }

  async #loaded(tenantId: string, bundle: PublishedBundle, left: ReadonlySet<string>): Promise<Loaded> {
    const { content } = openBundle(bundle.bytes, this.#keyFor, { tenant: tenantId });
    const engine = await PolicyEngine.inSteps(content, { left }, nextTurn);
    const next = { bundle, engine, left: left.size, readsSession: readsSession(content.policies) };
    this.#engines.get(tenantId)?.engine.dispose();
    this.#engines.set(tenantId, next);
    return next;
  }

  /** The session's earlier calls by this agent, from the decision records. */
  async #session({ tenantId, agentId }: AgentPrincipal, sessionId: string, now: number) {
    const rows = await this.#db.query<{ calls: number; started: string | null }>(
      tenantId,
      // calls of other agents with the same session id do not count
      `select count(*)::int as calls, min(line::json->>'timestamp') as started from (
         select line from forensic_record where tenant_id = $1 and session_h = $2 and agent_h = $4
           and line::json->>'session_id' = $3 and line::json->>'agent_id' = $5 order by seq limit ${MAX_CALLS}) r`,
      [tenantId, idHash(sessionId), sessionId, idHash(agentId), agentId],
    );
    return { call_count: rows[0]!.calls, started: rows[0]!.started ?? new Date(now).toISOString() };
  }

  async #take(
    tenantId: string,
    agentId: string,
    { limits, checked, once }: Asked,
    call: Call | undefined,
    mayBeRecorded: () => boolean,
  ): Promise<Taking> {
    const id = once ? heldTakeId(once) : call && `call:${call.eventId}`;
    const answer = await this.#limits.take(tenantId, {
      ...{ id, shared: true, source: CONTROL_PLANE, agentId, limits, checked },
    });
    if ('exceeded' in answer) return { ...answer, giveBack: async () => {} };
    return {
      exceeded: new Map(),
      giveBack: async () => {
        // others rely on what was taken: whoever took it under this id, or anyone who requests the same call again
        if (answer.before || mayBeRecorded()) return;
        const given =
          id === undefined
            ? this.#limits.giveBack(tenantId, CONTROL_PLANE, answer.taken)
            : // a process that took over the call found the units already taken
              this.#limits.giveBackTake(
                tenantId,
                CONTROL_PLANE,
                id,
                call && ((em) => this.#calls.isOwn(em, tenantId, call)),
              );
        await given.catch((err) => {
          // the units stay taken, so no limit is exceeded
          this.#log.error({ err, tenantId }, 'what an action took of limits could not be given back');
        });
      },
    };
  }

  async #consumedWithoutRecord(tenantId: string, holdId: string, eventId: string): Promise<void> {
    try {
      await this.#holds.consumedWithoutRecord(
        tenantId,
        holdId,
        `decision ${eventId} could not be recorded; it stays consumed`,
      );
    } catch (err) {
      // the database is unavailable; the audit record of the consumption names the decision missing from the chain
      this.#log.error({ err, holdId, eventId }, 'a hold was consumed for a decision without a record');
    }
  }

  async #withdraw(tenantId: string, holdId: string): Promise<void> {
    try {
      await this.#holds.withdraw(tenantId, holdId, 'the decision could not be recorded');
    } catch (err) {
      // the database is unavailable; no record or answer names the hold, and it expires
      this.#log.error({ err, holdId }, 'a hold whose decision was not recorded could not be withdrawn');
    }
  }
}

function sessionOf({ agent_id, session_id }: ActionRequest, event_id: string) {
  return { agent_id, session_id: session_id ?? '', event_id };
}

/** The masks of a record; undefined if it does not have all of them. */
function masksOf(obligations: readonly string[]): Mask[] | undefined {
  // an entry that fills its field was truncated and may now be a different path
  if (obligations.some((one) => one.length >= RECORD_FIELDS.obligations.length[1])) return undefined;
  try {
    return obligations.map((one) => parseMask(one.replace(/^mask /, '')));
  } catch {
    return undefined;
  }
}
