import { setTimeout as delay } from 'node:timers/promises';
import type pg from 'pg';
import { within } from './client.ts';
import { PrimaryClient } from './primary.ts';

/** How often a running server asks. */
const CHECK_MS = 1000;
/** How long a server has to answer. A connection on which it does not is given up, and the next one is asked. */
const ANSWER_MS = 4000;
/** A server that was not heard for this long counts as one without a standby. */
const HEARD_MS = 5000;
/** A commit that waits for longer is taken to wait for a standby that hangs: its connection may stay open for a minute. */
const STUCK_MS = 2500;
/** How long a start waits for a standby that is about to come back. */
const PATIENCE_MS = 10_000;
const RETRY_MS = 500;

/** Replication is demanded, and no synchronous standby would have what is written now. The message says why. */
export class Unreplicated extends Error {
  override readonly name = 'Unreplicated';
  /** A fault of the database to anyone who asks: cannot connect now. */
  readonly code = '57P03';

  constructor(reason: string) {
    super(`no synchronous standby: ${reason}`);
  }
}

/** What a server says of its standbys. */
export interface Standing {
  /** The synchronous_commit of sessions that begin now. */
  readonly commit: string;
  /** Its synchronous_standby_names. */
  readonly names: string;
  /** Whether the login sees standbys at all. */
  readonly sees: boolean;
  readonly login: string;
  /** How many stream, */
  readonly streaming: number;
  /** and for how many of them commits wait. */
  readonly synchronous: number;
  /** Commits that wait for one, by what tells them apart. */
  readonly waiting: readonly string[];
}

/**
 * One row and one column, so that it can be asked of another server through Citus. What was set for the login or the database goes
 * before what this session has: it applies to sessions that begin afterwards, and this one may be older.
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

/** Of the server that is asked. */
export async function standingOf(client: Pick<pg.ClientBase, 'query'>): Promise<Standing> {
  const { rows } = await client.query<{ standing: string }>(STANDING);
  return JSON.parse(rows[0]!.standing) as Standing;
}

/**
 * Of a node of the Citus that is asked, by its number in pg_dist_node. Rejects where that does not answer. It is asked alone: a
 * statement for all nodes would wait for one that hangs.
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
 * Why a commit on a server would not wait for a synchronous standby that is there; undefined when it would. It is the answer of
 * this moment: a commit itself waits as long as PostgreSQL's settings say so.
 */
export function lackOf({ commit, names, sees, login, synchronous }: Standing): string | undefined {
  if (!['on', 'remote_apply'].includes(commit)) return `synchronous_commit is ${commit}`;
  if (names.trim() === '') return 'synchronous_standby_names is empty';
  if (!sees) return `the login cannot see the standbys: grant pg_read_all_stats to ${login}`;
  return synchronous === 0 ? 'none of synchronous_standby_names is streaming' : undefined;
}

/** Resolves when a synchronous standby is there. Rejects with Unreplicated when there is none after ten seconds. */
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

/** Where tenants are on several servers: which node has a tenant. */
interface Places {
  readonly here: number | undefined;
  readonly nodes: readonly number[];
  nodeOf(tenantId: string): number | undefined;
}

