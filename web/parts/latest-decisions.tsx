import { Text } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import type { ComponentProps } from 'react';
import type { Filter } from '../lib/decision-filter.ts';
import { trpc } from '../lib/trpc.ts';
import { PageLink } from '../ui/link.tsx';
import { Panel } from '../ui/panel.tsx';
import { Shown } from '../ui/states.tsx';
import { DecisionLines } from './decision-lines.tsx';

/** The newest decisions that match a filter, and a link to all of them. */
export function LatestDecisions({
  title,
  all,
  filter,
  most,
  ...lines
}: {
  title: string;
  /** The text of the link to all of them. */
  all: string;
  filter: Omit<Filter, 'last' | 'clock'>;
  most: number;
} & Pick<ComponentProps<typeof DecisionLines>, 'name' | 'about'>) {
  const query = useQuery(trpc.events.list.queryOptions({ ...filter, limit: most }));
  return (
    <Panel
      id="latest-title"
      title={title}
      link={
        <PageLink to="/decisions" search={filter} size="sm">
          {all}
        </PageLink>
      }
    >
      <Shown query={query} lines={4}>
        {({ events, has_more }) =>
          events.length === 0 ? (
            <Text c="dimmed" px="md" pb="md">
              {has_more ? 'None among the newest decisions.' : 'None yet.'}
            </Text>
          ) : (
            <DecisionLines events={events} filter={filter} {...lines} />
          )
        }
      </Shown>
    </Panel>
  );
}
