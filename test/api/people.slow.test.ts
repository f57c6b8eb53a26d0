import { describe, expect, test } from 'vitest';
import { OPERATOR } from '../../server/domain/audit.ts';
import { BODIES, deploy, GUARD, sql } from '../helpers/api.ts';
import { mailsSent, mailsTo } from '../helpers/mail.ts';
import { type Credential, type TestTenant, useServer } from '../helpers/server.ts';
import { until } from '../helpers/until.ts';
import { SIEGE, sampled } from '../siege/rounds.ts';

const server = useServer();

/** What is done for a reason alone, and else with a body that is good. */
const FOR_A_REASON = (
  [
    ...['DELETE /v1/keys/{id}', 'DELETE /v1/agent-keys/{id}', 'DELETE /v1/workload-trust/{id}'],
    'POST /v1/workload-trust',
    ...['POST /v1/users/{id}/roles', 'DELETE /v1/users/{id}/roles/{role}', 'DELETE /v1/team/{userId}'],
    ...['PUT /v1/settings/sso', 'DELETE /v1/settings/sso', 'DELETE /v1/settings/sso/identities/{user_id}'],
    ...['DELETE /v1/settings/sso/domains/{domain}', 'PUT /v1/settings/token-issuers'],
    'POST /v1/settings/changes/{id}/reject',
    ...['DELETE /v1/policies/{id}', 'POST /v1/policies/{id}/rollback', 'POST /v1/policies/{id}/reject'],
    ...['POST /v1/policies/{id}/break-glass', 'POST /v1/lists/{name}/reject', 'DELETE /v1/lists/{name}'],
    ...['POST /v1/tools/{server}/{name}/reject', 'DELETE /v1/tools/{server}/{name}', 'PUT /v1/tool-servers/{server}'],
    ...['PATCH /v1/subscriptions/{id}', 'PUT /v1/subscriptions/{id}', 'DELETE /v1/subscriptions/{id}'],
    ...['DELETE /v1/proxies/{proxy_id}', 'POST /v1/escrow/{id}/cancel', 'POST /v1/stops', 'POST /v1/stops/{id}/lift'],
  ] as const
).map((line) => [line, BODIES[line]] as const);

interface User {
  id: string;
  email: string;
  roles: string[];
  status: string;
  sessions: number;
  keys: number;
  last_login: string | null;
}

const users = async (who: Credential, query = '') =>
  (await server.call<{ users: User[]; total: number }>(200, `GET /v1/users${query}`, who)).body;
const user = async (who: Credential, id: string) => (await server.call<User>(200, `GET /v1/users/${id}`, who)).body;
const grant = (status: number, who: Credential, id: string, role: string) =>
  server.call<User & { code: string }>(status, `POST /v1/users/${id}/roles`, who, { role });
const revoke = (status: number, who: Credential, id: string, role: string) =>
  server.call<User & { code: string }>(status, `DELETE /v1/users/${id}/roles/${role}`, who);
const remove = (status: number, who: Credential, id: string) => server.call(status, `DELETE /v1/team/${id}`, who);
const audit = async (tenant: TestTenant, action: string) =>
  (
    await server.call<{ records: { code: string; detail?: string; target: { id: string }; reason?: string }[] }>(
      200,
      `GET /v1/audit?action=${action}`,
      tenant.admin,
    )
  ).body.records;
/** A tenant with two signed-in admins; its own first one, who has no session, is an admin no more. */
async function twoAdmins() {
  const tenant = await server.tenant();
  const [a, b] = [await tenant.person('admin'), await tenant.person('admin')];
  const key = await tenant.key('admin');
  await server.core.db.owner.query(`update api_key set created_by = null where tenant_id = $1`, [tenant.id]);
  await revoke(200, key, tenant.admin.userId, 'admin');
  return { tenant: { ...tenant, admin: { ...tenant.admin, ...key } } as TestTenant, a, b, key };
}

