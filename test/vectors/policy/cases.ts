import type { ActionRequest } from '../../../server/domain/policy.ts';

/** The policies that the request vectors are decided by: every annotation, every kind of decision. */
export const DEMO = `
// 0: a plain grant
@scope("payments")
permit(principal in AgentRole::"payments-bot", action in [Action::"api_call", Action::"payment"], resource in ToolServer::"stripe")
when { context has amount && context.amount.lessThanOrEqual(decimal("100.50")) };

// 1: a grant that is held
@scope("payments") @escrow("multi_party") @approvals("2") @ttl("1h") @reason("Zahlung über 100,50 € 😀")
permit(principal in AgentRole::"payments-bot", action == Action::"payment", resource in ToolServer::"stripe")
when { context has amount && context.amount.greaterThan(decimal("100.50")) && context has currency && ["EUR","USD"].contains(context.currency) };

// 2: a guardrail on all that writes
@scope("core") @escrow("single") @ttl("30m")
forbid(principal, action in Action::"write", resource) when { context.risk_score.greaterThan(decimal("0.8")) };

// 3: released by a report
@scope("core,support") @escrow("conditional") @condition("kyc-check") @report("independent") @ttl("2h")
permit(principal in AgentRole::"support-bot", action == Action::"tool_call", resource == Tool::"close_account")
when { context.str.hasTag("customer.id") };

// 4: a guardrail by the hour, UTC
@scope("core") @escrow("time_delayed") @delay("15m") @ttl("1h")
forbid(principal in AgentRole::"support-bot", action == Action::"message_send", resource)
unless { context.now.toTime() >= duration("9h") && context.now.toTime() < duration("17h") };

// 5: masked
@scope("support") @mask("$.card.number,$.ssn")
permit(principal in AgentRole::"support-bot", action in Action::"read", resource)
when { context has path && context.path like "/v1/customers/*" };

// 6: limited
@scope("support") @rate("10/m")
permit(principal in AgentRole::"support-bot", action == Action::"message_send", resource);

// 7: never
@scope("core") @reason("DROP and DELETE, and sources outside the company, are never allowed")
forbid(principal, action, resource)
when { (context.str.hasTag("sql") && (context.str.getTag("sql") like "*DROP *" || context.str.getTag("sql") like "*DELETE *"))
  || (context has source_ip && !context.source_ip.isInRange(ip("10.0.0.0/8"))) };

// 8: a limit on an argument
@reason("refund above 250")
forbid(principal, action == Action::"tool_call", resource == Tool::"refund")
when { context.num.hasTag("refund.total") && context.num.getTag("refund.total").greaterThan(decimal("250.0")) };

// 9
@rate("3/h")
permit(principal in AgentRole::"support-bot", action == Action::"tool_call", resource == Tool::"refund");

@id("wire-quorum") @escrow("multi_party") @quorum("finance:1,security:1") @execute_within("15m") @severity("high")
@notify("https://hooks.example.com/approvals") @reason("wire transfers need finance and security") @ttl("4h")
forbid(principal, action == Action::"payment", resource) when { context.str.hasTag("kind") && context.str.getTag("kind") == "wire" };

@id("at-night-masked") @mask("$..iban") @description("whatever is paid at night")
forbid(principal, action == Action::"payment", resource) when { context.now.toTime() < duration("6h") };

@id("counting-overflow")
forbid(principal, action == Action::"file_read", resource) when { context.session.call_count + 9223372036854775807 > 5 };

@id("files")
permit(principal in AgentRole::"support-bot", action == Action::"file_read", resource) when { context has path && context.path == "/srv/faq.md" };

@id("ticketed")
permit(principal in AgentRole::"support-bot", action == Action::"api_call", resource)
when { context.str.hasTag("context.ticket") && context has host && context.host == "api.example.com" };

@id("cancels-pending") @fact("order_status[order_id] = answer.status from get_order of shop for 30m")
permit(principal in AgentRole::"support-bot", action == Action::"tool_call", resource == Tool::"cancel_order")
when {
  context.session.called.hasTag("get_order") && context.session.lowest_trust >= 50 &&
  context.session.str.hasTag("order_status[order_id]") && context.session.str.getTag("order_status[order_id]") == "pending"
};

@id("goodwill") @budget("200 EUR/d of arguments.total in arguments.currency per tenant")
permit(principal in AgentRole::"support-bot", action == Action::"tool_call", resource == Tool::"give_credit");

@id("noted") @null("absent")
permit(principal in AgentRole::"support-bot", action == Action::"tool_call", resource == Tool::"note")
unless { context.str.hasTag("cc") };
`;

