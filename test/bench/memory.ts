import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { freePort } from '../helpers/ports.ts';
import { noRedis, TestRedis } from '../helpers/redis.ts';
import { type BenchContext, type Figure, figure, load, pick } from './lib.ts';
import { MASTER_KEY } from './program.ts';
import { proxyMemory, withProxies } from './proxy.ts';

/** The most megabytes that a process may hold. */
const IDLE = 150;
const LOADED = 300;
/**
 * After the start and after the last request: memory released within this time counts as released. A server releases it after
 * being quiet for 6 to 9 s; if it is also a worker, the jobs that follow an ingest keep it busy for about 10 s longer.
 */
const SETTLE_MS = { quick: 3_000, usual: 25_000 };

/**
 * Resident memory of the processes as they are run in practice (`npm run worker`, the packed proxy): before any request, and
 * after load at full speed, once they have been quiet for some seconds. First a proxy, then a server with all roles, then (not
 * with `--quick`) `web` and `worker` separately.
 */
export async function bench(ctx: BenchContext): Promise<Figure[]> {
  const dir = mkdtempSync(path.join(tmpdir(), 'svc-bench-memory-'));
  const common = { DATABASE_URL: ctx.url, SVC_MASTER_KEY: MASTER_KEY, SVC_BASE_URL: 'http://bench.test' };
  const limits = { SVC_RATE_INGEST: '1000000', SVC_RATE_KEY: '1000000' };
  const figures = await withProxies(ctx.url, (proxies) => proxyMemory(ctx, proxies));
  const measure = async (servers: readonly Server[], key: string) => {
    await settle(SETTLE_MS[pick(ctx, 'quick', 'usual')]);
    const idle = servers.map(({ megabytes }) => megabytes());
    const { errors, firstError } = await load({
      ...{ url: servers[0]!.url, tenants: [{ authorization: `Bearer ${key}` }] },
      ...{ connections: 16, eventsPerRequest: 100, seconds: pick(ctx, 2, 15) },
    });
    if (errors > 0) throw new Error(`${errors} errors, such as ${firstError}`);
    await settle(SETTLE_MS[pick(ctx, 'quick', 'usual')]);
    for (const [n, { role, megabytes }] of servers.entries()) {
      figures.push(
        figure(`${role}: idle`, idle[n]!, 'MB', IDLE, true),
        figure(`${role}: after ingest`, megabytes(), 'MB', LOADED, true),
      );
    }
  };
  const running: Server[] = [];
  const start = async (role: string, env: Record<string, string>) => {
    const server = await started(role, { ...common, ...limits, SVC_DATA_DIR: path.join(dir, role), ...env });
    running.push(server);
    return server;
  };
  const stop = async () => {
    for (const { child } of running.splice(0)) {
      child.kill();
      if (child.exitCode === null) await once(child, 'exit');
    }
  };
  try {
    // Node's compile cache for the program's files (NODE_COMPILE_CACHE) exists from the second start on
    await start('all roles', {});
    await stop();
    const all = await start('all roles', {});
    const made = ['tenant', 'create', '--name', 'Memory', '--admin-email', 'bench@example.test', '--json'];
    const env = { ...process.env, ...common, SVC_DATA_DIR: path.join(dir, 'operator') };
    const tenant = JSON.parse(execFileSync(process.execPath, ['server/cli.ts', ...made], { encoding: 'utf8', env }));
    const key = (tenant as { api_key: string }).api_key;
    await measure([all], key);
    await stop();
    if (noRedis) ctx.print?.(`${noRedis}: the roles apart are skipped`);
    else if (ctx.effort !== 'quick') {
      const redis = await TestRedis.start();
      try {
        const REDIS_URL = redis.url;
        const apart = async () => [
          await start('web', { SVC_ROLES: 'web', REDIS_URL }),
          await start('worker', { SVC_ROLES: 'worker', REDIS_URL }),
        ];
        await apart();
        await stop();
        await measure(await apart(), key);
        await stop();
      } finally {
        await redis.stop();
      }
    }
    return figures;
  } finally {
    await stop();
    rmSync(dir, { recursive: true, force: true });
  }
}

interface Server {
  role: string;
  url: string;
  child: ChildProcess;
  megabytes(): number;
}

/** A server started like `npm run worker`, with the roles given in `env`, once it is serving. */
async function started(role: string, env: Record<string, string>): Promise<Server> {
  const port = await freePort();
  const { scripts } = JSON.parse(readFileSync('package.json', 'utf8')) as { scripts: Record<'worker', string> };
  const child = spawn('sh', ['-c', scripts.worker.replace('SVC_ROLES=worker ', '')], {
    stdio: ['ignore', 'ignore', 'inherit'],
    env: {
      PATH: `${path.dirname(process.execPath)}:${process.env.PATH}`,
      LOG_LEVEL: 'error',
      PORT: String(port),
      ...env,
    },
  });
  const url = `http://127.0.0.1:${port}`;
  for (let tries = 0; !(await fetch(`${url}/healthz`).catch(() => undefined))?.ok; tries++) {
    if (tries === 600 || child.exitCode !== null) throw new Error(`${role} did not start`);
    await settle(100);
  }
  return { role, url, child, megabytes: () => residentMegabytes(child.pid!) };
}

/** The resident memory of a process, by its id. */
export function residentMegabytes(pid: number): number {
  return Number(execFileSync('ps', ['-o', 'rss=', '-p', String(pid)], { encoding: 'utf8' })) / 1024;
}

function settle(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
