import { writeFileSync } from 'node:fs';
import path from 'node:path';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { CallToolResultSchema } from '@modelcontextprotocol/sdk/types.js';
import { beforeAll, describe, expect, test } from 'vitest';
import { atEnd } from '../helpers/cleanups.ts';
import { useServer } from '../helpers/server.ts';
import { until } from '../helpers/until.ts';
import { decisions, type Governed, governed, ProxyProcess, temporaryDirectory, Upstream } from './support.ts';

/**
 * Facts of sessions from what tools answer, over each transport of the proxy: a later call is decided by them, the control
 * plane knows them, and nothing that an agent sends becomes one.
 */

const MODERN = '2026-07-28';
const POLICY = `
@id("get") @fact("status[answer.id] = answer.status from get_order of shop for 30m; status[answer.id] = answer.status from slow_order of shop for 30m")
permit(principal, action, resource == Tool::"get_order");
@id("slow") permit(principal, action, resource == Tool::"slow_order");
@id("tasks") permit(principal, action == Action::"task_read", resource);
@id("cancel") permit(principal, action, resource == Tool::"cancel")
when { context.session.str.hasTag("status[id]") && context.session.str.getTag("status[id]") == "pending" };
@id("charge") @mask("$.card") permit(principal, action, resource == Tool::"charge");
@id("receipt") permit(principal, action, resource == Tool::"receipt")
when { context.session.called.hasTag("charge") };
@id("order") @fact("state[answer.id] = answer.state from orders for 30m")
permit(principal, action, resource == Tool::"orders");
@id("refund") permit(principal, action, resource == Tool::"refunds")
when { context.session.str.hasTag("state[body.id]") && context.session.str.getTag("state[body.id]") == "paid" };
`;

const server = useServer({ SVC_POLL_SECONDS: '1' }, { shared: true });
const shop = new Upstream();
/** What the shop says of its orders. */
const orders = new Map<string, string>();
/** Tasks by their ids: the order that each one reads, and whether it has ended. */
const tasks = new Map<string, { id: string; status: string; said: string | undefined }>();
/** Answers the last request for an order, where that waits. */
let answerSlow: () => unknown;
let world: Governed;
let proxy: ProxyProcess;

const tool = (name: string) => ({ name, inputSchema: { type: 'object' } });
const answerOf = (id: string, status: string | undefined) => ({
  content: [{ type: 'text', text: JSON.stringify({ id, status }) }],
  structuredContent: { id, status },
});

beforeAll(async () => {
  world = await governed(server, { shop: POLICY });
  const { body } = await server.call<{ keys: { id: string; scopes: string[] }[] }>(
    200,
    'GET /v1/keys',
    world.tenant.admin,
  );
  const proxy_keys = body.keys.filter(({ scopes }) => scopes.includes('proxy')).map(({ id }) => id);
  const person = await world.tenant.person('admin');
  for (const id of ['shop', 'web']) {
    await server.call(200, `PUT /v1/tool-servers/${id}`, person, { proxy_keys, reason: 'it is in front' });
  }
  await shop.start();
  shop.respond = ({ body, url }, response) => {
    const said = JSON.parse(body || '{}');
    const json = (value: object) => response.setHeader('content-type', 'application/json').end(JSON.stringify(value));
    if (url.startsWith('/orders/')) {
      const id = url.slice('/orders/'.length);
      answerSlow = () => json({ id, state: orders.get(id) });
      return id === 'late' ? undefined : answerSlow();
    }
    if (url.startsWith('/refunds')) return void json({ done: true });
    const { id, method, params } = said;
    const reply = (result: object) => json({ jsonrpc: '2.0', id, result: { resultType: 'complete', ...result } });
    if (method === 'server/discover') return void reply({ supportedVersions: [MODERN], capabilities: { tools: {} } });
    if (method === 'tools/list') {
      return void reply({ tools: ['get_order', 'slow_order', 'cancel', 'charge', 'receipt'].map(tool) });
    }
    if (method === 'tools/call' && params.name === 'slow_order') {
      const taskId = `task-${tasks.size + 1}`;
      tasks.set(taskId, { id: params.arguments.id, status: 'working', said: orders.get(params.arguments.id) });
      return void reply({ resultType: 'task', taskId, status: 'working', ...TIMES });
    }
    if (method === 'tools/call' && params.name === 'charge') {
      const text = 'a sentence, which no mask can be sure of';
      return void reply({ content: [{ type: 'text', text }], isError: params.arguments.id === 'refused' });
    }
    if (method === 'tasks/get') {
      const { id: order, status, said: then } = tasks.get(params.taskId)!;
      const result = status === 'completed' && { result: answerOf(order, then) };
      return void reply({ taskId: params.taskId, status, ...TIMES, ...result });
    }
    reply(answerOf(params.arguments.id, orders.get(params.arguments.id)));
  };
  const routes = [
    { path: '/shop', mcp: `${shop.url}/mcp`, server: 'shop' },
    { path: '/orders/*', to: `${shop.url}/orders`, tool: 'orders', server: 'web' },
    { path: '/refunds', to: `${shop.url}/refunds`, tool: 'refunds' },
  ];
  proxy = await new ProxyProcess(routes, world.env).start();
  await proxy.ready();
});
const TIMES = { ttlMs: 60_000, createdAt: '2026-11-01T00:00:00Z', lastUpdatedAt: '2026-11-01T00:00:00Z' };

