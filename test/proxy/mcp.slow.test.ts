import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { request } from 'node:http';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import type { Transport } from '@modelcontextprotocol/sdk/shared/transport.js';
import { CreateMessageRequestSchema } from '@modelcontextprotocol/sdk/types.js';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { atEnd } from '../helpers/cleanups.ts';
import { freePort } from '../helpers/ports.ts';
import { useServer } from '../helpers/server.ts';
import { until } from '../helpers/until.ts';
import { decisions, enforce, type Governed, governed, ProxyProcess, temporaryDirectory } from './support.ts';

const bin = (name: string) => path.resolve('node_modules/.bin', name);

const FILES = `
@id("read") permit(principal in AgentRole::"clerk", action == Action::"tool_call", resource in ToolServer::"files")
  unless { resource == Tool::"write_file" };
@id("write") @escrow("multi_party") @approvals("2") @reason("writing needs two people")
permit(principal in AgentRole::"clerk", action == Action::"tool_call", resource == Tool::"write_file");
@id("no-move") @reason("files are not moved") forbid(principal, action, resource == Tool::"move_file");
@id("no-secrets") @reason("secrets are not read")
forbid(principal, action, resource in ToolServer::"files") when { context.str.hasTag("path") && context.str.getTag("path") like "*secret*" };
`;
const EVERYTHING = `
@id("all") permit(principal in AgentRole::"clerk", action, resource in ToolServer::"everything");
@id("weather") @mask("$.temperature") forbid(principal, action, resource == Tool::"get-structured-content");
@id("echo") @mask("$.message") forbid(principal, action, resource == Tool::"echo");
@id("image") @rate("1/h") forbid(principal, action, resource == Tool::"get-tiny-image");
@id("much") @escrow("single") forbid(principal, action, resource == Tool::"get-sum")
  when { context has amount && context.amount.greaterThan(decimal("100.0")) };
@id("no-env") forbid(principal, action, resource == Tool::"get-env");
`;

const server = useServer({ SVC_POLL_SECONDS: '1' }, { shared: true });
let world: Governed;
const clients: Client[] = [];

beforeAll(async () => {
  world = await governed(server, { files: FILES, everything: EVERYTHING });
});
afterAll(async () => {
  for (const client of clients) await client.close();
});

async function connect(transport: Transport, capabilities = {}): Promise<Client> {
  const client = new Client({ name: 'test', version: '1' }, { capabilities });
  await client.connect(transport);
  clients.push(client);
  return client;
}

function wrapped(
  dir: string,
  name: string,
  command: string[],
  options: string[] = [],
  key = world.agentKey,
): Promise<Client> {
  const env = {
    ...world.env,
    SVC_AGENT_KEY: key,
    SVC_PROXY_DIR: path.join(dir, 'state'),
    PATH: process.env.PATH!,
    NODE_COMPILE_CACHE: process.env.NODE_COMPILE_CACHE ?? '',
  };
  const args = ['server/proxy/main.ts', 'mcp', '--name', name, ...options, '--', ...command];
  return connect(new StdioClientTransport({ command: process.execPath, args, env, stderr: 'ignore' }));
}

interface Result {
  content: { type: string; text: string }[];
  isError?: boolean;
  structuredContent?: Record<string, unknown>;
  _meta?: { 'svc/decision'?: Record<string, unknown> };
}
async function call(
  client: Client,
  name: string,
  args: Record<string, unknown>,
  meta?: Record<string, unknown>,
): Promise<Result> {
  return (await client.callTool({ name, arguments: args, ...(meta && { _meta: meta }) })) as unknown as Result;
}

async function approve(id: string): Promise<void> {
  await server.call(200, `POST /v1/escrow/${id}/vote`, await world.tenant.person('approver'), { decision: 'approve' });
}

