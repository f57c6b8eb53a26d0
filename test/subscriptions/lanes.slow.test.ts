import { setTimeout as delay } from 'node:timers/promises';
import { afterEach, expect, test } from 'vitest';
import { addEventBy } from '../../db/outbox.ts';
import { storeOutcomes } from '../../server/subscriptions/outcomes.ts';
import { sql } from '../helpers/api.ts';
import { Receiver } from '../helpers/receiver.ts';
import { type TestTenant, useServer } from '../helpers/server.ts';

/** What lanes promise where there is much to deliver: the order, the end of it, and whose connection it is. */
const server = useServer({ SVC_EGRESS_ALLOW: '127.0.0.1/32' });
const receivers: Receiver[] = [];
afterEach(async () => {
  await Promise.all(receivers.splice(0).map((receiver) => receiver.stop()));
});

const receive = async () => {
  const receiver = await Receiver.start(204);
  receivers.push(receiver);
  return receiver;
};
const subscribe = async (tenant: TestTenant, url: string) => {
  const body = { url, secret: 'a signing secret', event_types: ['svc.test'] };
  return (await server.call<{ id: string }>(201, 'POST /v1/subscriptions', tenant.admin, body)).body.id;
};
/** So many events in one transaction, numbered on. */
const happen = async ({ id }: TestTenant, from: number, count: number) => {
  const client = await server.core.db.owner.connect();
  await client.query('begin');
  for (let n = from; n < from + count; n++) {
    const payload = { subscription_id: 'none', message: `event ${n}`, created_at: new Date().toISOString() };
    await addEventBy(client, id, { type: 'svc.test', at: server.clock.now() + n, payload });
  }
  await client.query('commit');
  client.release();
};
const numbers = ({ received }: Receiver, path?: string) =>
  received
    .filter((got) => path === undefined || got.path === path)
    .map(({ json }) => Number(String(json.message).slice(6)));
const upTo = (count: number) => Array.from({ length: count }, (_, n) => n);
const open = (tenant: TestTenant) =>
  sql<{ count: number }>(
    server,
    `select count(*)::int as count from delivery_lane where tenant_id = $1 and (leased_until is not null or due_at is not null)`,
    [tenant.id],
  ).then(([row]) => row!.count);
const states = (tenant: TestTenant) =>
  sql<{ status: string; attempts: number; count: number }>(
    server,
    'select status, attempts, count(*)::int as count from delivery where tenant_id = $1 group by 1, 2 order by 1, 2',
    [tenant.id],
  );

test('hundreds of events arrive in order at each destination, once, on one connection and one at a time', async () => {
  const tenant = await server.tenant();
  const all = [await receive(), await receive(), await receive()];
  let most = 0;
  for (const receiver of all) {
    let at = 0;
    receiver.behavior = async (_, response) => {
      most = Math.max(most, ++at);
      await delay(1);
      at--;
      response.writeHead(204).end();
    };
    await subscribe(tenant, receiver.url());
  }
  await happen(tenant, 0, 250);
  for (const receiver of all) await expect.poll(() => receiver.received.length).toBe(250);
  await expect.poll(() => states(tenant)).toEqual([{ status: 'delivered', attempts: 1, count: 750 }]);
  for (const receiver of all) {
    expect(numbers(receiver)).toEqual(upTo(250));
    expect(receiver.connections).toBe(1);
  }
  expect(most).toBe(1);
});

test('two destinations at one address, of two tenants or of one, each have their own connection', async () => {
  const [one, two] = [await server.tenant(), await server.tenant()];
  const receiver = await receive();
  const owners = new Map<unknown, Set<unknown>>();
  receiver.behavior = ({ path, json }, response) => {
    const seen = owners.get(response.socket) ?? new Set();
    owners.set(response.socket, seen.add(`${String(json.tenant_id)} ${path}`));
    response.writeHead(204).end();
  };
  await subscribe(one, receiver.url('/a'));
  await subscribe(one, receiver.url('/b'));
  await subscribe(two, receiver.url('/a'));
  for (let n = 0; n < 3; n++) await Promise.all([happen(one, n * 10, 10), happen(two, n * 10, 10)]);
  await expect.poll(() => receiver.received.length).toBe(90);
  for (const seen of owners.values()) expect(seen.size).toBe(1);
  expect(new Set([...owners.values()].flatMap((seen) => [...seen])).size).toBe(3);
});

