import { expect, test } from 'vitest';
import { inTransaction } from '../../db/client.ts';
import { forgetInputs } from '../../server/decisions/retention.ts';
import { commit, commitment } from '../../server/domain/kept-input.ts';
import { sha256Tag } from '../../server/lib/crypto.ts';
import { untilBlocked } from '../helpers/locks.ts';
import { useServer } from '../helpers/server.ts';

const server = useServer({});
const DAY_MS = 24 * 3600 * 1000;

test('inputs and projections of decisions go with their salts, each after a time of its own, and no others', async () => {
  const [brief, long] = [await server.tenant(), await server.tenant()];
  const { db } = server.core;
  const began = Date.now();
  const ages = [0, 20, 40, 400];
  for (const { id } of [brief, long]) {
    for (const days of ages) {
      for (const [kind, salt_a, salt_b] of [
        ['both', '\\x0a', '\\x0b'],
        ['projection', '\\x0a', null],
        ['input', null, '\\x0b'],
      ]) {
        await db.owner.query(
          `insert into decision_input (tenant_id, event_id, created_at, salt_a, projection, salt_b, input)
           values ($1, $2, $3, $4, $5, $6, $7)`,
          [id, `${kind} ${days}`, new Date(began - days * DAY_MS), salt_a, salt_a && '{}', salt_b, salt_b && '{}'],
        );
      }
    }
  }
  // the job of the server, which has just started, may have looked at them before they had anything
  await db.owner.query(`update tenant set erase_at = 'epoch'`);
  const forgotten: [string, number][] = [];
  let now = began;
  let failing: string | undefined;
  const job = forgetInputs({
    db,
    clock: { now: () => now },
    retentionDays: async (tenantId) =>
      tenantId === brief.id ? { input: 30, projection: 395 } : { input: 50, projection: 10 },
    held: {
      forget: async (tenantId, before) => {
        if (tenantId === failing) throw new Error('its node is away');
        forgotten.push([tenantId, Math.round((now - before.getTime()) / DAY_MS)]);
        return 0;
      },
      oldest: async () => null,
    },
  });
  const left = async (tenantId: string) => {
    const { rows } = await db.owner.query<{ event_id: string; a: boolean; p: boolean; b: boolean; i: boolean }>(
      `select event_id, salt_a is not null as a, projection is not null as p, salt_b is not null as b, input is not null as i
       from decision_input where tenant_id = $1`,
      [tenantId],
    );
    for (const { a, p, b, i } of rows) expect([a, b]).toEqual([p, i]);
    return Object.fromEntries(rows.map(({ event_id, p, i }) => [event_id, `${p ? 'p' : ''}${i ? 'i' : ''}`]));
  };
  await job.run(new AbortController().signal);
  expect(await left(brief.id)).toEqual({
    ...{ 'both 0': 'pi', 'both 20': 'pi', 'both 40': 'p' },
    ...{ 'projection 0': 'p', 'projection 20': 'p', 'projection 40': 'p' },
    ...{ 'input 0': 'i', 'input 20': 'i' },
  });
  expect(await left(long.id)).toEqual({
    ...{ 'both 0': 'pi', 'both 20': 'i', 'both 40': 'i' },
    ...{ 'projection 0': 'p' },
    ...{ 'input 0': 'i', 'input 20': 'i', 'input 40': 'i' },
  });
  expect(forgotten).toEqual(
    expect.arrayContaining([
      [brief.id, 30],
      [long.id, 50],
    ]),
  );

  // the next that is due is ten days away: until then neither is looked at, unless its settings change
  now += 9 * DAY_MS;
  forgotten.length = 0;
  await job.run(new AbortController().signal);
  expect(forgotten).toEqual([]);
  const person = await brief.person('admin');
  await server.call(200, 'PATCH /v1/settings', person, { input_retention_days: 29, reason: 'less' });
  await job.run(new AbortController().signal);
  expect(forgotten).toEqual([[brief.id, 30]]);

  // one that fails keeps no other waiting, and comes again
  forgotten.length = 0;
  await db.owner.query(`update tenant set erase_at = case when tenant_id = $1 then 'epoch'::timestamptz else $2 end`, [
    brief.id,
    new Date(began),
  ]);
  failing = brief.id;
  await expect(job.run(new AbortController().signal)).rejects.toThrow('1 tenants');
  expect(forgotten).toContainEqual([long.id, 50]);
  failing = undefined;
  now += 3_600_000;
  await job.run(new AbortController().signal);
  expect(forgotten).toContainEqual([brief.id, 30]);

  now += 387 * DAY_MS;
  await job.run(new AbortController().signal);
  expect(await left(brief.id)).toEqual({});
  expect(await left(long.id)).toEqual({});
});

