import type { EntityManager } from '@mikro-orm/postgresql';
import type pg from 'pg';
import type { Reads } from '../../db/index.ts';
import { lastSeq, PLAN, seqSince } from '../chain/seek.ts';
import type { AuditAction } from '../domain/audit.ts';
import { AppError } from '../errors.ts';
import { ENFORCED } from '../policy/live.ts';

/** How many bundles of a proxy are kept at most, and for how many days after it stopped using one. */
export const MOST_BUNDLES = 50;
export const BUNDLE_DAYS = 90;
const DAY_MS = 86_400_000;
/** How many audit records before a bundle are searched, per action, for the change that produced it. */
const MOST_CHANGES = 20;

/** A bundle that a proxy used, from its first report of it until it named another one. */
export interface BundleRun {
  /** Null for one that this database never issued: what the proxy reports about such a bundle is not stored. */
  bundle_hash: string | null;
  bundle_seq: number | null;
  built_at: string | null;
  since: string;
  /** Null for the one that it reported last. */
  until: string | null;
  /** From when it was built to its first report; null if the proxy used no other bundle before, or had used this one. */
  lag_seconds: number | null;
  /** The last change before it was built that affects bundles. */
  change: { id: string; action: AuditAction; target: { type: string; id: string } } | null;
}

/**
 * Stores, in the transaction of a heartbeat, that the proxy uses another bundle than at its last one; stores nothing if it is the
 * same, or has the same content and was only signed again.
 *
 * INVARIANT: of a proxy's report, only which of the tenant's own bundles it names is stored. However often it names another one,
 * it has at most `MOST_BUNDLES` rows.
 */
export async function noteBundle(
  em: EntityManager,
  tenantId: string,
  proxyId: string,
  { hash, seq, at }: { hash: string; seq: number | undefined; at: Date },
): Promise<void> {
  const changed = await em.execute<unknown[]>(
    `insert into proxy_bundle (tenant_id, proxy_id, since, hash, seq, built_at)
     select ?, ?, ?, coalesce(b.hash, ''), b.seq, b.built_at
     from (select) one left join lateral (
       select hash, seq, built_at from policy_bundle where tenant_id = ? and hash = ?
         and (?::bigint is null or seq = ?::bigint) order by built_at desc limit 1) b on true
     where coalesce(b.hash, '') is distinct from (
       select hash from proxy_bundle where tenant_id = ? and proxy_id = ? order by since desc limit 1)
     on conflict do nothing returning 1`,
    [...[tenantId, proxyId, at, tenantId, hash], seq ?? null, seq ?? null, ...[tenantId, proxyId]],
  );
  if (changed.length === 0) return;
  await em.execute(
    `delete from proxy_bundle where tenant_id = ? and proxy_id = ? and since < greatest(
       (select since from proxy_bundle where tenant_id = ? and proxy_id = ? order by since desc offset ? limit 1),
       (select max(since) from proxy_bundle where tenant_id = ? and proxy_id = ? and since <= ?))`,
    [
      ...[tenantId, proxyId, tenantId, proxyId, MOST_BUNDLES - 1],
      ...[tenantId, proxyId, new Date(at.getTime() - BUNDLE_DAYS * DAY_MS)],
    ],
  );
}

/** The bundles of a proxy, newest first. NOT_FOUND for a name that no proxy reports under. */
export async function bundlesOf(reads: Reads, tenantId: string, proxyId: string, now: number): Promise<BundleRun[]> {
  return reads.readOnly(tenantId, async (client) => {
    const known = await client.query('select 1 from proxy_instance where tenant_id = $1 and id = $2', [
      tenantId,
      proxyId,
    ]);
    if (known.rowCount === 0) throw new AppError('NOT_FOUND', 'there is no such proxy');
    const { rows } = await client.query<{ since: Date; hash: string; seq: number | null; built_at: Date | null }>(
      `select since, hash, seq, built_at from proxy_bundle where tenant_id = $1 and proxy_id = $2
       order by since desc limit ${MOST_BUNDLES}`,
      [tenantId, proxyId],
    );
    const old = rows.findIndex((_, n) => n > 0 && rows[n - 1]!.since.getTime() < now - BUNDLE_DAYS * DAY_MS);
    const listed = old < 0 ? rows : rows.slice(0, old);
    const changes = await changesBefore(
      client,
      tenantId,
      listed.flatMap(({ built_at }) => built_at ?? []),
    );
    return listed.map(({ since, hash, seq, built_at }, n): BundleRun => {
      const until = rows[n - 1]?.since;
      const before = rows.slice(n + 1);
      // a bundle that it returns to is not late
      const isNew = before.length > 0 && !before.some((row) => row.hash === hash && row.seq === seq);
      const lag = built_at && isNew ? since.getTime() - built_at.getTime() : undefined;
      return {
        bundle_hash: hash || null,
        bundle_seq: seq,
        built_at: built_at?.toISOString() ?? null,
        since: since.toISOString(),
        until: until?.toISOString() ?? null,
        // the clocks of two processes may differ
        lag_seconds: lag === undefined ? null : Math.max(0, Math.round(lag / 1000)),
        change: (built_at && changes.get(built_at.getTime())) ?? null,
      };
    });
  });
}

/** For each time, in milliseconds, the last change up to then that affects bundles. */
async function changesBefore(
  client: pg.PoolClient,
  tenantId: string,
  times: readonly Date[],
): Promise<Map<number, NonNullable<BundleRun['change']>>> {
  if (times.length === 0) return new Map();
  await client.query(PLAN);
  const end = await lastSeq(client, tenantId, 'audit');
  const { rows } = await client.query<{ n: number; id: string; action: AuditAction; type: string; target: string }>(
    `select b.n::int, c.id, c.action, c.target_type as type, c.target_id as target
     from unnest($3::timestamptz[]) with ordinality as b(at, n),
       lateral ${seqSince('audit', '$2', 'b.at')} as later(seq),
       lateral (
         select c.* from unnest($4::text[]) as a(action), lateral (
           select r.seq, r.id, r.action, r.target_type, r.target_id, r.line from audit_record r
           where r.tenant_id = $1 and r.action = a.action and r.seq < later.seq
           order by r.seq desc limit ${MOST_CHANGES}) c
         where case when c.action = 'settings.changed' then c.line::json->>'detail' like '%action_types%'
           when c.action = any($5) then c.line::json->>'detail' like '%, ${ENFORCED}'
           else coalesce(c.line::json->>'detail', '') not like '%waits for a second person' end
         order by c.seq desc limit 1) c`,
    // a change in the same millisecond counts
    [
      tenantId,
      end,
      times.map((at) => new Date(at.getTime() + 1).toISOString()),
      [...CHANGES, ...WITH_EFFECT],
      WITH_EFFECT,
    ],
  );
  return new Map(
    rows.map(({ n, id, action, type, target }) => [
      times[n - 1]!.getTime(),
      { id, action, target: { type, id: target } },
    ]),
  );
}

/** These actions change the content of bundles, as do those below when their record says that they took effect. */
const CHANGES: readonly AuditAction[] = [
  'policy.revoked',
  'list.deleted',
  'tool.approved',
  'tool.rejected',
  'tool.labeled',
  'tool.removed',
  'tool_server.changed',
  'agent.labeled',
  'settings.changed',
];
const WITH_EFFECT: readonly AuditAction[] = [
  'policy.created',
  'policy.updated',
  'policy.approved',
  'policy.rolled_back',
  'policy.break_glass',
  'list.changed',
  'list.approved',
];
