import { describe, expect, test } from 'vitest';
import { sql } from '../helpers/api.ts';
import { mailsSent, mailsTo } from '../helpers/mail.ts';
import { type Credential, type TestTenant, useServer } from '../helpers/server.ts';

const server = useServer();
/** One with a mail server, which does not answer. */
const mailing = useServer({ SMTP_URL: 'smtp://127.0.0.1:9' });
const HTML = { accept: 'text/html,*/*;q=0.8' };
const JSON_ONLY = { headers: { accept: 'application/json' } };
const INVITE = 'GET /auth/invite?token=';

interface Invite {
  id: string;
  email: string;
  role: string;
  status: string;
  invited_by: string;
  expires_at: string;
}

let counter = 0;
const newAddress = () => `invited${++counter}@example.test`;
const create = async (who: Credential, email: string, role = 'author') =>
  (await server.call<Invite>(201, 'POST /v1/invites', who, { email, role })).body;
const mailed = async (email: string) => {
  await mailsSent(server);
  return mailsTo(server, email).at(-1)!;
};
const join = async (token: string, status = 200) =>
  server.call<{ tenant_id: string; email: string; roles: string[]; session_expires_at: string }>(
    status,
    INVITE + token,
    JSON_ONLY,
  );
const cookieOf = (headers: Headers) => ({ cookie: headers.getSetCookie()[0]!.split(';')[0]! });
const audit = async (tenant: TestTenant, action: string) =>
  (
    await server.call<{ records: { code: string; reason?: string }[] }>(
      200,
      `GET /v1/audit?action=${action}`,
      tenant.admin,
    )
  ).body.records;
const post = (token: string, more: Record<string, string> = {}, headers: Record<string, string> = {}) =>
  fetch(`${server.url}/auth/invite`, {
    method: 'POST',
    redirect: 'manual',
    headers: { 'content-type': 'application/x-www-form-urlencoded', origin: server.origin, ...HTML, ...headers },
    body: new URLSearchParams({ token, ...more }).toString(),
  });

