import { AgentKey, ProxyInstance } from '../../db/entities/index.ts';
import type { Database } from '../../db/index.ts';
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
         set key_id = excluded.key_id, info = excluded.info, last_seen_at = excluded.last_seen_at`,
        [tenantId, proxy_id, keyId, JSON.stringify(info), now, now],
      ),
    );
  }

  /** The proxies, the last seen first. `stale` when three poll intervals have gone by in silence. */
  async list(tenantId: string, pollSeconds: number) {
    const rows = await this.#db
      .reader(tenantId)
      .find(ProxyInstance, {}, { orderBy: { lastSeenAt: 'desc', id: 'asc' }, limit: 1000 });
    const staleBefore = this.#clock.now() - 3 * pollSeconds * 1000;
    return rows.map((row) => ({
      proxy_id: row.id,
      ...(row.info as Omit<Heartbeat, 'proxy_id'>),
      first_seen_at: row.firstSeenAt.toISOString(),
      last_seen_at: row.lastSeenAt.toISOString(),
      stale: row.lastSeenAt.getTime() < staleBefore,
    }));
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
