import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { createServer, type Server } from 'node:net';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { OPERATOR } from '../../server/domain/audit.ts';
import { FORBIDDEN_ADDRESSES, forbiddenUrls } from '../helpers/addresses.ts';
import { sql } from '../helpers/api.ts';
import { useDns } from '../helpers/dns.ts';
import { CLIENT, HostileProvider } from '../helpers/hostile-provider.ts';
import { type Credential, type TestTenant, useServer } from '../helpers/server.ts';
import { addMember, audited, setProvider, verifyDomain } from '../helpers/sso.ts';
import { sampled } from '../siege/rounds.ts';

const dns = useDns();
/** A server as it comes, and one whose operator lets loopback through. */
const server = useServer(dns.settings());
const open = useServer(dns.settings({ SVC_EGRESS_ALLOW: '127.0.0.1/32', SVC_BASE_URL: 'https://control.test' }));

let provider: HostileProvider;
let listener: Server;
let connections = 0;
beforeAll(async () => {
  provider = await HostileProvider.start(() => open.clock.now());
  listener = createServer((socket) => {
    connections++;
    socket.destroy();
  });
  await once(listener.listen(0), 'listening');
});
afterAll(async () => {
  await provider?.stop();
  listener?.close();
});

const reason = 'as agreed';
const faultsOf = (body: Record<string, unknown>) => body.errors as { pointer: string; message: string }[];

describe('an issuer at an internal address', () => {
  test('is refused in every spelling, as issuer and as key set, and nothing is dialed', async () => {
    const tenant = await server.tenant();
    const { cookie } = await tenant.enter(tenant.admin.userId);
    const headers = { cookie: cookie!, origin: server.origin, 'content-type': 'application/json' };
    const { port } = listener.address() as AddressInfo;
    const urls = forbiddenUrls(port);
    expect(urls.length).toBeGreaterThan(90);
    const secure = urls.map((url) => url.replace(/^http:/i, 'https:'));
    const accepted: string[] = [];
    for (const url of sampled([...new Set([...urls, ...secure])], undefined, 5)) {
      if (url === '') continue;
      const saved = await fetch(`${server.url}/v1/settings/sso`, {
        method: 'PUT',
        headers,
        body: JSON.stringify({ issuer_url: url, client_id: 'c', client_secret: 's', reason: 'as agreed' }),
      });
      const listed = await fetch(`${server.url}/v1/settings/token-issuers`, {
        method: 'PUT',
        headers,
        body: JSON.stringify({
          reason: 'as agreed',
          token_issuers: [
            {
              issuer: 'https://i.example',
              jwks_uri: url,
              audience: 'a',
              agent_id_claim: 'sub',
              agent_role_claim: 'r',
              agent_ids: ['*'],
              agent_roles: ['r'],
            },
          ],
        }),
      });
      if (saved.status !== 400 || listed.status !== 400) accepted.push(`${url}: ${saved.status} ${listed.status}`);
    }
    expect(accepted).toEqual([]);
    expect(connections).toBe(0);
  });

  test('is refused because of the addresses that its name resolves to', async () => {
    const tenant = await server.tenant();
    const who = await tenant.enter(tenant.admin.userId);
    const { port } = listener.address() as AddressInfo;
    // the resolver reads that one as 8.8.8.8, which is free to dial (see the guard's own test)
    const addresses = sampled(
      FORBIDDEN_ADDRESSES.filter((one) => one !== '::8.8.8.8'),
      undefined,
      5,
    );
    for (const [at, address] of addresses.entries()) {
      dns.names[`n${at}.example`] = [address];
      const { body } = await server.call(400, 'PUT /v1/settings/sso', who, {
        issuer_url: `https://n${at}.example:${port}`,
        ...CLIENT,
        reason,
      });
      expect(faultsOf(body)[0]!.message, address).toContain('private, loopback');
    }
    const codes = (await audited(server, tenant)).map((record) => record.code).filter((code) => code.startsWith('SSO'));
    expect(codes).toHaveLength(addresses.length);
    expect(new Set(codes)).toEqual(new Set(['SSO101E']));
    expect(connections).toBe(0);
  });

  test('is distinguished from one that no name server knows, or that does not answer', async () => {
    const tenant = await server.tenant();
    dns.names['broken.example'] = 'SERVFAIL';
    for (const host of ['nowhere.example', 'broken.example']) {
      await setProvider(server, tenant, { issuer_url: `https://${host}`, ...CLIENT }, 400);
      expect((await audited(server, tenant))[0]).toMatchObject({ code: 'SSO100E' });
    }
  });
});

