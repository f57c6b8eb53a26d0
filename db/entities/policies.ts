import { defineEntity, type InferEntity, p } from '@mikro-orm/postgresql';
import type { PolicyContext, ReviewStatus } from '../../machines/policy.ts';
import type { Source } from '../../server/domain/workload.ts';
import { tenantFilter, time } from './common.ts';

/* Policies with their versions and simulations, and the lists that they read. */

export const Policy = defineEntity({
  name: 'Policy',
  tableName: 'policy',
  properties: {
    tenantId: p.string().primary(),
    id: p.string().primary(),
    /** The state of the policy machine: the newest revision's. */
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
  /** Set for a comment. */
  id?: string;
  /** The comment that started the thread, if this one is a reply. */
  thread?: string;
  /** The lines that a thread is about, as they read at the time. */
  place?: CommentPlace;
  /** What a comment suggests in place of the lines: none, one or several. */
  suggestion?: string;
  /** Who last marked the thread as resolved. */
  resolved?: { by: string; at: string };
}

export interface CommentPlace {
  part: 'text' | 'tests';
  /** The version the lines are from: the reviewed one, or the one it is compared with. */
  version: number;
  line: number;
  /** The last line, if there are several. */
  end_line?: number;
  /** If there are many lines, the first. */
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
    /** Hash of the text without blanks and line ends: equal for the same text in any formatting. */
    squeezedHash: p.text(),
    /** Only for the quota: enforcement reads the text. */
    statementCount: p.integer(),
    /** The reference lists that the text names, for finding policies: enforcement reads the text. */
    lists: p.array(),
    authorId: p.string(),
    /** Everyone who wrote any of it since a version last went live; a rollback to it makes them authors again. */
    authors: p.array(),
    change: p.enum(['create', 'update', 'rollback'] as const),
    rolledBackFrom: p.integer().nullable(),
    note: p.text().nullable(),
    reviews: p.json<ReviewRecord[]>().columnType('jsonb'),
    /** Where a pipeline got it from. Not part of the hash. */
    source: p.json<Source>().columnType('jsonb').nullable(),
    createdAt: time(),
  },
  filters: tenantFilter,
});
export type PolicyRevisionRow = InferEntity<typeof PolicyRevision>;

/** What a draft of a policy would have decided on past decisions: the result, or a run in progress. */
export const PolicySimulation = defineEntity({
  name: 'PolicySimulation',
  tableName: 'policy_simulation',
  properties: {
    tenantId: p.string().primary(),
    id: p.string().primary(),
    policyId: p.string(),
    /** Null if the text belongs to no version. */
    version: p.integer().nullable(),
    /** Started by a submission. */
    automatic: p.boolean(),
    dslSource: p.text(),
    /** The hash of the text only. */
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
    /** The process that runs it extends this; once it is over, another may take over. */
    leaseUntil: time().nullable(),
    /** How many times a process took it. Only the last one may store a result. */
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

/** A list of known values that policies read. A deleted list keeps its number, so that no version number is reused. */
export const ReferenceList = defineEntity({
  name: 'ReferenceList',
  tableName: 'reference_list',
  properties: {
    tenantId: p.string().primary(),
    name: p.string().primary(),
    /** The newest version. */
    version: p.integer(),
    /** The version in bundles; null before the first approval and after a deletion. */
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
    /** Sorted by code units, ascending; null when no longer kept. */
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
    /** The author's or the approver's comment. */
    comment: p.text().nullable(),
  },
  filters: tenantFilter,
});
export type ReferenceListVersionRow = InferEntity<typeof ReferenceListVersion>;
