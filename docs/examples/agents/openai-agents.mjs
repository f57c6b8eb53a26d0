// OpenAI Agents SDK
import { Agent, RunState, run, setTracingDisabled, tool, Usage } from '@openai/agents-core';
import { waiting } from 'agent-governance-govern';
import { govern } from 'agent-governance-govern/openai-agents';
import { callsOf, options, refund, resumes, say, store, stored } from './desk.mjs';

setTracingDisabled(true);
const parameters = {
  type: 'object',
  properties: { amount: { type: 'number' }, order: { type: 'string' } },
  required: ['amount'],
};

// three lines: govern, and give the agent the governed tools
const svc = govern(options);
const agent = new Agent({
  name: 'desk',
  model: mock(),
  tools: svc.tools([
    tool({
      ...{ name: 'refund', description: 'Refunds an amount', strict: false },
      parameters: { ...parameters, additionalProperties: true },
      execute: refund,
    }),
  ]),
});

let input = 'Refund 20 and 900.';
if (resumes) {
  input = await RunState.fromString(agent, stored('openai-agents'));
  // resolves once people have decided about all that waits
  await svc.settle(input);
}

const { newItems, interruptions, state } = await run(agent, input);
for (const item of interruptions) say(waiting(await svc.hold(item)));
for (const { type, output } of newItems) {
  if (type === 'tool_call_output_item' && typeof output === 'string') say(output);
}
store('openai-agents', state.toString());

/** A model that asks for its calls, and ends once it was told about them. Put yours here. */
function mock() {
  return {
    async getResponse({ input }) {
      const told = Array.isArray(input) && input.some(({ type }) => type === 'function_call_result');
      const done = { type: 'message', role: 'assistant', status: 'completed' };
      return {
        usage: new Usage(),
        output: told
          ? [{ ...done, content: [{ type: 'output_text', text: 'Done.' }] }]
          : callsOf('openai-agents-1').map(({ id, name, args }) => ({
              ...{ type: 'function_call', callId: id, name, status: 'completed', arguments: JSON.stringify(args) },
            })),
      };
    },
  };
}
