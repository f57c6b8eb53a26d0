import { expect, test } from 'vitest';
import { pinned } from '../../server/domain/tool-definition.ts';
import { lintTools, toolsNamed } from '../../server/policy/language/tool-lint.ts';
import { useServer } from '../helpers/server.ts';

const SCHEMA = {
  type: 'object',
  properties: {
    amount: { type: 'number' },
    customer: { type: 'object', properties: { id: { type: 'string' } } },
    tags: { type: 'array', items: { type: 'string' } },
    any: {},
    one: { oneOf: [{ type: 'string' }, { type: 'number' }] },
  },
};
const known = { names: ['refund', 'lookup'], schemas: new Map([['refund', [SCHEMA]]]) };
const rule = (tool: string, ...reads: string[]) =>
  `permit(principal, action, resource == Tool::"${tool}")\nwhen { ${reads.map((read) => `context.${read}`).join(' && ') || 'true'} };`;
const lint = (text: string) =>
  lintTools(text, known).map(({ line, column, message }) => `${line}:${column} ${message}`);

test('an argument that the tool does not have, or has as another kind, is warned of where it is read', () => {
  expect(lint(rule('refund', 'num.hasTag("ammount")'))).toEqual([
    '2:27 the tool "refund" has no argument "ammount": did you mean "amount"?',
  ]);
  expect(lint(rule('refund', 'str.hasTag("amount")'))).toEqual([
    '2:27 "amount" of the tool "refund" is read as str, and its schema says num',
  ]);
  expect(lint(rule('refund', 'str.hasTag("customer.idd")'))[0]).toMatch(/did you mean "customer.id"/);
  const right = [
    'num.hasTag("amount")',
    'str.hasTag("customer.id")',
    'list.hasTag("tags")',
    'num.hasTag("tags.length")',
  ];
  const unsure = ['str.hasTag("any")', 'num.hasTag("one")', 'str.hasTag("any.deep")', 'str.hasTag("context.ticket")'];
  expect(lint(rule('refund', ...right, ...unsure))).toEqual([]);
});

test('a tool that nobody lists is warned of where it looks like one that is', () => {
  expect(lint(rule('refnd'))).toEqual(['1:45 no tool server lists "refnd": did you mean "refund"?']);
  expect(lint(rule('entirely-else'))).toEqual([]);
  expect(lint('permit(principal, action, resource);')).toEqual([]);
  expect(toolsNamed(`${rule('a')}\n${rule('b')}`)).toEqual(['a', 'b']);
});

test('schemas of any form, and names of any kind, do no harm', () => {
  for (const schema of [
    null,
    [],
    1,
    { type: { toString: 'x' } },
    { properties: [] },
    { properties: { a: null } },
    { type: ['object', 'null'], properties: {} },
  ]) {
    const odd = { names: ['\u202e"\n'], schemas: new Map([['refund', [schema]]]) };
    expect(lintTools(rule('refund', 'num.hasTag("constructor")'), odd).length).toBeLessThan(2);
  }
});

const server = useServer({}, { shared: true });
test('the route warns by what proxies saw', async () => {
  const tenant = await server.tenant();
  const tool = pinned('crm', { name: 'refund', inputSchema: SCHEMA });
  await server.call(200, 'POST /v1/tools/observed', await tenant.key('proxy'), {
    server: 'crm',
    tools: [{ name: 'refund', ...tool }],
  });
  const { body } = await server.call<{ valid: boolean; warnings: { line: number; column: number; message: string }[] }>(
    200,
    'POST /v1/policies/validate',
    tenant.admin,
    { dsl_source: rule('refund', 'num.hasTag("ammount")') },
  );
  expect(body).toMatchObject({ valid: true, warnings: [{ line: 2, column: 27 }] });
  const other = await server.tenant();
  const theirs = await server.call(200, 'POST /v1/policies/validate', other.admin, {
    dsl_source: rule('refund', 'num.hasTag("ammount")'),
  });
  expect(theirs.body.warnings).toEqual([]);
});
