import { isIP } from 'node:net';
import path from 'node:path';
import type { Context, EntityJson, StatefulAuthorizationCall } from '@cedar-policy/cedar-wasm/nodejs';
import type { Placed } from './language/head.ts';
import type { ActionRequest } from './types.ts';

/** A request that has no exact form for the engine. Whoever decides must deny. */
export class RequestError extends Error {
  override readonly name = 'RequestError';
}

export const ARGUMENT_LIMITS = { depth: 16, leaves: 2_000, keyLength: 1_024 } as const;

/** The arguments of a request by the type of their leaves, under keys such as `refund.total` and `items[0].sku`. */
export interface Arguments {
  str: Map<string, string>;
  /** A number, or the text of one that a string held. */
  num: Map<string, number | string>;
  bool: Map<string, boolean>;
  list: Map<string, string[]>;
}

/**
 * Flattens an agent's arguments and the caller's further facts (which come first, under `context`).
 *
 * - An array also gives its length (`items.length`, in `num`); an array of strings alone is also a `list`. A null is
 *   no tag.
 * - A string that a program would read as a number is in `num` as well as in `str`: "250.01" must not walk past a
 *   limit on 250.
 * - Two leaves or branches with the same key (`{"a.b": 1, "a": {"b": 9}}`) are refused: the policy would see one of
 *   them, the tool the other.
 * - An argument of the name `context` goes by `arguments.context`, so that an agent cannot state the caller's facts.
 *
 * Throws a RequestError on more than 2,000 leaves, depth over 16, keys longer than 1,024, and what JSON cannot carry.
 */
export function flatten(args: unknown, context: unknown): Arguments {
  const found: Arguments = { str: new Map(), num: new Map(), bool: new Map(), list: new Map() };
  const taken = new Set<string>();
  let leaves = 0;

  const claim = (key: string): void => {
    if (key.length > ARGUMENT_LIMITS.keyLength) throw new RequestError('an argument key is too long');
    if (taken.has(key)) throw new RequestError(`two arguments have the key ${key}`);
    taken.add(key);
  };
  const leaf = (): void => {
    if (++leaves > ARGUMENT_LIMITS.leaves) throw new RequestError(`more than ${ARGUMENT_LIMITS.leaves} arguments`);
  };
  const visit = (value: unknown, key: string, depth: number, nameOf: (name: string) => string): void => {
    if (depth > ARGUMENT_LIMITS.depth) throw new RequestError(`arguments deeper than ${ARGUMENT_LIMITS.depth}`);
    switch (typeof value) {
      case 'string': {
        leaf();
        const text = value.toWellFormed();
        found.str.set(key, text);
        const number = numeric(text);
        if (number !== undefined) found.num.set(key, number);
        return;
      }
      case 'number':
        leaf();
        if (!Number.isFinite(value)) throw new RequestError(`the argument ${key} is not a finite number`);
        if (Math.abs(value) > Number.MAX_SAFE_INTEGER) throw new RequestError(`the argument ${key} is beyond 2^53`);
        found.num.set(key, value);
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
      const length = nameOf('length');
      claim(length);
      found.num.set(length, value.length);
      if (value.length === 0) leaf();
      if (value.every((item) => typeof item === 'string')) {
        found.list.set(
          key,
          value.map((item) => item.toWellFormed()),
        );
      }
      for (const [n, item] of value.entries()) enter(item, `${key}[${n}]`, depth + 1);
      return;
    }
    const members = Object.entries(value).filter(([, member]) => member !== undefined);
    if (members.length === 0) leaf();
    for (const [name, member] of members) enter(member, nameOf(name.toWellFormed()), depth + 1);
  };
  const enter = (value: unknown, key: string, depth: number): void => {
    claim(key);
    visit(value, key, depth, (name) => `${key}.${name}`);
  };

  if (context !== undefined && context !== null) enter(context, 'context', 0);
  if (args !== undefined && args !== null) {
    visit(args, '', 0, (name) => (/^context(?:$|[.[])/.test(name) ? `arguments.${name}` : name));
  }
  return found;
}

/**
 * The number that a lenient program would read from a text, as the text of a number; undefined when there is none.
 * Full-width digits, `1_000`, `0x10` and white space around are numbers to some of them.
 */
export function numeric(text: string): string | undefined {
  if (text.length > 64 || !/\p{Nd}/u.test(text)) return undefined;
  const plain = text
    .normalize('NFKC')
    .trim()
    .replace(/(?<=\d)_(?=\d)/g, '');
  return plain !== '' && !Number.isNaN(Number(plain)) ? plain : undefined;
}

/** The largest whole number of a Cedar decimal, which is a 64-bit integer of ten-thousandths. */
const DECIMAL_LIMIT = 922_337_203_685_477;

/** A Cedar decimal (four digits). Beyond its range it stays at the end of it, which keeps every comparison true. */
function decimal(value: number | string): { __extn: { fn: 'decimal'; arg: string } } {
  const exact = typeof value === 'string' ? /^(-?)0*(\d{1,14})(?:\.(\d{1,4}))?$/.exec(value) : null;
  if (exact) {
    const [, sign, whole, fraction = '0'] = exact;
    return { __extn: { fn: 'decimal', arg: `${sign}${whole}.${fraction}` } };
  }
  const bounded = Math.min(Math.max(Number(value), -DECIMAL_LIMIT), DECIMAL_LIMIT);
  return { __extn: { fn: 'decimal', arg: bounded.toFixed(4) } };
}

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
  /** With what is read of the context and of the arguments, and no more. The groups of the action are in the schema. */
  call(reads: Reads): EngineCall;
}

export type EngineCall = Omit<StatefulAuthorizationCall, 'preparsedPolicySetId' | 'preparsedSchemaName'>;

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
    risk_score: decimal(within(request.risk_score ?? 1, 0, 1, 'risk_score')),
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
  if (request.estimated_value !== undefined) {
    context.amount = decimal(within(request.estimated_value, -DECIMAL_LIMIT, DECIMAL_LIMIT, 'estimated_value'));
  }
  const address = optional(request.source_ip, 'source_ip');
  if (address !== undefined) context.source_ip = { __extn: { fn: 'ip', arg: ipAddress(address) } };
  Object.assign(context, place(optional(request.resource, 'resource'), method !== undefined));

  const owner = optional(request.owner, 'owner');
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
    call: ({ keys, attributes }) => {
      const read = Object.entries(whole).filter(([name]) => attributes?.has(name) ?? true);
      const names = Object.keys(ARGUMENTS) as (keyof Arguments)[];
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
} satisfies Record<keyof Arguments, unknown>;

function tagged(name: keyof Arguments, args: Arguments, keys: ReadonlySet<string> | null) {
  const values: ReadonlyMap<string, string | number | boolean | string[]> = args[name];
  const tags: NonNullable<EntityJson['tags']> = Object.create(null);
  for (const key of keys ?? values.keys()) {
    const value = values.get(key);
    if (value !== undefined) tags[key] = name === 'num' ? decimal(value as number | string) : value;
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
  return value.toWellFormed();
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
  if (/^[A-Za-z][A-Za-z0-9+.-]*:\/\//.test(resource)) {
    if (!URL.canParse(resource)) throw new RequestError('resource is neither a URL nor a path');
    const url = new URL(resource);
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
