import { connect } from 'node:net';
import { gzipSync } from 'node:zlib';
import { beforeAll, describe, expect, test } from 'vitest';
import { commitment } from '../../server/domain/kept-input.ts';
import { actionHash } from '../../server/policy/evaluation/action-hash.ts';
import { members } from '../../server/proxy/requests.ts';
import { sql } from '../helpers/api.ts';
import { useServer } from '../helpers/server.ts';
import { until } from '../helpers/until.ts';
import { type Governed, governed, ProxyProcess, type Received, Upstream } from './support.ts';

/**
 * A hostile agent writes bytes of its own to the proxy. For each request: it is refused and nothing arrives, or exactly
 * one request arrives, and the action that can be read from what arrived is the one that the record commits to.
 */

const server = useServer({ SVC_POLL_SECONDS: '1' }, { shared: true });
const upstream = new Upstream();
let world: Governed;
let proxy: ProxyProcess;

beforeAll(async () => {
  await upstream.start();
  const most = (path: string) =>
    `forbid(principal, action, resource == Tool::"api") when { context.num.hasTag("${path}") && context.num.getTag("${path}").greaterThan(decimal("500.0")) };`;
  world = await governed(server, {
    api: `permit(principal, action, resource == Tool::"api"); ${most('body.refund.total')} ${most('query.max_amount')}`,
  });
  // on a busy machine, a long form may keep the proxy from hearing of stops for a minute
  await world.tenant.set({ stop_grace_seconds: 3600 });
  const decided = { to: `${upstream.url}/base`, tool: 'api', decide_on_headers: ['X-Account', 'Content-Type'] };
  proxy = await new ProxyProcess(
    [
      { ...decided, path: '/api/*', headers: { x_route_key: 'of the route' } },
      { ...decided, path: '/api/exact' },
      { ...decided, path: '/files/*', opaque_bodies: true },
    ],
    { ...world.env, SVC_PROXY_BODY_BYTES: '2000', SVC_PROXY_INPUTS: 'full' },
  ).start();
  await proxy.ready();
});

/** What comes back for these bytes until the other side closes. */
function send(text: string | Buffer): Promise<string> {
  const { port, hostname } = new URL(proxy.url);
  return new Promise((resolve, reject) => {
    let out = '';
    const socket = connect(Number(port), hostname, () => socket.write(text));
    socket.setTimeout(60_000, () => socket.destroy(new Error(`no answer to ${text.toString('latin1')}`)));
    socket.on('data', (data) => {
      out += data;
    });
    socket.on('close', () => resolve(out)).on('error', (error) => (out === '' ? reject(error) : resolve(out)));
  });
}

interface Hostile {
  line?: string;
  headers?: string[];
  body?: string | Buffer;
  /** Head and body as they are, in place of those made from the rest. */
  framed?: string;
}

function bytesOf({ line = 'POST /api/x', headers = [], body = '', framed }: Hostile): Buffer {
  const own = [`host: proxy.test`, `authorization: Bearer ${world.agentKey}`, 'connection: close'];
  const given = headers.map((header) => header.split(':')[0]!.toLowerCase());
  const version = / HTTP\/\S+$/.test(line) ? '' : ' HTTP/1.1';
  const all = [...own.filter((header) => !given.includes(header.split(':')[0]!)), ...headers];
  if (framed !== undefined) return Buffer.from(`${line}${version}\r\n${all.join('\r\n')}\r\n${framed}`, 'latin1');
  const bytes = Buffer.from(body);
  if (bytes.length > 0 && !given.includes('content-type')) all.push('content-type: application/json');
  if (bytes.length > 0) all.push(`content-length: ${bytes.length}`);
  return Buffer.concat([Buffer.from(`${line}${version}\r\n${all.join('\r\n')}\r\n\r\n`, 'latin1'), bytes]);
}

/** The hash of the action as the upstream has to understand it. */
function hashOfWhatArrived({ method, url, headers, body }: Received): string {
  const { search } = new URL(url, upstream.url);
  const type = headers['content-type'] ?? '';
  const decided = ['x-account', 'content-type'].flatMap((name) => (headers[name] ? [[name, headers[name]]] : []));
  const read = () => {
    if (/json/.test(type)) return JSON.parse(body);
    return type.startsWith('application/x-www-form-urlencoded') ? members(new URLSearchParams(body)) : body;
  };
  return actionHash({
    agent_id: 'bot-1',
    agent_role: 'clerk',
    action_type: 'api_call',
    tool_name: 'api',
    method,
    resource: new URL(url, upstream.url).href,
    arguments: {
      ...(search !== '' && { query: members(new URLSearchParams(search)) }),
      headers: Object.fromEntries(decided),
      ...(body !== '' && { body: read() }),
    },
  } as Parameters<typeof actionHash>[0]);
}

