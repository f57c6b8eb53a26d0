import { Text } from '@mantine/core';
import { type KeyboardEvent, type PointerEvent, useRef, useState } from 'react';
import type { Decision } from '../../server/domain/decision.ts';
import { dayTime, fullTime, useZone, type Zone } from '../lib/time.ts';
import type { Answers } from '../lib/trpc.ts';
import { DECISION } from '../ui/status.tsx';
import './histogram.css';

type Counts = Answers['events']['counts'];
type Bucket = Counts['buckets'][number];
const KINDS = Object.keys(DECISION) as Decision[];

/**
 * Decisions over time as bars. A click on a bar, or a pull over several, narrows the range to them; by keyboard the arrows move, with
 * Shift they take in more, and Enter narrows.
 */
export function Histogram({
  counts,
  pending,
  narrow,
}: {
  counts: Counts;
  /** Others are being counted. */
  pending: boolean;
  narrow: (range: { since: string; until: string }) => void;
}) {
  const { buckets, bucket_seconds } = counts;
  const [zone] = useZone();
  const bars = useRef<HTMLDivElement>(null);
  const [from, setFrom] = useState<number>();
  const [to, setTo] = useState(0);
  const [pulling, setPulling] = useState(false);
  const last = buckets.length - 1;
  const heights = buckets.map((bucket) => KINDS.reduce((sum, kind) => sum + bucket[kind], 0));
  const most = Math.max(1, ...heights);
  const end = (n: number) => new Date(Date.parse(buckets[n]!.at) + bucket_seconds * 1000).toISOString();
  const [low, high] = from === undefined ? [-1, -1] : [Math.min(from, to, last), Math.min(Math.max(from, to), last)];

  const take = (a: number, b: number) => {
    setFrom(undefined);
    setPulling(false);
    narrow({ since: buckets[Math.min(a, b)]!.at, until: end(Math.max(a, b)) });
  };
  const barAt = ({ clientX }: PointerEvent) => {
    const { left, width } = bars.current!.getBoundingClientRect();
    return Math.max(0, Math.min(last, Math.floor(((clientX - left) / width) * buckets.length)));
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const move = { ArrowLeft: -1, ArrowRight: 1, Home: -buckets.length, End: buckets.length }[event.key];
    if (move !== undefined) {
      event.preventDefault();
      const next = Math.max(0, Math.min(last, from === undefined ? (move < 0 ? last : 0) : to + move));
      if (!event.shiftKey || from === undefined) setFrom(next);
      setTo(next);
    } else if (event.key === 'Enter' && from !== undefined) take(from, to);
    else if (event.key === 'Escape') setFrom(undefined);
  };
  return (
    <figure className="histogram" aria-busy={pending || undefined}>
      <figcaption>
        <Summary counts={counts} />
      </figcaption>
      <div
        ref={bars}
        className="histogram-bars"
        role="slider"
        tabIndex={0}
        aria-label="Part of the time. Enter narrows the range to it"
        aria-valuemin={0}
        aria-valuemax={last}
        aria-valuenow={from === undefined ? 0 : to}
        aria-valuetext={
          from === undefined
            ? 'none is chosen'
            : `${spanOf(buckets[low]!.at, end(high), zone)}: ${sentenceOf(buckets.slice(low, high + 1))}`
        }
        onKeyDown={onKeyDown}
        onBlur={() => setFrom(undefined)}
        onPointerDown={(event) => {
          if (event.button !== 0) return;
          event.currentTarget.setPointerCapture(event.pointerId);
          setPulling(true);
          setFrom(barAt(event));
          setTo(barAt(event));
        }}
        onPointerMove={(event) => pulling && setTo(barAt(event))}
        onPointerCancel={() => {
          setPulling(false);
          setFrom(undefined);
        }}
        onPointerUp={(event) => pulling && from !== undefined && take(from, barAt(event))}
      >
        {buckets.map((bucket, n) => (
          <div
            key={bucket.at}
            className="histogram-bar"
            data-chosen={(n >= low && n <= high) || undefined}
            title={`${spanOf(bucket.at, end(n), zone)}\n${sentenceOf([bucket])}`}
          >
            {KINDS.map((kind) =>
              bucket[kind] > 0 ? (
                <i
                  key={kind}
                  data-tone={DECISION[kind][1]}
                  style={{ height: `${Math.max(2, (bucket[kind] / most) * 100)}%` }}
                />
              ) : null,
            )}
          </div>
        ))}
      </div>
      <div className="histogram-axis" aria-hidden="true">
        {[0, 0.25, 0.5, 0.75].map((part) => (
          <span key={part}>{axis(buckets[Math.floor(part * buckets.length)]!.at, bucket_seconds, zone)}</span>
        ))}
        <span>{axis(end(last), bucket_seconds, zone)}</span>
      </div>
    </figure>
  );
}

/** What was counted, and how well. */
function Summary({ counts: { records, counted, matching, estimated } }: { counts: Counts }) {
  const all = records.toLocaleString();
  const number = matching.toLocaleString();
  if (!estimated.facets) {
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
        {estimated.buckets ? 'The bars and ' : 'The bars are exact. '}
        {estimated.buckets ? 'the' : 'The'} numbers beside the list are estimated from {counted.toLocaleString()}{' '}
        records spread evenly over this time; rare values may be missing. A shorter time is counted exactly.
      </span>
    </Text>
  );
}

function sentenceOf(buckets: readonly Bucket[]): string {
  const parts = KINDS.flatMap((kind) => {
    const count = buckets.reduce((sum, bucket) => sum + bucket[kind], 0);
    return count > 0 ? [`${DECISION[kind][0]}: ${count.toLocaleString()}`] : [];
  });
  return parts.join(', ') || 'no decisions';
}

function spanOf(from: string, to: string, zone: Zone): string {
  return `${dayTime(from, zone)} ${fullTime(from, zone).slice(11, 19)} to ${
    dayTime(from, zone) === dayTime(to, zone) ? '' : `${dayTime(to, zone)} `
  }${fullTime(to, zone).slice(11, 19)}`;
}

function axis(at: string, seconds: number, zone: Zone): string {
  const text = fullTime(at, zone);
  const day = dayTime(at, zone).slice(0, 3);
  if (seconds < 60) return text.slice(11, 19);
  if (seconds < 1800) return `${day} ${text.slice(11, 16)}`;
  return seconds < 86_400 ? `${day} ${text.slice(5, 16)}` : text.slice(0, 10);
}
