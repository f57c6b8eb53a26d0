import '@mantine/core/styles/Drawer.css';
import { Button, Drawer, Group, Stack, Text } from '@mantine/core';
import { IconAlertOctagon, IconAlertTriangle, IconDownload, IconHistory, IconInfoCircle } from '@tabler/icons-react';
import { useInfiniteQuery, useQuery } from '@tanstack/react-query';
import { getRouteApi } from '@tanstack/react-router';
import { visible } from '../../../server/lib/visible.ts';
import { useNames } from '../../lib/names.ts';
import { useZone } from '../../lib/time.ts';
import { type Answers, api, trpc } from '../../lib/trpc.ts';
import { VerifyPanel } from '../../parts/verify-panel.tsx';
import { Id } from '../../ui/copy.tsx';
import { DataTable } from '../../ui/data-table.tsx';
import { choicesOf, FilterBar, type FilterField } from '../../ui/filter-bar.tsx';
import { NothingMatches } from '../../ui/filters.tsx';
import { Hostile, Line } from '../../ui/hostile.tsx';
import { PageLink, RowButton } from '../../ui/link.tsx';
import { Page } from '../../ui/page.tsx';
import { More } from '../../ui/pager.tsx';
import { EmptyState, Shown } from '../../ui/states.tsx';
import { Tag } from '../../ui/status.tsx';
import { When } from '../../ui/time.tsx';
import type { AuditFilter, AuditSearch } from './filter.ts';

type AuditRecord = Answers['chain']['audit']['records'][number];

type Names = ReturnType<typeof useNames>;

const route = getRouteApi('/app/audit');

const SEVERITY = {
  info: ['info', 'quiet', IconInfoCircle],
  warning: ['warning', 'wait', IconAlertTriangle],
  critical: ['critical', 'bad', IconAlertOctagon],
} as const;

const TARGETS = {
  policy: 'Policy',
  escrow: 'Hold',
  user: 'Person',
  tenant: 'Tenant and settings',
  api_key: 'API key',
  agent_key: 'Agent key',
  subscription: 'Subscription',
  package: 'Package',
  chain: 'Chain',
  sso_connection: 'Single sign-on',
  sso_domain: 'Domain',
  token_issuers: 'Token issuers',
  signing_key: 'Signing key',
};

/** What people and the system did to policies, holds, keys and settings, recorded in a separate chain. */
export function Audit() {
  const { record: open, ...filter } = route.useSearch();
  const navigate = route.useNavigate();
  const set = (change: AuditSearch) => void navigate({ search: (old) => ({ ...old, ...change }), resetScroll: false });
  const clear = () => void navigate({ search: {} });
  const query = useInfiniteQuery({
    queryKey: [...trpc.chain.audit.queryKey(filter), 'pages'],
    queryFn: ({ pageParam, signal }) => api.chain.audit.query({ ...filter, after: pageParam, limit: 50 }, { signal }),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: ({ next_cursor }) => next_cursor ?? undefined,
  });
  // once for all rows
  const names = useNames();
  const filtered = Object.values(filter).some((value) => value !== undefined);
  const download = (format: 'csv' | 'ndjson') =>
    `/v1/audit/export?${new URLSearchParams({ ...(filter as Record<string, string>), format })}`;

  return (
    <Page
      title="Audit"
      lead="What people, keys and the system did. Like decisions, each record includes the hash of the previous one."
      actions={(['csv', 'ndjson'] as const).map((format) => (
        <Button
          key={format}
          component="a"
          href={download(format)}
          download
          variant="default"
          leftSection={<IconDownload size={16} aria-hidden />}
        >
          {format.toUpperCase()}
        </Button>
      ))}
    >
      <Stack gap="md">
        <VerifyPanel chain="audit" />
        <Filters filter={filter} names={names} set={set} clear={filtered ? clear : undefined} />
        <DataTable<AuditRecord>
          label="Audit records"
          fixed
          rows={query.data?.pages.flatMap(({ records }) => records)}
          error={query.error}
          retry={() => void query.refetch()}
          rowKey={({ id }) => id}
          onOpen={({ id }) => set({ record: id })}
          selected={open}
          empty={
            filtered ? (
              <NothingMatches icon={IconHistory} title="No records match the filters" clear={clear}>
                Filters apply to the whole log.
              </NothingMatches>
            ) : (
              <EmptyState icon={IconHistory} title="No records yet">
                The first change to anything creates the first record.
              </EmptyState>
            )
          }
          columns={[
            { header: 'When', cell: ({ created_at }) => <When at={created_at} />, width: 100 },
            {
              header: 'Action',
              main: true,
              cell: (record) => (
                <Group gap={8}>
                  <RowButton onClick={() => set({ record: record.id })}>{record.action}</RowButton>
                  {record.severity === 'info' ? null : <SeverityTag severity={record.severity} />}
                </Group>
              ),
              width: '26%',
            },
            {
              header: 'By',
              cell: ({ actor }) => (
                <Line>
                  <Actor actor={actor} names={names} />
                </Line>
              ),
            },
            {
              header: 'On',
              cell: ({ target }) => (
                <Line>
                  <Named type={target.type} id={target.id} names={names} />
                </Line>
              ),
            },
            {
              header: 'Why',
              cell: ({ reason, detail }) =>
                reason || detail ? (
                  <Line className="dim">
                    <Hostile text={reason ?? detail ?? ''} />
                  </Line>
                ) : null,
            },
          ]}
        />
        <More query={query} label="Older records" />
      </Stack>
      <Drawer
        opened={open !== undefined}
        onClose={() => set({ record: undefined })}
        position="right"
        size="lg"
        title={<strong>Audit record</strong>}
        closeButtonProps={{ 'aria-label': 'Close' }}
      >
        {open === undefined ? null : (
          <Detail id={open} names={names} only={(filter) => void navigate({ search: filter })} />
        )}
      </Drawer>
    </Page>
  );
}

