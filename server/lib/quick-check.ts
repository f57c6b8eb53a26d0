import type { z } from 'zod';

type Schema = z.core.$ZodType;
type Check = (value: unknown) => boolean;

/**
 * A check built from a schema, several times as fast as parsing with it, because it creates neither a copy of the value nor a
 * list of faults. True only for values that the schema accepts and returns unchanged, except that an object may have members that
 * its schema does not name and would drop: the caller must not read them.
 *
 * INVARIANT: for anything it does not know (transforms, unions, schemas of other kinds) it returns false, never true. So if it is
 * false, the schema decides.
 */
export function quickCheck(schema: Schema): Check {
  const def = schema._zod.def as unknown as Definition;
  switch (def.type) {
    case 'optional': {
      const inner = quickCheck(def.innerType!);
      return (value) => value === undefined || inner(value);
    }
    case 'nullable': {
      const inner = quickCheck(def.innerType!);
      return (value) => value === null || inner(value);
    }
    // it replaces what it catches
    case 'catch':
      return quickCheck(def.innerType!);
    case 'string': {
      const checks = checksOf(def);
      return (value) => typeof value === 'string' && all(checks, value);
    }
    case 'number': {
      const checks = checksOf(def);
      return (value) => typeof value === 'number' && Number.isFinite(value) && all(checks, value);
    }
    case 'enum': {
      const values: ReadonlySet<unknown> = new Set(Object.values(def.entries!));
      // TypeScript keeps the names of a numeric enumeration among the values
      if (values.values().some((value) => typeof value !== 'string')) return never;
      return (value) => values.has(value);
    }
    case 'literal': {
      const values: ReadonlySet<unknown> = new Set(def.values!);
      return (value) => values.has(value);
    }
    case 'array': {
      const element = quickCheck(def.element!);
      const checks = checksOf(def);
      return (value) => Array.isArray(value) && all(checks, value) && each(value, element);
    }
    case 'tuple': {
      if (def.rest || (def.checks?.length ?? 0) > 0) return never;
      const items = def.items!.map(quickCheck);
      return (value) =>
        Array.isArray(value) && value.length === items.length && items.every((item, i) => item(value[i]));
    }
    case 'object':
      return def.catchall ? never : objectCheck(def);
    default:
      return never;
  }
}

interface Definition {
  type: string;
  /** A string or a number that is itself a check, such as a date. */
  check?: string;
  checks?: readonly { readonly _zod: { readonly def: CheckDefinition } }[];
  innerType?: Schema;
  element?: Schema;
  items?: readonly Schema[];
  rest?: Schema | null;
  shape?: Record<string, Schema>;
  catchall?: Schema;
  entries?: Record<string, string | number>;
  values?: readonly unknown[];
}
interface CheckDefinition {
  check?: string;
  format?: string;
  pattern?: RegExp;
  value?: number;
  inclusive?: boolean;
  maximum?: number;
  fn?: (value: never) => unknown;
  when?: unknown;
}

const never = () => false;

function all(checks: readonly Check[], value: unknown): boolean {
  for (const check of checks) if (!check(value)) return false;
  return true;
}

/** `every` would skip the holes of an array, which are undefined to the schema. */
function each(values: readonly unknown[], check: Check): boolean {
  for (let n = 0; n < values.length; n++) if (!check(values[n])) return false;
  return true;
}

/** The members are read by generated code: a loop over their names would take most of the time. */
function objectCheck(def: Definition): Check {
  const names = Object.keys(def.shape!);
  const members = names.map((name) => quickCheck(def.shape![name]!));
  const checks = checksOf(def);
  const parameters = names.map((_, i) => `c${i}`);
  const conditions = names.map((name, i) => ` && c${i}(v[${JSON.stringify(name)}])`);
  const body = `return (v) => typeof v === 'object' && v !== null && !isArray(v)${conditions.join('')};`;
  const hasAll = new Function('isArray', ...parameters, body)(Array.isArray, ...members) as Check;
  return checks.length === 0 ? hasAll : (value) => hasAll(value) && all(checks, value);
}

function checksOf(def: Definition): Check[] {
  const own = def.check === undefined ? [] : [checkOf(def as CheckDefinition)];
  return [...own, ...(def.checks ?? []).map(({ _zod }) => checkOf(_zod.def))];
}

const INT32 = 2 ** 31;

function checkOf({ check, format, pattern, value: bound, inclusive, maximum, fn, when }: CheckDefinition): Check {
  // a check that may be skipped; this one is for values without a length
  if (when !== undefined && check !== 'max_length') return never;
  switch (check) {
    case 'custom':
      return fn ? (value) => Boolean(fn(value as never)) : never;
    case 'string_format':
      // a pattern that remembers its position is reset only by the schema
      return pattern && !pattern.global && !pattern.sticky && (format === 'regex' || format === 'datetime')
        ? (value) => pattern.test(value as string)
        : never;
    case 'number_format':
      if (format === 'safeint') return Number.isSafeInteger;
      if (format === 'int32')
        return (value) => Number.isInteger(value) && (value as number) >= -INT32 && (value as number) < INT32;
      return never;
    case 'greater_than':
      if (typeof bound !== 'number') return never;
      return inclusive ? (value) => (value as number) >= bound : (value) => (value as number) > bound;
    case 'less_than':
      if (typeof bound !== 'number') return never;
      return inclusive ? (value) => (value as number) <= bound : (value) => (value as number) < bound;
    case 'max_length':
      return maximum === undefined ? never : (value) => (value as { length: number }).length <= maximum;
    default:
      return never;
  }
}
