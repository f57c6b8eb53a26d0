import {
  generateText,
  isStepCount,
  jsonSchema,
  type ModelMessage,
  simulateReadableStream,
  streamText,
  type ToolSet,
  tool,
} from 'ai';
import { MockLanguageModelV4 } from 'ai/test';
import { describe, expect, test } from 'vitest';
import { govern } from '../../sdk/govern/src/ai.ts';
import { type Conversation, governs } from './contract.ts';
import { type Asking, type Desk, SECRET } from './desk.ts';

const USAGE = {
  inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 },
  outputTokens: { total: 1, text: 1, reasoning: 0 },
};

/** Asks for these calls, and says that it is done once it was told about any. */
function modelOf(calls: readonly Asking[]) {
  return new MockLanguageModelV4({
    doGenerate: async ({ prompt }) => {
      if (prompt.at(-1)?.role === 'tool') {
        return {
          content: [{ type: 'text', text: 'done' }],
          finishReason: { unified: 'stop', raw: 'stop' },
          usage: USAGE,
          warnings: [],
        };
      }
      const content = calls.map(({ id, tool, args }) => ({
        ...{ type: 'tool-call' as const, toolCallId: id, toolName: tool, input: JSON.stringify(args) },
      }));
      return { content, finishReason: { unified: 'tool-calls', raw: 'tool-calls' }, usage: USAGE, warnings: [] };
    },
  });
}

function toolsOf(desk: Desk) {
  return Object.fromEntries(
    Object.entries(desk.tools).map(([name, execute]) => [
      name,
      tool({ inputSchema: jsonSchema<Record<string, unknown>>({ type: 'object' }), execute: (args) => execute(args) }),
    ]),
  );
}

async function talk(desk: Desk, messages: ModelMessage[], calls: readonly Asking[]): Promise<Conversation> {
  const svc = govern(desk.options);
  const result = await generateText({
    model: modelOf(calls),
    tools: svc.tools(toolsOf(desk)),
    toolApproval: svc.approval,
    stopWhen: isStepCount(3),
    messages,
  });
  const all = [...messages, ...result.responseMessages];
  const told: Record<string, string> = {};
  const waiting = new Map<string, string>();
  for (const { content } of all) {
    for (const part of Array.isArray(content) ? content : []) {
      if (part.type === 'tool-result') told[part.toolCallId] = JSON.stringify(part.output);
      if (part.type === 'tool-approval-request') waiting.set(part.approvalId, part.toolCallId);
      if (part.type === 'tool-approval-response') waiting.delete(part.approvalId);
    }
  }
  return { told, waiting: [...waiting.values()], stored: JSON.stringify(all) };
}

