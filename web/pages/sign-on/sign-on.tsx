import '@mantine/core/styles/Switch.css';
import { Button, Group, Stack, Switch, Text } from '@mantine/core';
import { useMutation, useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { problemOf } from '../../lib/problem.ts';
import { useMe } from '../../lib/session.ts';
import { keepSettings } from '../../lib/settings.ts';
import { type Answers, trpc } from '../../lib/trpc.ts';
import { ConfirmDialog } from '../../ui/confirm.tsx';
import { Notice } from '../../ui/notice.tsx';
import { Page } from '../../ui/page.tsx';
import { Shown } from '../../ui/states.tsx';
import { When } from '../../ui/time.tsx';
import { Domains } from './domains.tsx';
import { Provider } from './provider.tsx';
import { Step } from './step.tsx';

type Connection = Answers['sso']['get'];

/** Single sign-on with OpenID Connect, step by step: each step shows whether it is done. */
export function SignOn() {
  const connection = useQuery(trpc.sso.get.queryOptions({}));
  const domains = useQuery(trpc.sso.domains.queryOptions({}));
  const settings = useQuery(trpc.settings.get.queryOptions({}));
  const records = domains.data?.domain_records ?? [];
  return (
    <Page
      title="Sign-on"
      lead="People in your domains sign in through your identity provider. Roles are assigned here, by invitation or by an admin."
      docs={[['people#single-sign-on', 'Single sign-on']]}
    >
      <Shown query={connection}>
        {(shown) => (
          <Stack component="ol" gap="md" maw={760} m={0} p={0} style={{ listStyle: 'none' }}>
            <Provider key={shown.updated_at ?? 'none'} connection={shown} />
            <Domains domains={records} />
            <TryIt connection={shown} ready={shown.configured && records.some(({ verified }) => verified)} />
            <Only connection={shown} only={settings.data?.sso_only ?? false} />
          </Stack>
        )}
      </Shown>
    </Page>
  );
}

function TryIt({ connection, ready }: { connection: Connection; ready: boolean }) {
  const me = useMe();
  return (
    <Step
      number={3}
      title="Try it"
      done={connection.proven_at !== undefined}
      lead="Sign in once as an admin through the provider, in another tab. Only then can it become the only way to sign in."
    >
      <Group gap="sm">
        <Button
          component="a"
          href={`/auth/sso/start?email=${encodeURIComponent(me.email)}`}
          target="_blank"
          rel="noreferrer"
          variant="default"
          data-disabled={!ready || undefined}
          aria-disabled={!ready}
          onClick={(event) => !ready && event.preventDefault()}
        >
          Sign in as {me.email}
        </Button>
        {connection.proven_at ? (
          <Text c="dimmed">
            An admin signed in this way <When at={connection.proven_at} />.
          </Text>
        ) : (
          <Text c="dimmed">{ready ? 'No one has yet.' : 'First set the provider and verify a domain.'}</Text>
        )}
      </Group>
    </Step>
  );
}

function Only({ connection, only }: { connection: Connection; only: boolean }) {
  const change = useMutation(
    trpc.settings.change.mutationOptions({
      meta: { quiet: true },
      onSuccess: (answer) =>
        keepSettings(answer, answer.sso_only ? 'Single sign-on is the only way in' : 'Email links work again'),
    }),
  );
  const [asked, setAsked] = useState<boolean>();
  return (
    <Step
      number={4}
      title="Make it the only way"
      done={only}
      lead="Email links then sign no one in, and the provider’s rules, such as a second factor, apply to everyone."
    >
      <Switch
        label="People sign in only through the provider"
        checked={only}
        disabled={change.isPending}
        onChange={(event) => setAsked(event.currentTarget.checked)}
      />
      {change.error ? (
        <Text mt={6} c="var(--mantine-color-error)" role="alert">
          {problemOf(change.error).detail ?? problemOf(change.error).title}
        </Text>
      ) : null}
      <ConfirmDialog
        opened={asked !== undefined}
        onClose={() => setAsked(undefined)}
        title={asked ? 'Make single sign-on the only way in' : 'Allow email links again'}
        action={asked ? 'Make it the only way' : 'Allow email links'}
        danger={false}
        reason={{ label: 'Reason', required: true }}
        onConfirm={async (reason) => {
          // a refusal is shown next to the switch
          await change.mutateAsync({ sso_only: asked ?? false, reason }).catch(() => undefined);
        }}
      >
        The reason goes into the audit log.
        {asked ? '' : ' If approval is required, another person must approve this before it takes effect.'}
      </ConfirmDialog>
      <div style={{ marginTop: 12 }}>
        <Notice tone="info" title="No one is locked out">
          This is refused until an admin has signed in through the current provider
          {connection.proven_at ? ', which has happened' : ''}. While it is on, the provider and the last domain cannot
          be removed. If the provider fails, the operator’s command <span className="mono">svc sign-in-link</span> still
          prints a sign-in link.
        </Notice>
      </div>
    </Step>
  );
}
