import { Bounded, detached } from '../../../lib/bounded.ts';
import type { Head } from '../../language/head.ts';
import { CedarHost } from '../../language/host.ts';
import type { MappedRequest, Reads } from '../request.ts';
import type { Condition } from './compile.ts';
import type { conditionsOf } from './parse.ts';
import { Question } from './question.ts';
import { ASK } from './values.ts';

/** A statement of an engine: what Cedar is given of it, and what it compiled to. */
export interface Rule {
  readonly id: string;
  readonly head: Head;
  /** The text given to Cedar; a guardrail is rewritten as a permit. */
  readonly text: string;
  readonly forbids: boolean;
  /** Undefined before it is first needed; null where only Cedar is asked. */
  condition: Condition | null | undefined;
}

/** The statements that match a request, and those that failed. */
export interface Found<R extends Rule> {
  forbids: R[];
  /** Not reported where a forbid matches. */
  permits: R[];
  errors: { rule: R; message: string }[];
  /** Cedar did not take the request, and why. */
  refused?: string;
  /** Those that the compiled conditions and Cedar found different things of. Nothing may be concluded. */
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
 * The texts of statements that were once found to be compiled wrongly. Only Cedar is asked about them, until the process
 * ends; a new one compares each statement again.
 */
const disputed = new Set<string>();
/** The texts of statements whose first answer was compared with Cedar's. */
const compared = new Bounded<true>({ entries: 20_000, characters: 16_000_000 });

/** Statements that are compared in one call of Cedar, so that comparing takes a bounded time whatever is in force. */
const MOST_COMPARED = 64;

/** How an engine asks: `compiles` where its schema is the one that conditions are compiled for. */
export interface Asking {
  compiles: boolean;
  /** One in so many answers is compared with Cedar's, and the first of each statement. */
  every: number;
  /** Counts answers. */
  answers: number;
  conditionsOf: typeof conditionsOf;
}

/** Statements that one call of Cedar is about. */
class Group<R extends Rule> {
  readonly #rules: readonly R[];
  readonly #byId: ReadonlyMap<string, R>;
  /** The first answer of each of them was compared. */
  #compared: boolean;
  /** One of them is disputed: in another engine, or under another id. */
  #disputed = false;
  /** How many texts were disputed when that was last looked at. */
  #known = 0;

  constructor(rules: readonly R[]) {
    this.#rules = rules;
    this.#byId = new Map(rules.map((rule) => [rule.id, rule]));
    this.#compared = rules.every(({ text }) => compared.has(text));
  }

  get isNew(): boolean {
    return !this.#compared;
  }

  /** What the compiled conditions say; undefined where one of them has no exact answer, or is disputed. */
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

  /** Gives Cedar its statements, which takes longer than asking about them. */
  prepare(): string {
    return decisionHost().prepareSet(this, () => Object.fromEntries(this.#rules.map(({ id, text }) => [id, text])));
  }

  /** What Cedar says. */
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

  /** Those that Cedar says something else about. They are left to Cedar from now on. */
  compare(found: Found<R>, cedar: Found<R>): R[] {
    const differing = cedar.refused === undefined ? differences(found, cedar) : [...this.#rules];
    for (const { text } of differing) disputed.add(detached(text));
    for (const { text } of this.#rules) compared.set(detached(text), true);
    this.#compared = true;
    return differing;
  }
}

/**
 * A set of statements, and how it is found out which of them match a request: by their compiled conditions, or where one
 * has none, or no exact answer, by Cedar.
 *
 * Cedar is the law: what it says stands in the place of what the conditions say. Some answers of theirs are compared with
 * its own. A statement that they differ about is left to Cedar from then on, and the answer is `disputed`.
 */
export class Rules<R extends Rule> {
  readonly #schema: string;
  readonly #asking: Asking;
  /** The compiled ones. */
  readonly #groups: readonly Group<R>[];
  /** Those that only Cedar is asked about, in one call. */
  readonly #left: Group<R> | undefined;

  /** Compiles those that were not compiled yet. */
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

  /** Frees what Cedar holds of them. */
  release(): void {
    for (const group of this.#groups) host?.releaseSet(group);
    if (this.#left) host?.releaseSet(this.#left);
  }

  /** Gives Cedar what it will be asked about with the next answer, a part with each step. */
  *preparing(): Generator<void> {
    for (const group of this.#groups) {
      if (!group.isNew) continue;
      group.prepare();
      yield;
    }
    this.#left?.prepare();
  }

  /** A step for each call of Cedar that compares: most answers have none, the first of many statements has many. */
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

/** Compiles what compiles of these; the others are left to Cedar. */
export function compileAll(rules: readonly Rule[], asking: Asking): void {
  const able = rules.filter(({ head, text }) => asking.compiles && head.exact && !disputed.has(text));
  const texts = able.map(({ text }) => text);
  const conditions = texts.length > 0 ? asking.conditionsOf(decisionHost, texts) : [];
  for (const rule of rules) rule.condition = null;
  for (const [n, rule] of able.entries()) rule.condition = conditions[n] ?? null;
}

function differences<R extends Rule>(compiled: Found<R>, cedar: Found<R>): R[] {
  const failed = cedar.errors.map(({ rule }) => rule);
  // Cedar does not report permits where a forbid matches
  const permitted = cedar.forbids.length > 0 ? [] : unlike(compiled.permits, cedar.permits);
  return [...new Set([...failed, ...unlike(compiled.forbids, cedar.forbids), ...permitted])];
}

/** What is in one of the two lists alone. */
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
