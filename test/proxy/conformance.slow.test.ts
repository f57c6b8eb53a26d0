import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import path from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { atEnd } from '../helpers/cleanups.ts';
import { freePort } from '../helpers/ports.ts';
import { useServer } from '../helpers/server.ts';
import { until } from '../helpers/until.ts';
import { governed, ProxyProcess, temporaryDirectory } from './support.ts';

/** The official conformance suite for servers, asked of a server through the proxy, with policies that permit everything. */

const server = useServer({ SVC_POLL_SECONDS: '1' }, { shared: true });
/** A server each for the two ways, which are tried at the same time. */
let bare: string;
let through: string;
const children: ChildProcess[] = [];

async function serve(): Promise<string> {
  const port = await freePort();
  children.push(spawn(process.execPath, ['test/proxy/mcp-server.ts', String(port), 'both'], { stdio: 'ignore' }));
  const url = `http://127.0.0.1:${port}/mcp`;
  await until(async () => (await fetch(url).catch(() => undefined)) !== undefined, 'the server listens');
  return url;
}

beforeAll(async () => {
  const [own, behind] = await Promise.all([serve(), serve()]);
  bare = own;
  const world = await governed(server, { all: 'permit(principal, action, resource);' });
  const proxy = await new ProxyProcess([{ path: '/mcp', mcp: behind, server: 'fixture' }], world.env).start();
  await proxy.ready();
  // the suite has no credential to send
  const front = http.createServer((request, response) => {
    const headers = { ...request.headers, 'x-svc-agent-key': world.agentKey };
    const sent = http.request(proxy.url + request.url, { method: request.method, headers }, (answer) => {
      response.writeHead(answer.statusCode!, answer.headers);
      answer.pipe(response);
    });
    sent.on('error', () => response.destroy());
    response.on('close', () => sent.destroy());
    request.pipe(sent);
  });
  await new Promise<void>((listening) => front.listen(0, '127.0.0.1', listening));
  atEnd(() => {
    front.close();
    front.closeAllConnections();
  });
  through = `http://127.0.0.1:${(front.address() as AddressInfo).port}/mcp`;
});
afterAll(() => {
  for (const child of children) child.kill('SIGKILL');
});

interface Conformance {
  ok: boolean;
  text: string;
  checks: string[];
}

/** Runs what a revision requires; the checks by name, with `ok` where all that is scored has passed. */
async function conform(url: string, revision: string): Promise<Conformance> {
  const dir = temporaryDirectory();
  const args = ['server', '--url', url, '--requirements', revision, '-o', dir];
  const { ok, text } = await new Promise<{ ok: boolean; text: string }>((resolve) => {
    // the suite gives a server half a second for some answers, and a busy machine takes longer
    const env = { ...process.env, NODE_OPTIONS: `--import=${path.resolve('test/proxy/patient-timers.ts')}` };
    const options = { maxBuffer: 64 * 1024 * 1024, env };
    execFile(path.resolve('node_modules/.bin/conformance'), args, options, (error, out, err) =>
      resolve({ ok: !error, text: out + err }),
    );
  });
  const checks = readdirSync(dir).flatMap((scenario) =>
    (JSON.parse(readFileSync(path.join(dir, scenario, 'checks.json'), 'utf8')) as { id: string; status: string }[])
      .filter(({ status }) => status === 'SUCCESS' || status === 'FAILURE')
      .map(({ id, status }) => `${scenario.replace(/-\d{4}-\d{2}-\d{2}T.*$/, '')}: ${id}: ${status}`),
  );
  return { ok, text: text.slice(text.indexOf('=== SUMMARY ===')), checks: checks.sort() };
}

test.each([
  ['2026-07-28', 37],
  ['2025-11-25', 30],
])(
  'what %s requires of a server holds through the proxy, check by check as without it',
  async (revision, scenarios) => {
    // of the optional tasks the proxy has some that the server has not; nothing else differs
    const optional = (check: string) => check.startsWith('server-tasks-');
    // sent without the state that came with the question: the proxy refuses input that nothing shows to be asked for
    const stateless = /^server-input-required-result-(?:ignore-extra-params|missing-input-response): sep-2322-/;
    const required = (checks: string[]) => checks.filter((check) => !optional(check) && !stateless.test(check));
    const [own, proxied] = await Promise.all([conform(bare, revision), conform(through, revision)]);
    expect(own.ok, own.text).toBe(true);
    expect(proxied.ok, proxied.text).toBe(true);
    expect(required(proxied.checks)).toEqual(required(own.checks));
    const passes = (checks: string[]) => checks.filter((check) => check.endsWith('SUCCESS'));
    expect(passes(proxied.checks)).toEqual(
      expect.arrayContaining(passes(own.checks).filter((check) => !stateless.test(check))),
    );
    const passed = new Set(own.checks.filter((check) => check.endsWith('SUCCESS')).map((check) => check.split(':')[0]));
    expect(passed.size).toBeGreaterThanOrEqual(scenarios);
  },
);
