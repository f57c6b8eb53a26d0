import { once } from 'node:events';
import http, { type ServerResponse } from 'node:http';
import http2 from 'node:http2';
import { type AddressInfo, createServer, type Server, type Socket } from 'node:net';
import tls from 'node:tls';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { Egress } from '../../server/lib/egress.ts';
import { forbiddenUrls } from '../helpers/addresses.ts';
import { TestDns } from '../helpers/dns.ts';
import { type TestTenant, useServer } from '../helpers/server.ts';
import { TestCa } from '../helpers/tls.ts';
import { sampled } from '../siege/rounds.ts';

/** What destinations do wrong, each over a real connection, and what the test of a subscription says of it. */

const [dns, ca] = await Promise.all([TestDns.start(), TestCa.create()]);
const server = useServer(
  {},
  { egress: new Egress({ allow: ['127.0.0.1/32'], dnsServers: [dns.server], ca: [ca.cert] }) },
);
const stops: (() => unknown)[] = [() => dns.stop()];
let tenant: TestTenant;
/** A server that must never be reached. */
let inside: { port: number; connections: () => number };

beforeAll(async () => {
  tenant = await server.tenant();
  inside = await listen(http.createServer((_, response) => response.end()));
});
afterAll(async () => {
  for (const stop of stops) await stop();
});

async function listen(listener: Server, host = '127.0.0.1') {
  let connections = 0;
  const sockets = new Set<Socket>();
  listener.on('connection', (socket: Socket) => {
    connections++;
    sockets.add(socket);
    socket.on('error', () => undefined);
  });
  await once(listener.listen(0, host), 'listening');
  stops.push(() => {
    for (const socket of sockets) socket.destroy();
    listener.close();
  });
  return { port: (listener.address() as AddressInfo).port, connections: () => connections };
}

/** Starts a destination and resolves to its URL. */
type Make = () => Promise<string>;
const raw =
  (serve: (socket: Socket) => unknown, scheme = 'http'): Make =>
  async () =>
    `${scheme}://127.0.0.1:${(await listen(createServer((socket) => void serve(socket)))).port}/hook`;
/** Speaks these bytes when the request has come, and closes or stays. */
const says = (text: string, end = true) =>
  raw((socket) => socket.once('data', () => (end ? socket.end(text) : socket.write(text))));
const web =
  (handler: (response: ServerResponse) => unknown): Make =>
  async () => {
    const listener = http.createServer((request, response) => {
      request.resume().on('end', () => void handler(response));
    });
    return `http://127.0.0.1:${(await listen(listener)).port}/hook`;
  };
const status = (code: number, headers: http.OutgoingHttpHeaders = {}, body = '') =>
  web((response) => response.writeHead(code, headers).end(body));
const secure =
  (options: () => Promise<tls.TlsOptions>, host = 'good.test'): Make =>
  async () => {
    dns.names['good.test'] = ['127.0.0.1'];
    dns.names['other.test'] = ['127.0.0.1'];
    const listener = tls.createServer(await options(), (socket) => {
      socket.on('error', () => undefined);
      socket.once('data', () => socket.end('HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n'));
    });
    return `https://${host}:${(await listen(listener)).port}/hook`;
  };
const named =
  (name: string, script: TestDns['names'][string]): Make =>
  async () => {
    dns.names[name] = script;
    return `http://${name}:${inside.port}/hook`;
  };
/** Writes a piece every so often, until the connection is gone. */
const drip = (head: string, piece: string, everyMs: number) =>
  raw((socket) => {
    socket.write(head);
    const timer = setInterval(() => (socket.destroyed ? clearInterval(timer) : socket.write(piece)), everyMs);
    socket.on('close', () => clearInterval(timer));
  });
const good = ['good.test'];

