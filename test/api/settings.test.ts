import { describe, expect, test } from 'vitest';
import { OPERATOR } from '../../server/auth/audit.ts';
import { canonicalJson } from '../../server/lib/canonical-json.ts';
import { sha256Tag } from '../../server/lib/crypto.ts';
import { sql } from '../helpers/api.ts';
import { useServer } from '../helpers/server.ts';

const server = useServer();
const DEFAULTS = {
  approval_required: false,
  self_approval: false,
  input_retention_days: 30,
  approver_groups: {},
  action_types: { read: [], write: [] },
};

test('a new tenant has the defaults, and every member reads them', async () => {
  const tenant = await server.tenant();
  expect((await server.call(200, 'GET /v1/settings', await tenant.person('viewer'))).body).toMatchObject(DEFAULTS);
});

test('a change touches what it names and nothing else, and counts at once for everyone', async () => {
  const [tenant, other] = [await server.tenant(), await server.tenant()];
  const { admin } = tenant;
  await server.call(200, 'GET /v1/settings', other.admin);
  const { userId } = await tenant.person('approver');
  const groups = { finance: [admin.userId, userId], security: [] };
  await server.call(200, 'PATCH /v1/settings', admin, { approver_groups: groups, poll_seconds: 7 });
  const changed = await server.call(200, 'PATCH /v1/settings', admin, { approval_required: true });
  const expected = { ...DEFAULTS, approver_groups: groups, poll_seconds: 7, approval_required: true };
  expect(changed.body).toMatchObject(expected);
  expect((await server.call(200, 'GET /v1/settings', await tenant.person('viewer'))).body).toEqual(changed.body);
  expect((await server.call(200, 'GET /v1/settings', other.admin)).body).toMatchObject(DEFAULTS);
  // a group is replaced as a whole
  const replaced = await server.call(200, 'PATCH /v1/settings', admin, { approver_groups: { legal: [userId] } });
  expect(replaced.body.approver_groups).toEqual({ legal: [userId] });
  expect((await server.call(200, 'GET /v1/proxy-config', admin)).body.poll_seconds).toBe(7);
  expect((await server.call(200, 'GET /v1/proxy-config', other.admin)).body.poll_seconds).toBe(15);
});

test('a group is of members: each id that is none is named', async () => {
  const [tenant, other] = [await server.tenant(), await server.tenant()];
  const gone = await tenant.person('approver');
  await server.call(204, `DELETE /v1/team/${gone.userId}`, tenant.admin);
  const ids = [tenant.admin.userId, other.admin.userId, gone.userId, 'usr_nobody'];
  const body = { approval_required: true, approver_groups: { 'a/b': ids } };
  const { errors } = (
    await server.call<{ errors: { pointer: string }[] }>(400, 'PATCH /v1/settings', tenant.admin, body)
  ).body;
  expect(errors.map(({ pointer }) => pointer)).toEqual([1, 2, 3].map((n) => `/approver_groups/a~1b/${n}`));
  expect((await server.call(200, 'GET /v1/settings', tenant.admin)).body).toMatchObject(DEFAULTS);
});

test('an unknown or wrong member changes nothing, also beside right ones', async () => {
  const { admin } = await server.tenant();
  for (const body of [
    { approval_required: true, surprise: 1 },
    { approval_required: true, poll_seconds: 'often' },
    { approval_required: null },
    { approval_required: 'true' },
    { approver_groups: { finance: 'usr_a' } },
    { approver_groups: [] },
    { action_types: { read: [], write: [], other: [] } },
  ]) {
    expect((await server.call(400, 'PATCH /v1/settings', admin, body)).body.code).toBe('VALIDATION_FAILED');
  }
  expect((await server.call(200, 'GET /v1/settings', admin)).body).toMatchObject(DEFAULTS);
  const audit = await server.call<{ records: unknown[] }>(200, 'GET /v1/audit?action=settings.changed', admin);
  expect(audit.body.records).toEqual([]);
});

test('each change has its audit record, with the hashes of what was before and is now', async () => {
  const tenant = await server.tenant();
  const person = await tenant.person('admin');
  const stored = async () =>
    (await sql<{ settings: unknown }>(server, 'select settings from tenant where tenant_id = $1', [tenant.id]))[0]!
      .settings;
  const hashes = [sha256Tag(canonicalJson(await stored()))];
  for (const body of [{ poll_seconds: 5 }, { self_approval: true, approval_required: true }]) {
    await server.call(200, 'PATCH /v1/settings', person, body);
    hashes.push(sha256Tag(canonicalJson(await stored())));
  }
  const { body } = await server.call<{ records: Record<string, unknown>[] }>(
    200,
    'GET /v1/audit?action=settings.changed',
    person,
  );
  expect(body.records).toMatchObject([
    {
      code: 'TEN002I',
      detail: 'approval_required: false → true; self_approval: false → true',
      before_hash: hashes[1],
      after_hash: hashes[2],
      actor: { id: person.userId },
      target: { type: 'tenant', id: tenant.id },
    },
    { code: 'TEN002I', detail: 'poll_seconds: the server’s → 5', before_hash: hashes[0], after_hash: hashes[1] },
  ]);
});