test('a connection that the receiver ends, while nothing is sent or instead of an answer, is no failed attempt', async () => {
  const tenant = await server.tenant();
  const receiver = await receive();
  await subscribe(tenant, receiver.url());
  await happen(tenant, 0, 1);
  await expect.poll(() => states(tenant)).toEqual([{ status: 'delivered', attempts: 1, count: 1 }]);
  receiver.hangUp();
  await happen(tenant, 1, 1);
  await expect.poll(() => states(tenant)).toEqual([{ status: 'delivered', attempts: 1, count: 2 }]);
  expect(receiver.connections).toBe(2);
  receiver.behavior = (_, response) => {
    receiver.behavior = 204;
    response.socket!.destroy();
  };
  await happen(tenant, 2, 1);
  await expect.poll(() => states(tenant)).toEqual([{ status: 'delivered', attempts: 1, count: 3 }]);
  expect(receiver.connections).toBe(3);
  // the one that was not answered came again, under the same id
  expect(numbers(receiver)).toEqual([0, 1, 2, 2]);
  expect(new Set(receiver.received.map(({ headers }) => headers['webhook-id'])).size).toBe(3);
});

test.each(['paused', 'given another address', 'deleted'])(
  'a destination that is %s amid many deliveries gets none after that, except for the one under way',
  async (how) => {
    const tenant = await server.tenant();
    const receiver = await receive();
    const id = await subscribe(tenant, receiver.url('/old'));
    const changed = Promise.withResolvers<void>();
    receiver.behavior = async (_, response) => {
      // the one under way is answered when the change is made
      if (receiver.received.length > 20) await changed.promise;
      response.writeHead(204).end();
    };
    await happen(tenant, 0, 200);
    await expect.poll(() => receiver.received.length).toBe(21);
    const line = `/v1/subscriptions/${id}`;
    if (how === 'deleted') await server.call(204, `DELETE ${line}`, tenant.admin);
    else if (how === 'paused') await server.call(200, `PATCH ${line}`, tenant.admin, { active: false });
    else await server.call(200, `PATCH ${line}`, tenant.admin, { url: receiver.url('/new') });
    const before = numbers(receiver, '/old');
    changed.resolve();
    if (how === 'given another address') {
      await expect.poll(() => numbers(receiver, '/new').at(-1)).toBe(199);
      const moved = numbers(receiver, '/new');
      expect(moved).toEqual(upTo(200).slice(moved[0]));
      // what was not yet stored comes again, and nothing is left out
      expect(moved[0]).toBeLessThanOrEqual(before.length + 1);
    } else {
      await expect.poll(() => open(tenant)).toBe(0);
    }
    const after = numbers(receiver, '/old');
    expect(after.length).toBeLessThanOrEqual(before.length + 1);
    expect(after).toEqual(upTo(after.length));
  },
);

test.each([
  ['address', 'url_sealed'],
  ['secret', 'secret_sealed'],
])(
  'a destination whose %s cannot be opened holds up no other, says so, and can be given another',
  async (_, column) => {
    const tenant = await server.tenant();
    const [good, other] = [await receive(), await receive()];
    await subscribe(tenant, good.url());
    const broken = await subscribe(tenant, other.url());
    await sql(server, `update subscription set ${column} = '\\x00' where tenant_id = $1 and id = $2`, [
      tenant.id,
      broken,
    ]);
    await happen(tenant, 0, 3);
    await expect.poll(() => numbers(good)).toEqual(upTo(3));
    const line = `/v1/subscriptions/${broken}`;
    type Delivery = { id: string; attempts: number; status: string; result: string; failure_reason: string };
    const list = async () =>
      (await server.call<{ deliveries: Delivery[] }>(200, `GET ${line}/deliveries`, tenant.admin)).body.deliveries;
    await expect.poll(async () => (await list()).map(({ attempts }) => attempts)).toEqual([1, 1, 1]);
    const [one] = await list();
    expect(one).toMatchObject({ status: 'retrying', result: 'DESTINATION_ERROR' });
    expect(one!.failure_reason).toMatch(/cannot be read.*Enter both again/);
    const { body } = await server.call<{ history: object[] }>(200, `GET ${line}/deliveries/${one!.id}`, tenant.admin);
    expect(body.history).toMatchObject([{ headers: {}, body_sha256: null, answer: null, http_status: null }]);
    expect((await server.call(200, `POST ${line}/test`, tenant.admin)).body).toMatchObject({
      delivered: false,
      headers: {},
    });
    expect((await server.call(200, 'GET /v1/subscriptions', tenant.admin)).body).toMatchObject({ total: 2 });
    expect(other.received).toEqual([]);
    const again = { url: other.url(), secret: 'another signing secret' };
    await server.call(200, `PATCH ${line}`, tenant.admin, again);
    server.clock.advance(7000);
    await expect.poll(() => numbers(other)).toEqual(upTo(3));
  },
);

