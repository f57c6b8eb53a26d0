import type { Decision } from '../../domain/decision.ts';
import type { ActionRequest, BundleContent, BundleStatement } from '../../domain/policy.ts';
import { STOP_POLICY } from '../../domain/stops.ts';
import { actionHash } from '../evaluation/action-hash.ts';
import { maskedRequest } from '../evaluation/approver-view.ts';
import { type Match, PolicyEngine, settle, type Verdict } from '../evaluation/evaluate.ts';
import { ruleReference } from '../evaluation/hold-terms.ts';
import { type LimitWindow, takenFrom } from '../evaluation/limits.ts';
import { type Mask, parseMask } from '../evaluation/masks.ts';
import { type ProjectedReads, suffices } from '../evaluation/projection.ts';
import { type Constraint, type Head, readHead } from '../language/head.ts';
import { tokens } from '../language/scan.ts';
import type { Outcome, UnknownReason } from './outcome.ts';
import { MOST_DRIFTS, outcomeOf, type Part } from './parts.ts';
import { fits, placeOf, Questions, type SessionNeeds } from './question.ts';
import { amountOf, type Subject, Tally } from './tally.ts';

/** A decision as recorded. */
export interface Recorded {
  decision: Decision;
  rule_id: string | undefined;
  bundle_hash: string | undefined;
  agent_id: string;
  agent_role: string;
  tool_name: string;
}

/** The state outside the policies that a past decision depended on. */
export interface PastFacts {
  /** The rules that a released hold covered. */
  covered: readonly string[];
  /** The rules whose limit was reached. */
  exceeded: readonly string[];
  /** Nothing could be held, so whatever policies would hold was denied. */
  unholdable: boolean;
  /** No policies were in force. */
  standstill: boolean;
  /** The decision point could not read the request with certainty, and denied it without asking the policies. */
  doubtful: boolean;
  /** Limits could not be counted, so whatever falls under one was denied. */
  uncounted: boolean;
}

export interface Past {
  /** The record's position in the chain. */
  seq: number;
  event_id: string;
  /** When it was decided, in milliseconds. */
  at: number;
  recorded: Recorded;
  facts: PastFacts;
  /** The request, or the reason it is not known. */
  request: ActionRequest | UnknownReason;
  /** Set if only a part of the request was kept: what the part has in full; null if no policy was asked. */
  projected?: ProjectedReads | null | undefined;
}

/**
 * What a record's text must contain for a changed statement to apply to its decision: one of `agents` and one of `tools`,
 * where given.
 */
export interface RecordTest {
  agents?: { agent_ids: string[]; agent_roles: string[] };
  tools?: string[];
}

/** How many answers of each kind are kept, and how many characters of their questions. */
const MOST_ANSWERS = 10_000;
const MOST_QUESTION_CHARACTERS = 4_000_000;

interface Answer {
  match: Match;
  /** The verdict if no facts outside the policies matter. */
  plain: Verdict;
}

type Answers = readonly [before: Answer, after: Answer];

/** Of every `of` requests, the first ones are a sample of how often questions repeat. */
const SAMPLED = { of: 100_000, first: 10_000, atLeast: 500 };

/**
 * The most recent answers by question, kept as long as questions repeat: otherwise computing the question of a request
 * costs more than it saves.
 */
class Known<A> {
  // discarded by halves: removing the oldest entries of a Map one by one makes it scan the places of all removed before
  #recent = new Map<string, A>();
  #older: ReadonlyMap<string, A> = new Map();
  #characters = 0;
  #requests = 0;
  #found = 0;

  /** The answer to this question if known, or else a new one. */
  answer(questionOf: () => string, ask: () => A): A {
    const turn = this.#requests++ % SAMPLED.of;
    if (turn === 0) this.#found = 0;
    if (turn >= SAMPLED.first && this.#found < SAMPLED.atLeast) return ask();
    const question = questionOf();
    const recent = this.#recent.get(question);
    const known = recent ?? this.#older.get(question);
    if (known !== undefined) this.#found++;
    const answer = known ?? ask();
    if (recent === undefined) this.#remember(question, answer);
    return answer;
  }

  #remember(question: string, answer: A): void {
    this.#recent.set(question, answer);
    this.#characters += question.length;
    if (this.#recent.size < MOST_ANSWERS / 2 && this.#characters < MOST_QUESTION_CHARACTERS / 2) return;
    this.#older = this.#recent;
    this.#recent = new Map();
    this.#characters = 0;
  }
}

/** One of the two sets of policies, with its answers. */
class PolicySet {
  /** What its statements read. */
  readonly questions: Questions;
  readonly #engine: PolicyEngine;
  readonly #answers = new Known<Answer>();
  asked = 0;

