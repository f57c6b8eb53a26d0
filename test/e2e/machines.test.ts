import { expect, test } from 'vitest';
import { describeInBrowser, useBrowser } from '../helpers/browser.ts';
import { useServer } from '../helpers/server.ts';

const server = useServer({}, { browsed: true });

describeInBrowser('the machines', () => {
  const browser = useBrowser(() => server.url);

  test('are drawn, and stand beside the drawing as text', async () => {
    const tenant = await server.tenant();
    const visitor = await browser.visitor(await tenant.person('viewer'));
    await visitor.open('/machines');
    await visitor.assertAccessible();
    await visitor.page.getByRole('button', { name: 'Hold' }).click();
    await visitor.page.getByRole('heading', { name: 'Hold machine' }).waitFor();
    const drawn = await visitor.page.locator('.chart-state text').allTextContents();
    expect(drawn.toSorted()).toEqual(['cancelled', 'consumed', 'expired', 'held', 'rejected', 'released']);
    await visitor.page.getByRole('cell', { name: 'released consume → consumed' }).waitFor();
    await visitor.page.setViewportSize({ width: 360, height: 740 });
    await visitor.assertAccessible();
  });
});
