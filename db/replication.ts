import { setTimeout as delay } from 'node:timers/promises';
import type pg from 'pg';
import { patient } from '../server/lib/patience.ts';
import { within } from './client.ts';
import { PrimaryClient } from './primary.ts';

/** How often a running server checks. */
const CHECK_MS = 1000;
/** How long a server has to answer. A connection that stays silent is dropped, and the next one is tried. */
const ANSWER_MS = 4000;
/** A server not heard from for this long counts as one without a standby. */
const HEARD_MS = 5000;
/** A commit that waits longer is assumed to wait for a standby that hangs: its connection may stay open for a minute. */
const STUCK_MS = 2500;
/** How long a start waits for a standby that is about to come back. */
const PATIENCE_MS = 10_000;
const RETRY_MS = 500;

/** Replication is required, and no synchronous standby would have what is written now. The message says why. */
export class Unreplicated extends Error {
  override readonly name = 'Unreplicated';
  /** Looks like a database fault to any caller: cannot connect now. */
  readonly code = '57P03';

  constructor(reason: string) {
    super(`no synchronous standby: ${reason}`);
  }
}

/** What a server reports about its standbys. */
export interface Standing {
  /** The synchronous_commit of sessions that begin now. */
  readonly commit: string;
  /** Its synchronous_standby_names. */
  readonly names: string;
  /** Whether the login sees standbys at all. */
  readonly sees: boolean;
  readonly login: string;
  /** How many standbys stream, */
  readonly streaming: number;
  /** and how many of them commits wait for. */
  readonly synchronous: number;
  /** Commits that wait for a standby, by an identifying key. */
  readonly waiting: readonly string[];
}

/**
 * One row and one column, so that it can be run on another server through Citus. A setting of the login or the database takes
 * precedence over this session's: it applies to sessions that begin afterwards, and this session may be older.
 */
const STANDING = `select json_build_object(
  'commit', coalesce((
     select split_part(setting, '=', 2) from pg_db_role_setting s, unnest(s.setconfig) setting
     where setting like 'synchronous\\_commit=%'
       and s.setrole in (0, (select oid from pg_roles where rolname = session_user))
       and s.setdatabase in (0, (select oid from pg_database where datname = current_database()))
     order by s.setrole = 0, s.setdatabase = 0 limit 1), current_setting('synchronous_commit')),
  'waiting', (select coalesce(json_agg(pid || ' ' || state_change), '[]') from pg_stat_activity
              where backend_type = 'client backend' and wait_event = 'SyncRep'),
  'names', current_setting('synchronous_standby_names'),
  'sees', pg_has_role(current_user, 'pg_read_all_stats', 'usage'), 'login', current_user,
  'streaming', (select count(*) from pg_stat_replication where state = 'streaming'),
  'synchronous', (select count(*) from pg_stat_replication
                  where sync_state in ('sync', 'quorum') and state = 'streaming'))::text as standing`;

/** The standing of the server that is queried. */
export async function standingOf(client: Pick<pg.ClientBase, 'query'>): Promise<Standing> {
  const { rows } = await client.query<{ standing: string }>(STANDING);
  return JSON.parse(rows[0]!.standing) as Standing;
}

/**
 * The standing of a node, by its number in pg_dist_node, queried through Citus. Rejects if the node does not answer. Each node is
 * queried alone: a statement for all nodes would wait for one that hangs.
 */
export async function standingOfNode(client: Pick<pg.ClientBase, 'query'>, node: number): Promise<Standing> {
  const { rows } = await client.query<{ answered: boolean; said: string }>(
    `select r.success as answered, r.result as said from pg_dist_node n, lateral
       master_run_on_worker(array[n.nodename], array[n.nodeport], array[$2], false) r
     where n.groupid = $1 and n.noderole = 'primary'`,
    [node, STANDING],
  );
  const [row] = rows;
  if (!row?.answered) throw new Error(`node ${node} does not answer: ${row?.said ?? 'there is none'}`);
  return JSON.parse(row.said) as Standing;
}

/**
 * Why a commit on a server would not wait for a live synchronous standby; undefined if it would. This describes the moment: a
 * commit itself waits for as long as PostgreSQL's settings require.
 */
