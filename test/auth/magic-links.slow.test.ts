import { once } from 'node:events';
import http from 'node:http';
import { describe, expect, test } from 'vitest';
import { OPERATOR } from '../../server/domain/audit.ts';
import { newSecret } from '../../server/domain/secret.ts';
import { dump, sql } from '../helpers/api.ts';
import { mailsSent, mailsTo } from '../helpers/mail.ts';
import { type TestServer, type TestTenant, useServer } from '../helpers/server.ts';

const server = useServer();
const limited = useServer({ SVC_RATE_LINK_ADDRESS: '5', SVC_RATE_LINK_IP: '20' });
const VERIFY = '/auth/magic-link/verify?token=';
const HTML = { accept: 'text/html,application/xhtml+xml,*/*;q=0.8' };

let counter = 0;
const newAddress = () => `link${++counter}@example.test`;

async function member(tenant: TestTenant, email = newAddress(), where: TestServer = server) {
  const userId = await where.core.tenants.addMember(tenant.id, { email, roles: ['viewer'] }, { actor: OPERATOR });
  return { email, userId };
}

/** A browser: it keeps cookies. */
class Browser {
  readonly cookies = new Map<string, string>();

  async send(method: string, path: string, more: { headers?: Record<string, string>; body?: string } = {}) {
    const cookie = [...this.cookies].map(([name, value]) => `${name}=${value}`).join('; ');
    const response = await fetch(server.url + path, {
      method,
      redirect: 'manual',
      headers: { ...(cookie && { cookie }), ...more.headers },
      ...(more.body !== undefined && { body: more.body }),
    });
    for (const line of response.headers.getSetCookie()) {
      const [, name, value] = /^([^=]+)=([^;]*)/.exec(line)!;
      this.cookies.set(name!, value!);
    }
    return response;
  }

  async ask(email: string) {
    const response = await this.send('POST', '/auth/magic-link', {
      headers: { 'content-type': 'application/json', origin: server.origin },
      body: JSON.stringify({ email }),
    });
    expect(response.status).toBe(200);
    await mailsSent(server);
    return mailsTo(server, email.toLowerCase()).at(-1)!;
  }

  /** As a browser that says what it fetches the link for. Not by `fetch`, which says that of itself. */
  async fetched(path: string, headers: Record<string, string>) {
    const cookie = [...this.cookies].map(([name, value]) => `${name}=${value}`).join('; ');
    const request = http.get(server.url + path, { headers: { ...HTML, ...(cookie && { cookie }), ...headers } });
    const [response] = (await once(request, 'response')) as [http.IncomingMessage];
    response.resume();
    return { status: response.statusCode, cookies: response.headers['set-cookie'] ?? [] };
  }

  open(token: string, headers: Record<string, string> = {}) {
    return this.send('GET', VERIFY + token, { headers: { ...HTML, ...headers } });
  }

  async signedIn(): Promise<boolean> {
    return (await this.send('GET', '/auth/me')).status === 200;
  }
}

const audit = async (tenant: TestTenant, action: string) =>
  (
    await server.call<{ records: { action: string; code: string; reason?: string; actor: object }[] }>(
      200,
      `GET /v1/audit?action=${action}`,
      tenant.admin,
    )
  ).body.records;

