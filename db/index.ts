import { Migrator } from '@mikro-orm/migrations';
import { type EntityManager, MikroORM, type Options, PostgreSqlDriver } from '@mikro-orm/postgresql';
import pg from 'pg';
import type { AuditEntry } from '../server/domain/audit.ts';
import { MIGRATION_TABLE, objectionTo, readApplied, SchemaRefused } from './applied.ts';
import { COLUMN_TYPES, CONNECT_MS, inTransaction, SteadyClient } from './client.ts';
import { entities } from './entities/index.ts';
import { migrationChecksums, migrations } from './migrations/index.ts';
import { type Notice, Notices, SERVER_RUN, type Step } from './notices.ts';

/**
 * Adds an entry to the tenant's audit chain within the caller's transaction: the change and its record commit together
 * or not at all. Call it as the last step before the commit; it locks the chain's head until then.
 */
export type WriteAudit = (em: EntityManager, tenantId: string, entry: AuditEntry) => Promise<void>;

/**
 * The database as the program sees it. Two hats on one login:
 *
 * - a tenant's: every connection runs as the role `svc_app`, every transaction sets `app.tenant`, and the entity manager
 *   filters by it too. What is not scoped sees nothing.
 * - the owner's (`owner`): migrations, the chain writer, the look-up of credentials, and jobs that serve all tenants.
 */
export interface Database {
  /**
   * Runs `work` in one transaction that sees only the tenant's rows. It is committed, and durable, when the promise
   * resolves; it is rolled back when `work` throws. A notice given to `notify` reaches every process after the commit.
   */
  transaction<T>(tenantId: string, work: (em: EntityManager, notify: Notify) => Promise<T>): Promise<T>;
  /** An entity manager for reads of the tenant's rows; each query is a transaction of its own. */
  reader(tenantId: string): EntityManager;
  /** One SQL query as the tenant, past the entity layer: for hot reads. */
  query<R extends pg.QueryResultRow>(tenantId: string, text: string, values?: unknown[]): Promise<R[]>;
  /** `work` on one connection within a read-only transaction of the tenant. */
  readOnly<T>(tenantId: string, work: (client: pg.PoolClient) => Promise<T>): Promise<T>;
  readonly owner: pg.Pool;
  readonly notices: Notices;
  /**
   * The run of the server and the oldest transaction that is open: a query that is sent afterwards sees every committed
   * change with a lower number.
   */
  horizon(): Promise<{ run: string; xmin: number }>;
  /** Tells installations that share a Redis apart: restored copies of one database have other oids, as a rule. */
  installation(): Promise<string>;
  /** A connection of the owner's outside the pool, for the chain writer and listeners. */
  connectOwner(): Promise<pg.Client>;
  close(): Promise<void>;
}

const told = new WeakMap<EntityManager, (() => void)[]>();

/** Has `tell` called when the transaction that `work` runs with this entity manager is committed. It must not throw. */
export function afterCommit(em: EntityManager, tell: () => void): void {
  const list = told.get(em);
  if (!list) throw new Error('this entity manager has no transaction of Database.transaction');
  list.push(tell);
}

/** Announces a change of the transaction's tenant, and to this process alone the steps that it consists of. */
export type Notify = (topic: Notice['topic'], id?: string, steps?: readonly Step[]) => Promise<void>;

const commonOptions = {
  entities,
  driver: PostgreSqlDriver,
  autoJoinRefsForFilters: false,
  debug: false,
  discovery: { checkDuplicateTableNames: true },
} satisfies Options;

