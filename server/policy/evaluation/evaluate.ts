import type { Annotations } from '../../domain/annotations.ts';
import type { Decision } from '../../domain/decision.ts';
import {
  type ActionRequest,
  type BundleContent,
  type BundleStatement,
  byRuleId,
  type HoldTerms,
  type RuleReference,
} from '../../domain/policy.ts';
import type { SessionState } from '../../domain/session-facts.ts';
import { Bounded, detached } from '../../lib/bounded.ts';
import { isGuardrail } from '../language/annotations.ts';
import { listsOf } from '../language/facts.ts';
import { type Head, readHead } from '../language/head.ts';
import { cedarLanguageVersion, cedarVersions } from '../language/host.ts';
import { preamble, tokens } from '../language/scan.ts';
import { firstAmbiguity } from './ambiguity.ts';
import { type Asking, compileAll, decisionHost, type Found } from './cedar/oracle.ts';
import { conditionsOf } from './cedar/parse.ts';
import { factsOf, type Lists, longToMatch } from './facts.ts';
import { joinedTerms, ruleReference, strictestFirst } from './hold-terms.ts';
import { type LimitHit, limitsOf } from './limits.ts';
import { leavesUnmasked } from './mask-doubt.ts';
import { parseMask } from './masks.ts';
import { DecidedNames, entitiesNamed } from './names.ts';
import type { Narrowing } from './projection.ts';
import { definitionRule, Registry, TOOL_CHANGED } from './registry.ts';
import { type MappedRequest, mapRequest, RequestError } from './request.ts';
import { type Place, ScopeIndex } from './scopes.ts';
import { type KnownSession, SessionRules, sessionState } from './session.ts';
import { type Indexed, isOwnSchema, type Slice, SliceReads, sliceOf } from './slice.ts';

export { decisionHost };

/** The deny reason for an ambiguous argument; a colon and the path follow it. */
const ARGUMENT_IN_DOUBT = 'argument_in_doubt';
/** The deny reasons for a name that could be mistaken for another one; a colon and that name follow them. */
const NAME_IN_DOUBT = { tool: 'tool_name_in_doubt', server: 'server_name_in_doubt' } as const;
export const POLICY_ERROR = 'policy_error';
export const NOTHING_PERMITS = 'no policy permits this action';
const FORBIDDEN = 'forbidden by policy';

/**
 * The version of the request mapping, of the ambiguity test and of `settle`. It changes whenever the same request,
 * policies and facts would give another decision; the golden decisions in test/vectors/policy pin it.
 */
const DECIDE_VERSION = 'svc-decide/1';

/** The name of the evaluator for records: the engine and our own version around it. */
export function engineName(): string {
  return `${cedarVersions().engine} ${DECIDE_VERSION}`;
}

/** The statements that an action matches, before rate counters and holds are considered. */
export interface Match {
  /**
   * `permitted`: a statement grants it. `drifted`: one does, but the tool's definition is not an approved one. `ambiguous`
   * and `error`: no conclusion is safe, so the action is denied.
   */
  outcome: 'permitted' | 'forbidden' | 'unpermitted' | 'drifted' | 'ambiguous' | 'error';
  /**
   * Sorted by id: permits and guardrails when permitted, the hard forbids when forbidden, the statements that failed
   * on an error, the statement that reads the ambiguous argument, or the tool registry's own rule when drifted.
   */
  hits: readonly BundleStatement[];
  /** The limits of the hits. Look up their counters before calling `settle`. */
  limits: readonly LimitHit[];
  /** When ambiguous: the argument, such as `arguments.refund.total`. */
  ambiguousPath?: string;
  /** The same path, if the decision point itself could not read the argument and no policy was asked. */
  doubt?: string;
  /** If the name of the tool or of its server is ambiguous: the name that someone decided about. */
  ambiguousName?: { of: 'tool' | 'server'; meant: string };
  /** The error, for the operator's log; it may quote the request. */
  detail?: string;
  /** The cause of an error, as the agent and the record are told. */
  cause?: string;
  /**
   * The ids of statements on which Cedar and the compiled conditions disagree. Raise an alarm: one of the two is wrong.
   * Only Cedar evaluates them from now on.
   */
  disputed?: readonly string[];
  /** What the fitting statements read of a request; absent if the request could not be mapped for the engine. */
  narrowing?: Narrowing;
}

