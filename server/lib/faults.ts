import type { z } from 'zod';

/** One fault of a request: where (RFC 6901 pointer into the body, or `?name` for a query parameter) and what is wrong. */
export interface Fault {
  pointer: string;
  message: string;
  line?: number;
  column?: number;
}

/** A JSON pointer (RFC 6901) to a place in a value; empty for the whole of it. */
function pointerTo(path: readonly PropertyKey[]): string {
  return path.map((part) => `/${String(part).replaceAll('~', '~0').replaceAll('/', '~1')}`).join('');
}

/** The faults that a schema found, each with its place. A member that the schema does not know is a fault of its own. */
export function faultsOf(error: z.core.$ZodError): Fault[] {
  return error.issues.flatMap((issue) =>
    issue.code === 'unrecognized_keys'
      ? issue.keys.map((key) => ({ pointer: pointerTo([...issue.path, key]), message: 'is not known here' }))
      : [{ pointer: pointerTo(issue.path), message: issue.message }],
  );
}

/** The same as lines for a terminal or a log: `path.to.member: message`. `whole` names the value itself. */
export function faultLines(error: z.core.$ZodError, whole?: string): string[] {
  return error.issues.map(({ path, message }) => {
    const place = path.join('.') || whole;
    return place ? `${place}: ${message}` : message;
  });
}