export interface RequestCase {
  name: string;
  request: ActionRequest;
  exceeded?: Record<string, { retry_after: number }>;
  covered?: string[];
  /** What must come out, written by hand: the generator refuses to write a vector that says something else. */
  expect: { decision: string; rule: string | null; deny_reason?: string };
}

const payment: ActionRequest = {
  agent_id: 'agent-7',
  agent_role: 'payments-bot',
  action_type: 'payment',
  tool_server: 'stripe',
  tool_name: 'charge',
  session_id: 's1',
  now: '2026-01-02T10:00:00.000Z',
  risk_score: 0.2,
  source_ip: '10.1.2.3',
  estimated_value: 100.5,
  value_currency: 'EUR',
};
const support: ActionRequest = {
  agent_id: 'agent-7',
  agent_role: 'support-bot',
  action_type: 'tool_call',
  tool_server: 'crm',
  tool_name: 'refund',
  session_id: 's1',
  now: '2026-01-02T10:00:00.000Z',
  risk_score: 0.2,
  source_ip: '10.1.2.3',
};
const query = { ...support, action_type: 'db_query', tool_name: 'crm_db', resource: '/v1/customers/42' };
const closing = { ...support, tool_name: 'close_account' };
const message = { ...support, action_type: 'message_send', tool_name: 'mail' };
const credit = { ...support, tool_name: 'give_credit' };
const wire = { ...payment, estimated_value: 50, arguments: { kind: 'wire' } };

const NOTHING = 'no policy permits this action';
const denied = (deny_reason: string, rule: string | null = null) => ({ decision: 'deny', rule, deny_reason });
const failed = (cause: string, rule?: string) => denied(`policy_error: ${cause}`, rule);
const FOREIGN = 'DROP and DELETE, and sources outside the company, are never allowed';

