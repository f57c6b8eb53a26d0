import { readFileSync } from 'node:fs';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  createHold,
  elapse,
  HOLD_MACHINE_VERSION,
  type HoldContext,
  type HoldEffect,
  type HoldEvent,
  type HoldSnapshot,
  holdMachine,
  holdRefusal,
  restoreHold,
  stepHold,
  timeline,
  unreadableHolds,
} from '../../machines/escrow.ts';
import { metAt } from '../../machines/requirement.ts';
import { HOLD_KIND_NAMES, type HoldKind, holdKind } from '../../server/domain/hold-kinds.ts';
import { RELEASES } from '../../server/escrow/kinds.ts';
import { tally } from '../../server/escrow/quorum.ts';
import { runs } from '../siege/rounds.ts';
import { generate } from '../vectors/escrow/generate.ts';
import { MODEL } from '../vectors/escrow/kinds.ts';

interface Terms {
  type: HoldKind;
  approvals: number;
  quorum: { group: string; count: number }[];
  conditions: string[];
  releaseAfter: number;
  ttl: number;
  within: number | null;
}

type Command =
  | { do: 'pass'; ticks: number }
  | { do: 'vote'; user: string; decision: 'approve' | 'reject' }
  | { do: 'role'; user: string; has: boolean }
  | { do: 'recount' }
  | { do: 'satisfy'; condition: string; satisfied: boolean; user: string }
  | { do: 'consume'; agent: string; hash: string }
  | { do: 'cancel' }
  | { do: 'wake' };

const USERS = ['ann', 'bob', 'cid', 'dee', 'owner'];
const GROUPS: Record<string, string[]> = { finance: ['ann', 'bob'], security: ['ann', 'cid'] };
const BARRED = 'owner';

/**
 * The specification's table, told another way: time goes on tick by tick, approvals are counted from a log, and a quorum
 * is tried out seat by seat.
 */
class Reference {
  status = 'held';
  readonly log: string[] = ['created'];
  readonly voted = new Map<string, 'approve' | 'reject'>();
  readonly satisfied = new Map<string, boolean>();
  readonly terms: Terms;
  now = 0;
  releasedAt: number | null = null;
  endedAt: number | null = null;
  /** The approvals at the last event that counted them. */
  counted = { approvals: 0, enough: false };

  constructor(terms: Terms) {
    this.terms = terms;
    for (const condition of terms.conditions) this.satisfied.set(condition, false);
  }

