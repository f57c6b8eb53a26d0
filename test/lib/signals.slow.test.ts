import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { expect, test } from 'vitest';

/** Its clock goes on only when it is told to, by what is written to it, and it says when it has heard of a signal. */
const PROGRAM = `
  import { createInterface } from 'node:readline';
  import { onStopSignals } from ${JSON.stringify(new URL('../../server/lib/signals.ts', import.meta.url).href)};
  let now = 5000;
  performance.now = () => now;
  onStopSignals((name) => console.log('stop', name), () => process.exit(1));
  for (const name of ['SIGINT', 'SIGTERM']) process.on(name, () => console.log('heard', name));
  createInterface({ input: process.stdin }).on('line', (line) => {
    if (line === 'end') process.exit(0);
    now += Number(line);
    console.log('later');
  });
  console.log('ready');
`;

test.each([
  ['one signal ends it gracefully', undefined, 0],
  ['a second one that comes along with it is the same wish', 999, 0],
  ['a later one is another wish', 1000, 1],
])('%s', async (_, laterMs, code) => {
  const child = spawn(process.execPath, ['--input-type=module', '-e', PROGRAM], {
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  const ended = once(child, 'exit');
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const next = async () => (await lines.next()).value;
  expect(await next()).toBe('ready');
  child.kill('SIGINT');
  expect([await next(), await next()]).toEqual(['stop SIGINT', 'heard SIGINT']);
  if (laterMs !== undefined) {
    child.stdin.write(`${laterMs}\n`);
    expect(await next()).toBe('later');
    child.kill('SIGTERM');
    // where it is another wish, the process ends before
    expect(await next()).toBe(code === 0 ? 'heard SIGTERM' : undefined);
  }
  child.stdin.on('error', () => {}).write('end\n');
  expect(await ended).toEqual([code, null]);
});
