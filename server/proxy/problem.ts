import type { IncomingMessage, ServerResponse } from 'node:http';

/** The request is answered with a problem instead of its action. */
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
  /** The recorded decision behind the refusal; without one nothing was decided. */
  eventId?: string;
}

export const TITLES: Readonly<Record<string, string>> = {
  VALIDATION_FAILED: 'The request is malformed',
  UNAUTHENTICATED: 'No valid credential',
  FORBIDDEN: 'The caller may not do this',
  DENIED: 'The policies deny this action',
  AGENT_MISMATCH: 'The hold belongs to another agent',
  NOT_FOUND: 'There is no such resource',
  METHOD_NOT_ALLOWED: 'The route has no such method',
  INVALID_STATUS: 'The resource is in a status that does not allow this',
  ALREADY_CONSUMED: 'The hold was consumed already',
  POLICY_CHANGED: 'The policy now asks for more than was approved',
  ESCROW_EXPIRED: 'The hold has expired',
  PAYLOAD_TOO_LARGE: 'The body is too large',
  UNSUPPORTED_MEDIA_TYPE: 'The body has an unsupported type or encoding',
  HASH_MISMATCH: 'The hold was approved for another request',
  ESCROW_HELD: 'The action is held',
  RATE_LIMITED: 'Too many requests',
  INTERNAL: 'The proxy failed',
  MASKING_FAILED: 'What must be masked cannot be',
  UPSTREAM_FAILED: 'The upstream failed',
  UPSTREAM_TIMEOUT: 'The upstream did not answer in time',
  UNAVAILABLE: 'The proxy cannot do this now',
};

/**
 * Answers with a problem document (RFC 9457) that has the same members as the control plane's. Of the headers that were
 * set, only `x-svc-` ones are sent.
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
  const title = TITLES[code] ?? code;
  const body = JSON.stringify({
    type: `urn:svc:error:${code.toLowerCase()}`,
    title,
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
    // an unread body would be taken for the beginning of the next request, or have to be read to its end
    ...(!request.complete && { connection: 'close' }),
  });
  response.end(body);
}
