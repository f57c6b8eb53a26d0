import { existsSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { beforeAll, expect, test } from 'vitest';
import { OPERATOR } from '../../server/domain/audit.ts';
import { sql } from '../helpers/api.ts';
import { useDns } from '../helpers/dns.ts';
import { CLIENT, HostileProvider } from '../helpers/hostile-provider.ts';
import { type Credential, type TestTenant, useServer } from '../helpers/server.ts';

/*
 * A client that knows the service's specification and nothing else: each request has exactly the members that the specification
 * lists for it. Where the specification leaves a method open, it is the one of the OpenAPI document.
 */

const dns = useDns();
const server = useServer(dns.settings({ SVC_EGRESS_ALLOW: '127.0.0.1/32' }));

const TEXT = '@id("a") permit(principal in AgentRole::"clerk", action, resource == Tool::"read");';
const OTHER = '@id("b") permit(principal in AgentRole::"clerk", action, resource == Tool::"write");';
const EVENT = {
  event_type: 'decision.allow',
  timestamp: '2026-01-31T12:00:00.000Z',
  proxy_id: 'proxy-1',
  agent_role: 'clerk',
  agent_id: 'bot-1',
  session_id: 's-1',
  tool_name: 'read',
  method: 'GET',
  decision: 'allow',
  policy_id: 'desk',
  confidence: 0.9,
  evaluation_us: 12,
  total_latency_ms: 3,
};

let tenant: TestTenant;
let admin: Credential & { userId: string };
let approver: Credential & { userId: string };
let viewer: Credential & { userId: string };
let proxy: Credential;
let pipeline: Credential;
let provider: HostileProvider;
beforeAll(async () => {
  tenant = await server.tenant();
  [admin, approver, viewer] = [
    await tenant.enter(tenant.admin.userId),
    await tenant.person('approver'),
    await tenant.person('viewer'),
  ];
  [proxy, pipeline] = [await tenant.key('proxy'), await tenant.key('pipeline')];
  provider = await HostileProvider.start(() => server.clock.now());
  return () => provider.stop();
});

/** The rows that were sent, as the specification writes their paths. */
const sent = new Set<string>();

/** Sends a request of a row, with exactly this body. */
async function send(
  row: string,
  status: number,
  who: Credential | undefined,
  path: Record<string, string> = {},
  body?: unknown,
  query = '',
) {
  sent.add(row);
  const line = row.replace(/\{(\w+)\}/g, (_, name: string) => path[name]!) + query;
  // biome-ignore lint/suspicious/noExplicitAny: the answers of all routes
  return (await server.call<any>(status, line, who, body)).body;
}

const reasonOf = async (action: string) => {
  const { records } = await send('GET /v1/audit', 200, tenant.admin, {}, undefined, `?action=${action}&limit=1`);
  return records[0].reason;
};

test('policies', async () => {
  const desk = { id: 'desk' };
  await send('POST /v1/policies/validate', 200, viewer, {}, { dsl_source: TEXT });
  await send('POST /v1/policies', 201, admin, {}, { id: 'desk', dsl_source: TEXT });
  await send('POST /v1/policies/{id}/submit', 200, admin, desk);
  await send('POST /v1/policies/{id}/approve', 200, approver, desk, { version: 1 });
  await send('PUT /v1/policies/{id}', 200, admin, desk, { dsl_source: OTHER });
  await send('POST /v1/policies/{id}/rollback', 200, pipeline, desk, { target_version: 1 });
  expect(await reasonOf('policy.rolled_back')).toBe('none was given');
  await send('GET /v1/policies', 200, viewer, {}, undefined, '?status=deployed&agent_role=clerk&limit=10&offset=0');
  await send('GET /v1/policies/{id}', 200, viewer, desk);
  const bundle = '?current_hash=sha256:none&scopes=core';
  await send('GET /v1/policies/bundle', 200, proxy, {}, undefined, bundle);
  await tenant.set({ approval_required: true });
  await send('PUT /v1/policies/{id}', 200, admin, desk, { dsl_source: OTHER });
  await send('POST /v1/policies/{id}/break-glass', 200, admin, desk, { reason: 'an emergency' });
  // the version is enforced already: it stays so, and another review is open
  const again = await send('POST /v1/policies/{id}/break-glass', 200, admin, desk, { reason: 'once more\n\tin lines' });
  expect(again).toMatchObject({ status: 'deployed', live_version: 4 });
  expect(await reasonOf('policy.break_glass')).toBe('once more\n\tin lines');
  await tenant.set({ approval_required: null });
  await send('DELETE /v1/policies/{id}', 200, pipeline, desk);
  expect(await reasonOf('policy.revoked')).toBe('none was given');
});

test('what is written with the key of the first start is the first admin’s', async () => {
  const own = await server.tenant();
  const { userId } = own.admin;
  const person = await own.enter(userId);
  const made = await server.call<{ key: string }>(201, 'POST /v1/keys', own.operatorKey, {
    label: 'x',
    scopes: ['admin'],
  });
  const [editor, other] = [await own.person('author'), await own.person('approver')];
  const wrote = (who: Credential, id: string) =>
    server.call<{ author_id: string }>(201, 'POST /v1/policies', who, { id, dsl_source: TEXT });
  await wrote(editor, 'glass');
  await server.call(200, 'POST /v1/policies/glass/break-glass', own.operatorKey, { reason: 'now' });
  await own.set({ approval_required: true });
  for (const [id, who] of Object.entries({ own: own.operatorKey, child: { key: made.body.key } })) {
    await wrote(who, id);
    expect((await server.call(200, `GET /v1/policies/${id}`, who)).body).toMatchObject({
      ...{ author_id: userId, versions: [{ author_id: userId }] },
    });
    await server.call(200, `POST /v1/policies/${id}/submit`, editor, {});
    // the four eyes are two people’s
    expect((await server.call(403, `POST /v1/policies/${id}/approve`, person, { version: 1 })).body.code).toBe(
      'SELF_APPROVAL',
    );
    await server.call(200, `POST /v1/policies/${id}/approve`, other, { version: 1 });
    await server.call(200, `PUT /v1/policies/${id}`, who, { dsl_source: OTHER });
    expect((await server.call(200, `GET /v1/policies/${id}`, who)).body).toMatchObject({ author_id: userId });
  }
  // and so is the review that an emergency left
  expect((await server.call(403, 'POST /v1/policies/glass/approve', person, { version: 1 })).body.code).toBe(
    'SELF_APPROVAL',
  );
  await server.call(200, 'POST /v1/policies/glass/approve', other, { version: 1 });
  // nor is it anybody's other than theirs by a rotation
  const mine = await server.call<{ id: string }>(201, 'POST /v1/keys', person, { label: 'm', scopes: ['admin'] });
  const rotated = await server.call<{ key: string }>(201, `POST /v1/keys/${mine.body.id}/rotate`, own.operatorKey, {});
  await wrote({ key: rotated.body.key }, 'rotated');
  expect((await server.call(200, 'GET /v1/policies/rotated', person)).body).toMatchObject({ author_id: userId });
  // the key itself belongs to nobody, as before, and outlives the person
  const { body } = await server.call<{ keys: { created_by: string | null }[] }>(200, 'GET /v1/keys', own.operatorKey);
  expect(body.keys.filter(({ created_by }) => created_by === null)).toHaveLength(3);
  await server.call(204, `DELETE /v1/team/${userId}`, await own.person('admin'));
  await wrote(own.operatorKey, 'later');
  // they may come back
  expect((await server.call(200, 'GET /v1/policies/later', own.operatorKey)).body).toMatchObject({ author_id: userId });
});

test('what was made with the key of the first start ends with the first admin, or with that key', async () => {
  const own = await server.tenant();
  const person = await own.enter(own.admin.userId);
  const other = await own.person('admin');
  const first = own.operatorKey;
  const make = async (who: Credential) =>
    (await server.call<{ id: string; key: string }>(201, 'POST /v1/keys', who, { label: 'x', scopes: ['admin'] })).body;
  const agentKey = async (who: Credential) =>
    (
      await server.call<{ id: string; key: string }>(201, 'POST /v1/agent-keys', who, {
        ...{ label: 'a', agent_id: 'bot', agent_role: 'clerk', owner_id: other.userId },
      })
    ).body;
  const works = async (key: string, line = 'GET /v1/keys') => {
    const response = await fetch(server.url + line.split(' ')[1]!, { headers: { authorization: `Bearer ${key}` } });
    return response.status !== 401;
  };
  const child = await make(first);
  const grandchild = await make(child);
  const theirs = await make(other);
  const rotated = await server.call<{ id: string; key: string }>(201, `POST /v1/keys/${theirs.id}/rotate`, first, {});
  const agent = await agentKey(child);
  const { body } = await server.call<{ keys: { id: string; made_with: string | null }[] }>(200, 'GET /v1/keys', other);
  const made = Object.fromEntries(body.keys.map(({ id, made_with }) => [id, made_with]));
  const firstId = made[child.id];
  expect(made).toMatchObject({ [firstId!]: null, [grandchild.id]: child.id, [theirs.id]: null });
  expect(made[rotated.body.id]).toBe(firstId);
  await server.call(204, `DELETE /v1/team/${person.userId}`, other);
  // also what replaced the key of another: the first admin knows it
  for (const { key } of [child, grandchild, agent, rotated.body]) expect(await works(key)).toBe(false);
  expect(await works(first.key!)).toBe(true);
  const [later, laterAgent] = [await make(first), await agentKey(first)];
  await server.call(204, `DELETE /v1/keys/${firstId}?made=true`, other);
  for (const { key } of [later, laterAgent, { key: first.key! }]) expect(await works(key)).toBe(false);
});

test('keys', async () => {
  await send('GET /v1/keys', 200, admin);
  const { id } = await send('POST /v1/keys', 201, admin, {}, { label: 'leaked', scopes: ['proxy'] });
  await send('DELETE /v1/keys/{id}', 204, tenant.admin, { id });
  expect(await reasonOf('key.revoked')).toBe('none was given');
});

test('holds', async () => {
  const action = { action_hash: `sha256:${'a'.repeat(64)}`, agent_role: 'clerk', agent_id: 'bot-1' };
  const open = async (more: object) => {
    const { body } = await server.call<{ id: string }>(201, 'POST /v1/escrow', proxy, {
      ...{ ...action, action_type: 'api_call', action_summary: 'pays', ttl_seconds: 600 },
      ...more,
    });
    return { id: body.id };
  };
  const single = await open({ hold_type: 'single' });
  const filter =
    '?status=held&agent_role=clerk&agent_id=bot-1&action_type=api_call&min_value=0&max_value=9&limit=5&offset=0';
  await send('GET /v1/escrow', 200, viewer, {}, undefined, filter);
  await send('GET /v1/escrow/{id}', 200, proxy, single);
  const vote = { decision: 'approve', reason: 'as agreed' };
  const voted = await send('POST /v1/escrow/{id}/vote', 200, approver, single, vote);
  expect(voted).toMatchObject({ escrow_id: single.id, your_decision: 'approve', status: 'released' });
  await send('POST /v1/escrow/{id}/consume', 200, proxy, single, action);
  // of an agent whose key the same person made who made the proxy's key
  await tenant.agent('bot-1', 'clerk');
  const conditional = await open({ hold_type: 'conditional', conditions: [{ condition_id: 'paid' }] });
  const report = { condition_id: 'paid', satisfied: true, evidence: 'receipt 7' };
  await send('POST /v1/escrow/{id}/satisfy', 403, approver, conditional, report);
  expect(await send('POST /v1/escrow/{id}/satisfy', 200, proxy, conditional, report)).toMatchObject({
    status: 'released',
  });
  const cancelled = await open({ hold_type: 'single', action_summary: 'pays more' });
  await send('POST /v1/escrow/{id}/cancel', 200, proxy, cancelled, { reason: 'no longer\nneeded' });
});

test('events, evidence and the audit log', async () => {
  const ingested = await send(
    'POST /v1/events/ingest',
    202,
    proxy,
    {},
    {
      events: [
        { ...EVENT, event_id: 'e-1', tenant_id: tenant.id },
        { ...EVENT, event_id: 'e-2', agent_role: 'customer support', agent_id: 'агент 9' },
        // a request to an API is of no tool
        { ...EVENT, event_id: 'e-3', tool_name: '' },
      ],
    },
  );
  expect(ingested).toEqual({ accepted: 3, duplicates: 0, rejected: [] });
  const query =
    '?event_type=decision.allow&agent_id=bot-1&session_id=s-1&decision=allow&since=2026-01-01T00:00:00Z&limit=10';
  const { events } = await send('GET /v1/events', 200, pipeline, {}, undefined, query);
  await send('GET /v1/events/{id}', 200, viewer, { id: events[0].id });
  await send('GET /v1/forensics/verify', 200, viewer);
  const window = { purpose: 'audit', from: '2026-01-01T00:00:00Z', to: '2036-01-01T00:00:00Z' };
  await send('POST /v1/forensics/export', 201, admin, {}, window);
  const { package_id: id } = await send(
    'POST /v1/forensics/export',
    201,
    admin,
    {},
    { purpose: 'audit', sequence_id: 's-1' },
  );
  await send('GET /v1/forensics/packages', 200, viewer);
  await send('GET /v1/audit/verify', 200, viewer);
  // a signed-in user, whatever their roles
  const member = await tenant.person('viewer');
  await server.call(200, `DELETE /v1/users/${member.userId}/roles/viewer`, admin);
  await send('POST /v1/forensics/export', 201, member, {}, window);
  await send('GET /v1/forensics/packages/{id}/download', 200, member, { id });
  await send('GET /v1/audit', 200, member);
  await send('GET /v1/forensics/packages', 403, member);
});

test('verification names where tampering starts, also where the newest records are gone', async () => {
  const cut = await server.tenant();
  const events = [1, 2, 3].map((n) => ({ ...EVENT, event_id: `cut-${n}` }));
  await server.call(202, 'POST /v1/events/ingest', await cut.key('proxy'), { events });
  await sql(server, 'delete from forensic_record where tenant_id = $1 and seq > 3', [cut.id]);
  expect((await server.call(200, 'GET /v1/forensics/verify', cut.admin)).body).toMatchObject({
    ...{ verified: false, linear: false, first_mismatch_id: 'cut-2', first_mismatch_seq: 4 },
  });
});

test('an agent', async () => {
  const agent = await tenant.agent('bot-9', 'clerk');
  await send('POST /v1/evaluate', 200, agent, {}, { action_type: 'tool_call', tool_name: 'read' });
});

test('subscriptions', async () => {
  const made = await send(
    'POST /v1/subscriptions',
    201,
    admin,
    {},
    {
      ...{ url: 'https://hooks.example/x', secret: 'a long secret', event_types: ['escrow.created'], active: true },
      ...{ destination_type: 'webhook', destination_config: {} },
    },
  );
  const at = { id: made.id };
  await send('GET /v1/subscriptions', 200, admin);
  for (const change of [
    { url: 'https://hooks.example/y' },
    { secret: 'another secret' },
    { event_types: [] },
    { active: false },
    { active: true },
  ]) {
    await send('PATCH /v1/subscriptions/{id}', 200, admin, at, change);
    await send('PUT /v1/subscriptions/{id}', 200, admin, at, change);
  }
  // each change was sent twice: what the secret replaced still signs, for receivers that have it
  const { headers } = await send('POST /v1/subscriptions/{id}/test', 200, admin, at);
  expect(new Set(headers['x-svc-signature'].split(',v1=').slice(1)).size).toBe(2);
  await send('GET /v1/subscriptions/{id}/deliveries', 200, admin, at);
  await send('DELETE /v1/subscriptions/{id}', 204, admin, at);
  expect(await reasonOf('subscription.deleted')).toBe('none was given');
});

test('people', async () => {
  for (let n = 0; n < 60; n++) await tenant.member({ email: `many${n}@example.test`, roles: ['viewer'] });
  const all = await send('GET /v1/users', 200, admin);
  // as the specification has no page, it is all of them
  expect(all.users.length).toBeGreaterThan(60);
  expect(all.total).toBe(all.users.length);
  const someone = { id: await tenant.member({ email: 'someone@example.test', roles: ['viewer'] }) };
  await send('POST /v1/users/{id}/roles', 200, admin, someone, { role: 'author' });
  await send('DELETE /v1/users/{id}/roles/{role}', 200, admin, { ...someone, role: 'author' });
  expect(await reasonOf('role.revoked')).toBe('none was given');
  await send('POST /v1/invites', 201, tenant.admin, {}, { email: 'new@example.test', role: 'viewer' });
  await send('DELETE /v1/team/{userId}', 204, admin, { userId: someone.id });
});

test('single sign-on', async () => {
  const input = { issuer_url: provider.issuer, ...CLIENT };
  await send('PUT /v1/settings/sso', 200, admin, {}, input);
  const { domain_records } = await send('POST /v1/settings/sso/domains', 201, admin, {}, { domain: 'spec.example' });
  const verify = 'POST /v1/settings/sso/domains/{domain}/verify';
  const missing = await send(verify, 422, admin, { domain: 'spec.example' });
  expect(missing.code).toBe('DOMAIN_NOT_VERIFIED');
  dns.names[domain_records[0].txt_name] = { txt: [domain_records[0].txt_value] };
  await send(verify, 200, admin, { domain: 'spec.example' });
});

test('signing in and out', async () => {
  const login = await server.call(302, 'GET /auth/login', undefined);
  sent.add('GET /auth/login');
  const to = login.headers.get('location')!;
  expect(new URL(to).searchParams.get('redirect_uri')).toBe('http://control.test/auth/callback');
  await tenant.member({ email: 'ann@spec.example', roles: ['viewer'] });
  provider.person = { sub: 'ann', email: 'ann@spec.example', email_verified: true };
  const { search } = new URL(await provider.authorize(to));
  const browser = { cookie: login.headers.get('set-cookie')!.split(';')[0]! };
  const back = await server.call(302, `GET /auth/callback${search}`, browser);
  sent.add('GET /auth/callback');
  expect(back.headers.get('location')).toBe('/policies');
  const session = { cookie: back.headers.get('set-cookie')!.split(';')[0]! };
  expect(session.cookie).toMatch(/^svc_session=/);
  expect((await server.call(200, 'GET /auth/me', session)).body).toMatchObject({ auth_method: 'oidc' });
  await send('GET /auth/sso/start', 302, undefined, {}, undefined, '?email=a@spec.example');
  await send('POST /auth/magic-link', 200, undefined, {}, { email: 'nobody@example.test' });
  await send('GET /auth/magic-link/verify', 401, undefined, {}, undefined, '?token=svc_link_none');
  const token = await server.core.links.create(tenant.id, viewer.userId, 600, { actor: OPERATOR });
  await send('GET /auth/magic-link/verify', 302, undefined, {}, undefined, `?token=${token}`);
  await send('GET /auth/me', 200, tenant.admin);
  expect(await send('POST /auth/logout', 200, viewer)).toEqual({ status: 'logged_out' });
});

test('a tenant may require reasons of everybody', async () => {
  await tenant.set({ reasons_required: true });
  const { id } = await send('POST /v1/keys', 201, admin, {}, { label: 'k', scopes: ['proxy'] });
  for (const who of [admin, tenant.admin]) {
    const refused = await send('DELETE /v1/keys/{id}', 400, who, { id });
    expect(refused.errors).toEqual([{ pointer: '?reason', message: expect.stringContaining('say why') }]);
  }
  await send('DELETE /v1/keys/{id}', 204, admin, { id }, undefined, '?reason=leaked');
  const someone = { id: await tenant.member({ email: 'another@example.test', roles: ['viewer'] }) };
  const refused = await send('POST /v1/users/{id}/roles', 400, admin, someone, { role: 'author' });
  expect(refused.errors[0].pointer).toBe('/reason');
  await tenant.set({ reasons_required: null });
});

/** The specification itself is not part of this project; where it is at hand, every row of it must be among those sent. */
const file = process.env.SVC_SPECIFICATION ?? fileURLToPath(new URL('../../../shared/spec.md', import.meta.url));
test.skipIf(!existsSync(file))('every row of the specification was sent', () => {
  const rows = [...readFileSync(file, 'utf8').matchAll(/^\| (GET|POST|PUT|method not shown) \| (\/[^ ]+) \|/gm)];
  expect(rows.length).toBeGreaterThan(40);
  const missing = rows
    .map(([, method, path]) => (method!.startsWith('method') ? path! : `${method} ${path}`))
    .filter((row) => ![...sent].some((one) => one === row || one.split(' ')[1] === row));
  expect(missing).toEqual([]);
});
