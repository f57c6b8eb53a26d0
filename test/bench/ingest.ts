import { performance } from 'node:perf_hooks';
import Fastify from 'fastify';
import { type Database, openDatabase } from '../../db/index.ts';
import { type Appender, openAppender } from '../../server/chain/appender.ts';
import { Checkpoints } from '../../server/chain/checkpoint.ts';
import { CopyRows, Pipeline } from '../../server/chain/copy.ts';
import { chainHash, decisionLine } from '../../server/chain/record.ts';
import { addRecord, COPY_RECORDS } from '../../server/chain/transaction.ts';
import { registerIngest } from '../../server/decisions/ingest.ts';
import type { DecisionEvent } from '../../server/domain/decision.ts';
import { systemClock } from '../../server/lib/clock.ts';
import { keyThumbprint, newSigningKey } from '../../server/lib/crypto.ts';
import { createLog } from '../../server/lib/log.ts';
import { type BenchContext, type Figure, figure, type LoadResult, load, median, wireEvent } from './lib.ts';

const ROUNDS = 3;
const SECONDS = 4;

/**
 * Ingest over HTTP beside what PostgreSQL itself takes: raw COPY of rows made beforehand into the same table, with the
 * same indexes, 1,000 a transaction, two transactions under way.
 */
export async function bench(ctx: BenchContext): Promise<Figure[]> {
  const print = ctx.print ?? console.log;
  const db = await openDatabase(ctx.url, { poolSize: 5 });
  const figures: Figure[] = [];
  try {
    // first, on tables that are not full yet; each round has a new server, which is warmed up before it is measured
    const rounds: LoadResult[] = [];
    for (let round = 0; round < ROUNDS; round++) {
      const open = await serving(db, 1, (url, tenants) =>
        load({ url, tenants, connections: 16, eventsPerRequest: 100, seconds: SECONDS, warmSeconds: 3, rate: 20_000 }),
      );
      rounds.push(open);
      print(`round ${round + 1}: open loop p50 ${open.p50.toFixed(1)} ms, p99 ${open.p99.toFixed(1)} ms`);
    }
    const middle = (of: (result: LoadResult) => number) => median(rounds.map(of));
    figures.push(
      figure(
        'open loop at 20,000 events/s: sustained',
        middle((r) => r.eventsPerSecond),
        'events/s',
        19_000,
      ),
      figure(
        'open loop at 20,000 events/s: p50',
        middle((r) => r.p50),
        'ms',
      ),
      figure(
        'open loop at 20,000 events/s: p99',
        middle((r) => r.p99),
        'ms',
        50,
        true,
      ),
    );

    const raw: number[] = [];
    const http: number[] = [];
    for (let round = 0; round < ROUNDS; round++) {
      raw.push(await rawCopy(db, `raw_${round}`));
      http.push(
        await serving(db, 1, async (url, tenants) => {
          const result = await load({ url, tenants, connections: 16, eventsPerRequest: 100, seconds: SECONDS });
          if (result.errors > 0) throw new Error(`ingest answered with errors: ${result.firstError}`);
          return result.eventsPerSecond;
        }),
      );
      print(`round ${round + 1}: raw COPY ${raw[round]!.toFixed(0)}/s, ingest ${http[round]!.toFixed(0)}/s`);
    }
    const ratios = raw.map((rows, i) => http[i]! / rows);
    figures.push(figure('raw COPY, 1,000 rows a transaction', median(raw), 'rows/s'));
    figures.push(figure('ingest, 16 connections, 100 events a request', median(http), 'events/s'));
    figures.push(figure('ingest / raw COPY', median(ratios), 'ratio', 0.7));

    await ctx.checkpoint?.();
    const single = { connections: 64, eventsPerRequest: 1, seconds: SECONDS };
    const shared: number[] = [];
    const own: number[] = [];
    for (let round = 0; round < 2; round++) {
      shared.push((await serving(db, 32, (url, tenants) => load({ url, tenants, ...single }))).eventsPerSecond);
      own.push((await serving(db, 32, (url, tenants) => load({ url, tenants, ...single }), true)).eventsPerSecond);
      print(`round ${round + 1}: shared writer ${shared[round]!.toFixed(0)}/s, own ${own[round]!.toFixed(0)}/s`);
    }
    figures.push(figure('32 tenants, single events, shared writer', median(shared), 'events/s'));
    figures.push(figure('32 tenants, single events, a writer for each', median(own), 'events/s'));
    figures.push(figure('shared writer / a writer for each', median(shared.map((s, i) => s / own[i]!)), 'ratio', 2.5));
  } finally {
    await db.close();
  }
  return figures;
}

