import { createHash } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import type { Log } from '../../lib/log.ts';
import { faultOf, type Served, type Serving } from './exchange.ts';
import { RELATED_TASK } from './tasks.ts';
import { TASKS } from './waiting.ts';
import {
  type Answer,
  failure,
  HEADER_MISMATCH,
  INTERNAL_ERROR,
  INVALID_PARAMS,
  isObject,
  LEGACY,
  METHOD_NOT_FOUND,
  MODERN,
  type Notification,
  type Params,
  type Request,
  type Result,
  SERVER_KEY,
  SUBSCRIPTION_KEY,
  success,
} from './wire.ts';

/** Between a server and one of its names. Server names contain no `_`, so the first separator ends the server's name. */
const SEPARATOR = '__';
/** Clients pass tool names on to models that accept no longer ones. */
const MOST_NAME = 64;
/** How long to wait for all servers to report what they have; later ones announce their lists. */
const FIRST_MS = 10_000;
const MOST_PAGES = 50;
const MOST_ITEMS = 10_000;
/** How long what a server reported is considered valid. */
const KNOWN_MS = 60_000;
/** How long to wait before an unreachable server is asked again. */
const BACKOFF_MS = [1000, 2000, 5000, 15_000, 60_000];
/** Several servers may report at the same time that their lists have changed. */
const ANNOUNCE_MS = 50;

/** The lists, by the method that requests them: the result's member that holds it, and the server capability that it needs. */
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
  // clients wait for held calls as tasks
  extensions: { [TASKS]: {} },
};
/** What a client may be notified of: the member of its filter, and the notification. */
const CHANGES = {
  toolsListChanged: 'notifications/tools/list_changed',
  promptsListChanged: 'notifications/prompts/list_changed',
  resourcesListChanged: 'notifications/resources/list_changed',
} as const;

/**
 * Several servers as one, for clients of the revision without sessions. Each is asked through its own exchange, with its own
 * gate, so that decisions are made as if it were alone: policies see the tool's own name, in its own server.
 *
 * `files__read` is the tool `read` of the server `files`; prompts and tasks are named alike, and the resource `file:///a` is
 * `files+file:///a`. An unreachable server is left out of the lists, and asked again; its names remain reserved.
 */
export class Join implements Served {
  readonly #members: ReadonlyMap<string, Member>;
  readonly #log: Log;

  /** The servers by their names: lower-case letters, digits and `-`, a letter first. */
  /** `rests`: an unreachable server is left alone for a growing time, because each request would start a process. */
  constructor(servers: ReadonlyMap<string, Served>, { log, rests = false }: { log: Log; rests?: boolean }) {
    this.#log = log;
    this.#members = new Map(Array.from(servers, ([name, served]) => [name, new Member(name, served, { log, rests })]));
  }

