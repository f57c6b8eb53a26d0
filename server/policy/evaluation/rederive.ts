import type { DecisionFacts } from '../../domain/decision.ts';
import { type ActionRequest, byRuleId } from '../../domain/policy.ts';
import { stopRule } from '../../domain/stops.ts';
import { doubtfulMatch, type Match, type PolicyEngine, settle, type Verdict } from './evaluate.ts';
import { ruleReference } from './hold-terms.ts';
import type { Projection } from './projection.ts';

/** A verdict as the record has it: without the reason texts of a denial, and without the terms of an opened hold. */
export type Rederived = Pick<Verdict, 'decision' | 'rule_id' | 'rule_ids'> & {
  masks?: string[];
  /** For an exceeded limit: the seconds until there was room again. */
  retry_after?: number;
};

/**
 * Repeats a recorded decision: by the policies of the bundle that the record names, on what was kept of the request
 * (whole, or its projection) and on the facts of the record. Pure.
 *
 * The bundle's content provides what is not in the request: action groups, labels of tools and agents, lists.
 */
export function rederive(
  engine: PolicyEngine,
  asked: { input: ActionRequest } | { projection: Projection },
  facts: DecisionFacts = {},
): Rederived {
  const rule = facts.stop === undefined ? undefined : stopRule({ id: facts.stop, ...ANY_STOP });
  if (facts.standstill !== undefined) {
    return { decision: 'deny', rule_id: rule?.id ?? null, rule_ids: rule ? [rule.id] : [] };
  }
  const found = matchOf(engine, asked, facts);
  const match =
    rule && found.outcome === 'permitted' ? { ...found, hits: [...found.hits, rule].sort(byRuleId) } : found;
  const covered = new Set(facts.covered);
  const verdict = settle(match, {
    exceeded: new Map((facts.exceeded ?? []).map(([rule, retry_after]) => [rule, { retry_after }])),
    covered: match.hits.filter(({ id }) => covered.has(id)).map(ruleReference),
  });
  const { rule_id, rule_ids, masks, retry_after } = verdict;
  if (facts.uncounted || (verdict.escrow && facts.unholdable)) return { decision: 'deny', rule_id, rule_ids };
  return {
    decision: verdict.decision,
    rule_id,
    rule_ids,
    ...(masks && { masks }),
    ...(retry_after !== undefined && { retry_after }),
  };
}

/** Apart from its id, nothing about a stop affects the decision. */
const ANY_STOP = { kind: 'tenant', target: '*', mode: 'freeze', reason: '' } as const;

function matchOf(
  engine: PolicyEngine,
  asked: { input: ActionRequest } | { projection: Projection },
  facts: DecisionFacts,
): Match {
  if (facts.doubt !== undefined) return doubtfulMatch(facts.doubt);
  if ('input' in asked) return engine.match(asked.input);
  // without reads the request could not be mapped for the engine, which denied it
  return asked.projection.reads ? engine.match(asked.projection) : { outcome: 'error', hits: [], limits: [] };
}
