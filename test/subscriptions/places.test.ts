import { setTimeout as delay } from 'node:timers/promises';
import { afterEach, beforeAll, expect, test } from 'vitest';
import type { WriteAudit } from '../../db/index.ts';
import { auditWriter } from '../../server/chain/audit.ts';
import { startJobs } from '../../server/jobs/jobs.ts';
import { SecretBox } from '../../server/lib/crypto.ts';
import { type Egress, EgressError } from '../../server/lib/egress.ts';
import { createLog } from '../../server/lib/log.ts';
import { Deliverer } from '../../server/subscriptions/deliver.ts';
import { targetPlace } from '../../server/subscriptions/fan-out.ts';
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
  let hanging = 0;
  let hung = 0;
  let retried: number | undefined;
  deliver(async (url) => {
    if (!url.includes('hangs')) {
      retried ??= hung;
      return 204;
    }
    hanging++;
    await delay(1000);
    hanging--;
    hung++;
    throw new EgressError('TIMEOUT', 'It took too long.');
  });
  // half of the places
  await expect.poll(() => hanging).toBe(128);
  const before = hung;
  await due(one);
  await expect.poll(() => retried).toBeDefined();
  // at most those under way, and those of a claim that had begun
  expect(retried! - before).toBeLessThan(300);
  expect(hanging).toBeLessThanOrEqual(128);
});
