import type { PolicyJson } from '@cedar-policy/cedar-wasm/nodejs';
import { FACT_KINDS } from '../../language/session-facts.ts';
import { ask, type Question, type TagsOf } from './question.ts';
import {
  ASK,
  datetime,
  decimal,
  duration,
  type Ip,
  inUnits,
  ip,
  isInRange,
  isLoopback,
  isMulticast,
  isSubset,
  like,
  long,
  overlaps,
  sameIp,
  toDate,
  toTime,
  type Value,
} from './values.ts';

/** Whether the conditions of a statement hold; ASK if Cedar must be asked. Never throws. */
export type Condition = (question: Question) => boolean | typeof ASK;

/**
 * Compiles the conditions of a statement, as Cedar parsed them, into functions of a request. Undefined for conditions
 * outside the subset: Cedar evaluates such a statement.
 *
 * The subset is what strict validation accepts against our schema, with the types of both sides of each operator known
 * and equal, and every name written out. So no function meets a value of another type, and the only errors left are those
 * of values: a missing tag or attribute, an integer out of range. Cedar evaluates these too.
 *
 * INVARIANT: a condition evaluates to what Cedar would find, or to ASK. No text becomes code, there are no loops except
 * over the members of a set and the characters of a text, and each part is evaluated at most once.
 */
export function compileConditions(conditions: PolicyJson['conditions']): Condition | undefined {
  try {
    const clauses = conditions.map(({ kind, body }) => {
      const test = typed(compile(body as Node), 'bool') as Run<boolean>;
      return kind === 'when' ? test : (question: Question) => !test(question);
    });
    const all = clauses.length === 1 ? clauses[0]! : (question: Question) => clauses.every((test) => test(question));
    if (clauses.length === 0) return () => true;
    return (question) => {
      try {
        return all(question);
      } catch (thrown) {
        if (thrown === ASK) return ASK;
        throw thrown;
      }
    };
  } catch (error) {
    if (error === OUTSIDE) return undefined;
    throw error;
  }
}

/** Thrown at the first part that is outside the subset. */
const OUTSIDE = Symbol('outside the compiled subset');

function outside(): never {
  throw OUTSIDE;
}

type Node = { readonly [operator: string]: unknown };
type Run<V = Value> = (question: Question) => V;

/**
 * A type, spelled so that equal types are equal texts: `bool`, `string`, `long`, `decimal`, `datetime`, `duration`, `ip`,
 * `entity Tool`, `set string`, and, for values that only have their members read, `context`, `session` and `tags num`.
 */
type Type = string;

interface Term {
  type: Type;
  run: Run;
  /** Set for a literal. */
  value?: Value;
}

function compile(node: Node): Term {
  const [[operator, operands] = outside(), ...more] = Object.entries(node ?? {});
  if (more.length > 0) outside();
  const make = Object.hasOwn(OPERATORS, operator) ? OPERATORS[operator] : undefined;
  return make ? make(operands as never) : outside();
}

function typed(term: Term, type: Type): Run {
  return term.type === type ? term.run : outside();
}

const constant = (type: Type, value: Value): Term => ({ type, value, run: () => value });

type Pair = { left: Node; right: Node };
type Make = (operands: never) => Term;

