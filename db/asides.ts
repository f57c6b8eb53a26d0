import type { EntityManager } from '@mikro-orm/postgresql';

/** Some holds for everybody who set them aside, all holds of one person, or all of everybody's. */
type Which = { holds: readonly string[] } | { person: string } | 'all';

/**
 * Brings holds back that people had set aside, within the caller's transaction.
 *
 * INVARIANT: call it when the rows of people and of the tenant are locked, those that a foreign key leads to included, and
 * before the first audit record. All who delete several of these rows lock them in one order.
 */
export async function bringBack(em: EntityManager, tenantId: string, which: Which): Promise<void> {
  // what is being set aside now is not to be seen yet: it is committed first, and brought back too
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
 * Before a transaction stores that a hold is set aside: `bringBack` of all holds waits until it ends. No lock is to be taken after
 * this one.
 */
export async function settingAside(em: EntityManager, tenantId: string): Promise<void> {
  await em.execute('select pg_advisory_xact_lock_shared(hashtextextended(?, 1))', [lockOf(tenantId)]);
}

const lockOf = (tenantId: string) => `holds set aside of ${tenantId}`;
