/** Counters kept of agents and sessions; the least recently used go first. */
const MOST = 100_000;

/**
 * What policies count, for this proxy alone: calls against `@rate`, in windows that begin with the first call, and the
 * calls of sessions. Each of several proxies counts its own, and a restart begins from zero; `POST /v1/evaluate` of the
 * control plane counts for all.
 */
export class Counters {
  readonly #windows = new Map<string, { hits: number; endsAt: number }>();
  readonly #sessions = new Map<string, { call_count: number; started: string }>();

  /** Counts a call. The seconds until the window ends when it is over the limit, else undefined. */
  hit(rule: { rule_id: string; limit: number; window_seconds: number }, agentId: string, now: number) {
    const key = JSON.stringify([rule.rule_id, agentId]);
    const open = this.#windows.get(key);
    const window = open && open.endsAt > now ? open : { hits: 0, endsAt: now + rule.window_seconds * 1000 };
    window.hits++;
    touch(this.#windows, key, window);
    return window.hits > rule.limit ? Math.max(1, Math.ceil((window.endsAt - now) / 1000)) : undefined;
  }

  /** The calls of an agent's session before this one, which is counted. */
  session(agentId: string, sessionId: string, now: number): { call_count: number; started: string } {
    const key = JSON.stringify([agentId, sessionId]);
    const before = this.#sessions.get(key) ?? { call_count: 0, started: new Date(now).toISOString() };
    touch(this.#sessions, key, { ...before, call_count: before.call_count + 1 });
    return before;
  }
}

function touch<V>(map: Map<string, V>, key: string, value: V): void {
  map.delete(key);
  map.set(key, value);
  if (map.size > MOST) map.delete(map.keys().next().value as string);
}
