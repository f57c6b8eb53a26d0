import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { randomBytes, randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';
import type { components, paths } from '../../sdk/client/src/index.ts';
import { checkpointFile, notesIn } from '../../server/chain/checkpoint-file.ts';
import type { ChainName } from '../../server/chain/record.ts';
import { eventually, freePort } from './pair.ts';

const ROOT = path.resolve(import.meta.dirname, '../..');
/** The tenant created by the first start. */
const DEFAULT = 'default';
/** The first start creates all tables. */
const START_MS = 180_000;
/** The number of events in a batch. */
export const BATCH = 100;

/** The body that a route takes according to the OpenAPI document; `never` if it is not JSON. */
type Body<Route extends keyof paths> = Extract<
  paths[Route],
  { post: { requestBody: { content: { 'application/json': unknown } } } }
>['post']['requestBody']['content']['application/json'];

const eventOf = (event_id: string): Body<'/v1/events/ingest'>['events'][number] => ({
  event_id,
  event_type: 'decision.allow',
  timestamp: new Date().toISOString(),
  proxy_id: 'drill',
  agent_role: 'drill',
  agent_id: 'drill',
  tool_name: 'drill',
  decision: 'allow',
  evaluation_us: 1,
});

/** A server's address, and the credentials to use. */
interface Caller {
  readonly url: string;
  readonly headers: Record<string, string>;
}

const withKey = (url: string, key: string | undefined): Caller => ({
  url,
  headers: { authorization: `Bearer ${key}` },
});

/** `id`: replaces the one in the route. */
function post<Route extends keyof paths>(
  { url, headers }: Caller,
  route: Route,
  body: Body<Route>,
  id = '',
): Promise<Response> {
  return fetch(url + route.replace('{id}', id), {
    method: 'POST',
    headers: { ...headers, 'content-type': 'application/json' },
    body: JSON.stringify(body),
    signal: AbortSignal.timeout(15_000),
  });
}

/** Resolves with the text of a successful response. Throws on any other. */
async function done(asked: Promise<Response>): Promise<string> {
  const response = await asked;
  const text = await response.text();
  if (!response.ok) throw new Error(`${response.url} was answered ${response.status}: ${text}`);
  return text;
}

/** Sends one event. Resolves with whether it was acknowledged; any response other than a 503 with Retry-After is a fault. */
export async function sendEvent(url: string, key: string | undefined, event_id: string): Promise<boolean> {
  const response = await post(withKey(url, key), '/v1/events/ingest', { events: [eventOf(event_id)] });
  const text = await response.text();
  if (response.status === 202) return true;
  if (response.status === 503 && response.headers.has('retry-after')) return false;
  throw new Error(`an event was answered ${response.status}: ${text}`);
}

/** The control plane, in its own process with the settings of an installation. */
export class Server {
  readonly #env: Record<string, string>;
  readonly #dir = mkdtempSync(path.join(tmpdir(), 'svc-drill-server-'));
  #child: ChildProcess | undefined;
  /** The key of each tenant. */
  #keys = new Map<string, string>();
  #agents = new Map<string, string>();
  /** The first admin of each tenant that was created here. */
  #admins = new Map<string, string>();
  #port = 0;
  /** Signs in, once, the administrator created by the first start. */
  #link: URL | undefined;
  output = '';

  constructor(databaseUrl: string, settings: Record<string, string> = {}) {
    this.#env = {
      PATH: process.env.PATH ?? '',
      ...(process.env.SVC_PATIENCE !== undefined && { SVC_PATIENCE: process.env.SVC_PATIENCE }),
      // a drill starts it and its commands many times
      NODE_COMPILE_CACHE: process.env.NODE_COMPILE_CACHE ?? '',
      SVC_MASTER_KEY: randomBytes(32).toString('hex'),
      SVC_RATE_INGEST: '1000000',
      SVC_RATE_EVALUATE: '1000000',
      ...settings,
      DATABASE_URL: databaseUrl,
      SVC_DATA_DIR: this.#dir,
    };
  }

  /** Another process of this installation, with its own settings. */
  another(settings: Record<string, string>): Server {
    const { PORT: _port, DATABASE_URL, ...same } = this.#env;
    const other = new Server(DATABASE_URL!, { ...same, ...settings });
    other.#keys = this.#keys;
    other.#agents = this.#agents;
    other.#admins = this.#admins;
    return other;
  }

  get url(): string {
    return `http://127.0.0.1:${this.#port}`;
  }

  /** Resolves when it is serving. Later starts use the same address. */
  async start(): Promise<void> {
    if (this.#port === 0) this.#port = await freePort();
    this.#env.PORT = String(this.#port);
    const child = spawn(process.execPath, ['server/main.ts'], {
      cwd: ROOT,
      env: this.#env,
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    this.#child = child;
    for (const stream of [child.stdout, child.stderr]) {
      stream.on('data', (data) => {
        this.output = (this.output + String(data)).slice(-100_000);
      });
    }
    await eventually(
      'the server is started',
      async () => child.exitCode !== null || (await fetch(`${this.url}/healthz`)).ok,
      START_MS,
    );
    if (child.exitCode !== null) throw new Error(`the server ended: ${this.output}`);
    if (this.#keys.has(DEFAULT)) return;
    // the first start writes the key of the tenant that it creates, and a link, into a file
    await eventually('the server made its first tenant', async () => {
      const [, file] = /"file":"([^"]*first-sign-in\.txt)"/.exec(this.output) ?? [];
      const text = file === undefined ? '' : readFileSync(file, 'utf8');
      const [key] = /svc_key_[\w-]+/.exec(text) ?? [];
      const [link] = /http\S+verify\?token=[\w-]+/.exec(text) ?? [];
      if (key === undefined || link === undefined) return false;
      this.#keys.set(DEFAULT, key);
      this.#link = new URL(link);
      return true;
    });
  }

  /** The next start uses another database. */
  moveTo(databaseUrl: string): void {
    this.#env.DATABASE_URL = databaseUrl;
  }

  /** Creates a tenant. */
  async tenant(id: string): Promise<void> {
    const words = ['--id', id, '--name', id, '--admin-email', 'drill@example.com', '--json'];
    const made = JSON.parse(await this.svc('tenant', 'create', ...words)) as { api_key: string; admin_id: string };
    this.#keys.set(id, made.api_key);
    this.#admins.set(id, made.admin_id);
  }

  async ready(): Promise<void> {
    await eventually('the server is ready', async () => {
      const { status } = (await (await fetch(`${this.url}/readyz`)).json()) as { status: string };
      return status === 'ready';
    });
  }

  /** Sends one event. Resolves with whether it was acknowledged; any other response asks for a retry. */
  send(event_id: string, tenant: string): Promise<boolean> {
    return sendEvent(this.url, this.#keys.get(tenant), event_id);
  }

  /** Sends many events at once, or asks for one decision. Throws if they are not stored. */
  async ask(what: 'batches' | 'evaluate', tenant: string): Promise<void> {
    if (what === 'batches') {
      const events = Array.from({ length: BATCH }, () => eventOf(randomUUID()));
      await done(post(withKey(this.url, this.#keys.get(tenant)), '/v1/events/ingest', { events }));
    } else {
      const agent = withKey(this.url, this.#agents.get(tenant));
      await done(post(agent, '/v1/evaluate', { action_type: 'tool_call', tool_name: 'drill' }));
    }
  }

  /** Creates an agent of a tenant, which can then ask for decisions. */
  async agent(tenant: string): Promise<void> {
    const admin = withKey(this.url, this.#keys.get(tenant));
    const owner_id = this.#admins.get(tenant)!;
    const made = await done(post(admin, '/v1/agent-keys', { agent_id: 'drill', agent_role: 'drill', owner_id }));
    const { key } = JSON.parse(made) as { key: string };
    this.#agents.set(tenant, key);
  }

  /** Retries as long as the server asks to. Resolves with whether the chain is intact, and the server's response. */
  async verify(tenant = DEFAULT, chain: ChainName = 'forensics'): Promise<{ whole: boolean; said: string }> {
    let said = '';
    await eventually('the chain is verified', async () => {
      const { headers } = withKey(this.url, this.#keys.get(tenant));
      const response = await fetch(`${this.url}/v1/${chain}/verify`, { headers });
      said = await response.text();
      return response.status !== 503;
    });
    const { verified, linear } = JSON.parse(said) as Partial<components['schemas']['Verification']>;
    return { whole: verified === true && linear === true, said };
  }

  /** Creates an API key of the first tenant. */
  async key(scope: string): Promise<string> {
    const { key } = JSON.parse(await this.svc('key', 'create', '--tenant', DEFAULT, '--scopes', scope, '--json')) as {
      key: string;
    };
    return key;
  }

  /** Runs an operator's command. */
  async svc(...words: string[]): Promise<string> {
    const args = ['server/cli.ts', ...words];
    return (await promisify(execFile)(process.execPath, args, { cwd: ROOT, env: this.#env })).stdout;
  }

  /** What `svc doctor` reports as failed. */
  async doctor(): Promise<string[]> {
    // it exits with 1 if it finds something
    const said = await this.svc('doctor', '--json').catch((error: { stdout: string }) => error.stdout);
    const { checks } = JSON.parse(said) as { checks: { check: string; level: string; detail: string }[] };
    return checks.filter(({ level }) => level === 'FAIL').map(({ check, detail }) => `${check}: ${detail}`);
  }

  /** Does what an operator does about closed chains. Resolves with how many decisions are known to be lost. */
  async acceptLosses(chains: readonly string[], reason: string): Promise<number> {
    let lost = 0;
    // the audit chain comes first: accepting the loss of the other is recorded in it
    for (const chain of chains.toSorted()) {
      const words = ['--tenant', DEFAULT, '--chain', chain, '--reason', reason, '--json'];
      const accepted = JSON.parse(await this.svc('chain', 'accept-loss', ...words)) as {
        kept_seq: number;
        lost_seq: number;
      };
      if (chain === 'forensics') lost = accepted.lost_seq - accepted.kept_seq;
    }
    return lost;
  }

  /** The newest record listed in the decisions' checkpoint file. */
  async filed(): Promise<number> {
    let newest = 0;
    const file = checkpointFile(path.join(this.#dir, 'checkpoints'), DEFAULT, 'forensics');
    for await (const { seq } of notesIn(file)) newest = Math.max(newest, seq);
    return newest;
  }

  /** Has a new policy enforced at once, as the administrator created by the first start. */
  async enforce(id: string, dsl_source: string): Promise<void> {
    const { pathname, search, origin } = this.#link!;
    const signedIn = await fetch(this.url + pathname + search, { redirect: 'manual' });
    const cookie = signedIn.headers.get('set-cookie')!.split(';')[0]!;
    const administrator = { url: this.url, headers: { cookie, origin } };
    await done(post(administrator, '/v1/policies', { id, dsl_source }));
    await done(post(administrator, '/v1/policies/{id}/break-glass', { version: 1, reason: 'drill' }, id));
  }

  /** Kills it. */
  async kill(): Promise<void> {
    const child = this.#child;
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    child.kill('SIGKILL');
    await once(child, 'exit');
  }

  async stop(): Promise<void> {
    await this.kill();
    rmSync(this.#dir, { recursive: true, force: true });
  }
}

/** Clients that send one event after another as a proxy does: retrying with the same id until it is acknowledged. */
export class Load {
  /** Event ids, with when they were acknowledged and their tenant. */
  readonly acknowledged = new Map<string, { at: number; tenant: string }>();
  triedAgain = 0;
  /** The longest time until a response, in milliseconds, counting responses that ask for a retry and broken connections. */
  longestAnswerMs = 0;
  #running = true;
  #fault: unknown;
  readonly #server: Pick<Server, 'send'>;
  readonly #writers: Promise<void>[];

  /** `restMs`: how long each writer pauses after an acknowledgement. */
  constructor(server: Pick<Server, 'send'>, writers: number, tenants: readonly string[] = [DEFAULT], restMs = 0) {
    this.#server = server;
    const run = randomBytes(4).toString('hex');
    this.#writers = Array.from({ length: writers }, async (_, index) => {
      const tenant = tenants[index % tenants.length]!;
      for (let n = 0; this.#running; n++) {
        await this.#untilAcknowledged(`${run}-${index}-${n}`, tenant);
        if (restMs > 0) await delay(restMs);
      }
    });
  }

  async #untilAcknowledged(id: string, tenant: string): Promise<void> {
    while (this.#fault === undefined) {
      const asked = performance.now();
      try {
        if (await this.#server.send(id, tenant)) {
          this.acknowledged.set(id, { at: performance.now(), tenant });
          return;
        }
      } catch (error) {
        // no response: it may be stored or not; any response other than 202 and 503 is a fault of the server
        if (error instanceof Error && error.message.startsWith('an event was')) this.#fault = error;
      } finally {
        this.longestAnswerMs = Math.max(this.longestAnswerMs, Math.round(performance.now() - asked));
      }
      this.triedAgain++;
      await delay(20);
    }
  }

  /** Resolves after this long, or when each writer had two events acknowledged, whichever is later. */
  async during(seconds: number): Promise<void> {
    const enough = this.count + 2 * this.#writers.length;
    await delay(seconds * 1000);
    await eventually('decisions are acknowledged', async () => this.count >= enough);
  }

  /** How many events have been acknowledged so far. */
  get count(): number {
    if (this.#fault !== undefined) throw this.#fault;
    return this.acknowledged.size;
  }

  /** How many events of this tenant have been acknowledged so far. */
  countOf(tenant: string): number {
    if (this.#fault !== undefined) throw this.#fault;
    return [...this.acknowledged.values()].filter((one) => one.tenant === tenant).length;
  }

  get longestGap(): number {
    return this.longestGapOf(() => true);
  }

  /** The longest time without an acknowledgement for any of these tenants, in milliseconds. */
  longestGapOf(tenants: (tenant: string) => boolean): number {
    const times = [...this.acknowledged.values()].filter(({ tenant }) => tenants(tenant)).map(({ at }) => at);
    return Math.round(Math.max(0, ...times.slice(1).map((time, index) => time - times[index]!)));
  }

  /** How many acknowledged decisions the table lacks, and how many it has more than once. */
  async compare(
    query: (text: string, values: unknown[]) => Promise<Record<string, unknown>[]>,
  ): Promise<{ lost: number; doubled: number }> {
    const rows = await query(
      'select count(*)::int as times from forensic_record where event_id = any($1) group by event_id',
      [[...this.acknowledged.keys()]],
    );
    return {
      lost: this.acknowledged.size - rows.length,
      doubled: rows.filter(({ times }) => Number(times) > 1).length,
    };
  }

  /** Resolves when every event that was sent is acknowledged. */
  async stop(): Promise<void> {
    this.#running = false;
    await Promise.all(this.#writers);
    if (this.#fault !== undefined) throw this.#fault;
  }
}
