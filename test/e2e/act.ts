import type { Locator, Page } from 'playwright-core';
import type { Visitor } from '../helpers/browser.ts';
import type { TestServer, TestTenant } from '../helpers/server.ts';

/** The field of the editor, with its text replaced. */
export async function write({ page }: Visitor, text: string): Promise<void> {
  await page.locator('.cm-content').click();
  await page.keyboard.press('Control+a');
  await page.keyboard.insertText(text);
}

/** Types into a field within one turn of the page: to the page there is no pause, however slow the machine. `then` runs at once. */
export async function typeAtOnce(field: Locator, text: string, then = ''): Promise<void> {
  await field.focus();
  const type = `for (const letter of ${JSON.stringify(text)}) document.execCommand('insertText', false, letter);`;
  await field.page().evaluate(`${type} ${then}`);
}

/** Presses keys one after the other within one turn of the page. */
export async function pressAtOnce(page: Page, ...keys: string[]): Promise<void> {
  await page.evaluate(`for (const key of ${JSON.stringify(keys)})
    document.activeElement.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true }));`);
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
