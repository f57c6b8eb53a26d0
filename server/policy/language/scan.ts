import type { Diagnostic } from '../../domain/policy.ts';
import { firstHidden } from '../../lib/visible.ts';

/** A lexical token of Cedar, other than white space and comments. Offsets count UTF-16 units. */
export interface Token {
  text: string;
  start: number;
  end: number;
  /** A string without its closing quote. */
  open?: true;
}

/**
 * The engine's recursion overflows its stack, which breaks the instance, at about 117 nested brackets, 57 nested `if`,
 * or 361 chained operators (when evaluated), and in the formatter at a set of 6,400 elements, as many consecutive
 * comments, or a name of 8,000 parts. These limits stay well below all of them, even combined. `like` takes time
 * proportional to (text length × pattern length): patterns are bounded here, texts where they are read.
 */
export const LIMITS = {
  bytes: 64 * 1024,
  nesting: 40,
  operators: 200,
  elements: 1_000,
  comments: 2_000,
  nameParts: 16,
  pattern: 512,
  wildcards: 16,
} as const;

/**
 * Matches the engine's own lexer: a comment ends at a CR as well as at an LF, white space is Unicode's White_Space, and
 * a backslash in a string does not escape a line feed. Any difference would let code hide from the limits inside what
 * looks like a comment or a string.
 */