describe('requesting a link', () => {
  test('mails one that signs in, in text and HTML, to members only', async () => {
    const tenant = await server.tenant();
    const { email } = await member(tenant);
    const browser = new Browser();
    const mail = await browser.ask(email.toUpperCase());
    expect(mail.subject).toBe('Sign in to Test');
    expect(mail.link).toBe(`http://control.test${VERIFY}${mail.token}`);
    expect(mail.text.split(mail.link)).toHaveLength(3);
    const opened = await browser.open(mail.token);
    expect([opened.status, opened.headers.get('location')]).toEqual([302, '/']);
    expect(await browser.signedIn()).toBe(true);
    expect((await audit(tenant, 'magic_link.sent')).map(({ code }) => code)).toEqual(['MLK001I']);
    await browser.ask('nobody-here@example.test');
    expect(mailsTo(server, 'nobody-here@example.test')).toEqual([]);
  });

  test('does the same work and gives the same answer for every address', async () => {
    const known = await member(await server.tenant());
    const removedTenant = await server.tenant();
    const removed = await member(removedTenant);
    await server.call(204, `DELETE /v1/team/${removed.userId}`, removedTenant.admin);
    const statements: string[][] = [];
    const shapes: unknown[] = [];
    for (const email of [known.email, 'unknown@example.test', removed.email]) {
      // every statement of the request goes through one of these
      const seen: string[] = [];
      const { db } = server.core;
      const [query, transaction] = [db.owner.query, db.transaction];
      const path = '/auth/magic-link';
      db.owner.query = ((...args: unknown[]) => {
        const text = typeof args[0] === 'string' ? args[0] : (args[0] as { text: string }).text;
        if (new Error().stack!.includes('MagicLinks.request')) seen.push(text);
        return (query as (...all: unknown[]) => unknown).apply(db.owner, args);
      }) as typeof query;
      let tenants = 0;
      db.transaction = ((...args: Parameters<typeof transaction>) => {
        if (new Error().stack!.includes('MagicLinks.request')) tenants++;
        return transaction(...args);
      }) as typeof transaction;
      try {
        const { headers, body } = await server.call(200, `POST ${path}`, undefined, { email });
        const cookie = headers.getSetCookie()[0]!.replace(/=[\w-]{43};/, '=…;');
        const rest = [...headers].filter(
          ([name]) => !['x-request-id', 'date', 'set-cookie', 'ratelimit'].includes(name),
        );
        shapes.push({ body, cookie, rest });
      } finally {
        db.owner.query = query;
        db.transaction = transaction;
      }
      statements.push([...seen, `${tenants} transactions of a tenant`]);
      await mailsSent(server);
    }
    expect(statements[0]).toEqual([
      expect.stringMatching(/^insert into sign_in_request/),
      '0 transactions of a tenant',
    ]);
    expect(statements[1]).toEqual(statements[0]);
    expect(statements[2]).toEqual(statements[0]);
    expect(shapes[1]).toEqual(shapes[0]);
    expect(shapes[2]).toEqual(shapes[0]);
    expect((shapes[0] as { body: object }).body).toEqual({ status: 'accepted' });
    expect(mailsTo(server, removed.email)).toEqual([]);
  });

  test('is stored so that neither it nor the log reveals an address or a nonce', async () => {
    // the rows are gone when they are served: each is kept here as it was stored
    await sql(server, 'create table seen as select * from sign_in_request with no data');
    await sql(
      server,
      `create function see() returns trigger language plpgsql as 'begin insert into seen select new.*; return new; end'`,
    );
    await sql(server, 'create trigger see after insert on sign_in_request for each row execute function see()');
    const browser = new Browser();
    const { email } = await member(await server.tenant());
    const { token } = await browser.ask(email);
    const nonce = browser.cookies.get('svc_sign_in')!;
    expect(nonce).toMatch(/^[\w-]{43}$/);
    const [row] = await sql<{ line: string; sealed: Buffer }>(server, 'select s::text as line, sealed from seen s');
    const stored = [row!.line, row!.sealed.toString('latin1'), ...Object.values(await dump(server))].join('\n');
    const log = server.logged.join('\n');
    for (const secret of [nonce, token]) {
      expect([stored.includes(secret), log.includes(secret)]).toEqual([false, false]);
    }
    expect([row!.sealed.toString('latin1').includes(email), log.includes(email)]).toEqual([false, false]);
    await sql(server, 'drop trigger see on sign_in_request');
  });

  test('mails a link for each tenant of which the address is a member, and each leads to its own', async () => {
    const tenants = [await server.tenant(), await server.tenant()];
    const email = newAddress();
    for (const tenant of tenants) await member(tenant, email);
    const browser = new Browser();
    await browser.ask(email);
    const mails = mailsTo(server, email);
    expect(mails).toHaveLength(2);
    const signedIn: string[] = [];
    for (const { token } of mails) {
      await browser.open(token);
      signedIn.push(((await (await browser.send('GET', '/auth/me')).json()) as { tenant_id: string }).tenant_id);
      browser.cookies.delete('svc_session');
    }
    expect(signedIn.sort()).toEqual(tenants.map(({ id }) => id).sort());
  });

  test('twice in one browser leaves both links working there', async () => {
    const { email } = await member(await server.tenant());
    const browser = new Browser();
    const first = await browser.ask(email);
    const second = await browser.ask(email);
    expect(second.token).not.toBe(first.token);
    for (const { token } of [first, second]) {
      await new Browser().open(token);
      expect((await browser.open(token)).status).toBe(302);
    }
  });

  test('is refused without an address, and by GET', async () => {
    for (const body of [{}, { email: '' }, { email: 'x' }, { email: 'a@b\r\nBcc: c@d' }, { email: ['a@b.test'] }]) {
      await server.call(400, 'POST /auth/magic-link', undefined, body);
    }
    await server.call(405, 'GET /auth/magic-link', { headers: { accept: 'application/json' } });
  });

  test('that a process died serving makes no second link when retried', async () => {
    const tenant = await server.tenant();
    const { email, userId } = await member(tenant);
    const { core, clock } = server;
    await new Browser().ask(email);
    // the request is there again, as if the process had died before it could delete it
    const [link] = await sql<{ request_id: string }>(server, 'select request_id from sign_in_link where user_id = $1', [
      userId,
    ]);
    const sealed = core.box.seal(
      JSON.stringify({ email, nonce_hash: '00', ip: '::1', request_id: 'r' }),
      `sign_in_request/${link!.request_id}/sealed`,
    );
    const at = new Date(clock.now());
    await core.db.owner.query('insert into sign_in_request values ($1, $2, $3, $3)', [link!.request_id, sealed, at]);
    await mailsSent(server);
    expect(mailsTo(server, email)).toHaveLength(1);
    expect(await sql(server, 'select id from sign_in_link where user_id = $1', [userId])).toHaveLength(1);
  });
});

