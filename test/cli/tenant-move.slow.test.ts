import { writeFileSync } from 'node:fs';
import { readFile, rm } from 'node:fs/promises';
import path from 'node:path';
import { expect, test } from 'vitest';
import { MIGRATION_TABLE } from '../../db/applied.ts';
import { inTransaction, LONG_TRANSACTION } from '../../db/client.ts';
import { validUntil } from '../../db/moves.ts';
import { signHead, signLoss } from '../../server/chain/note.ts';
import { NO_DECISION } from '../../server/chain/record.ts';
import { type Move, withSide } from '../../server/cli/tenant-move/side.ts';
import { abandonCopy, forgetMoved, moveTenant, undoAlone, undoMove } from '../../server/cli/tenant-move.ts';
import type { Config } from '../../server/config.ts';
import { OPERATOR } from '../../server/domain/audit.ts';
import type { DecisionEvent } from '../../server/domain/decision.ts';
import { secretHash } from '../../server/domain/secret.ts';
import { checkPackage } from '../../server/forensics/check-package.ts';
import { isDatabaseFault } from '../../server/lib/database-fault.ts';
import { eventOf } from '../../server/subscriptions/delivery-id.ts';
import { webhook } from '../../server/subscriptions/destinations/webhook.ts';
import { markOf } from '../../server/subscriptions/sent.ts';
import { sealPlace } from '../../server/subscriptions/subscription-row.ts';
import { deploy, event, GUARD, makeWorld, sql } from '../helpers/api.ts';
import { PATIENCE } from '../helpers/patience.ts';
import { type Credential, type TestServer, type TestTenant, useServer } from '../helpers/server.ts';
import { SIEGE } from '../siege/rounds.ts';
import { ended, start, svc, svcHere, temporaryDirectory } from './svc.ts';

/** Two installations, each with a database, a master key, signing keys and an address of its own. */
const RATES = { SVC_RATE_INGEST: '100000' };
const source = useServer(RATES);
const THERE = { SVC_BASE_URL: 'http://elsewhere.test', SVC_MASTER_KEY: Buffer.alloc(32, 9).toString('hex') };
const target = useServer({ ...RATES, ...THERE });
const dir = temporaryDirectory();

const CHAINS = ['forensics', 'audit'] as const;
const addressOf = (server: TestServer) => (server === source ? 'http://control.test' : THERE.SVC_BASE_URL);

/** One side of a move on the core of a server that runs: no process more is started. */
function on<T>(server: TestServer, tenantId: string, work: Parameters<typeof withSide<T>>[4]): Promise<T> {
  const config = { baseUrl: addressOf(server), dataDir: server.dataDir } as Config;
  return withSide(server.core, config, server.databaseUrl, tenantId, work);
}

function between<T>(tenantId: string, work: (move: Move) => Promise<T>, [from, to] = [source, target]): Promise<T> {
  return on(from, tenantId, (one) => on(to, tenantId, (other) => work({ source: one, target: other, tenantId })));
}
const moved = (tenantId: string, ...way: [TestServer, TestServer][]) => between(tenantId, moveTenant, ...way);
const undone = (tenantId: string) => between(tenantId, undoMove);

class Killed extends Error {}
/** A run that ends at a step, with its transaction and its connections, as one that is killed there does. */
function killedAt(tenantId: string, step: string): Promise<unknown> {
  const tell = (now: string) => {
    if (now === step) throw new Killed();
  };
  return expect(between(tenantId, (move) => moveTenant({ ...move, tell }))).rejects.toBeInstanceOf(Killed);
}
const STEPS = [
  'verifying the chains at the source',
  'copying records',
  'fencing',
  'lifting the tenant out',
  'copying the rest',
  'adding the keys of the source',
  'unpacking at the target',
  'signing at the target',
  'flipped',
];
/** The steps in turns, for two tests that both need a move at each: together they meet every step also where time is short. */
const EVEN = STEPS.filter((_, n) => SIEGE || n % 2 === 0);
const ODD = STEPS.filter((_, n) => SIEGE || n % 2 === 1);

interface Verdict {
  verified: boolean;
  records_checked: number;
  reason?: string;
  accepted_losses: unknown[];
}
async function verdicts(server: TestServer, who: Credential): Promise<Verdict[]> {
  const all: Verdict[] = [];
  for (const chain of CHAINS) all.push((await server.call<Verdict>(200, `GET /v1/${chain}/verify`, who)).body);
  return all;
}

const report = (server: TestServer, who: Credential, ids: readonly string[]) =>
  server.call(202, 'POST /v1/events/ingest', who, { events: ids.map((event_id) => event({ event_id })) });

async function hashAt(server: TestServer, tenantId: string, seq: number): Promise<string | undefined> {
  const rows = await sql<{ hash: Buffer }>(
    server,
    'select hash from forensic_record where tenant_id = $1 and seq = $2',
    [tenantId, seq],
  );
  return rows[0]?.hash.toString('hex');
}

/** Signs a member in at the target. */
async function enter(tenantId: string, userId: string): Promise<Credential> {
  const token = await target.core.links.create(tenantId, userId, 600, { actor: OPERATOR });
  const entered = await fetch(`${target.url}/auth/magic-link/verify?token=${token}`, { redirect: 'manual' });
  return { cookie: entered.headers.get('set-cookie')!.split(';')[0]! };
}

/** A tenant with a few decisions. */
async function used(server: TestServer): Promise<{ tenant: TestTenant; proxy: Credential }> {
  const tenant = await server.tenant();
  const proxy = await tenant.key('proxy');
  await deploy(server, tenant.admin, 'guard', GUARD);
  await report(server, proxy, [`first-${tenant.id}`, `second-${tenant.id}`]);
  for (const chain of CHAINS) await server.core.checkpoints.take(tenant.id, chain);
  return { tenant, proxy };
}

