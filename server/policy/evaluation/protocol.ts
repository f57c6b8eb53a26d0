import { type CompleteEvent, type DecisionFacts, MOST_FACTS, permits, RECORD_FIELDS } from '../../domain/decision.ts';
import { commit, type KeptInput } from '../../domain/kept-input.ts';
import type { ActionRequest, ActionView, BundleStatement, HoldTerms, RuleReference } from '../../domain/policy.ts';
import { type Stop, stopReason, stopRule } from '../../domain/stops.ts';
import { DEFINITION_RULE } from '../../domain/tools.ts';
import { canonicalJson } from '../../lib/canonical-json.ts';
import type { Trace } from '../../lib/trace.ts';
import { actionHash } from './action-hash.ts';
import { approverView, type HeldAction, isSameView, viewOf } from './approver-view.ts';
import { coveredBy, engineName, type Match, type SettleState, settle, type Verdict } from './evaluate.ts';
import { heldTake, type LimitHit } from './limits.ts';
import { namesOf } from './projection.ts';
import { definitionRule } from './registry.ts';

/** One action to decide. */
export interface Attempt {
  /** Without the facts of its session, which come from `Ports.session`. */
  request: ActionRequest;
  eventId: string;
  /** The hash of the bundle used for the decision. */
  bundleHash: string | undefined;
  /**
   * If the policies are not asked, the reason: a code for the record, the reason for denying the action, and the hold that
   * it waited for, if that is why.
   */
  standstill?: { code: string; reason: string; escrow_id?: string | undefined } | undefined;
  /** The stop that covers the action. The action is denied, or held where policies would permit it. */
  stop?: Stop | undefined;
  /** For the record only. */
  trace?: Pick<Trace, 'trace_id' | 'span_id'> | undefined;
  /** The hold that the agent refers to. */
  escrowId?: string | undefined;
  /** Also use a released hold of this action that the agent does not name: for clients that can only repeat their call. */
  resume?: boolean | undefined;
  /** The reason the action cannot be held, if so. Where a policy would hold it, it is denied with this reason. */
  unholdable?: string | undefined;
  /**
   * The maximum number of bytes of each text of the request to keep; 0 for none. If a text is not kept, the record has no
   * hash of it either. Absent: both are kept, whatever their size.
   */
  keep?: { input: number; projection: number } | undefined;
}

/** The parts of a hold that decisions read. */
export interface KnownHold extends HeldAction {
  id: string;
  status: string;
  agent_id: string;
  agent_role: string;
  action_hash: string;
  /** Where the description of the action comes from: the control plane evaluated it, or a proxy reported it. */
  source: 'evaluate' | 'proxy';
  rules: readonly RuleReference[];
}

/** The reason a hold that an agent names cannot be used. */
export type UseRefusal =
  | 'AGENT_MISMATCH'
  | 'HASH_MISMATCH'
  | 'ALREADY_CONSUMED'
  | 'ESCROW_EXPIRED'
  /** Rejected or cancelled. */
  | 'INVALID_STATUS';

export interface ActionToHold {
  action_hash: string;
  policy_id: string | null;
  /** As its approvers will see it, masked. */
  shown: ActionView;
  terms: HoldTerms;
}

/** The record fields that only the decision points know; each of them sets all of these in `record`. */
type PointField =
  | 'proxy_id'
  | 'proxy_seq'
  | 'key_id'
  | 'policy_content_hash'
  | 'outcome'
  | 'total_latency_ms'
  | 'confidence';

/** The fields of a decision record that the evaluation determines. */
export type DecisionFields = Omit<CompleteEvent, PointField>;

/** The fields that the decision point adds. */
export type PointFields = Pick<CompleteEvent, PointField>;

