import { type ChildProcess, spawn } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { Client as LegacyClient } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport as LegacyHttp } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { ElicitRequestSchema } from '@modelcontextprotocol/sdk/types.js';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { freePort } from '../helpers/ports.ts';
import { useServer } from '../helpers/server.ts';
import { until } from '../helpers/until.ts';
import { type Governed, governed, ProxyProcess, temporaryDirectory } from './support.ts';

/** How clients of the revision without sessions wait for a hold: as for a task, and by the page of the hold. */

const POLICY = `
@id("all") permit(principal in AgentRole::"clerk", action, resource in ToolServer::"fixture");
@id("transfer") @escrow("single") forbid(principal, action, resource == Tool::"transfer");
@id("add") @escrow("single") forbid(principal, action, resource == Tool::"add");
`;
const MODERN = '2026-07-28';
const server = useServer({ SVC_POLL_SECONDS: '1' }, { shared: true });
const effects = path.join(temporaryDirectory(), 'effects.txt');
const lines = () => (existsSync(effects) ? readFileSync(effects, 'utf8').trim().split('\n') : []);
let world: Governed;
let proxy: ProxyProcess;
let child: ChildProcess;

beforeAll(async () => {
  world = await governed(server, { fixture: POLICY });
  const port = await freePort();
  child = spawn(process.execPath, ['test/proxy/mcp-server.ts', String(port), 'modern', effects], { stdio: 'ignore' });
  const mcp = `http://127.0.0.1:${port}/mcp`;
  await until(async () => (await fetch(mcp).catch(() => undefined)) !== undefined, 'the server listens');
  const routes = ['/mcp', '/other'].map((at) => ({ path: at, mcp, server: at === '/mcp' ? 'fixture' : 'other' }));
  proxy = await new ProxyProcess(routes, world.env).start();
  await proxy.ready();
});
afterAll(() => {
  child.kill('SIGKILL');
});

