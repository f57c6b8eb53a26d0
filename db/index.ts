import { Migrator } from '@mikro-orm/migrations';
import { type EntityManager, MikroORM, type Options, PostgreSqlDriver } from '@mikro-orm/postgresql';
import pg from 'pg';
import { entities } from './entities/index.ts';
import { migrations } from './migrations/index.ts';
import { type Notice, Notices } from './notices.ts';

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
  /** A connection of the owner's outside the pool, for the chain writer and listeners. */
  connectOwner(): Promise<pg.Client>;
  close(): Promise<void>;
}

/** Announces a change of the transaction's tenant. */
export type Notify = (topic: Notice['topic'], id?: string) => Promise<void>;

const commonOptions = {
  entities,
  driver: PostgreSqlDriver,
  autoJoinRefsForFilters: false,
  debug: false,
  discovery: { checkDuplicateTableNames: true },
} satisfies Options;

export async function openDatabase(url: string, options: { poolSize?: number } = {}): Promise<Database> {
  const poolSize = options.poolSize ?? 10;
  // bigint columns here are sequence numbers far below 2^53
  const types = { getTypeParser: (oid: number, format?: 'text' | 'binary') => typeParser(oid, format) };
  const owner = new pg.Pool({ connectionString: url, max: poolSize, types });
  const app = new pg.Pool({ connectionString: url, max: poolSize, types, options: '-c role=svc_app' });
  // a pool without a listener ends the process when an idle connection breaks; the next query reports the fault itself
  for (const pool of [owner, app]) pool.on('error', () => undefined);
  const orm = await MikroORM.init({
    ...commonOptions,
    clientUrl: url,
    pool: { min: 0, max: poolSize },
    driverOptions: { options: '-c role=svc_app' },
  });

  const fork = (tenantId: string): EntityManager => {
    const em = orm.em.fork({ session: { variables: { 'app.tenant': tenantId } } }) as EntityManager;
    em.setFilterParams('tenant', { tenantId });
    return em;
  };
  const readOnly = async <T>(tenantId: string, work: (client: pg.PoolClient) => Promise<T>): Promise<T> => {
    const client = await app.connect();
    let broken: Error | undefined;
    try {
      await client.query('begin read only');
      await client.query(SET_TENANT, [tenantId]);
      const result = await work(client);
      await client.query('commit');
      return result;
    } catch (error) {
      try {
        await client.query('rollback');
      } catch (rollback) {
        broken = rollback as Error;
      }
      throw error;
    } finally {
      client.release(broken);
    }
  };
  const connectOwner = async () => {
    const client = new pg.Client({ connectionString: url, types });
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
      let result: Awaited<ReturnType<typeof work>>;
      try {
        result = await fork(tenantId).transactional((em) =>
          work(em as EntityManager, async (topic, id = '') => {
            const { notice, sql, params } = notices.issue(topic, tenantId, id);
            sent.push(notice);
            await em.execute(sql, params);
          }),
        );
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
    connectOwner,
    close: async () => {
      await notices.close();
      await Promise.all([orm.close(true), owner.end(), app.end()]);
    },
  };
}
const SET_TENANT = { name: 'set_tenant', text: "select set_config('app.tenant', $1, true)" };

function typeParser(oid: number, format?: 'text' | 'binary') {
  if (oid === pg.types.builtins.INT8) return Number;
  return pg.types.getTypeParser(oid, format as 'text');
}

/** What the migration lock is called in pg_advisory_lock; any constant that nobody else uses. */
const MIGRATION_LOCK = 7_305_414_123;

/**
 * Brings the schema up to this program's version, once, however many processes start together. Refuses a database that
 * a newer program has migrated. Returns the names of the migrations that ran.
 */
export async function migrate(url: string): Promise<string[]> {
  const lock = new pg.Client(url);
  await lock.connect();
  try {
    await lock.query('select pg_advisory_lock($1)', [MIGRATION_LOCK]);
    await ensureAppRole(lock);
    const orm = await MikroORM.init({
      ...commonOptions,
      clientUrl: url,
      extensions: [Migrator],
      migrations: { migrationsList: migrations, tableName: 'schema_migration', silent: true, snapshot: false },
    });
    try {
      const known = new Set(migrations.map((m) => m.name));
      const { rows } = await lock.query<{ present: boolean }>(
        `select to_regclass('schema_migration') is not null as present`,
      );
      if (rows[0]?.present) {
        const done = await lock.query<{ name: string }>('select name from schema_migration');
        const newer = done.rows.filter((row) => !known.has(row.name)).map((row) => row.name);
        if (newer.length > 0) {
          throw new Error(`The database was migrated by a newer program (${newer.join(', ')}): update this one.`);
        }
      }
      return (await orm.migrator.up()).map((m) => m.name);
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