test('of a group of outcomes, those of a lane that is no longer ours are not stored, and all others are', async () => {
  const tenant = await server.tenant();
  const { db } = server.core;
  const rows = [0, 1, 2].flatMap((lane) =>
    [0, 1].map((event) => ({ lane: `lane_${lane}`, event: `oev_group${event}` })),
  );
  for (const lane of [0, 1, 2]) {
    await sql(server, 'insert into delivery_lane (tenant_id, id, fence) values ($1, $2, 7)', [
      tenant.id,
      `lane_${lane}`,
    ]);
  }
  for (const event of [0, 1]) {
    await sql(
      server,
      `insert into event_outbox (tenant_id, id, event_type, payload, created_at, fanned_out_at)
       values ($1, $2, 'svc.test', '{}', now(), now())`,
      [tenant.id, `oev_group${event}`],
    );
  }
  for (const { lane, event } of rows) {
    await sql(
      server,
      `insert into delivery (tenant_id, lane_id, event_id, event_type, status, machine_version, machine_context, attempts,
         next_attempt_at, created_at)
       values ($1, $2, $3, 'svc.test', 'retrying', 1, '{"startedAt": 1}', 0, now(), now())`,
      [tenant.id, lane, event],
    );
  }
  await sql(server, `update delivery_lane set fence = 8 where tenant_id = $1 and id = 'lane_1'`, [tenant.id]);
  // it accepts one after a long time, and then fails: it fails since then
  await sql(server, `update delivery_lane set failing_since = '2020-01-01' where tenant_id = $1 and id = 'lane_0'`, [
    tenant.id,
  ]);
  const at = new Date(1_750_000_000_000);
  const outcomes = rows.map(({ lane, event }, n) => ({
    ...{ tenant_id: tenant.id, lane_id: lane, fence: 7, event_id: event, attempted_at: at },
    // the second of each lane fails
    ...(n % 2 === 0
      ? { status: 'delivered', result: 'DELIVERED', http_status: 200, failure_reason: null }
      : { status: 'retrying', result: 'TIMEOUT', http_status: null, failure_reason: 'It took too long.' }),
    machine_context: { startedAt: 1, attempts: 1, failures: n % 2, nextAt: n % 2 === 0 ? null : at.getTime() + 5000 },
    ...{ failing_since: n % 2 === 0 ? null : at, gone_since: null, duration_ms: 3 },
    ...{ sent: '\\x0102', answer: n % 2 === 0 ? { headers: {}, body: 'thanks', truncated: false } : null },
  }));
  expect(await storeOutcomes(db, outcomes)).toEqual([true, true, false, false, true, true]);
  const found = await sql(
    server,
    `select d.lane_id, d.event_id, d.status, d.attempts, d.next_attempt_at, d.last_attempt_at, d.answer->>'body' as answer, d.history, l.failing_since
     from delivery d join delivery_lane l on l.tenant_id = d.tenant_id and l.id = d.lane_id
     where d.tenant_id = $1 order by 1, 2`,
    [tenant.id],
  );
  const next = new Date(at.getTime() + 5000);
  const two = (lane: number) => [
    {
      ...{ lane_id: `lane_${lane}`, event_id: 'oev_group0' },
      status: 'delivered',
      attempts: 1,
      next_attempt_at: null,
      last_attempt_at: at,
      answer: 'thanks',
      history: null,
      failing_since: at,
    },
    {
      ...{ lane_id: `lane_${lane}`, event_id: 'oev_group1' },
      status: 'retrying',
      attempts: 1,
      next_attempt_at: next,
      last_attempt_at: at,
      answer: null,
      history: null,
      failing_since: at,
    },
  ];
  expect(found).toEqual([
    ...two(0),
    ...two(1).map((row) => ({
      ...{ ...row, status: 'retrying', attempts: 0, last_attempt_at: null, answer: null, failing_since: null },
      next_attempt_at: expect.any(Date),
    })),
    ...two(2),
  ]);
  // a lane that was claimed once more, and a delivery that was sent under both fences: only the current one counts
  const [, , third, fourth] = outcomes;
  const again = { ...fourth!, event_id: third!.event_id, fence: 8 };
  for (const group of [
    [third!, again],
    [again, third!],
  ]) {
    expect(await storeOutcomes(db, group)).toEqual(group.map(({ fence }) => fence === 8));
  }
  const [row] = await sql(
    server,
    'select status, attempts, answer, history from delivery where tenant_id = $1 and lane_id = $2 and event_id = $3',
    [tenant.id, third!.lane_id, third!.event_id],
  );
  // the first of the two attempts is in the history by now, with what was sent and answered
  const first = { result: 'TIMEOUT', http_status: null, reason: 'It took too long.', duration_ms: 3, answer: null };
  expect(row).toEqual({
    ...{ status: 'retrying', attempts: 1, answer: null },
    history: [{ ...first, at: at.getTime(), sent: '\\x0102' }],
  });
  // once more: it is no longer due
  expect((await storeOutcomes(db, outcomes)).slice(0, 2)).toEqual([false, true]);
});

