import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { connect } from 'node:net';
import { performance } from 'node:perf_hooks';

/** What test/bench/run.ts gives to each benchmark. */
export interface BenchContext {
  /** An empty, migrated database on a server that flushes its commits (fsync and synchronous_commit on). */
  url: string;
  /** One line of the report. */
  print?: (line: string) => void;
  /**
   * Makes the server write a checkpoint. A server that has run for a while writes into recycled WAL segments; a new one
   * makes and flushes 16 MB for each, which shows as stalls of a commit now and then.
   */
  checkpoint?: () => Promise<void>;
}

export interface Figure {
  name: string;
  value: number;
  unit: string;
  /** The least (or most, for a time) that is accepted. */
  target?: number;
  pass?: boolean;
}

export function figure(name: string, value: number, unit: string, target?: number, atMost = false): Figure {
  const pass = target === undefined ? undefined : atMost ? value <= target : value >= target;
  return { name, value, unit, ...(target !== undefined && { target }), ...(pass !== undefined && { pass }) };
}

export const median = (values: readonly number[]): number => values.toSorted((a, b) => a - b)[values.length >> 1]!;

export function quantile(sorted: readonly number[], q: number): number {
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * q))] ?? Number.NaN;
}

/** The tool calls of a made-up fleet: an ingested event of about 440 bytes, its id left as 15 X. */
export function wireEvent(i: number, tenantId: string | undefined): Record<string, unknown> {
  const decisions = ['allow', 'allow', 'allow', 'allow', 'allow', 'allow', 'allow', 'allow_with_masking', 'deny'];
  const decision = decisions[(i * 7) % decisions.length]!;
  return {
    event_id: 'evt_XXXXXXXXXXXXXXX',
    event_type: `decision.${decision}`,
    timestamp: new Date(Date.UTC(2026, 0, 1) + 7 * i).toISOString(),
    ...(tenantId !== undefined && { tenant_id: tenantId }),
    proxy_id: `prx_eu-west-1_${i % 16}`,
    agent_role: `support-agent-${i % 12}`,
    agent_id: `agt_01j9z8q4m2n7x${(i * 13) % 500}`,
    session_id: `ses_01j9z8q4m2n7p3r5${Math.floor(i / 25)}`,
    tool_name: ['payments.refund', 'crm.contact.update', 'email.send', 'db.query'][i % 4],
    method: ['GET', 'POST', 'PUT', 'DELETE'][i % 4],
    decision,
    policy_id: `pol_refund-limit-${i % 40}`,
    confidence: (i % 1000) / 1000,
    evaluation_us: 50 + (i % 900),
    total_latency_ms: 1 + (i % 90),
  };
}
const ID_DIGITS = 15;

export interface LoadOptions {
  /** Where the server listens, `http://127.0.0.1:8080`. */
  url: string;
  path?: string;
  /** One tenant each: the value of the Authorization header, and the tenant_id in the events where given. */
  tenants: readonly { authorization: string; tenantId?: string }[];
  connections: number;
  eventsPerRequest: number;
  seconds: number;
  /** Before the measurement begins. */
  warmSeconds?: number;
  /** Open loop: events per second over all connections, sent whether answers have come or not. Else closed loop. */
  rate?: number;
}

export interface LoadResult {
  eventsPerSecond: number;
  requestsPerSecond: number;
  /** Milliseconds from when a request was due to its answer. */
  p50: number;
  p99: number;
  max: number;
  /** Answers that were not 2xx. */
  errors: number;
  firstError?: string;
}