  async serve(request: Request, from: Serving): Promise<Answer | undefined> {
    const { id, method, params = {} } = request;
    const fault = faultOf(request);
    if (fault) return fault;
    const ofAll = method === 'server/discover' || method === 'subscriptions/listen' || Object.hasOwn(LISTS, method);
    // an action is refused, and recorded as denied, by the server that it is for
    if (ofAll && from.mismatch !== undefined) {
      return failure(id, HEADER_MISMATCH, `Header mismatch: ${from.mismatch}`);
    }
    if (method === 'server/discover') return this.#discover(request, from);
    if (Object.hasOwn(LISTS, method)) return this.#list(request, method as ListMethod, from);
    if (method === 'subscriptions/listen') return new Listening([...this.#members.values()], request, from).answer;
    if (method === 'tools/call' && params.task !== undefined) {
      return failure(id, INVALID_PARAMS, 'several servers are behind this: no tasks of 2025-11-25');
    }
    const found = await this.#find(method, params, request, from);
    if (found) return found.member.ask({ ...request, params: { ...params, ...found.params } }, from);
    // whichever server it is for, the message contradicts itself
    if (from.mismatch !== undefined) return failure(id, HEADER_MISMATCH, `Header mismatch: ${from.mismatch}`);
    const none: Record<string, string> = {
      'tools/call': `${String(params.name).slice(0, 200)}: no server has this name`,
      'prompts/get': `${String(params.name).slice(0, 200)}: no server has this name`,
      'resources/read': 'there is no such resource',
      'completion/complete': 'no server has what is to be completed',
    };
    if (Object.hasOwn(none, method)) return failure(id, INVALID_PARAMS, none[method]!);
    if (method.startsWith('tasks/')) return failure(id, INVALID_PARAMS, 'there is no such task');
    return failure(id, METHOD_NOT_FOUND, `several servers are behind this: ${method} is not for all of them`);
  }

  /** The server that the request is for, and the parameters that have another name there. */
  async #find(
    method: string,
    params: Params,
    request: Request,
    from: Serving,
  ): Promise<{ member: Member; params: Params } | undefined> {
    const named = async (list: ListMethod, outer: unknown) => {
      const { member, inner } = this.#split(outer);
      const name = member && (await member.fullName(list, String(outer), inner, request, from));
      return member && name !== undefined ? { member, name } : undefined;
    };
    switch (method) {
      case 'tools/call':
      case 'prompts/get': {
        const found = await named(method === 'tools/call' ? 'tools/list' : 'prompts/list', params.name);
        return found && { member: found.member, params: { name: found.name } };
      }
      case 'resources/read': {
        const { member, uri } = this.#place(params.uri);
        return member && { member, params: { uri } };
      }
      case 'completion/complete': {
        const ref = isObject(params.ref) ? params.ref : {};
        if (ref.type === 'ref/prompt') {
          const found = await named('prompts/list', ref.name);
          return found && { member: found.member, params: { ref: { ...ref, name: found.name } } };
        }
        const { member, uri } = this.#place(ref.uri);
        return member && { member, params: { ref: { ...ref, uri } } };
      }
      default: {
        if (!method.startsWith('tasks/')) return undefined;
        const { member, inner } = this.#split(params.taskId);
        return member && { member, params: { taskId: inner } };
      }
    }
  }

  #split(outer: unknown): { member: Member | undefined; inner: string } {
    const text = typeof outer === 'string' ? outer : '';
    const at = text.indexOf(SEPARATOR);
    return {
      member: at > 0 ? this.#members.get(text.slice(0, at)) : undefined,
      inner: text.slice(at + SEPARATOR.length),
    };
  }

  #place(uri: unknown): { member: Member | undefined; uri: string } {
    const text = String(uri);
    const at = text.indexOf('+');
    return { member: at > 0 ? this.#members.get(text.slice(0, at)) : undefined, uri: text.slice(at + 1) };
  }

  async #discover(request: Request, from: Serving): Promise<Answer> {
    const members = [...this.#members.values()];
    const known = await soon(members.map((member) => member.discover(request, from)));
    const instructions = members
      .flatMap(({ name }, n) => {
        const said = known[n]?.instructions;
        return typeof said === 'string' && said !== '' ? [`# ${name}\n${said}`] : [];
      })
      .join('\n\n');
    return success(request.id, {
      resultType: 'complete',
      supportedVersions: [MODERN, ...LEGACY],
      capabilities: CAPABILITIES,
      ttlMs: 0,
      cacheScope: 'private',
      ...(instructions !== '' && { instructions }),
      _meta: { [SERVER_KEY]: { name: 'svc-proxy', version: '1' } },
    });
  }

