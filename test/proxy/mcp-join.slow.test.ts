import { type ChildProcess, spawn } from 'node:child_process';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { Client as ModernClient, StreamableHTTPClientTransport as ModernHttp } from '@modelcontextprotocol/client';
import { StdioClientTransport as ModernStdio } from '@modelcontextprotocol/client/stdio';
import { Client as LegacyClient } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport as LegacyHttp } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { ElicitRequestSchema } from '@modelcontextprotocol/sdk/types.js';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { freePort } from '../helpers/ports.ts';
import { useServer } from '../helpers/server.ts';
import { until } from '../helpers/until.ts';
import { decisions, enforce, type Governed, governed, ProxyProcess, temporaryDirectory } from './support.ts';

/** Several servers as one, on a route and on standard input and output, for clients of both eras. */

const MODERN = '2026-07-28';
const server = useServer({ SVC_POLL_SECONDS: '1' }, { shared: true });
const dir = temporaryDirectory();
const children: ChildProcess[] = [];
const closing: (() => Promise<void>)[] = [];
const effects = (era: string) => path.join(dir, `${era}.txt`);
const lines = (era: string) => (existsSync(effects(era)) ? readFileSync(effects(era), 'utf8').trim().split('\n') : []);
let world: Governed;
let proxy: ProxyProcess;

beforeAll(async () => {
  world = await governed(server, {
    new: `permit(principal in AgentRole::"clerk", action, resource in ToolServer::"new");
      @escrow("single") forbid(principal, action, resource == Tool::"add") when { resource in ToolServer::"new" };
      @reason("private") forbid(principal, action, resource == Tool::"env") when { resource in ToolServer::"new" };`,
    old: `permit(principal in AgentRole::"clerk", action, resource in ToolServer::"old");`,
    away: `permit(principal in AgentRole::"clerk", action, resource in ToolServer::"away");`,
  });
  const routes: Record<string, unknown>[] = [{ path: '/all', join: { new: '/new', old: '/old', away: '/away' } }];
  for (const [name, era] of [
    ['new', 'modern'],
    ['old', 'legacy'],
  ] as const) {
    const port = await freePort();
    const args = ['test/proxy/mcp-server.ts', String(port), era, effects(name)];
    children.push(spawn(process.execPath, args, { stdio: 'ignore' }));
    const mcp = `http://127.0.0.1:${port}/mcp`;
    await until(async () => (await fetch(mcp).catch(() => undefined)) !== undefined, 'the server listens');
    routes.push({ path: `/${name}`, mcp, server: name });
  }
  routes.push({ path: '/away', mcp: `http://127.0.0.1:${await freePort()}/mcp`, server: 'away' });
  proxy = await new ProxyProcess(routes, world.env).start();
  await proxy.ready();
});
afterAll(async () => {
  for (const close of closing) await close();
  for (const child of children) child.kill('SIGKILL');
});

const http = () => ({ requestInit: { headers: { authorization: `Bearer ${world.agentKey}` } } });
const url = (route = '/all') => new URL(proxy.url + route);
const answer = { action: 'accept' as const, content: { purpose: 'rent' } };

async function modern(transport: 'http' | 'stdio'): Promise<ModernClient> {
  const client = new ModernClient(
    { name: 'modern', version: '1' },
    { capabilities: { elicitation: {} }, versionNegotiation: { mode: { pin: MODERN } } },
  );
  client.setRequestHandler('elicitation/create', async () => answer);
  const file = path.join(dir, 'servers.json');
  const started = (era: string, name: string) => ({
    command: process.execPath,
    args: ['test/proxy/mcp-server.ts', 'stdio', era, effects(name)],
  });
  const away = { command: path.join(dir, 'not-there') };
  const servers = { new: started('modern', 'new'), old: started('legacy', 'old'), away };
  writeFileSync(file, JSON.stringify({ servers }));
  const env = {
    ...world.env,
    SVC_AGENT_KEY: world.agentKey,
    SVC_PROXY_DIR: path.join(dir, 'state'),
    PATH: process.env.PATH!,
    NODE_COMPILE_CACHE: process.env.NODE_COMPILE_CACHE ?? '',
  };
  const args = ['server/proxy/main.ts', 'mcp', '--config', file];
  const stdio = { command: process.execPath, args, env, stderr: 'ignore' as const };
  await client.connect(transport === 'http' ? new ModernHttp(url(), http()) : new ModernStdio(stdio));
  closing.push(() => client.close());
  return client;
}