describe('the list of people', () => {
  test('shows each with roles, sessions and keys, page by page, by address', async () => {
    const tenant = await server.tenant();
    const ids: string[] = [tenant.admin.userId];
    for (const name of ['d', 'b', 'c']) {
      ids.push(await tenant.member({ email: `${name}@list.test`, roles: ['viewer', 'approver'] }));
    }
    const { cookie } = await tenant.enter(ids[1]!);
    await tenant.enter(ids[1]!);
    const all = await users(tenant.admin);
    expect(all).toMatchObject({ total: 4, limit: 1000, offset: 0 });
    expect(all.users.map(({ email }) => email)).toEqual([
      'admin@example.test',
      'b@list.test',
      'c@list.test',
      'd@list.test',
    ]);
    expect(all.users[3]).toEqual({
      id: ids[1],
      email: 'd@list.test',
      name: 'd@list.test',
      avatar_url: null,
      roles: ['viewer', 'approver'],
      status: 'active',
      created_at: expect.any(String),
      last_login: expect.any(String),
      sessions: 2,
      keys: 0,
    });
    expect(all.users[0]).toMatchObject({ keys: 1, sessions: 0, last_login: null });
    expect((await users(tenant.admin, '?limit=2&offset=1')).users.map(({ email }) => email)).toEqual([
      'b@list.test',
      'c@list.test',
    ]);
    expect((await users(tenant.admin, '?role=admin')).users.map(({ id }) => id)).toEqual([tenant.admin.userId]);
    expect(await users(tenant.admin, '?q=LIST&limit=1')).toMatchObject({ total: 3, users: [{ email: 'b@list.test' }] });
    expect((await users(tenant.admin, '?q=%25')).total).toBe(0);
    await server.call(200, 'POST /auth/logout', { cookie: cookie! });
    expect((await user(tenant.admin, ids[1]!)).sessions).toBe(1);
    for (const query of ['?limit=0', '?limit=1001', '?offset=-1', '?role=boss', '?status=x', '?x=1']) {
      await server.call(400, `GET /v1/users${query}`, tenant.admin);
    }
  });

  test('finds a person among more people than a page holds', async () => {
    const tenant = await server.tenant();
    await server.core.db.owner.query(
      `insert into member (tenant_id, id, email, name, roles, created_at)
       select $1, 'usr_many_' || n, 'p' || lpad(n::text, 3, '0') || '@many.test', 'Person ' || n, '{viewer}', now()
       from generate_series(1, 320) n`,
      [tenant.id],
    );
    const seen: string[] = [];
    for (let offset = 0; offset < 321; offset += 200) {
      const page = await users(tenant.admin, `?limit=200&offset=${offset}`);
      expect(page.total).toBe(321);
      seen.push(...page.users.map(({ email }) => email));
    }
    expect(seen).toEqual([...new Set(seen)].sort());
    expect(await users(tenant.admin, '?q=person%20319')).toMatchObject({
      total: 1,
      users: [{ email: 'p319@many.test' }],
    });
  });

  test('omits removed people, unless they are requested', async () => {
    const tenant = await server.tenant();
    const gone = await tenant.person('author');
    await remove(204, tenant.admin, gone.userId);
    expect((await users(tenant.admin)).total).toBe(1);
    expect((await users(tenant.admin, '?status=removed')).users).toMatchObject([
      { id: gone.userId, status: 'removed', roles: [], sessions: 0, removed_at: expect.any(String) },
    ]);
    expect((await users(tenant.admin, '?status=all')).total).toBe(2);
  });
});

