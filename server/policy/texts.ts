import type { EntityManager } from '@mikro-orm/postgresql';
import type { Database } from '../../db/index.ts';
import type { BundleList } from '../domain/lists.ts';
import type { ActionRequest, Diagnostic } from '../domain/policy.ts';
import type { BundleRegistry } from '../domain/tools.ts';
import type { Source } from '../domain/workload.ts';
import { AppError } from '../errors.ts';
import { canonicalJson } from '../lib/canonical-json.ts';
import type { Clock } from '../lib/clock.ts';
import { sha256Tag } from '../lib/crypto.ts';
import {
  AuthorBusy,
  type AuthorLanguage,
  type OthersJob,
  type SuiteJob,
  type Surroundings,
  type Trial,
} from './authoring/author.ts';
import type { Explained, ExplainJob } from './authoring/explain.ts';
import type { PastDecision, TestFromDecision } from './authoring/from-decision.ts';
import type { MutationRun } from './authoring/mutants.ts';
import type { BrokenTest, OthersRun, SuiteRun } from './authoring/run-suite.ts';
import { listsNamed } from './bundle.ts';
import type { Verdict } from './evaluation/evaluate.ts';
import { objectionTo } from './gate.ts';
import type { TextDiff } from './language/compare.ts';
import type { Compilation, CompiledStatement } from './language/compile.ts';
import { actionEntities, type CustomActionTypes, schemaFor } from './language/schema.ts';
import { type ListedTools, lintTools, toolsNamed } from './language/tool-lint.ts';
import type { ListQueries } from './list-queries.ts';
import { revisionHash } from './live.ts';
import { type PolicyQueries, type PolicyView, policyView, type Rules } from './queries.ts';

/** A suite without tests. */
const NO_TESTS = 'tests: []';
/** A statement that matches no request: an agent always has an id. */
const NO_RULE = 'forbid(principal == Agent::"", action, resource == Tool::"");';

/** A policy as given in a folder. */
export interface PlannedPolicy {
  id: string;
  dsl_source: string;
  tests_source: string | null;
}

/** What would happen to one policy of a folder. */
export interface PolicyPlan {
  id: string;
  /** `create`: there is no such policy; `update`: the newest version differs; `none`: it is unchanged. */
  change: 'create' | 'update' | 'none';
  content_hash: string;
  /** The newest version; null if there is none. */
  newest: (Pick<PolicyView, 'status' | 'version' | 'content_hash' | 'author_id'> & { source: Source | null }) | null;
  live_version: number | null;
  errors: Diagnostic[];
  tests_errors: Diagnostic[];
  warnings: Diagnostic[];
  /** Against the live version, or the newest one if none is live. Null if the text has errors or there is no version. */
  diff: TextDiff | null;
  /** Whether the suite differs from that of the same version. */
  tests_changed: boolean;
  /** Run with the whole folder in place of the live versions; null without a suite. */
  tests: SuiteRun | null;
  /** Why it could not be submitted or enforced as is. */
  objections: string[];
}

/** A text could cause more warnings than anyone reads. */
const MAX_TOOL_WARNINGS = 50;

/**
 * Checks, formats, tries out and compares policy texts, stored or drafted. Saves nothing. UNAVAILABLE if the worker is
 * too busy.
 */
export class PolicyTexts {
  readonly #db: Database;
  readonly #clock: Clock;
  readonly #language: AuthorLanguage;
  readonly #slow: AuthorLanguage;
  readonly #rules: (tenantId: string) => Promise<Rules>;
  readonly #queries: PolicyQueries;
  readonly #registry: (em: EntityManager, tenantId: string) => Promise<BundleRegistry>;
  readonly #tools: (tenantId: string, names: readonly string[]) => Promise<ListedTools>;
  readonly #lists: Pick<ListQueries, 'names' | 'valuesOf'>;

