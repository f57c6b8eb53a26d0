import { expect, test } from 'vitest';
import { each } from '../../server/lib/each.ts';

const signal = new AbortController().signal;

test('what fails keeps nothing from its turn, and is thrown at the end', async () => {
  const done: number[] = [];
  const all = each([1, 2, 3, 4], signal, async (n) => {
    if (n % 2 === 0) throw new Error(`no ${n}`);
    done.push(n);
  });
  await expect(all).rejects.toMatchObject({ message: '2 failed', errors: [{ message: 'no 2' }, { message: 'no 4' }] });
  expect(done).toEqual([1, 3]);
});

test('nothing more begins after an abort', async () => {
  const aborter = new AbortController();
  const done: number[] = [];
  await each([1, 2, 3], aborter.signal, async (n) => {
    done.push(n);
    if (n === 2) aborter.abort();
  });
  expect(done).toEqual([1, 2]);
});

test('a fault of all is not met by each of them; some that fail in between are', async () => {
  let tried = 0;
  const many = Array.from({ length: 1000 }, (_, n) => n);
  const failing = each(many, signal, async () => {
    tried++;
    throw new Error('away');
  });
  await expect(failing).rejects.toMatchObject({ message: '20 failed' });
  expect(tried).toBe(20);
  const half = each(many, signal, async (n) => {
    if (n % 2 === 0) throw new Error('its node is away');
  });
  const error = (await half.catch((reason: unknown) => reason)) as AggregateError;
  expect([error.message, error.errors.length]).toEqual(['500 failed', 20]);
});
