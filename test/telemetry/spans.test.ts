import { execFileSync } from 'node:child_process';
import { expect, test } from 'vitest';
import { createLog } from '../../server/lib/log.ts';
import { SCOPE_NAME, SERVICES, SPAN_ATTRIBUTES, SPAN_EVENTS, SPAN_NAMES } from '../../server/lib/telemetry/names.ts';
import { startTelemetry } from '../../server/lib/telemetry/spans.ts';
import { traceOf } from '../../server/lib/trace.ts';
import { until } from '../helpers/until.ts';
import { Collector } from './collector.ts';

const collector = await Collector.start();
const span = (tool: string, traceparent?: string) => ({
  name: SPAN_NAMES.evaluate(tool),
  kind: 'server' as const,
  trace: traceOf(traceparent),
  from: 1_700_000_000_000.25,
  to: 1_700_000_000_001.5,
  attributes: { tool, agent: 'bot-1', decision: 'allow', rule: undefined, session: '' },
  events: [{ name: SPAN_EVENTS.opened, at: 1_700_000_000_001 }],
});
const started = (everyMs = 20) =>
  startTelemetry({ endpoint: `${collector.url}/`, service: SERVICES.server, log: createLog('silent'), everyMs });

test('the names in spans are these', () => {
  // dashboards and alerts of operators are made with them: changing one is a change for everyone
  expect({ SPAN_ATTRIBUTES, SPAN_EVENTS, SCOPE_NAME, SERVICES }).toEqual({
    SPAN_ATTRIBUTES: {
      operation: 'gen_ai.operation.name',
      tool: 'gen_ai.tool.name',
      agent: 'gen_ai.agent.id',
      session: 'gen_ai.conversation.id',
      mcpMethod: 'mcp.method.name',
      httpMethod: 'http.request.method',
      tenant: 'svc.tenant.id',
      proxy: 'svc.proxy.id',
      role: 'svc.agent.role',
      server: 'svc.tool.server',
      event: 'svc.event.id',
      decision: 'svc.decision',
      rule: 'svc.rule.id',
      policy: 'svc.policy.id',
      bundle: 'svc.bundle.hash',
      hold: 'svc.hold.id',
      holdType: 'svc.hold.type',
      outcome: 'svc.outcome',
    },
    SPAN_EVENTS: {
      waiting: 'svc.hold.waiting',
      opened: 'svc.hold.opened',
      released: 'svc.hold.released',
      consumed: 'svc.hold.consumed',
      rejected: 'svc.hold.rejected',
      expired: 'svc.hold.expired',
      cancelled: 'svc.hold.cancelled',
    },
    SCOPE_NAME: 'agent-governance-control-plane',
    SERVICES: { server: 'svc-server', proxy: 'svc-proxy' },
  });
  expect([SPAN_NAMES.evaluate('refund'), SPAN_NAMES.call('tools/call', 'refund'), SPAN_NAMES.hold()]).toEqual([
    'evaluate refund',
    'tools/call refund',
    'hold',
  ]);
});

test('a span arrives as it was, bounded, and one that its caller does not want is not sent', async () => {
  const telemetry = await started();
  const trace = 'ab'.repeat(16);
  telemetry.add(span('unwanted', `00-${trace}-${'12'.repeat(8)}-00`));
  telemetry.add(span(`${'x'.repeat(299)}\u{1f600}`, `00-${trace}-${'12'.repeat(8)}-01`));
  const got = await collector.find((one) => one.trace === trace, 'the span arrives');
  await telemetry.stop();
  expect(got).toMatchObject({
    service: 'svc-server',
    scope: SCOPE_NAME,
    parent: '12'.repeat(8),
    kind: 2,
    failed: false,
    events: ['svc.hold.opened'],
  });
  expect(got.ms).toBeCloseTo(1.25, 2);
  expect(got.name).toHaveLength(300);
  expect(Object.keys(got.attributes).sort()).toEqual(['gen_ai.agent.id', 'gen_ai.tool.name', 'svc.decision']);
  expect(got.attributes['gen_ai.tool.name']).toBe(`${'x'.repeat(299)}\ufffd`);
  expect(collector.spans.some(({ name }) => name.includes('unwanted'))).toBe(false);
  expect([...collector.paths]).toEqual(['POST /v1/traces application/json']);
});

test('what the collector cannot take is dropped, the oldest first, and nobody waits for it', async () => {
  collector.status = 0;
  const before = collector.bodies.length;
  const telemetry = await started(5);
  telemetry.add(span('first'));
  await until(() => collector.bodies.length > before, 'a batch is under way, and stays so');
  for (let n = 0; n < 6000; n++) telemetry.add(span(`late-${n}`));
  // one batch at a time, whatever comes
  expect(collector.bodies.length).toBe(before + 1);
  const began = collector.spans.length;
  collector.status = 200;
  await telemetry.stop();
  expect(collector.spans.length).toBe(began);
});

test('of too many, the newest are sent', async () => {
  const telemetry = await started(20);
  for (let n = 0; n < 6000; n++) telemetry.add(span(`many-${n}`));
  const names = () => collector.spans.map(({ name }) => name).filter((name) => name.startsWith('evaluate many-'));
  // not at a stop, which waits for two seconds, however busy the machine is
  await until(() => names().at(-1) === 'evaluate many-5999', 'the newest is sent');
  expect(names().length).toBeLessThanOrEqual(4096 + 512);
  await telemetry.stop();
});

test('without a collector, nothing of OpenTelemetry is loaded: neither by the server nor by the proxy', () => {
  const script = `
    import { registerHooks } from 'node:module';
    const loaded = [];
    registerHooks({ load: (url, context, next) => { loaded.push(url); return next(url, context); } });
    await import('./server/app.ts');
    await import('./server/proxy/serve.ts');
    await import('./server/proxy/wrap.ts');
    console.log(JSON.stringify(loaded.filter((url) => /opentelemetry\\/(?!api\\/)|telemetry\\/spans/.test(url))));
    console.log(loaded.length);
    process.exit(0);
  `;
  const out = execFileSync(process.execPath, ['--input-type=module', '-e', script], { encoding: 'utf8' });
  const [telemetry, count] = out.trim().split('\n');
  expect(telemetry).toBe('[]');
  expect(Number(count)).toBeGreaterThan(100);
});
