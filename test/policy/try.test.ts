import { beforeAll, describe, expect, test } from 'vitest';
import { changed, deploy, fingerprint, GUARD } from '../helpers/api.ts';
import { type TestTenant, useServer } from '../helpers/server.ts';

const server = useServer();
let tenant: TestTenant;
beforeAll(async () => {
  tenant = await server.tenant();
  await deploy(server, tenant.admin, 'guard', GUARD);
});

interface Verdict {
  decision: string;
  rule_id: string | null;
  hold?: { required_approvals: number };
}
interface Tried {
  valid: boolean;
  errors: { line: number }[];
  verdict?: Verdict;
  live?: Verdict;
  hits: { rule_id: string; line?: number }[];
}

const request = { agent_id: 'a', agent_role: 'clerk', action_type: 'tool_call', tool_name: 'pay' };
async function tryOut(body: object): Promise<Tried> {
  return (await server.call<Tried>(200, 'POST /v1/policies/try', tenant.admin, { request, ...body })).body;
}

describe('a text that is tried', () => {
  test('replaces the live version among the other live policies', async () => {
    const draft = '@id("no") forbid(principal, action, resource == Tool::"pay");';
    const other = await tryOut({ id: 'other', dsl_source: draft });
    expect(other.verdict).toMatchObject({ decision: 'deny', rule_id: 'other#no' });
    expect(other.live).toMatchObject({ decision: 'escrow', rule_id: 'guard#1', hold: { required_approvals: 1 } });
    expect(other.hits).toEqual([
      { rule_id: 'other#no', policy_id: 'other', effect: 'forbid', guardrail: false, line: 1 },
    ]);
    const same = await tryOut({ id: 'guard', dsl_source: 'permit(principal, action, resource == Tool::"pay");' });
    expect(same.verdict).toMatchObject({ decision: 'allow', rule_id: 'guard#0' });
  });

  test('can be tried alone', async () => {
    const alone = await tryOut({ dsl_source: 'permit(principal, action, resource == Tool::"read");', alone: true });
    expect(alone.verdict).toMatchObject({ decision: 'deny', rule_id: null });
  });

  test('with errors is not evaluated, and the errors have positions', async () => {
    const wrong = await tryOut({ dsl_source: 'permit(principal,\n action resource);' });
    expect(wrong).toMatchObject({ valid: false, errors: [{ line: 2 }], hits: [] });
    expect(wrong.verdict).toBeUndefined();
  });

  test('that fails on the request denies, with the reason', async () => {
    const failing = await tryOut({
      dsl_source: 'permit(principal, action, resource);',
      request: { ...request, action_type: 'unknown' },
    });
    expect(failing).toMatchObject({
      verdict: { decision: 'deny', deny_reason: 'policy_error' },
      detail: expect.stringContaining('action type'),
    });
  });

  test('leaves no trace', async () => {
    const before = await fingerprint(server);
    await tryOut({ dsl_source: '@rate("1/m") permit(principal, action, resource);' });
    expect(changed(before, await fingerprint(server))).toEqual([]);
  });
});
