import { escaped, exact, quoted } from '../../lib/visible.ts';
import { readFact } from './facts.ts';

/** A condition as parsed by Cedar. */
type Expr = Readonly<Record<string, unknown>>;

const TEXTS: Record<string, string> = {
  amount: 'the stated value',
  currency: 'the currency',
  risk_score: 'the risk',
  method: 'the method',
  host: 'the host',
  path: 'the path',
  source_ip: 'the address of the caller',
  now: 'the time',
};
const OF_SESSION: Record<string, string> = {
  id: 'the session id',
  call_count: 'the number of earlier calls in the session',
  started: 'the start of the session',
  lowest_trust: 'the lowest trust of the servers that answered in the session',
};
/** The kinds of arguments and of session facts: the wording if one is present, and if two are the same. */
const KINDS: Record<string, [is: string, same: string]> = {
  str: ['a text', 'text'],
  num: ['a number', 'number'],
  bool: ['either true or false', 'truth value'],
  list: ['a list of texts', 'set of texts'],
  time: ['a time', 'time'],
};

/** Comparisons, as operators of integers and as functions of decimals. */
const COMPARED: Record<string, string> = {
  '<': 'is less than',
  '<=': 'is at most',
  '>': 'is more than',
  '>=': 'is at least',
  '==': 'is',
  '!=': 'is not',
  lessThan: 'is less than',
  lessThanOrEqual: 'is at most',
  greaterThan: 'is more than',
  greaterThanOrEqual: 'is at least',
};
const ARITHMETIC: Record<string, string> = { '+': 'plus', '-': 'minus', '*': 'times' };

/**
 * The body of a `when` or `unless` in plain words, for readers who do not know Cedar. Two conditions that differ in
 * effect never get the same words: undefined if a part has no words that say exactly what it does, in which case the
 * Cedar text is shown instead. A check that an argument is present is left out if a comparison of that argument follows.
 * That loses nothing, because a valid policy has such a check before each comparison.
 */
export function conditionWords(body: unknown): string | undefined {
  return predicate(body as Expr, 'whole');
}

type Within = 'whole' | 'and' | 'or';

function predicate(expr: Expr, within: Within): string | undefined {
  const [op, value] = only(expr);
  if (op === '&&' || op === '||') {
    const parts = chain(expr, op);
    const kept = op === '&&' ? parts.filter((part, n) => !isImplied(part, parts.slice(n + 1))) : parts;
    const words = kept.map((part) => predicate(part, op === '&&' ? 'and' : 'or'));
    if (words.includes(undefined)) return undefined;
    const joined = words.join(op === '&&' ? ' and ' : ' or ');
    return within === 'whole' || words.length === 1 ? joined : `(${joined})`;
  }
  if (op === '!') {
    const words = predicate(argument(value), 'whole');
    return words && `not (${words})`;
  }
  if (op === 'Value' && typeof value === 'boolean') return value ? 'always' : 'never';
  if (op === 'hasTag') return presence(value);
  if (op === 'has') return attribute(value);
  if (op === 'getTag') {
    const words = term(expr);
    return words && `${words} is true`;
  }
  if (op === 'contains' || op === 'containsAny' || op === 'containsAll') return containing(op, value);
  if (op === 'in') return membership(value);
  if (op === 'is') return typed(value);
  if (op === 'like') return pattern(value);
  if (op === 'isInRange') {
    const [left, right] = pair(value).map(term);
    return left && right && `${left} is in ${right}`;
  }
  const compared = own(COMPARED, op);
  if (compared === undefined) return undefined;
  if (op === '==' || op === '!=') {
    const words = oneself(value);
    if (words) return `${words[0]} ${compared} ${words[1]}`;
  }
  const sides = pair(value);
  const [left, right] = sides.map(term);
  if (!left || !right) return undefined;
  const [kind, other] = sides.map(tagKind);
  if (kind === undefined || other === undefined || !(op === '==' || op === '!=')) return `${left} ${compared} ${right}`;
  // if neither is a literal, nothing else tells their kind
  return kind === other ? `${left} ${compared} the same ${KINDS[kind]![1]} as ${right}` : undefined;
}

