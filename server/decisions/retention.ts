import type { Database } from '../../db/index.ts';
import type { Job } from '../jobs/jobs.ts';
import type { Clock } from '../lib/clock.ts';

const BATCH = 5000;
const DAY_MS = 24 * 3600 * 1000;

/** How long what decisions were taken on is kept, in days. */
export interface Retention {
  /** The whole requests, and the actions that holds show. */
  input: number;
  /** The parts that policies read. */
  projection: number;
}

/**
 * Erases what decisions were taken on, by two clocks of the tenant's: whole requests and their copies in holds
 * (`forgetHeld`) by one, projections by the other. Each goes with its salt, so that the record's commitment to it says
 * nothing afterwards; the record itself stays. `forgetHeld` resolves to the number erased and is called until that is zero.
 */
export function forgetInputs(parts: {
  db: Database;
  clock: Clock;
  tenants: () => Promise<readonly { tenant_id: string }[]>;
  retentionDays: (tenantId: string) => Promise<Retention>;
  forgetHeld: (tenantId: string, before: Date) => Promise<number>;
}): Job {
  /** Erases one half of a batch of rows, or the rows that have no other half. */
  const forget = async (half: 'input' | 'projection', tenantId: string, before: Date) => {
    const [salt, other] = half === 'input' ? ['salt_b', 'projection'] : ['salt_a', 'input'];
    const { rows } = await parts.db.owner.query<{ erased: number }>(
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
  return {
    name: 'forget inputs',
    everySeconds: 600,
    async run(signal) {
      for (const { tenant_id } of await parts.tenants()) {
        if (signal.aborted) return;
        const now = parts.clock.now();
        const days = await parts.retentionDays(tenant_id);
        const before = (kept: number) => new Date(now - kept * DAY_MS);
        while (!signal.aborted && (await forget('input', tenant_id, before(days.input))) > 0);
        while (!signal.aborted && (await forget('projection', tenant_id, before(days.projection))) > 0);
        while (!signal.aborted && (await parts.forgetHeld(tenant_id, before(days.input))) > 0);
      }
    },
  };
}
