import { Button, Modal, NativeSelect, Stack, Text } from '@mantine/core';
import { useMutation, useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { toastDone } from '../../lib/errors.tsx';
import { useServerForm } from '../../lib/form.ts';
import { type Last, sinceOf } from '../../lib/moment.ts';
import { queryClient } from '../../lib/query.ts';
import { fullTime, useZone } from '../../lib/time.ts';
import { trpc } from '../../lib/trpc.ts';
import { count } from '../../lib/words.ts';
import { FormFoot } from '../../ui/form.tsx';
import { Notice } from '../../ui/notice.tsx';
import { Shown } from '../../ui/states.tsx';

const SINCE: { value: Last; label: string }[] = [
  { value: '1h', label: 'the last hour' },
  { value: '24h', label: 'the last 24 hours' },
  { value: '7d', label: 'the last 7 days' },
  { value: '30d', label: 'the last 30 days' },
];

/** The progress of the last request to resend failed deliveries; nothing if none is in progress. */
export function Resending({ id, paused }: { id: string; paused: boolean }) {
  const { data } = useQuery(trpc.subscriptions.resending.queryOptions({ id }, { refetchInterval: 3_000 }));
  const resend = data?.resend;
  if (!resend || resend.ended_at !== null) return null;
  return (
    <Notice tone="info" title="Failed deliveries are being sent again">
      {resend.done.toLocaleString()} of {resend.total.toLocaleString()} are queued
      {paused ? '. The rest follows when the subscription is resumed' : ''}.
    </Notice>
  );
}

/** Asks from when on failed deliveries should be resent, shows how many there are, and starts. */
export function ResendButton({ id, paused }: { id: string; paused: boolean }) {
  const [opened, setOpened] = useState(false);
  return (
    <>
      <Button
        variant="default"
        disabled={paused}
        title={paused ? 'Resume the subscription first' : undefined}
        onClick={() => setOpened(true)}
      >
        Send failed again…
      </Button>
      <Modal
        opened={opened}
        onClose={() => setOpened(false)}
        title={<strong>Send failed deliveries again</strong>}
        closeButtonProps={{ 'aria-label': 'Close' }}
      >
        <ResendForm id={id} onDone={() => setOpened(false)} />
      </Modal>
    </>
  );
}

function ResendForm({ id, onDone }: { id: string; onDone: () => void }) {
  const [zone] = useZone();
  // fixed when the dialog is opened: what is counted is what is sent
  const [now] = useState(Date.now);
  const form = useServerForm({ initialValues: { last: '24h' as Last } });
  const since = sinceOf(form.values.last, now);
  const query = useQuery(trpc.subscriptions.resending.queryOptions({ id, since }, { staleTime: 0 }));
  const make = useMutation(
    trpc.subscriptions.resend.mutationOptions({
      meta: { quiet: true },
      onError: form.refused,
      onSuccess: ({ total }) => {
        toastDone(`${count(total, 'delivery', 'deliveries')} will be sent again`, 'In the order of their events.');
        onDone();
        return queryClient.invalidateQueries(trpc.subscriptions.pathFilter());
      },
    }),
  );
  const failed = query.data?.failed ?? 0;
  return (
    <form onSubmit={form.onSubmit(() => make.mutate({ id, since }))}>
      <Stack gap="sm">
        <NativeSelect
          label="Those that were queued in"
          description={`Since ${fullTime(since, zone)}`}
          data={SINCE}
          data-autofocus
          {...form.getInputProps('last')}
        />
        <Shown query={query} lines={2}>
          {() => (
            <Text role="status">
              {failed === 0
                ? 'No delivery has failed since then.'
                : `${count(failed, 'failed delivery', 'failed deliveries')} will be queued, in the order of their events. Each keeps its event id, so that the receiver can tell what it has seen, and gets 24 hours for attempts.`}
              {failed === 10_000 ? ' No more than that at once: ask again when these are sent.' : ''}
            </Text>
          )}
        </Shown>
        <FormFoot
          action={failed === 0 ? 'Send again' : `Send ${failed.toLocaleString()} again`}
          fault={form.fault}
          busy={make.isPending}
          disabled={failed === 0}
          onCancel={onDone}
        />
      </Stack>
    </form>
  );
}
