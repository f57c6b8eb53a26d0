/** A value that JSON can represent. */
export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

/**
 * The canonical JSON text of a value (RFC 8785, JCS): keys sorted by UTF-16 code units, no white space, numbers and strings as
 * ECMAScript prints them. Two parties that hash the texts of equal values get equal hashes.
 *
 * Members whose value is `undefined` are left out, as JSON.stringify does. Throws a RangeError on what has no exact canonical
 * form: non-finite numbers, integers beyond 2^53 (they were rounded before they got here), strings with lone surrogates (RFC 8785
 * §3.2.2.2 demands an error), and anything that is not JSON.
 */
export function canonicalJson(value: unknown): string {
  // the engine's own printing is several times as fast, and most hashed values were built in order
  return isInOrder(value) ? JSON.stringify(value) : written(value);
}

/** Whether `JSON.stringify` prints the canonical text. False if in doubt. */
function isInOrder(value: unknown): boolean {
  switch (typeof value) {
    case 'string':
      return value.isWellFormed();
    case 'number':
      return isExact(value);
    case 'boolean':
      return true;
    case 'object': {
      if (value === null) return true;
      // it would be printed in its own form
      if ('toJSON' in value) return false;
      if (Array.isArray(value)) {
        for (let n = 0; n < value.length; n++) if (!isInOrder(value[n])) return false;
        return true;
      }
      if (Object.getPrototypeOf(value) !== Object.prototype) return false;
      let before = '';
      for (const key of Object.keys(value)) {
        const member = (value as Record<string, unknown>)[key];
        if (key < before) return false;
        before = key;
        if (member !== undefined && !(key.isWellFormed() && isInOrder(member))) return false;
      }
      return true;
    }
    default:
      return false;
  }
}

function written(value: unknown): string {
  switch (typeof value) {
    case 'string':
      return canonicalString(value);
    case 'number':
      if (!Number.isFinite(value)) throw new RangeError('a non-finite number has no canonical JSON form');
      if (!isExact(value)) throw new RangeError('an integer beyond 2^53');
      return JSON.stringify(value);
    case 'boolean':
      return value ? 'true' : 'false';
    case 'object': {
      if (value === null) return 'null';
      if (Array.isArray(value)) return canonicalArray(value);
      if (Object.prototype.toString.call(value) !== '[object Object]') {
        throw new RangeError('only plain objects and arrays have a canonical JSON form');
      }
      const record = value as Record<string, unknown>;
      // appending makes no copy, which matters when a bundle has megabytes
      let text = '';
      for (const key of sorted(Object.keys(record))) {
        const member = record[key];
        if (member === undefined) continue;
        text += text === '' ? '{' : ',';
        text += canonicalString(key);
        text += ':';
        text += written(member);
      }
      return text === '' ? '{}' : `${text}}`;
    }
    default:
      throw new RangeError(`a ${typeof value} has no canonical JSON form`);
  }
}

/** By index: a hole of a sparse array is undefined, which is refused. */
function canonicalArray(items: readonly unknown[]): string {
  let texts = items.length > 0;
  for (let n = 0; n < items.length && texts; n++) {
    const item = items[n];
    texts = typeof item === 'string' && item.isWellFormed();
  }
  // for a list of tens of thousands of values
  if (texts) return JSON.stringify(items);
  let text = '[';
  for (let n = 0; n < items.length; n++) text += `${n === 0 ? '' : ','}${written(items[n])}`;
  return `${text}]`;
}

/** Of the characters from the space to `~`, those that are printed as they are. */
const PLAIN = /^[ !#-[\]-~]*$/;

function canonicalString(text: string): string {
  if (text.length < 64 && PLAIN.test(text)) return `"${text}"`;
  if (!text.isWellFormed()) throw new RangeError('a string with a lone surrogate has no canonical JSON form');
  return JSON.stringify(text);
}

function isExact(value: number): boolean {
  return Number.isFinite(value) && (!Number.isInteger(value) || Number.isSafeInteger(value));
}

/** In place. `sort` copies, which is more work than sorting the few names that most objects have. */
function sorted(names: string[]): string[] {
  if (names.length > 24) return names.sort();
  for (let n = 1; n < names.length; n++) {
    const name = names[n]!;
    let at = n - 1;
    for (; at >= 0 && names[at]! > name; at--) names[at + 1] = names[at]!;
    names[at + 1] = name;
  }
  return names;
}
