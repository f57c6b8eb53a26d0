import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { firstHidden, oneLine, pieces, showsSomething, visible } from '../../server/lib/visible.ts';

/** Texts of people who want to be misread: binary strings, mixed with what hides, turns, piles up and looks like a code. */
const hostile = fc
  .array(
    fc.oneof(
      fc.string({ unit: 'binary', maxLength: 20 }),
      fc.constantFrom('\u202e', '\u2066', '\u200b', '\u061c', '\ufe0f', '\ufe00', '\u{e0041}', '\u{e0100}', '\ud800'),
      fc.constantFrom(
        '\u2028',
        '\u0085',
        '\n',
        '\0',
        '\u007f',
        '\u0301'.repeat(40),
        '❤\ufe0f',
        '1\ufe0f\u20e3',
        '⟦U+202E⟧',
      ),
    ),
    { maxLength: 30 },
  )
  .map((parts) => parts.join(''));

const UNSEEN = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\u2800\u3164\u115f\u{e0000}-\u{e0fff}]|\u034f|[\ufe00-\ufe0d]/u;

describe('a visible text', () => {
  test('has nothing in it that cannot be seen, that turns the writing, or that piles up', () => {
    fc.assert(
      fc.property(hostile, (text) => {
        const seen = visible(text);
        expect(seen).not.toMatch(UNSEEN);
        expect(seen).not.toMatch(/\p{M}{5}/u);
        expect(seen.isWellFormed()).toBe(true);
        expect(visible(seen)).toBe(seen);
        expect(firstHidden(seen)).toBeUndefined();
      }),
      { numRuns: 500 },
    );
  });

  test.each([
    ['invoice\u202etxt.exe', 'invoice⟦U+202E⟧txt.exe'],
    ['a\u200bb\u200ec\u061cd', 'a⟦U+200B⟧b⟦U+200E⟧c⟦U+061C⟧d'],
    ['\u0000\u001b[2J\u007f\u0085', '␀␛[2J␡⟦U+0085⟧'],
    ['pay\u{e0070}\u{e0061}', 'pay⟦U+E0070⟧⟦U+E0061⟧'],
    ['\ud800', '\ufffd'],
    // a selector that makes an emoji hides nothing; any other one may carry what nobody sees
    ['❤\ufe0f 1\ufe0f\u20e3', '❤\ufe0f 1\ufe0f\u20e3'],
    ['x\ufe0fy\ufe05 1\ufe0f', 'x⟦U+FE0F⟧y⟦U+FE05⟧ 1⟦U+FE0F⟧'],
    ['e\u0301\u0301\u0301\u0301\u0301', 'e\u0301\u0301\u0301\u0301⟦U+0301⟧'],
    ['été שלום नमस्ते ✓ 漢字', 'été שלום नमस्ते ✓ 漢字'],
  ])('of %j is %j', (text, seen) => expect(visible(text)).toBe(seen));

  test('comes in pieces that are, put together, the text', () => {
    fc.assert(
      fc.property(hostile, (text) => {
        const bare = (one: string) => one.replace(/⟦(U\+[0-9A-F]{4,6})⟧/g, '$1');
        expect(
          pieces(text)
            .map((piece) => piece.text)
            .join(''),
        ).toBe(bare(visible(text)));
      }),
    );
    expect(pieces('a\u202eb\u0007')).toEqual([
      { text: 'a', code: false },
      { text: 'U+202E', code: true },
      { text: 'b', code: false },
      { text: '␇', code: true },
    ]);
  });
});

test('there is something to see where there is a character that shows, and not where there is none', () => {
  for (const text of ['a', ' . ', '\u200bх', '審', '#\uFE0F\u20E3', '👍', '\u2800+'])
    expect(showsSomething(text), text).toBe(true);
  const blanks = [
    '',
    ' \t\n',
    '\u00a0\u3000',
    '\u200b\u202e\u2066',
    '\u3164',
    '\u115f\u1160',
    '\uffa0',
    '\u2800',
    '\u0301',
    '\u{e0041}',
  ];
  for (const text of blanks) expect(showsSomething(text), JSON.stringify(text)).toBe(false);
});

test('one line keeps its length and never half a code', () => {
  fc.assert(
    fc.property(hostile, fc.integer({ min: 1, max: 80 }), (text, max) => {
      const line = oneLine(text, max);
      expect([...line].length).toBeLessThanOrEqual(max);
      expect(line).not.toMatch(UNSEEN);
      expect(line).not.toMatch(/⟦U\+[0-9A-F]{0,6}…$/);
    }),
    { numRuns: 500 },
  );
  expect(oneLine(' pays \n 12 EUR\u202e', 40)).toBe('pays 12 EUR⟦U+202E⟧');
  expect(oneLine('pays 12\u202e34', 12)).toBe('pays 12…');
});
