import fc from 'fast-check';
import { expect, test } from 'vitest';
import { metAt } from '../../machines/requirement.ts';
import type { Annotations } from '../../server/domain/annotations.ts';
import { holdKind } from '../../server/domain/hold-kinds.ts';
import type { HoldTerms } from '../../server/domain/policy.ts';
import { RELEASES } from '../../server/escrow/kinds.ts';
import { joinedTerms } from '../../server/policy/evaluation/hold-terms.ts';
import { hit } from '../policy/support.ts';

/** What people and systems do: approvals by members of two groups and of none, and a report of conditions. */
interface Course {
  approvals: { at: number; group?: string | undefined }[];
  reportedAt: number;
  reported: readonly string[];
}

const GROUPS = ['finance', 'legal'];
const seconds = fc.integer({ min: 1, max: 12 });
const maybe = <T>(of: fc.Arbitrary<T>) => fc.option(of, { nil: undefined });
const quorum = fc.uniqueArray(fc.record({ group: fc.constantFrom(...GROUPS), count: fc.integer({ min: 1, max: 2 }) }), {
  minLength: 1,
  selector: ({ group }) => group,
});
const common = { ttl: seconds, execute_within: maybe(seconds), quorum: maybe(quorum) };
const approvals = maybe(fc.integer({ min: 1, max: 3 }));
const escrow = <T extends string>(kind: T) => fc.constant(kind);
const annotations: fc.Arbitrary<Annotations> = fc
  .oneof(
    fc.record({ escrow: escrow('single'), approvals, ...common }),
    fc.record({ escrow: escrow('multi_party'), approvals: fc.integer({ min: 2, max: 3 }), ...common }),
    fc.record({
      escrow: escrow('conditional'),
      condition: fc.subarray(['kyc', 'legal-ok'], { minLength: 1 }),
      approvals,
      ...common,
    }),
    fc.record({ escrow: escrow('time_delayed'), delay: seconds, approvals, ...common }),
  )
  .map((one) => Object.fromEntries(Object.entries(one).filter(([, value]) => value !== undefined)) as Annotations);
const courses: fc.Arbitrary<Course> = fc.record({
  approvals: fc.array(fc.record({ at: fc.integer({ min: 0, max: 12 }), group: maybe(fc.constantFrom(...GROUPS)) }), {
    maxLength: 5,
  }),
  reportedAt: fc.integer({ min: 0, max: 12 }),
  reported: fc.subarray(['kyc', 'legal-ok']),
});

/** When a hold of these terms, opened at 0, is released; undefined when never. Time in seconds. */
function releasedAt(terms: HoldTerms, course: Course): number | undefined {
  const requirement = RELEASES[terms.hold_type]({
    approvals: terms.required_approvals,
    conditions: terms.conditions ?? [],
    releaseAt: terms.delay_seconds,
  });
  for (let at = 0; at < terms.ttl_seconds; at++) {
    const given = course.approvals.filter((one) => one.at <= at);
    const seated = (terms.quorum ?? []).every(
      ({ group, count }) => given.filter((one) => one.group === group).length >= count,
    );
    const conditions = (terms.conditions ?? []).map((id) => ({
      id,
      satisfied: course.reportedAt <= at && course.reported.includes(id),
      reportedAt: null,
    }));
    if (metAt(requirement, { conditions, tally: { approvals: given.length, seated } }) <= at) return at;
  }
  return undefined;
}

test('what releases a joined hold would have released the hold of each rule, and is valid no longer than that one', () => {
  let releases = 0;
  fc.assert(
    fc.property(fc.array(annotations, { minLength: 1, maxLength: 4 }), courses, (list, course) => {
      const rules = list.map((one, at) => hit(`r${at}`, one));
      const joined = joinedTerms(rules);
      expect(joined.ttl_seconds).toBeGreaterThan(0);
      const at = releasedAt(joined, course);
      if (at === undefined) return;
      releases++;
      const until = joined.execute_within_seconds ? at + joined.execute_within_seconds : joined.ttl_seconds;
      for (const rule of rules) {
        const own = joinedTerms([rule]);
        expect(at).toBeLessThan(own.ttl_seconds);
        expect(until).toBeLessThanOrEqual(
          own.execute_within_seconds ? at + own.execute_within_seconds : own.ttl_seconds,
        );
        // who must approve or report is the check that a delay leaves time for
        if (holdKind(own.hold_type).takesDelay && !holdKind(joined.hold_type).takesDelay) continue;
        expect(releasedAt(own, course) ?? Infinity).toBeLessThanOrEqual(at);
      }
    }),
    { numRuns: 3000 },
  );
  expect(releases).toBeGreaterThan(100);
});

const terms = (...list: Annotations[]) => joinedTerms(list.map((one, at) => hit(`r${at}`, one)));

test('a rule without a time to execute lets no release outlive its ttl', () => {
  expect(terms({ escrow: 'single', ttl: 3_600 }, { escrow: 'single', execute_within: 7_200 })).toMatchObject({
    ttl_seconds: 3_600,
  });
  expect(terms({ escrow: 'single', ttl: 3_600 }, { escrow: 'single', execute_within: 3_000 })).toMatchObject({
    ttl_seconds: 1_800,
    execute_within_seconds: 1_800,
  });
});

test('approvals release a delayed hold early only if every rule lets them', () => {
  const delayed = { escrow: 'time_delayed', delay: 600 } as const;
  const seats = [{ group: 'finance', count: 2 }];
  const mixed = terms(delayed, { ...delayed, delay: 60, approvals: 2, quorum: seats });
  expect(mixed).toMatchObject({ required_approvals: 0, delay_seconds: 600 });
  expect(mixed).not.toHaveProperty('quorum');
  expect(terms({ ...delayed, approvals: 1 }, { ...delayed, quorum: seats })).toMatchObject({ required_approvals: 2 });
});
