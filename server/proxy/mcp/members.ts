import { folded } from '../../lib/folded.ts';
import { traceOf } from '../../lib/trace.ts';
import { META_ESCROW_ID, META_SESSION } from './actions.ts';
import { RELATED_TASK } from './tasks.ts';
import {
  type Answer,
  CAPABILITIES_KEY,
  CLIENT_KEY,
  isObject,
  LOG_LEVEL_KEY,
  type Meta,
  type Notification,
  type Params,
  type Request,
  type Result,
  VERSION_KEY,
} from './wire.ts';

/**
 * What of a client's messages goes to a tool server: the members in these tables, and no others. What is part of an action is
 * decided on, shown to approvers, and bound by the hash of the action; everything else is limited in kind and size.
 */

/** Up to 2025-11-25, and from 2026-07-28. */
export type Era = 'sessions' | 'stateless';

/** `any`: whatever it holds, because it is decided on. */
type Kind = 'any' | 'text' | 'id' | 'number' | 'flag' | 'none' | 'named' | readonly [Kind] | { [member: string]: Kind };

interface Member {
  is: Kind;
  /** Part of what policies decide on, approvers see and the action hash binds. */
  decided?: true;
  /** Otherwise of both eras. */
  era?: Era;
}
type Members = Readonly<Record<string, Member>>;
interface Row {
  /** Otherwise of both eras. */
  era?: Era;
  members: Members;
}

/** Of what is not decided on. */
const MOST_TEXT = 4000;
const MOST_BYTES = 64 * 1024;
const MOST_ITEMS = 1000;
const MOST_ID = 200;
const MOST_NAMED_BYTES = 4096;

const NONE: Members = {};
const PAGE: Members = { cursor: { is: 'text' } };
const RETRY: Members = {
  inputResponses: { is: 'any', decided: true, era: 'stateless' },
  requestState: { is: 'any', era: 'stateless' },
};
const TASK: Members = { taskId: { is: 'any', decided: true } };
const TASK_STATE: { [member: string]: Kind } = {
  ...{ taskId: 'text', status: 'text', statusMessage: 'text', createdAt: 'text', lastUpdatedAt: 'text' },
  ...{ ttl: 'number', pollInterval: 'number' },
};

const CAPABILITIES: Kind = {
  roots: { listChanged: 'flag' },
  sampling: { context: 'none', tools: 'none' },
  elicitation: { form: { applyDefaults: 'flag' }, url: 'none' },
  tasks: {
    list: 'none',
    cancel: 'none',
    requests: { sampling: { createMessage: 'none' }, elicitation: { create: 'none' } },
  },
  extensions: 'named',
};
const IMPLEMENTATION: Kind = {
  ...{ name: 'text', version: 'text', title: 'text', description: 'text', websiteUrl: 'text' },
  icons: [{ src: 'text', mimeType: 'text', sizes: ['text'], theme: 'text' }],
};

/** The members of `params`. Of a method that is not here, which is decided on as `mcp_request`, all. */
const REQUESTS: Readonly<Record<string, Row>> = {
  initialize: {
    era: 'sessions',
    members: {
      protocolVersion: { is: 'text' },
      capabilities: { is: CAPABILITIES },
      clientInfo: { is: IMPLEMENTATION },
    },
  },
  'server/discover': { members: NONE },
  ping: { era: 'sessions', members: NONE },
  'logging/setLevel': { era: 'sessions', members: { level: { is: 'text' } } },
  'tools/list': { members: PAGE },
  'prompts/list': { members: PAGE },
  'resources/list': { members: PAGE },
  'resources/templates/list': { members: PAGE },
  'resources/unsubscribe': { era: 'sessions', members: { uri: { is: 'text' } } },
  'subscriptions/listen': {
    era: 'stateless',
    members: {
      notifications: {
        is: {
          ...{ toolsListChanged: 'flag', promptsListChanged: 'flag', resourcesListChanged: 'flag' },
          ...{ resourceSubscriptions: ['text'], taskIds: ['text'] },
        },
      },
    },
  },
  'tools/call': {
    members: {
      name: { is: 'any', decided: true },
      arguments: { is: 'any', decided: true },
      task: { is: { ttl: 'number' }, era: 'sessions' },
      ...RETRY,
    },
  },
  'resources/read': { members: { uri: { is: 'any', decided: true }, ...RETRY } },
  'resources/subscribe': { members: { uri: { is: 'any', decided: true } } },
  'prompts/get': {
    members: { name: { is: 'any', decided: true }, arguments: { is: 'any', decided: true }, ...RETRY },
  },
  'completion/complete': {
    members: {
      ref: { is: 'any', decided: true },
      argument: { is: 'any', decided: true },
      context: { is: 'any', decided: true },
    },
  },
  'tasks/get': { members: TASK },
  'tasks/result': { members: TASK },
  'tasks/cancel': { members: TASK },
  'tasks/list': { members: { cursor: { is: 'text', decided: true } } },
  'tasks/update': { members: { ...TASK, inputResponses: { is: 'any', decided: true } } },
};

