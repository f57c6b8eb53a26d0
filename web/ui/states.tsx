import { Button, Skeleton, Stack, Text, Title } from '@mantine/core';
import type { IconAlertTriangle } from '@tabler/icons-react';
import type { ReactNode } from 'react';
import { problemOf } from '../lib/problem.ts';
import { Hostile } from './hostile.tsx';
import { Notice } from './notice.tsx';

/** An empty state, with the reason and the first step. */
export function EmptyState({
  icon: Shape,
  title,
  page = false,
  children,
  action,
}: {
  icon?: typeof IconAlertTriangle;
  title: string;
  /** Whether it replaces a whole page. */
  page?: boolean;
  children?: ReactNode;
  action?: ReactNode;
}) {
  return (
    <div className="empty">
      {Shape ? <Shape size={34} stroke={1.4} aria-hidden /> : null}
      <Title order={page ? 1 : 2} size="h3" mt="xs">
        {title}
      </Title>
      {children ? (
        <Text c="dimmed" mt={4} mx="auto" maw="56ch" component="div">
          {children}
        </Text>
      ) : null}
      {action ? <div style={{ marginTop: 16 }}>{action}</div> : null}
    </div>
  );
}

/** The error of a query, in place of its data. */
export function ErrorState({ error, retry }: { error: unknown; retry?: () => void }) {
  const { title, detail, request_id } = problemOf(error);
  return (
    <Notice tone="bad" title={title} urgent>
      {detail && detail !== title ? (
        <Text size="sm">
          <Hostile text={detail} />
        </Text>
      ) : null}
      {request_id ? (
        <Text size="xs" c="dimmed" className="mono">
          request {request_id}
        </Text>
      ) : null}
      {retry ? (
        <Button mt="xs" size="xs" variant="default" onClick={retry}>
          Try again
        </Button>
      ) : null}
    </Notice>
  );
}

/** A placeholder for content that is loading. */
export function Loading({ lines = 6 }: { lines?: number }) {
  return (
    <Stack gap="sm" role="status" aria-label="Loading">
      {Array.from({ length: lines }, (_, n) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: they are all the same
        <Skeleton key={n} height={14} width={`${92 - ((n * 17) % 40)}%`} />
      ))}
    </Stack>
  );
}

/** The parts of a query that are displayed. */
export interface Asked<T> {
  data: T | undefined;
  error: unknown;
  isPending: boolean;
  refetch: () => unknown;
}

/** The data of a query, or its loading or error state. */
export function Shown<T>({
  query,
  children,
  lines,
}: {
  query: Asked<T>;
  children: (data: T) => ReactNode;
  lines?: number;
}) {
  if (query.data !== undefined) return children(query.data);
  if (query.error) return <ErrorState error={query.error} retry={() => void query.refetch()} />;
  return <Loading lines={lines} />;
}
