import '@mantine/core/styles/Radio.css';
import { Button, Modal, Paper, Radio, Stack } from '@mantine/core';
import { IconCheck, IconPlayerPause, IconPlayerPlay, IconRefresh, IconSend, IconX } from '@tabler/icons-react';
import { useMutation, useQuery } from '@tanstack/react-query';
import { getRouteApi, useNavigate } from '@tanstack/react-router';
import { useState } from 'react';
import { kindOf } from '../../../server/domain/destinations.ts';
import { confirmed, toastDone } from '../../lib/errors.tsx';
import { queryClient } from '../../lib/query.ts';
import { type Answers, api, trpc } from '../../lib/trpc.ts';
import { count } from '../../lib/words.ts';
import { Broken } from '../../ui/broken.tsx';
import { CodeBlock } from '../../ui/code.tsx';
import { ConfirmDialog } from '../../ui/confirm.tsx';
import { Id } from '../../ui/copy.tsx';
import { PageLink } from '../../ui/link.tsx';
import { Notice } from '../../ui/notice.tsx';
import { Page } from '../../ui/page.tsx';
import { Shown } from '../../ui/states.tsx';
import { When } from '../../ui/time.tsx';
import { Attempts } from './attempts.tsx';
import { Deliveries } from './deliveries.tsx';
import { Examples } from './examples.tsx';
import { ExchangeLines } from './exchange.tsx';
import { SubscriptionDialog } from './form.tsx';
import { RotateSecret } from './rotate.tsx';
import type { SubscriptionSearch } from './search.ts';
import { Arrived, eventsOf, RESULT, StateTag, type Subscription } from './words.tsx';

const route = getRouteApi('/app/subscriptions/$id');
const again = () => queryClient.invalidateQueries(trpc.subscriptions.pathFilter());

/** One subscription: its settings, test, attempts and deliveries over time, examples of its events, and actions. */
export function SubscriptionPage() {
  const { id } = route.useParams();
  const search = route.useSearch();
  const goTo = route.useNavigate();
  const show = (change: SubscriptionSearch) =>
    void goTo({ search: (old) => ({ ...old, ...change }), resetScroll: false });
  const query = useQuery(trpc.subscriptions.get.queryOptions({ id }, { refetchInterval: 10_000 }));
  const test = useMutation(trpc.subscriptions.test.mutationOptions());
  const [open, setOpen] = useState<'edit' | 'rotate' | 'remove' | 'pause'>();
  const [keep, setKeep] = useState(false);
  const navigate = useNavigate();
  const active = useMutation(
    trpc.subscriptions.update.mutationOptions({
      onSuccess: (made) =>
        toastDone(
          made.active
            ? 'Resumed: what is queued is sent in order'
            : made.queues
              ? 'Paused: events are queued'
              : 'Paused: nothing is queued',
        ),
      onSettled: again,
    }),
  );
  if (query.error && !query.data) return <Broken error={query.error} reset={() => void query.refetch()} />;
  const shown = query.data;
  const title = shown ? `${kindOf(shown.destination_type).label} subscription` : 'Subscription';
  return (
    <Page
      title={title}
      lead={shown ? <span className="mono">{shown.url}</span> : undefined}
      actions={
        shown ? (
          <>
            <Button variant="default" onClick={() => setOpen('remove')}>
              Delete
            </Button>
            <Button variant="default" onClick={() => setOpen('edit')}>
              Edit
            </Button>
            <Button
              variant="default"
              leftSection={
                shown.active ? <IconPlayerPause size={16} aria-hidden /> : <IconPlayerPlay size={16} aria-hidden />
              }
              loading={active.isPending}
              onClick={() => (shown.active ? setOpen('pause') : active.mutate({ id, active: true }))}
            >
              {shown.active ? 'Pause' : 'Resume'}
            </Button>
            {kindOf(shown.destination_type).proof === 'signature' ? (
              <Button
                variant="default"
                leftSection={<IconRefresh size={16} aria-hidden />}
                onClick={() => setOpen('rotate')}
              >
                Rotate secret
              </Button>
            ) : null}
            <Button
              leftSection={<IconSend size={16} aria-hidden />}
              loading={test.isPending}
              onClick={() => test.mutate({ id })}
            >
              Send a test
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
            <Attempts id={id} search={search} set={show} />
            <Deliveries id={id} paused={!subscription.active} search={search} set={show} />
            <Examples subscription={subscription} />
            <SubscriptionDialog opened={open === 'edit'} onClose={() => setOpen(undefined)} edited={subscription} />
            <Modal opened={open === 'rotate'} onClose={() => setOpen(undefined)} title={<strong>Rotate secret</strong>}>
              <RotateSecret id={id} onDone={() => setOpen(undefined)} />
            </Modal>
            <ConfirmDialog
              opened={open === 'pause'}
              onClose={() => setOpen(undefined)}
              title="Pause the subscription"
              action="Pause"
              reason={{ label: 'Reason', required: true }}
              onConfirm={(reason) => active.mutateAsync({ id, active: false, paused_keep: keep, reason })}
            >
              <Radio.Group
                label="Nothing is sent while it is paused. What is queued now, and what happens meanwhile,"
                value={keep ? 'keep' : 'end'}
                onChange={(value) => setKeep(value === 'keep')}
              >
                <Stack gap={6} mt={6}>
                  <Radio
                    value="end"
                    label="is not sent"
                    description="What is queued now is listed below as failed, and can be sent again."
                  />
                  <Radio
                    value="keep"
                    label="waits, and is sent in order when you resume"
                    description="For 7 days and 10,000 events at most; what is older or more is listed as failed. After more than 24 hours each event gets one attempt."
                  />
                </Stack>
              </Radio.Group>
            </ConfirmDialog>
            <ConfirmDialog
              opened={open === 'remove'}
              onClose={() => setOpen(undefined)}
              title="Delete the subscription"
              action="Delete subscription"
              reason={{ label: 'Reason', required: true }}
              onConfirm={async (reason) => {
                await confirmed(() => api.subscriptions.remove.mutate({ id, reason }));
                await navigate({ to: '/subscriptions' });
                await again();
              }}
            >
              Nobody is notified there any more. Queued events are not sent, and past deliveries are no longer shown.
            </ConfirmDialog>
          </Stack>
        )}
      </Shown>
    </Page>
  );
}

