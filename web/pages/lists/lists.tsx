import { Button, Modal, Text } from '@mantine/core';
import { IconChecklist, IconPlus } from '@tabler/icons-react';
import { useQuery } from '@tanstack/react-query';
import { getRouteApi } from '@tanstack/react-router';
import { useState } from 'react';
import { useMe } from '../../lib/session.ts';
import { type Answers, trpc } from '../../lib/trpc.ts';
import { DataTable } from '../../ui/data-table.tsx';
import { PageLink } from '../../ui/link.tsx';
import { Page } from '../../ui/page.tsx';
import { EmptyState } from '../../ui/states.tsx';
import { When } from '../../ui/time.tsx';
import { ListForm } from './form.tsx';
import { Users, VersionTag } from './words.tsx';

const route = getRouteApi('/app/lists');

type List = Answers['lists']['list']['lists'][number];

/** The reference lists that policies name: known accounts, domains, hotels. */
export function ReferenceLists() {
  const me = useMe();
  const navigate = route.useNavigate();
  const [opened, open] = useState(false);
  const query = useQuery(trpc.lists.list.queryOptions({}));
  const create = me.has('author') ? (
    <Button leftSection={<IconPlus size={16} />} onClick={() => open(true)}>
      New list
    </Button>
  ) : undefined;
  return (
    <Page
      title="Lists"
      lead="Values that are known, such as accounts or mail domains. Policies name a list, and every enforcement point has it with the signed bundle."
      docs={[['policy-language#lists-and-facts', 'About lists']]}
      actions={create}
    >
      <DataTable<List>
        label="Reference lists by name"
        rows={query.data?.lists}
        error={query.error}
        retry={() => void query.refetch()}
        rowKey={({ name }) => name}
        onOpen={({ name }) => void navigate({ to: '/lists/$name', params: { name } })}
        empty={
          <EmptyState icon={IconChecklist} title="No lists yet" action={create}>
            <p>
              With a list of known accounts, a policy can permit payments to them and hold the others: it asks{' '}
              <code>context.facts.hasTag("iban in known-ibans")</code>.
            </p>
          </EmptyState>
        }
        columns={[
          {
            header: 'List',
            main: true,
            cell: ({ name }) => (
              <PageLink to="/lists/$name" params={{ name }} fw={600} c="inherit">
                {name}
              </PageLink>
            ),
          },
          {
            header: 'Newest version',
            bare: true,
            cell: (list) => <VersionTag list={list} version={list.newest} />,
            width: 190,
          },
          { header: 'Values', cell: ({ newest }) => newest.count.toLocaleString(), align: 'right', width: 100 },
          { header: 'Named by', cell: ({ used_by }) => <Users ids={used_by} /> },
          { header: 'Changed', cell: ({ newest }) => <When at={newest.created_at} />, align: 'right', width: 130 },
        ]}
      />
      <Modal
        opened={opened}
        onClose={() => open(false)}
        size="lg"
        title={<strong>New list</strong>}
        closeButtonProps={{ 'aria-label': 'Close' }}
      >
        <Text size="sm" c="dimmed" mb="sm">
          The name is what policies write. It cannot be changed later.
        </Text>
        <ListForm
          onDone={(name) => void navigate({ to: '/lists/$name', params: { name } })}
          onCancel={() => open(false)}
        />
      </Modal>
    </Page>
  );
}
