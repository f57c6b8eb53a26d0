import {
  createHold,
  elapse,
  HOLD_MACHINE_VERSION,
  type HoldSnapshot,
  holdRefusal,
  stepHold,
  timeline,
} from '../../../machines/escrow.ts';
import { RELEASES } from '../../../server/escrow/kinds.ts';
import { LIVES, type Life } from './kinds.ts';

/** The lives of holds, by path under test/vectors: what each event does, who refuses it, and what is reported of it. */
export async function generate(): Promise<Record<string, string>> {
  const lives = LIVES.map((life) => ({ ...life, events: undefined, ...live(life) }));
  return { 'lives.json': `${JSON.stringify({ machine_version: HOLD_MACHINE_VERSION, lives }, null, 2)}\n` };
}

function live({ type, approvals, conditions = [], release_after, ttl, execute_within, events }: Life) {
  const release = RELEASES[type]({ approvals, conditions, releaseAt: release_after });
  let [snapshot] = createHold({
    agentId: 'agent',
    agentRole: 'clerk',
    actionHash: 'sha256:aa',
    release,
    conditions,
    expiresAt: ttl,
    executeWithin: execute_within ?? null,
  });
  const steps = events.map((event) => {
    const refused = holdRefusal(snapshot, event)?.code;
    const [timely, passed] = elapse(snapshot, event.at);
    const [next, effects] = refused ? [timely, []] : stepHold(timely, event);
    snapshot = next as HoldSnapshot;
    const told = [...passed, ...effects].flatMap((e) => (e.type === 'audit' ? [e.params.action] : []));
    return { event, ...(refused && { refused }), status: snapshot.value, told, ...timeline(snapshot) };
  });
  const { releasedAt, executeBy, endedAt } = snapshot.context;
  return { release, steps, end: { status: snapshot.value, releasedAt, executeBy, endedAt } };
}
