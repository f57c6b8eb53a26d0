import { afterAll, describe, expect, test } from 'vitest';
import { AuthorLanguage } from '../../server/policy/authoring/author.ts';
import { MUTATION_LIMITS } from '../../server/policy/authoring/mutants.ts';
import { actionEntities, schemaFor } from '../../server/policy/language/schema.ts';
import { SIEGE } from '../siege/rounds.ts';

const language = new AuthorLanguage({ keepsThread: false });
afterAll(() => language.close());

const REFUNDS = `@id("small") permit(principal in AgentRole::"support", action, resource == Tool::"refund")
when { context.num.hasTag("amount") &&
       context.num.getTag("amount").lessThanOrEqual(decimal("50.0")) };
@id("large") @escrow("multi_party") @approvals("2") @ttl("4h")
permit(principal in AgentRole::"support", action, resource == Tool::"refund")
when { context.num.hasTag("amount") && context.num.getTag("amount").greaterThan(decimal("50.0")) };
@id("often") @rate("3/m") @mask("$.card") forbid(principal, action, resource)
unless { context.session.call_count < 3 };
`;
const HEAD = 'defaults: { agent_role: support, action_type: tool_call, tool_name: refund }\n';
const job = (tests: string, text = REFUNDS) => ({
  policyId: 'p',
  text,
  tests,
  schema: schemaFor(),
  actionEntities: actionEntities(),
  registry: { servers: [], agents: [] },
  lists: [],
  liveTexts: [],
});
const mutate = (tests: string, text?: string) => language.mutate('ten_test', job(tests, text));
const found = async (tests: string, text?: string) =>
  (await mutate(tests, text)).survivors.map(
    ({ rule_id, mutation, line, before, after }) => `${line} ${rule_id} ${mutation}: ${before} -> ${after}`,
  );

/** At the limit, and one ten-thousandth beyond it. */
const EXACT = `${HEAD}tests:
  - { name: at the limit, request: { arguments: { amount: 50 } }, expect: { decision: allow } }
  - { name: over it, request: { arguments: { amount: 50.0001 } }, expect: { decision: escrow, rules: [p#large], hold: { approvals: 2 } } }
  - { name: without an amount, expect: { decision: deny } }
  - { name: another tool, request: { tool_name: other, arguments: { amount: 1 } }, expect: { decision: deny } }
  - { name: another role, request: { agent_role: x, arguments: { amount: 1 } }, expect: { decision: deny } }
  - { name: another role, much, request: { agent_role: x, arguments: { amount: 60 } }, expect: { decision: deny } }
  - { name: another tool, much, request: { tool_name: other, arguments: { amount: 60 } }, expect: { decision: deny } }
  - name: the third call in a session
    request: { arguments: { amount: 1 }, session: { call_count: 3, started: 2026-01-01T00:00:00Z } }
    expect: { decision: allow_with_masking }
  - name: another role, the third call
    request: { agent_role: x, arguments: { amount: 1 }, session: { call_count: 3, started: 2026-01-01T00:00:00Z } }
    expect: { decision: deny }
  - name: the second call in a session
    request: { arguments: { amount: 1 }, session: { call_count: 2, started: 2026-01-01T00:00:00Z } }
    expect: { decision: allow }
  - name: too many
    request: { arguments: { amount: 1 }, session: { call_count: 3, started: 2026-01-01T00:00:00Z } }
    state: { exceeded: [p#often] }
    expect: { decision: rate_limited }
`.replace(/name: ([^,}\n]*, much),/g, 'name: "$1",');

describe('a change that no test notices is named, with its place', () => {
  test('where the tests stay away from the limits', async () => {
    const lines = await found(`${HEAD}tests:
  - { name: small, request: { arguments: { amount: 20 } }, expect: { decision: allow } }
  - { name: large, request: { arguments: { amount: 900 } }, expect: { decision: escrow } }
`);
    const at = 'context.num.getTag("amount")';
    expect(lines).toContain(
      `3 p#small swap_comparison: ${at}.lessThanOrEqual(decimal("50.0")) -> ${at}.lessThan(decimal("50.0"))`,
    );
    expect(lines).toContain(
      `3 p#small move_number: ${at}.lessThanOrEqual(decimal("50.0")) -> ${at}.lessThanOrEqual(decimal("50.0001"))`,
    );
    expect(lines).toContain(
      `6 p#large move_number: ${at}.greaterThan(decimal("50.0")) -> ${at}.greaterThan(decimal("49.9999"))`,
    );
    expect(lines).toContain(
      '1 p#small widen_scope: (principal in AgentRole::"support", action, resource == Tool::"refund") -> (principal, action, resource == Tool::"refund")',
    );
    expect(lines).toContain('7 p#often drop_annotation: @rate("3/m") -> ');
    expect(lines).toContain('7 p#often drop_annotation: @mask("$.card") -> ');
    expect(lines.some((line) => line.startsWith('7 p#often drop_statement: '))).toBe(true);
    expect(lines).toContain('8 p#often move_number: context.session.call_count < 3 -> context.session.call_count < 4');
    // these the two tests do notice
    expect(lines.join('\n')).not.toMatch(/p#small drop_statement|p#large drop_annotation|flip_effect: permit/);
  });

  test('and none survives tests at each limit, of each scope and of each obligation', async () => {
    const run = await mutate(EXACT);
    expect(run).toMatchObject({ errors: [], tests_errors: [], failing: 0, left_out: 0, survivors: [] });
    expect(run.noticed).toBe(run.tried);
    expect(run.tried).toBeGreaterThan(20);
  });

  test('but a failing test notices nothing', async () => {
    const run = await mutate(
      `${HEAD}tests: [{ name: wrong, request: { arguments: { amount: 20 } }, expect: { decision: deny } }]`,
    );
    expect(run).toMatchObject({ failing: 1, noticed: 0 });
    expect(run.survivors).toHaveLength(run.tried);
  });
});

test('a change that the language would refuse is none', async () => {
  // without its guard, or with the guard negated, getTag is an error
  const run = await mutate(`${HEAD}tests: []`);
  expect(run.survivors.map(({ after }) => after)).not.toContain('!(context.num.hasTag("amount"))');
  expect(run.survivors.some(({ mutation }) => mutation === 'negate_condition')).toBe(true);
});

test('a released hold covers the rule as changed, so that its text alone is not what a test notices', async () => {
  const lines = await found(`${HEAD}tests:
  - { name: released, request: { arguments: { amount: 900 } }, state: { covered: [p#large] }, expect: { decision: allow } }
`);
  expect(lines.filter((line) => line.includes('p#large move_number'))).toHaveLength(2);
});

test('nothing runs where a text has errors', async () => {
  expect(await mutate('tests: *a', 'permit(principal')).toMatchObject({
    errors: [{ line: 1 }],
    tests_errors: [{ line: 1 }],
    ...{ tried: 0, survivors: [] },
  });
});

test('a long policy with many tests is answered in time, and says what was left out', async () => {
  const [policies, requests] = SIEGE ? [60, 480] : [30, 100];
  const text = Array.from({ length: policies }, (_, n) => REFUNDS.replaceAll('@id("', `@id("r${n}_`)).join('\n');
  const rows = Array.from({ length: requests }, (_, n) => `{ arguments: { amount: ${n + 60} } }`).join(', ');
  const run = await mutate(`${HEAD}tests: [{ name: a, expect: { decision: escrow }, table: [${rows}] }]`, text);
  expect(run.errors).toEqual([]);
  expect(run.tried).toBeGreaterThan(0);
  expect(run.tried + run.left_out).toBeGreaterThan(MUTATION_LIMITS.mutants);
});
