import type { BundleContent, Diagnostic } from '../../domain/policy.ts';
import { type Match, PolicyEngine, type SettleState, settle, type Verdict } from '../evaluation/evaluate.ts';
import { ruleReference } from '../evaluation/hold-terms.ts';
import type { CompiledStatement } from '../language/compile.ts';
import { type Coverage, Measured, NOTHING_COVERED } from './coverage.ts';
import type { Expectation, TestCase } from './suite.ts';

/** The result of one test, or of one row of its table. */
export interface TestResult {
  name: string;
  row?: number;
  ok: boolean;
  expected: Expectation;
  got: Verdict;
  /** Descriptions of the differences; empty if `ok`. */
  differences: string[];
  /** Why the request could not be evaluated. */
  detail?: string;
  /** Where the test, or the row, begins in the suite. */
  line: number;
  column: number;
}

export interface SuiteRun {
  /** Faults of the policy text. If there are any, or any `tests_errors`, nothing was run. */
  errors: Diagnostic[];
  /** Faults of the test suite. */
  tests_errors: Diagnostic[];
  passed: number;
  failed: number;
  results: TestResult[];
  coverage: Coverage;
}

/** A test of another policy that passes now and would fail after a change. */
export interface BrokenTest extends Pick<TestResult, 'name' | 'row' | 'differences' | 'line' | 'column'> {
  policy_id: string;
}

export interface OthersRun {
  /** Why there is no result. */
  errors: Diagnostic[];
  broken: BrokenTest[];
}

/** A run that did not happen. */
export function notRun(errors: Diagnostic[], tests_errors: Diagnostic[] = []): SuiteRun {
  return { errors, tests_errors, passed: 0, failed: 0, results: [], coverage: NOTHING_COVERED };
}

/**
 * Decides each case with the policies of `content`, as a decision point does, and compares the decision with what the
 * test expects. `own` are the statements of the tested policy, whose coverage is measured.
 *
 * Pure: neither the clock, nor counters, nor holds outside the case matter.
 */
export function runCases(
  content: BundleContent,
  own: readonly CompiledStatement[],
  cases: readonly TestCase[],
): SuiteRun {
  const engine = new PolicyEngine(content);
  const measured = new Measured(content, own);
  try {
    const results = cases.map((one): TestResult => {
      const { name, row, request, state, expect, line, column } = one;
      const match = engine.match(request);
      const got = settle(match, stateOf(state, match));
      measured.count(request, got);
      const differences = differencesOf(expect, got);
      return {
        name,
        ...(row !== undefined && { row }),
        ok: differences.length === 0,
        expected: expect,
        got,
        differences,
        ...(match.detail !== undefined && { detail: match.detail }),
        line,
        column,
      };
    });
    const passed = results.filter(({ ok }) => ok).length;
    const failed = results.length - passed;
    return { errors: [], tests_errors: [], passed, failed, results, coverage: measured.coverage() };
  } finally {
    engine.dispose();
    measured.dispose();
  }
}

/**
 * The cases of another policy that pass with the policies of `before` and fail with those of `after`. Only those that a
 * statement of the changed policy can apply to are decided: nothing changes for the others.
 */
export function brokenCases(
  before: BundleContent,
  after: BundleContent,
  changed: string,
  suites: readonly { policyId: string; cases: readonly TestCase[] }[],
): BrokenTest[] {
  const engines = [before, after].map((content) => new PolicyEngine(content));
  const found: BrokenTest[] = [];
  try {
    for (const { policyId, cases } of suites) {
      for (const { name, row, request, state, expect, line, column } of cases) {
        const touched = engines.some((engine) =>
          engine.reached(request).some(({ policy_id }) => policy_id === changed),
        );
        if (!touched) continue;
        const [old = [], differences = []] = engines.map((engine) => {
          const match = engine.match(request);
          return differencesOf(expect, settle(match, stateOf(state, match)));
        });
        if (old.length > 0 || differences.length === 0) continue;
        found.push({ policy_id: policyId, name, ...(row !== undefined && { row }), differences, line, column });
      }
    }
    return found;
  } finally {
    for (const engine of engines) engine.dispose();
  }
}

export function stateOf({ exceeded, covered }: TestCase['state'], { hits }: Match): SettleState {
  return {
    exceeded: new Map(exceeded.map((id) => [id, { retry_after: 1 }])),
    covered: hits.filter(({ id }) => covered.includes(id)).map(ruleReference),
  };
}

export function differencesOf(expect: Expectation, got: Verdict): string[] {
  const found: string[] = [];
  const compare = (what: string, expected: unknown, actual: unknown) => {
    if (expected === undefined || JSON.stringify(expected) === JSON.stringify(actual)) return;
    found.push(`${what}: expected ${JSON.stringify(expected)}, got ${JSON.stringify(actual)}`);
  };
  const sorted = (list: readonly string[] | undefined) => list && [...new Set(list)].sort();
  compare('decision', expect.decision, got.decision);
  compare('rule', expect.rule, got.rule_id);
  compare('rules', sorted(expect.rules), sorted(got.rule_ids));
  compare('masks', sorted(expect.masks), sorted(got.masks ?? []));
  const { kind, approvals, ttl_seconds } = expect.hold ?? {};
  compare('hold kind', kind, got.escrow?.hold_type ?? null);
  compare('approvals', approvals, got.escrow?.required_approvals ?? null);
  compare('ttl_seconds', ttl_seconds, got.escrow?.ttl_seconds ?? null);
  if (expect.hold && !got.escrow) found.push('hold: expected one, got none');
  compare('reason', expect.reason, got.deny_reason ?? got.escrow?.reason ?? null);
  return found;
}