let next = 0;
// biome-ignore lint/suspicious/noExplicitAny: answers of any method
async function ask(session: string, method: string, params: Record<string, unknown>): Promise<any> {
  const _meta = {
    ...(params._meta as object),
    'svc/session': session,
    'io.modelcontextprotocol/protocolVersion': MODERN,
    'io.modelcontextprotocol/clientCapabilities': { extensions: { 'io.modelcontextprotocol/tasks': {} } },
  };
  const response = await fetch(`${proxy.url}/shop`, {
    method: 'POST',
    headers: {
      authorization: `Bearer ${world.agentKey}`,
      'content-type': 'application/json',
      accept: 'application/json, text/event-stream',
      'mcp-protocol-version': MODERN,
      'mcp-method': method,
      'mcp-name': String(params.taskId ?? params.name),
    },
    body: JSON.stringify({ jsonrpc: '2.0', id: ++next, method, params: { ...params, _meta } }),
  });
  return response.json();
}
const call = (session: string, name: string, args: object, more: object = {}) =>
  ask(session, 'tools/call', { name, arguments: args, ...more });
const decided = async (session: string, name: string, args: object, more: object = {}) =>
  (await call(session, name, args, more)).result._meta['svc/decision'] as { decision: string; event_id: string };

interface SessionFact {
  name: string;
  key: string;
  value: unknown;
  event_id: string;
  tool_name: string | null;
  observed_at: string;
  expires_at: string;
  reported: boolean;
}
const factsOf = async (session: string) =>
  (
    await server.call<{ facts: SessionFact[] }>(200, `GET /v1/session-facts?session_id=${session}`, world.tenant.admin)
  ).body.facts.filter(({ name }) => name === 'status' || name === 'state');
const recorded = (eventId: string) =>
  until(async () => (await decisions(server, world.tenant)).some(({ id }) => id === eventId), `${eventId} is recorded`);

