import { expect, test } from 'vitest';
import { asideUntil, isAside } from '../../web/lib/aside.ts';

const MINUTE = 60_000;
const NOW = Date.parse('2026-03-01T12:00:00Z');
const hold = (minutes: number, more: object = {}) => ({
  ...{ id: 'esc_1', expires_at: new Date(NOW + minutes * MINUTE).toISOString(), current_approvals: 0 },
  ...{ conditions: [{ satisfied: false }], votes: [] as unknown[] },
  ...more,
});

test('a hold is set aside for the time that was asked, and never to its end', () => {
  expect(asideUntil(hold(480), '1 h', NOW)).toBe(NOW + 60 * MINUTE);
  // a tenth of the time is left to decide
  expect(asideUntil(hold(120), '4 h', NOW)).toBe(NOW + 108 * MINUTE);
  // or ten minutes
  expect(asideUntil(hold(40), '1 h', NOW)).toBe(NOW + 30 * MINUTE);
  expect(asideUntil(hold(24), '15 min', NOW)).toBeUndefined();
  expect(asideUntil(hold(-1), '15 min', NOW)).toBeUndefined();
});

test('it is back after its time, when it changed, and ten minutes before it expires whatever is kept', () => {
  const until = NOW + 60 * MINUTE;
  const kept = [until, '0 0 0'] as const;
  expect(isAside(undefined, hold(480), NOW)).toBe(false);
  expect(isAside(kept, hold(480), NOW)).toBe(true);
  expect(isAside(kept, hold(480), until)).toBe(false);
  expect(isAside(kept, hold(480, { current_approvals: 1, votes: [{}] }), NOW)).toBe(false);
  expect(isAside(kept, hold(480, { conditions: [{ satisfied: true }] }), NOW)).toBe(false);
  // the list may say of a hold that it ends sooner than what was kept
  expect(isAside(kept, hold(9), NOW)).toBe(false);
});
