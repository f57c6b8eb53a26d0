import { useEffect, useReducer } from 'react';
import { keptChoice } from './kept-choice.ts';
import type { Zone } from './moment.ts';

export type { Zone };

export const { use: useZone, read: zoneNow } = keptChoice<Zone>('svc-zone', ['local', 'utc']);

/** A moment in full, such as `2026-11-21 16:04:09 UTC`. */
export function fullTime(at: string | Date, zone: Zone): string {
  const date = new Date(at);
  if (zone === 'utc') return `${date.toISOString().slice(0, 19).replace('T', ' ')} UTC`;
  const part = (n: number) => String(n).padStart(2, '0');
  const day = `${date.getFullYear()}-${part(date.getMonth() + 1)}-${part(date.getDate())}`;
  const offset = -date.getTimezoneOffset();
  const sign = offset < 0 ? '-' : '+';
  const hours = `${sign}${part(Math.floor(Math.abs(offset) / 60))}:${part(Math.abs(offset) % 60)}`;
  return `${day} ${part(date.getHours())}:${part(date.getMinutes())}:${part(date.getSeconds())} ${hours}`;
}

export function clockTime(at: string | Date, zone: Zone): string {
  return fullTime(at, zone).slice(11, 19);
}

const WEEKDAYS = ['Sunday', 'Monday', 'Tuesday', 'Wednesday', 'Thursday', 'Friday', 'Saturday'];

/** The day with its name, such as `Tuesday, 2026-11-17`. A list asks for that of each row, and `Intl` takes milliseconds for each. */
export function dayTime(at: string | Date, zone: Zone): string {
  const date = new Date(at);
  const day = WEEKDAYS[zone === 'utc' ? date.getUTCDay() : date.getDay()];
  return `${day}, ${fullTime(at, zone).slice(0, 10)}`;
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
