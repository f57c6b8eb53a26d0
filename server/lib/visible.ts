/**
 * Text that somebody else wrote, as people and reports may show it. Agents, tools and tenants choose names and sentences;
 * none of them may hide something, turn the direction of writing, or reach over what stands beside it.
 */

/**
 * Replaces every character that cannot be seen, that changes the writing direction, or that piles marks upon a letter,
 * with a visible form: controls with their pictures (`␊`), others with `⟦U+202E⟧`. Lone surrogates become U+FFFD.
 * Deterministic and idempotent.
 */
export function visible(text: string): string {
  return text.toWellFormed().replace(REPLACED, (one) => {
    const code = one.codePointAt(0)!;
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    return code === 0x7f ? '␡' : `⟦U+${code.toString(16).toUpperCase().padStart(4, '0')}⟧`;
  });
}

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
