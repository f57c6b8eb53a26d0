import { type EntityManager, LockMode, UniqueConstraintViolationException } from '@mikro-orm/postgresql';
import type pg from 'pg';
import { across } from '../../db/citus.ts';
import { ApiKey, Hold, type HoldRow, Vote } from '../../db/entities/index.ts';
import type { Database, WriteAudit } from '../../db/index.ts';
import { holdRefusal, unreadableHolds } from '../../machines/escrow.ts';
import type { Doer } from '../domain/audit.ts';
import type { ErrorCode } from '../domain/errors.ts';
import { type StopLookup, stopReason } from '../domain/stops.ts';
import { AppError } from '../errors.ts';
import { canonicalJson } from '../lib/canonical-json.ts';
import type { Clock } from '../lib/clock.ts';
import { sha256Tag } from '../lib/crypto.ts';
import { visible } from '../lib/visible.ts';
import { heldTake, heldTakeId } from '../policy/evaluation/limits.ts';
import { countOf, peopleOfKey, reportBar, type VoteSettings, voteBar } from './electorate.ts';
import { type Change, HoldSteps, lockHold, SYSTEM, WITHDRAWN } from './steps.ts';
import { type HoldRequest, holdFaults } from './terms.ts';
import { type HoldView, holdNotFound, holdView, restore, showHold, stopOn, timeOf } from './view.ts';

/** Open holds of one action to look at. There is more than one only if rules changed in the meantime. */
const MOST_RELEASED = 20;
/** Pairs of reason and credential for which refused uses of a hold are counted. */
const MOST_COUNTED = 32;
const USE_REFUSALS: ReadonlySet<string> = new Set<ErrorCode>([
  'AGENT_MISMATCH',
  'ALREADY_CONSUMED',
  'ESCROW_EXPIRED',
  'HASH_MISMATCH',
  'INVALID_STATUS',
  'STOPPED',
]);

/**
 * The life cycle of holds. Each change is one transaction: the hold's row is locked, whatever time has done to it by now is
 * applied, the machine takes the event or the refusal table gives the reason why not, and state, timers, vote, audit records and
 * outbox rows are stored together. All of it is durable when a method resolves, and none of it when it rejects.
 *
 * Time is the database's, read after taking the lock, so that the processes of a cluster agree. A given clock replaces it
 * everywhere here, in SQL too: for tests that move it.
 */
export class Holds {
  readonly #db: Database;
  readonly #clock: Clock | undefined;
  readonly #audit: WriteAudit;
  readonly #steps: HoldSteps;
  readonly #settings: (tenantId: string) => Promise<VoteSettings>;
  readonly #stops: (em: EntityManager, tenantId: string) => Promise<StopLookup>;

  constructor(parts: {
    db: Database;
    audit: WriteAudit;
    settings: (tenantId: string) => Promise<VoteSettings>;
    /** Finds the stop that reaches an action, as of the transaction. */
    stops: (em: EntityManager, tenantId: string) => Promise<StopLookup>;
    clock?: Clock | undefined;
  }) {
    this.#db = parts.db;
    this.#audit = parts.audit;
    this.#steps = new HoldSteps(parts.audit);
    this.#settings = parts.settings;
    this.#stops = parts.stops;
    this.#clock = parts.clock;
  }

