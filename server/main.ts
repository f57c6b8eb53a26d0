import { SchemaRefused } from '../db/applied.ts';
import { Occupied } from '../db/claim.ts';
import { startEmbedded } from '../db/embedded.ts';
import { createProgram } from './app.ts';
import { readConfig } from './config.ts';
import { AppError } from './errors.ts';
import { listenFault } from './lib/listen.ts';
import { createLog } from './lib/log.ts';
import { ConfigError } from './lib/settings.ts';
import { createTenant } from './provision.ts';

/** How long a graceful stop may take before the process ends anyway. */
const STOP_MS = 30_000;

try {
  await main();
} catch (error) {
  const plain = [ConfigError, Occupied, SchemaRefused].some((kind) => error instanceof kind);
  console.error(listenFault(error) ?? (plain ? (error as Error).message : error));
  process.exit(1);
}

async function main(): Promise<void> {
  const config = readConfig();
  const log = createLog(config.logLevel);
  // what must end before the process does, the last begun first; a signal may come while it still starts
  const running: { stop(): Promise<void> }[] = [];
  let stopping = false;
  const stop = async (signal: NodeJS.Signals) => {
    if (stopping) {
      log.warn({ signal }, 'stopping at once');
      process.exit(1);
    }
    stopping = true;
    log.info({ signal }, 'stopping: what was accepted is finished first');
    setTimeout(() => process.exit(1), STOP_MS).unref();
    try {
      await started.catch(() => undefined);
      for (const part of running.reverse()) await part.stop();
      process.exit(0);
    } catch (err) {
      log.error({ err }, 'the stop failed');
      process.exit(1);
    }
  };
  for (const signal of ['SIGTERM', 'SIGINT'] as const) process.on(signal, (name) => void stop(name));

  const start = async () => {
    let { databaseUrl } = config;
    if (!databaseUrl) {
      const embedded = await startEmbedded({ dataDir: config.dataDir, databases: ['svc'] });
      running.push(embedded);
      databaseUrl = embedded.url('svc');
    }
    const made = await createProgram({ config, databaseUrl, log });
    running.push(made);
    return made;
  };
  const started = start();
  const program = await started;
  if (stopping) return;

  const { core } = program;
  const first = core && (await core.tenants.list()).length === 0;
  await program.listen();
  log.info({ address: config.baseUrl }, `listening on ${config.baseUrl}`);
  if (first) {
    const tenant = await createTenant(core, config.baseUrl, {
      id: 'default',
      name: 'Default',
      adminEmail: 'admin@localhost',
    }).catch((error: Error) => {
      // another process started at the same time, and shows it
      if (error instanceof AppError && error.problem === 'CONFLICT') return undefined;
      throw error;
    });
    if (!tenant) return;
    // shown once, on purpose not as a log entry: logs are kept and shipped
    console.log(
      [
        '',
        '  A new control plane. This is shown once:',
        '',
        `    Dashboard      ${config.baseUrl}`,
        `    Sign-in link   ${tenant.sign_in_url}   (once, within 7 days)`,
        `    Admin API key  ${tenant.api_key}   (tenant ${tenant.tenant_id})`,
        '',
      ].join('\n'),
    );
  }
}
