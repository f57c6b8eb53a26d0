import type { Requirement } from '../../../machines/escrow.ts';

/** What a hold of any type may list. */
export interface Terms {
  /** With every seat of the quorum in it. */
  approvals: number;
  conditions: readonly string[];
  /** Milliseconds since the epoch; only where the type takes a delay. */
  releaseAt: number | undefined;
}

/**
 * A hold type: what it must be given, and what releases it. Whatever the type, an approver's rejection ends the hold,
 * and everything that the hold lists must be there before it is released.
 */
export interface HoldKind {
  readonly description: string;
  /** The approvals that it needs at least, which are also those of a request that names none. */
  readonly leastApprovals: number;
  readonly needsConditions: boolean;
  readonly takesDelay: boolean;
  release(terms: Terms): Requirement;
}

/** What must be there whatever the type: the approvals, where there are any, and each condition. */
export function listed(terms: Terms): Requirement[] {
  const conditions = terms.conditions.map((condition) => ({ condition }));
  return terms.approvals > 0 ? [{ approvals: terms.approvals }, ...conditions] : conditions;
}
