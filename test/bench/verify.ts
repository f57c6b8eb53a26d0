import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { performance } from 'node:perf_hooks';
import { openDatabase } from '../../db/index.ts';
import { copyRows } from '../../server/chain/copy.ts';
import { chainHash } from '../../server/chain/record.ts';
import { verifyChain } from '../../server/chain/verification.ts';
import { DERIVED_COLUMNS, type DecisionEvent } from '../../server/domain/decision.ts';
import { besideIngest, filledTenant } from './beside.ts';
import { type BenchContext, type Figure, figure, median, pick, wireEvent } from './lib.ts';

const ROUNDS = 3;

type Mode = 'verify' | 'copy' | 'hash';
interface Run {
  recordsPerSecond: number;
  /** The peak memory of the process, in MB. */
  peakMb: number;
  /** How much of that the pass added. */
  addedMb: number;
}

/**
 * The verification of a stored chain, compared with its two parts: reading the rows (COPY OUT, discarded) and hashing lines in
 * memory. Each run has its own process, so that its peak memory is its own too.
 */
export async function bench(ctx: BenchContext): Promise<Figure[]> {
  const print = ctx.print ?? console.log;
  const figures: Figure[] = [];
  const tenants: string[] = [];
  const sizes = pick(ctx, [10_000, 100_000], [100_000, 1_000_000]);
  for (const size of sizes) tenants.push(await fill(ctx.url, size));
  const [small, large] = [tenants[0]!, tenants.at(-1)!];
  const runs: Record<Mode, Run[]> = { verify: [], copy: [], hash: [] };
  for (let round = 0; round < pick(ctx, 1, ROUNDS); round++) {
    for (const mode of ['copy', 'hash', 'verify'] as const) runs[mode].push(await run(mode, ctx.url, large));
    const line = Object.entries(runs).map(([mode, all]) => `${mode} ${all[round]!.recordsPerSecond.toFixed(0)}/s`);
    print(`round ${round + 1}: ${line.join(', ')}`);
  }
  const rate = (mode: Mode) => runs[mode].map((each) => each.recordsPerSecond);
  const [few, most] = sizes.map((size) => size.toLocaleString('en'));
  const ratios = runs.verify.map((each, i) => each.recordsPerSecond / runs.copy[i]!.recordsPerSecond);
  figures.push(figure('COPY OUT alone', rate('copy'), 'records/s'));
  figures.push(figure('hashing alone', rate('hash'), 'records/s'));
  figures.push(figure(`verify, ${most} records`, rate('verify'), 'records/s'));
  figures.push(figure('verify / COPY OUT', ratios, 'ratio', 0.8));
  const peaks = {
    small: (await run('verify', ctx.url, small)).peakMb,
    large: median(runs.verify.map((r) => r.peakMb)),
  };
  figures.push(figure(`peak memory, verify of ${few} records`, peaks.small, 'MB'));
  figures.push(figure(`peak memory, verify of ${most} records`, peaks.large, 'MB'));
  figures.push(figure(`memory of ${most} beyond that of ${few}`, peaks.large - peaks.small, 'MB', 20, true));
  const added = runs.verify.map((each) => each.addedMb);
  figures.push(figure('what the first verification adds to a process', added, 'MB'));
  if (ctx.effort !== 'quick') figures.push(...(await beside(ctx, large)));
  return figures;
}

/** What ingest pays for a concurrent verification of a chain of a million records. */
async function beside(ctx: BenchContext, verified: string): Promise<Figure[]> {
  let records = 0;
  const work = async (signal: AbortSignal, busy: () => boolean) => {
    let last = 0;
    const onProgress = ({ checked }: { checked: number }) => {
      records += checked - last;
      last = checked;
    };
    await verifyChain(ctx.url, verified, 'forensics', { keys: [], busy, signal, onProgress });
  };
  const { figures, seconds } = await besideIngest(ctx, { rate: 4000, what: 'verification', most: 1.5, work });
  return [...figures, figure('records verified beside', records / seconds, 'records/s')];
}

/** A tenant with a chain of `size` records. */
export const fill = (url: string, size: number) =>
  filledTenant(url, `verify_${size}`, {
    size,
    batch: 1000,
    eventAt: (i, tenantId) => ({
      event: { ...wireEvent(i, tenantId), event_id: `evt_${String(i).padStart(12, '0')}` } as unknown as DecisionEvent,
    }),
  });

export async function run(mode: Mode, url: string, tenantId: string): Promise<Run> {
  const args = [new URL(import.meta.url).pathname, mode, url, tenantId];
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'] });
  let out = '';
  child.stdout.on('data', (data) => {
    out += data;
  });
  const [code] = await once(child, 'close');
  if (code !== 0) throw new Error(`the run of ${mode} failed with ${code}`);
  return JSON.parse(out) as Run;
}

const PASSES: Record<Mode, (url: string, tenantId: string) => Promise<number>> = {
  async verify(url, tenantId) {
    began = performance.now();
    const result = await verifyChain(url, tenantId, 'forensics', { keys: [] });
    if (!result.verified) throw new Error(result.reason);
    return result.records_checked;
  },
  async copy(url, tenantId) {
    const db = await openDatabase(url, { poolSize: 2 });
    began = performance.now();
    const client = await db.connectOwner();
    await client.query('set enable_seqscan = off; set enable_bitmapscan = off; set enable_sort = off');
    let rows = 0;
    let before: number;
    let from = 0;
    do {
      before = rows;
      await copyRows(
        client,
        `copy (select seq, hash, line, event_id, received_at, ${DERIVED_COLUMNS.map(({ column }) => column).join(', ')} from forensic_record
         where tenant_id = '${tenantId}' and seq > ${from} and seq <= ${from + 100_000} order by seq)
         to stdout (format binary)`,
        (_, starts) => {
          rows += starts.length;
        },
      );
      from += 100_000;
    } while (rows > before);
    await client.end();
    await db.close();
    return rows;
  },
  async hash(url, tenantId) {
    const db = await openDatabase(url, { poolSize: 2 });
    const { rows } = await db.owner.query<{ line: string }>(
      'select line from forensic_record where tenant_id = $1 and seq <= 20000',
      [tenantId],
    );
    await db.close();
    const lines = rows.map((row) => Buffer.from(row.line));
    began = performance.now();
    let hash: Buffer = Buffer.alloc(32);
    const passes = 30;
    for (let i = 0; i < passes; i++) for (const line of lines) hash = chainHash(hash, line);
    return passes * lines.length;
  },
};
/** Set by each pass once it is connected. */
let began = 0;

if (import.meta.main) {
  const [mode, url, tenantId] = process.argv.slice(2) as [Mode, string, string];
  const before = process.memoryUsage.rss() / 1024 ** 2;
  const records = await PASSES[mode](url, tenantId);
  const seconds = (performance.now() - began) / 1000;
  const peakMb = process.resourceUsage().maxRSS / 1024;
  const run: Run = { recordsPerSecond: records / seconds, peakMb, addedMb: peakMb - before };
  console.log(JSON.stringify(run));
}