/** The state outside the policies that a decision depends on. */
export interface SettleState {
  /** The rules of `match.limits` whose limit this action would exceed, with the seconds until the limit resets. */
  exceeded: ReadonlyMap<string, { retry_after: number }>;
  /** The rules covered by a released, unexpired, unconsumed hold of the same agent and action hash. */
  covered?: readonly RuleReference[] | undefined;
}

export interface Verdict {
  decision: Decision;
  /** The statement that decided; null if none did. */
  rule_id: string | null;
  policy_id: string | null;
  policy_version: number | null;
  /** All hits, sorted. */
  rule_ids: string[];
  deny_reason?: string;
  masks?: string[];
  /** Seconds. */
  retry_after?: number;
  escrow?: HoldTerms;
  /** The decision relies on the released hold of `state.covered`, which must be consumed with it. */
  consumes: boolean;
}

/** Maximum number of entries in the map from scopes to slices. Scopes that match the same statements share one slice. */
const MAX_SCOPES = 16_384;
/** Maximum number of statements in all slices of one engine. */
const MAX_SLICED = 200_000;
/** How many statements are compiled in one step of `ready`. */
const COMPILED_TOGETHER = 16;
/** How many statements are read in one step of `inSteps`. */
const READ_TOGETHER = 100;
/** One in this many answers is compared with Cedar's. */
const COMPARE_EVERY = 1_000;

/**
 * The policies of one verified bundle, ready to decide. Holds memory in the shared instance until `dispose`.
 *
 * The cost depends on the statements that can match, not on the size of the bundle: statements whose scope (principal,
 * action, resource) cannot match the request are not examined. The conditions of the others are compiled (`cedar/`);
 * Cedar's own engine evaluates those that are not, and serves for comparison.
 *
 * A guardrail takes effect only where another statement permits. Cedar does not report permits when a forbid matches, so
 * guardrails are evaluated as permits, and one call reports all of them.
 * INVARIANT: a guardrail that matches never counts as a permit.
 */
export class PolicyEngine {
  readonly #content: BundleContent;
  readonly #statements = new Map<string, BundleStatement>();
  readonly #index: ScopeIndex<Indexed>;
  readonly #asking: Asking;
  /** Tools and agents according to the bundle. */
  readonly registry: Registry;
  readonly #lists: Lists;
  /** What the policies need to know about calls that have ended. */
  readonly sessions: SessionRules;
  readonly #tools = new DecidedNames<BundleStatement | undefined>();
  readonly #servers = new DecidedNames<BundleStatement | undefined>();
  readonly #slices = new Map<string, Slice>();
  readonly #byScope = new Map<string, Slice>();
  #sliced = 0;
  /** Preparations under way, by scope. */
  readonly #preparing = new Map<string, Promise<void>>();

