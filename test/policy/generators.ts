import fc from 'fast-check';
import type { ActionRequest } from '../../server/domain/policy.ts';

/** Random policies and requests that read and hold arguments in every way there is. */

export const LISTS = [{ name: 'friends', version: 1, values: ['ann@example.com', 'bob@example.com'] }];

/** Declares the fact that a condition reads. */
export const DECLARED =
  '@fact("total[order_id] = answer.total from get_order") permit(principal, action, resource == Tool::"get_order");';

/** Conditions that read arguments in every way that the language has, beside attributes of the context. */
export const CONDITIONS = [
  'when { context.num.hasTag("refund.total") && context.num.getTag("refund.total").lessThan(decimal("100.0")) }',
  'when { context.str.hasTag("items[0].sku") && context.str.getTag("items[0].sku") like "A*" }',
  'when { context.num.hasTag("items.length") && context.num.getTag("items.length").greaterThan(decimal("1.0")) }',
  'when { context.list.hasTag("to") && context.list.getTag("to").contains("ann@example.com") }',
  'when { context.bool.hasTag("dry_run") && context.bool.getTag("dry_run") }',
  'when { context.str.hasTag("context.ticket") && context.str.getTag("context.ticket") == "7" }',
  'when { context.num.hasTag("context.risk.score") && context.num.getTag("context.risk.score").greaterThan(decimal("0.5")) }',
  'when { context has method && context.str.hasTag(context.method) }',
  'when { context has path && context.path like "/a/*" }',
  'when { context has amount && context.amount.greaterThan(decimal("10.0")) }',
  'when { context has currency && context.currency == "EUR" }',
  'when { context.session.call_count > 2 }',
  'when { context.session.called.hasTag("read_customer") }',
  'unless { context.session.lowest_trust >= 50 }',
  'when { context.session.num.hasTag("total[ticket]") && context.session.num.getTag("total[ticket]").lessThan(decimal("9.0")) }',
  'when { context has source_ip && context.source_ip.isInRange(ip("10.0.0.0/8")) }',
  'when { context.risk_score.greaterThan(decimal("0.5")) }',
  'when { context.session.call_count + 9223372036854775806 > 0 }',
  'when { context.facts.hasTag("to in friends") }',
  'when { context.facts.hasTag("to any in friends") }',
  'when { context.facts.hasTag("refund.note matches ^[a-z0-9-]+$") }',
  'unless { context.facts.hasTag("to all matches @example\\\\.com$") }',
  'when { context.num.hasTag("Größe") && context.num.getTag("Größe").lessThan(decimal("3.0")) }',
  'when { principal has owner && principal.owner == "usr_1" }',
  'when { action in Action::"write" }',
  '',
  '',
];
export const statement = fc.oneof(
  { arbitrary: fc.constant('permit(principal, action, resource);'), weight: 1 },
  {
    weight: 6,
    arbitrary: fc
      .tuple(
        fc.constantFrom(
          '',
          '',
          '@escrow("single")',
          '@mask("$.iban")',
          '@rate("2/h")',
          '@rate("1/d per arguments.iban")',
          '@rate("3/h per session") @budget("500 EUR/d")',
          '@budget("500 EUR/d of arguments.refund.total per owner")',
          '@escrow("single") @mask("$..secret")',
        ),
        fc.constantFrom('permit', 'permit', 'forbid'),
        fc.constantFrom('principal', 'principal in AgentRole::"bot"', 'principal == Agent::"agent-2"'),
        fc.constantFrom('action', 'action == Action::"tool_call"', 'action in Action::"read"'),
        fc.constantFrom('resource', 'resource == Tool::"refund"', 'resource in ToolServer::"crm"'),
        fc.constantFrom(...CONDITIONS),
      )
      .map(
        ([annotations, effect, who, what, on, when]) => `${annotations} ${effect} (${who}, ${what}, ${on}) ${when};`,
      ),
  },
);

