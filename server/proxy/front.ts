import http, { type IncomingHttpHeaders, type IncomingMessage, type ServerResponse } from 'node:http';
import https from 'node:https';
import type { AddressInfo, BlockList } from 'node:net';
import { isDeepStrictEqual } from 'node:util';
import { sha256Tag } from '../lib/crypto.ts';
import type { Log } from '../lib/log.ts';
import { traceOf } from '../lib/trace.ts';
import { maskedWith } from '../policy/evaluation/approver-view.ts';
import { applyMasks } from '../policy/evaluation/masks.ts';
import { type Agent, AgentError, type Agents, isPlain } from './agents.ts';
import type { HttpRoute, JoinRoute, McpRoute, ProxyConfig, Route } from './config.ts';
import { CredentialError } from './credentials.ts';
import type { Enforcer, Ruling } from './decide.ts';
import { retryAfter, usedBefore } from './holds.ts';
import type { SignIn } from './login/use.ts';
import { Refusal, sendProblem } from './problem.ts';
import {
  type CodingError,
  checkHeaders,
  clientAddress,
  collect,
  decode,
  findRoute,
  isStructured,
  mediaType,
  members,
  overridesMethod,
  type ReadBody,
  readBody,
  readTarget,
  trustedAddresses,
  upstreamUrl,
} from './requests.ts';
import { type Call, type Credential, type Headers, type Prepared, Upstreams } from './upstream.ts';

/**
 * Where clients that know OAuth alone look up how to sign in (RFC 9728), before they have any credential. The answer of an
 * upstream would send them to its own sign-in, with a token that the proxy does not know.
 */
const SIGN_IN = '/.well-known/oauth-protected-resource';

/** Serves a request on a route to an MCP server. */
export type ServeMcp = (
  route: McpRoute | JoinRoute,
  agent: () => Promise<Agent>,
  request: IncomingMessage,
  response: ServerResponse,
  sourceIp: string | undefined,
) => Promise<void>;

/** Serves the proxy's own paths: `/healthz`, `/readyz`, `/metrics`. */
export type OwnPage = () => Promise<{ status: number; type: string; body: string }>;

/**
 * The HTTP enforcement point: identifies the agent, reads the request, has it decided, and forwards it by the route table or
 * responds why not. What is forwarded is what was decided on.
 */
export class HttpFront {
  readonly #config: ProxyConfig;
  readonly #enforcer: Enforcer;
  readonly #agents: Agents;
  readonly #mcp: ServeMcp;
  readonly #signIns: ReadonlyMap<Route, SignIn>;
  readonly #own: ReadonlyMap<string, OwnPage>;
  readonly #begun: Promise<void>;
  readonly #log: Log;
  readonly #trusted: BlockList;
  readonly #server: http.Server | https.Server;
  readonly #upstreams: Upstreams;
  /** What is answered, of which the request may have gone to an upstream. */
  readonly #left = new WeakSet<ServerResponse>();
  /** Called for every request that ended without a decision. */
  onRefusal: (code: string) => void = () => {};

  constructor(parts: {
    config: ProxyConfig;
    enforcer: Enforcer;
    agents: Agents;
    mcp: ServeMcp;
    /** For the routes that have one. */
    signIns: ReadonlyMap<Route, SignIn>;
    own: ReadonlyMap<string, OwnPage>;
    /** Requests on routes wait for it. */
    begun: Promise<void>;
    log: Log;
  }) {
    this.#config = parts.config;
    this.#enforcer = parts.enforcer;
    this.#agents = parts.agents;
    this.#mcp = parts.mcp;
    this.#signIns = parts.signIns;
    this.#own = parts.own;
    this.#begun = parts.begun;
    this.#log = parts.log;
    this.#trusted = trustedAddresses(parts.config.trust);
    // Strict parsing is Node's default: a request with both Content-Length and Transfer-Encoding, or with a malformed
    // header, is answered 400 and its connection closed (RFC 9112 §6.3).
    const timeouts = { headersTimeout: 20_000, requestTimeout: 300_000, insecureHTTPParser: false };
    const { tls } = parts.config;
    this.#upstreams = new Upstreams(parts.config, tls ? 'https' : 'http', parts.log);
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
    return `${this.#config.tls ? 'https' : 'http'}://${family === 'IPv6' ? `[${address}]` : address}:${port}`;
  }

