import type pg from 'pg';
import { objectionTo } from '../../../db/applied.ts';
import { type Citus, citusOf } from '../../../db/citus.ts';
import { lackOf, type Standing, standingOf, standingOfNode } from '../../../db/replication.ts';
import { assertBeside } from '../../../db/session.ts';
import type { Config } from '../../config.ts';
import { readState } from '../installation.ts';
import { checkChains, checkKeys, checkKnown } from './chains.ts';
import { checkDomains } from './domains.ts';
import type { Report } from './report.ts';

/** The first PostgreSQL version that did not exist when this was written. */
const NEWER = 190_000;
/** Three pools of ten, and the writer, the listener and the claim. */
const CONNECTIONS = 33;
/** Those past a pooler: the last three, and verifications and simulations. */
const SESSIONS = 12;
/** To the Citus coordinator: two pools of ten, the one for searches, the listener and the claim; */
const COORDINATOR = 24;
/** and, for a process beside no node, a pool of ten, one of five and a writer per node. */
const EACH_NODE = 16;
/** Connections for commands and people. */
const SPARE = 10;
/** Transactions; PostgreSQL stops at two billion. */
const WRAPAROUND = 1_000_000_000;

/** The database: what it is, whether it can lose or leak anything, and what it contains. Changes nothing. */
export async function checkDatabase(client: pg.Client, config: Config, report: Report): Promise<void> {
  await client.query('set default_transaction_read_only = on');
  const began = Date.now();
  const { rows } = await client.query<{ name: string; setting: string }>(
    `select name, setting from pg_settings where name in ('server_version', 'server_version_num', 'fsync',
       'full_page_writes', 'synchronous_commit', 'server_encoding')
     union all select 'now', (extract(epoch from clock_timestamp()) * 1000)::bigint::text`,
  );
  const s = Object.fromEntries(rows.map((row) => [row.name, row.setting]));
  await checkEngine(client, config, report);
  const off = ['fsync', 'full_page_writes', 'synchronous_commit'].filter((name) => s[name] === 'off');
  if (off.length === 0) report('ok', 'durability', 'fsync, full_page_writes and synchronous_commit are on');
  else
    report('FAIL', 'durability', `${off.join(', ')} off`, 'turn them on: otherwise acknowledged records can be lost');
  if (s.server_encoding !== 'UTF8')
    report('FAIL', 'encoding', String(s.server_encoding), 'create the database with UTF8');
  await checkReplicas(client, config, report);
  await checkConnections(client, config, report);
  await checkStorage(client, report);
  const apart = Math.abs(Number(s.now) - (began + Date.now()) / 2);
  if (apart < 2000) report('ok', 'clocks', 'the database and this machine agree');
  else
    report(
      'warn',
      'clocks',
      `the database's clock is off by ${Math.round(apart / 1000)} s`,
      'synchronize both with the same time server',
    );

  const state = await readState(client);
  const objection = objectionTo(state);
  if (objection !== undefined) {
    const [what = '', ...remedy] = objection.split(': ');
    report('FAIL', 'migrations', what, remedy.join(': '));
    return;
  }
  if (state.pending.length > 0) {
    report('FAIL', 'migrations', `not run: ${state.pending.join(', ')}`, 'run "svc migrate" or start the server');
    if (state.done.length === 0) return;
  } else report('ok', 'migrations', `${state.done.at(-1)} is the newest`);
  await checkWalls(client, report);
  await checkDomains(client, report);
  const keys = await checkKeys(client, config, report);
  await checkChains(client, report);
  await checkKnown(client, config, keys, report);
}

/** PostgreSQL itself, in a version that this program was tested with. */
async function checkEngine(client: pg.Client, config: Config, report: Report): Promise<void> {
  const { rows } = await client.query<{ version: string; number: number; name: string; standby: boolean }>(
    `select version() as version, current_setting('server_version_num')::int as number,
       current_setting('server_version') as name, pg_is_in_recovery() as standby`,
  );
  const { version, number, name, standby } = rows[0]!;
  const detail = `${name} (${config.databaseUrl ? 'DATABASE_URL' : 'embedded'})`;
  // databases that speak the same protocol: some accept advisory locks or notices, and silently drop them
  const other = /CockroachDB|Yugabyte|-YB-|Redshift|Greenplum|Materialize|DSQL/i.exec(version);
  if (other) report('FAIL', 'PostgreSQL', `${version.slice(0, 80)} is not PostgreSQL`, 'use PostgreSQL 15 to 18');
  else if (number < 150_000) report('FAIL', 'PostgreSQL', detail, 'use 15 or later');
  else if (number >= NEWER) report('warn', 'PostgreSQL', detail, 'this program is tested on 15 to 18');
  else report('ok', 'PostgreSQL', detail);
  const citus = await citusOf(client);
  if (citus) await checkCitus(client, citus, report);
  if (config.databaseNodeUrl) await checkNode(client, config.databaseNodeUrl, report);
  if (standby) {
    const advice = 'name all hosts of the database in DATABASE_URL, or point it at the primary';
    report('FAIL', 'primary', 'this server is a standby and takes no writes', advice);
  }
}

