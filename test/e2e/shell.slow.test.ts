import { readFileSync } from 'node:fs';
import { gzipSync } from 'node:zlib';
import { expect, test } from 'vitest';
import { makeWorld } from '../helpers/api.ts';
import { describeInBrowser, settled, useBrowser, type Visitor } from '../helpers/browser.ts';
import { useServer } from '../helpers/server.ts';
import { SIEGE } from '../siege/rounds.ts';
import { pressAtOnce } from './act.ts';

const server = useServer({}, { browsed: true, shared: true });

/** Goes there as a link does, without loading the dashboard again. */
async function go({ page }: Visitor, path: string): Promise<void> {
  await page.evaluate(`document.querySelector('h1').dataset.before = '';
    history.pushState(null, '', ${JSON.stringify(path)})`);
  await page.locator('h1:not([data-before])').first().waitFor();
  await settled(page);
}

describeInBrowser('the shell', () => {
  const browser = useBrowser(() => server.url);

  test('leads who is not signed in to the sign-in page, and remembers where they wanted to go', async () => {
    const visitor = await browser.visitor();
    visitor.expectFault(/401/);
    await visitor.open('/?last=7d');
    expect(new URL(visitor.page.url()).pathname).toBe('/sign-in');
    expect(new URL(visitor.page.url()).searchParams.get('next')).toBe('/?last=7d');
    await visitor.assertAccessible();
  });

  test('shows every page whatever else its address says', async () => {
    const world = await makeWorld(server);
    const visitor = await browser.visitor(world.credential.admin);
    const source = readFileSync(new URL('../../web/routes.tsx', import.meta.url), 'utf8');
    const ids: Record<string, readonly string[]> = {
      '/policies/$id': [world.policy],
      '/review/$id': [world.policy],
      '/approvals/$id': [world.hold],
      '/subscriptions/$id': [world.subscription],
      '/subscriptions/$id/deliveries/$delivery': [world.subscription, world.delivery],
      '/lists/$name': ['read_file'],
      '/decisions/$id': [world.event],
      '/forensics/packages/$id': [world.package],
    };
    const paths = [...source.matchAll(/^ {2}path: '([^']+)'/gm)].map(([, path]) => path!);
    expect(paths.length).toBeGreaterThan(18);
    for (const path of paths.filter((one) => one !== '/sign-in')) {
      expect(path.includes('$') ? ids[path] : path, path).toBeTruthy();
      // a request that the server refuses, or an error in the page, fails the visit
      const given = [...(ids[path] ?? [])];
      const address = `${path.replace(/\$\w+/g, () => given.shift()!)}?nonsense=1&page=zzz`;
      // the first page that is loaded leads to the overview
      if (SIEGE || ['/other-organization', '/'].includes(path)) await visitor.open(address);
      else await go(visitor, address);
    }
  });

  test('tells on the sign-in page why single sign-on did not lead in, and nothing that the address makes up', async () => {
    const visitor = await browser.visitor();
    await visitor.open('/sign-in?error=sso_no_access&request_id=req_01abc');
    await visitor.page.getByRole('alert').getByText('Ask an admin to invite you').waitFor();
    await visitor.page.getByRole('alert').getByText('req_01abc').waitFor();
    await visitor.assertAccessible();
    await visitor.open('/sign-in?error=Call%20the%20attacker&request_id=%3Cb%3E');
    const alert = await visitor.page.getByRole('alert').innerText();
    expect(alert).toContain('did not succeed');
    expect(alert).not.toMatch(/attacker|<b>|Request/);
    // the way on to the provider and back
    await visitor.page.getByLabel('Work email').fill('someone@unknown.example');
    await visitor.page.getByRole('button', { name: 'Continue with single sign-on' }).click();
    await visitor.page.getByRole('alert').getByText('No organization has set up').waitFor();
  });

  test('shows a viewer the pages of a viewer, in light, dark and narrow, and signs out', async () => {
    const tenant = await server.tenant();
    const visitor = await browser.visitor(await tenant.person('viewer'));
    await visitor.open('/');
    await visitor.assertAccessible();
    expect(await visitor.page.getByRole('navigation', { name: 'Pages' }).getByRole('link').count()).toBeGreaterThan(3);
    // times as the reader wants them, also after the page is loaded again
    await visitor.open('/audit');
    await visitor.page.getByLabel('Since (local)').waitFor();
    await visitor.page.getByRole('button', { name: 'Times are local: change' }).click();
    await visitor.page.getByLabel('Since (UTC)').waitFor();
    await visitor.page.reload();
    await visitor.page.getByLabel('Since (UTC)').waitFor();
    await visitor.open('/');
    await visitor.page.setViewportSize({ width: 360, height: 740 });
    await visitor.assertAccessible();
    // nothing is beside the window
    expect(await visitor.page.evaluate('document.documentElement.scrollWidth')).toBe(360);
    await visitor.page.getByRole('button', { name: 'Open the navigation' }).click();
    await visitor.context.setOffline(true);
    await visitor.page.getByRole('alert').getByText('You are offline').waitFor();
    await visitor.context.setOffline(false);
    await visitor.page.getByText('You are offline').waitFor({ state: 'detached' });
    // who cannot be signed out is told, and stays
    visitor.expectFault(/logout|ERR_FAILED/);
    await visitor.page.route('**/trpc/auth.logout*', (route) => route.abort());
    await visitor.page.getByRole('button', { name: 'Sign out' }).click();
    await visitor.page.getByText('The server did not answer').waitFor();
    await visitor.page.getByRole('status').getByText('live', { exact: true }).waitFor();
    await visitor.page.unroute('**/trpc/auth.logout*');
    await visitor.page.getByRole('button', { name: 'Close this message' }).click();
    await visitor.page.getByRole('button', { name: 'Sign out' }).click();
    await visitor.page.getByRole('heading', { name: 'Sign in' }).waitFor();
  });

  test('lists on every page the keys that do something there, goes by two of them, and to no page of a higher role', async () => {
    const tenant = await server.tenant();
    const visitor = await browser.visitor(await tenant.person('viewer'));
    const { page } = visitor;
    await visitor.open('/policies');
    await page.keyboard.press('?');
    const keys = page.getByRole('dialog', { name: 'Keys on this page' });
    await keys.getByText('Go to Decisions').waitFor();
    expect(await keys.getByText('Next hold').count()).toBe(0);
    await visitor.assertAccessible();
    await page.keyboard.press('Escape');
    await keys.waitFor({ state: 'detached' });
    await pressAtOnce(page, 'g', 'd');
    await page.waitForURL(/\/decisions$/);
    // each key that the list names leads somewhere
    await page.getByRole('button', { name: 'Keys on this page' }).click();
    const lines = await keys.getByRole('term').allTextContents();
    const pairs = lines.filter((line) => /^g\w$/.test(line));
    expect(pairs.length).toBeGreaterThan(5);
    expect(new Set(pairs).size).toBe(pairs.length);
    await page.keyboard.press('Escape');
    await keys.waitFor({ state: 'detached' });
    // while somebody types they are letters
    await page.getByLabel('Tool', { exact: true }).focus();
    await page.keyboard.type('gp');
    expect(await page.getByLabel('Tool', { exact: true }).inputValue()).toBe('gp');
    expect(page.url()).toContain('/decisions');
    // the navigation has room for what it shows: nothing lies under the button below it
    const [last, stop] = [page.getByRole('link', { name: 'Documentation' }), page.getByText('viewer ·')];
    const bottom = async (of: typeof last) => (await of.boundingBox())!;
    expect((await bottom(last)).y + (await bottom(last)).height).toBeLessThan((await bottom(stop)).y);
  });

  test('does not say on the overview that all is well where it could not be loaded', async () => {
    const tenant = await server.tenant();
    const { page, open, expectFault, assertAccessible } = await browser.visitor(await tenant.person('viewer'));
    expectFault(/trpc|Failed to load resource/);
    await page.route(/\/trpc\/[^?]*(policies\.list|chain\.closed)/, (route) => route.abort());
    await open('/');
    const tiles = page.locator('.tiles');
    await expect.poll(() => tiles.innerText()).toContain('could not be loaded');
    expect(await tiles.innerText()).not.toContain('all reviewed');
    await page.getByText('What needs attention could not be loaded completely').waitFor();
    await assertAccessible();
    await page.unrouteAll();
    await page.getByRole('button', { name: 'Try again' }).first().click();
    await page.getByText('What needs attention could not be loaded').waitFor({ state: 'detached' });
  });

  test('says that there is nothing under an unknown path', async () => {
    const tenant = await server.tenant();
    const visitor = await browser.visitor(await tenant.person('admin'));
    visitor.expectFault(/404/);
    for (const path of ['nothing-of-the-kind', 'decisions/none', 'subscriptions/none', 'approvals/none']) {
      await visitor.page.goto(`${server.url}/${path}`);
      await visitor.page.getByRole('heading', { name: 'There is nothing here' }).waitFor();
      expect(await visitor.page.locator('main').getByRole('button').count(), path).toBe(0);
    }
  });
});

test('the first view is under 200 KB of compressed scripts and styles, and the editor is not in it', () => {
  const dist = new URL('../../web/dist/', import.meta.url);
  const manifest = JSON.parse(readFileSync(new URL('.vite/manifest.json', dist), 'utf8')) as Record<
    string,
    { file: string; imports?: string[]; css?: string[] }
  >;
  const files = new Set<string>();
  const take = (name: string) => {
    const part = manifest[name]!;
    for (const file of [part.file, ...(part.css ?? [])]) files.add(file);
    for (const next of part.imports ?? []) take(next);
  };
  take('index.html');
  take('pages/overview/overview.tsx');
  const size = [...files].reduce((sum, file) => sum + gzipSync(readFileSync(new URL(file, dist))).length, 0);
  expect(size).toBeLessThan(200 * 1024);
  for (const file of files) {
    expect(readFileSync(new URL(file, dist), 'utf8').includes('cm-editor'), file).toBe(false);
  }
});
