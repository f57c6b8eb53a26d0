import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { ActionRequest } from '../../server/domain/policy.ts';
import { PolicyEngine, settle } from '../../server/policy/evaluation/evaluate.ts';
import { leaseOf, takenFrom, tenThousandths } from '../../server/policy/evaluation/limits.ts';
import { compile, contentOf, NO_STATE, request } from './support.ts';

const permit = (annotation: string) => `${annotation} permit(principal, action, resource);`;

function limits(annotation: string, change: Partial<ActionRequest> = {}) {
  const engine = new PolicyEngine(contentOf({ pol: permit(annotation) }));
  try {
    const match = engine.match(request(change));
    return { match, limits: match.limits, reason: settle(match, NO_STATE).deny_reason };
  } finally {
    engine.dispose();
  }
}
const keyOf = (annotation: string, change: Partial<ActionRequest> = {}) => limits(annotation, change).limits[0]?.key;

describe('what is counted apart', () => {
  const other = { agent_id: 'agent-2', agent_role: 'clerk', tool_name: 'mail', tool_server: 'post', session_id: 's-2' };
  it.each([
    ['agent', { agent_id: 'agent-2' }],
    ['owner', { owner: 'usr_2' }],
    ['session', { session_id: 's-2' }],
    ['role', { agent_role: 'clerk' }],
    ['tool', { tool_name: 'mail' }],
    ['arguments.order_id', { arguments: { order_id: 'B' } }],
    ['context.ticket', { context: { ticket: 'B' } }],
  ])('per %s: that alone', (per, change) => {
    const base = { owner: 'usr_1', session_id: 's-1', arguments: { order_id: 'A' }, context: { ticket: 'A' } };
    const annotation = `@rate("1/d per ${per}")`;
    const key = keyOf(annotation, base);
    expect(key).toMatch(/^[\w-]{43}$/);
    expect(keyOf(annotation, { ...base, ...change })).not.toBe(key);
    const rest = Object.fromEntries(
      Object.entries({ ...other, owner: 'usr_2' }).filter(
        ([name]) =>
          !(name in change) &&
          !(per === 'session' && name === 'agent_id') &&
          !(per === 'tool' && name === 'tool_server'),
      ),
    );
    expect(keyOf(annotation, { ...base, ...rest })).toBe(key);
  });

  it('per tool: a server only where a policy or the registry knows it, and callers open a bounded number', () => {
    const text = `${permit('@rate("1/d per tool")')} permit(principal, action, resource) when
      { resource has server && resource.server == ToolServer::"crm" };`;
    const registry = {
      agents: [],
      servers: [{ id: 'shop', mode: 'warn' as const, trust: null, check_arguments: false, reviewed: false, tools: [] }],
    };
    const engine = new PolicyEngine({ ...contentOf({ pol: text }), registry });
    const at = (tool_server: string | undefined) => engine.match(request({ tool_server })).limits[0]!;
    try {
      const unknown = at(undefined);
      expect(unknown.chosen).toBe(true);
      for (const name of ['x', 'y', 'crm2']) expect(at(name).key).toBe(unknown.key);
      expect(new Set([unknown.key, at('crm').key, at('shop').key]).size).toBe(3);
    } finally {
      engine.dispose();
    }
  });

  it('per tenant: nothing', () => {
    const annotation = '@rate("1/d per tenant")';
    expect(keyOf(annotation, { ...other, owner: 'x' })).toBe(keyOf(annotation));
  });

  it('is the agent where nothing else is said, and where an agent has no owner', () => {
    expect(keyOf('@rate("1/d")')).toBe(keyOf('@rate("1/d per agent")'));
    const unowned = keyOf('@rate("1/d per owner")');
    expect(keyOf('@rate("1/d per owner")', { agent_id: 'agent-2' })).not.toBe(unowned);
    // a person cannot be named like an agent to share its limit
    expect(keyOf('@rate("1/d per owner")', { agent_id: 'agent-2', owner: 'agent-1' })).not.toBe(unowned);
  });

  it('a session is one of its agent', () => {
    const annotation = '@rate("1/d per session")';
    expect(keyOf(annotation, { session_id: 's', agent_id: 'agent-2' })).not.toBe(
      keyOf(annotation, { session_id: 's' }),
    );
  });

  it.each([
    ['17', 17, '017', '17.0', '+17', ' 17 ', '１７', '1.7e1', '0x11', '1\u200b7'],
    ['90071992547409931', '0090071992547409931', '+90071992547409931'],
    ['A-17', 'a-17', ' A-17', 'Ａ-17', 'A-17\u200b'],
    [true, 'true', 'TRUE'],
  ])('spellings of one value are one value: %s', (...spellings) => {
    const annotation = '@rate("1/d per arguments.order_id")';
    const keys = spellings.map((order_id) => keyOf(annotation, { arguments: { order_id } }));
    expect(keys[0]).toBeDefined();
    expect(new Set(keys).size).toBe(1);
  });

  it('other values are other values', () => {
    const annotation = '@rate("1/d per arguments.order_id")';
    const values = ['17', '18', '-17', '1.7', 'A-17', 'B-17', '90071992547409931', '90071992547409932', '', 'e', '1e'];
    expect(new Set(values.map((order_id) => keyOf(annotation, { arguments: { order_id } }))).size).toBe(values.length);
  });

  it.each([
    [{}],
    [{ order_id: null }],
    [{ order_id: ['A'] }],
    [{ order_id: { id: 'A' } }],
    [{ order_id: 1.23456 }],
    [{ order_id: 'A', Order_ID: 'B' }],
    [{ 'order_id ': 'A' }],
    [{ 'order_id[]': 'A' }],
    [{ order_id: 'x'.repeat(16_385) }],
  ])('a value that is missing or that programs read differently denies: %j', (args) => {
    expect(limits('@rate("1/d per arguments.order_id")', { arguments: args }).reason).toBe(
      'argument_in_doubt: arguments.order_id',
    );
  });

  it('an argument named context is not the fact of the caller', () => {
    const asked = { arguments: { context: { ticket: 'A' } }, context: { ticket: 'B' } };
    const forged = { arguments: { context: { ticket: 'B' } }, context: { ticket: 'B' } };
    expect(keyOf('@rate("1/d per context.ticket")', asked)).toBe(keyOf('@rate("1/d per context.ticket")', forged));
    expect(keyOf('@rate("1/d per arguments.context.ticket")', asked)).not.toBe(
      keyOf('@rate("1/d per arguments.context.ticket")', forged),
    );
  });
});

