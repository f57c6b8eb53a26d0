import { type ChildProcess, spawn } from 'node:child_process';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { InMemoryTaskMessageQueue, InMemoryTaskStore } from '@modelcontextprotocol/sdk/experimental/tasks';
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import { CallToolResultSchema, ResultSchema } from '@modelcontextprotocol/sdk/types.js';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { z } from 'zod';
import { freePort } from '../helpers/ports.ts';
import { useServer } from '../helpers/server.ts';
import { until } from '../helpers/until.ts';
import { decisions, type Governed, governed, ProxyProcess, Upstream } from './support.ts';

/**
 * Tasks of tool servers, which know nothing of the agents behind the proxy: no agent reads, ends or answers the task of
 * another. Tasks and roots are actions, decided and recorded as calls of tools are.
 */

const POLICY = `
@id("all") permit(principal in AgentRole::"clerk", action, resource in ToolServer::"jobs")
  unless { action == Action::"roots_list" };
@id("no-waste") @reason("no waste") forbid(principal, action == Action::"tool_call", resource)
  when { context.num.hasTag("ms") && context.num.getTag("ms").greaterThan(decimal("100000.0")) };
@id("keep") @reason("this one is kept") forbid(principal, action == Action::"task_update", resource == Tool::"tasks/cancel")
  when { principal == Agent::"careful" };
@id("ask-first") @escrow("single") forbid(principal, action == Action::"task_update", resource == Tool::"tasks/cancel")
  when { principal == Agent::"asking" };
@id("masked") @mask("$.secret") forbid(principal, action == Action::"task_read", resource)
  when { principal == Agent::"masked" };
@id("no-questions") @reason("people are not asked") forbid(principal, action == Action::"elicitation", resource)
  when { principal == Agent::"quiet" };
@id("roots") permit(principal in AgentRole::"clerk", action == Action::"roots_list", resource)
  unless { principal == Agent::"rootless" };
`;
const MODERN = '2026-07-28';
const RELATED = 'io.modelcontextprotocol/related-task';
const server = useServer({ SVC_POLL_SECONDS: '1' }, { shared: true });
const modern = new Upstream();
const store = new InMemoryTaskStore();
let legacy: Server;
let fixture: ChildProcess;
let world: Governed;
let proxy: ProxyProcess;
const keys: Record<string, string> = {};

/** Tasks by guessable names, of anybody who asks: with the extension of the revision without sessions. */
const jobs = new Map<string, { status: string; asks?: boolean; given?: unknown }>();
function job(taskId: string) {
  const { status, asks } = jobs.get(taskId)!;
  return {
    taskId,
    status,
    ttlMs: 60_000,
    createdAt: '2026-11-01T00:00:00Z',
    lastUpdatedAt: '2026-11-01T00:00:00Z',
    ...(status === 'completed' && { result: { content: [{ type: 'text', text: `secret of ${taskId}` }] } }),
    ...(asks && {
      status: 'input_required',
      inputRequests: {
        why: { method: 'elicitation/create', params: { message: 'why?', _meta: { [RELATED]: { taskId } } } },
      },
    }),
  };
}

