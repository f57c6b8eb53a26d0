import { expect, test } from 'vitest';
import { deploy, event } from '../helpers/api.ts';
import { describeInBrowser, useBrowser, type Visitor } from '../helpers/browser.ts';
import { useServer } from '../helpers/server.ts';
import { evaluate, typeAtOnce } from './act.ts';

const server = useServer({}, { browsed: true, shared: true });

/** A page of its own: a browser keeps 50 steps of a page, and counts no more. */
const FRESH = { own: true } as const;

/** How many steps the browser's history has got since this was called. */
async function counted({ page }: Visitor): Promise<() => Promise<number>> {
  const length = async () => Number(await page.evaluate('history.length'));
  const before = await length();
  return async () => (await length()) - before;
}

describeInBrowser('back undoes a filter', () => {
  const browser = useBrowser(() => server.url);

  test('of decisions, one after the other, and forward sets them again', async () => {
    const tenant = await server.tenant();
    const denied = { decision: 'deny', event_type: 'decision.deny', deny_reason: 'no' };
    const events = [
      event({ tool_name: 'read' }),
      event({ tool_name: 'wire', ...denied }),
      event({ tool_name: 'erase', ...denied }),
    ];
    await server.call(202, 'POST /v1/events/ingest', tenant.admin, { events });
    const viewer = await browser.visitor(await tenant.person('viewer'), FRESH);
    const { page } = viewer;
    await viewer.open('/decisions');
    const decision = page.getByRole('combobox', { name: 'Decision', exact: true });
    const tool = page.getByRole('combobox', { name: 'Tool', exact: true });
    const pressed = page.getByRole('group', { name: 'Time' }).locator('[aria-pressed="true"]');
    const rows = page.getByRole('button', { name: /, details$/ });
    /** The list and what the controls say. */
    const shows = (expected: { tools: string[]; of: string; span: string; text: string }) =>
      expect
        .poll(async () => ({
          tools: await rows.allInnerTexts(),
          of: await decision.inputValue(),
          span: await pressed.innerText(),
          text: await tool.inputValue(),
        }))
        .toEqual(expected);
    const all = { tools: ['erase', 'wire', 'read'], of: '', span: 'Any time', text: '' };
    const denials = { ...all, tools: ['erase', 'wire'], of: 'deny' };
    const today = { ...denials, span: '24h' };
    const wires = { ...today, tools: ['wire'], text: 'wire' };
    await shows(all);
    const steps = await counted(viewer);
    await decision.selectOption('deny');
    await shows(denials);
    await page.getByRole('button', { name: 'Last 24h' }).click();
    await shows(today);
    await typeAtOnce(tool, 'wire');
    await shows(wires);
    // one step for the word, and not one for each letter
    expect(await steps()).toBe(3);
    await page.getByRole('button', { name: 'Last 24h' }).click();
    await decision.selectOption('deny');
    expect(await steps()).toBe(3);

    for (const before of [today, denials, all]) {
      await page.goBack();
      await shows(before);
    }
    for (const after of [denials, today, wires]) {
      await page.goForward();
      await shows(after);
    }
    await page.getByRole('button', { name: 'Clear', exact: true }).click();
    await shows(all);
    await page.goBack();
    await shows(wires);
  });

  test('of a list that is typed: what is not applied yet is not applied to another page of the list', async () => {
    const tenant = await server.tenant();
    await tenant.agent('bot', 'clerk');
    const events = ['bot', 'boss', 'desk'].map((agent_id) => event({ agent_id }));
    await server.call(202, 'POST /v1/events/ingest', tenant.admin, { events });
    const viewer = await browser.visitor(await tenant.person('viewer'), FRESH);
    const { page } = viewer;
    await viewer.open('/agents');
    const text = page.getByRole('textbox', { name: 'Id or role contains' });
    const rows = page.getByRole('table', { name: 'Agents by id' }).locator('strong');
    const shows = (typed: string, ...agents: string[]) =>
      expect.poll(async () => [await text.inputValue(), ...(await rows.allInnerTexts())]).toEqual([typed, ...agents]);
    await shows('', 'boss', 'bot', 'desk');
    const steps = await counted(viewer);
    await typeAtOnce(text, 'bo');
    await shows('bo', 'boss', 'bot');
    await typeAtOnce(text, 't');
    await shows('bot', 'bot');
    expect(await steps()).toBe(2);
    await page.goBack();
    await shows('bo', 'boss', 'bot');
    // typed and undone before it was applied
    await typeAtOnce(text, 'xy', 'history.back()');
    await shows('', 'boss', 'bot', 'desk');
    // what is typed later is applied later
    await typeAtOnce(page.getByRole('textbox', { name: 'Label' }), 'senior');
    await page.waitForURL(/label=senior/);
    expect(new URL(page.url()).search).toBe('?label=senior');
    await page.goBack();
    await shows('', 'boss', 'bot', 'desk');
  });

  test('of times whose year is typed digit by digit', async () => {
    const tenant = await server.tenant();
    const viewer = await browser.visitor(await tenant.person('viewer'), FRESH);
    const { page } = viewer;
    await viewer.open('/audit');
    const since = page.getByLabel(/^Since/);
    const steps = await counted(viewer);
    await since.fill('2026-01-02T09:15');
    await page.waitForURL(/since=2026/);
    await since.focus();
    for (const key of ['ArrowRight', 'ArrowRight', '2', '0', '2', '4']) {
      await page.keyboard.press(key);
      // longer than a pause after which it is applied
      await new Promise((resolve) => setTimeout(resolve, 400));
    }
    await page.waitForURL(/since=2024/);
    expect(await steps()).toBe(2);
    await page.goBack();
    await page.waitForURL(/since=2026/);
    await expect.poll(() => since.inputValue()).toBe('2026-01-02T09:15');
    await page.goBack();
    await expect.poll(() => since.inputValue()).toBe('');
  });

  test('of holds; the hold that is read beside the list is no step', async () => {
    const tenant = await server.tenant();
    const held = (tool: string) =>
      `@id("${tool}") @escrow("single") permit(principal, action, resource == Tool::"${tool}");`;
    await deploy(server, tenant.admin, 'desk', ['pay', 'wire'].map(held).join('\n'));
    for (const tool of ['pay', 'wire']) await evaluate(server, tenant, tool);
    const approver = await browser.visitor(await tenant.person('approver'), FRESH);
    const { page } = approver;
    await approver.open('/approvals');
    const show = page.getByRole('combobox', { name: 'Show' });
    const group = page.getByRole('combobox', { name: 'Group by' });
    const groups = page.getByRole('list', { name: 'Waiting holds by tool' });
    const [pay, wire] = ['pay', 'wire'].map((tool) => page.getByRole('link', { name: `${tool} (tool_call)` })) as [
      ReturnType<typeof page.getByRole>,
      ReturnType<typeof page.getByRole>,
    ];
    await pay.waitFor();
    const steps = await counted(approver);
    for (const one of [wire, pay, wire]) await one.click();
    await page.waitForURL(/hold=esc_/);
    expect(await steps()).toBe(0);
    await group.selectOption('tool');
    await groups.getByRole('button', { name: 'wire 1' }).click();
    await pay.waitFor({ state: 'detached' });
    await show.selectOption('released');
    await page.getByText('No holds match the filters').waitFor();
    expect(await steps()).toBe(3);

    await page.goBack();
    await wire.waitFor();
    expect(await show.inputValue()).toBe('held');
    expect(await groups.locator('[aria-pressed="true"]').innerText()).toMatch(/^wire/);
    await page.goBack();
    await pay.waitFor();
    expect(await groups.locator('[aria-pressed="true"]').count()).toBe(0);
    await page.goBack();
    await groups.waitFor({ state: 'detached' });
    expect(await group.inputValue()).toBe('');
    // with the hold that was read
    await page.waitForURL(/hold=esc_/);
    for (let step = 0; step < 3; step++) await page.goForward();
    await page.getByText('No holds match the filters').waitFor();
    expect(await show.inputValue()).toBe('released');
    await page.getByRole('button', { name: 'Clear', exact: true }).click();
    await page.getByText('No released actions').waitFor();
    await page.goBack();
    await page.getByText('No holds match the filters').waitFor();
  });
});
