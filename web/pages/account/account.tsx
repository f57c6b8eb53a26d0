import { Button, Group, Paper, Stack, Title } from '@mantine/core';
import { useMutation, useQuery } from '@tanstack/react-query';
import { toastDone } from '../../lib/errors.tsx';
import { queryClient } from '../../lib/query.ts';
import { useMe } from '../../lib/session.ts';
import { signOut } from '../../lib/sign-out.ts';
import { trpc } from '../../lib/trpc.ts';
import { SessionList } from '../../parts/session-list.tsx';
import { SingleKeys } from '../../parts/single-keys.tsx';
import { Id } from '../../ui/copy.tsx';
import { Page } from '../../ui/page.tsx';
import { Shown } from '../../ui/states.tsx';
import { MailPreferences } from './mail.tsx';

/** The signed-in person: who they are here, and their other sessions. */
export function Account() {
  const me = useMe();
  const sessions = useQuery(trpc.sessions.list.queryOptions({}));
  const again = () => queryClient.invalidateQueries(trpc.sessions.list.pathFilter());
  const end = useMutation(trpc.sessions.end.mutationOptions({ onSettled: again }));
  const endOthers = useMutation(
    trpc.sessions.endOthers.mutationOptions({
      onSuccess: ({ ended }) => toastDone(`${ended} ${ended === 1 ? 'session' : 'sessions'} ended`),
      onSettled: again,
    }),
  );
  return (
    <Page title="Your account" lead="Who you are here, what you are mailed, and where you are signed in.">
      <Stack gap="lg" maw={680}>
        <Paper>
          <dl className="facts">
            <dt>Name</dt>
            <dd>{me.name}</dd>
            <dt>Address</dt>
            <dd>{me.email}</dd>
            <dt>Roles</dt>
            <dd>{me.roles.join(', ') || 'none'}</dd>
            <dt>Tenant</dt>
            <dd>
              <Id value={me.tenant} length={40} />
            </dd>
            <dt>Id</dt>
            <dd>
              <Id value={me.id} length={40} />
            </dd>
          </dl>
        </Paper>
        <MailPreferences />
        <Paper component="section" aria-label="Keyboard">
          <Title order={2} size="h3" mb="xs">
            Keyboard
          </Title>
          <SingleKeys />
        </Paper>
        <Paper component="section" aria-label="Sessions">
          <Group justify="space-between" mb="xs">
            <Title order={2} size="h3">
              Your sessions
            </Title>
            {(sessions.data?.sessions.length ?? 0) > 1 ? (
              <Button variant="default" size="xs" loading={endOthers.isPending} onClick={() => endOthers.mutate({})}>
                End all others
              </Button>
            ) : null}
          </Group>
          <Shown query={sessions} lines={3}>
            {({ sessions: rows }) => (
              <SessionList
                sessions={rows}
                onEnd={(session) => (session.current ? void signOut() : end.mutate({ id: session.id }))}
              />
            )}
          </Shown>
        </Paper>
      </Stack>
    </Page>
  );
}
