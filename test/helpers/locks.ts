import type { Database } from '../../db/index.ts';
import { until } from './until.ts';

/** Resolves once this many sessions of the database are waiting for a lock that another one holds. */
export async function untilBlocked(db: Pick<Database, 'asideOf'>, sessions: number): Promise<void> {
  await until(async () => {
    const { rows } = await db.asideOf('').query<{ waiting: number }>(
      `select count(*)::int as waiting from pg_stat_activity
         where datname = current_database() and wait_event_type = 'Lock'`,
    );
    return rows[0]!.waiting >= sessions;
  }, `${sessions} sessions wait for a lock`);
}
