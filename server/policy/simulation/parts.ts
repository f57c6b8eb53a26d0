import { type Outcome, UNKNOWN_REASONS, type UnknownReason } from './outcome.ts';
import { Tally, type TallyPart } from './tally.ts';

/** What a simulator found of its share of the decisions, as plain data. */
export interface Part {
  statements: Outcome['statements'];
  /** The rules whose limits were counted. */
  limits: string[];
  pruned: number;
  questions: number;
  unknown: ReadonlyMap<UnknownReason, number>;
  drift: Outcome['drift'];
  tally: TallyPart;
}

export const MOST_DRIFTS = 20;

/** The outcome of simulators of the same two sets, each of which had a share of the decisions. */
export function outcomeOf(parts: readonly [Part, ...Part[]]): Outcome {
  const { statements, limits } = parts[0];
  const tally = Tally.of(parts.map((part) => part.tally));
  const sum = (of: (part: Part) => number) => parts.reduce((total, part) => total + of(part), 0);
  const reasons = UNKNOWN_REASONS.flatMap((reason) => {
    const count = sum((part) => part.unknown.get(reason) ?? 0);
    return count > 0 ? [[reason, count] as const] : [];
  });
  const unknown = reasons.reduce((total, [, count]) => total + count, 0);
  const { groups, more_groups, money } = tally.groups();
  return {
    statements,
    pruned: sum(({ pruned }) => pruned),
    questions: sum(({ questions }) => questions),
    unknown,
    unknown_by_reason: Object.fromEntries(reasons),
    matrix: tally.matrix,
    changed: tally.changed,
    money,
    groups,
    more_groups,
    drift: {
      total: sum(({ drift }) => drift.total),
      unexplained: sum(({ drift }) => drift.unexplained),
      examples: parts.flatMap(({ drift }) => drift.examples).slice(0, MOST_DRIFTS),
    },
    simulated_limits: limits,
    nothing_newly_allowed: unknown === 0 && !groups.some(({ direction }) => direction === 'newly_allowed'),
  };
}
