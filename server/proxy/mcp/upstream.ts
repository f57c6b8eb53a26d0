import { TOOL_LIMITS } from '../../domain/tools.ts';
import type { Log } from '../../lib/log.ts';
import { isPlumbing } from './actions.ts';
import { LegacyServers } from './legacy-server.ts';
import { ModernServer } from './modern-server.ts';
import type { Declared } from './param-headers.ts';
import { NoSession, type On, type Place, Unreachable } from './place.ts';
import {
  type Answer,
  CAPABILITIES_KEY,
  CLIENT_KEY,
  isObject,
  LEGACY,
  type Link,
  type Message,
  MODERN,
  type Request,
  UNSUPPORTED_VERSION,
  VERSION_KEY,
} from './wire.ts';

/** How long a server over HTTP is assumed to be of the old eras: it may be replaced by a newer one. */
const LEGACY_MS = 5 * 60_000;
/** How long a process that has begun no session may take to show which era it is of. */
const PATIENCE_MS = 60_000;

/**
 * A tool server of either era, for clients of either era: the same call has the same effect in all four combinations. The
 * server's era is determined when it is first needed, and again when it turns out to have changed.
 */
export class Upstream {
  readonly #place: Place;
  readonly #log: Log;
  readonly #legacy: LegacyServers;
  /**
   * Whether the server is of the stateless revision, and until when to believe that; it is only `assumed` if it has not said so.
   */
  #modern: { is: boolean; until: number; assumed: boolean } | undefined;
  #probing: Promise<boolean> | undefined;
  /** It has refused a session; a server may well support both eras. */
  #sessionless = false;

  constructor(place: Place, parts: { log: Log }) {
    this.#place = place;
    this.#log = parts.log;
    this.#legacy = new LegacyServers(place, parts);
  }

