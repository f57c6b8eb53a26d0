import { Text } from '@mantine/core';
import type { Decision } from '../../server/domain/decision.ts';
import type { Answers } from '../lib/trpc.ts';
import { DECISION } from '../ui/status.tsx';
import { Bars } from './bars.tsx';

type Counts = Answers['events']['counts'];
const KINDS = Object.keys(DECISION) as Decision[];
const WORDS = KINDS.map((kind) => ({ label: DECISION[kind][0], tone: DECISION[kind][1] }));

/** Decisions over time. */
export function Histogram({
  counts,
  pending,
  narrow,
}: {
  counts: Counts;
  /** New counts are being loaded. */
  pending: boolean;
  narrow: (range: { since: string; until: string }) => void;
}) {
  return (
    <Bars
      bars={counts.buckets.map((bucket) => ({ at: bucket.at, counts: KINDS.map((kind) => bucket[kind]) }))}
      seconds={counts.bucket_seconds}
      kinds={WORDS}
      pending={pending}
      narrow={narrow}
      nothing="no decisions"
      caption={<Summary counts={counts} />}
    />
  );
}

/** What was counted, and how accurately. */
function Summary({ counts: { records, counted, matching, estimated } }: { counts: Counts }) {
  const all = records.toLocaleString();
  const number = matching.toLocaleString();
  if (!estimated.facets && !estimated.buckets) {
    return (
      <Text size="sm">
        <strong>{number}</strong>
        {matching === records ? null : ` of ${all}`} {records === 1 ? 'decision' : 'decisions'}
      </Text>
    );
  }
  return (
    <Text size="sm">
      <strong>
        {estimated.buckets ? 'about ' : ''}
        {number}
      </strong>
      {matching === records ? null : ` of ${all}`} decisions.{' '}
      <span className="dim">
        {!estimated.facets
          ? 'The bars'
          : estimated.buckets
            ? 'The bars and the numbers beside the list'
            : 'The bars are exact. The numbers beside the list'}{' '}
        are estimated from {counted.toLocaleString()} records spread evenly over this time; rare values may be missing.
        A shorter time is counted exactly.
      </span>
    </Text>
  );
}