  /** All pages from all reachable servers, as one list. */
  async #list(request: Request, method: ListMethod, from: Serving): Promise<Answer> {
    const { member: list, capability } = LISTS[method];
    const lists = await Promise.all(
      [...this.#members.values()].map(async (member) => {
        const { capabilities } = (await soon([member.discover(request, from)]))[0] ?? {};
        if (!isObject(capabilities) || capabilities[capability] === undefined) return undefined;
        return member.list(method, request, from);
      }),
    );
    const there = lists.filter((one) => one !== undefined);
    this.#log.debug({ method, servers: there.length }, 'lists were joined');
    return success(request.id, {
      resultType: 'complete',
      // an unreachable server may come back at any time
      ttlMs: there.length < lists.length ? 0 : Math.min(...there.map(({ ttlMs }) => ttlMs)),
      cacheScope: 'private',
      [list]: there.flatMap(({ items }) => items),
    });
  }
}

/** What arrived in time, in order. */
async function soon<T>(all: readonly Promise<T>[]): Promise<(T | undefined)[]> {
  const found: (T | undefined)[] = all.map(() => undefined);
  const noted = all.map((one, n) =>
    one.then((value) => {
      found[n] = value;
    }),
  );
  const ended = new AbortController();
  await Promise.race([
    Promise.all(noted),
    delay(FIRST_MS, undefined, { ref: false, signal: ended.signal }).catch(() => {}),
  ]);
  ended.abort();
  return found;
}

/** One of the servers, under the names that clients know it by. */
class Member {
  readonly name: string;
  readonly #served: Served;
  readonly #log: Log;
  readonly #rests: boolean;
  /** The long names by the short ones that clients know, per list. */
  readonly #aliases = new Map<string, string>();
  #failures = 0;
  #againAt = 0;
  /** What it reported about itself. */
  #known: { result: Result; until: number } | undefined;

  constructor(name: string, served: Served, { log, rests }: { log: Log; rests: boolean }) {
    this.name = name;
    this.#served = served;
    this.#log = log;
    this.#rests = rests;
  }

  /** How long it is left alone because it is unreachable. */
  get awayMs(): number {
    return Math.max(0, this.#againAt - Date.now());
  }

  /** The answer, with the names that clients know; an error if the server is unreachable. */
  async ask(request: Request, from: Serving): Promise<Answer | undefined> {
    const { id, method } = request;
    if (this.awayMs > 0) return this.#away(request);
    const answer = await this.#served.serve(request, {
      ...from,
      notify: (message) => {
        const shown = this.told(message);
        if (shown) from.notify(shown);
      },
    });
    if (!answer) return undefined;
    if (!isAway(answer)) {
      if (this.#failures > 0) this.#log.info({ server: this.name }, 'a server is there');
      this.#failures = 0;
      return this.#outward(method, answer);
    }
    this.left();
    // it may have done what was asked
    if (wasSent(answer)) return answer;
    return this.#away({ ...request, id });
  }

