import '@mantine/core/styles/Switch.css';
import { Button, Group, Paper, Stack, Switch, Text, Textarea, TextInput, Title } from '@mantine/core';
import { useMutation, useQuery } from '@tanstack/react-query';
import { type FormEvent, type ReactNode, useState } from 'react';
import { problemOf } from '../../lib/errors.tsx';
import { useMe } from '../../lib/session.ts';
import { keepSettings, needsReason, type SettingsPatch as Patch, type Settings } from '../../lib/settings.ts';
import { trpc } from '../../lib/trpc.ts';
import { ConfirmDialog } from '../../ui/confirm.tsx';
import { Page } from '../../ui/page.tsx';
import { Shown } from '../../ui/states.tsx';
import { TokenIssuers } from './token-issuers.tsx';
import { WaitingChanges } from './waiting.tsx';

/** What holds for the whole tenant. Who is no admin reads it. */
export function SettingsPage() {
  const query = useQuery(trpc.settings.get.queryOptions({}));
  const me = useMe();
  const admin = me.has('admin');
  const change = useMutation(trpc.settings.change.mutationOptions({ onSuccess: (answer) => keepSettings(answer) }));
  /** What waits for its reason. */
  const [asked, setAsked] = useState<Patch>();
  const save = (patch: Patch) => (needsReason(patch) ? setAsked(patch) : change.mutate(patch));
  return (
    <Page
      title="Settings"
      lead={admin ? 'Changes take effect at once, and each one is audited.' : 'Only admins can change these.'}
      docs={[
        ['people#settings-of-a-tenant', 'What each setting means'],
        ['operation', 'Operation'],
        ['security', 'Security model'],
      ]}
    >
      <Shown query={query}>
        {(settings) => (
          <Stack gap="lg" maw={760}>
            <WaitingChanges />
            <Approval settings={settings} locked={!admin || change.isPending} save={save} />
            <Numbers
              key={`${settings.input_retention_days} ${settings.poll_seconds}`}
              settings={settings}
              locked={!admin}
              busy={change.isPending}
              save={save}
            />
            <ActionTypes
              key={JSON.stringify(settings.action_types)}
              settings={settings}
              locked={!admin}
              busy={change.isPending}
              fault={change.error}
              save={save}
            />
            {admin ? <TokenIssuers /> : null}
          </Stack>
        )}
      </Shown>
      <ConfirmDialog
        opened={asked !== undefined}
        onClose={() => setAsked(undefined)}
        title="Change a safeguard"
        action="Change"
        danger={false}
        reason={{ label: 'Reason', required: true }}
        onConfirm={(reason) => change.mutateAsync({ ...asked, reason })}
      >
        The reason stands in the audit log. Where approval is required and this takes a safeguard away, another person
        must approve it before it holds.
      </ConfirmDialog>
    </Page>
  );
}

interface Part {
  settings: Settings;
  locked: boolean;
  save: (patch: Patch) => void;
}

function Section({ title, children, lead }: { title: string; lead?: ReactNode; children: ReactNode }) {
  return (
    <Paper component="section" aria-label={title}>
      <Title order={2} size="h3">
        {title}
      </Title>
      {lead ? (
        <Text c="dimmed" mb="sm">
          {lead}
        </Text>
      ) : null}
      {children}
    </Paper>
  );
}

function Approval({ settings, locked, save }: Part) {
  const choices = [
    {
      name: 'approval_required',
      label: 'A version is enforced only after somebody else approved it',
      about: 'Create, update and roll back then add a draft; proxies keep enforcing the live version.',
    },
    {
      name: 'self_approval',
      label: 'Authors may approve their own version all the same',
      about: 'For teams of one. Who broke the glass still cannot close its review.',
      needs: settings.approval_required,
    },
    {
      name: 'policy_author_may_vote',
      label: 'The author of a live policy version may vote on the holds that it opens',
      about: 'Off: those who wrote the rule do not decide its exceptions.',
    },
    {
      name: 'magic_link_confirm',
      label: 'A sign-in link shows a button first',
      about: 'Unless the browser that asked for the link opens it: against mail scanners that follow links.',
    },
  ] as const;
  return (
    <Section title="Approval and sign-in">
      <Stack gap="sm" mt="sm">
        {choices.map(({ name, label, about, ...more }) => (
          <Switch
            key={name}
            label={label}
            description={about}
            checked={settings[name]}
            disabled={locked || ('needs' in more && !more.needs)}
            onChange={(event) => save({ [name]: event.currentTarget.checked })}
          />
        ))}
      </Stack>
    </Section>
  );
}

