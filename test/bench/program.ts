import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import type { Core } from '../../server/app.ts';
import { readConfig } from '../../server/config.ts';
import type { Egress } from '../../server/lib/egress.ts';
import { createLog } from '../../server/lib/log.ts';
import { createProgram } from '../../server/program.ts';
import { createTenant } from '../../server/provision.ts';
import { freePort } from '../helpers/ports.ts';

/** The master key of every program that runs on a benchmark's database. */
export const MASTER_KEY = '07'.repeat(32);
/** The admin of the tenant created for a benchmark. */
export const BENCH_ADMIN = 'bench@example.test';

/** Runs the real program on a database, with limits that a benchmark does not reach, during `work`. */
export async function withProgram<T>(
  databaseUrl: string,
  work: (program: { url: string; core: Core; tenantId: string; adminKey: string }) => Promise<T>,
  parts: {
    egress?: Egress;
    /** At a URL that a browser can open. */
    browsed?: boolean;
    /** Prepares its data folder before it starts. */
    before?: (dataDir: string) => Promise<void>;
  } = {},
): Promise<T> {
  const { browsed = false, before, ...rest } = parts;
  const dir = mkdtempSync(path.join(tmpdir(), 'svc-bench-program-'));
  const most = '1000000';
  const port = browsed ? await freePort() : 0;
  const config = readConfig({
    PORT: String(port),
    SVC_DATA_DIR: dir,
    SVC_MASTER_KEY: MASTER_KEY,
    SVC_BASE_URL: browsed ? `http://127.0.0.1:${port}` : 'http://bench.test',
    SVC_RATE_EVALUATE: most,
    SVC_RATE_INGEST: most,
    SVC_RATE_KEY: most,
    SVC_RATE_SESSION: most,
  });
  let program: Awaited<ReturnType<typeof createProgram>> | undefined;
  try {
    await before?.(dir);
    program = await createProgram({ config, databaseUrl, log: createLog('error'), ...rest });
    const url = await program.listen();
    const core = program.core!;
    const made = await createTenant(core, url, { name: 'Bench', adminEmail: BENCH_ADMIN });
    return await work({ url, core, tenantId: made.tenant_id, adminKey: made.api_key });
  } finally {
    await program?.stop();
    rmSync(dir, { recursive: true, force: true });
  }
}
