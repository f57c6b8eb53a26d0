import { notificationsStore } from '@mantine/notifications';
import { lazy, Suspense, useEffect, useState } from 'react';

const load = () => import('./messages.tsx');
/** Without its code, which a vanished server does not send, a message is lost, but not the page. */
const Messages = lazy(() => load().catch(() => ({ default: () => null })));
/** After the first view; and before a server is likely to vanish, which is what many messages are about. */
const AHEAD_MS = 5_000;

/** The messages that come and go in a corner. Their code is not part of the first view. */
export function Toasts() {
  const [wanted, want] = useState(false);
  useEffect(() => notificationsStore.subscribe(() => want(true)), []);
  useEffect(() => {
    const timer = setTimeout(() => void load().catch(() => undefined), AHEAD_MS);
    return () => clearTimeout(timer);
  }, []);
  if (!wanted) return null;
  return (
    <Suspense>
      <Messages />
    </Suspense>
  );
}
