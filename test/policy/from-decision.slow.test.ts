import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { DecisionFacts } from '../../server/domain/decision.ts';
import type { ActionRequest, BundleContent } from '../../server/domain/policy.ts';
import { appendTest } from '../../server/policy/authoring/append-test.ts';
import { type PastDecision, testFromDecision } from '../../server/policy/authoring/from-decision.ts';
import { runCases, stateOf } from '../../server/policy/authoring/run-suite.ts';
import { readSuite } from '../../server/policy/authoring/suite.ts';
import { PolicyEngine, settle } from '../../server/policy/evaluation/evaluate.ts';
import type { Projection } from '../../server/policy/evaluation/projection.ts';
import { runs } from '../siege/rounds.ts';
import { DECLARED, LISTS, requests, statement } from './generators.ts';
import { compile, contentOf, request } from './support.ts';

const DESK = `
@id("small") permit(principal in AgentRole::"bot", action, resource == Tool::"refund")
when { context.num.hasTag("amount") && context.num.getTag("amount").lessThanOrEqual(decimal("50.0")) };
@id("large") @escrow("single") permit(principal in AgentRole::"bot", action, resource == Tool::"refund")
when { context.num.hasTag("amount") && context.num.getTag("amount").greaterThan(decimal("50.0")) };
@id("hide") @mask("$.card") forbid(principal, action, resource == Tool::"refund");
@id("often") @rate("10/m") forbid(principal, action, resource == Tool::"refund");`;
const LIVE = contentOf({ desk: DESK });

/** What a decision point would have recorded. */
function past(asked: ActionRequest, content: BundleContent, more: Partial<PastDecision> = {}): PastDecision {
  const engine = new PolicyEngine(content);
  const match = engine.match(asked);
  const { covered = [], exceeded = [] } = more.facts ?? {};
  const verdict = settle(match, stateOf({ covered, exceeded: exceeded.map(([rule]) => rule) }, match));
  const projection = match.narrowing?.project(asked) ?? null;
  engine.dispose();
  return {
    event_id: 'evt_1',
    ...{ decision: verdict.decision, rule_id: verdict.rule_id, masks: verdict.masks ?? [] },
    ...{ facts: {}, input: asked, projection: projection && JSON.parse(JSON.stringify(projection)), decided: content },
    ...{ hidden: [], shows: 'all' },
    ...more,
  };
}

function made(found: ReturnType<typeof testFromDecision>) {
  if ('refused' in found) throw new Error(`${found.refused.why}: ${found.refused.detail}`);
  return found.made;
}
const refused = (found: ReturnType<typeof testFromDecision>) => ('refused' in found ? found.refused : undefined);
const asked = (args: unknown, more: Partial<ActionRequest> = {}) =>
  request({ agent_id: 'agent-77', owner: 'usr_9', source_ip: '10.0.0.1', arguments: args, ...more });

