import { Resolver } from 'node:dns/promises';
import http from 'node:http';
import https from 'node:https';
import net, { isIP, type Socket } from 'node:net';
import { networkInterfaces } from 'node:os';
import type { Duplex } from 'node:stream';
import tls from 'node:tls';
import ipaddr from 'ipaddr.js';
import { Parts } from './parts.ts';

/**
 * The server's only way out to an address given by a tenant or another party: webhooks, issuers, key sets, notify targets.
 *
 * INVARIANT: the address that is dialed is the address that was checked. For each connection a name is resolved once, all its
 * addresses are judged, and the connection is made to those addresses; nothing resolves the name a second time, so a changed
 * answer (DNS rebinding) has no effect. Redirects are responses like any other and are not followed.
 *
 * A connection serves one request, unless the caller says whose it is (`keep`): see Connections.
 */

export type EgressFailure =
  | 'DESTINATION_BLOCKED'
  | 'TIMEOUT'
  | 'DNS_ERROR'
  | 'TLS_ERROR'
  | 'CONNECTION_FAILED'
  | 'TOO_LARGE';

/**
 * Why a call failed. The message is a sentence for a person; it never contains an address that a name resolved to (an outsider
 * could read internal DNS through it), nor the URL's path, query or userinfo.
 */
export class EgressError extends Error {
  readonly failure: EgressFailure;

  constructor(failure: EgressFailure, message: string) {
    super(message);
    this.name = 'EgressError';
    this.failure = failure;
  }
}

export interface EgressAnswer {
  status: number;
  headers: Record<string, string | string[] | undefined>;
  /** As received: Content-Encoding is not decoded, so no small response can become a big one here. */
  body: Buffer;
  /** The response was longer than `maxBytes`, and the rest was not read. */
  truncated: boolean;
}

export interface EgressRequest {
  url: string;
  /** Default: `GET` without a body, `POST` with one. */
  method?: string;
  headers?: Record<string, string>;
  body?: string | Buffer;
  /** For everything: name resolution, connection, TLS, request and response. Default 10,000. */
  timeoutMs?: number;
  /** How much of the response body is read. Default 65,536. */
  maxBytes?: number;
  /** How a longer response is handled: cut off there (default), or TOO_LARGE, for callers that would parse it. */
  tooLarge?: 'truncate' | 'fail';
  /** Ends the call early: it then rejects with the signal's reason. */
  signal?: AbortSignal;
  /**
   * Whose connection this is. It is kept for a short time for the next call with the same value, scheme, host and port, and for
   * no other. A call on a kept connection that the other side has ended, without a byte of a response, is repeated once on a new
   * connection: only for requests that may arrive twice.
   */
  keep?: string;
}

const TIMEOUT_MS = 10_000;
/** How long an idle connection is kept; less if the other side asks for it (`Keep-Alive: timeout=5`). */
const IDLE_MS = 15_000;
/**
 * The maximum age of a connection when a request begins on it: a receiver that has moved may be called at its old address for
 * this long.
 */
const CONNECTION_MS = 60_000;
/** Idle connections per scheme. Beyond that, the least recently used are closed. */
const MOST_IDLE = 256;
const MAX_BYTES = 65_536;
const OWN_MS = 5000;

type Address = ipaddr.IPv4 | ipaddr.IPv6;
type Range = [Address, number];

/**
 * IPv4 addresses that no tenant may dial (IANA special-purpose registry, RFC 6890 and later), and cloud metadata addresses beyond
 * those.
 */
