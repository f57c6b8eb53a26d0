import { useBlocker } from '@tanstack/react-router';
import type { ReactNode } from 'react';
import { ConfirmDialog } from './confirm.tsx';

type Place = { pathname: string; search: object };

const isElsewhere = (from: Place, to: Place) =>
  from.pathname !== to.pathname || JSON.stringify(from.search) !== JSON.stringify(to.search);

/** Asks before somebody leaves what they wrote and did not save. Where the tab is closed, the browser asks. */
export function AskBeforeLeaving({
  dirty,
  leaves = isElsewhere,
  children,
}: {
  dirty: () => boolean;
  /** Whether this change of the address leaves what was written: one within the page, as to its content, does not. */
  leaves?: (from: Place, to: Place) => boolean;
  /** What is lost. */
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
