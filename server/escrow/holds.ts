import {
  type EntityManager,
  type InferEntity,
  LockMode,
  type QBFilterQuery,
  UniqueConstraintViolationException,
} from '@mikro-orm/postgresql';
import {
  AgentKey,
  ApiKey,
  Hold,
  type HoldDetails,
  type HoldRow,
  Member,
  Policy,
  PolicyRevision,
  Vote,
} from '../../db/entities/index.ts';
import type { Database, Notify, WriteAudit } from '../../db/index.ts';
import type { Step } from '../../db/notices.ts';
import { addEvent } from '../../db/outbox.ts';
import {
  createHold,
  elapse,
  HOLD_MACHINE_VERSION,
  type HoldEffect,
  type HoldEvent,
  type HoldSnapshot,
  type HoldState,
  holdRefusal,
  restoreHold,
  stepHold,
  timeline,
  unreadableHolds,
} from '../../machines/escrow.ts';
import { type Seats, seatsOf } from '../domain/annotations.ts';
import type { Actor } from '../domain/audit.ts';
import { type HoldKind, holdKind } from '../domain/hold-kinds.ts';
import type { RuleReference, ShownAction } from '../domain/policy.ts';
import { hasRole, type Role } from '../domain/principal.ts';
import { AppError, type ErrorCode } from '../errors.ts';
import { canonicalJson } from '../lib/canonical-json.ts';
import type { Clock } from '../lib/clock.ts';
import { sha256Tag } from '../lib/crypto.ts';
import type { Fault } from '../lib/faults.ts';
import { newId } from '../lib/ids.ts';
import { visible } from '../policy/evaluation/shown.ts';
import { RELEASES } from './kinds.ts';
import { type Electorate, tally } from './quorum.ts';

/** What a new hold asks for. */
export interface HoldRequest {
  agent_role: string;
  agent_id: string;
  /** The action as approvers see it; `action_hash` binds it. */
  action: ShownAction;
  action_hash: string;
  /** What the agent says of it. Approvers see it apart from the action. */
  action_summary: string;
  risk_score?: number | undefined;
  hold_type: HoldKind;
  /** At least what the hold type and the quorum need. */
  required_approvals: number;
  quorum?: Seats[] | undefined;
  conditions?: { condition_id: string; description?: string | undefined }[] | undefined;
  release_after_seconds?: number | undefined;
  ttl_seconds: number;
  execute_within_seconds?: number | undefined;
  policy_id: string | null;
  /** The statements that it stands for; none: it covers no rule. */
  rules: RuleReference[];
  reason?: string | undefined;
  session_id?: string | undefined;
  notify_targets: string[];
}

/** Who changes a hold: the credential, and the request that it came with. */
export interface By {
  actor: Actor;
  requestId?: string | undefined;
}

/** What decides who votes, beside the roles. */
export interface VoteSettings {
  approver_groups: Readonly<Record<string, readonly string[]>>;
  policy_author_may_vote: boolean;
}

export interface VoteView {
  user_id: string;
  decision: 'approve' | 'reject';
  reason: string;
  /** sha256 of the hold as it was shown when the vote was cast. */
  shown_hash: string;
  at: string;
}

/** Refused uses of one hold are counted for so many reasons and credentials. */
const MOST_COUNTED = 32;
const USE_REFUSALS: ReadonlySet<string> = new Set<ErrorCode>([
  'AGENT_MISMATCH',
  'ALREADY_CONSUMED',
  'ESCROW_EXPIRED',
  'HASH_MISMATCH',
  'INVALID_STATUS',
]);
const ERASED = 'its arguments were erased with the end of their retention: nobody sees what would be approved';

const SYSTEM: By = { actor: { type: 'system', id: 'control-plane' } };

/**
 * Holds and their life. Each change is one transaction: the hold's row is locked, what time has done by now is caught
 * up with, the machine takes the event or the refusal table says why not, and state, timers, vote, audit records and
 * outbox rows are stored together. All of it is durable when a method resolves, and nothing of it when it rejects.
 *
 * Time is the database's, read after the lock was taken, so that the processes of a cluster agree. With a clock given,
 * that clock is the time everywhere here, in SQL too: for tests that move it.
 */
export class Holds {
  readonly #db: Database;
  readonly #clock: Clock | undefined;
  readonly #audit: WriteAudit;
  readonly #settings: (tenantId: string) => Promise<VoteSettings>;

  constructor(parts: {
    db: Database;
    audit: WriteAudit;
    settings: (tenantId: string) => Promise<VoteSettings>;
    clock?: Clock | undefined;
  }) {
    this.#db = parts.db;
    this.#audit = parts.audit;
    this.#settings = parts.settings;
    this.#clock = parts.clock;
  }

