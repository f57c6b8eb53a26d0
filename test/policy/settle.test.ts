import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { Annotations } from '../../server/domain/annotations.ts';
import { HOLD_KIND_NAMES, holdKind } from '../../server/domain/hold-kinds.ts';
import type { BundleStatement, HoldTerms } from '../../server/domain/policy.ts';
import { type Match, type SettleState, settle, type Verdict } from '../../server/policy/evaluation/evaluate.ts';
import { ruleReference } from '../../server/policy/evaluation/hold-terms.ts';
import { readAnnotations } from '../../server/policy/language/annotations.ts';
import { runs } from '../siege/rounds.ts';
import { compile, contentOf, hit, NO_STATE, permitted } from './support.ts';

const exceeded = (...rules: [string, number][]): SettleState => ({
  exceeded: new Map(rules.map(([id, retry_after]) => [`pol#${id}`, { retry_after }])),
});
const covered = (...rules: BundleStatement[]): SettleState => ({ ...NO_STATE, covered: rules.map(ruleReference) });
const rate = { limit: 1, window_seconds: 60 };

describe('settling', () => {
  it('denies before anything else', () => {
    const hits = [hit('a', { escrow: 'single', rate, mask: ['$.x'] }, 'forbid')];
    const state = { ...exceeded(['a', 5]), ...covered(hits[0]!) };
    for (const outcome of ['error', 'forbidden', 'unpermitted'] as const) {
      expect(settle({ outcome, hits, limits: [] }, state)).toMatchObject({ decision: 'deny', consumes: false });
    }
  });

  it('limits rates before it holds, with the longest wait', () => {
    const match = permitted(hit('a', { rate, escrow: 'single' }), hit('b', { rate }), hit('c', { rate }));
    expect(settle(match, exceeded(['b', 5], ['a', 5], ['c', 4]))).toMatchObject({
      decision: 'rate_limited',
      rule_id: 'pol#a',
      retry_after: 5,
    });
    expect(settle(match, exceeded(['c', 9]))).toMatchObject({ rule_id: 'pol#c', retry_after: 9 });
    expect(settle(match, { ...covered(...match.hits), ...exceeded(['a', 5]) }).consumes).toBe(false);
  });

  it('ignores a counter of a rule that did not match or has no rate', () => {
    expect(settle(permitted(hit('a')), exceeded(['a', 5], ['z', 5])).decision).toBe('allow');
  });

  it('holds by the strictest rule: kind, then approvals, then ttl, then id', () => {
    const order: Annotations[] = [
      { escrow: 'multi_party', approvals: 3 },
      { escrow: 'multi_party', approvals: 2, ttl: 60 },
      { escrow: 'multi_party', approvals: 2 },
      { escrow: 'single', ttl: 60 },
      { escrow: 'single', ttl: 120 },
      { escrow: 'conditional', condition: ['c'], approvals: 1 },
      { escrow: 'conditional', condition: ['c'] },
      { escrow: 'time_delayed', delay: 5 },
    ];
    for (let from = 0; from < order.length; from++) {
      // ids the other way round, so that they cannot be what decides
      const hits = order.slice(from).map((annotations, n) => hit(String.fromCharCode(122 - n), annotations));
      expect(settle(permitted(...hits), NO_STATE).rule_id).toBe('pol#z');
    }
    const equal = permitted(hit('b', { escrow: 'single' }), hit('a', { escrow: 'single' }));
    expect(settle(equal, NO_STATE).rule_id).toBe('pol#a');
  });

  it('opens one hold that satisfies all rules, if they combine', () => {
    const { escrow } = settle(
      permitted(
        hit('a', { escrow: 'single', ttl: 7_200, reason: 'one', notify: ['https://b.example', 'https://a.example'] }),
        hit('b', {
          escrow: 'multi_party',
          quorum: [
            { group: 'finance', count: 2 },
            { group: 'legal', count: 1 },
          ],
          reason: 'two',
          notify: ['https://a.example', 'https://c.example'],
          execute_within: 900,
        }),
        hit('c', {
          escrow: 'multi_party',
          approvals: 2,
          quorum: [
            { group: 'finance', count: 1 },
            { group: 'board', count: 1 },
          ],
          execute_within: 600,
        }),
        hit('d', { escrow: 'conditional', condition: ['kyc'], ttl: 3_600, reason: 'one' }),
      ),
      NO_STATE,
    );
    expect(escrow).toEqual({
      hold_type: 'multi_party',
      required_approvals: 4,
      quorum: [
        { group: 'board', count: 1 },
        { group: 'finance', count: 2 },
        { group: 'legal', count: 1 },
      ],
      conditions: ['kyc'],
      // wait and use end with the hour of the rule that has no time to execute
      ttl_seconds: 3_000,
      execute_within_seconds: 600,
      notify_targets: ['https://a.example', 'https://c.example', 'https://b.example'],
      reason: 'two; one',
      rules: ['a', 'b', 'c', 'd'].map((id) => ({
        id: `pol#${id}`,
        hash: expect.stringMatching(/^sha256:[0-9a-f]{64}$/),
      })),
    });
  });

  it('combines all conditions of a conditional hold, and keeps the longest delay of a delayed one', () => {
    const conditional = permitted(
      hit('a', { escrow: 'conditional', condition: ['b', 'a'] }),
      hit('b', { escrow: 'conditional', condition: ['c', 'a'], approvals: 1 }),
      hit('c', { escrow: 'time_delayed', delay: 60 }),
    );
    expect(settle(conditional, NO_STATE).escrow).toEqual({
      hold_type: 'conditional',
      required_approvals: 1,
      conditions: ['a', 'b', 'c'],
      ttl_seconds: 86_400,
      rules: conditional.hits.map(ruleReference),
    });
    const delayed = permitted(
      hit('a', { escrow: 'time_delayed', delay: 60, ttl: 7_200 }),
      hit('b', { escrow: 'time_delayed', delay: 3_600 }),
    );
    expect(settle(delayed, NO_STATE).escrow).toMatchObject({
      required_approvals: 0,
      delay_seconds: 3_600,
      ttl_seconds: 7_200,
    });
  });

  it('consumes a released hold only if it covers every matching escrow rule', () => {
    const [a, b, c] = [hit('a', { escrow: 'single' }), hit('b', { escrow: 'single', mask: ['$.x'] }), hit('c')];
    const match = permitted(a, b, c);
    expect(settle(match, covered(a))).toMatchObject({ decision: 'escrow', consumes: false });
    expect(settle(match, covered(a, b))).toMatchObject({ decision: 'allow_with_masking', consumes: true });
    expect(settle(match, covered(a, b, c, hit('z'))).consumes).toBe(true);
    expect(settle(permitted(hit('c')), covered(a))).toMatchObject({ decision: 'allow', consumes: false });
  });

  it('a hold covers the text that it was opened for, whatever its rule says now', () => {
    const approved = compile(
      'permit(principal, action, resource == Tool::"read");\n@escrow("single") permit(principal, action, resource == Tool::"pay");',
    ).statements[1]!;
    const statement = (source: string, policyId = 'pol') =>
      contentOf({ [policyId]: source }).policies.find(({ annotations }) => annotations.escrow)!;
    const state = covered({ ...approved, policy_id: 'pol', version: 1 });
    const pay = '@escrow("single") permit(principal, action, resource == Tool::"pay");';
    const consumes = (rule: BundleStatement) => settle(permitted(rule), state).consumes;
    // another place in the policy, and a comment outside of the statement, change nothing of it
    expect(consumes(statement(`// first\n${pay}`))).toBe(true);
    // the same name, tightened or about something else
    const other = [
      pay.replace('@escrow("single")', '@escrow("multi_party") @approvals("3")'),
      pay.replace('@escrow("single")', '@escrow("time_delayed") @delay("1s")'),
      pay.replace('"pay"', '"refund"'),
      pay.replace('@escrow', '@severity("high") @escrow'),
    ];
    for (const text of other) {
      const rule = statement(`permit(principal, action, resource == Tool::"read");\n${text}`);
      expect(rule.id).toBe('pol#1');
      expect(consumes(rule)).toBe(false);
    }
    // another policy with the same text is another approval
    expect(consumes(statement(pay, 'pol2'))).toBe(false);
    expect(settle(permitted(statement(pay)), { ...NO_STATE, covered: [{ id: 'pol#0', hash: '' }] }).consumes).toBe(
      false,
    );
  });

  it('combines all masks', () => {
    const match = permitted(hit('a'), hit('b', { mask: ['$.y', '$.x'] }, 'forbid'), hit('c', { mask: ['$.x', '$.z'] }));
    expect(settle(match, NO_STATE)).toEqual({
      decision: 'allow_with_masking',
      rule_id: 'pol#b',
      policy_id: 'pol',
      policy_version: 1,
      rule_ids: ['pol#a', 'pol#b', 'pol#c'],
      masks: ['$.x', '$.y', '$.z'],
      consumes: false,
    });
  });

  it('an allowed action names a permit, not the guardrail that let it pass', () => {
    const match = permitted(hit('a', { rate }, 'forbid'), hit('b'));
    expect(settle(match, NO_STATE)).toMatchObject({ decision: 'allow', rule_id: 'pol#b' });
  });
});

