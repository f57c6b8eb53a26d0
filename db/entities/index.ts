import { defineEntity, type InferEntity, p } from '@mikro-orm/postgresql';
import { HOLD_STATES, type HoldContext } from '../../machines/escrow.ts';
import type { PolicyContext, ReviewStatus } from '../../machines/policy.ts';
import { DESTINATION_TYPES } from '../../server/domain/destinations.ts';
import { HOLD_KIND_NAMES } from '../../server/domain/hold-kinds.ts';
import type { HeldContent, RuleReference } from '../../server/domain/policy.ts';
import { STOP_KIND_NAMES, STOP_MODE_NAMES } from '../../server/domain/stops.ts';
import { DRIFT_MODES, type DriftMode, TOOL_STATUSES, type ToolChange } from '../../server/domain/tools.ts';
import type { ClaimMatch, Source } from '../../server/domain/workload.ts';
import { tenantFilter, time } from './common.ts';
import { rawEntities } from './raw.ts';

export const Tenant = defineEntity({
  name: 'Tenant',
  tableName: 'tenant',
  properties: {
    tenantId: p.string().primary(),
    name: p.text(),
    settings: p.json<Record<string, unknown>>(),
    createdAt: time(),
    /** What is in it is made up, see server/demo. */
    demo: p.text().nullable(),
    /** Bundles are numbered above it: the highest number that a proxy has shown. */
    bundleFloor: p.bigint('number').default(0),
    bundleFloorAt: time().nullable(),
    /** The number of the last document of stops. */
    stopsSeq: p.bigint('number').default(0),
    /** When to look next for what decisions were taken on and has to be erased. */
    eraseAt: time().defaultRaw("'epoch'"),
  },
  filters: tenantFilter,
});

/** What a change does to one setting. */
export interface SettingEffect {
  setting: string;
  from: unknown;
  to: unknown;
  /** Takes a safeguard away. */
  loosens: boolean;
}

/** A change of settings that waits for a second person, or waited. */
export const SettingsChange = defineEntity({
  name: 'SettingsChange',
  tableName: 'settings_change',
  properties: {
    tenantId: p.string().primary(),
    id: p.string().primary(),
    status: p.enum(['pending', 'approved', 'rejected', 'withdrawn', 'superseded'] as const),
    /** Of what: the settings themselves, or how people sign in at the identity provider. */
    part: p.enum(['settings', 'sso'] as const),
    /** What is applied. */
    patch: p.json<Record<string, unknown>>().columnType('jsonb'),
    /** What it changes, as the settings were when it was asked for. */
    changes: p.json<SettingEffect[]>().columnType('jsonb'),
    /** What is applied with it and shown to nobody; gone as soon as the change is decided. */
    secretSealed: p.blob().nullable(),
    reason: p.text(),
    proposedBy: p.string(),
    createdAt: time(),
    decidedBy: p.string().nullable(),
    decidedAt: time().nullable(),
    comment: p.text().nullable(),
  },
  filters: tenantFilter,
});
export type SettingsChangeRow = InferEntity<typeof SettingsChange>;

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
    /** The person who asked, by a session or a key of theirs: it ends when they are an admin no more. */
    invitedById: p.string().nullable(),
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
    /** Restored from a backup: it works again when an operator has confirmed it. */
    unconfirmedSince: time().nullable(),
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
    /** Restored from a backup: it works again when an operator has confirmed it. */
    unconfirmedSince: time().nullable(),
  },
  filters: tenantFilter,
});
export type AgentKeyRow = InferEntity<typeof AgentKey>;

/** Whose tokens may be exchanged for tokens of this server. */
export const WorkloadTrust = defineEntity({
  name: 'WorkloadTrust',
  tableName: 'workload_trust',
  properties: {
    tenantId: p.string().primary(),
    id: p.string().primary(),
    label: p.text(),
    issuer: p.text(),
    audience: p.text(),
    /** Where the issuer publishes its keys, where its discovery document does not say it. */
    jwksUri: p.text().nullable(),
    match: p.json<ClaimMatch>().columnType('jsonb'),
    scopes: p.array(),
    policies: p.text().nullable(),
    createdBy: p.string().nullable(),
    createdAt: time(),
    lastUsedAt: time().nullable(),
    revokedAt: time().nullable(),
    /** Restored from a backup: it works again when an operator has confirmed it. */
    unconfirmedSince: time().nullable(),
  },
  filters: tenantFilter,
});
export type WorkloadTrustRow = InferEntity<typeof WorkloadTrust>;

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
    /** Whether `machineContext` has open reviews. */
    reviewOpen: p.boolean().generated(`(jsonb_array_length(machine_context->'openReviews') > 0) stored`).nullable(),
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

