import type { HoldType } from '../../domain/policy.ts';
import { conditional } from './conditional.ts';
import type { HoldKind } from './kind.ts';
import { multiParty } from './multi-party.ts';
import { single } from './single.ts';
import { timeDelayed } from './time-delayed.ts';

/** Every hold type. A new one is a file beside these, a line here, and a row in test/vectors/escrow. */
export const KINDS = {
  single,
  multi_party: multiParty,
  conditional,
  time_delayed: timeDelayed,
} as const satisfies Record<HoldType, HoldKind>;