  constructor(parts: {
    db: Database;
    clock: Clock;
    language: AuthorLanguage;
    /** A separate thread for jobs that take seconds, so that saving never waits for them. */
    slow: AuthorLanguage;
    rules: (tenantId: string) => Promise<Rules>;
    queries: PolicyQueries;
    /** What is known about tools and agents, as the reader or the transaction sees it. */
    registry: (em: EntityManager, tenantId: string) => Promise<BundleRegistry>;
    /** What tool servers list, with the schemas of the tools with these names. */
    tools: (tenantId: string, names: readonly string[]) => Promise<ListedTools>;
    lists: Pick<ListQueries, 'names' | 'valuesOf'>;
  }) {
    this.#db = parts.db;
    this.#clock = parts.clock;
    this.#language = parts.language;
    this.#slow = parts.slow;
    this.#rules = parts.rules;
    this.#queries = parts.queries;
    this.#registry = parts.registry;
    this.#tools = parts.tools;
    this.#lists = parts.lists;
  }

  /** Checks a text and saves nothing. */
  async validate(tenantId: string, source: string, policyId = 'policy'): Promise<Compilation> {
    const [{ action_types }, lists] = await Promise.all([this.#rules(tenantId), this.#lists.names(tenantId)]);
    const compiled = await this.#ask((language) =>
      language.compile(tenantId, policyId, source, schemaFor(action_types), lists),
    );
    return compiled.errors.length > 0 ? compiled : { ...compiled, errors: nulFaults(source, compiled) };
  }

  /** Like `validate`, with warnings about tools and arguments that no tool server lists. */
  async lint(tenantId: string, source: string, policyId?: string): Promise<Compilation> {
    const compiled = await this.validate(tenantId, source, policyId);
    if (compiled.errors.length > 0) return compiled;
    const named = toolsNamed(source);
    if (named.length === 0) return compiled;
    const warnings = lintTools(source, await this.#tools(tenantId, named));
    return { ...compiled, warnings: [...compiled.warnings, ...warnings.slice(0, MAX_TOOL_WARNINGS)] };
  }

  /**
   * What a text would decide on a request, and what the live policies decide now. The text replaces the policy's live
   * version among all live policies, or is evaluated by itself with `alone`. Nothing is saved, counted or recorded.
   */
  async tryOut(
    tenantId: string,
    input: {
      id?: string | undefined;
      dsl_source: string;
      alone: boolean;
      request: Omit<ActionRequest, 'now'>;
      trace?: boolean;
    },
  ): Promise<Trial & { live: Verdict | null }> {
    const policyId = input.id ?? 'policy';
    const { liveTexts: live, ...surroundings } = await this.#surroundings(tenantId, input.dsl_source);
    const common = {
      ...surroundings,
      request: { ...input.request, now: new Date(this.#clock.now()).toISOString() },
    };
    const liveTexts = input.alone ? [] : live.filter((one) => one.policyId !== policyId);
    const trial = await this.#ask((language) =>
      language.tryOut(tenantId, {
        ...{ policyId, text: input.dsl_source, liveTexts, trace: input.trace ?? false },
        ...common,
      }),
    );
    // a statement that matches nothing stands for "no draft"
    const now =
      trial.verdict &&
      (await this.#ask((language) =>
        language.tryOut(tenantId, { policyId: '', text: NO_RULE, liveTexts: live, ...common }),
      ));
    return { ...trial, live: now?.verdict ?? null };
  }

  /**
   * What would happen to the policies of a folder, compared with what is stored: changes by statement, the tests, which run
   * with all policies of the folder in place of their live versions, and what would block a release. Nothing is saved.
   */
  async plan(tenantId: string, planned: readonly PlannedPolicy[]): Promise<PolicyPlan[]> {
    const rules = await this.#rules(tenantId);
    const compiled = new Map<string, Compilation>();
    for (const { id, dsl_source } of planned) compiled.set(id, await this.lint(tenantId, dsl_source, id));
    const sound = planned.filter(({ id }) => compiled.get(id)!.errors.length === 0);
    const texts = sound.map(({ dsl_source }) => dsl_source);
    const { liveTexts: live, ...surroundings } = await this.#surroundings(tenantId, ...texts);
    const replaced = new Set(sound.map(({ id }) => id));
    const all = [
      ...live.filter(({ policyId }) => !replaced.has(policyId)),
      ...sound.map(({ id, dsl_source }) => ({ policyId: id, version: 0, text: dsl_source })),
    ];
    const enforced = await this.#db.query<{ name: string }>(
      tenantId,
      'select name from reference_list where tenant_id = $1 and deleted_at is null and live_version is not null',
      [tenantId],
    );
    const approved = new Set(enforced.map(({ name }) => name));
    const plans: PolicyPlan[] = [];
    for (const policy of planned) {
      const { id, dsl_source, tests_source } = policy;
      const { errors, warnings, lists } = compiled.get(id)!;
      const stored = await this.#queries.newest(tenantId, id);
      const before = stored?.live ?? stored?.newest;
      const content_hash = revisionHash(dsl_source, tests_source);
      const tests_errors = await this.suiteFaults(tenantId, tests_source);
      const runs = tests_source !== null && errors.length === 0 && tests_errors.length === 0;
      const others = all.filter(({ policyId }) => policyId !== id);
      const tests = runs
        ? await this.run(tenantId, {
            ...{ policyId: id, text: dsl_source, tests: tests_source, liveTexts: others },
            ...surroundings,
          })
        : null;
      const objection = objectionTo(tests, tests_source, rules);
      const missing = lists.filter((name) => !approved.has(name));
      plans.push({
        id,
        change: !stored
          ? 'create'
          : stored.newest.content_hash === content_hash && stored.newest.status !== 'revoked'
            ? 'none'
            : 'update',
        content_hash,
        newest: stored?.newest ?? null,
        live_version: stored?.live_version ?? null,
        errors,
        tests_errors,
        warnings,
        diff:
          errors.length === 0 && before
            ? await this.#ask((language) =>
                language.diff(tenantId, {
                  policyId: id,
                  from: { name: `${id}, version ${before.version}`, text: before.dsl_source },
                  to: { name: `${id}, planned`, text: dsl_source },
                }),
              )
            : null,
        tests_changed: (before?.tests_source ?? null) !== tests_source,
        tests,
        objections: [
          ...(errors.length > 0 ? ['the text has errors'] : []),
          ...(tests_errors.length > 0 ? ['the tests have errors'] : []),
          ...(objection !== undefined && errors.length + tests_errors.length === 0 ? [objection] : []),
          ...missing.map((name) => `the list ${name} has no approved version`),
        ],
      });
    }
    return plans;
  }

