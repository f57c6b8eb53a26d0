import { parse } from 'yaml';
import type { Decision, DecisionFacts } from '../../domain/decision.ts';
import type { ActionRequest, BundleContent, BundleStatement, Diagnostic } from '../../domain/policy.ts';
import { STOP_POLICY } from '../../domain/stops.ts';
import { canonicalJson } from '../../lib/canonical-json.ts';
import { visible } from '../../lib/visible.ts';
import { maskedWith } from '../evaluation/approver-view.ts';
import { PolicyEngine, settle, type Verdict } from '../evaluation/evaluate.ts';
import { exactDecimal } from '../evaluation/exact.ts';
import { MASKED, parseMask } from '../evaluation/masks.ts';
import { type ProjectedReads, type Projection, suffices } from '../evaluation/projection.ts';
import { type ArgumentKey, memberKey, ROOT } from '../evaluation/request.ts';
import { Questions } from '../simulation/question.ts';
import { appendTest } from './append-test.ts';
import { differencesOf, stateOf } from './run-suite.ts';
import { type Expectation, readSuite, STANDARD, type TestCase } from './suite.ts';

/** A past decision, and which parts of it may be in a test. */
export interface PastDecision {
  event_id: string;
  decision: Decision;
  rule_id: string | null;
  /** The paths that were masked in the answer. */
  masks: readonly string[];
  facts: DecisionFacts;
  /** The whole request; null if it is not kept. */
  input: ActionRequest | null;
  /** The part of it that the policies of the time read; null if it is not kept. */
  projection: Projection | null;
  /** The policies of the time; null if they can no longer be read. */
  decided: BundleContent | null;
  /** The paths of `@mask` whose values are not shown to people. */
  hidden: readonly string[];
  /** Which of those values may be in the test: none, those that a statement compares, or all. */
  shows: 'none' | 'compared' | 'all';
  /** What should have been decided; undefined if the decision was right. */
  should?: Expectation | undefined;
}

/** How much of the request the test has: what the policies read now, plus what they read then, or all of it. */
export const KEPT_PARTS = ['read', 'read_then', 'whole'] as const;

export interface MadeTest {
  /** The suite with the test at its end. */
  tests_source: string;
  name: string;
  line: number;
  column: number;
  request: ActionRequest;
  expect: Expectation;
  kept: (typeof KEPT_PARTS)[number];
  /** Whether the policies of the time decide on the test's request what the record says. */
  verified: boolean;
  /** The arguments with a placeholder, sorted. */
  masked: string[];
  /** The masked arguments that are included anyway, because a statement compares them. */
  unmasked: string[];
  /** What the newest text decides on it, and how that differs from what is expected. */
  got: Verdict;
  differences: string[];
}

/** The reason there is no test. */
export const REFUSALS = ['duplicate', 'gone', 'masked', 'not_by_policies', 'unwritable', 'full'] as const;
export interface TestRefusal {
  why: (typeof REFUSALS)[number];
  detail: string;
}

export type TestFromDecision = { errors: Diagnostic[]; tests_errors: Diagnostic[] } & (
  | { made: MadeTest }
  | { refused: TestRefusal }
  | object
);

/** The members of a request that a test can have, in their order. */
const MEMBERS = [
  ...(['agent_id', 'agent_role', 'owner', 'action_type', 'tool_server', 'tool_name', 'tool_pin', 'method'] as const),
  ...(['resource', 'arguments', 'context', 'estimated_value', 'value_currency', 'risk_score', 'source_ip'] as const),
  ...(['session_id', 'session', 'now'] as const),
] satisfies (keyof ActionRequest)[];
const REQUIRED = ['agent_id', 'agent_role', 'action_type', 'tool_name', 'now'] as const;

class Refused extends Error {
  readonly refusal: TestRefusal;

  constructor(why: TestRefusal['why'], detail: string) {
    super(detail);
    this.refusal = { why, detail };
  }
}

