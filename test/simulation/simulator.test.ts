import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import type { ActionRequest } from '../../server/domain/policy.ts';
import { PolicyEngine, settle } from '../../server/policy/evaluation/evaluate.ts';
import type { Projection } from '../../server/policy/evaluation/projection.ts';
import { directionOf, type Matrix } from '../../server/policy/simulation/outcome.ts';
import { outcomeOf, type Part } from '../../server/policy/simulation/parts.ts';
import { Questions } from '../../server/policy/simulation/question.ts';
import { type Past, Simulator } from '../../server/policy/simulation/simulator.ts';
import { contentOf, NO_STATE, request } from '../policy/support.ts';

const HASH = 'sha256:live';
const NO_FACTS = {
  ...{ covered: [], exceeded: [], unholdable: false, standstill: false, doubtful: false, uncounted: false },
};
let events = 0;
const past = (asked: ActionRequest, more: Partial<Past> & { decision?: Past['recorded']['decision'] } = {}): Past => ({
  seq: ++events,
  event_id: `evt_${events}`,
  at: Date.parse(asked.now),
  facts: NO_FACTS,
  request: asked,
  ...more,
  recorded: {
    decision: more.decision ?? 'allow',
    rule_id: undefined,
    bundle_hash: HASH,
    agent_id: asked.agent_id,
    agent_role: asked.agent_role,
    tool_name: asked.tool_name,
    ...more.recorded,
  },
});
const simulate = (before: Record<string, string>, after: Record<string, string>, pasts: readonly Past[]) => {
  const simulator = new Simulator(contentOf(before), contentOf(after), HASH);
  for (const one of pasts) simulator.add(one);
  return simulator.outcome();
};
const limit = (amount: number) => `
@id("small") permit(principal in AgentRole::"bot", action, resource == Tool::"refund")
when { context.num.hasTag("amount") && context.num.getTag("amount").lessThanOrEqual(decimal("${amount}.0")) };
@id("large") @escrow("single") permit(principal in AgentRole::"bot", action, resource == Tool::"refund")
when { context.num.hasTag("amount") && context.num.getTag("amount").greaterThan(decimal("${amount}.0")) };
@id("card") @mask("$.card") permit(principal, action, resource == Tool::"card");
@id("wipe") forbid(principal, action, resource == Tool::"wipe");
`;

