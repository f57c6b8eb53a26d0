import http, {
  type IncomingHttpHeaders,
  type IncomingMessage,
  type OutgoingHttpHeaders,
  type ServerResponse,
} from 'node:http';
import https from 'node:https';
import type { AddressInfo, BlockList } from 'node:net';
import { pipeline } from 'node:stream/promises';
import { sha256Tag } from '../lib/crypto.ts';
import type { Log } from '../lib/log.ts';
import { applyMasks, type Mask, parseExact } from '../policy/evaluation/masks.ts';
import { type Agent, AgentError, type Agents, isPlain } from './agents.ts';
import type { HttpRoute, McpRoute, ProxyConfig } from './config.ts';
import { type Enforcer, Refusal, type Ruling } from './decide.ts';
import { retryAfter } from './holds.ts';
import {
  type CodingError,
  checkHeaders,
  clientAddress,
  collect,
  connectionOptions,
  decode,
  findRoute,
  isJson,
  isParsable,
  isPlainHeader,
  isStructured,
  isUtf8Charset,
  mediaType,
  members,
  overridesMethod,
  type ReadBody,
  readBody,
  readTarget,
  trustedAddresses,
  upstreamUrl,
} from './requests.ts';

/** Connection-specific (RFC 9110 §7.6.1): they concern one connection and are not passed on. */
const HOP_BY_HOP = [
  'connection',
  'keep-alive',
  'proxy-authenticate',
  'proxy-authorization',
  'proxy-connection',
  'te',
  'trailer',
  'transfer-encoding',
  'upgrade',
];
/** What the proxy itself says to the upstream, or what would make the request another one than was decided on. */
const REPLACED = [
  'host',
  'content-length',
  'expect',
  'forwarded',
  'x-real-ip',
  'x-client-ip',
  'true-client-ip',
  'x-http-method',
];
const REPLACED_KINDS = /^x-(?:svc|forwarded|original|rewrite|envoy)-|-override$/;
/** Of bytes that are no longer those that came. */
const OF_THE_BYTES = [
  'content-encoding',
  'content-md5',
  'content-digest',
  'repr-digest',
  'digest',
  'etag',
  'accept-ranges',
];

/** A released answer of the MCP routes is not made here. */
export type ServeMcp = (
  route: McpRoute,
  agent: () => Promise<Agent>,
  request: IncomingMessage,
  response: ServerResponse,
  sourceIp: string | undefined,
) => Promise<void>;

/** Answers for the proxy's own paths: `/healthz`, `/readyz`, `/metrics`. */
export type OwnPage = () => Promise<{ status: number; type: string; body: string }>;

/**
 * The HTTP enforcement point: tells the agent, reads the request, has it decided, and forwards it by the route table or
 * answers why not. What is forwarded is what was decided on.
 */
