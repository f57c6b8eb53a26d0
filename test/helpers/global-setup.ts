import { chmodSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import pg from 'pg';
import type { TestProject } from 'vitest/node';
import { startEmbedded } from '../../db/embedded.ts';
import { migrate } from '../../db/index.ts';
import { buildDashboard } from '../../web/build.ts';

declare module 'vitest' {
  interface ProvidedContext {
    /** Address of the server's database `postgres` as superuser. */
    adminUrl: string;
    /** Address of a database, with the name left as NAME, as the owner of the program's tables. */
    databaseUrl: string;
  }
}

/** The built dashboard, one PostgreSQL for the run, and a migrated template database that each test file clones. */
export default async function setup(project: TestProject) {
  await buildDashboard();
  const dir = mkdtempSync(path.join(tmpdir(), 'svc-test-'));
  chmodSync(dir, 0o755);
  const server = await startEmbedded({
    dataDir: dir,
    databases: ['template_svc'],
    durable: false,
    settings: { max_connections: '200', shared_buffers: '64MB' },
  });
  await migrate(server.url('template_svc'));
  const admin = new pg.Client(server.adminUrl('postgres'));
  await admin.connect();
  await admin.query('alter database template_svc is_template true allow_connections false');
  await admin.end();
  project.provide('adminUrl', server.adminUrl('postgres'));
  project.provide('databaseUrl', server.url('NAME'));
  return async () => {
    await server.stop();
    rmSync(dir, { recursive: true, force: true });
  };
}
