import { PageLink } from '../../ui/link.tsx';
import '@mantine/core/styles/Drawer.css';
import { Anchor, Button, Drawer, NativeSelect, Text } from '@mantine/core';
import { IconListDetails, IconPlayerPause, IconPlayerPlay } from '@tabler/icons-react';
import { useQuery } from '@tanstack/react-query';
import { getRouteApi } from '@tanstack/react-router';
import type { Decision } from '../../../server/domain/decision.ts';
import { type DecisionRow, useStream } from '../../lib/decision-stream.ts';
import { trpc } from '../../lib/trpc.ts';
import { CodeBlock } from '../../ui/code.tsx';
import { Id } from '../../ui/copy.tsx';
import { type Column, DataTable } from '../../ui/data-table.tsx';
import { ClearFilters, NothingMatches, TextFilter } from '../../ui/filters.tsx';
import { Page } from '../../ui/page.tsx';
import { EmptyState, Shown } from '../../ui/states.tsx';
import { DECISION, DecisionTag } from '../../ui/status.tsx';
import { Clock, When } from '../../ui/time.tsx';
import { FILTERS, type Filter, type Search } from './search.ts';

const route = getRouteApi('/app/decisions');

const LABEL: Record<Filter, string> = {
  decision: 'Decision',
  agent_id: 'Agent',
  agent_role: 'Role',
  tool_name: 'Tool',
  policy_id: 'Policy',
  session_id: 'Session',
};

/** The decisions as they are taken. Filters and the opened one stand in the address, so a link shows the same. */
export function Decisions() {
  const search = route.useSearch();
  const navigate = route.useNavigate();
  const { event, ...filter } = search;
  const stream = useStream(filter);
  const set = (change: Partial<Search>) =>
    void navigate({ search: (old) => ({ ...old, ...change }), replace: !('event' in change), resetScroll: false });
  const filtered = Object.values(filter).some((value) => value !== undefined);
  const clear = () => void navigate({ search: { event }, replace: true });

  const columns: Column<DecisionRow>[] = [
    { header: 'Time', bare: true, cell: (row) => <Clock at={row.created_at} />, width: 90 },
    { header: 'Decision', bare: true, cell: (row) => <DecisionTag decision={row.decision} />, width: 140 },
    {
      header: 'Tool',
      main: true,
      cell: (row) => (
        <Anchor
          component="button"
          type="button"
          c="inherit"
          fw={600}
          ta="left"
          onClick={() => set({ event: row.id })}
          aria-label={`${row.tool_name}: ${DECISION[row.decision][0]}, details`}
        >
          {row.tool_name}
        </Anchor>
      ),
    },
    {
      header: 'Agent',
      cell: (row) => (
        <span>
          {row.agent_id} <span className="dim">{row.agent_role}</span>
        </span>
      ),
    },
    {
      header: 'Policy',
      cell: (row) =>
        row.policy_id ? <span className="mono">{row.policy_id}</span> : <span className="dim">none</span>,
    },
    {
      header: 'Reason',
      cell: (row) => (row.deny_reason ? <span className="dim">{row.deny_reason}</span> : null),
    },
  ];

  return (
    <Page
      title="Decisions"
      actions={
        <Button
          variant="default"
          leftSection={stream.paused ? <IconPlayerPlay size={16} /> : <IconPlayerPause size={16} />}
          onClick={stream.toggle}
          aria-pressed={stream.paused}
        >
          {stream.paused ? `Go on${stream.waiting > 0 ? ` (${stream.waiting} new)` : ''}` : 'Pause'}
        </Button>
      }
    >
      <search className="bar" aria-label="Filter decisions">
        <NativeSelect
          label={LABEL.decision}
          value={search.decision ?? ''}
          onChange={(change) => set({ decision: (change.currentTarget.value || undefined) as Decision | undefined })}
          data={[
            { value: '', label: 'all' },
            ...Object.entries(DECISION).map(([value, [label]]) => ({ value, label })),
          ]}
          w={150}
        />
        {FILTERS.filter((name) => name !== 'decision').map((name) => (
          <TextFilter
            key={name}
            label={LABEL[name]}
            value={search[name]}
            onChange={(v) => set({ [name]: v })}
            width={140}
          />
        ))}
        {filtered ? <ClearFilters clear={clear} /> : null}
      </search>
      <DataTable
        label="Decisions, the newest first"
        columns={columns}
        rows={stream.rows}
        rowKey={(row) => row.id}
        error={stream.error}
        retry={stream.retry}
        onOpen={(row) => set({ event: row.id })}
        selected={event}
        isNew={(row) => stream.isNew(row.id)}
        empty={
          filtered ? (
            <NothingMatches icon={IconListDetails} title="No decision fits the filters" clear={clear}>
              {stream.older
                ? 'That is, of the newest ones: the search goes on with the button below.'
                : 'They apply to the whole log. New decisions that fit appear here by themselves.'}
            </NothingMatches>
          ) : (
            <EmptyState icon={IconListDetails} title="No decisions yet">
              They appear here as agents ask. <PageLink to="/start">Make the first one</PageLink>.
            </EmptyState>
          )
        }
      />
      {stream.older ? (
        <Button mt="sm" variant="default" loading={stream.loadingOlder} onClick={stream.older}>
          Older decisions
        </Button>
      ) : null}
      <Drawer
        opened={event !== undefined}
        onClose={() => set({ event: undefined })}
        position="right"
        size="lg"
        title={<strong>Decision</strong>}
        closeButtonProps={{ 'aria-label': 'Close' }}
      >
        {event === undefined ? null : <Details id={event} />}
      </Drawer>
    </Page>
  );
}

