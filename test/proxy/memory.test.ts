import { execFileSync } from 'node:child_process';
import path from 'node:path';
import { expect, test } from 'vitest';

/** Megabytes that V8 has for young objects after the start, and when a process has made many that live for a while. */
function young(kind: 'least' | 'busy' | undefined): { start: number; worked: number } {
  const script = `
    import v8 from 'node:v8';
    import { setImmediate } from 'node:timers/promises';
    import { boundMemory } from ${JSON.stringify(path.resolve('server/proxy/memory.ts'))};
    const young = () =>
      v8.getHeapSpaceStatistics().find(({ space_name }) => space_name === 'new_space').space_size / 1024 / 1024;
    ${kind ? `boundMemory('${kind}');` : ''}
    const start = young();
    const work = () => {
      let kept = [];
      for (let n = 0; n < 1_500_000; n++) {
        kept.push([n]);
        if (kept.length === 100_000) kept = [];
      }
    };
    work();
    // until the process was found to be at work
    while (${kind === 'busy'} && young() < 16) {
      await setImmediate();
      work();
    }
    work();
    console.log(JSON.stringify({ start, worked: young() }));
    process.exit();
  `;
  return JSON.parse(execFileSync(process.execPath, ['--input-type=module', '-e', script], { encoding: 'utf8' }));
}

test('young objects get no more than they are meant to have, and a process without work has little for them', () => {
  expect(young('least').worked).toBeLessThan(8);
  const busy = young('busy');
  expect(busy.start).toBeLessThan(8);
  expect(busy.worked).toBeGreaterThanOrEqual(16);
  expect(busy.worked).toBeLessThan(32);
  expect(young(undefined).worked).toBeGreaterThan(32);
});
