import { setTimeout as delay } from 'node:timers/promises';
import { beforeAll, describe, expect, test } from 'vitest';
import type { WriteAudit } from '../../db/index.ts';
import { auditWriter } from '../../server/chain/audit.ts';
import { OPERATOR } from '../../server/domain/audit.ts';
import { AppError } from '../../server/errors.ts';
import { Holds } from '../../server/escrow/holds.ts';
import { HoldQueries } from '../../server/escrow/queries.ts';
import type { HoldRequest } from '../../server/escrow/terms.ts';
import { holdRecounts, holdTimers } from '../../server/escrow/timers.ts';
import { startJobs } from '../../server/jobs/jobs.ts';
import { createLog } from '../../server/lib/log.ts';
import { Tenants } from '../../server/tenants/tenants.ts';
import { useDatabase } from '../helpers/database.ts';
import { holdRequest } from '../helpers/holds.ts';
import { TestClock } from '../helpers/server.ts';
import { runs, SIEGE } from '../siege/rounds.ts';

const box = useDatabase();
const clock = new TestClock();
const log = createLog('silent');
const audit = auditWriter(clock, () => 'fingerprint');
const by = { actor: { type: 'api_key' as const, id: 'key_test' } };
let tenants: Tenants;
let holds: Holds;
let queries: HoldQueries;

beforeAll(() => {
  tenants = new Tenants(box.db, clock, audit, { poll_seconds: 15 });
  holds = make();
  queries = new HoldQueries({ db: box.db, settings: (id) => tenants.settings(id), clock });
});

function make(write: WriteAudit = audit, time: TestClock | undefined = clock): Holds {
  return new Holds({ db: box.db, audit: write, settings: (id) => tenants.settings(id), stops: noStops, clock: time });
}

const noStops = async () => () => undefined;

let counter = 0;
async function tenant(): Promise<{ id: string; approvers: string[] }> {
  const id = `t${++counter}`;
  await tenants.create({ id, name: id, adminEmail: `admin@${id}.test` }, { type: 'operator', id: 'test' });
  const approvers: string[] = [];
  for (let i = 0; i < 3; i++) {
    approvers.push(
      await tenants.addMember(id, { email: `a${i}@${id}.test`, roles: ['approver'] }, { actor: OPERATOR }),
    );
  }
  return { id, approvers };
}

const open = (tenantId: string, more: Partial<HoldRequest> = {}, through = holds) =>
  through.create(tenantId, holdRequest(more), by).then(({ hold }) => hold);
const action = { agent_role: 'clerk', agent_id: 'agent', action_hash: holdRequest().action_hash };

async function codeOf(work: Promise<unknown>): Promise<string> {
  try {
    await work;
    return 'done';
  } catch (error) {
    if (!(error instanceof AppError)) throw error;
    return error.problem;
  }
}

async function sql<R extends object>(text: string, values: unknown[] = []): Promise<R[]> {
  return (await box.db.owner.query(text, values)).rows as R[];
}
const outbox = async (tenantId: string, event: string) =>
  Number(
    (
      await sql<{ n: number }>('select count(*) as n from event_outbox where tenant_id = $1 and event_type = $2', [
        tenantId,
        event,
      ])
    )[0]!.n,
  );
/** Everything that a change of a hold writes. */
const state = (tenantId: string) =>
  sql(
    `select (select json_agg(h order by id) from escrow_hold h where tenant_id = $1) as holds,
       (select json_agg(v order by hold_id) from escrow_vote v where tenant_id = $1) as votes,
       (select json_agg(o order by id) from event_outbox o where tenant_id = $1) as events,
       (select json_agg(a.line order by seq) from audit_record a where tenant_id = $1) as records`,
    [tenantId],
  );

