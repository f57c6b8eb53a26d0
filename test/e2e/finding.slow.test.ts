import { readFileSync } from 'node:fs';
import type { Page } from 'playwright-core';
import { expect, test } from 'vitest';
import { deploy, event, GUARD } from '../helpers/api.ts';
import { describeInBrowser, look, useBrowser } from '../helpers/browser.ts';
import { type TestTenant, useServer } from '../helpers/server.ts';

const server = useServer({}, { browsed: true });
const HOUR = 3_600_000;
const STEP = 8 * HOUR;

/** Counts the clicks and the typed lines of a walk. */
async function counted(page: Page): Promise<() => Promise<number>> {
  await page.evaluate(`globalThis.steps = 0;
    addEventListener('pointerdown', () => steps++, true);
    addEventListener('keydown', (event) => event.key === 'Enter' && steps++, true);`);
  return async () => Number(await page.evaluate('steps'));
}

/** Decisions of the last eight days, one in eight hours; those of a Tuesday at 14:30 by a bot of their own. */
async function week(): Promise<{ tenant: TestTenant; tuesday: Date }> {
  const now = Date.now();
  const tuesday = new Date(now);
  tuesday.setUTCHours(14, 30, 0, 0);
  do tuesday.setUTCDate(tuesday.getUTCDate() - 1);
  while (tuesday.getUTCDay() !== 2);
  // at odd hours, whatever the hour is now: the two hours from 14:00 on have those of the Tuesday alone
  const odd = Math.floor((now - 8 * 24 * HOUR) / (2 * HOUR)) * 2 * HOUR + HOUR;
  server.clock.advance(odd - server.clock.now());
  const tenant = await server.tenant();
  const ingest = (more: object) =>
    server.call(202, 'POST /v1/events/ingest', tenant.admin, {
      events: [
        event({
          ...{
            agent_id: 'clerk-bot',
            tool_name: 'read_invoice',
            timestamp: new Date(server.clock.now()).toISOString(),
          },
          ...more,
        }),
      ],
    });
  let came = false;
  while (server.clock.now() < now - STEP) {
    if (!came && server.clock.now() + STEP > tuesday.getTime()) {
      server.clock.advance(tuesday.getTime() - server.clock.now());
      const denied = {
        ...{ decision: 'deny', event_type: 'decision.deny', deny_reason: 'not on a Tuesday' },
        tool_server: 'bank',
      };
      for (const tool_name of ['wire', 'Wire_back']) await ingest({ agent_id: 'night-bot', tool_name, ...denied });
      came = true;
    }
    server.clock.advance(STEP);
    await ingest({});
  }
  server.clock.advance(now - server.clock.now());
  return { tenant, tuesday };
}

const DESK = `@id("small") permit(principal, action, resource == Tool::"refund")
when { context.num.hasTag("amount") && context.num.getTag("amount").lessThanOrEqual(decimal("50.0")) };
@id("wire") @escrow("single") permit(principal, action, resource == Tool::"wire");
@id("hide") @mask("$.iban") permit(principal, action, resource == Tool::"other");`;

