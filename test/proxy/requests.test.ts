import type { ServerResponse } from 'node:http';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import fc from 'fast-check';
import { beforeAll, describe, expect, test } from 'vitest';
import { PolicyEngine } from '../../server/policy/evaluation/evaluate.ts';
import type { Route } from '../../server/proxy/config.ts';
import { Refusal } from '../../server/proxy/problem.ts';
import {
  clientAddress,
  findRoute,
  readBody,
  readTarget,
  trustedAddresses,
  upstreamUrl,
} from '../../server/proxy/requests.ts';
import { atEnd } from '../helpers/cleanups.ts';
import { useServer } from '../helpers/server.ts';
import { contentOf, request } from '../policy/support.ts';
import { type Governed, governed, ProxyProcess, Upstream } from './support.ts';

describe('a path', () => {
  test('has one reading, or is refused', () => {
    expect(readTarget('/a/%7eb%2D?x=%2e%2e//')).toEqual({ path: '/a/~b-', query: '?x=%2e%2e//' });
    for (const target of [
      'http://other/x',
      '*',
      '',
      '/a/../b',
      '/a/%2e%2e/b',
      '/a/%2E./b',
      '/./a',
      '//a',
      '/a//b',
      '/a%2fb',
      '/a%5Cb',
      '/a\\b',
      '/a%00',
      '/a#b',
      '/a%zz',
      '/a b',
      '/public/..;/admin',
      '/a/..',
      '/é',
    ]) {
      expect(() => readTarget(target), target).toThrow(Refusal);
    }
  });

  test('that is plain is read as any other is', () => {
    const part = fc.constantFrom(...'/aZ9~-_.%;:@+*!$&', '%2e', '%41', '..', '//', 'é', '\\');
    fc.assert(
      fc.property(fc.array(part, { maxLength: 12 }), (parts) => {
        const target = `/${parts.join('')}`;
        const read = (text: string) => {
          try {
            return readTarget(text).path;
          } catch (error) {
            if (error instanceof Refusal) return undefined;
            throw error;
          }
        };
        // what has a query is not taken for plain
        expect(read(target)).toBe(read(`${target}?`));
      }),
      { numRuns: 3000 },
    );
  });

  test('goes to the most specific route, and stays within its upstream', () => {
    const routes = ['/*', '/a/*', '/a/b', '/a/b/*'].map((path) => ({ path, to: 'https://up.test/base/' }) as Route);
    const where = (path: string) => {
      const found = findRoute(routes, path)!;
      return [found.route.path, found.rest];
    };
    expect(where('/a/b')).toEqual(['/a/b', '']);
    expect(where('/a/b/c')).toEqual(['/a/b/*', '/c']);
    expect(where('/a/bc')).toEqual(['/a/*', '/bc']);
    expect(where('/ab')).toEqual(['/*', '/ab']);
    routes.reverse();
    expect(where('/a/b')).toEqual(['/a/b', '']);
    expect(() => where('/a/b/')).toThrow(Refusal);
    expect(where('/a')).toEqual(['/a/*', '']);
    expect(where('/')).toEqual(['/*', '/']);
    routes.reverse();
    expect(findRoute([routes[1]!], '/ab')).toBeUndefined();
    expect(upstreamUrl(routes[1] as never, '/x', '?q=1').href).toBe('https://up.test/base/x?q=1');
    expect(upstreamUrl(routes[1] as never, '//evil.test', '').origin).toBe('https://up.test');
  });
});

test('a body is forwarded as it was understood', () => {
  const json = readBody(Buffer.from('{"amount":1000, "x": 1.0}'), 'application/json', false);
  expect(json.value).toEqual({ amount: 1000, x: 1 });
  expect(json.bytes.toString()).toBe('{"amount":1000,"x":1}');
  const form = readBody(Buffer.from('a=1&b=2&a=3&c=%zz'), 'application/x-www-form-urlencoded', false);
  expect(form.value).toEqual({ a: ['1', '3'], b: '2', c: '%zz' });
  expect(form.bytes.toString()).toBe('a=1&b=2&a=3&c=%25zz');
  for (const [body, type] of [
    ['{', 'application/json'],
    ['{"amount":1,"amount":1000}', 'application/json'],
    ['\ufeff{}', 'application/json'],
    ['['.repeat(99), 'a/b+json'],
    ['x', 'text/plain'],
    ['{}', ''],
    ['{}', 'application/json; charset=utf-7'],
  ]) {
    expect(() => readBody(Buffer.from(body!), type, false), body).toThrow(Refusal);
  }
});

