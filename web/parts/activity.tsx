import { Group, Paper, Title } from '@mantine/core';
import type { ReactNode } from 'react';
import type { Filter } from '../lib/decision-filter.ts';
import type { Last } from '../lib/moment.ts';
import { AgentLink, RuleLink, ToolLink } from './names.tsx';
import { Outcomes, useCounts } from './outcomes.tsx';
import { Spans } from './spans.tsx';
import { TopValues } from './top-values.tsx';

type Whose = Pick<Filter, 'agent_id' | 'tool_name' | 'tool_server' | 'proxy_id'>;
type Facet = 'tool_name' | 'agent_id' | 'rule_id';

const FACETS: Record<Facet, { title: string; name: (value: string) => ReactNode }> = {
  tool_name: { title: 'Tools', name: (name) => <ToolLink name={name} plain /> },
  agent_id: { title: 'Agents', name: (id) => <AgentLink id={id} plain /> },
  rule_id: { title: 'Rules that decided', name: (id) => <RuleLink id={id} plain /> },
};

/** What an agent did, or what was done with a tool: over time, and with what. */
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