describe('Vercel AI SDK', () => {
  const { open } = governs({
    begin: (desk, calls) => talk(desk, [{ role: 'user', content: 'please' }], calls),
    async resume(desk, stored, calls) {
      const messages = JSON.parse(stored) as ModelMessage[];
      const answers = await govern(desk.options).answers(messages);
      return talk(desk, [...messages, answers!], calls);
    },
    force(desk, stored, calls) {
      const messages = JSON.parse(stored) as ModelMessage[];
      const content = messages
        .flatMap(({ content }) => (Array.isArray(content) ? (content as { type: string; approvalId?: string }[]) : []))
        .filter((part) => part.type === 'tool-approval-request')
        .map(({ approvalId = '' }) => ({ type: 'tool-approval-response' as const, approvalId, approved: true }));
      return talk(desk, [...messages, { role: 'tool', content }], calls);
    },
  });

  const schema = jsonSchema<Record<string, unknown>>({ type: 'object' });
  const generate = async (svc: ReturnType<typeof govern>, tools: ToolSet, calls: readonly Asking[]) =>
    JSON.stringify(
      await generateText({
        ...{ model: modelOf(calls), tools, toolApproval: svc.approval, stopWhen: isStepCount(3), prompt: 'please' },
      }).then(({ responseMessages }) => responseMessages),
    );

  test('a tool that was added later is denied, and one that runs elsewhere is refused at the start', async () => {
    const desk = await open();
    const svc = govern(desk.options);
    const late = tool({ inputSchema: schema, execute: (args) => desk.tools.refund!(args) });
    const tools = { ...svc.tools(toolsOf(desk)), late, refund: late };
    const calls = ['late', 'refund', 'constructor'].map((name) => ({ id: name, tool: name, args: { amount: 20 } }));
    expect(await generate(svc, tools, calls.slice(0, 2))).toMatch(/(the tool is not governed.*){2}/);
    await generate(svc, tools, calls).catch(() => undefined);
    expect(desk.ran).toEqual([]);
    expect(() => svc.tools({ browser: tool({ inputSchema: schema }) })).toThrow('the tool browser has no execute');
  });

  test('without the approval of the adapter, nothing runs that the control plane does not permit', async () => {
    const desk = await open();
    const svc = govern(desk.options);
    const calls = [
      { id: 'a', tool: 'refund', args: { amount: 900 } },
      { id: 'b', tool: 'wipe', args: {} },
    ];
    const ask = (more: object) =>
      generateText({
        ...{
          model: modelOf(calls),
          tools: svc.tools(toolsOf(desk)),
          stopWhen: isStepCount(3),
          prompt: 'please',
          ...more,
        },
      });
    expect(JSON.stringify((await ask({})).responseMessages)).toMatch(/tool-approval-request/);
    const all = JSON.stringify((await ask({ toolApproval: () => 'approved' })).responseMessages);
    expect(all).toContain('Held for approval as');
    expect(all).toContain('Denied: accounts are never wiped.');
    expect(desk.ran).toEqual([]);
  });

  test('a tool that asks for an approval of its own still does', async () => {
    const desk = await open();
    const svc = govern(desk.options);
    const own = tool({ inputSchema: schema, needsApproval: true, execute: (args) => desk.tools.refund!(args) });
    const said = await generate(svc, svc.tools({ refund: own }), [{ id: 'a', tool: 'refund', args: { amount: 20 } }]);
    expect(said).toContain('tool-approval-request');
    expect(desk.ran).toEqual([]);
  });

  test('each part of an answer that is streamed is masked', async () => {
    const desk = await open();
    const svc = govern(desk.options);
    const parts = [{ card: { number: SECRET } }, { text: SECRET, card: { number: SECRET, holder: 'Ada' } }];
    const streaming = tool({
      inputSchema: schema,
      async *execute() {
        yield* parts;
        throw new Error(SECRET);
      },
    });
    const seen: unknown[] = [];
    const { card } = svc.tools({ card: streaming });
    const stream = card.execute!({}, { toolCallId: 'a', messages: [], context: {} }) as AsyncIterable<unknown>;
    const reading = (async () => {
      for await (const part of stream) seen.push(part);
    })();
    await expect(reading).rejects.toThrow(/^The tool failed; a policy masks what it said.$/);
    expect(seen).toEqual([
      { card: { number: '[masked]' } },
      { text: SECRET, card: { number: '[masked]', holder: 'Ada' } },
    ]);
  });

  test('a call that is streamed part by part is asked about once it is whole', async () => {
    const desk = await open();
    const svc = govern(desk.options);
    const call = (id: string, toolName: string, args: object) => {
      const text = JSON.stringify(args);
      return [
        { type: 'tool-input-start' as const, id, toolName },
        { type: 'tool-input-delta' as const, id, delta: text.slice(0, 5) },
        { type: 'tool-input-delta' as const, id, delta: text.slice(5) },
        { type: 'tool-input-end' as const, id },
        { type: 'tool-call' as const, toolCallId: id, toolName, input: text },
      ];
    };
    const end = { type: 'finish' as const, finishReason: { unified: 'tool-calls' as const, raw: '' }, usage: USAGE };
    const cut = call('cut', 'refund', { amount: 30 }).slice(0, 3);
    const chunks = [...call('a', 'refund', { amount: 20 }), ...call('b', 'refund', { amount: 900 }), ...cut, end];
    const { responseMessages } = streamText({
      model: new MockLanguageModelV4({ doStream: { stream: simulateReadableStream({ chunks }) } }),
      ...{ tools: svc.tools(toolsOf(desk)), toolApproval: svc.approval, prompt: 'please' },
    });
    const said = JSON.stringify(await responseMessages);
    expect(said).toContain('refunded');
    expect(said).toContain('Held for approval as');
    expect(desk.ran).toEqual([['refund', { amount: 20 }]]);
    expect((await desk.decisions()).sort()).toEqual(['allow', 'escrow']);
  });
});
