import { type Decision, type Permit, permits } from '../domain/decision.ts';
import type { ActionRequest, RuleReference, ShownAction } from '../domain/policy.ts';
import { canonicalJson } from '../lib/canonical-json.ts';
import type { Clock } from '../lib/clock.ts';
import { sha256Tag } from '../lib/crypto.ts';
import { newId } from '../lib/ids.ts';
import type { Log } from '../lib/log.ts';
import { actionHash } from '../policy/evaluation/action-hash.ts';
import { inDoubt, shownPath, wantOf } from '../policy/evaluation/doubt.ts';
import { doubted, type Match, settle, type Verdict } from '../policy/evaluation/evaluate.ts';
import { type Mask, parseMask } from '../policy/evaluation/masks.ts';
import { type Arguments, exactDecimal, flatten, RequestError } from '../policy/evaluation/request.ts';
import { sameShown, shownAction, shownOf } from '../policy/evaluation/shown.ts';
import type { Agent } from './agents.ts';
import type { ValueRule } from './config.ts';
import { ControlPlaneError, type Hold } from './control-plane.ts';
import { Counters } from './counters.ts';
import type { Governance, Governing, Standstill } from './governance.ts';
import type { Holds } from './holds.ts';
import { type Spool, SpoolError } from './spool.ts';

/** What an agent is about to do. */
export interface Attempt {
  agent: Agent;
  action_type: string;
  tool_name: string;
  tool_server?: string | undefined;
  method?: string | undefined;
  resource?: string | undefined;
  arguments: unknown;
  /** Where in the arguments it stands what the action is worth. */
  value?: ValueRule | undefined;
  session_id?: string | undefined;
  source_ip?: string | undefined;
  /** What approvers read of it. */
  summary: string;
  /** The hold that the agent waited for. */
  escrowId?: string | undefined;
  /** A released hold of this very action is used without being named: for clients that can only repeat their call. */
  resume?: boolean;
  /** Why it cannot be held, where that is so: then what a policy would hold is denied. */
  unholdable?: string;
}

/** What was decided, which is on the disk by then. */
export type Ruling = { eventId: string } & (
  | { decision: Permit; masks: readonly Mask[]; done: (outcome: string) => void }
  | { decision: 'deny'; reason: string; standstill?: Standstill | 'control_plane_away' }
  | { decision: 'escrow'; hold: Hold; reason: string | undefined }
  | { decision: 'rate_limited'; retryAfter: number }
);

/** The attempt was refused without a decision, and so without a record: it is malformed, or names a hold in vain. */
export class Refusal extends Error {
  override readonly name = 'Refusal';
  readonly status: number;
  readonly code: string;
  readonly more: { retryAfter?: number; escrowId?: string };

  constructor(status: number, code: string, message: string, more: { retryAfter?: number; escrowId?: string } = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.more = more;
  }
}

const STANDSTILLS: Record<Standstill | 'control_plane_away', string> = {
  no_bundle: 'the proxy has no policies yet',
  bundle_expired: 'the policies of the proxy are past their end',
  key_refused: 'the control plane does not accept the proxy',
  control_plane_away: 'the action could not be held at the control plane',
};

/**
 * The enforcement point's decision, as `POST /v1/evaluate` takes it, with the record on this proxy's disk.
 *
 * INVARIANT: no record, no permit. A ruling is told only after its event is on the disk. A hold is opened before the
 * event that names it, and cancelled when that could not be stored. A released hold is consumed at the control plane
 * before the event too, and stays consumed when there is none: at most once is the promise.
 */
export class Enforcer {
  readonly #governance: Governance;
  readonly #spool: Spool;
  readonly #holds: Holds;
  readonly #proxyId: string;
  readonly #clock: Clock;
  readonly #log: Log;
  readonly #counters = new Counters();
  /** Told of every ruling, with the seconds that it took. */
  onRuling: (decision: Decision, seconds: number) => void = () => {};

  constructor(parts: {
    governance: Governance;
    spool: Spool;
    holds: Holds;
    proxyId: string;
    clock: Clock;
    log: Log;
  }) {
    this.#governance = parts.governance;
    this.#spool = parts.spool;
    this.#holds = parts.holds;
    this.#proxyId = parts.proxyId;
    this.#clock = parts.clock;
    this.#log = parts.log;
  }

