import { once } from 'node:events';
import http, { type IncomingMessage } from 'node:http';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { useServer } from '../helpers/server.ts';
import { type Governed, governed, ProxyProcess, Upstream } from './support.ts';

/** One agent floods the proxy with what costs it most and is never denied: sessions, and lists. */
const server = useServer({}, { shared: true });
/** Requests that the agent has under way at any time. */
const FLOOD = 60;
let world: Governed;
let quiet: string;
let proxy: ProxyProcess;
/** How often the tool server was asked by each method. */
const asked: Record<string, number> = {};
const tools = Array.from({ length: 200 }, (_, n) => ({ name: `tool_${n}`, inputSchema: { type: 'object' } }));

beforeAll(async () => {
  world = await governed(server, {
    all: 'permit(principal in AgentRole::"clerk", action, resource in ToolServer::"own");',
  });
  quiet = (await world.tenant.agent('quiet', 'clerk')).key!;
  const upstream = await new Upstream().start();
  upstream.respond = ({ body, method }, response) => {
    const {
      id,
      method: name,
      params,
    } = method === 'POST' ? JSON.parse(body) : { id: undefined, method: '', params: {} };
    asked[name] = (asked[name] ?? 0) + 1;
    const results: Record<string, unknown> = {
      initialize: {
        protocolVersion: params?.protocolVersion,
        capabilities: { tools: {} },
        serverInfo: { name: 's', version: '1' },
      },
      'tools/list': { tools },
      'tools/call': { content: [{ type: 'text', text: 'done' }] },
    };
    if (id === undefined) response.writeHead(method === 'POST' ? 202 : 405).end();
    else {
      const answer = Object.hasOwn(results, name)
        ? { result: results[name] }
        : { error: { code: -32601, message: 'no' } };
      response.setHeader('content-type', 'application/json').end(JSON.stringify({ jsonrpc: '2.0', id, ...answer }));
    }
  };
  proxy = new ProxyProcess([{ path: '/mcp', mcp: upstream.url, server: 'own' }], { ...world.env, LOG_LEVEL: 'info' });
  await (await proxy.start()).ready();
});

const INITIALIZE = { protocolVersion: '2025-11-25', capabilities: {}, clientInfo: { name: 'test', version: '1' } };

interface Answer {
  status: number;
  session: string | undefined;
  text: string;
}

/** Over kept connections, as agents have them: to each key its own. */
const agents = new Map<string, http.Agent>();
afterAll(() => {
  for (const agent of agents.values()) agent.destroy();
});

async function post(
  key: string,
  session: string | undefined,
  id: number,
  method: string,
  params: unknown,
): Promise<Answer> {
  const agent = agents.get(key) ?? new http.Agent({ keepAlive: true });
  agents.set(key, agent);
  const sent = http.request(`${proxy.url}/mcp`, {
    method: 'POST',
    agent,
    headers: {
      authorization: `Bearer ${key}`,
      'content-type': 'application/json',
      accept: 'application/json, text/event-stream',
      ...(session !== undefined && { 'mcp-session-id': session }),
    },
  });
  sent.end(JSON.stringify({ jsonrpc: '2.0', id, method, params }));
  let response: IncomingMessage;
  try {
    [response] = (await once(sent, 'response')) as [IncomingMessage];
  } catch (error) {
    // the proxy closed it unused, while this process was too busy to use it
    if (sent.reusedSocket && (error as NodeJS.ErrnoException).code === 'ECONNRESET') {
      return post(key, session, id, method, params);
    }
    throw error;
  }
  return {
    status: response.statusCode!,
    session: response.headers['mcp-session-id'] as string | undefined,
    text: (await response.setEncoding('utf8').toArray()).join(''),
  };
}

test.for([
  ['initialize', INITIALIZE],
  ['tools/list', {}],
] as const)('a flood of %s hurts the agent that sends it alone', async ([method, params]) => {
  const { session } = await post(quiet, undefined, 0, 'initialize', INITIALIZE);
  const own = (await post(world.agentKey, undefined, 0, 'initialize', INITIALIZE)).session;
  let flooding = true;
  let answered = 0;
  const statuses = new Set<number>();
  asked[method] = 0;
  const flood = Array.from({ length: FLOOD }, async (_, lane) => {
    for (let n = 0; flooding; n++) {
      const { status } = await post(
        world.agentKey,
        method === 'initialize' ? undefined : own,
        lane * 1e6 + n + 1,
        method,
        params,
      );
      statuses.add(status);
      answered++;
    }
  });
  const between: number[] = [];
  try {
    for (let n = 0; n < 25; n++) {
      const before = asked[method]!;
      const { status, text } = await post(quiet, session, n + 1, 'tools/call', { name: 'tool_1', arguments: { n } });
      between.push(asked[method]! - before);
      expect(status).toBe(200);
      expect(text).toContain('"done"');
    }
  } finally {
    flooding = false;
    await Promise.all(flood);
  }
  // The flood was served meanwhile, and the calls did not wait for all of it that was under way. That is counted at the tool
  // server: on a busy machine, this process sees many answers at once.
  expect(answered).toBeGreaterThan(FLOOD);
  expect(asked[method]).toBeGreaterThan(FLOOD);
  expect(between.sort((a, b) => a - b)[between.length >> 1]).toBeLessThan(FLOOD / 2);
  expect([...statuses].filter((status) => ![200, 404, 429].includes(status))).toEqual([]);
  const metrics = await proxy.metrics();
  expect(metrics.svc_proxy_mcp_sessions).toBeLessThanOrEqual(102);
  // anyone who was quiet still has the session
  expect((await post(quiet, session, 99, 'tools/list', {})).status).toBe(200);
});
