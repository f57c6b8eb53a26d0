import { Group, Paper, Title } from '@mantine/core';
import { IconClockPause, IconGitPullRequest, IconLink, IconRocket, IconRouter, IconWebhook } from '@tabler/icons-react';
import { useQuery } from '@tanstack/react-query';
import { getRouteApi } from '@tanstack/react-router';
import type { ReactNode } from 'react';
import { later } from '../../lib/later.tsx';
import { trpc } from '../../lib/trpc.ts';
import { useLastVerified } from '../../lib/verified.ts';
import { count } from '../../lib/words.ts';
import { AlsoWaitingLine } from '../../parts/also-waiting.tsx';
import { LatestDecisions } from '../../parts/latest-decisions.tsx';
import { AgentLink } from '../../parts/names.tsx';
import { Outcomes } from '../../parts/outcomes.tsx';
import { SPANS, Spans } from '../../parts/spans.tsx';
import { useWaiting, WaitingHolds } from '../../parts/waiting-holds.tsx';
import { Hostile } from '../../ui/hostile.tsx';
import { ButtonLink, PageLink } from '../../ui/link.tsx';
import { Page } from '../../ui/page.tsx';
import { EmptyState, Loading } from '../../ui/states.tsx';
import type { Tone } from '../../ui/status.tsx';
import { Countdown, When } from '../../ui/time.tsx';
import { Urgent, useDestinations, useFleet } from './urgent.tsx';
import './overview.css';

/** Statistics load after what needs action. */
const Insight = later(async () => (await import('./insight.tsx')).default, {
  meanwhile: <Loading lines={6} />,
  soon: true,
});

const route = getRouteApi('/app/');

/** At a glance: what cannot wait, what was decided, what is waiting, and whether policies are enforced and records provable. */
export function Overview() {
  const { last = '24h' } = route.useSearch();
  const navigate = route.useNavigate();
  const end = useQuery(trpc.events.summary.queryOptions({ hours: 1, buckets: 1 }, { refetchInterval: 60_000 }));
  const policies = useQuery(trpc.policies.list.queryOptions({ limit: 1 }));
  const fresh = policies.data?.total === 0 && end.data?.head === null;
  return (
    <Page title="Overview">
      <Urgent />
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
        <Chain head={end.data?.head} />
      </div>
      <Paper mt="md">
        <Group justify="space-between" mb="sm">
          <Title order={2}>Decisions</Title>
          <Spans last={last} choose={(next) => void navigate({ search: { last: next }, resetScroll: false })} />
        </Group>
        <Outcomes filter={{}} last={last} facets="none" />
      </Paper>
      <div className="halves">
        <WaitingHolds />
        <LatestDecisions
          title="Recent denials"
          all="All denials"
          filter={{ decision: 'deny' }}
          most={5}
          about={({ agent_id, deny_reason }) => (
            <>
              <AgentLink id={agent_id} plain /> · {deny_reason ? <Hostile text={deny_reason} /> : 'no reason given'}
            </>
          )}
        />
      </div>
      <Insight last={last} span={SPANS[last]} />
    </Page>
  );
}

function Tile({
  icon: Shape,
  title,
  link,
  value,
  tone,
  children,
}: {
  icon: typeof IconLink;
  title: string;
  /** The link to what it counts; the whole tile belongs to it. */
  link: (title: string) => ReactNode;
  value: ReactNode;
  tone?: Tone;
  children?: ReactNode;
}) {
  return (
    <Paper className="tile" data-tone={tone}>
      <div className="tile-title">
        <Shape size={17} stroke={1.7} aria-hidden />
        {link(title)}
      </div>
      <div className="tile-value">{value}</div>
      <div className="tile-note">{children}</div>
    </Paper>
  );
}

/** The text below a tile's number: nothing while loading. */
function noted<T>({ data, error }: { data: T | undefined; error: unknown }, say: (data: T) => ReactNode): ReactNode {
  if (data !== undefined) return say(data);
  return error ? 'could not be loaded' : null;
}

const TileLink = (props: {
  to: '/approvals' | '/review' | '/proxies' | '/subscriptions' | '/forensics';
  children: string;
}) => <PageLink c="inherit" inherit className="tile-link" {...props} />;

