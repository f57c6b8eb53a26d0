import {
  type EntityManager,
  LockMode,
  type QBFilterQuery,
  UniqueConstraintViolationException,
} from '@mikro-orm/postgresql';
import { Policy, PolicyRevision, type PolicyRevisionRow, type PolicyRow } from '../../db/entities/index.ts';
import type { Database, WriteAudit } from '../../db/index.ts';
import type { Step } from '../../db/notices.ts';
import { addEvent } from '../../db/outbox.ts';
import {
  createPolicy,
  POLICY_MACHINE_VERSION,
  type PolicyEffect,
  type PolicyEvent,
  type PolicyState,
  policyRefusal,
  restorePolicy,
  stepPolicy,
} from '../../machines/policy.ts';
import type { Actor } from '../domain/audit.ts';
import { isEventType } from '../domain/events.ts';
import type { ActionRequest, Diagnostic } from '../domain/policy.ts';
import { hasRole, type Principal, personOf } from '../domain/principal.ts';
import { AppError } from '../errors.ts';
import type { Clock } from '../lib/clock.ts';
import { sha256Tag } from '../lib/crypto.ts';
import { newId } from '../lib/ids.ts';
import { AuthorBusy, type AuthorLanguage, type Trial } from './authoring/author.ts';
import { ENFORCED } from './bundles.ts';
import type { Verdict } from './evaluation/evaluate.ts';
import type { Compilation, CompiledStatement } from './language/compile.ts';
import { actionEntities, type OwnActionTypes, schemaFor } from './language/schema.ts';

/** Who acts: the person that counts for author and approver, and what they may. */
export interface Who {
  person: string;
  /** A person who is signed in, and no key. */
  signedIn: boolean;
  admin: boolean;
}

export function whoOf(principal: Principal): Who {
  const signedIn = principal.kind === 'session';
  return { person: personOf(principal), signedIn, admin: signedIn && hasRole(principal.roles, 'admin') };
}

/** Who acts, and how the audit chain names the credential. */
export interface By extends Who {
  actor: Actor;
  requestId?: string | undefined;
}

export interface Rules {
  approval_required: boolean;
  self_approval: boolean;
  action_types: OwnActionTypes;
}

/** A policy with its newest revision. */
export interface PolicyView {
  id: string;
  dsl_source: string;
  status: PolicyState;
  version: number;
  content_hash: string;
  author_id: string;
  created_at: string;
  updated_at: string;
  live_version: number | null;
  scopes: string[];
}

/** A break-glass deployment that waits for an approver other than its actor. */
export interface OpenReview {
  version: number;
  actor: string;
  reason?: string;
  opened_at?: string;
}

/** What the list is asked for: policies on which somebody must decide. */
export const REVIEWS = ['open', 'break_glass'] as const;

/** A statement that no request meets: agents have ids. */
const NO_RULE = 'forbid(principal == Agent::"", action, resource == Tool::"");';

/** Decisions and remarks on one version. */
const MOST_REVIEWS = 500;
/** Ids that are words of the routes. */
const RESERVED = new Set(['bundle', 'validate', 'format', 'try']);

/**
 * The life of policies. Each change is one transaction: the policy's row is locked, the machine takes the event or the
 * refusal table says why not, and state, revision and audit record are stored together.
 */
export class Policies {
  readonly #db: Database;
  readonly #clock: Clock;
  readonly #audit: WriteAudit;
  readonly #language: AuthorLanguage;
  readonly #rules: (tenantId: string) => Promise<Rules>;
  readonly #rulesWithin: (em: EntityManager) => Promise<Rules>;
  readonly #mostStatements: number;

  constructor(parts: {
    db: Database;
    clock: Clock;
    audit: WriteAudit;
    language: AuthorLanguage;
    rules: (tenantId: string) => Promise<Rules>;
    /** The same, held until the transaction ends. */
    rulesWithin: (em: EntityManager) => Promise<Rules>;
    /** Statements that the live policies of a tenant may have together. */
    mostStatements: number;
  }) {
    this.#db = parts.db;
    this.#clock = parts.clock;
    this.#audit = parts.audit;
    this.#language = parts.language;
    this.#rules = parts.rules;
    this.#rulesWithin = parts.rulesWithin;
    this.#mostStatements = parts.mostStatements;
  }

