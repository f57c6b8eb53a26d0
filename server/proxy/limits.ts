import { randomUUID } from 'node:crypto';
import type { Clock } from '../lib/clock.ts';
import type { Log } from '../lib/log.ts';
import { type LimitHit, leaseOf } from '../policy/evaluation/limits.ts';
import type { Asked, Taking } from '../policy/evaluation/protocol.ts';
import { type ControlPlane, ControlPlaneError, type LimitResult } from './control-plane.ts';
import { type Counters, isSameWindow, keyOf } from './counters.ts';

/** What a proxy does with limits while it cannot reach the control plane; see `SVC_PROXY_LIMITS_AWAY`. */
export type LimitsAway = 'rates' | 'count' | 'deny';

/** After a failure, the control plane is not asked for this long: no action waits for one that does not respond. */
const REST_MS = 3_000;
const MOST_TAKES = 50;
/** A refusal is remembered for this long: the limit may be raised meanwhile. */
const REFUSED_MS = 5_000;
/** Leases and refusals that are remembered. */
const MOST_KNOWN = 100_000;

const UNCOUNTED = 'the limit cannot be counted: the control plane cannot be reached';

interface Waiting {
  take: Record<string, unknown>;
  resolve(result: LimitResult): void;
  reject(error: unknown): void;
}

interface Known {
  /** Calls that were taken ahead. */
  ahead: number;
  /** When the window ends. */
  endsAt: number;
  /** More calls are refused without asking. */
  refused: boolean;
  /** When this entry expires. */
  until: number;
}

/**
 * Limits that the control plane counts for all proxies. What this proxy takes is committed there before an action is permitted.
 * From rates with high limits it takes some calls ahead, so that most calls need no response; waiting requests are sent together.
 *
 * INVARIANT: while the control plane responds, all proxies together never take more than a limit. Taking ahead may refuse calls
 * early, by at most the share in `leaseOf` for each other proxy.
 */
export class SharedLimits {
  readonly #control: ControlPlane;
  readonly #counters: Counters;
  readonly #clock: Clock;
  readonly #log: Log;
  readonly #away: LimitsAway;
  readonly #known = new Map<string, Known>();
  readonly #waiting: Waiting[] = [];
  /**
   * Limits from which calls are being taken ahead: one request at a time, so that no more than one share is waiting to be used.
   */
  readonly #leasing = new Set<string>();
  #sending = false;
  #restUntil = 0;

  constructor(parts: { control: ControlPlane; counters: Counters; clock: Clock; log: Log; away: LimitsAway }) {
    this.#control = parts.control;
    this.#counters = parts.counters;
    this.#clock = parts.clock;
    this.#log = parts.log;
    this.#away = parts.away;
  }

