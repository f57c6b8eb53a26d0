import { notifications } from '@mantine/notifications';
import type { ErrorCode } from '../../server/domain/errors.ts';
import type { ProblemBody } from '../../server/errors.ts';
import { visible } from '../../server/lib/visible.ts';

type Problem = Omit<ProblemBody, 'code' | 'type'> & { code: ErrorCode | 'UNREACHABLE' };

/** The problem in the server's answer, or a problem for a missing answer. Its title says what happened. */
export function problemOf(error: unknown): Problem {
  const problem = (error as { data?: { problem?: ProblemBody } } | null)?.data?.problem;
  if (problem) return problem.code === 'VALIDATION_FAILED' ? refusedInput(problem) : problem;
  const none = { code: 'UNREACHABLE', status: 0 } as const;
  if (!navigator.onLine) return { ...none, title: 'You are offline', detail: 'Try again when you are connected.' };
  const detail = error instanceof Error ? error.message : String(error);
  return { ...none, title: 'The server did not answer', detail };
}

/** What is wrong with what somebody entered, instead of that something is. */
function refusedInput({ detail, ...problem }: ProblemBody): Problem {
  if (detail !== undefined) return { ...problem, title: sentence(detail) };
  const [fault] = problem.errors ?? [];
  if (!fault) return problem;
  const field = fault.pointer.split(/[/?]/).findLast((part) => /[a-z]/i.test(part)) ?? 'The request';
  return { ...problem, title: 'A value is not accepted', detail: `${field.replaceAll('_', ' ')} ${fault.message}` };
}

const sentence = (text: string) => text.charAt(0).toUpperCase() + text.slice(1);

export const isSignedOut = (error: unknown): boolean => problemOf(error).code === 'UNAUTHENTICATED';

/** Shows an error as a toast, with the request id for the server's log. */
export function toastProblem(error: unknown): void {
  const { title, detail, request_id, code } = problemOf(error);
  notifications.show({
    color: 'red',
    title,
    message: (
      <>
        {detail && detail !== title ? (
          <div>
            <bdi>{visible(detail)}</bdi>
          </div>
        ) : null}
        <div className="mono dim">{request_id ? `request ${request_id}` : code}</div>
      </>
    ),
    autoClose: 12_000,
    withBorder: true,
  });
}

export function toastDone(title: string, message?: string): void {
  notifications.show({
    color: 'pine',
    title,
    message: message ?? '',
    withBorder: true,
  });
}

/** Runs a confirmed action. An error is shown as a toast and rethrown, so that the dialog stays open. */
export async function confirmed<T>(call: () => Promise<T>): Promise<T> {
  try {
    return await call();
  } catch (error) {
    toastProblem(error);
    throw error;
  }
}
