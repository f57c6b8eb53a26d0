import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Core, openCore } from '../../server/app.ts';
import { readConfig } from '../../server/config.ts';
import { OPERATOR } from '../../server/domain/audit.ts';
import { createLog } from '../../server/lib/log.ts';
import { createTenant } from '../../server/provision.ts';
import { deploy } from '../helpers/api.ts';
import { useDatabase } from '../helpers/database.ts';
import { PATIENCE } from '../helpers/patience.ts';
import { MASTER_KEY, ServerProcess } from '../helpers/processes.ts';
import { until } from '../helpers/until.ts';

/** A server as a process of its own that is killed while it decides a call, and one that stops while agents wait. */

const box = useDatabase();
const dir = mkdtempSync(path.join(tmpdir(), 'svc-calls-'));
let core: Core;
let server: ServerProcess;
let agentKey: string;
let tenantId: string;
let cookie: string;
const POLICY =
  '@id("pay") @escrow("single") @ttl("1h") @rate("2/d") permit(principal, action, resource == Tool::"pay"); @id("read") @rate("2/d") permit(principal, action, resource == Tool::"read");';

beforeAll(async () => {
  const config = readConfig({ DATABASE_URL: box.url, SVC_DATA_DIR: dir, SVC_MASTER_KEY: MASTER_KEY });
  core = await openCore({ config, databaseUrl: box.url, log: createLog('silent') });
  server = new ServerProcess('a', { DATABASE_URL: box.url });
  await server.start();
  const made = await createTenant(core, server.url, { id: 'calls', name: 'Test', adminEmail: 'admin@example.test' });
  tenantId = made.tenant_id;
  const call = async (expected: number, line: string, who: { key?: string } | undefined, body?: unknown) => {
    const answer = await request(line, who?.key ?? '', body);
    expect(answer.status, JSON.stringify(answer.body)).toBe(expected);
    return answer;
  };
  await deploy({ call } as never, { key: made.api_key }, 'desk', POLICY);
  const named = { agent_id: 'bot', agent_role: 'clerk', owner_id: made.admin_id };
  const agent = await request('POST /v1/agent-keys', made.api_key, named);
  agentKey = agent.body.key;
  const approver = { email: 'approver@example.test', roles: ['approver'] };
  const userId = await core.tenants.addMember(tenantId, approver, { actor: OPERATOR });
  const token = await core.links.create(tenantId, userId, 600, { actor: OPERATOR });
  const signedIn = await fetch(`${server.url}/auth/magic-link/verify?token=${token}`, { redirect: 'manual' });
  cookie = signedIn.headers.get('set-cookie')!.split(';')[0]!;
});
afterAll(async () => {
  await server?.dispose();
  await core?.stop();
  rmSync(dir, { recursive: true, force: true });
});

async function request(line: string, key: string, body?: unknown) {
  const [method, target] = line.split(' ') as [string, string];
  const response = await fetch(server.url + target, {
    method,
    headers: {
      authorization: `Bearer ${key}`,
      ...(body !== undefined && { 'content-type': 'application/json' }),
    },
    ...(body !== undefined && { body: JSON.stringify(body) }),
  });
  return { status: response.status, body: JSON.parse(await response.text()) };
}

const evaluate = (tool_name: string, more: object) =>
  request('POST /v1/evaluate', agentKey, { action_type: 'tool_call', tool_name, ...more });
const rows = async <T extends object>(text: string) => (await box.db.owner.query(text, [tenantId])).rows as T[];

