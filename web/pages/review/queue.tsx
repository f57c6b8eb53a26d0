import { IconGitPullRequest } from '@tabler/icons-react';
import { useQuery } from '@tanstack/react-query';
import { useNavigate } from '@tanstack/react-router';
import { usePeople } from '../../lib/people.ts';
import { useMe } from '../../lib/session.ts';
import { trpc } from '../../lib/trpc.ts';
import { type Column, DataTable } from '../../ui/data-table.tsx';
import { PageLink } from '../../ui/link.tsx';
import { Page } from '../../ui/page.tsx';
import { EmptyState } from '../../ui/states.tsx';
import { Tag } from '../../ui/status.tsx';
import { When } from '../../ui/time.tsx';

/** The versions that wait for a second person. */
export function ReviewQueue() {
  const navigate = useNavigate();
  const me = useMe();
  const name = usePeople();
  const query = useQuery(trpc.policies.list.queryOptions({ status: 'pending_approval', limit: 200 }));
  type Row = NonNullable<typeof query.data>['policies'][number];
  const columns: Column<Row>[] = [
    {
      header: 'Policy',
      main: true,
      cell: (row) => (
        <PageLink to="/review/$id" params={{ id: row.id }} fw={600} c="inherit">
          {row.id}
        </PageLink>
      ),
    },
    {
      header: 'Version',
      cell: (row) => (
        <span>
          {row.version}{' '}
          <span className="dim">{row.live_version === null ? 'new' : `replaces ${row.live_version}`}</span>
        </span>
      ),
    },
    {
      header: 'Author',
      cell: (row) => (
        <span>
          {name(row.author_id)} {row.author_id === me.id ? <Tag tone="quiet">you</Tag> : null}
        </span>
      ),
    },
    { header: 'Waits since', cell: (row) => <When at={row.updated_at} />, align: 'right' },
  ];
  return (
    <Page title="Review" lead="Versions that wait for someone other than their author.">
      <DataTable
        label="Policies to review"
        columns={columns}
        rows={query.data?.policies}
        rowKey={(row) => row.id}
        error={query.error}
        retry={() => void query.refetch()}
        onOpen={(row) => void navigate({ to: '/review/$id', params: { id: row.id } as never })}
        empty={
          <EmptyState icon={IconGitPullRequest} title="Nothing waits for review">
            When an author submits a version it appears here by itself.
          </EmptyState>
        }
      />
    </Page>
  );
}
