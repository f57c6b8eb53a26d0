import type { Locator } from 'playwright-core';
import { expect, test } from 'vitest';
import { deploy } from '../helpers/api.ts';
import { describeInBrowser, look, useBrowser } from '../helpers/browser.ts';
import { useServer } from '../helpers/server.ts';
import { evaluate } from './act.ts';

const server = useServer({}, { browsed: true, shared: true });

describeInBrowser('a held action', () => {
  const browser = useBrowser(() => server.url);
  const PAY =
    '@escrow("multi_party") @approvals("2") @ttl("1h") @reason("two look at bills") permit(principal, action, resource == Tool::"pay");';
  const PAY_OF_ONE = 'permit(principal, action, resource == Tool::"pay");';

  test('appears by itself, two people vote, and it is released', async () => {
    const tenant = await server.tenant();
    await deploy(server, tenant.admin, 'bills', PAY);
    const first = await browser.visitor(await tenant.person('approver'));
    const second = await browser.visitor(await tenant.person('approver'), { width: 390, height: 844 });
    await first.open('/approvals');
    await first.page.getByRole('heading', { name: 'No held actions' }).waitFor();
    const long = { action_summary: 'pay the bill of November '.repeat(20) };
    const { escrow } = await evaluate(server, tenant, 'pay', long);
    await first.page.getByRole('link', { name: 'pay (tool_call)' }).click();
    // what the action is stands above; what the agent wrote is marked as its words
    const said = first.page.getByRole('region', { name: 'The agent says' });
    await said.getByText('pay the bill of November').waitFor();
    await first.page.getByRole('region', { name: 'arguments' }).getByText('ACME').waitFor();
    await first.page.getByText('0 of 2').first().waitFor();
    await first.assertAccessible();

    // by the button of a message, on a phone: prepared, and still a person's own press
    await second.open(`/approvals/${escrow!.id}?vote=approve`);
    await second.page.getByText('Nothing is decided until you confirm it here').waitFor();
    await second.assertAccessible();
    // on paper there is nothing to set aside, and times are exact
    const aside = second.page.getByText('Not now: set aside');
    await aside.waitFor();
    await second.page.emulateMedia({ media: 'print' });
    await aside.waitFor({ state: 'hidden' });
    const times = `[...document.querySelectorAll('main time')].map((time) => [time.innerText, getComputedStyle(time, '::after').content])`;
    const printed = (await second.page.evaluate(times)) as [string, string][];
    expect(printed.length).toBeGreaterThan(0);
    for (const time of printed) expect(time).toEqual(['', expect.stringMatching(/\d\d:\d\d:\d\d/)]);
    await second.page.emulateMedia({ media: 'screen' });
    // a link for a colleague prepares no vote for them
    await second.context.grantPermissions(['clipboard-read', 'clipboard-write']);
    await second.page.getByRole('button', { name: 'Copy link' }).click();
    await second.page.getByRole('button', { name: 'Copied' }).waitFor();
    expect(await second.page.evaluate('navigator.clipboard.readText()')).toBe(`${server.url}/approvals/${escrow!.id}`);
    await second.page.getByRole('button', { name: 'Approve' }).click();
    await second.page.getByRole('dialog').getByText('does not release the action yet').waitFor();
    // a long reason covers nothing of what it is about
    const reason = second.page.getByRole('dialog').getByLabel('Reason');
    await second.page.setViewportSize({ width: 1280, height: 640 });
    await reason.fill('a reason that goes on and on '.repeat(60));
    const asked = second.page.getByRole('dialog').getByText('does not release the action yet');
    await asked.scrollIntoViewIfNeeded();
    await asked.hover();
    await look(second.page, 'long-reason');
    await second.page.setViewportSize({ width: 1280, height: 800 });
    await reason.fill('matches the contract');
    await second.page.getByRole('dialog').getByRole('button', { name: 'Approve' }).click();
    await second.page.getByText('You voted to approve').waitFor();

    // the other's vote shows at once
    await first.page.getByText('matches the contract').waitFor();
    await first.page.getByText('1 more approval is needed').waitFor();
    await first.page.getByRole('button', { name: 'Approve' }).click();
    await first.page.getByRole('dialog').getByText('This releases the action').waitFor();
    await first.page.getByRole('dialog').getByLabel('Reason').fill('seen');
    await first.page.getByRole('dialog').getByRole('button', { name: 'Approve' }).click();
    await first.page.getByText('Released', { exact: true }).waitFor();
    await second.page.getByText('Released', { exact: true }).waitFor();
    await first.assertAccessible();
    // on paper nothing can be opened, so nothing is cut off
    await second.page.emulateMedia({ media: 'print' });
    const words = second.page.getByRole('blockquote').locator('.some-lines');
    expect(await words.evaluate(({ scrollHeight, clientHeight }) => scrollHeight - clientHeight)).toBeLessThan(2);
    await second.page.emulateMedia({ media: 'screen' });
    const { body } = await server.call(200, `GET /v1/escrow/${escrow!.id}`, tenant.admin);
    expect(body).toMatchObject({ status: 'released', current_approvals: 2 });
  });

  test('that waits for a condition is released by the report of an approver, who cannot approve it as well', async () => {
    const tenant = await server.tenant();
    const source =
      '@escrow("conditional") @condition("kyc") @ttl("1h") permit(principal, action, resource == Tool::"close");';
    const both = `@escrow("conditional") @approvals("1") @condition("kyc") @ttl("1h") ${PAY_OF_ONE}`;
    await deploy(server, tenant.admin, 'kyc', `${source}\n${both}`);
    const visitor = await browser.visitor(await tenant.person('approver'));
    const { page, open } = visitor;
    const conditions = page.getByRole('list', { name: 'Conditions' });
    const dialog = page.getByRole('dialog');
    const report = async (says: string) => {
      await conditions.getByRole('button', { name: 'Report as met' }).click();
      await dialog.getByText(says).waitFor();
      expect(await dialog.getByRole('button', { name: 'Report as met' }).isDisabled()).toBe(true);
      await dialog.getByLabel('Evidence').fill('Called the bank: it is them.');
      await visitor.assertAccessible();
      await dialog.getByRole('button', { name: 'Report as met' }).click();
      await conditions.getByText('Called the bank: it is them.').waitFor();
      await conditions.getByText(/^Reported as met by /).waitFor();
    };
    const { escrow: closing } = await evaluate(server, tenant, 'close');
    await open(`/approvals/${closing!.id}`);
    await page.getByText('Approve: This changes nothing yet').waitFor();
    await page.getByText('a report on the condition “kyc”').first().waitFor();
    await report('This releases the action');
    await page.getByText('Released', { exact: true }).waitFor();

    const { escrow: paying } = await evaluate(server, tenant, 'pay');
    await open(`/approvals/${paying!.id}`);
    await page.getByText('Approve: This counts').waitFor();
    await report('Still missing: 1 more approval');
    await page.getByText('so another person must approve it').waitFor();
    expect(await page.getByRole('button', { name: 'Approve' }).isDisabled()).toBe(true);
    expect(await page.getByRole('button', { name: 'Reject' }).isDisabled()).toBe(false);
    await visitor.assertAccessible();
    await look(page, 'hold-reported');
    // what was a mistake is taken back, and then the approval is free
    await conditions.getByRole('button', { name: 'Report as not met' }).click();
    await dialog.getByLabel('Evidence').fill('It was another person.');
    await dialog.getByRole('button', { name: 'Report as not met' }).click();
    await conditions.getByText(/^Reported as not met by /).waitFor();
    await page.getByText('Approve: This counts').waitFor();
    await page.getByRole('button', { name: 'Approve' }).click();
    await dialog.getByRole('button', { name: 'Approve' }).click();
    await page.getByText('another person or system reports its conditions').waitFor();
    expect(await conditions.getByRole('button', { name: 'Report as met' }).count()).toBe(0);
  });

  test('whose number is reached says which seat of its quorum is missing', async () => {
    const tenant = await server.tenant();
    const quorum = PAY.replace('@approvals("2")', '@quorum("finance:1,security:1")');
    await deploy(server, tenant.admin, 'bills', quorum);
    const [finance, other, third] = await Promise.all([1, 2, 3].map(() => tenant.person('approver')));
    await tenant.set({ approver_groups: { finance: [finance!.userId], security: [third!.userId] } });
    const { escrow } = await evaluate(server, tenant, 'pay');
    const vote = (who: typeof finance) =>
      server.call<{ missing_seats: unknown[] }>(200, `POST /v1/escrow/${escrow!.id}/vote`, who!, {
        decision: 'approve',
        reason: '',
      });
    await vote(finance);
    expect((await vote(other)).body.missing_seats).toEqual([{ group: 'security', count: 1 }]);
    const visitor = await browser.visitor(third!);
    await visitor.open(`/approvals/${escrow!.id}`);
    await visitor.page.getByText('Enough people approved. Still missing: 1 approval from security.').waitFor();
    await visitor.assertAccessible();
  });

  test('is rejected by one vote, and who may not vote is told why', async () => {
    const tenant = await server.tenant();
    await deploy(server, tenant.admin, 'bills', PAY);
    const { escrow } = await evaluate(server, tenant, 'pay');
    const viewer = await browser.visitor(await tenant.person('viewer'));
    await viewer.open(`/approvals/${escrow!.id}`);
    await viewer.page.getByText('You cannot vote on this hold: this requires the approver role').waitFor();
    const approver = await browser.visitor(await tenant.person('approver'));
    await approver.open(`/approvals/${escrow!.id}?vote=deny`);
    await approver.page.getByRole('button', { name: 'Reject' }).click();
    await approver.page.getByRole('dialog').getByRole('button', { name: 'Reject' }).click();
    await viewer.page.getByText('Rejected', { exact: true }).waitFor();

    // an admin withdraws one, which is no vote
    const other = await evaluate(server, tenant, 'pay');
    const { page, open } = await browser.visitor(await tenant.person('admin'));
    await open(`/approvals/${other.escrow!.id}`);
    await page.getByRole('button', { name: 'Cancel the hold' }).click();
    await page.getByRole('dialog').getByLabel('Reason').fill('paid by hand');
    await page.getByRole('dialog').getByRole('button', { name: 'Cancel hold' }).click();
    await page.getByText('Cancelled', { exact: true }).first().waitFor();
    const { body } = await server.call(200, `GET /v1/escrow/${other.escrow!.id}`, tenant.admin);
    expect(body).toMatchObject({ status: 'cancelled' });
  });

  test('that ends soonest is on top of however many, and the others are on the pages after', async () => {
    const tenant = await server.tenant();
    const proxy = await tenant.key('proxy');
    const hold = (minutes: number, agent_role = 'clerk') =>
      server.call(201, 'POST /v1/escrow', proxy, {
        agent_role,
        agent_id: 'bot',
        action_type: 'api_call',
        action_summary: `ends in ${minutes} minutes`,
        action_hash: `sha256:${'a'.repeat(64)}`,
        hold_type: 'single',
        ttl_seconds: minutes * 60,
      });
    // the newest are those that end last
    for (let minutes = 10; minutes <= 61; minutes++) await hold(minutes);
    // a window in which the list is a table by itself
    const viewer = await browser.visitor(await tenant.person('viewer'), { width: 1100, height: 900 });
    const { page } = viewer;
    const rows = page.getByRole('table', { name: /soonest/ }).getByRole('row');
    await viewer.open('/');
    await page.getByText('ends in 10 minutes').waitFor();
    await viewer.open('/approvals');
    await rows.nth(1).getByText('ends in 10 minutes').waitFor();
    await page.getByText('50 of 52').waitFor();
    await page.getByRole('button', { name: 'Holds that expire later' }).click();
    await rows.nth(52).getByText('ends in 61 minutes').waitFor();
    await viewer.assertAccessible();
    // one that ends sooner comes to the top by itself, and the pages stay open
    await hold(5, 'teller');
    await rows.nth(1).getByText('ends in 5 minutes').waitFor();
    await rows.nth(53).getByText('ends in 61 minutes').waitFor();
    await page.getByLabel('Role', { exact: true }).fill('nobody');
    await page.getByRole('button', { name: 'Clear the filters' }).click();
    await rows.nth(50).waitFor();
  });

  test('is decided with the keyboard alone', async () => {
    const tenant = await server.tenant();
    await deploy(server, tenant.admin, 'bills', PAY.replace('"multi_party") @approvals("2")', '"single")'));
    await evaluate(server, tenant, 'pay');
    const { page, open } = await browser.visitor(await tenant.person('approver'), { width: 1100, height: 900 });
    await open('/approvals');
    const link = page.getByRole('link', { name: 'pay (tool_call)' });
    await link.waitFor();
    const { keyboard } = page;
    const has = (it: Locator) => it.evaluate((element) => element.matches(':focus'));
    /** Goes on to it by Tab; every stop on the way is seen. */
    const tabTo = async (it: Locator) => {
      for (let stops = 0; stops < 40; stops++) {
        await keyboard.press('Tab');
        expect(await page.evaluate(VISIBLE_FOCUS), await page.evaluate('document.activeElement.outerHTML')).toBe(true);
        if (await has(it)) return;
      }
      throw new Error(`the keyboard does not come to ${it}`);
    };

    // past the navigation
    await keyboard.press('Tab');
    expect(await has(page.getByRole('link', { name: 'Skip to the content' }))).toBe(true);
    expect(await page.evaluate(VISIBLE_FOCUS)).toBe(true);
    await keyboard.press('Enter');
    await tabTo(link);
    await keyboard.press('Enter');
    await page.getByRole('heading', { name: 'pay (tool_call)' }).waitFor();
    expect(await has(page.getByRole('main'))).toBe(true);

    const approve = page.getByRole('button', { name: 'Approve' });
    await tabTo(approve);
    await keyboard.press('Enter');
    const question = page.getByRole('dialog', { name: 'Approve this action?' });
    await question.waitFor();
    // a second press of the same key decides nothing; the dialog gives the focus back
    await expect.poll(() => has(question.getByLabel('Reason'))).toBe(true);
    await keyboard.press('Enter');
    await keyboard.press('Escape');
    await question.waitFor({ state: 'detached' });
    await expect.poll(() => has(approve)).toBe(true);
    await keyboard.press('Enter');
    await expect.poll(() => has(question.getByLabel('Reason'))).toBe(true);
    await keyboard.type('seen');
    await tabTo(question.getByRole('button', { name: 'Approve' }));
    await keyboard.press('Enter');
    await page.getByText('Released', { exact: true }).waitFor();
    await expect.poll(() => has(page.getByRole('status').filter({ hasText: 'You voted to approve' }))).toBe(true);
  });
});

/** Whether what has the focus shows it: within the window, by an outline or by a border of its own color. */
const VISIBLE_FOCUS = `(() => {
  const it = document.activeElement;
  const box = it.getBoundingClientRect();
  if (it === document.body || box.width === 0 || box.right <= 0 || box.bottom <= 0) return false;
  const style = getComputedStyle(it);
  if (style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 1) return true;
  const border = () => {
    for (const fading of it.getAnimations()) fading.finish();
    return getComputedStyle(it).borderColor;
  };
  const lit = border();
  it.blur();
  const unlit = border();
  it.focus();
  return lit !== unlit;
})()`;
