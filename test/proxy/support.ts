import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import http, { type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { expect } from 'vitest';
import type { Batch } from '../../server/proxy/spool.ts';
import { atEnd } from '../helpers/cleanups.ts';
import { PATIENCE } from '../helpers/patience.ts';
import { freePort } from '../helpers/ports.ts';
import type { Answer, TestServer, TestTenant } from '../helpers/server.ts';
import { until } from '../helpers/until.ts';

const ROOT = path.resolve(import.meta.dirname, '../..');

export function temporaryDirectory(): string {
  const dir = mkdtempSync(path.join(tmpdir(), 'svc-proxy-'));
  atEnd(() => rmSync(dir, { recursive: true, force: true }));
  return dir;
}

/** The proxy as `npm run proxy` runs it, with a directory of its own that outlives the process. */
export class ProxyProcess {
  readonly dir = temporaryDirectory();
  readonly #routes: unknown;
  readonly #env: Record<string, string>;
  #child: ChildProcess | undefined;
  url = '';
  output = '';

  constructor(routes: readonly Record<string, unknown>[], env: Record<string, string>) {
    this.#routes = { routes };
    this.#env = env;
    atEnd(() => this.kill());
  }

  /** Starts it and waits until it listens. `log`: the file that its log goes to, instead of `output`. */
  async start(env: Record<string, string> = {}, { log = 'pipe' }: { log?: 'pipe' | number } = {}): Promise<this> {
    const port = log === 'pipe' ? 0 : await freePort();
    const routes = path.join(this.dir, 'routes.json');
    writeFileSync(routes, JSON.stringify(this.#routes));
    this.output = '';
    const child = spawn(process.execPath, ['server/proxy/main.ts'], {
      cwd: ROOT,
      stdio: ['ignore', log, 'pipe'],
      env: {
        PATH: process.env.PATH ?? '',
        NODE_COMPILE_CACHE: process.env.NODE_COMPILE_CACHE ?? '',
        SVC_PROXY_PORT: String(port),
        SVC_PROXY_DIR: path.join(this.dir, 'state'),
        SVC_PROXY_ROUTES: routes,
        LOG_LEVEL: 'debug',
        SVC_PATIENCE: String(PATIENCE),
        ...this.#env,
        ...env,
      },
    });
    this.#child = child;
    for (const stream of [child.stdout, child.stderr]) {
      stream?.on('data', (data) => {
        this.output += data;
      });
    }
    const silent = `http://127.0.0.1:${port}`;
    this.url = await until(async () => {
      if (child.exitCode !== null) throw new Error(`the proxy ended: ${this.output}`);
      if (port === 0) return /"address":"([^"]+)"/.exec(this.output)?.[1];
      return (await fetch(`${silent}/healthz`).catch(() => undefined))?.ok && silent;
    }, 'the proxy listens');
    return this;
  }

  async ready(): Promise<this> {
    await until(async () => (await fetch(`${this.url}/readyz`)).ok, `the proxy is ready: ${this.output}`);
    return this;
  }

  get pid(): number {
    return this.#child!.pid!;
  }

  signal(signal: NodeJS.Signals): void {
    this.#child?.kill(signal);
  }

  async exited(): Promise<number | null> {
    const child = this.#child;
    if (child && child.exitCode === null && child.signalCode === null) await once(child, 'exit');
    return child?.exitCode ?? null;
  }

  async kill(): Promise<void> {
    this.signal('SIGKILL');
    await this.exited();
  }

  /** The processor time that it has taken so far, in milliseconds: unlike its time, it does not depend on what else runs. */
  cpuMs(): number {
    // after its name, which may have spaces in it; in hundredths of a second
    const fields = readFileSync(`/proc/${this.#child!.pid}/stat`, 'utf8')
      .replace(/^.*\) /s, '')
      .split(' ');
    return (Number(fields[11]) + Number(fields[12])) * 10;
  }

  /** What it holds in memory. */
  residentBytes(): number {
    return Number(/VmRSS:\s+(\d+) kB/.exec(readFileSync(`/proc/${this.#child!.pid}/status`, 'utf8'))![1]) * 1024;
  }

  /** The metrics by name, with their labels. */
  async metrics(): Promise<Record<string, number>> {
    const text = await (await fetch(`${this.url}/metrics`)).text();
    const lines = text.split('\n').filter((line) => line !== '' && !line.startsWith('#'));
    return Object.fromEntries(lines.map((line) => [line.replace(/ \S+$/, ''), Number(/\S+$/.exec(line)?.[0])]));
  }

  /** Sends a request through the proxy and checks the status. */
  async call<T = Record<string, unknown>>(
    expected: number,
    line: string,
    credential: string | undefined,
    options: { body?: unknown; headers?: Record<string, string> } = {},
  ): Promise<Answer<T>> {
    const [method, target] = line.split(' ') as [string, string];
    const { body } = options;
    const raw = typeof body === 'string' || body instanceof Uint8Array;
    const response = await fetch(this.url + target, {
      method,
      redirect: 'manual',
      headers: {
        ...(credential && { authorization: `Bearer ${credential}` }),
        ...(body !== undefined && { 'content-type': 'application/json' }),
        ...options.headers,
      },
      ...(body !== undefined && { body: raw ? (body as string) : JSON.stringify(body) }),
    });
    const text = await response.text();
    expect(response.status, `${line}: ${text.slice(0, 500)}\n${this.output.slice(-2000)}`).toBe(expected);
    const json = /json/.test(response.headers.get('content-type') ?? '') && text !== '';
    return { status: response.status, headers: response.headers, body: (json ? JSON.parse(text) : text) as T, text };
  }
}

