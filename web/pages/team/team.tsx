import { Anchor, Button, TextInput } from '@mantine/core';
import { useDebouncedValue } from '@mantine/hooks';
import { IconPlus, IconSearch, IconUsers } from '@tabler/icons-react';
import { keepPreviousData, useQuery } from '@tanstack/react-query';
import { getRouteApi } from '@tanstack/react-router';
import { useState } from 'react';
import { trpc } from '../../lib/trpc.ts';
import { DataTable } from '../../ui/data-table.tsx';
import { Page } from '../../ui/page.tsx';
import { EmptyState } from '../../ui/states.tsx';
import { Tag } from '../../ui/status.tsx';
import { When } from '../../ui/time.tsx';
import { ApproverGroups } from './groups.tsx';
import { Invitations, InviteDialog } from './invitations.tsx';
import { type Person, PersonDrawer, topRole } from './person.tsx';

const route = getRouteApi('/app/team');
export const TABS = { members: 'Members', invitations: 'Invitations', groups: 'Approver groups' } as const;
export type Tab = keyof typeof TABS;

/** Who may do what here. */
export function Team() {
  const { tab = 'members' } = route.useSearch();
  const navigate = route.useNavigate();
  const [inviting, setInviting] = useState(false);
  const [adding, setAdding] = useState(false);
  return (
    <Page
      title="Team"
      lead="Each role includes those before it: viewer, author, approver, admin. A change of role holds at once."
      actions={
        tab === 'groups' ? (
          <Button leftSection={<IconPlus size={16} aria-hidden />} onClick={() => setAdding(true)}>
            New group
          </Button>
        ) : (
          <Button leftSection={<IconPlus size={16} aria-hidden />} onClick={() => setInviting(true)}>
            Invite
          </Button>
        )
      }
    >
      {/* biome-ignore lint/a11y/useSemanticElements: a fieldset is for what a form sends */}
      <div className="segments" role="group" aria-label="Part of the team" style={{ marginBottom: 12 }}>
        {(Object.keys(TABS) as Tab[]).map((name) => (
          <button
            key={name}
            type="button"
            aria-pressed={tab === name}
            onClick={() => void navigate({ search: name === 'members' ? {} : { tab: name } })}
          >
            {TABS[name]}
          </button>
        ))}
      </div>
      {tab === 'members' ? <Members /> : null}
      {tab === 'invitations' ? <Invitations invite={() => setInviting(true)} /> : null}
      {tab === 'groups' ? (
        <ApproverGroups adding={adding} close={() => setAdding(false)} add={() => setAdding(true)} />
      ) : null}
      <InviteDialog opened={inviting} onClose={() => setInviting(false)} />
    </Page>
  );
}

function Members() {
  const [text, setText] = useState('');
  const [q] = useDebouncedValue(text.trim(), 250);
  const [open, setOpen] = useState<string>();
  const query = useQuery(
    trpc.users.list.queryOptions({ limit: 200, q: q || undefined }, { placeholderData: keepPreviousData }),
  );
  const person = query.data?.users.find(({ id }) => id === open);
  return (
    <>
      <TextInput
        type="search"
        aria-label="Find by name or address"
        placeholder="Find by name or address"
        leftSection={<IconSearch size={16} aria-hidden />}
        value={text}
        onChange={(event) => setText(event.currentTarget.value)}
        maw={340}
        mb="sm"
      />
      <DataTable<Person>
        label="Members"
        rows={query.data?.users}
        error={query.error}
        retry={() => void query.refetch()}
        rowKey={({ id }) => id}
        onOpen={({ id }) => setOpen(id)}
        empty={<EmptyState icon={IconUsers} title="Nobody matches" />}
        columns={[
          {
            header: 'Name',
            main: true,
            cell: ({ id, name, email }) => (
              <div>
                <Anchor component="button" type="button" c="inherit" fw={600} onClick={() => setOpen(id)}>
                  {name}
                </Anchor>
                {name === email ? null : <div className="dim">{email}</div>}
              </div>
            ),
          },
          {
            header: 'Role',
            cell: (row) => {
              const role = topRole(row);
              return role ? (
                <Tag tone={role === 'admin' ? 'limit' : 'info'}>{role}</Tag>
              ) : (
                <span className="dim">none</span>
              );
            },
          },
          {
            header: 'Last sign-in',
            cell: ({ last_login }) => (last_login ? <When at={last_login} /> : <span className="dim">never</span>),
          },
          { header: 'Sessions', align: 'right', cell: ({ sessions }) => sessions },
          { header: 'Keys', align: 'right', cell: ({ keys }) => keys },
        ]}
      />
      <PersonDrawer person={person} onClose={() => setOpen(undefined)} />
    </>
  );
}
