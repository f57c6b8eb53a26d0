import { Group, Paper, Text, Title } from '@mantine/core';
import { IconClockPause, IconGitPullRequest, IconLink, IconRocket, IconRouter, IconWebhook } from '@tabler/icons-react';
import { keepPreviousData, useQuery } from '@tanstack/react-query';
import { type ReactNode, useState } from 'react';
import { problemOf } from '../../lib/errors.tsx';
import { useMe } from '../../lib/session.ts';
import { trpc } from '../../lib/trpc.ts';
import { useLastVerified } from '../../lib/verified.ts';
import { actionTitle, count, money } from '../../lib/words.ts';
import { ButtonLink, PageLink } from '../../ui/link.tsx';
import { Page } from '../../ui/page.tsx';
import { EmptyState, Shown } from '../../ui/states.tsx';
import { DecisionTag, type Tone } from '../../ui/status.tsx';
import { Clock, Countdown, When } from '../../ui/time.tsx';
import { DecisionChart } from './chart.tsx';
import './overview.css';

const SPANS = [
  { hours: 24, buckets: 24, label: '24 hours' },
  { hours: 168, buckets: 28, label: '7 days' },
  { hours: 720, buckets: 30, label: '30 days' },
] as const;

/** At a glance: what was decided, what is waiting, and whether policies are enforced and records provable. */
export function Overview() {
  const [span, setSpan] = useState<(typeof SPANS)[number]>(SPANS[0]);
  const summary = useQuery(
    trpc.events.summary.queryOptions(
      { hours: span.hours, buckets: span.buckets },
      { placeholderData: keepPreviousData, refetchInterval: 60_000 },
    ),
  );
  const policies = useQuery(trpc.policies.list.queryOptions({ limit: 1 }));
  const fresh = policies.data?.total === 0 && summary.data?.head === null;
  return (
    <Page title="Overview">
      {fresh ? (
        <Paper mb="md">
          <EmptyState
            icon={IconRocket}
            title="No governed calls yet"
            action={<ButtonLink to="/start">Make the first governed call</ButtonLink>}
          >
            Create a policy from a template and a key for an agent, then watch the first decision arrive here.
          </EmptyState>
        </Paper>
      ) : null}
      <div className="tiles">
        <Holds />
        <Reviews />
        <Fleet />
        <Destinations />
        <Chain head={summary.data?.head} />
      </div>
      <Paper mt="md">
        <Group justify="space-between" mb="sm">
          <Title order={2}>Decisions</Title>
          <fieldset className="segments" aria-label="Time span">
            {SPANS.map((one) => (
              <button key={one.hours} type="button" aria-pressed={one === span} onClick={() => setSpan(one)}>
                {one.label}
              </button>
            ))}
          </fieldset>
        </Group>
        <Shown query={summary} lines={8}>
          {(data) => (
            <>
              <DecisionChart buckets={data.buckets} hours={span.hours} />
              {data.complete_since ? (
                <Text size="xs" c="dimmed" mt="xs">
                  Counts before <When at={data.complete_since} exact /> are incomplete because there were too many
                  decisions.
                </Text>
              ) : null}
            </>
          )}
        </Shown>
      </Paper>
      <div className="halves">
        <Waiting />
        <Denied />
      </div>
    </Page>
  );
}

function Tile({
  icon: Shape,
  title,
  to,
  value,
  tone,
  children,
}: {
  icon: typeof IconLink;
  title: string;
  to?: string;
  value: ReactNode;
  tone?: Tone;
  children?: ReactNode;
}) {
  return (
    <Paper className="tile" data-tone={tone}>
      <div className="tile-title">
        <Shape size={17} stroke={1.7} aria-hidden />
        {to ? (
          <PageLink to={to} c="inherit" inherit>
            {title}
          </PageLink>
        ) : (
          title
        )}
      </div>
      <div className="tile-value">{value}</div>
      <div className="tile-note">{children}</div>
    </Paper>
  );
}

/** The holds that expire soonest. */
const useHeld = () => useQuery(trpc.escrow.list.queryOptions({ status: 'held', order: 'expires_at', limit: 5 }));

function Holds() {
  const { data } = useHeld();
  const next = data?.holds[0];
  return (
    <Tile
      icon={IconClockPause}
      title="Pending approvals"
      to="/approvals"
      value={data?.total ?? '–'}
      tone={data?.total ? 'wait' : undefined}
    >
      {next ? <Countdown until={next.expires_at} /> : 'none waiting'}
    </Tile>
  );
}

function Reviews() {
  const { data } = useQuery(trpc.policies.list.queryOptions({ review: 'open', limit: 1 }));
  const first = data?.policies[0];
  const broken = first?.open_review;
  return (
    <Tile
      icon={IconGitPullRequest}
      title="Policies to review"
      to="/review"
      value={data?.total ?? '–'}
      tone={broken ? 'bad' : data?.total ? 'wait' : undefined}
    >
      {first ? (
        <>
          {broken ? 'break glass: ' : null}
          {first.id}, <When at={broken?.opened_at ?? first.updated_at} />
        </>
      ) : (
        'all reviewed'
      )}
    </Tile>
  );
}

