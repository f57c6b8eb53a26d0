import { TRPCError } from '@trpc/server';
import { ERRORS, type ErrorCode } from './domain/errors.ts';
import type { Fault } from './lib/faults.ts';

/** The body of every error response: RFC 9457 with `code`, `request_id` and, for faults of the request, `errors`. */
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
 * The one error that handlers throw deliberately. `detail` is shown to the caller: it never holds a secret, a hash of one, SQL or
 * a stack. It is a TRPCError so that it passes through tRPC with its headers and faults.
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
