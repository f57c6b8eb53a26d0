import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { open } from 'node:fs/promises';
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
  inParts,
  load,
  median,
  pick,
  quantile,
  ratios,
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

/** The real program, an upstream, and two ways to it, each in a process of its own. */
export interface Proxies {
  upstream: string;
  bare: string;
  proxy: string;
  agentKey: string;
  /** Removed afterwards. */
  dir: string;
  /** Another process of Node, until the end: resolves with the address that it says it listens on. */
  start(args: string[], env?: Record<string, string>): Promise<string>;
  /** Another proxy, as the package has it, with the megabytes that it has now. */
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
 * A request through the proxy (agent told, body read, decided by 100 statements, recorded and flushed to the disk,
 * forwarded) beside the same request through a bare Node reverse proxy and without any, one of each in turn. Each is a
 * process of its own, and each has one kept connection.
 */
export async function bench(ctx: BenchContext): Promise<Figure[]> {
  return withProxies(ctx.url, async (proxies) => {
    const { upstream, bare, proxy, agentKey, dir } = proxies;
    const through = callerOf(proxy, agentKey);
    const callers = { direct: callerOf(upstream, agentKey), bare: callerOf(bare, agentKey), proxy: through };
    const took = {
      direct: [] as number[],
      bare: [] as number[],
      proxy: [] as number[],
      known: [] as number[],
      flush: [] as number[],
    };
    const file = await open(path.join(dir, 'line'), 'w');
    const calls = pick(ctx, 300, 3000);
    /** Before any is measured: until then the engines of the processes still compile what runs often. */
    const warmUp = pick(ctx, 300, 1500);
    for (let i = 0; i < calls + warmUp; i++) {
      // more different ones than the proxy remembers answers to
      const body = bodyOf(1 + (i % 2000));
      for (const name of ['direct', 'bare', 'proxy'] as const) {
        const ms = await callers[name](body);
        if (i >= warmUp) took[name].push(ms);
      }
      const ms = await through(BODY);
      if (i >= warmUp) took.known.push(ms);
      const began = performance.now();
      await file.write(BODY, (i % 100) * 200);
      await file.datasync();
      if (i >= warmUp) took.flush.push(performance.now() - began);
    }
    await file.close();
    const p50 = (name: keyof typeof took) => inParts(took[name]).map(median);
    const p99 = (name: keyof typeof took) =>
      quantile(
        took[name].toSorted((a, b) => a - b),
        0.99,
      );
    const added = (name: keyof typeof took) => p50(name).map((ms, part) => ms - p50('bare')[part]!);
    return [
      figure('without a proxy, p50', p50('direct'), 'ms'),
      figure('through a bare Node reverse proxy, p50', p50('bare'), 'ms'),
      figure(`through the proxy, ${STATEMENTS} statements, p50`, p50('proxy'), 'ms'),
      figure('of that: a line written to a file and flushed, p50', p50('flush'), 'ms'),
      figure('fresh question: added over the bare one, p50', added('proxy'), 'ms', 1, true),
      figure('fresh question: added over the bare one, p99', p99('proxy') - p99('bare'), 'ms'),
      figure('warm question, the same each time: added, p50', added('known'), 'ms'),
      ...(await throughput(ctx, proxies)),
    ];
  });
}

const FRESH = '{"amount":1XXX.XXXX,"user":{"id":"u_1","tier":"gold"},"items":[{"sku":"a-1","count":2}]}';

async function rate(url: string, { agentKey }: Proxies, connections: number, body: string, seconds: number) {
  const { requestsPerSecond, errors, firstError } = await load({
    ...{ url, path: '/charges', tenants: [{ authorization: `Bearer ${agentKey}` }] },
    ...{ connections, eventsPerRequest: 1, seconds, warmSeconds: 0.5, bodies: [body], expect: '"sku":"a-1"' },
  });
  if (errors > 0) throw new Error(`${url}: ${errors} errors, such as ${firstError}`);
  return requestsPerSecond;
}

/** Requests a second: questions of which no two are alike, the same one each time, and without a question. */
async function throughput(ctx: BenchContext, proxies: Proxies): Promise<Figure[]> {
  const figures: Figure[] = [];
  for (const connections of pick(ctx, [16], [1, 16, 64])) {
    const of = (url: string, body: string) => () => rate(url, proxies, connections, body, pick(ctx, 1, 1.5));
    const found = await alternate(
      pick(ctx, 1, 3),
      {
        bare: of(proxies.bare, FRESH),
        fresh: of(proxies.proxy, FRESH),
        warm: of(proxies.proxy, BODY),
      },
      ctx.print,
    );
    const name = connections === 1 ? '1 connection' : `${connections} connections`;
    figures.push(
      figure(`${name}: a bare Node reverse proxy`, found.bare, 'requests/s'),
      figure(`${name}: the proxy, fresh questions`, found.fresh, 'requests/s'),
      figure(`${name}: fresh questions / bare`, ratios(found.fresh, found.bare), 'ratio'),
      figure(`${name}: warm question / bare`, ratios(found.warm, found.bare), 'ratio'),
    );
  }
  return figures;
}

/** A proxy gives back what load took when it was quiet for 6 to 9 s. */
const SETTLE_MS = 12_000;

/** Megabytes of the proxy's process, as the package has it: before its first request, right after many, and some seconds later. */
export async function proxyMemory(ctx: BenchContext, proxies: Proxies): Promise<Figure[]> {
  const { url, megabytes } = await proxies.packed();
  // it has asked the control plane for everything once
  await new Promise((resolve) => setTimeout(resolve, 1000));
  const idle = megabytes();
  for (const connections of [16, 64]) await rate(url, proxies, connections, FRESH, pick(ctx, 1, 5));
  const busy = megabytes();
  await new Promise((resolve) => setTimeout(resolve, SETTLE_MS));
  return [
    figure('proxy: idle', idle, 'MB', 100, true),
    figure('proxy: at the end of load', busy, 'MB'),
    figure('proxy: after load', megabytes(), 'MB', 160, true),
  ];
}

/** One request after the other over one kept connection; resolves with the milliseconds until the answer was read. */
function callerOf(url: string, key: string): (body: string) => Promise<number> {
  const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
  return (body) =>
    new Promise((resolve, reject) => {
      const began = performance.now();
      const request = http.request(`${url}/charges`, {
        method: 'POST',
        agent,
        headers: {
          authorization: `Bearer ${key}`,
          'content-type': 'application/json',
          'content-length': Buffer.byteLength(body),
        },
      });
      request.on('error', reject);
      request.on('response', (response) => {
        if (response.statusCode !== 200) reject(new Error(`answered ${response.statusCode}`));
        response.on('end', () => resolve(performance.now() - began)).resume();
      });
      request.end(body);
    });
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
