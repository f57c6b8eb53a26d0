import { type LimitHit, type LimitWindow, takenFrom, valuesOf } from '../policy/evaluation/limits.ts';

/** Sessions kept; the least recently used go first. */
const MOST_SESSIONS = 100_000;
/**
 * Windows kept, about 100 MB. While there are that many open, no agent gets another value counted separately, because none of
 * them may be forgotten. Each agent may have opened as many as there are left, so that some always are: one agent gets half, two
 * get a third each.
 */
const MOST_WINDOWS = 500_000;
/** Windows that each call checks, to remove those that ended: more than it opens, and few enough not to delay it. */
const LOOKED_AT = 64;

/** `opener`: the agent that began it with a value that the agent chose. */
type Window = LimitWindow & { opener?: string | undefined };
type Counter = Pick<LimitHit, 'rule_id' | 'key' | 'limit' | 'units' | 'window_seconds'> & { kind: string };

/**
 * What this proxy counted by itself: calls of sessions, and what its agents took from limits, all agents together as the limit
 * says. The windows are used while the control plane, which counts for all proxies, cannot be reached. A restart begins from
 * zero.
 */
export class Counters {
  readonly #windows = new Map<string, Window>();
  /** How many of the windows each agent opened. */
  readonly #opened = new Map<string, number>();
  readonly #sessions = new Map<string, { call_count: number; started: string }>();
  readonly #most: number;
  /** The windows to check next. */
  #next = this.#windows.entries();

  constructor({ most = MOST_WINDOWS } = {}) {
    this.#most = most;
  }

  /**
   * Takes from all limits, or from none if one of them or of `checked` would be exceeded; then returns per rule when to ask
   * again. As at the control plane, an agent opens a bounded number of windows with values that it chose.
   */
  take(
    limits: readonly LimitHit[],
    checked: readonly LimitHit[],
    agentId: string,
    now: number,
  ): { exceeded: Map<string, { retry_after: number }>; giveBack: () => void } {
    this.#tidy(now);
    const exceeded = new Map<string, { retry_after: number }>();
    const over = ({ rule_id }: Counter, seconds: number) =>
      exceeded.set(rule_id, { retry_after: Math.max(seconds, exceeded.get(rule_id)?.retry_after ?? 0) });
    const taken = new Map<string, LimitWindow>();
    const opens: LimitHit[] = [];
    const takeOne = (limit: Counter): boolean => {
      const name = keyOf(limit);
      const result = takenFrom(taken.get(name) ?? this.#windows.get(name), limit, now);
      if ('retry_after' in result) over(limit, result.retry_after);
      else taken.set(name, result.window);
      return 'began' in result && result.began;
    };
    for (const limit of limits) if (takeOne(limit) && limit.chosen) opens.push(limit);
    for (const limit of opens) {
      takeOne(valuesOf(limit, agentId));
      if (!this.#windows.has(keyOf(limit)) && !this.#hasRoom(agentId)) over(limit, limit.window_seconds);
    }
    for (const limit of checked) {
      const result = takenFrom(this.#windows.get(keyOf(limit)), limit, now);
      if ('retry_after' in result) over(limit, result.retry_after);
    }
    if (exceeded.size > 0) return { exceeded, giveBack: () => {} };
    for (const [name, window] of taken) this.#change(name, window);
    for (const limit of opens) this.#setOpener(keyOf(limit), agentId);
    return { exceeded, giveBack: () => this.#giveBack(limits, (limit) => taken.get(keyOf(limit))!.endsAt) };
  }

  /**
   * Records what the control plane granted, in windows that end when it says: if it becomes unreachable, this proxy continues
   * from there. Returns a function that gives it back.
   */
  note(granted: ReadonlyMap<LimitHit, number>, agentId: string, now: number): () => void {
    this.#tidy(now);
    for (const [limit, endsAt] of granted) {
      const name = keyOf(limit);
      const before = this.#windows.get(name);
      const same = before && isSameWindow(limit, before.endsAt, endsAt);
      // Counts made while offline are kept while more than a tenth of their window is left, even if the control plane's window
      // began at another time; otherwise a control plane that comes and goes would double the limit. Less than that may just be
      // response time.
      const goesOn = same || (before && before.endsAt - now > limit.window_seconds * 100);
      // if there is no room, the value is not counted here, and is refused while the control plane cannot be reached
      if (!before && limit.chosen && !this.#hasRoom(agentId)) continue;
      if (!goesOn && limit.chosen) {
        const values = valuesOf(limit, agentId);
        const opened = takenFrom(this.#windows.get(keyOf(values)), values, now);
        if ('window' in opened) this.#change(keyOf(values), opened.window);
      }
      this.#change(name, {
        units: (goesOn ? before.units : 0) + limit.units,
        endsAt: same || !goesOn ? endsAt : Math.max(before.endsAt, endsAt),
      });
      if (!goesOn && limit.chosen) this.#setOpener(name, agentId);
    }
    return () => this.#giveBack([...granted.keys()], (limit) => granted.get(limit)!);
  }

  /** The calls of an agent's session before this one, which is then counted. */
  session(agentId: string, sessionId: string, now: number): { call_count: number; started: string } {
    const key = JSON.stringify([agentId, sessionId]);
    const before = this.#sessions.get(key) ?? { call_count: 0, started: new Date(now).toISOString() };
    this.#sessions.delete(key);
    this.#sessions.set(key, { ...before, call_count: before.call_count + 1 });
    if (this.#sessions.size > MOST_SESSIONS) this.#sessions.delete(this.#sessions.keys().next().value as string);
    return before;
  }

  /** Gives back what was taken in windows with these ends; a window that is over has nothing to give back. */
  #giveBack(limits: readonly LimitHit[], endOf: (limit: LimitHit) => number): void {
    for (const limit of limits) {
      const window = this.#windows.get(keyOf(limit));
      if (!window || !isSameWindow(limit, window.endsAt, endOf(limit))) continue;
      this.#change(keyOf(limit), { ...window, units: Math.max(0, window.units - limit.units) });
    }
  }

  #hasRoom(agentId: string): boolean {
    return (this.#opened.get(agentId) ?? 0) < this.#most - this.#windows.size;
  }

  #change(name: string, { units, endsAt }: LimitWindow): void {
    this.#windows.set(name, { units, endsAt, opener: this.#windows.get(name)?.opener });
  }

  #setOpener(name: string, agentId: string): void {
    const window = this.#windows.get(name)!;
    this.#forgetOpener(window);
    window.opener = agentId;
    this.#opened.set(agentId, (this.#opened.get(agentId) ?? 0) + 1);
  }

  #forgetOpener({ opener }: Window): void {
    if (opener === undefined) return;
    const left = this.#opened.get(opener)! - 1;
    if (left > 0) this.#opened.set(opener, left);
    else this.#opened.delete(opener);
  }

  #tidy(now: number): void {
    for (let n = 0; n < LOOKED_AT; n++) {
      const { value, done } = this.#next.next();
      if (done) this.#next = this.#windows.entries();
      else if (value[1].endsAt <= now) {
        this.#forgetOpener(value[1]);
        this.#windows.delete(value[0]);
      }
    }
  }
}

/** The name of a limit's counter. */
export function keyOf({ rule_id, kind, key }: Pick<Counter, 'rule_id' | 'kind' | 'key'>): string {
  return JSON.stringify([rule_id, kind, key]);
}

/** Two reported ends of one window differ by how long the control plane's responses took. */
export function isSameWindow({ window_seconds }: Pick<LimitHit, 'window_seconds'>, a: number, b: number): boolean {
  return Math.abs(a - b) < window_seconds * 500;
}