/** One decision of a reviewer (or of the emergency path) on a revision, or a comment. */
export interface ReviewRecord {
  status: ReviewStatus;
  decided_by: string;
  decided_at: string;
  comment?: string;
  /** Of a comment. */
  id?: string;
  /** The comment that this one answers, which began the thread. */
  thread?: string;
  /** The line that a thread is about, as it was written there. */
  place?: CommentPlace;
  /** Who said last that the thread is settled. */
  resolved?: { by: string; at: string };
}

export interface CommentPlace {
  part: 'text' | 'tests';
  /** The version whose line it is: the reviewed one, or the one that it is compared with. */
  version: number;
  line: number;
  quote: string;
}

export const PolicyRevision = defineEntity({
  name: 'PolicyRevision',
  tableName: 'policy_revision',
  properties: {
    tenantId: p.string().primary(),
    policyId: p.string().primary(),
    version: p.integer().primary(),
    dslSource: p.text(),
    /** The test suite of this version. */
    testsSource: p.text().nullable(),
    contentHash: p.text(),
    /** For the quota alone: what is enforced is read from the text. */
    statementCount: p.integer(),
    /** The reference lists that the text names, to find policies by: what is enforced is read from the text. */
    lists: p.array(),
    authorId: p.string(),
    change: p.enum(['create', 'update', 'rollback'] as const),
    rolledBackFrom: p.integer().nullable(),
    note: p.text().nullable(),
    reviews: p.json<ReviewRecord[]>().columnType('jsonb'),
    /** Where a pipeline took it from. Not part of its hash. */
    source: p.json<Source>().columnType('jsonb').nullable(),
    createdAt: time(),
  },
  filters: tenantFilter,
});
export type PolicyRevisionRow = InferEntity<typeof PolicyRevision>;

/** What a draft of a policy would have decided on past decisions, as it is found out or was. */
export const PolicySimulation = defineEntity({
  name: 'PolicySimulation',
  tableName: 'policy_simulation',
  properties: {
    tenantId: p.string().primary(),
    id: p.string().primary(),
    policyId: p.string(),
    /** Null where the text is of no version. */
    version: p.integer().nullable(),
    /** A submission started it. */
    automatic: p.boolean(),
    dslSource: p.text(),
    /** The hash of the text alone. */
    draftHash: p.string(),
    /** The hash of the policies that were live when it ran. */
    liveHash: p.string().nullable(),
    status: p.enum(['queued', 'running', 'done', 'failed', 'cancelled'] as const),
    windowFrom: time(),
    windowTo: time(),
    createdAt: time(),
    createdBy: p.string(),
    startedAt: time().nullable(),
    finishedAt: time().nullable(),
    /** The process that runs it prolongs this; afterwards another one may take it. */
    leaseUntil: time().nullable(),
    /** How often a process took it. Only the last one may store a result. */
    attempt: p.integer().default(0),
    checked: p.bigint('number').default(0),
    total: p.bigint('number').nullable(),
    result: p.json<Record<string, unknown>>().columnType('jsonb').nullable(),
    resultHash: p.string().nullable(),
    failure: p.text().nullable(),
  },
  filters: tenantFilter,
});
export type PolicySimulationRow = InferEntity<typeof PolicySimulation>;

/** What a hold shows beside its filterable columns and the state of its machine. Only retention changes it. */
export interface HoldDetails {
  policy_id: string | null;
  /** The statements that it stands for. An approval counts for these texts and no others. */
  rules: RuleReference[];
  reason?: string | undefined;
  quorum?: { group: string; count: number }[] | undefined;
  conditions: { condition_id: string; description?: string | undefined }[];
  execute_within_seconds?: number | undefined;
  notify_targets: string[];
  session_id?: string | undefined;
  /** The held action as approvers see it, beside its type and value; null once retention has erased it. */
  shown: HeldContent;
  release_at?: string | undefined;
  /** Of the decision that opened it. */
  traceparent?: string | undefined;
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
    actionType: p.text(),
    actionSummary: p.text(),
    actionHash: p.text(),
    holdType: p.enum(HOLD_KIND_NAMES),
    requiredApprovals: p.integer(),
    currentApprovals: p.integer(),
    details: p.json<HoldDetails>().columnType('jsonb'),
    /** Of the action, as in `details`; empty for none. */
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
    /** The people who owned or made a key of the agent, or the key that opened it: they do not vote on it. */
    barredVoters: p.array(),
    /** Attempts to use it that were refused, by their code and credential: what bounds their audit records. */
    refusedUses: p.json<Record<string, number>>().columnType('jsonb'),
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
    /** sha256 of the hold as it was shown when the vote was cast. */
    shownHash: p.text(),
    createdAt: time(),
  },
  filters: tenantFilter,
});

