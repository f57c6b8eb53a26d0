import { defineEntity, p } from '@mikro-orm/postgresql';
import { BLOCK_FIELDS, DERIVED_COLUMNS } from '../../server/domain/decision.ts';
import type { MailKind } from '../../server/domain/mail.ts';
import { tenantFilter, time } from './common.ts';
import type { CommentPlace } from './policies.ts';

/*
 * The tables that only raw SQL reads and writes: the appender, ingest, fan-out, search, sign-in, and look-ups before the tenant
 * is known. The entities document their contents; a test compares every entity with its table.
 */

/** The name of a column as a property. */
const camelCase = (column: string) => column.replace(/_(.)/g, (_, letter: string) => letter.toUpperCase());

/** The audit chain: actions of people and the system. */
const AuditRecord = defineEntity({
  name: 'AuditRecord',
  tableName: 'audit_record',
  properties: {
    tenantId: p.string().primary(),
    seq: p.bigint('number').primary(),
    id: p.text(),
    receivedAt: time(),
    actorId: p.text(),
    action: p.text(),
    targetType: p.text(),
    targetId: p.text(),
    severity: p.text(),
    hash: p.blob(),
    line: p.text(),
  },
  filters: tenantFilter,
});

/** A chain that lacks records it is known to have had. The row closes it until an operator accepts the loss. */
const ChainAlarm = defineEntity({
  name: 'ChainAlarm',
  tableName: 'chain_alarm',
  properties: {
    tenantId: p.string().primary(),
    chain: p.string().primary(),
    knownSeq: p.bigint('number'),
    knownHash: p.text(),
    knownGeneration: p.integer(),
    agreed: p.bigint('number'),
    lastSeq: p.bigint('number'),
    reason: p.text(),
    noticedAt: time(),
  },
  filters: tenantFilter,
});

/** Signed notes of the chain heads. */
const ChainCheckpoint = defineEntity({
  name: 'ChainCheckpoint',
  tableName: 'chain_checkpoint',
  properties: {
    tenantId: p.string().primary(),
    chain: p.string().primary(),
    seq: p.bigint('number').primary(),
    kid: p.text(),
    note: p.text(),
    createdAt: time(),
  },
  filters: tenantFilter,
});

/** The head of each chain, and the fence that decides who may write it. */
const ChainHead = defineEntity({
  name: 'ChainHead',
  tableName: 'chain_head',
  properties: {
    tenantId: p.string().primary(),
    chain: p.string().primary(),
    seq: p.bigint('number'),
    hash: p.blob(),
    fence: p.bigint('number'),
    unsigned: p.boolean().default(true),
    unsummarized: p.boolean().default(false),
  },
  filters: tenantFilter,
});

/** Maps a hashed secret to its credential. */
const Credential = defineEntity({
  name: 'Credential',
  tableName: 'credential',
  properties: {
    tenantId: p.text().primary(),
    hash: p.blob().primary(),
    kind: p.text(),
    id: p.text(),
  },
  filters: tenantFilter,
});

/**
 * The input of a decision, until retention erases it: `projection` is the part of the request that the policies read
 * (policy/evaluation/projection.ts), `input` the whole request, both as canonical JSON. Each is stored with its salt (16 bytes)
 * or not at all, and expires on its own schedule; a row without both is deleted. The record commits to them: its `ask_commit` is
 * SHA-256(salt_a | projection), its `input_hash` SHA-256(salt_b | input), see domain/kept-input.ts. Only the chain's writer
 * writes it, in the record's transaction.
 */
const DecisionInput = defineEntity({
  name: 'DecisionInput',
  tableName: 'decision_input',
  properties: {
    tenantId: p.string().primary(),
    eventId: p.string().primary(),
    createdAt: time(),
    saltA: p.blob().nullable(),
    projection: p.text().nullable(),
    saltB: p.blob().nullable(),
    input: p.text().nullable(),
  },
  filters: tenantFilter,
});