  constructor(content: BundleContent) {
    this.#engine = new PolicyEngine(content);
    this.questions = new Questions(content.policies, content.action_entities);
  }

  answer(request: ActionRequest): Answer {
    return this.#answers.answer(
      () => this.questions.keyOf(request),
      () => {
        this.asked++;
        const match = this.#engine.match(request);
        return { match, plain: settle(match, NO_STATE) };
      },
    );
  }

  dispose(): void {
    this.#engine.dispose();
  }
}

interface Verdicts {
  was: Verdict;
  becomes: Verdict;
}

/**
 * What a draft would have decided on past decisions, compared with what the live policies decide on them. Pass each
 * decision to `add`, in any order, and then call `outcome`.
 *
 * It is exact: a decision is left out only if no differing statement can apply to it, and two decisions share an answer
 * of a set of policies only if they are the same question to it. Both sets are evaluated by the engine that makes
 * decisions.
 *
 * Several simulators of the same two sets may each get a share of the decisions if they have no limits to count: the
 * outcome then comes from all their parts.
 *
 * Pure: it has no clock, and the time of a decision is the recorded one.
 */
export class Simulator {
  readonly #before: PolicySet;
  readonly #after: PolicySet;
  readonly #beforeHash: string;
  readonly #actions: BundleContent['action_entities'];
  /** Whether the live policies and the draft declare different session facts. */
  readonly #factsDiffer: boolean;
  readonly #statements: Outcome['statements'];
  readonly #heads: readonly Head[];
  readonly #tests: readonly RecordTest[] | null;
  /** The rules of the draft whose limits are counted again. */
  readonly #limits: ReadonlySet<string>;
  readonly #numbers: readonly string[];
  /** The values that rules of either set keep from people. */
  readonly #masks: readonly Mask[];
  readonly #questions: Questions;
  readonly #answers = new Known<Answers>();
  readonly #tally = new Tally();
  readonly #counted = new CountedCalls();
  readonly #unknown = new Map<UnknownReason, number>();
  readonly #drift = { total: 0, unexplained: 0, examples: [] as string[] };
  #pruned = 0;

