import { expect, test } from 'vitest';
import { RulesInForce, rulesRouter } from '../../server/decisions/rules-in-force.ts';
import type { Context } from '../../server/rpc/procedure.ts';
import { BODIES, deploy, event, sql } from '../helpers/api.ts';
import { useServer } from '../helpers/server.ts';

const server = useServer({}, { shared: true });

const POLICY = [
  '@id("clerks-read") permit(principal in AgentRole::"clerk", action, resource == Tool::"read");',
  '@id("bot") @reason("not this one") forbid(principal == Agent::"ops/bot-1", action, resource in ToolServer::"files");',
  '@id("anyone") @escrow("single") @ttl("1h") forbid(principal, action, resource == Tool::"pay");',
].join('\n');

interface Rules {
  rules: { rule_id: string; effect: string; named: boolean; reason: string | null }[];
}

test('rules of live policies are found by the agent, its roles, the tool and its server', async () => {
  const [tenant, other] = [await server.tenant(), await server.tenant()];
  await deploy(server, tenant.admin, 'desk', POLICY);
  const viewer = await tenant.person('viewer');
  const rules = async (query: string, who = viewer as { cookie?: string }) => {
    const { body } = await server.call<Rules>(200, `GET /v1/rules?${query}`, who);
    return body.rules.map(({ rule_id, named }) => `${rule_id}${named ? '' : ', for any'}`);
  };
  expect(await rules('agent_id=ops/bot-1&agent_roles=auditor&agent_roles=clerk')).toEqual([
    'desk#clerks-read',
    'desk#bot',
    'desk#anyone, for any',
  ]);
  expect(await rules('agent_id=ops/bot-2')).toEqual(['desk#anyone, for any']);
  expect(await rules('tool_name=pay&tool_server=files')).toEqual(['desk#bot', 'desk#anyone']);
  expect(await rules('tool_name=pay')).toEqual(['desk#anyone']);
  expect(await rules('tool_name=read&agent_id=x&agent_roles=clerk')).toEqual(['desk#clerks-read']);
  expect(await rules('')).toHaveLength(3);
  const all = await server.call<{ rules: { rule_id: string; holds: boolean }[] }>(200, 'GET /v1/rules', viewer);
  expect(all.body.rules.flatMap(({ rule_id, holds }) => (holds ? [rule_id] : []))).toEqual(['desk#anyone']);
  expect(await rules('tool_name=pay', await other.person('viewer'))).toEqual([]);
  // a draft is not in force
  await server.call(201, 'POST /v1/policies', tenant.admin, {
    id: 'draft',
    dsl_source: 'permit(principal, action, resource == Tool::"pay");',
  });
  expect(await rules('tool_name=pay')).toEqual(['desk#anyone']);
});

test('the texts of policies are read once, and again when other rules are in force', async () => {
  const tenant = await server.tenant();
  await deploy(server, tenant.admin, 'desk', POLICY);
  let reads = 0;
  const { db } = server.core;
  const counted: typeof db.query = (...of) => {
    reads++;
    return db.query(...of);
  };
  const router = rulesRouter(db, new RulesInForce({ query: counted, notices: db.notices }, server.clock));
  const principal = { kind: 'api_key', tenantId: tenant.id, id: 'x', ownerId: null, scopes: ['pipeline'] } as const;
  const gone = () => new AbortController().signal;
  const caller = router.createCaller({ principal, gone } as unknown as Context);
  const [first] = await Promise.all(Array.from({ length: 10 }, () => caller.list({})));
  expect([reads, first!.rules.length]).toEqual([1, 3]);
  await caller.unused({});
  expect(reads).toBe(1);
  await deploy(server, tenant.admin, 'more', 'permit(principal, action, resource == Tool::"more");');
  expect((await caller.list({})).rules).toHaveLength(4);
  await server.call(200, 'DELETE /v1/policies/more', tenant.admin, { reason: 'no longer' });
  expect((await caller.list({})).rules).toHaveLength(3);
});

