// LangChain and LangGraph
import { fakeModel } from '@langchain/core/testing';
import { MemorySaver } from '@langchain/langgraph';
import { govern } from 'agent-governance-govern/langchain';
import { AIMessage, createAgent, tool } from 'langchain';
import { callsOf, options, refund, resumes, say, store, stored } from './desk.mjs';

const schema = {
  type: 'object',
  properties: { amount: { type: 'number' }, order: { type: 'string' } },
  required: ['amount'],
};
const saver = resumes ? saverOf(stored('langchain')) : new MemorySaver();

// three lines: govern, and give the agent the middleware, last
const svc = govern(options);
const agent = createAgent({
  model: mock(),
  tools: [tool(refund, { name: 'refund', description: 'Refunds an amount', schema })],
  checkpointer: saver,
  middleware: [svc.middleware],
});

const config = { configurable: { thread_id: 'example' } };
const { tasks } = await agent.graph.getState(config);
const input = resumes
  ? // resolves once people have decided about all that waits
    await svc.answers(tasks.flatMap(({ interrupts }) => interrupts))
  : { messages: [{ role: 'user', content: 'Refund 20 and 900.' }] };

const { messages, __interrupt__: interrupts = [] } = await agent.invoke(input, config);
for (const { value } of interrupts) say(value.message);
for (const message of messages) if (message.type === 'tool' && message.status === 'error') say(message.content);
store('langchain', textOf(saver));

/** A model that asks for its calls, and ends once it was told about them. Put yours here. */
function mock() {
  const reply = (messages) =>
    messages.at(-1).type === 'tool'
      ? new AIMessage('Done.')
      : new AIMessage({ content: '', tool_calls: callsOf('langchain-1') });
  return fakeModel().respond(reply).respond(reply);
}

/** The checkpoints as text. Use a checkpointer on a database instead. */
function textOf({ storage, writes }) {
  return JSON.stringify([storage, writes], (_, value) =>
    value instanceof Uint8Array ? { base64: Buffer.from(value).toString('base64') } : value,
  );
}

function saverOf(text) {
  const [storage, writes] = JSON.parse(text, (_, value) =>
    typeof value?.base64 === 'string' ? new Uint8Array(Buffer.from(value.base64, 'base64')) : value,
  );
  return Object.assign(new MemorySaver(), { storage, writes });
}
