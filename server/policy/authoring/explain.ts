import type { ActionRequest, BundleContent } from '../../domain/policy.ts';
import { PolicyEngine } from '../evaluation/evaluate.ts';
import { type ConditionCoverage, Measured } from './coverage.ts';

/** The statements of a decision that are explained; those that it names come first. */
const MOST_EXPLAINED = 20;

export interface ExplainJob {
  /** The policies of the decision. */
  content: BundleContent;
  /** What is kept of its request. */
  request: ActionRequest;
  /** The ids of the rules that its record names. */
  named: readonly string[];
}

/** What a request met in the policies. */
export interface Explained {
  rules: {
    rule_id: string;
    conditions: ConditionCoverage[];
  }[];
  /** How many more rules have a scope that fits. */
  more: number;
}

/** The rules that the request came to, with what each of their conditions was found to be: as for the coverage of a test. */
export function explain({ content, request, named }: ExplainJob): Explained {
  const engine = new PolicyEngine(content);
  let fitting: ReturnType<PolicyEngine['reached']>;
  try {
    fitting = engine.reached(request);
  } finally {
    engine.dispose();
  }
  const rank = ({ id, effect }: (typeof fitting)[number]) => (named.includes(id) ? 0 : effect === 'permit' ? 1 : 2);
  const explained = [...fitting].sort((a, b) => rank(a) - rank(b)).slice(0, MOST_EXPLAINED);
  const own = explained.map(({ id, cedar }) => ({ id, cedar, line: 1, column: 1 }));
  const measured = new Measured(content, own);
  try {
    measured.count(request, { rule_id: null });
    const { statements } = measured.coverage();
    return {
      rules: statements.map(({ rule_id, conditions }) => ({ rule_id, conditions })),
      more: fitting.length - explained.length,
    };
  } finally {
    measured.dispose();
  }
}
