import { TRPCError } from '@trpc/server';
import type { Fault } from './lib/faults.ts';

/**
 * The closed table of errors: code -> HTTP status and what it means. A code never changes its meaning, and nothing
 * answers with a code that does not stand here.
 */
export const ERRORS = {
  VALIDATION_FAILED: { status: 400, title: 'The request is malformed' },
  UNAUTHENTICATED: { status: 401, title: 'No valid credential' },
  FORBIDDEN: { status: 403, title: 'The caller may not do this' },
  KEY_SCOPE: { status: 403, title: 'The key has no scope for this route' },
  SELF_APPROVAL: { status: 403, title: 'The author cannot approve their own version' },
  AGENT_MISMATCH: { status: 403, title: 'The hold belongs to another agent' },
  NOT_FOUND: { status: 404, title: 'There is no such resource' },
  METHOD_NOT_ALLOWED: { status: 405, title: 'The route has no such method' },
  CONFLICT: { status: 409, title: 'The resource already exists or is in use' },
  VERSION_CHANGED: { status: 409, title: 'The policy changed since this version was read' },
  INVALID_STATUS: { status: 409, title: 'The resource is in a status that does not allow this' },
  ALREADY_VOTED: { status: 409, title: 'This person has voted already' },
  ALREADY_CONSUMED: { status: 409, title: 'The hold was consumed already' },
  POLICY_CHANGED: { status: 409, title: 'The policy now asks for more than was approved' },
  DUPLICATE_EVENT: { status: 409, title: 'The event id was used for other content' },
  ESCROW_EXPIRED: { status: 410, title: 'The hold has expired' },
  PAYLOAD_TOO_LARGE: { status: 413, title: 'The body is too large' },
  UNSUPPORTED_MEDIA_TYPE: { status: 415, title: 'The body has an unsupported type or encoding' },
  POLICY_INVALID: { status: 422, title: 'The policy text has errors' },
  HASH_MISMATCH: { status: 422, title: 'The hold was approved for another request' },
  TERMS_REFUSED: { status: 422, title: 'The hold asks for less than the rules that it names' },
  DOMAIN_NOT_VERIFIED: { status: 422, title: 'The domain is not verified' },
  TOO_MANY_RECORDS: { status: 422, title: 'The range holds too many records for one package' },
  RATE_LIMITED: { status: 429, title: 'Too many requests' },
  INTERNAL: { status: 500, title: 'The server failed' },
  UNAVAILABLE: { status: 503, title: 'The server cannot do this now' },
} as const satisfies Record<string, { status: number; title: string }>;

export type ErrorCode = keyof typeof ERRORS;

/** The body of every error answer: RFC 9457 with `code`, `request_id` and, for faults of the request, `errors`. */
export interface ProblemBody {
  type: string;
  title: string;
  status: number;
  code: ErrorCode;
  detail?: string;
  instance?: string;
  request_id?: string;
  errors?: Fault[];
}

const TRPC_CODE: Record<number, ConstructorParameters<typeof TRPCError>[0]['code']> = {
  400: 'BAD_REQUEST',
  401: 'UNAUTHORIZED',
  403: 'FORBIDDEN',
  404: 'NOT_FOUND',
  405: 'METHOD_NOT_SUPPORTED',
  409: 'CONFLICT',
  410: 'CONFLICT',
  413: 'PAYLOAD_TOO_LARGE',
  415: 'UNSUPPORTED_MEDIA_TYPE',
  422: 'UNPROCESSABLE_CONTENT',
  429: 'TOO_MANY_REQUESTS',
  500: 'INTERNAL_SERVER_ERROR',
  503: 'SERVICE_UNAVAILABLE',
};

/**
 * The one error that handlers throw on purpose. `detail` is shown to the caller: it never holds a secret, a hash of
 * one, SQL or a stack. It is a TRPCError so that it passes through tRPC with its headers and faults.
 */
export class AppError extends TRPCError {
  readonly problem: ErrorCode;
  readonly faults: readonly Fault[];
  readonly headers: Readonly<Record<string, string>>;

  constructor(
    problem: ErrorCode,
    detail?: string,
    more: { faults?: readonly Fault[]; headers?: Record<string, string>; cause?: unknown } = {},
  ) {
    super({ code: TRPC_CODE[ERRORS[problem].status]!, message: detail ?? ERRORS[problem].title, cause: more.cause });
    this.name = 'AppError';
    this.problem = problem;
    this.faults = more.faults ?? [];
    this.headers = more.headers ?? {};
  }

  get status(): number {
    return ERRORS[this.problem].status;
  }
}

export function problemBody(error: AppError, requestId?: string, instance?: string): ProblemBody {
  const { status, title } = ERRORS[error.problem];
  return {
    type: `urn:svc:error:${error.problem.toLowerCase()}`,
    title,
    status,
    code: error.problem,
    ...(error.message !== title && { detail: error.message }),
    ...(instance && { instance }),
    ...(requestId && { request_id: requestId }),
    ...(error.faults.length > 0 && { errors: [...error.faults] }),
  };
}

/** VALIDATION_FAILED for one fault of a request. */
export function invalid(pointer: string, message: string): AppError {
  return new AppError('VALIDATION_FAILED', undefined, { faults: [{ pointer, message }] });
}
