import { assign, initialTransition, type SnapshotFrom, setup, transition } from 'xstate';
import { metAt, type Requirement, type Tally } from './requirement.ts';

/**
 * The lifecycle of a hold: one machine for every hold kind. The kinds differ only in data: the requirement that releases
 * the hold (`HoldInput.release`), from server/escrow/kinds.ts.
 *
 * The machine looks nothing up. Time enters as the `at` of an event, in milliseconds; whether a person may vote, and which
 * approvals and reports count, enter as the `barred` and `tally` of an event. Therefore a hold can be replayed from its events,
 * and its state at any later time follows from what is stored. Effects are only named: `audit` becomes an audit record,
 * `emit` a row in the outbox and `wakeAt` the row's timer, all in the transaction that stores the state.
 */
export const HOLD_MACHINE_VERSION = 1;

export const HOLD_STATES = ['held', 'released', 'rejected', 'consumed', 'expired', 'cancelled'] as const;
export type HoldState = (typeof HOLD_STATES)[number];

export type { Requirement, Tally };

export interface HoldInput {
  agentId: string;
  agentRole: string;
  actionHash: string;
  release: Requirement;
  conditions: string[];
  expiresAt: number;
  /** Milliseconds after the release within which the hold must be consumed; null means until `expiresAt`. */
  executeWithin: number | null;
}

export interface Condition {
  id: string;
  satisfied: boolean;
  reportedAt: number | null;
  /** The person or key whose report this is. */
  reportedBy?: string;
  /** The people responsible for the report: the person who made it, or those who created the key or one of its line. */
  behind?: readonly string[];
  /** A system has reported that it is not met, and no system has said otherwise since. */
  denied?: boolean;
  evidence?: string;
}

export interface HoldContext extends Omit<HoldInput, 'conditions'> {
  conditions: Condition[];
  votes: { userId: string; decision: 'approve' | 'reject'; at: number }[];
  tally: Tally;
  releasedAt: number | null;
  /** The end of the release; null before the release. */
  executeBy: number | null;
  /** When it was rejected, consumed or cancelled, or expired. */
  endedAt: number | null;
}

export type HoldEvent =
  | {
      type: 'vote';
      userId: string;
      decision: 'approve' | 'reject';
      /** Why this person may not vote on this hold; absent if they may. */
      barred?: string;
      /** Including this vote. */
      tally: Tally;
      at: number;
    }
  | {
      type: 'satisfy';
      conditionId: string;
      satisfied: boolean;
      evidence?: string;
      /** The id of the person or the key that reports. */
      by: string;
      /** The people responsible for it. */
      behind?: readonly string[];
      /** The report comes from a key. */
      system?: boolean;
      /** Why this person or key may not report this; absent if they may. */
      barred?: string;
      tally: Tally;
      at: number;
    }
  /** Roles, groups or settings changed, so the approvals and reports were counted again. */
  | { type: 'recount'; tally: Tally; at: number }
  | { type: 'consume'; agentId: string; agentRole: string; actionHash: string; at: number }
  | { type: 'cancel'; at: number }
  | { type: 'wake'; at: number };

export const HOLD_ACTIONS = [
  'created',
  'vote_cast',
  'condition_reported',
  'recounted',
  'released',
  'rejected',
  'consumed',
  'expired',
  'cancelled',
] as const;
export type HoldAction = (typeof HOLD_ACTIONS)[number];

export type HoldEffect =
  | { type: 'audit'; params: { action: `escrow.${HoldAction}` } }
  | { type: 'emit'; params: { event: `escrow.${Exclude<HoldAction, 'condition_reported' | 'recounted'>}` } }
  | { type: 'wakeAt'; params: { at: number | null } };

/** When the machine must be woken if no other event arrives; null for never. */
function dueAt(state: HoldState, context: HoldContext): number | null {
  if (state === 'released') return context.executeBy;
  if (state !== 'held') return null;
  return Math.min(metAt(context.release, context), context.expiresAt);
}

