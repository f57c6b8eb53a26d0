import path from 'node:path';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { beforeAll, expect, test } from 'vitest';
import { atEnd } from '../helpers/cleanups.ts';
import { useServer } from '../helpers/server.ts';
import { until } from '../helpers/until.ts';
import { type Governed, governed, ProxyProcess, temporaryDirectory, Upstream } from './support.ts';

const server = useServer({ SVC_POLL_SECONDS: '1' }, { shared: true });
const POLICY = `
permit(principal in AgentRole::"clerk", action, resource);
@id("held") @escrow("single") forbid(principal, action, resource == Tool::"pay");
`;
const TRACE = '4bf92f3577b34da6a3ce929d0e0e4736';
const PARENT = '00f067aa0ba902b7';
const traceparent = `00-${TRACE}-${PARENT}-01`;
let world: Governed;
let proxy: ProxyProcess;
let upstream: Upstream;

beforeAll(async () => {
  upstream = await new Upstream().start();
  world = await governed(server, { api: POLICY });
  const routes = [
    { path: '/pay', to: `${upstream.url}/pay`, tool: 'pay' },
    { path: '/own', to: upstream.url, tool: 'api', headers: { traceparent: 'the operators' } },
    { path: '/*', to: upstream.url, tool: 'api' },
  ];
  proxy = await new ProxyProcess(routes, world.env).start();
  await proxy.ready();
});

interface Detail {
  trace_id: string;
  span_id: string;
  decision: string;
}
const record = (id: string | null) =>
  until(async () => {
    const response = await fetch(`${server.url}/v1/events/${id}`, {
      headers: { authorization: `Bearer ${world.tenant.admin.key}` },
    });
    return response.ok ? ((await response.json()) as Detail) : undefined;
  }, 'the record is there');
const get = async (target: string, headers: Record<string, string> = {}, status = 200) => {
  const answer = await proxy.call(status, `GET ${target}`, world.agentKey, { headers });
  return { received: upstream.received.at(-1)!.headers, record: await record(answer.headers.get('x-svc-event-id')) };
};

test('a request goes on in the trace that it came with: the span of its record is the parent of what follows', async () => {
  const one = await get('/a', { traceparent, tracestate: 'vendor=1' });
  expect(one.record).toMatchObject({ trace_id: TRACE, decision: 'allow' });
  expect(one.record.span_id).not.toBe(PARENT);
  expect(one.received).toMatchObject({ traceparent: `00-${TRACE}-${one.record.span_id}-01`, tracestate: 'vendor=1' });
  const unsampled = await get('/a', { traceparent: traceparent.replace(/01$/, '00') });
  expect(unsampled.received.traceparent).toBe(`00-${TRACE}-${unsampled.record.span_id}-00`);
});

test('one that comes with none, or with what is none, begins a trace, and nothing else of it is passed on', async () => {
  for (const headers of [{}, { traceparent: 'x'.repeat(3000) }, { traceparent: `${traceparent}, ${traceparent}` }]) {
    const { received, record } = await get('/a', { ...headers, tracestate: 'vendor=1' });
    expect(record.trace_id).not.toBe(TRACE);
    expect(received.traceparent).toBe(`00-${record.trace_id}-${record.span_id}-01`);
    expect(received).not.toHaveProperty('tracestate');
  }
  // what a route sets is the operator's word
  expect((await get('/own', { traceparent })).received.traceparent).toBe('the operators');
});

test('an action that was held is found with its release by the trace that both were asked in', async () => {
  const held = await proxy.call(423, 'POST /pay', world.agentKey, { headers: { traceparent }, body: {} });
  const id = held.headers.get('x-svc-escrow-id')!;
  const approver = await world.tenant.person('approver');
  await server.call(200, `POST /v1/escrow/${id}/vote`, approver, { decision: 'approve' });
  const headers = { traceparent, 'x-svc-escrow-id': id };
  const done = await proxy.call(200, 'POST /pay', world.agentKey, { headers, body: {} });
  const [first, second] = [
    await record(held.headers.get('x-svc-event-id')),
    await record(done.headers.get('x-svc-event-id')),
  ];
  expect([first.decision, second.decision]).toEqual(['escrow', 'allow']);
  expect(first.span_id).not.toBe(second.span_id);
  const { body } = await server.call<{ events: { decision: string }[] }>(
    200,
    `GET /v1/events?trace_id=${TRACE}&tool_name=pay`,
    world.tenant.admin,
  );
  expect(body.events.map(({ decision }) => decision)).toEqual(['allow', 'escrow']);
});

test('the call of a tool of an MCP server carries its trace in _meta, here and to the server', async () => {
  const transport = new StdioClientTransport({
    command: process.execPath,
    args: [
      ...['server/proxy/main.ts', 'mcp', '--name', 'fixture', '--'],
      ...[process.execPath, 'test/proxy/mcp-server.ts', 'stdio', 'both'],
    ],
    env: {
      ...world.env,
      SVC_AGENT_KEY: world.agentKey,
      SVC_PROXY_DIR: path.join(temporaryDirectory(), 'state'),
      PATH: process.env.PATH!,
    },
    stderr: 'ignore',
  });
  const client = new Client({ name: 'test', version: '1' });
  await client.connect(transport);
  atEnd(() => client.close());
  const call = async (_meta?: Record<string, unknown>) => {
    const answer = (await client.callTool({ name: 'meta', arguments: {}, ...(_meta && { _meta }) })) as unknown as {
      content: { text: string }[];
      _meta: { 'svc/decision': { event_id: string } };
    };
    return {
      received: JSON.parse(answer.content[0]!.text) as Record<string, unknown>,
      record: await record(answer._meta['svc/decision'].event_id),
    };
  };
  const one = await call({ traceparent, tracestate: 'vendor=1', 'example.com/other': 1 });
  expect(one.record.trace_id).toBe(TRACE);
  const span = `00-${TRACE}-${one.record.span_id}-01`;
  expect(one.received).toEqual({ traceparent: span, tracestate: 'vendor=1' });
  for (const _meta of [undefined, { traceparent: 7, tracestate: 'vendor=1' }]) {
    const { received, record } = await call(_meta);
    expect(record.trace_id).not.toBe(TRACE);
    expect(received.traceparent).toBe(`00-${record.trace_id}-${record.span_id}-01`);
    expect(received).not.toHaveProperty('tracestate');
  }
});
