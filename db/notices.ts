import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import { within } from './client.ts';

/**
 * Notifies every process on this database that something cached has changed: a credential, a tenant's settings or members, its
 * live policies. A notice is sent within the transaction of the change and reaches other processes when that commits; the process
 * that made the change hears of it before its transaction call resolves.
 */
export const TOPICS = [
  /** A tenant leaves this installation, arrives, or stays after all: everything cached about it is invalid. */
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
  /** A policy, its versions or its review, even when no bundle changes. */
  'revisions',
  'holds',
  /** Tools, their servers, and the labels of agents, even when no bundle changes. */
  'tools',
  'signing_keys',
  'head',
  /** Events to fan out, or deliveries to attempt. */
  'outbox',
  /** A webhook destination was paused, changed or deleted: sending to it must stop. */
  'destinations',
  /** Deliveries that were queued, attempted or stopped, announced only in the process that did it: see tellHere. */
  'delivery',
] as const;
export type Topic = (typeof TOPICS)[number];

/** A step that a machine took, as it was stored. */
export interface Step {
  event: { readonly type: string };
  state: string;
  context: object;
}

export interface Notice {
  topic: Topic;
  /** `*` after the listener was disconnected: anything may have changed. */
  tenantId: string;
  /** What has changed, if the topic has parts; empty otherwise. */
  id: string;
  /** The id under which other processes acknowledge that they acted on it; absent for topics that are not awaited. */
  receipt?: string;
  /** The transaction that made the change, for awaited topics. */
  xid?: number | undefined;
  /** The steps of the machine with this id that make up the change, in order. Other processes do not receive them. */
  steps?: readonly Step[] | undefined;
}

/** A run of the database server, and the last transaction in it before this process began to receive notices. */
export interface Era {
  readonly run: string;
  readonly xid: number;
}

/** Distinguishes one run of the server from another: after a failover, transaction numbers may start over. */
export const SERVER_RUN = "to_char(pg_postmaster_start_time() at time zone 'UTC', 'YYYYMMDDHH24MISSUS')";

/**
 * `own`: this process made the change, and its caller waits for the promise. The process's own changes arrive twice, the second
 * time like any other process's.
 */
type Handler = (notice: Notice, own: boolean) => unknown;

const CHANNEL = 'svc_notice';
/** Where processes acknowledge that they acted on a notice. */
const RECEIPTS = 'svc_receipt';
/** The application name of every process's listening connection in pg_stat_activity. */
const LISTENER = 'svc notices';
/**
 * Changes whose author waits until every process has heard of them: what was revoked must be dead everywhere, and what was
 * switched on must be on.
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
/** Whether the author of such a change waits until every process has heard of it. */
export function isAwaited(topic: Topic): boolean {
  return AWAITED.has(topic);
}

/** How often the listening connection is queried; the answer arrives after all earlier notices. */
const BEAT_MS = 400;
/**
 * A process that has heard no answer for this long stops using its caches. This is shorter than PATIENCE_MS: by the time a
 * process that waits for receipts goes on without one, the silent process no longer trusts its caches.
 */
const LEASE_MS = 1500;
/** A process that hangs does not delay a revocation for longer than this. */
const PATIENCE_MS = 2000;
/** A connection that is silent for this long is dead, even if no error was reported. */
const SILENCE_MS = 5000;

export class Notices {
  readonly #handlers = new Map<Topic, Set<Handler>>();
  readonly #connect: () => Promise<pg.Client>;
  #client: pg.Client | undefined;
  /** Receipts for notices of this process's own changes. */
  readonly #receipts = new Map<string, { count: number; heard: () => void }>();
  #closed = false;
  #retry: NodeJS.Timeout | undefined;
  #beats: NodeJS.Timeout | undefined;
  /** When the last answered query was sent. */
  #heardAt = Number.NEGATIVE_INFINITY;
  #era: Era | undefined;

  constructor(connect: () => Promise<pg.Client>) {
    this.#connect = connect;
  }

  /**
   * Whether this process has received the notices of all changes up to 1.5 seconds ago, and of later ones as far as they were
   * sent. While it has not, nothing may be answered from a cache.
   */
  get healthy(): boolean {
    return this.#client !== undefined && performance.now() - this.#heardAt < LEASE_MS;
  }

  /** The point since which this process has heard everything; undefined while it does not listen. */
  get era(): Era | undefined {
    return this.#client && this.#era;
  }

  on(topic: Topic, handler: Handler): () => void {
    const handlers = this.#handlers.get(topic) ?? new Set<Handler>();
    this.#handlers.set(topic, handlers.add(handler));
    return () => handlers.delete(handler);
  }

  /** A notice, and the statement that sends it when its transaction commits. Then call `deliver` or `drop`. */
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
      // the row's `xid` belongs in the notice: see Notice
      sql: `select xid, pg_notify(?, cast(? as text) || xid) from (select pg_current_xact_id()::text as xid) x`,
      params: [CHANNEL, `${topic} ${tenantId} ${id} ${receipt} `],
    };
  }

  /**
   * Passes this process's own change to its handlers, after the commit. Resolves when they have done what the change requires;
   * for awaited topics, when every process on this database has.
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
   * Passes a committed change to this process's handlers only. For changes too frequent for a notice: notices make all commits of
   * the database wait for each other.
   */
  tellHere(topic: Topic, tenantId: string, id: string, steps: readonly Step[]): void {
    if (!this.#handlers.get(topic)?.size) return;
    void this.#tell({ topic, tenantId, id, steps }, true);
  }

  /**
   * Sends a notice of a change that was committed without one, as long as this process receives notices. Notices that arrive
   * during a send are batched into the next one, without duplicates, so the heartbeat query never waits behind more than one
   * statement.
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

  /** Never rejects: the change is committed. If the number of listeners is unknown, this waits the full PATIENCE_MS. */
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

  /** How many processes listen, this one included. Rejects when the listening connection is down or hangs. */
  async #listeners(): Promise<number> {
    if (!this.#client) throw new Error('there is no listening connection');
    const text = `select count(*)::int as listeners from pg_stat_activity
       where datname = current_database() and application_name = $1`;
    const asked = this.#ask<{ listeners: number }>(this.#client, text, [LISTENER]);
    return (await within(PATIENCE_MS, asked)).rows[0]!.listeners;
  }

  /** Runs one statement at a time: several notices share the one connection. */
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
      // it works but takes no listeners, like a standby: each attempt would leave a connection behind
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
      // a connection that breaks here is reported by its own event; the change's author then waits out its patience
      if (receipt)
        told.then(() => this.#ask(client, 'select pg_notify($1, $2)', [RECEIPTS, receipt])).catch(() => undefined);
    });
    await client.query(`set application_name = '${LISTENER}'`);
    await client.query(`listen ${CHANNEL}`);
    await client.query(`listen ${RECEIPTS}`);
    // queried once it listens: no transaction with a higher number has committed without a notice to this process
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

  /** INVARIANT: an answer arrives after every notice that was sent before its query. */
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
        () => undefined, // the connection has its own event for its end
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