describeInBrowser('finding decisions', () => {
  const browser = useBrowser(() => server.url);

  test('last Tuesday at 14:30 is two clicks or one line away, and everything that is shown is in the address', async () => {
    const { tenant, tuesday } = await week();
    const viewer = await browser.visitor(await tenant.person('viewer'));
    const { page } = viewer;
    await page.addInitScript("localStorage.setItem('svc-zone', 'utc')");
    const day = tuesday.toISOString().slice(0, 10);
    const wire = page.getByRole('button', { name: /^wire: Denied/ });
    const bars = page.getByRole('slider');

    // by clicks
    await viewer.open('/decisions');
    await bars.waitFor();
    let steps = await counted(page);
    await page.getByRole('button', { name: 'Last 7d' }).click();
    const bar = page.locator(`.histogram-bar[title*="Tuesday, ${day} 14:00:00"]`);
    await bar.waitFor();
    await bar.click();
    await wire.waitFor();
    expect(await steps()).toBe(2);
    await page.getByRole('rowheader', { name: `Tuesday, ${day}` }).waitFor();
    await page.getByText(/^2 of [\d,]+ decisions|^2 decisions/).waitFor();
    const address = new URL(page.url()).searchParams;
    expect(address.get('since')).toContain(`${day}T14:00:00.000Z`);
    expect(address.get('until')).toContain(`${day}T16:00:00.000Z`);
    await viewer.assertAccessible();

    // by one typed line, with the keyboard alone
    await viewer.open('/decisions');
    await bars.waitFor();
    steps = await counted(page);
    const go = page.getByRole('textbox', { name: 'Go to' });
    await go.focus();
    await page.keyboard.type('sometime');
    await page.keyboard.press('Enter');
    await page.getByText('Such as: tue 14:00').waitFor();
    await go.fill('last tue 14:00');
    await page.keyboard.press('Enter');
    await wire.waitFor();
    expect(await steps()).toBe(2);
    expect(await page.getByLabel('From').inputValue()).toBe(`${day}T14:00`);
    expect(await page.getByLabel('To', { exact: true }).inputValue()).toBe(`${day}T15:00`);

    // by facets, which say how many
    await viewer.open('/decisions');
    const facet = page.getByRole('region', { name: 'Agent' }).getByRole('button', { name: 'night-bot 2' });
    await facet.click();
    await wire.waitFor();
    await page.waitForURL(/agent_id=night-bot/);
    expect(await facet.getAttribute('aria-pressed')).toBe('true');
    await facet.click();
    await page.waitForURL((url) => !url.search.includes('agent_id'));
    await page.getByRole('region', { name: 'Tool server' }).getByRole('button', { name: 'bank 2' }).click();
    await page.waitForURL(/tool_server=bank/);
    await wire.waitFor();
    await page.getByRole('region', { name: 'Tool server' }).getByRole('button', { name: 'bank 2' }).click();
    await page.waitForURL((url) => !url.search.includes('tool_server'));

    // without a value, by keyboard alone; the sentence that says so turns around, and goes
    const usual = page.getByRole('region', { name: 'Agent' }).getByRole('button', { name: /^clerk-bot/ });
    await usual.focus();
    await page.keyboard.press('Tab');
    await page.keyboard.press('Enter');
    await page.waitForURL(/not_agent_id=.*clerk-bot/);
    await page.getByText(/^2 of [\d,]+ decisions/).waitFor();
    await wire.waitFor();
    const used = page.getByRole('list', { name: 'Filters in use' }).getByRole('listitem');
    expect(await used.allTextContents()).toEqual(['Agent: not clerk-bot']);
    await viewer.assertAccessible();
    await look(page, 'decisions-left-out');
    await page.reload();
    await wire.waitFor();
    await used.getByRole('button', { name: 'Show only these' }).click();
    await page.waitForURL((url) => /[?&]agent_id=clerk-bot/.test(url.search) && !url.search.includes('not_'));
    expect(await used.allTextContents()).toEqual(['Agent: clerk-bot']);
    await used.getByRole('button', { name: 'Leave these out' }).click();
    await page.waitForURL(/not_agent_id/);

    // what is left, by a field and by two, and each group leads to its decisions
    await page.getByLabel('Group by').selectOption('Tool');
    const groups = page.getByRole('table', { name: 'Decisions by Tool' });
    await groups.getByRole('row', { name: /^Wire_back 1 50% Denied 100%/ }).waitFor();
    await page.getByLabel('And by').selectOption('Tool server');
    await page.getByRole('table', { name: 'Decisions by Tool and Tool server' }).getByText('bank').first().waitFor();
    await page.getByText('All decisions that match are counted.').waitFor();
    await viewer.assertAccessible();
    await look(page, 'decisions-grouped');
    await page.reload();
    await page.getByRole('link', { name: 'Wire_back' }).click();
    await page.waitForURL(/tool_name=Wire_back/);
    await page.getByRole('button', { name: /^Wire_back: Denied/ }).waitFor();
    expect(new URL(page.url()).search).toMatch(/not_agent_id.*tool_server=bank|tool_server=bank.*not_agent_id/);

    // and as a file
    const [download] = await Promise.all([
      page.waitForEvent('download'),
      page.getByRole('link', { name: 'Download CSV' }).click(),
    ]);
    expect(download.suggestedFilename()).toBe(`decisions-${tenant.id}.csv`);
    expect(
      readFileSync(await download.path(), 'utf8')
        .trim()
        .split('\r\n'),
    ).toHaveLength(2);
    await page.getByRole('button', { name: 'Clear', exact: true }).click();
    await page.waitForURL((url) => url.search === '');

    // by how a name begins, in capitals or not, with suggestions
    const tool = page.getByRole('combobox', { name: 'Tool' });
    await tool.fill('WIRE');
    await page.waitForURL(/tool_name=wire$/i);
    await tool.fill('WIR');
    await page.getByText('Tool begins with “WIR”').waitFor();
    await page.getByRole('button', { name: /^Wire_back: Denied/ }).waitFor();
    await expect.poll(() => page.locator('datalist option[value="Wire_back"]').count()).toBe(1);

    // saved under a name, and there again after a reload; another person has their own
    await page.getByRole('button', { name: 'Save these filters' }).click();
    await used.getByRole('button', { name: 'Leave these out' }).click();
    await page.getByText('Tool does not begin with “WIR”').waitFor();
    await page.getByRole('textbox', { name: 'Name of these filters' }).fill('Others');
    await page.keyboard.press('Enter');
    await page.getByRole('button', { name: 'Forget “Others”' }).waitFor();
    await viewer.open('/decisions');
    await page.getByRole('combobox', { name: 'Saved filters' }).selectOption('Others');
    await used.getByText('Tool does not begin with “WIR”').waitFor();
    await used.getByRole('button', { name: 'Show only these' }).click();
    await page.getByRole('button', { name: 'Save these filters' }).click();
    await page.getByRole('textbox', { name: 'Name of these filters' }).fill('Wires');
    await page.keyboard.press('Enter');
    await page.getByRole('button', { name: 'Forget “Wires”' }).waitFor();
    await viewer.open('/decisions');
    await page.getByRole('combobox', { name: 'Saved filters' }).selectOption('Wires');
    await wire.waitFor();
    await page.waitForURL(/tool_name=WIR/);
    await viewer.assertAccessible();

    // the bars by keyboard: from the newest, two of them
    await viewer.open('/decisions?last=24h');
    await bars.focus();
    await page.keyboard.press('ArrowLeft');
    await page.keyboard.press('Shift+ArrowLeft');
    expect(await bars.getAttribute('aria-valuetext')).toMatch(/to .*(Allowed|no decisions)/);
    await page.keyboard.press('Enter');
    await page.waitForURL(/since=.*until=/);
    const span = new URL(page.url()).searchParams;
    const at = (name: string) => Date.parse(span.get(name)!);
    expect(at('until') - at('since')).toBe(30 * 60_000);
  });

  test('what sets the shown decisions apart is named, and one press shows those', async () => {
    const tenant = await server.tenant();
    const ingest = (count: number, more: Record<string, unknown>) =>
      server.call(202, 'POST /v1/events/ingest', tenant.admin, {
        events: Array.from({ length: count }, () => event(more)),
      });
    const denied = { decision: 'deny', event_type: 'decision.deny', agent_id: 'night-bot', tool_name: 'wire' };
    await ingest(30, { agent_id: 'clerk-bot', tool_name: 'read_invoice' });
    await ingest(2, denied);
    const viewer = await browser.visitor(await tenant.person('viewer'));
    const { page } = viewer;
    await viewer.open('/decisions?decision=deny');
    await page.getByText('What sets these decisions apart').click();
    await page.getByText('At least 10 decisions are needed here').waitFor();
    await ingest(20, denied);
    await viewer.open('/decisions?decision=deny');
    await page.getByText('What sets these decisions apart').click();
    const found = page.getByRole('list', { name: 'Compared with the other decisions of this time' });
    await found.getByRole('button', { name: /Agent.*night-bot.*100% of these, 0% of the others/ }).waitFor();
    // what none of these has cannot be chosen
    await found.getByText('clerk-bot').waitFor();
    expect(await found.getByRole('button', { name: /clerk-bot/ }).count()).toBe(0);
    await viewer.assertAccessible();
    await found.getByRole('button', { name: /night-bot/ }).click();
    await page.waitForURL(/agent_id=night-bot/);
    expect(await found.getByRole('button', { name: /^Agent/ }).count()).toBe(0);
  });

  test('names that agents chose neither turn around nor leave their place', async () => {
    const tenant = await server.tenant();
    await deploy(server, tenant.admin, 'guard', GUARD);
    await server.call(202, 'POST /v1/events/ingest', tenant.admin, {
      events: ['pay\u202Eyap', 'pаy', 'pay\u00a0', 'pay'].map((tool_name) => event({ tool_name, agent_id: 'bot' })),
    });
    const viewer = await browser.visitor(await tenant.person('viewer'));
    await viewer.open('/decisions');
    const cell = viewer.page.getByRole('row').filter({ hasText: 'U+202E' });
    await cell.waitFor();
    expect(await cell.locator('bdi').count()).toBeGreaterThan(1);
    expect(await cell.textContent()).not.toMatch(/\u202E/);
    const tools = viewer.page.getByRole('region', { name: 'Tool' });
    await tools.getByText('U+202E').waitFor();
    // no two that differ look the same, in the list and among the frequent values
    for (const names of [tools.locator('.cut'), viewer.page.getByRole('row').locator('button .hostile')]) {
      const html = await names.evaluateAll((all) => all.map(({ innerHTML }) => innerHTML));
      expect(new Set(html.map((one) => one.replaceAll('а', 'a'))).size).toBe(4);
    }
    await tools.locator('.lookalike').getByText('а').waitFor();
    // what the browser itself would show as it is, is not suggested
    const suggested = viewer.page.locator('datalist option');
    expect(await suggested.evaluateAll((all) => all.map((one) => (one as { value?: string }).value))).toEqual(
      expect.arrayContaining(['pay']),
    );
    for (const odd of ['pay\u202Eyap', 'pаy', 'pay\u00a0']) {
      expect(await viewer.page.locator(`datalist option[value="${odd}"]`).count()).toBe(0);
    }
    await viewer.assertAccessible();
  });

  test('a denied call shows its arguments, masked, and what did not hold, in three clicks; j and k go on', async () => {
    const tenant = await server.tenant();
    await deploy(server, tenant.admin, 'desk', DESK);
    const agent = await tenant.agent('desk-bot', 'clerk');
    const ask = async (amount: number) =>
      (
        await server.call<{ event_id: string }>(200, 'POST /v1/evaluate', agent, {
          ...{ action_type: 'payment', tool_name: 'refund' },
          arguments: { amount, iban: 'DE02', note: 'for\u202E Ann' },
        })
      ).body.event_id;
    await ask(20);
    const event_id = await ask(900);
    const approver = await browser.visitor(await tenant.person('approver'));
    const { page } = approver;
    await approver.open('/decisions');
    const steps = await counted(page);
    await page.getByRole('button', { name: /^refund: Denied/ }).click();
    const drawer = page.getByRole('dialog', { name: 'Decision' });
    await drawer.getByText('no policy permits this action').first().waitFor();
    await drawer.getByRole('button', { name: 'Show the request' }).click();
    const request = drawer.getByRole('region', { name: 'request' });
    await request.getByText('900').waitFor();
    expect(await request.textContent()).toContain('"iban": "[masked]"');
    expect(await request.textContent()).toContain('forU+202E Ann');
    await drawer.getByRole('button', { name: 'Show which conditions failed' }).click();
    const rule = drawer.getByRole('region', { name: 'Text of desk#small' });
    const lit = rule.locator('mark');
    await lit.nth(1).waitFor();
    expect(await lit.allTextContents()).toEqual([
      '✓\u00A0(true) context.num.hasTag("amount")',
      '✗\u00A0(false) context.num.getTag("amount").lessThanOrEqual(decimal("50.0"))',
    ]);
    expect(await steps()).toBe(3);
    await drawer.getByText('matches the stored text').waitFor();
    await drawer.getByRole('heading', { name: 'Timeline' }).waitFor();
    await look(page, 'decision');
    await approver.assertAccessible();
    // who looked is in the audit log
    const log = await server.call<{ records: { detail: string }[] }>(
      200,
      `GET /v1/audit?action=decision.input_read&target_id=${event_id}`,
      tenant.admin,
    );
    expect(log.body.records.map(({ detail }) => detail).sort()).toEqual([
      'what conditions were, with masks',
      'with masks',
    ]);

    // by keys to the older one and back; nothing of it is looked at that nobody asked for
    await page.keyboard.press('j');
    await drawer.getByText('desk#small permits it').waitFor();
    await drawer.getByRole('button', { name: 'Show which conditions held' }).waitFor();
    await page.keyboard.press('k');
    await drawer.getByText('no policy permits this action').first().waitFor();

    // with its request into the form of the policy
    await drawer.getByRole('button', { name: 'Show the request' }).click();
    await drawer.getByRole('button', { name: 'Open in Try it' }).click();
    await page.waitForURL(/\/policies\/desk/);
    expect(await page.getByRole('combobox', { name: 'Agent role' }).inputValue()).toBe('clerk');
    expect(await page.getByRole('textbox', { name: 'Arguments (JSON)' }).inputValue()).toContain('"amount": 900');

    // who may not see requests is not offered them
    const viewer = await browser.visitor(await tenant.person('viewer'));
    await viewer.open(`/decisions?event=${event_id}`);
    await viewer.page.getByText('matches the stored text').waitFor();
    expect(await viewer.page.getByRole('button', { name: /^Show/ }).count()).toBe(0);
  });

  test('a held call tells its whole way: asked, held, approved, released', async () => {
    const tenant = await server.tenant();
    await deploy(server, tenant.admin, 'desk', DESK);
    const agent = await tenant.agent('desk-bot', 'clerk');
    const { body } = await server.call<{ event_id: string; escrow: { id: string } }>(200, 'POST /v1/evaluate', agent, {
      ...{ action_type: 'payment', tool_name: 'wire', arguments: { amount: 5 } },
    });
    const approver = await tenant.person('approver');
    await server.call(200, `POST /v1/escrow/${body.escrow.id}/vote`, approver, {
      decision: 'approve',
      reason: 'as agreed',
    });
    const viewer = await browser.visitor(await tenant.person('viewer'));
    await viewer.open(`/decisions?event=${body.event_id}`);
    const line = viewer.page.getByRole('region', { name: 'Timeline' }).getByRole('listitem');
    await line.getByText('Released').waitFor();
    expect(
      (await line.allTextContents()).map(
        (text) => /(Asked|Held|Hold opened|Recorded|Approved|Released)/.exec(text)?.[1],
      ),
    ).toEqual(['Asked', 'Held', 'Hold opened', 'Recorded', 'Approved', 'Released']);
    await line.getByText('as agreed').waitFor();
    await line.getByRole('link', { name: 'the hold' }).waitFor();
    await look(viewer.page, 'decision-held');

    // its own page says at the top what happened, and whose key it came with
    await viewer.open(`/decisions/${body.event_id}`);
    await viewer.page.getByRole('heading', { level: 1, name: 'Held wire' }).waitFor();
    expect(await viewer.page.title()).toBe('Held: wire · Agent Governance');
    await viewer.page.getByText(/^key “.*desk-bot.*”/).waitFor();
    await viewer.assertAccessible();
    // and leads to its neighbors in the chain
    const later = await server.call<{ event_id: string }>(200, 'POST /v1/evaluate', agent, {
      ...{ action_type: 'payment', tool_name: 'refund', arguments: { amount: 5 } },
    });
    await viewer.open(`/decisions/${body.event_id}`);
    await viewer.page.getByRole('button', { name: 'Newer' }).click();
    await viewer.page.waitForURL((url) => url.pathname === `/decisions/${later.body.event_id}`);
    await viewer.page.getByRole('heading', { level: 1, name: 'Allowed refund' }).waitFor();
    await viewer.page.getByText('matches the stored text').waitFor();
    await viewer.page.keyboard.press('j');
    await viewer.page.waitForURL((url) => url.pathname === `/decisions/${body.event_id}`);
    await viewer.page.getByRole('heading', { level: 1, name: 'Held wire' }).waitFor();
  });

  test('from any page, by keyboard alone: what has a name, an id or a hash, and only what the role may see', async () => {
    const tenant = await server.tenant();
    await deploy(server, tenant.admin, 'desk', DESK);
    const agent = await tenant.agent('desk-bot', 'clerk');
    const { body } = await server.call<{ event_id: string }>(200, 'POST /v1/evaluate', agent, {
      ...{ action_type: 'payment', tool_name: 'refund', arguments: { amount: 5 } },
    });
    const viewer = await browser.visitor(await tenant.person('viewer'));
    const { page } = viewer;
    await viewer.open('/forensics');
    const dialog = page.getByRole('dialog', { name: 'Find' });
    const options = dialog.getByRole('option');
    const go = async (text: string, first: RegExp) => {
      await page.keyboard.press('Control+k');
      await dialog.getByRole('combobox').waitFor();
      await page.keyboard.type(text);
      await options.filter({ hasText: first }).first().waitFor();
      await dialog.locator('[aria-busy]').waitFor({ state: 'detached' });
    };
    await go('desk', /Policy/);
    expect(await options.allTextContents()).toEqual([
      'deskLivePolicy',
      ...['desk#hideRule', 'desk#smallRule', 'desk#wireRule'],
      'desk-botAgent',
    ]);
    await look(page, 'palette');
    await viewer.assertAccessible();
    await page.keyboard.press('ArrowDown');
    await page.keyboard.press('ArrowDown');
    expect(await dialog.getByRole('option', { selected: true }).textContent()).toBe('desk#smallRule');
    await page.keyboard.press('Enter');
    await page.waitForURL(/\/policies\/desk\?tab=rules/);
    await dialog.waitFor({ state: 'detached' });

    // the keys that follow are the palette's, however soon they come, and the focus is back where it was when it closes
    const link = page.getByRole('navigation').getByRole('link').first();
    await link.focus();
    const role = await page.evaluate(`(async () => {
      const press = { key: 'k', code: 'KeyK', ctrlKey: true, bubbles: true, cancelable: true };
      document.activeElement.dispatchEvent(new KeyboardEvent('keydown', press));
      await Promise.resolve();
      return document.activeElement.getAttribute('role');
    })()`);
    expect(role).toBe('combobox');
    await page.keyboard.press('Escape');
    await dialog.waitFor({ state: 'detached' });
    await link.and(page.locator(':focus')).waitFor();

    await go(body.event_id, /Decision/);
    await page.keyboard.press('Enter');
    await page.getByRole('dialog', { name: 'Decision' }).getByText('desk#small permits it').waitFor();
    await page.keyboard.press('Escape');

    // a hold by its tool and whose action it is; its id says nothing to anyone
    const held = await server.call<{ escrow: { id: string } }>(200, 'POST /v1/evaluate', agent, {
      ...{ action_type: 'payment', tool_name: 'wire', arguments: {} },
    });
    await go('wire', /Hold$/);
    const hold = await options.filter({ hasText: /Hold$/ }).textContent();
    expect(hold).toMatch(/^wireHeld, by desk-bot, (just now|\d+ \w+ ago)Hold$/);
    expect(hold).not.toContain(held.body.escrow.id);
    await page.keyboard.press('Escape');
    await dialog.waitFor({ state: 'detached' });

    await go('foren', /Page/);
    await page.keyboard.press('Enter');
    await page.waitForURL(/\/forensics/);

    // pages and people of admins are not there
    await go('s', /Settings/);
    expect((await options.allTextContents()).join()).not.toContain('Subscriptions');
    await page.keyboard.type('omebody nobody knows');
    await dialog.getByText('Nothing has this name').waitFor();
    await viewer.assertAccessible();
    await page.keyboard.press('Escape');
    await dialog.waitFor({ state: 'detached' });
    await page.getByRole('button', { name: /^Find/ }).click();
    await dialog.waitFor();
  });
});