describe('a test from a decision', () => {
  it('has what the policies read, and no more', () => {
    const { tests_source, kept, verified, differences } = made(
      testFromDecision('', LIVE, past(asked({ amount: 900, card: '4111', note: 'x', deep: { er: [1] } }), LIVE)),
    );
    expect(tests_source).toBe(`format: svc-tests/1
tests:
  - name: refund by bot is held
    request:
      agent_role: bot
      action_type: tool_call
      tool_server: crm
      tool_name: refund
      arguments: { amount: 900 }
    expect: { decision: escrow, rule: desk#large, hold: { kind: single } }
    from: evt_1
`);
    expect({ kept, verified, differences }).toEqual({ kept: 'read', verified: true, differences: [] });
  });

  it('says the facts beside the policies, and what should have been decided', () => {
    const facts: DecisionFacts = { covered: ['desk#large'] };
    const one = made(testFromDecision('', LIVE, past(asked({ amount: 900 }), LIVE, { facts })));
    expect(readSuite(one.tests_source).cases[0]).toMatchObject({
      state: { covered: ['desk#large'], exceeded: [] },
      expect: { decision: 'allow_with_masking', masks: ['$.card'], rule: 'desk#hide' },
    });
    const over = past(asked({ amount: 9 }), LIVE, { facts: { exceeded: [['desk#often', 30]] } });
    expect(made(testFromDecision('', LIVE, over)).expect).toEqual({ decision: 'rate_limited', rule: 'desk#often' });
    const wrong = made(testFromDecision('', LIVE, past(asked({ amount: 9 }), LIVE, { should: { decision: 'deny' } })));
    expect(wrong).toMatchObject({
      name: 'refund by bot is denied',
      expect: { decision: 'deny' },
      differences: ['decision: expected "deny", got "allow_with_masking"'],
    });
  });

  it('is refused where the policies did not decide, unless it says what should have been decided', () => {
    const kinds: DecisionFacts[] = [
      { stop: 'stp_1' },
      { standstill: 'no_bundle' },
      { doubt: 'arguments.amount' },
      { uncounted: true },
      { unholdable: true },
    ];
    for (const facts of kinds) {
      const decision = past(asked({ amount: 9 }), LIVE, { facts });
      expect(refused(testFromDecision('', LIVE, decision))?.why).toBe('not_by_policies');
      const should = { ...decision, should: { decision: 'allow_with_masking' as const } };
      expect(made(testFromDecision('', LIVE, should))).toMatchObject({ verified: false, differences: [] });
    }
  });

  it('is made of the projection alone where that has all that is read now', () => {
    const whole = past(asked({ amount: 900, card: '4111', note: 'x' }), LIVE);
    const half = { ...whole, input: null };
    expect(made(testFromDecision('', LIVE, half)).tests_source).toBe(
      made(testFromDecision('', LIVE, whole)).tests_source,
    );
    const more = contentOf({
      desk: `${DESK} forbid(principal, action, resource) when { context.str.hasTag("note") && context.str.getTag("note") == "y" };`,
    });
    expect(refused(testFromDecision('', more, half))).toEqual({
      why: 'gone',
      detail: 'the request was erased but for what policies read then, and they now read note',
    });
    // what was kept whole has it
    expect(made(testFromDecision('', more, whole)).request.arguments).toEqual({ amount: 900, note: 'x' });
    for (const gone of [
      { input: null, projection: null },
      { input: null, projection: { v: 1, ...asked(undefined) } as Projection },
      { input: null, projection: {} as Projection },
      { input: 7 as never },
    ]) {
      expect(refused(testFromDecision('', LIVE, { ...whole, ...gone }))?.why).toBe('gone');
    }
  });

  it('keeps more where the policies read other things by now', () => {
    const blind = contentOf({ desk: 'permit(principal, action, resource);' });
    const one = made(testFromDecision('', blind, past(asked({ amount: 900, note: 'x' }), LIVE)));
    expect(one).toMatchObject({ kept: 'read_then', verified: true, request: { arguments: { amount: 900 } } });
    expect(one.differences).not.toEqual([]);
  });

  it('adds to the suite what its defaults do not say, and nothing that contradicts them', () => {
    const suite = `defaults: { agent_role: bot, action_type: tool_call, tool_name: refund, arguments: { amount: 1 }, tool_server: other, owner: me }
tests: []
`;
    const { cases } = readSuite(made(testFromDecision(suite, LIVE, past(asked({ amount: 900 }), LIVE))).tests_source);
    expect(cases[0]!.request).toMatchObject({ tool_server: 'crm', arguments: { amount: 900 } });
    const bare = made(testFromDecision(suite, LIVE, past(asked({}), LIVE)));
    expect(bare.request.arguments).toEqual({});
  });

  it('is not made twice, and has a name of its own', () => {
    const first = made(testFromDecision('', LIVE, past(asked({ amount: 900 }), LIVE))).tests_source;
    expect(refused(testFromDecision(first, LIVE, past(asked({ amount: 900 }), LIVE)))).toEqual({
      why: 'duplicate',
      detail: 'the test "refund by bot is held" is of this decision already',
    });
    const second = made(testFromDecision(first, LIVE, past(asked({ amount: 901 }), LIVE, { event_id: 'evt_2' })));
    expect(second.name).toBe('refund by bot is held (2)');
    expect(readSuite(second.tests_source).cases).toHaveLength(2);
  });

  it('is refused by a full suite', () => {
    const full = `defaults: { agent_role: bot, action_type: tool_call, tool_name: refund }\ntests:\n${Array.from({ length: 500 }, (_, n) => `  - { name: t${n}, expect: { decision: deny } }\n`).join('')}`;
    expect(refused(testFromDecision(full, LIVE, past(asked({ amount: 9 }), LIVE)))?.why).toBe('full');
    const long = `tests: []\n${'#'.repeat(256 * 1024 - 40)}\n`;
    expect(refused(testFromDecision(long, LIVE, past(asked({ amount: 9 }), LIVE)))).toEqual({
      why: 'full',
      detail: 'the tests are larger than 256 KiB',
    });
  });

  it('is refused where a test cannot have the request', () => {
    // beyond what a decision point reads, so that it was denied
    const odd = past(asked({ amount: 2 ** 60 }), LIVE);
    expect(refused(testFromDecision('', LIVE, odd))?.why).toBe('unwritable');
  });
});