  /** Throws when a stored hold is of a machine version that this program cannot read: it must not start then. */
  async assertReadable(): Promise<void> {
    const { rows } = await this.#db.owner.query<{ version: number; state: string }>(
      'select distinct machine_version as version, status as state from escrow_hold',
    );
    const unknown = unreadableHolds(rows);
    if (unknown.length === 0) return;
    throw new Error(`This program cannot read the holds of this database (${unknown.join(', ')}): update it.`);
  }

  /**
   * Holds an agent's action, or finds the hold that is still open for the same agent and action: however many identical
   * requests arrive at once, they share one hold.
   */
  async open(tenantId: string, request: HoldRequest, by: By): Promise<{ hold: HoldView; opened: boolean }> {
    return this.#retry(() =>
      this.#db.transaction(tenantId, async (em, notify) => {
        const now = await this.#now(em);
        const same = {
          agentId: request.agent_id,
          agentRole: request.agent_role,
          actionHash: request.action_hash,
          status: 'held' as const,
          source: 'evaluate' as const,
        };
        const open = await em.findOne(Hold, { ...same, wakeAt: { $gt: new Date(now) } });
        if (open) return { hold: await this.#show(em, open, now), opened: false };
        // a hold that time has released or ended must not keep the place, however late its timer is
        for (const past of await em.find(Hold, same, { lockMode: LockMode.PESSIMISTIC_WRITE })) {
          await this.#elapse(em, notify, past, now);
        }
        const hold = await this.#insert(em, notify, tenantId, request, by, now, { source: 'evaluate' });
        return { hold: await this.#show(em, hold, now), opened: true };
      }),
    );
  }

  /**
   * Opens a hold that a proxy asks for. With an idempotency key, a repeated call of the same credential answers the same
   * hold, as it is now, and not `opened`; CONFLICT when the key came with another request.
   */
  async create(
    tenantId: string,
    request: HoldRequest,
    by: By,
    more: { idempotencyKey?: string | undefined } = {},
  ): Promise<{ hold: HoldView; opened: boolean }> {
    const faults = faultsOf(request);
    if (faults.length > 0) throw new AppError('VALIDATION_FAILED', undefined, { faults });
    const key = more.idempotencyKey;
    const idempotency = key === undefined ? undefined : { key, hash: sha256Tag(canonicalJson(request)) };
    return this.#retry(() =>
      this.#db.transaction(tenantId, async (em, notify) => {
        const now = await this.#now(em);
        if (idempotency) {
          const known = await em.findOne(Hold, { createdBy: by.actor.id, idempotencyKey: idempotency.key });
          if (known && known.idempotencyHash !== idempotency.hash) {
            throw new AppError('CONFLICT', 'the Idempotency-Key was used for another request');
          }
          if (known) return { hold: await this.#show(em, known, now), opened: false };
        }
        const hold = await this.#insert(em, notify, tenantId, request, by, now, { source: 'proxy', idempotency });
        return { hold: await this.#show(em, hold, now), opened: true };
      }),
    );
  }

  /** Cancels a hold whose decision could not be recorded: there is no hold without its record. */
  async withdraw(tenantId: string, id: string, reason: string): Promise<void> {
    try {
      await this.cancel(tenantId, id, reason, SYSTEM);
    } catch (error) {
      // it has ended by itself
      if (!(error instanceof AppError) || error.problem !== 'INVALID_STATUS') throw error;
    }
  }

  /** One vote of a signed-in person. INVALID_STATUS, ALREADY_VOTED, or FORBIDDEN for who has no say on this hold. */
  async vote(
    tenantId: string,
    id: string,
    input: { userId: string; decision: 'approve' | 'reject'; reason: string },
    by: By,
  ): Promise<HoldView> {
    const { userId, decision, reason } = input;
    const settings = await this.#settings(tenantId);
    return this.#change(tenantId, id, by, {
      reason: reason || undefined,
      event: async (em, hold, { context }, at) => {
        const approvals = context.votes.filter((vote) => vote.decision === 'approve').map((vote) => vote.userId);
        const electorate = await this.#electorate(em, hold, [...approvals, userId], settings);
        const counted = decision === 'approve' ? [...approvals, userId] : approvals;
        const unseen = decision === 'approve' && hold.details.shown.erased && ERASED;
        const barred = electorate.barred(userId) ?? (unseen || undefined);
        return {
          type: 'vote',
          userId,
          decision,
          ...(barred !== undefined && { barred }),
          tally: tally(counted, hold.details.quorum ?? [], electorate),
          at,
        };
      },
      beside: async (em, shownHash, at) => {
        em.create(Vote, { tenantId, holdId: id, userId, decision, reason, shownHash, createdAt: new Date(at) });
        await em.flush();
      },
    });
  }

  /** A report on one condition. The last report counts; the hold is released when nothing else is missing. */
  async satisfy(
    tenantId: string,
    id: string,
    input: { condition_id: string; satisfied: boolean; evidence?: string | undefined },
    by: By,
  ): Promise<HoldView> {
    const settings = await this.#settings(tenantId);
    const { condition_id, satisfied } = input;
    const evidence = input.evidence === undefined ? undefined : visible(input.evidence);
    return this.#change(tenantId, id, by, {
      reason: evidence || undefined,
      detail: `${condition_id} is ${satisfied ? '' : 'not '}satisfied`,
      event: async (em, hold, snapshot, at) => ({
        type: 'satisfy',
        conditionId: condition_id,
        satisfied,
        ...(evidence !== undefined && { evidence }),
        tally: await this.#tally(em, hold, snapshot, settings),
        at,
      }),
    });
  }

  /**
   * Uses a released hold up. Of any number of calls, in any number of processes, one resolves; the others get
   * ALREADY_CONSUMED. Who gets the answer may act once; when the answer is lost the hold is used up all the same.
   */
  async consume(
    tenantId: string,
    id: string,
    input: { action_hash: string; agent_role: string; agent_id: string },
    by: By,
    detail?: string,
  ): Promise<HoldView> {
    try {
      return await this.#change(tenantId, id, by, {
        detail,
        event: async (_em, _hold, _snapshot, at) => ({
          type: 'consume',
          agentId: input.agent_id,
          agentRole: input.agent_role,
          actionHash: input.action_hash,
          at,
        }),
      });
    } catch (error) {
      if (error instanceof AppError && USE_REFUSALS.has(error.problem)) await this.refusedUse(tenantId, id, by, error);
      throw error;
    }
  }

  /**
   * Leaves an audit record of an attempt to use a hold that was refused. Somebody may try for ever: for each reason and
   * credential the first, second, fourth, eighth … attempt is recorded with its number, so that records grow by the
   * logarithm of the attempts; of many credentials the last ones share a count.
   */
  async refusedUse(tenantId: string, id: string, by: By, refusal: AppError): Promise<void> {
    await this.#db.transaction(tenantId, async (em) => {
      const hold = await lock(em, id);
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

  /** Writes down that a hold was consumed for a decision that was then not recorded: nobody acted on it. */
  async consumedInVain(tenantId: string, id: string, detail: string): Promise<void> {
    await this.#db.transaction(tenantId, (em) =>
      this.#audit(em, tenantId, {
        ...SYSTEM,
        action: 'escrow.consume_unrecorded',
        severity: 'warning',
        target: { type: 'escrow', id },
        detail,
      }),
    );
  }

  /** Takes back a hold that is held or released. */
  async cancel(tenantId: string, id: string, reason: string, by: By): Promise<HoldView> {
    return this.#change(tenantId, id, by, {
      reason,
      event: async (_em, _hold, _snapshot, at) => ({ type: 'cancel', at }),
    });
  }

  /**
   * Counts the approvals of every held hold again. To be called after roles, members, groups or vote settings changed;
   * what is shown is right after it, what is decided is right without it, since each event counts anew. Returns how many
   * holds it changed.
   */
  async recount(tenantId: string): Promise<number> {
    const settings = await this.#settings(tenantId);
    const rows = await this.#db.query<{ id: string }>(
      tenantId,
      `select distinct h.id from escrow_hold h join escrow_vote v on v.tenant_id = h.tenant_id and v.hold_id = h.id
       where h.tenant_id = $1 and h.status = 'held' and v.decision = 'approve'`,
      [tenantId],
    );
    let changed = 0;
    for (const { id } of rows) {
      const [before, after] = await this.#db.transaction(tenantId, async (em, notify) => {
        const hold = await lock(em, id);
        const was = hold.rowVersion;
        const at = await this.#now(em);
        await this.#step(em, notify, hold, at, SYSTEM, {
          event: async (_em, _hold, snapshot) => ({
            type: 'recount',
            tally: await this.#tally(em, hold, snapshot, settings),
            at,
          }),
        });
        return [was, hold.rowVersion];
      });
      if (before !== after) changed++;
    }
    return changed;
  }

  /**
   * The holds whose time has come, the most overdue first, and the milliseconds until the next one's time where there
   * are none. Not locked: `wake` looks again. Serves all tenants.
   */
  async due(limit: number, except: readonly string[] = []): Promise<{ holds: DueHold[]; next: number | null }> {
    // now() and not clock_timestamp(): only a stable value is looked up in the index
    const { rows } = await this.#db.owner.query<DueHold>(
      `select tenant_id, id from escrow_hold where wake_at <= coalesce($1::timestamptz, now())
         and not id = any($3::text[]) order by wake_at limit $2`,
      [this.#fixed(), limit, except],
    );
    if (rows.length > 0) return { holds: rows, next: null };
    const { rows: wait } = await this.#db.owner.query<{ ms: number | null }>(
      `select (extract(epoch from min(wake_at) - coalesce($1::timestamptz, now())) * 1000)::float8 as ms
       from escrow_hold where wake_at is not null and not id = any($2::text[])`,
      [this.#fixed(), except],
    );
    return { holds: [], next: wait[0]!.ms };
  }

  /**
   * Does to these holds what time asks for, in one transaction. A hold that is locked by somebody is left out: who has
   * it catches up with time themselves. Returns how many changed. May run twice and anywhere at once.
   */
  async wake(tenantId: string, ids: readonly string[]): Promise<number> {
    return this.#db.transaction(tenantId, async (em, notify) => {
      // in the order of the ids, so that two of these never wait for each other
      const holds = await em.find(
        Hold,
        { id: { $in: [...ids] }, wakeAt: { $ne: null } },
        { lockMode: LockMode.PESSIMISTIC_PARTIAL_WRITE, orderBy: { id: 'asc' } },
      );
      const now = await this.#now(em);
      let changed = 0;
      for (const hold of holds) if (await this.#elapse(em, notify, hold, now)) changed++;
      return changed;
    });
  }

  /** Whose these holds are; a hold that the tenant does not have is not in it. */
  async holders(
    tenantId: string,
    ids: readonly string[],
  ): Promise<Map<string, { agent_id: string; agent_role: string }>> {
    const rows = await this.#db.query<{ id: string; agent_id: string; agent_role: string }>(
      tenantId,
      'select id, agent_id, agent_role from escrow_hold where tenant_id = $1 and id = any($2)',
      [tenantId, ids],
    );
    return new Map(rows.map(({ id, ...holder }) => [id, holder]));
  }

  /**
   * Erases the arguments and the context of some of the holds from before a time, open ones too, and what was told of them
   * to subscribers. Resolves to how many holds and events it changed; zero when nothing is left.
   */
  async forget(tenantId: string, before: Date): Promise<number> {
    const { rowCount: holds } = await this.#db.owner.query(
      `update escrow_hold set row_version = row_version + 1,
         details = jsonb_set(details, '{shown}', details->'shown' || '{"arguments": null, "context": null, "erased": true}')
       where tenant_id = $1 and id in (
         select id from escrow_hold where tenant_id = $1 and created_at < $2
           and details->'shown'->'erased' is null order by id limit 500 for update)`,
      [tenantId, before],
    );
    const { rowCount: events } = await this.#db.owner.query(
      `update event_outbox set payload = payload - 'arguments' - 'context' where tenant_id = $1 and id in (
         select id from event_outbox where tenant_id = $1 and created_at < $2 and payload ? 'arguments'
         order by id limit 500 for update)`,
      [tenantId, before],
    );
    return (holds ?? 0) + (events ?? 0);
  }

  /** The hold as it is by now. NOT_FOUND when the tenant has no such hold. */
  async get(tenantId: string, id: string): Promise<HoldView> {
    return this.#db.transaction(tenantId, async (em) => {
      const hold = await em.findOne(Hold, { id });
      if (!hold) throw notFound();
      return this.#show(em, hold, await this.#now(em));
    });
  }

  /**
   * Where a hold's machine stands, and for each event that a person or a proxy can send, why it would be refused now;
   * null when it would not. For `userId` of nobody, `vote` is judged without a person.
   */
  async standing(tenantId: string, id: string, userId: string | null): Promise<Standing> {
    const settings = await this.#settings(tenantId);
    return this.#db.transaction(tenantId, async (em) => {
      const hold = await em.findOne(Hold, { id });
      if (!hold) throw notFound();
      const at = await this.#now(em);
      const [snapshot] = elapse(restore(hold), at);
      const { context } = snapshot;
      const electorate = await this.#electorate(em, hold, userId === null ? [] : [userId], settings);
      const barred = userId === null ? undefined : electorate.barred(userId);
      const { tally, agentId, agentRole, actionHash, conditions } = context;
      const ask = (event: HoldEvent) => holdRefusal(snapshot, event) ?? null;
      const condition = conditions.find(({ satisfied }) => !satisfied) ?? conditions[0];
      return {
        state: snapshot.value,
        version: HOLD_MACHINE_VERSION,
        refusals: {
          vote: ask({ type: 'vote', userId: userId ?? '', decision: 'approve', ...(barred && { barred }), tally, at }),
          satisfy: ask({ type: 'satisfy', conditionId: condition?.id ?? '', satisfied: true, tally, at }),
          consume: ask({ type: 'consume', agentId, agentRole, actionHash, at }),
          cancel: ask({ type: 'cancel', at }),
        },
      };
    });
  }

  /**
   * The newest first, or the one first that ends soonest. A status is the one that a hold has by now, whether or not its
   * timer has been there. `next` opens the page after: a place in the order, so that holds which come or end meanwhile
   * move no other hold over it.
   */
  async list(
    tenantId: string,
    filter: {
      status?: HoldState | undefined;
      agent_role?: string | undefined;
      agent_id?: string | undefined;
      action_type?: string | undefined;
      min_value?: number | undefined;
      max_value?: number | undefined;
      order: HoldOrder;
      after?: string | undefined;
      limit: number;
      offset: number;
    },
  ): Promise<{ holds: HoldView[]; total: number; next: string | null }> {
    const { order, limit } = filter;
    const value = {
      ...(filter.min_value !== undefined && { $gte: filter.min_value }),
      ...(filter.max_value !== undefined && { $lte: filter.max_value }),
    };
    const place = filter.after === undefined ? undefined : placeOf(filter.after, order);
    return this.#db.transaction(tenantId, async (em) => {
      const now = await this.#now(em);
      const where: QBFilterQuery<HoldRow> = {
        ...(filter.status && statusIs(filter.status, new Date(now))),
        ...(filter.agent_role !== undefined && { agentRole: filter.agent_role }),
        ...(filter.agent_id !== undefined && { agentId: filter.agent_id }),
        ...(filter.action_type !== undefined && { actionType: filter.action_type }),
        ...(Object.keys(value).length > 0 && { estimatedValue: value }),
      };
      const total = await em.count(Hold, where);
      const orderBy =
        order === 'expires_at'
          ? ({ expiresAt: 'asc', id: 'asc' } as const)
          : ({ createdAt: 'desc', id: 'desc' } as const);
      const holds: HoldView[] = [];
      let last: HoldRow | undefined;
      let bytes = 0;
      // few at a time, so that no more is read than is answered
      for (
        let after = place;
        ;
        after = { at: order === 'expires_at' ? last!.expiresAt : last!.createdAt, id: last!.id }
      ) {
        const rows = await em.find(Hold, after ? { $and: [where, beyond(after, order)] } : where, {
          orderBy,
          limit: Math.min(PAGE_STEP, limit - holds.length) + 1,
          offset: last ? 0 : filter.offset,
        });
        const step = rows.slice(0, Math.min(PAGE_STEP, limit - holds.length));
        const votes = await this.#votes(em, step);
        for (const [n, hold] of step.entries()) {
          const view = holdView(hold, now, votes.get(hold.id));
          bytes += Buffer.byteLength(JSON.stringify(view));
          if (bytes > PAGE_BYTES && holds.length > 0) return { holds, total, next: cursorOf(last!, order) };
          holds.push(view);
          last = hold;
          const more = n + 1 < rows.length;
          if (!more) return { holds, total, next: null };
        }
        if (!last || step.length === 0) return { holds, total, next: null };
        if (holds.length >= limit) return { holds, total, next: cursorOf(last, order) };
        em.clear();
      }
    });
  }

  #fixed(): Date | null {
    return this.#clock ? new Date(this.#clock.now()) : null;
  }

  async #now(em: EntityManager): Promise<number> {
    if (this.#clock) return this.#clock.now();
    const rows = await em.execute<{ ms: number | string }[]>(
      'select floor(extract(epoch from clock_timestamp()) * 1000)::float8 as ms',
    );
    return Number(rows[0]!.ms);
  }

  /**
   * Who loses the race for the place of a hold looks again: the winner's hold may be gone (expired, decided) by then, and
   * it is the loser's turn.
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

  /** Rejects with a UniqueConstraintViolationException when another hold has the place. */
  async #insert(
    em: EntityManager,
    notify: Notify,
    tenantId: string,
    r: HoldRequest,
    by: By,
    now: number,
    more: { source: 'evaluate' | 'proxy'; idempotency?: { key: string; hash: string } | undefined },
  ): Promise<HoldRow> {
    const id = newId('esc', now);
    const kind = holdKind(r.hold_type);
    const expiresAt = now + r.ttl_seconds * 1000;
    const releaseAt = kind.takesDelay ? now + (r.release_after_seconds ?? r.ttl_seconds) * 1000 : undefined;
    const quorum = r.quorum ?? [];
    const approvals = Math.max(r.required_approvals, kind.leastApprovals, seatsOf(quorum));
    const conditions = (r.conditions ?? []).map(({ condition_id, description }) => ({
      condition_id,
      ...(description !== undefined && { description: visible(description) }),
    }));
    const conditionIds = conditions.map(({ condition_id }) => condition_id);
    const [snapshot, effects] = createHold({
      agentId: r.agent_id,
      agentRole: r.agent_role,
      actionHash: r.action_hash,
      release: RELEASES[r.hold_type]({ approvals, conditions: conditionIds, releaseAt }),
      conditions: conditionIds,
      expiresAt,
      executeWithin: r.execute_within_seconds === undefined ? null : r.execute_within_seconds * 1000,
    });
    const { action_type, estimated_value, value_currency, ...shown } = r.action;
    const details: HoldDetails = {
      policy_id: r.policy_id,
      rules: r.rules,
      reason: r.reason === undefined ? undefined : visible(r.reason),
      quorum: quorum.length > 0 ? quorum : undefined,
      conditions,
      execute_within_seconds: r.execute_within_seconds,
      notify_targets: r.notify_targets,
      session_id: r.session_id,
      shown,
      release_at: releaseAt === undefined ? undefined : new Date(releaseAt).toISOString(),
    };
    const { releasesAt, endsAt } = timeline(snapshot);
    const hold = em.create(Hold, {
      tenantId,
      id,
      status: snapshot.value,
      machineVersion: HOLD_MACHINE_VERSION,
      machineContext: snapshot.context,
      agentRole: r.agent_role,
      agentId: r.agent_id,
      actionType: action_type,
      actionSummary: visible(r.action_summary),
      actionHash: r.action_hash,
      holdType: r.hold_type,
      requiredApprovals: approvals,
      currentApprovals: 0,
      details,
      estimatedValue: estimated_value,
      valueCurrency: value_currency,
      riskScore: r.risk_score ?? null,
      ttlSeconds: r.ttl_seconds,
      source: more.source,
      createdBy: by.actor.id,
      barredVoters: await this.#keyPeople(em, r.agent_id, by.actor.id),
      refusedUses: {},
      idempotencyKey: more.idempotency?.key ?? null,
      idempotencyHash: more.idempotency?.hash ?? null,
      createdAt: new Date(now),
      expiresAt: new Date(expiresAt),
      releasesAt: releasesAt === null ? null : new Date(releasesAt),
      endsAt: endsAt === null ? null : new Date(endsAt),
      wakeAt: wakeOf(effects) ?? null,
    });
    await em.flush();
    const detail = `${r.hold_type}, ${approvals} approvals`;
    const afterHash = shownHash(holdView(hold, now));
    const step = stepOf({ type: 'xstate.init' }, snapshot);
    await this.#perform(em, notify, hold, now, [step], [{ effects, by, detail, afterHash }]);
    return hold;
  }

  /**
   * Everybody who owns or made a key of this agent, or the key that opens a hold, whether the key still works or not. Who
   * made a key with another key is who made that one.
   */
  async #keyPeople(em: EntityManager, agentId: string, openedWith: string): Promise<string[]> {
    const keys = await em.find(AgentKey, { agentId });
    const makers = keys.flatMap(({ createdBy }) => createdBy ?? []);
    const apiKeys = await em.find(ApiKey, { id: { $in: [...new Set([...makers, openedWith])] } });
    const ids = new Set([
      ...makers,
      ...keys.flatMap(({ ownerId }) => ownerId ?? []),
      ...apiKeys.flatMap(({ createdBy }) => createdBy ?? []),
    ]);
    const people = await em.find(Member, { id: { $in: [...ids] } }, { orderBy: { id: 'asc' } });
    return people.map(({ id }) => id);
  }

  /** One event for one hold. Rejects with the reason of the refusal table when the machine does not take it. */
  async #change(tenantId: string, id: string, by: By, change: Change): Promise<HoldView> {
    return this.#db.transaction(tenantId, async (em, notify) => {
      const hold = await lock(em, id);
      const now = await this.#now(em);
      await this.#step(em, notify, hold, now, by, change);
      return this.#show(em, hold, now);
    });
  }

  async #step(em: EntityManager, notify: Notify, hold: HoldRow, now: number, by: By, change: Change): Promise<void> {
    const steps: Step[] = [];
    const [snapshot, passed] = elapse(restore(hold), now, (...step) => steps.push(stepOf(...step)));
    const event = await change.event(em, hold, snapshot, now);
    const refused = holdRefusal(snapshot, event);
    if (refused) throw new AppError(refused.code, refused.detail);
    const [next, effects] = stepHold(snapshot, event);
    if (passed.length + effects.length === 0) return;
    steps.push(stepOf(event, next));
    const beforeHash = shownHash(await this.#show(em, hold, now));
    store(hold, next, [...passed, ...effects]);
    await em.flush();
    await change.beside?.(em, beforeHash, now);
    const afterHash = shownHash(await this.#show(em, hold, now));
    const { reason, detail } = change;
    await this.#perform(em, notify, hold, now, steps, [
      { effects: passed, by: SYSTEM, afterHash: beforeHash },
      { effects, by, reason, detail, beforeHash, afterHash },
    ]);
  }

  /** Stores what time has done to a locked hold by now; false when it has done nothing. */
  async #elapse(em: EntityManager, notify: Notify, hold: HoldRow, now: number): Promise<boolean> {
    const steps: Step[] = [];
    const [next, effects] = elapse(restore(hold), now, (...step) => steps.push(stepOf(...step)));
    if (effects.length === 0) return false;
    store(hold, next, effects);
    await em.flush();
    const afterHash = shownHash(await this.#show(em, hold, now));
    await this.#perform(em, notify, hold, now, steps, [{ effects, by: SYSTEM, afterHash }]);
    return true;
  }

  /** Writes what the machine named. The audit records come last: they lock the tenant's audit chain until the commit. */
  async #perform(
    em: EntityManager,
    notify: Notify,
    hold: HoldRow,
    now: number,
    steps: readonly Step[],
    done: readonly Done[],
  ): Promise<void> {
    await notify('holds', hold.id, steps);
    const events = done.flatMap(({ effects }) => effects.filter((effect) => effect.type === 'emit'));
    for (const [n, { params }] of events.entries()) {
      await addEvent(em, hold.tenantId, {
        type: params.event,
        // a millisecond apart, so that the events of one transaction keep their order
        at: now + n,
        payload: eventPayload(hold),
      });
    }
    for (const { effects, by, ...more } of done) {
      for (const effect of effects) {
        if (effect.type !== 'audit') continue;
        await this.#audit(em, hold.tenantId, {
          ...by,
          ...more,
          action: effect.params.action,
          target: { type: 'escrow', id: hold.id },
        });
      }
    }
  }

  async #tally(em: EntityManager, hold: HoldRow, { context }: HoldSnapshot, settings: VoteSettings) {
    const approvals = context.votes.filter((vote) => vote.decision === 'approve').map((vote) => vote.userId);
    return tally(approvals, hold.details.quorum ?? [], await this.#electorate(em, hold, approvals, settings));
  }

  /** Who of these people may vote on the hold now, from the member rows as they are, and why the others may not. */
  async #electorate(
    em: EntityManager,
    hold: HoldRow,
    people: readonly string[],
    settings: VoteSettings,
  ): Promise<Electorate & { barred(userId: string): string | undefined }> {
    const groups = new Map(Object.entries(settings.approver_groups).map(([group, ids]) => [group, new Set(ids)]));
    const ofKeys = new Set(hold.barredVoters);
    const authors = new Set<string>();
    const approvers = new Set<string>();
    if (people.length > 0) {
      const members = await em.find(Member, { id: { $in: [...people] }, removedAt: null });
      for (const { id, roles } of members) if (hasRole(roles as Role[], 'approver')) approvers.add(id);
      // a key that was made for the agent since then bars its people too
      for (const id of await this.#keyPeople(em, hold.agentId, hold.createdBy)) ofKeys.add(id);
      if (!settings.policy_author_may_vote) {
        const ids = [...hold.details.rules.map(({ id }) => id.split('#')[0]!), hold.details.policy_id ?? ''];
        const policies = await em.find(Policy, { id: { $in: ids }, liveVersion: { $ne: null } });
        const live = policies.map(({ id, liveVersion }) => ({ policyId: id, version: liveVersion! }));
        const revisions = live.length > 0 ? await em.find(PolicyRevision, { $or: live }) : [];
        for (const { authorId } of revisions) authors.add(authorId);
      }
    }
    const barred = (userId: string): string | undefined => {
      if (ofKeys.has(userId)) return 'who owns or made a key of the agent, or the key that asked, does not vote';
      if (authors.has(userId)) return 'the author of the live policy does not vote in this tenant';
      return approvers.has(userId) ? undefined : 'this needs the role approver';
    };
    return { groups, barred, has: (userId: string) => barred(userId) === undefined };
  }

  async #show(em: EntityManager, hold: HoldRow, now: number): Promise<HoldView> {
    return holdView(hold, now, (await this.#votes(em, [hold])).get(hold.id));
  }

  async #votes(em: EntityManager, holds: readonly HoldRow[]): Promise<Map<string, VoteView[]>> {
    const ids = holds.filter((hold) => hold.machineContext.votes.length > 0).map(({ id }) => id);
    if (ids.length === 0) return new Map();
    const rows = await em.find(Vote, { holdId: { $in: ids } }, { orderBy: { createdAt: 'asc', userId: 'asc' } });
    const views = Map.groupBy(rows, ({ holdId }) => holdId);
    return new Map([...views].map(([id, votes]) => [id, votes.map(voteView)]));
  }
}