export class HttpFront {
  readonly #config: ProxyConfig;
  readonly #enforcer: Enforcer;
  readonly #agents: Agents;
  readonly #mcp: ServeMcp;
  readonly #own: ReadonlyMap<string, OwnPage>;
  readonly #log: Log;
  readonly #trusted: BlockList;
  readonly #server: http.Server | https.Server;
  readonly #pools = {
    'http:': new http.Agent({ keepAlive: true, maxFreeSockets: 256, scheduling: 'lifo' }),
    'https:': new https.Agent({ keepAlive: true, maxFreeSockets: 256, scheduling: 'lifo' }),
  };
  /** Told of every request that ended without a decision. */
  onRefusal: (code: string) => void = () => {};

  constructor(parts: {
    config: ProxyConfig;
    enforcer: Enforcer;
    agents: Agents;
    mcp: ServeMcp;
    own: ReadonlyMap<string, OwnPage>;
    log: Log;
  }) {
    this.#config = parts.config;
    this.#enforcer = parts.enforcer;
    this.#agents = parts.agents;
    this.#mcp = parts.mcp;
    this.#own = parts.own;
    this.#log = parts.log;
    this.#trusted = trustedAddresses(parts.config.trust);
    // Strict parsing is Node's default: a request with both Content-Length and Transfer-Encoding, or with a malformed
    // header, is answered 400 and its connection closed (RFC 9112 §6.3).
    const timeouts = { headersTimeout: 20_000, requestTimeout: 300_000, insecureHTTPParser: false };
    const { tls } = parts.config;
    this.#server = tls ? https.createServer({ ...timeouts, ...tls() }) : http.createServer(timeouts);
    this.#server.on('request', (request, response) => void this.#serve(request, response));
    this.#server.on('connect', (_request, socket) => socket.destroy());
    this.#server.on('upgrade', (_request, socket) => {
      socket.end('HTTP/1.1 501 Not Implemented\r\nconnection: close\r\ncontent-length: 0\r\n\r\n');
    });
  }

  async listen(): Promise<string> {
    await new Promise<void>((resolve, reject) => {
      this.#server.once('error', reject);
      this.#server.listen(this.#config.port, this.#config.host, resolve);
    });
    const { address, port, family } = this.#server.address() as AddressInfo;
    return `${this.#scheme}://${family === 'IPv6' ? `[${address}]` : address}:${port}`;
  }

  get #scheme(): 'http' | 'https' {
    return this.#server instanceof https.Server ? 'https' : 'http';
  }

  /** Serves TLS with what is in the files now; connections that there are go on as they are. Throws a ConfigError. */
  renewTls(): void {
    const { tls } = this.#config;
    if (tls && this.#server instanceof https.Server) this.#server.setSecureContext(tls());
  }

  /** Takes no more connections, lets the requests under way finish for at most so long, then cuts them. */
  async stop(mostMs: number): Promise<void> {
    const cut = setTimeout(() => this.#server.closeAllConnections(), mostMs);
    await new Promise<void>((resolve) => {
      this.#server.close(() => resolve());
      this.#server.closeIdleConnections();
    });
    clearTimeout(cut);
    for (const pool of Object.values(this.#pools)) pool.destroy();
  }

  async #serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    response.on('error', () => {});
    try {
      await this.#route(request, response);
    } catch (error) {
      if (response.headersSent || response.destroyed) {
        response.destroy();
        return;
      }
      if (error instanceof Refusal) {
        this.onRefusal(error.code);
        answer(request, response, error.status, error.code, error.message, error.more);
      } else if (error instanceof AgentError) {
        const code = error.unavailable ? 'UNAVAILABLE' : 'UNAUTHENTICATED';
        this.onRefusal(code);
        this.#log.info({ detail: error.message }, 'no agent');
        const retry = error.unavailable ? { retryAfter: 5 } : {};
        answer(
          request,
          response,
          error.unavailable ? 503 : 401,
          code,
          'an agent key or token that works is needed',
          retry,
        );
      } else {
        this.onRefusal('INTERNAL');
        this.#log.error({ err: error }, 'the proxy failed');
        answer(request, response, 500, 'INTERNAL', 'the proxy failed; nothing was forwarded');
      }
    }
  }

  async #route(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { path, query } = readTarget(request.url ?? '');
    const page = this.#own.get(path);
    if (page) {
      const { status, type, body } = await page();
      response.writeHead(status, { 'content-type': type, 'cache-control': 'no-store' }).end(body);
      return;
    }
    const { method = '' } = request;
    checkHeaders(request, []);
    if (method === 'TRACE') throw new Refusal(405, 'METHOD_NOT_ALLOWED', 'this method is not forwarded');
    const credential = credentialOf(request.headers);
    const identify = () => this.#agents.identify(credential.text);
    const agent = await identify();
    const found = findRoute(this.#config.routes, path);
    if (!found) throw new Refusal(404, 'NOT_FOUND', 'no route has this path');
    const sourceIp = clientAddress(
      request.socket.remoteAddress,
      String(request.headers['x-forwarded-for'] ?? ''),
      this.#trusted,
    );
    const { route, rest } = found;
    if ('mcp' in route) return this.#mcp(route, identify, request, response, sourceIp || undefined);
    return this.#forwardDecided({
      request,
      response,
      method,
      route,
      rest,
      query,
      agent,
      identify,
      credential,
      sourceIp,
    });
  }

  async #forwardDecided(call: Call): Promise<void> {
    const { request, response, method, route, query } = call;
    if (route.decide_on_headers.length > 0) checkHeaders(request, route.decide_on_headers);
    const url = upstreamUrl(route, call.rest, query);
    const streamed = route.opaque_bodies && isStreamed(request, this.#config.bodyBytes);
    const waits = !streamed && !request.complete;
    const body = streamed ? undefined : await this.#read(request, route);
    // a body may take minutes to come, and the credential may have been revoked since
    const agent = waits ? await call.identify() : call.agent;
    const parameters = query.length > 1 ? members(new URLSearchParams(query.slice(1))) : undefined;
    if (overridesMethod(parameters, body?.value)) {
      throw new Refusal(400, 'VALIDATION_FAILED', 'the request names another method among its parameters');
    }
    const args = {
      ...(parameters && { query: parameters }),
      ...(route.decide_on_headers.length > 0 && { headers: chosen(request.headers, route.decide_on_headers) }),
      ...(body?.value !== undefined && { body: body.value }),
      ...(streamed && { body: { streamed: true } }),
    };
    const ruled = this.#enforcer.rule({
      agent,
      action_type: route.action_type,
      tool_name: route.tool,
      tool_server: route.server,
      method,
      resource: url.href,
      arguments: args,
      value: route.value,
      session_id: named(request.headers['x-svc-session-id'], 'X-Svc-Session-Id'),
      source_ip: call.sourceIp || undefined,
      summary: `${method} ${url.origin}${url.pathname}`,
      escrowId: named(request.headers['x-svc-escrow-id'], 'X-Svc-Escrow-Id'),
      ...(streamed && { unholdable: 'a body that is streamed cannot be held: it must be whole to be approved' }),
    });
    // while the disk is waited for
    const unmasked = this.#upstreamHeaders(call, url, body, []);
    const ruling = await ruled;
    response.setHeader('x-svc-decision', ruling.decision);
    response.setHeader('x-svc-event-id', ruling.eventId);
    if (!('done' in ruling)) {
      this.#refuse(request, response, ruling);
      return;
    }
    const { masks, done } = ruling;
    let bytes = body?.bytes;
    if (masks.length > 0 && (streamed || (body && body.kind !== 'none'))) {
      if (body?.kind !== 'json') {
        done('not forwarded: the body cannot be masked');
        throw new Refusal(415, 'MASKING_FAILED', 'what a policy masks must come as JSON');
      }
      bytes = Buffer.from(JSON.stringify(applyMasks(JSON.parse(body.bytes.toString()), masks)));
    }
    const headers = masks.length === 0 ? unmasked : this.#upstreamHeaders(call, url, body, masks);
    await this.#forward({ call, url, headers, bytes, masks, done });
  }

  /** The whole body, decoded and understood. Throws a Refusal. */
  async #read(request: IncomingMessage, route: HttpRoute): Promise<ReadBody> {
    const most = this.#config.bodyBytes;
    const tooLong = () => new Refusal(413, 'PAYLOAD_TOO_LARGE', `a body may have ${most} bytes`);
    if (Number(request.headers['content-length'] ?? 0) > most) throw tooLong();
    const raw = await collect(request, most);
    if (!raw) throw tooLong();
    const { 'content-type': type, 'content-encoding': codings } = request.headers;
    const plain = await decode(raw, codings, most).catch((error: CodingError) => {
      throw error.tooLong ? tooLong() : new Refusal(415, 'UNSUPPORTED_MEDIA_TYPE', `the body ${error.message}`);
    });
    const digest = (bytes: Buffer) => ({
      sha256: sha256Tag(bytes),
      bytes: bytes.length,
      type: mediaType(type)?.type ?? '',
    });
    const body = readBody(plain, type, route.opaque_bodies && digest);
    return { ...body, rewritten: body.rewritten || plain !== raw };
  }

  #upstreamHeaders(
    { request, route, credential, sourceIp }: Call,
    url: URL,
    body: ReadBody | undefined,
    masks: readonly Mask[],
  ) {
    const headers = endToEnd(request.headers);
    const own = Object.keys(route.headers).map((name) => name.replace(/[^a-z0-9]/g, '-'));
    for (const name of Object.keys(headers)) {
      if (REPLACED.includes(name) || REPLACED_KINDS.test(name) || own.includes(name) || !isPlainHeader(name)) {
        delete headers[name];
      }
    }
    // an upstream's own credential may come from the agent; the agent's own never leaves
    if (credential.header === 'authorization' || /^\s*bearer\s+svc_/i.test(String(headers.authorization ?? ''))) {
      delete headers.authorization;
    }
    if (body?.rewritten || masks.length > 0) for (const name of OF_THE_BYTES) delete headers[name];
    if (masks.length > 0) {
      // what is masked must come whole and plain
      for (const name of ['range', 'if-range', 'accept-encoding']) delete headers[name];
      headers['accept-encoding'] = 'identity';
    }
    Object.assign(headers, route.headers);
    headers.host = url.host;
    if (sourceIp) headers['x-forwarded-for'] = sourceIp;
    if (request.headers.host) headers['x-forwarded-host'] = request.headers.host;
    headers['x-forwarded-proto'] = this.#scheme;
    headers.via = [request.headers.via, '1.1 svc-proxy'].filter(Boolean).join(', ');
    return headers;
  }

  async #forward(going: Going): Promise<void> {
    const { call, done, masks } = going;
    const { response, route } = call;
    const ms = route.timeout_seconds === undefined ? this.#config.upstreamMs : route.timeout_seconds * 1000;
    let timedOut = false;
    const gone = () => {
      going.givenUp = true;
      going.sent?.destroy();
    };
    response.once('close', gone);
    const timer = setTimeout(() => {
      timedOut = true;
      gone();
    }, ms);
    let told = false;
    const tell = (outcome: string) => {
      if (!told) done(outcome);
      told = true;
    };
    try {
      const upstream = await this.#send(going);
      const status = upstream.statusCode ?? 502;
      if (masks.length > 0) {
        await this.#answerMasked(upstream, going, tell);
        return;
      }
      clearTimeout(timer);
      // the client need not wait for what is noted
      setImmediate(tell, `HTTP ${status}`);
      response.writeHead(status, this.#answerHeaders(upstream, call, going.url));
      // a stream's head must not wait for its first part; of a known length, head and body go in one write
      if (upstream.headers['content-length'] === undefined) response.flushHeaders();
      await passOn(upstream, response);
    } catch (error) {
      const clientGone = response.destroyed && !response.writableFinished;
      tell(clientGone ? 'the client has gone' : timedOut ? 'upstream timeout' : 'upstream unreachable');
      if (clientGone || response.headersSent) {
        response.destroy();
        return;
      }
      if (error instanceof Refusal) throw error;
      this.#log.warn({ err: error, upstream: going.url.host }, 'the upstream failed');
      if (timedOut) throw new Refusal(504, 'UPSTREAM_TIMEOUT', 'the upstream did not answer in time');
      throw new Refusal(502, 'UPSTREAM_FAILED', 'the upstream could not be reached, or broke off');
    } finally {
      clearTimeout(timer);
      response.off('close', gone);
    }
  }

  /** Sends the request; resolves with the head of the answer. */
  async #send(going: Going): Promise<IncomingMessage> {
    const { call, url, headers, bytes } = going;
    const { request, method } = call;
    const safe = method === 'GET' || method === 'HEAD' || method === 'OPTIONS';
    for (let again = false; ; again = true) {
      const protocol = url.protocol as 'http:' | 'https:';
      const options = {
        protocol,
        hostname: url.hostname.replace(/^\[(.*)\]$/, '$1'),
        port: url.port || undefined,
        path: url.pathname + url.search,
        method,
        headers,
        agent: this.#pools[protocol],
      };
      const sent = (protocol === 'https:' ? https : http).request(options);
      going.sent = sent;
      let begun = false;
      const answered = new Promise<IncomingMessage>((resolve, reject) => {
        sent.once('response', (head) => {
          begun = true;
          resolve(head);
        });
        sent.once('error', reject);
        sent.once('close', () => begun || reject(new Error('the request was given up')));
        sent.once('upgrade', () => reject(new Error('the upstream wants another protocol')));
      });
      if (bytes) {
        if (bytes.length > 0 || method === 'POST' || method === 'PUT' || method === 'PATCH') {
          sent.setHeader('content-length', bytes.length);
        }
        sent.end(bytes);
      } else {
        const length = request.headers['content-length'];
        // said in any case: for methods that have no body as a rule, Node would send it without any framing, and the
        // upstream take it for the next request
        if (length !== undefined) sent.setHeader('content-length', length);
        else sent.setHeader('transfer-encoding', 'chunked');
        pipeline(request, sent).catch((error) => sent.destroy(error));
      }
      try {
        return await answered;
      } catch (error) {
        // A kept connection may have been closed by the other side just then. What changes nothing may be asked again
        // (RFC 9110 §9.2.2); of anything else nobody knows whether it was done.
        const stale = (error as NodeJS.ErrnoException).code === 'ECONNRESET' && sent.reusedSocket;
        if (!safe || !stale || again || !bytes || going.givenUp) throw error;
      }
    }
  }

  #answerHeaders(upstream: IncomingMessage, { route, rest, request }: Call, url: URL): OutgoingHttpHeaders {
    const headers: OutgoingHttpHeaders = endToEnd(upstream.headers);
    for (const name of Object.keys(headers)) if (name.startsWith('x-svc-')) delete headers[name];
    const { location } = upstream.headers;
    if (location !== undefined && URL.canParse(location, url.href)) {
      // within the upstream: its place behind the proxy, or the agent would go there past it
      const to = new URL(location, url.href);
      const base = new URL(route.to);
      const within = base.pathname.replace(/\/$/, '');
      const { path } = readTarget(request.url ?? '');
      const prefix = path.slice(0, path.length - rest.length);
      if (to.origin === base.origin && (to.pathname === within || to.pathname.startsWith(`${within}/`))) {
        headers.location = `${prefix}${to.pathname.slice(within.length)}${to.search}${to.hash}`;
      }
    }
    return headers;
  }

  /** The answer with its masks applied, or none of it: what cannot be masked is not shown. */
  async #answerMasked(upstream: IncomingMessage, { call, url, masks }: Going, tell: (outcome: string) => void) {
    const { response, method } = call;
    const status = upstream.statusCode ?? 502;
    const headers = this.#answerHeaders(upstream, call, url);
    for (const name of [...OF_THE_BYTES, 'content-length', 'content-range']) delete headers[name];
    const withhold = (why: string) => {
      upstream.destroy();
      tell(`HTTP ${status}, withheld: ${why}`);
      return new Refusal(502, 'MASKING_FAILED', `the upstream answered ${status}; the answer is withheld: it ${why}`);
    };
    const bodiless = method === 'HEAD' || status === 204 || status === 304;
    const said = upstream.headers['content-type'];
    const { type, charset } = mediaType(said) ?? { type: said ?? '', charset: undefined };
    const length = upstream.headers['content-length'];
    if (!bodiless && length !== '0' && !isJson(type) && type !== '')
      throw withhold('is not JSON, so it cannot be masked');
    const most = this.#config.maskBytes;
    const raw = await collect(upstream, most);
    if (!raw) throw withhold(`has more than ${most} bytes`);
    let bytes = raw;
    if (raw.length > 0) {
      if (!isJson(type) || !isUtf8Charset(charset)) {
        throw withhold('is not JSON, so it cannot be masked');
      }
      let plain: Buffer;
      try {
        plain = await decode(raw, upstream.headers['content-encoding'], most);
      } catch (error) {
        throw withhold((error as CodingError).message);
      }
      if (!isParsable(plain)) throw withhold('is not JSON, so it cannot be masked');
      try {
        bytes = Buffer.from(JSON.stringify(applyMasks(parseExact(plain.toString()), masks)));
      } catch {
        throw withhold('is not JSON, so it cannot be masked');
      }
    }
    tell(`HTTP ${status}`);
    if (!bodiless) headers['content-length'] = bytes.length;
    response.writeHead(status, headers).end(bytes);
  }

  #refuse(
    request: IncomingMessage,
    response: ServerResponse,
    ruling: Exclude<Ruling, { done: (outcome: string) => void }>,
  ): void {
    switch (ruling.decision) {
      case 'deny':
        if (ruling.standstill) {
          answer(request, response, 503, 'UNAVAILABLE', ruling.reason, { retryAfter: 15, event_id: ruling.eventId });
        } else answer(request, response, 403, 'DENIED', ruling.reason, { event_id: ruling.eventId });
        return;
      case 'rate_limited':
        answer(request, response, 429, 'RATE_LIMITED', 'a limit of the policies is exceeded', {
          retryAfter: ruling.retryAfter,
          event_id: ruling.eventId,
        });
        return;
      case 'escrow': {
        const { hold, reason } = ruling;
        const detail =
          hold.status === 'released'
            ? 'The action was approved: repeat the request as it is, with the header X-Svc-Escrow-Id.'
            : 'The action is held. When it is released, repeat the request as it is, with the header X-Svc-Escrow-Id.';
        answer(request, response, 423, 'ESCROW_HELD', detail, {
          retryAfter: retryAfter(hold, Date.now()),
          event_id: ruling.eventId,
          escrowId: hold.id,
          escrow_id: hold.id,
          escrow_status: hold.status,
          status_url: `${this.#config.url}/v1/escrow/${hold.id}`,
          hold_type: hold.hold_type,
          required_approvals: hold.required_approvals,
          current_approvals: hold.current_approvals,
          expires_at: hold.expires_at,
          reason,
        });
      }
    }
  }
}

