import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Core, openCore } from '../../server/app.ts';
import { auditWriter } from '../../server/chain/audit.ts';
import { readConfig } from '../../server/config.ts';
import { AppError } from '../../server/errors.ts';
import { Holds } from '../../server/escrow/holds.ts';
import { systemClock } from '../../server/lib/clock.ts';
import { createLog } from '../../server/lib/log.ts';
import { createProgram } from '../../server/program.ts';
import { Tenants } from '../../server/tenants/tenants.ts';
import { useDatabase } from '../helpers/database.ts';
import { holdRequest } from '../helpers/holds.ts';
import { useServer } from '../helpers/server.ts';
import { ROUNDS } from '../siege/rounds.ts';

const { holds: HOLDS, consumes: CALLS } = ROUNDS;
const server = useServer();
const elsewhere = useDatabase();
const others: Core[] = [];
const dir = mkdtempSync(path.join(tmpdir(), 'svc-server-'));
const log = createLog('silent');
const config = readConfig({
  PORT: '0',
  SVC_BASE_URL: 'http://control.test',
  SVC_DATA_DIR: dir,
  SVC_MASTER_KEY: Buffer.alloc(32, 7).toString('hex'),
});

// the server has the database to itself; the others are whole programs but for HTTP, as an operator's commands are
beforeAll(async () => {
  for (let i = 0; i < 2; i++) others.push(await openCore({ config, databaseUrl: server.databaseUrl, log }));
});
afterAll(async () => {
  for (const other of others) await other.stop();
  rmSync(dir, { recursive: true, force: true });
});

test(`${CALLS} concurrent consumes of each of ${HOLDS} released holds, through three programs: one succeeds on each`, async () => {
  const tenant = await server.tenant();
  const proxy = await tenant.key('proxy');
  const approver = await tenant.person('approver');
  const action = { agent_role: 'clerk', agent_id: 'agent', action_hash: `sha256:${'a'.repeat(64)}` };
  let succeeded = 0;
  for (let n = 0; n < HOLDS; n++) {
    const { body } = await server.call<{ id: string }>(201, 'POST /v1/escrow', proxy, {
      ...action,
      action_type: 'payment',
      action_summary: 'pays',
      hold_type: 'single',
      ttl_seconds: 3600,
    });
    await server.call(200, `POST /v1/escrow/${body.id}/vote`, approver, { decision: 'approve', reason: 'r' });
    const programs = [
      async () => {
        const answer = await fetch(`${server.url}/v1/escrow/${body.id}/consume`, {
          method: 'POST',
          headers: { authorization: `Bearer ${proxy.key}`, 'content-type': 'application/json' },
          body: JSON.stringify(action),
        });
        const { code = 'done' } = (await answer.json()) as { code?: string };
        return code;
      },
      ...others.map(({ holds }) => async () => {
        try {
          await holds.consume(tenant.id, body.id, action, { actor: { type: 'api_key', id: 'key_other' } });
          return 'done';
        } catch (error) {
          if (!(error instanceof AppError)) throw error;
          return error.problem;
        }
      }),
    ];
    const codes = await Promise.all(Array.from({ length: CALLS }, (_, i) => programs[i % programs.length]!()));
    expect(codes.filter((code) => code === 'done')).toHaveLength(1);
    expect(codes.filter((code) => code === 'ALREADY_CONSUMED')).toHaveLength(CALLS - 1);
    succeeded++;
  }
  const told = await server.core.db.owner.query(
    `select payload->>'escrow_id' as id, count(*)::int as n from event_outbox
       where tenant_id = $1 and event_type = 'escrow.consumed' group by 1`,
    [tenant.id],
  );
  expect(told.rows).toHaveLength(HOLDS);
  expect(told.rows.every(({ n }) => n === 1)).toBe(true);
  console.log(`${HOLDS * CALLS} consumes through ${others.length + 1} programs: ${succeeded} succeeded`);
});

test('a program that cannot read a stored hold does not start', async () => {
  const { db, url } = elsewhere;
  const audit = auditWriter(systemClock, () => 'fingerprint');
  const tenants = new Tenants(db, systemClock, audit, { poll_seconds: 15 });
  await tenants.create({ id: 't', name: 't', adminEmail: 'a@t.test' }, { type: 'operator', id: 'test' });
  const holds = new Holds({ db, audit, settings: (id) => tenants.settings(id), stops: async () => () => undefined });
  await holds.create('t', holdRequest(), { actor: { type: 'api_key', id: 'k' } });
  await db.owner.query('update escrow_hold set machine_version = 2');
  const start = () => createProgram({ config, databaseUrl: url, log });
  await expect(start()).rejects.toThrow(/cannot read the holds/);
  await db.owner.query('update escrow_hold set machine_version = 1');
  await (await start()).stop();
});