test('an outcome is stored at the cost of one look-up where a burst follows a time in which nothing waited', async () => {
  const tenant = await server.tenant();
  const { owner, citus } = server.core.db;
  const [lanes, events] = [20, 60];
  const client = await owner.connect();
  try {
    await client.query('begin');
    await client.query(
      `insert into delivery_lane (tenant_id, id, fence, leased_until) select $1, 'lane_' || n, 7, now() from generate_series(1, $2) n`,
      [tenant.id, lanes],
    );
    const queue = (kind: string, status: 'delivered' | 'retrying') =>
      client.query(
        `insert into delivery (tenant_id, lane_id, event_id, event_type, status, machine_version, machine_context, attempts,
           next_attempt_at, created_at)
         select $1, 'lane_' || lane, 'oev_' || $2 || event, 'svc.test', $3, 1, '{"startedAt": 1}', 0,
           case when $3 = 'retrying' then now() end, now()
         from generate_series(1, $4) lane, generate_series(1, $5) event`,
        [tenant.id, kind, status, lanes, events],
      );
    await queue('before', 'delivered');
    // what PostgreSQL counts from now on knows of none that waits
    await client.query('analyze delivery');
    await queue('burst', 'retrying');
    const plans: Plan[] = [];
    const explained = {
      query: async (text: string, values: unknown[]) => {
        const { rows } = await client.query(`explain (analyze, format json) ${text}`, values);
        plans.push((rows as { 'QUERY PLAN': [{ Plan: Plan }] }[])[0]!['QUERY PLAN'][0].Plan);
        return { rows: [] };
      },
    };
    const at = new Date(server.clock.now());
    const outcomes = Array.from({ length: lanes }, (_, n) => ({
      ...{ tenant_id: tenant.id, lane_id: `lane_${n + 1}`, fence: 7, event_id: 'oev_burst1', attempted_at: at },
      ...{ status: 'delivered', result: 'DELIVERED', http_status: 200, failure_reason: null },
      machine_context: { startedAt: 1, attempts: 1, failures: 0, nextAt: null },
      ...{ failing_since: null, gone_since: null, duration_ms: 3, sent: '\\x0102', answer: null },
    }));
    await storeOutcomes({ nearOf: () => explained, citus } as never, outcomes);
    const nodes = (plan: Plan): Plan[] => [plan, ...(plan.Plans ?? []).flatMap(nodes)];
    const scans = plans.flatMap(nodes).filter((node) => node['Relation Name'] === 'delivery' && 'Index Name' in node);
    expect(scans).toHaveLength(1);
    const [scan] = scans as [Plan];
    expect(scan['Actual Loops']).toBe(lanes);
    expect(scan['Actual Rows']).toBe(1);
    expect(scan['Rows Removed by Filter'] ?? 0).toBe(0);
  } finally {
    await client.query('rollback');
    client.release();
  }
});

interface Plan {
  'Relation Name'?: string;
  'Index Name'?: string;
  'Actual Loops': number;
  'Actual Rows': number;
  'Rows Removed by Filter'?: number;
  Plans?: Plan[];
}

