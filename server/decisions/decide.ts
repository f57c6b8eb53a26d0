import type { KeyObject } from 'node:crypto';
import type { Counter, Histogram } from 'prom-client';
import type { Database } from '../../db/index.ts';
import type { AppendEvent, AppendResult } from '../chain/appender.ts';
import { idHash } from '../chain/record.ts';
import { actorOf } from '../domain/audit.ts';
import { type CompleteEvent, permits } from '../domain/decision.ts';
import { type KeptInput, unfitting } from '../domain/kept-input.ts';
import type { ActionRequest } from '../domain/policy.ts';
import type { Principal } from '../domain/principal.ts';
import { CONTROL_PLANE } from '../domain/proxy-ids.ts';
import type { CallOutcome, LedgerEntry } from '../domain/session-facts.ts';
import type { StopLookup } from '../domain/stops.ts';
import { AppError } from '../errors.ts';
import type { HoldRequest, Holds } from '../escrow/holds.ts';
import type { HoldView } from '../escrow/view.ts';
import { canonicalJson } from '../lib/canonical-json.ts';
import type { Clock } from '../lib/clock.ts';
import { sha256Tag } from '../lib/crypto.ts';
import { newId } from '../lib/ids.ts';
import type { Log } from '../lib/log.ts';
import { openBundle } from '../policy/bundle.ts';
import type { Bundles, PublishedBundle } from '../policy/bundles.ts';
import { PolicyEngine } from '../policy/evaluation/evaluate.ts';
import { type LimitHit, type LimitTerms, limitTerms } from '../policy/evaluation/limits.ts';
import { applyMasks, type Mask, parseMask } from '../policy/evaluation/masks.ts';
import {
  type ActionToHold,
  type Asked,
  decide,
  InexactAction,
  type PointFields,
  readsSession,
  type Taking,
} from '../policy/evaluation/protocol.ts';
import type { SessionLedger } from './ledger.ts';
import type { Limits } from './limits.ts';
import { getEvent } from './search.ts';

export type AgentPrincipal = Extract<Principal, { kind: 'agent_key' }>;

/** The agent's request. Its identity comes only from its key. */
export type EvaluateRequest = Omit<
  ActionRequest,
  'agent_id' | 'agent_role' | 'owner' | 'source_ip' | 'now' | 'session'
> & { action_summary?: string | undefined };

/** The chain's appender: resolves when the record is committed. */
export type Append = (tenantId: string, events: AppendEvent[]) => Promise<AppendResult>;

interface Loaded {
  bundle: PublishedBundle;
  engine: PolicyEngine;
  /** A live statement reads context.session, so it must be looked up. */
  readsSession: boolean;
}

