import type { EntityManager } from '@mikro-orm/postgresql';
import { settingAside } from '../../db/asides.ts';
import { Hold } from '../../db/entities/index.ts';
import { forgetEnded } from '../../db/forget.ts';
import type { Database } from '../../db/index.ts';
import { latestReturn } from '../domain/aside.ts';
import { AppError, invalid } from '../errors.ts';
import type { Clock } from '../lib/clock.ts';
import { lockHoldForRead } from './steps.ts';
import { holdNotFound, showHold, shownHash, timeOf } from './view.ts';

/** Holds that one person may have set aside at the same time. */
const MOST_ASIDE = 500;

/**
 * Holds that people set aside for later, each for themselves: this changes what their own list shows and nothing else. A hold
 * comes back when its time has come, well before it ends; as soon as its machine takes a step; and as soon as other people may
 * vote. `bringBack` deletes the rows here in the transaction of the change. So nothing here outlives the state that the person
 * saw when they set the hold aside.
 */
export class Asides {
  readonly #db: Database;
  readonly #clock: Clock | undefined;

  constructor(db: Database, clock: Clock | undefined) {
    this.#db = db;
    this.#clock = clock;
  }

  /**
   * Sets a hold aside until a time or, without one, until it changes. Resolves to when it comes back at the latest. If called
   * again, the last call wins. With `seen`, the hash of the hold as the person read it, VERSION_CHANGED if it has changed since.
   * INVALID_STATUS if it is not waiting or ends too soon; CONFLICT if the person has set too many aside.
   */
  put(
    tenantId: string,
    userId: string,
    id: string,
    { until, seen }: { until?: Date | undefined; seen?: string | undefined },
  ): Promise<Date> {
    return this.#db.transaction(tenantId, async (em) => {
      // the person first, as everywhere: they may be being removed, and of two calls of theirs the later must count the earlier
      const people = await em.execute(
        'select 1 from member where tenant_id = ? and id = ? and removed_at is null for no key update',
        [tenantId, userId],
      );
      if (people.length === 0) throw new AppError('FORBIDDEN');
      // a step of the hold either precedes this and is visible here, or follows it and deletes what is stored
      const hold = await lockHoldForRead(em, id);
      const now = await timeOf(em, this.#clock);
      const view = await showHold(em, hold, now);
      if (view.status !== 'held') throw new AppError('INVALID_STATUS', `the hold is ${view.status}`);
      if (seen !== undefined && seen !== shownHash(view)) {
        throw new AppError('VERSION_CHANGED', 'the hold has changed since you read it: read it again');
      }
      if (until !== undefined && until.getTime() <= now) throw invalid('/until', 'must be in the future');
      const latest = latestReturn(view, now);
      if (latest === undefined) throw new AppError('INVALID_STATUS', 'the hold ends too soon to be set aside');
      const others = await em.execute<{ n: number }[]>(
        `select count(*)::int as n from escrow_aside
         where tenant_id = ? and user_id = ? and hold_id <> ? and back_at > ?`,
        [tenantId, userId, id, new Date(now)],
      );
      if (others[0]!.n >= MOST_ASIDE) {
        throw new AppError('CONFLICT', `a person may set at most ${MOST_ASIDE} holds aside`);
      }
      const back = new Date(Math.min(until?.getTime() ?? latest, latest));
      await settingAside(em, tenantId);
      await em.execute(
        `insert into escrow_aside (tenant_id, user_id, hold_id, back_at) values (?, ?, ?, ?)
         on conflict (tenant_id, user_id, hold_id) do update set back_at = excluded.back_at`,
        [tenantId, userId, id, back],
      );
      return back;
    });
  }

  /** Brings a hold back immediately; does nothing if it was not set aside. NOT_FOUND when the tenant has no such hold. */
  async back(tenantId: string, userId: string, id: string): Promise<void> {
    await this.#db.transaction(tenantId, async (em) => {
      if ((await em.count(Hold, { id })) === 0) throw holdNotFound();
      await em.execute('delete from escrow_aside where tenant_id = ? and user_id = ? and hold_id = ?', [
        tenantId,
        userId,
        id,
      ]);
    });
  }

  /** Until when a hold is set aside for this person; undefined if it is not. */
  async of(tenantId: string, userId: string, id: string): Promise<Date | undefined> {
    const [row] = await this.#db.query<{ back_at: Date }>(
      tenantId,
      `select back_at from escrow_aside where tenant_id = $1 and user_id = $2 and hold_id = $3
         and back_at > coalesce($4::timestamptz, clock_timestamp())`,
      [tenantId, userId, id, this.#clock ? new Date(this.#clock.now()) : null],
    );
    return row?.back_at;
  }

  /** Deletes the rows of holds whose time to come back has passed. */
  forget(signal?: AbortSignal): Promise<void> {
    const before = new Date(this.#clock?.now() ?? Date.now());
    return forgetEnded(this.#db, [{ table: 'escrow_aside', key: 'user_id, hold_id', time: 'back_at', before }], signal);
  }
}

/** The holds that are aside for this person at `now`, and until when. */
export async function asideFor(
  em: EntityManager,
  tenantId: string,
  userId: string,
  now: number,
): Promise<Map<string, Date>> {
  const rows = await em.execute<{ hold_id: string; back_at: Date | string }[]>(
    'select hold_id, back_at from escrow_aside where tenant_id = ? and user_id = ? and back_at > ?',
    [tenantId, userId, new Date(now)],
  );
  return new Map(rows.map(({ hold_id, back_at }) => [hold_id, new Date(back_at)]));
}