test('a rule is unused until a decision meets it', async () => {
  const tenant = await server.tenant();
  await deploy(server, tenant.admin, 'desk', POLICY);
  const viewer = await tenant.person('viewer');
  const unused = async () => {
    const { body } = await server.call<Rules & { of: number; looked_at: number; complete: boolean }>(
      200,
      'GET /v1/rules/unused',
      viewer,
    );
    const { rules, ...rest } = body;
    return { ...rest, rules: rules.map(({ rule_id, effect }) => `${rule_id} ${effect}`) };
  };
  expect(await unused()).toMatchObject({
    of: 3,
    looked_at: 0,
    complete: true,
    rules: ['desk#clerks-read permit', 'desk#bot forbid', 'desk#anyone guardrail'],
  });
  const ask = async (agent_id: string, tool_name: string, tool_server = 'mail') =>
    server.call(200, 'POST /v1/evaluate', await tenant.agent(agent_id, 'clerk'), {
      action_type: 'tool_call',
      tool_name,
      tool_server,
    });
  await ask('ops/bot-2', 'read');
  expect((await unused()).rules).toEqual(['desk#bot forbid', 'desk#anyone guardrail']);
  await ask('ops/bot-1', 'read', 'files');
  expect(await unused()).toMatchObject({ looked_at: 2, rules: ['desk#anyone guardrail'] });
});

test('holds are summed up by their state and, for each currency by itself, their value', async () => {
  const [tenant, other] = [await server.tenant(), await server.tenant()];
  const proxy = await tenant.key('proxy');
  const hold = async (more: Record<string, unknown>) => {
    const { body } = await server.call<{ id: string }>(201, 'POST /v1/escrow', proxy, {
      ...BODIES['POST /v1/escrow'],
      conditions: undefined,
      hold_type: 'single',
      policy_id: undefined,
      ...more,
    });
    return body.id;
  };
  const vote = async (id: string, decision: string) =>
    server.call(200, `POST /v1/escrow/${id}/vote`, await tenant.person('approver'), { decision, reason: 'seen' });
  await vote(await hold({ estimated_value: 12.5, value_currency: 'EUR' }), 'approve');
  await hold({ estimated_value: 7, value_currency: 'eur' });
  await vote(await hold({ estimated_value: 3, value_currency: 'USD' }), 'reject');
  await hold({ estimated_value: 5, value_currency: undefined });
  await hold({ estimated_value: undefined, value_currency: undefined });
  await server.call(201, 'POST /v1/escrow', await other.key('proxy'), { ...BODIES['POST /v1/escrow'] });

  const { body } = await server.call<{ decided: { p50_seconds: number; p95_seconds: number } }>(
    200,
    'GET /v1/escrow/summary?hours=1',
    await tenant.person('viewer'),
  );
  expect(body).toMatchObject({
    complete_since: null,
    states: { held: 3, released: 1, rejected: 1, consumed: 0, expired: 0, cancelled: 0 },
    decided: { count: 2 },
    money: [
      { currency: 'EUR', holds: 2, held: 7, released: 12.5, refused: 0 },
      { currency: 'USD', holds: 1, held: 0, released: 0, refused: 3 },
      { currency: null, holds: 1, held: 5, released: 0, refused: 0 },
    ],
    more_currencies: 0,
  });
  expect(body.decided.p50_seconds).toBeGreaterThan(0);
  expect(body.decided.p95_seconds).toBeGreaterThanOrEqual(body.decided.p50_seconds);
});

test('an agent is known by its keys, its decisions and its labels, and to its tenant alone', async () => {
  const [tenant, other] = [await server.tenant(), await server.tenant()];
  const owner = await tenant.member({ email: 'owner@example.test', name: 'Olga', roles: ['author'] });
  const line = `GET /v1/agents/${encodeURIComponent('ops/bot-1')}`;
  await server.call(201, 'POST /v1/agent-keys', tenant.admin, {
    agent_id: 'ops/bot-1',
    agent_role: 'clerk',
    owner_id: owner,
  });
  await server.call(200, 'POST /v1/evaluate', await tenant.agent('ops/bot-1', 'auditor'), {
    action_type: 'tool_call',
    tool_name: 'read',
  });
  const { body } = await server.call(200, line, await tenant.person('viewer'));
  expect(body).toMatchObject({ id: 'ops/bot-1', roles: ['auditor', 'clerk'], keys: 2, labels: [] });
  expect(body.owners).toContain(owner);
  expect(body.last_seen).not.toBeNull();
  const unknown = await server.call(200, line, await other.person('viewer'));
  expect(unknown.body).toMatchObject({ roles: [], keys: 0, owners: [], last_seen: null });
});

