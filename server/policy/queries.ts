import type { QBFilterQuery } from '@mikro-orm/postgresql';
import { Policy, PolicyRevision, type PolicyRevisionRow, type PolicyRow } from '../../db/entities/index.ts';
import type { Asker, Database } from '../../db/index.ts';
import { type PolicyEvent, type PolicyState, policyRefusal } from '../../machines/policy.ts';
import { authorOf, hasRole, type Principal, personOf } from '../domain/principal.ts';
import type { Source } from '../domain/workload.ts';
import { AppError } from '../errors.ts';
import type { CustomActionTypes } from './language/schema.ts';

/** The person who counts as author or approver of a change, and their rights. */
export interface Who {
  person: string;
  /** Who counts as the author of what they write, if it is not the person: see authorOf. */
  author?: string;
  /** A signed-in person, not a key. */
  signedIn: boolean;
  admin: boolean;
  /** A pipeline that may submit what it wrote. */
  asks?: boolean;
  /** Who made the trust through which a pipeline acts: its changes count as theirs too. */
  maker?: string | undefined;
}

export function whoOf(principal: Principal): Who {
  const signedIn = principal.kind === 'session';
  return {
    person: personOf(principal),
    author: authorOf(principal),
    signedIn,
    admin: signedIn && hasRole(principal.roles, 'admin'),
    asks: principal.kind === 'workload_token' && principal.scopes.includes('policies:submit'),
    maker: (principal.kind === 'workload_token' && principal.makerId) || undefined,
  };
}

export interface Rules {
  approval_required: boolean;
  self_approval: boolean;
  tests_required: boolean;
  min_coverage: number;
  simulation_required: boolean;
  action_types: CustomActionTypes;
}

/** A policy with its newest revision. */
export interface PolicyView {
  id: string;
  dsl_source: string;
  /** The test suite of the newest revision. */
  tests_source: string | null;
  status: PolicyState;
  version: number;
  content_hash: string;
  author_id: string;
  created_at: string;
  updated_at: string;
  live_version: number | null;
  scopes: string[];
}

/** A break-glass deployment that still needs a review by someone other than its actor. */
export interface OpenReview {
  version: number;
  actor: string;
  reason?: string;
  opened_at?: string;
}

/** List filters for policies that need a decision. */
export const REVIEWS = ['open', 'break_glass'] as const;

export const POLICY_ORDERS = ['updated_at', 'id', 'status'] as const;
const ORDER_BY = {
  updated_at: { updatedAt: 'desc', id: 'asc' },
  id: { id: 'asc' },
  status: { status: 'asc', id: 'asc' },
} as const satisfies Record<(typeof POLICY_ORDERS)[number], object>;
/** Policies whose texts are searched. */
const MOST_SEARCHED = 5_000;

/** Read-only queries on policies and their versions. */
export class PolicyQueries {
  readonly #db: Database;
  readonly #rules: (tenantId: string) => Promise<Rules>;

  constructor(parts: { db: Database; rules: (tenantId: string) => Promise<Rules> }) {
    this.#db = parts.db;
    this.#rules = parts.rules;
  }

