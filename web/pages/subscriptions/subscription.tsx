import { Anchor, Button, Group, Modal, NativeSelect, Paper, Stack, Text, TextInput, Title } from '@mantine/core';
import { IconCheck, IconPlayerPause, IconPlayerPlay, IconRefresh, IconSend, IconX } from '@tabler/icons-react';
import { useInfiniteQuery, useMutation, useQuery } from '@tanstack/react-query';
import { getRouteApi, useNavigate } from '@tanstack/react-router';
import { type FormEvent, useState } from 'react';
import { confirmed, toastDone } from '../../lib/errors.tsx';
import { queryClient } from '../../lib/query.ts';
import { type Answers, api, type Inputs, trpc } from '../../lib/trpc.ts';
import { CodeBlock } from '../../ui/code.tsx';
import { ConfirmDialog } from '../../ui/confirm.tsx';
import { CopyButton, Id } from '../../ui/copy.tsx';
import { DataTable } from '../../ui/data-table.tsx';
import { NothingMatches } from '../../ui/filters.tsx';
import { Notice } from '../../ui/notice.tsx';
import { Page } from '../../ui/page.tsx';
import { EmptyState, Shown } from '../../ui/states.tsx';
import { When } from '../../ui/time.tsx';
import { DeliveryDrawer, useRedeliver } from './delivery.tsx';
import { newSecret, SubscriptionDialog } from './form.tsx';
import { SAMPLES, type Sample } from './samples.ts';
import { DESTINATION, type Delivery, DeliveryTag, eventsOf, RESULT, StateTag, type Subscription } from './words.tsx';

const route = getRouteApi('/app/subscriptions/$id');
const again = () => queryClient.invalidateQueries(trpc.subscriptions.pathFilter());

/** One subscription: its test, its deliveries, and what can be done with it. */
export function SubscriptionPage() {
  const { id } = route.useParams();
  const query = useQuery(trpc.subscriptions.get.queryOptions({ id }, { refetchInterval: 10_000 }));
  const test = useMutation(trpc.subscriptions.test.mutationOptions());
  const [open, setOpen] = useState<'edit' | 'rotate' | 'remove'>();
  const navigate = useNavigate();
  const active = useMutation(
    trpc.subscriptions.update.mutationOptions({
      onSuccess: (made) => toastDone(made.active ? 'Events are sent again' : 'Paused: what was queued is not sent'),
      onSettled: again,
    }),
  );
  const shown = query.data;
  const title = shown ? `${DESTINATION[shown.destination_type][0]} subscription` : 'Subscription';
  return (
    <Page
      title={title}
      lead={shown ? <span className="mono">{shown.url}</span> : undefined}
      actions={
        shown ? (
          <>
            <Button
              leftSection={<IconSend size={16} aria-hidden />}
              loading={test.isPending}
              onClick={() => test.mutate({ id })}
            >
              Send a test
            </Button>
            <Button variant="default" onClick={() => setOpen('edit')}>
              Change
            </Button>
            <Button
              variant="default"
              leftSection={
                shown.active ? <IconPlayerPause size={16} aria-hidden /> : <IconPlayerPlay size={16} aria-hidden />
              }
              loading={active.isPending}
              onClick={() => active.mutate({ id, active: !shown.active })}
            >
              {shown.active ? 'Pause' : 'Resume'}
            </Button>
            {shown.destination_type === 'webhook' ? (
              <Button
                variant="default"
                leftSection={<IconRefresh size={16} aria-hidden />}
                onClick={() => setOpen('rotate')}
              >
                Rotate the secret
              </Button>
            ) : null}
            <Button variant="default" onClick={() => setOpen('remove')}>
              Delete
            </Button>
          </>
        ) : null
      }
    >
      <Shown query={query}>
        {(subscription) => (
          <Stack gap="lg">
            <Facts subscription={subscription} />
            {test.data ? <TestResult result={test.data} /> : null}
            <Deliveries id={id} />
            {subscription.destination_type === 'webhook' ? <Samples /> : null}
            <SubscriptionDialog opened={open === 'edit'} onClose={() => setOpen(undefined)} edited={subscription} />
            <Modal
              opened={open === 'rotate'}
              onClose={() => setOpen(undefined)}
              title={<strong>Rotate the secret</strong>}
            >
              <Rotate id={id} onDone={() => setOpen(undefined)} />
            </Modal>
            <ConfirmDialog
              opened={open === 'remove'}
              onClose={() => setOpen(undefined)}
              title="Delete the subscription"
              action="Delete it"
              onConfirm={async () => {
                await confirmed(() => api.subscriptions.remove.mutate({ id }));
                await navigate({ to: '/subscriptions' });
                await again();
              }}
            >
              What is queued is not sent, and its deliveries are no longer shown.
            </ConfirmDialog>
          </Stack>
        )}
      </Shown>
    </Page>
  );
}

