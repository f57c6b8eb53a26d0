import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { setTimeout as delay } from 'node:timers/promises';
import { expect, test } from 'vitest';

const PROGRAM = `
  import { onStopSignals } from ${JSON.stringify(new URL('../../server/lib/signals.ts', import.meta.url).href)};
  onStopSignals((name) => { console.log('stop', name); setTimeout(() => process.exit(0), 3000); }, () => process.exit(1));
  setInterval(() => {}, 1000);
  console.log('ready');
`;

test.each([
  ['one signal ends it gracefully', [0], 0],
  ['a second one that comes along with it is the same wish', [0, 20], 0],
  ['a later one is another wish', [0, 1500], 1],
])('%s', async (_, times, code) => {
  const child = spawn(process.execPath, ['--input-type=module', '-e', PROGRAM], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  let output = '';
  child.stdout.on('data', (part) => {
    output += part;
  });
  await once(child.stdout, 'data');
  const ended = once(child, 'exit');
  for (const [n, time] of times.entries()) {
    await delay(time);
    child.kill(n === 0 ? 'SIGINT' : 'SIGTERM');
  }
  expect(await ended).toEqual([code, null]);
  expect(output).toBe('ready\nstop SIGINT\n');
});
