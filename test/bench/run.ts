import { execFileSync } from 'node:child_process';
import { chmodSync, mkdtempSync, rmSync } from 'node:fs';
import { cpus, tmpdir } from 'node:os';
import path from 'node:path';
import { parseArgs } from 'node:util';
import { startEmbedded } from '../../db/embedded.ts';
import { migrate } from '../../db/index.ts';
import type { BenchContext, Figure } from './lib.ts';

/**
 * The benchmarks (`npm run bench`, or `npm run bench -- ingest verify`): each measures the program beside what the machine
 * can do at all for the same job, in the same run. The ratios are what counts; absolute figures belong to the machine.
 */
const ALL = ['ingest', 'verify', 'evaluate', 'policies', 'bundle', 'proxy', 'mcp', 'deliver'] as const;

const { positionals, values } = parseArgs({
  allowPositionals: true,
  options: { json: { type: 'boolean', default: false }, help: { type: 'boolean', default: false } },
});
if (values.help || positionals.some((name) => !ALL.includes(name as (typeof ALL)[number]))) {
  console.log(`npm run bench -- [--json] [${ALL.join('] [')}]`);
  process.exit(values.help ? 0 : 2);
}

const dir = mkdtempSync(path.join(tmpdir(), 'svc-bench-'));
chmodSync(dir, 0o755);
const names = positionals.length > 0 ? positionals : ALL;
const databases = names.map((name) => `bench_${name}`);
const server = await startEmbedded({ dataDir: dir, databases, settings: { shared_buffers: '256MB' } });
const report: Record<string, Figure[]> = {};
try {
  for (const name of names) {
    const url = server.url(`bench_${name}`);
    await migrate(url);
    const { bench } = (await import(`./${name}.ts`)) as { bench: (ctx: BenchContext) => Promise<Figure[]> };
    const print = (line: string) => console.error(`  ${line}`);
    console.error(name);
    report[name] = await bench({ url, print });
  }
} finally {
  await server.stop();
  rmSync(dir, { recursive: true, force: true });
}

const git = (...args: string[]) => execFileSync('git', args, { encoding: 'utf8' }).trim();
const machine = {
  cpu: cpus()[0]?.model ?? 'unknown',
  cores: cpus().length,
  node: process.version,
  commit: git('rev-parse', '--short', 'HEAD') + (git('status', '--porcelain') ? ' with changes' : ''),
};
if (values.json) console.log(JSON.stringify({ machine, report }, null, 2));
else {
  console.log(`${machine.cores} × ${machine.cpu}, Node ${machine.node}, commit ${machine.commit}`);
  for (const [name, figures] of Object.entries(report)) {
    console.log(`\n${name}`);
    for (const { name: what, value, unit, target, pass } of figures) {
      const shown = value >= 1000 ? Math.round(value).toLocaleString('en') : value.toPrecision(3);
      const verdict = pass === undefined ? '' : `   ${pass ? 'ok' : 'MISSED'} (target ${target})`;
      console.log(`  ${what.padEnd(58)} ${shown.padStart(10)} ${unit}${verdict}`);
    }
  }
}
process.exitCode = Object.values(report)
  .flat()
  .some(({ pass }) => pass === false)
  ? 1
  : 0;
