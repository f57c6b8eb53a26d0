import { beforeAll, describe, expect, test } from 'vitest';
import { checkDomains } from '../../server/cli/doctor/domains.ts';
import { AUDIT_ACTIONS, OPERATOR } from '../../server/domain/audit.ts';
import { createLog } from '../../server/lib/log.ts';
import { dump, sql } from '../helpers/api.ts';
import { useDns } from '../helpers/dns.ts';
import { mailsSent, mailsTo } from '../helpers/mail.ts';
import { startOpenIdProvider } from '../helpers/openid-provider.ts';
import { type TestTenant, useServer } from '../helpers/server.ts';
import {
  addMember,
  audited,
  BASE_URL,
  finish,
  newBrowser,
  PLAIN_REDIRECT_URI,
  redirectUriOf,
  setProvider,
  verifyDomain,
} from '../helpers/sso.ts';
import type { Visitor } from '../helpers/visitor.ts';

/** Single sign-on with a certified OpenID provider, from the settings page to the session, through its own login form. */
const dns = useDns();
const server = useServer(dns.settings({ SVC_EGRESS_ALLOW: '127.0.0.1/32' }));

const SECRETS = { basic: 'first secret: 100% + more', post: 'a secret for the form' };
/** What the tenants have registered at the providers beside it: each its own redirect URI. */
const registered = new Set([PLAIN_REDIRECT_URI]);

/** The people that the provider knows, by what they type as login. */
const people: Record<string, { email: string; email_verified: boolean; name: string }> = {};
let issuer: string;
let formIssuer: string;
let tenant: TestTenant;
beforeAll(async () => {
  const common = { claimsOf: (login: string) => people[login], redirectUris: registered };
  const basic = { client_secret: SECRETS.basic, token_endpoint_auth_method: 'client_secret_basic' } as const;
  issuer = await startOpenIdProvider({
    ...common,
    clients: [
      { client_id: 'svc', ...basic },
      { client_id: 'svc-es256', ...basic, id_token_signed_response_alg: 'ES256' },
    ],
    claimsInToken: false,
  });
  formIssuer = await startOpenIdProvider({
    ...common,
    clients: [{ client_id: 'svc', client_secret: SECRETS.post, token_endpoint_auth_method: 'client_secret_post' }],
    claimsInToken: true,
    methods: ['client_secret_post'],
  });
  tenant = await newTenant();
});
/** A tenant that has registered its redirect URI. */
async function newTenant(): Promise<TestTenant> {
  const made = await server.tenant();
  registered.add(redirectUriOf(made));
  return made;
}

const configure = (of = tenant, more: Record<string, unknown> = {}, expected = 200) =>
  setProvider(server, of, { issuer_url: issuer, client_id: 'svc', client_secret: SECRETS.basic, ...more }, expected);

/** Signs in at the provider's own form, as a person does, and comes back. */
async function signIn(login: string, start = `/auth/login?tenant=${tenant.id}`, browser: Visitor = newBrowser(server)) {
  return finish(server, browser, await callbackOf(login, start, browser));
}

/** The same up to the way back. */
async function callbackOf(login: string, start: string, browser: Visitor): Promise<string> {
  const stop = `${BASE_URL}/auth/callback`;
  let at = await browser.follow(BASE_URL + start, {}, stop);
  for (let pages = 0; at.response && pages < 3; pages++) {
    const html = await at.response.text();
    const [, action] = /<form[^>]* action="([^"]+)"/.exec(html) ?? [];
    if (!action) throw new Error(`no form at ${at.url}: ${html.slice(0, 500)}`);
    const [, prompt] = /name="prompt" value="(\w+)"/.exec(html)!;
    const form = new URLSearchParams({ prompt: prompt!, ...(prompt === 'login' && { login, password: 'any' }) });
    at = await browser.follow(new URL(action, at.url).href, { method: 'POST', body: form }, stop);
  }
  return at.url;
}