  /** `beforeHash` is the hash of the bundle of the live policies. The contents share schema, actions and registry. */
  constructor(before: BundleContent, after: BundleContent, beforeHash: string) {
    this.#before = new PolicySet(before);
    this.#after = new PolicySet(after);
    this.#beforeHash = beforeHash;
    this.#actions = before.action_entities;
    this.#questions = new Questions([...before.policies, ...after.policies], before.action_entities);
    this.#factsDiffer = declarations(before.policies) !== declarations(after.policies);
    const [old, next] = [byId(before.policies), byId(after.policies)];
    const added = after.policies.filter(({ id }) => !old.has(id));
    const removed = before.policies.filter(({ id }) => !next.has(id));
    const changed = after.policies.filter(({ id, cedar }) => old.has(id) && old.get(id)!.cedar !== cedar);
    const ids = (statements: readonly BundleStatement[]) => statements.map(({ id }) => id);
    this.#statements = { added: ids(added), removed: ids(removed), changed: ids(changed) };
    const differing = [...added, ...removed, ...changed, ...changed.map(({ id }) => old.get(id)!)];
    // a reader of a fact depends on the statement that declares it
    const readers = (head: Head) => head.sessionFacts.length > 0;
    const dependent = this.#factsDiffer ? headsOf([...before.policies, ...after.policies]).filter(readers) : [];
    this.#heads = [...headsOf(differing), ...dependent];
    this.#tests = recordTests(this.#heads);
    const limited = [...added, ...changed].filter(({ annotations: { rate, budget } }) => rate || budget);
    this.#limits = new Set(ids(limited));
    const paths = this.#heads.flatMap(({ reads, attributes }) => [
      ...reads.flatMap(({ kind, key }) => (kind === 'num' && key !== null ? [key] : [])),
      ...(attributes?.includes('amount') ? ['estimated_value'] : []),
    ]);
    this.#numbers = [...new Set(paths)].slice(0, 5);
    const masks = [...before.policies, ...after.policies].flatMap(({ annotations }) => annotations.mask ?? []);
    this.#masks = [...new Set(masks)].map(parseMask);
  }

  /**
   * Tells which records can be left out unread: a record that passes none of the tests can. Null if each must be read,
   * empty if nothing can change. Those left out are reported to `leaveOut`.
   */
  get tests(): readonly RecordTest[] | null {
    return this.#tests;
  }

  /** Counts decisions to which no changed statement can apply. */
  leaveOut(decision: Decision, count: number): void {
    this.#pruned += count;
    this.#tally.same(decision, count);
  }

  add(past: Past): void {
    const { request, recorded } = past;
    // decided by a stop or without any policy, regardless of what the policies say
    if (recorded.rule_id?.startsWith(`${STOP_POLICY}#`) || past.facts.doubtful) {
      this.leaveOut(recorded.decision, 1);
      return;
    }
    if (typeof request === 'string') {
      if (isTested(this.#tests, recorded)) this.#miss(request);
      else this.leaveOut(recorded.decision, 1);
      return;
    }
    const place = placeOf(request, this.#actions);
    if (this.#heads.some((head) => fits(head, place))) this.#decide(past, request);
    else this.leaveOut(recorded.decision, 1);
  }

  /** Whether decisions are counted in chronological order, so that one simulator must get them all. */
  get counts(): boolean {
    return this.#limits.size > 0;
  }

  /** Call once, at the end. */
  outcome(): Outcome {
    return outcomeOf([this.part()]);
  }

  /** The findings as plain data, for `outcomeOf`. Call once, at the end. */
  part(): Part {
    for (const { was, becomes, subject } of this.#counted.verdicts(this.#limits)) {
      this.#tally.add(was, becomes, () => subject, true);
    }
    this.#before.dispose();
    this.#after.dispose();
    return {
      statements: this.#statements,
      limits: [...this.#limits].sort(),
      pruned: this.#pruned,
      questions: Math.max(this.#before.asked, this.#after.asked),
      unknown: this.#unknown,
      drift: this.#drift,
      tally: this.#tally.part(),
    };
  }

  #miss(reason: UnknownReason): void {
    this.#unknown.set(reason, (this.#unknown.get(reason) ?? 0) + 1);
  }

  #decide(past: Past, request: ActionRequest): void {
    const unanswerable = this.#unanswerable(past, request);
    if (unanswerable) {
      this.#miss(unanswerable);
      return;
    }
    const answer = this.#answer(request);
    const { was, becomes, covered, unholdable } = this.#settled(answer, past);
    this.#compare(past, was);
    const [old, next] = answer.map(({ match }) => match) as [Match, Match];
    const known = new Set([...old.limits.map(({ rule_id }) => rule_id), ...past.facts.exceeded]);
    if (past.facts.uncounted) {
      this.#tally.add(was, becomes, () => this.#subject(past, request));
    } else if (next.limits.some(({ rule_id }) => this.#limits.has(rule_id))) {
      const call = { past, request, was, next, covered, unholdable, subject: this.#subject(past, request) };
      // only the whole action tells which requests for a hold are the same action
      const held = next.hits.some(({ annotations }) => annotations.escrow);
      if (held && past.projected !== undefined) this.#miss('projection_insufficient');
      else if (!this.#counted.add(call)) this.#miss('limit_not_recorded');
    } else if (next.limits.some(({ rule_id }) => !known.has(rule_id))) {
      // a limit that did not count the call then: its state is unknown
      this.#miss('limit_not_recorded');
    } else {
      this.#tally.add(was, becomes, () => this.#subject(past, request));
    }
  }

  #unanswerable({ facts, recorded, projected }: Past, request: ActionRequest): UnknownReason | undefined {
    if (facts.standstill) return 'no_policies';
    if (
      projected !== undefined &&
      !(projected && this.#sets.every(({ questions }) => suffices(projected, questions.needs(request))))
    ) {
      return 'projection_insufficient';
    }
    return this.#knowsSession(recorded, request) ? undefined : 'session_not_recorded';
  }

  /**
   * Whether the request has all of its session's state that matters now. It has what the policies of the time read: which
   * names those were is certain only if the policies of the time are the ones live now.
   */
  #knowsSession({ bundle_hash }: Recorded, request: ActionRequest): boolean {
    const { session, session_id } = request;
    const [before, after] = this.#sets.map(({ questions }) => questions.sessionNeeds(request)) as [
      SessionNeeds,
      SessionNeeds,
    ];
    if (!session_id || !(before.any || after.any)) return true;
    if (!session || ((before.trust || after.trust) && session.lowest_trust === undefined)) return false;
    if (before.names.size + after.names.size === 0) return true;
    const same = bundle_hash === this.#beforeHash && !this.#factsDiffer;
    return same && [...after.names].every((name) => before.names.has(name));
  }

  /** Most requests are the same question to both sets as an earlier one. Of the others, most are the same to one of the sets. */
  #answer(request: ActionRequest): Answers {
    return this.#answers.answer(
      () => this.#questions.keyOf(request),
      () => [this.#before.answer(request), this.#after.answer(request)] as const,
    );
  }

  get #sets(): readonly [before: PolicySet, after: PolicySet] {
    return [this.#before, this.#after];
  }

  /** The verdicts with the facts of the time: a hold from then covers the rules with the same ids in either set. */
  #settled([before, after]: Answers, { facts }: Past): Verdicts & Circumstances {
    const { exceeded } = facts;
    let [was, becomes] = [before.plain, after.plain];
    const [old, next] = [before.match, after.match];
    let covered: Covered = NONE;
    if (exceeded.length > 0 || facts.covered.length > 0) {
      covered = new Set(facts.covered);
      const over = new Map(exceeded.map((id) => [id, { retry_after: 1 }]));
      was = settle(old, { exceeded: over, covered: referencesTo(old, covered) });
      becomes = settle(next, { exceeded: over, covered: referencesTo(next, covered) });
    }
    const { unholdable } = facts;
    if (unholdable) [was, becomes] = [unheld(was), unheld(becomes)];
    if (facts.uncounted && old.limits.length > 0) was = denied(was);
    if (facts.uncounted && next.limits.length > 0) becomes = denied(becomes);
    return { was, becomes, covered, unholdable };
  }

  #compare({ event_id, recorded }: Past, was: Verdict): void {
    const sameRule = recorded.rule_id === undefined || recorded.rule_id === was.rule_id;
    if (was.decision === recorded.decision && sameRule) return;
    this.#drift.total++;
    if (recorded.bundle_hash === this.#beforeHash) this.#drift.unexplained++;
    if (this.#drift.examples.length < MOST_DRIFTS) this.#drift.examples.push(event_id);
  }

  #subject({ seq, event_id, recorded, projected }: Past, request: ActionRequest): Subject {
    // a projection has blank values at other paths
    const kept = (path: string) => path === 'estimated_value' || (projected?.keys?.includes(path) ?? true);
    const paths = this.#numbers.filter(kept);
    // for a group of one, the range is the value itself
    const seen = paths.length > 0 ? maskedRequest(request, this.#masks) : request;
    const numbers = paths.flatMap((path) => {
      const value = path === 'estimated_value' ? request.estimated_value : valueAt(seen, path);
      const number = typeof value === 'string' && /^-?\d{1,15}(\.\d{1,4})?$/.test(value) ? Number(value) : value;
      return typeof number === 'number' && Number.isFinite(number) ? [[path, number] as const] : [];
    });
    const { agent_id, tool_name } = recorded;
    const unpriced = projected?.attributes?.includes('amount') === false;
    return { seq, event_id, agent_id, tool_name, ...amountOf(request), unpriced, numbers };
  }
}

const NO_STATE = { exceeded: new Map<string, { retry_after: number }>() };
type Covered = ReadonlySet<string>;
interface Circumstances {
  covered: Covered;
  unholdable: boolean;
}
const NONE: Covered = new Set();

const headsOf = (statements: readonly BundleStatement[]) => statements.map(({ cedar }) => readHead(tokens(cedar)));
const declarations = (statements: readonly BundleStatement[]) =>
  JSON.stringify(
    statements.map(({ policy_id, annotations }) => [policy_id, annotations.fact]).filter(([, fact]) => fact),
  );
const byId = (statements: readonly BundleStatement[]) => new Map(statements.map((one) => [one.id, one]));
const referencesTo = ({ hits }: Match, ids: Covered) => hits.filter(({ id }) => ids.has(id)).map(ruleReference);

const unheld = (verdict: Verdict): Verdict => (verdict.decision === 'escrow' ? denied(verdict) : verdict);

function denied({ escrow: _none, masks: _unused, ...verdict }: Verdict): Verdict {
  return { ...verdict, decision: 'deny' };
}

/** The value at a path of the arguments, if splitting the path finds it: for display only. */
function valueAt({ arguments: args, context }: ActionRequest, path: string): unknown {
  const parts = path.split(/[.[\]]+/).filter((part) => part !== '');
  let value: unknown = args;
  if (parts[0] === 'context') value = context;
  if (parts[0] === 'context' || (parts[0] === 'arguments' && parts[1] === 'context')) parts.shift();
  for (const part of parts) {
    if (typeof value !== 'object' || value === null || !Object.hasOwn(value, part)) return undefined;
    value = (value as Record<string, unknown>)[part];
  }
  return value;
}

/** Testing for more scopes than this costs more than reading the records. */
const MOST_TESTS = 50;

/** Null if a scope cannot be tested on the text of a record. */
function recordTests(heads: readonly Head[]): RecordTest[] | null {
  const tests = new Map<string, RecordTest>();
  for (const { principal, resource } of heads) {
    const entities = { principal: named(principal), resource: named(resource) };
    const idsOf = (type: string, list: readonly string[]) =>
      list.filter((one) => one.startsWith(`${type}::`)).map((one) => one.slice(type.length + 2));
    const ofServer = entities.resource?.some((one) => one.startsWith('ToolServer::'));
    const test: RecordTest = {
      ...(entities.principal && {
        agents: { agent_ids: idsOf('Agent', entities.principal), agent_roles: idsOf('AgentRole', entities.principal) },
      }),
      ...(entities.resource && !ofServer && { tools: idsOf('Tool', entities.resource) }),
    };
    if (!test.agents && !test.tools) return null;
    tests.set(JSON.stringify(test), test);
  }
  return tests.size > MOST_TESTS ? null : [...tests.values()];
}

/** The entities of which the constraint requires one; undefined if it requires none. */
function named(constraint: Constraint): string[] | undefined {
  if (constraint.op === 'eq') return [constraint.entity];
  if (constraint.op === 'in') return constraint.entities;
  return constraint.op === 'is' ? constraint.entities : undefined;
}

function isTested(tests: readonly RecordTest[] | null, { agent_id, agent_role, tool_name }: Recorded): boolean {
  if (tests === null) return true;
  return tests.some(
    ({ agents, tools }) =>
      (!agents || agents.agent_ids.includes(agent_id) || agents.agent_roles.includes(agent_role)) &&
      (!tools || tools.includes(tool_name)),
  );
}

interface CountedCall extends Circumstances {
  past: Past;
  request: ActionRequest;
  was: Verdict;
  next: Match;
  subject: Subject;
}

/** How many calls are counted: they are kept until the end, since they come in any order. */
const MOST_COUNTED = 200_000;

/** The calls that limits of the draft count, as the decision protocol counts them: see `decide`. */
class CountedCalls {
  readonly #calls: (Omit<CountedCall, 'past' | 'request'> & {
    at: number;
    exceeded: readonly string[];
    once: string;
  })[] = [];

  /** False if there are too many to count. */
  add({ past, request, ...call }: CountedCall): boolean {
    if (this.#calls.length >= MOST_COUNTED) return false;
    const { at, facts } = past;
    const holds = call.next.hits.some(({ annotations }) => annotations.escrow);
    const once = holds ? `${request.agent_id}\n${actionHash(request)}` : '';
    this.#calls.push({ ...call, at, exceeded: facts.exceeded, once });
    return true;
  }

  /** The verdicts, with the calls counted in chronological order. A window begins with its first call. */
  *verdicts(limits: ReadonlySet<string>): Generator<Verdicts & { subject: Subject }> {
    const windows = new Map<string, LimitWindow>();
    /** The windows in which a held action was already counted. */
    const counted = new Map<string, number>();
    for (const call of this.#calls.sort((a, b) => a.at - b.at)) {
      const { was, next, covered, unholdable, once, at, subject } = call;
      const references = referencesTo(next, covered);
      const otherwise = settle(next, { exceeded: NO_STATE.exceeded, covered: references });
      const held = otherwise.decision === 'escrow';
      const exceeded = new Map<string, { retry_after: number }>();
      const taken: [key: string, window: LimitWindow][] = [];
      for (const limit of next.limits) {
        const { rule_id, kind } = limit;
        if (!limits.has(rule_id)) {
          if (call.exceeded.includes(rule_id)) exceeded.set(rule_id, { retry_after: 1 });
          continue;
        }
        // a release was counted when it was requested; a held action spends nothing before it is done
        if (otherwise.consumes && kind === 'rate') continue;
        const key = `${rule_id}\n${kind}\n${limit.key}`;
        if (held && (counted.get(`${once}\n${key}`) ?? 0) > at) continue;
        const answer = takenFrom(windows.get(key), limit, at);
        if ('retry_after' in answer) exceeded.set(rule_id, answer);
        else if (!(held && kind === 'budget')) taken.push([key, answer.window]);
      }
      if (exceeded.size === 0 && !(held && unholdable)) {
        for (const [key, window] of taken) {
          windows.set(key, window);
          if (held) counted.set(`${once}\n${key}`, window.endsAt);
        }
      }
      const becomes = settle(next, { exceeded, covered: references });
      yield { was, becomes: unholdable ? unheld(becomes) : becomes, subject };
    }
  }
}
