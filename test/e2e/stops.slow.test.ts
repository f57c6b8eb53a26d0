import { expect, test } from 'vitest';
import { describeInBrowser, look, useBrowser } from '../helpers/browser.ts';
import { useServer } from '../helpers/server.ts';
import { enforce } from '../proxy/support.ts';

const server = useServer({}, { browsed: true, shared: true });

describeInBrowser('stops', () => {
  const browser = useBrowser(() => server.url);

  test('an approver stops an agent from any page, everybody is told, and an admin lifts it', async () => {
    const tenant = await server.tenant();
    await enforce(server, tenant, 'desk', 'permit(principal in AgentRole::"clerk", action, resource);');
    const bot = await tenant.agent('bot-7', 'clerk');
    await server.call(200, 'POST /v1/proxies/heartbeat', await tenant.key('proxy'), { proxy_id: 'edge-1' });
    const ask = async () =>
      (
        await server.call<{ decision: string; deny_reason?: string }>(200, 'POST /v1/evaluate', bot, {
          action_type: 'tool_call',
          tool_name: 'send',
        })
      ).body;
    const viewer = await browser.visitor(await tenant.person('viewer'));
    await viewer.open('/decisions');
    await viewer.page.getByRole('heading', { name: 'Decisions', exact: true }).waitFor();
    expect(await viewer.page.getByRole('button', { name: 'Stop…' }).count()).toBe(0);

    const { page, open, assertAccessible } = await browser.visitor(await tenant.person('approver'));
    await open('/stops');
    await page.getByText('No stops yet').waitFor();
    await assertAccessible();
    await open('/audit');
    await page.getByRole('button', { name: 'Stop…' }).click();
    const dialog = page.getByRole('dialog');
    await dialog.getByLabel('Which').fill('bot');
    await page.locator('datalist option[value="bot-7"]').waitFor({ state: 'attached' });
    await dialog.getByLabel('Which').fill('bot-7');
    expect(await dialog.getByRole('button', { name: 'Stop' }).isDisabled()).toBe(true);
    // what a person types on two lines is one for the server
    await dialog.getByLabel('Why').fill('pays the\nwrong people');
    await assertAccessible();
    await look(page, 'stop-dialog');
    await dialog.getByRole('button', { name: 'Stop' }).click();
    await page.getByText('0 of 1 proxy applied it').waitFor();
    expect(await ask()).toMatchObject({ decision: 'deny', deny_reason: 'stopped: pays the wrong people' });

    // without a click of theirs
    const banner = viewer.page.getByRole('alert').filter({ hasText: 'A stop is in force' });
    await banner.getByText('agent bot-7').waitFor();
    await banner.getByRole('link', { name: 'See it' }).click();
    await viewer.page.getByRole('cell', { name: /agent bot-7/ }).waitFor();
    expect(await viewer.page.getByRole('button', { name: 'Lift' }).count()).toBe(0);
    await viewer.assertAccessible();
    await open('/stops');
    await page.getByText('0 of 1 applied it').waitFor();
    expect(await page.getByRole('button', { name: 'Lift' }).count()).toBe(0);
    await look(page, 'stops');

    // a link from a chat fills the form in, for who may stop, and stops nothing
    await open('/stops?stop=agent&id=%221e3%22');
    await dialog.getByLabel('Why').waitFor();
    expect(await dialog.getByLabel('Which').inputValue()).toBe('1e3');
    await dialog.getByLabel('Also cut what is under way').check();
    await dialog.getByLabel('Why').fill('asked from a chat');
    await assertAccessible();
    await look(page, 'stop-prepared');
    await dialog.getByLabel('How', { exact: true }).selectOption('freeze');
    expect(await dialog.getByLabel('Also cut what is under way').count()).toBe(0);
    await dialog.getByLabel('How', { exact: true }).selectOption('deny');
    await dialog.getByRole('button', { name: 'Cancel' }).click();
    await dialog.waitFor({ state: 'detached' });
    await viewer.open('/stops?stop=agent&id=bot-9');
    await viewer.page.getByText('0 of 1 applied it').waitFor();
    expect(await viewer.page.getByRole('dialog').count()).toBe(0);
    expect((await server.call<{ stops: unknown[] }>(200, 'GET /v1/stops', tenant.admin)).body.stops).toHaveLength(1);

    const admin = await browser.visitor(await tenant.person('admin'));
    await admin.open('/stops');
    await admin.page.getByRole('button', { name: 'Lift' }).click();
    await admin.page.getByLabel('Why').fill('it was repaired');
    await admin.page.getByRole('dialog').getByRole('button', { name: 'Lift' }).click();
    await admin.page.getByText('it was repaired').waitFor();
    await banner.waitFor({ state: 'detached' });
    expect((await ask()).decision).toBe('allow');
    await admin.page.setViewportSize({ width: 360, height: 740 });
    await admin.assertAccessible();
  });

  test('who stopped is told that another person must lift it, where the tenant requires approval', async () => {
    const tenant = await server.tenant();
    await tenant.set({ approval_required: true });
    const { page, open, expectFault } = await browser.visitor(await tenant.person('admin'));
    await open('/stops');
    await page.getByRole('button', { name: 'Stop…' }).first().click();
    const dialog = page.getByRole('dialog');
    await dialog.getByLabel('Which').fill('bot-7');
    await dialog.getByLabel('Why').fill('pays the wrong people');
    await dialog.getByRole('button', { name: 'Stop' }).click();
    await page.getByRole('button', { name: 'Lift' }).click();
    expect(await dialog.getByLabel('Why').getAttribute('maxlength')).toBe('300');
    await dialog.getByLabel('Why').fill('it was repaired');
    expectFault(/403/);
    await dialog.getByRole('button', { name: 'Lift' }).click();
    await page.getByText('the tenant requires another person than the one who stopped').waitFor();
    // it stays open, with what was typed
    expect(await dialog.getByLabel('Why').inputValue()).toBe('it was repaired');
    expect(
      (await server.call<{ stops: unknown[] }>(200, 'GET /v1/stops?in_force=true', tenant.admin)).body.stops,
    ).toHaveLength(1);
  });
});
