import { type KeyboardEvent, type PointerEvent, type ReactNode, useRef, useState } from 'react';
import { dayTime, fullTime, useZone, type Zone } from '../lib/time.ts';
import type { Tone } from '../ui/status.tsx';
import './histogram.css';

/** One bar: where it begins, and its count of each kind, in the order of the kinds. */
export interface Bar {
  at: string;
  counts: readonly number[];
}

/**
 * Counts over time as bars. Clicking a bar, or dragging over several, narrows the range to them; on the keyboard the arrows move,
 * Shift with an arrow extends the selection, and Enter narrows.
 */
export function Bars({
  bars: buckets,
  seconds,
  kinds,
  pending,
  narrow,
  nothing,
  more,
  caption,
  children,
}: {
  bars: readonly Bar[];
  /** How long a bar is. */
  seconds: number;
  kinds: readonly { label: string; tone: Tone }[];
  /** New counts are being loaded. */
  pending: boolean;
  narrow: (range: { since: string; until: string }) => void;
  /** The text for empty bars. */
  nothing: string;
  /** Additional text for one bar. */
  more?: (n: number) => string | undefined;
  caption: ReactNode;
  /** Content that shares the time axis: it appears between the bars and the axis. */
  children?: ReactNode;
}) {
  const [zone] = useZone();
  const bars = useRef<HTMLDivElement>(null);
  const [from, setFrom] = useState<number>();
  const [to, setTo] = useState(0);
  const [pulling, setPulling] = useState(false);
  const last = buckets.length - 1;
  const most = Math.max(1, ...buckets.map(({ counts }) => counts.reduce((sum, count) => sum + count, 0)));
  const end = (n: number) => new Date(Date.parse(buckets[n]!.at) + seconds * 1000).toISOString();
  const [low, high] = from === undefined ? [-1, -1] : [Math.min(from, to, last), Math.min(Math.max(from, to), last)];
  const sentenceOf = (some: readonly Bar[]) =>
    kinds
      .flatMap(({ label }, kind) => {
        const count = some.reduce((sum, { counts }) => sum + counts[kind]!, 0);
        return count > 0 ? [`${label}: ${count.toLocaleString()}`] : [];
      })
      .join(', ') || nothing;

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
    const next = {
      ArrowLeft: from === undefined ? last : Math.max(0, Math.min(to, last) - 1),
      ArrowRight: from === undefined ? 0 : Math.min(last, to + 1),
      Home: 0,
      End: last,
    }[event.key];
    if (next !== undefined) {
      event.preventDefault();
      if (!event.shiftKey || from === undefined) setFrom(next);
      setTo(next);
    } else if (event.key === 'Enter' && from !== undefined) take(from, to);
    else if (event.key === 'Escape') setFrom(undefined);
  };
  return (
    <figure className="histogram" aria-busy={pending || undefined}>
      <figcaption>{caption}</figcaption>
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
            title={[spanOf(bucket.at, end(n), zone), sentenceOf([bucket]), more?.(n)].filter(Boolean).join('\n')}
          >
            {kinds.map(({ label, tone }, kind) =>
              bucket.counts[kind]! > 0 ? (
                <i
                  key={label}
                  data-tone={tone}
                  style={{ height: `${Math.max(2, (bucket.counts[kind]! / most) * 100)}%` }}
                />
              ) : null,
            )}
          </div>
        ))}
      </div>
      {children}
      <div className="histogram-axis" aria-hidden="true">
        {[0, 0.25, 0.5, 0.75].map((part) => (
          <span key={part}>{axis(buckets[Math.floor(part * buckets.length)]!.at, seconds, zone)}</span>
        ))}
        {/* the last bar ends later while it is still growing */}
        <span>{axis(new Date(Math.min(Date.parse(end(last)), Date.now())).toISOString(), seconds, zone)}</span>
      </div>
    </figure>
  );
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
