import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  firstHidden,
  isPlain,
  lookalikes,
  namePieces,
  nameRead,
  oneLine,
  pieces,
  showsSomething,
  visible,
} from '../../server/lib/visible.ts';

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
        '\u0338',
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
        // no mark is for a letter of ours, in front of it
        expect(seen).not.toMatch(/^\p{M}/u);
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
    ['\u0338\u0301pay', '⟦U+0338⟧⟦U+0301⟧pay'],
    ['\n\u20e0 \u202e\u0338', '␊⟦U+20E0⟧ ⟦U+202E⟧⟦U+0338⟧'],
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

describe('a name', () => {
  const marked = (name: string) => namePieces(name).map(({ text, kind }) => (kind === 'text' ? text : `<${text}>`));
  test.each([
    ['refund', 'refund'],
    ['', '<no name>'],
    // Cyrillic among Latin, and a word that has nothing but twins of Latin letters
    ['rеfund', 'r<е>fund'],
    ['ореn_file', '<оре>n_file'],
    ['ѕсоре', '<ѕсоре>'],
    ['ＲＵＮ', '<ＲＵＮ>'],
    ['𝐫un', '<𝐫>un'],
    ['refund\u00a0', 'refund<U+00A0>'],
    [' refund ', '<U+0020>refund<U+0020>'],
    ['re  fund', 're<U+0020> fund'],
    ['re\u202efund', 're<U+202E>fund'],
    // what a language is written in stays as it is
    ['платёж', 'платёж'],
    ['κόσμος', 'κόσμος'],
    ['été_Łódź_straße', 'été_Łódź_straße'],
    ['支払い_カード 12', '支払い_カード 12'],
    ['שלום_12', 'שלום_12'],
    ['नमस्ते', 'नमस्ते'],
    ['งำ', 'งำ'],
    // two alphabets: those that are not Latin
    ['été_漢字 שלום', 'été_<漢字> <שלום>'],
    ['pay_ဝ', 'pay_<ဝ>'],
    // not composed, or with a mark that letters of ASCII do not have
    ['cafe\u0301', 'cafe<U+0301>'],
    ['fi\u0307le', 'fi<U+0307>le'],
    ['Д\u0307', 'Д<U+0307>'],
    ['\u1100\u1161', '<U+1100><U+1161>'],
    ['\u212bngstrom', '<U+212B>ngstrom'],
    // scripts that few write, and letters that are drawn alike
    ['ꓒꓮꓬ', '<ꓒꓮꓬ>'],
    ['pⲟⲟl', 'p<ⲟⲟ>l'],
    ['pဝဝl', 'p<ဝဝ>l'],
    ['ѕаѵе', '<ѕаѵе>'],
    ['ɡet', '<ɡ>et'],
    ['pɑy', 'p<ɑ>y'],
    ['ⅼs', '<ⅼ>s'],
    ['ⅽall', '<ⅽ>all'],
    ['pᴏᴏl', 'p<ᴏᴏ>l'],
    ['ſell', '<ſ>ell'],
    ['fıle', 'f<ı>le'],
    ['ﬁle', '<ﬁ>le'],
    ['aǃˍ', 'a<ǃˍ>'],
    ['pay_𝟏１🯱', 'pay_<𝟏１🯱>'],
    ['ⓐ', '<U+24D0>'],
    // signs that look like those of ASCII
    ...[...'‐‑−․∕∶꞉\u037e＿…、'].map((one) => [
      `pay${one}now`,
      `pay<U+${one.codePointAt(0)!.toString(16).toUpperCase().padStart(4, '0')}>now`,
    ]),
    // nothing that a font has
    ['a\ue000\u0378', 'a<U+E000><U+0378>'],
    ['a\u{1d159}\u{13441}\u{13442}\u{1342f}', 'a<U+1D159><U+13441><U+13442><U+1342F>'],
    ['⟦pay', '<U+27E6>pay'],
  ])('%j is shown as %s', (name, shown) => expect(marked(name).join('')).toBe(shown));

  test('that differs from a Latin one is never shown as it', () => {
    const latin = fc.stringMatching(/^[a-z][a-z_ ]{0,10}[a-z]$/);
    const change = fc.constantFrom(
      ...Object.entries({ a: 'а', c: 'с', e: 'е', o: 'о', p: 'р', x: 'х', y: 'у', i: 'і', s: 'ѕ', v: 'ν' }),
      ...Object.entries({ a: 'ａ', b: '𝐛', ' ': '\u00a0', _: '_\u200b' }),
    );
    fc.assert(
      fc.property(latin, change, (name, [from, to]) => {
        fc.pre(name.includes(from));
        expect(marked(name.replace(from, to)).join('')).not.toBe(marked(name).join(''));
        expect(marked(name.replace(from, to)).join('')).toMatch(/<.+>/);
      }),
    );
  });

  test('names the words that can be taken for others', () => {
    expect(lookalikes('rеfund on shор, été')).toEqual(['rеfund', 'shор']);
    for (const name of ['refund été', 'платёж', '支払い']) expect(lookalikes(name), name).toEqual([]);
  });

  test('reads with its codes in brackets, so that none is taken for letters', () => {
    expect(nameRead('x \u202e')).toBe('x ⟦U+202E⟧');
    expect(nameRead('x U+202E')).toBe('x U+202E');
    expect(nameRead('rеfund\u2011all ')).toBe('rеfund⟦U+2011⟧all⟦U+0020⟧');
  });

  test('has no mark only as ASCII, or as composed letters of one script', () => {
    const parts = fc.oneof(
      hostile,
      fc.string({ unit: 'binary', maxLength: 6 }),
      fc.stringMatching(/^[ -~]{0,8}$/),
      fc.constantFrom('é', 'e\u0301', 'д', 'а', 'い', '漢', 'ש', 'ー', '१', '̇', '⟦', 'ﬁ'),
    );
    fc.assert(
      fc.property(fc.array(parts, { maxLength: 4 }), (all) => {
        const name = all.join('');
        const shown = namePieces(name);
        expect(nameRead(name)).not.toMatch(UNSEEN);
        expect(visible(nameRead(name))).toBe(nameRead(name));
        for (const { text, kind } of shown) {
          if (kind === 'text') expect(text).toMatch(/^[ -~\p{L}\p{M}]+$/u);
          // a mark never belongs to a letter of another piece
          if (kind !== 'code') expect(text).not.toMatch(/^\p{M}/u);
        }
        if (!isPlain(name)) return;
        expect(name.normalize()).toBe(name);
        expect(name).not.toMatch(/\p{Script=Latin}.*\p{Script=Cyrillic}|\p{Script=Cyrillic}.*\p{Script=Latin}/u);
      }),
      { numRuns: 2000 },
    );
  });

  test('of any length takes time in proportion', () => {
    for (const one of ['a\u0301', '\u0301', '\ufe0f', 'а', 'aа', ' ', '⟦', '☺\ufe0f\u200d', 'a\u202e']) {
      const name = one.repeat(250_000);
      const before = process.cpuUsage();
      namePieces(name);
      lookalikes(name);
      // a second at most in proportion, minutes where each character looks at all of them: the bound tells them on any machine
      expect(process.cpuUsage(before).user / 1_000, JSON.stringify(one)).toBeLessThan(20_000);
    }
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
    ...['\u{1d159}', '\u{13441}', '\u{13442}', '\u{1342f}', '\ue000', '\u0378'],
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
