import '@mantine/core/styles/Checkbox.css';
import { Checkbox, Modal, NativeSelect, Stack, Textarea } from '@mantine/core';
import { STOP_KINDS, STOP_MODES, type StopKind, type StopMode } from '../../server/domain/stops.ts';
import { toastDone } from '../lib/errors.tsx';
import { asReason, useServerForm } from '../lib/form.ts';
import type { NameKind } from '../lib/known-names.ts';
import { queryClient } from '../lib/query.ts';
import { api, trpc } from '../lib/trpc.ts';
import { FormFoot } from '../ui/form.tsx';
import { NameInput } from '../ui/name-input.tsx';
import { KIND_WORDS } from './stops.tsx';

const ORDER = [
  'agent',
  'role',
  'tool',
  'tool_server',
  'session',
  'proxy',
  'tenant',
] as const satisfies readonly StopKind[];

/** What is suggested while the target is typed. */
const NAMED: Partial<Record<StopKind, NameKind>> = {
  agent: 'agent',
  role: 'role',
  tool: 'tool',
  tool_server: 'tool_server',
  proxy: 'proxy',
};

type Target = { kind: StopKind; id: string } | undefined;

/** Asks what to stop, and why. */
export default function StopDialog({ target, onClose }: { target?: Target; onClose: () => void }) {
  return (
    <Modal opened onClose={onClose} title={<strong>Stop now</strong>} closeButtonProps={{ 'aria-label': 'Close' }}>
      <StopForm target={target} onDone={onClose} />
    </Modal>
  );
}

const ENDS = { '': 'until it is lifted', '15': '15 minutes', '60': '1 hour', '480': '8 hours', '1440': '24 hours' };

function StopForm({ target, onDone }: { target: Target; onDone: () => void }) {
  const form = useServerForm({
    initialValues: {
      target_kind: (target?.kind ?? 'agent') as string,
      target_id: target?.id ?? '',
      mode: 'deny' as string,
      abort: false,
      minutes: '',
      reason: '',
    },
  });
  const { target_kind, target_id, mode, reason } = form.values;
  const ready = (target_kind === 'tenant' || target_id.trim() !== '') && reason.trim() !== '';
  return (
    <form
      onSubmit={form.onSubmit(async ({ minutes, abort }) => {
        if (!ready || form.submitting) return;
        try {
          const { proxies } = await api.stops.create.mutate({
            target_kind: target_kind as StopKind,
            ...(target_kind !== 'tenant' && { target_id: target_id.trim() }),
            mode: mode as StopMode,
            abort: abort && mode === 'deny',
            reason: asReason(reason),
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
          <NameInput
            kind={NAMED[target_kind as StopKind]}
            label="Which"
            required
            maxLength={200}
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
        {mode === 'deny' ? (
          <Checkbox
            label="Also cut what is under way"
            description="Proxies give up calls that they have already forwarded. What the tool has done by then is done."
            {...form.getInputProps('abort', { type: 'checkbox' })}
          />
        ) : null}
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
