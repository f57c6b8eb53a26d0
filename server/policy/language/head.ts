import { type Fact, readFact } from './facts.ts';
import { literal, preamble, type Token } from './scan.ts';
import {
  argumentOf,
  type CallRead,
  FACT_KINDS,
  type FactKind,
  type FactRead,
  readCall,
  readFactPath,
} from './session-facts.ts';

/** One of the three constraints of a statement's scope. Entities are written `Type::id`. */
export type Constraint =
  | { op: 'any' }
  | { op: 'eq'; entity: string }
  | { op: 'in'; entities: string[] }
  | { op: 'is'; type: string; entities?: string[] };

/** What the tokens of a statement reveal about it, at a hundredth of the cost of asking the engine. */
export interface Head {
  effect: string;
  principal: Constraint;
  action: Constraint;
  resource: Constraint;
  /** Whether the constraints are the whole scope: the statement then applies if they admit the request and its clauses hold. */
  exact: boolean;
  /** The arguments that the statement can read, as far as its tokens show. */
  reads: TagRead[];
  /** The facts that the statement reads. Each is also a read of its argument. */
  facts: Fact[];
  /** The session facts that it reads. The argument that is the key of one is also a read, of the kind `key`. */
  sessionFacts: FactRead[];
  /** Its questions about earlier calls. */
  calls: CallRead[];
  /**
   * The string literals in its clauses; null if one of them cannot be decoded. Cedar cannot concatenate strings, so a
   * computed key is one of these or one of the request's texts.
   */
  texts: string[] | null;
  /** Total length of its `like` patterns in characters. */
  patterns: number;
  /** A superset of the context attributes that the statement can read; null if it could read any. */
  attributes: string[] | null;
}

export const TAG_KINDS = ['str', 'num', 'bool', 'list'] as const;
export type TagKind = (typeof TAG_KINDS)[number];

/** The kind an argument is read as; `key`: as the key of a fact, which can be a text or an integer. */
export type ReadKind = TagKind | 'key';

/** `context.num.getTag("refund.total")`, or hasTag. Null is unknown and must be treated as any value. */
export interface TagRead {
  kind: ReadKind | null;
  key: string | null;
}

const ANY: Constraint = { op: 'any' };

/**
 * Reads the head of one statement that the engine accepts.
 *
 * INVARIANT: anything not understood counts as `any` (or every key), so no statement is left out of a decision that it
 * could affect; only the engine decides whether it matches.
 */
export function readHead(statement: Token[]): Head {
  const { effect, rest } = preamble(statement);
  const clauses = statement.slice(rest);
  const parts = scopeParts(statement, rest);
  const [principal = [], action = [], resource = []] = parts;
  return {
    effect,
    principal: constraint(principal),
    action: constraint(action),
    resource: constraint(resource),
    exact: parts.length === 3 && parts.every(isExact),
    ...tagReads(clauses),
    texts: literals(clauses),
    patterns: patternLength(clauses),
    attributes: contextAttributes(clauses),
  };
}

/** The tokens between the scope's parentheses, split at its commas. */
function scopeParts(statement: Token[], from: number): Token[][] {
  const parts: Token[][] = [[]];
  let depth = 0;
  for (let n = from; n < statement.length; n++) {
    const token = statement[n] as Token;
    if ('([{'.includes(token.text)) depth++;
    if (')]}'.includes(token.text)) depth--;
    if (depth === 0) break;
    if (n === from) continue;
    if (depth === 1 && token.text === ',') parts.push([]);
    else parts.at(-1)?.push(token);
  }
  return parts;
}

function constraint([, operator, ...operand]: Token[]): Constraint {
  const words = operand.map(({ text }) => text);
  if (operator?.text === '==') {
    const entity = entityOf(words);
    return entity === undefined ? ANY : { op: 'eq', entity };
  }
  if (operator?.text === 'in') {
    const entities = entitiesOf(words);
    return entities ? { op: 'in', entities } : ANY;
  }
  if (operator?.text === 'is') {
    const within = words.indexOf('in');
    const type = (within < 0 ? words : words.slice(0, within)).join('');
    if (within < 0) return { op: 'is', type };
    const entities = entitiesOf(words.slice(within + 1));
    return entities ? { op: 'is', type, entities } : ANY;
  }
  return ANY;
}

/**
 * Whether the constraint is everything the tokens say. An entity's type must be one word, since `A::B::"c"` and
 * `A::"B::c"` would be written alike.
 */
function isExact(part: Token[]): boolean {
  const read = constraint(part);
  if (read.op === 'any') return part.length === 1;
  return part.filter(({ text }) => text === '::').length === named(read).length;
}

function entitiesOf(words: string[]): string[] | undefined {
  if (words[0] !== '[') {
    const entity = entityOf(words);
    return entity === undefined ? undefined : [entity];
  }
  const entities: string[] = [];
  for (let from = 1; from < words.length - 1; ) {
    const comma = words.indexOf(',', from);
    const to = comma < 0 ? words.length - 1 : comma;
    const entity = entityOf(words.slice(from, to));
    if (entity === undefined) return undefined;
    entities.push(entity);
    from = to + 1;
  }
  return entities;
}

