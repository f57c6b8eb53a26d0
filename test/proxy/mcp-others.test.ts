import { type ChildProcess, spawn } from 'node:child_process';
import { Client as ModernClient, StreamableHTTPClientTransport as ModernHttp } from '@modelcontextprotocol/client';
import { Client as LegacyClient } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport as LegacyHttp } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { CreateMessageRequestSchema, ElicitRequestSchema, ResultSchema } from '@modelcontextprotocol/sdk/types.js';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { z } from 'zod';
import { freePort } from '../helpers/ports.ts';
import { useServer } from '../helpers/server.ts';
import { until } from '../helpers/until.ts';
import { decisions, type Governed, governed, ProxyProcess } from './support.ts';

/** What clients and servers of MCP ask for besides tools is decided and recorded as well. */

const POLICY = `
@id("tools") permit(principal, action == Action::"tool_call", resource in ToolServer::"fixture");
@id("text") permit(principal, action == Action::"resource_read", resource == Tool::"resources/read")
  when { context.str.hasTag("uri") && context.str.getTag("uri") like "test://static-*" };
@id("no-binary") @reason("no binaries") forbid(principal, action == Action::"resource_read", resource)
  when { context.str.hasTag("uri") && context.str.getTag("uri") like "*binary*" };
@id("masked") @mask("$.id") permit(principal, action == Action::"resource_read", resource)
  when { context.str.hasTag("uri") && context.str.getTag("uri") like "test://template/*" };
@id("held") @escrow("single") permit(principal, action == Action::"prompt_get", resource)
  when { context.str.hasTag("name") && context.str.getTag("name") == "test_simple_prompt" };
@id("sampling") permit(principal, action == Action::"sampling", resource);
`;
const server = useServer({ SVC_POLL_SECONDS: '1' }, { shared: true });
let world: Governed;
let proxy: ProxyProcess;
const children: ChildProcess[] = [];
const closing: (() => Promise<void>)[] = [];

beforeAll(async () => {
  world = await governed(server, { fixture: POLICY });
  const routes: Record<string, unknown>[] = [];
  for (const era of ['modern', 'legacy']) {
    const port = await freePort();
    children.push(spawn(process.execPath, ['test/proxy/mcp-server.ts', String(port), era], { stdio: 'ignore' }));
    const mcp = `http://127.0.0.1:${port}/mcp`;
    await until(async () => (await fetch(mcp).catch(() => undefined)) !== undefined, 'the server listens');
    routes.push(
      { path: `/${era}`, mcp, server: 'fixture' },
      { path: `/${era}/record`, mcp, server: 'fixture', others: 'record' },
    );
  }
  proxy = await new ProxyProcess(routes, world.env).start();
  await proxy.ready();
});
afterAll(async () => {
  for (const close of closing) await close();
  for (const child of children) child.kill('SIGKILL');
});

/** A schema for the results of any method. */
const anything = z.looseObject({});
interface AnyClient {
  // biome-ignore lint/suspicious/noExplicitAny: results of any method
  ask(method: string, params?: Record<string, unknown>): Promise<any>;
  asked: string[];
}
async function connect(generation: string, path: string): Promise<AnyClient> {
  const url = new URL(proxy.url + path);
  const options = { requestInit: { headers: { authorization: `Bearer ${world.agentKey}` } } };
  const capabilities = { elicitation: {}, sampling: {} };
  const asked: string[] = [];
  const noted = <T>(what: string, answer: T): T => {
    asked.push(what);
    return answer;
  };
  const sampled = { model: 'm', role: 'assistant' as const, content: { type: 'text' as const, text: 'sampled' } };
  if (generation === 'modern') {
    const versionNegotiation = { mode: { pin: '2026-07-28' } };
    const client = new ModernClient({ name: 'test', version: '1' }, { capabilities, versionNegotiation });
    client.setRequestHandler('elicitation/create', async () => noted('elicitation', { action: 'decline' as const }));
    client.setRequestHandler('sampling/createMessage', async () => noted('sampling', sampled));
    await client.connect(new ModernHttp(url, options));
    closing.push(() => client.close());
    return { asked, ask: (method, params = {}) => client.request({ method, params } as never, anything) };
  }
  const client = new LegacyClient({ name: 'test', version: '1' }, { capabilities });
  client.setRequestHandler(ElicitRequestSchema, async () => noted('elicitation', { action: 'decline' as const }));
  client.setRequestHandler(CreateMessageRequestSchema, async () => noted('sampling', sampled));
  await client.connect(new LegacyHttp(url, options) as never);
  closing.push(() => client.close());
  return { asked, ask: (method, params = {}) => client.request({ method, params } as never, ResultSchema) };
}
const recorded = async (tool: string) =>
  (await decisions(server, world.tenant)).filter(({ tool_name }) => tool_name === tool).map(({ decision }) => decision);

