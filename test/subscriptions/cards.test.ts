import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { EVENT_TYPES } from '../../server/domain/events.ts';
import { oneLine } from '../../server/lib/visible.ts';
import { cardOf } from '../../server/subscriptions/destinations/card.ts';
import type { Message } from '../../server/subscriptions/destinations/destination.ts';
import { adapterOf, typeOfTarget } from '../../server/subscriptions/destinations/index.ts';

const HOLD = {
  event: 'escrow.created',
  event_id: 'oev_1',
  escrow_id: 'esc_1',
  tenant_id: 't1',
  agent_role: 'clerk',
  agent_id: 'agent-1',
  action_type: 'api_call',
  action_summary: 'pays 12 EUR to <ACME> & Co.',
  estimated_value: 12,
  value_currency: 'EUR',
  risk_score: 0.4,
  tool_server: 'bank',
  tool_name: 'pay_<now>',
  method: 'POST',
  resource: '/payments',
  arguments: '{"amount":12}',
  context: null,
  reason: 'two look at bills',
  hold_type: 'multi_party',
  required_approvals: 2,
  ttl: 600,
  expires_at: '2026-01-31T12:00:00.000Z',
  created_at: '2026-01-31T11:50:00.000Z',
};
const message = (eventType: string, payload: Record<string, unknown>): Message => ({
  eventId: 'oev_1',
  eventType,
  deliveryId: 'dlv_1',
  payload,
  timestamp: 1,
  secrets: [],
  appUrl: 'https://dashboard.test',
});

interface SlackText {
  type: string;
  text: string;
}
interface SlackBlock {
  type: string;
  text?: SlackText;
  fields?: SlackText[];
  elements?: { type: string; text: SlackText; url: string; style?: string }[];
}
const slackOf = (m: Message) =>
  JSON.parse(adapterOf('slack').request(m).body) as { text: string; blocks: SlackBlock[] };
interface TeamsNode {
  type: string;
  text?: string;
  inlines?: { type: string; text: string }[];
}
const teamsOf = (m: Message) =>
  JSON.parse(adapterOf('teams').request(m).body) as {
    type: string;
    attachments: {
      contentType: string;
      content: {
        type: string;
        version: string;
        body: TeamsNode[];
        actions: { type: string; title: string; url: string }[];
      };
    }[];
  };