test('the client is the last address that no trusted proxy stands behind', () => {
  const trusted = trustedAddresses(['10.0.0.0/8', '127.0.0.1']);
  expect(clientAddress('8.8.8.8', '1.1.1.1', trusted)).toBe('8.8.8.8');
  expect(clientAddress('::ffff:127.0.0.1', '6.6.6.6, 1.1.1.1, 10.1.1.1', trusted)).toBe('1.1.1.1');
  expect(clientAddress('127.0.0.1', 'nonsense, 10.1.1.1', trusted)).toBe('10.1.1.1');
  expect(clientAddress('127.0.0.1', '', trusted)).toBe('127.0.0.1');
  const six = trustedAddresses(['2001:db8::/32', '::1', '10.0.0.0/8']);
  expect(clientAddress('2001:db8::5', '2001:db9::1, 2001:DB8:0:0::7', six)).toBe('2001:db9::1');
  expect(clientAddress('::1', '6.6.6.6, 1.1.1.1, 10.1.1.1', six)).toBe('1.1.1.1');
  expect(clientAddress('2001:db9::5', '1.1.1.1', six)).toBe('2001:db9::5');
  expect(clientAddress('::2', '1.1.1.1', six)).toBe('::2');
  for (const wrong of ['example.test', '10.0.0.0/', '10.0.0.0/x', '10.0.0.0/33', '::/129', '10.0.0.0/-1']) {
    expect(() => trustedAddresses([wrong]), wrong).toThrow('is not an address');
  }
});

test('a tool is denied for sure only by what does not read the context', () => {
  const denied = (policies: string, tool = 'refund') =>
    new PolicyEngine(contentOf({ p: policies })).deniesAlways(request({ tool_name: tool }));
  const permit = 'permit(principal, action, resource);';
  expect(denied(permit)).toBe(false);
  expect(denied(`${permit} forbid(principal, action, resource == Tool::"refund");`)).toBe(true);
  expect(denied(`${permit} forbid(principal, action, resource == Tool::"refund");`, 'other')).toBe(false);
  expect(denied(`${permit} forbid(principal, action, resource) when { principal in AgentRole::"bot" };`)).toBe(true);
  expect(denied(`${permit} forbid(principal, action, resource) unless { context.str.hasTag("reason") };`)).toBe(false);
  expect(denied(`${permit} @escrow("single") forbid(principal, action, resource);`)).toBe(false);
  expect(denied('permit(principal, action, resource == Tool::"other");')).toBe(true);
  expect(denied('permit(principal, action, resource) when { context.str.hasTag("reason") };')).toBe(false);
  expect(denied('permit(principal, action, resource) when { principal in AgentRole::"nobody" };')).toBe(true);
});

