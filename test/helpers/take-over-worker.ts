import { setTimeout as delay } from 'node:timers/promises';
import { parentPort, workerData } from 'node:worker_threads';
import { Redis } from 'ioredis';
import pg from 'pg';
import type { Killed, TakeOver } from './take-over.ts';

/** See take-over.ts. */
const { databaseUrl, redisUrl } = workerData as { databaseUrl: string; redisUrl: string };
const client = new pg.Client(databaseUrl);
const redis = new Redis(redisUrl);
const EVERY_MS = 2;
const MOST_MS = 60_000;
/** The most processes that Redis knew at once. */
let most = 0;

async function kill({ pid, ...killed }: Killed): Promise<TakeOver> {
  most = Math.max(most, await connected());
  const began = performance.now();
  const since = () => performance.now() - began;
  process.kill(pid, 'SIGKILL');
  const [acknowledged, gone, owned] = await Promise.all([
    acknowledgement(killed, since),
    seen(since, async () => (await connected()) < most || undefined),
    owner(killed, since),
  ]);
  return { ...owned, gone: gone.at, acknowledged };
}

async function owner({ tenantId, fence }: Omit<Killed, 'pid'>, since: () => number) {
  const head = async () => {
    const { rows } = await client.query<{ seq: string; fence: string }>(
      `select seq, fence from chain_head where tenant_id = $1 and chain = 'forensics'`,
      [tenantId],
    );
    return { seq: Number(rows[0]!.seq), fence: Number(rows[0]!.fence) };
  };
  const taken = await seen(since, async () => {
    const now = await head();
    return now.fence > fence ? now : undefined;
  });
  const written = await seen(since, async () => (await head()).seq > taken.value.seq || undefined);
  return { taken: taken.at, written: written.at };
}

/** Resolves when `look` first finds something. */
async function seen<T>(since: () => number, look: () => Promise<T | undefined>): Promise<{ at: number; value: T }> {
  for (;;) {
    const value = await look();
    if (value !== undefined) return { at: since(), value };
    if (since() > MOST_MS) throw new Error('nobody took over');
    await delay(EVERY_MS);
  }
}

async function connected(): Promise<number> {
  return ((await redis.pubsub('CHANNELS', 'svc:*:node:*')) as string[]).length;
}

/** Like a client that sends one event until it is acknowledged. */
async function acknowledgement({ url, key, event }: Omit<Killed, 'pid'>, since: () => number): Promise<number> {
  for (;;) {
    const response = await fetch(`${url}/v1/events/ingest`, {
      method: 'POST',
      headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
      body: JSON.stringify({ events: [event] }),
    });
    await response.arrayBuffer();
    if (response.status === 202) return since();
    if (since() > MOST_MS) throw new Error('nothing is acknowledged');
    await delay(10);
  }
}

await client.connect();
await connected();
parentPort!.on('message', (killed: Killed) => {
  kill(killed).then(
    (seen) => parentPort!.postMessage(seen),
    (error: Error) => parentPort!.postMessage(error),
  );
});
parentPort!.postMessage('ready');
