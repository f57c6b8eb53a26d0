import { randomUUID } from 'node:crypto';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import type { Transport } from '@modelcontextprotocol/sdk/shared/transport.js';
import type { Agent } from './agents.ts';
import type { McpRoute } from './config.ts';
import { Bridge, type BridgeParts } from './mcp-bridge.ts';
import { Refusal } from './problem.ts';
import { collect, isUtf8Charset, mediaType, readJson } from './requests.ts';

/** A session that was idle for this long is ended. */
const IDLE_MS = 30 * 60_000;
const MOST_SESSIONS = 10_000;
const MOST_SESSIONS_OF_AGENT = 100;

interface Session {
  bridge: Bridge;
  transport: StreamableHTTPServerTransport;
  route: McpRoute;
  /** Of the agent that began it. */
  owner: string;
  identify: () => Promise<Agent>;
  usedAt: number;
  streams: number;
  /** Its client may send further requests. */
  begun: boolean;
}

/** MCP servers that speak Streamable HTTP: each session of a client has a session of its own at the server. */
export class McpFront {
  readonly #parts: Omit<BridgeParts, 'server' | 'waitMs' | 'value'>;
  readonly #maxBodyBytes: number;
  readonly #names: readonly string[];
  readonly #sessions = new Map<string, Session>();
  readonly #sweep: NodeJS.Timeout;