function Holds() {
  const query = useWaiting();
  const { data } = query;
  return (
    <Tile
      icon={IconClockPause}
      title="Pending approvals"
      link={(title) => <TileLink to="/approvals">{title}</TileLink>}
      value={data?.total ?? '–'}
      tone={data?.total ? 'wait' : undefined}
    >
      {noted(query, ({ holds: [next] }) =>
        next ? (
          <>
            next to expire: <Countdown until={next.expires_at} />
          </>
        ) : (
          'none waiting'
        ),
      )}
    </Tile>
  );
}

function Reviews() {
  const query = useQuery(trpc.policies.list.queryOptions({ review: 'open', limit: 1 }));
  const { data } = query;
  const first = data?.policies[0];
  const broken = first?.open_review;
  return (
    <Tile
      icon={IconGitPullRequest}
      title="Policies to review"
      link={(title) => <TileLink to="/review">{title}</TileLink>}
      value={data?.total ?? '–'}
      tone={broken ? 'bad' : data?.total ? 'wait' : undefined}
    >
      {noted(query, () =>
        first ? (
          <>
            {broken ? 'break glass: ' : null}
            {first.id}, <When at={broken?.opened_at ?? first.updated_at} />
          </>
        ) : (
          'all reviewed'
        ),
      )}
      <AlsoWaitingLine />
    </Tile>
  );
}

function Fleet() {
  const query = useFleet();
  const { data } = query;
  // those that should be there: one that stopped, or ended with its desktop application, is not missed
  const proxies = (data?.proxies ?? []).filter(
    ({ state, desktop }) => state === 'alive' || (state === 'silent' && !desktop),
  );
  const silent = proxies.filter(({ state }) => state === 'silent').length;
  const current = proxies.filter(({ state, up_to_date }) => state === 'alive' && up_to_date === true).length;
  const well = current === proxies.length;
  return (
    <Tile
      icon={IconRouter}
      title="Proxies up to date"
      link={(title) => <TileLink to="/proxies">{title}</TileLink>}
      value={data ? (proxies.length === 0 ? 'none' : `${current} of ${proxies.length}`) : '–'}
      tone={silent > 0 ? 'bad' : well ? undefined : 'wait'}
    >
      {noted(query, () =>
        proxies.length === 0
          ? 'no proxies run: agents ask this server'
          : silent > 0
            ? `${count(silent, 'proxy is', 'proxies are')} silent`
            : well
              ? 'all enforce what was approved'
              : 'some have not fetched it yet',
      )}
    </Tile>
  );
}

/** Only admins can see destinations. */
function Destinations() {
  const query = useDestinations();
  const subscriptions = query.data?.subscriptions ?? [];
  if (query.data ? subscriptions.length === 0 : !query.error) return null;
  const failing = subscriptions.filter(({ failing_since }) => failing_since !== undefined);
  const since = failing.map(({ failing_since }) => failing_since ?? '').sort()[0];
  return (
    <Tile
      icon={IconWebhook}
      title="Failing destinations"
      link={(title) => <TileLink to="/subscriptions">{title}</TileLink>}
      value={query.data ? failing.length || 'none' : '–'}
      tone={failing.length > 0 ? 'bad' : undefined}
    >
      {noted(query, () =>
        since ? (
          <>
            first failed <When at={since} />
          </>
        ) : (
          `${count(subscriptions.length, 'destination')}, ${subscriptions.length === 1 ? '' : 'all '}working`
        ),
      )}
    </Tile>
  );
}

function Chain({ head }: { head: { seq: number; at: string } | null | undefined }) {
  const query = useQuery(trpc.chain.checkpoints.queryOptions({ limit: 1 }, { refetchInterval: 60_000 }));
  const { record: last } = useLastVerified('forensics');
  const failed = last?.action === 'forensics.verification_failed';
  return (
    <Tile
      icon={IconLink}
      title="Decision chain"
      link={(title) => <TileLink to="/forensics">{title}</TileLink>}
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
      {noted(query, ({ checkpoints: [checkpoint] }) =>
        checkpoint ? (
          <>
            signed through #{checkpoint.seq.toLocaleString()}, <When at={checkpoint.created_at} />
          </>
        ) : (
          'no checkpoints yet'
        ),
      )}
    </Tile>
  );
}
