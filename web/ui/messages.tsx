import { Notifications } from '@mantine/notifications';
import type { ReactNode } from 'react';
import './messages.css';

/** The messages in the corner, whose code is loaded separately: see toasts.tsx. */
export default function Messages(): ReactNode {
  return <Notifications position="bottom-right" limit={4} />;
}
