import type { EntityManager } from '@mikro-orm/postgresql';
import { lockPeople } from '../../db/locks.ts';
import type { Actor } from '../domain/audit.ts';
import { AppError } from '../errors.ts';

/**
 * A request may have been authorized just before its person was removed or demoted, or its key revoked, especially one that
 * fetched something in between. Their rows are locked, so either whoever ends the right finds what this request created, or the
 * end is seen here and nothing is created. `maker`: the person who must be an admin, if not the actor. `owner`: a person who must
 * be a member.
 */
export async function assertEntitled(
  em: EntityManager,
  tenantId: string,
  actor: Actor,
  {
    maker = actor.type === 'user' ? actor.id : null,
    owner = null,
  }: { maker?: string | null; owner?: string | null } = {},
): Promise<void> {
  const ids = [maker, owner].filter((id) => id !== null);
  const people = ids.length > 0 ? await lockPeople(em, tenantId, ids) : new Map<string, never>();
  if (maker !== null && !people.get(maker)?.roles.includes('admin')) {
    throw new AppError('FORBIDDEN', 'this needs the role admin');
  }
  if (owner !== null && people.get(owner)?.removed !== false) {
    throw new AppError('FORBIDDEN', 'the owner of the key is not a member');
  }
  if (actor.type !== 'api_key') return;
  // not just a shared lock: a key that replaces itself locks its row again
  const valid = await em.execute<unknown[]>(
    'select 1 from api_key where tenant_id = ? and id = ? and revoked_at is null for no key update',
    [tenantId, actor.id],
  );
  if (valid.length === 0) throw new AppError('FORBIDDEN', 'the key is revoked');
}
