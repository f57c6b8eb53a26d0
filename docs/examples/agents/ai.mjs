// Vercel AI SDK
import { govern } from 'agent-governance-govern/ai';
import { jsonSchema, ToolLoopAgent, tool } from 'ai';
import { MockLanguageModelV4 } from 'ai/test';
import { callsOf, options, refund, resumes, say, store, stored } from './desk.mjs';

const inputSchema = jsonSchema({
  type: 'object',
  properties: { amount: { type: 'number' }, order: { type: 'string' } },
  required: ['amount'],
});

// three lines: govern, and give the agent the governed tools and the approval
const svc = govern(options);
const agent = new ToolLoopAgent({
  model: mock(),
  tools: svc.tools({ refund: tool({ description: 'Refunds an amount', inputSchema, execute: refund }) }),
  toolApproval: svc.approval,
});

const messages = resumes ? JSON.parse(stored('ai')) : [{ role: 'user', content: 'Refund 20 and 900.' }];
// resolves once people have decided about all that waits
if (resumes) messages.push(await svc.answers(messages));

const { responseMessages } = await agent.generate({ messages });
for (const { content } of responseMessages) {
  for (const part of Array.isArray(content) ? content : []) {
    if (part.type === 'tool-approval-request' && part.reason) say(part.reason);
    if (part.type === 'tool-result' && part.output.type === 'execution-denied') say(part.output.reason);
  }
}
store('ai', JSON.stringify([...messages, ...responseMessages]));

/** A model that asks for its calls, and ends once it was told about them. Put yours here. */
function mock() {
  const usage = { inputTokens: { total: 0 }, outputTokens: { total: 0 } };
  return new MockLanguageModelV4({
    doGenerate: async ({ prompt }) =>
      prompt.at(-1).role === 'tool'
        ? { content: [{ type: 'text', text: 'Done.' }], finishReason: { unified: 'stop' }, usage, warnings: [] }
        : {
            content: callsOf('ai-1').map(({ id, name, args }) => ({
              ...{ type: 'tool-call', toolCallId: id, toolName: name, input: JSON.stringify(args) },
            })),
            finishReason: { unified: 'tool-calls' },
            usage,
            warnings: [],
          },
  });
}