/** Sends it; what arrived for it, once that was compared with what was recorded. */
async function pass(hostile: Hostile): Promise<Received> {
  const before = upstream.received.length;
  const answer = await send(bytesOf(hostile));
  expect(answer, JSON.stringify(hostile)).toMatch(/^HTTP\/1\.1 200 /);
  expect(upstream.received.length - before, 'requests that arrived').toBe(1);
  const arrived = upstream.received.at(-1)!;
  const id = /x-svc-event-id: (\S+)/i.exec(answer)![1];
  const event = await until(async () => {
    const headers = { authorization: `Bearer ${world.tenant.admin.key}` };
    const response = await fetch(`${server.url}/v1/events/${id}`, { headers });
    return response.ok && ((await response.json()) as { action_ref: string });
  }, 'the event is stored');
  const [kept] = await sql<{ salt: string }>(
    server,
    `select encode(salt_b, 'hex') as salt from decision_input where tenant_id = $1 and event_id = $2`,
    [world.tenant.id, id],
  );
  expect(event.action_ref, JSON.stringify(hostile)).toBe(commitment(kept!.salt, hashOfWhatArrived(arrived)));
  return arrived;
}

async function refuse(status: number, hostile: Hostile): Promise<void> {
  const before = upstream.received.length;
  const answer = await send(bytesOf(hostile));
  expect(answer, JSON.stringify(hostile)).toMatch(new RegExp(`^HTTP/1\\.1 ${status} `));
  // one answer: nothing that followed it in the same bytes was taken for a request
  expect(answer.match(/^HTTP\/1\.1 /gm), answer).toHaveLength(1);
  expect(upstream.received.slice(before), JSON.stringify(hostile)).toEqual([]);
}

describe('headers', () => {
  test('that were decided on, tell of the body or of the agent are not dropped by Connection', async () => {
    for (const name of [
      'x-account',
      'X-ACCOUNT',
      'content-type',
      'content-length',
      'content-encoding',
      'transfer-encoding',
      'host',
      'authorization',
      'x-svc-session-id',
    ]) {
      await refuse(400, { headers: ['x-account: acc_1', `connection: close, ${name}`], body: '{}' });
      await refuse(400, { headers: ['x-account: acc_1', `connection: ${name} ,close`], body: '{}' });
      await refuse(400, { headers: ['x-account: acc_1', 'connection: close', `connection:\t${name}`], body: '{}' });
    }
    const arrived = await pass({ headers: ['x-account: acc_1', 'x-hop: 1', 'connection: close, x-hop'], body: '{}' });
    expect(arrived.headers).toMatchObject({ 'x-account': 'acc_1' });
    expect(arrived.headers).not.toHaveProperty('x-hop');
  });

  test('that a program behind could take for one that was decided on do not arrive', async () => {
    for (const name of ['x_account', 'X_Account', 'x.account', 'content_length', 'Content_Type', 'x_svc_agent_key']) {
      await refuse(400, { headers: [`${name}: acc_2`], body: '{}' });
    }
    const names = ['x_other', 'x.other', "x'other", 'x-route-key', 'X_Route_Key', 'x-http-method-override'];
    const more = ['x-original-method', 'x-forwarded-uri', 'x-rewrite-url', 'x-envoy-original-path'];
    const arrived = await pass({ headers: [...names, ...more].map((name) => `${name}: agent`), body: '{}' });
    expect(JSON.stringify(arrived.headers)).not.toContain('agent"');
    expect(arrived.headers).toMatchObject({ x_route_key: 'of the route' });
  });

  test('that have to be there once are', async () => {
    await refuse(400, { headers: ['x-account: acc_1', 'X-Account: acc_2'] });
    await refuse(400, { headers: ['content-type: application/json', 'content-type: text/plain'], body: '{}' });
    await refuse(400, { headers: ['host: a', 'host: b'] });
    await refuse(400, { headers: [`authorization: Bearer ${world.agentKey}`, 'authorization: Basic YQ=='] });
    await refuse(400, { headers: ['x-account: acc_\u00e9'] });
    await refuse(400, { headers: ['x-account: acc_1\r\n folded'] });
    await refuse(400, { headers: ['x-account : acc_1'] });
    await refuse(400, { headers: ['x-a: 1\nx-account: acc_1'] });
    await refuse(400, { headers: ['x-a: 1\rx-account: acc_1'] });
  });
});

