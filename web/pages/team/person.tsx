import '@mantine/core/styles/Checkbox.css';
import '@mantine/core/styles/Drawer.css';
import { Button, Checkbox, Drawer, Group, NativeSelect, Stack, Text, Title } from '@mantine/core';
import { useMutation, useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { ROLES, type Role } from '../../../server/domain/principal.ts';
import { confirmed, toastDone } from '../../lib/errors.tsx';
import { queryClient } from '../../lib/query.ts';
import { topRole, useMe } from '../../lib/session.ts';
import { type Answers, api, trpc } from '../../lib/trpc.ts';
import { SessionList } from '../../parts/session-list.tsx';
import { ConfirmDialog } from '../../ui/confirm.tsx';
import { Id } from '../../ui/copy.tsx';
import { Said } from '../../ui/hostile.tsx';
import { Shown } from '../../ui/states.tsx';
import { When } from '../../ui/time.tsx';

export type Person = Answers['users']['list']['users'][number];

export const ROLE: Record<Role, string> = {
  viewer: 'sees everything, changes nothing',
  author: 'also writes and submits policies',
  approver: 'also approves policies and votes on holds',
  admin: 'also manages people, keys and settings',
};

/**
 * Gives a person this role and no higher one. The new role is granted before the others are revoked, so a failure in
 * between leaves them with too many roles rather than none.
 */
async function changeRole(person: Person, role: Role, reason: string, taken: { take_over?: 'true' }): Promise<void> {
  if (!person.roles.includes(role)) await api.users.grant.mutate({ id: person.id, role, reason });
  for (const held of person.roles) {
    if (ROLES.indexOf(held) <= ROLES.indexOf(role)) continue;
    await api.users.revoke.mutate({ id: person.id, role: held, reason, ...taken });
  }
}

/** One member: their role, their sessions, and removal. */
export function PersonDrawer({ person, onClose }: { person: Person | undefined; onClose: () => void }) {
  return (
    <Drawer
      opened={person !== undefined}
      onClose={onClose}
      position="right"
      size="md"
      title={<strong>{person?.name}</strong>}
    >
      {person ? <Body person={person} onClose={onClose} /> : null}
    </Drawer>
  );
}

function Body({ person, onClose }: { person: Person; onClose: () => void }) {
  const me = useMe();
  const [removing, setRemoving] = useState(false);
  const held = topRole(person.roles);
  const [chosen, choose] = useState<Role>();
  const [changing, setChanging] = useState(false);
  const [taking, setTaking] = useState(false);
  const taken = taking ? { take_over: 'true' as const } : {};
  const again = () => queryClient.invalidateQueries(trpc.users.pathFilter());
  const sessions = useQuery(trpc.sessions.listOf.queryOptions({ id: person.id }));
  const endOne = useMutation(trpc.sessions.endOneOf.mutationOptions({ onSettled: () => refresh() }));
  const endAll = useMutation(trpc.sessions.endAllOf.mutationOptions({ onSettled: () => refresh() }));
  const refresh = async () => {
    await queryClient.invalidateQueries(trpc.sessions.listOf.pathFilter());
    await again();
  };
  return (
    <Stack gap="lg">
      <dl className="facts">
        <dt>Address</dt>
        <dd>{person.email}</dd>
        <dt>Id</dt>
        <dd>
          <Id value={person.id} length={34} />
        </dd>
        <dt>Member since</dt>
        <dd>
          <When at={person.created_at} exact />
        </dd>
        <dt>Last sign-in</dt>
        <dd>{person.last_login ? <When at={person.last_login} /> : 'never'}</dd>
        <dt>Keys</dt>
        <dd>{person.keys === 0 ? 'none' : `${person.keys} active; they stop working when the person is removed`}</dd>
      </dl>
      <div>
        <Group align="flex-end" gap="xs" wrap="nowrap">
          <NativeSelect
            style={{ flex: 1 }}
            label="Role"
            value={chosen ?? held ?? ''}
            onChange={(event) => choose(event.currentTarget.value as Role)}
            data={[...(held ? [] : [{ value: '', label: 'none' }]), ...ROLES]}
          />
          {/* an arrow key in the field only selects, and changes nothing yet */}
          <Button disabled={!chosen || chosen === held} onClick={() => setChanging(true)}>
            Change the role
          </Button>
        </Group>
        <Text size="sm" c="dimmed" mt={4}>
          {chosen ?? held ?? 'viewer'} {ROLE[chosen ?? held ?? 'viewer']}
        </Text>
      </div>
      <section aria-label="Sessions">
        <Group justify="space-between">
          <Title order={3} size="h4">
            Sessions
          </Title>
          {(sessions.data?.sessions.length ?? 0) > 1 ? (
            <Button
              size="compact-sm"
              variant="default"
              loading={endAll.isPending}
              onClick={() => endAll.mutate({ id: person.id })}
            >
              End all
            </Button>
          ) : null}
        </Group>
        <Shown query={sessions} lines={2}>
          {({ sessions: rows }) => (
            <SessionList
              sessions={rows}
              onEnd={(session) => endOne.mutate({ id: person.id, session_id: session.id })}
            />
          )}
        </Shown>
      </section>
      <section aria-label="Remove">
        <Title order={3} size="h4">
          Remove from the team
        </Title>
        <Text c="dimmed" mb="xs">
          Their sessions, sign-in links, keys and invitations end immediately, and their votes no longer count, on
          releases that nobody has used yet either. What they did stays in the records. An invitation restores the same
          account.
        </Text>
        <Button
          variant="light"
          color="red"
          c="var(--bad)"
          disabled={person.id === me.id}
          onClick={() => setRemoving(true)}
        >
          Remove {person.name}
        </Button>
        {person.id === me.id ? (
          <Text size="sm" c="dimmed" mt={4}>
            Another admin must remove you.
          </Text>
        ) : null}
      </section>
      <ConfirmDialog
        opened={changing}
        onClose={() => setChanging(false)}
        title={`Make ${person.name} ${chosen ?? ''}`}
        action="Change the role"
        danger={chosen === 'admin' || held === 'admin'}
        reason={{ label: 'Reason', required: true }}
        onConfirm={async (reason) => {
          if (!chosen) return;
          await confirmed(() => changeRole(person, chosen, reason, taken)).finally(again);
          toastDone(`${person.name} is ${chosen} now`);
          choose(undefined);
        }}
      >
        {chosen ? (
          <>
            {person.name} is {held ?? 'without a role'} and becomes {chosen}: {ROLE[chosen]}. It takes effect at once,
            in every session.
            {held === 'admin' && chosen !== 'admin'
              ? ' Their keys, open invitations and waiting settings changes end.'
              : ''}
            {held === 'admin' && chosen !== 'admin' ? (
              <LeftBehind id={person.id} shown={changing} taking={taking} setTaking={setTaking} />
            ) : null}
          </>
        ) : null}
      </ConfirmDialog>
      <ConfirmDialog
        opened={removing}
        onClose={() => setRemoving(false)}
        title={`Remove ${person.name}`}
        action="Remove from the team"
        typed={person.email}
        reason={{ label: 'Reason', required: true }}
        onConfirm={async (reason) => {
          await confirmed(() => api.users.remove.mutate({ userId: person.id, reason, ...taken }));
          toastDone(`${person.name} removed`);
          await again();
          onClose();
        }}
      >
        {person.keys > 0
          ? `The ${person.keys === 1 ? 'key' : `${person.keys} keys`} that they created or own will stop working, and programs that use them will be refused.`
          : 'They are signed out everywhere immediately.'}
        <LeftBehind id={person.id} shown={removing} taking={taking} setTaking={setTaking} />
      </ConfirmDialog>
    </Stack>
  );
}

/** What the person set up that acts without them: what becomes of it, and the choice to take it over. */
function LeftBehind({
  id,
  shown,
  taking,
  setTaking,
}: {
  id: string;
  shown: boolean;
  taking: boolean;
  setTaking: (taking: boolean) => void;
}) {
  const { data } = useQuery({ ...trpc.users.left.queryOptions({ id }), enabled: shown });
  if (!data) return null;
  const { workload_trust, token_issuers, subscriptions, releases } = data;
  const lines: [string, readonly string[]][] = [
    ['Trusted pipelines that end', workload_trust.map(({ label }) => label)],
    [taking ? 'Token issuers that become yours' : 'Token issuers that end', token_issuers],
    [
      taking ? 'Subscriptions that become yours' : 'Subscriptions that are paused until another admin resumes them',
      subscriptions.map((one) => `${one.destination_type} ${one.id}`),
    ],
    ['Releases that end unless other approvals suffice', releases.map((one) => one.action_summary)],
  ];
  return (
    <>
      {lines
        .filter(([, names]) => names.length > 0)
        .map(([what, names]) => (
          <div key={what}>
            {what}:
            <ul className="plain-list" aria-label={what}>
              {names.map((name) => (
                <li key={name}>
                  <Said text={name} />
                </li>
              ))}
            </ul>
          </div>
        ))}
      {token_issuers.length + subscriptions.length > 0 ? (
        <Checkbox
          label="Take over their subscriptions and token issuers"
          description="They go on as they are, and you answer for them. You then cannot vote on holds of agents that these issuers may name"
          checked={taking}
          onChange={(event) => setTaking(event.currentTarget.checked)}
        />
      ) : null}
    </>
  );
}
