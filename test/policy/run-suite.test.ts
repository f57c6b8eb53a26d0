import fc from 'fast-check';
import { afterAll, describe, expect, test } from 'vitest';
import { AuthorLanguage } from '../../server/policy/authoring/author.ts';
import type { SuiteRun } from '../../server/policy/authoring/run-suite.ts';
import { actionEntities, schemaFor } from '../../server/policy/language/schema.ts';

const language = new AuthorLanguage();
afterAll(() => language.close());

const REFUNDS = `
@id("small") permit(principal in AgentRole::"support", action, resource == Tool::"refund")
when { context.num.hasTag("amount") && context.num.getTag("amount").lessThanOrEqual(decimal("50.0")) };
@id("large") @escrow("multi_party") @approvals("2") @ttl("4h") @reason("over 50")
permit(principal in AgentRole::"support", action, resource == Tool::"refund")
when { context.num.hasTag("amount") && context.num.getTag("amount").greaterThan(decimal("50.0")) };
@id("often") @rate("3/m") @mask("$.card") forbid(principal, action, resource == Tool::"refund");
@id("wipe") @reason("never") forbid(principal, action, resource == Tool::"wipe");
`;
const HEAD =
  'defaults: { agent_role: support, action_type: tool_call, tool_name: refund, arguments: { amount: 20 } }\n';

function run(
  tests: string,
  more: { text?: string; liveTexts?: Parameters<AuthorLanguage['test']>[1]['liveTexts'] } = {},
) {
  return language.test('ten_test', {
    policyId: 'p',
    text: REFUNDS,
    tests,
    schema: schemaFor(),
    actionEntities: actionEntities(),
    registry: { servers: [], agents: [] },
    lists: [],
    liveTexts: [],
    ...more,
  });
}
const of = ({ results }: SuiteRun) => results.map(({ name, row, ok, differences }) => [name, row, ok, ...differences]);

describe('a test passes exactly when all that it expects is so', () => {
  test('of decision, rule, rules, masks, hold and reason', async () => {
    const done = await run(`${HEAD}tests:
  - { name: masked, expect: { decision: allow_with_masking, rule: p#often, rules: [p#small, p#often], masks: [$.card] } }
  - name: held
    request: { arguments: { amount: 900 } }
    expect: { decision: escrow, rule: p#large, hold: { kind: multi_party, approvals: 2, ttl_seconds: 14400 }, reason: over 50 }
  - { name: wiped, request: { tool_name: wipe }, expect: { decision: deny, reason: never } }
  - { name: limited, state: { exceeded: [p#often] }, expect: { decision: rate_limited, rule: p#often } }
  - name: released
    request: { arguments: { amount: 900 } }
    state: { covered: [p#large] }
    expect: { decision: allow_with_masking }
`);
    expect(of(done)).toEqual(['masked', 'held', 'wiped', 'limited', 'released'].map((name) => [name, undefined, true]));
    expect(done).toMatchObject({ passed: 5, failed: 0, errors: [], tests_errors: [] });
  });

  test.each([
    ['decision: allow', 'decision: expected "allow", got "escrow"'],
    ['decision: escrow, rule: p#small', 'rule: expected "p#small", got "p#large"'],
    ['decision: escrow, rules: [p#large]', 'rules: expected ["p#large"], got ["p#large","p#often"]'],
    ['decision: escrow, masks: [$.card]', 'masks: expected ["$.card"], got []'],
    ['decision: escrow, hold: { kind: single }', 'hold kind: expected "single", got "multi_party"'],
    ['decision: escrow, hold: { approvals: 1 }', 'approvals: expected 1, got 2'],
    ['decision: escrow, hold: { ttl_seconds: 60 }', 'ttl_seconds: expected 60, got 14400'],
    ['decision: escrow, reason: other', 'reason: expected "other", got "over 50"'],
  ])('{ %s } does not', async (expected, difference) => {
    const done = await run(
      `${HEAD}tests: [{ name: a, request: { arguments: { amount: 900 } }, expect: { ${expected} } }]`,
    );
    expect(of(done)).toEqual([['a', undefined, false, difference]]);
    expect(done).toMatchObject({ passed: 0, failed: 1 });
  });

  test('and each row of a table is a test', async () => {
    const done = await run(`${HEAD}tests:
  - name: texts
    expect: { decision: escrow }
    table: [ { arguments: { amount: "900" } }, { arguments: { amount: "9" } } ]
`);
    expect(of(done)).toEqual([
      ['texts', 1, true],
      ['texts', 2, false, 'decision: expected "escrow", got "allow_with_masking"'],
    ]);
  });
});