  /** See `Ports.take`. */
  async take({ limits, checked, once }: Asked, agentId: string): Promise<Taking | { unavailable: string }> {
    const now = this.#clock.now();
    const refused = limits.filter((limit) => this.#find(limit, now)?.refused);
    if (refused.length > 0 && once === undefined) {
      return nothing(refused.map((limit) => [limit, Math.ceil((this.#find(limit, now)!.endsAt - now) / 1000)]));
    }
    /** Limits with calls that were taken ahead, and the end of the window in which they were. */
    const ahead = new Map<LimitHit, number>();
    for (const limit of once === undefined ? limits : []) {
      const known = this.#find(limit, now);
      if (known && known.ahead > 0) ahead.set(limit, known.endsAt);
    }
    const asked = limits.filter((limit) => !ahead.has(limit));
    const alone = asked.length + checked.length > 0 && performance.now() < this.#restUntil;
    if (alone) return this.#alone(limits, checked, agentId);
    // calls in use here must not be given to another action meanwhile
    for (const limit of ahead.keys()) this.#find(limit, now)!.ahead--;
    if (asked.length + checked.length === 0) return this.#granted(ahead, ahead, agentId);

    const id = randomUUID();
    let result: LimitResult;
    try {
      result = await this.#send({ id, agent_id: agentId, limits: asked, checked, ...(once && { once }) });
    } catch (error) {
      this.#putBack(ahead);
      if (!(error instanceof ControlPlaneError)) throw error;
      this.#log.warn({ detail: error.message }, 'limits are not counted by the control plane');
      this.#restUntil = performance.now() + REST_MS;
      return this.#alone(limits, checked, agentId);
    }
    if ('taken' in result) {
      const after = this.#clock.now();
      const granted = new Map(ahead);
      for (const { rule_id, kind, key, units, ends_in_ms } of result.taken) {
        const limit = asked.find((one) => keyOf(one) === keyOf({ rule_id, kind, key }));
        if (limit) granted.set(limit, after + ends_in_ms);
        const more = limit?.kind === 'rate' ? units - limit.units : 0;
        if (limit && more > 0 && once === undefined)
          this.#know(limit, {
            ...{ ahead: more, refused: false, endsAt: after + ends_in_ms, until: after + ends_in_ms },
          });
      }
      return this.#granted(granted, ahead, agentId, once === undefined ? id : undefined);
    }
    this.#putBack(ahead);
    // the control plane has other policies than this proxy, which will get them soon
    if ('unknown' in result) return this.#alone(limits, checked, agentId);
    const over: [LimitHit, number][] = [];
    for (const { rule_id, retry_after } of result.exceeded) {
      for (const limit of [...limits, ...checked]) {
        if (limit.rule_id !== rule_id) continue;
        over.push([limit, retry_after]);
        const only = asked.length === 1 && checked.length === 0 && limit.kind === 'rate' && !limit.chosen;
        if (!only) continue;
        const [after, ms] = [this.#clock.now(), retry_after * 1000];
        this.#know(limit, { ahead: 0, refused: true, endsAt: after + ms, until: after + Math.min(ms, REFUSED_MS) });
      }
    }
    return nothing(over);
  }

  /** `granted`, and the part of it that was taken `ahead`, with the ends of the windows. */
  #granted(
    granted: ReadonlyMap<LimitHit, number>,
    ahead: ReadonlyMap<LimitHit, number>,
    agentId: string,
    id?: string,
  ): Taking {
    const forget = this.#counters.note(granted, agentId, this.#clock.now());
    return {
      exceeded: new Map(),
      giveBack: async () => {
        forget();
        this.#putBack(ahead);
        if (id === undefined) return;
        await this.#control.giveBackLimits(id).catch((error: Error) => {
          // it remains taken, and no limit is exceeded
          this.#log.warn({ detail: error.message }, 'what an action took of limits could not be given back');
        });
      },
    };
  }

  /** Counts for this proxy alone, as far as the setting allows. */
  #alone(limits: readonly LimitHit[], checked: readonly LimitHit[], agentId: string): Taking | { unavailable: string } {
    const money = [...limits, ...checked].some(({ kind }) => kind === 'budget');
    if (this.#away === 'deny' || (this.#away === 'rates' && money)) return { unavailable: UNCOUNTED };
    const { exceeded, giveBack } = this.#counters.take(limits, checked, agentId, this.#clock.now());
    return { exceeded, giveBack: async () => giveBack() };
  }

  #find(limit: LimitHit, now: number): Known | undefined {
    if (limit.kind !== 'rate') return undefined;
    const known = this.#known.get(keyOf(limit));
    return known && known.until > now ? known : undefined;
  }

  #know(limit: LimitHit, known: Known): void {
    const key = keyOf(limit);
    const before = this.#find(limit, this.#clock.now());
    this.#known.delete(key);
    const more = before && !known.refused && isSameWindow(limit, before.endsAt, known.endsAt) ? before.ahead : 0;
    this.#known.set(key, { ...known, ahead: known.ahead + more });
    if (this.#known.size > MOST_KNOWN) this.#known.delete(this.#known.keys().next().value as string);
  }

  /** A call that was taken in a window that is over does not count for the next one. */
  #putBack(ahead: ReadonlyMap<LimitHit, number>): void {
    for (const [limit, endsAt] of ahead) {
      const known = this.#find(limit, this.#clock.now());
      if (known && isSameWindow(limit, known.endsAt, endsAt)) known.ahead++;
    }
  }

  async #send(take: { id: string; agent_id: string; limits: LimitHit[]; checked: readonly LimitHit[]; once?: string }) {
    const leased: string[] = [];
    const limits = take.limits.map((limit) => {
      const key = keyOf(limit);
      const extra = take.once === undefined && !this.#leasing.has(key) ? leaseOf(limit) : 0;
      if (extra > 0) leased.push(key);
      return { ...named(limit), extra };
    });
    for (const key of leased) this.#leasing.add(key);
    try {
      return await new Promise<LimitResult>((resolve, reject) => {
        this.#waiting.push({ take: { ...take, limits, checked: take.checked.map(named) }, resolve, reject });
        void this.#flush();
      });
    } finally {
      for (const key of leased) this.#leasing.delete(key);
    }
  }

  async #flush(): Promise<void> {
    if (this.#sending) return;
    this.#sending = true;
    while (this.#waiting.length > 0) {
      const batch = this.#waiting.splice(0, MOST_TAKES);
      try {
        const results = await this.#control.takeLimits(batch.map(({ take }) => take));
        for (const [n, { resolve }] of batch.entries()) resolve(results[n]!);
      } catch (error) {
        for (const { reject } of batch) reject(error);
      }
    }
    this.#sending = false;
  }
}

function named({ rule_id, kind, key, units }: LimitHit) {
  return { rule_id, kind, key, units };
}

function nothing(over: readonly [LimitHit, number][]): Taking {
  const exceeded = new Map<string, { retry_after: number }>();
  for (const [{ rule_id }, seconds] of over) {
    exceeded.set(rule_id, { retry_after: Math.max(1, seconds, exceeded.get(rule_id)?.retry_after ?? 0) });
  }
  return { exceeded, giveBack: async () => {} };
}