describe('an issuer', () => {
  test.each([
    ['http://idp.example', 'must be an https URL'],
    ['http://localhost.idp.example', 'must be an https URL'],
    ['ftp://idp.example', 'must be an https URL'],
    ['idp.example', 'must be an https URL'],
    ['https://user:pass@idp.example', 'must not contain a user name or password'],
    ['https://idp.example?tenant=1', 'must not have a query or a fragment'],
    ['https://idp.example/#x', 'must not have a query or a fragment'],
    ['https://idp.example/?', 'must not have a query or a fragment'],
    ['https://IDP.example', 'must be written as https://idp.example/'],
    ['https://idp.example:443', 'must be written as https://idp.example/'],
    ['https://idp.example/a/../b', 'must be written as https://idp.example/b'],
    [' https://idp.example', 'must be written as https://idp.example/'],
    ['https:\\\\idp.example', 'must be written as https://idp.example/'],
  ])('%s is refused before any request: %s', async (issuer_url, message) => {
    const { body } = await setProvider(open, await open.tenant(), { issuer_url, ...CLIENT }, 400);
    expect(faultsOf(body)).toEqual([{ pointer: '/issuer_url', message }]);
  });

  test('may use plain http only at an address that the operator exempted', async () => {
    const tenant = await open.tenant();
    await setProvider(open, tenant, { issuer_url: provider.issuer, ...CLIENT });
    for (const host of ['127.0.0.2', '[::1]', '192.168.0.1', '8.8.8.8']) {
      const { body } = await setProvider(open, tenant, { issuer_url: `http://${host}`, ...CLIENT }, 400);
      expect(faultsOf(body)[0]!.message).toBe('must be an https URL');
    }
  });

  test('that is refused leaves the previous one in place', async () => {
    const tenant = await open.tenant();
    const input = { issuer_url: provider.issuer, ...CLIENT };
    const { waiting, ...saved } = (await setProvider(open, tenant, input)).body;
    expect(waiting).toBeNull();
    provider.misbehavior = { document: (document) => ({ ...document, issuer: 'https://other.example' }) };
    await setProvider(open, tenant, { ...input, client_id: 'other' }, 400);
    provider.misbehavior = {};
    expect((await open.call(200, 'GET /v1/settings/sso', tenant.admin)).body).toEqual(saved);
  });
});

