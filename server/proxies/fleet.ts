import type { EntityManager } from '@mikro-orm/postgresql';
import { across } from '../../db/citus.ts';
import { AgentKey, ProxyInstance } from '../../db/entities/index.ts';
import type { Database, Reads, WriteAudit } from '../../db/index.ts';
import { addEvent } from '../../db/outbox.ts';
import type { Doer } from '../domain/audit.ts';
import { proxyIdRead } from '../domain/proxy-ids.ts';
import { AppError } from '../errors.ts';
import type { Job } from '../jobs/jobs.ts';
import type { Clock } from '../lib/clock.ts';
import { type BundleRun, bundlesOf, noteBundle } from './bundle-history.ts';

/** What a proxy reports about itself. */
export interface Heartbeat {
  proxy_id: string;
  version?: string | undefined;
  bundle_hash?: string | undefined;
  bundle_seq?: number | undefined;
  /** Why the proxy did not apply the newest bundle it fetched; absent if it did. */
  refused_bundle?: string | undefined;
  spooled_events?: number | undefined;
  started_at?: string | undefined;
  /** Whether it wraps MCP servers for one client, such as a desktop application, and ends with it. */
  desktop?: boolean | undefined;
  /** The last report: the proxy is stopping. */
  stopping?: boolean | undefined;
  /** The agent keys that it accepted since its last report. */
  agent_keys?: readonly string[] | undefined;
}

/** A proxy that was silent for this many poll intervals counts as offline. */
export const SILENT_POLLS = 3;
/**
 * How far a proxy's bundle number may be ahead of the database's and still be believed; otherwise a hostile proxy could
 * use up the numbers.
 */
const MAX_AHEAD = 1_000_000;
/** Whether two ids can be told apart by their characters alone. */
const isAscii = (id: string) => /^[!-~]*$/.test(id);
const USE_MS = 30_000;
const MAX_PER_TENANT = 1000;
const MAX_PER_KEY = 100;

/** A tenant's proxies: their last reports, and what they need to know besides the bundle. */
export class Fleet {
  readonly #db: Database;
  readonly #clock: Clock;
  readonly #audit: WriteAudit;

  constructor(db: Database, clock: Clock, audit: WriteAudit) {
    this.#db = db;
    this.#clock = clock;
    this.#audit = audit;
  }