  /** Decides and records. Rejects with a Refusal when nothing was decided; the action must then not be done. */
  async rule(attempt: Attempt): Promise<Ruling> {
    const began = performance.now();
    try {
      // asked before anything is begun: a hold that is opened or consumed for nothing helps nobody
      this.#spool.assertRoom();
      const ruling = await this.#rule(attempt, began);
      setImmediate(this.onRuling, ruling.decision, (performance.now() - began) / 1000);
      return ruling;
    } catch (error) {
      if (error instanceof SpoolError) {
        this.#log.error({ detail: error.message }, 'nothing can be recorded: refused');
        throw new Refusal(503, 'UNAVAILABLE', 'the decision could not be recorded', { retryAfter: 5 });
      }
      throw error;
    }
  }

  /**
   * What can be told of a tool before it is called: that every call by this agent is denied whatever the arguments (what
   * is not sure is not denied, and the call itself is decided in any case), and that answers may be masked.
   */
  outlook(agent: Agent, action_type: string, tool_name: string, tool_server: string | undefined) {
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

  async #rule(attempt: Attempt, began: number): Promise<Ruling> {
    const now = this.#clock.now();
    const { agent, escrowId, resume, summary, unholdable, value, ...action } = attempt;
    const { doubt, ...worthOf } = value ? worth(action.arguments, value) : {};
    const request: ActionRequest = {
      ...action,
      ...worthOf,
      agent_id: agent.id,
      agent_role: agent.role,
      owner: agent.owner,
      now: new Date(now).toISOString(),
    };
    const hash = exact(() => actionHash(request));
    const standing = this.#governance.standing;
    const governing = typeof standing === 'string' ? undefined : standing;
    if (governing?.readsSession && request.session_id) {
      request.session = this.#counters.session(agent.id, request.session_id, now);
    }
    const text = exact(() => canonicalJson({ v: 1, ...request }));
    const record = { request, hash, inputHash: sha256Tag(text), governing, began, now };
    if (!governing) return this.#standstill(record, standing as Standstill);

    let named = escrowId === undefined ? undefined : await this.#named(escrowId, agent, hash);
    const match = doubt === undefined ? governing.engine.match(request) : doubted(doubt);
    if (match.detail) this.#log.warn({ detail: match.detail }, 'a request could not be evaluated');
    const exceeded = this.#count(match, agent.id, now);
    const shown = () => shownAction(request, match.hits);
    let verdict = settle(match, { exceeded, covered: coveredBy(named, shown) });
    if (named && verdict.decision !== 'deny' && verdict.decision !== 'rate_limited') {
      await this.#assertUsable(named, agent, hash);
    }

    if (verdict.escrow && unholdable !== undefined) {
      const { eventId } = await this.#store(record, { ...verdict, decision: 'deny', deny_reason: unholdable }, {});
      return { eventId, decision: 'deny', reason: unholdable };
    }
    let opened: Hold | undefined;
    if (verdict.escrow && named?.status !== 'held') {
      const held = {
        agent_id: request.agent_id,
        agent_role: request.agent_role,
        action_summary: summary.slice(0, 500).toWellFormed(),
        action_hash: hash,
        policy_id: verdict.policy_id,
        shown: shown(),
      };
      try {
        opened = await this.#holds.open(held, verdict.escrow, governing.hash);
      } catch (error) {
        if (!(error instanceof ControlPlaneError)) throw error;
        this.#log.error({ detail: error.message }, 'a hold could not be opened');
        return this.#standstill(record, 'control_plane_away', verdict);
      }
      if (resume && !named && opened.status === 'released') {
        const again = settle(match, { exceeded, covered: coveredBy(opened, shown) });
        if (!again.escrow) {
          verdict = again;
          named = opened;
          opened = undefined;
        }
      }
    }
    const consumed = named && verdict.consumes ? await this.#consume(named, agent, hash) : undefined;
    const hold = opened ?? (verdict.escrow ? named : consumed);
    const changed = named?.status === 'released' && opened !== undefined;

    const stored = await this.#store(record, verdict, {
      escrow_id: hold?.id ?? named?.id,
      ...(changed && { deny_reason: 'POLICY_CHANGED' }),
    }).catch(async (error) => {
      if (opened) await this.#withdraw(opened);
      if (consumed) this.#log.error({ hold: consumed.id }, 'a hold was consumed for a decision without a record');
      throw error;
    });
    if (changed) {
      throw new Refusal(
        409,
        'POLICY_CHANGED',
        `the policies now hold this action for more: wait for hold ${hold!.id}`,
        {
          escrowId: hold!.id,
        },
      );
    }
    const { eventId, seq } = stored;
    switch (verdict.decision) {
      case 'deny':
        return { eventId, decision: 'deny', reason: verdict.deny_reason ?? '' };
      case 'rate_limited':
        return { eventId, decision: 'rate_limited', retryAfter: verdict.retry_after ?? 1 };
      case 'escrow':
        return { eventId, decision: 'escrow', hold: hold!, reason: verdict.escrow?.reason };
      default:
        return {
          eventId,
          decision: verdict.decision,
          masks: (verdict.masks ?? []).map(parseMask),
          done: (outcome) =>
            this.#spool.settle(seq, { outcome, total_latency_ms: Math.round(performance.now() - began) }),
        };
    }
  }

  /** Nothing to decide by: denied and recorded, whoever asks for what. */
  async #standstill(record: Recorded, why: keyof typeof STANDSTILLS, verdict?: Verdict): Promise<Ruling> {
    const reason = STANDSTILLS[why];
    const { eventId } = await this.#store(
      record,
      {
        decision: 'deny',
        rule_id: verdict?.rule_id ?? null,
        policy_id: verdict?.policy_id ?? null,
        policy_version: verdict?.policy_version ?? null,
        rule_ids: [],
        consumes: false,
        deny_reason: reason,
      },
      {},
    );
    return { eventId, decision: 'deny', reason, standstill: why };
  }

  async #store(
    { request, hash, inputHash, governing, began, now }: Recorded,
    verdict: Verdict,
    more: { escrow_id?: string | undefined; deny_reason?: string },
  ): Promise<{ eventId: string; seq: number }> {
    const eventId = newId('evt', now);
    const event = {
      event_id: eventId,
      event_type: `decision.${verdict.decision}`,
      timestamp: request.now,
      proxy_id: this.#proxyId,
      agent_role: request.agent_role,
      agent_id: request.agent_id,
      session_id: request.session_id ?? '',
      tool_name: request.tool_name,
      method: request.method ?? '',
      decision: verdict.decision,
      policy_id: verdict.policy_id ?? '',
      evaluation_us: Math.round((performance.now() - began) * 1000),
      deny_reason: more.deny_reason ?? verdict.deny_reason?.slice(0, 2000),
      input_hash: inputHash,
      policy_version: verdict.policy_version ?? undefined,
      bundle_hash: governing?.hash,
      rule_id: verdict.rule_id ?? undefined,
      escrow_id: more.escrow_id,
      obligations: verdict.masks && obligations(verdict.masks),
      source_ip: request.source_ip,
      action_hash: hash,
    };
    const seq = await this.#spool.append(() => event, permits(verdict.decision));
    return { eventId, seq };
  }

  #count(match: Match, agentId: string, now: number): Map<string, { retry_after: number }> {
    const exceeded = new Map<string, { retry_after: number }>();
    for (const rate of match.rates) {
      const retry_after = this.#counters.hit(rate, agentId, now);
      if (retry_after !== undefined) exceeded.set(rate.rule_id, { retry_after });
    }
    return exceeded;
  }

  /** The hold that the agent names, as it is now: its own, and for this very action. */
  async #named(id: string, agent: Agent, hash: string): Promise<Hold> {
    const hold = await this.#holds.get(id).catch((error) => {
      throw asRefusal(error, 'the hold cannot be looked up now');
    });
    const own = hold.agent_id === agent.id && hold.agent_role === agent.role;
    if (!own || hold.action_hash !== hash) await this.#refuse(hold, agent, hash);
    return hold;
  }

  /** Rejects with why the hold that the agent names cannot lead to a permit, now or later. */
  async #assertUsable(hold: Hold, agent: Agent, hash: string): Promise<void> {
    if (hold.status !== 'held' && hold.status !== 'released') await this.#refuse(hold, agent, hash);
  }

  /**
   * Rejects with why a hold of another action, or one that has ended, cannot be used. The control plane is asked to
   * consume it first: it refuses too, and keeps a record of the attempt.
   */
  async #refuse(hold: Hold, agent: Agent, hash: string): Promise<never> {
    try {
      await this.#holds.consume(hold.id, { action_hash: hash, agent_id: agent.id, agent_role: agent.role });
    } catch (error) {
      if (!(error instanceof ControlPlaneError)) throw error;
      if (error.passing) this.#log.warn({ hold: hold.id }, 'the refused use of a hold could not be recorded');
    }
    throw refusalOf(hold, agent, hash);
  }

  async #consume(hold: Hold, agent: Agent, hash: string): Promise<Hold> {
    const by = { action_hash: hash, agent_id: agent.id, agent_role: agent.role };
    try {
      return await this.#holds.consume(hold.id, by);
    } catch (error) {
      throw asRefusal(error, 'whether the hold was consumed is not known: look it up before anything is repeated');
    }
  }

  async #withdraw(hold: Hold): Promise<void> {
    try {
      await this.#holds.cancel(hold.id, 'the decision could not be recorded');
    } catch (err) {
      // nobody was told of it, and it ends by itself
      this.#log.error({ err, hold: hold.id }, 'a hold without a record could not be cancelled');
    }
  }
}

