import path from 'node:path';

/** Where a client keeps its MCP servers. */
export interface McpClient {
  id: string;
  title: string;
  /** The members that hold the servers by name; `*` stands for every member. */
  roots: readonly (readonly string[])[];
  /** The client's own parser accepts comments and trailing commas. */
  comments: boolean;
  /** An entry has a `type`, which must be `stdio` for a command. */
  typed: boolean;
  /** This person's file; undefined if the client does not exist for the operating system. */
  file: (place: Place) => string | undefined;
}

export interface Place {
  platform: NodeJS.Platform;
  home: string;
  env: Readonly<Record<string, string | undefined>>;
}

const joinOf = ({ platform }: Place) => (platform === 'win32' ? path.win32.join : path.posix.join);

/** The folder in which programs keep a person's settings on this system (not that of one program). */
function settings(place: Place, ...rest: string[]): string {
  const join = joinOf(place);
  const { env, home } = place;
  if (place.platform === 'win32') return join(env.APPDATA || join(home, 'AppData', 'Roaming'), ...rest);
  if (place.platform === 'darwin') return join(home, 'Library', 'Application Support', ...rest);
  return join(env.XDG_CONFIG_HOME || join(home, '.config'), ...rest);
}

const inHome =
  (...rest: string[]) =>
  (place: Place) =>
    joinOf(place)(place.home, ...rest);
const MCP_SERVERS = [['mcpServers']];

/** Looked up in each client's own documentation, which is linked next to it. */
export const CLIENTS: readonly McpClient[] = [
  {
    // https://modelcontextprotocol.io/quickstart/user; there is no release for Linux, but its builds use this place
    id: 'claude-desktop',
    title: 'Claude Desktop',
    roots: MCP_SERVERS,
    comments: false,
    typed: false,
    file: (place) => settings(place, 'Claude', 'claude_desktop_config.json'),
  },
  {
    // https://code.claude.com/docs/en/mcp: user scope, and the local scope of each project
    id: 'claude-code',
    title: 'Claude Code',
    roots: [['mcpServers'], ['projects', '*', 'mcpServers']],
    comments: false,
    typed: true,
    file: inHome('.claude.json'),
  },
  {
    // https://cursor.com/docs/context/mcp
    id: 'cursor',
    title: 'Cursor',
    roots: MCP_SERVERS,
    comments: true,
    typed: false,
    file: inHome('.cursor', 'mcp.json'),
  },
  {
    // https://code.visualstudio.com/docs/copilot/reference/mcp-configuration: `mcp.json` of the user profile
    id: 'vscode',
    title: 'VS Code',
    roots: [['servers']],
    comments: true,
    typed: true,
    file: (place) => settings(place, 'Code', 'User', 'mcp.json'),
  },
  {
    // https://docs.windsurf.com/windsurf/cascade/mcp
    id: 'windsurf',
    title: 'Windsurf',
    roots: MCP_SERVERS,
    comments: false,
    typed: false,
    file: inHome('.codeium', 'windsurf', 'mcp_config.json'),
  },
  {
    // https://zed.dev/docs/ai/mcp and https://zed.dev/docs/configuring-zed: below ~/.config on macOS, too
    id: 'zed',
    title: 'Zed',
    roots: [['context_servers']],
    comments: true,
    typed: false,
    file: (place) =>
      place.platform === 'darwin'
        ? inHome('.config', 'zed', 'settings.json')(place)
        : settings(place, place.platform === 'win32' ? 'Zed' : 'zed', 'settings.json'),
  },
  {
    // https://github.com/cline/cline: the storage of the extension in VS Code
    id: 'cline',
    title: 'Cline',
    roots: MCP_SERVERS,
    comments: false,
    typed: false,
    file: (place) =>
      settings(
        place,
        ...['Code', 'User', 'globalStorage', 'saoudrizwan.claude-dev', 'settings', 'cline_mcp_settings.json'],
      ),
  },
  {
    // https://github.com/google-gemini/gemini-cli/blob/main/docs/tools/mcp-server.md
    id: 'gemini-cli',
    title: 'Gemini CLI',
    roots: MCP_SERVERS,
    comments: true,
    typed: false,
    file: inHome('.gemini', 'settings.json'),
  },
];