const isTime = (time: number) => Number.isFinite(time);

/** Is the hold released at `at`? An expiry takes precedence over a simultaneous or later release. */
function isReleased(context: HoldContext, at: number): boolean {
  const met = metAt(context.release, context);
  return met <= at && met < context.expiresAt && (at < context.expiresAt || isTime(met));
}

/** The context updated with the conditions and approvals that the event reports. */
function withReport(context: HoldContext, event: HoldEvent): HoldContext {
  switch (event.type) {
    case 'vote': {
      const { userId, decision, at, tally } = event;
      return { ...context, tally, votes: [...context.votes, { userId, decision, at }] };
    }
    case 'satisfy': {
      const { conditionId: id, satisfied, evidence, by, behind, system = false, tally, at } = event;
      const report = (before: Condition): Condition => {
        // a person's report does not override a system's
        const denied = system ? !satisfied : before.denied;
        return {
          ...{ id, satisfied, reportedAt: at, reportedBy: by },
          ...(behind !== undefined && { behind }),
          ...(denied && { denied }),
          ...(evidence !== undefined && { evidence }),
        };
      };
      return { ...context, tally, conditions: context.conditions.map((c) => (c.id === id ? report(c) : c)) };
    }
    case 'recount':
      return { ...context, tally: event.tally };
    default:
      return context;
  }
}

const audit = (action: HoldAction) => ({ type: 'audit', params: { action: `escrow.${action}` } }) as const;
const emit = (event: Exclude<HoldAction, 'condition_reported' | 'recounted'>) =>
  ({ type: 'emit', params: { event: `escrow.${event}` } }) as const;
const clearTimer = { type: 'wakeAt', params: { at: null } } as const;
const setTimer = {
  type: 'wakeAt',
  params: ({ context }: { context: HoldContext }) => ({ at: dueAt('held', context) }),
} as const;

const definition = setup({
  types: { context: {} as HoldContext, events: {} as HoldEvent, input: {} as HoldInput },
  actions: {
    audit: (_, _params: { action: string }) => undefined,
    emit: (_, _params: { event: string }) => undefined,
    wakeAt: (_, _params: { at: number | null }) => undefined,
    note: assign(({ context, event }) => withReport(context, event)),
    stampRelease: assign(({ context, event }) => {
      // a release by time takes effect at that time, even if the timer fires late
      const met = metAt(context.release, context);
      const releasedAt = event.type === 'wake' && isTime(met) ? met : event.at;
      const executeBy = context.executeWithin === null ? context.expiresAt : releasedAt + context.executeWithin;
      return { releasedAt, executeBy };
    }),
    stampExpiry: assign(({ context }) => ({ endedAt: context.executeBy ?? context.expiresAt })),
    stampEnd: assign(({ event }) => ({ endedAt: event.at })),
  },
  guards: {
    /** The guards repeat the checks of `holdRefusal`: an event that it refuses must not change the machine either. */
    rejects: ({ context, event }) => mayVote(context, event) && event.type === 'vote' && event.decision === 'reject',
    votes: ({ context, event }) => mayVote(context, event),
    inTime: ({ context, event }) => event.at < (context.executeBy ?? context.expiresAt),
    approvesAndReleases: ({ context, event }) =>
      mayVote(context, event) &&
      event.type === 'vote' &&
      event.decision === 'approve' &&
      isReleased(withReport(context, event), event.at),
    listed: ({ context, event }) => mayReport(context, event),
    listedAndReleases: ({ context, event }) =>
      mayReport(context, event) && isReleased(withReport(context, event), event.at),
    countChanged: ({ context, event }) =>
      event.type === 'recount' && event.at < context.expiresAt && !sameTally(context.tally, event.tally),
    countReleases: ({ context, event }) =>
      event.type === 'recount' && event.at < context.expiresAt && isReleased(withReport(context, event), event.at),
    countWithdraws: ({ context, event }) =>
      event.type === 'recount' &&
      event.at < (context.executeBy ?? context.expiresAt) &&
      metAt(context.release, withReport(context, event)) > event.at,
    delayOver: ({ context, event }) => isReleased(context, event.at),
    overdue: ({ context, event }) => event.at >= (context.executeBy ?? context.expiresAt),
    sameAction: ({ context, event }) =>
      event.type === 'consume' &&
      event.at < (context.executeBy ?? context.expiresAt) &&
      event.agentId === context.agentId &&
      event.agentRole === context.agentRole &&
      event.actionHash === context.actionHash,
  },
});

