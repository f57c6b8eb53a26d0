import { Migrator } from '@mikro-orm/migrations';
import { type EntityManager, MikroORM, type Options, PostgreSqlDriver } from '@mikro-orm/postgresql';
import type pg from 'pg';
import type { AuditEntry } from '../server/domain/audit.ts';
import { type Principal, personOf } from '../server/domain/principal.ts';
import { ReadRefused } from '../server/lib/database-fault.ts';
import { databaseHosts } from '../server/lib/database-hosts.ts';
import { patient } from '../server/lib/patience.ts';
import { Turns } from '../server/lib/turns.ts';
import { MIGRATION_TABLE, objectionTo, readApplied, SchemaRefused } from './applied.ts';
import { type Citus, citusOf, Elsewhere, Places, setTenant, spread } from './citus.ts';
import { COLUMN_TYPES, inTransaction } from './client.ts';
import { entities } from './entities/index.ts';
import { migrationChecksums, migrations } from './migrations/index.ts';
import { isAwaited, type Notice, Notices, SERVER_RUN, type Step } from './notices.ts';
import { Pools, TAKEN_ALONG } from './pools.ts';
import { PrimaryClient } from './primary.ts';
import { Replication } from './replication.ts';
import { assertBeside, assertSame, connectSession } from './session.ts';

/**
 * Adds an entry to the tenant's audit chain within the caller's transaction: the change and its record commit together
 * or not at all. Call it as the last step before the commit; it locks the chain's head until then.
 */
export type WriteAudit = (em: EntityManager, tenantId: string, entry: AuditEntry) => Promise<void>;

/**
 * The database as the program sees it. One login in two roles:
 *
 * - a tenant's: every transaction runs as the role `svc_app` and sets `app.tenant`, and the entity manager filters by it too. A
 *   query without a tenant sees nothing.
 * - the owner's (`owner`): credential look-ups, and jobs that serve all tenants.
 *
 * Neither leaves anything behind on a connection when a transaction ends, so a pooler may share it between clients. Anything that
 * needs a session of its own (`connectOwner`, migrations, the claim on the database) uses a separate address.
 */
export interface Database {
  /**
   * Runs `work` in one transaction that sees only the tenant's rows. It is committed, and durable, when the promise
   * resolves; it is rolled back when `work` throws. A notice given to `notify` reaches every process after the commit.
   */
  transaction<T>(tenantId: string, work: (em: EntityManager, notify: Notify) => Promise<T>): Promise<T>;
  /**
   * Like `transaction`, for a change whose notices nobody waits for: a process beside the Citus node that has the tenant makes it
   * there, without the coordinator. Other processes are notified after the commit, but not if the process is killed in between or
   * while the coordinator is down. `notify` throws for awaited topics. Advisory locks are taken on whichever server is used, so
   * nothing may depend on one.
   */
  transactionNear<T>(tenantId: string, work: (em: EntityManager, notify: Notify) => Promise<T>): Promise<T>;
  /** An entity manager for reading the tenant's rows; each query is a transaction of its own. */
  reader(tenantId: string): EntityManager;
  /** One SQL query as the tenant, bypassing the entity layer: for hot reads, which find their rows by an index. */
  query<R extends pg.QueryResultRow>(tenantId: string, text: string, values?: unknown[]): Promise<R[]>;
  /**
   * Runs `work` on one connection in a read-only transaction of the tenant, for lists and searches. Each statement has `readMs`,
   * and only a few of these run at once per tenant, and a limited number overall: no matter what people search for, connections
   * remain for decisions. Each person who asks (no one, for the server's own reads) may run and queue fewer than the tenant, and
   * askers take turns: many people together keep no one else out. Throws ReadRefused beyond these limits, and when the asker has
   * gone before it began. `work` must not begin another one.
   */
  readOnly<T>(tenantId: string, work: (client: pg.PoolClient) => Promise<T>, asker?: Asker): Promise<T>;
  /** The same with entities, for data that people decide by: it does not queue behind searches. */
  readEntities<T>(tenantId: string, asker: Asker, work: (em: EntityManager) => Promise<T>): Promise<T>;
  readonly owner: pg.Pool;
  /**
   * Also the owner's, for queries about a tenant while a transaction of the same process is open: it never waits for a connection
   * that such a transaction holds. On the Citus node beside this process if that node has the tenant.
   */
  asideOf(tenantId: string): pg.Pool;
  /**
   * Also the owner's, for statements about one tenant that send no notice: they go to the Citus node beside this process, if
   * there is one, and reach tenants on other nodes from there. Statements for tenants of different nodes never compete for the
   * same connections, so a node that is down takes none from the others. Without a tenant: `owner`.
   */
  nearOf(tenantId: string | undefined): pg.Pool;
  /**
   * Also the owner's, for jobs that look for work across tenants: while a server is silent, they take no connection from
   * requests.
   */
  readonly search: pg.Pool;
  /** The same on the Citus node beside this process. */
  readonly searchNode: pg.Pool | undefined;
  /** Whether jobs beside a Citus node find work for tenants of other nodes. */
  readonly elsewhere: Elsewhere | undefined;
  /** The Citus node beside this process. */
  readonly node: pg.Pool | undefined;
  /** Which node has a tenant, if tenants are spread over several. */
  readonly places: Places | undefined;
  readonly notices: Notices;
  /** Set if tenants are spread over several servers. */
  readonly citus: Citus | undefined;
  /** Set if a synchronous standby is required. While there is none, transactions that may write fail with Unreplicated. */
  readonly replication: Replication | undefined;
  /** The connections of this process, and what waits for one. */
  connections(): { busy: number; idle: number; waiting: number };
  /** The server run and the oldest open transaction: a query sent afterwards sees every committed change with a lower number. */
  horizon(): Promise<{ run: string; xmin: number }>;
  /** Distinguishes installations that share a Redis: restored copies of a database usually have other oids. */
  installation(): Promise<string>;
  /** An owner session, for listeners. */
  connectOwner(): Promise<pg.Client>;
  /** A session on the server that `nearOf` uses, for the chain writer. */
  connectNear(): Promise<pg.Client>;
  close(): Promise<void>;
}