/** The tables that have rows of a tenant. */
async function tablesWith(server: TestServer, tenantId: string): Promise<string[]> {
  const tables = await namesOfTables(server);
  const rows = await sql<{ name: string }>(
    server,
    tables
      .map((name) => `select '${name}' as name where exists (select from ${name} where tenant_id = $1)`)
      .join(`
     union all `),
    [tenantId],
  );
  return rows.map(({ name }) => name).sort();
}

async function namesOfTables(server: TestServer): Promise<string[]> {
  const tables = await sql<{ name: string }>(
    server,
    `select c.relname as name from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attname = 'tenant_id'
     where c.relnamespace = 'public'::regnamespace and c.relkind = 'r' order by 1`,
  );
  return tables.map(({ name }) => name);
}

/** The rows of a tenant by table, without what is sealed and what each installation has of its own. */
async function rowsOf(
  server: TestServer,
  tenantId: string,
  tables?: readonly string[],
): Promise<Record<string, string[]>> {
  const all: Record<string, string[]> = {};
  for (const name of tables ?? (await namesOfTables(server))) {
    const rows = await sql<{ row: Record<string, unknown> }>(
      server,
      `select to_jsonb(t) as row from ${name} t where tenant_id = $1`,
      [tenantId],
    );
    all[name] = rows.map(({ row }) => JSON.stringify({ ...row, ...mapSealed(row), ...TIMES_OF_JOBS })).sort();
  }
  return all;
}
/** When jobs look next, and what was used last: those of either server write them at any time. */
const TIMES_OF_JOBS = Object.fromEntries(
  ['last_used_at', 'last_seen_at', 'erase_at', 'silent_at', 'offline_at'].map((column) => [column, undefined]),
);
const mapSealed = (row: Record<string, unknown>) =>
  Object.fromEntries(
    Object.entries(row)
      .filter(([column]) => /sealed|client_secret/.test(column))
      .map(([c, v]) => [c, v && 's']),
  );

