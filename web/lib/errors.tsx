import { notifications } from '@mantine/notifications';
import { visible } from '../../server/lib/visible.ts';
import { problemOf } from './problem.ts';

/** Shows an error as a toast, with the request id for the server's log. */
export function toastProblem(error: unknown): void {
  const { title, detail, request_id, code } = problemOf(error);
  notifications.show({
    color: 'red',
    title: <bdi>{title}</bdi>,
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
    title: <bdi>{title}</bdi>,
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