function Numbers({ settings, locked, busy, save }: Part & { busy: boolean }) {
  const [days, setDays] = useState(String(settings.input_retention_days));
  const [poll, setPoll] = useState(String(settings.poll_seconds));
  const fits = (text: string, most: number, least: number) =>
    /^\d+$/.test(text) && Number(text) >= least && Number(text) <= most;
  const daysFit = fits(days, 3650, 0);
  const pollFits = poll === '' || fits(poll, 3600, 1);
  const patch: Patch = {
    ...(Number(days) !== settings.input_retention_days && { input_retention_days: Number(days) }),
    ...(poll === ''
      ? { poll_seconds: null }
      : Number(poll) !== settings.poll_seconds && { poll_seconds: Number(poll) }),
  };
  const submit = (event: FormEvent) => {
    event.preventDefault();
    save(patch);
  };
  return (
    <Section title="Retention and polling">
      <form onSubmit={submit}>
        <Stack gap="sm" mt="sm">
          <TextInput
            label="Days that inputs of decisions are kept"
            description="The records of the chain are kept for ever and hold only the hash of an input. 0 keeps none."
            inputMode="numeric"
            value={days}
            onChange={(event) => setDays(event.currentTarget.value)}
            error={daysFit ? undefined : 'a whole number from 0 to 3650'}
            disabled={locked}
            maw={420}
          />
          <TextInput
            label="Seconds between two polls of a proxy"
            description="How soon a change of policy is enforced at the latest. Empty: as the server is set."
            placeholder="as the server is set"
            inputMode="numeric"
            value={poll}
            onChange={(event) => setPoll(event.currentTarget.value)}
            error={pollFits ? undefined : 'a whole number from 1 to 3600'}
            disabled={locked}
            maw={420}
          />
          {locked ? null : (
            <Group>
              <Button type="submit" loading={busy} disabled={!daysFit || !pollFits || Object.keys(patch).length === 0}>
                Save
              </Button>
            </Group>
          )}
        </Stack>
      </form>
    </Section>
  );
}

const NAMES = /[\s,]+/;

function ActionTypes({ settings, locked, busy, fault, save }: Part & { busy: boolean; fault: unknown }) {
  const [read, setRead] = useState(settings.action_types.read.join('\n'));
  const [write, setWrite] = useState(settings.action_types.write.join('\n'));
  const next = { read: read.split(NAMES).filter(Boolean), write: write.split(NAMES).filter(Boolean) };
  const changed = JSON.stringify(next) !== JSON.stringify(settings.action_types);
  const told = fault ? problemOf(fault).errors?.find(({ pointer }) => pointer?.startsWith('/action_types')) : undefined;
  return (
    <Section
      title="Action types"
      lead="Beside the built-in ones: api_call, tool_call, message_send and payment write; db_query and file_read read. Policies name them as Action::“type”."
    >
      <form
        onSubmit={(event) => {
          event.preventDefault();
          save({ action_types: next });
        }}
      >
        <Stack gap="sm">
          <Group grow align="flex-start" preventGrowOverflow={false}>
            <Textarea
              label="That read, one a line"
              autosize
              minRows={2}
              spellCheck={false}
              value={read}
              onChange={(event) => setRead(event.currentTarget.value)}
              disabled={locked}
            />
            <Textarea
              label="That write, one a line"
              autosize
              minRows={2}
              spellCheck={false}
              value={write}
              onChange={(event) => setWrite(event.currentTarget.value)}
              disabled={locked}
            />
          </Group>
          {told ? (
            <Text c="var(--mantine-color-error)" role="alert">
              {told.message}
            </Text>
          ) : null}
          {locked ? null : (
            <Group>
              <Button type="submit" loading={busy} disabled={!changed}>
                Save
              </Button>
            </Group>
          )}
        </Stack>
      </form>
    </Section>
  );
}