describe('what is spent', () => {
  const paying = (estimated_value: number | undefined, value_currency: string | undefined = 'EUR') =>
    limits('@budget("500 EUR/d")', { estimated_value, value_currency });

  it('is the value of the action, exactly', () => {
    expect(paying(120.5).limits).toMatchObject([{ kind: 'budget', limit: 5_000_000, units: 1_205_000 }]);
    expect(paying(0.1).limits[0]!.units + paying(0.2).limits[0]!.units).toBe(paying(0.3).limits[0]!.units);
    expect(paying(0).limits[0]!.units).toBe(0);
  });

  it.each([
    [undefined, 'EUR', 'estimated_value'],
    [-5, 'EUR', 'estimated_value'],
    [-0.0001, 'EUR', 'estimated_value'],
    [0.00001, 'EUR', 'estimated_value'],
    [1e14, 'EUR', 'estimated_value'],
    [5, 'USD', 'value_currency'],
    [5, undefined, 'value_currency'],
    [5, '', 'value_currency'],
    [5, 'EUR ', 'value_currency'],
  ])('%s %s is in doubt', (estimated_value, value_currency, path) => {
    const found = limits('@budget("500 EUR/d")', {
      ...(estimated_value !== undefined && { estimated_value }),
      ...(value_currency !== undefined && { value_currency }),
    });
    expect(found.reason).toBe(`argument_in_doubt: ${path}`);
  });

  it.each([
    [{ total: 5, unit: 'EUR' }, 50_000],
    [{ total: '5.25', unit: 'eur' }, 52_500],
    [{ total: '1e3', unit: 'EUR' }, 'total'],
    [{ total: '1,000', unit: 'EUR' }, 'total'],
    [{ total: '-1', unit: 'EUR' }, 'total'],
    [{ total: -1, unit: 'EUR' }, 'total'],
    [{ total: '٣', unit: 'EUR' }, 'total'],
    [{ total: '999999999999999999', unit: 'EUR' }, 'total'],
    [{ total: [5], unit: 'EUR' }, 'total'],
    [{ total: 5, Total: 1, unit: 'EUR' }, 'total'],
    [{ unit: 'EUR' }, 'total'],
    [{ total: 5 }, 'unit'],
    [{ total: 5, unit: 'JPY' }, 'unit'],
    [{ total: 5, unit: 978 }, 'unit'],
    [{ total: 5, unit: 'EUR', Unit: 'JPY' }, 'unit'],
  ])('of arguments: %j', (args, expected) => {
    const found = limits('@budget("500 EUR/d of arguments.total in arguments.unit")', { arguments: args });
    if (typeof expected === 'number') expect(found.limits).toMatchObject([{ units: expected }]);
    else expect(found.reason).toBe(`argument_in_doubt: arguments.${expected}`);
  });

  it('a guardrail without a hit counts nothing and doubts nothing', () => {
    const text = `permit(principal, action, resource);
      @budget("5 EUR/d") forbid(principal, action, resource == Tool::"pay") when { context has amount };`;
    const engine = new PolicyEngine(contentOf({ pol: text }));
    expect(engine.match(request())).toMatchObject({ outcome: 'permitted', limits: [] });
    expect(engine.match(request({ tool_name: 'pay' }))).toMatchObject({ outcome: 'permitted', limits: [] });
    expect(engine.match(request({ tool_name: 'pay', estimated_value: 5 })).outcome).toBe('ambiguous');
    engine.dispose();
  });

  it('never adds up inexactly: ten-thousandths of every decimal', () => {
    fc.assert(
      fc.property(fc.nat({ max: 99_999_999_999 }), fc.nat({ max: 9_999 }), (whole, part) => {
        const text = `${whole}.${String(part).padStart(4, '0')}`;
        expect(tenThousandths(text)).toBe(whole * 10_000 + part);
      }),
    );
    for (const text of ['', '-1.0', '1e3', '1.23456', '999999999999999.9999'])
      expect(tenThousandths(text)).toBe(undefined);
  });
});