function Details({ id }: { id: string }) {
  const query = useQuery(trpc.events.get.queryOptions({ id }, { staleTime: Number.POSITIVE_INFINITY }));
  return (
    <Shown query={query} lines={14}>
      {(event) => {
        const { policy_snapshot: policy, chain } = event;
        return (
          <>
            <Text mb="sm" size="lg" fw={650}>
              {event.tool_name} <DecisionTag decision={event.decision} />
            </Text>
            <dl className="facts">
              {event.deny_reason ? <Fact name="Reason">{event.deny_reason}</Fact> : null}
              <Fact name="Rule that decided">
                {event.rule_id ? <span className="mono">{event.rule_id}</span> : 'none: nothing permits it'}
              </Fact>
              <Fact name="Policy">
                {policy.policy_id ? (
                  <PageLink to="/policies/$id" params={{ id: policy.policy_id }}>
                    {policy.policy_id}
                    {policy.version === null ? '' : `, version ${policy.version}`}
                  </PageLink>
                ) : (
                  'none'
                )}
              </Fact>
              {event.obligations?.length ? <Fact name="Obligations">{event.obligations.join(', ')}</Fact> : null}
              {event.escrow_id ? (
                <Fact name="Hold">
                  <PageLink to="/approvals/$id" params={{ id: event.escrow_id }} className="mono">
                    {event.escrow_id}
                  </PageLink>
                </Fact>
              ) : null}
              <Fact name="Agent">
                {event.agent_id} ({event.agent_role})
              </Fact>
              {event.session_id ? (
                <Fact name="Session">
                  <PageLink to="/decisions" search={{ session_id: event.session_id }}>
                    {event.session_id}
                  </PageLink>
                </Fact>
              ) : null}
              {event.method ? <Fact name="Method">{event.method}</Fact> : null}
              <Fact name="Decided by">{event.proxy_id}</Fact>
              <Fact name="Decided">
                <When at={event.timestamp} exact />
              </Fact>
              <Fact name="Recorded">
                <When at={event.created_at} exact />
              </Fact>
              <Fact name="Evaluation">{event.evaluation_us.toLocaleString()} µs</Fact>
              <Fact name="Place in the chain">#{chain.seq.toLocaleString()}</Fact>
              <Fact name="Record hash">
                <Id value={chain.hash} length={30} />
              </Fact>
              <Fact name="Hash before it">
                <Id value={chain.prev_hash} length={30} />
              </Fact>
              <Fact name="Input hash">
                {event.input_hash ? (
                  <Id value={event.input_hash} length={30} />
                ) : (
                  <span className="dim">the proxy sent none</span>
                )}
              </Fact>
              {event.action_hash ? (
                <Fact name="Action hash">
                  <Id value={event.action_hash} length={30} />
                </Fact>
              ) : null}
              {policy.bundle_hash ? (
                <Fact name="Bundle">
                  <Id value={policy.bundle_hash} length={30} />
                </Fact>
              ) : null}
              <Fact name="Event">
                <Id value={event.id} length={34} />
              </Fact>
            </dl>
            <Text mt="md" mb={4} fw={600} size="sm">
              As curl
            </Text>
            <CodeBlock
              label="curl"
              wrap
              text={`curl -sS -H "Authorization: Bearer $KEY" \\\n  ${window.location.origin}/v1/events/${encodeURIComponent(event.id)}`}
            />
          </>
        );
      }}
    </Shown>
  );
}

function Fact({ name, children }: { name: string; children: React.ReactNode }) {
  return (
    <>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </>
  );
}
