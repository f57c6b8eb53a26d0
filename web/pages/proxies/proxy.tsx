import { Button, Paper, Text, Title } from '@mantine/core';
import { IconHandStop, IconServerBolt, IconStack2 } from '@tabler/icons-react';
import { useQuery } from '@tanstack/react-query';
import { getRouteApi, Navigate } from '@tanstack/react-router';
import { type ReactNode, useEffect, useRef, useState } from 'react';
import { exactly } from '../../../server/domain/sought.ts';
import { confirmed, toastDone } from '../../lib/errors.tsx';
import { usePeople } from '../../lib/people.ts';
import { queryClient } from '../../lib/query.ts';
import { useMe } from '../../lib/session.ts';
import { duration, useNow } from '../../lib/time.ts';
import { type Answers, api, trpc } from '../../lib/trpc.ts';
import { count } from '../../lib/words.ts';
import { Activity } from '../../parts/activity.tsx';
import { PreparedStop } from '../../parts/stops.tsx';
import { ConfirmDialog } from '../../ui/confirm.tsx';
import { Id } from '../../ui/copy.tsx';
import { DataTable } from '../../ui/data-table.tsx';
import { Hostile } from '../../ui/hostile.tsx';
import { ButtonLink, DocsLink, PageLink } from '../../ui/link.tsx';
import { Notice } from '../../ui/notice.tsx';
import { Page } from '../../ui/page.tsx';
import { EmptyState, Shown } from '../../ui/states.tsx';
import { Tag } from '../../ui/status.tsx';
import { When } from '../../ui/time.tsx';

const route = getRouteApi('/app/proxies/proxy');

type Proxy = Answers['proxies']['list']['proxies'][number];

/** One proxy: what it enforces, what is wrong with it, and what to do about it. */
export function ProxyPage() {
  const { id } = route.useSearch();
  return id ? <OneProxy key={id} id={id} /> : <Navigate to="/proxies" replace />;
}

function OneProxy({ id }: { id: string }) {
  const { last = '24h' } = route.useSearch();
  const navigate = route.useNavigate();
  const me = useMe();
  const query = useQuery(trpc.proxies.list.queryOptions({}, { refetchInterval: 5_000 }));
  const [open, setOpen] = useState<'stop' | 'remove'>();
  const known = query.data?.proxies.find(({ proxy_id }) => proxy_id === id);
  return (
    <Page
      title={<Hostile text={id} />}
      tab={`Proxy ${id}`}
      lead="An enforcement proxy"
      docs={[['proxy', 'Enforcement proxy']]}
      actions={
        <>
          {me.has('admin') && known ? (
            <Button variant="default" onClick={() => setOpen('remove')}>
              Remove
            </Button>
          ) : null}
          {me.has('approver') ? (
            <Button color="red.8" leftSection={<IconHandStop size={16} aria-hidden />} onClick={() => setOpen('stop')}>
              Stop this proxy…
            </Button>
          ) : null}
        </>
      }
    >
      <Shown query={query} lines={8}>
        {() =>
          known ? (
            <>
              <WhatToDo proxy={known} />
              <Facts proxy={known} />
              <Bundles id={id} hash={known.bundle_hash} />
            </>
          ) : (
            <Paper mb="md">
              <EmptyState
                icon={IconServerBolt}
                title="No proxy reports under this name"
                action={
                  <ButtonLink to="/proxies" variant="default">
                    All proxies
                  </ButtonLink>
                }
              >
                It was removed, or has not reported yet. What it decided stays in the records.
              </EmptyState>
            </Paper>
          )
        }
      </Shown>
      <Activity
        title="What it decided"
        filter={{ proxy_id: exactly(id) }}
        facets={['tool_name', 'agent_id', 'rule_id']}
        last={last}
        choose={(next) => void navigate({ search: (old) => ({ ...old, last: next }), resetScroll: false })}
      />
      {open === 'stop' ? <PreparedStop target={{ kind: 'proxy', id }} onClose={() => setOpen(undefined)} /> : null}
      <ConfirmDialog
        opened={open === 'remove'}
        onClose={() => setOpen(undefined)}
        title={`Remove ${id}`}
        action="Remove the proxy"
        danger={known?.state === 'alive'}
        reason={{ label: 'Reason', required: true }}
        onConfirm={async (reason) => {
          await confirmed(() => api.proxies.remove.mutate({ proxy_id: id, reason }));
          // only the list: the bundles of a removed proxy are not found
          await queryClient.invalidateQueries(trpc.proxies.list.queryFilter());
          toastDone('Proxy removed');
          await navigate({ to: '/proxies' });
        }}
      >
        {known?.state === 'alive'
          ? 'It still reports, so it comes back with its next report. To end its access, revoke its key.'
          : 'It is no longer listed or counted as silent. If it is started again, it comes back. What it decided stays in the records.'}
      </ConfirmDialog>
    </Page>
  );
}