export function lackOf({ commit, names, sees, login, synchronous }: Standing): string | undefined {
  if (!['on', 'remote_apply'].includes(commit)) return `synchronous_commit is ${commit}`;
  if (names.trim() === '') return 'synchronous_standby_names is empty';
  if (!sees) return `the login cannot see the standbys: grant pg_read_all_stats to ${login}`;
  return synchronous === 0 ? 'none of synchronous_standby_names is streaming' : undefined;
}

/** Resolves when there is a synchronous standby. Rejects with Unreplicated if there is none after ten seconds. */
export async function awaitStandby(url: string, patienceMs = PATIENCE_MS): Promise<void> {
  const client = new PrimaryClient(url);
  client.on('error', () => undefined);
  await client.connect();
  try {
    for (const end = Date.now() + patienceMs; ; await delay(RETRY_MS)) {
      const reason = lackOf(await standingOf(client));
      if (reason === undefined) return;
      if (Date.now() > end) throw new Unreplicated(reason);
    }
  } finally {
    await client.end();
  }
}

/** Which node has a tenant, if tenants are spread over several servers. */
interface Places {
  readonly here: number | undefined;
  readonly nodes: readonly number[];
  nodeOf(tenantId: string): number | undefined;
}

/**
 * Keeps checking whether there is a synchronous standby. While there is none, writes are refused before they begin: a write that
 * waits for a standby holds a database connection until the standby is back, whether or not its caller gave up.
 *
 * With Citus each server has standbys of its own, and what a commit survives depends on the server that stores it: the node that
 * has the tenant, whichever server was asked. Writes that go through the coordinator need its standby as well: it stores what
 * belongs to no tenant, and the outcomes of transactions across servers. A server that was never heard from, or not for five
 * seconds, counts as one without a standby.
 */
export class Replication {
  readonly #database: Watched;
  readonly #places: Places | undefined;
  readonly #standingOn: (node: number) => Promise<Standing>;
  readonly #nodes = new Map<number, Watched>();
  readonly #timer: NodeJS.Timeout;

  private constructor(parts: { owner: pg.Pool; places: Places | undefined; leadingTo: (node: number) => pg.Pool }) {
    const { owner, places, leadingTo } = parts;
    this.#places = places;
    this.#standingOn = (node) =>
      answerOf(leadingTo(node), (client) =>
        node === places?.here ? standingOf(client) : standingOfNode(client, node),
      );
    this.#database = new Watched(places && 'coordinator', () => answerOf(owner, standingOf));
    this.#timer = setInterval(() => void this.#look(), CHECK_MS).unref();
  }

  /**
   * `leadingTo`: connections for queries about a node: to the node itself if this process is beside it, else to a server that
   * reaches it.
   */
  static async watch(parts: {
    owner: pg.Pool;
    places: Places | undefined;
    leadingTo: (node: number) => pg.Pool;
  }): Promise<Replication> {
    const made = new Replication(parts);
    await made.#look();
    return made;
  }

  /** Why the server of DATABASE_URL has no standby, as of a second ago; undefined if it has one. */
  get missing(): string | undefined {
    return this.#database.missing;
  }

  /** The same for the node beside this process. */
  get missingHere(): string | undefined {
    const here = this.#places?.here;
    return here === undefined ? undefined : this.#node(here).missing;
  }

