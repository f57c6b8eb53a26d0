import pg from 'pg';
import { patient } from '../server/lib/patience.ts';
import { type Citus, CitusClient, citusOf, type Places } from './citus.ts';
import { COLUMN_TYPES, CONNECT_MS, PromptClient, RequestClient, SteadyClient, type SteadyConfig } from './client.ts';
import type { Replication } from './replication.ts';

/** Queries on the side are short and wait for no lock. */
const ASIDE = 2;
/** Each takes milliseconds, and several jobs search once a second. */
const SEARCHES = 2;
/**
 * For request connections to a Citus node: without it, a tenant on another node would seem to have no rows. On the coordinator it
 * is a setting of the database, which a node added later may lack.
 */
export const TAKEN_ALONG = '-c citus.propagate_set_commands=local';

export interface Addresses {
  readonly url: string;
  readonly sessionUrl: string;
  /** The Citus node beside this process. */
  readonly nodeUrl: string | undefined;
}

/** Connections for the tenants of one node. */
interface Pair {
  /** For requests that read: each transaction is a tenant's. */
  readonly app: pg.Pool;
  /** For the owner. */
  readonly owner: pg.Pool;
}

/**
 * The connections of a process, except those of the entity layer and the sessions. Each pool opens connections on demand. Where
 * Citus spreads tenants, each node's tenants have connections of their own: a silent node ties up those, and none of the other
 * nodes' tenants.
 */
export class Pools {
  /** For what belongs to no tenant, and what is written through the coordinator. */
  readonly owner: pg.Pool;
  readonly citus: Citus | undefined;
  /** For queries alongside a transaction: see Database. */
  readonly aside: pg.Pool;
  readonly search: pg.Pool;
  readonly searchNode: pg.Pool | undefined;
  /** To the node beside this process, for its tenants. */
  readonly near: Pair | undefined;
  /** Which node has a tenant, once that is known. */
  places: Places | undefined;
  /** Set if a synchronous standby is required: while a server has none, the owner writes nothing there. */
  replication: Replication | undefined;
  readonly #far = new Map<number | undefined, Pair>();
  readonly #all: Set<pg.Pool>;
  readonly #noted = new Set<pg.Pool>();
  readonly #addresses: Addresses;
  readonly #size: number;

  private constructor(
    addresses: Addresses,
    { size, all, owner, citus }: { size: number; all: Set<pg.Pool>; owner: pg.Pool; citus: Citus | undefined },
  ) {
    const { url, sessionUrl, nodeUrl } = addresses;
    this.#addresses = addresses;
    this.#size = size;
    this.#all = all;
    this.owner = owner;
    this.citus = citus;
    // behind a pooler all pools share its connections: transactions each waiting for one more would wait forever
    this.aside =
      sessionUrl === url
        ? owner
        : this.#pool({ connectionString: sessionUrl, max: ASIDE, refusal: () => this.replication?.refusal });
    this.search = citus ? this.#pool({ max: SEARCHES }) : owner;
    if (nodeUrl === undefined) return;
    this.near = this.#pair({ app: size, owner: size }, () => this.places?.here);
    this.searchNode = this.#pool({ connectionString: nodeUrl, max: SEARCHES });
  }

  static async open(addresses: Addresses, size: number): Promise<Pools> {
    const all = new Set<pg.Pool>();
    // checked for each write, once there are pools
    const refusal = () => made?.replication?.refusal;
    const owner = poolOf(all, { connectionString: addresses.url, max: size, refusal });
    let made: Pools | undefined;
    try {
      made = new Pools(addresses, { size, all, owner, citus: await citusOf(owner) });
      return made;
    } catch (error) {
      await owner.end();
      throw error;
    }
  }

  /** Configuration of request connections. */
  get asApp() {
    return { ...steady(), Client: this.citus ? CitusClient : RequestClient };
  }

  /** Connections for a tenant: on the node beside this process if it has the tenant, else for the node that does. */
  of(tenantId: string): Pair {
    return this.to(this.places?.nodeOf(tenantId));
  }

  /** The same for tenants of a given node. */
  to(place: number | undefined): Pair {
    if (this.near && place !== undefined && place === this.places?.here) return this.near;
    let pair = this.#far.get(place);
    if (!pair) {
      // reads that may take long get half of the request connections: see Database.readOnly
      if (this.near || place !== undefined) {
        pair = this.#pair({ app: this.#size, owner: Math.ceil(this.#size / 2) }, () => place);
      } else pair = { app: this.#pool(this.asApp), owner: this.owner };
      this.#far.set(place, pair);
    }
    return pair;
  }

  /** Counts the connections of a pool of the entity layer, which closes it itself. */
  note(pool: pg.Pool): void {
    this.#noted.add(pool);
  }

  /** The connections of this process, and what waits for one. */
  get connections(): { busy: number; idle: number; waiting: number } {
    const sum = { busy: 0, idle: 0, waiting: 0 };
    for (const { totalCount, idleCount, waitingCount } of [...this.#all, ...this.#noted]) {
      sum.busy += totalCount - idleCount;
      sum.idle += idleCount;
      sum.waiting += waitingCount;
    }
    return sum;
  }

  async close(): Promise<void> {
    await Promise.all([...this.#all].map((pool) => pool.end()));
  }

  /** Connections to the node beside this process, or to the coordinator, for tenants of the node `place`. */
  #pair({ app, owner }: { app: number; owner: number }, place: () => number | undefined): Pair {
    const { url, nodeUrl } = this.#addresses;
    const there = { connectionString: nodeUrl ?? url };
    return {
      app: this.#pool({ ...this.asApp, ...there, max: app, ...(nodeUrl !== undefined && { options: TAKEN_ALONG }) }),
      owner: this.#pool({
        ...there,
        max: owner,
        Client: PromptClient,
        refusal: () => this.replication?.refusalOf(place()),
      }),
    };
  }

  #pool(config: Config): pg.Pool {
    return poolOf(this.#all, { connectionString: this.#addresses.url, max: this.#size, ...config });
  }
}

const steady = () => ({ connectionTimeoutMillis: patient(CONNECT_MS), keepAlive: true });

type Config = pg.PoolConfig & Pick<SteadyConfig, 'refusal'>;

function poolOf(all: Set<pg.Pool>, config: Config): pg.Pool {
  const pool = new pg.Pool({
    types: COLUMN_TYPES,
    Client: SteadyClient,
    ...steady(),
    ...config,
  });
  all.add(pool);
  // a pool without a listener ends the process when an idle connection breaks; the next query reports the fault itself
  pool.on('error', () => undefined);
  // the same goes for a connection that breaks while checked out and idle
  pool.on('connect', (client) => client.on('error', () => undefined));
  return pool;
}