function mayVote(context: HoldContext, event: HoldEvent): boolean {
  return (
    event.type === 'vote' &&
    event.barred === undefined &&
    event.at < context.expiresAt &&
    !context.votes.some(({ userId }) => userId === event.userId)
  );
}

function mayReport(context: HoldContext, event: HoldEvent): boolean {
  return (
    event.type === 'satisfy' &&
    event.barred === undefined &&
    event.at < context.expiresAt &&
    context.conditions.some(({ id }) => id === event.conditionId)
  );
}

function sameTally(a: Tally, b: Tally): boolean {
  const seats = ({ missing }: Tally) => missing?.map(({ group, count }) => `${group} ${count}`).join();
  // the missing seats are unknown until the first count
  const sameSeats = !a.missing || !b.missing || seats(a) === seats(b);
  const sameReports = (a.lapsed ?? []).join('\0') === (b.lapsed ?? []).join('\0');
  return a.approvals === b.approvals && a.seated === b.seated && sameSeats && sameReports;
}

export const holdMachine = definition.createMachine({
  id: 'escrow',
  context: ({ input: { conditions, ...input } }) => ({
    ...input,
    conditions: conditions.map((id) => ({ id, satisfied: false, reportedAt: null })),
    votes: [],
    // the first tally sets the seats of the quorum, if there is one
    tally: { approvals: 0, seated: false },
    releasedAt: null,
    executeBy: null,
    endedAt: null,
  }),
  initial: 'held',
  states: {
    held: {
      description: 'the action is waiting for the requirements of the hold',
      entry: [audit('created'), emit('created'), setTimer],
      on: {
        vote: [
          { guard: 'rejects', target: 'rejected', actions: ['note', audit('vote_cast'), emit('vote_cast')] },
          {
            guard: 'approvesAndReleases',
            target: 'released',
            actions: ['note', audit('vote_cast'), emit('vote_cast')],
          },
          { guard: 'votes', actions: ['note', audit('vote_cast'), emit('vote_cast'), setTimer] },
        ],
        satisfy: [
          { guard: 'listedAndReleases', target: 'released', actions: ['note', audit('condition_reported')] },
          { guard: 'listed', actions: ['note', audit('condition_reported'), setTimer] },
        ],
        recount: [
          { guard: 'countReleases', target: 'released', actions: ['note', audit('recounted')] },
          { guard: 'countChanged', actions: ['note', audit('recounted'), setTimer] },
        ],
        cancel: { guard: 'inTime', target: 'cancelled' },
        wake: [
          { guard: 'delayOver', target: 'released' },
          { guard: 'overdue', target: 'expired' },
        ],
      },
    },
    released: {
      description: 'the agent may perform the action once, until execute_by',
      entry: [
        'stampRelease',
        audit('released'),
        emit('released'),
        { type: 'wakeAt', params: ({ context }) => ({ at: context.executeBy }) },
      ],
      on: {
        consume: { guard: 'sameAction', target: 'consumed' },
        recount: { guard: 'countWithdraws', target: 'cancelled', actions: ['note', audit('recounted')] },
        cancel: { guard: 'inTime', target: 'cancelled' },
        wake: { guard: 'overdue', target: 'expired' },
      },
    },
    rejected: {
      description: 'an approver rejected it',
      type: 'final',
      entry: ['stampEnd', audit('rejected'), emit('rejected'), clearTimer],
    },
    consumed: {
      description: 'the release was used for the action',
      type: 'final',
      entry: ['stampEnd', audit('consumed'), emit('consumed'), clearTimer],
    },
    expired: {
      description: 'not released in time, or released and not used in time',
      type: 'final',
      entry: ['stampExpiry', audit('expired'), emit('expired'), clearTimer],
    },
    cancelled: {
      description: 'withdrawn by the proxy or an admin, or its approvals stopped counting before it was used',
      type: 'final',
      entry: ['stampEnd', audit('cancelled'), emit('cancelled'), clearTimer],
    },
  },
});

