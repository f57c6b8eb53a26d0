import type { KeyObject } from 'node:crypto';
import type { Counter, Histogram } from 'prom-client';
import type { Database } from '../../db/index.ts';
import type { AppendEvent, AppendResult } from '../chain/appender.ts';
import { CONTROL_PLANE, idHash } from '../chain/record.ts';
import { actorOf } from '../domain/audit.ts';
import type { DecisionEvent } from '../domain/decision.ts';
import type { ActionRequest, ShownAction } from '../domain/policy.ts';
import type { Principal } from '../domain/principal.ts';
import { AppError } from '../errors.ts';
import type { By, HoldRequest, Holds, HoldView } from '../escrow/holds.ts';
import { canonicalJson } from '../lib/canonical-json.ts';
import type { Clock } from '../lib/clock.ts';
import { sha256Tag } from '../lib/crypto.ts';
import { newId } from '../lib/ids.ts';
import type { Log } from '../lib/log.ts';
import { openBundle } from '../policy/bundle.ts';
import type { Bundles, PublishedBundle } from '../policy/bundles.ts';
import { actionHash } from '../policy/evaluation/action-hash.ts';
import { type Match, PolicyEngine, settle, type Verdict } from '../policy/evaluation/evaluate.ts';
import { sameShown, shownAction, shownOf } from '../policy/evaluation/shown.ts';

export type AgentPrincipal = Extract<Principal, { kind: 'agent_key' }>;

/** What an agent asks for; who it is comes from its key alone. */
export interface EvaluateRequest {
  action_type: string;
  tool_name: string;
  tool_server?: string | undefined;
  method?: string | undefined;
  resource?: string | undefined;
  arguments?: unknown;
  session_id?: string | undefined;
  action_summary?: string | undefined;
  estimated_value?: number | undefined;
  value_currency?: string | undefined;
  risk_score?: number | undefined;
  context?: unknown;
}

/** The chain's appender: resolves when the record is committed. */
export type Append = (tenantId: string, events: AppendEvent[]) => Promise<AppendResult>;

interface Loaded {
  bundle: PublishedBundle;
  engine: PolicyEngine;
  /** Some live statement reads context.session, so that its facts must be looked up. */
  readsSession: boolean;
}

/** A session's earlier calls are counted up to this many; a policy that needs more is not about sessions. */
const MOST_CALLS = 10_000;

/**
 * The decision point behind POST /v1/evaluate.
 *
 * INVARIANT: no record, no permit. A decision is told only after its record is committed; a hold that it opens is stored
 * before the record that names it, and is cancelled when that record cannot be committed. A released hold is consumed
 * before the record too, and stays consumed when there is none: at most once is the promise.
 */
