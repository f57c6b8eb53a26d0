import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import pg from 'pg';
import { type Applied, objectionTo, readApplied } from '../../db/applied.ts';
import { startEmbedded } from '../../db/embedded.ts';
import type { Core } from '../app.ts';
import { type Config, parseMasterKey, readConfig } from '../config.ts';
import { createLog } from '../lib/log.ts';
import { CommandError } from './command.ts';

/** What must be tidied when the command is interrupted. Each is taken out again by the code that put it in. */
export const cleanups = new Set<() => Promise<void>>();

/** Where a command works: the settings, and the database that they name. */
export interface Installation {
  readonly config: Config;
  readonly databaseUrl: string;
}

/**
 * Runs `work` with the database of the settings. The embedded PostgreSQL of a running server is joined; where none
 * runs, it is started for this long. `create`: a data directory without a database gets one.
 */
export async function withInstallation<T>(
  options: { create?: boolean },
  work: (installation: Installation) => Promise<T>,
): Promise<T> {
  const config = readConfig();
  // how PostgreSQL tells this visitor from the server, see EmbeddedPostgres.leave
  process.env.PGAPPNAME = `svc-${process.pid}`;
  if (config.databaseUrl) return work({ config, databaseUrl: config.databaseUrl });
  if (!options.create && !existsSync(path.join(config.dataDir, 'postgres', 'PG_VERSION'))) {
    throw new CommandError(
      `there is no database in ${config.dataDir}: start the server once, or set SVC_DATA_DIR or DATABASE_URL`,
    );
  }
  const starting = startEmbedded({ dataDir: config.dataDir, databases: ['svc'] });
  // from the start on: an interruption while PostgreSQL comes up must stop it too
  const leave = async () => (await starting).leave();
  cleanups.add(leave);
  try {
    const embedded = await starting;
    try {
      return await work({ config, databaseUrl: embedded.url('svc') });
    } finally {
      await leave();
    }
  } finally {
    cleanups.delete(leave);
  }
}

/** Runs `work` with the joined features on a database that is migrated and whose keys the master key opens. */
export async function withCore<T>(
  options: { create?: boolean },
  work: (core: Core, config: Config) => Promise<T>,
): Promise<T> {
  return withInstallation(options, async ({ config, databaseUrl }) => {
    const [{ openCore }, { migrate }] = await Promise.all([import('../app.ts'), import('../../db/index.ts')]);
    const state = await withClient(databaseUrl, {}, readState);
    if (state.done.length === 0 && options.create) await migrate(databaseUrl);
    else assertCurrent(state);
    if (state.hasKeys) requireMasterKey(config);
    const log = createLog('error', { write: (line: string) => process.stderr.write(line) });
    const core = await openCore({ config, databaseUrl, log });
    try {
      return await work(core, config);
    } finally {
      await core.stop();
    }
  });
}

export async function withClient<T>(
  databaseUrl: string,
  options: pg.ClientConfig,
  work: (client: pg.Client) => Promise<T>,
): Promise<T> {
  const client = new pg.Client({ connectionString: databaseUrl, connectionTimeoutMillis: 10_000, ...options });
  // a connection that breaks while nothing runs is reported by the next statement
  client.on('error', () => undefined);
  await client.connect();
  try {
    return await work(client);
  } finally {
    await client.end();
  }
}

export interface DatabaseState extends Applied {
  /** Whether secrets are in it that only its master key opens. */
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

/** The master key of the settings or of the data directory; undefined when there is none. Never makes one. */
export function findMasterKey(config: Config): Buffer | undefined {
  if (config.masterKey) return config.masterKey;
  const file = masterKeyFile(config);
  return existsSync(file) ? parseMasterKey(readFileSync(file, 'utf8').trim(), file) : undefined;
}

export function requireMasterKey(config: Config): Buffer {
  const key = findMasterKey(config);
  if (key) return key;
  throw new CommandError(
    `there is no master key: set SVC_MASTER_KEY or SVC_MASTER_KEY_FILE, or put it into ${masterKeyFile(config)}`,
  );
}

export function masterKeyFile(config: Config): string {
  return path.join(config.dataDir, 'master.key');
}
