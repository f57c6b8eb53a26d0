import type { EntityManager } from '@mikro-orm/postgresql';
import type pg from 'pg';
import type { EventPayload, EventType } from '../server/domain/events.ts';
import type { MailKind } from '../server/domain/mail.ts';
import { newId } from '../server/lib/ids.ts';
import { wakeOutbox } from './index.ts';

export interface OutboxEvent<T extends EventType = EventType> {
  type: T;
  /** When it happened, in milliseconds. Of several events in one transaction, a later one must not have an earlier time. */
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

/**
 * Writes an event within the caller's transaction: if and only if that commits, it goes to every subscription that exists then
 * and asks for it.
 */
export async function addEvent<T extends EventType>(
  em: EntityManager,
  tenantId: string,
  event: OutboxEvent<T>,
): Promise<void> {
  await em.execute(`${INSERT} (?, ?, ?, ?, ?)`, outboxRow(tenantId, event));
  await wakeOutbox(em, tenantId);
}

/**
 * Writes an example event within the caller's transaction, which goes to one destination only, whatever types it asks for.
 * Resolves to the event's id.
 */
export async function addExample<T extends EventType>(
  em: EntityManager,
  tenantId: string,
  event: OutboxEvent<T>,
  laneId: string,
): Promise<string> {
  const row = outboxRow(tenantId, event);
  await em.execute(
    'insert into event_outbox (tenant_id, id, event_type, payload, created_at, lane_id) values (?, ?, ?, ?, ?, ?)',
    [...row, laneId],
  );
  await wakeOutbox(em, tenantId);
  return row[1];
}

/** Like `addEvent`, on an owner connection, within the caller's transaction there. */
export async function addEventBy<T extends EventType>(
  client: pg.ClientBase,
  tenantId: string,
  event: OutboxEvent<T>,
): Promise<void> {
  await client.query(`${INSERT} ($1, $2, $3, $4, $5)`, outboxRow(tenantId, event));
  await client.query(`select pg_notify('svc_notice', $1)`, [`outbox ${tenantId} `]);
}

/** News that people who asked for it get by mail. */
export interface News {
  kind: MailKind;
  /** Id of the hold, policy or settings change, or name of the list. */
  id: string;
  /** Version of the policy or list. */
  version?: number;
  at: number;
}

/**
 * Limits notices of holds that wait for a person, since agents create them; a letter counts the holds themselves. Reviews, which
 * people ask for, each leave one notice: no agent can keep anyone from hearing of them.
 */
const MOST_HOLDS = 100;
/** Citus mistakes the short form, `case p.pace when`, for a comparison that it can evaluate in advance. */
const STRIDE = `(case when p.pace = 'daily' then interval '1 day' else interval '1 hour' end)`;
/** An offset in seconds per person, so that letters are not all written at once. */
const OWN = `make_interval(secs => hashtextextended(p.user_id, 0) & 511)`;
/** When a person `p` is mailed about what happens at `t.at`. */
export const DUE = `case when p.pace = 'each' then t.at
  else date_bin(${STRIDE}, t.at - ${OWN}, 'epoch'::timestamptz + make_interval(hours => p.daily_hour)) + ${STRIDE} + ${OWN} end`;

/**
 * Records whom to mail about the news, if and only if the caller's transaction commits. Whether it still concerns them is checked
 * when the letter is written (server/letters). Waits for no one.
 */
export async function addNews(em: EntityManager, tenantId: string, { kind, id, version = 0, at }: News): Promise<void> {
  await em.execute(
    `insert into mail_notice (tenant_id, user_id, kind, subject_id, version, created_at, due_at)
     select p.tenant_id, p.user_id, ?, ?, ?, t.at, ${DUE}
     from mail_preference p, (select ?::timestamptz as at) t
     where p.tenant_id = ? and ? = any(p.kinds)
       and (? <> 'hold' or (select count(*) from mail_notice n
         where n.tenant_id = ? and n.user_id = p.user_id and n.kind = 'hold') < ${MOST_HOLDS})
     order by p.user_id
     on conflict do nothing`,
    [kind, id, version, new Date(at), tenantId, kind, kind, tenantId],
  );
}
