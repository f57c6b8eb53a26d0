import type { Tally } from '../../machines/escrow.ts';
import type { Seats } from '../domain/annotations.ts';

/** Who may approve now, and who is in which group. */
export interface Electorate {
  has(userId: string): boolean;
  groups: ReadonlyMap<string, ReadonlySet<string>>;
}

/**
 * Counts the approvals of those who may vote now, each person once, and determines whether they can fill every seat of the
 * quorum, each person at most one. It is exact: a person in two groups is moved to the other group's seat if that helps
 * (augmenting paths), so the order of votes never keeps a quorum from being met. One approval for each seat reported as missing
 * fills them all. A person without a seat still counts toward the approvals that any approver may give.
 */
export function tally(approvedBy: readonly string[], quorum: readonly Seats[], electorate: Electorate): Tally {
  const people = [...new Set(approvedBy)].filter((userId) => electorate.has(userId));
  const seats = quorum.flatMap(({ group, count }) => Array<string>(count).fill(group));
  const takenBy = new Array<string | undefined>(seats.length).fill(undefined);

  const seat = (person: string, tried: Set<number>): boolean => {
    for (const [at, group] of seats.entries()) {
      if (tried.has(at) || !electorate.groups.get(group)?.has(person)) continue;
      tried.add(at);
      const other = takenBy[at];
      if (other !== undefined && !seat(other, tried)) continue;
      takenBy[at] = person;
      return true;
    }
    return false;
  };
  for (const person of people) seat(person, new Set());
  const open = quorum.flatMap(({ group }) => {
    const count = seats.filter((of, at) => of === group && takenBy[at] === undefined).length;
    return count > 0 ? [{ group, count }] : [];
  });
  return { approvals: people.length, seated: open.length === 0, ...(open.length > 0 && { missing: open }) };
}