export const REQUESTS: RequestCase[] = [
  { name: 'a payment up to the limit', request: payment, expect: { decision: 'allow', rule: 'pol_demo#0' } },
  {
    name: 'a payment over the limit is held for two',
    request: { ...payment, estimated_value: 100.51 },
    expect: { decision: 'escrow', rule: 'pol_demo#1' },
  },
  {
    name: 'another currency: nothing permits',
    request: { ...payment, estimated_value: 100.51, value_currency: 'GBP' },
    expect: denied(NOTHING),
  },
  {
    name: 'a currency that is no code of ISO 4217 is in doubt',
    request: { ...payment, estimated_value: 100.51, value_currency: 'eur' },
    expect: denied('argument_in_doubt: value_currency', 'pol_demo#1'),
  },
  {
    name: 'a risk just over 0.8 meets the guardrail',
    request: { ...payment, estimated_value: 5, risk_score: 0.8001 },
    expect: { decision: 'escrow', rule: 'pol_demo#2' },
  },
  {
    name: 'an unknown risk is a high risk',
    request: { ...payment, estimated_value: 5, risk_score: undefined },
    expect: { decision: 'escrow', rule: 'pol_demo#2' },
  },
  {
    name: 'a guardrail grants nothing',
    request: { ...payment, agent_role: 'nobody', estimated_value: 5, risk_score: 0.9 },
    expect: denied(NOTHING),
  },
  {
    name: 'the strictest of two escrow rules decides',
    request: { ...payment, estimated_value: 100.51, risk_score: 0.9 },
    expect: { decision: 'escrow', rule: 'pol_demo#1' },
  },
  {
    name: 'a hold that covers one of two escrow rules is not enough',
    request: { ...payment, estimated_value: 100.51, risk_score: 0.9 },
    covered: ['pol_demo#1'],
    expect: { decision: 'escrow', rule: 'pol_demo#1' },
  },
  {
    name: 'a hold that covers both is consumed',
    request: { ...payment, estimated_value: 100.51, risk_score: 0.9 },
    covered: ['pol_demo#1', 'pol_demo#2'],
    expect: { decision: 'allow', rule: 'pol_demo#1' },
  },
  {
    name: 'a hard forbid wins over a released hold',
    request: { ...payment, estimated_value: 100.51, source_ip: '8.8.8.8' },
    covered: ['pol_demo#1'],
    expect: denied(FOREIGN, 'pol_demo#7'),
  },
  {
    name: 'held until a condition is reported',
    request: { ...closing, arguments: { customer: { id: 'c1' } } },
    expect: { decision: 'escrow', rule: 'pol_demo#3' },
  },
  {
    name: 'a message in the evening is delayed',
    request: { ...message, now: '2026-01-02T20:00:00.000Z' },
    expect: { decision: 'escrow', rule: 'pol_demo#4' },
  },
  {
    name: 'the hour is UTC, however the time is written',
    request: { ...message, now: '2026-01-02T10:30:00+02:00' },
    expect: { decision: 'escrow', rule: 'pol_demo#4' },
  },
  {
    name: 'a message in office hours, within its rate',
    request: message,
    expect: { decision: 'allow', rule: 'pol_demo#6' },
  },
  {
    name: 'a message over its rate',
    request: message,
    exceeded: { 'pol_demo#6': { retry_after: 42 } },
    expect: { decision: 'rate_limited', rule: 'pol_demo#6' },
  },
  {
    name: 'over its rate in the evening: limited, not held',
    request: { ...message, now: '2026-01-02T20:00:00.000Z' },
    exceeded: { 'pol_demo#6': { retry_after: 42 } },
    expect: { decision: 'rate_limited', rule: 'pol_demo#6' },
  },
  {
    name: 'a credit within its budget',
    request: { ...credit, arguments: { total: '20.50', currency: 'eur' } },
    expect: { decision: 'allow', rule: 'pol_demo#goodwill' },
  },
  {
    name: 'a credit beyond its budget',
    request: { ...credit, arguments: { total: 20, currency: 'EUR' } },
    exceeded: { 'pol_demo#goodwill': { retry_after: 42 } },
    expect: { decision: 'rate_limited', rule: 'pol_demo#goodwill' },
  },
  {
    name: 'a credit in a currency that the budget is not in',
    request: { ...credit, arguments: { total: 20, currency: 'JPY' } },
    expect: denied('argument_in_doubt: arguments.currency', 'pol_demo#goodwill'),
  },
  {
    name: 'a credit that would add to the budget',
    request: { ...credit, arguments: { total: -20, currency: 'EUR' } },
    expect: denied('argument_in_doubt: arguments.total', 'pol_demo#goodwill'),
  },
  { name: 'a read is masked', request: query, expect: { decision: 'allow_with_masking', rule: 'pol_demo#5' } },
  {
    name: 'the same read by its URL',
    request: { ...query, resource: 'https://crm.example.com:8443/v1/customers/%34%32?expand=card#top' },
    expect: { decision: 'allow_with_masking', rule: 'pol_demo#5' },
  },
  {
    name: 'a path with dot segments is in doubt',
    request: { ...query, resource: '/v1/customers/../admin' },
    expect: denied('argument_in_doubt: resource', 'pol_demo#5'),
  },
  {
    name: 'a host of which two parsers find two is in doubt',
    request: {
      ...support,
      action_type: 'api_call',
      method: 'get',
      resource: 'https://api.example.com\\@evil.example/x',
    },
    expect: denied('argument_in_doubt: resource', 'pol_demo#ticketed'),
  },
  {
    name: 'what a mask would leave in clear is in doubt',
    request: { ...query, arguments: { card: [{ number: '4111' }] } },
    expect: denied('argument_in_doubt: arguments.card.number'),
  },
  {
    name: 'a null that the rule calls absent',
    request: { ...support, tool_name: 'note', arguments: { cc: null } },
    expect: { decision: 'allow', rule: 'pol_demo#noted' },
  },
  {
    name: 'arguments nested deeper than a rule can read',
    request: { ...message, arguments: Array.from({ length: 17 }).reduce<unknown>((inner) => ({ a: inner }), 1) },
    expect: failed('the arguments are nested deeper than 16 levels'),
  },
  {
    name: 'the same read with a statement that drops',
    request: { ...query, arguments: { sql: 'DROP TABLE x' } },
    expect: denied(FOREIGN, 'pol_demo#7'),
  },
  {
    name: 'a source outside the company',
    request: { ...query, source_ip: '8.8.8.8' },
    expect: denied(FOREIGN, 'pol_demo#7'),
  },
  {
    name: 'an inside source written as IPv6',
    request: { ...query, source_ip: '::ffff:10.1.2.3' },
    expect: { decision: 'allow_with_masking', rule: 'pol_demo#5' },
  },
  {
    name: 'an outside source written as IPv6 in hexadecimal',
    request: { ...query, source_ip: '::FFFF:808:808' },
    expect: denied(FOREIGN, 'pol_demo#7'),
  },
  {
    name: 'a refund over the limit, as a number',
    request: { ...support, arguments: { refund: { total: 250.01 } } },
    expect: denied('refund above 250', 'pol_demo#8'),
  },
  {
    name: 'a refund over the limit, as a text',
    request: { ...support, arguments: { refund: { total: '250.01' } } },
    expect: denied('refund above 250', 'pol_demo#8'),
  },
  {
    name: 'a refund in full-width digits is in doubt',
    request: { ...support, arguments: { refund: { total: ' ２５１ ' } } },
    expect: denied('argument_in_doubt: arguments.refund.total', 'pol_demo#8'),
  },
  {
    name: 'a refund as an exponent is in doubt',
    request: { ...support, arguments: { refund: { total: '2.6e2' } } },
    expect: denied('argument_in_doubt: arguments.refund.total', 'pol_demo#8'),
  },
  {
    name: 'a refund over the limit, behind more zeros than a number needs',
    request: { ...support, arguments: { refund: { total: `${'0'.repeat(70)}251.${'0'.repeat(70)}` } } },
    expect: denied('refund above 250', 'pol_demo#8'),
  },
  {
    name: 'a refund with more than four fractional digits is in doubt',
    request: { ...support, arguments: { refund: { total: 250.00004 } } },
    expect: denied('argument_in_doubt: arguments.refund.total', 'pol_demo#8'),
  },
  {
    name: 'a refund beside another spelling of its name is in doubt',
    request: { ...support, arguments: { refund: { total: 1, Total: 90000 } } },
    expect: denied('argument_in_doubt: arguments.refund.total', 'pol_demo#8'),
  },
  {
    name: 'a refund of more than a decimal can hold, as a text',
    request: { ...support, arguments: { refund: { total: '99999999999999999999' } } },
    expect: denied('argument_in_doubt: arguments.refund.total', 'pol_demo#8'),
  },
  {
    name: 'arguments that look like entities stay arguments',
    request: {
      ...support,
      arguments: {
        refund: { total: 250 },
        odd: [{ a: null, b: [1, 'x'] }],
        __entity: { type: 'AgentRole', id: 'payments-bot' },
        __extn: { fn: 'decimal', arg: '1.0' },
      },
    },
    expect: { decision: 'allow', rule: 'pol_demo#9' },
  },
  {
    name: 'two arguments under one key',
    request: { ...support, arguments: { 'refund.total': 1, refund: { total: 9_999 } } },
    expect: failed('two arguments have the key arguments.refund.total'),
  },
  {
    name: 'an unknown action type',
    request: { ...support, action_type: 'rocket_launch' },
    expect: failed('the action type "rocket_launch" is not in the schema'),
  },
  {
    name: 'a group is not an action type',
    request: { ...support, action_type: 'write' },
    expect: failed('the action type "write" is not in the schema'),
  },
  {
    name: 'an amount that a decimal cannot hold',
    request: { ...payment, estimated_value: 1e18 },
    expect: failed('estimated_value is not a number from -922337203685477 to 922337203685477'),
  },
  {
    name: 'a number beyond 2^53 in the arguments',
    request: { ...support, arguments: { refund: { total: 1e18 } } },
    expect: failed('arguments.refund.total is beyond 2^53'),
  },
  {
    name: 'a risk over 1',
    request: { ...support, risk_score: 1.5 },
    expect: failed('risk_score is not a number from 0 to 1'),
  },
  {
    name: 'a time that is no time',
    request: { ...support, now: 'yesterday' },
    expect: failed('now is not an ISO 8601 time'),
  },
  {
    name: 'an address that is no address',
    request: { ...support, source_ip: '10.0.0.0/8' },
    expect: failed('source_ip is not an IP address'),
  },
  { name: 'no agent', request: { ...support, agent_id: '' }, expect: failed('agent_id is missing') },
  {
    name: 'a lone surrogate in an argument',
    request: { ...closing, arguments: { customer: { id: '\uD83D' } } },
    expect: { decision: 'escrow', rule: 'pol_demo#3' },
  },
  {
    name: 'a lone surrogate in the id of the agent',
    request: { ...closing, agent_id: 'a\uD83D', arguments: { customer: { id: '1' } } },
    expect: { decision: 'escrow', rule: 'pol_demo#3' },
  },
  {
    name: 'a quorum, with all its terms',
    request: wire,
    expect: { decision: 'escrow', rule: 'pol_demo#wire-quorum' },
  },
  {
    name: 'a quorum and a single approval: one hold for both',
    request: { ...wire, risk_score: 0.9 },
    expect: { decision: 'escrow', rule: 'pol_demo#wire-quorum' },
  },
  {
    name: 'a consumed hold does not take the mask away',
    request: { ...wire, now: '2026-01-02T03:00:00.000Z' },
    covered: ['pol_demo#wire-quorum'],
    expect: { decision: 'allow_with_masking', rule: 'pol_demo#at-night-masked' },
  },
  {
    name: 'a forbid that fails is no permission',
    request: {
      ...support,
      action_type: 'file_read',
      resource: '/srv/faq.md',
      session: { call_count: 1, started: support.now },
    },
    expect: failed('a condition of pol_demo#counting-overflow fails on this request', 'pol_demo#counting-overflow'),
  },
  {
    name: 'a fact of the caller',
    request: {
      ...support,
      action_type: 'api_call',
      method: 'get',
      resource: 'https://API.example.com./x',
      context: { ticket: 'T-1' },
    },
    expect: { decision: 'allow', rule: 'pol_demo#ticketed' },
  },
  {
    name: 'a fact of the session is read by an argument of the call',
    request: {
      ...support,
      action_type: 'tool_call',
      tool_name: 'cancel_order',
      arguments: { order_id: 17 },
      session_id: 's',
      session: { lowest_trust: 50, called: ['get_order'], facts: { 'order_status[order_id]': 'pending' } },
    },
    expect: { decision: 'allow', rule: 'pol_demo#cancels-pending' },
  },
  {
    name: 'an agent cannot state a fact of the session',
    request: {
      ...support,
      action_type: 'tool_call',
      tool_name: 'cancel_order',
      arguments: { order_id: 17, 'order_status[order_id]': 'pending' },
      context: { session: { facts: { 'order_status[order_id]': 'pending' } } },
      session_id: 's',
      session: { lowest_trust: 100, called: ['get_order'] },
    },
    expect: denied(NOTHING),
  },
  {
    name: 'an agent cannot state a fact of the caller',
    request: {
      ...support,
      action_type: 'api_call',
      method: 'get',
      resource: 'https://api.example.com/x',
      arguments: { context: { ticket: 'T-1' }, 'context.ticket': 'T-2' },
    },
    expect: failed('two arguments have the key arguments.context.ticket'),
  },
  {
    name: 'an argument named context is not the context',
    request: {
      ...support,
      action_type: 'api_call',
      method: 'get',
      resource: 'https://api.example.com/x',
      arguments: { context: { ticket: 'T-1' } },
    },
    expect: denied(NOTHING),
  },
];

