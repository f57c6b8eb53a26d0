import { expect, test } from 'vitest';
import { describeInBrowser, useBrowser } from '../helpers/browser.ts';
import { mailsSent, mailsTo } from '../helpers/mail.ts';
import { useServer } from '../helpers/server.ts';

const server = useServer({}, { browsed: true, shared: true });
let counter = 0;

describeInBrowser('in a browser', () => {
  const browser = useBrowser(() => server.url);
  const mailed = async (email: string) => {
    await mailsSent(server);
    return mailsTo(server, email).at(-1)!;
  };

  test('an invitation is accepted by the button of its page, and its link does nothing more', async () => {
    const tenant = await server.tenant();
    const email = `browser${++counter}@example.test`;
    await server.call(201, 'POST /v1/invites', tenant.admin, { email, role: 'viewer' });
    const { link } = await mailed(email);
    const { page, context, assertAccessible, expectFault } = await browser.visitor();
    const asked: { url: string; referer: string | undefined }[] = [];
    page.on('request', (request) => asked.push({ url: request.url(), referer: request.headers().referer }));
    await page.goto(link);
    await page.getByRole('heading', { name: 'Join Test' }).waitFor();
    await assertAccessible();
    await page.getByLabel('Your name').fill('Ada Lovelace');
    await page.getByRole('button', { name: 'Join' }).click();
    await page.waitForURL(`${server.url}/`);
    const me = (await (await context.request.get(`${server.url}/auth/me`)).json()) as object;
    expect(me).toMatchObject({ user: { email, name: 'Ada Lovelace' }, roles: ['viewer'] });
    // the token is in the first address alone, and in no Referer
    expect(asked.filter(({ url }) => url.includes('svc_invite_'))).toHaveLength(1);
    expect(asked.filter(({ referer }) => referer?.includes('svc_invite_'))).toEqual([]);
    expectFault(/401/);
    await page.goto(link);
    await page.getByRole('heading', { name: 'This link does not work' }).waitFor();
    await assertAccessible();
  });

  test('a sign-in link that a scanner used first still works where it was asked for', async () => {
    const tenant = await server.tenant();
    const email = `browser${++counter}@example.test`;
    await tenant.member({ email, roles: ['viewer'] });
    const [asker, scanner] = [await browser.visitor(), await browser.visitor()];
    asker.expectFault(/401/);
    scanner.expectFault(/401/);
    await asker.open('/sign-in');
    await asker.context.request.post(`${server.url}/auth/magic-link`, { data: { email } });
    const { link } = await mailed(email);
    await scanner.page.goto(link);
    await scanner.page.waitForURL(`${server.url}/`);
    await asker.page.goto(link);
    await asker.page.waitForURL(`${server.url}/`);
    expect((await asker.context.request.get(`${server.url}/auth/me`)).status()).toBe(200);
    expect((await scanner.context.request.get(`${server.url}/auth/me`)).status()).toBe(401);
  });

  test('a link of another person asks first; an image with its address does nothing', async () => {
    const tenant = await server.tenant();
    const [mine, theirs] = [`browser${++counter}@example.test`, `browser${++counter}@example.test`];
    const id = await tenant.member({ email: mine, roles: ['viewer'] });
    await tenant.member({ email: theirs, roles: ['viewer'] });
    await server.call(200, 'POST /auth/magic-link', undefined, { email: theirs });
    const { link } = await mailed(theirs);
    const { page, context, open, assertAccessible, expectFault } = await browser.visitor(await tenant.enter(id));
    const me = async () => (await (await context.request.get(`${server.url}/auth/me`)).json()) as object;
    await open('/policies');
    expectFault(/403|Content Security Policy|Content-Security-Policy/);
    // written as text: these run in the page, where there is a document
    const status = await page.evaluate(`(async () => {
      const called = await fetch(${JSON.stringify(link)}, { redirect: 'manual' });
      await new Promise((done) => {
        const image = Object.assign(new Image(), { onload: done, onerror: done });
        image.src = ${JSON.stringify(link)};
      });
      return called.status;
    })()`);
    expect(status).toBe(403);
    await page.goto(link);
    await page.getByText(`You are signed in as ${mine}`).waitFor();
    await assertAccessible();
    await page.getByRole('link', { name: `Stay signed in as ${mine}` }).click();
    await page.waitForURL(`${server.url}/`);
    expect(await me()).toMatchObject({ user: { email: mine } });
    await page.goto(link);
    await page.getByRole('button', { name: `Sign in as ${theirs}` }).click();
    await page.waitForURL(`${server.url}/`);
    expect(await me()).toMatchObject({ user: { email: theirs } });
  });

  test('a sign-in link with a button signs in by it', async () => {
    const tenant = await server.tenant();
    await server.call(200, 'PATCH /v1/settings', tenant.admin, { magic_link_confirm: true });
    const email = `browser${++counter}@example.test`;
    await tenant.member({ email, roles: ['viewer'] });
    await server.call(200, 'POST /auth/magic-link', undefined, { email });
    const { link } = await mailed(email);
    const { page, assertAccessible } = await browser.visitor();
    await page.goto(link);
    await page.getByRole('heading', { name: 'Sign in' }).waitFor();
    await assertAccessible();
    await page.getByRole('button', { name: 'Sign in' }).click();
    await page.waitForURL(`${server.url}/`);
  });
});