interface Call {
  request: IncomingMessage;
  response: ServerResponse;
  method: string;
  route: HttpRoute;
  rest: string;
  query: string;
  agent: Agent;
  /** The same agent, if its credential still works. */
  identify: () => Promise<Agent>;
  credential: Credential;
  sourceIp: string;
}

interface Going {
  call: Call;
  url: URL;
  headers: OutgoingHttpHeaders;
  /** Undefined when the request's body is streamed. */
  bytes: Buffer | undefined;
  masks: readonly Mask[];
  done: (outcome: string) => void;
  /** The request under way, to be given up when its time is over or the client has gone. */
  sent?: http.ClientRequest;
  givenUp?: boolean;
}

interface Credential {
  text: string;
  header: 'authorization' | 'x-svc-agent-key';
}

/** The agent's credential: `X-Svc-Agent-Key` where Authorization is the upstream's, else the bearer of Authorization. */
function credentialOf(headers: IncomingHttpHeaders): Credential {
  const own = headers['x-svc-agent-key'];
  if (typeof own === 'string' && own !== '') return { text: own.trim(), header: 'x-svc-agent-key' };
  const [, bearer] = /^\s*bearer\s+(\S+)\s*$/i.exec(headers.authorization ?? '') ?? [];
  if (bearer === undefined) throw new AgentError('the request has no credential');
  return { text: bearer, header: 'authorization' };
}

