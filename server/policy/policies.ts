import { type EntityManager, LockMode, UniqueConstraintViolationException } from '@mikro-orm/postgresql';
import {
  Policy,
  PolicyRevision,
  type PolicyRevisionRow,
  type PolicyRow,
  ReferenceList,
  type ReviewRecord,
} from '../../db/entities/index.ts';
import type { Database, Notify, WriteAudit } from '../../db/index.ts';
import type { Step } from '../../db/notices.ts';
import { addEvent, addNews } from '../../db/outbox.ts';
import {
  authorsWith,
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
import type { Diagnostic } from '../domain/policy.ts';
import { STOP_POLICY } from '../domain/stops.ts';
import { REGISTRY_POLICY } from '../domain/tools.ts';
import { type Source, type StatedSource, sourceInWords, sourceOf } from '../domain/workload.ts';
import { AppError } from '../errors.ts';
import type { Clock } from '../lib/clock.ts';
import { newId } from '../lib/ids.ts';
import { type Finding, type Tested, TestGate } from './gate.ts';
import type { Compilation } from './language/compile.ts';
import { ENFORCED, holdLiveSet, revisionHash } from './live.ts';
import { takePending } from './pending-comments.ts';
import {
  type BareEvent,
  circumstancesOf,
  type PolicyQueries,
  type PolicyView,
  policyView,
  type Rules,
  type Who,
} from './queries.ts';
import {
  assertApplied,
  assertThread,
  type Commented,
  commentWords,
  type NewComment,
  onLine,
  openThreads,
  placeIn,
  squeezedHash,
  suggestionOf,
  textsOf,
  threadOf,
  writersOf,
} from './review-records.ts';
import type { SimulationGate } from './simulation-gate.ts';
import type { PolicyTexts } from './texts.ts';

/** The actor, for the policy machine and for the audit record, and what is proven about the origin of their change. */
export type By = Who & Doer & { proven?: StatedSource | undefined };

/** Maximum number of reviews and comments per version. */
const MAX_REVIEWS = 500;
/** Path segments of other routes and the names of the tool registry and of stops, which cannot be used as ids. */
const RESERVED = new Set(['bundle', 'validate', 'format', 'try', 'plan', REGISTRY_POLICY, STOP_POLICY]);

/**
 * Changes to policies. Each change is one transaction: it locks the policy's row, the machine accepts or rejects the
 * event, and state, revision and audit record are stored together.
 */
export class Policies {
  readonly #db: Database;
  readonly #clock: Clock;
  readonly #audit: WriteAudit;
  readonly #queries: PolicyQueries;
  readonly #texts: PolicyTexts;
  readonly #rulesWithin: (em: EntityManager, tenantId: string) => Promise<Rules>;
  readonly #gate: TestGate;
  readonly #simulations: SimulationGate;
  readonly #mostStatements: number;

  constructor(parts: {
    db: Database;
    clock: Clock;
    audit: WriteAudit;
    queries: PolicyQueries;
    texts: PolicyTexts;
    simulations: SimulationGate;
    /** The tenant's rules, locked until the transaction ends. */
    rulesWithin: (em: EntityManager, tenantId: string) => Promise<Rules>;
    /** The maximum number of live statements per tenant. */
    mostStatements: number;
  }) {
    this.#db = parts.db;
    this.#clock = parts.clock;
    this.#audit = parts.audit;
    this.#queries = parts.queries;
    this.#texts = parts.texts;
    this.#gate = new TestGate(parts.texts);
    this.#simulations = parts.simulations;
    this.#rulesWithin = parts.rulesWithin;
    this.#mostStatements = parts.mostStatements;
  }

  /** A new policy in `draft`, version 1. CONFLICT if the id is taken, POLICY_INVALID if the text has errors. */
  async create(
    tenantId: string,
    input: {
      id?: string | undefined;
      dsl_source: string;
      tests_source?: string | null | undefined;
      source?: StatedSource | undefined;
    },
    by: By,
  ): Promise<PolicyView> {
    const now = new Date(this.#clock.now());
    const id = input.id ?? newId('pol', now.getTime());
    if (RESERVED.has(id)) {
      throw new AppError('VALIDATION_FAILED', undefined, {
        faults: [{ pointer: '/id', message: `"${id}" is reserved` }],
      });
    }
    const tests = input.tests_source ?? null;
    const compiled = await this.#compile(tenantId, id, input.dsl_source, tests);
    return this.#db.transaction(tenantId, async (em, notify) => {
      const [snapshot, effects] = createPolicy(by.author ?? by.person, by.maker);
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
        throw new AppError('CONFLICT', 'a policy with this id already exists', {
          faults: [{ pointer: '/id', message: 'is the id of another policy' }],
        });
      }
      const from = sourceOf(input.source, by.proven);
      const { authors } = snapshot.context;
      const text = { source: input.dsl_source, tests, compiled, from, authors };
      const revision = this.#addRevision(em, policy, text, by, 'create', now);
      await em.flush();
      await notify('revisions', id, [
        { event: { type: 'xstate.init' }, state: snapshot.value, context: snapshot.context },
      ]);
      await this.#perform(em, policy, effects, by, {
        after: revision.contentHash,
        detail: from ? sourceInWords(from) : undefined,
      });
      return policyView(policy, revision);
    });
  }

  /**
   * A new version of the text and the test suite; without `tests_source` the newest version's suite is kept, and null
   * removes it. The tenant's rules decide whether the version is enforced immediately. VERSION_CHANGED if the newest
   * version is not the expected one. `applies` is the comment whose suggestion a signed-in person applies: its writer then
   * becomes an author of the version too, and its thread is resolved. NOT_FOUND if the policy has no such suggestion,
   * CONFLICT unless the version is the newest one with the suggestion applied and nothing else.
   */
  async update(
    tenantId: string,
    id: string,
    input: {
      dsl_source: string;
      tests_source?: string | null | undefined;
      source?: StatedSource | undefined;
      expected_version?: number | undefined;
      applies?: string | undefined;
    },
    by: By,
  ): Promise<PolicyView> {
    const { dsl_source: source, tests_source: tests, expected_version: expected, applies } = input;
    if (applies !== undefined && !by.signedIn) {
      throw new AppError('FORBIDDEN', 'only a signed-in person can apply a suggestion');
    }
    await this.#queries.find(tenantId, id);
    const compiled = await this.#compile(tenantId, id, source, tests ?? null);
    const from = sourceOf(input.source, by.proven);
    return this.#revise(tenantId, id, { type: 'update', applies }, { source, tests, compiled, from, expected }, by);
  }

  /** A new version with the text and the test suite of an old one. */
  async rollback(tenantId: string, id: string, target: number, reason: string, by: By): Promise<PolicyView> {
    const old = await this.#queries.revision(tenantId, id, target);
    // recompiled because the tenant's action types may have changed since
    const { dslSource: source, testsSource } = old;
    const tests = testsSource ?? null;
    const compiled = await this.#compile(tenantId, id, source, tests);
    const from = sourceOf(undefined, by.proven);
    return this.#revise(tenantId, id, { type: 'rollback', target, reason }, { source, tests, compiled, from }, by);
  }

  /** Requests a review of the newest version; VERSION_CHANGED if that is not the expected one. */
  submit(
    tenantId: string,
    id: string,
    { note, expected }: { note?: string | undefined; expected?: number | undefined },
    by: By,
  ): Promise<PolicyView> {
    return this.#decide(tenantId, id, { type: 'submit' }, by, { note: note ?? null, expected });
  }

  /**
   * Approves the newest version, or closes the review of a version that was enforced by break glass. POLICY_INVALID if the
   * version would be enforced and its text now has errors: the tenant's action types may have changed. `simulation` is the
   * one that the approver read; its result goes into the audit record.
   */
  async approve(
    tenantId: string,
    id: string,
    { version, comment, simulation_id: simulation, pending }: Decision & { simulation_id?: string | undefined },
    by: By,
  ): Promise<PolicyView> {
    const policy = await this.#queries.find(tenantId, id);
    const checked =
      version === policy.version && policy.status !== 'deployed'
        ? {
            version,
            invalid: await this.#faults(tenantId, id, (await this.#queries.revision(tenantId, id, version)).dslSource),
          }
        : undefined;
    return this.#decide(tenantId, id, { type: 'approve', version }, by, {
      ...{ reason: comment, checked, simulation, pending },
    });
  }

  reject(
    tenantId: string,
    id: string,
    { version, reason, pending }: Omit<Decision, 'comment'> & { reason: string },
    by: By,
  ): Promise<PolicyView> {
    return this.#decide(tenantId, id, { type: 'reject', version }, by, { reason, pending });
  }

  requestChanges(
    tenantId: string,
    id: string,
    { version, comment, pending }: Decision & { comment: string },
    by: By,
  ): Promise<PolicyView> {
    return this.#decide(tenantId, id, { type: 'request_changes', version }, by, { reason: comment, pending });
  }

  /** Sends a person's pending comments all at once, without deciding anything. */
  send(
    tenantId: string,
    id: string,
    { version, comment, pending }: Decision & { pending: readonly string[] },
    by: By,
  ): Promise<PolicyView> {
    return this.#decide(tenantId, id, { type: 'comment', version }, by, { remark: comment, pending });
  }

  /**
   * Comments on the newest version without deciding anything: starts a thread, on a line of it or of an older version, or
   * replies to one. A suggestion for the line is stored with it, and changes nothing. NOT_FOUND if there is no such line or
   * thread.
   */
  comment(
    tenantId: string,
    id: string,
    { version, comment, reply_to, place, suggestion }: NewComment,
    by: By,
  ): Promise<PolicyView> {
    const more = { thread: reply_to, place, suggestion };
    return this.#decide(tenantId, id, { type: 'comment', version }, by, { remark: comment, more });
  }

  /** Marks a thread as resolved or unresolved. Setting the state it already has changes nothing. */
  async resolve(
    tenantId: string,
    id: string,
    { version, comment_id, resolved }: { version: number; comment_id: string; resolved: boolean },
    by: By,
  ): Promise<PolicyView> {
    return this.#db.transaction(tenantId, async (em, notify) => {
      const policy = await lock(em, id);
      const newest = await em.findOneOrFail(PolicyRevision, { policyId: id, version: policy.version });
      const revision = await em.findOne(PolicyRevision, { policyId: id, version });
      const root = revision && threadOf(revision, comment_id);
      if (!revision || !root) throw new AppError('NOT_FOUND', 'the version has no such thread');
      if ((root.resolved !== undefined) === resolved) return policyView(policy, newest);
      await this.#settle(em, revision, root, resolved, by);
      await notify('policies');
      return policyView(policy, newest);
    });
  }

  async #settle(
    em: EntityManager,
    revision: PolicyRevisionRow,
    root: ReviewRecord,
    resolved: boolean,
    by: By,
    how?: string,
  ): Promise<void> {
    const { resolved: _before, ...rest } = root;
    const at = new Date(this.#clock.now()).toISOString();
    const after: ReviewRecord = resolved ? { ...rest, resolved: { by: by.person, at } } : rest;
    // by its id, because the row may have been reloaded since
    revision.reviews = revision.reviews.map((one) => (one.id === root.id ? after : one));
    await em.flush();
    await this.#audit(em, revision.tenantId, {
      actor: by.actor,
      action: resolved ? 'policy.thread_resolved' : 'policy.thread_reopened',
      target: { type: 'policy', id: revision.policyId },
      detail: [`version ${revision.version}`, commentWords(root), how].filter(Boolean).join(', '),
      requestId: by.requestId,
    });
  }

  /** Once this resolves, no bundle contains the policy. Its open reviews stay open. */
  revoke(tenantId: string, id: string, reason: string, by: By): Promise<PolicyView> {
    return this.#decide(tenantId, id, { type: 'revoke' }, by, { reason });
  }

  /**
   * Enforces the newest version immediately, without a review; VERSION_CHANGED if one is named that is not the newest. If it is
   * enforced already, it stays so. A review stays open. POLICY_INVALID if its text now has errors: the tenant's action types may
   * have changed, and a bundle with such a text helps in no emergency.
   */
  async breakGlass(
    tenantId: string,
    id: string,
    named: number | undefined,
    reason: string,
    by: By,
  ): Promise<PolicyView> {
    const policy = await this.#queries.find(tenantId, id);
    const version = named ?? policy.version;
    const { dslSource } = await this.#queries.revision(tenantId, id, version);
    const checked = { version, invalid: await this.#faults(tenantId, id, dslSource) };
    return this.#decide(tenantId, id, { type: 'break_glass' }, by, { reason, checked, expected: version });
  }

  /** One transaction, repeated until it has the test results that it needs. */
  #tested(
    tenantId: string,
    emergency: boolean,
    work: (em: EntityManager, notify: Notify, tested: Tested | undefined) => Promise<PolicyView>,
  ): Promise<PolicyView> {
    return this.#gate.through(tenantId, emergency, (tested) =>
      this.#db.transaction(tenantId, (em, notify) => work(em, notify, tested)),
    );
  }

  /** What the tests and the simulations show about a version that is to be submitted or enforced. */
  async #findings(
    em: EntityManager,
    version: { tenantId: string; policyId: string; text: string; tests: string | null },
    rules: Rules,
    tested: Tested | undefined,
    emergency: boolean,
    simulation?: string,
  ): Promise<Finding> {
    const tests = await this.#gate.find(em, version, rules, tested, emergency);
    const simulated = await this.#simulations.find(em, version, rules, simulation);
    const refusal = tests.refusal ?? simulated.refusal;
    const words = [tests.words, simulated.words].filter((part) => part !== undefined).join(', ') || undefined;
    return { ...(refusal && { refusal }), words };
  }

  async #compile(tenantId: string, policyId: string, source: string, tests: string | null): Promise<Compilation> {
    const compiled = await this.#texts.validate(tenantId, source, policyId);
    const invalid = policyInvalid(compiled, await this.#texts.suiteFaults(tenantId, tests));
    if (invalid) throw invalid;
    return compiled;
  }

  async #faults(tenantId: string, policyId: string, source: string): Promise<AppError | undefined> {
    return policyInvalid(await this.#texts.validate(tenantId, source, policyId));
  }

  #addRevision(
    em: EntityManager,
    policy: PolicyRow,
    {
      source,
      tests,
      compiled,
      from,
      authors,
    }: { source: string; tests: string | null; compiled: Compilation; from: Source | null; authors: string[] },
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
      testsSource: tests,
      contentHash: revisionHash(source, tests),
      squeezedHash: squeezedHash(source),
      statementCount: compiled.statements.length,
      lists: compiled.lists,
      authorId: by.author ?? by.person,
      authors,
      change,
      rolledBackFrom,
      note: null,
      reviews: [],
      source: from,
      createdAt: now,
    });
  }

  /** Adds the reviews among the effects to their revisions. Resolves to the last of them. */
  async #review(
    em: EntityManager,
    policy: PolicyRow,
    effects: PolicyEffect[],
    by: By,
    comment?: string,
    more: Commented = {},
  ): Promise<ReviewRecord | undefined> {
    const now = this.#clock.now();
    const decided_at = new Date(now).toISOString();
    let last: ReviewRecord | undefined;
    for (const effect of effects) {
      if (effect.type !== 'review') continue;
      const { status, version } = effect.params;
      const revision = await em.findOneOrFail(PolicyRevision, { policyId: policy.id, version });
      if (status === 'commented' && revision.reviews.length >= MAX_REVIEWS) {
        throw tooManyReviews();
      }
      const place = more.place && (await placeIn(em, policy.id, version, more.place));
      if (more.thread !== undefined) await assertThread(em, policy, more.thread);
      last = {
        ...{ status, decided_by: by.author ?? by.person, decided_at },
        ...(comment !== undefined && { comment }),
        ...(status === 'commented' && { id: newId('cmt', now) }),
        ...(more.thread !== undefined && { thread: more.thread }),
        ...(place && { place }),
        ...(more.suggestion !== undefined && { suggestion: more.suggestion }),
      };
      revision.reviews = [...revision.reviews, last];
    }
    return last;
  }

  /** Turns the person's pending comments into comments on the newest version. */
  async #send(
    em: EntityManager,
    policy: PolicyRow,
    newest: PolicyRevisionRow,
    pending: readonly string[],
    by: By,
  ): Promise<ReviewRecord[]> {
    const at = new Date(this.#clock.now()).toISOString();
    const sent = await takePending(em, policy, by.person, pending, at);
    if (newest.reviews.length + sent.length > MAX_REVIEWS) throw tooManyReviews();
    newest.reviews = [...newest.reviews, ...sent];
    await em.flush();
    return sent;
  }

  async #revise(
    tenantId: string,
    id: string,
    change: { type: 'update'; applies?: string | undefined } | { type: 'rollback'; target: number; reason: string },
    text: {
      source: string;
      tests: string | null | undefined;
      compiled: Compilation;
      from: Source | null;
      expected?: number | undefined;
    },
    by: By,
  ): Promise<PolicyView> {
    return this.#tested(tenantId, false, async (em, notify, tested) => {
      const rules = await this.#rulesWithin(em, tenantId);
      const policy = await lock(em, id);
      assertExpected(policy, text.expected);
      const before = await em.findOneOrFail(PolicyRevision, { policyId: id, version: policy.version });
      const enforced = policy.liveVersion ?? null;
      const applies = change.type === 'update' ? change.applies : undefined;
      const applied = applies === undefined ? undefined : await suggestionOf(em, policy, applies);
      const suggester = applied?.comment.decided_by;
      const target = change.type === 'rollback' ? change.target : null;
      const old = textsOf(before);
      const tests = text.tests === undefined ? old.tests : text.tests;
      if (applied) await assertApplied(em, id, applied.comment, old, { source: text.source, tests });
      const found = await writersOf(em, policy, old, { source: text.source, tests }, target);
      const writers = suggester === undefined ? found : [suggester, ...found];
      const event: PolicyEvent = {
        type: change.type,
        writers,
        ...circumstancesOf(by, rules),
      };
      const authors = authorsWith(policy.machineContext, event);
      const [effects, taken] = step(policy, event);
      const now = new Date(this.#clock.now());
      await this.#review(em, policy, effects, by);
      policy.updatedAt = now;
      const publishes = effects.some((effect) => effect.type === 'publish');
      const version = { tenantId, policyId: id, text: text.source, tests };
      const findings = publishes ? await this.#findings(em, version, rules, tested, false) : undefined;
      if (findings?.refusal) throw findings.refusal;
      const revision = this.#addRevision(em, policy, { ...text, tests, authors }, by, change.type, now, target);
      await em.flush();
      if (publishes) {
        await this.#assertQuota(em, policy, enforced);
        await assertLists(em, policy, revision);
        await notify('policies');
      }
      await notify('revisions', id, [taken]);
      await this.#perform(em, policy, effects, by, {
        before: before.contentHash,
        after: revision.contentHash,
        found: findings?.words,
        ...(change.type === 'rollback' && { reason: change.reason }),
        detail:
          [
            target !== null && `from version ${target}`,
            applied && `with the suggestion of ${suggester}, comment ${applied.comment.id}${onLine(applied.comment)}`,
            text.from && sourceInWords(text.from),
          ]
            .filter(Boolean)
            .join(', ') || undefined,
      });
      if (applied) {
        await this.#settle(em, applied.revision, applied.comment, true, by, `applied in version ${policy.version}`);
      }
      return policyView(policy, revision);
    });
  }

  async #decide(
    tenantId: string,
    id: string,
    event: BareEvent,
    by: By,
    // `remark` is stored with the revision only; `reason` also in the audit log; `checked` is the version whose text was
    // recompiled, and the error to throw if the decision would enforce it
    words: {
      reason?: string | undefined;
      remark?: string | undefined;
      note?: string | null;
      expected?: number | undefined;
      checked?: { version: number; invalid: AppError | undefined } | undefined;
      simulation?: string | undefined;
      more?: Commented;
      pending?: readonly string[] | undefined;
    },
  ): Promise<PolicyView> {
    const emergency = event.type === 'break_glass';
    return this.#tested(tenantId, emergency, async (em, notify, tested) => {
      const rules = await this.#rulesWithin(em, tenantId);
      const policy = await lock(em, id);
      assertExpected(policy, words.expected);
      const enforced = policy.liveVersion ?? null;
      const [effects, taken] = step(policy, { ...event, ...circumstancesOf(by, rules) });
      const revision = await em.findOneOrFail(PolicyRevision, { policyId: id, version: policy.version });
      const publishes = effects.some((effect) => effect.type === 'publish');
      if (publishes && words.checked?.invalid) throw words.checked.invalid;
      if (publishes && words.checked && words.checked.version !== policy.version) {
        throw new AppError('VERSION_CHANGED', `the newest version is ${policy.version} by now`);
      }
      let findings: Finding | undefined;
      if (event.type === 'submit' || (publishes && event.type !== 'revoke')) {
        const { dslSource: text, testsSource } = revision;
        const version = { tenantId, policyId: id, text, tests: testsSource ?? null };
        findings = await this.#findings(em, version, rules, tested, emergency, words.simulation);
        if (findings.refusal && !emergency) throw findings.refusal;
      }
      if (words.note !== undefined) revision.note = words.note;
      const said = words.remark ?? words.reason;
      // without a remark of its own, only the pending comments are sent
      const nothing = event.type === 'comment' && words.pending && said === undefined;
      const written = nothing ? undefined : await this.#review(em, policy, effects, by, said, words.more);
      const sent = words.pending ? await this.#send(em, policy, revision, words.pending, by) : [];
      const unsettled = event.type === 'approve' ? await openThreads(em, policy) : 0;
      // a comment does not count as a change
      if (event.type !== 'comment') policy.updatedAt = new Date(this.#clock.now());
      await em.flush();
      if (publishes) {
        await this.#assertQuota(em, policy, enforced);
        await assertLists(em, policy, revision);
        await notify('policies');
      }
      if (event.type === 'submit') {
        const { version, dslSource: text } = revision;
        await this.#simulations.queue(em, { tenantId, policyId: id, version, text }, rules, by);
      }
      await notify('revisions', id, [taken]);
      const replaced = policy.liveVersion !== null && policy.liveVersion !== enforced ? enforced : null;
      const detail = [
        replaced !== null && `in place of version ${replaced}`,
        unsettled > 0 && `with ${unsettled} unresolved ${unsettled === 1 ? 'thread' : 'threads'}`,
        event.type === 'comment' && written && commentWords(written),
        ...sent.map(commentWords),
      ]
        .filter(Boolean)
        .join(', ');
      const about = 'version' in event ? event.version : undefined;
      await this.#perform(em, policy, effects, by, {
        after: revision.contentHash,
        detail: detail || undefined,
        found: findings?.words,
        reason: words.reason,
        about,
        comments: sent.length,
      });
      return policyView(policy, revision);
    });
  }

  /**
   * Counts the live statements after the change, serialized by a lock. A change that adds none is never rejected, even if
   * the tenant is over the limit.
   */
  async #assertQuota(em: EntityManager, { tenantId, id }: PolicyRow, replaced: number | null): Promise<void> {
    await holdLiveSet(em, tenantId);
    const counts = await em.execute<{ policy_id: string; live: boolean; n: number }[]>(
      `select r.policy_id, r.version = p.live_version as live, r.statement_count as n from policy p
       join policy_revision r on r.tenant_id = p.tenant_id and r.policy_id = p.id
        and (r.version = p.live_version or (p.id = ? and r.version = ?))
       where p.tenant_id = ?`,
      [id, replaced, tenantId],
    );
    const sum = (rows: typeof counts) => rows.reduce((total, { n }) => total + n, 0);
    const live = sum(counts.filter((row) => row.live));
    const own = counts.filter((row) => row.policy_id === id);
    const grows = sum(own.filter((row) => row.live)) > sum(own.filter((row) => !row.live));
    if (live <= this.#mostStatements || !grows) return;
    throw new AppError(
      'CONFLICT',
      `quota live_statements: this change would bring the tenant to ${live} live statements; the limit is ${this.#mostStatements} (SVC_LIVE_STATEMENTS)`,
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
      /** What tests and simulations showed. */
      found?: string | undefined;
      /** The version that was decided on; the newest if absent. */
      about?: number | undefined;
      /** How many comments were sent with it. */
      comments?: number | undefined;
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
        // one millisecond apart, so that the events of a transaction keep their order
        at: now + n,
        payload: {
          policy_id: policy.id,
          version: policy.version,
          content_hash: more.after,
          status: policy.status,
          live_version: policy.liveVersion ?? null,
          actor_id: by.person,
          ...(more.reason !== undefined && { reason: more.reason }),
          ...(more.comments && { comments: more.comments }),
          created_at: new Date(now).toISOString(),
        },
      });
      if (type === 'policy.submitted' || type === 'policy.break_glass') {
        await addNews(em, policy.tenantId, { kind: 'review', id: policy.id, version: policy.version, at: now });
      }
    }
    for (const effect of actions) {
      await this.#audit(em, policy.tenantId, {
        actor: by.actor,
        action: effect.params.action,
        severity: effect.params.severity,
        target: { type: 'policy', id: policy.id },
        detail: [`version ${more.about ?? policy.version}`, more.detail, more.found, enforced && ENFORCED]
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

/** A person's decision about a version, and the pending comments that they send with it. */
interface Decision {
  version: number;
  comment?: string | undefined;
  pending?: readonly string[] | undefined;
}

const tooManyReviews = () =>
  new AppError('CONFLICT', 'the version has reached the maximum number of reviews and comments');

/** A version is enforced only if every list that it names has an approved version, and none is deleted meanwhile. */
async function assertLists(em: EntityManager, policy: PolicyRow, { version, lists }: PolicyRevisionRow): Promise<void> {
  if (policy.liveVersion !== version || lists.length === 0) return;
  await holdLiveSet(em, policy.tenantId);
  const known = await em.find(ReferenceList, { name: { $in: lists }, liveVersion: { $ne: null } });
  const missing = lists.find((name) => known.every((list) => list.name !== name));
  if (missing !== undefined) {
    throw new AppError('CONFLICT', `the list ${missing} has no approved version: approve it first`);
  }
}

function policyInvalid({ errors }: Compilation, suiteFaults: readonly Diagnostic[] = []): AppError | undefined {
  const faults = [
    ...errors.map(({ fix: _fix, ...error }) => ({ pointer: '/dsl_source', ...error })),
    ...suiteFaults.map((error) => ({ pointer: '/tests_source', ...error })),
  ];
  if (faults.length === 0) return undefined;
  return new AppError('POLICY_INVALID', faults[0]!.message, { faults: faults.slice(0, 20) });
}

function assertExpected({ version }: PolicyRow, expected: number | undefined): void {
  if (expected === undefined || expected === version) return;
  throw new AppError('VERSION_CHANGED', `the current version is ${version}, not ${expected}`);
}

async function lock(em: EntityManager, id: string): Promise<PolicyRow> {
  const policy = await em.findOne(Policy, { id }, { lockMode: LockMode.PESSIMISTIC_WRITE });
  if (!policy) throw new AppError('NOT_FOUND', 'the policy does not exist');
  return policy;
}

/** Sends the event to the machine and writes the new state into the row. Throws if the machine rejects it. */
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
