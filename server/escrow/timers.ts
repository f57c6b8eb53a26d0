import type { Notices } from '../../db/notices.ts';
import type { Job } from '../jobs/jobs.ts';
import { BackOff } from '../lib/back-off.ts';
import type { Log } from '../lib/log.ts';
import { pause } from '../lib/pause.ts';
import type { DueHold, Holds } from './holds.ts';

/** Holds of one tenant changed in one transaction. */
const BATCH = 50;
/** Due holds looked up together. */
const LOOK_UP = 500;
const LONGEST_SLEEP_MS = 1000;
/** Another loop may be about to wake the same hold and has not done so yet. */
const SHORTEST_SLEEP_MS = 20;
/** When a hold that could not be woken is tried again, so that it does not delay the others. */
const RETRY_MS = 60_000;
/** After this many consecutive failures to wake a hold, the fault is assumed to affect the whole tenant, which is left alone. */
const MOST_IN_A_ROW = 3;

/**
 * Releases and expires holds by time. It runs in every worker process; any number may run at once, and each may be killed at any
 * point: a hold's time stays in its row until the transaction that acts on it commits. Nothing depends on its punctuality, since
 * every reader and every change goes by the time itself; it only causes the events.
 */
export function holdTimers(holds: Holds, log: Log): Job {
  const retryAt = new Map<string, number>();
  const backOff = new BackOff();

  const wake = async (tenantId: string, ids: string[]): Promise<number> => {
    try {
      const changed = await holds.wake(tenantId, ids);
      backOff.worked(tenantId);
      return changed;
    } catch (err) {
      if (ids.length === 1) {
        log.error({ err, tenantId, holdId: ids[0] }, 'a hold could not be woken');
        retryAt.set(ids[0]!, performance.now() + RETRY_MS);
        return 0;
      }
    }
    let changed = 0;
    let inARow = 0;
    for (const id of ids) {
      changed += await wake(tenantId, [id]);
      inARow = retryAt.has(id) ? inARow + 1 : 0;
      if (inARow < MOST_IN_A_ROW) continue;
      backOff.failed(tenantId);
      break;
    }
    return changed;
  };

  /** Wakes the holds that are due, once. Resolves to the number of milliseconds until there is more to do. */
  const look = async (signal: AbortSignal): Promise<number> => {
    for (const [id, at] of retryAt) if (at <= performance.now()) retryAt.delete(id);
    const { holds: due, next } = await holds.due(LOOK_UP, [...retryAt.keys()], backOff.left());
    if (due.length === 0) return Math.max(SHORTEST_SLEEP_MS, Math.min(next ?? LONGEST_SLEEP_MS, LONGEST_SLEEP_MS));
    let changed = 0;
    for (const [tenantId, ids] of byTenant(due)) {
      for (let at = 0; at < ids.length && !signal.aborted && !backOff.left().includes(tenantId); at += BATCH) {
        changed += await wake(tenantId, ids.slice(at, at + BATCH));
      }
    }
    // other processes have locked all of them and need a moment
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
 * Counts approvals again after roles, members or settings changed, so that what is shown is soon correct. Decisions do not wait
 * for it, because each event counts again.
 */
export function holdRecounts(holds: Holds, notices: Notices): Job {
  // `*` stands for a period without notices, such as before this process started: approvals are then counted with the next event,
  // but time alone may be about to release a hold whose report no longer counts
  const changed = new Set<string>(['*']);
  const backOff = new BackOff();
  for (const topic of ['members', 'settings'] as const) notices.on(topic, ({ tenantId }) => changed.add(tenantId));
  return {
    name: 'hold recounts',
    everySeconds: 1,
    undivided: true,
    async run(signal) {
      const left = backOff.left();
      for (const tenantId of changed) {
        if (signal.aborted) return;
        if (left.includes(tenantId)) continue;
        // before counting, so that anything that changes in the meantime is counted again
        changed.delete(tenantId);
        try {
          if (tenantId === '*') for (const id of await holds.reported()) changed.add(id);
          else await holds.recount(tenantId);
          backOff.worked(tenantId);
        } catch (error) {
          changed.add(tenantId);
          backOff.failed(tenantId);
          throw error;
        }
      }
    },
  };
}

function byTenant(due: readonly DueHold[]): Map<string, string[]> {
  const groups = Map.groupBy(due, ({ tenant_id }) => tenant_id);
  return new Map([...groups].map(([tenantId, list]) => [tenantId, list.map(({ id }) => id)]));
}
