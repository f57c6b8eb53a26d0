import type { ActionRequest, BundleContent, BundleStatement } from '../../domain/policy.ts';
import { type Match, PolicyEngine, type Verdict } from '../evaluation/evaluate.ts';
import type { CompiledStatement } from '../language/compile.ts';
import { Positions, preamble, type Token, tokens } from '../language/scan.ts';

/**
 * How far the tests exercise a statement: `decisive`, a test was decided by it; `hit`, it applied in a test; `reached`,
 * its scope fitted but its conditions were never true; `never`, not even its scope fitted.
 */
export const REACHES = ['decisive', 'hit', 'reached', 'never'] as const;
export type Reach = (typeof REACHES)[number];

/** What a condition evaluated to in the tests that reached it. */
export const SEEN = ['both', 'true', 'false', 'never'] as const;
export type Seen = (typeof SEEN)[number];

export interface ConditionCoverage {
  /** As written. */
  text: string;
  line: number;
  column: number;
  seen: Seen;
  /** The engine failed on it. Only for a traced request. */
  failed?: true;
}

export interface Coverage {
  /** The share of the policy's statements that are decisive or hit, rounded down. */
  percent: number;
  /**
   * The share of condition outcomes, two per condition, that occurred in some test, rounded down; 100 if there are no
   * conditions.
   */
  condition_percent: number;
  statements: { rule_id: string; line: number; reach: Reach; conditions: ConditionCoverage[] }[];
  /** Conditions beyond the limit of what is measured. */
  conditions_left_out: number;
}

export const NOTHING_COVERED: Coverage = {
  percent: 0,
  condition_percent: 0,
  statements: [],
  conditions_left_out: 0,
};

/** A part of a `when` or `unless` clause without `&&` and `||` of its own. */
export interface Condition {
  text: string;
  line: number;
  column: number;
  /** What must be true for the engine to reach it: the clauses and conditions before it. */
  guards: readonly string[];
}

/**
 * The conditions of a statement, in source order. `head`: its scope as a permit.
 *
 * Splits along the tokens, as the parser does: `||` binds less than `&&`, and an `if` extends to its end.
 */
export function conditionsOf({ cedar, line, column }: Pick<CompiledStatement, 'cedar' | 'line' | 'column'>): {
  head: string;
  conditions: Condition[];
} {
  const words = tokens(cedar);
  const positions = new Positions(cedar);
  const conditions: Condition[] = [];
  const written = (part: readonly Token[]) => cedar.slice(part[0]?.start, part.at(-1)?.end);
  const visit = (part: readonly Token[], guards: readonly string[]): void => {
    const inner = unwrapped(part);
    for (const operator of inner[0]?.text === 'if' ? [] : (['||', '&&'] as const)) {
      const operands = split(inner, operator);
      if (operands.length === 1) continue;
      const passed = [...guards];
      for (const operand of operands) {
        visit(operand, passed);
        passed.push(operator === '&&' ? `(${written(operand)})` : `!(${written(operand)})`);
      }
      return;
    }
    const at = positions.at(inner[0]?.start ?? 0);
    conditions.push({
      text: written(inner),
      line: line + at.line - 1,
      column: at.line === 1 ? column + at.column - 1 : at.column,
      guards: [...guards],
    });
  };

  const scope = preamble(words).rest;
  let end = closing(words, scope);
  const head = `permit${cedar.slice(words[scope]?.start, words[end]?.end)}`;
  const guards: string[] = [];
  for (let n = end + 1; words[n]?.text === 'when' || words[n]?.text === 'unless'; n = end + 1) {
    end = closing(words, n + 1);
    const body = words.slice(n + 2, end);
    visit(body, guards);
    guards.push(words[n]?.text === 'when' ? `(${written(body)})` : `!(${written(body)})`);
  }
  return { head, conditions };
}

/** The three parts of a statement's scope, as written. */
export function scopeOf(statement: Pick<CompiledStatement, 'cedar' | 'line' | 'column'>): string[] {
  const { head } = conditionsOf(statement);
  return split(tokens(head).slice(2, -1), ',').map((part) => head.slice(part[0]?.start, part.at(-1)?.end));
}

/** The index of the bracket that closes the one at `from`. */
function closing(words: readonly Token[], from: number): number {
  let depth = 0;
  for (let n = from; n < words.length; n++) {
    const { text } = words[n] as Token;
    if (text === '(' || text === '[' || text === '{') depth++;
    if ((text === ')' || text === ']' || text === '}') && --depth === 0) return n;
  }
  return words.length - 1;
}

/** Without parentheses around the whole. */
function unwrapped(part: readonly Token[]): readonly Token[] {
  let inner = part;
  while (inner[0]?.text === '(' && closing(inner, 0) === inner.length - 1) inner = inner.slice(1, -1);
  return inner;
}

/** The operands of an operator that is outside all brackets. */
function split(part: readonly Token[], operator: string): Token[][] {
  const operands: Token[][] = [[]];
  let depth = 0;
  for (const token of part) {
    if (token.text === '(' || token.text === '[' || token.text === '{') depth++;
    if (token.text === ')' || token.text === ']' || token.text === '}') depth--;
    if (depth === 0 && token.text === operator) operands.push([]);
    else operands.at(-1)?.push(token);
  }
  return operands;
}

/** Maximum number of characters of the statements used to measure conditions. Each condition repeats everything before it. */
const MAX_MEASURED = 256 * 1024;