/**
 * Appends to a suite a test made from a past decision: its request, reduced to as little as decides the same, the facts
 * outside the policies as `state`, and what was decided, or should have been. `live` are the policies that the tests of
 * the suite run with.
 *
 * INVARIANT: on the test's request, as read back from the suite, both the policies of the time and the current ones
 * decide the same as on the kept request. With `shows: 'none'` no policy ever sees a value under a hidden path, so that
 * the answer reveals nothing about such a value.
 *
 * Pure.
 */
export function testFromDecision(
  tests: string,
  live: BundleContent,
  past: PastDecision,
): { made: MadeTest } | { refused: TestRefusal } {
  const now = new PolicyEngine(live);
  const then = past.decided && engineOf(past.decided);
  try {
    return { made: new Maker(tests, past, { engine: now, content: live }, then ?? undefined).made() };
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    return { refused: error.refusal };
  } finally {
    now.dispose();
    then?.engine.dispose();
  }
}

/** A set of policies with its engine: the current ones, or those of the time. */
interface Side {
  engine: PolicyEngine;
  content: BundleContent;
}

/** Undefined for policies that this version can no longer decide with. */
function engineOf(content: BundleContent): Side | undefined {
  try {
    return { engine: new PolicyEngine(content), content };
  } catch (error) {
    if (error instanceof RangeError) return undefined;
    throw error;
  }
}

class Maker {
  readonly #tests: string;
  readonly #past: PastDecision;
  readonly #now: Side;
  readonly #then: Side | undefined;
  readonly #sides: readonly Side[];
  readonly #state: TestCase['state'];
  readonly #hidden: ReturnType<typeof parseMask>[];
  readonly #masked = new Set<string>();
  readonly #unmasked = new Set<string>();

  constructor(tests: string, past: PastDecision, now: Side, then: Side | undefined) {
    this.#tests = tests;
    this.#past = past;
    this.#now = now;
    this.#then = then;
    this.#sides = then ? [now, then] : [now];
    const { covered = [], exceeded = [] } = past.facts;
    this.#state = { covered: [...covered], exceeded: exceeded.map(([rule]) => rule) };
    this.#hidden = past.hidden.map(parseMask);
  }

