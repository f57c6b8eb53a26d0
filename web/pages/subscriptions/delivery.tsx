import '@mantine/core/styles/Drawer.css';
import { Button, Drawer, Group, Stack, Text, Title } from '@mantine/core';
import { IconCheck, IconRefresh, IconX } from '@tabler/icons-react';
import { useMutation, useQuery } from '@tanstack/react-query';
import { lazy, Suspense } from 'react';
import { toastDone } from '../../lib/errors.tsx';
import { queryClient } from '../../lib/query.ts';
import { type Answers, trpc } from '../../lib/trpc.ts';
import { Id } from '../../ui/copy.tsx';
import { Loading, Shown } from '../../ui/states.tsx';
import { Tag } from '../../ui/status.tsx';
import { When } from '../../ui/time.tsx';
import { DeliveryTag, RESULT } from './words.tsx';

const CurrentState = lazy(() =>
  import('../../parts/machine/standing.tsx').then((module) => ({ default: module.CurrentState })),
);

type DeliveryDetail = Answers['subscriptions']['delivery'];
/** Identifies a delivery of a subscription. */
interface DeliveryRef {
  id: string;
  delivery_id: string;
}

/** Queues a delivery again. */
export function useRedeliver() {
  return useMutation(
    trpc.subscriptions.redeliver.mutationOptions({
      onSuccess: () => toastDone('Queued again', 'The receiver gets the same event id again.'),
      onSettled: () =>
        Promise.all(
          [trpc.subscriptions.pathFilter(), trpc.machines.delivery.pathFilter()].map((filter) =>
            queryClient.invalidateQueries(filter),
          ),
        ),
    }),
  );
}

/** One delivery: its attempts, its current state, and the possible next steps. */
export function DeliveryDrawer({
  id,
  delivery_id,
  onClose,
}: {
  id: string;
  /** The drawer is open while this is set. */
  delivery_id: string | undefined;
  onClose: () => void;
}) {
  return (
    <Drawer
      opened={delivery_id !== undefined}
      onClose={onClose}
      position="right"
      size="lg"
      title={<strong>Delivery</strong>}
    >
      {delivery_id === undefined ? null : <Body id={id} delivery_id={delivery_id} />}
    </Drawer>
  );
}

function Body(which: DeliveryRef) {
  // attempts send no hints
  const often = { refetchInterval: 3_000 };
  const query = useQuery(trpc.subscriptions.delivery.queryOptions(which, often));
  const standing = useQuery(trpc.machines.delivery.queryOptions(which, often));
  const redeliver = useRedeliver();
  return (
    <Stack gap="lg">
      <Shown query={query} lines={10}>
        {(delivery) => (
          <>
            <div>
              <Group justify="space-between" mb="sm" gap="xs">
                <Text size="lg" fw={650}>
                  {delivery.event_type} <DeliveryTag delivery={delivery} />
                </Text>
                <Button
                  size="xs"
                  variant="default"
                  leftSection={<IconRefresh size={15} aria-hidden />}
                  loading={redeliver.isPending}
                  onClick={() => redeliver.mutate(which)}
                >
                  Send again
                </Button>
              </Group>
              <dl className="facts">
                <dt>Event</dt>
                <dd>
                  <Id value={delivery.event_id} length={34} />
                </dd>
                <dt>Delivery</dt>
                <dd>
                  <Id value={delivery.id} length={34} />
                </dd>
                <dt>Queued</dt>
                <dd>
                  <When at={delivery.created_at} exact />
                </dd>
                {delivery.next_attempt_at ? (
                  <>
                    <dt>Next attempt</dt>
                    <dd>
                      <When at={delivery.next_attempt_at} />
                    </dd>
                  </>
                ) : null}
              </dl>
            </div>
            <Attempts delivery={delivery} />
          </>
        )}
      </Shown>
      <Suspense fallback={<Loading lines={5} />}>
        <CurrentState machine="delivery" query={standing} />
      </Suspense>
    </Stack>
  );
}

function Attempts({ delivery: { attempts, history, failure_reason, status, note } }: { delivery: DeliveryDetail }) {
  const unknown = attempts - history.length;
  // what ended it without an attempt, such as a pause
  const stopped = status === 'failed' && failure_reason !== history[0]?.reason ? failure_reason : null;
  return (
    <section aria-labelledby="attempts-title">
      <Title order={2} size="h3" id="attempts-title" mb={4}>
        {attempts === 1 ? '1 attempt' : `${attempts} attempts`}
      </Title>
      {stopped ? <Text mb={4}>{stopped}</Text> : null}
      {attempts === 0 ? <Text c="dimmed">No attempts yet.</Text> : null}
      <ol className="lines" aria-label="Attempts, newest first">
        {history.map(({ at, result, http_status, reason, duration_ms }, n) => (
          <li key={at} style={{ paddingInline: 0 }}>
            <div className="lines-main">
              <Group gap={8}>
                <Tag tone={result === 'DELIVERED' ? 'ok' : 'bad'} icon={result === 'DELIVERED' ? IconCheck : IconX}>
                  {RESULT[result]}
                </Tag>
                <Text size="sm" c="dimmed" span>
                  {http_status === null ? '' : `status ${http_status} · `}
                  {duration_ms} ms
                </Text>
              </Group>
              <Text size="sm" mt={2}>
                {reason ?? (n === 0 ? note : undefined)}
              </Text>
              <Text size="xs" c="dimmed">
                <When at={at} exact />
              </Text>
            </div>
          </li>
        ))}
      </ol>
      {unknown > 0 ? (
        <Text size="sm" c="dimmed">
          {unknown === 1 ? 'An earlier one is' : `${unknown} earlier ones are`} not kept.
        </Text>
      ) : null}
    </section>
  );
}