  pass(ticks: number): void {
    for (let i = 0; i < ticks; i++) {
      this.now++;
      if (this.status === 'held' && this.now >= this.terms.ttl) this.#end('expired');
      else if (this.status === 'held' && this.#free(this.counted.enough)) this.#release();
      if (this.status === 'released' && this.now >= this.#executeBy()) this.#end('expired');
    }
  }

  vote(user: string, decision: 'approve' | 'reject', approvers: ReadonlySet<string>): string | undefined {
    if (this.status !== 'held') return 'INVALID_STATUS';
    if (this.voted.has(user)) return 'ALREADY_VOTED';
    if (user === BARRED || !approvers.has(user)) return 'FORBIDDEN';
    this.voted.set(user, decision);
    this.log.push('vote_cast');
    this.#count(approvers);
    if (decision === 'reject') this.#end('rejected');
    else if (this.#free(this.counted.enough)) this.#release();
    return undefined;
  }

  satisfy(condition: string, satisfied: boolean, user: string, approvers: ReadonlySet<string>): string | undefined {
    if (!this.satisfied.has(condition)) return 'NOT_FOUND';
    if (this.status !== 'held') return 'INVALID_STATUS';
    if (user === BARRED) return 'FORBIDDEN';
    this.satisfied.set(condition, satisfied);
    this.log.push('condition_reported');
    this.#count(approvers);
    if (this.#free(this.counted.enough)) this.#release();
    return undefined;
  }

  recount(approvers: ReadonlySet<string>): void {
    if (this.status !== 'held' && this.status !== 'released') return;
    const before = JSON.stringify(this.counted);
    this.#count(approvers);
    if (this.status === 'released') {
      if (this.#free(this.counted.enough)) return;
      this.log.push('recounted');
      this.#end('cancelled');
      return;
    }
    const free = this.#free(this.counted.enough);
    if (before !== JSON.stringify(this.counted)) this.log.push('recounted');
    if (free) this.#release();
  }

  consume(agent: string, hash: string): string | undefined {
    if (agent !== 'agent') return 'AGENT_MISMATCH';
    if (this.status === 'consumed') return 'ALREADY_CONSUMED';
    if (this.status === 'expired') return 'ESCROW_EXPIRED';
    if (hash !== 'hash') return 'HASH_MISMATCH';
    if (this.status !== 'released') return 'INVALID_STATUS';
    this.#end('consumed');
    return undefined;
  }

  cancel(): string | undefined {
    if (this.status !== 'held' && this.status !== 'released') return 'INVALID_STATUS';
    this.#end('cancelled');
    return undefined;
  }

  #count(approvers: ReadonlySet<string>): void {
    const valid = [...this.voted].filter(([user, vote]) => vote === 'approve' && approvers.has(user)).map(([u]) => u);
    const open = this.terms.quorum.flatMap(({ group, count }) => Array<string>(count).fill(group));
    this.counted = { approvals: valid.length, enough: seatable(open, valid) };
  }

  #free(seated: boolean): boolean {
    const { type, approvals, releaseAfter } = this.terms;
    const conditions = [...this.satisfied.values()].every(Boolean);
    const people = seated && this.counted.approvals >= approvals;
    return MODEL[type]({ people, asksPeople: approvals > 0, conditions, timeOver: this.now >= releaseAfter });
  }

  #executeBy(): number {
    return this.terms.within === null ? this.terms.ttl : this.releasedAt! + this.terms.within;
  }

  #release(): void {
    this.status = 'released';
    this.releasedAt = this.now;
    this.log.push('released');
  }

  #end(status: string): void {
    this.status = status;
    this.endedAt = this.now;
    this.log.push(status);
  }
}

function seatable(seats: string[], people: string[]): boolean {
  const [seat, ...rest] = seats;
  if (seat === undefined) return true;
  return people.some(
    (one) =>
      GROUPS[seat]?.includes(one) &&
      seatable(
        rest,
        people.filter((other) => other !== one),
      ),
  );
}

function begin(terms: Terms): [HoldSnapshot, HoldEffect[]] {
  const { type, approvals, conditions, releaseAfter, ttl, within } = terms;
  return createHold({
    agentId: 'agent',
    agentRole: 'clerk',
    actionHash: 'hash',
    release: RELEASES[type]({
      approvals,
      conditions,
      releaseAt: holdKind(type).takesDelay ? releaseAfter : undefined,
    }),
    conditions,
    expiresAt: ttl,
    executeWithin: within,
  });
}

const termsArbitrary: fc.Arbitrary<Terms> = fc
  .record({
    type: fc.constantFrom(...HOLD_KIND_NAMES),
    approvals: fc.integer({ min: 0, max: 3 }),
    quorum: fc.constantFrom<Terms['quorum'][]>(
      [],
      [],
      [{ group: 'finance', count: 1 }],
      [
        { group: 'finance', count: 1 },
        { group: 'security', count: 1 },
      ],
      [{ group: 'finance', count: 2 }],
    ),
    conditions: fc.constantFrom<string[][]>([], [], ['kyc'], ['kyc', 'legal']),
    releaseAfter: fc.integer({ min: 1, max: 25 }),
    ttl: fc.integer({ min: 2, max: 20 }),
    within: fc.option(fc.integer({ min: 1, max: 15 })),
  })
  .map((terms) => {
    const least = holdKind(terms.type).leastApprovals;
    const seats = terms.quorum.reduce((sum, { count }) => sum + count, 0);
    const conditions =
      holdKind(terms.type).needsConditions && terms.conditions.length === 0 ? ['kyc'] : terms.conditions;
    return { ...terms, conditions, approvals: Math.max(terms.approvals, least, seats) };
  });

