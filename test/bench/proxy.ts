import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { open } from 'node:fs/promises';
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { performance } from 'node:perf_hooks';
import { type BenchContext, type Figure, figure, quantile } from './lib.ts';
import { withProgram } from './program.ts';

export const STATEMENTS = 100;
const CALLS = 3000;
/** Calls of each before any is measured: until then the engines of the processes still compile what runs often. */
const WARM_UP = 1500;

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

/**
 * A request through the proxy (agent told, body read, decided by 100 statements, recorded and flushed to the disk,
 * forwarded) beside the same request through a bare Node reverse proxy and without any, one of each in turn. Each is a
 * process of its own, and each has one kept connection.
 */
export async function bench(ctx: BenchContext): Promise<Figure[]> {
  return withProgram(ctx.url, async ({ url, core, tenantId }) => {
    const by = { person: 'bench', signedIn: false, admin: false, actor: { type: 'operator', id: 'bench' } as const };
    for (let tool = 0; tool < 10; tool++) {
      await core.policies.create(tenantId, { id: `p${tool}`, dsl_source: policyText(tool) }, by);
      await core.policies.approve(tenantId, `p${tool}`, 1, undefined, by);
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
      const proxy = await start([path.resolve('server/proxy/main.ts')], {
        SVC_URL: url,
        SVC_PROXY_KEY: proxyKey,
        SVC_PROXY_PORT: '0',
        SVC_PROXY_ROUTES: routes,
        SVC_PROXY_DIR: path.join(dir, 'state'),
      });
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
      for (let i = 0; i < CALLS + WARM_UP; i++) {
        // more different ones than the proxy remembers answers to
        const body = bodyOf(1 + (i % 2000));
        for (const name of ['direct', 'bare', 'proxy'] as const) {
          const ms = await callers[name](body);
          if (i >= WARM_UP) took[name].push(ms);
        }
        const ms = await through(BODY);
        if (i >= WARM_UP) took.known.push(ms);
        const began = performance.now();
        await file.write(BODY, (i % 100) * 200);
        await file.datasync();
        if (i >= WARM_UP) took.flush.push(performance.now() - began);
      }
      await file.close();
      const at = (name: keyof typeof took, q: number) =>
        quantile(
          took[name].sort((a, b) => a - b),
          q,
        );
      return [
        figure('without a proxy, p50', at('direct', 0.5), 'ms'),
        figure('through a bare Node reverse proxy, p50', at('bare', 0.5), 'ms'),
        figure(`through the proxy, ${STATEMENTS} statements, p50`, at('proxy', 0.5), 'ms'),
        figure('of that: a line written to a file and flushed, p50', at('flush', 0.5), 'ms'),
        figure('added over the bare one, p50', at('proxy', 0.5) - at('bare', 0.5), 'ms', 1, true),
        figure('added over the bare one, p99', at('proxy', 0.99) - at('bare', 0.99), 'ms'),
        figure('added where no rule reads what differs, p50', at('known', 0.5) - at('bare', 0.5), 'ms'),
      ];
    } finally {
      for (const child of children) {
        child.kill();
        if (child.exitCode === null) await once(child, 'exit');
      }
      rmSync(dir, { recursive: true, force: true });
    }
  });
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
