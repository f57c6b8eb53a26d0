import { Text } from '@mantine/core';
import { IconHeartbeat, IconPlayerStop, IconPlugConnectedX, IconServerBolt, IconStack2 } from '@tabler/icons-react';
import { useQuery } from '@tanstack/react-query';
import { useMe } from '../../lib/session.ts';
import { duration, useNow } from '../../lib/time.ts';
import { type Answers, trpc } from '../../lib/trpc.ts';
import { proxyCommand } from '../../parts/proxy-command.ts';
import { CodeBlock } from '../../ui/code.tsx';
import { Id } from '../../ui/copy.tsx';
import { DataTable } from '../../ui/data-table.tsx';
import { Hostile } from '../../ui/hostile.tsx';
import { ButtonLink, PageLink } from '../../ui/link.tsx';
import { Page } from '../../ui/page.tsx';
import { EmptyState } from '../../ui/states.tsx';
import { Tag } from '../../ui/status.tsx';
import { When } from '../../ui/time.tsx';

type Proxy = Answers['proxies']['list']['proxies'][number];

/** The fleet: which proxy enforces which bundle, and which proxies are silent. */
export function Proxies() {
  const query = useQuery(trpc.proxies.list.queryOptions({}, { refetchInterval: 5_000 }));
  const now = useNow(5_000);
  const me = useMe();
  const proxies = query.data?.proxies;
  const [servers, desktops] = [false, true].map((on) => proxies?.filter(({ desktop = false }) => desktop === on) ?? []);
  const alive = (of: Proxy[] = []) => of.filter(({ state }) => state === 'alive').length;
  const stopped = (of: Proxy[] = []) => of.filter(({ state }) => state === 'stopped').length;
  return (
    <Page
      title="Proxies"
      lead={
        proxies?.length
          ? `${alive(servers)} of ${servers!.length - stopped(servers)} report. ${desktops!.length > 0 ? `On desktops, ${alive(desktops)} of ${desktops!.length} run.` : ''}`.trim()
          : 'Proxies sit in front of tools and enforce the policies.'
      }
      docs={[['proxy', 'Enforcement proxy']]}
    >
      <DataTable<Proxy>
        label="Proxies"
        rows={proxies}
        error={query.error}
        retry={() => void query.refetch()}
        rowKey={({ proxy_id }) => proxy_id}
        empty={
          <EmptyState
            icon={IconServerBolt}
            title="No proxies yet"
            action={
              me.has('admin') ? (
                <ButtonLink to="/keys" variant="default">
                  Create a key
                </ButtonLink>
              ) : null
            }
          >
            <p>
              The reference proxy comes with this program. Create an API key with the proxy scope, then start the proxy;
              it appears here with its first heartbeat. If it does not, its log gives the reason: usually a wrong
              address, or a key that was revoked or lacks the scope.
            </p>
            <div style={{ textAlign: 'left' }}>
              <CodeBlock text={proxyCommand(window.location.origin)} label="command" />
            </div>
          </EmptyState>
        }
        columns={[
          {
            header: 'Proxy',
            main: true,
            cell: ({ proxy_id, version }) => (
              <div>
                <PageLink to="/proxies/proxy" search={{ id: proxy_id }} fw={600} c="inherit">
                  <Hostile text={proxy_id} />
                </PageLink>
                {version ? (
                  <div className="dim">
                    version <Hostile text={version} />
                  </div>
                ) : null}
              </div>
            ),
          },
          {
            header: 'State',
            cell: ({ state, desktop }) => (
              <div>
                {state === 'silent' ? (
                  <Tag tone={desktop ? 'quiet' : 'bad'} icon={IconPlugConnectedX}>
                    silent
                  </Tag>
                ) : state === 'stopped' ? (
                  <Tag tone="quiet" icon={IconPlayerStop}>
                    stopped
                  </Tag>
                ) : (
                  <Tag tone="ok" icon={IconHeartbeat}>
                    alive
                  </Tag>
                )}
                {desktop ? <div className="dim">on a desktop</div> : null}
              </div>
            ),
          },
          {
            header: 'Last seen',
            cell: ({ last_seen_at, state, desktop }) => (
              <span
                style={
                  state === 'silent' && !desktop ? { color: 'var(--mantine-color-error)', fontWeight: 600 } : undefined
                }
              >
                <When at={last_seen_at} />
              </span>
            ),
          },
          {
            header: 'Bundle',
            cell: ({ bundle_seq, bundle_hash, bundle_built_at, up_to_date, refused_bundle }) =>
              bundle_hash ? (
                <div>
                  <div>
                    {bundle_seq === undefined ? 'unknown number' : `#${bundle_seq}`},{' '}
                    <span className="dim">
                      {bundle_built_at ? (
                        <>
                          built <When at={bundle_built_at} />
                        </>
                      ) : (
                        'unknown to this server'
                      )}
                    </span>{' '}
                    {up_to_date === false ? (
                      <Tag tone="wait" icon={IconStack2}>
                        not the newest
                      </Tag>
                    ) : null}
                    {refused_bundle ? <Tag tone="bad">refused a bundle: {refused_bundle}</Tag> : null}
                  </div>
                  <Id value={bundle_hash} length={20} />
                </div>
              ) : (
                <span className="dim">none yet</span>
              ),
          },
          {
            header: 'Waiting events',
            align: 'right',
            cell: ({ spooled_events }) =>
              spooled_events === undefined ? (
                <span className="dim">unknown</span>
              ) : (
                <Text
                  span
                  fw={spooled_events > 1000 ? 650 : undefined}
                  c={spooled_events > 1000 ? 'var(--wait)' : undefined}
                >
                  {spooled_events.toLocaleString()}
                </Text>
              ),
          },
          {
            header: 'Uptime',
            align: 'right',
            cell: ({ started_at, state }) =>
              started_at && state === 'alive' ? (
                duration(now - new Date(started_at).getTime())
              ) : (
                <span className="dim">—</span>
              ),
          },
        ]}
      />
    </Page>
  );
}
