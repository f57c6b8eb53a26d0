import { once } from 'node:events';
import http from 'node:http';
import https from 'node:https';
import { type AddressInfo, createServer, type Server, type Socket } from 'node:net';
import { type NetworkInterfaceInfo, networkInterfaces } from 'node:os';
import tls from 'node:tls';
import fc from 'fast-check';
import ipaddr from 'ipaddr.js';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import { Egress, EgressError } from '../../server/lib/egress.ts';
import { FORBIDDEN_ADDRESSES, forbiddenUrls } from '../helpers/addresses.ts';
import { TestDns } from '../helpers/dns.ts';
import { TestCa } from '../helpers/tls.ts';
import { sampled } from '../siege/rounds.ts';

const LOOPBACK = ['127.0.0.0/8', '::1/128'];
const stops: (() => unknown)[] = [];
let dns: TestDns;
let ca: TestCa;

beforeAll(async () => {
  [dns, ca] = await Promise.all([TestDns.start(), TestCa.create()]);
});
afterAll(async () => {
  for (const stop of stops) await stop();
  await dns.stop();
});

/** A server that counts the connections made to it, on every address of this machine. */
async function listen(server: Server, host = '127.0.0.1'): Promise<{ port: number; connections: () => number }> {
  let connections = 0;
  const sockets = new Set<Socket>();
  // a connection that is kept does not end because the test is slow
  if (server instanceof http.Server || server instanceof https.Server) server.keepAliveTimeout = 600_000;
  server.on('connection', (socket: Socket) => {
    connections++;
    sockets.add(socket);
    socket.on('error', () => {});
  });
  await once(server.listen(0, host), 'listening');
  stops.push(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  return { port: (server.address() as AddressInfo).port, connections: () => connections };
}

function guard(allow: readonly string[] = [], trust = false): Egress {
  return new Egress({ allow, dnsServers: [dns.server], ...(trust && { ca: [ca.cert] }) });
}

async function failureOf(promise: Promise<unknown>): Promise<EgressError> {
  const error = await promise.then(
    (answer) => expect.fail(`it succeeded: ${JSON.stringify(answer)}`),
    (error) => error,
  );
  expect(error).toBeInstanceOf(EgressError);
  return error;
}

describe('forbidden addresses', () => {
  let port: number;
  let connections: () => number;

  beforeAll(async () => {
    ({ port, connections } = await listen(
      http.createServer((_, response) => response.end()),
      '::',
    ));
  });

  test('have many spellings', () => {
    expect(new Set(forbiddenUrls(port)).size).toBeGreaterThan(150);
  });

  test('no spelling of one passes a check or is dialled', async () => {
    const egress = guard();
    for (const url of forbiddenUrls(port)) {
      expect((await failureOf(egress.check(url))).failure, url).toBe('DESTINATION_BLOCKED');
      const error = await failureOf(egress.send({ url, method: 'POST', body: 'x' }));
      expect(error.failure, url).toBe('DESTINATION_BLOCKED');
    }
    expect(connections()).toBe(0);
  });

  test('no name that resolves to one passes, alone or among good ones, over UDP or TCP', async () => {
    const egress = guard();
    // the system's resolver reads ::8.8.8.8 as ::ffff:8.8.8.8, which is what is judged and dialled: 8.8.8.8
    const addresses = FORBIDDEN_ADDRESSES.filter((address) => address !== '::8.8.8.8');
    addresses.forEach((address, i) => {
      dns.names[`only${i}.test`] = [address];
    });
    sampled(addresses).forEach((address, i) => {
      dns.names[`mixed${i}.test`] = ['93.184.216.34', '2606:4700::1111', address];
      dns.names[`many${i}.test`] = [...Array.from({ length: 50 }, (_, n) => `93.184.216.${n}`), address];
    });
    for (const [name] of Object.entries(dns.names)) {
      const url = `http://${name}:${port}/`;
      expect((await failureOf(egress.check(url))).failure, name).toBe('DESTINATION_BLOCKED');
      expect((await failureOf(egress.send({ url }))).failure, name).toBe('DESTINATION_BLOCKED');
    }
    expect(connections()).toBe(0);
  });

  test('any address of a forbidden range is blocked in any form of IPv6 that carries it', async () => {
    const egress = guard();
    const v4 = fc
      .tuple(fc.constantFrom('127', '10', '169.254', '192.168', '172.16', '100.64', '224'), fc.ipV4())
      .map(([prefix, rest]) => [...prefix.split('.'), ...rest.split('.')].slice(0, 4).join('.'));
    const forms = fc.constantFrom(
      (a: string) => a,
      (a: string) => `[::ffff:${a}]`,
      (a: string) => `[::${a}]`,
      (a: string) => `[64:ff9b::${a}]`,
      (a: string) => `[64:ff9b:1::${a}]`,
      (a: string) => `[2002:${hex(a)}::1]`,
      (a: string) => String(Number.parseInt(hex(a).replace(':', ''), 16)),
      (a: string) => `0x${hex(a).replace(':', '')}`,
      (a: string) => a.replace(/\d+/g, (part) => `0${Number(part).toString(8)}`),
    );
    await fc.assert(
      fc.asyncProperty(v4, forms, async (address, form) => {
        const failure = await failureOf(egress.check(`https://${form(address)}:${port}/`));
        expect(failure.failure).toBe('DESTINATION_BLOCKED');
      }),
      { numRuns: 1000 },
    );
    expect(connections()).toBe(0);
  });

  test("this machine's own addresses are blocked, public ones as well", async () => {
    const own = Object.values(networkInterfaces()).flatMap((all) => all ?? []);
    for (const { address, family } of own) {
      if (address.startsWith('fe80')) continue;
      const url = `http://${family === 'IPv6' ? `[${address}]` : address}:${port}/`;
      expect((await failureOf(guard().send({ url }))).failure, url).toBe('DESTINATION_BLOCKED');
    }
    expect(connections()).toBe(0);
  });

  test("a container's own addresses are blocked where they are public, in every form, and its neighbors are not", async () => {
    const own = (address: string, family: 'IPv4' | 'IPv6', scopeid = 0) =>
      ({ address, family, scopeid, netmask: '', mac: '', internal: false, cidr: null }) as NetworkInterfaceInfo;
    const interfaces = () => ({
      lo: [own('127.0.0.1', 'IPv4')],
      eth0: [own('93.184.216.34', 'IPv4'), own('2606:4700:4700::1111', 'IPv6')],
      eth1: [own('::ffff:8.8.4.4', 'IPv6'), own('2a00:1450:4001::200e%eth1', 'IPv6')],
      eth2: undefined,
    });
    const inside = (allow: readonly string[] = []) => new Egress({ allow, dnsServers: [dns.server], interfaces });
    dns.names['own.test'] = ['93.184.216.34'];
    dns.names['own6.test'] = ['2606:4700:4700:0:0:0:0:1111'];
    dns.names['own-among-good.test'] = ['93.184.216.35', '93.184.216.34'];
    for (const host of [
      ...['93.184.216.34', '0x5db8d822', '1572395042', '0135.0270.0330.042', '[::ffff:93.184.216.34]'],
      ...['[64:ff9b::93.184.216.34]', '[64:ff9b::5db8:d822]', '[2606:4700:4700::1111]', '8.8.4.4', '[::ffff:8.8.4.4]'],
      ...['[2606:4700:4700:0:0:0:0:1111]', '[2a00:1450:4001::200e]', 'own.test', 'own6.test', 'own-among-good.test'],
    ]) {
      const url = `https://${host}/`;
      expect((await failureOf(inside().check(url))).failure, url).toBe('DESTINATION_BLOCKED');
      expect((await failureOf(inside().send({ url }))).failure, url).toBe('DESTINATION_BLOCKED');
    }
    for (const host of ['93.184.216.35', '8.8.8.8', '[2606:4700:4700::1112]']) await inside().check(`https://${host}/`);
    // unless the operator says so
    await inside(['93.184.216.34/32']).check('https://93.184.216.34/');
    await inside(['93.184.216.34/32']).check('https://own.test/');
    // elsewhere they are addresses like any other
    await guard().check('https://own.test/');
  });

  test('a name that turns from public to private is blocked by the call that sees it', async () => {
    dns.names['rebinds.test'] = (type, count) => (type === 'A' ? [count === 1 ? '93.184.216.34' : '127.0.0.1'] : []);
    await guard().check(`http://rebinds.test:${port}/`);
    const error = await failureOf(guard().send({ url: `http://rebinds.test:${port}/` }));
    expect(error.failure).toBe('DESTINATION_BLOCKED');
    expect(connections()).toBe(0);
  });

  test('a name is resolved only once per call', async () => {
    // allowed at first, forbidden from the second question on: a connector that asked again would dial what was not judged
    dns.names['once.test'] = (type, count) => (type === 'A' ? [count === 1 ? '127.0.0.1' : '127.0.0.2'] : []);
    const before = connections();
    const egress = guard(['127.0.0.1/32']);
    expect((await egress.send({ url: `http://once.test:${port}/` })).status).toBe(200);
    expect(connections()).toBe(before + 1);
    expect(dns.asked.filter((line) => line === 'A once.test')).toHaveLength(1);
    expect((await failureOf(egress.send({ url: `http://once.test:${port}/` }))).failure).toBe('DESTINATION_BLOCKED');
    expect(connections()).toBe(before + 1);
  });

  test('only what the operator allows is reached', async () => {
    const before = connections();
    const egress = guard(['127.0.0.0/29']);
    for (const host of ['127.0.0.1', '127.1', 'localhost', '[::ffff:127.0.0.2]', '[64:ff9b::127.0.0.1]']) {
      await egress.check(`http://${host}:${port}/`);
    }
    expect((await egress.send({ url: `http://127.0.0.3:${port}/` })).status).toBe(200);
    expect(connections()).toBe(before + 1);
    for (const host of ['127.0.0.8', '[::1]', '10.0.0.1']) {
      expect((await failureOf(egress.check(`http://${host}:${port}/`))).failure).toBe('DESTINATION_BLOCKED');
    }
  });

  test('a message reveals neither the address behind a name nor the secrets in a URL', async () => {
    dns.names['inside.test'] = ['10.11.12.13'];
    for (const url of [
      `http://inside.test:${port}/T00/B00/hush?sig=hush`,
      `http://hush:hush@inside.test:${port}/hush`,
      `ftp://inside.test/hush`,
      'http://nowhere.test/hush?hush',
      'http://[hush]/',
    ]) {
      const { message } = await failureOf(guard().send({ url }));
      expect(message).not.toMatch(/hush|10\.11/);
    }
  });
});

describe('public addresses', () => {
  test('pass a check, directly or as what a name resolves to', async () => {
    dns.names['v4.test'] = ['93.184.216.34'];
    dns.names['v6.test'] = ['2606:4700::1111'];
    dns.names['both.test'] = ['93.184.216.34', '2606:4700::1111'];
    dns.names['dns64.test'] = ['8.8.8.8', '64:ff9b::8.8.8.8'];
    dns.names['no-aaaa.test'] = (type) => (type === 'A' ? ['93.184.216.34'] : 'SERVFAIL');
    dns.names['xn--bcher-kva.test'] = ['93.184.216.34'];
    for (const host of [
      ...['v4.test', 'v6.test', 'both.test', 'V4.TEST.', 'dns64.test', 'no-aaaa.test', 'bücher.test'],
      ...['8.8.8.8', '1.1.1.1', '[2606:4700:4700::1111]', '[::ffff:8.8.8.8]', '172.32.0.1', '100.128.0.1'],
    ]) {
      await guard().check(`https://${host}/`);
    }
  });

  test('the ranges agree with another table wherever both classify a global address', async () => {
    // what ipaddr.js calls anything but unicast is never let through here
    await fc.assert(
      fc.asyncProperty(fc.oneof(fc.ipV4(), fc.ipV6()), async (text) => {
        const address = ipaddr.process(text);
        const other = address.range();
        if (other === 'unicast' || other === 'rfc6052') return;
        const url = `http://${address.kind() === 'ipv6' ? `[${address}]` : address}/`;
        expect((await failureOf(guard().check(url))).failure, url).toBe('DESTINATION_BLOCKED');
      }),
      { numRuns: 2000 },
    );
  });
});

describe('names', () => {
  test('that do not resolve are distinguished from those that are blocked', async () => {
    dns.names['servfail.test'] = 'SERVFAIL';
    dns.names['refused.test'] = 'REFUSED';
    dns.names['empty.test'] = [];
    for (const name of ['missing.test', 'servfail.test', 'refused.test', 'empty.test']) {
      expect((await failureOf(guard().check(`http://${name}/`))).failure, name).toBe('DNS_ERROR');
      expect((await failureOf(guard().send({ url: `http://${name}/` }))).failure, name).toBe('DNS_ERROR');
    }
  });

  test('whose servers are silent end as DNS_ERROR, or as TIMEOUT if the call ends first', async () => {
    dns.names['silent.test'] = 'silence';
    const url = 'http://silent.test/';
    const [slow, quick] = await Promise.all([
      failureOf(guard().send({ url })),
      failureOf(guard().send({ url, timeoutMs: 200 })),
    ]);
    expect(slow.failure).toBe('DNS_ERROR');
    expect(quick.failure).toBe('TIMEOUT');
  });

  test('TXT records are each joined into one text; a name without them has none', async () => {
    dns.names['_svc.txt.test'] = { txt: ['one', ['in ', 'pieces'], 'x'.repeat(200), 'y'.repeat(200), 'z'.repeat(200)] };
    dns.names['a.txt.test'] = ['93.184.216.34'];
    dns.names['servfail.txt.test'] = 'SERVFAIL';
    const found = await guard().txt('_svc.txt.test');
    expect(found).toEqual(['one', 'in pieces', 'x'.repeat(200), 'y'.repeat(200), 'z'.repeat(200)]);
    expect(await guard().txt('a.txt.test')).toEqual([]);
    expect(await guard().txt('nothing.txt.test')).toEqual([]);
    expect((await failureOf(guard().txt('servfail.txt.test'))).failure).toBe('DNS_ERROR');
  });
});

describe('exchanges', () => {
  const send = (url: string, more: object = {}) => guard(LOOPBACK, true).send({ url, timeoutMs: 60_000, ...more });

  test('the request arrives unchanged, under the requested name', async () => {
    dns.names['receiver.test'] = ['127.0.0.1'];
    const seen: { method: string; url: string; headers: http.IncomingHttpHeaders; body: string }[] = [];
    const { port, connections } = await listen(
      http.createServer(async (request, response) => {
        let body = '';
        for await (const chunk of request) body += chunk;
        seen.push({ method: request.method!, url: request.url!, headers: request.headers, body });
        response.writeHead(202, { 'x-answer': 'yes' }).end('thanks');
      }),
    );
    const url = `http://receiver.test:${port}/a%20b?c=d#e`;
    const answer = await send(url, { body: 'hé', headers: { 'x-svc-event': 'svc.test' } });
    expect(answer).toMatchObject({ status: 202, headers: { 'x-answer': 'yes' }, truncated: false });
    expect(String(answer.body)).toBe('thanks');
    await send(url);
    expect(seen).toMatchObject([
      {
        method: 'POST',
        url: '/a%20b?c=d',
        body: 'hé',
        headers: { host: `receiver.test:${port}`, 'x-svc-event': 'svc.test' },
      },
      { method: 'GET', body: '' },
    ]);
    expect(seen[0]!.headers['content-length']).toBe('3');
    expect(connections(), 'a connection serves one request').toBe(2);
  });

  test('a redirect is returned, not followed', async () => {
    const target = await listen(http.createServer((_, response) => response.end()));
    const { port } = await listen(
      http.createServer((_, response) => {
        response.writeHead(301, { location: `http://127.0.0.1:${target.port}/` }).end();
      }),
    );
    expect((await send(`http://127.0.0.1:${port}/`)).status).toBe(301);
    expect(target.connections()).toBe(0);
  });

  test('a long response is cut off or refused, and is not read to its end', async () => {
    let sent = 0;
    const { port } = await listen(
      http.createServer((_, response) => {
        const chunk = Buffer.alloc(65_536);
        const more = () => {
          while (!response.destroyed && sent < 1e9) {
            sent += chunk.length;
            if (!response.write(chunk)) return response.once('drain', more);
          }
        };
        more();
      }),
    );
    const answer = await send(`http://127.0.0.1:${port}/`);
    expect(answer).toMatchObject({ status: 200, truncated: true });
    expect(answer.body).toHaveLength(65_536);
    const error = await failureOf(send(`http://127.0.0.1:${port}/`, { tooLarge: 'fail', maxBytes: 1000 }));
    expect(error.failure).toBe('TOO_LARGE');
    expect(sent).toBeLessThan(100e6);
  });

  test('a compressed response is returned unchanged', async () => {
    const { port } = await listen(
      http.createServer((_, response) => response.writeHead(200, { 'content-encoding': 'gzip' }).end('not gzip')),
    );
    expect(String((await send(`http://127.0.0.1:${port}/`)).body)).toBe('not gzip');
  });

  test('the caller can abort a call, which rejects with their reason', async () => {
    const { port, connections } = await listen(createServer());
    const controller = new AbortController();
    const call = send(`http://127.0.0.1:${port}/`, { signal: controller.signal });
    const reason = new Error('stopping');
    await expect.poll(connections).toBe(1);
    controller.abort(reason);
    await expect(call).rejects.toBe(reason);
  });

  const raw = (text: string, end = true) =>
    createServer((socket) => {
      socket.once('data', () => (end ? socket.end(text) : socket.write(text)));
    });

  test.each<[what: string, server: () => Server, failure: string]>([
    ['takes the connection and is silent', () => createServer(), 'TIMEOUT'],
    ['sends half of the headers and is silent', () => raw('HTTP/1.1 200 OK\r\nx', false), 'TIMEOUT'],
    ['sends the headers and no body', () => raw('HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n', false), 'TIMEOUT'],
    ['goes on and on with 100 Continue', () => raw('HTTP/1.1 100 Continue\r\n\r\n'.repeat(50), false), 'TIMEOUT'],
    ['resets', () => createServer((socket) => socket.resetAndDestroy()), 'CONNECTION_FAILED'],
    ['closes at once', () => createServer((socket) => socket.destroy()), 'CONNECTION_FAILED'],
    ['closes amid the headers', () => raw('HTTP/1.1 200 OK\r\nx'), 'CONNECTION_FAILED'],
    ['closes amid the body', () => raw('HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nx'), 'CONNECTION_FAILED'],
    ['speaks something else', () => raw('220 mail.test ESMTP\r\n'), 'CONNECTION_FAILED'],
    ['has headers without end', () => raw(`HTTP/1.1 200 OK\r\nx: ${'y'.repeat(1e6)}`, false), 'CONNECTION_FAILED'],
  ])('a server that %s', async (_, make, failure) => {
    const { port } = await listen(make());
    expect(
      (await failureOf(send(`http://127.0.0.1:${port}/`, { timeoutMs: failure === 'TIMEOUT' ? 500 : 60_000 }))).failure,
    ).toBe(failure);
  });

  test('one byte at a time does not keep a call alive', async () => {
    const timers: NodeJS.Timeout[] = [];
    const { port } = await listen(
      createServer((socket) => {
        socket.write('HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n');
        timers.push(setInterval(() => socket.writable && socket.write('x'), 50));
      }),
    );
    const error = await failureOf(send(`http://127.0.0.1:${port}/`, { timeoutMs: 500 }));
    for (const timer of timers) clearInterval(timer);
    expect(error.failure).toBe('TIMEOUT');
  });

  test('a port where nothing listens', async () => {
    const server = createServer();
    const { port } = await listen(server);
    server.close();
    await once(server, 'close');
    expect((await failureOf(send(`http://127.0.0.1:${port}/`))).failure).toBe('CONNECTION_FAILED');
  });

  test('an upgrade is returned and ends the connection', async () => {
    const { port } = await listen(
      raw('HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n', false),
    );
    expect((await send(`http://127.0.0.1:${port}/`)).status).toBe(101);
  });
});

describe('kept connections', () => {
  const OK = 'HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok';
  /** Calls `serve` with each request of each connection, both counted from 1. */
  const speaks = async (serve: (socket: Socket, request: number, connection: number) => unknown) => {
    let connections = 0;
    const open = new Set<Socket>();
    const counted = createServer((socket) => {
      const connection = ++connections;
      let requests = 0;
      open.add(socket);
      socket.on('close', () => open.delete(socket));
      socket.on('data', () => void serve(socket, ++requests, connection));
    });
    return { ...(await listen(counted)), open };
  };
  const echo = (_: unknown, response: http.ServerResponse) => void response.end('ok');
  const url = (port: number, name = '127.0.0.1', scheme = 'http') => `${scheme}://${name}:${port}/`;
  const keep = 'tenant-1/lane-1';

  test('serve the next request of the same owner to the same scheme, host and port, and no other', async () => {
    Object.assign(dns.names, { 'one.test': ['127.0.0.1'], 'two.test': ['127.0.0.1'] });
    const [one, other] = [await listen(http.createServer(echo)), await listen(http.createServer(echo))];
    const egress = guard(LOOPBACK, true);
    const send = async (to: string, owner?: string) => {
      expect((await egress.send({ url: to, ...(owner !== undefined && { keep: owner }) })).status).toBe(200);
      return one.connections();
    };
    expect(await send(url(one.port, 'one.test'), keep)).toBe(1);
    expect(await send(`${url(one.port, 'one.test')}elsewhere?x`, keep)).toBe(1);
    expect(await send(url(one.port, 'one.test'), 'tenant-2/lane-1')).toBe(2);
    expect(await send(url(one.port, 'two.test'), keep)).toBe(3);
    expect(await send(url(one.port, 'one.test'))).toBe(4);
    await send(url(other.port, 'one.test'), keep);
    expect(other.connections()).toBe(1);
    const failure = await failureOf(egress.send({ url: url(one.port, 'one.test', 'https'), keep }));
    expect(failure.failure).toBe('TLS_ERROR');
    // another guard has its own
    await guard(LOOPBACK).send({ url: url(one.port, 'one.test'), keep });
    expect(one.connections()).toBe(6);
    // those that were kept are still there
    expect(await send(url(one.port, 'one.test'), keep)).toBe(6);
    expect(await send(url(one.port, 'two.test'), keep)).toBe(6);
  });

  test('are not shared by requests at the same time, and one is kept of several', async () => {
    let arrived = 0;
    const release: (() => void)[] = [];
    const { port, connections } = await listen(
      http.createServer((_, response) => {
        release.push(() => response.end());
        if (++arrived === 3) for (const end of release) end();
      }),
    );
    const egress = guard(LOOPBACK);
    await Promise.all([1, 2, 3].map(() => egress.send({ url: url(port), keep })));
    expect(connections()).toBe(3);
    const more = [egress.send({ url: url(port), keep }), egress.send({ url: url(port), keep })];
    await expect.poll(() => release.length).toBe(5);
    for (const end of release) end();
    await Promise.all(more);
    expect(connections()).toBe(4);
  });

  test('go to the address that was judged; where the name means another by then, no new one is made', async () => {
    let turned = false;
    dns.names['turns.test'] = () => (turned ? ['127.0.0.1', '10.0.0.1'] : ['127.0.0.1']);
    const { port, connections, open } = await speaks((socket, _, connection) => {
      if (connection === 1) socket.write(OK);
    });
    const egress = guard(['127.0.0.1/32']);
    await egress.send({ url: url(port, 'turns.test'), keep });
    turned = true;
    const asked = dns.asked.length;
    expect((await egress.send({ url: url(port, 'turns.test'), keep })).status).toBe(200);
    expect(dns.asked.length, 'no question').toBe(asked);
    for (const socket of open) socket.destroy();
    await expect.poll(() => open.size).toBe(0);
    expect((await failureOf(egress.send({ url: url(port, 'turns.test'), keep }))).failure).toBe('DESTINATION_BLOCKED');
    expect(connections()).toBe(1);
  });

  test('that the other side ends with the request, without a byte of an answer: it is made once more, judged again', async () => {
    let turned = false;
    dns.names['ends.test'] = () => (turned ? ['10.0.0.1'] : ['127.0.0.1']);
    const { port, connections } = await speaks((socket, request) => {
      if (request === 1) socket.write(OK);
      else socket.resetAndDestroy();
    });
    const egress = guard(['127.0.0.1/32']);
    const send = () => egress.send({ url: url(port, 'ends.test'), keep, body: 'x' });
    for (const expected of [1, 2, 3]) {
      expect((await send()).status).toBe(200);
      expect(connections()).toBe(expected);
    }
    turned = true;
    expect((await failureOf(send())).failure).toBe('DESTINATION_BLOCKED');
    expect(connections()).toBe(3);
  });

  test('a request is not made a second time where an answer had begun, where it took too long, or on a new connection', async () => {
    const begun = await speaks((socket, request) => (request === 1 ? socket.write(OK) : socket.end('HTTP/1.1 2')));
    const silent = await speaks((socket, request) => request === 1 && socket.write(OK));
    const ends = await speaks((socket) => socket.end());
    const egress = guard(LOOPBACK);
    const send = (port: number, timeoutMs = 60_000) => egress.send({ url: url(port), keep, timeoutMs });
    for (const { port } of [begun, silent]) await send(port);
    expect((await failureOf(send(begun.port))).failure).toBe('CONNECTION_FAILED');
    expect((await failureOf(send(silent.port, 500))).failure).toBe('TIMEOUT');
    expect((await failureOf(send(ends.port))).failure).toBe('CONNECTION_FAILED');
    for (const { connections } of [begun, silent, ends]) expect(connections()).toBe(1);
  });

  test.each<[what: string, answer: (socket: Socket) => unknown]>([
    [
      'a second answer behind the first',
      (socket) => socket.write(`${OK}HTTP/1.1 299 Stolen\r\ncontent-length: 0\r\n\r\n`),
    ],
    [
      'a second answer a moment later',
      (socket) => {
        socket.setNoDelay(true);
        socket.write(OK);
        setTimeout(() => socket.write('HTTP/1.1 299 Stolen\r\ncontent-length: 0\r\n\r\n'), 20);
      },
    ],
    [
      'a single byte a moment later',
      (socket) => {
        socket.write(OK);
        setTimeout(() => socket.write('\n'), 20);
      },
    ],
    ['more than it announced', (socket) => socket.write('HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 299 Stolen\r\n\r\n')],
    ['an answer that ends with the connection', (socket) => socket.end('HTTP/1.1 200 OK\r\n\r\nok')],
    ['that it closes', (socket) => socket.write(OK.replace('\r\n\r\n', '\r\nconnection: close\r\n\r\n'))],
    [
      'that it keeps it for a second',
      (socket) => socket.write(OK.replace('\r\n\r\n', '\r\nkeep-alive: timeout=1\r\n\r\n')),
    ],
    ['HTTP/1.0', (socket) => socket.write(OK.replace('1.1', '1.0'))],
    ['too much', (socket) => socket.write(`HTTP/1.1 200 OK\r\ncontent-length: 99999\r\n\r\n${'x'.repeat(70_000)}`)],
  ])('are not used again where a server sends %s', async (_, answer) => {
    const { port, connections, open } = await speaks((socket, __, connection) =>
      connection === 1 ? answer(socket) : socket.write('HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n'),
    );
    const egress = guard(LOOPBACK);
    expect([200, 204]).toContain((await egress.send({ url: url(port), keep })).status);
    await expect.poll(() => open.size).toBe(0);
    expect((await egress.send({ url: url(port), keep })).status).toBe(202);
    expect(connections()).toBe(2);
  });

  test('a server that answers before it has read, and never reads, keeps none', async () => {
    const { port, connections, open } = await speaks((socket) => {
      socket.pause();
      socket.write(OK);
    });
    const egress = guard(LOOPBACK);
    const body = Buffer.alloc(32e6);
    await egress.send({ url: url(port), keep, body, timeoutMs: 1000 }).catch((error) => {
      expect(error).toBeInstanceOf(EgressError);
    });
    await egress.send({ url: url(port), keep });
    expect(connections()).toBe(2);
    for (const socket of open) socket.destroy();
  });

  test('end when nothing is sent for as long as the server says, before it ends them', async () => {
    const { port, open } = await speaks((socket) =>
      socket.write(OK.replace('\r\n\r\n', '\r\nkeep-alive: timeout=2\r\n\r\n')),
    );
    await guard(LOOPBACK).send({ url: url(port), keep });
    expect(open.size).toBe(1);
    await expect.poll(() => open.size).toBe(0);
  });

  test('are no older than a minute when a request begins on them', async () => {
    const { port, connections } = await speaks((socket) => socket.write(OK));
    const egress = guard(LOOPBACK);
    const now = performance.now.bind(performance);
    let later = 0;
    const clock = vi.spyOn(performance, 'now').mockImplementation(() => now() + later);
    try {
      // idle for 15 seconds at most in between
      for (later of [0, 14_000, 28_000, 42_000]) {
        await egress.send({ url: url(port), keep });
        expect(connections()).toBe(1);
      }
      for (later of [56_000, 69_000]) await egress.send({ url: url(port), keep });
      expect(connections()).toBe(2);
    } finally {
      clock.mockRestore();
    }
  });

  test('are limited in number: those used longest ago end first', async () => {
    const { port, connections, open } = await speaks((socket) => socket.write(OK));
    const egress = guard(LOOPBACK);
    const send = (n: number) => egress.send({ url: url(port), keep: `lane-${n}` });
    for (let n = 0; n < 260; n++) await send(n);
    await expect.poll(() => open.size).toBe(256);
    await send(259);
    await send(4);
    expect(connections()).toBe(260);
    await send(0);
    expect(connections()).toBe(261);
  });

  test('over TLS are kept for the name whose certificate was checked', async () => {
    Object.assign(dns.names, { 'good.test': ['127.0.0.1'], 'bad.test': ['127.0.0.1'] });
    const { port, connections } = await listen(https.createServer(await ca.issue(['good.test']), echo));
    const egress = guard(LOOPBACK, true);
    const send = (name: string) => egress.send({ url: url(port, name, 'https'), keep });
    for (const _ of [1, 2, 3]) expect((await send('good.test')).status).toBe(200);
    expect(connections()).toBe(1);
    expect((await failureOf(send('bad.test'))).failure).toBe('TLS_ERROR');
    expect((await send('good.test')).status).toBe(200);
    expect(connections()).toBe(2);
  });
});

describe('TLS', () => {
  const names = ['good.test', '127.0.0.1'];
  const ok = (_: unknown, response: http.ServerResponse) => void response.end('ok');
  const send = (url: string, trust = true) => guard(LOOPBACK, trust).send({ url, timeoutMs: 60_000 });

  beforeAll(() => {
    dns.names['good.test'] = ['127.0.0.1'];
    dns.names['other.test'] = ['127.0.0.1'];
  });

  test('a certificate of a trusted authority is accepted for its name and its address, and the name is requested', async () => {
    const asked: unknown[] = [];
    const identity = await ca.issue(names);
    const server = https.createServer(
      {
        ...identity,
        SNICallback(name, done) {
          asked.push(name);
          done(null);
        },
      },
      ok,
    );
    const { port } = await listen(server);
    expect((await send(`https://good.test:${port}/`)).status).toBe(200);
    expect((await send(`https://good.test.:${port}/`)).status).toBe(200);
    expect((await send(`https://127.0.0.1:${port}/`)).status).toBe(200);
    expect(asked).toEqual(['good.test', 'good.test']);
  });

  test.each<[what: string, options: () => Promise<https.ServerOptions>, host: string, says: RegExp]>([
    ['for another name', () => ca.issue(names), 'other.test', /another host name/],
    ['that has expired', () => ca.expired(names), 'good.test', /expired/],
    [
      'that is not valid yet',
      () => ca.issue(names, { from: new Date(Date.now() + 1e8) }),
      'good.test',
      /not valid yet/,
    ],
    ['that it signed itself', () => TestCa.selfSigned(names), 'good.test', /self-signed/],
    ['of an unknown authority', async () => (await TestCa.create()).issue(names), 'good.test', /authority/],
  ])('a certificate %s is refused before anything is sent', async (_, options, host, says) => {
    let requests = 0;
    const { port } = await listen(https.createServer(await options(), () => requests++));
    const old = process.env.NODE_TLS_REJECT_UNAUTHORIZED;
    process.env.NODE_TLS_REJECT_UNAUTHORIZED = '0';
    try {
      const error = await failureOf(send(`https://${host}:${port}/hush`));
      expect(error.failure).toBe('TLS_ERROR');
      expect(error.message).toMatch(says);
    } finally {
      if (old === undefined) delete process.env.NODE_TLS_REJECT_UNAUTHORIZED;
      else process.env.NODE_TLS_REJECT_UNAUTHORIZED = old;
    }
    expect(requests).toBe(0);
  });

  test('an authority of the tests is not trusted by default', async () => {
    const { port } = await listen(https.createServer(await ca.issue(names), ok));
    expect((await failureOf(send(`https://good.test:${port}/`, false))).failure).toBe('TLS_ERROR');
  });

  test('old TLS, HTTP/2 alone and no TLS at all are TLS_ERROR', async () => {
    const identity = await ca.issue(names);
    const servers = [
      tls.createServer({ ...identity, minVersion: 'TLSv1', maxVersion: 'TLSv1.1', ciphers: 'ALL@SECLEVEL=0' }),
      tls.createServer({ ...identity, ALPNProtocols: ['h2'] }),
      http.createServer(ok),
    ];
    for (const server of servers) {
      const { port } = await listen(server);
      expect((await failureOf(send(`https://good.test:${port}/`))).failure).toBe('TLS_ERROR');
    }
  });

  test('a server that resets or goes silent during the handshake', async () => {
    const resets = await listen(createServer((socket) => socket.once('data', () => socket.resetAndDestroy())));
    expect((await failureOf(send(`https://good.test:${resets.port}/`))).failure).toBe('CONNECTION_FAILED');
    const silent = await listen(createServer());
    const call = guard(LOOPBACK).send({ url: `https://good.test:${silent.port}/`, timeoutMs: 300 });
    expect((await failureOf(call)).failure).toBe('TIMEOUT');
  });
});

function hex(address: string): string {
  const [a, b, c, d] = address.split('.').map((part) => Number(part).toString(16).padStart(2, '0'));
  return `${a}${b}:${c}${d}`;
}
