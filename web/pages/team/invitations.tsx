import { Button, Group, Modal, NativeSelect, Stack, Text, TextInput } from '@mantine/core';
import { IconCheck, IconHourglassEmpty, IconMail, IconMailForward, IconPlayerStop } from '@tabler/icons-react';
import { keepPreviousData, useMutation, useQuery } from '@tanstack/react-query';
import { getRouteApi } from '@tanstack/react-router';
import { useEffect, useState } from 'react';
import { ROLES, type Role } from '../../../server/domain/principal.ts';
import { toastDone } from '../../lib/errors.tsx';
import { useServerForm } from '../../lib/form.ts';
import { queryClient } from '../../lib/query.ts';
import { type Answers, trpc } from '../../lib/trpc.ts';
import { CodeBlock } from '../../ui/code.tsx';
import { DataTable } from '../../ui/data-table.tsx';
import { ClearFilters, NothingMatches, TextFilter } from '../../ui/filters.tsx';
import { FormFoot } from '../../ui/form.tsx';
import { Notice } from '../../ui/notice.tsx';
import { Pager } from '../../ui/pager.tsx';
import { EmptyState } from '../../ui/states.tsx';
import { Tag } from '../../ui/status.tsx';
import { When } from '../../ui/time.tsx';
import { ROLE } from './person.tsx';
import { STATES, type TeamSearch } from './search.ts';

type Invitation = Answers['invites']['list']['invites'][number];
type Invited = Answers['invites']['create'];

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
  const set = (change: TeamSearch) => void navigate({ search: (old) => ({ ...old, page: undefined, ...change }) });
  const clear = () => set({ q: undefined, status: undefined });
  const filtered = q !== undefined || status !== undefined || page > 1;
  const [made, setMade] = useState<Invited>();
  const resend = useMutation(trpc.invites.resend.mutationOptions({ onSuccess: setMade, onSettled: again }));
  const revoke = useMutation(
    trpc.invites.revoke.mutationOptions({ onSuccess: () => toastDone('Invitation revoked'), onSettled: again }),
  );
  return (
    <>
      <LinkDialog made={made} onClose={() => setMade(undefined)} />
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
            <NothingMatches icon={IconMailForward} title="No invitations match the filters" clear={clear} />
          ) : (
            <EmptyState
              icon={IconMailForward}
              title="No invitations yet"
              action={<Button onClick={invite}>Invite</Button>}
            >
              An invitation is a link that makes an address a member, valid for 7 days.
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
            header: 'Expires',
            cell: ({ status, expires_at }) => (status === 'pending' ? <When at={expires_at} /> : null),
          },
          {
            header: 'Actions',
            align: 'right',
            cell: ({ id, status }) =>
              status === 'pending' ? (
                <Group gap={6} justify="flex-end" wrap="nowrap">
                  <Button size="compact-sm" variant="default" onClick={() => resend.mutate({ id })}>
                    New link
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

/**
 * How an invited person gets the link: a short message if it is mailed; otherwise a dialog, including the link itself if the
 * inviter has to pass it on.
 */
function LinkDialog({ made, onClose }: { made: Invited | undefined; onClose: () => void }) {
  const { email, role, link, link_by } = made ?? {};
  useEffect(() => {
    if (email === undefined || link_by !== 'mail') return;
    toastDone('Invited', `A link is on its way to ${email}. An earlier one no longer works.`);
    onClose();
  }, [email, link_by, onClose]);
  return (
    <Modal
      opened={made !== undefined && link_by !== 'mail'}
      onClose={onClose}
      size="lg"
      title={<strong>{link ? `Give ${email} this link` : 'Invited, but no mail is sent'}</strong>}
      closeButtonProps={{ 'aria-label': 'Close' }}
      closeOnClickOutside={false}
    >
      <Stack gap="sm">
        <Notice tone="wait" title="No mail server is set up">
          {link
            ? `Hand the link over yourself. It is shown only now; anyone who opens it first joins as ${role}. It works once, for 7 days.`
            : 'The operator finds the mail with the link among the files of the server (SVC_DATA_DIR/mail). You are not shown it, because changes here need a second person, or because the address had an account before.'}
        </Notice>
        {link ? <CodeBlock text={link} label="invitation link" wrap /> : null}
        <Text size="sm" c="dimmed">
          {link ? 'The audit log records that you were shown it. ' : ''}An earlier link for this address no longer
          works.
        </Text>
        <Group justify="flex-end">
          <Button onClick={onClose}>Done</Button>
        </Group>
      </Stack>
    </Modal>
  );
}

export function InviteDialog({ opened, onClose }: { opened: boolean; onClose: () => void }) {
  const form = useServerForm({ initialValues: { email: '', role: 'viewer' as Role } });
  const [invited, setInvited] = useState<Invited>();
  const make = useMutation(
    trpc.invites.create.mutationOptions({
      meta: { quiet: true },
      onError: form.refused,
      onSuccess: (made) => {
        setInvited(made);
        form.reset();
        onClose();
        return again();
      },
    }),
  );
  return (
    <>
      <LinkDialog made={invited} onClose={() => setInvited(undefined)} />
      <Modal opened={opened} onClose={onClose} title={<strong>Invite someone</strong>}>
        <form onSubmit={form.onSubmit(({ email, role }) => make.mutate({ email: email.trim(), role }))}>
          <Stack gap="sm">
            <TextInput type="email" label="Address" required data-autofocus {...form.getInputProps('email')} />
            <NativeSelect
              label="Role"
              description={ROLE[form.values.role]}
              data={[...ROLES]}
              {...form.getInputProps('role')}
            />
            <FormFoot
              action="Invite"
              fault={form.fault}
              busy={make.isPending}
              disabled={!/^\S+@\S+$/.test(form.values.email.trim())}
              onCancel={onClose}
            />
          </Stack>
        </form>
      </Modal>
    </>
  );
}
