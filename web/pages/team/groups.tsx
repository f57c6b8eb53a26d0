import '@mantine/core/styles/Checkbox.css';
import { Button, Checkbox, Group, Modal, Stack, Text, TextInput } from '@mantine/core';
import { IconUsersGroup } from '@tabler/icons-react';
import { keepPreviousData, useMutation, useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { hasRole } from '../../../server/domain/principal.ts';
import { confirmed } from '../../lib/errors.tsx';
import { asReason, filled, useServerForm } from '../../lib/form.ts';
import { usePeople } from '../../lib/people.ts';
import { keepSettings } from '../../lib/settings.ts';
import { type Answers, api, trpc } from '../../lib/trpc.ts';
import { ConfirmDialog } from '../../ui/confirm.tsx';
import { DataTable } from '../../ui/data-table.tsx';
import { TextFilter } from '../../ui/filters.tsx';
import { FormFoot, ReasonField } from '../../ui/form.tsx';
import { EmptyState } from '../../ui/states.tsx';

type Groups = Answers['settings']['get']['approver_groups'];
interface Row {
  name: string;
  members: string[];
}

/** The maximum number of people listed; others can be found by name. */
const MAX_FOUND = 50;

/** Groups of approvers, which policies refer to by name: `@quorum("finance:1,security:1")`. */
export function ApproverGroups({ adding, close, add }: { adding: boolean; close: () => void; add: () => void }) {
  const settings = useQuery(trpc.settings.get.queryOptions({}));
  const [editing, setEditing] = useState<Row>();
  const [removing, setRemoving] = useState<Row>();
  const groups = settings.data?.approver_groups;
  const nameOf = usePeople();
  const opened = adding || editing !== undefined;
  const done = () => {
    close();
    setEditing(undefined);
  };
  return (
    <>
      <DataTable<Row>
        label="Approver groups"
        rows={groups && Object.entries(groups).map(([name, members]) => ({ name, members }))}
        error={settings.error}
        retry={() => void settings.refetch()}
        rowKey={({ name }) => name}
        empty={
          <EmptyState icon={IconUsersGroup} title="No groups yet" action={<Button onClick={add}>New group</Button>}>
            A policy can require approvals from specific groups:{' '}
            <span className="mono">@quorum("finance:1,security:1")</span>.
          </EmptyState>
        }
        columns={[
          { header: 'Group', main: true, cell: ({ name }) => <strong className="mono">{name}</strong> },
          {
            header: 'Members',
            cell: ({ members }) =>
              members.length ? (
                members.map(nameOf).join(', ')
              ) : (
                <span className="dim">no members: no one can approve for it</span>
              ),
          },
          {
            header: 'Actions',
            align: 'right',
            cell: (row) => (
              <Group gap={6} justify="flex-end" wrap="nowrap">
                <Button size="compact-sm" variant="default" onClick={() => setEditing(row)}>
                  Edit
                </Button>
                <Button size="compact-sm" variant="default" onClick={() => setRemoving(row)}>
                  Delete
                </Button>
              </Group>
            ),
          },
        ]}
      />
      <Modal opened={opened} onClose={done} title={<strong>{editing ? `Group ${editing.name}` : 'New group'}</strong>}>
        {opened && groups ? <GroupForm groups={groups} row={editing} onDone={done} /> : null}
      </Modal>
      <ConfirmDialog
        opened={removing !== undefined}
        onClose={() => setRemoving(undefined)}
        title={`Delete the group ${removing?.name ?? ''}`}
        action="Delete the group"
        reason={{ label: 'Reason', required: true }}
        onConfirm={async (reason) => {
          const { [removing!.name]: _gone, ...rest } = groups ?? {};
          keepSettings(await confirmed(() => api.settings.change.mutate({ approver_groups: rest, reason })));
        }}
      >
        Policies that require this group open holds that no one can release. Votes on open holds are counted again
        immediately.
      </ConfirmDialog>
    </>
  );
}

function GroupForm({ groups, row, onDone }: { groups: Groups; row: Row | undefined; onDone: () => void }) {
  const form = useServerForm({
    initialValues: { name: row?.name ?? '', members: row?.members ?? [], reason: '' },
    validate: { name: (name) => (!row && Object.hasOwn(groups, name.trim()) ? 'A group with this name exists' : null) },
    validateInputOnChange: ['name'],
    pointers: { members: '/approver_groups' },
  });
  const { name, members, reason } = form.values;
  const [q, setQ] = useState<string>();
  const found = useQuery(trpc.users.list.queryOptions({ q, limit: MAX_FOUND }, { placeholderData: keepPreviousData }));
  const nameOf = usePeople();
  const people = found.data?.users ?? [];
  // members always stay listed, whatever the search finds
  const chosen = members.filter((id) => !people.some((person) => person.id === id));
  const save = useMutation(
    trpc.settings.change.mutationOptions({
      meta: { quiet: true },
      onError: form.refused,
      onSuccess: (answer) => {
        keepSettings(answer, 'Group saved');
        onDone();
      },
    }),
  );
  return (
    <form
      onSubmit={form.onSubmit(({ name, members, reason }) =>
        save.mutate({ approver_groups: { ...groups, [name.trim()]: members }, reason: asReason(reason) }),
      )}
    >
      <Stack gap="sm">
        {row ? null : (
          <TextInput
            label="Name"
            description="The name that policies use"
            required
            maxLength={64}
            data-autofocus
            {...form.getInputProps('name')}
          />
        )}
        {q !== undefined || (found.data?.total ?? 0) > people.length ? (
          <TextFilter label="Find by name or address" value={q} onChange={setQ} />
        ) : null}
        <Checkbox.Group label="Members" {...form.getInputProps('members')}>
          <Stack gap={8} mt={6} mah={300} style={{ overflowY: 'auto' }}>
            {chosen.map((id) => (
              <Checkbox key={id} value={id} label={nameOf(id)} />
            ))}
            {people.map((person) => (
              <Checkbox
                key={person.id}
                value={person.id}
                label={person.name}
                description={
                  hasRole(person.roles, 'approver') ? person.email : `${person.email} · not an approver: cannot vote`
                }
              />
            ))}
            {found.data && people.length === 0 ? <Text c="dimmed">No one matches.</Text> : null}
          </Stack>
        </Checkbox.Group>
        {found.data && found.data.total > people.length ? (
          <Text size="sm" c="dimmed">
            Showing {people.length} of {found.data.total.toLocaleString()} people. Search to find the others.
          </Text>
        ) : null}
        <ReasonField
          description="If approval is required, another person must approve new members"
          {...form.getInputProps('reason')}
        />
        <Text size="sm" c="dimmed">
          Votes on open holds are counted again immediately.
        </Text>
        <FormFoot
          action="Save"
          fault={form.fault}
          busy={save.isPending}
          disabled={!filled(name) || form.errors.name !== undefined || !filled(reason)}
        />
      </Stack>
    </form>
  );
}
