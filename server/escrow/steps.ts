import { type EntityManager, LockMode } from '@mikro-orm/postgresql';
import { bringBack } from '../../db/asides.ts';
import { Hold, type HoldDetails, type HoldRow } from '../../db/entities/index.ts';
import type { Notify, WriteAudit } from '../../db/index.ts';
import type { Step } from '../../db/notices.ts';
import { addEvent, addNews } from '../../db/outbox.ts';
import {
  createHold,
  elapse,
  HOLD_MACHINE_VERSION,
  type HoldEffect,
  type HoldEvent,
  type HoldSnapshot,
  holdRefusal,
  stepHold,
  timeline,
} from '../../machines/escrow.ts';
import { seatsOf } from '../domain/annotations.ts';
import type { Doer } from '../domain/audit.ts';
import { holdKind } from '../domain/hold-kinds.ts';
import { AppError } from '../errors.ts';
import { newId } from '../lib/ids.ts';
import { visible } from '../lib/visible.ts';
import { countOf, keyPeople, type VoteSettings } from './electorate.ts';
import { RELEASES } from './kinds.ts';
import type { HoldRequest } from './terms.ts';
import { eventPayload, holdNotFound, holdView, restore, showHold, shownHash } from './view.ts';

/** The actor for what time does. */
export const SYSTEM: Doer = { actor: { type: 'system', id: 'control-plane' } };

/** Why a release ends that people or systems no longer stand behind. */
export const WITHDRAWN =
  'who approved it, or reported its conditions, may no longer do so, and the others are not enough';

/** One event for one hold, to the extent that it depends on the hold. */
export interface Change {
  event: (
    em: EntityManager,
    hold: HoldRow,
    snapshot: HoldSnapshot,
    at: number,
    settings: VoteSettings,
  ) => Promise<HoldEvent>;
  /** Stored together with the hold; `shown` is the hash of the hold as it was before. */
  beside?: (em: EntityManager, shown: string, at: number) => Promise<unknown>;
  /** The hash of the hold that the actor has read. */
  seen?: string | undefined;
  reason?: string | undefined;
  detail?: string | undefined;
}

/** Effects, who caused them, and what the audit chain records about them. */
interface Outcome {
  effects: readonly HoldEffect[];
  by: Doer;
  reason?: string | undefined;
  detail?: string | undefined;
  beforeHash?: string | undefined;
  afterHash?: string | undefined;
}

/**
 * The steps of holds within the caller's transactions: the machine takes an event or gives the reason why not, and the hold, its
 * timer, audit records and outbox rows are stored together. All but `insert` need the hold's row to be locked.
 */
export class HoldSteps {
  readonly #audit: WriteAudit;

  constructor(audit: WriteAudit) {
    this.#audit = audit;
  }

