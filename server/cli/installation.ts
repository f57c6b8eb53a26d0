import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import type pg from 'pg';
import { type Applied, objectionTo, readApplied } from '../../db/applied.ts';
import { citusOf } from '../../db/citus.ts';
import { startEmbedded } from '../../db/embedded.ts';
import { PrimaryClient } from '../../db/primary.ts';
import { connectSession } from '../../db/session.ts';
import type { Core } from '../app.ts';
import { type Config, parseMasterKey, readConfig } from '../config.ts';
import { createLog } from '../lib/log.ts';
import { setPatience } from '../lib/patience.ts';
import { CommandError } from './command.ts';

/** Cleanup to run if the command is interrupted. The code that adds an entry also removes it. */
export const cleanups = new Set<() => Promise<void>>();

/** The settings and the database that they point to. */
export interface Installation {
  readonly config: Config;
  readonly databaseUrl: string;
  /** The same past a pooler: for anything beyond a single transaction. */
  readonly sessionUrl: string;
}

/**
 * Runs `work` with the configured database. It connects to the embedded PostgreSQL of a running server, or starts one for
 * the duration. With `create`, a missing database is created.
 */
export async function withInstallation<T>(
  options: { create?: boolean },
  work: (installation: Installation) => Promise<T>,
): Promise<T> {
  const config = readConfig();
  setPatience(config.patience);
  // distinguishes this process from the server, see EmbeddedPostgres.leave
  process.env.PGAPPNAME = `svc-${process.pid}`;
  const { databaseUrl, databaseSessionUrl: sessionUrl = databaseUrl } = config;
  if (databaseUrl && sessionUrl) return work({ config, databaseUrl, sessionUrl });
  if (!options.create && !existsSync(path.join(config.dataDir, 'postgres', 'PG_VERSION'))) {
    throw new CommandError(
      `${config.dataDir} has no database: start the server once, or set SVC_DATA_DIR or DATABASE_URL`,
    );
  }
  const starting = startEmbedded({ dataDir: config.dataDir, databases: ['svc'] });
  // registered before awaiting: an interruption during startup must stop PostgreSQL too
  const leave = async () => (await starting).leave();
  cleanups.add(leave);
  try {
    const embedded = await starting;
    try {
      const url = embedded.url('svc');
      return await work({ config, databaseUrl: url, sessionUrl: url });
    } finally {
      await leave();
    }
  } finally {
    cleanups.delete(leave);
  }
}

/** Runs `work` with the application core, on a migrated database whose secrets the master key opens. */
export async function withCore<T>(
  options: { create?: boolean },
  work: (core: Core, config: Config, sessionUrl: string) => Promise<T>,
): Promise<T> {
  return withInstallation(options, (installation) => openCoreOf(installation, options, work));
}

/** The same for a known installation. */
export async function openCoreOf<T>(
  { config, databaseUrl, sessionUrl }: Installation,
  options: { create?: boolean },
  work: (core: Core, config: Config, sessionUrl: string) => Promise<T>,
): Promise<T> {
  const [{ openCore }, { migrate }] = await Promise.all([import('../app.ts'), import('../../db/index.ts')]);
  const state = await withClient(sessionUrl, {}, async (client) => {
    const { rows } = await client.query<{ standby: boolean }>('select pg_is_in_recovery() as standby');
    if (rows[0]!.standby) throw new CommandError('the database is a standby: this command needs the primary');
    return readState(client);
  });
  if (state.done.length === 0 && options.create) await migrate(sessionUrl);
  else assertCurrent(state);
  if (state.hasKeys) requireMasterKey(config);
  const log = createLog('error', { write: (line: string) => process.stderr.write(line) });
  const core = await openCore({ config, databaseUrl, log });
  try {
    return await work(core, config, sessionUrl);
  } finally {
    await core.stop();
  }
}

/** Throws NoSession if a pooler shares the connection. */
export async function withClient<T>(
  sessionUrl: string,
  options: pg.ClientConfig,
  work: (client: pg.Client) => Promise<T>,
): Promise<T> {
  const client = await connectSession(sessionUrl, { connectionTimeoutMillis: 10_000, ...options }, PrimaryClient);
  try {
    return await work(client);
  } finally {
    await client.end();
  }
}

export interface DatabaseState extends Applied {
  /** It contains secrets that only its master key opens. */
  readonly hasKeys: boolean;
}

export async function readState(client: pg.Client): Promise<DatabaseState> {
  const applied = await readApplied(client);
  const hasKeys = applied.done.length > 0 && (await client.query('select 1 from instance')).rowCount === 1;
  return { ...applied, hasKeys };
}

export function assertCurrent(state: DatabaseState): void {
  const { done, pending } = state;
  const objection = objectionTo(state);
  if (objection !== undefined) throw new CommandError(objection);
  if (pending.length === 0) return;
  const what = done.length === 0 ? 'the database is empty' : `the database lacks migrations (${pending.join(', ')})`;
  throw new CommandError(`${what}: start the server or run "svc migrate"`);
}

/** The master key from the settings or the data directory, if there is one. Never generates one. */
export function findMasterKey(config: Config): Buffer | undefined {
  if (config.masterKey) return config.masterKey;
  const file = masterKeyFile(config);
  return existsSync(file) ? parseMasterKey(readFileSync(file, 'utf8').trim(), file) : undefined;
}

export function requireMasterKey(config: Config): Buffer {
  const key = findMasterKey(config);
  if (key) return key;
  throw new CommandError(
    `no master key was found: set SVC_MASTER_KEY or SVC_MASTER_KEY_FILE, or put the key into ${masterKeyFile(config)}`,
  );
}

export function masterKeyFile(config: Config): string {
  return path.join(config.dataDir, 'master.key');
}

/** Refuses commands that need one snapshot of all tenants if tenants are spread over several servers. */
export async function assertOneServer(client: pg.Client): Promise<void> {
  if (!(await citusOf(client))?.spread) return;
  throw new CommandError(
    'tenants are on several servers: back each node up with the tools of PostgreSQL, to one point',
  );
}

/** The local address of the configured server. */
export function localAddress(config: Config): string {
  const host = { '0.0.0.0': '127.0.0.1', '::': '[::1]' }[config.host] ?? config.host;
  return `http://${host.includes(':') && !host.startsWith('[') ? `[${host}]` : host}:${config.port}`;
}
