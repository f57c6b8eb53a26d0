import { type AnyActorScope, assign, createActor, initialTransition, type SnapshotFrom, setup } from 'xstate';

/**
 * The lifecycle of a delivery: one event for one destination. It waits for each attempt in `retrying`, including the
 * first; `wakeAt` is when the next attempt is due. Time enters as the `at` of an event in milliseconds and randomness as
 * its `jitter`, so that the machine is a pure function of stored state and event.
 */
export const DELIVERY_MACHINE_VERSION = 1;

export const DELIVERY_STATES = ['retrying', 'delivered', 'failed'] as const;
export type DeliveryState = (typeof DELIVERY_STATES)[number];

/** The outcome of an attempt, as named in the specification. */
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

/** The pause after each failed attempt; the last one repeats. */
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
/** Each pause varies by up to this fraction, so that deliveries that failed together are not retried together. */
export const JITTER = 0.2;
/** Attempts continue for this long; the last one is made at the end of the window. */
export const WINDOW_MS = 24 * HOUR;

export interface DeliveryContext {
  /** When it was queued, or requeued manually: the start of its 24 hours. */
  startedAt: number;
  /** Total attempts. */
  attempts: number;
  /** Failed attempts since `startedAt`. */
  failures: number;
  /** When the next attempt is due; null when there is none. */
  nextAt: number | null;
  /** Why it was stopped without another attempt. */
  stopped?: string;
}

export type DeliveryEvent =
  | {
      type: 'attempted';
      at: number;
      result: DeliveryResult;
      /** A random number from 0 to 1. */
      jitter: number;
      /** Milliseconds requested by the destination; the pause is at least this long. */
      retryAfter?: number;
    }
  /** The subscription was paused or disabled, or its queue was full, or no longer kept it. */
  | { type: 'stop'; at: number; reason: string }
  /** The subscription was resumed after a pause that kept this; no attempts were made meanwhile. */
  | { type: 'resume'; at: number }
  /** A person requested an immediate resend. */
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
    /** Its 24 hours went on: if they are over, this attempt is the last. */
    makeDue: assign(({ event }) => ({ nextAt: event.at })),
    restart: assign(({ event }) => ({
      startedAt: event.at,
      failures: 0,
      nextAt: event.at,
      stopped: undefined as unknown as string,
    })),
  },
  guards: {
    accepted: ({ event }) => event.type === 'attempted' && event.result === 'DELIVERED',
    /** Never retried: the egress guard does not allow this address. */
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
      description: 'waiting for the next attempt, for the current one to finish, or for the subscription to be resumed',
      entry: wake,
      on: {
        attempted: [
          { guard: 'accepted', target: 'delivered', actions: 'countLast' },
          { guard: 'blocked', target: 'failed', actions: 'countLast' },
          { guard: 'tooLate', target: 'failed', actions: 'countLast' },
          { actions: ['countFailure', wake] },
        ],
        stop: { target: 'failed', actions: 'noteStop' },
        resume: { actions: ['makeDue', wake] },
        redeliver: { actions: ['restart', wake] },
      },
    },
    delivered: {
      description: 'accepted by the destination',
      entry: wake,
      on: { redeliver: { target: 'retrying', actions: 'restart' } },
    },
    failed: {
      description:
        'no further attempts: 24 hours passed, the destination is blocked, or the subscription was paused or disabled',
      entry: wake,
      on: { redeliver: { target: 'retrying', actions: 'restart' } },
    },
  },
});

export type DeliverySnapshot = SnapshotFrom<typeof deliveryMachine>;

/** The columns that store a delivery's machine. */
export interface StoredDelivery {
  state: string;
  context: unknown;
  version: number;
}

/** Restores the machine from a stored delivery. Throws if this version cannot read it. */
export function restoreDelivery(stored: StoredDelivery): DeliverySnapshot {
  const known = DELIVERY_STATES.find((name) => name === stored.state);
  if (stored.version !== DELIVERY_MACHINE_VERSION || !known) {
    throw new Error(
      `a delivery in state ${stored.state} of machine version ${stored.version} cannot be read by this version of the server`,
    );
  }
  return deliveryMachine.resolveState({ value: known, context: stored.context as DeliveryContext });
}

/** A new delivery, due immediately. */
export function createDelivery(at: number): [DeliverySnapshot, DeliveryEffect[]] {
  const [snapshot, actions] = initialTransition(deliveryMachine, { at });
  return [snapshot, effects(actions)];
}

/** Never started. The machine spawns and invokes nothing, so that all steps can be taken in the scope of one actor. */
const actor = createActor(deliveryMachine, { input: { at: 0 } });

/**
 * One step. An event that the state does not accept changes nothing and has no effects.
 *
 * This is XState's `transition`, which would make an actor for each step. That costs five times as much as the step, and
 * a step is taken for each attempt.
 */
export function stepDelivery(snapshot: DeliverySnapshot, event: DeliveryEvent): [DeliverySnapshot, DeliveryEffect[]] {
  const actions: { type: string; params?: unknown }[] = [];
  const nothing = () => undefined;
  const scope: AnyActorScope = {
    ...{ self: actor, system: actor.system, id: '', sessionId: '' },
    ...{ logger: nothing, defer: nothing, emit: nothing, stopChild: nothing },
    actionExecutor: (action) => actions.push(action),
  };
  return [deliveryMachine.transition(snapshot, event, scope), effects(actions)];
}

function effects(actions: readonly { type: string; params?: unknown }[]): DeliveryEffect[] {
  return actions
    .filter(({ type }) => type === 'wakeAt')
    .map(({ type, params }) => ({ type, params }) as DeliveryEffect);
}
