import { Button, Group, Paper, Stack, Text, Title } from '@mantine/core';
import { IconCheck, IconRefresh, IconX } from '@tabler/icons-react';
import { useMutation, useQuery } from '@tanstack/react-query';
import { getRouteApi } from '@tanstack/react-router';
import type { ReactNode } from 'react';
import { kindOf } from '../../../server/domain/destinations.ts';
import { postCommand } from '../../lib/curl.ts';
import { toastDone } from '../../lib/errors.tsx';
import { later } from '../../lib/later.tsx';
import { queryClient } from '../../lib/query.ts';
import { type Answers, trpc } from '../../lib/trpc.ts';
import { Broken } from '../../ui/broken.tsx';
import { CodeBlock } from '../../ui/code.tsx';
import { CopyLink, Id } from '../../ui/copy.tsx';
import { Hostile } from '../../ui/hostile.tsx';
import { PageLink } from '../../ui/link.tsx';
import { Notice } from '../../ui/notice.tsx';
import { Page } from '../../ui/page.tsx';
import { Loading } from '../../ui/states.tsx';
import { Tag } from '../../ui/status.tsx';
import { When } from '../../ui/time.tsx';
import { ExchangeLines } from './exchange.tsx';
import { DeliveryTag, RESULT } from './words.tsx';

const CurrentState = later(async () => (await import('../../parts/machine/standing.tsx')).CurrentState, {
  meanwhile: <Loading lines={5} />,
  soon: true,
});

const route = getRouteApi('/app/subscriptions/$id/deliveries/$delivery');

type DeliveryDetail = Answers['subscriptions']['delivery'];
type Attempt = DeliveryDetail['history'][number];

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

/** One delivery: what was sent, each attempt with its response, what it is about, and the possible next steps. */
export function DeliveryPage() {
  const { id, delivery: delivery_id } = route.useParams();
  const which = { id, delivery_id };
  // attempts send no hints
  const often = { refetchInterval: 3_000 };
  const query = useQuery(trpc.subscriptions.delivery.queryOptions(which, often));
  const subscription = useQuery(trpc.subscriptions.get.queryOptions({ id }, { refetchInterval: 10_000 }));
  const standing = useQuery(trpc.machines.delivery.queryOptions(which, often));
  const redeliver = useRedeliver();
  if (query.error && !query.data) return <Broken error={query.error} reset={() => void query.refetch()} />;
  const delivery = query.data;
  if (!delivery) {
    return (
      <Page title="Delivery">
        <Loading lines={10} />
      </Page>
    );
  }
  const to = subscription.data;
  const paused = to?.active === false;
  return (
    <Page
      title={`Delivery of ${delivery.event_type}`}
      lead={
        <>
          to{' '}
          <PageLink to="/subscriptions/$id" params={{ id }}>
            {to ? kindOf(to.destination_type).label : 'the subscription'}
          </PageLink>{' '}
          {to ? <span className="mono">{to.url}</span> : null}
        </>
      }
      docs={[['webhooks', 'Webhooks, Slack and Teams']]}
      actions={
        <>
          <CopyLink />
          <Button
            leftSection={<IconRefresh size={16} aria-hidden />}
            loading={redeliver.isPending}
            disabled={to === undefined || paused}
            title={paused ? 'Resume the subscription first' : undefined}
            onClick={() => redeliver.mutate(which)}
          >
            Send again
          </Button>
        </>
      }
    >
      <Stack gap="lg">
        <Facts delivery={delivery} paused={paused} />
        <Attempts delivery={delivery} />
        <Sent delivery={delivery} to={to && kindOf(to.destination_type).proof === 'signature' ? to.url : undefined} />
        <CurrentState machine="delivery" query={standing} />
      </Stack>
    </Page>
  );
}

function Facts({ delivery, paused }: { delivery: DeliveryDetail; paused: boolean }) {
  const about = subjectOf(delivery.payload);
  return (
    <Paper>
      <dl className="facts">
        <dt>State</dt>
        <dd>
          <DeliveryTag delivery={delivery} paused={paused} /> {delivery.test ? <Tag tone="quiet">test</Tag> : null}
        </dd>
        {about ? (
          <>
            <dt>About</dt>
            <dd>{about}</dd>
          </>
        ) : null}
        <dt>Queued</dt>
        <dd>
          <When at={delivery.created_at} exact />
        </dd>
        {delivery.next_attempt_at && !paused ? (
          <>
            <dt>Next attempt</dt>
            <dd>
              <When at={delivery.next_attempt_at} />
            </dd>
          </>
        ) : null}
        <dt>Event</dt>
        <dd>
          <Id value={delivery.event_id} length={34} />
        </dd>
        <dt>Delivery</dt>
        <dd>
          <Id value={delivery.id} length={34} />
        </dd>
      </dl>
    </Paper>
  );
}