interface Recorded {
  request: ActionRequest;
  hash: string;
  inputHash: string;
  governing: Governing | undefined;
  began: number;
  now: number;
}

/** The rules that a released hold stands for; none when another proxy showed its approvers another action than this. */
function coveredBy(hold: Hold | undefined, shown: () => ShownAction): readonly RuleReference[] | undefined {
  if (hold?.status !== 'released') return undefined;
  return hold.source === 'evaluate' || sameShown(shownOf(hold), shown()) ? hold.rules : undefined;
}

function refusalOf(hold: Hold, agent: Agent, hash: string): Refusal {
  if (hold.agent_id !== agent.id || hold.agent_role !== agent.role) {
    return new Refusal(403, 'AGENT_MISMATCH', 'the hold belongs to another agent');
  }
  if (hold.action_hash !== hash) return new Refusal(422, 'HASH_MISMATCH', 'the hold was opened for another request');
  if (hold.status === 'consumed') return new Refusal(409, 'ALREADY_CONSUMED', 'the hold was consumed already');
  if (hold.status === 'expired') return new Refusal(410, 'ESCROW_EXPIRED', 'the hold has expired');
  return new Refusal(409, 'INVALID_STATUS', `the hold is ${hold.status}`);
}

/** What the control plane says of a hold is passed on; that it says nothing is a 503. */
function asRefusal(error: unknown, unknown: string): unknown {
  if (!(error instanceof ControlPlaneError)) return error;
  if (error.passing) return new Refusal(503, 'UNAVAILABLE', unknown, { retryAfter: error.retryAfterSeconds ?? 5 });
  const known: Record<string, string> = {
    NOT_FOUND: 'there is no such hold',
    ALREADY_CONSUMED: 'the hold was consumed already',
    ESCROW_EXPIRED: 'the hold has expired',
    HASH_MISMATCH: 'the hold was opened for another request',
    AGENT_MISMATCH: 'the hold belongs to another agent',
  };
  return new Refusal(error.status, error.code, known[error.code] ?? 'the hold cannot be used');
}

