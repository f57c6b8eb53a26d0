import { createHash } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import type { Log } from '../../lib/log.ts';
import type { Caller, Gate } from './gate.ts';
import { Session } from './session.ts';
import {
  type Answer,
  claimedVersion,
  failure,
  type Id,
  INTERNAL_ERROR,
  INVALID_PARAMS,
  INVALID_REQUEST,
  isObject,
  LEGACY,
  type Link,
  METHOD_NOT_FOUND,
  type Message,
  type Notification,
  type Params,
  type Request,
  type Result,
  success,
  UNSUPPORTED_VERSION,
} from './wire.ts';

/** One of the servers. */
export interface Member {
  /** As policies see it, and before each of its names: lower-case letters, digits and `-`, a letter first. */
  name: string;
  gate: Gate;
  /** A connection for one session. May throw where there is none to be had now. */
  connect: () => Link & { terminate?: () => Promise<void> };
}

export interface ManyParts {
  client: Link;
  members: readonly Member[];
  caller: Caller;
  log: Log;
  onPolicyChange: (listener: () => void) => () => void;
}

/** Between a server and a name of it. Names of servers have no `_`, so the first one ends the server. */
const SEPARATOR = '__';
/** Clients pass names of tools on to models that take no longer ones. */
const MOST_NAME = 64;
/** How long the client's `initialize` waits for servers; later ones announce their lists. */
const FIRST_MS = 10_000;
const OPEN_MS = 60_000;
const MOST_PAGES = 50;
const MOST_ITEMS = 10_000;
const BACKOFF_MS = [1000, 2000, 5000, 15_000, 60_000];
/** Several servers may say at the same time that their lists have changed. */
const ANNOUNCE_MS = 50;

/** The lists, by the method that asks for them: where a result holds it, and which capability a server has for it. */
const LISTS = {
  'tools/list': { member: 'tools', capability: 'tools' },
  'prompts/list': { member: 'prompts', capability: 'prompts' },
  'resources/list': { member: 'resources', capability: 'resources' },
  'resources/templates/list': { member: 'resourceTemplates', capability: 'resources' },
} as const;
type ListMethod = keyof typeof LISTS;

const CAPABILITIES = {
  tools: { listChanged: true },
  prompts: { listChanged: true },
  resources: { subscribe: true, listChanged: true },
  completions: {},
  logging: {},
};

/**
 * Several servers as one, for a session of a client with `initialize`. Each server has a session and a gate of its own
 * behind this, so that it is decided as if it stood alone: policies see the tool's own name, in its own server.
 *
 * `files__read` is the tool `read` of the server `files`; prompts are named alike, and the resource `file:///a` is
 * `files+file:///a`. A server that is away is left out of the lists, and tried again; its names stay its own.
 */
export class Many {
  readonly #parts: ManyParts;
  readonly #lanes: ReadonlyMap<string, Lane>;
  /** The client's open requests: how to cancel them. */
  readonly #open = new Map<Id, AbortController>();
  /** Requests of servers to the client, by the number they have here. */
  readonly #asked = new Map<Id, { lane: Lane; id: Id }>();
  readonly #tokens = new Map<Id, { lane: Lane; token: Id; of: Id }>();
  readonly #changed = new Map<string, NodeJS.Timeout>();
  #next = 0;
  #begun = false;
  #closed = false;
  onClose: () => unknown = () => {};