test('a tenant moves with everything: what was there is there, and works', async () => {
  const world = await makeWorld(source);
  const { tenant, credential } = world;
  const revoked = await tenant.key('admin');
  const { keys } = (
    await source.call<{ keys: { id: string; prefix: string }[] }>(200, 'GET /v1/keys', credential.admin)
  ).body;
  const dead = keys.find(({ prefix }) => revoked.key!.startsWith(prefix))!;
  await source.call(204, `DELETE /v1/keys/${dead.id}`, credential.admin);
  // what was sent can be made again at the target, with the signatures
  const sentAt = 1_750_000_000;
  const eventId = eventOf(world.subscription, world.delivery)!;
  const sent = webhook.request({
    ...{ eventId, eventType: 'svc.test', deliveryId: world.delivery, payload: {}, appUrl: '' },
    ...{ timestamp: sentAt, secrets: ['a signing secret'] },
  });
  const earlier = {
    at: new Date().toISOString(),
    result: 'TIMEOUT',
    http_status: null,
    duration_ms: 1,
    reason: 'Late.',
  };
  await sql(
    source,
    `update delivery set last_attempt_at = to_timestamp(${sentAt}), result = 'DELIVERED', http_status = 200, duration_ms = 7,
       sent = $3, answer = $4, history = $5 where tenant_id = $1 and event_id = $2`,
    [
      ...[tenant.id, eventId, markOf(sent)],
      { headers: { server: 'x' }, body: '\u2028"', truncated: false },
      JSON.stringify([{ ...earlier, sent: '\\x0102', answer: null }]),
    ],
  );
  const proxy = await tenant.key('proxy');
  const bundle = await source.call(200, 'GET /v1/policies/bundle', proxy);
  const waiting = 'select count(*)::int as n from event_outbox where tenant_id = $1 and fanned_out_at is null';
  await expect.poll(async () => (await sql<{ n: number }>(source, waiting, [tenant.id]))[0]!.n).toBe(0);
  const before = await rowsOf(source, tenant.id);

  const result = await moved(tenant.id);
  expect(result).toMatchObject({ tenant_id: tenant.id, address: THERE.SVC_BASE_URL });

  const after = await rowsOf(target, tenant.id);
  // what leads to the old address, and what the move itself adds
  for (const name of ['session', 'sign_in_link', 'sso_used_state', 'mail_message']) expect(after[name]).toEqual([]);
  const changed = ['tenant_move', 'tenant_parcel', 'former_key', 'chain_head', 'chain_checkpoint', 'audit_record'];
  const apart = [...changed, 'credential', 'event_outbox', 'delivery', 'delivery_lane', 'session', 'sign_in_link'];
  const rest = (all: Record<string, string[]>) =>
    Object.fromEntries(
      Object.entries(all).filter(
        ([name]) => ![...apart, 'mail_message', 'sso_used_state', 'policy_tests'].includes(name),
      ),
    );
  expect(rest(after)).toEqual(rest(before));
  for (const name of ['audit_record', 'event_outbox', 'delivery']) {
    expect(after[name]).toEqual(expect.arrayContaining(before[name]!));
  }
  expect(after.former_key).toHaveLength(source.core.keyring.all.length);

  // no credential reads anything at the source; only a valid one learns where the tenant is
  for (const who of [credential.adminKey, credential.admin, credential.agent, proxy]) {
    const { headers, body } = await source.call(503, 'GET /v1/policies', who);
    expect(headers.get('retry-after')).toBe('60');
    expect(body).toMatchObject({ code: 'UNAVAILABLE', detail: `the tenant has moved to ${THERE.SVC_BASE_URL}` });
  }
  for (const who of [
    revoked,
    { key: proxy.key!.slice(0, -1) + (proxy.key!.endsWith('x') ? 'y' : 'x') },
    { cookie: 'svc_session=none' },
  ]) {
    expect((await source.call(401, 'GET /v1/policies', who)).text).not.toContain('elsewhere');
  }
  await target.call(401, 'GET /v1/policies', credential.admin);
  await target.call(401, 'GET /v1/policies', revoked);

  // both chains verify as a whole, and go on
  for (const verdict of await verdicts(target, tenant.admin)) expect(verdict).toMatchObject({ verified: true });
  await target.call(200, 'POST /v1/evaluate', credential.agent, { action_type: 'tool_call', tool_name: 'read' });
  for (const chain of CHAINS) await target.core.checkpoints.take(tenant.id, chain);
  for (const verdict of await verdicts(target, tenant.admin)) expect(verdict).toMatchObject({ verified: true });
  const actions = await target.call<{ records: { action: string }[] }>(200, 'GET /v1/audit?limit=50', tenant.admin);
  expect(actions.body.records.map(({ action }) => action)).toEqual(
    expect.arrayContaining(['tenant.arrived', 'tenant.departed', 'tenant.created']),
  );

  // a hold that was open is decided here, a past decision is explained with the bundle that the source signed
  const person = await enter(tenant.id, world.user);
  const hold = await target.call<{ status: string; shown_hash: string }>(200, `GET /v1/escrow/${world.hold}`, person);
  expect(hold.body.status).toBe('held');
  const vote = { decision: 'approve', reason: 'as agreed', shown_hash: hold.body.shown_hash };
  const voted = await target.call<{ status: string }>(200, `POST /v1/escrow/${world.hold}/vote`, person, vote);
  expect(voted.body.status).toBe('released');
  await target.call(200, `GET /v1/events/${world.event}/rules`, person);
  const made = await target.call<{ package_id: string }>(201, 'POST /v1/forensics/export', person, {
    purpose: 'audit',
  });
  const evidence = await target.core.evidence.open(tenant.id, made.body.package_id);
  const packed = Buffer.concat(await Array.fromAsync(evidence.bytes()));
  expect(checkPackage(packed)).toMatchObject({ verified: true });
  // secrets are sealed again, with the master key of their new place
  const [subscription] = await sql<{ url_sealed: Buffer }>(
    target,
    'select url_sealed from subscription where tenant_id = $1',
    [tenant.id],
  );
  const place = sealPlace(tenant.id, world.subscription, 'url');
  expect(target.core.box.open(subscription!.url_sealed, place).toString()).toMatch(/^https:/);
  const next = await target.call(200, 'GET /v1/policies/bundle', proxy);
  const seq = ({ headers }: { headers: Headers }) => Number(headers.get('x-svc-bundle-seq'));
  expect(seq(next)).toBeGreaterThan(seq(bundle));

  const again = { id: tenant.id, name: 'Another', adminEmail: 'x@example.test' };
  await expect(source.core.tenants.create(again, OPERATOR)).rejects.toThrow('has moved');

  const path = `/v1/subscriptions/${world.subscription}/deliveries/${world.delivery}`;
  const delivery = await target.call<{ history: { headers: unknown }[] }>(200, `GET ${path}`, person);
  expect(delivery.body.history).toMatchObject([
    { headers: sent.headers, answer: { body: '\u2028"' } },
    { ...earlier, headers: { 'webhook-id': null, 'webhook-signature': null } },
  ]);

  // again: nothing to do; and no way back but another move
  expect(await moved(tenant.id)).toEqual(result);
  await expect(undone(tenant.id)).rejects.toThrow(`has moved to ${THERE.SVC_BASE_URL}`);
  await on(source, tenant.id, (side) => forgetMoved(side, tenant.id));
  expect(await tablesWith(source, tenant.id)).toEqual(['tenant_move', 'tenant_parcel']);
  await source.call(503, 'GET /v1/policies', proxy);

  // and home again, where the old keys still count as its own
  await expect(moved(tenant.id, [target, source])).resolves.toMatchObject({ address: 'http://control.test' });
  for (const verdict of await verdicts(source, tenant.admin)) expect(verdict).toMatchObject({ verified: true });
  await target.call(503, 'GET /v1/policies', proxy);
});

test('killed at any step and run again, under load: nothing acknowledged is lost, and nothing is there twice', async () => {
  const { tenant, proxy } = await used(source);
  const acknowledged: string[] = [];
  const ids = new Set<string>();
  let here = source;
  let stopped = false;
  let refused = 0;
  let made = 0;
  const work = async (worker: number) => {
    while (!stopped) {
      const batch = Array.from({ length: 5 }, () => `load-${worker}-${++made}`);
      for (const id of batch) ids.add(id);
      // as a proxy does: the same events again until they are acknowledged
      for (let done = false; !done; ) {
        const response = await fetch(`${here.url}/v1/events/ingest`, {
          method: 'POST',
          headers: { authorization: `Bearer ${proxy.key}`, 'content-type': 'application/json' },
          body: JSON.stringify({ events: batch.map((event_id) => event({ event_id })) }),
        });
        const text = await response.text();
        done = response.status === 202;
        if (done) acknowledged.push(...batch);
        else {
          expect(response.status, text).toBe(503);
          refused++;
          if (stopped && !text.includes('elsewhere')) return;
          if (text.includes('elsewhere')) here = target;
          await new Promise((resolve) => setTimeout(resolve, 20));
        }
      }
    }
  };
  const load = [1, 2, 3].map(work);
  for (const step of EVEN) await killedAt(tenant.id, step);
  await moved(tenant.id);
  const enough = acknowledged.length + 30;
  await expect.poll(() => acknowledged.length).toBeGreaterThan(enough);
  stopped = true;
  await Promise.all(load);
  expect(here).toBe(target);
  expect(refused).toBeGreaterThan(0);
  const rows = await sql<{ event_id: string; n: number }>(
    target,
    `select event_id, count(*)::int as n from forensic_record where tenant_id = $1 and event_id like 'load-%' group by 1`,
    [tenant.id],
  );
  const stored = new Set(rows.map(({ event_id }) => event_id));
  expect(acknowledged.filter((id) => !stored.has(id))).toEqual([]);
  expect(rows.filter(({ n }) => n !== 1)).toEqual([]);
  for (const verdict of await verdicts(target, tenant.admin)) expect(verdict).toMatchObject({ verified: true });
});

