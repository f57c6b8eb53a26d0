import type { Log } from '../../lib/log.ts';
import { type Agent, AgentError } from '../agents.ts';
import type { Served } from './exchange.ts';
import { ModernServer } from './modern-server.ts';
import { type On, Unreachable } from './place.ts';
import {
  type Answer,
  failure,
  type Id,
  INTERNAL_ERROR,
  INVALID_REQUEST,
  type Link,
  type Message,
  type Request,
} from './wire.ts';

/**
 * A client's session with `initialize`, in front of something that answers single requests: several servers as one. Nothing is
 * decided here: each request is decided as one of the revision without sessions.
 */
export class JoinedSession {
  readonly #client: Link;
  readonly #server: ModernServer;
  readonly #log: Log;
  #begun = false;
  #closed = false;
  /** The client's initialization was answered. */
  initialized = false;
  /** Called once, when the client has ended it. */
  onClose: () => unknown = () => {};

  constructor(parts: {
    client: Link;
    served: Served;
    log: Log;
    agent: () => Promise<Agent>;
    /** As policies see it. */
    name: string;
    sourceIp?: string | undefined;
  }) {
    const { client, served, log, agent, name, sourceIp } = parts;
    this.#client = client;
    this.#log = log;
    const post = async (request: Request, { signal, notify }: On): Promise<Answer | undefined> => {
      try {
        return await served.serve(request, { agent, signal, notify, sourceIp, session: name });
      } catch (error) {
        if (!(error instanceof AgentError)) throw error;
        log.warn({ detail: error.message }, 'no agent');
        return failure(request.id, INTERNAL_ERROR, 'the proxy does not know this agent');
      }
    };
    this.#server = new ModernServer({ post }, { log });
  }

  get busy(): boolean {
    return this.#server.busy;
  }

  async start(): Promise<void> {
    const client = this.#client;
    const server = this.#server;
    server.onmessage = (message, of) => {
      if (!('method' in message) && 'result' in message && 'serverInfo' in message.result) this.initialized = true;
      this.#send(message, of);
    };
    client.onmessage = (message) => this.#take(message);
    client.onerror = (err) => this.#log.debug({ err }, 'the MCP client');
    client.onclose = () => void this.close();
    await client.start();
  }

  #take(message: Message): void {
    if ('method' in message && 'id' in message) {
      const begins = message.method === 'initialize';
      const why = this.#server.isOpen(message.id)
        ? 'the id of this request is in use'
        : begins && this.#begun
          ? 'the session has begun'
          : !begins && !this.#begun && message.method !== 'ping'
            ? 'a session begins with initialize'
            : undefined;
      if (why !== undefined) {
        this.#send(failure(message.id, INVALID_REQUEST, why));
        return;
      }
      this.#begun ||= begins;
    }
    this.#server.send(message).catch((error) => {
      if (!('method' in message) || !('id' in message)) return;
      const text = error instanceof Unreachable ? error.message : 'the proxy failed';
      this.#send(failure(message.id, INTERNAL_ERROR, text));
    });
  }

  #send(message: Message, of?: Id): void {
    this.#client.send(message, of === undefined ? undefined : { relatedRequestId: of }).catch((err) => {
      if (!this.#closed) this.#log.debug({ err }, 'a message could not be delivered');
    });
  }

  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    await Promise.allSettled([this.#server.close(), this.#client.close()]);
    this.onClose();
  }
}