/** Whose quota a read counts against: see `readOnly`. */
export interface Asker {
  readonly person: string;
  /** Aborts when the caller no longer waits for the answer. */
  readonly gone?: AbortSignal;
}

/**
 * Counts reads against the person behind a principal, however many keys and sessions they use. A read whose caller has gone is
 * not run: a page that was left does not hold up the next one.
 */
export function askerOf(request: { principal: Principal; gone(): AbortSignal }): Asker {
  return { person: personOf(request.principal), gone: request.gone() };
}

/** Reads attributed to an asker. */
export type Reads = Pick<Database, 'readOnly'>;

/** The reads of a request: see askerOf. */
export function readsOf(db: Reads, request: Parameters<typeof askerOf>[0]): Reads {
  return { readOnly: (tenantId, work) => db.readOnly(tenantId, work, askerOf(request)) };
}

interface Transaction {
  /** Called after the commit. */
  readonly committed: (() => void)[];
  /** Sends a notice after the commit, when notices of the server in use reach no one. */
  readonly elsewhere: ((notice: Notice) => void) | undefined;
}

const transactions = new WeakMap<EntityManager, Transaction>();

/** Calls `tell` once the transaction that `work` runs with this entity manager is committed. It must not throw. */
export function afterCommit(em: EntityManager, tell: () => void): void {
  const transaction = transactions.get(em);
  if (!transaction) throw new Error('this entity manager has no transaction of Database.transaction');
  transaction.committed.push(tell);
}

/**
 * Wakes the workers of every process when the entity manager's transaction commits: there are events or deliveries to process.
 */
export async function wakeOutbox(em: EntityManager, tenantId: string): Promise<void> {
  const { committed, elsewhere } = transactions.get(em) ?? {};
  if (elsewhere) committed?.push(() => elsewhere({ topic: 'outbox', tenantId, id: '' }));
  else await em.execute(`select pg_notify('svc_notice', ?)`, [`outbox ${tenantId} `]);
}

/** Announces a change of the transaction's tenant, and, to this process only, the steps it consists of. */
export type Notify = (topic: Notice['topic'], id?: string, steps?: readonly Step[]) => Promise<void>;

const commonOptions = {
  entities,
  driver: PostgreSqlDriver,
  autoJoinRefsForFilters: false,
  debug: false,
  discovery: { checkDuplicateTableNames: true },
  ensureDatabase: false,
} satisfies Options;

