import { setTimeout as delay } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import { createLog } from '../../server/lib/log.ts';
import { PushedCache } from '../../server/lib/pushed-cache.ts';
import { RateLimiter } from '../../server/lib/rate-limit.ts';
import { RedisLink } from '../../server/lib/redis.ts';
import { noRedis, TestRedis } from '../helpers/redis.ts';

describe.skipIf(noRedis)('a cache that Redis keeps true', () => {
  let redis: TestRedis;
  let links: RedisLink[];
  let one: PushedCache;
  let two: PushedCache;
  const secret = Buffer.alloc(32, 1);
  const open = (installation = 'x', key = secret) =>
    RedisLink.open(redis.url, { log: createLog('silent'), secret: key, installation });

  beforeAll(async () => {
    redis = await TestRedis.start();
    links = [await open(), await open()];
    [one, two] = links.map((link) => new PushedCache(link)) as [PushedCache, PushedCache];
  });
  afterAll(async () => {
    await Promise.all((links ?? []).map((link) => link.close()));
    await redis?.stop();
  });

  test('what one process stores, another reads', async () => {
    await one.fill('a', 'value', ['tag'], (await one.ticket())!, 60_000);
    expect(await two.read('a')).toBe('value');
    expect(await two.read('a')).toBe('value');
  });

  test('what one process invalidates, the others have forgotten when it knows', async () => {
    for (let i = 0; i < 200; i++) {
      await one.fill('b', String(i), ['b1', 'b2'], (await one.ticket())!, 60_000);
      // a miss that it remembers may outlive the store by a moment; a value never outlives the invalidation
      await vi.waitFor(async () => expect(await two.read('b')).toBe(String(i)), { interval: 1 });
      expect(await two.invalidate(i % 2 ? 'b1' : 'b2')).toBe(true);
      expect(await one.read('b')).toBeUndefined();
      expect(await two.read('b')).toBeUndefined();
    }
  });

  test('a look-up that began before an invalidation is not stored after it', async () => {
    const ticket = (await one.ticket())!;
    // the source is read here, then the credential is revoked
    await two.invalidate('anything');
    await one.fill('c', 'stale', ['c'], ticket, 60_000);
    expect(await one.read('c')).toBeUndefined();
    expect(await two.read('c')).toBeUndefined();
  });

  test('nor after Redis was emptied, with or without an invalidation in between', async () => {
    const ticket = (await one.ticket())!;
    await redis.send('FLUSHALL');
    await one.fill('d', 'stale', ['d'], ticket, 60_000);
    expect(await two.read('d')).toBeUndefined();
    const later = (await one.ticket())!;
    await two.invalidate('d');
    await redis.send('FLUSHALL');
    await two.ticket();
    await one.fill('d', 'stale', ['d'], later, 60_000);
    expect(await two.read('d')).toBeUndefined();
  });

  test('a value under a full tag is stored, and the tag does not grow without end', async () => {
    for (let i = 0; i < 1003; i++) await one.fill(`f${i}`, 'v', ['full'], (await one.ticket())!, 60_000);
    expect(await two.read('f1002')).toBe('v');
    expect(await two.read('f5')).toBeUndefined();
    await two.invalidate('full');
    expect(await one.read('f1002')).toBeUndefined();
  });

  test('a stamp stays until it is renewed', async () => {
    const stamp = await one.stamp('s');
    expect(await two.stamp('s')).toBe(stamp);
    await two.renew('s', 'another');
    expect(await one.stamp('s')).toBe(stamp);
    await two.renew('s', stamp);
    const next = await one.stamp('s');
    expect(next).not.toBe(stamp);
    await two.renew('s');
    expect(await one.stamp('s')).not.toBe(next);
  });

  test('what Redis makes up or moves is not believed', async () => {
    await one.fill('g', 'mine', [], (await one.ticket())!, 60_000);
    await one.fill('h', 'other', [], (await one.ticket())!, 60_000);
    const [link] = links as [RedisLink];
    const sealed = (await link.commands.get(link.name('value', 'h')))!;
    await link.commands.set(link.name('value', 'g'), sealed);
    expect(await two.read('g')).toBeUndefined();
    await link.commands.set(link.name('value', 'g'), 'forged');
    expect(await two.read('g')).toBeUndefined();
    // what was true once is not believed for longer than it was stored for
    await one.fill('old', 'mine', [], (await one.ticket())!, 100);
    const old = (await link.commands.get(link.name('value', 'old')))!;
    await delay(150);
    await link.commands.set(link.name('value', 'old'), old);
    expect(await two.read('old')).toBeUndefined();
  });

  test('installations that share a Redis do not meet', async () => {
    const [other, stranger] = [await open('y'), await open('x', Buffer.alloc(32, 2))];
    try {
      await one.fill('i', 'mine', [], (await one.ticket())!, 60_000);
      expect(await new PushedCache(other).read('i')).toBeUndefined();
      expect(await new PushedCache(stranger).read('i')).toBeUndefined();
    } finally {
      await other.close();
      await stranger.close();
    }
  });

  test('without Redis nothing is known, at once, and nothing old comes back with it', { timeout: 30_000 }, async () => {
    const limiter = new RateLimiter({ name: 'test', limit: 3, seconds: 60 }, links[0]);
    expect((await limiter.take('k')).allowed).toBe(true);
    await one.fill('j', 'value', ['j'], (await one.ticket())!, 60_000);
    expect(await one.read('j')).toBe('value');
    await redis.stop();
    await delay(100);
    const began = performance.now();
    expect(await one.read('j')).toBeUndefined();
    expect(await one.ticket()).toBeUndefined();
    expect(await one.invalidate('j')).toBe(false);
    expect(await one.stamp('j')).toBeUndefined();
    // the limit is counted here now
    const taken = [];
    for (let i = 0; i < 4; i++) taken.push((await limiter.take('k')).allowed);
    expect(taken).toEqual([true, true, true, false]);
    expect(performance.now() - began).toBeLessThan(500);
    await redis.start();
    for (let i = 0; i < 200 && (await one.ticket()) === undefined; i++) await delay(50);
    expect(await one.read('j')).toBeUndefined();
    expect((await limiter.take('k')).allowed, 'the window in Redis is a new one').toBe(true);
  });

  test('a Redis that hangs is noticed, and its connection given up', { timeout: 30_000 }, async () => {
    for (let i = 0; i < 200 && (await two.ticket()) === undefined; i++) await delay(50);
    redis.pause();
    try {
      const began = performance.now();
      expect(await two.read('never seen')).toBeUndefined();
      expect(performance.now() - began).toBeLessThan(1500);
      await delay(4000);
      const later = performance.now();
      expect(await two.read('never seen')).toBeUndefined();
      expect(performance.now() - later).toBeLessThan(300);
      expect(await two.ticket()).toBeUndefined();
    } finally {
      redis.resume();
    }
  });
});
