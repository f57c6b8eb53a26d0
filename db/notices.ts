import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import { within } from './client.ts';

/**
 * Tells every process on this database that something cached has changed: a credential, a tenant's settings or members,
 * its live policies. A notice is sent within the transaction of the change and reaches other processes when that
 * commits; the process that made the change hears of it before its transaction call resolves.
 */
export const TOPICS = [
  /** A tenant leaves this installation, comes to it, or stays after all: nothing that is remembered of it counts. */
  'tenant',
  'credential',
  'members',
  'settings',
  /** What bundles are made of. */
  'policies',
  /** The stops in force. */
  'stops',
  /** A proxy has applied stops. */
  'stops_applied',
  /** A policy, its versions or its review; also where no bundle changes by it. */
  'revisions',
  'holds',
  /** Tools, their servers, and the labels of agents; also where no bundle changes by it. */
  'tools',
  'signing_keys',
  'head',
  /** Events to fan out, or deliveries to make. */
  'outbox',
  /** A destination of webhooks was paused, changed or deleted: what sends there must stop. */
  'destinations',
  /** Deliveries that were queued, attempted or stopped, told in the process that did it alone: see tellHere. */
  'delivery',
] as const;
export type Topic = (typeof TOPICS)[number];

/** A step of a machine, as it was taken and stored. */
export interface Step {
  event: { readonly type: string };
  state: string;
  context: object;
}

export interface Notice {
  topic: Topic;
  /** `*` after the listener was away: anything may have changed. */
  tenantId: string;
  /** What has changed, where the topic has parts; empty otherwise. */
  id: string;
  /** By which other processes tell that they have acted on it; absent where nobody waits for that. */
  receipt?: string;
  /** The transaction that made the change, where the topic is one that somebody waits for. */
  xid?: number | undefined;
  /** The steps of the machine of this id that the change consists of, in their order. Other processes are not told. */
  steps?: readonly Step[] | undefined;
}

/** A run of the database server, and the last transaction in it before this process began to hear notices. */
export interface Era {
  readonly run: string;
  readonly xid: number;
}

/** Tells one run of the server from another one: after a failover the numbers of transactions may begin again. */
export const SERVER_RUN = "to_char(pg_postmaster_start_time() at time zone 'UTC', 'YYYYMMDDHH24MISSUS')";

/**
 * `own`: this process made the change, and its caller waits for the promise. The process's own changes come twice, the
 * second time like another's.
 */
type Handler = (notice: Notice, own: boolean) => unknown;

const CHANNEL = 'svc_notice';
/** Where processes tell that they have acted on a notice. */
const RECEIPTS = 'svc_receipt';
/** What the listening connections of all processes are called in pg_stat_activity. */
const LISTENER = 'svc notices';
/**
 * Changes whose maker waits until every process has heard of them: what was revoked must be dead everywhere, and what
 * was switched on must be on.
 */
const AWAITED: ReadonlySet<Topic> = new Set([
  'tenant',
  'credential',
  'members',
  'settings',
  'policies',
  'stops',
  'destinations',
]);
/** Whether the makers of such changes wait until every process has heard of them. */
export function isAwaited(topic: Topic): boolean {
  return AWAITED.has(topic);
}

/** How often the listening connection is asked for an answer, which comes after all notices before it. */
const BEAT_MS = 400;
/**
 * A process that has heard no answer for so long keeps nothing any more. It is shorter than the patience of those who
 * wait for receipts: when they go on without one, the silent process no longer believes what it remembers.
 */
const LEASE_MS = 1500;
/** A process that hangs does not hold up a revocation for longer. */
const PATIENCE_MS = 2000;
/** A connection that is silent for so long is dead, although nothing said so. */
const SILENCE_MS = 5000;

export class Notices {
  readonly #handlers = new Map<Topic, Set<Handler>>();
  readonly #connect: () => Promise<pg.Client>;
  #client: pg.Client | undefined;
  /** Receipts that came for notices of this process's own changes. */
  readonly #receipts = new Map<string, { count: number; heard: () => void }>();
  #closed = false;
  #retry: NodeJS.Timeout | undefined;
  #beats: NodeJS.Timeout | undefined;
  /** When the last question that was answered had been asked. */
  #heardAt = Number.NEGATIVE_INFINITY;
  #era: Era | undefined;

