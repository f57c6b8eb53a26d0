import http, { type IncomingMessage, type ServerResponse } from 'node:http';
import https from 'node:https';
import { FACT_LIMITS } from '../domain/session-facts.ts';
import { Bounded } from '../lib/bounded.ts';
import { whenClosed } from '../lib/closed.ts';
import type { Log } from '../lib/log.ts';
import { Parts } from '../lib/parts.ts';
import { type Trace, traceparentOf } from '../lib/trace.ts';
import { applyMasks, type Mask, parseExact } from '../policy/evaluation/masks.ts';
import type { Agent } from './agents.ts';
import type { HttpRoute, ProxyConfig } from './config.ts';
import type { Cut, Done, OnCut } from './decide.ts';
import { Refusal } from './problem.ts';
import { redirectTarget, refreshTarget } from './redirects.ts';
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

/** Connection-specific (RFC 9110 §7.6.1): they concern a single connection and are not passed on. */
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
/** Set by the proxy itself, or able to turn the request into one that was not decided on. */
const REPLACED = [
  'host',
  'content-length',
  'expect',
  'forwarded',
  'via',
  'x-real-ip',
  'x-client-ip',
  'true-client-ip',
  'x-http-method',
];
const REPLACED_KINDS = /^x-(?:svc|forwarded|original|rewrite|envoy)-|-override$/;
/** They describe the exact bytes of a body, and are no longer true once it is rewritten. */
const BODY_HEADERS = new Set([
  'content-encoding',
  'content-md5',
  'content-digest',
  'repr-digest',
  'digest',
  'etag',
  'accept-ranges',
]);
/** A response to be masked must come whole and uncompressed. */
const UNMASKABLE = new Set(['range', 'if-range', 'accept-encoding']);

/** Whether headers of a name are passed on at all. Requests and responses use few names. */
const FEW = { entries: 500, characters: 20_000 };
const PASSED = { requests: new Bounded<boolean>(FEW), answers: new Bounded<boolean>(FEW) };

function isPassedOn(name: string): boolean {
  return (
    PASSED.requests.get(name) ??
    PASSED.requests.set(
      name,
      !HOP_BY_HOP.includes(name) && !REPLACED.includes(name) && !REPLACED_KINDS.test(name) && isPlainHeader(name),
    )
  );
}

function isAnswered(name: string): boolean {
  return PASSED.answers.get(name) ?? PASSED.answers.set(name, !HOP_BY_HOP.includes(name) && !name.startsWith('x-svc-'));
}

/** Alternating names and values: the form that Node serializes without further checks. */
export type Headers = (string | string[])[];

/** A request from an agent on its way to an upstream. */
export interface Call {
  request: IncomingMessage;
  response: ServerResponse;
  method: string;
  route: HttpRoute;
  rest: string;
  query: string;
  agent: Agent;
  /** The same agent, if its credential is still valid. */
  identify: () => Promise<Agent>;
  credential: Credential;
  /** The route's own headers, as they were when the call arrived. */
  own: Readonly<Record<string, string>>;
  /** For a route with a sign-in: gets another token than the refused one. Rejects with a Refusal. */
  renew?: ((refused: string) => Promise<string>) | undefined;
  sourceIp: string;
  trace: Trace;
  /** Whether the response is read for facts of the session. */
  reads?: boolean;
}

/** The agent's credential, and where it was found. */
export interface Credential {
  text: string;
  header: 'authorization' | 'x-svc-agent-key';
}

/** A call that is being forwarded. */
interface Forwarding {
  call: Call;
  url: URL;
  headers: Headers;
  /** The decision, for the response headers. */
  said: Headers;
  /** Undefined when the request's body is streamed. */
  bytes: Buffer | undefined;
  masks: readonly Mask[];
  /** Called once, with the outcome. */
  done: Done;
  onCut: OnCut;
  /** Made by `prepare`, if there was time for it. */
  prepared: Prepared | undefined;
  /** The request in progress, given up on a timeout or when the client is gone. */
  sent?: http.ClientRequest;
  /** Whether it had a connection, so that the upstream may have acted on it. */
  reached?: boolean;
  givenUp?: boolean;
}

/** A request to an upstream that has a connection or is making one. Nothing of it has been sent. */
export interface Prepared {
  readonly sent: http.ClientRequest;
  /** The head of the response; rejects if there will be none. */
  readonly answered: Promise<IncomingMessage>;
  /** When it got the connection, by `performance.now()`. */
  connectedAt: number | undefined;
  /** Whether the connection is gone, or something has already come over it. */
  over: boolean;
}

