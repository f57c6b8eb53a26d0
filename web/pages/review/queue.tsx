import { IconGitPullRequest, IconHammer } from '@tabler/icons-react';
import { keepPreviousData, useQuery } from '@tanstack/react-query';
import { getRouteApi } from '@tanstack/react-router';
import { usePeople } from '../../lib/people.ts';
import { useMe } from '../../lib/session.ts';
import { trpc } from '../../lib/trpc.ts';
import { AlsoWaiting } from '../../parts/also-waiting.tsx';
import { type Column, DataTable } from '../../ui/data-table.tsx';
import { Hostile } from '../../ui/hostile.tsx';
import { ButtonLink, PageLink } from '../../ui/link.tsx';
import { Page } from '../../ui/page.tsx';
import { Pager } from '../../ui/pager.tsx';
import { EmptyState } from '../../ui/states.tsx';
import { PolicyTag, Tag } from '../../ui/status.tsx';
import { When } from '../../ui/time.tsx';

const route = getRouteApi('/app/review');
const PER_PAGE = 50;

/** What needs a second person: versions enforced without a review, then versions waiting for one. */
export function ReviewQueue() {
  const { page = 1 } = route.useSearch();
  const navigate = route.useNavigate();
  const me = useMe();
  const name = usePeople();
  const query = useQuery(
    trpc.policies.list.queryOptions(
      { review: 'open', limit: PER_PAGE, offset: (page - 1) * PER_PAGE },
      { placeholderData: keepPreviousData },
    ),
  );
  type Row = NonNullable<typeof query.data>['policies'][number];
  const columns: Column<Row>[] = [
    {
      header: 'Policy',
      main: true,
      cell: (row) => (
        <div>
          <PageLink to="/review/$id" params={{ id: row.id }} fw={600} c="inherit">
            {row.id}
          </PageLink>
          {row.open_review?.reason ? (
            <div className="dim" style={{ fontWeight: 400, maxWidth: '48ch' }}>
              <Hostile text={row.open_review.reason} />
            </div>
          ) : null}
        </div>
      ),
    },
    {
      header: 'Status',
      cell: (row) =>
        row.open_review ? (
          <Tag tone="bad" icon={IconHammer}>
            Break glass
          </Tag>
        ) : (
          <PolicyTag status={row.status} />
        ),
      width: 150,
    },
    {
      header: 'Version',
      cell: ({ open_review, version, live_version, status }) =>
        open_review ? (
          <span>
            {open_review.version}{' '}
            <span className="dim">
              {live_version === open_review.version ? 'is enforced' : 'was enforced'}
              {version === open_review.version
                ? ''
                : `, ${version} is ${status === 'pending_approval' ? 'in review' : status === 'draft' ? 'a draft' : 'the newest'}`}
            </span>
          </span>
        ) : (
          <span>
            {version} <span className="dim">{live_version === null ? 'new' : `replaces ${live_version}`}</span>
          </span>
        ),
    },
    {
      header: 'By',
      cell: ({ open_review, author_id }) => {
        const id = open_review?.actor ?? author_id;
        return (
          <span>
            {name(id)} {id === me.id ? <Tag tone="quiet">you</Tag> : null}
          </span>
        );
      },
    },
    {
      header: 'Waiting since',
      cell: ({ open_review, updated_at }) => <When at={open_review?.opened_at ?? updated_at} />,
      align: 'right',
    },
  ];
  return (
    <Page
      title="Review"
      lead="What needs a second person: policies first, break-glass deployments before submitted versions; then settings and lists."
    >
      <DataTable
        label="Policies to review"
        columns={columns}
        rows={query.data?.policies}
        rowKey={(row) => row.id}
        error={query.error}
        retry={() => void query.refetch()}
        onOpen={(row) => void navigate({ to: '/review/$id', params: { id: row.id } as never })}
        empty={
          <EmptyState
            icon={IconGitPullRequest}
            title={page > 1 ? 'Nothing waits on this page anymore' : 'Nothing to review'}
            action={page > 1 ? <ButtonLink to="/review">The first page</ButtonLink> : null}
          >
            Versions appear here when an author submits them or an admin uses break glass.
          </EmptyState>
        }
      />
      <Pager
        page={page}
        size={PER_PAGE}
        total={query.data?.total ?? 0}
        onPage={(to) => void navigate({ search: to > 1 ? { page: to } : {} })}
      />
      <AlsoWaiting />
    </Page>
  );
}
