import { Group, Paper, Title } from '@mantine/core';
import type { ReactNode } from 'react';

/** A frame filled by a list: a heading, and next to it a link to the whole list. */
export function Panel({
  id,
  title,
  link,
  children,
}: {
  id: string;
  title: string;
  link?: ReactNode;
  children: ReactNode;
}) {
  return (
    <Paper p={0} component="section" aria-labelledby={id}>
      <Group justify="space-between" px="md" pt="sm" pb="xs">
        <Title order={2} id={id}>
          {title}
        </Title>
        {link}
      </Group>
      {children}
    </Paper>
  );
}
