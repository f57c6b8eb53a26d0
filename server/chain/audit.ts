import type { EntityManager } from '@mikro-orm/postgresql';
import type { Database } from '../../db/index.ts';
import { AUDIT_ACTIONS, type AuditAction, type AuditEntry, type Severity, type WriteAudit } from '../auth/audit.ts';
import { AppError } from '../errors.ts';
import type { Clock } from '../lib/clock.ts';
import { newId } from '../lib/ids.ts';
import { chainHash, genesisLine, RECORD_ALG, RECORD_VERSION, ZERO_HASH } from './record.ts';

/** The line of an audit record, version 1. INVARIANT: keys in sorted order, as in the decision record. */
export function auditLine(tenantId: string, seq: number, id: string, at: string, e: AuditEntry): string {
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

/** Text that the record can hold: what JSON would write differently from canonical JSON, and NUL, is replaced. */
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

/**
 * The writer of the audit chain. Its records commit in the transaction of the change that they tell of; the chain's head
 * row is locked from the record until that commit, so a tenant's changes are serial from there on and the chain cannot
 * fork. The first record of a tenant is preceded by the genesis.
 */
export function auditWriter(clock: Clock, fingerprint: () => string): WriteAudit {
  return async (em: EntityManager, tenantId: string, entry: AuditEntry) => {
    await em.execute(
      `insert into chain_head (tenant_id, chain, seq, hash, fence) values (?, 'audit', 0, ?, 0) on conflict do nothing`,
      [tenantId, Buffer.from(ZERO_HASH, 'hex')],
    );
    const rows = await em.execute<{ seq: string | number; hash: Buffer }[]>(
      `select seq, hash from chain_head where tenant_id = ? and chain = 'audit' for update`,
      [tenantId],
    );
    const now = new Date(clock.now());
    let seq = Number(rows[0]!.seq);
    let hash: Buffer = rows[0]!.hash;
    const add = async (id: string, line: string) => {
      hash = chainHash(hash, line);
      await em.execute(
        'insert into audit_record (tenant_id, seq, id, received_at, hash, line) values (?, ?, ?, ?, ?, ?)',
        [tenantId, seq, id, now, hash, line],
      );
    };
    if (seq === 0) {
      seq = 1;
      await add('genesis_audit', genesisLine(tenantId, 'audit', now.toISOString(), fingerprint()));
    }
    seq += 1;
    const id = newId('aud', now.getTime());
    await add(id, auditLine(tenantId, seq, id, now.toISOString(), entry));
    await em.execute(`update chain_head set seq = ?, hash = ? where tenant_id = ? and chain = 'audit'`, [
      seq,
      hash,
      tenantId,
    ]);
  };
}

/** What to look for in an audit log. */
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

/** The audit records that match, the newest first, from the cursor on. They are read from the text that was hashed. */
export async function listAudit(
  db: Database,
  tenantId: string,
  filter: AuditFilter,
): Promise<{ records: AuditRecord[]; next_cursor: string | null; has_more: boolean }> {
  const values: unknown[] = [tenantId];
  const where = ['a.tenant_id = $1', 'a.seq > 1'];
  const also = (sql: (place: string) => string, value: unknown) => {
    if (value === undefined) return;
    values.push(value);
    where.push(sql(`$${values.length}`));
  };
  for (const name of ['actor_id', 'action', 'target_type', 'target_id', 'severity'] as const) {
    also((place) => `a.line::json->>'${name}' = ${place}`, filter[name]);
  }
  also((place) => `a.received_at >= ${place}`, filter.since && new Date(filter.since));
  also((place) => `a.received_at < ${place}`, filter.until && new Date(filter.until));
  also((place) => `a.seq < ${place}`, filter.after && cursorSeq(filter.after));
  values.push(filter.limit + 1);
  const rows = await db.query<AuditRow>(
    tenantId,
    `select a.seq, a.hash, p.hash as prev_hash, a.line from audit_record a
     join audit_record p on p.tenant_id = a.tenant_id and p.seq = a.seq - 1
     where ${where.join(' and ')} order by a.seq desc limit $${values.length}`,
    values,
  );
  const page = rows.slice(0, filter.limit);
  const has_more = rows.length > filter.limit;
  return {
    records: page.map(auditRecord),
    next_cursor: has_more ? Buffer.from(`a1:${page.at(-1)!.seq}`).toString('base64url') : null,
    has_more,
  };
}

/** One record of the audit log. NOT_FOUND when the tenant has no such record. */
export async function getAudit(db: Database, tenantId: string, id: string): Promise<AuditRecord> {
  const rows = await db.query<AuditRow>(
    tenantId,
    `select a.seq, a.hash, p.hash as prev_hash, a.line from audit_record a
     join audit_record p on p.tenant_id = a.tenant_id and p.seq = a.seq - 1
     where a.tenant_id = $1 and a.id = $2`,
    [tenantId, id],
  );
  if (!rows[0]) throw new AppError('NOT_FOUND', 'there is no such record');
  return auditRecord(rows[0]);
}

function cursorSeq(cursor: string): number {
  const [, seq] = /^a1:(\d{1,15})$/.exec(Buffer.from(cursor, 'base64url').toString('latin1')) ?? [];
  if (seq) return Number(seq);
  throw new AppError('VALIDATION_FAILED', undefined, {
    faults: [{ pointer: '?after', message: 'is not a cursor of this list' }],
  });
}

interface AuditRow {
  seq: number;
  hash: Buffer;
  prev_hash: Buffer;
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
    prev_hash: row.prev_hash.toString('hex'),
    hash: row.hash.toString('hex'),
  };
}
