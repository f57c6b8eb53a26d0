import { type ChildProcess, spawn } from 'node:child_process';
import { chmodSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterAll, expect, vi } from 'vitest';
import { main } from '../../server/cli/main.ts';
import { setPatience } from '../../server/lib/patience.ts';
import { PATIENCE } from '../helpers/patience.ts';
import { freePort } from '../helpers/ports.ts';

const root = path.resolve(import.meta.dirname, '../..');

const isSetting = (name: string) =>
  /^(SVC_|PG|DATABASE_(SESSION_|NODE_)?URL$|REDIS_URL$|SMTP_URL$|PORT$|HOST$|LOG_LEVEL$)/.test(name);
/** The environment without settings, so that those of who runs the tests do not count. */
const bare = Object.fromEntries(Object.entries(process.env).filter(([name]) => !isSetting(name)));
/** What every command is told, unless a test says otherwise: on a busy machine, it waits longer before it gives up. */
const PATIENT = { SVC_PATIENCE: String(PATIENCE) };

export interface Ran {
  code: number | null;
  stdout: string;
  stderr: string;
  /** What it printed, as JSON. */
  json<T = Record<string, unknown>>(): T;
}

/** Runs the operator's command as a process of its own, as operators do, and checks its exit code. */
export async function svc(expected: number, env: Record<string, string>, ...args: string[]): Promise<Ran> {
  const ran = await ended(start('server/cli.ts', env, ...args));
  return checked(expected, ran, args);
}

/** The same within this process, which takes a tenth of the time. One at a time. */
export async function svcHere(expected: number, env: Record<string, string>, ...args: string[]): Promise<Ran> {
  const before = { ...process.env };
  const written = { stdout: '', stderr: '' };
  const spies = (['stdout', 'stderr'] as const).map((name) =>
    vi.spyOn(process[name], 'write').mockImplementation((text) => {
      written[name] += text;
      return true;
    }),
  );
  for (const name of Object.keys(process.env)) if (isSetting(name)) delete process.env[name];
  Object.assign(process.env, PATIENT, env);
  let code: number;
  try {
    code = await main(args);
  } finally {
    for (const spy of spies) spy.mockRestore();
    // the command has set it for the whole process
    setPatience(PATIENCE);
    for (const name of Object.keys(process.env)) if (isSetting(name)) delete process.env[name];
    Object.assign(process.env, before);
  }
  return checked(expected, { code, ...written, json: <T>() => JSON.parse(written.stdout) as T }, args);
}

function checked(expected: number, ran: Ran, args: string[]): Ran {
  expect(ran.code, `svc ${args.join(' ')}: ${ran.stderr}${ran.stdout}`).toBe(expected);
  return ran;
}

/** Starts one of the project's programs. */
export function start(program: string, env: Record<string, string>, ...args: string[]): ChildProcess {
  return spawn(process.execPath, [path.join(root, program), ...args], {
    env: { ...bare, ...PATIENT, ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
}

/** Waits for the end of a process. */
export async function ended(child: ChildProcess): Promise<Ran> {
  let stdout = '';
  let stderr = '';
  child.stdout!.on('data', (chunk) => {
    stdout += chunk;
  });
  child.stderr!.on('data', (chunk) => {
    stderr += chunk;
  });
  const code = await new Promise<number | null>((resolve, reject) => {
    child.once('error', reject);
    child.once('close', resolve);
  });
  return { code, stdout, stderr, json: <T>() => JSON.parse(stdout) as T };
}

/** A directory that goes when the test file ends; call it at the top of the file. PostgreSQL, as nobody, can enter it. */
export function temporaryDirectory(): string {
  const dir = mkdtempSync(path.join(tmpdir(), 'svc-cli-'));
  chmodSync(dir, 0o755);
  afterAll(() => rmSync(dir, { recursive: true, force: true }));
  return dir;
}

export interface ServerProcess {
  readonly url: string;
  /** The settings that it runs with. */
  readonly env: Record<string, string>;
  /** Of the tenant `default`, as the first start wrote them into a file. */
  readonly key: string;
  readonly link: string;
  stop(): Promise<void>;
}

/** The whole program as `npm start` runs it, on a data directory of its own. Anyone who starts it stops it. */
export async function startServer(dir: string, settings: Record<string, string> = {}): Promise<ServerProcess> {
  const port = String(await freePort());
  const env = { PORT: port, SVC_DATA_DIR: dir, ...settings };
  const child = start('server/main.ts', env);
  const end = ended(child);
  const first = await new Promise<{ key: string; link: string }>((resolve, reject) => {
    let output = '';
    child.stdout!.on('data', (chunk) => {
      output += chunk;
      if (!/"file":"[^"]*first-sign-in\.txt"/.test(output)) return;
      const text = readFileSync(path.join(dir, 'first-sign-in.txt'), 'utf8');
      resolve({ key: /svc_key_[\w-]+/.exec(text)![0], link: /http\S+verify\?token=\w+/.exec(text)![0] });
    });
    end.then((ran) => reject(new Error(`the server ended with ${ran.code}: ${ran.stderr}${ran.stdout}`)), reject);
  });
  return {
    url: `http://127.0.0.1:${port}`,
    env,
    ...first,
    async stop() {
      child.kill('SIGTERM');
      await end;
    },
  };
}

/** A request to a running server; the status is checked. */
export async function ask<T = Record<string, unknown>>(
  expected: number,
  url: string,
  key: string | undefined,
  options: { body?: unknown; headers?: Record<string, string> } = {},
): Promise<T> {
  const response = await fetch(url, {
    ...(options.body !== undefined && { method: 'POST', body: JSON.stringify(options.body) }),
    redirect: 'manual',
    headers: {
      ...(key !== undefined && { authorization: `Bearer ${key}` }),
      ...(options.body !== undefined && { 'content-type': 'application/json' }),
      ...options.headers,
    },
  });
  const text = await response.text();
  expect(response.status, `${url}: ${text.slice(0, 500)}`).toBe(expected);
  return (/json/.test(response.headers.get('content-type') ?? '') && text ? JSON.parse(text) : text) as T;
}

/** The cookie that a sign-in link gives. */
export async function signIn(link: string, url: string): Promise<string> {
  const { pathname, search } = new URL(link);
  const response = await fetch(url + pathname + search, { redirect: 'manual' });
  expect(response.status).toBe(302);
  return response.headers.get('set-cookie')!.split(';')[0]!;
}
