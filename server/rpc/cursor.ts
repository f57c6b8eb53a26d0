import { invalid } from '../errors.ts';

/**
 * Where a list continues. Opaque to clients, so that it may change: the name and version of the list come first, to recognize
 * cursors of another list or an older server. No part contains a colon, except the last.
 */
export function cursorOf(list: string, ...parts: readonly (string | number)[]): string {
  return Buffer.from([list, ...parts].join(':')).toString('base64url');
}

/**
 * The parts of a cursor of this list, as the groups of `form`, which matches everything after the name. Throws VALIDATION_FAILED
 * at `pointer` for anything that `cursorOf` did not make.
 */
export function openCursor(list: string, cursor: string, form: RegExp, pointer = '?after'): string[] {
  const text = Buffer.from(cursor, 'base64url').toString('latin1');
  const match = text.startsWith(`${list}:`) ? form.exec(text.slice(list.length + 1)) : null;
  // decoding skips characters that are not base64url: a cursor has one spelling
  if (!match || match[0] !== text.slice(list.length + 1) || Buffer.from(text).toString('base64url') !== cursor) {
    throw invalid(pointer, 'is not a cursor of this list');
  }
  return match.slice(1);
}