  /**
   * `left`: the hashes of statements that only Cedar evaluates.
   *
   * Throws a RangeError for a bundle in a newer Cedar version, one whose derived fields contradict its Cedar text, or one
   * that lacks a list that a statement reads.
   */
  constructor(
    content: BundleContent,
    { left, ...how }: Partial<Pick<Asking, 'every' | 'conditionsOf'>> & { left?: ReadonlySet<string> } = {},
  ) {
    if (isNewer(content.cedar_lang, cedarLanguageVersion())) {
      throw new RangeError(
        `the bundle uses Cedar ${content.cedar_lang}; this version reads Cedar up to ${cedarLanguageVersion()}`,
      );
    }
    this.#content = content;
    this.registry = new Registry(content.registry);
    this.#lists = new Map(content.lists.map(({ name, values }) => [name, new Set(values)]));
    const indexed: Indexed[] = [];
    for (const statement of [...content.policies].sort(byRuleId)) {
      const { id, effect, annotations, cedar } = statement;
      const { head, tools, servers, word } = written(cedar);
      const missing = listsOf(head.facts).find((list) => !this.#lists.has(list));
      if (missing !== undefined)
        throw new RangeError(`${id} reads the list ${missing}, which the bundle does not have`);
      if (head.effect !== effect) throw new RangeError(`${id} is not a ${effect}`);
      for (const tool of tools) this.#tools.add(tool, statement);
      for (const server of servers) this.#servers.add(server, statement);
      const guardrail = isGuardrail(effect, annotations);
      const text = guardrail && word ? `${cedar.slice(0, word.start)}permit${cedar.slice(word.end)}` : cedar;
      indexed.push({
        ...{ id, statement, head, guardrail, text, forbids: effect === 'forbid' && !guardrail },
        condition: left && left.size > 0 && left.has(ruleReference(statement).hash) ? null : undefined,
      });
      this.#statements.set(id, statement);
    }
    this.#index = new ScopeIndex(indexed);
    this.#asking = { compiles: isOwnSchema(content), every: COMPARE_EVERY, answers: 0, conditionsOf, ...how };
    this.sessions = new SessionRules(indexed);
  }

  /** Like the constructor, but in steps with `turn` between them. */
  static async inSteps(
    content: BundleContent,
    how: ConstructorParameters<typeof PolicyEngine>[1],
    turn: () => Promise<void>,
  ): Promise<PolicyEngine> {
    for (const [n, { cedar }] of content.policies.entries()) {
      written(cedar);
      if (n % READ_TOGETHER === READ_TOGETHER - 1) await turn();
    }
    return new PolicyEngine(content, how);
  }

  /** Whether actions of this type are known to be read-only. */
  onlyReads(action_type: string): boolean {
    const actions = this.#content.action_entities;
    return Object.hasOwn(actions, action_type) && actions[action_type]!.includes('read');
  }

  /**
   * Prepares what a decision on the request needs beyond the request: compiles the conditions of all statements that it can
   * match, and gives Cedar what it needs to compare them. For 1,000 statements that takes a second, so it is done in steps
   * of a few milliseconds, with `turn` between them. Undefined if already done. `match` does not require it, but would then
   * do the same work in one go.
   */
  ready(request: ActionRequest, turn: () => Promise<void>): Promise<void> | undefined {
    const { agent_id, agent_role, action_type, tool_name, tool_server } = request;
    // most names are the same whether mapped or not
    const scope = this.#index.keyOf({
      agent: { id: agent_id, role: agent_role },
      action: { type: action_type, groups: [] },
      tool: { id: tool_name, server: tool_server },
    });
    if (this.#byScope.get(scope)?.ready) return undefined;
    const under = this.#preparing.get(scope);
    if (under) return under;
    const preparing = this.#prepare(request, turn).finally(() => this.#preparing.delete(scope));
    this.#preparing.set(scope, preparing);
    return preparing;
  }

  async #prepare(request: ActionRequest, turn: () => Promise<void>): Promise<void> {
    let place: MappedRequest;
    try {
      place = this.#mapped(request);
    } catch {
      // `match` reports what is wrong with it
      return;
    }
    const fitting = this.#index.fitting(place);
    for (let from = 0; from < fitting.length; from += COMPILED_TOGETHER) {
      const cold = fitting.slice(from, from + COMPILED_TOGETHER).filter(({ condition }) => condition === undefined);
      if (cold.length === 0) continue;
      compileAll(cold, this.#asking);
      await turn();
    }
    const slice = this.#slice(place);
    await turn();
    for (const _ of slice.rules?.preparing() ?? []) await turn();
    slice.ready = true;
  }