const user = fc.constantFrom(...USERS);
const commandArbitrary: fc.Arbitrary<Command> = fc.oneof(
  { weight: 4, arbitrary: fc.record({ do: fc.constant('pass' as const), ticks: fc.integer({ min: 1, max: 9 }) }) },
  {
    weight: 6,
    arbitrary: fc.record({
      do: fc.constant('vote' as const),
      user,
      decision: fc.constantFrom<('approve' | 'reject')[]>('approve', 'approve', 'approve', 'approve', 'reject'),
    }),
  },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('role' as const), user, has: fc.boolean() }) },
  { weight: 1, arbitrary: fc.constant<Command>({ do: 'recount' }) },
  {
    weight: 4,
    arbitrary: fc.record({
      do: fc.constant('satisfy' as const),
      condition: fc.constantFrom('kyc', 'kyc', 'legal', 'other'),
      satisfied: fc.constantFrom(true, true, true, false),
      user,
    }),
  },
  {
    weight: 3,
    arbitrary: fc.record({
      do: fc.constant('consume' as const),
      agent: fc.constantFrom('agent', 'agent', 'agent', 'stranger'),
      hash: fc.constantFrom('hash', 'hash', 'hash', 'other'),
    }),
  },
  { weight: 1, arbitrary: fc.constant<Command>({ do: 'cancel' }) },
  { weight: 2, arbitrary: fc.constant<Command>({ do: 'wake' }) },
);

/** The machine as the holds use it: time is caught up with at each event and by timers that may be late. */
class Subject {
  snapshot: HoldSnapshot;
  readonly log: string[] = [];
  readonly terms: Terms;
  wakeAt: number | null = null;

  constructor(terms: Terms) {
    this.terms = terms;
    const [snapshot, effects] = begin(terms);
    this.snapshot = snapshot;
    this.#note(effects);
  }

  tally(approvers: ReadonlySet<string>, more: string[] = []) {
    const approvals = this.snapshot.context.votes.filter((v) => v.decision === 'approve').map((v) => v.userId);
    return tally([...approvals, ...more], this.terms.quorum, {
      has: (id) => id !== BARRED && approvers.has(id),
      groups: new Map(Object.entries(GROUPS).map(([group, ids]) => [group, new Set(ids)])),
    });
  }

  send(event: HoldEvent): string | undefined {
    const refused = holdRefusal(this.snapshot, event);
    if (refused) {
      // the machine itself does not move either
      const [still, effects] = stepHold(elapse(this.snapshot, event.at)[0], event);
      expect([still.value, effects]).toEqual([elapse(this.snapshot, event.at)[0].value, []]);
      return refused.code;
    }
    const [timely, passed] = elapse(this.snapshot, event.at);
    const [next, effects] = stepHold(timely, event);
    this.#note([...passed, ...effects]);
    this.snapshot = restored(next);
    return undefined;
  }

  wake(at: number): void {
    const [next, effects] = elapse(this.snapshot, at);
    this.#note(effects);
    this.snapshot = restored(next);
  }

  #note(effects: HoldEffect[]): void {
    for (const effect of effects) {
      if (effect.type === 'audit') this.log.push(effect.params.action.replace('escrow.', ''));
      if (effect.type === 'wakeAt') this.wakeAt = effect.params.at;
    }
    const told = effects.flatMap((e) => (e.type === 'audit' ? [e.params.action] : []));
    const emitted = effects.flatMap((e) => (e.type === 'emit' ? [e.params.event] : []));
    const silent = ['escrow.condition_reported', 'escrow.recounted'];
    if (told.filter((one) => !silent.includes(one)).join() !== emitted.join()) {
      throw new Error(`audit ${told.join()} and events ${emitted.join()} differ`);
    }
  }
}

function restored(snapshot: HoldSnapshot): HoldSnapshot {
  return restoreHold({
    state: snapshot.value,
    context: JSON.parse(JSON.stringify(snapshot.context)),
    version: HOLD_MACHINE_VERSION,
  });
}

