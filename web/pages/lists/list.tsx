import './lists.css';
import { Button, Group, Modal, NativeSelect, Paper, Text, Title } from '@mantine/core';
import { useInfiniteQuery, useQuery } from '@tanstack/react-query';
import { getRouteApi } from '@tanstack/react-router';
import { useState } from 'react';
import { confirmed, toastDone } from '../../lib/errors.tsx';
import { filled } from '../../lib/form.ts';
import { usePeople } from '../../lib/people.ts';
import { queryClient } from '../../lib/query.ts';
import { useMe } from '../../lib/session.ts';
import { type Answers, api, trpc } from '../../lib/trpc.ts';
import { Broken } from '../../ui/broken.tsx';
import { ConfirmDialog } from '../../ui/confirm.tsx';
import { TextFilter } from '../../ui/filters.tsx';
import { Hostile, Said } from '../../ui/hostile.tsx';
import { Notice } from '../../ui/notice.tsx';
import { Page } from '../../ui/page.tsx';
import { More } from '../../ui/pager.tsx';
import { ErrorState, Loading } from '../../ui/states.tsx';
import { When } from '../../ui/time.tsx';
import { ListForm } from './form.tsx';
import { Users, VersionTag } from './words.tsx';

const route = getRouteApi('/app/lists/$name');
/** Longer lists are replaced by a file or by pasting, not edited in a text field. */
const MOST_EDITED = 1_000;
const PER_PAGE = 200;

type List = Answers['lists']['get'];
type Version = List['versions'][number];

/** One reference list: its values, its versions and what changed, and the decision about a pending version. */
export function ReferenceList() {
  const { name } = route.useParams();
  const query = useQuery(trpc.lists.get.queryOptions({ name, limit: MOST_EDITED }));
  if (query.error && !query.data) return <Broken error={query.error} reset={() => void query.refetch()} />;
  if (!query.data) {
    return (
      <Page title={name} tab={name}>
        <Loading lines={10} />
      </Page>
    );
  }
  return <Shown list={query.data} key={name} />;
}

const again = () => queryClient.invalidateQueries(trpc.lists.pathFilter());

function Shown({ list }: { list: List }) {
  const me = useMe();
  const navigate = route.useNavigate();
  const { version, from } = route.useSearch();
  const [dialog, open] = useState<'replace' | 'delete'>();
  const { name, newest, used_by } = list;
  const shown = list.versions.find((one) => one.version === version) ?? newest;
  const close = () => open(undefined);
  return (
    <Page
      title={
        <>
          {name} <VersionTag list={list} version={newest} />
        </>
      }
      tab={name}
      lead={
        <>
          Named by <Users ids={used_by} />.
        </>
      }
      docs={[['policy-language#lists-and-facts', 'About lists']]}
      actions={
        me.has('author') ? (
          <>
            <Button variant="default" onClick={() => open('delete')} disabled={used_by.length > 0}>
              Delete
            </Button>
            <Button onClick={() => open('replace')}>Replace the values</Button>
          </>
        ) : undefined
      }
    >
      {newest.status === 'pending' ? <Decide list={list} /> : null}
      <div className="list-halves">
        {from === undefined ? (
          <Values name={name} shown={shown} />
        ) : (
          <Difference name={name} from={from} to={shown.version} />
        )}
        <Versions list={list} shown={shown} />
      </div>
      <Modal
        opened={dialog === 'replace'}
        onClose={close}
        size="lg"
        title={<strong>Replace the values of {name}</strong>}
        closeButtonProps={{ 'aria-label': 'Close' }}
      >
        <ListForm
          list={{ name, version: list.version, values: list.next === null && newest.kept ? list.values : undefined }}
          onDone={close}
          onCancel={close}
        />
      </Modal>
      <ConfirmDialog
        opened={dialog === 'delete'}
        onClose={close}
        title={`Delete ${name}`}
        action="Delete the list"
        typed={name}
        reason={{ label: 'Reason', required: true }}
        onConfirm={async (reason) => {
          await confirmed(() => api.lists.remove.mutate({ name, reason }));
          toastDone('List deleted');
          await navigate({ to: '/lists' });
          await again();
        }}
      >
        The values of all its versions are deleted. No live policy names it; drafts that do can no longer be enforced.
      </ConfirmDialog>
    </Page>
  );
}