export async function openDatabase(
  url: string,
  options: {
    poolSize?: number;
    replicated?: boolean;
    readMs?: number;
    sessionUrl?: string | undefined;
    nodeUrl?: string | undefined;
  } = {},
): Promise<Database> {
  const poolSize = options.poolSize ?? 10;
  const sessionUrl = options.sessionUrl ?? url;
  const { nodeUrl } = options;
  const pools = await Pools.open({ url, sessionUrl, nodeUrl }, poolSize);
  const { owner, citus, asApp } = pools;
  const node = pools.near?.owner;
  const pool = { min: 0, max: poolSize };
  const onPoolCreated = (made: pg.Pool) => pools.note(made);
  const orm = await MikroORM.init({ ...commonOptions, ...ormOn(url, { ...asApp, onPoolCreated }), pool });
  const nearOrm =
    nodeUrl === undefined
      ? orm
      : await MikroORM.init({
          ...commonOptions,
          ...ormOn(nodeUrl, { ...asApp, options: TAKEN_ALONG, onPoolCreated }),
          pool,
        });
  const isNear = (tenantId: string) => pools.places?.has(tenantId) ?? false;

  const fork = (tenantId: string, from = isNear(tenantId) ? nearOrm : orm): EntityManager => {
    const em = from.em.fork({ session: { variables: { 'app.tenant': tenantId } } }) as EntityManager;
    em.setFilterParams('tenant', { tenantId });
    return em;
  };
  const asTenant = <T>(tenantId: string, work: (client: pg.PoolClient) => Promise<T>, more = ''): Promise<T> =>
    inTransaction(pools.of(tenantId).app, work, `begin read only; ${setTenant(tenantId)}${more}`);
  const readMs = options.readMs ?? patient(READ_MS);
  const waiting = { mostWaiting: READS_WAITING, mostMs: patient(READ_WAITS_MS) };
  const ofTenant = new Turns({ atOnce: READS_OF_TENANT, ...waiting });
  // these are counted per node
  const placeOf = (tenantId: string) => String(pools.places?.nodeOf(tenantId));
  const ofAll = new Turns({ atOnce: Math.ceil(poolSize / 2), mostWaiting: Number.POSITIVE_INFINITY });
  const ofPerson = new Turns({ atOnce: READS_OF_PERSON, mostWaiting: READS_OF_PERSON_WAITING });
  const entitiesOfPerson = new Turns({ atOnce: READS_OF_PERSON, mostWaiting: READS_OF_PERSON_WAITING });
  const entitiesOfTenant = new Turns({ atOnce: READS_OF_TENANT, ...waiting });
  /** `turns`: whose quota applies, and which asker within it. */
  const inTurn = async <T>(
    turns: readonly (readonly [Turns, string, string?])[],
    read: () => Promise<T>,
    gone?: AbortSignal,
  ): Promise<T> => {
    const ends: (() => void)[] = [];
    try {
      for (const [each, owner, who] of turns) {
        const end = await each.take(owner, who, gone);
        if (!end) throw new ReadRefused(gone?.aborted ? 'left' : 'too_many');
        ends.push(end);
      }
      return await read();
    } catch (error) {
      if ((error as { code?: unknown }).code === QUERY_CANCELED) throw new ReadRefused('took_long', { cause: error });
      throw error;
    } finally {
      for (const end of ends.toReversed()) end();
    }
  };
  const connectOwner = () => connectSession(sessionUrl, { types: COLUMN_TYPES });
  const connectNear = () => connectSession(nodeUrl ?? sessionUrl, { types: COLUMN_TYPES });
  const notices = new Notices(connectOwner);
  const close = () => {
    pools.places?.stop();
    const orms = [...new Set([orm, nearOrm])].map((one) => one.close(true));
    return Promise.all([notices.close(), ...orms, pools.close()]);
  };
  try {
    if (nodeUrl !== undefined) await assertBeside(owner, nodeUrl);
    // INVARIANT: requests run as a role that row level security binds, on every pool
    const asked = 'select current_user as role';
    const roles = [
      ...(await inTransaction((pools.near ?? pools.of('')).app, (client) => client.query<{ role: string }>(asked)))
        .rows,
      ...(await asTenant('', (client) => client.query<{ role: string }>(asked))).rows,
      ...(await orm.em.transactional((em) => em.execute<{ role: string }[]>(asked))),
      ...(await nearOrm.em.transactional((em) => em.execute<{ role: string }[]>(asked))),
    ];
    if (roles.length !== 4 || roles.some(({ role }) => role !== 'svc_app')) {
      throw new Error('Requests do not run as the role svc_app.');
    }
    if (sessionUrl !== url) await assertSame(owner, sessionUrl);
    if (citus?.spread) pools.places = await Places.read(node ?? owner, node !== undefined);
    await notices.start();
  } catch (error) {
    // a standby, for example, takes no listeners: open connections would keep the process alive
    await close();
    throw error;
  }
  const { places } = pools;
  const leadingTo = (node: number) => pools.to(node).owner;
  const replication = options.replicated ? await Replication.watch({ owner, places, leadingTo }) : undefined;
  pools.replication = replication;
  /** `near`: on the node, where notices reach no one. */
  const transact = async <T>(
    tenantId: string,
    work: (em: EntityManager, notify: Notify) => Promise<T>,
    near: boolean,
  ): Promise<T> => {
    if (near) replication?.assertNear(tenantId);
    else replication?.assert(tenantId);
    const sent: Notice[] = [];
    const committed: (() => void)[] = [];
    // a notice is a commit on the coordinator: without its standby each would hang and hold a connection there
    const tell = (notice: Notice) => replication?.missing === undefined && notices.tellOthers(notice);
    const elsewhere = near ? tell : undefined;
    let result: T;
    try {
      result = await fork(tenantId, near ? nearOrm : orm).transactional((em) => {
        transactions.set(em as EntityManager, { committed, elsewhere });
        return work(em as EntityManager, async (topic, id = '', steps) => {
          const { notice, sql, params } = notices.issue(topic, tenantId, id, steps);
          sent.push(notice);
          if (near) return;
          const [row] = await em.execute<{ xid?: string }[]>(sql, params);
          if (row?.xid !== undefined) notice.xid = Number(row.xid);
        });
      });
      for (const told of committed) told();
    } catch (error) {
      for (const notice of sent) notices.drop(notice);
      throw error;
    }
    if (elsewhere) for (const notice of sent) elsewhere(notice);
    await Promise.all(sent.map((notice) => notices.deliver(notice)));
    return result;
  };
  return {
    notices,
    citus,
    replication,
    transaction: (tenantId, work) => transact(tenantId, work, false),
    transactionNear: (tenantId, work) => {
      const quiet: typeof work = (em, notify) =>
        work(em, (topic, ...more) => {
          // also with a single server, so that every test catches it
          if (isAwaited(topic)) throw new Error(`somebody waits for notices of ${topic}`);
          return notify(topic, ...more);
        });
      return transact(tenantId, quiet, isNear(tenantId));
    },
    reader: (tenantId) => fork(tenantId),
    readOnly: (tenantId, work, asker) =>
      inTurn(
        [
          ...(asker === undefined ? [] : [[ofPerson, `${tenantId} ${asker.person}`] as const]),
          [ofTenant, tenantId, asker?.person ?? ''],
          [ofAll, placeOf(tenantId), tenantId],
        ],
        () => asTenant(tenantId, work, `; set local statement_timeout = ${readMs}`),
        asker?.gone,
      ),
    readEntities: (tenantId, { person, gone }, work) =>
      inTurn(
        [
          [entitiesOfPerson, `${tenantId} ${person}`],
          [entitiesOfTenant, tenantId, person],
          [ofAll, placeOf(tenantId), tenantId],
        ],
        () =>
          fork(tenantId).transactional(
            async (em) => {
              await em.execute(`set local statement_timeout = ${readMs}`);
              return work(em as EntityManager);
            },
            { readOnly: true },
          ),
        gone,
      ),
    query: async <R extends pg.QueryResultRow>(tenantId: string, text: string, values?: unknown[]) =>
      asTenant(tenantId, async (client) => (await client.query<R>(text, values)).rows),
    owner,
    // transactions of the node's tenants have a pool of their own there
    asideOf: (tenantId) => (node && isNear(tenantId) ? node : pools.aside),
    nearOf: (tenantId) => (tenantId === undefined ? owner : pools.of(tenantId).owner),
    search: pools.search,
    searchNode: pools.searchNode,
    elsewhere: node && new Elsewhere(),
    node,
    places: pools.places,
    connections: () => pools.connections,
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
    connectNear,
    close: async () => {
      await replication?.stop();
      await close();
    },
  };
}