/** The side effects of a decision. Decision points differ only in how they implement these. */
export interface Ports<Hold extends KnownHold, Stored> {
  /** The state of the request's session before this call; undefined if no policy reads it. */
  session(request: ActionRequest): Promise<ActionRequest['session']> | ActionRequest['session'];
  /** The statements that the action matches. */
  match(request: ActionRequest): Match | Promise<Match>;
  /**
   * The pin of the tool's definition seen last; null if none was seen. Asked if the tool registry holds a request that
   * names no definition. Resolves to `unavailable`, the reason to deny, if it cannot be determined but a denial can still
   * be recorded.
   */
  definition(request: ActionRequest): Promise<{ pin: string | null } | { unavailable: string }>;
  /**
   * Takes what the action needs from each of these limits, or nothing at all if one of them would be exceeded: durably, and
   * never more than the limit across concurrent calls. `checked` are limits that must have room but from which nothing is
   * taken yet. With `once`, what was taken under the same name in windows that are still open is not taken again. Resolves
   * to `unavailable`, the reason to deny, if it cannot be determined but a denial can still be recorded.
   */
  take(asked: Asked): Promise<Taking | { unavailable: string }> | Taking | { unavailable: string };
  /** The current state of the hold. Rejects if the tenant has no such hold. */
  find(escrowId: string): Promise<Hold>;
  /** Records the refused use at the control plane, then rejects with the refusal. */
  refuse(hold: Hold, why: UseRefusal, action: { action_hash: string }): Promise<never>;
  /**
   * The open hold for this action, or a new one (`opened`), durable when this resolves. Resolves to `unavailable`, the
   * reason to deny, if holds cannot be reached but a denial can still be recorded.
   */
  open(action: ActionToHold): Promise<{ hold: Hold; opened: boolean } | { unavailable: string }>;
  /** Consumes a released hold, durably when this resolves. However many calls there are, only one resolves. */
  consume(hold: Hold, action: { action_hash: string }): Promise<Hold>;
  /** Withdraws a hold whose decision could not be recorded. Never rejects. */
  withdraw(hold: Hold): Promise<void>;
  /** Audits that a hold was consumed for a decision that could not be recorded. Never rejects. */
  consumedWithoutRecord(hold: Hold): Promise<void>;
  /** Microseconds since the decision began. */
  elapsed(): number;
  /** Stores the record with what is kept of the request, durably when this resolves. */
  record(
    fields: DecisionFields,
    kept: KeptInput | undefined,
    decided: Omit<Decided<Hold, never>, 'stored'>,
  ): Promise<Stored>;
}

/** What an action needs from limits. */
export interface Asked {
  limits: readonly LimitHit[];
  checked: readonly LimitHit[];
  once?: string;
}

/** The result of taking from limits. */
export interface Taking {
  /** By rule. If it is not empty, nothing was taken. */
  exceeded: SettleState['exceeded'];
  /** Gives back what was taken, for an action that is not permitted after all. Never rejects. */
  giveBack(): Promise<void>;
}

export interface Decided<Hold, Stored> {
  verdict: Verdict;
  /** The hold to wait for, or the one that was consumed for this decision. */
  hold: Hold | undefined;
  /**
   * Whether the released hold that the agent named does not cover the rules now in force. A new one was then opened, and
   * the agent must get POLICY_CHANGED, as the record says.
   */
  changed: boolean;
  fields: DecisionFields;
  /** The hash of the action as it was decided. */
  action_hash: string;
  stored: Stored;
}

/** The action has no exact canonical form, so it cannot be hashed or decided. */
export class InexactAction extends Error {
  override readonly name = 'InexactAction';
  /** JSON pointer to the member of the request that caused it. */
  readonly pointer: string;

  constructor(pointer: string, message: string) {
    super(message);
    this.pointer = pointer;
  }
}

const NOTHING_TAKEN: Taking = { exceeded: new Map(), giveBack: async () => {} };

/**
 * Decides an action and records the decision. Every decision point follows this sequence.
 *
 * INVARIANT: no record, no permit. It resolves only after the record is stored. A hold is opened before the record that
 * names it, and withdrawn if the record cannot be stored. A released hold is also consumed before the record, and stays
 * consumed if there is none: a release is used at most once. A hold permits only the action it was opened for: the
 * agent, the action hash and the texts of the rules must all be the same, and for a hold that a proxy reported, also
 * what its approvers saw. The text of the tool registry's rule names a definition, whether or not the request does.
 *
 * If the agent names a hold, the action is decided again. If the policies in force would still hold it, and the released
 * hold covers the text of every such rule, the hold is consumed and the action proceeds with its masks. If the hold is
 * still waiting, the answer is the same hold. If it does not cover every rule, a new hold is opened (`changed`). A denial
 * or an exceeded limit consumes nothing.
 *
 * A call counts against the rates of its rules when it is permitted or held; using the release does not count it again.
 * It counts against budgets when it is permitted. Units are taken from limits before the record is stored, and given back
 * if it cannot be, so that no limit is ever exceeded; after a crash in between, they stay taken.
 *
 * Rejects with an InexactAction, or with the error of a port. Then nothing was decided and the agent must not act.
 */
