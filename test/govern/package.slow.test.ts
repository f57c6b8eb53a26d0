import { execFileSync, spawnSync } from 'node:child_process';
import { mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { beforeAll, expect, test } from 'vitest';
import { temporaryDirectory } from '../proxy/support.ts';

/** The adapters as a person gets them: packed, and installed into a folder that has the frameworks. */
const folder = temporaryDirectory();
const ROOT = path.resolve(import.meta.dirname, '../..');
const run = (cwd: string, command: string, ...args: string[]) => execFileSync(command, args, { cwd, encoding: 'utf8' });
const installed = path.join(folder, 'node_modules/agent-governance-govern');

beforeAll(() => {
  const packing = ['pack', '--silent', '--pack-destination', folder];
  const packed = run(path.join(ROOT, 'sdk/govern'), 'npm', ...packing)
    .trim()
    .split('\n')
    .at(-1)!;
  writeFileSync(path.join(folder, 'package.json'), '{"type": "module"}');
  const quiet = ['--prefer-offline', '--no-audit', '--no-fund', '--silent', '--ignore-scripts', '--legacy-peer-deps'];
  // of Claude Code only the types: its programs are optional dependencies
  const claude = '@anthropic-ai/claude-agent-sdk@0.3.330';
  run(folder, 'npm', 'install', ...quiet, '--omit=optional', `./${packed}`, claude);
  mkdirSync(path.join(folder, 'node_modules/@openai'));
  for (const name of ['ai', '@ai-sdk', 'langchain', '@langchain', '@openai/agents-core', 'zod']) {
    symlinkSync(path.join(ROOT, 'node_modules', name), path.join(folder, 'node_modules', name));
  }
});

test('has its own files alone, and loads without the frameworks that are not used', () => {
  expect(readdirSync(installed).sort()).toEqual(['LICENSE', 'README.md', 'dist', 'package.json']);
  const dist = path.join(installed, 'dist');
  const code = readdirSync(dist).filter((name) => name.endsWith('.js'));
  const imports = code.flatMap((name) =>
    [...readFileSync(path.join(dist, name), 'utf8').matchAll(/^import\b[^;]*?\bfrom "([^"]+)"/gm)].map(
      ([, from]) => from!,
    ),
  );
  const foreign = new Set(imports.filter((from) => !from.startsWith('./')));
  expect([...foreign].sort()).toEqual(['@langchain/langgraph', 'langchain', 'openapi-fetch']);
  for (const name of code)
    expect(readFileSync(path.join(dist, name), 'utf8')).not.toMatch(/["'`]node:|\bprocess\.\w|\bBuffer\b/);
  const load = `for (const name of ['', '/ai', '/claude', '/openai-agents']) await import('agent-governance-govern' + name)`;
  run(folder, process.execPath, '--input-type=module', '-e', load);
});

test('has types that strict programs of each framework compile with', () => {
  writeFileSync(
    path.join(folder, 'typed.ts'),
    `import type { Options, SDKResultMessage } from '@anthropic-ai/claude-agent-sdk';
import { MemorySaver } from '@langchain/langgraph';
import { Agent, Runner, RunState, tool as agentTool } from '@openai/agents-core';
import { type Call, Governor, refusal, type Verdict } from 'agent-governance-govern';
import { govern as governAi } from 'agent-governance-govern/ai';
import { govern as governClaude } from 'agent-governance-govern/claude';
import { govern as governChain } from 'agent-governance-govern/langchain';
import { govern as governAgents } from 'agent-governance-govern/openai-agents';
import { generateText, jsonSchema, type LanguageModel, type ModelMessage, ToolLoopAgent, tool } from 'ai';
import { createAgent, fakeModel, type ToolMessage } from 'langchain';

const options = { url: 'http://x', key: 'k' };
declare const model: LanguageModel;
declare const messages: ModelMessage[];

const ai = governAi(options);
const tools = ai.tools({ refund: tool({ inputSchema: jsonSchema<{ amount: number }>({}), execute: ({ amount }) => amount }) });
new ToolLoopAgent({ model, tools, toolApproval: ai.approval });
await generateText({ model, tools, toolApproval: ai.approval, messages });
const answers = await ai.answers(messages);
if (answers) messages.push(answers);

const chain = governChain(options);
const graph = createAgent({ model: fakeModel(), tools: [], checkpointer: new MemorySaver(), middleware: [chain.middleware] });
const state = await graph.invoke({ messages: [] });
const command = await chain.answers(state.__interrupt__ ?? []);
if (command) await graph.invoke(command);
declare const run: () => Promise<ToolMessage>;
(await chain.wrapToolCall({ toolCall: { name: 'refund', args: {}, id: 'a' }, runtime: {} }, run)).content;

const agents = governAgents(options);
const schema = { type: 'object' as const, properties: {}, required: [], additionalProperties: true as const };
const refund = agentTool({ name: 'refund', description: '', parameters: schema, strict: false, execute: () => 1 });
const agent = new Agent({ name: 'desk', tools: agents.tools([refund]) });
const result = await new Runner().run(agent, 'please');
await agents.settle(result.state);
await agents.settle(await RunState.fromString(agent, ''));
for (const item of result.interruptions) (await agents.hold(item))?.url.trim();

const claude = governClaude(options, { onHold: 'defer' });
export const hooks: Options['hooks'] = claude.hooks();
declare const ended: SDKResultMessage;
if (ended.subtype === 'success') await claude.settled(ended);

const call: Call = { tool: 'refund', args: {}, id: 'a' };
const verdict: Verdict = await new Governor(options).guard(call);
if (verdict.decision !== 'allow') refusal(verdict).trim();
// @ts-expect-error who an agent is comes from its key
governAi({ ...options, agentId: 'boss' }).tools({});
`,
  );
  const compilerOptions = {
    ...{ strict: true, exactOptionalPropertyTypes: false, skipLibCheck: true, noEmit: true },
    ...{ target: 'es2024', module: 'nodenext', preserveSymlinks: true, types: [] },
  };
  writeFileSync(path.join(folder, 'tsconfig.json'), JSON.stringify({ compilerOptions, files: ['typed.ts'] }));
  const { stdout } = spawnSync(path.join(ROOT, 'node_modules/.bin/tsc'), ['-p', folder], { encoding: 'utf8' });
  expect(stdout).toBe('');
});
