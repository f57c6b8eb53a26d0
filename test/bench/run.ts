import { execFileSync } from 'node:child_process';
import { chmodSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { cpus, loadavg, tmpdir, totalmem } from 'node:os';
import path from 'node:path';
import { performance } from 'node:perf_hooks';
import { parseArgs } from 'node:util';
import type { EmbeddedPostgres } from '../../db/embedded.ts';
import type { BenchContext, Effort, Figure } from './lib.ts';
import { BENCHES, type BenchName, benchOf } from './list.ts';
import { help, type Machine, markdown, statusOf, table } from './report.ts';

/**
 * The benchmarks (`npm run bench`, or `npm run bench -- ingest verify`): each compares the program with the most that the machine
 * can do for the same job, in the same run. The ratios are what counts; absolute figures depend on the machine.
 *
 * Exits with 1 if a benchmark failed, or with `--strict` missed an aim; with 2 if asked for one that does not exist.
 */
const OPTIONS = {
  quick: { type: 'boolean', default: false },
  long: { type: 'boolean', default: false },
  json: { type: 'boolean', default: false },
  markdown: { type: 'boolean', default: false },
  strict: { type: 'boolean', default: false },
  help: { type: 'boolean', default: false },
} as const;

function wrong(message: string): never {
  console.error(`${message}\n\n${help()}`);
  process.exit(2);
}

function options() {
  try {
    return parseArgs({ allowPositionals: true, options: OPTIONS });
  } catch (error) {
    return wrong((error as Error).message);
  }
}

const { positionals, values } = options();
if (values.help) {
  console.log(help());
  process.exit(0);
}
const unknown = positionals.filter((name) => !benchOf(name));
if (unknown.length > 0) wrong(`unknown: ${unknown.join(', ')}`);
if (values.quick && values.long) wrong('--quick or --long, not both');
const effort: Effort = values.quick ? 'quick' : values.long ? 'long' : 'usual';
const names = (
  positionals.length > 0 ? positionals : Object.keys(BENCHES).filter((name) => !benchOf(name)!.named)
) as BenchName[];

const dir = mkdtempSync(path.join(tmpdir(), 'svc-bench-'));
chmodSync(dir, 0o755);
const load = loadavg()[0]!;
for (const [signal, status] of [
  ['SIGINT', 130],
  ['SIGTERM', 143],
] as const) {
  process.on(signal, () => {
    // servers, proxies and peers that were started would outlive this process
    const children = readFileSync(`/proc/self/task/${process.pid}/children`, 'utf8').trim();
    for (const pid of children === '' ? [] : children.split(' ')) process.kill(Number(pid), 'SIGTERM');
    process.exit(status);
  });
}
const report: Record<string, Figure[]> = {};
const failed: Record<string, string> = {};
let postgres = 'not used';
let server: EmbeddedPostgres | undefined;
try {
  const databases = names.filter((name) => !benchOf(name)!.pure).map((name) => `bench_${name}`);
  if (databases.length > 0) {
    const { startEmbedded } = await import('../../db/embedded.ts');
    server = await startEmbedded({ dataDir: dir, databases, settings: { shared_buffers: '256MB' } });
    postgres = String((await asAdmin('show server_version'))[0]!.server_version);
  }
  for (const name of names) await run(name);
} finally {
  await server?.stop();
  rmSync(dir, { recursive: true, force: true });
}

async function run(name: BenchName): Promise<void> {
  const began = performance.now();
  console.error(name);
  try {
    const url = benchOf(name)!.pure ? '' : server!.url(`bench_${name}`);
    if (url !== '') await (await import('../../db/index.ts')).migrate(url);
    const { bench } = (await import(benchOf(name)!.file ?? `./${name}.ts`)) as {
      bench: (ctx: BenchContext) => Promise<Figure[]>;
    };
    report[name] = await bench({
      ...{ url, effort },
      print: (line) => console.error(`  ${line}`),
      checkpoint: async () => void (await asAdmin('checkpoint')),
    });
  } catch (error) {
    // the others are measured all the same
    failed[name] = (error as Error).message;
    console.error(error);
  }
  console.error(`  took ${((performance.now() - began) / 1000).toFixed(0)} s`);
}

async function asAdmin(sql: string): Promise<Record<string, unknown>[]> {
  const { default: pg } = await import('pg');
  const client = new pg.Client(server!.adminUrl('postgres'));
  await client.connect();
  try {
    return (await client.query<Record<string, unknown>>(sql)).rows;
  } finally {
    await client.end();
  }
}

function said(command: string, ...args: string[]): string | undefined {
  try {
    return execFileSync(command, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] }).trim();
  } catch {
    return undefined;
  }
}

const machine: Machine = {
  cpu: cpus()[0]?.model.trim() ?? 'unknown',
  cores: cpus().length,
  memory_gb: Math.round(totalmem() / 2 ** 30),
  node: process.version,
  postgres,
  redis: /v=(\S+)/.exec(said('redis-server', '--version') ?? '')?.[1] ?? 'not installed',
  commit: said('git', 'rev-parse', '--short', 'HEAD') ?? 'unknown',
  dirty: said('git', 'status', '--porcelain') !== '',
  load,
  effort,
};
if (values.json) console.log(JSON.stringify({ machine, report, failed }, null, 2));
else console.log((values.markdown ? markdown : table)(machine, report, failed));
process.exitCode = statusOf(report, failed, values);