function walk(terms: Terms, commands: Command[]): void {
  const reference = new Reference(terms);
  const subject = new Subject(terms);
  const approvers = new Set(USERS);
  const agree = (what: string, actual: unknown, expected: unknown) => {
    if (actual !== expected) throw new Error(`${what}: ${actual}, but the specification says ${expected}`);
  };
  for (const command of commands) {
    const at = reference.now;
    switch (command.do) {
      case 'pass':
        reference.pass(command.ticks);
        break;
      case 'role':
        if (command.has) approvers.add(command.user);
        else approvers.delete(command.user);
        break;
      case 'wake':
        subject.wake(at);
        break;
      case 'recount':
        reference.recount(new Set([...approvers].filter((id) => id !== BARRED)));
        subject.send({ type: 'recount', tally: subject.tally(approvers), at });
        break;
      case 'vote': {
        const { user: userId, decision } = command;
        const barred = userId === BARRED || !approvers.has(userId) ? { barred: 'no vote here' } : {};
        const counted = subject.tally(approvers, decision === 'approve' ? [userId] : []);
        const code = subject.send({ type: 'vote', userId, decision, ...barred, tally: counted, at });
        agree('vote', code, reference.vote(userId, decision, approvers));
        break;
      }
      case 'satisfy': {
        const { condition, satisfied, user } = command;
        const event = {
          type: 'satisfy',
          ...{ conditionId: condition, satisfied, by: user, tally: subject.tally(approvers), at },
          ...(user === BARRED && { barred: 'no report here' }),
        } as const;
        agree('satisfy', subject.send(event), reference.satisfy(condition, satisfied, user, approvers));
        break;
      }
      case 'consume': {
        const { agent, hash } = command;
        const code = subject.send({ type: 'consume', agentId: agent, agentRole: 'clerk', actionHash: hash, at });
        agree('consume', code, reference.consume(agent, hash));
        break;
      }
      case 'cancel':
        agree('cancel', subject.send({ type: 'cancel', at }), reference.cancel());
        break;
    }
    const [seen] = elapse(subject.snapshot, reference.now);
    agree('status', seen.value, reference.status);
    agree('released at', seen.context.releasedAt, reference.releasedAt);
    agree('ended at', seen.context.endedAt, reference.endedAt);
    // what stands in the row for the timers and the status filter
    const { releasesAt, endsAt } = timeline(subject.snapshot);
    const next = releasesAt === null ? endsAt : Math.min(releasesAt, endsAt!);
    agree('timer', subject.wakeAt, next);
    const byRow =
      endsAt !== null && endsAt <= reference.now
        ? 'expired'
        : releasesAt !== null && releasesAt <= reference.now
          ? 'released'
          : subject.snapshot.value;
    agree('status by the row', byRow, reference.status);
  }
  subject.wake(reference.now);
  agree('what happened', subject.log.join(), reference.log.join());
}

