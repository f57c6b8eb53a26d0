import type { EntityManager } from '@mikro-orm/postgresql';
import { afterCommit, type Reads, type WriteAudit } from '../../db/index.ts';
import { AUDIT_ACTIONS, type AuditAction, type AuditEntry, type Severity } from '../domain/audit.ts';
import { AppError } from '../errors.ts';
import type { Clock } from '../lib/clock.ts';
import { newId } from '../lib/ids.ts';
import { Where } from '../lib/where.ts';
import { cursorOf, openCursor } from '../rpc/cursor.ts';
import type { Checkpoints } from './checkpoint.ts';
import {
  AUDIT_COLUMNS,
  auditColumns,
  chainHash,
  genesisLine,
  RECORD_ALG,
  RECORD_VERSION,
  ZERO_HASH,
} from './record.ts';
import { firstSince, lastSeq, PLAN } from './seek.ts';
import type { ChainPosition } from './verify.ts';

/** The line of an audit record, version 1. INVARIANT: keys in sorted order, as in the decision record. */
function auditLine(tenantId: string, seq: number, id: string, at: string, e: AuditEntry): string {
  return JSON.stringify({
    action: e.action,
    actor_email: clean(e.actor.email),
    actor_id: clean(e.actor.id),
    actor_ip: clean(e.actor.ip),
    actor_type: e.actor.type,
    after_hash: e.afterHash,
    alg: RECORD_ALG,
    before_hash: e.beforeHash,
    code: AUDIT_ACTIONS[e.action],
    detail: clean(e.detail),
    event_type: 'audit',
    id,
    note: e.note,
    reason: clean(e.reason),
    received_at: at,
    request_id: clean(e.requestId),
    seq,
    severity: e.severity ?? 'info',
    target_id: clean(e.target.id),
    target_type: e.target.type,
    tenant_id: tenantId,
    v: RECORD_VERSION,
  });
}

/** Text that the record can hold: NUL, and anything that JSON would write differently from canonical JSON, is replaced. */
function clean(text: string | undefined): string | undefined {
  return text?.toWellFormed().replaceAll('\0', '\uFFFD');
}

/** What an audit record shows. */
export interface AuditRecord {
  id: string;
  seq: number;
  created_at: string;
  actor: { type: string; id: string; email?: string; ip?: string };
  action: AuditAction;
  code: string;
  target: { type: string; id: string };
  severity: Severity;
  reason?: string;
  detail?: string;
  before_hash?: string;
  after_hash?: string;
  request_id?: string;
  prev_hash: string;
  hash: string;
}

/** Runs one statement within a transaction. Its parameters $1, $2 … each occur once and in this order. */
export type Execute = <R>(sql: string, values: unknown[]) => Promise<R[]>;

/** The head to which the transaction moves the audit chain, and the head from which it moves. */
export interface AuditStep {
  from: ChainPosition;
  to: ChainPosition;
}

/**
 * Adds a record to the audit chain within a transaction, preceded by the genesis record if it is the first. The chain's head row
 * is locked from then until the commit, so a tenant's changes are serialized and the chain cannot fork. `allowed` is called under
 * the lock, with the head that was found and whether it is in doubt, and throws if nothing may be added. Time never goes backwards
 * within the chain, whatever its writers' clocks say.
 */
