import type { Database } from '../../db/index.ts';
import type { ActionRequest, Diagnostic } from '../domain/policy.ts';
import { AppError } from '../errors.ts';
import type { Clock } from '../lib/clock.ts';
import { AuthorBusy, type AuthorLanguage, type Trial } from './authoring/author.ts';
import type { Verdict } from './evaluation/evaluate.ts';
import type { Compilation, CompiledStatement } from './language/compile.ts';
import { actionEntities, schemaFor } from './language/schema.ts';
import { type PolicyQueries, type PolicyView, policyView, type Rules } from './queries.ts';

/** A statement that matches no request: an agent always has an id. */
const NO_RULE = 'forbid(principal == Agent::"", action, resource == Tool::"");';

/**
 * What the policy language says about texts, stored ones and drafts. Nothing is saved. UNAVAILABLE when the language's
 * worker has no time for a text.
 */
export class PolicyTexts {
  readonly #db: Database;
  readonly #clock: Clock;
  readonly #language: AuthorLanguage;
  readonly #rules: (tenantId: string) => Promise<Rules>;
  readonly #queries: PolicyQueries;

  constructor(parts: {
    db: Database;
    clock: Clock;
    language: AuthorLanguage;
    rules: (tenantId: string) => Promise<Rules>;
    queries: PolicyQueries;
  }) {
    this.#db = parts.db;
    this.#clock = parts.clock;
    this.#language = parts.language;
    this.#rules = parts.rules;
    this.#queries = parts.queries;
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
   * What a text would decide on a request, and what the live policies decide now. With `alone` the text is tried by itself,
   * else in place of the policy's live version among all live ones. Nothing is saved, counted or recorded.
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
    // a text that permits nothing and forbids nothing is the same as no draft
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

  /** What changed between two versions: as text, and rule by rule. */
  async diff(tenantId: string, id: string, from: number, to: number) {
    const [old, recent] = await Promise.all([
      this.#queries.revision(tenantId, id, from),
      this.#queries.revision(tenantId, id, to),
    ]);
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
    const policy = await this.#queries.find(tenantId, id);
    const revision = await this.#queries.revision(tenantId, id, policy.version);
    const { statements } = await this.validate(tenantId, revision.dslSource, id);
    return { policy: policyView(policy, revision), statements };
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
