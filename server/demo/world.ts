/*
 * The world of the demo tenant: a company that does not exist, its people, agents, tools and policies. Addresses end in
 * `.example`, which resolves nowhere.
 */

export const COMPANY = 'Meridian (demo)';

export const PEOPLE = {
  maria: { email: 'maria.keller@meridian.example', name: 'Maria Keller', roles: ['admin'] },
  tomas: { email: 'tomas.ferreira@meridian.example', name: 'Tomás Ferreira', roles: ['author'] },
  aisha: { email: 'aisha.rahman@meridian.example', name: 'Aisha Rahman', roles: ['approver'] },
  lin: { email: 'lin.chen@meridian.example', name: 'Lin Chen', roles: ['author', 'approver'] },
  jonas: { email: 'jonas.weber@meridian.example', name: 'Jonas Weber', roles: ['viewer'] },
} as const;
export type PersonName = keyof typeof PEOPLE;

export const AGENTS = {
  'support-bot-1': 'support',
  'support-bot-2': 'support',
  'support-bot-3': 'support',
  'payments-bot': 'treasury',
  'build-bot': 'coder',
  'office-assistant': 'assistant',
} as const;
export type AgentName = keyof typeof AGENTS;

const REFUNDS = `// What the support desk may pay back.

@id("small-refund") @rate("40/h")
permit(principal in AgentRole::"support", action == Action::"tool_call", resource == Tool::"refund")
when { context.num.hasTag("amount") && context.num.getTag("amount").lessThanOrEqual(decimal("50.0")) };

@id("large-refund") @escrow("single") @ttl("4h") @execute_within("1h") @severity("high")
@reason("refunds over 50 need a person")
permit(principal in AgentRole::"support", action == Action::"tool_call", resource == Tool::"refund")
when { context.num.hasTag("amount") && context.num.getTag("amount").greaterThan(decimal("50.0")) };

@id("no-deletion") @reason("accounts are never deleted by agents") @severity("critical")
forbid(principal, action, resource == Tool::"delete_account");
`;
const REFUND_TESTS = `format: svc-tests/1
scope: policy
defaults: { agent_role: support, action_type: tool_call, tool_name: refund }
tests:
  - name: a small refund is made, up to the limit
    table:
      - { arguments: { amount: 20 } }
      - { arguments: { amount: "50.00" } }
    expect: { decision: allow, rule: refunds#small-refund }
  - name: a larger one waits for a person
    request: { arguments: { amount: 900 } }
    expect: { decision: escrow, reason: refunds over 50 need a person }
  - name: nobody deletes accounts
    request: { tool_name: delete_account, arguments: { user: u-1 } }
    expect: { decision: deny, reason: accounts are never deleted by agents }
`;

const CUSTOMERS = `// Customer records are read with personal data masked. Nobody exports them.
@id("read-customer") @mask("$.card.number,$.birth_date") @rate("30/m")
permit(principal in AgentRole::"support", action, resource == Tool::"get_customer");

@id("find-customer")
permit(principal in AgentRole::"support", action, resource == Tool::"find_customer");

@id("no-export") @reason("customer data is not exported by agents") @severity("critical")
forbid(principal, action, resource == Tool::"export_customers");
`;
const CUSTOMER_TESTS = `format: svc-tests/1
scope: policy
defaults: { agent_role: support, action_type: tool_call, tool_name: get_customer, arguments: { id: c-1 } }
tests:
  - name: personal data is masked
    expect: { decision: allow_with_masking, masks: ["$.card.number", "$.birth_date"] }
  - name: nobody exports customers
    table:
      - { tool_name: export_customers }
      - { agent_role: admin, tool_name: export_customers }
    expect: { decision: deny, reason: customer data is not exported by agents }
`;

const PAYEES = `// Payments to known accounts pass, others wait for two people.
@id("pay") @rate("20/h")
permit(principal in AgentRole::"treasury", action, resource == Tool::"send_money")
when { context.str.hasTag("recipient") };

@id("unknown") @escrow("multi_party") @approvals("2") @ttl("8h") @severity("high")
@reason("nobody here knows this account yet")
forbid(principal, action, resource == Tool::"send_money")
unless { context.facts.hasTag("recipient in known-payees") };

@id("balance")
permit(principal in AgentRole::"treasury", action, resource == Tool::"balance");
`;

