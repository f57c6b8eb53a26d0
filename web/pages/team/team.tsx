import { Button } from '@mantine/core';
import { IconPlus, IconUsers } from '@tabler/icons-react';
import { keepPreviousData, useQuery } from '@tanstack/react-query';
import { getRouteApi } from '@tanstack/react-router';
import { useState } from 'react';
import { topRole } from '../../lib/session.ts';
import { trpc } from '../../lib/trpc.ts';
import { DataTable } from '../../ui/data-table.tsx';
import { NothingMatches, TextFilter } from '../../ui/filters.tsx';
import { RowButton } from '../../ui/link.tsx';
import { Page } from '../../ui/page.tsx';
import { Pager } from '../../ui/pager.tsx';
import { Tag } from '../../ui/status.tsx';
import { When } from '../../ui/time.tsx';
import { ApproverGroups } from './groups.tsx';
import { Invitations, InviteDialog } from './invitations.tsx';
import { type Person, PersonDrawer } from './person.tsx';

const route = getRouteApi('/app/team');
export const TABS = { members: 'Members', invitations: 'Invitations', groups: 'Approver groups' } as const;
export type Tab = keyof typeof TABS;

/** Members, invitations and approver groups. */
export function Team() {
  const { tab = 'members' } = route.useSearch();
  const navigate = route.useNavigate();
  const [inviting, setInviting] = useState(false);
  const [adding, setAdding] = useState(false);
  return (
    <Page
      title="Team"
      lead="Each role includes those before it: viewer, author, approver, admin. Role changes take effect immediately."
      docs={[['people', 'Roles and keys']]}
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

const PER_PAGE = 50;

function Members() {
  const { q, page = 1 } = route.useSearch();
  const navigate = route.useNavigate();
  const [open, setOpen] = useState<string>();
  const query = useQuery(
    trpc.users.list.queryOptions(
      { q, limit: PER_PAGE, offset: (page - 1) * PER_PAGE },
      { placeholderData: keepPreviousData },
    ),
  );
  const person = query.data?.users.find(({ id }) => id === open);
  const clear = () => void navigate({ search: {} });
  return (
    <>
      <search className="bar" aria-label="Find people">
        <TextFilter
          label="Name or address"
          value={q}
          onChange={(value) => void navigate({ search: value ? { q: value } : {} })}
          width={300}
        />
      </search>
      <DataTable<Person>
        label="Members"
        rows={query.data?.users}
        error={query.error}
        retry={() => void query.refetch()}
        rowKey={({ id }) => id}
        onOpen={({ id }) => setOpen(id)}
        empty={
          <NothingMatches icon={IconUsers} title="No members match" clear={clear}>
            Removed members are not listed here. They are in the audit log.
          </NothingMatches>
        }
        columns={[
          {
            header: 'Name',
            main: true,
            cell: ({ id, name, email }) => (
              <div>
                <RowButton onClick={() => setOpen(id)}>{name}</RowButton>
                {name === email ? null : <div className="dim">{email}</div>}
              </div>
            ),
          },
          {
            header: 'Role',
            cell: (row) => {
              const role = topRole(row.roles);
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
      <Pager
        page={page}
        size={PER_PAGE}
        total={query.data?.total ?? 0}
        onPage={(to) => void navigate({ search: (old) => ({ ...old, page: to > 1 ? to : undefined }) })}
        words={['Before', 'After']}
      />
      <PersonDrawer person={person} onClose={() => setOpen(undefined)} />
    </>
  );
}
