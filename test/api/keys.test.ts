import { crc32 } from 'node:zlib';
import pg from 'pg';
import { describe, expect, test } from 'vitest';
import { OPERATOR } from '../../server/domain/audit.ts';
import { newSecret, type SecretKind } from '../../server/domain/secret.ts';
import { sha256Tag, toBase62 } from '../../server/lib/crypto.ts';
import { BODIES, fill, operations, sql } from '../helpers/api.ts';
import { type Credential, type TestTenant, useServer } from '../helpers/server.ts';
import { until } from '../helpers/until.ts';
import { SIEGE, sampled } from '../siege/rounds.ts';

const server = useServer();

interface Made {
  id: string;
  key: string;
  label: string;
  prefix: string;
  scopes: string[];
  created_at: string;
}
interface Listed extends Omit<Made, 'key'> {
  created_by: string | null;
  last_used_at?: string;
  expires_at?: string;
}

const create = async (who: Credential, more: Record<string, unknown> = {}) =>
  (await server.call<Made>(201, 'POST /v1/keys', who, { label: 'ci', scopes: ['pipeline'], ...more })).body;
const list = async (who: Credential) => (await server.call<{ keys: Listed[] }>(200, 'GET /v1/keys', who)).body.keys;

test.each(['keys', 'agent-keys'])(
  'of the %s one is rotated: both work until the overlap ends, then the new one alone',
  async (kind) => {
    const [tenant, other] = [await server.tenant(), await server.tenant()];
    const asked =
      kind === 'keys'
        ? { label: 'ci', scopes: ['pipeline'] }
        : { agent_id: 'bot', agent_role: 'clerk', label: 'the bot' };
    const old = (await server.call<Made>(201, `POST /v1/${kind}`, tenant.admin, asked)).body;
    type Rotated = Made & { previous_expires_at: string };
    const rotate = async (id: string, overlap_seconds: number) =>
      (await server.call<Rotated>(201, `POST /v1/${kind}/${id}/rotate`, tenant.admin, { overlap_seconds })).body;
    const works = async ({ key }: { key: string }) => {
      const path = kind === 'keys' ? '/v1/policies' : '/v1/escrow/none';
      const { status } = await fetch(server.url + path, {
        headers: { authorization: `Bearer ${key}`, 'x-svc-tenant': tenant.id },
      });
      expect([200, 401, 404]).toContain(status);
      return status !== 401;
    };
    await server.call(404, `POST /v1/${kind}/${old.id}/rotate`, other.admin, {});
    const made = await rotate(old.id, 600);
    expect(await Promise.all([works(old), works(made)])).toEqual([true, true]);
    const rows = (await server.call(200, `GET /v1/${kind}`, tenant.admin)).body;
    const listed = Object.values(rows)[0] as Listed[];
    expect(listed.find(({ id }) => id === made.id)).toMatchObject({ label: kind === 'keys' ? 'ci' : 'the bot' });
    expect(listed.find(({ id }) => id === old.id)?.expires_at).toBe(made.previous_expires_at);
    // a second rotation makes the life of the first key no longer
    expect((await rotate(old.id, 86_400)).previous_expires_at).toBe(made.previous_expires_at);
    server.clock.advance(601_000);
    expect(await Promise.all([works(old), works(made)])).toEqual([false, true]);
    await server.call(404, `POST /v1/${kind}/${old.id}/rotate`, tenant.admin, {});
    const last = await rotate(made.id, 0);
    expect(await Promise.all([works(made), works(last)])).toEqual([false, true]);
  },
);

test.each(['keys', 'agent-keys'])('of the %s one that is rotated twice lives on as long as it was to', async (kind) => {
  const { admin } = await server.tenant();
  const asked = kind === 'keys' ? { scopes: ['pipeline'] } : { agent_id: 'bot', agent_role: 'clerk' };
  const make = async (expires_at: string) =>
    (await server.call<Made>(201, `POST /v1/${kind}`, admin, { label: 'x', expires_at, ...asked })).body;
  const rotate = async (id: string) =>
    (await server.call<Made & { expires_at: string }>(201, `POST /v1/${kind}/${id}/rotate`, admin, {})).body.expires_at;
  const { id } = await make(new Date(server.clock.now() + 30 * 86_400_000).toISOString());
  // the answer to the first one may have been lost
  await rotate(id);
  expect(Date.parse(await rotate(id)) - server.clock.now()).toBeGreaterThan(29 * 86_400_000);
  expect(await rotate((await make('9999-12-31')).id)).toBe('9999-12-31T00:00:00.000Z');
  const beyond = { label: 'x', expires_at: '9999-12-31T23:59:59-12:00', ...asked };
  expect((await server.call(400, `POST /v1/${kind}`, admin, beyond)).body.code).toBe('VALIDATION_FAILED');
});

