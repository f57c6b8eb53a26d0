import { describe, expect, test } from 'vitest';
import { PolicyEngine, settle } from '../../server/policy/evaluation/evaluate.ts';
import { compilePolicy } from '../../server/policy/language/compile.ts';
import { readFact } from '../../server/policy/language/facts.ts';
import { schemaFor } from '../../server/policy/language/schema.ts';
import { compile, contentOf, host, NO_STATE, request } from './support.ts';

const when = (clause: string) => `permit(principal, action, resource) when { ${clause} };`;

describe('the name of a fact', () => {
  test.each([
    ['to in known', { path: 'to', any: false, list: 'known' }],
    ['to any in known', { path: 'to', any: true, list: 'known' }],
    ['to all in known', { path: 'to', any: false, list: 'known' }],
    ['send any all in known', { path: 'send any', any: false, list: 'known' }],
    ['a in b in known', { path: 'a in b', any: false, list: 'known' }],
    ['context.ticket in constructor', { path: 'context.ticket', any: false, list: 'constructor' }],
  ])('%s', (key, fact) => {
    expect(readFact(key)).toEqual({ key, ...fact });
  });

  test.each(['to', ' in known', 'to in', 'to in Known', 'to in a.b', 'to in a:b', 'to in __proto__', 'to  in known '])(
    'is none: "%s"',
    (key) => {
      expect(readFact(key)).toBeUndefined();
    },
  );
});

describe('a text that reads facts', () => {
  test.each([
    ['context.facts.hasTag(context.session.id)', 52],
    ['context.facts == context.facts', 52],
    ['context["facts"].hasTag("to in known")', 52],
    ['{ a: context }.a.facts.hasTag("to in known")', 61],
    ['(if true then context.facts else context.facts).hasTag("to in known")', 66],
    ['Facts::"request".hasTag("to in known")', 44],
  ])('has one form only: %s', (clause, column) => {
    const { errors } = compile(when(clause));
    expect(errors).toContainEqual({ line: 1, column, message: expect.stringContaining('in one form only') });
  });

  test('names lists that exist', () => {
    const errorsOf = (key: string, lists: string[]) =>
      compilePolicy(host, 'p', when(`\n  context.facts.hasTag("${key}")`), schemaFor(), lists).errors;
    expect(errorsOf('to in known-ibans', ['known-ibans'])).toEqual([]);
    const place = { line: 2, column: 24 };
    expect(errorsOf('to in knwon-ibans', ['known-ibans', 'b'])).toEqual([
      expect.objectContaining({ ...place, message: 'there is no list "knwon-ibans"; did you mean "known-ibans"?' }),
    ]);
    expect(errorsOf('to in x', ['hotels'])).toEqual([
      { ...place, message: 'there is no list "x"; known lists: hotels' },
    ]);
    expect(errorsOf('to', ['hotels'])).toEqual([{ ...place, message: expect.stringContaining('the name of a list') }]);
  });

  test('is not taken for one because a text of it is called so', () => {
    const clause = '["facts"].contains(context.session.id) && context.str.hasTag("facts")';
    expect(compile(when(clause)).errors).toEqual([]);
  });
});

test('a bundle without a list that a statement reads is refused', () => {
  const content = contentOf({ p: when('context.facts.hasTag("to in known")') });
  expect(() => new PolicyEngine(content)).toThrow(/the list known/);
});

test('facts and arguments of one name are two things', () => {
  const source = when('context.facts.hasTag("to in known") || context.bool.hasTag("to in known")');
  const engine = new PolicyEngine(contentOf({ p: source }, null, [{ name: 'known', version: 1, values: ['a'] }]));
  const decide = (args: unknown) => settle(engine.match(request({ arguments: args })), NO_STATE).decision;
  expect(decide({ to: 'a' })).toBe('allow');
  expect(decide({ to: 'b' })).toBe('deny');
  expect(decide({ 'to in known': true })).toBe('allow');
  const other = new PolicyEngine(
    contentOf({ p: when('context.facts.hasTag("to in known")') }, null, [{ name: 'known', version: 1, values: ['a'] }]),
  );
  expect(settle(other.match(request({ arguments: { 'to in known': true } })), NO_STATE).decision).toBe('deny');
});