test('the other live policies count, unless the scope is the policy', async () => {
  const liveTexts = [{ policyId: 'other', version: 3, text: 'forbid(principal, action, resource == Tool::"refund");' }];
  const tests = `${HEAD}tests: [{ name: a, expect: { decision: allow_with_masking } }]`;
  expect((await run(tests, { liveTexts })).results[0]!.got).toMatchObject({ decision: 'deny', rule_id: 'other#0' });
  expect(await run(`scope: policy\n${tests}`, { liveTexts })).toMatchObject({ passed: 1, failed: 0 });
});

test('the coverage says of each statement how far the tests reach', async () => {
  const text = `${REFUNDS}@id("never") permit(principal, action, resource == Tool::"other");`;
  const { coverage } = await run(
    `${HEAD}tests: [{ name: a, expect: { decision: allow } }, { name: b, state: { exceeded: [p#often] }, expect: { decision: allow } }]`,
    { text },
  );
  expect(coverage).toMatchObject({ percent: 40, condition_percent: 50, conditions_left_out: 0 });
  expect(coverage.statements.map(({ rule_id, line, reach }) => ({ rule_id, line, reach }))).toEqual([
    { rule_id: 'p#small', line: 2, reach: 'hit' },
    { rule_id: 'p#large', line: 4, reach: 'reached' },
    { rule_id: 'p#often', line: 7, reach: 'decisive' },
    { rule_id: 'p#wipe', line: 8, reach: 'never' },
    { rule_id: 'p#never', line: 9, reach: 'never' },
  ]);
  const over = 'context.num.getTag("amount").greaterThan(decimal("50.0"))';
  expect(coverage.statements[1]!.conditions).toEqual([
    { text: 'context.num.hasTag("amount")', line: 6, column: 8, seen: 'true' },
    { text: over, line: 6, column: 40, seen: 'false' },
  ]);
  // a forbid that applies does not hide the permit beside it
  const beside = await run(`${HEAD}tests: [{ name: a, expect: { decision: deny } }]`, {
    text: 'permit(principal, action, resource); forbid(principal, action, resource == Tool::"refund");',
  });
  expect(beside.coverage.statements.map(({ reach }) => reach)).toEqual(['hit', 'decisive']);
});

