import { describe, expect, test } from 'vitest';
import { OPERATOR } from '../../server/domain/audit.ts';
import { canonicalJson } from '../../server/lib/canonical-json.ts';
import { sha256Tag } from '../../server/lib/crypto.ts';
import { sql } from '../helpers/api.ts';
import { type Credential, useServer } from '../helpers/server.ts';

const server = useServer({}, { shared: true });
const DEFAULTS = {
  approval_required: false,
  self_approval: false,
  reasons_required: false,
  tests_required: false,
  min_coverage: 0,
  simulation_required: false,
  input_retention_days: 30,
  projection_retention_days: 395,
  poll_seconds: 15,
  stop_grace_seconds: 60,
  approver_groups: {},
  policy_author_may_vote: true,
  sso_only: false,
  magic_link_confirm: false,
  action_types: { read: [], write: [] },
};

test('a new tenant has the defaults, and every member reads them', async () => {
  const tenant = await server.tenant();
  expect((await server.call(200, 'GET /v1/settings', await tenant.person('viewer'))).body).toEqual(DEFAULTS);
});

test('every setting can be changed and reset to its default, which is shown again', async () => {
  const tenant = await server.tenant();
  const admin = await tenant.person('admin');
  const other = {
    self_approval: true,
    tests_required: true,
    min_coverage: 60,
    simulation_required: true,
    input_retention_days: 90,
    projection_retention_days: 400,
    poll_seconds: 7,
    stop_grace_seconds: 30,
    approver_groups: { finance: [admin.userId] },
    policy_author_may_vote: false,
    magic_link_confirm: true,
    action_types: { read: ['look'], write: [] },
    approval_required: true,
  };
  const reason = 'we try it';
  expect((await server.call(200, 'PATCH /v1/settings', admin, { ...other, reason })).body).toEqual({
    ...DEFAULTS,
    ...other,
    waiting: null,
  });
  await tenant.set({ approval_required: null });
  for (const name of Object.keys(other)) {
    await server.call(200, 'PATCH /v1/settings', admin, { [name]: null, reason });
    const { body } = await server.call<Record<string, unknown>>(200, 'GET /v1/settings', admin);
    expect(body[name]).toEqual(DEFAULTS[name as keyof typeof DEFAULTS]);
  }
  expect((await server.call(200, 'GET /v1/settings', admin)).body).toEqual(DEFAULTS);
  expect((await server.call(200, 'GET /v1/proxy-config', tenant.admin)).body.poll_seconds).toBe(15);
  const stored = await sql(server, 'select settings from tenant where tenant_id = $1', [tenant.id]);
  expect(stored).toEqual([{ settings: {} }]);
});

test('a change affects only the given settings, and takes effect immediately for everyone', async () => {
  const [tenant, other] = [await server.tenant(), await server.tenant()];
  const admin = await tenant.person('admin');
  const reason = 'as agreed';
  await server.call(200, 'GET /v1/settings', other.admin);
  const { userId } = await tenant.person('approver');
  const groups = { finance: [admin.userId, userId], security: [] };
  await server.call(200, 'PATCH /v1/settings', admin, { approver_groups: groups, poll_seconds: 7, reason });
  const changed = await server.call(200, 'PATCH /v1/settings', admin, { approval_required: true, reason });
  const expected = { ...DEFAULTS, approver_groups: groups, poll_seconds: 7, approval_required: true };
  expect(changed.body).toMatchObject(expected);
  const { waiting, ...settings } = changed.body;
  expect(waiting).toBeNull();
  expect((await server.call(200, 'GET /v1/settings', await tenant.person('viewer'))).body).toEqual(settings);
  expect((await server.call(200, 'GET /v1/settings', other.admin)).body).toMatchObject(DEFAULTS);
  // a group is replaced as a whole
  await tenant.set({ approver_groups: { legal: [userId] } });
  expect((await server.call(200, 'GET /v1/settings', admin)).body.approver_groups).toEqual({ legal: [userId] });
  expect((await server.call(200, 'GET /v1/proxy-config', tenant.admin)).body.poll_seconds).toBe(7);
  expect((await server.call(200, 'GET /v1/proxy-config', other.admin)).body.poll_seconds).toBe(15);
});