export interface Received {
  method: string;
  url: string;
  headers: http.IncomingHttpHeaders;
  body: string;
}

/** An upstream API: remembers what it received, and answers as it is told. */
export class Upstream {
  readonly received: Received[] = [];
  readonly #server: http.Server;
  url = '';
  /** Answers a request whose body was read. */
  respond: (request: Received, response: ServerResponse, raw: IncomingMessage) => void = ({ body }, response) => {
    response.setHeader('content-type', 'application/json').end(body || '{"ok":true}');
  };

  constructor() {
    this.#server = http.createServer(async (request, response) => {
      const parts: Buffer[] = [];
      for await (const part of request) parts.push(part as Buffer);
      const received: Received = {
        method: request.method!,
        url: request.url!,
        headers: request.headers,
        body: Buffer.concat(parts).toString(),
      };
      this.received.push(received);
      this.respond(received, response, request);
    });
    atEnd(() => this.stop());
  }

  async start(port = 0): Promise<this> {
    this.#server.listen(port, '127.0.0.1');
    await once(this.#server, 'listening');
    this.url = `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
    return this;
  }

  async stop(): Promise<void> {
    if (!this.#server.listening) return;
    const closed = once(this.#server, 'close');
    this.#server.close();
    this.#server.closeAllConnections();
    await closed;
  }
}

/** Creates a policy, or a new version of it, and brings it into force. */
export async function enforce(server: TestServer, tenant: TestTenant, id: string, source: string): Promise<void> {
  const known = await fetch(`${server.url}/v1/policies/${id}`, {
    headers: { authorization: `Bearer ${tenant.admin.key}` },
  });
  if (known.ok) await server.call(200, `PUT /v1/policies/${id}`, tenant.admin, { dsl_source: source });
  else {
    await server.call(201, 'POST /v1/policies', tenant.admin, { id, dsl_source: source });
    await server.call(200, `POST /v1/policies/${id}/approve`, tenant.admin, { version: 1 });
  }
}

export interface Governed {
  tenant: TestTenant;
  proxyKey: string;
  agentKey: string;
  env: Record<string, string>;
}

/** A tenant with one agent (`bot-1`, role `clerk`) and a proxy's key. */
export async function governed(server: TestServer, policies: Record<string, string>): Promise<Governed> {
  const tenant = await server.tenant();
  for (const [id, source] of Object.entries(policies)) await enforce(server, tenant, id, source);
  const proxyKey = (await tenant.key('proxy')).key!;
  const agentKey = (await tenant.agent('bot-1', 'clerk')).key!;
  // with it, each start of a proxy takes half the processor time
  const { NODE_COMPILE_CACHE = '' } = process.env;
  const env = { NODE_COMPILE_CACHE, SVC_PATIENCE: String(PATIENCE), SVC_URL: server.url, SVC_PROXY_KEY: proxyKey };
  return { tenant, proxyKey, agentKey, env };
}

export interface Listed {
  id: string;
  decision: string;
  [name: string]: unknown;
}

/** All decisions of the tenant, oldest first. */
export async function decisions(server: TestServer, tenant: TestTenant): Promise<Listed[]> {
  const all: Listed[] = [];
  for (let after = ''; ; ) {
    const { body } = await server.call<{ events: Listed[]; next_cursor: string; has_more: boolean }>(
      200,
      `GET /v1/events?limit=1000${after && `&after=${after}`}`,
      tenant.admin,
    );
    all.push(...body.events);
    if (!body.has_more) return all.reverse();
    after = encodeURIComponent(body.next_cursor);
  }
}

/** The events of a batch of the spool, as the control plane reads them. */
export function eventsOf(batch: Batch | undefined): Record<string, unknown>[] {
  return (batch?.items ?? []).map(({ event }) => JSON.parse(event.toString()));
}
