import type { EntityManager } from '@mikro-orm/postgresql';
import type { Diagnostic } from '../domain/policy.ts';
import { AppError } from '../errors.ts';
import { canonicalJson } from '../lib/canonical-json.ts';
import { sha256Tag } from '../lib/crypto.ts';
import type { Fault } from '../lib/faults.ts';
import { notRun, type OthersRun, type SuiteRun } from './authoring/run-suite.ts';
import { holdLiveSet } from './live.ts';
import type { Rules } from './queries.ts';
import type { GateJob, PolicyTexts } from './texts.ts';

/** A finished run, and the hash of everything it depended on. */
export interface Tested {
  basis: string;
  /** Undefined if the version has no tests. */
  run: SuiteRun | undefined;
  others: OthersRun;
}

/** Thrown within a transaction that needs the result of these tests. It must be rolled back. */
class Untested extends Error {
  override readonly name = 'Untested';
  readonly job: GateJob;
  readonly basis: string;

  constructor(job: GateJob, basis: string) {
    super('the tests of the version have not been run');
    this.job = job;
    this.basis = basis;
  }
}

/** What the tests show about a version that is to be submitted or enforced. */
export interface Finding {
  /** Why the version must not pass; undefined if it may. */
  refusal?: AppError | undefined;
  /** For the audit record: the counts, the names of failed tests, the coverage, and the hash of the suite. */
  words: string | undefined;
}

/** Why a version with this result must not pass; undefined if it may. */
export function objectionTo(run: SuiteRun | null, tests: string | null, rules: Rules): string | undefined {
  if (run !== null && tests !== null) return findingOf(run, tests, rules).refusal?.message;
  return rules.tests_required ? NO_TESTS : lacking(0, rules);
}

const NO_TESTS = 'this tenant requires tests, and the version has none';

/** How many runs are tried while the live policies keep changing. */
const MOST_RUNS = 4;
/** How many failed tests a response and an audit record name. */
const MOST_NAMED = 20;

/**
 * Lets a version pass only with the tests that the tenant requires.
 *
 * The tests of other live policies count too, because a change may break what they promise. Those that already fail do
 * not count.
 *
 * INVARIANT: the tests passed with exactly the live policies, the settings and the tool registry that are in force when
 * the change commits. They run outside the transaction, so that no lock is held for long; the transaction locks the live
 * set, and accepts a result only if it was computed from everything that the transaction itself reads.
 */
export class TestGate {
  readonly #texts: PolicyTexts;

  constructor(texts: PolicyTexts) {
    this.#texts = texts;
  }

