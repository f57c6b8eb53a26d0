import { beforeEach, expect, test } from 'vitest';
import { Fetched } from '../../server/lib/fetched.ts';

const LIMITS = { freshMs: 1000, failedMs: 100, renewMs: 300, size: 3 };
let now = 0;
let fetches = 0;
let answer: () => Promise<string>;
let fetched: Fetched<string>;
const fetch = () => {
  fetches++;
  return answer();
};
beforeEach(() => {
  now = 5_000_000;
  fetches = 0;
  answer = async () => `v${fetches}`;
  fetched = new Fetched(() => now, LIMITS);
});
const fail = async () => {
  throw new Error(`failure ${fetches}`);
};

test('a value is served while it is fresh, and one fetch serves all waiting callers', async () => {
  expect(await Promise.all([1, 2, 3].map(() => fetched.get('k', fetch)))).toEqual(['v1', 'v1', 'v1']);
  now += 999;
  expect(await fetched.get('k', fetch)).toBe('v1');
  now += 1;
  expect(await fetched.get('k', fetch)).toBe('v2');
});

test('a stale value is not served, even if no newer one can be fetched', async () => {
  await fetched.get('k', fetch);
  now += 1000;
  answer = fail;
  await expect(fetched.get('k', fetch)).rejects.toThrow('failure 2');
});

test('a failure is cached for its time, then retried', async () => {
  answer = fail;
  for (let n = 0; n < 5; n++) await expect(fetched.get('k', fetch)).rejects.toThrow('failure 1');
  now += 99;
  await expect(fetched.get('k', fetch)).rejects.toThrow('failure 1');
  await expect(fetched.renew('k', fetch)).rejects.toThrow('failure 1');
  now += 1;
  answer = async () => 'good';
  expect(await fetched.get('k', fetch)).toBe('good');
  expect(fetches).toBe(2);
});

test('a renewal happens when first needed and is rate-limited after that, whatever else was fetched', async () => {
  await fetched.get('k', fetch);
  expect(await fetched.renew('k', fetch)).toBe('v2');
  for (let n = 0; n < 5; n++) expect(await fetched.renew('k', fetch)).toBeUndefined();
  expect(await fetched.get('k', fetch)).toBe('v2');
  now += 300;
  expect(await fetched.renew('k', fetch)).toBe('v3');
});

test('a fresh value is served while a newer one is fetched, and after that fetch fails', async () => {
  await fetched.get('k', fetch);
  let refuse = (_: Error) => {};
  answer = () =>
    new Promise((_, reject) => {
      refuse = reject;
    });
  const renewals = Promise.allSettled([1, 2, 3].map(() => fetched.renew('k', fetch)));
  expect(await fetched.get('k', fetch)).toBe('v1');
  refuse(new Error('away'));
  expect((await renewals).map(({ status }) => status)).toEqual(['rejected', 'rejected', 'rejected']);
  expect(await fetched.get('k', fetch)).toBe('v1');
  await expect(fetched.renew('k', fetch)).rejects.toThrow('away');
  expect(fetches).toBe(2);
});

test('after a renewal that failed, only one that succeeds ends the failure', async () => {
  await fetched.get('k', fetch);
  answer = fail;
  await expect(fetched.renew('k', fetch)).rejects.toThrow('failure 2');
  now += 100;
  await expect(fetched.renew('k', fetch)).rejects.toThrow('failure 3');
  now += 100;
  answer = async () => 'new';
  expect(await fetched.renew('k', fetch)).toBe('new');
  expect(await fetched.renew('k', fetch)).toBeUndefined();
});

test('a forced fetch always fetches, and discards nothing if it fails', async () => {
  await fetched.get('k', fetch);
  answer = fail;
  await expect(fetched.ask('k', fetch)).rejects.toThrow('failure 2');
  expect(await fetched.get('k', fetch)).toBe('v1');
  answer = async () => 'new';
  expect(await fetched.ask('k', fetch)).toBe('new');
  expect(await fetched.get('k', fetch)).toBe('new');
});

test('the cache is bounded: the least recently used value is dropped', async () => {
  for (const key of ['a', 'b', 'c']) await fetched.get(key, fetch);
  await fetched.get('a', fetch);
  await fetched.get('d', fetch);
  expect(fetches).toBe(4);
  expect(await fetched.get('a', fetch)).toBe('v1');
  await fetched.get('b', fetch);
  expect(fetches).toBe(5);
});
