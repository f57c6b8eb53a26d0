import pg from 'pg';
import { type Citus, CitusClient, citusOf, type Places } from './citus.ts';
import { COLUMN_TYPES, CONNECT_MS, PromptClient, RequestClient, SteadyClient, type SteadyConfig } from './client.ts';
import type { Replication } from './replication.ts';

/** What is asked aside is short and waits for no lock. */
const ASIDE = 2;
/** Each takes milliseconds, and several jobs look once a second. */
const SEARCHES = 2;
/**
 * Of connections of requests to a node of Citus: without it a tenant on another node would have no rows. The coordinator has it as
 * a setting of the database, and a node that was added later may not.
 */
export const TAKEN_ALONG = '-c citus.propagate_set_commands=local';

export interface Addresses {
  readonly url: string;
  readonly sessionUrl: string;
  /** The node of Citus beside this process. */
  readonly nodeUrl: string | undefined;
}

/** Connections for the tenants of one place. */
interface Pair {
  /** Of requests, for reads: each transaction is a tenant's. */
  readonly app: pg.Pool;
  /** Of the owner's. */
  readonly owner: pg.Pool;
}

/**
 * The connections of a process, but for those of the entity layer and the sessions. Each pool opens them when there is something to
 * ask. Where Citus spreads tenants, those of each node have connections of their own: a node that says nothing keeps them, and takes none
 * from tenants of other nodes.
 */
export class Pools {
  /** What belongs to no tenant, and what is written through the coordinator. */
  readonly owner: pg.Pool;
  readonly citus: Citus | undefined;
  /** What is asked aside of a transaction: see Database. */
  readonly aside: pg.Pool;
  readonly search: pg.Pool;
  readonly searchNode: pg.Pool | undefined;
  /** On the node beside this process, for its tenants. */
  readonly near: Pair | undefined;
  /** Which node has a tenant, as soon as that is known. */
  places: Places | undefined;
  /** Where a synchronous standby is demanded: while a server has none, nothing is written there by the owner. */
  replication: Replication | undefined;
  readonly #far = new Map<number | undefined, Pair>();
  readonly #all: Set<pg.Pool>;
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
    // behind a pooler all pools share its connections: transactions that each waited for one more would wait for ever
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
    // asked of each write, once there are pools
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

  /** What connections of requests are made of. */
  get asApp() {
    return { Client: this.citus ? CitusClient : RequestClient, ...PATIENCE };
  }

  /** Connections for a tenant: on the node beside this process where that has it, else for the node that has it. */
  of(tenantId: string): Pair {
    return this.to(this.places?.nodeOf(tenantId));
  }

  /** The same for tenants of this node. */
  to(place: number | undefined): Pair {
    if (this.near && place !== undefined && place === this.places?.here) return this.near;
    let pair = this.#far.get(place);
    if (!pair) {
      // reads that may take long have half of those of requests: see Database.readOnly
      if (this.near || place !== undefined) {
        pair = this.#pair({ app: this.#size, owner: Math.ceil(this.#size / 2) }, () => place);
      } else pair = { app: this.#pool(this.asApp), owner: this.owner };
      this.#far.set(place, pair);
    }
    return pair;
  }

  async close(): Promise<void> {
    await Promise.all([...this.#all].map((pool) => pool.end()));
  }

  /** On the node beside this process, or on the coordinator, for tenants of the node `place`. */
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

const PATIENCE = { connectionTimeoutMillis: CONNECT_MS, keepAlive: true };

type Config = pg.PoolConfig & Pick<SteadyConfig, 'refusal'>;

function poolOf(all: Set<pg.Pool>, config: Config): pg.Pool {
  const pool = new pg.Pool({ types: COLUMN_TYPES, Client: SteadyClient, ...PATIENCE, ...config });
  all.add(pool);
  // a pool without a listener ends the process when an idle connection breaks; the next query reports the fault itself
  pool.on('error', () => undefined);
  // and so does one that breaks while it is in use and nothing runs on it
  pool.on('connect', (client) => client.on('error', () => undefined));
  return pool;
}