test.each(['keys', 'agent-keys'])(
  'a rotation of one of the %s and the end of its person take turns: people are locked before keys',
  async (kind) => {
    const tenant = await server.tenant();
    const person = await tenant.person('admin');
    const asked = kind === 'keys' ? { label: 'ci', scopes: ['pipeline'] } : { agent_id: 'bot', agent_role: 'clerk' };
    const old = (await server.call<Made>(201, `POST /v1/${kind}`, person, asked)).body;
    const removal = new pg.Client(server.databaseUrl);
    await removal.connect();
    try {
      await removal.query('begin');
      await removal.query('select 1 from member where tenant_id = $1 and id = $2 for update', [
        tenant.id,
        person.userId,
      ]);
      const { rows } = await removal.query<{ pid: number }>('select pg_backend_pid() as pid');
      const rotation = server.call(403, `POST /v1/${kind}/${old.id}/rotate`, person, {});
      const waits = `select 1 from pg_locks where not granted and $1 = any (pg_blocking_pids(pid))`;
      await until(
        async () => (await sql(server, waits, [rows[0]!.pid])).length > 0,
        'the rotation waits for the person',
      );
      const table = kind === 'keys' ? 'api_key' : 'agent_key';
      await removal.query(`update ${table} set revoked_at = now() where tenant_id = $1 and id = $2`, [
        tenant.id,
        old.id,
      ]);
      await removal.query('update member set removed_at = now() where tenant_id = $1 and id = $2', [
        tenant.id,
        person.userId,
      ]);
      await removal.query('commit');
      await rotation;
    } finally {
      await removal.end();
    }
  },
);

describe('the plaintext', () => {
  test('has a fixed form with a checksum, and is shown only in the response to its creation', async () => {
    const { admin, id: tenantId } = await server.tenant();
    const made = await create(admin);
    expect(made.key).toMatch(new RegExp(`^svc_key_${tenantId}_[0-9A-Za-z]{32}[0-9A-Za-z]{6}$`));
    expect(made.key.slice(-6)).toBe(toBase62(crc32(made.key.slice(0, -6)), 6));
    expect(made.key.startsWith(made.prefix)).toBe(true);
    expect(made.prefix).toHaveLength(made.key.length - 34);
    const agent = await server.call<{ key: string; id: string }>(201, 'POST /v1/agent-keys', admin, {
      agent_id: 'a',
      agent_role: 'r',
    });
    expect(agent.body.key).toMatch(new RegExp(`^svc_agent_${tenantId}_[0-9A-Za-z]{38}$`));
    for (const line of ['GET /v1/keys', 'GET /v1/agent-keys', 'GET /v1/audit', 'GET /v1/proxy-config']) {
      const { text } = await server.call(200, line, admin);
      expect(text).not.toContain(made.key);
      expect(text).not.toContain(agent.body.key);
      expect(text).not.toContain(made.key.slice(made.prefix.length));
    }
    // the proxy gets hashes of agent keys, because it must check them off line; nobody gets those of API keys
    const config = await server.call<{ agent_keys: { id: string; key_hash: string }[] }>(
      200,
      'GET /v1/proxy-config',
      admin,
    );
    expect(config.body.agent_keys).toEqual([
      expect.objectContaining({ id: agent.body.id, key_hash: sha256Tag(agent.body.key) }),
    ]);
    expect((await server.call(200, 'GET /v1/keys', admin)).text).not.toContain('hash');
  });

  test('leads nowhere under the id of another tenant, or of none, as if it had been made up', async () => {
    const [mine, theirs] = [await server.tenant(), await server.tenant()];
    const key = (await create(mine.admin)).key;
    const agent = (await mine.agent('a', 'r')).key!;
    const cookie = (await mine.person('admin')).cookie!.slice('svc_session='.length);
    const link = await server.core.links.create(mine.id, mine.admin.userId!, 900, { actor: OPERATOR });
    const uses = (secret: string, kind: string) =>
      kind === 'link'
        ? server.call(401, `GET /auth/magic-link/verify?token=${secret}`, undefined)
        : server.call(401, 'GET /auth/me', kind === 'session' ? { cookie: `svc_session=${secret}` } : { key: secret });
    for (const [kind, secret] of Object.entries({ key, agent, session: cookie, link })) {
      const form = new RegExp(`^svc_${kind}_${mine.id}_`);
      expect(secret).toMatch(form);
      const under = (tenantId: string) => {
        const body = secret.replace(form, `svc_${kind}_${tenantId}_`).slice(0, -6);
        return body + toBase62(crc32(body), 6);
      };
      expect(under(mine.id)).toBe(secret);
      const answers = [under(theirs.id), under('nobody'), newSecret(kind as SecretKind, mine.id), secret.slice(0, -1)];
      const bodies = await Promise.all(answers.map(async (one) => (await uses(one, kind)).body as object));
      for (const body of bodies) expect({ ...body, request_id: '' }).toEqual({ ...bodies[0], request_id: '' });
    }
    await server.call(200, 'GET /auth/me', { key });
  });

  test('is never twice the same', async () => {
    const { admin } = await server.tenant();
    const made = await Promise.all(Array.from({ length: 20 }, () => create(admin)));
    expect(new Set(made.map(({ key }) => key)).size).toBe(20);
    expect(new Set(made.map(({ id }) => id)).size).toBe(20);
  });

  test('that is malformed is refused without a lookup', async () => {
    const { admin } = await server.tenant();
    const { key } = await create(admin);
    const flipped = key.slice(0, 20) + (key[20] === 'a' ? 'b' : 'a') + key.slice(21);
    // looking a key up waits for this lock
    const locker = await server.core.db.connectOwner();
    await locker.query('begin; lock table credential in access exclusive mode');
    for (const wrong of [
      flipped,
      key.slice(0, -1),
      `${key}x`,
      key.toUpperCase(),
      key.replace('svc_key', 'svc_root'),
      'x',
      `${key} ${key}`,
    ]) {
      await server.call(401, 'GET /auth/me', { key: wrong });
    }
    let answered = false;
    const waiting = server.call(200, 'GET /auth/me', { key }).then(() => {
      answered = true;
    });
    await expect
      .poll(() => sql(server, `select 1 from pg_locks where relation = 'credential'::regclass and not granted`))
      .not.toEqual([]);
    expect(answered).toBe(false);
    await locker.end();
    await waiting;
  });
});

