import { execFile, execFileSync } from 'node:child_process';
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { promisify } from 'node:util';
import { gzipSync } from 'node:zlib';
import { build } from 'vite';
import { beforeAll, expect, test } from 'vitest';
import { deploy } from '../helpers/api.ts';
import { describeInBrowser, useBrowser } from '../helpers/browser.ts';
import { useServer } from '../helpers/server.ts';
import { until } from '../helpers/until.ts';
import { temporaryDirectory } from '../proxy/support.ts';

/** The client as a person gets it: packed, and installed into an empty folder. */
const server = useServer({}, { shared: true });
const folder = temporaryDirectory();
const ROOT = path.resolve(import.meta.dirname, '../..');
const run = (cwd: string, command: string, ...args: string[]) => execFileSync(command, args, { cwd, encoding: 'utf8' });
const execFileAsync = promisify(execFile);
/** The oldest release that it is for, without the installer that npm runs around it. */
const OLDEST_NODE = '20.3.0';
const oldest = path.join(folder, `oldest/node_modules/node-linux-${process.arch}/bin/node`);
const QUIET = ['--prefer-offline', '--no-audit', '--no-fund', '--silent'];
const POLICY =
  '@mask("$.ssn") permit(principal, action, resource == Tool::"read"); @escrow("single") @ttl("1h") permit(principal, action, resource == Tool::"pay");';
const installed = path.join(folder, 'node_modules/agent-governance-client');

beforeAll(async () => {
  const packed = run('sdk/client', 'npm', 'pack', '--silent', '--pack-destination', folder).trim().split('\n').at(-1)!;
  writeFileSync(path.join(folder, 'package.json'), '{"type": "module"}');
  const release = `node-linux-${process.arch}@${OLDEST_NODE}`;
  await Promise.all([
    execFileAsync('npm', ['install', ...QUIET, `./${packed}`], { cwd: folder }),
    execFileAsync('npm', ['install', ...QUIET, '--prefix', path.join(folder, 'oldest'), release], { cwd: folder }),
  ]);
});