test('many tenants for which no deliveries can be made delay no other, and are tried again, ever more seldom', async () => {
  const tenant = await server.tenant();
  const receiver = await receive();
  await subscribe(tenant, receiver.url());
  await sql(
    server,
    `insert into tenant select made.*
     from generate_series(1, 60) n, (select * from tenant where tenant_id = $1) t,
       jsonb_populate_record(null::tenant, to_jsonb(t) || jsonb_build_object('tenant_id', 'broken-' || n)) made`,
    [tenant.id],
  );
  await sql(server, `create function broken() returns trigger language plpgsql as $$ begin raise 'broken'; end $$`);
  await sql(
    server,
    `create trigger broken before update on event_outbox for each row when (new.tenant_id like 'broken-%')
     execute function broken()`,
  );
  for (let n = 1; n <= 60; n++) await happen({ ...tenant, id: `broken-${n}` }, 0, 1);
  const began = performance.now();
  const failures = () => server.logged.filter((line) => line.includes('no deliveries could be made'));
  await expect.poll(() => failures().length).toBeGreaterThanOrEqual(60);
  for (let n = 0; n < 20; n++) {
    await happen(tenant, n, 1);
    await expect.poll(() => receiver.received.length, { interval: 10 }).toBe(n + 1);
  }
  expect(numbers(receiver)).toEqual(upTo(20));
  // after one second, two, four and so on
  const most = 1 + Math.log2(1 + (performance.now() - began) / 1000);
  expect(failures().filter((line) => line.includes('"broken-7"')).length).toBeLessThanOrEqual(most);
  expect(server.logged.filter((line) => line.includes('a job failed'))).toEqual([]);
  const metrics = await server.core.registry.metrics();
  expect(metrics).toMatch(/^svc_job_failures_total\{job_name="fan-out"\} \d{2,}$/m);
  await sql(server, 'drop function broken cascade');
  const waiting = () => sql(server, 'select from event_outbox where fanned_out_at is null');
  // a tenant is left alone for a minute at most
  await expect.poll(async () => (await waiting()).length, { timeout: 180_000 }).toBe(0);
});

test('a claim that fails keeps no destination waiting for those that are being served', async () => {
  const [busy, other] = [await server.tenant(), await server.tenant()];
  const [slow, quick] = [await receive(), await receive()];
  slow.behavior = (_, response) => delay(1000).then(() => response.writeHead(204).end());
  await subscribe(busy, slow.url());
  await subscribe(other, quick.url());
  await happen(busy, 0, 60);
  await expect.poll(() => slow.received.length).toBeGreaterThan(0);
  await sql(
    server,
    `create function unclaimed() returns trigger language plpgsql as $$ begin raise 'unclaimed'; end $$`,
  );
  await sql(
    server,
    `create trigger unclaimed before update on delivery_lane for each row when (new.fence > old.fence)
     execute function unclaimed()`,
  );
  await happen(other, 0, 1);
  const failures = () => server.logged.filter((line) => line.includes('unclaimed'));
  await expect.poll(() => failures().length).toBeGreaterThan(0);
  await sql(server, 'drop function unclaimed cascade');
  await expect.poll(() => numbers(quick)).toEqual([0]);
  expect(slow.received.length).toBeLessThan(60);
  expect(await server.core.registry.metrics()).toMatch(/^svc_job_failures_total\{job_name="deliveries"\} \d+$/m);
});

test('a destination that somebody has locked keeps the outcomes of no other tenant, and gets its own in order', async () => {
  const [locked, other] = [await server.tenant(), await server.tenant()];
  const [held, free] = [await receive(), await receive()];
  const id = await subscribe(locked, held.url());
  await subscribe(other, free.url());
  const answers: (() => void)[] = [];
  held.behavior = (_, response) => {
    answers.push(() => response.writeHead(204).end());
    if (answers.length > 1) answers.at(-1)!();
  };
  await happen(locked, 0, 5);
  await expect.poll(() => answers.length).toBe(1);
  const client = await server.core.db.owner.connect();
  try {
    await client.query('begin');
    await client.query('select from delivery_lane where id = $1 for update', [id]);
    answers[0]!();
    await expect.poll(() => held.received.length).toBe(5);
    await happen(other, 0, 3);
    await expect.poll(() => states(other)).toEqual([{ status: 'delivered', attempts: 1, count: 3 }]);
    await expect.poll(() => open(other)).toBe(0);
    expect(await states(locked)).toEqual([{ status: 'retrying', attempts: 0, count: 5 }]);
  } finally {
    await client.query('rollback');
    client.release();
  }
  await expect.poll(() => states(locked)).toEqual([{ status: 'delivered', attempts: 1, count: 5 }]);
  await expect.poll(() => open(locked)).toBe(0);
  expect(numbers(held)).toEqual(upTo(5));
});

