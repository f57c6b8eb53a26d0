import { Button, Group, Text, Title } from '@mantine/core';
import { IconSend } from '@tabler/icons-react';
import { useInfiniteQuery, useQuery } from '@tanstack/react-query';
import { useNavigate } from '@tanstack/react-router';
import { fullTime, useZone } from '../../lib/time.ts';
import { api, trpc } from '../../lib/trpc.ts';
import { Id } from '../../ui/copy.tsx';
import { DataTable } from '../../ui/data-table.tsx';
import { choicesOf, FilterBar } from '../../ui/filter-bar.tsx';
import { NothingMatches } from '../../ui/filters.tsx';
import { PageLink } from '../../ui/link.tsx';
import { More } from '../../ui/pager.tsx';
import { EmptyState } from '../../ui/states.tsx';
import { Tag } from '../../ui/status.tsx';
import { When } from '../../ui/time.tsx';
import { useRedeliver } from './delivery.tsx';
import { ResendButton, Resending } from './resend.tsx';
import { DELIVERY_STATES, type SubscriptionSearch, WHOLE } from './search.ts';
import { type Delivery, DeliveryTag, RESULT } from './words.tsx';

/** The deliveries of a subscription, newest first, each with its last response. */
export function Deliveries({
  id,
  paused,
  search: { last: _, ...filter },
  set,
}: {
  id: string;
  paused: boolean;
  search: SubscriptionSearch;
  set: (change: SubscriptionSearch) => void;
}) {
  const [zone] = useZone();
  const { since, until, status, event_type } = filter;
  const types = useQuery(trpc.subscriptions.eventTypes.queryOptions({}, { staleTime: Number.POSITIVE_INFINITY }));
  const query = useInfiniteQuery({
    queryKey: [...trpc.subscriptions.deliveries.queryKey({ id, ...filter }), 'pages'],
    queryFn: ({ pageParam, signal }) =>
      api.subscriptions.deliveries.query({ id, ...filter, limit: 25, cursor: pageParam }, { signal }),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: ({ next_cursor }) => next_cursor ?? undefined,
    refetchInterval: 3_000,
  });
  const filtered = Object.values(filter).some((value) => value !== undefined);
  const clear = () => set({ ...WHOLE, status: undefined, event_type: undefined });
  const redeliver = useRedeliver();
  const navigate = useNavigate();
  const open = ({ id: delivery }: Delivery) =>
    void navigate({ to: '/subscriptions/$id/deliveries/$delivery', params: { id, delivery } });
  return (
    <section aria-labelledby="deliveries-title">
      <Group justify="space-between" align="flex-end" mb="xs">
        <Title order={2} size="h3" id="deliveries-title">
          Deliveries
        </Title>
        <ResendButton id={id} paused={paused} />
      </Group>
      <Resending id={id} paused={paused} />
      <FilterBar
        label="Filter deliveries"
        clear={filtered ? clear : undefined}
        fields={[
          {
            label: 'State',
            value: status,
            set: (next) => set({ status: next as SubscriptionSearch['status'] }),
            choices: choicesOf('any', DELIVERY_STATES),
            width: 140,
          },
          {
            label: 'Event',
            value: event_type,
            set: (next) => set({ event_type: next as SubscriptionSearch['event_type'] }),
            choices: choicesOf('any', types.data?.event_types.map(({ type }) => type) ?? []),
            width: 220,
          },
          ...(since && until
            ? [
                {
                  label: 'Attempted',
                  value: since,
                  set: () => set(WHOLE),
                  choices: [
                    { value: '', label: 'any time' },
                    {
                      value: since,
                      label: `${fullTime(since, zone).slice(0, 16)} to ${fullTime(until, zone).slice(5, 16)}`,
                    },
                  ],
                  width: 250,
                },
              ]
            : []),
        ]}
      />
      <DataTable<Delivery>
        label="Deliveries"
        rows={query.data?.pages.flatMap(({ deliveries }) => deliveries)}
        error={query.error}
        retry={() => void query.refetch()}
        rowKey={({ id: delivery }) => delivery}
        onOpen={open}
        empty={
          filtered ? (
            <NothingMatches icon={IconSend} title="No deliveries match the filters" clear={clear} />
          ) : (
            <EmptyState icon={IconSend} title="No deliveries yet">
              Every event sent to this destination is listed here for 30 days, with each answer. Tests are not listed.
            </EmptyState>
          )
        }
        columns={[
          {
            header: 'Event',
            main: true,
            cell: ({ id: delivery, event_type, event_id, created_at, test }) => (
              <div>
                <PageLink
                  to="/subscriptions/$id/deliveries/$delivery"
                  params={{ id, delivery }}
                  c="inherit"
                  fw={600}
                  aria-label={`${event_type}: details`}
                >
                  {event_type}
                </PageLink>{' '}
                {test ? <Tag tone="quiet">test</Tag> : null}
                <Text size="xs" c="dimmed" component="div" fw={400}>
                  <When at={created_at} /> · <Id value={event_id} length={22} />
                </Text>
              </div>
            ),
          },
          { header: 'State', bare: true, cell: (delivery) => <DeliveryTag delivery={delivery} paused={paused} /> },
          { header: 'Attempts', align: 'right', cell: ({ attempts }) => attempts },
          {
            header: 'Last response',
            cell: ({ status, result, http_status, failure_reason, duration_ms, note }) =>
              result ? (
                <div>
                  <div>
                    {http_status ? <span className="mono">{http_status}</span> : null} {RESULT[result]}
                    {duration_ms === null ? '' : `, ${duration_ms} ms`}
                  </div>
                  {status === 'retrying' ? null : (
                    <Text size="xs" c="dimmed">
                      {failure_reason ?? note}
                    </Text>
                  )}
                </div>
              ) : failure_reason ? (
                <span className="dim">{failure_reason}</span>
              ) : (
                <span className="dim">none yet</span>
              ),
          },
          {
            header: 'Next attempt',
            cell: ({ next_attempt_at }) => (next_attempt_at && !paused ? <When at={next_attempt_at} /> : null),
          },
          {
            header: 'Actions',
            align: 'right',
            cell: (delivery) => (
              <Button
                size="compact-sm"
                variant="default"
                disabled={redeliver.isPending || paused}
                onClick={() => redeliver.mutate({ id, delivery_id: delivery.id })}
              >
                Send again
              </Button>
            ),
          },
        ]}
      />
      <More query={query} label="Older deliveries" />
    </section>
  );
}
