import { isIP } from 'node:net';
import type { ActionRequest } from '../../domain/policy.ts';
import { folded } from '../../lib/folded.ts';
import { quoted, visible } from '../../lib/visible.ts';
import type { EntityWithAncestors } from '../language/head.ts';
import { CURRENCY, type Doubted, isMethod, location, readsAlike } from '../language/resource.ts';
import { displayPath } from './ambiguity.ts';
import { type EngineCall, engineCall } from './cedar/call.ts';
import type { RequestValues } from './cedar/question.ts';
import { ARGUMENT_LIMITS, exactDecimal } from './exact.ts';
import type { Attributes } from './registry.ts';

/** The request cannot be represented exactly for the engine. The caller must deny it. */
export class RequestError extends Error {
  override readonly name = 'RequestError';
}

const TOO_DEEP = `the arguments are nested deeper than ${ARGUMENT_LIMITS.depth} levels`;

/** The arguments of a request, flattened to keys such as `refund.total` and `items[0].sku` and grouped by type. */
export interface Arguments {
  str: Map<string, string>;
  /** The exact decimal form of a number, or of a text that is a number. */
  num: Map<string, string>;
  bool: Map<string, boolean>;
  list: Map<string, string[]>;
  /** Every value by its key, including objects, lists and nulls. */
  values: Map<string, unknown>;
  /** Folded key -> the keys that a program which ignores case, width and invisible characters would read as that key. */
  respelled: Map<string, string[]>;
  /** Folded keys that form and query parsers derive from names such as `refund[total]` and `max.amount`. */
  aliases: Set<string>;
  /** The arguments as received. */
  root: unknown;
}

/** The arguments of a request, flattened when a rule first reads one: most rules read none. */
class LazyArguments implements Arguments {
  readonly root: unknown;
  readonly #context: unknown;
  #found: Arguments | undefined;

  constructor(root: unknown, context: unknown) {
    this.root = root;
    this.#context = context;
  }

  get #flat(): Arguments {
    this.#found ??= flatten(this.root, this.#context);
    return this.#found;
  }

  get str() {
    return this.#flat.str;
  }
  get num() {
    return this.#flat.num;
  }
  get bool() {
    return this.#flat.bool;
  }
  get list() {
    return this.#flat.list;
  }
  get values() {
    return this.#flat.values;
  }
  get respelled() {
    return this.#flat.respelled;
  }
  get aliases() {
    return this.#flat.aliases;
  }
}

/**
 * Counts what flattening would work through, in as many steps as there are values, and throws where that is too much:
 * nothing is folded or concatenated before.
 */
function weigh(value: unknown, keyLength: number, depth: number, spent: { leaves: number; steps: number }): void {
  if (depth > ARGUMENT_LIMITS.depth) throw new RequestError(TOO_DEEP);
  const step = (characters: number) => {
    spent.steps += characters;
    if (spent.steps > ARGUMENT_LIMITS.steps) throw new RequestError('the names of the arguments are too long in all');
  };
  const isList = Array.isArray(value);
  const names = !isList && typeof value === 'object' && value !== null ? Object.keys(value) : [];
  if (!(isList && value.length > 0) && names.length === 0 && ++spent.leaves > ARGUMENT_LIMITS.leaves) {
    throw new RequestError(`the arguments have more than ${ARGUMENT_LIMITS.leaves} values`);
  }
  if (isList) {
    step(keyLength + '.length'.length);
    const key = keyLength + `[${value.length}]`.length;
    for (const item of value) {
      step(key);
      weigh(item, key, depth + 1, spent);
    }
    return;
  }
  for (const name of names) {
    const member = (value as Record<string, unknown>)[name];
    if (member === undefined) continue;
    const key = keyLength + 1 + name.length;
    step(key + aliasSteps(name, keyLength));
    if (!ASCII.test(name)) step(ARGUMENT_LIMITS.wide * name.length);
    weigh(member, key, depth + 1, spent);
  }
}