  /** Rejects with a UniqueConstraintViolationException when the same hold is open, or has the same idempotency key. */
  async insert(
    em: EntityManager,
    notify: Notify,
    tenantId: string,
    r: HoldRequest,
    by: Doer,
    now: number,
    more: {
      source: 'evaluate' | 'proxy';
      idempotency?: { line: string; key: string; hash: string } | undefined;
      traceparent?: string | undefined;
    },
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
      report: r.report,
      execute_within_seconds: r.execute_within_seconds,
      notify_targets: r.notify_targets,
      session_id: r.session_id,
      shown,
      traceparent: more.traceparent,
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
      toolServer: shown.tool_server ?? '',
      toolName: shown.tool_name ?? '',
      ruleId: r.rules[0]?.id ?? '',
      estimatedValue: estimated_value,
      valueCurrency: value_currency,
      riskScore: r.risk_score ?? null,
      ttlSeconds: r.ttl_seconds,
      source: more.source,
      createdBy: by.actor.id,
      barredVoters: (await keyPeople(em, tenantId, { agentId: r.agent_id, agentRole: r.agent_role }, by.actor.id)).all,
      refusedUses: {},
      idempotencyLine: more.idempotency?.line ?? null,
      idempotencyKey: more.idempotency?.key ?? null,
      idempotencyHash: more.idempotency?.hash ?? null,
      createdAt: new Date(now),
      expiresAt: new Date(expiresAt),
      releasesAt: releasesAt === null ? null : new Date(releasesAt),
      endsAt: endsAt === null ? null : new Date(endsAt),
      wakeAt: wakeOf(effects) ?? null,
    });
    await em.flush();
    // read again by svc-verify: see approvalsOf
    const detail = [
      r.hold_type,
      plural(approvals, 'approval'),
      ...(conditions.length > 0 ? [plural(conditions.length, 'condition')] : []),
      ...(releaseAt === undefined ? [] : [`after ${(releaseAt - now) / 1000} seconds`]),
      ...quorum.map(({ group, count }) => `${count} of ${group}`),
    ].join(', ');
    const afterHash = shownHash(holdView(hold, now));
    const step = stepOf({ type: 'xstate.init' }, snapshot);
    await addNews(em, tenantId, { kind: 'hold', id, at: now });
    await this.#perform(em, notify, hold, now, [step], [{ effects, by, detail, afterHash }]);
    return hold;
  }

  /**
   * Applies what time has done by `now`, then the event. Rejects with the reason in the refusal table if the machine does not
   * take it, and with VERSION_CHANGED if the hold is no longer as the actor has `seen` it.
   */
  async take(
    em: EntityManager,
    notify: Notify,
    settings: VoteSettings,
    hold: HoldRow,
    now: number,
    by: Doer,
    change: Change,
  ): Promise<void> {
    const { snapshot, byTime, steps } = await pass(em, settings, hold, now);
    const event = await change.event(em, hold, snapshot, now, settings);
    const refused = holdRefusal(snapshot, event);
    if (refused) throw new AppError(refused.code, refused.detail);
    const [next, effects] = stepHold(snapshot, event);
    if (byTime.length + effects.length === 0) return;
    steps.push(stepOf(event, next));
    const beforeHash = shownHash(await showHold(em, hold, now));
    if (change.seen !== undefined && change.seen !== beforeHash) {
      throw new AppError('VERSION_CHANGED', 'the hold has changed since you read it: read it again');
    }
    store(hold, next, [...byTime, ...effects]);
    await em.flush();
    await change.beside?.(em, beforeHash, now);
    await bringBack(em, hold.tenantId, { holds: [hold.id] });
    const afterHash = shownHash(await showHold(em, hold, now));
    const { reason, detail } = change;
    await this.#perform(em, notify, hold, now, steps, [
      { effects: byTime, by: SYSTEM, afterHash: beforeHash },
      { effects, by, reason, detail, beforeHash, afterHash },
    ]);
  }

  /**
   * Counts the approvals and reports of a locked hold again. A release that they no longer carry ends as cancelled: resolves to
   * whether it did.
   */
  async recount(
    em: EntityManager,
    notify: Notify,
    settings: VoteSettings,
    hold: HoldRow,
    at: number,
  ): Promise<boolean> {
    const [{ value: before }] = elapse(restore(hold), at);
    await this.take(em, notify, settings, hold, at, SYSTEM, {
      ...(before === 'released' && { reason: WITHDRAWN }),
      event: async (_em, _hold, snapshot) => ({
        type: 'recount',
        tally: (await countOf(em, hold, snapshot, settings)).tally(),
        at,
      }),
    });
    return before === 'released' && hold.status === 'cancelled';
  }

  /** Stores what time has done by now to locked holds of a tenant. Resolves to the number of holds changed. */
  async elapse(
    em: EntityManager,
    notify: Notify,
    settings: VoteSettings,
    holds: readonly HoldRow[],
    now: number,
  ): Promise<number> {
    const changed: { hold: HoldRow; steps: Step[]; effects: HoldEffect[] }[] = [];
    for (const hold of holds) {
      const { snapshot, byTime: effects, steps } = await pass(em, settings, hold, now);
      if (effects.length === 0) continue;
      store(hold, snapshot, effects);
      changed.push({ hold, steps, effects });
    }
    if (changed.length === 0) return 0;
    await em.flush();
    // for all of them first, because each hold's audit records lock the chain
    await bringBack(em, changed[0]!.hold.tenantId, { holds: changed.map(({ hold }) => hold.id) });
    for (const { hold, steps, effects } of changed) {
      const afterHash = shownHash(await showHold(em, hold, now));
      await this.#perform(em, notify, hold, now, steps, [{ effects, by: SYSTEM, afterHash }]);
    }
    return changed.length;
  }

  /** Writes what the machine asks for. The audit records come last: they lock the tenant's audit chain until the commit. */
  async #perform(
    em: EntityManager,
    notify: Notify,
    hold: HoldRow,
    now: number,
    steps: readonly Step[],
    outcomes: readonly Outcome[],
  ): Promise<void> {
    await notify('holds', hold.id, steps);
    const events = outcomes.flatMap(({ effects }) => effects.filter((effect) => effect.type === 'emit'));
    for (const [n, { params }] of events.entries()) {
      await addEvent(em, hold.tenantId, {
        type: params.event,
        // a millisecond apart, so that the events of one transaction keep their order
        at: now + n,
        payload: eventPayload(hold),
      });
    }
    for (const { effects, by, ...more } of outcomes) {
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
}

/** The hold, locked for a step until the transaction ends. NOT_FOUND when the tenant has no such hold. */
export function lockHold(em: EntityManager, id: string): Promise<HoldRow> {
  return locked(em, id, LockMode.PESSIMISTIC_WRITE);
}

/** The same for a caller that only reads it: no step is taken until the transaction ends. */
export function lockHoldForRead(em: EntityManager, id: string): Promise<HoldRow> {
  return locked(em, id, LockMode.PESSIMISTIC_READ);
}

async function locked(em: EntityManager, id: string, lockMode: LockMode): Promise<HoldRow> {
  const hold = await em.findOne(Hold, { id }, { lockMode });
  if (!hold) throw holdNotFound();
  return hold;
}

/**
 * What time has done to a hold by `now`. Before time releases a hold with reports, the reports are counted again, as with every
 * event, because the people behind them may have lost the right to report. If the hold keeps waiting as a result, the count is
 * stored in it.
 */
async function pass(
  em: EntityManager,
  settings: VoteSettings,
  hold: HoldRow,
  now: number,
): Promise<{ snapshot: HoldSnapshot; byTime: HoldEffect[]; steps: Step[] }> {
  const steps: Step[] = [];
  let snapshot = restore(hold);
  let counted: HoldEffect[] = [];
  const { releasesAt } = timeline(snapshot);
  if (releasesAt !== null && releasesAt <= now && snapshot.context.conditions.some(({ satisfied }) => satisfied)) {
    const { tally } = await countOf(em, hold, snapshot, settings);
    const event: HoldEvent = { type: 'recount', tally: tally(), at: releasesAt };
    const [next, effects] = stepHold(snapshot, event);
    if (next.value === 'held' && effects.length > 0) {
      store(hold, next, effects);
      steps.push(stepOf(event, next));
      [snapshot, counted] = [next, effects];
    }
  }
  const [elapsed, effects] = elapse(snapshot, now, (...step) => steps.push(stepOf(...step)));
  return { snapshot: elapsed, byTime: [...counted, ...effects], steps };
}

const plural = (count: number, noun: string) => `${count} ${noun}${count === 1 ? '' : 's'}`;

function stepOf(event: Step['event'], { value: state, context }: HoldSnapshot): Step {
  return { event, state, context };
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

/** The timer that the effects set; undefined if they leave it unchanged. */
function wakeOf(effects: readonly HoldEffect[]): Date | null | undefined {
  const last = effects.findLast((effect) => effect.type === 'wakeAt');
  if (!last) return undefined;
  return last.params.at === null ? null : new Date(last.params.at);
}
