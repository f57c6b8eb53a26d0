import { across, apart, writable } from '../../db/citus.ts';
import { deleteInBatches } from '../../db/forget.ts';
import type { Database } from '../../db/index.ts';
import { each } from '../lib/each.ts';
import { firstId } from '../lib/ids.ts';
import { keptSince, type Subscriptions } from './subscriptions.ts';

/** How long finished deliveries and their events are kept. */
const KEEP_DAYS = 30;

/**
 * Deletes finished deliveries after 30 days, and then their events. Events that no destination wanted are deleted after an hour.
 * Ends deliveries that have waited too long for a paused subscription, and deletes what is left of deleted subscriptions.
 */
export async function forgetDeliveries(
  { db, subscriptions }: { db: Database; subscriptions: Subscriptions },
  now: number,
  signal?: AbortSignal,
): Promise<void> {
  const waiting = async () => {
    const rows = await across<{ tenant_id: string; id: string }>(
      db,
      `select s.tenant_id, s.id from subscription s where not s.active and exists (
         select from delivery d where d.tenant_id = s.tenant_id and d.lane_id = s.id and d.status = 'retrying'
           and (s.queues_since is null or (d.machine_context->>'startedAt')::double precision < $1))`,
      [keptSince(now).getTime()],
    );
    await each(rows, signal, ({ tenant_id, id }) => subscriptions.trim(tenant_id, id));
  };
  const deleted = async () => {
    const rows = await across<{ tenant_id: string; id: string }>(
      db,
      `select l.tenant_id, l.id from delivery_lane l where l.target_sealed is null and not exists (
         select from subscription s where s.tenant_id = l.tenant_id and s.id = l.id)`,
      [],
    );
    await each(writable(db, rows), signal, ({ tenant_id, id }) => subscriptions.clear(tenant_id, id, signal));
  };
  const before = new Date(now - KEEP_DAYS * 24 * 3600_000);
  const aged = [before, firstId('oev', before.getTime())];
  const old = new Date(now - 3600_000);
  const unused = 'target_sealed is not null and due_at is null and leased_until is null';
  const events = async () => {
    const due = await apart(db, 'select distinct tenant_id from event_outbox where created_at < $1', [old]);
    await each(due, signal, async (only) => {
      const near = db.nearOf(only.tenantId);
      const inBatches = (few: (limit: string) => string, values: readonly unknown[]) =>
        deleteInBatches(near, few, values, signal);
      await inBatches(
        (limit) => `delete from event_outbox where (tenant_id, id) in (
          select tenant_id, id from event_outbox where not wanted and created_at < $1 ${only()} ${limit} for update skip locked)
            ${only()}`,
        [old],
      );
      // by lane and event, to match the index: no event is sent before it happens
      await inBatches(
        (limit) => `delete from delivery where (tenant_id, lane_id, event_id) in (
          select d.tenant_id, d.lane_id, d.event_id
          from delivery_lane l join delivery d on d.tenant_id = l.tenant_id and d.lane_id = l.id
          where d.event_id < $2 and d.status <> 'retrying' and d.created_at < $1 ${only('d')} ${only('l')}
          ${limit} for update of d skip locked) ${only()}`,
        aged,
      );
      // INVARIANT: the event of a delivery exists. A delivery that is queued again after 30 days is finished within days.
      await inBatches(
        (limit) => `delete from event_outbox where (tenant_id, id) in (
          select e.tenant_id, e.id from event_outbox e where wanted and created_at < $1 ${only('e')} and not exists (
            select from delivery_lane l join delivery d on d.tenant_id = l.tenant_id and d.lane_id = l.id ${only('d')}
            where d.event_id < $2 and l.tenant_id = e.tenant_id and d.event_id = e.id ${only('l')})
          ${limit} for update of e skip locked) ${only()}`,
        aged,
      );
    });
  };
  const lanes = async () =>
    each(await apart(db, `select distinct tenant_id from delivery_lane where ${unused}`, []), signal, (only) =>
      deleteInBatches(
        db.nearOf(only.tenantId),
        (limit) => `delete from delivery_lane where (tenant_id, id) in (
          select l.tenant_id, l.id from delivery_lane l where ${unused} ${only('l')} and not exists (
            select from delivery d where d.tenant_id = l.tenant_id and d.lane_id = l.id ${only('d')})
          ${limit} for update of l skip locked) and ${unused} ${only()}`,
        [],
        signal,
      ),
    );
  await each([waiting, deleted, events, lanes], signal, (forget) => forget());
}