/** `Type::"id"` as `Type::id`. */
function entityOf(words: string[]): string | undefined {
  const id = literal(words.at(-1));
  return id === undefined || words.at(-2) !== '::' ? undefined : `${words.slice(0, -2).join('')}::${id}`;
}

/** The decoded string literals, except the patterns of `like`. */
function literals(clauses: Token[]): string[] | null {
  const found = clauses
    .filter(({ text }, n) => text.startsWith('"') && clauses[n - 1]?.text !== 'like')
    .map(({ text }) => literal(text));
  return found.every((text) => text !== undefined) ? found : null;
}

function tagReads(clauses: Token[]): Pick<Head, 'reads' | 'facts' | 'sessionFacts' | 'calls'> {
  const reads: TagRead[] = [];
  const facts: Fact[] = [];
  const sessionFacts: FactRead[] = [];
  const calls: CallRead[] = [];
  for (const [n, { text }] of clauses.entries()) {
    if (text !== 'hasTag' && text !== 'getTag') continue;
    const isCall = clauses[n + 1]?.text === '(' && clauses[n + 3]?.text === ')';
    const key = isCall ? literal(clauses[n + 2]?.text) : undefined;
    const words = clauses.slice(Math.max(0, n - 7), n).map((token) => token.text);
    const from = receiver(words);
    if (from === null || typeof from === 'string') {
      if (from !== 'facts') {
        reads.push({ kind: from, key: key ?? null });
        continue;
      }
      const fact = key === undefined ? undefined : readFact(key);
      if (fact) {
        facts.push(fact);
        reads.push({ kind: 'str', key: fact.path }, { kind: 'list', key: fact.path });
        continue;
      }
    } else if (key !== undefined) {
      const call = from.session === 'called' ? readCall(key) : undefined;
      const path = from.session === 'called' ? undefined : readFactPath(key);
      if (call) calls.push(call);
      if (path) {
        sessionFacts.push({ tag: key, path });
        const argument = argumentOf(path);
        if (argument !== undefined) reads.push({ kind: 'key', key: argument });
      }
      if (call || path) continue;
    }
    reads.push({ kind: null, key: null });
  }
  return { reads, facts, sessionFacts, calls };
}

/**
 * The kind, if `context.num.` or `context["num"].` precedes the method, or the corresponding part of the session. Null:
 * it could be any of them.
 */
function receiver(words: string[]): TagKind | 'facts' | { session: FactKind | 'called' } | null {
  if (words.at(-1) !== '.') return null;
  if (
    words.at(-3) === '.' &&
    words.at(-4) === 'session' &&
    words.at(-5) === '.' &&
    words.at(-6) === 'context' &&
    words.at(-7) !== '.'
  ) {
    const name = words.at(-2);
    return name === 'called' || FACT_KINDS.some((kind) => kind === name)
      ? { session: name as FactKind | 'called' }
      : null;
  }
  const indexed = words.at(-2) === ']';
  const [context, before] = indexed ? [words.at(-5), words.at(-6)] : [words.at(-4), words.at(-5)];
  const name = indexed ? words.at(-4) === '[' && literal(words.at(-3)) : words.at(-3) === '.' && words.at(-2);
  // a member of a record may also be named `context`
  if (context !== 'context' || before === '.') return null;
  return name === 'facts' ? name : (TAG_KINDS.find((kind) => kind === name) ?? null);
}

function patternLength(clauses: Token[]): number {
  return clauses.reduce((sum, { text }, n) => sum + (text === 'like' ? (clauses[n + 1]?.text.length ?? 0) : 0), 0);
}

/** The context attributes named in the clauses, quoted or not; null if a use of the context is not understood. */
function contextAttributes(clauses: Token[]): string[] | null {
  const names: string[] = [];
  for (const [n, { text }] of clauses.entries()) {
    if (text !== 'context') continue;
    const [operator, operand] = [clauses[n + 1]?.text, clauses[n + 2]?.text];
    if (operator !== '.' && operator !== '[' && operator !== 'has') return null;
    const name = operand?.startsWith('"') ? literal(operand) : operand;
    if (name === undefined || !/^[A-Za-z_]/.test(name)) return null;
    names.push(name);
  }
  return names;
}

/** An entity of a request; the ancestors include the entity itself. */
export interface EntityWithAncestors {
  type: string;
  self: string;
  ancestors: ReadonlySet<string>;
}

/** Whether a statement with this constraint can apply to the entity. */
export function admits(constraint: Constraint, { type, self, ancestors }: EntityWithAncestors): boolean {
  switch (constraint.op) {
    case 'any':
      return true;
    case 'eq':
      return constraint.entity === self;
    case 'in':
      return constraint.entities.some((entity) => ancestors.has(entity));
    case 'is':
      return (
        constraint.type === type &&
        (constraint.entities === undefined || constraint.entities.some((entity) => ancestors.has(entity)))
      );
  }
}

/** Every entity that the constraint names. */
export function named(constraint: Constraint): string[] {
  if (constraint.op === 'eq') return [constraint.entity];
  return (constraint.op === 'in' || constraint.op === 'is') && constraint.entities ? constraint.entities : [];
}
