import { fork } from 'node:child_process';
import { once } from 'node:events';
import http from 'node:http';
import { createServer } from 'node:net';
import { performance } from 'node:perf_hooks';
import { setTimeout as delay } from 'node:timers/promises';
import { addEventBy } from '../../db/outbox.ts';
import type { Core } from '../../server/app.ts';
import { OPERATOR } from '../../server/domain/audit.ts';
import { Egress } from '../../server/lib/egress.ts';
import { alternate, type BenchContext, type Figure, figure, median, pick, quantile, ratios } from './lib.ts';
import { withProgram } from './program.ts';

/** Destinations that respond at once, and the same number that accept the connection and stay silent. */
const EACH = 50;
const RATE = 500;

/**
 * Deliveries per second to fast receivers, alone and while half of all destinations hang, compared with bare requests to the same
 * receivers through the same guard (with keep-alive and nothing stored); then how late they are at the required rate.
 */
export async function bench(ctx: BenchContext): Promise<Figure[]> {
  const queued = pick(ctx, 20, 200);
  const seconds = pick(ctx, 2, 15);
  const egress = new Egress({ allow: ['127.0.0.1/32'], dnsServers: [] });
  return withReceivers((receivers) =>
    withProgram(
      ctx.url,
      async ({ core, tenantId }) => {
        await subscribe(core, tenantId, receivers.fast, EACH);
        const bare = () => bareRate(egress, receivers.fast, pick(ctx, 1, 3));
        const deliveries = () => receivers.rate(queued * EACH, () => happen(core, tenantId, queued));
        // until the engine has compiled the hot paths, neither is at full speed
        for (const one of [bare, deliveries]) await one();
        const rounds = pick(ctx, 1, 5);
        const alone = await alternate(rounds, { bare, deliveries }, ctx.print);
        await subscribe(core, tenantId, receivers.hanging, EACH);
        const beside = await alternate(rounds, { bare, hanging: deliveries }, ctx.print);
        const { count } = await receivers.ask('late');
        const each = RATE / EACH;
        for (let second = 0; second < seconds; second++) {
          const until = performance.now() + 1000;
          for (let n = 0; n < each; n++) {
            await happen(core, tenantId, 1);
            await delay(Math.max(0, until - 1000 + ((n + 1) * 1000) / each - performance.now()));
          }
        }
        await receivers.arrived(count + seconds * each * EACH);
        const late = (await receivers.ask('late')).late.sort((a, b) => a - b);
        const share = ratios(alone.deliveries, alone.bare);
        const hanging = ratios(beside.hanging, beside.bare);
        return [
          figure('bare requests to the same receivers, keep-alive', alone.bare, '/s'),
          figure('deliveries', alone.deliveries, '/s', RATE),
          figure('deliveries / bare requests', share, 'ratio', 0.3),
          figure(`deliveries, while ${EACH} of ${2 * EACH} destinations hang`, beside.hanging, '/s', RATE),
          figure('the same / bare requests', hanging, 'ratio'),
          // their events have to be fanned out to the hanging ones too: twice as many rows
          figure('with / without those that hang', median(hanging) / median(share), 'ratio', 0.6),
          figure(`event to receiver at ${RATE}/s: p50`, quantile(late, 0.5), 'ms'),
          figure(`event to receiver at ${RATE}/s: p99`, quantile(late, 0.99), 'ms', 2000, true),
        ];
      },
      { egress },
    ),
  );
}

interface Receivers {
  /** Answers each request at once. */
  fast: string;
  /** Accepts each connection, and answers nothing. */
  hanging: string;
  /** How many requests have arrived since the start, and how late each was that arrived since the last `late` query. */
  ask(what: 'count' | 'late'): Promise<{ count: number; late: number[] }>;
  /** Resolves when this many have arrived since the start. */
  arrived(total: number): Promise<void>;
  /** Requests per second: from the call of `begin` until this many more have arrived. */
  rate(count: number, begin: () => Promise<unknown>): Promise<number>;
}

/** Runs the receivers in their own process during `work`. */
export async function withReceivers<T>(work: (receivers: Receivers) => Promise<T>): Promise<T> {
  const child = fork(new URL(import.meta.url), { stdio: ['ignore', 'inherit', 'inherit', 'ipc'] });
  try {
    const [ports] = (await once(child, 'message')) as [{ fast: number; hanging: number }];
    const ask = async (what: 'count' | 'late') => {
      child.send(what);
      return ((await once(child, 'message')) as [{ count: number; late: number[] }])[0];
    };
    const arrived = async (total: number) => {
      while ((await ask('count')).count < total) await delay(10);
    };
    const rate = async (count: number, begin: () => Promise<unknown>) => {
      const { count: before } = await ask('count');
      const began = performance.now();
      await begin();
      await arrived(before + count);
      return count / ((performance.now() - began) / 1000);
    };
    const [fast, hanging] = [ports.fast, ports.hanging].map((port) => `http://127.0.0.1:${port}`) as [string, string];
    return await work({ fast, hanging, ask, arrived, rate });
  } finally {
    child.kill('SIGKILL');
  }
}

/** Creates this many destinations at the receiver, each subscribed to every event of `happen`. */
export async function subscribe(core: Core, tenantId: string, receiver: string, count: number): Promise<void> {
  for (let n = 0; n < count; n++) {
    await core.subscriptions.create(
      tenantId,
      {
        ...{ url: `${receiver}/${n}`, secret: 'a signing secret', destination_type: 'webhook' },
        ...{ event_types: ['svc.test'], active: true, destination_config: {} },
      },
      { actor: OPERATOR },
    );
  }
}

/** Creates this many events in one transaction, dated now. */
export async function happen(core: Core, tenantId: string, count: number): Promise<void> {
  const client = await core.db.owner.connect();
  try {
    await client.query('begin');
    for (let n = 0; n < count; n++) {
      const at = Date.now();
      await addEventBy(client, tenantId, {
        type: 'svc.test',
        at,
        payload: sampleEvent(at),
      });
    }
    await client.query('commit');
  } finally {
    client.release();
  }
}

async function bareRate(egress: Egress, url: string, seconds: number): Promise<number> {
  const began = performance.now();
  let sent = 0;
  await Promise.all(
    Array.from({ length: EACH }, async (_, n) => {
      while (performance.now() - began < seconds * 1000) {
        await egress.send({ url, keep: `bare-${n}`, body: JSON.stringify(sampleEvent(Date.now())) });
        sent++;
      }
    }),
  );
  return sent / ((performance.now() - began) / 1000);
}

/** The payload of an event created by `happen`. */
export const sampleEvent = (at: number) => ({
  ...{ subscription_id: 'bench', message: 'one of many' },
  created_at: new Date(at).toISOString(),
});

/** The receivers, in their own process: what they were sent, and how late it was. */
async function receive(): Promise<void> {
  let count = 0;
  let late: number[] = [];
  const fast = http.createServer(async (request, response) => {
    let body = '';
    for await (const chunk of request) body += chunk;
    count++;
    late.push(Date.now() - Date.parse((JSON.parse(body) as { created_at: string }).created_at));
    response.writeHead(204).end();
  });
  const hanging = createServer((socket) => socket.on('error', () => undefined));
  for (const server of [fast, hanging]) await once(server.listen(0, '127.0.0.1', 4096), 'listening');
  const port = (server: typeof fast | typeof hanging) => (server.address() as { port: number }).port;
  process.on('message', (what) => {
    process.send?.({ count, late: what === 'late' ? late : [] });
    if (what === 'late') late = [];
  });
  process.send?.({ fast: port(fast), hanging: port(hanging) });
}

if (import.meta.main) await receive();