describe('the algebra of settling', () => {
  const RANK = { deny: 0, rate_limited: 1, escrow: 2, allow_with_masking: 3, allow: 4 };

  const raw = fc.record(
    {
      escrow: fc.constantFrom(...HOLD_KIND_NAMES),
      approvals: fc.constantFrom('1', '2', '3'),
      quorum: fc.constantFrom('a:1', 'a:2,b:1', 'b:2'),
      condition: fc.constantFrom('c1', 'c1,c2'),
      delay: fc.constantFrom('1m', '1h'),
      ttl: fc.constantFrom('2h', '1d'),
      mask: fc.constantFrom('$.a', '$.a,$.b'),
      rate: fc.constantFrom('1/s', '5/m'),
    },
    { requiredKeys: [] },
  );
  /** Only what the language accepts: what would be a fault in a policy cannot be hit. */
  const annotations = raw
    .map((one) => {
      const written = new Map(Object.entries(one).filter(([, value]) => value !== undefined));
      return readAnnotations(written as Map<string, string>);
    })
    .filter(({ faults }) => faults.length === 0)
    .map((read) => read.annotations);
  const hitsOf = (prefix: string, effect: 'permit' | 'forbid') =>
    fc
      .array(annotations, { maxLength: 4 })
      .map((all) => all.map((one, n) => hit(`${prefix}${n}`, one, effect)))
      .map((all) => (effect === 'permit' && all.length === 0 ? [hit(`${prefix}0`)] : all));
  const guardrail = annotations
    .filter(({ escrow, mask, rate }) => Boolean(escrow || mask || rate))
    .map((one) => hit('new', one, 'forbid'));
  const subset = fc.subarray(['p0', 'p1', 'p2', 'p3', 'g0', 'g1', 'g2', 'g3', 'new'].map((id) => `pol#${id}`));
  const state = fc.record({ over: subset, covered: subset }).map(({ over, covered }) => ({
    exceeded: new Map(over.map((id, n) => [id, { retry_after: n + 1 }])),
    covered,
  }));
  const check = (
    property: (match: Match, hits: BundleStatement[], state: SettleState, added: BundleStatement) => void,
  ) =>
    fc.assert(
      fc.property(
        hitsOf('p', 'permit'),
        hitsOf('g', 'forbid'),
        state,
        guardrail,
        (permits, guardrails, state, added) => {
          const hits = [...permits, ...guardrails];
          const known = [...hits, added].filter(({ id }) => state.covered.includes(id));
          property(permitted(...hits), hits, { ...state, covered: known.map(ruleReference) }, added);
        },
      ),
      { numRuns: runs(15_000) },
    );

  /** How many approvals release it; a delayed hold that asks for none is released by time alone. */
  const approvals = ({ hold_type, required_approvals }: HoldTerms) =>
    holdKind(hold_type).takesDelay && required_approvals === 0 ? Number.POSITIVE_INFINITY : required_approvals;
  /** The last moment at which it can be used: waiting less for the release leaves more of it for the use. */
  const lasts = ({ ttl_seconds, execute_within_seconds = 0 }: HoldTerms) => ttl_seconds + execute_within_seconds;

  it('an additional guardrail never makes a decision more permissive', () => {
    check((match, hits, state, added) => {
      const before = settle(match, state);
      const after = settle(permitted(...hits, added), state);
      expect(RANK[after.decision]).toBeLessThanOrEqual(RANK[before.decision]);
      if (!before.escrow || !after.escrow) return;
      expect(holdKind(after.escrow.hold_type).strictness).toBeGreaterThanOrEqual(
        holdKind(before.escrow.hold_type).strictness,
      );
      // a stricter kind asks for people in place of the time, and at least for one
      const stricter = after.escrow.hold_type !== before.escrow.hold_type;
      expect(approvals(after.escrow)).toBeGreaterThanOrEqual(
        stricter ? before.escrow.required_approvals : approvals(before.escrow),
      );
      // without a delay to wait for, more of the time may be for the use: within each rule's own, see joined-terms
      if (!stricter) expect(lasts(after.escrow)).toBeLessThanOrEqual(lasts(before.escrow));
      expect(after.escrow.rules).toEqual(expect.arrayContaining(before.escrow.rules));
    });
  });

  it('another exceeded rate, or one covered rule less, never makes a decision more permissive', () => {
    check((match, hits, state) => {
      const { decision } = settle(match, state);
      const over = new Map([...state.exceeded, ...hits.map(({ id }) => [id, { retry_after: 1 }] as const)]);
      expect(RANK[settle(match, { ...state, exceeded: over }).decision]).toBeLessThanOrEqual(RANK[decision]);
      expect(RANK[settle(match, { exceeded: state.exceeded }).decision]).toBeLessThanOrEqual(RANK[decision]);
    });
  });

  it('an error or a hard forbid is always a denial', () => {
    check((match, _, state) => {
      for (const outcome of ['error', 'forbidden', 'unpermitted'] as const) {
        expect(settle({ ...match, outcome }, state)).toMatchObject({ decision: 'deny', consumes: false });
      }
    });
  });

  it('consumes exactly if it passes escrow rules, and then all of them are covered', () => {
    check((match, hits, state) => {
      const verdict = settle(match, state);
      const holding = hits.filter(({ annotations }) => annotations.escrow);
      const passes = verdict.decision === 'allow' || verdict.decision === 'allow_with_masking';
      expect(verdict.consumes).toBe(passes && holding.length > 0);
      if (verdict.consumes) expect(holding.every((rule) => state.covered?.some(({ id }) => id === rule.id))).toBe(true);
    });
  });

  it('a released hold that was opened for a decision covers that decision', () => {
    check((match, _, state) => {
      const { escrow } = settle(match, { exceeded: state.exceeded });
      if (!escrow) return;
      const retried = settle(match, { exceeded: state.exceeded, covered: escrow.rules });
      expect(retried).toMatchObject({ consumes: true });
      expect(RANK[retried.decision]).toBeGreaterThan(RANK.escrow);
    });
  });

  it('does not depend on the order of the matches, and has only the members of its decision', () => {
    const members: Record<Verdict['decision'], string[]> = {
      deny: ['deny_reason'],
      rate_limited: ['retry_after'],
      escrow: ['escrow'],
      allow_with_masking: ['masks'],
      allow: [],
    };
    check((_, hits, state) => {
      const verdict = settle(permitted(...hits), state);
      expect(settle(permitted(...hits.toReversed()), state)).toEqual(verdict);
      const { decision, rule_id, policy_id, policy_version, rule_ids, consumes, ...rest } = verdict;
      expect(Object.keys(rest)).toEqual(members[decision]);
      expect(rule_ids).toEqual(hits.map(({ id }) => id).sort());
      expect([typeof rule_id, typeof policy_id, typeof policy_version, typeof consumes]).toEqual([
        'string',
        'string',
        'number',
        'boolean',
      ]);
    });
  });
});