  constructor(connect: () => Promise<pg.Client>) {
    this.#connect = connect;
  }

  /**
   * Whether the notices of all changes until 1.5 seconds ago have reached this process, and those of later ones as far
   * as they were sent. While they do not, nothing may be answered from a cache.
   */
  get healthy(): boolean {
    return this.#client !== undefined && performance.now() - this.#heardAt < LEASE_MS;
  }

  /** Since when this process has heard everything; undefined while it does not listen. */
  get era(): Era | undefined {
    return this.#client && this.#era;
  }

  on(topic: Topic, handler: Handler): () => void {
    const handlers = this.#handlers.get(topic) ?? new Set<Handler>();
    this.#handlers.set(topic, handlers.add(handler));
    return () => handlers.delete(handler);
  }

  /** A notice, and the statement that sends it when the transaction that runs it commits. `deliver` or `drop` it then. */
  issue(
    topic: Topic,
    tenantId: string,
    id: string,
    steps?: readonly Step[],
  ): { notice: Notice; sql: string; params: string[] } {
    if (!AWAITED.has(topic)) {
      const params = [CHANNEL, `${topic} ${tenantId} ${id}`];
      return { notice: { topic, tenantId, id, steps }, sql: 'select pg_notify(?, ?)', params };
    }
    const receipt = randomUUID();
    this.#receipts.set(receipt, { count: 0, heard: () => undefined });
    return {
      notice: { topic, tenantId, id, receipt },
      // the row's `xid` belongs into the notice: see Notice
      sql: `select xid, pg_notify(?, cast(? as text) || xid) from (select pg_current_xact_id()::text as xid) x`,
      params: [CHANNEL, `${topic} ${tenantId} ${id} ${receipt} `],
    };
  }

  /**
   * Tells this process's handlers of its own change, after the commit. Resolves when they have done what the change asks
   * for; for a credential or a member, when every process on this database has.
   */
  async deliver(notice: Notice): Promise<void> {
    try {
      await this.#tell(notice, true);
      if (notice.receipt && !this.#closed) await this.#heardByAll(notice.receipt);
    } finally {
      this.drop(notice);
    }
  }

  /**
   * Tells this process's handlers alone, of a change that is committed. For what is too frequent for a notice: those make
   * all commits of the database wait for each other.
   */
  tellHere(topic: Topic, tenantId: string, id: string, steps: readonly Step[]): void {
    if (!this.#handlers.get(topic)?.size) return;
    void this.#tell({ topic, tenantId, id, steps }, true);
  }

  /**
   * Sends a notice of a change that is committed without it, as long as notices arrive here. What comes while some are sent is
   * sent together afterwards, each once: what shows that the connection is alive never waits behind more than one statement.
   */
  tellOthers({ topic, tenantId, id }: Notice): void {
    this.#untold.add(`${topic} ${tenantId} ${id}`);
    this.#telling ??= this.#tellUntold().finally(() => {
      this.#telling = undefined;
    });
  }

