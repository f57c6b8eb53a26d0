import { Button } from '@mantine/core';
import { IconCircleCheck, IconHandStop, IconPlugConnectedX } from '@tabler/icons-react';
import { useInfiniteQuery, useQuery } from '@tanstack/react-query';
import { getRouteApi } from '@tanstack/react-router';
import { useState } from 'react';
import { confirmed, toastDone } from '../../lib/errors.tsx';
import { usePeople } from '../../lib/people.ts';
import { queryClient } from '../../lib/query.ts';
import { useMe } from '../../lib/session.ts';
import { api, trpc } from '../../lib/trpc.ts';
import { PreparedStop, type Stop, StopButton, TargetOf } from '../../parts/stops.tsx';
import { ConfirmDialog } from '../../ui/confirm.tsx';
import { DataTable } from '../../ui/data-table.tsx';
import { Hostile } from '../../ui/hostile.tsx';
import { Page } from '../../ui/page.tsx';
import { More } from '../../ui/pager.tsx';
import { EmptyState } from '../../ui/states.tsx';
import { Tag } from '../../ui/status.tsx';
import { When } from '../../ui/time.tsx';

const route = getRouteApi('/app/stops');

/** What is stopped, how far each stop has reached, and what was stopped before. */
export function Stops() {
  const query = useInfiniteQuery({
    queryKey: [...trpc.stops.list.queryKey(), 'pages'],
    queryFn: ({ pageParam }) => api.stops.list.query({ limit: 50, ...(pageParam && { after: pageParam }) }),
    initialPageParam: '',
    getNextPageParam: ({ next_cursor }) => next_cursor ?? undefined,
  });
  const me = useMe();
  const name = usePeople();
  const [lifting, setLifting] = useState<Stop>();
  const { stop: kind, id = '' } = route.useSearch();
  const navigate = route.useNavigate();
  const stops = query.data?.pages.flatMap((page) => page.stops);
  return (
    <Page
      title="Stops"
      lead="A stop takes effect at once, in this server and in every proxy that is connected, whatever the policies say."
      docs={[['stops', 'About stops']]}
      actions={<StopButton />}
    >
      <DataTable<Stop>
        label="Stops"
        rows={stops}
        error={query.error}
        retry={() => void query.refetch()}
        rowKey={({ id }) => id}
        empty={
          <EmptyState icon={IconHandStop} title="No stops yet">
            <p>An approver can stop an agent, a role, a tool, a tool server, a session, a proxy, or everything.</p>
          </EmptyState>
        }
        columns={[
          {
            header: 'What',
            main: true,
            cell: (stop) => (
              <div style={{ overflowWrap: 'anywhere' }}>
                <div style={{ fontWeight: 600 }}>
                  <TargetOf stop={stop} />
                </div>
                <span className="dim">
                  <Hostile text={stop.reason} />
                </span>
              </div>
            ),
          },
          {
            header: 'State',
            cell: (stop) => (
              <div>
                {stop.in_force ? (
                  <Tag tone="bad" icon={IconHandStop}>
                    {stop.mode === 'deny' ? 'denied' : 'held for a person'}
                  </Tag>
                ) : (
                  <Tag tone="quiet">ended</Tag>
                )}
                {stop.abort ? <div className="dim">calls in progress were cut off</div> : null}
                {stop.in_force && stop.until ? (
                  <div className="dim">
                    until <When at={stop.until} />
                  </div>
                ) : null}
              </div>
            ),
          },
          {
            header: 'Proxies',
            cell: (stop) => (stop.in_force ? <ReachOf id={stop.id} /> : <span className="dim">—</span>),
          },
          {
            header: 'Stopped',
            cell: ({ created_by, created_at }) => (
              <div>
                <When at={created_at} />
                <div className="dim">{name(created_by)}</div>
              </div>
            ),
          },
          {
            header: 'Ended',
            cell: (stop) => {
              const { ended_at, ended_by, end_reason } = stop;
              if (stop.in_force && me.has('admin')) {
                return (
                  <Button variant="default" size="compact-sm" onClick={() => setLifting(stop)}>
                    Lift
                  </Button>
                );
              }
              return ended_at ? (
                <div style={{ overflowWrap: 'anywhere' }}>
                  <When at={ended_at} />
                  <div className="dim">
                    {ended_by ? name(ended_by) : 'when its time was up'}
                    {end_reason ? (
                      <>
                        : <Hostile text={end_reason} />
                      </>
                    ) : null}
                  </div>
                </div>
              ) : (
                <span className="dim">—</span>
              );
            },
          },
        ]}
      />
      {kind && me.has('approver') ? (
        <PreparedStop key={`${kind} ${id}`} target={{ kind, id }} onClose={() => void navigate({ search: {} })} />
      ) : null}
      <More query={query} label="Show older ones" />
      <ConfirmDialog
        opened={lifting !== undefined}
        onClose={() => setLifting(undefined)}
        title="Lift this stop?"
        action="Lift"
        reason={{ label: 'Why', required: true, most: 300 }}
        onConfirm={async (reason) => {
          await confirmed(() => api.stops.lift.mutate({ id: lifting!.id, reason }));
          await queryClient.invalidateQueries(trpc.stops.pathFilter());
          toastDone('Lifted');
        }}
      >
        {lifting ? (
          <span style={{ overflowWrap: 'anywhere' }}>
            <TargetOf stop={lifting} /> can act again immediately, within the policies.
          </span>
        ) : null}
      </ConfirmDialog>
    </Page>
  );
}

/** How far a stop has been applied, as the proxies report it: polled often only while some have yet to apply it. */
function ReachOf({ id }: { id: string }) {
  const { data } = useQuery(
    trpc.stops.get.queryOptions(
      { id },
      { refetchInterval: ({ state: { data } }) => (data && data.proxies.pending.length > 0 ? 5_000 : 30_000) },
    ),
  );
  if (!data) return <span className="dim">…</span>;
  const { applied, pending, unreachable, applied_ms_max } = data.proxies;
  const all = applied + pending.length + unreachable.length;
  if (all === 0) return <span className="dim">none</span>;
  const names = (list: readonly { proxy_id: string }[]) => list.map(({ proxy_id }) => proxy_id).join(', ');
  return (
    <div style={{ overflowWrap: 'anywhere' }}>
      <Tag tone={applied === all ? 'ok' : 'wait'} icon={IconCircleCheck}>
        {`${applied} of ${all} applied it`}
      </Tag>
      {applied_ms_max !== null && applied > 0 ? <div className="dim">within {applied_ms_max} ms</div> : null}
      {pending.length > 0 ? <div className="dim">not yet: {names(pending)}</div> : null}
      {unreachable.length > 0 ? (
        <div>
          <Tag tone="bad" icon={IconPlugConnectedX}>
            {`silent: ${names(unreachable)}`}
          </Tag>
        </div>
      ) : null}
    </div>
  );
}
