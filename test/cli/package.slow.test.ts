import { execFile, execFileSync } from 'node:child_process';
import { mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { promisify } from 'node:util';
import { beforeAll, expect, test } from 'vitest';
import { deploy } from '../helpers/api.ts';
import { type TestTenant, useServer } from '../helpers/server.ts';
import { temporaryDirectory } from '../proxy/support.ts';

/** The package svc-cli as a person gets it: packed, and installed into an empty folder. */
const server = useServer({}, { shared: true });
const folder = temporaryDirectory();
let tenant: TestTenant;

const npm = (cwd: string, ...args: string[]) => execFileSync('npm', args, { cwd, encoding: 'utf8' });
/** Runs the installed command, with nothing of this process's environment but what it takes to run at all. */
async function svc(expected: number, env: Record<string, string>, ...args: string[]) {
  const bare = { PATH: process.env.PATH ?? '', HOME: folder };
  const ran = await promisify(execFile)(path.join(folder, 'node_modules/.bin/svc'), args, {
    cwd: folder,
    env: { ...bare, ...env },
  }).then(
    ({ stdout, stderr }) => ({ code: 0, stdout, stderr }),
    (error: { code: number; stdout: string; stderr: string }) => error,
  );
  expect(ran.code, `svc ${args.join(' ')}: ${ran.stderr}${ran.stdout}`).toBe(expected);
  return ran;
}
const SMALL = '@id("small") permit(principal in AgentRole::"clerk", action, resource == Tool::"refund");\n';
const SUITE = `defaults: { agent_role: clerk, action_type: tool_call, tool_name: refund }
tests:
  - { name: a clerk refunds, request: {}, expect: { decision: allow, rule: refunds#small } }
`;

beforeAll(async () => {
  const packed = npm('sdk/cli', 'pack', '--silent', '--pack-destination', folder).trim().split('\n').at(-1)!;
  writeFileSync(path.join(folder, 'package.json'), '{}');
  npm(folder, 'install', '--prefer-offline', '--no-audit', '--no-fund', '--silent', `./${packed}`);
  tenant = await server.tenant();
});

test('installs nothing of the server, its database or its web server', () => {
  const packages = readdirSync(path.join(folder, 'node_modules')).filter((name) => !name.startsWith('.'));
  expect(packages.sort()).toEqual(['@cedar-policy', 're2js', 'svc-cli']);
  const own = path.join(folder, 'node_modules/svc-cli');
  expect(readdirSync(own).sort()).toEqual(['LICENSE', 'NOTICE.txt', 'README.md', 'dist', 'package.json']);
  expect(readFileSync(path.join(own, 'NOTICE.txt'), 'utf8')).not.toMatch(/^(?:pg|fastify|@mikro-orm)/m);
  const files = readdirSync(path.join(folder, 'node_modules'), { recursive: true, withFileTypes: true });
  const bytes = files
    .filter((entry) => entry.isFile())
    .reduce((sum, entry) => sum + statSync(path.join(entry.parentPath, entry.name)).size, 0);
  expect(bytes).toBeLessThan(30e6);
});

test('says what it can, and refuses what it does not know with 2', async () => {
  const { stdout } = await svc(0, {}, '--help');
  expect(stdout).toContain('policy plan');
  expect(stdout).not.toContain('backup');
  expect((await svc(0, {}, '--version')).stdout).toBe('0.1.0\n');
  await svc(2, {}, 'backup');
  await svc(2, {}, 'stop', 'agent');
  // nothing is sent anywhere without a key and an address
  expect((await svc(2, {}, 'stop', 'agent', 'x', '--reason', 'r')).stderr).toContain('SVC_TOKEN');
  const key = { SVC_TOKEN: 'svc_key_x' };
  expect((await svc(2, key, 'stop', 'list')).stderr).toContain('SVC_URL');
  expect((await svc(2, { ...key, SVC_URL: 'http://example.com' }, 'stop', 'list')).stderr).toContain('https');
});

test('tests a folder without a server, pushes it, and stops what misbehaves', async () => {
  const dir = path.join(folder, 'policies');
  mkdirSync(dir);
  writeFileSync(path.join(dir, 'refunds.cedar'), SMALL);
  writeFileSync(path.join(dir, 'refunds.test.yaml'), SUITE);
  expect((await svc(0, {}, 'policy', 'test', dir)).stdout).toContain('1 of 1 tests pass');
  writeFileSync(path.join(dir, 'broken.cedar'), 'permit(');
  await svc(3, {}, 'policy', 'test', dir);
  rmSync(path.join(dir, 'broken.cedar'));

  const pipeline = { SVC_URL: server.url, SVC_TOKEN: (await tenant.key('pipeline')).key! };
  expect((await svc(2, pipeline, 'policy', 'plan', dir)).stdout).toContain('refunds');
  await svc(0, pipeline, 'policy', 'push', dir);
  await svc(0, pipeline, 'policy', 'plan', dir);
  await deploy(server, tenant.admin, 'desk', SMALL);
  const copy = path.join(folder, 'copy');
  await svc(0, pipeline, 'policy', 'pull', copy);
  expect(readFileSync(path.join(copy, 'desk.cedar'), 'utf8')).toBe(SMALL);

  const agent = await tenant.agent('bot-7', 'clerk');
  const asks = async () => {
    const body = { action_type: 'tool_call', tool_name: 'refund' };
    return (await server.call<{ decision: string }>(200, 'POST /v1/evaluate', agent, body)).body.decision;
  };
  expect(await asks()).toBe('allow');
  const stopping = { SVC_URL: server.url, SVC_TOKEN: (await tenant.key('stop')).key! };
  const made = await svc(
    0,
    stopping,
    'stop',
    'agent',
    'bot-7',
    '--abort',
    '--reason',
    'pays the wrong people',
    '--json',
  );
  const { id, abort } = JSON.parse(made.stdout) as { id: string; abort: boolean };
  expect(abort).toBe(true);
  expect(await asks()).toBe('deny');
  expect((await svc(0, stopping, 'stop', 'list')).stdout).toMatch(new RegExp(`${id} .*agent bot-7.*pays the wrong`));
  // another scope is refused, in words
  expect((await svc(1, pipeline, 'stop', 'list')).stderr).toMatch(/^svc stop list: /);
});