  async #tellUntold(): Promise<void> {
    while (this.#untold.size > 0) {
      const words = [...this.#untold];
      this.#untold.clear();
      if (!this.#client) return;
      const text = 'select pg_notify($1, word) from unnest($2::text[]) word';
      await this.#ask(this.#client, text, [CHANNEL, words]).catch(() => undefined);
    }
  }
  readonly #untold = new Set<string>();
  #telling: Promise<void> | undefined;

  /** Forgets a notice whose transaction was rolled back. */
  drop(notice: Notice): void {
    if (notice.receipt) this.#receipts.delete(notice.receipt);
  }

  /** Never rejects: the change is committed. Where nobody says how many there are to hear of it, they are given all the time. */
  async #heardByAll(receipt: string): Promise<void> {
    const entry = this.#receipts.get(receipt);
    if (!entry) return;
    const end = Date.now() + PATIENCE_MS;
    const listeners = await this.#listeners().catch(() => Number.POSITIVE_INFINITY);
    while (entry.count < listeners && Date.now() < end) {
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, end - Date.now());
        entry.heard = () => {
          clearTimeout(timer);
          resolve();
        };
      });
    }
  }

  /** How many processes listen, this one included. Rejects when the listening connection is away or hangs. */
  async #listeners(): Promise<number> {
    if (!this.#client) throw new Error('there is no listening connection');
    const text = `select count(*)::int as listeners from pg_stat_activity
       where datname = current_database() and application_name = $1`;
    const asked = this.#ask<{ listeners: number }>(this.#client, text, [LISTENER]);
    return (await within(PATIENCE_MS, asked)).rows[0]!.listeners;
  }

  /** One statement after the other: several notices at a time use the one connection. */
  #ask<R extends pg.QueryResultRow>(client: pg.Client, text: string, values: unknown[]): Promise<pg.QueryResult<R>> {
    const asked = this.#asking.then(() => client.query<R>(text, values));
    this.#asking = asked.catch(() => undefined);
    return asked;
  }
  #asking: Promise<unknown> = Promise.resolve();

  async #tell(notice: Notice, own: boolean): Promise<void> {
    await Promise.all([...(this.#handlers.get(notice.topic) ?? [])].map((handler) => handler(notice, own)));
  }

  async start(): Promise<void> {
    const client = await this.#connect();
    try {
      await this.#listen(client);
    } catch (error) {
      // it works and takes no listeners, as a standby does: each attempt would leave one behind
      client.end().catch(() => undefined);
      throw error;
    }
  }

  async #listen(client: pg.Client): Promise<void> {
    const lost = () => {
      if (this.#client !== client) return;
      this.#client = undefined;
      clearInterval(this.#beats);
      if (!this.#closed) this.#restart();
    };
    client.on('error', lost);
    client.on('end', lost);
    client.on('notification', ({ channel, payload = '' }) => {
      if (channel === RECEIPTS) {
        const entry = this.#receipts.get(payload);
        if (!entry) return;
        entry.count++;
        entry.heard();
        return;
      }
      const [topic, tenantId, id, receipt, xid] = payload.split(' ') as [Topic, string, string, string?, string?];
      const told = this.#tell({ topic, tenantId, id, xid: xid === undefined ? undefined : Number(xid) }, false);
      // a connection that breaks here is reported by its own event; the maker of the change then waits out its patience
      if (receipt)
        told.then(() => this.#ask(client, 'select pg_notify($1, $2)', [RECEIPTS, receipt])).catch(() => undefined);
    });
    await client.query(`set application_name = '${LISTENER}'`);
    await client.query(`listen ${CHANNEL}`);
    await client.query(`listen ${RECEIPTS}`);
    // asked when it listens: a transaction with a higher number has not committed without a notice to this process
    const heardAt = performance.now();
    const { rows } = await client.query<{ run: string; xid: string }>(
      `select ${SERVER_RUN} as run, pg_current_xact_id()::text as xid`,
    );
    if (this.#closed) return client.end();
    this.#client = client;
    this.#heardAt = heardAt;
    this.#era = { run: rows[0]!.run, xid: Number(rows[0]!.xid) };
    this.#asking = Promise.resolve();
    this.#beats = setInterval(() => this.#beat(client, lost), BEAT_MS);
    this.#beats.unref();
    for (const topic of TOPICS) void this.#tell({ topic, tenantId: '*', id: '' }, false);
  }

  /** INVARIANT: an answer comes after every notice that was sent before its question was asked. */
  #beat(client: pg.Client, lost: () => void): void {
    const askedAt = performance.now();
    if (this.#beating) {
      if (askedAt - this.#heardAt < SILENCE_MS) return;
      lost();
      client.end().catch(() => undefined);
      return;
    }
    this.#beating = this.#ask(client, 'select 1', [])
      .then(
        () => {
          if (this.#client === client) this.#heardAt = askedAt;
        },
        () => undefined, // the connection reports its end by its own event
      )
      .finally(() => {
        this.#beating = undefined;
      });
  }
  #beating: Promise<void> | undefined;

  #restart(): void {
    this.#retry = setTimeout(() => this.start().catch(() => !this.#closed && this.#restart()), 250);
  }

  async close(): Promise<void> {
    this.#closed = true;
    clearTimeout(this.#retry);
    clearInterval(this.#beats);
    const client = this.#client;
    this.#client = undefined;
    await client?.end();
  }
}
