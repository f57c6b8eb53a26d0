import { Hold, type HoldDetails, type HoldRow } from '../../db/entities/index.ts';
import type { Database } from '../../db/index.ts';
import type { Actor, WriteAudit } from '../auth/audit.ts';
import { AppError } from '../errors.ts';
import { canonicalJson } from '../lib/canonical-json.ts';
import type { Clock } from '../lib/clock.ts';
import { sha256Tag } from '../lib/crypto.ts';
import { newId } from '../lib/ids.ts';
import type { HoldType } from '../policy/types.ts';

/** What a new hold asks for. */
export interface HoldRequest {
  agent_role: string;
  agent_id: string;
  agent_owner: string | null;
  action_type: string;
  action_summary: string;
  action_hash: string;
  hold_type: HoldType;
  required_approvals: number;
  quorum?: { group: string; count: number }[] | undefined;
  conditions?: string[] | undefined;
  delay_seconds?: number | undefined;
  ttl_seconds: number;
  execute_within_seconds?: number | undefined;
  estimated_value?: number | undefined;
  value_currency?: string | undefined;
  risk_score?: number | undefined;
  policy_id: string | null;
  rule_ids: string[];
  reason?: string | undefined;
  session_id?: string | undefined;
  tool_name?: string | undefined;
  arguments_preview?: unknown;
  notify_targets: string[];
}

/** Who opened a hold: the credential, and the request that it came with. */
export interface Opener {
  actor: Actor;
  requestId?: string | undefined;
}

export class Holds {
  readonly #db: Database;
  readonly #clock: Clock;
  readonly #audit: WriteAudit;

  constructor(db: Database, clock: Clock, audit: WriteAudit) {
    this.#db = db;
    this.#clock = clock;
    this.#audit = audit;
  }

  /**
   * Holds an agent's action, or finds the hold that is still open for the same agent and action: however many identical
   * requests arrive at once, they share one hold. Committed, with its audit record, when it resolves.
   */
  async open(tenantId: string, request: HoldRequest, by: Opener): Promise<{ hold: HoldRow; opened: boolean }> {
    // the winner's row may be gone again (expired, decided) by the time that the loser looks: then it is the loser's turn
    for (let tries = 0; tries < 5; tries++) {
      const open = await this.#findOpen(tenantId, request);
      if (open) return { hold: open, opened: false };
      const hold = await this.#insert(tenantId, request, by);
      if (hold) return { hold, opened: true };
    }
    throw new AppError('UNAVAILABLE', 'the hold could not be opened', { headers: { 'retry-after': '1' } });
  }