const ASCII = /^[\0-\x7f]*$/;

/** At most the characters of the aliases of a name and of the keys that they lead to. */
function aliasSteps(name: string, keyLength: number): number {
  if (!NESTING.test(name)) return 0;
  let brackets = 0;
  for (let at = name.indexOf('['); at >= 0 && brackets <= ARGUMENT_LIMITS.depth; at = name.indexOf('[', at + 1)) {
    brackets++;
  }
  return (2 * brackets + 3) * (keyLength + name.length);
}

const NESTING = /[ .[]/;

/**
 * Flattens an agent's arguments and the caller's additional context (keys under `context`).
 *
 * - An array also yields its length (`items.length`, in `num`); an array of only strings is also a `list`. A null yields
 *   no tag.
 * - A string that is a number in plain decimal notation is in both `num` and `str`: "250.01" must not slip past a limit
 *   on 250. A number that needs more than four fractional digits is in no kind.
 * - Two leaves or branches with the same key (`{"a.b": 1, "a": {"b": 9}}`) are rejected: the policy would see one of
 *   them and the tool the other.
 * - An argument named `context` becomes `arguments.context`, so that an agent cannot forge the caller's context.
 *
 * Throws a RequestError for more than 2,000 leaves, a depth over 16, a key longer than 1,024, names that are too long in
 * all, or a value that JSON cannot represent.
 */
export function flatten(args: unknown, context: unknown): Arguments {
  const found: Arguments = {
    str: new Map(),
    num: new Map(),
    bool: new Map(),
    list: new Map(),
    values: new Map(),
    respelled: new Map(),
    aliases: new Set(),
    root: args,
  };
  const spent = { leaves: 0, steps: 0 };
  if (context !== undefined && context !== null) weigh(context, 'context'.length, 0, spent);
  if (args !== undefined && args !== null) weigh(args, 0, 0, spent);

  const register = ({ key, fold }: ArgumentKey, value: unknown): void => {
    // one character may fold to 18, so both forms are bounded
    if (Math.max(key.length, fold.length) > ARGUMENT_LIMITS.keyLength) {
      throw new RequestError(`an argument key is longer than ${ARGUMENT_LIMITS.keyLength} characters`);
    }
    if (found.values.has(key)) throw new RequestError(`two arguments have the key ${named(key)}`);
    found.values.set(key, value);
    if (fold === key) return;
    const others = found.respelled.get(fold);
    if (others) others.push(key);
    else found.respelled.set(fold, [key]);
  };
  const numeric = (key: string, value: number | string): void => {
    const exact = exactDecimal(value);
    if (exact !== undefined) found.num.set(key, exact);
  };
  const visit = (value: unknown, at: ArgumentKey): void => {
    const { key } = at;
    switch (typeof value) {
      case 'string': {
        const text = value.toWellFormed();
        found.str.set(key, text);
        numeric(key, text);
        return;
      }
      case 'number':
        if (!Number.isFinite(value)) throw new RequestError(`${named(key)} is not a finite number`);
        if (Math.abs(value) > Number.MAX_SAFE_INTEGER) throw new RequestError(`${named(key)} is beyond 2^53`);
        numeric(key, value);
        return;
      case 'boolean':
        found.bool.set(key, value);
        return;
      case 'object':
        break;
      default:
        throw new RequestError(`${named(key)} has the unsupported type ${typeof value}`);
    }
    if (value === null) return;
    if (Array.isArray(value)) {
      const length = memberKey(at, 'length');
      register(length, value.length);
      found.num.set(length.key, `${value.length}.0`);
      if (value.every((item) => typeof item === 'string')) {
        found.list.set(
          key,
          value.map((item) => item.toWellFormed()),
        );
      }
      for (const [n, item] of value.entries()) {
        enter(item, { key: `${key}[${n}]`, fold: `${at.fold}[${n}]` });
      }
      return;
    }
    for (const written of Object.keys(value)) {
      const member = (value as Record<string, unknown>)[written];
      if (member === undefined) continue;
      const name = written.toWellFormed();
      for (const alias of aliasesOf(name)) found.aliases.add(memberKey(at, alias).fold);
      enter(member, memberKey(at, name));
    }
  };
  const enter = (value: unknown, at: ArgumentKey): void => {
    register(at, value);
    visit(value, at);
  };

  if (context !== undefined && context !== null) enter(context, { key: 'context', fold: 'context' });
  if (args !== undefined && args !== null) {
    if (typeof args !== 'object') found.values.set('', args);
    visit(args, ROOT);
  }
  return found;
}

/** An argument in the words of an error, which the record and people read. */
const named = (key: string) => visible(displayPath(key));

/** A key, and the same key as programs see it that ignore case, width and invisible characters. */
export interface ArgumentKey {
  key: string;
  fold: string;
}
export const ROOT: ArgumentKey = { key: '', fold: '' };

/** The key of a member. Each name is folded once, however many values are nested below it. */
export function memberKey(parent: ArgumentKey, name: string): ArgumentKey {
  const fold = folded(name);
  if (parent !== ROOT) return { key: `${parent.key}.${name}`, fold: `${parent.fold}.${fold}` };
  // in any spelling, so that no spelling of it can be mistaken for the caller's context
  return fold.startsWith('context') && /^context(?:$|[.[])/.test(fold)
    ? { key: `arguments.${name}`, fold: `arguments.${fold}` }
    : { key: name, fold };
}

const NONE: readonly string[] = [];

/**
 * Other paths that programs derive from this name: most form and query parsers read `a[b]` and `a[]` as members and
 * elements of `a`, and some turn a dot, a space or an unclosed bracket into `_`. Ordinary JSON names have no aliases.
 */
export function aliasesOf(name: string): readonly string[] {
  if (!NESTING.test(name)) return NONE;
  const [base = '', ...inner] = name.split('[');
  if (inner.length > ARGUMENT_LIMITS.depth) throw new RequestError(TOO_DEEP);
  const found = new Set<string>();
  for (const first of [base, base.replace(/[ .]/g, '_')]) {
    found.add(first);
    let path = first;
    for (const part of inner) {
      const step = part.replace(/\].*$/s, '');
      if (step !== '') path += /^\d+$/.test(step) ? `[${step}]` : `.${step}`;
      found.add(path);
    }
  }
  found.add(name.replace(/[ .[]/g, '_'));
  found.delete(name);
  return [...found];
}

/** The parts of a request that a set of statements can read. */
export interface Reads {
  /** Keys of arguments; null means all. */
  keys: ReadonlySet<string> | null;
  /** Attributes of the context; null means all. */
  attributes: ReadonlySet<string> | null;
  /** The facts that are true. */
  facts?: ReadonlySet<string>;
  /** The names of the session's facts and calls that are read; none if absent. */
  session?: { facts: ReadonlySet<string>; calls: ReadonlySet<string> };
}

/**
 * A request as the engine and the slicing by scope see it. Most requests are of a known scope and need no more than its
 * key, so the rest is computed when it is first read.
 *
 * A class, because each object literal with getters has its own hidden class: all code that reads one would be slow, and
 * V8 would keep the request alive until it collects the old objects.
 */
export class MappedRequest {
  readonly values: RequestValues;
  readonly #request: ActionRequest;

  constructor(values: RequestValues, request: ActionRequest) {
    this.values = values;
    this.#request = request;
  }

  /** Whether what the rule would read of this member is not what every program reads there. */
  isInDoubt(member: Doubted): boolean {
    const { estimated_value, resource, method, value_currency } = this.#request;
    switch (member) {
      case 'estimated_value':
        // it has no exact decimal form, so that the context has no amount
        return estimated_value !== undefined && this.values.context.amount === undefined;
      case 'resource':
        return resource !== undefined && !readsAlike(resource, method !== undefined);
      case 'method':
        return method !== undefined && !isMethod(method);
      case 'value_currency':
        return value_currency !== undefined && !CURRENCY.test(value_currency);
    }
  }

  get args(): Arguments {
    return this.values.args;
  }

  get principal(): EntityWithAncestors {
    const { id, role } = this.values.agent;
    return placed('Agent', id, [`AgentRole::${role}`]);
  }

  get action(): EntityWithAncestors {
    const { type, groups } = this.values.action;
    return placed(
      'Action',
      type,
      groups.map((group) => `Action::${group}`),
    );
  }

  get resource(): EntityWithAncestors {
    const { id, server } = this.values.tool;
    return placed('Tool', id, server === undefined ? [] : [`ToolServer::${server}`]);
  }

  /** Every text passed to the engine, other than arguments, by the name of its request field. */
  get texts(): ReadonlyMap<string, string> {
    return textsOf(this.values, this.#request.session_id);
  }

  /** The engine's input, with only the context and arguments in `reads`. The schema has the groups of the action. */
  call(reads: Reads): EngineCall {
    return engineCall(this.values, reads);
  }
}

/** The largest amount that fits a Cedar decimal. */
const MAX_VALUE = 922_337_203_685_477;
const ISO_TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?(?:Z|[+-]\d\d:\d\d)$/;

/**
 * Checks a request and maps it to the engine's entities and context. The agent's JSON never reaches the context
 * unchanged: `{"__entity": …}` in an argument would become an entity there.
 *
 * Values that policies compare are normalized, so that another spelling of the same value cannot bypass a rule: the method
 * in upper case; a host without port and trailing dot; a path without dot segments (for a URL, or with a method, also
 * without query and with unreserved characters decoded, RFC 3986 §6.2.2); an IPv4-mapped IPv6 address as IPv4. What
 * programs read in more ways than that is in doubt (`isInDoubt`).
 */
export function mapRequest(
  request: ActionRequest,
  actions: Readonly<Record<string, readonly string[]>>,
  { agent_labels, tool_labels, trust }: Attributes = {},
): MappedRequest {
  const agentId = required(request.agent_id, 'agent_id');
  const role = required(request.agent_role, 'agent_role');
  const tool = required(request.tool_name, 'tool_name');
  const actionType = required(request.action_type, 'action_type');
  const server = optional(request.tool_server, 'tool_server');
  const groups = Object.hasOwn(actions, actionType) ? actions[actionType] : undefined;
  if (!groups || groups.length === 0)
    throw new RequestError(`the action type ${quoted(actionType)} is not in the schema`);

  const context: RequestValues['context'] = {
    risk_score: roundedUp(within(request.risk_score ?? 1, 0, 1, 'risk_score')),
    now: time(request.now, 'now'),
  };
  const session: RequestValues['session'] = {
    id: optional(request.session_id, 'session_id') ?? '',
    call_count: count(request.session?.call_count ?? 0),
    started: request.session?.started == null ? context.now : time(request.session.started, 'session.started'),
    // nothing is known about a request outside any session
    lowest_trust: trustOf(request),
    known: request.session,
  };
  const method = optional(request.method, 'method');
  if (method !== undefined) context.method = method.toUpperCase();
  const currency = optional(request.value_currency, 'value_currency');
  if (currency !== undefined) context.currency = currency;
  const value = request.estimated_value;
  const amount =
    value === undefined ? undefined : exactDecimal(within(value, -MAX_VALUE, MAX_VALUE, 'estimated_value'));
  if (amount !== undefined) context.amount = amount;
  const address = optional(request.source_ip, 'source_ip');
  if (address !== undefined) context.source_ip = ipAddress(address);
  const resource = optional(request.resource, 'resource');
  const found = resource === undefined ? {} : location(resource, method !== undefined);
  if (!found) throw new RequestError('resource is neither a URL nor a path');
  Object.assign(context, found);

  const owner = optional(request.owner, 'owner');
  const args = new LazyArguments(request.arguments, request.context);
  const values: RequestValues = {
    agent: { id: agentId, role, owner, labels: agent_labels },
    action: { type: actionType, groups },
    tool: { id: tool, server, ...(server !== undefined && { labels: tool_labels, trust }) },
    ...{ context, session, args },
  };
  return new MappedRequest(values, request);
}

function textsOf({ context, agent }: RequestValues, session_id: string | undefined): ReadonlyMap<string, string> {
  const { method, path: resource, host, currency: value_currency } = context;
  const texts = new Map<string, string>();
  for (const [name, text] of Object.entries({
    ...{ method, resource, host, value_currency, session_id, owner: agent.owner },
  })) {
    if (typeof text === 'string') texts.set(name, text.toWellFormed());
  }
  return texts;
}

function trustOf({ session, session_id }: ActionRequest): number {
  if (!session_id) return 0;
  const trust = session?.lowest_trust ?? 100;
  if (!Number.isSafeInteger(trust) || trust < 0 || trust > 100) {
    throw new RequestError('session.lowest_trust is not an integer from 0 to 100');
  }
  return trust;
}

function placed(type: string, id: string, parents: string[]): EntityWithAncestors {
  const self = `${type}::${id}`;
  return { type, self, ancestors: new Set([self, ...parents]) };
}

function required(value: unknown, name: string): string {
  const text = optional(value, name);
  if (text === undefined || text === '') throw new RequestError(`${name} is missing`);
  return text;
}

/** Lone surrogates, which make the engine throw, become U+FFFD. */
function optional(value: unknown, name: string): string | undefined {
  if (value === undefined) return undefined;
  if (typeof value !== 'string') throw new RequestError(`${name} is not a string`);
  if (value.length > ARGUMENT_LIMITS.text)
    throw new RequestError(`${name} is longer than ${ARGUMENT_LIMITS.text} characters`);
  return value.toWellFormed();
}

/** A risk with more than four fractional digits is rounded up, never down. */
function roundedUp(risk: number): string {
  const exact = exactDecimal(risk);
  if (exact !== undefined) return exact;
  const cut = /e/.test(String(risk)) ? 0 : Number(String(risk).slice(2, 6));
  return ((cut + 1) / 10_000).toFixed(4);
}

function within(value: unknown, least: number, most: number, name: string): number {
  if (typeof value !== 'number' || !(value >= least && value <= most)) {
    throw new RequestError(`${name} is not a number from ${least} to ${most}`);
  }
  return value;
}

function count(value: unknown): number {
  if (!Number.isSafeInteger(value) || (value as number) < 0)
    throw new RequestError('session.call_count is not a non-negative integer');
  return value as number;
}

function time(value: unknown, name: string): string {
  const at = typeof value === 'string' && ISO_TIME.test(value) ? new Date(value) : undefined;
  if (!at || Number.isNaN(at.getTime())) throw new RequestError(`${name} is not an ISO 8601 time`);
  return at.toISOString();
}

/** Turns an IPv4-mapped IPv6 address (`::ffff:10.0.0.1`, in any spelling) into IPv4, so that IPv4 ranges match it. */
function ipAddress(text: string): string {
  const address = text.replace(/%.*$/s, '');
  const kind = isIP(address);
  if (kind === 0) throw new RequestError('source_ip is not an IP address');
  if (kind === 4) return address;
  const canonical = new URL(`http://[${address}]`).hostname.slice(1, -1);
  const [, high, low] = /^::ffff:([0-9a-f]{1,4}):([0-9a-f]{1,4})$/.exec(canonical) ?? [];
  if (high === undefined || low === undefined) return canonical;
  return [high, low].flatMap((half) => [Number.parseInt(half, 16) >> 8, Number.parseInt(half, 16) & 255]).join('.');
}