  /** Never throws: a request that cannot be evaluated gives an `error`, which `settle` turns into a denial. */
  match(request: ActionRequest): Match {
    const steps = this.#matching(request);
    for (let step = steps.next(); ; step = steps.next()) if (step.done) return step.value;
  }

  /** Like `match`, with `turn` between the steps of long work; it then returns a promise. */
  matchInSteps(request: ActionRequest, turn: () => Promise<void>): Match | Promise<Match> {
    const steps = this.#matching(request);
    const first = steps.next();
    if (first.done) return first.value;
    return (async () => {
      for (;;) {
        await turn();
        const step = steps.next();
        if (step.done) return step.value;
      }
    })();
  }

  *#matching(request: ActionRequest): Generator<void, Match> {
    try {
      const mapped = this.#mapped(request);
      const misnamed = this.#misnamed(request);
      if (misnamed) return { ...misnamed, narrowing: this.#slice(mapped).narrowing };
      const match = this.#masked(request, mapped, yield* this.#match(mapped, this.registry.nullable(request)));
      return this.#checked(request, this.#counted(request, mapped, match));
    } catch (error) {
      const none = { outcome: 'error', hits: [], limits: [] } as const;
      if (error instanceof RequestError) return { ...none, detail: error.message, cause: error.message };
      return { ...none, detail: `the policy engine failed: ${String(error)}` };
    }
  }

  /**
   * Whether the action is denied regardless of its arguments and context. True only if that is certain: a matching hard
   * forbid does not read the context, or no permit matches and none that could match reads the context. Used to filter
   * lists of tools; each call is still decided when it is made.
   */
  deniesAlways(request: ActionRequest): boolean {
    const match = this.match(request);
    const fixed = ({ head }: Indexed) => head.attributes?.length === 0;
    if (match.outcome === 'forbidden') {
      return this.#index.all.some((one) => fixed(one) && match.hits.includes(one.statement));
    }
    if (match.outcome !== 'unpermitted') return false;
    return this.#index
      .fitting(this.#mapped(request))
      .filter(({ statement }) => statement.effect === 'permit')
      .every(fixed);
  }

  /**
   * The request's session as the fitting statements read it. Never throws: for a request that cannot be evaluated, only the
   * counts are known.
   */
  session(request: ActionRequest, counted: { call_count: number; started: string }, known: KnownSession): SessionState {
    try {
      const mapped = this.#mapped(request);
      return sessionState(counted, known, this.#slice(mapped).session, mapped.args, request.now);
    } catch (error) {
      if (error instanceof RequestError) return { ...counted, lowest_trust: 0 };
      throw error;
    }
  }

  /** The annotations of the statement with this id, if there is one. */
  annotationsOf(id: string): Annotations | undefined {
    return this.#statements.get(id)?.annotations;
  }

  /** The statements whose scope (principal, action, resource) fits the request; none if it cannot be represented. */
  reached(request: ActionRequest): BundleStatement[] {
    try {
      return this.#index.fitting(this.#mapped(request)).map(({ statement }) => statement);
    } catch (error) {
      if (error instanceof RequestError) return [];
      throw error;
    }
  }

  /** Whether a mask could apply to the action for some arguments. If so, its answers may not match the tool's declared schema. */
  mayMask(request: ActionRequest): boolean {
    const fitting = this.#index.fitting(this.#mapped(request));
    return fitting.some(({ statement }) => statement.annotations.mask !== undefined);
  }

  /** Frees this engine's memory in the shared instance. Using it afterward works, and allocates that memory again. */
  dispose(): void {
    for (const { rules } of this.#slices.values()) rules?.release();
    this.#slices.clear();
    this.#byScope.clear();
    this.#sliced = 0;
  }

  #mapped(request: ActionRequest): MappedRequest {
    return mapRequest(request, this.#content.action_entities, this.registry.attributes(request));
  }

  /** A name that differs from a known one only in case, width or invisible characters: the rules would miss what is done. */
  #misnamed({ tool_name, tool_server }: ActionRequest): Match | undefined {
    const server = this.#servers.meant(tool_server) ?? this.registry.meantServer(tool_server);
    const tool = this.#tools.meant(tool_name) ?? this.registry.meantTool(tool_server, tool_name);
    const meant = server ?? tool;
    if (!meant) return undefined;
    const hits = meant.rule ? [meant.rule] : [];
    return {
      outcome: 'ambiguous',
      hits,
      limits: [],
      ambiguousName: { of: server ? 'server' : 'tool', meant: meant.name },
    };
  }

  /** What the policies permit, provided that the tool is the approved one. */
  #checked(request: ActionRequest, match: Match): Match {
    if (match.outcome !== 'permitted') return match;
    const drift = this.registry.drift(request, this.onlyReads(request.action_type));
    if (!drift) return match;
    const rule = definitionRule(request);
    return drift === 'deny'
      ? { ...match, outcome: 'drifted', hits: [rule], limits: [] }
      : { ...match, hits: [...match.hits, rule].sort(byRuleId) };
  }

  /** Nothing is permitted with masks that leave a value in clear which the tool may find. */
  #masked({ arguments: root, context }: ActionRequest, { args }: MappedRequest, match: Match): Match {
    if (match.outcome !== 'permitted') return match;
    for (const rule of match.hits) {
      for (const path of rule.annotations.mask ?? []) {
        // throws where there are more than rules may read
        if (args.values.size === 0) return match;
        const mask = parseMask(path);
        // the arguments of an HTTP request contain its body, and masks apply to paths in the body too
        const all = [root, Object(root).body as unknown, context];
        if (!all.some((value) => leavesUnmasked(value, mask))) continue;
        // what the masks hide is in no projection, so that the decision is not repeated from one
        return { ...match, ...doubtfulMatch(`arguments${path.slice(1)}`) };
      }
    }
    return match;
  }