describe('a simulation', () => {
  test('of a moved limit counts what is held no more, with agents, tools, money, ranges and examples', () => {
    const pasts = Array.from({ length: 300 }, (_, n) =>
      past(
        request({
          agent_id: `agent-${n % 7}`,
          tool_name: n % 3 === 0 ? 'card' : 'refund',
          arguments: { amount: n },
          estimated_value: n + 0.25,
          value_currency: n % 2 === 0 ? 'eur' : 'USD',
        }),
        { decision: n % 3 === 0 ? 'allow_with_masking' : n <= 50 ? 'allow' : 'escrow' },
      ),
    );
    const found = simulate({ p: limit(50) }, { p: limit(100) }, pasts);
    const lifted = pasts.filter(({ request }) => {
      const { tool_name, arguments: args } = request as ActionRequest;
      const { amount } = args as { amount: number };
      return tool_name === 'refund' && amount > 50 && amount <= 100;
    });
    expect(found).toMatchObject({
      statements: { added: [], removed: [], changed: ['p#large', 'p#small'] },
      pruned: 100,
      unknown: 0,
      changed: lifted.length,
      nothing_newly_allowed: true,
      drift: { total: 0, unexplained: 0 },
    });
    const sum = (code: string) =>
      lifted.reduce((total, { request }) => {
        const { estimated_value: value, value_currency } = request as ActionRequest;
        return value_currency!.toUpperCase() === code ? total + value! : total;
      }, 0);
    const [group, ...others] = found.groups;
    expect(others).toEqual([]);
    expect(group).toMatchObject({
      direction: 'hold_lifted',
      was: { decision: 'escrow', rule_id: 'p#large' },
      becomes: { decision: 'allow', rule_id: 'p#small' },
      count: lifted.length,
      agents: 7,
      tools: [{ name: 'refund', count: lifted.length }],
      money: { EUR: sum('EUR').toFixed(2), USD: sum('USD').toFixed(2) },
      ranges: [{ path: 'amount', least: 52, most: 100 }],
    });
    expect(group!.examples).toEqual(
      lifted
        .slice(-20)
        .map(({ event_id }) => event_id)
        .reverse(),
    );
    expect(found.matrix.allow_with_masking).toEqual({ allow_with_masking: 100 });
  });

  test('shows no number that a mask of either set hides, wherever it is', () => {
    const permit = (amount: number) =>
      ['salary', 'body.bonus', 'context.fee', 'amount']
        .map(
          (path) =>
            `@id("${path.replace('.', '-')}") permit(principal, action, resource)
             when { context.num.hasTag("${path}") && context.num.getTag("${path}").lessThan(decimal("${amount}.0")) };`,
        )
        .join('\n');
    const mask = '@id("m") @mask("$.salary,$.bonus,$..fee") permit(principal, action, resource == Tool::"other");';
    const pasts = [past(request({ arguments: { salary: 73, body: { bonus: 74 }, amount: 76 }, context: { fee: 75 } }))];
    for (const [before, after] of [
      [{ p: permit(1), q: mask }, { p: permit(100) }],
      [{ p: permit(1) }, { p: permit(100), q: mask }],
    ] as Record<string, string>[][]) {
      const found = simulate(before!, after!, pasts);
      expect(found.groups).toMatchObject([{ count: 1, ranges: [{ path: 'amount', least: 76, most: 76 }] }]);
    }
  });

  test('asks each different question once, however many decisions, agents, times and notes there are', () => {
    const pasts = Array.from({ length: 1000 }, (_, n) =>
      past(
        request({
          agent_id: `agent-${n % 50}`,
          now: new Date(1_700_000_000_000 + n * 1000).toISOString(),
          session_id: `s-${n}`,
          arguments: { amount: n % 5, note: `note ${n}`, items: [{ sku: `${n}` }] },
        }),
      ),
    );
    expect(simulate({ p: limit(2) }, { p: limit(3) }, pasts)).toMatchObject({ questions: 5, pruned: 0 });
  });

  test('names the directions, what a draft gives away first', () => {
    const tools = ['a', 'b', 'c', 'd', 'e', 'f', 'g'];
    const permit = (tool: string, annotations = '') =>
      `@id("${tool}") ${annotations} permit(principal, action, resource == Tool::"${tool}");`;
    const before = [
      ...[permit('b', '@escrow("single")'), permit('d'), permit('e'), permit('f', '@mask("$.x")'), permit('g')],
      permit('h', '@escrow("multi_party") @approvals("2")'),
    ];
    const after = [
      ...[permit('a'), permit('b'), permit('c', '@escrow("single")'), permit('e', '@escrow("single")'), permit('f')],
      ...[permit('g', '@mask("$.x")'), permit('h', '@escrow("single")')],
    ];
    const pasts = [...tools, 'h'].map((tool_name) => past(request({ tool_name })));
    const { groups, nothing_newly_allowed } = simulate({ p: before.join('') }, { p: after.join('') }, pasts);
    expect(groups.map(({ direction, tools: [tool] }) => [direction, tool!.name])).toEqual([
      ['newly_allowed', 'a'],
      ['hold_lifted', 'b'],
      ['denial_held', 'c'],
      ['newly_denied', 'd'],
      ['newly_held', 'e'],
      ['mask_lost', 'f'],
      ['mask_gained', 'g'],
      ['hold_changed', 'h'],
    ]);
    expect(nothing_newly_allowed).toBe(false);
  });

  test('never counts an erased input as unchanged: it is unknown unless no changed statement can apply', () => {
    const pasts = [
      past(request({ tool_name: 'refund' }), { request: 'input_erased' }),
      past(request({ tool_name: 'card' }), { request: 'input_erased' }),
      past(request({ tool_name: 'refund', agent_role: 'clerk' }), { request: 'input_erased' }),
    ];
    const found = simulate({ p: limit(50) }, { p: limit(100) }, pasts);
    expect(found).toMatchObject({ unknown: 1, unknown_by_reason: { input_erased: 1 }, pruned: 2, changed: 0 });
    expect(found.nothing_newly_allowed).toBe(false);
  });

  test('reports what the live policies decide otherwise today apart from what the draft changes', () => {
    const asked = request({ tool_name: 'refund', arguments: { amount: 10 } });
    const other = { ...past(asked).recorded, decision: 'deny' as const, bundle_hash: 'sha256:other' };
    const found = simulate({ p: limit(50) }, { p: limit(100) }, [
      past(asked),
      past(asked, { decision: 'deny' }),
      past(asked, { recorded: other }),
    ]);
    expect(found).toMatchObject({
      changed: 0,
      drift: { total: 2, unexplained: 1, examples: [/^/, /^/].map(() => expect.any(String)) },
    });
  });

  test('lets a hold of the past cover the rules of the same ids only', () => {
    const held = (id: string) =>
      `@id("${id}") @escrow("single") permit(principal, action, resource == Tool::"refund");`;
    const facts = { ...NO_FACTS, covered: ['p#a'] };
    const released = past(request(), { facts });
    const loose = `${held('a')} // other words\n@id("z") forbid(principal, action, resource == Tool::"z");`;
    expect(simulate({ p: held('a') }, { p: loose.replace('refund"', 'refund" ') }, [released]).groups).toEqual([]);
    expect(simulate({ p: held('a') }, { p: held('b') }, [released]).groups).toMatchObject([
      { direction: 'newly_held', was: { decision: 'allow' }, becomes: { rule_id: 'p#b' } },
    ]);
    expect(simulate({ p: held('a') }, { p: `${held('a')}${held('b')}` }, [released]).groups).toMatchObject([
      { direction: 'newly_held' },
    ]);
  });

  test('counts a new limit in the order of time, as the decision protocol does', () => {
    const rated = (annotations: string) =>
      `@id("r") ${annotations} permit(principal, action, resource == Tool::"refund");`;
    const at = (seconds: number) => new Date(1_700_000_000_000 + seconds * 1000).toISOString();
    const call = (seconds: number, agent_id: string, amount = 1) =>
      past(request({ agent_id, now: at(seconds), estimated_value: amount, value_currency: 'EUR' }));
    // given out of order: proxies that were offline bring theirs later
    const pasts = [call(70, 'x'), call(10, 'x'), call(0, 'x'), call(20, 'x'), call(20, 'y')];
    const found = simulate({ p: rated('') }, { p: rated('@rate("2/m")') }, pasts);
    expect(found.simulated_limits).toEqual(['p#r']);
    expect(found.matrix).toEqual({ allow: { allow: 4, rate_limited: 1 } });
    expect(found.groups).toMatchObject([
      { direction: 'newly_limited', simulated: true, count: 1, examples: [pasts[3]!.event_id] },
    ]);
    const together = simulate({ p: rated('') }, { p: rated('@rate("2/m per tenant")') }, pasts);
    expect(together.matrix).toEqual({ allow: { allow: 3, rate_limited: 2 } });
    // what would exceed a budget takes nothing of it
    const spends = [call(0, 'x', 60), call(1, 'x', 50), call(2, 'x', 40), call(3, 'x', 1)];
    const budget = simulate({ p: rated('') }, { p: rated('@budget("100 EUR/d")') }, spends);
    expect(budget.matrix).toEqual({ allow: { allow: 2, rate_limited: 2 } });
    // a held action counts once, however often it is asked for
    const held = simulate({ p: rated('') }, { p: rated('@escrow("single") @rate("1/m")') }, [
      call(0, 'x'),
      call(1, 'x'),
    ]);
    expect(held.matrix).toEqual({ allow: { escrow: 2 } });
  });

  test('does not guess the state of a session that nobody looked up, nor of a rate that did not count', () => {
    const reads = (n: number) => `permit(principal, action, resource) when { context.session.call_count < ${n} };`;
    const session = { call_count: 3, started: '2026-01-02T09:00:00.000Z' };
    const pasts = [past(request({ session_id: 's' })), past(request({ session_id: 's', session })), past(request())];
    const found = simulate({ p: reads(2) }, { p: reads(5) }, pasts);
    expect(found).toMatchObject({ unknown_by_reason: { session_not_recorded: 1 }, changed: 1 });

    const limited = `@id("limit") @rate("1/m") forbid(principal, action, resource);`;
    const open = 'permit(principal, action, resource);';
    const newly = simulate({ l: limited }, { l: limited, o: open }, [past(request(), { decision: 'deny' })]);
    expect(newly).toMatchObject({ unknown_by_reason: { limit_not_recorded: 1 }, changed: 0 });

    // obligations of what nothing permits are not looked at
    const guarded = (n: number) => `@escrow("single") forbid${reads(n).slice('permit'.length)}`;
    const denied = [past(request({ session_id: 's' }), { decision: 'deny' })];
    expect(simulate({ p: guarded(2) }, { p: guarded(5) }, denied)).toMatchObject({ unknown: 0, changed: 0 });
    const permitted = simulate({ p: guarded(2), o: open }, { p: guarded(5), o: open }, denied);
    expect(permitted).toMatchObject({ unknown_by_reason: { session_not_recorded: 1 } });
  });

  test('knows facts of a session only where the live policies read them then, and declare them as the draft does', () => {
    const text = (wanted: string, minutes = 30) => `
      @id("says") @fact("status[order] = answer.status from get_order of shop for ${minutes}m")
      permit(principal, action, resource == Tool::"get_order");
      @id("reads") permit(principal, action, resource == Tool::"refund")
      when { context.session.str.hasTag("status[order]") && context.session.str.getTag("status[order]") == "${wanted}" };`;
    const facts = { 'status[order]': 'paid' };
    const known = request({ session_id: 's', session: { call_count: 1, lowest_trust: 50, facts } });
    const other = { ...past(known).recorded, bundle_hash: 'sha256:other' };
    const pasts = [past(known), past(known, { recorded: other }), past(request({ session_id: 's' }))];
    const found = simulate({ p: text('paid') }, { p: text('sent') }, pasts);
    expect(found).toMatchObject({ unknown_by_reason: { session_not_recorded: 2 }, changed: 1 });
    // another declaration would have kept other facts, which the unchanged rule reads too
    const declared = simulate({ p: text('paid') }, { p: text('paid', 60) }, pasts);
    expect(declared).toMatchObject({ unknown_by_reason: { session_not_recorded: 3 }, changed: 0 });
    const added = simulate({ p: text('paid').split('@id("reads")')[0]! }, { p: text('paid') }, pasts);
    expect(added).toMatchObject({ unknown_by_reason: { session_not_recorded: 3 } });
  });

  /** As a proxy keeps it: what the policies of the time read. */
  const projected = (text: string, asked: ActionRequest): Past => {
    const engine = new PolicyEngine(contentOf({ p: text }));
    const { reads, ...kept } = engine.match(asked).narrowing!.project(asked);
    engine.dispose();
    return past(asked, { request: JSON.parse(JSON.stringify(kept)) as ActionRequest, projected: reads ?? null });
  };

  test('takes what is kept of a request where it has all that both sets read, and else says that it does not know', () => {
    const asked = (amount: number) =>
      request({
        ...{ arguments: { amount, note: 'a secret' }, estimated_value: amount, value_currency: 'EUR' },
        tool_name: 'refund',
      });
    const pasts = [10, 60, 150].map((amount) => projected(limit(20), asked(amount)));
    for (const { request } of pasts) expect(JSON.stringify(request)).not.toMatch(/secret|EUR/);
    const found = simulate({ p: limit(50) }, { p: limit(100) }, pasts);
    expect(found).toMatchObject({
      unknown: 0,
      matrix: { allow: { allow: 1 }, escrow: { allow: 1, escrow: 1 } },
      groups: [{ direction: 'hold_lifted', count: 1, money: {}, unpriced: 1 }],
    });
    const noted = limit(100).replace('decimal("100.0"))', 'decimal("100.0")) && context.str.hasTag("note")');
    for (const [before, after] of [
      [limit(50), noted],
      [noted, limit(50)],
      [limit(50), limit(50).replace('when {', 'when { context has amount &&')],
    ] as const) {
      expect(simulate({ p: before }, { p: after }, pasts)).toMatchObject({
        unknown: 3,
        unknown_by_reason: { projection_insufficient: 3 },
        matrix: {},
        nothing_newly_allowed: false,
      });
    }
    // no policy was asked then: there is nothing that says what of the request is missing
    const unasked = { ...pasts[0]!, projected: null };
    expect(simulate({ p: limit(50) }, { p: limit(100) }, [unasked]).unknown_by_reason).toEqual({
      projection_insufficient: 1,
    });
    // which actions are the same is not known of parts of them
    const counted = limit(50).replace('@escrow', '@rate("1/m") @escrow');
    expect(simulate({ p: limit(50) }, { p: counted }, pasts)).toMatchObject({
      unknown_by_reason: { projection_insufficient: 2 },
      matrix: { allow: { allow: 1 } },
    });
  });

  test('leaves a denial that no policy took, and denies while limits cannot be counted', () => {
    const doubtful = past(request({ tool_name: 'refund', arguments: { amount: 1 } }), {
      decision: 'deny',
      facts: { ...NO_FACTS, doubtful: true },
    });
    expect(simulate({ p: limit(50) }, { p: limit(0) }, [doubtful])).toMatchObject({
      matrix: { deny: { deny: 1 } },
      drift: { total: 0 },
    });
    const uncounted = past(request({ arguments: { amount: 1 } }), {
      decision: 'deny',
      facts: { ...NO_FACTS, uncounted: true },
    });
    const rated = limit(50).replace('@id("small")', '@id("small") @rate("9/m")');
    expect(simulate({ p: rated }, { p: rated.replace('9/m', '8/m') }, [uncounted])).toMatchObject({
      matrix: { deny: { deny: 1 } },
      drift: { total: 0 },
    });
    expect(simulate({ p: rated }, { p: limit(50) }, [uncounted]).matrix).toEqual({ deny: { allow: 1 } });
  });

  test('shared between several simulators has the same outcome', () => {
    const pasts = Array.from({ length: 200 }, (_, n) =>
      past(
        request({
          agent_id: `agent-${n % 7}`,
          tool_name: n % 3 === 0 ? 'card' : 'refund',
          arguments: { amount: n },
          estimated_value: n,
          value_currency: 'EUR',
        }),
        n % 50 === 0 ? { request: 'input_erased' } : { decision: n === 61 ? 'deny' : n <= 50 ? 'allow' : 'escrow' },
      ),
    );
    const [before, after] = [contentOf({ p: limit(50) }), contentOf({ p: limit(100) })];
    const parts = [0, 1, 2].map((share) => {
      const simulator = new Simulator(before, after, HASH);
      expect(simulator.counts).toBe(false);
      for (const one of pasts.filter((_, n) => Math.floor(n / 10) % 3 === share)) simulator.add(one);
      // as it comes from another thread
      return structuredClone(simulator.part());
    });
    const { questions: _, ...whole } = simulate({ p: limit(50) }, { p: limit(100) }, pasts);
    expect(outcomeOf(parts as [Part, ...Part[]])).toMatchObject(whole);
    const limited = limit(100).replace('@id("small")', '@id("small") @rate("5/m")');
    expect(new Simulator(before, contentOf({ p: limited }), HASH).counts).toBe(true);
  });

  test('shows what agents write short and with nothing hidden', () => {
    const tool_name = `re\u202efund\u0000${'x'.repeat(500)}`;
    const { groups } = simulate({}, { p: 'permit(principal, action, resource);' }, [
      past(request({ tool_name, value_currency: '<b>evil</b>', estimated_value: 5 }), { decision: 'deny' }),
    ]);
    const [name] = groups[0]!.tools.map((tool) => tool.name);
    expect(name).toMatch(/^re⟦U\+202E⟧fund␀x+…$/);
    expect(name!.length).toBeLessThan(100);
    expect(groups[0]!.money).toEqual({ other: '5.00' });
  });
});

