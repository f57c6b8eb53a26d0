import type pg from 'pg';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { type Database, openDatabase } from '../../db/index.ts';
import { Notices } from '../../db/notices.ts';
import { Authenticator, type ValidCredential } from '../../server/auth/authenticate.ts';
import { Sessions } from '../../server/auth/sessions.ts';
import { OPERATOR } from '../../server/domain/audit.ts';
import { EMPTY_REGISTRY } from '../../server/domain/tools.ts';
import { Keyring } from '../../server/keys/keyring.ts';
import { systemClock } from '../../server/lib/clock.ts';
import { SecretBox } from '../../server/lib/crypto.ts';
import { createLog } from '../../server/lib/log.ts';
import type { Horizon } from '../../server/lib/lookups.ts';
import { Bundles } from '../../server/policy/bundles.ts';
import { Tenants } from '../../server/tenants/tenants.ts';
import { type TestTenant, useServer } from '../helpers/server.ts';

/**
 * What another process (`there`) remembers of who may do what, when it changes here: while a look-up is under way, while
 * notices do not arrive, and with a shared place that repeats what was true once.
 */
const server = useServer();
let there: Database;
let gate: Gate;
let tenant: TestTenant;

/** Holds back what a query of `there` has found, as a slow connection would. */
class Gate {
  #held: Promise<void> | undefined;
  #reached = () => {};
  release = () => {};

  /** The next answers are held until `release`; resolves when one is. */
  hold(): Promise<void> {
    this.#held = new Promise((resolve) => {
      this.release = () => {
        this.#held = undefined;
        resolve();
      };
    });
    return new Promise((resolve) => {
      this.#reached = resolve;
    });
  }

  /** Holds no further answers; those that are held wait for `release`. */
  pass(): void {
    this.#held = undefined;
  }

  /** `db` with answers that pass this gate; of the owner's statements, those that `gated` chooses. */
  over(db: Database, gated: (text: string) => boolean = () => true): Database {
    const pass = async <T>(answer: Promise<T>): Promise<T> => {
      const found = await answer;
      if (this.#held) {
        this.#reached();
        await this.#held;
      }
      return found;
    };
    const owner = Object.create(db.owner, {
      query: {
        value: (...args: [string]) => {
          const answer = db.owner.query(...args);
          return gated(args[0]) ? pass(answer) : answer;
        },
      },
    }) as pg.Pool;
    return {
      ...db,
      notices: db.notices,
      owner,
      nearOf: () => owner,
      query: (...args) => pass(db.query(...args)) as never,
      transaction: (...args) => pass(db.transaction(...args)),
      transactionNear: (...args) => pass(db.transactionNear(...args)),
    };
  }
}

beforeAll(async () => {
  there = await openDatabase(server.databaseUrl, { poolSize: 4 });
});
afterAll(() => there?.close());
beforeEach(async () => {
  gate = new Gate();
  tenant = await server.tenant();
});

interface Case {
  read(): Promise<unknown>;
  /** By the program, in another process. */
  change(): Promise<unknown>;
  /** The same in the database alone, of which nobody is told. */
  silently(): Promise<unknown>;
  before: unknown;
  after: unknown;
}

const noAudit = async () => undefined;
const log = createLog('silent');
/** The last API key that `authenticatorCase` made. */
let asked: [string];
const sql = (text: string, ...values: unknown[]) => server.core.db.owner.query(text, values);

async function authenticatorCase(
  shared?: ConstructorParameters<typeof Authenticator>[4],
  kind: 'api_key' | 'agent_key' = 'api_key',
): Promise<Case> {
  const { keys } = server.core;
  const by = { actor: OPERATOR };
  const made =
    kind === 'api_key'
      ? await keys.createApiKey(tenant.id, { label: 'k', scopes: ['admin'], owner: null }, by)
      : await keys.createAgentKey(tenant.id, { label: 'k', agentId: 'bot', agentRole: 'clerk', owner: null }, by);
  asked = [`Bearer ${made.secret}`];
  const sessions = new Sessions(there, systemClock, noAudit, { secureCookie: false });
  // the look-up itself, and not what asks before whether there is such a credential at all
  const looksUp = (text: string) => !text.includes('unnest');
  const authenticator = new Authenticator(gate.over(there, looksUp), sessions, systemClock, log, shared);
  return {
    read: async () => {
      const principal = await authenticator.authenticate({ authorization: asked[0], cookie: undefined });
      return principal?.id ?? null;
    },
    change: () => keys.revoke(tenant.id, kind, made.row.id, by, { reason: 'it leaked' }),
    silently: () => sql(`update ${kind} set revoked_at = now() where id = $1`, made.row.id),
    before: made.row.id,
    after: null,
  };
}