describe('roles', () => {
  test('apply from the response on, in open sessions, and end from the response on', async () => {
    const tenant = await server.tenant();
    const person = await tenant.person('viewer');
    await server.call(403, 'GET /v1/keys', person);
    expect((await grant(200, tenant.admin, person.userId, 'admin')).body.roles).toEqual(['viewer', 'admin']);
    await server.call(200, 'GET /v1/keys', person);
    expect((await revoke(200, tenant.admin, person.userId, 'admin')).body.roles).toEqual(['viewer']);
    await server.call(403, 'GET /v1/keys', person);
    await server.call(200, 'GET /v1/policies', person);
    await revoke(200, tenant.admin, person.userId, 'viewer');
    await server.call(403, 'GET /v1/policies', person);
    // who has no role is still told who they are, and can leave
    expect((await server.call(200, 'GET /auth/me', person)).body).toMatchObject({
      user: { id: person.userId },
      roles: [],
    });
    await server.call(200, 'GET /v1/sessions', person);
    await server.call(200, 'POST /auth/logout', person);
  });

  test('are changed, and people removed, for a reason that the audit log keeps', async () => {
    const tenant = await server.tenant();
    const { userId } = await tenant.person('viewer');
    await server.call(200, `POST /v1/users/${userId}/roles`, tenant.admin, {
      role: 'admin',
      reason: 'covers for Maria',
    });
    await server.call(200, `DELETE /v1/users/${userId}/roles/admin?reason=she%20is%20back`, tenant.admin);
    await server.call(204, `DELETE /v1/team/${userId}?reason=left`, tenant.admin);
    const actions = ['role.granted', 'role.revoked', 'member.removed'];
    const records = await Promise.all(actions.map((action) => audit(tenant, action)));
    expect(records.map(([record]) => record?.reason)).toEqual(['covers for Maria', 'she is back', 'left']);
    await server.call(400, `POST /v1/users/${userId}/roles`, tenant.admin, { role: 'admin', reason: '' });
  });

  test('and whatever else gives a right or takes a safeguard away, change for no one without a reason where the tenant requires them', async () => {
    const tenant = await server.tenant();
    await tenant.set({ reasons_required: true });
    const admin = await tenant.person('admin');
    for (const [line, body] of FOR_A_REASON) {
      const some = (reasons: readonly string[]) => sampled(reasons, (reason) => `${line} ${reason}`, 5);
      const refused = async (reason: string | undefined, message: string) => {
        const where = line.replace('{role}', 'author').replaceAll(/\{\w+\}/g, 'x');
        const { body: answer } = await server.call<{ code: string; errors: { pointer: string; message: string }[] }>(
          400,
          where,
          admin,
          { ...body, reason },
        );
        expect(answer, `${line} ${reason}`).toMatchObject({ code: 'VALIDATION_FAILED' });
        for (const { pointer } of answer.errors) expect(pointer, line).toMatch(/^[/?]reason$/);
        expect(answer.errors.map((error) => error.message).join(), line).toContain(message);
      };
      await refused(undefined, 'is required: say why');
      for (const blank of some([
        '',
        ' ',
        '\u00a0',
        '\u200b\u202e',
        ...'\u3164\u115f\u1160\uffa0\u2800',
        '\u3164 \u0301',
      ]))
        await refused(blank, '');
      for (const bad of some(['a\u0000b', '\u001b[2Ja', 'a\u2028b', '\ud800']))
        await refused(bad, 'without control characters');
      // what agents are shown is short, and one line
      const shown = line.startsWith('POST /v1/stops');
      if (shown) await refused('a\nb', 'one line');
      await refused('r'.repeat(shown ? 301 : 2001), shown ? '300' : '2000');
    }
    // each route that has a reason is one of these, or of those that need a world of their own to be asked
    interface Operation {
      parameters?: { name: string }[];
      requestBody?: { content: Record<string, { schema: { properties?: Record<string, object> } }> };
    }
    const { body: api } = await server.call<{ paths: Record<string, Record<string, Operation>> }>(
      200,
      'GET /openapi.json',
      undefined,
    );
    const asked = Object.entries(api.paths).flatMap(([path, methods]) =>
      Object.entries(methods).flatMap(([method, operation]) =>
        operation.parameters?.some(({ name }) => name === 'reason') ||
        operation.requestBody?.content['application/json']?.schema.properties?.reason
          ? [`${method.toUpperCase()} ${path}`]
          : [],
      ),
    );
    const known = [...FOR_A_REASON.map(([line]) => line), 'POST /v1/escrow/{id}/vote', 'PATCH /v1/settings'];
    expect(asked.sort()).toEqual(known.sort());
  });

  test('are granted once; one that was revoked can be granted again; each is audited, refusals apart', async () => {
    const tenant = await server.tenant();
    const { userId } = await tenant.person('viewer');
    await grant(200, tenant.admin, userId, 'approver');
    expect((await grant(409, tenant.admin, userId, 'approver')).body.code).toBe('CONFLICT');
    await revoke(200, tenant.admin, userId, 'approver');
    expect((await revoke(404, tenant.admin, userId, 'approver')).body.code).toBe('NOT_FOUND');
    await grant(200, tenant.admin, userId, 'approver');
    const codes = async (action: string) =>
      (await audit(tenant, action)).map(({ code, detail }) => `${code} ${detail}`);
    expect(await codes('role.granted')).toEqual(['ROL001I approver', 'ROL001I approver']);
    expect(await codes('role.grant_refused')).toEqual(['ROL001E approver']);
    expect(await codes('role.revoked')).toEqual(['ROL002I approver']);
    for (const role of ['boss', '', 1, null, ['admin']]) {
      await server.call(400, `POST /v1/users/${userId}/roles`, tenant.admin, { role });
    }
    await grant(404, tenant.admin, 'usr_nobody', 'viewer');
  });

  test('of one person granted many times concurrently are granted once', async () => {
    const tenant = await server.tenant();
    const { userId } = await tenant.person('viewer');
    const answers = await Promise.all(
      Array.from({ length: 20 }, () =>
        fetch(`${server.url}/v1/users/${userId}/roles`, {
          method: 'POST',
          headers: { authorization: `Bearer ${tenant.admin.key}`, 'content-type': 'application/json' },
          body: '{"role":"author","reason":"once"}',
        }),
      ),
    );
    expect(answers.filter(({ status }) => status === 200)).toHaveLength(1);
    expect(answers.filter(({ status }) => status === 409)).toHaveLength(19);
    expect((await user(tenant.admin, userId)).roles).toEqual(['viewer', 'author']);
  });

  test('the last admin can neither lose the role nor leave, nor be removed by a key', async () => {
    const { tenant, a, b, key } = await twoAdmins();
    await remove(204, a, b.userId);
    for (const who of [a, key]) {
      expect((await revoke(409, who, a.userId, 'admin')).body.code).toBe('CONFLICT');
      expect((await remove(409, who, a.userId)).body.code).toBe('CONFLICT');
    }
    expect((await audit(tenant, 'member.removal_refused')).map(({ code }) => code)).toEqual(['MEM002E', 'MEM002E']);
    expect((await audit(tenant, 'role.revocation_refused')).map(({ code }) => code)).toEqual(['ROL002E', 'ROL002E']);
    await server.call(200, 'GET /v1/keys', a);
    const next = await tenant.person('admin');
    await remove(204, a, a.userId);
    await server.call(401, 'GET /auth/me', a);
    await server.call(200, 'GET /v1/keys', next);
  });

  test('two admins who remove or demote each other concurrently leave one', async () => {
    for (let round = 0; round < (SIEGE ? 8 : 2); round++) {
      const { tenant, a, b, key } = await twoAdmins();
      const attack = (who: Credential, id: string) =>
        fetch(`${server.url}${round % 2 ? `/v1/team/${id}` : `/v1/users/${id}/roles/admin`}?reason=first`, {
          method: 'DELETE',
          headers: { cookie: who.cookie!, origin: server.origin },
        });
      const statuses = (await Promise.all([attack(a, b.userId), attack(b, a.userId)])).map(({ status }) => status);
      expect(statuses.filter((status) => status < 300)).toHaveLength(1);
      // the slower one is an admin no more, or was signed out meanwhile
      expect([401, 403, 409]).toContain(statuses.find((status) => status >= 300));
      const admins = (await users(key, '?role=admin')).users;
      expect(admins).toHaveLength(1);
      expect([a.userId, b.userId]).toContain(admins[0]!.id);
      expect(tenant.id).toBeTruthy();
    }
  });

  test('an admin who is demoted keeps no key that they created, and none that was created with it', async () => {
    const tenant = await server.tenant();
    const person = await tenant.person('viewer', 'admin');
    const make = async (scopes: string[]) => ({
      key: (await server.call<{ key: string }>(201, 'POST /v1/keys', person, { label: 'k', scopes })).body.key,
    });
    const [admin, both, proxy] = [await make(['admin']), await make(['proxy', 'admin']), await make(['proxy'])];
    // a key that was made with one of them is the person's too
    const child = (await server.call<{ key: string }>(201, 'POST /v1/keys', admin, { label: 'c', scopes: ['admin'] }))
      .body;
    expect((await user(tenant.admin, person.userId)).keys).toBe(4);
    const agentKey = async (who: Credential, owner_id: string) =>
      (await server.call<{ id: string }>(201, 'POST /v1/agent-keys', who, { agent_id: 'a', agent_role: 'r', owner_id }))
        .body.id;
    const made = [await agentKey(person, tenant.admin.userId), await agentKey({ key: child.key }, tenant.admin.userId)];
    const owned = await agentKey(tenant.admin, person.userId);
    await revoke(200, tenant.admin, person.userId, 'admin');
    for (const { key } of [admin, both, child, proxy]) await server.call(401, 'GET /auth/me', { key: key! });
    expect((await audit(tenant, 'key.revoked')).map(({ reason }) => reason)).toEqual(
      Array(4).fill(`held by ${person.userId}`),
    );
    const revoked = await sql<{ id: string }>(
      server,
      'select id from agent_key where tenant_id = $1 and revoked_at is not null',
      [tenant.id],
    );
    expect(revoked.map(({ id }) => id).sort()).toEqual(made.sort());
    // what they answer for is not what they made
    expect((await server.call(200, 'GET /v1/agent-keys', tenant.admin)).text).toContain(owned);
  });
});

