import type { EntityManager } from '@mikro-orm/postgresql';

/** What a person may do right now. */
export interface Standing {
  /** Empty for a person who has been removed. */
  roles: readonly string[];
  removed: boolean;
}

/**
 * Locks people within the caller's transaction and returns what they may do: their roles cannot change before it ends, so an
 * action and a concurrent demotion cannot miss each other. Without ids, locks everyone. Unknown ids are missing from the result.
 *
 * INVARIANT: rows are locked in one order everywhere: people by id, then the tenant, then what belongs to it, the head of the
 * audit chain last. Call this first in a transaction, and once.
 */
export async function lockPeople(
  em: EntityManager,
  tenantId: string,
  ids?: readonly string[],
): Promise<Map<string, Standing>> {
  const rows = await em.execute<{ id: string; roles: string[]; removed: boolean }[]>(
    `select id, roles, removed_at is not null as removed from member
     where tenant_id = ? ${ids ? 'and id in (select jsonb_array_elements_text(?::jsonb))' : ''} order by id for share`,
    ids ? [tenantId, JSON.stringify(ids)] : [tenantId],
  );
  return new Map(rows.map(({ id, roles, removed }) => [id, { roles: removed ? [] : roles, removed }]));
}

/** Locks the row of the tenant, including its settings, until the caller's transaction ends; readers do not wait. */
export async function lockTenant(em: EntityManager, tenantId: string): Promise<void> {
  await em.execute('select 1 from tenant where tenant_id = ? for no key update', [tenantId]);
}
