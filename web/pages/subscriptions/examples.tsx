import { Anchor, Button, Group, NativeSelect, Paper, Text, Title } from '@mantine/core';
import { IconSend } from '@tabler/icons-react';
import { useMutation, useQuery } from '@tanstack/react-query';
import { useNavigate } from '@tanstack/react-router';
import { useState } from 'react';
import { kindOf } from '../../../server/domain/destinations.ts';
import { toastDone } from '../../lib/errors.tsx';
import { queryClient } from '../../lib/query.ts';
import { type Inputs, trpc } from '../../lib/trpc.ts';
import { CodeBlock } from '../../ui/code.tsx';
import { Shown } from '../../ui/states.tsx';
import { SAMPLES, type Sample } from './samples.ts';
import type { Subscription } from './words.tsx';

type EventType = Inputs['subscriptions']['example']['event_type'];

/** What the destination receives for each type of event, a button that sends it, and how a receiver checks it. */
export function Examples({ subscription }: { subscription: Subscription }) {
  const { id, active, event_types, destination_type } = subscription;
  const [chosen, setChosen] = useState((event_types[0] ?? 'escrow.created') as EventType);
  const types = useQuery(trpc.subscriptions.eventTypes.queryOptions({}, { staleTime: Number.POSITIVE_INFINITY }));
  const query = useQuery(trpc.subscriptions.example.queryOptions({ id, event_type: chosen }));
  const navigate = useNavigate();
  const send = useMutation(
    trpc.subscriptions.sendExample.mutationOptions({
      onSuccess: () => {
        toastDone('The example is queued', 'It is listed among the deliveries as a test, with its answer.');
        void navigate({ to: '/subscriptions/$id', params: { id }, search: {}, hash: 'deliveries-title' });
      },
      onSettled: () => queryClient.invalidateQueries(trpc.subscriptions.pathFilter()),
    }),
  );
  const signed = kindOf(destination_type).proof === 'signature';
  return (
    <Paper component="section" aria-labelledby="examples-title">
      <Title order={2} size="h3" id="examples-title">
        Examples
      </Title>
      <Text c="dimmed" mb="sm">
        What this destination gets of each event, with every part that it can have. Sent from here, an example says that
        it is a test, names nothing that exists, and goes to this destination alone.
      </Text>
      <Group align="flex-end" mb="sm">
        <NativeSelect
          label="Event"
          value={chosen}
          onChange={(event) => setChosen(event.currentTarget.value as EventType)}
          data={types.data?.event_types.map(({ type }) => type) ?? [chosen]}
          w={260}
        />
        <Button
          variant="default"
          leftSection={<IconSend size={16} aria-hidden />}
          loading={send.isPending}
          disabled={!active}
          title={active ? undefined : 'Resume the subscription first'}
          onClick={() => send.mutate({ id, event_type: chosen })}
        >
          Send this example
        </Button>
      </Group>
      <Text size="sm" mb="sm">
        Sent when {types.data?.event_types.find(({ type }) => type === chosen)?.description ?? 'it happens'}.
      </Text>
      <Shown query={query} lines={12}>
        {({ headers, body, secret }) => (
          <>
            <Text size="sm" fw={600}>
              Headers
            </Text>
            <CodeBlock text={linesOf(headers)} label="example headers" wrap />
            <Text size="sm" fw={600} mt="sm">
              Body
            </Text>
            <CodeBlock text={pretty(body)} label="example body" maxHeight={420} />
            {secret === null ? null : (
              <Text size="sm" mt="xs">
                Signed here with a well-known secret, <code>{secret}</code>, for the body without these line breaks.
                What is sent is signed with the secret of this subscription.
              </Text>
            )}
          </>
        )}
      </Shown>
      {signed ? <Receivers /> : null}
    </Paper>
  );
}

const linesOf = (headers: Record<string, string>) =>
  Object.entries(headers)
    .map(([name, value]) => `${name}: ${value}`)
    .join('\n');

const pretty = (body: string) => JSON.stringify(JSON.parse(body), null, 2);

/** Programs that check the signature. */
function Receivers() {
  const [name, setName] = useState<Sample>('Node.js');
  return (
    <section aria-labelledby="sample-title">
      <Title order={3} size="h4" id="sample-title" mt="lg">
        How to verify it
      </Title>
      <Text c="dimmed" mb="sm">
        It checks the signature over the raw bytes, refuses old messages, and answers 2xx within 10 seconds. For more
        libraries, see <Anchor href="https://www.standardwebhooks.com">standardwebhooks.com</Anchor>.
      </Text>
      {/* biome-ignore lint/a11y/useSemanticElements: a fieldset is for what a form sends */}
      <div className="segments" role="group" aria-label="Language" style={{ marginBottom: 8 }}>
        {(Object.keys(SAMPLES) as Sample[]).map((sample) => (
          <button key={sample} type="button" aria-pressed={sample === name} onClick={() => setName(sample)}>
            {sample}
          </button>
        ))}
      </div>
      <CodeBlock text={SAMPLES[name]} label={`receiver, ${name}`} maxHeight={420} />
    </section>
  );
}