describe('a tool server behind `svc-proxy mcp`', () => {
  const dir = temporaryDirectory();
  const home = path.join(dir, 'files');
  let client: Client;
  beforeAll(async () => {
    mkdirSync(home);
    writeFileSync(path.join(home, 'a.txt'), 'hello');
    client = await wrapped(dir, 'files', [bin('mcp-server-filesystem'), home]);
  });

  test('answers what is allowed, with its decision beside, and the record is there', async () => {
    const read = await call(client, 'read_text_file', { path: path.join(home, 'a.txt') });
    expect(read.content[0]!.text).toBe('hello');
    expect(read._meta?.['svc/decision']).toMatchObject({ decision: 'allow', event_id: expect.stringMatching(/^evt_/) });
    const id = read._meta!['svc/decision']!.event_id;
    await until(
      async () => (await decisions(server, world.tenant)).some((event) => event.id === id),
      'the record is there',
    );
    const { body } = await server.call(200, `GET /v1/events/${id}`, world.tenant.admin);
    expect(body).toMatchObject({
      tool_name: 'read_text_file',
      tool_server: 'files',
      agent_id: 'bot-1',
      outcome: 'ok',
      rule_id: 'files#read',
    });
  });

  test('does not show what is denied whatever the arguments, and shows what depends on them', async () => {
    const { tools } = await client.listTools();
    const names = tools.map(({ name }) => name);
    expect(names).toContain('read_text_file');
    expect(names).toContain('write_file');
    expect(names).not.toContain('move_file');
    const denied = await call(client, 'move_file', {
      source: path.join(home, 'a.txt'),
      destination: path.join(home, 'b.txt'),
    });
    expect(denied).toMatchObject({ isError: true, content: [{ text: 'Denied: files are not moved.' }] });
    const secret = await call(client, 'read_text_file', { path: path.join(home, 'secret.txt') });
    expect(secret.content[0]!.text).toBe('Denied: secrets are not read.');
    expect(readFileSync(path.join(home, 'a.txt'), 'utf8')).toBe('hello');
  });

  test('runs a held call once, after two approvals, when the very same call comes again', async () => {
    const file = path.join(home, 'new.txt');
    const args = { path: file, content: 'first' };
    const held = await call(client, 'write_file', args);
    const meta = held._meta!['svc/decision']!;
    expect(held.isError).toBe(true);
    expect(held.content[0]!.text).toContain('call the same tool again with exactly the same arguments');
    expect(meta).toMatchObject({ decision: 'escrow', escrow_status: 'held', required_approvals: 2 });
    const id = meta.escrow_id as string;
    await approve(id);
    expect((await call(client, 'write_file', args))._meta!['svc/decision']).toMatchObject({
      escrow_id: id,
      current_approvals: 1,
    });
    await approve(id);
    expect(
      (await call(client, 'write_file', { ...args, content: 'other' }))._meta!['svc/decision']!.escrow_id,
    ).not.toBe(id);
    expect(() => readFileSync(file)).toThrow('ENOENT');

    const both = await Promise.all([call(client, 'write_file', args), call(client, 'write_file', args)]);
    expect(both.filter(({ isError }) => !isError)).toHaveLength(1);
    expect(readFileSync(file, 'utf8')).toBe('first');
    expect((await server.call(200, `GET /v1/escrow/${id}`, world.tenant.admin)).body.status).toBe('consumed');
    expect((await call(client, 'write_file', args))._meta!['svc/decision']!.escrow_id).not.toBe(id);
    const spent = await call(client, 'write_file', args, { 'svc/escrow-id': id });
    expect(spent._meta!['svc/decision']).toMatchObject({ code: 'ALREADY_CONSUMED' });
  });

  test('waits for the release as long as it was told to, and says that it waits', async () => {
    const waiting = await wrapped(dir, 'files', [bin('mcp-server-filesystem'), home], ['--wait', '600']);
    const file = path.join(home, 'waited.txt');
    const progress: string[] = [];
    const answer = waiting.callTool({ name: 'write_file', arguments: { path: file, content: 'x' } }, undefined, {
      onprogress: ({ message }) => progress.push(message ?? ''),
    });
    const id = await until(async () => {
      const { body } = await server.call<{ holds: { id: string; arguments_preview: { path: string } }[] }>(
        200,
        'GET /v1/escrow?status=held',
        world.tenant.admin,
      );
      return body.holds.find(({ arguments_preview }) => arguments_preview.path === file)?.id;
    }, 'it is held');
    await approve(id);
    await until(() => progress.includes('waiting for approval (1 of 2)'), 'progress');
    await approve(id);
    expect(await answer).not.toHaveProperty('isError');
    expect(readFileSync(file, 'utf8')).toBe('x');
  });

  test('does not run what was approved when its agent was revoked while it waited', async () => {
    const { body: made } = await server.call<{ id: string; key: string }>(
      201,
      'POST /v1/agent-keys',
      world.tenant.admin,
      { agent_id: 'bot-5', agent_role: 'clerk' },
    );
    const options = ['--wait', '600'];
    const waiting = await wrapped(
      path.join(dir, 'revoked'),
      'files',
      [bin('mcp-server-filesystem'), home],
      options,
      made.key,
    );
    const file = path.join(home, 'revoked.txt');
    const answer = call(waiting, 'write_file', { path: file, content: 'x' });
    const id = await until(async () => {
      const { body } = await server.call<{ holds: { id: string; agent_id: string }[] }>(
        200,
        'GET /v1/escrow?status=held',
        world.tenant.admin,
      );
      return body.holds.find(({ agent_id }) => agent_id === 'bot-5')?.id;
    }, 'it is held');
    await server.call(204, `DELETE /v1/agent-keys/${made.id}`, world.tenant.admin);
    await until(async () => {
      const next = await call(waiting, 'read_text_file', { path: path.join(home, 'a.txt') });
      return next._meta?.['svc/decision']?.code === 'UNAUTHENTICATED';
    }, 'the proxy knows of it');
    await approve(id);
    await approve(id);
    expect(await answer).toMatchObject({ isError: true, _meta: { 'svc/decision': { code: 'UNAUTHENTICATED' } } });
    expect(() => readFileSync(file)).toThrow();
  });

  test('is told when the policies change, and each call is decided by those in force', async () => {
    const { ToolListChangedNotificationSchema } = await import('@modelcontextprotocol/sdk/types.js');
    let told = 0;
    client.setNotificationHandler(ToolListChangedNotificationSchema, () => {
      told++;
    });
    await enforce(
      server,
      world.tenant,
      'no-trees',
      '@reason("no trees") forbid(principal, action, resource == Tool::"directory_tree");',
    );
    await until(() => told > 0, 'the list has changed');
    expect((await client.listTools()).tools.map(({ name }) => name)).not.toContain('directory_tree');
    expect((await call(client, 'directory_tree', { path: home })).content[0]!.text).toBe('Denied: no trees.');
  });

  test('does not get the keys in its environment', async () => {
    const everything = await wrapped(dir, 'everything', [bin('mcp-server-everything'), 'stdio']);
    await enforce(server, world.tenant, 'env', 'permit(principal, action, resource == Tool::"get-env");');
    await server.call(200, 'PUT /v1/policies/everything', world.tenant.admin, {
      dsl_source: EVERYTHING.replace(/@id\("no-env"\).*\n/, ''),
    });
    const environment = await until(async () => {
      const answer = await call(everything, 'get-env', {});
      return !answer.isError && answer.content[0]!.text;
    }, 'the tool is allowed');
    expect(environment).toContain('PATH');
    expect(environment).not.toContain('SVC_');
    expect(environment).not.toContain(world.agentKey);
  });

  test.runIf(process.platform === 'linux')(
    'reads keys in the environment of the proxy, which says so, and none that are in files',
    async () => {
      const own = temporaryDirectory();
      const keys = { SVC_PROXY_KEY: world.proxyKey, SVC_AGENT_KEY: world.agentKey };
      const files = Object.entries(keys).map(([name, key]) => {
        writeFileSync(path.join(own, name), key, { mode: 0o600 });
        return [`${name}_FILE`, path.join(own, name)];
      });
      const { SVC_PROXY_KEY: _, ...env } = world.env;
      for (const [given, warned] of [
        [keys, true],
        [Object.fromEntries(files), false],
      ] as const) {
        const seen = path.join(own, `seen-${warned}`);
        const script = `tr '\\0' '\\n' < /proc/$PPID/environ > ${seen}.part; mv ${seen}.part ${seen}`;
        const child = spawn(process.execPath, ['server/proxy/main.ts', 'mcp', '--name=x', '--', 'sh', '-c', script], {
          env: { ...env, ...given, SVC_PROXY_DIR: path.join(own, 'state'), PATH: process.env.PATH! },
          stdio: ['pipe', 'ignore', 'pipe'],
        });
        atEnd(() => void child.kill('SIGKILL'));
        let said = '';
        child.stderr.on('data', (data) => {
          said += data;
        });
        const params = { protocolVersion: '2025-11-25', capabilities: {}, clientInfo: { name: 'x', version: '1' } };
        child.stdin.write(`${JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'initialize', params })}\n`);
        await until(() => existsSync(seen), 'the server has read the environment');
        child.kill('SIGKILL');
        const read = readFileSync(seen, 'utf8');
        expect(read).toContain('SVC_PROXY_DIR');
        expect([read.includes(world.proxyKey), read.includes(world.agentKey)]).toEqual([warned, warned]);
        const warnings = said.split('\n').filter((line) => line.includes('a wrapped server can read'));
        expect(warnings).toHaveLength(warned ? 1 : 0);
        expect(said).not.toContain(world.agentKey);
      }
    },
  );

  test('masks arguments and answers, and withholds what it cannot mask; tells what a call is worth', async () => {
    const value = ['--value', 'a', '--currency', 'EUR'];
    const everything = await wrapped(dir, 'everything', [bin('mcp-server-everything'), 'stdio'], value);
    expect(await call(everything, 'get-sum', { a: 100, b: 3 })).not.toHaveProperty('isError');
    const held = (await call(everything, 'get-sum', { a: 101, b: 3 }))._meta!['svc/decision']!;
    const hold = await server.call(200, `GET /v1/escrow/${held.escrow_id}`, world.tenant.admin);
    expect(hold.body).toMatchObject({ estimated_value: 101, value_currency: 'EUR' });
    const unread = await call(everything, 'get-sum', { a: 'a lot', b: 3 });
    expect(unread).toMatchObject({
      isError: true,
      _meta: { 'svc/decision': { reason: 'argument_in_doubt: arguments.a' } },
    });

    const weather = await call(everything, 'get-structured-content', { location: 'New York' });
    expect(weather._meta!['svc/decision']).toMatchObject({ decision: 'allow_with_masking' });
    expect(weather.structuredContent).toMatchObject({ temperature: '[masked]', conditions: expect.any(String) });
    expect(JSON.parse(weather.content[0]!.text)).toEqual(weather.structuredContent);
    const echo = await call(everything, 'echo', { message: 'my secret' });
    expect(echo._meta!['svc/decision']).toMatchObject({ code: 'MASKING_FAILED' });
    expect(JSON.stringify(echo)).not.toContain('my secret');
    expect(await call(everything, 'get-tiny-image', {})).not.toHaveProperty('isError');
    const limited = await call(everything, 'get-tiny-image', {});
    expect(limited._meta!['svc/decision']).toMatchObject({ decision: 'rate_limited', retry_after: expect.any(Number) });
  });
});

