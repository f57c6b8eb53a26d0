import { execFileSync } from 'node:child_process';
import { mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { beforeAll, expect, test } from 'vitest';
import { useServer } from '../helpers/server.ts';
import { until } from '../helpers/until.ts';
import { Collector } from '../telemetry/collector.ts';
import { decisions, governed, temporaryDirectory } from './support.ts';

/** The package as a person gets it: packed, and installed into an empty folder. */
const server = useServer({}, { shared: true });
const folder = temporaryDirectory();
const run = (cwd: string, command: string, ...args: string[]) => execFileSync(command, args, { cwd, encoding: 'utf8' });
/** The files under a folder that are no folders themselves. */
const filesIn = (dir: string) =>
  readdirSync(dir, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => path.join(entry.parentPath, entry.name));

beforeAll(() => {
  const packed = run('sdk/proxy', 'npm', 'pack', '--silent', '--pack-destination', folder).trim().split('\n').at(-1)!;
  writeFileSync(path.join(folder, 'package.json'), '{}');
  run(folder, 'npm', 'install', '--prefer-offline', '--no-audit', '--no-fund', '--silent', `./${packed}`);
});

test('installs nothing of the server, in well under 100 MB', () => {
  const packages = readdirSync(path.join(folder, 'node_modules')).filter((name) => !name.startsWith('.'));
  const expected = ['@cedar-policy', 're2js', 'svc-proxy', 'fs-native-extensions', 'require-addon', 'which-runtime'];
  expect(packages.filter((name) => !name.startsWith('bare-') && !expected.includes(name))).toEqual([]);
  const bytes = filesIn(path.join(folder, 'node_modules')).reduce((sum, file) => sum + statSync(file).size, 0);
  console.log(`installed: ${(bytes / 1e6).toFixed(1)} MB`);
  expect(bytes).toBeLessThan(30e6);
  const own = path.join(folder, 'node_modules/svc-proxy');
  expect(readdirSync(own).sort()).toEqual(['LICENSE', 'NOTICE.txt', 'README.md', 'dist', 'package.json']);
  expect(readFileSync(path.join(own, 'NOTICE.txt'), 'utf8')).toContain('@modelcontextprotocol/client');
});

test('says what it can, and refuses what it does not know with 2', () => {
  const command = path.join(folder, 'node_modules/.bin/svc-proxy');
  expect(run(folder, command, '--help')).toContain('Usage: svc-proxy');
  expect(() => run(folder, command, 'frobnicate')).toThrow(expect.objectContaining({ status: 2 }));
});

/** Reads a file through the packed proxy; `inspect` looks at it while it runs. */
async function readFileThrough(env: Record<string, string>, inspect: (pid: number) => Promise<void> | void) {
  const world = await governed(server, {
    files: 'permit(principal in AgentRole::"clerk", action == Action::"tool_call", resource in ToolServer::"files");',
  });
  const home = path.join(folder, 'files');
  mkdirSync(home, { recursive: true });
  writeFileSync(path.join(home, 'a.txt'), 'hello');
  const transport = new StdioClientTransport({
    command: process.execPath,
    args: [
      path.join(folder, 'node_modules/svc-proxy/dist/svc-proxy.js'),
      ...['mcp', '--name', 'files', '--', path.resolve('node_modules/.bin/mcp-server-filesystem'), home],
    ],
    cwd: folder,
    env: {
      ...world.env,
      ...env,
      PATH: process.env.PATH!,
      SVC_AGENT_KEY: world.agentKey,
      SVC_PROXY_DIR: path.join(folder, 'p', world.tenant.id),
    },
    stderr: 'ignore',
  });
  const client = new Client({ name: 'test', version: '1' });
  await client.connect(transport);
  try {
    await client.listTools();
    const answer = await client.callTool({ name: 'read_text_file', arguments: { path: path.join(home, 'a.txt') } });
    expect(answer).toMatchObject({ content: [{ text: 'hello' }] });
    expect(answer._meta).toMatchObject({ 'svc/decision': { decision: 'allow' } });
    await until(async () => (await decisions(server, world.tenant)).length > 0, 'the record is there');
    await inspect(transport.pid!);
  } finally {
    await client.close();
  }
}

test('governs a call to the file server, and needs little memory for it', async () => {
  await readFileThrough({}, (pid) => {
    const status = readFileSync(`/proc/${pid}/status`, 'utf8');
    const bytes = (what: string) => Number(new RegExp(`${what}:\\s+(\\d+) kB`).exec(status)![1]) * 1024;
    console.log(
      `resident: ${(bytes('VmRSS') / 1e6).toFixed(1)} MB, its own: ${(bytes('RssAnon') / 1e6).toFixed(1)} MB`,
    );
    // the rest are pages of Node's own program, which all its processes share; how many of them are there is chance
    expect(bytes('RssAnon')).toBeLessThan(55e6);
  });
});

test('sends its spans where there is a collector', async () => {
  const collector = await Collector.start();
  await readFileThrough({ OTEL_EXPORTER_OTLP_ENDPOINT: collector.url }, async () => {
    const span = await collector.find(({ name }) => name === 'tools/call read_text_file', 'the span of the call');
    expect(span).toMatchObject({ service: 'svc-proxy', failed: false });
  });
});
