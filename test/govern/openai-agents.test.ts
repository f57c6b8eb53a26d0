import { Agent, type Model, Runner, RunState, setTracingDisabled, tool, Usage } from '@openai/agents-core';
import { describe, expect, test } from 'vitest';
import { govern } from '../../sdk/govern/src/openai-agents.ts';
import { type Conversation, governs } from './contract.ts';
import type { Asking, Desk } from './desk.ts';

setTracingDisabled(true);

/** Asks for these calls, and says that it is done once it was told about any. */
function modelOf(calls: readonly Asking[]): Model {
  return {
    async getResponse({ input }) {
      const told = Array.isArray(input) && input.some(({ type }) => type === 'function_call_result');
      const usage = new Usage();
      if (told) {
        const content = [{ type: 'output_text' as const, text: 'done' }];
        return { usage, output: [{ type: 'message', role: 'assistant', status: 'completed', content }] };
      }
      return {
        usage,
        output: calls.map(({ id, tool: name, args }) => ({
          ...{ type: 'function_call' as const, callId: id, name, status: 'completed' as const },
          arguments: JSON.stringify(args),
        })),
      };
    },
    getStreamedResponse() {
      throw new Error('not asked for');
    },
  };
}

function agentOf(desk: Desk, calls: readonly Asking[]) {
  const svc = govern(desk.options);
  const parameters = {
    type: 'object' as const,
    properties: {},
    required: [] as string[],
    additionalProperties: true as const,
  };
  const tools = Object.entries(desk.tools).map(([name, run]) =>
    tool({
      ...{ name, description: name, parameters, strict: false },
      execute: (args: unknown) => run(args as Record<string, unknown>),
    }),
  );
  const agent = new Agent({ name: 'desk', model: modelOf(calls), tools: svc.tools(tools) });
  return {
    svc,
    agent,
    async talk(input: string | RunState<unknown, typeof agent>): Promise<Conversation> {
      const { newItems, interruptions, state } = await new Runner().run(agent, input as string, { maxTurns: 4 });
      const results = newItems.filter((item) => item.type === 'tool_call_output_item');
      const told = results.map(({ rawItem, output }) => [
        (rawItem as { callId: string }).callId,
        JSON.stringify(output),
      ]);
      return {
        told: Object.fromEntries(told),
        waiting: interruptions.map(({ rawItem }) => (rawItem as { callId: string }).callId),
        stored: state.toString(),
      };
    },
  };
}

describe('OpenAI Agents SDK', () => {
  const { open } = governs({
    begin: (desk, calls) => agentOf(desk, calls).talk('please'),
    async resume(desk, stored, calls) {
      const { agent, svc, talk } = agentOf(desk, calls);
      const state = await RunState.fromString(agent, stored);
      await svc.settle(state);
      return talk(state);
    },
    async force(desk, stored, calls) {
      const { agent, talk } = agentOf(desk, calls);
      const state = await RunState.fromString(agent, stored);
      for (const item of state.getInterruptions()) state.approve(item);
      return talk(state);
    },
  });

  test('an interruption tells its hold, and a tool that the provider runs is refused at the start', async () => {
    const desk = await open();
    const { agent, svc } = agentOf(desk, [{ id: 'a', tool: 'refund', args: { amount: 900 } }]);
    const { interruptions } = await new Runner().run(agent, 'please', { maxTurns: 4 });
    const [hold] = await desk.holds();
    expect(await svc.hold(interruptions[0]!)).toMatchObject({
      id: hold!.id,
      url: desk.page(hold!.id),
      reason: 'refunds over 50 need a person',
    });
    expect(() => svc.tools([{ type: 'hosted_tool', name: 'web_search' }])).toThrow('web_search is run by the provider');
  });
});