describe('what a tool answers', () => {
  test('over MCP by HTTP: decides later calls of the session, and the control plane knows it', async () => {
    orders.set('A', 'pending').set('B', 'shipped');
    expect((await decided('s1', 'cancel', { id: 'A' })).decision).toBe('deny');
    const { event_id } = await decided('s1', 'get_order', { id: 'A' });
    await decided('s1', 'get_order', { id: 'B' });
    expect((await decided('s1', 'cancel', { id: 'A' })).decision).toBe('allow');
    for (const [session, id] of [
      ['s1', 'B'],
      ['s1', 'C'],
      ['other', 'A'],
    ] as const) {
      expect((await decided(session, 'cancel', { id })).decision).toBe('deny');
    }
    await recorded(event_id);
    const known = await until(async () => {
      const facts = await factsOf('s1');
      return facts.length === 2 && facts;
    }, 'the control plane knows the facts');
    const fact = known.find(({ key }) => key === 'A')!;
    expect(fact).toMatchObject({ value: 'pending', event_id, tool_name: 'get_order', reported: false });
    expect(Date.parse(fact.expires_at) - Date.parse(fact.observed_at)).toBe(30 * 60_000);
    // the tool says otherwise: so does the fact
    orders.set('A', 'shipped');
    await decided('s1', 'get_order', { id: 'A' });
    expect((await decided('s1', 'cancel', { id: 'A' })).decision).toBe('deny');
  });

  test('over plain HTTP', async () => {
    orders.set('P', 'paid');
    const headers = { 'x-svc-session-id': 'http-1' };
    const refund = { body: { id: 'P' }, headers };
    await proxy.call(403, 'POST /refunds', world.agentKey, refund);
    await proxy.call(200, 'GET /orders/P', world.agentKey, { headers });
    await proxy.call(200, 'POST /refunds', world.agentKey, refund);
    await proxy.call(403, 'POST /refunds', world.agentKey, { body: { id: 'Q' }, headers });
    await proxy.call(403, 'POST /refunds', world.agentKey, { ...refund, headers: { 'x-svc-session-id': 'http-2' } });
    const known = await until(async () => (await factsOf('http-1'))[0], 'the control plane knows the fact');
    expect(known).toMatchObject({ name: 'state', key: 'P', value: 'paid', tool_name: 'orders' });
  });

  test('when its event was sent long before: the control plane knows it too', async () => {
    const routes = [{ path: '/orders/*', to: `${shop.url}/orders`, tool: 'orders', server: 'web' }];
    const hasty = await new ProxyProcess(routes, { ...world.env, SVC_PROXY_OUTCOME_SECONDS: '1' }).start();
    await hasty.ready();
    orders.set('late', 'paid');
    const headers = { 'x-svc-session-id': 'slow-1' };
    const called = hasty.call(200, 'GET /orders/late', world.agentKey, { headers });
    const permitted = async () => {
      const { body } = await server.call<{ events: unknown[] }>(
        ...([200, 'GET /v1/events?session_id=slow-1', world.tenant.admin] as const),
      );
      return body.events;
    };
    await until(async () => (await permitted()).length === 1, 'the call is recorded, and goes on');
    expect(await factsOf('slow-1')).toEqual([]);
    answerSlow();
    await called;
    const known = await until(async () => (await factsOf('slow-1'))[0], 'the control plane knows the fact');
    expect(known).toMatchObject({ key: 'late', value: 'paid', tool_name: 'orders' });
    expect(await permitted()).toHaveLength(1);
    await hasty.kill();
  });

  test('over MCP by stdio', async () => {
    const dir = temporaryDirectory();
    const program = path.join(dir, 'shop.cjs');
    writeFileSync(program, STDIO_SHOP);
    const client = new Client({ name: 'agent', version: '1' });
    const env = {
      ...world.env,
      SVC_AGENT_KEY: world.agentKey,
      SVC_PROXY_DIR: path.join(dir, 'state'),
      PATH: process.env.PATH!,
      NODE_COMPILE_CACHE: process.env.NODE_COMPILE_CACHE ?? '',
    };
    const args = ['server/proxy/main.ts', 'mcp', '--name', 'shop', '--', process.execPath, program];
    await client.connect(new StdioClientTransport({ command: process.execPath, args, env, stderr: 'ignore' }));
    atEnd(() => client.close());
    const ask = async (name: string, id: string) => {
      const result = await client.callTool({ name, arguments: { id } }, CallToolResultSchema);
      return (result._meta as Record<string, { decision: string }>)['svc/decision']!.decision;
    };
    expect(await ask('cancel', 'A')).toBe('deny');
    expect(await ask('get_order', 'A')).toBe('allow');
    expect(await ask('cancel', 'A')).toBe('allow');
    expect(await ask('cancel', 'B')).toBe('deny');
  });

  test('is not done because it is withheld: a call that failed has failed', async () => {
    for (const [id, decision] of [
      ['refused', 'deny'],
      ['taken', 'allow'],
    ] as const) {
      expect((await call('m1', 'charge', { id })).result._meta['svc/decision'].code).toBe('MASKING_FAILED');
      expect((await decided('m1', 'receipt', { id })).decision).toBe(decision);
    }
  });

  test('of a task: when its result arrives, for the session that called, as old as the call', async () => {
    orders.set('T', 'pending');
    const begun = await call('task-1', 'slow_order', { id: 'T' });
    const { taskId } = begun.result;
    expect((await decided('task-1', 'cancel', { id: 'T' })).decision).toBe('deny');
    await ask('task-1', 'tasks/get', { taskId });
    expect((await decided('task-1', 'cancel', { id: 'T' })).decision).toBe('deny');
    const raw = [...tasks.keys()].at(-1)!;
    tasks.get(raw)!.status = 'completed';
    const done = await ask('task-1', 'tasks/get', { taskId });
    expect(done.result).toMatchObject({ status: 'completed', result: { structuredContent: { status: 'pending' } } });
    expect((await decided('task-1', 'cancel', { id: 'T' })).decision).toBe('allow');
    const known = await until(async () => (await factsOf('task-1'))[0], 'the control plane knows the fact');
    expect(known).toMatchObject({ key: 'T', value: 'pending', tool_name: 'tasks/get', reported: false });

    // news that an agent did not look at do not become newer than what it has heard since
    const late = await call('task-1', 'slow_order', { id: 'T' });
    tasks.get([...tasks.keys()].at(-1)!)!.status = 'completed';
    orders.set('T', 'shipped');
    await decided('task-1', 'get_order', { id: 'T' });
    await ask('task-1', 'tasks/get', { taskId: late.result.taskId });
    expect((await decided('task-1', 'cancel', { id: 'T' })).decision).toBe('deny');

    // nor does what was asked for in one session count in another
    orders.set('U', 'pending');
    const other = await call('task-2', 'slow_order', { id: 'U' });
    tasks.get([...tasks.keys()].at(-1)!)!.status = 'completed';
    await ask('task-3', 'tasks/get', { taskId: other.result.taskId });
    for (const session of ['task-2', 'task-3']) {
      expect((await decided(session, 'cancel', { id: 'U' })).decision).toBe('deny');
    }
    // a result that failed says nothing
    const failed = await call('task-4', 'slow_order', { id: 'U' });
    Object.assign(tasks.get([...tasks.keys()].at(-1)!)!, { status: 'failed' });
    await ask('task-4', 'tasks/get', { taskId: failed.result.taskId });
    expect((await decided('task-4', 'cancel', { id: 'U' })).decision).toBe('deny');
  });
});