test('a group contains only members: each other id is named', async () => {
  const [tenant, other] = [await server.tenant(), await server.tenant()];
  const gone = await tenant.person('approver');
  await server.call(204, `DELETE /v1/team/${gone.userId}`, tenant.admin);
  const ids = [tenant.admin.userId, other.admin.userId, gone.userId, 'usr_nobody'];
  const body = { approval_required: true, approver_groups: { 'a/b': ids }, reason: 'x' };
  const person = await tenant.person('admin');
  const { errors } = (await server.call<{ errors: { pointer: string }[] }>(400, 'PATCH /v1/settings', person, body))
    .body;
  expect(errors.map(({ pointer }) => pointer)).toEqual([1, 2, 3].map((n) => `/approver_groups/a~1b/${n}`));
  expect((await server.call(200, 'GET /v1/settings', tenant.admin)).body).toMatchObject(DEFAULTS);
});

test('an unknown or invalid setting changes nothing, even together with valid ones', async () => {
  const admin = await (await server.tenant()).person('admin');
  for (const body of [
    { approval_required: true, surprise: 1 },
    { approval_required: true, poll_seconds: 'often' },
    { approval_required: true, reason: null },
    { approval_required: true, reason: '' },
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

test('each change has its audit record, with the hashes before and after', async () => {
  const tenant = await server.tenant();
  const person = await tenant.person('admin');
  const stored = async () =>
    (await sql<{ settings: unknown }>(server, 'select settings from tenant where tenant_id = $1', [tenant.id]))[0]!
      .settings;
  const hashes = [sha256Tag(canonicalJson(await stored()))];
  for (const body of [{ poll_seconds: 5 }, { self_approval: true, approval_required: true }]) {
    await server.call(200, 'PATCH /v1/settings', person, { ...body, reason: 'as agreed' });
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
    { code: 'TEN002I', detail: 'poll_seconds: 15 → 5', before_hash: hashes[0], after_hash: hashes[1] },
  ]);
});

test('the audit record of lists shows what was added and removed, however long they are', async () => {
  const admin = await (await server.tenant()).person('admin');
  const user = admin.userId;
  const read = Array.from({ length: 60 }, (_, n) => `type_number_${n}`);
  const steps: [Record<string, unknown>, string][] = [
    [
      { approver_groups: { finance: [user], legal: [] }, self_approval: false },
      `approver_groups/finance: new, +${user}; approver_groups/legal: new; self_approval: false, unchanged`,
    ],
    [{ approver_groups: { finance: [user], legal: [user] } }, `approver_groups/legal: +${user}`],
    // a group may be called what every object has
    [
      { approver_groups: { constructor: [], legal: [user] } },
      `approver_groups/constructor: new; approver_groups/finance: deleted, −${user}`,
    ],
    [{ approver_groups: { constructor: [], legal: [user] } }, 'approver_groups: unchanged'],
    [{ action_types: { read, write: [] } }, `action_types/read: ${read.map((name) => `+${name}`).join(', ')}`],
    [
      { action_types: { read: read.slice(0, -1), write: ['last'] } },
      'action_types/read: −type_number_59; action_types/write: +last',
    ],
    [{ action_types: { read: read.slice(0, -1).reverse(), write: ['last'] } }, 'action_types/read: reordered'],
  ];
  for (const [body] of steps) await server.call(200, 'PATCH /v1/settings', admin, { ...body, reason: 'as agreed' });
  const line = 'GET /v1/audit?action=settings.changed';
  const { body } = await server.call<{ records: { id: string; detail: string }[] }>(200, line, admin);
  expect(body.records.map(({ detail }) => detail).reverse()).toEqual(steps.map(([, detail]) => detail));
  const one = await server.call(200, `GET /v1/audit/${body.records[0]!.id}`, admin);
  expect(one.body).toEqual(body.records[0]);
});

test('concurrent changes are all kept', async () => {
  const admin = await (await server.tenant()).person('admin');
  const reason = 'as agreed';
  await Promise.all([
    server.call(200, 'PATCH /v1/settings', admin, { magic_link_confirm: true }),
    server.call(200, 'PATCH /v1/settings', admin, { self_approval: true, reason }),
    server.call(200, 'PATCH /v1/settings', admin, { poll_seconds: 9 }),
    server.call(200, 'PATCH /v1/settings', admin, { input_retention_days: 1, reason }),
  ]);
  expect((await server.call(200, 'GET /v1/settings', admin)).body).toMatchObject({
    magic_link_confirm: true,
    self_approval: true,
    poll_seconds: 9,
    input_retention_days: 1,
  });
});

interface Change {
  id: string;
  status: string;
  changes: { setting: string; from: unknown; to: unknown; loosens: boolean }[];
  proposed_by: string;
  decided_by: string | null;
}
const reason = 'as agreed';
const patch = (status: number, who: Credential, body: object) =>
  server.call<Record<string, unknown> & { waiting: Change | null; code: string; errors: { pointer: string }[] }>(
    status,
    'PATCH /v1/settings',
    who,
    body,
  );
const settingsOf = async (who: Credential) => (await server.call(200, 'GET /v1/settings', who)).body;
const approve = (status: number, who: Credential, id: string) =>
  server.call<Change & { code: string }>(status, `POST /v1/settings/changes/${id}/approve`, who, {});
const waitingFor = async (who: Credential, body: object) => (await patch(200, who, { ...body, reason })).body.waiting!;
const actionsOf = async (who: Credential, action: string) =>
  (
    await server.call<{ records: { code: string; severity: string; reason?: string; actor: { id: string } }[] }>(
      200,
      `GET /v1/audit?action=${action}`,
      who,
    )
  ).body.records;

/** Each guarded setting, one step that takes a safeguard away, and the value that it takes it from. */
const loosenings = (admin: string, other: string): [name: string, from: unknown, to: unknown][] => [
  ['self_approval', false, true],
  ['tests_required', true, false],
  ['min_coverage', 60, 59],
  ['simulation_required', true, false],
  ['policy_author_may_vote', false, true],
  ['input_retention_days', 30, 29],
  ['projection_retention_days', 395, 394],
  ['stop_grace_seconds', 60, 61],
  ['stop_grace_seconds', 60, 0],
  ['approver_groups', { finance: [admin] }, { finance: [admin, other] }],
  ['approver_groups', { finance: [admin] }, { finance: [admin], legal: [other] }],
  ['approver_groups', { finance: [admin] }, { constructor: [other] }],
  ['action_types', { read: [], write: ['wire'] }, { read: ['wire'], write: [] }],
  ['action_types', { read: [], write: [] }, { read: ['glance'], write: [] }],
  ['approval_required', true, false],
  ['approval_required', true, null],
];

describe('settings that decide whose approval is needed', () => {
  test('cannot be changed by any key: neither in one step nor in another spelling', async () => {
    const tenant = await server.tenant();
    const bodies = [
      ...loosenings(tenant.admin.userId, tenant.admin.userId).map(([name, , to]) => ({ [name]: to })),
      { approval_required: true },
      { tests_required: true },
      { input_retention_days: 31 },
      { sso_only: true },
      { poll_seconds: 9, approver_groups: { finance: [tenant.admin.userId] } },
    ].filter((body) => !('approval_required' in body) || body.approval_required === true);
    for (const who of [tenant.admin, tenant.operatorKey]) {
      for (const body of bodies) {
        const { policy_author_may_vote, tests_required, simulation_required } = body as Record<string, unknown>;
        const same = policy_author_may_vote === true || tests_required === false || simulation_required === false;
        await patch(same ? 200 : 403, who, { ...body, reason });
      }
    }
    expect(await settingsOf(tenant.admin)).toEqual(DEFAULTS);
    const refused = await actionsOf(tenant.admin, 'settings.change_refused');
    expect(refused[0]).toMatchObject({ code: 'TEN002E', severity: 'warning' });
    // what stays as it is may be named
    await patch(200, tenant.admin, { ...DEFAULTS, poll_seconds: 9 });
    await server.call(404, 'POST /v1/settings/changes/stc_none/approve', await tenant.person('approver'), {});
    await server.call(403, 'POST /v1/settings/changes/stc_none/approve', tenant.admin, {});
  });

  test('change only with a reason, which the audit log keeps', async () => {
    const tenant = await server.tenant();
    const admin = await tenant.person('admin');
    expect((await patch(400, admin, { approval_required: true })).body.errors).toMatchObject([{ pointer: '/reason' }]);
    await patch(200, admin, { approval_required: true, reason: 'the auditor asks for it' });
    expect((await actionsOf(admin, 'settings.changed'))[0]).toMatchObject({ reason: 'the auditor asks for it' });
    // what guards nothing needs none
    await patch(200, admin, { magic_link_confirm: true });
  });

  test('if approval is required, loosening each waits for another person, and tightening does not', async () => {
    const tenant = await server.tenant();
    const [admin, other] = [await tenant.person('admin'), await tenant.person('approver')];
    const waited = loosenings(admin.userId, other.userId);
    for (const [name, from, to] of waited) {
      await tenant.set({ approval_required: true, [name]: from });
      const before = await settingsOf(admin);
      // in company of what would hold at once by itself
      const { body } = await patch(200, admin, { [name]: to, magic_link_confirm: true, reason });
      expect(body, name).toMatchObject({ ...before, waiting: { status: 'pending', proposed_by: admin.userId } });
      expect(body.waiting!.changes).toContainEqual({ setting: name, from, to: to ?? false, loosens: true });
      expect(await settingsOf(admin)).toEqual(before);
      expect((await approve(403, admin, body.waiting!.id)).body.code).toBe('SELF_APPROVAL');
      expect(await settingsOf(admin)).toEqual(before);
      expect((await approve(200, other, body.waiting!.id)).body).toMatchObject({
        status: 'approved',
        decided_by: other.userId,
      });
      expect(await settingsOf(admin)).toEqual({ ...before, [name]: to ?? false, magic_link_confirm: true });
      await tenant.set({ magic_link_confirm: null });
      expect((await approve(409, other, body.waiting!.id)).body.code).toBe('INVALID_STATUS');
    }
    await tenant.set({ approval_required: true, self_approval: true, approver_groups: { a: [other.userId] } });
    const tight = {
      self_approval: false,
      policy_author_may_vote: false,
      tests_required: true,
      min_coverage: 80,
      simulation_required: true,
      input_retention_days: 60,
      projection_retention_days: 400,
      stop_grace_seconds: 30,
      approver_groups: { a: [], b: [] },
    };
    expect((await patch(200, admin, { ...tight, reason })).body).toMatchObject({ ...tight, waiting: null });
    const codes = async (action: string) => (await actionsOf(admin, action)).map(({ code }) => code);
    expect(await codes('settings.change_proposed')).toEqual(Array(waited.length).fill('TEN003I'));
    expect(await codes('settings.change_approved')).toEqual(Array(waited.length).fill('TEN004I'));
    expect(await codes('settings.approval_refused')).toEqual(Array(waited.length).fill('TEN004E'));
  });

  test('ending required single sign-on is a loosening', async () => {
    const tenant = await server.tenant();
    const [admin, other] = [await tenant.person('admin'), await tenant.person('admin')];
    await sql(
      server,
      `update tenant set settings = '{"approval_required":true,"sso_only":true}' where tenant_id = $1`,
      [tenant.id],
    );
    server.core.db.notices.deliver(server.core.db.notices.issue('settings', tenant.id, '').notice);
    const change = await waitingFor(admin, { sso_only: false });
    expect(await settingsOf(admin)).toMatchObject({ sso_only: true });
    await approve(200, other, change.id);
    expect(await settingsOf(admin)).toMatchObject({ sso_only: false });
  });

  test('self-approval of policies approves no settings', async () => {
    const tenant = await server.tenant();
    const admin = await tenant.person('admin');
    await tenant.set({ approval_required: true, self_approval: true });
    const change = await waitingFor(admin, { approval_required: false });
    expect((await approve(403, admin, change.id)).body.code).toBe('SELF_APPROVAL');
  });

  test('a pending change is void once its setting has changed otherwise', async () => {
    const tenant = await server.tenant();
    const [a, b] = [await tenant.person('admin'), await tenant.person('admin')];
    const c = await tenant.person('viewer');
    await tenant.set({ approval_required: true });
    const wide = await waitingFor(a, { approver_groups: { finance: [a.userId, c.userId] } });
    const other = await waitingFor(a, { input_retention_days: 1 });
    await tenant.set({ approver_groups: { finance: [b.userId] } });
    expect((await approve(409, b, wide.id)).body.code).toBe('CONFLICT');
    expect(await settingsOf(a)).toMatchObject({ approver_groups: { finance: [b.userId] } });
    expect((await approve(409, b, wide.id)).body.code).toBe('INVALID_STATUS');
    // a setting that it does not name may change
    await approve(200, b, other.id);
    // nobody who has left comes back by a change that waited
    const joins = await waitingFor(a, { approver_groups: { finance: [b.userId, c.userId] } });
    await server.call(204, `DELETE /v1/team/${c.userId}`, tenant.admin);
    await approve(400, b, joins.id);
  });

  test('a pending change does not include settings named with their current value, which may change meanwhile', async () => {
    const tenant = await server.tenant();
    const [a, b] = [await tenant.person('admin'), await tenant.person('admin')];
    await tenant.set({ approval_required: true });
    const hidden = { self_approval: false, policy_author_may_vote: true, action_types: { read: [], write: [] } };
    const change = await waitingFor(a, { input_retention_days: 29, ...hidden });
    expect(change.changes.map(({ setting }) => setting)).toEqual(['input_retention_days']);
    // the others tighten what it names, each alone, as they may
    await patch(200, b, { policy_author_may_vote: false, reason });
    await tenant.set({ action_types: { read: [], write: ['wire'] } });
    await approve(200, b, change.id);
    expect(await settingsOf(a)).toMatchObject({
      input_retention_days: 29,
      policy_author_may_vote: false,
      action_types: { read: [], write: ['wire'] },
    });
  });

  test('a waiting change that was altered in the database is void', async () => {
    const tenant = await server.tenant();
    const [a, b] = [await tenant.person('admin'), await tenant.person('approver')];
    await tenant.set({ approval_required: true });
    const alter = async (how: string) => {
      const { id } = await waitingFor(a, { input_retention_days: 29 });
      await sql(server, `update settings_change set ${how} where tenant_id = $1 and id = $2`, [tenant.id, id]);
      expect((await approve(409, b, id)).body.code).toBe('CONFLICT');
    };
    await alter(`patch = patch || '{"approval_required": false}'`);
    await alter(`patch = '{"input_retention_days": 1}'`);
    await alter(`changes = changes - 0`);
    expect(await settingsOf(a)).toMatchObject({ approval_required: true, input_retention_days: 30 });
  });

  test('a pending change ends with the role of its requester, and only approvers decide it', async () => {
    const tenant = await server.tenant();
    const [a, b] = [await tenant.person('admin', 'approver'), await tenant.person('admin')];
    await tenant.set({ approval_required: true });
    const [first, second] = [
      await waitingFor(a, { self_approval: true }),
      await waitingFor(b, { self_approval: true }),
    ];
    for (const role of ['viewer', 'author']) await approve(403, await tenant.person(role), first.id);
    await approve(404, await (await server.tenant()).person('admin'), first.id);
    await server.call(200, `DELETE /v1/users/${a.userId}/roles/admin`, b);
    expect((await approve(409, b, first.id)).body.code).toBe('INVALID_STATUS');
    await patch(403, a, { approval_required: true, reason });
    // b rejects nothing of their own, but withdraws it
    const reject = (who: Credential, id: string) =>
      server.call<Change>(200, `POST /v1/settings/changes/${id}/reject`, who, { reason: 'too wide' });
    expect((await reject(b, second.id)).body.status).toBe('withdrawn');
    const third = await waitingFor(b, { self_approval: true });
    expect((await reject(a, third.id)).body).toMatchObject({ status: 'rejected', decided_by: a.userId });
    await approve(409, a, third.id);
    const list = async (query: string) =>
      (await server.call<{ changes: Change[]; total: number }>(200, `GET /v1/settings/changes${query}`, a)).body;
    expect((await list('')).changes.map(({ id, status }) => [id, status])).toEqual([
      [third.id, 'rejected'],
      [second.id, 'withdrawn'],
      [first.id, 'withdrawn'],
    ]);
    expect(await list('?status=pending')).toMatchObject({ changes: [], total: 0 });
    expect(await settingsOf(a)).toMatchObject({ self_approval: false });
  });

  test('approved concurrently, a change is applied once; the number of pending changes is limited', async () => {
    const tenant = await server.tenant();
    const admin = await tenant.person('admin');
    const others = await Promise.all(Array.from({ length: 4 }, () => tenant.person('approver')));
    await tenant.set({ approval_required: true });
    const { id } = await waitingFor(admin, { self_approval: true });
    const answers = await Promise.all(
      others.map(({ cookie }) =>
        fetch(`${server.url}/v1/settings/changes/${id}/approve`, {
          method: 'POST',
          headers: { cookie: cookie!, origin: server.origin, 'content-type': 'application/json' },
          body: '{}',
        }),
      ),
    );
    expect(answers.map(({ status }) => status).sort()).toEqual([200, 409, 409, 409]);
    expect(await actionsOf(admin, 'settings.change_approved')).toHaveLength(1);
    for (let n = 0; n < 20; n++) await waitingFor(admin, { approval_required: false });
    expect((await patch(409, admin, { approval_required: false, reason })).body.code).toBe('CONFLICT');
  });
});

describe('tenants', () => {
  test('have unique ids, and an audit log from their creation', async () => {
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
    expect(body.records.map(({ action }) => action)).toEqual([
      'key.created',
      'session.link_created',
      'key.created',
      'tenant.created',
    ]);
    expect(body.records.at(-1)).toMatchObject({ code: 'TEN001I', actor: { type: 'operator' } });
  });

  test('have one person per address, in any case', async () => {
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

test('a truncated record of changes is cut between characters', async () => {
  const admin = await (await server.tenant()).person('admin');
  // one of two lengths that differ by one cuts within a character of two code units
  for (const first of ['a', 'aa']) {
    const names = [first, ...Array.from({ length: 120 }, (_, n) => `b${String(n).padStart(3, '0')}${'😀'.repeat(25)}`)];
    const approver_groups = Object.fromEntries(names.map((name) => [name, []]));
    await server.call(200, 'PATCH /v1/settings', admin, { approver_groups, reason: 'many' });
    await server.call(200, 'PATCH /v1/settings', admin, { approver_groups: {}, reason: 'none' });
  }
  const line = 'GET /v1/audit?action=settings.changed';
  const { body } = await server.call<{ records: { detail: string }[] }>(200, line, admin);
  expect(body.records).toHaveLength(4);
  for (const { detail } of body.records) {
    expect(detail.endsWith('…')).toBe(true);
    expect(detail).not.toContain('\uFFFD');
  }
});
