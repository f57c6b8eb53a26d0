import http, {
  type IncomingHttpHeaders,
  type IncomingMessage,
  type OutgoingHttpHeaders,
  type ServerResponse,
} from 'node:http';
import https from 'node:https';
import { pipeline } from 'node:stream/promises';
import { FACT_LIMITS } from '../domain/session-facts.ts';
import type { Log } from '../lib/log.ts';
import { applyMasks, type Mask, parseExact } from '../policy/evaluation/masks.ts';
import type { Agent } from './agents.ts';
import type { HttpRoute, ProxyConfig } from './config.ts';
import type { Done } from './decide.ts';
import { Refusal } from './problem.ts';
import {
  type CodingError,
  collect,
  connectionOptions,
  decode,
  isJson,
  isParsable,
  isPlainHeader,
  isUtf8Charset,
  mediaType,
  type ReadBody,
  readTarget,
} from './requests.ts';
import { jsonValue } from './sessions.ts';

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
/** Set by the proxy itself, or able to turn the request into another one than was decided on. */
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
/** They describe the exact bytes of a body, and no longer hold once it was rewritten. */
const BODY_HEADERS = [
  'content-encoding',
  'content-md5',
  'content-digest',
  'repr-digest',
  'digest',
  'etag',
  'accept-ranges',
];

/** A request from an agent on its way to an upstream. */
export interface Call {
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
  /** The route's own headers, as they were when the call came. */
  own: Readonly<Record<string, string>>;
  /** Of a route with a sign-in: another token than the one that was refused. Rejects with a Refusal. */
  renew?: ((refused: string) => Promise<string>) | undefined;
  sourceIp: string;
  /** The answer is read for facts of the session. */
  reads?: boolean;
}

/** The agent's credential, and where it came in. */
export interface Credential {
  text: string;
  header: 'authorization' | 'x-svc-agent-key';
}

/** A call that is being forwarded. */
interface Forwarding {
  call: Call;
  url: URL;
  headers: OutgoingHttpHeaders;
  /** Undefined when the request's body is streamed. */
  bytes: Buffer | undefined;
  masks: readonly Mask[];
  /** Called once, with what became of it. */
  done: Done;
  /** The request under way, to be given up when its time is over or the client has gone. */
  sent?: http.ClientRequest;
  givenUp?: boolean;
}