/** A link to the subject of an event. The names in it were chosen by others. */
function subjectOf(payload: DeliveryDetail['payload']): ReactNode {
  const text = (name: string) => (typeof payload[name] === 'string' ? (payload[name] as string) : undefined);
  const [hold, policy, made, list] = ['escrow_id', 'policy_id', 'package_id', 'list'].map(text);
  const [proxy, server, tool] = ['proxy_id', 'tool_server', 'tool_name'].map(text);
  if (hold) {
    return (
      <PageLink to="/approvals/$id" params={{ id: hold }}>
        the held action
      </PageLink>
    );
  }
  if (policy) {
    const { version } = payload;
    return (
      <>
        <PageLink to="/policies/$id" params={{ id: policy }} search={{ tab: 'history' }}>
          policy <Hostile text={policy} />
        </PageLink>
        {typeof version === 'number' ? `, version ${version}` : ''}
      </>
    );
  }
  if (made) {
    return (
      <PageLink to="/forensics/packages/$id" params={{ id: made }}>
        the evidence package
      </PageLink>
    );
  }
  if (list) {
    return (
      <PageLink to="/lists/$name" params={{ name: list }}>
        list <Hostile text={list} />
      </PageLink>
    );
  }
  if (text('stop_id')) return <PageLink to="/stops">the stop</PageLink>;
  if (proxy) {
    return (
      <PageLink to="/proxies/proxy" search={{ id: proxy }}>
        proxy <Hostile text={proxy} />
      </PageLink>
    );
  }
  if (tool && server) {
    return (
      <PageLink to="/tools/tool" search={{ name: tool, server }}>
        tool <Hostile text={tool} name />
      </PageLink>
    );
  }
  if (server) {
    return (
      <PageLink to="/tools">
        tools of <Hostile text={server} name />
      </PageLink>
    );
  }
  if (text('key_id')) return <PageLink to="/keys">the key</PageLink>;
  return null;
}

function Attempts({ delivery: { attempts, history, failure_reason, status, note } }: { delivery: DeliveryDetail }) {
  const unknown = attempts - history.length;
  // what ended it without an attempt, such as a full queue
  const stopped = status === 'failed' && failure_reason !== history[0]?.reason ? failure_reason : null;
  return (
    <Paper component="section" aria-labelledby="attempts-title">
      <Title order={2} size="h3" id="attempts-title" mb={4}>
        {attempts === 1 ? '1 attempt' : `${attempts} attempts`}
      </Title>
      {stopped ? <Text mb={4}>{stopped}</Text> : null}
      {attempts === 0 ? <Text c="dimmed">No attempts yet.</Text> : null}
      <ol className="lines" aria-label="Attempts, newest first">
        {history.map((attempt, n) => (
          <li key={attempt.at} style={{ paddingInline: 0 }}>
            <AttemptLines attempt={attempt} note={n === 0 ? note : undefined} open={n === 0} />
          </li>
        ))}
      </ol>
      {unknown > 0 ? (
        <Text size="sm" c="dimmed">
          {unknown === 1 ? 'An earlier one is' : `${unknown} earlier ones are`} not kept.
        </Text>
      ) : null}
    </Paper>
  );
}

function AttemptLines({ attempt, note, open }: { attempt: Attempt; note: string | undefined; open: boolean }) {
  const { at, result, http_status, reason, duration_ms } = attempt;
  return (
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
        {reason ?? note}
      </Text>
      <Text size="xs" c="dimmed">
        <When at={at} exact />
      </Text>
      <ExchangeLines exchange={attempt} name={at} open={open} />
    </div>
  );
}

/** What was sent. `to` is the destination, given only if a signature authenticates: the URL of a chat is itself a secret. */
function Sent({
  delivery: { body, payload, attempts, history },
  to,
}: {
  delivery: DeliveryDetail;
  to?: string | undefined;
}) {
  const headers = Object.entries(history[0]?.headers ?? {}).flatMap(([name, value]) =>
    value === null ? [] : [[name, value] as const],
  );
  return (
    <Paper component="section" aria-labelledby="sent-title">
      <Title order={2} size="h3" id="sent-title" mb="xs">
        {body === null ? 'Event' : attempts === 0 ? 'Payload to send' : 'Payload sent'}
      </Title>
      {body === null ? (
        <Notice tone="wait" title="What was sent cannot be shown as it was">
          Parts of the event were removed after their retention, or the settings of the chat or this server’s version
          have changed since. This is the event as it is kept.
        </Notice>
      ) : null}
      <CodeBlock
        text={body === null ? JSON.stringify(payload, null, 2) : pretty(body)}
        label="payload"
        maxHeight={480}
      />
      {body === null ? null : (
        <details style={{ marginTop: 8 }}>
          <summary>The bytes that are signed</summary>
          <CodeBlock text={body} label="bytes" wrap maxHeight={320} />
        </details>
      )}
      {body === null || to === undefined || headers.length === 0 ? null : (
        <details style={{ marginTop: 8 }}>
          <summary>The last request as curl</summary>
          <CodeBlock text={postCommand(to, Object.fromEntries(headers), body)} label="curl" wrap maxHeight={320} />
        </details>
      )}
    </Paper>
  );
}

const pretty = (body: string) => JSON.stringify(JSON.parse(body), null, 2);