  /**
   * Runs `transact` until it has the results that it needs. In an emergency tests run once and never block. UNAVAILABLE if
   * the tests cannot be run now.
   */
  async through<T>(
    tenantId: string,
    emergency: boolean,
    transact: (tested: Tested | undefined) => Promise<T>,
  ): Promise<T> {
    let tested: Tested | undefined;
    for (let runs = 0; ; runs++) {
      try {
        return await transact(tested);
      } catch (error) {
        if (!(error instanceof Untested)) throw error;
        if (runs === MOST_RUNS) {
          throw new AppError('UNAVAILABLE', 'the live policies keep changing while the tests run', {
            headers: { 'retry-after': '2' },
          });
        }
        tested = { basis: error.basis, ...(await this.#run(tenantId, error.job, emergency)) };
      }
    }
  }

  /** What the tests show about a version, within the transaction that lets it pass. The live set is locked until it ends. */
  async find(
    em: EntityManager,
    version: { tenantId: string; policyId: string; text: string; tests: string | null },
    rules: Rules,
    tested: Tested | undefined,
    emergency: boolean,
  ): Promise<Finding> {
    const { tenantId, tests, ...policy } = version;
    const missing = tests === null ? objectionTo(null, null, rules) : undefined;
    await holdLiveSet(em, tenantId);
    const job = await this.#texts.jobWithin(em, tenantId, { ...policy, tests }, rules);
    const none: Finding =
      missing === undefined
        ? { words: undefined }
        : { refusal: new AppError('TESTS_FAILED', missing), words: 'tests: none' };
    if (tests === null && job.suites.length === 0) return none;
    // a list's version stands for its values
    const lists = job.lists.map(({ name, version }) => ({ name, version }));
    const basis = sha256Tag(canonicalJson({ ...job, lists }));
    if (!tested || (tested.basis !== basis && !emergency)) throw new Untested(job, basis);
    const own = tested.run && tests !== null ? findingOf(tested.run, tests, rules) : none;
    const others = othersFinding(tested.others);
    return {
      refusal: own.refusal ?? others.refusal,
      words: [own.words, others.words].filter(Boolean).join('; ') || undefined,
    };
  }

  async #run(tenantId: string, job: GateJob, emergency: boolean): Promise<Omit<Tested, 'basis'>> {
    const { suites, before, tests, ...common } = job;
    /** In an emergency, the reason for having no result counts as the result. */
    const attempt = async <T>(work: () => Promise<T>, failed: (found: Diagnostic[]) => T): Promise<T> => {
      try {
        return await work();
      } catch (error) {
        if (!emergency) throw error;
        return failed([{ line: 1, column: 1, message: error instanceof Error ? error.message : String(error) }]);
      }
    };
    const run =
      tests === null ? undefined : await attempt(() => this.#texts.run(tenantId, { ...common, tests }), notRun);
    const others = await attempt(
      () => this.#texts.brokenBy(tenantId, { ...common, before, suites }),
      (errors): OthersRun => ({ errors, broken: [] }),
    );
    return { run, others };
  }
}

/** A version may not break the tests of other live policies. */
function othersFinding({ errors, broken }: OthersRun): Finding {
  const [error] = errors;
  if (error) {
    const why = `the tests of other policies could not be run: ${error.message}`;
    return { refusal: new AppError('TESTS_FAILED', why), words: 'tests of other policies: not run' };
  }
  if (broken.length === 0) return { words: undefined };
  const byPolicy = [...Map.groupBy(broken, ({ policy_id }) => policy_id)].map(
    ([id, tests]) => `${id} (${namesOf(tests)})`,
  );
  const named = [...byPolicy.slice(0, MOST_NAMED), ...more(byPolicy.length)].join(', ');
  const faults = broken.slice(0, MOST_NAMED).map(
    ({ policy_id, name, row, differences }): Fault => ({
      pointer: '/dsl_source',
      message: `${policy_id}, ${JSON.stringify(name)}${row === undefined ? '' : `, row ${row}`}: ${differences.join('; ')}`,
    }),
  );
  const why = `tests of other live policies would fail: ${named}`;
  return { refusal: new AppError('TESTS_FAILED', why, { faults }), words: `tests of other policies failed: ${named}` };
}

/** Quoted, so that no name can be mistaken for another part of the record. */
function namesOf(tests: readonly { name: string }[]): string {
  const names = [...new Set(tests.map(({ name }) => JSON.stringify(name)))];
  return [...names.slice(0, MOST_NAMED), ...more(names.length)].join(', ');
}

const more = (n: number) => (n > MOST_NAMED ? [`and ${n - MOST_NAMED} more`] : []);

function findingOf(run: SuiteRun, tests: string, rules: Rules): Finding {
  const suite = `suite ${sha256Tag(tests)}`;
  const [broken] = [...run.errors, ...run.tests_errors];
  if (broken) {
    const why = `the tests could not be run: ${broken.message}`;
    return { refusal: new AppError('TESTS_FAILED', why), words: `tests: not run, ${suite}` };
  }
  const { passed, failed, coverage } = run;
  const failures = run.results.filter(({ ok }) => !ok);
  const named = namesOf(failures);
  const words = [
    failed > 0 ? `tests: ${failed} of ${passed + failed} failed: ${named}` : `tests: ${passed} passed`,
    `coverage ${coverage.percent} %`,
    suite,
  ].join('; ');
  const why =
    failed > 0
      ? `${failed} of ${passed + failed} tests failed: ${named}`
      : rules.tests_required && passed === 0
        ? 'this tenant requires tests, and the suite of the version has none'
        : lacking(coverage.percent, rules);
  if (why === undefined) return { words };
  const faults = failures.slice(0, MOST_NAMED).map(
    ({ name, row, differences, line, column }): Fault => ({
      pointer: '/tests_source',
      message: `${JSON.stringify(name)}${row === undefined ? '' : `, row ${row}`}: ${differences.join('; ')}`,
      ...{ line, column },
    }),
  );
  return { refusal: new AppError('TESTS_FAILED', why, { faults }), words };
}

function lacking(percent: number, { min_coverage }: Rules): string | undefined {
  if (percent >= min_coverage) return undefined;
  return `the tests cover ${percent} % of the statements; this tenant requires ${min_coverage} %`;
}
