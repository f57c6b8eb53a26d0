import { Button, Group } from '@mantine/core';
import { IconCompassOff, IconLock, IconPlugConnectedX } from '@tabler/icons-react';
import type { ErrorComponentProps } from '@tanstack/react-router';
import { detailOf, problemOf } from '../lib/problem.ts';
import { PageLink } from './link.tsx';
import { EmptyState, ErrorState } from './states.tsx';

const back = <PageLink to="/">To the overview</PageLink>;

/** The page does not exist, or this person may not see it; the two look the same. */
export function NotFound() {
  return (
    <EmptyState page icon={IconCompassOff} title="There is nothing here" action={back}>
      The address is wrong, or what it named is gone.
    </EmptyState>
  );
}

function Forbidden({ detail }: { detail?: string | undefined }) {
  return (
    <EmptyState page icon={IconLock} title="Your roles do not reach this" action={back}>
      {detail ?? 'An admin can give you the role that it needs.'}
    </EmptyState>
  );
}

/** Shown in place of a page that failed. */
export function Broken({ error, reset }: ErrorComponentProps) {
  // the page belongs to a version that the server no longer has
  if (/dynamically imported module|module script/i.test(String(error))) {
    return (
      <EmptyState
        page
        icon={IconPlugConnectedX}
        title="The dashboard was updated"
        action={<Button onClick={() => window.location.reload()}>Load the new version</Button>}
      >
        This tab still shows the old one.
      </EmptyState>
    );
  }
  const { code } = problemOf(error);
  if (code === 'NOT_FOUND') return <NotFound />;
  if (code === 'FORBIDDEN' || code === 'KEY_SCOPE') return <Forbidden detail={detailOf(error)} />;
  return (
    <div style={{ maxWidth: 640, margin: '32px auto' }}>
      <ErrorState error={error} />
      <Group mt="sm" gap="xs">
        <Button variant="default" onClick={reset}>
          Try again
        </Button>
        <Button variant="subtle" onClick={() => window.location.assign('/')}>
          To the overview
        </Button>
      </Group>
    </div>
  );
}