/** Only in sessions: no notification of a client without one goes to a server. */
const NOTIFICATIONS: Readonly<Record<string, Members>> = {
  'notifications/initialized': NONE,
  'notifications/cancelled': { requestId: { is: 'id' }, reason: { is: 'text' } },
  'notifications/progress': {
    ...{ progressToken: { is: 'id' }, progress: { is: 'number' }, total: { is: 'number' }, message: { is: 'text' } },
  },
  'notifications/roots/list_changed': NONE,
  'notifications/tasks/status': Object.fromEntries(Object.entries(TASK_STATE).map(([name, is]) => [name, { is }])),
};

/**
 * The members of `result`, by the method of the server's request, on which the policies decided. An answer to anything else than
 * an open request of the server goes nowhere.
 */
const ANSWERS: Readonly<Record<string, Members>> = {
  ping: NONE,
  'roots/list': { roots: { is: [{ uri: 'text', name: 'text' }] } },
  'sampling/createMessage': {
    ...{ role: { is: 'text' }, content: { is: 'any' }, model: { is: 'text' }, stopReason: { is: 'text' } },
    task: { is: TASK_STATE },
  },
  'elicitation/create': { action: { is: 'text' }, content: { is: 'any' }, task: { is: TASK_STATE } },
};

/** The members of `_meta` of a request. */
const META: Readonly<Record<string, Kind>> = {
  progressToken: 'id',
  [VERSION_KEY]: 'text',
  [CAPABILITIES_KEY]: CAPABILITIES,
  [CLIENT_KEY]: IMPLEMENTATION,
  [LOG_LEVEL_KEY]: 'text',
  [RELATED_TASK]: { taskId: 'text' },
};
/** Read by the proxy, and passed on as its own: the trace. */
const TRACE = ['traceparent', 'tracestate'];
/** Read by the proxy, and never passed on. */
const OWN = [META_ESCROW_ID, META_SESSION];

const FOLDED = new Map(
  ['_meta', ...Object.values(REQUESTS).flatMap(({ members }) => Object.keys(members))].map((name) => [
    folded(name),
    name,
  ]),
);

/** Throws a RangeError for a member that is spelled differently than in the protocol: a server may ignore case. */
export function assertSpelling({ params = {} }: Request): void {
  for (const key of Object.keys(params)) {
    const meant = FOLDED.get(folded(key));
    if (meant === undefined || meant === key) continue;
    throw new RangeError(`${JSON.stringify(key)} is not how ${meant} is written`);
  }
}

/** Whether the method is of this era, as far as the proxy knows. */
export function isOfEra(method: string, era: Era): boolean {
  const row = Object.hasOwn(REQUESTS, method) ? REQUESTS[method] : undefined;
  return row?.era === undefined || row.era === era;
}

/** Whether a call of this method may be continued with input that its server wants. */
export function hasRounds(method: string): boolean {
  return Object.hasOwn(REQUESTS, method) && REQUESTS[method]!.members.requestState !== undefined;
}