test('a proxy is forgotten by an admin of its tenant, and comes back with its next report', async () => {
  const [tenant, other] = [await server.tenant(), await server.tenant()];
  const proxy = await tenant.key('proxy');
  const report = () => server.call(200, 'POST /v1/proxies/heartbeat', proxy, { proxy_id: 'edge/1', version: '1.0.0' });
  const listed = async () => {
    const { body } = await server.call<{ proxies: { proxy_id: string; key_id: string }[] }>(
      200,
      'GET /v1/proxies',
      tenant.admin,
    );
    return body.proxies.map(({ proxy_id }) => proxy_id);
  };
  const line = `DELETE /v1/proxies/${encodeURIComponent('edge/1')}`;
  await report();
  await server.call(404, line, other.admin);
  await server.call(403, line, await tenant.person('approver'));
  expect(await listed()).toEqual(['edge/1']);
  await server.call(204, line, tenant.admin);
  await server.call(404, line, tenant.admin);
  expect(await listed()).toEqual([]);
  await report();
  expect(await listed()).toEqual(['edge/1']);
  const { body } = await server.call<{ records: { target: { id: string } }[] }>(
    200,
    'GET /v1/audit?action=proxy.removed',
    tenant.admin,
  );
  expect(body.records.map(({ target }) => target.id)).toEqual(['edge/1']);
  // anyone who watches for silent proxies hears of it, and of one that was silent already only once
  const told = () =>
    sql(server, `select 1 from event_outbox where tenant_id = $1 and event_type = 'proxy.offline'`, [tenant.id]);
  expect(await told()).toHaveLength(1);
  await sql(server, `update proxy_instance set last_seen_at = now() - interval '1 hour' where tenant_id = $1`, [
    tenant.id,
  ]);
  await server.core.fleet.notifyOffline(tenant.id, 15);
  await server.call(204, line, tenant.admin);
  expect(await told()).toHaveLength(2);
});

test('a proxy that says that it stops is stopped, never silent, and one on a desktop alarms nobody', async () => {
  const tenant = await server.tenant();
  const proxy = await tenant.key('proxy');
  const other = await tenant.key('proxy');
  const report = (proxy_id: string, more = {}, key = proxy) =>
    server.call(200, 'POST /v1/proxies/heartbeat', key, { proxy_id, ...more });
  const states = async () => {
    const { body } = await server.call<{ proxies: { proxy_id: string; state: string }[] }>(
      200,
      'GET /v1/proxies',
      tenant.admin,
    );
    return Object.fromEntries(body.proxies.map(({ proxy_id, state }) => [proxy_id, state]));
  };
  const hourPasses = () =>
    sql(
      server,
      `update proxy_instance set last_seen_at = last_seen_at - interval '1 hour', silent_at = silent_at - interval '1 hour'
       where tenant_id = $1`,
      [tenant.id],
    );
  const silent = async () => {
    await hourPasses();
    await server.core.fleet.notifyOffline(tenant.id, 15);
    expect(await server.core.fleet.due()).not.toContain(tenant.id);
    const told = await sql<{ id: string }>(
      server,
      `select payload ->> 'proxy_id' as id from event_outbox where tenant_id = $1 and event_type = 'proxy.offline'`,
      [tenant.id],
    );
    return told.map(({ id }) => id).sort();
  };
  for (const id of ['edge', 'gone']) await report(id);
  await report('laptop', { desktop: true });
  await report('closed', { desktop: true });
  await report('edge', { stopping: true });
  await report('closed', { desktop: true, stopping: true });
  expect(await states()).toEqual({ edge: 'stopped', gone: 'alive', laptop: 'alive', closed: 'stopped' });
  expect(await silent()).toEqual(['gone']);
  expect(await states()).toEqual({ edge: 'stopped', gone: 'silent', laptop: 'silent', closed: 'stopped' });
  const rollout = await server.call(200, 'GET /v1/proxies/rollout', tenant.admin);
  expect(rollout.body).toMatchObject({ proxies: 0, silent: 1 });
  // no key says of another key's proxy that it stopped, not even of a silent one, nor adds one that was never there
  await report('gone', { stopping: true }, other);
  await report('never', { stopping: true }, other);
  expect(await states()).toEqual({ edge: 'stopped', gone: 'silent', laptop: 'silent', closed: 'stopped' });
  // one that starts again is missed again
  await report('edge');
  expect(await states()).toMatchObject({ edge: 'alive' });
  expect(await silent()).toEqual(['edge', 'gone']);
  // a stop does not wait for one that stopped: it applies it when it starts
  const { body } = await server.call<{ proxies: { pending: unknown[]; unreachable: { proxy_id: string }[] } }>(
    201,
    'POST /v1/stops',
    tenant.admin,
    { target_kind: 'agent', target_id: 'bot-7', reason: 'r', wait: 0 },
  );
  expect(body.proxies.unreachable.map(({ proxy_id }) => proxy_id)).toEqual(['edge', 'gone', 'laptop']);
  await server.call(204, 'DELETE /v1/proxies/closed', tenant.admin);
  expect(await silent()).toEqual(['edge', 'gone']);
});

