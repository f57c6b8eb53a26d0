import { type ChildProcess, spawn } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { Client as ModernClient, StreamableHTTPClientTransport as ModernHttp } from '@modelcontextprotocol/client';
import { StdioClientTransport as ModernStdio } from '@modelcontextprotocol/client/stdio';
import { Client as LegacyClient } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport as LegacyStdio } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport as LegacyHttp } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { ElicitRequestSchema, ToolListChangedNotificationSchema } from '@modelcontextprotocol/sdk/types.js';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { freePort } from '../helpers/ports.ts';
import { useServer } from '../helpers/server.ts';
import { until } from '../helpers/until.ts';
import { SIEGE } from '../siege/rounds.ts';
import { decisions, enforce, type Governed, governed, ProxyProcess, temporaryDirectory } from './support.ts';

/**
 * The official clients and servers of the revision without sessions (2026-07-28) and of those with sessions, in every
 * pairing and over both transports: what the policies say has the same effect in all of them.
 */

const POLICY = `
@id("all") permit(principal in AgentRole::"clerk", action, resource in ToolServer::"fixture");
@id("no-env") @reason("the environment is private") forbid(principal, action, resource == Tool::"env");
@id("no-much") @reason("too much") forbid(principal, action, resource == Tool::"add")
  when { context.num.hasTag("a") && context.num.getTag("a").greaterThan(decimal("100.0")) };
@id("transfer") @escrow("single") forbid(principal, action, resource == Tool::"transfer");
@id("masked") @mask("$.region") forbid(principal, action, resource == Tool::"regional")
  when { context.num.hasTag("level") };
`;
const MODERN = '2026-07-28';
const server = useServer({ SVC_POLL_SECONDS: '1' }, { shared: true });
const dir = temporaryDirectory();
const written = (name: string) => path.join(dir, `${name}.txt`);
const lines = (name: string) =>
  existsSync(written(name)) ? readFileSync(written(name), 'utf8').trim().split('\n') : [];
let world: Governed;
let proxy: ProxyProcess;
const children: ChildProcess[] = [];
const closing: (() => Promise<void>)[] = [];

beforeAll(async () => {
  world = await governed(server, { fixture: POLICY });
  const routes = await Promise.all(
    ['modern', 'legacy'].map(async (era) => ({
      path: `/${era}`,
      mcp: await serve(era, await freePort()),
      server: 'fixture',
    })),
  );
  proxy = await new ProxyProcess(routes, { ...world.env, SVC_PROXY_MESSAGE_BYTES: '1000000' }).start();
  await proxy.ready();
});
afterAll(async () => {
  for (const close of closing) await close();
  for (const child of children) child.kill('SIGKILL');
});

async function serve(era: string, port: number): Promise<string> {
  const args = ['test/proxy/mcp-server.ts', String(port), era, written(`http-${era}`)];
  children.push(spawn(process.execPath, args, { stdio: 'ignore' }));
  const url = `http://127.0.0.1:${port}/mcp`;
  await until(async () => (await fetch(url).catch(() => undefined)) !== undefined, 'the server listens');
  return url;
}

interface Answer {
  content: { type: string; text: string }[];
  isError?: boolean;
  _meta?: { 'svc/decision'?: Record<string, unknown> };
}
/** What both generations of the client can do. */
interface AnyClient {
  names(): Promise<string[]>;
  call(name: string, args?: object, onprogress?: () => void): Promise<Answer>;
  /** How many notifications of progress have arrived. */
  progress(): number;
  /** How often it heard that the tools have changed. */
  changes(): number;
  elicited: string[];
}

function transports(transport: string, era: string, key: string) {
  const env = {
    ...world.env,
    SVC_AGENT_KEY: key,
    SVC_PROXY_DIR: path.join(dir, 'state'),
    SVC_PROXY_MESSAGE_BYTES: '1000000',
    PATH: process.env.PATH!,
    NODE_COMPILE_CACHE: process.env.NODE_COMPILE_CACHE ?? '',
  };
  const wrapped = [process.execPath, 'test/proxy/mcp-server.ts', 'stdio', era, written(`${transport}-${era}`)];
  const args = ['server/proxy/main.ts', 'mcp', '--name', 'fixture', '--', ...wrapped];
  return {
    stdio: { command: process.execPath, args, env, stderr: 'ignore' as const },
    url: new URL(`${proxy.url}/${era}`),
    http: { requestInit: { headers: { authorization: `Bearer ${key}` } } },
  };
}

