import { Button, Group, Modal, Stack, Text, TextInput } from '@mantine/core';
import { IconRobot } from '@tabler/icons-react';
import { keepPreviousData, useQuery } from '@tanstack/react-query';
import { getRouteApi } from '@tanstack/react-router';
import { useState } from 'react';
import { LABEL, MOST_LABELS } from '../../../server/domain/tools.ts';
import { toastDone } from '../../lib/errors.tsx';
import { useServerForm } from '../../lib/form.ts';
import { usePeople } from '../../lib/people.ts';
import { queryClient } from '../../lib/query.ts';
import { useMe } from '../../lib/session.ts';
import { type Answers, api, trpc } from '../../lib/trpc.ts';
import { DataTable } from '../../ui/data-table.tsx';
import { ClearFilters, NothingMatches, TextFilter } from '../../ui/filters.tsx';
import { FormFoot } from '../../ui/form.tsx';
import { PageLink } from '../../ui/link.tsx';
import { Page } from '../../ui/page.tsx';
import { EmptyState } from '../../ui/states.tsx';
import { Tag } from '../../ui/status.tsx';
import { When } from '../../ui/time.tsx';
import type { AgentFilter } from './search.ts';

const route = getRouteApi('/app/agents');
const PER_PAGE = 100;

type Agent = Answers['tools']['agents']['agents'][number];

/** The agents that anybody knows: by their labels, their keys or their decisions. */
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
    void navigate({ search: (old) => ({ ...old, after: undefined, ...change }), replace: true });
  const clear = () => void navigate({ search: {}, replace: true });
  const filtered = Object.keys(filter).length > 0;
  const next = query.data?.next;
  return (
    <Page
      title="Agents"
      lead="Who acts, by key or by token, and the labels that policies read of them. An agent appears here with its first key, its first decision or its first label."
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
              <p>Make an agent a key, or let it come with a token of an issuer that this organization trusts.</p>
              {me.has('admin') ? (
                <PageLink to="/keys" search={{ kind: 'agents' }}>
                  Agent keys
                </PageLink>
              ) : null}
            </EmptyState>
          )
        }
        columns={[
          { header: 'Agent', main: true, cell: ({ id }) => <strong className="mono">{id}</strong> },
          { header: 'Roles', cell: ({ roles }) => roles.join(', ') || <span className="dim">none known</span> },
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
                    {name(proposal.by)} asked for {proposal.what.labels.join(', ') || 'none'}
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
                <PageLink to="/decisions" search={{ agent_id: agent.id }} aria-label={`Decisions of ${agent.id}`}>
                  Decisions
                </PageLink>
                <PageLink to="/approvals" search={{ agent_id: agent.id }} aria-label={`Holds of ${agent.id}`}>
                  Holds
                </PageLink>
                {me.has('admin') ? (
                  <Button
                    size="compact-xs"
                    variant="default"
                    onClick={() => edit(agent)}
                    aria-label={`Labels of ${agent.id}`}
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
      <Modal
        opened={edited !== undefined}
        onClose={() => edit(undefined)}
        title={<strong>Labels of {edited?.id}</strong>}
        closeButtonProps={{ 'aria-label': 'Close' }}
      >
        {edited ? <LabelForm agent={edited} onDone={() => edit(undefined)} /> : null}
      </Modal>
    </Page>
  );
}

/** Two steps: the labels, and what they change. */
function LabelForm({ agent, onDone }: { agent: Agent; onDone: () => void }) {
  const [sure, setSure] = useState(false);
  const form = useServerForm({ initialValues: { labels: (agent.proposal?.what.labels ?? agent.labels).join(', ') } });
  const labels = [...new Set(form.values.labels.split(/[\s,]+/).filter(Boolean))];
  const wrong = labels.find((label) => !LABEL.test(label));
  const added = labels.filter((label) => !agent.labels.includes(label));
  const removed = agent.labels.filter((label) => !labels.includes(label));
  const same = added.length === 0 && removed.length === 0;
  return (
    <form
      onSubmit={form.onSubmit(async () => {
        if (!sure) {
          setSure(true);
          return;
        }
        try {
          const after = await api.tools.labelAgent.mutate({ agent_id: agent.id, labels });
          await queryClient.invalidateQueries(trpc.tools.agents.pathFilter());
          toastDone(after.proposal ? 'Waits for a second person' : 'Labels saved');
          onDone();
        } catch (error) {
          setSure(false);
          form.refused(error);
        }
      })}
    >
      <Stack gap="sm">
        {sure ? (
          <div role="status">
            <Text>
              Policies that read principal.labels decide by them at once, whatever key or token the agent has.
            </Text>
            <ul>
              {added.map((label) => (
                <li key={label}>
                  <strong>{label}</strong> is added
                </li>
              ))}
              {removed.map((label) => (
                <li key={label}>
                  <strong>{label}</strong> is taken away
                </li>
              ))}
            </ul>
          </div>
        ) : (
          <TextInput
            label="Labels, separated by commas"
            description={`At most ${MOST_LABELS}. Policies read them as principal.labels. Only people set them.`}
            spellCheck={false}
            data-autofocus
            {...form.getInputProps('labels')}
            error={form.errors.labels ?? (wrong === undefined ? undefined : `${wrong} is not a label`)}
          />
        )}
        <FormFoot
          fault={form.fault}
          action={sure ? 'Set the labels' : 'Continue'}
          busy={form.submitting}
          disabled={wrong !== undefined || same || labels.length > MOST_LABELS}
          onCancel={sure ? () => setSure(false) : onDone}
        />
      </Stack>
    </form>
  );
}
