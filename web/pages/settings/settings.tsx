import '@mantine/core/styles/Switch.css';
import { Button, Group, Paper, Stack, Switch, Text, Textarea, TextInput, Title } from '@mantine/core';
import { useMutation, useQuery } from '@tanstack/react-query';
import { type ReactNode, useEffect, useState } from 'react';
import { ACTION_TYPES } from '../../../server/domain/policy.ts';
import { useServerForm } from '../../lib/form.ts';
import { needsReason } from '../../lib/guarded.ts';
import { useMe } from '../../lib/session.ts';
import { keepSettings, type SettingsPatch as Patch, type Settings } from '../../lib/settings.ts';
import { trpc } from '../../lib/trpc.ts';
import { ConfirmDialog } from '../../ui/confirm.tsx';
import { Page } from '../../ui/page.tsx';
import { Shown } from '../../ui/states.tsx';
import { effectsOf } from './effects.ts';
import { TokenIssuers } from './token-issuers.tsx';
import { WaitingChanges } from './waiting.tsx';

/** Settings for the whole tenant. Only admins can change them. */
export function SettingsPage() {
  const query = useQuery(trpc.settings.get.queryOptions({}));
  const me = useMe();
  const admin = me.has('admin');
  const change = useMutation(trpc.settings.change.mutationOptions({ onSuccess: (answer) => keepSettings(answer) }));
  /** A change that still needs its reason. */
  const [asked, setAsked] = useState<Patch>();
  const save = (patch: Patch) => (needsReason(patch) ? setAsked(patch) : change.mutate(patch));
  return (
    <Page
      title="Settings"
      lead={admin ? 'Changes take effect immediately and are audited.' : 'Only admins can change these.'}
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
              key={`${settings.input_retention_days} ${settings.projection_retention_days} ${settings.poll_seconds} ${settings.stop_grace_seconds}`}
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
        <Effects settings={query.data} patch={asked} />
        The reason goes into the audit log. If approval is required and this removes a safeguard, another person must
        approve the change before it takes effect.
      </ConfirmDialog>
    </Page>
  );
}

