import { useEffect, useReducer } from 'react';
import { keptChoice } from './kept-choice.ts';
import { duration, fullTime, type Zone } from './moment.ts';

export { dayClockTime, dayTime, duration, fullTime, lateness, type Zone } from './moment.ts';

export const { use: useZone, read: zoneNow } = keptChoice<Zone>('svc-zone', ['local', 'utc']);

export function clockTime(at: string | Date, zone: Zone): string {
  return fullTime(at, zone).slice(11, 19);
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
