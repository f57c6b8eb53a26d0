/**
 * Text from others, made safe to show to people and in reports. Agents, tools and tenants choose names and sentences; none of
 * them may hide anything, change the writing direction, or affect the text around it.
 */

/**
 * Replaces every character that is invisible, changes the writing direction, piles marks on a letter, or puts a mark on the text
 * before it, with a visible form: controls with their pictures (`␊`), others with `⟦U+202E⟧`. Lone surrogates become U+FFFD.
 * Deterministic and idempotent.
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

/** A visible text in which nothing that the text itself spells looks like a code. Not idempotent. */
export const exact = (text: string): string => visible(text.replace(/[⟦⟧␀-␟␡]/g, codeOf));

/** Escaped for use between quotes: none of its own quotes ends it. */
export const escaped = (text: string): string => text.replace(/[\\"]/g, '\\$&');

/** A text in quotes. Different texts are written differently. */
export const quoted = (text: string): string => `"${exact(escaped(text))}"`;

/** The first invisible character of a multi-line text; line breaks and tabs are allowed. */
export function firstHidden(text: string): { at: number; hex: string } | undefined {
  for (const { 0: one, index: at } of text.matchAll(HIDDEN)) {
    if (!'\t\n\r'.includes(one)) return { at, hex: one.codePointAt(0)!.toString(16) };
  }
  return undefined;
}

/** Whether there is anything to see: more than white space, marks without a letter, and invisible characters. */
export function showsSomething(text: string): boolean {
  return SEEN.test(text);
}

/** Visible text on one line, with white space collapsed and its length limited between characters. */
export function oneLine(text: string, max: number): string {
  // white space that a line may contain becomes a space; what breaks or empties it stays, and is made visible
  const seen = visible(text.replace(/[\t\n\r\p{Zs}]+/gu, ' ').trim());
  const parts = seen.match(/⟦U\+[0-9A-F]{4,6}⟧|./gsu) ?? [];
  let length = parts.reduce((sum, part) => sum + [...part].length, 0);
  if (length <= max) return seen;
  // a code is kept whole or dropped
  while (length > max - 1 && parts.length > 0) length -= [...parts.pop()!].length;
  return `${parts.join('')}…`;
}

/** Visible text in pieces: plain text, and codes, each named by what it stands for. */
export function pieces(text: string): { text: string; code: boolean }[] {
  return visible(text)
    .split(/(⟦U\+[0-9A-F]{4,6}⟧|[␀-␟␡])/)
    .map((part, n) => ({ text: n % 2 === 1 ? part.replace(/[⟦⟧]/g, '') : part, code: n % 2 === 1 }))
    .filter((piece) => piece.text !== '');
}

/** Invisible characters. A variation selector is visible if it is what makes an emoji or a keycap. */
const UNSEEN = [
  String.raw`(?![\uFE00-\uFE0F])[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}\u2800]`,
  // what no font has, or only a private one; and letters and notes that are drawn as nothing
  String.raw`[\p{Co}\p{Cn}\u{1342F}\u{13441}\u{13442}\u{1D159}]`,
  String.raw`[\uFE00-\uFE0D]`,
  String.raw`(?<!\p{Extended_Pictographic})\uFE0E`,
  String.raw`(?<!\p{Extended_Pictographic}|[0-9#*](?=\uFE0F\u20E3))\uFE0F`,
].join('|');
const HIDDEN = new RegExp(UNSEEN, 'gu');
const SEEN = new RegExp(String.raw`(?!${UNSEEN})[^\p{C}\p{Z}\p{M}]`, 'u');
/** Plus more marks than any script puts on one letter: a pile of them covers the lines above and below. */
const REPLACED = new RegExp(String.raw`${UNSEEN}|\p{M}(?<=\p{M}{5})`, 'gu');
/** Marks without a letter of the text's own: at its start, they would change our preceding letter. */
const UNBASED = /(?<=^|[⟧␀-␟␡])\p{M}+/gu;

/** A piece of a name: plain text, a code, or a letter that can be mistaken for another. */
export interface NamePiece {
  text: string;
  kind: 'text' | 'code' | 'lookalike';
}

/**
 * A name in pieces. Nothing looks like a name of ASCII letters, digits and signs that is not that name: letters of other
 * alphabets next to Latin ones, letters drawn like Latin ones and those of other fonts are marked; signs outside ASCII, letters
 * that are not composed (NFC), and blanks other than single spaces between words are shown as codes. A name entirely in one other
 * script is left as it is, except for words that consist only of twins of Latin letters. One of no characters is said to be none.
 */
export function namePieces(name: string): NamePiece[] {
  if (name === '') return [{ text: 'no name', kind: 'code' }];
  const script = scriptOf(name);
  return pieces(name.replace(BLANK, codeOf)).flatMap(({ text, code }): NamePiece[] =>
    code ? [{ text, kind: 'code' }] : marked(text, script),
  );
}

/** A name as it reads on a page, for use in speech or plain text. Codes keep their brackets. */
export const nameRead = (name: string): string =>
  namePieces(name)
    .map(({ text, kind }) => (kind === 'code' && text.startsWith('U+') ? `⟦${text}⟧` : text))
    .join('');

/** Exactly the letters that a page shows of a name, for the label of the element: voice control users say what they see. */
export const nameShown = (name: string): string =>
  namePieces(name)
    .map(({ text }) => text)
    .join('');

/** Whether a name is shown unchanged, for places where nothing can be marked. */
export const isPlain = (name: string): boolean => namePieces(name).every(({ kind }) => kind === 'text');

/** The words of a name with letters that can be mistaken for others. */
export function lookalikes(name: string): string[] {
  const script = scriptOf(name);
  const words = visible(name).match(WORDS) ?? [];
  return [...new Set(words.filter((word) => marked(word, script).some(({ kind }) => kind === 'lookalike')))];
}

/** Splits the visible text of a name: letters to mark, characters to name by their code, and the rest. */
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

/** Whether this name may have the letter: of its only script, and in no other font. */
function isOwn(letter: string, script: RegExp | undefined): boolean {
  if (/\p{Script=Latin}/u.test(letter)) return LATIN.test(letter.normalize('NFD'));
  if (script === undefined || !script.test(letter) || !/\p{L}/u.test(letter)) return false;
  return letter === 'ำ' || letter === 'ຳ' || letter.normalize('NFKC') === letter;
}

/** The script of all letters of a name, if it is a single one in daily use, and not Latin. */
function scriptOf(name: string): RegExp | undefined {
  const [letter] = /(?!\p{Script=Common})\p{L}/u.exec(name) ?? [];
  const script = letter && SCRIPTS.find((one) => one.test(letter));
  if (!script) return undefined;
  for (const [other] of name.matchAll(/(?!\p{Script=Common})\p{L}/gu)) if (!script.test(other)) return undefined;
  return script;
}

/** Blanks of other widths, and plain ones at an end or next to another one, where no one sees them. */
const BLANK = /(?! )\p{Zs}|^ | $| (?=\p{Zs})/gu;
const ASCII = /^[ -~]+$/;
/** Words of letters, and the text between them. */
const RUNS = /[\p{L}\p{M}\p{N}]+|[^\p{L}\p{M}\p{N}]+/gu;
const WORDS = /[\p{L}\p{M}\p{N}]+/gu;
/** The unit of normalization: a letter and its marks. */
const CLUSTERS = /\P{M}\p{M}*|\p{M}+/gu;
/** Parts of Korean syllables, which are drawn like the whole syllable. */
const JAMO = /[\u1100-\u11FF\uA960-\uA97F\uD7B0-\uD7FF]/;
/** Latin letters that differ from those of ASCII: with marks, and a few of their own. */
const LATIN = /^(?:[A-Za-z]\p{M}*|[æÆøØßðÐþÞđĐħĦłŁœŒŋŊŧŦ]\p{M}*)$/u;
/** Unicode's recommended scripts (UAX #31), except Latin; the writing of Chinese, Japanese and Korean counts as one each. */
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