let made = 0;
async function newTenant(db: Database): Promise<string> {
  const id = `bench_${++made}_${Date.now().toString(36)}`;
  await db.owner.query(`insert into tenant values ($1, $1, '{}', now())`, [id]);
  return id;
}

/** Serves ingest for `count` new tenants with one writer for all (or one for each) while `work` runs. */
async function serving<T>(
  db: Database,
  count: number,
  work: (url: string, tenants: { authorization: string; tenantId: string }[]) => Promise<T>,
  ownWriters = false,
): Promise<T> {
  const { privateKey, publicKey } = newSigningKey();
  const log = createLog('error');
  const signer = { kid: keyThumbprint(publicKey), privateKey, publicKey };
  const checkpoints = new Checkpoints({
    db,
    clock: systemClock,
    log,
    host: 'bench',
    signer: () => signer,
    keys: () => [],
  });
  const writers = new Map<string, Appender>();
  const appender = () => openAppender({ db, clock: systemClock, log, fingerprint: () => 'sha256:', checkpoints });
  const shared = appender();
  const of = (tenantId: string) => {
    if (!ownWriters) return shared;
    const writer = writers.get(tenantId) ?? appender();
    writers.set(tenantId, writer);
    return writer;
  };
  const app = Fastify();
  registerIngest(app, {
    authenticate: (request) => ({
      tenantId: request.headers.authorization!.slice('Bearer '.length),
      keyId: 'key_bench',
      stillValid: async () => true,
    }),
    holders: async () => new Map(),
    remember: async () => {},
    append: (tenantId, events) => of(tenantId).append(tenantId, events),
  });
  const url = await app.listen({ port: 0, host: '127.0.0.1' });
  const tenants: { authorization: string; tenantId: string }[] = [];
  for (let i = 0; i < count; i++) {
    const tenantId = await newTenant(db);
    tenants.push({ authorization: `Bearer ${tenantId}`, tenantId });
  }
  try {
    return await work(url, tenants);
  } finally {
    await app.close();
    for (const writer of [shared, ...writers.values()]) await writer.stop();
  }
}

/** Rows a second of COPY alone: everything else is done beforehand. */
async function rawCopy(db: Database, name: string): Promise<number> {
  const tenantId = `${name}_${Date.now().toString(36)}`;
  const groups: Buffer[] = [];
  let hash: Buffer = Buffer.alloc(32);
  const total = 150_000;
  for (let seq = 1; seq <= total; ) {
    const rows = new CopyRows(1024 * 1024);
    for (let i = 0; i < 1000; i++, seq++) {
      const event = {
        ...(wireEvent(seq, tenantId) as unknown as DecisionEvent),
        event_id: `evt_${name}${String(seq).padStart(10, '0')}`,
      };
      const at = Date.now();
      const line = decisionLine(tenantId, seq, new Date(at).toISOString(), event);
      hash = chainHash(hash, line);
      addRecord(rows, { tenantId, seq, at, hash, id: event.event_id, line }, event);
    }
    groups.push(rows.message());
  }
  const client = await db.connectOwner();
  await client.query('set synchronous_commit = on');
  const pipeline = new Pipeline(client, { timeoutMs: 60_000, onLost: () => undefined });
  const sql = `begin; ${COPY_RECORDS}; commit`;
  const began = performance.now();
  let before = Promise.resolve();
  for (const group of groups) {
    const sent = pipeline.run(sql, [group]);
    await before;
    before = sent;
  }
  await before;
  const seconds = (performance.now() - began) / 1000;
  await pipeline.end();
  return total / seconds;
}