/** Texts with heads and conditions of all kinds, drawn at random. */
const CONDITIONS = [
  'true',
  'context.num.hasTag("amount") && context.num.getTag("amount").greaterThan(decimal("50.0"))',
  'context.str.hasTag("note") && context.str.getTag("note") like "*x*"',
  'context.num.hasTag("items.length") && context.num.getTag("items.length").greaterThan(decimal("1.0"))',
  'context.str.hasTag("items[0].sku") && context.str.getTag("items[0].sku") == "a"',
  'context.list.hasTag("tags") && context.list.getTag("tags").contains("x")',
  'context.str.hasTag("context.ticket") && context.str.getTag("context.ticket") == "T"',
  'context.bool.hasTag("arguments.context.on") && context.bool.getTag("arguments.context.on")',
  'context.now < datetime("2026-01-02T12:00:00Z")',
  'context.risk_score.greaterThan(decimal("0.5"))',
  'context has amount && context.amount.greaterThan(decimal("10.0"))',
  'context has path && context.path like "/v1/*"',
  'context has source_ip && context.source_ip.isInRange(ip("10.0.0.0/8"))',
  'context.session.call_count > 2',
  'context.session.id == "s1"',
  'principal has owner && principal.owner == "o1"',
  'principal == Agent::"agent-1"',
  'context has method && context.method == "GET"',
  'context has currency && context.currency == "EUR"',
  'context.num.hasTag("amount") && context.str.hasTag("note") && context.num.hasTag(context.str.getTag("note"))',
];
const statement = fc
  .record({
    effect: fc.constantFrom('permit', 'permit', 'forbid'),
    principal: fc.constantFrom(
      'principal',
      'principal in AgentRole::"bot"',
      'principal == Agent::"agent-1"',
      'principal is Agent',
    ),
    action: fc.constantFrom('action', 'action == Action::"tool_call"', 'action in Action::"write"'),
    resource: fc.constantFrom(
      'resource',
      'resource == Tool::"refund"',
      'resource in ToolServer::"crm"',
      'resource in Tool::"refund"',
    ),
    obligation: fc.constantFrom(
      '',
      '',
      '@escrow("single")',
      '@mask("$.a")',
      '@mask("$.b")',
      '@escrow("multi_party") @approvals("2")',
    ),
    condition: fc.constantFrom(...CONDITIONS),
  })
  .map(
    ({ effect, principal, action, resource, obligation, condition }) =>
      (n: number) =>
        `@id("s${n}") ${obligation} ${effect}(${principal}, ${action}, ${resource}) when { ${condition} };\n`,
  );
