import { Button, NativeSelect } from '@mantine/core';
import { IconClockPause } from '@tabler/icons-react';
import { useInfiniteQuery } from '@tanstack/react-query';
import { getRouteApi } from '@tanstack/react-router';
import { HOLD_KINDS } from '../../../server/domain/hold-kinds.ts';
import { api, trpc } from '../../lib/trpc.ts';
import { actionTitle, money, risk } from '../../lib/words.ts';
import { type Column, DataTable } from '../../ui/data-table.tsx';
import { ClearFilters, NothingMatches, TextFilter } from '../../ui/filters.tsx';
import { PageLink } from '../../ui/link.tsx';
import { Page } from '../../ui/page.tsx';
import { More } from '../../ui/pager.tsx';
import { EmptyState } from '../../ui/states.tsx';
import { HoldTag, Tag } from '../../ui/status.tsx';
import { Countdown, When } from '../../ui/time.tsx';
import { HOLD_STATUSES, type HoldFilter, type HoldStatus } from './filter.ts';

const route = getRouteApi('/app/approvals');

/** Actions that are waiting for people, soonest to expire first. */
export function Inbox() {
  const { status = 'held', agent_role, agent_id } = route.useSearch();
  const navigate = route.useNavigate();
  const filter = { status, agent_role, agent_id, order: status === 'held' ? 'expires_at' : 'created_at' } as const;
  const query = useInfiniteQuery({
    queryKey: [...trpc.escrow.list.queryKey(filter), 'pages'],
    queryFn: ({ pageParam, signal }) => api.escrow.list.query({ ...filter, after: pageParam, limit: 50 }, { signal }),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: ({ next_cursor }) => next_cursor ?? undefined,
  });
  const rows = query.data?.pages.flatMap(({ holds }) => holds);
  const set = (change: HoldFilter) => void navigate({ search: (old) => ({ ...old, ...change }), replace: true });
  const filtered = agent_role !== undefined || agent_id !== undefined;
  type Row = NonNullable<typeof rows>[number];
  const columns: Column<Row>[] = [
    {
      header: 'Action',
      main: true,
      cell: (row) => (
        <>
          <PageLink to="/approvals/$id" params={{ id: row.id }} fw={600} c="inherit">
            {actionTitle(row)}
          </PageLink>
          <div className="dim" style={{ fontWeight: 400 }}>
            {row.agent_id} ({row.agent_role}) says “{row.action_summary}”
          </div>
        </>
      ),
    },
    status === 'held'
      ? { header: 'Expires', cell: (row) => <Countdown until={row.expires_at} />, width: 130 }
      : { header: 'Status', cell: (row) => <HoldTag status={row.status} />, width: 130 },
    {
      header: 'Value',
      align: 'right',
      cell: (row) =>
        row.estimated_value === null ? null : <strong>{money(row.estimated_value, row.value_currency)}</strong>,
    },
    {
      header: 'Stated risk',
      cell: (row) => {
        if (row.risk_score === null) return null;
        const { word, tone } = risk(row.risk_score);
        return (
          <Tag tone={tone}>
            {word} {row.risk_score}
          </Tag>
        );
      },
    },
    {
      header: 'Approvals',
      cell: (row) => (
        <span>
          {row.current_approvals} of {row.required_approvals}{' '}
          <span className="dim">{HOLD_KINDS[row.hold_type].label.toLowerCase()}</span>
        </span>
      ),
    },
    { header: 'Asked', align: 'right', cell: (row) => <When at={row.created_at} /> },
  ];
  return (
    <Page
      title="Approvals"
      lead="Agent actions that are held until people decide."
      docs={[['holds', 'What an approval covers']]}
    >
      <search className="bar" aria-label="Filter holds">
        <NativeSelect
          label="Show"
          value={status}
          onChange={(event) => {
            const next = event.currentTarget.value as HoldStatus;
            set({ status: next === 'held' ? undefined : next });
          }}
          data={HOLD_STATUSES.map((value) => ({
            value,
            label: value === 'held' ? 'waiting' : value,
          }))}
          w={150}
        />
        <TextFilter label="Role" value={agent_role} onChange={(value) => set({ agent_role: value })} width={160} />
        <TextFilter label="Agent" value={agent_id} onChange={(value) => set({ agent_id: value })} width={160} />
        {filtered ? <ClearFilters clear={() => set({ agent_role: undefined, agent_id: undefined })} /> : null}
      </search>
      <DataTable
        label={status === 'held' ? 'Held actions, soonest to expire first' : `Actions that are ${status}`}
        columns={columns}
        rows={rows}
        rowKey={(row) => row.id}
        error={query.error}
        retry={() => void query.refetch()}
        onOpen={(row) => void navigate({ to: '/approvals/$id', params: { id: row.id } as never })}
        empty={
          filtered ? (
            <NothingMatches
              icon={IconClockPause}
              title={status === 'held' ? 'No held actions for this role' : `No ${status} actions for this role`}
              clear={() => set({ agent_role: undefined, agent_id: undefined })}
            />
          ) : (
            <EmptyState
              icon={IconClockPause}
              title={status === 'held' ? 'No held actions' : `No ${status} actions`}
              action={
                status === 'held' ? null : (
                  <Button variant="default" onClick={() => set({ status: undefined })}>
                    Show held actions
                  </Button>
                )
              }
            >
              {status === 'held'
                ? 'When a policy with @escrow holds an action, it appears here automatically.'
                : 'Holds appear here once they reach this status.'}
            </EmptyState>
          )
        }
      />
      <More
        query={query}
        label={status === 'held' ? 'Holds that expire later' : 'Older holds'}
        shown={rows?.length ?? 0}
        total={query.data?.pages.at(-1)?.total ?? 0}
      />
    </Page>
  );
}
