import { exactJson } from '../../client/src/json.ts';

/** One tool call, as the model requested it. */
export interface Call {
  tool: string;
  /** The server that the tool belongs to, if the framework provides it. */
  server?: string | undefined;
  /** What the tool would run with. It must be JSON. */
  args: unknown;
  /** The framework's own id of the call. */
  id: string;
  /** The conversation or thread. It separates calls of models whose call ids start over each time. */
  session?: string | undefined;
  signal?: AbortSignal | undefined;
}

/**
 * The arguments that are asked about, as JSON, exactly as the policies will see them. Throws a RangeError if JSON cannot
 * represent what the tool would run with, such as the Infinity that `1e999` becomes.
 */
export function argumentsOf(args: unknown): Record<string, unknown> {
  const text = exactJson(args ?? {});
  const value: unknown = JSON.parse(text);
  return isRecord(value) ? value : { input: value };
}

/** The inverse of `argumentsOf` for arguments that are not an object. */
export function asGiven(args: Record<string, unknown>, given: unknown): unknown {
  return isRecord(given ?? {}) ? args : args.input;
}

export function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/**
 * The name under which the control plane knows the call: the framework's id, limited to its printable characters and shortened,
 * and a hash of everything that identifies this call. The same id with different arguments is a different call.
 */
export async function callIdOf(call: Call, args: Record<string, unknown>): Promise<string> {
  const what = JSON.stringify([call.session ?? null, call.server ?? null, call.tool, call.id, sorted(args)]);
  const hash = await crypto.subtle.digest('SHA-256', new TextEncoder().encode(what));
  const hex = Array.from(new Uint8Array(hash).subarray(0, 16), (byte) => byte.toString(16).padStart(2, '0')).join('');
  return `${call.id.replace(/[^\x21-\x7e]/g, '').slice(0, 100)}.${hex}`;
}

function sorted(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sorted);
  if (!isRecord(value)) return value;
  return Object.keys(value)
    .sort()
    .map((key) => [key, sorted(value[key])]);
}
