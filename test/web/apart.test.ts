import { expect, test } from 'vitest';
import { type Facet, setApart } from '../../web/lib/apart.ts';

type Counts = Parameters<typeof setApart>[0];

/** Counts of so many decisions; the fields that are not given have one value each. */
function counts(matching: number, facets: Partial<Record<Facet, Record<string, number>>>, more: object = {}): Counts {
  const one = (field: Facet) =>
    Object.entries(facets[field] ?? { same: matching }).map(([value, count]) => ({ value, count }));
  const names = ['agent_id', 'agent_role', 'tool_name', 'tool_server', 'rule_id', 'policy_id', 'proxy_id'] as const;
  return {
    ...{ records: matching, counted: matching, matching },
    facets: {
      decision: [],
      ...Object.fromEntries(names.map((name) => [name, one(name)])),
    } as unknown as Counts['facets'],
    ...more,
  };
}
const FIELDS = ['agent_id', 'tool_name', 'proxy_id'] as const;
const apart = (selection: Counts, others: Counts, within = true) =>
  setApart(selection, others, { within, fields: FIELDS })?.map(
    ({ field, value, here, there }) => `${field} ${value} ${Math.round(here * 100)} ${Math.round(there * 100)}`,
  );

test('what most of a selection has and hardly any other does comes first, and what it lacks is named too', () => {
  const all = counts(1000, { agent_id: { clerk: 880, night: 120 }, tool_name: { read: 700, wire: 300 } });
  const denied = counts(100, { agent_id: { night: 98, clerk: 2 }, tool_name: { wire: 60, read: 40 } });
  expect(apart(denied, all)).toEqual([
    'agent_id night 98 2',
    'agent_id clerk 2 98',
    'tool_name wire 60 27',
    'tool_name read 40 73',
  ]);
});

test('nothing stands out of what is alike, nor of what chance makes, and of too few nothing is said', () => {
  const half = { agent_id: { a: 500, b: 500 } };
  expect(apart(counts(100, { agent_id: { a: 52, b: 48 } }), counts(1000, half))).toEqual([]);
  // a share that would count among a thousand, but not among twelve
  expect(apart(counts(12, { agent_id: { a: 9, b: 3 } }), counts(1000, half))).toEqual([]);
  expect(apart(counts(600, { agent_id: { a: 450, b: 150 } }), counts(1200, { agent_id: { a: 600, b: 600 } }))).toEqual([
    'agent_id a 75 25',
    'agent_id b 25 75',
  ]);
  expect(apart(counts(9, { agent_id: { a: 9 } }), counts(1000, half))).toBeUndefined();
  expect(apart(counts(995, half), counts(1000, half))).toBeUndefined();
  // a sample of so many saw nine of them
  const sampled = counts(900, { agent_id: { a: 900 } }, { records: 500_000, counted: 5000 });
  expect(apart(sampled, counts(500_000, half, { counted: 5000 }))).toBeUndefined();
});

test('what the counts do not name is taken at the number that makes the difference smallest', () => {
  // of twelve hundred, two values are named: another can have as many as the rarest of them, and no more than are left
  const others = counts(1200, { agent_id: { a: 600, b: 200 } });
  expect(apart(counts(100, { agent_id: { c: 100 } }), others, false)).toEqual(['agent_id c 100 17', 'agent_id a 0 50']);
  const complete = counts(1200, { agent_id: { a: 1000, b: 200 } });
  expect(apart(counts(100, { agent_id: { c: 100 } }), complete, false)).toEqual([
    'agent_id c 100 0',
    'agent_id a 0 83',
  ]);
});
