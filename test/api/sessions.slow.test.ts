import { describe, expect, test } from 'vitest';
import { OPERATOR } from '../../server/domain/audit.ts';
import { newSecret } from '../../server/domain/secret.ts';
import { changed, dump, fill, fingerprint, operations } from '../helpers/api.ts';
import { type TestServer, type TestTenant, useServer } from '../helpers/server.ts';
import { SIEGE, sampled } from '../siege/rounds.ts';

const server = useServer();
const secure = useServer({ SVC_BASE_URL: 'https://control.test' });
const VERIFY = 'GET /auth/magic-link/verify?token=';

/** A one-time link of a new person, as an operator gets it. */
async function link(
  tenant: TestTenant,
  seconds = 900,
  where: TestServer = server,
  roles = ['viewer'],
): Promise<string> {
  const email = `p${Math.random().toString(36).slice(2)}@example.test`;
  const userId = await where.core.tenants.addMember(tenant.id, { email, roles }, { actor: OPERATOR });
  return where.core.links.create(tenant.id, userId, seconds, { actor: OPERATOR });
}

const cookieOf = (headers: Headers) => headers.getSetCookie()[0]!;

describe('a sign-in link', () => {
  test('signs in once, and sends browsers to the dashboard', async () => {
    const token = await link(await server.tenant());
    const first = await server.call(302, VERIFY + token, undefined);
    expect(first.headers.get('location')).toBe('/');
    const cookie = cookieOf(first.headers).split(';')[0]!;
    expect((await server.call(200, 'GET /auth/me', { cookie })).body).toMatchObject({
      authenticated: true,
      auth_method: 'magic_link',
    });
    const second = await server.call(401, VERIFY + token, undefined);
    expect(second.body.code).toBe('UNAUTHENTICATED');
    expect(second.headers.getSetCookie()).toEqual([]);
  });

  test('returns to programs in JSON who is signed in and until when', async () => {
    const tenant = await server.tenant();
    const token = await link(tenant);
    const before = server.clock.now();
    const { body, headers } = await server.call<{ tenant_id: string; session_expires_at: string }>(
      200,
      VERIFY + token,
      { headers: { accept: 'application/json' } },
    );
    expect(body.tenant_id).toBe(tenant.id);
    const expires = Date.parse(body.session_expires_at) - 24 * 3_600_000;
    expect(expires).toBeGreaterThanOrEqual(before);
    expect(expires).toBeLessThanOrEqual(server.clock.now());
    expect(headers.getSetCookie()).toHaveLength(1);
  });

  test('gives one session to many concurrent requests', async () => {
    const tenant = await server.tenant();
    const token = await link(tenant);
    const answers = await Promise.all(
      Array.from({ length: 50 }, () =>
        fetch(`${server.url}/auth/magic-link/verify?token=${token}`, { redirect: 'manual' }),
      ),
    );
    const signedIn = answers.filter(({ status }) => status === 302);
    expect(signedIn).toHaveLength(1);
    expect(answers.filter(({ status }) => status === 401)).toHaveLength(49);
    expect(answers.filter(({ headers }) => headers.getSetCookie().length > 0)).toEqual(signedIn);
    const audit = await server.call<{ records: unknown[] }>(200, 'GET /v1/audit?action=session.started', tenant.admin);
    expect(audit.body.records).toHaveLength(1);
  });

  test('expires', async () => {
    const tenant = await server.tenant();
    await server.clock.stopped(async () => {
      const token = await link(tenant, 900);
      server.clock.advance(894_000);
      const live = await link(tenant, 900);
      server.clock.advance(7_000);
      await server.call(401, VERIFY + token, undefined);
      await server.call(302, VERIFY + live, undefined);
    });
  });

  test('is not used up by HEAD or by a browser that fetches ahead', async () => {
    const token = await link(await server.tenant());
    for (let i = 0; i < 10; i++) {
      expect(
        (await fetch(`${server.url}/auth/magic-link/verify?token=${token}`, { method: 'HEAD' })).headers.getSetCookie(),
      ).toEqual([]);
      for (const headers of [
        { 'sec-purpose': 'prefetch' },
        { 'sec-purpose': 'prefetch;prerender' },
        { purpose: 'prefetch' },
      ]) {
        const ahead = await fetch(`${server.url}/auth/magic-link/verify?token=${token}`, {
          headers: headers as Record<string, string>,
          redirect: 'manual',
        });
        expect([ahead.status < 300, ahead.headers.getSetCookie()]).toEqual([false, []]);
      }
    }
    await server.call(302, VERIFY + token, undefined);
  });

  test('that is forged, mistyped, of another kind or empty gets the same refusal', async () => {
    const tenant = await server.tenant();
    const token = await link(tenant);
    const wrong = [
      '',
      'x',
      `${token.slice(0, -1)}${token.endsWith('0') ? '1' : '0'}`,
      tenant.admin.key,
      newSecret('link', tenant.id),
      encodeURIComponent(`${token}\n`),
      '%00',
    ];
    const bodies = await Promise.all(
      wrong.map(async (text) => (await server.call(401, VERIFY + text, undefined)).body),
    );
    for (const body of bodies) expect({ ...body, request_id: '' }).toEqual({ ...bodies[0], request_id: '' });
    await server.call(401, 'GET /auth/magic-link/verify', undefined);
    await server.call(400, `${VERIFY}${token}&token=${token}`, undefined);
    await server.call(302, VERIFY + token, undefined);
  });

  test('of a removed person signs no one in', async () => {
    const tenant = await server.tenant();
    const userId = await server.core.tenants.addMember(
      tenant.id,
      { email: 'gone@example.test', roles: ['admin'] },
      { actor: OPERATOR },
    );
    const token = await server.core.links.create(tenant.id, userId, 900, { actor: OPERATOR });
    await server.core.db.owner.query('update member set removed_at = now() where tenant_id = $1 and id = $2', [
      tenant.id,
      userId,
    ]);
    await server.call(401, VERIFY + token, undefined);
  });
});

