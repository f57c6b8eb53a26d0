import { expect, test } from 'vitest';
import { PolicyEngine } from '../../server/policy/evaluation/evaluate.ts';
import { decide, type KnownHold } from '../../server/policy/evaluation/protocol.ts';
import { contentOf, request } from './support.ts';

test('what an action took is given back once, where neither a hold can be opened nor the denial recorded', async () => {
  const text = '@id("p") @rate("5/m") @escrow("single") permit(principal, action, resource);';
  const engine = new PolicyEngine(contentOf({ pol: text }));
  let taken = 0;
  const unused = () => {
    throw new Error('not asked for');
  };
  const decided = decide<KnownHold, void>(
    { request: request(), eventId: 'evt_1', bundleHash: 'sha256:00' },
    {
      session: () => undefined,
      match: (asked) => engine.match(asked),
      definition: unused,
      take: async ({ limits }) => {
        taken += limits.length;
        const giveBack = async () => {
          taken -= limits.length;
        };
        return { exceeded: new Map(), giveBack };
      },
      find: unused,
      refuse: unused,
      open: async () => ({ unavailable: 'nobody there' }),
      consume: unused,
      withdraw: unused,
      consumedWithoutRecord: unused,
      elapsed: () => 1,
      record: async () => {
        throw new Error('the spool is full');
      },
    },
  );
  await expect(decided).rejects.toThrow('the spool is full');
  expect(taken).toBe(0);
});
