import { execFileSync } from 'node:child_process';
import {
  chmodSync,
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import path from 'node:path';
import { describe, expect, test } from 'vitest';
import { newSecret } from '../../server/domain/secret.ts';
import { addressesOf, manage } from '../../server/proxy/clients/install.ts';
import { CLIENTS, type Place } from '../../server/proxy/clients/table.ts';
import { mcpOptions } from '../../server/proxy/options.ts';
import { temporaryDirectory } from './support.ts';

const PROXY_KEY = newSecret('key', 'acme');
const AGENT_KEY = newSecret('agent', 'acme');

test('each client has its file where its documentation says, on each system', () => {
  const on = (platform: NodeJS.Platform, home: string, env: Place['env'] = {}) =>
    Object.fromEntries(CLIENTS.map(({ id, file }) => [id, file({ platform, home, env })]));
  expect(on('linux', '/home/ada')).toEqual({
    'claude-desktop': '/home/ada/.config/Claude/claude_desktop_config.json',
    'claude-code': '/home/ada/.claude.json',
    cursor: '/home/ada/.cursor/mcp.json',
    vscode: '/home/ada/.config/Code/User/mcp.json',
    windsurf: '/home/ada/.codeium/windsurf/mcp_config.json',
    zed: '/home/ada/.config/zed/settings.json',
    cline: '/home/ada/.config/Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json',
    'gemini-cli': '/home/ada/.gemini/settings.json',
  });
  expect(on('darwin', '/Users/ada')).toMatchObject({
    'claude-desktop': '/Users/ada/Library/Application Support/Claude/claude_desktop_config.json',
    vscode: '/Users/ada/Library/Application Support/Code/User/mcp.json',
    zed: '/Users/ada/.config/zed/settings.json',
    cursor: '/Users/ada/.cursor/mcp.json',
  });
  expect(on('win32', 'C:\\Users\\ada', { APPDATA: 'C:\\Users\\ada\\AppData\\Roaming' })).toMatchObject({
    'claude-desktop': 'C:\\Users\\ada\\AppData\\Roaming\\Claude\\claude_desktop_config.json',
    'claude-code': 'C:\\Users\\ada\\.claude.json',
    vscode: 'C:\\Users\\ada\\AppData\\Roaming\\Code\\User\\mcp.json',
    windsurf: 'C:\\Users\\ada\\.codeium\\windsurf\\mcp_config.json',
    zed: 'C:\\Users\\ada\\AppData\\Roaming\\Zed\\settings.json',
  });
  expect(on('linux', '/home/ada', { XDG_CONFIG_HOME: '/cfg' }).zed).toBe('/cfg/zed/settings.json');
});

/** A home with these files, and the three commands in it. */
function home(files: Record<string, string>) {
  const dir = temporaryDirectory();
  for (const [name, text] of Object.entries(files)) {
    mkdirSync(path.dirname(path.join(dir, name)), { recursive: true });
    writeFileSync(path.join(dir, name), text, { mode: 0o600 });
  }
  const env = { SVC_PROXY_KEY: PROXY_KEY, SVC_AGENT_KEY: AGENT_KEY, SVC_URL: 'https://control.example' };
  const script = path.join(dir, 'program/svc-proxy.js');
  mkdirSync(path.dirname(script));
  writeFileSync(script, '// program');
  const place: Place = { platform: 'linux', home: dir, env };
  return {
    dir,
    script,
    at: (name: string) => path.join(dir, name),
    read: (name: string) => readFileSync(path.join(dir, name), 'utf8'),
    json: (name: string) => JSON.parse(readFileSync(path.join(dir, name), 'utf8')),
    async run(mode: 'install' | 'uninstall' | 'status', ...argv: string[]) {
      let output = '';
      const out = (text: string) => {
        output += text;
      };
      const code = await manage(mode, argv, { env, script, place, out });
      return { code, output, outcomes: argv.includes('--json') ? JSON.parse(output).outcomes : [] };
    },
  };
}

const DESKTOP = '.config/Claude/claude_desktop_config.json';
const CODE = '.claude.json';
const VSCODE = '.config/Code/User/mcp.json';
const ZED = '.config/zed/settings.json';
const CURSOR = '.cursor/mcp.json';

/** As the clients and their people write them: odd spacing, comments, tabs, Windows line ends, a byte order mark. */
const FILES = {
  [DESKTOP]: `{
    "globalShortcut": "Ctrl+Space",
    "mcpServers": {
        "files": { "command": "npx",  "args": ["-y", "@modelcontextprotocol/server-filesystem", "/home/ada/notes"] },
        "github": {
            "command": "docker",
            "args": ["run", "-i", "--rm", "--", "ghcr.io/github/github-mcp-server"],
            "env": { "GITHUB_TOKEN": "ghp_secret" }
        }
    }
}
`,
  [CODE]: `{"numStartups":12,"mcpServers":{"time":{"type":"stdio","command":"uvx","args":["mcp-server-time"],"env":{}}},"projects":{"/home/ada/a.b":{"allowedTools":[],"mcpServers":{"db":{"command":"db-mcp"}}},"/home/ada/c":{}}}`,
  [VSCODE]: `\ufeff{\r\n\t// my servers\r\n\t"servers": {\r\n\t\t"files": {\r\n\t\t\t"type": "stdio",\r\n\t\t\t"command": "npx", // the public one\r\n\t\t\t"args": ["server-files"],\r\n\t\t},\r\n\t\t"remote": { "type": "http", "url": "https://mcp.example/mcp", "headers": { "Authorization": "Bearer sekrit" } },\r\n\t\t"old": { "type": "sse", "url": "https://mcp.example/sse" },\r\n\t\t"asks": { "url": "https://mcp.example/mcp", "headers": { "Authorization": "Bearer \${input:token}" } },\r\n\t},\r\n\t"inputs": [],\r\n}\r\n`,
  [ZED]: `// Zed settings\n{\n  "theme": "One Dark", /* dark */\n  "context_servers": {\n    "local": { "command": "some-command", "args": [], "env": {} }, // mine\n  },\n}\n`,
};

describe('install', () => {
  test('puts the proxy in front of every server it can, uninstall puts every byte back', async () => {
    const at = home(FILES);
    const { code, outcomes } = await at.run('install', '--json');
    expect(code).toBe(0);
    expect(outcomes.map((one: Record<string, string>) => `${one.client} ${one.server}: ${one.state}`)).toEqual([
      'claude-desktop files: governed',
      'claude-desktop github: governed',
      'claude-code time: governed',
      'claude-code db: governed',
      'vscode files: governed',
      'vscode remote: governed',
      'vscode old: skipped',
      'vscode asks: skipped',
      'zed local: governed',
    ]);
    const own = at.at('.svc-proxy');
    const env = {
      SVC_URL: 'https://control.example',
      SVC_PROXY_KEY_FILE: path.join(own, 'proxy.key'),
      SVC_AGENT_KEY_FILE: path.join(own, 'agent.key'),
      SVC_PROXY_DIR: own,
    };
    const start = (name: string) => [at.script, 'mcp', `--name=${name}`];
    expect(at.json(DESKTOP)).toEqual({
      globalShortcut: 'Ctrl+Space',
      mcpServers: {
        files: {
          command: process.execPath,
          args: [
            ...start('files'),
            ...['--', 'npx', '-y', '@modelcontextprotocol/server-filesystem', '/home/ada/notes'],
          ],
          env,
        },
        github: {
          command: process.execPath,
          args: [
            ...start('github'),
            ...['--', 'docker', 'run', '-i', '--rm', '--', 'ghcr.io/github/github-mcp-server'],
          ],
          env: { GITHUB_TOKEN: 'ghp_secret', ...env },
        },
      },
    });
    expect(at.json(CODE).projects['/home/ada/a.b'].mcpServers.db.args).toEqual([...start('db'), '--', 'db-mcp']);
    expect(at.read(VSCODE)).toContain('// my servers\r\n');
    expect(at.read(VSCODE)).toContain('"old": { "type": "sse", "url": "https://mcp.example/sse" },\r\n');
    expect(at.read(VSCODE).startsWith('\ufeff')).toBe(true);
    expect(at.read(ZED)).toContain('"theme": "One Dark", /* dark */\n');

    const everything = readdirSync(own, { recursive: true, encoding: 'utf8' }).filter((name) =>
      statSync(path.join(own, name)).isFile(),
    );
    for (const name of everything) expect(statSync(path.join(own, name)).mode & 0o777, name).toBe(0o600);
    expect(at.read('.svc-proxy/agent.key').trim()).toBe(AGENT_KEY);
    for (const file of Object.keys(FILES)) expect(at.read(file)).not.toMatch(/svc_(key|agent)_/);
    // a header that was in the client's file is in none that the client reads now
    expect(at.read(VSCODE)).not.toContain('sekrit');

    const installed = Object.keys(FILES).map((name) => at.read(name));
    const again = await at.run('install', '--json');
    expect(again.outcomes.some((one: { changed: boolean }) => one.changed)).toBe(false);
    expect(Object.keys(FILES).map((name) => at.read(name))).toEqual(installed);

    await at.run('uninstall');
    for (const [name, text] of Object.entries(FILES)) expect(at.read(name), name).toBe(text);
    expect(existsSync(path.join(own, 'clients.json'))).toBe(false);
  });

  test('keeps the mode of a file, and what its client adds later; takes back a server that was changed since', async () => {
    const at = home({ [CURSOR]: '{\n  "mcpServers": { "a": { "command": "one", "args": ["x"] } }\n}\n' });
    chmodSync(at.at(CURSOR), 0o640);
    await at.run('install');
    expect(statSync(at.at(CURSOR)).mode & 0o777).toBe(0o640);
    const file = at.json(CURSOR);
    file.other = true;
    file.mcpServers.a.args.push('y');
    file.mcpServers.a.env.OWN = '1';
    file.mcpServers.b = { command: 'two' };
    writeFileSync(at.at(CURSOR), JSON.stringify(file));
    await at.run('uninstall');
    expect(at.json(CURSOR)).toEqual({
      mcpServers: { a: { command: 'one', args: ['x', 'y'], env: { OWN: '1' } }, b: { command: 'two' } },
      other: true,
    });
  });

  test('takes one server of one client where it is told so', async () => {
    const at = home(FILES);
    await at.run('install', '--client', 'claude-desktop', '--server', 'github');
    expect(at.json(DESKTOP).mcpServers.files.command).toBe('npx');
    expect(at.json(DESKTOP).mcpServers.github.command).toBe(process.execPath);
    expect(at.read(ZED)).toBe(FILES[ZED]);
    const { outcomes } = await at.run('status', '--json', '--client', 'claude-desktop');
    expect(outcomes.map(({ server, state }: Record<string, string>) => `${server} ${state}`)).toEqual([
      'files not governed',
      'github governed',
    ]);
  });

  test('shows with --dry-run what would change, without secrets, and changes nothing', async () => {
    const at = home(FILES);
    const { output, code } = await at.run('install', '--dry-run');
    expect(code).toBe(0);
    expect(output).toContain(`+      "${at.script}",`);
    expect(output).toContain('"SVC_URL": "https://control.example"');
    expect(output).not.toContain('One Dark');
    expect(output).toContain('would be governed');
    expect(output).not.toMatch(/ghp_secret|sekrit|svc_agent_/);
    for (const [name, text] of Object.entries(FILES)) expect(at.read(name)).toBe(text);
    expect(existsSync(at.at('.svc-proxy'))).toBe(false);
  });

  test('keeps a copy of each file as it was', async () => {
    const at = home(FILES);
    await at.run('install');
    const copies = readdirSync(at.at('.svc-proxy/backups'));
    expect(copies).toHaveLength(4);
    const desktop = copies.find((name) => name.startsWith('claude-desktop'))!;
    expect(at.read(`.svc-proxy/backups/${desktop}`)).toBe(FILES[DESKTOP]);
  });

  test('a copy that npx will throw away is not what clients start', async () => {
    const at = home({ [CURSOR]: '{"mcpServers": {"a": {"command": "one"}}}' });
    const cache = at.at('.npm/_npx/0123abcd/node_modules/svc-proxy/dist');
    mkdirSync(cache, { recursive: true });
    writeFileSync(path.join(cache, 'svc-proxy.js'), '// program');
    const env = { SVC_PROXY_KEY: PROXY_KEY, SVC_AGENT_KEY: AGENT_KEY };
    const place: Place = { platform: 'linux', home: at.dir, env };
    await manage('install', [], { env, place, script: path.join(cache, 'svc-proxy.js'), out: () => {} });
    const [script] = at.json(CURSOR).mcpServers.a.args;
    expect(script).toBe(at.at('.svc-proxy/app/node_modules/svc-proxy/dist/svc-proxy.js'));
    expect(readFileSync(script, 'utf8')).toBe('// program');
  });
});

describe('an address that holds a secret', () => {
  const SECRET = 'https://mcp.example/mcp?api_key=qu3ry-s3cret';
  const PATH = 'https://mcp.example/s/NDk3ZjQ5ZmQtOTk3YS00/mcp';
  const text = JSON.stringify({
    mcpServers: { query: { url: SECRET }, path: { url: PATH }, plain: { url: 'https://mcp.example/mcp' } },
  });

  test('is in a file that only its owner reads, and in none that the client reads; uninstall puts it back', async () => {
    const at = home({ [CURSOR]: text });
    expect((await at.run('install')).code).toBe(0);
    expect(at.read(CURSOR)).not.toMatch(/qu3ry|NDk3/);
    const { mcpServers } = at.json(CURSOR);
    const fileOf = (name: string) => mcpServers[name].args[mcpServers[name].args.indexOf('--url-file') + 1];
    expect(readFileSync(fileOf('query'), 'utf8')).toBe(`${SECRET}\n`);
    expect(readFileSync(fileOf('path'), 'utf8')).toBe(`${PATH}\n`);
    expect(statSync(fileOf('query')).mode & 0o777).toBe(0o600);
    expect(mcpServers.plain.args.slice(-2)).toEqual(['--url', 'https://mcp.example/mcp']);
    const options = mcpOptions(mcpServers.query.args.slice(2), {});
    expect(options.servers[0]!.server).toMatchObject({ url: new URL(SECRET) });
    expect((await at.run('status', '--json')).outcomes.map(({ state }: { state: string }) => state)).toEqual(
      Array(3).fill('governed'),
    );
    const { dir, place } = { dir: at.at('.svc-proxy'), place: { platform: 'linux' as const, home: at.dir, env: {} } };
    expect(addressesOf('query', place, dir)).toEqual([SECRET]);
    await at.run('uninstall');
    expect(at.read(CURSOR)).toBe(text);
    expect(existsSync(fileOf('query'))).toBe(false);
  });

  test('with a user or a password is refused, and the way to do it is said', async () => {
    const with1 = text.replace(SECRET, 'https://ada:p4ss@mcp.example/mcp');
    const at = home({ [CURSOR]: with1 });
    const { outcomes, output } = await at.run('install', '--json');
    expect(outcomes[0]).toMatchObject({ state: 'skipped', detail: expect.stringContaining('a header Authorization') });
    expect(output).not.toContain('p4ss');
    expect(at.json(CURSOR).mcpServers.query).toEqual({ url: 'https://ada:p4ss@mcp.example/mcp' });
    await expect(at.run('install', '--url', 'https://u:p4ss@control.example')).rejects.toThrow('keys are in files');
    await expect(at.run('install', '--url', 'http://control.example')).rejects.toThrow('SVC_ALLOW_HTTP=1');
  });
});

test('--dry-run shows no secret, wherever people put them', async () => {
  const secrets = ['s3cret-1', 'ghp_abcdefghijklmnop', 'plainword', 'aB3dE6gH9jK2mN5pQ8', 'hunter2', 'opensesame'];
  const [a, b, c, d, e, f] = secrets;
  const server = {
    command: 'npx',
    args: [
      '-y',
      'mcp-remote',
      `https://mcp.example/x?k=${a}`,
      '--header',
      `Authorization: Bearer ${b}`,
      '--token',
      c,
      d,
    ],
    env: { SVC_PROXY_KEY: 'svc_key_secret', API: a },
    auth: { deep: [{ password: f }] },
  };
  const remote = { url: `https://mcp.example/mcp?token=${e}`, headers: { 'X-Key': f } };
  const db = { command: 'db-mcp', args: [`postgres://u:${e}@db.example/x`, `--password=${f}`, '-e', `KEY=${c}`] };
  const at = home({ [CURSOR]: JSON.stringify({ primaryApiKey: b, mcpServers: { server, remote, db } }) });
  const { output } = await at.run('install', '--dry-run');
  for (const secret of [...secrets, 'svc_key_secret']) expect(output).not.toContain(secret);
  for (const plain of ['"-y"', '"mcp-remote"', '"https://mcp.example/x?[hidden]"', '"--token"', '"db-mcp"', '"X-Key"'])
    expect(output).toContain(plain);
});

describe('status takes for governed', () => {
  const one = { command: 'one', args: ['x'], env: { OWN: '1' } };
  const installed = async () => {
    const at = home({ [CURSOR]: JSON.stringify({ mcpServers: { a: one } }) });
    await at.run('install');
    return at;
  };
  const state = async (at: ReturnType<typeof home>) => (await at.run('status', '--json')).outcomes[0];

  test('nothing that only looks like the proxy', async () => {
    const impostor = {
      command: '/tmp/evil',
      args: ['s.js', 'mcp', '--name=a', '--', 'one'],
      env: { SVC_PROXY_DIR: '/x' },
    };
    const at = home({ [CURSOR]: JSON.stringify({ mcpServers: { a: impostor } }) });
    expect(await state(at)).toMatchObject({
      state: 'not governed',
      detail: expect.stringContaining('svc-proxy install'),
    });
    await at.run('install');
    expect(await state(at)).toMatchObject({ state: 'governed' });
    expect(at.json(CURSOR).mcpServers.a.command).toBe(process.execPath);
  });

  type Wrapped = { command: string; args: string[]; env: Record<string, string>; [more: string]: unknown };
  test.for<[string, (entry: Wrapped) => void]>([
    ['command', (entry) => (entry.command = '/tmp/evil')],
    ['script', (entry) => (entry.args[0] = '/tmp/evil.js')],
    ['options', (entry) => entry.args.splice(3, 0, '--others', 'record')],
    ['control plane', (entry) => (entry.env.SVC_URL = 'https://evil.example')],
    ['settings', (entry) => (entry.env.SVC_PROXY_STALE = 'keep')],
    ['loader', (entry) => (entry.env.NODE_OPTIONS = '--require /tmp/evil.js')],
    ['loader of OpenSSL', (entry) => (entry.env.OPENSSL_CONF = '/tmp/evil.cnf')],
    ['trust', (entry) => (entry.env.SSL_CERT_FILE = '/tmp/evil.pem')],
    ['loader of the system', (entry) => (entry.env.GCONV_PATH = '/tmp/evil')],
    ['loader in another case', (entry) => (entry.env.node_options = '--require /tmp/evil.js')],
    ['loader of Python', (entry) => (entry.env.PYTHONPATH = '/tmp/evil')],
    ['loader of Ruby', (entry) => (entry.env.RUBYOPT = '-r/tmp/evil')],
    ['loader of Perl', (entry) => (entry.env.PERL5OPT = '-Mevil')],
    ['loader of Java', (entry) => (entry.env.JAVA_TOOL_OPTIONS = '-javaagent:/tmp/evil.jar')],
    ['type', (entry) => (entry.type = 'http')],
    ['file of its environment', (entry) => (entry.envFile = '/tmp/evil.env')],
  ])('none of which somebody changed the %s; install puts it right', async ([, change]) => {
    const at = await installed();
    expect(await state(at)).toMatchObject({ state: 'governed' });
    const before = at.json(CURSOR);
    const file = at.json(CURSOR);
    change(file.mcpServers.a);
    writeFileSync(at.at(CURSOR), JSON.stringify(file));
    expect(await state(at)).toMatchObject({ state: 'not governed', detail: expect.stringContaining('changed') });
    await at.run('install');
    expect(at.json(CURSOR)).toEqual(before);
    expect(await state(at)).toMatchObject({ state: 'governed' });
  });

  test.each(['NODE_OPTIONS', 'OPENSSL_CONF', 'LD_PRELOAD', 'DYLD_INSERT_LIBRARIES'])(
    'none with %s in its environment, whoever put it there, and install says so',
    async (name) => {
      const file = {
        mcpServers: { a: { ...one, env: { [name]: '/tmp/evil' } }, b: { ...one, env: { PYTHONPATH: '/x' } } },
      };
      const at = home({ [CURSOR]: JSON.stringify(file) });
      const expected = [
        { server: 'a', state: 'not governed', detail: expect.stringContaining(`${name} in its environment`) },
        { server: 'b', state: 'governed' },
      ];
      expect((await at.run('install', '--json')).outcomes).toMatchObject(expected);
      expect((await at.run('status', '--json')).outcomes).toMatchObject(expected);
    },
  );

  test('none to whose address somebody added a command’s arguments or environment', async () => {
    const env = { SVC_URL: 'https://evil.example', SVC_PROXY_DIR: '/tmp', NODE_OPTIONS: '--require /tmp/evil.js' };
    const at = home({
      [CURSOR]: JSON.stringify({ mcpServers: { a: { url: 'https://a.example', args: ['x'], env } } }),
    });
    const before = at.read(CURSOR);
    await at.run('install');
    const { a } = at.json(CURSOR).mcpServers;
    expect(a.args).toContain('--url');
    expect(a.env).toMatchObject({ SVC_URL: 'https://control.example' });
    expect(a.env).not.toHaveProperty('NODE_OPTIONS');
    await at.run('uninstall');
    expect(at.read(CURSOR)).toBe(before);
  });

  test('one to whose server its owner gave another argument, but none whose program is gone', async () => {
    const at = await installed();
    const file = at.json(CURSOR);
    file.mcpServers.a.args.push('y');
    file.mcpServers.a.env.OWN = '2';
    writeFileSync(at.at(CURSOR), JSON.stringify(file));
    expect(await state(at)).toMatchObject({ state: 'governed' });
    rmSync(at.script);
    expect(await state(at)).toMatchObject({ state: 'failed', detail: expect.stringContaining('not there any more') });
  });
});

test('no name can look like another line, or like a command', async () => {
  const names = [
    'x\u001b[1A\r\u001b[2Kcursor payments  governed\u001b[8m',
    'x\ncursor payments  governed',
    'x\u009b2K',
    'x\u202edenrevog',
    'x\u2028y',
    'payments                  governed',
    '\u{e0041}',
    '$(touch /tmp/x)',
  ];
  const stdio = Object.fromEntries(names.map((name) => [name, { command: 'one' }]));
  const http = Object.fromEntries(names.map((name) => [`${name}.`, { url: 'https://a.example/mcp' }]));
  const at = home({ [CURSOR]: JSON.stringify({ mcpServers: { ...stdio, ...http } }) });
  const plain = (text: string) => {
    expect(text).not.toMatch(/[^\n\P{Cc}]|[\p{Cf}\p{Zl}\p{Zp}]/u);
    expect(text).not.toMatch(/^cursor payments {2}/m);
    expect(text).not.toMatch(/login (?!NAME)/);
  };
  plain((await at.run('install', '--dry-run')).output);
  for (const mode of ['install', 'status', 'uninstall'] as const) {
    const { output } = await at.run(mode);
    plain(output);
    expect(output.split('\n').filter((line) => line.startsWith('cursor '))).toHaveLength(2 * names.length);
    plain((await at.run(mode, '--json')).output.replaceAll(/svc-proxy login NAME/g, ''));
  }
  const { outcomes } = await at.run('status', '--json');
  expect(outcomes.map(({ server }: { server: string }) => server)).toEqual([
    ...Object.keys(stdio),
    ...Object.keys(http),
  ]);
});

test('each server has its own headers, however its name and its place are written', async () => {
  const remote = (token: string) => ({
    type: 'http',
    url: `https://${token}.example/mcp`,
    headers: { Authorization: token },
  });
  const project = `/home/ada/${'deep/'.repeat(30)}`;
  const at = home({
    [CODE]: JSON.stringify({
      mcpServers: { 'a b': remote('one'), a_b: remote('two') },
      projects: { [project]: { mcpServers: { first: remote('three'), second: remote('four') } } },
    }),
  });
  expect((await at.run('install')).code).toBe(0);
  const { mcpServers, projects } = at.json(CODE);
  for (const entry of [...Object.values(mcpServers), ...Object.values(projects[project].mcpServers)]) {
    const { args } = entry as { args: string[] };
    const headers = JSON.parse(readFileSync(args[args.indexOf('--headers') + 1]!, 'utf8'));
    expect(args[args.indexOf('--url') + 1]).toBe(`https://${headers.Authorization}.example/mcp`);
  }
});

test('a server with a command and an address, of which the client chooses one, does not pass for governed', async () => {
  const both = { command: 'one', url: 'https://mcp.example/mcp' };
  const text = JSON.stringify({
    mcpServers: { a: both, b: { url: 'https://a.example', httpUrl: 'https://b.example' } },
  });
  const at = home({ '.gemini/settings.json': text });
  const { outcomes } = await at.run('install', '--json');
  expect(outcomes).toMatchObject([{ state: 'skipped' }, { state: 'skipped' }]);
  const governed = { ...both, args: ['s.js', 'mcp', '--', 'one'], env: { SVC_PROXY_DIR: '/x' } };
  const other = home({ '.gemini/settings.json': JSON.stringify({ mcpServers: { a: governed } }) });
  expect((await other.run('status', '--json')).outcomes).toMatchObject([{ state: 'skipped' }]);
});

describe('a file that', () => {
  const one = '{"mcpServers": {"a": {"command": "one"}}}';
  const refused = async (at: ReturnType<typeof home>, why: RegExp) => {
    const { code, outcomes } = await at.run('install', '--json');
    expect(code).toBe(1);
    expect(outcomes).toMatchObject([{ client: 'cursor', state: 'failed', detail: expect.stringMatching(why) }]);
  };

  test('is a link is changed where it leads, and stays a link', async () => {
    const at = home({ 'dotfiles/cursor.json': one });
    mkdirSync(at.at('.cursor'));
    symlinkSync(at.at('dotfiles/cursor.json'), at.at(CURSOR));
    expect((await at.run('install')).code).toBe(0);
    expect(lstatSync(at.at(CURSOR)).isSymbolicLink()).toBe(true);
    expect(at.json('dotfiles/cursor.json').mcpServers.a.command).toBe(process.execPath);
  });

  test.for([
    ['is malformed', '{"mcpServers": {"a": {"command": "one"}}', /line 1 is not valid JSON/],
    ['has a server twice', '{"mcpServers": {"a": {"command": "one"}, "a": {"command": "two"}}}', /"a" twice/],
    ['has its servers twice', '{"mcpServers": {}, "mcpServers": {"a": {"command": "one"}}}', /"mcpServers" twice/],
    ['is no object', '[]', /does not hold a JSON object/],
  ] as const)('%s is left as it is', async ([, text, why]) => {
    const at = home({ [CURSOR]: text });
    await refused(at, why);
    expect(at.read(CURSOR)).toBe(text);
    expect(readdirSync(at.at('.cursor'))).toEqual(['mcp.json']);
  });

  test('others may write to, or lies where they may, is left as it is', async () => {
    const at = home({ [CURSOR]: one });
    chmodSync(at.at(CURSOR), 0o606);
    await refused(at, /others can write/);
    chmodSync(at.at(CURSOR), 0o600);
    chmodSync(at.at('.cursor'), 0o707);
    await refused(at, /others can write/);
    expect(at.read(CURSOR)).toBe(one);
  });

  test('is a folder or a pipe is left as it is', async () => {
    const at = home({});
    mkdirSync(at.at('.cursor'));
    execFileSync('mkfifo', [at.at(CURSOR)]);
    await refused(at, /not a file/);
  });

  test('is in another encoding is left as it is', async () => {
    const at = home({});
    mkdirSync(at.at('.cursor'));
    writeFileSync(at.at(CURSOR), Buffer.from(one, 'utf16le').fill(0xff, 0, 1));
    await refused(at, /not UTF-8/);
  });
});

test('keys that are none, an unknown client and a missing file are refused, and no key is shown', async () => {
  const at = home({ [CURSOR]: '{}' });
  const place: Place = { platform: 'linux', home: at.dir, env: {} };
  const tried = (env: Record<string, string>, ...argv: string[]) =>
    manage('install', argv, { env, place, script: '/s.js', out: () => {} });
  const wrong = `${AGENT_KEY.slice(0, -1)}_`;
  const error = await tried({ SVC_PROXY_KEY: PROXY_KEY, SVC_AGENT_KEY: wrong }).catch((one) => one);
  expect(error.message).toContain('SVC_AGENT_KEY: is not an agent key');
  expect(error.message).not.toContain(wrong);
  await expect(at.run('install', '--client', 'emacs')).rejects.toThrow('emacs is unknown');
  const { code, outcomes } = await at.run('install', '--json', '--client', 'zed');
  expect(code).toBe(1);
  expect(outcomes).toMatchObject([{ state: 'failed', detail: expect.stringContaining('there is no such file') }]);
});
