import type { Visitor } from '../helpers/browser.ts';
import type { TestServer, TestTenant } from '../helpers/server.ts';

/** The field of the editor, with its text replaced. */
export async function write({ page }: Visitor, text: string): Promise<void> {
  await page.locator('.cm-content').click();
  await page.keyboard.press('Control+a');
  await page.keyboard.insertText(text);
}

/** An agent asks; the answer as it got it. */
export async function evaluate(server: TestServer, tenant: TestTenant, tool_name: string, more: object = {}) {
  const agent = await tenant.agent('bot', 'clerk');
  const { body } = await server.call<{ decision: string; escrow?: { id: string } }>(200, 'POST /v1/evaluate', agent, {
    action_type: 'tool_call',
    tool_name,
    action_summary: `${tool_name} the bill of November`,
    estimated_value: 1200,
    value_currency: 'EUR',
    risk_score: 0.6,
    arguments: { amount: 1200, to: 'ACME' },
    ...more,
  });
  return body;
}