/** What is wrong, and the next step. */
function WhatToDo({ proxy }: { proxy: Proxy }) {
  const { state, desktop, refused_bundle, up_to_date, bundle_hash, spooled_events = 0, last_seen_at } = proxy;
  if (state === 'stopped') {
    return (
      <Notice tone="quiet" title="It stopped">
        It said so <When at={last_seen_at} />, so nobody is alarmed.
        {spooled_events > 0
          ? ` ${count(spooled_events, 'decision is', 'decisions are')} still on its disk, and sent when a proxy with that disk starts again.`
          : ''}
      </Notice>
    );
  }
  if (state === 'silent' && desktop) {
    return (
      <Notice tone="quiet" title="It is silent, and runs on a desktop">
        It last reported <When at={last_seen_at} />. Its client was probably closed, or its computer sleeps.
      </Notice>
    );
  }
  if (state === 'silent') {
    return (
      <Notice tone="bad" title="It is silent">
        It last reported <When at={last_seen_at} />. As long as it runs it goes on with the policies that it has, until
        they expire; stops and new policies do not reach it. Look at its log: it says whether it cannot reach this
        server or its key was refused. If it was taken out of service, remove it.
      </Notice>
    );
  }
  if (refused_bundle) {
    return (
      <Notice tone="bad" title="It refused the newest policies">
        It goes on with the ones before. Its reason: <Hostile text={refused_bundle} />.{' '}
        <DocsLink path="troubleshooting">What the reasons mean</DocsLink>
      </Notice>
    );
  }
  if (bundle_hash && up_to_date === null) {
    return (
      <Notice tone="wait" title="It enforces policies that this server does not know">
        That is so for a moment after this server was restored from a backup. If it stays so, the proxy may belong to
        another installation.
      </Notice>
    );
  }
  if (spooled_events > 0) {
    return (
      <Notice tone="wait" title={`${count(spooled_events, 'decision waits', 'decisions wait')} to be sent`}>
        They are on its disk and are sent as soon as this server takes them. If the number grows, look at its log.
      </Notice>
    );
  }
  if (up_to_date === false) {
    return (
      <Notice tone="wait" title="It still fetches the newest policies">
        It asks again within a poll interval.
      </Notice>
    );
  }
  return null;
}

type Run = Answers['proxies']['bundles']['bundles'][number];