function Facts({ subscription }: { subscription: Subscription }) {
  const { disabled_at, disabled_reason, failing_since, previous_secret_until, destination_config } = subscription;
  return (
    <Paper>
      {disabled_at ? (
        <Notice tone="bad" title="The server stopped sending there">
          <When at={disabled_at} />: {disabled_reason} Mend the destination, test it, and resume.
        </Notice>
      ) : null}
      <dl className="facts">
        <dt>State</dt>
        <dd>
          <StateTag subscription={subscription} />
          {failing_since && !disabled_at ? (
            <>
              {' '}
              nothing was accepted since <When at={failing_since} />
            </>
          ) : null}
        </dd>
        <dt>Events</dt>
        <dd>{subscription.event_types.length > 3 ? subscription.event_types.join(', ') : eventsOf(subscription)}</dd>
        {destination_config.app_url ? (
          <>
            <dt>Buttons lead to</dt>
            <dd className="mono">{destination_config.app_url}</dd>
          </>
        ) : null}
        {previous_secret_until ? (
          <>
            <dt>Secret</dt>
            <dd>
              the one before signs as well, until <When at={previous_secret_until} />
            </dd>
          </>
        ) : null}
        <dt>Id</dt>
        <dd>
          <Id value={subscription.id} length={40} />
        </dd>
      </dl>
    </Paper>
  );
}

function TestResult({ result }: { result: Answers['subscriptions']['test'] }) {
  const { delivered, result: code, reason, http_status, duration_ms, payload } = result;
  const Shape = delivered ? IconCheck : IconX;
  return (
    <section aria-label="Result of the test" role="status">
      <div className="verdict" data-tone={delivered ? 'ok' : 'bad'}>
        <Shape size={24} aria-hidden />
        <strong>{delivered ? 'The test arrived' : `The test did not arrive: ${RESULT[code]}`}</strong>
        <div>
          {reason} <span className="mono">{code}</span>
          {http_status ? ` · status ${http_status}` : ''} · {duration_ms} ms
        </div>
      </div>
      {payload ? (
        <details style={{ marginTop: 8 }}>
          <summary>The payload that was sent</summary>
          <CodeBlock text={JSON.stringify(payload, null, 2)} label="payload" maxHeight={320} />
        </details>
      ) : null}
    </section>
  );
}

type Filter = Pick<Inputs['subscriptions']['deliveries'], 'status' | 'event_type'>;

function Deliveries({ id }: { id: string }) {
  const [filter, setFilter] = useState<Filter>({});
  const types = useQuery(trpc.subscriptions.eventTypes.queryOptions({}, { staleTime: Number.POSITIVE_INFINITY }));
  const query = useInfiniteQuery({
    queryKey: [...trpc.subscriptions.deliveries.queryKey({ id, ...filter }), 'pages'],
    queryFn: ({ pageParam, signal }) =>
      api.subscriptions.deliveries.query({ id, ...filter, limit: 25, cursor: pageParam }, { signal }),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: ({ next_cursor }) => next_cursor ?? undefined,
    refetchInterval: 3_000,
  });
  const redeliver = useRedeliver();
  const { delivery: opened } = route.useSearch();
  const navigate = route.useNavigate();
  const show = (delivery: string | undefined) =>
    void navigate({ search: { delivery }, replace: delivery === undefined, resetScroll: false });
  return (
    <section aria-labelledby="deliveries-title">
      <Group justify="space-between" align="flex-end" mb="xs">
        <Title order={2} size="h3" id="deliveries-title">
          Deliveries
        </Title>
        <Group gap="xs">
          <NativeSelect
            aria-label="State of the deliveries"
            value={filter.status ?? ''}
            onChange={(event) =>
              setFilter({ ...filter, status: (event.currentTarget.value || undefined) as Filter['status'] })
            }
            data={[{ value: '', label: 'any state' }, 'retrying', 'delivered', 'failed']}
          />
          <NativeSelect
            aria-label="Event of the deliveries"
            value={filter.event_type ?? ''}
            onChange={(event) =>
              setFilter({ ...filter, event_type: (event.currentTarget.value || undefined) as Filter['event_type'] })
            }
            data={[{ value: '', label: 'any event' }, ...(types.data?.event_types.map(({ type }) => type) ?? [])]}
          />
        </Group>
      </Group>
      <DataTable<Delivery>
        label="Deliveries"
        rows={query.data?.pages.flatMap(({ deliveries }) => deliveries)}
        error={query.error}
        retry={() => void query.refetch()}
        rowKey={({ id: delivery }) => delivery}
        onOpen={({ id: delivery }) => show(delivery)}
        selected={opened}
        empty={
          filter.status || filter.event_type ? (
            <NothingMatches icon={IconSend} title="No delivery fits the filters" clear={() => setFilter({})} />
          ) : (
            <EmptyState icon={IconSend} title="No delivery">
              Each event that is sent there is listed here for 30 days, with every answer. A test is not.
            </EmptyState>
          )
        }
        columns={[
          {
            header: 'Event',
            main: true,
            cell: ({ id: delivery, event_type, event_id, created_at }) => (
              <div>
                <Anchor
                  component="button"
                  type="button"
                  c="inherit"
                  fw={600}
                  ta="left"
                  onClick={() => show(delivery)}
                  aria-label={`${event_type}: details`}
                >
                  {event_type}
                </Anchor>
                <Text size="xs" c="dimmed" component="div" fw={400}>
                  <When at={created_at} /> · <Id value={event_id} length={22} />
                </Text>
              </div>
            ),
          },
          { header: 'State', bare: true, cell: (delivery) => <DeliveryTag delivery={delivery} /> },
          { header: 'Attempts', align: 'right', cell: ({ attempts }) => attempts },
          {
            header: 'Last answer',
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
            cell: ({ next_attempt_at }) => (next_attempt_at ? <When at={next_attempt_at} /> : null),
          },
          {
            header: 'Actions',
            align: 'right',
            cell: (delivery) => (
              <Button
                size="compact-sm"
                variant="default"
                disabled={redeliver.isPending}
                onClick={() => redeliver.mutate({ id, delivery_id: delivery.id })}
              >
                Send again
              </Button>
            ),
          },
        ]}
      />
      {query.hasNextPage ? (
        <Button
          mt="xs"
          size="xs"
          variant="default"
          loading={query.isFetchingNextPage}
          onClick={() => void query.fetchNextPage()}
        >
          Older deliveries
        </Button>
      ) : null}
      <DeliveryDrawer id={id} delivery_id={opened} onClose={() => show(undefined)} />
    </section>
  );
}

