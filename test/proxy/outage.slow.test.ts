import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Core, openCore } from '../../server/app.ts';
import { readConfig } from '../../server/config.ts';
import { OPERATOR } from '../../server/domain/audit.ts';
import { DECISIONS } from '../../server/domain/decision.ts';
import { createLog } from '../../server/lib/log.ts';
import { createTenant } from '../../server/provision.ts';
import { useDatabase } from '../helpers/database.ts';
import { MASTER_KEY, ServerProcess } from '../helpers/processes.ts';
import { until } from '../helpers/until.ts';
import { ROUNDS } from '../siege/rounds.ts';
import { ProxyProcess, Upstream } from './support.ts';

const POLICY = `permit(principal in AgentRole::"clerk", action, resource == Tool::"api") unless { context has method && context.method == "DELETE" };
@escrow("multi_party") @approvals("2") forbid(principal, action, resource == Tool::"api") when { context has method && context.method == "PUT" };`;

/** A control plane, a proxy and an upstream, each as it is run, and the control plane gone for a while. */
const box = useDatabase();
const dir = mkdtempSync(path.join(tmpdir(), 'svc-outage-'));
const upstream = new Upstream();
let core: Core;
let server: ServerProcess;
let tenantId: string;
let adminKey: string;
let agentKey: string;
let otherKey: string;
let proxyKey: string;

beforeAll(async () => {
  const env = { DATABASE_URL: box.url, SVC_POLL_SECONDS: '1' };
  core = await openCore({
    config: readConfig({ ...env, SVC_DATA_DIR: dir, SVC_MASTER_KEY: MASTER_KEY }),
    databaseUrl: box.url,
    log: createLog('silent'),
  });
  server = new ServerProcess('control plane', env);
  await Promise.all([server.start(), upstream.start()]);
  const made = await createTenant(core, server.url, { id: 'outage', name: 'Test', adminEmail: 'admin@example.test' });
  tenantId = made.tenant_id;
  adminKey = made.api_key;
  const by = { actor: OPERATOR };
  const agent = { label: 'bot', agentId: 'bot-1', agentRole: 'clerk', owner: null };
  agentKey = (await core.keys.createAgentKey(tenantId, agent, by)).secret;
  otherKey = (await core.keys.createAgentKey(tenantId, { ...agent, agentId: 'bot-2' }, by)).secret;
  proxyKey = (await core.keys.createApiKey(tenantId, { label: 'proxy', scopes: ['proxy'], owner: null }, by)).secret;
  await call('POST /v1/policies', { id: 'api', dsl_source: POLICY });
  await call('POST /v1/policies/api/approve', { version: 1 });
});
afterAll(async () => {
  await server?.dispose();
  await core?.stop();
  rmSync(dir, { recursive: true, force: true });
});

async function call<T = Record<string, unknown>>(line: string, body?: unknown): Promise<T> {
  const [method, target] = line.split(' ') as [string, string];
  const response = await fetch(server.url + target, {
    method,
    headers: {
      authorization: `Bearer ${adminKey}`,
      ...(body !== undefined && { 'content-type': 'application/json' }),
    },
    ...(body !== undefined && { body: JSON.stringify(body) }),
  });
  const answer = await response.json();
  expect(response.ok, `${line}: ${JSON.stringify(answer)}`).toBe(true);
  return answer as T;
}

async function approve(holdId: string, email: string): Promise<void> {
  const member = await core.tenants.addMember(tenantId, { email, roles: ['approver'] }, { actor: OPERATOR });
  const token = await core.links.create(tenantId, member, 600, { actor: OPERATOR });
  const entered = await fetch(`${server.url}/auth/magic-link/verify?token=${token}`, { redirect: 'manual' });
  const cookie = entered.headers.get('set-cookie')!.split(';')[0]!;
  const vote = await fetch(`${server.url}/v1/escrow/${holdId}/vote`, {
    method: 'POST',
    headers: { cookie, origin: server.url, 'content-type': 'application/json' },
    body: JSON.stringify({ decision: 'approve', reason: 'as agreed' }),
  });
  expect(vote.status, await vote.text()).toBe(200);
}