/** A tool server that says more than it was asked, and writes what it received. */
const TALKATIVE = `
const say = (message) => process.stdout.write(JSON.stringify({ ...message, jsonrpc: '2.0' }) + '\\n');
let held = [];
require('node:readline').createInterface({ input: process.stdin }).on('line', (line) => {
  const { id, method, params } = JSON.parse(line);
  if (method === 'initialize') {
    const serverInfo = { name: 'talkative', version: '1' };
    say({ id, result: { protocolVersion: params.protocolVersion, capabilities: { tools: {} }, serverInfo } });
  }
  if (method !== 'tools/call') return;
  const text = (text) => ({ content: [{ type: 'text', text: JSON.stringify({ text }) }] });
  if (params.name === 'wait') return held.push(id);
  if (params.name === 'go-on') for (const one of held.splice(0)) say({ id: one, result: text('waited') });
  const { progressToken } = params._meta ?? {};
  for (const token of [progressToken, 'nobody'].filter((token) => token !== undefined))
    say({ method: 'notifications/progress', params: { progressToken: token, progress: 1, message: 'secret of ' + params.name } });
  say({ id, result: text('x'.repeat(params.arguments?.length ?? 1)) });
});
`;

describe('a client that writes messages of its own', () => {
  let child: ChildProcess;
  const received: { id?: unknown; [name: string]: unknown }[] = [];
  const say = (message: Record<string, unknown>) =>
    child.stdin!.write(`${JSON.stringify({ jsonrpc: '2.0', ...message })}\n`);
  const tool = (id: unknown, name: string, more: Record<string, unknown> = {}) =>
    say({ id, method: 'tools/call', params: { name, ...more } });
  const answers = (id: unknown, count = 1) =>
    until(() => {
      const found = received.filter((message) => message.id === id);
      return found.length >= count && found;
    }, `${count} answers to ${id}`);

  beforeAll(async () => {
    await enforce(
      server,
      world.tenant,
      'talkative',
      `permit(principal, action, resource in ToolServer::"talkative");
       @mask("$.text") forbid(principal, action, resource == Tool::"masked");`,
    );
    const dir = temporaryDirectory();
    const script = path.join(dir, 'talkative.cjs');
    writeFileSync(script, TALKATIVE);
    // without the \`--\` that some launchers take away
    const args = ['server/proxy/main.ts', 'mcp', '--name', 'talkative', process.execPath, script];
    child = spawn(process.execPath, args, {
      stdio: ['pipe', 'pipe', 'ignore'],
      env: {
        ...world.env,
        SVC_AGENT_KEY: world.agentKey,
        SVC_PROXY_DIR: path.join(dir, 'state'),
        PATH: process.env.PATH,
        NODE_COMPILE_CACHE: process.env.NODE_COMPILE_CACHE,
      },
    });
    createInterface({ input: child.stdout! }).on('line', (line) => received.push(JSON.parse(line)));
    say({ id: 'init', method: 'initialize', params: { protocolVersion: '2025-11-25', capabilities: {} } });
    await answers('init');
  });
  afterAll(() => {
    child?.kill('SIGKILL');
  });

  test('hears on the way nothing of what is masked, whatever the token', async () => {
    tool(1, 'masked', { _meta: { progressToken: 'one' } });
    tool(2, 'open', { _meta: { progressToken: 'two' } });
    const [[masked], [open]] = await Promise.all([answers(1), answers(2)]);
    expect(JSON.stringify(masked)).toContain('[masked]');
    expect(JSON.stringify(open)).not.toContain('[masked]');
    expect(JSON.stringify(received)).not.toContain('secret of masked');
    expect(JSON.stringify(received)).toContain('secret of open');
    // the token of a call that is not masked
    received.splice(0);
    tool(3, 'wait', { _meta: { progressToken: 'same' } });
    tool(4, 'masked', { _meta: { progressToken: 'same' } });
    await answers(4);
    tool(5, 'go-on');
    await Promise.all([answers(3), answers(5)]);
    expect(received.filter(({ method }) => method === 'notifications/progress').length).toBeGreaterThan(2);
    expect(JSON.stringify(received)).not.toContain('secret of masked');
  });

  test('gets an answer of many megabytes, and goes on', async () => {
    received.splice(0);
    tool('long', 'open', { arguments: { length: 12_000_000 } });
    const [answer] = await answers('long');
    expect(JSON.stringify(answer).length).toBeGreaterThan(12_000_000);
    tool('short', 'open');
    await answers('short');
  });

  test('cannot use an id twice at the same time: one answer is not taken for another', async () => {
    received.splice(0);
    tool('twice', 'wait');
    tool('twice', 'open');
    expect(await answers('twice')).toMatchObject([
      { error: { code: -32600, message: 'the id of this request is in use' } },
    ]);
    tool('go-on', 'go-on');
    const [, answer] = await answers('twice', 2);
    expect(JSON.stringify(answer)).toContain('waited');
    // afterwards it is free again
    tool('twice', 'open');
    expect((await answers('twice', 3))[2]).toMatchObject({ result: {} });
  });
});

