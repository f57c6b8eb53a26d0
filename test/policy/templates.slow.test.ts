import { readdirSync, readFileSync } from 'node:fs';
import { beforeAll, describe, expect, test } from 'vitest';
import { runCases, type SuiteRun } from '../../server/policy/authoring/run-suite.ts';
import { readSuite } from '../../server/policy/authoring/suite.ts';
import { PolicyEngine, settle } from '../../server/policy/evaluation/evaluate.ts';
import { compilePolicy } from '../../server/policy/language/compile.ts';
import { preamble, statementTokens, tokens } from '../../server/policy/language/scan.ts';
import { schemaFor } from '../../server/policy/language/schema.ts';
import { type ExampleCall, suiteFor, templatesOf, toolTemplate } from '../../web/parts/policy-templates.ts';
import { type TestTenant, useServer } from '../helpers/server.ts';
import { contentOf, host, NO_STATE, request } from './support.ts';

const server = useServer({}, { shared: true });
const FOLDER = new URL('../../web/templates/', import.meta.url);
const TEMPLATES = templatesOf((path) => readFileSync(new URL(path, FOLDER), 'utf8'));
let tenant: TestTenant;
beforeAll(async () => {
  tenant = await server.tenant();
});

/** A suggested rule for a tool, whatever its server calls it. */
const SUGGESTED = [
  'refund',
  '"); permit(principal, action, resource); //',
  'a\u202e\n\u200b',
  '\\',
  '漢字',
  '123',
  ' ',
  "it's",
].map((tool) => ({
  ...toolTemplate('crm"\n', tool),
  tool,
}));

describe.each(SUGGESTED)('the rule that is suggested for $tool', ({ id, source, tool }) => {
  test('is one rule, only for that tool of that server, with a hold', async () => {
    const { body } = await server.call(200, 'POST /v1/policies/validate', tenant.admin, { id, dsl_source: source });
    expect(body).toMatchObject({ valid: true, errors: [] });
    const decide = async (tool_name: string, tool_server: string, agent_role = 'agents') => {
      const request = { agent_id: 'a', agent_role, action_type: 'tool_call', tool_name, tool_server };
      const answer = await server.call<{ verdict: { decision: string } }>(200, 'POST /v1/policies/try', tenant.admin, {
        dsl_source: source,
        alone: true,
        request,
      });
      return answer.body.verdict.decision;
    };
    expect(await decide(tool, 'crm"\n')).toBe('escrow');
    for (const other of [decide('another', 'crm"\n'), decide(tool, 'crm'), decide(tool, 'crm"\n', 'clerk')]) {
      expect(await other).toBe('deny');
    }
  });
});

/** Values for the lists that templates name. */
const LISTS = [{ name: 'known-payees', version: 1, values: ['DE89 3704'] }];

/** The suite of a template on a text that may be another than its own. */
function run(id: string, source: string, tests: string, lists = LISTS): SuiteRun {
  const { errors, statements } = compilePolicy(host, id, source, schemaFor(), ['known-payees']);
  const suite = readSuite(tests);
  expect([errors, suite.errors]).toEqual([[], []]);
  expect(suite.scope).toBe('policy');
  return runCases(contentOf({ [id]: source }, null, lists), statements, suite.cases);
}

test('there are many of them, each with its files', () => {
  const folders = readdirSync(FOLDER).sort();
  const ids = TEMPLATES.filter(({ id }) => id !== 'blank').map(({ id }) => id);
  expect(ids.length).toBeGreaterThanOrEqual(12);
  expect([...ids].sort()).toEqual(folders);
});

describe.each(TEMPLATES)('the template $id', ({ id, source, denied, allowed, held }) => {
  test('has no errors and no warnings, and decides its examples as described', () => {
    expect(compilePolicy(host, id, source, schemaFor(), ['known-payees'])).toMatchObject({ errors: [], warnings: [] });
    const engine = new PolicyEngine(contentOf({ [id]: source }, null, LISTS));
    const decide = (call: ExampleCall) =>
      settle(engine.match(request({ tool_server: undefined, ...call })), NO_STATE).decision;
    expect(decide(denied)).toBe('deny');
    if (allowed) expect(decide(allowed)).toBe('allow');
    if (held) expect(decide(held)).toBe('escrow');
    engine.dispose();
  });
});

/** All but the blank one have a suite. */
describe.each(TEMPLATES.filter(({ tests }) => tests !== ''))('the template $id', ({ id, source, tests }) => {
  test('passes its suite, under any id, and each statement is covered', () => {
    const { results, coverage } = run(id, source, tests);
    expect(results.filter(({ ok }) => !ok)).toEqual([]);
    expect(coverage.percent).toBe(100);
    const renamed = run('mine', source, suiteFor({ id, tests }, 'mine'));
    expect(renamed.failed).toBe(0);
    // what it promises does not depend on what is in a list
    expect(run(id, source, tests, [{ ...LISTS[0]!, values: ['another'] }]).failed).toBe(0);
  });

  test('has a suite that notices a dropped statement and a flipped effect', () => {
    const read = tokens(source);
    for (const statement of statementTokens(read)) {
      const [first, last] = [statement[0]!, statement.at(-1)!];
      const effect = statement[preamble(statement).rest - 1]!;
      const name = source.slice(first.start, first.start + 40);
      const dropped = source.slice(0, first.start) + source.slice(last.end);
      expect(run(id, dropped, tests).failed, `without ${name}`).toBeGreaterThan(0);
      const other = effect.text === 'permit' ? 'forbid' : 'permit';
      const flipped = source.slice(0, effect.start) + other + source.slice(effect.end);
      expect(run(id, flipped, tests).failed, `flipped ${name}`).toBeGreaterThan(0);
    }
  });
});
