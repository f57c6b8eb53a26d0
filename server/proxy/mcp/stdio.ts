import { randomUUID } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import type { Log } from '../../lib/log.ts';
import { type Agent, AgentError } from '../agents.ts';
import type { McpServer } from '../servers.ts';
import { CommandPlace } from './command-place.ts';
import { Exchange, type Served } from './exchange.ts';
import { Gate, type GateParts } from './gate.ts';
import { Join } from './join.ts';
import { JoinedSession } from './joined-session.ts';
import { Pipe } from './pipe.ts';
import type { Place } from './place.ts';
import { Rounds } from './rounds.ts';
import { Seal } from './seal.ts';
import { Session } from './session.ts';
import { Upstream } from './upstream.ts';
import { Waiting } from './waiting.ts';
import {
  claimedVersion,
  failure,
  type Id,
  INTERNAL_ERROR,
  INVALID_REQUEST,
  type Link,
  type Message,
  type Request,
} from './wire.ts';

/** How long open requests may still be answered after the client has closed its side. */
const LAST_ANSWERS_MS = 60_000;

interface StdioParts extends Omit<GateParts, 'seal'>, ClientParts {
  place: McpServer;
}

/** What a client on standard input and output needs, whatever is behind the proxy. */
interface ClientParts {
  log: Log;
  onPolicyChange: (listener: () => void) => () => void;
  /** The secret that seals the states of open calls. */
  secret: () => string;
  /** The maximum length of a message from either side. */
  maxMessageBytes: number;
  agent: () => Promise<Agent>;
  env: NodeJS.ProcessEnv;
}

/**
 * Wraps a server, started or at an address, for a client of any era on standard input and output: a request that names the
 * revision it follows stands alone, and everything else belongs to the session that `initialize` begins. Resolves when it is
 * over: the client has closed its side and its requests were answered, or the server has ended its session.
 */
export async function wrapStdio(parts: StdioParts): Promise<{ ended: Promise<void>; close: () => Promise<void> }> {
  const { log, maxMessageBytes: maxBytes } = parts;
  const place = await placeOf(parts.place, parts);
  const upstream = new Upstream(place, { log });
  const seal = new Seal(parts.secret);
  const gate = new Gate({ ...parts, seal });
  const rounds = new Rounds(parts.secret);
  const client = new Pipe(process.stdin, process.stdout, { maxBytes, strict: true });
  const waiting = new Waiting({ ...parts, seal });
  const alone = new Alone(client, new Exchange({ ...parts, gate, upstream, rounds, waiting }), parts);
  const lane: Link = {
    start: async () => {},
    send: (message) => client.send(message),
    close: async () => {},
  };
  const server = upstream.link();
  const name = `mcp_${randomUUID()}`;
  const session = new Session({
    ...parts,
    gate,
    client: lane,
    server,
    caller: { agent: parts.agent, session: () => name },
    ending: async () => server.terminate?.(),
  });
  await session.start();
  const { promise: ended, resolve } = Promise.withResolvers<void>();
  const close = async () => {
    alone.close();
    rounds.close();
    await session.close();
    await Promise.allSettled([upstream.close(), client.close()]);
    resolve();
  };
  session.onClose = () => void close();
  serveClient(client, { alone, lane, session, close, log });
  await client.start();
  return { ended, close };
}

/** The tool server, started when it is first needed. */
async function placeOf(server: McpServer, parts: ClientParts): Promise<Place> {
  const { log, maxMessageBytes: maxBytes } = parts;
  if ('url' in server) return new (await import('./http-place.ts')).HttpPlace({ ...server, maxBytes });
  const inherited = Object.fromEntries(
    // the tool server gets neither the proxy's key nor the agent's
    Object.entries(parts.env).filter(([name, value]) => value !== undefined && !name.startsWith('SVC_')),
  ) as Record<string, string>;
  return new CommandPlace({
    ...server,
    // read at each start
    get env() {
      return { ...inherited, ...server.env?.() };
    },
    maxBytes,
    onerror: (err) => log.warn({ err }, 'the tool server'),
  });
}

/**
 * Wraps several servers, which the client, of any era, sees as one; see `Join`. Resolves when the client has closed its side and
 * its requests were answered.
 */
