import { randomUUID } from 'node:crypto';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { WebStandardStreamableHTTPServerTransport } from '@modelcontextprotocol/server';
import { whenClosed } from '../../lib/closed.ts';
import type { Log } from '../../lib/log.ts';
import { Turns } from '../../lib/turns.ts';
import type { Agent } from '../agents.ts';
import type { JoinRoute, McpRoute } from '../config.ts';
import { Refusal } from '../problem.ts';
import { collect, isUtf8Charset, mediaType, readJson } from '../requests.ts';
import { Exchange, type Served } from './exchange.ts';
import { type Caller, Gate, type GateParts } from './gate.ts';
import { headerMismatch } from './headers.ts';
import { HttpPlace } from './http-place.ts';
import { Join } from './join.ts';
import { JoinedSession } from './joined-session.ts';
import { Rounds } from './rounds.ts';
import { Seal } from './seal.ts';
import { Session } from './session.ts';
import { Unread } from './unread.ts';
import { Upstream } from './upstream.ts';
import { Waiting } from './waiting.ts';
import {
  type Answer,
  asMessage,
  claimedVersion,
  failure,
  HEADER_MISMATCH,
  INVALID_REQUEST,
  isObject,
  type Link,
  METHOD_NOT_FOUND,
  MISSING_CAPABILITY,
  MODERN,
  type Notification,
  UNSUPPORTED_VERSION,
} from './wire.ts';

/** A session that was idle for this long is ended. */
const IDLE_MS = 30 * 60_000;
/** How long a server may take to list its tools before a call to one is decided. */
const LIST_MS = 10_000;
const MOST_SESSIONS = 10_000;
const MOST_SESSIONS_OF_AGENT = 100;
/** Keeps intermediaries from taking a quiet stream for one that has ended. */
const KEEP_ALIVE_MS = 15_000;
/** How much is buffered for an agent that does not read its streams. */
const MOST_UNREAD_BYTES = 16 * 1024 * 1024;

interface Open {
  session: Session | JoinedSession;
  transport: WebStandardStreamableHTTPServerTransport;
  route: McpRoute | JoinRoute;
  /** The agent that started it. */
  owner: string;
  identify: () => Promise<Agent>;
  usedAt: number;
  streams: number;
  /** Whether its client may send further requests. */
  begun: boolean;
}

interface FrontParts extends Omit<GateParts, 'server' | 'waitMs' | 'value' | 'others' | 'listTools' | 'seal'> {
  /** For a route with a sign-in at its server. */
  fetchOf: (route: McpRoute) => typeof fetch | undefined;
  onPolicyChange: (listener: () => void) => () => void;
  /** The maximum length of a request body. */
  maxBodyBytes: number;
  /** The maximum length of a server's message. */
  maxMessageBytes: number;
  names: readonly string[];
  /** The secret that seals the states of open calls; the same in every proxy with the same key. */
  secret: () => string;
  log: Log;
}

interface Server {
  gate: Gate;
  upstream: Upstream;
  exchange: Exchange;
}

/** MCP servers that speak Streamable HTTP, for clients with sessions (up to 2025-11-25) and without (2026-07-28). */
export class McpFront {
  readonly #parts: FrontParts;
  readonly #maxBodyBytes: number;
  readonly #names: readonly string[];
  readonly #sessions = new Map<string, Open>();
  readonly #servers = new Map<McpRoute, Server>();
  readonly #joins = new Map<JoinRoute, Join>();
  readonly #rounds: Rounds;
  readonly #unread = new Unread({ mostBytes: MOST_UNREAD_BYTES });
  readonly #turns = new Turns({ atOnce: 8, mostWaiting: 1000 });
  readonly #seal: Seal;
  readonly #sweep: NodeJS.Timeout;