/** The request with the members that may go to a server. Throws a RangeError if one is too long, or spelled differently. */
export function reducedRequest({ jsonrpc, id, method, params }: Request, era: Era): Request {
  if (String(id).length > MOST_ID) throw new RangeError('the id is too long');
  assertSpelling({ jsonrpc, id, method, ...(params && { params }) });
  if (!params) return { jsonrpc, id, method };
  const { _meta, ...given } = params;
  const members = Object.hasOwn(REQUESTS, method) ? REQUESTS[method]!.members : undefined;
  const kept = members ? reducedMembers(members, given, era) : given;
  return { jsonrpc, id, method, params: { ...kept, ...(_meta && { _meta: reducedMeta(_meta) }) } };
}

/** The request without the keys of `_meta` that are for the proxy. */
export function withoutOwn(request: Request): Request {
  const { _meta, ...params } = request.params ?? {};
  if (!_meta || !OWN.some((key) => Object.hasOwn(_meta, key))) return request;
  const kept = Object.fromEntries(Object.entries(_meta).filter(([key]) => !OWN.includes(key)));
  return { ...request, params: { ...params, _meta: kept } };
}

/** A client's notification with the members that may go to a server; undefined if it may not. Throws a RangeError. */
export function reducedNotification({ jsonrpc, method, params }: Notification): Notification | undefined {
  const members = Object.hasOwn(NOTIFICATIONS, method) ? NOTIFICATIONS[method] : undefined;
  if (!members) return undefined;
  if (!params) return { jsonrpc, method };
  const related = params._meta && kept({ [RELATED_TASK]: META[RELATED_TASK]! }, params._meta);
  return { jsonrpc, method, params: { ...reducedMembers(members, params, 'sessions'), ...asMeta(related) } };
}

/** A client's answer to a server's request of this method, with the members that may go to the server. Throws a RangeError. */
export function reducedAnswer(method: string, answer: Answer): Answer {
  const { jsonrpc, id } = answer;
  if ('error' in answer) {
    const { code, message } = answer.error;
    return { jsonrpc, id, error: { code, message: typeof message === 'string' ? message.slice(0, MOST_TEXT) : '' } };
  }
  const members = Object.hasOwn(ANSWERS, method) ? ANSWERS[method] : undefined;
  if (!members) return { jsonrpc, id, result: answer.result };
  const { _meta, ...given } = answer.result;
  const related = isObject(_meta) ? kept({ [RELATED_TASK]: META[RELATED_TASK]! }, _meta) : undefined;
  return { jsonrpc, id, result: { ...reducedMembers(members, given, 'sessions'), ...asMeta(related) } as Result };
}

function asMeta(kept: Record<string, unknown> | undefined): { _meta?: Meta } {
  return kept && Object.keys(kept).length > 0 ? { _meta: kept as Meta } : {};
}

function reducedMeta(meta: Meta): Meta {
  const own = Object.fromEntries(OWN.filter((key) => Object.hasOwn(meta, key)).map((key) => [key, meta[key]]));
  const { parent_id, state } = traceOf(meta.traceparent, meta.tracestate);
  const trace = parent_id !== undefined && {
    traceparent: String(meta.traceparent).slice(0, 55),
    ...(state !== undefined && { tracestate: state }),
  };
  return bounded({ ...kept(META, meta), ...own, ...trace }) as Meta;
}

function reducedMembers(members: Members, given: Record<string, unknown>, era: Era): Params {
  const here = Object.entries(members).filter(([, { era: only }]) => only === undefined || only === era);
  const decided = here.filter(([, { decided, is }]) => decided || is === 'any');
  const others = here.filter(([, { decided, is }]) => !(decided || is === 'any'));
  const table = (rows: typeof here) => Object.fromEntries(rows.map(([name, { is }]) => [name, is]));
  return { ...kept(table(decided), given), ...bounded(kept(table(others), given)) };
}

