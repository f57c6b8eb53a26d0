import { CompletionContext } from '@codemirror/autocomplete';
import { EditorState } from '@codemirror/state';
import { expect, test } from 'vitest';
import type { KnownNames } from '../../web/lib/name-kinds.ts';
import { complete } from '../../web/ui/editor/cedar.ts';
import { completeNames } from '../../web/ui/editor/names.ts';

const schema = {
  type: 'object',
  properties: {
    amount: { type: 'number' },
    note: { type: 'string' },
    tags: { type: 'array', items: { type: 'string' } },
    customer: { type: 'object', properties: { id: { type: 'string' } } },
  },
};
/** Of a tool whose server would like to write the policy. */
const HOSTILE = { type: 'object', properties: { 'a") && ("\\': { type: 'string' } } };
const NAMES: KnownNames = {
  tools: async (part) =>
    [
      { name: 'refund', server: 'shop', status: 'approved', labels: ['money'] },
      { name: 'say "hi"', server: 'shop', status: 'pending', labels: [] },
      // looks like the first one
      { name: 'ref\u200bund', server: 'evil', status: 'pending', labels: [] },
      ...['rеfund', 'refund\u2011all', 'refund ', 'refu\u0307nd', 'ѕаѵе'].map((name) => ({
        ...{ name, server: 'evil', status: 'approved', labels: [] },
      })),
      { name: 'refund', server: 'shоp', status: 'pending', labels: [] },
    ].filter(({ name }) => name.includes(part)),
  servers: async () => [{ id: 'shop', tools: 2, trust: 70 }],
  agents: async () => [{ id: 'bot-1', roles: ['support'], labels: ['night'] }],
  schemas: async (tool) => (tool === 'refund' ? [schema] : tool === 'evil' ? [HOSTILE] : []),
  lists: async () => ['known-ibans'],
  groups: async () => ['finance'],
};
const HEAD = 'permit(principal, action, resource == Tool::"refund") when { ';

/** What is offered where `|` stands, and the text with the first of it. */
async function offered(marked: string) {
  const at = marked.indexOf('|');
  const doc = marked.replace('|', '');
  const context = new CompletionContext(EditorState.create({ doc }), at, true);
  const result = await completeNames(context, NAMES);
  const [first] = result?.options ?? [];
  return {
    labels: result?.options.map(({ displayLabel, label }) => displayLabel ?? label) ?? [],
    text: result && first ? doc.slice(0, result.from) + first.apply + doc.slice(at) : doc,
    info: first?.info,
  };
}

test.each([
  ['permit(principal, action, resource == Tool::"ref|', ['refund'], 'Tool::"refund"'],
  ['permit(principal, action, resource == Tool::"say|"', ['say "hi"'], 'Tool::"say \\"hi\\""'],
  ['permit(principal, action, resource in ToolServer::"|"', ['shop'], 'ToolServer::"shop"'],
  ['permit(principal in AgentRole::"|', ['support'], 'AgentRole::"support"'],
  ['permit(principal == Agent::"bo|', ['bot-1'], 'Agent::"bot-1"'],
  [`${HEAD}principal.labels.contains("|")`, ['night'], 'contains("night")'],
  [`${HEAD}resource.labels.containsAny(["x", "|`, ['money'], '["x", "money"'],
  [`${HEAD}context.num.hasTag("|")`, ['amount', 'tags.length'], 'hasTag("amount")'],
  [`${HEAD}context.str.getTag("c|")`, ['note', 'customer.id'], 'getTag("note")'],
  [`${HEAD}context.list.hasTag("|")`, ['tags'], 'hasTag("tags")'],
  [`${HEAD}context.facts.hasTag("note in |")`, ['known-ibans'], 'hasTag("note in known-ibans")'],
  [`${HEAD}context.session.called.hasTag("ref|`, ['refund'], 'hasTag("refund"'],
  ['@quorum("security:1,|")', ['finance'], '@quorum("security:1,finance:1")'],
])('completes %s', async (marked, labels, text) => {
  const found = await offered(marked);
  expect(found.labels).toEqual(labels);
  expect(found.text).toContain(text);
});

test('keeps the names that tools chose within their quotes', async () => {
  const head = 'permit(principal, action, resource == Tool::"evil") when { context.';
  const quoted = String.raw`a\") && (\"\\`;
  expect((await offered(`${head}str.hasTag("|")`)).text).toBe(`${head}str.hasTag("${quoted}")`);
  expect((await offered(`${head}facts.hasTag("|")`)).text).toBe(`${head}facts.hasTag("${quoted} in ")`);
  const listed = await offered(`${head}facts.hasTag("${quoted} in |")`);
  expect(listed.text).toBe(`${head}facts.hasTag("${quoted} in known-ibans")`);
});

test('offers no name that can be taken for another, and approved ones first', async () => {
  const doc = 'permit(principal, action, resource == Tool::"';
  const context = new CompletionContext(EditorState.create({ doc }), doc.length, true);
  const result = await completeNames(context, NAMES);
  expect(result?.options.map(({ label, detail }) => [label, detail])).toEqual([
    ['refund', 'on shop'],
    ['say "hi"', 'on shop, not approved'],
  ]);
  const [approved, other] = result!.options;
  expect(approved!.boost).toBeGreaterThan(other!.boost ?? 0);
});

test('explains what it offers', async () => {
  expect((await offered('Tool::"ref|')).info).toBe('A tool: its definition is approved; labels: money.');
  expect((await offered('@escrow("|')).labels).toContain('multi_party');
});

test('offers arguments only of the statement around it, and no words of the language in a text', async () => {
  const other = `${HEAD}true };\npermit(principal, action, resource) when { context.num.hasTag("|`;
  expect((await offered(other)).labels).toEqual([]);
  const doc = 'permit(principal, action, resource == Tool::"ref';
  expect(complete(new CompletionContext(EditorState.create({ doc }), doc.length, true))).toBeNull();
});