async function legacy(): Promise<LegacyClient> {
  const client = new LegacyClient({ name: 'legacy', version: '1' }, { capabilities: { elicitation: {} } });
  client.setRequestHandler(ElicitRequestSchema, async () => answer);
  await client.connect(new LegacyHttp(url(), http()) as never);
  closing.push(() => client.close());
  return client;
}

interface AnyClient {
  listTools(): Promise<{ tools: { name: string }[] }>;
  callTool(call: { name: string; arguments: Record<string, unknown> }): Promise<unknown>;
  readResource(which: { uri: string }): Promise<{ contents: { uri: string }[] }>;
  getPrompt(which: { name: string }): Promise<unknown>;
}

describe.each([
  ['a client without sessions, over HTTP', () => modern('http')],
  ['a client without sessions, over standard input and output', () => modern('stdio')],
  ['a client with a session, over HTTP', legacy],
])('%s', (_, connect) => {
  test('has one list, calls each tool at its server, and answers what both eras of servers ask', async () => {
    const client = (await connect()) as AnyClient;
    const names = await until(async () => {
      const listed = (await client.listTools()).tools.map(({ name }) => name);
      return ['new__', 'old__'].every((start) => listed.some((name) => name.startsWith(start))) && listed;
    }, 'each has started, however slowly');
    expect(names).toEqual(expect.arrayContaining(['new__add', 'old__add', 'new__transfer', 'old__env']));
    expect(names).not.toContain('new__env');
    expect(names.filter((name) => name.startsWith('away'))).toEqual([]);
    expect(await client.callTool({ name: 'old__add', arguments: { a: 1, b: 2 } })).toMatchObject({
      content: [{ text: '3' }],
      _meta: { 'svc/decision': { decision: 'allow' } },
    });
    expect(await client.callTool({ name: 'new__env', arguments: {} })).toMatchObject({
      isError: true,
      content: [{ text: 'Denied: private.' }],
    });
    for (const name of ['new', 'old']) {
      const before = lines(name).length;
      const to = `${name} ${Math.random()}`;
      const paid = await client.callTool({ name: `${name}__transfer`, arguments: { to } });
      expect(paid).toMatchObject({ content: [{ text: `sent to ${to} for rent` }] });
      expect(lines(name).slice(before)).toEqual([`transfer ${to} for rent`]);
    }
    const uri = 'old+test://static-text';
    expect((await client.readResource({ uri })).contents).toMatchObject([{ uri }]);
    expect(await client.getPrompt({ name: 'new__test_simple_prompt' })).toMatchObject({ messages: [{}] });
    await expect(client.callTool({ name: 'away__add', arguments: {} })).rejects.toThrow('away is away');
    await expect(client.callTool({ name: 'nobody__add', arguments: {} })).rejects.toThrow('no server has this name');
    const { body } = await server.call<{ events: { tool_name: string }[] }>(200, 'GET /v1/events', world.tenant.admin);
    expect(body.events.filter(({ tool_name }) => tool_name.includes('__'))).toEqual([]);
  });
});

