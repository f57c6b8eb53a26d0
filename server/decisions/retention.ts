import type { Database } from '../../db/index.ts';
import type { Job } from '../jobs/jobs.ts';
import type { Clock } from '../lib/clock.ts';

const BATCH = 5000;
const DAY_MS = 24 * 3600 * 1000;

/**
 * Erases the inputs of decisions, and their copies in holds (`forgetHeld`), after the tenant's retention period. The chain
 * contains only hashes of them. `forgetHeld` resolves to the number erased and is called until that is zero.
 */
export function forgetInputs(parts: {
  db: Database;
  clock: Clock;
  tenants: () => Promise<readonly { tenant_id: string }[]>;
  retentionDays: (tenantId: string) => Promise<number>;
  forgetHeld: (tenantId: string, before: Date) => Promise<number>;
}): Job {
  const forgetDecided = async (tenantId: string, before: Date) => {
    const { rowCount } = await parts.db.owner.query(
      `delete from decision_input where (tenant_id, event_id) in (
         select tenant_id, event_id from decision_input where tenant_id = $1 and created_at < $2 limit ${BATCH})`,
      [tenantId, before],
    );
    return rowCount ?? 0;
  };
  return {
    name: 'forget inputs',
    everySeconds: 600,
    async run(signal) {
      for (const { tenant_id } of await parts.tenants()) {
        if (signal.aborted) return;
        const before = new Date(parts.clock.now() - (await parts.retentionDays(tenant_id)) * DAY_MS);
        while (!signal.aborted && (await forgetDecided(tenant_id, before)) > 0);
        while (!signal.aborted && (await parts.forgetHeld(tenant_id, before)) > 0);
      }
    },
  };
}
