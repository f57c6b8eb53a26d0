import { PassThrough } from 'node:stream';
import { expect, test } from 'vitest';
import { createLog, RequestLog } from '../../server/lib/log.ts';

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
