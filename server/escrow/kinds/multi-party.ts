import { type HoldKind, listed } from './kind.ts';

export const multiParty: HoldKind = {
  description: 'several approvers decide, from several groups where a quorum names them',
  leastApprovals: 2,
  needsConditions: false,
  takesDelay: false,
  release: (terms) => ({ all: listed(terms) }),
};