function SeverityTag({ severity }: { severity: AuditRecord['severity'] }) {
  const [word, tone, icon] = SEVERITY[severity];
  return (
    <Tag tone={tone} icon={icon}>
      {word}
    </Tag>
  );
}

function Actor({ actor, names }: { actor: AuditRecord['actor']; names: Names }) {
  if (actor.type === 'operator' || actor.type === 'system') return <>the {actor.type}</>;
  if (!actor.email) return <Named type={actor.type} id={actor.id} names={names} />;
  // the address as it was recorded comes first: people choose their own names, and may choose someone else's
  const name = names.of(actor.id);
  return (
    <>
      <Hostile text={actor.email} />
      {name === undefined || name === actor.email ? null : (
        <span className="dim">
          {' '}
          (<Hostile text={name} />)
        </span>
      )}
    </>
  );
}

/** The target, by name if it has one, otherwise by id. */
function Named({ type, id, names }: { type: string; id: string; names: Names }) {
  const name = names.of(id);
  return (
    <span title={name === undefined ? undefined : id}>
      <span className="dim">{type.replaceAll('_', ' ')}</span>{' '}
      <span className={name === undefined ? 'mono' : undefined}>
        <Hostile text={name ?? id} />
      </span>
    </span>
  );
}

/** Choices by name for a filter that takes an id. An id without a name, such as that of a revoked key, is offered too. */
function namedChoices(
  value: string | undefined,
  lists: readonly (readonly [group: string, readonly { id: string; name: string }[]])[],
): FilterField['choices'] {
  const known = lists.some(([, list]) => list.some(({ id }) => id === value));
  return [
    { value: '', label: 'any' },
    ...(value === undefined || known ? [] : [{ value, label: visible(value) }]),
    ...lists
      .filter(([, list]) => list.length > 0)
      .map(([group, list]) => ({ group, items: list.map(({ id, name }) => ({ value: id, label: visible(name) })) })),
  ];
}

const isNamed = (type: string | undefined): type is 'user' | 'api_key' | 'agent_key' | 'subscription' =>
  type === 'user' || type === 'api_key' || type === 'agent_key' || type === 'subscription';

function Filters({
  filter,
  names,
  set,
  clear,
}: {
  filter: AuditFilter;
  names: Names;
  set: (change: AuditFilter) => void;
  clear: (() => void) | undefined;
}) {
  const [zone] = useZone();
  const actions = useQuery(trpc.chain.actions.queryOptions({}, { staleTime: Number.POSITIVE_INFINITY }));
  return (
    <FilterBar
      label="Filter the records"
      clear={clear}
      even
      fields={[
        {
          label: 'Action',
          value: filter.action,
          set: (action) => set({ action: action as AuditFilter['action'] }),
          choices: [
            { value: '', label: 'any' },
            ...(actions.data?.actions ?? []).map(({ action, code }) => ({
              value: action,
              label: `${action} · ${code}`,
            })),
          ],
        },
        {
          label: 'Severity',
          value: filter.severity,
          set: (severity) => set({ severity: severity as AuditFilter['severity'] }),
          choices: choicesOf('any', Object.keys(SEVERITY)),
        },
        {
          label: 'On',
          value: filter.target_type,
          set: (target_type) => set({ target_type, target_id: undefined }),
          choices: choicesOf('anything', Object.keys(TARGETS), (type) => TARGETS[type as keyof typeof TARGETS]),
        },
        {
          label: isNamed(filter.target_type) ? 'Which' : 'Target id',
          value: filter.target_id,
          set: (target_id) => set({ target_id }),
          choices: isNamed(filter.target_type)
            ? namedChoices(filter.target_id, [[TARGETS[filter.target_type], names[filter.target_type]]])
            : undefined,
        },
        {
          label: 'By',
          value: filter.actor_id,
          set: (actor_id) => set({ actor_id }),
          choices: namedChoices(filter.actor_id, [
            ['People', names.user],
            ['API keys', names.api_key],
            ['Agent keys', names.agent_key],
          ]),
        },
        {
          label: `Since (${zone === 'utc' ? 'UTC' : 'local'})`,
          value: filter.since,
          set: (since) => set({ since }),
          moment: true,
        },
        {
          label: `Until (${zone === 'utc' ? 'UTC' : 'local'})`,
          value: filter.until,
          set: (until) => set({ until }),
          moment: true,
        },
      ]}
    />
  );
}