beforeAll(async () => {
  world = await governed(server, { jobs: POLICY });
  for (const name of ['alice', 'bob', 'careful', 'asking', 'masked', 'quiet', 'rootless']) {
    keys[name] = (await world.tenant.agent(name, 'clerk')).key!;
  }
  await modern.start();
  modern.respond = ({ body }, response) => {
    const { id, method, params } = JSON.parse(body || '{}');
    if (!method) return void response.writeHead(405).end();
    const reply = (result: object) =>
      response.setHeader('content-type', 'application/json').end(JSON.stringify({ jsonrpc: '2.0', id, result }));
    if (method === 'server/discover') {
      return void reply({ resultType: 'complete', supportedVersions: [MODERN], capabilities: { tools: {} } });
    }
    if (method === 'tools/list') return void reply({ resultType: 'complete', tools: [] });
    if (method === 'tools/call') {
      const taskId = `job-${jobs.size + 1}`;
      jobs.set(taskId, { status: 'working' });
      reply({ resultType: 'task', ...job(taskId) });
      jobs.get(taskId)!.asks = params.name === 'ask';
      return;
    }
    if (method === 'subscriptions/listen') {
      const say = (name: string, more: object) => {
        const _meta = { 'io.modelcontextprotocol/subscriptionId': id };
        response.write(`data: ${JSON.stringify({ jsonrpc: '2.0', method: name, params: { ...more, _meta } })}\n\n`);
      };
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      say('notifications/subscriptions/acknowledged', { notifications: params.notifications });
      // of all tasks, no matter who asks
      const timer = setInterval(() => {
        for (const taskId of jobs.keys()) say('notifications/tasks', job(taskId));
      }, 100);
      response.once('close', () => clearInterval(timer));
      return;
    }
    const known = jobs.get(params.taskId);
    if (!known) {
      const error = { code: -32602, message: 'no such task' };
      return void response
        .setHeader('content-type', 'application/json')
        .end(JSON.stringify({ jsonrpc: '2.0', id, error }));
    }
    if (method === 'tasks/cancel') known.status = 'cancelled';
    if (method === 'tasks/update')
      Object.assign(known, { asks: false, status: 'completed', given: params.inputResponses });
    reply({ resultType: 'complete', ...(method === 'tasks/get' && job(params.taskId)) });
  };

  // the official server of the older revision, without sessions: all that ask share one store
  const queue = new InMemoryTaskMessageQueue();
  legacy = createServer(async (request, response) => {
    const parts: Buffer[] = [];
    for await (const part of request) parts.push(part as Buffer);
    if (request.method !== 'POST') return void response.writeHead(405).end();
    const one = new McpServer(
      { name: 'jobs', version: '1' },
      {
        capabilities: { tasks: { list: {}, cancel: {}, requests: { tools: { call: {} } } } },
        taskStore: store,
        taskMessageQueue: queue,
      },
    );
    one.experimental.tasks.registerToolTask(
      'job',
      { description: 'A job', inputSchema: { ms: z.number() }, execution: { taskSupport: 'optional' } },
      {
        async createTask({ ms }, { taskStore }) {
          const task = await taskStore.createTask({ ttl: 60_000, pollInterval: 100 });
          const content = [{ type: 'text' as const, text: `secret of ${task.taskId}` }];
          setTimeout(() => void taskStore.storeTaskResult(task.taskId, 'completed', { content }).catch(() => {}), ms);
          return { task };
        },
        getTask: async (_args, { taskId, taskStore }) => taskStore.getTask(taskId),
        getTaskResult: async (_args, { taskId, taskStore }) =>
          CallToolResultSchema.parse(await taskStore.getTaskResult(taskId)),
      },
    );
    // biome-ignore lint/suspicious/noExplicitAny: without sessions, as the SDK documents it
    const transport = new StreamableHTTPServerTransport({ sessionIdGenerator: undefined as any });
    await one.connect(transport as never);
    await transport.handleRequest(request, response, JSON.parse(Buffer.concat(parts).toString()));
  });
  await new Promise<void>((resolve) => legacy.listen(0, '127.0.0.1', resolve));
  const port = await freePort();
  fixture = spawn(process.execPath, ['test/proxy/mcp-server.ts', String(port), 'legacy'], { stdio: 'ignore' });
  const mcp = `http://127.0.0.1:${port}/mcp`;
  await until(async () => (await fetch(mcp).catch(() => undefined)) !== undefined, 'the server listens');
  const routes = [
    { path: '/modern', mcp: `${modern.url}/mcp`, server: 'jobs' },
    { path: '/other', mcp: `${modern.url}/mcp`, server: 'others' },
    { path: '/legacy', mcp: `http://127.0.0.1:${(legacy.address() as AddressInfo).port}/mcp`, server: 'jobs' },
    { path: '/fixture', mcp, server: 'jobs' },
  ];
  proxy = await new ProxyProcess(routes, world.env).start();
  await proxy.ready();
});
afterAll(async () => {
  fixture.kill('SIGKILL');
  legacy.closeAllConnections();
  legacy.close();
  store.cleanup();
});

