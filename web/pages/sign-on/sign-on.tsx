import '@mantine/core/styles/Switch.css';
import { Anchor, Button, Group, Paper, PasswordInput, Stack, Switch, Text, TextInput, Title } from '@mantine/core';
import '@mantine/core/styles/PasswordInput.css';
import { IconAlertTriangle, IconCheck, IconCircleDashed } from '@tabler/icons-react';
import { useMutation, useQuery } from '@tanstack/react-query';
import { type FormEvent, type ReactNode, useState } from 'react';
import { confirmed, problemOf, toastDone } from '../../lib/errors.tsx';
import { queryClient } from '../../lib/query.ts';
import { useMe } from '../../lib/session.ts';
import { keepSettings, toastWaits } from '../../lib/settings.ts';
import { type Answers, api, trpc } from '../../lib/trpc.ts';
import { CodeBlock } from '../../ui/code.tsx';
import { ConfirmDialog } from '../../ui/confirm.tsx';
import { Notice } from '../../ui/notice.tsx';
import { Page } from '../../ui/page.tsx';
import { Shown } from '../../ui/states.tsx';
import { Tag } from '../../ui/status.tsx';
import { When } from '../../ui/time.tsx';

type Connection = Answers['sso']['get'];
type Domain = Answers['sso']['domains']['domain_records'][number];

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

/** Reads again what a change of the provider may have changed, or made wait. */
async function refresh(): Promise<void> {
  await Promise.all([
    queryClient.invalidateQueries(trpc.sso.pathFilter()),
    queryClient.invalidateQueries(trpc.settings.changes.pathFilter()),
  ]);
}

function Step({
  number,
  title,
  done,
  lead,
  children,
}: {
  number: number;
  title: string;
  done: boolean;
  lead: ReactNode;
  children: ReactNode;
}) {
  return (
    <Paper component="li" aria-label={`Step ${number}: ${title}`}>
      <Group justify="space-between">
        <Title order={2} size="h3">
          {number}. {title}
        </Title>
        <Tag tone={done ? 'ok' : 'quiet'} icon={done ? IconCheck : IconCircleDashed}>
          {done ? 'done' : 'open'}
        </Tag>
      </Group>
      <Text c="dimmed" mb="sm" component="div">
        {lead}
      </Text>
      {children}
    </Paper>
  );
}

