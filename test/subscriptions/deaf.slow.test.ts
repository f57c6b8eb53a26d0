import { setTimeout as delay } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { addEventBy } from '../../db/outbox.ts';
import { sql } from '../helpers/api.ts';
import { useDatabase } from '../helpers/database.ts';
import { Receiver } from '../helpers/receiver.ts';
import { noRedis, TestRedis } from '../helpers/redis.ts';
import { useServer } from '../helpers/server.ts';
import { SIEGE } from '../siege/rounds.ts';

describe.skipIf(noRedis)('a process that hears no notices', () => {
  const box = useDatabase();
  let redis: TestRedis;
  let receiver: Receiver | undefined;
  beforeAll(async () => {
    redis = await TestRedis.start();
  });
  afterAll(async () => {
    await receiver?.stop();
    await redis.stop();
  });
  const settings = (role: string) => () => ({
    ...{ SVC_EGRESS_ALLOW: '127.0.0.1/32', SVC_ROLES: role, DATABASE_URL: box.url, REDIS_URL: redis.url },
  });
  /** Where people pause, and where is sent. */
  const web = useServer(settings('web'), { database: () => box.url });
  const worker = useServer(settings('worker'), { database: () => box.url });

  test('sends nothing more to a destination that is paused, but what was under way', async () => {
    await worker.core.db.notices.close();
    expect(worker.core.db.notices.healthy).toBe(false);
    const tenant = await web.tenant();
    receiver = await Receiver.start(204);
    const { received } = receiver;
    let most = 0;
    let paused = Promise.withResolvers<void>();
    receiver.behavior = async (_, response) => {
      // the one under way is answered when the destination is paused
      if (received.length > most) await paused.promise;
      response.writeHead(204).end();
    };
    const body = { url: receiver.url(), secret: 'a signing secret', event_types: ['svc.test'] };
    const { body: made } = await web.call<{ id: string }>(201, 'POST /v1/subscriptions', tenant.admin, body);
    const { owner } = web.core.db;
    const [rounds, events] = [SIEGE ? 5 : 2, 40];
    for (let round = 0; round < rounds; round++) {
      paused = Promise.withResolvers();
      most = received.length + 3 + round;
      const client = await owner.connect();
      await client.query('begin');
      for (let n = 0; n < events; n++) {
        const payload = { subscription_id: 'none', message: `event ${n}`, created_at: new Date().toISOString() };
        await addEventBy(client, tenant.id, { type: 'svc.test', at: web.clock.now() + n, payload });
      }
      await client.query('commit');
      client.release();
      await expect.poll(() => received.length).toBe(most + 1);
      await web.call(200, `PATCH /v1/subscriptions/${made.id}`, tenant.admin, {
        ...{ active: false, paused_keep: true },
      });
      const before = received.length;
      paused.resolve();
      // longer than what was loaded is used
      await delay(1500);
      expect(received.length - before).toBeLessThanOrEqual(1);
      const [left] = await sql<{ n: number }>(
        web,
        `select count(*)::int as n from delivery where tenant_id = $1 and status = 'retrying'`,
        [tenant.id],
      );
      expect(left!.n).toBeGreaterThan(0);
      await web.call(200, `PATCH /v1/subscriptions/${made.id}`, tenant.admin, { active: true });
    }
    // nothing was left out, and nothing was given up
    await expect.poll(() => new Set(received.map(({ headers }) => headers['webhook-id'])).size).toBe(rounds * events);
  });
});
