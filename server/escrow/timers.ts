import type { Notices } from '../../db/notices.ts';
import type { Job } from '../jobs/jobs.ts';
import type { Log } from '../lib/log.ts';
import { pause } from '../lib/pause.ts';
import type { DueHold, Holds } from './holds.ts';

/** Holds of one tenant that change in one transaction. */
const BATCH = 50;
/** Due holds that are looked up together. */
const LOOK_UP = 500;
const LONGEST_SLEEP_MS = 1000;
/** The same hold may be another loop's to wake, which has not done it yet. */
const SHORTEST_SLEEP_MS = 20;
/** When a hold that could not be woken is tried again, so that it does not delay the others. */
const RETRY_MS = 60_000;

/**
 * Releases and expires holds by time. It runs in each worker process; any number may run at once, and each may be killed
 * at any point: a hold's time stays in its row until the transaction that acts on it commits. Nothing depends on it being
 * punctual, since every reader and every change goes by the time itself; it only causes the events.
 */
export function holdTimers(holds: Holds, log: Log): Job {
  const retryAt = new Map<string, number>();

  const wake = async (tenantId: string, ids: string[]): Promise<number> => {
    try {
      return await holds.wake(tenantId, ids);
    } catch (err) {
      if (ids.length > 1) {
        let changed = 0;
        for (const id of ids) changed += await wake(tenantId, [id]);
        return changed;
      }
      log.error({ err, tenantId, holdId: ids[0] }, 'a hold could not be woken');
      retryAt.set(ids[0]!, performance.now() + RETRY_MS);
      return 0;
    }
  };

  /** Wakes the holds that are due once. Resolves to the milliseconds until there is something to do again. */
  const look = async (signal: AbortSignal): Promise<number> => {
    for (const [id, at] of retryAt) if (at <= performance.now()) retryAt.delete(id);
    const { holds: due, next } = await holds.due(LOOK_UP, [...retryAt.keys()]);
    if (due.length === 0) return Math.max(SHORTEST_SLEEP_MS, Math.min(next ?? LONGEST_SLEEP_MS, LONGEST_SLEEP_MS));
    let changed = 0;
    for (const [tenantId, ids] of byTenant(due)) {
      for (let at = 0; at < ids.length && !signal.aborted; at += BATCH) {
        changed += await wake(tenantId, ids.slice(at, at + BATCH));
      }
    }
    // other processes have all of them locked and need a moment
    return changed > 0 ? 0 : 50;
  };

  return {
    name: 'hold timers',
    everySeconds: 1,
    async run(signal) {
      while (!signal.aborted) {
        await pause(Math.max(1, await look(signal)), signal);
      }
    },
  };
}

/**
 * Counts approvals again after roles, members or settings changed, so that what is shown is soon correct. Decisions do not
 * wait for it: each event counts again.
 */
export function holdRecounts(holds: Holds, notices: Notices): Job {
  const changed = new Set<string>();
  for (const topic of ['members', 'settings'] as const) {
    // after a time without notices (`*`) what is shown is corrected later; nothing else is lost
    notices.on(topic, ({ tenantId }) => {
      if (tenantId !== '*') changed.add(tenantId);
    });
  }
  return {
    name: 'hold recounts',
    everySeconds: 1,
    undivided: true,
    async run(signal) {
      for (const tenantId of changed) {
        if (signal.aborted) return;
        changed.delete(tenantId);
        await holds.recount(tenantId);
      }
    },
  };
}

function byTenant(due: readonly DueHold[]): Map<string, string[]> {
  const groups = Map.groupBy(due, ({ tenant_id }) => tenant_id);
  return new Map([...groups].map(([tenantId, list]) => [tenantId, list.map(({ id }) => id)]));
}
