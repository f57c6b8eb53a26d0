import { beforeAll, describe, expect, test } from 'vitest';
import { TEMPLATES, toolTemplate } from '../../web/parts/policy-templates.ts';
import { type TestTenant, useServer } from '../helpers/server.ts';

const server = useServer();
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

describe.each(TEMPLATES)('the template $id', ({ id, source, denied, allowed }) => {
  test('has no errors and no warnings, and decides its examples as described', async () => {
    const checked = await server.call(200, 'POST /v1/policies/validate', tenant.admin, { id, dsl_source: source });
    expect(checked.body).toEqual({ valid: true, errors: [], warnings: [] });
    for (const [example, decision] of [
      [denied, 'deny'],
      [allowed, 'allow'],
    ] as const) {
      const { body } = await server.call<{ verdict: { decision: string } }>(
        200,
        'POST /v1/policies/try',
        tenant.admin,
        {
          dsl_source: source,
          alone: true,
          request: { agent_id: 'a', action_type: 'tool_call', ...example },
        },
      );
      expect(body.verdict.decision).toBe(decision);
    }
  });
});