describe('a mailed link', () => {
  test('that a scanner opened first, by HEAD, prefetch and GET, still works once in the browser that requested it', async () => {
    const tenant = await server.tenant();
    const { email } = await member(tenant);
    const [browser, scanner] = [new Browser(), new Browser()];
    const { token } = await browser.ask(email);
    expect((await scanner.send('HEAD', VERIFY + token)).headers.getSetCookie()).toEqual([]);
    for (const headers of [{ 'sec-purpose': 'prefetch' }, { purpose: 'prefetch' }]) {
      expect((await scanner.open(token, headers)).status).toBe(503);
    }
    expect((await scanner.open(token)).status).toBe(302);
    expect((await scanner.open(token)).status).toBe(401);
    expect(await scanner.signedIn()).toBe(true);
    expect((await browser.open(token)).status).toBe(302);
    expect(await browser.signedIn()).toBe(true);
    // one link, one session: the other one is over
    expect(await scanner.signedIn()).toBe(false);
    expect((await browser.open(token)).status).toBe(401);
    expect((await new Browser().open(token)).status).toBe(401);
    const refused = await audit(tenant, 'magic_link.refused');
    expect(refused.map(({ code, reason }) => [code, reason])).toEqual(Array(3).fill(['MLK002E', 'used already']));
  });

  test('is not used up by anything but a page that a person opens: images, frames, scripts, styles', async () => {
    const { email } = await member(await server.tenant());
    const browser = new Browser();
    const { token } = await browser.ask(email);
    const page = { 'sec-fetch-site': 'cross-site', 'sec-fetch-mode': 'navigate', 'sec-fetch-dest': 'document' };
    const fetched: Record<string, string>[] = [
      ...['image', 'iframe', 'frame', 'embed', 'object', 'script', 'style', 'empty', 'video', 'font', 'report'].map(
        (dest) => ({ ...page, 'sec-fetch-dest': dest }),
      ),
      ...['no-cors', 'cors', 'same-origin', 'websocket', 'nested-navigate'].map((mode) => ({
        ...page,
        'sec-fetch-mode': mode,
      })),
      { 'sec-fetch-site': 'cross-site', 'sec-fetch-mode': 'no-cors' },
      { 'sec-fetch-dest': 'image', accept: 'application/json' },
      // on plain http a browser says nothing but the types that it can show
      { accept: 'image/avif,image/webp,image/png,image/svg+xml,image/*;q=0.8,*/*;q=0.5' },
      { accept: 'IMAGE/*' },
      { accept: 'text/css,*/*;q=0.1' },
      { accept: 'video/webm,video/*;q=0.9,*/*;q=0.5' },
    ];
    for (const headers of fetched) {
      // by the browser that asked and by any other
      for (const one of [browser, new Browser()]) {
        const what = JSON.stringify(headers);
        expect([what, await one.fetched(VERIFY + token, headers)]).toEqual([what, { status: 403, cookies: [] }]);
      }
      const invited = await new Browser().fetched('/auth/invite?token=svc_invite_x', headers);
      expect(invited.status).toBe(403);
    }
    // a scanner that opens it as a page, a program, and the person come in
    expect((await new Browser().fetched(VERIFY + token, page)).status).toBe(302);
    expect((await browser.fetched(VERIFY + token, page)).status).toBe(302);
    const other = await new Browser().ask(email);
    expect((await fetch(server.url + VERIFY + other.token, { redirect: 'manual' })).status).toBe(302);
  });

  test('that its browser opened first lets no one else in', async () => {
    const { email } = await member(await server.tenant());
    const browser = new Browser();
    const { token } = await browser.ask(email);
    expect((await browser.open(token)).status).toBe(302);
    expect((await new Browser().open(token)).status).toBe(401);
    const stranger = new Browser();
    stranger.cookies.set('svc_sign_in', 'x'.repeat(43));
    expect((await stranger.open(token)).status).toBe(401);
    expect(await browser.signedIn()).toBe(true);
  });

  test('gives one session to 100 concurrent uses, from the requesting browser, from elsewhere, or both', async () => {
    for (const who of ['asker', 'others', 'both']) {
      const tenant = await server.tenant();
      const { email, userId } = await member(tenant);
      const browser = new Browser();
      const { token } = await browser.ask(email);
      const cookie = `svc_sign_in=${browser.cookies.get('svc_sign_in')}`;
      const answers = await Promise.all(
        Array.from({ length: 100 }, (_, i) => {
          const asked = who === 'asker' || (who === 'both' && i % 2 === 0);
          return fetch(`${server.url}${VERIFY}${token}`, { redirect: 'manual', headers: asked ? { cookie } : {} });
        }),
      );
      const statuses = answers.map(({ status }) => status);
      const expected = who === 'both' ? [1, 2] : [1];
      expect(expected, who).toContain(statuses.filter((status) => status === 302).length);
      // a machine that is too busy for all of them says so
      expect(statuses.filter((status) => ![302, 401, 503].includes(status))).toEqual([]);
      expect(statuses).toContain(401);
      const live = await sql(server, 'select id from session where tenant_id = $1 and user_id = $2', [
        tenant.id,
        userId,
      ]);
      expect(live, who).toHaveLength(1);
    }
  });

  test('expires 15 minutes after the request, also in the requesting browser', async () => {
    const { email } = await member(await server.tenant());
    const browser = new Browser();
    const { token } = await browser.ask(email);
    server.clock.advance(15 * 60_000);
    expect((await browser.open(token)).status).toBe(401);
    expect((await new Browser().open(token)).status).toBe(401);
  });

  test('that is invalid is reported to browsers on a page without script, and to programs as a problem', async () => {
    const page = await new Browser().open('svc_link_x');
    expect([page.status, page.headers.get('content-type')]).toEqual([401, 'text/html; charset=utf-8']);
    expect(page.headers.get('content-security-policy')).toMatch(/^default-src 'none'; style-src 'sha256-/);
    expect(page.headers.get('referrer-policy')).toBe('strict-origin');
    const text = await page.text();
    expect(text).toContain('This link does not work');
    expect(text).not.toMatch(/<script|svc_link_x/);
    expect(server.logged.some((line) => line.includes('a sign-in by a link failed'))).toBe(true);
    const problem = await server.call(401, `GET ${VERIFY}svc_link_x`, { headers: { accept: 'application/json' } });
    expect(problem.headers.get('content-type')).toMatch(/^application\/problem\+json/);
  });

  test('of a removed person is dead, and stays dead when they return', async () => {
    const tenant = await server.tenant();
    const { email, userId } = await member(tenant);
    const browser = new Browser();
    const { token } = await browser.ask(email);
    await server.call(204, `DELETE /v1/team/${userId}`, tenant.admin);
    expect((await browser.open(token)).status).toBe(401);
    expect((await member(tenant, email)).userId).toBe(userId);
    expect((await browser.open(token)).status).toBe(401);
  });

  test('lets no one in once single sign-on is required; a mail links to it', async () => {
    const tenant = await server.tenant();
    const { email, userId } = await member(tenant);
    const browser = new Browser();
    const { token } = await browser.ask(email);
    // past the guard that wants a proven provider first
    await server.core.db.owner.query(`update tenant set settings = '{"sso_only":true}' where tenant_id = $1`, [
      tenant.id,
    ]);
    await server.core.db.transaction(tenant.id, (_, notify) => notify('settings'));
    expect((await browser.open(token)).status).toBe(401);
    const mail = await browser.ask(email);
    expect(mail.link).toBe(`http://control.test/auth/sso/start?email=${encodeURIComponent(email)}`);
    expect(mail.text).not.toContain('svc_link_');
    expect((await audit(tenant, 'magic_link.withheld')).map(({ code }) => code)).toEqual(['MLK001E']);
    // the operator's way in remains
    const operators = await server.core.links.create(tenant.id, userId, 900, { actor: OPERATOR });
    expect((await browser.open(operators)).status).toBe(302);
  });
});

test('a link that is to be the only one ends those that were handed over before, and none that was mailed', async () => {
  const tenant = await server.tenant();
  const { userId, email } = await member(tenant);
  const { userId: colleague } = await member(tenant);
  const browser = new Browser();
  const create = (user: string, which?: { only: boolean }) =>
    server.core.links.create(tenant.id, user, 900, { actor: OPERATOR }, which);
  const [before, others, mailed] = [await create(userId), await create(colleague), (await browser.ask(email)).token];
  const only = await create(userId, { only: true });
  expect((await new Browser().open(before)).status).toBe(401);
  for (const token of [only, others]) expect((await new Browser().open(token)).status).toBe(302);
  expect((await browser.open(mailed)).status).toBe(302);
});

describe('a link that is opened while another person is signed in', () => {
  const form = (token: string) => ({
    headers: { 'content-type': 'application/x-www-form-urlencoded', origin: server.origin, ...HTML },
    body: new URLSearchParams({ token }).toString(),
  });
  const me = async (browser: Browser) =>
    ((await (await browser.send('GET', '/auth/me')).json()) as { user?: { email: string } }).user?.email;
  const person = async (tenant: TestTenant) => {
    const made = await member(tenant);
    const browser = new Browser();
    await browser.open((await browser.ask(made.email)).token);
    return { ...made, browser };
  };

  test.each(['of the same tenant', 'of another tenant'])(
    '%s asks first, and signs in with its button',
    async (where) => {
      const tenant = await server.tenant();
      const victim = await person(tenant);
      const attacker = await member(where === 'of the same tenant' ? tenant : await server.tenant());
      // a link that somebody sent, and one that the victim's own browser asked for
      const links = [await new Browser().ask(attacker.email), await victim.browser.ask(attacker.email)];
      for (const { token } of links) {
        for (const headers of [{}, { accept: 'application/json' }, { accept: '*/*' }]) {
          const page = await victim.browser.open(token, headers);
          expect([page.status, page.headers.getSetCookie()]).toEqual([200, []]);
          const text = await page.text();
          expect(text).toContain(`signed in as <strong>${victim.email}</strong>`);
          expect(text).toContain(`signs in <strong>${attacker.email}</strong> at <strong>Test</strong>`);
          expect(text).not.toContain('<script');
        }
        expect(await me(victim.browser)).toBe(victim.email);
      }
      const { token } = links[0]!;
      for (const origin of ['https://evil.test', 'null']) {
        const { headers, body } = form(token);
        const posted = await victim.browser.send('POST', '/auth/magic-link/verify', {
          headers: { ...headers, origin },
          body,
        });
        expect(posted.status).toBe(403);
      }
      const before = victim.browser.cookies.get('svc_session');
      const posted = await victim.browser.send('POST', '/auth/magic-link/verify', form(token));
      expect([posted.status, posted.headers.get('location')]).toEqual([303, '/']);
      expect(await me(victim.browser)).toBe(attacker.email);
      // what the browser had is over, not only overwritten
      await server.call(401, 'GET /auth/me', { cookie: `svc_session=${before}` });
      expect((await victim.browser.send('POST', '/auth/magic-link/verify', form(token))).status).toBe(401);
    },
  );

  test('does not ask the same person, a person whose session has ended, or for an expired link', async () => {
    const tenant = await server.tenant();
    const { email, browser } = await person(tenant);
    const again = await browser.ask(email);
    expect((await browser.open(again.token)).status).toBe(302);
    const dead = await browser.open(again.token);
    expect(dead.status).toBe(401);
    const other = await member(tenant);
    const { token } = await new Browser().ask(other.email);
    await new Browser().open(token);
    const used = await browser.open(token);
    expect([used.status, await used.text()]).toEqual([401, expect.not.stringContaining(other.email)]);
    expect(await me(browser)).toBe(email);
    await browser.send('POST', '/auth/logout', { headers: { origin: server.origin }, body: '{}' });
    browser.cookies.set('svc_session', newSecret('session', tenant.id));
    expect((await browser.open((await new Browser().ask(other.email)).token)).status).toBe(302);
    expect(await me(browser)).toBe(other.email);
  });
});

describe('if the tenant requires a button', () => {
  const confirming = async () => {
    const tenant = await server.tenant();
    await server.call(200, 'PATCH /v1/settings', tenant.admin, { magic_link_confirm: true });
    return { tenant, ...(await member(tenant)) };
  };
  const form = (token: string, headers: Record<string, string> = {}) => ({
    headers: { 'content-type': 'application/x-www-form-urlencoded', origin: server.origin, ...HTML, ...headers },
    body: new URLSearchParams({ token }).toString(),
  });

  test('a GET in another browser only shows it; the button signs in, once', async () => {
    const { email } = await confirming();
    const other = new Browser();
    const { token } = await new Browser().ask(email);
    for (const headers of [{}, { accept: 'application/json' }, { accept: '*/*' }]) {
      const page = await other.open(token, headers);
      expect([page.status, page.headers.get('content-type')]).toEqual([200, 'text/html; charset=utf-8']);
      expect(page.headers.getSetCookie()).toEqual([]);
      expect(await page.text()).toContain(`<input type="hidden" name="token" value="${token}">`);
    }
    const posted = await other.send('POST', '/auth/magic-link/verify', form(token));
    expect([posted.status, posted.headers.get('location')]).toEqual([303, '/']);
    expect(await other.signedIn()).toBe(true);
    expect((await other.send('POST', '/auth/magic-link/verify', form(token))).status).toBe(401);
  });

  test('the requesting browser needs none', async () => {
    const { email } = await confirming();
    const browser = new Browser();
    expect((await browser.open((await browser.ask(email)).token)).status).toBe(302);
  });

  test('a form on another site signs no one in, and uses nothing up', async () => {
    const { email } = await confirming();
    const { token } = await new Browser().ask(email);
    const victim = new Browser();
    for (const origin of ['https://evil.test', 'null', server.url]) {
      const answer = await victim.send('POST', '/auth/magic-link/verify', form(token, { origin }));
      expect([answer.status, answer.headers.getSetCookie()]).toEqual([403, []]);
    }
    expect((await victim.send('POST', '/auth/magic-link/verify', form(token))).status).toBe(303);
  });

  test('a form with a repeated or an extra field is refused', async () => {
    const { email } = await confirming();
    const { token } = await new Browser().ask(email);
    for (const body of [`token=${token}&token=${token}`, `token=${token}&x=1`, `token=${token}&__proto__=1`]) {
      const answer = await new Browser().send('POST', '/auth/magic-link/verify', { ...form(token), body });
      expect(answer.status).toBe(400);
    }
  });
});

test('what ended long ago is deleted, and nothing still valid', async () => {
  const tenant = await server.tenant();
  const { email, userId } = await member(tenant);
  const { token } = await new Browser().ask(email);
  await new Browser().open(token);
  const invited = newAddress();
  await server.call(201, 'POST /v1/invites', tenant.admin, { email: invited, role: 'viewer' });
  const count = async () =>
    (
      await sql<{ kind: string; n: number }>(
        server,
        `select kind, count(*)::int as n from credential where tenant_id = $1 and kind <> 'api_key' group by 1 order by 1`,
        [tenant.id],
      )
    ).map(({ kind, n }) => `${n} ${kind}`);
  const { sessions, links, invitations } = server.core;
  const forget = () => Promise.all([sessions.forget(), links.forget(), invitations.forget()]);
  await forget();
  // one of the links is the operator's, of the tenant's beginning
  expect(await count()).toEqual(['1 invitation', '2 sign_in_link']);
  server.clock.advance(26 * 3600_000);
  await forget();
  expect(await count()).toEqual(['1 invitation', '1 sign_in_link']);
  server.clock.advance(40 * 86_400_000);
  await forget();
  expect(await count()).toEqual([]);
  expect(await sql(server, 'select 1 from sign_in_link where user_id = $1', [userId])).toEqual([]);
  expect(await sql(server, 'select 1 from invitation where tenant_id = $1', [tenant.id])).toHaveLength(1);
});

describe('limits', () => {
  test('allow 5 links in 15 minutes per address and 20 an hour per IP address, without revealing it', async () => {
    const tenant = await limited.tenant();
    const { email } = await member(tenant, newAddress(), limited);
    const shapes = new Set<string>();
    const ask = async (address: string) => {
      const { body, headers } = await limited.call(200, 'POST /auth/magic-link', undefined, { email: address });
      const names = [...headers.keys()].filter((name) => name !== 'date').sort();
      shapes.add(JSON.stringify([body, names]));
    };
    for (let i = 0; i < 8; i++) await ask(email);
    await mailsSent(limited);
    expect(mailsTo(limited, email)).toHaveLength(5);
    // 12 more from here are let through
    const others: string[] = [];
    for (let i = 0; i < 14; i++) {
      const other = await member(tenant, newAddress(), limited);
      others.push(other.email);
      await ask(other.email);
    }
    await mailsSent(limited);
    expect(others.map((address) => mailsTo(limited, address).length)).toEqual([...Array(12).fill(1), 0, 0]);
    expect(shapes.size).toBe(1);
    const metrics = await limited.call(200, 'GET /metrics', undefined);
    expect(metrics.text).toMatch(/svc_sign_in_failures_total\{reason="too many sign-in links requested"\} 5\n/);
  });

  test('of a network count only for itself once it has used up its own', async () => {
    const { email } = await member(await limited.tenant(), newAddress(), limited);
    const ask = (address: string, ip: string) =>
      limited.core.links.request(address, { ip, requestId: 'req_x' }, undefined);
    for (let i = 0; i < 20; i++) await ask(`x${i}@other.test`, '198.51.100.7');
    for (let i = 0; i < 5; i++) await ask(email, '198.51.100.7');
    await ask(email, '203.0.113.9');
    await mailsSent(limited);
    expect(mailsTo(limited, email)).toHaveLength(1);
  });
});

test('the fault of one tenant keeps no mail of another back, nor sends it twice', async () => {
  const email = newAddress();
  const tenants = [await server.tenant(), await server.tenant(), await server.tenant()];
  for (const tenant of tenants) await member(tenant, email);
  const [broken, sso] = tenants.map(({ id }) => id).sort();
  await sql(server, `update tenant set settings = '{"sso_only":true}' where tenant_id = $1`, [sso]);
  await server.core.db.transaction(sso!, (_, notify) => notify('settings'));
  await sql(
    server,
    `create function fail() returns trigger language plpgsql as $$ begin raise exception 'broken'; end $$`,
  );
  await sql(
    server,
    `create trigger fail before insert on sign_in_link for each row when (new.tenant_id = '${broken}') execute function fail()`,
  );
  await server.call(200, 'POST /auth/magic-link', undefined, { email });
  await expect.poll(() => mailsTo(server, email).length).toBe(2);
  // once more in vain, then with the fault repaired
  server.clock.advance(31_000);
  await server.core.links.serveRequests();
  await sql(server, 'drop function fail cascade');
  server.clock.advance(31_000);
  await server.core.links.serveRequests();
  await mailsSent(server);
  expect(mailsTo(server, email)).toHaveLength(3);
});
