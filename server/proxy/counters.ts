import type { LimitHit, LimitWindow } from '../policy/evaluation/limits.ts';
import { MAX_CHOSEN, takenFrom } from '../policy/evaluation/limits.ts';

/** Windows and sessions kept; the least recently used go first. */
const MOST = 100_000;
/** Agents whose chosen windows are kept apart. */
const MOST_AGENTS = 10_000;

/**
 * What this proxy counted by itself: calls of sessions, and what its agents took of limits. The windows count where the
 * control plane, which counts for all proxies, cannot be reached. A restart begins from zero.
 */
export class Counters {
  readonly #windows = new Map<string, LimitWindow>();
  /** Windows under values that the agent chose, by agent: one that sends endless values fills only its own. */
  readonly #chosen = new Map<string, Map<string, LimitWindow>>();
  readonly #sessions = new Map<string, { call_count: number; started: string }>();

  /** Takes from all limits, or from none where one of them or of `checked` would be exceeded; then by rule when to ask again. */
  take(
    limits: readonly LimitHit[],
    checked: readonly LimitHit[],
    agentId: string,
    now: number,
  ): Map<string, { retry_after: number }> {
    const exceeded = new Map<string, { retry_after: number }>();
    const changed: { limit: LimitHit; window: LimitWindow }[] = [];
    for (const [n, limit] of [...limits, ...checked].entries()) {
      const result = takenFrom(this.#of(limit, agentId)?.get(keyOf(limit)), limit, now);
      if ('retry_after' in result || !this.#roomFor(limit, agentId, now)) {
        exceeded.set(limit.rule_id, {
          retry_after: 'retry_after' in result ? result.retry_after : limit.window_seconds,
        });
      } else if (n < limits.length) changed.push({ limit, window: result.window });
    }
    if (exceeded.size > 0) return exceeded;
    for (const { limit, window } of changed) this.#set(limit, agentId, window);
    return exceeded;
  }

  /** Notes what the control plane granted, also beyond the limit: it is what this proxy goes on from by itself. */
  note(limits: readonly LimitHit[], agentId: string, now: number): void {
    for (const limit of limits) {
      const before = this.#of(limit, agentId)?.get(keyOf(limit));
      const result = takenFrom(before, limit, now);
      if ('window' in result) this.#set(limit, agentId, result.window);
    }
  }

  /** Gives back what was taken or noted. */
  giveBack(limits: readonly LimitHit[], agentId: string): void {
    for (const limit of limits) {
      const window = this.#of(limit, agentId)?.get(keyOf(limit));
      if (window) this.#set(limit, agentId, { ...window, units: Math.max(0, window.units - limit.units) });
    }
  }

  /** The calls of an agent's session before this one, which is counted. */
  session(agentId: string, sessionId: string, now: number): { call_count: number; started: string } {
    const key = JSON.stringify([agentId, sessionId]);
    const before = this.#sessions.get(key) ?? { call_count: 0, started: new Date(now).toISOString() };
    touch(this.#sessions, key, { ...before, call_count: before.call_count + 1 }, MOST);
    return before;
  }

  #of({ chosen }: LimitHit, agentId: string): Map<string, LimitWindow> | undefined {
    return chosen ? this.#chosen.get(agentId) : this.#windows;
  }

  #set(limit: LimitHit, agentId: string, window: LimitWindow): void {
    if (limit.chosen && !this.#chosen.has(agentId)) touch(this.#chosen, agentId, new Map(), MOST_AGENTS);
    touch(this.#of(limit, agentId)!, keyOf(limit), window, MOST);
  }

  /** May the agent have another value counted apart? Windows that ended make room. */
  #roomFor(limit: LimitHit, agentId: string, now: number): boolean {
    const own = limit.chosen ? this.#chosen.get(agentId) : undefined;
    if (!own || own.size < MAX_CHOSEN || own.has(keyOf(limit))) return true;
    for (const [key, { endsAt }] of own) if (endsAt <= now) own.delete(key);
    return own.size < MAX_CHOSEN;
  }
}

/** The name of a limit's counter. */
export function keyOf({ rule_id, kind, key }: Pick<LimitHit, 'rule_id' | 'kind' | 'key'>): string {
  return JSON.stringify([rule_id, kind, key]);
}

function touch<V>(map: Map<string, V>, key: string, value: V, most: number): void {
  map.delete(key);
  map.set(key, value);
  if (map.size > most) map.delete(map.keys().next().value as string);
}
