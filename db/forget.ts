import type pg from 'pg';
import { each } from '../server/lib/each.ts';
import { apart, type Tenants } from './citus.ts';

/** Rows that one statement deletes. */
const BATCH = 5000;

/** Rows whose time is over. */
export interface Ended {
  readonly table: string;
  /** The primary key without the tenant. */
  readonly key: string;
  /** It has an index of its own: what is not due is not looked at, however many tenants there are. */
  readonly time: string;
  readonly before: Date;
}

/**
 * Deletes the rows of all tenants whose time is over, in batches, so that no transaction is long, until `signal` is aborted. A
 * table or a tenant that fails keeps no other from its turn. May run in several processes at once.
 */
export function forgetEnded(
  db: Tenants & { readonly owner: pg.Pool },
  ended: readonly Ended[],
  signal?: AbortSignal,
): Promise<void> {
  return each(ended, signal, async ({ table, key, time, before }) => {
    const due = await apart(db, `select distinct tenant_id from ${table} where ${time} < $1`, [before]);
    await each(due, signal, async (only) => {
      // the time is asked once more of the row itself: it may have been renewed since the look
      const text = `delete from ${table} where (tenant_id, ${key}) in (
        select tenant_id, ${key} from ${table} where ${time} < $1 ${only()} limit ${BATCH}) and ${time} < $1 ${only()}`;
      while (!signal?.aborted && ((await db.owner.query(text, [before])).rowCount ?? 0) === BATCH);
    });
  });
}