/** How long after a decision an agent may report what became of it. */
const REPORT_MS = 24 * 3600 * 1000;

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
  readonly #ledger: SessionLedger;
  readonly #clock: Clock;
  readonly #log: Log;
  readonly #decisions: Counter<'decision'>;
  readonly #seconds: Histogram;
  readonly #engines = new Map<string, Loaded>();

  constructor(parts: {
    db: Database;
    bundles: Bundles;
    keyFor: (kid: string) => KeyObject | undefined;
    append: Append;
    holds: Holds;
    limits: Limits;
    /** The stops in force. */
    stops: (tenantId: string) => Promise<StopLookup>;
    ledger: SessionLedger;
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
    this.#ledger = parts.ledger;
    this.#clock = parts.clock;
    this.#log = parts.log;
    this.#decisions = parts.decisions;
    this.#seconds = parts.seconds;
  }

  /**
   * Decides and records. Rejects with UNAVAILABLE if the decision could not be recorded; then the agent must not act.
   *
   * `escrowId` is the hold that the agent waited for. If it does not cover the rules now in force, a new hold is opened
   * and recorded, and the call rejects with POLICY_CHANGED, which names the new hold. If the hold cannot be used at all,
   * the call rejects with the same errors as a consume, and the attempt is audited.
   */
  async evaluate(
    agent: AgentPrincipal,
    input: EvaluateRequest,
    from: { ip: string; requestId: string },
    escrowId?: string,
  ) {
    const began = performance.now();
    const { tenantId } = agent;
    const now = this.#clock.now();
    const eventId = newId('evt', now);
    const by = { actor: actorOf(agent, from.ip), requestId: from.requestId };
    const { bundle, engine, readsSession } = await this.#load(tenantId);
    const stopOf = await this.#stops(tenantId);
    const request: ActionRequest = {
      ...input,
      agent_id: agent.agentId,
      agent_role: agent.agentRole,
      owner: agent.ownerId ?? undefined,
      source_ip: from.ip,
      now: new Date(now).toISOString(),
    };
    const { verdict, hold, changed, fields, action_hash } = await decide<HoldView, void>(
      { request, eventId, bundleHash: bundle.hash, escrowId, stop: stopOf(request) },
      {
        session: async (asked) => {
          if (!readsSession || !input.session_id) return undefined;
          const counted = await this.#session(agent, input.session_id, now);
          const known = await this.#ledger.known(tenantId, agent.agentId, input.session_id);
          return engine.session(asked, counted, known);
        },
        match: (asked) => {
          const match = engine.match(asked);
          if (match.detail) this.#log.warn({ tenantId, detail: match.detail }, 'a request could not be evaluated');
          return match;
        },
        take: (asked) => this.#take(tenantId, agent.agentId, asked),
        find: (id) => this.#holds.get(tenantId, id),
        refuse: async ({ id, status }, why) => {
          const refusal = new AppError(why, why === 'INVALID_STATUS' ? `the hold is ${status}` : undefined);
          await this.#holds.refusedUse(tenantId, id, by, refusal);
          throw refusal;
        },
        open: (action) => this.#holds.open(tenantId, holdRequest(agent, input, action), by),
        consume: ({ id }, { action_hash }) => {
          const action = { action_hash, agent_role: agent.agentRole, agent_id: agent.agentId };
          return this.#holds.consume(tenantId, id, action, by, `for decision ${eventId}`);
        },
        withdraw: ({ id }) => this.#withdraw(tenantId, id),
        consumedWithoutRecord: ({ id }) => this.#consumedWithoutRecord(tenantId, id, eventId),
        elapsed: () => Math.round((performance.now() - began) * 1000),
        record: async (decided, kept) => {
          const policy = bundle.policies.get(decided.policy_id);
          const own: PointFields = {
            proxy_id: CONTROL_PLANE,
            proxy_seq: undefined,
            key_id: agent.id,
            policy_content_hash: policy?.content_hash,
            // the agent acts after this answer, and says nothing of it
            outcome: undefined,
            total_latency_ms: undefined,
            confidence: undefined,
          };
          await this.#record(tenantId, { ...decided, ...own }, kept);
          if (decided.decision === 'deny' || decided.decision === 'rate_limited') {
            const entries = this.#learned(engine, request, 'denied', now);
            await this.#ledger.remember(tenantId, [{ ...sessionOf(request, eventId), entries }]);
          }
        },
      },
    ).catch((error) => {
      if (!(error instanceof InexactAction)) throw error;
      throw new AppError('VALIDATION_FAILED', error.message, {
        faults: [{ pointer: error.pointer, message: error.message }],
      });
    });
    this.#decisions.inc({ decision: verdict.decision });
    this.#seconds.observe((performance.now() - began) / 1000);
    if (changed) {
      throw new AppError('POLICY_CHANGED', `the policies now hold this action for more: wait for hold ${hold!.id}`, {
        headers: { 'x-svc-escrow-id': hold!.id },
      });
    }
    return {
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
      ...(hold && {
        escrow: {
          id: hold.id,
          status: hold.status,
          hold_type: hold.hold_type,
          required_approvals: hold.required_approvals,
          current_approvals: hold.current_approvals,
          expires_at: hold.expires_at,
          status_url: `/v1/escrow/${hold.id}`,
        },
      }),
      evaluation_us: fields.evaluation_us,
    };
  }

  /** What a live rule limits; undefined when there is none of that name, or without such a limit. */
  async limitOf(tenantId: string, ruleId: string, kind: LimitHit['kind']): Promise<LimitTerms | undefined> {
    const { engine } = await this.#load(tenantId);
    const annotations = engine.annotationsOf(ruleId);
    return annotations && limitTerms(annotations, kind);
  }

  /**
   * Takes an agent's word for what became of an action that it was permitted: once for each decision, and only its own.
   * What the tool answered becomes facts of the session where the policies in force accept a report.
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
      throw new AppError('INVALID_STATUS', 'what was decided on is no longer kept');
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

  /** What the policies in force want to know of a call that is over. */
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

  /** Commits the record of a decision, durably when this resolves. Rejects with UNAVAILABLE if that fails. */
  async #record(tenantId: string, event: CompleteEvent, input: KeptInput | undefined): Promise<void> {
    try {
      const { results } = await this.#append(tenantId, [{ event, input }]);
      if (!results[0] || !('seq' in results[0])) throw new Error('the database refused the record');
    } catch (error) {
      if (error instanceof AppError) throw error;
      throw new AppError('UNAVAILABLE', 'the decision could not be recorded', {
        headers: { 'retry-after': '1' },
        cause: error,
      });
    }
  }

  /** The engine for the bundle in force. The bundle is verified before use, as in a proxy. */
  async #load(tenantId: string): Promise<Loaded> {
    const bundle = await this.#bundles.current(tenantId, null);
    const loaded = this.#engines.get(tenantId);
    if (loaded?.bundle.hash === bundle.hash) return loaded;
    const { content } = openBundle(bundle.bytes, this.#keyFor, { tenant: tenantId });
    const engine = new PolicyEngine(content);
    const next = { bundle, engine, readsSession: readsSession(content.policies) };
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

  async #take(tenantId: string, agentId: string, { limits, checked, once }: Asked): Promise<Taking> {
    const id = once && `held:${once}`;
    const answer = await this.#limits.take(tenantId, {
      ...{ id, shared: true, source: CONTROL_PLANE, agentId, limits, checked },
    });
    if ('exceeded' in answer) return { ...answer, giveBack: async () => {} };
    return {
      exceeded: new Map(),
      giveBack: () =>
        this.#limits.giveBack(tenantId, CONTROL_PLANE, answer.taken, id).catch((err) => {
          // it stays taken, and no limit is passed
          this.#log.error({ err, tenantId }, 'what an action took of limits could not be given back');
        }),
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