/** A header that names something; undefined when it is absent. */
function named(value: string | string[] | undefined, name: string): string | undefined {
  if (value === undefined || value === '') return undefined;
  if (typeof value === 'string' && value.length <= 200 && isPlain(value)) return value;
  throw new Refusal(400, 'VALIDATION_FAILED', `the header ${name} is not a name`);
}

function chosen(headers: IncomingHttpHeaders, names: readonly string[]): Record<string, string> {
  return Object.fromEntries(
    names.flatMap((name) => (headers[name] === undefined ? [] : [[name, String(headers[name])]])),
  );
}

/** The headers without those that concern this connection alone, named in `Connection` or in general. */
function endToEnd(headers: IncomingHttpHeaders): OutgoingHttpHeaders {
  const kept: OutgoingHttpHeaders = { ...headers };
  for (const name of [...HOP_BY_HOP, ...connectionOptions(headers.connection)]) delete kept[name];
  return kept;
}

/**
 * Resolves when all of an answer was passed on, rejects when either side breaks off. Node's `pipeline` would do, at the
 * price of an abort signal and its exception for each answer.
 */
function passOn(upstream: IncomingMessage, response: ServerResponse): Promise<void> {
  return new Promise((resolve, reject) => {
    upstream.once('error', reject);
    upstream.once('close', () => upstream.complete || reject(new Error('the upstream broke off')));
    response.once('finish', resolve);
    response.once('close', () => response.writableFinished || reject(new Error('the client has gone')));
    upstream.pipe(response);
  });
}

