import fc from 'fast-check';
import { expect, onTestFinished, test, vi } from 'vitest';
import { type LimitHit, MAX_CHOSEN } from '../../server/policy/evaluation/limits.ts';
import { Counters } from '../../server/proxy/counters.ts';

const limit = (key: string, more: Partial<LimitHit> = {}): LimitHit => ({
  ...{ rule_id: 'p#pay', kind: 'rate', key, limit: 3, units: 1, window_seconds: 60, chosen: true },
  ...more,
});
/** Whether it was taken. */
const take = (counters: Counters, agent: string, now: number, ...limits: LimitHit[]) =>
  counters.take(limits, [], agent, now).exceeded.size === 0;
const note = (counters: Counters, agent: string, now: number, endsAt: number, ...limits: LimitHit[]) =>
  counters.note(new Map(limits.map((one) => [one, endsAt])), agent, now);

const step = fc.record({
  agent: fc.constantFrom('a', 'b', 'c'),
  key: fc.constantFrom('x', 'y'),
  chosen: fc.boolean(),
  wait: fc.nat(20_000),
  what: fc.constantFrom('take', 'take', 'take', 'note', 'give back'),
});

test('no window has more than its limit, whichever agents take of it', () => {
  fc.assert(
    fc.property(fc.array(step, { maxLength: 200 }), (steps) => {
      const counters = new Counters();
      /** By key: when its window ends, and what was taken in it. */
      const model = new Map<string, { endsAt: number; taken: number }>();
      const backs: { name: string; endsAt: number; giveBack: () => void }[] = [];
      let now = 1_000_000;
      for (const { agent, key, chosen, wait, what } of steps) {
        now += wait;
        const name = `${key}-${chosen}`;
        const one = limit(name, { chosen });
        const open = model.get(name);
        const window = open && open.endsAt > now ? open : { endsAt: now + 60_000, taken: 0 };
        if (what === 'give back') {
          const back = backs.pop();
          if (!back) continue;
          back.giveBack();
          const of = model.get(back.name)!;
          if (of.endsAt === back.endsAt) of.taken = Math.max(0, of.taken - 1);
          continue;
        }
        if (what === 'note') {
          const giveBack = note(counters, agent, now, window.endsAt, one);
          backs.push({ name, endsAt: window.endsAt, giveBack });
        } else {
          const { exceeded, giveBack } = counters.take([one], [], agent, now);
          expect(exceeded.size === 0).toBe(window.taken < 3);
          if (exceeded.size > 0) continue;
          backs.push({ name, endsAt: window.endsAt, giveBack });
        }
        window.taken++;
        model.set(name, window);
      }
    }),
  );
});

test('what the control plane granted counts in its window, which may have begun before', () => {
  const counters = new Counters();
  note(counters, 'a', 50_000, 60_000, limit('x'));
  note(counters, 'b', 61_000, 120_000, limit('x'));
  note(counters, 'a', 62_000, 120_003, limit('x'));
  expect(take(counters, 'c', 115_000, limit('x'))).toBe(true);
  expect(take(counters, 'c', 119_000, limit('x'))).toBe(false);
  expect(take(counters, 'c', 120_003, limit('x'))).toBe(true);
});

test('what was counted alone is not forgotten for a window of the control plane that began elsewhere', () => {
  for (const endsAt of [15_000, 95_000]) {
    const counters = new Counters();
    for (let n = 0; n < 3; n++) expect(take(counters, 'a', n, limit('x'))).toBe(true);
    note(counters, 'b', 1_000, endsAt, limit('x'));
    expect(take(counters, 'a', 2_000, limit('x'))).toBe(false);
    expect(take(counters, 'a', 59_000, limit('x'))).toBe(false);
    expect(take(counters, 'a', 96_000, limit('x'))).toBe(true);
  }
});

test('an agent that sends endless values ends only itself, until the window of what it opened ends', () => {
  const counters = new Counters();
  for (let n = 0; n < MAX_CHOSEN; n++) expect(take(counters, 'a', n, limit(`v${n}`))).toBe(true);
  expect(take(counters, 'a', 20_000, limit('one more'))).toBe(false);
  expect(take(counters, 'a', 20_000, limit('v7'))).toBe(true);
  expect(take(counters, 'a', 20_000, limit('one more', { rule_id: 'p#other' }))).toBe(true);
  expect(take(counters, 'b', 20_000, limit('one more'))).toBe(true);
  expect(take(counters, 'b', 20_000, limit('v7'))).toBe(true);
  // what others took of it is not forgotten
  expect(take(counters, 'b', 20_000, limit('v7'))).toBe(false);
  expect(take(counters, 'a', 60_000, limit('another'))).toBe(true);
});

test('without room a value is refused, and none is forgotten while its window is open', () => {
  const counters = new Counters({ most: 10 });
  const agents = Array.from({ length: 20 }, (_, n) => `agent-${n}`);
  const open = agents.filter((agent, n) => take(counters, agent, n, limit(agent, { limit: 1 })));
  expect(open.length).toBeGreaterThan(3);
  expect(open.length).toBeLessThan(10);
  for (const agent of open) expect(take(counters, 'other', 1_000, limit(agent, { limit: 1 }))).toBe(false);
  // what agents cannot choose always has room
  expect(take(counters, 'a', 1_000, limit('a', { chosen: false }))).toBe(true);
  // what cannot be noted cannot be counted afterwards either
  note(counters, 'a', 1_000, 50_000, limit('granted'));
  expect(take(counters, 'a', 1_000, limit('granted'))).toBe(false);
  expect(take(counters, 'b', 70_000, limit('granted'))).toBe(true);
});

test('one agent with many rules leaves room for the values of all others', () => {
  const counters = new Counters({ most: 1000 });
  const open = (agent: string, now: number) => {
    let opened = 0;
    for (let n = 0; n < 1000; n++) {
      if (take(counters, agent, now, limit(`${agent}-${n}`, { rule_id: `p#${n % 50}` }))) opened++;
    }
    return opened;
  };
  expect(open('a', 0)).toBeGreaterThan(400);
  expect(open('b', 0)).toBeGreaterThan(150);
  expect(open('a', 1_000)).toBeGreaterThan(400);
  expect(take(counters, 'a', 1_000, limit('one more'))).toBe(false);
  expect(take(counters, 'c', 1_000, limit('one more'))).toBe(true);
  // what others opened does not count for an agent that takes of it, and what has ended counts for nobody
  for (let n = 0; n < 1000; n++) take(counters, 'd', 90_000, limit('v'));
  expect(open('a', 91_000)).toBeGreaterThan(400);
  expect(open('e', 91_000)).toBeGreaterThan(150);
});

test('what has ended is removed little by little: no call stands still for it', () => {
  const counters = new Counters();
  for (let n = 0; n < 5_000; n++) take(counters, 'a', n / 1_000, limit(`v${n}`));
  const removed = vi.spyOn(Map.prototype, 'delete');
  onTestFinished(() => removed.mockRestore());
  let most = 0;
  for (let n = 0; n < 200; n++) {
    removed.mockClear();
    take(counters, 'b', 70_000 + 2_000 * n, limit('w'));
    most = Math.max(most, removed.mock.calls.length);
  }
  removed.mockRestore();
  expect(most).toBeGreaterThan(0);
  expect(most).toBeLessThan(100);
});
