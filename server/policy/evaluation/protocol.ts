import { type DecisionEvent, RECORD_FIELDS } from '../../domain/decision.ts';
import type { ActionRequest, BundleStatement, HoldTerms, RuleReference, ShownAction } from '../../domain/policy.ts';
import { canonicalJson } from '../../lib/canonical-json.ts';
import { sha256Tag } from '../../lib/crypto.ts';
import { actionHash } from './action-hash.ts';
import { type Match, type RateHit, type SettleState, settle, type Verdict } from './evaluate.ts';
import { type ShownHold, sameShown, shownAction, shownOf } from './shown.ts';

/** One action to decide. */
export interface Attempt {
  /** Without the facts of its session, which `Ports.session` gives. */
  request: ActionRequest;
  eventId: string;
  /** The hash of the bundle that it is decided by. */
  bundleHash: string | undefined;
  /** Why there is nothing to decide by, where that is so: then every action is denied. */
  standstill?: string | undefined;
  /** The hold that the agent waited for. */
  escrowId?: string | undefined;
  /** A released hold of this very action is used without being named: for clients that can only repeat their call. */
  resume?: boolean | undefined;
  /** Why the action cannot be held, where that is so: then what a policy would hold is denied. */
  unholdable?: string | undefined;
}

/** A hold, as far as decisions read it. */
export interface KnownHold extends ShownHold {
  id: string;
  status: string;
  agent_id: string;
  agent_role: string;
  action_hash: string;
  /** Who said what the action is: the control plane saw it itself, a proxy only describes it. */
  source: 'evaluate' | 'proxy';
  rules: readonly RuleReference[];
}

/** Why a hold that an agent names cannot be used. */
export type UseRefusal =
  | 'AGENT_MISMATCH'
  | 'HASH_MISMATCH'
  | 'ALREADY_CONSUMED'
  | 'ESCROW_EXPIRED'
  /** Rejected or cancelled. */
  | 'INVALID_STATUS';

/** What is to be held. */
export interface ActionToHold {
  action_hash: string;
  policy_id: string | null;
  /** Masked as its approvers will see it. */
  shown: ShownAction;
  terms: HoldTerms;
}

/** What a decision says in its record; the decision point adds its own name and what it alone knows. */
export type DecisionFields = Omit<DecisionEvent, 'proxy_id'> & { input_hash: string; action_hash: string };

/** Where a decision reaches out of pure evaluation. What the decision points do differently lies in these. */
export interface Ports<Hold extends KnownHold, Stored> {
  /** The facts of the request's session before this call; undefined where no policy asks for them. */
  session(): Promise<ActionRequest['session']> | ActionRequest['session'];
  /** The statements that the action meets. */
  match(request: ActionRequest): Match;
  /** Counts the call against each of these rates; resolves to those that are exceeded. */
  count(rates: readonly RateHit[]): Promise<SettleState['exceeded']> | SettleState['exceeded'];
  /** The hold as it is now. Rejects when the tenant has no such hold. */
  find(escrowId: string): Promise<Hold>;
  /** Leaves a record of the refused use at the control plane, then rejects with the refusal. */
  refuse(hold: Hold, why: UseRefusal, action: { action_hash: string }): Promise<never>;
  /**
   * The open hold of this action, or a new one, stored for good when it resolves; `opened` when it is new. Resolves to
   * the reason to deny where holds are out of reach but a denial can still be recorded.
   */
  open(action: ActionToHold): Promise<{ hold: Hold; opened: boolean } | { unavailable: string }>;
  /** Uses a released hold up, for good when it resolves. Rejects for all but one of any number of calls. */
  consume(hold: Hold, action: { action_hash: string }): Promise<Hold>;
  /** Takes back a hold that was opened for a decision without a record. Never rejects. */
  withdraw(hold: Hold): Promise<void>;
  /** Notes that a hold was consumed for a decision without a record. Never rejects. */
  consumedInVain(hold: Hold): Promise<void>;
  /** Microseconds since the decision began. */
  elapsed(): number;
  /** Stores the record; it is durable when this resolves. `input` is what `input_hash` is the hash of. */
  record(fields: DecisionFields, input: string): Promise<Stored>;
}

