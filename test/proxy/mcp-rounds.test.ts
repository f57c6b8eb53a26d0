import { expect, test } from 'vitest';
import type { Admitted } from '../../server/proxy/mcp/gate.ts';
import { Rounds } from '../../server/proxy/mcp/rounds.ts';

const agent = { id: 'bot', role: 'clerk', owner: undefined };
const asking = { agent, action: 'sha256:1' };

function admitted(spent: boolean): Admitted & { outcomes: string[] } {
  const outcomes: string[] = [];
  return {
    sent: (request) => request,
    masked: false,
    spent,
    stands: () => true,
    limits: new Set(),
    answered: (answer) => answer,
    ended: (o) => outcomes.push(o),
    onCut: () => () => {},
    outcomes,
  };
}

test('a state is good until it expires, and then for nothing', () => {
  let now = Date.now();
  const rounds = new Rounds(
    () => 'secret',
    () => now,
  );
  const call = admitted(true);
  const state = rounds.suspend(call, asking, 'theirs')!;
  now += 10 * 60_000;
  expect(rounds.resume(state, asking)).toEqual({ refused: 'request_state_expired' });
  now -= 1;
  expect(rounds.resume(state, asking)).toEqual({ admitted: call, state: 'theirs', call: expect.any(String) });
  expect(rounds.resume(state, asking)).toEqual({ refused: 'request_state_used' });
});

test('another proxy with the same key decides again, but not what an approval was used for', () => {
  const one = new Rounds(() => 'secret');
  const other = new Rounds(() => 'secret');
  expect(other.resume(one.suspend(admitted(false), asking, 'theirs'), asking)).toEqual({ state: 'theirs' });
  expect(other.resume(one.suspend(admitted(true), asking, 'theirs'), asking)).toEqual({
    refused: 'request_state_used',
  });
  const stranger = new Rounds(() => 'another secret');
  expect(stranger.resume(one.suspend(admitted(false), asking, 'theirs'), asking)).toEqual({
    refused: 'request_state_invalid',
  });
});

test('no other writing of a state opens, and none that is too long is carried', () => {
  const rounds = new Rounds(() => 'secret');
  const state = rounds.suspend(admitted(false), asking, undefined)!;
  for (const forged of [`${state}=`, `${state} `, state.replace(/.$/, '!'), state.slice(1), '', undefined, 7]) {
    expect(rounds.resume(forged, asking)).toEqual({ refused: 'request_state_invalid' });
  }
  expect(rounds.suspend(admitted(false), asking, 'x'.repeat(70_000))).toBeUndefined();
  expect(rounds.suspend(admitted(false), asking, 7)).toBeUndefined();
});

test('a call whose input does not come is ended when the proxy stops', () => {
  const rounds = new Rounds(() => 'secret');
  const call = admitted(true);
  rounds.suspend(call, asking, undefined);
  rounds.close();
  expect(call.outcomes).toEqual(['the input that the server wanted did not come']);
});

test('a call that other rules decide by now is decided again, or refused where an approval was used for it', () => {
  const rounds = new Rounds(() => 'secret');
  for (const [spent, resumed] of [
    [false, { state: 'theirs' }],
    [true, { refused: 'policies_changed' }],
  ] as const) {
    const call = { ...admitted(spent), stands: () => false };
    expect(rounds.resume(rounds.suspend(call, asking, 'theirs'), asking)).toEqual(resumed);
    expect(call.outcomes).toEqual(['the policies have changed between its rounds']);
  }
});

test('an agent that opens calls without end ends none of another', () => {
  const rounds = new Rounds(() => 'secret');
  const state = rounds.suspend(admitted(true), asking, undefined);
  const greedy = { ...asking, agent: { ...agent, id: 'greedy' } };
  const first = rounds.suspend(admitted(true), greedy, undefined);
  for (let n = 0; n < 10_001; n++) rounds.suspend(admitted(true), greedy, undefined);
  expect(rounds.resume(state, asking)).toHaveProperty('admitted');
  expect(rounds.resume(first, greedy)).toEqual({ refused: 'request_state_used' });
});
