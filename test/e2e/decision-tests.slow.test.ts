import { expect, test } from 'vitest';
import { sql } from '../helpers/api.ts';
import { describeInBrowser, useBrowser, type Visitor } from '../helpers/browser.ts';
import { type Credential, type TestTenant, useServer } from '../helpers/server.ts';
import { write } from './act.ts';

const server = useServer({}, { browsed: true, shared: true });

const refunds = (
  limit: string,
) => `@id("small") permit(principal in AgentRole::"support", action, resource == Tool::"refund")
when { context.num.hasTag("amount") && context.num.getTag("amount").lessThanOrEqual(decimal("${limit}")) };

@id("large") @escrow("single") @reason("refunds over ${limit} need a person")
permit(principal in AgentRole::"support", action, resource == Tool::"refund")
when { context.num.hasTag("amount") && context.num.getTag("amount").greaterThan(decimal("${limit}")) };
`;
const suite = (sixty: 'escrow' | 'allow') => `# what support may refund
defaults: { agent_role: support, action_type: tool_call, tool_name: refund }
tests:
  - name: a small refund is made
    request: { arguments: { amount: 20 } }
    expect: { decision: allow, rule: refunds#small }
  - name: ${sixty === 'escrow' ? 'sixty waits for a person' : 'sixty is made'}
    request: { arguments: { amount: 60 } }
    expect: { decision: ${sixty} }
`;

async function live(tenant: TestTenant) {
  const policy = { id: 'refunds', dsl_source: refunds('50.0'), tests_source: suite('escrow') };
  await server.call(201, 'POST /v1/policies', tenant.admin, policy);
  await server.call(200, 'POST /v1/policies/refunds/approve', tenant.admin, { version: 1 });
}

async function asks(agent: Credential, args: object) {
  const { body } = await server.call<{ event_id: string; decision: string }>(200, 'POST /v1/evaluate', agent, {
    ...{ action_type: 'tool_call', tool_name: 'refund', arguments: args },
    ...{ estimated_value: (args as { amount: number }).amount, value_currency: 'EUR' },
  });
  return body;
}

/** The text of the editor. */
const written = ({ page }: Visitor) => page.locator('.cm-content').innerText();