export async function addAudit(
  execute: Execute,
  tenantId: string,
  entry: AuditEntry,
  how: {
    now: number;
    fingerprint: () => string;
    id?: string | undefined;
    allowed?: (head: ChainPosition, doubtful: boolean) => Promise<void>;
  },
): Promise<AuditStep> {
  await execute(
    `insert into chain_head (tenant_id, chain, seq, hash, fence) values ($1, 'audit', 0, $2, 0) on conflict do nothing`,
    [tenantId, Buffer.from(ZERO_HASH, 'hex')],
  );
  const rows = await execute<{ seq: string | number; hash: Buffer; closed: boolean }>(
    `select h.seq, h.hash, exists (select from chain_alarm a where a.tenant_id = $1 and a.chain = h.chain) as closed
     from chain_head h where h.tenant_id = $2 and h.chain = 'audit' for update of h`,
    [tenantId, tenantId],
  );
  let seq = Number(rows[0]!.seq);
  // a separate statement, so that it sees what was committed while the previous one waited for the lock
  const [last] = await execute<{ received_at: Date | string; hash: Buffer }>(
    'select received_at, hash from audit_record where tenant_id = $1 and seq = $2',
    [tenantId, seq],
  );
  const now = new Date(Math.max(how.now, last ? new Date(last.received_at).getTime() : 0));
  let hash: Buffer = rows[0]!.hash;
  const from = { seq, hash: hash.toString('hex') };
  // the record that the head names may be gone, or another
  const isAsStated = seq === 0 || last?.hash.equals(hash) === true;
  await how.allowed?.(from, rows[0]!.closed || !isAsStated);
  const add = async (id: string, line: string) => {
    hash = chainHash(hash, line);
    const columns = Object.values(auditColumns(JSON.parse(line)));
    await execute(
      `insert into audit_record (tenant_id, seq, id, received_at, hash, line, ${AUDIT_COLUMNS.join(', ')})
       values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`,
      [tenantId, seq, id, now, hash, line, ...columns],
    );
  };
  if (seq === 0) {
    seq = 1;
    await add('genesis_audit', genesisLine(tenantId, 'audit', now.toISOString(), how.fingerprint()));
  }
  seq += 1;
  const id = how.id ?? newId('aud', now.getTime());
  await add(id, auditLine(tenantId, seq, id, now.toISOString(), entry));
  await execute(`update chain_head set seq = $1, hash = $2, unsigned = true where tenant_id = $3 and chain = 'audit'`, [
    seq,
    hash,
    tenantId,
  ]);
  return { from, to: { seq, hash: hash.toString('hex') } };
}

/**
 * The writer of the audit chain: its records commit in the transaction of the change that they describe. With `checkpoints`, the
 * chain is first compared with what is known about it. A chain that lacks what was acknowledged takes no record (ChainClosed), so
 * no change is made.
 */
export function auditWriter(clock: Clock, fingerprint: () => string, checkpoints?: () => Checkpoints): WriteAudit {
  /** Where a transaction in progress has left the chain: not committed, so not to be acknowledged. */
  const pending = new WeakMap<EntityManager, ChainPosition>();
  return async (em: EntityManager, tenantId: string, entry: AuditEntry) => {
    const execute: Execute = (sql, values) => em.execute(sql.replaceAll(/\$\d+/g, '?'), values as never);
    const known = checkpoints?.();
    const allowed = async (head: ChainPosition, doubtful: boolean) => {
      if (pending.get(em)?.hash === head.hash) return;
      const local = known?.acknowledged.local(tenantId, 'audit');
      // the head is as this process left it, so there is nothing to compare
      if (!known || (!doubtful && local?.seq === head.seq && local.hash === head.hash)) return;
      const { generation } = await known.inspectHeld(tenantId, 'audit');
      if (head.seq > 0) known.acknowledged.acknowledge(tenantId, 'audit', { ...head, generation });
    };
    const { to } = await addAudit(execute, tenantId, entry, { now: clock.now(), fingerprint, allowed });
    if (!known) return;
    pending.set(em, to);
    const generation = known.acknowledged.local(tenantId, 'audit')?.generation ?? 0;
    afterCommit(em, () => known.acknowledged.acknowledge(tenantId, 'audit', { ...to, generation }));
  };
}

/** Filters for an audit log. */
export interface AuditFilter {
  actor_id?: string | undefined;
  action?: string | undefined;
  target_type?: string | undefined;
  target_id?: string | undefined;
  severity?: string | undefined;
  since?: string | undefined;
  until?: string | undefined;
  after?: string | undefined;
  limit: number;
}

const CURSOR = 'audit-1';