describe('what a person created as an admin', () => {
  interface Invite {
    id: string;
    status: string;
  }
  const invite = async (who: Credential, email: string) =>
    (await server.call<Invite>(201, 'POST /v1/invites', who, { email, role: 'admin' })).body;
  const statusOf = async (who: Credential, { id }: Invite) =>
    (await server.call<{ invites: Invite[] }>(200, 'GET /v1/invites?limit=200', who)).body.invites.find(
      (one) => one.id === id,
    )!.status;
  test.each(['demoted', 'removed'])(
    'ends with being %s: invitations by session and by key, and nobody else’s',
    async (how) => {
      const tenant = await server.tenant();
      const person = await tenant.person('admin', 'viewer');
      const key = {
        key: (await server.call<{ key: string }>(201, 'POST /v1/keys', person, { label: 'k', scopes: ['admin'] })).body
          .key,
      };
      const names = ['session', 'key', 'admin', 'operator'].map((name) => `${name}-${how}@invited.test`);
      const invites = [
        await invite(person, names[0]!),
        await invite(key, names[1]!),
        await invite(tenant.admin, names[2]!),
        await invite(tenant.operatorKey, names[3]!),
      ];
      await mailsSent(server);
      const tokens = names.map((name) => mailsTo(server, name).at(-1)!.token);
      if (how === 'demoted') await revoke(200, tenant.admin, person.userId, 'admin');
      else await remove(204, tenant.admin, person.userId);
      const accept = { headers: { accept: 'application/json' } };
      for (const [n, one] of invites.entries()) {
        expect(await statusOf(tenant.admin, one)).toBe(n < 2 ? 'revoked' : 'pending');
        await server.call(n < 2 ? 401 : 200, `GET /auth/invite?token=${tokens[n]!}`, accept);
      }
      await server.call(401, 'GET /auth/me', key);
    },
  );

  test('never works afterwards, however it races the demotion', async () => {
    const tenant = await server.tenant();
    for (let round = 0; round < (SIEGE ? 8 : 2); round++) {
      const person = await tenant.person('admin', 'viewer');
      const own = (await server.call<{ key: string }>(201, 'POST /v1/keys', person, { label: 'k', scopes: ['admin'] }))
        .body;
      const bySession = { cookie: person.cookie!, origin: server.origin };
      const byKey = { authorization: `Bearer ${own.key}` };
      const asks = [
        ['POST', '/v1/keys', { label: 'k', scopes: ['admin'] }],
        ['POST', '/v1/agent-keys', { agent_id: 'a', agent_role: 'r', owner_id: tenant.admin.userId }],
        ['POST', '/v1/invites', { email: `r${round}@race.test`, role: 'admin' }],
        ['POST', `/v1/users/${tenant.admin.userId}/roles`, { role: 'viewer', reason: 'to race' }],
      ] as const;
      const racing = [bySession, byKey].flatMap((credential) =>
        asks.map(async ([method, path, body]) => {
          const headers = { ...credential, 'content-type': 'application/json' };
          const answer = await fetch(server.url + path, { method, headers, body: JSON.stringify(body) });
          return { path, status: answer.status, body: (await answer.json()) as { key?: string; id?: string } };
        }),
      );
      await revoke(200, tenant.admin, person.userId, 'admin');
      for (const { path, status, body } of await Promise.all(racing)) {
        expect([201, 200, 401, 403, 409], path).toContain(status);
        if (path === '/v1/keys' && body.key) await server.call(401, 'GET /auth/me', { key: body.key });
        if (path === '/v1/invites' && status === 201) {
          expect(await statusOf(tenant.admin, body as Invite)).toBe('revoked');
        }
      }
      const working = await sql(
        server,
        `select id from agent_key where tenant_id = $1 and revoked_at is null
         union all select id from api_key where tenant_id = $1 and revoked_at is null and created_by = $2
         union all select id from invitation where tenant_id = $1 and revoked_at is null and accepted_at is null`,
        [tenant.id, person.userId],
      );
      expect(working).toEqual([]);
    }
  });

  test('is a key that never has more rights than its creator now, whatever the database says of the key', async () => {
    const tenant = await server.tenant();
    const person = await tenant.person('admin', 'viewer');
    const make = async () =>
      (await server.call<{ key: string; id: string }>(201, 'POST /v1/keys', person, { label: 'k', scopes: ['proxy'] }))
        .body;
    const key = await make();
    // as after a restore, or a hand in the database: the role is gone and the key is not revoked
    await sql(server, `update member set roles = '{viewer}' where id = $1`, [person.userId]);
    await server.call(401, 'GET /auth/me', { key: key.key });
    await sql(server, `update member set roles = '{admin}' where id = $1`, [person.userId]);
    await server.call(200, 'GET /auth/me', { key: key.key });
  });

  test('differs from what an operator created: such a key has no owner and approves nothing if approval is required', async () => {
    const tenant = await server.tenant();
    const { operatorKey } = tenant;
    // nobody else would answer for the agent, or be kept from voting on its holds
    const agent = { agent_id: 'a', agent_role: 'r' };
    const input = { label: 'o', scopes: ['admin'], owner: null } as const;
    const { row, secret } = await server.core.keys.createApiKey(tenant.id, input, { actor: OPERATOR });
    const refused = await server.call(400, 'POST /v1/agent-keys', { key: secret }, agent);
    expect(refused.body.errors).toMatchObject([
      { pointer: '/owner_id', message: expect.stringContaining('name the one') },
    ]);
    const owner_id = tenant.admin.userId;
    const made = await server.call(201, 'POST /v1/agent-keys', { key: secret }, { ...agent, owner_id });
    expect(made.body.owner_id).toBe(owner_id);
    await server.call(204, `DELETE /v1/keys/${row.id}`, tenant.admin);
    // the key of the first start is held by the first admin
    const first = await server.call(201, 'POST /v1/agent-keys', operatorKey, { ...agent, agent_id: 'b' });
    expect(first.body.owner_id).toBe(owner_id);
    const child = (
      await server.call<{ key: string }>(201, 'POST /v1/keys', operatorKey, { label: 'c', scopes: ['admin'] })
    ).body;
    const listed = await server.call<{ keys: { created_by: string | null }[] }>(200, 'GET /v1/keys', operatorKey);
    expect(listed.body.keys.map(({ created_by }) => created_by)).toEqual([null, tenant.admin.userId, null]);
    await deploy(server, operatorKey, 'free', GUARD);
    await tenant.set({ approval_required: true });
    await server.call(201, 'POST /v1/policies', operatorKey, { id: 'bound', dsl_source: GUARD });
    for (const key of [operatorKey, { key: child.key }]) {
      for (const [line, body] of [
        ['submit', {}],
        ['approve', { version: 1 }],
        ['break-glass', { version: 1, reason: 'x' }],
      ] as const) {
        await server.call(403, `POST /v1/policies/bound/${line}`, key, body);
      }
      await server.call(403, 'DELETE /v1/policies/free', key);
    }
  });
});

