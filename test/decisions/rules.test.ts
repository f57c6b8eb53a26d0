import { expect, test } from 'vitest';
import { hiding } from '../../server/policy/decision-rules.ts';
import { sql } from '../helpers/api.ts';
import { type TestTenant, useServer } from '../helpers/server.ts';
import { enforce } from '../proxy/support.ts';

const server = useServer({}, { shared: true });

const POLICY = `@id("small") permit(principal, action, resource == Tool::"pay")
when { context.num.hasTag("amount") && (context.num.getTag("amount").lessThan(decimal("100.0")) || context.num.getTag("amount") == decimal("500.0")) };
@id("known") permit(principal, action, resource == Tool::"pay")
when { context.str.hasTag("iban") && context.str.getTag("iban") like "DE*" };
@id("never") @reason("not on Sundays") forbid(principal, action, resource == Tool::"burn");
@id("hide") @mask("$.iban") permit(principal, action, resource == Tool::"other");`;

interface Rules {
  known: boolean;
  asked: string | null;
  rules: {
    rule_id: string;
    version: number;
    effect: string;
    decided: boolean;
    matched: boolean;
    reason: string | null;
    cedar: string;
    conditions: { text: string; line: number; column: number; outcome: string }[] | null;
  }[];
}

async function decided(tenant: TestTenant, tool_name: string, args: object): Promise<string> {
  const agent = await tenant.agent('agent-1', 'clerk');
  const { body } = await server.call<{ event_id: string }>(200, 'POST /v1/evaluate', agent, {
    ...{ action_type: 'payment', tool_name, arguments: args },
  });
  return body.event_id;
}

test('a denial says which rules its request met, and what each condition was, to those who may see requests', async () => {
  const tenant = await server.tenant();
  await enforce(server, tenant, 'desk', POLICY);
  const id = await decided(tenant, 'pay', { amount: 300, iban: 'FR1' });
  const line = `GET /v1/events/${id}/rules`;
  const [viewer, approver] = [await tenant.person('viewer'), await tenant.person('approver')];
  // nothing permits it, so the record names no rule
  expect((await server.call<Rules>(200, line, viewer)).body).toMatchObject({ known: true, asked: null, rules: [] });
  await server.call(403, `${line}?conditions=true`, viewer);
  await server.call(404, line, await (await server.tenant()).person('admin'));
  await server.call(404, 'GET /v1/events/evt_none/rules', viewer);

  const { body } = await server.call<Rules>(200, `${line}?conditions=true`, approver);
  expect(body).toMatchObject({ known: true, asked: 'input' });
  const [known, small] = body.rules.sort((a, b) => (a.rule_id < b.rule_id ? -1 : 1));
  expect(small).toMatchObject({ rule_id: 'desk#small', version: 1, effect: 'permit', decided: false, matched: false });
  expect(small!.conditions!.map(({ outcome }) => outcome)).toEqual(['true', 'false', 'false']);
  // each is found in the text where it says
  for (const { text, line, column } of small!.conditions!) {
    expect(small!.cedar.split('\n')[line - 1]!.slice(column - 1)).toMatch(new RegExp(`^${RegExp.escape(text)}`));
  }
  // whether a masked value begins so is not told
  expect(known!.rule_id).toBe('desk#known');
  expect(known!.conditions!.map(({ outcome }) => outcome)).toEqual(['masked', 'masked']);

  const log = await server.call<{ records: { actor: { id: string }; detail: string }[] }>(
    200,
    `GET /v1/audit?action=decision.input_read&target_id=${id}`,
    approver,
  );
  expect(log.body.records.map(({ actor, detail }) => [actor.id, detail])).toEqual([
    [approver.userId, 'what conditions were, with masks'],
  ]);

  // the part that policies read is enough; without it the texts are still there
  await sql(server, 'update decision_input set input = null, salt_b = null where tenant_id = $1', [tenant.id]);
  const narrowed = await server.call<Rules>(200, `${line}?conditions=true`, approver);
  expect(narrowed.body.asked).toBe('projection');
  const again = narrowed.body.rules.find(({ rule_id }) => rule_id === 'desk#small')!;
  expect(again.conditions!.map(({ outcome }) => outcome)).toEqual(['true', 'false', 'false']);
  await sql(server, 'delete from decision_input where tenant_id = $1', [tenant.id]);
  const gone = await server.call<Rules>(200, `${line}?conditions=true`, approver);
  expect(gone.body).toMatchObject({ asked: null, rules: [] });
});