describe('the cookie', () => {
  const attributes = (cookie: string) => cookie.split('; ').slice(1).sort();

  test('is inaccessible to scripts and other sites, and applies to the whole server', async () => {
    const { headers } = await server.call(302, VERIFY + (await link(await server.tenant())), undefined);
    const [cookie, ...more] = headers.getSetCookie();
    expect(more).toEqual([]);
    expect(cookie).toMatch(/^svc_session=svc_session_[\w-]{40,}; /);
    expect(attributes(cookie!).filter((name) => !name.startsWith('Max-Age'))).toEqual([
      'HttpOnly',
      'Path=/',
      'SameSite=Lax',
    ]);
    expect(headers.get('cache-control')).toBe('no-store');
  });

  test('is Secure if the server is reached by https', async () => {
    const { headers } = await secure.call(302, VERIFY + (await link(await secure.tenant(), 900, secure)), undefined);
    expect(attributes(cookieOf(headers))).toContain('Secure');
  });
});

describe('a session', () => {
  test('ends 24 hours after sign-in, regardless of activity', async () => {
    const tenant = await server.tenant();
    await server.clock.stopped(async () => {
      const person = await tenant.person('viewer');
      for (let hour = 0; hour < 23; hour++) {
        server.clock.advance(3_600_000);
        await server.call(200, 'GET /auth/me', person);
      }
      server.clock.advance(3_600_000 - 30_000);
      await server.call(200, 'GET /auth/me', person);
      // looked up half a minute ago: what is remembered ends on time too
      server.clock.advance(31_000);
      await server.call(401, 'GET /auth/me', person);
      // and by then nothing is left of it
      const { rows } = await server.core.db.owner.query('select id from session where user_id = $1', [person.userId]);
      expect(rows).toEqual([]);
    });
  });

  test('ends everywhere when its owner logs out, and no other does', async () => {
    const tenant = await server.tenant();
    const userId = await server.core.tenants.addMember(
      tenant.id,
      { email: 'two@example.test', roles: ['viewer'] },
      { actor: OPERATOR },
    );
    const signIn = async () => {
      const token = await server.core.links.create(tenant.id, userId, 900, { actor: OPERATOR });
      return { cookie: cookieOf((await server.call(302, VERIFY + token, undefined)).headers).split(';')[0]! };
    };
    const [one, two] = [await signIn(), await signIn()];
    expect(one.cookie).not.toBe(two.cookie);
    await server.call(200, 'GET /auth/me', one);
    const out = await server.call(200, 'POST /auth/logout', one);
    expect(out.body).toEqual({ status: 'logged_out' });
    expect(cookieOf(out.headers)).toMatch(/^svc_session=; .*Max-Age=0/);
    await server.call(401, 'GET /auth/me', one);
    await server.call(401, 'POST /auth/logout', one);
    await server.call(200, 'GET /auth/me', two);
  });

  test('is refused to every request that starts after the logout, with many in flight', async () => {
    const person = await (await server.tenant()).person('viewer');
    await server.call(200, 'GET /auth/me', person);
    let out = false;
    const late: number[] = [];
    const load = Promise.all(
      Array.from({ length: 10 }, async () => {
        for (let i = 0; i < (SIEGE ? 30 : 6); i++) {
          const after = out;
          const { status } = await fetch(`${server.url}/auth/me`, { headers: { cookie: person.cookie! } });
          if (after) late.push(status);
        }
      }),
    );
    await server.call(200, 'POST /auth/logout', person);
    out = true;
    await load;
    for (let i = 0; i < 5; i++)
      late.push((await fetch(`${server.url}/auth/me`, { headers: { cookie: person.cookie! } })).status);
    expect(new Set(late)).toEqual(new Set([401]));
  });

  test('without a session, logout is 401 and sets nothing', async () => {
    const tenant = await server.tenant();
    for (const who of [undefined, tenant.admin, { cookie: 'svc_session=abc' }]) {
      const { headers } = await server.call(401, 'POST /auth/logout', who);
      expect(headers.getSetCookie()).toEqual([]);
    }
  });

  test('shows who is signed in, and nothing more', async () => {
    const tenant = await server.tenant();
    const person = await tenant.person('author', 'approver');
    const { body } = await server.call<{ user: { id: string } }>(200, 'GET /auth/me', person);
    expect(body).toEqual({
      authenticated: true,
      auth_method: 'magic_link',
      tenant_id: tenant.id,
      user: { id: person.userId, email: expect.any(String), name: expect.any(String), avatar_url: null },
      roles: ['author', 'approver'],
    });
    expect((await server.call(200, 'GET /auth/me', tenant.admin)).body).toEqual({
      authenticated: true,
      auth_method: 'api_key',
      tenant_id: tenant.id,
      scopes: ['admin'],
    });
  });
});

