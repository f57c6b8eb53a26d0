import { AsyncLocalStorage } from 'node:async_hooks';
import pg from 'pg';
import { isDatabaseFault } from '../server/lib/database-fault.ts';
import { patient } from '../server/lib/patience.ts';
import { RequestClient, within } from './client.ts';

/*
 * Citus spreads the tables over several servers, by tenant: all rows of a tenant are on one of them, its node. Processes connect
 * to the coordinator, which sends each statement to that node; a process beside a node queries that node for tenant data. Where
 * the extension is not in the database, nothing here applies.
 */

/** Written in a tenant's transactions, and looked up across tenants: every node has a copy. */
export const REFERENCE: readonly string[] = ['former_key', 'plain_callback', 'verified_domain'];

export interface Citus {
  readonly version: string;
  /** Nodes that hold tenants. */
  readonly nodes: number;
  /** Whether tenants are spread over the nodes. */
  readonly spread: boolean;
}

/** What Citus reports about itself in the database of this connection; undefined if it is not in use. */
export async function citusOf(client: Pick<pg.ClientBase, 'query'>): Promise<Citus | undefined> {
  const { rows } = await client.query<{ version: string }>(
    `select extversion as version from pg_extension where extname = 'citus'`,
  );
  if (!rows[0]) return undefined;
  const { rows: found } = await client.query<{ nodes: number; spread: boolean }>(
    `select (select count(*)::int from pg_dist_node where shouldhaveshards and isactive) as nodes,
       exists (select from pg_dist_partition where logicalrelid = to_regclass('tenant')) as spread`,
  );
  return { version: rows[0].version, ...found[0]! };
}

/** The tables with tenant rows, in creation order: tables that foreign keys reference come first. */
export async function tablesOfTenants(client: Pick<pg.ClientBase, 'query'>): Promise<string[]> {
  const { rows } = await client.query<{ name: string }>(
    `select c.relname as name from pg_class c
     join pg_attribute a on a.attrelid = c.oid and a.attname = 'tenant_id' and not a.attisdropped
     where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
     order by c.relname <> 'tenant', c.oid`,
  );
  return rows.map(({ name }) => name);
}

/**
 * Spreads the tables that are not spread yet, all or none, with all rows of a tenant on one node. Tables without a tenant stay on
 * the coordinator. Resolves with the names of the tables it spread.
 */
export async function spread(client: pg.Client): Promise<string[]> {
  const { rows: done } = await client.query<{ name: string }>(
    'select relname as name from pg_dist_partition join pg_class on oid = logicalrelid',
  );
  const names = (await tablesOfTenants(client)).filter((name) => !done.some((one) => one.name === name));
  if (names.length === 0) return names;
  // row-level security on the nodes reads what SET LOCAL sets here
  const { rows: here } = await client.query<{ name: string }>('select current_database() as name');
  await client.query(`alter database ${pg.escapeIdentifier(here[0]!.name)} set citus.propagate_set_commands = 'local'`);
  await client.query('begin');
  try {
    // one connection to each node: tables that refer to each other cannot be created over several
    await client.query(`set local citus.multi_shard_modify_mode to 'sequential'`);
    for (const name of names) {
      if (REFERENCE.includes(name)) await client.query('select create_reference_table($1::regclass)', [name]);
      else if (name === 'tenant') await client.query(`select create_distributed_table('tenant', 'tenant_id')`);
      else {
        await client.query(`select create_distributed_table($1::regclass, 'tenant_id', colocate_with => 'tenant')`, [
          name,
        ]);
      }
    }
    await client.query('commit');
  } catch (error) {
    await client.query('rollback').catch(() => undefined);
    throw error;
  }
  return names;
}

/** How Citus divides tenants: a shard holds the tenants whose hash is within its bounds, and is on one node. */
interface Shard {
  readonly low: number;
  readonly high: number;
  /** The number of its node in pg_dist_node. */
  readonly node: number;
}

/** How often a process checks whether shards have moved. */
const LOOK_MS = 1000;

/**
 * Which node has a tenant. Every node knows all of this and forwards a statement to the node that has the rows: stale data here
 * costs time, and nothing else.
 */
export class Places {
  /** The number of the node beside this process, if there is one. */
  readonly here: number | undefined;
  readonly #pool: Pick<pg.Pool, 'query'>;
  readonly #moved = new Set<() => void>();
  #shards: readonly Shard[];
  readonly #looks: NodeJS.Timeout;
  #looking: Promise<void> | undefined;