test('has its own files alone, and nothing of Node.js or the server', () => {
  expect(readdirSync(installed).sort()).toEqual(['LICENSE', 'README.md', 'dist', 'package.json']);
  expect(readdirSync(path.join(installed, 'dist')).sort()).toEqual([
    ...['agent.d.ts', 'errors.d.ts', 'http.d.ts', 'index.d.ts', 'index.js', 'json.d.ts', 'mask.d.ts', 'schema.d.ts'],
    'webhooks.d.ts',
  ]);
  const packages = readdirSync(path.join(folder, 'node_modules')).filter((name) => !name.startsWith('.'));
  expect(packages.sort()).toEqual(['agent-governance-client', 'openapi-fetch', 'openapi-typescript-helpers']);
  const code = readFileSync(path.join(installed, 'dist/index.js'), 'utf8');
  const imports = [...code.matchAll(/^\s*(?:import|export)\b[^;]*?\bfrom\s*["']([^"']+)["']/gm)].map(
    ([, name]) => name,
  );
  expect(imports).toEqual(['openapi-fetch']);
  expect(code).not.toMatch(/\brequire\(|\bprocess\.\w|\bBuffer\b|['"]node:/);
  // the one file of the server that is in it
  const files = [...code.matchAll(/^\/\/ (\S+\.ts)$/gm)].map(([, file]) => file!);
  expect(files.filter((file) => !file.startsWith('src/'))).toEqual(['../../server/policy/evaluation/masks.ts']);
  expect(files.length).toBeGreaterThan(4);
});

/** The client in one file, as a bundler of web pages makes it. */
async function bundled(): Promise<string> {
  const entry = path.join(folder, 'entry.js');
  writeFileSync(entry, "export * from 'agent-governance-client';\n");
  const bundle = await build({
    configFile: false,
    root: folder,
    logLevel: 'silent',
    build: { write: false, minify: true, target: 'es2022', lib: { entry, formats: ['es'], fileName: 'bundle' } },
  });
  const [chunk] = (Array.isArray(bundle) ? bundle : [bundle]).flatMap((one) => ('output' in one ? one.output : []));
  return chunk!.type === 'chunk' ? chunk!.code : '';
}

test('is at most 15 KB in a bundle for browsers, compressed, with what it depends on', async () => {
  const code = await bundled();
  expect(code).not.toMatch(/["'`]node:/);
  expect(code).not.toMatch(/\bfrom\s*["']/);
  const bytes = gzipSync(code).length;
  console.log(`the client in a bundle: ${(bytes / 1000).toFixed(1)} KB compressed`);
  expect(bytes).toBeGreaterThan(3000);
  expect(bytes).toBeLessThan(15_000);
});

test('has types that a strict program compiles with', () => {
  writeFileSync(
    path.join(folder, 'typed.ts'),
    `import { AgentClient, createClient, type Evaluation, mask, permitted, verifyWebhook } from 'agent-governance-client';
const client = new AgentClient({ baseUrl: 'http://x', key: 'k' });
const answer: Evaluation = await client.ask({ action_type: 'tool_call', tool_name: 'x' }, { onHold: ({ page_url }) => page_url.trim() });
export const shown: { a: number } | string | undefined = permitted(answer) ? mask({ a: 1 }, answer) : undefined;
// @ts-expect-error an action has a tool
await client.evaluate({ action_type: 'tool_call' });
// @ts-expect-error no such member
await client.evaluate({ action_type: 'tool_call', tool_name: 'x', agent_id: 'boss' });
const { data } = await createClient({ baseUrl: 'http://x', key: 'k' }).GET('/v1/policies');
export const ids: string[] = data!.policies.map(({ id }) => id);
export const event: Promise<{ id: string }> = verifyWebhook({ secret: 's', headers: new Headers(), body: '' });
`,
  );
  const compilerOptions = {
    strict: true,
    noEmit: true,
    target: 'es2022',
    lib: ['es2022', 'dom'],
    module: 'nodenext',
    types: [],
  };
  writeFileSync(path.join(folder, 'tsconfig.json'), JSON.stringify({ compilerOptions, files: ['typed.ts'] }));
  run(folder, process.execPath, path.join(ROOT, 'node_modules/typescript/bin/tsc'), '-p', '.');
});

test('asks a real server for decisions', async () => {
  const tenant = await server.tenant();
  await deploy(server, tenant.admin, 'desk', POLICY);
  const agent = await tenant.agent('bot', 'clerk');
  writeFileSync(
    path.join(folder, 'agent.js'),
    `import { AgentClient, mask, permitted } from 'agent-governance-client';
const client = new AgentClient({ baseUrl: process.argv[2], key: process.env.AGENT_KEY });
const read = await client.ask({ action_type: 'tool_call', tool_name: 'read' });
const [pay, none] = await client.evaluateAll([
  { action_type: 'tool_call', tool_name: 'pay' }, { action_type: 'tool_call', tool_name: 'none' }]);
console.log(JSON.stringify([permitted(read), mask({ ssn: 1, a: 2 }, read), pay.decision, none.decision]));
`,
  );
  const env = { PATH: process.env.PATH, AGENT_KEY: agent.key };
  const ask = async (node: string) => {
    const { stdout } = await execFileAsync(node, ['agent.js', server.url], { cwd: folder, env });
    return JSON.parse(stdout);
  };
  const answers = [true, { ssn: '[masked]', a: 2 }, 'escrow', 'deny'];
  expect(await ask(process.execPath)).toEqual(answers);

  expect(run(folder, oldest, '--version').trim()).toBe(`v${OLDEST_NODE}`);
  expect(await ask(oldest)).toEqual(answers);
});

describeInBrowser('in a browser', () => {
  const browser = useBrowser(() => server.url);

  test.for(['page', 'worker'])('a %s asks for decisions, and waits for a release', async (where) => {
    const tenant = await server.tenant();
    await deploy(server, tenant.admin, 'desk', POLICY);
    const agent = await tenant.agent('bot', 'clerk');
    const approver = await tenant.person('approver');
    const scripts: Record<string, string> = {
      '/agent/client.js': await bundled(),
      '/agent/ask.js': `import { AgentClient, mask, permitted } from './client.js';
        export async function ask(key, tell) {
          const client = new AgentClient({ baseUrl: location.origin, key });
          const read = await client.ask({ action_type: 'tool_call', tool_name: 'read' });
          const pay = { action_type: 'tool_call', tool_name: 'pay' };
          const paid = await client.ask(pay, { onHold: ({ id }) => tell({ hold: id }) });
          tell({ answers: [permitted(read), mask({ ssn: 1, a: 2 }, read), paid.decision] });
        }`,
      '/agent/worker.js': `import { ask } from './ask.js';
        onmessage = ({ data }) => ask(data, postMessage).catch((error) => postMessage({ error: String(error) }));`,
      '/agent/page.js': `import { ask } from './ask.js';
        window.start = (key) => ask(key, window.tell).catch((error) => window.tell({ error: String(error) }));`,
      '/agent/starter.js': `const worker = new Worker('/agent/worker.js', { type: 'module' });
        worker.onmessage = ({ data }) => window.tell(data);
        window.start = (key) => worker.postMessage(key);`,
    };
    const { page } = await browser.visitor(undefined, { own: true });
    await page.route('**/agent/**', (route) => {
      const { pathname } = new URL(route.request().url());
      const script = where === 'page' ? 'page.js' : 'starter.js';
      if (pathname === '/agent/') {
        return route.fulfill({ contentType: 'text/html', body: `<script type="module" src="${script}"></script>` });
      }
      return route.fulfill({ contentType: 'text/javascript', body: scripts[pathname]! });
    });
    const told: { hold?: string; answers?: unknown; error?: string }[] = [];
    await page.exposeFunction('tell', (what: (typeof told)[number]) => void told.push(what));
    await page.goto(`${server.url}/agent/`);
    await page.waitForFunction('window.start !== undefined');
    await page.evaluate(`void window.start(${JSON.stringify(agent.key)})`);
    await until(() => told.length > 0, 'it is held');
    expect(told).toEqual([{ hold: expect.stringMatching(/^esc_/) }]);
    const vote = { decision: 'approve', reason: 'fine' };
    await server.call(200, `POST /v1/escrow/${told[0]!.hold}/vote`, approver, vote);
    await until(() => told.length > 1, 'it goes on');
    expect(told[1]).toEqual({ answers: [true, { ssn: '[masked]', a: 2 }, 'allow'] });
  });
});

test('the Python module compiles for 3.9, and imports the standard library alone', () => {
  const source = path.join(ROOT, 'sdk/python/agent_governance.py');
  const check = `
import ast, sys
tree = ast.parse(open(sys.argv[1]).read(), feature_version=(3, 9))
names = {a.name.split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
names |= {n.module.split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
print(sorted(names - set(sys.stdlib_module_names)))
`;
  expect(run(ROOT, 'python3', '-c', check, source).trim()).toBe('[]');
});
