import { preamble, type Token } from './scan.ts';

/** One of the three constraints of a statement's scope. Entities are written `Type::id`. */
export type Constraint =
  | { op: 'any' }
  | { op: 'eq'; entity: string }
  | { op: 'in'; entities: string[] }
  | { op: 'is'; type: string; entities?: string[] };

/** What can be told about a statement from its tokens alone, at a hundredth of the cost of asking the engine. */
export interface Head {
  effect: string;
  principal: Constraint;
  action: Constraint;
  resource: Constraint;
  /** The argument keys that the statement can read; null when it computes a key. */
  keys: string[] | null;
  /** Names of which each attribute of the context that the statement can read is one; null when that is not sure. */
  attributes: string[] | null;
}

const ANY: Constraint = { op: 'any' };

/**
 * Reads the head of one statement that the engine accepts.
 *
 * INVARIANT: what is not understood is `any` (or all keys), so a statement is never left out of a decision that it
 * could bear on; the engine alone decides whether it matches.
 */
export function readHead(statement: Token[]): Head {
  const { effect, rest } = preamble(statement);
  const [principal = [], action = [], resource = []] = scopeParts(statement, rest);
  return {
    effect,
    principal: constraint(principal),
    action: constraint(action),
    resource: constraint(resource),
    keys: argumentKeys(statement),
    attributes: contextAttributes(statement.slice(rest)),
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

/** `Type::"id"` as `Type::id`; undefined when the id has an escape in it, which is not decoded here. */
function entityOf(words: string[]): string | undefined {
  const id = literal(words.at(-1));
  return id === undefined || words.at(-2) !== '::' ? undefined : `${words.slice(0, -2).join('')}::${id}`;
}

function literal(word: string | undefined): string | undefined {
  return word?.startsWith('"') && !word.includes('\\') ? word.slice(1, -1) : undefined;
}

function argumentKeys(statement: Token[]): string[] | null {
  const keys = new Set<string>();
  for (let n = 0; n < statement.length; n++) {
    const word = statement[n]?.text;
    if (word !== 'hasTag' && word !== 'getTag') continue;
    const key = literal(statement[n + 2]?.text);
    if (statement[n + 1]?.text !== '(' || key === undefined || statement[n + 3]?.text !== ')') return null;
    keys.add(key);
  }
  return [...keys];
}

/** None where the context is not mentioned. A name may stand in quotes; one with an escape in it is not decoded here. */
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
