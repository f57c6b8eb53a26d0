import { Bounded, detached } from '../../../lib/bounded.ts';
import type { Head } from '../../language/head.ts';
import { CedarHost } from '../../language/host.ts';
import type { MappedRequest, Reads } from '../request.ts';
import type { Condition } from './compile.ts';
import type { conditionsOf } from './parse.ts';
import { Question } from './question.ts';
import { ASK } from './values.ts';

/** A statement of an engine: the text that Cedar gets, and the compiled condition. */
export interface Rule {
  readonly id: string;
  readonly head: Head;
  /** The text given to Cedar; a guardrail is rewritten as a permit. */
  readonly text: string;
  readonly forbids: boolean;
  /** Undefined before it is first needed; null if only Cedar evaluates it. */
  condition: Condition | null | undefined;
}

/** The statements that match a request, and those that failed. */
export interface Found<R extends Rule> {
  forbids: R[];
  /** Not reported if a forbid matches. */
  permits: R[];
  errors: { rule: R; message: string }[];
  /** Why Cedar rejected the request. */
  refused?: string;
  /** Statements on which the compiled conditions and Cedar disagree. Nothing may be concluded. */
  disputed?: R[];
}

const MOST_LIMITS = { sets: 128, statements: 8_000, schemas: 128 };
let host: CedarHost | undefined;

/**
 * The Cedar instance for all decisions in this process, shared by the engines of all tenants. Policy text must pass
 * `compilePolicy` before it may reach this instance.
 */
export function decisionHost(): CedarHost {
  host ??= new CedarHost(MOST_LIMITS);
  return host;
}

/**
 * The texts of statements that were found to be compiled incorrectly. Only Cedar evaluates them, until the process ends;
 * a new process compares each statement again.
 */
const disputed = new Set<string>();
/** The texts of statements whose first answer was compared with Cedar's. */
const compared = new Bounded<true>({ entries: 20_000, characters: 16_000_000 });

/** How many statements are compared in one call of Cedar, so that comparing takes a bounded time whatever is in force. */
const MOST_COMPARED = 64;

/** How an engine evaluates: `compiles` if its schema is the one that conditions are compiled for. */
export interface Asking {
  compiles: boolean;
  /** One in this many answers is compared with Cedar's, as is the first of each statement. */
  every: number;
  /** Counts answers. */
  answers: number;
  conditionsOf: typeof conditionsOf;
}

/** Statements that Cedar evaluates in one call. */
class Group<R extends Rule> {
  readonly #rules: readonly R[];
  readonly #byId: ReadonlyMap<string, R>;
  /** Whether the first answer of each of them was compared. */
  #compared: boolean;
  /** Whether one of them is disputed: in another engine, or under another id. */
  #disputed = false;
  /** The number of disputed texts at the last check. */
  #known = 0;

  constructor(rules: readonly R[]) {
    this.#rules = rules;
    this.#byId = new Map(rules.map((rule) => [rule.id, rule]));
    this.#compared = rules.every(({ text }) => compared.has(text));
  }

  get isNew(): boolean {
    return !this.#compared;
  }