const texts = fc.array(statement, { minLength: 1, maxLength: 5 });
const asked: fc.Arbitrary<ActionRequest> = fc
  .record(
    {
      agent_id: fc.constantFrom('agent-1', 'agent-2'),
      agent_role: fc.constantFrom('bot', 'clerk'),
      action_type: fc.constantFrom('tool_call', 'db_query', 'unknown'),
      tool_name: fc.constantFrom('refund', 'card'),
      tool_server: fc.constantFrom('crm', undefined),
      tool_pin: fc.constantFrom(undefined, null, 'sha256:x'),
      owner: fc.constantFrom('o1', 'o2'),
      method: fc.constantFrom('GET', 'get', 'POST'),
      resource: fc.constantFrom('/v1/a', '/v1/../b', 'https://x.test/v1/a?q', 'http://[', 'x:y', 'https:\\\\h/v1/'),
      now: fc.constantFrom('2026-01-02T10:00:00.000Z', '2026-01-02T13:00:00.000Z', '2026-99-02T13:00:00.000Z'),
      risk_score: fc.constantFrom(0.1, 0.9, 1.5),
      estimated_value: fc.constantFrom(5, 50, 1e18, 0.00001),
      value_currency: fc.constantFrom('EUR', 'eur', 'USD'),
      source_ip: fc.constantFrom('10.1.1.1', '::ffff:10.0.0.1', '9.9.9.9', 'nowhere'),
      session_id: fc.constantFrom('s1', 's2'),
      session: fc.record({
        call_count: fc.integer({ min: 0, max: 4 }),
        started: fc.constant('2026-01-02T09:00:00.000Z'),
      }),
      context: fc.constantFrom({ ticket: 'T' }, { ticket: 'U' }, { ticket: 1 }, 'text', null),
      arguments: fc.oneof(
        fc.constantFrom('text', 5, null, [1], { amount: 1e17 }, { amount: '51' }, { amount: 'x51' }),
        fc.record(
          {
            amount: fc.constantFrom(1, 51, '51', '5_1', null, [], { value: 51 }),
            Amount: fc.constantFrom(1, 2),
            'amount[]': fc.constantFrom(1),
            note: fc.constantFrom('x', 'y', 'amount', 'Amount', 5),
            items: fc.constantFrom([], [{ sku: 'a' }], [{ sku: 'b' }, {}], { length: 5 }, 'a'),
            tags: fc.constantFrom(['x'], ['y'], 'x', [1]),
            context: fc.constantFrom({ on: true }, { on: false }, 'x'),
            other: fc.constantFrom('a', 'b', 1, 2, { deep: [1, 2] }),
          },
          { requiredKeys: [] },
        ),
      ),
    },
    { requiredKeys: ['agent_id', 'agent_role', 'action_type', 'tool_name', 'now', 'arguments'] },
  )
  .map((one) => JSON.parse(JSON.stringify(one)) as ActionRequest);

