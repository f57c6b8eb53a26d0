import { type HoldKind, listed } from './kind.ts';

/**
 * Released by time unless an approver rejects it before. Approvals do nothing, unless the hold names a number of them:
 * then they release it before its time. Conditions must be satisfied in either case.
 */
export const timeDelayed: HoldKind = {
  description: 'released at its time unless an approver rejects it before',
  leastApprovals: 0,
  needsConditions: false,
  takesDelay: true,
  release: (terms) => {
    const { approvals, releaseAt } = terms;
    if (releaseAt === undefined) throw new RangeError('a time-delayed hold needs its time');
    const byTime = { after: releaseAt };
    const conditions = listed({ ...terms, approvals: 0 });
    return { all: [approvals > 0 ? { any: [byTime, { approvals }] } : byTime, ...conditions] };
  },
};