/** For tenants spread over several servers. */
async function checkCitus(client: pg.Client, citus: Citus, report: Report): Promise<void> {
  const { version, nodes, spread } = citus;
  const cluster = `${version} with ${nodes} node${nodes === 1 ? '' : 's'}`;
  if (!spread) {
    report('FAIL', 'Citus', `${cluster}, and no tenants on them`, 'run "svc migrate"');
    return;
  }
  // unsafe: what a commit on a node does not survive; not answered: a node that is silent
  const { rows } = await client.query<{ node: string; unsafe: string | null; answered: boolean }>(
    `select n.nodename || ':' || n.nodeport as node, r.success as answered, r.result as unsafe
     from pg_dist_node n join lateral (select * from run_command_on_workers($1)) r
       on r.nodename = n.nodename and r.nodeport = n.nodeport where n.isactive order by 1`,
    [
      `select string_agg(name, ', ' order by name) from pg_settings
       where name in ('fsync', 'full_page_writes', 'synchronous_commit') and setting = 'off'`,
    ],
  );
  for (const { node, answered, unsafe } of rows) {
    if (!answered) report('FAIL', 'Citus', `${node} does not answer`, 'start it: its tenants get 503');
    else if (unsafe) report('FAIL', 'Citus', `${unsafe} off on ${node}`, 'turn them on: otherwise records can be lost');
  }
  if (rows.every(({ answered, unsafe }) => answered && !unsafe)) report('ok', 'Citus', cluster);
}

/** The Citus node beside this process. */
async function checkNode(client: pg.Client, url: string, report: Report): Promise<void> {
  try {
    await assertBeside(client, url);
    report('ok', 'Citus', 'DATABASE_NODE_URL leads to a node of this database');
  } catch (error) {
    report('FAIL', 'Citus', (error as Error).message, 'the server does not start without it');
  }
}

/** What a failover would lose. With Citus each server has standbys of its own. */
async function checkReplicas(client: pg.Client, config: Config, report: Report): Promise<void> {
  if (!config.databaseUrl) return;
  reportReplicas(await standingOf(client), config, report);
  const { rows } = (await citusOf(client))
    ? await client.query<{ node: number; at: string }>(
        `select groupid as node, nodename || ':' || nodeport as at from pg_dist_node
         where isactive and shouldhaveshards and noderole = 'primary' order by groupid`,
      )
    : { rows: [] };
  for (const { node, at } of rows) {
    try {
      reportReplicas(await standingOfNode(client, node), config, report, at);
    } catch (error) {
      // its silence was already reported; where a standby is required, an unconfirmed one counts as missing
      if (config.durability !== 'replicated') continue;
      const advice = `see why it does not answer; until then nothing of its tenants is acknowledged`;
      const detail = `SVC_DURABILITY=replicated: standbys unknown, on ${at}: ${(error as Error).message}`;
      report('FAIL', 'replicas', detail, advice);
    }
  }
}

/** `node`: set if the server is a Citus node. */
function reportReplicas(standing: Standing, config: Config, report: Report, node?: string): void {
  const { names, sees, streaming } = standing;
  const lacks = lackOf(standing);
  const say: Report = (level, check, detail, advice) =>
    report(level, check, node === undefined ? detail : `${detail}, on ${node}`, advice);
  const durability = `SVC_DURABILITY=${config.durability}`;
  if (lacks === undefined) {
    const advice = 'set SVC_DURABILITY=replicated, so that the server is not ready without it';
    if (config.durability === 'replicated') say('ok', 'replicas', `${durability}: a synchronous standby is there`);
    else say('warn', 'replicas', 'a synchronous standby is there, and the server does not demand it', advice);
  } else if (config.durability === 'replicated') {
    const advice = 'bring a standby back, or set synchronous_standby_names; until then nothing is acknowledged';
    say('FAIL', 'replicas', `${durability}: ${lacks}`, advice);
  } else if (streaming > 0) {
    const detail = `${streaming} standbys, none synchronous: a failover may lose acknowledged records`;
    say('warn', 'replicas', detail, 'set synchronous_standby_names, and SVC_DURABILITY=replicated');
  } else if (names.trim() !== '' && sees) {
    const advice = 'bring it back: writes wait for it and are answered 503';
    say('FAIL', 'replicas', `no standby of synchronous_standby_names (${names}) is there`, advice);
  } else if (node === undefined)
    say('ok', 'replicas', sees ? 'no standby' : `not shown to this login (pg_read_all_stats); ${durability}`);
}