const caches: Record<string, () => Promise<Case>> = {
  async 'settings of a tenant'() {
    const tenants = new Tenants(gate.over(there), systemClock, noAudit, { poll_seconds: 15 });
    return {
      read: async () => (await tenants.settings(tenant.id)).poll_seconds,
      change: () =>
        server.core.db.transaction(tenant.id, async (em, notify) => {
          await em.execute(`update tenant set settings = '{"poll_seconds": 9}'`);
          await notify('settings');
        }),
      silently: () => sql(`update tenant set settings = '{"poll_seconds": 9}' where tenant_id = $1`, tenant.id),
      before: 15,
      after: 9,
    };
  },
  'an API key': () => authenticatorCase(),
  'the key of an agent': () => authenticatorCase(undefined, 'agent_key'),
  async 'the session of a person'() {
    const person = await tenant.person('viewer');
    const real = new Sessions(there, systemClock, noAudit, { secureCookie: false });
    const gated = gate.over({ ...there, query: real.validate.bind(real) as never });
    const sessions = { validate: (id: string) => gated.query(id, '') } as unknown as Sessions;
    const authenticator = new Authenticator(there, sessions, systemClock, log);
    const cookie = person.cookie!.slice(person.cookie!.indexOf('=') + 1);
    return {
      read: async () => {
        const principal = await authenticator.authenticate({ authorization: undefined, cookie });
        return principal?.kind === 'session' ? [...principal.roles].sort() : null;
      },
      change: () => server.call(200, `POST /v1/users/${person.userId}/roles`, tenant.admin, { role: 'approver' }),
      silently: () => sql(`update member set roles = '{approver,viewer}' where id = $1`, person.userId),
      before: ['viewer'],
      after: ['approver', 'viewer'],
    };
  },
  async 'the bundle of a tenant'() {
    const bundles = new Bundles({
      db: gate.over(there),
      clock: systemClock,
      log,
      signer: () => server.core.keyring.current,
      actionTypes: async () => ({ read: [], write: [] }),
      registry: async () => EMPTY_REGISTRY,
    });
    const dsl_source = 'permit(principal, action, resource == Tool::"read");';
    await server.call(201, 'POST /v1/policies', tenant.admin, { id: 'p', dsl_source });
    await server.call(200, 'POST /v1/policies/p/approve', tenant.admin, { version: 1 });
    return {
      read: async () => [...(await bundles.current(tenant.id, null)).policies.keys()],
      change: () => server.call(200, 'DELETE /v1/policies/p', tenant.admin, { reason: 'over' }),
      silently: () => sql(`update policy set live_version = null, status = 'revoked' where tenant_id = $1`, tenant.id),
      before: ['p'],
      after: [],
    };
  },
};

describe.each(Object.keys(caches))('%s', (name) => {
  test('that was being looked up when it changed is not cached in its old state', async () => {
    const { read, change, before, after } = await caches[name]!();
    const reached = gate.hold();
    const early = read();
    await reached;
    await change();
    // who comes after the change waits for nobody who came before it
    const late = read();
    gate.release();
    expect(await early).toEqual(before);
    expect(await late).toEqual(after);
    expect(await read()).toEqual(after);
  });

  test('is forgotten when notices were lost', async () => {
    const { read, silently, before, after } = await caches[name]!();
    expect(await read()).toEqual(before);
    await silently();
    expect(await read(), 'it is remembered').toEqual(before);
    // the listening connections break: what was told meanwhile is lost
    await sql(
      `select pg_terminate_backend(pid) from pg_stat_activity
       where application_name = 'svc notices' and datname = current_database()`,
    );
    await expect.poll(read).toEqual(after);
    await expect.poll(() => there.notices.healthy && server.core.db.notices.healthy).toBe(true);
    expect(await read()).toEqual(after);
  });
});

test('signing keys that were being read when one was made do not replace the newer ones', async () => {
  const keyring = await Keyring.open(gate.over(there), new SecretBox(Buffer.alloc(32, 7)), systemClock);
  const reached = gate.hold();
  await server.core.keyring.rotate();
  await reached;
  const { release } = gate;
  // from here on answers pass: the keys after a second rotation are read before those after the first arrive
  gate.pass();
  const second = await server.core.keyring.rotate();
  await expect.poll(() => keyring.current.kid).toBe(second.kid);
  release();
  await keyring.settled();
  await new Promise((resolve) => setImmediate(resolve));
  expect(keyring.current.kid).toBe(second.kid);
});

test('a shared cache that replays a lookup from before a revocation is not trusted', async () => {
  const entries = new Map<string, { value: ValidCredential | null; until: number; horizon: Horizon }>();
  const first = new Map<string, { value: ValidCredential | null; until: number; horizon: Horizon }>();
  const shared = {
    horizon: () => there.horizon(),
    read: async (key: string) => first.get(key) ?? entries.get(key),
    write: async (key: string, entry: { value: ValidCredential | null; until: number; horizon: Horizon }) => {
      entries.set(key, entry);
    },
  };
  const { read, change, before, after } = await authenticatorCase(shared);
  expect(await read()).toEqual(before);
  expect(entries.size).toBe(1);
  for (const [key, entry] of entries) first.set(key, entry);
  await change();
  expect(await read()).toEqual(after);
  // nor by a process that began to listen after the revocation, and never heard of it
  const late = await openDatabase(server.databaseUrl, { poolSize: 2 });
  const sessions = new Sessions(late, systemClock, noAudit, { secureCookie: false });
  const authenticator = new Authenticator(late, sessions, systemClock, log, shared);
  const [authorization] = asked;
  expect(await authenticator.authenticate({ authorization, cookie: undefined })).toBeNull();
  await late.close();
});

test('a process whose listening connection has gone silent caches nothing', async () => {
  let silent = false;
  const notices = new Notices(async () => {
    const client = await there.connectOwner();
    const query = client.query.bind(client) as (...args: unknown[]) => unknown;
    client.query = ((...args: unknown[]) => (silent ? new Promise(() => {}) : query(...args))) as never;
    return client;
  });
  await notices.start();
  expect(notices.healthy).toBe(true);
  silent = true;
  await expect.poll(() => notices.healthy).toBe(false);
  silent = false;
  await notices.close();
});