const CAPABILITIES = { elicitation: {}, roots: {}, extensions: { 'io.modelcontextprotocol/tasks': {} } };
let next = 0;
function send(agent: string, method: string, params: Record<string, unknown>, route = '/modern', signal?: AbortSignal) {
  const _meta = {
    ...(params._meta as object),
    'io.modelcontextprotocol/protocolVersion': MODERN,
    'io.modelcontextprotocol/clientCapabilities': CAPABILITIES,
  };
  const name = params.taskId ?? params.name;
  return fetch(proxy.url + route, {
    method: 'POST',
    headers: {
      authorization: `Bearer ${keys[agent]}`,
      'content-type': 'application/json',
      accept: 'application/json, text/event-stream',
      'mcp-protocol-version': MODERN,
      'mcp-method': method,
      ...(name !== undefined && { 'mcp-name': String(name) }),
    },
    body: JSON.stringify({ jsonrpc: '2.0', id: ++next, method, params: { ...params, _meta } }),
    ...(signal && { signal }),
  });
}
// biome-ignore lint/suspicious/noExplicitAny: answers of any method
type Answer = { result?: any; error?: any };
const ask = async (...args: Parameters<typeof send>) => (await (await send(...args)).json()) as Answer;
const begin = async (agent: string, name = 'job') =>
  (await ask(agent, 'tools/call', { name, arguments: {} })).result.taskId as string;
const recorded = async (agent: string, tool: string) =>
  (await decisions(server, world.tenant))
    .filter(({ agent_id, tool_name }) => agent_id === agent && tool_name === tool)
    .map(({ decision, deny_reason }) => [decision, deny_reason]);
const none = { error: { code: -32602, message: 'there is no such task' } };