/** A known fact about an agent's session, until it expires. */
const SessionFact = defineEntity({
  name: 'SessionFact',
  tableName: 'session_fact',
  properties: {
    tenantId: p.string().primary(),
    agentId: p.string().primary(),
    sessionId: p.string().primary(),
    source: p.string().primary(),
    name: p.string().primary(),
    key: p.string().primary(),
    /** Reported by the agent itself. */
    reported: p.boolean().primary(),
    value: p.json().columnType('jsonb').nullable(),
    eventId: p.string(),
    observedAt: time(),
    expiresAt: time(),
  },
  filters: tenantFilter,
});

/** Marks that an agent has reported the outcome of a permitted action: each is reported once. */
const ReportedOutcome = defineEntity({
  name: 'ReportedOutcome',
  tableName: 'reported_outcome',
  properties: {
    tenantId: p.string().primary(),
    eventId: p.string().primary(),
    hash: p.string(),
    reportedAt: time(),
  },
  filters: tenantFilter,
});

/** The results of the tests of an enforced version when they last ran on their own. */
const PolicyTests = defineEntity({
  name: 'PolicyTests',
  tableName: 'policy_tests',
  properties: {
    tenantId: p.string().primary(),
    policyId: p.string().primary(),
    version: p.integer(),
    /** The hash of everything the result depended on. */
    basis: p.string(),
    /** The names of the tests that failed. */
    failing: p.json<string[]>(),
  },
  filters: tenantFilter,
});

/** A review comment that its writer has not sent. */
const PendingComment = defineEntity({
  name: 'PendingComment',
  tableName: 'pending_comment',
  properties: {
    tenantId: p.string().primary(),
    id: p.string().primary(),
    policyId: p.string(),
    userId: p.string(),
    comment: p.text().nullable(),
    thread: p.string().nullable(),
    place: p.json<CommentPlace>().columnType('jsonb').nullable(),
    suggestion: p.text().nullable(),
    createdAt: time(),
  },
  filters: tenantFilter,
});

/** A saved request that authors try policies on. */
const SavedQuestion = defineEntity({
  name: 'SavedQuestion',
  tableName: 'saved_question',
  properties: {
    tenantId: p.string().primary(),
    id: p.string().primary(),
    name: p.text(),
    request: p.json<object>().columnType('jsonb'),
    createdBy: p.string(),
    createdAt: time(),
  },
  filters: tenantFilter,
});

/** A call that an agent named, and the answer it got. */
const AgentCall = defineEntity({
  name: 'AgentCall',
  tableName: 'agent_call',
  properties: {
    tenantId: p.string().primary(),
    agentId: p.string().primary(),
    callId: p.string().primary(),
    /** The hash of the request. */
    asked: p.string(),
    /** The record of its newest answer. */
    eventId: p.string(),
    /** Who is deciding it now, and until when no one else may. */
    holder: p.string(),
    busyUntil: time().nullable(),
    /** The hold that it waits for, and whether that was consumed for it. */
    holdId: p.string().nullable(),
    consumed: p.boolean(),
    answers: p.json<object[]>(),
    expiresAt: time(),
  },
  filters: tenantFilter,
});

/** A destination, served by one process at a time. */
const DeliveryLane = defineEntity({
  name: 'DeliveryLane',
  tableName: 'delivery_lane',
  properties: {
    tenantId: p.string().primary(),
    id: p.string().primary(),
    targetSealed: p.blob().nullable(),
    dueAt: time().nullable(),
    notBefore: time().nullable(),
    leasedUntil: time().nullable(),
    fence: p.bigint('number'),
    room: p.integer().nullable(),
    resend: p.json().columnType('jsonb').nullable(),
    failingSince: time().nullable(),
    goneSince: time().nullable(),
  },
  filters: tenantFilter,
});

/** Events for subscribers, committed with the change. */
const EventOutbox = defineEntity({
  name: 'EventOutbox',
  tableName: 'event_outbox',
  properties: {
    tenantId: p.string().primary(),
    id: p.string().primary(),
    eventType: p.text(),
    payload: p.json().columnType('jsonb'),
    createdAt: time(),
    laneId: p.string().nullable(),
    fannedOutAt: time().nullable(),
    wanted: p.boolean().nullable(),
  },
  filters: tenantFilter,
});

