import { Button, Group, Paper, Text, Title } from '@mantine/core';
import { IconX } from '@tabler/icons-react';
import { keepPreviousData, useQuery } from '@tanstack/react-query';
import { type LAST, type Last, sinceOf } from '../../lib/moment.ts';
import { useNow, useZone } from '../../lib/time.ts';
import { type Answers, trpc } from '../../lib/trpc.ts';
import { count } from '../../lib/words.ts';
import { Bars } from '../../parts/bars.tsx';
import { Spans } from '../../parts/spans.tsx';
import { Shown } from '../../ui/states.tsx';
import { Tag } from '../../ui/status.tsx';
import { When } from '../../ui/time.tsx';
import { type SubscriptionSearch, WHOLE } from './search.ts';
import '../../parts/outcomes.css';

type Numbers = Answers['subscriptions']['attempts'];

const KINDS = [
  { name: 'delivered', label: 'Delivered at once', tone: 'ok' },
  { name: 'delivered_on_retry', label: 'Delivered on a retry', tone: 'info' },
  { name: 'failed', label: 'Failed', tone: 'bad' },
] as const;
const AGAIN_MS = 30_000;

/**
 * The attempts to reach the destination over time, and how long it took to respond. Part of the time range leads to its
 * deliveries.
 */
export function Attempts({
  id,
  search: { last = '24h', since, until },
  set,
}: {
  id: string;
  search: SubscriptionSearch;
  set: (search: SubscriptionSearch) => void;
}) {
  const [zone] = useZone();
  const now = Math.floor(useNow(AGAIN_MS) / AGAIN_MS) * AGAIN_MS;
  const asked = {
    ...{ id, utc_offset: zone === 'utc' ? 0 : -new Date().getTimezoneOffset() },
    ...(since === undefined ? { since: sinceOf(last, now), buckets: BUCKETS[last] } : { since, until }),
  };
  const query = useQuery(
    trpc.subscriptions.attempts.queryOptions(asked, {
      placeholderData: keepPreviousData,
      staleTime: AGAIN_MS,
      refetchInterval: AGAIN_MS,
    }),
  );
  return (
    <Paper component="section" aria-labelledby="attempts-title">
      <Group justify="space-between" mb="sm">
        <Title order={2} size="h3" id="attempts-title">
          Attempts
        </Title>
        <Group gap="xs">
          {since === undefined ? null : (
            <Button
              size="compact-sm"
              variant="subtle"
              leftSection={<IconX size={14} aria-hidden />}
              onClick={() => set(WHOLE)}
            >
              Whole time
            </Button>
          )}
          <Spans last={last} choose={(next) => set({ ...WHOLE, last: next })} />
        </Group>
      </Group>
      <Shown query={query} lines={6}>
        {(seen) => (
          <>
            <Bars
              bars={seen.buckets.map((bucket) => ({ at: bucket.at, counts: KINDS.map(({ name }) => bucket[name]) }))}
              seconds={seen.bucket_seconds}
              kinds={KINDS}
              pending={query.isPlaceholderData}
              narrow={(range) => set({ last, ...range })}
              nothing="no attempts"
              more={(n) => moreOf(seen.buckets[n]!)}
              caption={<Caption seen={seen} />}
            >
              <AnswerTimes buckets={seen.buckets} />
            </Bars>
            <ul className="legend">
              {KINDS.map(({ name, label, tone }) => (
                <li key={name}>
                  <Tag tone={tone}>{label}</Tag>{' '}
                  <Text component="span" fw={650}>
                    {seen[name].toLocaleString()}
                  </Text>
                </li>
              ))}
            </ul>
            {seen.complete_since ? (
              <Text size="sm" c="dimmed" mt="xs">
                Of what was queued before <When at={seen.complete_since} exact /> not all attempts are counted.
              </Text>
            ) : null}
          </>
        )}
      </Shown>
    </Paper>
  );
}

/** The bars show hours for a day, and days for a month. */
const BUCKETS: Record<Last, number> = { '1h': 60, '24h': 25, '7d': 57, '30d': 32 } satisfies Record<
  keyof typeof LAST,
  number
>;

const timesOf = ({ p50_ms, p95_ms }: Pick<Numbers, 'p50_ms' | 'p95_ms'>) =>
  p50_ms === null || p95_ms === null
    ? undefined
    : `half answered within ${p50_ms.toLocaleString()} ms, 95% within ${p95_ms.toLocaleString()} ms`;

const retriesOf = ({ retries }: Pick<Numbers, 'retries'>) =>
  retries === 0 ? undefined : `${retries.toLocaleString()} of them ${retries === 1 ? 'was a retry' : 'were retries'}`;

const moreOf = (numbers: Numbers['buckets'][number]) =>
  [retriesOf(numbers), timesOf(numbers)].filter(Boolean).join('; ') || undefined;

function Caption({ seen }: { seen: Numbers }) {
  const all = seen.delivered + seen.delivered_on_retry + seen.failed;
  return (
    <Text size="sm">
      <strong>{count(all, 'attempt')}</strong>
      {[retriesOf(seen), timesOf(seen)].flatMap((words) => (words ? [`; ${words}`] : []))}
    </Text>
  );
}

/** The response times at the 50th and 95th percentile, over the same time as the bars above. */
function AnswerTimes({ buckets }: { buckets: Numbers['buckets'] }) {
  const most = Math.max(1, ...buckets.map(({ p95_ms }) => p95_ms ?? 0));
  const path = (name: 'p50_ms' | 'p95_ms') =>
    buckets.flatMap(({ [name]: ms }, n) => (ms === null ? [] : [`M${n + 0.1} ${39 - (ms / most) * 37}h0.8`])).join('');
  if (path('p50_ms') === '') return null;
  return (
    <>
      <div className="histogram-line" aria-hidden>
        <svg aria-hidden viewBox={`0 0 ${buckets.length} 40`} preserveAspectRatio="none">
          <path d={path('p95_ms')} data-tone="wait" />
          <path d={path('p50_ms')} data-tone="info" />
        </svg>
      </div>
      <Text size="xs" c="dimmed">
        Answer time up to {most.toLocaleString()} ms: <Tag tone="info">half</Tag> <Tag tone="wait">95%</Tag>
      </Text>
    </>
  );
}