export type HoldSnapshot = SnapshotFrom<typeof holdMachine>;

export type HoldRefusal =
  | 'AGENT_MISMATCH'
  | 'ALREADY_CONSUMED'
  | 'ESCROW_EXPIRED'
  | 'HASH_MISMATCH'
  | 'INVALID_STATUS'
  | 'ALREADY_VOTED'
  | 'FORBIDDEN'
  | 'NOT_FOUND';

/**
 * Why the machine refuses an event: the first reason that applies; undefined if it accepts the event. It uses the state
 * of the hold at the time of the event, so that a late timer lets nothing through.
 *
 * - consume: AGENT_MISMATCH comes first, so that another agent learns nothing about the hold; then ALREADY_CONSUMED and
 *   ESCROW_EXPIRED, which no other request can fix; HASH_MISMATCH; and INVALID_STATUS for a hold that is not released.
 * - vote: INVALID_STATUS, ALREADY_VOTED, FORBIDDEN. satisfy: NOT_FOUND, INVALID_STATUS, FORBIDDEN. cancel: INVALID_STATUS.
 */
export function holdRefusal(
  snapshot: HoldSnapshot,
  event: HoldEvent,
): { code: HoldRefusal; detail: string } | undefined {
  const [{ value: state, context }] = elapse(snapshot, event.at);
  const refuse = (code: HoldRefusal, detail: string) => ({ code, detail });
  switch (event.type) {
    case 'consume':
      if (event.agentId !== context.agentId || event.agentRole !== context.agentRole) {
        return refuse('AGENT_MISMATCH', 'the hold was opened for another agent');
      }
      if (state === 'consumed') return refuse('ALREADY_CONSUMED', 'the hold was consumed already');
      if (state === 'expired') return refuse('ESCROW_EXPIRED', 'the hold has expired');
      if (event.actionHash !== context.actionHash) {
        return refuse('HASH_MISMATCH', 'the hold was opened for another request');
      }
      return state === 'released' ? undefined : refuse('INVALID_STATUS', `the hold is ${state}, not released`);
    case 'vote':
      if (state !== 'held') return refuse('INVALID_STATUS', `there is nothing to vote on: the hold is ${state}`);
      if (context.votes.some(({ userId }) => userId === event.userId)) {
        return refuse('ALREADY_VOTED', 'you have already voted on this hold');
      }
      return event.barred === undefined ? undefined : refuse('FORBIDDEN', event.barred);
    case 'satisfy':
      if (!context.conditions.some(({ id }) => id === event.conditionId)) {
        return refuse('NOT_FOUND', 'the hold has no such condition');
      }
      if (state !== 'held') return refuse('INVALID_STATUS', `the hold is ${state}, not held`);
      return event.barred === undefined ? undefined : refuse('FORBIDDEN', event.barred);
    case 'cancel':
      return state === 'held' || state === 'released'
        ? undefined
        : refuse('INVALID_STATUS', `there is nothing to cancel: the hold is ${state}`);
    case 'recount':
    case 'wake':
      return undefined;
  }
}

/** The columns that store a hold's machine. */
export interface StoredHold {
  state: string;
  context: unknown;
  version: number;
}