describe('masked values', () => {
  const SECRET = contentOf({
    desk: `@id("known") @mask("$..card") permit(principal, action, resource == Tool::"refund")
      when { context.str.hasTag("card") && context.str.getTag("card") == "4111-SECRET" };
      @id("other") permit(principal, action, resource == Tool::"mail");
      @id("all") permit(principal, action, resource == Tool::"dump") when { context has method && context.str.hasTag(context.method) };`,
  });
  const hidden = ['$..card', '$.customer'];
  const args = { card: '4111-SECRET', customer: { iban: 'DE-SECRET', tags: ['a-SECRET'] }, note: 'n' };

  it('are in the test only where a statement compares them, and only for those who may see them', () => {
    const compared = made(testFromDecision('', SECRET, past(asked(args), SECRET, { hidden, shows: 'compared' })));
    expect(compared).toMatchObject({ request: { arguments: { card: '4111-SECRET' } }, unmasked: ['card'], masked: [] });
    expect(compared.tests_source).not.toMatch(/DE-SECRET|a-SECRET/);
    expect(refused(testFromDecision('', SECRET, past(asked(args), SECRET, { hidden, shows: 'none' })))).toEqual({
      why: 'masked',
      detail: 'the decision depends on a value that is masked',
    });
  });

  it('become placeholders of their kind where the whole request is kept', () => {
    const dump = asked(
      { ...args, n: { card: 5 }, s: { card: '5' }, b: [{ card: true }] },
      { tool_name: 'dump', method: 'GET' },
    );
    const whole = made(testFromDecision('', SECRET, past(dump, SECRET, { hidden, shows: 'none' })));
    expect(whole.request.arguments).toEqual({
      ...{ card: '[masked]', customer: {}, note: 'n' },
      ...{ n: { card: 0 }, s: { card: '0' }, b: [{ card: false }] },
    });
    expect(whole.masked).toEqual(['b[0].card', 'card', 'customer', 'n.card', 's.card']);
    expect(whole.tests_source).not.toContain('SECRET');
  });

  it('say nothing by the answer: whatever they are, it is the same', () => {
    const answers = ['4111-SECRET', '4222-', 'x'].map((card) => {
      const decision = past(asked({ ...args, card }), SECRET, { hidden, shows: 'none' });
      // the record of a decision is known to anyone who asks
      return JSON.stringify(
        testFromDecision('', SECRET, { ...decision, decision: 'deny', rule_id: null, should: { decision: 'deny' } }),
      );
    });
    expect(new Set(answers).size).toBe(1);
  });
});