  constructor(parts: ManyParts) {
    this.#parts = parts;
    const lanes = parts.members.map((member) => {
      const lane = new Lane(member, parts, (message) => this.#fromLane(lane, message));
      lane.onChange = () => {
        for (const what of ['tools', 'prompts', 'resources']) this.#announce(what);
      };
      return [member.name, lane] as const;
    });
    this.#lanes = new Map(lanes);
  }

  get busy(): boolean {
    return this.#open.size > 0;
  }

  async start(): Promise<void> {
    const { client, log } = this.#parts;
    client.onmessage = (message) => this.#fromClient(message);
    client.onerror = (err) => log.debug({ err }, 'the MCP client');
    client.onclose = () => void this.close();
    await client.start();
  }

  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    for (const timer of this.#changed.values()) clearTimeout(timer);
    for (const abort of this.#open.values()) abort.abort();
    await Promise.allSettled([...this.#lanes.values()].map((lane) => lane.close()));
    await this.#parts.client.close();
    this.onClose();
  }

  #fromClient(message: Message): void {
    if (!('method' in message)) {
      const asked = this.#asked.get(message.id);
      this.#asked.delete(message.id);
      for (const [token, { of }] of this.#tokens) if (of === message.id) this.#tokens.delete(token);
      asked?.lane.pass({ ...message, id: asked.id });
    } else if ('id' in message) void this.#request(message);
    else this.#notified(message);
  }

  #notified(message: Notification): void {
    const { method, params } = message;
    if (method === 'notifications/cancelled') this.#open.get(params?.requestId as Id)?.abort();
    else if (method === 'notifications/progress') {
      const known = this.#tokens.get(params?.progressToken as Id);
      known?.lane.pass({ ...message, params: { ...params, progressToken: known.token } });
    } else for (const lane of this.#lanes.values()) lane.notify(message);
  }

  async #request(request: Request): Promise<void> {
    const { id } = request;
    if (this.#open.has(id)) {
      this.#send(failure(id, INVALID_REQUEST, 'the id of this request is in use'));
      return;
    }
    const abort = new AbortController();
    this.#open.set(id, abort);
    try {
      const answer = await this.#answer(request, abort.signal);
      if (!abort.signal.aborted) this.#send({ ...answer, id });
    } catch (err) {
      this.#parts.log.error({ err }, 'the proxy failed');
      this.#send(failure(id, INTERNAL_ERROR, 'the proxy failed'));
    } finally {
      this.#open.delete(id);
    }
  }

  async #answer(request: Request, signal: AbortSignal): Promise<Answer> {
    const { id, method, params = {} } = request;
    const requested = claimedVersion(request);
    if (requested !== undefined) {
      return failure(id, UNSUPPORTED_VERSION, 'several servers are behind this: begin a session with initialize', {
        supported: LEGACY,
        requested,
      });
    }
    if (method === 'ping') return success(id, {});
    if (method === 'initialize') return this.#initialize(request);
    if (!this.#begun) return failure(id, INVALID_REQUEST, 'a session begins with initialize');
    if (Object.hasOwn(LISTS, method)) return success(id, await this.#list(method as ListMethod, params, signal));
    switch (method) {
      case 'tools/call':
        if (params.task !== undefined) return failure(id, INVALID_PARAMS, 'several servers are behind this: no tasks');
        return this.#named(request, 'tools/list', signal);
      case 'prompts/get':
        return this.#named(request, 'prompts/list', signal);
      case 'resources/read':
      case 'resources/subscribe':
      case 'resources/unsubscribe': {
        const { lane, uri } = this.#place(params.uri);
        if (!lane) return failure(id, INVALID_PARAMS, 'there is no such resource');
        return outward(await lane.request(method, { ...params, uri }, signal), lane.name);
      }
      case 'completion/complete':
        return this.#complete(request, signal);
      case 'logging/setLevel':
        await Promise.all(this.#with('logging').map((lane) => lane.request(method, params, signal)));
        return success(id, {});
      default:
        return failure(id, METHOD_NOT_FOUND, `several servers are behind this: ${method} is not for all of them`);
    }
  }

  async #initialize({ id, params = {} }: Request): Promise<Answer> {
    if (this.#begun) return failure(id, INVALID_REQUEST, 'the session has begun');
    this.#begun = true;
    const lanes = [...this.#lanes.values()];
    const opened = lanes.map((lane) => lane.begin(params));
    await Promise.race([Promise.all(opened), delay(FIRST_MS, undefined, { ref: false })]);
    const up = lanes.filter((lane) => lane.initialized);
    // the oldest revision that one of them speaks: what is passed on must be understood on both sides
    const versions = up.map((lane) => String(lane.initialized?.protocolVersion));
    const asked = String(params.protocolVersion);
    const protocolVersion = [...versions, LEGACY.includes(asked) ? asked : LEGACY[0]!].sort()[0]!;
    const instructions = up
      .flatMap(({ name, initialized }) => (initialized?.instructions ? [`# ${name}\n${initialized.instructions}`] : []))
      .join('\n\n');
    return success(id, {
      protocolVersion,
      capabilities: CAPABILITIES,
      serverInfo: { name: 'svc-proxy', version: '1' },
      ...(instructions !== '' && { instructions }),
    });
  }

  /** All pages of all servers that are there, as one. */
  async #list(method: ListMethod, params: Params, signal: AbortSignal): Promise<Result> {
    const { member, capability } = LISTS[method];
    const lists = await Promise.all(
      this.#with(capability).map(async (lane) => (await lane.list(method, params, signal)).map(lane.shown(method))),
    );
    return { [member]: lists.flat() };
  }

  async #named(request: Request, list: ListMethod, signal: AbortSignal): Promise<Answer> {
    const { id, method, params = {} } = request;
    const found = await this.#find(list, params.name, signal);
    if (!found) return failure(id, INVALID_PARAMS, `${String(params.name).slice(0, 200)}: no server has this name`);
    const { lane, name } = found;
    return outward(await lane.request(method, { ...params, name }, signal), lane.name);
  }

  async #complete({ id, method, params = {} }: Request, signal: AbortSignal): Promise<Answer> {
    const ref = isObject(params.ref) ? params.ref : {};
    if (ref.type === 'ref/prompt') {
      const found = await this.#find('prompts/list', ref.name, signal);
      if (found) return found.lane.request(method, { ...params, ref: { ...ref, name: found.name } }, signal);
    } else {
      const { lane, uri } = this.#place(ref.uri);
      if (lane) return lane.request(method, { ...params, ref: { ...ref, uri } }, signal);
    }
    return failure(id, INVALID_PARAMS, 'no server has what is to be completed');
  }

  async #find(
    list: ListMethod,
    outer: unknown,
    signal: AbortSignal,
  ): Promise<{ lane: Lane; name: string } | undefined> {
    if (typeof outer !== 'string') return undefined;
    const at = outer.indexOf(SEPARATOR);
    const lane = at > 0 ? this.#lanes.get(outer.slice(0, at)) : undefined;
    if (!lane) return undefined;
    const inner = outer.slice(at + SEPARATOR.length);
    const name = await lane.fullName(list, outer, inner, signal);
    return name === undefined ? undefined : { lane, name };
  }

  #place(uri: unknown): { lane: Lane | undefined; uri: string } {
    const text = String(uri);
    const at = text.indexOf('+');
    return { lane: at > 0 ? this.#lanes.get(text.slice(0, at)) : undefined, uri: text.slice(at + 1) };
  }

  #with(capability: string): Lane[] {
    return [...this.#lanes.values()].filter((lane) => lane.can(capability));
  }

  #fromLane(lane: Lane, message: Request | Notification): void {
    if ('id' in message) {
      const id = `svc-${++this.#next}`;
      this.#asked.set(id, { lane, id: message.id });
      this.#send({ ...message, id, ...this.#retold(lane, message, id) });
      return;
    }
    const { method, params = {} } = message;
    const list = /^notifications\/(tools|prompts|resources)\/list_changed$/.exec(method)?.[1];
    if (list !== undefined) this.#announce(list);
    else if (method === 'notifications/resources/updated') {
      this.#send({ ...message, params: { ...params, uri: `${lane.name}+${params.uri}` } });
    } else if (method === 'notifications/cancelled') {
      for (const [id, asked] of this.#asked) {
        if (asked.lane !== lane || asked.id !== params.requestId) continue;
        this.#asked.delete(id);
        this.#send({ ...message, params: { ...params, requestId: id } });
      }
    } else if (method === 'notifications/progress') {
      // of another server's call it has nothing to say
      if (lane.hasToken(params.progressToken)) this.#send(message);
    } else if (method === 'notifications/message') {
      const logger = typeof params.logger === 'string' ? `${lane.name}/${params.logger}` : lane.name;
      this.#send({ ...message, params: { ...params, logger } });
    } else this.#send(message);
  }

  /** Servers choose tokens for progress of their own accord, and two may choose the same. */
  #retold(lane: Lane, { params }: Request, of: Id): { params?: Params } {
    const token = params?._meta?.progressToken;
    if (token === undefined) return {};
    const progressToken = `svc-${++this.#next}`;
    this.#tokens.set(progressToken, { lane, token, of });
    return { params: { ...params, _meta: { ...params?._meta, progressToken } } };
  }