function voteView({ userId, decision, reason, shownHash, createdAt }: InferEntity<typeof Vote>): VoteView {
  return { user_id: userId, decision, reason, shown_hash: shownHash, at: createdAt.toISOString() };
}

interface Standing {
  state: HoldState;
  version: number;
  refusals: Record<'vote' | 'satisfy' | 'consume' | 'cancel', { code: string; detail: string } | null>;
}

export interface DueHold {
  tenant_id: string;
  id: string;
}

interface Change {
  event: (em: EntityManager, hold: HoldRow, snapshot: HoldSnapshot, at: number) => Promise<HoldEvent>;
  /** What is stored beside the hold; `shown` is the hash of the hold as it was before. */
  beside?: (em: EntityManager, shown: string, at: number) => Promise<unknown>;
  reason?: string | undefined;
  detail?: string | undefined;
}

/** Effects with who brought them about and what the audit chain says of it. */
interface Done {
  effects: readonly HoldEffect[];
  by: By;
  reason?: string | undefined;
  detail?: string | undefined;
  beforeHash?: string | undefined;
  afterHash?: string | undefined;
}

const notFound = () => new AppError('NOT_FOUND', 'there is no such hold');

async function lock(em: EntityManager, id: string): Promise<HoldRow> {
  const hold = await em.findOne(Hold, { id }, { lockMode: LockMode.PESSIMISTIC_WRITE });
  if (!hold) throw notFound();
  return hold;
}