  /**
   * Stores a proxy's report. A key has room for 100 names and a tenant for 1,000; beyond that, those silent for the
   * longest are deleted. CONFLICT for a name under which a proxy with another key has just reported; otherwise one key
   * could hide that another key's proxy is gone.
   */
  async heartbeat(tenantId: string, keyId: string, heartbeat: Heartbeat, pollSeconds: number): Promise<void> {
    const now = this.#clock.now();
    const at = new Date(now);
    const { proxy_id, agent_keys: used = [], stopping = false, ...rest } = heartbeat;
    const info = JSON.stringify(rest);
    await this.#db.transaction(tenantId, async (em, notify) => {
      // A bundle that this database never issued dates from before a restore. The proxy refuses bundles with its number
      // or a lower one, even revocations, so numbering continues after it.
      if (rest.bundle_seq !== undefined) {
        const { bundle_seq: seq, bundle_hash: hash = null } = rest;
        const raisedBefore = new Date(now - pollSeconds * 1000);
        const raised = await em.execute<unknown[]>(
          `update tenant set bundle_floor = ?, bundle_floor_at = ? where tenant_id = ? and bundle_floor < ?
             and not exists (select 1 from policy_bundle where tenant_id = ? and seq = ? and hash = coalesce(?, hash))
             and coalesce(bundle_floor_at <= ?, true)
             and ? - greatest(bundle_floor, (select coalesce(max(seq), 0) from policy_bundle where tenant_id = ?)) <= ?
           returning 1`,
          // at most once per poll interval: each raise makes a new bundle for every proxy, and a hostile key can report
          // a new number with each heartbeat
          [seq, at, tenantId, seq, tenantId, seq, hash, raisedBefore, seq, tenantId, MAX_AHEAD],
        );
        if (raised.length > 0) await notify('policies');
      }
      const known = await em.execute<unknown[]>(
        `update proxy_instance set key_id = ?, info = ?, last_seen_at = ?, silent_at = ?, stopped_at = ?, offline_at = null
         where tenant_id = ? and id = ? and (key_id = ? or last_seen_at < ? and not ?) returning id`,
        [
          ...[keyId, info, at, new Date(now + SILENT_POLLS * pollSeconds * 1000), stopping ? at : null],
          // no key says of another key's proxy that it stopped
          ...[tenantId, proxy_id, keyId, new Date(now - SILENT_POLLS * pollSeconds * 1000), stopping],
        ],
      );
      // one that was removed, and only says that it stops
      if (stopping && known.length === 0) return;
      const silentAt = now + SILENT_POLLS * pollSeconds * 1000;
      if (known.length === 0 && !(await this.#add(em, tenantId, [{ proxyId: proxy_id, keyId }], info, silentAt))) {
        throw new AppError('CONFLICT', 'a proxy with another key uses this name, or one that reads like it');
      }
      const { bundle_hash: hash, bundle_seq: seq } = rest;
      if (hash !== undefined) await noteBundle(em, tenantId, proxy_id, { hash, seq, at });
      if (used.length > 0) await noteUse(em, tenantId, proxy_id, used, at);
    });
  }

  /** Adds proxies that were heard of before their first report: they count from now on. Known names keep their owner. */
  async introduce(
    em: EntityManager,
    tenantId: string,
    proxies: readonly { proxyId: string; keyId: string }[],
  ): Promise<void> {
    // if several come under one name, the first one gets it
    const first = proxies.filter(({ proxyId }, n) => proxies.findIndex((one) => one.proxyId === proxyId) === n);
    // due at once: the next check works out when, by the tenant's interval
    await this.#add(em, tenantId, first, '{}', 0);
  }

  /** True when a name was new. */
  async #add(
    em: EntityManager,
    tenantId: string,
    proxies: readonly { proxyId: string; keyId: string }[],
    info: string,
    silentAt: number,
  ): Promise<boolean> {
    const at = new Date(this.#clock.now());
    // people would take one for the other
    const others = await em.execute<{ id: string; key_id: string }[]>(
      'select id, key_id from proxy_instance where tenant_id = ? and offline_at is null',
      [tenantId],
    );
    const reads = new Map(others.map(({ id, key_id }) => [proxyIdRead(id), { id, key_id }]));
    const apart = proxies.filter(({ proxyId, keyId }) => {
      const alike = reads.get(proxyIdRead(proxyId));
      const plain = isAscii(proxyId) && (!alike || isAscii(alike.id));
      return !alike || plain || alike.id === proxyId || alike.key_id === keyId;
    });
    const added = await em.execute<{ id: string }[]>(
      `insert into proxy_instance (tenant_id, id, key_id, info, first_seen_at, last_seen_at, silent_at)
       select ?, a.id, a.key_id, ?, ?, ?, ? from json_to_recordset(?::json) a (id text, key_id text)
       where not exists (select from proxy_instance p where p.tenant_id = ? and p.id = a.id)
       on conflict (tenant_id, id) do nothing returning id`,
      [
        ...[tenantId, info, at, at, new Date(silentAt)],
        JSON.stringify(apart.map(({ proxyId, keyId }) => ({ id: proxyId, key_id: keyId }))),
        tenantId,
      ],
    );
    if (added.length === 0) return false;
    const fresh = JSON.stringify(added.map(({ id }) => id));
    await em.execute(
      `delete from proxy_instance where tenant_id = ? and id in (
         select id from (select id, row_number() over (order by last_seen_at desc, fresh desc, id) as nth,
           row_number() over (partition by key_id order by last_seen_at desc, fresh desc, id) as nth_of_key
           from (select *, id in (select json_array_elements_text(?::json)) as fresh
             from proxy_instance where tenant_id = ?) p) ranked
         where nth > ? or nth_of_key > ?)`,
      [tenantId, fresh, tenantId, MAX_PER_TENANT, MAX_PER_KEY],
    );
    return true;
  }

  /** The proxies, most recently seen first. One that said that it stops is never silent. */
  async list(tenantId: string, pollSeconds: number) {
    const rows = await this.#db
      .reader(tenantId)
      .find(ProxyInstance, {}, { orderBy: { lastSeenAt: 'desc', id: 'asc' }, limit: MAX_PER_TENANT });
    const silentBefore = this.#clock.now() - SILENT_POLLS * pollSeconds * 1000;
    return rows.map((row) => ({
      proxy_id: row.id,
      key_id: row.keyId,
      ...(row.info as Omit<Heartbeat, 'proxy_id'>),
      first_seen_at: row.firstSeenAt.toISOString(),
      last_seen_at: row.lastSeenAt.toISOString(),
      state: row.stoppedAt
        ? ('stopped' as const)
        : row.lastSeenAt.getTime() < silentBefore
          ? ('silent' as const)
          : ('alive' as const),
    }));
  }

  /**
   * Forgets a proxy that is out of service. One that is still running comes back with its next report. Subscribers are notified
   * as if it had fallen silent, unless they already were or it said that it stops: a removal hides nothing from those who watch.
   * Throws NOT_FOUND for a name that no proxy reported.
   */
  async remove(tenantId: string, proxyId: string, by: Doer, reason: string): Promise<void> {
    await this.#db.transaction(tenantId, async (em) => {
      const gone = await em.execute<{ last_seen_at: Date | string; told: boolean }[]>(
        `delete from proxy_instance where tenant_id = ? and id = ?
         returning last_seen_at, coalesce(offline_at, stopped_at) is not null as told`,
        [tenantId, proxyId],
      );
      if (!gone[0]) throw new AppError('NOT_FOUND', 'there is no such proxy');
      if (!gone[0].told) await tellOffline(em, tenantId, this.#clock.now(), proxyId, gone[0].last_seen_at);
      await this.#audit(em, tenantId, {
        ...by,
        action: 'proxy.removed',
        target: { type: 'proxy', id: proxyId },
        reason,
        detail: `last seen ${new Date(gone[0].last_seen_at).toISOString()}`,
      });
    });
  }

  /**
   * Notifies subscribers of proxies that have fallen silent, once per proxy until its next heartbeat: not of one on a desktop,
   * which is often killed or put to sleep with its client. Resolves to the number of proxies that have fallen silent. Safe to
   * run in several processes concurrently.
   */
  async notifyOffline(tenantId: string, pollSeconds: number): Promise<number> {
    const now = this.#clock.now();
    return this.#db.transactionNear(tenantId, async (em) => {
      // those that have reported since, or now have more time than when they reported
      await em.execute(
        `update proxy_instance set silent_at = last_seen_at + make_interval(secs => ?)
         where tenant_id = ? and offline_at is null and stopped_at is null and silent_at <= ? and last_seen_at >= ?`,
        [SILENT_POLLS * pollSeconds, tenantId, new Date(now), new Date(now - SILENT_POLLS * pollSeconds * 1000)],
      );
      const gone = await em.execute<{ id: string; last_seen_at: Date | string; desktop: boolean }[]>(
        `update proxy_instance set offline_at = ? where tenant_id = ? and id in (
           select id from proxy_instance where tenant_id = ? and offline_at is null and stopped_at is null
             and last_seen_at < ? order by id limit 100 for update skip locked)
         returning id, last_seen_at, coalesce((info ->> 'desktop')::boolean, false) as desktop`,
        [new Date(now), tenantId, tenantId, new Date(now - SILENT_POLLS * pollSeconds * 1000)],
      );
      for (const [n, { id, last_seen_at, desktop }] of gone.entries()) {
        if (!desktop) await tellOffline(em, tenantId, now + n, id, last_seen_at);
      }
      return gone.length;
    });
  }

  /** The tenants with proxies that may have fallen silent. */
  async due(): Promise<string[]> {
    const rows = await across<{ tenant_id: string }>(
      this.#db,
      'select distinct tenant_id from proxy_instance where offline_at is null and stopped_at is null and silent_at <= $1',
      [new Date(this.#clock.now())],
    );
    return rows.map(({ tenant_id }) => tenant_id);
  }

  /** The bundles that a proxy used, newest first; see bundlesOf. */
  bundles(reads: Reads, tenantId: string, proxyId: string): Promise<BundleRun[]> {
    return bundlesOf(reads, tenantId, proxyId, this.#clock.now());
  }

  /** The SHA-256 of each valid agent key, with its agent. */
  async agentKeys(tenantId: string) {
    const rows = await this.#db
      .reader(tenantId)
      .find(AgentKey, { revokedAt: null, unconfirmedSince: null }, { orderBy: { id: 'asc' } });
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

/** Agent keys are seen only at proxies. Each key's use is stored at most twice a minute. */
async function noteUse(
  em: EntityManager,
  tenantId: string,
  proxyId: string,
  keyIds: readonly string[],
  at: Date,
): Promise<void> {
  await em.execute(
    `update agent_key set last_used_at = ?, last_used_by = ? where tenant_id = ? and id in (
       select id from agent_key where tenant_id = ? and id in (select json_array_elements_text(?::json))
         and revoked_at is null and (last_used_at is null or last_used_at < ?) for update skip locked)`,
    [at, proxyId, tenantId, tenantId, JSON.stringify(keyIds), new Date(at.getTime() - USE_MS)],
  );
}

function tellOffline(
  em: EntityManager,
  tenantId: string,
  at: number,
  proxy_id: string,
  lastSeen: Date | string,
): Promise<void> {
  const last_seen_at = new Date(lastSeen).toISOString();
  const payload = { proxy_id, last_seen_at, created_at: new Date(at).toISOString() };
  return addEvent(em, tenantId, { type: 'proxy.offline', at, payload });
}

/** Reports proxies that have fallen silent to their tenant's subscribers. */
export function silentProxies(fleet: Fleet, pollSeconds: (tenantId: string) => Promise<number>): Job {
  return {
    name: 'silent proxies',
    everySeconds: 5,
    async run(signal) {
      const failures: unknown[] = [];
      for (const tenantId of await fleet.due()) {
        if (signal.aborted) return;
        try {
          await fleet.notifyOffline(tenantId, await pollSeconds(tenantId));
        } catch (error) {
          // a tenant that fails does not hold up the others
          failures.push(error);
        }
      }
      if (failures.length > 0)
        throw new AggregateError(failures, `the proxies of ${failures.length} tenants were not looked at`);
    },
  };
}
