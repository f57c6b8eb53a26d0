import { createHmac } from 'node:crypto';
import http from 'node:http';
import { performance } from 'node:perf_hooks';
import { Egress } from '../../../server/lib/egress.ts';
import { noRedis, TestRedis } from '../../helpers/redis.ts';
import { happen, sampleEvent, subscribe, withReceivers } from '../deliver.ts';
import { alternate, type BenchContext, type Figure, figure, pick, ratios } from '../lib.ts';
import { withProgram } from '../program.ts';
import { notInstalled, peer } from './install.ts';

const DESTINATIONS = 50;
const CONCURRENCY = 50;

/**
 * Deliveries compared with BullMQ, a queue on Redis: the same number of signed requests to the same receivers, all of which
 * respond at once. Its worker has a concurrency of 50 and a keep-alive agent, retries as its documentation recommends, and gets
 * the jobs in one call; ours turns events into deliveries itself. Both run in this process, one after the other.
 *
 * BullMQ does not: keep a job when Redis loses power (here Redis keeps nothing on disk; ours is flushed with the change that it
 * is about); deliver to others while destinations hang (each of them takes up one of the 50 slots until its timeout; `deliver`
 * measures ours with 50 that hang); guard which address is dialed; keep the order or the state of a destination.
 */
export async function bench(ctx: BenchContext): Promise<Figure[]> {
  const bull = peer('bullmq') as BullMQ | undefined;
  if (!bull || noRedis) {
    ctx.print?.(noRedis ? `${noRedis}, skipped` : notInstalled('bullmq'));
    return [];
  }
  const egress = new Egress({ allow: ['127.0.0.1/32'], dnsServers: [] });
  const redis = await TestRedis.start();
  const agent = new http.Agent({ keepAlive: true, maxSockets: CONCURRENCY });
  const connection = { host: '127.0.0.1', port: redis.port, maxRetriesPerRequest: null };
  const queue = new bull.Queue('deliveries', { connection });
  const worker = new bull.Worker('deliveries', ({ data }) => deliver(agent, data), {
    ...{ connection, concurrency: CONCURRENCY },
  });
  worker.on('error', () => undefined);
  try {
    return await withReceivers((receivers) =>
      withProgram(
        ctx.url,
        async ({ core, tenantId }) => {
          await subscribe(core, tenantId, receivers.fast, DESTINATIONS);
          const events = pick(ctx, 20, 100);
          const count = events * DESTINATIONS;
          const options = { removeOnComplete: true, attempts: 8, backoff: { type: 'exponential', delay: 1000 } };
          const add = () =>
            queue.addBulk(
              Array.from({ length: count }, (_, n) => {
                const data = {
                  url: `${receivers.fast}/${n % DESTINATIONS}`,
                  body: JSON.stringify(sampleEvent(Date.now())),
                };
                return { name: 'delivery', data, opts: options };
              }),
            );
          await worker.waitUntilReady();
          const contenders = {
            ours: () => receivers.rate(count, () => happen(core, tenantId, events)),
            bullmq: () => receivers.rate(count, add),
            bare: () => bareRate(agent, receivers.fast, pick(ctx, 1, 3)),
          };
          // until the engine has compiled the hot paths, neither is at full speed
          for (const one of [contenders.ours, contenders.bullmq]) await one();
          const rates = await alternate(pick(ctx, 1, 5, 9), contenders, ctx.print);
          return [
            figure('bare signed requests, keep-alive, 50 at a time', rates.bare, '/s'),
            figure('BullMQ on Redis, nothing on the disk', rates.bullmq, '/s'),
            figure('deliveries', rates.ours, '/s'),
            figure('deliveries / BullMQ', ratios(rates.ours, rates.bullmq), 'ratio', 0.6),
            figure('deliveries / bare requests', ratios(rates.ours, rates.bare), 'ratio'),
          ];
        },
        { egress },
      ),
    );
  } finally {
    await worker.close(true);
    await queue.close();
    agent.destroy();
    await redis.stop();
  }
}

interface BullMQ {
  Queue: new (name: string, options: object) => { addBulk(jobs: object[]): Promise<unknown>; close(): Promise<void> };
  Worker: new (
    name: string,
    work: (job: { data: Delivery }) => Promise<void>,
    options: object,
  ) => {
    on(event: 'error', listener: (error: Error) => void): void;
    waitUntilReady(): Promise<unknown>;
    close(force: boolean): Promise<void>;
  };
}
interface Delivery {
  url: string;
  body: string;
}

function deliver(agent: http.Agent, { url, body }: Delivery): Promise<void> {
  const signature = createHmac('sha256', 'a signing secret').update(body).digest('base64');
  return new Promise((resolve, reject) => {
    const headers = {
      'content-type': 'application/json',
      'content-length': Buffer.byteLength(body),
      'webhook-signature': `v1,${signature}`,
    };
    const request = http.request(url, { method: 'POST', agent, headers, timeout: 10_000 }, (response) => {
      response.on('end', () => {
        if (response.statusCode! < 300) resolve();
        else reject(new Error(`answered ${response.statusCode}`));
      });
      response.on('error', reject).resume();
    });
    request.on('timeout', () => request.destroy(new Error('no answer')));
    request.on('error', reject).end(body);
  });
}

async function bareRate(agent: http.Agent, url: string, seconds: number): Promise<number> {
  const began = performance.now();
  let sent = 0;
  await Promise.all(
    Array.from({ length: CONCURRENCY }, async () => {
      while (performance.now() - began < seconds * 1000) {
        await deliver(agent, { url, body: JSON.stringify(sampleEvent(Date.now())) });
        sent++;
      }
    }),
  );
  return sent / ((performance.now() - began) / 1000);
}
