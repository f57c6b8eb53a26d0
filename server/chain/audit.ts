import type { EntityManager } from '@mikro-orm/postgresql';
import { AUDIT_ACTIONS, type AuditAction, type AuditEntry, type Severity, type WriteAudit } from '../auth/audit.ts';
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