  /** Serves TLS with the files' current contents; open connections continue unchanged. Throws a ConfigError. */
  renewTls(): void {
    const { tls } = this.#config;
    if (tls && this.#server instanceof https.Server) this.#server.setSecureContext(tls());
  }

  /** Accepts no more connections, gives open requests at most `mostMs` to finish, then closes their connections. */
  async stop(mostMs: number): Promise<void> {
    const cut = setTimeout(() => this.#server.closeAllConnections(), mostMs);
    await new Promise<void>((resolve) => {
      this.#server.close(() => resolve());
      this.#server.closeIdleConnections();
    });
    clearTimeout(cut);
    this.#upstreams.close();
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
        const { retryAfter, escrowId, eventId } = error.more;
        if (eventId === undefined) this.onRefusal(error.code);
        sendProblem(request, response, error.status, error.code, error.message, { retryAfter, escrowId });
      } else if (error instanceof AgentError) {
        const [status, code] = error.unavailable ? [503, 'UNAVAILABLE'] : [401, 'UNAUTHENTICATED'];
        this.onRefusal(code);
        this.#log.info({ detail: error.message }, 'no agent');
        sendProblem(request, response, status, code, 'an agent key or token that works is needed', {
          retryAfter: error.unavailable ? 5 : undefined,
        });
      } else {
        this.onRefusal('INTERNAL');
        this.#log.error({ err: error }, 'the proxy failed');
        const what = this.#left.has(response)
          ? 'the proxy failed after the request may have left it: whether it was carried out is not known'
          : 'the proxy failed; nothing was forwarded';
        sendProblem(request, response, 500, 'INTERNAL', what);
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
    if (path === SIGN_IN || path.startsWith(`${SIGN_IN}/`)) {
      throw new Refusal(404, 'NOT_FOUND', 'no one can sign in here: send an agent key or a token as a bearer token');
    }
    await this.#begun;
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
    if (!('to' in route)) {
      this.#left.add(response);
      return this.#mcp(route, identify, request, response, sourceIp || undefined);
    }
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

  async #forwardDecided(came: Omit<Call, 'own' | 'trace'>): Promise<void> {
    const { request, response, method, route, query } = came;
    if (route.decide_on_headers.length > 0) checkHeaders(request, route.decide_on_headers);
    const url = upstreamUrl(route, came.rest, query);
    const streamed = route.opaque_bodies && isStreamed(request, this.#config.bodyBytes);
    const waits = !streamed && !request.complete;
    const body = streamed ? undefined : await this.#read(request, route);
    // a body may take minutes to arrive, and the credential may have been revoked since
    const agent = waits ? await came.identify() : came.agent;
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
    // before anything is decided: a request that cannot be forwarded must not be permitted
    const reads = this.#enforcer.readsAnswer(route.tool, route.server);
    const trace = traceOf(request.headers.traceparent, request.headers.tracestate);
    const call: Call = { ...came, ...(await this.#ownHeaders(route)), reads, trace };
    const ahead: { headers?: Headers; prepared?: Prepared } = {};
    const ruled = this.#enforcer.rule({
      agent,
      trace,
      asks: { http: method },
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
      meanwhile: () => {
        ahead.headers = this.#upstreams.headers(call, url, body, []);
        ahead.prepared = this.#upstreams.prepare({ call, url, headers: ahead.headers, bytes: body?.bytes });
      },
    });
    const ruling = await ruled.catch((error) => {
      ahead.prepared?.sent.destroy();
      throw error;
    });
    const said = ['x-svc-decision', ruling.decision, 'x-svc-event-id', ruling.eventId];
    const say = () => {
      for (let n = 0; n < said.length; n += 2) response.setHeader(said[n]!, said[n + 1]!);
    };
    if (!('done' in ruling)) {
      say();
      this.#withhold(request, response, ruling);
      return;
    }
    try {
      const { masks, done, onCut } = ruling;
      let bytes = body?.bytes;
      const { body: _, ...beside } = args;
      if (masks.length > 0 && !isDeepStrictEqual(maskedWith(beside, masks), beside)) {
        done('not forwarded: the query or a header cannot be masked');
        throw new Refusal(
          415,
          'MASKING_FAILED',
          'what a policy masks must come in the body, not in the query or a header',
        );
      }
      if (masks.length > 0 && (streamed || (body && body.kind !== 'none'))) {
        if (body?.kind !== 'json') {
          done('not forwarded: the body cannot be masked');
          throw new Refusal(415, 'MASKING_FAILED', 'what a policy masks must come as JSON');
        }
        bytes = Buffer.from(JSON.stringify(applyMasks(JSON.parse(body.bytes.toString()), masks)));
      }
      const { headers = this.#upstreams.headers(call, url, body, masks), prepared } = ahead;
      this.#left.add(response);
      await this.#upstreams.forward({ call, url, headers, said, bytes, masks, done, onCut, prepared });
    } catch (error) {
      if (!response.headersSent) say();
      throw error;
    }
  }

  /**
   * The headers that the route adds to a request, with current values. Throws a Refusal: without them nothing is decided or sent.
   */
  async #ownHeaders(route: HttpRoute): Promise<Pick<Call, 'own' | 'renew'>> {
    const signIn = this.#signIns.get(route);
    const token = async (refused?: string) => {
      try {
        return await signIn!.required(refused);
      } catch (error) {
        if (!(error instanceof CredentialError)) throw error;
        this.#log.error({ path: route.path, detail: error.detail }, error.message);
        throw new Refusal(502, 'UPSTREAM_SIGN_IN', 'the proxy is not signed in at the upstream');
      }
    };
    try {
      const own = { ...route.headers };
      return signIn ? { own: { ...own, authorization: `Bearer ${await token()}` }, renew: token } : { own };
    } catch (error) {
      if (!(error instanceof CredentialError)) throw error;
      this.#log.error({ path: route.path, detail: error.detail }, error.message);
      throw new Refusal(502, 'UPSTREAM_FAILED', error.message);
    }
  }

  /** The entire body, decoded and parsed. Throws a Refusal. */
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

  /** Responds why the action is not forwarded. */
  #withhold(
    request: IncomingMessage,
    response: ServerResponse,
    ruling: Exclude<Ruling, { done: (outcome: string) => void }>,
  ): void {
    switch (ruling.decision) {
      case 'deny':
        if (ruling.standstill) {
          sendProblem(request, response, 503, 'UNAVAILABLE', ruling.reason, {
            retryAfter: 15,
            event_id: ruling.eventId,
          });
        } else sendProblem(request, response, 403, 'DENIED', ruling.reason, { event_id: ruling.eventId });
        return;
      case 'rate_limited':
        sendProblem(request, response, 429, 'RATE_LIMITED', 'a limit of the policies is exceeded', {
          retryAfter: ruling.retryAfter,
          event_id: ruling.eventId,
        });
        return;
      case 'escrow': {
        const { hold, reason, used } = ruling;
        const detail =
          hold.status === 'released'
            ? 'The action was approved: repeat the request as it is, with the header X-Svc-Escrow-Id.'
            : 'The action is held. When it is released, repeat the request as it is, with the header X-Svc-Escrow-Id.';
        sendProblem(request, response, 423, 'ESCROW_HELD', used ? `${detail} ${usedBefore(used)}` : detail, {
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
          used: used && { escrow_id: used.id, at: used.at },
        });
      }
    }
  }
}

/** The agent's credential: `X-Svc-Agent-Key` if Authorization is for the upstream, else the bearer token in Authorization. */
function credentialOf(headers: IncomingHttpHeaders): Credential {
  const own = headers['x-svc-agent-key'];
  if (typeof own === 'string' && own !== '') return { text: own.trim(), header: 'x-svc-agent-key' };
  const [, bearer] = /^\s*bearer\s+(\S+)\s*$/i.exec(headers.authorization ?? '') ?? [];
  if (bearer === undefined) throw new AgentError('the request has no credential');
  return { text: bearer, header: 'authorization' };
}

/** A header that contains a name; undefined if absent. */
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

/** Whether it is too long to be held in memory, or of unknown length. */
function isStreamed({ headers }: IncomingMessage, mostBytes: number): boolean {
  const media = mediaType(headers['content-type']);
  if (!media ? headers['content-type'] !== undefined : isStructured(media.type)) return false;
  if (headers['transfer-encoding'] !== undefined) return true;
  return Number(headers['content-length'] ?? 0) > mostBytes;
}
