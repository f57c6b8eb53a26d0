import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { constants, mkdtempSync, openSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { PassThrough } from 'node:stream';
import { expect, onTestFinished, test } from 'vitest';
import { createLog, RequestLog } from '../../server/lib/log.ts';
import { until } from '../helpers/until.ts';

test('every line of a request names it, at the level of the log and with what is secret left out', () => {
  const stream = new PassThrough();
  const log = new RequestLog(createLog('info', stream), { reqId: 'req_1' });
  expect(log.level).toBe('info');
  for (const level of ['trace', 'debug', 'info', 'warn', 'error', 'fatal'] as const) log[level]({ token: 's' }, level);
  log.error({ err: new Error('seen') }, 'failed');
  log.child({ part: 'x' }).info('of a part');
  const lines = stream
    .read()
    .toString()
    .trim()
    .split('\n')
    .map((line: string) => JSON.parse(line));
  expect(
    lines.map(({ level, reqId, msg, token, part }: Record<string, string>) => [level, reqId, msg, token, part]),
  ).toEqual([
    ['info', 'req_1', 'info', '[redacted]', undefined],
    ['warn', 'req_1', 'warn', '[redacted]', undefined],
    ['error', 'req_1', 'error', '[redacted]', undefined],
    ['fatal', 'req_1', 'fatal', '[redacted]', undefined],
    ['error', 'req_1', 'failed', undefined, undefined],
    ['info', 'req_1', 'of a part', undefined, 'x'],
  ]);
  expect(lines[4].err).toMatchObject({ type: 'Error', message: 'seen' });
});

/** Logs numbered lines until SIGTERM; says on standard error whether some were dropped, and at last how many it logged. */
const LOGS = `
  import { createLog, droppedLines } from ${JSON.stringify(path.resolve(import.meta.dirname, '../../server/lib/log.ts'))};
  const log = createLog('info');
  const padding = 'x'.repeat(5000);
  let n = 0;
  let told = false;
  setInterval(() => {
    for (let more = 0; more < 10; more++) log.info({ n: n++, padding });
    if (droppedLines() > 0 && !told) told = process.stderr.write('dropped ');
  }, 2);
  process.on('SIGTERM', () => {
    process.stderr.write('logged ' + n);
    process.exit(0);
  });
`;

function logs(to: number, command: readonly string[]): { child: ChildProcess; said: () => string } {
  const [program, ...args] = [...command, process.execPath, '--input-type=module', '--eval', LOGS];
  const child = spawn(program!, args, { stdio: ['ignore', to, 'pipe'] });
  onTestFinished(() => void child.kill('SIGKILL'));
  let said = '';
  child.stderr!.on('data', (data) => {
    said += data;
  });
  return { child, said: () => said };
}

function folder(): string {
  const dir = mkdtempSync(path.join(tmpdir(), 'svc-log-'));
  onTestFinished(() => rmSync(dir, { recursive: true, force: true }));
  return dir;
}

test('what cannot be written is counted, and the log says so in its place once it can be written again', async () => {
  const file = path.join(folder(), 'log');
  // the size that a file may have, which can be changed while the program runs, stands in for the room on a disk
  const { child, said } = logs(openSync(file, 'a'), ['prlimit', '--fsize=40000:unlimited']);
  await until(() => said().includes('dropped'), 'lines are dropped');
  execFileSync('prlimit', ['--pid', String(child.pid), '--fsize=unlimited:unlimited']);
  await until(() => readFileSync(file, 'latin1').includes('were dropped'), 'the log says so');
  child.kill('SIGTERM');
  expect(await once(child, 'exit')).toEqual([0, null]);
  let next = 0;
  const lines: { n?: number; lines?: number; level: string; msg?: string }[] = readFileSync(file, 'utf8')
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));
  for (const { n, lines: missing, level, msg } of lines) {
    if (missing === undefined) expect(n).toBe(next++);
    else {
      expect({ level, msg }).toEqual({
        level: 'error',
        msg: `${missing} lines were dropped: the log could not be written`,
      });
      next += missing;
    }
  }
  expect(said()).toContain(`logged ${next}`);
});

test.each(['a full disk', 'a pipe that nobody reads'])(
  'a program whose log goes to %s goes on, and can end',
  async (what) => {
    let to = '/dev/full';
    if (what !== 'a full disk') {
      to = path.join(folder(), 'pipe');
      execFileSync('mkfifo', [to]);
      openSync(to, constants.O_RDWR);
    }
    const { child, said } = logs(openSync(to, 'w'), []);
    await until(() => said().includes('dropped'), 'lines are dropped');
    child.kill('SIGTERM');
    expect(await once(child, 'exit')).toEqual([0, null]);
  },
);