/** The way to the upstreams: what is forwarded is what was decided on, and answers come back through the same masks. */
export class Upstreams {
  readonly #timeoutMs: number;
  readonly #maskBytes: number;
  readonly #scheme: 'http' | 'https';
  readonly #log: Log;
  readonly #pools = {
    'http:': new http.Agent({ keepAlive: true, maxFreeSockets: 256, scheduling: 'lifo' }),
    'https:': new https.Agent({ keepAlive: true, maxFreeSockets: 256, scheduling: 'lifo' }),
  };

  /** `scheme`: the one by which agents reach the proxy. */
  constructor(config: ProxyConfig, scheme: 'http' | 'https', log: Log) {
    this.#timeoutMs = config.upstreamMs;
    this.#maskBytes = config.maskBytes;
    this.#scheme = scheme;
    this.#log = log;
  }

  /** Closes the connections that are kept. */
  close(): void {
    for (const pool of Object.values(this.#pools)) pool.destroy();
  }

  /** The headers of the request to the upstream. */
  headers(
    { request, credential, own, reads, sourceIp }: Call,
    url: URL,
    body: ReadBody | undefined,
    masks: readonly Mask[],
  ) {
    const headers = endToEnd(request.headers);
    const replaced = Object.keys(own).map((name) => name.replace(/[^a-z0-9]/g, '-'));
    for (const name of Object.keys(headers)) {
      if (REPLACED.includes(name) || REPLACED_KINDS.test(name) || replaced.includes(name) || !isPlainHeader(name)) {
        delete headers[name];
      }
    }
    // the agent may send a credential for the upstream; its own never leaves the proxy
    if (credential.header === 'authorization' || /^\s*bearer\s+svc_/i.test(String(headers.authorization ?? ''))) {
      delete headers.authorization;
    }
    if (body?.rewritten || masks.length > 0) for (const name of BODY_HEADERS) delete headers[name];
    if (masks.length > 0) {
      // what is masked must come whole and uncompressed
      for (const name of ['range', 'if-range', 'accept-encoding']) delete headers[name];
      headers['accept-encoding'] = 'identity';
    }
    if (reads) headers['accept-encoding'] = 'identity';
    Object.assign(headers, own);
    headers.host = url.host;
    if (sourceIp) headers['x-forwarded-for'] = sourceIp;
    if (request.headers.host) headers['x-forwarded-host'] = request.headers.host;
    headers['x-forwarded-proto'] = this.#scheme;
    headers.via = [request.headers.via, '1.1 svc-proxy'].filter(Boolean).join(', ');
    return headers;
  }

  /**
   * Sends the request and passes its answer on, masked where the decision says so. Throws a Refusal when there is none
   * that may be passed on.
   */
  async forward(forwarding: Forwarding): Promise<void> {
    const { call, done, masks } = forwarding;
    const { response, route } = call;
    const ms = route.timeout_seconds === undefined ? this.#timeoutMs : route.timeout_seconds * 1000;
    let timedOut = false;
    const gone = () => {
      forwarding.givenUp = true;
      forwarding.sent?.destroy();
    };
    response.once('close', gone);
    const timer = setTimeout(() => {
      timedOut = true;
      gone();
    }, ms);
    let noted = false;
    const note: Done = (outcome, ended) => {
      if (!noted) done(outcome, ended);
      noted = true;
    };
    try {
      const upstream = await this.#signedIn(forwarding);
      const status = upstream.statusCode ?? 502;
      if (masks.length > 0) {
        await this.#answerMasked(upstream, forwarding, note);
        return;
      }
      clearTimeout(timer);
      const succeeded = status >= 200 && status < 300;
      if (succeeded && call.reads && isReadable(upstream)) {
        // to the end before the client has it, so that its next call is decided on it
        gather(upstream, (value) => note(`HTTP ${status}`, { succeeded, value }));
      } else {
        // the client need not wait for the note
        setImmediate(note, `HTTP ${status}`, { succeeded });
      }
      response.writeHead(status, this.#answerHeaders(upstream, call, forwarding.url));
      // a stream's head must not wait for its first part; of a known length, head and body go in one write
      if (upstream.headers['content-length'] === undefined) response.flushHeaders();
      await passOn(upstream, response);
    } catch (error) {
      const clientGone = response.destroyed && !response.writableFinished;
      const refused = error instanceof Refusal && error.code === 'UPSTREAM_SIGN_IN' && 'the sign-in was refused';
      note(clientGone ? 'the client has gone' : timedOut ? 'upstream timeout' : refused || 'upstream unreachable');
      if (clientGone || response.headersSent) {
        response.destroy();
        return;
      }
      if (error instanceof Refusal) throw error;
      this.#log.warn({ err: error, upstream: forwarding.url.host }, 'the upstream failed');
      if (timedOut) throw new Refusal(504, 'UPSTREAM_TIMEOUT', 'the upstream did not answer in time');
      throw new Refusal(502, 'UPSTREAM_FAILED', 'the upstream could not be reached, or broke off');
    } finally {
      clearTimeout(timer);
      response.off('close', gone);
    }
  }

  /** Sends the request, and again with another token where the upstream refuses the one of the proxy's sign-in. */
  async #signedIn(forwarding: Forwarding): Promise<IncomingMessage> {
    const first = await this.#send(forwarding);
    const { call, bytes } = forwarding;
    if (!call.renew || first.statusCode !== 401) return first;
    first.resume();
    const refused = call.own.authorization!.replace(/^Bearer /, '');
    const token = await call.renew(refused);
    const withheld = new Refusal(502, 'UPSTREAM_SIGN_IN', 'the upstream refuses the sign-in of the proxy');
    // what was streamed is gone
    if (!bytes) throw withheld;
    forwarding.headers = { ...forwarding.headers, authorization: `Bearer ${token}` };
    const second = await this.#send(forwarding);
    if (second.statusCode !== 401) return second;
    // that is between the proxy and the upstream: the agent can do nothing about it, and is not to be told how to
    second.resume();
    throw withheld;
  }

  /** Sends the request; resolves to the head of the answer. */
  async #send(forwarding: Forwarding): Promise<IncomingMessage> {
    const { call, url, headers, bytes } = forwarding;
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
      forwarding.sent = sent;
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
        // always sent: for methods that usually have no body, Node would send it without any framing, and the upstream
        // would take it for the next request
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
        if (!safe || !stale || again || !bytes || forwarding.givenUp) throw error;
      }
    }
  }

  #answerHeaders(upstream: IncomingMessage, { route, rest, request }: Call, url: URL): OutgoingHttpHeaders {
    const headers: OutgoingHttpHeaders = endToEnd(upstream.headers);
    for (const name of Object.keys(headers)) if (name.startsWith('x-svc-')) delete headers[name];
    if (route.sign_in) delete headers['www-authenticate'];
    const { location } = upstream.headers;
    if (location !== undefined && URL.canParse(location, url.href)) {
      // within the upstream: rewritten to the proxy's path, or the agent would bypass the proxy
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
  async #answerMasked(upstream: IncomingMessage, { call, url, masks }: Forwarding, note: Done) {
    const { response, method } = call;
    const status = upstream.statusCode ?? 502;
    const succeeded = status >= 200 && status < 300;
    const headers = this.#answerHeaders(upstream, call, url);
    for (const name of [...BODY_HEADERS, 'content-length', 'content-range']) delete headers[name];
    const withhold = (why: string) => {
      upstream.destroy();
      note(`HTTP ${status}, withheld: ${why}`, { succeeded });
      return new Refusal(502, 'MASKING_FAILED', `the upstream answered ${status}; the answer is withheld: it ${why}`);
    };
    const bodiless = method === 'HEAD' || status === 204 || status === 304;
    const said = upstream.headers['content-type'];
    const { type, charset } = mediaType(said) ?? { type: said ?? '', charset: undefined };
    const length = upstream.headers['content-length'];
    if (!bodiless && length !== '0' && !isJson(type) && type !== '')
      throw withhold('is not JSON, so it cannot be masked');
    const most = this.#maskBytes;
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
    note(`HTTP ${status}`, { succeeded, value: call.reads && bytes.length > 0 ? jsonValue(bytes) : undefined });
    if (!bodiless) headers['content-length'] = bytes.length;
    response.writeHead(status, headers).end(bytes);
  }
}

/** Could the answer be the JSON of facts? */
function isReadable({ headers }: IncomingMessage): boolean {
  const { type, charset } = mediaType(headers['content-type']) ?? { type: '', charset: undefined };
  const plain = headers['content-encoding'] === undefined || headers['content-encoding'] === 'identity';
  return plain && isJson(type) && isUtf8Charset(charset);
}

/** Calls back once with the value of an answer that is passed on, when all of it has come; undefined where it has none. */
function gather(upstream: IncomingMessage, done: (value: unknown) => void): void {
  const parts: Buffer[] = [];
  let bytes = 0;
  upstream.on('data', (part: Buffer) => {
    bytes += part.length;
    if (bytes <= FACT_LIMITS.answer) parts.push(part);
    else parts.length = 0;
  });
  upstream.once('end', () => done(bytes > FACT_LIMITS.answer ? undefined : jsonValue(Buffer.concat(parts))));
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
