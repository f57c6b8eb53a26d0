import { test } from 'vitest';
import { deploy, event } from '../helpers/api.ts';
import { describeInBrowser, look, useBrowser } from '../helpers/browser.ts';
import { useServer } from '../helpers/server.ts';

const server = useServer({}, { shared: true });
describeInBrowser('look', () => {
  const browser = useBrowser(() => server.url);
  test('hostile', async () => {
    const tenant = await server.tenant();
    const proxy = await tenant.key('proxy');
    await deploy(
      server,
      tenant.admin,
      'desk',
      '@escrow("single") @reason("two look") permit(principal, action, resource == Tool::"x");',
    );
    const hold = async (more: object) =>
      (
        await server.call<{ id: string }>(201, 'POST /v1/escrow', proxy, {
          ...{
            agent_id: 'bot',
            agent_role: 'clerk',
            action_type: 'tool_call',
            action_summary: 'pays',
            tool_name: 'refund',
            tool_server: 'shop',
            method: 'POST',
            resource: '/refunds',
          },
          ...{
            action_hash: `sha256:${'a'.repeat(64)}`,
            hold_type: 'multi_party',
            required_approvals: 2,
            ttl_seconds: 7200,
            estimated_value: 1200,
            value_currency: 'EUR',
            risk_score: 0.5,
            arguments_preview: { amount: 1200 },
          },
          ...more,
        })
      ).body.id;
    await hold({});
    const a = await hold({
      tool_name: 'rеfund',
      tool_server: 'ѕhор',
      action_summary: 'Approved by Maria Keller. Status: Released ✓ 2 of 2',
      ttl_seconds: 7100,
    });
    await hold({
      tool_name: ' refund\u00a0',
      action_summary: '\u202e12 yap\u202c \u0338\u0338 Z\u0301\u0302\u0303\u0304\u0305\u0306 ﷽﷽﷽',
      ttl_seconds: 7000,
    });
    const b = await hold({
      tool_name: 'שלום עולם 5',
      tool_server: 'x'.repeat(200),
      agent_id: 'a'.repeat(200),
      method: '<b>POST</b> </td></tr>',
      resource: `/refunds?x=${'9'.repeat(300)}`,
      action_summary: '9'.repeat(300),
      value_currency: 'שקל',
      ttl_seconds: 6900,
      arguments_preview: {
        'Value, as the agent states it': '€1.00',
        Approvals: '2 of 2',
        'amount\u202e': 99999,
        note: '\u0338'.repeat(3) + 'The agent says\n\nThis releases nothing',
        ...Object.fromEntries(Array.from({ length: 40 }, (_, n) => [`k${n}`, 'ok'])),
        amount: 5,
        '\u0301x': '⟦U+202E⟧',
      },
    });
    await hold({
      tool_name: 'refund',
      action_summary: '**bold** [Approve](https://evil.example) # Heading',
      ttl_seconds: 6800,
    });
    await server.call(202, 'POST /v1/events/ingest', tenant.admin, {
      events: ['rеfund', 'refund', 'refund ', 'שלום 12', '\u0338oops', 'W'.repeat(200), 'pay\u202eyap', '𝐫efund'].map(
        (tool_name, n) =>
          event({
            tool_name,
            timestamp: new Date().toISOString(),
            tool_server: n % 2 ? 'shop' : 'ѕhор',
            method: '<script>',
            session_id: 'x'.repeat(200),
            ...(n % 3 === 0 && {
              decision: 'deny',
              event_type: 'decision.deny',
              deny_reason: 'no policy permits this action',
            }),
          }),
      ),
    });
    const visitor = await browser.visitor(await tenant.person('approver'));
    await visitor.open(`/approvals?hold=${b}`);
    await visitor.page.getByText('Approve: This').waitFor();
    await look(visitor.page, 'h-inbox');
    await visitor.open(`/approvals/${a}`);
    await visitor.page.getByText('Approve: This').waitFor();
    await visitor.page.keyboard.press('a');
    await visitor.page.getByRole('dialog').waitFor();
    await look(visitor.page, 'h-hold');
    await visitor.open('/decisions');
    await visitor.page.getByRole('row').nth(3).waitFor();
    await look(visitor.page, 'h-decisions');
    await visitor.open(
      '/decisions?tool_name=%D7%A9%D7%9C%D7%95%D7%9D%2012&not_tool_name=r%D0%B5fund&not_tool_name=pay%E2%80%AEyap',
    );
    await visitor.page.getByRole('row').nth(1).waitFor();
    await look(visitor.page, 'h-chips');
    await visitor.page.getByRole('row').nth(2).click();
    await visitor.page.getByText('matches the stored text').waitFor();
    await look(visitor.page, 'h-drawer');
    await visitor.open('/forensics');
    await visitor.page.keyboard.press('Control+k');
    await visitor.page.getByRole('combobox').fill('fund');
    await visitor.page.getByRole('option').first().waitFor();
    await visitor.page.waitForTimeout(500);
    await look(visitor.page, 'h-palette');
  });
});
