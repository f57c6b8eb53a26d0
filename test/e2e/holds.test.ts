import { expect, test } from 'vitest';
import { deploy } from '../helpers/api.ts';
import { describeInBrowser, useBrowser } from '../helpers/browser.ts';
import { useServer } from '../helpers/server.ts';
import { evaluate } from './act.ts';

const server = useServer({}, { browsed: true });

describeInBrowser('a held action', () => {
  const browser = useBrowser(() => server.url);
  const PAY =
    '@escrow("multi_party") @approvals("2") @ttl("1h") @reason("two look at bills") permit(principal, action, resource == Tool::"pay");';

  test('appears by itself, two people vote, and it is released', async () => {
    const tenant = await server.tenant();
    await deploy(server, tenant.admin, 'bills', PAY);
    const first = await browser.visitor(await tenant.person('approver'));
    const second = await browser.visitor(await tenant.person('approver'), { width: 390, height: 844 });
    await first.open('/approvals');
    await first.page.getByRole('heading', { name: 'Nobody waits for you' }).waitFor();
    const { escrow } = await evaluate(server, tenant, 'pay');
    await first.page.getByRole('link', { name: 'pay the bill of November' }).click();
    await first.page.getByText('0 of 2').first().waitFor();
    await first.assertAccessible();

    // by the button of a message, on a phone: prepared, and still a person's own press
    await second.open(`/approvals/${escrow!.id}?vote=approve`);
    await second.page.getByText('Nothing is decided until you press it here').waitFor();
    await second.assertAccessible();
    await second.page.getByLabel('Reason').fill('matches the contract');
    await second.page.getByRole('button', { name: 'Approve' }).click();
    await second.page.getByRole('dialog').getByRole('button', { name: 'Approve' }).click();
    await second.page.getByText('You voted to approve').waitFor();

    // the other's vote shows at once
    await first.page.getByText('matches the contract').waitFor();
    await first.page.getByText('1 more approval is needed').waitFor();
    await first.page.getByLabel('Reason').fill('seen');
    await first.page.getByRole('button', { name: 'Approve' }).click();
    await first.page.getByRole('dialog').getByRole('button', { name: 'Approve' }).click();
    await first.page.getByText('Released', { exact: true }).waitFor();
    await second.page.getByText('Released', { exact: true }).waitFor();
    await first.assertAccessible();
    const { body } = await server.call(200, `GET /v1/escrow/${escrow!.id}`, tenant.admin);
    expect(body).toMatchObject({ status: 'released', current_approvals: 2 });
  });

  test('is rejected by one vote, and who may not vote is told why', async () => {
    const tenant = await server.tenant();
    await deploy(server, tenant.admin, 'bills', PAY);
    const { escrow } = await evaluate(server, tenant, 'pay');
    const viewer = await browser.visitor(await tenant.person('viewer'));
    await viewer.open(`/approvals/${escrow!.id}`);
    await viewer.page.getByText('You cannot vote on this: this needs the role approver').waitFor();
    const approver = await browser.visitor(await tenant.person('approver'));
    await approver.open(`/approvals/${escrow!.id}?vote=deny`);
    await approver.page.getByRole('button', { name: 'Reject' }).click();
    await approver.page.getByRole('dialog').getByRole('button', { name: 'Reject' }).click();
    await viewer.page.getByText('Rejected', { exact: true }).waitFor();
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
    const viewer = await browser.visitor(await tenant.person('viewer'));
    const { page } = viewer;
    const rows = page.getByRole('table', { name: /soonest/ }).getByRole('row');
    await viewer.open('/');
    await page.getByRole('link', { name: 'ends in 10 minutes' }).waitFor();
    await viewer.open('/approvals');
    await rows.nth(1).getByText('ends in 10 minutes').waitFor();
    await page.getByText('50 of 52').waitFor();
    await page.getByRole('button', { name: 'Those that end later' }).click();
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
});