function stepOf(event: Step['event'], { value: state, context }: HoldSnapshot): Step {
  return { event, state, context };
}

function restore(hold: HoldRow): HoldSnapshot {
  return restoreHold({ state: hold.status, context: hold.machineContext, version: hold.machineVersion });
}

function store(hold: HoldRow, snapshot: HoldSnapshot, effects: readonly HoldEffect[]): void {
  const { releasesAt, endsAt } = timeline(snapshot);
  hold.status = snapshot.value;
  hold.machineContext = snapshot.context;
  hold.machineVersion = HOLD_MACHINE_VERSION;
  hold.currentApprovals = snapshot.context.tally.approvals;
  hold.releasesAt = releasesAt === null ? null : new Date(releasesAt);
  hold.endsAt = endsAt === null ? null : new Date(endsAt);
  const wake = wakeOf(effects);
  if (wake !== undefined) hold.wakeAt = wake;
}

/** The timer that the effects leave; undefined when they leave it as it was. */
function wakeOf(effects: readonly HoldEffect[]): Date | null | undefined {
  const last = effects.findLast((effect) => effect.type === 'wakeAt');
  if (!last) return undefined;
  return last.params.at === null ? null : new Date(last.params.at);
}

/** The rows that are in this status by `now`: what time does to a hold stands in its row in advance. */
function statusIs(status: HoldState, now: Date): QBFilterQuery<HoldRow> {
  switch (status) {
    case 'held':
      return { status, wakeAt: { $gt: now } };
    case 'released':
      return { endsAt: { $gt: now }, $or: [{ status }, { status: 'held', releasesAt: { $lte: now } }] };
    case 'expired':
      return { $or: [{ status }, { status: { $in: ['held', 'released'] }, endsAt: { $lte: now } }] };
    default:
      return { status };
  }
}