/**
 * An unused connection is normally closed before the other side closes it: a request that crosses with that is lost, and most
 * cannot be sent again. Many servers keep one for 5 s; for one that announces less, a second less than that is used. Node honors
 * what is announced only if there is a timeout, which applies to unused connections alone.
 */
const KEPT = { keepAlive: true, maxFreeSockets: 256, scheduling: 'lifo', timeout: 4000 } as const;

/** A connection that has waited for longer than this is not used: the other side may be about to close it. */
const FRESH_MS = 500;

/** The way to the upstreams: what is forwarded is what was decided on, and responses come back through the same masks. */
export class Upstreams {
  readonly #timeoutMs: number;
  readonly #maskBytes: number;
  readonly #scheme: 'http' | 'https';
  readonly #log: Log;
  readonly #pools = { 'http:': new http.Agent(KEPT), 'https:': new https.Agent(KEPT) };

  /** `scheme`: how agents reach the proxy. */
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
    { request, credential, own, reads, sourceIp, trace }: Call,
    url: URL,
    body: ReadBody | undefined,
    masks: readonly Mask[],
  ) {
    const { host, authorization, via, connection } = request.headers;
    const ours = Object.keys(own);
    const replaced = ours.length === 0 ? NONE : ours.map((name) => name.replace(/[^a-z0-9]/g, '-'));
    const named = connection === undefined ? NONE : connectionOptions(connection);
    const masked = masks.length > 0;
    const rewritten = body?.rewritten || masked;
    const identity = masked || reads;
    // the agent may send a credential for the upstream; its own never leaves the proxy
    const withheld =
      credential.header === 'authorization' ||
      (authorization !== undefined && /^\s*bearer\s+svc_/i.test(authorization));
    const headers: Headers = [];
    for (const [name, value] of Object.entries(request.headers)) {
      if (value === undefined || !isPassedOn(name) || named.includes(name) || replaced.includes(name)) continue;
      if (name === 'authorization' && withheld) continue;
      if (rewritten && BODY_HEADERS.has(name)) continue;
      if (masked ? UNMASKABLE.has(name) : reads && name === 'accept-encoding') continue;
      if (name === 'traceparent' || (name === 'tracestate' && trace.state === undefined)) continue;
      headers.push(name, value);
    }
    // unless the route's own headers say otherwise
    if (identity && !ours.includes('accept-encoding')) headers.push('accept-encoding', 'identity');
    if (!ours.includes('traceparent')) headers.push('traceparent', traceparentOf(trace));
    const last: Headers = ['host', url.host, 'x-forwarded-proto', this.#scheme];
    last.push('via', via ? `${via}, 1.1 svc-proxy` : '1.1 svc-proxy');
    if (sourceIp) last.push('x-forwarded-for', sourceIp);
    if (host) last.push('x-forwarded-host', host);
    for (const name of ours) if (!last.some((one, n) => n % 2 === 0 && one === name)) headers.push(name, own[name]!);
    return headers.concat(last);
  }

  /**
   * Sends the request and passes the response on, masked if the decision says so. Throws a Refusal if there is none that may be
   * passed on.
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
    // the client may have left while its call was decided
    const stay = whenClosed(response, gone);
    const timer = setTimeout(() => {
      timedOut = true;
      gone();
    }, ms);
    let noted = false;
    const note: Done = (outcome, ended) => {
      if (!noted) done(outcome, ended);
      noted = true;
    };
    let cut: Cut | undefined;
    const uncut = forwarding.onCut((why) => {
      cut = why;
      note('aborted by a stop');
      gone();
    });
    let tail: Tail | undefined;
    try {
      const upstream = await this.#signedIn(forwarding);
      const status = upstream.statusCode ?? 502;
      const succeeded = status >= 200 && status < 300;
      const headers = this.#answerHeaders(upstream, call, forwarding.url);
      if (!headers) {
        upstream.destroy();
        note(`HTTP ${status}, withheld: it redirects elsewhere`, { succeeded });
        this.#log.warn(
          { path: route.path, upstream: forwarding.url.host },
          'the upstream redirects to an origin that is not in `redirects_to` of its route',
        );
        throw new Refusal(
          502,
          'UPSTREAM_REDIRECT',
          `the upstream answered ${status} with a redirect to where the route does not lead; the answer is withheld`,
        );
      }
      if (masks.length > 0) {
        await this.#answerMasked(upstream, headers, forwarding, note);
        return;
      }
      clearTimeout(timer);
      if (succeeded && call.reads && isReadable(upstream)) {
        // read to the end before the client has it, so that its next call is decided on it
        gather(upstream, (value) => note(`HTTP ${status}`, { succeeded, value }));
      } else {
        // the client need not wait for the note
        setImmediate(note, `HTTP ${status}`, { succeeded });
      }
      const length = upstream.headers['content-length'];
      response.writeHead(status, forwarding.said.concat(headers) as string[]);
      // a stream's head must not wait for its first part; if the length is known, head and body go in one write
      if (length === undefined) {
        response.flushHeaders();
        tail = tailOf(upstream);
      }
      await passOn(upstream, response, Number(length));
    } catch (error) {
      const clientGone = response.destroyed && !response.writableFinished;
      const refused = error instanceof Refusal && error.code === 'UPSTREAM_SIGN_IN' && 'the sign-in was refused';
      note(
        clientGone
          ? 'the client has gone'
          : timedOut
            ? 'upstream timeout'
            : refused || (forwarding.reached ? 'upstream broke off' : 'upstream unreachable'),
      );
      if (cut && !clientGone && tail?.betweenEvents()) {
        response.end(`event: error\ndata: ${JSON.stringify({ code: 'DENIED', detail: cut.reason })}\n\n`);
        return;
      }
      if (clientGone || response.headersSent) {
        response.destroy();
        return;
      }
      if (cut) {
        forwarding.said[1] = 'deny';
        throw new Refusal(403, 'DENIED', cut.reason, { eventId: cut.eventId });
      }
      if (error instanceof Refusal) throw error;
      this.#log.warn({ err: error, upstream: forwarding.url.host }, 'the upstream failed');
      if (timedOut) throw new Refusal(504, 'UPSTREAM_TIMEOUT', 'the upstream did not answer in time');
      throw new Refusal(502, 'UPSTREAM_FAILED', forwarding.reached ? BROKE_OFF : 'the upstream could not be reached');
    } finally {
      uncut();
      clearTimeout(timer);
      stay();
    }
  }

  /** Sends the request, and again with another token if the upstream refuses the token of the proxy's sign-in. */
  async #signedIn(forwarding: Forwarding): Promise<IncomingMessage> {
    const first = await this.#send(forwarding);
    const { call, bytes } = forwarding;
    if (!call.renew || first.statusCode !== 401) return first;
    first.resume();
    const refused = call.own.authorization!.replace(/^Bearer /, '');
    const token = await call.renew(refused);
    const withheld = new Refusal(502, 'UPSTREAM_SIGN_IN', 'the upstream refuses the sign-in of the proxy');
    // a streamed body is gone
    if (!bytes) throw withheld;
    forwarding.headers = [...without(forwarding.headers, ['authorization']), 'authorization', `Bearer ${token}`];
    const second = await this.#send(forwarding);
    if (second.statusCode !== 401) return second;
    // that is between the proxy and the upstream: the agent can do nothing about it, and must not learn how
    second.resume();
    throw withheld;
  }

  /**
   * Prepares a request without sending anything before `end` is called on it, so that slow work is done before the upstream may
   * know.
   */
  prepare({ call, url, headers, bytes }: Pick<Forwarding, 'call' | 'url' | 'headers' | 'bytes'>): Prepared {
    const protocol = url.protocol as 'http:' | 'https:';
    const { hostname } = url;
    const options = {
      protocol,
      hostname: hostname.startsWith('[') ? hostname.slice(1, -1) : hostname,
      port: url.port || undefined,
      path: url.pathname + url.search,
      method: call.method,
      // As a list, which Node serializes at once and sends with the first bytes of the body; if there is an `expect`,
      // immediately.
      headers: without(headers, ['expect']).concat(framingOf(call, bytes)) as string[],
      agent: this.#pools[protocol],
    };
    const sent = (protocol === 'https:' ? https : http).request(options);
    const answered = new Promise<IncomingMessage>((resolve, reject) => {
      const lost = (error: Error) => {
        prepared.over = true;
        reject(error);
      };
      sent.once('response', (head) => {
        prepared.over = true;
        resolve(head);
      });
      sent.once('error', lost);
      sent.once('close', () => prepared.over || lost(new Error('the request was given up')));
      // not requested, and Node leaves the connection to whoever listens
      sent.once('upgrade', (_head, socket) => {
        socket.destroy();
        lost(new Error('the upstream wants another protocol'));
      });
    });
    // it may fail before anyone awaits it
    answered.catch(() => {});
    const prepared: Prepared = { sent, answered, connectedAt: undefined, over: false };
    const connected = () => {
      prepared.connectedAt = performance.now();
    };
    sent.once('socket', (socket) => {
      if (sent.reusedSocket) connected();
      else socket.once(protocol === 'https:' ? 'secureConnect' : 'connect', connected);
    });
    return prepared;
  }

  /** Sends the request; resolves to the head of the response. */
  async #send(forwarding: Forwarding): Promise<IncomingMessage> {
    const { bytes } = forwarding;
    const { request, method } = forwarding.call;
    const safe = method === 'GET' || method === 'HEAD' || method === 'OPTIONS';
    for (let again = false; ; again = true) {
      const { prepared } = forwarding;
      forwarding.prepared = undefined;
      if (forwarding.givenUp) {
        prepared?.sent.destroy();
        throw new Error('the request was given up');
      }
      // Nothing of it was sent, so any method may use another connection. What came over this one already, such as the 408 of a
      // server that closes an idle connection, is not a response to it.
      const fresh = prepared && !prepared.over && performance.now() - (prepared.connectedAt ?? Infinity) < FRESH_MS;
      if (!fresh) prepared?.sent.destroy();
      const attempt = fresh ? prepared : this.prepare(forwarding);
      const { sent } = attempt;
      forwarding.sent = sent;
      if (bytes) sent.end(bytes);
      else pour(request, sent);
      try {
        return await attempt.answered;
      } catch (error) {
        // A kept connection may just have been closed by the other side. Safe requests may be repeated (RFC 9110 §9.2.2); for any
        // other it is unknown whether it was carried out.
        const stale = (error as NodeJS.ErrnoException).code === 'ECONNRESET' && sent.reusedSocket;
        if (!safe || !stale || again || !bytes || forwarding.givenUp) throw error;
      } finally {
        forwarding.reached ||= attempt.connectedAt !== undefined;
      }
    }
  }

  /** The headers of the response; undefined if they redirect the client to where the route does not lead. */
  #answerHeaders(upstream: IncomingMessage, { route, rest, request }: Call, url: URL): Headers | undefined {
    const { connection } = upstream.headers;
    const named = connection === undefined ? NONE : connectionOptions(connection);
    const headers: Headers = [];
    let location: string | undefined;
    let refresh: string | undefined;
    for (const [name, value] of Object.entries(upstream.headers)) {
      if (value === undefined || !isAnswered(name) || named.includes(name)) continue;
      if (route.sign_in && name === 'www-authenticate') continue;
      if (name === 'location') location = String(value);
      else if (name === 'refresh') refresh = String(value);
      else headers.push(name, value);
    }
    if (location === undefined && refresh === undefined) return headers;
    const { path } = readTarget(request.url ?? '');
    const answered = { route, url, prefix: path.slice(0, path.length - rest.length) };
    if (location !== undefined) {
      const target = redirectTarget(location, answered);
      if (target !== undefined) headers.push('location', target);
      else if (isRedirect(upstream)) return undefined;
      // no client follows it by itself, and what was asked is done: the answer goes without it
    }
    if (refresh !== undefined) {
      const target = refreshTarget(refresh, answered);
      if (target === undefined) return undefined;
      headers.push('refresh', target);
    }
    return headers;
  }

  /** The response with its masks applied, or nothing: what cannot be masked is not shown. */
  async #answerMasked(upstream: IncomingMessage, all: Headers, forwarding: Forwarding, note: Done) {
    const { call, masks } = forwarding;
    const { response, method } = call;
    const status = upstream.statusCode ?? 502;
    const succeeded = status >= 200 && status < 300;
    const headers = forwarding.said.concat(without(all, [...BODY_HEADERS, 'content-length', 'content-range']));
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
    if (forwarding.givenUp) throw new Error('the request was given up');
    note(`HTTP ${status}`, { succeeded, value: call.reads && bytes.length > 0 ? jsonValue(bytes) : undefined });
    if (!bodiless) headers.push('content-length', String(bytes.length));
    response.writeHead(status, headers as string[]).end(bytes);
  }
}

