import type { HoldEvent } from '../../../machines/escrow.ts';
import type { HoldKind } from '../../../server/domain/hold-kinds.ts';

/** One life of a hold: what it lists, and what happens to it. Times are milliseconds from its opening. */
export interface Life {
  name: string;
  type: HoldKind;
  approvals: number;
  conditions?: string[];
  release_after?: number;
  ttl: number;
  execute_within?: number;
  events: HoldEvent[];
}

const some = (approvals: number, seated = true) => ({ approvals, seated });
const approve = (userId: string, at: number, count: number, seated = true): HoldEvent => ({
  type: 'vote',
  userId,
  decision: 'approve',
  tally: some(count, seated),
  at,
});
const reject = (userId: string, at: number, count = 0): HoldEvent => ({
  type: 'vote',
  userId,
  decision: 'reject',
  tally: some(count),
  at,
});
const satisfy = (conditionId: string, at: number, satisfied = true): HoldEvent => ({
  type: 'satisfy',
  conditionId,
  satisfied,
  by: 'desk',
  tally: some(0),
  at,
});
const consume = (at: number, more: { agentId?: string; actionHash?: string } = {}): HoldEvent => ({
  type: 'consume',
  agentId: 'agent',
  agentRole: 'clerk',
  actionHash: 'sha256:aa',
  ...more,
  at,
});

/** At least one for each hold kind. */
export const LIVES: Life[] = [
  {
    name: 'single: approved and consumed, once',
    type: 'single',
    approvals: 1,
    ttl: 1000,
    execute_within: 500,
    events: [consume(5), approve('ann', 10, 1), consume(20, { actionHash: 'sha256:bb' }), consume(30), consume(40)],
  },
  {
    name: 'single: nobody decides',
    type: 'single',
    approvals: 1,
    ttl: 1000,
    events: [approve('ann', 1000, 1), consume(1001), { type: 'cancel', at: 1002 }],
  },
  {
    name: 'multi_party: two people, one of them twice',
    type: 'multi_party',
    approvals: 2,
    ttl: 1000,
    events: [
      approve('ann', 10, 1),
      approve('ann', 20, 1),
      { ...approve('owner', 25, 1), barred: 'the owner does not vote' } as HoldEvent,
      approve('bob', 30, 2),
      consume(1000),
    ],
  },
  {
    name: 'multi_party: one rejection',
    type: 'multi_party',
    approvals: 2,
    ttl: 1000,
    events: [approve('ann', 10, 1), reject('bob', 20, 1), approve('cid', 30, 2)],
  },
  {
    name: 'multi_party: enough approvals, a seat of the quorum open, then an approver lost the role',
    type: 'multi_party',
    approvals: 2,
    ttl: 1000,
    events: [
      approve('ann', 10, 1, false),
      approve('bob', 20, 2, false),
      { type: 'recount', tally: some(1, false), at: 30 },
      approve('cid', 40, 2),
    ],
  },
  {
    name: 'multi_party: an approver got the role back, and the count of that releases',
    type: 'multi_party',
    approvals: 2,
    ttl: 1000,
    events: [
      approve('ann', 10, 1),
      { type: 'recount', tally: some(0), at: 20 },
      approve('bob', 30, 1),
      { type: 'recount', tally: some(1), at: 40 },
      { type: 'recount', tally: some(2), at: 50 },
    ],
  },
  {
    name: 'conditional: taken back, then satisfied',
    type: 'conditional',
    approvals: 0,
    conditions: ['kyc', 'legal'],
    ttl: 1000,
    events: [
      satisfy('kyc', 10),
      satisfy('other', 15),
      satisfy('kyc', 20, false),
      satisfy('legal', 30),
      satisfy('kyc', 40),
    ],
  },
  {
    name: 'conditional with an approval: needs both',
    type: 'conditional',
    approvals: 1,
    conditions: ['kyc'],
    ttl: 1000,
    events: [satisfy('kyc', 10), approve('ann', 20, 1), { type: 'cancel', at: 30 }, consume(40)],
  },
  {
    name: 'time_delayed: released by time though its timer is late, and expired by its own time',
    type: 'time_delayed',
    approvals: 0,
    release_after: 100,
    ttl: 1000,
    execute_within: 50,
    events: [approve('ann', 10, 1), { type: 'wake', at: 99 }, { type: 'wake', at: 140 }, consume(150)],
  },
  {
    name: 'time_delayed: rejected before its time',
    type: 'time_delayed',
    approvals: 0,
    release_after: 100,
    ttl: 1000,
    events: [reject('ann', 99), { type: 'wake', at: 100 }],
  },
  {
    name: 'time_delayed with an approval: released before its time',
    type: 'time_delayed',
    approvals: 1,
    release_after: 100,
    ttl: 1000,
    events: [approve('ann', 10, 1), consume(20)],
  },
];

/** What a hold lists and what of it is there, for the model. */
interface Seen {
  /** Enough approvals that count, with every seat of the quorum taken. */
  people: boolean;
  /** The hold asks for approvals at all. */
  asksPeople: boolean;
  conditions: boolean;
  timeOver: boolean;
}

/** Whether a hold of each kind is released by what is there: written apart from the program, to test it. */
export const MODEL: Record<HoldKind, (seen: Seen) => boolean> = {
  single: ({ people, conditions }) => people && conditions,
  multi_party: ({ people, conditions }) => people && conditions,
  conditional: ({ people, asksPeople, conditions }) => (!asksPeople || people) && conditions,
  time_delayed: ({ people, asksPeople, conditions, timeOver }) => conditions && (timeOver || (asksPeople && people)),
};