type Written = Pick<CompiledStatement, 'id' | 'cedar' | 'line' | 'column'>;

interface Measure {
  condition: Omit<Condition, 'guards'>;
  true: boolean;
  false: boolean;
  failed?: true;
}

/**
 * Measures which statements of a policy apply to the tests, and what their conditions evaluate to.
 *
 * The engine determines this: it evaluates each statement as a separate permit, since it does not report permits
 * alongside a forbid, and each condition twice, as a permit for when it is true and as one for when it is not. Both
 * include everything before the condition, so that a condition counts only if the engine reaches it.
 */
export class Measured {
  readonly #engine: PolicyEngine;
  readonly #content: BundleContent;
  readonly #own: readonly Written[];
  readonly #reach = new Map<string, Reach>();
  readonly #measures = new Map<string, Measure[]>();
  /** Keyed by the id of the statement given to the engine. */
  readonly #outcomes = new Map<string, { measure: Measure; is: 'true' | 'false' }>();
  #leftOut = 0;

  constructor(content: BundleContent, own: readonly Written[]) {
    this.#own = own;
    const written = new Map(own.map((statement) => [statement.id, statement]));
    let measured = 0;
    const policies = content.policies.flatMap((statement): BundleStatement[] => {
      const source = written.get(statement.id);
      if (!source) return [];
      const read = tokens(statement.cedar);
      const effect = read[preamble(read).rest - 1]!;
      const permit = (id: string, cedar: string): BundleStatement => ({
        ...statement,
        ...{ id, effect: 'permit', annotations: {}, cedar },
      });
      const whole = `${statement.cedar.slice(0, effect.start)}permit${statement.cedar.slice(effect.end)}`;
      const { head, conditions } = conditionsOf(source);
      const measures: Measure[] = [];
      const asked: BundleStatement[] = [];
      for (const { guards, ...condition } of conditions) {
        const before = guards.map((guard) => `${guard} && `).join('');
        measured += 2 * (head.length + before.length + condition.text.length);
        if (measured > MAX_MEASURED) {
          this.#leftOut++;
          continue;
        }
        const measure: Measure = { condition, true: false, false: false };
        measures.push(measure);
        for (const is of ['true', 'false'] as const) {
          // no @id has a space
          const id = `${statement.id} ${measures.length} ${is}`;
          this.#outcomes.set(id, { measure, is });
          asked.push(permit(id, `${head} when { ${before}${is === 'true' ? '' : '!'}(${condition.text}) };`));
        }
      }
      this.#measures.set(statement.id, measures);
      return [permit(statement.id, whole), ...asked];
    });
    this.#content = { ...content, policies };
    this.#engine = new PolicyEngine(this.#content);
  }

  count(request: ActionRequest, { rule_id }: Pick<Verdict, 'rule_id'>): void {
    for (const { id } of this.#engine.reached(request)) this.#raise(id, 'reached');
    this.#note(this.#engine.match(request));
    if (rule_id !== null) this.#raise(rule_id, 'decisive');
  }

  /** Measures one request. If the engine failed on some statements, the others count as if those did not exist. */
  trace(request: ActionRequest): void {
    const match = this.#engine.match(request);
    if (match.outcome !== 'error') {
      this.#note(match);
      return;
    }
    const failed = new Set(match.hits.map(({ id }) => id));
    for (const { id } of this.#own) {
      // the conditions after it fail with it
      const at = this.#measures.get(id)?.findIndex((_, n) => failed.has(`${id} ${n + 1} true`)) ?? -1;
      if (at >= 0) this.#measures.get(id)![at]!.failed = true;
    }
    const policies = this.#content.policies.filter(({ id }) => !failed.has(id));
    const rest = new PolicyEngine({ ...this.#content, policies });
    try {
      this.#note(rest.match(request));
    } finally {
      rest.dispose();
    }
  }

  #note(match: Match): void {
    if (match.outcome !== 'permitted') return;
    for (const { id } of match.hits) {
      const outcome = this.#outcomes.get(id);
      if (outcome) outcome.measure[outcome.is] = true;
      else this.#raise(id, 'hit');
    }
  }

  coverage(): Coverage {
    const statements = this.#own.map(({ id, line }) => ({
      rule_id: id,
      line,
      reach: this.#reach.get(id) ?? 'never',
      conditions: (this.#measures.get(id) ?? []).map(({ condition, failed, ...seen }) => ({
        ...condition,
        seen: seenOf(seen),
        ...(failed && { failed }),
      })),
    }));
    const covered = statements.filter(({ reach }) => reach === 'hit' || reach === 'decisive').length;
    const measures = [...this.#measures.values()].flat();
    const outcomes = measures.reduce((sum, one) => sum + Number(one.true) + Number(one.false), 0);
    const all = 2 * (measures.length + this.#leftOut);
    return {
      percent: Math.floor((100 * covered) / Math.max(1, statements.length)),
      condition_percent: all === 0 ? 100 : Math.floor((100 * outcomes) / all),
      statements,
      conditions_left_out: this.#leftOut,
    };
  }

  dispose(): void {
    this.#engine.dispose();
  }

  #raise(id: string, reach: Reach): void {
    const before = this.#reach.get(id) ?? 'never';
    if (REACHES.indexOf(reach) < REACHES.indexOf(before)) this.#reach.set(id, reach);
  }
}

function seenOf(seen: { true: boolean; false: boolean }): Seen {
  if (seen.true) return seen.false ? 'both' : 'true';
  return seen.false ? 'false' : 'never';
}