/** Explains what the change does, so that no one has to know it. */
function Effects({ settings, patch }: { settings: Settings | undefined; patch: Patch | undefined }) {
  if (!settings || !patch) return null;
  return (
    <ul className="plain-list" aria-label="What this does">
      {effectsOf(settings, patch).map((effect) => (
        <li key={effect}>{effect}</li>
      ))}
    </ul>
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
      label: 'A version is enforced only after someone else approves it',
      about: 'Create, update and roll back add a draft; proxies keep enforcing the live version.',
    },
    {
      name: 'self_approval',
      label: 'Authors may approve their own versions',
      about: 'For teams of one. The person who used break glass still cannot close its review.',
      needs: settings.approval_required,
    },
    {
      name: 'reasons_required',
      label: 'Changes that the audit log keeps a reason for need one',
      about: 'From everybody: the dashboard always asks, the API otherwise takes these changes without a reason.',
    },
    {
      name: 'tests_required',
      label: 'A version needs tests that pass',
      about: 'It is submitted and enforced only with at least one test. Break glass skips this check.',
    },
    {
      name: 'simulation_required',
      label: 'A version needs a simulation on past decisions',
      about:
        'It is submitted and enforced only with a finished one against the live policies. Break glass skips this check.',
    },
    {
      name: 'policy_author_may_vote',
      label: 'The authors of a live policy version may vote on the holds it opens',
      about: 'When off, people who wrote a rule do not decide its exceptions.',
    },
    {
      name: 'magic_link_confirm',
      label: 'Sign-in links show a button first',
      about: 'Protects against mail scanners that follow links. Not shown in the browser that requested the link.',
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
  const whole = (text: string, least: number, most: number) =>
    /^\d+$/.test(text) && Number(text) >= least && Number(text) <= most
      ? null
      : `Enter a whole number from ${least} to ${most}`;
  const form = useServerForm({
    initialValues: {
      days: String(settings.input_retention_days),
      projected: String(settings.projection_retention_days),
      poll: String(settings.poll_seconds),
      grace: String(settings.stop_grace_seconds),
      coverage: String(settings.min_coverage),
    },
    validate: {
      days: (days) => whole(days, 0, 3650),
      projected: (projected) => whole(projected, 0, 3650),
      coverage: (coverage) => whole(coverage, 0, 100),
      grace: (grace) => whole(grace, 0, 86_400),
      poll: (poll) => (poll === '' ? null : whole(poll, 1, 3600)),
    },
    validateInputOnChange: true,
  });
  const { days, projected, poll, grace, coverage } = form.values;
  const patch: Patch = {
    ...(Number(days) !== settings.input_retention_days && { input_retention_days: Number(days) }),
    ...(Number(projected) !== settings.projection_retention_days && { projection_retention_days: Number(projected) }),
    ...(Number(coverage) !== settings.min_coverage && { min_coverage: Number(coverage) }),
    ...(Number(grace) !== settings.stop_grace_seconds && { stop_grace_seconds: Number(grace) }),
    ...(poll === ''
      ? { poll_seconds: null }
      : Number(poll) !== settings.poll_seconds && { poll_seconds: Number(poll) }),
  };
  return (
    <Section title="Retention, polling and coverage">
      <form onSubmit={form.onSubmit(() => save(patch))}>
        <Stack gap="sm" mt="sm">
          <TextInput
            label="Days to keep decision inputs"
            description="Chain records are kept forever and contain only salted hashes. 0 keeps no inputs."
            inputMode="numeric"
            disabled={locked}
            maw={420}
            {...form.getInputProps('days')}
          />
          <TextInput
            label="Days to keep what policies read of them"
            description="Enough to derive a decision again. It has a retention period of its own."
            inputMode="numeric"
            disabled={locked}
            maw={420}
            {...form.getInputProps('projected')}
          />
          <TextInput
            label="Seconds between proxy polls"
            description="A policy change is enforced within this time. Leave empty to use the server’s setting."
            placeholder="server setting"
            inputMode="numeric"
            disabled={locked}
            maw={420}
            {...form.getInputProps('poll')}
          />
          <TextInput
            label="Seconds until a proxy without contact denies writes"
            description="A proxy that has not reached the server for this long denies everything but reads. 0 turns this off."
            inputMode="numeric"
            disabled={locked}
            maw={420}
            {...form.getInputProps('grace')}
          />
          <TextInput
            label="Percentage of statements that tests must cover"
            description="Before a policy version is submitted or enforced. A version without tests covers 0."
            inputMode="numeric"
            disabled={locked}
            maw={420}
            {...form.getInputProps('coverage')}
          />
          {locked ? null : (
            <Group>
              <Button
                type="submit"
                loading={busy}
                disabled={Object.keys(form.errors).length > 0 || Object.keys(patch).length === 0}
              >
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
  const form = useServerForm({
    initialValues: { read: settings.action_types.read.join('\n'), write: settings.action_types.write.join('\n') },
    pointers: { read: '/action_types/read', write: '/action_types/write' },
  });
  const { read, write } = form.values;
  const next = { read: read.split(NAMES).filter(Boolean), write: write.split(NAMES).filter(Boolean) };
  const changed = JSON.stringify(next) !== JSON.stringify(settings.action_types);
  // the dialog that asks for the reason makes the change
  const { refused } = form;
  // biome-ignore lint/correctness/useExhaustiveDependencies: a fault is shown once, when it arrives
  useEffect(() => {
    if (fault) refused(fault);
  }, [fault]);
  return (
    <Section
      title="Action types"
      lead={`In addition to the built-in types: ${ACTION_TYPES.write.join(', ')} write; ${ACTION_TYPES.read.join(', ')} read. Policies refer to them as Action::“type”.`}
    >
      <form onSubmit={form.onSubmit(() => save({ action_types: next }))}>
        <Stack gap="sm">
          <Group grow align="flex-start" preventGrowOverflow={false}>
            <Textarea
              label="Read types, one per line"
              autosize
              minRows={2}
              spellCheck={false}
              disabled={locked}
              {...form.getInputProps('read')}
            />
            <Textarea
              label="Write types, one per line"
              autosize
              minRows={2}
              spellCheck={false}
              disabled={locked}
              {...form.getInputProps('write')}
            />
          </Group>
          {form.fault ? (
            <Text c="var(--mantine-color-error)" role="alert">
              {form.fault}
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