/** Texts that are refused or warned about: where, and (in part) why. */
export const TEXTS: {
  name: string;
  source: string;
  errors: [number, number, string][];
  warnings?: [number, number, string][];
}[] = [
  {
    name: 'an unknown annotation, a rule between annotations and an unknown attribute, behind emoji',
    source:
      '// äö 😀\n@escroww("multi_party")\n@description("😀😀") @escrow("multi_party") permit(principal,action,resource)\nwhen { "😀" == context.nope };',
    errors: [
      [2, 1, 'unknown annotation @escroww; did you mean @escrow?'],
      [3, 22, '@escrow("multi_party") needs'],
      [4, 16, 'attribute `nope` in context not found'],
    ],
  },
  {
    name: 'a syntax error behind emoji',
    source: 'permit(principal,action,resource) when { "😀😀" == };',
    errors: [[1, 52, 'a value is missing before `}`']],
  },
  {
    name: 'there are no block comments',
    source: '@scope("u")\n// ß😀\n@mask("$.card") /**/\npermit(principal,action,resource);',
    errors: [[3, 17, 'unexpected token `/`']],
  },
  {
    name: 'a missing semicolon',
    source: 'permit(principal,action,resource)',
    errors: [[1, 34, 'the text ends in the middle of a statement']],
  },
  { name: 'nothing', source: '', errors: [[1, 1, 'no statement']] },
  {
    name: 'nothing but a comment',
    source: '// permit(principal, action, resource);\n',
    errors: [[1, 1, 'no statement']],
  },
  {
    name: 'a template',
    source: 'permit(principal == ?principal, action, resource);',
    errors: [[1, 21, 'templates are not supported']],
  },
  {
    name: 'an annotation without a value',
    source: '\r\n  @escrow\r\npermit(principal, action, resource);',
    errors: [[2, 3, '@escrow needs a value']],
  },
  {
    name: 'what needs @escrow',
    source:
      '@approvals("2")\n@quorum("a:1")\n@condition("c")\n@delay("1m")\n@ttl("1h")\n@execute_within("1m")\n@notify("https://e.example")\npermit(principal, action, resource);',
    errors: [
      [1, 1, '@approvals needs @escrow'],
      [2, 1, '@quorum needs @escrow'],
      [3, 1, '@condition needs @escrow'],
      [4, 1, '@delay needs @escrow'],
      [5, 1, '@ttl needs @escrow'],
      [6, 1, '@execute_within needs @escrow'],
      [7, 1, '@notify needs @escrow'],
    ],
  },
  {
    name: 'two statements of one name',
    source:
      '@id("a") permit(principal, action, resource);\n@id("a") forbid(principal, action, resource) when { context has amount };',
    errors: [[2, 1, 'another statement has @id("a")']],
  },
  {
    name: 'an error that the engine repeats for every action is told once',
    source: 'permit(principal, action, resource) when { context.bogus };',
    errors: [[1, 44, 'attribute `bogus` in context not found']],
  },
  {
    name: 'a tag without its guard',
    source: 'permit(principal, action, resource) when { context.str.getTag("a") == "b" };',
    errors: [[1, 44, 'hasTag("a")']],
  },
  {
    name: 'a statement that cannot apply',
    source: 'permit(principal in AgentRole::"r", action == Action::"payment", resource in AgentRole::"r");',
    errors: [
      [1, 66, 'this rule can never apply: the resource is a Tool, and a Tool is in a ToolServer, never an AgentRole'],
    ],
  },
  {
    name: 'a role where an agent is compared',
    source: 'permit(principal == AgentRole::"r", action, resource);',
    errors: [[1, 8, 'write principal in AgentRole::"…"']],
  },
  {
    name: 'a group of actions where an action is compared',
    source: 'permit(principal, action == Action::"read", resource);',
    errors: [[1, 19, 'write action in Action::"read"']],
  },
  {
    name: 'conditions that are never true together',
    source:
      'permit(principal, action, resource);\n@id("b") forbid(principal, action == Action::"payment", resource)\n  when { action == Action::"db_query" };',
    errors: [[3, 3, 'this rule can never apply']],
  },
  {
    name: 'an attribute that nothing has',
    source: 'permit(principal, action, resource) when { context has ammount };',
    errors: [[1, 37, 'a name that nothing has']],
  },
  {
    name: 'an identifier of mixed scripts has the place of its statement',
    source:
      'permit(principal in AgentRole::"x", action, resource);\npermit(principal in AgentRole::"\u0430dmin", action, resource);',
    errors: [],
    warnings: [[2, 1, 'contains mixed scripts']],
  },
  {
    name: 'a forbid for all',
    source: 'forbid(principal, action, resource);',
    errors: [],
    warnings: [[1, 1, 'denies every action of every agent']],
  },
];

