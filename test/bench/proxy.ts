import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, fdatasyncSync, mkdtempSync, openSync, rmSync, writeFileSync, writeSync } from 'node:fs';
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { performance } from 'node:perf_hooks';
import {
  alternate,
  type BenchContext,
  type Figure,
  figure,
  type LoadResult,
  load,
  median,
  pick,
  ratios,
  shown,
} from './lib.ts';
import { withProgram } from './program.ts';

export const STATEMENTS = 100;

/** 100 live statements over ten tools: permits with limits, guardrails, and hard denials. */
export function policyText(tool: number, action = 'api_call', prefix = 'body.'): string {
  const of = `principal in AgentRole::"support", action == Action::"${action}", resource == Tool::"tool_${tool}"`;
  const amount = `context.num.hasTag("${prefix}amount") && context.num.getTag("${prefix}amount")`;
  return Array.from({ length: STATEMENTS / 10 }, (_, i) => {
    if (i === 0) return `permit(${of});`;
    if (i % 3 === 0) return `@escrow("single") forbid(${of}) when { ${amount}.greaterThan(decimal("${1000 * i}.0")) };`;
    if (i % 3 === 1) return `forbid(${of}) when { ${amount}.greaterThan(decimal("${9000 + i}.0")) };`;
    return `permit(${of}) when { ${amount}.lessThan(decimal("${i}.0")) && context.str.hasTag("${prefix}user.id") };`;
  }).join('\n');
}

const bodyOf = (amount: number) =>
  JSON.stringify({ amount, user: { id: 'u_1', tier: 'gold' }, items: [{ sku: 'a-1', count: 2 }] });
const BODY = bodyOf(42.5);

/** The real program, an upstream, and two ways to reach it, each in its own process. */
export interface Proxies {
  upstream: string;
  bare: string;
  proxy: string;
  agentKey: string;
  /** Removed afterwards. */
  dir: string;
  /** Starts another Node process, which runs until the end: resolves with the address that it reports listening on. */
  start(args: string[], env?: Record<string, string>): Promise<string>;
  /** Starts another proxy, as packaged, and returns how to read its current megabytes. */
  packed(): Promise<{ url: string; megabytes: () => number }>;
}

export async function withProxies<T>(databaseUrl: string, work: (proxies: Proxies) => Promise<T>): Promise<T> {
  return withProgram(databaseUrl, async ({ url, core, tenantId }) => {
    const by = { person: 'bench', signedIn: false, admin: false, actor: { type: 'operator', id: 'bench' } as const };
    for (let tool = 0; tool < 10; tool++) {
      await core.policies.create(tenantId, { id: `p${tool}`, dsl_source: policyText(tool) }, by);
      await core.policies.approve(tenantId, `p${tool}`, { version: 1 }, by);
    }
    const { secret: agentKey } = await core.keys.createAgentKey(
      tenantId,
      { label: 'bench', agentId: 'bench', agentRole: 'support', owner: null },
      { actor: by.actor },
    );
    const { secret: proxyKey } = await core.keys.createApiKey(
      tenantId,
      { label: 'bench', scopes: ['proxy'], owner: null },
      { actor: by.actor },
    );
    const dir = mkdtempSync(path.join(tmpdir(), 'svc-bench-proxy-'));
    const children: ChildProcess[] = [];
    const start = async (args: string[], env: Record<string, string> = {}) => {
      const child = spawn(process.execPath, args, {
        stdio: ['ignore', 'pipe', 'inherit'],
        env: { PATH: process.env.PATH, ...env },
      });
      children.push(child);
      let text = '';
      for await (const data of child.stdout) {
        text += data;
        const address = /listening on (http:\/\/127\.0\.0\.1:\d+)/.exec(text)?.[1];
        if (address) {
          child.stdout.resume();
          return address;
        }
      }
      throw new Error(`it did not start: ${text}`);
    };
    try {
      const own = new URL(import.meta.url).pathname;
      const upstream = await start([own, 'upstream']);
      const bare = await start([own, 'bare', upstream]);
      const routes = path.join(dir, 'routes.json');
      writeFileSync(routes, JSON.stringify({ routes: [{ path: '/*', to: upstream, tool: 'tool_3' }] }));
      const startProxy = (program: string, state: string) =>
        start([program], {
          SVC_URL: url,
          SVC_PROXY_KEY: proxyKey,
          SVC_PROXY_PORT: '0',
          SVC_PROXY_ROUTES: routes,
          SVC_PROXY_DIR: path.join(dir, state),
        });
      const proxy = await startProxy(path.resolve('server/proxy/main.ts'), 'state');
      const packed = async () => {
        execFileSync(process.execPath, ['sdk/proxy/build.ts'], { stdio: ['ignore', 'ignore', 'inherit'] });
        const address = await startProxy(path.resolve('sdk/proxy/dist/svc-proxy.js'), 'packed');
        const { pid } = children.at(-1)!;
        const kilobytes = () => Number(execFileSync('ps', ['-o', 'rss=', '-p', String(pid)], { encoding: 'utf8' }));
        return { url: address, megabytes: () => kilobytes() / 1024 };
      };
      return await work({ upstream, bare, proxy, agentKey, dir, start, packed });
    } finally {
      for (const child of children) {
        child.kill();
        if (child.exitCode === null) await once(child, 'exit');
      }
      rmSync(dir, { recursive: true, force: true });
    }
  });
}