export async function openDatabase(url: string, options: { poolSize?: number } = {}): Promise<Database> {
  const poolSize = options.poolSize ?? 10;
  const types = COLUMN_TYPES;
  const steady = { Client: SteadyClient, connectionTimeoutMillis: CONNECT_MS, keepAlive: true };
  const asApp = { options: `-c role=svc_app -c lock_timeout=${LOCK_MS}` };
  const owner = new pg.Pool({ connectionString: url, max: poolSize, types, ...steady });
  const app = new pg.Pool({ connectionString: url, max: poolSize, types, ...steady, ...asApp });
  // a pool without a listener ends the process when an idle connection breaks; the next query reports the fault itself
  for (const pool of [owner, app]) {
    pool.on('error', () => undefined);
    // and so does one that breaks while it is in use and nothing runs on it
    pool.on('connect', (client) => client.on('error', () => undefined));
  }
  const orm = await MikroORM.init({
    ...commonOptions,
    clientUrl: url,
    pool: { min: 0, max: poolSize },
    driverOptions: { ...steady, ...asApp },
  });

  const fork = (tenantId: string): EntityManager => {
    const em = orm.em.fork({ session: { variables: { 'app.tenant': tenantId } } }) as EntityManager;
    em.setFilterParams('tenant', { tenantId });
    return em;
  };
  const readOnly = <T>(tenantId: string, work: (client: pg.PoolClient) => Promise<T>): Promise<T> => {
    const asTenant = async (client: pg.PoolClient) => {
      await client.query(SET_TENANT, [tenantId]);
      return work(client);
    };
    return inTransaction(app, asTenant, 'begin read only');
  };
  const connectOwner = async () => {
    const client = new SteadyClient({
      connectionString: url,
      types,
      connectionTimeoutMillis: CONNECT_MS,
      keepAlive: true,
    });
    await client.connect();
    return client;
  };
  // INVARIANT: requests run as a role that row level security binds. A pooler that drops the option would undo that
  // without a word, so both pools are asked.
  const asked = 'select current_user as role';
  const roles = [
    ...(await app.query<{ role: string }>(asked)).rows,
    ...(await orm.em.execute<{ role: string }[]>(asked)),
  ];
  if (roles.length !== 2 || roles.some(({ role }) => role !== 'svc_app')) {
    await Promise.all([orm.close(true), owner.end(), app.end()]);
    throw new Error('Requests do not run as the role svc_app: connect to PostgreSQL without a pooler in between.');
  }
  const notices = new Notices(connectOwner);
  await notices.start();
  return {
    notices,
    transaction: async (tenantId, work) => {
      const sent: Notice[] = [];
      const committed: (() => void)[] = [];
      let result: Awaited<ReturnType<typeof work>>;
      try {
        result = await fork(tenantId).transactional((em) => {
          told.set(em as EntityManager, committed);
          return work(em as EntityManager, async (topic, id = '', steps) => {
            const { notice, sql, params } = notices.issue(topic, tenantId, id, steps);
            sent.push(notice);
            const [row] = await em.execute<{ xid?: string }[]>(sql, params);
            if (row?.xid !== undefined) notice.xid = Number(row.xid);
          });
        });
        for (const tell of committed) tell();
      } catch (error) {
        for (const notice of sent) notices.drop(notice);
        throw error;
      }
      await Promise.all(sent.map((notice) => notices.deliver(notice)));
      return result;
    },
    reader: fork,
    readOnly,
    query: async <R extends pg.QueryResultRow>(tenantId: string, text: string, values?: unknown[]) =>
      readOnly(tenantId, async (client) => (await client.query<R>(text, values)).rows),
    owner,
    horizon: async () => {
      const { rows } = await owner.query<{ run: string; xmin: string }>(
        `select ${SERVER_RUN} as run, pg_snapshot_xmin(pg_current_snapshot())::text as xmin`,
      );
      return { run: rows[0]!.run, xmin: Number(rows[0]!.xmin) };
    },
    installation: async () => {
      const { rows } = await owner.query<{ id: string }>(
        `select encode(i.canary, 'hex') || '/' || d.oid as id
         from instance i, pg_database d where d.datname = current_database()`,
      );
      return rows[0]!.id;
    },
    connectOwner,
    close: async () => {
      await notices.close();
      await Promise.all([orm.close(true), owner.end(), app.end()]);
    },
  };
}
/** A row that somebody else holds for longer is given up, before the transaction is: see WRITE_MS. */
const LOCK_MS = 4000;

const SET_TENANT = { name: 'set_tenant', text: "select set_config('app.tenant', $1, true)" };

/** What the migration lock is called in pg_advisory_lock; any constant that nobody else uses. */
const MIGRATION_LOCK = 7_305_414_123;

/**
 * Brings the schema up to this program's version, once, however many processes start together. Refuses a database that
 * a newer program has migrated, and one whose migrations ran with another text. Returns the names of the migrations
 * that ran; they and their checksums are committed together.
 */
export async function migrate(url: string): Promise<string[]> {
  const lock = new pg.Client(url);
  await lock.connect();
  try {
    await lock.query('select pg_advisory_lock($1)', [MIGRATION_LOCK]);
    await ensureAppRole(lock);
    const applied = await readApplied(lock);
    const objection = objectionTo(applied);
    if (objection !== undefined) throw new SchemaRefused(objection);
    if (applied.pending.length === 0) return [];
    const orm = await MikroORM.init({
      ...commonOptions,
      clientUrl: url,
      extensions: [Migrator],
      migrations: { migrationsList: migrations, tableName: MIGRATION_TABLE, silent: true, snapshot: false },
    });
    try {
      return await orm.em.transactional(async (em) => {
        const ran = (await orm.migrator.up({ transaction: em.getTransactionContext()! })).map(({ name }) => name);
        if (ran.length === 0) return ran;
        await em.execute(`alter table ${MIGRATION_TABLE} add column if not exists checksum text`);
        const checksums = migrationChecksums();
        for (const name of ran) {
          await em.execute(`update ${MIGRATION_TABLE} set checksum = ? where name = ?`, [checksums.get(name), name]);
        }
        return ran;
      });
    } finally {
      await orm.close(true);
    }
  } finally {
    await lock.end();
  }
}

/** The role of requests. Made by the embedded server already; an external one needs a login that may create roles. */
async function ensureAppRole(client: pg.Client): Promise<void> {
  const { rows } = await client.query<{ bypass: boolean; member: boolean }>(
    `select rolsuper or rolbypassrls as bypass, pg_has_role(current_user, oid, 'member') as member
     from pg_roles where rolname = 'svc_app'`,
  );
  if (rows[0]?.bypass) throw new Error('The role svc_app must be neither a superuser nor allowed to bypass RLS.');
  if (!rows[0]) await client.query('create role svc_app nologin nosuperuser nobypassrls');
  if (!rows[0]?.member) await client.query('grant svc_app to current_user');
}
