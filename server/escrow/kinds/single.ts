import { type HoldKind, listed } from './kind.ts';

export const single: HoldKind = {
  description: 'one approver decides',
  leastApprovals: 1,
  needsConditions: false,
  takesDelay: false,
  release: (terms) => ({ all: listed(terms) }),
};
