import { expect, test } from 'vitest';
import { sql } from '../helpers/api.ts';
import { useServer } from '../helpers/server.ts';
import { until } from '../helpers/until.ts';
import { decisions, enforce, governed, ProxyProcess, Upstream } from '../proxy/support.ts';
import { simulated } from './support.ts';

const server = useServer({ SVC_POLL_SECONDS: '1' });
const policy = (limit: number, more = '') => `
@id("small") permit(principal in AgentRole::"clerk", action, resource == Tool::"api")
when { context.num.hasTag("body.amount") && context.num.getTag("body.amount").lessThanOrEqual(decimal("${limit}.0")) ${more} };`;

test('a proxy keeps parts of requests, or all, or nothing: simulations know as much as that, and say what they do not', async () => {
  const world = await governed(server, { p: policy(50) });
  const upstream = await new Upstream().start();
  const routes = [{ path: '/api/*', to: upstream.url, tool: 'api' }];
  const amounts = [10, 60, 90];
  let sent = 0;
  for (const kept of ['projection', 'full', 'none']) {
    const proxy = new ProxyProcess(routes, { ...world.env, SVC_PROXY_INPUTS: kept });
    await proxy.start();
    await proxy.ready();
    for (const amount of amounts) {
      const body = { amount, note: `note of ${amount}` };
      await proxy.call(amount <= 50 ? 200 : 403, 'POST /api/pay', world.agentKey, { body });
      sent++;
    }
    await until(async () => (await decisions(server, world.tenant)).length === sent, 'the decisions are recorded');
    await proxy.kill();
  }
  const kept = await sql<{ projection: string | null; input: string | null }>(
    server,
    'select projection, input from decision_input where tenant_id = $1',
    [world.tenant.id],
  );
  expect(kept.filter(({ input }) => input !== null)).toHaveLength(3);
  expect(kept).toHaveLength(6);
  for (const { projection } of kept) expect(projection).not.toContain('note of');

  const { admin } = world.tenant;
  // what the live policy reads is all that the draft reads: only what was not kept is unknown
  expect(await simulated(server, admin, 'p', { dsl_source: policy(70) })).toMatchObject({
    decisions: 9,
    unknown: 3,
    unknown_by_reason: { input_erased: 3 },
    matrix: { allow: { allow: 2 }, deny: { allow: 2, deny: 2 } },
    groups: [{ direction: 'newly_allowed', count: 2, unpriced: 1 }],
    drift: { total: 0 },
    nothing_newly_allowed: false,
  });
  // the draft reads a note, which only whole inputs have: the others are not "same"
  const noted = policy(70, '&& context.str.hasTag("body.note") && context.str.getTag("body.note") like "*9*"');
  expect(await simulated(server, admin, 'p', { dsl_source: noted })).toMatchObject({
    unknown: 6,
    unknown_by_reason: { input_erased: 3, projection_insufficient: 3 },
    matrix: { allow: { deny: 1 }, deny: { deny: 2 } },
  });
  // retention takes the whole inputs first: the parts beside them still answer
  await sql(server, 'update decision_input set input = null, salt_b = null where tenant_id = $1', [world.tenant.id]);
  expect(await simulated(server, admin, 'p', { dsl_source: policy(80) })).toMatchObject({
    unknown: 3,
    matrix: { allow: { allow: 2 }, deny: { allow: 2, deny: 2 } },
  });
  // a live policy that reads more than the one of the time: neither side can be told
  await enforce(server, world.tenant, 'p', noted);
  expect(await simulated(server, admin, 'p', { dsl_source: policy(70) })).toMatchObject({
    decisions: 9,
    unknown_by_reason: { input_erased: 3, projection_insufficient: 6 },
    matrix: {},
  });
  // what is no part of a request is unreadable, whatever it claims to have
  await sql(
    server,
    `update decision_input set projection = replace(projection, '"keys":[', '"keys":[7,') where tenant_id = $1`,
    [world.tenant.id],
  );
  expect(await simulated(server, admin, 'p', { dsl_source: policy(60) })).toMatchObject({
    unknown_by_reason: { input_erased: 3, unreadable: 6 },
  });
});