describe('a key', () => {
  test('reaches what its scopes allow and nothing else', async () => {
    const tenant = await server.tenant();
    for (const scope of ['proxy', 'pipeline', 'admin'] as const) {
      const who = await tenant.key(scope);
      const some = sampled(operations, ({ line }) => `${line} with ${scope}`, 6);
      for (const { line, access, method } of some.filter((o) => !o.access.public)) {
        const reaches = access.keys !== undefined && (scope === 'admin' || access.keys.includes(scope));
        const response = await fetch(server.url + fill(line).split(' ')[1], {
          method,
          headers: {
            authorization: `Bearer ${who.key}`,
            ...(method !== 'GET' && { 'content-type': 'application/json' }),
          },
          ...(method !== 'GET' && { body: '{"surprise":1}' }),
        });
        // a stream has no end
        const stream = response.headers.get('content-type') === 'text/event-stream';
        const text = stream ? '' : await response.text();
        if (stream) await response.body!.cancel();
        expect(text.includes('"KEY_SCOPE"'), `${line} with ${scope}: ${text.slice(0, 100)}`).toBe(!reaches);
      }
    }
  });

  test('stops working immediately when revoked, even with a warm cache and requests in flight', async () => {
    const { admin } = await server.tenant();
    const made = await create(admin);
    const who = { key: made.key };
    for (let i = 0; i < 3; i++) await server.call(200, 'GET /v1/policies', who);
    let revoked = false;
    const late: number[] = [];
    const load = Promise.all(
      Array.from({ length: 10 }, async () => {
        for (let i = 0; i < (SIEGE ? 30 : 6); i++) {
          const after = revoked;
          const { status } = await fetch(`${server.url}/v1/policies`, {
            headers: { authorization: `Bearer ${made.key}` },
          });
          if (after) late.push(status);
        }
      }),
    );
    await server.call(204, `DELETE /v1/keys/${made.id}`, admin);
    revoked = true;
    await load;
    await server.call(401, 'GET /v1/policies', who);
    expect(late.filter((status) => status !== 401)).toEqual([]);
    expect(await list(admin)).not.toContainEqual(expect.objectContaining({ id: made.id }));
    await server.call(404, `DELETE /v1/keys/${made.id}`, admin);
  });

  test('is revoked once by many concurrent requests, with one record', async () => {
    const { admin } = await server.tenant();
    const made = await create(admin);
    const statuses = await Promise.all(
      Array.from({ length: 10 }, async () => {
        const response = await fetch(`${server.url}/v1/keys/${made.id}?reason=it%20leaked`, {
          method: 'DELETE',
          headers: { authorization: `Bearer ${admin.key}` },
        });
        return response.status;
      }),
    );
    expect(statuses.sort()).toEqual([204, ...Array(9).fill(404)]);
    const { body } = await server.call<{ records: unknown[] }>(
      200,
      `GET /v1/audit?target_id=${made.id}&action=key.revoked`,
      admin,
    );
    expect(body.records).toHaveLength(1);
  });

  test('is revoked for a reason that the audit log keeps', async () => {
    const { admin } = await server.tenant();
    const made = await create(admin, {});
    await server.call(204, `DELETE /v1/keys/${made.id}?reason=it%20leaked`, admin);
    const { body } = await server.call(200, `GET /v1/audit?target_id=${made.id}&action=key.revoked`, admin);
    expect(body.records).toMatchObject([{ reason: 'it leaked' }]);
  });

  test('is known by its label to everyone who reads the audit log, also when it ended, and by nothing else of it', async () => {
    const [tenant, other] = [await server.tenant(), await server.tenant()];
    const [works, gone] = [
      await create(tenant.admin, { label: 'CI' }),
      await create(tenant.admin, { label: 'laptop' }),
    ];
    await server.call(204, `DELETE /v1/keys/${gone.id}`, tenant.admin, { reason: 'it was stolen' });
    const names = async (of: TestTenant) =>
      (
        await server.call<{ keys: { id: string }[] }>(200, 'GET /v1/directory', await of.person('viewer'))
      ).body.keys.filter(({ id }) => [works.id, gone.id].includes(id));
    expect(await names(tenant)).toEqual([
      { id: gone.id, kind: 'api_key', name: 'laptop', ended: true },
      { id: works.id, kind: 'api_key', name: 'CI', ended: false },
    ]);
    expect(await names(other)).toEqual([]);
  });

  test('expires on time, even while it is in use', async () => {
    const { admin } = await server.tenant();
    await server.clock.stopped(async () => {
      const expires_at = new Date(server.clock.now() + 60_000).toISOString();
      const made = await create(admin, { expires_at });
      expect((await list(admin)).find(({ id }) => id === made.id)!.expires_at).toBe(expires_at);
      await server.call(200, 'GET /v1/policies', { key: made.key });
      server.clock.advance(55_000);
      await server.call(200, 'GET /v1/policies', { key: made.key });
      server.clock.advance(6_000);
      await server.call(401, 'GET /v1/policies', { key: made.key });
    });
    const past = new Date(server.clock.now() - 1000).toISOString();
    await server.call(400, 'POST /v1/keys', admin, { label: 'x', scopes: ['proxy'], expires_at: past });
  });

  test('has a coarse time of last use: at most one write per minute', async () => {
    const { admin } = await server.tenant();
    const made = await create(admin);
    const used = async () => (await list(admin)).find(({ id }) => id === made.id)!.last_used_at;
    expect(await used()).toBeUndefined();
    await server.call(200, 'GET /v1/policies', { key: made.key });
    await expect.poll(used).toBeTypeOf('string');
    const first = await used();
    for (let i = 0; i < 5; i++) await server.call(200, 'GET /v1/policies', { key: made.key });
    expect(await used()).toBe(first);
    server.clock.advance(61_000);
    await server.call(200, 'GET /v1/policies', { key: made.key });
    await expect.poll(used).not.toBe(first);
  });

  test('has its creator as owner, and its actions are recorded under the key', async () => {
    const tenant = await server.tenant();
    const person = await tenant.person('admin');
    const made = await create(person, { label: 'mine' });
    expect((await list(person)).find(({ id }) => id === made.id)).toMatchObject({
      created_by: person.userId,
      label: 'mine',
      scopes: ['pipeline'],
    });
    const { body } = await server.call<{ records: Record<string, unknown>[] }>(
      200,
      `GET /v1/audit?target_id=${made.id}`,
      person,
    );
    expect(body.records).toEqual([
      expect.objectContaining({
        action: 'key.created',
        code: 'KEY001I',
        actor: expect.objectContaining({ type: 'user', id: person.userId }),
        target: { type: 'api_key', id: made.id },
        request_id: expect.stringMatching(/^req_/),
      }),
    ]);
    const policy = await server.call(201, 'POST /v1/policies', { key: made.key }, BODIES['POST /v1/policies']);
    // the person behind the key is the author, whichever credential was used
    expect(policy.body.author_id).toBe(person.userId);
    const written = await server.call<{ records: { actor: { type: string; id: string } }[] }>(
      200,
      'GET /v1/audit?action=policy.created',
      person,
    );
    expect(written.body.records[0]!.actor).toMatchObject({ type: 'api_key', id: made.id });
  });

  test('made by a key has the owner of that key', async () => {
    const tenant = await server.tenant();
    const person = await tenant.person('admin');
    const first = await create(person, { scopes: ['admin'] });
    const second = await create({ key: first.key }, { scopes: ['admin'] });
    expect((await list(person)).find(({ id }) => id === second.id)!.created_by).toBe(person.userId);
  });

  test('lists each scope once', async () => {
    const { admin } = await server.tenant();
    const made = await create(admin, { scopes: ['proxy', 'proxy'] });
    expect(made.scopes).toEqual(['proxy']);
  });
});

