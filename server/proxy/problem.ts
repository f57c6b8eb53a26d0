import type { IncomingMessage, ServerResponse } from 'node:http';
import { ERRORS } from '../domain/errors.ts';
import { jsonAnswer } from '../lib/json-answer.ts';

/** The response to the request is a problem instead of its action's result. */
export class Refusal extends Error {
  override readonly name = 'Refusal';
  readonly status: number;
  readonly code: string;
  readonly more: RefusalDetails;

  constructor(status: number, code: string, message: string, more: RefusalDetails = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.more = more;
  }
}

interface RefusalDetails {
  /** Seconds. */
  retryAfter?: number;
  /** The hold to wait for. */
  escrowId?: string;
  /** The recorded decision behind the refusal; if absent, nothing was decided. */
  eventId?: string;
}

const TITLES: ReadonlyMap<string, string> = new Map([
  ...Object.entries(ERRORS).map(([code, { title }]) => [code, title] as const),
  // codes that only the proxy has
  ['DENIED', 'The policies deny this action'],
  ['ESCROW_HELD', 'The action is held'],
  ['MASKING_FAILED', 'What must be masked cannot be'],
  ['UPSTREAM_FAILED', 'The upstream failed'],
  ['UPSTREAM_REDIRECT', 'The upstream redirects to where its route does not lead'],
  ['UPSTREAM_SIGN_IN', 'The proxy is not signed in at the upstream'],
  ['UPSTREAM_TIMEOUT', 'The upstream did not answer in time'],
  // and those in which it refers to itself
  ['INTERNAL', 'The proxy failed'],
  ['UNAVAILABLE', 'The proxy cannot do this now'],
]);

/** The title of a code, which the control plane and the proxy share. A code of a newer control plane is its own title. */
export function titleOf(code: string): string {
  return TITLES.get(code) ?? code;
}

/**
 * Responds with a problem document (RFC 9457) that has the same fields as the control plane's. Of the headers already set, only
 * `x-svc-` ones are sent.
 */
export function sendProblem(
  request: IncomingMessage,
  response: ServerResponse,
  status: number,
  code: string,
  detail: string,
  more: { retryAfter?: number | undefined; escrowId?: string | undefined } & Record<string, unknown> = {},
): void {
  const { retryAfter, escrowId, ...members } = more;
  const body = jsonAnswer({
    type: `urn:svc:error:${code.toLowerCase()}`,
    title: titleOf(code),
    status,
    code,
    ...(detail !== '' && { detail }),
    ...members,
  });
  for (const name of response.getHeaderNames()) if (!name.startsWith('x-svc-')) response.removeHeader(name);
  response.writeHead(status, {
    'content-type': 'application/problem+json',
    'content-length': Buffer.byteLength(body),
    'cache-control': 'no-store',
    ...(status === 401 && { 'www-authenticate': 'Bearer' }),
    ...(retryAfter !== undefined && { 'retry-after': String(retryAfter) }),
    ...(escrowId !== undefined && { 'x-svc-escrow-id': escrowId }),
    // an unread body would be mistaken for the beginning of the next request, or have to be read to its end
    ...(!request.complete && { connection: 'close' }),
  });
  response.end(body);
}
