import { decodeHeader, encodeHeader } from './headers.ts';
import { isObject } from './wire.ts';

/**
 * The arguments that a tool wants repeated as headers (2026-07-28, Streamable HTTP, "Custom Headers from Tool
 * Parameters"): those whose schema has `x-mcp-header`.
 */
export interface Declared {
  path: readonly string[];
  /** In lower case, with the prefix. */
  header: string;
}

const TOKEN = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/;
const MOST_DEPTH = 20;

/** What a tool's schema declares. An annotation in a place where none is allowed does not count: clients drop such a tool. */
export function declaredBy(schema: unknown, path: readonly string[] = []): Declared[] {
  if (!isObject(schema) || path.length > MOST_DEPTH) return [];
  const name = schema['x-mcp-header'];
  const own = typeof name === 'string' && TOKEN.test(name) && path.length > 0;
  const inner = isObject(schema.properties) ? Object.entries(schema.properties) : [];
  return [
    ...(own ? [{ path, header: `mcp-param-${name.toLowerCase()}` }] : []),
    ...inner.flatMap(([key, part]) => declaredBy(part, [...path, key])),
  ];
}

/** The headers of a call with these arguments. */
export function headersOf(declared: readonly Declared[], args: unknown): Record<string, string> {
  return Object.fromEntries(
    declared.flatMap(({ path, header }) => {
      const value = valueAt(args, path);
      return value === undefined ? [] : [[header, encodeHeader(value)]];
    }),
  );
}

/** What in these headers contradicts the arguments; undefined if nothing does. */
export function mismatch(
  declared: readonly Declared[],
  args: unknown,
  headers: Readonly<Record<string, string | string[] | undefined>>,
): string | undefined {
  for (const { path, header } of declared) {
    const value = valueAt(args, path);
    if (value === undefined) continue;
    const given = headers[header];
    const decoded = typeof given === 'string' ? decodeHeader(given) : undefined;
    const same =
      decoded === value || (DECIMAL.test(value) && DECIMAL.test(decoded ?? '') && Number(decoded) === Number(value));
    if (!same) return `${header} is not the argument ${path.join('.')}`;
  }
  return undefined;
}

const DECIMAL = /^-?\d{1,15}(?:\.\d{1,15})?$/;

/** The argument as a text; undefined if it is absent, null, or nothing that a header could repeat. */
function valueAt(args: unknown, path: readonly string[]): string | undefined {
  let value: unknown = args;
  for (const key of path) value = isObject(value) && Object.hasOwn(value, key) ? value[key] : undefined;
  return typeof value === 'string' || typeof value === 'boolean' || Number.isFinite(value) ? String(value) : undefined;
}