describe('a request from another site', () => {
  test('changes nothing by a cookie, on any route, whatever its form', async () => {
    const tenant = await server.tenant();
    const person = await tenant.person('admin');
    const before = await fingerprint(server);
    const host = new URL(server.origin).host;
    const origins = [
      undefined,
      'null',
      'https://evil.test',
      `http://${host}.evil.test`,
      `http://evil.test:80`,
      `http://x@evil.test`,
      'file://',
      '',
      `http://localhost:1`,
      // the right host by another scheme or port, and the address that the request went to
      `https://${host}`,
      `http://${host}:8081`,
      `${server.origin}/`,
      server.url,
    ];
    for (const { line, method, access } of operations.filter((o) => o.method !== 'GET')) {
      if (!access.role && !access.public) continue;
      for (const origin of sampled(origins, (origin) => `${line} from ${origin}`, 6)) {
        const response = await fetch(server.url + fill(line).split(' ')[1], {
          method,
          headers: {
            cookie: person.cookie!,
            'content-type': 'application/json',
            ...(origin !== undefined && { origin }),
          },
          body: '{}',
        });
        expect([response.status, ((await response.json()) as { code: string }).code], `${line} from ${origin}`).toEqual(
          [403, 'FORBIDDEN'],
        );
      }
      const types = ['text/plain', 'application/x-www-form-urlencoded', 'multipart/form-data; boundary=x'];
      for (const type of sampled(types, (type) => `${line} as ${type}`, 6)) {
        const send = (origin: Record<string, string>) =>
          fetch(server.url + fill(line).split(' ')[1], {
            method,
            headers: { cookie: person.cookie!, 'content-type': type, ...origin },
            body: '{}',
          });
        expect([line, type, (await send({})).status]).toEqual([line, type, 403]);
        // the server's own pages send forms, from the server's own origin
        const form =
          type.startsWith('application/x-www') && /^\/auth\/(token|invite|magic-link\/verify)$/.test(line.slice(5));
        if (!form) expect([line, type, (await send({ origin: server.origin })).status]).toEqual([line, type, 415]);
      }
    }
    for (const type of ['text/plain', 'application/x-www-form-urlencoded', 'multipart/form-data']) {
      const { status } = await fetch(`${server.url}/trpc/settings.change`, {
        method: 'POST',
        headers: { cookie: person.cookie!, 'content-type': type, origin: server.origin },
        body: '{"approval_required":true}',
      });
      expect([type, status]).toEqual([type, 415]);
    }
    const trpc = await fetch(`${server.url}/trpc/settings.change`, {
      method: 'POST',
      headers: { cookie: person.cookie!, 'content-type': 'application/json', origin: 'https://evil.test' },
      body: '{"approval_required":true}',
    });
    expect(trpc.status).toBe(403);
    // a batch is one request with one Origin
    const batch = await fetch(`${server.url}/trpc/settings.change,auth.magicLink?batch=1`, {
      method: 'POST',
      headers: { cookie: person.cookie!, 'content-type': 'application/json', origin: 'https://evil.test' },
      body: '{"0":{"approval_required":true},"1":{"email":"a@b.test"}}',
    });
    for (const { error } of (await batch.json()) as { error: { data: { problem: { code: string } } } }[]) {
      expect(error.data.problem.code).toBe('FORBIDDEN');
    }
    const byGet = await fetch(`${server.url}/trpc/settings.change?input=%7B%22approval_required%22%3Atrue%7D`, {
      headers: { cookie: person.cookie! },
    });
    expect(byGet.status).toBe(405);
    expect(changed(before, await fingerprint(server))).toEqual([]);
  });

  test('reads no response: no other origin is allowed', async () => {
    const person = await (await server.tenant()).person('admin');
    const { headers } = await server.call(200, 'GET /auth/me', { ...person, headers: { origin: 'https://evil.test' } });
    expect(headers.get('access-control-allow-origin')).toBeNull();
    const preflight = await fetch(`${server.url}/v1/settings`, {
      method: 'OPTIONS',
      headers: { origin: 'https://evil.test', 'access-control-request-method': 'PATCH' },
    });
    expect([preflight.ok, preflight.headers.get('access-control-allow-origin')]).toEqual([false, null]);
  });

  test('with a key needs no Origin: a key is never sent by itself', async () => {
    const { admin } = await server.tenant();
    await server.call(200, 'PATCH /v1/settings', admin, { poll_seconds: 20 });
    await server.call(
      200,
      'PATCH /v1/settings',
      { ...admin, headers: { origin: 'https://evil.test' } },
      { poll_seconds: 20 },
    );
  });
});