const OVERLAPS = [
  { value: '0', label: 'none: the old one ends now' },
  { value: '3600', label: '1 hour' },
  { value: '86400', label: '24 hours' },
  { value: '604800', label: '7 days' },
];

function Rotate({ id, onDone }: { id: string; onDone: () => void }) {
  const [secret, setSecret] = useState(newSecret);
  const [overlap, setOverlap] = useState('86400');
  const rotate = useMutation(
    trpc.subscriptions.update.mutationOptions({
      onSuccess: () => {
        toastDone('The new secret signs');
        onDone();
      },
      onSettled: again,
    }),
  );
  const submit = (event: FormEvent) => {
    event.preventDefault();
    rotate.mutate({ id, secret, secret_overlap_seconds: Number(overlap) });
  };
  return (
    <form onSubmit={submit}>
      <Stack gap="sm">
        <TextInput
          label="New secret"
          description="Give it to the receiver now: it is not shown again"
          required
          spellCheck={false}
          autoComplete="off"
          value={secret}
          onChange={(event) => setSecret(event.currentTarget.value)}
          rightSection={<CopyButton text={secret} label="Copy the secret" />}
        />
        <NativeSelect
          label="Both sign for"
          description="A receiver that knows either of them goes on working"
          value={overlap}
          onChange={(event) => setOverlap(event.currentTarget.value)}
          data={OVERLAPS}
        />
        <Group justify="flex-end">
          <Button type="submit" loading={rotate.isPending}>
            Rotate
          </Button>
        </Group>
      </Stack>
    </form>
  );
}

function Samples() {
  const [name, setName] = useState<Sample>('Node.js');
  return (
    <Paper component="section" aria-labelledby="sample-title">
      <Title order={2} size="h3" id="sample-title">
        A receiver
      </Title>
      <Text c="dimmed" mb="sm">
        It checks the signature over the bytes as they came, refuses what is old, and answers 2xx within 10 seconds.
        More libraries at <Anchor href="https://www.standardwebhooks.com">standardwebhooks.com</Anchor>.
      </Text>
      {/* biome-ignore lint/a11y/useSemanticElements: a fieldset is for what a form sends */}
      <div className="segments" role="group" aria-label="Language" style={{ marginBottom: 8 }}>
        {(Object.keys(SAMPLES) as Sample[]).map((sample) => (
          <button key={sample} type="button" aria-pressed={sample === name} onClick={() => setName(sample)}>
            {sample}
          </button>
        ))}
      </div>
      <CodeBlock text={SAMPLES[name]} label={`receiver, ${name}`} maxHeight={420} />
    </Paper>
  );
}