function Provider({ connection }: { connection: Connection }) {
  const [issuer, setIssuer] = useState(connection.issuer_url ?? '');
  const [client, setClient] = useState(connection.client_id ?? '');
  const [secret, setSecret] = useState('');
  const [reason, setReason] = useState('');
  const [removing, setRemoving] = useState(false);
  const changed = issuer !== (connection.issuer_url ?? '') || client !== (connection.client_id ?? '') || secret !== '';
  const keeps = connection.configured && issuer === connection.issuer_url && client === connection.client_id;
  const save = useMutation(
    trpc.sso.set.mutationOptions({
      meta: { quiet: true },
      onSuccess: ({ waiting }) => {
        if (waiting) toastWaits();
        else toastDone('The provider is set', 'Its issuer answered as it should.');
        setSecret('');
        setReason('');
      },
      onSettled: refresh,
    }),
  );
  const problem = save.error ? problemOf(save.error) : undefined;
  const submit = (event: FormEvent) => {
    event.preventDefault();
    save.mutate({
      issuer_url: issuer.trim(),
      client_id: client.trim(),
      ...(secret && { client_secret: secret }),
      reason: reason.trim(),
    });
  };
  return (
    <Step
      number={1}
      title="Your identity provider"
      done={connection.configured}
      lead="Register this program there as a web application with the authorization code flow and exactly this redirect URI, which is your organization’s alone:"
    >
      <CodeBlock text={connection.redirect_uri} label="redirect URI" />
      <form onSubmit={submit}>
        <Stack gap="sm" mt="sm">
          <TextInput
            label="Issuer"
            description="Its discovery document is read at once"
            placeholder="https://login.example.com"
            required
            spellCheck={false}
            value={issuer}
            onChange={(event) => setIssuer(event.currentTarget.value)}
          />
          <TextInput
            label="Client id"
            required
            spellCheck={false}
            value={client}
            onChange={(event) => setClient(event.currentTarget.value)}
          />
          <PasswordInput
            label="Client secret"
            description={keeps ? 'Empty keeps the one that is stored' : 'Stored encrypted, and never shown again'}
            required={!keeps}
            autoComplete="off"
            value={secret}
            onChange={(event) => setSecret(event.currentTarget.value)}
          />
          <TextInput
            label="Reason"
            description="For the audit log. Where approval is required, another person must approve a new provider"
            required
            value={reason}
            onChange={(event) => setReason(event.currentTarget.value)}
          />
          {problem ? (
            <Notice tone="bad" title={problem.title} urgent>
              {problem.errors?.map(({ message }) => message).join('; ') || problem.detail}
            </Notice>
          ) : null}
          <Group gap="xs">
            <Button
              type="submit"
              loading={save.isPending}
              disabled={!changed || [issuer, client, reason].some((text) => text.trim() === '')}
            >
              Check and save
            </Button>
            {connection.configured ? (
              <Button variant="default" onClick={() => setRemoving(true)}>
                Remove the provider
              </Button>
            ) : null}
          </Group>
        </Stack>
      </form>
      <ConfirmDialog
        opened={removing}
        onClose={() => setRemoving(false)}
        title="Remove the identity provider"
        action="Remove the provider"
        typed="remove"
        reason={{ label: 'Reason', required: true }}
        onConfirm={async (words) => {
          const { waiting } = await confirmed(() => api.sso.remove.mutate({ reason: words }));
          if (waiting) toastWaits();
          await refresh();
        }}
      >
        Nobody signs in through it any more, and which account there is which member is forgotten. Sessions that have
        begun go on until they end. Where approval is required, another person must approve it first.
      </ConfirmDialog>
    </Step>
  );
}

function Domains({ domains }: { domains: readonly Domain[] }) {
  const [name, setName] = useState('');
  const again = () => queryClient.invalidateQueries(trpc.sso.domains.pathFilter());
  const claim = useMutation(
    trpc.sso.claimDomain.mutationOptions({
      onSuccess: () => setName(''),
      onSettled: again,
    }),
  );
  return (
    <Step
      number={2}
      title="Your domains"
      done={domains.some(({ verified }) => verified)}
      lead="Whoever can publish this TXT record in the DNS owns the domain. Only one organization can have it."
    >
      <Stack gap="md">
        {domains.map((domain) => (
          <OneDomain key={domain.domain} domain={domain} again={again} />
        ))}
        <form
          onSubmit={(event) => {
            event.preventDefault();
            claim.mutate({ domain: name.trim() });
          }}
        >
          <Group align="flex-end" gap="xs">
            <TextInput
              label="Add a domain"
              placeholder="example.com"
              spellCheck={false}
              value={name}
              onChange={(event) => setName(event.currentTarget.value)}
              style={{ flex: '1 1 220px' }}
            />
            <Button type="submit" variant="default" loading={claim.isPending} disabled={name.trim() === ''}>
              Add
            </Button>
          </Group>
        </form>
      </Stack>
    </Step>
  );
}