  made(): MadeTest {
    const { event_id, should, shows } = this.#past;
    const suite = suiteIn(this.#tests);
    const twin = suite.tests.find(({ from }) => from === event_id);
    if (twin) throw new Refused('duplicate', `the test ${JSON.stringify(twin.name)} is of this decision already`);
    const kept = this.#kept();
    const base = shows === 'none' ? this.#hiding(kept, () => false) : kept;
    const verified = this.#verified(base);
    const expect = should ?? this.#decided(base, verified);
    let last = 'the request cannot be written as a test';
    for (const [part, candidate] of this.#candidates(base)) {
      const { agent_role, tool_name } = candidate;
      const name = unique(`${tool_name} by ${agent_role} ${WORDS[expect.decision]}`, suite);
      const request = written(candidate, base, suite.defaults);
      const tests_source = appendTest(this.#tests, {
        name,
        ...(Object.keys(request).length > 0 && { request }),
        ...(Object.values(this.#state).some((rules) => rules.length > 0) && { state: this.#stateWritten() }),
        expect,
        from: event_id,
      });
      const read = this.#readBack(tests_source);
      if (typeof read === 'string') {
        last = read;
        continue;
      }
      if (!this.#sides.every((side) => same(this.#verdict(side, read.request), this.#verdict(side, base)))) continue;
      const got = this.#verdict(this.#now, read.request);
      const { line, column } = read;
      const keys = keysIn(read.request);
      const [masked, unmasked] = [this.#masked, this.#unmasked].map((all) =>
        [...all].filter((key) => keys.has(key)).sort(),
      );
      return {
        ...{ tests_source, name, line, column, request: read.request, expect, kept: part, verified },
        ...{ masked: masked!, unmasked: unmasked! },
        ...{ got, differences: differencesOf(expect, got) },
      };
    }
    throw new Refused('unwritable', last);
  }

  /** What is kept of the request, to the extent a test can have it. */
  #kept(): ActionRequest {
    const { input, projection } = this.#past;
    const kept = input ?? projection;
    if (!kept) throw new Refused('gone', 'the request of this decision was erased, or was never kept');
    if (!REQUIRED.every((name) => typeof kept[name] === 'string')) {
      throw new Refused('gone', 'what is kept of the request cannot be read');
    }
    const request = members(kept);
    if (input) return request;
    const { reads } = projection!;
    if (!reads) {
      throw new Refused('gone', 'only names are kept of the request: no policy was asked, or none could be');
    }
    const lacking = lack(reads, this.#now.engine.match(request).narrowing?.reads);
    if (lacking !== undefined) {
      throw new Refused('gone', `the request was erased but for what policies read then, and they now read ${lacking}`);
    }
    return request;
  }

  /** Whether the policies of the time still decide the same. */
  #verified(base: ActionRequest): boolean {
    const { decision, rule_id, should, shows, facts } = this.#past;
    const other = otherThanPolicies(facts, rule_id);
    if (other !== undefined) {
      if (should) return false;
      throw new Refused('not_by_policies', `it was not decided by the policies: ${other}; say what should be decided`);
    }
    if (!this.#then) return false;
    const again = this.#verdict(this.#then, base);
    const verified = again.decision === decision && again.rule_id === rule_id;
    if (!verified && shows === 'none' && this.#masked.size > 0) {
      throw new Refused('masked', 'the decision depends on a value that is masked');
    }
    return verified;
  }

  /** What the test expects if the decision was right. */
  #decided(base: ActionRequest, verified: boolean): Expectation {
    const { decision, rule_id, masks } = this.#past;
    const again = verified ? this.#verdict(this.#then!, base) : undefined;
    const hold = again?.escrow?.hold_type;
    return {
      decision,
      ...(rule_id !== null && { rule: rule_id }),
      ...(masks.length > 0 && { masks: again?.masks ?? [...masks].sort() }),
      ...(hold !== undefined && { hold: { kind: hold } }),
    };
  }

  /** From the smallest request to the whole one. */
  *#candidates(base: ActionRequest): Generator<[MadeTest['kept'], ActionRequest]> {
    const narrowed = (engine: PolicyEngine) => {
      const narrowing = engine.match(base).narrowing;
      return narrowing && this.#trimmed(this.#hidingUnread(members(narrowing.project(base))));
    };
    const least = narrowed(this.#now.engine);
    if (least) yield ['read', least];
    const both = this.#then && engineOf(union(this.#now.content, this.#then.content))?.engine;
    const more = both && narrowed(both);
    both?.dispose();
    if (more) yield ['read_then', more];
    yield ['whole', this.#hidingUnread(base)];
  }

  #hidingUnread(request: ActionRequest): ActionRequest {
    if (this.#past.shows !== 'compared') return request;
    const all = this.#sides.map(({ engine }) => engine.match(request).narrowing?.reads.keys);
    return this.#hiding(request, (key) => all.some((keys) => keys === null || keys?.includes(key)));
  }

  /**
   * Replaces the hidden values that are not to be kept with placeholders. If none may be kept, not even the members of a
   * hidden object are revealed.
   */
  #hiding(request: ActionRequest, keeps: (key: string) => boolean): ActionRequest {
    this.#masked.clear();
    this.#unmasked.clear();
    const { shows } = this.#past;
    const replaced = (value: unknown, at: ArgumentKey): unknown => {
      if (keeps(at.key) && !isObject(value)) {
        this.#unmasked.add(at.key);
        return value;
      }
      if (typeof value === 'object' && value !== null && shows === 'compared') return mapped(value, at, replaced);
      const placeholder = placeholderOf(value);
      if (canonicalJson(placeholder) !== canonicalJson(value)) this.#masked.add(at.key);
      return placeholder;
    };
    const hidden = (value: unknown, root: ArgumentKey) => {
      if (value === undefined) return undefined;
      const walk = (one: unknown, seen: unknown, at: ArgumentKey): unknown =>
        seen === MASKED && one !== MASKED
          ? replaced(one, at)
          : mapped(one, at, (member, key, name) => walk(member, (seen as Record<string, unknown>)[name], key));
      return walk(value, maskedWith(value, this.#hidden), root);
    };
    return {
      ...request,
      arguments: hidden(request.arguments, ROOT),
      context: hidden(request.context, CONTEXT),
    };
  }

  /** Without names and a time that nothing reads, which a test need not state. */
  #trimmed(request: ActionRequest): ActionRequest {
    const questions = this.#sides.map(
      ({ content: { policies, action_entities } }) => new Questions(policies.map(uncounted), action_entities),
    );
    let least = request;
    for (const change of [{ agent_id: STANDARD.agent_id }, { owner: undefined }, { now: STANDARD.now }]) {
      const less = { ...least, ...change };
      if (questions.every((one) => one.keyOf(less) === one.keyOf(least))) least = less;
    }
    const known = this.#sides.some(({ engine }) => engine.registry.looksAt(request));
    return known ? least : { ...least, tool_pin: undefined };
  }

  #stateWritten() {
    return Object.fromEntries(Object.entries(this.#state).filter(([, rules]) => rules.length > 0));
  }

  /** The new test as read back from the suite, or the reason the suite is not the old one plus this test. */
  #readBack(source: string): TestCase | string {
    const { errors, scope, cases } = readSuite(source);
    const [error] = errors;
    if (error) {
      if (/^(?:more than \d+ tests|the tests are larger)/.test(error.message)) throw new Refused('full', error.message);
      return `it cannot be written as a test: ${error.message}`;
    }
    const before = this.#tests.trim() === '' ? { scope: 'live', cases: [] } : readSuite(this.#tests);
    const told = (all: readonly TestCase[]) => canonicalJson(all.map(({ line, column, ...one }) => one as object));
    const last = cases.at(-1);
    if (!last || scope !== before.scope || told(cases.slice(0, -1)) !== told(before.cases)) {
      return 'the suite is written in a way in which no test can be appended';
    }
    return last;
  }

  #verdict({ engine }: Side, request: ActionRequest): Verdict {
    const match = engine.match(request);
    return settle(match, stateOf(this.#state, match));
  }
}

const WORDS: Record<Decision, string> = {
  allow: 'is allowed',
  allow_with_masking: 'is allowed with masks',
  deny: 'is denied',
  escrow: 'is held',
  rate_limited: 'is over a limit',
};

/** All statements of both, to find what they read: what they decide together is meaningless. */
function union(now: BundleContent, then: BundleContent): BundleContent {
  const lists = new Map([...then.lists, ...now.lists].map((list) => [list.name, list]));
  const policies = [...now.policies, ...then.policies.map((one) => ({ ...one, id: `then ${one.id}` }))];
  return { ...now, policies, lists: [...lists.values()] };
}

/** Without the limits that count each agent separately: in a test, the state says what is exceeded. */
function uncounted({ cedar, annotations }: BundleStatement): Pick<BundleStatement, 'cedar' | 'annotations'> {
  const { rate, ...others } = annotations;
  return { cedar, annotations: rate?.per === undefined ? others : annotations };
}

/** Equal in everything that a test can expect. */
function same(a: Verdict, b: Verdict): boolean {
  const told = ({ decision, rule_id, rule_ids, masks, deny_reason, escrow }: Verdict) =>
    JSON.stringify([decision, rule_id, rule_ids, masks, deny_reason, escrow?.hold_type, escrow?.required_approvals]);
  return told(a) === told(b);
}

/** What decided instead of the policies, if anything did that no test can express. */
function otherThanPolicies(facts: DecisionFacts, rule: string | null): string | undefined {
  if (facts.stop !== undefined || rule?.startsWith(`${STOP_POLICY}#`)) return 'a stop was in force';
  if (facts.standstill !== undefined) return 'no policy was asked';
  if (facts.doubt !== undefined) return `the enforcement point could not read ${facts.doubt} for certain`;
  if (facts.uncounted) return 'the remaining limit was unknown';
  return facts.unholdable ? 'it could not be held' : undefined;
}

/** Something that is read now and was not read then; undefined if what is left suffices. */
function lack(then: ProjectedReads, now: ProjectedReads | undefined): string | undefined {
  if (!now) return undefined;
  const [attributes, keys] = [now.attributes && new Set(now.attributes), now.keys && new Set(now.keys)];
  if (suffices(then, { attributes, keys, session: new Set(now.session) })) return undefined;
  const more = (old: readonly string[] | null, next: readonly string[] | null) =>
    (old && next?.filter((one) => !old.includes(one))) ?? [];
  const all = [...more(then.keys, now.keys), ...more(then.attributes, now.attributes)];
  return [...all, ...more(then.session ?? [], now.session ?? []), 'more of it'][0];
}

interface SuiteText {
  defaults: Record<string, unknown>;
  tests: { name: string; from?: string }[];
}

function suiteIn(source: string): SuiteText {
  const { defaults = {}, tests = [] } = (parse(source, { uniqueKeys: false }) ?? {}) as Partial<SuiteText>;
  return { defaults, tests };
}

/** Maximum length of a name without its number. */
const NAME = 150;

/** On one line, all visible, and different from the name of every other test. */
function unique(text: string, { tests }: SuiteText): string {
  const name = visible(text).slice(0, NAME).toWellFormed();
  const names = new Set(tests.map((one) => one.name));
  let free = name;
  for (let n = 2; names.has(free); n++) free = `${name} (${n})`;
  return free;
}

/** The members of the request that differ from the suite's defaults. */
function written(request: ActionRequest, base: ActionRequest, defaults: SuiteText['defaults']) {
  const found: Record<string, unknown> = {};
  const standard: Record<string, unknown> = { ...STANDARD, ...defaults };
  for (const member of MEMBERS) {
    // where a default says something else, the member must be written
    const value = request[member] ?? (member in defaults ? base[member] : undefined);
    if (value === undefined) continue;
    if (member in standard && canonicalJson(standard[member]) === canonicalJson(value)) continue;
    found[member] = value;
  }
  // null if the tool has no definition
  if (request.tool_pin === null) found.tool_pin = null;
  return found;
}

/** Without members that are absent or that no test can have. */
function members(request: ActionRequest): ActionRequest {
  const all = MEMBERS.map((name) => [name, request[name]] as const);
  return Object.fromEntries(
    all.filter(([name, value]) => value !== undefined && (value !== null || name === 'tool_pin')),
  ) as unknown as ActionRequest;
}

/** The keys of everything in arguments and context. */
function keysIn({ arguments: args, context }: ActionRequest): Set<string> {
  const keys = new Set<string>();
  const walk = (value: unknown, at: ArgumentKey): unknown => {
    keys.add(at.key);
    return mapped(value, at, walk);
  };
  walk(args, ROOT);
  walk(context, CONTEXT);
  return keys;
}

const CONTEXT: ArgumentKey = { key: 'context', fold: 'context' };
const isObject = (value: unknown) => typeof value === 'object' && value !== null && !Array.isArray(value);

/** A copy of an object or a list with each member mapped; any other value unchanged. */
function mapped(
  value: unknown,
  at: ArgumentKey,
  change: (member: unknown, at: ArgumentKey, name: string) => unknown,
): unknown {
  if (Array.isArray(value)) {
    return value.map((one, n) => change(one, { key: `${at.key}[${n}]`, fold: `${at.fold}[${n}]` }, String(n)));
  }
  if (!isObject(value)) return value;
  const copy: Record<string, unknown> = {};
  for (const [name, member] of Object.entries(value as object)) {
    // treat `__proto__` like any other member
    Object.defineProperty(copy, name, {
      value: change(member, memberKey(at, name), name),
      ...{ enumerable: true, configurable: true, writable: true },
    });
  }
  return copy;
}

/** A value of the same kind without content. */
function placeholderOf(value: unknown): unknown {
  switch (typeof value) {
    case 'string':
      return exactDecimal(value) === undefined ? MASKED : '0';
    case 'number':
      return 0;
    case 'boolean':
      return false;
    default:
      return value === null ? null : Array.isArray(value) ? [] : {};
  }
}
