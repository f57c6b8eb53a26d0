import { defineEntity, type InferEntity, p } from '@mikro-orm/postgresql';
import type { ClaimMatch } from '../../server/domain/workload.ts';
import { tenantFilter, time } from './common.ts';

/* Tenants, their people, and the credentials of people, agents and pipelines. */

export const Tenant = defineEntity({
  name: 'Tenant',
  tableName: 'tenant',
  properties: {
    tenantId: p.string().primary(),
    name: p.text(),
    settings: p.json<Record<string, unknown>>(),
    createdAt: time(),
    /** Set if its contents are made up, see server/demo. */
    demo: p.text().nullable(),
    /** New bundles get higher numbers than this: the highest that a proxy has shown. */
    bundleFloor: p.bigint('number').default(0),
    bundleFloorAt: time().nullable(),
    /** The number of the last stops document. */
    stopsSeq: p.bigint('number').default(0),
    /** When to look next for inputs of decisions that are due for erasure. */
    eraseAt: time().defaultRaw("'epoch'"),
  },
  filters: tenantFilter,
});

/** How a change affects one setting. */
export interface SettingEffect {
  setting: string;
  from: unknown;
  to: unknown;
  /** Removes a safeguard. */
  loosens: boolean;
}

/** A change of settings that is or was waiting for a second person. */
export const SettingsChange = defineEntity({
  name: 'SettingsChange',
  tableName: 'settings_change',
  properties: {
    tenantId: p.string().primary(),
    id: p.string().primary(),
    status: p.enum(['pending', 'approved', 'rejected', 'withdrawn', 'superseded'] as const),
    /** What it changes: the settings, how people sign in at the identity provider, or whose tokens count. */
    part: p.enum(['settings', 'sso', 'token_issuers', 'workload_trust'] as const),
    /** The change to apply. */
    patch: p.json<Record<string, unknown>>().columnType('jsonb'),
    /** Its effects, relative to the settings at the time of the request. */
    changes: p.json<SettingEffect[]>().columnType('jsonb'),
    /** Secrets applied with it and never shown; removed as soon as the change is decided. */
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
    /** sha256 of the session id, in hex: the database never holds the value of the cookie. */
    id: p.string().primary(),
    userId: p.string(),
    /** What lists show in place of the id. */
    handle: p.string(),
    authMethod: p.text(),
    /** The address it was started from. */
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

/** An invitation to join. Open until it is accepted or revoked; its link is dead after `expiresAt`. */
export const Invitation = defineEntity({
  name: 'Invitation',
  tableName: 'invitation',
  properties: {
    tenantId: p.string().primary(),
    id: p.string().primary(),
    email: p.text(),
    roles: p.array(),
    tokenHash: p.blob(),
    /** The person, key or operator who invited. */
    invitedBy: p.text(),
    /** The person who invited, through a session or a key of theirs: the invitation ends when they are no longer an admin. */
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
    /** The first of the keys that were rotated into this one; its own id if the key was never rotated. */
    lineId: p.string(),
    label: p.text(),
    prefix: p.text(),
    scopes: p.array(),
    createdBy: p.string().nullable(),
    /** Of a key of nobody: the person who counts as the author of what is written with it. */
    authorId: p.string().nullable(),
    /** The API key with which it was made, or made to replace another. */
    madeWith: p.string().nullable(),
    createdAt: time(),
    lastUsedAt: time().nullable(),
    expiresAt: time().nullable(),
    /** Its lifetime when it was created; null for unlimited. A rotation brings `expiresAt` forward, not this. */
    lifeMs: p.bigint('number').nullable(),
    revokedAt: time().nullable(),
    /** Restored from a backup: it works again once an operator confirms it. */
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
    /** The proxy that reported it; null if the agent asked here. */
    lastUsedBy: p.text().nullable(),
    expiresAt: time().nullable(),
    /** Its lifetime when it was created; null for unlimited. A rotation brings `expiresAt` forward, not this. */
    lifeMs: p.bigint('number').nullable(),
    revokedAt: time().nullable(),
    /** Restored from a backup: it works again once an operator confirms it. */
    unconfirmedSince: time().nullable(),
  },
  filters: tenantFilter,
});
export type AgentKeyRow = InferEntity<typeof AgentKey>;

/** An issuer whose tokens may be exchanged for tokens of this server. */
export const WorkloadTrust = defineEntity({
  name: 'WorkloadTrust',
  tableName: 'workload_trust',
  properties: {
    tenantId: p.string().primary(),
    id: p.string().primary(),
    label: p.text(),
    issuer: p.text(),
    audience: p.text(),
    /** Where the issuer publishes its keys, if its discovery document does not say. */
    jwksUri: p.text().nullable(),
    match: p.json<ClaimMatch>().columnType('jsonb'),
    scopes: p.array(),
    policies: p.text().nullable(),
    createdBy: p.string().nullable(),
    createdAt: time(),
    lastUsedAt: time().nullable(),
    revokedAt: time().nullable(),
    /** Restored from a backup: it works again once an operator confirms it. */
    unconfirmedSince: time().nullable(),
  },
  filters: tenantFilter,
});
export type WorkloadTrustRow = InferEntity<typeof WorkloadTrust>;