/** The settings that a record lists as changed, one per line. */
function Changes({ detail }: { detail: string | undefined }) {
  return detail?.split('; ').map((line) => (
    <div key={line}>
      <Hostile text={line} />
    </div>
  ));
}

/** Links to the target of a record, and to the versions between which a policy changed. */
function RelatedLinks({ record: { target, detail = '' } }: { record: AuditRecord }) {
  const { type, id } = target;
  if (type === 'escrow') {
    return (
      <PageLink to="/approvals/$id" params={{ id }}>
        View the hold
      </PageLink>
    );
  }
  if (type === 'tenant') return <PageLink to="/settings">View the settings</PageLink>;
  if (type !== 'policy') return null;
  const to = Number(/^version (\d+)/.exec(detail)?.[1] ?? 1);
  const from = Number(/, in place of version (\d+)/.exec(detail)?.[1] ?? to - 1);
  return (
    <>
      <PageLink to="/policies/$id" params={{ id }}>
        View the policy
      </PageLink>
      {from > 0 ? (
        <PageLink to="/policies/$id" params={{ id }} search={{ tab: 'diff', from, to }}>
          What changed from version {from} to {to}
        </PageLink>
      ) : null}
    </>
  );
}

function Detail(props: { id: string; names: Names; only: (filter: AuditFilter) => void }) {
  const { id, names, only } = props;
  // a record never changes
  const query = useQuery(trpc.chain.auditRecord.queryOptions({ id }, { staleTime: Number.POSITIVE_INFINITY }));
  return (
    <Shown query={query} lines={14}>
      {(record) => <Facts record={record} names={names} only={only} />}
    </Shown>
  );
}

function Facts(props: { record: AuditRecord; names: Names; only: (filter: AuditFilter) => void }) {
  const { record, names, only } = props;
  const rows: [string, React.ReactNode][] = [
    ['When', <When key="w" at={record.created_at} exact />],
    [
      'Code',
      <span key="c" className="mono">
        {record.code}
      </span>,
    ],
    ['Severity', <SeverityTag key="s" severity={record.severity} />],
    ['By', <Actor key="a" actor={record.actor} names={names} />],
    ['Actor id', <Id key="i" value={record.actor.id} length={40} />],
    ['IP address', record.actor.ip],
    ['On', <Named key="o" type={record.target.type} id={record.target.id} names={names} />],
    ['Target id', <Id key="t" value={record.target.id} length={40} />],
    ['Reason', record.reason && <Hostile key="n" text={record.reason} />],
    [
      'Detail',
      record.target.type === 'tenant' ? (
        <Changes key="d" detail={record.detail} />
      ) : (
        record.detail && <Hostile key="d" text={record.detail} />
      ),
    ],
    [
      'Before',
      record.before_hash && (
        <span key="b" className="mono">
          {record.before_hash}
        </span>
      ),
    ],
    [
      'After',
      record.after_hash && (
        <span key="f" className="mono">
          {record.after_hash}
        </span>
      ),
    ],
    ['Request', record.request_id && <Id key="r" value={record.request_id} length={40} />],
    ['Record', `${record.seq} (${record.id})`],
    [
      'Hash',
      <span key="h" className="mono">
        {record.hash}
      </span>,
    ],
    [
      'Previous hash',
      <span key="p" className="mono">
        {record.prev_hash}
      </span>,
    ],
  ];
  return (
    <Stack gap="md">
      <Text size="lg" fw={650}>
        {record.action}
      </Text>
      <Group gap="md">
        <RelatedLinks record={record} />
      </Group>
      <dl className="facts">
        {rows
          .filter(([, value]) => value)
          .map(([name, value]) => (
            <div key={name} style={{ display: 'contents' }}>
              <dt>{name}</dt>
              <dd>{value}</dd>
            </div>
          ))}
      </dl>
      {record.before_hash || record.after_hash ? (
        <Text size="sm" c="dimmed">
          Before and after are hashes of what was changed: equal hashes mean equal content.
        </Text>
      ) : null}
      <Group gap="xs">
        <Button variant="default" size="xs" onClick={() => only({ actor_id: record.actor.id })}>
          All by this actor
        </Button>
        <Button
          variant="default"
          size="xs"
          onClick={() => only({ target_type: record.target.type, target_id: record.target.id })}
        >
          All on this target
        </Button>
      </Group>
    </Stack>
  );
}
