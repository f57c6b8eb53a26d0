import '@mantine/core/styles/PasswordInput.css';
import { Button, Group, PasswordInput, Stack, TextInput } from '@mantine/core';
import { useMutation } from '@tanstack/react-query';
import { useState } from 'react';
import { confirmed, toastDone } from '../../lib/errors.tsx';
import { asReason, filled, useServerForm } from '../../lib/form.ts';
import { problemOf } from '../../lib/problem.ts';
import { queryClient } from '../../lib/query.ts';
import { toastWaits } from '../../lib/settings.ts';
import { type Answers, api, trpc } from '../../lib/trpc.ts';
import { CodeBlock } from '../../ui/code.tsx';
import { ConfirmDialog } from '../../ui/confirm.tsx';
import { ReasonField } from '../../ui/form.tsx';
import { Notice } from '../../ui/notice.tsx';
import { Step } from './step.tsx';

type Connection = Answers['sso']['get'];

/** Refetches everything that a change of the provider may have changed or made pending. */
async function refresh(): Promise<void> {
  await Promise.all([
    queryClient.invalidateQueries(trpc.sso.pathFilter()),
    queryClient.invalidateQueries(trpc.settings.changes.pathFilter()),
  ]);
}

/** The first step: the organization's OpenID Connect provider. */
export function Provider({ connection }: { connection: Connection }) {
  const form = useServerForm({
    initialValues: {
      issuer_url: connection.issuer_url ?? '',
      client_id: connection.client_id ?? '',
      client_secret: '',
      reason: '',
    },
  });
  const { issuer_url: issuer, client_id: client, client_secret: secret, reason } = form.values;
  const [removing, setRemoving] = useState(false);
  const changed = issuer !== (connection.issuer_url ?? '') || client !== (connection.client_id ?? '') || secret !== '';
  const keeps = connection.configured && issuer === connection.issuer_url && client === connection.client_id;
  const save = useMutation(
    trpc.sso.set.mutationOptions({
      meta: { quiet: true },
      onError: form.refused,
      onSuccess: ({ waiting }) => {
        if (waiting) toastWaits();
        else toastDone('Provider saved', 'Its issuer answered correctly.');
        form.setValues({ client_secret: '', reason: '' });
      },
      onSettled: refresh,
    }),
  );
  const submit = form.onSubmit(({ issuer_url, client_id, client_secret, reason }) =>
    save.mutate({
      issuer_url: issuer_url.trim(),
      client_id: client_id.trim(),
      ...(client_secret && { client_secret }),
      reason: asReason(reason),
    }),
  );
  return (
    <Step
      number={1}
      title="Your identity provider"
      done={connection.configured}
      lead="Register this program with your provider as a web application that uses the authorization code flow and exactly this redirect URI, which belongs to your organization alone:"
    >
      <CodeBlock text={connection.redirect_uri} label="redirect URI" />
      <form onSubmit={submit}>
        <Stack gap="sm" mt="sm">
          <TextInput
            label="Issuer"
            description="Its discovery document is checked when you save"
            placeholder="https://login.example.com"
            required
            spellCheck={false}
            {...form.getInputProps('issuer_url')}
          />
          <TextInput label="Client id" required spellCheck={false} {...form.getInputProps('client_id')} />
          <PasswordInput
            label="Client secret"
            description={keeps ? 'Leave empty to keep the stored one' : 'Stored encrypted and never shown again'}
            required={!keeps}
            autoComplete="off"
            {...form.getInputProps('client_secret')}
          />
          <ReasonField
            description="It goes into the audit log. If approval is required, another person must approve a new provider"
            {...form.getInputProps('reason')}
          />
          {form.fault ? (
            <Notice tone="bad" title={save.error ? problemOf(save.error).title : ''} urgent>
              {form.fault}
            </Notice>
          ) : null}
          <Group gap="xs">
            <Button
              type="submit"
              loading={save.isPending}
              disabled={!changed || [issuer, client, reason].some((text) => !filled(text))}
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
        People can no longer sign in through it, and the links between accounts there and members here are deleted.
        Current sessions continue until they end. If approval is required, another person must approve this first.
      </ConfirmDialog>
    </Step>
  );
}
