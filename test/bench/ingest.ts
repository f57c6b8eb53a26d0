import { performance } from 'node:perf_hooks';
import Fastify from 'fastify';
import { type Database, openDatabase } from '../../db/index.ts';
import type { Appender } from '../../server/chain/appender.ts';
import { Checkpoints } from '../../server/chain/checkpoint.ts';
import { CopyRows, Pipeline } from '../../server/chain/copy.ts';
import { chainHash, decisionLine } from '../../server/chain/record.ts';
import { addRecord, COPY_RECORDS } from '../../server/chain/transaction.ts';
import { openAppender } from '../../server/chain/writer.ts';
import { registerIngest } from '../../server/decisions/ingest.ts';
import type { DecisionEvent } from '../../server/domain/decision.ts';
import { systemClock } from '../../server/lib/clock.ts';
import { keyThumbprint, newSigningKey } from '../../server/lib/crypto.ts';
import { createLog } from '../../server/lib/log.ts';
import {
  alternate,
  type BenchContext,
  type Figure,
  figure,
  type LoadOptions,
  load,
  pick,
  ratios,
  wireEvent,
} from './lib.ts';

/**
 * Ingest over HTTP compared with what PostgreSQL itself can take: raw COPY of prepared rows into the same table, with the same
 * indexes, 1,000 per transaction, two transactions in flight.
 */
export async function bench(ctx: BenchContext): Promise<Figure[]> {
  const { print } = ctx;
  const rounds = pick(ctx, 1, 3);
  const seconds = pick(ctx, 1.5, 4);
  const db = await openDatabase(ctx.url, { poolSize: 5 });
  const figures: Figure[] = [];
  try {
    const rows = pick(ctx, 50_000, 150_000);
    const many = { connections: 16, eventsPerRequest: 100, seconds };
    await hasRun(ctx, db);
    const beside = await alternate(
      pick(ctx, 1, 5),
      {
        'raw COPY': (round) => rawCopy(db, `raw_${round}`, rows),
        ingest: () => ingested(db, 1, many),
      },
      print,
    );
    figures.push(
      figure('raw COPY, 1,000 rows a transaction', beside['raw COPY'], 'rows/s'),
      figure('ingest, 16 connections, 100 events a request', beside.ingest, 'events/s'),
      figure('ingest / raw COPY', ratios(beside.ingest, beside['raw COPY']), 'ratio', 0.85),
    );

    // each round has a new server, which is warmed up before it is measured
    const open = { sustained: [] as number[], p50: [] as number[], p99: [] as number[] };
    for (let round = 0; round < rounds; round++) {
      await ctx.checkpoint?.();
      const result = await serving(db, 1, (url, tenants) =>
        load({
          ...{ url, tenants, connections: 16, eventsPerRequest: 100, rate: 20_000 },
          ...{ seconds, warmSeconds: pick(ctx, 1, 3) },
        }),
      );
      open.sustained.push(result.eventsPerSecond);
      open.p50.push(result.p50);
      open.p99.push(result.p99);
      print?.(`round ${round + 1}: open loop p50 ${result.p50.toFixed(1)} ms, p99 ${result.p99.toFixed(1)} ms`);
    }
    figures.push(
      figure('open loop at 20,000 events/s: sustained', open.sustained, 'events/s', 19_000),
      figure('open loop at 20,000 events/s: p50', open.p50, 'ms'),
      figure('open loop at 20,000 events/s: p99', open.p99, 'ms', 50, true),
    );

    await ctx.checkpoint?.();
    const single = { connections: 64, eventsPerRequest: 1, seconds };
    const writers = await alternate(
      pick(ctx, 1, 2, 3),
      { shared: () => ingested(db, 32, single), own: () => ingested(db, 32, single, true) },
      print,
    );
    figures.push(
      figure('32 tenants, single events, shared writer', writers.shared, 'events/s'),
      figure('32 tenants, single events, a writer for each', writers.own, 'events/s'),
      figure('shared writer / a writer for each', ratios(writers.shared, writers.own), 'ratio', 3),
    );
  } finally {
    await db.close();
  }
  return figures;
}

/** Has the database write its log into recycled segments, like a server that has run for a while. */
export async function hasRun(ctx: BenchContext, db: Database): Promise<void> {
  await rawCopy(db, 'first', pick(ctx, 100_000, 300_000));
  await ctx.checkpoint?.();
}

/** Events per second ingested from the requests of `count` new tenants, without a single error. */
export async function ingested(
  db: Database,
  count: number,
  sent: Pick<LoadOptions, 'connections' | 'eventsPerRequest' | 'seconds' | 'warmSeconds'>,
  ownWriters = false,
): Promise<number> {
  const result = await serving(db, count, (url, tenants) => load({ url, tenants, ...sent }), ownWriters);
  if (result.errors > 0) throw new Error(`ingest answered with errors: ${result.firstError}`);
  return result.eventsPerSecond;
}

let made = 0;
async function newTenant(db: Database): Promise<string> {
  // in order: each goes to the end of every index, whatever was measured before it
  const id = `bench_${String(++made).padStart(5, '0')}_${Date.now().toString(36)}`;
  await db.owner.query(`insert into tenant values ($1, $1, '{}', now())`, [id]);
  return id;
}

/** Serves ingest for `count` new tenants with one writer for all (or one for each) during `work`. */
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

/** Rows per second of COPY alone: everything else is done in advance. */
async function rawCopy(db: Database, name: string, total: number): Promise<number> {
  const tenantId = await newTenant(db);
  const groups: Buffer[] = [];
  let hash: Buffer = Buffer.alloc(32);
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
