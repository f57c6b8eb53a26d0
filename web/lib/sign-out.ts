import { toastProblem } from './errors.tsx';
import { endLive, pauseLive } from './live.ts';
import { isSignedOut } from './problem.ts';
import { queryClient } from './query.ts';
import { api } from './trpc.ts';

/** Ends the session in all tabs and clears its data from this browser. Reports a failure to end it. */
export async function signOut(): Promise<void> {
  // no request may use a session that has ended
  const goOn = pauseLive();
  await queryClient.cancelQueries();
  try {
    await api.auth.logout.mutate({});
  } catch (error) {
    if (!isSignedOut(error)) {
      toastProblem(error);
      return goOn();
    }
  }
  endLive();
  // a new page, so that nothing of the session stays in memory
  window.location.assign('/sign-in');
}
