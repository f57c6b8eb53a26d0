import { oneLine } from '../../server/lib/visible.ts';

/** Formats numbers and terms for people. */
export function money(value: number, currency: string | null | undefined): string {
  // an agent may name a currency that does not exist, or one whose text changes how the number reads
  if (!/^[A-Za-z]{3}$/.test(currency ?? '')) {
    return `${value.toLocaleString()}${currency ? ` “${oneLine(currency, 12)}”` : ''}`;
  }
  const code = currency!.toUpperCase();
  let format = formats.get(code);
  if (!format) {
    // creating one takes milliseconds; an agent may name any of 17,576
    if (formats.size >= 100) formats.clear();
    format = new Intl.NumberFormat(undefined, { style: 'currency', currency: code });
    formats.set(code, format);
  }
  return format.format(value);
}
const formats = new Map<string, Intl.NumberFormat>();

export const count = (n: number, one: string, many = `${one}s`): string =>
  `${n.toLocaleString()} ${n === 1 ? one : many}`;

/** Splits a sentence into parts; those between backticks are code. Quoted text is left alone: it may be untrusted. */
export const codeIn = (text: string): { text: string; code: boolean }[] =>
  text
    .split(/("(?:[^"\\]|\\.)*"|`[^`]+`)/)
    .map((part) => (/^`.+`$/s.test(part) ? { text: part.slice(1, -1), code: true } : { text: part, code: false }))
    .filter((part) => part.text !== '');

/** A risk from 0 to 1 as a word and a tone. */
export function risk(score: number): { word: string; tone: 'ok' | 'wait' | 'bad' } {
  if (score >= 0.7) return { word: 'high', tone: 'bad' };
  return score >= 0.4 ? { word: 'medium', tone: 'wait' } : { word: 'low', tone: 'ok' };
}

/** The heading of a list of rules that no decision met: it claims only what was looked at. */
export const unmetTitle = (days: number, looked?: { complete: boolean; looked_at: number }): string =>
  looked === undefined || looked.complete
    ? `Rules without a decision in ${days} days`
    : `Rules not among the ${looked.looked_at.toLocaleString()} decisions looked at`;
