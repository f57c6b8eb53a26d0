import { existsSync, readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { Server } from '@modelcontextprotocol/sdk/server/index.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import type { Transport } from '@modelcontextprotocol/sdk/shared/transport.js';
import { CallToolRequestSchema, ListToolsRequestSchema } from '@modelcontextprotocol/sdk/types.js';
import { beforeAll, describe, expect, test } from 'vitest';
import { useServer } from '../helpers/server.ts';
import { until } from '../helpers/until.ts';
import { SIEGE } from '../siege/rounds.ts';
import { decisions, type Governed, governed, ProxyProcess, Upstream } from './support.ts';

/** The recorded calls of an airline's agent, as an MCP client's traffic through the proxy to a server of those tools. */
const data = process.env.SVC_TEST_DATA ?? path.resolve('../shared/data');
const file = process.env.SVC_AIRLINE_DATA ?? path.join(data, 'airline-agent-tool-calls.jsonl');
const there = existsSync(file);
if (!there) console.warn(`${file} is not at hand (SVC_AIRLINE_DATA): the airline’s traffic is skipped`);

interface Call {
  session_id: string;
  tool_name: string;
  arguments: Record<string, never>;
}
type Result = {
  isError?: boolean;
  content: { text: string }[];
  _meta: Record<string, { decision: string; event_id: string }>;
};

const server = useServer({ SVC_POLL_SECONDS: '1' }, { shared: true });

describe.skipIf(!there)('the recorded calls of an airline, through the proxy', () => {
  let calls: Call[];
  let world: Governed;
  let proxy: ProxyProcess;
  const upstream = new Upstream();
  /** A session is a customer with an agent of their own: the limits of the policies are meant for one. */
  const keys = new Map<string, string>();
  beforeAll(async () => {
    const all: Call[] = readFileSync(file, 'utf8')
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line));
    // CI sends every eighth session, the siege all of them
    const sessions = new Set(
      [...new Set(all.map(({ session_id }) => session_id))].filter((_, n) => SIEGE || n % 8 === 5),
    );
    calls = all.filter(({ session_id }) => sessions.has(session_id));
    const folder = path.resolve('test/airline/policies');
    const policies = readdirSync(folder).map((name) => [
      name.replace('.cedar', ''),
      readFileSync(path.join(folder, name), 'utf8'),
    ]);
    world = await governed(server, Object.fromEntries(policies));
    const tools = [...new Set(calls.map(({ tool_name }) => tool_name))];
    upstream.respond = async ({ body }, response, request) => {
      const airline = new Server({ name: 'airline', version: '1' }, { capabilities: { tools: {} } });
      airline.setRequestHandler(ListToolsRequestSchema, async () => ({
        tools: tools.map((name) => ({ name, inputSchema: { type: 'object' as const } })),
      }));
      airline.setRequestHandler(CallToolRequestSchema, async ({ params }) => ({
        content: [{ type: 'text', text: `did ${params.name}` }],
      }));
      const transport = new StreamableHTTPServerTransport({ enableJsonResponse: true });
      await airline.connect(transport as Transport);
      await transport.handleRequest(request, response, body === '' ? undefined : JSON.parse(body));
    };
    await upstream.start();
    for (const id of new Set(calls.map(({ session_id }) => session_id))) {
      keys.set(id, (await world.tenant.agent(`agent-of-${id}`, 'airline-agent')).key!);
    }
    proxy = await new ProxyProcess([{ path: '/airline', mcp: `${upstream.url}/mcp` }], world.env).start();
    await proxy.ready();
  });

  async function session(id: string, answered: { call: Call; result: Result }[]): Promise<void> {
    const client = new Client({ name: 'airline', version: '1' });
    const requestInit = { headers: { authorization: `Bearer ${keys.get(id)}` } };
    await client.connect(
      new StreamableHTTPClientTransport(new URL(`${proxy.url}/airline`), { requestInit }) as Transport,
    );
    for (const call of calls.filter(({ session_id }) => session_id === id)) {
      const result = await client.callTool({ name: call.tool_name, arguments: call.arguments });
      answered.push({ call, result: result as unknown as Result });
    }
    await client.close();
  }

  test('are decided as the published rules say, and each is recorded once', async () => {
    const answered: { call: Call; result: Result }[] = [];
    const sessions = [...new Set(calls.map(({ session_id }) => session_id))];
    await Promise.all(
      Array.from({ length: 8 }, async () => {
        for (let id = sessions.shift(); id !== undefined; id = sessions.shift()) await session(id, answered);
      }),
    );
    expect(answered).toHaveLength(calls.length);
    expect(calls.length).toBeGreaterThan(SIEGE ? 1163 : 100);
    const means = (args: Record<string, unknown>, kind: string) =>
      (args.payment_methods as { payment_id: string }[]).filter(({ payment_id }) => payment_id.startsWith(kind)).length;
    for (const { call, result } of answered) {
      const { decision, event_id } = result._meta['svc/decision']!;
      expect(event_id).toMatch(/^evt_/);
      const args: Record<string, unknown> = call.arguments;
      switch (call.tool_name) {
        case 'book_reservation': {
          const breaks =
            (args.passengers as object[]).length > 5 ||
            means(args, 'certificate_') > 1 ||
            means(args, 'credit_card_') > 1 ||
            means(args, 'gift_card_') > 3;
          expect(decision === 'deny').toBe(breaks);
          break;
        }
        case 'cancel_reservation':
          expect(decision).toBe('escrow');
          break;
        case 'get_user_details':
        case 'get_reservation_details':
        case 'search_direct_flight':
        case 'think':
        case 'calculate':
          expect(decision).toBe('allow');
          expect(result.content[0]!.text).toBe(`did ${call.tool_name}`);
          break;
      }
      expect(result.isError === true).toBe(decision !== 'allow');
    }
    expect(answered.some(({ result }) => result._meta['svc/decision']!.decision === 'deny')).toBe(true);
    const stored = await until(async () => {
      const all = await decisions(server, world.tenant);
      return all.length === calls.length && all;
    }, 'all are recorded');
    expect(new Set(stored.map(({ id }) => id))).toEqual(
      new Set(answered.map(({ result }) => result._meta['svc/decision']!.event_id)),
    );
    const verdict = await server.call(200, 'GET /v1/forensics/verify', world.tenant.admin);
    expect(verdict.body).toMatchObject({ verified: true, records_checked: calls.length + 1 });
  });
});
