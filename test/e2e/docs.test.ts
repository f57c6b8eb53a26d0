import { expect, test } from 'vitest';
import { describeInBrowser, useBrowser } from '../helpers/browser.ts';
import { useServer } from '../helpers/server.ts';

const server = useServer({}, { browsed: true, shared: true });

describeInBrowser('the documentation', () => {
  const browser = useBrowser(() => server.url);

  test('is read without signing in, by keyboard and on a narrow screen, and is accessible', async () => {
    const visitor = await browser.visitor();
    const { page } = visitor;
    await visitor.open('/docs');
    await visitor.assertAccessible();
    await page
      .getByRole('navigation', { name: 'Documentation' })
      .getByRole('link', { name: 'Policy language' })
      .click();
    await page.getByRole('heading', { level: 1, name: 'Policy language' }).waitFor();
    await visitor.assertAccessible();
    await page.getByRole('navigation', { name: 'On this page' }).getByRole('link').first().click();
    expect(new URL(page.url()).hash).not.toBe('');
    await page.setViewportSize({ width: 360, height: 740 });
    expect(await page.evaluate('document.documentElement.scrollWidth')).toBe(360);
    await visitor.assertAccessible();
    visitor.expectFault(/404/);
    await visitor.open('/docs/nothing');
    await page.getByRole('link', { name: 'See all pages' }).click();
    await page.getByRole('heading', { level: 1 }).waitFor();
  });
});