describe('a change is atomic', () => {
  const changes: [string, (h: Holds, tenantId: string, id: string, approver: string) => Promise<unknown>][] = [
    ['open', (h, tenantId) => h.open(tenantId, holdRequest(), by)],
    ['create', (h, tenantId) => open(tenantId, {}, h)],
    ['vote', (h, t, id, userId) => h.vote(t, id, { userId, decision: 'approve', reason: 'r' }, by)],
    ['reject', (h, t, id, userId) => h.vote(t, id, { userId, decision: 'reject', reason: 'r' }, by)],
    ['satisfy', (h, t, id) => h.satisfy(t, id, { condition_id: 'kyc', satisfied: true }, by)],
    ['cancel', (h, t, id) => h.cancel(t, id, 'r', by)],
  ];
  test.each(changes)('%s: a fault at the last step leaves nothing behind', async (_name, change) => {
    const t = await tenant();
    const { id } = await open(t.id, { conditions: [{ condition_id: 'kyc' }] });
    const before = await state(t.id);
    const failing = make(async (em, tenantId, entry) => {
      await audit(em, tenantId, entry);
      throw new Error('killed');
    });
    await expect(change(failing, t.id, id, t.approvers[0]!)).rejects.toThrow('killed');
    expect(await state(t.id)).toEqual(before);
    await change(holds, t.id, id, t.approvers[0]!);
    expect(await state(t.id)).not.toEqual(before);
  });

  test('consume and wake: a fault at the last step leaves nothing behind', async () => {
    const t = await tenant();
    const { id } = await open(t.id);
    await holds.vote(t.id, id, { userId: t.approvers[0]!, decision: 'approve', reason: 'r' }, by);
    const before = await state(t.id);
    const failing = make(async () => {
      throw new Error('killed');
    });
    await expect(failing.consume(t.id, id, action, by)).rejects.toThrow('killed');
    clock.advance(61_000);
    await expect(failing.wake(t.id, [id])).rejects.toThrow('killed');
    expect(await state(t.id)).toEqual(before);
    expect(await holds.wake(t.id, [id])).toBe(1);
    expect(await holds.wake(t.id, [id])).toBe(0);
    expect((await holds.get(t.id, id)).status).toBe('expired');
    expect(await outbox(t.id, 'escrow.expired')).toBe(1);
  });

  test('one vote per person by constraint as well: a second row is refused by the database', async () => {
    const t = await tenant();
    const { id } = await open(t.id, { hold_type: 'multi_party', required_approvals: 2 });
    const vote = { userId: t.approvers[0]!, decision: 'approve' as const, reason: 'r' };
    const codes = await Promise.all(Array.from({ length: 5 }, () => codeOf(holds.vote(t.id, id, vote, by))));
    expect(codes.sort()).toEqual([...Array(4).fill('ALREADY_VOTED'), 'done']);
    await expect(
      sql(`insert into escrow_vote select tenant_id, hold_id, user_id, 'reject', 'r', 'h', now() from escrow_vote`),
    ).rejects.toThrow(/unique/);
  });
});

describe('races', () => {
  const ROUNDS = runs(1000, 40);
  test(`two concurrent approvals and one rejection, ${ROUNDS} times: one of the two legal outcomes`, async () => {
    const ends: Record<string, number> = {};
    const round = async (t: { id: string; approvers: string[] }) => {
      const { id } = await open(t.id, { hold_type: 'multi_party', required_approvals: 2 });
      const [a, b, c] = t.approvers as [string, string, string];
      const cast = (userId: string, decision: 'approve' | 'reject') =>
        codeOf(holds.vote(t.id, id, { userId, decision, reason: 'r' }, by));
      const order = Math.random() < 0.5;
      const codes = order
        ? await Promise.all([cast(a, 'approve'), cast(b, 'approve'), cast(c, 'reject')])
        : await Promise.all([cast(c, 'reject'), cast(a, 'approve'), cast(b, 'approve')]);
      const { status, votes } = await holds.get(t.id, id);
      const rejections = votes.filter(({ decision }) => decision === 'reject').length;
      const approvals = votes.length - rejections;
      if (status === 'released') expect([approvals, rejections]).toEqual([2, 0]);
      else expect([status, rejections, approvals < 2]).toEqual(['rejected', 1, true]);
      expect(codes.filter((code) => code === 'done')).toHaveLength(votes.length);
      expect(codes.every((code) => code === 'done' || code === 'INVALID_STATUS')).toBe(true);
      ends[status] = (ends[status] ?? 0) + 1;
    };
    const some = await Promise.all([tenant(), tenant()]);
    await Promise.all(
      some.map(async (t) => {
        for (let i = 0; i < ROUNDS / 2; i++) await round(t);
      }),
    );
    console.log(`two approvals against one rejection: ${JSON.stringify(ends)}`);
    expect(Object.values(ends).reduce((sum, n) => sum + n, 0)).toBe(ROUNDS);
  });

  test('identical concurrent requests share one hold, even if an old one has just expired', async () => {
    const t = await tenant();
    const ask = () => Promise.all(Array.from({ length: 20 }, () => holds.open(t.id, holdRequest(), by)));
    const first = await ask();
    expect(new Set(first.map(({ hold }) => hold.id)).size).toBe(1);
    expect(first.filter(({ opened }) => opened)).toHaveLength(1);
    clock.advance(61_000);
    const second = await ask();
    expect(new Set(second.map(({ hold }) => hold.id)).size).toBe(1);
    expect(second[0]!.hold.id).not.toBe(first[0]!.hold.id);
    expect(await outbox(t.id, 'escrow.expired')).toBe(1);
    expect(await outbox(t.id, 'escrow.created')).toBe(2);
  });
});