describe('a person who is removed', () => {
  test('has no role, session, link, key or group from the response on', async () => {
    const tenant = await server.tenant();
    const person = await tenant.person('admin');
    const second = await tenant.enter(person.userId);
    const link = await server.core.links.create(tenant.id, person.userId, 900, {
      actor: { type: 'operator', id: 'test' },
    });
    const make = async (line: string, who: Credential, body: object) =>
      (await server.call<{ key: string; id: string }>(201, line, who, body)).body;
    const key = await make('POST /v1/keys', person, { label: 'k', scopes: ['admin'] });
    const proxy = await make('POST /v1/keys', person, { label: 'p', scopes: ['proxy'] });
    const agent = { agent_id: 'a1', agent_role: 'clerk' };
    const madeBy = await make('POST /v1/agent-keys', person, { ...agent, owner_id: tenant.admin.userId });
    const madeByKey = await make('POST /v1/agent-keys', key, { ...agent, owner_id: tenant.admin.userId });
    const owned = await make('POST /v1/agent-keys', tenant.admin, { ...agent, owner_id: person.userId });
    const other = await make('POST /v1/agent-keys', tenant.admin, agent);
    await tenant.set({
      approver_groups: { finance: [person.userId, tenant.admin.userId], legal: [person.userId] },
    });
    await deploy(server, tenant.admin, 'guard', GUARD);
    await remove(204, tenant.admin, person.userId);
    for (const session of [person, second]) await server.call(401, 'GET /auth/me', session);
    await server.call(401, `GET /auth/magic-link/verify?token=${link}`, undefined);
    for (const gone of [key, proxy]) await server.call(401, 'GET /auth/me', { key: gone.key });
    const evaluate = (status: number, { key }: { key: string }) =>
      server.call(
        status,
        'POST /v1/evaluate',
        { key, headers: { 'x-svc-tenant': tenant.id } },
        {
          action_type: 'tool_call',
          tool_name: 'read',
        },
      );
    for (const gone of [madeBy, madeByKey, owned]) await evaluate(401, gone);
    await evaluate(200, other);
    const settings = await server.call<{ approver_groups: object }>(200, 'GET /v1/settings', tenant.admin);
    expect(settings.body.approver_groups).toEqual({ finance: [tenant.admin.userId], legal: [] });
    const [record] = await audit(tenant, 'member.removed');
    expect(record).toMatchObject({
      code: 'MEM002I',
      target: { id: person.userId },
      detail: '2 sessions ended, 5 keys and 0 invitations revoked; out of finance, legal',
    });
    const config = await server.call(200, 'GET /v1/proxy-config', tenant.admin);
    for (const gone of [madeBy, madeByKey, owned]) expect(config.text).not.toContain(gone.id);
    await remove(404, tenant.admin, person.userId);
    await grant(404, tenant.admin, person.userId, 'admin');
    // what they did stays
    expect((await user(tenant.admin, person.userId)).status).toBe('removed');
  });

  test('ends their own sign-in links, and no one else’s', async () => {
    const tenant = await server.tenant();
    const [gone, stays] = [await tenant.person('viewer'), await tenant.person('viewer')];
    const link = (userId: string) => server.core.links.create(tenant.id, userId, 900, { actor: OPERATOR });
    const [dead, alive] = [await link(gone.userId), await link(stays.userId)];
    await remove(204, tenant.admin, gone.userId);
    await server.call(401, `GET /auth/magic-link/verify?token=${dead}`, undefined);
    await server.call(302, `GET /auth/magic-link/verify?token=${alive}`, undefined);
    await server.call(200, 'GET /auth/me', stays);
  });

  test('no longer counts in open holds', async () => {
    const tenant = await server.tenant();
    const [a, b] = [await tenant.person('approver'), await tenant.person('approver')];
    const proxy = await tenant.key('proxy');
    const { id } = (
      await server.call<{ id: string }>(201, 'POST /v1/escrow', proxy, {
        agent_role: 'clerk',
        agent_id: 'agent-1',
        action_type: 'api_call',
        action_summary: 'pays',
        action_hash: `sha256:${'0'.repeat(64)}`,
        hold_type: 'multi_party',
        required_approvals: 2,
        ttl_seconds: 600,
      })
    ).body;
    const vote = async (who: Credential) =>
      (await server.call(200, `POST /v1/escrow/${id}/vote`, who, { decision: 'approve', reason: 'x' })).body;
    expect(await vote(a)).toMatchObject({ current_approvals: 1 });
    await remove(204, tenant.admin, a.userId);
    expect(await vote(b)).toMatchObject({ status: 'held', current_approvals: 1 });
  });

  test('is refused to every request that starts after the removal, with many in flight', async () => {
    const tenant = await server.tenant();
    const person = await tenant.person('viewer');
    let removed = false;
    const late: number[] = [];
    const load = Promise.all(
      Array.from({ length: 10 }, async () => {
        for (let i = 0; i < (SIEGE ? 15 : 6); i++) {
          const after = removed;
          const { status } = await fetch(`${server.url}/auth/me`, { headers: { cookie: person.cookie! } });
          if (after) late.push(status);
        }
      }),
    );
    await remove(204, tenant.admin, person.userId);
    removed = true;
    await load;
    late.push((await fetch(`${server.url}/auth/me`, { headers: { cookie: person.cookie! } })).status);
    expect(new Set(late)).toEqual(new Set([401]));
  });

  test('is left with no key, whatever keys are created during the removal', async () => {
    const tenant = await server.tenant();
    for (let round = 0; round < (SIEGE ? 5 : 2); round++) {
      const person = await tenant.person('admin');
      const headers = { cookie: person.cookie!, origin: server.origin, 'content-type': 'application/json' };
      const lines = [
        ['/v1/keys', { label: 'k', scopes: ['proxy'] }],
        ['/v1/agent-keys', { agent_id: 'a', agent_role: 'r' }],
        ['/v1/agent-keys', { agent_id: 'a', agent_role: 'r', owner_id: tenant.admin.userId }],
      ] as const;
      const making = Array.from({ length: 9 }, async (_, i) => {
        const [path, body] = lines[i % 3]!;
        const answer = await fetch(server.url + path, { method: 'POST', headers, body: JSON.stringify(body) });
        return { status: answer.status, key: ((await answer.json()) as { key?: string }).key };
      });
      await remove(204, tenant.admin, person.userId);
      for (const { status, key } of await Promise.all(making)) {
        expect([201, 401, 403]).toContain(status);
        if (!key) continue;
        const refused = key.startsWith('svc_key_')
          ? await server.call(401, 'GET /auth/me', { key })
          : await server.call(
              401,
              'POST /v1/evaluate',
              { key, headers: { 'x-svc-tenant': tenant.id } },
              {
                action_type: 'tool_call',
                tool_name: 'read',
              },
            );
        expect(refused.body.code).toBe('UNAUTHENTICATED');
      }
    }
  });

  test('is not a person of another tenant', async () => {
    const [mine, other] = [await server.tenant(), await server.tenant()];
    const theirs = await other.person('viewer');
    await remove(404, mine.admin, theirs.userId);
    await server.call(200, 'GET /auth/me', theirs);
  });
});