const scalar = fc.oneof(
  fc.constantFrom<unknown>(
    ...[0, 1, 99.5, 250, -1, 1e-7, '99.5', '250', '1e3', 'A-1', '', 'ann@example.com', true, null],
  ),
  fc.constantFrom<unknown>('{"total":5}', 'v', 'x'.repeat(20), 'GET', '７', 'bob@example.com'),
);
const names = fc.constantFrom(
  ...['refund', 'total', 'items', 'sku', 'to', 'dry_run', 'ticket', 'iban', 'secret', 'note', 'GET', 'Größe', 'grÖsse'],
  ...[
    'Refund',
    'refund.total',
    'refund[total]',
    'items[0]',
    'ＴＯ',
    'to\u200b',
    'context',
    'length',
    '__proto__',
    'risk',
  ],
);
const { json } = fc.letrec<{ json: unknown }>((tie) => ({
  json: fc.oneof(
    { maxDepth: 4, depthSize: 'small' },
    { arbitrary: scalar, weight: 3 },
    { arbitrary: fc.array(tie('json'), { maxLength: 3 }), weight: 1 },
    { arbitrary: fc.array(fc.constantFrom('ann@example.com', 'v', ''), { maxLength: 3 }), weight: 1 },
    {
      arbitrary: fc
        .array(fc.tuple(names, tie('json')), { maxLength: 4 })
        // as JSON.parse gives it: `__proto__` is a member like any other
        .map((members) =>
          JSON.parse(`{${members.map(([name, value]) => `${JSON.stringify(name)}:${JSON.stringify(value)}`).join()}}`),
        ),
      weight: 3,
    },
  ),
}));
/** Requests in which what is read is there more often than by chance. */
const shaped = fc
  .record(
    {
      refund: fc.record({ total: scalar, note: scalar }, { requiredKeys: [] }),
      items: fc.array(fc.oneof(fc.record({ sku: scalar, secret: scalar }), scalar), { maxLength: 3 }),
      to: fc.oneof(fc.array(fc.constantFrom('ann@example.com', 'eve@example.com')), scalar),
      dry_run: scalar,
      iban: scalar,
    },
    { requiredKeys: [] },
  )
  .chain((base) => json.map((more) => (fc.stringify(more).length % 3 === 0 ? { ...base, ...Object(more) } : base)));
const optional = <T>(value: fc.Arbitrary<T>) => fc.option(value, { nil: undefined });
export const requests = fc.record({
  agent_id: fc.constantFrom('agent-1', 'agent-2'),
  agent_role: fc.constantFrom('bot', 'clerk'),
  action_type: fc.constantFrom('tool_call', 'db_query', 'unknown_type'),
  // the last of each may be another spelling of a name that a statement knows
  tool_name: fc.constantFrom('refund', 'refund', 'mail', 'mail', 'Ｒefund'),
  tool_server: fc.constantFrom('crm', 'crm', undefined, undefined, 'CRM'),
  tool_pin: fc.constantFrom(undefined, null, `sha256:${'0'.repeat(64)}`),
  method: optional(fc.constantFrom('GET', 'put')),
  resource: optional(fc.constantFrom('/a/b/../c', 'https://x.example/a/c?q=secret', '/z')),
  arguments: optional(fc.oneof(shaped, json)),
  context: optional(json.map((value) => ({ ticket: '7', risk: { score: 0.7 }, ...Object(value) }))),
  session_id: optional(fc.constantFrom('s')),
  session: fc.constantFrom(
    undefined,
    { call_count: 5, started: '2026-01-01T00:00:00.000Z' },
    {
      ...{ call_count: 1, lowest_trust: 20, called: ['read_customer', 'other'] },
      facts: { 'total[ticket]': 5, 'secret[ticket]': 'DE02' },
    },
  ),
  estimated_value: optional(fc.constantFrom(5, 50, 0.123456)),
  value_currency: optional(fc.constantFrom('eur', 'USD')),
  risk_score: optional(fc.constantFrom(0.2, 0.9)),
  source_ip: optional(fc.constantFrom('10.1.2.3', '::ffff:10.0.0.1', 'nowhere')),
  owner: optional(fc.constantFrom('usr_1', 'usr_2')),
  now: fc.constant('2026-01-02T10:00:00.000Z'),
}) as fc.Arbitrary<ActionRequest>;
