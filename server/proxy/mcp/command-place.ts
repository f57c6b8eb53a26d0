import { Muted } from './muted.ts';
import type { Declared } from './param-headers.ts';
import { Child } from './pipe.ts';
import { type On, type Place, Unreachable } from './place.ts';
import {
  type Answer,
  failure,
  type Link,
  LOG_LEVEL_KEY,
  METHOD_NOT_FOUND,
  type Message,
  type Notification,
  type Request,
  SUBSCRIPTION_KEY,
} from './wire.ts';

interface Waiting {
  request: Request;
  on: On;
  settle: (answer: Answer | undefined) => void;
  fail: (error: Unreachable) => void;
}

/** A server that a command starts. Requests of the stateless revision share one process, which is restarted when it ends. */
export class CommandPlace implements Place {
  readonly #start: () => Child;
  readonly #waiting = new Map<string, Waiting>();
  #muted = new Muted();
  #shared: Child | undefined;
  /** The shared process has returned a result: it is of the stateless revision. */
  #serves = false;
  #next = 0;
  readonly #onerror: (error: Error) => void;
  readonly silenceMs = 10_000;

  constructor(options: {
    command: string;
    args: readonly string[];
    env: Record<string, string>;
    maxBytes: number;
    onerror: (error: Error) => void;
  }) {
    this.#start = () => new Child(options);
    this.#onerror = options.onerror;
  }

  /** A process that was only asked for its era is reused. */
  connect(): Link {
    const spare = this.#waiting.size === 0 && !this.#serves && !this.#shared?.ended ? this.#shared : undefined;
    if (!spare) return this.#start();
    this.#shared = undefined;
    return Object.assign(spare, { start: async () => {} });
  }

  /** Only Streamable HTTP has headers. */
  async declared(): Promise<readonly Declared[]> {
    return [];
  }

  async post(request: Request, on: On): Promise<Answer | undefined> {
    const child = await this.#process();
    if (on.signal.aborted) return undefined;
    // a string: a late answer cannot match a request of the session that gets the process later, whose ids are numbers
    const id = `svc-${++this.#next}`;
    const { promise, resolve, reject } = Promise.withResolvers<Answer | undefined>();
    // it may fail while the request is still being written
    promise.catch(() => {});
    this.#waiting.set(id, { request, on, settle: resolve, fail: reject });
    const cancel = () => {
      resolve(undefined);
      if (on.masked) this.#muted.add(id);
      const params = { requestId: id };
      child.send({ jsonrpc: '2.0', method: 'notifications/cancelled', params }).catch(() => {});
    };
    on.signal.addEventListener('abort', cancel, { once: true });
    try {
      const { _meta, ...params } = request.params ?? {};
      const token = _meta?.progressToken === undefined ? {} : { progressToken: id };
      const sent = child
        .send({ ...request, id, params: { ...params, _meta: { ..._meta, ...token } } })
        .catch((error) => {
          // it is refused before anything is written
          throw new Unreachable((error as Error).message, { sent: false });
        });
      // a server that does not read its input must not hold up a client that leaves
      return await Promise.race([promise, sent.then(() => promise)]);
    } finally {
      on.signal.removeEventListener('abort', cancel);
      this.#waiting.delete(id);
    }
  }

  async #process(): Promise<Child> {
    if (this.#shared && !this.#shared.ended) return this.#shared;
    const child = this.#start();
    this.#shared = child;
    this.#serves = false;
    this.#muted = new Muted();
    child.onmessage = (message) => this.#take(message);
    child.onerror = (error) => this.#onerror(error);
    child.onclose = () => {
      if (this.#shared === child) this.#shared = undefined;
      for (const { fail } of this.#waiting.values())
        fail(new Unreachable('the tool server has ended', { sent: child.started }));
    };
    await child.start();
    return child;
  }

  #take(message: Message): void {
    if (!('method' in message)) {
      const waiting = this.#waiting.get(message.id as string);
      this.#muted.answered(message.id);
      if (waiting && 'result' in message) this.#serves = true;
      waiting?.settle({ ...message, id: waiting.request.id });
    } else if (!('id' in message)) this.#notice(message);
    else {
      const none = failure(message.id, METHOD_NOT_FOUND, 'a server sends no requests in this revision');
      this.#shared?.send(none).catch(() => {});
    }
  }

  /** Passes it to the request that it belongs to, under the names that its client gave. */
  #notice(message: Notification): void {
    const { params } = message;
    if (message.method === 'notifications/progress') {
      const waiting = this.#waiting.get(params?.progressToken as string);
      const progressToken = waiting?.request.params?._meta?.progressToken;
      waiting?.on.notify({ ...message, params: { ...params, progressToken } });
      return;
    }
    const subscription = params?._meta?.[SUBSCRIPTION_KEY];
    if (subscription !== undefined) {
      const waiting = this.#waiting.get(subscription as string);
      const _meta = { ...params?._meta, [SUBSCRIPTION_KEY]: waiting?.request.id };
      waiting?.on.notify({ ...message, params: { ...params, _meta } });
      return;
    }
    // a log message does not say which request it belongs to: it may be about a masked one
    if (this.#muted.any || this.#waiting.values().some(({ on }) => on.masked)) return;
    const asks = ({ request }: Waiting) => request.params?._meta?.[LOG_LEVEL_KEY] !== undefined;
    this.#waiting.values().find(asks)?.on.notify(message);
  }

  async close(): Promise<void> {
    await this.#shared?.close();
  }
}
