import { expect, test } from 'vitest';
import { describeInBrowser, useBrowser } from '../helpers/browser.ts';
import { useServer } from '../helpers/server.ts';

const server = useServer({}, { browsed: true });

describeInBrowser('administration', () => {
  const browser = useBrowser(() => server.url);

  test('a key is shown once, works, and is revoked', async () => {
    const tenant = await server.tenant();
    const { page, open, assertAccessible } = await browser.visitor(await tenant.person('admin'));
    await open('/keys');
    await assertAccessible();
    await page.getByRole('button', { name: 'New API key' }).click();
    const form = page.getByRole('dialog', { name: 'New API key' });
    await form.getByLabel('Label').fill('Pipeline');
    await form.getByLabel('proxy').uncheck();
    await form.getByLabel('pipeline').check();
    await assertAccessible();
    await form.getByRole('button', { name: 'Create' }).click();
    const shown = page.getByRole('dialog', { name: 'The new API key' });
    const key = (await shown.locator('pre').first().textContent())!;
    await server.call(200, 'GET /v1/policies', { key });
    expect(await shown.getByRole('button', { name: 'Done' }).isDisabled()).toBe(true);
    await page.keyboard.press('Escape');
    await assertAccessible();
    await shown.getByLabel('I stored it').check();
    await shown.getByRole('button', { name: 'Done' }).click();
    await shown.waitFor({ state: 'detached' });
    expect(await page.content()).not.toContain(key);
    const row = page.getByRole('row').filter({ hasText: 'Pipeline' });
    await row.getByRole('button', { name: 'Revoke' }).click();
    await page.getByRole('dialog').getByText('Its pipeline can change and read nothing any more.').waitFor();
    await page.getByRole('button', { name: 'Revoke the key' }).click();
    await row.waitFor({ state: 'detached' });
    await server.call(401, 'GET /v1/policies', { key });
  });

  test('an agent key decides with the command that is shown beside it', async () => {
    const tenant = await server.tenant();
    const { page, open, assertAccessible } = await browser.visitor(await tenant.person('admin'));
    await open('/keys?kind=agents');
    await page.getByRole('heading', { name: 'No agent key yet' }).waitFor();
    await page.getByRole('button', { name: 'New agent key' }).first().click();
    await page.getByRole('textbox', { name: 'Agent', exact: true }).fill('support-bot-1');
    await page.getByRole('textbox', { name: 'Role', exact: true }).fill('support');
    await page.getByRole('button', { name: 'Create' }).click();
    const shown = page.getByRole('dialog', { name: 'The new agent key' });
    const key = (await shown.locator('pre').first().textContent())!;
    expect(await shown.locator('pre').nth(1).textContent()).toContain(`X-Svc-Tenant: ${tenant.id}`);
    const headers = { 'x-svc-tenant': tenant.id };
    await server.call(200, 'POST /v1/evaluate', { key, headers }, { action_type: 'tool_call', tool_name: 'read' });
    await assertAccessible();
  });

  test('the fleet shows which proxy fell silent', async () => {
    const tenant = await server.tenant();
    const { page, open, assertAccessible } = await browser.visitor(await tenant.person('viewer'));
    await open('/proxies');
    await page.getByText('npm run proxy').waitFor();
    await assertAccessible();
    const proxy = await tenant.key('proxy');
    const beat = (proxy_id: string) =>
      server.call(200, 'POST /v1/proxies/heartbeat', proxy, { proxy_id, bundle_hash: 'sha256:1', bundle_seq: 4 });
    await beat('edge-1');
    server.clock.advance(600_000);
    await beat('edge-2');
    await open('/proxies');
    await page.getByRole('row').filter({ hasText: 'edge-1' }).getByText('silent').waitFor();
    await page.getByRole('row').filter({ hasText: 'edge-2' }).getByText('alive').waitFor();
    await page.getByRole('row').filter({ hasText: 'edge-2' }).getByText('not known here').waitFor();
    const { headers } = await server.call(200, 'GET /v1/policies/bundle', proxy);
    await server.call(200, 'POST /v1/proxies/heartbeat', proxy, {
      proxy_id: 'edge-2',
      bundle_hash: headers.get('x-svc-bundle-hash'),
      bundle_seq: Number(headers.get('x-svc-bundle-seq')),
    });
    // the list asks again by itself
    await page
      .getByRole('row')
      .filter({ hasText: 'edge-2' })
      .getByText(/number 1 built/)
      .waitFor();
    await assertAccessible();
  });

  test('settings are changed by admins, and read by everyone else', async () => {
    const tenant = await server.tenant();
    const { page, open, assertAccessible, expectFault } = await browser.visitor(await tenant.person('admin'));
    await open('/settings');
    await assertAccessible();
    await page.getByLabel('A version is enforced only after somebody else approved it').click();
    await page.getByText('Saved').first().waitFor();
    await page.getByLabel('Days that inputs of decisions are kept').fill('7');
    await page.getByRole('button', { name: 'Save' }).first().click();
    await page.getByLabel('That write, one a line').fill('deploy\nread');
    expectFault(/400/);
    await page.getByRole('button', { name: 'Save' }).last().click();
    await page.getByRole('alert').getByText('already something else').first().waitFor();
    await page.getByLabel('That write, one a line').fill('deploy');
    await page.getByRole('button', { name: 'Save' }).last().click();
    await expect
      .poll(async () => (await server.call(200, 'GET /v1/settings', tenant.admin)).body)
      .toMatchObject({
        approval_required: true,
        input_retention_days: 7,
        action_types: { read: [], write: ['deploy'] },
      });

    const reader = await browser.visitor(await tenant.person('viewer'));
    await reader.open('/settings');
    expect(await reader.page.getByLabel('Days that inputs').isDisabled()).toBe(true);
    await reader.assertAccessible();
  });
});