  private constructor(pool: Pick<pg.Pool, 'query'>, here: number | undefined, shards: readonly Shard[]) {
    this.#pool = pool;
    this.here = here;
    this.#shards = shards;
    this.#looks = setInterval(() => void this.look(), LOOK_MS).unref();
  }

  /** `beside`: whether the pool leads to the node beside this process. */
  static async read(pool: Pick<pg.Pool, 'query'>, beside: boolean): Promise<Places> {
    const { rows } = await pool.query<{ here: number }>('select groupid as here from pg_dist_local_group');
    return new Places(pool, beside ? rows[0]!.here : undefined, await shardsOf(pool));
  }

  /** All nodes that hold tenants. */
  get nodes(): number[] {
    return [...new Set(this.#shards.map(({ node }) => node))];
  }

  nodeOf(tenantId: string): number | undefined {
    return shardOf(this.#shards, tenantId)?.node;
  }

  /** The shard that has a tenant, or would have it, identified by its lowest hash. */
  shardOf(tenantId: string): number | undefined {
    return shardOf(this.#shards, tenantId)?.low;
  }

  /** Whether the node beside this process has the tenant. */
  has(tenantId: string): boolean {
    return this.here !== undefined && this.nodeOf(tenantId) === this.here;
  }

  /** Calls `listener` when shards have moved. */
  onMove(listener: () => void): void {
    this.#moved.add(listener);
  }

  /** Checks now. This also happens every second. While the node does not answer, the last known places are kept. */
  look(): Promise<void> {
    this.#looking ??= shardsOf(this.#pool)
      .then(
        (shards) => {
          const before = JSON.stringify(this.#shards);
          this.#shards = shards;
          if (JSON.stringify(shards) !== before) for (const listener of this.#moved) listener();
        },
        () => undefined,
      )
      .finally(() => {
        this.#looking = undefined;
      });
    return this.#looking;
  }

  stop(): void {
    clearInterval(this.#looks);
  }
}

async function shardsOf(pool: Pick<pg.Pool, 'query'>): Promise<Shard[]> {
  const { rows } = await pool.query<Shard>(
    `select s.shardminvalue::int as low, s.shardmaxvalue::int as high, p.groupid as node
     from pg_dist_shard s join pg_dist_placement p using (shardid)
     where s.logicalrelid = 'tenant'::regclass and p.shardstate = 1 order by 1`,
  );
  return rows;
}

/** The shard that has a tenant: shards are ordered by their bounds. */
function shardOf(shards: readonly Shard[], tenantId: string): Shard | undefined {
  const hash = hashOf(tenantId);
  let [from, to] = [0, shards.length - 1];
  while (from <= to) {
    const middle = (from + to) >>> 1;
    const shard = shards[middle]!;
    if (hash < shard.low) to = middle - 1;
    else if (hash > shard.high) from = middle + 1;
    else return shard;
  }
  return undefined;
}

const rotated = (x: number, by: number) => (x << by) | (x >>> (32 - by));

/** PostgreSQL's hash of a text, hash_any, by which Citus finds the shard: Bob Jenkins's lookup3. */
export function hashOf(text: string): number {
  const bytes = Buffer.from(text);
  const left = bytes.length % 12;
  const last = bytes.length - left;
  let a = (0x9e3779b9 + bytes.length + 3923095) | 0;
  let b = a;
  let c = a;
  for (let at = 0; at < last; at += 12) {
    a = (a + bytes.readInt32LE(at)) | 0;
    b = (b + bytes.readInt32LE(at + 4)) | 0;
    c = (c + bytes.readInt32LE(at + 8)) | 0;
    a = ((a - c) ^ rotated(c, 4)) | 0;
    c = (c + b) | 0;
    b = ((b - a) ^ rotated(a, 6)) | 0;
    a = (a + c) | 0;
    c = ((c - b) ^ rotated(b, 8)) | 0;
    b = (b + a) | 0;
    a = ((a - c) ^ rotated(c, 16)) | 0;
    c = (c + b) | 0;
    b = ((b - a) ^ rotated(a, 19)) | 0;
    a = (a + c) | 0;
    c = ((c - b) ^ rotated(b, 4)) | 0;
    b = (b + a) | 0;
  }
  const byte = (at: number) => (at < left ? bytes[last + at]! : 0);
  const word = (at: number) => byte(at) | (byte(at + 1) << 8) | (byte(at + 2) << 16) | (byte(at + 3) << 24);
  a = (a + word(0)) | 0;
  b = (b + word(4)) | 0;
  // the lowest byte is reserved for the length
  c = (c + (word(8) << 8)) | 0;
  c = ((c ^ b) - rotated(b, 14)) | 0;
  a = ((a ^ c) - rotated(c, 11)) | 0;
  b = ((b ^ a) - rotated(a, 25)) | 0;
  c = ((c ^ b) - rotated(b, 16)) | 0;
  a = ((a ^ c) - rotated(c, 4)) | 0;
  b = ((b ^ a) - rotated(a, 14)) | 0;
  c = ((c ^ b) - rotated(b, 24)) | 0;
  return c;
}

/** The statement that sets the tenant for row-level security, for the rest of the transaction. */
export function setTenant(tenantId: string): string {
  // a simple query ends at a NUL
  if (tenantId.includes('\0')) throw new Error('no tenant has a NUL in its id');
  return `set local app.tenant = ${pg.escapeLiteral(tenantId)}`;
}

/** How the entity managers set it. */
const SET_CONFIG = /^select set_config\('app\.tenant', ('[\w-]*'), true\)$/;

/**
 * A connection for requests to a coordinator. Citus propagates SET LOCAL to the tenant's node, but not set_config(): a tenant set
 * only by the latter is unknown there, and no row is visible.
 */
export class CitusClient extends RequestClient {
  override query(...args: unknown[]): never {
    const [text, ...rest] = args;
    const tenant = typeof text === 'string' ? SET_CONFIG.exec(text)?.[1] : undefined;
    return super.query(...(tenant === undefined ? args : [`set local app.tenant = ${tenant}`, ...rest]));
  }
}

/** Narrows a statement to one tenant: ` and alias.tenant_id = …`; empty where one statement may cover all tenants. */
export interface Only {
  (alias?: string): string;
  readonly tenantId?: string;
}

const ALL: Only = () => '';
export const onlyOf = (tenantId: string): Only =>
  Object.assign(
    (alias?: string) => ` and ${alias === undefined ? '' : `${alias}.`}tenant_id = ${pg.escapeLiteral(tenantId)}`,
    { tenantId },
  );

/** Narrows a statement to several tenants of one shard, so that Citus knows the node. */
export function amongThese(tenantIds: Iterable<string>): (alias: string) => string {
  const these = arrayOf(tenantIds);
  return (alias) => ` and ${alias}.tenant_id = any(${these})`;
}

/** Ids inlined in the text of a statement, where Citus can read them. */
export function arrayOf(tenantIds: Iterable<string>): string {
  return `array[${[...tenantIds].map((tenantId) => pg.escapeLiteral(tenantId)).join(', ')}]`;
}

/** The part of a database that it takes to search across tenants. */
export interface Tenants {
  readonly citus: Citus | undefined;
  readonly search: Pick<pg.Pool, 'query' | 'connect'>;
  readonly searchNode?: Pick<pg.Pool, 'query'> | undefined;
  readonly places?: Places | undefined;
  readonly elsewhere?: Elsewhere | undefined;
  /** Set if a synchronous standby is required. */
  readonly replication?:
    | { missingFor(tenantId: string): string | undefined; readonly missing: string | undefined }
    | undefined;
}

/** The tenants of the node beside a process, or those of all other nodes. */
export type Part = 'here' | 'elsewhere';
const looking = new AsyncLocalStorage<Part>();

/** Makes `across` and `apart` search this part of the tenants, in everything that `work` calls. */
export function lookingFor<T>(part: Part, work: () => T): T {
  return looking.run(part, work);
}

/** Where a process is beside a node, the servers have this long to answer; */
const ACROSS_MS = 5000;
/** if they did not, they are not queried for this long: a host that is gone says nothing. */
const AWAY_MS = 10_000;

/** Whether searches of a process beside a node reach tenants of other nodes. */
export class Elsewhere {
  #awayUntil: number | undefined;
  /** Called when that changes, with the error that was in the way. */
  onChange: ((why: unknown) => void) | undefined;

  get away(): boolean {
    return this.#awayUntil !== undefined;
  }

  /**
   * False if the other servers are not to be queried now. While they are away, one caller at a time tries again; the rest do
   * without.
   */
  mayAsk(): boolean {
    if (this.#awayUntil === undefined) return true;
    if (this.#awayUntil > performance.now()) return false;
    this.#awayUntil = performance.now() + AWAY_MS;
    return true;
  }

  heard(why?: unknown): void {
    const before = this.away;
    this.#awayUntil = why === undefined ? undefined : performance.now() + AWAY_MS;
    if (this.away !== before) this.onChange?.(why);
  }
}

/**
 * What a query finds among all tenants. A process beside a node queries that node for its own tenants, shard by shard, and the
 * coordinator for the others. It finds none of those unless every server answers, so a server that is down stops only its own
 * tenants. An order or a limit applies to each part separately. Rejects for any other error: a statement that is wrong is wrong
 * on every server.
 */
export async function across<R extends pg.QueryResultRow>(db: Tenants, found: string, values: unknown[]): Promise<R[]> {
  const { search, searchNode: node, places, elsewhere } = db;
  if (!node || !elsewhere) return (await search.query<R>(found, values)).rows;
  const part = looking.getStore();
  const rows = part === 'elsewhere' ? [] : await onNode<R>(node, found, values);
  if (part === 'here' || !elsewhere.mayAsk()) return rows;
  try {
    const all = await inTime<R & { tenant_id?: string }>(search, found, values);
    elsewhere.heard();
    return [...rows, ...all.filter(({ tenant_id }) => tenant_id === undefined || !places?.has(tenant_id))];
  } catch (error) {
    if (!isAway(error)) throw error;
    elsewhere.heard(error);
    return rows;
  }
}

/** Gives up a connection that a silent server would keep. */
async function inTime<R extends pg.QueryResultRow>(
  search: Pick<pg.Pool, 'connect'>,
  found: string,
  values: unknown[],
): Promise<R[]> {
  const client = await search.connect();
  let broken: Error | undefined;
  try {
    return (await within(patient(ACROSS_MS), client.query<R>(found, values))).rows;
  } catch (error) {
    broken = error as Error;
    throw error;
  } finally {
    client.release(broken);
  }
}

/** What a query finds among the tenants of the queried node. */
async function onNode<R extends pg.QueryResultRow>(
  node: Pick<pg.Pool, 'query'>,
  found: string,
  values: unknown[],
): Promise<R[]> {
  const parts = await partsOf(node);
  if (parts.length === 0) return [];
  // a shard of a table is a table
  const ofParts = parts.map((names) =>
    found.replace(/\b(from|join)\s+(\w+)/g, (all, word: string, name: string) => {
      const part = names.get(name);
      return part === undefined ? all : `${word} ${part}`;
    }),
  );
  return (await node.query<R>(ofParts.map((one) => `(${one})`).join(' union all '), values)).rows;
}

/** Whether the server did not answer, or Citus did not reach another one: it passes on that connection's error only as text. */
function isAway(error: unknown): boolean {
  return isDatabaseFault(error) || CUT_OFF.test(String((error as Error).message));
}
const CUT_OFF =
  /^connection to the remote node .* failed|^server closed the connection|^connection not open|^could not (receive|send) data/;

/** The names of the tables that hold a node's tenant rows: one list per range of tenants. */
async function partsOf(node: Pick<pg.Pool, 'query'>): Promise<Map<string, string>[]> {
  const { rows } = await node.query<{ range: string; name: string; part: string }>(
    `select s.shardminvalue as range, c.relname as name, c.relname || '_' || s.shardid as part
     from pg_dist_shard s join pg_dist_placement p using (shardid) join pg_class c on c.oid = s.logicalrelid
     where p.groupid = (select groupid from pg_dist_local_group) and p.shardstate = 1 and s.shardminvalue is not null`,
  );
  return [...Map.groupBy(rows, ({ range }) => range).values()].map(
    (ofRange) => new Map(ofRange.map(({ name, part }) => [name, part])),
  );
}

/** The rows whose tenants can be written: jobs skip the others until the server that has them has its standby. */
export function writable<R extends { readonly tenant_id: string }>(db: Tenants, found: readonly R[]): R[] {
  return found.filter(({ tenant_id }) => db.replication?.missingFor(tenant_id) === undefined);
}

/**
 * For a statement that changes or locks rows of several tenants: it runs once, or, if tenants are on several servers, once for
 * each tenant that `found` returns, in that order. So no statement locks rows on two servers, or waits for both. It is not run
 * where a synchronous standby is required and missing.
 */
export async function apart(db: Tenants, found: string, values: unknown[]): Promise<Only[]> {
  if (!db.citus) return db.replication?.missing === undefined ? [ALL] : [];
  const rows = await across<{ tenant_id: string }>(db, found, values);
  return writable(db, rows).map(({ tenant_id }) => onlyOf(tenant_id));
}

/** Like `apart`, for known items. */
export function groupsApart<T>(
  db: { readonly citus: Citus | undefined },
  items: readonly T[],
  tenantOf: (item: T) => string,
): { items: readonly T[]; only: Only }[] {
  if (!db.citus) return [{ items, only: ALL }];
  return [...Map.groupBy(items, tenantOf)].map(([tenantId, of]) => ({ items: of, only: onlyOf(tenantId) }));
}