  constructor(parts: FrontParts) {
    this.#parts = parts;
    this.#names = parts.names;
    this.#maxBodyBytes = parts.maxBodyBytes;
    this.#rounds = new Rounds(parts.secret);
    this.#seal = new Seal(parts.secret);
    this.#sweep = setInterval(() => {
      for (const { session, usedAt, streams } of this.#sessions.values()) {
        if (streams === 0 && Date.now() - usedAt > IDLE_MS) void session.close();
      }
    }, 60_000).unref();
  }

  get sessions(): number {
    return this.#sessions.size;
  }

  async serve(
    route: McpRoute | JoinRoute,
    identify: () => Promise<Agent>,
    request: IncomingMessage,
    response: ServerResponse,
    sourceIp: string | undefined,
  ): Promise<void> {
    this.#assertOwnSite(request);
    const agent = await identify();
    const body = request.method === 'POST' ? await this.#read(request) : undefined;
    const owner = JSON.stringify([agent.id, agent.role]);
    if (isCostly(body)) {
      const done = await this.#turns.take(`${owner} ${route.path}`);
      if (!done) throw new Refusal(429, 'RATE_LIMITED', 'too many lists and sessions are asked for', { retryAfter: 5 });
      whenClosed(response, done);
      if (response.destroyed) return;
    }
    if (body !== undefined && standsAlone(body, request)) {
      await this.#exchange(route, owner, identify, body, request, response, sourceIp);
      return;
    }
    const id = request.headers['mcp-session-id'];
    const open =
      id === undefined ? await this.#begin(route, owner, identify, sourceIp) : this.#sessions.get(String(id));
    // to a client, another agent's session looks like one that has ended: it starts a new one
    if (!open || open.owner !== owner || open.route !== route || (id !== undefined && !open.begun)) {
      throw new Refusal(404, 'NOT_FOUND', 'there is no such session');
    }
    open.identify = identify;
    open.usedAt = Date.now();
    open.streams++;
    whenClosed(response, () => {
      open.streams--;
      open.usedAt = Date.now();
      // nothing is kept without a successful initialization
      if (!open.session.initialized && open.streams === 0) void open.session.close();
    });
    // no one waits for what has not begun
    if (response.destroyed) return;
    const answer = await open.transport.handleRequest(webRequest(request), { parsedBody: body });
    this.#unread.add(owner, response);
    await answerWeb(answer, response, () => this.#unread.makeRoom(owner));
  }

  /** One request of the revision without sessions. */
  async #exchange(
    route: McpRoute | JoinRoute,
    owner: string,
    agent: () => Promise<Agent>,
    body: unknown,
    request: IncomingMessage,
    response: ServerResponse,
    sourceIp: string | undefined,
  ): Promise<void> {
    const message = asMessage(body);
    if (!message || !('method' in message)) {
      const id = isObject(body) && (typeof body.id === 'string' || Number.isSafeInteger(body.id)) ? body.id : null;
      const why = 'the body must be one request or notification of JSON-RPC 2.0';
      sendJson(response, 400, { ...failure(0, INVALID_REQUEST, why), id });
      return;
    }
    if (!('id' in message)) {
      // none is sent over HTTP in this revision: a request is cancelled by closing its stream
      response.writeHead(202).end();
      return;
    }
    const gone = new AbortController();
    whenClosed(response, () => gone.abort());
    if (response.destroyed) return;
    this.#unread.add(owner, response);
    const stream = new Stream(response, () => this.#unread.makeRoom(owner));
    const answer = await this.#servedOf(route).serve(message, {
      agent,
      sourceIp,
      signal: gone.signal,
      notify: (notification) => stream.notify(notification),
      headers: request.headers,
      mismatch: headerMismatch(message, request.headers),
    });
    stream.end(answer);
  }

  /** The messages of a request. Throws a Refusal if it is too long or can be read in more than one way. */
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
   * Throws a Refusal if the request comes from another site's page: if a browser was led here through a name that now resolves to
   * this machine (DNS rebinding), `Host` shows it; any other is shown by `Origin`.
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
    this.#rounds.close();
    await Promise.all([...this.#sessions.values()].map(({ session }) => session.close()));
    await Promise.all([...this.#servers.values()].map(({ upstream }) => upstream.close()));
  }

  async #begin(
    route: McpRoute | JoinRoute,
    owner: string,
    identify: () => Promise<Agent>,
    sourceIp: string | undefined,
  ): Promise<Open> {
    this.#makeRoom(owner);
    const name = randomUUID();
    const transport = new WebStandardStreamableHTTPServerTransport({
      sessionIdGenerator: () => name,
      onsessioninitialized: () => {
        open.begun = true;
      },
    });
    const client = transport as unknown as Link;
    const agent = () => open.identify();
    const open: Open = {
      session:
        'join' in route
          ? new JoinedSession({ client, served: this.#servedOf(route), log: this.#parts.log, agent, name, sourceIp })
          : this.#session(route, client, { agent, session: () => name, sourceIp }),
      transport,
      route,
      owner,
      identify,
      usedAt: Date.now(),
      streams: 0,
      begun: false,
    };
    open.session.onClose = () => this.#sessions.delete(name);
    // before it has started, so that sessions that start at the same time count
    this.#sessions.set(name, open);
    await open.session.start();
    return open;
  }

  #session(route: McpRoute, client: Link, caller: Caller): Session {
    const { gate, upstream } = this.#serverOf(route);
    const server = upstream.link();
    // the server may keep a session of its own, which ends with this one
    const ending = async () => server.terminate?.();
    return new Session({ ...this.#parts, gate, client, server, caller, ending });
  }

  #servedOf(route: McpRoute | JoinRoute): Served {
    if ('mcp' in route) return this.#serverOf(route).exchange;
    const known = this.#joins.get(route);
    if (known) return known;
    const servers = new Map(Array.from(route.join, ([name, one]) => [name, this.#serverOf(one).exchange]));
    const made = new Join(servers, { log: this.#parts.log });
    this.#joins.set(route, made);
    return made;
  }

  #serverOf(route: McpRoute): Server {
    const known = this.#servers.get(route);
    if (known) return known;
    const { log, maxMessageBytes: maxBytes } = this.#parts;
    const { server, value, wait_seconds, others } = route;
    const fetch = this.#parts.fetchOf(route);
    const place = { url: new URL(route.mcp), headers: () => route.headers, maxBytes, ...(fetch && { fetch }) };
    const upstream = new Upstream(new HttpPlace(place), { log });
    const gate = new Gate({
      ...this.#parts,
      server,
      value,
      others,
      waitMs: wait_seconds * 1000,
      seal: this.#seal,
      listTools: () => upstream.tools(AbortSignal.timeout(LIST_MS)),
    });
    const waiting = new Waiting({ ...this.#parts, server, seal: this.#seal });
    const exchange = new Exchange({ ...this.#parts, gate, upstream, rounds: this.#rounds, waiting });
    const made = { gate, upstream, exchange };
    this.#servers.set(route, made);
    return made;
  }

  /**
   * An agent at its limit loses the session that was idle longest; if all of them are in use, the new one is refused. If all
   * agents together are at the limit, the one with the most sessions loses one.
   */
  #makeRoom(owner: string): void {
    const byOwner = Map.groupBy(this.#sessions.values(), (open) => open.owner);
    let crowd = byOwner.get(owner) ?? [];
    if (crowd.length < MOST_SESSIONS_OF_AGENT) {
      if (this.#sessions.size < MOST_SESSIONS) return;
      for (const sessions of byOwner.values()) if (sessions.length > crowd.length) crowd = sessions;
    }
    const [idle] = crowd
      .filter(({ streams, session }) => streams === 0 && !session.busy)
      .sort((a, b) => a.usedAt - b.usedAt);
    if (!idle) throw new Refusal(429, 'RATE_LIMITED', 'too many sessions are in use', { retryAfter: 60 });
    // removed before it has ended, which may take its server some time
    for (const [name, open] of this.#sessions) if (open === idle) this.#sessions.delete(name);
    void idle.session.close();
  }
}

/** Whether it starts a session or requests a list: much work for a short request, which policies do not limit. */
function isCostly(body: unknown): boolean {
  return (Array.isArray(body) ? body : [body]).some(
    (one) => isObject(one) && /^(?:initialize|server\/discover|[\w/]+\/list)$/.test(String(one.method)),
  );
}

/** Whether the message belongs to no session: it, or its header, names a revision without sessions. */
function standsAlone(body: unknown, { headers }: IncomingMessage): boolean {
  if (Array.isArray(body)) return body.some((one) => claimedVersion(one) !== undefined);
  const named = String(headers['mcp-protocol-version'] ?? '');
  const asks = isObject(body) && body.method === 'server/discover';
  return asks || claimedVersion(body) !== undefined || (/^\d{4}-\d{2}-\d{2}$/.test(named) && named >= MODERN);
}

/** The statuses that the revision requires; every other answer is up to the application. */
function statusOf(answer: Answer): number {
  if ('result' in answer) return 200;
  const { code, data } = answer.error;
  if (code === METHOD_NOT_FOUND) return 404;
  if ([HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION, INVALID_REQUEST].includes(code)) return 400;
  return isObject(data) && data.envelope === true ? 400 : 200;
}

function sendJson(response: ServerResponse, status: number, value: unknown): void {
  const body = JSON.stringify(value);
  response
    .writeHead(status, {
      'content-type': 'application/json',
      'content-length': Buffer.byteLength(body),
      'cache-control': 'no-store',
    })
    .end(body);
}

/** The answer to one request: JSON, or an event stream if something has to be sent before the answer. */
class Stream {
  readonly #response: ServerResponse;
  readonly #makeRoom: () => void;
  #alive: NodeJS.Timeout | undefined;

  constructor(response: ServerResponse, makeRoom: () => void) {
    this.#response = response;
    this.#makeRoom = makeRoom;
  }

  notify(message: Notification): void {
    const response = this.#response;
    if (response.destroyed || response.writableEnded) return;
    if (!response.headersSent) {
      response.writeHead(200, {
        'content-type': 'text/event-stream',
        'cache-control': 'no-store',
        'x-accel-buffering': 'no',
      });
      this.#alive = setInterval(() => response.write(':\n\n'), KEEP_ALIVE_MS).unref();
      response.once('close', () => clearInterval(this.#alive));
    }
    this.#makeRoom();
    if (!response.destroyed) response.write(event(message));
  }

  end(answer: Answer | undefined): void {
    const response = this.#response;
    clearInterval(this.#alive);
    if (response.destroyed) return;
    if (!answer) {
      response.destroy();
      return;
    }
    this.#makeRoom();
    if (response.destroyed) return;
    if (response.headersSent) response.end(event(answer));
    else sendJson(response, statusOf(answer), answer);
  }
}

/** JSON has no line breaks, so that nothing in a message can end its event. */
function event(message: Notification | Answer): string {
  return `event: message\ndata: ${JSON.stringify(message)}\n\n`;
}

function webRequest({ method = 'GET', headers, url = '/' }: IncomingMessage): Request {
  const given = new Headers();
  for (const [name, value] of Object.entries(headers)) if (typeof value === 'string') given.set(name, value);
  return new Request(new URL(url, 'http://proxy.invalid'), { method, headers: given });
}

/** The entire answer; for a stream, each part as it arrives, whether or not the client has read the previous one. */
async function answerWeb(answer: Response, response: ServerResponse, makeRoom: () => void): Promise<void> {
  response.writeHead(answer.status, Object.fromEntries(answer.headers));
  if (!answer.body) {
    response.end();
    return;
  }
  response.flushHeaders();
  const reader = answer.body.getReader();
  whenClosed(response, () => void reader.cancel().catch(() => {}));
  try {
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      makeRoom();
      if (response.destroyed) return;
      response.write(part.value);
    }
    response.end();
  } catch {
    response.destroy();
  }
}
