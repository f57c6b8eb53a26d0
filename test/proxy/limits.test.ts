import { expect, test } from 'vitest';
import { createLog } from '../../server/lib/log.ts';
import type { LimitHit } from '../../server/policy/evaluation/limits.ts';
import type { LimitResult } from '../../server/proxy/control-plane.ts';
import { Counters } from '../../server/proxy/counters.ts';
import { SharedLimits } from '../../server/proxy/limits.ts';
import { TestClock } from '../helpers/server.ts';

const rate = (rule_id: string, limit: number): LimitHit => ({
  ...{ rule_id, kind: 'rate', key: 'k', limit, units: 1, window_seconds: 60, chosen: false },
});

test('a call that was taken ahead in a window that is over is no call of the next one', async () => {
  const clock = new TestClock();
  const trips: { answer: (results: LimitResult[]) => void; takes: { limits: LimitHit[] }[] }[] = [];
  const control = {
    takeLimits: (takes: never[]) =>
      new Promise<LimitResult[]>((answer) => {
        trips.push({ answer, takes });
      }),
  };
  const limits = new SharedLimits({
    ...{ control: control as never, counters: new Counters(), clock, log: createLog('silent'), away: 'deny' },
  });
  const take = (...of: LimitHit[]) => limits.take({ limits: of, checked: [] } as never, 'bot');
  /** The control plane gives what is asked for, and `extra` calls more, in a window that has just begun. */
  const give = (extra: number) => {
    const { takes, answer } = trips.at(-1)!;
    answer(
      takes.map((one) => ({
        taken: one.limits.map(({ rule_id, kind, key }) => ({
          ...{ rule_id, kind, key, units: 1 + extra, ends_in_ms: 60_000 },
        })),
      })) as never,
    );
  };
  const high = rate('high', 200);
  const first = take(high);
  give(4);
  await first;
  const used = await take(high);
  expect(trips).toHaveLength(1);
  clock.advance(60_001);
  const next = take(high);
  expect(trips).toHaveLength(2);
  give(2);
  await next;
  // what was decided in the window before could not be recorded, or was not done
  if ('unavailable' in used) throw new Error(used.unavailable);
  await used.giveBack();
  for (let n = 0; n < 2; n++) await take(high);
  expect(trips, 'what was given, and not one more').toHaveLength(2);
  void take(high).catch(() => undefined);
  expect(trips).toHaveLength(3);
});
