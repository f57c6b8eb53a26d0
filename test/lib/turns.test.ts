import { expect, test } from 'vitest';
import { Turns } from '../../server/lib/turns.ts';

/** What `take` answers once everything that can happen has happened. */
async function settled<T>(promise: Promise<T>): Promise<T | 'waits'> {
  await new Promise(setImmediate);
  return Promise.race([promise, Promise.resolve('waits' as const)]);
}
type End = (() => void) | undefined;

test('those who share the turns of an owner have them one after the other, however many one of them asks for', async () => {
  const turns = new Turns({ atOnce: 1, mostWaiting: 10 });
  const order: string[] = [];
  const ask = async (who: string) => {
    const end = (await turns.take('tenant', who))!;
    order.push(who);
    await new Promise(setImmediate);
    end();
  };
  await Promise.all([ask('greedy'), ask('greedy'), ask('greedy'), ask('greedy'), ask('calm'), ask('other')]);
  expect(order).toEqual(['greedy', 'calm', 'other', 'greedy', 'greedy', 'greedy']);
});

test('who alone shares them has them in the order of asking, and no more wait than may', async () => {
  const turns = new Turns({ atOnce: 1, mostWaiting: 2 });
  const first = (await turns.take('one'))!;
  const [second, third, fourth] = [turns.take('one'), turns.take('one'), turns.take('one')];
  expect(await settled(fourth)).toBeUndefined();
  expect(await settled(second)).toBe('waits');
  first();
  first();
  expect(await settled(second)).toBeTypeOf('function');
  expect(await settled(third)).toBe('waits');
  ((await second) as () => void)();
  ((await third) as () => void)();
  // and afterwards everything is as in the beginning
  expect(await settled(turns.take('one'))).toBeTypeOf('function');
});

test('nobody waits for longer than may be waited, and their place goes to the next one', async () => {
  const turns = new Turns({ atOnce: 1, mostWaiting: 10, mostMs: 20 });
  const first = (await turns.take('one'))!;
  const second = turns.take('one');
  expect(await second).toBeUndefined();
  const third = turns.take('one');
  first();
  expect(await settled(third)).toBeTypeOf('function');
});

test('where all places are taken, who asks for the first time is not sent away by those who ask again and again', async () => {
  const turns = new Turns({ atOnce: 3, mostWaiting: 24 });
  let stopped = false;
  let refused = 0;
  const running = new Set<() => void>();
  const again = async (who: string) => {
    while (!stopped) {
      const end = await turns.take('tenant', who);
      if (!end) {
        refused++;
        await new Promise(setImmediate);
        continue;
      }
      running.add(end);
      await new Promise(setImmediate);
      running.delete(end);
      end();
    }
  };
  const flood = Array.from({ length: 40 }, (_, n) => again(`member ${n % 30}`));
  for (let i = 0; i < 50; i++) await new Promise(setImmediate);
  let served = 0;
  for (let i = 0; i < 200; i++) {
    const end: End = await turns.take('tenant', 'calm');
    if (end) served++;
    end?.();
    for (let rest = 0; rest < 20; rest++) await new Promise(setImmediate);
  }
  stopped = true;
  await Promise.all(flood);
  expect(refused).toBeGreaterThan(0);
  expect(served).toBe(200);
});

test('who was away long has no more turns than the others when they come back', async () => {
  const turns = new Turns({ atOnce: 1, mostWaiting: 10 });
  // never idle: the next one waits before the last one ends
  let end = (await turns.take('tenant', 'busy'))!;
  for (let n = 0; n < 300; n++) {
    const next = turns.take('tenant', `busy ${n % 150}`);
    end();
    end = (await next)!;
  }
  const order: string[] = [];
  const ask = async (who: string) => {
    const done = (await turns.take('tenant', who))!;
    order.push(who);
    done();
  };
  const all = ['late', 'late', 'late', 'busy 299', 'busy 298'].map(ask);
  await new Promise(setImmediate);
  end();
  await Promise.all(all);
  expect(order.slice(0, 3).sort()).toEqual(['busy 298', 'busy 299', 'late']);
});

test('who has gone keeps no place: not one who waits, nor one who comes', async () => {
  const turns = new Turns({ atOnce: 1, mostWaiting: 2 });
  const first = (await turns.take('one'))!;
  const leaving = new AbortController();
  const waiting = [turns.take('one', 'one', leaving.signal), turns.take('one', 'one', leaving.signal)];
  expect(await settled(turns.take('one'))).toBeUndefined();
  leaving.abort();
  expect(await Promise.all(waiting)).toEqual([undefined, undefined]);
  expect(await settled(turns.take('one', 'one', leaving.signal))).toBeUndefined();
  const next = turns.take('one');
  expect(await settled(next)).toBe('waits');
  first();
  expect(await settled(next)).toBeTypeOf('function');
});

test('who leaves during their turn has it until they end it', async () => {
  const turns = new Turns({ atOnce: 1, mostWaiting: 1 });
  const leaving = new AbortController();
  const first = (await turns.take('one'))!;
  const second = turns.take('one', 'one', leaving.signal);
  first();
  const end = (await second)!;
  const third = turns.take('one');
  leaving.abort();
  expect(await settled(third)).toBe('waits');
  end();
  expect(await settled(third)).toBeTypeOf('function');
});

test('what was left while it waited costs no place: the next one has its turn as if it were the first', async () => {
  for (const left of [0, 10]) {
    const turns = new Turns({ atOnce: 1, mostWaiting: 500 });
    const first = (await turns.take('tenant', 'first'))!;
    for (let n = 0; n < left; n++) {
      const leaving = new AbortController();
      const waiting = turns.take('tenant', 'impatient', leaving.signal);
      leaving.abort();
      await waiting;
    }
    const order: string[] = [];
    const ask = async (who: string) => {
      const end = (await turns.take('tenant', who))!;
      order.push(who);
      end();
    };
    const all = ['busy', 'busy', 'busy', 'impatient', 'other', 'other'].map(ask);
    first();
    await Promise.all(all);
    expect(order).toEqual(['busy', 'impatient', 'other', 'busy', 'other', 'busy']);
  }
});
