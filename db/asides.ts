import type { EntityManager } from '@mikro-orm/postgresql';

/** Some holds, for everyone who set them aside; all holds of one person; or everyone's. */
type Which = { holds: readonly string[] } | { person: string } | 'all';

/**
 * Brings back holds that people had set aside, within the caller's transaction.
 *
 * INVARIANT: call it after locking the rows of people and of the tenant, including those that a foreign key references, and
 * before the first audit record. Every transaction that deletes several of these rows locks them in the same order.
 */
export async function bringBack(em: EntityManager, tenantId: string, which: Which): Promise<void> {
  // holds being set aside right now are not visible yet: wait for them to commit, then bring them back too
  if (which === 'all') await em.execute('select pg_advisory_xact_lock(hashtextextended(?, 1))', [lockOf(tenantId)]);
  const [where, values] =
    which === 'all'
      ? ['', []]
      : 'person' in which
        ? ['and user_id = ?', [which.person]]
        : ['and hold_id in (select jsonb_array_elements_text(?::jsonb))', [JSON.stringify(which.holds)]];
  await em.execute(
    `delete from escrow_aside where tenant_id = ? and (hold_id, user_id) in (
       select hold_id, user_id from escrow_aside where tenant_id = ? ${where} order by hold_id, user_id for update)`,
    [tenantId, tenantId, ...values],
  );
}

/**
 * Call before a transaction stores that a hold is set aside: `bringBack` of all holds then waits until it ends. Take no lock
 * after this one.
 */
export async function settingAside(em: EntityManager, tenantId: string): Promise<void> {
  await em.execute('select pg_advisory_xact_lock_shared(hashtextextended(?, 1))', [lockOf(tenantId)]);
}

const lockOf = (tenantId: string) => `holds set aside of ${tenantId}`;