/**
 * Counts what arrives. The clients themselves drop a notification of progress that comes in one chunk with its answer:
 * they hand on the former a microtask later.
 */
function countProgress(transport: { onmessage?: unknown }): () => number {
  let arrived = 0;
  const receive = transport.onmessage as (message: { method?: string }, extra: unknown) => void;
  transport.onmessage = (message: { method?: string }, extra: unknown) => {
    if (message.method === 'notifications/progress') arrived++;
    receive(message, extra);
  };
  return () => arrived;
}

async function modern(transport: string, era: string, key = world.agentKey): Promise<AnyClient> {
  const { stdio, url, http } = transports(transport, era, key);
  const client = new ModernClient(
    { name: 'modern', version: '1' },
    { capabilities: { elicitation: {} }, versionNegotiation: { mode: { pin: MODERN } } },
  );
  const elicited: string[] = [];
  client.setRequestHandler('elicitation/create', async ({ params }) => {
    elicited.push(params.message);
    return { action: 'accept', content: { purpose: 'rent' } };
  });
  let changes = 0;
  client.setNotificationHandler('notifications/tools/list_changed', () => {
    changes++;
  });
  const connection = transport === 'stdio' ? new ModernStdio(stdio) : new ModernHttp(url, http);
  await client.connect(connection);
  const progress = countProgress(connection);
  closing.push(() => client.close());
  const subscription = await client.listen({ toolsListChanged: true });
  expect(subscription.honoredFilter).toMatchObject({ toolsListChanged: true });
  return {
    names: async () => (await client.listTools(undefined, { cacheMode: 'refresh' })).tools.map(({ name }) => name),
    call: async (name, args = {}, onprogress) =>
      (await client.callTool({ name, arguments: { ...args } }, onprogress && { onprogress })) as Answer,
    progress,
    changes: () => changes,
    elicited,
  };
}

async function legacy(transport: string, era: string): Promise<AnyClient> {
  const { stdio, url, http } = transports(transport, era, world.agentKey);
  const client = new LegacyClient({ name: 'legacy', version: '1' }, { capabilities: { elicitation: {} } });
  const elicited: string[] = [];
  client.setRequestHandler(ElicitRequestSchema, async ({ params }) => {
    elicited.push(params.message);
    return { action: 'accept', content: { purpose: 'rent' } };
  });
  let changes = 0;
  client.setNotificationHandler(ToolListChangedNotificationSchema, () => {
    changes++;
  });
  const connection = transport === 'stdio' ? new LegacyStdio(stdio) : new LegacyHttp(url, http);
  await client.connect(connection as never);
  const progress = countProgress(connection);
  closing.push(() => client.close());
  return {
    names: async () => (await client.listTools()).tools.map(({ name }) => name),
    call: async (name, args = {}, onprogress) =>
      (await client.callTool({ name, arguments: { ...args } }, undefined, onprogress && { onprogress })) as Answer,
    progress,
    changes: () => changes,
    elicited,
  };
}

async function approve(id: unknown): Promise<void> {
  await server.call(200, `POST /v1/escrow/${id}/vote`, await world.tenant.person('approver'), { decision: 'approve' });
}

/** Over both transports, each client and each server, and each client with each server; `npm run siege` has all eight. */
const serversOf = (transport: string, generation: string) => {
  const [same, other] = generation === 'modern' ? ['modern', 'legacy'] : ['legacy', 'modern'];
  return SIEGE ? ['modern', 'legacy'] : [transport === 'stdio' ? same : other];
};