describeInBrowser('a decision', () => {
  const browser = useBrowser(() => server.url);

  test('becomes a test of a policy in one click, or one of what should have been decided', async () => {
    const tenant = await server.tenant();
    await live(tenant);
    const agent = await tenant.agent('bot', 'support');
    const { event_id } = await asks(agent, { amount: 900, note: 'for Ann' });
    const visitor = await browser.visitor(await tenant.person('approver'));
    const { page } = visitor;
    await visitor.open(`/decisions?event=${event_id}`);
    await page.getByRole('button', { name: 'Make a test from it' }).click();
    const dialog = page.getByRole('dialog', { name: 'Make a test from it' });
    expect(await dialog.getByLabel('Test suite of').inputValue()).toBe('refunds');
    // not for those who may not see them
    expect(await dialog.getByLabel('With masked values').count()).toBe(0);
    await visitor.assertAccessible();
    await dialog.getByRole('button', { name: 'Make the test' }).click();
    await page.waitForURL(/\/policies\/refunds\?tab=tests/);
    await page.getByText('New test: refund by support is held').waitFor();
    await page.getByText('3 tests passed').waitFor();
    const text = await written(visitor);
    expect(text).toContain('# what support may refund');
    expect(text).toContain(`from: ${event_id}`);
    expect(text).not.toContain('Ann');
    await visitor.assertAccessible();
    await page.getByRole('button', { name: 'Save and enforce' }).click();
    await page.getByText('Version 2 saved').waitFor();

    // the same one is not made twice
    visitor.expectFault(/409/);
    await visitor.open(`/decisions?event=${event_id}`);
    await page.getByRole('button', { name: 'Make a test from it' }).click();
    await page.getByRole('button', { name: 'Make the test' }).click();
    await page.getByText('the test "refund by support is held" is of this decision already').waitFor();

    const other = await asks(agent, { amount: 45 });
    await visitor.open(`/decisions?event=${other.event_id}`);
    await page.getByRole('button', { name: 'This was wrong' }).click();
    await page.getByLabel('The test expects').selectOption('Held');
    await page.getByRole('button', { name: 'Make the test' }).click();
    await page.getByText('The newest version does not pass it yet.').waitFor();
    await page.getByText('1 of 4 tests failed').waitFor();
    await page.getByText('decision: expected "escrow", got "allow"', { exact: true }).waitFor();
  });

  test('whose request is gone says so, and viewers are not offered it', async () => {
    const tenant = await server.tenant();
    await live(tenant);
    const { event_id } = await asks(await tenant.agent('bot', 'support'), { amount: 900 });
    await tenant.set({ input_retention_days: 0, projection_retention_days: 0 });
    await sql(server, 'delete from decision_input where tenant_id = $1', [tenant.id]);
    const visitor = await browser.visitor(await tenant.person('admin'));
    const { page } = visitor;
    visitor.expectFault(/409/);
    await visitor.open(`/decisions?event=${event_id}`);
    await page.getByRole('button', { name: 'This was wrong' }).click();
    await page.getByLabel('With masked values').waitFor();
    await page.getByRole('button', { name: 'Make the test' }).click();
    await page.getByText('the request of this decision was erased, or was never kept').waitFor();
    const viewer = await browser.visitor(await tenant.person('author'));
    await viewer.open(`/decisions?event=${event_id}`);
    await viewer.page.getByText('Position in the chain').waitFor();
    expect(await viewer.page.getByRole('button', { name: 'Make a test from it' }).count()).toBe(0);
  });

  test('names the policy, whose approval names its tests and what its simulation found', async () => {
    const tenant = await server.tenant();
    await live(tenant);
    const agent = await tenant.agent('bot', 'support');
    for (const amount of [20, 60, 70, 80, 900]) await asks(agent, { amount });
    await tenant.set({ approval_required: true, tests_required: true, simulation_required: true });
    const author = await browser.visitor(await tenant.person('author'));
    const { page } = author;

    // a draft moves one limit, and a test of its suite does not let it pass
    await author.open('/policies/refunds');
    await page.getByText('2 tests passed').waitFor();
    await write(author, refunds('75.0'));
    await page.getByText('1 of 2 tests failed').waitFor();
    await page.getByText('decision: expected "escrow", got "allow"', { exact: true }).waitFor();
    await page.getByRole('button', { name: 'Save draft' }).click();
    await page.getByText('Version 2 saved').waitFor();
    author.expectFault(/422/);
    await page.getByRole('button', { name: 'Submit for review' }).click();
    await page.getByRole('button', { name: 'Submit', exact: true }).click();
    await page.getByText('1 of 2 tests failed: "sixty waits for a person"').waitFor();
    await page.getByRole('button', { name: 'Cancel' }).click();

    // the test is changed on purpose
    await page.getByRole('tab', { name: 'Tests' }).click();
    await page.getByText('1 of 2 tests failed').waitFor();
    await write(author, suite('allow'));
    await page.getByText('2 tests passed').waitFor();
    await page.getByRole('button', { name: 'Save draft' }).click();
    await page.getByText('Version 3 saved').waitFor();

    // what it would have changed is asked for before the review, which this tenant requires
    await page.getByRole('tab', { name: 'Changes' }).click();
    await page.getByText('This version has not been simulated yet.').waitFor();
    await page.getByRole('button', { name: 'Simulate' }).click();
    await page.getByText('2 would change').waitFor();
    await author.assertAccessible();
    await page.getByRole('button', { name: 'Submit for review' }).click();
    await page.getByLabel('Note for the reviewer').fill('up to 75 without a person');
    await page.getByRole('button', { name: 'Submit', exact: true }).click();
    await page.getByText('In review').first().waitFor();

    // a second person sees what it would have changed
    const approver = await browser.visitor(await tenant.person('approver'));
    const review = approver.page;
    await approver.open('/review/refunds');
    const past = review.getByRole('region', { name: 'On past decisions' });
    await past.getByText('2 would change').waitFor();
    const lifted = past.getByRole('region', { name: 'Held before, allowed without a hold' });
    await lifted.getByText('€130.00').waitFor();
    await lifted.getByText('The decisions').click();
    expect(await lifted.getByRole('button', { name: /^Make a test from it: evt_/ }).count()).toBe(2);
    await past.getByText('All decisions, before and after').click();
    await approver.assertAccessible();
    await review.emulateMedia({ colorScheme: 'dark' });
    await review.emulateMedia({ colorScheme: 'light' });
    await review.getByRole('button', { name: 'Approve version 3' }).click();
    await review.getByRole('dialog').getByRole('button', { name: 'Approve' }).click();
    await review.getByText('Nothing to decide').waitFor();

    // what is decided now names the version, and the approval of that names the rest
    const { event_id, decision } = await asks(agent, { amount: 60 });
    expect(decision).toBe('allow');
    await approver.open(`/decisions?event=${event_id}`);
    await review.getByRole('link', { name: 'refunds, version 3' }).waitFor();
    await approver.open('/audit?action=policy.approved&target_id=refunds');
    await review
      .getByRole('button', { name: /policy\.approved/ })
      .first()
      .click();
    const record = review.getByRole('dialog');
    await record.getByText(/^version 3, in place of version 1, tests: 2 passed; .*, simulation sim_/).waitFor();
  });

  test('that a simulation names becomes a test of the draft', async () => {
    const tenant = await server.tenant();
    await live(tenant);
    const agent = await tenant.agent('bot', 'support');
    const { event_id } = await asks(agent, { amount: 60 });
    await tenant.set({ approval_required: true });
    const author = await tenant.person('author');
    const tests_source = suite('allow');
    await server.call(200, 'PUT /v1/policies/refunds', author, { dsl_source: refunds('75.0'), tests_source });
    await server.call(200, 'POST /v1/policies/refunds/submit', author, {});
    const approver = await browser.visitor(await tenant.person('approver'));
    const { page } = approver;
    await approver.open('/review/refunds');
    await page.getByText('The decision', { exact: true }).click();
    await page.getByRole('button', { name: `Make a test from it: ${event_id}` }).click();
    await page.getByRole('button', { name: 'Make the test' }).click();
    await page.waitForURL(/\/policies\/refunds\?tab=tests/);
    await page.getByText('New test: refund by support is held').waitFor();
    // which the draft would not pass
    await page.getByText('1 of 3 tests failed').waitFor();
  });
});
