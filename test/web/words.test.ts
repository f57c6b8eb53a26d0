import { expect, test } from 'vitest';
import { codeIn, unmetTitle } from '../../web/lib/words.ts';

test.each([
  ['the argument `to` is set', [['the argument '], ['to', 'code'], [' is set']]],
  ['write `Agent::"bot"`', [['write '], ['Agent::"bot"', 'code']]],
  // a name that somebody chose
  ['the tool "a `b` c" with `d`', [['the tool '], ['"a `b` c"'], [' with '], ['d', 'code']]],
  ['a lone ` stays', [['a lone ` stays']]],
])('%s', (text, parts) => {
  expect(codeIn(text).map(({ text, code }) => [text, ...(code ? ['code'] : [])])).toEqual(parts);
});

test('a list of rules that no decision met claims only what was looked at', () => {
  expect(unmetTitle(30)).toBe('Rules without a decision in 30 days');
  expect(unmetTitle(30, { complete: true, looked_at: 9 })).toBe('Rules without a decision in 30 days');
  expect(unmetTitle(30, { complete: false, looked_at: 42_154 })).toBe('Rules not among the 42,154 decisions looked at');
});