/** Which policies it enforced, from when to when. */
function Bundles({ id, hash }: { id: string; hash: string | undefined }) {
  const query = useQuery(trpc.proxies.bundles.queryOptions({ proxy_id: id }, { refetchInterval: 60_000 }));
  const { refetch } = query;
  const reported = useRef(hash);
  useEffect(() => {
    if (reported.current === hash) return;
    reported.current = hash;
    void refetch();
  }, [hash, refetch]);
  return (
    <section aria-labelledby="bundles-title" style={{ marginBottom: 16 }}>
      <Title order={2} id="bundles-title" mb="xs">
        Policies over time
      </Title>
      <DataTable<Run>
        label="Bundles that it used"
        rows={query.data?.bundles}
        error={query.error}
        retry={() => void query.refetch()}
        rowKey={({ since }) => since}
        empty={
          <EmptyState icon={IconStack2} title="No bundle yet">
            Bundles appear here once the proxy reports them, and stay for 90 days after they are replaced.
          </EmptyState>
        }
        columns={[
          {
            header: 'Bundle',
            main: true,
            cell: ({ bundle_hash, bundle_seq }) =>
              bundle_hash ? (
                <div>
                  <div style={{ fontWeight: 600 }}>{bundle_seq === null ? 'bundle' : `#${bundle_seq}`}</div>
                  <Id value={bundle_hash} length={20} />
                </div>
              ) : (
                <span className="dim">not issued by this server</span>
              ),
          },
          {
            header: 'Made',
            cell: ({ built_at, change }) =>
              built_at ? (
                <div>
                  <When at={built_at} />
                  {change ? <Change {...change} /> : null}
                </div>
              ) : (
                <span className="dim">unknown</span>
              ),
          },
          {
            header: 'In force here',
            cell: ({ since, until }) => (
              <span>
                <When at={since} /> {until ? 'until ' : <Tag tone="ok">now</Tag>}
                {until ? <When at={until} /> : null}
              </span>
            ),
          },
          {
            header: 'Delay',
            align: 'right',
            cell: ({ lag_seconds }) =>
              lag_seconds === null ? <span className="dim">—</span> : duration(lag_seconds * 1000),
          },
        ]}
      />
      <Text size="sm" c="dimmed" mt="xs">
        As the proxy reported it, about every poll interval. Delay is the time from when a bundle was made until the
        proxy first reported it.
      </Text>
    </section>
  );
}

/** The change that led to the bundle. */
const Change = ({ id, action, target }: NonNullable<Run['change']>) => (
  <div>
    <PageLink to="/audit" search={{ record: id }} size="sm">
      {action}
    </PageLink>{' '}
    <span className="dim">
      <Hostile text={target.id} />
    </span>
  </div>
);

function Facts({ proxy }: { proxy: Proxy }) {
  const named = usePeople()(proxy.key_id);
  const now = useNow(5_000);
  const { bundle_hash, bundle_seq, bundle_built_at, up_to_date, spooled_events, started_at, version, state } = proxy;
  const rows: [string, ReactNode][] = [
    ['State', proxy.desktop ? `${state}, on a desktop` : state],
    ['Last report', <When key="seen" at={proxy.last_seen_at} />],
    ['First report', <When key="first" at={proxy.first_seen_at} exact />],
    ['Program', version ? <Hostile key="version" text={`version ${version}`} /> : 'unknown version'],
    ['Running for', started_at && state === 'alive' ? duration(now - new Date(started_at).getTime()) : 'unknown'],
    [
      'Policies',
      bundle_hash ? (
        <>
          {bundle_seq === undefined ? 'bundle' : `bundle #${bundle_seq}`}
          {up_to_date === true ? ', the newest' : up_to_date === false ? ', not the newest' : ''}
          {bundle_built_at ? (
            <>
              , built <When at={bundle_built_at} />
            </>
          ) : null}
          <div>
            <Id value={bundle_hash} length={30} />
          </div>
        </>
      ) : (
        'none yet'
      ),
    ],
    ['Waiting to be sent', spooled_events === undefined ? 'unknown' : count(spooled_events, 'decision')],
    [
      'Key',
      <span key="key">
        {named === proxy.key_id ? '' : `${named} `}
        <Id value={proxy.key_id} length={34} />
      </span>,
    ],
  ];
  return (
    <Paper mb="md">
      <dl className="facts">
        {rows.map(([name, value]) => (
          <div key={name} style={{ display: 'contents' }}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
    </Paper>
  );
}
