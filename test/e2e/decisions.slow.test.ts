import { expect, test } from 'vitest';
import { deploy, event, GUARD } from '../helpers/api.ts';
import { describeInBrowser, look, useBrowser } from '../helpers/browser.ts';
import { useServer } from '../helpers/server.ts';
import { evaluate } from './act.ts';

const server = useServer({}, { browsed: true, shared: true });

describeInBrowser('the stream of decisions', () => {
  const browser = useBrowser(() => server.url);

  test('takes no earlier decision for a new one, however many came at the same time', async () => {
    const tenant = await server.tenant();
    const ingest = (...names: string[]) =>
      server.call(202, 'POST /v1/events/ingest', tenant.admin, {
        events: names.map((tool_name) => event({ tool_name })),
      });
    await ingest(...Array.from({ length: 100 }, (_, n) => `tool-${n}`));
    const { page, open } = await browser.visitor(await tenant.person('viewer'));
    await open('/decisions');
    const tools = page.getByRole('button', { name: /: Allowed, details/ });
    await page.getByRole('button', { name: 'tool-99: Allowed, details' }).waitFor();
    await ingest('one-more');
    await page.getByRole('button', { name: 'one-more: Allowed, details' }).waitFor();
    expect(await tools.allInnerTexts()).toEqual([
      'one-more',
      ...Array.from({ length: 60 }, (_, n) => `tool-${99 - n}`),
    ]);
    expect(await page.locator('.arrived').count()).toBe(1);
  });

  test('shows each decision once, in order, waits while paused, and keeps its filter in the address', async () => {
    const tenant = await server.tenant();
    await deploy(server, tenant.admin, 'guard', GUARD);
    const visitor = await browser.visitor(await tenant.person('viewer'));
    const { page } = visitor;
    await visitor.open('/decisions');
    await page.getByRole('heading', { name: 'No decisions yet' }).waitFor();
    await evaluate(server, tenant, 'read');
    await page.getByRole('button', { name: 'read: Allowed, details' }).waitFor();
    await page.getByRole('button', { name: 'Pause' }).click();
    await evaluate(server, tenant, 'other');
    await page.getByRole('button', { name: 'Resume (1 new)' }).click();
    await page.getByRole('button', { name: /^other: Denied/ }).waitFor();
    await visitor.assertAccessible();

    await page.getByRole('combobox', { name: 'Tool' }).fill('other');
    await page.waitForURL(/tool_name=other/);
    await page.getByRole('button', { name: /^read:/ }).waitFor({ state: 'detached' });
    await page.reload();
    expect(await page.getByRole('combobox', { name: 'Tool' }).inputValue()).toBe('other');
    await page.getByRole('button', { name: /^other: Denied/ }).waitFor();
    expect(await page.getByRole('button', { name: /: Denied|: Allowed/ }).count()).toBe(1);
    await page.getByRole('button', { name: /^other: Denied/ }).click();
    const drawer = page.getByRole('dialog');
    for (const fact of [
      'Rule that decided',
      'Position in the chain',
      'Commitment to the input',
      'Commitment to the action',
    ]) {
      await drawer.getByText(fact, { exact: true }).waitFor();
    }
    await drawer.getByRole('button', { name: 'Copy curl' }).waitFor();
    await visitor.assertAccessible();
    // to what else happened in its trace
    const trace = drawer.getByRole('link', { name: /^[0-9a-f]{32}$/ });
    const id = (await trace.textContent())!;
    await trace.click();
    await page.waitForURL(/trace_id=/);
    await drawer.waitFor({ state: 'detached' });
    expect(await page.getByRole('textbox', { name: 'Trace (the agent says)' }).inputValue()).toBe(id);
    await page.getByRole('button', { name: /^other: Denied/ }).waitFor();
    await page.goBack();
    await drawer.waitFor();
    await page.goBack();
    await drawer.waitFor({ state: 'detached' });
    await page.getByRole('combobox', { name: 'Tool' }).fill('nothing');
    await page.getByRole('button', { name: 'Clear the filters' }).click();
    await page.getByRole('button', { name: /^read:/ }).waitFor();
  });

  test('shows what is known of a session: from which tool, until when, and who said so', async () => {
    const tenant = await server.tenant();
    const declared = '@fact("status[id] = answer.status from get_order for 30m reported")';
    await deploy(
      server,
      tenant.admin,
      'orders',
      `${declared} permit(principal, action, resource == Tool::"get_order");`,
    );
    const agent = await tenant.agent('bot', 'clerk');
    const asked = await server.call<{ event_id: string }>(200, 'POST /v1/evaluate', agent, {
      ...{ action_type: 'tool_call', tool_name: 'get_order', session_id: 'visit-1', arguments: { id: 'A' } },
    });
    const { event_id } = asked.body;
    const answer = { status: 'pend\u202eing' };
    await server.call(200, 'POST /v1/outcomes', agent, { event_id, outcome: 'succeeded', answer });
    const visitor = await browser.visitor(await tenant.person('viewer'));
    const { page } = visitor;
    await visitor.open('/decisions?session_id=visit-1');
    const known = page.getByRole('region', { name: 'Facts now of session visit-1' });
    const line = known.getByRole('listitem');
    // what cannot be seen is shown
    await line.getByText('status[A] = "pendU+202Eing"').waitFor();
    await line.getByText('From an answer of get_order, asked for by bot').waitFor();
    await line.getByText('the agent said so').waitFor();
    expect(await line.locator('time').count()).toBe(2);
    await visitor.assertAccessible();
    await line.getByRole('link', { name: 'The decision on the call' }).click();
    await page.waitForURL(new RegExp(`event=${event_id}`));
    await page.getByRole('dialog').getByText('status[A] = "pendU+202Eing"').waitFor();
    await visitor.assertAccessible();
    await visitor.open('/decisions?session_id=other');
    await page.getByText('None. Policies decide').waitFor();
  });

  test('tells a session as a story, which a decision leads to, and keeps apart who else uses its id', async () => {
    const tenant = await server.tenant();
    await deploy(
      server,
      tenant.admin,
      'desk',
      `@id("look") permit(principal, action, resource == Tool::"look");
       @id("refund") @escrow("single") permit(principal, action, resource == Tool::"refund");`,
    );
    const approver = await tenant.person('approver');
    const agents = [await tenant.agent('bot', 'clerk'), await tenant.agent('mallory', 'clerk')] as const;
    const ask = async (agent: (typeof agents)[number], tool_name: string, more: object = {}) =>
      (
        await server.call<{ event_id: string; escrow?: { id: string } }>(200, 'POST /v1/evaluate', agent, {
          ...{ action_type: 'tool_call', tool_name, session_id: 'case/4471 <b>?', ...more },
        })
      ).body;
    const refund = { arguments: { amount: 900 }, estimated_value: 900, value_currency: 'EUR' };
    const { event_id } = await ask(agents[0], 'look');
    const { escrow } = await ask(agents[0], 'refund', refund);
    const vote = { decision: 'approve', reason: 'fine \u202ereally' };
    await server.call(200, `POST /v1/escrow/${escrow!.id}/vote`, approver, vote);
    await ask(agents[0], 'refund', { ...refund, resume: true });
    await ask(agents[0], 'erase');
    await ask(agents[1], 'erase');
    const visitor = await browser.visitor(await tenant.person('viewer'));
    const { page } = visitor;
    await visitor.open(`/decisions/${event_id}`);
    await page.getByRole('link', { name: 'case/4471 <b>?' }).last().click();
    await page.getByRole('heading', { name: 'Session case/4471 <b>?' }).waitFor();
    const told = page.getByRole('list', { name: 'What happened, in its order' }).getByRole('listitem');
    await told.getByText('Consumed').waitFor();
    const lines = (await told.allInnerTexts()).map((line) => line.replaceAll(/\s+/g, ' '));
    const order = [
      /Allowed look/,
      /Held refund.*stated value €900/,
      /approved the hold.*U\+202E/,
      /Released/,
      /Consumed/,
    ];
    expect(lines).toEqual([...order, /Allowed refund/, /Denied erase/].map((line) => expect.stringMatching(line)));
    expect(lines[4]).toContain('€900.00 used in this session by then');
    await page.getByText('Other agents name this session too').waitFor();
    await visitor.assertAccessible();
    await look(page, 'session');
    await page.getByRole('button', { name: 'Denied (1)' }).click();
    await expect.poll(() => told.count()).toBe(1);
    expect(new URL(page.url()).searchParams.get('decision')).toBe('deny');
    await page.getByRole('link', { name: 'mallory' }).click();
    await page.getByRole('button', { name: 'Everything (1)' }).waitFor();
    await page.getByRole('link', { name: 'All decisions of it' }).click();
    await page.getByRole('button', { name: 'erase: Denied, details' }).waitFor();
    expect(await page.getByRole('button', { name: /: Denied, details|: Allowed, details/ }).count()).toBe(1);
  });
});
