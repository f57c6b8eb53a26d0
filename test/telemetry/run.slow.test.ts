import { beforeAll, expect, test } from 'vitest';
import { SPAN_ATTRIBUTES } from '../../server/lib/telemetry/names.ts';
import { useServer } from '../helpers/server.ts';
import { type Governed, governed, ProxyProcess, Upstream } from '../proxy/support.ts';
import { Collector } from './collector.ts';

/** The trace of an agent's run as a collector shows it, by the real exporters of the server and of a proxy. */
const collector = await Collector.start();
const server = useServer({ SVC_POLL_SECONDS: '1', OTEL_EXPORTER_OTLP_ENDPOINT: collector.url });
const POLICY = `
@id("all") permit(principal in AgentRole::"clerk", action, resource);
@id("held") @escrow("single") forbid(principal, action, resource == Tool::"pay");
`;
const TRACE = '4bf92f3577b34da6a3ce929d0e0e4736';
const PARENT = '00f067aa0ba902b7';
const SECRET = 'never-in-a-span-7f3a';
let world: Governed;
let proxy: ProxyProcess;
let upstream: Upstream;
beforeAll(async () => {
  upstream = await new Upstream().start();
  world = await governed(server, { api: POLICY });
  const env = { ...world.env, OTEL_EXPORTER_OTLP_ENDPOINT: collector.url, SVC_PROXY_ID: 'edge-1' };
  const routes = [
    { path: '/pay', to: `${upstream.url}/pay`, tool: 'pay' },
    { path: '/*', to: upstream.url, tool: 'api' },
  ];
  proxy = await new ProxyProcess(routes, env).start();
  await proxy.ready();
});

/** A call until its hold is used: the three spans of it. */
async function heldRun(
  ask: (trace: string, hold?: string) => Promise<{ hold?: string; event: string }>,
  trace: string,
) {
  const first = await ask(trace);
  const opened = await collector.find((one) => one.attributes['svc.event.id'] === first.event, 'the asking call');
  // while the hold waits
  expect(opened).toMatchObject({ trace, parent: PARENT, events: ['svc.hold.waiting'] });
  expect(opened.attributes).toMatchObject({ 'svc.decision': 'escrow', 'svc.hold.id': first.hold });
  const approver = await world.tenant.person('approver');
  await server.call(200, `POST /v1/escrow/${first.hold}/vote`, approver, { decision: 'approve', reason: SECRET });
  const second = await ask(trace, first.hold);
  const hold = await collector.find(
    (one) => one.name === 'hold' && one.attributes['svc.hold.id'] === first.hold,
    'the hold',
  );
  expect(hold).toMatchObject({
    trace,
    parent: opened.id,
    events: ['svc.hold.opened', 'svc.hold.released', 'svc.hold.consumed'],
  });
  const used = await collector.find((one) => one.attributes['svc.event.id'] === second.event, 'the call that used it');
  expect(used).toMatchObject({ trace, parent: PARENT, events: ['svc.hold.consumed'] });
  expect(used.attributes['svc.decision']).toBe('allow');
  return { opened, hold, used };
}

test('a hold that waits is seen in the trace of the agent’s run, and then how it ended: asked at the server', async () => {
  const bot = await world.tenant.agent('bot-2', 'clerk');
  const ask = async (trace: string, hold?: string) => {
    const headers = {
      ...bot.headers,
      traceparent: `00-${trace}-${PARENT}-01`,
      ...(hold !== undefined && { 'x-svc-escrow-id': hold }),
    };
    const body = { action_type: 'payment', tool_name: 'pay', arguments: { to: SECRET }, action_summary: SECRET };
    const answer = await server.call<{ event_id: string; escrow?: { id: string } }>(
      200,
      'POST /v1/evaluate',
      { ...bot, headers },
      body,
    );
    return { event: answer.body.event_id, ...(answer.body.escrow && { hold: answer.body.escrow.id }) };
  };
  const { opened, hold } = await heldRun(ask, TRACE);
  expect(opened).toMatchObject({ service: 'svc-server', name: 'evaluate pay', kind: 2 });
  expect(hold).toMatchObject({ service: 'svc-server', kind: 1 });
  expect(opened.attributes).toMatchObject({ 'gen_ai.agent.id': 'bot-2', 'svc.tenant.id': world.tenant.id });
});

test('and the same through a proxy, whose spans are those of its records', async () => {
  const ask = async (trace: string, hold?: string) => {
    const headers = {
      traceparent: `00-${trace}-${PARENT}-01`,
      ...(hold !== undefined && { 'x-svc-escrow-id': hold }),
    };
    const answer = await proxy.call(hold ? 200 : 423, `POST /pay?q=${SECRET}`, world.agentKey, {
      headers,
      body: { secret: SECRET },
    });
    const id = answer.headers.get('x-svc-escrow-id');
    return { event: answer.headers.get('x-svc-event-id')!, ...(id !== null && { hold: id }) };
  };
  const { opened, used } = await heldRun(ask, 'cd'.repeat(16));
  expect(opened).toMatchObject({ service: 'svc-proxy', name: 'POST pay' });
  expect(used.attributes).toMatchObject({ 'svc.outcome': 'HTTP 200', 'svc.proxy.id': 'edge-1' });
  expect(upstream.received.at(-1)!.headers.traceparent).toBe(`00-${used.trace}-${used.id}-01`);
});

test('an action that fails is marked so, a denial is not, and neither holds up the agent', async () => {
  upstream.respond = (_request, response) => response.writeHead(500).end();
  const failing = await proxy.call(500, 'GET /x', world.agentKey);
  const failed = await collector.find(
    (one) => one.attributes['svc.event.id'] === failing.headers.get('x-svc-event-id'),
    'the span of the call that failed',
  );
  expect(failed).toMatchObject({ name: 'GET api', failed: true });
  const stranger = await world.tenant.agent('bot-3', 'stranger');
  const denied = await server.call<{ event_id: string }>(200, 'POST /v1/evaluate', stranger, {
    action_type: 'tool_call',
    tool_name: 'send',
  });
  const refused = await collector.find((one) => one.attributes['svc.event.id'] === denied.body.event_id, 'the denial');
  expect(refused).toMatchObject({ failed: false, events: [] });
  expect(refused.attributes['svc.decision']).toBe('deny');
});

test('what an agent calls its tools and sessions is shown with nothing hidden in it', async () => {
  const { body } = await server.call<{ event_id: string }>(
    200,
    'POST /v1/evaluate',
    { key: world.agentKey },
    {
      ...{ action_type: 'tool_call', tool_name: 'pay\u202egnp', session_id: 'a\u001b[2J' },
    },
  );
  const span = await collector.find((one) => one.attributes['svc.event.id'] === body.event_id, 'the call');
  expect(span.name).toBe('evaluate pay⟦U+202E⟧gnp');
  expect(span.attributes).toMatchObject({
    'gen_ai.tool.name': 'pay⟦U+202E⟧gnp',
    'gen_ai.conversation.id': 'a␛[2J',
  });
});

test('nothing of arguments, addresses, summaries or reasons is in any span, and no name that is not listed', () => {
  expect(collector.spans.length).toBeGreaterThan(7);
  expect(collector.bodies.join('')).not.toContain(SECRET);
  const names = new Set(collector.spans.flatMap(({ attributes }) => Object.keys(attributes)));
  expect([...names].filter((name) => !Object.values<string>(SPAN_ATTRIBUTES).includes(name))).toEqual([]);
});
