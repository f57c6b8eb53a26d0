import { setTimeout as delay } from 'node:timers/promises';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { BUCKETS, bucketOf, ownerOf } from '../../server/actors/buckets.ts';
import { type ActorKind, Fenced } from '../../server/actors/host.ts';
import { RedisHost } from '../../server/actors/redis.ts';
import { AppError } from '../../server/errors.ts';
import { createLog } from '../../server/lib/log.ts';
import { setPatience } from '../../server/lib/patience.ts';
import { RedisLink } from '../../server/lib/redis.ts';
import { PATIENCE } from '../helpers/patience.ts';
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
  /** How often a former owner was stopped. */
  refused = 0;
  opening: (tenantId: string) => Promise<void> = async () => undefined;
  handling: (command: Command, fence: number) => Promise<void> = async () => undefined;

  kind(): ActorKind<{ tenantId: string; fence: number }, Command, { id: string; by: number }> {
    return {
      open: async (tenantId) => {
        if (tenantId === 'unknown') throw new AppError('NOT_FOUND', 'there is no such tenant');
        await this.opening(tenantId);
        await delay(1);
        const fence = (this.fences.get(tenantId) ?? 0) + 1;
        this.fences.set(tenantId, fence);
        return { tenantId, fence };
      },
      handle: async (actor, command) => {
        await this.handling(command, actor.fence);
        if (this.fences.get(actor.tenantId) !== actor.fence) {
          this.refused++;
          throw new Fenced();
        }
        if (!this.written.includes(command.id)) this.written.push(command.id);
        return { id: command.id, by: actor.fence };
      },
      size: ({ fill = '' }) => fill.length,
    };
  }
}