/** A page of holds is read in steps, and ends with the hold that would make it longer than this; one is always in it. */
const PAGE_STEP = 20;
const PAGE_BYTES = 2 * 1024 * 1024;

export const HOLD_ORDERS = ['created_at', 'expires_at'] as const;
export type HoldOrder = (typeof HOLD_ORDERS)[number];
/** The last hold of a page, by what the list is ordered by. */
interface Place {
  at: Date;
  id: string;
}

/** What comes after a place in the order. The bound on the time alone is what the index is entered by. */
function beyond({ at, id }: Place, order: HoldOrder): QBFilterQuery<HoldRow> {
  return order === 'expires_at'
    ? { expiresAt: { $gte: at }, $or: [{ expiresAt: { $gt: at } }, { id: { $gt: id } }] }
    : { createdAt: { $lte: at }, $or: [{ createdAt: { $lt: at } }, { id: { $lt: id } }] };
}

/** `h1`, the order and the place. Opaque to clients, so that it may change; the version tells old ones apart. */
function cursorOf(last: HoldRow, order: HoldOrder): string {
  const at = order === 'expires_at' ? last.expiresAt : last.createdAt;
  return Buffer.from(`h1:${order}:${at.getTime()}:${last.id}`).toString('base64url');
}

function placeOf(cursor: string, order: HoldOrder): Place {
  const text = Buffer.from(cursor, 'base64url').toString('latin1');
  const [, of, at, id] = /^h1:(\w{1,20}):(\d{1,15}):(esc_\w{1,60})$/.exec(text) ?? [];
  const message = of && of !== order ? 'is a cursor of another order' : 'is not a cursor of this list';
  if (of !== order) throw new AppError('VALIDATION_FAILED', undefined, { faults: [{ pointer: '?after', message }] });
  return { at: new Date(Number(at)), id: id! };
}

