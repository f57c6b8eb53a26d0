import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import type pg from 'pg';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { addEventBy } from '../../db/outbox.ts';
import { type Core, openCore } from '../../server/app.ts';
import { readConfig } from '../../server/config.ts';
import { OPERATOR } from '../../server/domain/audit.ts';
import { createLog } from '../../server/lib/log.ts';
import { createTenant } from '../../server/provision.ts';
import { useDatabase } from '../helpers/database.ts';
import { TestDns } from '../helpers/dns.ts';
import { holdRequest } from '../helpers/holds.ts';
import { MASTER_KEY, ServerProcess } from '../helpers/processes.ts';
import { Receiver } from '../helpers/receiver.ts';
import { SIEGE } from '../siege/rounds.ts';

/**
 * The server is killed with -9 at each step of a delivery, and started again. What is on its way in the database stands
 * still at the step, by a lock that a trigger waits for; it is rolled back with the connection, or commits all the same
 * after the process is gone.
 */
const box = useDatabase();
const LOCK = 4_242_424;
const STEPS: [step: string, trigger: string][] = [
  ['the events are fanned out', 'before insert on delivery for each row'],
  ['an event is marked as fanned out', 'before update of fanned_out_at on event_outbox for each row'],
  ['a destination is claimed', 'before update on delivery_lane for each row when (new.fence > old.fence)'],
  ['the outcome is stored', 'before update on delivery for each row when (new.attempts > old.attempts)'],
  ['the destination is let go', 'before update on delivery_lane for each row when (new.leased_until is null)'],
];

const dir = mkdtempSync(path.join(tmpdir(), 'svc-kill-'));
let core: Core;
let dns: TestDns;
let receiver: Receiver;
let child: ServerProcess;
let locker: pg.Client;
let tenantId: string;
let events = 0;
let duplicates = 0;
let kills = 0;

beforeAll(async () => {
  [dns, receiver] = await Promise.all([TestDns.start({ 'receiver.test': ['127.0.0.1'] }), Receiver.start()]);
  const config = readConfig({ SVC_DATA_DIR: dir, SVC_MASTER_KEY: MASTER_KEY, SVC_EGRESS_ALLOW: '127.0.0.1/32' });
  core = await openCore({ config, databaseUrl: box.url, log: createLog('silent') });
  const made = await createTenant(core, 'http://control.test', { name: 'Test', adminEmail: 'admin@example.test' });
  tenantId = made.tenant_id;
  await core.subscriptions.create(
    tenantId,
    {
      url: receiver.url('/hook', 'receiver.test'),
      secret: 'a signing secret',
      destination_type: 'webhook',
      event_types: ['escrow.created'],
      active: true,
      destination_config: {},
    },
    { actor: OPERATOR },
  );
  locker = await core.db.connectOwner();
  child = new ServerProcess('server', {
    DATABASE_URL: box.url,
    SVC_EGRESS_ALLOW: '127.0.0.1/32',
    SVC_DNS_SERVERS: dns.server,
  });
  await child.start();
});
afterAll(async () => {
  await child?.dispose();
  await locker?.end();
  await core?.stop();
  await Promise.all([receiver.stop(), dns.stop()]);
  rmSync(dir, { recursive: true, force: true });
});

const happen = () =>
  core.holds.create(tenantId, holdRequest({ agent_id: `agent-${++events}`, ttl_seconds: 600 }), { actor: OPERATOR });

/** After the kill: its lease runs out, a new process starts, and every event arrives, once or twice. */
async function recovers(): Promise<void> {
  kills++;
  await locker.query('update delivery_lane set leased_until = now(), due_at = now() where leased_until is not null');
  await child.start();
  await happen();
  await expect
    .poll(async () => {
      const { rows } = await locker.query(`select 1 from delivery where status = 'delivered'`);
      return rows.length;
    })
    .toBe(events);
  const got = Map.groupBy(receiver.received, ({ json }) => String(json.agent_id));
  expect(got.size, 'each event arrived').toBe(events);
  for (const [, times] of got) {
    expect(times.length).toBeLessThanOrEqual(2);
    expect(new Set(times.map(({ headers }) => headers['webhook-id'])).size, 'under one id').toBe(1);
  }
  duplicates = receiver.received.length - events;
}