test('the audit record of lists tells what came and what went, however long they are', async () => {
  const { admin } = await server.tenant();
  const user = admin.userId;
  const read = Array.from({ length: 60 }, (_, n) => `type_number_${n}`);
  const steps: [Record<string, unknown>, string][] = [
    [
      { approver_groups: { finance: [user], legal: [] }, self_approval: false },
      `approver_groups/finance: new, +${user}; approver_groups/legal: new; self_approval: false, as before`,
    ],
    [{ approver_groups: { finance: [user], legal: [user] } }, `approver_groups/legal: +${user}`],
    // a group may be called what every object has
    [
      { approver_groups: { constructor: [], legal: [user] } },
      `approver_groups/constructor: new; approver_groups/finance: deleted, −${user}`,
    ],
    [{ approver_groups: { constructor: [], legal: [user] } }, 'approver_groups: as before'],
    [{ action_types: { read, write: [] } }, `action_types/read: ${read.map((name) => `+${name}`).join(', ')}`],
    [
      { action_types: { read: read.slice(0, -1), write: ['last'] } },
      'action_types/read: −type_number_59; action_types/write: +last',
    ],
    [{ action_types: { read: read.slice(0, -1).reverse(), write: ['last'] } }, 'action_types/read: in another order'],
  ];
  for (const [body] of steps) await server.call(200, 'PATCH /v1/settings', admin, body);
  const line = 'GET /v1/audit?action=settings.changed';
  const { body } = await server.call<{ records: { id: string; detail: string }[] }>(200, line, admin);
  expect(body.records.map(({ detail }) => detail).reverse()).toEqual(steps.map(([, detail]) => detail));
  const one = await server.call(200, `GET /v1/audit/${body.records[0]!.id}`, admin);
  expect(one.body).toEqual(body.records[0]);
});

test('changes at the same time are all kept', async () => {
  const { admin } = await server.tenant();
  await Promise.all([
    server.call(200, 'PATCH /v1/settings', admin, { approval_required: true }),
    server.call(200, 'PATCH /v1/settings', admin, { self_approval: true }),
    server.call(200, 'PATCH /v1/settings', admin, { poll_seconds: 9 }),
    server.call(200, 'PATCH /v1/settings', admin, { input_retention_days: 1 }),
  ]);
  expect((await server.call(200, 'GET /v1/settings', admin)).body).toMatchObject({
    approval_required: true,
    self_approval: true,
    poll_seconds: 9,
    input_retention_days: 1,
  });
});

describe('tenants', () => {
  test('have ids that are taken once, and an audit log from their first moment', async () => {
    const tenant = await server.tenant();
    const again = server.core.tenants.create(
      { id: tenant.id, name: 'x', adminEmail: 'a@example.test' },
      { type: 'operator', id: 'test' },
    );
    await expect(again).rejects.toMatchObject({ problem: 'CONFLICT' });
    const { body } = await server.call<{ records: { action: string; code: string; actor: { type: string } }[] }>(
      200,
      'GET /v1/audit',
      tenant.admin,
    );
    expect(body.records.map(({ action }) => action)).toEqual(['session.link_created', 'key.created', 'tenant.created']);
    expect(body.records.at(-1)).toMatchObject({ code: 'TEN001I', actor: { type: 'operator' } });
  });

  test('know a person by address, in any case, once', async () => {
    const tenant = await server.tenant();
    await expect(
      server.core.tenants.addMember(tenant.id, { email: 'ADMIN@example.test', roles: ['viewer'] }, { actor: OPERATOR }),
    ).rejects.toMatchObject({ problem: 'CONFLICT' });
    const other = await server.tenant();
    await server.core.tenants.addMember(
      other.id,
      { email: 'someone@example.test', roles: ['viewer'] },
      { actor: OPERATOR },
    );
    await server.core.tenants.addMember(
      tenant.id,
      { email: 'someone@example.test', roles: ['viewer'] },
      { actor: OPERATOR },
    );
  });
});

test('a record of changes that is cut short is cut between characters', async () => {
  const { admin } = await server.tenant();
  // one of two lengths that differ by one cuts within a character of two code units
  for (const first of ['a', 'aa']) {
    const names = [first, ...Array.from({ length: 120 }, (_, n) => `b${String(n).padStart(3, '0')}${'😀'.repeat(25)}`)];
    const approver_groups = Object.fromEntries(names.map((name) => [name, []]));
    await server.call(200, 'PATCH /v1/settings', admin, { approver_groups });
    await server.call(200, 'PATCH /v1/settings', admin, { approver_groups: {} });
  }
  const line = 'GET /v1/audit?action=settings.changed';
  const { body } = await server.call<{ records: { detail: string }[] }>(200, line, admin);
  expect(body.records).toHaveLength(4);
  for (const { detail } of body.records) {
    expect(detail.endsWith('…')).toBe(true);
    expect(detail).not.toContain('\uFFFD');
  }
});
