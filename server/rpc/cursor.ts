import { invalid } from '../errors.ts';

/**
 * Where a list goes on. Opaque to clients, so that it may change: the name of the list and its version come first, and
 * tell a cursor of another list or of an older server apart. The parts hold no colon, but for the last one.
 */
export function cursorOf(list: string, ...parts: readonly (string | number)[]): string {
  return Buffer.from([list, ...parts].join(':')).toString('base64url');
}

/**
 * The parts of a cursor of this list, as the groups of `form`, which matches what comes after the name. Throws
 * VALIDATION_FAILED at `pointer` for anything that `cursorOf` did not make.
 */
export function openCursor(list: string, cursor: string, form: RegExp, pointer = '?after'): string[] {
  const text = Buffer.from(cursor, 'base64url').toString('latin1');
  const match = text.startsWith(`${list}:`) ? form.exec(text.slice(list.length + 1)) : null;
  // decoding skips what is not base64url: a cursor has one spelling
  if (!match || match[0] !== text.slice(list.length + 1) || Buffer.from(text).toString('base64url') !== cursor) {
    throw invalid(pointer, 'is not a cursor of this list');
  }
  return match.slice(1);
}
