import type pg from 'pg';
import { each } from '../server/lib/each.ts';
import { apart, type Tenants } from './citus.ts';
import type { Database } from './index.ts';

/** Rows that one statement deletes. */
const BATCH = 5000;

/**
 * Repeats a statement that deletes some rows until it finds fewer, or `signal` is aborted: one that deleted all of what piled up
 * while nothing ran would take longer than a write may, each time. `few` is given a limit for the rows that it looks for, at most as
 * many of which it deletes.
 */
export async function deleteInBatches(
  near: Pick<pg.Pool, 'query'>,
  few: (limit: string) => string,
  values: readonly unknown[],
  signal?: AbortSignal,
): Promise<void> {
  const text = few(`limit ${BATCH}`);
  while (!signal?.aborted && ((await near.query(text, [...values])).rowCount ?? 0) === BATCH);
}

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
  db: Tenants & Pick<Database, 'nearOf'>,
  ended: readonly Ended[],
  signal?: AbortSignal,
): Promise<void> {
  return each(ended, signal, async ({ table, key, time, before }) => {
    const due = await apart(db, `select distinct tenant_id from ${table} where ${time} < $1`, [before]);
    await each(due, signal, async (only) => {
      const near = db.nearOf(only.tenantId);
      // the time is asked once more of the row itself: it may have been renewed since the look. A row that somebody else has
      // locked is left for the next time: this waits for nobody while it has rows of its own
      const few = (limit: string) => `delete from ${table} where (tenant_id, ${key}) in (
        select tenant_id, ${key} from ${table} where ${time} < $1 ${only()} ${limit} for update skip locked)
          and ${time} < $1 ${only()}`;
      await deleteInBatches(near, few, [before], signal);
    });
  });
}
