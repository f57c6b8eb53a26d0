import { notificationsStore } from '@mantine/notifications';
import { type ComponentType, useEffect, useState } from 'react';

const load = () => import('./messages.tsx');
/** After the first view has loaded, and before the server is likely to become unreachable, which many messages are about. */
const AHEAD_MS = 5_000;

/** The messages that appear in a corner for a while. Their code is not part of the first view. */
export function Toasts() {
  const [Messages, show] = useState<ComponentType>();
  useEffect(() => {
    // if their code cannot be loaded, the next message tries again
    const stop = notificationsStore.subscribe(() => {
      load().then(
        (loaded) => show(() => loaded.default),
        () => undefined,
      );
    });
    const timer = setTimeout(() => void load().catch(() => undefined), AHEAD_MS);
    return () => {
      stop();
      clearTimeout(timer);
    };
  }, []);
  return Messages ? <Messages /> : null;
}
