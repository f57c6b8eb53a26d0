import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import type { Page } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Core, openCore } from '../../server/app.ts';
import { readConfig } from '../../server/config.ts';
import { OPERATOR } from '../../server/domain/audit.ts';
import { createLog } from '../../server/lib/log.ts';
import { createTenant } from '../../server/provision.ts';
import { describeInBrowser, signIn, useBrowser } from '../helpers/browser.ts';
import { useDatabase } from '../helpers/database.ts';
import { MASTER_KEY, ServerProcess } from '../helpers/processes.ts';
import { noRedis, TestRedis } from '../helpers/redis.ts';

const describeLive = noRedis ? describe.skip : describeInBrowser;

/** Browsers on two servers as processes of their own, on one PostgreSQL and one Redis. */
describeLive('live, over tabs and processes', () => {
  const box = useDatabase();
  const dir = mkdtempSync(path.join(tmpdir(), 'svc-live-'));
  let redis: TestRedis;
  let core: Core;
  let one: ServerProcess;
  let other: ServerProcess;
  let made = 0;
  const browser = useBrowser(() => one.url);

  beforeAll(async () => {
    redis = await TestRedis.start();
    const env = { DATABASE_URL: box.url, REDIS_URL: redis.url, SVC_ROLES: 'web' };
    const config = readConfig({ ...env, SVC_DATA_DIR: dir, SVC_MASTER_KEY: MASTER_KEY });
    core = await openCore({ config, databaseUrl: box.url, log: createLog('silent') });
    one = new ServerProcess('one', env);
    other = new ServerProcess('other', env);
    await Promise.all([one.start(), other.start()]);
  });
  afterAll(async () => {
    await Promise.all([one?.dispose(), other?.dispose()]);
    await core?.stop();
    await redis?.stop();
    rmSync(dir, { recursive: true, force: true });
  });

  async function tenant() {
    const id = `live${++made}`;
    const { api_key: key } = await createTenant(core, one.url, { id, name: id, adminEmail: 'admin@example.test' });
    const call = async (status: number, line: string, who: { cookie?: string }, body?: object) => {
      const [method, target] = line.split(' ') as [string, string];
      const response = await fetch(other.url + target, {
        method,
        headers: {
          ...(who.cookie ? { cookie: who.cookie, origin: other.url } : { authorization: `Bearer ${key}` }),
          ...(body && { 'content-type': 'application/json' }),
        },
        ...(body && { body: JSON.stringify(body) }),
      });
      expect(response.status, line).toBe(status);
      return (status === 204 ? {} : await response.json()) as { id: string };
    };
    return {
      async person(name: string) {
        const email = `${name.toLowerCase()}@example.test`;
        const userId = await core.tenants.addMember(id, { email, name, roles: ['approver'] }, { actor: OPERATOR });
        const token = await core.links.create(id, userId, 600, { actor: OPERATOR });
        const answer = await fetch(`${other.url}/auth/magic-link/verify?token=${token}`, { redirect: 'manual' });
        return { userId, cookie: answer.headers.get('set-cookie')!.split(';')[0]! };
      },
      /** Both of these on the other process. */
      async hold(action_summary: string): Promise<string> {
        const body = { agent_role: 'payments', agent_id: 'bot-1', action_type: 'payment', action_summary };
        const hold = await call(
          201,
          'POST /v1/escrow',
          {},
          {
            ...body,
            action_hash: `sha256:${'a'.repeat(64)}`,
            hold_type: 'multi_party',
            required_approvals: 5,
            ttl_seconds: 3600,
          },
        );
        return hold.id;
      },
      vote: (hold: string, who: { cookie: string }, reason: string) =>
        call(200, `POST /v1/escrow/${hold}/vote`, who, { decision: 'approve', reason }),
      remove: (userId: string) => call(204, `DELETE /v1/team/${userId}`, {}, { reason: 'she left' }),
    };
  }
  const isLive = (page: Page) => page.getByRole('status').getByText('live', { exact: true }).waitFor();
  const breaks = (page: Page) => page.getByRole('status').getByText('connecting').waitFor();
  const shows = (page: Page, text: string) => page.getByText(text).first().waitFor();

  test('tabs show what happens on another process, also when the tab that listens is closed and when their server was away', async () => {
    const { hold, person, vote } = await tenant();
    const [a, b, c, d] = [await person('Ada'), await person('Ben'), await person('Cleo'), await person('Dan')];
    const { page: first, context, open, expectFault } = await browser.visitor(a);
    await open('/approvals');
    await isLive(first);
    const second = await context.newPage();
    await second.goto(`${one.url}/approvals`);
    await isLive(second);
    const { page: voter } = await browser.visitor(b);
    await voter.goto(`${other.url}/approvals`);
    await isLive(voter);

    // a hold shows everywhere
    const id = await hold('Wire 900 EUR to Nordwind');
    const pages = [first, second, voter];
    await Promise.all(pages.map((page) => page.getByRole('link', { name: 'payment', exact: true }).click()));
    await Promise.all(pages.map((page) => shows(page, '0 of 5')));
    // what a page that is loaded again would have lost
    const marked = 'globalThis.sameAsBefore';
    await Promise.all(pages.map((page) => page.evaluate(`${marked} = true`)));

    await voter.getByRole('button', { name: 'Approve' }).click();
    await voter.getByRole('dialog').getByLabel('Reason').fill('as Ben sees it');
    await voter.getByRole('dialog').getByRole('button', { name: 'Approve' }).click();
    await Promise.all(pages.map((page) => shows(page, 'as Ben sees it')));

    // the tab that listens is closed; the next one is not connected before something has happened
    let voted: Promise<unknown> | undefined;
    await second.route('**/v1/stream', async (route) => {
      voted ??= vote(id, c, 'as Cleo sees it');
      await voted;
      await route.continue();
    });
    await first.close();
    await shows(second, 'as Cleo sees it');
    await second.unroute('**/v1/stream');

    // the server dies, something happens, and it comes back where it was
    expectFault(/stream|trpc|ERR_/);
    await one.kill();
    await breaks(second);
    await vote(id, d, 'as Dan sees it');
    await one.startAgain();
    await second.getByText('as Dan sees it').first().waitFor();
    await isLive(second);
    expect(await second.evaluate(marked)).toBe(true);
    expect(await voter.evaluate(marked)).toBe(true);
  });

  test('a tab that begins knows how the connection stands, and a connection that fell silent is opened again', async () => {
    const { person } = await tenant();
    // the clock that is put in stays in the profile
    const { page: first, context, open } = await browser.visitor(await person('Ada'), { own: true });
    await first.clock.install();
    let free: () => void = () => undefined;
    const blocked = new Promise<void>((resolve) => (free = resolve));
    await first.route('**/v1/stream', async (route) => {
      await blocked;
      await route.continue();
    });
    await open('/');
    const second = await context.newPage();
    await second.goto(`${one.url}/`);
    await breaks(second);
    free();
    await Promise.all([isLive(first), isLive(second)]);
    await first.unroute('**/v1/stream');
    // the lid is closed for an hour
    const again = first.waitForRequest('**/v1/stream');
    await first.clock.fastForward('01:00:00');
    await again;
    await isLive(first);
  });

  test('signing out, in as somebody else, and losing the session reach every tab', async () => {
    const [mine, others] = [await tenant(), await tenant()];
    const [a, b] = [await mine.person('Ada'), await others.person('Ben')];
    const { page: first, context, open, expectFault } = await browser.visitor(a);
    await open('/');
    const second = await context.newPage();
    await second.goto(`${one.url}/approvals`);
    await isLive(second);
    await shows(second, 'Ada');
    // another person signs in: no tab shows the one before, nor anything of theirs
    await signIn(context, one.url, b);
    await first.goto(`${one.url}/`);
    await shows(second, 'Ben');
    expect(new URL(second.url()).pathname).toBe('/');
    await mine.hold('Of the tenant before');
    await others.hold('Of the tenant now');
    await second.goto(`${one.url}/approvals`);
    await shows(second, 'Of the tenant now');
    expect(await second.getByText('Of the tenant before').count()).toBe(0);

    await first.getByRole('button', { name: 'Sign out' }).click();
    await second.getByRole('heading', { name: 'Sign in' }).waitFor();

    // a session that is ended from elsewhere ends in the tabs
    expectFault(/401/);
    const c = await mine.person('Cleo');
    await signIn(context, one.url, c);
    for (const page of [first, second]) await page.goto(`${one.url}/`);
    await isLive(second);
    await mine.remove(c.userId);
    for (const page of [first, second]) await page.getByRole('heading', { name: 'Sign in' }).waitFor();
  });
});
