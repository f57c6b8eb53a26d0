import { writeFileSync } from 'node:fs';
import path from 'node:path';
import { expect, test } from 'vitest';
import { deploy, sql } from '../helpers/api.ts';
import { describeInBrowser, look, useBrowser } from '../helpers/browser.ts';
import { useServer } from '../helpers/server.ts';
import { temporaryDirectory } from '../proxy/support.ts';

const server = useServer({}, { browsed: true, shared: true });

describeInBrowser('lists', () => {
  const browser = useBrowser(() => server.url);

  test('an author makes a list, replaces it by a file of 50,000 values, and sees what changed', async () => {
    const tenant = await server.tenant();
    const { page, open, assertAccessible } = await browser.visitor(await tenant.person('author'));
    await open('/lists');
    await page.getByRole('heading', { name: 'No lists yet' }).waitFor();
    await assertAccessible();
    await page.getByRole('button', { name: 'New list' }).first().click();
    const form = page.getByRole('dialog', { name: 'New list' });
    await form.getByLabel('Name').fill('Known IBANs');
    await form.getByText('is not a valid name').waitFor();
    await form.getByLabel('Name').fill('known-ibans');
    await form.getByLabel('Values, one per line').fill('DE01\n  DE02 \n\nDE01\nx\u202ey');
    await form.getByText('3 values').waitFor();
    await assertAccessible();
    await form.getByRole('button', { name: 'Create the list' }).click();
    await page.getByRole('heading', { name: 'known-ibans' }).waitFor();
    // what cannot be seen is shown: an approver reads what the author wrote
    await page.getByText('⟦U+202E⟧').or(page.getByText('U+202E')).first().waitFor();
    await assertAccessible();

    const file = path.join(temporaryDirectory(), 'ibans.txt');
    const many = Array.from({ length: 50_000 }, (_, n) => `DE${String(n).padStart(30, '0')}`);
    writeFileSync(file, `\ufeff${many.join('\r\n')}\r\n`);
    await page.getByRole('button', { name: 'Replace the values' }).click();
    const replace = page.getByRole('dialog', { name: 'Replace the values of known-ibans' });
    expect(await replace.getByLabel('Values, one per line').inputValue()).toContain('DE01\nDE02');
    await replace.locator('input[type=file]').setInputFiles(file);
    await replace.getByText('50,000 values').first().waitFor();
    await replace.getByLabel('Comment').fill('all of them');
    await replace.getByRole('button', { name: 'Replace the values' }).click();
    await page.getByRole('heading', { name: '50,000 values of version 2' }).waitFor();
    await page.getByLabel('Value contains').fill('49999');
    await page.getByText(many.at(-1)!).waitFor();
    expect(await page.getByRole('list', { name: 'Values' }).getByRole('listitem').count()).toBe(1);
    await look(page, 'list');

    await deploy(
      server,
      tenant.admin,
      'pay',
      'permit(principal, action, resource) when { context.facts.hasTag("to in known-ibans") };',
    );
    await open('/lists/known-ibans?version=2');
    await page.getByRole('link', { name: 'pay' }).waitFor();
    expect(await page.getByRole('button', { name: 'Delete' }).isDisabled()).toBe(true);
    await page.getByLabel('Compare version 2 with').selectOption('1');
    await page.getByRole('heading', { name: '3 removed' }).waitFor();
    await page.getByRole('list', { name: 'Values removed' }).getByText('DE01').waitFor();
    await look(page, 'list-diff');
    await assertAccessible();
    const told = await sql<{ event_type: string; payload: Record<string, unknown> }>(
      server,
      `select event_type, payload from event_outbox where tenant_id = $1 and event_type like 'list.%' order by id`,
      [tenant.id],
    );
    expect(told.map(({ event_type, payload }) => [event_type, payload.list, payload.version, payload.count])).toEqual([
      ['list.changed', 'known-ibans', 1, 3],
      ['list.changed', 'known-ibans', 2, 50_000],
    ]);
  });

  test('with four eyes another person reads what changed, and approves it', async () => {
    const tenant = await server.tenant();
    await server.call(200, 'PUT /v1/lists/hotels', tenant.admin, { values: ['a', 'b'], version: 0 });
    await tenant.set({ approval_required: true });
    const author = await tenant.person('author', 'approver');
    await server.call(200, 'PUT /v1/lists/hotels', author, { values: ['a', 'c'], version: 1 });
    const one = await browser.visitor(author);
    await one.open('/lists/hotels');
    await one.page.getByText('Version 2 waits for approval').waitFor();
    expect(await one.page.getByRole('button', { name: 'Approve' }).isDisabled()).toBe(true);
    const two = await browser.visitor(await tenant.person('approver'));
    await two.open('/');
    await two.page.getByText('also to decide: 1 list').waitFor();
    await two.open('/review');
    const also = two.page.getByRole('region', { name: 'Also to decide' });
    await also.getByText('hotels, version 2 of a list: 1 added, 1 removed').waitFor();
    await two.assertAccessible();
    await look(two.page, 'review-also');
    await also.getByRole('link', { name: 'hotels' }).click();
    await two.page.getByText('Version 2 waits for approval').waitFor();
    await two.open('/lists');
    await two.page.getByText('2: waits for approval').waitFor();
    await look(two.page, 'lists');
    await two.page.getByRole('link', { name: 'hotels' }).click();
    await two.page.getByRole('button', { name: 'What changed' }).click();
    await two.page.getByRole('list', { name: 'Values added' }).getByText('c').waitFor();
    await two.assertAccessible();
    await look(two.page, 'list-waits');
    await two.page.getByRole('button', { name: 'Approve' }).click();
    await two.page.getByRole('dialog').getByRole('button', { name: 'Approve' }).click();
    await two.page.getByText('In use from now on').waitFor();
    await one.page.getByText('2: in use').first().waitFor();
  });

  test('an admin labels an agent after a second look, and goes to its decisions and holds', async () => {
    const tenant = await server.tenant();
    const { page, open, assertAccessible } = await browser.visitor(await tenant.person('admin'));
    await open('/agents');
    await page.getByRole('heading', { name: 'No agents yet' }).waitFor();
    const key = await tenant.agent('support-bot', 'support');
    await deploy(
      server,
      tenant.admin,
      'p',
      'permit(principal, action, resource); @escrow("single") @ttl("1h") forbid(principal, action, resource == Tool::"pay");',
    );
    await server.call(200, 'POST /v1/evaluate', key, { action_type: 'tool_call', tool_name: 'pay' });
    await tenant.agent('other-bot', 'sales');
    await open('/agents');
    const row = page.getByRole('row', { name: /support-bot/ });
    await row.getByText('support', { exact: true }).waitFor();
    expect(await page.getByRole('row', { name: /other-bot/ }).innerText()).toContain('never');
    await row.getByRole('button', { name: 'Labels of support-bot' }).click();
    const form = page.getByRole('dialog', { name: 'Labels of support-bot' });
    await form.getByLabel('Labels, separated by commas').fill('senior, eu');
    await form.getByRole('button', { name: 'Continue' }).click();
    await form.getByText('senior is added').waitFor();
    await assertAccessible();
    await look(page, 'agent-labels');
    await form.getByRole('button', { name: 'Set the labels' }).click();
    await page.getByText('Labels saved').waitFor();
    await row.getByText('senior').waitFor();
    await page.getByLabel('Label', { exact: true }).fill('senior');
    await page.getByRole('row', { name: /other-bot/ }).waitFor({ state: 'detached' });
    await assertAccessible();
    await look(page, 'agents');
    // its page: what it did, what it may do, and the stop with its name filled in
    await page.getByRole('link', { name: 'support-bot', exact: true }).click();
    await page.getByRole('heading', { level: 1, name: 'support-bot' }).waitFor();
    await page.getByRole('region', { name: 'What it did' }).getByRole('link', { name: 'pay', exact: true }).waitFor();
    await page.getByRole('region', { name: 'What it may do' }).getByText('p#1').first().waitFor();
    await page.getByRole('region', { name: 'Waiting for approval' }).getByRole('link', { name: /^pay/ }).waitFor();
    await assertAccessible();
    await look(page, 'agent');
    await page.getByRole('button', { name: 'Stop this agent…' }).click();
    await expect.poll(() => page.getByRole('dialog').getByLabel('Which').inputValue()).toBe('support-bot');
    await page.keyboard.press('Escape');
    await page.getByRole('dialog').waitFor({ state: 'detached' });
    await page.getByRole('region', { name: 'What it did' }).getByRole('link', { name: /Held/ }).click();
    await page.getByRole('heading', { level: 1, name: 'Decisions' }).waitFor();
    expect(new URL(page.url()).search).toMatch(/agent_id=support-bot.*decision=escrow/);
    await page.getByRole('button', { name: /pay: Held, details/ }).waitFor();
    // on the overview each tile, kind of decision and name leads on
    await open('/?last=7d');
    // what is far down is asked for when somebody comes near
    const denied = page.getByRole('region', { name: 'Most denied in 7 days' });
    await denied.scrollIntoViewIfNeeded();
    await denied.getByText('none').first().waitFor();
    const holds = page.getByRole('region', { name: 'Holds opened in 7 days' });
    await holds.scrollIntoViewIfNeeded();
    await holds.getByText('1 waiting').waitFor();
    const unused = page.getByRole('region', { name: /^Rules without a decision/ });
    await unused.scrollIntoViewIfNeeded();
    await unused.getByText('Each of the 2 rules matched a decision.').waitFor();
    await assertAccessible();
    await look(page, 'overview');
    await page.getByRole('link', { name: 'Pending approvals' }).click();
    await page.getByRole('heading', { level: 1, name: 'Approvals' }).waitFor();
    await open('/agents?label=senior');
    await page.getByRole('link', { name: 'Holds of support-bot' }).click();
    await page.getByText('support-bot').first().waitFor();
    expect(await page.getByLabel('Agent', { exact: true }).inputValue()).toBe('support-bot');
    await page.goBack();
    await page.getByRole('link', { name: 'Decisions of support-bot' }).click();
    await page.getByText('pay').first().waitFor();
  });
});
