import type { Page } from 'playwright-core';
import { expect, test } from 'vitest';
import { deploy, event, GUARD } from '../helpers/api.ts';
import { describeInBrowser, look, useBrowser } from '../helpers/browser.ts';
import { useServer } from '../helpers/server.ts';

const server = useServer({}, { browsed: true, shared: true });
const PHONE = { width: 390, height: 844 };
/** Longer than any line. */
const ID = 'very-long-'.repeat(12);
/** What cannot be seen is in it too. */
const LONG = `\u202e${ID}`;

/** How far down the first row ends. */
async function endOfFirstRow(page: Page): Promise<number> {
  const row = page.locator('main tbody tr[data-link]').first();
  await row.waitFor();
  await page.evaluate('scrollTo(0, 0)');
  const box = await row.boundingBox();
  return box!.y + box!.height;
}

describeInBrowser('on a phone', () => {
  const browser = useBrowser(() => server.url);

  test('rows are on the first screen whatever narrows them, and what does is opened and removed by keyboard', async () => {
    const tenant = await server.tenant();
    const proxy = await tenant.key('proxy');
    await deploy(server, tenant.admin, 'guard', GUARD);
    const names = { agent_id: ID, agent_role: ID, tool_name: LONG, tool_server: LONG, session_id: LONG };
    const taken = await server.call(202, 'POST /v1/events/ingest', tenant.admin, {
      events: [event({ ...names, event_type: 'decision.deny', decision: 'deny' })],
    });
    expect(taken.body).toMatchObject({ accepted: 1 });
    await server.call(201, 'POST /v1/escrow', proxy, {
      ...{ agent_role: ID, agent_id: ID, action_type: 'tool_call', tool_name: 'pay', action_summary: 'pays' },
      ...{ action_hash: `sha256:${'a'.repeat(64)}`, hold_type: 'single', ttl_seconds: 3600 },
    });
    const visitor = await browser.visitor(await tenant.person('admin'), PHONE);
    const { page, open } = visitor;
    const filters = page.getByRole('button', { name: /^Filters/ });
    const active = page.getByRole('list', { name: 'Active filters' });
    const long = encodeURIComponent(LONG);
    for (const [path, set, field] of [
      [
        '/decisions',
        `decision=deny&agent_id=${ID}&tool_name=${long}&agent_role=${ID}&tool_server=${long}&session_id=${long}&since=2020-01-01T00:00:00.000Z`,
        'Tool',
      ],
      ['/approvals', `agent_role=${ID}&agent_id=${ID}&mine=needed&tool_name=pay`, 'Agent'],
      ['/policies', 'q=guard&status=live&agent_role=clerk', 'Scope'],
      ['/audit', 'severity=info&target_type=policy&target_id=guard&since=2020-01-01T00:00:00.000Z', 'Action'],
    ] as const) {
      const input = page.getByRole('search').getByLabel(field, { exact: true });
      await open(path);
      expect(await endOfFirstRow(page), path).toBeLessThan(PHONE.height);
      await look(page, `phone${path.replace('/', '-')}`);
      await page.setViewportSize(PHONE);
      expect(await filters.getAttribute('aria-expanded')).toBe('false');
      expect(await input.isVisible(), field).toBe(false);

      await open(`${path}?${set}`);
      const number = set.split('&').length;
      await page.getByRole('button', { name: `Filters (${number})` }).waitFor();
      expect(await endOfFirstRow(page), `${path} with all that`).toBeLessThan(PHONE.height);
      expect(await page.evaluate('document.documentElement.scrollWidth'), path).toBeLessThanOrEqual(PHONE.width);
      await visitor.assertAccessible();
      await look(page, `phone${path.replace('/', '-')}-set`);
      await page.setViewportSize(PHONE);

      await filters.focus();
      await page.keyboard.press('Enter');
      expect(await filters.getAttribute('aria-expanded')).toBe('true');
      await input.waitFor();
      await visitor.assertAccessible();
      await look(page, `phone${path.replace('/', '-')}-open`);
      await page.setViewportSize(PHONE);
      await filters.focus();
      await page.keyboard.press('Enter');
      await input.waitFor({ state: 'hidden' });

      // the last of them by keyboard; the focus is not lost with its button
      expect(await active.getByRole('button').count()).toBe(number);
      await active.getByRole('button').last().focus();
      await page.keyboard.press('Enter');
      await page.getByRole('button', { name: `Filters (${number - 1})` }).waitFor();
      expect(await page.evaluate('document.activeElement.textContent')).toMatch(/^Filters/);
      expect(new URL(page.url()).searchParams.size).toBe(number - 1);
      await page.getByRole('button', { name: 'Clear', exact: true }).click();
      await page.getByRole('button', { name: 'Filters', exact: true }).waitFor();
      expect(await active.count()).toBe(0);
    }
    // where there is room the fields are there
    await page.setViewportSize({ width: 1280, height: 900 });
    await filters.waitFor({ state: 'detached' });
    await page.getByLabel('Action', { exact: true }).waitFor();
  });
});