export interface Decided<Hold, Stored> {
  verdict: Verdict;
  /** The hold to wait for, or the one that was consumed for this decision. */
  hold: Hold | undefined;
  /**
   * The released hold that the agent named does not cover what the policies ask for now: a new one was opened, and the
   * agent must be refused with POLICY_CHANGED, which the record says too.
   */
  changed: boolean;
  fields: DecisionFields;
  stored: Stored;
}

/** The action has no exact form: what cannot be hashed is not decided. */
export class InexactAction extends Error {
  override readonly name = 'InexactAction';
  /** The member of the request that may be at fault, as a JSON pointer. */
  readonly pointer: string;

  constructor(pointer: string, message: string) {
    super(message);
    this.pointer = pointer;
  }
}

const NONE_EXCEEDED: SettleState['exceeded'] = new Map();

/**
 * Decides an action and records the decision: the one sequence that every decision point follows.
 *
 * INVARIANT: no record, no permit. It resolves only after the record was stored. A hold is opened before the record that
 * names it, and withdrawn when that cannot be stored. A released hold is consumed before the record too, and stays
 * consumed when there is none: at most once is the promise. A hold permits nothing but the action that it was opened
 * for: the agent, the hash of the action and the texts of the rules that hold it must all be the same, and of a hold
 * that a proxy described, what its approvers saw.
 *
 * Everything is decided again for an agent that names a hold. Where the policies in force still hold the action and
 * the released hold covers the text of each rule that does, it is consumed and the action goes on, its masks included.
 * While it is held it is answered again. Where it does not cover every rule, a new hold is opened (`changed`). A denial
 * or a rate limit consumes nothing.
 *
 * Rejects with an InexactAction, or with what a port rejects with; then nothing was decided and the agent must not act.
 */
export async function decide<Hold extends KnownHold, Stored>(
  attempt: Attempt,
  ports: Ports<Hold, Stored>,
): Promise<Decided<Hold, Stored>> {
  let { request } = attempt;
  const action_hash = exact('/arguments', () => actionHash(request));

  const finish = async (
    verdict: Verdict,
    more: { named?: Hold | undefined; opened?: Hold | undefined; consumed?: Hold | undefined; hold?: Hold | undefined },
  ): Promise<Decided<Hold, Stored>> => {
    const { named, opened, consumed, hold } = more;
    const changed = verdict.escrow !== undefined && named?.status === 'released';
    const fields = fieldsOf(attempt, request, verdict, {
      action_hash,
      input_hash: sha256Tag(input),
      evaluation_us: ports.elapsed(),
      escrow_id: hold?.id ?? named?.id,
      deny_reason: changed ? 'POLICY_CHANGED' : verdict.deny_reason,
    });
    try {
      const stored = await ports.record(fields, input);
      return { verdict, hold, changed, fields, stored };
    } catch (error) {
      if (opened) await ports.withdraw(opened);
      if (consumed) await ports.consumedInVain(consumed);
      throw error;
    }
  };

  let input: string;
  const asInput = () => exact('/context', () => canonicalJson({ v: 1, ...request }));
  if (attempt.standstill !== undefined) {
    input = asInput();
    return finish(denied(NO_VERDICT, attempt.standstill), {});
  }

  const named = attempt.escrowId === undefined ? undefined : await ports.find(attempt.escrowId);
  const foreign = named && mismatch(named, request, action_hash);
  if (foreign) await ports.refuse(named, foreign, { action_hash });
  const session = await ports.session();
  if (session) request = { ...request, session };
  input = asInput();

  const match = ports.match(request);
  const exceeded = match.rates.length === 0 ? NONE_EXCEEDED : await ports.count(match.rates);
  const shown = () => shownAction(request, match.hits);
  const verdict = settle(match, { exceeded, covered: coveredBy(named, shown) });
  const unusable = named && verdict.decision !== 'deny' && verdict.decision !== 'rate_limited' && ended(named);
  if (unusable) await ports.refuse(named, unusable, { action_hash });

  if (!verdict.escrow) {
    const consumed = named && verdict.consumes ? await ports.consume(named, { action_hash }) : undefined;
    return finish(verdict, { named, consumed, hold: consumed });
  }
  if (attempt.unholdable !== undefined) return finish(denied(verdict, attempt.unholdable), { named });
  if (named?.status === 'held') return finish(verdict, { named, hold: named });

  const answer = await ports.open({ action_hash, policy_id: verdict.policy_id, shown: shown(), terms: verdict.escrow });
  if ('unavailable' in answer) return finish(denied(verdict, answer.unavailable), { named });
  const { hold } = answer;
  if (attempt.resume && !named && hold.status === 'released') {
    const resumed = settle(match, { exceeded, covered: coveredBy(hold, shown) });
    if (resumed.consumes) {
      const consumed = await ports.consume(hold, { action_hash });
      return finish(resumed, { named: hold, consumed, hold: consumed });
    }
  }
  return finish(verdict, { named, opened: answer.opened ? hold : undefined, hold });
}

