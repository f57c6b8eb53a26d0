import { beforeAll, expect, test } from 'vitest';
import { useServer } from '../helpers/server.ts';
import { until } from '../helpers/until.ts';
import { enforce, type Governed, governed, ProxyProcess, Upstream } from './support.ts';

const READ = (name: string) =>
  `permit(principal, action, resource == Tool::"api") when { context has path && context.path == "/${name}" };`;
const PAY =
  '@id("pay") @escrow("single") @ttl("1h") permit(principal, action, resource == Tool::"api") when { context has path && context.path == "/payments" };';
const MASK = '@mask("$.card.number,$..ssn") forbid(principal, action, resource == Tool::"api");';

const server = useServer({ SVC_POLL_SECONDS: '1' }, { shared: true });
const upstream = new Upstream();
let world: Governed;
let proxy: ProxyProcess;

beforeAll(async () => {
  await upstream.start();
  world = await governed(server, { api: `${PAY}\n${MASK}` });
  proxy = new ProxyProcess([{ path: '/api/*', to: upstream.url }], world.env);
  await proxy.start();
  await proxy.ready();
});

const body = { amount: 900, card: { number: '4111 1111', holder: 'Ada' }, note: 'x\u202Ey' };
const pay = (status: number, id?: string, more: object = {}) =>
  proxy.call<{ escrow_id: string; code: string }>(status, 'POST /api/payments', world.agentKey, {
    body: { ...body, ...more },
    ...(id && { headers: { 'x-svc-escrow-id': id } }),
  });
const read = async (id: string) => (await server.call(200, `GET /v1/escrow/${id}`, world.tenant.admin)).body;
const approve = async (id: string) =>
  server.call(200, `POST /v1/escrow/${id}/vote`, await world.tenant.person('approver'), {
    decision: 'approve',
    reason: 'r',
  });

test('a hold that a proxy opens shows the action with every mask of its rules, and names their texts', async () => {
  const { escrow_id } = (await pay(423)).body;
  const hold = await read(escrow_id);
  expect(hold).toMatchObject({
    source: 'proxy',
    action_type: 'api_call',
    tool_name: 'api',
    method: 'POST',
    rule_ids: ['api#pay'],
    rules: [{ id: 'api#pay', hash: expect.stringMatching(/^sha256:/) }],
    arguments_preview: { body: { amount: 900, card: { number: '[masked]', holder: 'Ada' }, note: 'x⟦U+202E⟧y' } },
    cut: [],
  });
  expect(JSON.stringify(hold)).not.toMatch(/\b4111\b/);
  const long = (await pay(423, undefined, { aaa: 'x'.repeat(50_000) })).body;
  expect(await read(long.escrow_id)).toMatchObject({
    cut: ['arguments'],
    arguments_preview: { body: { amount: 900 } },
  });
});

test('a hold of a stolen key that showed its approvers another action is not used', async () => {
  const honest = await read((await pay(423, undefined, { amount: 1000 })).body.escrow_id);
  const bundle = await server.call<Buffer>(200, 'GET /v1/policies/bundle', await world.tenant.key('proxy'));
  const { agent_id, agent_role, action_type, tool_name, method, resource, action_hash } = honest;
  const lie = await server.call<{ id: string }>(201, 'POST /v1/escrow', await world.tenant.key('proxy'), {
    ...{ agent_id, agent_role, action_type, tool_name, method, resource, action_hash },
    action_summary: 'reads the FAQ',
    arguments_preview: { body: { amount: 1 } },
    hold_type: 'single',
    ttl_seconds: 600,
    rule_ids: ['api#pay'],
    bundle_hash: bundle.headers.get('etag')!.replaceAll('"', ''),
  });
  await approve(lie.body.id);
  expect((await pay(409, lie.body.id, { amount: 1000 })).body.code).toBe('POLICY_CHANGED');
  expect((await read(lie.body.id)).status).toBe('released');
});

test('a refused use at a proxy leaves an audit record at the control plane', async () => {
  const { escrow_id } = (await pay(423, undefined, { amount: 2000 })).body;
  await approve(escrow_id);
  expect((await pay(422, escrow_id, { amount: 2001 })).body.code).toBe('HASH_MISMATCH');
  await pay(200, escrow_id, { amount: 2000 });
  expect((await pay(409, escrow_id, { amount: 2000 })).body.code).toBe('ALREADY_CONSUMED');
  const { body: log } = await server.call<{ records: { detail: string }[] }>(
    200,
    `GET /v1/audit?target_id=${escrow_id}&action=escrow.use_refused`,
    world.tenant.admin,
  );
  expect(log.records.map(({ detail }) => detail).sort()).toEqual([
    'ALREADY_CONSUMED, attempt 1',
    'HASH_MISMATCH, attempt 1',
  ]);
});

test('a rule that was tightened under its name is not covered by what was approved before', async () => {
  const { escrow_id } = (await pay(423, undefined, { amount: 3000 })).body;
  await approve(escrow_id);
  const stricter = PAY.replace('@escrow("single")', '@escrow("multi_party") @approvals("3")');
  await enforce(server, world.tenant, 'api', `${stricter}\n${MASK}\n${READ('new')}`);
  await until(
    async () =>
      (await fetch(`${proxy.url}/api/new`, { headers: { authorization: `Bearer ${world.agentKey}` } })).status === 200,
    'the proxy enforces the change',
  );
  const received = upstream.received.length;
  const before = await proxy.metrics();
  expect((await pay(409, escrow_id, { amount: 3000 })).body.code).toBe('POLICY_CHANGED');
  // the refusal has a decision and a record
  const decided = 'svc_proxy_decisions_total{decision="escrow"}';
  // counted after the answer
  await expect.poll(async () => (await proxy.metrics())[decided]).toBe(before[decided]! + 1);
  expect(await proxy.metrics()).not.toHaveProperty('svc_proxy_refusals_total{code="POLICY_CHANGED"}');
  expect(upstream.received).toHaveLength(received);
  expect((await read(escrow_id)).status).toBe('released');
});
