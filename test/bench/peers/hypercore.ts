import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import Fastify from 'fastify';
import { openDatabase } from '../../../db/index.ts';
import { hasRun, ingested } from '../ingest.ts';
import { alternate, type BenchContext, type Figure, figure, type LoadOptions, load, pick, ratios } from '../lib.ts';
import { notInstalled, peer } from './install.ts';

const SHAPES = [
  { name: '16 connections, 100 events a request', tenants: 1, connections: 16, eventsPerRequest: 100, least: 0.85 },
  { name: '64 connections, single events', tenants: 1, connections: 64, eventsPerRequest: 1, least: 2 },
  { name: '32 tenants, 64 connections, single events', tenants: 32, connections: 64, eventsPerRequest: 1, least: 2 },
] as const;

/**
 * Events over HTTP compared with hypercore, an append-only log with a signed Merkle tree: the same requests from the same load
 * generator, and behind its own Fastify route, in the same process, one log per tenant in one Corestore. A request's events are
 * one append, as its documentation recommends for many logs and for many blocks.
 *
 * hypercore does not: flush what it acknowledged to disk (its storage writes without a sync: a machine that loses power loses the
 * end of the log; ours is flushed before the response); validate its input; find a record by agent, session or decision; notice a
 * duplicate event; isolate tenants; serve several processes. It signs each append, ours every thousand records.
 *
 * A route that reads the events and stores nothing shows how much more than hypercore anything behind HTTP could take here.
 */
export async function bench(ctx: BenchContext): Promise<Figure[]> {
  const Corestore = peer('corestore') as CorestoreClass | undefined;
  if (!Corestore) {
    ctx.print?.(notInstalled('hypercore'));
    return [];
  }
  const db = await openDatabase(ctx.url, { poolSize: 5 });
  const figures: Figure[] = [];
  try {
    await hasRun(ctx, db);
    for (const { name, tenants, connections, eventsPerRequest, least } of SHAPES.slice(
      0,
      pick(ctx, 2, SHAPES.length),
    )) {
      const sent = { connections, eventsPerRequest, seconds: pick(ctx, 1, 4), warmSeconds: pick(ctx, 0.5, 1) };
      const rates = await alternate(
        pick(ctx, 1, 3, 5),
        {
          ours: () => ingested(db, tenants, sent),
          hypercore: () => appended(Corestore, tenants, sent),
          nothing: () => served(namesOf(tenants), sent, async (_, events) => events.length),
        },
        (line) => ctx.print?.(`${name}, ${line}`),
      );
      figures.push(
        figure(`${name}: hypercore`, rates.hypercore, 'events/s'),
        figure(`${name}: ours`, rates.ours, 'events/s'),
        figure(`${name}: ours / hypercore`, ratios(rates.ours, rates.hypercore), 'times', least),
        figure(`${name}: a route that stores nothing / hypercore`, ratios(rates.nothing, rates.hypercore), 'times'),
      );
    }
  } finally {
    await db.close();
  }
  return figures;
}

interface Log {
  ready(): Promise<void>;
  append(blocks: Buffer | Buffer[]): Promise<unknown>;
}
type CorestoreClass = new (folder: string) => { get(options: { name: string }): Log; close(): Promise<void> };

type Sent = Pick<LoadOptions, 'connections' | 'eventsPerRequest' | 'seconds' | 'warmSeconds'>;

async function appended(Corestore: CorestoreClass, tenants: number, sent: Sent): Promise<number> {
  const dir = mkdtempSync(path.join(tmpdir(), 'svc-bench-hypercore-'));
  const store = new Corestore(dir);
  const logs = new Map<string, Log>();
  try {
    for (const name of namesOf(tenants)) {
      const log = store.get({ name });
      await log.ready();
      logs.set(name, log);
    }
    return await served([...logs.keys()], sent, async (name, events) => {
      const blocks = events.map((event) => Buffer.from(JSON.stringify(event)));
      await logs.get(name)!.append(blocks);
      return blocks.length;
    });
  } finally {
    await store.close();
    rmSync(dir, { recursive: true, force: true });
  }
}

const namesOf = (tenants: number) => Array.from({ length: tenants }, (_, n) => `tenant ${n}`);

/** Events per second of a route that gives each request's events to `take`, by tenant name. */
async function served(
  names: readonly string[],
  sent: Sent,
  take: (name: string, events: readonly unknown[]) => Promise<number>,
): Promise<number> {
  const app = Fastify();
  app.post('/v1/events/ingest', async (request, reply) => {
    const { events } = request.body as { events: unknown[] };
    return reply.send({ appended: await take(request.headers.authorization!, events) });
  });
  try {
    const url = await app.listen({ port: 0, host: '127.0.0.1' });
    const tenants = names.map((authorization) => ({ authorization }));
    const { eventsPerSecond, errors, firstError } = await load({ url, tenants, ...sent });
    if (errors > 0) throw new Error(`${errors} errors, such as ${firstError}`);
    return eventsPerSecond;
  } finally {
    await app.close();
  }
}
