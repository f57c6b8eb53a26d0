import { Group, Paper, Text, Title } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import type { ReactNode } from 'react';
import type { Filter } from '../lib/decision-filter.ts';
import type { Last } from '../lib/moment.ts';
import { trpc } from '../lib/trpc.ts';
import { PageLink } from '../ui/link.tsx';
import { Panel } from '../ui/panel.tsx';
import { Shown } from '../ui/states.tsx';
import { DecisionLines } from './decision-lines.tsx';
import { AgentLink, RuleLink, ToolLink } from './names.tsx';
import { Outcomes, useCounts } from './outcomes.tsx';
import { Spans } from './spans.tsx';
import { TopValues } from './top-values.tsx';

type Whose = Pick<Filter, 'agent_id' | 'tool_name' | 'tool_server' | 'proxy_id'>;
type Facet = 'tool_name' | 'agent_id' | 'rule_id';

const FACETS: Record<Facet, { title: string; name: (value: string) => ReactNode }> = {
  tool_name: { title: 'Tools', name: (name) => <ToolLink name={name} plain /> },
  agent_id: { title: 'Agents', name: (id) => <AgentLink id={id} plain /> },
  rule_id: { title: 'Rules that decided', name: (id) => <RuleLink id={id} /> },
};

/** What an agent did, or what was done with a tool: over time, with what, and the last of it. */
export function Activity({
  title,
  filter,
  facets,
  last,
  choose,
}: {
  title: string;
  filter: Whose;
  facets: readonly Facet[];
  last: Last;
  choose: (last: Last) => void;
}) {
  const counts = useCounts(filter, last);
  return (
    <Paper component="section" aria-labelledby="activity-title" mb="md">
      <Group justify="space-between" mb="sm">
        <Title order={2} id="activity-title">
          {title}
        </Title>
        <Spans last={last} choose={choose} />
      </Group>
      <Outcomes filter={filter} last={last} />
      {counts.data ? (
        <div className="thirds" style={{ marginTop: 20 }}>
          {facets.map((facet) => (
            <TopValues
              key={facet}
              counts={counts.data}
              facet={facet}
              filter={{ ...filter, last }}
              most={8}
              {...FACETS[facet]}
            />
          ))}
        </div>
      ) : null}
    </Paper>
  );
}

export function LastDecisions({ filter, by }: { filter: Whose; by: 'agent' | 'tool' }) {
  const query = useQuery(trpc.events.list.queryOptions({ ...filter, limit: 6 }));
  return (
    <Panel
      id="last-title"
      title="Last decisions"
      link={
        <PageLink to="/decisions" search={filter} size="sm">
          All decisions
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
            <DecisionLines
              events={events}
              filter={filter}
              name={({ tool_name, agent_id }) => (by === 'agent' ? tool_name : agent_id)}
            />
          )
        }
      </Shown>
    </Panel>
  );
}