test('what was erased at the source while its copy was on the way is erased at the target, too', async () => {
  const { tenant } = await used(source);
  const inputsOf = async (server: TestServer) => (await rowsOf(server, tenant.id, ['decision_input'])).decision_input;
  const agent = await tenant.agent('agent-1', 'clerk');
  for (let i = 0; i < 3; i++) {
    await source.call(200, 'POST /v1/evaluate', agent, {
      action_type: 'tool_call',
      tool_name: 'read',
      arguments: { i },
    });
  }
  await killedAt(tenant.id, 'fencing');
  expect(await inputsOf(target)).toHaveLength(3);
  const [first, second] = await sql<{ event_id: string }>(
    source,
    'select event_id from decision_input where tenant_id = $1 order by event_id',
    [tenant.id],
  );
  await sql(source, 'delete from decision_input where tenant_id = $1 and event_id = $2', [tenant.id, first!.event_id]);
  await sql(source, 'update decision_input set input = null, salt_b = null where tenant_id = $1 and event_id = $2', [
    tenant.id,
    second!.event_id,
  ]);
  const inputs = await inputsOf(source);
  await moved(tenant.id);
  expect(await inputsOf(target)).toEqual(inputs);
  // and the source keeps none that nothing would erase there
  expect(await inputsOf(source)).toEqual([]);
  expect(inputs).toHaveLength(2);
  for (const verdict of await verdicts(target, tenant.admin)) expect(verdict).toMatchObject({ verified: true });
});

test('the command itself is killed with -9 again and again, and ends with the tenant in one place', async () => {
  const { tenant, proxy } = await used(source);
  const file = path.join(dir, 'there.env');
  writeFileSync(
    file,
    Object.entries({ ...THERE, DATABASE_URL: target.databaseUrl, SVC_PATIENCE: PATIENCE })
      .map(([name, value]) => `${name}=${value}\n`)
      .join(''),
  );
  const env = {
    DATABASE_URL: source.databaseUrl,
    SVC_BASE_URL: 'http://control.test',
    SVC_MASTER_KEY: Buffer.alloc(32, 7).toString('hex'),
    SVC_DATA_DIR: source.dataDir,
  };
  for (const step of SIEGE ? ['fencing', 'copying the rest', 'unpacking at the target'] : ['unpacking at the target']) {
    // it cannot flip before the signal reaches it
    const gate = await target.core.db.owner.connect();
    try {
      await gate.query('begin; lock table policy in exclusive mode');
      const child = start('server/cli.ts', env, 'tenant', 'move', tenant.id, '--to', file);
      child.stderr!.on('data', (chunk) => {
        if (String(chunk).includes(step)) child.kill('SIGKILL');
      });
      await ended(child);
    } finally {
      await gate.query('rollback');
      gate.release();
    }
    // the connection of one that was killed may still execute its last statement, with the lock of the move
    const unlocked = 'select pg_advisory_xact_lock(hashtextextended($1, 4))';
    for (const server of [source, target]) await sql(server, unlocked, [`move of ${tenant.id}`]);
    const places = await Promise.all(
      [source, target].map((server) => sql(server, 'select 1 from tenant where tenant_id = $1', [tenant.id])),
    );
    expect(places[0]!.length + places[1]!.length).toBeLessThanOrEqual(1);
  }
  const refused = await svcHere(1, env, 'backup', path.join(dir, 'between.svc'));
  expect(refused.stderr).toContain(`${tenant.id} is moving`);
  expect((await svcHere(1, env, 'doctor')).stdout).toMatch(new RegExp(`tenant moves +${tenant.id} is moving to http`));
  const ran = await svc(0, env, 'tenant', 'move', tenant.id, '--to', file, '--json');
  expect(ran.json()).toMatchObject({ tenant_id: tenant.id, address: THERE.SVC_BASE_URL });
  // the server had let this key in, and the command is another process
  await source.call(503, 'GET /v1/policies/bundle', proxy);
  await report(target, proxy, [`after-${tenant.id}`]);
  for (const verdict of await verdicts(target, tenant.admin)) expect(verdict).toMatchObject({ verified: true });
  expect(`${ran.stderr}${ran.stdout}`).not.toContain(target.databaseUrl);
  for (const words of [[], ['--undo'], ['--forget', '--undo'], ['--target-gone'], ['--to', file, '--forget']]) {
    await svcHere(2, env, 'tenant', 'move', tenant.id, ...words);
  }
});