describe('for any two texts and any requests', () => {
  const runs = { numRuns: Number(process.env.SVC_SIEGE ? 3_000 : 40) };
  const draw = fc.record({
    before: texts,
    after: texts,
    shared: fc.boolean(),
    requests: fc.array(asked, { minLength: 1, maxLength: 40 }),
  });

  test('the result is that of asking both sets about every request', () => {
    fc.assert(
      fc.property(draw, ({ before, after, shared, requests }) => {
        const join = (list: typeof before) => list.map((write, n) => write(n)).join('');
        const old = { p: join(before) };
        // a draft that shares its beginning with the live text prunes
        const next = { p: join(shared ? [...before.slice(1), ...after.slice(0, 1)] : after) };
        const [live, draft] = [new PolicyEngine(contentOf(old)), new PolicyEngine(contentOf(next))];
        const known = requests.filter(({ session, session_id }) => session || !session_id);
        const matrix: Matrix = {};
        const directions: Record<string, number> = {};
        const pasts = known.map((one) => {
          const [was, becomes] = [settle(live.match(one), NO_STATE), settle(draft.match(one), NO_STATE)];
          matrix[was.decision] ??= {};
          const row = matrix[was.decision]!;
          row[becomes.decision] = (row[becomes.decision] ?? 0) + 1;
          const direction = directionOf(was, becomes);
          if (direction) directions[direction] = (directions[direction] ?? 0) + 1;
          return past(one, { decision: was.decision });
        });
        live.dispose();
        draft.dispose();
        const found = simulate(old, next, pasts);
        expect(found.matrix).toEqual(matrix);
        expect(found.drift.total).toBe(0);
        const counted = Object.fromEntries(
          [...Map.groupBy(found.groups, ({ direction }) => direction)].map(([direction, groups]) => [
            direction,
            groups.reduce((sum, { count }) => sum + count, 0),
          ]),
        );
        expect(counted).toEqual(directions);
      }),
      runs,
    );
  });

  // some runs at random, and a seed whose few runs are known to meet both ends
  test.each([
    ['at random', undefined],
    ['with both ends', 21],
  ])('a part of a request gives the answer of the whole one, or none: %s', (_, seed) => {
    let [answered, missed] = [0, 0];
    fc.assert(
      fc.property(draw, texts, fc.boolean(), ({ before, after, requests }, then, all) => {
        const join = (list: typeof before) => list.map((write, n) => write(n)).join('');
        const [old, next] = [{ p: join(before) }, { p: join(after) }];
        // policies of the time that read all that these do, or others
        const time = contentOf(all ? { a: old.p, b: next.p } : { a: join(then) });
        const engine = new PolicyEngine(time);
        for (const asked of requests) {
          const { narrowing } = engine.match(asked);
          if (!narrowing) continue;
          const { reads, ...kept } = JSON.parse(JSON.stringify(narrowing.project(asked))) as Projection;
          const part = simulate(old, next, [past(asked, { request: kept, projected: reads ?? null })]);
          if (part.unknown_by_reason.projection_insufficient) {
            expect(all).toBe(false);
            missed++;
            continue;
          }
          const whole = simulate(old, next, [past(asked)]);
          const { matrix, unknown, unknown_by_reason, changed, pruned } = whole;
          expect(part).toMatchObject({ matrix, unknown, unknown_by_reason, changed, pruned });
          expect(part.groups.map(({ direction, was, becomes }) => ({ direction, was, becomes }))).toEqual(
            whole.groups.map(({ direction, was, becomes }) => ({ direction, was, becomes })),
          );
          answered++;
        }
        engine.dispose();
      }),
      { numRuns: Math.ceil(runs.numRuns / 4), ...(seed !== undefined && { seed }) },
    );
    if (seed !== undefined) expect(Math.min(answered, missed)).toBeGreaterThan(0);
  });

  test('requests with the same key are the same question', () => {
    fc.assert(
      fc.property(draw, ({ before, requests }) => {
        const content = contentOf({ p: before.map((write, n) => write(n)).join('') });
        const questions = new Questions(content.policies, content.action_entities);
        const engine = new PolicyEngine(content);
        const answers = new Map<string, string>();
        for (const one of requests) {
          const { outcome, hits, ambiguousPath } = engine.match(one);
          const answer = JSON.stringify([outcome, hits.map(({ id }) => id), ambiguousPath]);
          const key = questions.keyOf(one);
          expect(answers.get(key) ?? answer).toBe(answer);
          answers.set(key, answer);
        }
        engine.dispose();
      }),
      runs,
    );
  });
});
