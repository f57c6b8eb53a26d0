import { isIP } from 'node:net';
import path from 'node:path';
import type { Context, EntityJson, StatefulAuthorizationCall } from '@cedar-policy/cedar-wasm/nodejs';
import type { ActionRequest } from '../../domain/policy.ts';
import type { Placed, TagKind } from '../language/head.ts';

/** A request that has no exact form for the engine. The caller must deny. */
export class RequestError extends Error {
  override readonly name = 'RequestError';
}

/** `text`: characters of a text that a rule reads. */
export const ARGUMENT_LIMITS = { depth: 16, leaves: 2_000, keyLength: 1_024, text: 16_384 } as const;

/** The arguments of a request by the type of their leaves, under keys such as `refund.total` and `items[0].sku`. */
export interface Arguments {
  str: Map<string, string>;
  /** The exact decimal form of a number, or of a text that is one. */
  num: Map<string, string>;
  bool: Map<string, boolean>;
  list: Map<string, string[]>;
  /** Every value by its key, objects, lists and nulls too. */
  values: Map<string, unknown>;
  /** The keys that programs which ignore case, width and invisible characters read as another, by that other. */
  respelled: Map<string, string[]>;
  /** The folded keys under which programs find names such as `refund[total]` and `max.amount`, those of forms mostly. */
  aliases: Set<string>;
  /** The arguments as they came. */
  root: unknown;
}

/**
 * Flattens an agent's arguments and the caller's further facts (which come first, under `context`).
 *
 * - An array also gives its length (`items.length`, in `num`); an array of strings alone is also a `list`. A null is
 *   no tag.
 * - A string that is a number in plain decimal notation is in `num` as well as in `str`: "250.01" must not walk past a
 *   limit on 250. What has no exact form of at most four fractional digits is in neither `num` nor any other kind.
 * - Two leaves or branches with the same key (`{"a.b": 1, "a": {"b": 9}}`) are refused: the policy would see one of
 *   them, the tool the other.
 * - An argument of the name `context` goes by `arguments.context`, so that an agent cannot state the caller's facts.
 *
 * Throws a RequestError on more than 2,000 leaves, depth over 16, keys longer than 1,024, and what JSON cannot carry.
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
  let leaves = 0;

  const claim = ({ key, fold }: Place, value: unknown): void => {
    // one character may fold to 18: a key is bounded in both forms
    if (Math.max(key.length, fold.length) > ARGUMENT_LIMITS.keyLength) {
      throw new RequestError('an argument key is too long');
    }
    if (found.values.has(key)) throw new RequestError(`two arguments have the key ${key}`);
    found.values.set(key, value);
    if (fold === key) return;
    const others = found.respelled.get(fold);
    if (others) others.push(key);
    else found.respelled.set(fold, [key]);
  };
  const leaf = (): void => {
    if (++leaves > ARGUMENT_LIMITS.leaves) throw new RequestError(`more than ${ARGUMENT_LIMITS.leaves} arguments`);
  };
  const numeric = (key: string, value: number | string): void => {
    const exact = exactDecimal(value);
    if (exact !== undefined) found.num.set(key, exact);
  };
  const visit = (value: unknown, place: Place, depth: number): void => {
    const { key } = place;
    if (depth > ARGUMENT_LIMITS.depth) throw new RequestError(`arguments deeper than ${ARGUMENT_LIMITS.depth}`);
    switch (typeof value) {
      case 'string': {
        leaf();
        const text = value.toWellFormed();
        found.str.set(key, text);
        numeric(key, text);
        return;
      }
      case 'number':
        leaf();
        if (!Number.isFinite(value)) throw new RequestError(`the argument ${key} is not a finite number`);
        if (Math.abs(value) > Number.MAX_SAFE_INTEGER) throw new RequestError(`the argument ${key} is beyond 2^53`);
        numeric(key, value);
        return;
      case 'boolean':
        leaf();
        found.bool.set(key, value);
        return;
      case 'object':
        break;
      default:
        throw new RequestError(`the argument ${key} is a ${typeof value}`);
    }
    if (value === null) {
      leaf();
      return;
    }
    if (Array.isArray(value)) {
      const length = placeOf(place, 'length');
      claim(length, value.length);
      found.num.set(length.key, `${value.length}.0`);
      if (value.length === 0) leaf();
      if (value.every((item) => typeof item === 'string')) {
        found.list.set(
          key,
          value.map((item) => item.toWellFormed()),
        );
      }
      for (const [n, item] of value.entries()) {
        enter(item, { key: `${key}[${n}]`, fold: `${place.fold}[${n}]` }, depth + 1);
      }
      return;
    }
    const members = Object.entries(value).filter(([, member]) => member !== undefined);
    if (members.length === 0) leaf();
    for (const [written, member] of members) {
      const name = written.toWellFormed();
      for (const alias of aliasesOf(name)) found.aliases.add(placeOf(place, alias).fold);
      enter(member, placeOf(place, name), depth + 1);
    }
  };
  const enter = (value: unknown, place: Place, depth: number): void => {
    claim(place, value);
    visit(value, place, depth);
  };

  if (context !== undefined && context !== null) enter(context, { key: 'context', fold: 'context' }, 0);
  if (args !== undefined && args !== null) {
    if (typeof args !== 'object') found.values.set('', args);
    visit(args, ROOT, 0);
  }
  return found;
}

/** A key, and how programs compare it that ignore case, width and invisible characters. */
interface Place {
  key: string;
  fold: string;
}
const ROOT: Place = { key: '', fold: '' };