  /** Adds the limits, which may depend on more of the request than the statements read. */
  #counted(request: ActionRequest, { args }: MappedRequest, match: Match): Match {
    if (match.outcome !== 'permitted') return match;
    const isKnown = (server: string) => this.#servers.has(server) || this.registry.knows(server);
    const found = limitsOf(match.hits, request, args, isKnown);
    return 'doubt' in found
      ? { ...match, ...ambiguousMatch(found.doubt.path, found.doubt.rule) }
      : found.limits.length === 0
        ? match
        : { ...match, limits: found.limits };
  }

  *#match(request: MappedRequest, nullable: readonly string[]): Generator<void, Match> {
    const slice = this.#slice(request);
    const { rules, narrowing } = slice;
    if (!rules) return { outcome: 'unpermitted', hits: [], limits: [], narrowing };
    const ambiguity =
      firstAmbiguity(slice.reads, request, nullable) ?? longToMatch(slice.facts, request.args, slice.patterns);
    if (ambiguity) return { ...ambiguousMatch(ambiguity.path, ambiguity.rule), narrowing };
    const facts = factsOf(slice.facts, request.args, this.#lists, slice.patterns);
    const found = yield* rules.finding(request, new SliceReads(slice, request, facts));
    // they are sliced again, with the disputed ones left to Cedar
    if (found.disputed) this.#recompile(found.disputed);
    return { ...conclude(found), narrowing };
  }

  #recompile(disputed: readonly Indexed[]): void {
    for (const one of disputed) one.condition = undefined;
    this.dispose();
  }

  #slice(place: Pick<MappedRequest, 'values'> & Place): Slice {
    const scope = this.#index.keyOf(place.values);
    const known = this.#byScope.get(scope);
    if (known) return known;

    const fitting = this.#index.fitting(place);
    const name = fitting.map(({ id }) => id).join('\n');
    if (this.#byScope.size >= MAX_SCOPES || this.#sliced > MAX_SLICED) this.dispose();
    let slice = this.#slices.get(name);
    if (!slice) {
      slice = sliceOf(fitting, this.#content.schema, this.#asking, this.sessions);
      this.#sliced += fitting.length;
      this.#slices.set(name, slice);
    }
    this.#byScope.set(scope, slice);
    return slice;
  }
}