/** The kind of an argument or of a session fact. */
function tagKind(expr: Expr): string | undefined {
  const [op, value] = only(expr);
  return op === 'getTag' ? tag(value)?.kind : undefined;
}

/** The wording for the request's agent, action or tool, and for the specific one it is compared with. */
function oneself(value: unknown): [string, string] | undefined {
  const [left, right] = pair(value);
  const [op, root] = only(left!);
  const [is, of] = only(right!);
  const uid = is === 'Value' ? (of as { __entity?: { type: string; id: string } }).__entity : undefined;
  const whose = op === 'Var' && uid?.type === own(OWN_TYPE, String(root)) ? own(ONESELF, String(root)) : undefined;
  return uid && whose ? [whose, quoted(uid.id)] : undefined;
}

const ONESELF: Record<string, string> = { principal: 'the agent', action: 'the action', resource: 'the tool' };
const OWN_TYPE: Record<string, string> = { principal: 'Agent', action: 'Action', resource: 'Tool' };

/** What something is called in a comparison. */
function term(expr: Expr): string | undefined {
  const [op, value] = only(expr);
  if (op === 'Value') {
    if (typeof value === 'string') return quoted(value);
    // a greater number was rounded when the text was parsed
    return Number.isSafeInteger(value) || typeof value === 'boolean' ? String(value) : undefined;
  }
  if (Object.hasOwn(WRITTEN, op)) {
    const [inner] = value as Expr[];
    const [is, text] = only(inner!);
    if (is !== 'Value' || typeof text !== 'string' || !WRITTEN[op]!.test(text)) return undefined;
    return op === 'decimal' ? text.replace(/\.?0*$/, '') : text;
  }
  if (op === 'getTag') {
    const found = tag(value);
    return found && called(found);
  }
  if (op === 'toTime') {
    const words = term((value as Expr[])[0]!);
    return words === TEXTS.now ? 'the time of day (UTC)' : words && `the time of day (UTC) of ${words}`;
  }
  if (Object.hasOwn(ARITHMETIC, op)) {
    const [left, right] = pair(value).map(operand);
    return left && right && `${left} ${ARITHMETIC[op]} ${right}`;
  }
  return place(pathOf(expr));
}

/** An operand of a calculation; a nested calculation is put in parentheses. */
function operand(expr: Expr): string | undefined {
  const words = term(expr);
  return words && Object.hasOwn(ARITHMETIC, only(expr)[0]) ? `(${words})` : words;
}

function place(path: readonly string[] | undefined): string | undefined {
  switch (path?.join('.')) {
    case undefined:
      return undefined;
    case 'principal.owner':
      return 'the owner of the agent';
    case 'resource.server.trust':
      return 'the trust of the tool’s server';
  }
  const [root, name, of] = path as [string, string?, string?];
  if (root !== 'context' || name === undefined) return undefined;
  return of === undefined ? own(TEXTS, name) : name === 'session' ? own(OF_SESSION, of) : undefined;
}

/** `hasTag`: an argument, a fact, or something known about the session. */
function presence(value: unknown): string | undefined {
  const { left, right } = value as { left: Expr; right: Expr };
  const [, key] = only(right);
  if (typeof key !== 'string') return undefined;
  if (pathOf(left)?.join('.') === 'context.facts') {
    const fact = readFact(key);
    const name = fact && argumentNamed(fact.path);
    if (!name) return undefined;
    // a text and a list of one text are equivalent here
    const what = fact.any ? `any of ${name}` : name;
    return 'list' in fact ? `${what} is in the list \`${fact.list}\`` : `${what} matches ${quoted(fact.pattern)}`;
  }
  if (pathOf(left)?.join('.') === 'context.session.called') {
    return `the tool ${quoted(key)} was called before in the session`;
  }
  const found = tag(value);
  const words = found && called(found);
  return words && `${words} is ${KINDS[found.kind]![0]}`;
}