test('a wrapper whose client leaves says goodbye, and is listed as one on a desktop', async () => {
  const env = {
    ...world.env,
    SVC_AGENT_KEY: world.agentKey,
    SVC_PROXY_ID: 'desktop-1',
    SVC_PROXY_DIR: path.join(temporaryDirectory(), 'state'),
    PATH: process.env.PATH,
  };
  const command = [bin('mcp-server-filesystem'), temporaryDirectory()];
  const child = spawn(process.execPath, ['server/proxy/main.ts', 'mcp', '--name', 'files', '--', ...command], {
    env,
    stdio: ['pipe', 'ignore', 'ignore'],
  });
  const listed = async () => {
    const { body } = await server.call<{ proxies: { proxy_id: string; state: string; desktop?: boolean }[] }>(
      200,
      'GET /v1/proxies',
      world.tenant.admin,
    );
    return body.proxies.find(({ proxy_id }) => proxy_id === 'desktop-1');
  };
  await until(async () => (await listed())?.desktop, 'it reports');
  child.stdin.end();
  await once(child, 'exit');
  expect(await listed()).toMatchObject({ state: 'stopped', desktop: true });
});

describe('an MCP server behind a route', () => {
  let child: ChildProcess | undefined;
  let port: string;
  let proxy: ProxyProcess;
  const restart = async () => {
    if (child) {
      child.kill('SIGKILL');
      await once(child, 'exit');
    }
    child = spawn(process.execPath, [bin('mcp-server-everything'), 'streamableHttp'], {
      env: { PATH: process.env.PATH, PORT: port },
      stdio: 'ignore',
    });
    const url = `http://127.0.0.1:${port}/mcp`;
    await until(async () => (await fetch(url).catch(() => undefined)) !== undefined, 'the MCP server listens');
  };
  const transport = (key: string) =>
    new StreamableHTTPClientTransport(new URL(`${proxy.url}/mcp/everything`), {
      requestInit: { headers: { authorization: `Bearer ${key}` } },
    }) as Transport;
  beforeAll(async () => {
    port = String(await freePort());
    await restart();
    const url = `http://127.0.0.1:${port}/mcp`;
    proxy = await new ProxyProcess(
      [
        { path: '/mcp/everything', mcp: url, server: 'everything' },
        { path: '/mcp/other', mcp: url, server: 'other' },
        { path: '/mcp/gone', mcp: 'http://127.0.0.1:9/mcp', server: 'gone' },
      ],
      world.env,
    ).start();
    await proxy.ready();
  });
  afterAll(() => {
    child?.kill('SIGKILL');
  });

  const INITIALIZE = {
    jsonrpc: '2.0',
    id: 0,
    method: 'initialize',
    params: { protocolVersion: '2025-11-25', capabilities: {}, clientInfo: { name: 'test', version: '1' } },
  };
  const LIST = { jsonrpc: '2.0', id: 1, method: 'tools/list' };
  /** One message as any HTTP client can send it. */
  async function post(route: string, key: string, message: unknown, headers: Record<string, string> = {}) {
    const response = await fetch(`${proxy.url}/mcp/${route}`, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${key}`,
        'content-type': 'application/json',
        accept: 'application/json, text/event-stream',
        ...headers,
      },
      body: typeof message === 'string' ? message : JSON.stringify(message),
    });
    return { status: response.status, session: response.headers.get('mcp-session-id')!, text: await response.text() };
  }
  const sessions = async () => (await proxy.metrics()).svc_proxy_mcp_sessions!;
  const settled = (count: number) => until(async () => (await sessions()) === count, `${count} sessions`);

  test('an agent that begins sessions without end gets a hundred, and takes none from another', async () => {
    const others = (await world.tenant.agent('bot-4', 'clerk')).key!;
    const quiet = (await post('everything', others, INITIALIZE)).session;
    const before = await sessions();
    const begun: string[] = [];
    for (let n = 0; n < 11; n++) {
      const ten = await Promise.all(Array.from({ length: 10 }, () => post('everything', world.agentKey, INITIALIZE)));
      for (const { status, session } of ten) {
        expect(status).toBe(200);
        begun.push(session);
      }
    }
    expect(await sessions()).toBe(before + 100);
    const ask = (session: string, key = world.agentKey) => post('everything', key, LIST, { 'mcp-session-id': session });
    expect((await ask(begun[0]!)).status).toBe(404);
    expect((await ask(begun.at(-1)!)).status).toBe(200);
    expect((await ask(quiet, others)).status).toBe(200);
    expect((await post('everything', others, INITIALIZE)).status).toBe(200);

    // and nothing is kept of what was no initialization, or of one that failed
    await settled(before + 101);
    for (let n = 0; n < 5; n++) {
      expect((await post('gone', others, INITIALIZE)).text).toContain('the tool server cannot be reached');
      expect((await post('everything', others, LIST)).status).toBe(400);
      expect((await post('everything', others, '{')).status).toBe(400);
      expect((await post('everything', others, '{"id":1,"id":2}')).status).toBe(400);
      expect((await post('everything', others, LIST, { 'content-type': 'text/plain' })).status).toBe(415);
    }
    await settled(before + 101);
  });

  test('a session is good on the route that it was begun on, and nowhere else', async () => {
    const { session } = await post('everything', world.agentKey, INITIALIZE);
    const headers = { 'mcp-session-id': session };
    expect((await post('other', world.agentKey, LIST, headers)).status).toBe(404);
    expect((await post('everything', world.agentKey, LIST, headers)).status).toBe(200);
  });

  test('a page of another site gets nothing, by its own name or by one that was made to mean this machine', async () => {
    const { hostname, port } = new URL(proxy.url);
    const ask = (headers: Record<string, string>) =>
      new Promise<number>((resolve, reject) => {
        const sent = request({
          hostname,
          port,
          path: '/mcp/everything',
          method: 'POST',
          headers: { ...base, ...headers },
        });
        sent.on('response', (response) => resolve(response.resume().statusCode!)).on('error', reject);
        sent.end(JSON.stringify(INITIALIZE));
      });
    const base = {
      authorization: `Bearer ${world.agentKey}`,
      'content-type': 'application/json',
      accept: 'application/json, text/event-stream',
    };
    for (const host of ['evil.test', `evil.test:${port}`, '127.0.0.1.evil.test', 'localhost.evil.test', '0']) {
      expect(await ask({ host }), host).toBe(403);
      expect(await ask({ host, origin: `http://${host}` }), host).toBe(403);
    }
    for (const origin of ['http://evil.test', 'null', 'file://', `http://127.0.0.1.evil.test:${port}`]) {
      expect(await ask({ origin }), origin).toBe(403);
    }
    for (const host of ['localhost', `localhost:${port}`, `127.0.0.1:${port}`, '[::1]']) {
      expect(await ask({ host }), host).toBe(200);
      expect(await ask({ host, origin: `http://${host}` }), host).toBe(200);
    }
    const named = await new ProxyProcess([{ path: '/mcp/everything', mcp: 'http://127.0.0.1:9', server: 'x' }], {
      ...world.env,
      SVC_PROXY_NAMES: 'Tools.test',
    }).start();
    const there = await fetch(`${named.url}/mcp/everything`, {
      method: 'POST',
      headers: { ...base, origin: 'https://tools.test' },
    });
    expect(there.status).toBe(400);
  });

  test('serves the standard’s client: tools, progress, and requests of the server to the client', async () => {
    const client = await connect(transport(world.agentKey), { sampling: {} });
    client.setRequestHandler(CreateMessageRequestSchema, async () => ({
      model: 'm',
      role: 'assistant' as const,
      content: { type: 'text' as const, text: 'sampled' },
    }));
    expect((await client.listTools()).tools.map(({ name }) => name)).toContain('get-sum');
    const sum = await call(client, 'get-sum', { a: 2, b: 3 });
    expect(sum.content[0]!.text).toContain('5');
    expect((await client.listPrompts()).prompts.length).toBeGreaterThan(0);
    let progress = 0;
    await client.callTool({ name: 'trigger-long-running-operation', arguments: { duration: 1, steps: 4 } }, undefined, {
      onprogress: () => progress++,
    });
    expect(progress).toBeGreaterThan(1);
    const sampled = await until(async () => {
      const answer = await call(client, 'trigger-sampling-request', { prompt: 'p', maxTokens: 5 });
      return !answer.isError && answer;
    }, 'the server may sample');
    expect(sampled.content[0]!.text).toContain('sampled');
    const limited = await call(client, 'get-structured-content', { location: 'Chicago' });
    expect(limited.structuredContent).toMatchObject({ temperature: '[masked]' });
  });

  test('keeps each agent to its own sessions, and knows no other agent', async () => {
    await expect(connect(transport('svc_agent_00000000000000000000000000000000000000'))).rejects.toThrow();
    const mine = transport(world.agentKey) as unknown as StreamableHTTPClientTransport;
    await connect(mine as Transport);
    const stranger = (await world.tenant.agent('bot-2', 'clerk')).key!;
    const stolen = await fetch(`${proxy.url}/mcp/everything`, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${stranger}`,
        'content-type': 'application/json',
        accept: 'application/json, text/event-stream',
        'mcp-session-id': mine.sessionId!,
      },
      body: JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'tools/list' }),
    });
    expect(stolen.status).toBe(404);
    expect((await proxy.metrics()).svc_proxy_mcp_sessions).toBeGreaterThan(0);
  });

  test('has restarted: a session that it knows no more is 404, and a new one works', async () => {
    const { session } = await post('everything', world.agentKey, INITIALIZE);
    const headers = { 'mcp-session-id': session };
    expect((await post('everything', world.agentKey, LIST, headers)).text).toContain('get-sum');
    await restart();
    expect((await post('everything', world.agentKey, LIST, headers)).text).toContain('not known');
    await until(
      async () => (await post('everything', world.agentKey, LIST, headers)).status === 404,
      'the session has ended',
    );
    const again = await post('everything', world.agentKey, INITIALIZE);
    const list = await post('everything', world.agentKey, LIST, { 'mcp-session-id': again.session });
    expect(list.text).toContain('get-sum');
  });

  test('a call with a member that a server which ignores case would take for another is refused', async () => {
    const begun = await post('everything', world.agentKey, INITIALIZE);
    const session = { 'mcp-session-id': begun.session };
    const params = { name: 'get-sum', arguments: { a: 1, b: 1 } };
    const call = (more: object) =>
      post(
        'everything',
        world.agentKey,
        { jsonrpc: '2.0', id: 7, method: 'tools/call', params: { ...params, ...more } },
        session,
      );
    for (const more of [
      { Name: 'get-env' },
      { ARGUMENTS: { a: 9, b: 9 } },
      { 'na\u017fe': 1, '\uFF4Eame': 'get-env' },
    ]) {
      expect((await call(more)).text).toContain('-32602');
    }
    expect((await call({ another: 1 })).text).toContain('The sum of 1 and 1 is 2');
  });

  test('stops an agent whose key is revoked, in the middle of its session', async () => {
    const made = await server.call<{ id: string; key: string }>(201, 'POST /v1/agent-keys', world.tenant.admin, {
      agent_id: 'bot-3',
      agent_role: 'clerk',
    });
    const client = await connect(transport(made.body.key));
    expect(await call(client, 'get-sum', { a: 1, b: 1 })).not.toHaveProperty('isError');
    await server.call(204, `DELETE /v1/agent-keys/${made.body.id}`, world.tenant.admin);
    await until(async () => {
      try {
        await call(client, 'get-sum', { a: 1, b: 1 });
        return false;
      } catch (error) {
        return String(error).includes('401') || String(error).includes('Unauthorized') || String(error);
      }
    }, 'the key no longer works');
  });
});
