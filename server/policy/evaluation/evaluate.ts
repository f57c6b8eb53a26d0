import type { AuthorizationError } from '@cedar-policy/cedar-wasm/nodejs';
import type { Decision } from '../../domain/decision.ts';
import {
  type ActionRequest,
  type BundleContent,
  type BundleStatement,
  byRuleId,
  type HoldTerms,
  type RuleReference,
} from '../../domain/policy.ts';
import { isGuardrail } from '../language/annotations.ts';
import { admits, type Head, named, readHead } from '../language/head.ts';
import { CedarHost, cedarLanguageVersion } from '../language/host.ts';
import { preamble, tokens } from '../language/scan.ts';
import { narrowed } from '../language/schema.ts';
import { firstDoubt, keysRead, type ReadsOf, readsOf } from './doubt.ts';
import { joinedTerms, ruleReference, strictestFirst } from './hold-terms.ts';
import { type EngineCall, type MappedRequest, mapRequest, RequestError } from './request.ts';

/** Followed by a colon and the path. */
const ARGUMENT_IN_DOUBT = 'argument_in_doubt';
export const POLICY_ERROR = 'policy_error';
export const NOTHING_PERMITS = 'no policy permits this action';
const FORBIDDEN = 'forbidden by policy';

/** Which statements an action meets, before counters and holds are looked at. */
export interface Match {
  /** `permitted`: something grants it. `doubt` and `error`: nothing may be concluded; it is denied. */
  outcome: 'permitted' | 'forbidden' | 'unpermitted' | 'doubt' | 'error';
  /**
   * Sorted by id: permits and guardrails when permitted, the hard forbids when forbidden, those that failed on error,
   * on doubt the one that reads what is in doubt.
   */
  hits: readonly BundleStatement[];
  /** The hits with @rate: look their counters up, per rule and agent, before `settle`. */
  rates: readonly RateHit[];
  /** On doubt: what is in doubt, such as `arguments.refund.total`. */
  doubt?: string;
  /** What went wrong, for the operator's log; it may quote the request. */
  detail?: string;
}

export interface RateHit {
  rule_id: string;
  limit: number;
  window_seconds: number;
}

/** What lies outside the policies when a match is settled. */
export interface SettleState {
  /** The rules of `match.rates` that are over their limit for this agent, with the seconds until they are not. */
  exceeded: ReadonlyMap<string, { retry_after: number }>;
  /** The rules that a released, unexpired, unconsumed hold of the same agent and the same action hash was opened for. */
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
  /** The decision stands on the released hold of `state.covered`, which must be consumed with it. */
  consumes: boolean;
}

/**
 * The engine of all decisions in this process, shared by the engines of all tenants. Nothing that an author typed and
 * that has not passed `compilePolicy` may reach it.
 */
const host = new CedarHost();

export function decisionHost(): CedarHost {
  return host;
}

/** Entries of the map from scopes to slices; a slice itself is shared by all scopes that it fits. */
const MOST_SCOPES = 4_096;
/** Statements in all slices of one engine together. */
const MOST_SLICED = 200_000;
/** Answers that one engine remembers, and the longest question of them in characters. */
const MOST_ANSWERS = 256;
const MOST_QUESTION = 2_048;

interface Indexed {
  statement: BundleStatement;
  head: Head;
  guardrail: boolean;
  /** What the engine is given: the text, or of a guardrail the text as a permit. */
  text: string;
}

/** The statements whose scope can match one combination of agent, role, action, tool and server. */
interface Slice {
  reads: ReadsOf<BundleStatement>;
  /** The attributes of the context that they read; null means all. */
  attributes: ReadonlySet<string> | null;
  texts: Record<string, string>;
  /** Its context has what the statements read, and nothing else. */
  schema: string;
  /** Tells slices apart within their engine. */
  id: number;
}

/**
 * The policies of one verified bundle, ready to decide. Holds memory of the shared engine until `dispose`.
 *
 * Cost follows the statements that can match, not all that exist: those whose scope (principal, action, resource)
 * cannot match the request are left out of the call, and so is what the rest does not read of context and arguments.
 * What was asked before is answered from memory: where no statement reads the arguments, that is most of the traffic.
 *
 * A guardrail binds where something else permits. The engine does not report permits behind a forbid that is hit, so
 * it is asked about guardrails as permits: one call then reports all of them.
 * INVARIANT: a guardrail that is hit never counts as a permit.
 */
