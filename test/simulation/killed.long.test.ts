import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import pg from 'pg';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Core, openCore } from '../../server/app.ts';
import { readConfig } from '../../server/config.ts';
import { OPERATOR } from '../../server/domain/audit.ts';
import { createLog } from '../../server/lib/log.ts';
import { createTenant } from '../../server/provision.ts';
import { useDatabase } from '../helpers/database.ts';
import { MASTER_KEY, ServerProcess } from '../helpers/processes.ts';
import { noRedis, TestRedis } from '../helpers/redis.ts';
import { until } from '../helpers/until.ts';
import type { Simulation } from './support.ts';

/**
 * A process is killed in the middle of a simulation, at a point that a lock of the test holds it at: while it reads, and
 * while it stores what it found. Another one begins it again. Until then there is no result, and no approval by one.
 */
const box = useDatabase();
const dir = mkdtempSync(path.join(tmpdir(), 'svc-killed-'));
let redis: TestRedis | undefined;
let core: Core;
let env: Record<string, string>;
const servers: ServerProcess[] = [];
/** A connection that stands in the way. */
let blocker: pg.Client;

beforeAll(async () => {
  redis = noRedis ? undefined : await TestRedis.start();
  env = { DATABASE_URL: box.url, ...(redis && { REDIS_URL: redis.url }), SVC_POLL_SECONDS: '1' };
  const config = readConfig({ ...env, SVC_DATA_DIR: dir, SVC_MASTER_KEY: MASTER_KEY });
  core = await openCore({ config, databaseUrl: box.url, log: createLog('silent') });
  blocker = new pg.Client({ connectionString: box.url });
  await blocker.connect();
});
afterAll(async () => {
  await blocker?.end();
  await Promise.all(servers.map((server) => server.dispose()));
  await core?.stop();
  await redis?.stop();
  rmSync(dir, { recursive: true, force: true });
});

const policy = (amount: number) => `
@id("small") permit(principal, action, resource == Tool::"refund")
when { context.num.hasTag("amount") && context.num.getTag("amount").lessThanOrEqual(decimal("${amount}.0")) };`;

async function call<T = Record<string, unknown>>(
  server: ServerProcess,
  key: string,
  line: string,
  body?: unknown,
  tenant?: string,
) {
  const [method, target] = line.split(' ') as [string, string];
  const response = await fetch(server.url + target, {
    method,
    headers: {
      authorization: `Bearer ${key}`,
      ...(tenant && { 'x-svc-tenant': tenant }),
      ...(body !== undefined && { 'content-type': 'application/json' }),
    },
    ...(body !== undefined && { body: JSON.stringify(body) }),
  });
  return { status: response.status, body: (await response.json()) as T };
}

interface Row {
  id: string;
  status: string;
  attempt: number;
  result: unknown;
  result_hash: string | null;
}
async function rows(tenantId: string): Promise<Row[]> {
  const { rows } = await box.db.owner.query<Row & Record<string, unknown>>(
    'select id, status, attempt, result, result_hash from policy_simulation where tenant_id = $1',
    [tenantId],
  );
  return rows;
}
/** Some statement waits for the blocker whose text begins so. */
const waits = (beginning: string) =>
  until(async () => {
    const { rows } = await box.db.owner.query<{ query: string }>(
      `select query from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
    );
    return rows.some(({ query }) => query.trimStart().startsWith(beginning));
  }, `a "${beginning}" waits`);

let made = 0;
test.each(['while it reads the past decisions', 'while it stores what it found'])(
  'a process that is killed %s: another one finishes the simulation, and only its result is approved by',
  async (when) => {
    const [first, second] = [new ServerProcess('a', env), new ServerProcess('b', env)];
    servers.push(first, second);
    await first.start();
    const tenant = await createTenant(core, 'http://localhost', {
      ...{ id: `killed${++made}`, name: 'Test', adminEmail: 'admin@example.test' },
    });
    const [tenantId, key] = [tenant.tenant_id, tenant.api_key];
    const asked = async (expected: number, server: ServerProcess, line: string, body?: unknown) => {
      const answer = await call<Record<string, string>>(server, key, line, body);
      expect(answer.status, `${line}: ${JSON.stringify(answer.body)}`).toBe(expected);
      return answer.body;
    };
    await asked(201, first, 'POST /v1/policies', { id: 'p', dsl_source: policy(50) });
    await asked(200, first, 'POST /v1/policies/p/approve', { version: 1 });
    const named = { agent_id: 'bot-1', agent_role: 'clerk', owner_id: tenant.admin_id };
    const agent = await asked(201, first, 'POST /v1/agent-keys', named);
    for (const amount of [10, 60, 90]) {
      const body = { action_type: 'tool_call', tool_name: 'refund', arguments: { amount } };
      const answer = await call(first, agent.key!, 'POST /v1/evaluate', body, tenantId);
      expect(answer.status, JSON.stringify(answer.body)).toBe(200);
    }
    await core.settingsChanges.change(tenantId, { simulation_required: true }, { actor: OPERATOR }, 'for a test');
    await asked(201, first, 'POST /v1/policies', { id: 'q', dsl_source: policy(70) });

    await blocker.query('begin; lock table decision_input in access exclusive mode');
    const { id } = await asked(202, first, 'POST /v1/policies/q/simulate', { version: 1 });
    await waits('copy (select');
    if (when.includes('stores')) {
      const reading = blocker;
      blocker = new pg.Client({ connectionString: box.url });
      await blocker.connect();
      await blocker.query('begin');
      await blocker.query('select from policy_simulation where tenant_id = $1 and id = $2 for update', [tenantId, id]);
      await reading.query('rollback');
      await reading.end();
      await waits('update policy_simulation set status');
    }
    await first.kill();
    await blocker.query('rollback');

    await second.start();
    // nothing of a result is there before the lease of the dead process has ended
    expect(await rows(tenantId)).toMatchObject([
      { id, status: 'running', attempt: 1, result: null, result_hash: null },
    ]);
    const refused = await asked(422, second, 'POST /v1/policies/q/approve', { version: 1 });
    expect(refused.code).toBe('SIMULATION_REQUIRED');
    const unfinished = await asked(404, second, 'POST /v1/policies/q/approve', { version: 1, simulation_id: id });
    expect(unfinished.detail).toMatch(/no such finished simulation/);
    const found = await until(
      async () => {
        const { body } = await call<Simulation>(second, key, `GET /v1/policies/q/simulation?simulation_id=${id}`);
        return body.status === 'done' && body;
      },
      'another process has finished it',
      { everyMs: 100 },
    );
    expect(found).toMatchObject({
      decisions: 3,
      unknown: 0,
      matrix: { allow: { allow: 1 }, deny: { allow: 1, deny: 1 } },
    });
    expect(await rows(tenantId)).toMatchObject([{ id, status: 'done', attempt: 2, result_hash: found.result_hash }]);
    await asked(200, second, 'POST /v1/policies/q/approve', { version: 1, simulation_id: id });
    const audit = await call<{ records: { detail: string }[] }>(
      second,
      key,
      'GET /v1/audit?action=policy.approved&limit=1',
    );
    expect(audit.body.records[0]!.detail).toContain(
      `simulation ${id} ${found.result_hash}: 3 decisions; 0 unknown; deny to allow 1`,
    );
    await second.kill();
  },
);