test('a move is undone at any step before the flip, and the tenant goes on where it was', async () => {
  const { tenant, proxy } = await used(source);
  for (const step of ODD.filter((one) => one !== STEPS[0] && one !== 'flipped')) {
    await killedAt(tenant.id, step);
    const { restored } = await undone(tenant.id);
    expect(restored).toBe(STEPS.indexOf(step) > STEPS.indexOf('fencing'));
    await report(source, proxy, [`${step}-${tenant.id}`]);
    expect(await tablesWith(target, tenant.id)).toEqual(['tenant_move']);
  }
  await expect(undone(tenant.id)).rejects.toThrow('is not moving');
  for (const verdict of await verdicts(source, tenant.admin)) expect(verdict).toMatchObject({ verified: true });
  // of the flip and undoing only one succeeds
  const tell = async (step: string) => {
    if (step !== 'unpacking at the target') return;
    await sql(target, `update tenant_move set state = 'cancelled' where tenant_id = $1`, [tenant.id]);
  };
  await expect(between(tenant.id, (move) => moveTenant({ ...move, tell }))).rejects.toThrow('was undone');
  await expect(moved(tenant.id)).rejects.toThrow('--undo');
  await undone(tenant.id);
  await report(source, proxy, [`undone-${tenant.id}`]);
  // the target is gone for good; should it come back after all, a later move goes on with what it has
  await killedAt(tenant.id, 'unpacking at the target');
  await on(source, tenant.id, (side) => undoAlone(side, tenant.id));
  await report(source, proxy, [`alone-${tenant.id}`]);
  // after the flip there is nothing to undo, even before the source knows of it
  await killedAt(tenant.id, 'flipped');
  await expect(undone(tenant.id)).rejects.toThrow('has arrived');
  await moved(tenant.id);
  await report(target, proxy, [`arrived-${tenant.id}`]);
});

test('a copy whose move does not go on is deleted at the target, and the tenant goes on at the source', async () => {
  const { tenant, proxy } = await used(source);
  const env = {
    ...{ DATABASE_URL: target.databaseUrl, SVC_BASE_URL: THERE.SVC_BASE_URL, SVC_MASTER_KEY: THERE.SVC_MASTER_KEY },
    SVC_DATA_DIR: target.dataDir,
  };
  const abandon = (code: number, address: string) =>
    svcHere(code, env, 'tenant', 'move', tenant.id, '--abandon', address);
  expect((await abandon(1, 'http://control.test')).stderr).toContain('is not arriving here');
  await killedAt(tenant.id, 'unpacking at the target');
  // nobody takes the place of what is on its way
  const other = { id: tenant.id, name: 'Other', adminEmail: 'other@example.test' };
  await expect(target.core.tenants.create(other, OPERATOR)).rejects.toThrow('is arriving from another installation');
  expect((await svcHere(1, env, 'doctor')).stdout).toContain('--abandon http://control.test');
  expect((await abandon(1, 'http://other.test')).stderr).toContain('is arriving from http://control.test');
  expect(await tablesWith(target, tenant.id)).toEqual(expect.arrayContaining(['forensic_record', 'former_key']));
  // the flip and this decide in one row: it cannot happen any more, whenever the run at the source goes on
  const tell = async (step: string) => {
    if (step === 'unpacking at the target')
      await on(target, tenant.id, (side) => abandonCopy(side, tenant.id, 'http://control.test'));
  };
  const going = on(source, tenant.id, (one) =>
    withSide(
      target.core,
      { baseUrl: THERE.SVC_BASE_URL, dataDir: target.dataDir } as Config,
      target.databaseUrl,
      'another',
      (two) => moveTenant({ source: one, target: two, tenantId: tenant.id, tell }),
    ),
  );
  await expect(going).rejects.toThrow('the move was undone');
  await abandon(0, 'http://control.test');
  expect(await tablesWith(target, tenant.id)).toEqual(['tenant_move']);
  await expect(moved(tenant.id)).rejects.toThrow('--undo');
  expect(await undone(tenant.id)).toEqual({ restored: true });
  await report(source, proxy, [`back-${tenant.id}`]);
  // and it may still move; what has arrived is no copy
  await moved(tenant.id);
  expect((await abandon(1, 'http://control.test')).stderr).toContain('has arrived');
  for (const verdict of await verdicts(target, tenant.admin)) expect(verdict).toMatchObject({ verified: true });
});

test('undoing ends at the source also when another tenant has its id at the target by then, and nothing of that is deleted', async () => {
  const { tenant, proxy } = await used(source);
  await killedAt(tenant.id, 'unpacking at the target');
  // of a run that ended between the two steps of abandoning, the copy is still there: no tenant is made beside it
  await sql(target, `update tenant_move set state = 'cancelled' where tenant_id = $1`, [tenant.id]);
  const other = { id: tenant.id, name: 'Other', adminEmail: 'other@example.test' };
  await expect(target.core.tenants.create(other, OPERATOR)).rejects.toThrow('is arriving from another installation');
  await on(target, tenant.id, (side) => abandonCopy(side, tenant.id, 'http://control.test'));
  await target.core.tenants.create(other, OPERATOR);
  // jobs sign the head of its audit chain and tell of it: nothing changes by itself after that
  const settled = 'select from event_outbox where tenant_id = $1 and fanned_out_at is not null';
  await expect.poll(() => sql(target, settled, [tenant.id])).toHaveLength(1);
  const made = await rowsOf(target, tenant.id);
  expect(await undone(tenant.id)).toEqual({ restored: true });
  await report(source, proxy, [`back-${tenant.id}`]);
  expect(await rowsOf(target, tenant.id)).toEqual(made);
  await expect(undone(tenant.id)).rejects.toThrow('is not moving');
  for (const verdict of await verdicts(source, tenant.admin)) expect(verdict).toMatchObject({ verified: true });
});

