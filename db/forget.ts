import type pg from 'pg';
import { each } from '../server/lib/each.ts';
import { apart, type Tenants } from './citus.ts';
import type { Database } from './index.ts';

/** Rows that one statement deletes. */
const BATCH = 5000;

/**
 * Repeats a statement that deletes a limited number of rows until it finds fewer, or `signal` is aborted: deleting everything
 * that piled up while nothing ran would exceed the time limit of a write, every time. `few` receives a limit clause for the rows
 * it looks for, and must delete no more rows than that.
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

/** Rows that are due for deletion. */
export interface Ended {
  readonly table: string;
  /** The primary key without the tenant. */
  readonly key: string;
  /** The column has an index of its own: rows not yet due are not read, however many tenants there are. */
  readonly time: string;
  readonly before: Date;
}

/**
 * Deletes the due rows of all tenants, in batches, so that no transaction is long, until `signal` is aborted. If one table or
 * tenant fails, the others still get their turn. May run in several processes at once.
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
      // the delete checks the time again: the row may have been renewed since it was found. A row that another transaction has
      // locked is left for the next run: this waits for no one while it holds rows itself
      const few = (limit: string) => `delete from ${table} where (tenant_id, ${key}) in (
        select tenant_id, ${key} from ${table} where ${time} < $1 ${only()} ${limit} for update skip locked)
          and ${time} < $1 ${only()}`;
      await deleteInBatches(near, few, [before], signal);
    });
  });
}
