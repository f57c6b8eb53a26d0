import { setTimeout as delay } from 'node:timers/promises';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { type ActorKind, Fenced } from '../../server/actors/host.ts';
import { RedisHost } from '../../server/actors/redis.ts';
import { AppError } from '../../server/errors.ts';
import { createLog } from '../../server/lib/log.ts';
import { RedisLink } from '../../server/lib/redis.ts';
import { noRedis, TestRedis } from '../helpers/redis.ts';

interface Command {
  id: string;
  fill?: string;
}

/** What PostgreSQL is for the chain: who opened a tenant last may write, each command once. */
class Authority {
  readonly fences = new Map<string, number>();
  readonly written: string[] = [];
  handling: (command: Command) => Promise<void> = async () => undefined;

  kind(): ActorKind<{ tenantId: string; fence: number }, Command, { id: string; by: number }> {
    return {
      open: async (tenantId) => {
        if (tenantId === 'unknown') throw new AppError('NOT_FOUND', 'there is no such tenant');
        await delay(1);
        const fence = (this.fences.get(tenantId) ?? 0) + 1;
        this.fences.set(tenantId, fence);
        return { tenantId, fence };
      },
      handle: async (actor, command) => {
        await this.handling(command);
        if (this.fences.get(actor.tenantId) !== actor.fence) throw new Fenced();
        if (!this.written.includes(command.id)) this.written.push(command.id);
        return { id: command.id, by: actor.fence };
      },
    };
  }
}