describe('the suite', () => {
  const test = { name: 'new', expect: { decision: 'allow' } };
  const COMMENTED = `# about all
defaults: {agent_role:   bot, action_type: tool_call, tool_name: refund}   # as most
tests:
    # the first
    - name: 'a'
      expect:   { decision: allow } # why

    -   name: b
        request:
          arguments: {count: 1.50}
        expect: {decision: deny}
    # and last words
scope: policy   # alone
`;

  it('keeps every character of what was there', () => {
    const next = appendTest(COMMENTED, test);
    const at = next.indexOf('\n    - name: new');
    expect(next.replace(/\n {4}- name: new\n {6}expect: \{ decision: allow \}\n/, '')).toBe(COMMENTED);
    expect(at).toBeLessThan(next.indexOf('# and last words'));
    expect(readSuite(next)).toMatchObject({ errors: [], scope: 'policy', cases: [{}, {}, { name: 'new' }] });
  });

  it('grows in whatever style it is written', () => {
    const one = '{ name: a, expect: { decision: deny } }';
    const d = 'defaults: { agent_role: bot, action_type: tool_call, tool_name: refund }\n';
    const suites = [
      `${d}tests: [] # none yet\n`,
      `${d}tests: []`,
      `tests:\n- ${one}\n${d}`,
      `${d}tests:\n- ${one}`,
      `${d}tests: [${one}]\n`,
      `${d}tests: [ ${one}, # last\n ]\n`,
      `${d}tests:\n  [\n    ${one}\n  ]\n`,
      `${d}tests:\n  - name: a\n    expect:\n      decision: deny\n      reason: >-\n        folded\n        text\n`,
      `${d}tests:\r\n  - ${one}\r\n`,
      `{${'"defaults": {"agent_role": "bot", "action_type": "tool_call", "tool_name": "refund"}'}, "tests": []}`,
      JSON.stringify({ tests: [{ name: 'a', request: request(), expect: { decision: 'deny' } }] }, null, 2),
      JSON.stringify({ tests: [{ name: 'a', request: request(), expect: { decision: 'deny' } }] }),
    ];
    for (const suite of suites) {
      const full = { ...test, request: { agent_role: 'bot', action_type: 'tool_call', tool_name: 'refund' } };
      const next = appendTest(suite, full);
      const before = readSuite(suite);
      expect(before.errors).toEqual([]);
      const after = readSuite(next);
      expect(after.errors, next).toEqual([]);
      expect(after.cases.map(({ name }) => name)).toEqual([...before.cases.map(({ name }) => name), 'new']);
      if (suite.startsWith('{')) expect(() => JSON.parse(next)).not.toThrow();
    }
  });

  it('takes any text that a request has', () => {
    fc.assert(
      fc.property(fc.jsonValue({ maxDepth: 3 }), fc.string({ unit: 'binary' }), (value, text) => {
        const odd = [
          'yes',
          '012',
          '~',
          '',
          '# a',
          ' a',
          'a: b',
          '\u202e\u{e0041}\u0000\n\t',
          '- a',
          '*a',
          '&a',
          '1e3',
          'null',
        ];
        const whole = { value, text, odd, [text]: text, yes: 1, '<': 1, '012': 2, 'a: b': 3 };
        const args = JSON.parse(JSON.stringify(whole).replace(/"__proto__"/g, '"proto"')) as Record<string, unknown>;
        const exact = JSON.stringify(args)
          .match(/-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?/g)
          ?.every((n) => !Number.isInteger(+n) || Number.isSafeInteger(+n));
        fc.pre(exact !== false && !Object.keys(args).includes('<<'));
        for (const suite of ['', '{"tests": []}', 'tests: []']) {
          const next = appendTest(suite, {
            name: 'n',
            request: { ...request(), arguments: args },
            expect: { decision: 'deny' },
          });
          const { errors, cases } = readSuite(next);
          expect(errors, next).toEqual([]);
          expect(cases[0]!.request.arguments).toEqual(args);
        }
      }),
      { numRuns: runs(5_000) },
    );
  });
});