export async function decide<Hold extends KnownHold, Stored>(
  attempt: Attempt,
  ports: Ports<Hold, Stored>,
): Promise<Decided<Hold, Stored>> {
  let { request } = attempt;
  const action_hash = exactly('/arguments', () => actionHash(request));

  const facts: Mutable<DecisionFacts> = {};
  const finish = async (
    verdict: Verdict,
    more: { named?: Hold | undefined; opened?: Hold | undefined; consumed?: Hold | undefined; hold?: Hold | undefined },
  ): Promise<Decided<Hold, Stored>> => {
    const { named, opened, consumed, hold } = more;
    const changed = verdict.escrow !== undefined && named?.status === 'released';
    const { kept, commitments } = commit(toKeep(attempt, input, request, match), action_hash);
    const fields = fieldsOf(attempt, request, verdict, {
      ask_commit: commitments.ask_commit,
      input_hash: commitments.input_hash,
      action_ref: commitments.action_ref,
      engine: match && engineName(),
      facts: Object.values(facts).some((fact) => fact !== undefined) ? facts : undefined,
      evaluation_us: ports.elapsed(),
      // a permit names only the hold that it used: what names another was permitted without it
      escrow_id: hold?.id ?? (permits(verdict.decision) ? undefined : named?.id) ?? attempt.standstill?.escrow_id,
      deny_reason: changed ? 'POLICY_CHANGED' : verdict.deny_reason,
    });
    try {
      const decided = { verdict, hold, changed, fields, action_hash };
      return { ...decided, stored: await ports.record(fields, kept, decided) };
    } catch (error) {
      await giveBack();
      if (opened) await ports.withdraw(opened);
      if (consumed) await ports.consumedWithoutRecord(consumed);
      throw error;
    }
  };

  const takings: Taking[] = [];
  const giveBack = () => Promise.all(takings.splice(0).map((taking) => taking.giveBack()));
  const take = async (asked: Asked) => {
    if (asked.limits.length + asked.checked.length === 0) return NOTHING_TAKEN;
    const taking = await ports.take(asked);
    if ('exceeded' in taking) takings.push(taking);
    return taking;
  };
  const consume = (hold: Hold) =>
    ports.consume(hold, { action_hash }).catch(async (error: unknown) => {
      await giveBack();
      throw error;
    });

  let input: string;
  let match: Match | undefined;
  const canonicalInput = () =>
    exactly('/context', () => {
      if (attempt.keep?.input !== 0) return canonicalJson({ v: 1, ...request });
      // it is not kept, but its other members must be exact as well: these two have already been hashed
      canonicalJson({ ...request, arguments: undefined, context: undefined });
      return '';
    });
  if (attempt.standstill !== undefined) {
    input = canonicalInput();
    facts.standstill = attempt.standstill.code;
    return finish(denied(NO_VERDICT, attempt.standstill.reason), {});
  }
  const { stop } = attempt;
  if (stop?.mode === 'deny') {
    input = canonicalInput();
    facts.standstill = 'stopped';
    facts.stop = stop.id;
    return finish(stopped(stop), {});
  }

  const named = attempt.escrowId === undefined ? undefined : await ports.find(attempt.escrowId);
  const mismatched = named && mismatchReason(named, request, action_hash);
  if (mismatched) await ports.refuse(named, mismatched, { action_hash });
  const session = await ports.session(request);
  if (session) request = { ...request, session };
  input = canonicalInput();

  const found = ports.match(request);
  const open = frozen(found instanceof Promise ? await found : found, stop);
  match = open;
  facts.doubt = open.doubt;
  if (session) facts.session = sessionFacts(open);
  if (open.outcome === 'permitted') facts.stop = stop?.id;
  const seen = leavesDefinitionOpen(open, request) ? await ports.definition(request) : { pin: request.tool_pin };
  if ('unavailable' in seen) {
    facts.unholdable = true;
    return finish(denied(settle(open, { exceeded: new Map() }), seen.unavailable), { named });
  }
  /** The request as it is held: with the definition that a release applies to. */
  const held = seen.pin === request.tool_pin ? request : { ...request, tool_pin: seen.pin };
  const matched = held === request ? open : withDefinition(open, held);
  const shown = () => approverView(held, matched.hits);
  const settled = (hold: Hold | undefined, exceeded: SettleState['exceeded']) => {
    const covered = referencesOf(hold, shown);
    const rules = coveredBy(covered, matched.hits);
    facts.covered = rules.length > 0 ? rules.slice(0, MOST_FACTS) : undefined;
    const over = [...exceeded].map(([rule, { retry_after }]) => [rule, retry_after] as const);
    facts.exceeded = over.length > 0 ? over.sort(([a], [b]) => (a < b ? -1 : 1)).slice(0, MOST_FACTS) : undefined;
    return settle(matched, { exceeded, covered });
  };
  const [rates, budgets] = [
    matched.limits.filter(({ kind }) => kind === 'rate'),
    matched.limits.filter(({ kind }) => kind === 'budget'),
  ];
  // as if no limit were exceeded: what to count depends on whether the action is permitted or held
  const { decision: otherwise, consumes } = settled(named, new Map());
  const unusable = named && otherwise !== 'deny' && unusableReason(named);
  // before anything is taken: what the same action took for another hold is not given back with this refusal
  if (unusable) await ports.refuse(named, unusable, { action_hash });
  const taking = await take(
    otherwise === 'escrow'
      ? // a held action counts as one call, however often it is requested, and spends nothing before it is done
        { limits: rates, checked: budgets, once: heldTake(request.agent_id, action_hash) }
      : { limits: consumes ? budgets : matched.limits, checked: [] },
  );
  const uncounted = (reason: string, hold: Hold | undefined) => {
    facts.uncounted = true;
    return finish(denied(settled(undefined, new Map()), reason), { named: hold });
  };
  if ('unavailable' in taking) return uncounted(taking.unavailable, named);
  const { exceeded } = taking;
  const verdict = settled(named, exceeded);

  if (!verdict.escrow) {
    const consumed = named && verdict.consumes ? await consume(named) : undefined;
    return finish(verdict, { named, consumed, hold: consumed });
  }
  const unheld = async (why: string) => {
    facts.unholdable = true;
    await giveBack();
    return finish(denied(verdict, why), { named });
  };
  if (attempt.unholdable !== undefined) return unheld(attempt.unholdable);
  if (named?.status === 'held') return finish(verdict, { named, hold: named });

  const answer = await ports
    .open({ action_hash, policy_id: verdict.policy_id, shown: shown(), terms: verdict.escrow })
    .catch(async (error: unknown) => {
      await giveBack();
      throw error;
    });
  if ('unavailable' in answer) return unheld(answer.unavailable);
  const { hold } = answer;
  if (attempt.resume && !named && hold.status === 'released') {
    if (settled(hold, exceeded).consumes) {
      const spending = await take({ limits: budgets, checked: [] });
      if ('unavailable' in spending) return uncounted(spending.unavailable, hold);
      const resumed = settled(hold, spending.exceeded);
      const consumed = resumed.consumes ? await consume(hold) : undefined;
      return finish(resumed, { named: hold, consumed, hold: consumed });
    }
  }
  return finish(verdict, { named, opened: answer.opened ? hold : undefined, hold });
}

