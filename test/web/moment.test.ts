import { describe, expect, test } from 'vitest';
import { dayClockTime, nextMorning, readRange, sinceOf } from '../../web/lib/moment.ts';

// a Monday
const NOW = Date.parse('2026-11-23T10:30:00.000Z');
const read = (text: string) => {
  const range = readRange(text, NOW, 'utc');
  return range && [range.since.slice(0, 16), range.until?.slice(0, 16)];
};

describe('a typed time', () => {
  test.each([
    ['tue 14:00', '2026-11-17T14:00', '2026-11-17T15:00'],
    ['Last Tuesday 14:00', '2026-11-17T14:00', '2026-11-17T15:00'],
    ['tuesday at 2pm', '2026-11-17T14:00', '2026-11-17T15:00'],
    ['tue 14:00-16:30', '2026-11-17T14:00', '2026-11-17T16:30'],
    ['tue 23:00 to 1:00', '2026-11-17T23:00', '2026-11-18T01:00'],
    ['friday', '2026-11-20T00:00', '2026-11-21T00:00'],
    ['monday', '2026-11-23T00:00', '2026-11-24T00:00'],
    ['last monday', '2026-11-16T00:00', '2026-11-17T00:00'],
    ['yesterday', '2026-11-22T00:00', '2026-11-23T00:00'],
    ['2026-02-28 9:15', '2026-02-28T09:15', '2026-02-28T10:15'],
    ['2026-02-28T09:15', '2026-02-28T09:15', '2026-02-28T10:15'],
    // before it has come today, it was yesterday
    ['14:00', '2026-11-22T14:00', '2026-11-22T15:00'],
    ['9:00', '2026-11-23T09:00', '2026-11-23T10:00'],
    ['12am', '2026-11-23T00:00', '2026-11-23T01:00'],
    ['3h', '2026-11-23T07:30', undefined],
    ['last 2 days', '2026-11-21T10:30', undefined],
    ['90 min ago', '2026-11-23T09:00', undefined],
  ])('%s', (text, since, until) => {
    expect(read(text)).toEqual([since, until]);
  });

  test.each(['', 'soon', '2026-02-30', 'tue 25:00', 'tue 14:60', '13pm', 'last today', '2026-13-01', 'tue tue', '-'])(
    'says nothing: %s',
    (text) => {
      expect(read(text)).toBeUndefined();
    },
  );

  test('is in the reader’s zone', () => {
    const local = readRange('tue 14:00', NOW, 'local')!;
    expect(new Date(local.since).getHours()).toBe(14);
    expect(new Date(local.since).getDay()).toBe(2);
  });

  test('a range up to now begins on a full minute', () => {
    expect(sinceOf('7d', NOW + 12_345)).toBe('2026-11-16T10:30:00.000Z');
  });
});

test('tomorrow morning is at eight, and after midnight of the day that comes', () => {
  const morning = (at: string) => new Date(nextMorning(Date.parse(at), 'utc')).toISOString();
  expect(morning('2026-11-23T17:00:00Z')).toBe('2026-11-24T08:00:00.000Z');
  expect(morning('2026-11-23T07:00:00Z')).toBe('2026-11-24T08:00:00.000Z');
  expect(morning('2026-11-24T01:30:00Z')).toBe('2026-11-24T08:00:00.000Z');
  expect(morning('2026-12-31T23:59:00Z')).toBe('2027-01-01T08:00:00.000Z');
});

test('a time of another day names that day', () => {
  expect(dayClockTime('2026-11-23T00:00:09Z', 'utc', NOW)).toBe('00:00:09');
  expect(dayClockTime('2026-11-22T23:59:09Z', 'utc', NOW)).toBe('Sun 11-22 23:59');
  expect(dayClockTime('2026-11-16T10:30:00Z', 'utc', NOW)).toBe('Mon 11-16 10:30');
  expect(dayClockTime('2025-11-22T10:30:00Z', 'utc', NOW)).toBe('2025-11-22 10:30');
});