test.each(
  STEPS.flatMap(([step, trigger]) =>
    (SIEGE ? ['is rolled back', 'commits all the same'] : ['is rolled back']).map((end) => ({ step, trigger, end })),
  ),
)('killed when $step, and that $end: no event is lost', async ({ trigger, end }) => {
  await locker.query(`select pg_advisory_lock(${LOCK})`);
  await locker.query(
    `create or replace function stand_still() returns trigger language plpgsql as
       $$ begin perform pg_advisory_xact_lock(${LOCK}); return new; end $$`,
  );
  await locker.query(`create trigger stand_still ${trigger} execute function stand_still()`);
  await happen();
  const waiting = `select pid from pg_locks where locktype = 'advisory' and objid = ${LOCK} and not granted`;
  await expect.poll(async () => (await locker.query(waiting)).rows.length).toBeGreaterThan(0);
  await child.kill();
  if (end === 'is rolled back') {
    await locker.query(`select pg_terminate_backend(pid) from (${waiting}) w`);
    await expect.poll(async () => (await locker.query(waiting)).rows.length).toBe(0);
  }
  await locker.query(`select pg_advisory_unlock(${LOCK})`);
  await expect.poll(async () => (await locker.query(waiting)).rows.length).toBe(0);
  const [, table] = / on (\w+)/.exec(trigger)!;
  await locker.query(`drop trigger stand_still on ${table}`);
  await recovers();
});

test('killed while the name is resolved, while the request is in flight, and right after the response', async () => {
  const killed = Promise.withResolvers<void>();
  dns.names['receiver.test'] = () => {
    void child.kill().then(killed.resolve);
    return 'silence';
  };
  // a connection that is kept needs no name
  receiver.hangUp();
  await happen();
  await killed.promise;
  dns.names['receiver.test'] = ['127.0.0.1'];
  await recovers();

  const arrived = Promise.withResolvers<void>();
  receiver.behavior = async () => {
    receiver.behavior = 200;
    await child.kill();
    arrived.resolve();
  };
  await happen();
  await arrived.promise;
  await recovers();

  const answered = Promise.withResolvers<void>();
  receiver.behavior = async (_, response) => {
    receiver.behavior = 200;
    response.writeHead(200).end(() => void child.kill().then(answered.resolve));
  };
  await happen();
  await answered.promise;
  await recovers();
});

test('killed while outcomes of several destinations are stored together: each gets all events, first in their order', async () => {
  const [paths, count] = [['/a', '/b', '/c'], 60];
  for (const path of paths) {
    const url = receiver.url(path, 'receiver.test');
    const rest = { destination_type: 'webhook' as const, event_types: ['svc.test' as const], active: true };
    const made = { url, secret: 'a signing secret', destination_config: {}, ...rest };
    await core.subscriptions.create(tenantId, made, { actor: OPERATOR });
  }
  await locker.query(`select pg_advisory_lock(${LOCK})`);
  await locker.query(
    `create trigger stand_still before update on delivery for each row
       when (new.attempts > old.attempts and new.event_type = 'svc.test') execute function stand_still()`,
  );
  const client = await core.db.owner.connect();
  await client.query('begin');
  for (let n = 0; n < count; n++) {
    const payload = { subscription_id: 'none', message: String(n), created_at: new Date().toISOString() };
    await addEventBy(client, tenantId, { type: 'svc.test', at: Date.now() + n, payload });
  }
  await client.query('commit');
  client.release();
  const got = (path: string) =>
    receiver.received.filter((one) => one.path === path).map(({ json }) => Number(json.message));
  // one outcome of each is being stored, and no more than sixteen wait for that
  await expect.poll(() => paths.map((path) => got(path).length)).toEqual(paths.map(() => 16));
  await child.kill();
  const waiting = `select pid from pg_locks where locktype = 'advisory' and objid = ${LOCK} and not granted`;
  await locker.query(`select pg_terminate_backend(pid) from (${waiting}) w`);
  await expect.poll(async () => (await locker.query(waiting)).rows.length).toBe(0);
  await locker.query(`select pg_advisory_unlock(${LOCK})`);
  await locker.query('drop trigger stand_still on delivery');
  await locker.query('update delivery_lane set leased_until = now(), due_at = now() where leased_until is not null');
  await child.start();
  for (const path of paths) {
    await expect.poll(() => new Set(got(path)).size).toBe(count);
    const all = Array.from({ length: count }, (_, n) => n);
    expect(got(path)).toEqual([...all.slice(0, 16), ...all]);
  }
});

test('only what was sent but not yet stored is duplicated', () => {
  console.log(`${events} events, ${duplicates} of them twice, after ${kills} kills`);
  expect(duplicates).toBeLessThanOrEqual(5);
});
