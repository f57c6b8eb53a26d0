import { once } from 'node:events';
import { chmodSync, mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import type { TestProject } from 'vitest/node';
import type { EmbeddedPostgres } from '../../db/embedded.ts';

declare module 'vitest' {
  interface ProvidedContext {
    /** Where a test file requests what it needs from the run: see provisions.ts. */
    provisions: string;
  }
}

/**
 * What test files share is created by the first one that requests it, so that pure tests wait for nothing: one PostgreSQL for the
 * run with a migrated template database, which each test file clones, and the built dashboard.
 */
export default async function setup(project: TestProject) {
  let postgres: Promise<Server> | undefined;
  let dashboard: Promise<void> | undefined;
  let dir: string | undefined;
  const makers: Record<string, () => Promise<unknown>> = {
    async '/database'() {
      dir ??= mkdtempSync(path.join(tmpdir(), 'svc-test-'));
      postgres ??= startPostgres(dir);
      const server = await postgres;
      return { adminUrl: server.adminUrl('postgres'), databaseUrl: server.url('NAME') };
    },
    async '/dashboard'() {
      dashboard ??= import('../../web/build.ts').then(({ buildDashboard }) => buildDashboard());
      await dashboard;
      return {};
    },
  };
  // in watch mode, the dashboard's sources change
  project.onTestsRerun(() => {
    dashboard = undefined;
  });
  const server = createServer((request, response) => {
    makers[request.url!]!().then(
      (made) => response.end(JSON.stringify(made)),
      (error: Error) => response.writeHead(500).end(error.stack),
    );
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  project.provide('provisions', `http://127.0.0.1:${(server.address() as AddressInfo).port}`);
  return async () => {
    server.close();
    await (await postgres)?.stop();
    if (dir) rmSync(dir, { recursive: true, force: true });
  };
}

type Server = Pick<EmbeddedPostgres, 'url' | 'adminUrl'> & { stop(): Promise<void> };

async function startPostgres(dataDir: string): Promise<Server> {
  const [{ startEmbedded }, { migrate }, { default: pg }] = await Promise.all([
    import('../../db/embedded.ts'),
    import('../../db/index.ts'),
    import('pg'),
  ]);
  chmodSync(dataDir, 0o755);
  const settings = { max_connections: '600', shared_buffers: '64MB' };
  const { SVC_TEST_PG_BIN } = process.env;
  const server = SVC_TEST_PG_BIN
    ? await startOther(SVC_TEST_PG_BIN, settings)
    : await startEmbedded({ dataDir, databases: ['template_svc'], durable: false, settings });
  await migrate(server.url('template_svc'));
  const admin = new pg.Client(server.adminUrl('postgres'));
  await admin.connect();
  await admin.query('alter database template_svc is_template true allow_connections false');
  await admin.end();
  return server;
}

/** A PostgreSQL of a different version: see test/matrix.ts. */
async function startOther(bin: string, settings: Record<string, string>): Promise<Server> {
  const { Postgres15 } = await import('./postgres15.ts');
  const hasty = { fsync: 'off', full_page_writes: 'off', synchronous_commit: 'off' };
  const server = await Postgres15.start({ ...settings, ...hasty }, bin);
  await server.query('create database template_svc owner svc_owner', 'postgres');
  return {
    url: (database) => server.urlOf('svc_owner', database),
    adminUrl: (database) => server.urlOf('postgres', database),
    stop: () => server.stop(),
  };
}
