import { literal, preamble, type Token } from './scan.ts';

/** One of the three constraints of a statement's scope. Entities are written `Type::id`. */
export type Constraint =
  | { op: 'any' }
  | { op: 'eq'; entity: string }
  | { op: 'in'; entities: string[] }
  | { op: 'is'; type: string; entities?: string[] };

/** What a statement's tokens alone show about it, at a hundredth of the cost of asking the engine. */
export interface Head {
  effect: string;
  principal: Constraint;
  action: Constraint;
  resource: Constraint;
  /** The arguments that the statement can read, as far as its tokens tell. */
  reads: TagRead[];
  /**
   * The texts that stand in its clauses; null when one of them is not told. The language cannot put texts together, so
   * a key that it computes is one of these or one of the request's.
   */
  texts: string[] | null;
  /** How many characters its `like` patterns have together. */
  patterns: number;
  /** Names of which each attribute of the context that the statement can read is one; null when that is not sure. */
  attributes: string[] | null;
}

export const TAG_KINDS = ['str', 'num', 'bool', 'list'] as const;
export type TagKind = (typeof TAG_KINDS)[number];

/** `context.num.getTag("refund.total")`, or hasTag. Null is what the tokens do not tell: that must count as anything. */
export interface TagRead {
  kind: TagKind | null;
  key: string | null;
}

const ANY: Constraint = { op: 'any' };

/**
 * Reads the head of one statement that the engine accepts.
 *
 * INVARIANT: what is not understood is `any` (or every key), so a statement is never left out of a decision that it
 * could bear on; the engine alone decides whether it matches.
 */
export function readHead(statement: Token[]): Head {
  const { effect, rest } = preamble(statement);
  const clauses = statement.slice(rest);
  const [principal = [], action = [], resource = []] = scopeParts(statement, rest);
  return {
    effect,
    principal: constraint(principal),
    action: constraint(action),
    resource: constraint(resource),
    reads: tagReads(clauses),
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

/** Those of patterns are no texts. */
function literals(clauses: Token[]): string[] | null {
  const found = clauses
    .filter(({ text }, n) => text.startsWith('"') && clauses[n - 1]?.text !== 'like')
    .map(({ text }) => literal(text));
  return found.every((text) => text !== undefined) ? found : null;
}

function tagReads(clauses: Token[]): TagRead[] {
  const reads: TagRead[] = [];
  for (const [n, { text }] of clauses.entries()) {
    if (text !== 'hasTag' && text !== 'getTag') continue;
    const told = clauses[n + 1]?.text === '(' && clauses[n + 3]?.text === ')';
    const key = told ? literal(clauses[n + 2]?.text) : undefined;
    const words = clauses.slice(Math.max(0, n - 6), n).map((token) => token.text);
    reads.push({ kind: receiver(words), key: key ?? null });
  }
  return reads;
}

/** `context.num.` or `context["num"].` before the method: the kind. All else may be any of the four entities. */
function receiver(words: string[]): TagKind | null {
  if (words.at(-1) !== '.') return null;
  const indexed = words.at(-2) === ']';
  const [context, before] = indexed ? [words.at(-5), words.at(-6)] : [words.at(-4), words.at(-5)];
  const name = indexed ? words.at(-4) === '[' && literal(words.at(-3)) : words.at(-3) === '.' && words.at(-2);
  // the name of a record's member may be `context` too
  if (context !== 'context' || before === '.') return null;
  return TAG_KINDS.find((kind) => kind === name) ?? null;
}

function patternLength(clauses: Token[]): number {
  return clauses.reduce((sum, { text }, n) => sum + (text === 'like' ? (clauses[n + 1]?.text.length ?? 0) : 0), 0);
}

/** None where the context is not mentioned. A name may stand in quotes. */
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

/** An entity of a request with all that it is in, itself included. */
export interface Placed {
  type: string;
  self: string;
  ancestors: ReadonlySet<string>;
}

/** Can a statement with this constraint apply to the entity? */
export function admits(constraint: Constraint, { type, self, ancestors }: Placed): boolean {
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
