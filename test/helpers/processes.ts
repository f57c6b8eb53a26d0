import { type ChildProcess, spawn } from 'node:child_process';
import { createPublicKey, type KeyObject } from 'node:crypto';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { expect } from 'vitest';
import type { Database } from '../../db/index.ts';
import { verifyChain } from '../../server/chain/verification.ts';
import { PATIENCE } from './patience.ts';
import { freePort } from './ports.ts';

const ROOT = path.resolve(import.meta.dirname, '../..');
export const MASTER_KEY = Buffer.alloc(32, 7).toString('hex');

/** A server in its own process, run like `npm start`. */
export class ServerProcess {
  readonly name: string;
  readonly #env: Record<string, string>;
  readonly #args: readonly string[];
  readonly #dir: string;
  readonly #log: 'pipe' | number;
  #child: ChildProcess | undefined;
  url = '';
  output = '';

  /** `log`: the file that its log goes to, instead of `output`. */
  constructor(
    name: string,
    env: Record<string, string>,
    args: readonly string[] = [],
    { log = 'pipe' }: { log?: 'pipe' | number } = {},
  ) {
    this.name = name;
    this.#env = env;
    this.#args = args;
    this.#log = log;
    this.#dir = mkdtempSync(path.join(tmpdir(), 'svc-process-'));
  }

  /** Starts it and waits until it is serving (it is not "ready" on the tests' database, which does not flush). */
  async start(port?: number): Promise<void> {
    port ??= await freePort();
    this.url = `http://127.0.0.1:${port}`;
    await this.spawn({ PORT: String(port) });
    // only a hang takes this long: on a busy machine several start at once, with nothing compiled yet
    for (const end = Date.now() + 120_000; Date.now() < end; ) {
      if (this.ended) throw new Error(`${this.name} ended: ${this.output.slice(-2000)}`);
      const response = await fetch(`${this.url}/healthz`).catch(() => undefined);
      if (response?.ok) return;
      await delay(25);
    }
    throw new Error(`${this.name} is not ready: ${this.output.slice(-2000)}`);
  }