/** Whether there is room for the processes' connections. */
async function checkConnections(client: pg.Client, config: Config, report: Report): Promise<void> {
  const nodes = config.databaseNodeUrl ? 0 : ((await citusOf(client))?.nodes ?? 0);
  const each = config.databaseNodeUrl || nodes > 0 ? COORDINATOR + nodes * EACH_NODE : CONNECTIONS;
  // one writer is already counted in SESSIONS
  const [most, past] = config.databaseSessionUrl ? [SESSIONS + Math.max(0, nodes - 1), ' past the pooler'] : [each, ''];
  const { rows } = await client.query<{ room: number; used: number }>(
    `select least(current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int,
         nullif(d.datconnlimit, -1), nullif(r.rolconnlimit, -1)) as room,
       (select count(*)::int from pg_stat_activity where datname is not null) as used
     from pg_database d, pg_roles r where d.datname = current_database() and r.rolname = current_user`,
  );
  const { room, used } = rows[0]!;
  const detail = `${used} of ${room} are in use; a process holds up to ${most}${past}`;
  if (room < most + SPARE) {
    report('FAIL', 'connections', detail, `set max_connections to at least ${most} per process, and some for you`);
  } else if (room - used < SPARE)
    report('warn', 'connections', detail, 'raise max_connections, or run fewer processes');
  else report('ok', 'connections', detail);
}

/** What fills or stops a database silently. */
async function checkStorage(client: pg.Client, report: Report): Promise<void> {
  const { rows } = await client.query<{ size: string; age: number; archive: string; failing: boolean }>(
    `select pg_size_pretty(pg_database_size(current_database())) as size,
       (select age(datfrozenxid) from pg_database where datname = current_database()) as age,
       current_setting('archive_mode') as archive,
       (select coalesce(last_failed_time > coalesce(last_archived_time, '-infinity'), false) from pg_stat_archiver)
         as failing`,
  );
  const { size, age, archive, failing } = rows[0]!;
  report('ok', 'database size', `${size}; archive_mode is ${archive}`);
  if (failing) {
    const advice = 'see the log of the database: WAL piles up, and a restore to a point in time misses what follows';
    report('FAIL', 'WAL archive', 'the last attempt to archive failed', advice);
  }
  if (age > WRAPAROUND) {
    const advice = 'find what holds vacuum back (old transactions, prepared ones, slots) before the database stops';
    report('FAIL', 'vacuum', `the oldest transaction is ${age} back`, advice);
  }
  const slots = await client.query<{ name: string; kept: string }>(
    `select slot_name as name, pg_size_pretty(kept) as kept from (
       select slot_name, active,
         case when pg_is_in_recovery() then 0 else pg_current_wal_lsn() - restart_lsn end as kept
       from pg_replication_slots) slots
     where not active and kept > 2::numeric ^ 30`,
  );
  for (const { name, kept } of slots.rows) {
    const advice = 'bring its standby back, or drop it with pg_drop_replication_slot: it fills the disk';
    report('warn', 'replication slot', `${name} is not in use and keeps ${kept} of WAL`, advice);
  }
}

/** Row level security, and the roles that it binds. */
async function checkWalls(client: pg.Client, report: Report): Promise<void> {
  const { rows } = await client.query<{ login: string; app: boolean | null; strong: boolean; bare: string[] | null }>(
    `select current_user as login,
       (select rolsuper or rolbypassrls from pg_roles where rolname = 'svc_app') as app,
       (select rolsuper or rolbypassrls from pg_roles where rolname = current_user) as strong,
       (select array_agg(c.relname::text) from pg_class c join pg_attribute a on a.attrelid = c.oid
        where c.relkind = 'r' and c.relnamespace = current_schema()::regnamespace and a.attname = 'tenant_id'
          and not c.relrowsecurity) as bare`,
  );
  const { login, app, strong, bare } = rows[0]!;
  if (app === null)
    report('FAIL', 'roles', 'the role svc_app does not exist', 'start the server with a login that may create roles');
  else if (app)
    report('FAIL', 'roles', 'svc_app bypasses row level security', 'alter role svc_app nosuperuser nobypassrls');
  else if (strong) {
    report(
      'warn',
      'roles',
      `the login ${login} bypasses row level security`,
      'use a login that owns the database and has no other privileges',
    );
  } else report('ok', 'roles', `${login} owns the tables; requests run as svc_app, which row level security binds`);
  if (bare)
    report('FAIL', 'tenant walls', `no row level security on ${bare.join(', ')}`, 'enable it as the migrations do');
  if (app !== false) return;
  await client.query('begin read only; set local role svc_app');
  const { rowCount } = await client.query('select 1 from tenant limit 1');
  await client.query('rollback');
  if (rowCount === 0) report('ok', 'tenant walls', 'svc_app sees no rows without a tenant');
  else report('FAIL', 'tenant walls', 'svc_app sees rows without a tenant', 'restore the policies of the migrations');
}