describe('sessions', () => {
  interface Session {
    id: string;
    current: boolean;
    ip: string;
    user_agent: string;
    last_seen_at: string;
    created_at: string;
    expires_at: string;
  }
  const list = async (who: Credential, line = 'GET /v1/sessions') =>
    (await server.call<{ sessions: Session[] }>(200, line, who)).body.sessions;

  test('are listed to their owner with place and time, and never with what identifies them', async () => {
    const tenant = await server.tenant();
    const person = await tenant.person('viewer');
    const token = await server.core.links.create(tenant.id, person.userId, 900, {
      actor: { type: 'operator', id: 'test' },
    });
    const long = `Browser/1.0 ${'x'.repeat(500)}`;
    const { headers } = await server.call(302, `GET /auth/magic-link/verify?token=${token}`, {
      headers: { 'user-agent': long },
    });
    const second = { cookie: headers.getSetCookie()[0]!.split(';')[0]! };
    const sessions = await list(second);
    expect(sessions.map(({ current }) => current)).toEqual([true, false]);
    expect(sessions[0]).toMatchObject({ ip: '127.0.0.1', user_agent: long.slice(0, 200), auth_method: 'magic_link' });
    expect(Date.parse(sessions[0]!.expires_at) - Date.parse(sessions[0]!.created_at)).toBe(24 * 3600_000);
    const rows = await sql<{ id: string }>(server, 'select id from session where user_id = $1', [person.userId]);
    const shown = JSON.stringify(sessions);
    for (const { id } of rows) expect(shown).not.toContain(id);
    expect(await list(tenant.admin, `GET /v1/users/${person.userId}/sessions`)).toEqual(
      sessions.map((session) => ({ ...session, current: false })),
    );
  });

  test('show roughly when they were last used', async () => {
    const tenant = await server.tenant();
    const person = await tenant.person('viewer');
    const [before] = await list(person);
    server.clock.advance(10 * 60_000);
    await server.call(200, 'GET /auth/me', person);
    await expect
      .poll(async () => Date.parse((await list(person))[0]!.last_seen_at) - Date.parse(before!.created_at))
      .toBeGreaterThanOrEqual(9 * 60_000);
  });

  test('end one by one, all others, and by an admin; each immediately', async () => {
    const tenant = await server.tenant();
    const admin = await tenant.person('admin');
    const person = await tenant.person('viewer');
    const others = [await tenant.enter(person.userId), await tenant.enter(person.userId)];
    const stranger = await tenant.person('viewer');
    const idOf = async (who: Credential) => (await list(who)).find(({ current }) => current)!.id;
    const first = await idOf(others[0]!);
    await server.call(404, `DELETE /v1/sessions/${first}`, stranger);
    await server.call(204, `DELETE /v1/sessions/${first}`, person);
    await server.call(401, 'GET /auth/me', others[0]!);
    await server.call(404, `DELETE /v1/sessions/${first}`, person);
    await tenant.enter(person.userId);
    expect((await server.call(200, 'DELETE /v1/sessions', person)).body).toEqual({ ended: 2 });
    await server.call(401, 'GET /auth/me', others[1]!);
    expect(await list(person)).toHaveLength(1);
    await server.call(404, `DELETE /v1/users/${stranger.userId}/sessions/${await idOf(person)}`, admin);
    await server.call(204, `DELETE /v1/users/${person.userId}/sessions/${await idOf(person)}`, admin);
    await server.call(401, 'GET /auth/me', person);
    const again = [await tenant.enter(person.userId), await tenant.enter(person.userId)];
    expect((await server.call(200, `DELETE /v1/users/${person.userId}/sessions`, tenant.admin)).body).toEqual({
      ended: 2,
    });
    for (const session of again) await server.call(401, 'GET /auth/me', session);
    await server.call(200, 'GET /auth/me', stranger);
    expect((await audit(tenant, 'session.ended')).length).toBe(4);
  });

  test('are recorded as ended once, however many requests end them concurrently', async () => {
    const tenant = await server.tenant();
    const person = await tenant.person('viewer');
    const other = await tenant.enter(person.userId);
    const [{ id }] = (await list(person)).filter(({ current }) => !current) as [Session];
    // both requests have come as far as the session when it is let go
    const lock = await server.core.db.owner.connect();
    await lock.query('begin');
    const { rowCount } = await lock.query('select 1 from session where handle = $1 for update', [id]);
    expect(rowCount).toBe(1);
    const ends = [1, 2].map(() =>
      fetch(`${server.url}/v1/sessions/${id}`, {
        method: 'DELETE',
        headers: { cookie: person.cookie!, origin: server.origin },
      }),
    );
    const waiting = `select 1 from pg_locks l join pg_stat_activity a using (pid)
      where not l.granted and a.datname = current_database()`;
    await until(async () => (await sql(server, waiting)).length >= 2, 'both requests wait for the session').finally(
      async () => {
        await lock.query('rollback');
        lock.release();
      },
    );
    const statuses = (await Promise.all(ends)).map(({ status }) => status);
    expect(statuses.sort()).toEqual([204, 404]);
    await server.call(401, 'GET /auth/me', other);
    expect(await audit(tenant, 'session.ended')).toHaveLength(1);
  });
});
