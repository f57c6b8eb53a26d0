import fc from 'fast-check';
import { expect, test } from 'vitest';
import { createHold, holdRefusal, stepHold } from '../../machines/escrow.ts';
import { HOLD_KIND_NAMES, holdKind } from '../../server/domain/hold-kinds.ts';
import { RELEASES } from '../../server/escrow/kinds.ts';
import { tally } from '../../server/escrow/quorum.ts';
import { reportEffect, voteEffect } from '../../server/escrow/vote-effect.ts';
import { runs } from '../siege/rounds.ts';

const PEOPLE = ['a', 'b', 'c', 'd'];
const HOUR = 3_600_000;

const lives = fc.record({
  kind: fc.constantFrom(...HOLD_KIND_NAMES),
  approvals: fc.integer({ min: 0, max: 3 }),
  quorum: fc.array(fc.integer({ min: 1, max: 2 }), { maxLength: 2 }),
  members: fc.tuple(fc.subarray(PEOPLE), fc.subarray(PEOPLE)),
  satisfied: fc.array(fc.boolean(), { maxLength: 2 }),
  before: fc.subarray(PEOPLE.slice(1)),
  decision: fc.constantFrom('approve', 'reject'),
});

test('a person is told what their vote will do, as the machine then does it', () => {
  fc.assert(
    fc.property(lives, ({ kind, approvals: asked, quorum: counts, members, satisfied, before, decision }) => {
      const { leastApprovals, needsConditions, takesDelay } = holdKind(kind);
      const quorum = counts.map((count, n) => ({ group: `g${n}`, count }));
      const groups = { g0: members[0], g1: members[1] };
      const seats = counts.reduce((sum, count) => sum + count, 0);
      const required = Math.max(asked, leastApprovals, seats);
      const states = needsConditions && satisfied.length === 0 ? [false] : satisfied;
      const ids = states.map((_, n) => `c${n}`);
      const releaseAt = takesDelay ? HOUR : undefined;
      const electorate = { has: () => true, groups: new Map(Object.entries(groups).map(([g, m]) => [g, new Set(m)])) };
      const count = (people: string[]) => tally(people, quorum, electorate);
      let [hold] = createHold({
        agentId: 'bot',
        agentRole: 'clerk',
        actionHash: 'sha256:0',
        release: RELEASES[kind]({ approvals: required, conditions: ids, releaseAt }),
        conditions: ids,
        expiresAt: 2 * HOUR,
        executeWithin: null,
      });
      const people: string[] = [];
      const step = (event: Parameters<typeof stepHold>[1]) => {
        if (!holdRefusal(hold, event)) [hold] = stepHold(hold, event);
      };
      for (const userId of before) {
        people.push(userId);
        step({ type: 'vote', userId, decision: 'approve', tally: count(people), at: 1 });
      }
      for (const [n, is] of states.entries()) {
        step({ type: 'satisfy', conditionId: `c${n}`, satisfied: is, by: 'kyc', tally: count(people), at: 2 });
      }
      fc.pre(hold.value === 'held');
      const shown = {
        hold_type: kind,
        required_approvals: required,
        current_approvals: people.length,
        missing_seats: count(people).missing ?? [],
        quorum,
        conditions: hold.context.conditions.map(({ id, satisfied }) => ({ condition_id: id, satisfied })),
        votes: people.map((user_id) => ({ user_id, decision: 'approve' as const })),
        ...(releaseAt !== undefined && { release_at: new Date(releaseAt).toISOString() }),
      };
      const told = voteEffect(shown, decision as 'approve' | 'reject', 'a', groups);
      const after = count([...people, 'a']);
      step({ type: 'vote', userId: 'a', decision: decision as 'approve' | 'reject', tally: after, at: 3 });
      expect({ held: 'waits', released: 'releases', rejected: 'ends' }[hold.value as 'held']).toBe(told.outcome);
      if (told.outcome !== 'waits') return;
      expect(told.approvals).toBe(Math.max(0, required - after.approvals));
      expect(told.seats).toEqual(after.missing ?? []);
      expect(told.conditions).toEqual(ids.filter((_, n) => !states[n]));
      // what waits only for time says so
      expect(told.releasesAt !== undefined).toBe(takesDelay);
    }),
    { numRuns: runs(2000, 400) },
  );
});