export class Decider {
  readonly #db: Database;
  readonly #bundles: Bundles;
  readonly #keyFor: (kid: string) => KeyObject | undefined;
  readonly #append: Append;
  readonly #holds: Holds;
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
    this.#clock = parts.clock;
    this.#log = parts.log;
    this.#decisions = parts.decisions;
    this.#seconds = parts.seconds;
  }

  /**
   * Decides and records. Rejects with UNAVAILABLE when the decision could not be recorded: the agent must not act.
   *
   * `escrowId` names the hold that the agent waited for. Everything is decided anew; where the policies now in force
   * still hold the action and the released hold covers the text of each rule that does, it is consumed and the action
   * goes on, its masks included. While it is held it is answered again. When it does not cover every rule, or when it is
   * a proxy's and its approvers saw another action than this one, a new hold is opened and recorded, and the call rejects
   * with POLICY_CHANGED naming it. A denial or a rate limit consumes nothing. Rejects with the refusals of a consume
   * otherwise, and leaves an audit record of it.
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
    const request: ActionRequest = {
      ...input,
      agent_id: agent.agentId,
      agent_role: agent.agentRole,
      owner: agent.ownerId ?? undefined,
      source_ip: from.ip,
      now: new Date(now).toISOString(),
    };
    const hash = exact('/arguments', () => actionHash(request));
    const by = { actor: actorOf(agent, from.ip), requestId: from.requestId };
    const named = escrowId === undefined ? undefined : await this.#named(agent, escrowId, hash, by);
    const { bundle, engine, readsSession } = await this.#load(tenantId);
    if (readsSession && input.session_id) request.session = await this.#session(tenantId, input.session_id, now);
    const text = exact('/context', () => canonicalJson({ v: 1, ...request }));
    const match = engine.match(request);
    if (match.detail) this.#log.warn({ tenantId, detail: match.detail }, 'a request could not be evaluated');
    const exceeded = await this.#count(tenantId, agent.agentId, match, now);
    const action = () => shownAction(request, match.hits);
    const seen = (hold: HoldView) => hold.source === 'evaluate' || sameShown(shownOf(hold), action());
    const covered = named?.status === 'released' && seen(named) ? named.rules : undefined;
    const verdict = settle(match, { exceeded, covered });

    const eventId = newId('evt', now);
    const permits = verdict.decision !== 'deny' && verdict.decision !== 'rate_limited';
    if (named && permits) await this.#assertUsable(agent.tenantId, named, by);
    let opened: { hold: HoldView; opened: boolean } | undefined;
    let consumed: HoldView | undefined;
    if (verdict.escrow) {
      opened =
        named?.status === 'held'
          ? { hold: named, opened: false }
          : await this.#hold(agent, input, hash, verdict, action(), by);
    } else if (named && verdict.consumes) {
      consumed = await this.#consume(agent, named.id, hash, eventId, by);
    }
    const hold = opened?.hold ?? consumed;
    const changed = named?.status === 'released' && opened !== undefined;
    const evaluation_us = Math.round((performance.now() - began) * 1000);
    const event: DecisionEvent = {
      event_id: eventId,
      timestamp: request.now,
      proxy_id: CONTROL_PLANE,
      key_id: agent.id,
      agent_role: agent.agentRole,
      agent_id: agent.agentId,
      session_id: input.session_id ?? '',
      tool_name: input.tool_name,
      method: input.method ?? '',
      decision: verdict.decision,
      policy_id: verdict.policy_id ?? '',
      evaluation_us,
      deny_reason: changed ? 'POLICY_CHANGED' : verdict.deny_reason,
      input_hash: sha256Tag(text),
      policy_version: verdict.policy_version ?? undefined,
      policy_content_hash: verdict.policy_id ? bundle.policies.get(verdict.policy_id)?.content_hash : undefined,
      bundle_hash: bundle.hash,
      rule_id: verdict.rule_id ?? undefined,
      escrow_id: hold?.id ?? named?.id,
      obligations: verdict.masks?.map((path) => `mask ${path}`),
      source_ip: from.ip,
      action_hash: hash,
    };
    try {
      const { results } = await this.#append(tenantId, [{ event, input: text }]);
      if (!results[0] || !('seq' in results[0])) throw new Error('the database refused the record');
    } catch (error) {
      if (opened?.opened) await this.#withdraw(tenantId, opened.hold.id);
      if (consumed) await this.#consumedInVain(tenantId, consumed.id, eventId);
      if (error instanceof AppError) throw error;
      throw new AppError('UNAVAILABLE', 'the decision could not be recorded', {
        headers: { 'retry-after': '1' },
        cause: error,
      });
    }
    this.#decisions.inc({ decision: verdict.decision });
    this.#seconds.observe((performance.now() - began) / 1000);
    if (changed) {
      throw new AppError('POLICY_CHANGED', `the policies now hold this action for more: wait for hold ${hold!.id}`, {
        headers: { 'x-svc-escrow-id': hold!.id },
      });
    }
    return {
      decision: verdict.decision,
      event_id: event.event_id,
      policy_id: verdict.policy_id,
      rule_id: verdict.rule_id,
      policy_version: verdict.policy_version,
      bundle_hash: bundle.hash,
      ...(verdict.deny_reason !== undefined && { deny_reason: verdict.deny_reason }),
      ...(verdict.masks && { masks: verdict.masks }),
      ...(verdict.retry_after !== undefined && { retry_after: verdict.retry_after }),
      action_hash: hash,
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
      evaluation_us,
    };
  }

  /** The hold that the agent names, as it is now: its own, and for this very action. */
  async #named(agent: AgentPrincipal, id: string, hash: string, by: By): Promise<HoldView> {
    const hold = await this.#holds.get(agent.tenantId, id);
    const other = hold.agent_id !== agent.agentId || hold.agent_role !== agent.agentRole;
    if (!other && hold.action_hash === hash) return hold;
    const refusal = new AppError(other ? 'AGENT_MISMATCH' : 'HASH_MISMATCH');
    await this.#holds.refusedUse(agent.tenantId, id, by, refusal);
    throw refusal;
  }

  /** Rejects with why the hold that the agent names cannot lead to a permit, now or later. */
  async #assertUsable(tenantId: string, { id, status }: HoldView, by: By): Promise<void> {
    if (status === 'held' || status === 'released') return;
    const refusal =
      status === 'consumed'
        ? new AppError('ALREADY_CONSUMED')
        : status === 'expired'
          ? new AppError('ESCROW_EXPIRED')
          : new AppError('INVALID_STATUS', `the hold is ${status}`);
    await this.#holds.refusedUse(tenantId, id, by, refusal);
    throw refusal;
  }

  /** The engine of the bundle in force. A bundle is verified like a proxy would before anything is decided by it. */
  async #load(tenantId: string): Promise<Loaded> {
    const bundle = await this.#bundles.current(tenantId, null);
    const loaded = this.#engines.get(tenantId);
    if (loaded?.bundle.hash === bundle.hash) return loaded;
    const { content } = openBundle(bundle.bytes, this.#keyFor, { tenant: tenantId });
    const engine = new PolicyEngine(content);
    const readsSession = content.policies.some(({ cedar }) => /\bsession\b/.test(cedar));
    const next = { bundle, engine, readsSession };
    this.#engines.get(tenantId)?.engine.dispose();
    this.#engines.set(tenantId, next);
    return next;
  }

  /** What the session did before, from the records themselves. */
  async #session(tenantId: string, sessionId: string, now: number) {
    const rows = await this.#db.query<{ calls: number; started: string | null }>(
      tenantId,
      `select count(*)::int as calls, min(line::json->>'timestamp') as started from (
         select line from forensic_record where tenant_id = $1 and session_h = $2
           and line::json->>'session_id' = $3 order by seq limit ${MOST_CALLS}) r`,
      [tenantId, idHash(sessionId), sessionId],
    );
    return { call_count: rows[0]!.calls, started: rows[0]!.started ?? new Date(now).toISOString() };
  }

  /** Counts the call against each rate of the rules that it hit, in windows that begin with the first call. */
  async #count(tenantId: string, agentId: string, match: Match, now: number) {
    const exceeded = new Map<string, { retry_after: number }>();
    if (match.rates.length === 0) return exceeded;
    await this.#db.transaction(tenantId, async (em) => {
      for (const { rule_id, limit, window_seconds } of match.rates) {
        const at = new Date(now);
        const end = new Date(now + window_seconds * 1000);
        const rows = await em.execute<{ hits: number; window_ends_at: Date | string }[]>(
          `insert into rate_counter as c (tenant_id, rule_id, agent_id, window_ends_at, hits) values (?, ?, ?, ?, 1)
           on conflict (tenant_id, rule_id, agent_id) do update set
             hits = case when c.window_ends_at <= ? then 1 else least(c.hits + 1, ?) end,
             window_ends_at = case when c.window_ends_at <= ? then excluded.window_ends_at else c.window_ends_at end
           returning hits, window_ends_at`,
          [tenantId, rule_id, agentId, end, at, limit + 1, at],
        );
        const { hits, window_ends_at } = rows[0]!;
        if (hits > limit) {
          const left = new Date(window_ends_at).getTime() - now;
          exceeded.set(rule_id, { retry_after: Math.max(1, Math.ceil(left / 1000)) });
        }
      }
    });
    return exceeded;
  }

  #hold(
    agent: AgentPrincipal,
    input: EvaluateRequest,
    hash: string,
    { escrow, policy_id }: Verdict,
    action: ShownAction,
    by: By,
  ) {
    const terms = escrow!;
    const request: HoldRequest = {
      agent_role: agent.agentRole,
      agent_id: agent.agentId,
      action,
      action_summary: input.action_summary ?? `${input.action_type} ${input.tool_name}`,
      risk_score: input.risk_score,
      action_hash: hash,
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
    return this.#holds.open(agent.tenantId, request, by);
  }

  #consume(agent: AgentPrincipal, id: string, hash: string, eventId: string, by: By) {
    const action = { action_hash: hash, agent_role: agent.agentRole, agent_id: agent.agentId };
    return this.#holds.consume(agent.tenantId, id, action, by, `for decision ${eventId}`);
  }

  async #consumedInVain(tenantId: string, holdId: string, eventId: string): Promise<void> {
    try {
      await this.#holds.consumedInVain(
        tenantId,
        holdId,
        `decision ${eventId} could not be recorded; it stays consumed`,
      );
    } catch (err) {
      // the database is away; the record of the consumption names the decision, which is not in the chain
      this.#log.error({ err, holdId, eventId }, 'a hold was consumed for a decision without a record');
    }
  }

  async #withdraw(tenantId: string, holdId: string): Promise<void> {
    try {
      await this.#holds.withdraw(tenantId, holdId, 'the decision could not be recorded');
    } catch (err) {
      // the database is away: the hold has no record that names it, nobody was told of it, and it ends by itself
      this.#log.error({ err, holdId }, 'a hold without a record could not be cancelled');
    }
  }
}

/** What is hashed must have one exact form; where it has none, the caller is told which part of the body is at fault. */
function exact(pointer: string, hashed: () => string): string {
  try {
    return hashed();
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    throw new AppError('VALIDATION_FAILED', `the action has no exact form: ${error.message}`, {
      faults: [{ pointer, message: error.message }],
    });
  }
}