  /** The faults of a test suite; none for null. */
  async suiteFaults(tenantId: string, tests: string | null): Promise<Diagnostic[]> {
    return tests === null ? [] : this.#ask((language) => language.suiteFaults(tenantId, tests));
  }

  /**
   * Runs tests on a policy, which replaces its live version among all live policies. Missing parts are taken from the
   * newest version; NOT_FOUND if there is none. Nothing is saved, counted or recorded.
   */
  async test(tenantId: string, id: string, input: TextAndTests): Promise<SuiteRun> {
    return this.run(tenantId, await this.#job(tenantId, id, input));
  }

  /** The same for one change of the policy after another: finds those that no test notices. */
  async mutate(tenantId: string, id: string, input: TextAndTests): Promise<MutationRun> {
    const job = await this.#job(tenantId, id, input);
    return this.#ask((language) => language.mutate(tenantId, job), this.#slow);
  }

  /** A policy's suite with a test made from a past decision. Nothing is saved. */
  async fromDecision(tenantId: string, id: string, input: TextAndTests, past: PastDecision): Promise<TestFromDecision> {
    const job = await this.#job(tenantId, id, input);
    const tests = job.tests === NO_TESTS ? '' : job.tests;
    return this.#ask((language) => language.fromDecision(tenantId, { ...job, tests }, past));
  }

  /** What a request found in the policies of its decision. */
  explain(tenantId: string, job: ExplainJob): Promise<Explained> {
    return this.#ask((language) => language.explain(tenantId, job));
  }

  async #job(
    tenantId: string,
    policyId: string,
    { dsl_source: text, tests_source: tests }: TextAndTests,
  ): Promise<SuiteJob> {
    if (text === undefined || tests === undefined) {
      const { version } = await this.#queries.find(tenantId, policyId);
      const newest = await this.#queries.revision(tenantId, policyId, version);
      text ??= newest.dslSource;
      tests ??= newest.testsSource ?? NO_TESTS;
    }
    const { liveTexts, ...surroundings } = await this.#surroundings(tenantId, text);
    const others = liveTexts.filter((one) => one.policyId !== policyId);
    return { policyId, text, tests, liveTexts: others, ...surroundings };
  }