function hashOf(report: object): string {
  try {
    return sha256Tag(canonicalJson(report));
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    const message = `the answer cannot be represented exactly: ${error.message}`;
    throw new AppError('VALIDATION_FAILED', message, { faults: [{ pointer: '/answer', message }] });
  }
}

function sessionOf({ agent_id, session_id }: ActionRequest, event_id: string) {
  return { agent_id, session_id: session_id ?? '', event_id };
}

/** The masks of a record; undefined where it has not all of them. */
function masksOf(obligations: readonly string[]): Mask[] | undefined {
  try {
    return obligations.map((one) => parseMask(one.replace(/^mask /, '')));
  } catch {
    return undefined;
  }
}

function holdRequest(
  agent: AgentPrincipal,
  input: EvaluateRequest,
  { action_hash, policy_id, shown, terms }: ActionToHold,
): HoldRequest {
  return {
    agent_role: agent.agentRole,
    agent_id: agent.agentId,
    action: shown,
    action_summary: input.action_summary ?? `${input.action_type} ${input.tool_name}`,
    risk_score: input.risk_score,
    action_hash,
    hold_type: terms.hold_type,
    required_approvals: terms.required_approvals,
    quorum: terms.quorum,
    conditions: terms.conditions?.map((condition_id) => ({ condition_id })),
    release_after_seconds: terms.delay_seconds,
    ttl_seconds: terms.ttl_seconds,
    execute_within_seconds: terms.execute_within_seconds,
    policy_id,
    rules: terms.rules,
    reason: terms.reason,
    session_id: input.session_id,
    notify_targets: terms.notify_targets ?? [],
  };
}
