import { afterEach, describe, expect, it } from 'vitest';
import type { ActionRequest } from '../../server/domain/policy.ts';
import {
  decisionHost,
  NOTHING_PERMITS,
  POLICY_ERROR,
  PolicyEngine,
  settle,
} from '../../server/policy/evaluation/evaluate.ts';
import { contentOf, NO_STATE, request } from './support.ts';

const engines: PolicyEngine[] = [];
function engineOf(...statements: string[]): PolicyEngine {
  const engine = new PolicyEngine(contentOf({ pol: statements.join('\n') }));
  engines.push(engine);
  return engine;
}
const decide = (engine: PolicyEngine, change: Partial<ActionRequest> = {}) =>
  settle(engine.match(request(change)), NO_STATE);
const ALL = 'permit(principal, action, resource);';

afterEach(() => {
  for (const engine of engines.splice(0)) engine.dispose();
});

describe('matching', () => {
  it('denies if nothing permits, even without any policy', () => {
    expect(decide(engineOf('permit(principal in AgentRole::"other", action, resource);'))).toMatchObject({
      decision: 'deny',
      deny_reason: NOTHING_PERMITS,
      rule_id: null,
      rule_ids: [],
    });
    const empty = new PolicyEngine({ ...contentOf({ pol: ALL }), policies: [] });
    expect(decide(empty)).toMatchObject({ decision: 'deny', deny_reason: NOTHING_PERMITS });
  });

  it('a hard forbid denies with its reason, even if something permits', () => {
    const engine = engineOf(ALL, '@reason("not today") forbid(principal, action, resource == Tool::"refund");');
    expect(decide(engine)).toMatchObject({ decision: 'deny', deny_reason: 'not today', rule_id: 'pol#1' });
    expect(decide(engine, { tool_name: 'other' })).toMatchObject({ decision: 'allow', rule_id: 'pol#0' });
  });

  it('reports the first of several hard forbids by id, and lists them all', () => {
    const engine = engineOf(
      ALL,
      '@id("z") forbid(principal, action, resource);',
      '@id("a") forbid(principal, action, resource);',
    );
    for (let n = 0; n < 10; n++) {
      expect(decide(engine)).toMatchObject({
        rule_id: 'pol#a',
        rule_ids: ['pol#a', 'pol#z'],
        deny_reason: 'forbidden by policy',
      });
    }
  });

  it('a guardrail grants nothing', () => {
    const engine = engineOf('@escrow("single") forbid(principal, action, resource);');
    expect(decide(engine)).toMatchObject({ decision: 'deny', deny_reason: NOTHING_PERMITS, rule_ids: [] });
  });

  it('a forbid that fails denies, though the engine skips it and allows', () => {
    const overflow =
      'forbid(principal, action, resource) when { context.session.call_count + 9223372036854775807 > 0 };';
    const session = { call_count: 1, started: request().now };
    for (const statement of [overflow, `@escrow("single") ${overflow}`, overflow.replace('forbid', 'permit')]) {
      const match = engineOf(ALL, statement).match(request({ session }));
      expect(match).toMatchObject({ outcome: 'error', detail: expect.stringContaining('overflow') });
      expect(settle(match, NO_STATE)).toMatchObject({
        decision: 'deny',
        deny_reason: `${POLICY_ERROR}: a condition of pol#1 fails on this request`,
        rule_id: 'pol#1',
        rule_ids: ['pol#1'],
      });
    }
  });

  it('a request that cannot be mapped is a policy error, even if nothing could match', () => {
    for (const engine of [engineOf(ALL), engineOf('permit(principal == Agent::"x", action, resource);')]) {
      for (const [change, cause] of [
        [{ action_type: 'rocket_launch' }, 'the action type "rocket_launch" is not in the schema'],
        [{ estimated_value: Number.NaN }, 'estimated_value is not a number from -922337203685477 to 922337203685477'],
        [{ now: 'now' }, 'now is not an ISO 8601 time'],
        [{ agent_id: '' }, 'agent_id is missing'],
      ] as const) {
        expect(decide(engine, change)).toMatchObject({ decision: 'deny', deny_reason: `${POLICY_ERROR}: ${cause}` });
      }
    }
  });

  it('survives 1,200 requests with lone surrogates in every string, without a new instance', () => {
    const before = decisionHost().replaced;
    const engine = engineOf('permit(principal, action, resource) when { context.str.hasTag("note") };');
    const lone = 'x\uD83D';
    for (let n = 0; n < 1_200; n++) {
      const verdict = decide(engine, {
        agent_id: lone,
        agent_role: lone,
        tool_name: lone,
        tool_server: lone,
        session_id: lone,
        resource: lone,
        value_currency: lone,
        method: lone,
        owner: lone,
        arguments: { note: lone, [lone]: [lone] },
        context: { [lone]: lone },
      });
      expect(verdict.decision).toBe('allow');
    }
    expect(decisionHost().replaced).toBe(before);
  });

  it('continues after the shared engine was lost', () => {
    const [one, other] = [engineOf(ALL), engineOf('@rate("1/s") permit(principal, action, resource);')];
    expect(decide(one).decision).toBe('allow');
    for (let n = 0; n < 3; n++) {
      expect(() => decisionHost().call('checkParsePolicySet', { staticPolicies: '\uD83D' })).toThrow();
      expect(decide(one).decision).toBe('allow');
      expect(other.match(request()).limits).toMatchObject([
        { rule_id: 'pol#0', kind: 'rate', limit: 1, units: 1, window_seconds: 1 },
      ]);
    }
  });

  it('arguments that look like entities or extension values stay arguments', () => {
    const engine = engineOf(
      'permit(principal in AgentRole::"admin", action, resource);',
      'permit(principal, action, resource) when { context.num.hasTag("limit.__extn.arg") };',
      'permit(principal, action, resource) when { context.str.hasTag("__entity.id") };',
    );
    for (const args of [
      { __entity: { type: 'AgentRole', id: 'admin' } },
      { limit: { __extn: { fn: 'decimal', arg: '1.0' } } },
    ]) {
      const { decision, rule_id } = decide(engine, { arguments: args });
      expect(decision).toBe('allow');
      expect(rule_id).not.toBe('pol#0');
    }
    expect(decide(engine, { arguments: { x: { __entity: { type: 'AgentRole', id: 'admin' } } } }).decision).toBe(
      'deny',
    );
  });

  it('a limit on a number holds for numbers, texts of numbers, and numbers beyond the range', () => {
    const engine = engineOf(
      ALL,
      'forbid(principal, action, resource) when { context.num.hasTag("total") && context.num.getTag("total").greaterThan(decimal("250.0")) };',
    );
    const of = (total: unknown) => decide(engine, { arguments: { total } }).decision;
    for (const over of [250.01, '250.01', ' 250.01', '251', '1e3', '0xfff', '999999999999999999999', 1e15, '２５１']) {
      expect(of(over), String(over)).toBe('deny');
    }
    for (const within of [250, '250', '250.0000', -1, '0', `${'0'.repeat(70)}250.${'0'.repeat(70)}`])
      expect(of(within), String(within)).toBe('allow');
  });

  it('reads a key that a policy computes', () => {
    const engine = engineOf(
      'permit(principal, action, resource) when { context has method && context.str.hasTag(context.method) && context.str.getTag(context.method) == "yes" };',
    );
    expect(decide(engine, { method: 'POST', arguments: { POST: 'yes', other: 'x' } }).decision).toBe('allow');
  });

  it('guardrails read the context too', () => {
    const engine = engineOf(
      ALL,
      '@escrow("single") @id("risk") forbid(principal, action in Action::"write", resource) when { context.risk_score.greaterThan(decimal("0.8")) };',
      '@mask("$.a") @id("list") forbid(principal, action, resource) when { context.list.hasTag("to") && context.list.getTag("to").contains("x") };',
      '@mask("$.b") @id("path") forbid(principal, action, resource) when { context["path"] == "/x" };'.replace(
        'context["path"]',
        'context has path && context["path"]',
      ),
      '@mask("$.c") @id("session") forbid(principal, action, resource) when { context.session.id == "s" };',
      '@mask("$.d") @id("owner") forbid(principal, action, resource) when { principal has owner && principal.owner == "o" };',
    );
    const verdict = decide(engine, {
      risk_score: 0.9,
      arguments: { to: ['x', 'y'] },
      resource: '/x',
      session_id: 's',
      owner: 'o',
    });
    expect(verdict.rule_ids).toEqual(['pol#0', 'pol#list', 'pol#owner', 'pol#path', 'pol#risk', 'pol#session']);
    expect(decide(engine, { risk_score: 0.9, action_type: 'db_query' }).rule_ids).toEqual(['pol#0']);
  });

  it('keeps the memory of the shared engine flat over thousands of scopes and engines', () => {
    const statements = Array.from(
      { length: 200 },
      (_, n) => `permit(principal, action, resource == Tool::"t${n}") when { context.session.call_count < ${n + 5} };`,
    );
    const content = contentOf({ pol: statements.join('\n') });
    const round = (times: number) => {
      for (let n = 0; n < times; n++) {
        const engine = new PolicyEngine(content);
        for (let t = 0; t < 200; t += 10) expect(decide(engine, { tool_name: `t${t}` }).rule_ids).toEqual([`pol#${t}`]);
        engine.dispose();
      }
    };
    round(20);
    const warm = decisionHost().memoryBytes;
    round(150);
    expect(decisionHost().memoryBytes - warm).toBeLessThan(2 * 1024 * 1024);
  });

  it('accepts a bundle of this language version or an older one, and no newer one', () => {
    const content = contentOf({ pol: ALL });
    expect(() => new PolicyEngine({ ...content, cedar_lang: '4.0' })).not.toThrow();
    for (const cedar_lang of ['99.0', '4.99', '5.0', 'x']) {
      expect(() => new PolicyEngine({ ...content, cedar_lang })).toThrow(RangeError);
    }
  });

  it('accepts no bundle whose fields contradict the text', () => {
    const content = contentOf({ pol: 'forbid(principal, action, resource) when { context has path };' });
    const policies = content.policies.map((one) => ({ ...one, effect: 'permit' as const }));
    expect(() => new PolicyEngine({ ...content, policies })).toThrow(RangeError);
  });

  it('denies if a text of the bundle does not parse, but only requests that it could affect', () => {
    const content = contentOf({ pol: `${ALL} permit(principal, action, resource == Tool::"x");` });
    const policies = content.policies.map((one) => ({ ...one, cedar: one.cedar.replace('"x");', '"x") when { ;') }));
    const engine = new PolicyEngine({ ...content, policies });
    engines.push(engine);
    expect(decide(engine).decision).toBe('allow');
    expect(decide(engine, { tool_name: 'x' })).toMatchObject({ decision: 'deny', deny_reason: POLICY_ERROR });
  });
});
