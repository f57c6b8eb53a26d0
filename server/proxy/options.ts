import { readFileSync } from 'node:fs';
import path from 'node:path';
import { parseArgs } from 'node:util';
import { HeaderTable, proxySettingsHelp } from './config.ts';
import { UsageError } from './failure.ts';
import { type McpServer, type NamedServer, readServers } from './servers.ts';

export const HELP = `Usage: svc-proxy [COMMAND] [--help]

The enforcement proxy: every action of an agent is decided by the control plane's policies and recorded before it is done.

Commands:
  (none)      serve the route table of SVC_PROXY_ROUTES over HTTP
  mcp         wrap an MCP server, for the agent of SVC_AGENT_KEY
  install     put \`svc-proxy mcp\` in front of the MCP servers of desktop clients and editors
  uninstall   take that back
  status      show which MCP servers are behind the proxy
  login       sign in at an MCP server that wants OAuth; the proxy keeps the tokens
  logout      forget them

\`svc-proxy COMMAND --help\` describes a command.

Exit codes: 0 done, 1 failed, 2 wrong usage or settings.

Settings (environment):
${proxySettingsHelp()
  .map(
    ({ name, meaning, fallback }) => `  ${name.padEnd(28)}${meaning}${fallback === '' ? '' : ` (default ${fallback})`}`,
  )
  .join('\n')}
`;

export const MCP_HELP = `Usage: svc-proxy mcp [--name NAME] [--wait SECONDS] [--value KEY [--currency CODE]] [--others WHAT] [--] COMMAND [ARGUMENT…]
       svc-proxy mcp --name NAME (--url URL | --url-file FILE) [--headers FILE] [--wait SECONDS] [--value KEY [--currency CODE]] [--others WHAT]
       svc-proxy mcp --config FILE

Wraps an MCP server: each tool call, and whatever else is an action, is decided and recorded before it is made. The client
speaks to this command on its standard input and output; the server is a COMMAND, which is started, or a Streamable HTTP
address. Both may be of any revision of MCP.

  --name NAME       the tool server's name in policies (ToolServer::"NAME"); default: the name of COMMAND
  --url URL         the address of a server that speaks Streamable HTTP
  --url-file FILE   file that holds this address, where it is a secret
  --headers FILE    JSON object of the headers to send there, such as its credential; read at each use
  --config FILE     several servers as one (JSON): their tools are SERVER__TOOL for the client
  --wait SECONDS    how long a held call waits for its release before it is answered; default 0
  --value KEY       the argument with the value of a call, for policies (context.amount) and approvers
  --currency CODE   the currency of that value, such as EUR
  --others WHAT     what else than tools is asked for (resources, prompts, what the server asks of the client): enforce
                    the policies, or only record what they say; default enforce

Needs SVC_URL, SVC_PROXY_KEY_FILE and SVC_AGENT_KEY_FILE; \`svc-proxy --help\` lists all settings. The keys may be given
without _FILE, but a COMMAND can read them there. Logs go to standard error. Exit codes: 0 the session is over, 1 failed, 2 wrong usage or settings.
`;

/** Package runners and interpreters, whose names say nothing about the server. */
const RUNNERS = /^(?:npx|npm|node|bunx?|deno|uvx?|pipx?|python3?|docker|sh|bash)$/;

export interface McpOptions {
  servers: readonly NamedServer[];
  /** The client sees them as one server, and knows their tools by other names. */
  joined: boolean;
}

/** Where the options end: at `--`, which some launchers remove, or else at the first word that belongs to no option. */
export function commandAt(argv: readonly string[]): number {
  let at = 0;
  while (argv[at]?.startsWith('--') && argv[at] !== '--') at += argv[at]!.includes('=') ? 1 : 2;
  return Math.min(at, argv.length);
}

