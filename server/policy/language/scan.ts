import type { Diagnostic } from '../../domain/policy.ts';
import { firstHidden } from '../evaluation/shown.ts';

/** A lexical token of Cedar. Offsets count UTF-16 units. White space and comments are no tokens. */
export interface Token {
  text: string;
  start: number;
  end: number;
  /** A string without its closing quote. */
  open?: true;
}

/**
 * The engine's recursion overflows its stack, and with that ends the instance, at about 117 nested brackets, 57 nested
 * `if`, 361 chained operators (when evaluated), and in the formatter at a set of 6,400 elements, as many comments in a
 * row, or a name of 8,000 parts. These limits keep well away from all of them, also in combination. The time of `like`
 * is the length of the text times that of the pattern: patterns are bounded here, texts where they are read.
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
 * The classes are those of the engine's own lexer: a comment ends at a CR as well as at an LF, white space is
 * Unicode's White_Space, and a backslash in a string does not escape a line feed. Where they differed, code could hide
 * from the limits in what looks like a comment or a string.
 */
const TOKEN =
  /(?<skip>\p{White_Space}+|\/\/[^\n\r]*)|(?<string>"[^"\\]*(?:\\[^\n][^"\\]*)*)(?<close>")?|[A-Za-z_][A-Za-z0-9_]*|[0-9]+|&&|\|\||[=!<>]=|::|./gsu;

export function tokens(source: string): Token[] {
  const found: Token[] = [];
  for (const match of source.matchAll(TOKEN)) {
    const { skip, string, close } = match.groups ?? {};
    if (skip !== undefined) continue;
    const [text, start] = [match[0], match.index];
    // a string that does not end is one token too: to look for its end again behind each of its quotes takes the square
    const open = string !== undefined && close === undefined;
    found.push({ text, start, end: start + text.length, ...(open && { open }) });
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
  // what a reviewer reads must be what the engine reads (a character that turns the direction can hide a clause)
  const hidden = firstHidden(source);
  if (hidden) {
    return refuse(hidden.at, `a character that cannot be seen: in a text in quotes write it as \\u{${hidden.hex}}`);
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
    if (unclosed) return refuse(start, 'a text in quotes that does not end');
    if (before === 'like' && token.startsWith('"')) {
      if (token.length - 2 > LIMITS.pattern) {
        return refuse(start, `a pattern of more than ${LIMITS.pattern} characters`);
      }
      const wildcards = token.replace(/\\./gs, '').split('*').length - 1;
      if (wildcards > LIMITS.wildcards) return refuse(start, `a pattern of more than ${LIMITS.wildcards} wildcards`);
    }
    before = token;
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
  /** As it is written, in its quotes; undefined where there is none. */
  value: string | undefined;
  start: number;
}

/** What precedes the scope: the annotations and the effect. `rest` is the index of the token after the effect. */
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

/** The text of a string literal; undefined for what is none, or has an escape that is not known here. */
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
