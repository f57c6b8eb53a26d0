import { randomUUID } from 'node:crypto';
import { canonicalJson } from '../../lib/canonical-json.ts';
import type { Log } from '../../lib/log.ts';
import { Muted } from './muted.ts';
import { isSessionLost, MASKED_MEANWHILE, NoSession, type On, type Place, Unreachable, unreachable } from './place.ts';
import {
  type Answer,
  CAPABILITIES_KEY,
  CLIENT_KEY,
  failure,
  INTERNAL_ERROR,
  INVALID_PARAMS,
  isObject,
  LEGACY,
  type Link,
  LOG_LEVEL_KEY,
  METHOD_NOT_FOUND,
  type Message,
  MODERN,
  type Notification,
  type Request,
  type Result,
  SERVER_KEY,
  SUBSCRIPTION_KEY,
  success,
  VERSION_KEY,
} from './wire.ts';

/** A session that was unused for this long is ended; so is a request whose client sent no further input. */
const IDLE_MS = 10 * 60_000;
const MOST_SESSIONS = 1000;
const MOST_SESSIONS_OF_OWNER = 20;
/** For these, a client may be asked for input. */
const INPUT_METHODS: ReadonlySet<string> = new Set(['tools/call', 'prompts/get', 'resources/read']);
/** Methods whose results clients may cache (2026-07-28, "Caching"). */
const CACHEABLE = /^(?:server\/discover|(?:tools|prompts|resources|resources\/templates)\/list|resources\/read)$/;
const NOT_FOUND = -32002;
const MOST_UNASKED = 10;

/** A server of the old eras, for clients of the stateless revision: sessions are kept per owner and kind of client. */
export class LegacyServers {
  readonly #place: Place;
  readonly #log: Log;
  readonly #sessions = new Map<string, LegacyServer>();
  readonly #sweep: NodeJS.Timeout;

