import type { EntityManager } from '@mikro-orm/postgresql';
import type { Principal } from './scopes.ts';

/** Who did something, as the audit chain names them. */
export interface Actor {
  type: 'user' | 'api_key' | 'agent_key' | 'operator' | 'system';
  id: string;
  email?: string | undefined;
  ip?: string | undefined;
}

/** Whoever has the database and the settings, as the audit chain names them. */
export const OPERATOR: Actor = { type: 'operator', id: 'operator' };

/** Who did something and in which request. */
export interface Doer {
  actor: Actor;
  requestId?: string | undefined;
}

/**
 * Every action that the audit chain knows, with its stable code: the letters of the area, a number, and I for done or E
 * for refused. A code never changes its meaning.
 */
export const AUDIT_ACTIONS = {
  'tenant.created': 'TEN001I',
  'settings.changed': 'TEN002I',
  'member.added': 'MEM001I',
  'key.created': 'KEY001I',
  'key.revoked': 'KEY002I',
  'agent_key.created': 'AGK001I',
  'agent_key.revoked': 'AGK002I',
  'signing_key.rotated': 'SGK001I',
  'session.started': 'SES001I',
  'session.refused': 'SES001E',
  'session.ended': 'SES002I',
  'session.link_created': 'SES003I',
  'policy.created': 'POL001I',
  'policy.updated': 'POL002I',
  'policy.submitted': 'POL003I',
  'policy.approved': 'POL004I',
  'policy.approval_refused': 'POL004E',
  'policy.rejected': 'POL005I',
  'policy.changes_requested': 'POL006I',
  'policy.revoked': 'POL007I',
  'policy.rolled_back': 'POL008I',
  'policy.break_glass': 'POL009I',
  'escrow.created': 'ESC001I',
  'escrow.cancelled': 'ESC002I',
  'escrow.vote_cast': 'ESC003I',
  'escrow.condition_reported': 'ESC004I',
  'escrow.recounted': 'ESC005I',
  'escrow.released': 'ESC006I',
  'escrow.rejected': 'ESC007I',
  'escrow.consumed': 'ESC008I',
  'escrow.consume_unrecorded': 'ESC008E',
  'escrow.expired': 'ESC009I',
  'forensics.exported': 'FOR001I',
  'forensics.verification_failed': 'FOR002E',
} as const;
export type AuditAction = keyof typeof AUDIT_ACTIONS;

export type Severity = 'info' | 'warning' | 'critical';

export interface AuditEntry {
  actor: Actor;
  action: AuditAction;
  target: { type: string; id: string };
  severity?: Severity | undefined;
  reason?: string | undefined;
  /** What else a reader must know, in plain words; never a secret. */
  detail?: string | undefined;
  /** Hashes of what the target was before and is now. */
  beforeHash?: string | undefined;
  afterHash?: string | undefined;
  requestId?: string | undefined;
}

/**
 * Adds an entry to the tenant's audit chain within the caller's transaction: the change and its record commit together
 * or not at all. Call it as the last step before the commit; it locks the chain's head until then.
 */
export type WriteAudit = (em: EntityManager, tenantId: string, entry: AuditEntry) => Promise<void>;

/** The caller of a request, as actor. */
export function actorOf(principal: Principal, ip?: string): Actor {
  switch (principal.kind) {
    case 'session':
      return { type: 'user', id: principal.userId, email: principal.email, ip };
    case 'api_key':
    case 'agent_key':
      return { type: principal.kind, id: principal.id, ip };
  }
}
