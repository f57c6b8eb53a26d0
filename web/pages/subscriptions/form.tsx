import '@mantine/core/styles/Checkbox.css';
import { Checkbox, Modal, NativeSelect, Stack, TextInput } from '@mantine/core';
import { useMutation, useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { DESTINATION_TYPES, type DestinationType, kindOf } from '../../../server/domain/destinations.ts';
import { toastDone } from '../../lib/errors.tsx';
import { asReason, filled, useServerForm } from '../../lib/form.ts';
import { queryClient } from '../../lib/query.ts';
import { type Inputs, trpc } from '../../lib/trpc.ts';
import { CopyButton } from '../../ui/copy.tsx';
import { FormFoot, ReasonField } from '../../ui/form.tsx';
import type { Subscription } from './words.tsx';

type EventTypes = NonNullable<Inputs['subscriptions']['create']['event_types']>;

/** 32 random bytes in the format of Standard Webhooks, which has receiver libraries. */
export function newSecret(): string {
  return `whsec_${btoa(String.fromCharCode(...crypto.getRandomValues(new Uint8Array(32))))}`;
}

/** Creates or edits a subscription. */
export function SubscriptionDialog({
  opened,
  onClose,
  edited,
  onDone,
}: {
  opened: boolean;
  onClose: () => void;
  edited?: Subscription;
  onDone?: (made: Subscription) => void;
}) {
  return (
    <Modal
      opened={opened}
      onClose={onClose}
      size="lg"
      title={<strong>{edited ? 'Edit subscription' : 'New subscription'}</strong>}
    >
      {opened ? <Form onClose={onClose} edited={edited} onDone={onDone} /> : null}
    </Modal>
  );
}

function Form({
  onClose,
  edited,
  onDone,
}: {
  onClose: () => void;
  edited: Subscription | undefined;
  onDone: ((made: Subscription) => void) | undefined;
}) {
  const [secret] = useState(() => (edited ? '' : newSecret()));
  const form = useServerForm({
    initialValues: {
      type: edited?.destination_type ?? ('webhook' as DestinationType),
      // the server shows only the beginning of a secret URL
      url: edited && kindOf(edited.destination_type).proof !== 'url' ? edited.url : '',
      secret,
      all: edited ? edited.event_types.length === 0 : true,
      chosen: (edited?.event_types ?? []) as string[],
      app_url: edited?.destination_config.app_url ?? '',
      reason: '',
    },
    pointers: { type: '/destination_type', chosen: '/event_types', app_url: '/destination_config' },
  });
  const { type, all, chosen } = form.values;
  const kind = kindOf(type);
  const types = useQuery(trpc.subscriptions.eventTypes.queryOptions({}, { staleTime: Number.POSITIVE_INFINITY }));
  const forPrograms = types.data?.event_types.flatMap((row) => (row.for_programs ? [row.type] : [])).join(', ');
  const options = {
    meta: { quiet: true },
    onError: form.refused,
    onSuccess: async (made: Subscription) => {
      await queryClient.invalidateQueries(trpc.subscriptions.pathFilter());
      toastDone(edited ? 'Saved' : 'Subscribed');
      onClose();
      onDone?.(made);
    },
  };
  const create = useMutation(trpc.subscriptions.create.mutationOptions(options));
  const update = useMutation(trpc.subscriptions.update.mutationOptions(options));
  const busy = create.isPending || update.isPending;
  const submit = form.onSubmit(({ type, url, secret, all, chosen, app_url, reason }) => {
    const shared = {
      event_types: (all ? [] : chosen) as EventTypes,
      destination_config: filled(app_url) ? { app_url: filled(app_url) } : {},
    };
    const to = url.trim();
    if (edited)
      update.mutate({
        id: edited.id,
        ...shared,
        ...(to && to !== edited.url && { url: to }),
        reason: asReason(reason),
      });
    else create.mutate({ destination_type: type, url: to, ...shared, ...(kind.proof === 'signature' && { secret }) });
  });
  return (
    <form onSubmit={submit}>
      <Stack gap="sm">
        {edited ? null : (
          <NativeSelect
            label="Destination"
            description={kind.description}
            {...form.getInputProps('type')}
            data={DESTINATION_TYPES.map((value) => ({ value, label: kindOf(value).label }))}
          />
        )}
        <TextInput
          label="URL"
          description={edited && kind.proof === 'url' ? `Leave empty to keep ${edited.url}` : kind.address}
          required={!edited}
          spellCheck={false}
          data-autofocus
          {...form.getInputProps('url')}
        />
        {edited || kind.proof !== 'signature' ? null : (
          <TextInput
            label="Secret"
            description="Signs each delivery. Give it to the receiver now: it is not shown again."
            required
            spellCheck={false}
            autoComplete="off"
            {...form.getInputProps('secret')}
            rightSection={<CopyButton text={form.values.secret} label="Copy the secret" />}
          />
        )}
        {kind.readers !== 'people' ? null : (
          <TextInput
            label="URL for the Approve and Deny buttons"
            description="Leave empty to use this dashboard"
            placeholder={window.location.origin}
            spellCheck={false}
            {...form.getInputProps('app_url')}
          />
        )}
        <Checkbox
          label="All events"
          description={
            kind.readers === 'programs'
              ? 'Including types added later'
              : `Including types added later, but not those for programs (${forPrograms}): chats get those only when selected`
          }
          {...form.getInputProps('all', { type: 'checkbox' })}
        />
        {all ? null : (
          <Checkbox.Group label="Events" {...form.getInputProps('chosen')}>
            <Stack gap={7} mt={6} mah={280} p={4} style={{ overflowY: 'auto' }}>
              {types.data?.event_types
                .filter(({ type }) => type !== 'svc.test')
                .map(({ type, description }) => (
                  <Checkbox key={type} value={type} label={type} description={description} />
                ))}
            </Stack>
          </Checkbox.Group>
        )}
        {edited ? <ReasonField {...form.getInputProps('reason')} /> : null}
        <FormFoot
          action={edited ? 'Save' : 'Subscribe'}
          fault={form.fault}
          busy={busy}
          disabled={!all && chosen.length === 0}
          onCancel={onClose}
        />
      </Stack>
    </form>
  );
}
