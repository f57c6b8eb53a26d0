import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import { createLog } from '../../server/lib/log.ts';
import { RateLimiter } from '../../server/lib/rate-limit.ts';
import { RedisLink } from '../../server/lib/redis.ts';
import { RedisLookups } from '../../server/lib/redis-lookups.ts';
import { useUsualLimits } from '../helpers/patience.ts';
import { noRedis, TestRedis } from '../helpers/redis.ts';
import { until } from '../helpers/until.ts';

describe.skipIf(noRedis)('lookups in Redis', () => {
  let redis: TestRedis;
  let links: RedisLink[];
  let one: RedisLookups<string>;
  let two: RedisLookups<string>;
  const secret = Buffer.alloc(32, 1);
  const horizon = { run: 'r', xmin: 7 };
  const open = (installation = 'x', key = secret) =>
    RedisLink.open(redis.url, { log: createLog('silent'), secret: key, installation });
  const lookups = (link: RedisLink, name = 'test') => new RedisLookups<string>(link, name, async () => horizon);
  const entry = (value: string) => ({ value, until: Date.now() + 60_000, horizon });

  beforeAll(async () => {
    redis = await TestRedis.start();
    links = [await open(), await open()];
    [one, two] = links.map((link) => lookups(link)) as [typeof one, typeof two];
  });
  afterAll(async () => {
    await Promise.all((links ?? []).map((link) => link.close()));
    await redis?.stop();
  });

  test('what one process stores, another reads in full until it is overwritten', async () => {
    await one.write('a', entry('value'));
    // what does not come at once counts as not there
    expect(await until(() => two.read('a'), 'the value')).toMatchObject({ value: 'value', horizon });
    await one.write('a', entry('next'));
    await vi.waitFor(async () => expect((await two.read('a'))?.value).toBe('next'), { timeout: 60_000, interval: 1 });
    expect(await until(() => two.horizon(), 'the moment')).toEqual(horizon);
  });

  test('nothing in Redis can be read, changed, moved or forged there', async () => {
    await one.write('g', entry('the secret of g'));
    await one.write('h', entry('another'));
    const [link] = links as [RedisLink];
    const [g, h] = [link.name('test', 'g'), link.name('test', 'h')];
    const sealed = (await link.commands.get(g))!;
    expect(Buffer.from(sealed, 'base64url').toString('latin1')).not.toContain('secret');
    expect(link.unseal(g, Buffer.from(sealed, 'base64url'))).toBeDefined();
    const put = async (text: string) => {
      await link.commands.set(g, text);
      return (await lookups(links[0]!).read('g'))?.value;
    };
    expect(await put((await link.commands.get(h))!)).not.toBe('another');
    const bytes = Buffer.from(sealed, 'base64url');
    for (const at of [0, 20, 40, bytes.length - 1]) {
      const changed = Buffer.from(bytes);
      changed[at]! ^= 1;
      await link.commands.set(g, changed.toString('base64url'));
      await vi.waitFor(async () => expect(await two.read('g')).toBeUndefined(), { timeout: 60_000, interval: 1 });
    }
    for (const text of ['', 'forged', 'A'.repeat(64), bytes.subarray(0, -1).toString('base64url')]) {
      await link.commands.set(g, text);
      await vi.waitFor(async () => expect(await two.read('g')).toBeUndefined(), { timeout: 60_000, interval: 1 });
    }
    // the same key of another kind
    expect(link.unseal(link.name('other', 'g'), bytes)).toBeUndefined();
    expect(await lookups(link, 'other').read('g')).toBeUndefined();
    // a list where a text is expected
    await link.commands.del(g);
    await link.commands.lpush(g, 'x');
    await vi.waitFor(async () => expect(await two.read('g')).toBeUndefined(), { timeout: 60_000, interval: 1 });
  });

  test('the same text is never encrypted alike', () => {
    const [link] = links as [RedisLink];
    const sealed = Array.from({ length: 100 }, () => link.seal('p', 'text').toString('hex'));
    expect(new Set(sealed).size).toBe(100);
    for (let n = 0; n < 64; n += 4)
      expect(new Set(sealed.map((text) => text.slice(n, n + 8))).size).toBeGreaterThan(90);
  });

  test('installations that share a Redis do not affect each other', async () => {
    const [other, stranger] = [await open('y'), await open('x', Buffer.alloc(32, 2))];
    try {
      await one.write('i', entry('mine'));
      const mine = await links[0]!.commands.get(links[0]!.name('test', 'i'));
      for (const link of [other, stranger]) {
        expect(await lookups(link).read('i')).toBeUndefined();
        await link.commands.set(link.name('test', 'i'), mine!);
        expect(await lookups(link).read('i')).toBeUndefined();
      }
    } finally {
      await other.close();
      await stranger.close();
    }
  });

  test('counters that are deleted or reset in Redis leave each process its own count', async () => {
    const [link] = links as [RedisLink, RedisLink];
    const [here, there] = links.map((each) => new RateLimiter({ name: 'floor', limit: 5, seconds: 600 }, each));
    const taken = { here: 0, there: 0 };
    for (let i = 0; i < 40; i++) {
      if ((await here!.take('203.0.113.9')).allowed) taken.here++;
      if ((await there!.take('203.0.113.9')).allowed) taken.there++;
      for (const name of await link.commands.keys(`${link.name('rate')}*`)) {
        expect(name, 'Redis does not learn who is counted').not.toContain('203.0.113.9');
        if (i % 2) await link.commands.del(name);
        else await link.commands.set(name, '-1000000', 'PX', 1);
      }
    }
    expect(taken).toEqual({ here: 5, there: 5 });
  });

  test('without Redis nothing is found, without a delay', async () => {
    const limiter = new RateLimiter({ name: 'test', limit: 3, seconds: 3600 }, links[0]);
    const other = new RateLimiter({ name: 'test', limit: 3, seconds: 3600 }, links[1]);
    expect((await limiter.take('k')).allowed).toBe(true);
    expect((await other.take('k')).headers.ratelimit).toContain('r=1');
    await one.write('j', entry('value'));
    expect((await until(() => one.read('j'), 'the value')).value).toBe('value');
    await redis.stop();
    await vi.waitFor(() => expect(links[0]!.commands.status).not.toBe('ready'), { timeout: 60_000 });
    const began = performance.now();
    expect(await one.read('j')).toBeUndefined();
    expect(await one.horizon()).toBeUndefined();
    await one.write('j', entry('value'));
    // the limit is counted here now
    const taken = [];
    for (let i = 0; i < 3; i++) taken.push((await limiter.take('k')).allowed);
    expect(taken).toEqual([true, true, false]);
    expect(performance.now() - began).toBeLessThan(30_000);
    await redis.start();
    await vi.waitFor(async () => expect(await one.horizon()).toBeDefined(), { timeout: 60_000 });
    expect(await one.read('j')).toBeUndefined();
  });

  describe('within the usual limits', () => {
    useUsualLimits();

    test('a Redis that hangs is detected, and its connection closed', async () => {
      await vi.waitFor(() => expect(links[1]!.tracked.isReady).toBe(true), { timeout: 60_000 });
      redis.pause();
      try {
        const began = performance.now();
        expect(await two.read('never seen')).toBeUndefined();
        expect(performance.now() - began).toBeLessThan(30_000);
        await vi.waitFor(() => expect(links[1]!.tracked.isReady).toBe(false), { timeout: 60_000 });
        expect(await two.read('never seen')).toBeUndefined();
      } finally {
        redis.resume();
      }
    });
  });
});