describe.skipIf(noRedis)('the host of several processes', () => {
  let redis: TestRedis;
  const logged: string[] = [];
  const log = createLog('warn', { write: (line: string) => logged.push(line) });
  const open: { host: RedisHost<unknown, Command, unknown>; link: RedisLink }[] = [];

  beforeAll(async () => {
    redis = await TestRedis.start();
  });
  afterEach(async () => {
    await Promise.all(open.map(({ host }) => host.stop()));
    await Promise.all(open.map(({ link }) => link.close()));
    open.length = 0;
    logged.length = 0;
    await redis.send('FLUSHALL');
  });
  afterAll(() => redis?.stop());

  async function hosts(
    authority: Authority,
    count: number,
    options: { answerMs?: number; patienceMs?: number; url?: string; secret?: string } = {},
  ) {
    const made = [];
    for (let i = 0; i < count; i++) {
      const secret = Buffer.alloc(32, options.secret ?? 'a');
      const link = await RedisLink.open(options.url ?? redis.url, { log, secret, installation: 'test' });
      // an owner that a slow machine keeps from answering is not passed over
      const { answerMs = 60_000, patienceMs = 60_000 } = options;
      const host = await RedisHost.start(authority.kind(), { redis: link, log, answerMs, patienceMs });
      open.push({ host: host as never, link });
      made.push(host);
    }
    const all = open.filter(({ link }) => link.commands.options.port === open.at(-1)!.link.commands.options.port);
    const agreed = async () => all.reduce((sum, { host }) => sum + host.buckets, 0) === BUCKETS;
    if (open.at(-1)!.link.commands.status === 'ready') await until(agreed, 'each bucket has one owner');
    return made;
  }

  /** Two hosts, and which of them owns the tenant `t`. */
  async function ownerAndOther(authority: Authority, options?: Parameters<typeof hosts>[2]) {
    const all = await hosts(authority, 2, options);
    await all[0]!.send('t', { id: 'first' });
    const owner = all.find(({ owned }) => owned === 1)!;
    const other = all.find((host) => host !== owner)!;
    return { owner, other, linkOf: (host: { id: string }) => open.find((one) => one.host.id === host.id)!.link };
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
    const { owner, other } = await ownerAndOther(authority);
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
    await expect(owner.send('unknown', { id: 'x' })).rejects.toMatchObject({ problem: 'NOT_FOUND' });
  });

  test('an owner that is alive and does not do what it is asked is bypassed', async () => {
    const authority = new Authority();
    const { owner, other } = await ownerAndOther(authority, { answerMs: 2000, patienceMs: 60_000 });
    let release = () => {};
    const stuck = new Promise<void>((resolve) => (release = resolve));
    authority.handling = async (_, fence) => (fence === 1 ? stuck : undefined);
    // the one that is stuck never answers: this resolves only because it is passed over
    expect(await other!.send('t', { id: 'x' })).toEqual({ id: 'x', by: 2 });
    // what it did not do in time it cannot do any more
    release();
    await owner!.send('t', { id: 'y' });
    expect(authority.written).toEqual(['first', 'x', 'y']);
  });

  test('what waits for an owner is bounded', async () => {
    const authority = new Authority();
    const { other } = await ownerAndOther(authority, { answerMs: 20_000, patienceMs: 20_000 });
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

  test('two Redis that know nothing of each other: the fence decides, and the tenant does not move with each command', async () => {
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
    const { owner, other, linkOf } = await ownerAndOther(authority);
    const link = linkOf(owner);
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
      JSON.stringify({ from: 'x'.repeat(16), number, parts: [['call', 1, 't', { id: `forged ${number}` }, 60_000]] });
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

  test('who listens where a process was, and repeats what it said, does not bring it back', async () => {
    const authority = new Authority();
    const { owner, other, linkOf } = await ownerAndOther(authority);
    const tap = linkOf(other).subscriber.duplicate();
    await tap.connect();
    const heard: { channel: string; message: Buffer }[] = [];
    tap.on('messageBuffer', (channel: Buffer, message: Buffer) => heard.push({ channel: String(channel), message }));
    const everyone = linkOf(owner).name('nodes');
    await tap.subscribe(everyone, linkOf(owner).name('node', owner.id));
    await until(async () => heard.length > 4, 'beats came by');
    // it ends as a killed one does; for Redis, the attacker is what listens on its channel
    linkOf(owner).subscriber.disconnect();
    linkOf(owner).commands.disconnect();
    const [late] = await hosts(authority, 1);
    let attacking = true;
    const attack = (async () => {
      while (attacking) {
        for (const { channel, message } of [...heard]) await linkOf(other).commands.publish(channel, message);
        await delay(20);
      }
    })();
    // what is expected here is that silence is noticed
    setPatience(2);
    try {
      // the one that knew it notices its silence; the one that never met it does not believe what is repeated
      for (const host of [late!, other]) await host.send('t', { id: `by ${host.id}` });
      expect(authority.written).toHaveLength(3);
      expect(other.buckets + late!.buckets).toBe(BUCKETS);
      for (const { message } of heard) expect(message.toString('latin1')).not.toMatch(/first|call|beat/);
    } finally {
      setPatience(PATIENCE);
      attacking = false;
      await attack;
      tap.disconnect();
    }
  });

  test('a Redis that hangs is not held against the owners: once it delivers again they have their tenants', async () => {
    const hanging = await TestRedis.start();
    try {
      const authority = new Authority();
      const { owner, other } = await ownerAndOther(authority, { url: hanging.url });
      await other.send('t', { id: 'forwarded' });
      expect(authority.fences.get('t')).toBe(1);
      hanging.pause();
      // handled where it arrived, while nothing can be sent
      expect(await other.send('t', { id: 'meanwhile' })).toEqual({ id: 'meanwhile', by: 2 });
      hanging.resume();
      let n = 0;
      const forwarded = async () => {
        await other.send('t', { id: `again ${n++}` });
        return owner.owned === 1 && other.owned === 0;
      };
      await until(forwarded, 'the owner has its tenant again');
      expect(logged.filter((line) => line.includes('taking it over'))).toEqual([]);
    } finally {
      await Promise.all(open.splice(0).map(({ host, link }) => host.stop().then(() => link.close())));
      await hanging.stop();
    }
  });

  test('anyone who waits for an answer has one in time, and what waits for a tenant to be opened is bounded', async () => {
    const authority = new Authority();
    const { owner, other } = await ownerAndOther(authority, { answerMs: 60_000, patienceMs: 4000 });
    const processes = [owner, other].map(({ id }) => ({ id, takes: true }));
    const ofOwner = (tenantId: string) => ownerOf(bucketOf(tenantId), processes) === owner.id;
    const slow = Array.from({ length: 100 }, (_, n) => `slow${n}`).find(ofOwner)!;
    const opening = Promise.withResolvers<void>();
    authority.opening = async (tenantId) => {
      if (tenantId === slow) await opening.promise;
    };
    const answerOf = (host: typeof owner, fill?: string) =>
      host.send(slow, { id: host.id, ...(fill && { fill }) }).catch((reason: unknown) => reason);
    const megabyte = 'x'.repeat(1024 * 1024);
    const waiting = [owner, other].map((host) => answerOf(host));
    const large = Array.from({ length: 17 }, () => answerOf(owner, megabyte));
    expect(await Promise.race(large)).toMatchObject({
      problem: 'UNAVAILABLE',
      message: expect.stringContaining('too much waits'),
    });
    for (const answer of await Promise.all([...waiting, ...large])) {
      expect(answer).toMatchObject({ problem: 'UNAVAILABLE', headers: { 'retry-after': '1' } });
    }
    await until(() => other.send('t', { id: 'meanwhile' }).catch(() => false), 'other tenants are served');
    // nothing whose caller has been refused is handled later, here or where it was forwarded to
    opening.resolve();
    await until(() => owner.send(slow, { id: 'later' }).catch(() => false), 'it is open');
    expect(authority.written.filter((id) => !['first', 'meanwhile'].includes(id))).toEqual(['later']);
  });

  test('a process whose SUBSCRIBE is answered too late connects again and joins the others', async () => {
    const hanging = await TestRedis.start();
    try {
      const link = await RedisLink.open(hanging.url, { log, secret: Buffer.alloc(32, 'a'), installation: 'test' });
      hanging.pause();
      // gives up on the answer; the connection itself is still there
      const host = await RedisHost.start(new Authority().kind(), { redis: link, log });
      open.push({ host: host as never, link });
      hanging.resume();
      await until(() => host.buckets === BUCKETS, 'it receives what is sent to it');
    } finally {
      await Promise.all(open.splice(0).map(({ host, link }) => host.stop().then(() => link.close())));
      await hanging.stop();
    }
  });

  test('when an owner dies, the next in rank takes its tenants without asking those that are left', async () => {
    const authority = new Authority();
    const all = await hosts(authority, 3);
    const rank = (tenantId: string, among: typeof all) =>
      ownerOf(
        bucketOf(tenantId),
        among.map(({ id }) => ({ id, takes: true })),
      );
    await all[0]!.send('t', { id: 'first' });
    const dying = all.find(({ id }) => id === rank('t', all))!;
    const rest = all.filter((host) => host !== dying);
    const next = rest.find(({ id }) => id === rank('t', rest))!;
    const third = rest.find((host) => host !== next)!;
    const linkOf = (host: typeof dying) => open.find((one) => one.host.id === host.id)!.link;
    const channel = linkOf(third).name('node', third.id);
    const tap = linkOf(third).subscriber.duplicate();
    await tap.connect();
    const heard: string[] = [];
    tap.on('messageBuffer', (place: Buffer, sealed: Buffer) => {
      heard.push(String(linkOf(third).unseal(String(place), sealed)));
    });
    await tap.subscribe(channel);
    // as when it is killed
    linkOf(dying).subscriber.disconnect();
    linkOf(dying).commands.disconnect();
    await until(() => next.buckets + third.buckets === BUCKETS, 'the others have noticed');
    expect(await next.send('t', { id: 'second' })).toEqual({ id: 'second', by: 2 });
    expect(heard.filter((text) => text.includes('["release",'))).toEqual([]);
    // one that is alive is asked
    next.leave();
    await until(() => third.buckets === BUCKETS, 'the third has all');
    expect(await next.send('t', { id: 'third' })).toEqual({ id: 'third', by: 3 });
    expect(authority.refused).toBe(0);
    tap.disconnect();
  });

  test('an owner that is cut off is bypassed', async () => {
    const authority = new Authority();
    const { owner, other, linkOf } = await ownerAndOther(authority, { answerMs: 2000, patienceMs: 60_000 });
    await other.send('t', { id: 'second' });
    expect(authority.fences.get('t')).toBe(1);
    // it is there, says so, and hears nothing that it is asked: Redis swallows it
    const channel = linkOf(owner).name('node', owner.id);
    const tap = linkOf(other).subscriber.duplicate();
    await tap.connect();
    await tap.subscribe(channel);
    await linkOf(owner).subscriber.unsubscribe(channel);
    // the owner never answers, and says for ever that it is alive: this resolves only because it is passed over
    await other.send('t', { id: 'third' });
    expect(authority.fences.get('t')).toBe(2);
    tap.disconnect();
  });

  test('a host that comes takes its share over, and nothing fails or is fenced off', async () => {
    const authority = new Authority();
    const [first] = await hosts(authority, 1);
    const tenants = Array.from({ length: 60 }, (_, i) => `t${i}`);
    await Promise.all(tenants.map((tenant) => first!.send(tenant, { id: `${tenant} opened` })));
    expect([first!.owned, first!.buckets]).toEqual([60, BUCKETS]);
    authority.handling = async () => void (await delay(1));
    let running = true;
    let sent = 0;
    const load = tenants.map(async (tenant) => {
      while (running) await first!.send(tenant, { id: `${tenant} ${sent++}` });
    });
    const [second] = await hosts(authority, 1);
    await until(async () => first!.owned + second!.owned === 60 && second!.owned > 10, 'it has its share');
    await second!.stop();
    await until(async () => first!.owned === 60, 'it has handed over');
    running = false;
    await Promise.all(load);
    expect(authority.written).toHaveLength(60 + sent);
    expect(authority.refused).toBe(0);
  });

  test('a stopped host hands its tenants over, and refuses', async () => {
    const authority = new Authority();
    const [owner, other] = await hosts(authority, 2);
    await Promise.all(Array.from({ length: 20 }, (_, i) => owner!.send(`t${i}`, { id: `a${i}` })));
    expect(owner!.owned + other!.owned).toBe(20);
    const during = Array.from({ length: 20 }, (_, i) => other!.send(`t${i}`, { id: `b${i}` }));
    await owner!.stop();
    expect(owner!.owned).toBe(0);
    await Promise.all(during);
    await Promise.all(Array.from({ length: 20 }, (_, i) => other!.send(`t${i}`, { id: `c${i}` })));
    await expect(owner!.send('t', { id: 'late' })).rejects.toMatchObject({ problem: 'UNAVAILABLE' });
    expect(authority.written).toHaveLength(60);
    expect(authority.refused).toBe(0);
  });

  test('a host that leaves still serves its callers, through those that have taken over', async () => {
    const authority = new Authority();
    const [leaving, other] = await hosts(authority, 2);
    const tenants = Array.from({ length: 20 }, (_, i) => `t${i}`);
    await Promise.all(tenants.map((tenant) => leaving!.send(tenant, { id: `${tenant} opened` })));
    leaving!.leave();
    await until(() => other!.buckets === BUCKETS, 'the other one has all buckets');
    await Promise.all(tenants.map((tenant) => leaving!.send(tenant, { id: `${tenant} later` })));
    expect([leaving!.owned, other!.owned, authority.written.length, authority.refused]).toEqual([0, 20, 40, 0]);
  });

  test('a host that stops opens nothing more, whatever it is still sent', async () => {
    const authority = new Authority();
    const [host] = await hosts(authority, 1);
    const { link } = open[0]!;
    const channel = link.name('node', host!.id);
    const caller = 'x'.repeat(16);
    const tap = link.subscriber.duplicate();
    await tap.connect();
    await tap.subscribe(link.name('node', caller));
    const answers: string[] = [];
    tap.on('messageBuffer', (place: Buffer, sealed: Buffer) => {
      answers.push(String(link.unseal(String(place), sealed)));
    });
    let sent = 0;
    const call = (tenantId: string) => {
      const parts = [['call', ++sent, tenantId, { id: `${sent}` }, 60_000]];
      return link.commands.publish(channel, link.seal(channel, JSON.stringify({ from: caller, number: sent, parts })));
    };
    const stuck = Promise.withResolvers<void>();
    const begun = Promise.withResolvers<void>();
    authority.handling = () => {
      begun.resolve();
      return stuck.promise;
    };
    await call('busy');
    await begun.promise;
    const stopped = host!.stop();
    await call('late');
    await until(() => answers.some((answer) => answer.includes('["moved",2]')), 'it refuses the late call');
    stuck.resolve();
    await stopped;
    expect([...authority.fences.keys()]).toEqual(['busy']);
    expect(host!.owned).toBe(0);
    tap.disconnect();
  });

  test('without Redis from the start it works alone, and is found when Redis comes', async () => {
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