/** The largest value that a hold may have. */
const MOST_VALUE = 1e14;

/**
 * What the action is worth, from its arguments under the keys that policies see; nothing where they do not say. What is
 * there and cannot be read as an amount or a currency is in doubt: a rule on `context.amount` must not be passed by.
 */
function worth(
  args: unknown,
  rule: ValueRule,
): Pick<ActionRequest, 'estimated_value' | 'value_currency'> & { doubt?: string } {
  let flat: Arguments;
  try {
    flat = flatten(args, undefined);
  } catch (error) {
    // the engine refuses these arguments too, and that denial is recorded
    if (error instanceof RequestError) return {};
    throw error;
  }
  const { from, currency_from } = rule;
  if (inDoubt(flat, wantOf(from, ['num']))) return { doubt: shownPath(from) };
  const number = flat.num.get(from);
  if (number === undefined) return {};
  const amount = Number(number) / rule.divide_by;
  // of more digits than a floating-point number holds, what is left could be below a limit
  if (exactDecimal(Number(number)) !== number) return { doubt: shownPath(from) };
  if (!(amount >= 0 && amount <= MOST_VALUE)) return { doubt: shownPath(from) };
  if (currency_from !== undefined && inDoubt(flat, wantOf(currency_from, ['str']))) {
    return { doubt: shownPath(currency_from) };
  }
  const currency = currency_from === undefined ? rule.currency : flat.str.get(currency_from);
  if (currency_from !== undefined && currency !== undefined && currency.length > 10) {
    return { doubt: shownPath(currency_from) };
  }
  return { estimated_value: amount, ...(currency !== undefined && { value_currency: currency }) };
}

/** An event holds 32 obligations of 500 characters; of more than that it tells how many there are. */
function obligations(masks: string[]): string[] {
  const all = masks.map((path) => `mask ${path}`.slice(0, 500));
  return all.length <= 32 ? all : [...all.slice(0, 31), `and ${all.length - 31} more masks`];
}

/** What is hashed must have one exact form; what has none is not decided. */
function exact(hashed: () => string): string {
  try {
    return hashed();
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    throw new Refusal(400, 'VALIDATION_FAILED', `the action has no exact form: ${error.message}`);
  }
}