describe('the settings of single sign-on', () => {
  test('belong to one tenant', async () => {
    const [mine, other] = [await open.tenant(), await open.tenant()];
    await setProvider(open, mine, { issuer_url: provider.issuer, ...CLIENT });
    await open.call(201, 'POST /v1/settings/sso/domains', mine.admin, { domain: 'mine.example' });
    expect((await open.call(200, 'GET /v1/settings/sso', other.admin)).body.configured).toBe(false);
    expect((await open.call(200, 'GET /v1/settings/sso/domains', other.admin)).body).toEqual({ domain_records: [] });
    await open.call(404, 'DELETE /v1/settings/sso', await other.enter(other.admin.userId), { reason });
    await open.call(404, 'DELETE /v1/settings/sso/domains/mine.example', other.admin);
    await open.call(404, 'POST /v1/settings/sso/domains/mine.example/verify', other.admin);
    expect((await open.call(200, 'GET /v1/settings/sso', mine.admin)).body.configured).toBe(true);
  });

  test('on https give the browser cookies that no other host can plant', async () => {
    const tenant = await open.tenant();
    const { id } = tenant;
    const { body } = await setProvider(open, tenant, { issuer_url: provider.issuer, ...CLIENT });
    expect(body.redirect_uri).toMatch(/^https:\/\/control\.test\/auth\/callback/);
    const { headers } = await open.call(302, `GET /auth/login?tenant=${id}`, undefined);
    expect(headers.get('set-cookie')).toMatch(
      /^__Host-svc_sso=[\w-]{43}; Max-Age=600; Path=\/; HttpOnly; Secure; SameSite=Lax$/,
    );
  });

  test('give the path without a name to the first connection, and leave each its own until it is removed', async () => {
    await sql(open, 'delete from plain_callback');
    const [first, second, third] = [await open.tenant(), await open.tenant(), await open.tenant()];
    const plain = 'https://control.test/auth/callback';
    const shown = async (of: TestTenant) => (await open.call(200, 'GET /v1/settings/sso', of.admin)).body.redirect_uri;
    const save = async (of: TestTenant, client = CLIENT) =>
      (await setProvider(open, of, { issuer_url: provider.issuer, ...client })).body.redirect_uri;
    const asked = async (of: TestTenant) => {
      const { headers } = await open.call(302, `GET /auth/login?tenant=${of.id}`, undefined);
      return new URL(headers.get('location')!).searchParams;
    };
    // before there is one, it is whoever comes first
    expect([await shown(first), await shown(second)]).toEqual([plain, plain]);
    expect(await save(first)).toBe(plain);
    expect(await shown(second)).toBe(`${plain}/${second.id}`);
    expect(await save(second)).toBe(`${plain}/${second.id}`);
    // what is registered at a provider stays as it is
    expect(await save(first, { ...CLIENT, client_id: 'another' })).toBe(plain);
    expect([await shown(first), (await asked(first)).get('redirect_uri')]).toEqual([plain, plain]);
    expect((await asked(second)).get('redirect_uri')).toBe(`${plain}/${second.id}`);
    // a state counts at the path of its own connection alone
    for (const [of, path] of [
      [second, ''],
      [first, `/${first.id}`],
      [first, `/${second.id}`],
    ] as const) {
      await open.call(302, `GET /auth/callback${path}?code=x&state=${(await asked(of)).get('state')}`, undefined);
      const [record] = await audited(open, of);
      expect(record).toMatchObject({ action: 'sso.response_of_other_connection', severity: 'critical' });
    }
    await open.call(200, 'DELETE /v1/settings/sso', await first.enter(first.admin.userId), { reason });
    expect([await shown(second), await shown(third)]).toEqual([`${plain}/${second.id}`, plain]);
    expect(await save(third)).toBe(plain);
    expect(await save(first)).toBe(`${plain}/${first.id}`);
  });

  test('write no more than sixty refusals of a kind an hour into the audit log', async () => {
    const [tenant, other] = [await open.tenant(), await open.tenant()];
    await setProvider(open, tenant, { issuer_url: provider.issuer, ...CLIENT });
    const { headers } = await open.call(302, `GET /auth/login?tenant=${tenant.id}`, undefined);
    const state = new URL(headers.get('location')!).searchParams.get('state')!;
    const misdirected = () => open.call(302, `GET /auth/callback/${other.id}?code=x&state=${state}`, undefined);
    for (let i = 0; i < 62; i++) await misdirected();
    const recorded = () => audited(open, tenant, '&action=sso.response_of_other_connection');
    expect(await recorded()).toHaveLength(60);
    // later it is nothing but old
    open.clock.advance(3_600_000);
    await misdirected();
    expect(await recorded()).toHaveLength(60);
    expect(await audited(open, tenant, '&action=sso.state_expired')).toHaveLength(1);
  });

  test('are for admins', async () => {
    const tenant = await open.tenant();
    for (const role of ['viewer', 'author', 'approver']) {
      const person = await tenant.person(role);
      await open.call(403, 'GET /v1/settings/sso', person);
      await open.call(403, 'PUT /v1/settings/sso', person, { issuer_url: provider.issuer, ...CLIENT, reason });
      await open.call(403, 'PATCH /v1/settings', person, { sso_only: true, reason: 'one way in' });
    }
    await open.call(200, 'GET /v1/settings/sso', await tenant.person('admin'));
  });
});