/** The place of a member. Folded name by name: each is folded once, however much is below it. */
function placeOf(parent: Place, name: string): Place {
  const fold = folded(name);
  if (parent !== ROOT) return { key: `${parent.key}.${name}`, fold: `${parent.fold}.${fold}` };
  // in every spelling, so that a reader of one of them cannot be shown another
  return /^context(?:$|[.[])/.test(fold)
    ? { key: `arguments.${name}`, fold: `arguments.${fold}` }
    : { key: name, fold };
}

/**
 * Where else programs find what has this name: `a[b]` and `a[]` are members and elements of `a` to most that read forms
 * and queries, and some take a dot, a space or a bracket that is not closed for `_`. Names of plain JSON have none.
 */
function aliasesOf(name: string): string[] {
  if (!/[ .[]/.test(name)) return [];
  const [base = '', ...inner] = name.split('[');
  if (inner.length > ARGUMENT_LIMITS.depth) throw new RequestError(`arguments deeper than ${ARGUMENT_LIMITS.depth}`);
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

/** A Cedar decimal is a 64-bit integer of ten-thousandths. */
const MOST_TEN_THOUSANDTHS = 2n ** 63n - 1n;

/**
 * A number as the text of a Cedar decimal (four fractional digits), exactly; undefined when it has no such form, and of
 * a text that is not in plain decimal notation: digits with a sign and a point at most. What programs read in different
 * ways (exponents, separators, white space, other bases and scripts) is no number.
 */
export function exactDecimal(value: number | string): string | undefined {
  if (typeof value === 'string' && value.length > ARGUMENT_LIMITS.text) return undefined;
  // of a number an exponent means more than four fractional digits, or more than fits
  const [, sign, before = '', after = ''] = /^([+-]?)(\d*)(?:\.(\d*))?$/.exec(String(value)) ?? [];
  if (sign === undefined || (before === '' && after === '')) return undefined;
  let [from, to] = [0, after.length];
  while (before[from] === '0') from++;
  while (after[to - 1] === '0') to--;
  const [whole, fraction] = [before.slice(from), after.slice(0, to)];
  if (whole.length > 15 || fraction.length > 4) return undefined;
  if (BigInt(`${whole}${fraction.padEnd(4, '0')}`) > MOST_TEN_THOUSANDTHS) return undefined;
  return `${sign === '-' ? '-' : ''}${whole || '0'}.${fraction || '0'}`;
}

/**
 * A name as parsers compare it that ignore case, width, invisible characters and white space around it (NFKC_Casefold,
 * and the Turkish i).
 */
export function folded(name: string): string {
  if (/^[a-z0-9_.[\]-]*$/.test(name)) return name;
  const plain = name.normalize('NFKC').toUpperCase().toLowerCase().normalize('NFKC');
  return plain.replace(/[\p{Default_Ignorable_Code_Point}\p{Cc}]|\u0307/gu, '').trim();
}

const decimal = (arg: string) => ({ __extn: { fn: 'decimal' as const, arg } });

/** What some statements can read of a request. */
export interface Reads {
  /** Keys of arguments; null means all. */
  keys: ReadonlySet<string> | null;
  /** Attributes of the context; null means all. */
  attributes: ReadonlySet<string> | null;
}

/** A request as the engine and the slicing by scope see it. */
export interface MappedRequest {
  principal: Placed;
  action: Placed;
  resource: Placed;
  args: Arguments;
  /** Every text that the engine would be told, arguments apart, by the name of the request's field. */
  texts: ReadonlyMap<string, string>;
  /** There is an `estimated_value`, but it has no exact form and is not among the context's attributes. */
  inexactValue: boolean;
  /** With what is read of the context and of the arguments, and no more. The groups of the action are in the schema. */
  call(reads: Reads): EngineCall;
}

export type EngineCall = Omit<StatefulAuthorizationCall, 'preparsedPolicySetId' | 'preparsedSchemaName'>;

/** The largest amount, which still fits a decimal. */
const MOST_VALUE = 922_337_203_685_477;
const ISO_TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?(?:Z|[+-]\d\d:\d\d)$/;

/**
 * Checks a request and maps it to the engine's entities and context. No JSON of the agent's reaches the context as it
 * is: `{"__entity": …}` in an argument would become an entity there.
 *
 * What a policy compares is made uniform first, or another spelling of the same thing would walk past it: method and
 * currency in upper case, a host without port and final dot, a path without dot segments (of a URL, or where there is a
 * method, also without query and with unreserved characters decoded, RFC 3986 §6.2.2), an IPv4 address inside IPv6 as
 * IPv4.
 */
export function mapRequest(
  request: ActionRequest,
  actions: Readonly<Record<string, readonly string[]>>,
): MappedRequest {
  const agentId = required(request.agent_id, 'agent_id');
  const role = required(request.agent_role, 'agent_role');
  const tool = required(request.tool_name, 'tool_name');
  const actionType = required(request.action_type, 'action_type');
  const server = optional(request.tool_server, 'tool_server');
  const groups = Object.hasOwn(actions, actionType) ? actions[actionType] : undefined;
  if (!groups || groups.length === 0) throw new RequestError('an action type that the schema does not have');

  const context: Context = {
    risk_score: decimal(roundedUp(within(request.risk_score ?? 1, 0, 1, 'risk_score'))),
    now: time(request.now, 'now'),
    session: {
      id: optional(request.session_id, 'session_id') ?? '',
      call_count: count(request.session?.call_count ?? 0),
      started: time(request.session?.started ?? request.now, 'session.started'),
    },
  };
  const method = optional(request.method, 'method');
  if (method !== undefined) context.method = method.toUpperCase();
  const currency = optional(request.value_currency, 'value_currency');
  if (currency !== undefined) context.currency = currency.toUpperCase();
  const value = request.estimated_value;
  const amount =
    value === undefined ? undefined : exactDecimal(within(value, -MOST_VALUE, MOST_VALUE, 'estimated_value'));
  if (amount !== undefined) context.amount = decimal(amount);
  const address = optional(request.source_ip, 'source_ip');
  if (address !== undefined) context.source_ip = { __extn: { fn: 'ip', arg: ipAddress(address) } };
  Object.assign(context, place(optional(request.resource, 'resource'), method !== undefined));

  const owner = optional(request.owner, 'owner');
  const texts = new Map<string, string>();
  const told = { method: context.method, resource: context.path, host: context.host, value_currency: context.currency };
  for (const [name, text] of Object.entries({ ...told, session_id: request.session_id, owner })) {
    if (typeof text === 'string') texts.set(name, text.toWellFormed());
  }
  const entities: EntityJson[] = [
    {
      uid: { type: 'Agent', id: agentId },
      attrs: owner === undefined ? {} : { owner },
      parents: [{ type: 'AgentRole', id: role }],
    },
  ];
  if (server !== undefined) {
    entities.push({ uid: { type: 'Tool', id: tool }, attrs: {}, parents: [{ type: 'ToolServer', id: server }] });
  }
  const args = flatten(request.arguments, request.context);
  const whole: Context = { ...context, ...ARGUMENTS };

  const subject = {
    principal: { type: 'Agent', id: agentId },
    action: { type: 'Action', id: actionType },
    resource: { type: 'Tool', id: tool },
  };
  return {
    principal: placed('Agent', agentId, [`AgentRole::${role}`]),
    action: placed(
      'Action',
      actionType,
      groups.map((group) => `Action::${group}`),
    ),
    resource: placed('Tool', tool, server === undefined ? [] : [`ToolServer::${server}`]),
    args,
    texts,
    inexactValue: value !== undefined && amount === undefined,
    call: ({ keys, attributes }) => {
      const read = Object.entries(whole).filter(([name]) => attributes?.has(name) ?? true);
      const names = Object.keys(ARGUMENTS) as TagKind[];
      const told = names.filter((name) => attributes?.has(name) ?? true).map((name) => tagged(name, args, keys));
      return {
        ...subject,
        context: Object.fromEntries(read),
        // an entity of which there is nothing to tell need not be there: nothing is in it, and it has no tag
        entities: [...entities, ...told.filter(({ tags }) => Object.keys(tags).length > 0)],
      };
    },
  };
}

/** The context's attributes that stand for the arguments: an entity each, whose tags are the leaves. */
const ARGUMENTS = {
  str: { __entity: { type: 'StrArgs', id: 'request' } },
  num: { __entity: { type: 'NumArgs', id: 'request' } },
  bool: { __entity: { type: 'BoolArgs', id: 'request' } },
  list: { __entity: { type: 'ListArgs', id: 'request' } },
} satisfies Record<TagKind, unknown>;

function tagged(name: TagKind, args: Arguments, keys: ReadonlySet<string> | null) {
  const values: ReadonlyMap<string, string | boolean | string[]> = args[name];
  const tags: NonNullable<EntityJson['tags']> = Object.create(null);
  for (const key of keys ?? values.keys()) {
    const value = values.get(key);
    if (value !== undefined) tags[key] = name === 'num' ? decimal(value as string) : value;
  }
  return { uid: ARGUMENTS[name].__entity, attrs: {}, parents: [], tags };
}

function placed(type: string, id: string, parents: string[]): Placed {
  const self = `${type}::${id}`;
  return { type, self, ancestors: new Set([self, ...parents]) };
}

function required(value: unknown, name: string): string {
  const text = optional(value, name);
  if (text === undefined || text === '') throw new RequestError(`${name} is missing`);
  return text;
}

/** A lone surrogate in any string makes the engine throw: it becomes U+FFFD, in ids too. */
function optional(value: unknown, name: string): string | undefined {
  if (value === undefined) return undefined;
  if (typeof value !== 'string') throw new RequestError(`${name} is not a text`);
  if (value.length > ARGUMENT_LIMITS.text) throw new RequestError(`${name} is longer than ${ARGUMENT_LIMITS.text}`);
  return value.toWellFormed();
}

/** In doubt the risk is the higher one. */
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
    throw new RequestError('session.call_count is not a count');
  return value as number;
}

function time(value: unknown, name: string): { __extn: { fn: 'datetime'; arg: string } } {
  const at = typeof value === 'string' && ISO_TIME.test(value) ? new Date(value) : undefined;
  if (!at || Number.isNaN(at.getTime())) throw new RequestError(`${name} is not an ISO 8601 time`);
  return { __extn: { fn: 'datetime', arg: at.toISOString() } };
}

/** An IPv4 address written as IPv6 (`::ffff:10.0.0.1`, in any spelling) is the IPv4 address: ranges compare it so. */
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

function place(resource: string | undefined, http: boolean): { host?: string; path?: string } {
  if (resource === undefined) return {};
  const url = URL.parse(resource);
  // clients take `http:/host`, `https:\\host` and white space before for an address as well
  if (url?.host || /^[A-Za-z][A-Za-z0-9+.-]*:\/\//.test(resource)) {
    if (!url) throw new RequestError('resource is neither a URL nor a path');
    return { host: url.hostname.replace(/\.$/, '').toLowerCase(), path: httpPath(url.pathname) };
  }
  return { path: http ? httpPath(resource) : withoutDots(resource) };
}

function httpPath(text: string): string {
  return withoutDots(decodeUnreserved(text.replace(/[?#].*$/s, '')));
}

function decodeUnreserved(text: string): string {
  return text.replace(/%([0-9A-Fa-f]{2})/g, (octet, hex: string) => {
    const character = String.fromCharCode(Number.parseInt(hex, 16));
    return /[A-Za-z0-9\-._~]/.test(character) ? character : octet.toUpperCase();
  });
}

function withoutDots(text: string): string {
  return /(?:^|\/)\.{1,2}(?:\/|$)|\/\//.test(text) ? path.posix.normalize(text) : text;
}
