import { Stack, Text } from '@mantine/core';
import type { Answers } from '../../lib/trpc.ts';
import { CodeBlock } from '../../ui/code.tsx';

type Exchange = Pick<Answers['subscriptions']['delivery']['history'][number], 'headers' | 'answer'>;

/** The headers of a request as they were sent, and the destination's response as untrusted text. */
export function ExchangeLines({
  exchange: { headers, answer },
  name,
  open = false,
}: {
  exchange: Exchange;
  /** Distinguishes it from others on the page, for assistive technology. */
  name: string;
  open?: boolean;
}) {
  return (
    <details open={open} style={{ marginTop: 6 }}>
      <summary>Headers sent, and the answer</summary>
      <Stack gap="xs" mt="xs">
        {Object.keys(headers).length === 0 ? (
          <Text size="sm" c="dimmed">
            Nothing was sent.
          </Text>
        ) : (
          <CodeBlock text={lines(headers)} label={`headers sent ${name}`} wrap />
        )}
        {Object.values(headers).includes(null) ? (
          <Text size="sm" c="dimmed">
            Signatures are not stored; they are recomputed for display. That is no longer possible here, because the
            secret or the stored event has changed.
          </Text>
        ) : null}
        {answer === null ? (
          <Text size="sm" c="dimmed">
            There was no answer.
          </Text>
        ) : (
          <>
            <Text size="sm" c="dimmed">
              Its answer, in its own words{answer.truncated ? ': the first 2 kB' : ''}
            </Text>
            <CodeBlock
              text={[lines(answer.headers), answer.body || '(no body)'].filter(Boolean).join('\n\n')}
              label={`answer ${name}`}
              wrap
              maxHeight={320}
            />
          </>
        )}
      </Stack>
    </details>
  );
}

const lines = (headers: Record<string, string | null>) =>
  Object.entries(headers)
    .map(([name, value]) => `${name}: ${value ?? '(not kept)'}`)
    .join('\n');
