import type { Diagnostic } from '../types.ts';

/** A lexical token of Cedar. Offsets count UTF-16 units. White space and comments are no tokens. */
export interface Token {
  text: string;
  start: number;
  end: number;
}

/**
 * The engine's recursion overflows its stack, and with that ends the instance, at about 117 nested brackets, 57 nested
 * `if`, 361 chained operators (when evaluated), and in the formatter at a set of 6,400 elements, as many comments in a
 * row, or a name of 8,000 parts. These limits keep well away from all of them, also in combination.
 */
export const LIMITS = {
  bytes: 64 * 1024,
  nesting: 40,
  operators: 200,
  elements: 1_000,
  comments: 2_000,
  nameParts: 16,
} as const;

/**
 * The classes are those of the engine's own lexer: a comment ends at a CR as well as at an LF, white space is
 * Unicode's White_Space, and a backslash in a string does not escape a line feed. Where they differed, code could hide
 * from the limits in what looks like a comment or a string.
 */
const TOKEN =
  /(?<skip>\p{White_Space}+|\/\/[^\n\r]*)|"[^"\\]*(?:\\[^\n][^"\\]*)*"|[A-Za-z_][A-Za-z0-9_]*|[0-9]+|&&|\|\||[=!<>]=|::|./gsu;

export function tokens(source: string): Token[] {
  const found: Token[] = [];
  for (const match of source.matchAll(TOKEN)) {
    if (match.groups?.skip === undefined) {
      found.push({ text: match[0], start: match.index, end: match.index + match[0].length });
    }
  }
  return found;
}

/** Each counts towards the limit; `when` and `unless` too, since the engine joins their clauses with `&&`. */
const OPERATORS = new Set(['&&', '||', '+', '-', '*', '.', '!', 'has', 'in', 'like', 'is', 'when', 'unless']);
const CLOSING: Record<string, string> = { ')': '(', ']': '[', '}': '{' };

export interface Scan {
  /** The text without a byte order mark: what is parsed, hashed and shipped. All positions refer to it. */
  source: string;
  tokens: Token[];
  /** Why this text must not reach the engine. */
  refusal?: Diagnostic;
}

/**
 * Reads a policy text before the engine may see it. A text without `refusal` is safe to parse, format, validate and
 * evaluate; whether it is Cedar is for the engine to say.
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
  if (surrogate >= 0) return refuse(surrogate, 'a lone surrogate is not text');
  if (found.length === 0) return refuse(0, 'the policy has no statement');

  const comments = source.matchAll(TOKEN).filter(({ groups }) => groups?.skip?.startsWith('//'));
  const tooMany = comments.drop(LIMITS.comments).next().value;
  if (tooMany) return refuse(tooMany.index, `more than ${LIMITS.comments} comments`);

  const open: { bracket: string; commas: number }[] = [];
  let ifs = 0;
  let nameParts = 0;
  let operators = 0;
  for (const { text: token, start } of found) {
    if (token === '::') nameParts++;
    else if (!/^[A-Za-z_"]/.test(token)) nameParts = 0;
    if (token === '(' || token === '[' || token === '{') {
      open.push({ bracket: token, commas: 0 });
    } else if (token in CLOSING) {
      // A closing bracket that closes nothing must not earn room for opening ones: the parser recovers and goes on.
      if (open.at(-1)?.bracket === CLOSING[token]) open.pop();
    } else if (token === 'if') {
      ifs++;
    } else if (token === ';') {
      if (open.length === 0) ifs = operators = 0;
    } else if (token === ',') {
      const around = open.at(-1);
      if (around && ++around.commas >= LIMITS.elements) {
        return refuse(start, `a list of more than ${LIMITS.elements} elements`);
      }
    } else if (OPERATORS.has(token)) {
      operators++;
    } else if (token === '?') {
      return refuse(start, 'templates are not supported: name the principal and the resource instead of a ?slot');
    }
    if (open.length + ifs > LIMITS.nesting) {
      return refuse(start, `nesting deeper than ${LIMITS.nesting} (brackets and if together)`);
    }
    if (nameParts > LIMITS.nameParts) return refuse(start, `a name of more than ${LIMITS.nameParts} parts`);
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

/** Turns offsets into a text into 1-based lines and columns that count UTF-16 units, as editors do. */
export class Positions {
  readonly #lineStarts: number[] = [0];
  readonly #source: string;
  #unitOfByte: Uint32Array | undefined;

  constructor(source: string) {
    this.#source = source;
    for (const match of source.matchAll(/\r\n?|\n/g)) this.#lineStarts.push(match.index + match[0].length);
  }

  /** Of an offset in UTF-16 units. */
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

  /** Of an offset in UTF-8 bytes, in which the engine counts. */
  atByte(offset: number): { line: number; column: number } {
    return this.at(this.unitOfByte(offset));
  }

  unitOfByte(offset: number): number {
    this.#unitOfByte ??= unitsByByte(this.#source);
    return this.#unitOfByte[Math.max(0, Math.min(offset, this.#unitOfByte.length - 1))] as number;
  }
}

/** For every UTF-8 byte of the text, and for its end, the offset of its character in UTF-16 units. */
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

/** The statements of a text that has parsed: there, a semicolon does nothing but end a statement. */
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
  start: number;
}

/** What stands before the scope: the annotations and the effect. `rest` is the index of the token after the effect. */
export function preamble(statement: Token[]): { annotations: AnnotationToken[]; effect: string; rest: number } {
  const annotations: AnnotationToken[] = [];
  let n = 0;
  while (statement[n]?.text === '@') {
    annotations.push({ name: statement[n + 1]?.text ?? '', start: (statement[n] as Token).start });
    n += statement[n + 2]?.text === '(' ? 5 : 2;
  }
  return { annotations, effect: statement[n]?.text ?? '', rest: n + 1 };
}