/** What is wrong with a request for a hold, as its type sees it. */
function faultsOf(request: HoldRequest): Fault[] {
  const kind = holdKind(request.hold_type);
  const faults: Fault[] = [];
  const fault = (field: string, message: string) => faults.push({ pointer: `/${field}`, message });
  const type = request.hold_type;
  const delay = request.release_after_seconds;
  const ids = (request.conditions ?? []).map(({ condition_id }) => condition_id);
  if (request.required_approvals < kind.leastApprovals) {
    fault('required_approvals', `a ${type} hold needs at least ${kind.leastApprovals}`);
  }
  if (kind.needsConditions && ids.length === 0) fault('conditions', `a ${type} hold needs at least one condition`);
  if (new Set(ids).size < ids.length) fault('conditions', 'names a condition twice');
  if (kind.takesDelay && delay === undefined) fault('release_after_seconds', `a ${type} hold needs it`);
  if (!kind.takesDelay && delay !== undefined) fault('release_after_seconds', `a ${type} hold is not released by time`);
  if (delay !== undefined && delay >= request.ttl_seconds) {
    fault('release_after_seconds', 'must be shorter than ttl_seconds, or the hold expires before it is released');
  }
  if (new Set((request.quorum ?? []).map(({ group }) => group)).size < (request.quorum ?? []).length) {
    fault('quorum', 'names a group twice');
  }
  return faults;
}

