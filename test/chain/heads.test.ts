import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import { AcknowledgedHeads } from '../../server/chain/heads.ts';
import { RedisLink } from '../../server/lib/redis.ts';
import { noRedis, TestRedis } from '../helpers/redis.ts';
import { silent } from './helpers.ts';

const head = (seq: number, generation = 0) => ({ seq, hash: String(seq % 10).repeat(64), generation });

describe.skipIf(noRedis)('acknowledged heads in Redis', () => {
  let redis: TestRedis;
  const links: RedisLink[] = [];
  beforeAll(async () => {
    redis = await TestRedis.start();
  });
  afterAll(async () => {
    for (const link of links) await link.close();
    await redis?.stop();
  });
  const process = async (secret = 1) => {
    const link = await RedisLink.open(redis.url, {
      log: silent,
      secret: Buffer.alloc(32, secret),
      installation: 'one',
    });
    links.push(link);
    return { link, heads: new AcknowledgedHeads(silent, link) };
  };

  test('outlive the process; an older one never replaces a newer, a later generation does', async () => {
    const [one, two, three] = [await process(), await process(), await process()];
    one.heads.acknowledge('t', 'forensics', head(20));
    await one.heads.flushed();
    two.heads.acknowledge('t', 'forensics', head(9));
    await two.heads.flushed();
    expect(await three.heads.known('t', 'forensics')).toEqual([head(20)]);
    expect(await two.heads.known('t', 'forensics')).toEqual([head(9), head(20)]);
    expect(await three.heads.known('t', 'audit')).toEqual([]);
    two.heads.acknowledge('t', 'forensics', head(12, 1));
    await two.heads.flushed();
    one.heads.acknowledge('t', 'forensics', head(400));
    await one.heads.flushed();
    expect(await three.heads.known('t', 'forensics')).toEqual([head(12, 1)]);
  });

  test('cannot be invented, nor taken from another chain or installation', async () => {
    const [one, other] = [await process(), await process(2)];
    one.heads.acknowledge('a', 'forensics', head(20));
    await one.heads.flushed();
    const { commands } = one.link;
    const value = (await commands.get(one.link.name('head', 'forensics', 'a')))!;
    const reader = (await process()).heads;
    for (const forged of [value, `${value.slice(0, -1)}A`, '', 'x', '1'.repeat(24), JSON.stringify(head(99))]) {
      await commands.set(one.link.name('head', 'audit', 'a'), forged);
      await commands.set(one.link.name('head', 'forensics', 'b'), forged);
      expect(await reader.known('a', 'audit')).toEqual([]);
      expect(await reader.known('b', 'forensics')).toEqual([]);
    }
    await commands.set(other.link.name('head', 'forensics', 'a'), value);
    expect(await other.heads.known('a', 'forensics')).toEqual([]);
  });

  test('without Redis the process relies on its own memory', async () => {
    const one = await process();
    await redis.stop();
    one.heads.acknowledge('u', 'forensics', head(3));
    await one.heads.flushed();
    expect(await one.heads.known('u', 'forensics')).toEqual([head(3)]);
    // when it is back, empty, it learns what it missed and what it forgot
    one.heads.acknowledge('other', 'audit', head(4));
    await redis.start();
    const reader = await process();
    await expect.poll(() => reader.heads.known('u', 'forensics')).toEqual([head(3)]);
    await expect.poll(() => reader.heads.known('other', 'audit')).toEqual([head(4)]);
    await redis.stop();
    await redis.start();
    await expect.poll(() => reader.heads.known('u', 'forensics')).toEqual([head(3)]);
  });

  test('are sent again, all of them, when Redis did not take them', async () => {
    const one = await process();
    const reader = await process();
    const many = Array.from({ length: 2500 }, (_, n) => `many-${n}`);
    const { commands } = one.link;
    const refuse = vi.spyOn(commands, 'eval').mockImplementation(() => Promise.reject(new Error('READONLY')));
    for (const tenant of many) one.heads.acknowledge(tenant, 'forensics', head(7));
    await one.heads.flushed();
    expect(refuse.mock.calls.length).toBeGreaterThanOrEqual(2500);
    expect(await reader.heads.known('many-0', 'forensics')).toEqual([]);
    refuse.mockRestore();
    for (const tenant of ['many-0', 'many-2499']) {
      await expect.poll(() => reader.heads.known(tenant, 'forensics')).toEqual([head(7)]);
    }
  });
});
