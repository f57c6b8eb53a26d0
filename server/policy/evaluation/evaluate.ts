import type { AuthorizationError } from '@cedar-policy/cedar-wasm/nodejs';
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
import { isGuardrail } from '../language/annotations.ts';
import { type Fact, listsOf } from '../language/facts.ts';
import { admits, type Head, named, readHead } from '../language/head.ts';
import { CedarHost, cedarLanguageVersion, cedarVersions } from '../language/host.ts';
import { compilePattern, type Pattern } from '../language/patterns.ts';
import { preamble, tokens } from '../language/scan.ts';
import { narrowed } from '../language/schema.ts';
import { firstAmbiguity, keysRead, type RequestReads, readsOf } from './ambiguity.ts';
import { factsOf, type Lists, longToMatch } from './facts.ts';
import { joinedTerms, ruleReference, strictestFirst } from './hold-terms.ts';
import { type LimitHit, limitReads, limitsOf } from './limits.ts';
import { DecidedNames, entitiesNamed } from './names.ts';
import { Narrowing } from './projection.ts';
import { definitionRule, Registry, TOOL_CHANGED } from './registry.ts';
import { type EngineCall, type MappedRequest, mapRequest, type Reads, RequestError } from './request.ts';
import { type KnownSession, type SessionReads, SessionRules, sessionState } from './session.ts';

/** The deny reason for an ambiguous argument, followed by a colon and the path. */
const ARGUMENT_IN_DOUBT = 'argument_in_doubt';
/** The deny reasons for a name that could be taken for another one, which follows a colon. */
const NAME_IN_DOUBT = { tool: 'tool_name_in_doubt', server: 'server_name_in_doubt' } as const;
export const POLICY_ERROR = 'policy_error';
export const NOTHING_PERMITS = 'no policy permits this action';
const FORBIDDEN = 'forbidden by policy';

/**
 * The version of the mapping of requests, of the test for ambiguity and of `settle`. It changes whenever the same request,
 * policies and facts would give another decision; the golden decisions in test/vectors/policy pin it.
 */
const DECIDE_VERSION = 'svc-decide/1';

/** What decides, for records: the engine and our own version around it. */
export function engineName(): string {
  return `${cedarVersions().engine} ${DECIDE_VERSION}`;
}

/** The statements that an action matches, before rate counters and holds are considered. */
export interface Match {
  /**
   * `permitted`: a statement grants it. `drifted`: one does, but the definition of the tool is not an approved one.
   * `ambiguous` and `error`: no conclusion is safe, so the action is denied.
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
  /** The same, where the decision point itself could not read it and no policy was asked. */
  doubt?: string;
  /** When it is the name of the tool or of its server that is ambiguous: the one that somebody decided about. */
  ambiguousName?: { of: 'tool' | 'server'; meant: string };
  /** The error, for the operator's log; it may quote the request. */
  detail?: string;
  /** What the fitting statements read of a request; absent when the request could not be mapped for the engine. */
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
  /** The statement that decided; null when none did. */
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

/**
 * The Cedar instance for all decisions in this process, shared by the `PolicyEngine`s of all tenants. Policy text must
 * pass `compilePolicy` before it may reach this instance.
 */
const host = new CedarHost();

export function decisionHost(): CedarHost {
  return host;
}

/** Entries in the map from scopes to slices. Scopes that match the same statements share one slice. */
const MAX_SCOPES = 4_096;
/** Statements in all slices of one engine. */
const MAX_SLICED = 200_000;
/** Cached answers per engine, and the longest question (in characters) that is cached. */
const MAX_ANSWERS = 256;
const MAX_QUESTION = 2_048;

interface Indexed {
  statement: BundleStatement;
  head: Head;
  guardrail: boolean;
  /** The text given to the engine; a guardrail is rewritten as a permit. */
  text: string;
}

/** The statements whose scope can match one combination of agent, role, action, tool and server. */
interface Slice {
  reads: RequestReads<BundleStatement>;
  narrowing: Narrowing;
  /** The context attributes that its statements read; null means all. */
  attributes: ReadonlySet<string> | null;
  facts: readonly Fact[];
  /** Its compiled patterns. */
  patterns: ReadonlyMap<string, Pattern>;
  session: SessionReads;
  sessionNames: NonNullable<Reads['session']>;
  texts: Record<string, string>;
  /** Its context type declares only what the statements read. */
  schema: string;
  /** Unique within the engine. */
  id: number;
}

/**
 * The policies of one verified bundle, ready to decide. Holds memory in the shared instance until `dispose`.
 *
 * The cost depends on the statements that can match, not on the size of the bundle: statements whose scope (principal,
 * action, resource) cannot match the request are left out of the call, and so are context and arguments that the rest
 * do not read. Answers are cached, which covers most traffic where no statement reads the arguments.
 *
 * A guardrail takes effect only where another statement permits. Cedar does not report permits when a forbid matches, so
 * guardrails are evaluated as permits, and one call reports all of them.
 * INVARIANT: a guardrail that matches never counts as a permit.
 */
export class PolicyEngine {
  readonly #content: BundleContent;
  readonly #statements = new Map<string, BundleStatement>();
  readonly #index: Indexed[] = [];
  /** Tools and agents as the bundle knows them. */
  readonly registry: Registry;
  readonly #lists: Lists;
  /** What the policies want to know of calls that have ended. */
  readonly sessions: SessionRules;
  /** The entities that some scope names. All others make no difference to which slice a request gets. */
  readonly #named = new Set<string>();
  readonly #guardrails = new Set<string>();
  readonly #tools = new DecidedNames<BundleStatement | undefined>();
  readonly #servers = new DecidedNames<BundleStatement | undefined>();
  readonly #slices = new Map<string, Slice>();
  readonly #byScope = new Map<string, Slice>();
  /** Keyed by the complete question. The engine has no state and no clock, so equal questions have equal answers. */
  readonly #answers = new Map<string, Match>();
  #sliced = 0;

