import { expect, test } from 'vitest';
import { newSecret } from '../../server/domain/secret.ts';
import { sql } from '../helpers/api.ts';
import { useServer } from '../helpers/server.ts';

const server = useServer({ LOG_LEVEL: 'info' });

/** Transactions that the database of this file has committed, as the statistics know. */
async function commits(): Promise<number> {
  // a connection reports what it did at most once a second
  await new Promise((resolve) => setTimeout(resolve, 1200));
  await sql(server, 'select pg_stat_force_next_flush(), pg_stat_clear_snapshot()');
  const [row] = await sql<{ n: string }>(
    server,
    'select xact_commit as n from pg_stat_database where datname = current_database()',
  );
  return Number(row!.n);
}

const ask = async (headers: Record<string, string>) => (await fetch(`${server.url}/v1/escrow`, { headers })).status;

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
  await commits();
  const before = await commits();
  const flood = async (each: (request: number) => Promise<void>) => {
    let next = 0;
    const one = async () => {
      for (let n = next++; n < REQUESTS; n = next++) await each(n);
    };
    await Promise.all(Array.from({ length: AT_ONCE }, one));
  };
  const answers = new Map<number, number>();
  const logged = server.logged.length;
  await flood(async (n) => {
    const status = await ask(made[n % made.length]!());
    answers.set(status, (answers.get(status) ?? 0) + 1);
  });
  expect([...answers]).toEqual([[401, REQUESTS]]);
  const after = await commits();
  // jobs commit as well, some in a second; before, each request took a look-up of its own and more
  expect(after - before).toBeLessThan(REQUESTS / 4);
  expect(server.logged.slice(logged).filter((line) => /"level":(40|50|60)/.test(line))).toEqual([]);

  // credentials that nobody has used yet are found in the middle of it, from the same address
  let rightful = 0;
  const used = Promise.all(
    Array.from({ length: 20 }, async () => {
      const [key, person] = [await tenant.key('admin'), await tenant.person('viewer')];
      expect(await ask({ authorization: `Bearer ${key.key}` })).toBe(200);
      expect(await ask({ cookie: person.cookie! })).toBe(200);
      rightful++;
    }),
  );
  await Promise.all([flood(async (n) => void (await ask(made[n % made.length]!()))), used]);
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
