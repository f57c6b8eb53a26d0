// the file that the server and its proxies use for masking; it imports nothing, and is bundled into this package
import { applyMasks, MASKED, type Mask, parseExact, parseMask } from '../../../server/policy/evaluation/masks.ts';
import { MaskError } from './errors.ts';

/**
 * A copy of a tool's response with the masks of its decision applied, as a proxy would give it to the agent. Text is parsed as
 * JSON. Throws a MaskError if the value is not JSON, or a mask is not understood: show none of it then.
 */
export function mask<T>(value: T, by: { masks?: readonly string[] | undefined } | readonly string[]): T | string {
  const paths: unknown = Array.isArray(by) ? by : ((by as { masks?: readonly string[] }).masks ?? []);
  if (!Array.isArray(paths) || typeof by !== 'object') throw new MaskError('the masks are not a list');
  if (paths.length === 0 || value === undefined) return value;
  const masks = paths.map(parsed);
  if (typeof value === 'string') return maskText(value, masks);
  return applyMasks(plain(value), masks) as T | string;
}

function parsed(path: unknown): Mask {
  try {
    return parseMask(path as string);
  } catch {
    throw new MaskError(`the mask ${JSON.stringify(path)} is not understood`);
  }
}

/** Keeps only what JSON has: a mask would not see what is in a Map, or behind a getter. */
function plain(value: unknown): unknown {
  let text: string | undefined;
  try {
    text = JSON.stringify(value);
  } catch {
    // the error's message may quote the value
  }
  if (text === undefined) throw new MaskError('the value cannot be masked: it has no form in JSON');
  return JSON.parse(text);
}

function maskText(text: string, masks: readonly Mask[]): string {
  let masked: unknown;
  try {
    masked = applyMasks(parseExact(text), masks);
  } catch {
    throw new MaskError('the text cannot be masked: it is not JSON');
  }
  // quoted prose is also JSON, but has no members that a mask could select
  if (typeof masked === 'string' && masked !== MASKED) throw new MaskError('the text cannot be masked: it is prose');
  return JSON.stringify(masked);
}