/** Maps version n to an upgrade of holds stored by version n to version n + 1. Entries are never removed. */
export type HoldUpgrades = Readonly<Record<number, (stored: { state: string; context: unknown }) => StoredHold>>;
const UPGRADES: HoldUpgrades = {};

/** Restores the machine from a stored hold, upgrading it if necessary. Throws if its version is unknown. */
export function restoreHold(stored: StoredHold, upgrades: HoldUpgrades = UPGRADES): HoldSnapshot {
  let { state, context, version } = stored;
  for (let upgrade = upgrades[version]; upgrade && version !== HOLD_MACHINE_VERSION; upgrade = upgrades[version]) {
    ({ state, context, version } = upgrade({ state, context }));
  }
  const known = HOLD_STATES.find((name) => name === state);
  if (version !== HOLD_MACHINE_VERSION || !known) {
    throw new Error(
      `a hold in state ${state} of machine version ${version} cannot be read by this version of the server`,
    );
  }
  return holdMachine.resolveState({ value: known, context: context as HoldContext });
}

/** The stored combinations that this version cannot read: checked at startup, so that an outdated server does not run. */
export function unreadableHolds(
  stored: readonly { version: number; state: string }[],
  upgrades: HoldUpgrades = UPGRADES,
): string[] {
  return stored
    .filter(({ version, state }) => {
      if (version === HOLD_MACHINE_VERSION) return !HOLD_STATES.some((name) => name === state);
      return upgrades[version] === undefined;
    })
    .map(({ version, state }) => `${state} of version ${version}`);
}

/** A new hold and its effects. Throws a RangeError if its requirement is met from the start. */
export function createHold(input: HoldInput): [HoldSnapshot, HoldEffect[]] {
  const [snapshot, actions] = initialTransition(holdMachine, input);
  if (metAt(input.release, snapshot.context) === -Infinity) throw new RangeError('the hold requires nothing');
  return [snapshot, effects(actions)];
}

/** One step. Call `holdRefusal` first: an event that it refuses does not change the machine. */
export function stepHold(snapshot: HoldSnapshot, event: HoldEvent): [HoldSnapshot, HoldEffect[]] {
  const [next, actions] = transition(holdMachine, snapshot, event);
  return [next, effects(actions)];
}

/** Applies the timers due by `at`, reporting each step to `each`. Call it before sending an event to a hold. */
export function elapse(
  snapshot: HoldSnapshot,
  at: number,
  each?: (event: HoldEvent, snapshot: HoldSnapshot) => void,
): [HoldSnapshot, HoldEffect[]] {
  let current = snapshot;
  const done: HoldEffect[] = [];
  for (;;) {
    const due = dueAt(current.value, current.context);
    if (due === null || due > at) return [current, done];
    const event = { type: 'wake', at } as const;
    const [next, more] = stepHold(current, event);
    if (next.value === current.value) return [current, done];
    done.push(...more);
    each?.(event, next);
    current = next;
  }
}

/** When the hold will be released and when it will end if no other event arrives; null for never. */
export function timeline(snapshot: HoldSnapshot): { releasesAt: number | null; endsAt: number | null } {
  const { value: state, context } = snapshot;
  if (state === 'released') return { releasesAt: null, endsAt: context.executeBy };
  if (state !== 'held') return { releasesAt: null, endsAt: null };
  const met = metAt(context.release, context);
  if (met >= context.expiresAt || !isTime(met)) return { releasesAt: null, endsAt: context.expiresAt };
  const [released] = stepHold(snapshot, { type: 'wake', at: met });
  return { releasesAt: met, endsAt: released.context.executeBy };
}

/** The named actions as plain data, without the functions that XState attaches, which must not be stored. */
function effects(actions: readonly { type: string; params?: unknown }[]): HoldEffect[] {
  return actions
    .filter(({ type }) => ['audit', 'emit', 'wakeAt'].includes(type))
    .map(({ type, params }) => ({ type, params }) as HoldEffect);
}
