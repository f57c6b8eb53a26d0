import { type HoldKind, listed } from './kind.ts';

export const conditional: HoldKind = {
  description: 'other systems report that its conditions are satisfied',
  leastApprovals: 0,
  needsConditions: true,
  takesDelay: false,
  release: (terms) => ({ all: listed(terms) }),
};
