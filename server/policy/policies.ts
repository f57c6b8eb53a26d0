import { type EntityManager, LockMode, type QBFilterQuery } from '@mikro-orm/postgresql';
import { createTwoFilesPatch, diffLines } from 'diff';
import {
  Policy,
  PolicyRevision,
  type PolicyRevisionRow,
  type PolicyRow,
  type ReviewRecord,
} from '../../db/entities/index.ts';
import type { Database } from '../../db/index.ts';
import { addEvent, EVENT_TYPES, type EventType } from '../../db/outbox.ts';
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
import type { Actor, AuditAction, WriteAudit } from '../auth/audit.ts';
import { AppError } from '../errors.ts';
import type { Clock } from '../lib/clock.ts';
import { sha256Tag } from '../lib/crypto.ts';
import { newId } from '../lib/ids.ts';
import type { Verdict } from './evaluate.ts';
import type { AuthorLanguage, Trial } from './language/author.ts';
import type { Compilation, CompiledStatement } from './language/compile.ts';
import { actionEntities, type OwnActionTypes, schemaFor } from './language/schema.ts';
import type { ActionRequest, BundleStatement, Diagnostic } from './types.ts';

/** Who acts: the person that counts for author and approver, and how the audit chain names the credential. */
export interface By {
  person: string;
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

  constructor(parts: {
    db: Database;
    clock: Clock;
    audit: WriteAudit;
    language: AuthorLanguage;
    rules: (tenantId: string) => Promise<Rules>;
  }) {
    this.#db = parts.db;
    this.#clock = parts.clock;
    this.#audit = parts.audit;
    this.#language = parts.language;
    this.#rules = parts.rules;
  }

  /** Checks a text and saves nothing. */
  async validate(tenantId: string, source: string, policyId = 'policy'): Promise<Compilation> {
    const { action_types } = await this.#rules(tenantId);
    const compiled = await this.#language.compile(policyId, source, schemaFor(action_types));
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
    const rows = await this.#db.query<{ policy_id: string; version: number; statements: BundleStatement[] }>(
      tenantId,
      `select r.policy_id, r.version, r.statements from policy p
       join policy_revision r on r.tenant_id = p.tenant_id and r.policy_id = p.id and r.version = p.live_version
       where p.tenant_id = $1`,
      [tenantId],
    );
    const live = rows.flatMap(({ version, statements }) => statements.map((one) => ({ ...one, version })));
    const common = {
      schema: schemaFor(action_types),
      actionEntities: actionEntities(action_types),
      request: { ...input.request, now: new Date(this.#clock.now()).toISOString() },
    };
    const beside = input.alone ? [] : live.filter(({ policy_id }) => policy_id !== policyId);
    const trial = await this.#language.tryOut({ policyId, text: input.dsl_source, beside, ...common });
    // a text that permits nothing and forbids nothing stands for no draft at all
    const now =
      trial.verdict && (await this.#language.tryOut({ policyId: '', text: NO_RULE, beside: live, ...common }));
    return { ...trial, live: now?.verdict ?? null };
  }

  async format(source: string): Promise<{ formatted?: string; errors: Diagnostic[] }> {
    return this.#language.format(source);
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
      const inserted = await em.execute<{ id: string }[]>(
        `insert into policy (tenant_id, id, status, version, live_version, machine_version, machine_context, roles,
           any_role, scopes, created_at, updated_at)
         values (?, ?, ?, 1, null, ?, ?, ?, ?, ?, ?, ?) on conflict do nothing returning id`,
        [
          tenantId,
          id,
          snapshot.value,
          POLICY_MACHINE_VERSION,
          JSON.stringify(snapshot.context),
          pgArray(compiled.roles),
          compiled.any_role,
          pgArray(compiled.scopes),
          now,
          now,
        ],
      );
      if (inserted.length !== 1) throw new AppError('CONFLICT', 'there is a policy with this id');
      const policy = await em.findOneOrFail(Policy, { tenantId, id });
      const revision = this.#addRevision(em, policy, input.dsl_source, compiled, by, 'create', now);
      await em.flush();
      await notify('revisions', id);
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
    return this.#decide(
      tenantId,
      id,
      () => ({ type: 'submit', actor: by.person }),
      by,
      (revision) => {
        revision.note = note ?? null;
      },
    );
  }

  approve(tenantId: string, id: string, version: number, comment: string | undefined, by: By): Promise<PolicyView> {
    return this.#decide(
      tenantId,
      id,
      (rules) => ({ type: 'approve', actor: by.person, version, ...rules }),
      by,
      (revision) => this.#review(revision, 'approved', by, comment),
      { reason: comment },
    );
  }