describe('timers', () => {
  test('two concurrent ones and one that dies halfway: each hold ends once', async () => {
    const EACH = SIEGE ? 60 : 25;
    const some = await Promise.all([tenant(), tenant()]);
    const made: [string, string][] = [];
    for (const t of some) {
      for (let i = 0; i < EACH; i++) made.push([t.id, (await open(t.id)).id]);
    }
    clock.advance(61_000);
    let writes = 0;
    const dying = make(async (em, tenantId, entry) => {
      if (++writes > 10) throw new Error('killed');
      await audit(em, tenantId, entry);
    });
    const [tenantId] = made[0]!;
    const first = made.slice(0, 20).map(([, id]) => id);
    await expect(dying.wake(tenantId, first)).rejects.toThrow('killed');
    expect(await outbox(tenantId, 'escrow.expired')).toBe(0);
    const pollers = [1, 2].map(() => startJobs([holdTimers(make(), log)], log));
    await expect.poll(async () => (await holds.due(1)).holds.length).toBe(0);
    await Promise.all(pollers.map((poller) => poller.stop()));
    for (const [tenantId, id] of made) expect((await holds.get(tenantId, id)).status).toBe('expired');
    for (const t of some) expect(await outbox(t.id, 'escrow.expired')).toBe(EACH);
  });

  test('a timer that runs after both the release and its expiry reports both, in order and with their own times', async () => {
    const t = await tenant();
    const delayed = { hold_type: 'time_delayed' as const, required_approvals: 0, release_after_seconds: 10 };
    const { id, created_at } = await open(t.id, { ...delayed, ttl_seconds: 60, execute_within_seconds: 20 });
    const at = (seconds: number) => new Date(Date.parse(created_at) + seconds * 1000).toISOString();
    clock.advance(55_000);
    expect(await holds.wake(t.id, [id])).toBe(1);
    expect(await holds.wake(t.id, [id])).toBe(0);
    expect(await holds.get(t.id, id)).toMatchObject({ status: 'expired', released_at: at(10), expired_at: at(30) });
    const events = await sql<{ event_type: string }>(
      'select event_type from event_outbox where tenant_id = $1 order by created_at',
      [t.id],
    );
    expect(events.map(({ event_type }) => event_type)).toEqual(
      ['created', 'released', 'expired'].map((e) => `escrow.${e}`),
    );
    // nothing is left for a timer to look at
    expect(await sql('select id from escrow_hold where id = $1 and wake_at is not null', [id])).toEqual([]);

    // one that was approved, and whose time was over before any timer came, expires from its release
    const approved = await open(t.id, { execute_within_seconds: 5 });
    await holds.vote(t.id, approved.id, { userId: t.approvers[0]!, decision: 'approve', reason: '' }, by);
    clock.advance(3600_000);
    expect(await holds.wake(t.id, [approved.id])).toBe(1);
    const { released_at, expired_at } = await holds.get(t.id, approved.id);
    expect(Date.parse(expired_at!) - Date.parse(released_at!)).toBe(5000);
  });

  test('in a batch with an unreadable hold, the others are woken once, and that one is set aside', async () => {
    const t = await tenant();
    const made: string[] = [];
    for (let n = 0; n < 5; n++) made.push((await open(t.id)).id);
    const bad = made[2]!;
    await sql(`update escrow_hold set machine_context = machine_context - 'votes' - 'conditions' where id = $1`, [bad]);
    clock.advance(61_000);
    const lines: string[] = [];
    const poller = startJobs(
      [holdTimers(holds, createLog('error', { write: (line: string) => lines.push(line) }))],
      log,
    );
    await expect.poll(() => outbox(t.id, 'escrow.expired')).toBe(4);
    // the timers go on with what comes after it
    const next = await open(t.id, { ttl_seconds: 1 });
    clock.advance(2000);
    await expect.poll(async () => (await holds.get(t.id, next.id)).status).toBe('expired');
    await expect.poll(() => outbox(t.id, 'escrow.expired')).toBe(5);
    await poller.stop();
    expect(lines.filter((line) => line.includes(bad))).toHaveLength(1);
    expect((await holds.due(9)).holds).toEqual([{ tenant_id: t.id, id: bad }]);
    expect((await holds.due(9, [bad])).holds).toEqual([]);
    await sql('delete from escrow_hold where id = $1', [bad]);
  });

  test('without any timer, nothing is consumed late and no hold is shown in an outdated status', async () => {
    const t = await tenant();
    const delayed = { hold_type: 'time_delayed' as const, required_approvals: 0, release_after_seconds: 10 };
    const one = await open(t.id, { ...delayed, ttl_seconds: 60, execute_within_seconds: 20 });
    const two = await open(t.id, { ...delayed, ttl_seconds: 60, execute_within_seconds: 20 });
    clock.advance(10_000);
    expect((await holds.consume(t.id, one.id, action, by)).status).toBe('consumed');
    clock.advance(20_000);
    expect(await codeOf(holds.consume(t.id, two.id, action, by))).toBe('ESCROW_EXPIRED');
    expect(
      (
        await queries.list(t.id, { person: 'u' }, { status: 'expired', order: 'created_at', limit: 9, offset: 0 })
      ).holds.map(({ id }) => id),
    ).toEqual([two.id]);
    // the change that came first reported the release that no timer had reported
    expect(await outbox(t.id, 'escrow.released')).toBe(1);
  });

  test('an unreadable hold delays no other, and does not keep a program from refusing to start', async () => {
    const t = await tenant();
    const [bad, good] = [await open(t.id), await open(t.id)];
    await sql('update escrow_hold set machine_version = 99 where id = $1', [bad.id]);
    clock.advance(61_000);
    const poller = startJobs([holdTimers(holds, log)], log);
    await expect.poll(() => outbox(t.id, 'escrow.expired')).toBe(1);
    await poller.stop();
    expect((await holds.get(t.id, good.id)).status).toBe('expired');
    await expect(holds.assertReadable()).rejects.toThrow('held of version 99');
    await sql('delete from escrow_hold where id = $1', [bad.id]);
    await holds.assertReadable();
  });

  test('the time is the database’s if no clock is given', async () => {
    const t = await tenant();
    const real = new Holds({ db: box.db, audit, settings: (id) => tenants.settings(id), stops: noStops });
    const began = Date.now();
    const { id, expires_at, created_at } = await open(t.id, { ttl_seconds: 1 }, real);
    expect(Date.parse(created_at)).toBeGreaterThanOrEqual(began - 1);
    expect(Date.parse(created_at)).toBeLessThanOrEqual(Date.now() + 1);
    expect(Date.parse(expires_at) - Date.parse(created_at)).toBe(1000);
    const poller = startJobs([holdTimers(real, log)], log);
    await expect.poll(() => outbox(t.id, 'escrow.expired')).toBe(1);
    await poller.stop();
    expect((await real.get(t.id, id)).status).toBe('expired');
  });

  test('many holds of a tenant that cannot be woken keep no timer from those of the others', async () => {
    const [broken, other] = [await tenant(), await tenant()];
    const first = await open(broken.id);
    await sql(
      `insert into escrow_hold select made.* from generate_series(1, 1000) n, (select * from escrow_hold where id = $1) h,
         jsonb_populate_record(null::escrow_hold, to_jsonb(h) || jsonb_build_object('id', 'esc_broken' || n,
           'machine_version', 99, 'source', 'proxy', 'wake_at', h.wake_at - interval '1 minute')) made`,
      [first.id],
    );
    clock.advance(61_000);
    const { id } = await open(other.id, { ttl_seconds: 1 });
    clock.advance(2000);
    const lines: string[] = [];
    const began = performance.now();
    const poller = startJobs(
      [holdTimers(holds, createLog('error', { write: (line: string) => lines.push(line) }))],
      log,
    );
    await expect.poll(() => outbox(other.id, 'escrow.expired')).toBe(1);
    await poller.stop();
    expect((await holds.get(other.id, id)).status).toBe('expired');
    // three each time, which come after one second, two, four and so on
    expect(lines.length).toBeLessThanOrEqual(3 * (1 + Math.log2(1 + (performance.now() - began) / 1000)));
    await sql('delete from escrow_hold where tenant_id = $1', [broken.id]);
  });

  test('due holds, and the ones that end soonest, are found by an index', async () => {
    const t = await tenant();
    await open(t.id);
    const client = await box.db.owner.connect();
    const plan = async (sql: string) => {
      const { rows } = await client.query<{ 'QUERY PLAN': string }>(`explain ${sql}`);
      return rows.map((line) => line['QUERY PLAN']).join('\n');
    };
    try {
      await client.query('set enable_seqscan = off');
      expect(
        await plan(`select tenant_id, id from escrow_hold where wake_at <= coalesce(null::timestamptz, now())
           and not id = any('{}'::text[]) and not tenant_id = any('{}'::text[]) order by wake_at limit 500`),
      ).toMatch(/escrow_hold_wake/);
      // of a table this small the planner would as soon sort the rows
      await client.query('set enable_bitmapscan = off; set enable_sort = off');
      const soonest = await plan(`select * from escrow_hold where tenant_id = '${t.id}' and status = 'held'
         and wake_at > now() and expires_at >= now() and (expires_at > now() or id > 'esc_')
         order by expires_at, id limit 51`);
      expect(soonest).toMatch(/escrow_hold_expiry/);
      expect(soonest).not.toMatch(/Sort/);
    } finally {
      client.release(true);
    }
  });

  test.runIf(SIEGE)('500 of 50,000 open holds that expire in one second are all reported soon after', async () => {
    const t = await tenant();
    const real = new Holds({ db: box.db, audit, settings: (id) => tenants.settings(id), stops: noStops });
    const { id } = await open(t.id, { ttl_seconds: 1 }, real);
    const columns = (
      await sql<{ c: string }>(
        `select string_agg(quote_ident(column_name), ', ') as c from information_schema.columns
           where table_name = 'escrow_hold' and column_name not in ('id', 'expires_at', 'ends_at', 'wake_at', 'machine_context')`,
      )
    )[0]!.c;
    await sql(
      `insert into escrow_hold (id, expires_at, ends_at, wake_at, machine_context, ${columns})
         select h.id || n, x.at, x.at, x.at,
           jsonb_set(machine_context, '{expiresAt}', to_jsonb((extract(epoch from x.at) * 1000)::bigint)), ${columns}
         from escrow_hold h, generate_series(1, 50000) n,
           lateral (select (now() + case when n <= 500 then interval '5 seconds' + n * interval '2 ms'
             else interval '1 day' end)::timestamptz(3) as at) x where h.id = $1`,
      [id],
    );
    await sql('analyze escrow_hold');
    const pollers = [1, 2].map(() => startJobs([holdTimers(real, log)], log));
    await delay(5000);
    await expect.poll(() => outbox(t.id, 'escrow.expired'), { interval: 200 }).toBe(501);
    await Promise.all(pollers.map((poller) => poller.stop()));
    const late = await sql<{ ms: number }>(
      `select (extract(epoch from max(o.created_at - (o.payload->>'expires_at')::timestamptz)) * 1000)::float8 as ms
         from event_outbox o where tenant_id = $1 and event_type = 'escrow.expired'`,
      [t.id],
    );
    console.log(`500 of 50,000 holds expired; the last was told ${late[0]!.ms} ms late`);
    expect(late[0]!.ms).toBeLessThan(30_000);
  });
});