test('of a tenant that has moved, a key counts as long as whoever made it, and is looked for by an index', async () => {
  const { tenant, proxy } = await used(source);
  const token = 'svc_token_of_a_job';
  await moved(tenant.id);
  const [{ person } = { person: '' }] = await sql<{ person: string }>(
    source,
    `select content->>'id' as person from tenant_parcel where tenant_id = $1 and source = 'member'`,
    [tenant.id],
  );
  await sql(
    source,
    `update tenant_parcel set content = content || jsonb_build_object('created_by', $2::text)
    where tenant_id = $1 and source = 'api_key'`,
    [tenant.id, person],
  );
  await sql(
    source,
    `insert into tenant_parcel (tenant_id, source, place, content) values
       ($1, 'workload_trust', 900, jsonb_build_object('id', 'trust', 'created_by', $2::text)),
       ($1, 'workload_token', 900, '{"id": "token", "trust_id": "trust"}'),
       ($1, 'credential', 900, jsonb_build_object('id', 'token', 'hash', $3::text))`,
    [tenant.id, person, `\\x${secretHash(token).toString('hex')}`],
  );
  const told = () => source.core.db.transaction(tenant.id, (_em, notify) => notify('tenant'));
  const member = async (change: string) => {
    await sql(source, `update tenant_parcel set content = content || $2 where tenant_id = $1 and source = 'member'`, [
      tenant.id,
      change,
    ]);
  };
  const validity = () =>
    Promise.all(
      [proxy.key!, token].map((secret) => validUntil(source.core.db.owner, tenant.id, secretHash(secret), new Date())),
    );
  const valid = [Number.MAX_SAFE_INTEGER, Number.MAX_SAFE_INTEGER];
  expect(await validity()).toEqual(valid);
  for (const change of ['{"roles": ["viewer"]}', '{"roles": ["admin"], "removed_at": "2026-01-01T00:00:00Z"}']) {
    await member(change);
    expect(await validity()).toEqual([undefined, undefined]);
  }
  await member('{"removed_at": null}');
  expect(await validity()).toEqual(valid);
  // its clients may go on asking for long: the answer is kept, and changes with a notice as any other
  const { body } = await source.call(503, 'GET /v1/policies', proxy);
  expect(body).toMatchObject({ detail: `the tenant has moved to ${THERE.SVC_BASE_URL}` });
  const revoke = `update tenant_parcel set content = content || '{"revoked_at": "2026-01-01T00:00:00Z"}'
    where tenant_id = $1 and source = 'api_key'`;
  await sql(source, revoke, [tenant.id]);
  await source.call(503, 'GET /v1/policies', proxy);
  await told();
  await source.call(401, 'GET /v1/policies', proxy);
  // and what is made up costs no walk through all that was lifted out
  await sql(
    source,
    `insert into tenant_parcel (tenant_id, source, place, content)
     select $1, s, 1000 + n, jsonb_build_object('id', s || n, 'hash', '\\x' || md5(n::text))
     from unnest('{credential,api_key,agent_key,workload_token,session,member}'::text[]) s, generate_series(1, 3000) n`,
    [tenant.id],
  );
  await sql(source, 'analyze tenant_parcel');
  const rowsRead = await inTransaction(source.core.db.owner, async (client) => {
    await validUntil(client as never, tenant.id, secretHash(`${proxy.key}x`), new Date());
    const { rows } = await client.query<{ read: number }>(
      `select (coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::int as read
       from pg_stat_xact_user_tables where relname = 'tenant_parcel'`,
    );
    return rows[0]!.read;
  });
  expect(rowsRead).toBeLessThan(100);
});

test('nothing moves between installations whose tables are not the same', async () => {
  const { tenant, proxy } = await used(source);
  const file = path.join(dir, 'other-version.env');
  writeFileSync(
    file,
    Object.entries({ ...THERE, DATABASE_URL: target.databaseUrl, SVC_PATIENCE: PATIENCE })
      .map(([name, value]) => `${name}=${value}\n`)
      .join(''),
  );
  const env = {
    DATABASE_URL: source.databaseUrl,
    SVC_MASTER_KEY: Buffer.alloc(32, 7).toString('hex'),
    SVC_DATA_DIR: source.dataDir,
  };
  const refused = async (words: string) => {
    const { stderr } = await svcHere(1, env, 'tenant', 'move', tenant.id, '--to', file);
    expect(stderr).toContain(words);
  };
  for (const server of [source, target]) {
    await sql(server, `insert into ${MIGRATION_TABLE} (name) values ('9999-later')`);
    await refused('migrated by a newer program (9999-later)');
    await sql(server, `delete from ${MIGRATION_TABLE} where name = '9999-later'`);
    const [last] = await sql<{ id: number; name: string }>(
      server,
      `update ${MIGRATION_TABLE} set name = 'away-' || name where id = (select max(id) from ${MIGRATION_TABLE})
       returning id, substr(name, 6) as name`,
    );
    await refused(last!.name);
    await sql(server, `update ${MIGRATION_TABLE} set name = $1 where id = $2`, [last!.name, last!.id]);
  }
  expect(await tablesWith(target, tenant.id)).not.toContain('tenant_move');
  await report(source, proxy, [`still-here-${tenant.id}`]);
});