  /** Starts it without waiting. */
  async spawn(env: Record<string, string> = {}): Promise<void> {
    this.output = '';
    const child = spawn(process.execPath, ['server/main.ts', ...this.#args], {
      cwd: ROOT,
      stdio: ['ignore', this.#log, 'pipe'],
      env: {
        PATH: process.env.PATH ?? '',
        NODE_COMPILE_CACHE: process.env.NODE_COMPILE_CACHE ?? '',
        SVC_DATA_DIR: this.#dir,
        SVC_MASTER_KEY: MASTER_KEY,
        LOG_LEVEL: 'info',
        SVC_PATIENCE: String(PATIENCE),
        ...Object.fromEntries(
          ['KEY', 'SESSION', 'EVALUATE', 'INGEST', 'SIGN_IN', 'EXPORT', 'SUBSCRIPTION_TEST'].map((name) => [
            `SVC_RATE_${name}`,
            '100000',
          ]),
        ),
        ...this.#env,
        ...env,
      },
    });
    this.#child = child;
    for (const stream of [child.stdout, child.stderr]) {
      stream?.on('data', (data) => {
        this.output = (this.output + String(data)).slice(-200_000);
      });
    }
  }

  get ended(): boolean {
    return !this.#child || this.#child.exitCode !== null || this.#child.signalCode !== null;
  }

  get pid(): number {
    return this.#child!.pid!;
  }

  get exitCode(): number | null {
    return this.#child?.exitCode ?? null;
  }

  signal(signal: NodeJS.Signals): void {
    this.#child?.kill(signal);
  }

  /** Restarts it at the same address. */
  async startAgain(): Promise<void> {
    await this.start(Number(new URL(this.url).port));
  }

  async exited(): Promise<void> {
    if (!this.ended) await once(this.#child!, 'exit');
  }

  async kill(): Promise<void> {
    this.signal('SIGKILL');
    await this.exited();
  }

  async dispose(): Promise<void> {
    if (!this.ended) {
      this.signal('SIGCONT');
      await this.kill();
    }
    rmSync(this.#dir, { recursive: true, force: true });
  }

  /** The path of a file in its data directory. */
  file(name: string): string {
    return path.join(this.#env.SVC_DATA_DIR ?? this.#dir, name);
  }

  /** What the first start shows of the tenant that it creates. */
  firstSignIn(): string {
    return readFileSync(this.file('first-sign-in.txt'), 'utf8');
  }

  /** The value of a metric without labels. */
  async metric(name: string): Promise<number> {
    const text = await (await fetch(`${this.url}/metrics`)).text();
    return Number(new RegExp(`^${name} (.*)$`, 'm').exec(text)?.[1] ?? Number.NaN);
  }
}

export interface Writer {
  /** Ids of acknowledged events. */
  readonly acknowledged: Set<string>;
  /** How often a response was not 202, by what it was. */
  readonly refusals: Map<string, number>;
  /** Sends one event until it is acknowledged, trying one server after another. */
  append(servers: readonly ServerProcess[], first?: number): Promise<void>;
}

let nextEvent = 0;

/** Sends events as a proxy does: retrying with the same id, on any server, until acknowledged. */
export function writer(key: string, options: { giveUpMs?: number } = {}): Writer {
  const acknowledged = new Set<string>();
  const refusals = new Map<string, number>();
  const refused = (why: string) => refusals.set(why, (refusals.get(why) ?? 0) + 1);
  return {
    acknowledged,
    refusals,
    async append(servers, first = nextEvent) {
      const id = `e-${process.pid}-${++nextEvent}`;
      const body = JSON.stringify({ events: [eventOf(id)] });
      const end = Date.now() + (options.giveUpMs ?? 150_000);
      for (let attempt = 0; ; attempt++) {
        if (Date.now() > end) throw new Error(`${id} was never acknowledged`);
        const server = servers[(first + attempt) % servers.length]!;
        try {
          const response = await fetch(`${server.url}/v1/events/ingest`, {
            method: 'POST',
            headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
            body,
            signal: AbortSignal.timeout(30_000),
          });
          const answer = (await response.json()) as { accepted?: number; duplicates?: number };
          if (response.status === 202) {
            expect((answer.accepted ?? 0) + (answer.duplicates ?? 0), JSON.stringify(answer)).toBe(1);
            acknowledged.add(id);
            return;
          }
          // nothing else may refuse a valid event
          expect(response.status, JSON.stringify(answer)).toBe(503);
          expect(response.headers.get('retry-after')).not.toBeNull();
          refused('503');
        } catch (error) {
          if ((error as Error).name === 'AssertionError') throw error;
          refused('no answer');
        }
        await delay(Math.min(10 * (attempt + 1), 200));
      }
    },
  };
}

export function eventOf(event_id: string) {
  return {
    event_id,
    event_type: 'decision.allow',
    timestamp: '2026-01-31T12:00:00.000Z',
    proxy_id: 'proxy-1',
    agent_role: 'support',
    agent_id: 'bot-1',
    tool_name: 'refund',
    decision: 'allow',
    evaluation_us: 12,
  };
}

/** Recomputes the chain, and checks that it contains each acknowledged event once. */
export async function expectWhole(db: Database, tenantId: string, acknowledged: ReadonlySet<string>): Promise<void> {
  const { connectionString } = db.owner.options;
  const result = await verifyChain(connectionString!, tenantId, 'forensics', { keys: await signingKeys(db) });
  expect(result).toMatchObject({ verified: true, linear: true });
  const { rows } = await db.owner.query<{ event_id: string }>(
    `select event_id from forensic_record where tenant_id = $1 and seq > 1`,
    [tenantId],
  );
  const stored = rows.map((row) => row.event_id);
  expect(new Set(stored).size, 'no event is in the chain twice').toBe(stored.length);
  const missing = [...acknowledged].filter((id) => !stored.includes(id));
  expect(missing, 'no acknowledged event is missing').toEqual([]);
  expect(stored.length, 'each event was acknowledged in the end').toBe(acknowledged.size);
  expect(result.records_checked).toBe(acknowledged.size + 1);
}

async function signingKeys(db: Database): Promise<KeyObject[]> {
  const { rows } = await db.owner.query<{ public_key: Buffer }>('select public_key from signing_key');
  return rows.map((row) => createPublicKey({ key: row.public_key, type: 'spki', format: 'der' }));
}

export function median(numbers: readonly number[]): number {
  return [...numbers].sort((a, b) => a - b)[Math.floor(numbers.length / 2)] ?? Number.NaN;
}
