import { expect, test } from 'vitest';
import { deploy, GUARD } from '../helpers/api.ts';
import { describeInBrowser, useBrowser, type Visitor } from '../helpers/browser.ts';
import { type TestTenant, useServer } from '../helpers/server.ts';

const server = useServer({}, { browsed: true });

/** The field of the editor, with its text replaced. */
async function write({ page }: Visitor, text: string): Promise<void> {
  await page.locator('.cm-content').click();
  await page.keyboard.press('Control+a');
  // a browser gives what is typed over a selection the look of what was there, and that by attributes
  await page.keyboard.press('Delete');
  await page.keyboard.insertText(text);
}

const evaluate = async (tenant: TestTenant, tool_name: string) => {
  const agent = await tenant.agent('bot', 'clerk');
  const { body } = await server.call<{ decision: string; escrow?: { id: string } }>(200, 'POST /v1/evaluate', agent, {
    action_type: 'tool_call',
    tool_name,
    action_summary: `${tool_name} the bill of November`,
    estimated_value: 1200,
    value_currency: 'EUR',
    risk_score: 0.6,
    arguments: { amount: 1200, to: 'ACME' },
  });
  return body;
};

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
    await page.getByRole('button', { name: 'Make the key' }).click();
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
    await page.getByText('refunds#no-deletion').waitFor();
    await visitor.assertAccessible();
  });
});

describeInBrowser('a policy', () => {
  const browser = useBrowser(() => server.url);

  test('is written, submitted, approved by someone else, and a decision changes', async () => {
    const tenant = await server.tenant();
    await server.call(200, 'PATCH /v1/settings', tenant.admin, { approval_required: true });
    const author = await browser.visitor(await tenant.person('author'));
    const approver = await browser.visitor(await tenant.person('approver'));
    await approver.open('/review');
    await approver.page.getByRole('heading', { name: 'Nothing waits for review' }).waitFor();
    expect(await evaluate(tenant, 'read')).toMatchObject({ decision: 'deny' });

    const { page } = author;
    await author.open('/policies/new?template=blank');
    await page.getByLabel('Id').fill('reading');
    await write(author, '@reson("x")\npermit(principal, action, resource == Tool::"read");');
    await page.getByRole('button', { name: /did you mean @reason/ }).waitFor();
    expect(await page.getByRole('button', { name: 'Create the draft' }).isDisabled()).toBe(true);
    await author.assertAccessible();
    await write(author, 'permit(principal in AgentRole::"clerk", action, resource == Tool::"read");');
    await page.getByText('no problems').waitFor();
    await page.getByRole('textbox', { name: 'Agent role' }).fill('clerk');
    await page.getByRole('textbox', { name: 'Tool' }).fill('read');
    await page.getByRole('button', { name: 'Try this request' }).click();
    await page.getByText('this text changes it').waitFor();
    await page.getByRole('button', { name: 'reading#0, line 1' }).waitFor();
    await page.getByRole('button', { name: 'Create the draft' }).click();
    await page.getByRole('button', { name: 'Submit for review' }).click();
    await page.getByLabel('Note for the reviewer').fill('clerks read');
    await page.getByRole('button', { name: 'Submit', exact: true }).click();
    await page.getByText('In review').first().waitFor();
    await author.assertAccessible();

    // their own version: not theirs to approve, and the page says why
    await page.getByRole('link', { name: 'Review', exact: true }).last().click();
    await page.getByText('the author of a version cannot approve it').waitFor();
    expect(await page.getByRole('button', { name: 'Approve version 1' }).isDisabled()).toBe(true);
    await author.assertAccessible();

    // it came to the approver's open page by itself
    await approver.page.getByRole('link', { name: 'reading' }).click();
    await approver.page.getByText('clerks read').waitFor();
    await approver.assertAccessible();
    await approver.page.getByRole('button', { name: 'Approve version 1' }).click();
    await approver.page.getByRole('dialog').getByRole('button', { name: 'Approve' }).click();
    await page.getByText('approved').first().waitFor();
    expect(await evaluate(tenant, 'read')).toMatchObject({ decision: 'allow' });
  });

  test('that changes under review says so, shows what changed, and is not approved unseen', async () => {
    const tenant = await server.tenant();
    await server.call(200, 'PATCH /v1/settings', tenant.admin, { approval_required: true });
    const author = await tenant.person('author');
    const write = (line: string, source: string) =>
      server.call(line.startsWith('PUT') ? 200 : 201, line, author, source);
    await write('POST /v1/policies', JSON.stringify({ id: 'guard', dsl_source: GUARD }));
    await server.call(200, 'POST /v1/policies/guard/submit', author, {});
    const approver = await browser.visitor(await tenant.person('approver'));
    await approver.open('/review/guard');
    await approver.page.getByRole('button', { name: 'Approve version 1' }).waitFor();

    await write('PUT /v1/policies/guard', JSON.stringify({ dsl_source: GUARD.replace('"read"', '"write"') }));
    await server.call(200, 'POST /v1/policies/guard/submit', author, {});
    await approver.page.getByText('Version 2 was written meanwhile', { exact: true }).waitFor();
    expect(await approver.page.getByRole('button', { name: 'Approve version 1' }).isDisabled()).toBe(true);
    await approver.assertAccessible();
    await approver.page.getByRole('button', { name: 'Review version 2' }).click();
    await approver.page.getByRole('button', { name: 'Approve version 2' }).waitFor();
  });

  test('is rolled back, revoked behind its typed name, and the glass is broken with a reason', async () => {
    const tenant = await server.tenant();
    await deploy(server, tenant.admin, 'guard', GUARD);
    await server.call(200, 'PUT /v1/policies/guard', tenant.admin, { dsl_source: GUARD.replace('"read"', '"write"') });
    const admin = await browser.visitor(await tenant.person('admin'));
    const { page } = admin;
    await admin.open('/policies/guard?tab=history');
    await admin.assertAccessible();
    await page.getByRole('button', { name: 'Roll back to it' }).click();
    await page.getByRole('dialog').getByText('This is what changes by it').waitFor();
    await page.getByRole('dialog').getByRole('button', { name: 'Roll back' }).click();
    await page.getByText('Version 3', { exact: true }).waitFor();

    await page.getByRole('button', { name: 'Revoke' }).click();
    const dialog = page.getByRole('dialog');
    await dialog.getByLabel('Reason').fill('no longer used');
    const sure = dialog.getByRole('button', { name: 'Revoke the policy' });
    await dialog.getByLabel('Type guard to confirm').fill('gard');
    expect(await sure.isDisabled()).toBe(true);
    await dialog.getByLabel('Type guard to confirm').fill('guard');
    await admin.assertAccessible();
    await sure.click();
    await page.getByText('not enforced').waitFor();
    expect(await evaluate(tenant, 'read')).toMatchObject({ decision: 'deny' });

    await server.call(200, 'PATCH /v1/settings', tenant.admin, { approval_required: true });
    await page.getByRole('button', { name: 'Break glass' }).click();
    await dialog.getByLabel('Reason').fill('incident 7');
    await dialog.getByLabel('Type guard to confirm').fill('guard');
    await dialog.getByRole('button', { name: 'Enforce version 3 now' }).click();
    await page.getByText('Deployed by breaking the glass').waitFor();
    expect(await evaluate(tenant, 'read')).toMatchObject({ decision: 'allow' });
  });
});

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
    const { escrow } = await evaluate(tenant, 'pay');
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
    const { escrow } = await evaluate(tenant, 'pay');
    const viewer = await browser.visitor(await tenant.person('viewer'));
    await viewer.open(`/approvals/${escrow!.id}`);
    await viewer.page.getByText('You cannot vote on this: this needs the role approver').waitFor();
    const approver = await browser.visitor(await tenant.person('approver'));
    await approver.open(`/approvals/${escrow!.id}?vote=deny`);
    await approver.page.getByRole('button', { name: 'Reject' }).click();
    await approver.page.getByRole('dialog').getByRole('button', { name: 'Reject' }).click();
    await viewer.page.getByText('Rejected', { exact: true }).waitFor();
  });
});

