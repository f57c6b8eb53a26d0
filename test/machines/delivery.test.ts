import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { transition } from 'xstate';
import { chartOf } from '../../machines/chart.ts';
import {
  BACK_OFF,
  createDelivery,
  DELIVERY_MACHINE_VERSION,
  DELIVERY_STATES,
  type DeliveryEvent,
  type DeliveryResult,
  type DeliverySnapshot,
  deliveryMachine,
  JITTER,
  RESULTS,
  restoreDelivery,
  stepDelivery,
  WINDOW_MS,
} from '../../machines/delivery.ts';
import { runs } from '../siege/rounds.ts';

const START = 1_750_000_000_000;
const attempted = (at: number, result: DeliveryResult, jitter = 0.5, retryAfter?: number): DeliveryEvent => ({
  type: 'attempted',
  at,
  result,
  jitter,
  ...(retryAfter !== undefined && { retryAfter }),
});
const failure = fc.constantFrom(...RESULTS.filter((r) => r !== 'DELIVERED' && r !== 'DESTINATION_BLOCKED'));
const stored = ({ value, context }: DeliverySnapshot) =>
  restoreDelivery({
    state: value,
    context: JSON.parse(JSON.stringify(context)),
    version: DELIVERY_MACHINE_VERSION,
  });

