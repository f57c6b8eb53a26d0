import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import pg from 'pg';
import { freePort } from '../helpers/ports.ts';
import { type BenchContext, type Figure, figure, pick, wireEvent } from './lib.ts';
import { residentMegabytes } from './memory.ts';
import { MASTER_KEY, withProgram } from './program.ts';

/** Tables whose rows each idle tenant gets from the pattern, ordered after the tables that they refer to. */
const TABLES = [
  ...['tenant', 'member', 'api_key', 'agent_key', 'credential', 'policy', 'policy_revision', 'policy_bundle'],
  ...['chain_head', 'audit_record', 'forensic_record', 'subscription', 'delivery_lane', 'event_outbox', 'delivery'],
  'proxy_instance',
];
/** The values that differ from the pattern. */
const OWN: Record<string, string> = {
  'credential.hash': `sha256(convert_to(encode(hash, 'hex') || n, 'UTF8'))`,
  // as if each had signed its heads, and been checked, at some time in the last month
  'chain_head.unsigned': 'false',
  'tenant.erase_at': `now() + random() * interval '30 days'`,
};
const CLOCK_TICKS = 100;
/** After the start, the newest chains are compared with what is known about them. */
const SETTLE_MS = 45_000;

/**
 * What unused tenants cost: one server with all roles, which has just started, compared with an installation with one tenant.
 * Each tenant has a person, keys, a policy in force, records, a destination, a delivery of last week and a proxy that is gone.
 */
export async function bench(ctx: BenchContext): Promise<Figure[]> {
  const many = pick(ctx, 10_000, 100_000, 1_000_000);
  const seconds = pick(ctx, 20, 60, 120);
  const pool = new pg.Pool({ connectionString: ctx.url, max: 2 });
  try {
    const pattern = await withProgram(ctx.url, async ({ url, tenantId, adminKey }) => {
      await makePattern(url, pool, tenantId, adminKey);
      return tenantId;
    });
    const alone = await measure(ctx, pool, seconds);
    const began = performance.now();
    await fill(pool, pattern, many);
    ctx.print?.(`${many.toLocaleString('en')} tenants in ${Math.round((performance.now() - began) / 1000)} s`);
    await pool.query('vacuum analyze');
    await ctx.checkpoint?.();
    const all = await measure(ctx, pool, seconds);
    return [
      figure('tenants', many, ''),
      figure('CPU of a core: server', all.server, '%'),
      figure('CPU of a core: PostgreSQL', all.postgres, '%'),
      figure(
        'CPU of a core, beside one tenant',
        all.server + all.postgres - alone.server - alone.postgres,
        '%',
        2,
        true,
      ),
      figure('transactions', all.transactions, '/s'),
      figure('transactions, beside one tenant', all.transactions - alone.transactions, '/s', 15, true),
      figure('memory of the server', all.megabytes, 'MB'),
      figure('memory, beside one tenant', all.megabytes - alone.megabytes, 'MB', 100, true),
    ];
  } finally {
    await pool.end();
  }
}

async function makePattern(url: string, pool: pg.Pool, tenantId: string, key: string): Promise<void> {
  const post = async (target: string, body: object) => {
    const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' };
    const response = await fetch(url + target, { method: 'POST', headers, body: JSON.stringify(body) });
    if (!response.ok) throw new Error(`${target}: ${response.status} ${await response.text()}`);
  };
  const dsl_source = '@id("r") permit(principal, action == Action::"tool_call", resource == Tool::"refund");';
  await post('/v1/policies', { id: 'p', dsl_source });
  await post('/v1/policies/p/approve', { version: 1 });
  const { rows } = await pool.query<{ id: string }>('select id from member where tenant_id = $1', [tenantId]);
  await post('/v1/agent-keys', { agent_id: 'bot', agent_role: 'support', owner_id: rows[0]!.id });
  const events = Array.from({ length: 3 }, (_, n) => ({ ...wireEvent(n, undefined), event_id: `evt_${n}` }));
  await post('/v1/events/ingest', { events });
  const at = `now() - interval '7 days'`;
  // subscribed to an event that does not happen: nothing that the pattern itself does is sent
  await pool.query(
    `insert into subscription (tenant_id, id, destination_type, url_sealed, event_types, active, queues_since,
       destination_config, created_by, owner_id, created_at, updated_at)
     values ($1, 'sub_idle', 'webhook', '\\x00', '{stop.applied}', true, ${at}, '{}', 'bench', 'bench', ${at}, ${at})`,
    [tenantId],
  );
  await pool.query(`insert into delivery_lane (tenant_id, id) values ($1, 'sub_idle')`, [tenantId]);
  await pool.query(
    `insert into event_outbox (tenant_id, id, event_type, payload, created_at, fanned_out_at)
     values ($1, 'evt_idle', 'svc.test', '{}', ${at}, ${at})`,
    [tenantId],
  );
  await pool.query(
    `insert into delivery (tenant_id, lane_id, event_id, event_type, status, machine_version, machine_context, attempts,
       created_at)
     values ($1, 'sub_idle', 'evt_idle', 'svc.test', 'delivered', 1, '{}', 1, ${at})`,
    [tenantId],
  );
  await pool.query(
    `insert into proxy_instance (tenant_id, id, key_id, info, first_seen_at, last_seen_at, offline_at)
     values ($1, 'proxy', 'key', '{}', ${at}, ${at}, ${at})`,
    [tenantId],
  );
}