function Fleet() {
  const { data } = useQuery(trpc.proxies.list.queryOptions({}, { refetchInterval: 15_000 }));
  const proxies = data?.proxies ?? [];
  const stale = proxies.filter((proxy) => proxy.stale).length;
  const current = proxies.filter((proxy) => !proxy.stale && proxy.up_to_date === true).length;
  const well = current === proxies.length;
  return (
    <Tile
      icon={IconRouter}
      title="Proxies up to date"
      value={data ? (proxies.length === 0 ? 'none' : `${current} of ${proxies.length}`) : '–'}
      tone={stale > 0 ? 'bad' : well ? undefined : 'wait'}
    >
      {proxies.length === 0
        ? 'agents ask the control plane'
        : stale > 0
          ? `${count(stale, 'proxy is', 'proxies are')} silent`
          : well
            ? 'all enforce what was approved'
            : 'some still fetch it'}
    </Tile>
  );
}

/** Only admins can see destinations. */
function Destinations() {
  const me = useMe();
  const { data } = useQuery(
    trpc.subscriptions.list.queryOptions({}, { enabled: me.has('admin'), refetchInterval: 60_000 }),
  );
  if (!data || data.subscriptions.length === 0) return null;
  const failing = data.subscriptions.filter(({ failing_since }) => failing_since !== undefined);
  const since = failing.map(({ failing_since }) => failing_since ?? '').sort()[0];
  return (
    <Tile
      icon={IconWebhook}
      title="Failing destinations"
      value={failing.length === 0 ? 'none' : failing.length}
      tone={failing.length > 0 ? 'bad' : undefined}
    >
      {since ? (
        <>
          the first since <When at={since} />
        </>
      ) : (
        `${count(data.subscriptions.length, 'destination')} well`
      )}
    </Tile>
  );
}

function Chain({ head }: { head: { seq: number; at: string } | null | undefined }) {
  const checkpoint = useQuery(trpc.chain.checkpoint.queryOptions({}, { retry: false, refetchInterval: 60_000 }));
  const last = useLastVerified('forensics');
  const failed = last?.action === 'forensics.verification_failed';
  const none = checkpoint.error && problemOf(checkpoint.error).code === 'NOT_FOUND';
  return (
    <Tile
      icon={IconLink}
      title="Decision chain"
      to="/forensics"
      value={head ? `#${head.seq.toLocaleString()}` : '–'}
      tone={failed ? 'bad' : undefined}
    >
      {last ? (
        <div>
          {failed ? 'verification failed' : 'verified'} <When at={last.created_at} />
        </div>
      ) : last === null ? (
        <div>not verified by a person yet</div>
      ) : null}
      {checkpoint.data ? (
        <>
          signed up to #{checkpoint.data.seq.toLocaleString()}, <When at={checkpoint.data.created_at} />
        </>
      ) : none ? (
        'no checkpoints yet'
      ) : null}
    </Tile>
  );
}

function Waiting() {
  const held = useHeld();
  return (
    <Paper p={0}>
      <Group justify="space-between" px="md" pt="sm" pb="xs">
        <Title order={2}>Waiting for approval</Title>
        <PageLink to="/approvals" size="sm">
          All approvals
        </PageLink>
      </Group>
      <Shown query={held} lines={4}>
        {({ holds }) =>
          holds.length === 0 ? (
            <Text c="dimmed" px="md" pb="md">
              No actions are waiting.
            </Text>
          ) : (
            <ul className="lines">
              {holds.map((hold) => (
                <li key={hold.id}>
                  <div className="lines-main">
                    <PageLink to="/approvals/$id" params={{ id: hold.id }} fw={600} c="inherit">
                      {actionTitle(hold)}
                    </PageLink>
                    <div className="dim">
                      {hold.agent_id} ({hold.agent_role}) says “{hold.action_summary}” · {hold.current_approvals} of{' '}
                      {hold.required_approvals} approvals
                    </div>
                  </div>
                  <div className="lines-side">
                    {hold.estimated_value === null ? null : (
                      <strong>{money(hold.estimated_value, hold.value_currency)}</strong>
                    )}
                    <Countdown until={hold.expires_at} />
                  </div>
                </li>
              ))}
            </ul>
          )
        }
      </Shown>
    </Paper>
  );
}

function Denied() {
  const denied = useQuery(trpc.events.list.queryOptions({ decision: 'deny', limit: 5 }));
  return (
    <Paper p={0}>
      <Group justify="space-between" px="md" pt="sm" pb="xs">
        <Title order={2}>Recent denials</Title>
        <PageLink to="/decisions" search={{ decision: 'deny' }} size="sm">
          All denials
        </PageLink>
      </Group>
      <Shown query={denied} lines={4}>
        {({ events }) =>
          events.length === 0 ? (
            <Text c="dimmed" px="md" pb="md">
              No recent denials.
            </Text>
          ) : (
            <ul className="lines">
              {events.map((event) => (
                <li key={event.id}>
                  <div className="lines-main">
                    <PageLink to="/decisions" search={{ event: event.id }} fw={600} c="inherit">
                      {event.tool_name}
                    </PageLink>
                    <div className="dim">
                      {event.agent_id} · {event.deny_reason ?? 'no reason given'}
                    </div>
                  </div>
                  <div className="lines-side">
                    <DecisionTag decision={event.decision} />
                    <Clock at={event.created_at} />
                  </div>
                </li>
              ))}
            </ul>
          )
        }
      </Shown>
    </Paper>
  );
}