const CASES: [what: string, make: Make, result: string, status: number | null][] = [
  ['never accepts', async () => `http://127.0.0.1:${await full()}/hook`, 'TIMEOUT', null],
  ['accepts and is silent', raw(() => undefined), 'TIMEOUT', null],
  ['sends headers one byte a second', drip('HTTP/1.1 200 OK\r\nx: ', 'y', 1000), 'TIMEOUT', null],
  ['sends a body one byte a second', drip('HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n', 'x', 1000), 'TIMEOUT', null],
  [
    'sends chunks without end',
    drip('HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n', '1\r\nx\r\n', 500),
    'TIMEOUT',
    null,
  ],
  ['stops within the headers', says('HTTP/1.1 200 OK\r\nx-', false), 'TIMEOUT', null],
  ['promises a body and sends none', says('HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n', false), 'TIMEOUT', null],
  ['repeats 100 Continue', drip('', 'HTTP/1.1 100 Continue\r\n\r\n', 300), 'TIMEOUT', null],
  ['repeats 103 Early Hints', drip('', 'HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n', 300), 'TIMEOUT', null],
  ['is silent within the TLS handshake', raw(() => undefined, 'https'), 'TIMEOUT', null],
  ['resets at once', raw((socket) => socket.resetAndDestroy()), 'CONNECTION_FAILED', null],
  ['closes at once', raw((socket) => socket.end()), 'CONNECTION_FAILED', null],
  [
    'resets after the request',
    raw((socket) => socket.once('data', () => socket.resetAndDestroy())),
    'CONNECTION_FAILED',
    null,
  ],
  ['closes within the headers', says('HTTP/1.1 200 OK\r\nx-'), 'CONNECTION_FAILED', null],
  ['closes within the body', says('HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nx'), 'CONNECTION_FAILED', null],
  [
    'closes within a chunk',
    says('HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nx'),
    'CONNECTION_FAILED',
    null,
  ],
  [
    'resets within TLS',
    raw((socket) => socket.once('data', () => socket.resetAndDestroy()), 'https'),
    'CONNECTION_FAILED',
    null,
  ],
  ['is not there', async () => `http://127.0.0.1:${await closed()}/hook`, 'CONNECTION_FAILED', null],
  ['speaks SMTP', says('220 mail.test ESMTP\r\n'), 'CONNECTION_FAILED', null],
  ['speaks HTTP/0.9', says('<html>hello</html>'), 'CONNECTION_FAILED', null],
  ['sends a wrong status', says('HTTP/1.1 abc OK\r\n\r\n'), 'CONNECTION_FAILED', null],
  [
    'sends a wrong chunk size',
    says('HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n'),
    'CONNECTION_FAILED',
    null,
  ],
  [
    'sends two lengths',
    says('HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nx'),
    'CONNECTION_FAILED',
    null,
  ],
  ['sends NUL in a header', says('HTTP/1.1 200 OK\r\nx: \0\r\n\r\n'), 'CONNECTION_FAILED', null],
  ['sends a header of 1 MB', says(`HTTP/1.1 200 OK\r\nx: ${'y'.repeat(1e6)}\r\n\r\n`), 'CONNECTION_FAILED', null],
  ['sends 10,000 headers', says(`HTTP/1.1 200 OK\r\n${'a: b\r\n'.repeat(10_000)}\r\n`), 'CONNECTION_FAILED', null],
  [
    'speaks HTTP/2 alone, without TLS',
    async () => `http://127.0.0.1:${(await listen(http2.createServer())).port}/`,
    'CONNECTION_FAILED',
    null,
  ],
  [
    'speaks HTTP/2 alone',
    secure(async () => ({ ...(await ca.issue(good)), ALPNProtocols: ['h2'] })),
    'TLS_ERROR',
    null,
  ],
  ['speaks no TLS', async () => (await status(200)()).replace('http:', 'https:'), 'TLS_ERROR', null],
  ['has a self-signed certificate', secure(() => TestCa.selfSigned(good)), 'TLS_ERROR', null],
  [
    'has a certificate of an unknown authority',
    secure(async () => (await TestCa.create()).issue(good)),
    'TLS_ERROR',
    null,
  ],
  ['has a certificate for another name', secure(() => ca.issue(good), 'other.test'), 'TLS_ERROR', null],
  ['has an expired certificate', secure(() => ca.expired(good)), 'TLS_ERROR', null],
  [
    'has a certificate of tomorrow',
    secure(() => ca.issue(good, { from: new Date(Date.now() + 1e8) })),
    'TLS_ERROR',
    null,
  ],
  [
    'has a certificate for its name, asked by its address',
    secure(() => ca.issue(good), '127.0.0.1'),
    'TLS_ERROR',
    null,
  ],
  [
    'speaks TLS 1.1',
    secure(async () => ({
      ...(await ca.issue(good)),
      minVersion: 'TLSv1',
      maxVersion: 'TLSv1.1',
      ciphers: 'ALL@SECLEVEL=0',
    })),
    'TLS_ERROR',
    null,
  ],
  ['has a name that does not exist', named('gone.test', 'NXDOMAIN'), 'DNS_ERROR', null],
  ['has a name without an address', named('empty.test', []), 'DNS_ERROR', null],
  ['has a name whose server fails', named('servfail.test', 'SERVFAIL'), 'DNS_ERROR', null],
  ['has a name whose server is silent', named('silent.test', 'silence'), 'DNS_ERROR', null],
  ['has a name that turned private', named('private.test', rebinding('10.0.0.1')), 'DESTINATION_BLOCKED', null],
  [
    'has a name that turned into metadata',
    named('meta.test', rebinding('169.254.169.254')),
    'DESTINATION_BLOCKED',
    null,
  ],
  [
    'has a name that is half private',
    named('half.test', rebinding('93.184.216.34', '192.168.0.1')),
    'DESTINATION_BLOCKED',
    null,
  ],
  ['has a name that turned into IPv6 loopback', named('v6.test', rebinding('::1')), 'DESTINATION_BLOCKED', null],
  ['redirects to metadata', status(301, { location: 'http://169.254.169.254/latest/' }), 'DESTINATION_ERROR', 301],
  ['redirects to a file', status(302, { location: 'file:///etc/passwd' }), 'DESTINATION_ERROR', 302],
  [
    'redirects inside with the method kept',
    web((response) => response.writeHead(307, { location: `http://127.0.0.1:${inside.port}/` }).end()),
    'DESTINATION_ERROR',
    307,
  ],
  ['asks for a password', status(401, { 'www-authenticate': 'Basic' }), 'REJECTED_BY_DESTINATION', 401],
  ['refuses', status(403), 'REJECTED_BY_DESTINATION', 403],
  ['has nothing there', status(404), 'NOT_FOUND', 404],
  ['finds it too large', status(413), 'DESTINATION_ERROR', 413],
  ['has too much', status(429, { 'retry-after': '60' }), 'DESTINATION_ERROR', 429],
  ['has a fault', status(500, {}, 'x'.repeat(1000)), 'DESTINATION_ERROR', 500],
  ['is a gateway to nothing', status(502), 'DESTINATION_ERROR', 502],
  ['answers 304', status(304), 'DESTINATION_ERROR', 304],
  [
    'switches protocols',
    says('HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n', false),
    'DESTINATION_ERROR',
    101,
  ],
  ['answers 999', says('HTTP/1.1 999 What\r\ncontent-length: 0\r\n\r\n'), 'DESTINATION_ERROR', 999],
  ['sends 1 GB with its 200', web(gigabyte), 'DELIVERED', 200],
  ['sends a bomb of gzip with its 200', status(200, { 'content-encoding': 'gzip' }, 'not gzip'), 'DELIVERED', 200],
  [
    'answers before it has read',
    raw((socket) => socket.end('HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n')),
    'DELIVERED',
    200,
  ],
  ['answers without a length', says('HTTP/1.1 200 OK\r\n\r\nok'), 'DELIVERED', 200],
  ['answers 204', status(204), 'DELIVERED', 204],
  ['sends cookies and odd headers', status(202, { 'set-cookie': ['a=b', 'c=d'], 'x-odd': 'é' }), 'DELIVERED', 202],
];