const TOKEN =
  /(?<skip>\p{White_Space}+|\/\/[^\n\r]*)|(?<string>"[^"\\]*(?:\\[^\n][^"\\]*)*)(?<close>")?|[A-Za-z_][A-Za-z0-9_]*|[0-9]+|&&|\|\||[=!<>]=|::|./gsu;

export function tokens(source: string): Token[] {
  const found: Token[] = [];
  for (const match of source.matchAll(TOKEN)) {
    const { skip, string, close } = match.groups ?? {};
    if (skip !== undefined) continue;
    const [text, start] = [match[0], match.index];
    // an unterminated string is one token: searching for its end again after every quote would take quadratic time
    const open = string !== undefined && close === undefined;
    found.push({ text, start, end: start + text.length, ...(open && { open }) });
  }
  return found;
}

/** The tokens that count toward the limit. `when` and `unless` count because the engine joins clauses with `&&`. */
const OPERATORS = new Set(['&&', '||', '+', '-', '*', '.', '!', 'has', 'in', 'like', 'is', 'when', 'unless']);

/** The number that counts toward the limit. */
export function operatorsIn(all: readonly Token[]): number {
  return all.reduce((sum, { text }) => sum + Number(OPERATORS.has(text)), 0);
}

const CLOSING: Record<string, string> = { ')': '(', ']': '[', '}': '{' };

export interface Scan {
  /** The text without a byte order mark: what is parsed, hashed and shipped. All positions refer to it. */
  source: string;
  tokens: Token[];
  /** Set when the text must not reach the engine. */
  refusal?: Diagnostic;
}

/**
 * Checks a policy text before it may reach the engine. A text without `refusal` is safe to parse, format, validate and
 * evaluate; the engine decides whether it is valid Cedar.
 */
export function scan(text: string): Scan {
  const source = text.startsWith('\uFEFF') ? text.slice(1) : text;
  if (source.length > LIMITS.bytes || Buffer.byteLength(source) > LIMITS.bytes) {
    return { source, tokens: [], refusal: { line: 1, column: 1, message: 'the policy is larger than 64 KiB' } };
  }
  const found = tokens(source);
  const refuse = (offset: number, message: string): Scan => ({
    source,
    tokens: found,
    refusal: { ...new Positions(source).at(offset), message },
  });

  const surrogate = loneSurrogate(source);
  if (surrogate >= 0) return refuse(surrogate, 'the text has a lone surrogate, which is not a valid character');
  // reviewer and engine must read the same text: a character that changes the writing direction can hide a clause
  const hidden = firstHidden(source);
  if (hidden) {
    return refuse(hidden.at, `an invisible character; in a string, write it as \\u{${hidden.hex}}`);
  }
  if (found.length === 0) return refuse(0, 'the policy has no statement');

  const comments = source.matchAll(TOKEN).filter(({ groups }) => groups?.skip?.startsWith('//'));
  const tooMany = comments.drop(LIMITS.comments).next().value;
  if (tooMany) return refuse(tooMany.index, `more than ${LIMITS.comments} comments`);

  const open: { bracket: string; commas: number }[] = [];
  let ifs = 0;
  let nameParts = 0;
  let operators = 0;
  let before = '';
  for (const { text: token, start, open: unclosed } of found) {
    if (unclosed) return refuse(start, 'a string without a closing quote');
    // people read texts line by line: what follows such a string could look like a comment
    if (token.startsWith('"') && /[\n\r]/.test(token)) {
      return refuse(start, 'a string that goes on in another line: write the line break as \\n');
    }
    if (before === 'like' && token.startsWith('"')) {
      if (token.length - 2 > LIMITS.pattern) {
        return refuse(start, `a pattern longer than ${LIMITS.pattern} characters`);
      }
      const wildcards = token.replace(/\\./gs, '').split('*').length - 1;
      if (wildcards > LIMITS.wildcards) return refuse(start, `a pattern with more than ${LIMITS.wildcards} wildcards`);
    }
    before = token;
    if (token === '::') nameParts++;
    else if (!/^[A-Za-z_"]/.test(token)) nameParts = 0;
    if (token === '(' || token === '[' || token === '{') {
      open.push({ bracket: token, commas: 0 });
    } else if (token in CLOSING) {
      // An unmatched closing bracket must not lower the depth: the parser recovers and continues.
      if (open.at(-1)?.bracket === CLOSING[token]) open.pop();
    } else if (token === 'if') {
      ifs++;
    } else if (token === ';') {
      if (open.length === 0) ifs = operators = 0;
    } else if (token === ',') {
      const enclosing = open.at(-1);
      if (enclosing && ++enclosing.commas >= LIMITS.elements) {
        return refuse(start, `a list with more than ${LIMITS.elements} elements`);
      }
    } else if (OPERATORS.has(token)) {
      operators++;
    } else if (token === '?') {
      return refuse(start, 'templates are not supported: name the principal and the resource instead of a ?slot');
    }
    if (open.length + ifs > LIMITS.nesting) {
      return refuse(start, `nesting deeper than ${LIMITS.nesting} levels (brackets and if combined)`);
    }
    if (nameParts > LIMITS.nameParts) return refuse(start, `a name with more than ${LIMITS.nameParts} parts`);
    if (operators > LIMITS.operators) {
      return refuse(start, `more than ${LIMITS.operators} operators in one statement`);
    }
  }
  return { source, tokens: found };
}

function loneSurrogate(text: string): number {
  if (text.isWellFormed()) return -1;
  return text.search(/[\uD800-\uDBFF](?![\uDC00-\uDFFF])|(?<![\uD800-\uDBFF])[\uDC00-\uDFFF]/);
}

/** Converts text offsets to 1-based lines and columns in UTF-16 units, as editors count. */
export class Positions {
  readonly #lineStarts: number[] = [0];
  readonly #source: string;
  #unitOfByte: Uint32Array | undefined;

  constructor(source: string) {
    this.#source = source;
    for (const match of source.matchAll(/\r\n?|\n/g)) this.#lineStarts.push(match.index + match[0].length);
  }

  /** The position of an offset in UTF-16 units. */
  at(offset: number): { line: number; column: number } {
    let low = 0;
    let high = this.#lineStarts.length;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if ((this.#lineStarts[middle] as number) <= offset) low = middle;
      else high = middle;
    }
    return { line: low + 1, column: offset - (this.#lineStarts[low] as number) + 1 };
  }

  /** The position of an offset in UTF-8 bytes, which the engine uses. */
  atByte(offset: number): { line: number; column: number } {
    return this.at(this.unitOfByte(offset));
  }

  unitOfByte(offset: number): number {
    this.#unitOfByte ??= unitsByByte(this.#source);
    return this.#unitOfByte[Math.max(0, Math.min(offset, this.#unitOfByte.length - 1))] as number;
  }
}

/** Maps every UTF-8 byte of the text, and its end, to the UTF-16 offset of the character. */
function unitsByByte(source: string): Uint32Array {
  const units = new Uint32Array(Buffer.byteLength(source) + 1);
  let byte = 0;
  let unit = 0;
  for (const character of source) {
    const width = Buffer.byteLength(character);
    units.fill(unit, byte, byte + width);
    byte += width;
    unit += character.length;
  }
  units[byte] = unit;
  return units;
}

/** Splits the tokens of a parsed text into statements; in such a text a semicolon always ends a statement. */
export function statementTokens(all: Token[]): Token[][] {
  const statements: Token[][] = [];
  let current: Token[] = [];
  for (const token of all) {
    current.push(token);
    if (token.text === ';') {
      statements.push(current);
      current = [];
    }
  }
  return statements;
}

export interface AnnotationToken {
  name: string;
  /** As written, with its quotes; undefined if there is none. */
  value: string | undefined;
  start: number;
}

/** The annotations and the effect, which precede the scope. `rest` is the index of the token after the effect. */
export function preamble(statement: Token[]): { annotations: AnnotationToken[]; effect: string; rest: number } {
  const annotations: AnnotationToken[] = [];
  let n = 0;
  while (statement[n]?.text === '@') {
    const valued = statement[n + 2]?.text === '(';
    const [name = '', value] = [statement[n + 1]?.text, valued ? statement[n + 3]?.text : undefined];
    annotations.push({ name, value, start: (statement[n] as Token).start });
    n += valued ? 5 : 2;
  }
  return { annotations, effect: statement[n]?.text ?? '', rest: n + 1 };
}

const ESCAPE = /\\(?:u\{([0-9A-Fa-f_]+)\}|x([0-7][0-9A-Fa-f])|([nrt0\\'"]))|\\/g;
const SHORT: Record<string, string> = { n: '\n', r: '\r', t: '\t', 0: '\0', '\\': '\\', "'": "'", '"': '"' };

/** The value of a string literal; undefined if it is not one or has an unknown escape. */
export function literal(word: string | undefined): string | undefined {
  if (!word?.startsWith('"') || word.length < 2) return undefined;
  let known = true;
  const text = word.slice(1, -1).replace(ESCAPE, (written, unicode?: string, hex?: string, short?: string) => {
    const code = Number.parseInt((unicode?.replaceAll('_', '') ?? hex) as string, 16);
    if (short !== undefined) return SHORT[short] as string;
    if (code <= 0x10ffff) return String.fromCodePoint(code);
    known = false;
    return written;
  });
  return known ? text : undefined;
}