describeInBrowser('the stream of decisions', () => {
  const browser = useBrowser(() => server.url);

  test('shows each decision once, in order, waits while paused, and keeps its filter in the address', async () => {
    const tenant = await server.tenant();
    await deploy(server, tenant.admin, 'guard', GUARD);
    const visitor = await browser.visitor(await tenant.person('viewer'));
    const { page } = visitor;
    await visitor.open('/decisions');
    await page.getByRole('heading', { name: 'No decisions yet' }).waitFor();
    await evaluate(tenant, 'read');
    await page.getByRole('button', { name: 'read: Allowed, details' }).waitFor();
    await page.getByRole('button', { name: 'Pause' }).click();
    await evaluate(tenant, 'other');
    await page.getByRole('button', { name: 'Go on (1 new)' }).click();
    await page.getByRole('button', { name: /^other: Denied/ }).waitFor();
    await visitor.assertAccessible();

    await page.getByRole('textbox', { name: 'Tool' }).fill('other');
    await page.waitForURL(/tool_name=other/);
    await page.getByRole('button', { name: /^read:/ }).waitFor({ state: 'detached' });
    await page.reload();
    expect(await page.getByRole('textbox', { name: 'Tool' }).inputValue()).toBe('other');
    await page.getByRole('button', { name: /^other: Denied/ }).waitFor();
    expect(await page.getByRole('button', { name: /: Denied|: Allowed/ }).count()).toBe(1);
  });
});
