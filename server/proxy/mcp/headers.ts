import type { IncomingHttpHeaders } from 'node:http';
import type { Request } from './wire.ts';
import { VERSION_KEY } from './wire.ts';

/** The headers that repeat what a message says (2026-07-28, Streamable HTTP, "Request Metadata"). */

/** The name in a request's `Mcp-Name`; undefined if its method has none. */
export function headerName({ method, params }: Request): string | undefined {
  const name = method === 'resources/read' ? params?.uri : method.startsWith('tasks/') ? params?.taskId : params?.name;
  const named = /^(?:tools\/call|prompts\/get|resources\/read|tasks\/(?:get|update|cancel))$/.test(method);
  return named && typeof name === 'string' ? name : undefined;
}

/** A header value for any text ("Value Encoding"). */
export function encodeHeader(text: string): string {
  const plain = /^[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?$/.test(text) && !/^=\?base64\?.*\?=$/.test(text);
  return plain ? text : `=?base64?${Buffer.from(text).toString('base64')}?=`;
}

/** The text of a header value; undefined if it is not encoded in the one way that the revision prescribes. */
export function decodeHeader(value: string): string | undefined {
  const coded = /^=\?base64\?(.*)\?=$/.exec(value)?.[1];
  if (coded === undefined) return /^[\t\x20-\x7e]*$/.test(value) ? value : undefined;
  const bytes = Buffer.from(coded, 'base64');
  const text = bytes.toString();
  return bytes.toString('base64') === coded && Buffer.from(text).equals(bytes) ? text : undefined;
}

/** Which header is missing or contradicts the message; undefined if none does. */
export function headerMismatch(request: Request, headers: IncomingHttpHeaders): string | undefined {
  const version = headers['mcp-protocol-version'];
  if (version === undefined || version !== request.params?._meta?.[VERSION_KEY]) {
    return 'MCP-Protocol-Version is not the revision of the message';
  }
  if (headers['mcp-method'] !== request.method) return 'Mcp-Method is not the method of the message';
  const name = headerName(request);
  const given = headers['mcp-name'];
  if (name === undefined && !(typeof given === 'string' && NAMED.test(request.method))) return undefined;
  if (typeof given !== 'string' || decodeHeader(given) !== name) return 'Mcp-Name is not the name in the message';
  return undefined;
}

const NAMED = /^(?:tools\/call|prompts\/get|resources\/read)$/;