  constructor(place: Place, { log }: { log: Log }) {
    this.#place = place;
    this.#log = log;
    this.#sweep = setInterval(() => {
      for (const [key, session] of this.#sessions) if (session.isIdle(IDLE_MS)) this.#drop(key, session);
    }, 60_000).unref();
  }

  async exchange(request: Request, on: On & { owner: string }): Promise<Answer | undefined> {
    const { [CAPABILITIES_KEY]: capabilities = {} } = request.params?._meta ?? {};
    const key = `${on.owner}\n${canonicalJson(capabilities)}`;
    let session = this.#sessions.get(key);
    if (!session) {
      this.#makeRoom(on.owner);
      session = new LegacyServer(this.#place, this.#log, request);
      const made = session;
      made.onclose = () => {
        if (this.#sessions.get(key) === made) this.#sessions.delete(key);
      };
      this.#sessions.set(key, session);
    }
    return session.exchange(request, on);
  }

  /** The session that was idle longest makes room: one of the owner's if it is at its limit, else one of all. */
  #makeRoom(owner: string): void {
    const own = [...this.#sessions].filter(([key]) => key.startsWith(`${owner}\n`));
    const crowd =
      own.length >= MOST_SESSIONS_OF_OWNER ? own : this.#sessions.size >= MOST_SESSIONS ? [...this.#sessions] : [];
    if (crowd.length === 0) return;
    const idle = crowd.filter(([, one]) => one.isIdle(0)).sort(([, a], [, b]) => a.usedAt - b.usedAt)[0];
    if (!idle) throw new Unreachable('too many sessions are in use', { sent: false });
    this.#drop(...idle);
  }

  #drop(key: string, session: LegacyServer): void {
    this.#sessions.delete(key);
    void session.close();
  }

  async close(): Promise<void> {
    clearInterval(this.#sweep);
    await Promise.all([...this.#sessions.values()].map((session) => session.close()));
  }
}

/** A request that is open at the server. */
interface Open {
  request: Request;
  on: On;
  /** What the server asked that the client has not answered yet. */
  asked: Map<string, Request>;
  answer: Answer | undefined;
  /** Called when an answer or a question has come, or the session has ended. */
  wake: () => void;
  lost?: true;
  /** Set until its client sends the input. */
  state?: string;
  expires: NodeJS.Timeout | undefined;
}

class LegacyServer {
  readonly #link: Link & { terminate?: () => Promise<void> };
  readonly #log: Log;
  readonly #begun: Promise<Result>;
  readonly #open = new Map<number, Open>();
  readonly #muted = new Muted();
  readonly #listeners = new Set<{ request: Request; on: On; wants: Record<string, unknown>; end: () => void }>();
  readonly #watched = new Map<string, number>();
  /** What the server wanted to know from the client while no request was open to ask it with. */
  readonly #unasked = new Map<string, Request>();
  #next = 0;
  #level: unknown;
  #closed = false;
  usedAt = Date.now();
  onclose = () => {};

  constructor(place: Place, log: Log, first: Request) {
    this.#link = place.connect();
    this.#log = log;
    this.#link.onmessage = (message) => this.#take(message);
    this.#link.onerror = (err) => log.debug({ err }, 'the tool server');
    this.#link.onclose = () => void this.close();
    this.#begun = this.#begin(first);
    // each exchange awaits it
    this.#begun.catch(() => void this.close());
  }

  isIdle(ms: number): boolean {
    return this.#open.size === 0 && this.#listeners.size === 0 && Date.now() - this.usedAt >= ms;
  }

  async #begin(first: Request): Promise<Result> {
    const { _meta } = first.params ?? {};
    await this.#link.start();
    const params = {
      protocolVersion: LEGACY[0],
      capabilities: _meta?.[CAPABILITIES_KEY],
      clientInfo: _meta?.[CLIENT_KEY] ?? { name: 'unnamed', version: '0' },
    };
    const answer = await this.#ask('initialize', params, AbortSignal.timeout(60_000));
    if (!answer || 'error' in answer) throw new Unreachable('the tool server did not begin a session');
    this.#link.setProtocolVersion?.(String(answer.result.protocolVersion));
    await this.#link.send({ jsonrpc: '2.0', method: 'notifications/initialized' });
    return answer.result;
  }

  async exchange(request: Request, on: On): Promise<Answer | undefined> {
    let server: Result;
    try {
      server = await this.#begun;
    } catch (error) {
      if (on.signal.aborted) return undefined;
      throw new NoSession((error as Error).message);
    }
    // the client may have left meanwhile
    if (on.signal.aborted) return undefined;
    this.usedAt = Date.now();
    try {
      const answer = await this.#exchange(request, on, server);
      return answer && this.#shown(request, answer, server);
    } finally {
      this.usedAt = Date.now();
    }
  }

  async #exchange(request: Request, on: On, server: Result): Promise<Answer | undefined> {
    const capabilities = (isObject(server.capabilities) ? server.capabilities : {}) as Record<
      string,
      object | undefined
    >;
    const { id, method, params = {} } = request;
    if (method === 'server/discover') {
      const { instructions } = server;
      const own = { supportedVersions: [MODERN], capabilities, ...(instructions !== undefined && { instructions }) };
      return success(id, own);
    }
    if (method === 'subscriptions/listen') return this.#listen(request, on, capabilities);
    if (REMOVED.has(method)) return failure(id, METHOD_NOT_FOUND, `${method} is not of this revision`);
    const { requestState, inputResponses } = params;
    if (requestState !== undefined) return this.#resume(request, on, requestState, inputResponses);

    const level = params._meta?.[LOG_LEVEL_KEY];
    if (level !== undefined && level !== this.#level && capabilities.logging) {
      this.#level = level;
      await this.#ask('logging/setLevel', { level }, on.signal);
      if (on.signal.aborted) return undefined;
    }
    const { inputResponses: _unasked, _meta, ...sent } = params;
    const number = ++this.#next;
    const { [VERSION_KEY]: _v, [CAPABILITIES_KEY]: _c, [CLIENT_KEY]: _i, [LOG_LEVEL_KEY]: _l, ...meta } = _meta ?? {};
    if (meta.progressToken !== undefined) meta.progressToken = number;
    const open: Open = { request, on, asked: new Map(), answer: undefined, wake: () => {}, expires: undefined };
    this.#open.set(number, open);
    if (INPUT_METHODS.has(method) && !on.masked) {
      for (const [key, asked] of this.#unasked) open.asked.set(key, asked);
      this.#unasked.clear();
    }
    const message = { jsonrpc: '2.0' as const, id: number, method, params: { ...sent, _meta: meta } };
    return this.#answered(number, open, () => this.#send(message));
  }

  /** Whatever comes first for an open request: its answer, or what the server wants to know from the client. */
  async #answered(number: number, open: Open, begin: () => Promise<void>): Promise<Answer | undefined> {
    const { request, on } = open;
    const { promise, resolve } = Promise.withResolvers<void>();
    open.wake = resolve;
    on.signal.addEventListener('abort', resolve as () => void, { once: true });
    try {
      // a server that does not read what it is sent must not hold up a client that leaves
      await Promise.race([begin(), promise]);
      if (!open.answer && !open.lost && open.asked.size === 0 && !on.signal.aborted) await promise;
    } catch (error) {
      this.#open.delete(number);
      throw error;
    } finally {
      on.signal.removeEventListener('abort', resolve as () => void);
      open.wake = () => {};
    }
    if (open.lost) throw new Unreachable('the tool server has ended the session');
    if (open.answer) {
      this.#open.delete(number);
      return { ...open.answer, id: request.id };
    }
    if (on.signal.aborted) {
      this.#abandon(number, open);
      return undefined;
    }
    // what arrives at the same moment is asked together
    await new Promise((soon) => setImmediate(soon));
    const inputRequests = Object.fromEntries(
      Array.from(open.asked, ([name, { method, params }]) => [name, { method, ...(params && { params }) }]),
    );
    open.state = randomUUID();
    open.expires = setTimeout(() => this.#abandon(number, open), IDLE_MS).unref();
    return success(request.id, { resultType: 'input_required', inputRequests, requestState: open.state });
  }

  /** Continues a request that waits for input. Its state is valid once, and only for the same request. */
  async #resume(request: Request, on: On, state: unknown, inputs: unknown): Promise<Answer | undefined> {
    const [number, open] = [...this.#open].find(([, one]) => one.state !== undefined && one.state === state) ?? [];
    const given = isObject(inputs) ? inputs : {};
    if (number === undefined || !open || essence(open.request) !== essence(request)) {
      return failure(request.id, INVALID_PARAMS, 'the request state is not of this request, or was used');
    }
    delete open.state;
    clearTimeout(open.expires);
    open.request = request;
    open.on = on;
    return this.#answered(number, open, async () => {
      const sent = [...open.asked].map(([name, { id }]) => {
        const result = given[name];
        return isObject(result) && open.asked.delete(name) && this.#send({ jsonrpc: '2.0', id, result });
      });
      await Promise.all(sent);
    });
  }

  #abandon(number: number, open: Open): void {
    if (!this.#open.delete(number)) return;
    clearTimeout(open.expires);
    if (open.on.masked) this.#muted.add(number);
    this.#send({ jsonrpc: '2.0', method: 'notifications/cancelled', params: { requestId: number } }).catch(() => {});
    for (const { id } of open.asked.values()) {
      this.#send(failure(id, INTERNAL_ERROR, 'the client does not answer')).catch(() => {});
    }
  }

  async #listen(
    request: Request,
    on: On,
    capabilities: Record<string, object | undefined>,
  ): Promise<Answer | undefined> {
    const asked = isObject(request.params?.notifications) ? request.params.notifications : {};
    const changes = (part: string) =>
      (capabilities[part] as { listChanged?: boolean } | undefined)?.listChanged === true;
    const uris = Array.isArray(asked.resourceSubscriptions) ? asked.resourceSubscriptions.map(String) : [];
    const watches = (capabilities.resources as { subscribe?: boolean } | undefined)?.subscribe && uris.length > 0;
    const wants: Record<string, unknown> = {
      ...(asked.toolsListChanged === true && changes('tools') && { toolsListChanged: true }),
      ...(asked.promptsListChanged === true && changes('prompts') && { promptsListChanged: true }),
      ...(asked.resourcesListChanged === true && changes('resources') && { resourcesListChanged: true }),
      ...(watches && { resourceSubscriptions: uris }),
    };
    const tag = { [SUBSCRIPTION_KEY]: request.id };
    const { promise, resolve } = Promise.withResolvers<void>();
    const listener = { request, on, wants, end: () => resolve() };
    const watched: string[] = [];
    try {
      for (const uri of watches ? uris : []) {
        // each takes the server some time, during which the client may leave
        if (on.signal.aborted) return undefined;
        watched.push(uri);
        await this.#watch(uri, 1);
      }
      this.#listeners.add(listener);
      on.signal.addEventListener('abort', listener.end, { once: true });
      if (on.signal.aborted) return undefined;
      on.notify({
        jsonrpc: '2.0',
        method: 'notifications/subscriptions/acknowledged',
        params: { _meta: tag, notifications: wants },
      });
      if (!this.#closed) await promise;
      // it ends with the session: the client has to listen again
      return this.#closed ? success(request.id, { _meta: tag }) : undefined;
    } finally {
      this.#listeners.delete(listener);
      on.signal.removeEventListener('abort', listener.end);
      // no one waits for that
      if (!this.#closed) for (const uri of watched) this.#watch(uri, -1).catch(() => {});
    }
  }

  async #watch(uri: string, by: 1 | -1): Promise<void> {
    const before = this.#watched.get(uri) ?? 0;
    if (before + by > 0) this.#watched.set(uri, before + by);
    else this.#watched.delete(uri);
    const method = by > 0 && before === 0 ? 'resources/subscribe' : before + by === 0 && 'resources/unsubscribe';
    if (method) await this.#ask(method, { uri }, AbortSignal.timeout(30_000));
  }

  /** Sends a request of the proxy's own. */
  async #ask(method: string, params: Record<string, unknown>, signal: AbortSignal): Promise<Answer | undefined> {
    const number = ++this.#next;
    const request: Request = { jsonrpc: '2.0', id: number, method, params };
    const on = { notify: () => {}, signal };
    const open: Open = { request, on, asked: new Map(), answer: undefined, wake: () => {}, expires: undefined };
    this.#open.set(number, open);
    return this.#answered(number, open, () => this.#send(request));
  }

  async #send(message: Message): Promise<void> {
    try {
      await this.#link.send(message);
    } catch (error) {
      // as after a restart of the server: the next request starts another session
      if (isSessionLost(error)) void this.close();
      throw unreachable(error);
    }
  }

  #take(message: Message): void {
    if (!('method' in message)) {
      const open = this.#open.get(message.id as number);
      this.#muted.answered(message.id);
      if (!open) return;
      open.answer = message;
      open.wake();
    } else if ('id' in message) this.#asked(message);
    else this.#notice(message);
  }

  /** Keeps a question of the server for the client, which is asked with the answer to the request that it is for. */
  #asked(message: Request): void {
    const reply = (answer: Answer) => this.#send(answer).catch(() => {});
    if (message.method === 'ping') {
      void reply(success(message.id, {}));
      return;
    }
    // it does not say which request it is for; if several are open, it is most likely the last
    if (this.#masks) {
      void reply(failure(message.id, INTERNAL_ERROR, MASKED_MEANWHILE));
      return;
    }
    const key = `input-${String(message.id)}`;
    const open = [...this.#open.values()].filter(({ request }) => INPUT_METHODS.has(request.method)).at(-1);
    // as servers do at their start; the roots can be given with the first call
    if (!open && message.method === 'roots/list' && this.#unasked.size < MOST_UNASKED) {
      this.#unasked.set(key, message);
      return;
    }
    if (!open || !/^(?:elicitation\/create|sampling\/createMessage|roots\/list)$/.test(message.method)) {
      void reply(failure(message.id, METHOD_NOT_FOUND, 'the client cannot be asked this'));
      return;
    }
    open.asked.set(key, message);
    open.wake();
  }

  get #masks(): boolean {
    return this.#muted.any || this.#open.values().some(({ on }) => on.masked);
  }

  #notice(message: Notification): void {
    const { method, params } = message;
    if (method === 'notifications/progress') {
      const open = this.#open.get(params?.progressToken as number);
      const progressToken = open?.request.params?._meta?.progressToken;
      if (progressToken !== undefined) open?.on.notify({ ...message, params: { ...params, progressToken } });
    } else if (method === 'notifications/message') {
      // it does not say which request it belongs to
      if (this.#masks) return;
      const asks = ({ request }: Open) => request.params?._meta?.[LOG_LEVEL_KEY] !== undefined;
      [...this.#open.values()].findLast(asks)?.on.notify(message);
    } else if (method in LISTENED || method === 'notifications/resources/updated') {
      for (const { request, on, wants } of this.#listeners) {
        const uris = (wants.resourceSubscriptions ?? []) as unknown[];
        if (method in LISTENED ? !wants[LISTENED[method]!] : !uris.includes(params?.uri)) continue;
        on.notify({ ...message, params: { ...params, _meta: { ...params?._meta, [SUBSCRIPTION_KEY]: request.id } } });
      }
    }
  }

  #shown({ id, method }: Request, answer: Answer, server: Result): Answer {
    if ('error' in answer) {
      const { code, ...error } = answer.error;
      return { jsonrpc: '2.0', id, error: { ...error, code: code === NOT_FOUND ? INVALID_PARAMS : code } };
    }
    const { result } = answer;
    const _meta = { ...result._meta, ...(server.serverInfo !== undefined && { [SERVER_KEY]: server.serverInfo }) };
    const kept = CACHEABLE.test(method) && { ttlMs: 0, cacheScope: 'private' };
    return success(id, { resultType: 'complete', ...kept, ...result, _meta });
  }

  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    this.onclose();
    for (const open of this.#open.values()) {
      open.lost = true;
      clearTimeout(open.expires);
      open.wake();
    }
    this.#open.clear();
    for (const { end } of this.#listeners) end();
    await this.#link.terminate?.().catch((err) => this.#log.debug({ err }, 'a session was not ended at the server'));
    await this.#link.close().catch(() => {});
  }
}

/** Part of the old eras only. */
const REMOVED: ReadonlySet<string> = new Set([
  'initialize',
  'ping',
  'logging/setLevel',
  'resources/subscribe',
  'resources/unsubscribe',
]);

/** The filter member with which a client requests each of them. */
const LISTENED: Readonly<Record<string, string>> = {
  'notifications/tools/list_changed': 'toolsListChanged',
  'notifications/prompts/list_changed': 'promptsListChanged',
  'notifications/resources/list_changed': 'resourcesListChanged',
};

/** What must be the same in every round of one request. */
function essence({ method, params }: Request): string {
  const { _meta, inputResponses: _given, requestState: _state, ...asked } = params ?? {};
  return canonicalJson({ method, asked });
}
