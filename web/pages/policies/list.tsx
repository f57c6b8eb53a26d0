import { IconFileText, IconHammer, IconPlus } from '@tabler/icons-react';
import { keepPreviousData, useQuery } from '@tanstack/react-query';
import { getRouteApi } from '@tanstack/react-router';
import { usePeople } from '../../lib/people.ts';
import { useMe } from '../../lib/session.ts';
import { trpc } from '../../lib/trpc.ts';
import { type Column, DataTable } from '../../ui/data-table.tsx';
import { FilterBar } from '../../ui/filter-bar.tsx';
import { NothingMatches } from '../../ui/filters.tsx';
import { ButtonLink, PageLink } from '../../ui/link.tsx';
import { Page } from '../../ui/page.tsx';
import { Pager } from '../../ui/pager.tsx';
import { EmptyState } from '../../ui/states.tsx';
import { PolicyTags, Tag } from '../../ui/status.tsx';
import { When } from '../../ui/time.tsx';
import type { PolicyFilter, PolicyStatus } from './search.ts';

const route = getRouteApi('/app/policies');
const PER_PAGE = 50;

export function PolicyList() {
  const filter = route.useSearch();
  const navigate = route.useNavigate();
  const me = useMe();
  const name = usePeople();
  const { page = 1, status, ...rest } = filter;
  const where = { ...rest, ...(status === 'live' ? { enforced: 'true' as const } : { status }) };
  const query = useQuery(
    trpc.policies.list.queryOptions(
      { ...where, limit: PER_PAGE, offset: (page - 1) * PER_PAGE },
      { placeholderData: keepPreviousData },
    ),
  );
  const set = (change: Partial<PolicyFilter>) =>
    void navigate({ search: (old) => ({ ...old, page: undefined, ...change }) });
  const clear = () => void navigate({ search: {} });
  // also leaves a page that is now past the end
  const filtered = page > 1 || Object.entries(where).some(([name, value]) => name !== 'order' && value !== undefined);
  type Row = NonNullable<typeof query.data>['policies'][number];

  const columns: Column<Row>[] = [
    {
      header: 'Policy',
      main: true,
      cell: (row) => (
        <PageLink to="/policies/$id" params={{ id: row.id }} fw={600} c="inherit">
          {row.id}
        </PageLink>
      ),
    },
    { header: 'Status', bare: true, cell: (row) => <PolicyTags policy={row} />, width: 130 },
    {
      header: 'Enforced',
      cell: (row) =>
        row.live_version === null ? (
          <span className="dim">not enforced</span>
        ) : (
          <span>
            version {row.live_version}
            {row.live_version === row.version ? null : <span className="dim">, newest is {row.version}</span>}{' '}
            {row.open_review ? (
              <Tag tone="bad" icon={IconHammer}>
                Break glass
              </Tag>
            ) : null}
          </span>
        ),
    },
    {
      header: 'Scopes',
      cell: (row) => (row.scopes.length > 0 ? row.scopes.map((scope) => <Scope key={scope} name={scope} />) : null),
    },
    { header: 'Author', cell: (row) => name(row.author_id) },
    { header: 'Changed', cell: (row) => <When at={row.updated_at} />, align: 'right', width: 120 },
  ];

  return (
    <Page
      title="Policies"
      lead="What agents may do, in Cedar. Proxies enforce the live version of each."
      docs={[
        ['policy-language', 'Policy language'],
        ['cookbook', 'Cookbook'],
      ]}
      actions={
        me.has('author') ? (
          <ButtonLink to="/policies/new" leftSection={<IconPlus size={16} />}>
            New policy
          </ButtonLink>
        ) : null
      }
    >
      <FilterBar
        label="Filter policies"
        clear={filtered ? clear : undefined}
        fields={[
          { label: 'Name or text contains', value: filter.q, set: (q) => set({ q }), width: 200 },
          {
            label: 'Status',
            value: filter.status,
            set: (status) => set({ status: status as PolicyStatus | undefined }),
            choices: [
              { value: '', label: 'all' },
              { value: 'live', label: 'Live' },
              { value: 'draft', label: 'Draft' },
              { value: 'pending_approval', label: 'In review' },
              { value: 'revoked', label: 'Revoked' },
            ],
            width: 140,
          },
          { label: 'Applies to role', value: filter.agent_role, set: (agent_role) => set({ agent_role }), width: 160 },
          { label: 'Scope', value: filter.scope, set: (scope) => set({ scope }), width: 140 },
          {
            label: 'Sort',
            value: filter.order,
            set: (order) => set({ order: order as PolicyFilter['order'] }),
            choices: [
              { value: '', label: 'last changed' },
              { value: 'id', label: 'by name' },
              { value: 'status', label: 'by status' },
            ],
            view: true,
            width: 140,
          },
        ]}
      />
      <DataTable
        label={
          filter.order === undefined
            ? 'Policies, most recently changed first'
            : `Policies by ${filter.order === 'id' ? 'name' : 'status'}`
        }
        columns={columns}
        rows={query.data?.policies}
        rowKey={(row) => row.id}
        error={query.error}
        retry={() => void query.refetch()}
        onOpen={(row) => void navigate({ to: '/policies/$id', params: { id: row.id } })}
        empty={
          filtered ? (
            <NothingMatches icon={IconFileText} title="No policies match the filters" clear={clear}>
              A policy that applies to every role matches each role.
            </NothingMatches>
          ) : (
            <EmptyState
              icon={IconFileText}
              title="No policies yet"
              action={me.has('author') ? <ButtonLink to="/start">Start from a template</ButtonLink> : null}
            >
              Until a policy permits something, every agent action is denied.
            </EmptyState>
          )
        }
      />
      <Pager page={page} size={PER_PAGE} total={query.data?.total ?? 0} onPage={(to) => set({ page: to })} />
    </Page>
  );
}

const Scope = ({ name }: { name: string }) => (
  <span style={{ marginRight: 4 }}>
    <Tag tone="quiet">{name}</Tag>
  </span>
);
