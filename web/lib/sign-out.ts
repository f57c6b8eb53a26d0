import { endLive } from './live.ts';
import { queryClient } from './query.ts';
import { api } from './trpc.ts';

/** Ends the session, and forgets what this browser was shown in it. */
export async function signOut(): Promise<void> {
  // nothing may ask in the name of a session that is over
  endLive();
  await queryClient.cancelQueries();
  await api.auth.logout.mutate({}).catch(() => undefined);
  // a new page, so that nothing of the session stays in memory
  window.location.assign('/sign-in');
}