describe('without sessions', () => {
  test('an agent has its task to the end, by a name that says nothing', async () => {
    const taskId = await begin('alice');
    const raw = [...jobs.keys()].at(-1)!;
    expect(taskId).not.toContain(raw);
    const got = await ask('alice', 'tasks/get', { taskId });
    expect(got.result).toMatchObject({ resultType: 'complete', taskId, status: 'working' });
    jobs.get(raw)!.status = 'completed';
    expect((await ask('alice', 'tasks/get', { taskId })).result).toMatchObject({
      taskId,
      result: { content: [{ text: `secret of ${raw}` }] },
    });
    expect((await ask('alice', 'tasks/cancel', { taskId })).result).toEqual({
      resultType: 'complete',
      _meta: expect.anything(),
    });
    expect(jobs.get(raw)!.status).toBe('cancelled');
    // it outlives the process, as the server's task does
    await proxy.kill();
    await proxy.start();
    await proxy.ready();
    expect((await ask('alice', 'tasks/get', { taskId })).result).toMatchObject({ taskId, status: 'cancelled' });
  });

  test('nobody else’s task can be named: raw, sealed, guessed, or at another server', async () => {
    const taskId = await begin('alice');
    const raw = [...jobs.keys()].at(-1)!;
    jobs.get(raw)!.status = 'completed';
    const before = modern.received.length;
    const guessed = `${taskId.slice(0, -4)}AAAA`;
    for (const method of ['tasks/get', 'tasks/update', 'tasks/cancel', 'tasks/result']) {
      for (const tried of [raw, taskId, guessed, `esc_1.${taskId}`, '', 7]) {
        const answer = await ask('bob', method, { taskId: tried, inputResponses: {} });
        expect(answer.error?.code, `${method} ${tried}: ${JSON.stringify(answer)}`).toBe(
          method === 'tasks/result' ? -32601 : -32602,
        );
        expect(JSON.stringify(answer)).not.toContain('secret of');
      }
    }
    expect(await ask('alice', 'tasks/get', { taskId: raw })).toMatchObject(none);
    expect((await ask('alice', 'tasks/get', { taskId }, '/other')).error).toBeDefined();
    // beside a call of its own, and beside what is no action
    const related = { _meta: { [RELATED]: { taskId: raw } } };
    expect(await ask('bob', 'tools/call', { name: 'job', arguments: {}, ...related })).toMatchObject(none);
    expect((await ask('bob', 'tools/list', related)).result.tools).toEqual([]);
    const sent = modern.received.slice(before).map(({ body }) => body);
    expect(sent.filter((body) => body.includes(raw) || body.includes('tasks/'))).toEqual([]);
    expect(jobs.get(raw)!.status).toBe('completed');
    await until(async () => (await recorded('bob', 'tasks/get')).length > 0, 'it is recorded');
    expect(await recorded('bob', 'tasks/get')).toContainEqual(['deny', 'task_of_another_agent']);
  });

  test('what a task wants to know is asked of its own agent, where the policies let it be asked', async () => {
    const taskId = await begin('alice', 'ask');
    const raw = [...jobs.keys()].at(-1)!;
    const wants = (await ask('alice', 'tasks/get', { taskId })).result;
    expect(wants).toMatchObject({
      status: 'input_required',
      inputRequests: { why: { params: { message: 'why?', _meta: { [RELATED]: { taskId } } } } },
    });
    const why = { action: 'accept', content: { why: 'so' }, _meta: { [RELATED]: { taskId } } };
    const foreign = { ...why, _meta: { [RELATED]: { taskId: raw } } };
    expect(await ask('bob', 'tasks/update', { taskId, inputResponses: { why } })).toMatchObject(none);
    expect(await ask('alice', 'tasks/update', { taskId, inputResponses: { why: foreign } })).toMatchObject(none);
    expect(jobs.get(raw)!.given).toBeUndefined();
    await ask('alice', 'tasks/update', { taskId, inputResponses: { why } });
    expect(jobs.get(raw)!.given).toEqual({ why: { ...why, _meta: { [RELATED]: { taskId: raw } } } });

    const quiet = await begin('quiet', 'ask');
    const denied = await ask('quiet', 'tasks/get', { taskId: quiet });
    expect(denied).toMatchObject({
      error: { code: -31403, data: { 'svc/decision': { reason: 'people are not asked' } } },
    });
    await until(async () => (await recorded('quiet', 'elicitation/create')).length > 0, 'it is recorded');
  });

  test('an agent is told about its own tasks alone, under their names', async () => {
    const taskId = await begin('alice');
    const raw = [...jobs.keys()].at(-1)!;
    const { messages: bobs, close: closeBob } = await listen('bob', [taskId, raw]);
    const { messages, close } = await listen('alice', [taskId, raw]);
    const { messages: masked, close: closeMasked } = await listen('masked', [await begin('masked')]);
    await until(() => messages.filter(({ method }) => method === 'notifications/tasks').length > 3, 'it is told');
    await close();
    await closeBob();
    await closeMasked();
    expect(messages[0]).toMatchObject({ params: { notifications: { taskIds: [taskId] } } });
    const told = messages.filter(({ method }) => method === 'notifications/tasks');
    expect(new Set(told.map(({ params }) => params.taskId))).toEqual(new Set([taskId]));
    for (const heard of [bobs, masked]) {
      expect(heard[0]!.params.notifications.taskIds).toBeUndefined();
      expect(heard.filter(({ method }) => method === 'notifications/tasks')).toEqual([]);
    }
  });

  test('what is done to a task is decided, held and recorded like any action', async () => {
    const kept = await begin('careful');
    expect(await ask('careful', 'tasks/cancel', { taskId: kept })).toMatchObject({
      error: { code: -31403, data: { 'svc/decision': { reason: 'this one is kept' } } },
    });
    expect((await ask('careful', 'tasks/get', { taskId: kept })).result).toMatchObject({ status: 'working' });
    const held = await begin('asking');
    const raw = [...jobs.keys()].at(-1)!;
    const cancel = () => ask('asking', 'tasks/cancel', { taskId: held });
    const { error } = await cancel();
    expect(error).toMatchObject({ code: -31423 });
    expect(jobs.get(raw)!.status).toBe('working');
    const hold = error.data['svc/decision'].escrow_id;
    await server.call(200, `POST /v1/escrow/${hold}/vote`, await world.tenant.person('approver'), {
      decision: 'approve',
    });
    expect((await cancel()).result).toBeDefined();
    expect(jobs.get(raw)!.status).toBe('cancelled');
    await until(async () => (await recorded('asking', 'tasks/cancel')).length > 1, 'it is recorded');
    expect((await recorded('asking', 'tasks/cancel')).map(([decision]) => decision)).toEqual(['escrow', 'allow']);
    expect(await recorded('careful', 'tasks/cancel')).toEqual([['deny', 'this one is kept']]);
    expect((await recorded('careful', 'tasks/get')).map(([decision]) => decision)).toEqual(['allow']);
  });
});