type Mutable<T> = { -readonly [K in keyof T]: T[K] };

/** The texts of the request to keep, if they are wanted and not too long. */
function toKeep({ keep }: Attempt, input: string, request: ActionRequest, match: Match | undefined) {
  const within = (most: number, text: string) => (Buffer.byteLength(text) <= most ? text : undefined);
  if (!keep) return { input, projection: projectionOf(request, match) };
  return {
    input: keep.input === 0 ? undefined : within(keep.input, input),
    projection: keep.projection === 0 ? undefined : within(keep.projection, projectionOf(request, match)),
  };
}

function projectionOf(request: ActionRequest, match: Match | undefined): string {
  return canonicalJson(match?.narrowing?.project(request) ?? namesOf(request));
}

/** The names under which session facts are read, as far as a record has room; the projection has them all. */
function sessionFacts({ narrowing }: Match): string[] | undefined {
  const names = (narrowing?.reads.session ?? []).filter((name) => name.length <= 200 && !name.includes('\0'));
  return names.length > 0 ? names.slice(0, MOST_FACTS) : undefined;
}

/** Whether a statement may read the session's state. The state costs a lookup, so it is fetched only then. */
export function readsSession(policies: readonly Pick<BundleStatement, 'cedar'>[]): boolean {
  return policies.some(({ cedar }) => /\bsession\b/.test(cedar));
}

