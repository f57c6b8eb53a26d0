import { AgentKey, ProxyInstance } from '../../db/entities/index.ts';
import type { Database } from '../../db/index.ts';
import { addEvent } from '../../db/outbox.ts';
import type { Clock } from '../lib/clock.ts';

/** What a proxy says of itself. */
export interface Heartbeat {
  proxy_id: string;
  version?: string | undefined;
  bundle_hash?: string | undefined;
  bundle_seq?: number | undefined;
  spooled_events?: number | undefined;
  started_at?: string | undefined;
}

/** After so many poll intervals in silence a proxy counts as gone. */
const SILENT_POLLS = 3;

/** The proxies of a tenant: what they last said, and what they need to know beside the bundle. */
export class Fleet {
  readonly #db: Database;
  readonly #clock: Clock;

  constructor(db: Database, clock: Clock) {
    this.#db = db;
    this.#clock = clock;
  }

  async heartbeat(tenantId: string, keyId: string, heartbeat: Heartbeat): Promise<void> {
    const now = new Date(this.#clock.now());
    const { proxy_id, ...info } = heartbeat;
    await this.#db.transaction(tenantId, (em) =>
      em.execute(
        `insert into proxy_instance (tenant_id, id, key_id, info, first_seen_at, last_seen_at)
         values (?, ?, ?, ?, ?, ?) on conflict (tenant_id, id) do update
         set key_id = excluded.key_id, info = excluded.info, last_seen_at = excluded.last_seen_at,
           offline_at = null`,
        [tenantId, proxy_id, keyId, JSON.stringify(info), now, now],
      ),
    );
  }

  /** The proxies, the last seen first. `stale` when three poll intervals have gone by in silence. */
  async list(tenantId: string, pollSeconds: number) {
    const rows = await this.#db
      .reader(tenantId)
      .find(ProxyInstance, {}, { orderBy: { lastSeenAt: 'desc', id: 'asc' }, limit: 1000 });
    const staleBefore = this.#clock.now() - SILENT_POLLS * pollSeconds * 1000;
    return rows.map((row) => ({
      proxy_id: row.id,
      ...(row.info as Omit<Heartbeat, 'proxy_id'>),
      first_seen_at: row.firstSeenAt.toISOString(),
      last_seen_at: row.lastSeenAt.toISOString(),
      stale: row.lastSeenAt.getTime() < staleBefore,
    }));
  }

  /**
   * Tells subscribers of proxies that have fallen silent, once until each is heard of again. Resolves to how many it
   * told of. May run in several processes at once.
   */
  async tellOffline(tenantId: string, pollSeconds: number): Promise<number> {
    const now = this.#clock.now();
    return this.#db.transaction(tenantId, async (em) => {
      const gone = await em.execute<{ id: string; last_seen_at: Date | string }[]>(
        `update proxy_instance set offline_at = ? where (tenant_id, id) in (
           select tenant_id, id from proxy_instance where tenant_id = ? and offline_at is null and last_seen_at < ?
           order by id limit 100 for update skip locked)
         returning id, last_seen_at`,
        [new Date(now), tenantId, new Date(now - SILENT_POLLS * pollSeconds * 1000)],
      );
      for (const [n, { id, last_seen_at }] of gone.entries()) {
        await addEvent(em, tenantId, {
          type: 'proxy.offline',
          at: now + n,
          payload: {
            proxy_id: id,
            last_seen_at: new Date(last_seen_at).toISOString(),
            created_at: new Date(now).toISOString(),
          },
        });
      }
      return gone.length;
    });
  }

  /** The tenants that have proxies which were heard of and not yet called silent. */
  async watched(): Promise<string[]> {
    const { rows } = await this.#db.owner.query<{ tenant_id: string }>(
      'select distinct tenant_id from proxy_instance where offline_at is null',
    );
    return rows.map(({ tenant_id }) => tenant_id);
  }

  /** The SHA-256 of each agent key that works, with the agent that it stands for. */
  async agentKeys(tenantId: string) {
    const rows = await this.#db.reader(tenantId).find(AgentKey, { revokedAt: null }, { orderBy: { id: 'asc' } });
    return rows
      .filter((row) => !row.expiresAt || row.expiresAt.getTime() > this.#clock.now())
      .map((row) => ({
        id: row.id,
        key_hash: `sha256:${Buffer.from(row.hash).toString('hex')}`,
        agent_id: row.agentId,
        agent_role: row.agentRole,
        owner_id: row.ownerId ?? null,
        ...(row.expiresAt && { expires_at: row.expiresAt.toISOString() }),
      }));
  }
}
