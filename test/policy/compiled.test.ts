import { describe, expect, it } from 'vitest';
import { conditionsOf } from '../../server/policy/evaluation/cedar/parse.ts';
import { Question } from '../../server/policy/evaluation/cedar/question.ts';
import { ASK } from '../../server/policy/evaluation/cedar/values.ts';
import { mapRequest } from '../../server/policy/evaluation/request.ts';
import { actionEntities } from '../../server/policy/language/schema.ts';
import { SIEGE } from '../siege/rounds.ts';
import { newTally, round } from './differential.ts';
import { host, request } from './support.ts';

const permit = (clause: string) => `permit(principal, action, resource) when { ${clause} };`;
const compiled = (clause: string) => conditionsOf(() => host, [permit(clause)])[0];

describe('compiled conditions', () => {
  it('find of every operator, type and error what Cedar finds', () => {
    const tally = newTally();
    for (let seed = 1; seed <= (SIEGE ? 1_500 : 24); seed++) round(host, seed, tally, { statements: 50, requests: 40 });
    expect(tally.differences.slice(0, 3)).toEqual([]);
    // each outcome is there in numbers, and most statements are compiled
    expect(tally.cases).toBeGreaterThan(20_000);
    for (const found of [tally.true, tally.false]) expect(found).toBeGreaterThan(tally.cases / 10);
    expect(tally.errors).toBeGreaterThan(tally.cases / 50);
    expect(tally.outside).toBeLessThan(tally.statements / 3);
  });

  it('leave to Cedar what they cannot say for certain', () => {
    for (const clause of [
      'context == context',
      '{a: 1}.a == 1',
      '(if context.session.call_count + 1 > 0 then context else context).risk_score.lessThan(decimal("1.0"))',
      'context.str.hasTag(context.session.id)',
      'NumArgs::"request".hasTag("a")',
      '9007199254740993 > 1',
      '1 == "1"',
      '1 < decimal("1.0")',
      'principal == resource',
      'principal has id',
      'true && 1',
      '[1, "a"].contains(1)',
      '[].isEmpty()',
      '[[1]].contains([1])',
      '[ip("::1")].contains(ip("::1"))',
      'Unknown::"a" == Unknown::"a"',
      'decimal(context.session.id).lessThan(decimal("1.0"))',
      'decimal("1.23456").lessThan(decimal("1.0"))',
      'ip("1.2.3").isIpv4()',
    ]) {
      expect(compiled(clause), clause).toBeUndefined();
    }
  });

  it('ask Cedar about a value that has no exact form, and about an error', () => {
    const { values } = mapRequest(request({ session: { call_count: Number.MAX_SAFE_INTEGER } }), actionEntities());
    const question = new Question(values, new Set());
    for (const clause of [
      'context.session.call_count + 1 > 0',
      'context.session.call_count * context.session.call_count > 0',
      '-9007199254740991 - 1 < 0',
      'context.num.getTag("none").lessThan(decimal("1.0"))',
      'context.method == "GET"',
      'resource.labels.contains("a")',
      'context.facts.getTag("none in list")',
    ]) {
      expect(compiled(clause)!(question), clause).toBe(ASK);
    }
    // what is not reached does not fail
    for (const clause of [
      'true || context.method == "GET"',
      '!(false && context.method == "GET")',
      'if context has method then context.method == "GET" else true',
    ]) {
      expect(compiled(clause)!(question), clause).toBe(true);
    }
  });

  it('parse many statements at once as each by itself', () => {
    const clauses = [
      ...['', 'when { true }', 'unless { false } // } when {', 'when { 1 == 1 } unless { 2 == 1 }'],
      ...['when { "} when {" != "" }', 'when { true', 'when { false }', '// a\nwhen { /* true */ }'],
      ...Array.from({ length: 200 }, (_, n) => `when { context.session.call_count < ${n} }`),
    ];
    const statements = clauses.map(
      (clause) => `@reason("(") permit(principal, action == Action::"a", resource)\n${clause}\n;`,
    );
    const { values } = mapRequest(request({ session: { call_count: 100 } }), actionEntities());
    const question = new Question(values, new Set());
    const found = conditionsOf(() => host, statements).map((condition) => condition?.(question));
    expect(found.slice(0, 8)).toEqual([true, true, true, true, true, undefined, false, undefined]);
    expect(found.slice(8)).toEqual(Array.from({ length: 200 }, (_, n) => 100 < n));
  });
});