test('one listens to all servers at once, and is told about its own policies once', async () => {
  const client = await modern('http');
  let changes = 0;
  client.setNotificationHandler('notifications/tools/list_changed', () => {
    changes++;
  });
  const subscription = await client.listen({
    toolsListChanged: true,
    resourceSubscriptions: ['new+test://watched-resource', 'old+test://watched-resource', 'none+test://1'],
  });
  expect(subscription.honoredFilter).toMatchObject({ toolsListChanged: true });
  expect([...(subscription.honoredFilter.resourceSubscriptions ?? [])].toSorted()).toEqual([
    'new+test://watched-resource',
    'old+test://watched-resource',
  ]);
  await client.callTool({ name: 'new__test_trigger_tool_change', arguments: {} });
  await until(() => changes > 0, 'the tool change is told');
  const before = changes;
  await enforce(server, world.tenant, 'more', 'forbid(principal, action, resource == Tool::"big");');
  await until(() => changes > before, 'the policies have changed');
});

let next = 0;
async function ask(method: string, params: Record<string, unknown>, more: { key?: string; name?: string } = {}) {
  const _meta = {
    'io.modelcontextprotocol/protocolVersion': MODERN,
    'io.modelcontextprotocol/clientCapabilities': {
      elicitation: {},
      extensions: { 'io.modelcontextprotocol/tasks': {} },
    },
  };
  const name = more.name ?? params.taskId ?? params.name;
  const response = await fetch(url(), {
    method: 'POST',
    headers: {
      authorization: `Bearer ${more.key ?? world.agentKey}`,
      'content-type': 'application/json',
      accept: 'application/json, text/event-stream',
      'mcp-protocol-version': MODERN,
      'mcp-method': method,
      ...(name !== undefined && { 'mcp-name': String(name) }),
    },
    body: JSON.stringify({ jsonrpc: '2.0', id: ++next, method, params: { ...params, _meta } }),
  });
  // biome-ignore lint/suspicious/noExplicitAny: answers of any method
  return (await response.json()) as { result?: any; error?: any };
}

test('a held call is a task of its server, of its agent alone', async () => {
  const discovered = (await ask('server/discover', {})).result;
  expect(discovered).toMatchObject({ supportedVersions: expect.arrayContaining([MODERN]) });
  expect(discovered.capabilities.extensions).toHaveProperty(['io.modelcontextprotocol/tasks']);
  const { taskId } = (await ask('tools/call', { name: 'new__add', arguments: { a: 40, b: 2 } })).result;
  expect(taskId).toMatch(/^new__esc_\w+\./);
  const none = { error: { code: -32602, message: 'there is no such task' } };
  const stranger = (await world.tenant.agent('stranger', 'clerk')).key!;
  expect(await ask('tasks/get', { taskId }, { key: stranger })).toMatchObject(none);
  for (const wrong of [taskId.slice(5), taskId.replace('new__', 'old__'), taskId.replace('new__', 'nobody__')]) {
    expect(await ask('tasks/get', { taskId: wrong })).toMatchObject(none);
  }
  const hold = /esc_\w+/.exec(taskId)![0];
  await server.call(200, `POST /v1/escrow/${hold}/vote`, await world.tenant.person('approver'), {
    decision: 'approve',
  });
  expect((await ask('tasks/get', { taskId })).result).toMatchObject({
    taskId,
    status: 'completed',
    result: { content: [{ text: '42' }] },
  });
});

test('a round of one server is continued at no other, and a header that lies is refused and recorded', async () => {
  const call = { name: 'old__transfer', arguments: { to: 'eve' } };
  const { requestState, inputRequests } = (await ask('tools/call', call)).result;
  const inputResponses = Object.fromEntries(Object.keys(inputRequests).map((name) => [name, answer]));
  const elsewhere = { ...call, name: 'new__transfer', requestState, inputResponses };
  expect(await ask('tools/call', elsewhere)).toMatchObject({
    error: { data: { reason: 'request_state_of_another_call' } },
  });
  expect(lines('new').join()).not.toContain('eve');
  expect(await ask('tools/call', { name: 'new__env', arguments: {} }, { name: 'new__add' })).toMatchObject({
    error: { code: -32020 },
  });
  expect(await ask('tools/list', {}, { name: 'x' })).toHaveProperty('result');
  await until(
    async () => (await decisions(server, world.tenant)).some(({ deny_reason }) => deny_reason === 'header_mismatch'),
    'it is recorded',
  );
});