/** Actions and the canonical texts that their hashes are taken over. */
export const ACTIONS: { name: string; action: Record<string, unknown>; canonical: string }[] = [
  {
    name: 'absent members',
    action: { agent_id: 'a', agent_role: 'r', action_type: 'tool_call', tool_name: 't' },
    canonical:
      '{"action_type":"tool_call","agent_id":"a","agent_role":"r","arguments":null,"context":null,"estimated_value":null,"method":null,"resource":null,"tool_name":"t","tool_pin":null,"tool_server":null,"v":2,"value_currency":null}',
  },
  {
    name: 'all members, keys out of order',
    action: {
      value_currency: 'EUR',
      tool_name: 'refund',
      tool_pin: `sha256:${'7'.repeat(64)}`,
      action_type: 'payment',
      estimated_value: 250.5,
      context: { ticket: 'T-1', approved: false },
      tool_server: 'prod',
      agent_role: 'support-bot',
      agent_id: 'agent-7',
      resource: 'https://api.example.com/v1/refunds',
      method: 'POST',
      arguments: { total: 250.5, currency: 'EUR', items: [{ sku: 'b', qty: 2 }, null, true] },
    },
    canonical:
      '{"action_type":"payment","agent_id":"agent-7","agent_role":"support-bot","arguments":{"currency":"EUR","items":[{"qty":2,"sku":"b"},null,true],"total":250.5},"context":{"approved":false,"ticket":"T-1"},"estimated_value":250.5,"method":"POST","resource":"https://api.example.com/v1/refunds","tool_name":"refund","tool_pin":"sha256:7777777777777777777777777777777777777777777777777777777777777777","tool_server":"prod","v":2,"value_currency":"EUR"}',
  },
  {
    name: 'numbers as ECMAScript prints them',
    action: {
      agent_id: 'a',
      agent_role: 'r',
      action_type: 'tool_call',
      tool_name: 't',
      arguments: { n: [0, -0, 1e-7, 0.1, 1.0, 9007199254740991, 0.1 + 0.2, 5e-324] },
    },
    canonical:
      '{"action_type":"tool_call","agent_id":"a","agent_role":"r","arguments":{"n":[0,0,1e-7,0.1,1,9007199254740991,0.30000000000000004,5e-324]},"context":null,"estimated_value":null,"method":null,"resource":null,"tool_name":"t","tool_pin":null,"tool_server":null,"v":2,"value_currency":null}',
  },
  {
    name: 'keys sort by UTF-16 code unit, and only what must be escaped is',
    action: {
      agent_id: 'é',
      agent_role: '😀',
      action_type: 'tool_call',
      tool_name: '\u2028"\\\u0007/',
      arguments: { '\uFB33': 1, '😀': 2, '\r': 3, '1': 4, ö: 5, '': 6 },
    },
    canonical:
      '{"action_type":"tool_call","agent_id":"é","agent_role":"😀","arguments":{"":6,"\\r":3,"1":4,"ö":5,"😀":2,"\uFB33":1},"context":null,"estimated_value":null,"method":null,"resource":null,"tool_name":"\u2028\\"\\\\\\u0007/","tool_pin":null,"tool_server":null,"v":2,"value_currency":null}',
  },
  {
    name: 'null arguments are absent arguments',
    action: { agent_id: 'a', agent_role: 'r', action_type: 'tool_call', tool_name: 't', arguments: null },
    canonical:
      '{"action_type":"tool_call","agent_id":"a","agent_role":"r","arguments":null,"context":null,"estimated_value":null,"method":null,"resource":null,"tool_name":"t","tool_pin":null,"tool_server":null,"v":2,"value_currency":null}',
  },
];
