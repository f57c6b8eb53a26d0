import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Core, openCore } from '../../server/app.ts';
import { readConfig } from '../../server/config.ts';
import { OPERATOR } from '../../server/domain/audit.ts';
import { createLog } from '../../server/lib/log.ts';
import { createTenant } from '../../server/provision.ts';
import { useDatabase } from '../helpers/database.ts';
import { MASTER_KEY, ServerProcess } from '../helpers/processes.ts';
import { noRedis, TestRedis } from '../helpers/redis.ts';
import { SIEGE } from '../siege/rounds.ts';

/** Two servers as processes of their own, on one PostgreSQL and one Redis. */
describe.skipIf(noRedis)('people, with two processes', () => {
  const box = useDatabase();
  const dir = mkdtempSync(path.join(tmpdir(), 'svc-people-'));
  let redis: TestRedis;
  let core: Core;
  let servers: [ServerProcess, ServerProcess];
  let tenantId: string;
  let key: string;
  let made = 0;

  beforeAll(async () => {
    redis = await TestRedis.start();
    const env = { DATABASE_URL: box.url, REDIS_URL: redis.url };
    const config = readConfig({ ...env, SVC_DATA_DIR: dir, SVC_MASTER_KEY: MASTER_KEY });
    core = await openCore({ config, databaseUrl: box.url, log: createLog('silent') });
    servers = [new ServerProcess('a', env), new ServerProcess('b', env)];
    await Promise.all(servers.map((server) => server.start()));
    const tenant = await createTenant(core, 'http://localhost', { name: 'Test', adminEmail: 'admin@example.test' });
    tenantId = tenant.tenant_id;
    key = tenant.api_key;
  });
  afterAll(async () => {
    await Promise.all((servers ?? []).map((server) => server.dispose()));
    await core?.stop();
    await redis?.stop();
    rmSync(dir, { recursive: true, force: true });
  });

  const person = (...roles: string[]) =>
    core.tenants.addMember(tenantId, { email: `p${++made}@example.test`, roles }, { actor: OPERATOR });
  const link = (userId: string) => core.links.create(tenantId, userId, 600, { actor: OPERATOR });
  const verify = (server: ServerProcess, token: string) =>
    fetch(`${server.url}/auth/magic-link/verify?token=${token}`, { redirect: 'manual' });
  const signIn = async (userId: string) =>
    (await verify(servers[0], await link(userId))).headers.get('set-cookie')!.split(';')[0]!;
  const get = async (server: ServerProcess, target: string, cookie: string) =>
    (await fetch(server.url + target, { headers: { cookie } })).status;
  const admin = async (server: ServerProcess, line: string, body?: object) => {
    const [method, target] = line.split(' ') as [string, string];
    const response = await fetch(server.url + target, {
      method,
      headers: { authorization: `Bearer ${key}`, ...(body && { 'content-type': 'application/json' }) },
      ...(body && { body: JSON.stringify(body) }),
    });
    return response.status;
  };

  test('a removal, a role and an ended session apply in the other process on its next request', async () => {
    const [one, other] = servers;
    for (let round = 0; round < (SIEGE ? 5 : 2); round++) {
      const userId = await person('viewer');
      const cookies = [await signIn(userId), await signIn(userId)];
      // both processes know both sessions by now
      for (const server of servers)
        for (const cookie of cookies) expect(await get(server, '/auth/me', cookie)).toBe(200);
      expect(await get(other, '/v1/keys', cookies[0]!)).toBe(403);
      expect(await admin(one, `POST /v1/users/${userId}/roles`, { role: 'admin', reason: 'to test' })).toBe(200);
      expect(await get(other, '/v1/keys', cookies[0]!)).toBe(200);
      expect(await admin(one, `DELETE /v1/users/${userId}/roles/admin`, { reason: 'to test' })).toBe(200);
      expect(await get(other, '/v1/keys', cookies[0]!)).toBe(403);
      const out = await fetch(`${one.url}/auth/logout`, {
        method: 'POST',
        headers: { cookie: cookies[0]!, origin: one.url },
      });
      expect(out.status).toBe(200);
      expect(await get(other, '/auth/me', cookies[0]!)).toBe(401);
      expect(await get(other, '/auth/me', cookies[1]!)).toBe(200);
      expect(await admin(one, `DELETE /v1/team/${userId}`, { reason: 'to test' })).toBe(204);
      expect(await get(other, '/auth/me', cookies[1]!)).toBe(401);
    }
  });

  test('100 concurrent uses of one link through both start one session', async () => {
    const userId = await person('viewer');
    const token = await link(userId);
    const answers = await Promise.all(Array.from({ length: 100 }, (_, i) => verify(servers[i % 2]!, token)));
    const statuses = answers.map(({ status }) => status);
    expect(statuses.filter((status) => status === 302)).toHaveLength(1);
    // who waits too long for the row on a busy machine is told to come again, and is refused then
    expect(statuses.filter((status) => status === 401 || status === 503)).toHaveLength(99);
    expect((await verify(servers[0]!, token)).status).toBe(401);
    const { rows } = await core.db.owner.query('select id from session where user_id = $1', [userId]);
    expect(rows).toHaveLength(1);
  });

  test('the limit of links per address counts both together', async () => {
    const userId = await person('viewer');
    const [{ email } = { email: '' }] = await core.db.query<{ email: string }>(
      tenantId,
      'select email from member where id = $1',
      [userId],
    );
    for (let i = 0; i < 8; i++) {
      const { status } = await fetch(`${servers[i % 2]!.url}/auth/magic-link`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify({ email }),
      });
      expect(status).toBe(200);
    }
    const count = async () =>
      (
        await core.db.owner.query<{ links: number; waiting: number }>(
          `select (select count(*) from sign_in_link where user_id = $1 and source = 'mail')::int as links,
             (select count(*) from sign_in_request)::int as waiting`,
          [userId],
        )
      ).rows[0];
    await expect.poll(count).toEqual({ links: 5, waiting: 0 });
  });
});
