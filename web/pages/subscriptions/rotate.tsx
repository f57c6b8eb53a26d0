import { NativeSelect, Stack, TextInput } from '@mantine/core';
import { useMutation } from '@tanstack/react-query';
import { useState } from 'react';
import { toastDone } from '../../lib/errors.tsx';
import { useServerForm } from '../../lib/form.ts';
import { queryClient } from '../../lib/query.ts';
import { trpc } from '../../lib/trpc.ts';
import { CopyButton } from '../../ui/copy.tsx';
import { FormFoot } from '../../ui/form.tsx';
import { newSecret } from './form.tsx';

const OVERLAPS = [
  { value: '0', label: 'none: the old secret stops working now' },
  { value: '3600', label: '1 hour' },
  { value: '86400', label: '24 hours' },
  { value: '604800', label: '7 days' },
];

/** Replaces the secret of a webhook, with a period during which the old one also signs. */
export function RotateSecret({ id, onDone }: { id: string; onDone: () => void }) {
  const [secret] = useState(newSecret);
  const form = useServerForm({
    initialValues: { secret, overlap: '86400' },
    pointers: { overlap: '/secret_overlap_seconds' },
  });
  const rotate = useMutation(
    trpc.subscriptions.update.mutationOptions({
      meta: { quiet: true },
      onError: form.refused,
      onSuccess: () => {
        toastDone('Secret rotated', 'Deliveries are signed with the new secret.');
        onDone();
      },
      onSettled: () => queryClient.invalidateQueries(trpc.subscriptions.pathFilter()),
    }),
  );
  return (
    <form
      onSubmit={form.onSubmit(({ secret, overlap }) =>
        rotate.mutate({ id, secret, secret_overlap_seconds: Number(overlap) }),
      )}
    >
      <Stack gap="sm">
        <TextInput
          label="New secret"
          description="Give it to the receiver now: it is not shown again"
          required
          spellCheck={false}
          autoComplete="off"
          {...form.getInputProps('secret')}
          rightSection={<CopyButton text={form.values.secret} label="Copy the secret" />}
        />
        <NativeSelect
          label="Sign with both secrets for"
          description="Receivers with either secret keep working"
          data={OVERLAPS}
          {...form.getInputProps('overlap')}
        />
        <FormFoot action="Rotate" fault={form.fault} busy={rotate.isPending} />
      </Stack>
    </form>
  );
}
