import type { EntityManager } from '@mikro-orm/postgresql';
import { AppError } from '../errors.ts';
import { canonicalJson } from '../lib/canonical-json.ts';
import { sha256Tag } from '../lib/crypto.ts';
import type { Fault } from '../lib/faults.ts';
import type { SuiteJob } from './authoring/author.ts';
import { notRun, type SuiteRun } from './authoring/run-suite.ts';
import { holdLiveSet } from './live.ts';
import type { Rules } from './queries.ts';
import type { PolicyTexts } from './texts.ts';

/** A finished run, and the hash of all that it depended on. */
export interface Tested {
  basis: string;
  run: SuiteRun;
}

/** Thrown within a transaction that needs the result of these tests. It must be rolled back. */
class Untested extends Error {
  override readonly name = 'Untested';
  readonly job: SuiteJob;
  readonly basis: string;

  constructor(job: SuiteJob, basis: string) {
    super('the tests of the version have not been run');
    this.job = job;
    this.basis = basis;
  }
}

/** What the tests say of a version that is to be submitted or enforced. */
export interface Finding {
  /** Why the version must not pass; undefined if it may. */
  refusal?: AppError;
  /** For the audit record: the counts, the names of failed tests, the coverage, and the hash of the suite. */
  words: string | undefined;
}

/** Why a version with this result must not pass; undefined if it may. */
export function objectionTo(run: SuiteRun | null, tests: string | null, rules: Rules): string | undefined {
  if (run !== null && tests !== null) return findingOf(run, tests, rules).refusal?.message;
  return rules.tests_required ? NO_TESTS : lacking(0, rules);
}

const NO_TESTS = 'this tenant requires tests, and the version has none';

/** How often the live policies may change during a run before it is given up. */
const MOST_RUNS = 4;
/** Failed tests that an answer and an audit record name. */
const MOST_NAMED = 20;

/**
 * Lets a version pass only with the tests that the tenant asks for.
 *
 * INVARIANT: the tests passed with exactly the live policies, the settings and the tool registry that are in force when
 * the change commits. They run outside the transaction, so that no lock is held for long; the transaction locks the live
 * set, and takes a result only if it was found with all that the transaction itself finds.
 */
export class TestGate {
  readonly #texts: PolicyTexts;

  constructor(texts: PolicyTexts) {
    this.#texts = texts;
  }

  /**
   * Runs `transact` until it has the results that it needs. In an emergency tests run once, and never stand in the way.
   * UNAVAILABLE when the tests cannot be run now.
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
        tested = { basis: error.basis, run: await this.#run(tenantId, error.job, emergency) };
      }
    }
  }

  /** What the tests say of a version, within the transaction that lets it pass. The live set is locked until it ends. */
  async find(
    em: EntityManager,
    version: { tenantId: string; policyId: string; text: string; tests: string | null },
    rules: Rules,
    tested: Tested | undefined,
    emergency: boolean,
  ): Promise<Finding> {
    const { tenantId, tests, ...policy } = version;
    if (tests === null) {
      const why = objectionTo(null, null, rules);
      return { ...(why && { refusal: new AppError('TESTS_FAILED', why) }), words: why && 'tests: none' };
    }
    await holdLiveSet(em, tenantId);
    const job = await this.#texts.jobWithin(em, tenantId, { ...policy, tests }, rules);
    // the version of a list stands for its values
    const lists = job.lists.map(({ name, version }) => ({ name, version }));
    const basis = sha256Tag(canonicalJson({ ...job, lists }));
    if (!tested || (tested.basis !== basis && !emergency)) throw new Untested(job, basis);
    return findingOf(tested.run, tests, rules);
  }

  async #run(tenantId: string, job: SuiteJob, emergency: boolean): Promise<SuiteRun> {
    try {
      return await this.#texts.run(tenantId, job);
    } catch (error) {
      if (!emergency) throw error;
      return notRun([{ line: 1, column: 1, message: error instanceof Error ? error.message : String(error) }]);
    }
  }
}

function findingOf(run: SuiteRun, tests: string, rules: Rules): Finding {
  const suite = `suite ${sha256Tag(tests)}`;
  const [broken] = [...run.errors, ...run.tests_errors];
  if (broken) {
    const why = `the tests could not be run: ${broken.message}`;
    return { refusal: new AppError('TESTS_FAILED', why), words: `tests: not run, ${suite}` };
  }
  const { passed, failed, coverage } = run;
  const failures = run.results.filter(({ ok }) => !ok);
  // quoted, so that no name can be taken for another part of the record
  const names = [...new Set(failures.map(({ name }) => JSON.stringify(name)))];
  const more = names.length > MOST_NAMED ? [`and ${names.length - MOST_NAMED} more`] : [];
  const named = [...names.slice(0, MOST_NAMED), ...more].join(', ');
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