describe('on the wire', () => {
  const server = useServer({ SVC_POLL_SECONDS: '1' }, { shared: true });
  const upstream = new Upstream();
  let world: Governed;
  let proxy: ProxyProcess;
  /** What upstreams that keep to no rules do with each connection. */
  const odd: Record<'breaking' | 'announcing' | 'changing', (socket: Socket) => void> = {
    breaking: () => {},
    announcing: () => {},
    changing: () => {},
  };
  /** A route to each of them. */
  const oddRoutes = () =>
    Promise.all(
      (Object.keys(odd) as (keyof typeof odd)[]).map(async (name) => {
        const sockets = new Set<Socket>();
        const listening = createServer((socket) => {
          sockets.add(socket.on('error', () => {}));
          odd[name](socket);
        });
        await new Promise<void>((resolve) => listening.listen(0, '127.0.0.1', resolve));
        atEnd(() => {
          listening.close();
          for (const socket of sockets) socket.destroy();
        });
        const { port } = listening.address() as AddressInfo;
        return { path: `/${name}/*`, to: `http://127.0.0.1:${port}`, tool: 'api' };
      }),
    );
  beforeAll(async () => {
    await upstream.start();
    world = await governed(server, { api: 'permit(principal, action, resource == Tool::"api");' });
    proxy = await new ProxyProcess(
      [
        { path: '/api/*', to: upstream.url },
        { path: '/hasty/*', to: upstream.url, tool: 'api', timeout_seconds: 0.3 },
        { path: '/gone/*', to: 'http://127.0.0.1:9', tool: 'api' },
        ...(await oddRoutes()),
        {
          ...{ path: '/own/*', to: upstream.url, tool: 'api' },
          headers: { 'X-Forwarded-Proto': 'gopher', Via: 'me', 'X-Key': 'route', Accept_Language: 'de', http: 'x' },
        },
      ],
      { ...world.env, SVC_PROXY_BODY_BYTES: '2000' },
    ).start();
    await proxy.ready();
  });

  /** What comes back for these bytes until the other side closes. */
  function raw(text: string): Promise<string> {
    const { port, hostname } = new URL(proxy.url);
    return new Promise((resolve, reject) => {
      let out = '';
      const socket = connect(Number(port), hostname, () => socket.write(text));
      socket.on('data', (data) => {
        out += data;
      });
      socket.on('close', () => resolve(out)).on('error', reject);
    });
  }
  const head = () => `host: x\r\nauthorization: Bearer ${world.agentKey}\r\n`;

  test('a request with two lengths, or with another one hidden in it, is refused', async () => {
    const before = upstream.received.length;
    const smuggled = 'GET /api/hidden HTTP/1.1\r\nhost: x\r\n\r\n';
    const both = `POST /api/x HTTP/1.1\r\n${head()}content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n${smuggled}`;
    const twice = `POST /api/x HTTP/1.1\r\n${head()}content-length: 5\r\ncontent-length: 6\r\n\r\nabcdef`;
    const odd = `POST /api/x HTTP/1.1\r\n${head()}transfer-encoding: xchunked\r\n\r\n0\r\n\r\n`;
    for (const text of [both, twice, odd]) expect(await raw(text)).toMatch(/^HTTP\/1\.1 400 /);
    expect(upstream.received).toHaveLength(before);
  });

  test('what concerns one connection is not passed on', async () => {
    const answer = await raw(
      `GET /api/hop HTTP/1.1\r\n${head()}x-private: 1\r\nconnection: close, x-private\r\nte: trailers\r\n\r\n`,
    );
    expect(answer).toMatch(/^HTTP\/1\.1 200 /);
    const got = upstream.received.at(-1)!;
    expect(got.url).toBe('/hop');
    expect(got.headers).not.toHaveProperty('x-private');
    expect(got.headers).not.toHaveProperty('te');
    expect(await raw(`GET /api/x HTTP/1.1\r\n${head()}connection: upgrade\r\nupgrade: websocket\r\n\r\n`)).toMatch(
      /^HTTP\/1\.1 501 /,
    );
    expect(await raw(`TRACE /api/x HTTP/1.1\r\n${head()}connection: close\r\n\r\n`)).toMatch(/^HTTP\/1\.1 405 /);
  });

  test('each header is passed on once: the route’s own in place of the agent’s, the proxy’s in place of both', async () => {
    let raw: string[] = [];
    const { respond } = upstream;
    upstream.respond = (_request, response, { rawHeaders }) => {
      raw = rawHeaders;
      response.end();
    };
    const headers = {
      ...{ 'x-key': 'agent', 'accept-language': 'fr', 'x-forwarded-proto': 'ftp', 'x-forwarded-for': '6.6.6.6' },
      ...{ via: '1.0 mine', 'x-svc-session-id': 's', 'x-plain': 'yes', under_score: 'no', traceparent: 'none' },
    };
    try {
      await proxy.call(200, 'POST /own/x', world.agentKey, { body: { a: 1 }, headers });
    } finally {
      upstream.respond = respond;
    }
    const sent = raw.flatMap((name, n) => (n % 2 === 0 ? [[name.toLowerCase(), raw[n + 1]!] as const] : []));
    expect(sent.length, JSON.stringify(sent)).toBe(new Set(sent.map(([name]) => name)).size);
    const said = Object.fromEntries(sent);
    expect(said).toMatchObject({
      ...{
        'x-key': 'route',
        accept_language: 'de',
        http: 'x',
        'x-forwarded-proto': 'http',
        'x-forwarded-for': '127.0.0.1',
      },
      ...{ via: '1.0 mine, 1.1 svc-proxy', 'x-plain': 'yes', 'content-length': '7' },
      ...{ host: new URL(upstream.url).host, 'x-forwarded-host': new URL(proxy.url).host },
    });
    expect(said.traceparent).toMatch(/^00-[0-9a-f]{32}-[0-9a-f]{16}-01$/);
    for (const name of ['accept-language', 'under_score', 'x-svc-session-id', 'authorization']) {
      expect(said).not.toHaveProperty(name);
    }
  });

  test('an answer comes whole, of whatever length and in whatever parts', async () => {
    const { respond } = upstream;
    const long = 'x'.repeat(700_000);
    const answers: Record<string, (response: ServerResponse) => void> = {
      none: (response) => response.writeHead(204).end(),
      unchanged: (response) => response.writeHead(304, { etag: '"1"' }).end(),
      empty: (response) => response.writeHead(200, { 'content-length': 0 }).end(),
      short: (response) => response.writeHead(200, { 'content-length': 2 }).end('ok'),
      long: (response) => {
        response.writeHead(200, { 'content-length': 2 * long.length }).write(long);
        setImmediate(() => response.end(long));
      },
      parts: (response) => {
        response.writeHead(200).write('a');
        setImmediate(() => response.end('b'));
      },
    };
    upstream.respond = ({ url }, response) => answers[url.slice(1)]!(response);
    const expected = { none: '', unchanged: '', empty: '', short: 'ok', long: long + long, parts: 'ab' };
    try {
      for (const [name, text] of Object.entries(expected)) {
        const status = { none: 204, unchanged: 304 }[name] ?? 200;
        const answer = await proxy.call(status, `GET /api/${name}`, world.agentKey);
        expect(answer.text, name).toBe(text);
        expect(answer.headers.get('x-svc-decision'), name).toBe('allow');
        expect(answer.headers.get('x-svc-event-id'), name).toMatch(/^evt_/);
      }
      for (const name of ['short', 'empty', 'long']) {
        const { text } = await proxy.call(200, `HEAD /api/${name}`, world.agentKey);
        expect(text).toBe('');
      }
    } finally {
      upstream.respond = respond;
    }
  });

  test('too long a body, a slow and an absent upstream have answers of their own', async () => {
    await proxy.call(413, 'POST /api/x', world.agentKey, { body: { text: 'x'.repeat(3000) } });
    const { gzipSync } = await import('node:zlib');
    const headers = { 'content-encoding': 'gzip' };
    await proxy.call(413, 'POST /api/x', world.agentKey, {
      body: gzipSync(JSON.stringify('x'.repeat(300_000))),
      headers,
    });
    await proxy.call(200, 'POST /api/x', world.agentKey, { body: gzipSync('{"a": 1}'), headers });
    expect(upstream.received.at(-1)).toMatchObject({ body: '{"a":1}' });
    await proxy.call(415, 'POST /api/x', world.agentKey, { body: 'x', headers: { 'content-type': 'text/plain' } });
    expect((await proxy.call(502, 'GET /gone/x', world.agentKey)).body).toMatchObject({
      ...{ code: 'UPSTREAM_FAILED', detail: 'the upstream could not be reached' },
    });
    const respond = upstream.respond;
    upstream.respond = () => {};
    expect((await proxy.call(504, 'GET /hasty/x', world.agentKey)).body).toMatchObject({ code: 'UPSTREAM_TIMEOUT' });
    upstream.respond = respond;
  });

  test('what a kept connection that broke may have done is not sent again, unless it changes nothing', async () => {
    // answers the first request on a connection, and breaks off at the second
    const lines: string[] = [];
    odd.breaking = (socket) => {
      let seen = 0;
      socket.on('data', (data) => {
        for (const line of data.toString().match(/^[A-Z]+ \S+ HTTP/gm) ?? []) {
          lines.push(line);
          if (++seen > 1) socket.resetAndDestroy();
          else socket.write('HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok');
        }
      });
    };
    for (const method of ['POST', 'PUT', 'PATCH', 'DELETE']) {
      await proxy.call(200, 'GET /breaking/first', world.agentKey);
      lines.splice(0);
      const { body } = await proxy.call(502, `${method} /breaking/second`, world.agentKey);
      expect(body).toMatchObject({ code: 'UPSTREAM_FAILED', detail: expect.stringContaining('is not known') });
      expect(lines).toEqual([`${method} /second HTTP`]);
    }
    await proxy.call(200, 'GET /breaking/first', world.agentKey);
    lines.splice(0);
    await proxy.call(200, 'GET /breaking/second', world.agentKey);
    expect(lines).toEqual(['GET /second HTTP', 'GET /second HTTP']);
  });

  test('a connection that nothing uses is closed before the upstream closes it, as it announces', async () => {
    let closed = () => {};
    const byProxy = new Promise<void>((resolve) => {
      closed = resolve;
    });
    odd.announcing = (socket) => {
      socket.once('end', closed);
      socket.on('data', () => socket.write('HTTP/1.1 204 No Content\r\nkeep-alive: timeout=2\r\n\r\n'));
    };
    await proxy.call(204, 'GET /announcing/first', world.agentKey);
    await byProxy;
    // over another connection
    await proxy.call(204, 'POST /announcing/second', world.agentKey);
  });

  test('an upstream that changes the protocol unasked gets an end, and the agent none of it', async () => {
    let ended: () => void = () => {};
    const closed = new Promise<void>((resolve) => {
      ended = resolve;
    });
    odd.changing = (socket) => {
      socket.on('close', ended);
      socket.on('data', () =>
        socket.write('HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n'),
      );
    };
    expect((await proxy.call(502, 'GET /changing/x', world.agentKey)).body).toMatchObject({ code: 'UPSTREAM_FAILED' });
    await closed;
  });

  test('a stream of events comes through as it is sent', async () => {
    let send: (text: string) => void = () => {};
    upstream.respond = (_request, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' }).flushHeaders();
      send = (text) => response.write(text);
    };
    const response = await fetch(`${proxy.url}/api/stream`, { headers: { authorization: `Bearer ${world.agentKey}` } });
    const reader = response.body!.getReader();
    for (const text of ['data: 1\n\n', 'data: 2\n\n']) {
      send(text);
      expect(new TextDecoder().decode((await reader.read()).value)).toBe(text);
    }
    await reader.cancel();
  });
});
