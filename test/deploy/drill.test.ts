import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';
import { expect, onTestFinished, test } from 'vitest';
import { endAtOnce } from '../../deploy/drill/pair.ts';

const root = path.resolve(import.meta.dirname, '../..');

test('a drill of Patroni that would end nothing is refused', async () => {
  const args = ['deploy/drill/patroni.ts', '--faults', 'haproxy', '--through', 'hosts'];
  await expect(promisify(execFile)(process.execPath, args, { cwd: root })).rejects.toMatchObject({
    code: 1,
    stdout: '',
    stderr: expect.stringContaining('there is nothing to do'),
  });
});

/** A process with these arguments, which a postmaster.pid names. */
async function named(data: string, ...args: string[]) {
  const child = spawn(process.execPath, ['-e', 'console.log(1); setInterval(() => {}, 1000)', '--', ...args], {
    stdio: ['ignore', 'pipe', 'ignore'],
  });
  onTestFinished(() => void child.kill('SIGKILL'));
  await once(child.stdout, 'data');
  writeFileSync(path.join(data, 'postmaster.pid'), `${child.pid}\n${data}\n`);
  return child;
}

test('a drill ends the PostgreSQL of its own directory, and no program that has the number of one that is gone', async () => {
  const data = mkdtempSync(path.join(tmpdir(), 'svc-ended-'));
  onTestFinished(() => rmSync(data, { recursive: true, force: true }));
  expect(endAtOnce(data)).toBe(false);

  for (const args of [[], ['-D', `${data}-2`], [data]]) {
    const other = await named(data, ...args);
    expect(endAtOnce(data)).toBe(false);
    await delay(50);
    expect([other.exitCode, other.signalCode]).toEqual([null, null]);
  }

  const own = await named(data, '-D', data);
  const ended = once(own, 'exit');
  expect(endAtOnce(data)).toBe(true);
  expect(await ended).toEqual([null, 'SIGKILL']);
  // its file is still there
  expect(endAtOnce(data)).toBe(false);
});
