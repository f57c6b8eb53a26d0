import '@mantine/core/styles/Checkbox.css';
import { Button, Checkbox, Group, Modal, Stack, Text, TextInput } from '@mantine/core';
import { IconUsersGroup } from '@tabler/icons-react';
import { keepPreviousData, useMutation, useQuery } from '@tanstack/react-query';
import { type FormEvent, useState } from 'react';
import { hasRole } from '../../../server/domain/principal.ts';
import { confirmed } from '../../lib/errors.tsx';
import { usePeople } from '../../lib/people.ts';
import { keepSettings } from '../../lib/settings.ts';
import { type Answers, api, trpc } from '../../lib/trpc.ts';
import { ConfirmDialog } from '../../ui/confirm.tsx';
import { DataTable } from '../../ui/data-table.tsx';
import { TextFilter } from '../../ui/filters.tsx';
import { EmptyState } from '../../ui/states.tsx';

type Groups = Answers['settings']['get']['approver_groups'];
interface Row {
  name: string;
  members: string[];
}

/** So many people are listed at once; the others are found by name. */
const MOST_FOUND = 50;

/** Groups of approvers, which a policy asks for by name: `@quorum("finance:1,security:1")`. */
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
          <EmptyState icon={IconUsersGroup} title="No group yet" action={<Button onClick={add}>New group</Button>}>
            A policy can ask for people of certain groups: <span className="mono">@quorum("finance:1,security:1")</span>
            .
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
                <span className="dim">nobody: no vote can fill it</span>
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
        Policies that ask for it open holds that nobody can release. Votes on open holds are counted again at once.
      </ConfirmDialog>
    </>
  );
}

function GroupForm({ groups, row, onDone }: { groups: Groups; row: Row | undefined; onDone: () => void }) {
  const [name, setName] = useState(row?.name ?? '');
  const [members, setMembers] = useState(row?.members ?? []);
  const [reason, setReason] = useState('');
  const [q, setQ] = useState<string>();
  const found = useQuery(trpc.users.list.queryOptions({ q, limit: MOST_FOUND }, { placeholderData: keepPreviousData }));
  const nameOf = usePeople();
  const people = found.data?.users ?? [];
  // who was in it when the form was opened, and whoever is chosen since, stays in view whatever is looked for
  const chosen = members.filter((id) => !people.some((person) => person.id === id));
  const taken = !row && Object.hasOwn(groups, name.trim());
  const save = useMutation(
    trpc.settings.change.mutationOptions({
      onSuccess: (answer) => {
        keepSettings(answer, 'The group is saved');
        onDone();
      },
    }),
  );
  const submit = (event: FormEvent) => {
    event.preventDefault();
    save.mutate({ approver_groups: { ...groups, [name.trim()]: members }, reason: reason.trim() });
  };
  return (
    <form onSubmit={submit}>
      <Stack gap="sm">
        {row ? null : (
          <TextInput
            label="Name"
            description="As policies write it"
            required
            maxLength={64}
            value={name}
            onChange={(event) => setName(event.currentTarget.value)}
            error={taken ? 'there is a group of this name' : undefined}
            data-autofocus
          />
        )}
        {q !== undefined || (found.data?.total ?? 0) > people.length ? (
          <TextFilter label="Find by name or address" value={q} onChange={setQ} />
        ) : null}
        <Checkbox.Group label="Members" value={members} onChange={setMembers}>
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
                  hasRole(person.roles, 'approver') ? person.email : `${person.email} · no approver: has no vote`
                }
              />
            ))}
            {found.data && people.length === 0 ? <Text c="dimmed">Nobody is called so.</Text> : null}
          </Stack>
        </Checkbox.Group>
        {found.data && found.data.total > people.length ? (
          <Text size="sm" c="dimmed">
            {people.length} of {found.data.total.toLocaleString()} people are listed: find the others by name.
          </Text>
        ) : null}
        <TextInput
          label="Reason"
          description="Where approval is required, another person must approve who comes in"
          required
          maxLength={2000}
          value={reason}
          onChange={(event) => setReason(event.currentTarget.value)}
        />
        <Text size="sm" c="dimmed">
          Votes on open holds are counted again at once.
        </Text>
        <Group justify="flex-end">
          <Button type="submit" loading={save.isPending} disabled={name.trim() === '' || taken || reason.trim() === ''}>
            Save
          </Button>
        </Group>
      </Stack>
    </form>
  );
}