const OPERATORS: Readonly<Record<string, Make>> = {
  Value: literal,
  Var: variable,
  '!': ({ arg }: { arg: Node }) => {
    const run = typed(compile(arg), 'bool');
    return { type: 'bool', run: (question) => !run(question) };
  },
  neg: ({ arg }: { arg: Node }) => {
    const run = typed(compile(arg), 'long') as Run<number>;
    return { type: 'long', run: (question) => long(-run(question)) };
  },
  '&&': (pair: Pair) => logical(pair, (left, right) => (question) => left(question) && right(question)),
  '||': (pair: Pair) => logical(pair, (left, right) => (question) => left(question) || right(question)),
  'if-then-else': ({ if: test, then, else: otherwise }: { if: Node; then: Node; else: Node }) => {
    const when = typed(compile(test), 'bool') as Run<boolean>;
    const yes = compile(then);
    // a value that only has its members read is never computed, so the test would be skipped
    if (!isValue(yes.type)) outside();
    const no = typed(compile(otherwise), yes.type);
    return { type: yes.type, run: (question) => (when(question) ? yes.run(question) : no(question)) };
  },
  '==': (pair: Pair) => equality(pair, true),
  '!=': (pair: Pair) => equality(pair, false),
  '<': (pair: Pair) => comparison(pair, (one, other) => one < other),
  '<=': (pair: Pair) => comparison(pair, (one, other) => one <= other),
  '>': (pair: Pair) => comparison(pair, (one, other) => one > other),
  '>=': (pair: Pair) => comparison(pair, (one, other) => one >= other),
  '+': (pair: Pair) => arithmetic(pair, (one, other) => one + other),
  '-': (pair: Pair) => arithmetic(pair, (one, other) => one - other),
  '*': (pair: Pair) => arithmetic(pair, (one, other) => one * other),
  in: membership,
  is: isOf,
  has,
  '.': ({ left, attr }: { left: Node; attr: string }) => attribute(compile(left), attr),
  hasTag: ({ left, right }: Pair) => {
    const [of, key] = tagOf(left, right);
    return { type: 'bool', run: (question) => question.hasTag(of, key) };
  },
  getTag: ({ left, right }: Pair) => {
    const [of, key] = tagOf(left, right);
    return { type: TAGS[of], run: (question) => question.getTag(of, key) };
  },
  like: ({ left, pattern }: { left: Node; pattern: ('Wildcard' | { Literal: string })[] }) => {
    const run = typed(compile(left), 'string') as Run<string>;
    const parts = [''];
    for (const one of pattern) {
      if (one === 'Wildcard') parts.push('');
      else parts.push(`${parts.pop()}${one.Literal}`);
    }
    const test = like(parts);
    return { type: 'bool', run: (question) => test(run(question)) };
  },
  Set: set,
  contains: ({ left, right }: Pair) => {
    const [of, item] = [compile(left), compile(right)];
    const [all, one] = [typed(of, `set ${item.type}`) as Run<ReadonlySet<unknown>>, item.run];
    return { type: 'bool', run: (question) => all(question).has(one(question)) };
  },
  containsAll: (pair: Pair) => sets(pair, (one, other) => isSubset(other, one)),
  containsAny: (pair: Pair) => sets(pair, overlaps),
  isEmpty: ({ arg }: { arg: Node }) => {
    const of = compile(arg);
    if (!of.type.startsWith('set ')) outside();
    const run = of.run as Run<ReadonlySet<unknown>>;
    return { type: 'bool', run: (question) => run(question).size === 0 };
  },
  decimal: (args: Node[]) => written('decimal', args, decimal),
  ip: (args: Node[]) => written('ip', args, ip),
  datetime: (args: Node[]) => written('datetime', args, datetime),
  duration: (args: Node[]) => written('duration', args, duration),
  lessThan: (args: Node[]) => ofTwo(args, ['decimal', 'decimal', 'bool'], (one, other) => one < other),
  lessThanOrEqual: (args: Node[]) => ofTwo(args, ['decimal', 'decimal', 'bool'], (one, other) => one <= other),
  greaterThan: (args: Node[]) => ofTwo(args, ['decimal', 'decimal', 'bool'], (one, other) => one > other),
  greaterThanOrEqual: (args: Node[]) => ofTwo(args, ['decimal', 'decimal', 'bool'], (one, other) => one >= other),
  isIpv4: (args: Node[]) => ofOne(args, ['ip', 'bool'], (one: Ip) => one.bits === 32),
  isIpv6: (args: Node[]) => ofOne(args, ['ip', 'bool'], (one: Ip) => one.bits === 128),
  isLoopback: (args: Node[]) => ofOne(args, ['ip', 'bool'], isLoopback),
  isMulticast: (args: Node[]) => ofOne(args, ['ip', 'bool'], isMulticast),
  isInRange: (args: Node[]) => ofTwo(args, ['ip', 'ip', 'bool'], isInRange),
  offset: (args: Node[]) =>
    ofTwo(args, ['datetime', 'duration', 'datetime'], (at: number, by: number) => long(at + by)),
  durationSince: (args: Node[]) =>
    ofTwo(args, ['datetime', 'datetime', 'duration'], (at: number, since: number) => long(at - since)),
  toDate: (args: Node[]) => ofOne(args, ['datetime', 'datetime'], toDate),
  toTime: (args: Node[]) => ofOne(args, ['datetime', 'duration'], toTime),
  toMilliseconds: (args: Node[]) => ofOne(args, ['duration', 'long'], (ms: number) => ms),
  toSeconds: (args: Node[]) => ofOne(args, ['duration', 'long'], (ms: number) => inUnits(ms, 1000)),
  toMinutes: (args: Node[]) => ofOne(args, ['duration', 'long'], (ms: number) => inUnits(ms, 60_000)),
  toHours: (args: Node[]) => ofOne(args, ['duration', 'long'], (ms: number) => inUnits(ms, 3_600_000)),
  toDays: (args: Node[]) => ofOne(args, ['duration', 'long'], (ms: number) => inUnits(ms, 86_400_000)),
};