  #announce(what: string): void {
    if (this.#closed || this.#changed.has(what)) return;
    const timer = setTimeout(() => {
      this.#changed.delete(what);
      this.#send({ jsonrpc: '2.0', method: `notifications/${what}/list_changed` });
    }, ANNOUNCE_MS);
    this.#changed.set(what, timer);
  }

  #send(message: Message): void {
    this.#parts.client.send(message).catch((err) => {
      if (!this.#closed) this.#parts.log.debug({ err }, 'a message could not be delivered');
    });
  }
}

/** One server with its session, which is begun again when it has ended. */
class Lane {
  readonly name: string;
  readonly #member: Member;
  readonly #parts: ManyParts;
  readonly #toClient: (message: Request | Notification) => void;
  readonly #pending = new Map<Id, { settle: (answer: Answer) => void; token: unknown }>();
  readonly #ended = new AbortController();
  /** Long names by the short ones that the client knows, for each list. */
  readonly #aliases = new Map<string, string>();
  #session: Session | undefined;
  #link: Link | undefined;
  #params: Params = {};
  #clientReady = false;
  #next = 0;
  /** What the server said to `initialize`; undefined while it is away. */
  initialized: Result | undefined;
  /** The server came or went. */
  onChange: () => void = () => {};

  constructor(member: Member, parts: ManyParts, toClient: (message: Request | Notification) => void) {
    this.name = member.name;
    this.#member = member;
    this.#parts = parts;
    this.#toClient = toClient;
  }