/** MikroORM parses an address with a single host only; the driver gets all of them. */
function ormOn(url: string, driverOptions: object) {
  return { clientUrl: databaseHosts(url)[0]!.url, driverOptions: { ...driverOptions, connectionString: url } };
}

/** A `readOnly` statement that takes longer is canceled. */
const READ_MS = 5000;
const QUERY_CANCELED = '57014';
/**
 * Reads of one tenant that run at once; that wait, as happens when every open page shows the same news at once; and for how long.
 */
const READS_OF_TENANT = 3;
const READS_WAITING = 500;
const READ_WAITS_MS = 5000;
/** The same for one asker: one of the tenant's slots is always left for others. */
const READS_OF_PERSON = 2;
const READS_OF_PERSON_WAITING = 8;

/** The key of the migration lock in pg_advisory_lock; any constant that nothing else uses. */
const MIGRATION_LOCK = 7_305_414_123;

/**
 * Brings the schema up to this program's version, once, however many processes start together. Refuses a database that a newer
 * program has migrated, and one whose migrations ran with different text. The migrations that run and their checksums are
 * committed together. If the database has Citus, tables are then spread over its nodes. Throws NoSession when a pooler shares the
 * connection.
 */
export async function migrate(url: string): Promise<Migrated> {
  // waits for as long as another process migrates
  const lock = await connectSession(url, {}, PrimaryClient);
  try {
    await lock.query('select pg_advisory_lock($1)', [MIGRATION_LOCK]);
    // a load balancer leads to a standby for a moment after its own start
    const { rows } = await lock.query<{ standby: boolean }>('select pg_is_in_recovery() as standby');
    if (rows[0]!.standby)
      throw new SchemaRefused('The database is a standby, which takes no writes: start again once it is promoted.');
    const citus = await citusOf(lock);
    await ensureAppRole(lock, citus !== undefined);
    const applied = await readApplied(lock);
    const objection = objectionTo(applied);
    if (objection !== undefined) throw new SchemaRefused(objection);
    const ran = applied.pending.length === 0 ? [] : await runMigrations(url);
    // also after a start that ended in between
    const tables = citus ? await spread(lock) : [];
    return { ran, citus: citus && { ...citus, tables } };
  } finally {
    await lock.end();
  }
}