const BROKE_OFF = 'the upstream broke off before its answer: whether it did what was asked is not known';

/** Whether clients take its `Location` as the place to go on at. */
function isRedirect({ statusCode = 0 }: IncomingMessage): boolean {
  return statusCode >= 300 && statusCode < 400;
}

/** Whether the response could be JSON to read facts from. */
function isReadable({ headers }: IncomingMessage): boolean {
  const { type, charset } = mediaType(headers['content-type']) ?? { type: '', charset: undefined };
  const plain = headers['content-encoding'] === undefined || headers['content-encoding'] === 'identity';
  return plain && isJson(type) && isUtf8Charset(charset);
}

interface Tail {
  betweenEvents(): boolean;
}

/**
 * Watches an event stream without a length: an event can be added between two others; elsewhere it would be read as part of
 * another.
 */
function tailOf(upstream: IncomingMessage): Tail | undefined {
  const { type } = mediaType(upstream.headers['content-type']) ?? { type: '' };
  const plain = [undefined, 'identity'].includes(upstream.headers['content-encoding']);
  if (type !== 'text/event-stream' || !plain) return undefined;
  let last = '\n\n';
  upstream.on('data', (part: Buffer) => {
    last = (last + part.subarray(-4).toString('latin1')).slice(-4);
  });
  return { betweenEvents: () => /(?:\n\n|\r\r|\r\n\r\n)$/.test(last) };
}

