import '@mantine/core/styles/Checkbox.css';
import { Button, Checkbox, Group, Modal, NativeSelect, Stack, Text, TextInput } from '@mantine/core';
import { useMutation, useQuery } from '@tanstack/react-query';
import { type FormEvent, useState } from 'react';
import { problemOf, toastDone } from '../../lib/errors.tsx';
import { queryClient } from '../../lib/query.ts';
import { type Inputs, trpc } from '../../lib/trpc.ts';
import { CopyButton } from '../../ui/copy.tsx';
import { DESTINATION, type Subscription } from './words.tsx';

type Kind = Subscription['destination_type'];
type EventTypes = NonNullable<Inputs['subscriptions']['create']['event_types']>;

/** 32 random bytes in the form of Standard Webhooks, for which receivers have libraries. */
export function newSecret(): string {
  return `whsec_${btoa(String.fromCharCode(...crypto.getRandomValues(new Uint8Array(32))))}`;
}

const HINT: Record<Kind, string> = {
  webhook: 'https://…: it gets a POST for each event',
  slack: 'The incoming webhook: https://hooks.slack.com/services/…',
  teams: 'The address of a workflow “when a webhook request is received”. Give the workflow a second owner.',
};

/** Makes a subscription, or changes one. */
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
      title={<strong>{edited ? 'Change the subscription' : 'New subscription'}</strong>}
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
  const [kind, setKind] = useState<Kind>(edited?.destination_type ?? 'webhook');
  // of a chat only the beginning of the address is known here
  const [url, setUrl] = useState(edited && edited.destination_type !== 'webhook' ? '' : (edited?.url ?? ''));
  const [secret, setSecret] = useState(() => (edited ? '' : newSecret()));
  const [all, setAll] = useState(edited ? edited.event_types.length === 0 : true);
  const [chosen, setChosen] = useState<string[]>(edited?.event_types ?? []);
  const [app, setApp] = useState(edited?.destination_config.app_url ?? '');
  const types = useQuery(trpc.subscriptions.eventTypes.queryOptions({}, { staleTime: Number.POSITIVE_INFINITY }));
  const options = {
    meta: { quiet: true },
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
  const error = create.error ?? update.error;
  const problem = error ? problemOf(error) : undefined;
  const faultOf = (name: string) => problem?.errors?.find(({ pointer }) => pointer?.startsWith(`/${name}`))?.message;
  const event_types = (all ? [] : chosen) as EventTypes;
  const config = app.trim() ? { app_url: app.trim() } : {};
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (edited) {
      update.mutate({
        id: edited.id,
        event_types,
        destination_config: config,
        ...(url.trim() && url.trim() !== edited.url && { url: url.trim() }),
      });
    } else {
      create.mutate({
        destination_type: kind,
        url: url.trim(),
        event_types,
        destination_config: config,
        ...(kind === 'webhook' && { secret }),
      });
    }
  };
  return (
    <form onSubmit={submit}>
      <Stack gap="sm">
        {edited ? null : (
          <NativeSelect
            label="Destination"
            description={DESTINATION[kind][2]}
            value={kind}
            onChange={(event) => setKind(event.currentTarget.value as Kind)}
            data={(Object.keys(DESTINATION) as Kind[]).map((value) => ({ value, label: DESTINATION[value][0] }))}
          />
        )}
        <TextInput
          label="Address"
          description={edited && kind !== 'webhook' ? `Empty keeps ${edited.url}` : HINT[kind]}
          required={!edited}
          spellCheck={false}
          value={url}
          onChange={(event) => setUrl(event.currentTarget.value)}
          error={faultOf('url')}
          data-autofocus
        />
        {edited || kind !== 'webhook' ? null : (
          <TextInput
            label="Secret"
            description="Signs what is sent. Give it to the receiver now: it is not shown again."
            required
            spellCheck={false}
            autoComplete="off"
            value={secret}
            onChange={(event) => setSecret(event.currentTarget.value)}
            error={faultOf('secret')}
            rightSection={<CopyButton text={secret} label="Copy the secret" />}
          />
        )}
        {kind === 'webhook' ? null : (
          <TextInput
            label="Where Approve and Deny lead"
            description="Empty: to this dashboard"
            placeholder={window.location.origin}
            spellCheck={false}
            value={app}
            onChange={(event) => setApp(event.currentTarget.value)}
            error={faultOf('destination_config')}
          />
        )}
        <Checkbox
          label="Every event"
          description={
            kind === 'webhook'
              ? 'Also those that are added later'
              : 'Also those that are added later; not checkpoints of chains, which a chat is told of only when they are chosen'
          }
          checked={all}
          onChange={(event) => setAll(event.currentTarget.checked)}
        />
        {all ? null : (
          <Checkbox.Group label="Events" value={chosen} onChange={setChosen}>
            <Stack gap={7} mt={6} mah={280} p={4} style={{ overflowY: 'auto' }}>
              {types.data?.event_types
                .filter(({ type }) => type !== 'svc.test')
                .map(({ type, description }) => (
                  <Checkbox key={type} value={type} label={type} description={description} />
                ))}
            </Stack>
          </Checkbox.Group>
        )}
        {problem && !faultOf('url') && !faultOf('secret') && !faultOf('destination_config') ? (
          <Text c="var(--mantine-color-error)" role="alert">
            {problem.errors?.map(({ message }) => message).join('; ') || problem.detail || problem.title}
          </Text>
        ) : null}
        <Group justify="flex-end" gap="xs">
          <Button variant="default" onClick={onClose}>
            Cancel
          </Button>
          <Button type="submit" loading={busy} disabled={!all && chosen.length === 0}>
            {edited ? 'Save' : 'Subscribe'}
          </Button>
        </Group>
      </Stack>
    </form>
  );
}
