import { createHash, createPublicKey } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { freePort } from '../helpers/ports.ts';
import { ask, type ServerProcess, signIn, startServer, svc, svcHere, temporaryDirectory } from './svc.ts';

/** Every command beside a running server, which keeps the database to itself in no way. */
const dir = temporaryDirectory();
let server: ServerProcess;
beforeAll(async () => {
  server = await startServer(dir, { SVC_RATE_SIGN_IN: '1000' });
});
afterAll(() => server?.stop());

const run = (...args: string[]) => svcHere(0, server.env, ...args);

describe('tenants', () => {
  test('a new tenant works in the running server immediately: its key, and its link once', async () => {
    const { stdout, stderr } = await svc(
      0,
      server.env,
      'tenant',
      'create',
      '--name',
      'Second',
      '--admin-email',
      'Ann@Example.com',
      '--json',
    );
    expect(stderr).toBe('');
    const made = JSON.parse(stdout);
    expect(Object.keys(made).sort()).toEqual(['admin_email', 'admin_id', 'api_key', 'sign_in_url', 'tenant_id']);
    expect(made.admin_email).toBe('ann@example.com');
    expect(made.sign_in_url).toMatch(
      new RegExp(`^http://localhost:${server.env.PORT}/auth/magic-link/verify\\?token=svc_link_`),
    );
    const me = await ask<{ tenant_id: string; scopes: string[] }>(200, `${server.url}/auth/me`, made.api_key);
    expect(me).toMatchObject({ tenant_id: made.tenant_id, scopes: ['admin'] });

    const cookie = await signIn(made.sign_in_url, server.url);
    const person = await ask(200, `${server.url}/auth/me`, undefined, { headers: { cookie } });
    expect(person).toMatchObject({ tenant_id: made.tenant_id, roles: ['admin'], user: { email: 'ann@example.com' } });
    const { pathname, search } = new URL(made.sign_in_url);
    await ask(401, server.url + pathname + search, undefined);

    const { tenants } = (await run('tenant', 'list', '--json')).json<{
      tenants: { tenant_id: string; name: string }[];
    }>();
    expect(tenants.map((t) => t.tenant_id)).toEqual(['default', made.tenant_id]);
    expect((await run('tenant', 'list')).stdout).toContain('Second');
  });

  test('an id is taken once, and the public address is that of the settings', async () => {
    const args = ['tenant', 'create', '--name', 'Third', '--admin-email', 'a@example.com', '--id', 'third', '--json'];
    const made = await svcHere(0, { ...server.env, SVC_BASE_URL: 'https://svc.example.com' }, ...args);
    expect(made.json()).toMatchObject({
      tenant_id: 'third',
      sign_in_url: expect.stringMatching(/^https:\/\/svc\.example\.com\/auth\//),
    });
    expect((await svcHere(1, server.env, ...args)).stderr).toContain('a tenant with this id already exists');
  });

  test('an added person signs in with their roles and can get another link later', async () => {
    const args = ['--tenant', 'default', '--email', 'Bob@example.com', '--json'];
    const made = (await run('user', 'create', ...args, '--roles', 'author,approver')).json<{
      sign_in_url: string;
      user_id: string;
    }>();
    const cookie = await signIn(made.sign_in_url, server.url);
    expect(await ask(200, `${server.url}/auth/me`, undefined, { headers: { cookie } })).toMatchObject({
      roles: ['author', 'approver'],
      user: { id: made.user_id, email: 'bob@example.com' },
    });
    const again = (await run('sign-in-link', ...args)).json<{ sign_in_url: string; user_id: string }>();
    expect(again.user_id).toBe(made.user_id);
    await signIn(again.sign_in_url, server.url);
    expect((await svcHere(1, server.env, 'user', 'create', ...args, '--roles', 'viewer')).stderr).toContain(
      'already a member',
    );
    const admin = ['sign-in-link', '--tenant', 'default', '--email', 'admin@localhost', '--json'];
    const link = (await svcHere(0, server.env, ...admin)).json<{ sign_in_url: string }>();
    await signIn(link.sign_in_url, server.url);
    const stranger = ['sign-in-link', '--tenant', 'default', '--email', 'eve@example.com'];
    expect((await svcHere(1, server.env, ...stranger)).stderr).toContain('is not a member of default');
    const wrong = ['user', 'create', ...args, '--roles', 'aprover'];
    expect((await svcHere(2, server.env, ...wrong)).stderr).toContain('did you mean approver?');
  });

  test('people are invited, listed, given roles and removed, and the running server follows', async () => {
    const who = ['--tenant', 'default', '--email', 'carol@example.com'];
    const made = (await run('user', 'create', ...who, '--roles', 'viewer', '--json')).json<{ sign_in_url: string }>();
    const cookie = await signIn(made.sign_in_url, server.url);
    const me = async (status: number) =>
      (await ask<{ roles: string[] }>(status, `${server.url}/auth/me`, undefined, { headers: { cookie } })).roles;
    expect((await run('user', 'grant', ...who, '--role', 'author', '--json')).json()).toMatchObject({
      roles: ['viewer', 'author'],
    });
    expect(await me(200)).toEqual(['viewer', 'author']);
    expect((await svcHere(1, server.env, 'user', 'grant', ...who, '--role', 'author')).stderr).toContain(
      'already has the role author',
    );
    await run('user', 'revoke', ...who, '--role', 'viewer');
    expect(await me(200)).toEqual(['author']);
    const listed = (await run('user', 'list', '--tenant', 'default', '--json')).json<{
      users: { email: string; roles: string[] }[];
    }>();
    expect(listed.users.find(({ email }) => email === 'carol@example.com')).toMatchObject({ roles: ['author'] });
    const wrong = ['user', 'invite', ...who, '--role', 'author,viewer'];
    expect((await svcHere(2, server.env, ...wrong)).stderr).toContain('single role');
    expect((await svcHere(1, server.env, 'user', 'invite', ...who, '--role', 'author')).stderr).toContain(
      'already a member',
    );
    await run('user', 'remove', ...who);
    await me(401);
    expect((await svcHere(1, server.env, 'user', 'remove', ...who)).stderr).toContain('is not a member of default');
    expect((await run('user', 'invite', ...who, '--role', 'author', '--json')).json()).toMatchObject({
      role: 'author',
    });
  });

  test('changed settings apply in the running server', async () => {
    const shown = async () =>
      (await ask<{ poll_seconds?: number }>(200, `${server.url}/v1/settings`, server.key)).poll_seconds;
    expect(await shown()).not.toBe(7);
    const set = (expected: number, ...pairs: string[]) =>
      svcHere(expected, server.env, 'settings', 'set', '--tenant', 'default', '--json', ...pairs);
    expect(
      (await set(0, '--reason', 'a group', 'poll_seconds=7', 'approver_groups={"finance":[]}')).json(),
    ).toMatchObject({
      poll_seconds: 7,
      approver_groups: { finance: [] },
    });
    // a notice of the database tells the server of it, some milliseconds after the commit
    await expect.poll(shown).toBe(7);
    expect((await run('settings', 'get', '--tenant', 'default', '--json')).json()).toMatchObject({ poll_seconds: 7 });
    expect((await set(0, 'poll_seconds=null')).json()).toMatchObject({ poll_seconds: 15 });
    expect((await set(2, 'poll_seconds=soon')).stderr).toContain('poll_seconds');
    expect((await set(1, 'approval_required=true')).stderr).toContain('/reason');
    expect((await set(2, 'pol_seconds=7')).stderr).toContain('did you mean poll_seconds?');
  });
});

describe('keys', () => {
  test('a revoked key is refused by the running server when the command ends', async () => {
    const args = ['--tenant', 'default', '--scopes', 'pipeline', '--label', 'ci', '--expires', '90d', '--json'];
    const made = (await run('key', 'create', ...args)).json<{ id: string; key: string; expires_at: string }>();
    expect(Date.parse(made.expires_at) - Date.now()).toBeGreaterThan(89 * 86_400_000);
    // twice: the second is served from memory
    for (let i = 0; i < 2; i++) await ask(200, `${server.url}/v1/policies`, made.key);
    const list = await run('key', 'list', '--tenant', 'default', '--json');
    expect(list.stdout).not.toContain(made.key);
    const { keys } = list.json<{ keys: { id: string; label: string; scopes: string[] }[] }>();
    expect(keys.find((key) => key.id === made.id)).toMatchObject({ label: 'ci', scopes: ['pipeline'] });
    await svc(0, server.env, 'key', 'revoke', '--tenant', 'default', made.id);
    await ask(401, `${server.url}/v1/policies`, made.key);
    expect((await svcHere(1, server.env, 'key', 'revoke', '--tenant', 'default', made.id)).stderr).toContain(
      'no such key',
    );
  });

  test('an agent key decides as its agent until it is revoked', async () => {
    const made = (
      await run(
        'agent-key',
        'create',
        '--tenant',
        'default',
        '--agent-id',
        'bot-1',
        '--agent-role',
        'support',
        '--json',
      )
    ).json<{ id: string; key: string }>();
    const options = { body: { action_type: 'tool_call', tool_name: 'refund' }, headers: { 'x-svc-tenant': 'default' } };
    await ask(200, `${server.url}/v1/evaluate`, made.key, options);
    const { events } = await ask<{ events: object[] }>(200, `${server.url}/v1/events`, server.key);
    expect(events[0]).toMatchObject({ agent_id: 'bot-1', agent_role: 'support', decision: 'deny' });
    expect((await run('agent-key', 'list', '--tenant', 'default')).stdout).toContain('bot-1');
    await run('agent-key', 'revoke', '--tenant', 'default', made.id);
    await ask(401, `${server.url}/v1/evaluate`, made.key, options);
  });

  test('nothing is created for a tenant that does not exist, or with an invalid value', async () => {
    const cases: [number, string[], RegExp][] = [
      [1, ['key', 'create', '--tenant', 'nope', '--scopes', 'admin'], /there is no such tenant/],
      [1, ['key', 'list', '--tenant', 'nope'], /there is no such tenant/],
      [1, ['settings', 'get', '--tenant', 'nope'], /there is no such tenant/],
      [2, ['key', 'create', '--tenant', 'default', '--scopes', 'amdin'], /did you mean admin\?/],
      [2, ['key', 'create', '--tenant', 'default', '--scopes', 'admin', '--expires', '2020-01-01'], /in the future/],
    ];
    for (const [code, words, fault] of cases) expect((await svcHere(code, server.env, ...words)).stderr).toMatch(fault);
  });

  test('a rotated signing key is used by the running server, recorded in each audit chain, and the old one still verifies', async () => {
    const before = await ask<string>(200, `${server.url}/pubkey`, undefined);
    const rotated = (await run('keys', 'rotate', '--json')).json<{
      kid: string;
      retired_kid: string;
      fingerprint: string;
    }>();
    expect(await ask<string>(200, `${server.url}/pubkey`, undefined)).not.toBe(before);
    const { keys } = await ask<{ keys: { kid: string }[] }>(200, `${server.url}/.well-known/jwks.json`, undefined);
    expect(keys.map((key) => key.kid)).toEqual([rotated.kid, rotated.retired_kid]);
    // what the retired one signed is checked with it
    const former = `sha256:${createHash('sha256')
      .update(createPublicKey(before).export({ type: 'spki', format: 'der' }))
      .digest('hex')}`;
    expect(await ask<string>(200, `${server.url}/pubkey?fingerprint=${former}`, undefined)).toBe(before);
    expect(await ask<string>(200, `${server.url}/pubkey?fingerprint=${rotated.fingerprint}`, undefined)).not.toBe(
      before,
    );
    await ask(404, `${server.url}/pubkey?fingerprint=sha256:${'0'.repeat(64)}`, undefined);
    await ask(400, `${server.url}/pubkey?fingerprint=${former.slice(7)}`, undefined);
    const { records } = await ask<{ records: object[] }>(
      200,
      `${server.url}/v1/audit?action=signing_key.rotated`,
      server.key,
    );
    expect(records).toHaveLength(1);
    expect(records[0]).toMatchObject({
      actor: { type: 'operator' },
      target: { id: rotated.kid },
      after_hash: rotated.fingerprint,
    });
    // what is signed from now on is signed with the new key: the bundle, and the checkpoints that verification opens
    const bundle = await fetch(`${server.url}/v1/policies/bundle`, {
      headers: { authorization: `Bearer ${server.key}` },
    });
    const bytes = Buffer.from(await bundle.arrayBuffer());
    const header = bytes.toString('latin1', 9, 9 + bytes.readUInt32BE(5)).split('.')[0]!;
    expect(JSON.parse(Buffer.from(header, 'base64url').toString())).toMatchObject({ kid: rotated.kid });
    for (const chain of ['forensics', 'audit']) {
      expect(await ask(200, `${server.url}/v1/${chain}/verify`, server.key)).toMatchObject({ verified: true });
    }
    expect((await run('keys', 'list')).stdout).toMatch(
      new RegExp(`^${rotated.kid}.*current\\n${rotated.retired_kid}.*retired`),
    );
  });
});

describe('care', () => {
  test('a healthy server passes the doctor, and no secret is shown', async () => {
    const key = Buffer.alloc(32, 9).toString('hex');
    const { json, stdout } = await run('doctor', '--json');
    const { ok, checks } = json<{ ok: boolean; checks: { check: string; level: string }[] }>();
    expect(ok).toBe(true);
    const names = checks.map(({ check }) => check);
    for (const name of [
      'PostgreSQL',
      'durability',
      'migrations',
      'roles',
      'tenant walls',
      'master key',
      'signing key',
      'chains',
    ]) {
      expect(names).toContain(name);
    }
    expect(checks.find(({ check }) => check === 'server')).toMatchObject({
      level: 'ok',
      detail: `ready at ${server.url}`,
    });
    expect(stdout).not.toMatch(/svc_key_|svc_link_/);
    const wrong = await svcHere(1, { ...server.env, SVC_MASTER_KEY: key }, 'doctor');
    expect(wrong.stdout).toMatch(/^FAIL +master key/m);
    expect(wrong.stdout).not.toContain(key);
  });

  test('risky settings are reported', async () => {
    const risky = { HOST: '0.0.0.0', SVC_RATE_EVALUTE: '5', SVC_BASE_URL: 'http://svc.example.com' };
    const { stdout } = await svcHere(0, { ...server.env, ...risky }, 'doctor');
    expect(stdout).toMatch(/^warn +settings +HOST=0\.0\.0\.0 accepts connections from other machines/m);
    expect(stdout).toMatch(/SVC_RATE_EVALUTE is not a setting; did you mean SVC_RATE_EVALUATE\?/);
    const url = 'postgresql://svc:hunter2@db.example.invalid/svc';
    const remote = await svcHere(1, { ...server.env, DATABASE_URL: url }, 'doctor');
    expect(remote.stdout).toMatch(/^warn +settings +DATABASE_URL connects to another machine without TLS/m);
    expect(remote.stdout).toMatch(/^FAIL +database/m);
    expect(remote.stdout).not.toContain('hunter2');
    const redis = await svcHere(
      1,
      { ...server.env, REDIS_URL: `redis://:hunter2@127.0.0.1:${await freePort()}` },
      'doctor',
    );
    expect(redis.stdout).toMatch(/^FAIL +Redis +.*ECONNREFUSED/m);
    expect(redis.stdout).not.toContain('hunter2');
    const mail = { SVC_BASE_URL: 'https://svc.example.com' };
    expect((await svcHere(0, { ...server.env, ...mail }, 'doctor')).stdout).toMatch(
      /^warn +mail +SMTP_URL is not set/m,
    );
    const smtp = await svcHere(
      1,
      { ...server.env, SMTP_URL: `smtp://me:hunter2@127.0.0.1:${await freePort()}` },
      'doctor',
    );
    expect(smtp.stdout).toMatch(/^FAIL +mail +.*ECONNREFUSED/m);
    expect(smtp.stdout).not.toContain('hunter2');
  });

  test('migrate has nothing to do, and a wrong master key stops every command before it changes anything', async () => {
    expect((await run('migrate', '--json')).json()).toEqual({ ran: [] });
    const env = { ...server.env, SVC_MASTER_KEY: Buffer.alloc(32, 9).toString('hex') };
    expect((await svcHere(1, env, 'keys', 'rotate')).stderr).toContain('the master key does not open this database');
  });
});