  /** The same for the server that stores the tenant's rows. */
  missingFor(tenantId: string): string | undefined {
    if (!this.#places) return this.missing;
    const node = this.#places.nodeOf(tenantId);
    return node === undefined ? 'no node has the tenant' : this.#node(node).missing;
  }

  /** All servers that this process checks: with Citus, the coordinator and the nodes that have tenants, by name. */
  get servers(): { readonly name: string | undefined; readonly missing: string | undefined }[] {
    return [this.#database, ...this.nodes];
  }

  get nodes(): { readonly name: string | undefined; readonly missing: string | undefined }[] {
    return (this.#places?.nodes ?? []).map((node) => this.#node(node));
  }

  /** Why nothing may be written on the server of DATABASE_URL. */
  get refusal(): Unreplicated | undefined {
    return refusalFor(this.missing);
  }

  /** The same for a node; without a number, for the server of DATABASE_URL. */
  refusalOf(node: number | undefined): Unreplicated | undefined {
    return node === undefined ? this.refusal : refusalFor(this.#node(node).missing);
  }

  /**
   * Throws Unreplicated while any server has no standby: a change to data that every server replicates is written on all of them.
   */
  assertEverywhere(): void {
    for (const { missing } of this.servers) if (missing !== undefined) throw new Unreplicated(missing);
  }

  /** Throws Unreplicated while the server of DATABASE_URL, or the one that has the tenant, has no standby. */
  assert(tenantId?: string): void {
    if (this.missing !== undefined) throw new Unreplicated(this.missing);
    if (tenantId !== undefined) this.assertNear(tenantId);
  }

  /** Throws Unreplicated while the server that has the tenant has no standby. */
  assertNear(tenantId: string): void {
    const missing = this.missingFor(tenantId);
    if (missing !== undefined) throw new Unreplicated(missing);
  }

  async stop(): Promise<void> {
    clearInterval(this.#timer);
    await this.#asked();
  }

  #node(node: number): Watched {
    let watched = this.#nodes.get(node);
    if (!watched) {
      watched = new Watched(`node ${node}`, () => this.#standingOn(node));
      this.#nodes.set(node, watched);
    }
    return watched;
  }

  /** Each server is checked separately: one that hangs does not delay the others. */
  #look(): Promise<unknown> {
    const nodes = this.#places?.nodes ?? [];
    for (const node of this.#nodes.keys()) if (!nodes.includes(node)) this.#nodes.delete(node);
    for (const watched of [this.#database, ...nodes.map((node) => this.#node(node))]) void watched.ask();
    return this.#asked();
  }

  #asked(): Promise<unknown> {
    return Promise.all([this.#database, ...this.#nodes.values()].map(({ asking }) => asking));
  }
}

const refusalFor = (missing: string | undefined) => (missing === undefined ? undefined : new Unreplicated(missing));

/** Queries a server on a connection of its own; if the server stays silent, the connection is closed. */
async function answerOf(pool: pg.Pool, ask: (client: pg.PoolClient) => Promise<Standing>): Promise<Standing> {
  const client = await pool.connect();
  let broken: Error | undefined;
  try {
    return await within(patient(ANSWER_MS), ask(client));
  } catch (error) {
    // the query may still be running there
    broken = (error as { code?: unknown }).code === 'ETIMEDOUT' ? (error as Error) : undefined;
    throw error;
  } finally {
    client.release(broken);
  }
}

/** A server whose standbys are checked. */
class Watched {
  readonly name: string | undefined;
  readonly #standing: () => Promise<Standing>;
  #missing: string | undefined = 'it has not said yet whether there is one';
  #heardAt: number | undefined;
  /** Commits that wait for the standby, and since when each is known. */
  #waiting = new Map<string, number>();
  asking: Promise<void> | undefined;

  constructor(name: string | undefined, standing: () => Promise<Standing>) {
    this.name = name;
    this.#standing = standing;
  }

  get missing(): string | undefined {
    const silent = this.#heardAt !== undefined && performance.now() - this.#heardAt > patient(HEARD_MS);
    const missing = silent ? `it has not said for ${patient(HEARD_MS) / 1000} s whether there is one` : this.#missing;
    return missing === undefined || this.name === undefined ? missing : `${this.name}: ${missing}`;
  }

  #heard(standing: Standing): void {
    const now = performance.now();
    this.#heardAt = now;
    this.#waiting = new Map(standing.waiting.map((commit) => [commit, this.#waiting.get(commit) ?? now]));
    const stuck = [...this.#waiting.values()].some((since) => now - since > patient(STUCK_MS));
    this.#missing = lackOf(standing) ?? (stuck ? 'commits wait for one that does not confirm them' : undefined);
  }

  /** Never rejects. The last answer counts for some seconds. */
  ask(): Promise<void> {
    this.asking ??= this.#standing()
      .then(
        (standing) => this.#heard(standing),
        () => undefined,
      )
      .finally(() => {
        this.asking = undefined;
      });
    return this.asking;
  }
}
