import { expect, test } from 'vitest';
import { MOST_LEFT_OUT } from '../../server/domain/decision.ts';
import { askedBy, isFull, not, only, shownAgain } from '../../web/lib/decision-filter.ts';
import { lateness } from '../../web/lib/moment.ts';
import { readSearch } from '../../web/pages/decisions/search.ts';

test('an address says what to leave out: one value or several, each once and in order, and nothing that is no value', () => {
  expect(readSearch({ not_tool_name: 'ping' })).toEqual({ not_tool_name: ['ping'] });
  expect(readSearch({ not_session_id: [7, 'b', 'a', 'b', '', null, { a: 1 }, ['c']] })).toEqual({
    not_session_id: ['7', 'a', 'b'],
  });
  expect(readSearch({ not_decision: ['deny', 'maybe'], decision: 'never', not_nobody: ['x'] })).toEqual({
    not_decision: ['deny'],
  });
  expect(readSearch({ not_decision: [], not_agent_id: {}, not_rule_id: 'null' })).toEqual({ not_rule_id: ['null'] });
});

test('an address with a huge list is cut to what the server compares', () => {
  const many = (kind: string) => Array.from({ length: 10_000 }, (_, n) => `${kind}${n}`);
  const names = ['not_tool_name', 'not_agent_id', 'not_rule_id', 'not_session_id'];
  const read = readSearch(Object.fromEntries(names.map((name) => [name, many(name)])));
  const sizes = Object.values(read).map((values) => (values as string[]).length);
  expect(Math.max(...sizes)).toBe(MOST_LEFT_OUT.field);
  expect(sizes.reduce((sum, size) => sum + size)).toBe(MOST_LEFT_OUT.all);
});

test('an address groups by fields that are counted, and by a second only beside another first', () => {
  expect(readSearch({ by: 'tool_name', and: 'agent_id' })).toEqual({ by: 'tool_name', and: 'agent_id' });
  expect(readSearch({ by: 'tool_name', and: 'tool_name' })).toEqual({ by: 'tool_name' });
  expect(readSearch({ by: 'trace_id', and: 'agent_id' })).toEqual({});
  expect(readSearch({ by: 'constructor' })).toEqual({});
});

test('a filter is turned around and back, and its others stay', () => {
  const filter = { tool_name: 'a', not_tool_name: ['b'], agent_id: 'x' };
  const left = { ...filter, ...not(filter, 'tool_name', 'a') };
  expect(left).toEqual({ tool_name: undefined, not_tool_name: ['a', 'b'], agent_id: 'x' });
  const back = { ...left, ...only(left, 'tool_name', 'a') };
  expect(back).toEqual(filter);
  expect({ ...filter, ...shownAgain(filter, 'tool_name', 'b') }).toEqual({ ...filter, not_tool_name: undefined });
  expect(not(filter, 'tool_name', 'c').tool_name).toBe('a');
});

test('no more is left out than the server compares: of one field, and of all', () => {
  const values = (count: number) => Array.from({ length: count }, (_, n) => `v${n}`);
  expect(isFull({ not_tool_name: values(MOST_LEFT_OUT.field - 1) }, 'tool_name')).toBe(false);
  const full = { not_tool_name: values(MOST_LEFT_OUT.field) };
  expect([isFull(full, 'tool_name'), isFull(full, 'agent_id')]).toEqual([true, false]);
  expect(isFull({ ...full, not_rule_id: values(MOST_LEFT_OUT.all - MOST_LEFT_OUT.field) }, 'agent_id')).toBe(true);
});

test('a range with fixed ends is about when decisions were made, one up to now about when they came in', () => {
  const [since, until] = ['2026-03-03T00:00:00.000Z', '2026-03-04T00:00:00.000Z'];
  expect(askedBy({ since, until, agent_id: 'bot' }, since)).toEqual({
    agent_id: 'bot',
    decided_since: since,
    decided_until: until,
  });
  expect(askedBy({ last: '24h' }, since)).toEqual({ since });
  // whichever was chosen; without a range there is nothing to choose
  expect(askedBy({ since, until, clock: 'received' }, since)).toEqual({ since, until });
  expect(askedBy({ last: '24h', clock: 'decided' }, since)).toEqual({ decided_since: since });
  expect(readSearch({ last: '24h', clock: 'decided' })).toEqual({ last: '24h', clock: 'decided' });
  expect(readSearch({ clock: 'decided' })).toEqual({});
  expect(readSearch({ last: '24h', clock: 'mine' })).toEqual({ last: '24h' });
});

test.each([
  ['2026-03-07T10:00:00.000Z', '4 d late'],
  ['2026-03-03T10:00:59.000Z', undefined],
  ['2026-03-03T08:00:00.000Z', '2 h ahead'],
])('a decision of 10:00 that was received at %s is marked: %s', (created_at, mark) => {
  expect(lateness({ timestamp: '2026-03-03T10:00:00.000Z', created_at })).toBe(mark);
});
