import { Group, Paper, Text, Title } from '@mantine/core';
import { IconCheck, IconCircleDashed } from '@tabler/icons-react';
import type { ReactNode } from 'react';
import { Tag } from '../../ui/status.tsx';

/** One step of setting up single sign-on, and whether it is done. */
export function Step({
  number,
  title,
  done,
  lead,
  children,
}: {
  number: number;
  title: string;
  done: boolean;
  lead: ReactNode;
  children: ReactNode;
}) {
  return (
    <Paper component="li" aria-label={`Step ${number}: ${title}`}>
      <Group justify="space-between">
        <Title order={2} size="h3">
          {number}. {title}
        </Title>
        <Tag tone={done ? 'ok' : 'quiet'} icon={done ? IconCheck : IconCircleDashed}>
          {done ? 'done' : 'to do'}
        </Tag>
      </Group>
      <Text c="dimmed" mb="sm" component="div">
        {lead}
      </Text>
      {children}
    </Paper>
  );
}
