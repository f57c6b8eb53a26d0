import type { Locator } from 'playwright-core';
import { expect, test } from 'vitest';
import { sql } from '../helpers/api.ts';
import { describeInBrowser, useBrowser } from '../helpers/browser.ts';
import { useServer } from '../helpers/server.ts';

const server = useServer({}, { browsed: true, shared: true });

describeInBrowser('a new tenant', () => {
  const browser = useBrowser(() => server.url);

  test('comes from nothing to a denied, an allowed, a held and an approved call in eight clicks', async () => {
    const tenant = await server.tenant();
    const visitor = await browser.visitor(await tenant.person('admin'));
    const { page } = visitor;
    let clicks = 0;
    const click = async (what: Locator) => {
      await what.click();
      clicks++;
    };
    await visitor.open('/');
    await click(page.getByRole('link', { name: /first governed call/ }));
    await visitor.assertAccessible();
    await click(page.getByRole('button', { name: /Refunds with a limit/ }));
    await click(page.getByRole('button', { name: 'Enforce this policy' }));
    const calls = page.getByRole('list', { name: 'Calls to send' });
    await click(page.getByRole('button', { name: 'Send: One that it denies' }));
    await calls.getByText('accounts are never deleted by agents').waitFor();
    await click(page.getByRole('button', { name: 'Send: One that it allows' }));
    await calls.getByText('Allowed').waitFor();
    await click(page.getByRole('button', { name: 'Send: One that waits for a person' }));
    await calls.getByText('refunds over 50 need a person').waitFor();
    await visitor.assertAccessible();
    // a second person who is sent the link sees what it is
    const [hold] = await sql<{ id: string }>(server, 'select id from escrow_hold where tenant_id = $1', [tenant.id]);
    const second = await browser.visitor(await tenant.person('approver'));
    await second.open(`/approvals/${hold!.id}`);
    await second.page.getByText('This is practice').waitFor();
    await second.page.getByRole('link', { name: 'What this agent did' }).click();
    await second.page.getByText('People who asked in place of an agent').waitFor();
    await second.page
      .getByRole('region', { name: 'Waiting for approval' })
      .getByRole('link', { name: /refund/ })
      .waitFor();
    await second.assertAccessible();
    await click(page.getByRole('button', { name: 'Approve it' }));
    await click(page.getByRole('button', { name: 'Send it again: it is approved' }));
    const practiced = page.getByRole('listitem').filter({ hasText: '2. Send calls from here' });
    await practiced.getByRole('img', { name: 'done' }).waitFor();
    expect(clicks).toBe(8);
    // who comes back finds what was done
    await visitor.open('/start');
    await practiced.getByRole('img', { name: 'done' }).waitFor();
    await calls.getByText('Denied').waitFor();
    expect(await calls.getByText('Allowed').count()).toBe(2);

    // and all of it is recorded as what it was
    const records = await sql<{ decision: string; agent: string }>(
      server,
      `select line::json->>'decision' as decision, line::json->>'agent_id' as agent from forensic_record
       where tenant_id = $1 and seq > 1 order by seq`,
      [tenant.id],
    );
    expect(records.map(({ decision }) => decision)).toEqual(['deny', 'allow', 'escrow', 'allow']);
    expect(new Set(records.map(({ agent }) => agent))).toEqual(new Set(['~practice']));

    // what is shown to be copied for a real agent is what is run
    visitor.expectFault(/400|422/);
    await page.getByLabel('Agent name').fill('my bot');
    await page.getByRole('button', { name: 'Create the key' }).click();
    await page
      .getByRole('alert')
      .getByText(/letters, digits/)
      .waitFor();
    expect(await page.getByLabel('Agent name').getAttribute('aria-invalid')).toBe('true');
    await page.getByLabel('Agent name').fill('first-agent');
    await page.getByRole('button', { name: 'Create the key' }).click();
    const call = await page.getByRole('region', { name: 'a call that is denied' }).innerText();
    await visitor.assertAccessible();
    const [, url] = /curl -sS (\S+)/.exec(call)!;
    const headers = Object.fromEntries(
      [...call.matchAll(/-H '([^:]+): ([^']+)'/g)].map(([, name, value]) => [name, value]),
    );
    const body = /-d '([^']+)'/.exec(call)![1]!;
    const answer = await fetch(url!, { method: 'POST', headers: headers as Record<string, string>, body });
    expect(await answer.json()).toMatchObject({ decision: 'deny' });
    await page.getByText('That is all there is to it').waitFor();
    const arrived = page.getByRole('list', { name: 'Decisions that arrived' });
    await arrived.getByText('Denied').waitFor();
    await arrived.getByRole('link', { name: 'delete_account' }).click();
    await page.getByText('refunds#no-deletion').first().waitFor();
    await visitor.assertAccessible();
  });
});
