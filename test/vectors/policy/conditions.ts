import type { ActionRequest } from '../../../server/domain/policy.ts';
import { mapRequest } from '../../../server/policy/evaluation/request.ts';
import { CedarHost } from '../../../server/policy/language/host.ts';
import { actionEntities, schemaFor } from '../../../server/policy/language/schema.ts';

/** What Cedar makes of conditions: the golden answers that the compiled conditions are held against. */
export interface ConditionVector {
  condition: string;
  /** By request: `T`, `F`, or `E` for an error. */
  answers: string;
}

const BASE: ActionRequest = {
  ...{ agent_id: 'agent-1', agent_role: 'bot', action_type: 'tool_call', tool_name: 'refund' },
  now: '2026-01-02T10:00:00.000Z',
};

/** The requests that each condition is asked of. */
export const CONDITION_REQUESTS: readonly ActionRequest[] = [
  BASE,
  {
    ...BASE,
    ...{ tool_server: 'crm', owner: 'ann', method: 'get', resource: 'https://Example.com:8443/a/../b?q=1' },
    ...{ session_id: 's', risk_score: 0.50001, estimated_value: 250.01, value_currency: 'eur', source_ip: '10.1.2.3' },
    arguments: { n: 250.01, t: 'a*b', b: true, l: ['a', 'b'], deep: { k: [{ x: '5.0' }] } },
    session: {
      ...{ call_count: 5, started: '2026-01-01T23:59:59.999Z', lowest_trust: 40, called: ['pay failed'] },
      facts: { owner: 'ann', limit: '99.5', due: '2026-01-02T10:00:00Z', open: false, tags: ['x', 'y'] },
    },
  },
  {
    ...BASE,
    ...{
      agent_id: 'bot',
      agent_role: 'agent-1',
      action_type: 'db_query',
      tool_server: 'refund',
      source_ip: '::ffff:127.0.0.1',
    },
    ...{ session_id: '', risk_score: 0, estimated_value: -0, now: '1969-12-31T23:59:59.999Z' },
    arguments: { n: -0.0001, t: '', b: false, l: [], toString: 'x' },
    session: { call_count: Number.MAX_SAFE_INTEGER, started: '0000-01-01T00:00:00Z', facts: { limit: -1 } },
  },
  {
    ...BASE,
    ...{
      resource: '/a/😀',
      source_ip: '2001:db8::1',
      now: '9999-12-31T23:59:59.999Z',
      estimated_value: 922_337_203_685_477,
    },
    arguments: { n: '922337203685477.5807', t: '😀', l: ['😀', 'a', 'a'], context: { k: 1 } },
    context: { k: '1.0' },
  },
];

/** Facts that are true of each. */
export const CONDITION_FACTS = new Set(['t in known']);