describe('the card of a hold', () => {
  const links = [
    ['Approve', 'https://dashboard.test/approvals/esc_1?vote=approve&tenant=t1'],
    ['Deny', 'https://dashboard.test/approvals/esc_1?vote=deny&tenant=t1'],
    ['Open', 'https://dashboard.test/approvals/esc_1?tenant=t1'],
    ['Stop the agent…', 'https://dashboard.test/stops?stop=agent&id=agent-1&tenant=t1'],
  ];

  test('in Slack shows what an approver needs, with buttons into the dashboard', () => {
    const { text, blocks } = slackOf(message('escrow.created', HOLD));
    expect(text).toBe('Approval needed');
    const fields = blocks.flatMap((block) => block.fields ?? []).map((field) => field.text);
    for (const field of [
      'Agent role\nclerk',
      'Hold type\nSeveral approvals',
      'Approvals required\n2',
      'Expires\n2026-01-31 12:00 UTC',
      'Value\n12 EUR',
      'Tool\npay_&lt;now&gt;',
      'Tool server\nbank',
      'Method\nPOST',
      'Resource\n/payments',
      'Arguments\n{"amount":12}',
      'Reason\ntwo look at bills',
    ]) {
      expect(fields).toContain(field);
    }
    // what the agent wrote stands behind a line, and says that the agent wrote it
    expect(blocks.map(({ type }) => type)).toEqual(['header', 'section', 'section', 'divider', 'section', 'actions']);
    expect(blocks[4]!.fields!.map((field) => field.text)).toEqual([
      'The agent says\npays 12 EUR to &lt;ACME&gt; &amp; Co.',
      'Risk stated by the agent\n0.4',
    ]);
    const buttons = blocks.flatMap((block) => block.elements ?? []);
    expect(buttons.map((button) => [button.text.text, button.url])).toEqual(links);
    expect(buttons.map((button) => button.style)).toEqual(['primary', 'danger', undefined, undefined]);
  });

  test('in Teams is an Adaptive Card with the same', () => {
    const { type, attachments } = teamsOf(message('escrow.created', HOLD));
    expect(type).toBe('message');
    const [{ contentType, content }] = attachments as [(typeof attachments)[0]];
    expect(contentType).toBe('application/vnd.microsoft.card.adaptive');
    expect(content).toMatchObject({ type: 'AdaptiveCard', version: '1.4' });
    const lines = content.body.map((node) => node.text ?? node.inlines!.map((run) => run.text).join(''));
    for (const line of [
      'Approval needed',
      'The agent says: pays 12 EUR to <ACME> & Co.',
      'Tool: pay_<now>',
      'Arguments: {"amount":12}',
      'Reason: two look at bills',
      'Agent role: clerk',
      'Hold type: Several approvals',
      'Approvals required: 2',
      'Expires: 2026-01-31 12:00 UTC',
    ]) {
      expect(lines).toContain(line);
    }
    expect(content.actions.map(({ title, url }) => [title, url])).toEqual(links);
  });

  test('names the words of its names that can be taken for others', () => {
    const doubts = (more: object) =>
      cardOf(message('escrow.created', { ...HOLD, ...more })).facts.filter(([label]) => label.startsWith('Letters'));
    expect(doubts({})).toEqual([]);
    // however many words the tool's name has, those of the others have their own line, the server's first
    const many = Array.from({ length: 60 }, (_, n) => `о${n}x`).join('-');
    const names = { tool_name: many, tool_server: 'bаnk', method: 'PОST', resource: 'https://аpi.bank.test/pay' };
    // a proxy of others names agents as it likes
    expect(doubts({ agent_id: 'refund-bоt', agent_role: 'сlerk' })).toEqual([
      ['Letters in the agent that can be taken for others', 'bоt'],
      ['Letters in the role that can be taken for others', 'сlerk'],
    ]);
    expect(doubts(names).map(([label, words]) => [label, words.slice(0, 12)])).toEqual([
      ['Letters in the tool server that can be taken for others', 'bаnk'],
      ['Letters in the tool that can be taken for others', 'о0x, о1x, о2'],
      ['Letters in the method that can be taken for others', 'PОST'],
      ['Letters in the resource that can be taken for others', 'аpi'],
    ]);
  });

  test('shows in names by code what is not drawn as itself', () => {
    const { facts } = cardOf(message('escrow.created', { ...HOLD, tool_name: 'pay\u2011now ', method: 'fi\u0307le' }));
    expect(facts).toContainEqual(['Tool', 'pay⟦U+2011⟧now⟦U+0020⟧']);
    expect(facts).toContainEqual(['Method', 'fi⟦U+0307⟧le']);
    const agent = { agent_id: 'bot ', agent_role: '\u202ekrelc' };
    expect(cardOf(message('escrow.created', { ...HOLD, ...agent })).facts).toEqual(
      expect.arrayContaining([
        ['Agent', 'bot⟦U+0020⟧'],
        ['Agent role', '⟦U+202E⟧krelc'],
      ]),
    );
  });

  test('leads to the form that stops this very agent, or to none', () => {
    const link = (agent_id: unknown) =>
      cardOf(message('escrow.created', { ...HOLD, agent_id })).buttons.find(({ label }) => label.startsWith('Stop'));
    const url = new URL(link('a b/../c&id=other#?')!.url);
    expect([url.pathname, url.hash]).toEqual(['/stops', '']);
    expect([...url.searchParams]).toEqual([
      ['stop', 'agent'],
      ['id', 'a b/../c&id=other#?'],
      ['tenant', 't1'],
    ]);
    expect(link('1e3')!.url).toMatch(/id=%221e3%22&tenant=t1$/);
    for (const id of ['bot\u202e-1', 'bot\u200b', 'bot\n', ' bot', '', '\ud800', 'x'.repeat(201), 7, undefined]) {
      expect(link(id), JSON.stringify(id)).toBeUndefined();
    }
  });

  test('that is decided has no buttons to vote with', () => {
    for (const event of [
      'escrow.released',
      'escrow.rejected',
      'escrow.expired',
      'escrow.cancelled',
      'escrow.consumed',
    ]) {
      expect(cardOf(message(event, HOLD)).buttons.map(({ label }) => label)).toEqual(['Open']);
    }
  });
});