/** The bytes of an evidence package in chunks, the first at place 0. */
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

/** Summaries of blocks of the decision chain, which searches without an index use to find records. */
const ForensicBlock = defineEntity({
  name: 'ForensicBlock',
  tableName: 'forensic_block',
  properties: {
    tenantId: p.string().primary(),
    block: p.integer().primary(),
    seen: p.blob(),
    ...Object.fromEntries(BLOCK_FIELDS.map((field) => [camelCase(field), p.text()])),
  },
  filters: tenantFilter,
});

/** The decision chain. */
const ForensicRecord = defineEntity({
  name: 'ForensicRecord',
  tableName: 'forensic_record',
  properties: {
    seq: p.bigint('number').primary(),
    receivedAt: time(),
    ...Object.fromEntries(
      DERIVED_COLUMNS.map(({ column, hashed }) => {
        return [camelCase(column), hashed ? p.integer() : p.smallint()];
      }),
    ),
    hash: p.blob(),
    tenantId: p.string().primary(),
    eventId: p.text(),
    line: p.text(),
  },
  filters: tenantFilter,
});

/** The one row of an installation. */
const Instance = defineEntity({
  name: 'Instance',
  tableName: 'instance',
  properties: {
    one: p.boolean().primary(),
    canary: p.blob(),
    createdAt: time(),
    backedUpAt: time().nullable(),
  },
});

/** Queued mails, sealed. */
const MailMessage = defineEntity({
  name: 'MailMessage',
  tableName: 'mail_message',
  properties: {
    tenantId: p.string().primary(),
    id: p.string().primary(),
    userId: p.string().nullable(),
    sealed: p.blob(),
    attempts: p.integer(),
    createdAt: time(),
    expiresAt: time(),
    nextAt: time(),
  },
  filters: tenantFilter,
});

/** Who set which hold aside, and when it comes back at the latest. */
const EscrowAside = defineEntity({
  name: 'EscrowAside',
  tableName: 'escrow_aside',
  properties: {
    tenantId: p.string().primary(),
    userId: p.string().primary(),
    holdId: p.string().primary(),
    backAt: time(),
  },
  filters: tenantFilter,
});

/** Who wants to be mailed about what. */
const MailPreference = defineEntity({
  name: 'MailPreference',
  tableName: 'mail_preference',
  properties: {
    tenantId: p.string().primary(),
    userId: p.string().primary(),
    pace: p.text(),
    kinds: p.array(),
    /** Hour of the daily letter, in UTC. */
    dailyHour: p.integer(),
    /** Per kind: how many letters were written in the hour that began then. */
    sent: p.json<Partial<Record<MailKind, { since: number; letters: number }>>>().columnType('jsonb'),
  },
  filters: tenantFilter,
});

/** What is to be mailed to whom, and when. */
const MailNotice = defineEntity({
  name: 'MailNotice',
  tableName: 'mail_notice',
  properties: {
    tenantId: p.string().primary(),
    userId: p.string().primary(),
    kind: p.string().primary(),
    subjectId: p.string().primary(),
    /** Version of a policy; 0 for a hold. */
    version: p.integer().primary(),
    createdAt: time(),
    dueAt: time(),
  },
  filters: tenantFilter,
});

/** Signed bundles, by the scopes that they were built for. */
const PolicyBundle = defineEntity({
  name: 'PolicyBundle',
  tableName: 'policy_bundle',
  properties: {
    tenantId: p.string().primary(),
    scopeSet: p.string().primary(),
    seq: p.bigint('number').primary(),
    hash: p.text(),
    kid: p.text(),
    bytes: p.blob(),
    builtAt: time(),
    notAfter: time(),
    keyId: p.text().nullable(),
  },
  filters: tenantFilter,
});