describe('an agent key', () => {
  test('calls evaluate and reads its own holds; every other route is KEY_SCOPE', async () => {
    const tenant = await server.tenant();
    const agent = await tenant.agent('a', 'clerk');
    const reached: string[] = [];
    const others = operations.filter(({ access }) => !access.public && !access.agent);
    const its = operations.filter(({ access }) => access.agent);
    for (const { line, access, method } of [...its, ...sampled(others, ({ line }) => line, 6)]) {
      const response = await fetch(server.url + fill(line).split(' ')[1], {
        method,
        headers: {
          authorization: `Bearer ${agent.key}`,
          ...(method !== 'GET' && { 'content-type': 'application/json' }),
        },
        ...(method !== 'GET' && { body: '{}' }),
      });
      const body = (await response.json()) as { code?: string };
      if (body.code !== 'KEY_SCOPE') reached.push(line);
      else expect(access.agent).toBeUndefined();
    }
    expect(reached.sort()).toEqual([
      'GET /v1/escrow/{id}',
      'POST /v1/evaluate',
      'POST /v1/evaluate/batch',
      'POST /v1/outcomes',
    ]);
  });

  test('stops working immediately when revoked, and leaves the configuration of proxies', async () => {
    const { admin, id } = await server.tenant();
    const made = await server.call<{ id: string; key: string; owner_id: string }>(201, 'POST /v1/agent-keys', admin, {
      agent_id: 'a',
      agent_role: 'r',
    });
    expect(made.body.owner_id).toBe(admin.userId);
    const agent = { key: made.body.key, headers: { 'x-svc-tenant': id } };
    const body = { action_type: 'tool_call', tool_name: 'x' };
    await server.call(200, 'POST /v1/evaluate', agent, body);
    await server.call(404, `DELETE /v1/keys/${made.body.id}`, admin);
    await server.call(204, `DELETE /v1/agent-keys/${made.body.id}`, admin);
    await server.call(401, 'POST /v1/evaluate', agent, body);
    expect((await server.call(200, 'GET /v1/proxy-config', admin)).body.agent_keys).toEqual([]);
    const audit = await server.call<{ records: { action: string; code: string }[] }>(
      200,
      `GET /v1/audit?target_id=${made.body.id}`,
      admin,
    );
    expect(audit.body.records.map(({ action, code }) => [action, code])).toEqual([
      ['agent_key.revoked', 'AGK002I'],
      ['agent_key.created', 'AGK001I'],
    ]);
  });

  test('has an owner who is a member of this tenant', async () => {
    const [mine, other] = [await server.tenant(), await server.tenant()];
    const person = await mine.person('viewer');
    const made = await server.call(201, 'POST /v1/agent-keys', mine.admin, {
      agent_id: 'a',
      agent_role: 'r',
      owner_id: person.userId,
    });
    expect(made.body.owner_id).toBe(person.userId);
    await server.call(400, 'POST /v1/agent-keys', mine.admin, {
      agent_id: 'a',
      agent_role: 'r',
      owner_id: other.admin.userId,
    });
  });
});