describe('how people sign in', () => {
  const input = () => ({ issuer_url: provider.issuer, ...CLIENT, reason });
  const put = (expected: number, who: Credential, body: object = input()) =>
    open.call<{ waiting: string | null; issuer_url?: string; configured: boolean }>(
      expected,
      'PUT /v1/settings/sso',
      who,
      body,
    );
  const decide = (expected: number, who: Credential, id: string, verdict = 'approve') =>
    open.call(expected, `POST /v1/settings/changes/${id}/${verdict}`, who, verdict === 'reject' ? { reason } : {});
  const view = async (who: Credential) => (await open.call(200, 'GET /v1/settings/sso', who)).body;
  /** Where approval is required, with two admins. */
  const guarded = async () => {
    const tenant = await open.tenant();
    await tenant.set({ approval_required: true });
    return { tenant, mallory: await tenant.person('admin'), boss: await tenant.person('admin') };
  };
  const bind = (tenant: TestTenant, subject: string) =>
    sql(open, `insert into sso_identity values ($1, 'https://idp.example', $2, $3, now(), now())`, [
      tenant.id,
      subject,
      tenant.admin.userId,
    ]);

  test('cannot be changed by a key, or without a reason where the tenant requires them', async () => {
    const tenant = await open.tenant();
    await tenant.set({ reasons_required: true });
    await bind(tenant, 'one');
    const unbind = `DELETE /v1/settings/sso/identities/${tenant.admin.userId}`;
    for (const key of [tenant.admin, tenant.operatorKey]) {
      await put(403, key);
      await open.call(403, 'DELETE /v1/settings/sso', key, { reason });
      await open.call(403, unbind, key, { reason });
    }
    const person = await tenant.person('admin');
    await put(400, person, { ...input(), reason: undefined });
    await open.call(400, 'DELETE /v1/settings/sso', person);
    await open.call(400, unbind, person);
    expect((await put(200, person)).body).toMatchObject({ configured: true, waiting: null });
    expect((await audited(open, tenant))[0]).toMatchObject({ action: 'sso.configured', reason });
    expect((await open.call(200, unbind, person, { reason })).body).toEqual({ waiting: null });
    expect((await open.call(200, 'DELETE /v1/settings/sso', person, { reason })).body).toEqual({ waiting: null });
  });

  test('gives no single admin a way to sign in as a colleague through a provider of their own', async () => {
    const { tenant, mallory, boss } = await guarded();
    await addMember(open, tenant, 'ann@colleagues.example', 'approver');
    await verifyDomain(open, dns, tenant.admin, 'colleagues.example');
    provider.person = { sub: 'ann', email: 'ann@colleagues.example', email_verified: true, name: 'Ann' };
    const { waiting } = (await put(200, mallory)).body;
    expect(await view(mallory)).toMatchObject({ configured: false });
    const atOnce = await open.call(302, `GET /auth/login?tenant=${tenant.id}`, undefined);
    expect(atOnce.headers.get('location')).toContain('/sign-in');
    expect((await decide(403, mallory, waiting!)).body.code).toBe('SELF_APPROVAL');
    expect(await view(mallory)).toMatchObject({ configured: false });
    // with a second person it is the company's decision, and the secret that rested sealed works
    await decide(200, boss, waiting!);
    expect(await view(mallory)).toMatchObject({ configured: true, issuer_url: provider.issuer });
    const { secret } = (await open.core.connections.open(tenant.id))!;
    expect(secret).toBe(CLIENT.client_secret);
    const actions = (await audited(open, tenant)).map(({ action }) => action);
    expect(actions.slice(0, 2)).toEqual(['sso.configured', 'settings.change_approved']);
  });

  test('shows the pending change, but not the secret, which is deleted once the change is decided', async () => {
    const { tenant, mallory, boss } = await guarded();
    const [first, second] = [(await put(200, mallory)).body.waiting!, (await put(200, mallory)).body.waiting!];
    const { text } = await open.call(200, 'GET /v1/settings/changes?status=pending', boss);
    expect(JSON.parse(text).changes[0]).toMatchObject({
      id: second,
      proposed_by: mallory.userId,
      reason,
      changes: [
        {
          setting: 'sso_provider',
          from: null,
          to: { issuer_url: provider.issuer, client_id: CLIENT.client_id },
          loosens: true,
        },
      ],
    });
    const rows = () =>
      sql<{ row: string; sealed: boolean }>(
        open,
        `select c::text as row, secret_sealed is not null as sealed from settings_change c
         where tenant_id = $1 order by id`,
        [tenant.id],
      );
    const told = [text, JSON.stringify(await audited(open, tenant)), JSON.stringify(await rows())];
    for (const place of [...told, open.logged.join('\n')]) {
      expect(place).not.toContain(CLIENT.client_secret);
      expect(place).not.toContain(Buffer.from(CLIENT.client_secret).toString('hex'));
    }
    expect((await rows()).map(({ sealed }) => sealed)).toEqual([true, true]);
    await decide(200, boss, first, 'reject');
    await open.call(200, `DELETE /v1/users/${mallory.userId}/roles/admin`, boss);
    expect((await rows()).map(({ sealed }) => sealed)).toEqual([false, false]);
    expect((await decide(409, boss, second)).body.code).toBe('INVALID_STATUS');
    expect(await view(boss)).toMatchObject({ configured: false });
  });

  test('needs a second person also to remove the provider or unbind an account, but not for a new secret', async () => {
    const { tenant, mallory, boss } = await guarded();
    await decide(200, boss, (await put(200, mallory)).body.waiting!);
    await bind(tenant, 'one');
    const unbind = `DELETE /v1/settings/sso/identities/${tenant.admin.userId}`;
    const ask = async (line: string) =>
      (await open.call<{ waiting: string }>(200, line, mallory, { reason })).body.waiting;
    const identities = async () =>
      (await open.call<{ identities: object[] }>(200, 'GET /v1/settings/sso/identities', mallory)).body.identities;
    const [gone, unbound] = [await ask('DELETE /v1/settings/sso'), await ask(unbind)];
    expect(await view(mallory)).toMatchObject({ configured: true });
    expect(await identities()).toHaveLength(1);
    expect((await put(200, mallory, { ...input(), client_secret: 'rotated' })).body.waiting).toBeNull();
    // another account is bound meanwhile: what the second person read is not what would happen
    await sql(open, `update sso_identity set subject = 'two' where tenant_id = $1`, [tenant.id]);
    expect((await decide(409, boss, unbound)).body.code).toBe('CONFLICT');
    expect(await identities()).toHaveLength(1);
    await decide(200, boss, await ask(unbind));
    expect(await identities()).toEqual([]);
    const late = await ask('DELETE /v1/settings/sso');
    await decide(200, boss, gone);
    expect(await view(mallory)).toMatchObject({ configured: false });
    expect((await decide(409, boss, late)).body.code).toBe('CONFLICT');
  });
});

