import { isSignedOut, toastProblem } from './errors.tsx';
import { endLive, pauseLive } from './live.ts';
import { queryClient } from './query.ts';
import { api } from './trpc.ts';

/** Ends the session, in all tabs, and forgets what this browser was shown in it. Says so when it could not be ended. */
export async function signOut(): Promise<void> {
  // nothing may ask in the name of a session that is over
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