describe('a window', () => {
  const limit = { limit: 10, units: 1, window_seconds: 60 };

  it('never has more than the limit, whatever is taken when, and whatever the clock does', () => {
    const step = fc.record({
      units: fc.nat({ max: 12 }),
      extra: fc.nat({ max: 5 }),
      ms: fc.integer({ min: -90_000, max: 30_000 }),
    });
    fc.assert(
      fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
        let [now, window, sum]: [number, Parameters<typeof takenFrom>[0], number] = [1e12, undefined, 0];
        for (const { units, extra, ms } of steps) {
          now += ms;
          const result = takenFrom(window, { ...limit, units }, now, extra);
          if ('retry_after' in result) {
            expect(result.retry_after).toBeGreaterThan(0);
            expect(result.retry_after).toBeLessThanOrEqual(60);
            continue;
          }
          sum = result.began ? result.granted : sum + result.granted;
          expect(result.window.units).toBe(sum);
          expect(sum).toBeLessThanOrEqual(10);
          expect(result.granted).toBeGreaterThanOrEqual(units);
          expect(result.window.endsAt).toBeLessThanOrEqual(now + 60_000);
          window = result.window;
        }
      }),
    );
  });

  it('does not last longer because the clock was set back', () => {
    const full = { units: 10, endsAt: 1e12 + 60_000 };
    expect(takenFrom(full, limit, 1e12 - 3_600_000)).toEqual({ retry_after: 60 });
  });

  it('only rates with high limits are taken ahead', () => {
    expect(leaseOf({ kind: 'rate', limit: 49 })).toBe(0);
    expect(leaseOf({ kind: 'rate', limit: 100 })).toBe(2);
    expect(leaseOf({ kind: 'rate', limit: 1_000_000 })).toBe(1_000);
    expect(leaseOf({ kind: 'budget', limit: 1_000_000 })).toBe(0);
  });
});

it('is said in plain words', () => {
  const { statements } = compile(
    permit('@rate("1/d per arguments.order_id") @budget("500 EUR/30d of arguments.total per tenant")'),
  );
  expect(statements[0]!.summary.obligations).toEqual([
    'at most 1 per day for each value of arguments.order_id',
    'actions worth, as arguments.total says, at most 500 EUR per 30 days for all together',
  ]);
});

it('a malformed limit is an error at its place', () => {
  const { errors } = compile(
    'permit(principal, action, resource);\n@id("x")\n  @budget("500 euros") forbid(principal, action, resource);',
  );
  expect(errors).toEqual([expect.objectContaining({ line: 3, column: 3 })]);
});