describe('token issuers', () => {
  const issuer = (more: Record<string, unknown> = {}) => ({
    issuer: provider.issuer,
    audience: 'agents',
    agent_id_claim: 'sub',
    agent_role_claim: 'role',
    agent_ids: ['bot-*'],
    agent_roles: ['clerk'],
    ...more,
  });
  const put = (expected: number, who: { key: string }, ...token_issuers: object[]) =>
    open.call<{ token_issuers: Record<string, unknown>[] } & Record<string, unknown>>(
      expected,
      'PUT /v1/settings/token-issuers',
      who,
      { token_issuers },
    );

  test('are stored if their keys can be fetched, and reach the proxies', async () => {
    const tenant = await open.tenant();
    const proxy = await tenant.key('proxy');
    expect((await open.call(200, 'GET /v1/proxy-config', proxy)).body.token_issuers).toEqual([]);
    const saved = await put(200, tenant.admin, issuer());
    const complete = { ...issuer(), jwks_uri: `${provider.issuer}/jwks`, allowed_algs: ['RS256'] };
    expect(saved.body.token_issuers).toEqual([complete]);
    for (const line of ['GET /v1/proxy-config', 'GET /v1/settings/token-issuers']) {
      expect((await open.call(200, line, proxy)).body.token_issuers).toEqual([complete]);
    }
    // what is read can be written
    expect((await put(200, tenant.admin, complete)).body).toEqual(saved.body);
    expect((await open.call(200, 'GET /v1/proxy-config', (await open.tenant()).admin)).body.token_issuers).toEqual([]);
    const [record] = await audited(open, tenant);
    expect(record).toMatchObject({ code: 'TKI001I', severity: 'warning', detail: provider.issuer });
    await put(200, tenant.admin);
    expect((await open.call(200, 'GET /v1/proxy-config', proxy)).body.token_issuers).toEqual([]);
  });

  test('with a jwks_uri need no discovery, and keep their order', async () => {
    const tenant = await open.tenant();
    const jwks_uri = `${provider.issuer}/jwks`;
    const list = ['https://b.example', 'https://a.example', 'spiffe://agents'].map((name) =>
      issuer({ issuer: name, jwks_uri, allowed_algs: ['ES256', 'EdDSA'] }),
    );
    const before = provider.requests.length;
    expect((await put(200, tenant.admin, ...list)).body.token_issuers).toEqual(list);
    expect(provider.requests.slice(before)).not.toContain('GET /.well-known/openid-configuration');
    const without = issuer({ issuer: 'x', jwks_uri });
    expect((await put(200, tenant.admin, without)).body.token_issuers[0]!.allowed_algs).toEqual([
      'RS256',
      'PS256',
      'ES256',
      'EdDSA',
    ]);
  });

  test('are stored all or none, and each refused one is named', async () => {
    const tenant = await open.tenant();
    await put(200, tenant.admin, issuer());
    const refused = await put(
      400,
      tenant.admin,
      issuer(),
      issuer(),
      issuer({ issuer: 'https://a.example', jwks_uri: 'https://10.0.0.1/keys' }),
      issuer({ issuer: 'http://b.example' }),
      issuer({ issuer: 'https://c.example', jwks_uri: `${provider.issuer}/nothing` }),
    );
    expect(faultsOf(refused.body).map(({ pointer }) => pointer)).toEqual([
      '/token_issuers/1/issuer',
      '/token_issuers/2/jwks_uri',
      '/token_issuers/3/issuer',
      '/token_issuers/4/jwks_uri',
    ]);
    const { body } = await open.call<{ token_issuers: object[] }>(200, 'GET /v1/settings/token-issuers', tenant.admin);
    expect(body.token_issuers).toHaveLength(1);
    expect((await audited(open, tenant))[0]).toMatchObject({ code: 'TKI001E' });
  });

  test('with a symmetric algorithm, without a claim, or too many are refused', async () => {
    const { admin } = await open.tenant();
    await put(400, admin, issuer({ allowed_algs: ['HS256'] }));
    await put(400, admin, issuer({ allowed_algs: ['none'] }));
    await put(400, admin, issuer({ allowed_algs: [] }));
    await put(400, admin, issuer({ agent_id_claim: '' }));
    await put(400, admin, issuer({ surprise: true }));
    // who may be named is said, or nothing is stored
    for (const name of ['agent_ids', 'agent_roles']) {
      for (const list of [undefined, [], ['a**'], ['*-*'], ['a b'], ['ä*'], [''], 'bot', ['x'.repeat(201)]]) {
        await put(400, admin, issuer({ [name]: list }));
      }
    }
    await put(400, admin, ...Array.from({ length: 21 }, (_, i) => issuer({ issuer: `https://${i}.example` })));
  });
});