describe.each(['modern', 'legacy'])('a %s client', (generation) => {
  test.each(['modern', 'legacy'])('of a %s server', async (era) => {
    const client = await connect(generation, `/${era}`);
    const read = (uri: string) => client.ask('resources/read', { uri });
    expect(await read('test://static-text')).toMatchObject({
      contents: [{ text: 'This is the content of the static text resource.' }],
      _meta: { 'svc/decision': { decision: 'allow' } },
    });
    await expect(read('test://static-binary')).rejects.toMatchObject({
      code: -31403,
      data: { 'svc/decision': { decision: 'deny', reason: 'no binaries' } },
    });
    const masked = await read('test://template/7/data');
    expect(JSON.parse(masked.contents[0].text)).toEqual({ id: '[masked]', data: 'Data for ID: 7' });
    await expect(
      client.ask('completion/complete', {
        ref: { type: 'ref/prompt', name: 'test_simple_prompt' },
        argument: { name: 'a', value: 'b' },
      }),
    ).rejects.toMatchObject({ code: -31403 });

    // held, and the same request again
    const get = () => client.ask('prompts/get', { name: 'test_simple_prompt' });
    const held = await get().catch((error) => error);
    expect(held).toMatchObject({ code: -31423, data: { 'svc/decision': { decision: 'escrow' } } });
    const id = held.data['svc/decision'].escrow_id;
    await server.call(200, `POST /v1/escrow/${id}/vote`, await world.tenant.person('approver'), {
      decision: 'approve',
    });
    expect(await get()).toMatchObject({ messages: [{ content: { text: 'This is a simple prompt for testing.' } }] });
    await expect(client.ask('prompts/get', { name: 'test_prompt_with_image' })).rejects.toMatchObject({ code: -31403 });

    // what the server asks its client
    const called = (name: string) => client.ask('tools/call', { name, arguments: {} });
    const sampled = await called('test_input_required_result_sampling');
    expect(JSON.stringify(sampled)).toContain('sampled');
    const refused = await called('test_input_required_result_elicitation').catch((error) => error);
    expect(JSON.stringify(refused.content ?? refused.message)).toContain('Denied');
    expect(client.asked).toEqual(['sampling']);
    await until(async () => (await recorded('elicitation/create')).includes('deny'), 'it is recorded');
    expect(await recorded('sampling/createMessage')).toContain('allow');
    expect(await recorded('resources/read')).toContain('allow_with_masking');
  });

  test('gets lists without what is denied in any case', async () => {
    const client = await connect(generation, '/legacy');
    expect((await client.ask('resources/list')).resources.length).toBeGreaterThan(0);
    expect((await client.ask('prompts/list')).prompts.length).toBeGreaterThan(0);
  });

  test('goes on with what is only recorded', async () => {
    const client = await connect(generation, '/legacy/record');
    const before = (await recorded('resources/read')).filter((decision) => decision === 'deny').length;
    expect(await client.ask('resources/read', { uri: 'test://static-binary' })).toMatchObject({
      contents: [{ mimeType: 'image/png' }],
      _meta: { 'svc/decision': { decision: 'deny', enforced: false } },
    });
    // no hold is opened for it
    expect(await client.ask('prompts/get', { name: 'test_simple_prompt' })).toMatchObject({ messages: [{}] });
    await until(
      async () => (await recorded('resources/read')).filter((decision) => decision === 'deny').length > before,
      'it is recorded',
    );
  });

  test('asks for nothing by a method that the proxy does not know', async () => {
    const client = await connect(generation, '/legacy');
    await expect(client.ask('vendor/erase', { all: true })).rejects.toMatchObject({ code: -31403 });
    await until(async () => (await recorded('vendor/erase')).includes('deny'), 'it is recorded');
  });
});
