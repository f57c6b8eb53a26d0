import type pg from 'pg';
import { apart, type Citus } from './citus.ts';

/** Rows that one statement deletes. */
const BATCH = 5000;

/**
 * Deletes the rows of all tenants whose time is over, in batches, so that no transaction is long. `key` is the primary key without
 * the tenant. `time` has an index of its own: what is not due is not looked at, however many tenants there are. May run in several
 * processes at once.
 */
export async function forgetBefore(
  db: { readonly citus: Citus | undefined; readonly owner: pg.Pool },
  { table, key, time }: { table: string; key: string; time: string },
  before: Date,
): Promise<void> {
  // the time is asked once more of the row itself: it may have been renewed since the look
  for (const only of await apart(db, `select distinct tenant_id from ${table} where ${time} < $1`, [before])) {
    const text = `delete from ${table} where (tenant_id, ${key}) in (
      select tenant_id, ${key} from ${table} where ${time} < $1 ${only()} limit ${BATCH}) and ${time} < $1 ${only()}`;
    while (((await db.owner.query(text, [before])).rowCount ?? 0) === BATCH);
  }
}