export function mcpOptions(argv: string[], env: NodeJS.ProcessEnv): McpOptions {
  const at = commandAt(argv);
  const [command, ...args] = argv.slice(argv[at] === '--' ? at + 1 : at);
  const { values } = parseArgs({
    args: argv.slice(0, at),
    options: {
      name: { type: 'string' },
      url: { type: 'string' },
      'url-file': { type: 'string' },
      headers: { type: 'string' },
      wait: { type: 'string', default: '0' },
      value: { type: 'string' },
      currency: { type: 'string' },
      others: { type: 'string', default: 'enforce' },
      config: { type: 'string' },
    },
  });
  if (values.config !== undefined) {
    const more = Object.keys(values).filter((name) => !['config', 'wait', 'others'].includes(name));
    const set = more.length > 0 || values.wait !== '0' || values.others !== 'enforce';
    if (set || command !== undefined) {
      throw new UsageError('--config: stands alone; the file says the rest');
    }
    return { servers: readServers(values.config, env), joined: true };
  }
  const server = serverOf(command, args, values);
  const seconds = Number(values.wait);
  if (!(seconds >= 0 && seconds <= 3600)) throw new UsageError('--wait: must be 0 to 3600 seconds');
  const name = values.name ?? ('url' in server ? server.url.hostname : path.basename(server.command));
  if (values.name === undefined && RUNNERS.test(name)) {
    throw new UsageError(`--name: is needed, because ${name} does not say which server it runs`);
  }
  if (name === '' || name.length > 200) throw new UsageError('--name: must have 1 to 200 characters');
  const { value: from, currency, others } = values;
  if (others !== 'enforce' && others !== 'record') throw new UsageError('--others: must be enforce or record');
  if (currency !== undefined && (from === undefined || !/^[A-Z]{3}$/.test(currency))) {
    throw new UsageError('--currency: must be a currency such as EUR, beside --value');
  }
  const value = from === undefined ? undefined : { from, divide_by: 1, ...(currency !== undefined && { currency }) };
  return { servers: [{ server, name, waitMs: seconds * 1000, value, others }], joined: false };
}

function serverOf(
  command: string | undefined,
  args: string[],
  options: { url?: string | undefined; 'url-file'?: string | undefined; headers?: string | undefined },
): McpServer {
  const { headers, 'url-file': file } = options;
  if (file !== undefined && options.url !== undefined) throw new UsageError('--url-file: give either it or --url');
  const url = file === undefined ? options.url : readAddress(file);
  if (url === undefined) {
    if (headers !== undefined) throw new UsageError('--headers: goes with --url');
    if (command === undefined) {
      throw new UsageError(
        'svc-proxy mcp: what is missing is the command after --, or --url (see svc-proxy mcp --help)',
      );
    }
    return { command, args };
  }
  if (command !== undefined) throw new UsageError('svc-proxy mcp: give either --url or a command');
  if (!/^https?:\/\//.test(url) || !URL.canParse(url)) {
    throw new UsageError(
      file === undefined
        ? '--url: must be an http or https address'
        : `--url-file: ${file} holds no http or https address`,
    );
  }
  const address = new URL(url);
  if (address.username || address.password) throw new UsageError('--url: a credential goes into the file of --headers');
  const read = () => (headers === undefined ? {} : readHeaders(headers));
  read();
  return { url: address, headers: read };
}

/** Throws a UsageError that reveals nothing of the file's contents. */
function readAddress(file: string): string {
  try {
    return readFileSync(file, 'utf8').trim();
  } catch (error) {
    throw new UsageError(`--url-file: ${file} cannot be read (${(error as NodeJS.ErrnoException).code})`);
  }
}

/** Throws a UsageError that reveals nothing of the file's contents. */
function readHeaders(file: string): Record<string, string> {
  let json: unknown;
  try {
    json = JSON.parse(readFileSync(file, 'utf8'));
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    throw new UsageError(`--headers: ${file} ${code ? `cannot be read (${code})` : 'is not JSON'}`);
  }
  const parsed = HeaderTable.safeParse(json);
  if (!parsed.success) throw new UsageError(`--headers: ${file} is not an object of header names and values`);
  return parsed.data;
}
