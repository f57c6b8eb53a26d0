import { useBlocker } from '@tanstack/react-router';
import type { ReactNode } from 'react';
import { ConfirmDialog } from './confirm.tsx';

type Place = { pathname: string; search: object };

const isElsewhere = (from: Place, to: Place) =>
  from.pathname !== to.pathname || JSON.stringify(from.search) !== JSON.stringify(to.search);

/** Asks before the user leaves with unsaved changes. If the tab is closed, the browser asks. */
export function AskBeforeLeaving({
  dirty,
  leaves = isElsewhere,
  children,
}: {
  dirty: () => boolean;
  /** Whether this change of the address abandons the unsaved changes: one within the page, such as of its content, does not. */
  leaves?: (from: Place, to: Place) => boolean;
  /** What would be lost. */
  children: ReactNode;
}) {
  const blocker = useBlocker({
    shouldBlockFn: ({ current, next }) => dirty() && leaves(current, next),
    enableBeforeUnload: dirty,
    withResolver: true,
  });
  return (
    <ConfirmDialog
      opened={blocker.status === 'blocked'}
      onClose={() => blocker.reset?.()}
      title="Leave without saving?"
      action="Leave"
      onConfirm={async () => blocker.proceed?.()}
    >
      {children}
    </ConfirmDialog>
  );
}