  can(capability: string): boolean {
    const capabilities = this.initialized?.capabilities;
    return isObject(capabilities) && capabilities[capability] !== undefined;
  }

  hasToken(token: unknown): boolean {
    return token !== undefined && this.#pending.values().some((open) => open.token === token);
  }

  /** Resolves when the first attempt to begin the session has ended, whichever way. */
  begin(params: Params): Promise<void> {
    this.#params = params;
    return this.#open().then(
      () => {},
      (error) => void this.#retry(error, 0),
    );
  }

  async #open(): Promise<void> {
    const { log, caller, onPolicyChange } = this.#parts;
    const server = this.#member.connect();
    const link: Link = {
      start: async () => {},
      send: async (message) => this.#fromSession(message),
      close: async () => {},
    };
    const session = new Session({
      gate: this.#member.gate,
      log,
      client: link,
      server,
      caller,
      onPolicyChange,
      ending: async () => server.terminate?.(),
    });
    this.#link = link;
    this.#session = session;
    session.onClose = () => this.#lost(session);
    await session.start().catch(async (error) => {
      await session.close();
      throw error;
    });
    const signal = AbortSignal.any([AbortSignal.timeout(OPEN_MS), this.#ended.signal]);
    const answer = await this.request('initialize', this.#params, signal);
    if (!('result' in answer) || this.#session !== session) {
      await session.close();
      throw new Error('error' in answer ? answer.error.message : 'the session has ended');
    }
    this.initialized = answer.result;
    if (this.#clientReady) this.pass({ jsonrpc: '2.0', method: 'notifications/initialized' });
  }

  #lost(session: Session): void {
    if (this.#session !== session) return;
    const was = this.initialized !== undefined;
    this.#session = undefined;
    this.#link = undefined;
    this.initialized = undefined;
    for (const [id, { settle }] of this.#pending) settle(this.#away(id));
    this.#pending.clear();
    if (!was) return;
    this.onChange();
    void this.#retry(new Error('its session has ended'), 0);
  }

  async #retry(error: Error, tries: number): Promise<void> {
    const { signal } = this.#ended;
    for (let n = tries, why = error; !signal.aborted; n++) {
      const ms = BACKOFF_MS[Math.min(n, BACKOFF_MS.length - 1)]!;
      this.#parts.log.warn({ server: this.name, detail: why.message, retry_ms: ms }, 'a server is away');
      await delay(ms, undefined, { signal, ref: false }).catch(() => undefined);
      if (signal.aborted) return;
      try {
        await this.#open();
        this.#parts.log.info({ server: this.name }, 'a server is there');
        this.onChange();
        return;
      } catch (caught) {
        why = caught as Error;
      }
    }
  }

  /** Sends a request; resolves with its answer, which is an error where the server is away. Never rejects. */
  request(method: string, params: Params, signal: AbortSignal): Promise<Answer> {
    const id = ++this.#next;
    const link = this.#link;
    if (!link?.onmessage || (method !== 'initialize' && !this.initialized)) return Promise.resolve(this.#away(id));
    return new Promise((resolve) => {
      const cancel = () => {
        // MCP: `initialize` cannot be cancelled
        if (method !== 'initialize') {
          this.pass({ jsonrpc: '2.0', method: 'notifications/cancelled', params: { requestId: id } });
        }
        settle(failure(id, INTERNAL_ERROR, 'given up'));
      };
      const settle = (answer: Answer) => {
        signal.removeEventListener('abort', cancel);
        this.#pending.delete(id);
        resolve(answer);
      };
      signal.addEventListener('abort', cancel);
      this.#pending.set(id, { settle, token: params._meta?.progressToken });
      link.onmessage?.({ jsonrpc: '2.0', id, method, params });
    });
  }

  /** All pages of a list; what is there of it where the server fails. */
  async list(method: ListMethod, params: Params, signal: AbortSignal): Promise<Record<string, unknown>[]> {
    const items: Record<string, unknown>[] = [];
    let cursor: unknown;
    for (let page = 0; page < MOST_PAGES && items.length < MOST_ITEMS; page++) {
      const { cursor: _merged, ...rest } = params;
      const answer = await this.request(method, { ...rest, ...(cursor !== undefined && { cursor }) }, signal);
      if (!('result' in answer)) {
        this.#parts.log.warn({ server: this.name, method, code: answer.error.code }, 'a list is left out');
        break;
      }
      const found = answer.result[LISTS[method].member];
      if (Array.isArray(found)) items.push(...found.filter(isObject));
      cursor = answer.result.nextCursor;
      if (typeof cursor !== 'string') break;
    }
    if (method === 'tools/list' || method === 'prompts/list') this.#learn(method, items);
    return items.slice(0, MOST_ITEMS);
  }

  /** An item as the client sees it. */
  shown(method: ListMethod): (item: Record<string, unknown>) => Record<string, unknown> {
    return (item) => {
      if (method === 'resources/list') return { ...item, uri: `${this.name}+${item.uri}` };
      if (method === 'resources/templates/list') return { ...item, uriTemplate: `${this.name}+${item.uriTemplate}` };
      // of tasks nothing is passed on
      const { execution: _tasks, ...rest } = item;
      return { ...rest, name: this.outerName(String(item.name)) };
    };
  }

  outerName(name: string): string {
    const outer = `${this.name}${SEPARATOR}${name}`;
    if (outer.length <= MOST_NAME) return outer;
    const sum = createHash('sha256').update(name).digest('hex').slice(0, 8);
    return `${outer.slice(0, MOST_NAME - sum.length - 1)}_${sum}`;
  }

  /** The name at the server; undefined for a short one that stands for none. */
  async fullName(list: ListMethod, outer: string, inner: string, signal: AbortSignal): Promise<string | undefined> {
    if (outer.length < MOST_NAME || !/_[0-9a-f]{8}$/.test(outer)) return inner;
    const key = `${list} ${outer}`;
    if (!this.#aliases.has(key)) await this.list(list, {}, signal);
    return this.#aliases.get(key) ?? (outer.length === MOST_NAME ? inner : undefined);
  }

  /** A short name that is also the name of another one stands for that one alone. */
  #learn(list: ListMethod, items: readonly Record<string, unknown>[]): void {
    const names = items.map(({ name }) => String(name));
    const plain = new Set(names.map((name) => `${this.name}${SEPARATOR}${name}`));
    for (const name of names) {
      const outer = this.outerName(name);
      if (outer.endsWith(`${SEPARATOR}${name}`)) continue;
      if (!plain.has(outer)) this.#aliases.set(`${list} ${outer}`, name);
    }
  }

  /** A notification of the client for every server. */
  notify(message: Notification): void {
    if (message.method === 'notifications/initialized') this.#clientReady = true;
    if (this.initialized) this.pass(message);
  }

  pass(message: Message): void {
    this.#link?.onmessage?.(message);
  }

  #fromSession(message: Message): void {
    if ('method' in message) this.#toClient(message);
    else this.#pending.get(message.id)?.settle(message);
  }

  #away(id: Id): Answer {
    return failure(id, INTERNAL_ERROR, `the server ${this.name} is away; it is tried again`);
  }

  async close(): Promise<void> {
    this.#ended.abort();
    await this.#session?.close();
  }
}

/** An answer with the names of resources as the client knows them. */
function outward(answer: Answer, server: string): Answer {
  if (!('result' in answer)) return answer;
  const { result } = answer;
  const resource = (item: unknown) =>
    isObject(item) && typeof item.uri === 'string' ? { ...item, uri: `${server}+${item.uri}` } : item;
  const content = (item: unknown): unknown => {
    if (!isObject(item)) return item;
    if (item.type === 'resource_link') return resource(item);
    return item.type === 'resource' ? { ...item, resource: resource(item.resource) } : item;
  };
  return {
    ...answer,
    result: {
      ...result,
      ...(Array.isArray(result.content) && { content: result.content.map(content) }),
      ...(Array.isArray(result.contents) && { contents: result.contents.map(resource) }),
      ...(Array.isArray(result.messages) && {
        messages: result.messages.map((one) => (isObject(one) ? { ...one, content: content(one.content) } : one)),
      }),
    },
  };
}
