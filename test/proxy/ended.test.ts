import { expect, test } from 'vitest';
import type { ActionRequest } from '../../server/domain/policy.ts';
import type { Agent } from '../../server/proxy/agents.ts';
import { Seal } from '../../server/proxy/mcp/seal.ts';
import { Tasks } from '../../server/proxy/mcp/tasks.ts';
import type { Success } from '../../server/proxy/mcp/wire.ts';
import { mcpEnded } from '../../server/proxy/sessions.ts';
import { request } from '../policy/support.ts';

const agent = { id: 'agent-1', role: 'bot' } as Agent;
const answer = (result: object): Success => ({ jsonrpc: '2.0', id: 1, result: { ...result } });
const said = { content: [{ type: 'text', text: '{"status":"pending"}' }] };

test('a call that says it failed has failed, with content or without', () => {
  expect(mcpEnded({ isError: true })).toEqual({ succeeded: false });
  expect(mcpEnded({ isError: true, content: [] })).toEqual({ succeeded: false });
  expect(mcpEnded({ content: [] })).toEqual({ succeeded: true, value: undefined });
  expect(mcpEnded(said)).toEqual({ succeeded: true, value: { status: 'pending' } });
});

test('a task with a session gives what the tool said with its result, not with the news that it is completed', () => {
  const call: ActionRequest = request();
  const begun = () => {
    const tasks = new Tasks(new Seal(() => 'secret'), 'shop');
    tasks.began(answer({ task: { taskId: 't', status: 'working' } }), agent, call);
    return tasks;
  };
  const tasks = begun();
  for (const status of ['working', 'completed']) {
    expect(tasks.over('tasks/get', 't', answer({ taskId: 't', status }), agent)).toBeUndefined();
  }
  expect(tasks.over('tasks/result', 't', answer(said), agent)).toEqual({
    call,
    ended: { succeeded: true, value: { status: 'pending' } },
  });
  expect(tasks.over('tasks/result', 't', answer(said), agent)).toBeUndefined();
  const wrong = begun();
  wrong.over('tasks/get', 't', answer({ taskId: 't', status: 'completed' }), agent);
  expect(wrong.over('tasks/result', 't', answer({ ...said, isError: true }), agent)?.ended.succeeded).toBe(false);
  expect(begun().over('tasks/get', 't', answer({ taskId: 't', status: 'failed' }), agent)?.ended.succeeded).toBe(false);
});