/** A pending version: what it changes, and the buttons to decide it. */
function Decide({ list }: { list: List }) {
  const me = useMe();
  const person = usePeople();
  const navigate = route.useNavigate();
  const [opened, open] = useState<'approve' | 'reject'>();
  const { name, newest, live_version } = list;
  const own = newest.author_id === me.id;
  const approved = live_version ?? list.versions.find(({ status }) => status === 'approved')?.version ?? 0;
  const wrote = list.versions.some(({ version, author_id }) => version > approved && author_id === me.id);
  const decide = (verdict: 'approve' | 'reject') => async (words: string) => {
    const asked = { name, version: newest.version };
    await confirmed(() =>
      verdict === 'approve'
        ? api.lists.approve.mutate({ ...asked, comment: filled(words) })
        : api.lists.reject.mutate({ ...asked, reason: words }),
    );
    await again();
    toastDone(verdict === 'approve' ? 'In use from now on' : 'Rejected');
  };
  return (
    <Notice tone="wait" title={`Version ${newest.version} waits for approval`}>
      <Text size="sm">
        By {person(newest.author_id)}: {newest.added.toLocaleString()} added, {newest.removed.toLocaleString()} removed.
        {live_version === null
          ? ' Until then no policy that names the list can be enforced.'
          : ` Decisions use version ${live_version} meanwhile.`}
      </Text>
      <Group gap="xs" mt="xs">
        {live_version === null ? null : (
          <Button
            size="xs"
            variant="default"
            onClick={() => void navigate({ search: { version: newest.version, from: live_version } })}
          >
            What changed
          </Button>
        )}
        {me.has('approver') ? (
          <>
            <Button size="xs" onClick={() => open('approve')} disabled={wrote}>
              Approve
            </Button>
            <Button size="xs" variant="default" onClick={() => open('reject')}>
              {own ? 'Withdraw' : 'Reject'}
            </Button>
          </>
        ) : null}
      </Group>
      <ConfirmDialog
        opened={opened === 'approve'}
        onClose={() => open(undefined)}
        title={`Approve version ${newest.version}`}
        action="Approve"
        danger={false}
        reason={{ label: 'Comment', comment: true }}
        onConfirm={decide('approve')}
      >
        Decisions use its {newest.count.toLocaleString()} values from now on.
      </ConfirmDialog>
      <ConfirmDialog
        opened={opened === 'reject'}
        onClose={() => open(undefined)}
        title={`${own ? 'Withdraw' : 'Reject'} version ${newest.version}`}
        action={own ? 'Withdraw' : 'Reject'}
        reason={{ label: 'Reason', required: true }}
        onConfirm={decide('reject')}
      >
        The version in use stays.
      </ConfirmDialog>
    </Notice>
  );
}

function Values({ name, shown }: { name: string; shown: Version }) {
  const { q } = route.useSearch();
  const navigate = route.useNavigate();
  const asked = { name, version: shown.version, q, limit: PER_PAGE };
  const query = useInfiniteQuery({
    queryKey: [...trpc.lists.get.queryKey(asked), 'pages'],
    queryFn: ({ pageParam, signal }) => api.lists.get.query({ ...asked, after: pageParam }, { signal }),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.next ?? undefined,
    enabled: shown.kept,
  });
  const values = query.data?.pages.flatMap((page) => page.values) ?? [];
  return (
    <Paper component="section" aria-labelledby="values">
      <Title order={2} id="values" size="h3" mb="xs">
        {shown.count.toLocaleString()} values of version {shown.version}
      </Title>
      {shown.kept ? (
        <>
          <search aria-label="Search in the values">
            <TextFilter
              label="Value contains"
              value={q}
              onChange={(next) => void navigate({ search: (old) => ({ ...old, q: next }) })}
              width={240}
            />
          </search>
          {query.error ? <ErrorState error={query.error} retry={() => void query.refetch()} /> : null}
          {query.data && values.length === 0 ? (
            <Text c="dimmed" mt="sm">
              {q === undefined ? 'This list is empty.' : 'No value contains this.'}
            </Text>
          ) : (
            <ul className="list-values" aria-label="Values">
              {values.map((value) => (
                <li key={value}>
                  <Hostile text={value} />
                </li>
              ))}
            </ul>
          )}
          <More
            query={query}
            label="More values"
            shown={values.length}
            {...(q === undefined && { total: shown.count })}
          />
        </>
      ) : (
        <Text c="dimmed">
          The values of this version are no longer kept: only those of the newest 20, and of the one in use.
        </Text>
      )}
    </Paper>
  );
}