test('the summaries that searches read are made again at the target', async () => {
  const { tenant, proxy } = await used(source);
  for (let n = 0; n < 21; n++) {
    const ids = Array.from({ length: 100 }, (_, i) => `many-${tenant.id}-${n}-${i}`);
    await report(source, proxy, ids);
  }
  const summarized = async (server: TestServer) => {
    await server.core.blocks.run(new AbortController().signal);
    return (await sql(server, 'select block from forensic_block where tenant_id = $1', [tenant.id])).length;
  };
  expect(await summarized(source)).toBe(1);
  await moved(tenant.id);
  expect(await summarized(target)).toBe(1);
  for (const verdict of await verdicts(target, tenant.admin)) expect(verdict).toMatchObject({ verified: true });
  const found = await target.call<{ events: unknown[] }>(200, 'GET /v1/events?policy_id=none', tenant.admin);
  expect(found.body).toMatchObject({ events: [], has_more: false });
  await on(source, tenant.id, (side) => forgetMoved(side, tenant.id));
  expect(await summarized(source)).toBe(0);
});

test('a request that was let in before the fence and writes after it is asked to try again', async () => {
  const { tenant, proxy } = await used(source);
  const late = source.core.db.transaction(tenant.id, async (em) => {
    await em.execute(LONG_TRANSACTION);
    await moved(tenant.id);
    await em.execute(`insert into agent (tenant_id, id, updated_at, updated_by) values (?, 'late', now(), 'x')`, [
      tenant.id,
    ]);
  });
  expect(isDatabaseFault(await late.catch((error: unknown) => error))).toBe(true);
  const events = [{ event: event({ event_id: `late-${tenant.id}` }) as unknown as DecisionEvent }];
  await expect(source.core.actors.send(tenant.id, { events })).rejects.toMatchObject({ problem: 'UNAVAILABLE' });
  await report(target, proxy, [`late-${tenant.id}`]);
});

test('undone, the tenant has what was lifted out, whatever a late request left behind', async () => {
  const { tenant } = await used(source);
  const count = (units: number) =>
    sql(
      source,
      `insert into limit_counter (tenant_id, rule_id, kind, key, window_ends_at, units, shares)
       values ($1, 'guard#1', 'budget', 'k', now() + interval '1 day', $2, '{}')`,
      [tenant.id, units],
    );
  await count(70);
  await killedAt(tenant.id, 'copying the rest');
  // it refers to no tenant: the fence does not stop it
  await count(1);
  await undone(tenant.id);
  const rows = await sql(source, 'select units from limit_counter where tenant_id = $1', [tenant.id]);
  expect(rows).toEqual([{ units: '70' }]);
});

test('the heads of a tenant that arrived are known outside the database at once', async () => {
  const { tenant } = await used(source);
  await moved(tenant.id);
  const files = () =>
    Promise.all(
      CHAINS.map((chain) =>
        readFile(path.join(target.dataDir, 'checkpoints', `${tenant.id}.${chain}.txt`), 'utf8').catch(() => ''),
      ),
    );
  await expect.poll(files).toEqual(CHAINS.map(() => expect.stringContaining('elsewhere.test')));
  // also by a process that had not heard of it, as soon as it listens
  for (const chain of CHAINS) await rm(path.join(target.dataDir, 'checkpoints', `${tenant.id}.${chain}.txt`));
  await target.core.checkpoints.adopt('*');
  await target.core.checkpoints.flushed();
  expect(await files()).toEqual(CHAINS.map(() => expect.stringContaining('elsewhere.test')));
  // nobody has used it since: anyone who cuts its tail needs no key, and is noticed
  await sql(target, 'delete from chain_checkpoint where tenant_id = $1', [tenant.id]);
  await sql(target, 'delete from forensic_record where tenant_id = $1 and seq > 2', [tenant.id]);
  await sql(
    target,
    `update chain_head set seq = 2, hash = (select hash from forensic_record where tenant_id = $1 and seq = 2)
     where tenant_id = $1 and chain = 'forensics'`,
    [tenant.id],
  );
  await expect(target.core.checkpoints.inspect(tenant.id, 'forensics')).rejects.toThrow('closed');
  // at the source nothing is missed: what was remembered there has gone with the tenant
  const { closed } = source.core.checkpoints;
  await source.core.checkpoints.inspectAll();
  expect(source.core.checkpoints.closed).toBe(closed);
  expect(source.core.checkpoints.acknowledged.local(tenant.id, 'forensics')).toBeUndefined();
});

test('what cannot move is refused before anything changes', async () => {
  const { tenant, proxy } = await used(source);
  await expect(moved(tenant.id, [source, source])).rejects.toThrow('another run moves');
  await expect(moved('nobody')).rejects.toThrow('there is no tenant nobody');
  // the id is taken there
  await target.core.tenants.create({ id: tenant.id, name: 'Other', adminEmail: 'other@example.test' }, OPERATOR);
  await expect(moved(tenant.id)).rejects.toThrow('already has a tenant');
  expect(await tablesWith(target, tenant.id)).not.toContain('tenant_move');
  // a record was altered
  const altered = await used(source);
  await sql(
    source,
    `update forensic_record set line = replace(line, 'first-', 'other-') where tenant_id = $1 and seq = 2`,
    [altered.tenant.id],
  );
  await expect(moved(altered.tenant.id)).rejects.toThrow('does not verify');
  await report(source, altered.proxy, [`still-${altered.tenant.id}`]);
  await report(source, proxy, [`still-${tenant.id}`]);
});