test('an admin sets it up, step by step, and is the first to sign in', async () => {
  const { admin } = tenant;
  // what must be registered at the provider is known before anything is configured
  const before = await server.call(200, 'GET /v1/settings/sso', admin);
  expect(before.body).toEqual({ configured: false, redirect_uri: PLAIN_REDIRECT_URI });
  const saved = await configure();
  expect(saved.body).toMatchObject({ configured: true, issuer_url: issuer, client_id: 'svc' });
  expect(saved.body).not.toHaveProperty('proven_at');
  await verifyDomain(server, dns, admin, 'acme.test');

  const userId = await addMember(server, tenant, 'root@acme.test', 'admin');
  people.root = { email: 'Root@ACME.test', email_verified: true, name: 'Root' };
  const outcome = await signIn('root', '/auth/sso/start?email=root%40Acme.test');
  expect(outcome).toMatchObject({ status: 302, path: '/policies' });
  expect((await server.call(200, 'GET /auth/me', outcome.who)).body).toEqual({
    authenticated: true,
    auth_method: 'oidc',
    tenant_id: tenant.id,
    user: expect.objectContaining({ id: userId, email: 'root@acme.test' }),
    roles: ['admin'],
  });
  // the roles are those given here, and count
  await server.call(200, 'GET /v1/keys', outcome.who);
  expect((await server.call(200, 'GET /v1/settings/sso', admin)).body).toHaveProperty('proven_at');
  const actions = (await audited(server, tenant)).map((record) => record.action);
  expect(actions.slice(0, 3)).toEqual(['session.started', 'sso.proven', 'sso.identity_bound']);
  expect(actions).toContain('sso.configured');
  for (const { action, code } of await audited(server, tenant)) {
    expect(AUDIT_ACTIONS[action as keyof typeof AUDIT_ACTIONS]).toBe(code);
  }
});

test('the second sign-in finds the same account and binds nothing', async () => {
  expect(await signIn('root')).toMatchObject({ path: '/policies' });
  const { body } = await server.call<{ identities: object[] }>(200, 'GET /v1/settings/sso/identities', tenant.admin);
  expect(body.identities).toMatchObject([{ email: 'root@acme.test', issuer, subject: 'root' }]);
  expect(await audited(server, tenant, '&action=sso.identity_bound')).toHaveLength(1);
});

test('GET /auth/login redirects to the provider if exactly one tenant has one', async () => {
  const response = await newBrowser(server).send(`${BASE_URL}/auth/login`);
  expect(response.status).toBe(302);
  const to = new URL(response.headers.get('location')!);
  expect(to.origin).toBe(issuer);
  expect(Object.fromEntries(to.searchParams)).toMatchObject({
    response_type: 'code',
    client_id: 'svc',
    redirect_uri: PLAIN_REDIRECT_URI,
    code_challenge_method: 'S256',
    scope: 'openid email profile',
  });
  const cookie = response.headers.getSetCookie()[0]!;
  expect(cookie).toMatch(/^svc_sso=[\w-]{43}; Max-Age=600; Path=\/; HttpOnly; SameSite=Lax$/);
  // what the browser keeps is not what the provider sees
  expect(to.href).not.toContain(cookie.slice(8, 51));
});

test('an address of no organization gets the same answer as a malformed one', async () => {
  const answers = await Promise.all(
    ['x@nobody.test', 'x@sub.acme.test', 'acme.test', '@', '', 'x@acme.test@nobody.test'].map(async (email) => {
      const response = await newBrowser(server).send(`${BASE_URL}/auth/sso/start?email=${encodeURIComponent(email)}`);
      return [
        response.status,
        response.headers.get('location')!.replace(/req_\w+/, 'ID'),
        response.headers.get('set-cookie'),
      ];
    }),
  );
  expect(new Set(answers.map((answer) => JSON.stringify(answer)))).toEqual(
    new Set([JSON.stringify([302, '/sign-in?error=sso_unknown&request_id=ID', null])]),
  );
  for (const tenantId of ['none', 'a%00b', '%F0%9F%92%A9', `${tenant.id}%20`]) {
    const response = await newBrowser(server).send(`${BASE_URL}/auth/login?tenant=${tenantId}`);
    expect(response.headers.get('location')).toMatch(/^\/sign-in\?error=sso_unknown/);
  }
});