test('a subscription is deleted at once, and its deliveries as soon as that can be', async () => {
  const tenant = await server.tenant();
  const receiver = await receive();
  const id = await subscribe(tenant, receiver.url());
  await server.call(200, `PATCH /v1/subscriptions/${id}`, tenant.admin, { active: false });
  await sql(
    server,
    `insert into delivery (tenant_id, lane_id, event_id, event_type, status, machine_version, machine_context, attempts, created_at)
     select $1, $2, 'oev_00many' || n, 'svc.test', 'delivered', 1, '{}', 1, now() from generate_series(1, 11000) n`,
    [tenant.id, id],
  );
  const left = async () => {
    const [row] = await sql(
      server,
      `select (select count(*)::int from delivery where lane_id = $1) as deliveries,
         (select count(*)::int from delivery_lane where id = $1) as lanes`,
      [id],
    );
    return row;
  };
  const client = await server.core.db.owner.connect();
  try {
    await client.query('begin');
    await client.query(`select from delivery where lane_id = $1 and event_id = 'oev_00many7' for update`, [id]);
    await server.call(204, `DELETE /v1/subscriptions/${id}`, tenant.admin);
    await server.call(404, `GET /v1/subscriptions/${id}`, tenant.admin);
    await server.call(404, `GET /v1/subscriptions/${id}/deliveries`, tenant.admin);
    expect(await left()).toMatchObject({ lanes: 1 });
    await happen(tenant, 0, 1);
    await server.core.deliverer.forget();
    expect(await left()).toEqual({ deliveries: 1, lanes: 1 });
  } finally {
    await client.query('rollback');
    client.release();
  }
  await server.core.deliverer.forget();
  expect(await left()).toEqual({ deliveries: 0, lanes: 0 });
  expect(receiver.received).toEqual([]);
  const again = await subscribe(tenant, receiver.url());
  await happen(tenant, 1, 1);
  await expect.poll(() => numbers(receiver)).toEqual([1]);
  await server.call(204, `DELETE /v1/subscriptions/${again}`, tenant.admin);
  // what could not be deleted within the request
  await server.core.deliverer.forget();
  expect(await sql(server, 'select from delivery_lane where tenant_id = $1', [tenant.id])).toEqual([]);
});

test('a delivery that is to be sent again while its last attempt is under way is sent again', async () => {
  const tenant = await server.tenant();
  const receiver = await receive();
  const id = await subscribe(tenant, receiver.url());
  const answers: (() => void)[] = [];
  receiver.behavior = (_, response) => answers.push(() => response.writeHead(500).end());
  await happen(tenant, 0, 1);
  await expect.poll(() => answers.length).toBe(1);
  answers[0]!();
  await expect.poll(() => states(tenant)).toEqual([{ status: 'retrying', attempts: 1, count: 1 }]);
  // its 24 hours end with the next attempt
  await sql(
    server,
    `update delivery set next_attempt_at = now(), machine_context = machine_context || '{"startedAt": 1}' where lane_id = $1`,
    [id],
  );
  await sql(server, 'update delivery_lane set due_at = now() where id = $1', [id]);
  await expect.poll(() => answers.length).toBe(2);
  const line = `/v1/subscriptions/${id}/deliveries`;
  const { body } = await server.call<{ deliveries: { id: string }[] }>(200, `GET ${line}`, tenant.admin);
  const again = `POST ${line}/${body.deliveries[0]!.id}/redeliver`;
  expect((await server.call(200, again, tenant.admin, {})).body).toMatchObject({ status: 'retrying' });
  receiver.behavior = 204;
  answers[1]!();
  await expect.poll(() => states(tenant)).toEqual([{ status: 'delivered', attempts: 2, count: 1 }]);
  expect(receiver.received).toHaveLength(3);
});
