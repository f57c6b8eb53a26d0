import { expect, test } from 'vitest';
import { describeInBrowser, useBrowser } from '../helpers/browser.ts';
import { useServer } from '../helpers/server.ts';

const server = useServer({}, { browsed: true, shared: true });

describeInBrowser('the machines', () => {
  const browser = useBrowser(() => server.url);

  test('are drawn, and stand beside the drawing as text', async () => {
    const tenant = await server.tenant();
    const visitor = await browser.visitor(await tenant.person('viewer'));
    await visitor.open('/machines');
    await visitor.assertAccessible();
    await visitor.page.getByRole('button', { name: 'Hold' }).click();
    await visitor.page.getByRole('heading', { name: 'Hold lifecycle' }).waitFor();
    const drawn = await visitor.page.locator('.chart-state text').allTextContents();
    expect(drawn.toSorted()).toEqual(['cancelled', 'consumed', 'expired', 'held', 'rejected', 'released']);
    await visitor.page.getByRole('cell', { name: 'released consume → consumed' }).waitFor();
    await visitor.page.setViewportSize({ width: 360, height: 740 });
    await visitor.assertAccessible();
  });

  test('light where a policy stands, and tell what happened to it and who may do what next', async () => {
    const tenant = await server.tenant();
    const author = await tenant.person('author');
    await tenant.set({ approval_required: true });
    await server.call(201, 'POST /v1/policies', author, {
      id: 'desk',
      dsl_source: 'permit(principal in AgentRole::"support", action, resource);',
    });
    await server.call(200, 'POST /v1/policies/desk/submit', author, {});
    const { page, open, assertAccessible } = await browser.visitor(author);
    await open('/policies/desk?tab=machine');
    await page.getByRole('heading', { name: 'Now pending approval: next steps' }).waitFor();
    expect(await page.locator('.chart-state[data-current] text').textContent()).toBe('pending approval');
    await page.getByText('this needs the role approver').first().waitFor();
    expect(await page.locator('ol.machine-steps li strong').allTextContents()).toEqual(['submitted', 'created']);
    await assertAccessible();
  });

  test('light where a hold stands, on its own page', async () => {
    const tenant = await server.tenant();
    const { body } = await server.call<{ id: string }>(201, 'POST /v1/escrow', await tenant.key('proxy'), {
      agent_role: 'support',
      agent_id: 'bot-1',
      action_type: 'payment',
      action_summary: 'Refund 120 EUR',
      action_hash: `sha256:${'a'.repeat(64)}`,
      hold_type: 'single',
      ttl_seconds: 600,
    });
    const { page, open, assertAccessible } = await browser.visitor(await tenant.person('approver'));
    await open(`/approvals/${body.id}`);
    await page.getByText('Current state, next steps').click();
    await page.getByRole('heading', { name: 'Now held: next steps' }).waitFor();
    await page.getByText('allowed for you').first().waitFor();
    await assertAccessible();
  });
});