describe('the hold machine', () => {
  const RUNS = runs(100_000, 500);
  test(`does what the specification's table says, in ${RUNS} random sequences with a virtual clock`, () => {
    fc.assert(
      fc.property(termsArbitrary, fc.array(commandArbitrary, { minLength: 1, maxLength: 25 }), (terms, commands) => {
        walk(terms, commands);
      }),
      { numRuns: RUNS },
    );
  });

  test('names every guard and action, so that its chart can be read', () => {
    const text = JSON.stringify(holdMachine.config);
    expect(text).not.toContain('function');
    const { guards, actions } = holdMachine.implementations;
    for (const { guard } of Object.values(holdMachine.states).flatMap((s) => [...s.transitions.values()].flat())) {
      if (guard) expect(Object.keys(guards)).toContain(guard as string);
    }
    expect(Object.keys(actions).length).toBeGreaterThan(3);
  });

  test('a hold without requirements is not created', () => {
    expect(() =>
      begin({ type: 'conditional', approvals: 0, quorum: [], conditions: [], releaseAfter: 1, ttl: 9, within: null }),
    ).toThrow(RangeError);
    expect(() => RELEASES.time_delayed({ approvals: 0, conditions: [], releaseAt: undefined })).toThrow(RangeError);
  });

  test('a late timer extends nothing: the release and the expiry count from when they were due', () => {
    const terms: Terms = {
      type: 'time_delayed',
      approvals: 0,
      quorum: [],
      conditions: [],
      releaseAfter: 10,
      ttl: 60,
      within: 5,
    };
    const [snapshot] = begin(terms);
    const [late, effects] = elapse(snapshot, 1_000_000);
    expect(late.value).toBe('expired');
    expect(late.context).toMatchObject({ releasedAt: 10, executeBy: 15, endedAt: 15 });
    expect(effects.flatMap((e) => (e.type === 'emit' ? [e.params.event] : []))).toEqual([
      'escrow.released',
      'escrow.expired',
    ]);
    const consume = { type: 'consume', agentId: 'agent', agentRole: 'clerk', actionHash: 'hash' } as const;
    expect(holdRefusal(snapshot, { ...consume, at: 14 })).toBeUndefined();
    expect(holdRefusal(snapshot, { ...consume, at: 15 })?.code).toBe('ESCROW_EXPIRED');
    // even a machine that had not seen the time before does not let a late event through
    const [released] = elapse(snapshot, 10);
    expect(stepHold(released, { ...consume, at: 15 })[0].value).toBe('released');
  });

  test('an expiry wins over a release at the same moment', () => {
    const [snapshot] = begin({
      type: 'time_delayed',
      approvals: 0,
      quorum: [],
      conditions: [],
      releaseAfter: 10,
      ttl: 10,
      within: 5,
    });
    expect(elapse(snapshot, 10)[0].value).toBe('expired');
  });

  test('requirements compose', () => {
    const facts = { conditions: [{ id: 'a', satisfied: true, reportedAt: 1 }], tally: { approvals: 2, seated: true } };
    expect(metAt({ all: [{ condition: 'a' }, { approvals: 2 }] }, facts)).toBe(-Infinity);
    expect(metAt({ all: [{ condition: 'a' }, { after: 7 }] }, facts)).toBe(7);
    expect(metAt({ any: [{ condition: 'b' }, { after: 7 }, { after: 5 }] }, facts)).toBe(5);
    expect(metAt({ all: [{ condition: 'b' }, { after: 7 }] }, facts)).toBe(Infinity);
    expect(metAt({ any: [] }, facts)).toBe(Infinity);
    const lapsed = { ...facts, tally: { ...facts.tally, lapsed: ['a'] } };
    expect(metAt({ condition: 'a' }, lapsed)).toBe(Infinity);
    expect(metAt({ approvals: 2 }, lapsed)).toBe(-Infinity);
  });
});

describe('stored holds', () => {
  const [snapshot] = begin({
    type: 'single',
    approvals: 1,
    quorum: [],
    conditions: [],
    releaseAfter: 1,
    ttl: 9,
    within: null,
  });

  test('of an older version are migrated step by step', () => {
    const upgrades = {
      [-1]: ({ context }: { context: unknown }) => ({ state: 'held', context, version: 0 }),
      0: ({ state, context }: { state: string; context: unknown }) => ({
        state,
        context: { ...(context as HoldContext), executeWithin: 7 },
        version: 1,
      }),
    };
    const old = { state: 'waiting', context: snapshot.context, version: -1 };
    expect(restoreHold(old, upgrades)).toMatchObject({ value: 'held', context: { executeWithin: 7 } });
    expect(unreadableHolds([{ state: 'waiting', version: -1 }], upgrades)).toEqual([]);
  });

  test('of an unknown version or state are refused, at the start and when they are read', () => {
    for (const wrong of [
      { state: 'held', version: HOLD_MACHINE_VERSION + 1 },
      { state: 'held', version: 0 },
      { state: 'frozen', version: HOLD_MACHINE_VERSION },
    ]) {
      expect(() => restoreHold({ ...wrong, context: snapshot.context })).toThrow(/cannot be read by this version/);
      expect(unreadableHolds([wrong])).toEqual([`${wrong.state} of version ${wrong.version}`]);
    }
    expect(unreadableHolds([{ state: 'expired', version: HOLD_MACHINE_VERSION }])).toEqual([]);
  });
});

test('the published lifecycles of holds match the machine, with a row for each hold type', async () => {
  const { 'lives.json': text } = await generate();
  expect(text).toBe(readFileSync(new URL('../vectors/escrow/lives.json', import.meta.url), 'utf8'));
  const { lives } = JSON.parse(text!) as { lives: { type: string }[] };
  expect([...new Set(lives.map(({ type }) => type))].sort()).toEqual([...HOLD_KIND_NAMES].sort());
});
