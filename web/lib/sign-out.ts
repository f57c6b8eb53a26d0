import { queryClient } from './query.ts';
import { api } from './trpc.ts';

/** Ends the session, and forgets what this browser was shown in it. */
export async function signOut(): Promise<void> {
  await api.auth.logout.mutate({}).catch(() => undefined);
  queryClient.clear();
  // a new page, so that nothing of the session stays in memory
  window.location.assign('/sign-in');
}
