import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { cpSync, existsSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { describeInBrowser, useBrowser } from './helpers/browser.ts';
import { freePort } from './helpers/ports.ts';
import { until } from './helpers/until.ts';

/** `npm run dev` on a copy of the sources, which are edited while it runs. */
const root = path.resolve(import.meta.dirname, '..');
let dir: string;
let dev: ChildProcess;
let url: string;
let link: string;
let key: string;
let output = '';

beforeAll(async () => {
  dir = mkdtempSync(path.join(tmpdir(), 'svc-dev-'));
  for (const name of ['server', 'machines', 'db', 'web']) {
    const isBuilt = (file: string) => /\/web\/dist(-|\/|$)/.test(file);
    cpSync(path.join(root, name), path.join(dir, name), { recursive: true, filter: (file) => !isBuilt(file) });
  }
  for (const name of ['package.json', 'tsconfig.json', 'node_modules'])
    symlinkSync(path.join(root, name), path.join(dir, name));
  const port = await freePort();
  url = `http://localhost:${port}`;
  // what is compiled is the copy's, of no use to a later run
  const compiled = { NODE_COMPILE_CACHE: path.join(dir, '.data/compiled') };
  const env = { ...process.env, ...compiled, PORT: String(port), SVC_DATA_DIR: path.join(dir, '.data') };
  // a process group, so that a test can kill npm and what it runs
  const stdio = ['ignore', 'pipe', 'pipe'] as const;
  dev = spawn('npm', ['run', '--silent', 'dev'], { cwd: dir, env, stdio: [...stdio], detached: true });
  for (const stream of [dev.stdout!, dev.stderr!]) {
    stream.on('data', (data) => {
      output += data;
    });
  }
  await until(
    () => dev.exitCode !== null || output.includes('first-sign-in.txt'),
    () => `the first start: ${output}`,
  );
  const shown = readFileSync(path.join(dir, '.data/first-sign-in.txt'), 'utf8');
  link = /http\S+verify\?token=\w+/.exec(shown)![0];
  key = /svc_key_[\w-]+/.exec(shown)![0];
});

afterAll(async () => {
  if (isRunning(dev)) {
    const ended = once(dev, 'exit');
    dev.kill('SIGTERM');
    await ended;
  }
  rmSync(dir, { recursive: true, force: true });
});

/** Saves a source with this text in place of another, which it must have. */
function edit(file: string, before: string, after: string): void {
  const target = path.join(dir, file);
  const text = readFileSync(target, 'utf8');
  expect(text).toContain(before);
  writeFileSync(target, text.replaceAll(before, after));
}

function isRunning(child: ChildProcess | undefined): child is ChildProcess {
  return child !== undefined && child.exitCode === null && child.signalCode === null;
}

const health = async () => {
  const answer = await fetch(`${url}/healthz`);
  return answer.ok ? ((await answer.json()) as { status: string }).status : answer.status;
};
const postmaster = () => readFileSync(path.join(dir, '.data/postgres/postmaster.pid'), 'utf8').split('\n')[0];

describe('the server', () => {
  test('restarts on a save, on the PostgreSQL that keeps running', async () => {
    expect(await health()).toBe('ok');
    const before = postmaster();
    edit('server/api/status.ts', "status: 'ok'", "status: 'edited'");
    await until(async () => (await health()) === 'edited', 'the edited answer is served');
    expect(postmaster()).toBe(before);
    expect((await fetch(`${url}/v1/keys`, { headers: { authorization: `Bearer ${key}` } })).status).toBe(200);
  });

  test('that does not start says so, and starts with the next save', async () => {
    edit('server/api/status.ts', "status: 'edited'", "status: 'again' oops");
    await until(() => output.includes('SyntaxError'), 'the fault is shown');
    expect(await health()).toBe(502);
    edit('server/api/status.ts', "'again' oops", "'again'");
    await until(async () => (await health()) === 'again', 'the corrected server answers');
  });

  test('streams, takes cookies and checks origins as it does by itself', async () => {
    const signedIn = await fetch(link, { redirect: 'manual' });
    const cookie = signedIn.headers.get('set-cookie')!.split(';')[0]!;
    const make = (origin: string) =>
      fetch(`${url}/v1/keys`, {
        method: 'POST',
        headers: { cookie, origin, 'content-type': 'application/json' },
        body: JSON.stringify({ label: 'a key', scopes: ['proxy'] }),
      });
    expect((await make(url)).status).toBe(201);
    expect((await make('http://elsewhere.test')).status).toBe(403);

    const stream = await fetch(`${url}/v1/stream`, { headers: { cookie } });
    const { value } = await stream.body!.getReader().read();
    expect(Buffer.from(value!).toString()).toContain('event: hello');
    await stream.body!.cancel().catch(() => undefined);
  });
});

test('no file but sources is served: not the master key, not what lies beside the project', async () => {
  for (const file of [path.join(dir, '.data/master.key'), '/etc/passwd']) {
    const answer = await fetch(`${url}/@fs${file}`);
    expect(answer.status, file).toBe(403);
    expect(await answer.text()).not.toContain(readFileSync(file, 'utf8').slice(0, 20));
  }
});

describeInBrowser('the dashboard', () => {
  const browser = useBrowser(() => url);

  test('shows a saved change without a reload, under the policy for content of the built one', async () => {
    const visitor = await browser.visitor();
    const { page } = visitor;
    // A change that is saved before the page listens would never reach it; and it is loaded once more when Vite has found what
    // else it imports.
    let isListening = false;
    page.on('websocket', (socket) => {
      isListening = false;
      socket.on('framereceived', ({ payload }) => {
        isListening ||= String(payload).includes('"connected"');
      });
    });
    await visitor.open('/sign-in');
    await page.waitForLoadState('networkidle');
    await until(() => isListening, 'the page listens to changes');
    // once more if Vite loaded the page again just then: on a busy machine it finds late what else the page imports
    let [shown, edits] = ['to the agent governance control plane', 0];
    await until(
      async () => {
        const next = `to what was edited just now, ${++edits}`;
        await page.getByRole('textbox').fill('kept@example.test');
        edit('web/pages/sign-in.tsx', shown, next);
        shown = next;
        const came = page.getByText(next).waitFor({ timeout: 30_000 });
        if (!(await came.then(() => true).catch(() => false))) return false;
        return (await page.getByRole('textbox').inputValue()) === 'kept@example.test';
      },
      'a saved change is shown, and what was typed is still there',
      { limitMs: 240_000 },
    );
  });
});

test('a killed `npm run dev` leaves no server behind', async () => {
  const database = Number(postmaster());
  // the output stays open as long as the server, which has it too, is there
  let closed = false;
  dev.once('close', () => {
    closed = true;
  });
  process.kill(-dev.pid!, 'SIGKILL');
  try {
    await until(() => closed, 'the server has ended');
  } finally {
    // PostgreSQL stays for the next start, of which there is none
    process.kill(database, 'SIGINT');
    await until(() => !existsSync(path.join(dir, '.data/postgres/postmaster.pid')), 'PostgreSQL has ended');
  }
});
