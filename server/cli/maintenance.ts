import { readFileSync, writeFileSync } from 'node:fs';
import { CommandError, command, JSON_FLAG, UsageError } from './command.ts';
import { withInstallation } from './installation.ts';

const DOCUMENT = new URL('../api/openapi.json', import.meta.url);

const migrate = command({
  name: 'migrate',
  summary: 'Run pending database migrations',
  more: 'The server does the same when it starts. It is safe to run this on several machines at the same time.',
  flags: JSON_FLAG,
  async run({ print }) {
    const { ran, citus } = await withInstallation({ create: true }, async ({ sessionUrl }) => {
      const db = await import('../../db/index.ts');
      return db.migrate(sessionUrl);
    });
    const spread = citus?.tables ?? [];
    const engine = citus && `Citus ${citus.version}: tenants are spread over ${citus.nodes} nodes`;
    const done = [...ran.map((name) => `ran ${name}`), ...spread.map((table) => `spread ${table}`)];
    if (done.length === 0) done.push('nothing to do: the database is up to date');
    print({ ran, ...(citus && { citus: citus.version, nodes: citus.nodes, spread }) }, [
      ...(engine ? [engine] : []),
      ...done,
    ]);
    return 0;
  },
});

const openapi = command({
  name: 'openapi',
  summary: 'Print the OpenAPI document',
  flags: {
    write: { help: 'write it to server/api/openapi.json' },
    check: { help: 'exit with 1 if server/api/openapi.json differs' },
  },
  async run({ flags }) {
    if (flags.write && flags.check) throw new UsageError('specify either --write or --check');
    const { describeApi } = await import('../program.ts');
    const text = `${JSON.stringify(await describeApi(), null, 2)}\n`;
    if (flags.write) writeFileSync(DOCUMENT, text);
    else if (!flags.check) process.stdout.write(text);
    else if (readCommitted() !== text) {
      throw new CommandError('server/api/openapi.json is stale: run "npm run openapi"');
    }
    return 0;
  },
});

export const maintenanceCommands = [migrate, openapi];

function readCommitted(): string | undefined {
  try {
    return readFileSync(DOCUMENT, 'utf8');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw error;
  }
}