function fieldsOf(
  { eventId, bundleHash, trace }: Attempt,
  request: ActionRequest,
  verdict: Verdict,
  more: Pick<
    DecisionFields,
    'ask_commit' | 'input_hash' | 'action_ref' | 'engine' | 'facts' | 'evaluation_us' | 'escrow_id' | 'deny_reason'
  >,
): DecisionFields {
  const { rule_ids } = verdict;
  return {
    ...more,
    event_id: eventId,
    timestamp: request.now,
    agent_role: request.agent_role,
    agent_id: request.agent_id,
    session_id: request.session_id ?? '',
    tool_name: request.tool_name,
    tool_server: request.tool_server ?? undefined,
    tool_pin: request.tool_pin ?? undefined,
    method: request.method ?? '',
    decision: verdict.decision,
    policy_id: verdict.policy_id ?? '',
    deny_reason:
      more.deny_reason === undefined ? undefined : cut(more.deny_reason, RECORD_FIELDS.deny_reason.length[1]),
    policy_version: verdict.policy_version ?? undefined,
    bundle_hash: bundleHash,
    rule_id: verdict.rule_id ?? undefined,
    hits: rule_ids.length > 0 ? rule_ids.slice(0, MOST_FACTS) : undefined,
    hits_truncated: rule_ids.length > MOST_FACTS || undefined,
    obligations: verdict.masks && obligations(verdict.masks),
    source_ip: request.source_ip,
    trace_id: trace?.trace_id,
    span_id: trace?.span_id,
    // no decision point knows these yet
    on_behalf_of: undefined,
    delegation_chain: undefined,
    delegation_source: undefined,
  };
}

const NO_VERDICT = { rule_id: null, policy_id: null, policy_version: null, rule_ids: [] };

/** A denial that replaces a verdict and keeps the rule that decided it. */
function denied(
  { rule_id, policy_id, policy_version, rule_ids }: Pick<Verdict, keyof typeof NO_VERDICT>,
  deny_reason: string,
): Verdict {
  return { decision: 'deny', rule_id, policy_id, policy_version, rule_ids, deny_reason, consumes: false };
}

function stopped(stop: Stop): Verdict {
  const { id, policy_id, version } = stopRule(stop);
  return denied({ rule_id: id, policy_id, policy_version: version, rule_ids: [id] }, stopReason(stop));
}

/** Whether the tool registry holds a request that does not state which definition it is about. */
function leavesDefinitionOpen({ outcome, hits }: Match, { tool_pin }: ActionRequest): boolean {
  return tool_pin === undefined && outcome === 'permitted' && hits.some(({ id }) => id === DEFINITION_RULE);
}

function withDefinition(match: Match, held: ActionRequest): Match {
  return { ...match, hits: match.hits.map((rule) => (rule.id === DEFINITION_RULE ? definitionRule(held) : rule)) };
}

/** While a stop freezes an action, what policies permit is held. What they do not permit is unaffected. */
function frozen(match: Match, stop: Stop | undefined): Match {
  if (!stop || match.outcome !== 'permitted') return match;
  return { ...match, hits: [...match.hits, stopRule(stop)].sort((a, b) => (a.id < b.id ? -1 : 1)) };
}

/** The rule texts that a released hold covers; none if its approvers saw a different action than this one. */
function referencesOf(hold: KnownHold | undefined, shown: () => ActionView): readonly RuleReference[] | undefined {
  if (hold?.status !== 'released') return undefined;
  return hold.source === 'evaluate' || isSameView(viewOf(hold), shown()) ? hold.rules : undefined;
}

function mismatchReason(
  hold: KnownHold,
  { agent_id, agent_role }: ActionRequest,
  hash: string,
): UseRefusal | undefined {
  if (hold.agent_id !== agent_id || hold.agent_role !== agent_role) return 'AGENT_MISMATCH';
  return hold.action_hash === hash ? undefined : 'HASH_MISMATCH';
}

/** Why a hold can no longer lead to a permit; undefined while it can. */
function unusableReason({ status }: KnownHold): UseRefusal | undefined {
  if (status === 'held' || status === 'released') return undefined;
  if (status === 'consumed') return 'ALREADY_CONSUMED';
  return status === 'expired' ? 'ESCROW_EXPIRED' : 'INVALID_STATUS';
}

/** One obligation per mask. If a record has no room for all of them, the last entry counts the rest. */
function obligations(masks: readonly string[]): string[] {
  const { length, most } = RECORD_FIELDS.obligations;
  const all = masks.map((path) => cut(`mask ${path}`, length[1]));
  return all.length <= most ? all : [...all.slice(0, most - 1), `and ${all.length - most + 1} more masks`];
}

/** Truncates without leaving half of a surrogate pair: a record holds well-formed text only. */
function cut(text: string, most: number): string {
  return text.length <= most ? text : text.slice(0, most).toWellFormed();
}

function exactly(pointer: string, hashed: () => string): string {
  try {
    return hashed();
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    throw new InexactAction(pointer, `the action cannot be represented exactly: ${error.message}`);
  }
}