const FORBIDDEN_V4 = ranges(
  '0.0.0.0/8', // this network, RFC 791
  '10.0.0.0/8', // private, RFC 1918
  '100.64.0.0/10', // carrier-grade NAT, RFC 6598; metadata of Alibaba Cloud (100.100.100.200)
  '127.0.0.0/8', // loopback, RFC 1122
  '168.63.129.16/32', // Azure's host: public by number, reachable only from inside
  '169.254.0.0/16', // link-local, RFC 3927; metadata of most clouds
  '172.16.0.0/12', // private, RFC 1918
  '192.0.0.0/24', // protocol assignments, RFC 6890; metadata of Oracle Cloud (192.0.0.192)
  '192.0.2.0/24', // TEST-NET-1, RFC 5737
  '192.31.196.0/24', // AS112, RFC 7535
  '192.52.193.0/24', // AMT, RFC 7450
  '192.88.99.0/24', // 6to4 relays, RFC 7526
  '192.168.0.0/16', // private, RFC 1918
  '192.175.48.0/24', // AS112, RFC 7534
  '198.18.0.0/15', // benchmarking, RFC 2544
  '198.51.100.0/24', // TEST-NET-2
  '203.0.113.0/24', // TEST-NET-3
  '224.0.0.0/4', // multicast, RFC 5771
  '240.0.0.0/4', // class E and broadcast, RFC 1112
);

/**
 * Of IPv6, only global unicast can be dialed at all: everything else is loopback, IPv4-compatible, discard-only, local-use NAT64
 * (64:ff9b:1::/48), SRv6 (5f00::/16), unique local, link-local, site-local, multicast, or unassigned.
 */
const GLOBAL_V6 = ranges('2000::/3');
const FORBIDDEN_V6 = ranges(
  '2001::/23', // protocol assignments: Teredo, benchmarking, AMT, AS112, ORCHID, drone ids; RFC 2928 and later
  '2001:db8::/32', // documentation, RFC 3849
  '2002::/16', // 6to4: carries any IPv4 address in it, RFC 3056
  '2620:4f:8000::/48', // AS112
  '3ffe::/16', // 6bone, given back: RFC 3701
  '3fff::/20', // documentation, RFC 9637
);
/**
 * NAT64's well-known prefix (RFC 6052): on an IPv6-only network, DNS64 makes such an address for every IPv4 host, and the
 * translator dials the last 32 bits. Those are judged.
 */
const NAT64 = ranges('64:ff9b::/96');

const CERTIFICATE_FAULTS: Readonly<Record<string, string>> = {
  CERT_HAS_EXPIRED: "The destination's certificate has expired.",
  CERT_NOT_YET_VALID: "The destination's certificate is not valid yet.",
  ERR_TLS_CERT_ALTNAME_INVALID: "The destination's certificate is for another host name.",
  DEPTH_ZERO_SELF_SIGNED_CERT: "The destination's certificate is self-signed.",
  SELF_SIGNED_CERT_IN_CHAIN: "The destination's certificate comes from an authority that is not trusted.",
  UNABLE_TO_GET_ISSUER_CERT: "The destination's certificate comes from an authority that is not trusted.",
  UNABLE_TO_GET_ISSUER_CERT_LOCALLY: "The destination's certificate comes from an authority that is not trusted.",
  UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    "The destination's certificate comes from an authority that is not trusted, or its server does not send the whole chain.",
  CERT_SIGNATURE_FAILURE: "The destination's certificate is not signed by the authority that it names.",
  CERT_REVOKED: "The destination's certificate was revoked.",
};

export class Egress {
  readonly #allow: readonly Range[];
  readonly #dnsServers: readonly string[];
  readonly #ca: string[] | undefined;
  readonly #interfaces: typeof networkInterfaces;
  #own: { addresses: ReadonlySet<string>; until: number } | undefined;
  readonly #connections = { 'http:': new Connections('http:'), 'https:': new Connections('https:') };

  /**
   * `allow`: CIDRs that may be dialed although they are forbidden (SVC_EGRESS_ALLOW). `dnsServers`: host:port; none: the
   * system's. For tests: `ca`, certificates (PEM) trusted in addition to the system's, and `interfaces`, the network interfaces
   * of this machine.
   */
  constructor(options: {
    allow: readonly string[];
    dnsServers: readonly string[];
    ca?: readonly string[];
    interfaces?: typeof networkInterfaces;
  }) {
    this.#allow = ranges(...options.allow);
    this.#dnsServers = options.dnsServers;
    this.#interfaces = options.interfaces ?? networkInterfaces;
    this.#ca = options.ca && [...tls.getCACertificates('default'), ...options.ca];
  }