/** Copies the rows of the pattern for each new tenant. */
async function fill(pool: pg.Pool, pattern: string, many: number): Promise<void> {
  const client = await pool.connect();
  try {
    await client.query(`set synchronous_commit = off`);
    for (const table of TABLES) {
      const { rows } = await client.query<{ name: string }>(
        `select column_name as name from information_schema.columns
         where table_schema = 'public' and table_name = $1 and is_generated = 'NEVER' order by ordinal_position`,
        [table],
      );
      const columns = rows.map(({ name }) => name);
      const values = columns.map((name) => (name === 'tenant_id' ? `'idle-' || n` : (OWN[`${table}.${name}`] ?? name)));
      // lists all columns by name, so that those of the pattern's row are copied
      await client.query(
        `insert into ${table} (${columns.join(', ')}) select ${values.join(', ')}
         from ${table} cross join generate_series(1, ${many}) n where tenant_id = ${pg.escapeLiteral(pattern)}`,
      );
    }
  } finally {
    client.release(true);
  }
}

/** Measures a server that runs for a while without any requests. */
async function measure(ctx: BenchContext, pool: pg.Pool, seconds: number) {
  const dir = mkdtempSync(path.join(tmpdir(), 'svc-bench-idle-'));
  const port = await freePort();
  // `npm run bench` passes the same Node options as `npm start`
  const child: ChildProcess = spawn(process.execPath, [...process.execArgv, 'server/main.ts'], {
    stdio: ['ignore', 'ignore', 'inherit'],
    env: {
      ...{ PATH: process.env.PATH, MALLOC_ARENA_MAX: '2', LOG_LEVEL: 'error', PORT: String(port) },
      ...{ DATABASE_URL: ctx.url, SVC_MASTER_KEY: MASTER_KEY, SVC_BASE_URL: 'http://bench.test', SVC_DATA_DIR: dir },
    },
  });
  try {
    for (let tries = 0; !(await fetch(`http://127.0.0.1:${port}/healthz`).catch(() => undefined))?.ok; tries++) {
      if (tries === 600 || child.exitCode !== null) throw new Error('the server did not start');
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
    await new Promise((resolve) => setTimeout(resolve, SETTLE_MS));
    const postmaster = await postmasterOf(pool);
    const now = async () => ({
      at: performance.now(),
      transactions: await transactionsOf(pool),
      server: cpuSeconds(child.pid!),
      postgres: familySeconds(postmaster),
    });
    const before = await now();
    await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
    const after = await now();
    const elapsed = (after.at - before.at) / 1000;
    return {
      server: (100 * (after.server - before.server)) / elapsed,
      postgres: (100 * (after.postgres - before.postgres)) / elapsed,
      transactions: (after.transactions - before.transactions) / elapsed,
      megabytes: residentMegabytes(child.pid!),
    };
  } finally {
    child.kill();
    if (child.exitCode === null) await once(child, 'exit');
    rmSync(dir, { recursive: true, force: true });
  }
}

async function transactionsOf(pool: pg.Pool): Promise<number> {
  const { rows } = await pool.query<{ n: string }>(
    'select xact_commit + xact_rollback as n from pg_stat_database where datname = current_database()',
  );
  return Number(rows[0]!.n);
}

async function postmasterOf(pool: pg.Pool): Promise<number> {
  const { rows } = await pool.query<{ pid: number }>('select pg_backend_pid() as pid');
  return Number(stat(rows[0]!.pid)[1]);
}

/** The fields after the name, which may contain anything: the state, the parent, …; see proc(5). */
function stat(pid: number): string[] {
  const text = readFileSync(`/proc/${pid}/stat`, 'utf8');
  return text.slice(text.lastIndexOf(')') + 2).split(' ');
}

const cpuSeconds = (pid: number) => (Number(stat(pid)[11]) + Number(stat(pid)[12])) / CLOCK_TICKS;

/** The CPU time of a process, its children, and the children of it that have ended. */
function familySeconds(parent: number): number {
  const fields = stat(parent);
  let sum = cpuSeconds(parent) + (Number(fields[13]) + Number(fields[14])) / CLOCK_TICKS;
  for (const name of readdirSync('/proc')) {
    try {
      if (/^\d+$/.test(name) && Number(stat(Number(name))[1]) === parent) sum += cpuSeconds(Number(name));
    } catch {
      // it has just ended
    }
  }
  return sum;
}
