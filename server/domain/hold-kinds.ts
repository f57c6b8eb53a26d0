/** Everything about a hold kind except how it is released, which is in `server/escrow/kinds.ts`. */
interface HoldKindRow {
  /** Its name in the dashboard and in messages. */
  label: string;
  /** What ends the wait, for the API document. */
  description: string;
  /** What an agent reads after "Held". */
  heldFor: string;
  /**
   * How a policy summary describes the hold that a rule asks for. `{approvals}`, `{conditions}` and `{delay}` stand for what the
   * rule names.
   */
  summary: string;
  /** What the summary adds if a rule names approvals that the kind does not need. */
  summaryWithApprovals: string;
  /** Rules that hold the same action share one hold, of the strictest kind. No two kinds are equally strict. */
  strictness: number;
  /** The minimum number of approvals, which is also the number for a request that names none. */
  leastApprovals: number;
  /** Its name promises one approver, so a rule that asks for more should use another kind. */
  oneApprover: boolean;
  /** It needs at least one condition. Only for such a kind does a rule name conditions. */
  needsConditions: boolean;
  /** Time releases it: it needs a delay, and approvals can only release it earlier. Only such a kind takes a delay. */
  takesDelay: boolean;
}

/**
 * Every hold kind, once: the policy language, evaluation, the API, the database, the messages and the dashboard read these rows.
 * To add a kind, add a row here, its release in `server/escrow/kinds.ts`, and a model and a life in
 * `test/vectors/escrow/kinds.ts`.
 */
export const HOLD_KINDS = {
  single: {
    label: 'One approval',
    description: 'one approver decides',
    heldFor: 'for approval',
    summary: 'held for {approvals}',
    summaryWithApprovals: '',
    strictness: 2,
    leastApprovals: 1,
    oneApprover: true,
    needsConditions: false,
    takesDelay: false,
  },
  multi_party: {
    label: 'Several approvals',
    description: 'several approvers decide, from each group that a quorum names',
    heldFor: 'for approval',
    summary: 'held for {approvals} by different people',
    summaryWithApprovals: '',
    strictness: 3,
    leastApprovals: 2,
    oneApprover: false,
    needsConditions: false,
    takesDelay: false,
  },
  conditional: {
    label: 'Released by conditions',
    description: 'other systems, or approvers, report that its conditions are met',
    heldFor: 'until its conditions are met',
    summary: 'held until {conditions} reported as met',
    summaryWithApprovals: ', and for {approvals}',
    strictness: 1,
    leastApprovals: 0,
    oneApprover: false,
    needsConditions: true,
    takesDelay: false,
  },
  time_delayed: {
    label: 'Released by time unless rejected',
    description: 'released at its time unless an approver rejects it before',
    heldFor: 'until its time is over',
    summary: 'held for {delay}, then released unless it is rejected',
    summaryWithApprovals: ', or released earlier by {approvals}',
    strictness: 0,
    leastApprovals: 0,
    oneApprover: false,
    needsConditions: false,
    takesDelay: true,
  },
} as const satisfies Record<string, HoldKindRow>;

export type HoldKind = keyof typeof HOLD_KINDS;

/** In the order of the rows. */
export const HOLD_KIND_NAMES = Object.keys(HOLD_KINDS) as [HoldKind, ...HoldKind[]];

export function holdKind(name: HoldKind): HoldKindRow {
  return HOLD_KINDS[name];
}

/** The row for a name from elsewhere; another version of the program may know other kinds. */
export function knownHoldKind(name: unknown): HoldKindRow | undefined {
  return HOLD_KIND_NAMES.includes(name as HoldKind) ? HOLD_KINDS[name as HoldKind] : undefined;
}

/** The kinds for which this is true, in the order of the rows. */
export function holdKindsWith(is: (row: HoldKindRow) => boolean): HoldKind[] {
  return HOLD_KIND_NAMES.filter((name) => is(HOLD_KINDS[name]));
}
