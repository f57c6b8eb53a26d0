import { notifications } from '@mantine/notifications';
import type { ErrorCode } from '../../server/domain/errors.ts';
import type { ProblemBody } from '../../server/errors.ts';

/** The problem in the server's answer, or a problem for a missing answer. */
export function problemOf(error: unknown): Omit<ProblemBody, 'code' | 'type'> & { code: ErrorCode | 'UNREACHABLE' } {
  const problem = (error as { data?: { problem?: ProblemBody } } | null)?.data?.problem;
  if (problem) return problem;
  const detail = error instanceof Error ? error.message : String(error);
  return { code: 'UNREACHABLE', status: 0, title: 'The server did not answer', detail };
}

export const isSignedOut = (error: unknown): boolean => problemOf(error).code === 'UNAUTHENTICATED';

/** Shows an error as a toast, with the request id for the server's log. */
export function toastProblem(error: unknown): void {
  const { title, detail, request_id, code } = problemOf(error);
  notifications.show({
    color: 'red',
    title,
    message: (
      <>
        {detail && detail !== title ? <div>{detail}</div> : null}
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