describe.each(['stdio', 'http'])('over %s', (transport) => {
  describe.each(['modern', 'legacy'])('a %s client', (generation) => {
    test.each(serversOf(transport, generation))('and a %s server', async (era) => {
      const client = await (generation === 'modern' ? modern : legacy)(transport, era);
      const names = await client.names();
      expect(names).toContain('add');
      expect(names).not.toContain('env');

      const sum = await client.call('add', { a: 2, b: 3 });
      expect(sum).toMatchObject({ content: [{ text: '5' }], _meta: { 'svc/decision': { decision: 'allow' } } });
      const denied = await client.call('add', { a: 101, b: 3 });
      expect(denied).toMatchObject({ isError: true, content: [{ text: 'Denied: too much.' }] });
      expect(await client.call('env')).toMatchObject({ isError: true });
      expect(await client.call('test_image_content')).toMatchObject({ content: [{ type: 'image' }] });
      await client.call('test_tool_with_progress', {}, () => {});
      expect(client.progress()).toBe(3);
      // a message over the limit fails alone
      await expect(client.call('big', { length: 1_100_000 })).rejects.toThrow('longer than 1000000 bytes');
      expect((await client.call('big', { length: 900_000 })).content[0]!.text).toHaveLength(900_000);
      if (transport === 'stdio') {
        const long = client.call('add', { a: 1, b: 1, more: 'x'.repeat(1_100_000) });
        await expect(long).rejects.toThrow('longer than 1000000 bytes');
      }

      // the server wants input before it acts
      const to = `${generation}-${transport}-${era}`;
      const held = await client.call('transfer', { to });
      const id = held._meta!['svc/decision']!.escrow_id;
      expect(held.content[0]!.text).toContain('Nothing was done yet');
      expect(client.elicited).toEqual([]);
      await approve(id);
      let paid = await client.call('transfer', { to });
      if (generation === 'modern') {
        // the input is part of the next round, and approved with it
        const later = paid._meta!['svc/decision']!.escrow_id;
        expect(later).not.toBe(id);
        await approve(later);
        paid = await client.call('transfer', { to });
      }
      expect(paid.content[0]!.text).toBe(`sent to ${to} for rent`);
      expect(client.elicited).toEqual(['What for?']);
      expect(lines(`${transport}-${era}`).filter((line) => line.includes(to))).toHaveLength(1);
      const { body: hold } = await server.call(200, `GET /v1/escrow/${id}`, world.tenant.admin);
      expect(hold.status).toBe('consumed');
      const again = await client.call('transfer', { to });
      expect(again._meta!['svc/decision']).toMatchObject({ decision: 'escrow' });
      expect(again._meta!['svc/decision']!.escrow_id).not.toBe(id);

      // the policies change the list
      const before = client.changes();
      await enforce(server, world.tenant, 'later', `forbid(principal, action, resource == Tool::"later-${to}");`);
      await until(() => client.changes() > before, 'it is told that the list has changed');

      // the trace goes on in what the server does
      const { traceparent } = JSON.parse((await client.call('meta')).content[0]!.text);
      expect(traceparent).toMatch(/^00-[0-9a-f]{32}-[0-9a-f]{16}-01$/);

      // a stop cuts what is under way: its client is told why, and its server that nobody waits
      const waiting = client.call('wait', { to });
      const wrote = (line: string) => lines(`${transport}-${era}`).includes(`${line} ${to}`);
      await until(() => wrote('waiting'), 'the server does it');
      const stop = { target_kind: 'agent', target_id: 'bot-1', reason: 'it pays too much', abort: true };
      const { body: stopped } = await server.call(201, 'POST /v1/stops', world.tenant.admin, stop);
      const text = 'Denied: stopped: it pays too much. It was under way.';
      expect(await waiting).toMatchObject({ isError: true, content: [{ text }] });
      await until(() => wrote('cancelled'), 'the server has given it up');
      expect(await client.call('add', { a: 2, b: 3 })).toMatchObject({ isError: true });
      // nothing of it goes through
      await expect(client.names()).rejects.toThrow('stopped: it pays too much');
      const admin = await world.tenant.person('admin');
      await server.call(200, `POST /v1/stops/${stopped.id}/lift`, admin, { reason: 'repaired' });
      await until(async () => !(await client.call('add', { a: 2, b: 3 })).isError, 'it may act again');
    });
  });
});

