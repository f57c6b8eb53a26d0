import Fastify from 'fastify';
import { openDatabase } from '../../db/index.ts';
import type { AppendEvent, Appender } from '../../server/chain/appender.ts';
import { openAppender } from '../../server/chain/writer.ts';
import { registerIngest } from '../../server/decisions/ingest.ts';
import { systemClock } from '../../server/lib/clock.ts';
import { createLog } from '../../server/lib/log.ts';
import { type BenchContext, type Figure, figure, load } from './lib.ts';

/** An appender for a new tenant, which is in the table of tenants and has no people. */
async function tenantWithAppender(url: string, name: string, poolSize: number) {
  const db = await openDatabase(url, { poolSize });
  const tenantId = `${name}_${Date.now().toString(36)}`;
  await db.owner.query(`insert into tenant values ($1, $1, '{}', now())`, [tenantId]);
  const appender = openAppender({ db, clock: systemClock, log: createLog('error'), fingerprint: () => 'sha256:' });
  return { db, tenantId, appender };
}

/** A tenant with a chain of `size` events, appended in batches of `batch`. Resolves with its id. */
export async function filledTenant(
  url: string,
  name: string,
  { size, batch, eventAt }: { size: number; batch: number; eventAt: (i: number, tenantId: string) => AppendEvent },
): Promise<string> {
  const { db, tenantId, appender } = await tenantWithAppender(url, name, 2);
  let next = 0;
  const fillers = Array.from({ length: 4 }, async () => {
    while (next < size) {
      const first = next;
      next += Math.min(batch, size - first);
      await appender.append(
        tenantId,
        Array.from({ length: next - first }, (_, n) => eventAt(first + n, tenantId)),
      );
    }
  });
  await Promise.all(fillers);
  await appender.stop();
  await db.owner.query('analyze forensic_record, decision_input');
  await db.close();
  return tenantId;
}

const ROUNDS = 5;
/** A p99 reflects one hundredth of the time: over a few seconds, a single hiccup of the disk. */
const INGEST = { connections: 8, eventsPerRequest: 20, seconds: 9, warmSeconds: 1 };

/**
 * Ingest (open loop, `rate` events/s) alone, and while the same process does other work repeatedly, round by round on one
 * machine: what the work costs concurrent requests. `work` does it once; it may end when the signal aborts, and calls `busy` as
 * it would in a server. Resolves with the figures, and with the seconds that it ran.
 */
export async function besideIngest(
  ctx: BenchContext,
  options: {
    rate: number;
    /** As in "beside a simulation". */
    what: string;
    /** How many times longer the slowest requests may take. */
    most: number;
    work: (signal: AbortSignal, busy: () => boolean) => Promise<unknown>;
  },
): Promise<{ figures: Figure[]; seconds: number }> {
  const { rate, what, most, work } = options;
  const print = ctx.print ?? console.log;
  const { db, tenantId, appender } = await tenantWithAppender(ctx.url, 'beside', 5);
  const app = Fastify();
  registerIngest(app, {
    authenticate: () => ({ tenantId, keyId: 'key_bench', stillValid: async () => true }),
    append: (...events: Parameters<Appender['append']>) => appender.append(...events),
    holders: async () => new Map(),
    remember: async () => {},
  });
  const url = await app.listen({ port: 0, host: '127.0.0.1' });
  const sent = { url, tenants: [{ authorization: 'Bearer bench', tenantId }], ...INGEST, rate };
  const ratios: number[] = [];
  const p99 = { alone: [] as number[], beside: [] as number[] };
  try {
    for (let round = 0; round < ROUNDS; round++) {
      const alone = await load(sent);
      const stop = new AbortController();
      const working = (async () => {
        while (!stop.signal.aborted) await work(stop.signal, () => appender.busy);
      })().catch((error: Error) => {
        if (error.name !== 'AbortError') throw error;
      });
      const both = await load(sent);
      stop.abort();
      await working;
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
  return {
    figures: [
      figure('ingest alone: p99', p99.alone, 'ms'),
      figure(`ingest beside a ${what}: p99`, p99.beside, 'ms'),
      figure(`p99 beside a ${what} / alone`, ratios, 'ratio', most, true),
    ],
    seconds: ROUNDS * (INGEST.seconds + INGEST.warmSeconds),
  };
}