/** Calls back once, when a forwarded response is complete, with its JSON value; undefined if it has none. */
function gather(upstream: IncomingMessage, done: (value: unknown) => void): void {
  const parts = new Parts();
  let fits = true;
  upstream.on('data', (part: Buffer) => {
    fits &&= parts.bytes + part.length <= FACT_LIMITS.answer;
    if (fits) parts.push(part);
    else parts.clear();
  });
  upstream.once('end', () => done(fits ? jsonValue(parts.join()) : undefined));
}

const NONE: readonly string[] = [];

function without(headers: Headers, names: readonly string[]): Headers {
  return headers.filter((_, n) => !names.includes(headers[n - (n % 2)] as string));
}

/** Methods whose requests usually have no body: for all others, even an empty body gets a length. */
const BODILESS: ReadonlySet<string> = new Set(['GET', 'HEAD', 'DELETE', 'OPTIONS']);

/**
 * How a request's body is framed. Always explicit if it is streamed: for methods that usually have no body, Node would send it
 * unframed, and the upstream would take it for the next request.
 */
function framingOf({ request, method }: Call, bytes: Buffer | undefined): string[] {
  if (!bytes) {
    const length = request.headers['content-length'];
    return length === undefined ? ['transfer-encoding', 'chunked'] : ['content-length', length];
  }
  return bytes.length > 0 || !BODILESS.has(method) ? ['content-length', String(bytes.length)] : [];
}

