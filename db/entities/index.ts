import { defineEntity, type InferEntity, p } from '@mikro-orm/postgresql';
import { HOLD_STATES, type HoldContext } from '../../machines/escrow.ts';
import type { PolicyContext } from '../../machines/policy.ts';
import type { BundleStatement } from '../../server/policy/types.ts';

/**
 * The entities of one tenant each. The filter is the first wall between tenants (a scoped entity manager always sets
 * it, and a query without its parameter fails); row level security in the database is the second.
 */
const tenantFilter = {
  tenant: { name: 'tenant', cond: (args: Record<string, unknown>) => ({ tenantId: args.tenantId }), default: true },
};
const time = () => p.datetime().columnType('timestamptz(3)');

export const Tenant = defineEntity({
  name: 'Tenant',
  tableName: 'tenant',
  properties: {
    tenantId: p.string().primary(),
    name: p.text(),
    settings: p.json<Record<string, unknown>>(),
    createdAt: time(),
  },
  filters: tenantFilter,
});

export const Member = defineEntity({
  name: 'Member',
  tableName: 'member',
  properties: {
    tenantId: p.string().primary(),
    id: p.string().primary(),
    email: p.text(),
    name: p.text(),
    avatarUrl: p.text().nullable(),
    roles: p.array(),
    createdAt: time(),
    lastLogin: time().nullable(),
    removedAt: time().nullable(),
  },
  filters: tenantFilter,
});
export type MemberRow = InferEntity<typeof Member>;

export const SessionEntity = defineEntity({
  name: 'SessionEntity',
  tableName: 'session',
  properties: {
    tenantId: p.string().primary(),
    /** sha256 of the session id, in hex: the database never holds what a cookie holds. */
    id: p.string().primary(),
    userId: p.string(),
    /** What lists show in place of the id. */
    handle: p.string(),
    authMethod: p.text(),
    /** Where it was started from. */
    ip: p.text().nullable(),
    userAgent: p.text().nullable(),
    createdAt: time(),
    /** Coarse. */
    lastUsedAt: time().nullable(),
    expiresAt: time(),
  },
  filters: tenantFilter,
});
export type SessionRow = InferEntity<typeof SessionEntity>;

/** Someone was asked to join. Open until it is accepted or revoked; its link is dead after `expiresAt`. */
export const Invitation = defineEntity({
  name: 'Invitation',
  tableName: 'invitation',
  properties: {
    tenantId: p.string().primary(),
    id: p.string().primary(),
    email: p.text(),
    roles: p.array(),
    tokenHash: p.blob(),
    /** The person, key or operator who asked. */
    invitedBy: p.text(),
    createdAt: time(),
    sentAt: time(),
    expiresAt: time(),
    acceptedAt: time().nullable(),
    acceptedBy: p.string().nullable(),
    revokedAt: time().nullable(),
  },
  filters: tenantFilter,
});
export type InvitationRow = InferEntity<typeof Invitation>;

export const ApiKey = defineEntity({
  name: 'ApiKey',
  tableName: 'api_key',
  properties: {
    tenantId: p.string().primary(),
    id: p.string().primary(),
    label: p.text(),
    prefix: p.text(),
    scopes: p.array(),
    createdBy: p.string().nullable(),
    createdAt: time(),
    lastUsedAt: time().nullable(),
    expiresAt: time().nullable(),
    revokedAt: time().nullable(),
  },
  filters: tenantFilter,
});
export type ApiKeyRow = InferEntity<typeof ApiKey>;

export const AgentKey = defineEntity({
  name: 'AgentKey',
  tableName: 'agent_key',
  properties: {
    tenantId: p.string().primary(),
    id: p.string().primary(),
    label: p.text(),
    agentId: p.text(),
    agentRole: p.text(),
    ownerId: p.string().nullable(),
    prefix: p.text(),
    hash: p.blob(),
    createdBy: p.string().nullable(),
    createdAt: time(),
    lastUsedAt: time().nullable(),
    expiresAt: time().nullable(),
    revokedAt: time().nullable(),
  },
  filters: tenantFilter,
});
export type AgentKeyRow = InferEntity<typeof AgentKey>;

export const Policy = defineEntity({
  name: 'Policy',
  tableName: 'policy',
  properties: {
    tenantId: p.string().primary(),
    id: p.string().primary(),
    /** The state of the policy machine: that of the newest revision. */
    status: p.enum(['draft', 'pending_approval', 'deployed', 'revoked'] as const),
    version: p.integer(),
    liveVersion: p.integer().nullable(),
    machineVersion: p.integer(),
    machineContext: p.json<PolicyContext>().columnType('jsonb'),
    /** Whether `machineContext` has an open review. */
    reviewOpen: p.boolean().generated(`(machine_context->>'openReview' is not null) stored`),
    /** What the newest revision mentions, for the list's filters. */
    roles: p.array(),
    anyRole: p.boolean(),
    scopes: p.array(),
    createdAt: time(),
    updatedAt: time(),
    rowVersion: p.integer().version(),
  },
  filters: tenantFilter,
});
export type PolicyRow = InferEntity<typeof Policy>;

/** One decision of a reviewer (or of the emergency path) on a revision. */
export interface ReviewRecord {
  status: 'approved' | 'rejected' | 'changes_requested' | 'break_glass' | 'dismissed' | 'commented';
  decided_by: string;
  decided_at: string;
  comment?: string;
}

