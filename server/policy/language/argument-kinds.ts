import type { TagKind } from './head.ts';

const MOST_DEPTH = 8;
/** With any of these present, a schema's properties are not all that it says. */
const NOT_PLAIN = ['$ref', '$dynamicRef', 'allOf', 'anyOf', 'oneOf', 'if', 'patternProperties', 'dependentSchemas'];
const KINDS: Record<string, TagKind> = { string: 'str', number: 'num', integer: 'num', boolean: 'bool' };

/**
 * The arguments in a tool's schema, by the keys that policies read them with, and the kinds they may be; null if that
 * cannot be determined. Undefined for a schema that may have any argument.
 */
export function argumentsOf(schema: unknown): Map<string, readonly TagKind[] | null> | undefined {
  const found = new Map<string, readonly TagKind[] | null>();
  const visit = (one: unknown, path: string, depth: number): boolean => {
    if (!isObject(one) || depth > MOST_DEPTH || NOT_PLAIN.some((name) => Object.hasOwn(one, name))) return false;
    const types = [one.type].flat();
    if (types.includes('object') || isObject(one.properties)) {
      if (types.length > 1 || !isObject(one.properties)) return false;
      for (const [name, part] of Object.entries(one.properties)) {
        const key = path === '' ? name : `${path}.${name}`;
        if (!visit(part, key, depth + 1)) found.set(key, null);
      }
      return true;
    }
    if (path === '') return false;
    if (types.includes('array')) {
      found.set(`${path}.length`, ['num']);
      const items = isObject(one.items) ? one.items.type : undefined;
      found.set(path, items === 'string' ? ['list'] : null);
      return true;
    }
    const kinds = types.flatMap((type) =>
      type === 'null' ? [] : [typeof type === 'string' && Object.hasOwn(KINDS, type) ? KINDS[type] : undefined],
    );
    if (kinds.length === 0 || kinds.includes(undefined)) return false;
    found.set(path, kinds as TagKind[]);
    return true;
  };
  return visit(schema, '', 0) ? found : undefined;
}

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);