/** The wording for an argument or a session fact. */
const called = ({ key, session }: { key: string; session: boolean }): string | undefined =>
  session ? factNamed(key) : argumentNamed(key);

/** What people configure for agents, tools and servers. */
const SET: Record<string, string> = {
  'principal.labels': 'the agent has labels',
  'resource.labels': 'the tool has labels',
  'resource.server': 'the server of the tool is known',
  'resource.server.trust': 'the trust of the tool’s server is set',
};

function attribute(value: unknown): string | undefined {
  const { left, attr } = value as { left: Expr; attr: string | string[] };
  const path = pathOf(left);
  if (!path) return undefined;
  const whole = [...path, ...[attr].flat()];
  const words = place(whole);
  return own(SET, whole.join('.')) ?? (words && `${words} is known`);
}

function containing(op: string, value: unknown): string | undefined {
  const { left, right } = value as { left: Expr; right: Expr };
  const whose = { 'principal.labels': 'the agent', 'resource.labels': 'the tool' }[pathOf(left)?.join('.') ?? ''];
  if (op === 'contains') {
    const some = set(left);
    const one = term(right);
    if (!one) return undefined;
    if (some) {
      // if neither is a literal, nothing would tell their kind
      const isKnown = tagKind(right) === undefined || (only(left)[1] as Expr[]).some((of) => tagKind(of) === undefined);
      return isKnown ? `${one} is one of ${some.join(', ')}` : undefined;
    }
    const all = term(left);
    return whose ? `${whose} is labeled ${one}` : all && `${all} contains ${one}`;
  }
  const some = set(right)?.join(', ');
  if (!some) return undefined;
  const each = op === 'containsAny' ? 'any of' : 'all of';
  const all = term(left);
  return whose ? `${whose} is labeled ${each} ${some}` : all && `${all} contains ${each} ${some}`;
}

function membership(value: unknown): string | undefined {
  const { left, right } = value as { left: Expr; right: Expr };
  const [root, ...of] = pathOf(left) ?? [];
  return root === undefined || of.length > 0 ? undefined : entity(root, right);
}

function entity(root: string, expr: Expr): string | undefined {
  const [op, value] = only(expr);
  const uid = op === 'Value' ? (value as { __entity?: { type: string; id: string } }).__entity : undefined;
  if (!uid) return undefined;
  const id = quoted(uid.id);
  if (root === 'principal' && uid.type === 'AgentRole') return `the agent has the role ${id}`;
  if (root === 'resource' && uid.type === 'ToolServer') return `the tool is on the server ${id}`;
  if (root === 'action' && uid.type === 'Action') return `the action is ${id} or of that kind`;
  return undefined;
}

function typed(value: unknown): string | undefined {
  const { left, in: within, entity_type: type } = value as { left: Expr; in?: Expr; entity_type: string };
  // the subject of a request always has its own type
  return within && type === own(OWN_TYPE, pathOf(left)?.join('.') ?? '')
    ? membership({ left, right: within })
    : undefined;
}

function pattern(value: unknown): string | undefined {
  const { left, pattern: parts } = value as { left: Expr; pattern: (string | { Literal: string })[] };
  const words = term(left);
  if (!words || !Array.isArray(parts)) return undefined;
  const text = parts.map((part) => (typeof part === 'string' ? '*' : escaped(part.Literal).replaceAll('*', '\\*')));
  return `${words} is like "${exact(text.join(''))}"`;
}

/** A set of texts or numbers. */
function set(expr: Expr): string[] | undefined {
  const [op, value] = only(expr);
  if (op !== 'Set' || !Array.isArray(value) || value.length === 0) return undefined;
  const words = (value as Expr[]).map(term);
  return words.includes(undefined) ? undefined : (words as string[]);
}