/** Good while it is saved, then these: a name that rebinds. */
function rebinding(...addresses: string[]): TestDns['names'][string] {
  return (_, count) => (count === 1 ? ['127.0.0.1'] : addresses);
}

async function gigabyte(response: ServerResponse): Promise<void> {
  const chunk = Buffer.alloc(1024 * 1024);
  for (let sent = 0; sent < 1000 && !response.destroyed; sent++) {
    if (!response.write(chunk)) await Promise.race([once(response, 'drain'), once(response, 'close')]);
  }
  response.end();
}

async function closed(): Promise<number> {
  const listener = createServer();
  await once(listener.listen(0, '127.0.0.1'), 'listening');
  const { port } = listener.address() as AddressInfo;
  listener.close();
  return port;
}

/** A port whose queue of connections is full: nobody accepts there. */
async function full(): Promise<number> {
  const script = `const s = require('node:net').createServer(); s.listen({ port: 0, host: '127.0.0.1', backlog: 1 }, () => {
    process.stdout.write(String(s.address().port)); setTimeout(() => process.kill(process.pid, 'SIGSTOP'), 50); });`;
  const { spawn } = await import('node:child_process');
  const { connect } = await import('node:net');
  const child = spawn(process.execPath, ['-e', script], { stdio: ['ignore', 'pipe', 'inherit'] });
  stops.push(() => child.kill('SIGKILL'));
  const [port] = (await once(child.stdout, 'data')) as [Buffer];
  await new Promise((resolve) => setTimeout(resolve, 200));
  for (let n = 0; n < 8; n++) {
    const socket = connect(Number(port), '127.0.0.1');
    socket.on('error', () => undefined);
    stops.push(() => socket.destroy());
  }
  await new Promise((resolve) => setTimeout(resolve, 200));
  return Number(port);
}