function OneDomain({ domain, again }: { domain: Domain; again: () => Promise<void> }) {
  const [removing, setRemoving] = useState(false);
  const check = useMutation(
    trpc.sso.verifyDomain.mutationOptions({
      meta: { quiet: true },
      onSuccess: () => toastDone(`${domain.domain} is yours`, 'Its people can sign in through your provider.'),
      onSettled: again,
    }),
  );
  return (
    <section aria-label={domain.domain} style={{ borderTop: '1px solid var(--line)', paddingTop: 12 }}>
      <Group justify="space-between">
        <Group gap={8}>
          <strong>{domain.domain}</strong>
          <Tag tone={domain.verified ? 'ok' : 'wait'} icon={domain.verified ? IconCheck : IconCircleDashed}>
            {domain.verified ? 'verified' : 'waits for its record'}
          </Tag>
          {domain.record_missing_since ? (
            <Tag tone="bad" icon={IconAlertTriangle}>
              record missing since <When at={domain.record_missing_since} />
            </Tag>
          ) : null}
        </Group>
        <Group gap={6}>
          <Button
            size="compact-sm"
            variant="default"
            loading={check.isPending}
            onClick={() => check.mutate({ domain: domain.domain })}
          >
            Check now
          </Button>
          <Anchor component="button" type="button" size="sm" onClick={() => setRemoving(true)}>
            Remove
          </Anchor>
        </Group>
      </Group>
      <Stack gap={6} mt={8}>
        <Text size="sm" c="dimmed">
          A record of type TXT with this name and this value; DNS may need some minutes to show it.
        </Text>
        <CodeBlock text={domain.txt_name} label="name of the record" />
        <CodeBlock text={domain.txt_value} label="value of the record" wrap />
      </Stack>
      <div role="status">
        {check.error ? (
          <Text mt={6} c="var(--mantine-color-error)">
            {problemOf(check.error).detail ?? problemOf(check.error).title}
          </Text>
        ) : null}
        {domain.checked_at ? (
          <Text size="xs" c="dimmed" mt={4}>
            last looked <When at={domain.checked_at} />
          </Text>
        ) : null}
      </div>
      <ConfirmDialog
        opened={removing}
        onClose={() => setRemoving(false)}
        title={`Give ${domain.domain} up`}
        action="Give the domain up"
        onConfirm={async () => {
          await confirmed(() => api.sso.removeDomain.mutate({ domain: domain.domain }));
          await again();
        }}
      >
        Its people cannot sign in through your provider any more, and another organization may claim it.
      </ConfirmDialog>
    </section>
  );
}

function TryIt({ connection, ready }: { connection: Connection; ready: boolean }) {
  const me = useMe();
  return (
    <Step
      number={3}
      title="Try it"
      done={connection.proven_at !== undefined}
      lead="Sign in once as an admin through the provider, in another tab. Only then can it become the only way."
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
            An admin came in this way <When at={connection.proven_at} />.
          </Text>
        ) : (
          <Text c="dimmed">{ready ? 'Nobody did so far.' : 'First set the provider and verify a domain.'}</Text>
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
        keepSettings(answer, answer.sso_only ? 'Single sign-on is the only way in' : 'Links by mail work again'),
    }),
  );
  const [asked, setAsked] = useState<boolean>();
  return (
    <Step
      number={4}
      title="Make it the only way"
      done={only}
      lead="Then no link by mail signs anyone in, and the provider’s rules, such as a second factor, hold for everyone."
    >
      <Switch
        label="People sign in through the provider alone"
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
        title={asked ? 'Make single sign-on the only way in' : 'Let links by mail sign people in again'}
        action={asked ? 'Make it the only way' : 'Let links in'}
        danger={false}
        reason={{ label: 'Reason', required: true }}
        onConfirm={async (reason) => {
          // what is against it is told beside the switch
          await change.mutateAsync({ sso_only: asked ?? false, reason }).catch(() => undefined);
        }}
      >
        The reason stands in the audit log.
        {asked ? '' : ' Where approval is required, another person must approve it before it holds.'}
      </ConfirmDialog>
      <div style={{ marginTop: 12 }}>
        <Notice tone="info" title="Nobody is locked out">
          This is refused until an admin has come in through the provider as it is set now
          {connection.proven_at ? ', which one has' : ''}. While it holds, the provider and the last domain cannot be
          removed. Should the provider fail, the operator’s command <span className="mono">svc sign-in-link</span> still
          prints a sign-in link.
        </Notice>
      </div>
    </Step>
  );
}