/** Which bundle a proxy used, and since when; see server/proxies/bundle-history.ts. */
const ProxyBundle = defineEntity({
  name: 'ProxyBundle',
  tableName: 'proxy_bundle',
  properties: {
    tenantId: p.string().primary(),
    proxyId: p.string().primary(),
    since: time().primary(),
    hash: p.text(),
    seq: p.bigint('number').nullable(),
    builtAt: time().nullable(),
  },
  filters: tenantFilter,
});

/** What was taken from rates and budgets in the open windows, in total and by credential. */
const LimitCounter = defineEntity({
  name: 'LimitCounter',
  tableName: 'limit_counter',
  properties: {
    tenantId: p.string().primary(),
    ruleId: p.string().primary(),
    kind: p.string().primary(),
    key: p.string().primary(),
    windowEndsAt: time(),
    units: p.bigint('number'),
    shares: p.json<Record<string, number>>(),
  },
  filters: tenantFilter,
});

/** What single calls took from them, so that none takes twice. */
const LimitTake = defineEntity({
  name: 'LimitTake',
  tableName: 'limit_take',
  properties: {
    tenantId: p.string().primary(),
    id: p.string().primary(),
    source: p.string(),
    expiresAt: time(),
    counts: p.json<object[]>(),
  },
  filters: tenantFilter,
});

/** Links that sign in a person. */
const SignInLink = defineEntity({
  name: 'SignInLink',
  tableName: 'sign_in_link',
  properties: {
    tenantId: p.string().primary(),
    id: p.string().primary(),
    userId: p.text(),
    createdAt: time(),
    expiresAt: time(),
    usedAt: time().nullable(),
    source: p.text(),
    requestId: p.text().nullable(),
    nonceHash: p.blob().nullable(),
    askerUsedAt: time().nullable(),
    sessionId: p.text().nullable(),
  },
  filters: tenantFilter,
});

/** Requests for such links, sealed; their tenants are not known yet. */
const SignInRequest = defineEntity({
  name: 'SignInRequest',
  tableName: 'sign_in_request',
  properties: {
    id: p.string().primary(),
    sealed: p.blob(),
    createdAt: time(),
    nextAt: time(),
  },
});

/** The keyring; private keys are sealed. */
const SigningKey = defineEntity({
  name: 'SigningKey',
  tableName: 'signing_key',
  properties: {
    kid: p.string().primary(),
    publicKey: p.blob(),
    privateKey: p.blob(),
    createdAt: time(),
    retiredAt: time().nullable(),
  },
});

/** The identity provider of a tenant. */
const SsoConnection = defineEntity({
  name: 'SsoConnection',
  tableName: 'sso_connection',
  properties: {
    tenantId: p.string().primary(),
    issuer: p.text(),
    clientId: p.text(),
    clientSecret: p.blob(),
    revision: p.text(),
    createdAt: time(),
    updatedAt: time(),
    provenAt: time().nullable(),
    provenBy: p.text().nullable(),
  },
  filters: tenantFilter,
});

/** The tenant whose provider sends browsers back to the path without a name; at most one row. */
const PlainCallback = defineEntity({
  name: 'PlainCallback',
  tableName: 'plain_callback',
  properties: {
    one: p.boolean().primary(),
    tenantId: p.text(),
  },
  filters: tenantFilter,
});

/** Domains that a tenant claims. */
const SsoDomain = defineEntity({
  name: 'SsoDomain',
  tableName: 'sso_domain',
  properties: {
    tenantId: p.string().primary(),
    domain: p.string().primary(),
    token: p.text(),
    createdAt: time(),
    lostAt: time().nullable(),
  },
  filters: tenantFilter,
});

/** Which provider account belongs to which member. */
const SsoIdentity = defineEntity({
  name: 'SsoIdentity',
  tableName: 'sso_identity',
  properties: {
    tenantId: p.string().primary(),
    issuer: p.string().primary(),
    subject: p.string().primary(),
    userId: p.text(),
    createdAt: time(),
    lastUsedAt: time(),
  },
  filters: tenantFilter,
});

