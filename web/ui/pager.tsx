import { Button, Group, Text } from '@mantine/core';

/** Pages of a list by offset; nothing where there is only one. */
export function Pager(props: { page: number; size: number; total: number; onPage: (page: number) => void }) {
  const { page, size, total, onPage } = props;
  const last = Math.max(1, Math.ceil(total / size));
  if (last === 1) return null;
  return (
    <Group component="nav" mt="sm" gap="sm" aria-label="Pages of the list">
      <Button variant="default" size="xs" disabled={page <= 1} onClick={() => onPage(page - 1)}>
        Newer
      </Button>
      <Text size="sm" c="dimmed">
        {((page - 1) * size + 1).toLocaleString()} to {Math.min(page * size, total).toLocaleString()} of{' '}
        {total.toLocaleString()}
      </Text>
      <Button variant="default" size="xs" disabled={page >= last} onClick={() => onPage(page + 1)}>
        Older
      </Button>
    </Group>
  );
}