/** Too long to be held in memory, or of a length that nobody tells. */
function isStreamed({ headers }: IncomingMessage, mostBytes: number): boolean {
  const media = mediaType(headers['content-type']);
  if (!media ? headers['content-type'] !== undefined : isStructured(media.type)) return false;
  if (headers['transfer-encoding'] !== undefined) return true;
  return Number(headers['content-length'] ?? 0) > mostBytes;
}

const TITLES: Readonly<Record<string, string>> = {
  VALIDATION_FAILED: 'The request is malformed',
  UNAUTHENTICATED: 'No valid credential',
  FORBIDDEN: 'The caller may not do this',
  DENIED: 'The policies deny this action',
  AGENT_MISMATCH: 'The hold belongs to another agent',
  NOT_FOUND: 'There is no such resource',
  METHOD_NOT_ALLOWED: 'The route has no such method',
  INVALID_STATUS: 'The resource is in a status that does not allow this',
  ALREADY_CONSUMED: 'The hold was consumed already',
  POLICY_CHANGED: 'The policy now asks for more than was approved',
  ESCROW_EXPIRED: 'The hold has expired',
  PAYLOAD_TOO_LARGE: 'The body is too large',
  UNSUPPORTED_MEDIA_TYPE: 'The body has an unsupported type or encoding',
  HASH_MISMATCH: 'The hold was approved for another request',
  ESCROW_HELD: 'The action is held',
  RATE_LIMITED: 'Too many requests',
  INTERNAL: 'The proxy failed',
  MASKING_FAILED: 'What must be masked cannot be',
  UPSTREAM_FAILED: 'The upstream failed',
  UPSTREAM_TIMEOUT: 'The upstream did not answer in time',
  UNAVAILABLE: 'The proxy cannot do this now',
};

/** A problem document (RFC 9457) with the same members as the control plane's. */
function answer(
  request: IncomingMessage,
  response: ServerResponse,
  status: number,
  code: string,
  detail: string,
  more: { retryAfter?: number | undefined; escrowId?: string | undefined } & Record<string, unknown> = {},
): void {
  const { retryAfter, escrowId, ...members } = more;
  const title = TITLES[code] ?? code;
  const body = JSON.stringify({
    type: `urn:svc:error:${code.toLowerCase()}`,
    title,
    status,
    code,
    ...(detail !== '' && { detail }),
    ...members,
  });
  for (const name of response.getHeaderNames()) if (!name.startsWith('x-svc-')) response.removeHeader(name);
  response.writeHead(status, {
    'content-type': 'application/problem+json',
    'content-length': Buffer.byteLength(body),
    'cache-control': 'no-store',
    ...(status === 401 && { 'www-authenticate': 'Bearer' }),
    ...(retryAfter !== undefined && { 'retry-after': String(retryAfter) }),
    ...(escrowId !== undefined && { 'x-svc-escrow-id': escrowId }),
    // a body that was not read would be taken for the next request's beginning, or have to be read to its end
    ...(!request.complete && { connection: 'close' }),
  });
  response.end(body);
}