test('what the report of a condition is said to do is what the machine does with it', () => {
  fc.assert(
    fc.property(
      fc.constantFrom(...HOLD_KIND_NAMES),
      fc.array(fc.boolean(), { minLength: 1, maxLength: 3 }),
      fc.nat(2),
      fc.nat(2),
      fc.nat(2),
      (kind, states, at, asked, approved) => {
        const { leastApprovals, takesDelay } = holdKind(kind);
        const required = Math.max(asked, leastApprovals);
        const people = ['b', 'c'].slice(0, approved);
        const ids = states.map((_, n) => `c${n}`);
        const condition = ids[at % ids.length]!;
        const releaseAt = takesDelay ? HOUR : undefined;
        const count = tally(people, [], { has: () => true, groups: new Map() });
        let [hold] = createHold({
          ...{ agentId: 'bot', agentRole: 'clerk', actionHash: 'sha256:0', conditions: ids },
          release: RELEASES[kind]({ approvals: required, conditions: ids, releaseAt }),
          ...{ expiresAt: 2 * HOUR, executeWithin: null },
        });
        for (const [n, is] of states.entries()) {
          const report = { conditionId: ids[n]!, satisfied: is, by: 'kyc', tally: count, at: 1 };
          [hold] = stepHold(hold, { type: 'satisfy', ...report });
        }
        fc.pre(hold.value === 'held');
        const told = reportEffect(
          {
            ...{ hold_type: kind, required_approvals: required, current_approvals: people.length, missing_seats: [] },
            conditions: ids.map((condition_id, n) => ({ condition_id, satisfied: states[n]! })),
            ...(releaseAt !== undefined && { release_at: new Date(releaseAt).toISOString() }),
          },
          condition,
        );
        const report = { conditionId: condition, satisfied: true, by: 'kyc', tally: count, at: 2 };
        [hold] = stepHold(hold, { type: 'satisfy', ...report });
        expect(told.outcome).toBe(hold.value === 'released' ? 'releases' : 'waits');
        if (told.outcome !== 'waits') return;
        expect(told.conditions).toEqual(ids.filter((id, n) => !states[n] && id !== condition));
        expect(told.approvals).toBe(Math.max(0, required - people.length));
      },
    ),
    { numRuns: runs(500) },
  );
});

test('an approval that cannot bring the release nearer is said to change nothing', () => {
  const hold = { required_approvals: 0, current_approvals: 0, missing_seats: [], votes: [], conditions: [] };
  const kyc = [{ condition_id: 'kyc', satisfied: false }];
  const by = (more: object) =>
    voteEffect({ ...hold, hold_type: 'conditional', ...more } as Parameters<typeof voteEffect>[0], 'approve', 'a', {
      security: ['b'],
    });
  expect(by({ conditions: kyc })).toMatchObject({ outcome: 'waits', counts: false, conditions: ['kyc'] });
  expect(by({ conditions: kyc, required_approvals: 1 })).toMatchObject({ counts: true, approvals: 0 });
  const delayed = { hold_type: 'time_delayed', release_at: '2026-01-01T00:00:00.000Z' };
  expect(by(delayed)).toMatchObject({ outcome: 'waits', counts: false, releasesAt: delayed.release_at });
  expect(by({ ...delayed, required_approvals: 1 })).toEqual({ outcome: 'releases' });
  // the number is reached, and the seat that is missing is not theirs
  const quorum = [{ group: 'security', count: 1 }];
  const seat = { hold_type: 'multi_party', required_approvals: 2, current_approvals: 2, quorum, missing_seats: quorum };
  const votes = ['c', 'd'].map((user_id) => ({ user_id, decision: 'approve' as const }));
  expect(by({ ...seat, votes })).toMatchObject({ outcome: 'waits', counts: false, seats: quorum });
});