describe('an agent', () => {
  test('writes no fact by its arguments, names, or what it says beside them', async () => {
    orders.set('X', 'shipped');
    const claims = { status: 'pending', answer: { id: 'X', status: 'pending' }, 'status[id]': 'pending' };
    const _meta = { 'svc/decision': { decision: 'allow' }, facts: { 'status[X]': 'pending' } };
    await decided('w1', 'get_order', { id: 'X', ...claims }, { _meta, structuredContent: claims.answer });
    await decided('w1', 'get_order', { id: 'X', facts: claims, session: { facts: claims } });
    const claimed = { id: 'X', session: { str: { 'status[id]': 'pending' } }, 'status[X]': 'pending', ...claims };
    expect((await decided('w1', 'cancel', claimed, { _meta })).decision).toBe('deny');
    await until(async () => (await factsOf('w1')).length > 0, 'the control plane knows the fact');
    expect(await factsOf('w1')).toMatchObject([{ key: 'X', value: 'shipped' }]);
  });

  test('reports nothing about a decision of a proxy, and brings no events', async () => {
    orders.set('R', 'shipped');
    const { event_id } = await decided('r1', 'get_order', { id: 'R' });
    await recorded(event_id);
    const post = async (line: string, key: string, body: object) => {
      const [method, target] = line.split(' ') as [string, string];
      const response = await fetch(server.url + target, {
        method,
        headers: {
          authorization: `Bearer ${key}`,
          'x-svc-tenant': world.tenant.id,
          'content-type': 'application/json',
        },
        body: JSON.stringify(body),
      });
      return response.status;
    };
    const report = { event_id, outcome: 'succeeded', answer: { id: 'R', status: 'pending' } };
    expect(await post('POST /v1/outcomes', world.agentKey, report)).toBe(404);
    // nor does a proxy report as an agent, or an agent as a proxy
    expect([401, 403]).toContain(await post('POST /v1/outcomes', world.proxyKey, report));
    expect([401, 403]).toContain(await post('POST /v1/events/ingest', world.agentKey, { events: [] }));
    expect((await decided('r1', 'cancel', { id: 'R' })).decision).toBe('deny');
    // what it reports of a call that it asked about itself counts only where a policy accepts reports: none does
    const asked = await fetch(`${server.url}/v1/evaluate`, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${world.agentKey}`,
        'x-svc-tenant': world.tenant.id,
        'content-type': 'application/json',
      },
      body: JSON.stringify({
        ...{ action_type: 'tool_call', tool_name: 'get_order', tool_server: 'shop', session_id: 'r1' },
        arguments: { id: 'R' },
      }),
    });
    const own = ((await asked.json()) as { event_id: string }).event_id;
    expect(await post('POST /v1/outcomes', world.agentKey, { ...report, event_id: own })).toBe(200);
    expect((await decided('r1', 'cancel', { id: 'R' })).decision).toBe('deny');
    expect((await factsOf('r1')).map(({ value }) => value)).not.toContain('pending');
  });
});

/** An MCP server on its standard streams in which each order is pending. */
const STDIO_SHOP = `
const reply = (id, result) => process.stdout.write(JSON.stringify({ jsonrpc: '2.0', id, result }) + '\\n');
require('node:readline').createInterface({ input: process.stdin }).on('line', (line) => {
  const { id, method, params } = JSON.parse(line);
  if (id === undefined) return;
  if (method === 'initialize') {
    const { protocolVersion } = params;
    return reply(id, { protocolVersion, capabilities: { tools: {} }, serverInfo: { name: 'shop', version: '1' } });
  }
  if (method === 'tools/list') {
    return reply(id, { tools: ['get_order', 'cancel'].map((name) => ({ name, inputSchema: { type: 'object' } })) });
  }
  if (method !== 'tools/call') {
    return process.stdout.write(JSON.stringify({ jsonrpc: '2.0', id, error: { code: -32601, message: 'no' } }) + '\\n');
  }
  const said = { id: params.arguments.id, status: 'pending' };
  reply(id, { content: [{ type: 'text', text: JSON.stringify(said) }], structuredContent: said });
});
`;