describe('framing', () => {
  const smuggled = 'GET /api/hidden HTTP/1.1\r\nhost: x\r\n\r\n';

  test('that has two readings is refused', async () => {
    const chunked = (coding: string) => `transfer-encoding: ${coding}\r\ncontent-type: application/json\r\n\r\n`;
    for (const framed of [
      `content-length: 5\r\n${chunked('chunked')}0\r\n\r\n${smuggled}`,
      `${chunked('chunked').slice(0, -2)}content-length: 5\r\n\r\n0\r\n\r\n${smuggled}`,
      `content-length: 5\r\ncontent-length: 6\r\n\r\n{"a":1`,
      `content-length: 2, 2\r\n\r\n{}`,
      `content-length: +2\r\n\r\n{}`,
      `content-length: 0x2\r\n\r\n{}`,
      `content-length : 2\r\n\r\n{}`,
      `${chunked('xchunked')}2\r\n{}\r\n0\r\n\r\n`,
      `${chunked('chunked, identity')}2\r\n{}\r\n0\r\n\r\n`,
      `${chunked('gzip, chunked')}2\r\n{}\r\n0\r\n\r\n`,
      `${chunked('chunked\r\ntransfer-encoding: chunked')}2\r\n{}\r\n0\r\n\r\n`,
      `${chunked('\x0bchunked')}2\r\n{}\r\n0\r\n\r\n`,
      `${chunked('chunked')}2\n{}\n0\n\n`,
      `${chunked('chunked')}-2\r\n{}\r\n0\r\n\r\n`,
      `${chunked('chunked')}0x2\r\n{}\r\n0\r\n\r\n`,
    ]) {
      await refuse(400, { framed });
    }
    await refuse(400, { line: 'POST /api/x HTTP/1.0', framed: `${chunked('chunked')}2\r\n{}\r\n0\r\n\r\n` });
  });

  test('of the proxy’s own holds whatever the method: what a body hides is no request', async () => {
    const inner = smuggled.length.toString(16);
    const types = ['text/plain', 'application/octet-stream'];
    for (const method of ['DELETE', 'GET', 'OPTIONS', 'POST', 'PATCH', 'PROPFIND']) {
      const before = upstream.received.length;
      const framed = `transfer-encoding: chunked\r\ncontent-type: ${types[0]}\r\n\r\n${inner}\r\n${smuggled}\r\n0\r\n\r\n`;
      const answer = await send(bytesOf({ line: `${method} /files/x`, framed }));
      expect(answer, method).toMatch(/^HTTP\/1\.1 200 /);
      expect(upstream.received.slice(before).map(({ url, body }) => [url, body])).toEqual([['/base/x', smuggled]]);
    }
    const long = `${smuggled}${'x'.repeat(3000)}`;
    const before = upstream.received.length;
    await send(bytesOf({ line: 'DELETE /files/x', headers: [`content-type: ${types[1]}`], body: long }));
    expect(upstream.received.slice(before).map(({ url, body }) => [url, body])).toEqual([['/base/x', long]]);
  });

  test('trailers, expectations, another protocol or version change nothing of what was decided', async () => {
    const framed =
      'transfer-encoding: chunked\r\ntrailer: x-account\r\ncontent-type: application/json\r\n\r\n2\r\n{}\r\n0\r\nx-account: acc_9\r\nauthorization: Basic eA==\r\n\r\n';
    const arrived = await pass({ headers: ['x-account: acc_1'], framed });
    expect(arrived.headers).toMatchObject({ 'x-account': 'acc_1', 'content-length': '2' });
    for (const name of ['trailer', 'transfer-encoding', 'authorization']) {
      expect(arrived.headers).not.toHaveProperty(name);
    }
    const before = upstream.received.length;
    const expecting = await send(bytesOf({ headers: ['expect: 100-continue'], body: '{"a":1}' }));
    expect(expecting).toMatch(/^HTTP\/1\.1 100 Continue\r\n\r\nHTTP\/1\.1 200 /);
    expect(upstream.received.slice(before)).toMatchObject([{ body: '{"a":1}' }]);
    expect(upstream.received.at(-1)!.headers).not.toHaveProperty('expect');
    await refuse(417, { headers: ['expect: something-else'], body: '{}' });
    await refuse(501, { headers: ['connection: upgrade', 'upgrade: websocket'] });
    await refuse(501, { headers: ['connection: upgrade, http2-settings', 'upgrade: h2c', 'http2-settings: AAAA'] });
    expect((await pass({ line: 'GET /api/old HTTP/1.0' })).headers.host).toBe(new URL(upstream.url).host);
    await refuse(400, { line: 'PRI * HTTP/2.0', framed: '\r\nSM\r\n\r\n' });
    await refuse(405, { line: 'TRACE /api/x' });
  });
});

