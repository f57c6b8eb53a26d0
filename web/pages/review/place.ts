import { diffArrays } from 'diff';

/** The longest edit script that is searched for; the time grows with its square. */
export const MOST_EDITS = 1_000;

const ENDS = /(\r\n?|\n)/;
const linesOf = (text: string): string[] => text.split(/\r\n?|\n/);

/** Where a line of an older text stands in a newer one; undefined if it was changed or removed. Lines count from 1. */
export function lineIn(older: string, newer: string, line: number): number | undefined {
  if (older === newer) return line;
  let [was, is] = [0, 0];
  for (const { count, added, removed } of diffArrays(linesOf(older), linesOf(newer), { maxEditLength: MOST_EDITS }) ??
    []) {
    if (!added && !removed && line > was && line <= was + count) return is + line - was;
    if (!added) was += count;
    if (!removed) is += count;
  }
  return undefined;
}

/** The text with other lines in place of one, or with none if `instead` is empty. Nothing else in it changes. */
export function withLine(text: string, line: number, instead: string): string {
  const parts = text.split(ENDS);
  const at = 2 * (line - 1);
  if (instead !== '') parts[at] = instead;
  // its end goes with it; that of the last line is the one before it
  else parts.splice(at === parts.length - 1 ? Math.max(0, at - 1) : at, 2);
  return parts.join('');
}