const DEPLOYMENTS = `// Staging freely. Production waits for a person. Secrets never.
@id("staging") @rate("20/h")
permit(principal in AgentRole::"coder", action, resource == Tool::"deploy")
when { context.str.hasTag("environment") && context.str.getTag("environment") == "staging" };

@id("production") @escrow("single") @ttl("2h") @execute_within("30m") @severity("high")
@reason("somebody must be there when production changes")
permit(principal in AgentRole::"coder", action, resource == Tool::"deploy")
when { context.str.hasTag("environment") && context.str.getTag("environment") == "production" };

@id("look") @rate("60/m")
permit(principal in AgentRole::"coder", action, resource == Tool::"shell")
when { context.facts.hasTag("command matches ^(ls|cat|head|tail|wc|pwd|npm test|npm run lint)( [A-Za-z0-9_./-]+)*$") };

@id("no-secrets") @reason("this file holds secrets") @severity("high")
forbid(principal, action, resource == Tool::"shell")
when { context.facts.hasTag("command matches (?i)(^|[ /.])(env|id_rsa|credentials|secrets?)([ ./]|$)") };
`;

const MAIL = `// Mail inside the company passes. To outsiders it waits for a person.
@id("inside") @rate("30/h")
permit(principal in AgentRole::"assistant", action, resource == Tool::"send_mail")
when { context.facts.hasTag("to matches ^[A-Za-z0-9._+-]+@meridian\\\\.example$") };

@id("outside") @escrow("single") @ttl("8h") @reason("a person reads what leaves the company")
permit(principal in AgentRole::"assistant", action, resource == Tool::"send_mail")
when { context.list.hasTag("to") || context.str.hasTag("to") }
unless { context.facts.hasTag("to matches ^[A-Za-z0-9._+-]+@meridian\\\\.example$") };
`;

/** Enforced from the first hour. */
export const POLICIES: Readonly<Record<string, { source: string; tests?: string }>> = {
  refunds: { source: REFUNDS, tests: REFUND_TESTS },
  'customer-data': { source: CUSTOMERS, tests: CUSTOMER_TESTS },
  'known-payees': { source: PAYEES },
  deployments: { source: DEPLOYMENTS },
  mail: { source: MAIL },
};

/** Version 2 of the refunds policy, enforced mid-week: the limit is 60. */
export const REFUNDS_60 = {
  source: REFUNDS.replaceAll('50.0', '60.0').replace('over 50', 'over 60'),
  tests: REFUND_TESTS.replace('"50.00"', '"60.00"').replace('over 50', 'over 60'),
};

/** The version under review when the week ends. */
export const CUSTOMERS_WIDER = CUSTOMERS.replace('30/m', '60/m');
export const MAIL_PARTNERS = `${MAIL}
@id("partners")
permit(principal in AgentRole::"assistant", action, resource == Tool::"send_mail")
when { context.facts.hasTag("to matches ^[A-Za-z0-9._+-]+@nordwind\\\\.example$") };
`;
export const LOYALTY = `@id("grant") @rate("10/h")
permit(principal in AgentRole::"support", action, resource == Tool::"grant_points");
`;
export const VOUCHERS = `@id("freeze") @severity("critical") @reason("vouchers are frozen: incident 812")
forbid(principal, action, resource == Tool::"issue_voucher");
`;

export const KNOWN_PAYEES = [
  'DE89 3704 0044 0532 0130 00',
  'NL91 ABNA 0417 1643 00',
  'FR14 2004 1010 0505 0001 3M02 606',
  'AT61 1904 3002 3457 3201',
];
export const NEW_PAYEE = 'CH93 0076 2011 6238 5295 7';

/** The tools listed by two tool servers. */
export const TOOLS: Readonly<Record<string, readonly { name: string; description: string; inputSchema: object }[]>> = {
  crm: [
    tool('get_customer', 'Reads one customer.', { id: 'string' }),
    tool('find_customer', 'Finds customers by a part of their name.', { name: 'string' }),
    tool('refund', 'Pays an amount back to a customer.', { amount: 'number', customer: 'string', order: 'string' }),
    tool('delete_account', 'Deletes an account and all of its data.', { user: 'string' }),
  ],
  ops: [
    tool('deploy', 'Deploys a service to an environment.', { service: 'string', environment: 'string' }),
    tool('shell', 'Runs a command in the workspace.', { command: 'string' }),
  ],
};
/** A tool of the CRM, first listed near the end of the week. */
export const NEW_TOOL = tool('merge_customers', 'Merges two customers into one.', { keep: 'string', drop: 'string' });

function tool(name: string, description: string, properties: Record<string, string>) {
  return {
    name,
    description,
    inputSchema: {
      type: 'object',
      properties: Object.fromEntries(Object.entries(properties).map(([key, type]) => [key, { type }])),
      required: Object.keys(properties),
    },
  };
}

/** Numbers from 0 up to 1, the same in every run. */
export function randomFrom(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4_294_967_296;
  };
}

/** A request of an agent. */
export interface Ask {
  agent: AgentName;
  action_type: string;
  tool_name: string;
  tool_server?: string;
  arguments: Record<string, unknown>;
  action_summary?: string;
  estimated_value?: number;
  value_currency?: string;
  risk_score?: number;
  session_id: string;
}