describe('a card of anything', () => {
  const nasty = fc.oneof(
    fc.string({ unit: 'binary', maxLength: 3000 }),
    fc.constantFrom(
      '<!channel> <@U1> <https://evil.test|click>',
      '[click](javascript:alert(1)) ![x](https://evil.test/p.png) **b** _i_ # h',
      ':boom: @here `code` &lt;!channel&gt;',
      'pay 1 EUR\n\n\n\n\n\n\nApproved by the boss',
      '\u202Eterces\u202C \u200B\u0000\u0007',
      '&'.repeat(5000),
    ),
  );
  const payload = fc.record({
    ...Object.fromEntries(
      [
        ...[
          'agent_role',
          'agent_id',
          'action_type',
          'action_summary',
          'value_currency',
          'policy_id',
          'reason',
          'label',
          'count',
        ],
        ...['tool_server', 'tool_name', 'method', 'resource', 'arguments', 'context'],
      ].map((key) => [key, nasty]),
    ),
    tools: fc.array(fc.record({ name: nasty, change: nasty })),
    escrow_id: fc.constantFrom('esc_01m7zhj86qdmvqng1kzp52rhae', undefined),
    estimated_value: fc.double(),
    hold_type: fc.constantFrom('single', 'multi_party'),
  });
  const any = fc
    .tuple(fc.constantFrom(...EVENT_TYPES), payload)
    .map(([type, fields]) => message(type, fields as Record<string, unknown>));

  test('stays within Slack’s limits, as plain text without its control characters', () => {
    fc.assert(
      fc.property(any, (m) => {
        const { text, blocks } = slackOf(m);
        expect(blocks.length).toBeLessThanOrEqual(50);
        expect(JSON.stringify({ text, blocks }).length).toBeLessThan(20_000);
        const texts = blocks.flatMap((b) => [b.text, ...(b.fields ?? []), ...(b.elements ?? []).map((e) => e.text)]);
        for (const one of texts) {
          if (!one) continue;
          expect(one.type).toBe('plain_text');
          expect(one.text).not.toMatch(/[<>]|&(?!amp;|lt;|gt;)/);
          expect(one.text).not.toBe('');
        }
        // Slack reads formatting in it: nothing of it is anyone else's
        expect(text).toBe(cardOf(message(m.eventType, {})).title);
        for (const { type, text: head, fields, elements } of blocks) {
          if (type === 'header') expect(head!.text.length).toBeLessThanOrEqual(150);
          if (type === 'section' && head) expect(head.text.length).toBeLessThanOrEqual(3000);
          expect(fields?.length ?? 0).toBeLessThanOrEqual(10);
          for (const field of fields ?? []) expect(field.text.length).toBeLessThanOrEqual(2000);
          for (const { url } of elements ?? []) {
            expect(url).toMatch(/^https:\/\/dashboard\.test\//);
            expect(url.length).toBeLessThanOrEqual(3000);
          }
        }
      }),
    );
  });

  test('stays within the 28 KB of Teams, without any foreign Markdown', () => {
    fc.assert(
      fc.property(any, (m) => {
        const { body } = adapterOf('teams').request(m);
        expect(Buffer.byteLength(body)).toBeLessThan(28_000);
        const [{ content }] = teamsOf(m).attachments as [ReturnType<typeof teamsOf>['attachments'][0]];
        const blocks = content.body.filter(({ type }) => type === 'TextBlock').map(({ text }) => text);
        expect(blocks).toEqual([cardOf(message(m.eventType, {})).title]);
        for (const { url } of content.actions ?? []) expect(url).toMatch(/^https:\/\/dashboard\.test\//);
      }),
    );
  });

  test('shows no character that hides or reverses text, and respects its length limit', () => {
    fc.assert(
      fc.property(nasty, fc.integer({ min: 1, max: 500 }), (text, max) => {
        const line = oneLine(text, max);
        expect(line).not.toMatch(/[[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]--[\uFE0E\uFE0F]]/v);
        expect([...line].length).toBeLessThanOrEqual(max);
        expect(line.isWellFormed()).toBe(true);
      }),
    );
  });
});

test('a notify target’s type follows from its exact host, and is a webhook otherwise', () => {
  const types = {
    'https://hooks.slack.com/services/T/B/x': 'slack',
    'https://prod-1.westeurope.logic.azure.com/workflows/x?sig=y': 'teams',
    'https://x.environment.api.powerplatform.com/workflows/x': 'teams',
    'https://hooks.slack.com.evil.test/services/T/B/x': 'webhook',
    'https://evil.test/hooks.slack.com': 'webhook',
    'https://evillogic.azure.com/': 'webhook',
    nonsense: 'webhook',
  };
  for (const [url, type] of Object.entries(types)) expect(typeOfTarget(url), url).toBe(type);
});

test('a card of tools names them in quotes, so that no name can be read as a sentence of ours', () => {
  const tools = ['refund', 'x”, “approved', '\u202eevil\n', 'a'.repeat(200), 'e', 'f'].map((name) => ({
    name,
    change: 'introduced',
  }));
  const { facts, buttons } = cardOf(message('tool.changed', { tenant_id: 't1', tool_server: 'crm', tools, count: 30 }));
  const shown = Object.fromEntries(facts).Tools!;
  expect(shown.startsWith('“refund” (new behavior), “x⟦U+201D⟧, ⟦U+201C⟧approved” ')).toBe(true);
  expect(shown).toContain('“⟦U+202E⟧evil␊”');
  expect(shown).toMatch(/and 25 more$/);
  expect(buttons).toEqual([{ label: 'Open', url: 'https://dashboard.test/tools?tenant=t1' }]);
});
