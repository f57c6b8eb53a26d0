/** What releases a hold. Kinds are composed of these; the machine does not know the kinds. */
export type Requirement =
  | { all: Requirement[] }
  | { any: Requirement[] }
  /** This many valid approvals, with every seat of the quorum filled. */
  | { approvals: number }
  | { condition: string }
  /** Milliseconds since the epoch. */
  | { after: number };

/** The valid approvals: by people who may vote now, each counted once even if they are in several groups. */
export interface Tally {
  approvals: number;
  /** Every seat of the quorum is filled; true without a quorum. */
  seated: boolean;
  /** The open seats by group; absent when there are none. */
  missing?: { group: string; count: number }[];
  /** The conditions reported as met by people who may no longer report on the hold; absent if there are none. */
  lapsed?: string[];
}

/** What has been reported on a hold so far. */
interface Reported {
  conditions: readonly { id: string; satisfied: boolean }[];
  tally: Tally;
}

/** When the requirement is met without further events: -Infinity if already met, Infinity if never. */
export function metAt(requirement: Requirement, context: Reported): number {
  if ('all' in requirement) return Math.max(-Infinity, ...requirement.all.map((part) => metAt(part, context)));
  if ('any' in requirement) return Math.min(Infinity, ...requirement.any.map((part) => metAt(part, context)));
  if ('after' in requirement) return requirement.after;
  const met =
    'condition' in requirement
      ? context.conditions.some(({ id, satisfied }) => id === requirement.condition && satisfied) &&
        !context.tally.lapsed?.includes(requirement.condition)
      : context.tally.seated && context.tally.approvals >= requirement.approvals;
  return met ? -Infinity : Infinity;
}
