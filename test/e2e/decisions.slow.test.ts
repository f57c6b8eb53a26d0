import { expect, test } from 'vitest';
import { deploy, event, GUARD } from '../helpers/api.ts';
import { describeInBrowser, useBrowser } from '../helpers/browser.ts';
import { useServer } from '../helpers/server.ts';
import { evaluate } from './act.ts';

const server = useServer({}, { shared: true });

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
    const readOn = page.waitForResponse((answer) => decodeURIComponent(answer.url()).includes('"order":"asc"'));
    await open('/decisions');
    await readOn;
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
    const known = page.getByRole('region', { name: 'Facts of session visit-1 now' });
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
});
