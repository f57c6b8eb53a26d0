import { execFileSync } from 'node:child_process';
import path from 'node:path';
import { expect, test } from 'vitest';

/** Megabytes that V8 has for young objects when a process has made many that live for a while. */
function young(kind: 'least' | 'busy' | undefined): number {
  const script = `
    import v8 from 'node:v8';
    import { boundMemory } from ${JSON.stringify(path.resolve('server/proxy/memory.ts'))};
    ${kind ? `boundMemory('${kind}');` : ''}
    let kept = [];
    for (let n = 0; n < 1_500_000; n++) {
      kept.push([n]);
      if (kept.length === 100_000) kept = [];
    }
    const { space_size } = v8.getHeapSpaceStatistics().find(({ space_name }) => space_name === 'new_space');
    console.log(space_size / 1024 / 1024);
  `;
  return Number(execFileSync(process.execPath, ['--input-type=module', '-e', script], { encoding: 'utf8' }));
}

test('young objects get no more than they are meant to have', () => {
  expect(young('least')).toBeLessThan(8);
  const busy = young('busy');
  expect(busy).toBeGreaterThanOrEqual(16);
  expect(busy).toBeLessThan(32);
  expect(young(undefined)).toBeGreaterThan(32);
});