test('a person who is not a member is refused, and so is a removed one', async () => {
  people.eve = { email: 'eve@acme.test', email_verified: true, name: 'Eve' };
  expect(await signIn('eve')).toMatchObject({ path: '/sign-in', error: 'sso_no_access', who: undefined });
  expect((await audited(server, tenant))[0]).toMatchObject({ code: 'SSO175E' });
  const userId = await addMember(server, tenant, 'eve@acme.test', 'viewer');
  const inside = await signIn('eve');
  expect(inside).toMatchObject({ path: '/policies' });
  await server.call(204, `DELETE /v1/team/${userId}`, tenant.admin);
  await server.call(401, 'GET /auth/me', inside.who);
  expect(await signIn('eve')).toMatchObject({ path: '/sign-in', error: 'sso_no_access', who: undefined });
  expect((await audited(server, tenant))[0]).toMatchObject({ code: 'SSO176E' });
  // invited again, the same person has the same account
  await server.call(201, 'POST /v1/invites', tenant.admin, { email: 'eve@acme.test', role: 'author' });
  const again = await signIn('eve');
  expect((await server.call(200, 'GET /auth/me', again.who)).body).toMatchObject({
    user: { id: userId },
    roles: ['author'],
  });
});

describe('an invited person', () => {
  const invite = (email: string, role = 'approver') =>
    server.call<{ id: string }>(201, 'POST /v1/invites', tenant.admin, { email, role });

  test('joins by signing in, with the role of the invitation and the name that the provider gives', async () => {
    await invite('ida@acme.test');
    people.ida = { email: 'ida@acme.test', email_verified: true, name: 'Ida Invited' };
    const outcome = await signIn('ida');
    expect((await server.call(200, 'GET /auth/me', outcome.who)).body).toMatchObject({
      auth_method: 'oidc',
      user: { email: 'ida@acme.test', name: 'Ida Invited' },
      roles: ['approver'],
    });
    expect(await signIn('ida')).toMatchObject({ path: '/policies' });
    expect(await audited(server, tenant, '&action=invitation.accepted')).toHaveLength(2);
  });

  test('does not join when the invitation has expired or was revoked', async () => {
    people.ole = { email: 'ole@acme.test', email_verified: true, name: 'Ole' };
    const { body } = await invite('ole@acme.test');
    await server.call(204, `DELETE /v1/invites/${body.id}`, tenant.admin);
    expect(await signIn('ole')).toMatchObject({ error: 'sso_no_access', who: undefined });
    expect((await audited(server, tenant))[0]).toMatchObject({ code: 'SSO175E' });
    // one whose seven days are over lets nobody in either, and one whose days are not does
    const { id } = (await invite('ole@acme.test')).body;
    const endsAt = (when: string) =>
      server.core.db.owner.query(`update invitation set expires_at = $2 where id = $1`, [id, when]);
    await endsAt(new Date(server.clock.now() - 1000).toISOString());
    expect(await signIn('ole')).toMatchObject({ error: 'sso_no_access', who: undefined });
    await endsAt(new Date(server.clock.now() + 60_000).toISOString());
    expect(await signIn('ole')).toMatchObject({ path: '/policies' });
  });

  test('does not join another tenant that invited the same address and has not verified its domain', async () => {
    const other = await newTenant();
    await configure(other);
    await server.call(201, 'POST /v1/invites', other.admin, { email: 'ida@acme.test', role: 'admin' });
    expect(await signIn('ida', `/auth/login?tenant=${other.id}`)).toMatchObject({ error: 'sso_no_access' });
    expect((await audited(server, other))[0]).toMatchObject({ code: 'SSO173E' });
  });
});

test('a person who declines at the provider is sent back to the sign-in page', async () => {
  const browser = newBrowser(server);
  const at = await browser.follow(`${BASE_URL}/auth/login?tenant=${tenant.id}`);
  const back = await browser.follow(`${at.url}/abort`, {}, `${BASE_URL}/auth/callback`);
  expect(await finish(server, browser, back.url)).toMatchObject({ path: '/sign-in', error: 'sso_failed' });
  expect((await audited(server, tenant))[0]).toMatchObject({
    code: 'SSO125E',
    detail: 'the provider answered access_denied',
  });
});