/**
 * A request through the proxy (agent identified, body read, decided by 100 statements, recorded and flushed to disk, forwarded),
 * compared with the same request through a bare Node reverse proxy and with a direct one, in turns. Each runs in its own process,
 * as does the caller.
 */
export async function bench(ctx: BenchContext): Promise<Figure[]> {
  return withProxies(ctx.url, async (proxies) => [
    ...(await latencies(ctx, proxies)),
    ...(await throughput(ctx, proxies)),
  ]);
}

/** One request after another over one connection. */
async function latencies(ctx: BenchContext, proxies: Proxies): Promise<Figure[]> {
  const ways = {
    direct: [proxies.upstream, FRESH],
    bare: [proxies.bare, FRESH],
    fresh: [proxies.proxy, FRESH],
    warm: [proxies.proxy, BODY],
  } as const;
  const took = { direct: [], bare: [], fresh: [], warm: [] } as Record<keyof typeof ways, LoadResult[]>;
  const flushes: number[] = [];
  // the first round is not measured: until its end the processes' engines are still compiling the hot paths
  for (let round = -1; round < pick(ctx, 1, 5); round++) {
    for (const name of Object.keys(ways) as (keyof typeof ways)[]) {
      const [url, body] = ways[name];
      const result = await asked(url, proxies, 1, body, pick(ctx, 1, 2));
      if (round >= 0) took[name].push(result);
    }
    if (round >= 0) flushes.push(flushed(path.join(proxies.dir, 'line'), pick(ctx, 300, 1500)));
    if (round >= 0) ctx.print?.(`1 connection, round ${round + 1}: ${saidOf(took, round)}`);
  }
  const of = (name: keyof typeof ways, q: 'p50' | 'p99') => took[name].map((result) => result[q]);
  const added = (name: keyof typeof ways, q: 'p50' | 'p99') =>
    of(name, q).map((ms, round) => ms - of('bare', q)[round]!);
  const rates = (name: keyof typeof ways) => took[name].map(({ requestsPerSecond }) => requestsPerSecond);
  return [
    figure('without a proxy, p50', of('direct', 'p50'), 'ms'),
    figure('through a bare Node reverse proxy, p50', of('bare', 'p50'), 'ms'),
    figure(`through the proxy, ${STATEMENTS} statements, p50`, of('fresh', 'p50'), 'ms'),
    figure('a line written to a file and flushed, p50', flushes, 'ms'),
    figure('fresh question: added over the bare one, p50', added('fresh', 'p50'), 'ms', 0.3, true),
    figure('fresh question: added over the bare one, p99', added('fresh', 'p99'), 'ms', 1.5, true),
    figure('warm question, the same each time: added, p50', added('warm', 'p50'), 'ms'),
    figure('1 connection: fresh questions / bare', ratios(rates('fresh'), rates('bare')), 'ratio'),
  ];
}

function saidOf(took: Record<string, LoadResult[]>, round: number): string {
  const each = Object.entries(took).map(([name, results]) => [name, results[round]!] as const);
  return each.map(([name, { p50, p99 }]) => `${name} ${shown(p50)} (p99 ${shown(p99)}) ms`).join(', ');
}