test('what a proxy that was cut off decided on Tuesday is found on Tuesday, in lists, counts, groups and the file', async () => {
  const tenant = await server.tenant();
  const viewer = await tenant.person('viewer');
  const proxy = await tenant.key('proxy');
  const tuesday = '2026-03-03';
  // a string that looks like the time of a decision is none
  const forged = '","timestamp":"2026-03-03T12:00:00.000Z","x":"';
  const late = ['01:00', '10:00', '23:59'].map((at) => ({
    ...event({ agent_id: 'crm-bot-1', tool_name: 'crm.read', trace_id: 'f'.repeat(32) }),
    timestamp: `${tuesday}T${at}:00.000Z`,
  }));
  const others = [
    { ...event({ agent_id: 'crm-bot-1' }), timestamp: '2026-03-02T23:59:59.999Z' },
    { ...event({ agent_id: 'crm-bot-1' }), timestamp: '2026-03-04T00:00:00.000Z' },
    { ...event({ agent_id: 'crm-bot-1', method: forged }), timestamp: new Date(server.clock.now()).toISOString() },
    { ...event({ agent_id: 'other', tool_name: 'crm.read' }), timestamp: `${tuesday}T10:00:00+02:00` },
  ];
  await server.call(202, 'POST /v1/events/ingest', proxy, { events: [...others, ...late] });
  const ids = late.map((one) => (one as { event_id?: string }).event_id!);
  const window = 'decided_since=2026-03-03&decided_until=2026-03-04';
  const list = async (query: string) => {
    const { body } = await server.call<{
      events: { id: string; timestamp: string; created_at: string }[];
      has_more: boolean;
    }>(200, `GET /v1/events?order=asc&${query}`, viewer);
    return body.events;
  };
  const found = await list(`agent_id=crm-bot-1&${window}`);
  expect(found.map(({ id }) => id)).toEqual(ids);
  // both times are in the list: whoever reads it sees that they were reported late
  for (const { timestamp, created_at } of found) expect(created_at > timestamp).toBe(true);
  expect(await list(`tool_name=crm.read&${window}`)).toHaveLength(4);
  expect(await list(`decided_until=2026-03-03`)).toHaveLength(1);
  // by the time of receipt nothing is there
  expect(await list('since=2026-03-03&until=2026-03-04')).toEqual([]);

  const counts = await server.call<{ matching: number; since: string; buckets: { at: string; allow: number }[] }>(
    200,
    `GET /v1/events/counts?agent_id=crm-bot-1&buckets=24&${window}`,
    viewer,
  );
  expect(counts.body).toMatchObject({ matching: 3, since: `${tuesday}T00:00:00.000Z` });
  const hours = counts.body.buckets.filter(({ allow }) => allow > 0).map(({ at }) => at.slice(11, 13));
  expect(hours).toEqual(['01', '10', '23']);
  const groups = await server.call(200, `GET /v1/events/groups?by=agent_id&${window}`, viewer);
  expect(groups.body).toMatchObject({
    groups: [
      { value: 'crm-bot-1', count: 3, first_at: `${tuesday}T01:00:00.000Z`, last_at: `${tuesday}T23:59:00.000Z` },
      { value: 'other', count: 1, first_at: `${tuesday}T08:00:00.000Z` },
    ],
  });
  await server.call(400, 'GET /v1/events/counts?decided_since=2026-03-04&decided_until=2026-03-03', viewer);

  // the file has what an auditor joins on
  const { text } = await server.call(200, `GET /v1/events/export?agent_id=crm-bot-1&${window}`, viewer);
  const [head, ...rows] = text.trim().split('\r\n');
  const cellsOf = (row: string) => row.split(',').map((cell) => cell.replace(/^"(.*)"$/, '$1'));
  const cells = rows.map((row) => Object.fromEntries(cellsOf(head!).map((name, n) => [name, cellsOf(row)[n]])));
  expect(cells.map(({ id }) => id)).toEqual(ids.toReversed());
  const { body: detail } = await server.call<{ created_at: string; chain: { seq: number; hash: string } }>(
    200,
    `GET /v1/events/${ids[0]}`,
    viewer,
  );
  expect(cells.at(-1)).toMatchObject({
    decided_at: `${tuesday}T01:00:00.000Z`,
    received_at: detail.created_at,
    seq: String(detail.chain.seq),
    hash: detail.chain.hash,
    trace_id: 'f'.repeat(32),
    policy_version: '',
    rule_id: '',
  });
});
