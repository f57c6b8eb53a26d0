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
  detail?: string;
  trace?: {
    rules: { rule_id: string; conditions: { outcome: string }[] }[];
    more: number;
    unfit: object[];
    set: object;
  };
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
      verdict: { decision: 'deny', deny_reason: 'policy_error: the action type "unknown" is not in the schema' },
      detail: expect.stringContaining('action type'),
    });
  });

  test('is traced rule by rule: what each condition was, where the engine failed, and which scope does not fit', async () => {
    const dsl_source = [
      '@id("a") permit(principal in AgentRole::"clerk", action, resource == Tool::"pay")',
      'when { context.num.hasTag("amount") && context.num.getTag("amount").lessThan(decimal("50.0")) };',
      '@id("b") permit(principal in AgentRole::"boss", action, resource == Tool::"send");',
      '@id("c") permit(principal, action, resource) when {',
      '  context.str.hasTag("boom") && context.session.call_count + 9223372036854775807 > 0 && true };',
    ].join('\n');
    const ask = (more: object) => tryOut({ id: 'own', dsl_source, trace: true, request: { ...request, ...more } });
    const outcomes = ({ trace }: Tried, id: string) =>
      trace!.rules.find(({ rule_id }) => rule_id === id)?.conditions.map(({ outcome }) => outcome);

    const over = await ask({ arguments: { amount: 60 } });
    expect(over.trace!.unfit).toEqual([{ rule_id: 'own#b', line: 3, parts: ['principal', 'resource'] }]);
    expect(outcomes(over, 'own#a')).toEqual(['true', 'false']);
    expect(outcomes(over, 'own#c')).toEqual(['false', 'not_asked', 'not_asked']);
    // the rules of other policies that are for it, too
    const guard = over.trace!.rules.find(({ rule_id }) => rule_id === 'guard#1')!;
    expect(guard).toMatchObject({ decided: true, matched: true });
    expect(guard).not.toHaveProperty('line');

    const failed = await ask({ arguments: { boom: 'x' }, session: { call_count: 1 } });
    expect(failed.verdict).toMatchObject({
      decision: 'deny',
      deny_reason: 'policy_error: a condition of own#c fails on this request',
    });
    expect(failed.detail).toContain('own#c');
    expect(outcomes(failed, 'own#a')).toEqual(['false', 'not_asked']);
    expect(outcomes(failed, 'own#c')).toEqual(['true', 'failed', 'not_asked']);
    expect(failed.trace!.rules.find(({ rule_id }) => rule_id === 'own#a')).toMatchObject({ line: 1, matched: false });

    // of what cannot be read nothing is said, and nothing without being asked
    expect((await ask({ action_type: 'unknown' })).trace).toMatchObject({ rules: [], more: 0, unfit: [] });
    expect(await tryOut({ dsl_source })).not.toHaveProperty('trace');
  });

  test('says what people set, which no request says', async () => {
    const other = await server.tenant();
    const admin = await other.person('admin');
    await server.call(200, 'PUT /v1/agents/a/labels', admin, { labels: ['senior'] });
    await server.call(200, 'PUT /v1/tool-servers/shop', admin, { trust: 70, reason: 'as agreed' });
    const ask = async (more: object) => {
      const body = {
        dsl_source: 'permit(principal, action, resource);',
        trace: true,
        request: { ...request, ...more },
      };
      return (await server.call<Tried>(200, 'POST /v1/policies/try', admin, body)).body.trace!.set;
    };
    expect(await ask({ tool_server: 'shop' })).toEqual({ agent_labels: ['senior'], tool_labels: [], server_trust: 70 });
    expect(await ask({ agent_id: 'b' })).toEqual({ agent_labels: [], tool_labels: [], server_trust: null });
  });

  test('of many rules is traced within bounds', async () => {
    const rule = (n: number) =>
      `@id("r${n}") permit(principal, action, resource) when { context.risk_score.lessThan(decimal("0.${n}")) };`;
    const dsl_source = Array.from({ length: 90 }, (_, n) => rule(n)).join('\n');
    const { trace } = await tryOut({ id: 'own', dsl_source, trace: true });
    expect(trace!.rules).toHaveLength(20);
    expect(trace!.rules.length + trace!.more).toBeGreaterThanOrEqual(90);
  });

  test('leaves no trace', async () => {
    const before = await fingerprint(server);
    await tryOut({ dsl_source: '@rate("1/m") permit(principal, action, resource);', trace: true });
    await tryOut({ dsl_source: '@rate("1/m") permit(principal, action, resource);' });
    expect(changed(before, await fingerprint(server))).toEqual([]);
  });
});
