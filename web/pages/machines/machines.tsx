import './machines.css';
import { Paper, Text, Title } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import { getRouteApi } from '@tanstack/react-router';
import { type Answers, trpc } from '../../lib/trpc.ts';
import { eventLabel, MachineChart, wordOf } from '../../parts/machine/chart.tsx';
import { SentBy } from '../../parts/machine/sender.tsx';
import { DataTable } from '../../ui/data-table.tsx';
import { Page } from '../../ui/page.tsx';
import { Shown } from '../../ui/states.tsx';

type Machine = Answers['machines']['list']['machines'][number];

const route = getRouteApi('/app/machines');
const titleOf = (id: Machine['id']): string => ({ policy: 'Policy', escrow: 'Hold', delivery: 'Delivery' })[id];

/** The state machines behind policies, holds and deliveries, drawn from their definitions. */
export function Machines() {
  const { machine: chosen } = route.useSearch();
  const navigate = route.useNavigate();
  const query = useQuery(trpc.machines.list.queryOptions({}, { staleTime: Number.POSITIVE_INFINITY }));
  return (
    <Page
      title="State machines"
      lead="For maintainers: the states of policies, holds and deliveries, drawn from the server’s own definitions. The page of each of them shows where it stands."
    >
      <Shown query={query} lines={12}>
        {({ machines }) => {
          const shown = machines.find(({ id }) => id === chosen) ?? machines[0]!;
          return (
            <>
              {/* biome-ignore lint/a11y/useSemanticElements: a fieldset is for what a form sends */}
              <div className="segments" role="group" aria-label="Lifecycle of" style={{ marginBottom: 16 }}>
                {machines.map(({ id }) => (
                  <button
                    key={id}
                    type="button"
                    aria-pressed={id === shown.id}
                    onClick={() => void navigate({ search: { machine: id } })}
                  >
                    {titleOf(id)}
                  </button>
                ))}
              </div>
              <MachineDetail machine={shown} />
            </>
          );
        }}
      </Shown>
    </Page>
  );
}

function MachineDetail({ machine }: { machine: Machine }) {
  const title = titleOf(machine.id);
  const rows = machine.transitions.map((transition, n) => ({ ...transition, n }));
  return (
    <section aria-labelledby={`machine-${machine.id}`}>
      <Title order={2} id={`machine-${machine.id}`}>
        {title} lifecycle
      </Title>
      <Text c="dimmed" mb="xs">
        {machine.about}. Version {machine.version}.
      </Text>
      <Paper p={0} mb="sm">
        <MachineChart chart={machine} label={`Diagram of the ${title.toLowerCase()} lifecycle`} />
        <div className="chart-words">
          <dl className="facts">
            {machine.states.map(({ id, description }) => (
              <div key={id} style={{ display: 'contents' }}>
                <dt>{wordOf(id)}</dt>
                <dd>{description}</dd>
              </div>
            ))}
          </dl>
          <dl className="facts">
            {Object.entries(machine.events).map(([event, sender]) => (
              <div key={event} style={{ display: 'contents' }}>
                <dt>{eventLabel(event)}</dt>
                <dd>
                  <SentBy sender={sender} />
                </dd>
              </div>
            ))}
          </dl>
        </div>
      </Paper>
      <DataTable
        label={`Transitions of the ${title.toLowerCase()} lifecycle`}
        rows={rows}
        rowKey={({ n }) => String(n)}
        empty={null}
        columns={[
          {
            header: 'Transition',
            main: true,
            cell: ({ from, event, to }) => (
              <span className="transition">
                {wordOf(from)} <span className="dim">{eventLabel(event)}</span> → {wordOf(to)}
              </span>
            ),
          },
          { header: 'When', cell: ({ guard }) => (guard ? <span className="mono">{guard}</span> : 'always') },
          {
            header: 'Then',
            cell: ({ effects }) =>
              effects.length ? <span className="mono dim">{effects.join(', ')}</span> : <span className="dim">—</span>,
          },
        ]}
      />
    </section>
  );
}