function literal(value: unknown): Term {
  switch (typeof value) {
    case 'boolean':
      return constant('bool', value);
    case 'string':
      return value.isWellFormed() ? constant('string', value) : outside();
    case 'number':
      // a larger one lost digits on its way through JavaScript
      return Number.isSafeInteger(value) ? constant('long', value + 0) : outside();
  }
  const { __entity: entity } = (value ?? outside()) as { __entity?: { type: string; id: string } };
  return entity && ENTITIES.has(entity.type) ? constant(`entity ${entity.type}`, entity.id) : outside();
}

/** The types whose entities have an identity. Of entities that hold tags, only the tags are read. */
const ENTITIES: ReadonlySet<string> = new Set(['Agent', 'AgentRole', 'Tool', 'ToolServer', 'Action']);

function variable(name: string): Term {
  switch (name) {
    case 'principal':
      return { type: 'entity Agent', run: ({ values }) => values.agent.id };
    case 'action':
      return { type: 'entity Action', run: ({ values }) => values.action.type };
    case 'resource':
      return { type: 'entity Tool', run: ({ values }) => values.tool.id };
    case 'context':
      return { type: 'context', run: ask };
    default:
      return outside();
  }
}

function logical({ left, right }: Pair, join: (left: Run<boolean>, right: Run<boolean>) => Run<boolean>): Term {
  const [one, other] = [compile(left), compile(right)].map((side) => typed(side, 'bool')) as Run<boolean>[];
  return { type: 'bool', run: join(one!, other!) };
}

const COMPARABLE: ReadonlySet<Type> = new Set(['long', 'datetime', 'duration']);
/** Types whose equal values are equal to `===` and to a `Set`. */
const isPlain = (type: Type) =>
  COMPARABLE.has(type) || ['bool', 'string', 'decimal'].includes(type) || type.startsWith('entity ');

const isValue = (type: Type) => isPlain(type) || type === 'ip' || type.startsWith('set ');

function equality({ left, right }: Pair, equal: boolean): Term {
  const one = compile(left);
  const run = one.run;
  const term = compile(right);
  const other = typed(term, one.type);
  if (isPlain(one.type)) {
    const { value } = term;
    if (value !== undefined) return { type: 'bool', run: (question) => (run(question) === value) === equal };
    return { type: 'bool', run: (question) => (run(question) === other(question)) === equal };
  }
  if (one.type === 'ip') {
    return { type: 'bool', run: (question) => sameIp(run(question) as Ip, other(question) as Ip) === equal };
  }
  if (!one.type.startsWith('set ')) outside();
  const [all, others] = [run, other] as Run<ReadonlySet<unknown>>[];
  return {
    type: 'bool',
    run: (question) => {
      const [these, those] = [all!(question), others!(question)];
      return (these.size === those.size && isSubset(these, those)) === equal;
    },
  };
}

function comparison({ left, right }: Pair, compare: (one: number, other: number) => boolean): Term {
  const one = compile(left);
  const other = typed(compile(right), one.type) as Run<number>;
  if (!COMPARABLE.has(one.type)) outside();
  const run = one.run as Run<number>;
  return { type: 'bool', run: (question) => compare(run(question), other(question)) };
}

function arithmetic({ left, right }: Pair, of: (one: number, other: number) => number): Term {
  const [one, other] = [compile(left), compile(right)].map((side) => typed(side, 'long')) as Run<number>[];
  return { type: 'long', run: (question) => long(of(one!(question), other!(question))) };
}