describe('a request without a session', () => {
  const CLAIM = {
    'io.modelcontextprotocol/protocolVersion': MODERN,
    'io.modelcontextprotocol/clientCapabilities': { elicitation: {} },
  };
  interface Sent {
    headers?: Record<string, string | undefined> | undefined;
    meta?: Record<string, unknown>;
    key?: string;
    body?: string;
    era?: string;
    /** The last message of a stream, instead of the first. */
    whole?: boolean;
  }
  let next = 0;
  async function send(method: string, params: Record<string, unknown>, more: Sent = {}) {
    const message = { jsonrpc: '2.0', id: ++next, method, params: { ...params, _meta: { ...CLAIM, ...more.meta } } };
    const name = params.name ?? params.uri;
    const headers = {
      authorization: `Bearer ${more.key ?? world.agentKey}`,
      'content-type': 'application/json',
      accept: 'application/json, text/event-stream',
      'mcp-protocol-version': MODERN,
      'mcp-method': method,
      ...(name !== undefined && { 'mcp-name': String(name) }),
      ...more.headers,
    };
    const given = Object.entries(headers).filter(([, value]) => value !== undefined) as [string, string][];
    const response = await fetch(`${proxy.url}/${more.era ?? 'modern'}`, {
      method: 'POST',
      headers: given,
      body: more.body ?? JSON.stringify(message),
    });
    const text = await response.text();
    const events = [...text.matchAll(/^data: (.*)$/gm)].map(([, data]) => data!);
    const json = JSON.parse(text.startsWith('{') ? text : more.whole ? events.at(-1)! : events[0]!);
    return { status: response.status, result: json.result, error: json.error };
  }
  const call = (name: string, args: object = {}, more: Sent & { state?: string; answer?: object } = {}) =>
    send(
      'tools/call',
      {
        name,
        arguments: args,
        ...(more.state !== undefined && { requestState: more.state }),
        ...(more.answer && { inputResponses: { purpose: { action: 'accept', content: more.answer } } }),
      },
      more,
    );
  const refusals = async (reason: string) =>
    (await decisions(server, world.tenant)).filter(({ deny_reason }) => deny_reason === reason).length;
  const mismatched = { status: 400, error: { code: -32020 } };

  test('whose headers do not say what its body does is refused, and the denial recorded', async () => {
    const before = await refusals('header_mismatch');
    const args = { a: 1, b: 1 };
    const wrong: Sent['headers'][] = [
      { 'mcp-name': 'env' },
      { 'mcp-name': undefined },
      { 'mcp-name': 'ADD' },
      { 'mcp-name': '=?base64?ZW52?=' },
      // the same name in an encoding that decoders read in different ways
      { 'mcp-name': '=?base64?YWRk====?=' },
      { 'mcp-name': '=?base64?YWR k?=' },
      { 'mcp-name': '=?BASE64?YWRk?=' },
      { 'mcp-method': 'tools/list' },
      { 'mcp-method': undefined },
      { 'mcp-protocol-version': '2025-11-25' },
      { 'mcp-protocol-version': undefined },
    ];
    for (const headers of wrong)
      expect(await call('add', args, { headers }), JSON.stringify(headers)).toMatchObject(mismatched);
    await until(async () => (await refusals('header_mismatch')) === before + wrong.length, 'each is recorded');
    expect(await call('add', args, { headers: { 'mcp-name': '=?base64?YWRk?=' } })).toMatchObject({ status: 200 });
    // and of what is not decided on
    const headers = { 'mcp-method': 'tools/call', 'mcp-name': 'add' };
    expect(await send('tools/list', {}, { headers })).toMatchObject(mismatched);
  });

  test('repeats in its headers the arguments that the tool wants there, and no others', async () => {
    expect(await call('regional', { region: 'eu' })).toMatchObject(mismatched);
    expect(await call('regional', { region: 'eu' }, { headers: { 'mcp-param-region': 'us' } })).toMatchObject(
      mismatched,
    );
    for (const region of ['eu', ' \u00e9\nx: y']) {
      const coded = region === 'eu' ? region : `=?base64?${Buffer.from(region).toString('base64')}?=`;
      const headers = { 'mcp-param-region': coded, 'mcp-param-other': 'x' };
      expect(await call('regional', { region }, { headers })).toMatchObject({
        result: { content: [{ text: `in ${region}` }] },
      });
    }
    // where a policy masks the argument, the header that the server gets is masked as well, or the server would refuse it
    const masked = await call('regional', { region: 'eu', level: 1 }, { headers: { 'mcp-param-region': 'eu' } });
    expect(masked.result._meta['svc/decision']).toMatchObject({ code: 'MASKING_FAILED' });
  });

  test('is read in one way only', async () => {
    const start = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":${JSON.stringify(CLAIM)},`;
    const post = (body: string) => call('add', {}, { body });
    expect((await post(`${start}"name":"add","name":"env"}}`)).status).toBe(400);
    expect((await post(`${start}"name":"add","arguments":{"a":1,"a":2}}}`)).status).toBe(400);
    expect(await post(`[${start}"name":"env"}}]`)).toMatchObject({ status: 400, error: { code: -32600 } });
    expect(await post(`${start}"name":"add","Name":"env"}}`)).toMatchObject({ error: { code: -32602 } });
    expect(await post(`${start}"name":"add","requeststate":"x"}}`)).toMatchObject({ error: { code: -32602 } });
    expect(await post('{"jsonrpc":"2.0","id":1,"method":"tools/list"}')).toMatchObject({
      status: 400,
      error: { code: -32602 },
    });
    const old = { 'io.modelcontextprotocol/protocolVersion': '2099-01-01' };
    const unknown = await send('tools/list', {}, { meta: old, headers: { 'mcp-protocol-version': '2099-01-01' } });
    expect(unknown).toMatchObject({ status: 400, error: { code: -32022, data: { requested: '2099-01-01' } } });
    expect(unknown.error.data.supported).toContain(MODERN);
    expect(await send('tools/unknown', {})).toMatchObject({ status: 404, error: { code: -32601 } });
  });

  test.each(['modern', 'legacy'])('gets a list from a %s server that nobody else may keep', async (era) => {
    const { result } = await send('tools/list', {}, { era });
    expect(result).toMatchObject({ resultType: 'complete', cacheScope: 'private' });
    expect(result.ttlMs).toBeLessThanOrEqual(30_000);
    expect(JSON.stringify(result)).not.toContain('"env"');
    const { result: about } = await send('server/discover', {}, { era });
    expect(about).toMatchObject({ resultType: 'complete', capabilities: { tools: { listChanged: true } } });
  });

  test.each(['modern', 'legacy'])(
    'of a call of several rounds to a %s server is good once, for that call and agent',
    async (era) => {
      const to = `attack-${era}`;
      const transfers = async () =>
        (await decisions(server, world.tenant)).filter(
          (one) => one.decision === 'allow' && one.tool_name === 'transfer',
        ).length;
      const used = await refusals('request_state_used');
      const before = await transfers();
      const first = await call('transfer', { to }, { era });
      const id = first.result._meta['svc/decision'].escrow_id;
      await approve(id);
      const { result } = await call('transfer', { to }, { era });
      expect(result).toMatchObject({ resultType: 'input_required' });
      const state: string = result.requestState;
      const purpose = Object.keys(result.inputRequests)[0]!;
      const inputResponses = { [purpose]: { action: 'accept', content: { purpose: 'rent' } } };
      const retry = (params: object, more: Sent = {}) =>
        send(
          'tools/call',
          { name: 'transfer', arguments: { to }, requestState: state, inputResponses, ...params },
          { era, ...more },
        );
      const stranger = (await world.tenant.agent(`stranger-${era}`, 'clerk')).key!;
      const forged = `${state.slice(0, -6)}${state.endsWith('AAAAAA') ? 'BBBBBB' : 'AAAAAA'}`;
      const refused = { error: { code: -32602 } };
      expect(await retry({ requestState: forged })).toMatchObject({
        error: { data: { reason: 'request_state_invalid' } },
      });
      expect(await retry({ requestState: '' })).toMatchObject(refused);
      expect(await retry({ requestState: { a: 1 } })).toMatchObject(refused);
      expect(await retry({ arguments: { to: 'me' } })).toMatchObject({
        error: { data: { reason: 'request_state_of_another_call' } },
      });
      expect(await retry({ name: 'add', arguments: { to } })).toMatchObject(refused);
      expect(await retry({}, { key: stranger })).toMatchObject({
        error: { data: { reason: 'request_state_of_another_agent' } },
      });
      expect(lines(`http-${era}`).filter((line) => line.includes(to))).toEqual([]);

      const later = await retry({});
      const next = later.result._meta['svc/decision'].escrow_id;
      expect(next).not.toBe(id);
      expect((await retry({})).result._meta['svc/decision'].escrow_id).toBe(next);
      await approve(next);
      const both = await Promise.all([retry({}), retry({})]);
      const done = both.filter(({ result }) => result?.content?.[0].text === `sent to ${to} for rent`);
      expect(done).toHaveLength(1);
      expect(await retry({})).toMatchObject({ error: { data: { reason: 'request_state_used' } } });
      expect(lines(`http-${era}`).filter((line) => line.includes(to))).toEqual([`transfer ${to} for rent`]);
      // one decision for each round
      await until(async () => (await refusals('request_state_used')) >= used + 2, 'the replays are recorded');
      expect(await transfers()).toBe(before + 2);
    },
  );

  test('whose later round other policies forbid is not continued', async () => {
    const params = { name: 'transfer', arguments: { to: 'stopped' } };
    const held = await send('tools/call', params);
    await approve(held.result._meta['svc/decision'].escrow_id);
    const { result } = await send('tools/call', params);
    expect(result).toMatchObject({ resultType: 'input_required' });
    await enforce(server, world.tenant, 'halt', 'forbid(principal, action, resource == Tool::"transfer");');
    await until(
      async () => (await call('transfer', { to: 'other' })).result._meta['svc/decision'].decision === 'deny',
      'the policy is in force',
    );
    const purpose = Object.keys(result.inputRequests)[0]!;
    const inputResponses = { [purpose]: { action: 'accept', content: { purpose: 'rent' } } };
    const later = await send('tools/call', { ...params, requestState: result.requestState, inputResponses });
    expect(later).toMatchObject({ error: { data: { reason: 'policies_changed' } } });
    expect(lines('http-modern').filter((line) => line.includes('stopped'))).toEqual([]);
    await enforce(server, world.tenant, 'halt', 'forbid(principal, action, resource == Tool::"nothing");');
  });

  test('goes on after its server was restarted', async () => {
    const port = await freePort();
    const url = await serve('modern', port);
    const other = await new ProxyProcess([{ path: '/modern', mcp: url, server: 'fixture' }], world.env).start();
    await other.ready();
    const kept = proxy;
    proxy = other;
    try {
      expect((await call('add', { a: 1, b: 1 })).result.content[0].text).toBe('2');
      const child = children.pop()!;
      child.kill('SIGKILL');
      await until(async () => (await call('add', { a: 1, b: 1 })).error?.code === -32603, 'it is away');
      await serve('modern', port);
      expect((await call('add', { a: 1, b: 1 })).result.content[0].text).toBe('2');
      // an older one in its place
      children.pop()!.kill('SIGKILL');
      await until(async () => (await fetch(url).catch(() => undefined)) === undefined, 'it is away');
      await serve('legacy', port);
      // the first one was sent, and is not sent again
      expect((await call('add', { a: 1, b: 1 })).error.message).toContain('not known');
      expect((await call('add', { a: 1, b: 1 })).result.content[0].text).toBe('2');
      // a client that listens to it is not left with a stream that says nothing more
      const listening = send('subscriptions/listen', { notifications: { toolsListChanged: true } }, { whole: true });
      await until(async () => (await call('add', { a: 1, b: 1 })).result, 'it listens');
      children.pop()!.kill('SIGKILL');
      await serve('legacy', port);
      await until(async () => (await call('add', { a: 1, b: 1 })).result, 'it is there again');
      expect(await listening).toMatchObject({ result: { resultType: 'complete' } });
    } finally {
      proxy = kept;
    }
  });
});