  /** Notes that it is unreachable. */
  left(): void {
    if (this.#rests) this.#againAt = Date.now() + backoff(this.#failures);
    this.#failures++;
    this.#known = undefined;
    this.#log.warn({ server: this.name }, 'a server is away');
  }

  async discover({ id, params }: Request, from: Serving): Promise<Result | undefined> {
    if (this.#known && Date.now() < this.#known.until && this.awayMs === 0) return this.#known.result;
    const asked = { jsonrpc: '2.0' as const, id, method: 'server/discover', params: { _meta: params?._meta ?? {} } };
    const { mismatch: _none, headers: _of, ...rest } = from;
    const answer = await this.ask(asked, rest);
    if (!answer || 'error' in answer) return undefined;
    this.#known = { result: answer.result, until: Date.now() + KNOWN_MS };
    return answer.result;
  }

  /** All pages of a list; what could be read of it if the server fails. */
  async list(method: ListMethod, { id, params = {} }: Request, from: Serving) {
    const found: Record<string, unknown>[] = [];
    let ttlMs = Number.MAX_SAFE_INTEGER;
    let cursor: unknown;
    for (let page = 0; page < MOST_PAGES && found.length < MOST_ITEMS; page++) {
      const { cursor: _merged, ...rest } = params;
      const asked = { ...rest, ...(cursor !== undefined && { cursor }) };
      const answer = await this.ask({ jsonrpc: '2.0', id, method, params: asked }, from);
      if (!answer || 'error' in answer) {
        this.#log.warn({ server: this.name, method, code: answer?.error.code }, 'a list is left out');
        ttlMs = 0;
        break;
      }
      const items = answer.result[LISTS[method].member];
      if (Array.isArray(items)) found.push(...items.filter(isObject));
      ttlMs = Math.min(ttlMs, Number(answer.result.ttlMs ?? 0));
      cursor = answer.result.nextCursor;
      if (typeof cursor !== 'string') break;
    }
    if (method === 'tools/list' || method === 'prompts/list') this.#learn(method, found);
    return { ttlMs, items: found.slice(0, MOST_ITEMS).map((item) => this.#shown(method, item)) };
  }

  #shown(method: ListMethod, item: Record<string, unknown>): Record<string, unknown> {
    if (method === 'resources/list') return { ...item, uri: this.outerUri(item.uri) };
    if (method === 'resources/templates/list') return { ...item, uriTemplate: this.outerUri(item.uriTemplate) };
    // tasks of 2025-11-25 are started by the client, in its session
    const { execution: _tasks, ...rest } = item;
    return { ...rest, name: this.#outerName(String(item.name)) };
  }

  outerUri(uri: unknown): string {
    return `${this.name}+${uri}`;
  }

  outerTask(taskId: unknown): string {
    return `${this.name}${SEPARATOR}${taskId}`;
  }

  #outerName(name: string): string {
    const outer = `${this.name}${SEPARATOR}${name}`;
    if (outer.length <= MOST_NAME) return outer;
    const sum = createHash('sha256').update(name).digest('hex').slice(0, 8);
    return `${outer.slice(0, MOST_NAME - sum.length - 1)}_${sum}`;
  }

  /** The name at the server; undefined for a short name that stands for none. */
  async fullName(
    list: ListMethod,
    outer: string,
    inner: string,
    { id, params }: Request,
    from: Serving,
  ): Promise<string | undefined> {
    if (outer.length < MOST_NAME || !/_[0-9a-f]{8}$/.test(outer)) return inner;
    const key = `${list} ${outer}`;
    const { mismatch: _none, headers: _of, ...rest } = from;
    if (!this.#aliases.has(key)) {
      await this.list(list, { jsonrpc: '2.0', id, method: list, params: { _meta: params?._meta ?? {} } }, rest);
    }
    return this.#aliases.get(key) ?? (outer.length === MOST_NAME ? inner : undefined);
  }

  /** A short name that is also another tool's own name stands for that one only. */
  #learn(list: ListMethod, items: readonly Record<string, unknown>[]): void {
    const names = items.map(({ name }) => String(name));
    const plain = new Set(names.map((name) => `${this.name}${SEPARATOR}${name}`));
    for (const name of names) {
      const outer = this.#outerName(name);
      if (outer.endsWith(`${SEPARATOR}${name}`)) continue;
      if (!plain.has(outer) && this.#aliases.size < MOST_ITEMS) this.#aliases.set(`${list} ${outer}`, name);
    }
  }

  /** The server's notification, with the names that clients know. */
  told(message: Notification): Notification {
    const { method, params = {} } = message;
    const logger = typeof params.logger === 'string' ? `${this.name}/${params.logger}` : this.name;
    return {
      ...message,
      params: {
        ...this.#related(params),
        ...(method === 'notifications/resources/updated' && { uri: this.outerUri(params.uri) }),
        ...(method.startsWith('notifications/tasks') && { taskId: this.outerTask(params.taskId) }),
        ...(method === 'notifications/message' && { logger }),
      },
    };
  }

  #outward(method: string, answer: Answer): Answer {
    if ('error' in answer) return answer;
    const { result } = answer;
    const isTask = result.resultType === 'task' || method.startsWith('tasks/');
    const inner = isTask && isObject(result.result) ? { result: this.#contents(result.result) } : {};
    const task = isTask && typeof result.taskId === 'string' ? { taskId: this.outerTask(result.taskId) } : {};
    return { ...answer, result: { ...this.#related(this.#contents(result)), ...inner, ...task } };
  }

  #related<T extends Record<string, unknown>>(part: T): T {
    const _meta = isObject(part._meta) ? part._meta : {};
    const related = _meta[RELATED_TASK];
    if (!isObject(related)) return part;
    return { ...part, _meta: { ..._meta, [RELATED_TASK]: { ...related, taskId: this.outerTask(related.taskId) } } };
  }

  /** A result with resources named as clients know them. */
  #contents(result: Record<string, unknown>): Record<string, unknown> {
    const resource = (item: unknown) =>
      isObject(item) && typeof item.uri === 'string' ? { ...item, uri: this.outerUri(item.uri) } : item;
    const content = (item: unknown): unknown => {
      if (!isObject(item)) return item;
      if (item.type === 'resource_link') return resource(item);
      return item.type === 'resource' ? { ...item, resource: resource(item.resource) } : item;
    };
    return {
      ...result,
      ...(Array.isArray(result.content) && { content: result.content.map(content) }),
      ...(Array.isArray(result.contents) && { contents: result.contents.map(resource) }),
      ...(Array.isArray(result.messages) && {
        messages: result.messages.map((one) => (isObject(one) ? { ...one, content: content(one.content) } : one)),
      }),
    };
  }

  #away({ id, method, params }: Request): Answer {
    const text = `the server ${this.name} is away: the request was not sent. The server is tried again`;
    this.#log.debug({ method, name: params?.name }, text);
    return failure(id, INTERNAL_ERROR, text, { unreachable: true, sent: false });
  }
}

function backoff(failures: number): number {
  return BACKOFF_MS[Math.min(failures, BACKOFF_MS.length - 1)]!;
}

function isAway(answer: Answer): boolean {
  return 'error' in answer && isObject(answer.error.data) && answer.error.data.unreachable === true;
}

function wasSent(answer: Answer): boolean {
  return 'error' in answer && isObject(answer.error.data) && answer.error.data.sent === true;
}

/**
 * What a client is notified of, by all servers. When a server that has ended or was unreachable is back, the proxy listens to it
 * again for everything that was requested; both then and when it went away, its lists count as changed.
 */
class Listening {
  readonly #members: readonly Member[];
  readonly #request: Request;
  readonly #from: Serving;
  readonly #asked: Record<string, unknown>;
  readonly #honored = new Map<Member, Record<string, unknown>>();
  readonly #changed = new Map<string, NodeJS.Timeout>();
  readonly #ended = new AbortController();
  #acknowledged = false;
  readonly answer: Promise<undefined>;

  constructor(members: readonly Member[], request: Request, from: Serving) {
    this.#members = members;
    this.#request = request;
    this.#from = { ...from, signal: AbortSignal.any([from.signal, this.#ended.signal]) };
    this.#asked = isObject(request.params?.notifications) ? request.params.notifications : {};
    this.answer = this.#listen();
  }

  async #listen(): Promise<undefined> {
    const { signal } = this.#from;
    const all = Promise.all(this.#members.map((member) => this.#to(member)));
    const late = setTimeout(() => this.#acknowledge(), FIRST_MS).unref();
    try {
      await all.finally(() => clearTimeout(late));
      if (!signal.aborted) await new Promise((resolve) => signal.addEventListener('abort', resolve, { once: true }));
      return undefined;
    } finally {
      // if one of the servers does not know the agent, the proxy stops listening to the others
      this.#ended.abort();
      for (const timer of this.#changed.values()) clearTimeout(timer);
    }
  }

  async #to(member: Member): Promise<void> {
    const { signal } = this.#from;
    const { resourceSubscriptions, taskIds, ...lists } = this.#asked;
    const own = (names: unknown, prefix: string) =>
      (Array.isArray(names) ? names : []).flatMap((name) =>
        typeof name === 'string' && name.startsWith(prefix) ? [name.slice(prefix.length)] : [],
      );
    const uris = own(resourceSubscriptions, member.outerUri(''));
    const tasks = own(taskIds, member.outerTask(''));
    const params = {
      ...this.#request.params,
      notifications: {
        ...lists,
        ...(uris.length > 0 && { resourceSubscriptions: uris }),
        ...(tasks.length > 0 && { taskIds: tasks }),
      },
    };
    for (let failures = 0; !signal.aborted; failures++) {
      const waitMs = failures === 0 ? member.awayMs : Math.max(member.awayMs, backoff(failures - 1));
      if (waitMs > 0) this.#heard(member, {});
      await delay(waitMs, undefined, { signal, ref: false }).catch(() => undefined);
      if (signal.aborted) return;
      const notify = (message: Notification) => {
        const honored = message.params?.notifications;
        if (message.method === 'notifications/subscriptions/acknowledged') {
          failures = 0;
          this.#heard(member, isObject(honored) ? honored : {});
        } else this.#told(message);
      };
      const answer = await member.ask({ ...this.#request, params }, { ...this.#from, notify });
      if (signal.aborted) return;
      const went = this.#honored.has(member);
      this.#heard(member, {});
      // it cannot be listened to, although it is reachable
      if (answer && 'error' in answer && !isAway(answer)) return;
      if (went) this.#announceAll();
    }
  }

  /** A server listens, or cannot be asked to. */
  #heard(member: Member, honored: Record<string, unknown>): void {
    if (this.#acknowledged) {
      // it is back
      if (Object.keys(honored).length > 0) this.#announceAll();
      return;
    }
    this.#honored.set(member, honored);
    if (this.#honored.size === this.#members.length) this.#acknowledge();
  }

  #acknowledge(): void {
    if (this.#acknowledged) return;
    this.#acknowledged = true;
    const all = [...this.#honored];
    const names = (what: string, outer: (member: Member, name: unknown) => string) => {
      const found = all.flatMap(([member, honored]) => {
        const given = honored[what];
        return Array.isArray(given) ? given.map((name) => outer(member, name)) : [];
      });
      return found.length > 0 && { [what]: found };
    };
    const lists = Object.keys(CHANGES).filter((what) => this.#asked[what] === true);
    this.#from.notify({
      jsonrpc: '2.0',
      method: 'notifications/subscriptions/acknowledged',
      params: {
        _meta: { [SUBSCRIPTION_KEY]: this.#request.id },
        notifications: {
          ...Object.fromEntries(lists.map((what) => [what, true])),
          ...names('resourceSubscriptions', (member, uri) => member.outerUri(uri)),
          ...names('taskIds', (member, taskId) => member.outerTask(taskId)),
        },
      },
    });
  }

  #told(message: Notification): void {
    const what = Object.entries(CHANGES).find(([, method]) => method === message.method)?.[0];
    if (what !== undefined) this.#announce(what as keyof typeof CHANGES);
    else this.#from.notify(message);
  }

  #announceAll(): void {
    for (const what of Object.keys(CHANGES)) this.#announce(what as keyof typeof CHANGES);
  }

  #announce(what: keyof typeof CHANGES): void {
    if (this.#asked[what] !== true || this.#changed.has(what) || this.#from.signal.aborted) return;
    const timer = setTimeout(() => {
      this.#changed.delete(what);
      const params = { _meta: { [SUBSCRIPTION_KEY]: this.#request.id } };
      this.#from.notify({ jsonrpc: '2.0', method: CHANGES[what], params });
    }, ANNOUNCE_MS);
    this.#changed.set(what, timer);
  }
}