/** What is read from a statement's tokens. Identical texts give identical results, whichever tenant they belong to. */
interface Written {
  head: Head;
  /** The tools and tool servers that it names. */
  tools: readonly string[];
  servers: readonly string[];
  /** `permit` or `forbid`. */
  word: { start: number; end: number } | undefined;
}

const KNOWN = new Bounded<Written>({ entries: 20_000, characters: 16_000_000 });

/** Most statements of a bundle were also in the previous one. */
function written(cedar: string): Written {
  const known = KNOWN.get(cedar);
  if (known) return known;
  // the results keep parts of the text alive, and a statement may be part of a long one
  const text = detached(cedar);
  const read = tokens(text);
  const word = read[preamble(read).rest - 1];
  const made = {
    head: readHead(read),
    tools: [...entitiesNamed(read, 'Tool')],
    servers: [...entitiesNamed(read, 'ToolServer')],
    word: word && { start: word.start, end: word.end },
  };
  KNOWN.set(text, made);
  return made;
}

function conclude({ forbids, permits, errors, refused, disputed }: Found<Indexed>): Match {
  const ended = (outcome: Match['outcome'], hits: readonly Indexed[], detail?: string): Match => ({
    outcome,
    hits: hits.map(({ statement }) => statement).sort(byRuleId),
    limits: [],
    ...(detail !== undefined && { detail }),
  });
  const failed = (errors: Found<Indexed>['errors']) => {
    const ids = errors.map(({ rule }) => rule.id).sort();
    return {
      ...ended(
        'error',
        errors.map(({ rule }) => rule),
        describe(errors),
      ),
      // the engine's own words may quote what the agent must not read, such as labels
      cause: `a condition of ${ids.join(', ')} fails on this request`,
    };
  };
  if (disputed) {
    const ids = disputed.map(({ id }) => id).sort();
    const detail = `Cedar and the compiled conditions differ about ${ids.join(', ')}`;
    return { ...ended('error', disputed, detail), disputed: ids };
  }
  if (refused !== undefined) return ended('error', [], refused);
  // Cedar skips a forbid that fails and may still answer "allow", so any error must deny.
  const hard = errors.filter(({ rule }) => !rule.guardrail);
  if (hard.length > 0) return failed(hard);
  if (forbids.length > 0) return ended('forbidden', forbids);
  if (permits.every(({ guardrail }) => guardrail)) return ended('unpermitted', []);
  // checked last: without a permit it is a plain denial, even if a guardrail failed
  return errors.length > 0 ? failed(errors) : ended('permitted', permits);
}

/** The match for an action with a value at `path` that the decision point itself cannot read with certainty. */
export function doubtfulMatch(path: string): Match {
  return { ...ambiguousMatch(path), doubt: path };
}

/** The match for an ambiguous argument. The agent sees `path`. */
function ambiguousMatch(path: string, rule?: BundleStatement): Match {
  return { outcome: 'ambiguous', hits: rule ? [rule] : [], limits: [], ambiguousPath: path };
}

function describe(errors: Found<Indexed>['errors']): string {
  return errors
    .map(({ rule, message }) => `${rule.id}: ${message}`)
    .sort()
    .join('; ');
}

function isNewer(version: string, than: string): boolean {
  const [major = 0, minor = 0] = version.split('.').map(Number);
  const [ownMajor = 0, ownMinor = 0] = than.split('.').map(Number);
  return !(major < ownMajor || (major === ownMajor && minor <= ownMinor));
}