/**
 * Keeps asking whether a synchronous standby is there. While it is not, writes are refused before they begin: one that
 * waits for a standby holds a connection of the database until the standby is back, whether or not its caller gave up.
 *
 * With Citus each server has standbys of its own, and what a commit survives is said by the server that stores it: the node that
 * has the tenant, whichever server was asked. What goes through the coordinator needs that one's as well: it keeps what belongs to no
 * tenant, and what was decided about a transaction of several servers. A server that was never heard, or not for five seconds, is
 * taken for one without.
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

  /** `leadingTo`: connections for what is asked of a node: to it where this process is beside it, else to one that reaches it. */
  static async watch(parts: {
    owner: pg.Pool;
    places: Places | undefined;
    leadingTo: (node: number) => pg.Pool;
  }): Promise<Replication> {
    const made = new Replication(parts);
    await made.#look();
    return made;
  }

  /** Why the server of DATABASE_URL has none, as of a second ago; undefined when it has one. */
  get missing(): string | undefined {
    return this.#database.missing;
  }

  /** The same of the node beside this process. */
  get missingHere(): string | undefined {
    const here = this.#places?.here;
    return here === undefined ? undefined : this.#node(here).missing;
  }

  /** The same of the server that stores what is written of a tenant. */
  missingFor(tenantId: string): string | undefined {
    if (!this.#places) return this.missing;
    const node = this.#places.nodeOf(tenantId);
    return node === undefined ? 'no node has the tenant' : this.#node(node).missing;
  }

  /** All servers that this process asks: with Citus the coordinator and the nodes that have tenants, by name. */
  get servers(): { readonly name: string | undefined; readonly missing: string | undefined }[] {
    return [this.#database, ...this.nodes];
  }

  get nodes(): { readonly name: string | undefined; readonly missing: string | undefined }[] {
    return (this.#places?.nodes ?? []).map((node) => this.#node(node));
  }

  /** Why nothing is to be written on the server of DATABASE_URL. */
  get refusal(): Unreplicated | undefined {
    return refusalFor(this.missing);
  }

  /** The same of a node; without its number, of the server of DATABASE_URL. */
  refusalOf(node: number | undefined): Unreplicated | undefined {
    return node === undefined ? this.refusal : refusalFor(this.#node(node).missing);
  }

  /** Throws Unreplicated while any server has none: a change of what each has a copy of is written on all. */
  assertEverywhere(): void {
    for (const { missing } of this.servers) if (missing !== undefined) throw new Unreplicated(missing);
  }

  /** Throws Unreplicated while the server of DATABASE_URL has none, or the one that has the tenant. */
  assert(tenantId?: string): void {
    if (this.missing !== undefined) throw new Unreplicated(this.missing);
    if (tenantId !== undefined) this.assertNear(tenantId);
  }

  /** Throws Unreplicated while the server that has the tenant has none. */
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

  /** Each server is asked by itself: one that hangs keeps nothing from the others. */
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

/** On a connection of its own to what is asked: one that says nothing is closed. */
async function answerOf(pool: pg.Pool, ask: (client: pg.PoolClient) => Promise<Standing>): Promise<Standing> {
  const client = await pool.connect();
  let broken: Error | undefined;
  try {
    return await within(ANSWER_MS, ask(client));
  } catch (error) {
    // what it was asked may still be under way there
    broken = (error as { code?: unknown }).code === 'ETIMEDOUT' ? (error as Error) : undefined;
    throw error;
  } finally {
    client.release(broken);
  }
}

/** A server whose standbys are asked about. */
class Watched {
  readonly name: string | undefined;
  readonly #standing: () => Promise<Standing>;
  #missing: string | undefined = 'it has not said yet whether there is one';
  #heardAt: number | undefined;
  /** Commits that wait for the standby, and since when this is known. */
  #waiting = new Map<string, number>();
  asking: Promise<void> | undefined;

  constructor(name: string | undefined, standing: () => Promise<Standing>) {
    this.name = name;
    this.#standing = standing;
  }

  get missing(): string | undefined {
    const silent = this.#heardAt !== undefined && performance.now() - this.#heardAt > HEARD_MS;
    const missing = silent ? `it has not said for ${HEARD_MS / 1000} s whether there is one` : this.#missing;
    return missing === undefined || this.name === undefined ? missing : `${this.name}: ${missing}`;
  }

  #heard(standing: Standing): void {
    const now = performance.now();
    this.#heardAt = now;
    this.#waiting = new Map(standing.waiting.map((commit) => [commit, this.#waiting.get(commit) ?? now]));
    const stuck = [...this.#waiting.values()].some((since) => now - since > STUCK_MS);
    this.#missing = lackOf(standing) ?? (stuck ? 'commits wait for one that does not confirm them' : undefined);
  }

  /** Never rejects. What was said last counts for some seconds. */
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