test('the control plane is away, the spool fills, the proxy is killed: what was let through is in the chain, once', async () => {
  const proxy = new ProxyProcess([{ path: '/api/*', to: upstream.url }], {
    SVC_URL: server.url,
    SVC_PROXY_KEY: proxyKey,
    SVC_PROXY_SPOOL_MB: '1',
    // with what was asked, long as it is, it is full soon
    SVC_PROXY_INPUTS: 'full',
  });
  await proxy.start();
  await proxy.ready();
  const told = new Map<string, string>();
  const ask = async (n: number) => {
    const response = await fetch(`${proxy.url}/api/${n}?note=${'x'.repeat(3000)}`, {
      method: n % 7 === 0 ? 'DELETE' : 'GET',
      headers: { authorization: `Bearer ${agentKey}` },
    }).catch(() => undefined);
    await response?.arrayBuffer().catch(() => undefined);
    const id = response?.headers.get('x-svc-event-id');
    if (id) told.set(id, response!.headers.get('x-svc-decision')!);
    return response?.status;
  };
  const askMany = (many: number) => Promise.all(Array.from({ length: many }, (_, n) => ask(n)));

  // a payment that two people approve
  const held = await proxy.call(423, 'PUT /api/pay', agentKey, { body: { amount: 250 } });
  const headers = { 'x-svc-escrow-id': held.body.escrow_id as string };
  await approve(headers['x-svc-escrow-id'], 'one@example.test');
  await proxy.call(423, 'PUT /api/pay', agentKey, { body: { amount: 250 }, headers });
  await approve(headers['x-svc-escrow-id'], 'two@example.test');
  await proxy.call(200, 'PUT /api/pay', agentKey, { body: { amount: 250 }, headers });
  await proxy.call(409, 'PUT /api/pay', agentKey, { body: { amount: 250 }, headers });
  expect(upstream.received).toHaveLength(1);
  expect(await askMany(10)).toEqual(expect.arrayContaining([200, 403]));

  // away: it goes on deciding by what it has, until nothing more can be recorded
  await server.kill();
  const back = Date.now() + ROUNDS.awayMs;
  await proxy.call(503, 'PUT /api/pay', agentKey, { body: { amount: 99 } });
  let forwarded = upstream.received.length;
  await until(
    async () => {
      const answers = await askMany(50);
      if (answers.every((status) => status === 503)) return true;
      forwarded = upstream.received.length;
      return false;
    },
    'nothing more can be recorded',
    { limitMs: 120_000, everyMs: 0 },
  );
  expect(upstream.received, 'nothing is let through that cannot be recorded').toHaveLength(forwarded);
  const full = await proxy.metrics();
  expect(full.svc_proxy_events_decided).toBe(full.svc_proxy_events_acknowledged! + full.svc_proxy_spool_events!);

  // killed with its spool full; the next one finds all of it, and still lets nothing through
  await proxy.kill();
  await proxy.start();
  const again = await proxy.metrics();
  expect(again.svc_proxy_events_decided).toBe(full.svc_proxy_events_decided);
  expect(again.svc_proxy_spool_events).toBe(again.svc_proxy_events_decided! - again.svc_proxy_events_acknowledged!);
  while (Date.now() < back) {
    expect(await ask(1)).toBe(503);
    await delay(250);
  }
  expect(await (await fetch(`${proxy.url}/readyz`)).json()).toMatchObject({
    faults: expect.arrayContaining(['spool']),
  });

  await server.startAgain();
  await until(async () => (await proxy.metrics()).svc_proxy_spool_events === 0, 'everything is sent');
  expect(await ask(1)).toBe(200);
  const version = await call<{ version: number }>('PUT /v1/policies/api', {
    dsl_source: `${POLICY}\nforbid(principal, action, resource == Tool::"api");`,
  });
  expect(version.version).toBe(2);
  await until(async () => (await ask(1)) === 403, 'a change of policy is enforced');
  proxy.signal('SIGTERM');
  expect(await proxy.exited()).toBe(0);

  const { rows } = await box.db.owner.query<{ event_id: string; decision: number }>(
    `select event_id, decision from forensic_record where tenant_id = $1 and seq > 1 order by seq`,
    [tenantId],
  );
  const stored = new Map(rows.map(({ event_id, decision }) => [event_id, DECISIONS[decision]]));
  expect(stored.size, 'none twice').toBe(rows.length);
  for (const [id, decision] of told) expect(stored.get(id), id).toBe(decision);
  const allowed = rows.filter(({ decision }) => DECISIONS[decision] === 'allow').length;
  expect(upstream.received.length, 'nothing was done without a record').toBeLessThanOrEqual(allowed);
  const verdict = await call('GET /v1/forensics/verify');
  expect(verdict).toMatchObject({ verified: true, linear: true });
});

test('while the control plane is away, all agents of a proxy share what a limit says that they share', async () => {
  const source = '@rate("5/h per tool") permit(principal, action, resource in ToolServer::"shop");';
  await call('POST /v1/policies', { id: 'shop', dsl_source: source });
  await call('POST /v1/policies/shop/approve', { version: 1 });
  const route = (tool: string) => ({ path: `/${tool}`, to: upstream.url, tool, server: 'shop' });
  const proxy = new ProxyProcess(['mail', 'search'].map(route), { SVC_URL: server.url, SVC_PROXY_KEY: proxyKey });
  await proxy.start();
  await proxy.ready();
  const before = upstream.received.length;
  await proxy.call(200, 'GET /mail', agentKey);
  await server.kill();
  const mails = [];
  for (let n = 0; n < 12; n++) {
    const response = await fetch(`${proxy.url}/mail`, {
      headers: { authorization: `Bearer ${n % 2 ? agentKey : otherKey}` },
    });
    mails.push(response.status);
    await response.arrayBuffer();
  }
  expect(mails).toEqual([...Array(4).fill(200), ...Array(8).fill(429)]);
  await proxy.call(200, 'GET /search', agentKey);
  expect(upstream.received).toHaveLength(before + 6);
});