/**
 * The decision, in the order of the policy language:
 *
 *   error, ambiguity, hard forbid or no permit -> deny;  a limit exceeded -> rate_limited (before escrow, so that an agent
 *   over its limit cannot flood the approvers);  an escrow rule not covered -> escrow;  a mask -> allow_with_masking;
 *   otherwise allow.
 *
 * Pure and deterministic. Adding a guardrail never makes the decision more permissive, and a hold is consumed only when
 * it covers every escrow rule that matched.
 */
export function settle(match: Match, state: SettleState): Verdict {
  const { hits } = match;
  const verdict = (decision: Decision, rule: BundleStatement | undefined, consumes = false): Verdict => ({
    decision,
    rule_id: rule?.id ?? null,
    policy_id: rule?.policy_id ?? null,
    policy_version: rule?.version ?? null,
    rule_ids: hits.map(({ id }) => id),
    consumes,
  });
  switch (match.outcome) {
    case 'error':
      return {
        ...verdict('deny', hits[0]),
        deny_reason: match.cause === undefined ? POLICY_ERROR : `${POLICY_ERROR}: ${match.cause}`,
      };
    case 'ambiguous':
      return { ...verdict('deny', hits[0]), deny_reason: doubtOf(match) };
    case 'forbidden':
      return { ...verdict('deny', hits[0]), deny_reason: hits[0]?.annotations.reason ?? FORBIDDEN };
    case 'unpermitted':
      return { ...verdict('deny', undefined), deny_reason: NOTHING_PERMITS };
    case 'drifted':
      return { ...verdict('deny', hits[0]), deny_reason: TOOL_CHANGED };
    case 'permitted':
      break;
  }

  const over = hits
    .flatMap((rule) => {
      const { rate, budget } = rule.annotations;
      const exceeded = (rate || budget) && state.exceeded.get(rule.id);
      return exceeded ? [{ rule, retryAfter: exceeded.retry_after }] : [];
    })
    .reduce<{ rule: BundleStatement; retryAfter: number } | undefined>(
      (longest, one) => (longest && longest.retryAfter >= one.retryAfter ? longest : one),
      undefined,
    );
  if (over) return { ...verdict('rate_limited', over.rule), retry_after: over.retryAfter };

  const holding = hits.filter(({ annotations }) => annotations.escrow).sort(strictestFirst);
  const covered = holding.length > 0 && holding.every((rule) => covers(state.covered, rule));
  if (holding.length > 0 && !covered) return { ...verdict('escrow', holding[0]), escrow: joinedTerms(holding) };

  const masking = hits.filter(({ annotations }) => annotations.mask);
  if (masking.length > 0) {
    const masks = [...new Set(masking.flatMap(({ annotations }) => annotations.mask ?? []))].sort();
    return { ...verdict('allow_with_masking', masking[0], covered), masks };
  }
  return verdict('allow', hits.find(({ effect }) => effect === 'permit') ?? hits[0], covered);
}

function doubtOf({ ambiguousName, ambiguousPath }: Match): string {
  return ambiguousName
    ? `${NAME_IN_DOUBT[ambiguousName.of]}: ${ambiguousName.meant}`
    : `${ARGUMENT_IN_DOUBT}: ${ambiguousPath}`;
}

/** The ids of the hits with `@escrow` that the references cover. */
export function coveredBy(references: readonly RuleReference[] | undefined, hits: Match['hits']): string[] {
  if (!references) return [];
  return hits.filter((rule) => rule.annotations.escrow && covers(references, rule)).map(({ id }) => id);
}

/**
 * Whether the references cover this statement. They must name the same policy and the same text: the id of an unnamed
 * statement is its position, which may now belong to another statement.
 */
function covers(references: readonly RuleReference[] | undefined, rule: BundleStatement): boolean {
  if (!references || references.length === 0) return false;
  const { hash } = ruleReference(rule);
  return references.some((one) => one.hash === hash && one.id.startsWith(`${rule.policy_id}#`));
}
