import type { Requirement } from '../../machines/escrow.ts';
import type { HoldKind } from '../domain/hold-kinds.ts';

/** What a hold of any kind may require. */
export interface Terms {
  /** Includes every seat of the quorum. */
  approvals: number;
  conditions: readonly string[];
  /** Milliseconds since the epoch; only for kinds that take a delay. */
  releaseAt: number | undefined;
}

/**
 * What releases a hold of each kind. Whatever the kind, one approver's rejection ends the hold, and everything that the hold
 * lists must be satisfied before it is released.
 */
export const RELEASES = {
  single: everythingListed,
  multi_party: everythingListed,
  conditional: everythingListed,

  /**
   * Released by time unless an approver rejects it first. Approvals have no effect unless the hold names a number of them; then
   * they release it early. Conditions must be satisfied in either case.
   */
  time_delayed: (terms) => {
    const { approvals, releaseAt } = terms;
    if (releaseAt === undefined) throw new RangeError('a time-delayed hold needs its time');
    const byTime = { after: releaseAt };
    const conditions = listed({ ...terms, approvals: 0 });
    return { all: [approvals > 0 ? { any: [byTime, { approvals }] } : byTime, ...conditions] };
  },
} as const satisfies Record<HoldKind, (terms: Terms) => Requirement>;

function everythingListed(terms: Terms): Requirement {
  return { all: listed(terms) };
}

/** The approvals, if any, and each condition. */
function listed(terms: Terms): Requirement[] {
  const conditions = terms.conditions.map((condition) => ({ condition }));
  return terms.approvals > 0 ? [{ approvals: terms.approvals }, ...conditions] : conditions;
}