  /** Checks a text and saves nothing. */
  async validate(tenantId: string, source: string, policyId = 'policy'): Promise<Compilation> {
    const { action_types } = await this.#rules(tenantId);
    const compiled = await this.#ask((language) =>
      language.compile(tenantId, policyId, source, schemaFor(action_types)),
    );
    return compiled.errors.length > 0 ? compiled : { ...compiled, errors: nulFaults(source, compiled) };
  }

  /**
   * What a text would decide on a request, and what is decided now. With `alone` the text stands by itself, else in the
   * place of the policy's live version among all live ones. Nothing is saved, counted or recorded.
   */
  async tryOut(
    tenantId: string,
    input: { id?: string | undefined; dsl_source: string; alone: boolean; request: Omit<ActionRequest, 'now'> },
  ): Promise<Trial & { live: Verdict | null }> {
    const { action_types } = await this.#rules(tenantId);
    const policyId = input.id ?? 'policy';
    const rows = await this.#db.query<{ policy_id: string; version: number; dsl_source: string }>(
      tenantId,
      `select r.policy_id, r.version, r.dsl_source from policy p
       join policy_revision r on r.tenant_id = p.tenant_id and r.policy_id = p.id and r.version = p.live_version
       where p.tenant_id = $1`,
      [tenantId],
    );
    const live = rows.map(({ policy_id, version, dsl_source }) => ({ policyId: policy_id, version, text: dsl_source }));
    const common = {
      schema: schemaFor(action_types),
      actionEntities: actionEntities(action_types),
      request: { ...input.request, now: new Date(this.#clock.now()).toISOString() },
    };
    const beside = input.alone ? [] : live.filter((one) => one.policyId !== policyId);
    const trial = await this.#ask((language) =>
      language.tryOut(tenantId, { policyId, text: input.dsl_source, beside, ...common }),
    );
    // a text that permits nothing and forbids nothing stands for no draft at all
    const now =
      trial.verdict &&
      (await this.#ask((language) =>
        language.tryOut(tenantId, { policyId: '', text: NO_RULE, beside: live, ...common }),
      ));
    return { ...trial, live: now?.verdict ?? null };
  }

  async format(tenantId: string, source: string): Promise<{ formatted?: string; errors: Diagnostic[] }> {
    return this.#ask((language) => language.format(tenantId, source));
  }

  /** UNAVAILABLE when a text could not be checked now. */
  async #ask<T>(job: (language: AuthorLanguage) => Promise<T>): Promise<T> {
    try {
      return await job(this.#language);
    } catch (error) {
      if (!(error instanceof AuthorBusy)) throw error;
      throw new AppError('UNAVAILABLE', error.message, { headers: { 'retry-after': '2' }, cause: error });
    }
  }

  /** A new policy in `draft`, version 1. CONFLICT when the id is taken, POLICY_INVALID when the text has errors. */
  async create(tenantId: string, input: { id?: string | undefined; dsl_source: string }, by: By): Promise<PolicyView> {
    const now = new Date(this.#clock.now());
    const id = input.id ?? newId('pol', now.getTime());
    if (RESERVED.has(id)) {
      throw new AppError('VALIDATION_FAILED', undefined, {
        faults: [{ pointer: '/id', message: `"${id}" is reserved` }],
      });
    }
    const compiled = await this.#compile(tenantId, id, input.dsl_source);
    return this.#db.transaction(tenantId, async (em, notify) => {
      const [snapshot, effects] = createPolicy(by.person);
      const policy = em.create(Policy, {
        tenantId,
        id,
        status: snapshot.value,
        version: snapshot.context.version,
        liveVersion: null,
        machineVersion: POLICY_MACHINE_VERSION,
        machineContext: snapshot.context,
        roles: compiled.roles,
        anyRole: compiled.any_role,
        scopes: compiled.scopes,
        createdAt: now,
        updatedAt: now,
      });
      try {
        await em.flush();
      } catch (error) {
        if (!(error instanceof UniqueConstraintViolationException)) throw error;
        throw new AppError('CONFLICT', 'there is a policy with this id');
      }
      const revision = this.#addRevision(em, policy, input.dsl_source, compiled, by, 'create', now);
      await em.flush();
      await notify('revisions', id, [
        { event: { type: 'xstate.init' }, state: snapshot.value, context: snapshot.context },
      ]);
      await this.#perform(em, policy, effects, by, { after: revision.contentHash });
      return view(policy, revision);
    });
  }

  /** A new version of the text. Whether it is enforced at once is the tenant's rule. */
  async update(tenantId: string, id: string, source: string, by: By): Promise<PolicyView> {
    await this.#exists(tenantId, id);
    const compiled = await this.#compile(tenantId, id, source);
    return this.#revise(tenantId, id, { type: 'update' }, { source, compiled }, by);
  }

  /** A new version with the text of an old one. */
  async rollback(tenantId: string, id: string, target: number, by: By): Promise<PolicyView> {
    const old = await this.revision(tenantId, id, target);
    // compiled again: the tenant's action types may have changed since
    const compiled = await this.#compile(tenantId, id, old.dslSource);
    return this.#revise(tenantId, id, { type: 'rollback', target }, { source: old.dslSource, compiled }, by);
  }

  submit(tenantId: string, id: string, note: string | undefined, by: By): Promise<PolicyView> {
    return this.#decide(tenantId, id, { type: 'submit' }, by, { note: note ?? null });
  }

  /** Of the newest version, or of one that was enforced by break glass, whose review this closes. */
  approve(tenantId: string, id: string, version: number, comment: string | undefined, by: By): Promise<PolicyView> {
    return this.#decide(tenantId, id, { type: 'approve', version }, by, { reason: comment });
  }

  reject(tenantId: string, id: string, version: number, reason: string, by: By): Promise<PolicyView> {
    return this.#decide(tenantId, id, { type: 'reject', version }, by, { reason });
  }

  requestChanges(tenantId: string, id: string, version: number, comment: string, by: By): Promise<PolicyView> {
    return this.#decide(tenantId, id, { type: 'request_changes', version }, by, { reason: comment });
  }

  /** A remark on the newest version. It decides nothing. */
  comment(tenantId: string, id: string, version: number, comment: string, by: By): Promise<PolicyView> {
    return this.#decide(tenantId, id, { type: 'comment', version }, by, { remark: comment });
  }

  /** The policy is in no bundle when this resolves. Its open reviews stay. */
  revoke(tenantId: string, id: string, reason: string | undefined, by: By): Promise<PolicyView> {
    return this.#decide(tenantId, id, { type: 'revoke' }, by, { reason });
  }

  /** The newest version is enforced at once, whatever its review says. Its review stays open. */
  breakGlass(tenantId: string, id: string, reason: string, by: By): Promise<PolicyView> {
    return this.#decide(tenantId, id, { type: 'break_glass' }, by, { reason });
  }

  /** The last changed first; with `review`, those on top that are enforced without one. */
  async list(
    tenantId: string,
    filter: {
      status?: PolicyState | undefined;
      review?: (typeof REVIEWS)[number] | undefined;
      agent_role?: string | undefined;
      scope?: string | undefined;
      limit: number;
      offset: number;
    },
  ): Promise<{ policies: (PolicyView & { open_review: OpenReview | null })[]; total: number }> {
    const where: QBFilterQuery<PolicyRow>[] = [];
    if (filter.status) where.push({ status: filter.status });
    if (filter.review === 'break_glass') where.push({ reviewOpen: true });
    if (filter.review === 'open') where.push({ $or: [{ reviewOpen: true }, { status: 'pending_approval' }] });
    // a statement without a named role applies to agents of every role
    if (filter.agent_role) where.push({ $or: [{ roles: { $contains: [filter.agent_role] } }, { anyRole: true }] });
    if (filter.scope) where.push({ scopes: { $contains: [filter.scope] } });
    const [rows, total] = await this.#db
      .reader(tenantId)
      .findAndCount(Policy, where.length > 0 ? { $and: where } : {}, {
        orderBy: { ...(filter.review && { reviewOpen: 'desc' }), updatedAt: 'desc', id: 'asc' },
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
      return { ...view(row, newest), open_review: openReviewOf(row, own) };
    });
    return { policies, total };
  }

  /** The policy with its versions, newest first. NOT_FOUND when the tenant has no such policy. */
  async get(tenantId: string, id: string) {
    const policy = await this.#exists(tenantId, id);
    const revisions = await this.#db
      .reader(tenantId)
      .find(PolicyRevision, { policyId: id }, { orderBy: { version: 'desc' } });
    return {
      ...view(policy, revisions[0]!),
      open_review: openReviewOf(policy, revisions),
      versions: revisions.map((revision) => versionView(revision, policy.liveVersion ?? null)),
    };
  }

  /** Where a policy's machine stands, and for each event why `who` would be refused now; null when they would not. */
  async standing(tenantId: string, id: string, who: Who) {
    const { status, machineContext: context, machineVersion } = await this.#exists(tenantId, id);
    const circumstances = circumstancesOf(who, await this.#rules(tenantId));
    const { version, openReviews } = context;
    const decides = status === 'draft' || status === 'pending_approval';
    const ask = (event: Happening) => policyRefusal(status, context, { ...event, ...circumstances }) ?? null;
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
    const policy = await this.#exists(tenantId, id);
    const revision = await this.revision(tenantId, id, version);
    return { policy_id: id, dsl_source: revision.dslSource, ...versionView(revision, policy.liveVersion ?? null) };
  }

  async revision(tenantId: string, id: string, version: number): Promise<PolicyRevisionRow> {
    const revision = await this.#db.reader(tenantId).findOne(PolicyRevision, { policyId: id, version });
    if (!revision) throw new AppError('NOT_FOUND', 'there is no such version of the policy');
    return revision;
  }

  /** What changed between two versions: as text, and rule by rule. */
  async diff(tenantId: string, id: string, from: number, to: number) {
    const [old, recent] = await Promise.all([this.revision(tenantId, id, from), this.revision(tenantId, id, to)]);
    const changes = await this.#ask((language) =>
      language.diff(tenantId, {
        policyId: id,
        from: { name: `version ${from}`, text: old.dslSource },
        to: { name: `version ${to}`, text: recent.dslSource },
      }),
    );
    return { policy_id: id, from, to, ...changes };
  }

  /** The newest version in words, rule by rule. */
  async summary(tenantId: string, id: string): Promise<{ policy: PolicyView; statements: CompiledStatement[] }> {
    const policy = await this.#exists(tenantId, id);
    const revision = await this.revision(tenantId, id, policy.version);
    const { statements } = await this.validate(tenantId, revision.dslSource, id);
    return { policy: view(policy, revision), statements };
  }

  async #exists(tenantId: string, id: string): Promise<PolicyRow> {
    const policy = await this.#db.reader(tenantId).findOne(Policy, { id });
    if (!policy) throw new AppError('NOT_FOUND', 'there is no such policy');
    return policy;
  }

  async #compile(tenantId: string, policyId: string, source: string): Promise<Compilation> {
    const compiled = await this.validate(tenantId, source, policyId);
    if (compiled.errors.length > 0) {
      throw new AppError('POLICY_INVALID', compiled.errors[0]!.message, {
        faults: compiled.errors.slice(0, 20).map((error) => ({ pointer: '/dsl_source', ...error })),
      });
    }
    return compiled;
  }

  #addRevision(
    em: EntityManager,
    policy: PolicyRow,
    source: string,
    compiled: Compilation,
    by: By,
    change: 'create' | 'update' | 'rollback',
    now: Date,
    rolledBackFrom: number | null = null,
  ): PolicyRevisionRow {
    policy.roles = compiled.roles;
    policy.anyRole = compiled.any_role;
    policy.scopes = compiled.scopes;
    return em.create(PolicyRevision, {
      tenantId: policy.tenantId,
      policyId: policy.id,
      version: policy.version,
      dslSource: source,
      contentHash: sha256Tag(source),
      statementCount: compiled.statements.length,
      authorId: by.person,
      change,
      rolledBackFrom,
      note: null,
      reviews: [],
      createdAt: now,
    });
  }

  /** Writes down with their revisions what the machine has reviewed. */
  async #review(em: EntityManager, policy: PolicyRow, effects: PolicyEffect[], by: By, comment?: string) {
    const decided_at = new Date(this.#clock.now()).toISOString();
    for (const effect of effects) {
      if (effect.type !== 'review') continue;
      const { status, version } = effect.params;
      const revision = await em.findOneOrFail(PolicyRevision, { policyId: policy.id, version });
      if (status === 'commented' && revision.reviews.length >= MOST_REVIEWS) {
        throw new AppError('CONFLICT', 'the version has too many remarks');
      }
      revision.reviews = [
        ...revision.reviews,
        { status, decided_by: by.person, decided_at, ...(comment !== undefined && { comment }) },
      ];
    }
  }

  async #revise(
    tenantId: string,
    id: string,
    change: { type: 'update' } | { type: 'rollback'; target: number },
    text: { source: string; compiled: Compilation },
    by: By,
  ): Promise<PolicyView> {
    return this.#db.transaction(tenantId, async (em, notify) => {
      const rules = await this.#rulesWithin(em);
      const policy = await lock(em, id);
      const before = await em.findOneOrFail(PolicyRevision, { policyId: id, version: policy.version });
      const enforced = policy.liveVersion ?? null;
      const [effects, taken] = step(policy, { type: change.type, ...circumstancesOf(by, rules) });
      const now = new Date(this.#clock.now());
      await this.#review(em, policy, effects, by);
      policy.updatedAt = now;
      const target = change.type === 'rollback' ? change.target : null;
      const revision = this.#addRevision(em, policy, text.source, text.compiled, by, change.type, now, target);
      await em.flush();
      if (effects.some((effect) => effect.type === 'publish')) {
        await this.#assertQuota(em, policy, enforced);
        await notify('policies');
      }
      await notify('revisions', id, [taken]);
      await this.#perform(em, policy, effects, by, {
        before: before.contentHash,
        after: revision.contentHash,
        detail: target === null ? undefined : `from version ${target}`,
      });
      return view(policy, revision);
    });
  }

  async #decide(
    tenantId: string,
    id: string,
    event: Happening,
    by: By,
    // `remark` stays with the revision; `reason` is told in the audit log as well
    words: { reason?: string | undefined; remark?: string | undefined; note?: string | null },
  ): Promise<PolicyView> {
    return this.#db.transaction(tenantId, async (em, notify) => {
      const rules = await this.#rulesWithin(em);
      const policy = await lock(em, id);
      const enforced = policy.liveVersion ?? null;
      const [effects, taken] = step(policy, { ...event, ...circumstancesOf(by, rules) });
      const revision = await em.findOneOrFail(PolicyRevision, { policyId: id, version: policy.version });
      if (words.note !== undefined) revision.note = words.note;
      await this.#review(em, policy, effects, by, words.remark ?? words.reason);
      // a remark changes nothing
      if (event.type !== 'comment') policy.updatedAt = new Date(this.#clock.now());
      await em.flush();
      if (effects.some((effect) => effect.type === 'publish')) {
        await this.#assertQuota(em, policy, enforced);
        await notify('policies');
      }
      await notify('revisions', id, [taken]);
      const replaced = policy.liveVersion !== null && policy.liveVersion !== enforced ? enforced : null;
      const detail = replaced === null ? undefined : `in place of version ${replaced}`;
      const about = 'version' in event ? event.version : undefined;
      await this.#perform(em, policy, effects, by, {
        after: revision.contentHash,
        detail,
        reason: words.reason,
        about,
      });
      return view(policy, revision);
    });
  }

  /**
   * Counted when the change is in the transaction, and one such change at a time. What takes statements away is never
   * refused, also where there are too many.
   */
  async #assertQuota(em: EntityManager, { tenantId, id }: PolicyRow, replaced: number | null): Promise<void> {
    await em.execute('select pg_advisory_xact_lock(hashtextextended(?, 1))', [`live statements of ${tenantId}`]);
    const counts = await em.execute<{ policy_id: string; live: boolean; n: number }[]>(
      `select r.policy_id, r.version = p.live_version as live, r.statement_count as n from policy p
       join policy_revision r on r.tenant_id = p.tenant_id and r.policy_id = p.id
        and (r.version = p.live_version or (p.id = ? and r.version = ?))`,
      [id, replaced],
    );
    const sum = (rows: typeof counts) => rows.reduce((total, { n }) => total + n, 0);
    const live = sum(counts.filter((row) => row.live));
    const own = counts.filter((row) => row.policy_id === id);
    const grows = sum(own.filter((row) => row.live)) > sum(own.filter((row) => !row.live));
    if (live <= this.#mostStatements || !grows) return;
    throw new AppError(
      'CONFLICT',
      `quota live_statements: a tenant may have ${this.#mostStatements} statements live (SVC_LIVE_STATEMENTS), and this would make it ${live}`,
    );
  }

  async #perform(
    em: EntityManager,
    policy: PolicyRow,
    effects: PolicyEffect[],
    by: By,
    more: {
      before?: string | undefined;
      after: string;
      reason?: string | undefined;
      detail?: string | undefined;
      /** The version that was decided on; else the newest. */
      about?: number | undefined;
    },
  ): Promise<void> {
    const actions = effects.filter((effect) => effect.type === 'audit');
    const enforced = effects.some((effect) => effect.type === 'publish') && policy.liveVersion === policy.version;
    const now = this.#clock.now();
    for (const [n, { params }] of actions.entries()) {
      const { action: type } = params;
      if (!isEventType(type)) continue;
      await addEvent(em, policy.tenantId, {
        type,
        // a millisecond apart, so that the events of one transaction keep their order
        at: now + n,
        payload: {
          policy_id: policy.id,
          version: policy.version,
          content_hash: more.after,
          status: policy.status,
          live_version: policy.liveVersion ?? null,
          actor_id: by.person,
          ...(more.reason !== undefined && { reason: more.reason }),
          created_at: new Date(now).toISOString(),
        },
      });
    }
    for (const effect of actions) {
      await this.#audit(em, policy.tenantId, {
        actor: by.actor,
        action: effect.params.action,
        severity: effect.params.severity,
        target: { type: 'policy', id: policy.id },
        detail: [`version ${more.about ?? policy.version}`, more.detail, enforced && ENFORCED]
          .filter(Boolean)
          .join(', '),
        reason: more.reason,
        beforeHash: more.before,
        afterHash: more.after,
        requestId: by.requestId,
      });
    }
  }
}