describe('the client secret', () => {
  test('is in no response, log, audit record or table', async () => {
    const { text } = await server.call(200, 'GET /v1/settings/sso', tenant.admin);
    const tables = Object.values(await dump(server)).join('\n');
    const audit = JSON.stringify(await audited(server, tenant));
    for (const place of [text, tables, audit, server.logged.join('\n')]) {
      expect(place).not.toContain(SECRETS.basic);
      expect(place).not.toContain(Buffer.from(SECRETS.basic).toString('hex'));
      expect(place).not.toContain(Buffer.from(SECRETS.basic).toString('base64'));
    }
  });

  test('that is wrong lets no one in until it is rotated to the right one', async () => {
    const bound = await audited(server, tenant, '&action=sso.identity_bound');
    await configure(tenant, { client_secret: 'wrong' });
    expect(await signIn('root')).toMatchObject({ path: '/sign-in', error: 'sso_unavailable' });
    expect((await audited(server, tenant))[0]).toMatchObject({ code: 'SSO136E' });
    await configure();
    expect(await signIn('root')).toMatchObject({ path: '/policies' });
    // bound as before: a new secret is not a new provider
    expect(await audited(server, tenant, '&action=sso.identity_bound')).toEqual(bound);
  });

  test('stays when it is omitted, and is never carried over to another issuer or client', async () => {
    await configure(tenant, { client_secret: undefined });
    expect(await signIn('root')).toMatchObject({ path: '/policies' });
    for (const other of [{ issuer_url: formIssuer }, { client_id: 'svc-es256' }]) {
      const refused = await configure(tenant, { ...other, client_secret: undefined }, 400);
      expect(refused.body.errors).toMatchObject([{ pointer: '/client_secret' }]);
    }
    expect((await server.call(200, 'GET /v1/settings/sso', tenant.admin)).body.issuer_url).toBe(issuer);
  });
});

test('if approval is required, no admin can swap the provider to sign in as the second person', async () => {
  const own = await newTenant();
  const alone = await own.person('admin');
  await configure(own);
  await own.set({ approval_required: true });
  const asked = { approval_required: false, reason: 'it is in the way' };
  const { body } = await server.call<{ waiting: { id: string } }>(200, 'PATCH /v1/settings', alone, asked);
  // at another provider the admin is anyone they like
  const other = { issuer_url: formIssuer, client_id: 'svc', client_secret: SECRETS.post, reason: 'we move' };
  const put = async (input: object) =>
    (await server.call<{ waiting: string | null; issuer_url: string }>(200, 'PUT /v1/settings/sso', alone, input)).body;
  expect(await put(other)).toMatchObject({ issuer_url: issuer, waiting: expect.any(String) });
  const second = await put({ ...other, issuer_url: issuer, client_id: 'svc-es256' });
  expect(second).toMatchObject({ client_id: 'svc', waiting: expect.any(String) });
  for (const id of [body.waiting.id, second.waiting]) {
    await server.call(403, `POST /v1/settings/changes/${id}/approve`, alone, {});
  }
  expect((await server.call(200, 'GET /v1/settings/sso', alone)).body).toMatchObject({ client_id: 'svc' });
  // with a second person it goes
  await server.call(200, `POST /v1/settings/changes/${second.waiting}/approve`, await own.person('approver'), {});
  expect((await server.call(200, 'GET /v1/settings/sso', alone)).body).toMatchObject({ client_id: 'svc-es256' });
});

test('a token signed with ES256 is accepted', async () => {
  await configure(tenant, { client_id: 'svc-es256' });
  expect(await signIn('root')).toMatchObject({ path: '/policies' });
  await configure();
});

test('a provider that wants the secret in the form and puts the claims into the token works', async () => {
  const other = await newTenant();
  await configure(other, { issuer_url: formIssuer, client_secret: SECRETS.post });
  await verifyDomain(server, dns, other.admin, 'form.test');
  await addMember(server, other, 'fay@form.test', 'author');
  people.fay = { email: 'fay@form.test', email_verified: true, name: 'Fay' };
  const outcome = await signIn('fay', '/auth/sso/start?email=fay@form.test');
  expect(outcome).toMatchObject({ path: '/policies' });
  expect((await server.call(200, 'GET /auth/me', outcome.who)).body).toMatchObject({
    tenant_id: other.id,
    roles: ['author'],
  });
});