test('every misbehavior of a destination has its result, with a reason in plain words', async () => {
  expect(CASES.length).toBeGreaterThanOrEqual(60);
  const wrong: string[] = [];
  const look = async ([what, make, result, code]: (typeof CASES)[number]) => {
    const url = await make();
    const { body: made } = await server.call<{ id: string }>(201, 'POST /v1/subscriptions', tenant.admin, {
      url,
      secret: 'a signing secret',
      active: false,
    });
    const { body } = await server.call<{
      delivered: boolean;
      result: string;
      reason: string;
      http_status: number | null;
      payload: object;
    }>(200, `POST /v1/subscriptions/${made.id}/test`, tenant.admin, {});
    if (body.result !== result || body.http_status !== code) {
      wrong.push(`${what}: ${body.result} ${body.http_status} (${body.reason}), not ${result} ${code}`);
    }
    expect(body.delivered).toBe(body.result === 'DELIVERED');
    expect(body.reason, what).toMatch(/^[A-Z][^\n]*\.$/);
    expect(body.reason, what).not.toMatch(/E[A-Z]{4,}|ERR_|HPE_|undefined|\d+\.\d+\.\d+\.\d+/);
    expect(body.payload).toMatchObject({ event: 'svc.test' });
  };
  // one after the other, so that none of them takes as long as those that are given up; these wait beside them
  const isSlow = ([, , result]: (typeof CASES)[number]) => result === 'TIMEOUT';
  const waiting = Promise.all(CASES.filter(isSlow).map(look));
  waiting.catch(() => undefined);
  for (const one of CASES.filter((one) => !isSlow(one))) await look(one);
  await waiting;
  expect(wrong).toEqual([]);
  expect(inside.connections()).toBe(0);
});

test('no spelling of a forbidden address is saved, updated to, tested or delivered to', async () => {
  const before = inside.connections();
  const everywhere = await listen(
    http.createServer((_, response) => response.end()),
    '::',
  );
  // 127.0.0.1 is allowed here, for the receivers of this file
  const reachable = new Egress({ allow: ['127.0.0.1/32'], dnsServers: [dns.server] });
  const urls: string[] = [];
  for (const url of forbiddenUrls(everywhere.port)) {
    const blocked = await reachable.check(url).then(
      () => false,
      (error) => error.failure === 'DESTINATION_BLOCKED',
    );
    if (blocked) urls.push(url);
  }
  expect(urls.length).toBeGreaterThanOrEqual(90);
  const { body: good } = await server.call<{ id: string }>(201, 'POST /v1/subscriptions', tenant.admin, {
    url: 'http://127.0.0.1:9/',
    secret: 'a signing secret',
    active: false,
  });
  for (const url of sampled(urls, undefined, 5)) {
    const body = { url, secret: 'a signing secret' };
    await server.call(400, 'POST /v1/subscriptions', tenant.admin, body);
    await server.call(400, `PATCH /v1/subscriptions/${good.id}`, tenant.admin, { url });
    // as if it had been good when it was saved
    await server.core.db.owner.query('update subscription set url_sealed = $2 where id = $1', [
      good.id,
      server.core.box.seal(url, `${tenant.id}/subscription/${good.id}/url`),
    ]);
    const { body: tried } = await server.call(200, `POST /v1/subscriptions/${good.id}/test`, tenant.admin, {});
    expect(tried, url).toMatchObject({ delivered: false, result: 'DESTINATION_BLOCKED', http_status: null });
  }
  expect(everywhere.connections()).toBe(0);
  expect(inside.connections()).toBe(before);
});
