import { createRequire } from 'node:module';
import type * as Re2Module from 're2js';

/** `pattern`: characters. `size`: instructions that it compiles to. `steps`: characters of a text × instructions. */
export const PATTERN_LIMITS = { pattern: 512, size: 1_000, steps: 2 ** 21 } as const;

/** How much memory the engine may use to cache states of one pattern; beyond it, it continues with constant memory. */
const MAX_BYTES = 256 * 1024;
const MAX_COMPILED = 500;

/** A pattern in RE2 syntax. A test always takes time proportional to `size` × the length of the text. */
export interface Pattern {
  size: number;
  test(text: string): boolean;
}

/** Loaded with the first pattern: programs without patterns save 30 ms. */
let engine: typeof Re2Module | undefined;
const load = (): typeof Re2Module => {
  engine ??= createRequire(import.meta.url)('re2js') as typeof Re2Module;
  return engine;
};

const compiled = new Map<string, Pattern>();

/** Throws a RangeError that describes the fault of the pattern. */
export function compilePattern(source: string): Pattern {
  const known = compiled.get(source);
  if (known) return known;
  if (source.length > PATTERN_LIMITS.pattern)
    throw new RangeError(`is longer than ${PATTERN_LIMITS.pattern} characters`);
  const { RE2JS, RE2Set } = load();
  const set = new RE2Set(RE2Set.UNANCHORED, 0, MAX_BYTES);
  let size: number;
  try {
    set.add(source);
    set.compile();
    size = RE2JS.compile(source).programSize();
  } catch (error) {
    throw new RangeError((error as Error).message.replace(/^error parsing regexp: /, ''), { cause: error });
  }
  if (size > PATTERN_LIMITS.size) throw new RangeError('is too large: repeat less');
  const pattern: Pattern = { size, test: (text) => set.match(text).length > 0 };
  compiled.set(source, pattern);
  if (compiled.size > MAX_COMPILED) compiled.delete(compiled.keys().next().value as string);
  return pattern;
}

/** A pattern's fault, described for its author; undefined if there is none. */
export function patternFault(source: string): string | undefined {
  try {
    compilePattern(source);
    return undefined;
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    return `the pattern ${JSON.stringify(source.slice(0, 80).toWellFormed())}: ${error.message} (RE2 syntax)`;
  }
}

/** Whether the pattern must match the whole text, judging by its ends. */
export function isAnchored(source: string): boolean {
  const begins = /^(?:\(\?[is]+\))?(?:\^|\\A)/.test(source);
  const ends = /(?<!\\)(?:\\\\)*(?:\$|\\z)$/.test(source);
  // with the flag m they match the ends of lines
  return begins && ends && !/\(\?[a-zA-Z-]*m/.test(source) && !hasTopLevelBar(source);
}

/** In `^a|b$`, each alternative is anchored at only one end. */
function hasTopLevelBar(source: string): boolean {
  let depth = 0;
  let inClass = false;
  for (let n = 0; n < source.length; n++) {
    const one = source[n];
    if (one === '\\') n++;
    else if (inClass) inClass = one !== ']';
    else if (one === '[') {
      inClass = true;
      // a bracket in first position is a literal
      if (source[n + 1] === '^') n++;
      if (source[n + 1] === ']') n++;
    } else if (one === '(') depth++;
    else if (one === ')') depth--;
    else if (one === '|' && depth === 0) return true;
  }
  return false;
}