const CUSTOMERS_NAMED = ['M. Okafor', 'S. Lindqvist', 'J. Alvarez', 'P. Novak', 'A. Haddad', 'R. Tanaka', 'C. Dubois'];
const OUTSIDERS = ['k.brandt@nordwind.example', 'press@daily.example', 'info@harbor.example'];
const COMMANDS = ['ls src', 'cat package.json', 'npm test', 'npm run lint', 'head README.md'];

/** A request that an agent of this company might make at this hour. */
export function askSomething(random: () => number, cases: number): Ask {
  const pick = <T>(list: readonly T[]): T => list[Math.floor(random() * list.length)]!;
  const support = () => pick(['support-bot-1', 'support-bot-2', 'support-bot-3'] as const);
  const session = `case-${4400 + cases}`;
  const roll = random();
  if (roll < 0.26) {
    const id = `c-${1000 + Math.floor(random() * 400)}`;
    return crm(support(), 'get_customer', { id }, session);
  }
  if (roll < 0.42) return crm(support(), 'find_customer', { name: pick(CUSTOMERS_NAMED).split(' ')[1] }, session);
  if (roll < 0.62) {
    const amount = Math.round((5 + random() * 44) * 100) / 100;
    return refund(support(), amount, pick(CUSTOMERS_NAMED), cases, session);
  }
  if (roll < 0.655) {
    const amount = Math.round((62 + random() * 240) * 100) / 100;
    return refund(support(), amount, pick(CUSTOMERS_NAMED), cases, session);
  }
  if (roll < 0.67) return crm(support(), 'delete_account', { user: `u-${cases}` }, session);
  if (roll < 0.682) return crm(support(), 'export_customers', { format: 'csv' }, session);
  if (roll < 0.74) return { ...of('payments-bot', 'balance', { account: 'main' }), session_id: 'treasury' };
  if (roll < 0.775) return payment(random, pick(KNOWN_PAYEES), cases);
  if (roll < 0.782) return payment(random, `GB${10 + (cases % 80)} MIDL 4005 1512 ${3000 + cases}`, cases);
  if (roll < 0.9) return ops('shell', { command: pick(COMMANDS) }, cases);
  if (roll < 0.915) return ops('shell', { command: pick(['cat .env', 'rm -rf build', 'cat id_rsa']) }, cases);
  if (roll < 0.945) return ops('deploy', { service: pick(['shop', 'search']), environment: 'staging' }, cases);
  if (roll < 0.953) {
    return {
      ...ops('deploy', { service: pick(['shop', 'search']), environment: 'production' }, cases),
      action_summary: 'Deploy what passed on staging',
    };
  }
  const outside = roll > 0.992;
  const to = outside ? pick(OUTSIDERS) : pick(Object.values(PEOPLE)).email;
  return {
    ...of('office-assistant', 'send_mail', { to, subject: 'Minutes of today', text: 'See the wiki.' }, 'message_send'),
    ...(outside && { action_summary: `Send the minutes to ${to}` }),
    session_id: `day-${cases % 9}`,
  };
}

function of(agent: AgentName, tool_name: string, args: Record<string, unknown>, action_type = 'tool_call') {
  return { agent, action_type, tool_name, arguments: args };
}

function crm(agent: AgentName, tool: string, args: Record<string, unknown>, session_id: string): Ask {
  return { ...of(agent, tool, args), tool_server: 'crm', session_id };
}

export function refund(agent: AgentName, amount: number, customer: string, n: number, session_id: string): Ask {
  return {
    ...crm(agent, 'refund', { amount, customer, order: `A-${7000 + n}` }, session_id),
    action_summary: `Refund ${amount.toFixed(2)} EUR to ${customer}`,
    estimated_value: amount,
    value_currency: 'EUR',
    risk_score: amount > 150 ? 0.6 : 0.2,
  };
}

function payment(random: () => number, recipient: string, n: number): Ask {
  const amount = Math.round(400 + random() * 9000);
  return {
    ...of('payments-bot', 'send_money', { recipient, amount, reference: `Invoice ${4000 + n}` }),
    action_summary: `Pay invoice ${4000 + n}`,
    estimated_value: amount,
    value_currency: 'EUR',
    risk_score: 0.5,
    session_id: 'treasury',
  };
}

function ops(tool: string, args: Record<string, unknown>, n: number): Ask {
  return { ...of('build-bot', tool, args), tool_server: 'ops', session_id: `build-${200 + (n % 60)}` };
}

/** How many calls agents make in a quarter of an hour: few at night and on weekends. */
export function busyness(at: Date): number {
  const day = at.getUTCDay() % 6 === 0 ? 0.5 : 1;
  const hour = at.getUTCHours() + at.getUTCMinutes() / 60;
  return day * (0.25 + 2.1 * Math.exp(-((hour - 10.5) ** 2) / 8) + 1.7 * Math.exp(-((hour - 15) ** 2) / 7));
}