  #findOpen(tenantId: string, request: HoldRequest): Promise<HoldRow | null> {
    return this.#db.reader(tenantId).findOne(Hold, {
      agentId: request.agent_id,
      agentRole: request.agent_role,
      actionHash: request.action_hash,
      status: 'held',
      source: 'evaluate',
      expiresAt: { $gt: new Date(this.#clock.now()) },
    });
  }

  async #insert(tenantId: string, r: HoldRequest, by: Opener): Promise<HoldRow | undefined> {
    const now = this.#clock.now();
    const id = newId('esc', now);
    const releaseAt =
      r.hold_type === 'time_delayed' ? new Date(now + (r.delay_seconds ?? r.ttl_seconds) * 1000) : undefined;
    const expiresAt = new Date(now + r.ttl_seconds * 1000);
    const details: HoldDetails = {
      policy_id: r.policy_id,
      rule_ids: r.rule_ids,
      reason: r.reason,
      quorum: r.quorum,
      conditions: (r.conditions ?? []).map((condition_id) => ({ condition_id, satisfied: false })),
      delay_seconds: r.delay_seconds,
      execute_within_seconds: r.execute_within_seconds,
      notify_targets: r.notify_targets,
      session_id: r.session_id,
      tool_name: r.tool_name,
      arguments_preview: r.arguments_preview,
      release_at: releaseAt?.toISOString(),
    };
    return this.#db.transaction(tenantId, async (em) => {
      // a hold past its end must not keep its place; the reader treats it as expired already
      await em.execute(
        `update escrow_hold set status = 'expired', wake_at = null where tenant_id = ? and agent_id = ?
           and agent_role = ? and action_hash = ? and status = 'held' and expires_at <= ?`,
        [tenantId, r.agent_id, r.agent_role, r.action_hash, new Date(now)],
      );
      const inserted = await em.execute<{ id: string }[]>(
        `insert into escrow_hold (tenant_id, id, status, machine_version, machine_context, agent_role, agent_id,
           agent_owner, action_type, action_summary, action_hash, hold_type, required_approvals, details,
           estimated_value, value_currency, risk_score, ttl_seconds, source, created_by, created_at, expires_at, wake_at)
         values (?, ?, 'held', 1, '{}', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'evaluate', ?, ?, ?, ?)
         on conflict do nothing returning id`,
        [
          tenantId,
          id,
          r.agent_role,
          r.agent_id,
          r.agent_owner,
          r.action_type,
          r.action_summary,
          r.action_hash,
          r.hold_type,
          r.required_approvals,
          JSON.stringify(details),
          r.estimated_value ?? null,
          r.value_currency ?? null,
          r.risk_score ?? null,
          r.ttl_seconds,
          by.actor.id,
          new Date(now),
          expiresAt,
          releaseAt && releaseAt < expiresAt ? releaseAt : expiresAt,
        ],
      );
      if (inserted.length !== 1) return undefined;
      const hold = await em.findOneOrFail(Hold, { tenantId, id });
      await this.#audit(em, tenantId, {
        ...by,
        action: 'escrow.created',
        target: { type: 'escrow', id },
        detail: `${r.hold_type}, ${r.required_approvals} approvals`,
        afterHash: sha256Tag(canonicalJson(JSON.parse(JSON.stringify(holdView(hold))))),
      });
      return hold;
    });
  }

  /** Cancels a hold whose decision could not be recorded: there is no hold without its record. */
  async withdraw(tenantId: string, id: string, reason: string): Promise<void> {
    await this.#db.transaction(tenantId, async (em) => {
      const changed = await em.nativeUpdate(
        Hold,
        { tenantId, id, status: 'held' },
        { status: 'cancelled', wakeAt: null },
      );
      if (changed !== 1) return;
      await this.#audit(em, tenantId, {
        actor: { type: 'system', id: 'control-plane' },
        action: 'escrow.cancelled',
        target: { type: 'escrow', id },
        reason,
      });
    });
  }

  async get(tenantId: string, id: string): Promise<HoldView> {
    const hold = await this.#db.reader(tenantId).findOne(Hold, { id });
    if (!hold) throw new AppError('NOT_FOUND', 'there is no such hold');
    return holdView(hold);
  }

  async list(
    tenantId: string,
    filter: {
      status?: HoldRow['status'] | undefined;
      agent_role?: string | undefined;
      agent_id?: string | undefined;
      action_type?: string | undefined;
      min_value?: number | undefined;
      max_value?: number | undefined;
      limit: number;
      offset: number;
    },
  ): Promise<{ holds: HoldView[]; total: number }> {
    const value = {
      ...(filter.min_value !== undefined && { $gte: filter.min_value }),
      ...(filter.max_value !== undefined && { $lte: filter.max_value }),
    };
    const [rows, total] = await this.#db.reader(tenantId).findAndCount(
      Hold,
      {
        ...(filter.status && { status: filter.status }),
        ...(filter.agent_role && { agentRole: filter.agent_role }),
        ...(filter.agent_id && { agentId: filter.agent_id }),
        ...(filter.action_type && { actionType: filter.action_type }),
        ...(Object.keys(value).length > 0 && { estimatedValue: value }),
      },
      { orderBy: { createdAt: 'desc', id: 'desc' }, limit: filter.limit, offset: filter.offset },
    );
    return { holds: rows.map(holdView), total };
  }
}

export type HoldView = ReturnType<typeof holdView>;

/** A hold as it is shown. */
export function holdView(hold: HoldRow) {
  const { details } = hold;
  return {
    id: hold.id,
    agent_role: hold.agentRole,
    agent_id: hold.agentId,
    action_type: hold.actionType,
    action_summary: hold.actionSummary,
    action_hash: hold.actionHash,
    status: hold.status,
    hold_type: hold.holdType,
    required_approvals: hold.requiredApprovals,
    current_approvals: hold.currentApprovals,
    ...(hold.estimatedValue != null && { estimated_value: hold.estimatedValue }),
    ...(hold.valueCurrency != null && { value_currency: hold.valueCurrency }),
    ...(hold.riskScore != null && { risk_score: hold.riskScore }),
    ttl_seconds: hold.ttlSeconds,
    expires_at: hold.expiresAt.toISOString(),
    created_at: hold.createdAt.toISOString(),
    policy_id: details.policy_id,
    rule_ids: details.rule_ids,
    ...(details.reason !== undefined && { reason: details.reason }),
    ...(details.quorum && { quorum: details.quorum }),
    conditions: details.conditions,
    ...(details.session_id !== undefined && { session_id: details.session_id }),
    ...(details.tool_name !== undefined && { tool_name: details.tool_name }),
    ...(details.arguments_preview !== undefined && { arguments_preview: details.arguments_preview }),
    notify_targets: details.notify_targets,
    ...(details.release_at !== undefined && { release_at: details.release_at }),
  };
}
