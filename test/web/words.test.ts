import { expect, test } from 'vitest';
import { codeIn } from '../../web/lib/words.ts';

test.each([
  ['the argument `to` is set', [['the argument '], ['to', 'code'], [' is set']]],
  ['write `Agent::"bot"`', [['write '], ['Agent::"bot"', 'code']]],
  // a name that somebody chose
  ['the tool "a `b` c" with `d`', [['the tool '], ['"a `b` c"'], [' with '], ['d', 'code']]],
  ['a lone ` stays', [['a lone ` stays']]],
])('%s', (text, parts) => {
  expect(codeIn(text).map(({ text, code }) => [text, ...(code ? ['code'] : [])])).toEqual(parts);
});
