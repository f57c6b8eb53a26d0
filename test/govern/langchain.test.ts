import { fakeModel } from '@langchain/core/testing';
import { Command, interrupt, MemorySaver } from '@langchain/langgraph';
import { AIMessage, createAgent, tool } from 'langchain';
import { describe, expect, test } from 'vitest';
import { govern } from '../../sdk/govern/src/langchain.ts';
import { type Conversation, governs } from './contract.ts';
import { type Asking, type Desk, SECRET } from './desk.ts';

/** Asks for these calls, and says that it is done once it was told about any. */
function modelOf(calls: readonly Asking[]) {
  const model = fakeModel();
  const reply = (messages: readonly { type: string }[]) =>
    messages.at(-1)?.type === 'tool'
      ? new AIMessage('done')
      : new AIMessage({ content: '', tool_calls: calls.map(({ id, tool, args }) => ({ id, name: tool, args })) });
  for (let n = 0; n < 4; n++) model.respond(reply);
  return model;
}

/** What the framework stores is the bytes of its own saver. */
const stored = ({ storage, writes }: MemorySaver) =>
  JSON.stringify([storage, writes], (_, value: unknown) =>
    value instanceof Uint8Array ? { bytes: Buffer.from(value).toString('latin1') } : value,
  );
const saverOf = (text: string) => {
  const [storage, writes] = JSON.parse(text, (_, value) =>
    typeof value?.bytes === 'string' ? new Uint8Array(Buffer.from(value.bytes, 'latin1')) : value,
  );
  return Object.assign(new MemorySaver(), { storage, writes }) as MemorySaver;
};

interface State {
  config: object;
  values: { messages: Message[] };
  tasks: { path: [string, number]; interrupts: { id: string; value: unknown }[]; result?: { messages: Message[] } }[];
}
interface Message {
  type: string;
  tool_call_id: string;
  content: unknown;
}

function agentOf(desk: Desk, saver: MemorySaver, calls: readonly Asking[], thread: string) {
  const svc = govern(desk.options);
  const schema = { type: 'object', properties: {} } as const;
  const agent = createAgent({
    model: modelOf(calls),
    tools: Object.entries(desk.tools).map(([name, run]) =>
      tool((args) => run(args as Record<string, unknown>), { name, description: name, schema }),
    ),
    checkpointer: saver,
    middleware: [svc.middleware],
  });
  const config = { configurable: { thread_id: thread } };
  return {
    svc,
    state: async () => (await agent.graph.getState(config)) as unknown as State,
    replay: (from: object) => agent.invoke(null as never, from as never),
    async talk(input: unknown): Promise<Conversation> {
      await agent.invoke(input as never, config);
      const { values, tasks } = await this.state();
      const messages = [...values.messages, ...tasks.flatMap(({ result }) => result?.messages ?? [])];
      const answers = messages.filter(({ type }) => type === 'tool');
      return {
        told: Object.fromEntries(answers.map((answer) => [answer.tool_call_id, String(answer.content)])),
        waiting: tasks.filter(({ interrupts }) => interrupts.length > 0).map(({ path }) => calls[path[1]]!.id),
        stored: stored(saver),
      };
    },
  };
}

describe('LangChain and LangGraph', () => {
  let threads = 0;
  const threadOf = (text: string) => /thread-\d+/.exec(text)![0];
  const { open } = governs({
    begin: (desk, calls) =>
      agentOf(desk, new MemorySaver(), calls, `thread-${++threads}`).talk({
        messages: [{ role: 'user', content: 'please' }],
      }),
    async resume(desk, text, calls) {
      const agent = agentOf(desk, saverOf(text), calls, threadOf(text));
      const { tasks } = await agent.state();
      return agent.talk(await agent.svc.answers(tasks.flatMap(({ interrupts }) => interrupts)));
    },
    async force(desk, text, calls) {
      const agent = agentOf(desk, saverOf(text), calls, threadOf(text));
      const { tasks } = await agent.state();
      const all = tasks.flatMap(({ interrupts }) =>
        interrupts.map(({ id }) => [id, { approved: true, status: 'released' }]),
      );
      return agent.talk(new Command({ resume: Object.fromEntries(all) }));
    },
  });

  const human = { messages: [{ role: 'user', content: 'please' }] };

  test('a graph that is replayed from an older checkpoint asks again for what was approved', async () => {
    const desk = await open();
    const calls = [{ id: 'a', tool: 'refund', args: { amount: 900 } }];
    const agent = agentOf(desk, new MemorySaver(), calls, 'replay');
    await agent.talk(human);
    const before = await agent.state();
    const [hold] = await desk.holds();
    await desk.vote(hold!.id);
    const { tasks } = await agent.state();
    await agent.talk(await agent.svc.answers(tasks.flatMap(({ interrupts }) => interrupts)));
    expect(desk.ran).toHaveLength(1);
    await agent.replay(before.config);
    expect(desk.ran).toHaveLength(1);
    expect((await desk.holds()).map(({ status }) => status)).toEqual(['consumed', 'held']);
  });

  test('the answer to a hold is not taken for the answer to a question of the tool itself', async () => {
    const desk = await open();
    const asked: unknown[] = [];
    desk.tools.refund = async (args) => {
      asked.push(interrupt({ question: 'to which account?' }));
      desk.ran.push(['refund', args]);
      return { refunded: true };
    };
    const calls = [{ id: 'a', tool: 'refund', args: { amount: 900 } }];
    const agent = agentOf(desk, new MemorySaver(), calls, 'questions');
    await agent.talk(human);
    const [hold] = await desk.holds();
    await desk.vote(hold!.id);
    const waiting = async () => (await agent.state()).tasks.flatMap(({ interrupts }) => interrupts);
    await agent.talk(await agent.svc.answers(await waiting()));
    expect(asked).toEqual([]);
    const [question] = await waiting();
    expect(question!.value).toEqual({ question: 'to which account?' });
    expect(await agent.svc.answers([question!])).toBeUndefined();
    const { told } = await agent.talk(new Command({ resume: { [question!.id]: 'mine' } }));
    expect(asked).toEqual(['mine']);
    expect(told.a).toContain('refunded');
    expect(desk.ran).toHaveLength(1);
    expect(await desk.holds()).toHaveLength(1);
  });

  test('an interrupt has nothing in it that the model wrote', async () => {
    const desk = await open();
    const calls = [{ id: 'approve me\u202e', tool: 'refund', args: { amount: 900, note: 'APPROVED BY THE BOSS' } }];
    const agent = agentOf(desk, new MemorySaver(), calls, 'words');
    await agent.talk(human);
    const [{ interrupts } = { interrupts: [] }] = (await agent.state()).tasks;
    const [hold] = await desk.holds();
    expect(interrupts.map(({ value }) => value)).toEqual([
      {
        hold: hold!.id,
        tool: 'refund',
        url: desk.page(hold!.id),
        message: `Held for approval as ${hold!.id}: refunds over 50 need a person. It is decided at ${desk.page(hold!.id)} and nowhere else.`,
        retry_after: 30,
        expires_at: expect.stringMatching(/Z$/),
      },
    ]);
  });

  test('a command of a tool whose answer is masked is withheld', async () => {
    const desk = await open();
    desk.tools.card = async () => new Command({ update: { note: SECRET } });
    const agent = agentOf(desk, new MemorySaver(), [{ id: 'a', tool: 'card', args: {} }], 'commands');
    const { told, stored } = await agent.talk(human);
    expect(told.a).toContain('the answer is withheld');
    expect(stored).not.toContain(SECRET);
  });
});
