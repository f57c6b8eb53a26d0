import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { lineIn, suggestionsIn, withLine, withSuggestion } from '../../server/policy/review-place.ts';

// not empty: between two ends, an empty line may make one of them
const line = fc.string({ minLength: 1, maxLength: 8 }).map((text) => text.replace(/[\r\n]/g, ' '));
const ended = fc.record({ line, end: fc.constantFrom('\n', '\r\n', '\r') });
const texts = fc.tuple(fc.array(ended, { maxLength: 12 }), line);
const textOf = (lines: readonly { line: string; end: string }[], last: string) =>
  [...lines.map(({ line, end }) => line + end), last].join('');

describe('a suggestion', () => {
  test('replaces its line and leaves every other character, line ends too', () => {
    fc.assert(
      fc.property(texts, fc.nat(), fc.nat(), line, ([lines, last], at, more, instead) => {
        const all = [...lines, { line: last, end: '' }];
        const n = at % all.length;
        const to = n + (more % (all.length - n));
        // of several lines the end of the last one stays
        const expected = textOf([...all.slice(0, n), { line: instead, end: all[to]!.end }, ...all.slice(to + 1)], '');
        expect(withLine(textOf(lines, last), n + 1, instead, to + 1)).toBe(expected);
      }),
    );
  });

  test('without text removes the line with its end', () => {
    expect(withLine('a\r\nb\nc\n', 1, '')).toBe('b\nc\n');
    expect(withLine('a\r\nb\nc\n', 2, '')).toBe('a\r\nc\n');
    expect(withLine('a\r\nb\nc', 3, '')).toBe('a\r\nb');
    expect(withLine('a', 1, '')).toBe('');
    expect(withLine('a\r\nb\nc\n', 1, '', 2)).toBe('c\n');
    expect(withLine('a\r\nb\nc', 2, '', 3)).toBe('a');
    expect(withLine('a\nb', 1, '', 2)).toBe('');
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
    // of several lines each must stand, in its own rule
    expect(lineIn(text(a, b), text(['// new'], a, b), 5, 'text', 9)).toBe(6);
    expect(lineIn(text(a, b), text(['// new'], a, rule('b', 'wipe')), 5, 'text', 9)).toBeUndefined();
    expect(lineIn(text(a, b), text(a, ['// between'], b), 5, 'text', 9)).toBeUndefined();
    // one without an id only between what it stood between
    const bare = (tool: string) => [`permit(principal, action, resource == Tool::"${tool}");`];
    expect(lineIn(text(bare('x'), bare('y'), bare('z')), text(bare('x'), bare('w'), bare('z')), 3, 'text')).toBe(
      undefined,
    );
  });

  test('is applied to no line that says something else, or stands between others', () => {
    fc.assert(
      fc.property(texts, texts, fc.nat(), fc.nat(3), ([before, lastBefore], [after, lastAfter], at, more) => {
        const older = textOf(before, lastBefore);
        const newer = textOf(after, lastAfter);
        const lines = (text: string) => text.split(/\r\n?|\n/);
        const n = (at % lines(older).length) + 1;
        const end = Math.min(n + more, lines(older).length);
        const found = lineIn(older, newer, n, 'tests', end);
        const near = (text: string, line: number) =>
          Array.from({ length: end - n + 5 }, (_, by) => lines(text)[line - 3 + by]);
        if (found !== undefined) expect(near(newer, found)).toEqual(near(older, n));
      }),
    );
  });
});

describe('a suggestion that is typed by hand', () => {
  const older = 'one\ntwo\n}\nfour\nfive';
  const has = (newer: string, line: number, suggestion: string, end_line = line) =>
    suggestionsIn(older, newer, { inDoubt: false })({ part: 'text', line, end_line }, suggestion);

  test('is found in its place, however it is indented and whatever changed beside it', () => {
    expect(has('one\n  2\n}\nfour\nfive', 2, '2')).toBe(true);
    expect(has('uno\n2\n\nzwei\n}\nvier', 2, '2\nzwei')).toBe(true);
    expect(has('one\ntwo\nmore\n}\nfour\nfive', 2, 'two\nmore')).toBe(true);
    expect(has('one\n}\nfour\nfive', 2, '')).toBe(true);
    expect(has('one\n2\nfive', 2, '2', 4)).toBe(true);
  });

  test('is found where a formatter ended its lines elsewhere', () => {
    expect(has('one\npermit(\n  principal,\n  action\n)\n}\nfour\nfive', 2, 'permit(principal, action)')).toBe(true);
    expect(has('one\npermit(principal, action)\n}\nfour\nfive', 2, 'permit(\nprincipal,\naction)')).toBe(true);
  });

  test('is not found elsewhere, beside what it was to replace, in part, or where something else stands', () => {
    expect(has('one\ntwo\n}\nfour\n2\nfive', 2, '2')).toBe(false);
    expect(has('one\ntwo\n2\n}\nfour\nfive', 2, '2')).toBe(false);
    expect(has('one\n2\n}\nfour\nfive', 2, '2\nzwei')).toBe(false);
    expect(has('one\nelse\n}\nfour\nfive', 2, '')).toBe(false);
    expect(has(older, 2, '2')).toBe(false);
  });

  test('is not found if it changes only brackets or nothing', () => {
    expect(has('one\ntwo\n};\nfour\nfive', 3, '};')).toBe(false);
    expect(has('one\ntwo\nfour\nfive', 3, '')).toBe(false);
    expect(has(older, 2, '  two')).toBe(false);
    expect(has('one\ntwo\n\n}\nfour\nfive', 2, 'two\n ')).toBe(false);
  });

  test('counts wherever it is in a text that is too different to be compared, if doubt is enough', () => {
    const many = (word: string) => Array.from({ length: 1000 }, (_, n) => `${word} ${n}`).join('\n');
    const hasIn = (newer: string, suggestion: string, inDoubt: boolean) =>
      suggestionsIn(many('a'), newer, { inDoubt })({ part: 'text', line: 500 }, suggestion);
    const newer = `${many('b')}\nthe suggestion`;
    expect(hasIn(newer, 'the suggestion', true)).toBe(true);
    expect(hasIn(newer, 'the suggestion', false)).toBe(false);
    expect(hasIn(newer, 'another one', true)).toBe(false);
    // its line is gone, with all others
    expect(hasIn(newer, '', true)).toBe(true);
    expect(hasIn(`${newer}\na 499`, '', true)).toBe(false);
    // or without that they are compared
    const anywhere = suggestionsIn(older, 'one\ntwo\n}\nfour\n2', { inDoubt: true, anywhere: true });
    expect(anywhere({ part: 'text', line: 5 }, '2')).toBe(true);
    expect(anywhere({ part: 'text', line: 5 }, '3')).toBe(false);
  });
});

test('a suite of which a suggestion leaves nothing is none, and the other part stays as it is', () => {
  const texts = { source: 'a\nb', tests: 'c' };
  expect(withSuggestion(texts, { part: 'tests', line: 1 }, '')).toEqual({ source: 'a\nb', tests: null });
  expect(withSuggestion(texts, { part: 'text', line: 1, end_line: 2 }, 'd')).toEqual({ source: 'd', tests: 'c' });
});
