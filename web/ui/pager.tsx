import { Button, Group, Text } from '@mantine/core';

/** Pagination by offset; renders nothing for a single page. */
export function Pager(props: {
  page: number;
  size: number;
  total: number;
  onPage: (page: number) => void;
  /** The labels of the previous and next page, which differ for lists that are not in time order. */
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

/** Loads the next part of a list by cursor; renders nothing at the end. */
export function More(props: {
  query: { hasNextPage: boolean; isFetchingNextPage: boolean; fetchNextPage: () => unknown };
  label: string;
  /** How many are shown of how many, if known. */
  shown?: number;
  total?: number;
}) {
  const { query, label, shown, total } = props;
  if (!query.hasNextPage) return null;
  return (
    <Group mt="sm" gap="sm">
      <Button variant="default" size="xs" loading={query.isFetchingNextPage} onClick={() => void query.fetchNextPage()}>
        {label}
      </Button>
      {shown === undefined || total === undefined ? null : (
        <Text size="sm" c="dimmed">
          {shown.toLocaleString()} of {total.toLocaleString()}
        </Text>
      )}
    </Group>
  );
}
