import { randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, expect } from 'vitest';
import type { Core } from '../../server/app.ts';
import { readConfig } from '../../server/config.ts';
import { OPERATOR } from '../../server/domain/audit.ts';
import type { Scope } from '../../server/domain/principal.ts';
import type { Clock } from '../../server/lib/clock.ts';
import type { Egress } from '../../server/lib/egress.ts';
import { createLog } from '../../server/lib/log.ts';
import { createProgram, type Program } from '../../server/program.ts';
import { createTenant } from '../../server/provision.ts';
import type { SettingsPatch } from '../../server/tenants/settings.ts';
import { asAdmin, cloneTemplate } from './database.ts';
import { PgBouncer } from './pgbouncer.ts';
import { freePort } from './ports.ts';
import { builtDashboard } from './provisions.ts';

/** A clock that a test can move forward. It keeps running from wherever it was set, unless it is stopped. */
export class TestClock implements Clock {
  #ahead = 0;
  #stoppedAt: number | undefined;
  now(): number {
    return (this.#stoppedAt ?? Date.now()) + this.#ahead;
  }
  advance(ms: number): void {
    this.#ahead += ms;
  }
  /** While `work` runs it only moves when it is advanced: what happens just before a moment does, however slow the machine is. */
  async stopped(work: () => Promise<void>): Promise<void> {
    this.#stoppedAt = Date.now();
    await work().finally(() => {
      this.#stoppedAt = undefined;
    });
  }
}

export interface Answer<T = Record<string, unknown>> {
  status: number;
  headers: Headers;
  body: T;
  text: string;
}

export interface Credential {
  key?: string;
  cookie?: string;
  headers?: Record<string, string>;
}

/** A test's own tenant, with a key for each scope and a person for each role. */
export interface TestTenant {
  id: string;
  /** The first admin, with their own key. */
  admin: { key: string; userId: string };
  /** The admin key that the tenant was created with. It belongs to no one. */
  operatorKey: { key: string };
  /** Changes settings as an operator does, even guarded ones. */
  set(patch: Record<string, unknown>): Promise<void>;
  key(...scopes: Scope[]): Promise<Credential>;
  /** A signed-in person with these roles. */
  person(...roles: string[]): Promise<Credential & { userId: string }>;
  /** A member who is not signed in. Resolves with their id. */
  member(who: { email: string; name?: string; roles: readonly string[] }): Promise<string>;
  /** Signs a member in, from a browser with this name if one is given. */
  enter(userId: string, userAgent?: string): Promise<Credential & { userId: string }>;
  agent(agentId: string, agentRole: string): Promise<Credential>;
}

export interface TestServer {
  readonly url: string;
  /** The origin of browser requests to this server: that of SVC_BASE_URL. */
  readonly origin: string;
  readonly core: Core;
  readonly clock: TestClock;
  readonly logged: string[];
  readonly databaseUrl: string;
  readonly dataDir: string;
  /** Sends a request over HTTP and checks the status. */
  call<T = Record<string, unknown>>(
    expected: number,
    line: string,
    who: Credential | undefined,
    body?: unknown,
  ): Promise<Answer<T>>;
  tenant(): Promise<TestTenant>;
}

let counter = 0;

interface Options {
  /** At a URL that a browser can open; otherwise its base URL is a name that does not resolve. */
  browsed?: boolean;
  /**
   * One server for all files in the same process that ask for the same settings. A file that shares it must use its own tenants,
   * never move the clock, and look only for its own lines in `logged`. Sharing saves the startup, and a browser profile that
   * already knows the server need not load the dashboard again.
   */
  shared?: boolean;
  /** With a PgBouncer in transaction mode in front of the database, with few connections for all its clients. */
  pooled?: boolean;
  egress?: Egress;
  /** The URL of an empty database of the test's own; otherwise one is created from the template. */
  database?: () => string;
}

interface Running {
  program: Program;
  url: string;
  origin: string;
  databaseUrl: string;
  dir: string;
  clock: TestClock;
  logged: string[];
  stop(): Promise<void>;
}

/** See test/matrix.ts. */
const ALL_POOLED = Boolean(process.env.SVC_TEST_POOLER);
/** The number of connections shared by all pools for requests and jobs of a pooled server. */
const POOLED = 3;

/** Settings; a function if some are known only when the server starts. */
type Settings = Record<string, string> | (() => Record<string, string>);

async function start(env: Settings, options: Options): Promise<Running> {
  if (options.browsed) await builtDashboard();
  const name = `t_${randomBytes(6).toString('hex')}`;
  const databaseUrl = options.database?.() ?? (await cloneTemplate(name));
  const pooler =
    (options.pooled ?? ALL_POOLED) ? await PgBouncer.start(databaseUrl, { connections: POOLED }) : undefined;
  const dir = mkdtempSync(path.join(tmpdir(), 'svc-server-'));
  const clock = new TestClock();
  const logged: string[] = [];
  const port = options.browsed ? await freePort() : 0;
  const config = readConfig({
    PORT: String(port),
    SVC_BASE_URL: options.browsed ? `http://127.0.0.1:${port}` : 'http://control.test',
    SVC_DATA_DIR: dir,
    SVC_MASTER_KEY: Buffer.alloc(32, 7).toString('hex'),
    SVC_RATE_KEY: '100000',
    SVC_RATE_SESSION: '100000',
    SVC_RATE_EVALUATE: '100000',
    SVC_RATE_SIGN_IN: '100000',
    SVC_RATE_LINK_ADDRESS: '100000',
    SVC_RATE_LINK_IP: '100000',
    SVC_RATE_EXPORT: '100000',
    SVC_RATE_SUBSCRIPTION_TEST: '100000',
    SVC_RATE_TOOLS: '100000',
    // nothing responds there: no test queries an outside name server
    SVC_DNS_SERVERS: '127.0.0.1:9',
    ...(pooler && { DATABASE_URL: pooler.url(databaseUrl), DATABASE_SESSION_URL: databaseUrl }),
    ...(typeof env === 'function' ? env() : env),
  });
  const log = createLog('debug', { write: (line: string) => logged.push(line) });
  const egress = options.egress && { egress: options.egress };
  let program: Program | undefined;
  const stop = async () => {
    await program?.stop();
    await pooler?.stop();
    if (!options.database) await asAdmin(`drop database if exists ${name} with (force)`);
    rmSync(dir, { recursive: true, force: true });
  };
  try {
    program = await createProgram({ config, databaseUrl: config.databaseUrl ?? databaseUrl, log, clock, ...egress });
    const url = await program.listen();
    return { program, url, origin: config.origins[0]!, databaseUrl, dir, clock, logged, stop };
  } catch (error) {
    await stop();
    throw error;
  }
}

/** By their settings. They end with the process; their databases go with the run's PostgreSQL. */
const sharedServers = new Map<string, Promise<Running>>();
const sharedUrls = new Set<string>();

/** Whether the server at this URL outlives the current test file. */
export const isShared = (url: string) => sharedUrls.has(url);

function sharedServer(env: Settings, { browsed = false, shared: _, ...own }: Options): Promise<Running> {
  if (typeof env === 'function' || Object.keys(own).length > 0)
    throw new Error('what is made for one file is not shared');
  const key = JSON.stringify([env, browsed]);
  const made = sharedServers.get(key) ?? startShared(env, browsed);
  sharedServers.set(key, made);
  return made;
}

async function startShared(env: Settings, browsed: boolean): Promise<Running> {
  const running = await start(env, { browsed });
  sharedUrls.add(running.url);
  process.once('exit', () => rmSync(running.dir, { recursive: true, force: true }));
  return running;
}

/** The real program on its own database, over real HTTP. */
export function useServer(env: Settings = {}, options: Options = {}): TestServer {
  let state = {} as Running;
  beforeAll(async () => {
    state = await (options.shared ? sharedServer(env, options) : start(env, options));
  });
  afterAll(async () => {
    if (!options.shared) await state.stop?.();
    // the process keeps what a file declared alive for all files after it
    state = {} as Running;
  });
  const server: TestServer = {
    get url() {
      return state.url;
    },
    get origin() {
      return state.origin;
    },
    get core() {
      return state.program.core!;
    },
    get databaseUrl() {
      return state.databaseUrl;
    },
    get dataDir() {
      return state.dir;
    },
    get clock() {
      return state.clock;
    },
    get logged() {
      return state.logged;
    },
    async call<T>(expected: number, line: string, who: Credential | undefined, body?: unknown) {
      const [method, target] = line.split(' ') as [string, string];
      const raw = typeof body === 'string' || body instanceof Uint8Array;
      const response = await fetch(state.url + target, {
        method,
        redirect: 'manual',
        headers: {
          ...(body !== undefined && { 'content-type': 'application/json' }),
          ...(who?.key && { authorization: `Bearer ${who.key}` }),
          ...(who?.cookie && { cookie: who.cookie, origin: state.origin }),
          ...who?.headers,
        },
        ...(body !== undefined && { body: raw ? (body as string) : JSON.stringify(body) }),
      });
      // a stream of hints has no end: its start is the response
      const endless = target.startsWith('/v1/stream') && response.ok;
      if (endless) await response.body!.cancel();
      const bytes = endless ? Buffer.alloc(0) : Buffer.from(await response.arrayBuffer());
      const text = bytes.toString();
      const json = /\bjson\b/.test(response.headers.get('content-type') ?? '') && text !== '';
      expect(response.status, `${line}: ${text.slice(0, 500)}`).toBe(expected);
      return {
        status: response.status,
        headers: response.headers,
        body: (json ? JSON.parse(text) : bytes) as T,
        text,
      };
    },
    async tenant() {
      const made = await createTenant(server.core, state.url, {
        id: `t${++counter}-${Math.random().toString(36).slice(2, 8)}`,
        name: 'Test',
        adminEmail: 'admin@example.test',
      });
      const tenantId = made.tenant_id;
      const signIn = async (url: string, userAgent?: string) => {
        const headers = userAgent === undefined ? {} : { 'user-agent': userAgent };
        const response = await fetch(url, { redirect: 'manual', headers });
        return response.headers.get('set-cookie')!.split(';')[0]!;
      };
      const operator = { type: 'operator', id: 'test' } as const;
      const [member] = await server.core.db.query<{ id: string }>(
        tenantId,
        'select id from member where tenant_id = $1',
        [tenantId],
      );
      const keyOf = async (...scopes: Scope[]) => {
        const input = { label: scopes.join(' '), scopes, owner: member!.id };
        return { key: (await server.core.keys.createApiKey(tenantId, input, { actor: operator })).secret };
      };
      const tenant: TestTenant = {
        id: tenantId,
        admin: { ...(await keyOf('admin')), userId: member!.id },
        operatorKey: { key: made.api_key },
        async set(patch) {
          await server.core.settingsChanges.change(tenantId, patch as SettingsPatch, { actor: OPERATOR }, 'for a test');
        },
        key: keyOf,
        member: (who) => server.core.tenants.addMember(tenantId, who, { actor: OPERATOR }),
        async enter(userId, userAgent) {
          const token = await server.core.links.create(tenantId, userId, 600, { actor: OPERATOR });
          return { userId, cookie: await signIn(`${state.url}/auth/magic-link/verify?token=${token}`, userAgent) };
        },
        async person(...roles) {
          return tenant.enter(await tenant.member({ email: `u${++counter}@example.test`, roles }));
        },
        async agent(agentId, agentRole) {
          const made = await server.core.keys.createAgentKey(
            tenantId,
            { label: agentId, agentId, agentRole, owner: member!.id },
            { actor: operator },
          );
          return { key: made.secret, headers: { 'x-svc-tenant': tenantId } };
        },
      };
      return tenant;
    },
  };
  return server;
}
