import { expect, test } from 'vitest';
import { AtOnce } from '../../server/rpc/at-once.ts';
import { longPoll } from '../../server/rpc/long-poll.ts';
import type { PlainCall } from '../../server/rpc/plain.ts';

test('a key that waits too often already is told so, and may wait again afterwards', async () => {
  const atOnce = new AtOnce(1);
  let change = () => {};
  const poll = (id: string) =>
    longPoll(
      {
        principal: { kind: 'api_key', id },
        request: { headers: { prefer: 'wait=30' } },
        reply: { header: () => undefined },
        context: { gone: () => new AbortController().signal, stillValid: async () => true },
      } as unknown as PlainCall,
      {
        known: 'a',
        atOnce,
        look: async () => ({ hash: 'a' }),
        wait: () =>
          new Promise<{ hash: string }>((resolve) => {
            change = () => resolve({ hash: 'b' });
          }),
      },
    );
  const first = poll('key_1');
  await Promise.resolve();
  await expect(poll('key_1')).rejects.toMatchObject({ problem: 'RATE_LIMITED' });
  change();
  expect(await first).toEqual({ found: { hash: 'b' }, unchanged: false });
  const other = poll('key_2');
  await Promise.resolve();
  change();
  await other;
  const again = poll('key_1');
  await Promise.resolve();
  change();
  expect((await again).unchanged).toBe(false);
});