  constructor(
    parts: Omit<BridgeParts, 'server' | 'waitMs' | 'value'> & { maxBodyBytes: number; names: readonly string[] },
  ) {
    this.#parts = parts;
    this.#names = parts.names;
    this.#maxBodyBytes = parts.maxBodyBytes;
    this.#sweep = setInterval(() => {
      for (const { bridge, usedAt, streams } of this.#sessions.values()) {
        if (streams === 0 && Date.now() - usedAt > IDLE_MS) void bridge.close();
      }
    }, 60_000).unref();
  }

  get sessions(): number {
    return this.#sessions.size;
  }

  async serve(
    route: McpRoute,
    identify: () => Promise<Agent>,
    request: IncomingMessage,
    response: ServerResponse,
    sourceIp: string | undefined,
  ): Promise<void> {
    this.#assertOwnSite(request);
    const agent = await identify();
    const owner = JSON.stringify([agent.id, agent.role]);
    const id = request.headers['mcp-session-id'];
    const session =
      id === undefined ? await this.#begin(route, owner, identify, sourceIp) : this.#sessions.get(String(id));
    // to a client, another agent's session is like one that has ended: it begins a new one
    if (!session || session.owner !== owner || session.route !== route || (id !== undefined && !session.begun)) {
      throw new Refusal(404, 'NOT_FOUND', 'there is no such session');
    }
    session.identify = identify;
    session.usedAt = Date.now();
    session.streams++;
    response.once('close', () => {
      session.streams--;
      session.usedAt = Date.now();
      // nothing is kept without a successful initialization
      if (!session.bridge.initialized && session.streams === 0) void session.bridge.close();
    });
    const body = request.method === 'POST' ? await this.#read(request) : undefined;
    await session.transport.handleRequest(request, response, body);
  }

  /** The messages of a request. Throws a Refusal on what is too long or has more than one reading. */
  async #read(request: IncomingMessage): Promise<unknown> {
    const { type, charset } = mediaType(request.headers['content-type']) ?? {};
    if (type !== 'application/json' || !isUtf8Charset(charset) || request.headers['content-encoding'] !== undefined) {
      throw new Refusal(415, 'UNSUPPORTED_MEDIA_TYPE', 'messages must come as JSON in UTF-8, without a content coding');
    }
    const bytes = await collect(request, this.#maxBodyBytes);
    if (!bytes) throw new Refusal(413, 'PAYLOAD_TOO_LARGE', `messages may have ${this.#maxBodyBytes} bytes`);
    return readJson(bytes);
  }

  /**
   * Throws a Refusal where a page of another site sends the request: one that a browser was led to by a name that has
   * come to mean this machine (DNS rebinding) gives itself away by `Host`, any other by `Origin`.
   */
  #assertOwnSite({ headers, socket }: IncomingMessage): void {
    const hostOf = (url: string) => (URL.canParse(url) ? new URL(url).hostname : undefined);
    const host = hostOf(`http://${headers.host}`);
    const isLocal = /^(?:127\.|::1$|::ffff:127\.)/.test(socket.localAddress ?? '');
    const local = host !== undefined && /^(?:localhost|127(?:\.\d+){3}|\[::1\])$/.test(host);
    const named = host !== undefined && this.#names.includes(host);
    if (host === undefined || !(named || local || (!isLocal && this.#names.length === 0))) {
      throw new Refusal(403, 'FORBIDDEN', 'the request is for another host than this one (see SVC_PROXY_NAMES)');
    }
    const { origin } = headers;
    if (origin === undefined) return;
    const site = hostOf(origin);
    if (site === undefined || (site !== host && !this.#names.includes(site))) {
      throw new Refusal(403, 'FORBIDDEN', 'the request comes from a page of another site');
    }
  }

  async stop(): Promise<void> {
    clearInterval(this.#sweep);
    await Promise.all([...this.#sessions.values()].map(({ bridge }) => bridge.close()));
  }

  async #begin(
    route: McpRoute,
    owner: string,
    identify: () => Promise<Agent>,
    sourceIp: string | undefined,
  ): Promise<Session> {
    this.#makeRoom(owner);
    const name = randomUUID();
    const transport = new StreamableHTTPServerTransport({
      sessionIdGenerator: () => name,
      onsessioninitialized: () => {
        session.begun = true;
      },
      maxRequestBodySize: this.#maxBodyBytes,
    });
    const serverTransport = new StreamableHTTPClientTransport(new URL(route.mcp), {
      requestInit: { headers: route.headers },
    });
    const session: Session = {
      bridge: new Bridge({
        ...this.#parts,
        server: route.server,
        waitMs: route.wait_seconds * 1000,
        value: route.value,
        // the SDK's own types are not written for exactOptionalPropertyTypes
        client: transport as Transport,
        serverTransport: serverTransport as Transport,
        agent: () => session.identify(),
        session: name,
        sourceIp,
        // the server may keep a session of its own, which ends with this one
        ending: () => serverTransport.terminateSession(),
      }),
      transport,
      route,
      owner,
      identify,
      usedAt: Date.now(),
      streams: 0,
      begun: false,
    };
    session.bridge.onClose = () => this.#sessions.delete(name);
    // before it has started, so that sessions that begin at the same time count
    this.#sessions.set(name, session);
    await session.bridge.start();
    return session;
  }

  /**
   * An agent at its limit loses the session that was idle for the longest; where all of them are in use it is refused.
   * Where all agents together are at the limit, the one with the most sessions loses one.
   */
  #makeRoom(owner: string): void {
    const byOwner = Map.groupBy(this.#sessions.values(), (session) => session.owner);
    let crowd = byOwner.get(owner) ?? [];
    if (crowd.length < MOST_SESSIONS_OF_AGENT) {
      if (this.#sessions.size < MOST_SESSIONS) return;
      for (const sessions of byOwner.values()) if (sessions.length > crowd.length) crowd = sessions;
    }
    const [idle] = crowd
      .filter(({ streams, bridge }) => streams === 0 && !bridge.busy)
      .sort((a, b) => a.usedAt - b.usedAt);
    if (!idle) throw new Refusal(429, 'RATE_LIMITED', 'too many sessions are in use', { retryAfter: 60 });
    // removed before it has ended, which may take its server some time
    for (const [name, session] of this.#sessions) if (session === idle) this.#sessions.delete(name);
    void idle.bridge.close();
  }
}
