import { expect, test } from 'vitest';
import { deploy, GUARD } from '../helpers/api.ts';
import { describeInBrowser, useBrowser } from '../helpers/browser.ts';
import { useServer } from '../helpers/server.ts';
import { evaluate } from './act.ts';

const server = useServer({}, { shared: true });

describeInBrowser('the stream of decisions', () => {
  const browser = useBrowser(() => server.url);

  test('shows each decision once, in order, waits while paused, and keeps its filter in the address', async () => {
    const tenant = await server.tenant();
    await deploy(server, tenant.admin, 'guard', GUARD);
    const visitor = await browser.visitor(await tenant.person('viewer'));
    const { page } = visitor;
    await visitor.open('/decisions');
    await page.getByRole('heading', { name: 'No decisions yet' }).waitFor();
    await evaluate(server, tenant, 'read');
    await page.getByRole('button', { name: 'read: Allowed, details' }).waitFor();
    await page.getByRole('button', { name: 'Pause' }).click();
    await evaluate(server, tenant, 'other');
    await page.getByRole('button', { name: 'Resume (1 new)' }).click();
    await page.getByRole('button', { name: /^other: Denied/ }).waitFor();
    await visitor.assertAccessible();

    await page.getByRole('textbox', { name: 'Tool' }).fill('other');
    await page.waitForURL(/tool_name=other/);
    await page.getByRole('button', { name: /^read:/ }).waitFor({ state: 'detached' });
    await page.reload();
    expect(await page.getByRole('textbox', { name: 'Tool' }).inputValue()).toBe('other');
    await page.getByRole('button', { name: /^other: Denied/ }).waitFor();
    expect(await page.getByRole('button', { name: /: Denied|: Allowed/ }).count()).toBe(1);
    await page.getByRole('button', { name: /^other: Denied/ }).click();
    const drawer = page.getByRole('dialog');
    for (const fact of [
      'Rule that decided',
      'Position in the chain',
      'Commitment to the input',
      'Commitment to the action',
    ]) {
      await drawer.getByText(fact, { exact: true }).waitFor();
    }
    await drawer.getByRole('button', { name: 'Copy curl' }).waitFor();
    await visitor.assertAccessible();
    await page.goBack();
    await drawer.waitFor({ state: 'detached' });
    await page.getByRole('textbox', { name: 'Tool' }).fill('nothing');
    await page.getByRole('button', { name: 'Clear the filters' }).click();
    await page.getByRole('button', { name: /^read:/ }).waitFor();
  });
});