/** Whether the entity is the other one, or below it. */
function isBelow({ agent, action, tool }: Question['values'], type: Type, id: string, group: Type, of: string) {
  if (type === group && id === of) return true;
  switch (`${type} in ${group}`) {
    case 'Agent in AgentRole':
      return id === agent.id && of === agent.role;
    case 'Tool in ToolServer':
      return id === tool.id && of === tool.server;
    case 'Action in Action':
      return id === action.type ? action.groups.includes(of) : ask();
    default:
      return false;
  }
}

const typeOf = ({ type }: Term): string => (type.startsWith('entity ') ? type.slice('entity '.length) : outside());

function membership({ left, right }: Pair): Term {
  const [one, other] = [compile(left), compile(right)];
  const type = typeOf(one);
  const id = one.run as Run<string>;
  if (other.type.startsWith('set entity ')) {
    const group = other.type.slice('set entity '.length);
    const groups = other.run as Run<ReadonlySet<string>>;
    return {
      type: 'bool',
      run: (question) => {
        const [member, all] = [id(question), groups(question)];
        for (const of of all) if (isBelow(question.values, type, member, group, of)) return true;
        return false;
      },
    };
  }
  const group = typeOf(other);
  const of = other.run as Run<string>;
  return { type: 'bool', run: (question) => isBelow(question.values, type, id(question), group, of(question)) };
}

function isOf({ left, entity_type, in: within }: { left: Node; entity_type: string; in?: Node }): Term {
  const one = compile(left);
  const is = typeOf(one) === entity_type;
  if (!within) {
    // the left side may fail
    const run = (question: Question) => {
      one.run(question);
      return is;
    };
    return { type: 'bool', run };
  }
  const below = membership({ left, right: within });
  return is ? below : outside();
}

/** An attribute: its type, and the value that a request gives it, undefined if absent. */
type Attribute = readonly [type: Type, of: (question: Question, id: string) => Value | undefined];

const setOf = (items: readonly string[] | undefined) => items && new Set(items);
const ATTRIBUTES: Readonly<Record<Type, Readonly<Record<string, Attribute>>>> = {
  'entity Agent': {
    owner: ['string', ({ values: { agent } }, id) => (id === agent.id ? agent.owner : undefined)],
    labels: ['set string', ({ values: { agent } }, id) => (id === agent.id ? setOf(agent.labels) : undefined)],
  },
  'entity Tool': {
    server: ['entity ToolServer', ({ values: { tool } }, id) => (id === tool.id ? tool.server : undefined)],
    labels: ['set string', ({ values: { tool } }, id) => (id === tool.id ? setOf(tool.labels) : undefined)],
  },
  'entity ToolServer': {
    trust: ['long', ({ values: { tool } }, id) => (id === tool.server ? tool.trust : undefined)],
  },
  context: {
    method: ['string', ({ values }) => values.context.method],
    host: ['string', ({ values }) => values.context.host],
    path: ['string', ({ values }) => values.context.path],
    currency: ['string', ({ values }) => values.context.currency],
    source_ip: ['ip', (question) => (question.values.context.source_ip === undefined ? undefined : question.address)],
    amount: ['decimal', (question) => (question.values.context.amount === undefined ? undefined : question.amount)],
    risk_score: ['decimal', (question) => question.risk],
    now: ['datetime', (question) => question.now],
    session: ['session', ask],
    ...Object.fromEntries(['str', 'num', 'bool', 'list', 'facts'].map((name) => [name, [`tags ${name}`, ask]])),
  },
  session: {
    id: ['string', ({ values }) => values.session.id],
    call_count: ['long', ({ values }) => values.session.call_count],
    started: ['datetime', (question) => question.started],
    lowest_trust: ['long', ({ values }) => values.session.lowest_trust],
    called: ['tags called', ask],
    ...Object.fromEntries(FACT_KINDS.map((name) => [name, [`tags session ${name}`, ask]])),
  },
};
/** The attributes of the context that are not optional. */
const ALWAYS: ReadonlySet<string> = new Set(['risk_score', 'now', 'session', 'str', 'num', 'bool', 'list', 'facts']);

