import type { Log } from '../../lib/log.ts';
import { type Place, Unreachable, withoutAnswer } from './place.ts';
import {
  type Answer,
  CAPABILITIES_KEY,
  CLIENT_KEY,
  failure,
  type Id,
  INTERNAL_ERROR,
  INVALID_PARAMS,
  isObject,
  LEGACY,
  type Link,
  LOG_LEVEL_KEY,
  legacyResult,
  METHOD_NOT_FOUND,
  type Message,
  type Meta,
  MODERN,
  type Notification,
  type Request,
  type Result,
  SERVER_KEY,
  SUBSCRIPTION_KEY,
  success,
  VERSION_KEY,
} from './wire.ts';

/** How often a server may request further input for the same request. */
const MOST_ROUNDS = 32;
const LISTEN_AGAIN_MS = 5000;

/**
 * A server of the stateless revision, as one session of the old eras sees it: `initialize` is answered with what the server
 * reports about itself, the client is asked for the input that the server wants for a request while that request is open, and the
 * server's notifications are listened for.
 */
export class ModernServer implements Link {
  readonly #place: Pick<Place, 'post'>;
  readonly #log: Log;
  readonly #open = new Map<Id, AbortController>();
  /** Requests to the client that await an answer. */
  readonly #asked = new Map<string, (answer: Answer) => void>();
  readonly #closed = new AbortController();
  readonly #subscribed = new Set<string>();
  /** Requests to subscribe that have no answer yet. */
  readonly #subscribing: [uri: string, id: Id][] = [];
  #listening: AbortController | undefined;
  #meta: Meta = {};
  #capabilities: Record<string, unknown> = {};
  #level: unknown;
  #next = 0;
  onmessage?: (message: Message, of?: Id) => void;
  onerror?: (error: Error) => void;
  onclose?: () => void;

  constructor(place: Pick<Place, 'post'>, { log }: { log: Log }) {
    this.#place = place;
    this.#log = log;
  }

  async start(): Promise<void> {}

  async send(message: Message): Promise<void> {
    if (this.#closed.signal.aborted) throw new Unreachable('the session has ended', { sent: false });
    if (!('method' in message)) {
      this.#asked.get(message.id as string)?.(message);
    } else if ('id' in message) {
      await this.#request(message);
    } else if (message.method === 'notifications/cancelled') {
      this.#open.get(message.params?.requestId as Id)?.abort();
    } else if (message.method === 'notifications/initialized') {
      const { tools, prompts, resources } = this.#capabilities as Record<string, { listChanged?: boolean } | undefined>;
      if (tools?.listChanged || prompts?.listChanged || resources?.listChanged) this.#listen();
    }
  }

  isOpen(id: Id): boolean {
    return this.#open.has(id);
  }

  /** Whether there are requests without an answer. */
  get busy(): boolean {
    return this.#open.size > 0;
  }

  async close(): Promise<void> {
    if (this.#closed.signal.aborted) return;
    this.#closed.abort();
    for (const open of this.#open.values()) open.abort();
    this.#listening?.abort();
    this.onclose?.();
  }

  async #request(request: Request): Promise<void> {
    const { id, method, params } = request;
    const done = (result: Result) => this.onmessage?.(success(id, result));
    switch (method) {
      case 'initialize':
        return this.#initialize(request);
      case 'ping':
        done({});
        return;
      case 'logging/setLevel':
        this.#level = params?.level;
        done({});
        return;
      case 'resources/subscribe':
        this.#subscribed.add(String(params?.uri));
        this.#subscribing.push([String(params?.uri), id]);
        this.#listen();
        return;
      case 'resources/unsubscribe':
        this.#subscribed.delete(String(params?.uri));
        this.#listen();
        done({});
        return;
    }
    const abort = new AbortController();
    this.#open.set(id, abort);
    this.#rounds(request, abort.signal)
      .then((answer) => answer && this.onmessage?.(answer))
      .catch((error) => {
        this.#log.warn({ detail: (error as Error).message }, 'the tool server gave no answer');
        this.onmessage?.(withoutAnswer(id, error).answer);
      })
      .finally(() => this.#open.delete(id));
  }

  async #initialize({ id, params = {} }: Request): Promise<void> {
    this.#meta = {
      [VERSION_KEY]: MODERN,
      [CAPABILITIES_KEY]: isObject(params.capabilities) ? params.capabilities : {},
      ...(isObject(params.clientInfo) && { [CLIENT_KEY]: params.clientInfo }),
    };
    const answer = await this.#post({ jsonrpc: '2.0', id, method: 'server/discover', params: {} }, this.#closed.signal);
    if (!answer) return;
    if ('error' in answer) {
      this.onmessage?.(answer);
      return;
    }
    const { capabilities, instructions, _meta } = answer.result;
    this.#capabilities = isObject(capabilities) ? capabilities : {};
    const asked = String(params.protocolVersion);
    this.onmessage?.(
      success(id, {
        protocolVersion: LEGACY.includes(asked) ? asked : (LEGACY[0] as string),
        capabilities: this.#capabilities,
        serverInfo: _meta?.[SERVER_KEY] ?? { name: 'unnamed', version: '0' },
        ...(instructions !== undefined && { instructions }),
      }),
    );
  }

  /** The answer to a request, after as many rounds of input as the server requests. */
  async #rounds(request: Request, signal: AbortSignal): Promise<Answer | undefined> {
    let more: Record<string, unknown> = {};
    for (let round = 0; round < MOST_ROUNDS; round++) {
      const answer = await this.#post({ ...request, params: { ...request.params, ...more } }, signal);
      if (!answer || 'error' in answer) return answer;
      const { resultType = 'complete', inputRequests, requestState } = answer.result;
      if (resultType === 'complete') return success(request.id, legacyResult(answer.result));
      if (resultType !== 'input_required') {
        return failure(request.id, INTERNAL_ERROR, 'the tool server answered in a way that the client does not know');
      }
      const inputResponses: Record<string, unknown> = {};
      for (const [name, input] of Object.entries(isObject(inputRequests) ? inputRequests : {})) {
        const given = await this.#ask(input, request.id, signal);
        if (!given) return undefined;
        if ('error' in given) return { ...given, id: request.id };
        inputResponses[name] = given.result;
      }
      more = { inputResponses, ...(requestState !== undefined && { requestState }) };
    }
    return failure(request.id, INTERNAL_ERROR, 'the tool server wants input without end');
  }

