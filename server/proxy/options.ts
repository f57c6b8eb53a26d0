import path from 'node:path';
import { parseArgs } from 'node:util';
import { proxySettingsHelp, type ValueRule } from './config.ts';

export const HELP = `Usage: svc-proxy [--help]
       svc-proxy mcp [--name NAME] [--wait SECONDS] [--value KEY [--currency CODE]] [--] COMMAND [ARGUMENT…]

The enforcement proxy: every action of an agent is decided by the control plane's policies and recorded before it is done.
Without a command it serves the route table over HTTP; \`mcp\` wraps an MCP server that uses standard input and output,
for the agent of SVC_AGENT_KEY.

  --name NAME       the tool server's name in policies (ToolServer::"NAME"); default: the name of COMMAND
  --wait SECONDS    how long a held call waits for its release before it is answered; default 0
  --value KEY       the argument with the value of a call, for policies (context.amount) and approvers
  --currency CODE   the currency of that value, such as EUR

Settings (environment):
${proxySettingsHelp()
  .map(
    ({ name, meaning, fallback }) => `  ${name.padEnd(28)}${meaning}${fallback === '' ? '' : ` (default ${fallback})`}`,
  )
  .join('\n')}
`;

/** The command line is wrong; the message says how. */
export class UsageError extends Error {}

/** Package runners and interpreters: their names say nothing about the server. */
const RUNNERS = /^(?:npx|npm|node|bunx?|deno|uvx?|pipx?|python3?|docker|sh|bash)$/;

export interface McpOptions {
  command: string;
  args: string[];
  name: string;
  waitMs: number;
  value: ValueRule | undefined;
}

/** Where the options end: at `--`, which some launchers take away, or else at the first word that belongs to none. */
export function commandAt(argv: readonly string[]): number {
  let at = 0;
  while (argv[at]?.startsWith('--') && argv[at] !== '--') at += argv[at]!.includes('=') ? 1 : 2;
  return Math.min(at, argv.length);
}

export function mcpOptions(argv: string[]): McpOptions {
  const at = commandAt(argv);
  const [command, ...args] = argv.slice(argv[at] === '--' ? at + 1 : at);
  if (command === undefined) throw new UsageError('svc-proxy mcp: the command after -- is missing');
  const { values } = parseArgs({
    args: argv.slice(0, at),
    options: {
      name: { type: 'string' },
      wait: { type: 'string', default: '0' },
      value: { type: 'string' },
      currency: { type: 'string' },
    },
  });
  const seconds = Number(values.wait);
  if (!(seconds >= 0 && seconds <= 3600)) throw new UsageError('--wait: must be 0 to 3600 seconds');
  const name = values.name ?? path.basename(command);
  if (values.name === undefined && RUNNERS.test(name)) {
    throw new UsageError(`--name: is needed, because ${name} does not say which server it runs`);
  }
  if (name === '' || name.length > 200) throw new UsageError('--name: must have 1 to 200 characters');
  const { value: from, currency } = values;
  if (currency !== undefined && (from === undefined || !/^[A-Z]{3}$/.test(currency))) {
    throw new UsageError('--currency: must be a currency such as EUR, beside --value');
  }
  const value = from === undefined ? undefined : { from, divide_by: 1, ...(currency !== undefined && { currency }) };
  return { command, args, name, waitMs: seconds * 1000, value };
}