test('a target is read in one way, or refused', async () => {
  for (const target of [
    'http://other.test/api/x',
    '*',
    '//api/x',
    '/api//x',
    '/api/x;y=1',
    '/api/x%3By',
    '/api/x%3by/z',
    '/api;/x',
    '/api/%2e%2e/x',
    '/api/%2E/x',
    '/api/..%2fx',
    '/api/..%5cx',
    '/api/..\\x',
    '/api/x/.',
    '/api/x/..',
    '/api/x.',
    '/api/x./y',
    '/api/.../y',
    '/api/x%20',
    '/api/x%20/y',
    '/api/x%00',
    '/api/x%0d%0ahost:%20other',
    '/api/x%09',
    '/api/x%7f',
    '/api/x#y',
    '/api/x\ty',
    '/api/\u00e9',
    '/api/%C0%AE%C0%AE/x',
    '/api/%C0%AFx',
    '/api/%E9',
    '/api/%ED%A0%80',
    '/api/%EF%BC%8E%EF%BC%8E/x',
    '/api/%EF%BC%8Fx',
    '/api/%E2%80%A5/x',
    '/api/%252e%252e/x',
    '/api/x%252Fy',
    '/api/x%',
    '/api/x%u002e',
    '/api/[x]',
    '/api/x?a=1;b=2',
    '/api/x?a=%',
    '/api/x?a=%E9',
    '/api/x?amount=1&Amount=9',
    '/api/x?amount=1&amount[]=9',
    '/api/x?amount[]=9&amount=1',
    '/api/x?pay_amount=1&pay.amount=9',
    '/api/x?%20amount=9',
    '/api/x?amount%00=9',
    '/api/x?_method=DELETE',
    '/api/x?.method=DELETE',
    '/api/x?_METHOD=DELETE',
    '/api/x?_method[]=DELETE',
  ]) {
    await refuse(400, { line: `GET ${target}` });
  }
  // past the more specific route, for an upstream that takes both for the same
  for (const target of ['/api/Exact', '/api/exact/', '/API/exact', '/API/x'])
    await refuse(404, { line: `GET ${target}` });
  for (const [target, arrived] of [
    ['/api/%7Ea/b-c_d.e', '/base/~a/b-c_d.e'],
    ['/api/caf%C3%A9/%E6%9D%B1', '/base/caf%C3%A9/%E6%9D%B1'],
    ['/api/a%20b', '/base/a%20b'],
    ['/api/x?a=1&a=2&b[]=1&b[]=2&c[x]=1&c[y]=2', '/base/x?a=1&a=2&b[]=1&b[]=2&c[x]=1&c[y]=2'],
    ['/api/x?to=a+b&q=%2B%3B%26', '/base/x?to=a%20b&q=%2B%3B%26'],
    ["/api/x?q='", '/base/x?q=%27'],
  ] as const) {
    expect((await pass({ line: `GET ${target}` })).url).toBe(arrived);
  }
});