test('a chain with an accepted loss moves with it: the source stated the loss, and the target believes it', async () => {
  const { tenant, proxy } = await used(source);
  await sql(source, 'delete from forensic_record where tenant_id = $1 and seq = 3', [tenant.id]);
  await expect(moved(tenant.id)).rejects.toThrow();
  await source.core.acceptLoss(tenant.id, 'forensics', 'a drill', { actor: OPERATOR });
  await expect
    .poll(async () => (await source.call(202, 'POST /v1/events/ingest', proxy, { events: [event()] })).status)
    .toBe(202);
  await moved(tenant.id);
  const [decisions] = await verdicts(target, tenant.admin);
  expect(decisions).toMatchObject({ verified: true });
  expect(decisions!.accepted_losses).toHaveLength(1);
  await report(target, proxy, [`after-loss-${tenant.id}`]);
  for (const chain of CHAINS) await target.core.checkpoints.take(tenant.id, chain);
  for (const verdict of await verdicts(target, tenant.admin)) expect(verdict).toMatchObject({ verified: true });
});

test('attack: with the private key of the source and the database of the target, nothing later can be stated', async () => {
  const { tenant, proxy } = await used(source);
  const { forensics_seq } = await moved(tenant.id);
  await report(target, proxy, [`later-${tenant.id}`]);
  const { current } = source.core.keyring;
  const [last] = await sql<{ seq: string; hash: Buffer }>(
    target,
    'select seq, hash from forensic_record where tenant_id = $1 order by seq desc limit 1',
    [tenant.id],
  );
  expect(Number(last!.seq)).toBe(forensics_seq + 1);
  // true or not, it is not the source's to say
  const origin = `control.test/${tenant.id}/forensics`;
  const head = { origin, seq: Number(last!.seq), hash: last!.hash.toString('hex') };
  const note = signHead(head, current.privateKey, current.publicKey);
  await sql(
    target,
    `insert into chain_checkpoint (tenant_id, chain, seq, kid, note, created_at)
     values ($1, 'forensics', $2, $3, $4, now())`,
    [tenant.id, head.seq, current.kid, note],
  );
  // a package goes out without it, and says that the chain is not intact
  const person = await enter(tenant.id, tenant.admin.userId);
  const exported = await target.call(201, 'POST /v1/forensics/export', person, { purpose: 'audit' });
  expect(exported.body).toMatchObject({ chain_intact: false });
  const [decisions] = await verdicts(target, tenant.admin);
  expect(decisions).toMatchObject({ verified: false });
  expect(decisions!.reason).toContain(`the key of the note counts up to record ${forensics_seq}`);
  await sql(target, 'delete from chain_checkpoint where tenant_id = $1 and note = $2', [tenant.id, note]);
  // a loss that was never accepted, at a place where the source may speak, would void all that the target has signed
  const place = { seq: 1, hash: (await hashAt(target, tenant.id, 1))! };
  const loss = { origin, kept: place, generation: 1000, agreed: 0, lost: place };
  const voided = signLoss(loss, current.privateKey, current.publicKey);
  await sql(
    target,
    `update forensic_record set event_id = 'loss_forensics_1000_x', decision = ${NO_DECISION}, line = $2
     where tenant_id = $1 and seq = 2`,
    [tenant.id, JSON.stringify({ note: voided, received_at: new Date().toISOString(), reason: 'none' })],
  );
  const [attacked] = await verdicts(target, tenant.admin);
  expect(attacked).toMatchObject({ verified: false, accepted_losses: [] });
  // and of another tenant it verifies nothing at all
  expect(target.core.keyring.ofChain('another', 'forensics')).toHaveLength(target.core.keyring.all.length);
});

test('attack: a row that says that a tenant has left, and that nobody here wrote, counts as none', async () => {
  const { tenant } = await used(source);
  await sql(
    source,
    `insert into tenant_move (tenant_id, direction, id, state, other, address, changed_at, sealed)
     values ($1, 'out', 'x', 'moved', 'x', 'https://evil.test', now(), '\\x00')`,
    [tenant.id],
  );
  // nobody is sent anywhere, nothing is done on its word, and the operator reads of it
  await source.call(200, 'GET /v1/policies', await tenant.key('admin'));
  await expect(moved(tenant.id)).rejects.toThrow('was not written by this installation');
  const env = { DATABASE_URL: source.databaseUrl, SVC_MASTER_KEY: Buffer.alloc(32, 7).toString('hex') };
  const doctor = await svcHere(1, { ...env, SVC_DATA_DIR: source.dataDir }, 'doctor');
  expect(doctor.stdout).toMatch(/FAIL +tenant moves/);
  // and a chain that is lost does not pass for one that has left
  await sql(source, 'delete from forensic_record where tenant_id = $1', [tenant.id]);
  await sql(source, 'delete from chain_checkpoint where tenant_id = $1', [tenant.id]);
  await sql(source, `delete from chain_head where tenant_id = $1 and chain = 'forensics'`, [tenant.id]);
  await expect(source.core.checkpoints.inspect(tenant.id, 'forensics')).rejects.toThrow('closed');
});

test('attack: a source whose database sends rows of another tenant gets none of them in', async () => {
  const victim = await target.tenant();
  const { tenant } = await used(source);
  const keysOf = async () => {
    const { api_key, credential } = await rowsOf(target, victim.id, ['api_key', 'credential']);
    return { api_key, credential };
  };
  const before = await keysOf();
  const tell = async (step: string) => {
    if (step !== 'unpacking at the target') return;
    // an administrator's key of its own, for somebody else's tenant
    await sql(
      source,
      `update tenant_parcel set content = content || jsonb_build_object('tenant_id', $2::text)
       where tenant_id = $1 and source in ('api_key', 'credential')`,
      [tenant.id, victim.id],
    );
  };
  const attack = between(tenant.id, (move) => moveTenant({ ...move, tell }));
  await expect(attack).rejects.toThrow('the source sent rows of another tenant');
  expect(await keysOf()).toEqual(before);
  expect(await sql(target, 'select 1 from tenant where tenant_id = $1', [tenant.id])).toEqual([]);
});