export class PolicyEngine {
  readonly #content: BundleContent;
  readonly #statements = new Map<string, BundleStatement>();
  readonly #index: Indexed[] = [];
  /** The entities that some scope names; what nothing names does not tell two requests apart. */
  readonly #named = new Set<string>();
  readonly #guardrails = new Set<string>();
  readonly #slices = new Map<string, Slice>();
  readonly #byScope = new Map<string, Slice>();
  /** By all that the engine was asked. It has no state and no clock: the same question has the same answer. */
  readonly #answers = new Map<string, Match>();
  #sliced = 0;

  /** Throws a RangeError on a bundle for a newer language, or one whose derived fields contradict its Cedar text. */
  constructor(content: BundleContent) {
    if (isNewer(content.cedar_lang, cedarLanguageVersion())) {
      throw new RangeError(`the bundle is written in Cedar ${content.cedar_lang}, which this program does not read`);
    }
    this.#content = content;
    for (const statement of [...content.policies].sort(byRuleId)) {
      const { id, effect, annotations, cedar } = statement;
      const read = tokens(cedar);
      const head = readHead(read);
      if (head.effect !== effect) throw new RangeError(`${id} is not a ${effect}`);
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
  }

  /** Never throws: what cannot be evaluated is an `error`, which settles as a denial. */
  match(request: ActionRequest): Match {
    try {
      return this.#match(mapRequest(request, this.#content.action_entities));
    } catch (error) {
      const detail = error instanceof RequestError ? error.message : `the policy engine failed: ${String(error)}`;
      return { outcome: 'error', hits: [], rates: [], detail };
    }
  }

  /**
   * Is the action denied whatever its arguments and the rest of its context are? Told for sure only: by a hard forbid
   * that is hit and does not read the context, or because no permit is hit and none that could be reads it. For lists of
   * what an agent may use, where the action itself is decided when it comes.
   */
  deniesAlways(request: ActionRequest): boolean {
    const match = this.match(request);
    const fixed = ({ head }: Indexed) => head.attributes?.length === 0;
    if (match.outcome === 'forbidden') {
      return this.#index.some((one) => fixed(one) && match.hits.includes(one.statement));
    }
    if (match.outcome !== 'unpermitted') return false;
    return this.#fitting(mapRequest(request, this.#content.action_entities))
      .filter(({ statement }) => statement.effect === 'permit')
      .every(fixed);
  }

  /** Could a mask bind the action, whatever its arguments? Then its answers may not be of the form that is promised. */
  mayMask(request: ActionRequest): boolean {
    const fitting = this.#fitting(mapRequest(request, this.#content.action_entities));
    return fitting.some(({ statement }) => statement.annotations.mask !== undefined);
  }

  /** Frees what the shared engine keeps for this one. It may still be used afterwards, and then holds memory again. */
  dispose(): void {
    for (const slice of this.#slices.values()) host.releaseSet(slice);
    this.#slices.clear();
    this.#byScope.clear();
    this.#answers.clear();
    this.#sliced = 0;
  }

  #match(request: MappedRequest): Match {
    const slice = this.#slice(request);
    if (Object.keys(slice.texts).length === 0) return { outcome: 'unpermitted', hits: [], rates: [] };
    const doubt = firstDoubt(slice.reads, request);
    if (doubt) return doubted(doubt.path, doubt.rule);
    const call = request.call({ keys: keysRead(slice.reads, request), attributes: slice.attributes });
    const question = `${slice.id} ${JSON.stringify(call)}`;
    const known = this.#answers.get(question);
    if (known) return known;
    const match = this.#ask(slice, call);
    if (match.outcome !== 'error' && question.length <= MOST_QUESTION) {
      if (this.#answers.size >= MOST_ANSWERS) this.#answers.delete(this.#answers.keys().next().value as string);
      this.#answers.set(question, match);
    }
    return match;
  }

  #ask(slice: Slice, call: EngineCall): Match {
    // Preparing a set may replace the instance, and with it the schemas: the set comes first.
    const preparsedPolicySetId = host.prepareSet(slice, () => slice.texts);
    const preparsedSchemaName = host.prepareSchema(slice.schema);
    const answer = host.call('statefulIsAuthorized', {
      ...call,
      preparsedPolicySetId,
      preparsedSchemaName,
      validateRequest: true,
    });

    const ended = (outcome: Match['outcome'], ids: string[], detail?: string): Match => ({
      outcome,
      hits: this.#hits(ids),
      rates: [],
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
    // A forbid that fails is skipped, and the engine may say "allow": an error is never less than a denial.
    const errors = diagnostics.errors.filter(({ policyId }) => !this.#guardrails.has(policyId));
    if (errors.length > 0) return failed(errors);
    if (decision !== 'allow') return ended(reason.length > 0 ? 'forbidden' : 'unpermitted', reason);
    if (reason.every((id) => this.#guardrails.has(id))) return ended('unpermitted', []);
    // only now: what no permit allows is a plain denial, whatever its guardrails would have said
    if (diagnostics.errors.length > 0) return failed(diagnostics.errors);

    const hits = this.#hits(reason);
    const rates = hits.flatMap(({ id, annotations: { rate } }) => (rate ? [{ rule_id: id, ...rate }] : []));
    return { outcome: 'permitted', hits, rates };
  }

  /** The engine answers in the order of a hash table. */
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
    if (this.#byScope.size >= MOST_SCOPES || this.#sliced > MOST_SLICED) this.dispose();
    let slice = this.#slices.get(name);
    if (!slice) {
      slice = sliceOf(fitting, this.#content.schema, this.#slices.size);
      this.#sliced += fitting.length;
      this.#slices.set(name, slice);
    }
    this.#byScope.set(scope, slice);
    return slice;
  }
}

function sliceOf(fitting: Indexed[], schema: string, id: number): Slice {
  const permits = fitting.some(({ statement }) => statement.effect === 'permit');
  const statements = permits ? fitting : fitting.filter(({ guardrail }) => !guardrail);
  const texts = Object.fromEntries(statements.map(({ statement, text }) => [statement.id, text]));
  const reads = readsOf(statements.map(({ statement, head }) => ({ rule: statement, head })));
  const attributes = union(statements.map(({ head }) => head.attributes));
  const narrow = attributes && narrowed(schema, attributes);
  return { id, texts, reads, attributes: narrow === undefined ? null : attributes, schema: narrow || schema };
}

/** What an argument in doubt comes to; `path` is told to the agent. */
export function doubted(path: string, rule?: BundleStatement): Match {
  return { outcome: 'doubt', hits: rule ? [rule] : [], rates: [], doubt: path };
}

/** Null, which means everything, when one of them is null. */
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
 * The decision, in the order that the policy language gives:
 *
 *   error or doubt or hard forbid or no permit -> deny;  a rate exceeded -> rate_limited (before escrow, so that an agent over
 *   its limit cannot flood the approvers);  an escrow rule not covered -> escrow;  a mask -> allow_with_masking;  allow.
 *
 * Pure and deterministic. Adding a guardrail never makes the decision more permissive, and a hold consumes only when
 * it covers every escrow rule that was hit.
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
    case 'doubt':
      return { ...verdict('deny', hits[0]), deny_reason: `${ARGUMENT_IN_DOUBT}: ${match.doubt}` };
    case 'forbidden':
      return { ...verdict('deny', hits[0]), deny_reason: hits[0]?.annotations.reason ?? FORBIDDEN };
    case 'unpermitted':
      return { ...verdict('deny', undefined), deny_reason: NOTHING_PERMITS };
    case 'permitted':
      break;
  }

  const over = hits
    .flatMap((rule) => {
      const exceeded = rule.annotations.rate && state.exceeded.get(rule.id);
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

/**
 * Do the references cover this statement? Only the same text of the same policy counts: the name of an unnamed statement
 * is its place, which another statement may have taken since.
 */
function covers(references: readonly RuleReference[] | undefined, rule: BundleStatement): boolean {
  if (!references || references.length === 0) return false;
  const { hash } = ruleReference(rule);
  return references.some((one) => one.hash === hash && one.id.startsWith(`${rule.policy_id}#`));
}