describe('the session cookie on https', () => {
  /** Signs a member in, in a new browser, and resolves to the lines of its cookies. */
  const enter = async (tenant: TestTenant, role: string) => {
    const userId = await tenant.member({ email: `a-${role}@example.test`, roles: [role] });
    const token = await open.core.links.create(tenant.id, userId, 600, { actor: OPERATOR });
    const { headers } = await open.call(302, `GET /auth/magic-link/verify?token=${token}`, undefined);
    const lines = headers.getSetCookie();
    const [session, proof] = lines.map((line) => line.split(';')[0]!) as [string, string];
    return { userId, lines, session, proof };
  };
  const BROWSER = { 'sec-fetch-site': 'same-origin', 'sec-fetch-mode': 'cors', 'sec-fetch-dest': 'empty' };
  const seen = async (expected: number, cookie: string, headers: Record<string, string> = BROWSER) =>
    (await open.call<{ user?: { id: string } }>(expected, 'GET /auth/me', { cookie, headers })).body.user?.id;

  test('is called svc_session, for this host alone, and is enough for a client that is no browser', async () => {
    const { userId, lines, session, proof } = await enter(await open.tenant(), 'viewer');
    const attributes = 'HttpOnly; Max-Age=86400; Path=/; SameSite=Lax; Secure';
    expect(lines).toEqual([
      expect.stringMatching(new RegExp(`^svc_session=svc_session_[\\w-]+; ${attributes}$`)),
      expect.stringMatching(new RegExp(`^__Host-svc_proof=[\\w-]{43}; ${attributes}$`)),
    ]);
    expect(await seen(200, session, {})).toBe(userId);
    expect(await seen(200, `${session}; ${proof}`)).toBe(userId);
    // the proof alone, or with another session, is nothing
    await seen(401, proof, {});
    const out = await open.call(200, 'POST /auth/logout', { cookie: `${session}; ${proof}`, headers: BROWSER });
    expect(out.headers.getSetCookie()).toEqual([
      expect.stringMatching(/^svc_session=; .*Max-Age=0; /),
      expect.stringMatching(/^__Host-svc_proof=; .*Max-Age=0; /),
    ]);
    await seen(401, session, {});
  });

  test('that a sibling host planted signs nobody in, and no session is fixed by it', async () => {
    // what https://blog.control.test may set: svc_session=…; Domain=control.test, with a session of its own
    const planted = await enter(await open.tenant(), 'admin');
    const victim = await enter(await open.tenant(), 'viewer');
    const ways = [BROWSER, { 'sec-fetch-site': 'same-site' }, { 'user-agent': 'Mozilla/5.0 (an old one)' }];
    for (const headers of ways) {
      await seen(401, planted.session, headers);
      // with a proof that it made up: the prefix keeps it from setting one, yet it would not count
      await seen(401, `${planted.session}; ${victim.proof}`, headers);
      await seen(401, `${planted.session}; ${victim.session}`, headers);
      // a longer path goes first, an older cookie too
      for (const session of [`${planted.session}; ${victim.session}`, `${victim.session}; ${planted.session}`]) {
        expect(await seen(200, `${session}; ${victim.proof}`, headers)).toBe(victim.userId);
        await seen(401, `${session}; ${planted.proof}; ${victim.proof}`, headers);
      }
    }
    // whoever it is: two sessions without a proof leave it open which is meant
    await seen(401, `${planted.session}; ${victim.session}`, {});
    await seen(401, `${victim.session}; ${planted.session}`, {});
    expect(await seen(200, `${victim.session}; ${victim.session}`, {})).toBe(victim.userId);
    // signing in beside a planted session starts another one, and leaves the planted one what it was: the attacker's
    const tenant = await open.tenant();
    const token = await open.core.links.create(tenant.id, tenant.admin.userId, 600, { actor: OPERATOR });
    const { headers } = await open.call(302, `GET /auth/magic-link/verify?token=${token}`, {
      ...{ cookie: planted.session, headers: ways[2]! },
    });
    const [own, proof] = headers.getSetCookie().map((line) => line.split(';')[0]!);
    expect(own).not.toBe(planted.session);
    expect(await seen(200, `${planted.session}; ${own}; ${proof}`)).toBe(tenant.admin.userId);
  });
});
