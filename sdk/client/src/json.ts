/**
 * The JSON of a value. Throws a RangeError if the JSON would differ from the value: what the policies see is what will be done.
 * `1e999` in a model's arguments is Infinity here, and would be sent as null; a Map as {}.
 */
export function exactJson(value: unknown): string {
  return JSON.stringify(value, function (this: unknown, _key, one: unknown) {
    if (isLost(one) || (one === undefined && Array.isArray(this))) throw new RangeError('the value is not JSON');
    return one;
  });
}

const UNSPEAKABLE: ReadonlySet<string> = new Set(['bigint', 'function', 'symbol']);

function isLost(value: unknown): boolean {
  if (typeof value === 'number') return !Number.isFinite(value);
  if (typeof value !== 'object' || value === null || Array.isArray(value) || ArrayBuffer.isView(value)) {
    return UNSPEAKABLE.has(typeof value);
  }
  // a Map, a Set, a regular expression and the like do not expose their contents as properties
  return Object.prototype.toString.call(value) !== '[object Object]';
}
