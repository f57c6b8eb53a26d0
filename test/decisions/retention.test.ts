import { expect, test } from 'vitest';
import { forgetInputs } from '../../server/decisions/retention.ts';
import { useServer } from '../helpers/server.ts';

const server = useServer({});

test('inputs of decisions are erased after their retention period, and no others', async () => {
  const [over, kept] = [await server.tenant(), await server.tenant()];
  const { db, tenants } = server.core;
  for (const { id } of [over, kept]) {
    await db.owner.query(
      `insert into decision_input (tenant_id, event_id, created_at, input)
       values ($1, 'old', now() - interval '40 days', '{}'), ($1, 'new', now(), '{}')`,
      [id],
    );
  }
  const forgotten: string[] = [];
  const job = forgetInputs({
    db,
    clock: { now: () => Date.now() },
    tenants: () => tenants.list(),
    retentionDays: async (tenantId) => (tenantId === over.id ? 30 : 50),
    forgetHeld: async (tenantId) => {
      forgotten.push(tenantId);
      return 0;
    },
  });
  await job.run(new AbortController().signal);
  const { rows } = await db.owner.query(
    'select tenant_id, event_id from decision_input where tenant_id = any($1) order by event_id desc',
    [[over.id, kept.id]],
  );
  expect(rows).toEqual(
    expect.arrayContaining([
      { tenant_id: kept.id, event_id: 'old' },
      { tenant_id: kept.id, event_id: 'new' },
      { tenant_id: over.id, event_id: 'new' },
    ]),
  );
  expect(rows).toHaveLength(3);
  expect(forgotten).toEqual(expect.arrayContaining([over.id, kept.id]));
});
