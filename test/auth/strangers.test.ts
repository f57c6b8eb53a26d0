import { expect, onTestFinished, test, vi } from 'vitest';
import type { Database } from '../../db/index.ts';
import { Authenticator } from '../../server/auth/authenticate.ts';
import { newSecret } from '../../server/domain/secret.ts';
import { systemClock } from '../../server/lib/clock.ts';
import { silent } from '../chain/helpers.ts';
import { sql } from '../helpers/api.ts';
import { useServer } from '../helpers/server.ts';

const server = useServer({ LOG_LEVEL: 'info' });

// no read that its person could have too many of
const ask = async (headers: Record<string, string>) => (await fetch(`${server.url}/v1/stops`, { headers })).status;

test('secrets that a stranger makes up for a tenant keep one statement busy, and refuse nobody who has a credential', async () => {
  const tenant = await server.tenant();
  const made = [
    () => ({ authorization: `Bearer ${newSecret('key', tenant.id)}` }),
    () => ({ authorization: `Bearer ${newSecret('agent', tenant.id)}` }),
    () => ({ cookie: `svc_session=${newSecret('session', tenant.id)}` }),
    // and of tenants that nobody has
    () => ({ authorization: `Bearer ${newSecret('key', `t${Math.random().toString(36).slice(2)}`)}` }),
  ];
  const REQUESTS = 1600;
  const AT_ONCE = 80;
  const flood = async (each: (request: number) => Promise<void>) => {
    let next = 0;
    const one = async () => {
      for (let n = next++; n < REQUESTS; n = next++) await each(n);
    };
    await Promise.all(Array.from({ length: AT_ONCE }, one));
  };
  // what asks for a credential: for all that wait, or for one of them
  const running = new Set<object>();
  const alone: string[] = [];
  let [most, together] = [0, 0];
  const { owner } = server.core.db;
  const query = owner.query.bind(owner) as (...args: unknown[]) => Promise<unknown>;
  const spy = vi.spyOn(owner, 'query').mockImplementation(((...args: unknown[]) => {
    const text = typeof args[0] === 'string' ? args[0] : (args[0] as { text: string }).text;
    if (!/^\s*select\b.*\b(from|join) (credential|session)\b/s.test(text)) return query(...args);
    if (!text.includes('unnest(')) {
      alone.push(text);
      return query(...args);
    }
    running.add(args);
    together++;
    most = Math.max(most, running.size);
    return query(...args).finally(() => running.delete(args));
  }) as never);
  onTestFinished(() => spy.mockRestore());
  const answers = new Map<number, number>();
  const logged = server.logged.length;
  await flood(async (n) => {
    const status = await ask(made[n % made.length]!());
    answers.set(status, (answers.get(status) ?? 0) + 1);
  });
  expect([...answers]).toEqual([[401, REQUESTS]]);
  expect(together).toBeGreaterThan(0);
  expect(most).toBe(1);
  expect(alone).toEqual([]);
  expect(server.logged.slice(logged).filter((line) => /"level":(40|50|60)/.test(line))).toEqual([]);

  // credentials that nobody has used yet are found in the middle of it, from the same address
  const own = async () => ({ key: await tenant.key('admin'), person: await tenant.person('viewer') });
  const unused: Awaited<ReturnType<typeof own>>[] = [];
  while (unused.length < 20) unused.push(await own());
  let rightful = 0;
  const useAll = () =>
    Promise.all(
      unused.map(async ({ key, person }) => {
        expect(await ask({ authorization: `Bearer ${key.key}` })).toBe(200);
        expect(await ask({ cookie: person.cookie! })).toBe(200);
        rightful++;
      }),
    );
  await Promise.all([flood(async (n) => void (await ask(made[n % made.length]!()))), useAll()]);
  expect(rightful).toBe(20);
});

test('a key that was just made is found by its first request, and one that was revoked is not', async () => {
  const tenant = await server.tenant();
  const { body: made } = await server.call<{ id: string; key: string }>(201, 'POST /v1/keys', tenant.admin, {
    ...{ label: 'ci', scopes: ['pipeline'] },
  });
  await server.call(200, 'GET /v1/policies', { key: made.key });
  await server.call(204, `DELETE /v1/keys/${made.id}`, tenant.admin);
  await server.call(401, 'GET /v1/policies', { key: made.key });
});

test('where the statement that asks for many fails, each of them is looked up by itself', async () => {
  const tenant = await server.tenant();
  const keys = await Promise.all(Array.from({ length: 3 }, () => tenant.key('admin')));
  const made = newSecret('key', tenant.id);
  // no look-up of one credential reads it
  await sql(server, 'alter table tenant_parcel rename to tenant_parcel_away');
  try {
    const secrets = [...keys.map(({ key }) => key), made];
    const statuses = await Promise.all(secrets.map((key) => ask({ authorization: `Bearer ${key}` })));
    expect(statuses).toEqual([200, 200, 200, 401]);
  } finally {
    await sql(server, 'alter table tenant_parcel_away rename to tenant_parcel');
  }
});

test('on Citus, where the statement is of one shard, made-up tenants have two at once together and hold up nobody', async () => {
  const { db, sessions } = server.core;
  const tenant = await server.tenant();
  const { key } = await tenant.key('admin');
  const running = new Set<object>();
  let [most, statements] = [0, 0];
  const pool = {
    query: async (text: string, values: unknown[]) => {
      running.add(values);
      statements++;
      most = Math.max(most, running.size);
      return db.owner.query(text, values).finally(() => running.delete(values));
    },
  };
  const places = { shardOf: (tenantId: string) => tenantId.length % 4, nodeOf: () => 1 };
  const citus = { version: '13', nodes: 1, spread: true };
  const spread = { ...db, citus, places, nearOf: () => pool } as unknown as Database;
  const authenticator = new Authenticator(spread, sessions, systemClock, silent);
  const found = (secret: string) =>
    authenticator.authenticate({ authorization: `Bearer ${secret}`, cookie: undefined });
  const strangers = Array.from({ length: 2000 }, (_, n) => found(newSecret('key', `stranger${n}`)));
  // somebody who asks in the middle of it waits for the statements under way, and not for a statement of each stranger
  const rightful = found(key!).then((principal) => ({ principal, after: statements }));
  expect((await rightful).principal).toMatchObject({ kind: 'api_key', tenantId: tenant.id });
  expect((await rightful).after).toBeLessThan(20);
  expect(await Promise.all(strangers)).toEqual(strangers.map(() => null));
  expect(most).toBeLessThanOrEqual(3);
});