  /** Asks the client; undefined if the request that it is asked for was cancelled. */
  async #ask(input: unknown, of: Id, signal: AbortSignal): Promise<Answer | undefined> {
    if (signal.aborted) return undefined;
    const { method, params } = (isObject(input) ? input : {}) as { method?: string; params?: Request['params'] };
    const id = `svc-input-${++this.#next}`;
    const { promise, resolve } = Promise.withResolvers<Answer | undefined>();
    const cancel = () => resolve(undefined);
    signal.addEventListener('abort', cancel, { once: true });
    this.#asked.set(id, resolve);
    // in the old eras, a URL to visit has an id
    const named = method === 'elicitation/create' && params?.mode === 'url' && { elicitationId: id };
    this.onmessage?.({ jsonrpc: '2.0', id, method: String(method), params: { ...params, ...named } }, of);
    return promise.finally(() => {
      signal.removeEventListener('abort', cancel);
      this.#asked.delete(id);
    });
  }

  async #post(request: Request, signal: AbortSignal): Promise<Answer | undefined> {
    const { params } = request;
    const level = this.#level === undefined ? {} : { [LOG_LEVEL_KEY]: this.#level };
    const asked = { ...request, params: { ...params, _meta: { ...params?._meta, ...this.#meta, ...level } } };
    return this.#place.post(asked, { signal, notify: (message) => this.onmessage?.(message, request.id) });
  }

  /** The server has reported which resources it watches. */
  #honored(notifications: unknown): void {
    const given = isObject(notifications) ? notifications.resourceSubscriptions : undefined;
    const uris: unknown[] = Array.isArray(given) ? given : [];
    for (const [uri, id] of this.#subscribing.splice(0)) {
      if (uris.includes(uri)) this.onmessage?.(success(id, {}));
      else {
        this.#subscribed.delete(uri);
        this.onmessage?.(failure(id, INVALID_PARAMS, 'this resource cannot be subscribed to'));
      }
    }
  }

  /** From now on, listens for what the client was promised notifications of. */
  #listen(): void {
    this.#listening?.abort();
    const abort = new AbortController();
    this.#listening = abort;
    const { tools, prompts, resources } = this.#capabilities as Record<string, { listChanged?: boolean } | undefined>;
    const notifications = {
      ...(tools?.listChanged && { toolsListChanged: true }),
      ...(prompts?.listChanged && { promptsListChanged: true }),
      ...(resources?.listChanged && { resourcesListChanged: true }),
      ...(this.#subscribed.size > 0 && { resourceSubscriptions: [...this.#subscribed] }),
    };
    const request: Request = {
      jsonrpc: '2.0',
      id: `svc-listen-${++this.#next}`,
      method: 'subscriptions/listen',
      params: { _meta: this.#meta, notifications },
    };
    // what arrives from a replaced listener says nothing about what the newer one asks for
    const { signal } = abort;
    const notify = (message: Notification) => {
      if (signal.aborted) return;
      if (message.method === 'notifications/subscriptions/acknowledged') {
        this.#honored(message.params?.notifications);
        return;
      }
      const { [SUBSCRIPTION_KEY]: _own, ..._meta } = message.params?._meta ?? {};
      this.onmessage?.({ ...message, params: { ...message.params, _meta } });
    };
    const ended = (answer: Answer | undefined) => {
      if (signal.aborted) return;
      this.#honored(undefined);
      if (answer && 'error' in answer && answer.error.code === METHOD_NOT_FOUND) return;
      setTimeout(() => signal.aborted || this.#listen(), LISTEN_AGAIN_MS).unref();
    };
    this.#place.post(request, { signal, notify }).then(ended, () => ended(undefined));
  }
}