  /** A policy's tests, and those of other policies, with everything they depend on, as the transaction sees it. */
  async jobWithin(
    em: EntityManager,
    tenantId: string,
    { policyId, text, tests }: { policyId: string; text: string; tests: string | null },
    { action_types }: Rules,
  ): Promise<GateJob> {
    const rows = await em.execute<LiveText[]>(liveTexts('?'), [tenantId]);
    const others = without(rows, policyId);
    const lists = await this.#lists.valuesOf(em, tenantId, listsOf([text], rows));
    const surroundings = surroundingsOf(others, action_types, await this.#registry(em, tenantId), lists);
    return { tests, ...othersOf(rows, policyId, text), ...surroundings };
  }

  /**
   * The tests of other live policies that pass now and would fail after a change: those in suites with the scope `live`, of
   * policies that remain. UNAVAILABLE if together they take too long.
   */
  async brokenBy(tenantId: string, { suites, ...job }: OthersJob): Promise<OthersRun> {
    const began = performance.now();
    const broken: BrokenTest[] = [];
    for (const group of grouped(suites)) {
      if (performance.now() - began > MOST_OTHERS_MS) {
        throw new AppError('UNAVAILABLE', 'the tests of other policies take too long', {
          headers: { 'retry-after': '2' },
        });
      }
      const run = await this.#ask((language) => language.testOthers(tenantId, { ...job, suites: group }));
      if (run.errors.length > 0) return run;
      broken.push(...run.broken);
    }
    return { errors: [], broken };
  }

  /** The same for a text, with the live policies as they are now. */
  async breaks(tenantId: string, id: string, input: TextAndTests): Promise<OthersRun> {
    const { text } = await this.#job(tenantId, id, { tests_source: NO_TESTS, ...input });
    const rows = await this.#db.query<LiveText>(tenantId, liveTexts('$1'), [tenantId]);
    const { action_types } = await this.#rules(tenantId);
    const em = this.#db.reader(tenantId);
    const lists = await this.#lists.valuesOf(em, tenantId, listsOf([text], rows));
    return this.brokenBy(tenantId, {
      ...othersOf(rows, id, text),
      ...surroundingsOf(without(rows, id), action_types, await this.#registry(em, tenantId), lists),
    });
  }

  /** The live policies and everything they depend on, as the transaction sees it; also what a draft reads in addition. */
  async surroundingsWithin(
    em: EntityManager,
    tenantId: string,
    draft: string,
    { action_types }: Pick<Rules, 'action_types'>,
  ): Promise<Surroundings> {
    const rows = await em.execute<LiveText[]>(liveTexts('?'), [tenantId]);
    const lists = await this.#lists.valuesOf(em, tenantId, listsOf([draft], rows));
    return surroundingsOf(rows, action_types, await this.#registry(em, tenantId), lists);
  }

  /** Runs a test suite. */
  run(tenantId: string, job: SuiteJob): Promise<SuiteRun> {
    return this.#ask((language) => language.test(tenantId, job));
  }

  /** The tests of all live policies that have any, each with the policies, lists and registry that are in force now. */
  async liveSuites(tenantId: string): Promise<LiveSuite[]> {
    const rows = await this.#db.query<LiveText>(tenantId, liveTexts('$1'), [tenantId]);
    if (rows.every(({ tests_source }) => tests_source === null)) return [];
    const { action_types } = await this.#rules(tenantId);
    const em = this.#db.reader(tenantId);
    const lists = await this.#lists.valuesOf(em, tenantId, listsOf([], rows));
    const { liveTexts: all, ...others } = surroundingsOf(rows, action_types, await this.#registry(em, tenantId), lists);
    // a policy version stands for its text and its tests, a list version for its values
    const versions = [rows, lists.map((list) => ({ ...list, policy_id: list.name }))].map((part) =>
      part.map(({ policy_id, version }) => [policy_id, version]),
    );
    const { schema, registry } = others;
    const basis = sha256Tag(canonicalJson({ versions, schema, registry }));
    return rows.flatMap(({ policy_id: policyId, version, dsl_source: text, tests_source: tests }) => {
      if (tests === null) return [];
      const liveTexts = all.filter((one) => one.policyId !== policyId);
      return [{ version, basis, job: { policyId, text, tests, liveTexts, ...others } }];
    });
  }

  /** Runs one of those in the slow thread, so that saving never waits for it. */
  runLive(tenantId: string, job: SuiteJob): Promise<SuiteRun> {
    return this.#ask((language) => language.test(tenantId, job), this.#slow);
  }

  async #surroundings(tenantId: string, ...texts: string[]): Promise<Surroundings> {
    const { action_types } = await this.#rules(tenantId);
    const rows = await this.#db.query<LiveText>(tenantId, liveTexts('$1'), [tenantId]);
    const em = this.#db.reader(tenantId);
    const lists = await this.#lists.valuesOf(em, tenantId, listsOf(texts, rows));
    return surroundingsOf(rows, action_types, await this.#registry(em, tenantId), lists);
  }

  async format(tenantId: string, source: string): Promise<{ formatted?: string; errors: Diagnostic[] }> {
    return this.#ask((language) => language.format(tenantId, source));
  }

  /** What changed between two versions: as text, and rule by rule. */
  async diff(tenantId: string, id: string, from: number, to: number) {
    const textOf = async (version: number) =>
      version === 0 ? '' : (await this.#queries.revision(tenantId, id, version)).dslSource;
    const [old, recent] = await Promise.all([textOf(from), textOf(to)]);
    const changes = await this.#ask((language) =>
      language.diff(tenantId, {
        policyId: id,
        from: { name: from === 0 ? 'nothing' : `version ${from}`, text: old },
        to: { name: `version ${to}`, text: recent },
      }),
    );
    const [was, now] = await Promise.all(
      [old, recent].map(async (text) => {
        if (text === '') return new Map<string, string>();
        // an old text may no longer compile: then its rules have no summaries
        const { statements } = await this.validate(tenantId, text, id);
        return new Map(statements.map((one) => [one.id, one.summary.text]));
      }),
    );
    const { rules_added, rules_changed, rules_removed } = changes;
    const rules = [
      ...rules_changed.map((rule) => [rule, 'changed'] as const),
      ...rules_added.map((rule) => [rule, 'added'] as const),
      ...rules_removed.map((rule) => [rule, 'removed'] as const),
    ].map(([rule_id, change]) => ({
      ...{ rule_id, change },
      was: change === 'added' ? null : (was!.get(rule_id) ?? null),
      now: change === 'removed' ? null : (now!.get(rule_id) ?? null),
    }));
    return { policy_id: id, from, to, ...changes, rules };
  }

  /** The newest version in words, rule by rule. */
  async summary(tenantId: string, id: string): Promise<{ policy: PolicyView; statements: CompiledStatement[] }> {
    const policy = await this.#queries.find(tenantId, id);
    const revision = await this.#queries.revision(tenantId, id, policy.version);
    const { statements } = await this.validate(tenantId, revision.dslSource, id);
    return { policy: policyView(policy, revision), statements };
  }

  /** Turns AuthorBusy into UNAVAILABLE. */
  async #ask<T>(job: (language: AuthorLanguage) => Promise<T>, language = this.#language): Promise<T> {
    try {
      return await job(language);
    } catch (error) {
      if (!(error instanceof AuthorBusy)) throw error;
      throw new AppError('UNAVAILABLE', error.message, { headers: { 'retry-after': '2' }, cause: error });
    }
  }
}

/** A live policy's tests, and the hash of everything their result depends on. */
export interface LiveSuite {
  version: number;
  basis: string;
  job: SuiteJob;
}

/** Absent parts are taken from the newest version. */
interface TextAndTests {
  dsl_source?: string | undefined;
  tests_source?: string | undefined;
}

interface LiveText {
  policy_id: string;
  version: number;
  dsl_source: string;
  tests_source: string | null;
  lists: string[];
}

/** What must be run before a version may pass. `tests`: its own; null if it has none. */
export type GateJob = OthersJob & { tests: string | null };

/** Suites are run together up to this many characters. */
const GROUP = 128 * 1024;
/** Time for all tests of other policies together. */
const MOST_OTHERS_MS = 30_000;

function grouped(suites: OthersJob['suites']): OthersJob['suites'][] {
  const groups: { policyId: string; tests: string }[][] = [];
  let size = Number.POSITIVE_INFINITY;
  for (const suite of suites) {
    size += suite.tests.length;
    if (size > GROUP) {
      groups.push([]);
      size = suite.tests.length;
    }
    groups.at(-1)?.push(suite);
  }
  return groups;
}

const without = (rows: readonly LiveText[], id: string) => rows.filter(({ policy_id }) => policy_id !== id);

/** The change to the policy, and the suites of the others. */
function othersOf(rows: readonly LiveText[], policyId: string, text: string) {
  return {
    policyId,
    text,
    before: rows.find(({ policy_id }) => policy_id === policyId)?.dsl_source ?? null,
    suites: without(rows, policyId).flatMap(({ policy_id, tests_source }) =>
      tests_source === null ? [] : [{ policyId: policy_id, tests: tests_source }],
    ),
  };
}

/** The reference lists that texts and the live policies name. */
function listsOf(texts: readonly string[], live: readonly LiveText[]): string[] {
  return [...new Set([...listsNamed(texts.map((cedar) => ({ cedar }))), ...live.flatMap(({ lists }) => lists)])];
}

/** Selects the texts of the tenant's live policies; the tenant is bound to `parameter`. */
const liveTexts = (
  parameter: '$1' | '?',
) => `select r.policy_id, r.version, r.dsl_source, r.tests_source, r.lists from policy p
  join policy_revision r on r.tenant_id = p.tenant_id and r.policy_id = p.id and r.version = p.live_version
  where p.tenant_id = ${parameter} order by r.policy_id`;

function surroundingsOf(
  live: readonly LiveText[],
  types: CustomActionTypes,
  registry: BundleRegistry,
  lists: readonly BundleList[],
): Surroundings {
  return {
    liveTexts: live.map(({ policy_id, version, dsl_source }) => ({ policyId: policy_id, version, text: dsl_source })),
    schema: schemaFor(types),
    actionEntities: actionEntities(types),
    registry,
    lists,
  };
}

/** The positions of NUL in a text, literal or as an escape in an extracted value: PostgreSQL stores neither. */
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
