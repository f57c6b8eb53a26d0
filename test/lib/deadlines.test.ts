import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { Deadlines } from '../../server/lib/deadlines.ts';

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
});

test('each answer has the same time, however many wait and whenever they began', async () => {
  const deadlines = new Deadlines(1000, () => new Error('late'));
  const heard: string[] = [];
  const never = new Promise<never>(() => {});
  const wait = (name: string, answer: Promise<unknown>) =>
    void deadlines.of(answer).then(
      (value) => heard.push(`${name}: ${value}`),
      (error: Error) => heard.push(`${name}: ${error.message}`),
    );
  const slow = Promise.withResolvers<string>();
  wait('first', never);
  wait('refused', Promise.reject(new Error('refused')));
  await vi.advanceTimersByTimeAsync(400);
  wait('second', never);
  wait('quick', Promise.resolve('here'));
  wait('slow', slow.promise);
  await vi.advanceTimersByTimeAsync(599);
  expect(heard.sort()).toEqual(['quick: here', 'refused: refused']);
  await vi.advanceTimersByTimeAsync(2);
  expect(heard).toContain('first: late');
  slow.resolve('just in time');
  await vi.advanceTimersByTimeAsync(398);
  expect(heard).not.toContain('second: late');
  await vi.advanceTimersByTimeAsync(2);
  expect(heard).toContain('second: late');
  expect(heard).toContain('slow: just in time');
  // nothing is waited for now: the one timer begins again with the next
  wait('later', never);
  await vi.advanceTimersByTimeAsync(1001);
  expect(heard.at(-1)).toBe('later: late');
});