describe.skipIf(noRedis)('the host of several processes', () => {
  let redis: TestRedis;
  const log = createLog('silent');
  const open: { host: RedisHost<unknown, Command, unknown>; link: RedisLink }[] = [];

  beforeAll(async () => {
    redis = await TestRedis.start();
  });
  afterEach(async () => {
    await Promise.all(open.map(({ host }) => host.stop()));
    await Promise.all(open.map(({ link }) => link.close()));
    open.length = 0;
    await redis.send('FLUSHALL');
  });
  afterAll(() => redis?.stop());

  async function hosts(
    authority: Authority,
    count: number,
    options: { leaseMs?: number; patienceMs?: number; url?: string; secret?: string } = {},
  ) {
    const made = [];
    for (let i = 0; i < count; i++) {
      const secret = Buffer.alloc(32, options.secret ?? 'a');
      const link = await RedisLink.open(options.url ?? redis.url, { log, secret, installation: 'test' });
      const { leaseMs = 600, patienceMs = 5000 } = options;
      const host = await RedisHost.start(authority.kind(), { redis: link, log, leaseMs, patienceMs });
      open.push({ host: host as never, link });
      made.push(host);
    }
    return made;
  }

  test('commands reach the one owner from everywhere, in the order of their sender', async () => {
    const authority = new Authority();
    const all = await hosts(authority, 3);
    await all[0]!.send('t', { id: 'first' });
    const sent = all.flatMap((host, h) => Array.from({ length: 200 }, (_, i) => host.send('t', { id: `${h}-${i}` })));
    const results = await Promise.all(sent);
    expect(new Set(results.map(({ by }) => by))).toEqual(new Set([1]));
    for (const h of [0, 1, 2]) {
      const mine = authority.written.filter((id) => id.startsWith(`${h}-`));
      expect(mine).toEqual(Array.from({ length: 200 }, (_, i) => `${h}-${i}`));
    }
  });

  test('an error keeps its code, faults and headers on the way', async () => {
    const authority = new Authority();
    const [owner, other] = await hosts(authority, 2);
    await owner!.send('t', { id: 'first' });
    authority.handling = async ({ id }) => {
      if (id === 'plain') throw new TypeError('a fault of the program');
      throw new AppError('VALIDATION_FAILED', 'no', {
        faults: [{ pointer: '/a', message: 'b' }],
        headers: { 'x-y': 'z' },
      });
    };
    const error = await other!.send('t', { id: 'x' }).catch((e: unknown) => e);
    expect(error).toBeInstanceOf(AppError);
    expect(error).toMatchObject({
      problem: 'VALIDATION_FAILED',
      message: 'no',
      faults: [{ pointer: '/a', message: 'b' }],
      headers: { 'x-y': 'z' },
    });
    await expect(other!.send('t', { id: 'plain' })).rejects.toThrow('a fault of the program');
    await expect(other!.send('unknown', { id: 'x' })).rejects.toMatchObject({ problem: 'NOT_FOUND' });
    await expect(owner!.send('unknown', { id: 'x' })).rejects.toMatchObject({ problem: 'NOT_FOUND' });
  });

  test('an owner that does not answer costs its callers a bounded time', async () => {
    const authority = new Authority();
    const [owner, other] = await hosts(authority, 2, { leaseMs: 300, patienceMs: 800 });
    await owner!.send('t', { id: 'first' });
    let release = () => {};
    const stuck = new Promise<void>((resolve) => (release = resolve));
    authority.handling = () => stuck;
    const began = performance.now();
    await expect(other!.send('t', { id: 'x' })).rejects.toMatchObject({
      problem: 'UNAVAILABLE',
      headers: { 'retry-after': '1' },
    });
    expect(performance.now() - began).toBeLessThan(2500);
    release();
  });

  test('what waits for an owner is bounded', async () => {
    const authority = new Authority();
    const [owner, other] = await hosts(authority, 2, { leaseMs: 20_000, patienceMs: 20_000 });
    await owner!.send('t', { id: 'first' });
    let release = () => {};
    const stuck = new Promise<void>((resolve) => (release = resolve));
    authority.handling = () => stuck;
    const fill = 'x'.repeat(1024 * 1024);
    const sent = Array.from({ length: 20 }, (_, i) => other!.send('t', { id: `b${i}`, fill }));
    const refused = await Promise.race(
      sent.map((one) =>
        one.then(
          () => new Error('handled'),
          (e: unknown) => e,
        ),
      ),
    );
    expect(refused).toMatchObject({ problem: 'UNAVAILABLE' });
    release();
    const done = await Promise.allSettled(sent);
    expect(done.filter(({ status }) => status === 'fulfilled').length).toBe(15);
  });

  test('two Redis that know nothing of each other: the fence decides, and the tenant does not move with each command', {
    timeout: 30_000,
  }, async () => {
    const split = await TestRedis.start();
    try {
      const authority = new Authority();
      const [one] = await hosts(authority, 1);
      const [two] = await hosts(authority, 1, { url: split.url });
      const sent: Promise<unknown>[] = [];
      const began = performance.now();
      for (let i = 0; i < 150; i++) {
        sent.push(one!.send('t', { id: `1-${i}` }), two!.send('t', { id: `2-${i}` }));
        await delay(10);
      }
      await Promise.all(sent);
      const seconds = (performance.now() - began) / 1000;
      expect(authority.written).toHaveLength(300);
      expect(authority.fences.get('t')! / seconds).toBeLessThan(12);
      await Promise.all(open.map(({ host }) => host.stop()));
    } finally {
      await split.stop();
    }
  });

  test('a message that was not sealed by a process of the installation is not handled', async () => {
    const authority = new Authority();
    const [owner] = await hosts(authority, 1);
    await owner!.send('t', { id: 'first' });
    const { link } = open[0]!;
    const text = JSON.stringify({ from: 'x', parts: [['call', 1, 't', { id: 'forged' }]] });
    const channel = link.name('node', owner!.id);
    await link.commands.publish(channel, text);
    // sealed, but for another place
    await link.commands.publish(channel, link.seal('elsewhere', text));
    await link.commands.publish(channel, `${'A'.repeat(22)}${text}`);
    await owner!.send('t', { id: 'second' });
    await delay(50);
    expect(authority.written).toEqual(['first', 'second']);
    await link.commands.publish(channel, link.seal(channel, text));
    await delay(50);
    expect(authority.written).toContain('forged');
  });

  test('a stopped host hands its tenants over, and refuses', async () => {
    const authority = new Authority();
    const [owner, other] = await hosts(authority, 2);
    await Promise.all(Array.from({ length: 20 }, (_, i) => owner!.send(`t${i}`, { id: `a${i}` })));
    const during = Array.from({ length: 20 }, (_, i) => other!.send(`t${i}`, { id: `b${i}` }));
    await owner!.stop();
    expect(owner!.owned).toBe(0);
    await Promise.all(during);
    const began = performance.now();
    await Promise.all(Array.from({ length: 20 }, (_, i) => other!.send(`t${i}`, { id: `c${i}` })));
    expect(performance.now() - began, 'no lease had to run out').toBeLessThan(400);
    await expect(owner!.send('t', { id: 'late' })).rejects.toMatchObject({ problem: 'UNAVAILABLE' });
    expect(authority.written).toHaveLength(60);
  });

  test('without Redis from the start it works alone, and is found when Redis comes', { timeout: 30_000 }, async () => {
    const late = await TestRedis.start();
    await late.stop();
    const authority = new Authority();
    const [one, two] = await hosts(authority, 2, { url: late.url });
    await one!.send('t', { id: '1' });
    await two!.send('t', { id: '2' });
    await late.start();
    await delay(3500);
    const before = authority.fences.get('t')!;
    for (let i = 0; i < 20; i++) await Promise.all([one!.send('t', { id: `x${i}` }), two!.send('t', { id: `y${i}` })]);
    expect(authority.fences.get('t')! - before).toBeLessThanOrEqual(1);
    expect(authority.written).toHaveLength(42);
    await Promise.all(open.map(({ host }) => host.stop()));
    await late.stop();
  });
});