test('a new issuer binds its own accounts; those of the previous one do not apply', async () => {
  const mine = await newTenant();
  await configure(mine);
  await verifyDomain(server, dns, mine.admin, 'moving.test');
  await addMember(server, mine, 'mo@moving.test', 'viewer');
  people.mo = { email: 'mo@moving.test', email_verified: true, name: 'Mo' };
  people['mo-2'] = { email: 'mo@moving.test', email_verified: true, name: 'Mo' };
  const start = `/auth/login?tenant=${mine.id}`;
  expect(await signIn('mo', start)).toMatchObject({ path: '/policies' });
  // a second account of the same address at the same provider is not the same person
  expect(await signIn('mo-2', start)).toMatchObject({ error: 'sso_no_access' });
  expect((await audited(server, mine))[0]).toMatchObject({ code: 'SSO177E', severity: 'critical' });
  await configure(mine, { issuer_url: formIssuer, client_secret: SECRETS.post });
  expect((await audited(server, mine))[0]).toMatchObject({ code: 'SSO001I', severity: 'critical' });
  expect(await signIn('mo-2', start)).toMatchObject({ path: '/policies' });
  const { body } = await server.call<{ identities: { user_id: string; issuer: string; subject: string }[] }>(
    200,
    'GET /v1/settings/sso/identities',
    mine.admin,
  );
  expect(new Set(body.identities.map((one) => `${one.issuer} ${one.subject}`))).toEqual(
    new Set([`${issuer} mo`, `${formIssuer} mo-2`]),
  );
  // an admin can let another account take the member's place
  const line = `DELETE /v1/settings/sso/identities/${body.identities[0]!.user_id}`;
  await server.call(200, line, await mine.enter(mine.admin.userId), { reason: 'a new account' });
  expect((await audited(server, mine))[0]).toMatchObject({ code: 'SSO006I' });
  expect(await signIn('mo', start)).toMatchObject({ path: '/policies' });
  // and another tenant's admin cannot
  await server.call(404, line, await tenant.enter(tenant.admin.userId), { reason: 'a new account' });
});

describe('SSO only', () => {
  let guarded: TestTenant;
  let boss: { cookie?: string };
  beforeAll(async () => {
    guarded = await newTenant();
    boss = await guarded.person('admin');
    await addMember(server, guarded, 'gil@guarded.test', 'admin');
    await addMember(server, guarded, 'vic@guarded.test', 'viewer');
    people.gil = { email: 'gil@guarded.test', email_verified: true, name: 'Gil' };
    people.vic = { email: 'vic@guarded.test', email_verified: true, name: 'Vic' };
  });
  const start = () => `/auth/login?tenant=${guarded.id}`;
  const enforce = (expected: number, on = true) =>
    server.call(expected, 'PATCH /v1/settings', boss, { sso_only: on, reason: 'one way in' });

  test('cannot be turned on before an admin has signed in with the present configuration', async () => {
    await enforce(409);
    expect((await audited(server, guarded))[0]).toMatchObject({ code: 'SSO004E', severity: 'warning' });
    await configure(guarded);
    await verifyDomain(server, dns, guarded.admin, 'guarded.test');
    await enforce(409);
    // another person than an admin proves nothing
    expect(await signIn('vic', start())).toMatchObject({ path: '/policies' });
    await enforce(409);
    expect(await signIn('gil', start())).toMatchObject({ path: '/policies' });
    await configure(guarded);
    // a new configuration, even with the same words, is to be shown again
    await enforce(409);
    expect(await signIn('gil', start())).toMatchObject({ path: '/policies' });
    expect((await enforce(200)).body).toMatchObject({ sso_only: true });
    expect((await server.call(200, 'GET /v1/settings', guarded.admin)).body).toMatchObject({ sso_only: true });
  });

  test('protects what it needs: provider and domain stay, the secret may be rotated', async () => {
    await configure(guarded, { client_id: 'svc-es256' }, 409);
    expect((await audited(server, guarded))[0]).toMatchObject({ code: 'SSO001E' });
    await configure(guarded, { issuer_url: formIssuer, client_secret: SECRETS.post }, 409);
    await server.call(409, 'DELETE /v1/settings/sso', boss, { reason: 'we leave it' });
    await server.call(409, 'DELETE /v1/settings/sso/domains/guarded.test', guarded.admin);
    await configure(guarded);
    expect(await signIn('vic', start())).toMatchObject({ path: '/policies' });
    // a domain that no admin has may go
    await verifyDomain(server, dns, guarded.admin, 'spare.test');
    await server.call(204, 'DELETE /v1/settings/sso/domains/spare.test', guarded.admin);
  });

  test('keeps the last admin who can sign in, and is not turned on without a domain of theirs', async () => {
    const idOf = async (q: string) =>
      (await server.core.members.list(guarded.id, { status: 'active', q, limit: 1, offset: 0 })).people[0]!.id;
    const [gil, vic] = [await idOf('gil@'), await idOf('vic@')];
    for (const line of [`DELETE /v1/team/${gil}`, `DELETE /v1/users/${gil}/roles/admin`]) {
      expect((await server.call(409, line, guarded.admin)).body.detail).toContain('SSO only');
    }
    await server.call(200, `POST /v1/users/${vic}/roles`, guarded.admin, { role: 'admin' });
    await server.call(200, `DELETE /v1/users/${vic}/roles/admin`, guarded.admin);
    expect(await signIn('gil', start())).toMatchObject({ path: '/policies' });
    await enforce(200, false);
    await server.call(204, 'DELETE /v1/settings/sso/domains/guarded.test', guarded.admin);
    await enforce(409);
    await verifyDomain(server, dns, guarded.admin, 'guarded.test');
    await enforce(200);
  });

  test('leaves a way back: an operator’s link, and the switch itself', async () => {
    const [admin] = await server.core.db.query<{ id: string }>(
      guarded.id,
      `select id from member where email = 'gil@guarded.test'`,
    );
    const token = await server.core.links.create(guarded.id, admin!.id, 600, { actor: OPERATOR });
    const response = await newBrowser(server).send(`${BASE_URL}/auth/magic-link/verify?token=${token}`);
    expect(response.headers.get('location')).toBe('/');
    await enforce(200, false);
    await server.call(200, 'DELETE /v1/settings/sso', boss, { reason: 'we leave it' });
    expect((await audited(server, guarded))[0]).toMatchObject({ code: 'SSO002I' });
    await server.call(404, 'DELETE /v1/settings/sso', boss, { reason: 'we leave it' });
    const { body } = await server.call<{ identities: object[] }>(200, 'GET /v1/settings/sso/identities', guarded.admin);
    expect(body.identities).toEqual([]);
  });
});

