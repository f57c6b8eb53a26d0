import { setTimeout as delay } from 'node:timers/promises';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { type ActorKind, Fenced } from '../../server/actors/host.ts';
import { RedisHost } from '../../server/actors/redis.ts';
import { AppError } from '../../server/errors.ts';
import { createLog } from '../../server/lib/log.ts';
import { RedisLink } from '../../server/lib/redis.ts';
import { noRedis, TestRedis } from '../helpers/redis.ts';
import { until } from '../helpers/until.ts';

interface Command {
  id: string;
  fill?: string;
}

/** What PostgreSQL is for the chain: who opened a tenant last may write, each command once. */
class Authority {
  readonly fences = new Map<string, number>();
  readonly written: string[] = [];
  handling: (command: Command, fence: number) => Promise<void> = async () => undefined;

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
        await this.handling(command, actor.fence);
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

  test('commands from every process reach the one owner, in the order of their sender', async () => {
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

  test('an owner that is alive and does not do what it is asked is bypassed after a lease', async () => {
    const authority = new Authority();
    const [owner, other] = await hosts(authority, 2, { leaseMs: 300, patienceMs: 20_000 });
    await owner!.send('t', { id: 'first' });
    let release = () => {};
    const stuck = new Promise<void>((resolve) => (release = resolve));
    authority.handling = async (_, fence) => (fence === 1 ? stuck : undefined);
    // the one that is stuck never answers: this resolves only because the lease ends it
    expect(await other!.send('t', { id: 'x' })).toEqual({ id: 'x', by: 2 });
    // what it did not do in time it cannot do any more
    release();
    await owner!.send('t', { id: 'y' });
    expect(authority.written).toEqual(['first', 'x', 'y']);
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

  test('a message that was made up, moved or repeated is not handled', async () => {
    const authority = new Authority();
    const [owner, other] = await hosts(authority, 2);
    await owner!.send('t', { id: 'first' });
    const { link } = open[0]!;
    const channel = link.name('node', owner!.id);
    const heard: Buffer[] = [];
    const tap = link.subscriber.duplicate();
    await tap.connect();
    await tap.subscribe(channel);
    tap.on('messageBuffer', (_channel: Buffer, message: Buffer) => heard.push(message));
    authority.handling = async ({ id }) => void handled.push(id);
    const handled: string[] = [];
    await other!.send('t', { id: 'the secret command' });
    expect(handled).toEqual(['the secret command']);
    for (const message of heard) expect(message.toString('latin1')).not.toMatch(/secret|call|from/);

    const forged = (number: number) =>
      JSON.stringify({ from: 'x'.repeat(16), number, parts: [['call', 1, 't', { id: `forged ${number}` }]] });
    await link.commands.publish(channel, forged(1));
    // sealed, but for another place
    await link.commands.publish(channel, link.seal('elsewhere', forged(2)));
    await link.commands.publish(channel, Buffer.concat([Buffer.alloc(32, 'A'), Buffer.from(forged(3))]));
    await link.commands.publish(channel, '');
    // every message that this process was ever sent, to it and to the other
    for (const message of [...heard]) {
      await link.commands.publish(channel, message);
      await link.commands.publish(link.name('node', other!.id), message);
    }
    await other!.send('t', { id: 'second' });
    expect(handled).toEqual(['the secret command', 'second']);
    // what only a process with the key can make is handled: the refusals above are not for another reason
    await link.commands.publish(channel, link.seal(channel, forged(4)));
    await other!.send('t', { id: 'third' });
    expect(handled).toEqual(['the secret command', 'second', 'forged 4', 'third']);
    tap.disconnect();
  });

  test.each([
    ['nobody', () => 'x'.repeat(16)],
    ['no id at all', () => 'svc:*\r\n'.repeat(1000)],
    ['a process of the past', async (past: string) => past],
    ['a wrong process', async (_: string, wrong: string) => wrong],
  ])('a lease that names %s, written again and again, stops nobody', { timeout: 30_000 }, async (_, nameOf) => {
    const authority = new Authority();
    const [past, wrong] = await hosts(authority, 2);
    await past!.stop();
    const { link } = open[1]!;
    const named = await nameOf(past!.id, wrong!.id);
    // the attacker listens where the named process would, so that its channel seems to be alive
    const tap = link.subscriber.duplicate();
    await tap.connect();
    const heard: Buffer[] = [];
    tap.on('messageBuffer', (_channel: Buffer, message: Buffer) => heard.push(message));
    await tap.subscribe(link.name('node', named));
    let attacking = true;
    const attack = (async () => {
      while (attacking) {
        await link.commands.set(link.name('owner', 't'), named);
        await delay(2);
      }
    })();
    try {
      const [one, two] = await hosts(authority, 2, { leaseMs: 900, patienceMs: 5000 });
      for (let i = 0; i < 12; i++) {
        const fill = 'the secret arguments';
        // a caller that waits longer than its host is patient is refused
        await Promise.all([one!.send('t', { id: `1-${i}`, fill }), two!.send('t', { id: `2-${i}`, fill })]);
        await delay(100);
      }
      expect(authority.written).toHaveLength(24);
      for (const message of heard) expect(message.toString('latin1')).not.toMatch(/secret|owner/);
    } finally {
      attacking = false;
      await attack;
      tap.disconnect();
    }
  });

  test('an owner that is cut off is bypassed within the lease', { timeout: 30_000 }, async () => {
    const authority = new Authority();
    const [owner, other] = await hosts(authority, 2, { leaseMs: 3000, patienceMs: 10_000 });
    await owner!.send('t', { id: 'first' });
    await other!.send('t', { id: 'second' });
    expect(authority.fences.get('t')).toBe(1);
    // it is there, renews its lease, and hears nothing: Redis swallows what it is sent
    const { link } = open[0]!;
    const channel = link.name('node', owner!.id);
    const tap = open[1]!.link.subscriber.duplicate();
    await tap.connect();
    await tap.subscribe(channel);
    await link.subscriber.unsubscribe(channel);
    // the owner never answers, and it renews its lease for ever: this resolves only because it is passed over
    await other!.send('t', { id: 'third' });
    expect(authority.fences.get('t')).toBe(2);
    tap.disconnect();
  });

  test('a stopped host hands its tenants over, and refuses', async () => {
    const authority = new Authority();
    // a lease that had to run out would outlive the patience of those who waits for it
    const [owner, other] = await hosts(authority, 2, { leaseMs: 60_000, patienceMs: 15_000 });
    await Promise.all(Array.from({ length: 20 }, (_, i) => owner!.send(`t${i}`, { id: `a${i}` })));
    const during = Array.from({ length: 20 }, (_, i) => other!.send(`t${i}`, { id: `b${i}` }));
    await owner!.stop();
    expect(owner!.owned).toBe(0);
    await Promise.all(during);
    await Promise.all(Array.from({ length: 20 }, (_, i) => other!.send(`t${i}`, { id: `c${i}` })));
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
    let early = 2;
    const agree = async () => {
      const fence = authority.fences.get('t');
      await one!.send('t', { id: `${++early}` });
      await two!.send('t', { id: `${++early}` });
      return authority.fences.get('t') === fence;
    };
    await until(agree, 'both have found Redis and agree on an owner', { everyMs: 100 });
    const before = authority.fences.get('t')!;
    for (let i = 0; i < 20; i++) await Promise.all([one!.send('t', { id: `x${i}` }), two!.send('t', { id: `y${i}` })]);
    expect(authority.fences.get('t')! - before).toBeLessThanOrEqual(1);
    expect(authority.written).toHaveLength(early + 40);
    await Promise.all(open.map(({ host }) => host.stop()));
    await late.stop();
  });
});
