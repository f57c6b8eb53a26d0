import { once } from 'node:events';
import { request as httpRequest, type IncomingMessage } from 'node:http';
import { beforeAll, describe, expect, test } from 'vitest';
import { Unread } from '../../server/proxy/mcp/unread.ts';
import { useServer } from '../helpers/server.ts';
import { until } from '../helpers/until.ts';
import { type Governed, governed, ProxyProcess, Upstream } from './support.ts';

/** Clients that do not read what their server says without end: the proxy keeps little of it, and only they are harmed. */

const MODERN = '2026-07-28';
const MIB = 1024 * 1024;
const server = useServer({ SVC_POLL_SECONDS: '1' }, { shared: true });
const upstream = new Upstream();
let world: Governed;
let proxy: ProxyProcess;
/** What a flooding server could write, in all, and whether it was cut off. */
let written = 0;
let cut = false;

beforeAll(async () => {
  world = await governed(server, { p: 'permit(principal, action, resource);' });
  await upstream.start();
  upstream.respond = ({ body, headers }, response) => {
    const { id, method, params } = JSON.parse(body || '{}');
    if (id === undefined) return void response.writeHead(method ? 202 : 405).end();
    const old = headers['mcp-protocol-version'] !== MODERN && method !== 'server/discover';
    const results: Record<string, object> = {
      initialize: {
        protocolVersion: '2025-11-25',
        capabilities: { tools: {} },
        serverInfo: { name: 's', version: '1' },
      },
      'server/discover': { supportedVersions: [MODERN], capabilities: { tools: {} } },
      'tools/list': { tools: [] },
      'tools/call': { content: params?.name === 'long' ? [{ type: 'text', text: 'x'.repeat(12 * MIB) }] : [] },
    };
    if (params?.name !== 'flood') {
      const result = { ...(old ? {} : { resultType: 'complete' }), ...results[method] };
      return void response
        .setHeader('content-type', 'application/json')
        .end(JSON.stringify({ jsonrpc: '2.0', id, result }));
    }
    response.writeHead(200, { 'content-type': 'text/event-stream' }).once('close', () => {
      cut = true;
    });
    const message = {
      jsonrpc: '2.0',
      method: 'notifications/message',
      params: { level: 'info', data: 'x'.repeat(MIB) },
    };
    const event = `data: ${JSON.stringify(message)}\n\n`;
    const more = () => {
      while (!response.destroyed && written < 100 * MIB) {
        written += MIB;
        if (!response.write(event)) return void response.once('drain', more);
      }
    };
    more();
  };
  proxy = await new ProxyProcess([{ path: '/mcp', mcp: `${upstream.url}/mcp`, server: 's' }], world.env).start();
  await proxy.ready();
});

let next = 0;
async function post(key: string, method: string, params: object, session?: string): Promise<IncomingMessage> {
  const modern = session === undefined && method !== 'initialize';
  const name = (params as { name?: string }).name;
  const _meta = {
    'io.modelcontextprotocol/protocolVersion': MODERN,
    'io.modelcontextprotocol/clientCapabilities': {},
    'io.modelcontextprotocol/logLevel': 'info',
  };
  const sent = httpRequest(`${proxy.url}/mcp`, {
    method: 'POST',
    agent: false,
    headers: {
      authorization: `Bearer ${key}`,
      'content-type': 'application/json',
      accept: 'application/json, text/event-stream',
      ...(modern ? { 'mcp-protocol-version': MODERN, 'mcp-method': method, 'mcp-name': name } : {}),
      ...(session !== undefined && { 'mcp-session-id': session, 'mcp-protocol-version': '2025-11-25' }),
    },
  });
  sent.end(JSON.stringify({ jsonrpc: '2.0', id: ++next, method, params: modern ? { ...params, _meta } : params }));
  const [response] = (await once(sent, 'response')) as [IncomingMessage];
  return response;
}
const textOf = async (response: IncomingMessage) => (await response.setEncoding('utf8').toArray()).join('');
async function begin(key: string): Promise<string> {
  const clientInfo = { name: 'slow', version: '1' };
  const response = await post(key, 'initialize', { protocolVersion: '2025-11-25', capabilities: {}, clientInfo });
  await textOf(response);
  return String(response.headers['mcp-session-id']);
}

describe.each(['in a session', 'without one'])('a client %s', (how) => {
  test('that does not read loses its stream; the others, and its next request, go on', async () => {
    const [slow, other] = [(await world.tenant.agent(`slow ${how}`, 'clerk')).key!, world.agentKey];
    const session = how === 'in a session' ? await begin(slow) : undefined;
    const sessionOfOther = how === 'in a session' ? await begin(other) : undefined;
    const before = proxy.residentBytes();
    written = 0;
    cut = false;
    const flooded = await post(slow, 'tools/call', { name: 'flood', arguments: {} }, session);
    flooded.on('error', () => {});
    // far more than the network and the proxy keep of it: the stream has ended where the rest went nowhere
    await until(() => cut || written >= 100 * MIB, 'the flood has ended');
    expect(written).toBeGreaterThan(16 * MIB);
    expect(proxy.residentBytes() - before).toBeLessThan(250 * MIB);
    // what was sent before is there, and then the end comes early
    const ended = new Promise((resolve) => flooded.on('close', resolve));
    flooded.resume();
    await ended;
    expect(flooded.complete).toBe(false);
    for (const [key, of] of [
      [other, sessionOfOther],
      [slow, session],
    ] as const) {
      const answer = await post(key, 'tools/call', { name: 'calm', arguments: {} }, of);
      expect(answer.statusCode).toBe(200);
      expect(await textOf(answer)).toContain('svc/decision');
    }
  });
});

test('a client without a session that leaves long answers unread loses those, and can read the next one', async () => {
  const { key } = await world.tenant.agent('patient', 'clerk');
  const answers: IncomingMessage[] = [];
  for (let n = 0; n < 7; n++) answers.push(await post(key!, 'tools/call', { name: 'long', arguments: {} }));
  // of each, the network keeps some
  const read = await Promise.allSettled(answers.map(textOf));
  expect(read.filter(({ status }) => status === 'rejected').length).toBeGreaterThanOrEqual(3);
  expect(read.at(-1)).toMatchObject({ status: 'fulfilled', value: expect.stringContaining('svc/decision') });
});

test('past the limit, the stream of an agent with the most unread is closed, and no other agent’s', () => {
  const unread = new Unread({ mostBytes: 100 });
  const made = () => ({
    writableLength: 0,
    destroyed: false,
    destroy() {
      this.destroyed = true;
    },
    once() {},
  });
  const [slow, fast, other] = [made(), made(), made()];
  unread.add('a', slow);
  unread.add('a', fast);
  unread.add('b', other);
  Object.assign(slow, { writableLength: 90 });
  Object.assign(fast, { writableLength: 5 });
  Object.assign(other, { writableLength: 100 });
  unread.makeRoom('a');
  unread.makeRoom('b');
  expect([slow, fast, other].map(({ destroyed }) => destroyed)).toEqual([false, false, false]);
  Object.assign(slow, { writableLength: 120 });
  unread.makeRoom('a');
  expect([slow, fast, other].map(({ destroyed }) => destroyed)).toEqual([true, false, false]);
});
