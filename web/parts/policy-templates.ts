/** A call as an agent requests it. */
export interface ExampleCall {
  agent_role: string;
  tool_name: string;
  arguments: Record<string, unknown>;
}

/**
 * A policy to start from, with its test suite: the files of `web/templates/<id>`, which docs/templates.md shows too. Each
 * text has no errors and no warnings, its suite passes, and the suite notices when a statement is dropped or its effect is
 * flipped (test/policy/templates.slow.test.ts).
 */
export interface Template {
  id: string;
  title: string;
  about: string;
  source: string;
  /** The suite. Rules in it are named `<id>#<rule>`. */
  tests: string;
  /** A call that the text denies, to see it work. */
  denied: ExampleCall;
  /** A call that the text allows, if it allows any by itself. */
  allowed?: ExampleCall;
  /** A call that a single person releases, if there is one. */
  held?: ExampleCall;
}

const TOLD: readonly Omit<Template, 'source' | 'tests'>[] = [
  {
    id: 'refunds',
    title: 'Refunds with a limit',
    about: 'Small refunds pass, larger ones wait for a person, and accounts are never deleted.',
    denied: { agent_role: 'support', tool_name: 'delete_account', arguments: { user: 'u-1' } },
    allowed: { agent_role: 'support', tool_name: 'refund', arguments: { amount: 20 } },
    held: { agent_role: 'support', tool_name: 'refund', arguments: { amount: 900 } },
  },
  {
    id: 'read-only',
    title: 'Read, never write',
    about: 'An agent that looks things up: reads are allowed and limited, everything that writes is denied.',
    denied: { agent_role: 'analyst', tool_name: 'update_record', arguments: { id: 7 } },
    allowed: { agent_role: 'analyst', tool_name: 'search', arguments: { query: 'open invoices' } },
  },
  {
    id: 'payments',
    title: 'Payments by two people',
    about: 'Every payment is approved by finance and security; very large ones are denied outright.',
    denied: { agent_role: 'treasury', tool_name: 'pay', arguments: { amount: 250000 } },
    allowed: { agent_role: 'treasury', tool_name: 'balance', arguments: { account: 'main' } },
  },
  {
    id: 'known-payees',
    title: 'Payments to unknown payees',
    about: 'Payments to accounts of a list pass; others wait for two people. The list must exist.',
    denied: { agent_role: 'treasury', tool_name: 'send_money', arguments: { amount: 5 } },
  },
  {
    id: 'spending',
    title: 'Spend limits',
    about: 'Each agent may spend 500 EUR a day and all together 2,000 EUR; larger purchases wait for a person.',
    denied: { agent_role: 'buyer', tool_name: 'purchase', arguments: { item: 'chair' } },
  },
  {
    id: 'once-per-order',
    title: 'Once per order',
    about: 'An order is refunded at most once in 30 days, whichever agent or proxy is asked.',
    denied: { agent_role: 'support', tool_name: 'refund', arguments: { amount: 20 } },
    allowed: { agent_role: 'support', tool_name: 'refund', arguments: { amount: 20, order_id: 'A-17' } },
  },
  {
    id: 'customer-data',
    title: 'Customer data, masked',
    about: 'Customer records may be read with card numbers and birth dates masked; exports are denied.',
    denied: { agent_role: 'support', tool_name: 'export_customers', arguments: {} },
    allowed: { agent_role: 'support', tool_name: 'find_customer', arguments: { name: 'Ada' } },
  },
  {
    id: 'data-export',
    title: 'Data export',
    about: 'Extracts need a row limit, larger ones the data office, and personal columns stay.',
    denied: { agent_role: 'analyst', tool_name: 'export', arguments: { row_limit: 5, columns: ['iban'] } },
    allowed: { agent_role: 'analyst', tool_name: 'export', arguments: { row_limit: 5, columns: ['city'] } },
  },
  {
    id: 'deployments',
    title: 'Deployments by day',
    about: 'Staging is free, production changes in working hours or with an approval, and secrets are out of reach.',
    denied: { agent_role: 'coder', tool_name: 'read_secret', arguments: { name: 'db' } },
    allowed: { agent_role: 'coder', tool_name: 'deploy', arguments: { environment: 'staging' } },
  },
  {
    id: 'command-lines',
    title: 'Command lines',
    about: 'Commands that look and test pass, a push waits for a person, and nothing can be appended.',
    denied: { agent_role: 'coder', tool_name: 'shell', arguments: { command: 'ls; rm -rf /' } },
    allowed: { agent_role: 'coder', tool_name: 'shell', arguments: { command: 'ls src' } },
    held: { agent_role: 'coder', tool_name: 'shell', arguments: { command: 'git push origin fix/typo' } },
  },
  {
    id: 'mail',
    title: 'Mail to outsiders',
    about: 'Mail inside the company passes; to outsiders it waits for a person, and without attachments.',
    denied: {
      agent_role: 'assistant',
      tool_name: 'send_mail',
      arguments: { to: 'eve@elsewhere.example', attachments: ['a.pdf'] },
    },
    allowed: { agent_role: 'assistant', tool_name: 'send_mail', arguments: { to: 'ada@example.com' } },
    held: { agent_role: 'assistant', tool_name: 'send_mail', arguments: { to: 'eve@elsewhere.example' } },
  },
  {
    id: 'read-before-write',
    title: 'Read before write',
    about: 'A customer is changed only in a session that has read one.',
    denied: { agent_role: 'support', tool_name: 'update_customer', arguments: { id: 'c-1' } },
    allowed: { agent_role: 'support', tool_name: 'get_customer', arguments: { id: 'c-1' } },
  },
  {
    id: 'untrusted-content',
    title: 'Untrusted content',
    about: 'Once a server that is not trusted has answered in a session, what the agent writes waits for a person.',
    denied: { agent_role: 'support', tool_name: 'send_mail', arguments: {} },
  },
  {
    id: 'break-glass',
    title: 'Break glass',
    about: 'With a ticket and two people, the on-call agent may do what nobody else may, for 15 minutes.',
    denied: { agent_role: 'on-call', tool_name: 'delete_backup', arguments: {} },
  },
];

