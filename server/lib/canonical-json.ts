/** A value that JSON can carry. */
export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

/**
 * The canonical JSON text of a value (RFC 8785, JCS): keys sorted by UTF-16 code units, no white space, numbers and
 * strings as ECMAScript prints them. Two parties that hash this text of equal values get equal hashes.
 *
 * Members whose value is `undefined` are left out, as JSON.stringify does. Throws a RangeError on what has no exact
 * canonical form: non-finite numbers, integers beyond 2^53 (they were rounded before they came here), strings with
 * lone surrogates (RFC 8785 §3.2.2.2 demands an error), and anything that is not JSON.
 */
export function canonicalJson(value: unknown): string {
  switch (typeof value) {
    case 'string':
      return canonicalString(value);
    case 'number':
      if (!Number.isFinite(value)) throw new RangeError('a non-finite number has no canonical JSON form');
      if (Number.isInteger(value) && !Number.isSafeInteger(value)) throw new RangeError('an integer beyond 2^53');
      return JSON.stringify(value);
    case 'boolean':
      return value ? 'true' : 'false';
    case 'object': {
      if (value === null) return 'null';
      // Array.from turns the holes of a sparse array into undefined, which is refused; map would skip them.
      if (Array.isArray(value)) return `[${Array.from(value, canonicalJson).join(',')}]`;
      if (Object.prototype.toString.call(value) !== '[object Object]') {
        throw new RangeError('only plain objects and arrays have a canonical JSON form');
      }
      const record = value as Record<string, unknown>;
      const members: string[] = [];
      for (const key of Object.keys(record).sort()) {
        if (record[key] !== undefined) members.push(`${canonicalString(key)}:${canonicalJson(record[key])}`);
      }
      return `{${members.join(',')}}`;
    }
    default:
      throw new RangeError(`a ${typeof value} has no canonical JSON form`);
  }
}

function canonicalString(text: string): string {
  if (!text.isWellFormed()) throw new RangeError('a string with a lone surrogate has no canonical JSON form');
  return JSON.stringify(text);
}