  /** The result of the compiled conditions; undefined if one of them has no exact answer or is disputed. */
  answer(question: Question): Found<R> | undefined {
    if (this.#known !== disputed.size) {
      this.#known = disputed.size;
      this.#disputed = this.#rules.some(({ text }) => disputed.has(text));
    }
    if (this.#disputed) return undefined;
    const found: Found<R> = { forbids: [], permits: [], errors: [] };
    for (const rule of this.#rules) {
      const holds = rule.condition!(question);
      if (holds === ASK) return undefined;
      if (holds) found[rule.forbids ? 'forbids' : 'permits'].push(rule);
    }
    return found;
  }

  /** Gives Cedar its statements, which takes longer than evaluating them. */
  prepare(): string {
    return decisionHost().prepareSet(this, () => Object.fromEntries(this.#rules.map(({ id, text }) => [id, text])));
  }

  /** Cedar's result. */
  ask(request: MappedRequest, reads: Reads, schema: string): Found<R> {
    const cedar = decisionHost();
    // Preparing a set may replace the instance and drop its schemas, so the set comes first.
    const preparsedPolicySetId = this.prepare();
    const preparsedSchemaName = cedar.prepareSchema(schema);
    const answer = cedar.call('statefulIsAuthorized', {
      ...request.call(reads),
      ...{ preparsedPolicySetId, preparsedSchemaName, validateRequest: true },
    });
    const found: Found<R> = { forbids: [], permits: [], errors: [] };
    if (answer.type !== 'success') return { ...found, refused: answer.errors[0]?.message ?? 'the engine refused' };
    const { reason, errors } = answer.response.diagnostics;
    for (const id of reason) {
      const rule = this.#byId.get(id)!;
      found[rule.forbids ? 'forbids' : 'permits'].push(rule);
    }
    found.errors = errors.map(({ policyId, error }) => ({ rule: this.#byId.get(policyId)!, message: error.message }));
    return found;
  }

  /** The statements on which Cedar disagrees. From now on only Cedar evaluates them. */
  compare(found: Found<R>, cedar: Found<R>): R[] {
    const differing = cedar.refused === undefined ? differences(found, cedar) : [...this.#rules];
    for (const { text } of differing) disputed.add(detached(text));
    for (const { text } of this.#rules) compared.set(detached(text), true);
    this.#compared = true;
    return differing;
  }
}

/**
 * A set of statements, and how to find which of them match a request: by their compiled conditions or, where there are
 * none or they have no exact answer, by Cedar.
 *
 * Cedar is authoritative: its answer takes precedence over that of the conditions. Some of their answers are compared
 * with Cedar's. A statement on which they disagree is left to Cedar from then on, and the answer is `disputed`.
 */
export class Rules<R extends Rule> {
  readonly #schema: string;
  readonly #asking: Asking;
  /** The compiled ones. */
  readonly #groups: readonly Group<R>[];
  /** The statements that only Cedar evaluates, in one call. */
  readonly #left: Group<R> | undefined;

  /** Compiles the statements that are not compiled yet. */
  constructor(rules: readonly R[], schema: string, asking: Asking) {
    this.#schema = schema;
    this.#asking = asking;
    compileAll(
      rules.filter(({ condition }) => condition === undefined),
      asking,
    );
    const compiled = rules.filter(({ condition }) => condition !== null);
    const left = rules.filter(({ condition }) => condition === null);
    this.#groups = Array.from(
      { length: Math.ceil(compiled.length / MOST_COMPARED) },
      (_, n) => new Group(compiled.slice(n * MOST_COMPARED, (n + 1) * MOST_COMPARED)),
    );
    this.#left = left.length > 0 ? new Group(left) : undefined;
  }

  /** Frees what Cedar holds for them. */
  release(): void {
    for (const group of this.#groups) host?.releaseSet(group);
    if (this.#left) host?.releaseSet(this.#left);
  }

  /** Gives Cedar what it needs for the next answer, one part per step. */
  *preparing(): Generator<void> {
    for (const group of this.#groups) {
      if (!group.isNew) continue;
      group.prepare();
      yield;
    }
    this.#left?.prepare();
  }

  /** One step per comparing call of Cedar: most answers have none, the first answer of many statements has many. */
  *finding(request: MappedRequest, reads: Reads): Generator<void, Found<R>> {
    const question = new Question(request.values, reads.facts ?? NONE);
    const readable = this.#groups.length > 0 && question.reads(reads.attributes);
    const ask = (group: Group<R>) => group.ask(request, reads, this.#schema);
    const sampled = this.#sampled();
    const disputed: R[] = [];
    const parts: Found<R>[] = [];
    for (const group of this.#groups) {
      const found = readable ? group.answer(question) : undefined;
      if (found && (group.isNew || group === sampled)) {
        disputed.push(...group.compare(found, ask(group)));
        if (this.#groups.length > 1) yield;
      }
      parts.push(found ?? ask(group));
    }
    if (this.#left) parts.push(ask(this.#left));
    const [first] = parts;
    const found = parts.length === 1 ? first! : merged(parts);
    return disputed.length > 0 ? { ...found, disputed } : found;
  }

  /** The group whose answer is compared this time, if any. */
  #sampled(): Group<R> | undefined {
    const asking = this.#asking;
    asking.answers++;
    if (asking.answers % asking.every !== 0) return undefined;
    return this.#groups[Math.floor(asking.answers / asking.every) % this.#groups.length];
  }
}

const NONE: ReadonlySet<string> = new Set();

/** Compiles those of the statements that can be compiled; the others are left to Cedar. */
export function compileAll(rules: readonly Rule[], asking: Asking): void {
  const able = rules.filter(({ head, text }) => asking.compiles && head.exact && !disputed.has(text));
  const texts = able.map(({ text }) => text);
  const conditions = texts.length > 0 ? asking.conditionsOf(decisionHost, texts) : [];
  for (const rule of rules) rule.condition = null;
  for (const [n, rule] of able.entries()) rule.condition = conditions[n] ?? null;
}

function differences<R extends Rule>(compiled: Found<R>, cedar: Found<R>): R[] {
  const failed = cedar.errors.map(({ rule }) => rule);
  // Cedar does not report permits if a forbid matches
  const permitted = cedar.forbids.length > 0 ? [] : unlike(compiled.permits, cedar.permits);
  return [...new Set([...failed, ...unlike(compiled.forbids, cedar.forbids), ...permitted])];
}

/** The items that are in only one of the two lists. */
function unlike<T>(these: readonly T[], those: readonly T[]): T[] {
  const [one, other] = [new Set(these), new Set(those)];
  return [...these.filter((item) => !other.has(item)), ...those.filter((item) => !one.has(item))];
}

function merged<R extends Rule>(parts: readonly Found<R>[]): Found<R> {
  const refused = parts.find((part) => part.refused !== undefined)?.refused;
  return {
    forbids: parts.flatMap(({ forbids }) => forbids),
    permits: parts.flatMap(({ permits }) => permits),
    errors: parts.flatMap(({ errors }) => errors),
    ...(refused !== undefined && { refused }),
  };
}