describe('a domain that the company loses', () => {
  const NAME = '_svc-verification.lost.test';
  let mine: TestTenant;
  let boss: { cookie?: string };
  const ids: Record<string, string> = {};
  let mailed = '';
  beforeAll(async () => {
    mine = await newTenant();
    await configure(mine);
    await verifyDomain(server, dns, mine.admin, 'lost.test');
    await verifyDomain(server, dns, mine.admin, 'spare.test');
    boss = await mine.person('admin');
    for (const [login, role] of Object.entries({ ida: 'admin', uma: 'viewer', una: 'viewer' })) {
      ids[login] = await addMember(server, mine, `${login}@lost.test`, role);
    }
    // an admin with a verified domain for whom the provider has no account
    ids.gus = await addMember(server, mine, 'gus@spare.test', 'admin');
    for (const login of ['ida', 'uma', 'una', 'ned']) {
      people[login] = { email: `${login}@lost.test`, email_verified: true, name: login };
    }
    await server.call(201, 'POST /v1/invites', mine.admin, { email: 'ned@lost.test', role: 'admin' });
  });
  const start = () => `/auth/login?tenant=${mine.id}`;
  const enforce = (expected: number, on = true, who = boss) =>
    server.call(expected, 'PATCH /v1/settings', who, { sso_only: on, reason: 'one way in' });
  const ask = async (email: string) => {
    await server.call(200, 'POST /auth/magic-link', undefined, { email });
    await mailsSent(server);
  };
  const open = (token: string) => newBrowser(server).send(`${BASE_URL}/auth/magic-link/verify?token=${token}`);
  /** The daily check, a day later. */
  const recheck = async () => {
    await sql(server, `update verified_domain set checked_at = $1 where domain = 'lost.test'`, [
      new Date(server.clock.now() - 2 * 24 * 3_600_000),
    ]);
    await server.core.domains.recheck(createLog('silent'), new AbortController().signal);
  };
  /** What the operator's check says of domains. */
  const doctor = async () => {
    const found: string[] = [];
    const client = await server.core.db.owner.connect();
    await checkDomains(client, (level, _, detail) => found.push(`${level} ${detail}`)).finally(() => client.release());
    return found.filter((line) => line.includes(mine.id));
  };
  const told = async () =>
    (
      await sql<{ event_type: string }>(
        server,
        `select event_type from event_outbox where tenant_id = $1 and event_type like 'sso.%' order by id`,
        [mine.id],
      )
    ).map(({ event_type }) => event_type);

  test('binds nobody new while its record is missing, and those who are bound still sign in', async () => {
    await ask('una@lost.test');
    mailed = mailsTo(server, 'una@lost.test').at(-1)!.token;
    expect(await signIn('ida', start())).toMatchObject({ path: '/policies' });
    expect(await doctor()).toEqual([]);
    const record = dns.names[NAME]!;
    delete dns.names[NAME];
    await recheck();
    expect(await told()).toEqual(['sso.domain_record_missing']);
    expect(await doctor()).toEqual([expect.stringContaining('warn')]);
    expect(await signIn('ida', start())).toMatchObject({ path: '/policies' });
    // the new owner of the name has these addresses at a provider that all companies share
    for (const login of ['uma', 'ned']) {
      expect(await signIn(login, start()), login).toMatchObject({ error: 'sso_no_access', who: undefined });
      expect((await audited(server, mine))[0]).toMatchObject({ code: 'SSO178E' });
    }
    people.ida2 = people.ida!;
    expect(await signIn('ida2', start())).toMatchObject({ error: 'sso_no_access', who: undefined });
    const { body } = await server.call<{ identities: { subject: string }[] }>(
      200,
      'GET /v1/settings/sso/identities',
      mine.admin,
    );
    expect(body.identities.map(({ subject }) => subject)).toEqual(['ida']);
    // nor is it made the only way in
    await enforce(409);
    dns.names[NAME] = record;
    await recheck();
    expect(await signIn('uma', start())).toMatchObject({ path: '/policies' });
    await enforce(200);
  });

  test('cannot be given up, nor the account of its admin, while no other admin has signed in', async () => {
    const remove = 'DELETE /v1/settings/sso/domains/lost.test';
    expect((await server.call(409, remove, mine.admin)).body.detail).toContain('SSO only');
    expect((await audited(server, mine))[0]).toMatchObject({ code: 'SSO012E', severity: 'warning' });
    const unbind = `DELETE /v1/settings/sso/identities/${ids.ida}`;
    expect((await server.call(409, unbind, boss, { reason: 'a new account' })).body.detail).toContain('SSO only');
    expect((await audited(server, mine))[0]).toMatchObject({ code: 'SSO001E' });
    for (const line of [`DELETE /v1/team/${ids.ida}`, `DELETE /v1/users/${ids.ida}/roles/admin`]) {
      expect((await server.call(409, line, mine.admin)).body.detail).toContain('SSO only');
    }
    expect(await signIn('ida', start())).toMatchObject({ path: '/policies' });
    await server.call(200, `DELETE /v1/settings/sso/identities/${ids.uma}`, boss, { reason: 'a new account' });
  });

  test('and that another organization takes over lets nobody in, by its mailboxes neither, but for the operator', async () => {
    const heir = await server.tenant();
    const preference = `insert into mail_preference (tenant_id, user_id, pace, kinds, daily_hour) values ($1, $2, 'each', '{hold}', 7)`;
    await sql(server, preference, [mine.id, ids.uma]);
    await sql(server, preference, [mine.id, ids.gus]);
    delete dns.names[NAME];
    await recheck();
    // who may be locked out within the week is no other admin to rely on
    const bind = `insert into sso_identity (tenant_id, issuer, subject, user_id, created_at, last_used_at)
      select tenant_id, issuer, 'gus', $2, now(), now() from sso_connection where tenant_id = $1`;
    await sql(server, bind, [mine.id, ids.gus]);
    expect((await server.call(409, `DELETE /v1/team/${ids.gus}`, mine.admin)).body.detail).toContain('SSO only');
    await sql(server, `delete from sso_identity where tenant_id = $1 and subject = 'gus'`, [mine.id]);
    await sql(server, `update verified_domain set missing_since = $1 where domain = 'lost.test'`, [
      new Date(server.clock.now() - 8 * 24 * 3_600_000),
    ]);
    await verifyDomain(server, dns, heir.admin, 'lost.test');
    expect((await told()).at(-1)).toBe('sso.domain_lost');
    expect((await doctor()).sort()).toEqual([
      expect.stringMatching(/^FAIL .* no admin can use it/),
      expect.stringMatching(/^warn .* lost lost\.test to another tenant/),
    ]);
    const { body } = await server.call<{ domain_records: object[] }>(200, 'GET /v1/settings/sso/domains', mine.admin);
    expect(body.domain_records[0]).toMatchObject({ domain: 'lost.test', verified: false, lost_at: expect.any(String) });
    // the way in that is set is shut, and no other has opened
    expect(await signIn('ida', start())).toMatchObject({ error: 'sso_no_access', who: undefined });
    expect((await server.call(200, 'GET /v1/settings', mine.admin)).body).toMatchObject({ sso_only: true });
    await ask('ida@lost.test');
    expect(mailsTo(server, 'ida@lost.test')).toEqual([]);
    const withheld = { code: 'MLK001E', reason: 'another organization has the domain' };
    expect((await audited(server, mine))[0]).toMatchObject(withheld);
    // nor is anything else mailed there, such as that a subscription was disabled, or what somebody asks for afterwards
    const until = new Date(server.clock.now() + 3_600_000);
    const { mailQueue, db } = server.core;
    for (const to of ['ida@lost.test', `${'i'.repeat(70)}@Lost.test`, 'gus@spare.test']) {
      const letter = { to, subject: 'A subscription was disabled', text: 'of ours', html: 'of ours' };
      await db.transaction(mine.id, (em) => mailQueue.queue(em, mine.id, letter, until));
    }
    await mailsSent(server);
    const letters = (to: string) => mailsTo(server, to).length;
    expect([letters('ida@lost.test'), letters(`${'i'.repeat(70)}@Lost.test`), letters('gus@spare.test')]).toEqual([
      0, 0, 1,
    ]);
    // what is mailed about holds would be read by the other organization
    const mails = await sql<{ user_id: string }>(server, 'select user_id from mail_preference where tenant_id = $1', [
      mine.id,
    ]);
    expect(mails).toEqual([{ user_id: ids.gus }]);

    const browser = newBrowser(server);
    const token = await server.core.links.create(mine.id, ids.ida!, 600, { actor: OPERATOR });
    await browser.send(`${BASE_URL}/auth/magic-link/verify?token=${token}`);
    const ida = { cookie: `svc_session=${browser.cookies(BASE_URL).get('svc_session')}` };
    // no last admin is kept where none could sign in anyway
    await server.call(204, `DELETE /v1/team/${ids.gus}`, ida, { reason: 'nobody knows them' });
    await enforce(200, false, ida);
    for (const email of ['ida@lost.test', 'uma@lost.test']) {
      await ask(email);
      expect(mailsTo(server, email)).toEqual([]);
    }
    expect((await open(mailed)).status).toBe(401);
    const before = mailsTo(server, 'ned@lost.test').length;
    const invited = await server.call(409, 'POST /v1/invites', ida, { email: 'new@LOST.test', role: 'viewer' });
    expect(invited.body.detail).toContain('another organization has the domain');
    const { body: open_ } = await server.call<{ invites: { id: string; email: string }[] }>(
      200,
      'GET /v1/invites?status=pending',
      ida,
    );
    const ned = open_.invites.find(({ email }) => email === 'ned@lost.test')!;
    await server.call(409, `POST /v1/invites/${ned.id}/resend`, ida, {});
    await mailsSent(server);
    expect([mailsTo(server, 'new@lost.test').length, mailsTo(server, 'ned@lost.test').length]).toEqual([0, before]);
    // until an admin says that the addresses are theirs all the same
    await server.call(204, 'DELETE /v1/settings/sso/domains/lost.test', ida, { reason: 'both are ours' });
    await ask('uma@lost.test');
    expect((await open(mailsTo(server, 'uma@lost.test')[0]!.token)).status).toBe(302);
    expect(await doctor()).toEqual([]);
  });
});

test('a response is used once, in the browser that asked, also with a real provider', async () => {
  const browser = newBrowser(server);
  const callback = await callbackOf('root', `/auth/login?tenant=${tenant.id}`, browser);
  expect(await finish(server, newBrowser(server), callback)).toMatchObject({ error: 'sso_expired', who: undefined });
  expect((await audited(server, tenant))[0]).toMatchObject({ code: 'SSO121E' });
  expect(await finish(server, browser, callback)).toMatchObject({ path: '/policies' });
  browser.cookies(BASE_URL).delete('svc_session');
  expect(await finish(server, browser, callback)).toMatchObject({ error: 'sso_expired', who: undefined });
  expect((await audited(server, tenant))[0]).toMatchObject({ code: 'SSO122E' });
});
