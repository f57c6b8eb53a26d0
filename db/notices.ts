import { randomUUID } from 'node:crypto';
import type pg from 'pg';

/**
 * Tells every process on this database that something cached has changed: a credential, a tenant's settings or members,
 * its live policies. A notice is sent within the transaction of the change and reaches other processes when that
 * commits; the process that made the change hears of it before its transaction call resolves.
 */
export const TOPICS = [
  'credential',
  'members',
  'settings',
  /** What bundles are made of. */
  'policies',
  /** A policy, its versions or its review; also where no bundle changes by it. */
  'revisions',
  'holds',
  'signing_keys',
  'head',
  /** Events to fan out, or deliveries to make. */
  'outbox',
  /** A delivery that was queued, attempted or stopped, told in the process that did it alone: see tellHere. */
  'delivery',
] as const;
export type Topic = (typeof TOPICS)[number];

export interface Notice {
  topic: Topic;
  /** `*` after the listener was away: anything may have changed. */
  tenantId: string;
  /** What has changed, where the topic has parts; empty otherwise. */
  id: string;
  /** By which other processes tell that they have acted on it; absent where nobody waits for that. */
  receipt?: string;
}

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
/** Changes whose maker waits until every process has heard of them: what was revoked must be dead everywhere. */
const AWAITED: ReadonlySet<Topic> = new Set(['credential', 'members']);
/** A process that hangs does not hold up a revocation for longer; it answers nothing meanwhile either. */
const PATIENCE_MS = 2000;

export class Notices {
  readonly #handlers = new Map<Topic, Set<Handler>>();
  readonly #connect: () => Promise<pg.Client>;
  #client: pg.Client | undefined;
  /** Receipts that came for notices of this process's own changes. */
  readonly #receipts = new Map<string, { count: number; heard: () => void }>();
  #closed = false;
  #retry: NodeJS.Timeout | undefined;

  constructor(connect: () => Promise<pg.Client>) {
    this.#connect = connect;
  }

  /** Whether other processes' notices reach this one. While they do not, nothing may be answered from a cache. */
  get healthy(): boolean {
    return this.#client !== undefined;
  }

  on(topic: Topic, handler: Handler): () => void {
    const handlers = this.#handlers.get(topic) ?? new Set<Handler>();
    this.#handlers.set(topic, handlers.add(handler));
    return () => handlers.delete(handler);
  }

  /** A notice, and the statement that sends it when the transaction that runs it commits. `deliver` or `drop` it then. */
  issue(topic: Topic, tenantId: string, id: string): { notice: Notice; sql: string; params: string[] } {
    const receipt = AWAITED.has(topic) ? randomUUID() : undefined;
    if (receipt) this.#receipts.set(receipt, { count: 0, heard: () => undefined });
    const payload = [topic, tenantId, id, ...(receipt ? [receipt] : [])].join(' ');
    return {
      notice: { topic, tenantId, id, ...(receipt && { receipt }) },
      sql: 'select pg_notify(?, ?)',
      params: [CHANNEL, payload],
    };
  }

  /**
   * Tells this process's handlers of its own change, after the commit. Resolves when they have done what the change asks
   * for; for a credential or a member, when every process on this database has.
   */
  async deliver(notice: Notice): Promise<void> {
    await this.#tell(notice, true);
    if (notice.receipt && this.#client) await this.#heardByAll(this.#client, notice.receipt);
    this.drop(notice);
  }

  /**
   * Tells this process's handlers alone, of a change that is committed. For what is too frequent for a notice: those make
   * all commits of the database wait for each other.
   */
  tellHere(topic: Topic, tenantId: string, id: string): void {
    void this.#tell({ topic, tenantId, id }, false);
  }

  /** Forgets a notice whose transaction was rolled back. */
  drop(notice: Notice): void {
    if (notice.receipt) this.#receipts.delete(notice.receipt);
  }

  async #heardByAll(client: pg.Client, receipt: string): Promise<void> {
    const entry = this.#receipts.get(receipt);
    if (!entry) return;
    const end = Date.now() + PATIENCE_MS;
    const { rows } = await this.#ask<{ listeners: number }>(
      client,
      `select count(*)::int as listeners from pg_stat_activity
       where datname = current_database() and application_name = $1`,
      [LISTENER],
    );
    while (entry.count < rows[0]!.listeners && Date.now() < end) {
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, end - Date.now());
        entry.heard = () => {
          clearTimeout(timer);
          resolve();
        };
      });
    }
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
    const lost = () => {
      if (this.#client !== client) return;
      this.#client = undefined;
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
      const [topic, tenantId, id, receipt] = payload.split(' ') as [Topic, string, string, string?];
      const told = this.#tell({ topic, tenantId, id }, false);
      // a connection that breaks here is reported by its own event; the maker of the change then waits out its patience
      if (receipt)
        told.then(() => this.#ask(client, 'select pg_notify($1, $2)', [RECEIPTS, receipt])).catch(() => undefined);
    });
    await client.query(`set application_name = '${LISTENER}'`);
    await client.query(`listen ${CHANNEL}`);
    await client.query(`listen ${RECEIPTS}`);
    this.#client = client;
    for (const topic of TOPICS) void this.#tell({ topic, tenantId: '*', id: '' }, false);
  }

  #restart(): void {
    this.#retry = setTimeout(() => this.start().catch(() => !this.#closed && this.#restart()), 250);
  }

  async close(): Promise<void> {
    this.#closed = true;
    clearTimeout(this.#retry);
    const client = this.#client;
    this.#client = undefined;
    await client?.end();
  }
}