/** An event without who sends it and under which rules. */
type Happening = PolicyEvent extends infer E ? (E extends PolicyEvent ? Omit<E, keyof Circumstances> : never) : never;
type Circumstances = ReturnType<typeof circumstancesOf>;

function circumstancesOf({ person, signedIn, admin }: Who, rules: Rules) {
  return {
    actor: person,
    signedIn,
    admin,
    approvalRequired: rules.approval_required,
    selfApproval: rules.self_approval,
  };
}

async function lock(em: EntityManager, id: string): Promise<PolicyRow> {
  const policy = await em.findOne(Policy, { id }, { lockMode: LockMode.PESSIMISTIC_WRITE });
  if (!policy) throw new AppError('NOT_FOUND', 'there is no such policy');
  return policy;
}

/** Sends the event to the machine and puts the outcome into the row. Throws the refusal. */
function step(policy: PolicyRow, event: PolicyEvent): [PolicyEffect[], Step] {
  const refused = policyRefusal(policy.status, policy.machineContext, event);
  if (refused) throw new AppError(refused.code, refused.detail);
  const snapshot = restorePolicy(policy.status, policy.machineContext, policy.machineVersion);
  const [next, effects] = stepPolicy(snapshot, event);
  policy.status = next.value;
  policy.machineContext = next.context;
  policy.machineVersion = POLICY_MACHINE_VERSION;
  policy.version = next.context.version;
  policy.liveVersion = next.context.liveVersion;
  return [effects, { event, state: next.value, context: next.context }];
}

function view(policy: PolicyRow, newest: PolicyRevisionRow): PolicyView {
  return {
    id: policy.id,
    dsl_source: newest.dslSource,
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
    ...(last && { review: last }),
    ...(revision.reviews.length > 0 && { reviews: revision.reviews }),
  };
}

/** Where a text has NUL, as such or written as an escape in what is read of it: PostgreSQL holds it neither way. */
function nulFaults(source: string, { statements }: Compilation): Diagnostic[] {
  const message = 'the character NUL cannot be stored';
  const place = source.indexOf('\0');
  if (place >= 0) {
    const before = source.slice(0, place).split('\n');
    return [{ line: before.length, column: before.at(-1)!.length + 1, message }];
  }
  return statements
    .filter(({ annotations, roles, scopes }) => JSON.stringify([annotations, roles, scopes]).includes('\\u0000'))
    .map(({ line }) => ({ line, column: 1, message }));
}
