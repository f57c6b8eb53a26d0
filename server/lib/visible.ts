/**
 * Text that somebody else wrote, as people and reports may show it. Agents, tools and tenants choose names and sentences;
 * none of them may hide something, turn the direction of writing, or reach over what stands beside it.
 */

/**
 * Replaces every character that cannot be seen, that changes the writing direction, that piles marks upon a letter, or that
 * puts a mark on what stands before the text, with a visible form: controls with their pictures (`␊`), others with `⟦U+202E⟧`.
 * Lone surrogates become U+FFFD. Deterministic and idempotent.
 */
export function visible(text: string): string {
  return text
    .toWellFormed()
    .replace(REPLACED, (one) => {
      const number = one.codePointAt(0)!;
      if (number < 0x20) return String.fromCharCode(0x2400 + number);
      return number === 0x7f ? '␡' : codeOf(one);
    })
    .replace(UNBASED, (marks) => [...marks].map(codeOf).join(''));
}

const codeOf = (one: string) => `⟦U+${one.codePointAt(0)!.toString(16).toUpperCase().padStart(4, '0')}⟧`;

/** The first character of a multi-line text that cannot be seen; line breaks and tabs are allowed there. */
export function firstHidden(text: string): { at: number; hex: string } | undefined {
  for (const { 0: one, index: at } of text.matchAll(HIDDEN)) {
    if (!'\t\n\r'.includes(one)) return { at, hex: one.codePointAt(0)!.toString(16) };
  }
  return undefined;
}

/** Whether there is something to see: more than white space, marks without a letter, and characters that show nothing. */
export function showsSomething(text: string): boolean {
  return SEEN.test(text);
}

/** Visible text on one line, with its white space made single and its length limited between characters. */
export function oneLine(text: string, max: number): string {
  // white space that a line may have is a space; what breaks or empties it stays, and is made visible
  const seen = visible(text.replace(/[\t\n\r\p{Zs}]+/gu, ' ').trim());
  const parts = seen.match(/⟦U\+[0-9A-F]{4,6}⟧|./gsu) ?? [];
  let length = parts.reduce((sum, part) => sum + [...part].length, 0);
  if (length <= max) return seen;
  // a code is kept whole or left out
  while (length > max - 1 && parts.length > 0) length -= [...parts.pop()!].length;
  return `${parts.join('')}…`;
}

/** Visible text in pieces: what stands there as it is, and the codes, each named by what it stands for. */
export function pieces(text: string): { text: string; code: boolean }[] {
  return visible(text)
    .split(/(⟦U\+[0-9A-F]{4,6}⟧|[␀-␟␡])/)
    .map((part, n) => ({ text: n % 2 === 1 ? part.replace(/[⟦⟧]/g, '') : part, code: n % 2 === 1 }))
    .filter((piece) => piece.text !== '');
}

/** What cannot be seen. A variation selector can, where it is the one that makes an emoji or a keycap. */
const UNSEEN = [
  String.raw`(?![\uFE00-\uFE0F])[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}\u2800]`,
  String.raw`[\uFE00-\uFE0D]`,
  String.raw`(?<!\p{Extended_Pictographic})\uFE0E`,
  String.raw`(?<!\p{Extended_Pictographic}|[0-9#*](?=\uFE0F\u20E3))\uFE0F`,
].join('|');
const HIDDEN = new RegExp(UNSEEN, 'gu');
const SEEN = new RegExp(String.raw`(?!${UNSEEN})[^\p{C}\p{Z}\p{M}]`, 'u');
/** And marks beyond what any script puts on one letter: a pile of them covers the lines above and below. */
const REPLACED = new RegExp(String.raw`${UNSEEN}|\p{M}(?<=\p{M}{5})`, 'gu');
/** Marks without a letter of the text's own: at its start, they would change the last of our letters. */
const UNBASED = /(?<=^|[⟧␀-␟␡])\p{M}+/gu;

/** A piece of a name: what stands there as it is, a code, or a letter that can be taken for another one. */
export interface NamePiece {
  text: string;
  kind: 'text' | 'code' | 'lookalike';
}

/**
 * A name in pieces. Two names that differ must look different: a space that is not a single one between words has its code,
 * and a letter of another alphabet that can be taken for a Latin one is marked.
 */
export function namePieces(name: string): NamePiece[] {
  return pieces(name.replace(BLANK, codeOf)).flatMap(({ text, code }): NamePiece[] => {
    if (code) return [{ text, kind: 'code' }];
    return text
      .split(/([\p{L}\p{M}]+)/u)
      .flatMap((word, n) => (n % 2 === 1 ? lettersOf(word) : [{ text: word, kind: 'text' as const }]))
      .filter((piece) => piece.text !== '');
  });
}

/** A name as it reads on a page, for where it is only heard, or stands in a plain text. */
export const nameRead = (name: string): string =>
  namePieces(name)
    .map(({ text }) => text)
    .join('');

/** Whether a name is shown as it is, where nothing can be marked in it. */
export const isPlain = (name: string): boolean => namePieces(name).every(({ kind }) => kind === 'text');

/** The words of a name in which letters can be taken for Latin ones. */
export function lookalikes(name: string): string[] {
  const words = name.match(/[\p{L}\p{M}]+/gu) ?? [];
  return [...new Set(words.filter((word) => lettersOf(word).some(({ kind }) => kind === 'lookalike')))];
}

/**
 * The letters of a word, those marked that look Latin and are not: all that are of another alphabet where it mixes two, and
 * a whole word of such letters. A word of another language has others among them, and is left as it is.
 */
function lettersOf(word: string): NamePiece[] {
  if (/^[\p{Script=Latin}\p{M}]+$/u.test(word) && !STYLED.test(word)) return [{ text: word, kind: 'text' }];
  const mixed =
    /(?![\uFF21-\uFF5A])\p{Script=Latin}/u.test(word) &&
    /[\p{Script=Cyrillic}\p{Script=Greek}\p{Script=Cherokee}\p{Script=Armenian}]/u.test(word);
  const whole = TWINS.test(word);
  if (!mixed && !whole && !STYLED.test(word)) return [{ text: word, kind: 'text' }];
  return word
    .split(FOREIGN)
    .map((text, n) => ({ text, kind: n % 2 === 1 ? ('lookalike' as const) : ('text' as const) }));
}

/** Blanks of other widths, and plain ones at an end or beside another one, where nobody sees them. */
const BLANK = /(?! )\p{Zs}|^ | $| (?=\p{Zs})/gu;
/** Letters that are Latin ones in another width or font. */
const STYLED = /[\uFF21-\uFF3A\uFF41-\uFF5A\u{1D400}-\u{1D7FF}\u2100-\u214F]/u;
/** Letters of other alphabets that are drawn like Latin ones (Unicode's confusables, those of whole letters). */
const TWIN = 'аеорсухѕіјһԁԛԝӏүАВЕКМНОРСТУХЅІЈԌԚԜҮοναρυχικΑΒΕΖΗΙΚΜΝΟΡΤΥΧօսոհցԍᎪᏴᏟᎠᎬᎻᎫᏦᏞᎷᏢᏒᏚᎢᏙᎳᏃ';
const TWINS = new RegExp(`^[${TWIN}]+$`, 'u');
const FOREIGN =
  /([\p{Script=Cyrillic}\p{Script=Greek}\p{Script=Cherokee}\p{Script=Armenian}\uFF21-\uFF3A\uFF41-\uFF5A\u{1D400}-\u{1D7FF}\u2100-\u214F]+)/u;