/** Has the server decide this, and kills it when only the record is missing. */
async function killedBeforeTheRecord(tool: string, more: { call_id: string; [name: string]: unknown }): Promise<void> {
  const client = await box.db.connectOwner();
  try {
    await client.query('begin');
    await client.query('lock table forensic_record in share mode');
    const lost = evaluate(tool, more).catch(() => 'no answer');
    await until(
      async () =>
        (
          await rows(`select 1 from agent_call c where tenant_id = $1 and answers <> '[]' and busy_until > now()
           and not exists (select 1 from forensic_record f where f.tenant_id = c.tenant_id and f.event_id = c.event_id)`)
        ).length === 1,
      'it is decided',
    );
    await server.kill();
    expect(await lost).toBe('no answer');
    // what it had sent before it was killed must not be committed after all
    await client.query(
      `select pg_terminate_backend(l.pid) from pg_locks l
       where l.relation = 'forensic_record'::regclass and not l.granted and l.pid <> pg_backend_pid()`,
    );
    await until(
      async () =>
        (await rows(`select 1 from pg_locks where $1 <> '' and relation = 'forensic_record'::regclass and not granted`))
          .length === 0,
      'nobody waits to write the record',
    );
  } finally {
    await client.end();
  }
  await server.startAgain();
  // the server that is gone counts as the one that decides for a while: long enough for a busy machine, and no longer
  const call = `tenant_id = $1 and call_id = '${more.call_id}'`;
  const ends = `busy_until between clock_timestamp() and clock_timestamp() + interval '${15 * PATIENCE} s'`;
  expect(await rows(`select ${ends} as ends from agent_call where ${call}`)).toEqual([{ ends: true }]);
  await rows(`update agent_call set busy_until = clock_timestamp() where ${call}`);
}

/** Asks until the server answers: one that has just started may not own the tenant yet. */
async function answered(tool: string, more: object) {
  let answer = await evaluate(tool, more);
  await until(async () => {
    if (answer.status === 200) return true;
    expect(answer.body.code).toBe('UNAVAILABLE');
    answer = await evaluate(tool, more);
    return answer.status === 200;
  }, 'it answers');
  return answer.body;
}

test('a call whose server was killed after it consumed the hold is permitted once, by that hold', async () => {
  const pay = { arguments: { amount: 1 }, call_id: 'pay-1' };
  const held = (await evaluate('pay', pay)).body;
  expect(held.decision).toBe('escrow');
  const vote = await fetch(`${server.url}/v1/escrow/${held.escrow.id}/vote`, {
    method: 'POST',
    headers: { cookie, origin: server.url, 'content-type': 'application/json' },
    body: JSON.stringify({ decision: 'approve', reason: 'as agreed' }),
  });
  expect(vote.status, await vote.text()).toBe(200);
  await killedBeforeTheRecord('pay', { ...pay, resume: true });
  expect(await rows('select status from escrow_hold where tenant_id = $1')).toEqual([{ status: 'consumed' }]);
  const allowed = await answered('pay', { ...pay, resume: true });
  expect(allowed).toMatchObject({ decision: 'allow', escrow: { id: held.escrow.id } });
  expect((await evaluate('pay', { ...pay, resume: true })).body).toEqual(allowed);
  const records = await rows(
    `select line::json->>'decision' as decision, line::json->>'escrow_id' as hold from forensic_record
     where tenant_id = $1 and line::json->>'tool_name' = 'pay' order by seq`,
  );
  expect(records).toEqual([
    { decision: 'escrow', hold: held.escrow.id },
    { decision: 'allow', hold: held.escrow.id },
  ]);
  expect(await rows('select status from escrow_hold where tenant_id = $1')).toEqual([{ status: 'consumed' }]);
});

test('a call whose server was killed before its record is counted once', async () => {
  await killedBeforeTheRecord('read', { call_id: 'read-1' });
  const allowed = await answered('read', { call_id: 'read-1' });
  expect(allowed.decision).toBe('allow');
  expect((await evaluate('read', {})).body.decision).toBe('allow');
  expect((await evaluate('read', {})).body.decision).toBe('rate_limited');
});

test('a server that stops answers those who wait for a hold, and ends', async () => {
  const held = (await evaluate('pay', { arguments: { amount: 2 } })).body;
  const waiting = Array.from({ length: 3 }, () => request(`GET /v1/escrow/${held.escrow.id}?wait=60`, agentKey));
  // one that answers at once, on a connection of its own, is behind the others
  expect((await request(`GET /v1/escrow/${held.escrow.id}?wait=60&status=released`, agentKey)).status).toBe(200);
  server.signal('SIGTERM');
  for (const { body } of await Promise.all(waiting)) expect(body.status).toBe('held');
  await server.exited();
  expect(server.exitCode).toBe(0);
});
