import { assign, initialTransition, type SnapshotFrom, setup, transition } from 'xstate';

/**
 * The life of a delivery: one event on its way to one destination. Between attempts it waits in `retrying`, also for the
 * first; `wakeAt` is when the next attempt is due. Time enters as the `at` of an event in milliseconds, chance as its
 * `jitter`, so that what happens is a function of what is stored and of what came.
 */
export const DELIVERY_MACHINE_VERSION = 1;

export const DELIVERY_STATES = ['retrying', 'delivered', 'failed'] as const;
export type DeliveryState = (typeof DELIVERY_STATES)[number];

/** What came of an attempt, in the words of the specification. */
export const RESULTS = [
  'DELIVERED',
  'DESTINATION_BLOCKED',
  'TIMEOUT',
  'DNS_ERROR',
  'TLS_ERROR',
  'CONNECTION_FAILED',
  'REJECTED_BY_DESTINATION',
  'NOT_FOUND',
  'DESTINATION_ERROR',
] as const;
export type DeliveryResult = (typeof RESULTS)[number];

const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;

/** From each failed attempt to the next one; the last repeats. */
export const BACK_OFF: readonly number[] = [
  5 * SECOND,
  30 * SECOND,
  2 * MINUTE,
  10 * MINUTE,
  30 * MINUTE,
  HOUR,
  2 * HOUR,
  4 * HOUR,
  6 * HOUR,
  8 * HOUR,
];
/** Each pause is up to this part longer or shorter, so that what failed together does not come back together. */
export const JITTER = 0.2;
/** No attempt begins later than this after the delivery began; the last one is made at the end of it. */
export const WINDOW_MS = 24 * HOUR;

export interface DeliveryContext {
  /** When it was queued, or queued again by hand: where its 24 hours begin. */
  startedAt: number;
  /** Attempts in all. */
  attempts: number;
  /** Failed attempts since `startedAt`. */
  failures: number;
  /** When the next attempt is due; null when there is none. */
  nextAt: number | null;
  /** Why it failed without an attempt. */
  stopped?: string;
}

export type DeliveryEvent =
  | {
      type: 'attempted';
      at: number;
      result: DeliveryResult;
      /** From 0 to 1: where in the jitter the next pause lies. */
      jitter: number;
      /** Milliseconds that the destination asks for; the pause is not shorter. */
      retryAfter?: number;
    }
  /** The subscription was paused, or can take nothing any more. */
  | { type: 'stop'; at: number; reason: string }
  /** Somebody wants it sent again, now. */
  | { type: 'redeliver'; at: number };

export type DeliveryEffect = { type: 'wakeAt'; params: { at: number | null } };

function nextAttempt(context: DeliveryContext, event: DeliveryEvent): number {
  if (event.type !== 'attempted') return event.at;
  const pause = BACK_OFF[Math.min(context.failures, BACK_OFF.length - 1)]!;
  const jittered = pause * (1 - JITTER + 2 * JITTER * event.jitter);
  return Math.min(event.at + Math.max(jittered, event.retryAfter ?? 0), context.startedAt + WINDOW_MS);
}

const wake = {
  type: 'wakeAt',
  params: ({ context }: { context: DeliveryContext }) => ({ at: context.nextAt }),
} as const;

const definition = setup({
  types: { context: {} as DeliveryContext, events: {} as DeliveryEvent, input: {} as { at: number } },
  actions: {
    wakeAt: (_, _params: { at: number | null }) => undefined,
    countFailure: assign(({ context, event }) => ({
      attempts: context.attempts + 1,
      failures: context.failures + 1,
      nextAt: nextAttempt(context, event),
    })),
    countLast: assign(({ context }) => ({ attempts: context.attempts + 1, nextAt: null })),
    noteStop: assign(({ event }) => ({ nextAt: null, ...(event.type === 'stop' && { stopped: event.reason }) })),
    beginAgain: assign(({ event }) => ({
      startedAt: event.at,
      failures: 0,
      nextAt: event.at,
      stopped: undefined as unknown as string,
    })),
  },
  guards: {
    accepted: ({ event }) => event.type === 'attempted' && event.result === 'DELIVERED',
    /** Blocked now is blocked: the address is one that nobody may make this server dial. */
    blocked: ({ event }) => event.type === 'attempted' && event.result === 'DESTINATION_BLOCKED',
    tooLate: ({ context, event }) => event.at >= context.startedAt + WINDOW_MS,
  },
});

export const deliveryMachine = definition.createMachine({
  id: 'delivery',
  context: ({ input }) => ({ startedAt: input.at, attempts: 0, failures: 0, nextAt: input.at }),
  initial: 'retrying',
  states: {
    retrying: {
      description: 'waits for its next attempt, or for the end of the one under way',
      entry: wake,
      on: {
        attempted: [
          { guard: 'accepted', target: 'delivered', actions: 'countLast' },
          { guard: 'blocked', target: 'failed', actions: 'countLast' },
          { guard: 'tooLate', target: 'failed', actions: 'countLast' },
          { actions: ['countFailure', wake] },
        ],
        stop: { target: 'failed', actions: 'noteStop' },
        redeliver: { actions: ['beginAgain', wake] },
      },
    },
    delivered: {
      description: 'the destination has accepted it',
      entry: wake,
      on: { redeliver: { target: 'retrying', actions: 'beginAgain' } },
    },
    failed: {
      description: 'no attempt follows: 24 hours are over, the destination is blocked, or the subscription was paused',
      entry: wake,
      on: { redeliver: { target: 'retrying', actions: 'beginAgain' } },
    },
  },
});

export type DeliverySnapshot = SnapshotFrom<typeof deliveryMachine>;

/** What the database keeps of a delivery's machine. */
export interface StoredDelivery {
  state: string;
  context: unknown;
  version: number;
}

/** A stored delivery as a snapshot of the machine. Throws when this program cannot read it. */
export function restoreDelivery(stored: StoredDelivery): DeliverySnapshot {
  const known = DELIVERY_STATES.find((name) => name === stored.state);
  if (stored.version !== DELIVERY_MACHINE_VERSION || !known) {
    throw new Error(`a delivery in state ${stored.state} of machine version ${stored.version} is unknown here`);
  }
  return deliveryMachine.resolveState({ value: known, context: stored.context as DeliveryContext });
}

/** A new delivery, due at once. */
export function createDelivery(at: number): [DeliverySnapshot, DeliveryEffect[]] {
  const [snapshot, actions] = initialTransition(deliveryMachine, { at });
  return [snapshot, effects(actions)];
}

/** One step. On an event that its state does not take the machine stays where it is, and there are no effects. */
export function stepDelivery(snapshot: DeliverySnapshot, event: DeliveryEvent): [DeliverySnapshot, DeliveryEffect[]] {
  const [next, actions] = transition(deliveryMachine, snapshot, event);
  return [next, effects(actions)];
}

function effects(actions: readonly { type: string; params?: unknown }[]): DeliveryEffect[] {
  return actions
    .filter(({ type }) => type === 'wakeAt')
    .map(({ type, params }) => ({ type, params }) as DeliveryEffect);
}
