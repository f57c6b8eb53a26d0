import { type ChildProcess, fork, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { performance } from 'node:perf_hooks';
import { startWatches } from '../stops/watches.ts';
import { type BenchContext, type Figure, figure, pick, quantile } from './lib.ts';
import { withProgram } from './program.ts';

const PROXIES = 100;
const AGENTS = 10;
/** A stop is created every second and is in force for this long. */
const IN_FORCE_MS = 4_000;
/** No decision for the target may pass this long after the stop was created. */
const LATE_MS = 2_000;
/** Requests per second, of each kind. */
const RATE = 40;

/** What a decision point decided for an agent, and when. */
interface Decided {
  agent: string;
  at: number;
  passed: boolean;
}

/**
 * A stop of an agent every second, lifted four seconds later, while decisions for that agent and others are requested at
 * `/v1/evaluate` and at a proxy, in an open loop. A hundred more proxies wait for stops as proxies do (the proxy's own code, its
 * polls, its files) and constantly look up what is stopped. For comparison, what the machine can do: a bare Node server with a
 * hundred parked requests, which are answered at once.
 */
export async function bench(ctx: BenchContext): Promise<Figure[]> {
  const rounds = pick(ctx, 4, 40);
  return withProgram(ctx.url, async ({ url, core, tenantId, adminKey }) => {
    const by = { person: 'bench', signedIn: false, admin: false, actor: { type: 'operator', id: 'bench' } as const };
    const dsl_source = 'permit(principal in AgentRole::"support", action, resource);';
    await core.policies.create(tenantId, { id: 'all', dsl_source }, by);
    await core.policies.approve(tenantId, 'all', { version: 1 }, by);
    const agents = Array.from({ length: AGENTS }, (_, n) => `bot-${n}`);
    const keys: string[] = [];
    for (const agentId of agents) {
      const made = { label: 'bench', agentId, agentRole: 'support', owner: null };
      keys.push((await core.keys.createAgentKey(tenantId, made, { actor: by.actor })).secret);
    }
    const proxyKey = async () =>
      (await core.keys.createApiKey(tenantId, { label: 'bench', scopes: ['proxy'], owner: null }, { actor: by.actor }))
        .secret;
    const dir = mkdtempSync(path.join(tmpdir(), 'svc-bench-stop-'));
    // each real proxy has its own disk; a hundred sharing this machine's would wait for each other's flushes
    const memory = existsSync('/dev/shm') ? mkdtempSync('/dev/shm/svc-bench-stop-') : path.join(dir, 'watchers');
    const children: ChildProcess[] = [];
    try {
      const upstream = http.createServer((request, response) => request.on('end', () => response.end()).resume());
      upstream.listen(0, '127.0.0.1');
      await once(upstream, 'listening');
      const { port } = upstream.address() as { port: number };
      const routes = path.join(dir, 'routes.json');
      writeFileSync(routes, JSON.stringify({ routes: [{ path: '/*', to: `http://127.0.0.1:${port}` }] }));
      const proxy = spawn(process.execPath, [path.resolve('server/proxy/main.ts')], {
        stdio: ['ignore', 'pipe', 'inherit'],
        env: {
          PATH: process.env.PATH,
          ...{ SVC_URL: url, SVC_PROXY_KEY: await proxyKey(), SVC_PROXY_PORT: '0' },
          ...{ SVC_PROXY_ROUTES: routes, SVC_PROXY_DIR: path.join(dir, 'proxy'), SVC_PROXY_ID: 'whole' },
        },
      });
      children.push(proxy);
      const address = await listening(proxy);

      const start = async (part: string, ...args: string[]) => {
        const child = fork(new URL(import.meta.url), [part, ...args]);
        children.push(child);
        await once(child, 'message');
        return child;
      };
      const watchers = await start('watchers', url, await proxyKey(), memory, agents.join());
      const load = await start('load', url, address, tenantId, keys.join());
      const said = async (child: ChildProcess, what: unknown) => {
        child.send(what as object);
        return (await once(child, 'message'))[0] as never;
      };

      const stops: { agent: string; id: string; createdAt: number; liftedAt: number; acknowledged: number }[] = [];
      const bare: number[] = [];
      const call = async (line: string, body: unknown) => {
        const [method, target] = line.split(' ') as [string, string];
        const response = await fetch(url + target, {
          method,
          headers: { authorization: `Bearer ${adminKey}`, 'content-type': 'application/json' },
          body: JSON.stringify(body),
        });
        if (!response.ok) throw new Error(`${line}: ${await response.text()}`);
        return (await response.json()) as { id: string; created_at: string; proxies: Record<string, number> };
      };
      const running: Promise<void>[] = [];
      const stopOne = async (agent: string) => {
        const body = { target_kind: 'agent', target_id: agent, reason: 'bench', wait: 5 };
        const made = await call('POST /v1/stops', body);
        const createdAt = Date.parse(made.created_at);
        if (made.proxies.applied !== PROXIES + 1) throw new Error(`applied: ${JSON.stringify(made.proxies)}`);
        await sleep(createdAt + IN_FORCE_MS - Date.now());
        const liftedAt = Date.now();
        await core.stops.lift(tenantId, made.id, 'bench', { actor: by.actor }, 'another');
        stops.push({ agent, id: made.id, createdAt, liftedAt, acknowledged: made.proxies.applied_ms_max! });
      };
      const began = Date.now();
      for (let n = 0; n < rounds; n++) {
        await sleep(began + n * 1000 - Date.now());
        running.push(stopOne(agents[n % AGENTS]!));
        await sleep(began + n * 1000 + 500 - Date.now());
        bare.push(...((await said(watchers, 'bare')) as number[]));
      }
      await Promise.all(running);
      await sleep(1000);
      const decided = (await said(load, 'end')) as { evaluate: Decided[]; proxy: Decided[]; failed: number };
      const seen = (await said(watchers, 'end')) as {
        applied: { id: string; at: number; stopped: boolean }[];
        lookups: number;
        passed: { agent: string; last: number }[];
      };
      upstream.closeAllConnections();
      upstream.close();

      const at = (stopped: boolean) =>
        seen.applied
          .filter((one) => one.stopped === stopped)
          .flatMap(({ id, at }) => {
            const stop = stops.find((one) => one.id === id)!;
            return at - (stopped ? stop.createdAt : stop.liftedAt);
          })
          .sort((a, b) => a - b);
      const applied = at(true);
      const lifted = at(false);
      if (applied.length !== rounds * PROXIES) throw new Error(`${applied.length} of ${rounds * PROXIES} were applied`);
      const late = (all: readonly { agent: string; at: number; passed: boolean }[]) =>
        all.filter(
          ({ agent, at, passed }) =>
            passed && stops.some((one) => one.agent === agent && at >= one.createdAt + LATE_MS && at <= one.liftedAt),
        ).length;
      const denied = [...decided.evaluate, ...decided.proxy].filter(({ passed }) => !passed).length;
      const lastPassed = seen.passed.map(({ agent, last }) => ({ agent, at: last, passed: true }));
      bare.sort((a, b) => a - b);
      const acknowledged = stops.map((one) => one.acknowledged).sort((a, b) => a - b);
      return [
        figure(`bare Node, ${PROXIES} parked requests answered at once: p99`, quantile(bare, 0.99), 'ms'),
        figure(`applied by ${PROXIES} proxies, ${rounds} stops: p50`, quantile(applied, 0.5), 'ms'),
        figure('applied: p99', quantile(applied, 0.99), 'ms', 500, true),
        figure('applied: max', applied.at(-1)!, 'ms', LATE_MS, true),
        figure('the slowest proxy, as POST /v1/stops answers: p50', quantile(acknowledged, 0.5), 'ms'),
        figure('the slowest proxy, as POST /v1/stops answers: max', acknowledged.at(-1)!, 'ms'),
        figure('lifted: p50', quantile(lifted, 0.5), 'ms'),
        figure('lifted: p99', quantile(lifted, 0.99), 'ms'),
        figure('decisions of /v1/evaluate', decided.evaluate.length, ''),
        figure('decisions of the proxy', decided.proxy.length, ''),
        figure('of these, denied', denied, ''),
        figure('requests without a decision, such as on a connection that was closed', decided.failed, ''),
        figure(`look-ups at ${PROXIES} proxies`, seen.lookups, ''),
        figure(
          `passed for a target ${LATE_MS / 1000} s or more after its stop`,
          late(decided.evaluate) + late(decided.proxy) + late(lastPassed),
          '',
          0,
          true,
        ),
      ];
    } finally {
      for (const child of children) {
        child.kill();
        if (child.exitCode === null && child.signalCode === null) await once(child, 'exit');
      }
      for (const one of [dir, memory]) rmSync(one, { recursive: true, force: true });
    }
  });
}

const sleep = (ms: number) => new Promise((resolve) => setTimeout(resolve, Math.max(0, ms)));

async function listening(child: ChildProcess): Promise<string> {
  let text = '';
  for await (const data of child.stdout!) {
    text += data;
    const address = /listening on (http:\/\/127\.0\.0\.1:\d+)/.exec(text)?.[1];
    if (address) {
      child.stdout!.resume();
      return address;
    }
  }
  throw new Error(`it did not start: ${text}`);
}

/**
 * A hundred proxies, reduced to stops. For each change: when each of them had it in force, by its own look-ups of an agent. They
 * also look up all agents every 50 ms, keeping only the last time before each change that an agent was let through.
 */
async function watchers(url: string, key: string, dir: string, agents: readonly string[]): Promise<void> {
  const applied: { id: string; at: number; stopped: boolean }[] = [];
  const passed = new Map<string, { agent: string; last: number }>();
  let lookups = 0;
  const all = await startWatches({ url, key, dir, count: PROXIES });
  for (const [n, watch] of all.entries()) {
    const inForce = new Map<string, string>();
    watch.onChange(() => {
      const at = Date.now();
      for (const agent of agents) {
        const id = watch.of({ agent_id: agent, agent_role: 'support' })?.id;
        const before = inForce.get(agent);
        if (id === before) continue;
        if (before !== undefined) applied.push({ id: before, at, stopped: false });
        if (id !== undefined) applied.push({ id, at, stopped: true });
        if (id === undefined) inForce.delete(agent);
        else {
          inForce.set(agent, id);
          // the next look-ups start a new entry
          passed.set(`${n} ${agent} ${id}`, passed.get(`${n} ${agent}`) ?? { agent, last: 0 });
        }
        passed.delete(`${n} ${agent}`);
      }
    });
  }
  const timer = setInterval(() => {
    const at = Date.now();
    for (const [n, watch] of all.entries()) {
      for (const agent of agents) {
        lookups++;
        if (!watch.of({ agent_id: agent, agent_role: 'support' })) passed.set(`${n} ${agent}`, { agent, last: at });
      }
    }
  }, 50);

  // what the machine can do: the same number of parked requests, answered at once
  const parked: http.ServerResponse[] = [];
  const document = 'x'.repeat(600);
  const server = http.createServer((_request, response) => parked.push(response));
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const agent = new http.Agent({ keepAlive: true });
  const { port } = server.address() as { port: number };
  const park = () =>
    new Promise<number>((resolve, reject) => {
      http
        .get({ port, agent }, (response) => response.on('end', () => resolve(performance.now())).resume())
        .on('error', reject);
    });
  process.on('message', async (what) => {
    if (what === 'bare') {
      const waiting = Array.from({ length: PROXIES }, park);
      while (parked.length < PROXIES) await sleep(1);
      const began = performance.now();
      for (const response of parked.splice(0)) response.end(document);
      const took = await Promise.all(waiting);
      process.send!(took.map((at) => at - began));
      return;
    }
    clearInterval(timer);
    process.send!({ applied, lookups, passed: [...passed.values()] });
  });
  process.send!('ready');
}

/** Asks for every agent in turn, at the server and at the proxy, whether responses have arrived or not. */
async function load(url: string, proxy: string, tenant: string, keys: readonly string[]): Promise<void> {
  const decided = { evaluate: [] as Decided[], proxy: [] as Decided[] };
  let failed = 0;
  const agent = new http.Agent({ keepAlive: true });
  const ask = (kind: keyof typeof decided, n: number) => {
    const key = keys[n % keys.length]!;
    const body = JSON.stringify(
      kind === 'evaluate' ? { action_type: 'tool_call', tool_name: 'send', arguments: { n } } : { n },
    );
    const request = http.request(kind === 'evaluate' ? `${url}/v1/evaluate` : `${proxy}/x`, {
      method: 'POST',
      agent,
      headers: {
        ...{ authorization: `Bearer ${key}`, 'content-type': 'application/json', 'x-svc-tenant': tenant },
        'content-length': Buffer.byteLength(body),
      },
    });
    request.on('error', () => failed++);
    request.on('response', (response) => {
      let text = '';
      response.on('data', (data) => {
        text += data;
      });
      response.on('end', () => {
        const at = Date.now();
        const decision = kind === 'proxy' ? response.headers['x-svc-decision'] : /"decision":"(\w+)"/.exec(text)?.[1];
        if (decision !== 'allow' && decision !== 'deny') failed++;
        else decided[kind].push({ agent: `bot-${n % keys.length}`, at, passed: decision === 'allow' });
      });
    });
    request.end(body);
  };
  let n = 0;
  const began = performance.now();
  const timer = setInterval(() => {
    for (; n < ((performance.now() - began) / 1000) * RATE; n++) {
      ask('evaluate', n);
      ask('proxy', n);
    }
  }, 5);
  process.on('message', async () => {
    clearInterval(timer);
    await sleep(2000);
    process.send!({ ...decided, failed });
  });
  process.send!('ready');
}

if (import.meta.main) {
  const [part, ...args] = process.argv.slice(2);
  process.on('disconnect', () => process.exit(0));
  if (part === 'watchers') await watchers(args[0]!, args[1]!, args[2]!, args[3]!.split(','));
  else await load(args[0]!, args[1]!, args[2]!, args[3]!.split(','));
}
