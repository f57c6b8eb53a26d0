import type { ActionRequest, BundleContent } from '../../domain/policy.ts';
import { PolicyEngine } from '../evaluation/evaluate.ts';
import type { CompiledStatement } from '../language/compile.ts';
import { type ConditionCoverage, Measured, scopeOf } from './coverage.ts';

/** How many statements of a decision are explained; the ones that the record names come first. */
const MOST_EXPLAINED = 20;
/** How many statements of a text have their scopes compared with a request. */
const MOST_SCOPES = 50;

export interface ExplainJob {
  /** The policies of the decision. */
  content: BundleContent;
  /** What is kept of its request. */
  request: ActionRequest;
  /** The ids of the rules that its record names. */
  named: readonly string[];
}

/** What a request found in the policies. */
export interface Explained {
  rules: {
    rule_id: string;
    conditions: ConditionCoverage[];
  }[];
  /** How many more rules have a scope that fits. */
  more: number;
}

/** The rules that the request reached, with what each of their conditions evaluated to, as in the coverage of a test. */
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
    measured.trace(request);
    const { statements } = measured.coverage();
    return {
      rules: statements.map(({ rule_id, conditions }) => ({ rule_id, conditions })),
      more: fitting.length - explained.length,
    };
  } finally {
    measured.dispose();
  }
}

export const SCOPE_PARTS = ['principal', 'action', 'resource'] as const;
export type ScopePart = (typeof SCOPE_PARTS)[number];

/** The statements of a text whose scope does not fit a request, each with the parts of the scope that do not. */
export function unfitting(
  content: BundleContent,
  own: readonly Pick<CompiledStatement, 'id' | 'cedar' | 'line' | 'column'>[],
  request: ActionRequest,
): { rule_id: string; line: number; parts: ScopePart[] }[] {
  const statements = new Map(content.policies.map((statement) => [statement.id, statement]));
  const permit = (id: string, like: string, scope: readonly string[]) => ({
    ...statements.get(like)!,
    ...{ id, effect: 'permit' as const, annotations: {}, cedar: `permit(${scope.join(', ')});` },
  });
  const policies = own.slice(0, MOST_SCOPES).flatMap((one) => {
    const scope = scopeOf(one);
    return [
      permit(`${one.id} any`, one.id, SCOPE_PARTS),
      ...SCOPE_PARTS.map((part, n) =>
        permit(
          `${one.id} ${part}`,
          one.id,
          SCOPE_PARTS.map((any, m) => (n === m ? scope[n]! : any)),
        ),
      ),
    ];
  });
  const engine = new PolicyEngine({ ...content, policies });
  try {
    const fits = new Set(engine.reached(request).map(({ id }) => id));
    return own.flatMap(({ id, line }) => {
      // if nothing fits a request, it could not be read
      if (!fits.has(`${id} any`)) return [];
      const parts = SCOPE_PARTS.filter((part) => !fits.has(`${id} ${part}`));
      return parts.length > 0 ? [{ rule_id: id, line, parts }] : [];
    });
  } finally {
    engine.dispose();
  }
}
