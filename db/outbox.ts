import type { EntityManager } from '@mikro-orm/postgresql';
import type pg from 'pg';
import { newId } from '../server/lib/ids.ts';

/** Every event that a subscription can ask for, with what it tells. */
export const EVENT_TYPES = {
  'escrow.created': 'an action is held and waits for approval, a condition or time',
  'escrow.vote_cast': 'somebody has voted on a hold',
  'escrow.released': 'a hold is released: the agent may act',
  'escrow.rejected': 'an approver has said no to a held action',
  'escrow.expired': 'a hold was not released, or not used, in time',
  'escrow.cancelled': 'a hold was taken back',
  'escrow.consumed': 'the held action was let through, once',
  'policy.created': 'a policy was created, as a draft',
  'policy.updated': 'a policy has a new version',
  'policy.submitted': 'a version waits for review',
  'policy.approved': 'a version was approved and is enforced',
  'policy.rejected': 'a reviewer has rejected a version',
  'policy.changes_requested': 'a reviewer asks for changes',
  'policy.revoked': 'a policy is no longer enforced',
  'policy.rolled_back': 'the text of an old version came back as a new one',
  'policy.break_glass': 'a version is enforced without approval, in an emergency',
  'key.created': 'an API key or agent key was created',
  'key.revoked': 'an API key or agent key was revoked',
  'forensics.exported': 'a signed evidence package was made',
  'forensics.checkpoint': 'the head of a chain was signed; keep it where this server cannot change it',
  'forensics.chain_closed':
    'a chain lacks records that it is known to have had; it takes no more until an operator acts',
  'forensics.loss_accepted': 'an operator has accepted that records of a chain are lost; it goes on without them',
  'proxy.offline': 'a proxy is silent for longer than three poll intervals',
  'subscription.disabled': 'a destination failed for too long, or is gone, and nothing is sent there any more',
  'svc.test': 'sent by the test of a subscription',
} as const;
export type EventType = keyof typeof EVENT_TYPES;

export interface OutboxEvent {
  type: EventType;
  /** When it happened, in milliseconds. Of several events in one transaction, a later one must not be earlier here. */
  at: number;
  /** What subscribers are told beside `event`, `event_id` and `tenant_id`, which every payload begins with. */
  payload: Record<string, unknown>;
}

const INSERT = 'insert into event_outbox (tenant_id, id, event_type, payload, created_at) values';

/** The columns of an event's row: tenant_id, id, event_type, payload, created_at. */
export function outboxRow(tenantId: string, event: OutboxEvent): [string, string, string, string, Date] {
  const id = newId('oev', event.at);
  const payload = { event: event.type, event_id: id, tenant_id: tenantId, ...event.payload };
  return [tenantId, id, event.type, JSON.stringify(payload), new Date(event.at)];
}

/** The workers listen for it: see db/notices.ts. */
const notice = (tenantId: string) => `outbox ${tenantId} `;

/**
 * Writes an event within the caller's transaction: it is told if and only if that commits, to every subscription that
 * exists then and asks for it.
 */
export async function addEvent(em: EntityManager, tenantId: string, event: OutboxEvent): Promise<void> {
  await em.execute(`${INSERT} (?, ?, ?, ?, ?)`, outboxRow(tenantId, event));
  await em.execute(`select pg_notify('svc_notice', ?)`, [notice(tenantId)]);
}

/** The same on a connection of the owner's, within the caller's transaction there. */
export async function addEventBy(client: pg.ClientBase, tenantId: string, event: OutboxEvent): Promise<void> {
  await client.query(`${INSERT} ($1, $2, $3, $4, $5)`, outboxRow(tenantId, event));
  await client.query(`select pg_notify('svc_notice', $1)`, [notice(tenantId)]);
}