/** Runs the load generator in a process of its own and resolves with what it measured. */
export async function load(options: LoadOptions): Promise<LoadResult> {
  const child = spawn(process.execPath, [new URL(import.meta.url).pathname, JSON.stringify(options)], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  let out = '';
  child.stdout.on('data', (data) => {
    out += data;
  });
  const [code] = await once(child, 'close');
  if (code !== 0) throw new Error(`the load generator failed with ${code}`);
  const result = JSON.parse(out) as LoadResult;
  // a quantile of no latencies is NaN, which JSON gives as null
  if (result.p50 === null) throw new Error('no request was answered within the measurement: the machine is too busy');
  return result;
}

/**
 * The load generator: raw sockets, requests made beforehand whose event ids are counted up in place, so that it costs
 * about a microsecond an event and leaves the machine to what is measured.
 */
async function generate(options: LoadOptions): Promise<LoadResult> {
  const { url, path = '/v1/events/ingest', tenants, connections, eventsPerRequest, seconds, rate } = options;
  const { hostname, port } = new URL(url);
  const salt = String(Math.floor(Math.random() * 1e5)).padStart(5, '0');
  const latencies: number[] = [];
  let counter = 0;
  let measuring = false;
  let stopped = false;
  let answered = 0;
  let errors = 0;
  let firstError: string | undefined;

  const prepare = (n: number) => {
    const { authorization, tenantId } = tenants[n % tenants.length]!;
    const body = JSON.stringify({
      events: Array.from({ length: eventsPerRequest }, (_, i) => wireEvent(n + i, tenantId)),
    });
    const head = [
      `POST ${path} HTTP/1.1`,
      `host: ${hostname}:${port}`,
      `authorization: ${authorization}`,
      'content-type: application/json',
      `content-length: ${Buffer.byteLength(body)}`,
    ];
    const bytes = Buffer.from(`${head.join('\r\n')}\r\n\r\n${body}`);
    const places: number[] = [];
    for (let at = bytes.indexOf('XXX'); at >= 0; at = bytes.indexOf('XXX', at + ID_DIGITS)) places.push(at);
    return () => {
      for (const place of places) bytes.write(salt + String(++counter).padStart(ID_DIGITS - 5, '0'), place, 'latin1');
      // the socket may keep what it cannot send at once
      return Buffer.from(bytes);
    };
  };
  const run = (n: number) =>
    new Promise<void>((resolve, reject) => {
      const next = prepare(n);
      const socket = connect(Number(port), hostname);
      socket.setNoDelay(true);
      const due: number[] = [];
      let text = '';
      const send = (at: number) => {
        due.push(at);
        socket.write(next());
      };
      const interval = rate === undefined ? 0 : (connections * eventsPerRequest * 1000) / rate;
      let at = performance.now() + Math.random() * interval;
      const tick = () => {
        if (stopped) return;
        for (const now = performance.now(); at <= now; at += interval) send(at);
        setTimeout(tick, Math.max(0, at - performance.now()));
      };
      const finish = () => {
        socket.destroy();
        resolve();
      };
      socket.on('error', reject);
      socket.on('connect', () => (rate === undefined ? send(performance.now()) : tick()));
      socket.on('data', (data) => {
        text += data.toString('latin1');
        for (;;) {
          const head = text.indexOf('\r\n\r\n');
          const length = Number(/content-length: (\d+)/i.exec(text.slice(0, head))?.[1] ?? 0);
          if (head < 0 || text.length < head + 4 + length) return;
          if (measuring) {
            if (text.startsWith('HTTP/1.1 2')) {
              answered++;
              latencies.push(performance.now() - due[0]!);
            } else {
              errors++;
              firstError ??= text.slice(0, 500);
            }
          }
          due.shift();
          text = text.slice(head + 4 + length);
          if (stopped) return finish();
          if (rate === undefined) send(performance.now());
        }
      });
      setTimeout(finish, ((options.warmSeconds ?? 1) + seconds + 3) * 1000).unref();
    });
  const all = Array.from({ length: connections }, (_, n) => run(n));
  await new Promise((resolve) => setTimeout(resolve, (options.warmSeconds ?? 1) * 1000));
  measuring = true;
  const began = performance.now();
  await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
  const measured = (performance.now() - began) / 1000;
  measuring = false;
  stopped = true;
  await Promise.race([Promise.all(all), new Promise((resolve) => setTimeout(resolve, 2000))]);
  latencies.sort((a, b) => a - b);
  return {
    eventsPerSecond: (answered * eventsPerRequest) / measured,
    requestsPerSecond: answered / measured,
    p50: quantile(latencies, 0.5),
    p99: quantile(latencies, 0.99),
    max: latencies.at(-1) ?? Number.NaN,
    errors,
    ...(firstError !== undefined && { firstError }),
  };
}

if (import.meta.main) {
  const result = await generate(JSON.parse(process.argv[2]!) as LoadOptions);
  process.stdout.write(JSON.stringify(result), () => process.exit(0));
}