/** Each template with its files; `file` returns the text of one in `web/templates`. */
export const templatesOf = (file: (path: string) => string): readonly Template[] => [
  ...TOLD.map((one) => ({ ...one, source: file(`${one.id}/policy.cedar`), tests: file(`${one.id}/tests.yaml`) })),
  {
    id: 'blank',
    title: 'Empty text',
    about: 'One rule to change into your own.',
    source: `@id("my-rule")
permit(principal in AgentRole::"my-role", action == Action::"tool_call", resource == Tool::"my-tool");
`,
    tests: '',
    denied: { agent_role: 'my-role', tool_name: 'another-tool', arguments: {} },
    allowed: { agent_role: 'my-role', tool_name: 'my-tool', arguments: {} },
  },
];

/** The suite of a template for a policy with this id. */
export function suiteFor({ id, tests }: Pick<Template, 'id' | 'tests'>, policyId: string): string {
  return tests.replaceAll(`${id}#`, `${policyId}#`);
}

/** A starting rule for one tool: its name cannot become anything but text in the policy. */
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
    tests: '',
    denied: { agent_role: 'others', tool_name: tool, arguments: {} },
    allowed: { agent_role: 'agents', tool_name: tool, arguments: {} },
  };
}

/** A string as Cedar writes it. Invisible characters are escaped, as the language demands. */
function cedarText(text: string): string {
  const escaped = Array.from(text, (one) =>
    /^[ !#-[\]-~]$/.test(one) ? one : `\\u{${one.codePointAt(0)!.toString(16)}}`,
  );
  return `"${escaped.join('')}"`;
}