describe('an invitation', () => {
  test('is mailed, and with JSON joins immediately, with the given role', async () => {
    const tenant = await server.tenant();
    const admin = await tenant.person('admin');
    const email = newAddress();
    const made = await create(admin, email.toUpperCase());
    expect(made).toMatchObject({ email, role: 'author', status: 'pending' });
    expect(Date.parse(made.expires_at) - server.clock.now()).toBeGreaterThan(7 * 86_400_000 - 60_000);
    const mail = await mailed(email);
    expect(mail.subject).toBe('Join Test');
    expect(mail.text).toContain(`${made.invited_by} invites you to join Test as author`);
    const { body, headers } = await join(mail.token);
    expect(body).toEqual({
      tenant_id: tenant.id,
      email,
      roles: ['author'],
      session_expires_at: expect.stringMatching(/Z$/),
    });
    const me = await server.call(200, 'GET /auth/me', cookieOf(headers));
    expect(me.body).toMatchObject({
      auth_method: 'magic_link',
      tenant_id: tenant.id,
      roles: ['author'],
      user: { email },
    });
    await join(mail.token, 401);
    const codes = ['invitation.created', 'invitation.accepted', 'member.added', 'invitation.acceptance_refused'];
    const found = await Promise.all(codes.map(async (action) => (await audit(tenant, action))[0]?.code));
    expect(found).toEqual(['INV001I', 'INV004I', 'MEM001I', 'INV004E']);
  });

  test('shows the inviter its link once where there is no mail server, and nowhere else', async () => {
    const tenant = await server.tenant();
    const admin = await tenant.person('admin');
    const email = newAddress();
    const { body, headers } = await server.call<Invite & { link_by: string; link?: string }>(
      201,
      'POST /v1/invites',
      admin,
      { email, role: 'approver' },
    );
    expect(body.link_by).toBe('inviter');
    expect(headers.get('cache-control')).toBe('no-store');
    const token = new URL(body.link!).searchParams.get('token')!;
    const list = await server.call(200, 'GET /v1/invites', admin);
    const log = await server.call(200, 'GET /v1/audit', tenant.admin);
    await mailsSent(server);
    for (const text of [list.text, log.text, server.logged.join('\n')]) expect(text).not.toContain(token);
    expect(log.text).toContain(`${email}: approver; the link was shown to the inviter`);
    // the next one is another link, and ends this one
    const again = await server.call<{ link?: string }>(200, `POST /v1/invites/${body.id}/resend`, admin, {});
    await join(token, 401);
    expect((await join(new URL(again.body.link!).searchParams.get('token')!)).body.email).toBe(email);
  });

  test('shows nobody a link where there is a mail server', async () => {
    const tenant = await mailing.tenant();
    const admin = await tenant.person('admin');
    const { body } = await mailing.call(201, 'POST /v1/invites', admin, { email: newAddress(), role: 'viewer' });
    expect(body.link_by).toBe('mail');
    expect(body).not.toHaveProperty('link');
  });

  test('shows no link to a key, where changes need a second person, or for the account of a removed person', async () => {
    const tenant = await server.tenant();
    const admin = await tenant.person('admin');
    const invite = async (who: Credential, email = newAddress()) =>
      (await server.call(201, 'POST /v1/invites', who, { email, role: 'viewer' })).body;
    const kept = { link_by: 'operator' };
    const byKey = await invite(await tenant.key('admin'));
    expect(byKey).toMatchObject(kept);
    expect(byKey).not.toHaveProperty('link');
    const removed = await tenant.person('approver');
    const { body: people } = await server.call<{ users: { id: string; email: string }[] }>(200, 'GET /v1/users', admin);
    const { email } = people.users.find(({ id }) => id === removed.userId)!;
    await server.call(204, `DELETE /v1/team/${removed.userId}`, admin);
    const back = await invite(admin, email);
    expect(back).toMatchObject(kept);
    expect(back).not.toHaveProperty('link');
    await server.call(200, 'PATCH /v1/settings', admin, { approval_required: true, reason: 'as agreed' });
    const fourEyes = await invite(admin);
    expect(fourEyes).toMatchObject(kept);
    expect(fourEyes).not.toHaveProperty('link');
    const resent = await server.call(200, `POST /v1/invites/${fourEyes.id}/resend`, admin, {});
    expect(resent.body).not.toHaveProperty('link');
  });

  test('shows a browser a page with a button, which joins; viewing changes nothing', async () => {
    const tenant = await server.tenant();
    const email = newAddress();
    await create(tenant.admin, email, 'approver');
    const { token } = await mailed(email);
    for (const accept of [HTML.accept, '*/*', 'text/html,application/json']) {
      const page = await fetch(`${server.url}/auth/invite?token=${token}`, { headers: { accept } });
      expect([page.status, page.headers.get('content-type')]).toEqual([200, 'text/html; charset=utf-8']);
      expect(page.headers.getSetCookie()).toEqual([]);
      const text = await page.text();
      expect(text).toContain(`${email} joins Test as approver`);
      expect(text).not.toContain('<script');
      expect(page.headers.get('referrer-policy')).toBe('strict-origin');
    }
    expect((await fetch(`${server.url}/auth/invite?token=${token}`, { method: 'HEAD' })).status).toBe(405);
    const ahead = { accept: 'application/json', 'sec-purpose': 'prefetch' };
    await server.call(503, INVITE + token, { headers: ahead });
    for (const origin of ['https://evil.test', 'null', server.url]) {
      expect((await post(token, {}, { origin })).status).toBe(403);
    }
    const posted = await post(token, { name: ' Ada\nLovelace ' });
    expect([posted.status, posted.headers.get('location')]).toEqual([303, '/']);
    const me = await server.call<{ user: { name: string } }>(200, 'GET /auth/me', cookieOf(posted.headers));
    expect(me.body.user.name).toBe('Ada Lovelace');
    const dead = await fetch(`${server.url}/auth/invite?token=${token}`, { headers: HTML });
    expect([dead.status, dead.headers.get('content-type')]).toEqual([401, 'text/html; charset=utf-8']);
  });

  test('that 30 concurrent requests accept joins one person with one session', async () => {
    const tenant = await server.tenant();
    const email = newAddress();
    await create(tenant.admin, email);
    const { token } = await mailed(email);
    const answers = await Promise.all(
      Array.from({ length: 30 }, () => fetch(`${server.url}/auth/invite?token=${token}`, JSON_ONLY)),
    );
    expect(answers.filter(({ status }) => status === 200)).toHaveLength(1);
    expect(answers.filter(({ status }) => status === 401)).toHaveLength(29);
    const [counts] = await sql<{ members: number; sessions: number }>(
      server,
      `select (select count(*) from member where tenant_id = $1 and email = $2)::int as members,
         (select count(*) from session where tenant_id = $1)::int as sessions`,
      [tenant.id, email],
    );
    expect(counts).toEqual({ members: 1, sessions: 1 });
  });

  test('expires after 7 days', async () => {
    const tenant = await server.tenant();
    const email = newAddress();
    const { id } = await create(tenant.admin, email);
    const { token } = await mailed(email);
    server.clock.advance(7 * 86_400_000);
    await join(token, 401);
    const { body } = await server.call<{ invites: Invite[] }>(200, 'GET /v1/invites?status=expired', tenant.admin);
    expect(body.invites.map((invite) => invite.id)).toEqual([id]);
    // one that has expired can be sent again, and invited again
    await server.call(200, `POST /v1/invites/${id}/resend`, tenant.admin, {});
    await join((await mailed(email)).token);
  });

  test('that is resent has a new link, and the previous one is dead', async () => {
    const tenant = await server.tenant();
    const email = newAddress();
    const { id } = await create(tenant.admin, email);
    const first = await mailed(email);
    expect((await server.call<Invite>(200, `POST /v1/invites/${id}/resend`, tenant.admin, {})).body.id).toBe(id);
    const second = await mailed(email);
    expect(second.token).not.toBe(first.token);
    await join(first.token, 401);
    await join(second.token);
    await server.call(404, `POST /v1/invites/${id}/resend`, tenant.admin, {});
    await server.call(404, `DELETE /v1/invites/${id}`, tenant.admin);
  });

  test('is of whoever sent it last, and ends with their role', async () => {
    const tenant = await server.tenant();
    const again = await tenant.person('admin');
    const email = newAddress();
    const { id } = await create(await tenant.person('admin'), email, 'admin');
    const { body } = await server.call<{ link: string }>(200, `POST /v1/invites/${id}/resend`, again, {});
    await server.call(204, `DELETE /v1/team/${again.userId}`, tenant.admin);
    await join(new URL(body.link).searchParams.get('token')!, 401);
    await server.call(404, `POST /v1/invites/${id}/resend`, tenant.admin, {});
  });

  test('that is repeated for an address replaces the open one, even concurrently', async () => {
    const tenant = await server.tenant();
    const email = newAddress();
    await create(tenant.admin, email, 'viewer');
    const first = await mailed(email);
    await Promise.all(Array.from({ length: 8 }, () => create(tenant.admin, email, 'admin')));
    const { body } = await server.call<{ invites: Invite[]; total: number }>(
      200,
      'GET /v1/invites?status=pending',
      tenant.admin,
    );
    expect(body).toMatchObject({ total: 1, invites: [{ email, role: 'admin' }] });
    await mailsSent(server);
    await join(first.token, 401);
    const statuses = await Promise.all(
      mailsTo(server, email)
        .slice(1)
        .map(async ({ token }) => (await fetch(`${server.url}/auth/invite?token=${token}`, JSON_ONLY)).status),
    );
    expect(statuses.sort()).toEqual([200, ...Array(7).fill(401)]);
  });

  test('that is revoked lets no one in', async () => {
    const tenant = await server.tenant();
    const email = newAddress();
    const { id } = await create(tenant.admin, email);
    const { token } = await mailed(email);
    await server.call(204, `DELETE /v1/invites/${id}`, tenant.admin);
    await join(token, 401);
    expect((await audit(tenant, 'invitation.acceptance_refused')).map(({ reason }) => reason)).toEqual(['revoked']);
    expect((await audit(tenant, 'invitation.revoked')).map(({ code }) => code)).toEqual(['INV003I']);
  });

  test('of a member is refused, and audited', async () => {
    const tenant = await server.tenant();
    const body = { email: 'ADMIN@example.test', role: 'viewer' };
    expect((await server.call(409, 'POST /v1/invites', tenant.admin, body)).body.code).toBe('CONFLICT');
    expect((await audit(tenant, 'invitation.refused')).map(({ code }) => code)).toEqual(['INV001E']);
    for (const wrong of [
      { email: 'x', role: 'viewer' },
      { email: newAddress() },
      { email: newAddress(), role: 'boss' },
    ]) {
      await server.call(400, 'POST /v1/invites', tenant.admin, wrong);
    }
  });

  test('gives someone who was removed the same account back, with the roles of the invitation', async () => {
    const tenant = await server.tenant();
    const email = newAddress();
    await create(tenant.admin, email, 'admin');
    const first = cookieOf((await join((await mailed(email)).token)).headers);
    const me = async (who: Credential) =>
      (await server.call<{ user: { id: string; email: string }; roles: string[] }>(200, 'GET /auth/me', who)).body;
    const { id } = (await me(first)).user;
    // one that was still open when they left is no way back
    const [open] = await sql<{ id: string }>(server, 'select id from invitation where tenant_id = $1', [tenant.id]);
    await server.call(204, `DELETE /v1/team/${id}`, tenant.admin);
    await server.call(404, `POST /v1/invites/${open!.id}/resend`, tenant.admin, {});
    await server.call(200, 'POST /auth/magic-link', undefined, { email });
    const before = mailsTo(server, email).length;
    await mailsSent(server);
    expect(mailsTo(server, email)).toHaveLength(before);
    await create(tenant.admin, email, 'viewer');
    const second = cookieOf((await join((await mailed(email)).token)).headers);
    expect(await me(second)).toMatchObject({ user: { id, email }, roles: ['viewer'] });
    await server.call(401, 'GET /auth/me', first);
    expect((await audit(tenant, 'member.restored')).map(({ code }) => code)).toEqual(['MEM003I']);
  });

  test('ends when its address becomes a member otherwise', async () => {
    const tenant = await server.tenant();
    const admin = await tenant.person('admin');
    const email = newAddress();
    const { id } = await create(admin, email, 'admin');
    const { token } = await mailed(email);
    const userId = await tenant.member({ email, roles: ['viewer'] });
    await join(token, 401);
    await server.call(404, `POST /v1/invites/${id}/resend`, admin, {});
    // also where one is left open
    await sql(server, 'update invitation set revoked_at = null where tenant_id = $1 and id = $2', [tenant.id, id]);
    await join(token, 401);
    expect((await server.call(409, `POST /v1/invites/${id}/resend`, admin, {})).body.code).toBe('CONFLICT');
    const { body } = await server.call(200, `GET /v1/users/${userId}`, admin);
    expect(body).toMatchObject({ roles: ['viewer'], sessions: 0 });
    await server.call(204, `DELETE /v1/team/${userId}`, tenant.admin);
    await join(token, 401);
  });

  test('ends the session that its browser had', async () => {
    const tenant = await server.tenant();
    const before = await tenant.person('viewer');
    const email = newAddress();
    await create(tenant.admin, email);
    const { token } = await mailed(email);
    expect((await post(token, {}, { cookie: before.cookie! })).status).toBe(303);
    await server.call(401, 'GET /auth/me', before);
  });

  test('leads to single sign-on if that is required', async () => {
    const tenant = await server.tenant();
    const [early, late] = [newAddress(), newAddress()];
    await create(tenant.admin, early);
    const { token } = await mailed(early);
    // past the guard that wants a proven provider first
    await server.core.db.owner.query(`update tenant set settings = '{"sso_only":true}' where tenant_id = $1`, [
      tenant.id,
    ]);
    await server.core.db.transaction(tenant.id, (_, notify) => notify('settings'));
    expect((await server.call(403, INVITE + token, JSON_ONLY)).body.code).toBe('FORBIDDEN');
    expect((await post(token)).status).toBe(403);
    const page = await (await fetch(`${server.url}/auth/invite?token=${token}`, { headers: HTML })).text();
    expect(page).toContain(`/auth/sso/start?email=${encodeURIComponent(early)}`);
    await create(tenant.admin, late);
    const mail = await mailed(late);
    expect(mail.link).toBe(`http://control.test/auth/sso/start?email=${encodeURIComponent(late)}`);
    expect(mail.text).not.toContain('svc_invite_');
  });

  test('is listed page by page, newest first, with its state', async () => {
    const tenant = await server.tenant();
    const emails = [newAddress(), newAddress(), newAddress()];
    const made: Invite[] = [];
    for (const email of emails) {
      made.push(await create(tenant.admin, email));
      server.clock.advance(1000);
    }
    await join((await mailed(emails[0]!)).token);
    await server.call(204, `DELETE /v1/invites/${made[1]!.id}`, tenant.admin);
    const list = async (query: string) =>
      (await server.call<{ invites: Invite[]; total: number }>(200, `GET /v1/invites${query}`, tenant.admin)).body;
    expect((await list('')).invites.map(({ status }) => status)).toEqual(['pending', 'revoked', 'accepted']);
    expect((await list('?limit=1&offset=1')).invites.map(({ id }) => id)).toEqual([made[1]!.id]);
    expect(await list('?status=accepted')).toMatchObject({ total: 1, invites: [{ email: emails[0] }] });
    expect(JSON.stringify(await list(''))).not.toMatch(/token|hash|svc_invite/);
  });

  test('is found among more than a page of them, by a part of the address', async () => {
    const tenant = await server.tenant();
    // as if made by hand: their mails are of no interest here
    await server.core.db.owner.query(
      `insert into invitation (tenant_id, id, email, roles, token_hash, invited_by, created_at, sent_at, expires_at)
       select $1, 'inv_' || lpad(n::text, 4, '0'), 'person_' || n || '@many.test', '{viewer}', '', 'usr_x', t, t, t + interval '1 day'
       from generate_series(1, 230) n, lateral (select now() + n * interval '1 second' as t) x`,
      [tenant.id],
    );
    const list = async (query: string) =>
      (await server.call<{ invites: Invite[]; total: number }>(200, `GET /v1/invites${query}`, tenant.admin)).body;
    const seen: string[] = [];
    for (let offset = 0; offset < 230; offset += 100) {
      seen.push(...(await list(`?limit=100&offset=${offset}`)).invites.map(({ email }) => email));
    }
    expect(new Set(seen).size).toBe(230);
    expect(await list('?q=PERSON_17@')).toMatchObject({ total: 1, invites: [{ email: 'person_17@many.test' }] });
    expect(await list('?q=person_2&limit=1')).toMatchObject({ total: 42 });
    // neither of them stands for anything
    for (const q of ['person%25', 'personx1', '%5C']) expect((await list(`?q=${q}`)).total).toBe(0);
    expect((await list('?q=person_17@&status=accepted')).total).toBe(0);
  });
});
