import { defineEntity, type InferEntity, p } from '@mikro-orm/postgresql';
import { HOLD_STATES, type HoldContext } from '../../machines/escrow.ts';
import { HOLD_KIND_NAMES } from '../../server/domain/hold-kinds.ts';
import type { HeldContent, RuleReference } from '../../server/domain/policy.ts';
import { tenantFilter, time } from './common.ts';

/** What a hold shows in addition to its filterable columns and the state of its machine. Only retention changes it. */
export interface HoldDetails {
  policy_id: string | null;
  /** The statements that the hold stands for. An approval counts for these texts only. */
  rules: RuleReference[];
  reason?: string | undefined;
  quorum?: { group: string; count: number }[] | undefined;
  conditions: { condition_id: string; description?: string | undefined }[];
  report?: 'independent' | undefined;
  execute_within_seconds?: number | undefined;
  notify_targets: string[];
  session_id?: string | undefined;
  /** The held action as approvers see it, in addition to its type and value; null once retention has erased it. */
  shown: HeldContent;
  release_at?: string | undefined;
  /** From the decision that opened it. */
  traceparent?: string | undefined;
}

export const Hold = defineEntity({
  name: 'Hold',
  tableName: 'escrow_hold',
  properties: {
    tenantId: p.string().primary(),
    id: p.string().primary(),
    /** As of the last event. What time alone has changed since then follows from `releasesAt` and `endsAt`. */
    status: p.enum(HOLD_STATES),
    machineVersion: p.integer(),
    machineContext: p.json<HoldContext>().columnType('jsonb'),
    agentRole: p.text(),
    agentId: p.text(),
    actionType: p.text(),
    actionSummary: p.text(),
    actionHash: p.text(),
    holdType: p.enum(HOLD_KIND_NAMES),
    requiredApprovals: p.integer(),
    currentApprovals: p.integer(),
    details: p.json<HoldDetails>().columnType('jsonb'),
    /** Tool server of the action, as in `details`; empty for none. */
    toolServer: p.text(),
    toolName: p.text(),
    /** The first of the rules in `details`; empty for none. */
    ruleId: p.text(),
    estimatedValue: p.float().columnType('double precision').nullable(),
    valueCurrency: p.text().nullable(),
    riskScore: p.float().columnType('double precision').nullable(),
    ttlSeconds: p.integer(),
    source: p.enum(['evaluate', 'proxy'] as const),
    /** The credential that opened it. */
    createdBy: p.text(),
    /** The people who owned or created a key of the agent, or the key that opened the hold: they may not vote on it. */
    barredVoters: p.array(),
    /** Refused attempts to use it, by code and credential: this limits how many audit records they cause. */
    refusedUses: p.json<Record<string, number>>().columnType('jsonb'),
    /** The line of API keys that the Idempotency-Key belongs to. */
    idempotencyLine: p.text().nullable(),
    idempotencyKey: p.text().nullable(),
    idempotencyHash: p.text().nullable(),
    createdAt: time(),
    expiresAt: time(),
    /** When time alone releases it; null when it does not. */
    releasesAt: time().nullable(),
    /** When time alone expires it; null when it has ended. */
    endsAt: time().nullable(),
    /** When the timers must process it: the earlier of the two. */
    wakeAt: time().nullable(),
    rowVersion: p.integer().version(),
  },
  filters: tenantFilter,
});
export type HoldRow = InferEntity<typeof Hold>;

/** One vote; never changed. */
export const Vote = defineEntity({
  name: 'Vote',
  tableName: 'escrow_vote',
  properties: {
    tenantId: p.string().primary(),
    holdId: p.string().primary(),
    userId: p.string().primary(),
    decision: p.enum(['approve', 'reject'] as const),
    reason: p.text(),
    /** sha256 of the hold as shown when the vote was cast. */
    shownHash: p.text(),
    createdAt: time(),
  },
  filters: tenantFilter,
});
