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

test('where V8 allows young objects less, it is soon not asked for more', () => {
  const script = `
    import { setTimeout } from 'node:timers/promises';
    import { boundMemory } from ${JSON.stringify(path.resolve('server/proxy/memory.ts'))};
    let filled = 0;
    const { from } = Array;
    Array.from = (...args) => {
      filled++;
      return from(...args);
    };
    boundMemory('busy');
    // work in between, until it has looked several times more
    const work = async (looks) => {
      for (; looks > 0; looks--) {
        const end = performance.now() + 200;
        while (performance.now() < end) for (let n = 0; n < 100_000; n++) Math.sqrt(n);
        await setTimeout(100);
      }
    };
    while (filled === 0) await work(1);
    // until it was at work for five looks or more, and nothing was filled
    let rests = 0;
    for (let n = 0; n < 60 && rests < 5; n++) {
      const before = filled;
      await work(1);
      rests = filled === before ? rests + 1 : 0;
    }
    console.log(JSON.stringify({ rests }));
    process.exit();
  `;
  const args = ['--max-semi-space-size=1', '--input-type=module', '-e', script];
  expect(JSON.parse(execFileSync(process.execPath, args, { encoding: 'utf8' }))).toEqual({ rests: 5 });
});
