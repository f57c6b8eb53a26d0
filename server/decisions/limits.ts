import type { EntityManager } from '@mikro-orm/postgresql';
import { forgetEnded } from '../../db/forget.ts';
import type { Database } from '../../db/index.ts';
import { AppError } from '../errors.ts';
import type { Clock } from '../lib/clock.ts';
import { type LimitHit, takenFrom, valuesOf } from '../policy/evaluation/limits.ts';

/** Ended windows are kept this long because a proxy may still give back what it took. */
const KEPT_MS = 600_000;

/** What one action takes from its limits. */
export interface LimitTake {
  /** Within its open windows, the same id takes nothing from a limit a second time. */
  id: string | undefined;
  /** The id belongs to the action, whichever credential asks. */
  shared?: boolean;
  /** The credential that asks: what it took is counted separately from what others took. */
  source: string;
  agentId: string;
  /** `extra`: units beyond the action's own, taken if there is room. */
  limits: readonly (LimitHit & { extra?: number })[];
  /** Must have room; nothing is taken from them. */
  checked: readonly LimitHit[];
}

export interface TakenLimit {
  rule_id: string;
  kind: LimitHit['kind'];
  key: string;
  units: number;
  endsAt: number;
}

/** `before`: taken under the same id by an earlier call, which alone may give it back. */
export type LimitAnswer = { taken: TakenLimit[]; before: boolean } | { exceeded: Map<string, { retry_after: number }> };

interface CounterRow {
  units: number;
  window_ends_at: Date | string;
  shares: Record<string, number>;
}

/**
 * The counters behind `@rate` and `@budget`, shared by all decision points of a tenant. They are rows, so a crash neither
 * resets nor doubles them.
 */
export class Limits {
  readonly #db: Database;
  readonly #clock: Clock;

  constructor(db: Database, clock: Clock) {
    this.#db = db;
    this.#clock = clock;
  }

  /**
   * Takes from all limits or from none. Committed when it resolves; concurrent calls, in any number of processes, never
   * take more than the limit. CONFLICT if another credential used the id.
   */
  async take(tenantId: string, take: LimitTake): Promise<LimitAnswer> {
    const now = this.#clock.now();
    let before: TakenLimit[] | undefined;
    try {
      const taken = await this.#db.transactionNear(tenantId, async (em) => {
        if (take.id !== undefined) {
          before = await this.#begin(em, tenantId, take, take.id, now);
        }
        const known = before ?? [];
        const isKnown = (limit: LimitHit) => known.some((one) => byCounter(one, limit) === 0);
        // the policies may have gained limits since
        const limits = take.limits.filter((limit) => !isKnown(limit)).sort(byCounter);
        if (before && limits.length === 0) return before;
        const exceeded = new Map<string, { retry_after: number }>();
        const results = [...known];
        const opened: LimitHit[] = [];
        // INVARIANT: always in this order, so that concurrent calls cannot deadlock
        for (const limit of limits) {
          const result = await this.#takeOne(em, tenantId, take.source, limit, now);
          if ('retry_after' in result) note(exceeded, limit.rule_id, result.retry_after);
          else {
            const { rule_id, kind, key } = limit;
            results.push({ rule_id, kind, key, units: result.granted, endsAt: result.window.endsAt });
            if (limit.chosen && result.began) opened.push(limit);
          }
        }
        for (const limit of opened) {
          const result = await this.#takeOne(em, tenantId, take.source, valuesOf(limit, take.agentId), now);
          if ('retry_after' in result) note(exceeded, limit.rule_id, result.retry_after);
        }
        for (const limit of before ? [] : take.checked) {
          const result = takenFrom(windowOf(await this.#read(em, tenantId, limit)), limit, now);
          if ('retry_after' in result) note(exceeded, limit.rule_id, result.retry_after);
        }
        // everything taken above is rolled back
        if (exceeded.size > 0) throw new Exceeded(exceeded);
        if (take.id !== undefined) await this.#keep(em, tenantId, take.id, results, now);
        return results;
      });
      return { taken, before: before !== undefined };
    } catch (error) {
      if (error instanceof Exceeded) return { exceeded: error.exceeded };
      throw error;
    }
  }

