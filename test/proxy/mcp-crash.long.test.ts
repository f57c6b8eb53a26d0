import { createServer, request as httpRequest } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterEach, beforeAll, expect, test } from 'vitest';
import { atEnd } from '../helpers/cleanups.ts';
import { useServer } from '../helpers/server.ts';
import { until } from '../helpers/until.ts';
import { decisions, type Governed, governed, ProxyProcess, Upstream } from './support.ts';

/**
 * The proxy is killed between an approval's use and the call that it was used for. The call is never made twice, no matter who
 * repeats it in whatever way; the agent is told that its approval is gone; and what happened is on record.
 */

const MODERN = '2026-07-28';
const server = useServer({ SVC_POLL_SECONDS: '1' });
const upstream = new Upstream();
/** Calls that the tool has carried out. */
const done: string[] = [];
let world: Governed;
let proxy: ProxyProcess;
/** When the control plane has consumed a hold, before the proxy hears of it. */
let onConsumed: (() => Promise<void>) | undefined;
/** When the tool server has carried a call out, before it answers. */
let onDone: (() => Promise<void>) | undefined;

beforeAll(async () => {
  world = await governed(server, {
    p: `permit(principal, action, resource in ToolServer::"bank"); @escrow("single") forbid(principal, action, resource == Tool::"pay");`,
  });
  await upstream.start();
  upstream.respond = async ({ body }, response) => {
    const { id, method, params } = JSON.parse(body || '{}');
    if (method === 'tools/call') {
      done.push(JSON.stringify(params.arguments));
      await onDone?.();
    }
    const results: Record<string, object> = {
      'server/discover': { supportedVersions: [MODERN], capabilities: { tools: {} } },
      'tools/list': { tools: [{ name: 'pay', inputSchema: { type: 'object' } }] },
      'tools/call': { content: [{ type: 'text', text: 'paid' }] },
    };
    const result = { resultType: 'complete', ...results[method] };
    response.setHeader('content-type', 'application/json').end(JSON.stringify({ jsonrpc: '2.0', id, result }));
  };
  const control = server.url;
  const relay = createServer((request, response) => {
    const sent = httpRequest(control + request.url, { method: request.method, headers: request.headers });
    sent.on('response', async (answer) => {
      if (request.url!.endsWith('/consume') && answer.statusCode === 200) await onConsumed?.();
      response.writeHead(answer.statusCode!, answer.headers);
      answer.pipe(response);
    });
    sent.on('error', () => response.destroy());
    request.pipe(sent);
  });
  await new Promise<void>((resolve) => relay.listen(0, '127.0.0.1', resolve));
  atEnd(() => {
    relay.closeAllConnections();
    relay.close();
  });
  const env = { ...world.env, SVC_URL: `http://127.0.0.1:${(relay.address() as AddressInfo).port}` };
  proxy = await new ProxyProcess([{ path: '/bank', mcp: `${upstream.url}/mcp`, server: 'bank' }], env).start();
  await proxy.ready();
});
afterEach(() => {
  onConsumed = undefined;
  onDone = undefined;
});

let next = 0;
async function ask(method: string, params: Record<string, unknown>, tasks: boolean) {
  const _meta = {
    ...(params._meta as object),
    'io.modelcontextprotocol/protocolVersion': MODERN,
    'io.modelcontextprotocol/clientCapabilities': tasks ? { extensions: { 'io.modelcontextprotocol/tasks': {} } } : {},
  };
  const name = params.taskId ?? params.name;
  const response = await fetch(`${proxy.url}/bank`, {
    method: 'POST',
    headers: {
      authorization: `Bearer ${world.agentKey}`,
      'content-type': 'application/json',
      accept: 'application/json, text/event-stream',
      'mcp-protocol-version': MODERN,
      'mcp-method': method,
      'mcp-name': String(name),
    },
    body: JSON.stringify({ jsonrpc: '2.0', id: ++next, method, params: { ...params, _meta } }),
  });
  // biome-ignore lint/suspicious/noExplicitAny: answers of any method
  return (await response.json()) as { result?: any; error?: any };
}
const vote = async (hold: string) =>
  server.call(200, `POST /v1/escrow/${hold}/vote`, await world.tenant.person('approver'), { decision: 'approve' });
