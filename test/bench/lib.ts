import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { connect } from 'node:net';
import { performance } from 'node:perf_hooks';

/** What test/bench/run.ts passes to each benchmark. */
export interface BenchContext {
  /** An empty, migrated database on a server that flushes its commits (fsync and synchronous_commit on). */
  url: string;
  /** Prints one line of the report. */
  print?: (line: string) => void;
  /**
   * Makes the server write a checkpoint. A server that has run for a while writes into recycled WAL segments; a new one creates
   * and flushes 16 MB for each, which occasionally shows as a stalled commit.
   */
  checkpoint?: () => Promise<void>;
  /** `--quick` and `--long`. */
  effort?: Effort;
}

export type Effort = 'quick' | 'usual' | 'long';

/** The one of three that the options select; without a value of its own, `--long` uses the usual one. */
export function pick<T>({ effort = 'usual' }: BenchContext, quick: T, usual: T, long = usual): T {
  return { quick, usual, long }[effort];
}

export interface Figure {
  name: string;
  /** The median if there were several rounds. */
  value: number;
  unit: string;
  /** Over the rounds, if there were several. */
  min?: number;
  max?: number;
  rounds?: number;
  /** The least (or with `atMost` the most) that is accepted. */
  target?: number;
  atMost?: boolean;
  pass?: boolean;
}

/** One measured value, or one per round: then the median counts, and the minimum and maximum are shown. */
export function figure(
  name: string,
  measured: number | readonly number[],
  unit: string,
  target?: number,
  atMost = false,
): Figure {
  const rounds = typeof measured === 'number' ? [measured] : measured;
  const value = median(rounds);
  return {
    ...{ name, value, unit },
    ...(rounds.length > 1 && { min: Math.min(...rounds), max: Math.max(...rounds), rounds: rounds.length }),
    // what could not be measured has missed its aim
    ...(target !== undefined && { target, atMost, pass: atMost ? value <= target : value >= target }),
  };
}

/** The rounds of all contenders, alternating, so that all find the machine in the same state. */
export async function alternate<Name extends string>(
  rounds: number,
  contenders: Record<Name, (round: number) => number | Promise<number>>,
  print?: (line: string) => void,
): Promise<Record<Name, number[]>> {
  const names = Object.keys(contenders) as Name[];
  const found = Object.fromEntries(names.map((name) => [name, []])) as unknown as Record<Name, number[]>;
  for (let round = 0; round < rounds; round++) {
    for (const name of names) found[name].push(await contenders[name](round));
    print?.(`round ${round + 1}: ${names.map((name) => `${name} ${shown(found[name][round]!)}`).join(', ')}`);
  }
  return found;
}

/** Splits consecutive measurements into rounds: the remainder goes to the last. */
export function inParts<T>(measured: readonly T[], parts = 5): T[][] {
  const each = Math.floor(measured.length / parts);
  return Array.from({ length: parts }, (_, n) =>
    measured.slice(n * each, n === parts - 1 ? undefined : (n + 1) * each),
  );
}

/** The ratio in each round: its two measurements were made one right after the other. */
export function ratios(ours: readonly number[], theirs: readonly number[]): number[] {
  if (ours.length !== theirs.length) throw new Error(`${ours.length} rounds beside ${theirs.length}`);
  return ours.map((value, round) => value / theirs[round]!);
}

/**
 * The cost of a unit of work as the amount of work grows, and the cost at the largest size divided by the cheapest: 1 if the
 * total grows linearly, or slower.
 */
export function growth(
  name: string,
  steps: readonly { of: string; cost: number | readonly number[] }[],
  unit: string,
  most?: number,
): Figure[] {
  const costs = steps.map(({ of, cost }) => figure(`${name}, ${of}`, cost, unit));
  const cheapest = Math.min(...costs.map(({ value }) => value));
  const bend = figure(
    `${name}: ${steps.at(-1)!.of} / the cheapest`,
    costs.at(-1)!.value / cheapest,
    'times',
    most,
    true,
  );
  return [...costs, bend];
}

/** A number as the reports print it: with three significant digits. */
export function shown(value: number): string {
  if (Number.isInteger(value) || Math.abs(value) >= 1000) return Math.round(value).toLocaleString('en');
  return value.toPrecision(3);
}

/** For an even number of values, the mean of the middle two. */
export function median(values: readonly number[]): number {
  return quantile(
    values.toSorted((a, b) => a - b),
    0.5,
  );
}

/** Between two values it interpolates linearly by rank: 0.5 is the median. */
export function quantile(sorted: readonly number[], q: number): number {
  const rank = (sorted.length - 1) * q;
  const [low, high] = [sorted[Math.floor(rank)], sorted[Math.ceil(rank)]];
  if (low === undefined || high === undefined) return Number.NaN;
  return low + (high - low) * (rank - Math.floor(rank));
}

