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
    const [older, newer] = ['a\nb\nc\nd\ne\nf\ng\nh', 'zero\r\na\r\nb\r\nc\r\nd\r\ne\r\ng\r\nh'];
    const follow = (part: 'text' | 'tests') => [1, 2, 3, 4, 5, 6, 7, 8].map((n) => lineIn(older, newer, n, part));
    // only where the two lines before and after it stand with it: the ends of the text are lines too
    expect(follow('tests')).toEqual([undefined, undefined, 4, ...Array<undefined>(5).fill(undefined)]);
    // without an end and an id, all of it is the rule around it
    expect(follow('text')).toEqual(Array<undefined>(8).fill(undefined));
    expect(lineIn(older, older, 4, 'text')).toBe(4);
    // too different to be compared: it is not guessed
    const many = (word: string) => Array.from({ length: 2_000 }, (_, n) => `${word} ${n}`).join('\n');
    expect(lineIn(`${many('a')}\nlast`, `${many('b')}\nlast`, 2_001, 'tests')).toBeUndefined();
  });

  test('follows its line within its own rule alone, however alike the inside of another one is', () => {
    const rule = (id: string | undefined, tool: string) => [
      ...(id === undefined ? [] : [`@id("${id}")`]),
      `permit(principal, action, resource == Tool::"${tool}")`,
      'when {',
      '  context.a &&',
      '  context.amount < 50 && // ; and more',
      '  context.b',
      '};',
    ];
    const text = (...rules: string[][]) => rules.flat().join('\n');
    const [a, b] = [rule('a', 'read'), rule('b', 'write')];
    // the rule is another one by now, although five lines around the line are as they were
    expect(lineIn(text(a), text(rule('c', 'wipe')), 5, 'text')).toBeUndefined();
    expect(lineIn(text(a), text(rule('a', 'wipe')), 5, 'text')).toBeUndefined();
    expect(lineIn(text(rule(undefined, 'read')), text(rule(undefined, 'wipe')), 4, 'text')).toBeUndefined();
    expect(lineIn(text(a, b), text(b), 5, 'text')).toBeUndefined();
    // a rule with an id that stands as it was is followed, whatever changed beside it
    expect(lineIn(text(a, b), text(b), 12, 'text')).toBe(5);
    expect(lineIn(text(a, b), text(rule('c', 'wipe'), ['// new'], b), 12, 'text')).toBe(13);
    const one = (tool: string) => [`@id("${tool}") permit(principal, action, resource == Tool::"${tool}");`];
    expect(lineIn(text(one('x'), one('y'), one('z')), text(one('x'), one('w'), one('z')), 3, 'text')).toBe(3);
    // one without an id only between what it stood between
    const bare = (tool: string) => [`permit(principal, action, resource == Tool::"${tool}");`];
    expect(lineIn(text(bare('x'), bare('y'), bare('z')), text(bare('x'), bare('w'), bare('z')), 3, 'text')).toBe(
      undefined,
    );
  });

  test('is applied to no line that says something else, or stands between others', () => {
    fc.assert(
      fc.property(texts, texts, fc.nat(), ([before, lastBefore], [after, lastAfter], at) => {
        const older = textOf(before, lastBefore);
        const newer = textOf(after, lastAfter);
        const lines = (text: string) => text.split(/\r\n?|\n/);
        const n = (at % lines(older).length) + 1;
        const found = lineIn(older, newer, n, 'tests');
        const near = (text: string, line: number) => [-2, -1, 0, 1, 2].map((by) => lines(text)[line - 1 + by]);
        if (found !== undefined) expect(near(newer, found)).toEqual(near(older, n));
      }),
    );
  });
});
