import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { request } from 'node:http';
import Fastify from 'fastify';
import { alternate, type BenchContext, type Figure, figure, killSelf, pick, ratios } from './lib.ts';
import { withProgram } from './program.ts';

const CONNECTIONS = 16;

/** A proxy's poll that finds nothing new, compared with a bare Fastify route that answers 304. */
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
    const target = `${url}/v1/policies/bundle?current_hash=${encodeURIComponent(hash)}`;
    const seconds = pick(ctx, 1, 3);
    const contenders = {
      bare: () => rate(`${bareUrl}/bare`, {}, seconds),
      bundle: () => rate(target, { authorization: `Bearer ${secret}` }, seconds),
    };
    const rates = await alternate(pick(ctx, 1, 3), contenders, ctx.print);
    await bare.close();
    return [
      figure('bare Fastify route', rates.bare, 'requests/s'),
      figure('bundle, 304', rates.bundle, 'requests/s'),
      figure('bundle, 304 / bare route', ratios(rates.bundle, rates.bare), 'ratio', 0.5),
    ];
  });
}

/** 304 responses per second, requested by a separate process. */
async function rate(url: string, headers: Record<string, string>, seconds: number): Promise<number> {
  const args = [new URL(import.meta.url).pathname, url, JSON.stringify(headers), String(seconds)];
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'] });
  let out = '';
  child.stdout.on('data', (data) => {
    out += data;
  });
  const [code, signal] = await once(child, 'close');
  if (signal !== 'SIGKILL') throw new Error(`the load generator failed with ${code ?? signal}`);
  return Number(out);
}

if (import.meta.main) {
  const { Agent } = await import('node:http');
  const [url, headers, seconds] = process.argv.slice(2) as [string, string, string];
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
      process.stdout.write(String(done / Number(seconds)), killSelf);
    }, Number(seconds) * 1000);
  }, 700);
}
