import { useEffect, useReducer } from 'react';
import { keptChoice } from './kept-choice.ts';
import { fullTime, type Zone } from './moment.ts';

export { dayClockTime, dayTime, fullTime, type Zone } from './moment.ts';

export const { use: useZone, read: zoneNow } = keptChoice<Zone>('svc-zone', ['local', 'utc']);

export function clockTime(at: string | Date, zone: Zone): string {
  return fullTime(at, zone).slice(11, 19);
}

const UNITS: [unit: string, seconds: number][] = [
  ['d', 86_400],
  ['h', 3_600],
  ['min', 60],
  ['s', 1],
];

/** A duration in its largest unit and, if not zero, the next smaller one: `2 h 5 min`, `8 h`. */
export function duration(ms: number, parts = 2): string {
  let seconds = Math.max(0, Math.round(ms / 1000));
  const largest = UNITS.findIndex(([, size]) => seconds >= size);
  const words = UNITS.slice(largest, largest < 0 ? 0 : largest + parts).flatMap(([unit, size]) => {
    const count = Math.floor(seconds / size);
    seconds -= count * size;
    return count > 0 ? [`${count} ${unit}`] : [];
  });
  return words.join(' ') || '0 s';
}

/** A decision that was received this much after it was made, or before it, is marked: a proxy sends what it has within seconds. */
const LATE_MS = 60_000;

/** How a decision's receipt differs from its own time; undefined if it does not. */
export function lateness({ timestamp, created_at }: { timestamp: string; created_at: string }): string | undefined {
  const ms = Date.parse(created_at) - Date.parse(timestamp);
  if (Math.abs(ms) < LATE_MS) return undefined;
  return ms > 0 ? `${duration(ms, 1)} late` : `${duration(-ms, 1)} ahead`;
}

/** `4 min ago`, `in 3 h`. */
export function relativeTime(at: string | Date, now: number): string {
  const ms = new Date(at).getTime() - now;
  if (Math.abs(ms) < 5_000) return 'just now';
  return ms < 0 ? `${duration(-ms, 1)} ago` : `in ${duration(ms, 1)}`;
}

/** The current time, updated at this interval in milliseconds. */
export function useNow(everyMs: number): number {
  const [, tick] = useReducer((n: number) => n + 1, 0);
  useEffect(() => {
    const timer = setInterval(tick, everyMs);
    return () => clearInterval(timer);
  }, [everyMs]);
  return Date.now();
}

/** A time as the value of a datetime-local field, in the reader's zone. */
export function fieldTime(at: string, zone: Zone): string {
  return fullTime(at, zone).slice(0, 16).replace(' ', 'T');
}

/** The time in such a field; undefined while it is incomplete. */
export function fromFieldTime(value: string, zone: Zone): string | undefined {
  const date = new Date(zone === 'utc' ? `${value}Z` : value);
  return Number.isNaN(date.getTime()) ? undefined : date.toISOString();
}
