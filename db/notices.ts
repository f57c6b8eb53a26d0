import type pg from 'pg';

/**
 * Tells every process on this database that something cached has changed: a credential, a tenant's settings or members,
 * its live policies. A notice is sent within the transaction of the change and reaches other processes when that
 * commits; the process that made the change hears of it before its transaction call resolves.
 */
export const TOPICS = ['credential', 'members', 'settings', 'policies', 'signing_keys', 'head'] as const;
export type Topic = (typeof TOPICS)[number];

export interface Notice {
  topic: Topic;
  /** `*` after the listener was away: anything may have changed. */
  tenantId: string;
  /** What has changed, where the topic has parts; empty otherwise. */
  id: string;
}

/**
 * `own`: this process made the change, and its caller waits for the promise. The process's own changes come twice, the
 * second time like another's.
 */
type Handler = (notice: Notice, own: boolean) => unknown;

const CHANNEL = 'svc_notice';

export class Notices {
  readonly #handlers = new Map<Topic, Set<Handler>>();
  readonly #connect: () => Promise<pg.Client>;
  #client: pg.Client | undefined;
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

  /** The statement that sends a notice when the transaction that runs it commits. */
  static statement(notice: Notice): { sql: string; params: string[] } {
    return { sql: 'select pg_notify(?, ?)', params: [CHANNEL, `${notice.topic} ${notice.tenantId} ${notice.id}`] };
  }

  /** Tells this process's handlers of its own change. Resolves when they have done what the change asks for. */
  async deliver(notice: Notice): Promise<void> {
    await this.#tell(notice, true);
  }

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
    client.on('notification', ({ payload }) => {
      const [topic, tenantId, id] = (payload ?? '').split(' ') as [Topic, string, string];
      void this.#tell({ topic, tenantId, id }, false);
    });
    await client.query(`listen ${CHANNEL}`);
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
