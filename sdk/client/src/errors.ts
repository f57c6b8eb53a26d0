import type { components } from './schema.ts';

export type Problem = components['schemas']['Problem'];
export type ErrorCode = Problem['code'];

/**
 * What this client throws. Whatever it is: the action was not permitted, and must not be done. No message contains the key, a
 * header or an argument.
 */
export class SvcError extends Error {
  override name = 'SvcError';
}

/** The server refused the request and gave a reason. */
export class ProblemError extends SvcError {
  override name = 'ProblemError';
  readonly code: ErrorCode;
  readonly status: number;
  readonly problem: Problem;
  /** Seconds after which the same request may succeed. */
  readonly retryAfter: number | undefined;
  /** With POLICY_CHANGED: the new hold to wait for. */
  readonly escrowId: string | undefined;

  constructor(problem: Problem, more: { retryAfter?: number | undefined; escrowId?: string | undefined } = {}) {
    super(`${problem.code}: ${problem.detail ?? problem.title}`);
    this.code = problem.code;
    this.status = problem.status;
    this.problem = problem;
    this.retryAfter = more.retryAfter;
    this.escrowId = more.escrowId;
  }
}

/**
 * There was no response, or none that can be understood, or the server could not handle the request now (`problem`). The fate of
 * the request is unknown: the same call may be asked for again.
 */
export class UnavailableError extends SvcError {
  override name = 'UnavailableError';
  readonly problem: Problem | undefined;
  /** Seconds after which the same request may succeed. */
  readonly retryAfter: number | undefined;

  constructor(
    message: string,
    more: { cause?: unknown; problem?: Problem | undefined; retryAfter?: number | undefined } = {},
  ) {
    super(message, more.cause === undefined ? undefined : { cause: more.cause });
    this.problem = more.problem;
    this.retryAfter = more.retryAfter;
  }
}

/** The value has no form that can be masked reliably: none of it may be shown. */
export class MaskError extends SvcError {
  override name = 'MaskError';
}

/** The webhook was not sent by the server, is too old, or was altered. */
export class WebhookError extends SvcError {
  override name = 'WebhookError';
}
