import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { performance } from 'node:perf_hooks';
import Fastify from 'fastify';
import { openDatabase } from '../../db/index.ts';
import { openAppender } from '../../server/chain/appender.ts';
import { copyRows } from '../../server/chain/copy.ts';
import { chainHash } from '../../server/chain/record.ts';
import { verifyChain } from '../../server/chain/verification.ts';
import { registerIngest } from '../../server/decisions/ingest.ts';
import { DERIVED_COLUMNS, type DecisionEvent } from '../../server/domain/decision.ts';
import { systemClock } from '../../server/lib/clock.ts';
import { createLog } from '../../server/lib/log.ts';
import { type BenchContext, type Figure, figure, load, median, pick, wireEvent } from './lib.ts';

const ROUNDS = 3;

type Mode = 'verify' | 'copy' | 'hash';
interface Run {
  recordsPerSecond: number;
  /** The most memory that the process ever held, in MB. */
  peakMb: number;
  /** How much of that was added by the pass. */
  addedMb: number;
}

/**
 * The verification of a stored chain beside its two parts: reading the rows (COPY OUT, thrown away) and hashing lines
 * that are in memory. Each run is a process of its own, so that its peak memory is its own too.
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

const INGEST = { connections: 8, eventsPerRequest: 20, seconds: 6, warmSeconds: 2, rate: 4000 };

/**
 * Ingest (open loop, 4,000 events/s) alone, and while the same process verifies a chain of a million records over and
 * over, round by round on one machine: what a verification costs the requests beside it.
 */
async function beside(ctx: BenchContext, verified: string): Promise<Figure[]> {
  const print = ctx.print ?? console.log;
  const db = await openDatabase(ctx.url, { poolSize: 5 });
  const tenantId = `beside_${Date.now().toString(36)}`;
  await db.owner.query(`insert into tenant values ($1, $1, '{}', now())`, [tenantId]);
  const appender = openAppender({ db, clock: systemClock, log: createLog('error'), fingerprint: () => 'sha256:' });
  const app = Fastify();
  registerIngest(app, {
    authenticate: () => ({ tenantId, keyId: 'key_bench', stillValid: async () => true }),
    append: (to, events) => appender.append(to, events),
    holders: async () => new Map(),
    remember: async () => {},
  });
  const url = await app.listen({ port: 0, host: '127.0.0.1' });
  const tenants = [{ authorization: 'Bearer bench', tenantId }];
  const ratios: number[] = [];
  const p99 = { alone: [] as number[], beside: [] as number[] };
  let records = 0;
  try {
    for (let round = 0; round < ROUNDS; round++) {
      const alone = await load({ url, tenants, ...INGEST });
      const stop = new AbortController();
      const verifying = (async () => {
        while (!stop.signal.aborted) {
          let last = 0;
          const onProgress = ({ checked }: { checked: number }) => {
            records += checked - last;
            last = checked;
          };
          const options = { keys: [], busy: () => appender.busy, signal: stop.signal, onProgress };
          await verifyChain(ctx.url, verified, 'forensics', options);
        }
      })().catch((error: Error) => {
        if (error.name !== 'AbortError') throw error;
      });
      const both = await load({ url, tenants, ...INGEST });
      stop.abort();
      await verifying;
      if (alone.errors + both.errors > 0) throw new Error(`ingest failed: ${alone.firstError ?? both.firstError}`);
      p99.alone.push(alone.p99);
      p99.beside.push(both.p99);
      ratios.push(both.p99 / alone.p99);
      print(`round ${round + 1}: ingest p99 alone ${alone.p99.toFixed(1)} ms, beside ${both.p99.toFixed(1)} ms`);
    }
  } finally {
    await app.close();
    await appender.stop();
    await db.close();
  }
  return [
    figure('ingest alone: p99', p99.alone, 'ms'),
    figure('ingest beside a verification: p99', p99.beside, 'ms'),
    figure('records verified beside', records / (ROUNDS * (INGEST.seconds + INGEST.warmSeconds)), 'records/s'),
    figure('p99 beside a verification / alone', ratios, 'ratio', 1.5, true),
  ];
}

/** A tenant with a chain of so many records. */
export async function fill(url: string, size: number): Promise<string> {
  const db = await openDatabase(url, { poolSize: 2 });
  const tenantId = `verify_${size}_${Date.now().toString(36)}`;
  await db.owner.query(`insert into tenant values ($1, $1, '{}', now())`, [tenantId]);
  const appender = openAppender({ db, clock: systemClock, log: createLog('error'), fingerprint: () => 'sha256:' });
  let next = 0;
  const fillers = Array.from({ length: 4 }, async () => {
    while (next < size) {
      const events = Array.from({ length: 1000 }, () => {
        const event = { ...wireEvent(next, tenantId), event_id: `evt_${String(next++).padStart(12, '0')}` };
        return { event: event as unknown as DecisionEvent };
      });
      await appender.append(tenantId, events);
    }
  });
  await Promise.all(fillers);
  await appender.stop();
  await db.owner.query('analyze forensic_record');
  await db.close();
  return tenantId;
}

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
