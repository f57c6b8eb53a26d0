import { type EntityManager, LockMode, UniqueConstraintViolationException } from '@mikro-orm/postgresql';
import { Policy, PolicyRevision, type PolicyRevisionRow, type PolicyRow } from '../../db/entities/index.ts';
import type { Database, WriteAudit } from '../../db/index.ts';
import type { Step } from '../../db/notices.ts';
import { addEvent } from '../../db/outbox.ts';
import {
  createPolicy,
  POLICY_MACHINE_VERSION,
  type PolicyEffect,
  type PolicyEvent,
  policyRefusal,
  restorePolicy,
  stepPolicy,
} from '../../machines/policy.ts';
import type { Doer } from '../domain/audit.ts';
import { isEventType } from '../domain/events.ts';
import { AppError } from '../errors.ts';
import type { Clock } from '../lib/clock.ts';
import { sha256Tag } from '../lib/crypto.ts';
import { newId } from '../lib/ids.ts';
import type { Compilation } from './language/compile.ts';
import { ENFORCED } from './live.ts';
import {
  type BareEvent,
  circumstancesOf,
  type PolicyQueries,
  type PolicyView,
  policyView,
  type Rules,
  type Who,
} from './queries.ts';
import type { PolicyTexts } from './texts.ts';

/** Who acts, as policies and as the audit chain see it. */
export type By = Who & Doer;

/** Decisions and remarks that one version may have. */
const MOST_REVIEWS = 500;
/** Words of the routes, which cannot be ids. */
const RESERVED = new Set(['bundle', 'validate', 'format', 'try']);

/**
 * The life of policies. Each change is one transaction: the policy's row is locked, the machine takes the event or the
 * refusal table says why not, and state, revision and audit record are stored together.
 */
export class Policies {
  readonly #db: Database;
  readonly #clock: Clock;
  readonly #audit: WriteAudit;
  readonly #queries: PolicyQueries;
  readonly #texts: PolicyTexts;
  readonly #rulesWithin: (em: EntityManager) => Promise<Rules>;
  readonly #mostStatements: number;

  constructor(parts: {
    db: Database;
    clock: Clock;
    audit: WriteAudit;
    queries: PolicyQueries;
    texts: PolicyTexts;
    /** The tenant's rules, which do not change until the transaction ends. */
    rulesWithin: (em: EntityManager) => Promise<Rules>;
    /** Statements that the live policies of a tenant may have together. */
    mostStatements: number;
  }) {
    this.#db = parts.db;
    this.#clock = parts.clock;
    this.#audit = parts.audit;
    this.#queries = parts.queries;
    this.#texts = parts.texts;
    this.#rulesWithin = parts.rulesWithin;
    this.#mostStatements = parts.mostStatements;
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
        throw new AppError('CONFLICT', 'a policy with this id already exists');
      }
      const revision = this.#addRevision(em, policy, input.dsl_source, compiled, by, 'create', now);
      await em.flush();
      await notify('revisions', id, [
        { event: { type: 'xstate.init' }, state: snapshot.value, context: snapshot.context },
      ]);
      await this.#perform(em, policy, effects, by, { after: revision.contentHash });
      return policyView(policy, revision);
    });
  }

  /** A new version of the text. Whether it is enforced at once is the tenant's rule. */
  async update(tenantId: string, id: string, source: string, by: By): Promise<PolicyView> {
    await this.#queries.find(tenantId, id);
    const compiled = await this.#compile(tenantId, id, source);
    return this.#revise(tenantId, id, { type: 'update' }, { source, compiled }, by);
  }

  /** A new version with the text of an old one. */
  async rollback(tenantId: string, id: string, target: number, by: By): Promise<PolicyView> {
    const old = await this.#queries.revision(tenantId, id, target);
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

  async #compile(tenantId: string, policyId: string, source: string): Promise<Compilation> {
    const compiled = await this.#texts.validate(tenantId, source, policyId);
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

  /** Stores the reviews that the machine asks for with their revisions. */
  async #review(em: EntityManager, policy: PolicyRow, effects: PolicyEffect[], by: By, comment?: string) {
    const decided_at = new Date(this.#clock.now()).toISOString();
    for (const effect of effects) {
      if (effect.type !== 'review') continue;
      const { status, version } = effect.params;
      const revision = await em.findOneOrFail(PolicyRevision, { policyId: policy.id, version });
      if (status === 'commented' && revision.reviews.length >= MOST_REVIEWS) {
        throw new AppError('CONFLICT', 'the version has too many reviews and remarks');
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
      return policyView(policy, revision);
    });
  }

  async #decide(
    tenantId: string,
    id: string,
    event: BareEvent,
    by: By,
    // `remark` is kept with the revision alone; `reason` is in the audit log as well
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
      return policyView(policy, revision);
    });
  }

  /**
   * Counts after the change, one such change at a time. A change that does not add statements is never refused, even where
   * there are too many.
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
      `quota live_statements: a tenant may have ${this.#mostStatements} live statements (SVC_LIVE_STATEMENTS), and this change would make it ${live}`,
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
