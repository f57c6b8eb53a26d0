import pg from 'pg';
import { afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import type { WriteAudit } from '../../db/index.ts';
import { auditWriter } from '../../server/chain/audit.ts';
import { startJobs } from '../../server/jobs/jobs.ts';
import { SecretBox } from '../../server/lib/crypto.ts';
import { type Egress, EgressError } from '../../server/lib/egress.ts';
import { createLog } from '../../server/lib/log.ts';
import { Deliverer } from '../../server/subscriptions/deliver.ts';
import { targetPlace } from '../../server/subscriptions/fan-out.ts';
import { type ClaimedLane, LaneClaims } from '../../server/subscriptions/lanes.ts';
import { Subscriptions } from '../../server/subscriptions/subscriptions.ts';
import { Tenants } from '../../server/tenants/tenants.ts';
import { useDatabase } from '../helpers/database.ts';

/** Who gets the places of a worker. Only the network is not real. */
const box = useDatabase();
const sealed = new SecretBox(Buffer.alloc(32, 7));
const clock = { now: () => Date.now() };
const log = createLog('silent');
const audit: WriteAudit = auditWriter(clock, () => 'fingerprint');
let tenants: Tenants;
const stops: (() => Promise<void>)[] = [];

beforeAll(() => {
  tenants = new Tenants(box.db, clock, audit, { poll_seconds: 15 });
});
afterEach(async () => {
  await Promise.all(stops.splice(0).map((stop) => stop()));
});

const tenant = async (id: string) => {
  await tenants.create({ id, name: id, adminEmail: `admin@${id}.test` }, { type: 'operator', id: 'test' });
  return id;
};

/** So many failing destinations of a tenant, with so many events for each, due once `due` is called. */
async function queue(tenantId: string, name: string, lanes: number, events: number): Promise<void> {
  const { owner } = box.db;
  const at = new Date(Date.now() - 60_000);
  const context = { startedAt: at.getTime(), attempts: 1, failures: 1, nextAt: at.getTime() };
  for (let n = 0; n < lanes; n++) {
    const id = `ntf_${name}${n}`;
    const target = sealed.seal(`https://${name}.test/${n}`, targetPlace(tenantId, id));
    await owner.query(
      'insert into delivery_lane (tenant_id, id, target_sealed, failing_since) values ($1, $2, $3, $4)',
      [tenantId, id, target, at],
    );
  }
  await owner.query(
    `insert into event_outbox (tenant_id, id, event_type, payload, created_at, fanned_out_at, wanted)
     select $1, 'oev_' || n, 'svc.test', '{"event": "svc.test"}', $2, $2, true from generate_series(1, $3::int) n`,
    [tenantId, at, events],
  );
  await owner.query(
    `insert into delivery (tenant_id, lane_id, event_id, event_type, status, machine_version, machine_context, attempts,
       next_attempt_at, created_at)
     select $1, l.id, 'oev_' || n, 'svc.test', 'retrying', 1, $2, 1, $3, $3
     from delivery_lane l, generate_series(1, $4::int) n where l.tenant_id = $1`,
    [tenantId, context, at, events],
  );
}

const due = (tenantId: string) =>
  box.db.owner.query(`update delivery_lane set due_at = now() - interval '1 minute' where tenant_id = $1`, [tenantId]);

function deliver(send: (url: string) => Promise<number>): void {
  const egress = {
    check: async () => undefined,
    send: async ({ url }: { url: string }) => ({
      status: await send(url),
      ...{ headers: {}, body: Buffer.alloc(0), truncated: false },
    }),
  } as unknown as Egress;
  const parts = { db: box.db, clock, audit, box: sealed, egress, appUrl: 'https://control.test' };
  const subscriptions = new Subscriptions(parts);
  const deliverer = new Deliverer({ ...parts, log, subscriptions, queueMail: async () => undefined });
  const jobs = startJobs(deliverer.jobs(), log);
  stops.push(() => jobs.stop());
}

test('many destinations of two tenants that hang keep no failing one of another tenant from its retry', async () => {
  const [many, more, one] = [await tenant('many'), await tenant('more'), await tenant('one')];
  await queue(many, 'hangs-too', 130, 8);
  await queue(more, 'hangs', 130, 8);
  await queue(one, 'works', 1, 1);
  await due(many);
  await due(more);
  /** The ends of the attempts that hang. */
  const hanging: (() => void)[] = [];
  let over = false;
  let hung = 0;
  /** How many had hung whenever the other one was tried. */
  const retried: number[] = [];
  deliver(async (url) => {
    if (!url.includes('hangs')) {
      retried.push(hung);
      return 204;
    }
    if (!over) await new Promise<void>((resolve) => hanging.push(resolve));
    hung++;
    throw new EgressError('TIMEOUT', 'It took too long.');
  });
  // half of the places
  await expect.poll(() => hanging.length).toBe(128);
  await due(one);
  while (retried.length === 0) {
    expect(hanging.length).toBeLessThanOrEqual(128);
    for (const end of hanging.splice(0)) end();
    await expect.poll(() => retried.length > 0 || hanging.length > 0).toBe(true);
  }
  // at most those under way, and those of a claim that had begun
  expect(retried[0]).toBeLessThan(300);
  stops.push(async () => {
    over = true;
    for (const end of hanging.splice(0)) end();
  });
});

/** So many tenants, of whom each has `lanes` destinations that fail, with something due since about `since`. */
async function fail(
  client: Pick<pg.ClientBase, 'query'>,
  name: string,
  count: number,
  lanes: number,
  since: Date | null,
): Promise<string[]> {
  const { rows } = await client.query<{ tenant_id: string }>(
    `insert into tenant select made.* from generate_series(1, $2) n, (select * from tenant where tenant_id = 'any') t,
       jsonb_populate_record(null::tenant, to_jsonb(t) || jsonb_build_object('tenant_id', $1 || n)) made
     returning tenant_id`,
    [name, count],
  );
  const ids = rows.map(({ tenant_id }) => tenant_id);
  await client.query(
    `insert into delivery_lane (tenant_id, id, due_at, failing_since)
     select t, 'lane_' || n, $3::timestamptz - n * interval '1 ms', now() from unnest($1::text[]) t, generate_series(1, $2) n`,
    [ids, lanes, since],
  );
  return ids;
}

describe('a claim of failing destinations', () => {
  const PLACES = 128;
  const ago = (ms: number) => new Date(Date.now() - ms);
  const claim = async (claims: LaneClaims, limit: number, served: readonly string[] = [], failing = true) => {
    const got: ClaimedLane[] = [];
    const now = Date.now();
    for await (const lane of claims.claim({ limit, failing, served, now, until: now + 30_000, only: undefined })) {
      got.push(lane);
    }
    return got;
  };
  const times = (tenantId: string, all: readonly string[]) => all.filter((one) => one === tenantId).length;
  beforeAll(async () => {
    await tenant('any');
  });
  beforeEach(() => box.db.owner.query('truncate delivery_lane cascade'));

  test('gives each tenant the same, however many have waited for longer', async () => {
    const { owner } = box.db;
    const [most] = await fail(owner, 'most', 1, 900, ago(3600_000));
    const some = await fail(owner, 'some', 3, 90, ago(60_000));
    const [one] = await fail(owner, 'one', 1, 1, ago(1));
    const claims = new LaneClaims(box.db);
    const served = (await claim(claims, PLACES)).map(({ tenant_id }) => tenant_id);
    expect([times(most!, served), ...some.map((id) => times(id, served)), times(one!, served)].sort()).toEqual(
      [1, 31, 32, 32, 32].sort(),
    );
    // a place that is free goes to who has least
    served.splice(served.indexOf(some[1]!), 3);
    const [next] = await claim(claims, 1, served);
    expect(times(next!.tenant_id, served)).toBe(Math.min(...[most!, ...some].map((id) => times(id, served))));
  });

  test('finds those who have something due among more tenants than it looks at', async () => {
    const { owner } = box.db;
    const [most] = await fail(owner, 'm', 1, 900, ago(3600_000));
    // they are tried again later
    await fail(owner, 'later', 700, 1, new Date(Date.now() + 3600_000));
    const few: string[] = [];
    for (const name of ['a', 'latez', 'z']) few.push(...(await fail(owner, name, 1, 1, ago(1))));
    const claims = new LaneClaims(box.db);
    const served: string[] = [];
    while (served.length < PLACES) {
      const got = await claim(claims, PLACES - served.length, served);
      expect(got.length).toBeGreaterThan(0);
      served.push(...got.map(({ tenant_id }) => tenant_id));
    }
    expect(few.map((id) => times(id, served))).toEqual([1, 1, 1]);
    expect(times(most!, served)).toBe(PLACES - 3);
  });

  test('waits for no lock, and gives each lane to one of all that claim at once', async () => {
    const { owner } = box.db;
    await fail(owner, 'once', 1, 400, ago(60_000));
    const client = await owner.connect();
    try {
      await client.query('begin');
      await client.query(`select from delivery_lane where id in ('lane_1', 'lane_7') for update`);
      const all = await Promise.all([1, 2, 3].map(() => claim(new LaneClaims(box.db), PLACES)));
      await client.query('rollback');
      const ids = all.flat().map(({ id }) => id);
      expect(new Set(ids).size).toBe(ids.length);
      expect(ids).not.toContain('lane_1');
      expect(ids).not.toContain('lane_7');
      expect(ids.length).toBeGreaterThan(PLACES);
    } finally {
      client.release();
    }
  });

  test.each(['never', 'when nothing was due', 'now'])(
    'reads few however many are due, and one of the others reads none of these, with statistics taken %s',
    async (taken) => {
      // a connection without the limits of a request: there is much to insert
      const client = new pg.Client(box.url);
      await client.connect();
      try {
        await client.query('begin');
        if (taken === 'when nothing was due') {
          await fail(client, 'quiet', 10, 300, null);
          await client.query('update delivery_lane set failing_since = null');
          await client.query('analyze delivery_lane');
        }
        // with ids as long as they may be, so that the smallest index is not the one to read by
        await fail(client, 'burst'.padEnd(60, '-'), 40, 500, ago(60_000));
        await fail(client, 'rest', 40, 50, new Date(Date.now() + 3600_000));
        if (taken === 'now') await client.query('analyze delivery_lane');
        let read = 0;
        const look = (plan: Plan): void => {
          if (plan['Relation Name'] === 'delivery_lane' && plan['Node Type'].endsWith('Scan')) {
            read += (plan['Actual Rows'] + (plan['Rows Removed by Filter'] ?? 0)) * plan['Actual Loops'];
          }
          plan.Plans?.forEach(look);
        };
        const query = async (text: string, values: unknown[]) => {
          await client.query('savepoint explained');
          const { rows } = await client.query(`explain (analyze, format json) ${text}`, values);
          await client.query('rollback to explained');
          look((rows as { 'QUERY PLAN': [{ Plan: Plan }] }[])[0]!['QUERY PLAN'][0].Plan);
          return client.query(text, values);
        };
        const claims = new LaneClaims({ nearOf: () => ({ query }), search: { query } } as never);
        expect(await claim(claims, PLACES)).toHaveLength(PLACES);
        // 256 that have waited for longest, 80 tenants, seven of each that has something due, and twice what is claimed; PostgreSQL
        // rounds how many it read on average
        expect(read).toBeLessThan(1000);
        read = 0;
        expect(await claim(claims, PLACES, [], false)).toEqual([]);
        expect(read).toBe(0);
      } finally {
        await client.end();
      }
    },
  );
});

interface Plan {
  'Node Type': string;
  'Relation Name'?: string;
  'Actual Loops': number;
  'Actual Rows': number;
  'Rows Removed by Filter'?: number;
  Plans?: Plan[];
}