/** The tag of an argument, or of something known about the session. */
function tag(value: unknown): { kind: string; key: string; session: boolean } | undefined {
  const { left, right } = value as { left: Expr; right: Expr };
  const [op, key] = only(right);
  const [root, ...names] = pathOf(left) ?? [];
  const session = names.length === 2 && names[0] === 'session';
  if (root !== 'context' || op !== 'Value' || typeof key !== 'string' || !(session || names.length === 1))
    return undefined;
  const kind = names.at(-1)!;
  return Object.hasOwn(KINDS, kind) ? { kind, key, session } : undefined;
}

/** `context.session.id` as names, if nothing else is in between. */
function pathOf(expr: Expr): string[] | undefined {
  const [op, value] = only(expr);
  if (op === 'Var') return [value as string];
  if (op !== '.') return undefined;
  const { left, attr } = value as { left: Expr; attr: string };
  const path = pathOf(left);
  return path && [...path, attr];
}

/** The parts of `a && b && c`. */
function chain(expr: Expr, op: '&&' | '||'): Expr[] {
  const [is, value] = only(expr);
  if (is !== op) return [expr];
  const { left, right } = value as { left: Expr; right: Expr };
  return [...chain(left, op), ...chain(right, op)];
}

/** Operators that can be true only of something present, and whose wording implies that it is. */
const IMPLYING = [
  ...Object.keys(COMPARED).filter((op) => op !== '!='),
  ...['contains', 'containsAny', 'containsAll', 'like', 'isInRange'],
];

/** Whether this presence check is implied by a later comparison, which cannot be true of something absent. */
function isImplied(expr: Expr, later: readonly Expr[]): boolean {
  const [op, value] = only(expr);
  let isRead: (side: Expr) => boolean;
  if (op === 'hasTag') {
    const wanted = JSON.stringify({ getTag: value });
    isRead = (side) => JSON.stringify(side) === wanted;
  } else if (op === 'has') {
    const { left, attr } = value as { left: Expr; attr: unknown };
    const path = pathOf(left);
    if (!path || typeof attr !== 'string') return false;
    const wanted = [...path, attr];
    isRead = (side) => wanted.every((name, n) => pathOf(side)?.[n] === name);
  } else return false;
  return later.some((one) => {
    const [is, of] = only(one);
    return IMPLYING.includes(is) && pair(of).some(isRead);
  });
}

const only = (expr: Expr): [string, unknown] => Object.entries(expr)[0] ?? ['', undefined];
const argument = (value: unknown): Expr => (value as { arg: Expr }).arg;

/** The two sides of an operator, or the arguments of a function; for `like`, the one that is not a pattern. */
function pair(value: unknown): Expr[] {
  if (Array.isArray(value)) return value as Expr[];
  const { left, right } = value as { left: Expr; right?: Expr };
  return right === undefined ? [left] : [left, right];
}

const own = (of: Record<string, string>, name: string) => (Object.hasOwn(of, name) ? of[name] : undefined);

/** Literal texts that mean what they say; Cedar rejects others, and those are not repeated as if they were ours. */
const WRITTEN: Record<string, RegExp> = {
  decimal: /^-?\d+\.\d+$/,
  ip: /^[\da-fA-F:.]+(?:\/\d+)?$/,
  datetime: /^\d{4}-\d\d-\d\d(?:T[\d:.]+(?:Z|[+-]\d{4}))?$/,
  duration: /^-?(?:\d+(?:d|h|ms|m|s))+$/,
};

/** A name that cannot be mistaken for a value or for our own words. */
const isIdentifier = (name: string) =>
  /^[A-Za-z_][\w-]*(?:\.[A-Za-z_][\w-]*|\[[\w.-]*\])*$/.test(name) && !/^(?:true|false|always|never)$/i.test(name);
const argumentNamed = (name: string) => (isIdentifier(name) ? `the argument \`${name}\`` : undefined);
const factNamed = (name: string) => (isIdentifier(name) ? `the fact \`${name}\` of the session` : undefined);