  /** Milliseconds until this time, by the windows' clock. */
  until(endsAt: number): number {
    return Math.max(0, endsAt - this.#clock.now());
  }

  /**
   * Gives back what was taken under this id, once, for the windows that are still open. Does nothing if `may`, called
   * within the transaction, returns false because others rely on it.
   */
  async giveBackTake(
    tenantId: string,
    source: string,
    id: string,
    may?: (em: EntityManager) => Promise<boolean>,
  ): Promise<void> {
    await this.#db.transactionNear(tenantId, async (em) => {
      if (may && !(await may(em))) return;
      const rows = await em.execute<{ counts: TakenLimit[] }[]>(
        'delete from limit_take where tenant_id = ? and id = ? and source = ? returning counts',
        [tenantId, id, source],
      );
      await this.#giveBack(em, tenantId, source, rows[0]?.counts ?? []);
    });
  }

  /** Gives back what `take` took without an id. */
  async giveBack(tenantId: string, source: string, taken: readonly TakenLimit[]): Promise<void> {
    await this.#db.transactionNear(tenantId, (em) => this.#giveBack(em, tenantId, source, taken));
  }

  /** Deletes ended windows and the notes about calls in them. */
  forget(signal?: AbortSignal): Promise<void> {
    const before = new Date(this.#clock.now() - KEPT_MS);
    const counters = { table: 'limit_counter', key: 'rule_id, kind, key', time: 'window_ends_at', before };
    const takes = { table: 'limit_take', key: 'id', time: 'expires_at', before };
    return forgetEnded(this.#db, [counters, takes], signal);
  }

  /** Claims the id. If it was claimed before, resolves to what it already took. */
  async #begin(em: EntityManager, tenantId: string, { source, shared }: LimitTake, id: string, now: number) {
    const at = new Date(now);
    const claimed = await em.execute<unknown[]>(
      `insert into limit_take as t (tenant_id, id, source, expires_at, counts) values (?, ?, ?, ?, '[]')
       on conflict (tenant_id, id) do update set source = excluded.source, counts = '[]' where t.expires_at <= ?
       returning id`,
      [tenantId, id, source, at, at],
    );
    if (claimed.length > 0) return undefined;
    const rows = await em.execute<{ source: string; counts: TakenLimit[] }[]>(
      'select source, counts from limit_take where tenant_id = ? and id = ?',
      [tenantId, id],
    );
    if (!rows[0] || (rows[0].source !== source && !shared))
      throw new AppError('CONFLICT', 'another credential used this id');
    return rows[0].counts;
  }

  async #keep(em: EntityManager, tenantId: string, id: string, counts: readonly TakenLimit[], now: number) {
    const expires = new Date(Math.max(now, ...counts.map(({ endsAt }) => endsAt)));
    await em.execute('update limit_take set counts = ?::jsonb, expires_at = ? where tenant_id = ? and id = ?', [
      JSON.stringify(counts),
      expires,
      tenantId,
      id,
    ]);
  }

  async #takeOne(
    em: EntityManager,
    tenantId: string,
    source: string,
    limit: Pick<LimitHit, 'rule_id' | 'key' | 'limit' | 'units' | 'window_seconds'> & { kind: string; extra?: number },
    now: number,
  ) {
    const counter = [tenantId, limit.rule_id, limit.kind, limit.key];
    let row: CounterRow | undefined;
    // makes sure there is a row to lock, even if none existed or an ended one is deleted before it is locked
    while (!row) {
      await em.execute(
        `insert into limit_counter (tenant_id, rule_id, kind, key, window_ends_at, units, shares)
         values (?, ?, ?, ?, ?, 0, '{}') on conflict do nothing`,
        [...counter, new Date(0)],
      );
      row = await this.#read(em, tenantId, limit, true);
    }
    const result = takenFrom(windowOf(row), limit, now, limit.extra);
    if ('retry_after' in result) return result;
    const shares = result.began ? {} : row.shares;
    await em.execute(
      `update limit_counter set units = ?, window_ends_at = ?, shares = ?::jsonb
       where tenant_id = ? and rule_id = ? and kind = ? and key = ?`,
      [
        result.window.units,
        new Date(result.window.endsAt),
        JSON.stringify({ ...shares, [source]: (shares[source] ?? 0) + result.granted }),
        ...counter,
      ],
    );
    return result;
  }

  async #read(
    em: EntityManager,
    tenantId: string,
    { rule_id, kind, key }: { rule_id: string; kind: string; key: string },
    lock = false,
  ): Promise<CounterRow | undefined> {
    const rows = await em.execute<CounterRow[]>(
      `select units, window_ends_at, shares from limit_counter
       where tenant_id = ? and rule_id = ? and kind = ? and key = ?${lock ? ' for update' : ''}`,
      [tenantId, rule_id, kind, key],
    );
    return rows[0];
  }

  async #giveBack(em: EntityManager, tenantId: string, source: string, taken: readonly TakenLimit[]): Promise<void> {
    for (const one of [...taken].sort(byCounter)) {
      const row = await this.#read(em, tenantId, one, true);
      // the window it was taken from has ended
      if (!row || new Date(row.window_ends_at).getTime() !== one.endsAt) continue;
      // no more than this credential took
      const share = Math.max(0, (row.shares[source] ?? 0) - one.units);
      const units = Math.max(0, Number(row.units) - ((row.shares[source] ?? 0) - share));
      await em.execute(
        `update limit_counter set units = ?, shares = ?::jsonb where tenant_id = ? and rule_id = ? and kind = ? and key = ?`,
        [units, JSON.stringify({ ...row.shares, [source]: share }), tenantId, one.rule_id, one.kind, one.key],
      );
    }
  }
}

class Exceeded extends Error {
  readonly exceeded: Map<string, { retry_after: number }>;

  constructor(exceeded: Map<string, { retry_after: number }>) {
    super('a limit is exceeded');
    this.exceeded = exceeded;
  }
}

function windowOf(row: CounterRow | undefined) {
  return row && { units: Number(row.units), endsAt: new Date(row.window_ends_at).getTime() };
}

function note(exceeded: Map<string, { retry_after: number }>, rule: string, retry_after: number): void {
  exceeded.set(rule, { retry_after: Math.max(retry_after, exceeded.get(rule)?.retry_after ?? 0) });
}

function byCounter(a: Pick<TakenLimit, 'rule_id' | 'kind' | 'key'>, b: typeof a): number {
  const [x, y] = [a, b].map(({ rule_id, kind, key }) => `${rule_id}\n${kind}\n${key}`) as [string, string];
  return x < y ? -1 : x > y ? 1 : 0;
}
