/** Policies to start from. Each is a complete text that passes the server's check (test/policy/templates.test.ts). */
export interface Template {
  id: string;
  title: string;
  about: string;
  source: string;
  /** A call that the text denies and one that it allows, to see it work. */
  denied: { agent_role: string; tool_name: string; arguments: Record<string, unknown> };
  allowed: { agent_role: string; tool_name: string; arguments: Record<string, unknown> };
}

export const TEMPLATES: readonly Template[] = [
  {
    id: 'refunds',
    title: 'Refunds with a limit',
    about: 'Small refunds pass, larger ones wait for a person, and accounts are never deleted.',
    source: `// Support agents may refund up to 50; more needs approval; nobody deletes accounts.
@id("small-refund")
permit(principal in AgentRole::"support", action == Action::"tool_call", resource == Tool::"refund")
when { context.num.hasTag("amount") && context.num.getTag("amount").lessThanOrEqual(decimal("50.0")) };

@id("large-refund") @escrow("single") @ttl("4h") @reason("refunds over 50 need a person")
permit(principal in AgentRole::"support", action == Action::"tool_call", resource == Tool::"refund")
when { context.num.hasTag("amount") && context.num.getTag("amount").greaterThan(decimal("50.0")) };

@id("no-deletion") @reason("accounts are never deleted by agents")
forbid(principal, action, resource == Tool::"delete_account");
`,
    denied: { agent_role: 'support', tool_name: 'delete_account', arguments: { user: 'u-1' } },
    allowed: { agent_role: 'support', tool_name: 'refund', arguments: { amount: 20 } },
  },
  {
    id: 'read-only',
    title: 'Read, never write',
    about: 'An agent that looks things up: reads are allowed and limited, everything that writes is denied.',
    source: `// Analysts only read. Writes are denied, even if another policy permits them.
@id("reads") @rate("120/m")
permit(principal in AgentRole::"analyst", action in Action::"read", resource);

@id("lookups") @rate("120/m")
permit(principal in AgentRole::"analyst", action == Action::"tool_call", resource == Tool::"search");

@id("no-writes") @reason("this agent may only read")
forbid(principal in AgentRole::"analyst", action in Action::"write", resource)
unless { resource == Tool::"search" };
`,
    denied: { agent_role: 'analyst', tool_name: 'update_record', arguments: { id: 7 } },
    allowed: { agent_role: 'analyst', tool_name: 'search', arguments: { query: 'open invoices' } },
  },
  {
    id: 'payments',
    title: 'Payments by two people',
    about: 'Every payment is approved by finance and security; very large ones are denied outright.',
    source: `// A payment needs one approval from finance and one from security. Create the groups under Team.
@id("payment") @escrow("multi_party") @quorum("finance:1,security:1") @ttl("8h") @execute_within("30m")
@reason("a payment is seen by finance and by security") @severity("high")
permit(principal in AgentRole::"treasury", action, resource == Tool::"pay")
when { context.num.hasTag("amount") };

@id("too-large") @reason("payments over 100,000 are made by people")
forbid(principal, action, resource == Tool::"pay")
when { context.num.hasTag("amount") && context.num.getTag("amount").greaterThan(decimal("100000.0")) };

@id("balances")
permit(principal in AgentRole::"treasury", action, resource == Tool::"balance");
`,
    denied: { agent_role: 'treasury', tool_name: 'pay', arguments: { amount: 250000 } },
    allowed: { agent_role: 'treasury', tool_name: 'balance', arguments: { account: 'main' } },
  },
  {
    id: 'customer-data',
    title: 'Customer data, masked',
    about: 'Customer records may be read with card numbers and birth dates masked; exports are denied.',
    source: `// Customer records are read with personal data masked. Nobody exports them.
@id("read-customer") @mask("$.card.number,$.birth_date") @rate("30/m")
permit(principal in AgentRole::"support", action, resource == Tool::"get_customer");

@id("find-customer")
permit(principal in AgentRole::"support", action, resource == Tool::"find_customer");

@id("no-export") @reason("customer data is not exported by agents") @severity("critical")
forbid(principal, action, resource == Tool::"export_customers");
`,
    denied: { agent_role: 'support', tool_name: 'export_customers', arguments: {} },
    allowed: { agent_role: 'support', tool_name: 'find_customer', arguments: { name: 'Ada' } },
  },
  {
    id: 'deployments',
    title: 'Deployments by day',
    about: 'A coding agent deploys to staging freely and to production after an approval; secrets are out of reach.',
    source: `// Staging freely, production with an approval, secrets never.
@id("staging") @rate("20/h")
permit(principal in AgentRole::"coder", action, resource == Tool::"deploy")
when { context.str.hasTag("environment") && context.str.getTag("environment") == "staging" };

@id("production") @escrow("single") @ttl("2h") @execute_within("15m") @severity("high")
@reason("production is deployed after a person looked at the change")
permit(principal in AgentRole::"coder", action, resource == Tool::"deploy")
when { context.str.hasTag("environment") && context.str.getTag("environment") == "production" };

@id("no-secrets") @reason("agents do not read secrets")
forbid(principal, action, resource == Tool::"read_secret");
`,
    denied: { agent_role: 'coder', tool_name: 'read_secret', arguments: { name: 'db' } },
    allowed: { agent_role: 'coder', tool_name: 'deploy', arguments: { environment: 'staging' } },
  },
  {
    id: 'blank',
    title: 'Empty text',
    about: 'One rule to change into your own.',
    source: `@id("my-rule")
permit(principal in AgentRole::"my-role", action == Action::"tool_call", resource == Tool::"my-tool");
`,
    denied: { agent_role: 'my-role', tool_name: 'another-tool', arguments: {} },
    allowed: { agent_role: 'my-role', tool_name: 'my-tool', arguments: {} },
  },
];

/** A rule to begin with for one tool: nothing of its name can be anything but a text in the policy. */
export function toolTemplate(server: string, tool: string): Template {
  const name =
    tool
      .replace(/[^A-Za-z0-9_-]+/g, '-')
      .replace(/^[^A-Za-z]+|-+$/g, '')
      .slice(0, 40) || 'tool';
  return {
    id: `tool-${name}`.toLowerCase(),
    title: 'A rule for one tool',
    about: 'Calls of this tool wait for a person. Name the role that needs it, and let pass what is harmless.',
    source: `// Each call waits for a person until you know the tool better. Put the role that needs it in place of "agents".
@id("${name}") @escrow("single") @ttl("4h") @reason("a person looks at each call of a new tool")
permit(principal in AgentRole::"agents", action == Action::"tool_call", resource == Tool::${cedarText(tool)})
when { resource in ToolServer::${cedarText(server)} };
`,
    denied: { agent_role: 'others', tool_name: tool, arguments: {} },
    allowed: { agent_role: 'agents', tool_name: tool, arguments: {} },
  };
}

/** A text as Cedar writes it. What cannot be seen is written out, as the language demands. */
function cedarText(text: string): string {
  const escaped = Array.from(text, (one) =>
    /^[ !#-[\]-~]$/.test(one) ? one : `\\u{${one.codePointAt(0)!.toString(16)}}`,
  );
  return `"${escaped.join('')}"`;
}