describe('a report whose author has lost the right to it', () => {
  const delayed = {
    ...{ hold_type: 'time_delayed' as const, required_approvals: 0, release_after_seconds: 60, ttl_seconds: 600 },
    conditions: [{ condition_id: 'kyc' }],
  };
  const demote = (userId: string) => sql(`update member set roles = '{viewer}' where id = $1`, [userId]);
  /** A hold that waits for its time alone, as it is told. */
  const reported = async () => {
    const t = await tenant();
    const [userId] = t.approvers as [string];
    const { hold } = await holds.open(t.id, holdRequest(delayed), by);
    const evidence = { condition_id: 'kyc', satisfied: true, evidence: 'seen' };
    await holds.satisfy(t.id, hold.id, { ...evidence, userId }, { actor: { type: 'user', id: userId } });
    return { t, userId, id: hold.id };
  };
  const lapsed = { status: 'held', conditions: [{ condition_id: 'kyc', satisfied: false, lapsed: true }] };

  test('releases nothing when its time comes, however it is noticed', async () => {
    const [woken, used, asked, late] = [await reported(), await reported(), await reported(), await reported()];
    const good = await reported();
    for (const { userId } of [woken, used, asked, late]) await demote(userId);
    clock.advance(61_000);
    expect(await holds.wake(woken.t.id, [woken.id])).toBe(1);
    expect(await holds.wake(woken.t.id, [woken.id])).toBe(0);
    expect(await holds.get(woken.t.id, woken.id)).toMatchObject(lapsed);
    expect(await outbox(woken.t.id, 'escrow.released')).toBe(0);
    expect(await codeOf(holds.consume(used.t.id, used.id, action, by))).toBe('INVALID_STATUS');
    const again = await holds.open(asked.t.id, holdRequest(delayed), by);
    expect(again).toMatchObject({ opened: false, hold: { ...lapsed, id: asked.id } });
    // its time is over: the report of somebody else is all that it waits for
    const satisfied = { condition_id: 'kyc', satisfied: true, userId: woken.t.approvers[1]! };
    expect((await holds.satisfy(woken.t.id, woken.id, satisfied, by)).status).toBe('released');
    // one that still counts
    expect((await holds.open(good.t.id, holdRequest(delayed), by)).hold).toMatchObject({
      ...{ id: good.id, status: 'released' },
      conditions: [{ satisfied: true }],
    });
    expect((await holds.consume(good.t.id, good.id, action, by)).status).toBe('consumed');
    clock.advance(600_000);
    expect(await holds.wake(late.t.id, [late.id])).toBe(1);
    expect((await holds.get(late.t.id, late.id)).status).toBe('expired');
    expect(await outbox(late.t.id, 'escrow.released')).toBe(0);
  });

  test('is counted again by a process that has just begun, and after a count that failed', async () => {
    const { t, userId, id } = await reported();
    await demote(userId);
    let failures = 0;
    const flaky = Object.assign(Object.create(holds) as Holds, {
      reported: () => holds.reported(),
      recount: async (tenantId: string) => {
        if (tenantId === t.id && failures++ === 0) throw new Error('connection lost');
        return holds.recount(tenantId);
      },
    });
    const jobs = startJobs([holdRecounts(flaky, box.db.notices)], log);
    await expect.poll(async () => (await holds.get(t.id, id)).conditions).toMatchObject(lapsed.conditions);
    await jobs.stop();
    expect(failures).toBeGreaterThan(1);
  });
});
