import { metAt } from '../../machines/requirement.ts';
import type { Seats } from '../domain/annotations.ts';
import type { HoldKind } from '../domain/hold-kinds.ts';
import { RELEASES } from './kinds.ts';
import { tally } from './quorum.ts';

/** The part of a hold, as the API shows it, that determines what a vote does. */
interface VotedHold {
  hold_type: HoldKind;
  required_approvals: number;
  current_approvals: number;
  missing_seats: readonly Seats[];
  quorum?: readonly Seats[] | undefined;
  conditions: readonly { condition_id: string; satisfied: boolean }[];
  votes?: readonly { user_id: string; decision: 'approve' | 'reject' }[] | undefined;
  release_at?: string | undefined;
}

export type VoteEffect =
  /** One rejection ends a hold, whatever its kind. */
  | { outcome: 'ends' }
  /** The agent may execute the action from then on. */
  | { outcome: 'releases' }
  | {
      outcome: 'waits';
      /** The approval brings the release closer; otherwise it changes nothing. */
      counts: boolean;
      /** What is missing after the vote. */
      approvals: number;
      seats: readonly Seats[];
      conditions: string[];
      /** When time releases it, once the conditions are satisfied. */
      releasesAt?: string;
    };

/**
 * What a person's vote would do to a held hold, to show them before they cast it. It follows the machine's own requirement and
 * the quorum count. If an earlier approval no longer counts (the API does not say which), it assumes that the new one takes a
 * missing seat of any group that the person is in, and no other.
 */
export function voteEffect(
  hold: VotedHold,
  decision: 'approve' | 'reject',
  voter: string,
  groups: Readonly<Record<string, readonly string[]>>,
): VoteEffect {
  if (decision === 'reject') return { outcome: 'ends' };
  const seats = seatsAfter(hold, voter, groups);
  const seated = (some: readonly Seats[]) => some.reduce((sum, { count }) => sum + count, 0);
  return effectOf(hold, {
    conditions: conditionsOf(hold),
    approvals: hold.current_approvals + 1,
    seats,
    counts:
      hold.required_approvals > 0 &&
      (hold.current_approvals < hold.required_approvals || seated(seats) < seated(hold.missing_seats)),
  });
}

/** What a report that a condition is met would do to a held hold. */
export function reportEffect(hold: VotedHold, condition: string): VoteEffect {
  return effectOf(hold, {
    conditions: conditionsOf(hold).map((one) => (one.id === condition ? { ...one, satisfied: true } : one)),
    approvals: hold.current_approvals,
    seats: hold.missing_seats,
    counts: hold.conditions.some(({ condition_id, satisfied }) => condition_id === condition && !satisfied),
  });
}

const conditionsOf = ({ conditions }: VotedHold) =>
  conditions.map(({ condition_id, satisfied }) => ({ id: condition_id, satisfied }));

/** The state of a hold with these conditions, approvals and missing seats. */
function effectOf(
  hold: VotedHold,
  {
    conditions,
    approvals,
    seats,
    counts,
  }: {
    conditions: readonly { id: string; satisfied: boolean }[];
    approvals: number;
    seats: readonly Seats[];
    counts: boolean;
  },
): VoteEffect {
  const releaseAt = hold.release_at === undefined ? undefined : Date.parse(hold.release_at);
  const terms = { approvals: hold.required_approvals, conditions: conditions.map(({ id }) => id), releaseAt };
  const after = metAt(RELEASES[hold.hold_type](terms), {
    conditions,
    tally: { approvals, seated: seats.length === 0 },
  });
  if (after === -Infinity) return { outcome: 'releases' };
  const missing = Math.max(0, hold.required_approvals - approvals);
  return {
    outcome: 'waits',
    counts,
    approvals: missing,
    seats,
    conditions: conditions.filter(({ satisfied }) => !satisfied).map(({ id }) => id),
    ...(hold.release_at !== undefined && { releasesAt: hold.release_at }),
  };
}

/** The seats of the quorum still missing after one more approval. */
function seatsAfter(hold: VotedHold, voter: string, groups: Readonly<Record<string, readonly string[]>>) {
  const people = (hold.votes ?? []).filter(({ decision }) => decision === 'approve').map(({ user_id }) => user_id);
  if (people.length === hold.current_approvals) {
    const members = new Map(Object.entries(groups).map(([group, ids]) => [group, new Set(ids)]));
    return tally([...people, voter], hold.quorum ?? [], { has: () => true, groups: members }).missing ?? [];
  }
  const taken = hold.missing_seats.find(({ group }) => groups[group]?.includes(voter));
  return hold.missing_seats.flatMap((seat) => {
    const count = seat === taken ? seat.count - 1 : seat.count;
    return count > 0 ? [{ ...seat, count }] : [];
  });
}