/** How many values of a comparison are initially shown. */
const FEW = 100;

function Difference({ name, from, to }: { name: string; from: number; to: number }) {
  const navigate = route.useNavigate();
  const [all, showAll] = useState(false);
  const query = useQuery(trpc.lists.diff.queryOptions({ name, from, to }));
  return (
    <Paper component="section" aria-labelledby="difference">
      <Group justify="space-between" mb="xs">
        <Title order={2} id="difference" size="h3">
          From version {from} to {to}
        </Title>
        <Button size="xs" variant="default" onClick={() => void navigate({ search: { version: to } })}>
          Show the values
        </Button>
      </Group>
      {query.error ? <ErrorState error={query.error} retry={() => void query.refetch()} /> : null}
      {query.data
        ? (['added', 'removed'] as const).map((what) => {
            const { values, total } = query.data[what];
            return (
              <div key={what}>
                <Title order={3} size="h5" mt="sm">
                  {total.toLocaleString()} {what}
                </Title>
                <ul className="list-values" data-change={what} aria-label={`Values ${what}`}>
                  {(all ? values : values.slice(0, FEW)).map((value) => (
                    <li key={value}>
                      <Hostile text={value} />
                    </li>
                  ))}
                </ul>
                {!all && values.length > FEW ? (
                  <Button
                    size="xs"
                    variant="default"
                    mt="xs"
                    onClick={() => showAll(true)}
                    aria-label={`Show more ${what}`}
                  >
                    Show more
                  </Button>
                ) : null}
                {all && total > values.length ? (
                  <Text size="sm" c="dimmed">
                    The first {values.length.toLocaleString()} are shown.
                  </Text>
                ) : null}
              </div>
            );
          })
        : null}
    </Paper>
  );
}

function Versions({ list, shown }: { list: List; shown: Version }) {
  const person = usePeople();
  const navigate = route.useNavigate();
  const { from } = route.useSearch();
  const others = list.versions.filter(({ version, kept }) => kept && version !== shown.version);
  return (
    <Paper component="section" aria-labelledby="versions">
      <Title order={2} id="versions" size="h3" mb="xs">
        Versions
      </Title>
      {shown.kept && others.length > 0 ? (
        <NativeSelect
          label={`Compare version ${shown.version} with`}
          size="xs"
          mb="sm"
          value={from ?? ''}
          data={[
            { value: '', label: 'none' },
            ...others.map(({ version }) => ({ value: `${version}`, label: `version ${version}` })),
          ]}
          onChange={(event) => {
            const other = Number(event.currentTarget.value);
            void navigate({ search: { version: shown.version, ...(other > 0 && { from: other }) } });
          }}
        />
      ) : null}
      <ul className="plain-list">
        {list.versions.map((version) => (
          <li key={version.version} style={{ marginBottom: 10 }}>
            <VersionTag list={list} version={version} />{' '}
            {version.version === shown.version ? (
              <strong>shown</strong>
            ) : (
              <Button
                size="compact-xs"
                variant="subtle"
                onClick={() => void navigate({ search: { version: version.version } })}
                aria-label={`Show version ${version.version}`}
              >
                Show
              </Button>
            )}
            <div className="dim">
              {version.count.toLocaleString()} values, {version.added.toLocaleString()} added,{' '}
              {version.removed.toLocaleString()} removed, by {person(version.author_id)},{' '}
              <When at={version.created_at} />
            </div>
            {version.decided_by ? (
              <div className="dim">
                {version.status} by {person(version.decided_by)}
              </div>
            ) : null}
            {version.comment ? (
              <div style={{ whiteSpace: 'pre-wrap' }}>
                <Said text={version.comment} />
              </div>
            ) : null}
          </li>
        ))}
      </ul>
    </Paper>
  );
}
