import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { request } from 'node:http';
import Fastify from 'fastify';
import { type BenchContext, type Figure, figure, median } from './lib.ts';
import { withProgram } from './program.ts';

const ROUNDS = 3;
const SECONDS = 3;
const CONNECTIONS = 16;

/** A proxy's poll that finds nothing new, beside a bare Fastify route that answers 304. */
export async function bench(ctx: BenchContext): Promise<Figure[]> {
  return withProgram(ctx.url, async ({ url, core, tenantId }) => {
    const { secret } = await core.keys.createApiKey(
      tenantId,
      { label: 'bench', scopes: ['proxy'], owner: null },
      { actor: { type: 'operator', id: 'bench' } },
    );
    const { hash } = await core.bundles.current(tenantId, null);
    const bare = Fastify();
    bare.get('/bare', (_request, reply) => reply.header('etag', `"${hash}"`).code(304).send());
    const bareUrl = await bare.listen({ port: 0, host: '127.0.0.1' });
    const ours: number[] = [];
    const limit: number[] = [];
    for (let round = 0; round < ROUNDS; round++) {
      limit.push(await rate(`${bareUrl}/bare`, {}));
      const target = `${url}/v1/policies/bundle?current_hash=${encodeURIComponent(hash)}`;
      ours.push(await rate(target, { authorization: `Bearer ${secret}` }));
      ctx.print?.(`round ${round + 1}: bare ${limit[round]!.toFixed(0)}/s, bundle ${ours[round]!.toFixed(0)}/s`);
    }
    await bare.close();
    return [
      figure('bare Fastify route', median(limit), 'requests/s'),
      figure('bundle, 304', median(ours), 'requests/s'),
      figure('bundle, 304 / bare route', median(ours.map((o, i) => o / limit[i]!)), 'ratio', 0.5),
    ];
  });
}

/** Requests a second that come back 304, asked by a process of its own. */
async function rate(url: string, headers: Record<string, string>): Promise<number> {
  const child = spawn(process.execPath, [new URL(import.meta.url).pathname, url, JSON.stringify(headers)], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  let out = '';
  child.stdout.on('data', (data) => {
    out += data;
  });
  const [code] = await once(child, 'close');
  if (code !== 0) throw new Error(`the load generator failed with ${code}`);
  return Number(out);
}

if (import.meta.main) {
  const { Agent } = await import('node:http');
  const [url, headers] = process.argv.slice(2) as [string, string];
  const agent = new Agent({ keepAlive: true, maxSockets: CONNECTIONS });
  let done = 0;
  let measuring = false;
  const ask = () => {
    const sent = request(url, { agent, headers: JSON.parse(headers) as Record<string, string> }, (answer) => {
      if (answer.statusCode !== 304) throw new Error(`answered ${answer.statusCode}`);
      answer.resume();
      answer.once('end', () => {
        if (measuring) done++;
        ask();
      });
    });
    sent.end();
  };
  for (let i = 0; i < CONNECTIONS; i++) ask();
  setTimeout(() => {
    measuring = true;
    setTimeout(() => {
      process.stdout.write(String(done / SECONDS), () => process.exit(0));
    }, SECONDS * 1000);
  }, 700);
}