  reject(tenantId: string, id: string, version: number, reason: string, by: By): Promise<PolicyView> {
    return this.#decide(
      tenantId,
      id,
      () => ({ type: 'reject', actor: by.person, version }),
      by,
      (revision) => this.#review(revision, 'rejected', by, reason),
      { reason },
    );
  }

  requestChanges(tenantId: string, id: string, version: number, comment: string, by: By): Promise<PolicyView> {
    return this.#decide(
      tenantId,
      id,
      () => ({ type: 'request_changes', actor: by.person, version }),
      by,
      (revision) => this.#review(revision, 'changes_requested', by, comment),
      { reason: comment },
    );
  }

  /** A remark on the newest version. It decides nothing. */
  async comment(tenantId: string, id: string, version: number, comment: string, by: By): Promise<PolicyView> {
    return this.#db.transaction(tenantId, async (em, notify) => {
      const policy = await lock(em, id);
      if (policy.version !== version) {
        throw new AppError('VERSION_CHANGED', `the current version is ${policy.version}, not ${version}`);
      }
      const revision = await em.findOneOrFail(PolicyRevision, { policyId: id, version });
      if (revision.reviews.length >= MOST_REVIEWS) throw new AppError('CONFLICT', 'the version has too many remarks');
      this.#review(revision, 'commented', by, comment);
      await em.flush();
      await notify('revisions', id);
      await this.#audit(em, tenantId, {
        actor: by.actor,
        requestId: by.requestId,
        action: 'policy.commented',
        target: { type: 'policy', id },
        detail: `version ${version}`,
      });
      return view(policy, revision);
    });
  }

  /** The policy is in no bundle when this resolves. */
  revoke(tenantId: string, id: string, reason: string | undefined, by: By): Promise<PolicyView> {
    return this.#decide(
      tenantId,
      id,
      () => ({ type: 'revoke', actor: by.person }),
      by,
      () => undefined,
      { reason },
    );
  }

  /** The newest version is enforced at once, whatever its review says. Its review stays open. */
  breakGlass(tenantId: string, id: string, reason: string, by: By): Promise<PolicyView> {
    return this.#decide(
      tenantId,
      id,
      () => ({ type: 'break_glass', actor: by.person }),
      by,
      (revision) => this.#review(revision, 'break_glass', by, reason),
      { reason },
    );
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
    const shown = rows.flatMap(({ id: policyId, version, machineContext: { openReview } }) => [
      { policyId, version },
      ...(openReview && openReview.version !== version ? [{ policyId, version: openReview.version }] : []),
    ]);
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

  /** Where a policy's machine stands, and for each event why `person` would be refused now; null when they would not. */
  async standing(tenantId: string, id: string, person: string) {
    const { status, machineContext: context, machineVersion } = await this.#exists(tenantId, id);
    const rules = machineRules(await this.#rules(tenantId));
    const by = { actor: person, version: context.version };
    const ask = (event: PolicyEvent) => policyRefusal(status, context, event) ?? null;
    return {
      state: status,
      version: machineVersion,
      refusals: {
        update: ask({ type: 'update', actor: person, ...rules }),
        rollback: ask({ type: 'rollback', actor: person, ...rules }),
        submit: ask({ type: 'submit', actor: person }),
        approve: ask({ type: 'approve', ...by, ...rules }),
        reject: ask({ type: 'reject', ...by }),
        request_changes: ask({ type: 'request_changes', ...by }),
        revoke: ask({ type: 'revoke', actor: person }),
        break_glass: ask({ type: 'break_glass', actor: person }),
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
    const before = new Map(old.statements.map((s) => [s.id, s.cedar]));
    const after = new Map(recent.statements.map((s) => [s.id, s.cedar]));
    const lines = diffLines(old.dslSource, recent.dslSource);
    const count = (key: 'added' | 'removed') => lines.reduce((sum, part) => sum + (part[key] ? part.count : 0), 0);
    return {
      policy_id: id,
      from,
      to,
      unified: createTwoFilesPatch(`version ${from}`, `version ${to}`, old.dslSource, recent.dslSource),
      lines_added: count('added'),
      lines_removed: count('removed'),
      rules_added: [...after.keys()].filter((rule) => !before.has(rule)),
      rules_removed: [...before.keys()].filter((rule) => !after.has(rule)),
      rules_changed: [...after].filter(([rule, text]) => before.has(rule) && before.get(rule) !== text).map(([r]) => r),
    };
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
      statements: compiled.statements.map(({ id, effect, annotations, scopes, cedar }) => ({
        id,
        policy_id: policy.id,
        effect,
        annotations,
        scopes,
        cedar,
      })),
      authorId: by.person,
      change,
      rolledBackFrom,
      note: null,
      reviews: [],
      createdAt: now,
    });
  }

  #review(revision: PolicyRevisionRow, status: ReviewRecord['status'], by: By, comment?: string): void {
    const decided_at = new Date(this.#clock.now()).toISOString();
    revision.reviews = [
      ...revision.reviews,
      { status, decided_by: by.person, decided_at, ...(comment !== undefined && { comment }) },
    ];
  }

  async #revise(
    tenantId: string,
    id: string,
    change: { type: 'update' } | { type: 'rollback'; target: number },
    text: { source: string; compiled: Compilation },
    by: By,
  ): Promise<PolicyView> {
    const rules = machineRules(await this.#rules(tenantId));
    return this.#db.transaction(tenantId, async (em, notify) => {
      const policy = await lock(em, id);
      const before = await em.findOneOrFail(PolicyRevision, { policyId: id, version: policy.version });
      const wasPending = policy.status === 'pending_approval';
      const effects = step(policy, { type: change.type, actor: by.person, ...rules });
      const now = new Date(this.#clock.now());
      if (wasPending) this.#review(before, 'dismissed', by);
      policy.updatedAt = now;
      const target = change.type === 'rollback' ? change.target : null;
      const revision = this.#addRevision(em, policy, text.source, text.compiled, by, change.type, now, target);
      await em.flush();
      if (effects.some((effect) => effect.type === 'publish')) await notify('policies');
      await notify('revisions', id);
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
    event: (rules: ReturnType<typeof machineRules>) => PolicyEvent,
    by: By,
    change: (revision: PolicyRevisionRow) => void,
    more: { reason?: string | undefined } = {},
  ): Promise<PolicyView> {
    const rules = machineRules(await this.#rules(tenantId));
    return this.#db.transaction(tenantId, async (em, notify) => {
      const policy = await lock(em, id);
      const enforced = policy.liveVersion ?? null;
      const effects = step(policy, event(rules));
      const revision = await em.findOneOrFail(PolicyRevision, { policyId: id, version: policy.version });
      change(revision);
      policy.updatedAt = new Date(this.#clock.now());
      await em.flush();
      if (effects.some((effect) => effect.type === 'publish')) await notify('policies');
      await notify('revisions', id);
      const replaced = policy.liveVersion !== null && policy.liveVersion !== enforced ? enforced : null;
      const detail = replaced === null ? undefined : `in place of version ${replaced}`;
      await this.#perform(em, policy, effects, by, { after: revision.contentHash, detail, ...more });
      return view(policy, revision);
    });
  }

  async #perform(
    em: EntityManager,
    policy: PolicyRow,
    effects: PolicyEffect[],
    by: By,
    more: {
      before?: string | undefined;
      after?: string | undefined;
      reason?: string | undefined;
      detail?: string | undefined;
    },
  ): Promise<void> {
    const actions = effects.filter((effect) => effect.type === 'audit');
    const now = this.#clock.now();
    for (const [n, { params }] of actions.entries()) {
      if (!(params.action in EVENT_TYPES)) continue;
      await addEvent(em, policy.tenantId, {
        type: params.action as EventType,
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
        action: effect.params.action as AuditAction,
        severity: effect.params.severity,
        target: { type: 'policy', id: policy.id },
        detail: [`version ${policy.version}`, more.detail].filter(Boolean).join(', '),
        reason: more.reason,
        beforeHash: more.before,
        afterHash: more.after,
        requestId: by.requestId,
      });
    }
  }
}

