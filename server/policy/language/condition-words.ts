import { visible } from '../../lib/visible.ts';
import { readFact } from './facts.ts';

/** A condition as Cedar gives it parsed. */
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
const KINDS: Record<string, string> = {
  str: 'a text',
  num: 'a number',
  bool: 'true or false',
  list: 'a list of texts',
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
 * The body of a `when` or `unless` in words, for readers who do not know Cedar. Undefined where a part of it has no such words:
 * then the text stands for itself. A check that an argument is there is left out where a comparison of that argument follows.
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
  const compared = COMPARED[op];
  if (compared === undefined) return undefined;
  if (op === '==' || op === '!=') {
    const words = oneself(value);
    if (words) return `${words[0]} ${compared} ${words[1]}`;
  }
  const [left, right] = pair(value).map(term);
  return left && right && `${left} ${compared} ${right}`;
}

/** The agent, action or tool of the request beside a certain one. */
function oneself(value: unknown): [string, string] | undefined {
  const [left, right] = pair(value);
  const [op, root] = only(left!);
  const [is, of] = only(right!);
  const uid = is === 'Value' ? (of as { __entity?: { id: string } }).__entity : undefined;
  const whose =
    op === 'Var'
      ? own({ principal: 'the agent', action: 'the action', resource: 'the tool' }, String(root))
      : undefined;
  return uid && whose ? [whose, quoted(uid.id)] : undefined;
}

/** What something is called where it is compared. */
function term(expr: Expr): string | undefined {
  const [op, value] = only(expr);
  if (op === 'Value') {
    if (typeof value === 'string') return quoted(value);
    return typeof value === 'number' || typeof value === 'boolean' ? String(value) : undefined;
  }
  if (op === 'decimal' || op === 'ip' || op === 'datetime' || op === 'duration') {
    const [inner] = value as Expr[];
    const [, text] = only(inner!);
    if (typeof text !== 'string') return undefined;
    return op === 'decimal' ? text.replace(/\.?0+$/, (zeros) => (zeros.startsWith('.') ? '' : zeros)) : visible(text);
  }
  if (op === 'getTag') {
    const found = tag(value);
    if (!found) return undefined;
    return found.session ? `${named(found.key)} of the session` : named(found.key);
  }
  if (op === 'toTime') {
    const words = term((value as Expr[])[0]!);
    return words === TEXTS.now ? 'the time of day' : words && `the time of day of ${words}`;
  }
  if (op in ARITHMETIC) {
    const [left, right] = pair(value).map(term);
    return left && right && `${left} ${ARITHMETIC[op]} ${right}`;
  }
  return place(pathOf(expr));
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

/** `hasTag`: an argument, a fact, or what is known of the session. */
function presence(value: unknown): string | undefined {
  const { left, right } = value as { left: Expr; right: Expr };
  const [, key] = only(right);
  if (typeof key !== 'string') return undefined;
  if (pathOf(left)?.join('.') === 'context.facts') {
    const fact = readFact(key);
    if (!fact) return undefined;
    // a text and a list of one are the same here
    const what = fact.any ? `any of ${named(fact.path)}` : named(fact.path);
    return 'list' in fact ? `${what} is in the list ${named(fact.list)}` : `${what} matches ${quoted(fact.pattern)}`;
  }
  if (pathOf(left)?.join('.') === 'context.session.called') return `${named(key)} was called before in the session`;
  const found = tag(value);
  if (!found) return undefined;
  const kind = own(KINDS, found.kind);
  if (found.session) return `${named(key)} of the session is known`;
  return kind && `${named(key)} is ${kind}`;
}

/** What people set of agents, tools and servers. */
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
    if (some) return `${one} is one of ${some.join(', ')}`;
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
  const [root] = pathOf(left) ?? [];
  return root === undefined ? undefined : entity(root, right);
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
  const { left, in: within } = value as { left: Expr; in?: Expr };
  return within && membership({ left, right: within });
}

function pattern(value: unknown): string | undefined {
  const { left, pattern: parts } = value as { left: Expr; pattern: (string | { Literal: string })[] };
  const words = term(left);
  if (!words || !Array.isArray(parts)) return undefined;
  const text = parts.map((part) => (typeof part === 'string' ? '*' : part.Literal.replaceAll('*', '\\*'))).join('');
  return `${words} is like ${quoted(text)}`;
}

/** A set of texts or numbers. */
function set(expr: Expr): string[] | undefined {
  const [op, value] = only(expr);
  if (op !== 'Set' || !Array.isArray(value)) return undefined;
  const words = (value as Expr[]).map(term);
  return words.includes(undefined) ? undefined : (words as string[]);
}

/** The tag of an argument, or of what is known of the session. */
function tag(value: unknown): { kind: string; key: string; session: boolean } | undefined {
  const { left, right } = value as { left: Expr; right: Expr };
  const [op, key] = only(right);
  const [root, ...names] = pathOf(left) ?? [];
  const session = names.length === 2 && names[0] === 'session';
  if (root !== 'context' || op !== 'Value' || typeof key !== 'string' || !(session || names.length === 1))
    return undefined;
  return { kind: names.at(-1)!, key, session };
}

/** `context.session.id` as names, where nothing else stands in between. */
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

/** What can be true only of what is there, and reads as if. */
const IMPLYING = [
  ...Object.keys(COMPARED).filter((op) => op !== '!='),
  ...['contains', 'containsAny', 'containsAll', 'like', 'isInRange'],
];

/** That something is there, and a comparison of it says so as well: it cannot be true of what is not there. */
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

/** The two sides of an operator, or the arguments of a function; of `like` the one that is no pattern. */
function pair(value: unknown): Expr[] {
  if (Array.isArray(value)) return value as Expr[];
  const { left, right } = value as { left: Expr; right?: Expr };
  return right === undefined ? [left] : [left, right];
}

const own = (of: Record<string, string>, name: string) => (Object.hasOwn(of, name) ? of[name] : undefined);
/** No quote of a text ends it. */
const quoted = (text: string) => `"${visible(text).replaceAll('"', '\\"')}"`;
const named = (key: string) => (/^[\w.[\]-]+$/.test(key) ? key : quoted(key));
