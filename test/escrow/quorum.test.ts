import fc from 'fast-check';
import { expect, test } from 'vitest';
import { tally } from '../../server/escrow/quorum.ts';

const PEOPLE = ['a', 'b', 'c', 'd', 'e'];
const NAMES = ['x', 'y', 'z'];

/** Tries every way to seat people. */
function seatable(seats: string[], people: string[], groups: ReadonlyMap<string, ReadonlySet<string>>): boolean {
  const [seat, ...rest] = seats;
  if (seat === undefined) return true;
  return people.some(
    (one) =>
      groups.get(seat)?.has(one) &&
      seatable(
        rest,
        people.filter((other) => other !== one),
        groups,
      ),
  );
}

test('a quorum is met exactly when its seats can be taken by different people, whatever the order of the votes', () => {
  const members = fc.uniqueArray(fc.constantFrom(...PEOPLE));
  fc.assert(
    fc.property(
      fc.array(fc.constantFrom(...PEOPLE), { maxLength: 8 }),
      fc.tuple(members, members, members),
      fc.array(fc.integer({ min: 1, max: 3 }), { maxLength: 3 }),
      members,
      (votes, membership, counts, eligible) => {
        const groups = new Map(NAMES.map((name, i) => [name, new Set(membership[i])]));
        const quorum = counts.map((count, i) => ({ group: NAMES[i]!, count }));
        const valid = [...new Set(votes)].filter((one) => eligible.includes(one));
        const seats = quorum.flatMap(({ group, count }) => Array<string>(count).fill(group));
        const counted = tally(votes, quorum, { has: (one) => eligible.includes(one), groups });
        expect(counted).toMatchObject({ approvals: valid.length, seated: seatable(seats, valid, groups) });
        // what is missing is enough, and not one seat less is
        const missing = counted.missing ?? [];
        const newcomers = missing.flatMap(({ group, count }) =>
          Array.from({ length: count }, (_, n) => ({ id: `${group} ${n}`, group })),
        );
        const filled = (some: typeof newcomers) =>
          tally([...votes, ...some.map(({ id }) => id)], quorum, {
            has: (one) => eligible.includes(one) || one.includes(' '),
            groups: new Map(
              [...groups].map(([name, ids]) => [
                name,
                new Set([...ids, ...some.filter(({ group }) => group === name).map(({ id }) => id)]),
              ]),
            ),
          }).seated;
        expect(filled(newcomers)).toBe(true);
        if (newcomers.length > 0) expect(filled(newcomers.slice(1))).toBe(false);
      },
    ),
    { numRuns: 3000 },
  );
});

test('a group that does not exist is never seated', () => {
  const electorate = { has: () => true, groups: new Map() };
  expect(tally(['a'], [{ group: 'toString', count: 1 }], electorate)).toEqual({
    approvals: 1,
    seated: false,
    missing: [{ group: 'toString', count: 1 }],
  });
});