describe('every answer', () => {
  const fixed = {
    'content-security-policy': "default-src 'none'; frame-ancestors 'none'",
    'referrer-policy': 'no-referrer',
    'x-content-type-options': 'nosniff',
    'x-frame-options': 'DENY',
    'cross-origin-opener-policy': 'same-origin',
    'cross-origin-resource-policy': 'same-origin',
    'cache-control': 'no-store',
  };

  test('forbids browsers to run, load, frame or store it, even if it is an error', async () => {
    const person = await (await server.tenant()).person('viewer');
    for (const [status, line] of [
      [200, 'GET /auth/me'],
      [200, 'GET /trpc/auth.me?input=%7B%7D'],
      [403, 'GET /v1/keys'],
      [404, 'GET /v1/nothing'],
      [400, 'GET /%ff'],
      [401, `${VERIFY}x`],
    ] as const) {
      const { headers } = await server.call(status, line, person);
      const found = Object.fromEntries(Object.keys(fixed).map((name) => [name, headers.get(name)]));
      expect(found, line).toEqual(fixed);
      expect(headers.get('permissions-policy')).toContain('camera=()');
      expect(headers.get('strict-transport-security')).toBeNull();
    }
  });

  test('binds browsers to https if the server is reached by it', async () => {
    const { headers } = await secure.call(401, 'GET /auth/me', undefined);
    expect(headers.get('strict-transport-security')).toMatch(/^max-age=\d{8}$/);
  });
});

// last, over all that this file has made
test('neither the database nor the log contains a usable secret, token or cookie', async () => {
  const tenant = await server.tenant();
  const person = await tenant.person('admin');
  const agent = await tenant.agent('a', 'clerk');
  const made = await server.call<{ key: string }>(201, 'POST /v1/keys', person, { label: 'k', scopes: ['proxy'] });
  const token = await link(tenant);
  const unused = await link(tenant);
  const signedIn = await server.call(302, VERIFY + token, undefined);
  await server.call(401, VERIFY + token, undefined);
  await server.call(401, 'GET /auth/me', { key: `${made.body.key}x` });
  await server.call(404, `GET /v1/nothing?token=${unused}`, { key: made.body.key });
  const cookies = [person.cookie!, cookieOf(signedIn.headers).split(';')[0]!].map((cookie) =>
    cookie.slice('svc_session='.length),
  );
  const secrets = [
    tenant.admin.key,
    agent.key!,
    made.body.key,
    token,
    unused,
    ...cookies,
    Buffer.alloc(32, 7).toString('hex'),
  ];
  const rows = Object.values(await dump(server)).join('\n');
  const log = server.logged.join('\n');
  expect(log.length).toBeGreaterThan(1000);
  for (const secret of secrets) {
    for (const form of [
      secret,
      Buffer.from(secret).toString('hex'),
      Buffer.from(secret).toString('base64'),
      encodeURIComponent(secret),
    ]) {
      expect(rows.includes(form)).toBe(false);
      expect(log.includes(form)).toBe(false);
    }
    // nor what would do to guess the rest
    expect(log.includes(secret.slice(0, 24))).toBe(false);
  }
  expect(rows).not.toContain('PRIVATE KEY');
});