export const PolicyRevision = defineEntity({
  name: 'PolicyRevision',
  tableName: 'policy_revision',
  properties: {
    tenantId: p.string().primary(),
    policyId: p.string().primary(),
    version: p.integer().primary(),
    dslSource: p.text(),
    contentHash: p.text(),
    /** The compiled statements, as bundles carry them but for the version. */
    statements: p.json<Omit<BundleStatement, 'version'>[]>().columnType('jsonb'),
    authorId: p.string(),
    change: p.enum(['create', 'update', 'rollback'] as const),
    rolledBackFrom: p.integer().nullable(),
    note: p.text().nullable(),
    reviews: p.json<ReviewRecord[]>().columnType('jsonb'),
    createdAt: time(),
  },
  filters: tenantFilter,
});
export type PolicyRevisionRow = InferEntity<typeof PolicyRevision>;

/** What a hold shows beside its filterable columns and the state of its machine. It does not change. */
export interface HoldDetails {
  policy_id: string | null;
  rule_ids: string[];
  reason?: string | undefined;
  quorum?: { group: string; count: number }[] | undefined;
  conditions: { condition_id: string; description?: string | undefined }[];
  execute_within_seconds?: number | undefined;
  notify_targets: string[];
  session_id?: string | undefined;
  tool_name?: string | undefined;
  arguments_preview?: unknown;
  release_at?: string | undefined;
}

export const Hold = defineEntity({
  name: 'Hold',
  tableName: 'escrow_hold',
  properties: {
    tenantId: p.string().primary(),
    id: p.string().primary(),
    /** As of the last event. What time has done since then is in `releasesAt` and `endsAt`. */
    status: p.enum(HOLD_STATES),
    machineVersion: p.integer(),
    machineContext: p.json<HoldContext>().columnType('jsonb'),
    agentRole: p.text(),
    agentId: p.text(),
    agentOwner: p.string().nullable(),
    actionType: p.text(),
    actionSummary: p.text(),
    actionHash: p.text(),
    holdType: p.enum(['single', 'multi_party', 'conditional', 'time_delayed'] as const),
    requiredApprovals: p.integer(),
    currentApprovals: p.integer(),
    details: p.json<HoldDetails>().columnType('jsonb'),
    estimatedValue: p.float().columnType('double precision').nullable(),
    valueCurrency: p.text().nullable(),
    riskScore: p.float().columnType('double precision').nullable(),
    ttlSeconds: p.integer(),
    source: p.enum(['evaluate', 'proxy'] as const),
    /** The credential that opened it. */
    createdBy: p.text(),
    /** The person who asked for it, where one did: they do not vote on it. */
    requestedBy: p.string().nullable(),
    idempotencyKey: p.text().nullable(),
    idempotencyHash: p.text().nullable(),
    createdAt: time(),
    expiresAt: time(),
    /** When time alone releases it; null when it does not. */
    releasesAt: time().nullable(),
    /** When time alone expires it; null when it has ended. */
    endsAt: time().nullable(),
    /** When the timers must look at it: the earlier of the two. */
    wakeAt: time().nullable(),
    rowVersion: p.integer().version(),
  },
  filters: tenantFilter,
});
export type HoldRow = InferEntity<typeof Hold>;

export const EvidencePackage = defineEntity({
  name: 'EvidencePackage',
  tableName: 'evidence_package',
  properties: {
    tenantId: p.string().primary(),
    id: p.string().primary(),
    purpose: p.text(),
    fromAt: time(),
    toAt: time(),
    firstSeq: p.bigint('number'),
    lastSeq: p.bigint('number'),
    recordCount: p.integer(),
    chainIntact: p.boolean(),
    packageHash: p.text(),
    publicKeyFingerprint: p.text(),
    size: p.integer(),
    createdBy: p.string(),
    createdAt: time(),
    bytes: p.blob().lazy(),
  },
  filters: tenantFilter,
});

export const ProxyInstance = defineEntity({
  name: 'ProxyInstance',
  tableName: 'proxy_instance',
  properties: {
    tenantId: p.string().primary(),
    id: p.string().primary(),
    keyId: p.string(),
    info: p.json<Record<string, unknown>>().columnType('jsonb'),
    firstSeenAt: time(),
    lastSeenAt: time(),
  },
  filters: tenantFilter,
});

/** How a destination is used, beside its address. */
export interface DestinationConfig {
  /** Where the links of cards lead; absent: the server's own address. */
  app_url?: string | undefined;
}

export const Subscription = defineEntity({
  name: 'Subscription',
  tableName: 'subscription',
  properties: {
    tenantId: p.string().primary(),
    id: p.string().primary(),
    destinationType: p.enum(['webhook', 'slack', 'teams'] as const),
    urlSealed: p.blob(),
    secretSealed: p.blob().nullable(),
    previousSecretSealed: p.blob().nullable(),
    previousSecretUntil: time().nullable(),
    /** Empty means every type. */
    eventTypes: p.array(),
    active: p.boolean(),
    /** When it was created or last resumed: what happened before is not told. */
    activeSince: time(),
    destinationConfig: p.json<DestinationConfig>().columnType('jsonb'),
    /** When the server itself stopped sending there, and why. */
    disabledAt: time().nullable(),
    disabledReason: p.text().nullable(),
    createdBy: p.string(),
    createdAt: time(),
    updatedAt: time(),
    rowVersion: p.integer().version(),
  },
  filters: tenantFilter,
});
export type SubscriptionRow = InferEntity<typeof Subscription>;

export const entities = [
  Tenant,
  Member,
  SessionEntity,
  Invitation,
  ApiKey,
  AgentKey,
  Policy,
  PolicyRevision,
  Hold,
  EvidencePackage,
  ProxyInstance,
  Subscription,
];
