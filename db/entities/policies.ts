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
  /** The lines that a thread is about, as they were written there. */
  place?: CommentPlace;
  /** What a comment would have stand there in place of the lines: none, one or several. */
  suggestion?: string;
  /** Who said last that the thread is settled. */
  resolved?: { by: string; at: string };
}

export interface CommentPlace {
  part: 'text' | 'tests';
  /** The version whose lines they are: the reviewed one, or the one that it is compared with. */
  version: number;
  line: number;
  /** The last one of several. */
  end_line?: number;
  /** Of many lines the first. */
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
    /** Of the text without blanks and line ends: the same text however it is formatted. */
    squeezedHash: p.text(),
    /** For the quota alone: what is enforced is read from the text. */
    statementCount: p.integer(),
    /** The reference lists that the text names, to find policies by: what is enforced is read from the text. */
    lists: p.array(),
    authorId: p.string(),
    /** Who wrote any of it since a version last went live; a rollback to it makes them authors again. */
    authors: p.array(),
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