  /** Throws a RangeError for a bundle in a newer Cedar version, or whose derived fields contradict its Cedar text, or without a list that a statement reads. */
  constructor(content: BundleContent) {
    if (isNewer(content.cedar_lang, cedarLanguageVersion())) {
      throw new RangeError(
        `the bundle uses Cedar ${content.cedar_lang}; this version reads Cedar up to ${cedarLanguageVersion()}`,
      );
    }
    this.#content = content;
    this.registry = new Registry(content.registry);
    this.#lists = new Map(content.lists.map(({ name, values }) => [name, new Set(values)]));
    for (const statement of [...content.policies].sort(byRuleId)) {
      const { id, effect, annotations, cedar } = statement;
      const read = tokens(cedar);
      const head = readHead(read);
      const missing = listsOf(head.facts).find((list) => !this.#lists.has(list));
      if (missing !== undefined)
        throw new RangeError(`${id} reads the list ${missing}, which the bundle does not have`);
      if (head.effect !== effect) throw new RangeError(`${id} is not a ${effect}`);
      for (const tool of entitiesNamed(read, 'Tool')) this.#tools.add(tool, statement);
      for (const server of entitiesNamed(read, 'ToolServer')) this.#servers.add(server, statement);
      const guardrail = isGuardrail(effect, annotations);
      const word = read[preamble(read).rest - 1];
      const text = guardrail && word ? `${cedar.slice(0, word.start)}permit${cedar.slice(word.end)}` : cedar;
      this.#index.push({ statement, head, guardrail, text });
      if (guardrail) this.#guardrails.add(id);
      this.#statements.set(id, statement);
      for (const constraint of [head.principal, head.action, head.resource]) {
        for (const entity of named(constraint)) this.#named.add(entity);
      }
    }
    this.sessions = new SessionRules(this.#index);
  }

  /** Whether actions of this type are known to change nothing. */
  onlyReads(action_type: string): boolean {
    const actions = this.#content.action_entities;
    return Object.hasOwn(actions, action_type) && actions[action_type]!.includes('read');
  }

  /** Never throws: a request that cannot be evaluated gives an `error`, which `settle` turns into a denial. */
  match(request: ActionRequest): Match {
    try {
      const mapped = this.#mapped(request);
      const misnamed = this.#misnamed(request);
      if (misnamed) return { ...misnamed, narrowing: this.#slice(mapped).narrowing };
      return this.#checked(request, this.#counted(request, mapped, this.#match(mapped)));
    } catch (error) {
      const detail = error instanceof RequestError ? error.message : `the policy engine failed: ${String(error)}`;
      return { outcome: 'error', hits: [], limits: [], detail };
    }
  }

  /**
   * Is the action denied regardless of its arguments and context? True only when that is certain: a matching hard forbid
   * does not read the context, or no permit matches and none that could match reads the context. Used to filter lists of
   * tools; each call is still decided when it is made.
   */
  deniesAlways(request: ActionRequest): boolean {
    const match = this.match(request);
    const fixed = ({ head }: Indexed) => head.attributes?.length === 0;
    if (match.outcome === 'forbidden') {
      return this.#index.some((one) => fixed(one) && match.hits.includes(one.statement));
    }
    if (match.outcome !== 'unpermitted') return false;
    return this.#fitting(this.#mapped(request))
      .filter(({ statement }) => statement.effect === 'permit')
      .every(fixed);
  }

  /**
   * The request's session as the statements that fit read it. Never throws: of a request that cannot be evaluated nothing
   * is known but what was counted.
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
      return this.#fitting(this.#mapped(request)).map(({ statement }) => statement);
    } catch (error) {
      if (error instanceof RequestError) return [];
      throw error;
    }
  }

  /** Could a mask apply to the action for some arguments? Then its answers may not match the tool's declared schema. */
  mayMask(request: ActionRequest): boolean {
    const fitting = this.#fitting(this.#mapped(request));
    return fitting.some(({ statement }) => statement.annotations.mask !== undefined);
  }

  /** Frees this engine's memory in the shared instance. Using it afterwards works, and allocates that memory again. */
  dispose(): void {
    for (const slice of this.#slices.values()) host.releaseSet(slice);
    this.#slices.clear();
    this.#byScope.clear();
    this.#answers.clear();
    this.#sliced = 0;
  }

  #mapped(request: ActionRequest): MappedRequest {
    return mapRequest(request, this.#content.action_entities, this.registry.attributes(request));
  }

  /** A name that is another one in all but case, width and invisible characters: the rules would miss what is done. */
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

  /** What the policies permit, as far as the tool is the one that was approved. */
  #checked(request: ActionRequest, match: Match): Match {
    if (match.outcome !== 'permitted') return match;
    const drift = this.registry.drift(request, this.onlyReads(request.action_type));
    if (!drift) return match;
    const rule = definitionRule(request);
    return drift === 'deny'
      ? { ...match, outcome: 'drifted', hits: [rule], limits: [] }
      : { ...match, hits: [...match.hits, rule].sort(byRuleId) };
  }

  /** With the limits, which may depend on more of the request than the statements read. */
  #counted(request: ActionRequest, { args }: MappedRequest, match: Match): Match {
    if (match.outcome !== 'permitted') return match;
    const found = limitsOf(match.hits, request, args);
    return 'doubt' in found
      ? { ...match, ...ambiguousMatch(found.doubt.path, found.doubt.rule) }
      : found.limits.length === 0
        ? match
        : { ...match, limits: found.limits };
  }

  #match(request: MappedRequest): Match {
    const slice = this.#slice(request);
    const { narrowing } = slice;
    if (Object.keys(slice.texts).length === 0) return { outcome: 'unpermitted', hits: [], limits: [], narrowing };
    const ambiguity = firstAmbiguity(slice.reads, request) ?? longToMatch(slice.facts, request.args, slice.patterns);
    if (ambiguity) return { ...ambiguousMatch(ambiguity.path, ambiguity.rule), narrowing };
    const call = request.call({
      keys: keysRead(slice.reads, request),
      attributes: slice.attributes,
      facts: factsOf(slice.facts, request.args, this.#lists, slice.patterns),
      session: slice.sessionNames,
    });
    const question = `${slice.id} ${JSON.stringify(call)}`;
    const known = this.#answers.get(question);
    if (known) return known;
    const match = this.#ask(slice, call);
    if (match.outcome !== 'error' && question.length <= MAX_QUESTION) {
      if (this.#answers.size >= MAX_ANSWERS) this.#answers.delete(this.#answers.keys().next().value as string);
      this.#answers.set(question, match);
    }
    return match;
  }

  #ask(slice: Slice, call: EngineCall): Match {
    // Preparing a set may replace the instance and drop its schemas, so the set comes first.
    const preparsedPolicySetId = host.prepareSet(slice, () => slice.texts);
    const preparsedSchemaName = host.prepareSchema(slice.schema);
    const answer = host.call('statefulIsAuthorized', {
      ...call,
      preparsedPolicySetId,
      preparsedSchemaName,
      validateRequest: true,
    });

    const { narrowing } = slice;
    const ended = (outcome: Match['outcome'], ids: string[], detail?: string): Match => ({
      outcome,
      hits: this.#hits(ids),
      limits: [],
      narrowing,
      ...(detail !== undefined && { detail }),
    });
    const failed = (errors: AuthorizationError[]) =>
      ended(
        'error',
        errors.map(({ policyId }) => policyId),
        describe(errors),
      );
    if (answer.type !== 'success') return ended('error', [], answer.errors[0]?.message ?? 'the engine refused');
    const { decision, diagnostics } = answer.response;
    const { reason } = diagnostics;
    // Cedar skips a forbid that fails and may still answer "allow", so any error must deny.
    const errors = diagnostics.errors.filter(({ policyId }) => !this.#guardrails.has(policyId));
    if (errors.length > 0) return failed(errors);
    if (decision !== 'allow') return ended(reason.length > 0 ? 'forbidden' : 'unpermitted', reason);
    if (reason.every((id) => this.#guardrails.has(id))) return ended('unpermitted', []);
    // checked last: without a permit the denial is a plain one, even if a guardrail failed
    if (diagnostics.errors.length > 0) return failed(diagnostics.errors);

    return { outcome: 'permitted', hits: this.#hits(reason), limits: [], narrowing };
  }

  /** Sorted, because the engine answers in hash-table order. */
  #hits(ids: string[]): BundleStatement[] {
    return [...new Set(ids)].flatMap((id) => this.#statements.get(id) ?? []).sort(byRuleId);
  }

  /** The statements whose scope can match. */
  #fitting({ principal, action, resource }: Pick<MappedRequest, 'principal' | 'action' | 'resource'>): Indexed[] {
    return this.#index.filter(
      ({ head }) => admits(head.principal, principal) && admits(head.action, action) && admits(head.resource, resource),
    );
  }

  #slice({ principal, action, resource }: MappedRequest): Slice {
    const seen = [...principal.ancestors, ...resource.ancestors].filter((entity) => this.#named.has(entity));
    const scope = JSON.stringify([action.self, ...seen]);
    const known = this.#byScope.get(scope);
    if (known) return known;

    const fitting = this.#fitting({ principal, action, resource });
    const name = fitting.map(({ statement }) => statement.id).join('\n');
    if (this.#byScope.size >= MAX_SCOPES || this.#sliced > MAX_SLICED) this.dispose();
    let slice = this.#slices.get(name);
    if (!slice) {
      slice = sliceOf(fitting, this.#content.schema, this.#slices.size, this.sessions);
      this.#sliced += fitting.length;
      this.#slices.set(name, slice);
    }
    this.#byScope.set(scope, slice);
    return slice;
  }
}

function sliceOf(fitting: Indexed[], schema: string, id: number, sessions: SessionRules): Slice {
  const permits = fitting.some(({ statement }) => statement.effect === 'permit');
  const statements = permits ? fitting : fitting.filter(({ guardrail }) => !guardrail);
  const texts = Object.fromEntries(statements.map(({ statement, text }) => [statement.id, text]));
  const reads = readsOf(statements.map(({ statement, head }) => ({ rule: statement, head })));
  const attributes = union(statements.map(({ head }) => head.attributes));
  const narrow = attributes && narrowed(schema, attributes);
  const facts = [...new Map(statements.flatMap(({ head }) => head.facts.map((fact) => [fact.key, fact]))).values()];
  const heads = statements.map(({ head }) => head);
  const session = {
    facts: [...new Map(heads.flatMap((head) => head.sessionFacts.map((one) => [one.tag, one]))).values()],
    calls: [...new Map(heads.flatMap((head) => head.calls.map((one) => [one.tag, one]))).values()],
    sources: sessions.sourcesFor(statements),
  };
  const sessionNames = {
    facts: new Set(session.facts.map(({ tag }) => tag)),
    calls: new Set(session.calls.map(({ tag }) => tag)),
  };
  const patterns = new Map(
    facts.flatMap((fact) => ('pattern' in fact ? [[fact.pattern, compilePattern(fact.pattern)] as const] : [])),
  );
  const read = { reads, facts, patterns, session, sessionNames, attributes: narrow === undefined ? null : attributes };
  const counted = limitReads(statements.map(({ statement }) => statement.annotations));
  const narrowing = new Narrowing(
    read.attributes && new Set([...read.attributes, ...counted.attributes]),
    { ...reads, paths: [...reads.paths, ...counted.paths] },
    sessionNames,
  );
  return { id, texts, ...read, narrowing, schema: narrow || schema };
}

/** The match for an action whose value the decision point itself cannot read for certain, at `path`. */
export function doubtfulMatch(path: string): Match {
  return { ...ambiguousMatch(path), doubt: path };
}

/** The match for an ambiguous argument. The agent sees `path`. */
function ambiguousMatch(path: string, rule?: BundleStatement): Match {
  return { outcome: 'ambiguous', hits: rule ? [rule] : [], limits: [], ambiguousPath: path };
}

/** The union of the lists; null (all attributes) when any of them is null. */
function union(lists: (readonly string[] | null)[]): ReadonlySet<string> | null {
  return lists.includes(null) ? null : new Set(lists.flatMap((list) => list ?? []));
}

function describe(errors: AuthorizationError[]): string {
  return errors
    .map(({ policyId, error }) => `${policyId}: ${error.message}`)
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
      return { ...verdict('deny', hits[0]), deny_reason: POLICY_ERROR };
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

/** The ids of the hits with a hold that the references cover. */
export function coveredBy(references: readonly RuleReference[] | undefined, hits: Match['hits']): string[] {
  if (!references) return [];
  return hits.filter((rule) => rule.annotations.escrow && covers(references, rule)).map(({ id }) => id);
}

/**
 * Do the references cover this statement? They must name the same policy and the same text: the id of an unnamed
 * statement is its position, which another statement may occupy by now.
 */
function covers(references: readonly RuleReference[] | undefined, rule: BundleStatement): boolean {
  if (!references || references.length === 0) return false;
  const { hash } = ruleReference(rule);
  return references.some((one) => one.hash === hash && one.id.startsWith(`${rule.policy_id}#`));
}