  /** Most recently changed first. With `review`, policies enforced by break glass come first. `who`: the caller, see readOnly. */
  async list(
    tenantId: string,
    filter: {
      /** Of the newest version. */
      status?: PolicyState | undefined;
      /** Whether any version is enforced. */
      enforced?: boolean | undefined;
      review?: (typeof REVIEWS)[number] | undefined;
      agent_role?: string | undefined;
      scope?: string | undefined;
      /** An id, or a prefix followed by `*`. */
      ids?: string | undefined;
      /** A part of the id or of the newest text. */
      q?: string | undefined;
      order?: (typeof POLICY_ORDERS)[number] | undefined;
      limit: number;
      offset: number;
    },
    asker?: Asker,
  ): Promise<{ policies: (PolicyView & { open_review: OpenReview | null })[]; total: number }> {
    const where: QBFilterQuery<PolicyRow>[] = [];
    if (filter.status) where.push({ status: filter.status });
    if (filter.enforced !== undefined) where.push({ liveVersion: filter.enforced ? { $ne: null } : null });
    if (filter.review === 'break_glass') where.push({ reviewOpen: true });
    if (filter.review === 'open') where.push({ $or: [{ reviewOpen: true }, { status: 'pending_approval' }] });
    // a statement without a named role applies to agents of every role
    if (filter.agent_role) where.push({ $or: [{ roles: { $contains: [filter.agent_role] } }, { anyRole: true }] });
    if (filter.scope) where.push({ scopes: { $contains: [filter.scope] } });
    if (filter.ids !== undefined) where.push({ id: { $like: likeOf(filter.ids) } });
    if (filter.q !== undefined) where.push({ id: { $in: await this.#with(tenantId, filter.q, asker) } });
    const [rows, total] = await this.#db
      .reader(tenantId)
      .findAndCount(Policy, where.length > 0 ? { $and: where } : {}, {
        orderBy: { ...(filter.review && { reviewOpen: 'desc' }), ...ORDER_BY[filter.order ?? 'updated_at'] },
        limit: filter.limit,
        offset: filter.offset,
      });
    if (rows.length === 0) return { policies: [], total };
    const shown = rows.flatMap(({ id: policyId, version, machineContext: { openReviews } }) =>
      [...new Set([version, ...openReviews.slice(0, 1).map((open) => open.version)])].map((one) => ({
        policyId,
        version: one,
      })),
    );
    const revisions = Map.groupBy(
      await this.#db.reader(tenantId).find(PolicyRevision, { $or: shown }),
      ({ policyId }) => policyId,
    );
    const policies = rows.map((row) => {
      const own = revisions.get(row.id)!;
      const newest = own.find(({ version }) => version === row.version)!;
      return { ...policyView(row, newest), open_review: openReviewOf(row, own) };
    });
    return { policies, total };
  }

  /** The policies that contain a text in their id or in their newest version. */
  async #with(tenantId: string, part: string, asker: Asker | undefined): Promise<string[]> {
    return this.#db.readOnly(
      tenantId,
      async (client) => {
        const { rows } = await client.query<{ id: string }>(
          `select id from (
           select p.id, r.dsl_source from policy p join policy_revision r
             on r.tenant_id = $1 and r.policy_id = p.id and r.version = p.version
           where p.tenant_id = $1 order by p.updated_at desc limit ${MOST_SEARCHED}) t
         where strpos(lower(id), lower($2)) > 0 or strpos(lower(dsl_source), lower($2)) > 0`,
          [tenantId, part],
        );
        return rows.map(({ id }) => id);
      },
      asker,
    );
  }

  /** The policy with its versions, newest first. NOT_FOUND if the tenant has no such policy. */
  async get(tenantId: string, id: string) {
    const policy = await this.find(tenantId, id);
    const revisions = await this.#db
      .reader(tenantId)
      .find(PolicyRevision, { policyId: id }, { orderBy: { version: 'desc' } });
    return {
      ...policyView(policy, revisions[0]!),
      open_review: openReviewOf(policy, revisions),
      versions: revisions.map((revision) => versionView(revision, policy.liveVersion ?? null)),
    };
  }

  /** The state of a policy's machine, and for each event why it would be rejected for `who` now; null if allowed. */
  async standing(tenantId: string, id: string, who: Who) {
    const { status, machineContext: context, machineVersion } = await this.find(tenantId, id);
    const circumstances = circumstancesOf(who, await this.#rules(tenantId));
    const { version, openReviews } = context;
    const decides = status === 'draft' || status === 'pending_approval';
    const ask = (event: BareEvent) => policyRefusal(status, context, { ...event, ...circumstances }) ?? null;
    return {
      state: status,
      version: machineVersion,
      refusals: {
        update: ask({ type: 'update' }),
        rollback: ask({ type: 'rollback' }),
        submit: ask({ type: 'submit' }),
        approve: ask({ type: 'approve', version: decides ? version : (openReviews[0]?.version ?? version) }),
        reject: ask({ type: 'reject', version }),
        request_changes: ask({ type: 'request_changes', version }),
        revoke: ask({ type: 'revoke' }),
        break_glass: ask({ type: 'break_glass' }),
        comment: ask({ type: 'comment', version }),
      } satisfies Record<PolicyEvent['type'], unknown>,
    };
  }

  async version(tenantId: string, id: string, version: number) {
    const policy = await this.find(tenantId, id);
    const revision = await this.revision(tenantId, id, version);
    return {
      policy_id: id,
      dsl_source: revision.dslSource,
      tests_source: revision.testsSource ?? null,
      ...versionView(revision, policy.liveVersion ?? null),
    };
  }

  async revision(tenantId: string, id: string, version: number): Promise<PolicyRevisionRow> {
    const revision = await this.#db.reader(tenantId).findOne(PolicyRevision, { policyId: id, version });
    if (!revision) throw new AppError('NOT_FOUND', 'the policy has no such version');
    return revision;
  }

  /** The newest and the live version of a policy; undefined if the tenant has no such policy. */
  async newest(tenantId: string, id: string) {
    const policy = await this.#db.reader(tenantId).findOne(Policy, { id });
    if (!policy) return undefined;
    const live_version = policy.liveVersion ?? null;
    const versions = [policy.version, ...(live_version === null ? [] : [live_version])];
    const found = await this.#db.reader(tenantId).find(PolicyRevision, { policyId: id, version: { $in: versions } });
    const view = (version: number) => {
      const revision = found.find((one) => one.version === version)!;
      return { ...policyView(policy, revision), version, source: revision.source ?? null };
    };
    return { newest: view(policy.version), live: live_version === null ? null : view(live_version), live_version };
  }

  /** The policies that a plan does not name and that are not revoked, with the source of their newest version. */
  async others(tenantId: string, ids: readonly string[], glob: string | null, limit: number) {
    const rows = await this.#db.query<{
      id: string;
      status: PolicyState;
      version: number;
      live_version: number | null;
      content_hash: string;
      source: Source | null;
    }>(
      tenantId,
      `select p.id, p.status, p.version, p.live_version, r.content_hash, r.source from policy p
       join policy_revision r on r.tenant_id = p.tenant_id and r.policy_id = p.id and r.version = p.version
       where p.tenant_id = $1 and p.status <> 'revoked' and not p.id = any($2) and p.id like $3
       order by p.id limit $4`,
      [tenantId, ids, glob === null ? '%' : likeOf(glob), limit],
    );
    return rows;
  }

  async approvalRequired(tenantId: string): Promise<boolean> {
    return (await this.#rules(tenantId)).approval_required;
  }

  /** The stored policy. NOT_FOUND if the tenant has no such policy. */
  async find(tenantId: string, id: string): Promise<PolicyRow> {
    const policy = await this.#db.reader(tenantId).findOne(Policy, { id });
    if (!policy) throw new AppError('NOT_FOUND', 'the policy does not exist');
    return policy;
  }
}

/** An id, or a prefix followed by `*`, as a LIKE pattern. */
const likeOf = (glob: string) => glob.replace(/[\\%_]/g, '\\$&').replace(/\*$/, '%');

/** An event of the policy machine without the actor and the tenant's rules. */
export type BareEvent = PolicyEvent extends infer E
  ? E extends PolicyEvent
    ? Omit<E, keyof Circumstances>
    : never
  : never;
type Circumstances = ReturnType<typeof circumstancesOf>;

export function circumstancesOf({ person, author, signedIn, admin, asks = false, maker }: Who, rules: Rules) {
  return {
    actor: author ?? person,
    ...(maker !== undefined && { maker }),
    signedIn,
    asks,
    admin,
    approvalRequired: rules.approval_required,
    selfApproval: rules.self_approval,
  };
}

export function policyView(policy: PolicyRow, newest: PolicyRevisionRow): PolicyView {
  return {
    id: policy.id,
    dsl_source: newest.dslSource,
    tests_source: newest.testsSource ?? null,
    status: policy.status,
    version: policy.version,
    content_hash: newest.contentHash,
    author_id: newest.authorId,
    created_at: policy.createdAt.toISOString(),
    updated_at: policy.updatedAt.toISOString(),
    live_version: policy.liveVersion ?? null,
    scopes: policy.scopes,
  };
}

/** The oldest open review. */
function openReviewOf(policy: PolicyRow, revisions: readonly PolicyRevisionRow[]): OpenReview | null {
  const [open] = policy.machineContext.openReviews;
  if (!open) return null;
  const revision = revisions.find(({ version }) => version === open.version);
  const broken = revision?.reviews.findLast(
    ({ status, decided_by }) => status === 'break_glass' && decided_by === open.actor,
  );
  return {
    ...open,
    ...(broken && { opened_at: broken.decided_at }),
    ...(broken?.comment !== undefined && { reason: broken.comment }),
  };
}

function versionView(revision: PolicyRevisionRow, live: number | null) {
  const last = revision.reviews.findLast(({ status }) => status !== 'commented');
  const byEmergency = revision.reviews.some((review) => review.status === 'break_glass');
  return {
    version: revision.version,
    content_hash: revision.contentHash,
    author_id: revision.authorId,
    created_at: revision.createdAt.toISOString(),
    change: byEmergency ? ('break_glass' as const) : revision.change,
    live: revision.version === live,
    ...(revision.rolledBackFrom != null && { rolled_back_from: revision.rolledBackFrom }),
    ...(revision.note != null && { note: revision.note }),
    ...(revision.source != null && { source: revision.source }),
    ...(last && { review: last }),
    ...(revision.reviews.length > 0 && { reviews: revision.reviews }),
  };
}