/** What `migrate` did and found. */
export interface Migrated {
  /** The names of the migrations that ran. */
  readonly ran: readonly string[];
  /** Set if the database has Citus, with the tables that were just spread. */
  readonly citus: (Citus & { readonly tables: readonly string[] }) | undefined;
}

async function runMigrations(url: string): Promise<string[]> {
  const orm = await MikroORM.init({
    ...commonOptions,
    ...ormOn(url, { Client: PrimaryClient }),
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
}

/** The role for requests. The embedded server has already created it; an external one needs a login that may create roles. */
async function ensureAppRole(client: pg.Client, onNodes: boolean): Promise<void> {
  const { rows } = await client.query<{ bypass: boolean; login: boolean; member: boolean }>(
    `select rolsuper or rolbypassrls as bypass, rolcanlogin as login, pg_has_role(current_user, oid, 'member') as member
     from pg_roles where rolname = 'svc_app'`,
  );
  if (rows[0]?.bypass) throw new Error('The role svc_app must be neither a superuser nor allowed to bypass RLS.');
  // a cluster's coordinator connects to the nodes as the requesting role; it has no password, and pg_hba.conf decides
  const login = onNodes ? 'login' : 'nologin';
  if (!rows[0]) await client.query(`create role svc_app ${login} nosuperuser nobypassrls`);
  else if (onNodes && !rows[0].login) await client.query('alter role svc_app login');
  if (!rows[0]?.member) await client.query('grant svc_app to current_user');
  // Citus does not grant this: for processes beside a node. A node that is down gets it at the next start
  if (onNodes) await client.query('select run_command_on_workers($1)', ['grant svc_app to current_user']);
}