let next = 0;
async function ask(method: string, params: Record<string, unknown>, more: { key?: string; route?: string } = {}) {
  const capabilities = { elicitation: {}, extensions: { 'io.modelcontextprotocol/tasks': {} } };
  const _meta = {
    'io.modelcontextprotocol/protocolVersion': MODERN,
    'io.modelcontextprotocol/clientCapabilities': capabilities,
  };
  const name = params.taskId ?? params.name;
  const response = await fetch(proxy.url + (more.route ?? '/mcp'), {
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
const call = async (name: string, args: object) => (await ask('tools/call', { name, arguments: args })).result;
const get = async (taskId: string) => (await ask('tasks/get', { taskId })).result;
const vote = async (hold: string, decision: string) =>
  server.call(200, `POST /v1/escrow/${hold}/vote`, await world.tenant.person('approver'), { decision, reason: 'seen' });
const holdOf = (taskId: string) => taskId.split('.')[0]!;

test('a held call is a task, which ends with the answer of the tool, called once', async () => {
  const discovered = await ask('server/discover', {});
  expect(discovered.result.capabilities.extensions).toHaveProperty(['io.modelcontextprotocol/tasks']);
  const task = await call('add', { a: 20, b: 22 });
  expect(task).toMatchObject({
    resultType: 'task',
    status: 'working',
    statusMessage: expect.stringContaining('0 of 1'),
  });
  const { taskId } = task;
  // the same call again waits for the same hold, and is no second approval
  const { taskId: twin } = await call('add', { a: 20, b: 22 });
  expect(holdOf(twin)).toBe(holdOf(taskId));
  expect(taskId).toMatch(/^esc_\w+\./);
  expect(await get(taskId)).toMatchObject({ resultType: 'complete', status: 'working' });
  await vote(holdOf(taskId), 'approve');
  const polls = await Promise.all([get(taskId), get(taskId), get(taskId)]);
  for (const poll of polls) expect(poll).toMatchObject({ status: 'completed', result: { content: [{ text: '42' }] } });
  expect(polls[0].result._meta['svc/decision']).toMatchObject({ decision: 'allow' });
  expect((await server.call(200, `GET /v1/escrow/${holdOf(taskId)}`, world.tenant.admin)).body.status).toBe('consumed');
  expect(await get(twin)).toMatchObject({ status: 'failed', error: { message: expect.stringContaining('consumed') } });
  expect(await get(taskId)).toMatchObject({ status: 'completed' });
});

test('a task whose tool wants input asks for it, and acts once', async () => {
  const { taskId } = await call('transfer', { to: 'bob' });
  await vote(holdOf(taskId), 'approve');
  const wants = await get(taskId);
  expect(wants).toMatchObject({
    status: 'input_required',
    inputRequests: { purpose: { method: 'elicitation/create' } },
  });
  expect(lines()).toEqual([]);
  const inputResponses = { purpose: { action: 'accept', content: { purpose: 'rent' } } };
  expect((await ask('tasks/update', { taskId, inputResponses })).result).toMatchObject({ resultType: 'complete' });
  // what the tool is told is part of what is approved
  const waits = await get(taskId);
  expect(waits).toMatchObject({ status: 'working', statusMessage: expect.stringContaining('0 of 1') });
  const later = /esc_\w+/.exec(waits.statusMessage)![0];
  expect(later).not.toBe(holdOf(taskId));
  expect(lines()).toEqual([]);
  await vote(later, 'approve');
  expect(await get(taskId)).toMatchObject({
    status: 'completed',
    result: { content: [{ text: 'sent to bob for rent' }] },
  });
  await ask('tasks/update', { taskId, inputResponses });
  expect(lines()).toEqual(['transfer bob for rent']);
});

test('a task is rejected or cancelled with its hold, and cancels it', async () => {
  const rejected = (await call('add', { a: 1, b: 1 })).taskId;
  await vote(holdOf(rejected), 'reject');
  expect(await get(rejected)).toMatchObject({
    status: 'failed',
    error: { code: -31410, data: { 'svc/decision': { escrow_status: 'rejected' } } },
  });
  const cancelled = (await call('add', { a: 1, b: 2 })).taskId;
  expect((await ask('tasks/cancel', { taskId: cancelled })).result).toEqual({ resultType: 'complete' });
  expect(await get(cancelled)).toMatchObject({ status: 'cancelled' });
  const { body } = await server.call(200, `GET /v1/escrow/${holdOf(cancelled)}`, world.tenant.admin);
  expect(body.status).toBe('cancelled');
});

test('a task is nobody else’s, and no other server’s', async () => {
  const { taskId } = await call('add', { a: 2, b: 2 });
  const stranger = (await world.tenant.agent('stranger', 'clerk')).key!;
  const none = { error: { code: -32602, message: 'there is no such task' } };
  for (const method of ['tasks/get', 'tasks/update', 'tasks/cancel']) {
    expect(await ask(method, { taskId }, { key: stranger })).toMatchObject(none);
    expect(await ask(method, { taskId }, { route: '/other' })).toMatchObject(none);
    expect(await ask(method, { taskId: `${taskId.slice(0, -8)}AAAAAAAA` })).toMatchObject(none);
    // another hold's name before the same seal
    expect(await ask(method, { taskId: `esc_other.${taskId.split('.')[1]}` })).toMatchObject(none);
  }
  expect((await server.call(200, `GET /v1/escrow/${holdOf(taskId)}`, world.tenant.admin)).body.status).toBe('held');
});

test('a task goes on after the proxy was restarted, and one that was begun before has failed', async () => {
  const waiting = (await call('add', { a: 3, b: 3 })).taskId;
  const begun = (await call('transfer', { to: 'eve' })).taskId;
  await vote(holdOf(begun), 'approve');
  expect(await get(begun)).toMatchObject({ status: 'input_required' });
  await proxy.kill();
  await proxy.start();
  await proxy.ready();
  expect(await get(begun)).toMatchObject({
    status: 'failed',
    error: { message: expect.stringContaining('before this one') },
  });
  expect(lines().filter((line) => line.includes('eve'))).toEqual([]);
  await vote(holdOf(waiting), 'approve');
  expect(await get(waiting)).toMatchObject({ status: 'completed', result: { content: [{ text: '6' }] } });
});

test('the official client shows the page of the hold, and gets the answer when it is approved', async () => {
  const client = new Client(
    { name: 'test', version: '1' },
    { capabilities: { elicitation: { url: {}, form: {} } }, versionNegotiation: { mode: { pin: MODERN } } },
  );
  const pages: string[] = [];
  client.setRequestHandler('elicitation/create', async ({ params }) => {
    if (params.mode !== 'url') return { action: 'accept', content: { purpose: 'gift' } };
    pages.push(params.url);
    expect(params.message).toContain('waits for approval');
    const hold = new URL(params.url).pathname.split('/').at(-1)!;
    setTimeout(() => void vote(hold, 'approve'), 500);
    return { action: 'accept' };
  });
  const options = { requestInit: { headers: { authorization: `Bearer ${world.agentKey}` } } };
  await client.connect(new StreamableHTTPClientTransport(new URL(`${proxy.url}/mcp`), options));
  try {
    const answer = await client.callTool({ name: 'transfer', arguments: { to: 'ann' } });
    expect(answer).toMatchObject({ content: [{ text: 'sent to ann for gift' }] });
    // the call, and then the call with the input that the tool wants
    const page = expect.stringMatching(/^http:\/\/.*\/approvals\/esc_\w+\?tenant=[\w-]+$/);
    expect(pages).toEqual([page, page]);
    expect(pages[0]).not.toBe(pages[1]);
    expect(lines().filter((line) => line.includes('ann'))).toEqual(['transfer ann for gift']);
  } finally {
    await client.close();
  }
});

async function inSession(asked: (params: { mode?: string; url?: string }) => string): Promise<LegacyClient> {
  const client = new LegacyClient(
    { name: 'test', version: '1' },
    { capabilities: { elicitation: { url: {}, form: {} } } },
  );
  client.setRequestHandler(ElicitRequestSchema, async ({ params }) => {
    const action = asked(params as { mode?: string; url?: string }) as 'accept';
    return { action, ...(params.mode !== 'url' && { content: { purpose: 'gift' } }) };
  });
  const options = { requestInit: { headers: { authorization: `Bearer ${world.agentKey}` } } };
  await client.connect(new LegacyHttp(new URL(`${proxy.url}/mcp`), options) as never);
  return client;
}

test('the official client of the revision before shows the page in its session, and the call goes on', async () => {
  const pages: string[] = [];
  const client = await inSession(({ mode, url }) => {
    if (mode !== 'url') return 'accept';
    pages.push(url!);
    setTimeout(() => void vote(new URL(url!).pathname.split('/').at(-1)!, 'approve'), 500);
    return 'accept';
  });
  // one whose person accepts and does not approve, and one whose person declines
  const eager = await inSession(({ mode }) => (mode === 'url' ? 'accept' : 'cancel'));
  const shy = await inSession(() => 'decline');
  try {
    const never = eager.callTool({ name: 'transfer', arguments: { to: 'mia' } }).catch(() => undefined);
    expect(await shy.callTool({ name: 'transfer', arguments: { to: 'ida' } })).toMatchObject({
      isError: true,
      _meta: { 'svc/decision': { decision: 'escrow' } },
    });
    const answer = await client.callTool({ name: 'transfer', arguments: { to: 'ben' } });
    expect(answer).toMatchObject({ content: [{ text: 'sent to ben for gift' }] });
    expect(pages).toEqual([expect.stringMatching(/^http:\/\/.*\/approvals\/esc_\w+\?tenant=[\w-]+$/)]);
    await eager.close();
    await never;
    const effects = lines().filter((line) => /ben|mia|ida/.test(line));
    expect(effects).toEqual(['transfer ben for gift']);
  } finally {
    for (const one of [client, eager, shy]) await one.close();
  }
});

test('a client whose person declines gets the hold, as a client that knows no way to wait', async () => {
  const client = new Client(
    { name: 'test', version: '1' },
    { capabilities: { elicitation: { url: {} } }, versionNegotiation: { mode: { pin: MODERN } } },
  );
  client.setRequestHandler('elicitation/create', async () => ({ action: 'decline' }));
  const options = { requestInit: { headers: { authorization: `Bearer ${world.agentKey}` } } };
  await client.connect(new StreamableHTTPClientTransport(new URL(`${proxy.url}/mcp`), options));
  try {
    const answer = await client.callTool({ name: 'transfer', arguments: { to: 'zoe' } });
    expect(answer).toMatchObject({ isError: true, _meta: { 'svc/decision': { decision: 'escrow' } } });
  } finally {
    await client.close();
  }
});