/** Used states of single sign-on. */
const SsoUsedState = defineEntity({
  name: 'SsoUsedState',
  tableName: 'sso_used_state',
  properties: {
    tenantId: p.string().primary(),
    id: p.string().primary(),
    expiresAt: time(),
  },
  filters: tenantFilter,
});

/** Issuers whose tokens identify agents. */
const TokenIssuer = defineEntity({
  name: 'TokenIssuer',
  tableName: 'token_issuer',
  properties: {
    tenantId: p.string().primary(),
    id: p.string().primary(),
    issuer: p.string(),
    place: p.integer(),
    settings: p.json().columnType('jsonb'),
    changedBy: p.array(),
    endedAt: time().nullable(),
  },
  filters: tenantFilter,
});

/** Domains that a tenant has proven to be its own; one tenant each. */
const VerifiedDomain = defineEntity({
  name: 'VerifiedDomain',
  tableName: 'verified_domain',
  properties: {
    domain: p.string().primary(),
    tenantId: p.text(),
    verifiedAt: time(),
    checkedAt: time(),
    failedAt: time().nullable(),
    failingSince: time().nullable(),
    missingSince: time().nullable(),
  },
  filters: tenantFilter,
});

/** An issued token, and the platform's token that was used up for it. */
const WorkloadToken = defineEntity({
  name: 'WorkloadToken',
  tableName: 'workload_token',
  properties: {
    tenantId: p.string().primary(),
    id: p.string().primary(),
    trustId: p.string(),
    subjectHash: p.text(),
    scopes: p.array(),
    policies: p.text().nullable(),
    source: p.json().columnType('jsonb'),
    createdAt: time(),
    expiresAt: time(),
    /** By when the platform's token has certainly expired. */
    forgetAt: time(),
    lastUsedAt: time().nullable(),
    revokedAt: time().nullable(),
  },
  filters: tenantFilter,
});

/** A tenant that is moving to another installation or came from one. */
const TenantMove = defineEntity({
  name: 'TenantMove',
  tableName: 'tenant_move',
  properties: {
    tenantId: p.string().primary(),
    direction: p.string().primary(),
    id: p.string(),
    state: p.text(),
    /** The other installation. */
    other: p.string(),
    /** Its public address. */
    address: p.text(),
    changedAt: time(),
    sealed: p.blob().nullable(),
  },
  filters: tenantFilter,
});

/** A row of a departing tenant, removed from its table. */
const TenantParcel = defineEntity({
  name: 'TenantParcel',
  tableName: 'tenant_parcel',
  properties: {
    tenantId: p.string().primary(),
    source: p.string().primary(),
    place: p.bigint('number').primary(),
    content: p.json().columnType('jsonb'),
  },
  filters: tenantFilter,
});

/** A verify-only key of the installation that a tenant came from. */
const FormerKey = defineEntity({
  name: 'FormerKey',
  tableName: 'former_key',
  properties: {
    tenantId: p.string().primary(),
    kid: p.string().primary(),
    sealed: p.blob(),
  },
  filters: tenantFilter,
});

export const rawEntities = [
  AuditRecord,
  ChainAlarm,
  ChainCheckpoint,
  ChainHead,
  Credential,
  DecisionInput,
  SessionFact,
  ReportedOutcome,
  AgentCall,
  PolicyTests,
  DeliveryLane,
  EventOutbox,
  EvidenceChunk,
  ForensicBlock,
  ForensicRecord,
  FormerKey,
  Instance,
  LimitCounter,
  LimitTake,
  EscrowAside,
  MailMessage,
  MailNotice,
  MailPreference,
  PolicyBundle,
  ProxyBundle,
  SavedQuestion,
  PendingComment,
  PlainCallback,
  SignInLink,
  SignInRequest,
  SigningKey,
  SsoConnection,
  SsoDomain,
  SsoIdentity,
  SsoUsedState,
  TenantMove,
  TenantParcel,
  TokenIssuer,
  VerifiedDomain,
  WorkloadToken,
];