/** Does some statement read the facts of the session? They cost a look-up, so they are only given where one may. */
export function readsSession(policies: readonly Pick<BundleStatement, 'cedar'>[]): boolean {
  return policies.some(({ cedar }) => /\bsession\b/.test(cedar));
}

function fieldsOf(
  { eventId, bundleHash }: Attempt,
  request: ActionRequest,
  verdict: Verdict,
  more: Pick<DecisionFields, 'action_hash' | 'input_hash' | 'evaluation_us' | 'escrow_id' | 'deny_reason'>,
): DecisionFields {
  return {
    ...more,
    event_id: eventId,
    timestamp: request.now,
    agent_role: request.agent_role,
    agent_id: request.agent_id,
    session_id: request.session_id ?? '',
    tool_name: request.tool_name,
    method: request.method ?? '',
    decision: verdict.decision,
    policy_id: verdict.policy_id ?? '',
    deny_reason:
      more.deny_reason === undefined ? undefined : cut(more.deny_reason, RECORD_FIELDS.deny_reason.length[1]),
    policy_version: verdict.policy_version ?? undefined,
    bundle_hash: bundleHash,
    rule_id: verdict.rule_id ?? undefined,
    obligations: verdict.masks && obligations(verdict.masks),
    source_ip: request.source_ip,
  };
}

const NO_VERDICT = { rule_id: null, policy_id: null, policy_version: null, rule_ids: [] };

/** A denial in place of a verdict, naming the rule that decided up to then. */
function denied(
  { rule_id, policy_id, policy_version, rule_ids }: Pick<Verdict, keyof typeof NO_VERDICT>,
  deny_reason: string,
): Verdict {
  return { decision: 'deny', rule_id, policy_id, policy_version, rule_ids, deny_reason, consumes: false };
}

/** The rules that a released hold covers; none when a proxy showed its approvers another action than this. */
function coveredBy(hold: KnownHold | undefined, shown: () => ShownAction): readonly RuleReference[] | undefined {
  if (hold?.status !== 'released') return undefined;
  return hold.source === 'evaluate' || sameShown(shownOf(hold), shown()) ? hold.rules : undefined;
}

function mismatch(hold: KnownHold, { agent_id, agent_role }: ActionRequest, hash: string): UseRefusal | undefined {
  if (hold.agent_id !== agent_id || hold.agent_role !== agent_role) return 'AGENT_MISMATCH';
  return hold.action_hash === hash ? undefined : 'HASH_MISMATCH';
}

/** Why a hold can lead to no permit, now or later. */
function ended({ status }: KnownHold): UseRefusal | undefined {
  if (status === 'held' || status === 'released') return undefined;
  if (status === 'consumed') return 'ALREADY_CONSUMED';
  return status === 'expired' ? 'ESCROW_EXPIRED' : 'INVALID_STATUS';
}

/** One obligation for each mask; where there are more than a record holds, the last one says how many. */
function obligations(masks: readonly string[]): string[] {
  const { length, most } = RECORD_FIELDS.obligations;
  const all = masks.map((path) => cut(`mask ${path}`, length[1]));
  return all.length <= most ? all : [...all.slice(0, most - 1), `and ${all.length - most + 1} more masks`];
}

/** Never half of a surrogate pair: a record holds well-formed text only. */
function cut(text: string, most: number): string {
  return text.length <= most ? text : text.slice(0, most).toWellFormed();
}

function exact(pointer: string, hashed: () => string): string {
  try {
    return hashed();
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    throw new InexactAction(pointer, `the action has no exact form: ${error.message}`);
  }
}