describe('the machine of deliveries', () => {
  test('is due immediately at first', () => {
    const [snapshot, effects] = createDelivery(START);
    expect(snapshot.value).toBe('retrying');
    expect(effects).toEqual([{ type: 'wakeAt', params: { at: START } }]);
  });

  test('waits by the contract’s back-off, and fails when 24 hours are over', () => {
    let [snapshot] = createDelivery(START);
    const pauses: number[] = [];
    let at = START;
    while (snapshot.value === 'retrying') {
      [snapshot] = stepDelivery(snapshot, attempted(at, 'TIMEOUT'));
      if (snapshot.context.nextAt === null) break;
      pauses.push(snapshot.context.nextAt - at);
      at = snapshot.context.nextAt;
    }
    expect(pauses.slice(0, -1)).toEqual(BACK_OFF);
    expect(at).toBe(START + WINDOW_MS);
    expect(snapshot.value).toBe('failed');
    expect(snapshot.context).toMatchObject({ attempts: 12, nextAt: null });
  });

  test('with failures only, at any times and random delays, makes each attempt in its window and ends', () => {
    fc.assert(
      fc.property(
        fc.array(fc.record({ late: fc.nat(10_000), jitter: fc.double({ min: 0, max: 1, noNaN: true }), failure }), {
          minLength: 40,
          maxLength: 40,
        }),
        (attempts) => {
          let [snapshot] = createDelivery(START);
          let due = START;
          let made = 0;
          for (const { late, jitter, failure } of attempts) {
            if (snapshot.value !== 'retrying') break;
            expect(due).toBeLessThanOrEqual(START + WINDOW_MS);
            const at = due + late;
            [snapshot] = stepDelivery(stored(snapshot), attempted(at, failure, jitter));
            const { nextAt } = snapshot.context;
            if (nextAt !== null && nextAt < START + WINDOW_MS) {
              const pause = BACK_OFF[Math.min(made, BACK_OFF.length - 1)]!;
              expect(nextAt - at).toBeGreaterThanOrEqual(pause * (1 - JITTER) - 1);
              expect(nextAt - at).toBeLessThanOrEqual(pause * (1 + JITTER) + 1);
            }
            made++;
            due = nextAt ?? due;
          }
          expect(snapshot.value).toBe('failed');
          expect(snapshot.context.attempts).toBe(made);
          expect(made).toBeGreaterThanOrEqual(11);
          expect(made).toBeLessThanOrEqual(14);
        },
      ),
    );
  });

  test('waits as long as the destination asks, but not past its window', () => {
    const [snapshot] = createDelivery(START);
    const [hour] = stepDelivery(snapshot, attempted(START, 'DESTINATION_ERROR', 0.5, 3600_000));
    expect(hour.context.nextAt).toBe(START + 3600_000);
    const [days] = stepDelivery(snapshot, attempted(START, 'DESTINATION_ERROR', 0.5, 10 * WINDOW_MS));
    expect(days.context.nextAt).toBe(START + WINDOW_MS);
  });

  test('keeps its promises on any walk', () => {
    const event = fc.oneof(
      fc.record({
        type: fc.constant('attempted' as const),
        result: fc.constantFrom(...RESULTS),
        jitter: fc.double({ min: 0, max: 1, noNaN: true }),
      }),
      fc.record({ type: fc.constant('stop' as const), reason: fc.string() }),
      fc.record({ type: fc.constantFrom('redeliver' as const, 'resume' as const) }),
    );
    const walk = fc.array(fc.tuple(fc.nat(12 * 3600_000), event), { maxLength: 60 });
    fc.assert(
      fc.property(walk, (steps) => {
        let [snapshot] = createDelivery(START);
        let at = START;
        for (const [later, event] of steps) {
          at += later;
          const before = snapshot;
          const [next, effects] = stepDelivery(stored(before), { ...event, at } as DeliveryEvent);
          // a step is XState's own
          const [theirs, actions] = transition(deliveryMachine, stored(before), { ...event, at } as DeliveryEvent);
          expect([next.value, next.context]).toEqual([theirs.value, theirs.context]);
          expect(effects).toEqual(
            actions.filter(({ type }) => type === 'wakeAt').map(({ type, params }) => ({ type, params })),
          );
          const { nextAt, attempts, startedAt } = next.context;
          // something is due if and only if it is retrying, and the timer is always told
          expect(nextAt !== null).toBe(next.value === 'retrying');
          // the one attempt after a long pause is due at once
          if (nextAt !== null) expect(nextAt).toBeLessThanOrEqual(Math.max(startedAt + WINDOW_MS, at));
          if (effects.length > 0) expect(effects.at(-1)).toEqual({ type: 'wakeAt', params: { at: nextAt } });
          if (event.type === 'attempted' && before.value === 'retrying') {
            expect(attempts).toBe(before.context.attempts + 1);
            if (event.result === 'DELIVERED') expect(next.value).toBe('delivered');
            if (event.result === 'DESTINATION_BLOCKED') expect(next.value).toBe('failed');
          } else {
            expect(attempts).toBe(before.context.attempts);
          }
          // only a person brings back what has ended
          if (before.value !== 'retrying' && event.type !== 'redeliver') {
            expect(effects).toEqual([]);
            expect(next.value).toBe(before.value);
            expect(next.context).toEqual(stored(before).context);
          }
          expect(startedAt).toBe(event.type === 'redeliver' ? at : before.context.startedAt);
          if (event.type === 'resume' && before.value === 'retrying') expect(nextAt).toBe(at);
          if (event.type === 'redeliver') expect(next).toMatchObject({ value: 'retrying', context: { nextAt: at } });
          if (event.type === 'stop') expect(next.value).not.toBe('retrying');
          snapshot = next;
        }
      }),
      { numRuns: runs(20_000, 200) },
    );
  });

  test('refuses to read what another version or state stored', () => {
    const { context } = createDelivery(START)[0];
    expect(() => restoreDelivery({ state: 'sending', context, version: 1 })).toThrow(/sending/);
    expect(() => restoreDelivery({ state: 'retrying', context, version: 99 })).toThrow(/99/);
  });

  test('can be drawn: every state is present, every guard and effect has a name', () => {
    const chart = chartOf(deliveryMachine);
    expect(chart.states.map(({ id }) => id)).toEqual(DELIVERY_STATES);
    expect(chart.transitions.filter(({ event }) => event === 'attempted').map(({ guard }) => guard)).toEqual([
      'accepted',
      'blocked',
      'tooLate',
      undefined,
    ]);
  });
});
