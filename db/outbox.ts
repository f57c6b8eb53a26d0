import type { EntityManager } from '@mikro-orm/postgresql';
import type pg from 'pg';
import type { EventPayload, EventType } from '../server/domain/events.ts';
import { newId } from '../server/lib/ids.ts';

export interface OutboxEvent<T extends EventType = EventType> {
  type: T;
  /** When it happened, in milliseconds. Of several events in one transaction, a later one must not be earlier here. */
  at: number;
  payload: EventPayload<T>;
}

const INSERT = 'insert into event_outbox (tenant_id, id, event_type, payload, created_at) values';

/** The columns of an event's row: tenant_id, id, event_type, payload, created_at. */
export function outboxRow<T extends EventType>(
  tenantId: string,
  event: OutboxEvent<T>,
): [string, string, string, string, Date] {
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
export async function addEvent<T extends EventType>(
  em: EntityManager,
  tenantId: string,
  event: OutboxEvent<T>,
): Promise<void> {
  await em.execute(`${INSERT} (?, ?, ?, ?, ?)`, outboxRow(tenantId, event));
  await em.execute(`select pg_notify('svc_notice', ?)`, [notice(tenantId)]);
}

/** The same on a connection of the owner's, within the caller's transaction there. */
export async function addEventBy<T extends EventType>(
  client: pg.ClientBase,
  tenantId: string,
  event: OutboxEvent<T>,
): Promise<void> {
  await client.query(`${INSERT} ($1, $2, $3, $4, $5)`, outboxRow(tenantId, event));
  await client.query(`select pg_notify('svc_notice', $1)`, [notice(tenantId)]);
}
