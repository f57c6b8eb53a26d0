import { diffArrays } from 'diff';

/** The longest edit script that is searched for; the time grows with its square. */
export const MOST_EDITS = 1_000;
/** Lines before and after a line that say which one it is. */
export const AROUND = 2;

const ENDS = /(\r\n?|\n)/;
export const linesOf = (text: string): string[] => text.split(/\r\n?|\n/);

/**
 * Where a line of an older text stands in a newer one; undefined if that is not certain: if the line was changed or removed,
 * or stands in something else by now. In a policy the whole rule around it must stand there as it was if it has an id; else,
 * and in tests, the lines before and after it must. Lines count from 1.
 */
export function lineIn(older: string, newer: string, line: number, part: 'text' | 'tests'): number | undefined {
  if (older === newer) return line;
  const [was, is] = [linesOf(older), linesOf(newer)];
  const moved = movesOf(was, is);
  const at = line - 1;
  const to = moved(at);
  if (to === undefined) return undefined;
  const stands = (first: number, last: number) => {
    for (let n = first; n <= last; n++) if (moved(n) !== n + to - at) return false;
    return true;
  };
  const rule = part === 'text' ? ruleAround(was, at) : { first: at, last: at, named: false };
  const same = rule.named
    ? stands(rule.first, rule.last)
    : stands(Math.min(rule.first, at - AROUND), Math.max(rule.last, at + AROUND));
  return same ? to + 1 : undefined;
}

/** Where each line went, from 0. What is before the first line or after the last one went with the ends of the text. */
function movesOf(was: readonly string[], is: readonly string[]): (line: number) => number | undefined {
  const moves = new Map<number, number>();
  let [from, to] = [0, 0];
  for (const { count, added, removed } of diffArrays([...was], [...is], { maxEditLength: MOST_EDITS }) ?? []) {
    if (!added && !removed) for (let n = 0; n < count; n++) moves.set(from + n, to + n);
    if (!added) from += count;
    if (!removed) to += count;
  }
  return (line) => {
    if (line < 0) return line;
    return line < was.length ? moves.get(line) : line - was.length + is.length;
  };
}

const REMARK = /^\s*(\/\/|$)/;
const RULE_ENDS = /;\s*(\/\/.*)?$/;
const RULE_ID = /^\s*@id\s*\(/;

/** The lines of the rule that a line is in, and whether it has an id. */
function ruleAround(lines: readonly string[], at: number): { first: number; last: number; named: boolean } {
  const ends = (n: number) => RULE_ENDS.test(lines[n]!) && !REMARK.test(lines[n]!);
  let [first, last] = [at, at];
  while (first > 0 && !ends(first - 1)) first--;
  while (first < at && REMARK.test(lines[first]!)) first++;
  while (last < lines.length - 1 && !ends(last)) last++;
  return { first, last, named: lines.slice(first, last + 1).some((line) => RULE_ID.test(line)) };
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