describe('with random policies and requests', () => {
  // some at random, and a seed whose runs are known to meet every way to keep a request
  it.each([
    ['at random', undefined],
    ['of every kind', 1],
  ])('the narrowed request decides as the whole one did, then and now: %s', (_, seed) => {
    const seen = new Map<string, number>();
    const count = (what: string) => seen.set(what, (seen.get(what) ?? 0) + 1);
    fc.assert(
      fc.property(
        fc.array(statement, { minLength: 1, maxLength: 6 }),
        fc.array(statement, { maxLength: 3 }),
        fc.array(requests, { minLength: 3, maxLength: 6 }),
        fc.boolean(),
        fc.constantFrom('none', 'compared', 'all'),
        fc.boolean(),
        (first, draft, all, erased, shows, facts) => {
          const sound = (list: string[]) => list.filter((text) => compile(`${DECLARED} ${text}`).errors.length === 0);
          const [then, next] = [sound(first), sound([...first.slice(1), ...draft])];
          fc.pre(then.length > 0);
          const text = (list: string[]) => [DECLARED, ...list].join('\n');
          const before = contentOf({ pol: text(then) }, null, LISTS);
          const after = contentOf({ pol: text(next) }, null, LISTS);
          const some = facts ? before.policies.map(({ id }) => id) : [];
          for (const one of all) {
            const recorded = past(one, before, {
              hidden: ['$.iban', '$..secret', '$.refund', '$.items[*].sku'],
              shows: shows as PastDecision['shows'],
              facts: { covered: some, exceeded: some.slice(3).map((id) => [id, 5] as const) },
            });
            const kept = erased ? { ...recorded, input: null } : recorded;
            const found = testFromDecision('', after, kept);
            if ('refused' in found) {
              count(found.refused.why);
              expect(['gone', 'masked', 'unwritable']).toContain(found.refused.why);
              // nothing is lost by narrowing: the whole request cannot be a test either
              if (found.refused.why === 'gone') expect(erased).toBe(true);
              if (found.refused.why === 'masked') expect(shows).toBe('none');
              continue;
            }
            const test = found.made;
            count(test.kept);
            const { cases, errors } = readSuite(test.tests_source);
            expect(errors).toEqual([]);
            // as the record says
            expect(runCases(before, [], cases)).toMatchObject({ passed: 1, failed: 0 });
            expect(test.verified).toBe(true);
            // and now as the whole request
            const engine = new PolicyEngine(after);
            const [match, whole] = [engine.match(cases[0]!.request), engine.match(one)];
            const state = cases[0]!.state;
            const [got, expected] = [settle(match, stateOf(state, match)), settle(whole, stateOf(state, whole))];
            // all of it is kept only where the engine could not read it
            if (shows !== 'none' && test.kept === 'whole') expect(whole.narrowing).toBeUndefined();
            if (shows !== 'none') expect([got.decision, got.rule_ids]).toEqual([expected.decision, expected.rule_ids]);
            engine.dispose();
            expect(test.got.rule_ids).toEqual(got.rule_ids);
            if (shows === 'none') {
              const text = JSON.stringify(test.request.arguments ?? {});
              expect(text).not.toMatch(/"secret":"(?!0?"|\[masked\]")/);
            }
          }
        },
      ),
      seed === undefined ? { numRuns: runs(1_000, 10) } : { numRuns: 30, seed },
    );
    if (seed !== undefined) expect([...seen.keys()]).toEqual(expect.arrayContaining(['read', 'read_then', 'gone']));
  });
});
