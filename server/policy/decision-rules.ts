import { z } from 'zod';
import type { Doer } from '../domain/audit.ts';
import type { ActionRequest, BundleStatement } from '../domain/policy.ts';
import { type ConditionCoverage, conditionsOf } from './authoring/coverage.ts';
import { parseMask } from './evaluation/masks.ts';
import type { KeptInputs } from './kept-inputs.ts';
import { isGuardrail } from './language/annotations.ts';
import { literal, type Token, tokens } from './language/scan.ts';
import type { PolicyTexts } from './texts.ts';

const OUTCOMES = ['true', 'false', 'failed', 'not_asked', 'masked'] as const;

/** What one request found in a rule. */
export const TracedOut = {
  rule_id: z.string(),
  policy_id: z.string(),
  effect: z.enum(['permit', 'forbid', 'guardrail']),
  decided: z.boolean().describe('the rule that decided'),
  cedar: z.string().describe('its text'),
};
export const ConditionOut = z.object({
  text: z.string(),
  line: z.int().describe('in `cedar`'),
  column: z.int(),
  outcome: z
    .enum(OUTCOMES)
    .describe(
      '`failed`: the engine failed on it; `not_asked`: what stands before it decided; `masked`: the rule reads a masked value',
    ),
});

export const DecisionRulesOut = z
  .object({
    event_id: z.string(),
    known: z.boolean().describe('the policies of the decision are stored; otherwise there are no rules here'),
    rules: z.array(
      z.object({
        ...TracedOut,
        version: z.int(),
        matched: z.boolean().describe('the record names it among those that matched'),
        reason: z.string().nullable(),
        conditions: z
          .array(ConditionOut)
          .nullable()
          .describe('null unless they were asked for, and the request is kept'),
      }),
    ),
    more: z.int().describe('rules whose scope fits the request, and that are not listed'),
    asked: z.enum(['input', 'projection']).nullable().describe('what the conditions were evaluated on again'),
  })
  .meta({ id: 'DecisionRules' });
type DecisionRulesOut = z.output<typeof DecisionRulesOut>;

/** The rules of past decisions, as they were at the time. */
export class DecisionRules {
  readonly #kept: KeptInputs;
  readonly #texts: PolicyTexts;

  constructor(kept: KeptInputs, texts: PolicyTexts) {
    this.#kept = kept;
    this.#texts = texts;
  }

  /**
   * The rules that the record of a decision names. Throws NOT_FOUND, also for a decision of another tenant.
   *
   * With `by`, for a person who may see requests: also the rules whose scope fits but that did not match, and what each
   * condition evaluated to on what is kept of the request. That reveals something about the values, so it is audited like
   * reading them, before this resolves, and the outcomes for a rule that may read a value under a `@mask` path are
   * withheld.
   */
  async of(tenantId: string, eventId: string, by?: Doer): Promise<DecisionRulesOut> {
    const { record, input, projection } = await this.#kept.of(tenantId, eventId);
    const { decided, masks } = await this.#kept.policiesOf(tenantId, record);
    const named = [...new Set([...(record.rule_id ? [record.rule_id] : []), ...(record.hits ?? [])])];
    const request = by && (input ?? (projection?.reads ? projection : null));
    if (by) await this.#kept.given(tenantId, eventId, { masked: true, detail: 'what conditions were, with masks' }, by);
    const explained =
      decided && request
        ? await this.#texts.explain(tenantId, { content: decided, request: request as ActionRequest, named })
        : undefined;
    const hides = hiding(masks);
    const statements = new Map(decided?.policies.map((statement) => [statement.id, statement]));
    const found = new Map(explained?.rules.map((rule) => [rule.rule_id, rule]));
    const ids = [...new Set([...named, ...found.keys()])];
    return {
      event_id: eventId,
      known: decided !== null,
      rules: ids.flatMap((id) => {
        const statement = statements.get(id);
        if (!statement) return [];
        const conditions = found.get(id)?.conditions;
        // also if a condition that was not measured does: given the others, whether the rule matched would reveal what it was
        const hidden =
          conditions !== undefined &&
          conditionsOf({ cedar: statement.cedar, line: 1, column: 1 }).conditions.some(({ text }) => hides(text));
        return [
          {
            ...ruleOut(statement),
            decided: id === record.rule_id,
            matched: named.includes(id),
            conditions:
              conditions?.map((one) => (hidden ? { ...metIn(one), outcome: 'masked' as const } : metIn(one))) ?? null,
          },
        ];
      }),
      more: explained?.more ?? 0,
      asked: explained ? (input ? 'input' : 'projection') : null,
    };
  }
}

// for a single request no condition is both
const OUTCOME = { true: 'true', false: 'false', both: 'not_asked', never: 'not_asked' } as const;

export const metIn = ({ text, line, column, seen, failed }: ConditionCoverage): z.output<typeof ConditionOut> => ({
  ...{ text, line, column },
  outcome: failed ? 'failed' : OUTCOME[seen],
});

function ruleOut({ id, policy_id, version, effect, annotations, cedar }: BundleStatement) {
  return {
    ...{ rule_id: id, policy_id, version, cedar },
    effect: isGuardrail(effect, annotations) ? ('guardrail' as const) : effect,
    reason: annotations.reason ?? null,
  };
}

/**
 * Whether a condition may read a value under one of the masks. In doubt, yes: if it contains the name of a member on a
 * mask's path, however spelled; if it computes the name that it reads; or if a mask names no member.
 */
export function hiding(masks: readonly string[]): (condition: string) => boolean {
  const plain = (text: string) => text.toLowerCase().replace(/[^\p{L}\p{N}]/gu, '');
  const names = masks.map((mask) => {
    // a mask must be one that the policy language accepts
    parseMask(mask);
    return (
      mask
        .match(/[^\s.$[\]*'"]+/g)
        ?.map(plain)
        .filter((name) => name !== '' && !/^\d+$/.test(name)) ?? []
    );
  });
  if (names.length === 0) return () => false;
  const every = names.some((of) => of.length === 0);
  return (condition) => {
    const words = tokens(condition);
    if (every || words.some(({ text }, n) => /^(get|has)Tag$/.test(text) && !isNamed(words.slice(n + 1)))) return true;
    // a text may write its characters as escapes; one that cannot be read may be any name
    const read = words.map(({ text }) => (text.startsWith('"') ? literal(text) : text));
    const text = plain(read.join(''));
    return read.includes(undefined) || names.some((of) => of.some((name) => text.includes(name)));
  };
}

/** Whether the name that is read is a literal, not computed. */
const isNamed = ([open, name, close]: readonly Token[]) =>
  open?.text === '(' && name?.text.startsWith('"') === true && close?.text === ')';
