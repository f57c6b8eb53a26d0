import { expect, test } from 'vitest';
import { each } from '../../server/lib/each.ts';

const signal = new AbortController().signal;
const many = Array.from({ length: 1000 }, (_, n) => n);

test('what fails keeps nothing from its turn, and is thrown at the end', async () => {
  const done: number[] = [];
  const all = each([1, 2, 3, 4], signal, async (n) => {
    if (n % 2 === 0) throw new Error(`no ${n}`);
    done.push(n);
  });
  const error = (await all.catch((reason: unknown) => reason)) as AggregateError;
  expect([error.message, error.errors.map(({ message }) => message).sort()]).toEqual(['2 failed', ['no 2', 'no 4']]);
  expect(done.sort()).toEqual([1, 3]);
});

test('nothing more begins after an abort', async () => {
  const aborter = new AbortController();
  let begun = 0;
  await each(many, aborter.signal, async () => {
    if (++begun === 2) aborter.abort();
  });
  expect(begun).toBe(2);
});

test('a fault of all is not met by each of them; some that fail in between are', async () => {
  let tried = 0;
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

test('many that always fail, one after the other, keep none of the others from its turn for ever', async () => {
  const done = new Set<number>();
  const last = 99;
  // each time the chance is a half at least
  for (let times = 0; times < 200 && !done.has(last); times++) {
    const all = each(many.slice(0, last + 1), signal, async (n) => {
      if (n < last / 2) throw new Error('always');
      done.add(n);
    });
    await all.catch(() => undefined);
  }
  expect(done).toContain(last);
});