/** The tool calls of a made-up fleet: an ingested event of about 440 bytes, with 15 X in place of its id. */
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
  /** The server's address, `http://127.0.0.1:8080`. */
  url: string;
  path?: string;
  /** One tenant each: the value of the Authorization header, and the tenant_id in the events if given. */
  tenants: readonly { authorization: string; tenantId?: string }[];
  connections: number;
  eventsPerRequest: number;
  /**
   * Sent instead of events, one per connection. Each run of three or more X in it is replaced by a number of the same length that
   * grows with each request, across all connections.
   */
  bodies?: readonly string[];
  headers?: Record<string, string>;
  /** Must be in each response; one without it counts as an error. */
  expect?: string;
  seconds: number;
  /** Before the measurement starts. */
  warmSeconds?: number;
  /** Open loop: events per second over all connections, sent whether responses have arrived or not. Otherwise closed loop. */
  rate?: number;
}

export interface LoadResult {
  eventsPerSecond: number;
  requestsPerSecond: number;
  /** Milliseconds from when a request was due to its response. */
  p50: number;
  p99: number;
  max: number;
  /** Responses that were not 2xx, or not what was expected. */
  errors: number;
  firstError?: string;
}

/** Runs the load generator in its own process and resolves with its measurements. */
export async function load(options: LoadOptions): Promise<LoadResult> {
  const child = spawn(process.execPath, [new URL(import.meta.url).pathname, JSON.stringify(options)], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  let out = '';
  child.stdout.on('data', (data) => {
    out += data;
  });
  const [code, signal] = await once(child, 'close');
  if (signal !== 'SIGKILL') throw new Error(`the load generator failed with ${code ?? signal}`);
  const result = JSON.parse(out) as LoadResult;
  // a quantile of no latencies is NaN, which JSON turns into null
  if (result.p50 === null) throw new Error('no request was answered within the measurement: the machine is too busy');
  return result;
}

/**
 * The load generator: raw sockets, and prepared requests whose event ids are incremented in place, so that it costs about a
 * microsecond per event and leaves the machine to what is measured.
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
    const body =
      options.bodies?.[n % options.bodies.length] ??
      JSON.stringify({ events: Array.from({ length: eventsPerRequest }, (_, i) => wireEvent(n + i, tenantId)) });
    const head = [
      `POST ${path} HTTP/1.1`,
      `host: ${hostname}:${port}`,
      `authorization: ${authorization}`,
      'content-type: application/json',
      `content-length: ${Buffer.byteLength(body)}`,
      ...Object.entries(options.headers ?? {}).map(([name, value]) => `${name}: ${value}`),
    ];
    const text = `${head.join('\r\n')}\r\n\r\n${body}`;
    const bytes = Buffer.from(text);
    const places = [...bytes.toString('latin1').matchAll(/X{3,}/g)].map(({ index, 0: { length } }) => ({
      index,
      length,
    }));
    return () => {
      for (const { index, length } of places) bytes.write(digits(length), index, 'latin1');
      // the socket may hold on to what it cannot send at once
      return Buffer.from(bytes);
    };
  };
  /** No two alike: if there is room for a salt, even across runs; otherwise until all numbers of that length are used up. */
  const digits = (length: number) => {
    counter++;
    if (length === ID_DIGITS) return salt + String(counter).padStart(ID_DIGITS - salt.length, '0');
    const first = 10 ** (length - 1);
    return String(first + ((Number(salt) * 997 + counter) % (9 * first)));
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
          const end = endOfAnswer(text);
          if (end < 0) return;
          if (measuring) {
            const answer = text.slice(0, end);
            if (answer.startsWith('HTTP/1.1 2') && answer.includes(options.expect ?? '')) {
              answered++;
              latencies.push(performance.now() - due[0]!);
            } else {
              errors++;
              firstError ??= answer.slice(0, 500);
            }
          }
          due.shift();
          text = text.slice(end);
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

/**
 * Ends a load generator that has printed its result. `process.exit` can wait forever for a compiler thread that itself waits for
 * the main thread (nodejs/node#54918).
 */
export function killSelf(): void {
  process.kill(process.pid, 'SIGKILL');
}

/** Where the first response in the text ends; -1 if it is incomplete. */
function endOfAnswer(text: string): number {
  const head = text.indexOf('\r\n\r\n');
  if (head < 0) return -1;
  if (/\r\ntransfer-encoding: chunked/i.test(text.slice(0, head + 2))) {
    const last = text.indexOf('\r\n0\r\n\r\n', head + 2);
    return last < 0 ? -1 : last + 7;
  }
  const end = head + 4 + Number(/\r\ncontent-length: (\d+)/i.exec(text.slice(0, head))?.[1] ?? 0);
  return text.length < end ? -1 : end;
}

if (import.meta.main) {
  const result = await generate(JSON.parse(process.argv[2]!) as LoadOptions);
  process.stdout.write(JSON.stringify(result), killSelf);
}
