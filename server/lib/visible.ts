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

const hexOf = (one: string) => one.codePointAt(0)!.toString(16).toUpperCase().padStart(4, '0');
const codeOf = (one: string) => `⟦U+${hexOf(one)}⟧`;

/** A visible text in which nothing that the text itself spells reads like a code. Done twice, it is another text. */
export const exact = (text: string): string => visible(text.replace(/[⟦⟧␀-␟␡]/g, codeOf));

/** With escapes, as one text in quotes: no quote of it ends it. */
export const escaped = (text: string): string => text.replace(/[\\"]/g, '\\$&');

/** A text in quotes. Two that differ are written differently. */
export const quoted = (text: string): string => `"${exact(escaped(text))}"`;

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
  // what no font has, or only one of the writer's; and letters and notes that are drawn as nothing
  String.raw`[\p{Co}\p{Cn}\u{1342F}\u{13441}\u{13442}\u{1D159}]`,
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
 * A name in pieces. Nothing looks like a name of ASCII letters, digits and signs that is not that name: letters of other
 * alphabets beside Latin ones, letters drawn like Latin ones and those of other fonts are marked; signs outside ASCII, letters
 * that are not composed (NFC), and blanks that are not a single space between words have their code. A name that is all in one
 * other script is left as it is, but for words of nothing else than twins of Latin letters.
 */
export function namePieces(name: string): NamePiece[] {
  const script = scriptOf(name);
  return pieces(name.replace(BLANK, codeOf)).flatMap(({ text, code }): NamePiece[] =>
    code ? [{ text, kind: 'code' }] : marked(text, script),
  );
}

/** A name as it reads on a page, for where it is only heard, or stands in a plain text. Codes keep their brackets. */
export const nameRead = (name: string): string =>
  namePieces(name)
    .map(({ text, kind }) => (kind === 'code' && text.startsWith('U+') ? `⟦${text}⟧` : text))
    .join('');

/** The very letters that a page shows of a name, for the label of what shows it: who speaks to a page says what they see. */
export const nameShown = (name: string): string =>
  namePieces(name)
    .map(({ text }) => text)
    .join('');

/** Whether a name is shown as it is, where nothing can be marked in it. */
export const isPlain = (name: string): boolean => namePieces(name).every(({ kind }) => kind === 'text');

/** The words of a name in which letters can be taken for others. */
export function lookalikes(name: string): string[] {
  const script = scriptOf(name);
  const words = visible(name).match(WORDS) ?? [];
  return [...new Set(words.filter((word) => marked(word, script).some(({ kind }) => kind === 'lookalike')))];
}

/** What is in a visible text of a name: letters to mark, characters to name by their code, and all the rest. */
function marked(text: string, script: RegExp | undefined): NamePiece[] {
  const found: NamePiece[] = [];
  const add = (kind: NamePiece['kind'], one: string) => {
    const last = found.at(-1);
    if (kind !== 'code' && last?.kind === kind) last.text += one;
    else found.push({ text: one, kind });
  };
  for (const [run] of text.matchAll(RUNS)) {
    if (ASCII.test(run)) {
      add('text', run);
      continue;
    }
    const isTwin = TWINS.test(run);
    for (const [cluster] of run.matchAll(CLUSTERS)) {
      const isComposed = cluster.normalize() === cluster && !JAMO.test(cluster);
      let before: NamePiece['kind'] = 'text';
      for (const one of cluster) {
        if (ASCII.test(one)) before = 'text';
        else if (!isComposed || !/[\p{L}\p{M}\p{N}]/u.test(one)) before = 'code';
        else if (/\p{M}/u.test(one)) {
          // a mark belongs to the letter before, and to its script
          if (before !== 'code' && !script?.test(one)) before = 'code';
        } else before = isOwn(one, script) && !isTwin ? 'text' : 'lookalike';
        add(before, before === 'code' ? `U+${hexOf(one)}` : one);
      }
    }
  }
  return found;
}

/** Whether a letter is one that this name may have: of its only script, and in no other font. */
function isOwn(letter: string, script: RegExp | undefined): boolean {
  if (/\p{Script=Latin}/u.test(letter)) return LATIN.test(letter.normalize('NFD'));
  if (script === undefined || !script.test(letter) || !/\p{L}/u.test(letter)) return false;
  return letter === 'ำ' || letter === 'ຳ' || letter.normalize('NFKC') === letter;
}

/** The script that all letters of a name are of, if it is one that is in daily use, and not Latin. */
function scriptOf(name: string): RegExp | undefined {
  const [letter] = /(?!\p{Script=Common})\p{L}/u.exec(name) ?? [];
  const script = letter && SCRIPTS.find((one) => one.test(letter));
  if (!script) return undefined;
  for (const [other] of name.matchAll(/(?!\p{Script=Common})\p{L}/gu)) if (!script.test(other)) return undefined;
  return script;
}

/** Blanks of other widths, and plain ones at an end or beside another one, where nobody sees them. */
const BLANK = /(?! )\p{Zs}|^ | $| (?=\p{Zs})/gu;
const ASCII = /^[ -~]+$/;
/** Words of letters, and what is between them. */
const RUNS = /[\p{L}\p{M}\p{N}]+|[^\p{L}\p{M}\p{N}]+/gu;
const WORDS = /[\p{L}\p{M}\p{N}]+/gu;
/** What is normalized together: a letter and its marks. */
const CLUSTERS = /\P{M}\p{M}*|\p{M}+/gu;
/** Parts of Korean syllables, which are drawn like the whole one. */
const JAMO = /[\u1100-\u11FF\uA960-\uA97F\uD7B0-\uD7FF]/;
/** Latin letters that differ from those of ASCII: with marks, and a few of their own. */
const LATIN = /^(?:[A-Za-z]\p{M}*|[æÆøØßðÐþÞđĐħĦłŁœŒŋŊŧŦ]\p{M}*)$/u;
/** Those of Unicode's recommended scripts (UAX #31), but for Latin; what Chinese, Japanese and Korean are written in is one. */
const SCRIPTS = [
  /[\p{Script=Han}\p{Script=Bopomofo}\p{Script_Extensions=Hiragana}\p{Script_Extensions=Katakana}\p{Script=Hangul}]/u,
  ...'Arabic Armenian Bengali Cyrillic Devanagari Ethiopic Georgian Greek Gujarati Gurmukhi Hebrew Kannada Khmer Lao Malayalam Myanmar Oriya Sinhala Tamil Telugu Thaana Thai Tibetan'
    .split(' ')
    .map((script) => new RegExp(String.raw`\p{Script=${script}}`, 'u')),
];
/** Letters of those scripts that are drawn like Latin ones, or like digits and signs (Unicode's confusables). */
const TWIN =
  'аеорсухѕіјһԁԛԝӏүѵѡАВЕКМНОРСТУХЅІЈԌԚԜҮѴѠӀЗԍ' +
  'οναρυχικωϲϳΑΒΕΖΗΙΚΜΝΟΡΤΥΧϹͿ' +
  'օսոհցզյգքլՕՍԼՏՅ' +
  'סוןטח' +
  'اهہەھٱ' +
  '一丨ー口ロノ' +
  'ဝပငთഠറ';
const TWINS = new RegExp(`^[${TWIN}0-9]*[${TWIN}][${TWIN}0-9]*$`, 'u');
