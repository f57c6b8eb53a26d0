import { Button, Group, Modal, NativeSelect, Stack, TextInput } from '@mantine/core';
import { IconCheck, IconHourglassEmpty, IconMail, IconMailForward, IconPlayerStop } from '@tabler/icons-react';
import { keepPreviousData, useMutation, useQuery } from '@tanstack/react-query';
import { getRouteApi } from '@tanstack/react-router';
import { type FormEvent, useState } from 'react';
import { ROLES, type Role } from '../../../server/domain/principal.ts';
import { problemOf, toastDone } from '../../lib/errors.tsx';
import { queryClient } from '../../lib/query.ts';
import { type Answers, trpc } from '../../lib/trpc.ts';
import { DataTable } from '../../ui/data-table.tsx';
import { ClearFilters, NothingMatches, TextFilter } from '../../ui/filters.tsx';
import { Pager } from '../../ui/pager.tsx';
import { EmptyState } from '../../ui/states.tsx';
import { Tag } from '../../ui/status.tsx';
import { When } from '../../ui/time.tsx';
import { ROLE } from './person.tsx';
import { STATES, type TeamSearch } from './search.ts';

type Invitation = Answers['invites']['list']['invites'][number];

const STATUS: Record<Invitation['status'], [string, 'ok' | 'wait' | 'quiet', typeof IconCheck]> = {
  pending: ['open', 'wait', IconMail],
  accepted: ['accepted', 'ok', IconCheck],
  revoked: ['revoked', 'quiet', IconPlayerStop],
  expired: ['expired', 'quiet', IconHourglassEmpty],
};

const route = getRouteApi('/app/team');
const PER_PAGE = 50;

const again = () => queryClient.invalidateQueries(trpc.invites.pathFilter());

export function Invitations({ invite }: { invite: () => void }) {
  const { q, status, page = 1 } = route.useSearch();
  const navigate = route.useNavigate();
  const query = useQuery(
    trpc.invites.list.queryOptions(
      { q, status, limit: PER_PAGE, offset: (page - 1) * PER_PAGE },
      { placeholderData: keepPreviousData },
    ),
  );
  const set = (change: TeamSearch) =>
    void navigate({ search: (old) => ({ ...old, page: undefined, ...change }), replace: true });
  const clear = () => set({ q: undefined, status: undefined });
  const filtered = q !== undefined || status !== undefined || page > 1;
  const resend = useMutation(
    trpc.invites.resend.mutationOptions({
      onSuccess: ({ email }) => toastDone('A new link is on its way', `to ${email}; the one before is dead`),
      onSettled: again,
    }),
  );
  const revoke = useMutation(
    trpc.invites.revoke.mutationOptions({ onSuccess: () => toastDone('The invitation is revoked'), onSettled: again }),
  );
  return (
    <>
      <search className="bar" aria-label="Filter invitations">
        <TextFilter label="Address" value={q} onChange={(value) => set({ q: value })} width={300} />
        <NativeSelect
          label="State"
          value={status ?? ''}
          onChange={(event) => set({ status: (event.currentTarget.value || undefined) as TeamSearch['status'] })}
          data={[{ value: '', label: 'all' }, ...STATES.map((value) => ({ value, label: STATUS[value][0] }))]}
          w={140}
        />
        {filtered ? <ClearFilters clear={clear} /> : null}
      </search>
      <DataTable<Invitation>
        label="Invitations"
        rows={query.data?.invites}
        error={query.error}
        retry={() => void query.refetch()}
        rowKey={({ id }) => id}
        empty={
          filtered ? (
            <NothingMatches icon={IconMailForward} title="No invitation fits the filters" clear={clear} />
          ) : (
            <EmptyState
              icon={IconMailForward}
              title="Nobody was invited yet"
              action={<Button onClick={invite}>Invite</Button>}
            >
              An invitation is a link by mail, good for 7 days.
            </EmptyState>
          )
        }
        columns={[
          { header: 'Address', main: true, cell: ({ email }) => <strong>{email}</strong> },
          { header: 'Role', cell: ({ role }) => role },
          {
            header: 'State',
            cell: ({ status }) => {
              const [word, tone, icon] = STATUS[status];
              return (
                <Tag tone={tone} icon={icon}>
                  {word}
                </Tag>
              );
            },
          },
          { header: 'Sent', cell: ({ sent_at }) => <When at={sent_at} /> },
          {
            header: 'Good until',
            cell: ({ status, expires_at }) => (status === 'pending' ? <When at={expires_at} /> : null),
          },
          {
            header: 'Actions',
            align: 'right',
            cell: ({ id, status }) =>
              status === 'pending' ? (
                <Group gap={6} justify="flex-end" wrap="nowrap">
                  <Button size="compact-sm" variant="default" onClick={() => resend.mutate({ id })}>
                    Send again
                  </Button>
                  <Button size="compact-sm" variant="default" onClick={() => revoke.mutate({ id })}>
                    Revoke
                  </Button>
                </Group>
              ) : null,
          },
        ]}
      />
      <Pager
        page={page}
        size={PER_PAGE}
        total={query.data?.total ?? 0}
        onPage={(to) => set({ page: to > 1 ? to : undefined })}
      />
    </>
  );
}

export function InviteDialog({ opened, onClose }: { opened: boolean; onClose: () => void }) {
  const [email, setEmail] = useState('');
  const [role, setRole] = useState<Role>('viewer');
  const make = useMutation(
    trpc.invites.create.mutationOptions({
      meta: { quiet: true },
      onSuccess: (made) => {
        toastDone('Invited', `A link is on its way to ${made.email}.`);
        setEmail('');
        onClose();
        return again();
      },
    }),
  );
  const submit = (event: FormEvent) => {
    event.preventDefault();
    make.mutate({ email: email.trim(), role });
  };
  const problem = make.error ? problemOf(make.error) : undefined;
  return (
    <Modal opened={opened} onClose={onClose} title={<strong>Invite somebody</strong>}>
      <form onSubmit={submit}>
        <Stack gap="sm">
          <TextInput
            type="email"
            label="Address"
            required
            value={email}
            onChange={(event) => setEmail(event.currentTarget.value)}
            error={problem ? (problem.errors?.[0]?.message ?? problem.detail ?? problem.title) : undefined}
            data-autofocus
          />
          <NativeSelect
            label="Role"
            description={ROLE[role]}
            value={role}
            onChange={(event) => setRole(event.currentTarget.value as Role)}
            data={[...ROLES]}
          />
          <Group justify="flex-end" gap="xs">
            <Button variant="default" onClick={onClose}>
              Cancel
            </Button>
            <Button type="submit" loading={make.isPending} disabled={!/^\S+@\S+$/.test(email.trim())}>
              Invite
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}
