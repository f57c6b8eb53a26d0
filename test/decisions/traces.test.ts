import { beforeAll, expect, test } from 'vitest';
import { type Credential, type TestTenant, useServer } from '../helpers/server.ts';
import { enforce } from '../proxy/support.ts';

/** Traces at the control plane. Those through proxies are in test/proxy/traces.test.ts. */
const server = useServer({}, { shared: true });
const TRACE = '4bf92f3577b34da6a3ce929d0e0e4736';
const PARENT = '00f067aa0ba902b7';
let tenant: TestTenant;
let bot: Credential;
beforeAll(async () => {
  tenant = await server.tenant();
  const policy = `permit(principal in AgentRole::"clerk", action, resource);
    @id("big") @escrow("single") forbid(principal, action, resource == Tool::"pay");`;
  await enforce(server, tenant, 'desk', policy);
  bot = await tenant.agent('bot-1', 'clerk');
});

const ask = async (headers: Record<string, string>, action: Record<string, unknown> = {}) => {
  const body = { action_type: 'tool_call', tool_name: 'send', ...action };
  return (
    await server.call<{ event_id: string }>(
      200,
      'POST /v1/evaluate',
      { ...bot, headers: { ...bot.headers, ...headers } },
      body,
    )
  ).body;
};
const detail = async (id: string) => (await server.call(200, `GET /v1/events/${id}`, tenant.admin)).body;
const listed = async (query: string, status = 200) =>
  (await server.call<{ events: { id: string }[] }>(status, `GET /v1/events?${query}`, tenant.admin)).body.events;

test('the trace that an agent names is kept, with a span of its own for each decision, and found by', async () => {
  const traceparent = `00-${TRACE}-${PARENT}-01`;
  const [one, other] = [await ask({ traceparent }), await ask({ traceparent }, { tool_name: 'look' })];
  await ask({ traceparent: `00-${'ab'.repeat(16)}-${PARENT}-01` });
  const records = [await detail(one.event_id), await detail(other.event_id)];
  for (const record of records) expect(record).toMatchObject({ trace_id: TRACE });
  expect(new Set([PARENT, ...records.map(({ span_id }) => span_id)]).size).toBe(3);
  expect((await listed(`trace_id=${TRACE}`)).map(({ id }) => id)).toEqual([other.event_id, one.event_id]);
  expect((await listed(`trace_id=${TRACE}&tool_name=send`)).map(({ id }) => id)).toEqual([one.event_id]);
  expect(await listed(`trace_id=${'cd'.repeat(16)}`)).toEqual([]);
  expect(await listed('trace_id=%22')).toEqual([]);
  await listed('trace_id=', 400);
  // another tenant has none of it
  const { body } = await server.call<{ events: unknown[] }>(
    200,
    `GET /v1/events?trace_id=${TRACE}`,
    (await server.tenant()).admin,
  );
  expect(body.events).toEqual([]);
});

test('the decisions of a batch are in one trace, each with a span of its own', async () => {
  const traceparent = `00-${'9a'.repeat(16)}-${PARENT}-01`;
  const requests = ['one', 'two', 'three'].map((tool_name) => ({ action_type: 'tool_call', tool_name }));
  const who = { ...bot, headers: { ...bot.headers, traceparent } };
  await server.call(200, 'POST /v1/evaluate/batch', who, { requests });
  const found = await listed(`trace_id=${'9a'.repeat(16)}`);
  expect(found).toHaveLength(3);
  const spans = await Promise.all(found.map(async ({ id }) => (await detail(id)).span_id));
  expect(new Set(spans).size).toBe(3);
});

test('where it names none that is valid, a trace begins with the decision', async () => {
  const made = new Set<unknown>();
  for (const headers of [
    {},
    { traceparent: 'x'.repeat(5000) },
    { traceparent: `00-${TRACE.toUpperCase()}-${PARENT}-01` },
  ]) {
    const { trace_id, span_id } = await detail((await ask(headers)).event_id);
    expect(trace_id).toMatch(/^[0-9a-f]{32}$/);
    expect(span_id).toMatch(/^[0-9a-f]{16}$/);
    made.add(trace_id);
  }
  expect(made.size).toBe(3);
});

test('it decides nothing: neither the action nor its hold is another one by it', async () => {
  const pay = (trace: string) => ask({ traceparent: `00-${trace}-${PARENT}-01` }, { tool_name: 'pay' });
  const [one, other] = [await pay('1'.repeat(32)), await pay('2'.repeat(32))] as unknown as {
    action_hash: string;
    escrow: { id: string };
  }[];
  expect(one!.escrow.id).toBe(other!.escrow.id);
  expect(one!.action_hash).toBe(other!.action_hash);
});

test('what a proxy reports is kept where it is valid, and no record is lost where it is not', async () => {
  const proxy = await tenant.key('proxy');
  const event = (n: number, more: Record<string, unknown>) => ({
    event_id: `evt_trace_${n}`,
    event_type: 'decision.allow',
    decision: 'allow',
    timestamp: new Date().toISOString(),
    proxy_id: 'edge',
    agent_id: 'bot-1',
    agent_role: 'clerk',
    tool_name: 'send',
    ...more,
  });
  const events = [
    event(1, { trace_id: 'ef'.repeat(16), span_id: PARENT }),
    event(2, { trace_id: 'EF'.repeat(16), span_id: 7 }),
    event(3, { trace_id: '0'.repeat(32), span_id: 'x'.repeat(100_000) }),
  ];
  const { body } = await server.call<{ results?: object[] }>(202, 'POST /v1/events/ingest', proxy, { events });
  expect(JSON.stringify(body)).not.toContain('error');
  expect((await listed(`trace_id=${'ef'.repeat(16)}`)).map(({ id }) => id)).toEqual(['evt_trace_1']);
  for (const n of [2, 3]) {
    const record = await detail(`evt_trace_${n}`);
    expect(record).not.toHaveProperty('trace_id');
    expect(record).not.toHaveProperty('span_id');
  }
});