/** Of arguments and context a message to subscribers has so many characters. */
const MOST_TOLD = 300;

/** What subscribers are told of a hold. */
function eventPayload(hold: HoldRow) {
  const { shown, reason, notify_targets } = hold.details;
  return {
    escrow_id: hold.id,
    agent_role: hold.agentRole,
    agent_id: hold.agentId,
    action_type: hold.actionType,
    action_summary: hold.actionSummary,
    estimated_value: hold.estimatedValue ?? null,
    value_currency: hold.valueCurrency ?? null,
    risk_score: hold.riskScore ?? null,
    hold_type: hold.holdType,
    required_approvals: hold.requiredApprovals,
    ttl: hold.ttlSeconds,
    expires_at: hold.expiresAt.toISOString(),
    created_at: hold.createdAt.toISOString(),
    notify_targets,
    tool_server: shown.tool_server,
    tool_name: shown.tool_name,
    method: shown.method,
    resource: shown.resource,
    arguments: told(shown.arguments),
    context: told(shown.context),
    reason: reason ?? null,
  };
}

/** The beginning of a value as JSON; null when there is nothing. */
function told(value: unknown): string | null {
  if (value === null || value === undefined) return null;
  const text = [...JSON.stringify(value)];
  return text.length <= MOST_TOLD ? text.join('') : `${text.slice(0, MOST_TOLD - 1).join('')}…`;
}