/**
 * Passes a body on. Node's `pipeline` would close the client's connection along with the upstream's, and lose the response. What
 * arrives of the body after that is read and dropped: the client may look for a response only at its end.
 */
function pour(request: IncomingMessage, sent: http.ClientRequest): void {
  // a part that arrives before it has closed causes an error of its own
  sent.on('error', () => {});
  const stay = whenClosed(request, () => request.complete || sent.destroy(new Error('the client has gone')));
  sent.once('close', () => {
    stay();
    request.unpipe(sent).resume();
  });
  request.pipe(sent);
}

/**
 * Resolves when the entire response was passed on, rejects when either side breaks off. Node's `pipeline` would work, at the
 * price of an abort signal and its exception for each response. `length` is NaN if unknown.
 */
function passOn(upstream: IncomingMessage, response: ServerResponse, length: number): Promise<void> {
  return new Promise((resolve, reject) => {
    let left = length;
    let ended = false;
    upstream.once('error', reject);
    upstream.once('close', () => upstream.complete || reject(new Error('the upstream broke off')));
    response.once('finish', resolve);
    response.once('close', () => response.writableFinished || reject(new Error('the client has gone')));
    response.on('drain', () => upstream.resume());
    upstream.on('data', (part: Buffer) => {
      left -= part.length;
      // most responses are one part: head and body go in one write, and nothing is left to do at the end
      if (left === 0) {
        ended = true;
        response.end(part);
      } else if (!response.write(part)) upstream.pause();
    });
    upstream.once('end', () => ended || response.end());
  });
}
