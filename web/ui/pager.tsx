import { Button, Group, Text } from '@mantine/core';

/** Pages of a list by offset; nothing where there is only one. */
export function Pager(props: {
  page: number;
  size: number;
  total: number;
  onPage: (page: number) => void;
  /** What the pages before and after are called; a list that is not in the order of time has other words. */
  words?: [before: string, after: string];
}) {
  const { page, size, total, onPage, words = ['Newer', 'Older'] } = props;
  const last = Math.max(1, Math.ceil(total / size));
  if (last === 1) return null;
  return (
    <Group component="nav" mt="sm" gap="sm" aria-label="Pages of the list">
      <Button variant="default" size="xs" disabled={page <= 1} onClick={() => onPage(page - 1)}>
        {words[0]}
      </Button>
      <Text size="sm" c="dimmed">
        {((page - 1) * size + 1).toLocaleString()} to {Math.min(page * size, total).toLocaleString()} of{' '}
        {total.toLocaleString()}
      </Text>
      <Button variant="default" size="xs" disabled={page >= last} onClick={() => onPage(page + 1)}>
        {words[1]}
      </Button>
    </Group>
  );
}

/** The rest of a list that goes on from a place; nothing where all of it is shown. */
export function More(props: {
  query: { hasNextPage: boolean; isFetchingNextPage: boolean; fetchNextPage: () => unknown };
  label: string;
  shown: number;
  total: number;
}) {
  const { query, label, shown, total } = props;
  if (!query.hasNextPage) return null;
  return (
    <Group mt="sm" gap="sm">
      <Button variant="default" size="xs" loading={query.isFetchingNextPage} onClick={() => void query.fetchNextPage()}>
        {label}
      </Button>
      <Text size="sm" c="dimmed">
        {shown.toLocaleString()} of {total.toLocaleString()}
      </Text>
    </Group>
  );
}