  /** Throws if a stored hold has a machine version that this program cannot read; the program must not start then. */
  async assertReadable(): Promise<void> {
    const { rows } = await this.#db.owner.query<{ version: number; state: string }>(
      'select distinct machine_version as version, status as state from escrow_hold',
    );
    const unknown = unreadableHolds(rows);
    if (unknown.length === 0) return;
    throw new Error(`This program cannot read the holds of this database (${unknown.join(', ')}): update it.`);
  }

  /**
   * Holds an agent's action, or finds the hold that is still open for the same agent and action: one that was released and covers
   * the rules that would hold it now, or else one that is waiting. However many identical requests arrive together, they share
   * one hold. What `beside` stores is committed with it.
   */
  async open(
    tenantId: string,
    request: HoldRequest,
    by: Doer,
    more: { traceparent?: string; beside?: (em: EntityManager, hold: HoldView) => Promise<void> } = {},
  ): Promise<{ hold: HoldView; opened: boolean }> {
    const found = async (em: EntityManager, hold: HoldView, opened: boolean) => {
      await more.beside?.(em, hold);
      return { hold, opened };
    };
    const settings = await this.#settings(tenantId);
    return this.#retry(() =>
      this.#db.transactionNear(tenantId, async (em, notify) => {
        const now = await timeOf(em, this.#clock);
        const same = {
          agentId: request.agent_id,
          agentRole: request.agent_role,
          actionHash: request.action_hash,
          status: 'held' as const,
          source: 'evaluate' as const,
        };
        // a hold that time has released or ended must not block a new one, however late its timer is
        const past = await em.find(
          Hold,
          { ...same, wakeAt: { $lte: new Date(now) } },
          { lockMode: LockMode.PESSIMISTIC_WRITE, orderBy: { id: 'asc' } },
        );
        await this.#steps.elapse(em, notify, settings, past, now);
        const released = await this.#released(em, request, now);
        if (released) return found(em, released, false);
        const open = await em.findOne(Hold, { ...same, wakeAt: { $gt: new Date(now) } });
        if (open) return found(em, await showHold(em, open, now), false);
        const hold = await this.#steps.insert(em, notify, tenantId, request, by, now, {
          source: 'evaluate',
          traceparent: more.traceparent,
        });
        return found(em, await showHold(em, hold, now), true);
      }),
    );
  }

  /** The released hold of this action that covers these rules and ends first; undefined if there is none. */
  async #released(em: EntityManager, r: HoldRequest, now: number): Promise<HoldView | undefined> {
    const holds = await em.find(
      Hold,
      {
        ...{ agentId: r.agent_id, agentRole: r.agent_role, actionHash: r.action_hash, source: 'evaluate' },
        status: { $in: ['held', 'released'] },
        endsAt: { $gt: new Date(now) },
      },
      { orderBy: { endsAt: 'asc', id: 'asc' }, limit: MOST_RELEASED },
    );
    const covers = ({ details }: HoldRow) =>
      r.rules.every(({ id, hash }) => details.rules.some((rule) => rule.id === id && rule.hash === hash));
    for (const hold of holds.filter(covers)) {
      const view = await showHold(em, hold, now);
      if (view.status === 'released') return view;
    }
    return undefined;
  }

  /**
   * Opens a hold that a proxy asks for. With an idempotency key, a repeated call with the same API key, or another key of its
   * line, returns the same hold as it is now, with `opened` false; CONFLICT if the idempotency key was used for another request.
   */
  async create(
    tenantId: string,
    request: HoldRequest,
    by: Doer,
    more: { idempotencyKey?: string | undefined; traceparent?: string | undefined } = {},
  ): Promise<{ hold: HoldView; opened: boolean }> {
    const faults = holdFaults(request);
    if (faults.length > 0) throw new AppError('VALIDATION_FAILED', undefined, { faults });
    const key = more.idempotencyKey;
    const hash = key === undefined ? '' : sha256Tag(canonicalJson(request));
    return this.#retry(() =>
      this.#db.transactionNear(tenantId, async (em, notify) => {
        const now = await timeOf(em, this.#clock);
        const line = key === undefined ? '' : await lineOf(em, by.actor.id);
        const known = key === undefined ? null : await em.findOne(Hold, { idempotencyLine: line, idempotencyKey: key });
        if (known && known.idempotencyHash !== hash) {
          throw new AppError('CONFLICT', 'the Idempotency-Key was used for another request');
        }
        if (known) return { hold: await showHold(em, known, now), opened: false };
        const hold = await this.#steps.insert(em, notify, tenantId, request, by, now, {
          source: 'proxy',
          idempotency: key === undefined ? undefined : { line, key, hash },
          traceparent: more.traceparent,
        });
        return { hold: await showHold(em, hold, now), opened: true };
      }),
    );
  }

  /** Cancels a hold whose decision could not be recorded: there is no hold without its record. */
  async withdraw(tenantId: string, id: string, reason: string): Promise<void> {
    try {
      await this.cancel(tenantId, id, reason, SYSTEM);
    } catch (error) {
      // the hold has ended on its own
      if (!(error instanceof AppError) || error.problem !== 'INVALID_STATUS') throw error;
    }
  }

  /**
   * One vote of a signed-in person. INVALID_STATUS, ALREADY_VOTED, or FORBIDDEN for a person who may not vote on this hold. With
   * `seen`, the hash of the hold as they read it, VERSION_CHANGED if it has changed since.
   */
  async vote(
    tenantId: string,
    id: string,
    input: { userId: string; decision: 'approve' | 'reject'; reason: string; seen?: string | undefined },
    by: Doer,
  ): Promise<HoldView> {
    const { userId, decision, reason } = input;
    return this.#change(tenantId, id, by, {
      reason: reason || undefined,
      detail: decision,
      seen: input.seen,
      event: async (em, hold, snapshot, at, settings) => {
        const { voters, tally } = await countOf(em, hold, snapshot, settings, [userId]);
        const barred = voteBar(hold, snapshot.context, voters, { userId, decision });
        return {
          type: 'vote',
          userId,
          decision,
          ...(barred !== undefined && { barred }),
          tally: tally(decision === 'approve' ? userId : undefined),
          at,
        };
      },
      beside: async (em, shownHash, at) => {
        em.create(Vote, { tenantId, holdId: id, userId, decision, reason, shownHash, createdAt: new Date(at) });
        await em.flush();
      },
    });
  }

  /**
   * A report on one condition. The last report counts; the hold is released once nothing else is missing. With `userId`, the
   * report is by a signed-in person; otherwise it is by a key, and the people who made the key answer for it. FORBIDDEN for a
   * person who may not vote on this hold, and for anyone who may not report that the condition is met: see `reportBar`.
   */
  async satisfy(
    tenantId: string,
    id: string,
    input: {
      condition_id: string;
      satisfied: boolean;
      evidence?: string | undefined;
      userId?: string | undefined;
      seen?: string | undefined;
    },
    by: Doer,
  ): Promise<HoldView> {
    const { condition_id, satisfied, userId } = input;
    const evidence = input.evidence === undefined ? undefined : visible(input.evidence);
    return this.#change(tenantId, id, by, {
      reason: evidence || undefined,
      detail: `${condition_id} is ${satisfied ? 'met' : 'not met'}`,
      seen: input.seen,
      event: async (em, hold, snapshot, at, settings) => {
        const behind = userId === undefined ? await peopleOfKey(em, by.actor.id) : [userId];
        const { voters, without } = await countOf(em, hold, snapshot, settings, behind);
        const report = { conditionId: condition_id, satisfied, behind };
        const barred = reportBar(hold, snapshot.context, voters, { ...report, userId });
        return {
          type: 'satisfy',
          ...report,
          by: by.actor.id,
          system: userId === undefined,
          ...(evidence !== undefined && { evidence }),
          ...(barred !== undefined && { barred }),
          tally: without(condition_id),
          at,
        };
      },
    });
  }

  /**
   * Consumes a released hold. Of any number of calls, in any number of processes, one resolves; the others get ALREADY_CONSUMED.
   * The caller that gets the answer may act once; if the answer is lost, the hold is consumed all the same. STOPPED, and nothing
   * is consumed, while the action is under a stop other than the freeze that opened the hold. A release whose approvals no longer
   * count is refused, and ends as cancelled.
   */
  async consume(
    tenantId: string,
    id: string,
    input: { action_hash: string; agent_role: string; agent_id: string },
    by: Doer,
    more: { detail?: string; beside?: (em: EntityManager) => Promise<void> } = {},
  ): Promise<HoldView> {
    try {
      const use: Change = {
        ...more,
        beside: async (em) => {
          // from now on the same action is a new call, and counts again
          const take = heldTakeId(heldTake(input.agent_id, input.action_hash));
          await em.execute('delete from limit_take where tenant_id = ? and id = ?', [tenantId, take]);
          await more.beside?.(em);
        },
        event: async (em, hold, _snapshot, at) => {
          const stop = stopOn(holdView(hold, at), await this.#stops(em, tenantId));
          if (stop) throw new AppError('STOPPED', stopReason(stop));
          return {
            type: 'consume',
            agentId: input.agent_id,
            agentRole: input.agent_role,
            actionHash: input.action_hash,
            at,
          };
        },
      };
      const settings = await this.#settings(tenantId);
      const used = await this.#db.transactionNear(tenantId, async (em, notify) => {
        const hold = await lockHold(em, id);
        const now = await timeOf(em, this.#clock);
        if (hold.status === 'released' && (await this.#steps.recount(em, notify, settings, hold, now))) {
          const refused = holdRefusal(restore(hold), await use.event(em, hold, restore(hold), now, settings))!;
          const detail = refused.code === 'INVALID_STATUS' ? `${refused.detail}: ${WITHDRAWN}` : refused.detail;
          // returned, not thrown: that it ended is stored
          return new AppError(refused.code, detail);
        }
        await this.#steps.take(em, notify, settings, hold, now, by, use);
        return showHold(em, hold, now);
      });
      if (used instanceof AppError) throw used;
      return used;
    } catch (error) {
      if (error instanceof AppError && USE_REFUSALS.has(error.problem)) await this.refusedUse(tenantId, id, by, error);
      throw error;
    }
  }

  /**
   * Writes an audit record for a refused attempt to use a hold. Attempts may never stop: for each reason and credential, the
   * first, second, fourth, eighth … attempt is recorded with its number, so that the number of records grows with the logarithm
   * of the number of attempts. If there are many credentials, the later ones share a count.
   */
  async refusedUse(tenantId: string, id: string, by: Doer, refusal: AppError): Promise<void> {
    await this.#db.transactionNear(tenantId, async (em) => {
      const hold = await lockHold(em, id);
      const own = `${refusal.problem} ${by.actor.id}`;
      const counted = Object.keys(hold.refusedUses);
      const name = counted.includes(own) || counted.length < MOST_COUNTED ? own : `${refusal.problem} *`;
      const count = (hold.refusedUses[name] ?? 0) + 1;
      hold.refusedUses = { ...hold.refusedUses, [name]: count };
      await em.flush();
      if (!Number.isInteger(Math.log2(count))) return;
      await this.#audit(em, tenantId, {
        ...by,
        action: 'escrow.use_refused',
        severity: 'warning',
        target: { type: 'escrow', id },
        detail: `${refusal.problem}, attempt ${count}`,
      });
    });
  }

  /** Records that a hold was consumed for a decision that was then not recorded: the agent did not act on it. */
  async consumedWithoutRecord(tenantId: string, id: string, detail: string): Promise<void> {
    await this.#db.transactionNear(tenantId, (em) =>
      this.#audit(em, tenantId, {
        ...SYSTEM,
        action: 'escrow.consume_unrecorded',
        severity: 'warning',
        target: { type: 'escrow', id },
        detail,
      }),
    );
  }

  /** Cancels a hold that is held or released. */
  async cancel(tenantId: string, id: string, reason: string, by: Doer): Promise<HoldView> {
    return this.#change(tenantId, id, by, {
      reason,
      event: async (_em, _hold, _snapshot, at) => ({ type: 'cancel', at }),
    });
  }

  /**
   * Counts the approvals and reports of every held or released hold again. Call it after roles, members, groups or vote settings
   * change, to correct what is shown. Decisions are right without it, since each event counts again. Resolves to the number of
   * holds changed.
   */
  async recount(tenantId: string): Promise<number> {
    const settings = await this.#settings(tenantId);
    const rows = await this.#db.query<{ id: string }>(
      tenantId,
      `select h.id from escrow_hold h where h.tenant_id = $1 and h.status in ('held', 'released')
         and (h.machine_context->'conditions' @> '[{"satisfied": true}]' or h.id in (
           select v.hold_id from escrow_vote v where v.tenant_id = $1 and v.decision = 'approve'))`,
      [tenantId],
    );
    let changed = 0;
    for (const { id } of rows) {
      const [before, after] = await this.#db.transactionNear(tenantId, async (em, notify) => {
        const hold = await lockHold(em, id);
        const was = hold.rowVersion;
        const at = await timeOf(em, this.#clock);
        await this.#steps.recount(em, notify, settings, hold, at);
        return [was, hold.rowVersion];
      });
      if (before !== after) changed++;
    }
    return changed;
  }

  /** The tenants that have a held hold with a condition reported as met. */
  async reported(): Promise<string[]> {
    const rows = await across<{ tenant_id: string }>(
      this.#db,
      `select distinct tenant_id from escrow_hold where wake_at is not null and status = 'held'
         and machine_context->'conditions' @> '[{"satisfied": true}]'`,
      [],
    );
    return rows.map(({ tenant_id }) => tenant_id);
  }

  /** The given clock's time for SQL; null if the database's time applies. */
  #fixed(): Date | null {
    return this.#clock ? new Date(this.#clock.now()) : null;
  }

  /**
   * The holds of all tenants whose time has come, most overdue first, excluding these holds and the holds of these tenants. If
   * there are none, the number of milliseconds until the next one is due. They are not locked: `wake` checks again.
   */
  async due(
    limit: number,
    except: readonly string[] = [],
    exceptOf: readonly string[] = [],
  ): Promise<{ holds: DueHold[]; next: number | null }> {
    // now(), not clock_timestamp(): only a stable value can be looked up in the index
    const holds = await across<DueHold>(
      this.#db,
      `select tenant_id, id from escrow_hold where wake_at <= coalesce($1::timestamptz, now())
         and not id = any($3::text[]) and not tenant_id = any($4::text[]) order by wake_at limit $2`,
      [this.#fixed(), limit, except, exceptOf],
    );
    if (holds.length > 0) return { holds, next: null };
    const waits = await across<{ ms: number | null }>(
      this.#db,
      `select (extract(epoch from min(wake_at) - coalesce($1::timestamptz, now())) * 1000)::float8 as ms
       from escrow_hold where wake_at is not null and not id = any($2::text[]) and not tenant_id = any($3::text[])`,
      [this.#fixed(), except, exceptOf],
    );
    const known = waits.flatMap(({ ms }) => ms ?? []);
    return { holds: [], next: known.length > 0 ? Math.min(...known) : null };
  }

  /**
   * Applies what time has done to these holds, in one transaction. Locked holds are skipped: whoever holds the lock does the
   * same. Resolves to the number of holds changed. May run twice, and in several processes at once.
   */
  async wake(tenantId: string, ids: readonly string[]): Promise<number> {
    const settings = await this.#settings(tenantId);
    return this.#db.transactionNear(tenantId, async (em, notify) => {
      // in id order, so that two of these transactions never wait for each other
      const holds = await em.find(
        Hold,
        { id: { $in: [...ids] }, wakeAt: { $ne: null } },
        { lockMode: LockMode.PESSIMISTIC_PARTIAL_WRITE, orderBy: { id: 'asc' } },
      );
      return this.#steps.elapse(em, notify, settings, holds, await timeOf(em, this.#clock));
    });
  }

  /**
   * Erases the arguments and the context of some of the holds from before a given time, including open ones, and in the events
   * for subscribers, on a connection of the owner. Resolves to the number of holds and events changed; zero when nothing is left.
   */
  async forget(tenantId: string, before: Date, client: Pick<pg.ClientBase, 'query'>): Promise<number> {
    const { rowCount: holds } = await client.query(
      `update escrow_hold set row_version = row_version + 1,
         details = jsonb_set(details, '{shown}', details->'shown' || '{"arguments": null, "context": null, "erased": true}')
       where tenant_id = $1 and id in (
         select id from escrow_hold where tenant_id = $1 and created_at < $2
           and details->'shown'->'erased' is null order by id limit 500 for update)`,
      [tenantId, before],
    );
    const { rowCount: events } = await client.query(
      `update event_outbox set payload = payload - 'arguments' - 'context' where tenant_id = $1 and id in (
         select id from event_outbox where tenant_id = $1 and created_at < $2 and payload ? 'arguments'
         order by id limit 500 for update)`,
      [tenantId, before],
    );
    return (holds ?? 0) + (events ?? 0);
  }

  /** When the oldest action that `forget` has not yet erased was held. */
  async oldestShown(tenantId: string): Promise<Date | null> {
    const { rows } = await this.#db.nearOf(tenantId).query<{ at: Date | null }>(
      `select least(
         (select min(created_at) from escrow_hold where tenant_id = $1 and details->'shown'->'erased' is null),
         (select min(created_at) from event_outbox where tenant_id = $1 and payload ? 'arguments')) as at`,
      [tenantId],
    );
    return rows[0]!.at;
  }

  /** The hold as of now. NOT_FOUND when the tenant has no such hold. */
  async get(tenantId: string, id: string): Promise<HoldView> {
    return this.#db.transactionNear(tenantId, async (em) => {
      const hold = await em.findOne(Hold, { id });
      if (!hold) throw holdNotFound();
      return showHold(em, hold, await timeOf(em, this.#clock));
    });
  }

  /**
   * The loser of a race to open the same hold tries again: by then the winner's hold may have ended, and it is the loser's turn.
   */
  async #retry<T>(attempt: () => Promise<T>): Promise<T> {
    for (let tries = 0; tries < 5; tries++) {
      try {
        return await attempt();
      } catch (error) {
        if (!(error instanceof UniqueConstraintViolationException)) throw error;
      }
    }
    throw new AppError('UNAVAILABLE', 'the hold could not be opened', { headers: { 'retry-after': '1' } });
  }

  /** One event for one hold. If the machine does not take it, rejects with the reason in the refusal table. */
  async #change(tenantId: string, id: string, by: Doer, change: Change): Promise<HoldView> {
    const settings = await this.#settings(tenantId);
    return this.#db.transactionNear(tenantId, async (em, notify) => {
      const hold = await lockHold(em, id);
      const now = await timeOf(em, this.#clock);
      await this.#steps.take(em, notify, settings, hold, now, by, change);
      return showHold(em, hold, now);
    });
  }
}

/** What stays the same when an API key is rotated. */
async function lineOf(em: EntityManager, keyId: string): Promise<string> {
  return (await em.findOne(ApiKey, { id: keyId }))?.lineId ?? keyId;
}

export interface DueHold {
  tenant_id: string;
  id: string;
}
