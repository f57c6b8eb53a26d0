import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { freePort } from './helpers/ports.ts';

const root = path.resolve(import.meta.dirname, '..');
/** The pages whose commands continue each other, in the order in which a reader follows them. */
const pages = ['README.md', 'docs/proxy.md', 'docs/operation.md'];
const blocks = pages.flatMap((page) => {
  const text = readFileSync(path.join(root, page), 'utf8');
  return [...text.matchAll(/^```sh tested\n([\s\S]*?)^```/gm)].map(([, block]) => block!);
});

/** All of them; only what hangs takes so long, on however busy a machine. */
const LONGEST_MS = 1_800_000;

let dir: string;
let server: ChildProcess;
let shown: { base: string; key: string; link: string };

/** A user's folder: the project as links, so that what the commands write does not land in it. */
beforeAll(async () => {
  dir = mkdtempSync(path.join(tmpdir(), 'svc-readme-'));
  for (const name of ['package.json', 'node_modules', 'server', 'machines', 'db', 'web', 'sdk', 'docs']) {
    symlinkSync(path.join(root, name), path.join(dir, name));
  }
  const env = {
    ...process.env,
    PORT: String(await freePort()),
    SVC_DATA_DIR: path.join(tmpdir(), path.basename(dir), '.data'),
  };
  server = spawn('npm', ['start'], { cwd: dir, env, stdio: ['ignore', 'pipe', 'inherit'] });
  shown = await new Promise((resolve, reject) => {
    let output = '';
    server.once('exit', (code) => reject(new Error(`npm start ended with ${code}: ${output}`)));
    server.stdout!.on('data', (chunk) => {
      output += chunk;
      // what a terminal would be shown
      const [, file] = /"file":"([^"]*first-sign-in\.txt)"/.exec(output) ?? [];
      if (file === undefined) return;
      const text = readFileSync(file, 'utf8');
      const key = /svc_key_[\w-]+/.exec(text)![0];
      const link = /http\S+verify\?token=\w+/.exec(text)![0];
      resolve({ key, link, base: new URL(link).origin });
    });
  });
});

afterAll(async () => {
  if (server.exitCode === null) {
    const ended = new Promise((resolve) => server.once('exit', resolve));
    server.kill('SIGTERM');
    await ended;
  }
  rmSync(dir, { recursive: true, force: true });
});

test(
  'every tested command of the README and the pages after it does what it says, from a fresh start on',
  async () => {
    expect(blocks.length).toBeGreaterThan(5);
    const script = ['set -euo pipefail', `BASE=${shown.base} KEY=${shown.key} SIGN_IN_LINK='${shown.link}'`, ...blocks];
    const env = {
      ...process.env,
      PORT: new URL(shown.base).port,
      SVC_DATA_DIR: path.join(dir, '.data'),
      SVC_PROXY_PORT: String(await freePort()),
    };
    const { stdout } = await promisify(execFile)('bash', ['-c', script.join('\n')], {
      cwd: dir,
      env,
      timeout: LONGEST_MS,
    });
    for (const decision of ['allow', 'escrow', 'deny']) expect(stdout).toContain(`"decision":"${decision}"`);
    expect(stdout).toContain('"verified":true');
    expect(stdout.match(/^VERIFIED/gm)).toHaveLength(2);
    expect(stdout).toContain('Signature Verified Successfully');
    expect(stdout).toMatch(/^ok \d+ [0-9a-f]{64}/m);
    expect(stdout).toMatch(/^304$/m);

    expect(stdout).toContain('1 of 1 tests failed: \\"refund by support is held\\"');
    expect(stdout).toMatch(/"direction":"hold_lifted".*?"count":1,/);
    expect(stdout).toMatch(/"decision":"allow",[^\n]*"policy_version":3/);
    expect(stdout).toMatch(
      /version 3, in place of version 1, tests: 1 passed; [^\n]*, simulation sim_\w+ sha256:\w+: \d+ decisions;/,
    );

    const tour = stdout.slice(stdout.indexOf('ai:\n'));
    for (const told of [/^ {2}refunded 20$/gm, /^ {2}Held for approval as esc_/gm, /^ {2}refunded 900$/gm]) {
      expect(tour.match(told), `${told}`).toHaveLength(4);
    }
    expect(tour.match(/^ {2}Denied: stopped: refunds too much/gm)).toHaveLength(8);

    const list = /"tools":\[.*"inputSchema".*/.exec(stdout)?.[0];
    expect(list).toContain('"name":"write_file"');
    expect(list).not.toContain('move_file');
    expect(stdout).toContain('call the customer back');
    expect(stdout).toContain('Denied: files are never moved by agents.');
    expect(stdout).toContain('Nothing was done yet.');
    expect(stdout).toMatch(/^we will call you/m);
    expect(stdout).toContain('x-svc-decision: allow');
    expect(stdout).toContain('no policy permits this action');
  },
  LONGEST_MS + 30_000,
);
