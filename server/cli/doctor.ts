import { existsSync, readdirSync, rmSync, statfsSync, statSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import type pg from 'pg';
import { objectionTo } from '../../db/applied.ts';
import { type Citus, citusOf } from '../../db/citus.ts';
import { departures, hasLeftWith } from '../../db/moves.ts';
import { PrimaryClient } from '../../db/primary.ts';
import { lacksStandby } from '../../db/replication.ts';
import { assertSame, isShared, NoSession } from '../../db/session.ts';
import { chainOfFile, highestInFile } from '../chain/checkpoint-file.ts';
import { isSuperseded, RECORDS, readLosses } from '../chain/loss.ts';
import type { ChainName } from '../chain/record.ts';
import type { KeysOf } from '../chain/standing.ts';
import { type Config, readConfig, serverSettingsHelp } from '../config.ts';
import { type FormerKeyRow, keysOfChain, openFormerKey, openSigningKey, type SigningKeyRow } from '../keys/keyring.ts';
import { SecretBox } from '../lib/crypto.ts';
import { type DatabaseHost, databaseHosts } from '../lib/database-hosts.ts';
import { createLog } from '../lib/log.ts';
import { Mail } from '../lib/mail.ts';
import { columns, command, JSON_FLAG, plain, suggestion } from './command.ts';
import {
  findMasterKey,
  type Installation,
  masterKeyFile,
  readState,
  withClient,
  withInstallation,
} from './installation.ts';

type Level = 'ok' | 'warn' | 'FAIL';

/** One line of the report. `advice` says what to do, and is present on every line that is not ok. */
interface Finding {
  check: string;
  level: Level;
  detail: string;
  advice?: string;
}

/** Adds a finding. */
type Report = (level: Level, check: string, detail: string, advice?: string) => void;

/** SVC_ environment variables that only the project's tests and benchmarks use. */
const NOT_SETTINGS = /^SVC_(TEST|BENCH|SIEGE|AIRLINE)(_|$)/;
/** If a chain's newest record is older than this and unsigned, no server is signing the chain. */
const UNSIGNED_MINUTES = 5;
/** The first version of PostgreSQL that was not there when this was written. */
const NEWER = 190_000;
/** Three pools of ten, and the writer, the listener and the claim. */
const CONNECTIONS = 33;
/** Those past a pooler: the last three, verifications and simulations. */
const SESSIONS = 10;
/** Connections for commands and people. */
const SPARE = 10;
/** Transactions; PostgreSQL stops at two thousand million. */
const WRAPAROUND = 1_000_000_000;

const doctor = command({
  name: 'doctor',
  summary: 'Check the settings, the data directory, the database and the keys',
  more: 'Each line is ok, warn or FAIL, with advice. Nothing is changed, and secrets are never shown. Exits with 1 on a FAIL.',
  flags: JSON_FLAG,
  async run({ flags, print }) {
    const findings: Finding[] = [];
    const report: Report = (level, check, detail, advice) =>
      findings.push({ check, level, detail, ...(advice !== undefined && { advice }) });
    const settings = serverSettingsHelp().map(({ name, fallback }) => ({
      name,
      value: process.env[name] ? shown(name, process.env[name]) : fallback,
      source: process.env[name] ? 'environment' : 'default',
    }));
    checkProgram(report);
    let config: Config | undefined;
    try {
      config = readConfig();
      report(
        'ok',
        'settings',
        `${settings.filter((s) => s.source !== 'default').length} of ${settings.length} are set`,
      );
    } catch (error) {
      report('FAIL', 'settings', (error as Error).message, 'fix these environment variables');
    }
    checkNames(report);
    if (config) {
      checkPairs(config, report);
      checkDataDir(config, report);
      await checkServer(config, report);
      if (config.redisUrl) await checkRedis(config.redisUrl, report);
      await checkMail(config, report);
      try {
        await withInstallation({}, async (installation) => {
          await checkPooler(installation, report);
          await withClient(installation.sessionUrl, {}, (client) => checkDatabase(client, config!, report));
        });
      } catch (error) {
        const { message, code } = error as NodeJS.ErrnoException;
        if (error instanceof NoSession) {
          const [what = '', remedy = ''] = message.split(': ');
          report('FAIL', 'pooler', what, remedy);
        } else {
          report(
            'FAIL',
            'database',
            message || code || 'no answer',
            'check that it is running and that the settings point to it',
          );
        }
      }
    }
    const ok = findings.every(({ level }) => level !== 'FAIL');
    const lines = findings.flatMap(({ level, check, detail, advice }) => [
      `${level.padEnd(5)} ${check.padEnd(16)} ${detail}`,
      ...(advice ? [`${' '.repeat(22)} -> ${advice}`] : []),
    ]);
    const table = columns(
      settings.map((s) => [s.name, s.value || '(not set)', s.source === 'default' ? 'default' : 'set']),
    );
    print(
      { ok, checks: findings, settings },
      flags.json ? [] : ['Settings', ...table.map((l) => `  ${l}`), '', ...lines],
    );
    return ok ? 0 : 1;
  },
});

export const doctorCommands = [doctor];

/** The value of a setting without its secrets. */
function shown(name: string, value: string): string {
  if (/(KEY|SECRET|PASSWORD|TOKEN)$/.test(name)) return '(set, not shown)';
  if (!name.endsWith('_URL') && !value.includes('://')) return plain(value);
  // of an address with several hosts, which no URL has, the hosts are shown by themselves
  const [first, ...others] = name.startsWith('DATABASE_') ? hostsIn(value) : [{ url: value, host: '', port: 0 }];
  if (!first || !URL.canParse(first.url)) return '(set, not an address)';
  const url = new URL(first.url);
  if (url.password) url.password = '***';
  for (const key of url.searchParams.keys()) if (/pass|secret|key/i.test(key)) url.searchParams.set(key, '***');
  return plain([url.href, ...others.map(({ host, port }) => `or at ${host}:${port}`)].join(' '));
}

/** The hosts of an address; none where it is wrong. */
function hostsIn(value: string): DatabaseHost[] {
  try {
    return databaseHosts(value);
  } catch {
    return [];
  }
}

function checkProgram(report: Report): void {
  const { node } = process.versions;
  if (Number(node.split('.')[0]) >= 24) report('ok', 'node', node);
  else report('warn', 'node', node, 'run the command through npm, which uses the bundled Node 24');
  const machine = `${process.platform}-${process.arch}`;
  if (/^linux-(x64|arm64)$/.test(machine)) report('ok', 'platform', machine);
  else report('warn', 'platform', machine, 'there is no embedded PostgreSQL for this platform: set DATABASE_URL');
}

function checkNames(report: Report): void {
  const known = serverSettingsHelp().map(({ name }) => name);
  for (const name of Object.keys(process.env)) {
    if (!name.startsWith('SVC_') || known.includes(name) || NOT_SETTINGS.test(name)) continue;
    report('warn', 'settings', `${name} is not a setting${suggestion(name, known)}`, 'remove it or correct its name');
  }
}

/** Settings that are valid individually but not in combination. */
function checkPairs(config: Config, report: Report): void {
  const warn = (detail: string, advice: string) => report('warn', 'settings', detail, advice);
  const base = new URL(config.baseUrl);
  const secure = base.protocol === 'https:';
  const local = /^(localhost|127\.|\[::1\])/.test(base.hostname);
  const open = !/^(localhost|127\.|::1$)/.test(config.host);
  if (open && !secure) {
    warn(
      `HOST=${config.host} accepts connections from other machines, and the public address is not https`,
      'keys and cookies are sent unencrypted: put a TLS proxy in front and set SVC_BASE_URL=https://...',
    );
  }
  if (secure && config.trustProxy.length === 0) {
    warn(
      'the public address is https and SVC_TRUST_PROXY is empty',
      'set it to the TLS proxy: otherwise rate limits count all clients as one address',
    );
  }
  if (!secure && !local) warn('SVC_BASE_URL is not https', 'cookies are not Secure: use an https address');
  if (local && base.port !== String(config.port)) {
    warn(
      `SVC_BASE_URL names port ${base.port || 80}, PORT is ${config.port}`,
      'printed links will not work unless a proxy forwards that port',
    );
  }
  if (config.databaseUrl && !config.masterKey) {
    warn(
      'the database is external, and the master key is generated in the data directory',
      'set SVC_MASTER_KEY(_FILE), or keep a copy of the key: the database is useless without it',
    );
  }
  if (config.masterKey && existsSync(masterKeyFile(config))) {
    warn(`SVC_MASTER_KEY(_FILE) is set, so ${masterKeyFile(config)} is not used`, 'remove the one that is not in use');
  }
  for (const [name, value = ''] of [
    ['DATABASE_URL', config.databaseUrl],
    ['DATABASE_SESSION_URL', config.databaseSessionUrl],
  ] as const) {
    const far = hostsIn(value)
      .filter(({ url }) => URL.canParse(url))
      .map(({ url }) => new URL(url))
      .filter(({ hostname }) => !/^(localhost|127\.|\[::1\])/.test(hostname));
    if (far.some(({ search }) => !/sslmode=(require|verify)/.test(search))) {
      warn(`${name} connects to another machine without TLS`, 'add sslmode=verify-full');
    }
  }
  if (config.logLevel === 'trace' || config.logLevel === 'silent') {
    warn(`LOG_LEVEL is ${config.logLevel}`, 'use info in production');
  }
}

function checkDataDir(config: Config, report: Report): void {
  const dir = config.dataDir;
  if (!existsSync(dir)) {
    report(
      'warn',
      'data directory',
      `${dir} does not exist`,
      'the server creates it when it first starts; is SVC_DATA_DIR right?',
    );
    return;
  }
  const probe = path.join(dir, `.doctor-${process.pid}`);
  try {
    writeFileSync(probe, '');
    rmSync(probe);
    report('ok', 'data directory', `${dir} is writable`);
  } catch (error) {
    report('FAIL', 'data directory', (error as Error).message, `give this user write access to ${dir}`);
  }
  for (const file of [masterKeyFile(config), path.join(dir, 'postgres.password')]) {
    if (!existsSync(file)) continue;
    const mode = statSync(file).mode & 0o777;
    if ((mode & 0o077) === 0) report('ok', 'secret file', `${file} is readable by its owner only`);
    else report('warn', 'secret file', `${file} has mode ${mode.toString(8)}`, `chmod 600 ${file}`);
  }
  const { bavail, bsize, blocks } = statfsSync(dir);
  const [free, share] = [(bavail * bsize) / 1024 ** 3, bavail / blocks];
  const space = `${free.toFixed(1)} GiB (${Math.round(share * 100)} %) free in ${dir}`;
  if (free < 0.1) report('FAIL', 'disk space', space, 'free some space: a full disk stops every decision');
  else if (free < 2 || share < 0.05) report('warn', 'disk space', space, 'free some space before it runs out');
  else report('ok', 'disk space', space);
}

/** The local address of the configured server. */
export function localAddress(config: Config): string {
  const host = { '0.0.0.0': '127.0.0.1', '::': '[::1]' }[config.host] ?? config.host;
  return `http://${host.includes(':') && !host.startsWith('[') ? `[${host}]` : host}:${config.port}`;
}

async function checkServer(config: Config, report: Report): Promise<void> {
  const address = localAddress(config);
  try {
    const answer = await fetch(`${address}/readyz`, { signal: AbortSignal.timeout(3000) });
    const text = (await answer.text()).trim().slice(0, 200);
    if (answer.ok) report('ok', 'server', `ready at ${address}`);
    else report('FAIL', 'server', `${address} is not ready: ${answer.status} ${text}`, 'see its log');
  } catch {
    // not a failure: doctor also runs before the first start
    report('ok', 'server', `nothing answers at ${address}`);
  }
}

async function checkMail(config: Config, report: Report): Promise<void> {
  const { smtpUrl, mailFrom: from, dataDir } = config;
  const directory = path.join(dataDir, 'mail');
  if (!smtpUrl) {
    const detail = `SMTP_URL is not set: sign-in links and invitations are written to files in ${directory}`;
    if (config.baseUrl.startsWith('https:')) report('warn', 'mail', detail, 'set SMTP_URL so that people receive them');
    else report('ok', 'mail', detail);
    return;
  }
  const mail = new Mail({ smtpUrl, from, directory, log: createLog('silent') });
  try {
    await mail.verify();
    report('ok', 'mail', new URL(smtpUrl).host);
  } catch (error) {
    report(
      'FAIL',
      'mail',
      (error as Error).message,
      'check that the mail server is running and that SMTP_URL is right',
    );
  } finally {
    mail.close();
  }
}

async function checkRedis(url: string, report: Report): Promise<void> {
  const { Redis } = await import('ioredis');
  const redis = new Redis(url, { lazyConnect: true, connectTimeout: 3000, commandTimeout: 3000, retryStrategy: null });
  let fault: Error | undefined;
  redis.on('error', (error) => {
    fault ??= error;
  });
  try {
    await redis.connect();
    const version = /redis_version:(\S+)/.exec(await redis.info('server'))?.[1] ?? 'unknown';
    if (Number.parseInt(version, 10) >= 6) report('ok', 'Redis', version);
    else report('FAIL', 'Redis', version, 'use 6 or later');
  } catch (error) {
    report(
      'FAIL',
      'Redis',
      (fault ?? (error as Error)).message,
      'check that it is running and that REDIS_URL is right',
    );
  } finally {
    redis.disconnect();
  }
}

/** A pooler in front of the database, and whether what needs a session has one past it. */
async function checkPooler({ config, databaseUrl, sessionUrl }: Installation, report: Report): Promise<void> {
  if (!config.databaseUrl) return;
  const open = async () => {
    const client = new PrimaryClient({ connectionString: databaseUrl, connectionTimeoutMillis: 10_000 });
    client.on('error', () => undefined);
    await client.connect();
    return client;
  };
  const client = await open();
  try {
    await assertSame(client, sessionUrl);
    if (!config.databaseSessionUrl) return;
    const shared = (await isShared(client, open)) ? 'shares connections' : 'leads to sessions as well';
    report('ok', 'pooler', `DATABASE_SESSION_URL leads to sessions of the same database; DATABASE_URL ${shared}`);
  } finally {
    await client.end();
  }
}

async function checkDatabase(client: pg.Client, config: Config, report: Report): Promise<void> {
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
  const keys = await checkKeys(client, config, report);
  await checkChains(client, report);
  await checkKnown(client, config, keys, report);
}

/** PostgreSQL itself, in a version that this program was tested on. */
async function checkEngine(client: pg.Client, config: Config, report: Report): Promise<void> {
  const { rows } = await client.query<{ version: string; number: number; name: string; standby: boolean }>(
    `select version() as version, current_setting('server_version_num')::int as number,
       current_setting('server_version') as name, pg_is_in_recovery() as standby`,
  );
  const { version, number, name, standby } = rows[0]!;
  const detail = `${name} (${config.databaseUrl ? 'DATABASE_URL' : 'embedded'})`;
  // databases that speak the same protocol: some pretend to have advisory locks or notices, and lose them in silence
  const other = /CockroachDB|Yugabyte|-YB-|Redshift|Greenplum|Materialize|DSQL/i.exec(version);
  if (other) report('FAIL', 'PostgreSQL', `${version.slice(0, 80)} is not PostgreSQL`, 'use PostgreSQL 15 to 18');
  else if (number < 150_000) report('FAIL', 'PostgreSQL', detail, 'use 15 or later');
  else if (number >= NEWER) report('warn', 'PostgreSQL', detail, 'this program is tested on 15 to 18');
  else report('ok', 'PostgreSQL', detail);
  const citus = await citusOf(client);
  if (citus) await checkCitus(client, citus, report);
  if (standby) {
    const advice = 'name all hosts of the database in DATABASE_URL, or point it at the primary';
    report('FAIL', 'primary', 'this server is a standby and takes no writes', advice);
  }
}

/** Where tenants are spread over several servers. */
async function checkCitus(client: pg.Client, citus: Citus, report: Report): Promise<void> {
  const { version, nodes, spread } = citus;
  const cluster = `${version} with ${nodes} node${nodes === 1 ? '' : 's'}`;
  if (!spread) {
    report('FAIL', 'Citus', `${cluster}, and no tenants on them`, 'run "svc migrate"');
    return;
  }
  // unsafe is what a commit on a node does not survive; unknown is a node that does not answer
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

/** What a failover would lose. */
async function checkReplicas(client: pg.Client, config: Config, report: Report): Promise<void> {
  if (!config.databaseUrl) return;
  const { rows } = await client.query<{ names: string; sees: boolean; all: number }>(
    `select current_setting('synchronous_standby_names') as names,
       pg_has_role(current_user, 'pg_read_all_stats', 'usage') as sees,
       (select count(*)::int from pg_stat_replication where state = 'streaming') as all`,
  );
  const { names, sees, all } = rows[0]!;
  const lacks = await lacksStandby(client);
  const durability = `SVC_DURABILITY=${config.durability}`;
  if (lacks === undefined) {
    const advice = 'set SVC_DURABILITY=replicated, so that the server is not ready without it';
    if (config.durability === 'replicated') report('ok', 'replicas', `${durability}: a synchronous standby is there`);
    else report('warn', 'replicas', 'a synchronous standby is there, and the server does not demand it', advice);
  } else if (config.durability === 'replicated') {
    const advice = 'bring a standby back, or set synchronous_standby_names; until then nothing is acknowledged';
    report('FAIL', 'replicas', `${durability}: ${lacks}`, advice);
  } else if (all > 0) {
    const detail = `${all} standbys, none synchronous: a failover may lose acknowledged records`;
    report('warn', 'replicas', detail, 'set synchronous_standby_names, and SVC_DURABILITY=replicated');
  } else if (names.trim() !== '' && sees) {
    const advice = 'bring it back: writes wait for it and are answered 503';
    report('FAIL', 'replicas', `no standby of synchronous_standby_names (${names}) is there`, advice);
  } else report('ok', 'replicas', sees ? 'no standby' : `not shown to this login (pg_read_all_stats); ${durability}`);
}

/** Room for the connections of the processes. */
async function checkConnections(client: pg.Client, config: Config, report: Report): Promise<void> {
  const [most, past] = config.databaseSessionUrl ? [SESSIONS, ' past the pooler'] : [CONNECTIONS, ''];
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

/** What fills or stops a database without a word. */
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

/** Resolves to the trusted public keys: those whose private key the master key opens, and those of where tenants came from. */
async function checkKeys(client: pg.Client, config: Config, report: Report): Promise<KeysOf | undefined> {
  const canary = await client.query<{ canary: Buffer }>('select canary from instance');
  const key = findMasterKey(config);
  if (!canary.rows[0]) {
    report('ok', 'master key', 'the database has no secrets yet');
    return () => [];
  }
  if (!key) {
    report('FAIL', 'master key', 'there is none', `set SVC_MASTER_KEY(_FILE), or put it into ${masterKeyFile(config)}`);
    return undefined;
  }
  const box = new SecretBox(key);
  const id = box.keyId.toString('hex');
  try {
    box.open(canary.rows[0].canary, 'instance/canary');
    report('ok', 'master key', `${id} opens this database`);
  } catch (error) {
    report(
      'FAIL',
      'master key',
      `${id}: ${(error as Error).message}`,
      'set the key that this database was created with',
    );
    return undefined;
  }
  const { rows } = await client.query<SigningKeyRow>('select * from signing_key order by created_at');
  const keys = rows.flatMap((row) => {
    try {
      return [openSigningKey(box, row)];
    } catch (error) {
      const advice = 'the table was changed: find out by whom, then restore the row from a backup or delete it';
      report('FAIL', 'signing key', (error as Error).message, advice);
      return [];
    }
  });
  const current = keys.filter(({ retiredAt }) => !retiredAt);
  if (current.length === 1) report('ok', 'signing key', `${current[0]!.kid} signs, ${keys.length - 1} retired`);
  else report('FAIL', 'signing key', `${current.length} keys are current`, 'run "svc keys rotate"');
  const { rows: former } = await client.query<FormerKeyRow>('select * from former_key');
  const formerKeys = former.flatMap((row) => {
    try {
      return [openFormerKey(box, row)];
    } catch (error) {
      report('FAIL', 'former key', (error as Error).message, 'the table was changed: find out by whom');
      return [];
    }
  });
  const own = keys.map(({ publicKey }) => publicKey);
  return (tenantId, chain) => keysOfChain(own, formerKeys, tenantId, chain);
}

async function checkChains(client: pg.Client, report: Report): Promise<void> {
  const tenants = await client.query<{ count: number }>('select count(*)::int as count from tenant');
  report('ok', 'tenants', String(tenants.rows[0]!.count));
  const { rows } = await client.query<{ chain: string; seq: string; signed: string | null; age: number | null }>(
    `select h.tenant_id || '/' || h.chain as chain, h.seq, c.seq as signed,
       extract(epoch from now() - coalesce(f.received_at, a.received_at))::float8 as age
     from chain_head h
     left join lateral (select seq from chain_checkpoint where tenant_id = h.tenant_id and chain = h.chain
       order by seq desc limit 1) c on true
     left join forensic_record f on h.chain = 'forensics' and f.tenant_id = h.tenant_id and f.seq = h.seq
     left join audit_record a on h.chain = 'audit' and a.tenant_id = h.tenant_id and a.seq = h.seq
     where h.seq > 0 and h.seq <> coalesce(c.seq, 0)`,
  );
  const some = (list: typeof rows) =>
    `${list
      .slice(0, 3)
      .map((row) => row.chain)
      .join(', ')}${list.length > 3 ? ` and ${list.length - 3} more` : ''}`;
  const cut = rows.filter((row) => Number(row.signed ?? 0) > Number(row.seq));
  const headless = rows.filter((row) => row.age === null);
  const late = rows.filter((row) => (row.age ?? 0) > UNSIGNED_MINUTES * 60);
  if (cut.length > 0)
    report(
      'FAIL',
      'chains',
      `shorter than the signed checkpoint: ${some(cut)}`,
      'the records were tampered with or come from an old backup: verify the chains',
    );
  if (headless.length > 0)
    report(
      'FAIL',
      'chains',
      `the newest record is missing: ${some(headless)}`,
      'the records were tampered with: verify the chains',
    );
  if (late.length > 0) {
    report(
      'warn',
      'chains',
      `records older than ${UNSIGNED_MINUTES} min are not signed: ${some(late)}`,
      'the server signs every minute while it runs: start it, or see its log',
    );
  }
  if (cut.length + headless.length + late.length === 0) report('ok', 'chains', 'checkpoints cover the newest records');
}

/** Finds chains with missing records, by the alarms that servers raised and by the local checkpoint files. */
async function checkKnown(
  client: pg.Client,
  config: Config,
  keysOf: KeysOf | undefined,
  report: Report,
): Promise<void> {
  const advice = 'find the cause and recover the records, or run "svc chain accept-loss"; see docs/chain.md';
  const alarms = await client.query<{ tenant_id: string; chain: ChainName; reason: string }>(
    'select tenant_id, chain, reason from chain_alarm order by tenant_id, chain',
  );
  for (const { tenant_id, chain, reason } of alarms.rows) {
    report('FAIL', 'closed chain', `${tenant_id}/${chain}: ${reason}`, advice);
  }
  const moves = await client.query<{ tenant_id: string; direction: string; address: string; since: string }>(
    `select tenant_id, direction, address, changed_at::text as since from tenant_move
     where state in ('fencing', 'fenced', 'copying') order by tenant_id`,
  );
  for (const { tenant_id, direction, address, since } of moves.rows) {
    const what = direction === 'out' ? `is moving to ${address} and answers 503` : `is arriving from ${address}`;
    report(
      'warn',
      'tenant moves',
      `${tenant_id} ${what} since ${since}`,
      'run "svc tenant move" again, or with --undo',
    );
  }
  if (!keysOf) {
    const advice = 'set the master key: without it the signatures cannot be verified';
    report('warn', 'checkpoint files', 'not compared with the chains', advice);
    return;
  }
  const directory = path.join(config.dataDir, 'checkpoints');
  const files = existsSync(directory)
    ? readdirSync(directory)
        .map(chainOfFile)
        .filter((of) => of !== undefined)
    : [];
  const key = findMasterKey(config);
  const left = key ? await departures(client, new SecretBox(key)) : new Map<string, undefined>();
  for (const [tenantId, departure] of left) {
    if (!departure) {
      const remedy = 'the table was changed: find out by whom, then restore the row from a backup or delete it';
      report(
        'FAIL',
        'tenant moves',
        `what says that ${tenantId} has left was not written by this installation`,
        remedy,
      );
    } else if (departure.state === 'moved') {
      const { rowCount } = await client.query('select 1 from forensic_record where tenant_id = $1 limit 1', [tenantId]);
      const what = `${tenantId} has moved to ${departure.address}`;
      const remedy = 'when you are sure, run "svc tenant move" with --forget: nothing is erased in it any more';
      if (rowCount) report('warn', 'tenant moves', `${what}; its records are still here`, remedy);
      else report('ok', 'tenant moves', what);
    }
  }
  let wrong = 0;
  for (const { tenantId, chain } of files) {
    const name = `${tenantId}/${chain}`;
    try {
      const keys = keysOf(tenantId, chain);
      const heads = await highestInFile(directory, tenantId, chain, keys);
      const losses = await readLosses(client, tenantId, chain, keys);
      for (const { seq, hash, generation } of heads.filter((head) => !isSuperseded(losses, head))) {
        const { rows } = await client.query<{ hash: Buffer }>(
          `select hash from ${RECORDS[chain].table} where tenant_id = $1 and seq = $2`,
          [tenantId, seq],
        );
        if (rows[0]?.hash.toString('hex') === hash || hasLeftWith(left.get(tenantId), chain, { seq, hash })) continue;
        wrong++;
        const which = generation ? ` (after loss ${generation})` : '';
        report('FAIL', 'checkpoint file', `${name} does not hold checkpoint ${seq} of its file${which}`, advice);
      }
    } catch (error) {
      wrong++;
      report('FAIL', 'checkpoint file', `${name}: ${(error as Error).message}`, advice);
    }
  }
  const { rows: disputed } = await client.query<{ tenant_id: string; rules: string[] }>(
    `select tenant_id, array_agg(distinct target_id) as rules from audit_record
     where action = 'policy.evaluation_disputed' group by tenant_id order by tenant_id`,
  );
  for (const { tenant_id, rules } of disputed) {
    report(
      'warn',
      'policy engine',
      `${tenant_id}: the compiled conditions of ${rules.join(', ')} differed from Cedar, which alone is asked about them`,
      'report it with the text of the statement: it is a fault of this program',
    );
  }
  if (alarms.rows.length + wrong === 0) {
    report('ok', 'known heads', `no chain is closed; ${files.length} checkpoint files match their chains`);
  }
}