test('who is told that a retention was lengthened loses nothing to the one before', async () => {
  const tenant = await server.tenant();
  const person = await tenant.person('admin');
  const { db, tenants, holds } = server.core;
  const keep = (event_id: string, days: number) =>
    db.owner.query(
      `insert into decision_input (tenant_id, event_id, created_at, salt_b, input) values ($1, $2, $3, '\\x0b', '{}')`,
      [tenant.id, event_id, new Date(Date.now() - days * DAY_MS)],
    );
  const left = async () => {
    const kept = 'select event_id from decision_input where tenant_id = $1 order by event_id';
    return (await db.owner.query<{ event_id: string }>(kept, [tenant.id])).rows.map(({ event_id }) => event_id);
  };
  const job = forgetInputs({
    db,
    clock: server.clock,
    retentionDays: async (tenantId, client) => {
      const settings = await tenants.settingsHeld(client, tenantId);
      return { input: settings.input_retention_days, projection: settings.projection_retention_days };
    },
    held: {
      forget: (tenantId, before, client) => holds.forget(tenantId, before, client),
      oldest: (tenantId) => holds.oldestShown(tenantId),
    },
  });
  const lengthen = (days: number) =>
    server.call(200, 'PATCH /v1/settings', person, { input_retention_days: days, reason: 'more' });
  const due = () => db.owner.query(`update tenant set erase_at = 'epoch' where tenant_id = $1`, [tenant.id]);
  await keep('of 40 days', 40);
  await due();
  let erasing: Promise<void> | undefined;
  let lengthened: Promise<unknown> | undefined;
  await inTransaction(db.owner, async (client) => {
    // the erasure is in the middle of it: it waits for this row
    await client.query('select from decision_input where tenant_id = $1 for update', [tenant.id]);
    erasing = job.run(new AbortController().signal);
    await untilBlocked(db, 1);
    // and the change for the erasure: it is not acknowledged before that is done
    lengthened = lengthen(60);
    await untilBlocked(db, 2);
  });
  await Promise.all([erasing, lengthened]);
  expect(await left()).toEqual([]);
  // another process made the change, and its notice does not come: what this one remembers is older
  await keep('of 70 days', 70);
  expect((await tenants.settings(tenant.id)).input_retention_days).toBe(60);
  await db.owner.query(`update tenant set settings = settings || '{"input_retention_days": 80}' where tenant_id = $1`, [
    tenant.id,
  ]);
  await due();
  await job.run(new AbortController().signal);
  expect(await left()).toEqual(['of 70 days']);
});

test('what is left in a record after the erasure says nothing of an amount that is guessed', () => {
  const text = (amount: number) => JSON.stringify({ amount });
  const { kept, commitments } = commit({ input: text(4711), projection: text(4711) }, sha256Tag(text(4711)));
  const committed = new Set(Object.values(commitments));
  // with the salt it would be found at once
  const found = (salt: string) => {
    for (let amount = 0; amount < 10_000; amount++) {
      for (const guess of [text(amount), sha256Tag(text(amount))]) {
        if (committed.has(commitment(salt, guess))) return amount;
      }
    }
    return undefined;
  };
  expect(found(kept!.salt_a!)).toBe(4711);
  expect(found(kept!.salt_b!)).toBe(4711);
  for (const salt of ['', '00'.repeat(16), kept!.salt_a!.slice(0, 30), kept!.salt_b!.slice(2)]) {
    expect(found(salt)).toBeUndefined();
  }
  // nor do two records of the same action show that they are
  const again = commit({ input: text(4711), projection: text(4711) }, sha256Tag(text(4711)));
  for (const value of Object.values(again.commitments)) expect(committed).not.toContain(value);
});