export const EvidencePackage = defineEntity({
  name: 'EvidencePackage',
  tableName: 'evidence_package',
  properties: {
    tenantId: p.string().primary(),
    id: p.string().primary(),
    purpose: p.text(),
    fromAt: time(),
    toAt: time(),
    /** Of a session's package. */
    sessionId: p.text().nullable(),
    firstSeq: p.bigint('number'),
    lastSeq: p.bigint('number'),
    recordCount: p.integer(),
    chainIntact: p.boolean(),
    packageHash: p.text(),
    publicKeyFingerprint: p.text(),
    size: p.bigint('number'),
    createdBy: p.string(),
    createdAt: time(),
  },
  filters: tenantFilter,
});

export type EvidencePackageRow = InferEntity<typeof EvidencePackage>;

/** The bytes of an evidence package in pieces, the first at place 0. */
const EvidenceChunk = defineEntity({
  name: 'EvidenceChunk',
  tableName: 'evidence_chunk',
  properties: {
    tenantId: p.string().primary(),
    packageId: p.string().primary(),
    place: p.integer().primary(),
    bytes: p.blob(),
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
    /** When to look whether it has fallen silent. */
    silentAt: time().defaultRaw("'epoch'"),
    /** When it was told that the proxy fell silent. */
    offlineAt: time().nullable(),
    /** The number of the last document of stops that it has applied, and when that was known here. */
    stopsSeq: p.bigint('number').nullable(),
    stopsAt: time().nullable(),
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
    destinationType: p.enum(DESTINATION_TYPES),
    urlSealed: p.blob(),
    secretSealed: p.blob().nullable(),
    previousSecretSealed: p.blob().nullable(),
    previousSecretUntil: time().nullable(),
    /** Empty means every type. */
    eventTypes: p.array(),
    active: p.boolean(),
    /**
     * Events from then on are queued, also while it is paused. Null where none are: it was created paused and never resumed, or
     * the server disabled it.
     */
    queuesSince: time().nullable(),
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

/** What one person asked for, to be done when a second one asks for the same. */
export interface Proposal<What> {
  what: What;
  by: string;
  at: string;
}

/** What people set of a tool server. */
export interface ToolServerSettings {
  /** Null: the default. */
  mode: DriftMode | null;
  trust: number | null;
  check_arguments: boolean;
}

export const ToolServer = defineEntity({
  name: 'ToolServer',
  tableName: 'tool_server',
  properties: {
    tenantId: p.string().primary(),
    id: p.string().primary(),
    mode: p.enum(DRIFT_MODES).nullable(),
    trust: p.integer().nullable(),
    checkArguments: p.boolean(),
    proposal: p.json<Proposal<ToolServerSettings>>().columnType('jsonb').nullable(),
    firstSeen: time(),
    lastSeen: time(),
    /** When a tool of it was first approved. */
    reviewedAt: time().nullable(),
  },
  filters: tenantFilter,
});
export type ToolServerRow = InferEntity<typeof ToolServer>;

/** What two people must ask for, of one tool. */
export interface ToolProposals {
  approve?: Proposal<{ pin: string }>;
  labels?: Proposal<{ labels: string[] }>;
}

export const Tool = defineEntity({
  name: 'Tool',
  tableName: 'tool',
  properties: {
    tenantId: p.string().primary(),
    server: p.string().primary(),
    name: p.string().primary(),
    status: p.enum(TOOL_STATUSES),
    /** Of the definition that was seen last. */
    pin: p.string(),
    approvedPin: p.string().nullable(),
    approvedBy: p.string().nullable(),
    approvedAt: time().nullable(),
    /** Definitions that say the approved one in other words, and were accepted without a person. */
    acceptedPins: p.array(),
    rejectedPins: p.array(),
    /** The newest definition on which nobody has decided. */
    waitingPin: p.string().nullable(),
    /** From the approved definition to the one that waits. */
    change: p.json<ToolChange>().columnType('jsonb'),
    /** The form of the arguments, by which a tool is known again under another name. */
    shape: p.string().nullable(),
    labels: p.array(),
    proposals: p.json<ToolProposals>().columnType('jsonb'),
    /** Whether the newest complete list of the server had it. */
    listed: p.boolean(),
    /** When another definition gave way to an approved one. */
    returnedAt: time().nullable(),
    firstSeen: time(),
    lastSeen: time(),
  },
  filters: tenantFilter,
});
export type ToolRow = InferEntity<typeof Tool>;

export const ToolDefinitionEntity = defineEntity({
  name: 'ToolDefinitionEntity',
  tableName: 'tool_definition',
  properties: {
    tenantId: p.string().primary(),
    server: p.string().primary(),
    tool: p.string().primary(),
    pin: p.string().primary(),
    /** Canonical JSON. */
    definition: p.text(),
    /** The key that brought it. */
    reportedBy: p.string(),
    firstSeen: time(),
    lastSeen: time(),
  },
  filters: tenantFilter,
});
export type ToolDefinitionRow = InferEntity<typeof ToolDefinitionEntity>;

/** An agent by its id, whatever key or token it comes with. */
export const Agent = defineEntity({
  name: 'Agent',
  tableName: 'agent',
  properties: {
    tenantId: p.string().primary(),
    id: p.string().primary(),
    labels: p.array(),
    proposal: p.json<Proposal<{ labels: string[] }>>().columnType('jsonb').nullable(),
    updatedAt: time(),
    updatedBy: p.string(),
  },
  filters: tenantFilter,
});

/** How far a stop reached, as it was recorded. */
export interface StopReach {
  applied: number;
  pending: string[];
  unreachable: string[];
  slowest_ms: number | null;
}

export const StopEntity = defineEntity({
  name: 'Stop',
  tableName: 'stop',
  properties: {
    tenantId: p.string().primary(),
    id: p.string().primary(),
    /** Of the first document that has it. */
    seq: p.bigint('number'),
    kind: p.enum(STOP_KIND_NAMES),
    target: p.string(),
    mode: p.enum(STOP_MODE_NAMES),
    abort: p.boolean(),
    reason: p.text(),
    createdBy: p.string(),
    createdAt: time(),
    until: time().nullable(),
    /** Null until it was recorded. */
    reach: p.json<StopReach>().columnType('jsonb').nullable(),
    endedAt: time().nullable(),
    /** Null where its time ended it. */
    endedBy: p.string().nullable(),
    endReason: p.text().nullable(),
  },
  filters: tenantFilter,
});
export type StopRow = InferEntity<typeof StopEntity>;

/** A list of known values that policies read. A deleted one keeps its number, so that no version is used twice. */
export const ReferenceList = defineEntity({
  name: 'ReferenceList',
  tableName: 'reference_list',
  properties: {
    tenantId: p.string().primary(),
    name: p.string().primary(),
    /** The newest version. */
    version: p.integer(),
    /** The version that bundles have; null before the first approval and after a deletion. */
    liveVersion: p.integer().nullable(),
    deletedAt: time().nullable(),
  },
  filters: tenantFilter,
});
export type ReferenceListRow = InferEntity<typeof ReferenceList>;

export const ReferenceListVersion = defineEntity({
  name: 'ReferenceListVersion',
  tableName: 'reference_list_version',
  properties: {
    tenantId: p.string().primary(),
    name: p.string().primary(),
    version: p.integer().primary(),
    status: p.enum(['pending', 'approved', 'rejected'] as const),
    /** In ascending code units; null where they are no longer kept. */
    items: p.array().nullable().lazy(),
    count: p.integer(),
    bytes: p.integer(),
    hash: p.string(),
    added: p.integer(),
    removed: p.integer(),
    authorId: p.string(),
    createdAt: time(),
    decidedBy: p.string().nullable(),
    decidedAt: time().nullable(),
    /** What the author or the approver said. */
    comment: p.text().nullable(),
  },
  filters: tenantFilter,
});
export type ReferenceListVersionRow = InferEntity<typeof ReferenceListVersion>;

export const entities = [
  Tenant,
  SettingsChange,
  Member,
  SessionEntity,
  Invitation,
  ApiKey,
  AgentKey,
  WorkloadTrust,
  Policy,
  PolicyRevision,
  PolicySimulation,
  Hold,
  Vote,
  EvidencePackage,
  EvidenceChunk,
  ProxyInstance,
  Subscription,
  ToolServer,
  Tool,
  ToolDefinitionEntity,
  Agent,
  ReferenceList,
  ReferenceListVersion,
  StopEntity,
  ...rawEntities,
];