  /**
   * One request of the stateless revision, answered according to that revision whatever the era of the server; `owner` keeps
   * apart what belongs to different agents. Resolves to undefined when `signal` has fired. Rejects with an Unreachable.
   */
  async exchange(request: Request, on: On & { owner: string }): Promise<Answer | undefined> {
    if (!(await beforeSending(this.#isModern(on.signal)))) {
      try {
        return await this.#legacy.exchange(request, on);
      } catch (error) {
        if (!(error instanceof NoSession) || !(await beforeSending(this.#isModernAfterAll(on.signal)))) {
          throw error;
        }
      }
    }
    try {
      return await this.#place.post(request, on);
    } catch (error) {
      // the answer is not a message of the revision: the server may have been replaced by an older one
      const { status } = error as Unreachable;
      if (status === undefined || status >= 500 || !this.#modern?.is) throw error;
      this.#modern = undefined;
      // whoever gave that answer, the server may have done what was asked: an action is sent once
      if (!isPlumbing(request.method) || (await this.#isModern(on.signal))) throw error;
      return this.#legacy.exchange(request, on);
    }
  }

  /** The arguments of the called tool that a client repeats as headers. Rejects with an Unreachable. */
  async declared(call: Request, signal: AbortSignal): Promise<readonly Declared[]> {
    return (await this.#isModern(signal)) ? this.#place.declared(call, signal) : [];
  }

  /** All tools that the server lists, page by page, up to a limit. Rejects with an Unreachable. */
  async tools(signal: AbortSignal): Promise<unknown[]> {
    const tools: unknown[] = [];
    let cursor: unknown;
    do {
      const _meta = {
        [VERSION_KEY]: MODERN,
        [CLIENT_KEY]: { name: 'svc-proxy', version: '1' },
        [CAPABILITIES_KEY]: {},
      };
      const params = { _meta, ...(cursor !== undefined && { cursor }) };
      const request = { jsonrpc: '2.0' as const, id: 'svc-tools', method: 'tools/list', params };
      const answer = await this.exchange(request, { notify: () => {}, signal, owner: 'svc-proxy' });
      if (!answer || 'error' in answer || !Array.isArray(answer.result.tools))
        throw new Unreachable('no list of tools');
      tools.push(...answer.result.tools);
      cursor = answer.result.nextCursor;
    } while (cursor !== undefined && tools.length <= TOOL_LIMITS.tools);
    return tools;
  }

  /** A connection for one session of the old eras. */
  link(): Link & { terminate?: () => Promise<void> } {
    return new Session(this.#place, this.#log, {
      known: () => this.#sessionless,
      asked: async () => {
        const signal = AbortSignal.timeout(30_000);
        this.#sessionless = (await this.#isModern(signal)) || (await this.#isModernAfterAll(signal));
        return this.#sessionless;
      },
    });
  }

  async close(): Promise<void> {
    await this.#legacy.close();
    await this.#place.close();
  }

  #isModern(signal: AbortSignal, silenceMs = this.#place.silenceMs): Promise<boolean> {
    if (this.#modern && Date.now() < this.#modern.until) return Promise.resolve(this.#modern.is);
    this.#probing ??= this.#probe(silenceMs)
      .then((said) => {
        const is = said ?? false;
        const believed = is || silenceMs !== undefined ? Number.POSITIVE_INFINITY : LEGACY_MS;
        this.#modern = { is, until: Date.now() + believed, assumed: said === undefined };
        return is;
      })
      .finally(() => {
        this.#probing = undefined;
      });
    return Promise.race([this.#probing, aborted(signal)]);
  }

  /** A server that begins no session may just have been slow to start when it was assumed to be old: it is asked again. */
  async #isModernAfterAll(signal: AbortSignal): Promise<boolean> {
    if (this.#place.silenceMs === undefined) return false;
    if (this.#modern?.assumed) this.#modern = undefined;
    return this.#isModern(signal, PATIENCE_MS);
  }

  /**
   * Asks as 2026-07-28 prescribes ("Backward Compatibility"): anything but an answer of that revision indicates an older one.
   * Undefined if a process stays silent, from which that is assumed.
   */
  async #probe(silenceMs: number | undefined): Promise<boolean | undefined> {
    const signal = AbortSignal.timeout(silenceMs ?? 30_000);
    const _meta = {
      [VERSION_KEY]: MODERN,
      [CLIENT_KEY]: { name: 'svc-proxy', version: '1' },
      [CAPABILITIES_KEY]: {},
    };
    const probe = { jsonrpc: '2.0' as const, id: 'svc-probe', method: 'server/discover', params: { _meta } };
    let answer: Answer | undefined;
    try {
      answer = await this.#place.post(probe, { notify: () => {}, signal });
    } catch (error) {
      if (!(error instanceof Unreachable)) throw error;
      const { status = 0 } = error;
      // a process that ends when it gets a request it does not know is an old one, too
      if (silenceMs !== undefined) return undefined;
      if (status < 400 || status >= 500 || status === 401 || status === 403) throw error;
      return false;
    }
    if (!answer) {
      if (silenceMs !== undefined) return undefined;
      throw new Unreachable('no answer in time');
    }
    if ('result' in answer) return has(answer.result.supportedVersions, [MODERN]);
    const { code, data } = answer.error;
    if (code !== UNSUPPORTED_VERSION || !isObject(data)) return false;
    if (has(data.supported, [MODERN]) || has(data.supported, LEGACY)) return has(data.supported, [MODERN]);
    throw new Unreachable('the tool server speaks no revision that the proxy does');
  }
}

/** What fails before the request itself is sent. */
function beforeSending<T>(asked: Promise<T>): Promise<T> {
  return asked.catch((error) => {
    throw error instanceof Unreachable ? new Unreachable(error.message, { sent: false }) : error;
  });
}

function has(list: unknown, wanted: readonly string[]): boolean {
  return Array.isArray(list) && wanted.some((one) => list.includes(one));
}

function aborted(signal: AbortSignal): Promise<never> {
  return new Promise((_resolve, reject) => {
    // to what the proxy asks before it sends the request
    const fail = () => reject(new Unreachable('no answer in time', { sent: false }));
    if (signal.aborted) fail();
    else signal.addEventListener('abort', fail, { once: true });
  });
}

/** Whether the server only supports the stateless revision, as far as `known`, or when `asked`. */
interface Era {
  known: () => boolean;
  asked: () => Promise<boolean>;
}

/**
 * A session that learns its server's era from the client's `initialize`: a server that refuses it may be of the stateless
 * revision.
 */
class Session implements Link {
  readonly #place: Place;
  readonly #log: Log;
  readonly #modern: Era;
  #server: (Link & { terminate?: () => Promise<void> }) | undefined;
  #first: Request | undefined;
  #closed = false;
  onmessage?: (message: Message) => void;
  onerror?: (error: Error) => void;
  onclose?: () => void;

  constructor(place: Place, log: Log, modern: Era) {
    this.#place = place;
    this.#log = log;
    this.#modern = modern;
  }

  async start(): Promise<void> {}

  setProtocolVersion(version: string): void {
    this.#server?.setProtocolVersion?.(version);
  }

  async send(message: Message): Promise<void> {
    if (this.#closed) throw new Unreachable('the session has ended', { sent: false });
    if ('method' in message && 'id' in message && message.method === 'initialize') {
      this.#first = message;
      await this.#open(this.#modern.known() ? this.#sessionless() : this.#place.connect());
      try {
        await this.#server!.send(message);
      } catch (error) {
        if (!(await this.#change())) throw error;
      }
      return;
    }
    if (!this.#server) throw new Unreachable('the session was not begun', { sent: false });
    await this.#server.send(message);
  }

  terminate(): Promise<void> {
    return this.#server?.terminate?.() ?? Promise.resolve();
  }

  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    await this.#server?.close();
    this.onclose?.();
  }

  #sessionless(): ModernServer {
    return new ModernServer(this.#place, { log: this.#log });
  }

  async #open(server: Link & { terminate?: () => Promise<void> }): Promise<void> {
    this.#server = server;
    server.onerror = (error) => this.onerror?.(error);
    server.onclose = () => {
      if (this.#server === server) void this.close();
    };
    server.onmessage = (message) => {
      if (this.#server !== server) return;
      const first = this.#first;
      if (!first || 'method' in message || message.id !== first.id) {
        this.onmessage?.(message);
        return;
      }
      if ('result' in message) {
        this.#first = undefined;
        this.onmessage?.(message);
        return;
      }
      this.#change().then(
        (changed) => changed || this.onmessage?.(message),
        () => this.onmessage?.(message),
      );
    };
    await server.start();
  }

  /** Starts again with a server of the stateless revision, if it is one. */
  async #change(): Promise<boolean> {
    const first = this.#first;
    if (!first || this.#server instanceof ModernServer) return false;
    const old = this.#server;
    this.#server = undefined;
    const modern = await this.#modern.asked().catch(() => false);
    this.#first = undefined;
    if (!modern && !this.#closed) {
      this.#server = old;
      return false;
    }
    void old?.close().catch(() => {});
    // the client has left meanwhile
    if (this.#closed) return false;
    await this.#open(this.#sessionless());
    await this.#server!.send(first);
    return true;
  }
}