const holdOf = async (id: string) => (await server.call(200, `GET /v1/escrow/${id}`, world.tenant.admin)).body;
/** Calls, has it approved, and calls again while the proxy is killed at that point; then starts it again. */
async function killed(amount: number, tasks: boolean, when: (kill: () => Promise<void>) => void) {
  const call = { name: 'pay', arguments: { amount } };
  const first = (await ask('tools/call', call, tasks)).result;
  const hold: string = tasks ? first.taskId.split('.')[0] : first._meta['svc/decision'].escrow_id;
  await vote(hold);
  let fell = false;
  when(async () => {
    fell = true;
    await proxy.kill();
  });
  const again = tasks ? ask('tasks/get', { taskId: first.taskId }, true) : ask('tools/call', call, false);
  await expect(again).rejects.toThrow();
  expect(fell).toBe(true);
  onConsumed = undefined;
  onDone = undefined;
  upstream.respond = respond;
  await proxy.start();
  await proxy.ready();
  return { call, hold, taskId: first.taskId as string };
}
let respond: Upstream['respond'];
beforeAll(() => {
  respond = upstream.respond;
});

/** What the agent is told, in each way that it may try again, none of which runs the call. */
async function triedAgain({ call, hold, taskId }: Awaited<ReturnType<typeof killed>>, tasks: boolean) {
  const before = [...done];
  if (tasks) {
    const task = (await ask('tasks/get', { taskId }, true)).result;
    expect(task).toMatchObject({
      status: 'failed',
      error: { message: expect.stringContaining('consumed'), data: { 'svc/decision': { escrow_id: hold } } },
    });
  }
  const named = (await ask('tools/call', { ...call, _meta: { 'svc/escrow-id': hold } }, false)).result;
  expect(named).toMatchObject({
    isError: true,
    content: [{ text: 'the hold was consumed already' }],
    _meta: { 'svc/decision': { code: 'ALREADY_CONSUMED' } },
  });
  for (let n = 0; n < 2; n++) {
    const repeated = (await ask('tools/call', call, false)).result;
    expect(repeated).toMatchObject({
      isError: true,
      content: [{ text: expect.stringContaining(`An approval of this very action, ${hold}, was used at `) }],
      _meta: { 'svc/decision': { decision: 'escrow', used: { escrow_id: hold } } },
    });
    expect(repeated._meta['svc/decision'].escrow_id).not.toBe(hold);
  }
  expect(done).toEqual(before);
}

test.each([false, true])('before the proxy hears that the hold was consumed (as a task: %s)', async (tasks) => {
  const amount = tasks ? 2 : 1;
  const tried = await killed(amount, tasks, (kill) => {
    onConsumed = kill;
  });
  await triedAgain(tried, tasks);
  expect(done).not.toContain(`{"amount":${amount}}`);
  expect(await holdOf(tried.hold)).toMatchObject({ status: 'consumed', consumed_at: expect.any(String) });
  const { body } = await server.call<{ entries: { action: string; target_id?: string }[] }>(
    200,
    `GET /v1/audit?action=escrow.consumed&limit=100`,
    world.tenant.admin,
  );
  expect(JSON.stringify(body)).toContain(tried.hold);
  // nothing was permitted: no record says so
  expect(await permits(tried.hold)).toEqual([]);
});

test('before the call reaches the tool', async () => {
  const tasks = false;
  const amount = 3;
  const tried = await killed(amount, tasks, (kill) => {
    upstream.respond = async ({ body }, response, raw) => {
      if (JSON.parse(body).method !== 'tools/call') return respond({ body } as never, response, raw);
      // it was sent, and is not read: as where the connection ends on the way
      await kill();
      response.destroy();
    };
  });
  await triedAgain(tried, tasks);
  expect(done).not.toContain(`{"amount":${amount}}`);
  await recorded(tried.hold);
});

test('before the tool has answered', async () => {
  const tasks = true;
  const amount = 5;
  const tried = await killed(amount, tasks, (kill) => {
    onDone = kill;
  });
  await triedAgain(tried, tasks);
  expect(done.filter((one) => one === `{"amount":${amount}}`)).toHaveLength(1);
  await recorded(tried.hold);
});

/** The records of permits that used the hold, in full. */
async function permits(hold: string) {
  const found: Record<string, unknown>[] = [];
  for (const { id, decision } of await decisions(server, world.tenant)) {
    if (decision !== 'allow') continue;
    const { body } = await server.call<Record<string, unknown>>(200, `GET /v1/events/${id}`, world.tenant.admin);
    if (body.escrow_id === hold) found.push(body);
  }
  return found;
}

/** The permit is on record, sent by the process that came after, without an outcome: nobody knows of one. */
async function recorded(hold: string) {
  const [record, ...more] = await until(async () => {
    const found = await permits(hold);
    return found.length > 0 && found;
  }, 'the permit is recorded');
  expect(more).toEqual([]);
  expect(record!.outcome ?? null).toBeNull();
}
