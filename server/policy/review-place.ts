import { diffArrays } from 'diff';

/**
 * The longest edit script that is searched for. The time grows with its square, and the process answers no one else
 * meanwhile.
 */
const MOST_EDITS = 300;
/** How many lines before and after a line identify it. */
export const AROUND = 2;

const ENDS = /(\r\n?|\n)/;
export const linesOf = (text: string): string[] => text.split(/\r\n?|\n/);

/**
 * Where a line of an older text, or the first of several, is in a newer text; undefined if that is uncertain: if one was
 * changed or removed, or is now part of something else. In a policy, the whole rule around each line must be unchanged
 * there if it has an id; otherwise, and in tests, the lines before and after it must be. Lines count from 1.
 */
export function lineIn(
  older: string,
  newer: string,
  line: number,
  part: 'text' | 'tests',
  end = line,
): number | undefined {
  if (older === newer) return line;
  const [was, is] = [linesOf(older), linesOf(newer)];
  const moved = movesOf(was, is);
  const to = moved?.(line - 1);
  if (to === undefined) return undefined;
  const by = to - (line - 1);
  const stands = (first: number, last: number) => {
    for (let n = first; n <= last; n++) if (moved!(n) !== n + by) return false;
    return true;
  };
  let rule = { first: 0, last: -1, named: false };
  for (let at = line - 1; at < end; at++) {
    // several lines in one rule are compared once
    if (at > rule.last) {
      rule = part === 'text' ? ruleAround(was, at) : { first: at, last: at, named: false };
      if (!stands(rule.first, rule.last)) return undefined;
    }
    if (!rule.named && !stands(at - AROUND, at + AROUND)) return undefined;
  }
  return line + by;
}

/**
 * Where each line moved, from 0; undefined for texts that are too different. Positions before the first line or after the
 * last one move with the ends of the text.
 */
function movesOf(was: readonly string[], is: readonly string[]): ((line: number) => number | undefined) | undefined {
  const moves = new Map<number, number>();
  let [from, to] = [0, 0];
  const changes = diffArrays([...was], [...is], { maxEditLength: MOST_EDITS });
  if (!changes) return undefined;
  for (const { count, added, removed } of changes) {
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

/** The text with one or several lines replaced, or removed if `instead` is empty. Nothing else in it changes. */
export function withLine(text: string, line: number, instead: string, end = line): string {
  const parts = text.split(ENDS);
  const at = 2 * (line - 1);
  const length = 2 * (end - line) + 1;
  if (instead !== '') parts.splice(at, length, instead);
  // their last line ending is removed with them; for the last line it is the one before
  else parts.splice(at + length === parts.length ? Math.max(0, at - 1) : at, length + 1);
  return parts.join('');
}

/** The texts of a version. */
export interface Texts {
  source: string;
  tests: string | null;
}

/** The lines that a comment is about. */
interface Lines {
  part: 'text' | 'tests';
  line: number;
  end_line?: number | undefined;
}

export const partOf = ({ source, tests }: Texts, part: Lines['part']): string =>
  part === 'text' ? source : (tests ?? '');

/** The texts with a suggestion applied; a suite that becomes blank is removed. Nothing else in them changes. */
export function withSuggestion(texts: Texts, { part, line, end_line }: Lines, suggestion: string): Texts {
  const text = withLine(partOf(texts, part), line, suggestion, end_line);
  return part === 'text' ? { ...texts, source: text } : { ...texts, tests: text.trim() === '' ? null : text };
}

/** Lines without meaning of their own: brackets, commas, semicolons, comment markers. */
const EMPTY = /^[\s{}()[\];,/]*$/;
/** Ignoring indentation. */
const bare = (lines: readonly string[]): string[] => lines.map((one) => one.trim()).filter((one) => one !== '');

/** Without whitespace and line endings, which a formatter moves. */
const squeezed = (lines: readonly string[]): string => lines.join('').replace(/\s+/g, '');

/**
 * Tells whether a newer text contains suggestions for lines of an older one, in their place: contiguous, between what
 * surrounded the lines, without the lines that the suggestion drops, and regardless of line breaks. A suggestion that
 * changes only brackets and the like is never found: it reveals too little about who wrote them. The two texts are
 * compared once, unless `anywhere`: then it is enough that the newer one contains the suggestion at all. For texts too
 * different to compare, `inDoubt` decides whether that is enough or nothing is found.
 */
export function suggestionsIn(
  older: string,
  newer: string,
  { inDoubt, anywhere = false }: { inDoubt: boolean; anywhere?: boolean },
): (place: Lines, suggestion: string) => boolean {
  const lines = linesOf(older);
  // the number of nonblank lines before each line
  const before = new Uint32Array(lines.length + 1);
  for (const [n, line] of lines.entries()) before[n + 1] = before[n]! + (line.trim() === '' ? 0 : 1);
  const [was, is] = [bare(lines), bare(linesOf(newer))];
  const certain = anywhere ? undefined : movesOf(was, is);
  const moved = certain ?? (() => undefined);
  return ({ line, end_line: end = line }, suggestion) => {
    const [first, last] = [before[line - 1]!, before[Math.min(end, lines.length)]!];
    const replaced = new Set(was.slice(first, last));
    const sought = new Set(bare(linesOf(suggestion)));
    const dropped = replaced.difference(sought);
    if ([...sought.difference(replaced), ...dropped].every((one) => EMPTY.test(one))) return false;
    if (!certain && !inDoubt) return false;
    // what is there now: between the nearest surrounding lines that still exist
    let [from, to] = [0, is.length];
    for (let n = first - 1; n >= 0 && from === 0; n--) from = (moved(n) ?? -1) + 1;
    for (let n = last; n < was.length && to === is.length; n++) to = moved(n) ?? is.length;
    const there = is.slice(from, to);
    if (there.some((one) => dropped.has(one))) return false;
    if (sought.size === 0) return there.length === 0 || !certain;
    return squeezed(there).includes(squeezed(linesOf(suggestion)));
  };
}

/** The lines of a comment, as text. */
export const lineWords = ({ line, end_line: end = line }: { line: number; end_line?: number | undefined }): string =>
  end === line ? `line ${line}` : `lines ${line} to ${end}`;