const machineRules = (rules: Rules) => ({
  approvalRequired: rules.approval_required,
  selfApproval: rules.self_approval,
});

async function lock(em: EntityManager, id: string): Promise<PolicyRow> {
  const policy = await em.findOne(Policy, { id }, { lockMode: LockMode.PESSIMISTIC_WRITE });
  if (!policy) throw new AppError('NOT_FOUND', 'there is no such policy');
  return policy;
}

/** Sends the event to the machine and puts the outcome into the row. Throws the refusal. */
function step(policy: PolicyRow, event: PolicyEvent): PolicyEffect[] {
  const refused = policyRefusal(policy.status, policy.machineContext, event);
  if (refused) throw new AppError(refused.code, refused.detail);
  const snapshot = restorePolicy(policy.status, policy.machineContext, policy.machineVersion);
  const [next, effects] = stepPolicy(snapshot, event);
  policy.status = next.value;
  policy.machineContext = next.context;
  policy.machineVersion = POLICY_MACHINE_VERSION;
  policy.version = next.context.version;
  policy.liveVersion = next.context.liveVersion;
  return effects;
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

function openReviewOf(policy: PolicyRow, revisions: readonly PolicyRevisionRow[]): OpenReview | null {
  const open = policy.machineContext.openReview;
  if (!open) return null;
  const revision = revisions.find(({ version }) => version === open.version);
  const broken = revision?.reviews.findLast(({ status }) => status === 'break_glass');
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

/** An array as PostgreSQL reads it from a parameter. */
function pgArray(items: readonly string[]): string {
  return `{${items.map((item) => `"${item.replaceAll('\\', '\\\\').replaceAll('"', '\\"')}"`).join(',')}}`;
}
