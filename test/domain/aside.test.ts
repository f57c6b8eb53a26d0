import { expect, test } from 'vitest';
import { latestReturn } from '../../server/domain/aside.ts';

const MINUTE = 60_000;
const NOW = Date.parse('2026-03-01T12:00:00Z');
const at = (minutes: number) => new Date(NOW + minutes * MINUTE).toISOString();
const latest = (expires: number, release?: number) => {
  const found = latestReturn(
    { expires_at: at(expires), release_at: release === undefined ? undefined : at(release) },
    NOW,
  );
  return found === undefined ? undefined : (found - NOW) / MINUTE;
};

test('a hold is back with a quarter of its time left, and never with less than a quarter of an hour', () => {
  expect(latest(480)).toBe(360);
  expect(latest(60)).toBe(45);
  expect(latest(40)).toBe(25);
  expect(latest(20)).toBe(5);
  expect(latest(19)).toBeUndefined();
  expect(latest(0)).toBeUndefined();
  expect(latest(-1)).toBeUndefined();
});

test('one that time releases is back before that', () => {
  expect(latest(480, 60)).toBe(45);
  expect(latest(480, 10)).toBeUndefined();
  // what has passed waits for approvals
  expect(latest(480, -5)).toBe(360);
});
