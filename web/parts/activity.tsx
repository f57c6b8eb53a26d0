import { Group, Paper, Text, Title } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import type { ReactNode } from 'react';
import type { Filter } from '../lib/decision-filter.ts';
import type { Last } from '../lib/moment.ts';
import { trpc } from '../lib/trpc.ts';
import { Hostile, Line } from '../ui/hostile.tsx';
import { PageLink } from '../ui/link.tsx';
import { Shown } from '../ui/states.tsx';
import { DecisionTag } from '../ui/status.tsx';
import { Clock } from '../ui/time.tsx';
import { AgentLink, RuleLink, ToolLink } from './names.tsx';
import { Outcomes, useCounts } from './outcomes.tsx';
import { Spans } from './spans.tsx';
import { TopValues } from './top-values.tsx';

type Whose = Pick<Filter, 'agent_id' | 'tool_name' | 'proxy_id'>;
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
    <Paper p={0} component="section" aria-labelledby="last-title">
      <Group justify="space-between" px="md" pt="sm" pb="xs">
        <Title order={2} id="last-title">
          Last decisions
        </Title>
        <PageLink to="/decisions" search={filter} size="sm">
          All decisions
        </PageLink>
      </Group>
      <Shown query={query} lines={4}>
        {({ events, has_more }) =>
          events.length === 0 ? (
            <Text c="dimmed" px="md" pb="md">
              {has_more ? 'None among the newest decisions.' : 'None yet.'}
            </Text>
          ) : (
            <ul className="lines">
              {events.map((event) => (
                <li key={event.id}>
                  <div className="lines-main">
                    <PageLink
                      to="/decisions"
                      search={{ ...filter, event: event.id }}
                      fw={600}
                      c="inherit"
                      display="block"
                      className="one-line"
                    >
                      <Hostile text={by === 'agent' ? event.tool_name : event.agent_id} />
                    </PageLink>
                    <Line className="dim">{event.deny_reason ? <Hostile text={event.deny_reason} /> : null}</Line>
                  </div>
                  <div className="lines-side">
                    <DecisionTag decision={event.decision} />
                    <Clock at={event.created_at} />
                  </div>
                </li>
              ))}
            </ul>
          )
        }
      </Shown>
    </Paper>
  );
}
