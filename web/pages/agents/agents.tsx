import { Button, Group, Text } from '@mantine/core';
import { IconRobot } from '@tabler/icons-react';
import { keepPreviousData, useQuery } from '@tanstack/react-query';
import { getRouteApi } from '@tanstack/react-router';
import { useState } from 'react';
import { nameShown } from '../../../server/lib/visible.ts';
import { usePeople } from '../../lib/people.ts';
import { useMe } from '../../lib/session.ts';
import { type Answers, trpc } from '../../lib/trpc.ts';
import { AgentLink, RoleNames } from '../../parts/names.tsx';
import { DataTable } from '../../ui/data-table.tsx';
import { ClearFilters, NothingMatches, TextFilter } from '../../ui/filters.tsx';
import { PageLink } from '../../ui/link.tsx';
import { Page } from '../../ui/page.tsx';
import { EmptyState } from '../../ui/states.tsx';
import { Tag } from '../../ui/status.tsx';
import { When } from '../../ui/time.tsx';
import { LabelDialog } from './labels.tsx';
import type { AgentFilter } from './search.ts';

const route = getRouteApi('/app/agents');
const PER_PAGE = 100;

type Agent = Answers['tools']['agents']['agents'][number];

/** All known agents: from their labels, keys or decisions. */
export function Agents() {
  const me = useMe();
  const name = usePeople();
  const filter = route.useSearch();
  const navigate = route.useNavigate();
  const [edited, edit] = useState<Agent>();
  const query = useQuery(
    trpc.tools.agents.queryOptions({ ...filter, limit: PER_PAGE }, { placeholderData: keepPreviousData }),
  );
  const set = (change: Partial<AgentFilter>) =>
    void navigate({ search: (old) => ({ ...old, after: undefined, ...change }) });
  const clear = () => void navigate({ search: {} });
  const filtered = Object.keys(filter).length > 0;
  const next = query.data?.next;
  return (
    <Page
      title="Agents"
      lead="Who acts, with a key or a token, and the labels that policies read. An agent appears here with its first key, its first decision or its first label."
      docs={[['tools#labels-and-trust', 'About labels']]}
    >
      <search className="bar" aria-label="Filter agents">
        <TextFilter label="Id or role contains" value={filter.q} onChange={(q) => set({ q })} width={200} />
        <TextFilter label="Label" value={filter.label} onChange={(label) => set({ label })} width={160} />
        {filtered ? <ClearFilters clear={clear} /> : null}
      </search>
      <DataTable<Agent>
        label="Agents by id"
        rows={query.data?.agents}
        error={query.error}
        retry={() => void query.refetch()}
        rowKey={({ id }) => id}
        empty={
          filtered ? (
            <NothingMatches icon={IconRobot} title="No agents match the filters" clear={clear} />
          ) : (
            <EmptyState icon={IconRobot} title="No agents yet">
              <p>Create a key for an agent, or let it use tokens of an issuer that this organization trusts.</p>
              {me.has('admin') ? (
                <PageLink to="/keys" search={{ kind: 'agents' }}>
                  Agent keys
                </PageLink>
              ) : null}
            </EmptyState>
          )
        }
        columns={[
          {
            header: 'Agent',
            main: true,
            cell: ({ id }) => (
              <strong className="mono whole">
                <AgentLink id={id} plain />
              </strong>
            ),
          },
          { header: 'Roles', cell: ({ roles }) => <RoleNames roles={roles} /> },
          {
            header: 'Labels',
            cell: ({ labels, proposal }) => (
              <>
                {labels.map((label) => (
                  <span key={label} style={{ marginRight: 4 }}>
                    <Tag tone="quiet">{label}</Tag>
                  </span>
                ))}
                {labels.length === 0 ? <span className="dim">none</span> : null}
                {proposal ? (
                  <Text size="xs" c="dimmed">
                    waiting for a second person: {name(proposal.by)} proposed{' '}
                    {proposal.what.labels.join(', ') || 'no labels'}
                  </Text>
                ) : null}
              </>
            ),
          },
          { header: 'Keys', cell: ({ keys }) => keys, align: 'right', width: 70 },
          {
            header: 'Last seen',
            cell: ({ last_seen }) => (last_seen ? <When at={last_seen} /> : <span className="dim">never</span>),
            width: 130,
          },
          {
            header: 'Actions',
            cell: (agent) => (
              <Group gap={8} justify="flex-end" wrap="nowrap">
                <PageLink
                  to="/decisions"
                  search={{ agent_id: agent.id }}
                  aria-label={`Decisions of ${nameShown(agent.id)}`}
                >
                  Decisions
                </PageLink>
                <PageLink
                  to="/approvals"
                  search={{ agent_id: agent.id }}
                  aria-label={`Holds of ${nameShown(agent.id)}`}
                >
                  Holds
                </PageLink>
                {me.has('admin') ? (
                  <Button
                    size="compact-xs"
                    variant="default"
                    onClick={() => edit(agent)}
                    aria-label={`Labels of ${nameShown(agent.id)}`}
                  >
                    Labels
                  </Button>
                ) : null}
              </Group>
            ),
            align: 'right',
            bare: true,
          },
        ]}
      />
      {next || filter.after ? (
        <Group component="nav" mt="sm" aria-label="Pages of the list">
          <Button variant="default" size="xs" disabled={!filter.after} onClick={() => set({ after: undefined })}>
            First page
          </Button>
          <Button variant="default" size="xs" disabled={!next} onClick={() => set({ after: next ?? undefined })}>
            Next page
          </Button>
          <Text size="sm" c="dimmed">
            {query.data?.total.toLocaleString()} agents
          </Text>
        </Group>
      ) : null}
      <LabelDialog agent={edited} onClose={() => edit(undefined)} />
    </Page>
  );
}
