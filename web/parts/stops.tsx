import { Button, Modal, NativeSelect, Stack, Textarea, TextInput } from '@mantine/core';
import { useDisclosure } from '@mantine/hooks';
import { IconHandStop } from '@tabler/icons-react';
import { useQuery } from '@tanstack/react-query';
import { Link } from '@tanstack/react-router';
import {
  type STOP_KIND_NAMES,
  STOP_KINDS,
  STOP_MODES,
  type StopKind,
  type StopMode,
} from '../../server/domain/stops.ts';
import { toastDone } from '../lib/errors.tsx';
import { useServerForm } from '../lib/form.ts';
import { queryClient } from '../lib/query.ts';
import { useMe } from '../lib/session.ts';
import { type Answers, api, trpc } from '../lib/trpc.ts';
import { FormFoot } from '../ui/form.tsx';
import { Notice } from '../ui/notice.tsx';

export type Stop = Answers['stops']['list']['stops'][number];

const KIND_WORDS: Record<StopKind, string> = {
  agent: 'Agent',
  role: 'Agent role',
  tool: 'Tool',
  tool_server: 'Tool server',
  session: 'Session',
  proxy: 'Proxy',
  tenant: 'Everything',
};
const ORDER = [
  'agent',
  'role',
  'tool',
  'tool_server',
  'session',
  'proxy',
  'tenant',
] as const satisfies (typeof STOP_KIND_NAMES)[number][];

/** What is stopped, in words. */
export function TargetOf({ stop }: { stop: Pick<Stop, 'target_kind' | 'target_id'> }) {
  if (stop.target_kind === 'tenant') return <>everything</>;
  return (
    <>
      {KIND_WORDS[stop.target_kind].toLowerCase()} <bdi className="mono">{stop.target_id}</bdi>
    </>
  );
}

/** Tells everyone, on every page, what is stopped. */
export function StopBanner() {
  const { data } = useQuery(trpc.stops.list.queryOptions({ in_force: 'true', limit: 4 }, { refetchInterval: 30_000 }));
  const stops = data?.stops ?? [];
  if (stops.length === 0) return null;
  const [first] = stops;
  return (
    <div style={{ marginBottom: 'var(--mantine-spacing-md)' }}>
      <Notice
        tone="bad"
        urgent
        title={
          stops.length === 1
            ? 'A stop is in force'
            : `${data?.has_more ? 'More than 4' : stops.length} stops are in force`
        }
      >
        <span style={{ overflowWrap: 'anywhere' }}>
          {first!.mode === 'deny' ? 'Denied: ' : 'Held for a person: '}
          <TargetOf stop={first!} />
          {'. '}
          <bdi>{first!.reason}</bdi> <Link to="/stops">{stops.length === 1 ? 'Look at it' : 'See all of them'}</Link>
        </span>
      </Notice>
    </div>
  );
}

/** The button that stops something, for those who may. */
export function StopButton({
  target,
  fullWidth = false,
}: {
  target?: { kind: StopKind; id: string };
  fullWidth?: boolean;
}) {
  const me = useMe();
  const [opened, dialog] = useDisclosure();
  if (!me.has('approver')) return null;
  return (
    <>
      <Button
        {...(fullWidth ? { variant: 'default' } : { color: 'red.8' })}
        size={fullWidth ? 'compact-sm' : 'sm'}
        fullWidth={fullWidth}
        leftSection={
          <IconHandStop size={16} color={fullWidth ? 'var(--mantine-color-error)' : undefined} aria-hidden />
        }
        onClick={dialog.open}
      >
        Stop…
      </Button>
      <Modal
        opened={opened}
        onClose={dialog.close}
        title={<strong>Stop now</strong>}
        closeButtonProps={{ 'aria-label': 'Close' }}
      >
        <StopForm target={target} onDone={dialog.close} />
      </Modal>
    </>
  );
}

const ENDS = { '': 'until it is lifted', '15': '15 minutes', '60': '1 hour', '480': '8 hours', '1440': '24 hours' };

function StopForm({ target, onDone }: { target: { kind: StopKind; id: string } | undefined; onDone: () => void }) {
  const form = useServerForm({
    initialValues: {
      target_kind: (target?.kind ?? 'agent') as string,
      target_id: target?.id ?? '',
      mode: 'deny' as string,
      minutes: '',
      reason: '',
    },
  });
  const { target_kind, target_id, mode, reason } = form.values;
  const ready = (target_kind === 'tenant' || target_id.trim() !== '') && reason.trim() !== '';
  return (
    <form
      onSubmit={form.onSubmit(async ({ minutes }) => {
        if (!ready || form.submitting) return;
        try {
          const { proxies } = await api.stops.create.mutate({
            target_kind: target_kind as StopKind,
            ...(target_kind !== 'tenant' && { target_id: target_id.trim() }),
            mode: mode as StopMode,
            reason: reason.trim(),
            ...(minutes !== '' && { until: new Date(Date.now() + Number(minutes) * 60_000).toISOString() }),
            wait: 2,
          });
          await queryClient.invalidateQueries(trpc.stops.pathFilter());
          const all = proxies.applied + proxies.pending.length + proxies.unreachable.length;
          toastDone(
            all === 0
              ? 'Stopped'
              : `Stopped, and ${proxies.applied} of ${all} ${all === 1 ? 'proxy' : 'proxies'} applied it`,
          );
          onDone();
        } catch (error) {
          form.refused(error);
        }
      })}
    >
      <Stack gap="sm">
        <NativeSelect
          label="What"
          data={ORDER.map((kind) => ({ value: kind, label: KIND_WORDS[kind] }))}
          description={STOP_KINDS[target_kind as StopKind]}
          {...form.getInputProps('target_kind')}
        />
        {target_kind === 'tenant' ? null : (
          <TextInput
            label="Which"
            required
            maxLength={200}
            autoComplete="off"
            spellCheck={false}
            data-autofocus
            {...form.getInputProps('target_id')}
          />
        )}
        <NativeSelect
          label="How"
          data={[
            { value: 'deny', label: 'Deny' },
            { value: 'freeze', label: 'Hold for a person' },
          ]}
          description={STOP_MODES[mode as StopMode]}
          {...form.getInputProps('mode')}
        />
        <NativeSelect
          label="How long"
          data={Object.entries(ENDS).map(([value, label]) => ({ value, label }))}
          {...form.getInputProps('minutes')}
        />
        <Textarea
          label="Why"
          description="Agents, approvers and the audit log see it"
          required
          autosize
          minRows={2}
          maxLength={300}
          {...form.getInputProps('reason')}
        />
        <FormFoot fault={form.fault} action="Stop" danger busy={form.submitting} disabled={!ready} onCancel={onDone} />
      </Stack>
    </form>
  );
}
