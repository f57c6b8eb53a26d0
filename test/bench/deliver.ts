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
import { type BenchContext, type Figure, figure, quantile } from './lib.ts';
import { withProgram } from './program.ts';

/** Destinations that answer at once, and as many that take the connection and are silent. */
const EACH = 50;
const QUEUED = 100;
const RATE = 500;
const SECONDS = 15;

/**
 * Deliveries per second to fast receivers while half of all destinations hang, beside bare requests to the same receivers
 * (one connection each, nothing stored); then how late they are at the rate that is asked for.
 */
export async function bench(ctx: BenchContext): Promise<Figure[]> {
  const receiver = fork(new URL(import.meta.url), { stdio: ['ignore', 'inherit', 'inherit', 'ipc'] });
  try {
    const [ports] = (await once(receiver, 'message')) as [{ fast: number; hanging: number }];
    const ask = async (what: 'count' | 'late') => {
      receiver.send(what);
      return ((await once(receiver, 'message')) as [{ count: number; late: number[] }])[0];
    };
    const egress = new Egress({ allow: ['127.0.0.1/32'], dnsServers: [] });
    const bare = await bareRate(egress, ports.fast);
    const { count: before } = await ask('late');
    return await withProgram(
      ctx.url,
      async ({ core, tenantId }) => {
        for (const [port, kind] of [
          [ports.fast, 'fast'],
          [ports.hanging, 'hangs'],
        ] as const) {
          for (let n = 0; n < EACH; n++) {
            await core.subscriptions.create(
              tenantId,
              {
                url: `http://127.0.0.1:${port}/${kind}/${n}`,
                secret: 'a signing secret',
                destination_type: 'webhook',
                event_types: ['svc.test'],
                active: true,
                destination_config: {},
              },
              { actor: OPERATOR },
            );
          }
        }
        const arrived = async (total: number) => {
          while ((await ask('count')).count < before + total) await delay(20);
        };
        const began = performance.now();
        await happen(core, tenantId, QUEUED);
        await arrived(QUEUED * EACH);
        const rate = (QUEUED * EACH) / ((performance.now() - began) / 1000);
        await ask('late');
        const each = RATE / EACH;
        for (let second = 0; second < SECONDS; second++) {
          const until = performance.now() + 1000;
          for (let n = 0; n < each; n++) {
            await happen(core, tenantId, 1);
            await delay(Math.max(0, until - 1000 + ((n + 1) * 1000) / each - performance.now()));
          }
        }
        await arrived((QUEUED + SECONDS * each) * EACH);
        const late = (await ask('late')).late.sort((a, b) => a - b);
        return [
          figure('bare requests to the same receivers', bare, '/s'),
          figure('deliveries / bare requests', rate / bare, 'ratio', 0.25),
          figure(`deliveries, while ${EACH} of ${2 * EACH} destinations hang`, rate, '/s', RATE),
          figure(`event to receiver at ${RATE}/s: p50`, quantile(late, 0.5), 'ms'),
          figure(`event to receiver at ${RATE}/s: p99`, quantile(late, 0.99), 'ms', 2000, true),
        ];
      },
      { egress },
    );
  } finally {
    receiver.kill('SIGKILL');
  }
}

/** So many events in one transaction, as of now. */
async function happen(core: Core, tenantId: string, count: number): Promise<void> {
  const client = await core.db.owner.connect();
  try {
    await client.query('begin');
    for (let n = 0; n < count; n++) {
      const at = Date.now();
      await addEventBy(client, tenantId, {
        type: 'svc.test',
        at,
        payload: { subscription_id: 'bench', message: 'one of many', created_at: new Date(at).toISOString() },
      });
    }
    await client.query('commit');
  } finally {
    client.release();
  }
}

async function bareRate(egress: Egress, port: number): Promise<number> {
  const began = performance.now();
  let sent = 0;
  const body = JSON.stringify({ event: 'svc.test', at: Date.now() });
  await Promise.all(
    Array.from({ length: EACH }, async () => {
      while (performance.now() - began < 3000) {
        await egress.send({ url: `http://127.0.0.1:${port}/`, body });
        sent++;
      }
    }),
  );
  return sent / ((performance.now() - began) / 1000);
}

/** The receivers, in a process of their own: what they were sent, and how late it was. */
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