/**
 * The audit records that match, newest first, from the cursor on. Each filter has an index, and a time maps to a position in the
 * chain, so that the cost of a page depends on what it holds. With several filters, the rarest finds the records. They are read
 * from the text that was hashed.
 */
export async function listAudit(
  db: Reads,
  tenantId: string,
  filter: AuditFilter,
): Promise<{ records: AuditRecord[]; next_cursor: string | null; has_more: boolean }> {
  const before = filter.after === undefined ? undefined : Number(openCursor(CURSOR, filter.after, /^(\d{1,15})$/)[0]);
  return db.readOnly(tenantId, async (client) => {
    await client.query(PLAN);
    const end = await lastSeq(client, tenantId, 'audit');
    const at = async (time: string | undefined) =>
      time === undefined ? undefined : firstSince(client, tenantId, 'audit', end, time);
    const where = new Where(`tenant_id = $1 and action <> ''`, [tenantId, filter.limit + 1]);
    // no unnecessary bounds: between two bounds unknown to the planner, it expects only a few records
    where.and(await at(filter.since), (seq) => `seq >= ${seq}`);
    where.and(await at(filter.until), (seq) => `seq < ${seq}`);
    where.and(before, (seq) => `seq < ${seq}`);
    for (const name of AUDIT_COLUMNS) where.and(filter[name], (value) => `${name} = ${value}`);
    const { rows } = await client.query<AuditRow>(
      withPrevious(`${where.sql} order by seq desc limit $2`),
      where.values,
    );
    const page = rows.slice(0, filter.limit);
    const has_more = rows.length > filter.limit;
    return {
      records: page.map(auditRecord),
      next_cursor: has_more ? cursorOf(CURSOR, page.at(-1)!.seq) : null,
      has_more,
    };
  });
}

/** One record of the audit log. NOT_FOUND when the tenant has no such record. */
export async function getAudit(db: Reads, tenantId: string, id: string): Promise<AuditRecord> {
  return db.readOnly(tenantId, async (client) => {
    await client.query(PLAN);
    const { rows } = await client.query<AuditRow>(withPrevious(`tenant_id = $1 and id = $2 and action <> ''`), [
      tenantId,
      id,
    ]);
    if (!rows[0]) throw new AppError('NOT_FOUND', 'there is no such record');
    return auditRecord(rows[0]);
  });
}

/**
 * The records at a place, each with the previous record's hash, which is found by a column, not by a sum: see seqSince. The first
 * record of a chain has no action and is not shown.
 */
function withPrevious(place: string): string {
  return `select r.seq, r.hash, r.line,
      (select p.hash from audit_record p where p.tenant_id = $1 and p.seq = r.before) as prev_hash
    from (select seq, hash, line, seq - 1 as before from audit_record where ${place} offset 0) r order by r.seq desc`;
}

interface AuditRow {
  seq: number;
  hash: Buffer;
  prev_hash: Buffer | null;
  line: string;
}

function auditRecord(row: AuditRow): AuditRecord {
  const r = JSON.parse(row.line) as Record<string, string>;
  return {
    id: r.id!,
    seq: row.seq,
    created_at: r.received_at!,
    actor: {
      type: r.actor_type!,
      id: r.actor_id!,
      ...(r.actor_email !== undefined && { email: r.actor_email }),
      ...(r.actor_ip !== undefined && { ip: r.actor_ip }),
    },
    action: r.action as AuditAction,
    code: r.code!,
    target: { type: r.target_type!, id: r.target_id! },
    severity: r.severity as Severity,
    ...(r.reason !== undefined && { reason: r.reason }),
    ...(r.detail !== undefined && { detail: r.detail }),
    ...(r.before_hash !== undefined && { before_hash: r.before_hash }),
    ...(r.after_hash !== undefined && { after_hash: r.after_hash }),
    ...(r.request_id !== undefined && { request_id: r.request_id }),
    prev_hash: row.prev_hash?.toString('hex') ?? '',
    hash: row.hash.toString('hex'),
  };
}
