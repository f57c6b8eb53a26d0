import { diffArrays } from 'diff';

/** The longest edit script that is searched for. The time grows with its square, and nobody else is answered in it. */
const MOST_EDITS = 300;
/** Lines before and after a line that say which one it is. */
export const AROUND = 2;

const ENDS = /(\r\n?|\n)/;
export const linesOf = (text: string): string[] => text.split(/\r\n?|\n/);

/**
 * Where a line of an older text stands in a newer one, or the first one of several; undefined if that is not certain: if one
 * was changed or removed, or stands in something else by now. In a policy the whole rule around each must stand there as it was
 * if it has an id; else, and in tests, the lines before and after it must. Lines count from 1.
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
    // of lines in one rule it is compared once
    if (at > rule.last) {
      rule = part === 'text' ? ruleAround(was, at) : { first: at, last: at, named: false };
      if (!stands(rule.first, rule.last)) return undefined;
    }
    if (!rule.named && !stands(at - AROUND, at + AROUND)) return undefined;
  }
  return line + by;
}

/**
 * Where each line went, from 0; undefined of texts that are too different. What is before the first line or after the last one
 * went with the ends of the text.
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

/** The text with other lines in place of one or several, or with none if `instead` is empty. Nothing else in it changes. */
export function withLine(text: string, line: number, instead: string, end = line): string {
  const parts = text.split(ENDS);
  const at = 2 * (line - 1);
  const length = 2 * (end - line) + 1;
  if (instead !== '') parts.splice(at, length, instead);
  // the last end goes with them; that of the last line is the one before them
  else parts.splice(at + length === parts.length ? Math.max(0, at - 1) : at, length + 1);
  return parts.join('');
}

/** The texts of a version. */
export interface Texts {
  source: string;
  tests: string | null;
}

/** Lines that a comment is about. */
interface Lines {
  part: 'text' | 'tests';
  line: number;
  end_line?: number | undefined;
}

export const partOf = ({ source, tests }: Texts, part: Lines['part']): string =>
  part === 'text' ? source : (tests ?? '');

/** The texts with a suggestion applied; a suite of which nothing is left is none. Nothing else in them changes. */
export function withSuggestion(texts: Texts, { part, line, end_line }: Lines, suggestion: string): Texts {
  const text = withLine(partOf(texts, part), line, suggestion, end_line);
  return part === 'text' ? { ...texts, source: text } : { ...texts, tests: text.trim() === '' ? null : text };
}

/** Lines that say nothing by themselves: brackets, commas, semicolons, the marks of a remark. */
const EMPTY = /^[\s{}()[\];,/]*$/;
/** However they are indented. */
const bare = (lines: readonly string[]): string[] => lines.map((one) => one.trim()).filter((one) => one !== '');

/** Without blanks and line ends, which a formatter moves. */
const squeezed = (lines: readonly string[]): string => lines.join('').replace(/\s+/g, '');

/**
 * Of suggestions for lines of an older text whether a newer one has them, in their place: between what stood around them, in one
 * piece, with the lines gone that it does without, wherever lines end in it. A suggestion that changes only brackets and the
 * like is never found: it says too little of who wrote them. The two texts are compared once, unless `anywhere` is enough: then
 * it is if the newer one has the suggestion at all. Of texts that are too different to be compared `inDoubt` says whether that is
 * enough, or nothing is.
 */
export function suggestionsIn(
  older: string,
  newer: string,
  { inDoubt, anywhere = false }: { inDoubt: boolean; anywhere?: boolean },
): (place: Lines, suggestion: string) => boolean {
  const lines = linesOf(older);
  // how many lines that are not blank come before each
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
    // what stands there now: between the nearest lines around that are still there
    let [from, to] = [0, is.length];
    for (let n = first - 1; n >= 0 && from === 0; n--) from = (moved(n) ?? -1) + 1;
    for (let n = last; n < was.length && to === is.length; n++) to = moved(n) ?? is.length;
    const there = is.slice(from, to);
    if (there.some((one) => dropped.has(one))) return false;
    if (sought.size === 0) return there.length === 0 || !certain;
    return squeezed(there).includes(squeezed(linesOf(suggestion)));
  };
}

/** The lines of a comment in words. */
export const lineWords = ({ line, end_line: end = line }: { line: number; end_line?: number | undefined }): string =>
  end === line ? `line ${line}` : `lines ${line} to ${end}`;
