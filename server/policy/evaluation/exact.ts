import { FACT_LIMITS, type FactValue } from '../../domain/session-facts.ts';

/**
 * Limits on an agent's arguments. `text`: characters in a text that a rule reads. `steps`: characters of all keys, and of
 * what programs may make of them; a character beyond ASCII counts as `wide` of them.
 */
export const ARGUMENT_LIMITS = {
  ...{ depth: 16, leaves: 2_000, keyLength: 1_024, text: 16_384 },
  ...{ steps: 2 ** 19, wide: 16 },
} as const;

/** A Cedar decimal is a 64-bit integer of ten-thousandths. */
const MAX_TEN_THOUSANDTHS = 2n ** 63n - 1n;
/** Below this, the whole part of a number is printed in full and is within the range. */
const SHORT = 1e14;

/**
 * The exact Cedar decimal (at most four fractional digits) of a number or of a text in plain decimal notation: digits
 * with an optional sign and point. Undefined for everything else, including forms that programs read differently:
 * exponents, separators, white space, other bases and scripts.
 */
export function exactDecimal(value: number | string): string | undefined {
  if (typeof value === 'number' && Math.abs(value) < SHORT) return shortDecimal(value);
  if (typeof value === 'string' && (value.length > ARGUMENT_LIMITS.text || !/^[-+.\d]/.test(value))) return undefined;
  // a number prints with an exponent only if it is out of range or has too many fractional digits
  const [, sign, before = '', after = ''] = /^([+-]?)(\d*)(?:\.(\d*))?$/.exec(String(value)) ?? [];
  if (sign === undefined || (before === '' && after === '')) return undefined;
  let [from, to] = [0, after.length];
  while (before[from] === '0') from++;
  while (after[to - 1] === '0') to--;
  const [whole, fraction] = [before.slice(from), after.slice(0, to)];
  if (whole.length > 15 || fraction.length > 4) return undefined;
  // with fewer digits it is always within the range
  if (whole.length === 15 && BigInt(`${whole}${fraction.padEnd(4, '0')}`) > MAX_TEN_THOUSANDTHS) return undefined;
  return `${sign === '-' ? '-' : ''}${whole || '0'}.${fraction || '0'}`;
}

/** The same for a number below `SHORT`, as most are: it prints as a decimal, or with an exponent if it is too small. */
function shortDecimal(value: number): string | undefined {
  if (Number.isInteger(value)) return `${value}.0`;
  const text = String(value);
  return text.length - text.indexOf('.') <= 5 && !text.includes('e') ? text : undefined;
}

/** What a fact can be: short, and of one kind. */
export function isFactValue(value: unknown): value is FactValue {
  if (typeof value === 'boolean') return true;
  if (typeof value === 'number') return Number.isFinite(value) && Math.abs(value) <= Number.MAX_SAFE_INTEGER;
  if (typeof value === 'string') return value.length <= FACT_LIMITS.text;
  return (
    Array.isArray(value) &&
    value.length <= FACT_LIMITS.items &&
    value.every((item) => typeof item === 'string' && item.length <= FACT_LIMITS.text)
  );
}

/** The text of a value that can be the key of a fact: a text or an integer. */
export function keyText(value: unknown): string | undefined {
  const text = Number.isSafeInteger(value) ? String(value) : value;
  return typeof text === 'string' &&
    text.length > 0 &&
    text.length <= FACT_LIMITS.key &&
    text.isWellFormed() &&
    !text.includes('\0')
    ? text
    : undefined;
}

/** A time stated by a tool, in ISO 8601; without an offset it is in UTC. */
export function instant(text: string): string | undefined {
  if (!/^\d{4}-\d\d-\d\dT\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?(?:Z|[+-]\d\d:\d\d)?$/.test(text)) return undefined;
  const at = new Date(/(?:Z|[+-]\d\d:\d\d)$/.test(text) ? text : `${text}Z`);
  return Number.isNaN(at.getTime()) ? undefined : at.toISOString();
}