function attributeOf({ type }: Term, name: string): Attribute {
  const of = Object.hasOwn(ATTRIBUTES, type) ? ATTRIBUTES[type]! : outside();
  return Object.hasOwn(of, name) ? of[name]! : outside();
}

function attribute(term: Term, name: string): Term {
  const [type, of] = attributeOf(term, name);
  // a record is not built just to read its members
  if (term.type === 'context' || term.type === 'session') return { type, run: (question) => of(question, '') ?? ask() };
  const id = term.run as Run<string>;
  return { type, run: (question) => of(question, id(question)) ?? ask() };
}

/** `context has a.b` tests for `a`, and then for `b` in it. */
function has({ left, attr }: { left: Node; attr: string | string[] }): Term {
  let term = compile(left);
  const tests: Run<boolean>[] = [];
  for (const name of [attr].flat()) {
    const [, of] = attributeOf(term, name);
    const { type, run } = term;
    if (type === 'session' || (type === 'context' && ALWAYS.has(name))) tests.push(() => true);
    else if (type === 'context') tests.push((question) => of(question, '') !== undefined);
    else tests.push((question) => of(question, run(question) as string) !== undefined);
    term = attribute(term, name);
  }
  const [first = outside()] = tests;
  return { type: 'bool', run: tests.length === 1 ? first : (question) => tests.every((test) => test(question)) };
}

/** The type that each kind of tags holds. */
const TAGS: Readonly<Record<TagsOf, Type>> = {
  str: 'string',
  num: 'decimal',
  bool: 'bool',
  list: 'set string',
  facts: 'bool',
  called: 'bool',
  'session str': 'string',
  'session num': 'decimal',
  'session bool': 'bool',
  'session list': 'set string',
  'session time': 'datetime',
};

function tagOf(left: Node, right: Node): [TagsOf, string] {
  const { type } = compile(left);
  const key = compile(right);
  const of = type.startsWith('tags ') ? type.slice('tags '.length) : outside();
  if (key.type !== 'string' || typeof key.value !== 'string' || !Object.hasOwn(TAGS, of)) outside();
  return [of as TagsOf, key.value as string];
}

function set(items: Node[]): Term {
  const terms = items.map(compile);
  const [first = outside()] = terms;
  if (!isPlain(first.type)) outside();
  const runs = terms.map((term) => typed(term, first.type));
  if (terms.every(({ value }) => value !== undefined)) {
    return constant(`set ${first.type}`, new Set(terms.map(({ value }) => value)));
  }
  return { type: `set ${first.type}`, run: (question) => new Set(runs.map((run) => run(question))) };
}

function sets({ left, right }: Pair, test: (one: ReadonlySet<unknown>, other: ReadonlySet<unknown>) => boolean): Term {
  const one = compile(left);
  if (!one.type.startsWith('set ')) outside();
  const other = typed(compile(right), one.type) as Run<ReadonlySet<unknown>>;
  const run = one.run as Run<ReadonlySet<unknown>>;
  return { type: 'bool', run: (question) => test(run(question), other(question)) };
}

/** `decimal("1.5")` and so on, with a literal text. */
function written(type: Type, [argument = outside(), ...more]: Node[], read: (text: string) => Value | undefined): Term {
  const { value } = compile(argument);
  return constant(type, (more.length === 0 && typeof value === 'string' ? read(value) : undefined) ?? outside());
}

function ofOne<A extends Value>(args: Node[], [type, result]: [Type, Type], of: (one: A) => Value): Term {
  const [first = outside(), ...more] = args;
  if (more.length > 0) outside();
  const run = typed(compile(first), type) as Run<A>;
  return { type: result, run: (question) => of(run(question)) };
}

function ofTwo<A extends Value, B extends Value>(
  args: Node[],
  [type, second, result]: [Type, Type, Type],
  of: (one: A, other: B) => Value,
): Term {
  const [left = outside(), right = outside(), ...more] = args;
  if (more.length > 0) outside();
  const run = typed(compile(left), type) as Run<A>;
  const term = compile(right);
  const other = typed(term, second) as Run<B>;
  const value = term.value as B | undefined;
  if (value !== undefined) return { type: result, run: (question) => of(run(question), value) };
  return { type: result, run: (question) => of(run(question), other(question)) };
}