/** The median milliseconds of the least that a record costs: a line written and flushed, `times` in a row. */
function flushed(file: string, times: number): number {
  const fd = openSync(file, 'w');
  try {
    writeSync(fd, Buffer.alloc(times * 1200));
    fdatasyncSync(fd);
    const took = Array.from({ length: times }, (_, n) => {
      const began = performance.now();
      writeSync(fd, Buffer.alloc(1200, 'x'), 0, 1200, n * 1200);
      fdatasyncSync(fd);
      return performance.now() - began;
    });
    return median(took);
  } finally {
    closeSync(fd);
  }
}

const FRESH = '{"amount":1XXX.XXXX,"user":{"id":"u_1","tier":"gold"},"items":[{"sku":"a-1","count":2}]}';

async function asked(url: string, { agentKey }: Proxies, connections: number, body: string, seconds: number) {
  const result = await load({
    ...{ url, path: '/charges', tenants: [{ authorization: `Bearer ${agentKey}` }] },
    ...{ connections, eventsPerRequest: 1, seconds, warmSeconds: 0.5, bodies: [body], expect: '"sku":"a-1"' },
  });
  if (result.errors > 0) throw new Error(`${url}: ${result.errors} errors, such as ${result.firstError}`);
  return result;
}

/** Requests per second: with questions that all differ, with the same question each time, and without a question. */
async function throughput(ctx: BenchContext, proxies: Proxies): Promise<Figure[]> {
  const figures: Figure[] = [];
  for (const connections of pick(ctx, [16], [16, 64])) {
    const of = (url: string, body: string) => async () =>
      (await asked(url, proxies, connections, body, pick(ctx, 1, 1.5))).requestsPerSecond;
    const found = await alternate(
      pick(ctx, 1, 3),
      {
        bare: of(proxies.bare, FRESH),
        fresh: of(proxies.proxy, FRESH),
        warm: of(proxies.proxy, BODY),
      },
      ctx.print,
    );
    const name = `${connections} connections`;
    figures.push(
      figure(`${name}: a bare Node reverse proxy`, found.bare, 'requests/s'),
      figure(`${name}: the proxy, fresh questions`, found.fresh, 'requests/s'),
      figure(`${name}: fresh questions / bare`, ratios(found.fresh, found.bare), 'ratio'),
      figure(`${name}: warm question / bare`, ratios(found.warm, found.bare), 'ratio'),
    );
  }
  return figures;
}

/** A proxy releases the memory that load took after being quiet for 6 to 9 s. */
const SETTLE_MS = 12_000;

/** Megabytes of the packaged proxy's process: before its first request, right after many, and some seconds later. */
export async function proxyMemory(ctx: BenchContext, proxies: Proxies): Promise<Figure[]> {
  const { url, megabytes } = await proxies.packed();
  // by now it has fetched everything from the control plane once
  await new Promise((resolve) => setTimeout(resolve, 1000));
  const idle = megabytes();
  for (const connections of [16, 64]) await asked(url, proxies, connections, FRESH, pick(ctx, 1, 5));
  const busy = megabytes();
  await new Promise((resolve) => setTimeout(resolve, SETTLE_MS));
  return [
    figure('proxy: idle', idle, 'MB', 100, true),
    figure('proxy: at the end of load', busy, 'MB'),
    figure('proxy: after load', megabytes(), 'MB', 160, true),
  ];
}

if (import.meta.main) {
  const [mode, target] = process.argv.slice(2);
  const agent = new http.Agent({ keepAlive: true });
  const server = http.createServer((request, response) => {
    if (mode === 'upstream') {
      request.on('end', () => response.setHeader('content-type', 'application/json').end(BODY)).resume();
      return;
    }
    const { hostname, port } = new URL(target!);
    const { method, url, headers } = request;
    const onward = http.request({ hostname, port, method, path: url, headers, agent }, (answer) => {
      response.writeHead(answer.statusCode!, answer.headers);
      answer.pipe(response);
    });
    request.pipe(onward);
  });
  server.listen(0, '127.0.0.1', () => {
    console.log(`listening on http://127.0.0.1:${(server.address() as AddressInfo).port}`);
  });
  process.on('SIGTERM', () => process.exit(0));
}
