import type pg from 'pg';
import { across, writable } from '../../db/citus.ts';
import { inTransaction } from '../../db/client.ts';
import type { Database } from '../../db/index.ts';
import type { Job } from '../jobs/jobs.ts';
import type { Clock } from '../lib/clock.ts';

const BATCH = 5000;
/** How many tenants are fetched at once. */
const TENANTS = 500;
const DAY_MS = 24 * 3600 * 1000;
/** How long to wait before retrying a tenant that failed. */
const AGAIN_MS = 600_000;

/** How long the inputs of decisions are kept, in days. */
export interface Retention {
  /** The whole requests, and the actions shown by holds. */
  input: number;
  /** The parts that policies read. */
  projection: number;
}

/** The parts of holds that show their actions. */
export interface HeldActions {
  /** Erases some of what is older. Resolves to the number erased, and is called until that is zero. */
  forget(tenantId: string, before: Date, client: pg.ClientBase): Promise<number>;
  /** Creation time of the oldest that remains. */
  oldest(tenantId: string): Promise<Date | null>;
}

/**
 * Erases the inputs of decisions by two retention periods of the tenant: one for whole requests and their copies in
 * holds, one for projections. Each goes with its salt, so that the record's commitment to it reveals nothing afterward;
 * the record itself stays.
 *
 * INVARIANT: what is erased was due under the settings in effect when the erasure commits. They are read in the same
 * transaction and locked until its end, so that once a longer retention is confirmed, nothing is lost to the shorter one.
 *
 * A tenant is visited when its oldest input is due. One that has none is visited again when an input that arrives now
 * would be due: not before, because nothing can be due any earlier.
 */
export function forgetInputs(parts: {
  db: Database;
  clock: Clock;
  /** Reads the setting, and locks it until the caller's transaction ends. */
  retentionDays: (tenantId: string, client: pg.ClientBase) => Promise<Retention>;
  held: HeldActions;
}): Job {
  const { db } = parts;
  /** Erases one half of a batch of rows, and the whole row if the other half is already gone. */
  const forget = async (half: 'input' | 'projection', tenantId: string, before: Date, client: pg.ClientBase) => {
    const [salt, other] = half === 'input' ? ['salt_b', 'projection'] : ['salt_a', 'input'];
    const { rows } = await client.query<{ erased: number }>(
      `with due as materialized (
         select event_id, ${other} is null as whole from decision_input
         where tenant_id = $1 and created_at < $2 and ${half} is not null order by created_at limit ${BATCH}),
       deleted as (delete from decision_input d using due
         where d.tenant_id = $1 and d.event_id = due.event_id and due.whole),
       halved as (update decision_input d set ${salt} = null, ${half} = null from due
         where d.tenant_id = $1 and d.event_id = due.event_id and not due.whole)
       select count(*)::int as erased from due`,
      [tenantId, before],
    );
    return rows[0]!.erased;
  };
  const oldest = async (half: 'input' | 'projection', tenantId: string) => {
    const { rows } = await db
      .nearOf(tenantId)
      .query<{ created_at: Date }>(
        `select created_at from decision_input where tenant_id = $1 and ${half} is not null order by created_at limit 1`,
        [tenantId],
      );
    return rows[0]?.created_at ?? null;
  };
  const look = async (tenantId: string, due: string, signal: AbortSignal) => {
    const now = parts.clock.now();
    const before = (kept: number) => new Date(now - kept * DAY_MS);
    const kinds: ((days: Retention, client: pg.ClientBase) => Promise<number>)[] = [
      ({ input }, client) => forget('input', tenantId, before(input), client),
      ({ projection }, client) => forget('projection', tenantId, before(projection), client),
      ({ input }, client) => parts.held.forget(tenantId, before(input), client),
    ];
    let days = { input: 0, projection: 0 };
    for (const kind of kinds) {
      for (let more = true; more; ) {
        if (signal.aborted) return;
        [days, more] = await inTransaction(db.nearOf(tenantId), async (client) => {
          const held = await parts.retentionDays(tenantId, client);
          return [held, (await kind(held, client)) > 0] as const;
        });
      }
    }
    const left = [
      { at: await oldest('input', tenantId), kept: days.input },
      { at: await oldest('projection', tenantId), kept: days.projection },
      { at: await parts.held.oldest(tenantId), kept: days.input },
    ];
    const next = Math.min(...left.map(({ at, kept }) => (at?.getTime() ?? now) + kept * DAY_MS));
    // unless the settings were changed meanwhile
    await db
      .nearOf(tenantId)
      .query('update tenant set erase_at = $2 where tenant_id = $1 and erase_at = $3', [
        tenantId,
        new Date(Math.max(next, now + 1)),
        due,
      ]);
  };
  return {
    name: 'forget inputs',
    everySeconds: 600,
    async run(signal) {
      const now = new Date(parts.clock.now());
      const failures: unknown[] = [];
      for (let more = true; more && !signal.aborted; ) {
        const found = await across<{ tenant_id: string; due: string }>(
          db,
          `select tenant_id, erase_at::text as due from tenant where erase_at <= $1 order by erase_at limit ${TENANTS}`,
          [now],
        );
        const rows = writable(db, found);
        for (const { tenant_id, due } of rows) {
          if (signal.aborted) break;
          try {
            await look(tenant_id, due, signal);
          } catch (error) {
            // a failing tenant does not hold up the others
            failures.push(error);
            await db
              .nearOf(tenant_id)
              .query('update tenant set erase_at = $2 where tenant_id = $1 and erase_at = $3', [
                tenant_id,
                new Date(now.getTime() + AGAIN_MS),
                due,
              ]);
          }
        }
        more = rows.length >= TENANTS;
      }
      if (failures.length > 0)
        throw new AggregateError(failures, `what ${failures.length} tenants keep could not be erased`);
    },
  };
}
