import { expect, test } from 'vitest';
import { storyOf } from '../../web/lib/session-story.ts';

type Page = Parameters<typeof storyOf>[0][number];

const at = (minute: number) => new Date(Date.UTC(2026, 10, 23, 12, minute)).toISOString();
const decision = (minute: number, more: object = {}) => ({ id: `e${minute}`, created_at: at(minute), ...more });
const hold = (id: string, more: object = {}) => ({
  ...{ id, votes: [], conditions: [], estimated_value: 900, value_currency: 'EUR' },
  ...more,
});
const page = (entries: object[], more: object = {}) =>
  ({ entries, holds: [], stops: [], has_more: false, ...more }) as unknown as Page;
const told = (pages: Page[]) => storyOf(pages).map(({ kind, at: time, key }) => `${time.slice(14, 16)} ${kind} ${key}`);

test('what people did stands between the decisions, in the order of time', () => {
  const one = hold('h', { votes: [{ user_id: 'ann', at: at(3) }], released_at: at(3), consumed_at: at(5) });
  const stop = { id: 'stp', created_at: at(4), ended_at: at(9) };
  const entries = [decision(1), decision(2, { escrow_id: 'h' }), decision(6, { escrow_id: 'h' })];
  expect(told([page(entries, { holds: [one], stops: [stop] })])).toEqual([
    '01 decision e1',
    '02 decision e2',
    '03 vote h ann',
    '03 end h released',
    '04 stop stp',
    '05 end h consumed',
    '06 decision e6',
    '09 stop stp end',
  ]);
});

test('while there is more, nothing stands after the last decision that is loaded, and each thing is told once', () => {
  const one = hold('h', { consumed_at: at(5) });
  const first = page([decision(1), decision(2, { escrow_id: 'h' })], { holds: [one], has_more: true });
  expect(told([first])).toEqual(['01 decision e1', '02 decision e2']);
  const second = page([decision(6, { escrow_id: 'h' })], { holds: [one] });
  expect(told([first, second])).toEqual(['01 decision e1', '02 decision e2', '05 end h consumed', '06 decision e6']);
});

test('pauses are measured, and what is used is summed up for each currency', () => {
  const holds = [
    hold('a', { consumed_at: at(1) }),
    hold('b', { consumed_at: at(2), estimated_value: 5, value_currency: 'USD' }),
    hold('c', { consumed_at: at(9), estimated_value: 100 }),
    hold('d', { consumed_at: at(10), estimated_value: null }),
    hold('e', { rejected_at: at(11) }),
  ];
  const items = storyOf([page([], { holds })]);
  expect(items.map((item) => (item.kind === 'end' ? item.sum : 'none'))).toEqual([900, 5, 1000, undefined, undefined]);
  expect(items.map(({ gapMs }) => gapMs / 60_000)).toEqual([0, 1, 7, 1, 1]);
});
