import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { open } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { performance } from 'node:perf_hooks';
import { createInterface } from 'node:readline';
import { type BenchContext, type Figure, figure, pick, quantile } from './lib.ts';
import { withProgram } from './program.ts';
import { policyText, STATEMENTS } from './proxy.ts';

const CONCURRENT = 200;
const ROUNDS = 15;

/**
 * A tool call through `svc-proxy mcp` (decided by 100 statements, recorded and flushed to disk, forwarded), compared with the
 * same call through a bare pass-through process and with a direct call, one of each in turn, over standard input and output. Then
 * 200 calls at a time through each.
 */
export async function bench(ctx: BenchContext): Promise<Figure[]> {
  return withProgram(ctx.url, async ({ url, core, tenantId }) => {
    const by = { person: 'bench', signedIn: false, admin: false, actor: { type: 'operator', id: 'bench' } as const };
    for (let tool = 0; tool < 10; tool++) {
      await core.policies.create(tenantId, { id: `p${tool}`, dsl_source: policyText(tool, 'tool_call', '') }, by);
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
    const dir = mkdtempSync(path.join(tmpdir(), 'svc-bench-mcp-'));
    const own = new URL(import.meta.url).pathname;
    const env = {
      SVC_URL: url,
      SVC_PROXY_KEY: proxyKey,
      SVC_AGENT_KEY: agentKey,
      SVC_PROXY_DIR: path.join(dir, 'state'),
      LOG_LEVEL: 'error',
    };
    const proxy = [
      path.resolve('server/proxy/main.ts'),
      'mcp',
      '--name',
      'bench',
      '--',
      process.execPath,
      own,
      'server',
    ];
    const clients: Client[] = [];
    try {
      const begin = async (args: string[]) => {
        const client = new Client(args, env);
        clients.push(client);
        await client.begin();
        return client;
      };
      const callers = {
        direct: await begin([own, 'server']),
        bare: await begin([own, 'bare']),
        proxy: await begin(proxy),
      };
      const took = { direct: [] as number[], bare: [] as number[], proxy: [] as number[], flush: [] as number[] };
      const file = await open(path.join(dir, 'line'), 'w');
      const line = Buffer.alloc(800, 'x');
      const calls = pick(ctx, 150, 3000);
      /** Calls before any is measured: until then, the processes' engines are still compiling the hot paths. */
      const warmUp = pick(ctx, 150, 1500);
      for (let i = 0; i < calls + warmUp; i++) {
        for (const name of ['direct', 'bare', 'proxy'] as const) {
          const ms = await callers[name].call(i);
          if (i >= warmUp) took[name].push(ms);
        }
        const began = performance.now();
        await file.write(line, 0, line.length, (i % 100) * line.length);
        await file.datasync();
        if (i >= warmUp) took.flush.push(performance.now() - began);
      }
      await file.close();
      const together = { bare: [] as number[], proxy: [] as number[] };
      for (let round = 0; round < pick(ctx, 6, ROUNDS); round++) {
        for (const name of ['bare', 'proxy'] as const) {
          const began = performance.now();
          await Promise.all(Array.from({ length: CONCURRENT }, (_, n) => callers[name].call(round * CONCURRENT + n)));
          if (round >= 3) together[name].push(performance.now() - began);
        }
      }
      const at = (values: number[], q: number) =>
        quantile(
          values.toSorted((a, b) => a - b),
          q,
        );
      return [
        figure('without a proxy, p50', at(took.direct, 0.5), 'ms'),
        figure('through a bare pass-through, p50', at(took.bare, 0.5), 'ms'),
        figure(`through svc-proxy mcp, ${STATEMENTS} statements, p50`, at(took.proxy, 0.5), 'ms'),
        figure('of that: a line written to a file and flushed, p50', at(took.flush, 0.5), 'ms'),
        figure('added over the bare one, p50', at(took.proxy, 0.5) - at(took.bare, 0.5), 'ms', 0.5, true),
        figure('added over the bare one, p99', at(took.proxy, 0.99) - at(took.bare, 0.99), 'ms'),
        figure(`${CONCURRENT} calls at a time through the bare one, p50`, at(together.bare, 0.5), 'ms'),
        figure(`${CONCURRENT} calls at a time through svc-proxy mcp, p50`, at(together.proxy, 0.5), 'ms'),
        figure('of those, per call', at(together.proxy, 0.5) / CONCURRENT, 'ms'),
      ];
    } finally {
      for (const client of clients) await client.end();
      rmSync(dir, { recursive: true, force: true });
    }
  });
}

/** A minimal client for measuring: lines of JSON, and responses by id. */
class Client {
  readonly #child: ChildProcess;
  readonly #waiting = new Map<number, (answer: { result?: { isError?: boolean } }) => void>();
  #next = 0;

  constructor(args: string[], env: Record<string, string>) {
    this.#child = spawn(process.execPath, args, {
      stdio: ['pipe', 'pipe', 'inherit'],
      env: { PATH: process.env.PATH, ...env },
    });
    createInterface({ input: this.#child.stdout! }).on('line', (line) => {
      const message = JSON.parse(line);
      this.#waiting.get(message.id)?.(message);
      this.#waiting.delete(message.id);
    });
  }

  async begin(): Promise<void> {
    const clientInfo = { name: 'bench', version: '1' };
    await this.#ask('initialize', { protocolVersion: '2025-06-18', capabilities: {}, clientInfo });
    this.#child.stdin!.write('{"jsonrpc":"2.0","method":"notifications/initialized"}\n');
  }

  /** The milliseconds of one call; there are more different calls than the proxy remembers answers to. */
  async call(i: number): Promise<number> {
    const args = { amount: 1 + (i % 2000), user: { id: 'u_1', tier: 'gold' }, items: [{ sku: 'a-1', count: 2 }] };
    const began = performance.now();
    const { result } = await this.#ask('tools/call', { name: 'tool_3', arguments: args });
    const ms = performance.now() - began;
    if (!result || result.isError) throw new Error(`a call was not made: ${JSON.stringify(result)}`);
    return ms;
  }

  async end(): Promise<void> {
    this.#child.stdin!.end();
    this.#child.kill();
    if (this.#child.exitCode === null && this.#child.signalCode === null) await once(this.#child, 'exit');
  }

  #ask(method: string, params: unknown): Promise<{ result?: { isError?: boolean } }> {
    const id = ++this.#next;
    return new Promise((resolve) => {
      this.#waiting.set(id, resolve);
      this.#child.stdin!.write(`${JSON.stringify({ jsonrpc: '2.0', id, method, params })}\n`);
    });
  }
}

if (import.meta.main) {
  const say = (message: unknown) => process.stdout.write(`${JSON.stringify(message)}\n`);
  if (process.argv[2] === 'bare') {
    // parses and serializes each message, as anything in between would
    const server = spawn(process.execPath, [process.argv[1]!, 'server'], { stdio: ['pipe', 'pipe', 'inherit'] });
    createInterface({ input: process.stdin })
      .on('line', (line) => server.stdin.write(`${JSON.stringify(JSON.parse(line))}\n`))
      .on('close', () => server.stdin.end());
    createInterface({ input: server.stdout }).on('line', (line) => say(JSON.parse(line)));
  } else {
    createInterface({ input: process.stdin }).on('line', (line) => {
      const { id, method, params } = JSON.parse(line);
      if (id === undefined) return;
      const { protocolVersion } = params;
      const result =
        method === 'initialize'
          ? { protocolVersion, capabilities: { tools: {} }, serverInfo: { name: 'bench', version: '1' } }
          : { content: [{ type: 'text', text: 'done' }] };
      say(
        method === 'server/discover'
          ? { jsonrpc: '2.0', id, error: { code: -32601, message: 'unknown' } }
          : { jsonrpc: '2.0', id, result },
      );
    });
  }
}