function Facts({ subscription }: { subscription: Subscription }) {
  const { disabled_at, disabled_reason, failing_since, previous_secret_until, destination_config } = subscription;
  const { data } = useQuery(
    trpc.subscriptions.summary.queryOptions({ subscription_id: subscription.id }, { refetchInterval: 5_000 }),
  );
  const summary = data?.subscriptions[0];
  return (
    <Paper>
      {disabled_at ? (
        <Notice tone="bad" title="The server stopped sending to this destination">
          <When at={disabled_at} />: {disabled_reason} Fix the destination, test it, and resume.
        </Notice>
      ) : null}
      <dl className="facts">
        <dt>State</dt>
        <dd>
          <StateTag subscription={subscription} />
          {failing_since && !disabled_at ? (
            <>
              {' '}
              first failed <When at={failing_since} />
            </>
          ) : null}
        </dd>
        {summary ? (
          <>
            <dt>Delivered</dt>
            <dd>
              <Arrived summary={summary} />
              {summary.week.delivered === 0 || summary.p50_ms === null || summary.p95_ms === null
                ? ''
                : `; half within ${summary.p50_ms} ms, 95% within ${summary.p95_ms} ms`}
            </dd>
            {summary.waiting > 0 ? (
              <>
                <dt>Waiting</dt>
                <dd>
                  {count(summary.waiting, 'event')}
                  {subscription.active ? '' : ', until you resume'}
                </dd>
              </>
            ) : null}
            {summary.last_failure ? (
              <>
                <dt>Last failure</dt>
                <dd>
                  <PageLink
                    to="/subscriptions/$id/deliveries/$delivery"
                    params={{ id: subscription.id, delivery: summary.last_failure.delivery_id }}
                  >
                    <When at={summary.last_failure.at} />
                  </PageLink>
                  {summary.last_failure.reason ? `: ${summary.last_failure.reason}` : ''}
                </dd>
              </>
            ) : null}
          </>
        ) : null}
        <dt>Events</dt>
        <dd>{subscription.event_types.length > 3 ? subscription.event_types.join(', ') : eventsOf(subscription)}</dd>
        {destination_config.app_url ? (
          <>
            <dt>Buttons open</dt>
            <dd className="mono">{destination_config.app_url}</dd>
          </>
        ) : null}
        {previous_secret_until ? (
          <>
            <dt>Secret</dt>
            <dd>
              the previous secret also signs until <When at={previous_secret_until} />
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
        <strong>{delivered ? 'Test delivered' : `Test not delivered: ${RESULT[code]}`}</strong>
        <div>
          {reason} <span className="mono">{code}</span>
          {http_status ? ` · status ${http_status}` : ''} · {duration_ms} ms
        </div>
      </div>
      {payload ? (
        <details style={{ marginTop: 8 }}>
          <summary>Payload sent</summary>
          <CodeBlock text={JSON.stringify(payload, null, 2)} label="payload" maxHeight={320} />
        </details>
      ) : null}
      <ExchangeLines exchange={result} name="of the test" />
    </section>
  );
}
