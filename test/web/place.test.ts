import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { lineIn, withLine } from '../../web/pages/review/place.ts';

// not empty: between two ends, an empty line may make one of them
const line = fc.string({ minLength: 1, maxLength: 8 }).map((text) => text.replace(/[\r\n]/g, ' '));
const ended = fc.record({ line, end: fc.constantFrom('\n', '\r\n', '\r') });
const texts = fc.tuple(fc.array(ended, { maxLength: 12 }), line);
const textOf = (lines: readonly { line: string; end: string }[], last: string) =>
  [...lines.map(({ line, end }) => line + end), last].join('');

describe('a suggestion', () => {
  test('replaces its line and leaves every other character, line ends too', () => {
    fc.assert(
      fc.property(texts, fc.nat(), line, ([lines, last], at, instead) => {
        const n = at % (lines.length + 1);
        const all = [...lines, { line: last, end: '' }];
        const expected = textOf(
          all.map((one, m) => (m === n ? { ...one, line: instead } : one)),
          '',
        );
        expect(withLine(textOf(lines, last), n + 1, instead)).toBe(expected);
      }),
    );
  });

  test('without text removes the line with its end', () => {
    expect(withLine('a\r\nb\nc\n', 1, '')).toBe('b\nc\n');
    expect(withLine('a\r\nb\nc\n', 2, '')).toBe('a\r\nc\n');
    expect(withLine('a\r\nb\nc', 3, '')).toBe('a\r\nb');
    expect(withLine('a', 1, '')).toBe('');
  });

  test('follows its line into a newer version, and not where the line was changed or removed', () => {
    const [older, newer] = ['one\ntwo\nthree\nfour', 'zero\r\none\r\nthree\r\nnew\r\nfour!'];
    expect([1, 2, 3, 4].map((n) => lineIn(older, newer, n))).toEqual([2, undefined, 3, undefined]);
    expect(lineIn(older, older, 4)).toBe(4);
    // too different to be compared: it is not guessed
    const many = (word: string) => Array.from({ length: 2_000 }, (_, n) => `${word} ${n}`).join('\n');
    expect(lineIn(`${many('a')}\nlast`, `${many('b')}\nlast`, 2_001)).toBeUndefined();
  });

  test('is applied to no line that says something else', () => {
    fc.assert(
      fc.property(texts, texts, fc.nat(), ([before, lastBefore], [after, lastAfter], at) => {
        const older = textOf(before, lastBefore);
        const newer = textOf(after, lastAfter);
        const lines = (text: string) => text.split(/\r\n?|\n/);
        const n = (at % lines(older).length) + 1;
        const found = lineIn(older, newer, n);
        if (found !== undefined) expect(lines(newer)[found - 1]).toBe(lines(older)[n - 1]);
      }),
    );
  });
});
