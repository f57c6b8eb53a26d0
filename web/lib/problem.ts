import type { ErrorCode } from '../../server/domain/errors.ts';
import type { ProblemBody } from '../../server/errors.ts';
import { visible } from '../../server/lib/visible.ts';

type Problem = Omit<ProblemBody, 'code' | 'type'> & { code: ErrorCode | 'UNREACHABLE' };

const answered = (error: unknown) => (error as { data?: { problem?: ProblemBody } } | null)?.data?.problem;

/** The detail exactly as the server sent it. */
export const detailOf = (error: unknown): string | undefined => answered(error)?.detail;

/** The problem in the server's response, or one for a missing response. Its title states what happened. */
export function problemOf(error: unknown): Problem {
  const problem = answered(error);
  if (problem) return headlined(problem);
  const none = { code: 'UNREACHABLE', status: 0 } as const;
  if ((navigator as { onLine?: boolean }).onLine === false)
    return { ...none, title: 'You are offline', detail: 'Try again when you are connected.' };
  const detail = error instanceof Error ? error.message : String(error);
  return { ...none, title: 'The server did not answer', detail };
}

/** Their titles alone say little about what happened. */
const GENERAL: readonly ErrorCode[] = ['VALIDATION_FAILED', 'FORBIDDEN', 'NOT_FOUND', 'CONFLICT', 'INVALID_STATUS'];

/** Uses the detail, which says what is wrong, as the headline in place of a general title. */
function headlined(problem: ProblemBody): Problem {
  const { detail, ...rest } = problem;
  if (!GENERAL.includes(problem.code)) return problem;
  if (detail !== undefined) return { ...rest, title: sentence(visible(detail)) };
  const [fault] = problem.errors ?? [];
  if (!fault) {
    return problem.code === 'VALIDATION_FAILED' ? { ...problem, title: 'The server did not accept this' } : problem;
  }
  const field = fault.pointer.split(/[/?]/).findLast((part) => /[a-z]/i.test(part)) ?? 'The request';
  return { ...problem, title: 'A value is not accepted', detail: `${field.replaceAll('_', ' ')} ${fault.message}` };
}

const sentence = (text: string) => text.charAt(0).toUpperCase() + text.slice(1);

export const isSignedOut = (error: unknown): boolean => problemOf(error).code === 'UNAUTHENTICATED';