export type HoldView = ReturnType<typeof holdView>;

/** A hold as it is shown at `now`: with what time has done to it, whether or not its timer has been there. */
export function holdView(hold: HoldRow, now: number, votes: VoteView[] = []) {
  const { details } = hold;
  const { shown } = details;
  const [{ value: status, context }] = elapse(restore(hold), now);
  // before the first vote nothing was counted
  const missing = context.votes.length === 0 ? (details.quorum ?? []) : (context.tally.missing ?? []);
  const time = (at: number | null) => (at === null ? undefined : new Date(at).toISOString());
  const ended = time(context.endedAt);
  const released = time(context.releasedAt);
  const executeBy = time(context.executeBy);
  const reports = new Map(context.conditions.map((condition) => [condition.id, condition]));
  return {
    id: hold.id,
    agent_role: hold.agentRole,
    agent_id: hold.agentId,
    source: hold.source,
    opened_by: hold.createdBy,
    action_type: hold.actionType,
    tool_server: shown.tool_server,
    tool_name: shown.tool_name,
    method: shown.method,
    resource: shown.resource,
    arguments_preview: shown.arguments,
    context_preview: shown.context,
    cut: shown.cut,
    erased: shown.erased ?? false,
    estimated_value: hold.estimatedValue ?? null,
    value_currency: hold.valueCurrency ?? null,
    action_summary: hold.actionSummary,
    risk_score: hold.riskScore ?? null,
    action_hash: hold.actionHash,
    status,
    hold_type: hold.holdType,
    required_approvals: hold.requiredApprovals,
    current_approvals: context.tally.approvals,
    missing_seats: missing,
    ttl_seconds: hold.ttlSeconds,
    expires_at: hold.expiresAt.toISOString(),
    created_at: hold.createdAt.toISOString(),
    policy_id: details.policy_id,
    rule_ids: details.rules.map(({ id }) => id),
    rules: details.rules,
    ...(details.reason !== undefined && { reason: details.reason }),
    ...(details.quorum && { quorum: details.quorum }),
    conditions: details.conditions.map(({ condition_id, description }) => {
      const report = reports.get(condition_id);
      const reported = time(report?.reportedAt ?? null);
      return {
        condition_id,
        ...(description !== undefined && { description }),
        satisfied: report?.satisfied ?? false,
        ...(report?.evidence !== undefined && { evidence: report.evidence }),
        ...(reported !== undefined && { reported_at: reported }),
      };
    }),
    votes,
    barred_voters: hold.barredVoters,
    ...(details.session_id !== undefined && { session_id: details.session_id }),
    notify_targets: details.notify_targets,
    ...(details.release_at !== undefined && { release_at: details.release_at }),
    ...(details.execute_within_seconds !== undefined && { execute_within_seconds: details.execute_within_seconds }),
    ...(released !== undefined && { released_at: released }),
    ...(executeBy !== undefined && { execute_by: executeBy }),
    ...(status === 'rejected' && ended && { rejected_at: ended }),
    ...(status === 'expired' && ended && { expired_at: ended }),
    ...(status === 'cancelled' && ended && { cancelled_at: ended }),
    ...(status === 'consumed' && ended && { consumed_at: ended }),
  };
}

/** The hash of a hold as it is shown: what a vote and an audit record are bound to. */
function shownHash(view: HoldView): string {
  return sha256Tag(canonicalJson(view));
}