  /**
   * The check when an address is saved: http or https, no userinfo, a name that resolves, and all of its addresses may be dialed.
   * Throws EgressError. It guarantees nothing for later: `send` judges again, each time.
   */
  async check(url: string): Promise<void> {
    await within({ timeoutMs: TIMEOUT_MS }, (signal) => this.#addresses(parse(url), signal));
  }

  /**
   * Sends one request and reads the response, whatever its status. Throws EgressError if there is none; the destination may still
   * have received the request, unless the failure is DESTINATION_BLOCKED, DNS_ERROR or TLS_ERROR.
   */
  async send(request: EgressRequest): Promise<EgressAnswer> {
    return within({ timeoutMs: request.timeoutMs ?? TIMEOUT_MS, signal: request.signal }, async (signal) => {
      const url = parse(request.url);
      const kept = request.keep === undefined ? undefined : this.#connections[url.protocol as 'http:' | 'https:'];
      if (kept?.has(nameOf(url, request.keep!))) {
        try {
          return await exchange(url, undefined, request, { kept, ca: this.#ca, signal });
        } catch (error) {
          if (!(error instanceof EndedWhileIdle) || signal.aborted) throw error;
        }
      }
      const addresses = await this.#addresses(url, signal);
      return exchange(url, addresses, request, { kept, ca: this.#ca, signal });
    });
  }

  /** The TXT records of a name, each in one piece; empty if there are none. Throws EgressError DNS_ERROR or TIMEOUT. */
  async txt(name: string): Promise<string[]> {
    return within({ timeoutMs: TIMEOUT_MS }, async (signal) => {
      try {
        const records = await this.#resolver(signal).resolveTxt(name);
        return records.map((chunks) => chunks.join(''));
      } catch (error) {
        if (hasNone(error)) return [];
        throw dnsError(error);
      }
    });
  }

  /**
   * The addresses to dial, all judged. One forbidden address among good ones blocks the name: otherwise chance would decide which
   * is dialed, and a name that is half inside is what a rebinding looks like from here.
   */
  async #addresses(url: URL, signal: AbortSignal): Promise<string[]> {
    const found = await this.#resolve(hostOf(url), signal);
    const own = this.#ownAddresses();
    for (const text of found) {
      if (!this.#mayDial(text, own)) {
        throw new EgressError(
          'DESTINATION_BLOCKED',
          'The address is private, loopback, cloud metadata or otherwise reserved, or its name resolves to such a one.',
        );
      }
    }
    return found;
  }

  #mayDial(text: string, own: ReadonlySet<string>): boolean {
    const given = ipaddr.parse(text);
    // where the packets will go: ::ffff:a.b.c.d is dialed as IPv4
    const address = given instanceof ipaddr.IPv6 && given.isIPv4MappedAddress() ? given.toIPv4Address() : given;
    if (contains(this.#allow, address)) return true;
    // in a container or on a rented machine they may be public addresses, and still bypass its firewall
    if (own.has(address.toNormalizedString())) return false;
    if (address instanceof ipaddr.IPv4) return !contains(FORBIDDEN_V4, address);
    if (contains(NAT64, address)) {
      return this.#mayDial(address.toByteArray().slice(12).join('.'), own);
    }
    return contains(GLOBAL_V6, address) && !contains(FORBIDDEN_V6, address);
  }

  /** This machine's addresses, looked up again every few seconds: querying the system costs as much as a short request. */
  #ownAddresses(): ReadonlySet<string> {
    if (!this.#own || performance.now() >= this.#own.until) {
      const all = Object.values(this.#interfaces()).flatMap((addresses) => addresses ?? []);
      const texts = all.map(({ address }) => ipaddr.process(address.replace(/%.*$/, '')).toNormalizedString());
      this.#own = { addresses: new Set(texts), until: performance.now() + OWN_MS };
    }
    return this.#own.addresses;
  }

  async #resolve(host: string, signal: AbortSignal): Promise<string[]> {
    if (isIP(host)) return [host];
    // RFC 6761: such a name never goes to a DNS server
    if (host === 'localhost' || host.endsWith('.localhost')) return ['127.0.0.1'];
    const resolver = this.#resolver(signal);
    // wait for both: the verdict must not depend on which is faster
    const answers = await Promise.allSettled([resolver.resolve4(host), resolver.resolve6(host)]);
    signal.throwIfAborted();
    const found = answers.flatMap((answer) => (answer.status === 'fulfilled' ? answer.value : []));
    if (found.length > 0) return found;
    const failures = answers.map((answer) => (answer as PromiseRejectedResult).reason);
    throw dnsError(failures.find((failure) => !hasNone(failure)) ?? failures[0]);
  }

  /**
   * A resolver for one call, so that canceling it cancels nothing else. It queries DNS servers itself: the system's getaddrinfo
   * would hold one of the process's few threads for as long as a tenant's name server stays silent.
   */
  #resolver(signal: AbortSignal): Resolver {
    const resolver = new Resolver({ timeout: 2000, tries: 2 });
    if (this.#dnsServers.length > 0) resolver.setServers(this.#dnsServers);
    signal.addEventListener('abort', () => resolver.cancel(), { once: true });
    return resolver;
  }
}

/** Runs a call that ends with TIMEOUT when its time is over, or with the caller's reason when they end it. */
async function within<T>(
  limit: { timeoutMs: number; signal?: AbortSignal | undefined },
  run: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  limit.signal?.throwIfAborted();
  const controller = new AbortController();
  const { signal } = controller;
  const timer = setTimeout(() => {
    const told = `The destination gave no complete answer within ${limit.timeoutMs / 1000} seconds.`;
    controller.abort(new EgressError('TIMEOUT', told));
  }, limit.timeoutMs);
  // AbortSignal.any would do this too, at the cost of a short request
  const end = () => controller.abort(limit.signal!.reason);
  limit.signal?.addEventListener('abort', end, { once: true });
  try {
    return await run(signal);
  } catch (error) {
    throw signal.aborted ? signal.reason : error;
  } finally {
    clearTimeout(timer);
    limit.signal?.removeEventListener('abort', end);
  }
}

function parse(text: string): URL {
  const url = URL.canParse(text) ? new URL(text) : undefined;
  if (url?.protocol !== 'http:' && url?.protocol !== 'https:') {
    throw new EgressError('DESTINATION_BLOCKED', 'The destination is not an http or https address.');
  }
  if (url.username || url.password) {
    throw new EgressError('DESTINATION_BLOCKED', 'The destination may not hold a user name or password.');
  }
  return url;
}

/** The name without its trailing dot, or the address without its brackets; URL has already normalized the spelling. */
function hostOf(url: URL): string {
  return url.hostname.replace(/^\[(.*)\]$/, '$1').replace(/\.$/, '');
}

/** A kept connection ended before the first byte of a response, or is gone. */
class EndedWhileIdle extends Error {}

/** Options for `Connections`, in addition to Node's. */
interface Dialing extends https.RequestOptions {
  autoSelectFamily: boolean;
  autoSelectFamilyAttemptTimeout: number;
  /** See `nameOf`; undefined if the connection serves one request. */
  keepAs?: string | undefined;
  /** Whether the addresses were judged for this call. */
  judged: boolean;
}

/** Everything that a kept connection depends on. Its certificate was checked for the host. */
const nameOf = (url: URL, keep: string) => `${url.protocol}//${url.host} ${keep}`;

/**
 * Connections kept for the next request of the same caller to the same scheme, host and port. At most one is idle for each, for
 * 15 seconds at most.
 *
 * INVARIANT: a connection is made only to addresses that were judged for the call that makes it. A call that relies on a kept
 * connection brings no addresses, and fails if the connection is gone.
 *
 * Data that arrives while no response is due ends the connection: bytes after a response must not be read as the next one.
 */
class Connections extends http.Agent {
  readonly #secure: boolean;
  /** Since when each connection exists, and whether a response is due on it. */
  readonly #known = new WeakMap<Duplex, { since: number; due: () => boolean }>();
  /** The least recently used comes first. */
  readonly #idle = new Set<Duplex>();

  constructor(protocol: 'http:' | 'https:') {
    super({ keepAlive: true, maxFreeSockets: 1, timeout: IDLE_MS });
    this.#secure = protocol === 'https:';
    Object.assign(this, { protocol, defaultPort: this.#secure ? 443 : 80 });
  }

  has(name: string): boolean {
    return this.freeSockets[name]?.some((socket) => !socket.destroyed) ?? false;
  }

  /** Called once a request has been assigned its connection. */
  expect(socket: Duplex, due: () => boolean): void {
    const known = this.#known.get(socket);
    if (known) known.due = due;
  }

  override getName(options?: http.ClientRequestArgs): string {
    return (options as unknown as Dialing).keepAs!;
  }

  override createConnection(options: http.ClientRequestArgs, done: (error: Error | null, socket: Duplex) => void) {
    if (!(options as Dialing).judged) {
      done(new EndedWhileIdle(), undefined as never);
      return undefined;
    }
    const socket = this.#secure ? tls.connect(options as tls.ConnectionOptions) : net.connect(options as never);
    const known = { since: performance.now(), due: () => true };
    this.#known.set(socket, known);
    socket.on('data', () => {
      if (!known.due()) socket.destroy();
    });
    socket.once('close', () => this.#idle.delete(socket));
    return socket;
  }

  override keepSocketAlive(socket: Duplex): boolean {
    const known = this.#known.get(socket);
    const fit = super.keepSocketAlive(socket) as unknown as boolean;
    // if it stays idle for as long as it may, it must still not be too old
    const tooOld = known && performance.now() - known.since > CONNECTION_MS - IDLE_MS;
    if (!fit || !known || tooOld || socket.readableEnded) return false;
    known.due = () => false;
    this.#idle.add(socket);
    const [oldest] = this.#idle;
    if (this.#idle.size > MOST_IDLE) oldest!.destroy();
    return true;
  }

  override reuseSocket(socket: Duplex, request: http.ClientRequest): void {
    this.#idle.delete(socket);
    super.reuseSocket(socket, request);
  }
}

/** `addresses`: the judged ones; undefined to use the kept connection, or reject with EndedWhileIdle. */
function exchange(
  url: URL,
  addresses: readonly string[] | undefined,
  asked: EgressRequest,
  { kept, ca, signal }: { kept: Connections | undefined; ca: string[] | undefined; signal: AbortSignal },
): Promise<EgressAnswer> {
  const host = hostOf(url);
  const secure = url.protocol === 'https:';
  const maxBytes = asked.maxBytes ?? MAX_BYTES;
  const found = (addresses ?? []).map((address) => ({ address, family: isIP(address) }));
  return new Promise((resolve, reject) => {
    let stage: 'connecting' | 'securing' | 'open' = 'connecting';
    let heard = false;
    let answered: http.IncomingMessage | undefined;
    const fail = (error: Error) => {
      const idle = addresses === undefined && !heard && (request.reusedSocket || error instanceof EndedWhileIdle);
      reject(idle ? new EndedWhileIdle() : failureOf(error, stage));
    };
    const options: Dialing = {
      // a name is "looked up" among the resolved and judged addresses; an address is dialed as is, and is the one judged
      host,
      lookup: (_host, { all }, done) => (all ? done(null, found) : done(null, found[0]!.address, found[0]!.family)),
      port: url.port || (secure ? 443 : 80),
      path: url.pathname + url.search,
      method: asked.method ?? (asked.body === undefined ? 'GET' : 'POST'),
      headers: {
        'user-agent': 'svc/1',
        ...asked.headers,
        ...(asked.body !== undefined && { 'content-length': Buffer.byteLength(asked.body) }),
        host: url.host,
      },
      // or else one for this request only; neither reads a proxy from the environment
      agent: kept ?? false,
      keepAs: kept && nameOf(url, asked.keep!),
      judged: addresses !== undefined,
      // one address after the other, each with enough time to reach another continent
      autoSelectFamily: true,
      autoSelectFamilyAttemptTimeout: 1000,
      signal,
      ...(secure && {
        servername: isIP(host) ? '' : host,
        // even if NODE_TLS_REJECT_UNAUTHORIZED is set
        rejectUnauthorized: true,
        minVersion: 'TLSv1.2' as const,
        ALPNProtocols: ['http/1.1'],
        ...(ca && { ca }),
      }),
    };
    const request = (secure ? https : http).request(options);
    request.on('socket', (socket: Socket) => {
      kept?.expect(socket, () => !answered?.complete);
      if (request.reusedSocket) {
        stage = 'open';
        socket.once('data', () => {
          heard = true;
        });
        return;
      }
      socket.once('connect', () => {
        stage = secure ? 'securing' : 'open';
      });
      socket.once('secureConnect', () => {
        stage = 'open';
      });
    });
    request.on('error', fail);
    // 101 was not requested: treated like any other response, and ends the connection
    request.on('upgrade', (response, socket) => {
      socket.destroy();
      resolve({ status: response.statusCode!, headers: response.headers, body: Buffer.alloc(0), truncated: false });
    });
    request.on('response', (response) => {
      answered = response;
      const parts = new Parts();
      const answer = (truncated: boolean) =>
        resolve({
          status: response.statusCode!,
          headers: response.headers,
          body: parts.join().subarray(0, maxBytes),
          truncated,
        });
      response.on('data', (chunk: Buffer) => {
        parts.push(chunk);
        if (parts.bytes <= maxBytes) return;
        if (asked.tooLarge === 'fail') {
          reject(new EgressError('TOO_LARGE', `The destination's answer is larger than ${maxBytes} bytes.`));
        } else {
          answer(true);
        }
        request.destroy();
      });
      response.on('end', () => answer(false));
      response.on('error', fail);
    });
    request.end(asked.body);
  });
}

function failureOf(error: Error & { code?: string }, stage: 'connecting' | 'securing' | 'open'): EgressError {
  const code = error.code ?? '';
  if (code === 'ETIMEDOUT') return new EgressError('TIMEOUT', 'The destination did not take the connection in time.');
  if (stage === 'securing' && code !== 'ECONNRESET') {
    return new EgressError(
      'TLS_ERROR',
      CERTIFICATE_FAULTS[code] ??
        'No secure connection could be agreed on with the destination: it may not speak TLS 1.2 or later, or HTTP/1.1.',
    );
  }
  if (code === 'ECONNREFUSED') return new EgressError('CONNECTION_FAILED', 'The destination refused the connection.');
  if (stage === 'connecting') return new EgressError('CONNECTION_FAILED', 'The destination cannot be reached.');
  if (code.startsWith('HPE_')) {
    return new EgressError('CONNECTION_FAILED', 'What the destination answered is not HTTP/1.1, or not sound.');
  }
  return new EgressError('CONNECTION_FAILED', 'The destination closed the connection before its answer was complete.');
}

/** The name exists but has no such records, or does not exist. */
function hasNone(error: unknown): boolean {
  const { code } = error as { code?: string };
  return code === 'ENODATA' || code === 'ENOTFOUND';
}

function dnsError(error: unknown): EgressError {
  const { code } = error as { code?: string };
  if (code === 'ETIMEOUT' || code === 'ECONNREFUSED') {
    return new EgressError('DNS_ERROR', 'The DNS servers did not answer for the name of the destination.');
  }
  if (hasNone(error)) return new EgressError('DNS_ERROR', 'The host name of the destination has no address.');
  return new EgressError('DNS_ERROR', 'The host name of the destination could not be resolved.');
}

function ranges(...cidrs: string[]): Range[] {
  return cidrs.map((cidr) => ipaddr.parseCIDR(cidr) as Range);
}

function contains(list: readonly Range[], address: Address): boolean {
  return list.some(([range, bits]) => range.kind() === address.kind() && address.match(range as never, bits));
}
