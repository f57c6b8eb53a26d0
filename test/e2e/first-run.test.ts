import { expect, test } from 'vitest';
import { describeInBrowser, useBrowser } from '../helpers/browser.ts';
import { useServer } from '../helpers/server.ts';

const server = useServer({}, { shared: true });

describeInBrowser('a new tenant', () => {
  const browser = useBrowser(() => server.url);

  test('comes from nothing to its first denied call, which arrives by itself', async () => {
    const tenant = await server.tenant();
    const visitor = await browser.visitor(await tenant.person('admin'));
    const { page } = visitor;
    await visitor.open('/');
    await page.getByRole('link', { name: /first governed call/ }).click();
    await visitor.assertAccessible();
    await page.getByRole('button', { name: /Refunds with a limit/ }).click();
    await page.getByRole('button', { name: 'Enforce this policy' }).click();
    await page.getByRole('button', { name: 'Create the key' }).click();
    const call = await page.getByRole('region', { name: 'a call that is denied' }).innerText();
    await visitor.assertAccessible();

    // what is shown to be copied is what is run
    const [, url] = /curl -sS (\S+)/.exec(call)!;
    const headers = Object.fromEntries(
      [...call.matchAll(/-H '([^:]+): ([^']+)'/g)].map(([, name, value]) => [name, value]),
    );
    const body = /-d '([^']+)'/.exec(call)![1]!;
    const answer = await fetch(url!, { method: 'POST', headers: headers as Record<string, string>, body });
    expect(await answer.json()).toMatchObject({ decision: 'deny' });
    const arrived = page.getByRole('list', { name: 'Decisions that arrived' });
    await arrived.getByText('delete_account').waitFor();
    await arrived.getByText('Denied').waitFor();

    await page.getByRole('link', { name: 'delete_account' }).click();
    await page.getByText('refunds#no-deletion').first().waitFor();
    await visitor.assertAccessible();
  });
});