export async function joinStdio(
  parts: ClientParts & { members: readonly (Omit<GateParts, 'seal'> & { place: McpServer })[] },
): Promise<{ ended: Promise<void>; close: () => Promise<void> }> {
  const { log, maxMessageBytes: maxBytes, agent } = parts;
  const seal = new Seal(parts.secret);
  const rounds = new Rounds(parts.secret);
  const servers = new Map<string, Served>();
  const upstreams: Upstream[] = [];
  for (const member of parts.members) {
    const upstream = new Upstream(await placeOf(member.place, parts), { log });
    const gate = new Gate({ ...member, seal });
    const waiting = new Waiting({ ...member, seal });
    servers.set(member.server, new Exchange({ ...parts, gate, upstream, rounds, waiting }));
    upstreams.push(upstream);
  }
  const served = new Join(servers, { log, rests: true });
  const client = new Pipe(process.stdin, process.stdout, { maxBytes, strict: true });
  const alone = new Alone(client, served, parts);
  const lane: Link = {
    start: async () => {},
    send: (message) => client.send(message),
    close: async () => {},
  };
  const session = new JoinedSession({ client: lane, served, log, agent, name: `mcp_${randomUUID()}` });
  await session.start();
  const { promise: ended, resolve } = Promise.withResolvers<void>();
  const close = async () => {
    alone.close();
    rounds.close();
    await session.close();
    await Promise.allSettled([...upstreams.map((upstream) => upstream.close()), client.close()]);
    resolve();
  };
  serveClient(client, { alone, lane, session, close, log });
  await client.start();
  return { ended, close };
}

/** Passes on the client's messages, until it has closed its side and its requests were answered. */
function serveClient(
  client: Pipe,
  parts: { alone: Alone; lane: Link; session: { readonly busy: boolean }; close: () => Promise<void>; log: Log },
): void {
  const { alone, lane, session, close, log } = parts;
  client.onerror = (err) => log.debug({ err }, 'the MCP client');
  client.onmessage = (message) => {
    if (!alone.take(message)) lane.onmessage?.(message);
  };
  client.onclose = () => void close();
  process.stdin.once('end', async () => {
    const end = Date.now() + LAST_ANSWERS_MS;
    while ((session.busy || alone.busy) && Date.now() < end) await delay(20);
    await close();
  });
}

/** A client's requests that stand alone. */
class Alone {
  readonly #client: Pipe;
  readonly #served: Served;
  readonly #parts: ClientParts;
  readonly #open = new Map<Id, { abort: AbortController; listens: boolean }>();

  constructor(client: Pipe, served: Served, parts: ClientParts) {
    this.#client = client;
    this.#served = served;
    this.#parts = parts;
  }

  /** Whether something remains to be answered; requests that only listen never are. */
  get busy(): boolean {
    return this.#open.values().some(({ listens }) => !listens);
  }

  /** False for messages that belong to a session. */
  take(message: Message): boolean {
    if (!('method' in message)) return false;
    if (!('id' in message)) {
      const open = message.method === 'notifications/cancelled' && this.#open.get(message.params?.requestId as Id);
      if (open) open.abort.abort();
      return open !== undefined && open !== false;
    }
    if (claimedVersion(message) === undefined && message.method !== 'server/discover') return false;
    void this.#serve(message);
    return true;
  }

  close(): void {
    for (const { abort } of this.#open.values()) abort.abort();
  }

  async #serve(request: Request): Promise<void> {
    const { id } = request;
    const { agent, log } = this.#parts;
    const send = (message: Message) => {
      this.#client.send(message).catch((err) => log.debug({ err }, 'a message could not be delivered'));
    };
    if (this.#open.has(id)) {
      send(failure(id, INVALID_REQUEST, 'the id of this request is in use'));
      return;
    }
    const abort = new AbortController();
    this.#open.set(id, { abort, listens: request.method === 'subscriptions/listen' });
    try {
      const answer = await this.#served.serve(request, { agent, notify: send, signal: abort.signal });
      if (answer) send(answer);
    } catch (error) {
      if (!(error instanceof AgentError)) throw error;
      log.warn({ detail: error.message }, 'no agent');
      send(failure(id, INTERNAL_ERROR, 'the proxy does not know this agent'));
    } finally {
      this.#open.delete(id);
    }
  }
}