describe('the coverage of conditions', () => {
  const seenIn = async (clauses: string, ...args: object[]) => {
    const tests = args.map((one, n) => ({
      name: `test ${n}`,
      request: { arguments: one },
      expect: { decision: 'allow' },
    }));
    const suite = JSON.stringify({
      defaults: { agent_role: 'r', action_type: 'tool_call', tool_name: 't', risk_score: 0.5 },
      tests,
    });
    const run_ = await run(suite, { text: `permit(principal, action, resource)\n${clauses};` });
    expect(run_.errors).toEqual([]);
    return run_.coverage.statements[0]!.conditions.map(({ text, line, seen }) => `${line} ${text}: ${seen}`);
  };
  const has = (name: string) => `context.bool.hasTag("${name}")`;
  const is = (name: string) => `context.bool.getTag("${name}")`;

  test('counts a condition only where the engine comes to it', async () => {
    const clauses = `when { ${has('a')} && ${is('a')}\n && (${has('b')} || ${has('c')}) }\nunless { ${has('d')} && ${is('d')} }`;
    expect(await seenIn(clauses, { a: true, b: true }, { a: true, c: true, d: false }, {})).toEqual([
      `2 ${has('a')}: both`,
      `2 ${is('a')}: true`,
      `3 ${has('b')}: both`,
      `3 ${has('c')}: true`,
      `4 ${has('d')}: both`,
      `4 ${is('d')}: false`,
    ]);
    // nothing after a condition that was false
    expect(await seenIn(clauses, { b: true, d: true })).toEqual([
      `2 ${has('a')}: false`,
      `2 ${is('a')}: never`,
      `3 ${has('b')}: never`,
      `3 ${has('c')}: never`,
      `4 ${has('d')}: never`,
      `4 ${is('d')}: never`,
    ]);
  });

  test('splits as the parser does: at no operator within an if, a text, a comment or a list', async () => {
    const whole = `if ${has('a')} && ${has('b')} then ${has('c')} || true else false`;
    expect(await seenIn(`when { ${whole} }`, {})).toEqual([`2 ${whole}: false`]);
    const text = 'context.str.hasTag("a && b || c")';
    expect(await seenIn(`when { ((${text})) }`, {})).toEqual([`2 ${text}: false`]);
    expect(
      await seenIn(`when { // a && b }\n !(${has('a')} && ${has('b')}) && ["x || y"].contains("x") }`, {}),
    ).toEqual([`3 !(${has('a')} && ${has('b')}): true`, '3 ["x || y"].contains("x"): false']);
  });

  test('agrees with the engine for every tree of conditions', async () => {
    const names = ['a', 'b', 'c', 'd', 'e'];
    const tree = fc.letrec<{ node: string }>((tie) => ({
      node: fc.oneof(
        { depthSize: 'small', withCrossShrink: true },
        fc.constantFrom(...names).map(has),
        fc.tuple(tie('node'), fc.constantFrom('&&', '||'), tie('node')).map(([l, op, r]) => `(${l}) ${op} (${r})`),
      ),
    })).node;
    const args = fc.dictionary(fc.constantFrom(...names), fc.constant(true), { maxKeys: 5 });
    await fc.assert(
      fc.asyncProperty(fc.constantFrom('when', 'unless'), tree, args, async (word, clause, given) => {
        const found = await seenIn(`${word} { ${clause} }`, given);
        const outcome = new Map(found.map((line) => [line.slice(line.indexOf(' ') + 1).split(': ')[0]!, line]));
        for (const name of names) {
          const line = outcome.get(has(name));
          // the same condition may occur again where the engine does not come to it
          if (line && !line.endsWith('never')) expect(line).toContain(String(name in given));
        }
        // an outcome of the whole that the conditions do not explain would be a wrong split
        const value = Function(
          ...names,
          `return ${clause.replace(/context\.bool\.hasTag\("(\w)"\)/g, '$1')}`,
        )(...names.map((name) => name in given)) as boolean;
        const whole = await run(
          JSON.stringify({
            defaults: { agent_role: 'r', action_type: 'tool_call', tool_name: 't', arguments: given },
            tests: [{ name: 'a', expect: { decision: value === (word === 'when') ? 'allow' : 'deny' } }],
          }),
          { text: `permit(principal, action, resource) ${word} { ${clause} };` },
        );
        expect(whole.failed).toBe(0);
      }),
      { numRuns: 40 },
    );
  });

  test('ends where measuring would take too long, and says so', async () => {
    const long = Array.from({ length: 60 }, (_, n) => `context.str.hasTag("${'x'.repeat(400)}${n}")`).join(' && ');
    const tests = `${HEAD}tests: [{ name: a, expect: { decision: deny } }]`;
    const { coverage, errors } = await run(tests, { text: `permit(principal, action, resource) when { ${long} };` });
    expect(errors).toEqual([]);
    expect(coverage.conditions_left_out).toBeGreaterThan(0);
    expect(coverage.conditions_left_out + coverage.statements[0]!.conditions.length).toBe(60);
  });
});

test('nothing runs where a text has errors', async () => {
  expect(await run('tests: &a []', { text: 'permit(principal, action resource);' })).toMatchObject({
    errors: [{ line: 1 }],
    tests_errors: [{ line: 1, column: 11, message: 'anchors are not accepted' }],
    ...{ passed: 0, failed: 0, results: [] },
  });
});

test('a suite that takes too long ends with an error, and the next one runs', async () => {
  const slow = new AuthorLanguage({ limitMs: 40 });
  try {
    const rows = Array.from({ length: 500 }, (_, n) => `{ arguments: { amount: ${n} } }`).join(', ');
    const job = {
      policyId: 'p',
      text: REFUNDS,
      tests: `${HEAD}tests: [{ name: a, expect: { decision: escrow }, table: [${rows}] }]`,
      ...{
        schema: schemaFor(),
        actionEntities: actionEntities(),
        registry: { servers: [], agents: [] },
        lists: [],
        liveTexts: [],
      },
    };
    expect(await slow.test('ten_test', job)).toMatchObject({
      errors: [{ message: expect.stringContaining('longer than 0.04 s') }],
      results: [],
    });
    expect((await run(job.tests)).results).toHaveLength(500);
  } finally {
    await slow.close();
  }
});