test('a decision has the rules of its time, whatever came after', async () => {
  const tenant = await server.tenant();
  await enforce(server, tenant, 'desk', POLICY);
  const id = await decided(tenant, 'burn', {});
  await enforce(server, tenant, 'more', '@id("other") forbid(principal, action, resource == Tool::"burn");');
  const { body } = await server.call<Rules>(200, `GET /v1/events/${id}/rules`, await tenant.person('viewer'));
  expect(body.rules).toMatchObject([
    {
      rule_id: 'desk#never',
      effect: 'forbid',
      decided: true,
      matched: true,
      reason: 'not on Sundays',
      conditions: null,
    },
  ]);
  expect(body.rules[0]!.cedar).toContain('Tool::"burn"');
});

test('nothing is said of a rule that reads a masked value in a condition too far behind to be measured', async () => {
  const tenant = await server.tenant();
  const others = Array.from({ length: 10 }, (_, n) => `resource != Tool::"${n}${'x'.repeat(5000)}"`).join(' && ');
  const policy = `@id("long") permit(principal, action, resource == Tool::"pay")
when { ${others} && context.str.hasTag("iban") && context.str.getTag("iban") like "DE*" };
@id("hide") @mask("$.iban") permit(principal, action, resource == Tool::"other");`;
  await enforce(server, tenant, 'desk', policy);
  const line = `GET /v1/events/${await decided(tenant, 'pay', { iban: 'FR1' })}/rules?conditions=true`;
  const { body } = await server.call<Rules>(200, line, await tenant.person('approver'));
  const [rule] = body.rules;
  expect(rule!.conditions!.length).toBeGreaterThan(0);
  // those before it would all be true, and so it would be the false one
  expect(rule!.conditions!.some(({ text }) => text.includes('iban'))).toBe(false);
  expect(new Set(rule!.conditions!.map(({ outcome }) => outcome))).toEqual(new Set(['masked']));
});

test.each([
  [['$.iban'], 'context.str.getTag("iban") like "DE*"', true],
  [['$.iban'], 'context.str.getTag("IBAN") == "x"', true],
  [['$.card_number'], 'context.str.getTag("cardNumber") == "x"', true],
  [['$.customer.iban'], 'context.str.getTag("customer.name") == "x"', true],
  [['$..secret'], 'context.str.hasTag("a.secret")', true],
  [['$.iban'], 'context.num.getTag("amount") > 1', false],
  [['$.iban'], 'context.str.getTag(context.str.getTag("which")) == "x"', true],
  [['$.iban'], String.raw`context.str.getTag("ib\u{61}n") == "x"`, true],
  [['$.iban'], String.raw`context.str.getTag("\x69ban") like "DE*"`, true],
  [['$.iban'], 'context.str.getTag // "\n(context.str.getTag("which")) == "x"', true],
  [['$.iban'], 'context.str.getTag(if true then "a" else "b") == "x"', true],
  [['$.iban'], 'context.str.getTag ( "amount" ) == "x"', false],
  [['$'], 'context.num.getTag("amount") > 1', true],
  [['$[*]'], 'context.num.getTag("amount") > 1', true],
  [[], 'context.str.getTag("iban") == "x"', false],
] as [string[], string, boolean][])('with the masks %j, %s is hidden: %s', (masks, condition, hidden) => {
  expect(hiding(masks)(condition)).toBe(hidden);
});
