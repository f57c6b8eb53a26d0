import { expect, test } from 'vitest';
import { Bounded, detached } from '../../server/lib/bounded.ts';

test('the oldest go when there are too many entries, or too many characters', () => {
  const few = new Bounded<number>({ entries: 2, characters: 100 });
  for (const [n, key] of ['a', 'b', 'a', 'c'].entries()) expect(few.set(key, n)).toBe(n);
  expect(['a', 'b', 'c'].map((key) => few.get(key))).toEqual([undefined, 1, 3]);

  const short = new Bounded<true>({ entries: 100, characters: 10 });
  // the same key again counts once
  for (const key of ['1234', '1234', '5678', 'ab']) short.set(key, true);
  expect(['1234', '5678', 'ab'].every((key) => short.has(key))).toBe(true);
  short.set('c', true);
  expect(['1234', '5678', 'ab', 'c'].map((key) => short.has(key))).toEqual([false, true, true, true]);
  expect(short.set('longer than all', true)).toBe(true);
  expect(['5678', 'longer than all'].some((key) => short.has(key))).toBe(false);
  short.set('1234567890', true);
  expect(short.has('1234567890')).toBe(true);
});

test('a detached text is the same text', () => {
  expect(detached('permit 😀 \0')).toBe('permit 😀 \0');
});