test('a body is read in one way, or refused', async () => {
  const form = ['content-type: application/x-www-form-urlencoded'];
  for (const body of [
    '{"amount":1,"amount":9000}',
    '{"amount":1,"\\u0061mount":9000}',
    '{"a":[{"b":{"amount":1,"x":":","amount":9000}}]}',
    '{"__proto__":1,"__proto__":{"amount":9000}}',
    '\ufeff{"amount":1}',
    '{"amount":1}\0',
    '{"amount":01}',
    '{"amount":1e999}',
    '{"amount":NaN}',
    "{'amount':1}",
    '{"amount":1}{"amount":2}',
    '{"amount":12345678901234567890}',
    '{"_method":"DELETE"}',
    '{".method":"DELETE"}',
    Buffer.from('{"a":"\xff"}', 'latin1'),
    Buffer.from('\ufeff{"amount":1}', 'utf16le'),
  ]) {
    await refuse(400, { body });
    await refuse(400, { line: 'PUT /files/x', body });
  }
  for (const type of [
    'application/json; charset=utf-16',
    'application/json; charset=utf-7',
    'application/json;charset="utf-16le"',
    'application/json; charset=utf-8; charset=utf-16',
    'application/json; charset*=utf-16',
    'application/json, text/plain',
    'application/json text/plain',
    'application/x-www-form-urlencoded; charset=utf-7',
    'text/json; charset=utf-32',
  ]) {
    for (const line of ['POST /api/x', 'POST /files/x']) {
      await refuse(415, { line, headers: [`content-type: ${type}`], body: '{"amount":1}' });
    }
  }
  for (const body of [
    'a=1&A=2',
    'a=1&a[]=2',
    '\ufeffa=1',
    'a%00b=1',
    '_method=DELETE',
    '.method=DELETE',
    Buffer.from('a=\xff', 'latin1'),
  ]) {
    await refuse(400, { headers: form, body });
  }
  const multipart = '--b\r\ncontent-disposition: form-data; name="amount"\r\n\r\n1\r\n--b--\r\n';
  await refuse(415, { headers: ['content-type: multipart/form-data; boundary=b'], body: multipart });
  await refuse(415, { headers: ['content-encoding: gzip'], body: '{}' });
  await refuse(415, { headers: ['content-encoding: compress'], body: '{}' });
  await refuse(415, { headers: ['content-encoding: gzip, gzip, gzip'], body: '{}' });

  expect((await pass({ body: '{"amount": 1.0, "x": {"amount": "9:,"}}' })).body).toBe(
    '{"amount":1,"x":{"amount":"9:,"}}',
  );
  expect((await pass({ headers: form, body: 'a=1&b=2&a=3&c=%zz;d' })).body).toBe('a=1&b=2&a=3&c=%25zz%3Bd');
  const zipped = await pass({ headers: ['content-encoding: gzip'], body: gzipSync('{"amount":1}') });
  expect(zipped).toMatchObject({ body: '{"amount":1}', headers: { 'content-length': '12' } });
  expect(zipped.headers).not.toHaveProperty('content-encoding');
});

test('a limit is not passed by a name that forms and queries are taken apart by', async () => {
  const form = ['content-type: application/x-www-form-urlencoded'];
  await refuse(403, { headers: form, body: 'refund[total]=9000' });
  await refuse(403, { headers: form, body: 'Refund%5BTotal%5D=9000' });
  await refuse(403, { headers: form, body: 'refund[total][]=9000' });
  await refuse(403, { line: 'GET /api/x?max_amount[]=9000' });
  await refuse(403, { line: 'GET /api/x?max.amount=9000' });
  await refuse(403, { line: 'GET /api/x?max[amount=9000' });
  expect((await pass({ headers: form, body: 'refund[other]=9000' })).body).toBe('refund%5Bother%5D=9000');
});

test('an agent that was revoked while its body came does nothing', async () => {
  const { body: made } = await server.call<{ id: string; key: string }>(
    201,
    'POST /v1/agent-keys',
    world.tenant.admin,
    {
      agent_id: 'slow',
      agent_role: 'clerk',
    },
  );
  const headers = { authorization: `Bearer ${made.key}` };
  await until(async () => (await fetch(`${proxy.url}/api/x`, { headers })).ok, 'the key works');
  const { port, hostname } = new URL(proxy.url);
  const before = upstream.received.length;
  const socket = connect(Number(port), hostname);
  let out = '';
  socket.on('data', (data) => {
    out += data;
  });
  const head = `POST /api/x HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${made.key}\r\nexpect: 100-continue\r\n`;
  socket.write(`${head}content-type: application/json\r\ncontent-length: 2\r\n\r\n{`);
  // the proxy has the head, and the key still works
  await until(() => out.includes('100 Continue'), 'the body is waited for');
  await server.call(204, `DELETE /v1/agent-keys/${made.id}`, world.tenant.admin);
  await until(async () => (await fetch(`${proxy.url}/api/y`, { headers })).status === 401, 'the proxy knows of it');
  const arrived = upstream.received.length;
  socket.write('}');
  await until(() => / 401 /.test(out), 'it is refused');
  expect(upstream.received.slice(Math.max(before, arrived))).toEqual([]);
  socket.destroy();
});

test('a form of a hundred thousand names does not stop the proxy', async () => {
  const large = await new ProxyProcess([{ path: '/api/*', to: upstream.url, tool: 'api' }], world.env).start();
  await large.ready();
  const headers = { 'content-type': 'application/x-www-form-urlencoded' };
  const costOf = async (names: number) => {
    const before = large.cpuMs();
    const body = Array.from({ length: names }, (_, n) => n.toString(36)).join('&');
    // refused unread: it has more parts than a request may have
    await large.call(413, 'POST /api/x', world.agentKey, { body, headers });
    return large.cpuMs() - before;
  };
  await costOf(10_000);
  const tenth = await costOf(10_000);
  // ten times as much takes about ten times as long, and not a hundred
  expect(await costOf(100_000)).toBeLessThan(40 * Math.max(tenth, 50));
  await large.kill();
});