async function stop(abort: AbortController, reading: Promise<void>): Promise<void> {
  abort.abort();
  await reading;
}

async function listen(agent: string, taskIds: string[]) {
  const abort = new AbortController();
  const response = await send(agent, 'subscriptions/listen', { notifications: { taskIds } }, '/modern', abort.signal);
  // biome-ignore lint/suspicious/noExplicitAny: notifications of any method
  const messages: { method: string; params: any }[] = [];
  const reading = (async () => {
    let text = '';
    for await (const part of response.body!.pipeThrough(new TextDecoderStream())) {
      const lines = `${text}${part}`.split('\n');
      text = lines.pop()!;
      for (const line of lines) if (line.startsWith('data: ')) messages.push(JSON.parse(line.slice(6)));
    }
  })().catch(() => {});
  await until(() => messages.length > 0, 'it is acknowledged');
  return { messages, close: () => stop(abort, reading) };
}

describe('in sessions', () => {
  const clients: Client[] = [];
  afterAll(() => Promise.all(clients.map((client) => client.close())));
  async function connect(agent: string, route = '/legacy'): Promise<Client> {
    const client = new Client(
      { name: agent, version: '1' },
      { capabilities: { roots: {}, tasks: { list: {}, cancel: {} } } },
    );
    const requestInit = { headers: { authorization: `Bearer ${keys[agent]}` } };
    await client.connect(new StreamableHTTPClientTransport(new URL(proxy.url + route), { requestInit }) as never);
    clients.push(client);
    return client;
  }
  // biome-ignore lint/suspicious/noExplicitAny: results of any method
  const any = (client: Client, method: string, params: object = {}): Promise<any> =>
    client.request({ method, params } as never, ResultSchema);

  test('the official client has its task to the end', async () => {
    const client = await connect('alice');
    const seen: string[] = [];
    let taskId = '';
    for await (const message of client.experimental.tasks.callToolStream(
      { name: 'job', arguments: { ms: 300 } },
      CallToolResultSchema,
      { task: { ttl: 60_000 } },
    )) {
      seen.push(message.type);
      if (message.type === 'taskCreated') taskId = message.task.taskId;
      if (message.type === 'error') throw message.error;
      if (message.type === 'result') {
        const [raw] = [...(await store.listTasks()).tasks].slice(-1);
        expect(message.result).toMatchObject({ content: [{ text: `secret of ${raw!.taskId}` }] });
        expect(message.result._meta?.[RELATED]).toEqual({ taskId });
        expect(taskId).not.toBe(raw!.taskId);
      }
    }
    expect(seen[0]).toBe('taskCreated');
    expect(seen.at(-1)).toBe('result');
    const { tasks } = await client.experimental.tasks.listTasks();
    expect(tasks.map((task) => task.taskId)).toContain(taskId);
  });

  test('the official client hears why a call that it wanted as a task is refused', async () => {
    const client = await connect('alice');
    const call = { name: 'job', arguments: { ms: 200_000 } };
    for await (const message of client.experimental.tasks.callToolStream(call, CallToolResultSchema, { task: {} })) {
      expect(message).toMatchObject({
        type: 'error',
        error: { message: expect.stringContaining('Denied: no waste.') },
      });
    }
  });

  test('nobody else’s task can be named, listed, or be said to be what a request belongs to', async () => {
    const [alice, bob] = [await connect('alice'), await connect('bob')];
    const { task } = await any(alice, 'tools/call', { name: 'job', arguments: { ms: 60_000 }, task: { ttl: 60_000 } });
    const raw = store.getAllTasks().at(-1)!.taskId;
    expect((await any(alice, 'tasks/get', { taskId: task.taskId })).status).toBe('working');
    for (const method of ['tasks/get', 'tasks/result', 'tasks/cancel']) {
      for (const taskId of [raw, task.taskId, `${task.taskId}A`]) {
        await expect(any(bob, method, { taskId }), method).rejects.toMatchObject({ code: -32602 });
      }
    }
    expect((await any(bob, 'tasks/list')).tasks).toEqual([]);
    const { task: own } = await any(bob, 'tools/call', { name: 'job', arguments: { ms: 0 }, task: {} });
    expect((await any(bob, 'tasks/list')).tasks.map(({ taskId }: { taskId: string }) => taskId)).toEqual([own.taskId]);
    // the server would queue its answer for that task, and tell its owner
    const _meta = { [RELATED]: { taskId: raw } };
    await expect(any(bob, 'tools/call', { name: 'job', arguments: { ms: 1 }, _meta })).rejects.toMatchObject({
      code: -32602,
    });
    expect((await any(bob, 'tools/list', { _meta })).tools).toHaveLength(1);
    expect((await store.getTask(raw))!.status).toBe('working');
    expect((await any(alice, 'tasks/cancel', { taskId: task.taskId })).status).toBe('cancelled');
    await until(async () => (await recorded('bob', 'tasks/cancel')).length > 0, 'it is recorded');
    expect(await recorded('bob', 'tasks/cancel')).toContainEqual(['deny', 'task_of_another_agent']);
  });

  test('roots are told where the policies permit it, and both is recorded', async () => {
    for (const agent of ['alice', 'rootless']) {
      const client = await connect(agent, '/fixture');
      let asked = 0;
      client.setRequestHandler(ListRoots, () => {
        asked++;
        return { roots: [{ uri: 'file:///home' }] };
      });
      const answer = await any(client, 'tools/call', {
        name: 'test_input_required_result_list_roots',
        arguments: {},
      }).catch((error) => error);
      const said = JSON.stringify(answer.content ?? answer.message);
      expect(said).toContain(agent === 'alice' ? 'file:///home' : 'Denied');
      expect(asked).toBe(agent === 'alice' ? 1 : 0);
      const decision = agent === 'alice' ? 'allow' : 'deny';
      await until(
        async () => (await recorded(agent, 'roots/list')).some(([one]) => one === decision),
        'it is recorded',
      );
    }
  });
});

const ListRoots = z.object({ method: z.literal('roots/list') });

test.each(['alice', 'rootless'])('without sessions roots are told as the policies say: %s', async (agent) => {
  const call = { name: 'test_input_required_result_list_roots', arguments: {} };
  const { result, error } = await ask(agent, 'tools/call', call, '/fixture');
  if (agent === 'rootless') {
    expect(error).toMatchObject({ code: -31403 });
    return;
  }
  const { inputRequests, requestState } = result;
  const [name] = Object.keys(inputRequests);
  expect(inputRequests[name!].method).toBe('roots/list');
  const inputResponses = { [name!]: { roots: [{ uri: 'file:///work' }] } };
  const answer = await ask(agent, 'tools/call', { ...call, inputResponses, requestState }, '/fixture');
  expect(JSON.stringify(answer)).toContain('file:///work');
});
