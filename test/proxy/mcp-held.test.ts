import { afterEach, expect, test, vi } from 'vitest';
import type { Hold } from '../../server/proxy/control-plane.ts';
import type { Holds } from '../../server/proxy/holds.ts';
import { Seal } from '../../server/proxy/mcp/seal.ts';
import { TASKS, Waiting } from '../../server/proxy/mcp/waiting.ts';
import { CAPABILITIES_KEY, type Request, success } from '../../server/proxy/mcp/wire.ts';

const DAY_MS = 24 * 60 * 60_000;
const agent = { id: 'bot', role: 'clerk', owner: undefined };
const _meta = { [CAPABILITIES_KEY]: { extensions: { [TASKS]: {} } } };

afterEach(() => {
  vi.useRealTimers();
});

test('what became of a held call is known until the end of its hold, however far off that is', async () => {
  vi.useFakeTimers();
  const hold = { id: 'esc_1', status: 'held', expires_at: new Date(Date.now() + 29 * DAY_MS).toISOString() } as Hold;
  const waiting = new Waiting({
    holds: { get: async () => hold } as unknown as Holds,
    seal: new Seal(() => 'secret'),
    controlUrl: 'https://control.example.com',
    tenant: () => undefined,
    server: 's',
  });
  const call: Request = { jsonrpc: '2.0', id: 1, method: 'tools/call', params: { name: 't', arguments: {}, _meta } };
  const offered = waiting.offer(call, agent, hold);
  const taskId = offered && 'result' in offered && offered.result.taskId;
  hold.status = 'released';
  const get = () =>
    waiting.serve({ jsonrpc: '2.0', id: 2, method: 'tasks/get', params: { taskId, _meta } }, agent, async ({ id }) => {
      hold.status = 'consumed';
      return success(id, { content: [] });
    });
  for (const days of [0, 1, 28]) {
    await vi.advanceTimersByTimeAsync(days * DAY_MS);
    expect(await get()).toMatchObject({ result: { status: 'completed' } });
  }
  await vi.advanceTimersByTimeAsync(DAY_MS);
  expect(await get()).toMatchObject({ error: { message: 'there is no such task' } });
});
