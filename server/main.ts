import { mkdir, rm, writeFile } from 'node:fs/promises';
import { hostname } from 'node:os';
import path from 'node:path';
import { parseArgs } from 'node:util';
import { SchemaRefused } from '../db/applied.ts';
import { Occupied } from '../db/claim.ts';
import { startEmbedded } from '../db/embedded.ts';
import { Unreplicated } from '../db/replication.ts';
import { NoSession } from '../db/session.ts';
import { VERSION } from './api/meta.ts';
import type { Core } from './app.ts';
import { type Config, readConfig } from './config.ts';
import { AppError } from './errors.ts';
import { collectStart, collectWhenQuiet } from './lib/collect.ts';
import { listenFault } from './lib/listen.ts';
import { createLog, type Log } from './lib/log.ts';
import { setPatience } from './lib/patience.ts';
import { ConfigError } from './lib/settings.ts';
import { onStopSignals } from './lib/signals.ts';
import { createProgram } from './program.ts';
import { createTenant } from './provision.ts';

/** How long a graceful stop may take before the process ends anyway. */
const STOP_MS = 30_000;

try {
  await main();
} catch (error) {
  const plain = [ConfigError, NoSession, Occupied, SchemaRefused, Unreplicated].some((kind) => error instanceof kind);
  console.error(listenFault(error) ?? (plain ? (error as Error).message : error));
  process.exit(1);
}

function options(): { demo?: boolean } {
  try {
    return parseArgs({ options: { demo: { type: 'boolean' } } }).values;
  } catch (error) {
    throw new ConfigError(`${(error as Error).message}\nUsage: npm start [-- --demo]`);
  }
}

async function main(): Promise<void> {
  const { demo } = options();
  const config = readConfig();
  setPatience(config.patience);
  const log = createLog(config.logLevel);
  // What must be stopped before the process ends, the last started first. A signal may arrive during startup or while the first
  // tenant is being created: that is finished, and then stopped.
  const running: { stop(): Promise<void> }[] = [];
  let stopping = false;
  const stop = async (signal: NodeJS.Signals) => {
    stopping = true;
    log.info({ signal }, 'stopping: what was accepted is finished first');
    setTimeout(() => process.exit(1), STOP_MS).unref();
    try {
      await begun.catch(() => undefined);
      for (const part of running.reverse()) await part.stop();
      process.exit(0);
    } catch (err) {
      log.error({ err }, 'the stop failed');
      process.exit(1);
    }
  };
  onStopSignals(
    (signal) => void stop(signal),
    (signal) => {
      log.warn({ signal }, 'stopping at once');
      process.exit(1);
    },
  );

  const begin = async () => {
    let { databaseUrl } = config;
    if (!databaseUrl) {
      const embedded = await startEmbedded({ dataDir: config.dataDir, databases: ['svc'] });
      running.push(embedded);
      databaseUrl = embedded.url('svc');
    }
    if (demo) {
      const { ensureDemo } = await import('./demo/fill.ts');
      await ensureDemo({ config, databaseUrl, log });
      if (stopping) return;
    }
    const program = await createProgram({ config, databaseUrl, log });
    running.push(program);
    if (stopping) return;
    collectStart();
    collectWhenQuiet();

    const { core } = program;
    // a worker's directory is not where anyone looks for it
    const first = core && config.roles.includes('web') && (await core.tenants.none());
    await program.listen();
    // once, so that a line of another process about this one can be told
    log.info(
      {
        host: hostname(),
        pid: process.pid,
        process: core?.actors.id,
        version: VERSION,
        roles: config.roles,
        base_url: config.baseUrl,
      },
      core ? 'the server runs' : 'the server is sealed',
    );
    if (first) await createFirst(core, config, log);
    if (core && demo) {
      const { demoLinks } = await import('./demo/links.ts');
      await showSecrets(await demoLinks(core, config.baseUrl), path.join(config.dataDir, 'demo-links.txt'), log);
    }
  };
  const begun = begin();
  await begun;
}

/** Creates and shows the tenant of a new installation, unless another process that started at the same time created it. */
async function createFirst(core: Core, config: Config, log: Log): Promise<void> {
  const { baseUrl } = config;
  const tenant = await createTenant(core, baseUrl, {
    id: 'default',
    name: 'Default',
    adminEmail: 'admin@localhost',
  }).catch((error: Error) => {
    if (error instanceof AppError && error.problem === 'CONFLICT') return undefined;
    throw error;
  });
  if (!tenant) return;
  const text = [
    '',
    '  A new control plane. This is shown once:',
    '',
    `    Dashboard      ${baseUrl}`,
    `    Sign-in link   ${tenant.sign_in_url}   (once, within 7 days)`,
    `    Admin API key  ${tenant.api_key}   (tenant ${tenant.tenant_id})`,
    '',
  ].join('\n');
  await showSecrets(text, path.join(config.dataDir, 'first-sign-in.txt'), log);
}

/** Prints secrets to a terminal. Any other output is kept and shipped as a log: there they go to a file, which the log names. */
async function showSecrets(text: string, file: string, log: Log): Promise<void> {
  if (process.stdout.isTTY) {
    console.log(text);
    return;
  }
  try {
    await mkdir(path.dirname(file), { recursive: true, mode: 0o700 });
    // an older file could be readable by others, or lead elsewhere
    await rm(file, { force: true });
    await writeFile(file, `${text}\n`, { flag: 'wx', mode: 0o600 });
    log.warn({ file }, 'links and keys that sign in are in this file: read it, then delete it');
  } catch (err) {
    log.error(
      { err, file },
      'links and keys that sign in could not be written: svc sign-in-link and svc key create make others',
    );
  }
}
