import type pg from 'pg';
import { expect, test } from 'vitest';
import type { Reads } from '../../db/index.ts';
import { RulesMet } from '../../server/decisions/rules-met.ts';
import { ReadRefused } from '../../server/lib/database-fault.ts';
import { event } from '../helpers/api.ts';
import { useServer } from '../helpers/server.ts';

const server = useServer({}, { shared: true });

test('what was looked through for rules is not read again, and a rule is unused when its newest decision is too old', async () => {
  const tenant = await server.tenant();
  const { db } = server.core;
  /** The first records of what was read. */
  const firsts: unknown[] = [];
  const reads: Pick<Reads, 'readOnly'> = {
    readOnly: (tenantId, work, who) =>
      db.readOnly(
        tenantId,
        (client) => {
          const query = (text: string, values?: unknown[]) => {
            if (text.startsWith('with picked')) firsts.push(values![1]);
            return client.query(text, values);
          };
          return work(Object.assign(Object.create(client), { query }) as pg.PoolClient);
        },
        who,
      ),
  };
  const meet = async (...rule_ids: string[]) =>
    server.call(202, 'POST /v1/events/ingest', tenant.admin, {
      events: rule_ids.map((rule_id) => event({ rule_id, hits: [rule_id] })),
    });
  const rules = ['often', 'once', 'never', 'late'].map((rule_id) => ({ rule_id }));
  const met = new RulesMet();
  const since = async (from: Date, of = rules) => {
    const { ids, ...rest } = await met.since(reads as Reads, tenant.id, of, { days: 30, since: from.toISOString() });
    return { met: [...ids].sort(), ...rest };
  };
  const long = new Date(0);

  await meet('often', 'once', 'often');
  expect(await since(long)).toEqual({ met: ['often', 'once'], looked_at: 3, complete: true });
  expect(await since(long)).toEqual({ met: ['often', 'once'], looked_at: 3, complete: true });
  expect(firsts).toEqual([2]);

  const later = new Date(server.clock.now() + 1);
  await expect.poll(() => server.clock.now()).toBeGreaterThanOrEqual(later.getTime());
  await meet('late', 'often');
  // two at once: the second one finds nothing new
  const [first, second] = await Promise.all([since(long), since(long)]);
  expect(first).toEqual({ met: ['late', 'often', 'once'], looked_at: 5, complete: true });
  expect(second).toEqual(first);
  expect(firsts).toEqual([2, 5]);
  expect(await since(later)).toMatchObject({ met: ['late', 'often'] });

  // other rules are in force
  expect(await since(long, [...rules])).toMatchObject({ met: ['late', 'often', 'once'], looked_at: 5 });
  expect(firsts).toEqual([2, 5, 2]);
});

test('a look that fails is not remembered', async () => {
  const tenant = await server.tenant();
  const met = new RulesMet();
  const rules = [{ rule_id: 'one' }];
  const broken = { readOnly: () => Promise.reject(new Error('it is away')) } as unknown as Reads;
  const what = { days: 30, since: new Date(0).toISOString() };
  await expect(met.since(broken, tenant.id, rules, what)).rejects.toThrow('it is away');
  await server.call(202, 'POST /v1/events/ingest', tenant.admin, {
    events: [event({ rule_id: 'one', hits: ['one'] })],
  });
  expect(await met.since(server.core.db, tenant.id, rules, what)).toMatchObject({ ids: new Set(['one']) });
});

test('who waited for the answer of one who has left asks once for all who wait, and a fault is the fault of all', async () => {
  const tenant = await server.tenant();
  const rules = [{ rule_id: 'one' }];
  await server.call(202, 'POST /v1/events/ingest', tenant.admin, {
    events: [event({ rule_id: 'one', hits: ['one'] })],
  });
  const what = { days: 30, since: new Date(0).toISOString() };
  for (const [error, looks] of [
    [new ReadRefused('left'), 2],
    [new ReadRefused('too_many'), 2],
    [new ReadRefused('took_long'), 1],
    [new Error('it is away'), 1],
  ] as const) {
    const met = new RulesMet();
    let asked = 0;
    const { promise: first, reject } = Promise.withResolvers<never>();
    const reads = {
      readOnly: (...call: Parameters<Reads['readOnly']>) => (asked++ === 0 ? first : server.core.db.readOnly(...call)),
    } as Reads;
    const answers = Promise.allSettled(Array.from({ length: 20 }, () => met.since(reads, tenant.id, rules, what)));
    reject(error);
    const [refused, ...others] = await answers;
    expect(refused).toMatchObject({ reason: error });
    expect(asked, error.message).toBe(looks);
    for (const one of others) {
      expect(one).toMatchObject(looks === 2 ? { value: { ids: new Set(['one']) } } : { reason: error });
    }
  }
});
