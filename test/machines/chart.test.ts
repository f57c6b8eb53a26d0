import { expect, test } from 'vitest';
import { chartOf } from '../../machines/chart.ts';
import { HOLD_STATES, holdMachine } from '../../machines/escrow.ts';
import { policyMachine } from '../../machines/policy.ts';

const policy = chartOf(policyMachine);
const hold = chartOf(holdMachine);
const edges = (chart: typeof policy, event: string) =>
  chart.transitions.filter((it) => it.event === event).map((it) => `${it.from} → ${it.to}`);

test('a chart shows every state, the initial one, and which states are final', () => {
  expect(policy.initial).toBe('draft');
  expect(policy.states.map(({ id }) => id)).toEqual(['draft', 'pending_approval', 'deployed', 'revoked']);
  expect(policy.states.some(({ final }) => final)).toBe(false);
  expect(hold.initial).toBe('held');
  expect(hold.states.map(({ id }) => id).sort()).toEqual([...HOLD_STATES].sort());
  expect(hold.states.filter(({ final }) => final).map(({ id }) => id)).toEqual([
    'rejected',
    'consumed',
    'expired',
    'cancelled',
  ]);
  expect(hold.states.every(({ description }) => description)).toBe(true);
});

test('events that the whole machine accepts are shown at each state', () => {
  expect(edges(policy, 'break_glass')).toEqual([
    'draft → deployed',
    'pending_approval → deployed',
    'deployed → deployed',
    'revoked → deployed',
  ]);
  expect(hold.transitions.filter(({ from }) => from === 'expired')).toEqual([]);
});

test('a transition names its guard, and its effects with those of the state it enters', () => {
  expect(edges(hold, 'consume')).toEqual(['released → consumed']);
  const [consume] = hold.transitions.filter(({ event }) => event === 'consume');
  expect(consume).toMatchObject({ guard: 'sameAction' });
  expect(consume?.effects).toEqual(expect.arrayContaining(['audit escrow.consumed', 'emit escrow.consumed']));
  expect(edges(hold, 'vote')).toEqual(['held → rejected', 'held → released', 'held → held']);
  expect(edges(policy, 'update')).toContain('deployed → draft');
  const deployed = policy.transitions.find((it) => it.event === 'update' && it.from === 'deployed');
  expect(deployed).toMatchObject({ guard: 'deploysAtOnce', to: 'deployed' });
});