/** The named members that are of the kind that they should be. Throws a RangeError for what is too long. */
function kept(kinds: Readonly<Record<string, Kind>>, given: Record<string, unknown>): Record<string, unknown> {
  const all: Record<string, unknown> = {};
  for (const [name, kind] of Object.entries(kinds)) {
    const value = Object.hasOwn(given, name) ? one(kind, given[name], name) : undefined;
    if (value !== undefined) all[name] = value;
  }
  return all;
}

function one(kind: Kind, value: unknown, name: string): unknown {
  const most = (length: number, limit: number) => {
    if (length > limit) throw new RangeError(`${name} is too long`);
  };
  if (isList(kind)) {
    if (!Array.isArray(value)) return undefined;
    most(value.length, MOST_ITEMS);
    return value.map((item) => one(kind[0], item, name)).filter((item) => item !== undefined);
  }
  if (typeof kind === 'object') return isObject(value) ? kept(kind, value) : undefined;
  switch (kind) {
    case 'any':
      return value;
    case 'text':
      if (typeof value !== 'string') return undefined;
      most(value.length, MOST_TEXT);
      return value;
    case 'id':
      if (typeof value !== 'string') return Number.isSafeInteger(value) ? value : undefined;
      most(value.length, MOST_ID);
      return value;
    case 'number':
      return Number.isFinite(value) ? value : undefined;
    case 'flag':
      return typeof value === 'boolean' ? value : undefined;
    case 'none':
      return isObject(value) ? {} : undefined;
    case 'named': {
      if (!isObject(value)) return undefined;
      const named = Object.entries(value).filter(
        ([key, of]) => /^[\w.-]{1,100}\/[\w.-]{1,100}$/.test(key) && isObject(of),
      );
      most(JSON.stringify(named).length, MOST_NAMED_BYTES);
      return Object.fromEntries(named);
    }
  }
}

function isList(kind: Kind): kind is readonly [Kind] {
  return Array.isArray(kind);
}

function bounded<T extends Record<string, unknown>>(members: T): T {
  if (Buffer.byteLength(JSON.stringify(members)) > MOST_BYTES) throw new RangeError('the message is too long');
  return members;
}

/** For the documentation: each message, its members, and which of them are decided on. */
export function memberTable(): { message: string; era: string; decided: string[]; others: string[] }[] {
  const named = (members: Members, which: (member: Member) => boolean) =>
    Object.entries(members)
      .filter(([, member]) => which(member))
      .map(([name, { is, era }]) => `${written(name, is)}${era === undefined ? '' : ` (${ERAS[era]})`}`);
  const row = (message: string, era: Era | undefined, members: Members) => ({
    message,
    era: era === undefined ? 'both' : ERAS[era],
    decided: named(members, ({ decided }) => decided === true),
    others: named(members, ({ decided }) => decided !== true),
  });
  const any = { decided: ['all'], others: [] };
  return [
    ...Object.entries(REQUESTS).map(([method, { era, members }]) => row(method, era, members)),
    { message: 'any other request', era: 'both', ...any },
    ...Object.entries(NOTIFICATIONS).map(([method, members]) => row(method, 'sessions', members)),
    ...Object.entries(ANSWERS).map(([method, members]) => row(`answer to ${method}`, 'sessions', members)),
    { message: 'answer to any other request that was decided on', era: ERAS.sessions, decided: [], others: ['all'] },
    {
      message: '_meta',
      era: 'both',
      decided: [],
      others: [...Object.entries(META).map(([name, is]) => written(name, is)), ...TRACE],
    },
  ];
}

const ERAS: Record<Era, string> = { sessions: 'sessions', stateless: '2026-07-28' };

function written(name: string, kind: Kind): string {
  if (kind === CAPABILITIES || kind === IMPLEMENTATION || typeof kind === 'string') return name;
  const inner = isList(kind) ? kind[0] : kind;
  return typeof inner === 'object' && !isList(inner) ? `${name} { ${Object.keys(inner).join(', ')} }` : name;
}
