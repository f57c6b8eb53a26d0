import { beforeAll, describe, expect, test } from 'vitest';
import { TEMPLATES } from '../../web/parts/policy-templates.ts';
import { type TestTenant, useServer } from '../helpers/server.ts';

const server = useServer();
let tenant: TestTenant;
beforeAll(async () => {
  tenant = await server.tenant();
});

describe.each(TEMPLATES)('the template $id', ({ id, source, denied, allowed }) => {
  test('has no errors and no warnings, and decides its examples as it says', async () => {
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