export const CONDITIONS: readonly string[] = [
  // logic, and what is not reached
  ...['true', 'false', '!true', 'true && false', 'true || (1 + 9007199254740991 > context.session.call_count)'],
  ...[
    'false && context.session.call_count * 9007199254740991 > 0',
    'if context has method then context.method == "GET" else false',
  ],
  // integers
  ...[
    'context.session.call_count + 1 > 5',
    'context.session.call_count * 1024 > 0',
    'context.session.call_count * 1025 > 0',
  ],
  ...[
    '-context.session.call_count < 0',
    '0 - context.session.call_count * 1024 - 1024 < 0',
    '1 - 2 * 3 == -5',
    '-9223372036854775808 < 0',
  ],
  // decimals
  ...[
    'context has amount && context.amount.greaterThan(decimal("250.0"))',
    'context has amount && context.amount == decimal("0.0")',
  ],
  ...[
    'context.num.hasTag("n") && context.num.getTag("n").lessThan(decimal("0.0"))',
    'context.num.getTag("n").greaterThanOrEqual(decimal("250.01"))',
  ],
  ...[
    'context.num.hasTag("n") && context.num.getTag("n") == decimal("922337203685477.5807")',
    'context.risk_score.lessThanOrEqual(decimal("0.5"))',
  ],
  ...[
    'decimal("-922337203685477.5808").lessThan(decimal("-922337203685477.5807"))',
    'context.num.hasTag("l.length") && context.num.getTag("l.length") == decimal("2.0")',
  ],
  // texts and patterns
  ...[
    'context.str.hasTag("t") && context.str.getTag("t") == "a*b"',
    'context.str.hasTag("t") && context.str.getTag("t") like "a\\**"',
  ],
  ...[
    'context.str.hasTag("t") && context.str.getTag("t") like "*"',
    'context.str.hasTag("t") && context.str.getTag("t") like "*\\u{1F600}*"',
  ],
  ...[
    '"abab" like "*ab*ab"',
    '"ab" like "ab*ab"',
    '"aba" like "*ab*ba*"',
    '"" like ""',
    '"a" like "*a*a*"',
    '"x\\0" == "x"',
  ],
  ...[
    'context has path && context.path like "/b*"',
    'context has host && context.host == "example.com"',
    'context.str.hasTag("toString")',
  ],
  ...[
    'context.str.hasTag("arguments.context.k")',
    'context.num.hasTag("context.k") && context.num.getTag("context.k") == decimal("1.0")',
  ],
  // sets
  ...[
    'context.list.hasTag("l") && context.list.getTag("l").contains("a")',
    'context.list.hasTag("l") && context.list.getTag("l").isEmpty()',
  ],
  ...[
    'context.list.hasTag("l") && context.list.getTag("l") == ["b", "a", "a"]',
    'context.list.hasTag("l") && context.list.getTag("l").containsAll(["a", "a"])',
  ],
  ...[
    'context.list.hasTag("l") && ["x", "b"].containsAny(context.list.getTag("l"))',
    '[1, 2].containsAll([2, 2, 1])',
    '[decimal("1.0")].contains(decimal("1.00"))',
  ],
  // entities
  ...[
    'principal in AgentRole::"bot"',
    'principal == Agent::"agent-1"',
    'Agent::"agent-1" in AgentRole::"bot"',
    'Agent::"other" in AgentRole::"bot"',
  ],
  ...[
    'resource in ToolServer::"crm"',
    'resource in [ToolServer::"x", ToolServer::"refund"]',
    'Tool::"refund" in Tool::"refund"',
    'principal is Agent in AgentRole::"bot"',
  ],
  ...[
    'action in Action::"write"',
    'action in [Action::"read", Action::"payment"]',
    'action == Action::"tool_call"',
    'resource is Agent',
    'AgentRole::"bot" in AgentRole::"bot"',
  ],
  ...[
    'principal has owner && principal.owner == "ann"',
    'principal.owner == "ann"',
    'resource has server && resource.server == ToolServer::"crm"',
    'resource has labels',
  ],
  ...['resource has server.trust', 'resource.server.trust > 0', 'Agent::"bot" has owner'],
  // addresses
  ...[
    'context has source_ip && context.source_ip.isInRange(ip("10.0.0.0/8"))',
    'context has source_ip && context.source_ip.isLoopback()',
  ],
  ...[
    'context has source_ip && context.source_ip.isIpv6()',
    'context has source_ip && context.source_ip.isInRange(ip("2001:DB8::/32"))',
  ],
  ...[
    'ip("127.0.0.0/7").isLoopback()',
    'ip("224.0.0.0/3").isMulticast()',
    'ip("ff00::/8").isMulticast()',
    'ip("10.0.0.0/8") == ip("10.0.0.0/9")',
  ],
  ...[
    'ip("10.0.0.1/8") == ip("10.0.0.0/8")',
    'ip("0.0.0.0/0").isInRange(ip("0.0.0.0/0"))',
    'ip("1::") == ip("1:0:0::0")',
    'ip("10.0.0.0/7").isInRange(ip("10.0.0.0/8"))',
  ],
  // times
  ...[
    'context.now > datetime("1970-01-01")',
    'context.now.toDate() == datetime("1969-12-31")',
    'context.now.toTime() > duration("12h")',
  ],
  ...[
    'context.now.offset(duration("1ms")) == datetime("1970-01-01T00:00:00Z")',
    'context.now.durationSince(context.session.started).toDays() > 0',
  ],
  ...[
    'duration("-1500ms").toSeconds() == -1',
    'duration("1d2h3m4s5ms").toMilliseconds() == 93784005',
    'datetime("2024-02-29T00:00:00+0530") < datetime("2024-02-29")',
  ],
  ...[
    'datetime("9999-12-31").offset(duration("9223372036854775807ms")) > context.now',
    'duration("-1d") < duration("0ms")',
  ],
  // the session
  ...[
    'context.session.id == "s"',
    'context.session.lowest_trust < 50',
    'context.session.called.hasTag("pay failed")',
    'context.session.called.hasTag("pay")',
  ],
  ...[
    'context.session.str.hasTag("owner") && context.session.str.getTag("owner") == principal.owner',
    'context.session.bool.hasTag("open") && !context.session.bool.getTag("open")',
  ],
  ...[
    'context.session.num.hasTag("limit") && context.session.num.getTag("limit").lessThan(decimal("100.0"))',
    'context.session.list.hasTag("tags") && context.session.list.getTag("tags").contains("y")',
  ],
  ...[
    'context.session.time.hasTag("due") && context.session.time.getTag("due") <= context.now',
    'context.session.str.hasTag("due")',
    'context.session.str.hasTag("__proto__")',
  ],
  // facts
  ...[
    'context.facts.hasTag("t in known")',
    'context.facts.getTag("t in known")',
    'context.facts.hasTag("t in other")',
    'context.facts.getTag("t in other")',
  ],
  // outside the compiled subset
  ...[
    'context == context',
    '{a: 1}.a == 1',
    '1 == "1"',
    'context.str.hasTag(context.session.id)',
    '[[1]].contains([1])',
    'true && 1',
  ],
];

export function conditionVectors(): ConditionVector[] {
  const host = new CedarHost();
  const id = (n: number) => `c${n}`;
  const staticPolicies = Object.fromEntries(
    CONDITIONS.map((condition, n) => [id(n), `permit(principal, action, resource) when { ${condition} };`]),
  );
  const answers = CONDITION_REQUESTS.map((request) => {
    const { facts, called } = request.session ?? {};
    const session = { facts: new Set(Object.keys(facts ?? {})), calls: new Set(called) };
    const call = mapRequest(request, actionEntities()).call({
      keys: null,
      attributes: null,
      facts: CONDITION_FACTS,
      session,
    });
    const answer = host.call('isAuthorized', {
      ...call,
      schema: schemaFor(),
      validateRequest: true,
      policies: { staticPolicies },
    });
    if (answer.type !== 'success') throw new Error(JSON.stringify(answer.errors));
    const { reason, errors } = answer.response.diagnostics;
    return { held: new Set(reason), failed: new Set(errors.map(({ policyId }) => policyId)) };
  });
  return CONDITIONS.map((condition, n) => ({
    condition,
    answers: answers.map(({ held, failed }) => (failed.has(id(n)) ? 'E' : held.has(id(n)) ? 'T' : 'F')).join(''),
  }));
}
