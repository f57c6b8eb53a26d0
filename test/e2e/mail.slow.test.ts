import { afterAll, beforeAll, expect, test } from 'vitest';
import { OPERATOR } from '../../server/domain/audit.ts';
import { describeInBrowser, look, useBrowser } from '../helpers/browser.ts';
import { useServer } from '../helpers/server.ts';
import { type MailServer, startMailServer } from '../helpers/smtp.ts';

let smtp: MailServer;
beforeAll(async () => {
  smtp = await startMailServer();
});
afterAll(() => smtp.close());
const server = useServer(
  {
    get SMTP_URL() {
      return smtp.url;
    },
  },
  { browsed: true },
);
const silent = useServer({}, { browsed: true, shared: true });

describeInBrowser('mail about what waits', () => {
  const browser = useBrowser(() => server.url);
  const elsewhere = useBrowser(() => silent.url);

  test('is chosen on one’s own page, and its link opens the vote without casting it', async () => {
    const tenant = await server.tenant();
    const proxy = await tenant.key('proxy');
    const userId = await tenant.member({ email: 'lin@meridian.test', name: 'Lin', roles: ['approver'] });
    const visitor = await browser.visitor(await tenant.enter(userId));
    const { page, open } = visitor;
    await open('/account');
    const mail = page.getByRole('region', { name: 'Mail' });
    await mail.getByLabel('How often').selectOption('daily');
    await mail.getByLabel('At', { exact: true }).selectOption('09:00 UTC');
    await mail.getByLabel('Policies that need my review').uncheck();
    await mail.getByRole('button', { name: 'Save' }).click();
    await page.getByText('Saved').waitFor();
    await page.reload();
    await expect.poll(() => mail.getByLabel('At', { exact: true }).inputValue()).toBe('9');
    expect(await mail.getByLabel('Policies that need my review').isChecked()).toBe(false);
    await mail.getByLabel('How often').selectOption('each');
    await mail.getByText('At most 10 in an hour').waitFor();
    await visitor.assertAccessible();
    await mail.getByRole('button', { name: 'Save' }).click();
    await page.getByText('Saved').waitFor();

    const { body } = await server.call<{ id: string }>(201, 'POST /v1/escrow', proxy, {
      ...{
        agent_role: 'clerk',
        agent_id: 'bot',
        action_type: 'tool_call',
        tool_name: 'pay',
        action_summary: 'as agreed',
      },
      ...{ action_hash: `sha256:${'a'.repeat(64)}`, hold_type: 'single', ttl_seconds: 3600 },
    });
    await expect.poll(() => smtp.received.length).toBe(1);
    const link = /^(http\S+vote=approve\S+)\r$/m.exec(smtp.received[0]!.text)![1]!;
    expect(link).toBe(`${server.origin}/approvals/${body.id}?vote=approve&tenant=${tenant.id}`);

    // in a browser where the same person is signed in to another tenant
    const other = await server.tenant();
    const elsewhere = await other.member({ email: 'lin@meridian.test', name: 'Lin', roles: ['approver'] });
    const there = await browser.visitor(await other.enter(elsewhere));
    await there.page.goto(link);
    await there.page.getByRole('heading', { name: 'This link is for another organization' }).waitFor();
    await there.assertAccessible();
    await look(there.page, 'other-organization');
    // an address of somebody's making shows no text of theirs there, and what is of one's own organization opens
    await there.open(`/other-organization?next=${encodeURIComponent('/?tenant=Your account is locked')}`);
    await there.page.waitForURL(`${server.url}/`);
    await there.open(`/other-organization?next=${encodeURIComponent(`/account?tenant=${other.id}`)}`);
    await there.page.waitForURL(`${server.url}/account`);
    await there.page.goto(link);
    await there.page.getByText('Sign in to that organization to open it').waitFor();
    await there.page.getByRole('link', { name: 'Sign in there' }).click();
    await there.page.getByRole('button', { name: 'Email me a sign-in link' }).waitFor();
    const token = await server.core.links.create(tenant.id, userId, 600, { actor: OPERATOR });
    await there.page.goto(`${server.origin}/auth/magic-link/verify?token=${token}`);
    await there.page.getByRole('button', { name: 'Sign in as lin@meridian.test' }).click();
    await there.page.getByText('Approve is preselected').waitFor();
    expect(there.page.url()).toBe(`${server.origin}/approvals/${body.id}?vote=approve`);

    await page.goto(link);
    await page.getByText('Approve is preselected').waitFor();
    const read = async () =>
      (await server.call<{ status: string; votes: unknown[] }>(200, `GET /v1/escrow/${body.id}`, tenant.admin)).body;
    expect(await read()).toMatchObject({ status: 'held', votes: [] });
    await page.getByRole('button', { name: 'Approve' }).click();
    await page.getByRole('dialog').getByRole('button', { name: 'Approve' }).click();
    await page.getByText('You voted to approve').waitFor();
    expect(await read()).toMatchObject({ status: 'released' });
  });

  test('is said to be off where there is no mail server, on a narrow screen too', async () => {
    const tenant = await silent.tenant();
    const visitor = await elsewhere.visitor(await tenant.person('viewer'), { width: 390, height: 844 });
    await visitor.open('/account');
    const mail = visitor.page.getByRole('region', { name: 'Mail' });
    await mail.getByText('This server sends no such mail').waitFor();
    await mail.getByText('Only approvers are asked to vote and review').waitFor();
    await visitor.assertAccessible();
  });
});
